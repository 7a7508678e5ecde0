"""Whether a device still computes right, and as fast as it did: a known-good program, asked before it is relied on.

A device is checked when a worker takes part in a run, after a step on it crashed or hung, and every ten minutes. Times
are held against those of earlier checks on the same machine, with the same runtime, while nothing else runs there. The
compiled program is in the worker's module cache, under a key like every module's.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.device_kinds import ROCM, find_kind, is_cpu
from iree_gauntlet.engine.modules.module_cache import EntryGoneError
from iree_gauntlet.engine.modules.module_key import join_flags, make_key
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.measuring.profiles.benchmark_rows import BenchmarkError, parse_benchmark_rows
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.results import SENT_SIGNALS
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.system.short_process import ask, name_signal
from iree_gauntlet.targets import Target, parse_target, target_flags
from iree_gauntlet.toolchains.devices import means_host, read_host_cpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.cluster.offers import DeviceOffer
    from iree_gauntlet.engine.modules.module_cache import ModuleCache
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.run import Opened
    from iree_gauntlet.system.short_process import Answer
    from iree_gauntlet.toolchains.toolchain import Toolchain


# Ones times ones: each value of the product is 64.
_PROGRAM = """func.func @known_good(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x64xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x64xf32>) -> tensor<64x64xf32>
  %product = linalg.matmul ins(%a, %a : tensor<64x64xf32>, tensor<64x64xf32>)
      outs(%filled : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %product : tensor<64x64xf32>
}
"""
_ROLE, _NAME = "module", "cluster:known-good"
_INPUT, _EXPECTED = "--input=64x64xf32=1", "--expected_output=64x64xf32=64"
_TIMEOUT_SECONDS = 120.0
# Beyond what a busy machine does to the fastest of ten repetitions: a card that lost its clock, a throttled processor.
_MOST_TIMES_SLOWER = 3.0
_LEAST_CHECKS = 5
_MOST_CHECKS = 20
_KFD = Path("/sys/class/kfd/kfd/topology/nodes")
_GFX = re.compile(r"^gfx_target_version (\d+)$", re.MULTILINE)
# How long a device is believed.
_CHECK_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _KnownTimes(Recorded):
    """What earlier checks took, by device and runtime."""

    ms: dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The known-good program, compiled for a device."""

    device: str
    toolchain: Toolchain
    module: Path
    records: Path

    def wrong(self) -> str:
        """What is wrong with what the device computes; empty for nothing."""
        try:
            answer = _ask([*self._compose_words(self.toolchain.runtime.run_module), _INPUT, _EXPECTED])
        except ToolchainError as error:
            return f"a known-good program does not run: {error.what}"
        return f"a known-good program {_describe_end(answer)}" if answer.exit_code else ""

    def slow(self) -> str:
        """Whether the device has become slow, by how much; empty where it has not, or where nothing is known of it.

        Nothing else may run meanwhile.
        """
        now = self._time_ms()
        if now is None:
            return ""
        name = f"{self.device} {self.toolchain.runtime.identity[:16]}"
        with file_lock(self.records.with_suffix(".lock")):
            known: dict[str, tuple[float, ...]] = {}
            with suppress(OSError, ValueError):
                known = _KnownTimes.from_dict({"ms": read_json(self.records.read_bytes())}).ms
            before = known.get(name, ())
            usual = statistics.median(before) if len(before) >= _LEAST_CHECKS else now
            if now > _MOST_TIMES_SLOWER * usual:
                took = f"a known-good program takes {now:.3g} ms, and took {usual:.3g} ms in earlier checks"
                return f"{took} (remove {self.records} on the worker if that is as it should be)"
            known[name] = (*before, now)[-_MOST_CHECKS:]
            write_atomic(self.records, json.dumps(known, indent=1).encode())
        return ""

    def _time_ms(self) -> float | None:
        words = self._compose_words(self.toolchain.runtime.benchmark_module)
        flags = ["--benchmark_format=json", "--benchmark_repetitions=10", "--benchmark_min_time=0.02s", _INPUT]
        try:
            answer = ask([*words, *flags], timeout=_TIMEOUT_SECONDS)
            return min(parse_benchmark_rows(answer.stdout)[0].real_time_ms)
        except (ToolchainError, BenchmarkError):
            # What the benchmark itself is about will say more.
            return None

    def _compose_words(self, tool: str) -> list[str]:
        return [tool, f"--device={self.device}", f"--module={self.module}", "--function=known_good"]


def make_health_checks(
    devices: Sequence[DeviceOffer], toolchain: Toolchain, modules: ModuleCache, folder: Path, records: Path
) -> tuple[dict[str, HealthCheck], dict[str, str]]:
    """Makes the module for each device: checks by URI, and why there is none, by its name to people."""
    folder.mkdir(parents=True, exist_ok=True)
    checks: dict[str, HealthCheck] = {}
    missing: dict[str, str] = {}
    for number, device in enumerate(devices):
        kind = find_kind(device.uri)
        find_target = _TARGET_FINDERS.get(kind, partial(parse_target, kind.family))
        if (target := find_target()) is None:
            # What it is compiled for cannot be known here: the run's own steps will tell.
            continue
        module = folder / f"known-good-{number}.vmfb"
        if why := _make_module(toolchain, target, modules, module):
            missing[device.name] = f"a known-good program does not compile for it: {why}"
        else:
            checks[device.uri] = HealthCheck(device.uri, toolchain, module, records)
    return checks, missing


def _make_module(toolchain: Toolchain, target: Target, modules: ModuleCache, module: Path) -> str:
    """Puts the compiled program at a path, from the cache or by the compiler; why it does not compile, or nothing."""
    flags = target_flags(target)
    ingredients = {
        "kind": "compile",
        "program": hashlib.sha256(_PROGRAM.encode()).hexdigest(),
        "flags": join_flags(flags),
        "compiler": toolchain.compiler.identity,
        "host": read_host_cpu().identity if means_host(flags) else "",
    }
    if (entry := modules.lookup(make_key(ingredients)).entry) is not None:
        with suppress(EntryGoneError):
            modules.materialise(entry, _ROLE, module)
            return ""
    # One of an earlier check may share its bytes with the cache: the compiler must not write into it.
    module.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir", dir=module.parent) as program:
        program.write(_PROGRAM)
        program.flush()
        argv = [toolchain.compiler.compile, program.name, *flags, "-o", str(module)]
        try:
            answer = _ask(argv)
        except ToolchainError as error:
            return error.what
    if answer.exit_code:
        return f"iree-compile {_describe_end(answer)}"
    # A cache that cannot keep it is no fault of the device.
    modules.publish({_ROLE: module}, name=_NAME, ingredients=ingredients, metadata={}, created=datetime.now(UTC))
    return ""


def _ask(argv: Sequence[str]) -> Answer:
    """Runs a program; once more where a person, a job system or the kernel's want of memory has killed it."""
    answer = ask(argv, timeout=_TIMEOUT_SECONDS)
    return ask(argv, timeout=_TIMEOUT_SECONDS) if _name_signal_of(answer) in SENT_SIGNALS else answer


def _name_signal_of(answer: Answer) -> str:
    """What ended a program; empty where it ended by itself."""
    return name_signal(max(0, -answer.exit_code))


def _describe_end(answer: Answer) -> str:
    lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
    words = lines[-1] if lines else "it says nothing"
    name = _name_signal_of(answer)
    again = ", as when it was first tried" if name in SENT_SIGNALS else ""
    return f"ends by {name}{again}: {words}" if name else f"ends with {answer.exit_code}: {words}"


def _find_amd_target() -> Target | None:
    """The chip of this machine's AMD cards, where they are all the same."""
    found = set()
    for node in _KFD.glob("*/properties"):
        match = _GFX.search(node.read_text(encoding="ascii", errors="replace"))
        if match and int(match[1]):
            major, rest = divmod(int(match[1]), 10_000)
            found.add(f"gfx{major}{rest // 100:x}{rest % 100:x}")
    return Target(ROCM.family, found.pop()) if len(found) == 1 else None


# Of kinds whose chip the compiler has to be told.
_TARGET_FINDERS = {ROCM: _find_amd_target}


class DeviceHealth:
    """Checks devices when they are due."""

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
        if toolchain is None or not any(step.stage.row.runs_modules for step in run.steps):
            return cls(run.session, {}), {}
        records = run.machine.cache_dir / "cluster" / "health.json"
        names = {device.uri: device.name for device in devices}
        # Nobody's benchmark is to see this.
        with run.session.quiet(exclusive=False):
            folder = run.session.folder / "health"
            checks, unfit = make_health_checks(devices, toolchain, run.machine.modules, folder, records)
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
        with self._session.quiet("" if is_cpu(device) else device):
            # Twice: one slow answer may be anything's fault.
            slow = check.slow() and check.slow()
        if not slow:
            self._fast[device] = now
        return slow

    def distrust(self, device: str) -> None:
        """A step has crashed or hung on it: it is checked before the next."""
        if device in self._checks:
            self._right[device] = -math.inf
