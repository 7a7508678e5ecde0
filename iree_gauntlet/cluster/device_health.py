"""Which of a worker's devices are fit for the steps of a run: each is checked when that is due (see `health.py`)."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage
from iree_gauntlet.cluster.health import HealthCheck, health_checks
from iree_gauntlet.cluster.offers import LOCAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.cluster.offers import DeviceOffer
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.performing import Opened


# How long a device is believed.
_CHECK_SECONDS = 600.0


class DeviceHealth:
    """Checks devices when they are due.

    Args:
        session: what the run runs in.
        checks: by the device's own name.
    """

    def __init__(self, session: Session[Any], checks: dict[str, HealthCheck]) -> None:
        self._session = session
        self._checks = checks
        # When each was last found right, and as fast as it was.
        self._right = dict.fromkeys(checks, time.monotonic())
        self._fast = dict.fromkeys(checks, -math.inf)

    @classmethod
    def of(cls, run: Opened, devices: Sequence[DeviceOffer]) -> tuple[DeviceHealth, dict[str, str]]:
        """The checks of a worker's devices, and what is wrong with those that do not pass, by name."""
        toolchain = run.machine.toolchain
        if toolchain is None or not {Stage.THRESHOLD, Stage.BENCHMARK} & {step.stage for step in run.steps}:
            return cls(run.session, {}), {}
        records = run.machine.cache_dir / "cluster" / "health.json"
        names = {device.uri: device.name for device in devices}
        # Nobody's benchmark is to see this.
        with run.session.quiet(exclusive=False):
            checks, unfit = health_checks(devices, toolchain, run.session.folder / "health", records)
            unfit |= {names[uri]: why for uri, check in checks.items() if (why := check.wrong())}
        return cls(run.session, checks), unfit

    def due(self, device: str, *, timed: bool) -> str:
        """What is wrong with a device that was not checked for a while; empty for nothing."""
        check, now = self._checks.get(device), time.monotonic()
        if check is None:
            return ""
        if now - self._right[device] > _CHECK_SECONDS:
            with self._session.quiet(exclusive=False):
                wrong = check.wrong()
            if wrong:
                return wrong
            self._right[device] = now
        if not timed or now - self._fast[device] < _CHECK_SECONDS:
            return ""
        with self._session.quiet("" if device.startswith(LOCAL) else device):
            # Twice: one slow answer may be anything's fault.
            slow = check.slow() and check.slow()
        if not slow:
            self._fast[device] = now
        return slow

    def distrust(self, device: str) -> None:
        """A step has crashed or hung on it: it is checked before the next."""
        if device in self._checks:
            self._right[device] = -math.inf
