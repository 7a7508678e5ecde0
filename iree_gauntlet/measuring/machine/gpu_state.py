"""The state of one GPU, in words that the vendors' tools share."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class ToolAnswerError(Exception):
    """A vendor's tool did not answer, or nothing that can be read; the text continues after the tool's name."""


class Slowdown(StrEnum):
    """Why a GPU's clock is not as high as it could be.

    NVIDIA's are the bits of NVML's NvmlClocksEventReasons, AMD's the violations of amdsmi_violation_status_t.
    """

    IDLE = "idle"
    CHOSEN_CLOCKS = "clocks chosen by a user"
    DISPLAY = "display clocks"
    SYNC_BOOST = "kept with the slowest of its group"
    POWER_CAP = "at its power limit"
    HEAT = "heat"
    POWER_BRAKE = "power brake"
    HARDWARE = "slowed down by the hardware"
    UNNAMED = "throttled, cause unknown"


# What no benchmark should run under. The power limit is another matter: a large GPU that is busy runs at it.
_ILL = (Slowdown.HEAT, Slowdown.POWER_BRAKE, Slowdown.HARDWARE)
_IDLE_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU at one moment. None where the tool does not say.

    Attributes:
        index: its number in the vendor's tool.
        name: of the model; empty where the tool does not say.
        uuid: its identity; empty where the tool does not say.
        clock_mhz, max_clock_mhz: clock of the compute units (SM, gfx), and the highest possible.
        temperature_c: in °C; of the hottest spot where it is reported.
        utilization_percent: share of the last moments (up to a second) in which it was busy, 0 to 100.
        power_w: power draw in W.
        reasons: why the clock is not higher.
        throttled: for each reason, for how long it has applied since the driver was loaded, in the unit of `uptime`.
        uptime: the clock that goes with `throttled`; None where that is in seconds of everybody's clock.
        others: processes on it; None where they are not known.
    """

    index: int
    name: str = ""
    uuid: str = ""
    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    temperature_c: float | None = None
    utilization_percent: float | None = None
    power_w: float | None = None
    reasons: tuple[Slowdown, ...] = ()
    throttled: tuple[tuple[Slowdown, float], ...] = ()
    uptime: float | None = None
    others: tuple[int, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the journal: what is known."""
        found = {name: value for name, value in asdict(self).items() if value not in (None, "", ())}
        if "throttled" in found:
            found["throttled"] = {str(cause): amount for cause, amount in self.throttled}
        return found | ({"others": list(self.others)} if self.others is not None else {})

    @property
    def label(self) -> str:
        """For people."""
        return f"GPU {self.index} ({self.name})" if self.name else f"GPU {self.index}"

    @property
    def ill_reasons(self) -> tuple[Slowdown, ...]:
        """Those of the reasons that mean heat or a power supply that fails."""
        return tuple(reason for reason in self.reasons if reason in _ILL)

    @property
    def idle(self) -> bool:
        """Whether nothing runs on it: its clock then says nothing about the clock that work would get."""
        quiet = self.utilization_percent is not None and self.utilization_percent < _IDLE_PERCENT
        return Slowdown.IDLE in self.reasons or quiet


def number_of(value: object) -> float | None:
    """The number of a tool's field, with or without its unit; None for `[N/A]` and the like."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = value.strip().partition(" ")[0].rstrip("%")
    if not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None
