"""Checks with a known-good program whether a device still computes correctly, and as fast as before.

A device is checked when its worker joins a run, after a step on the device crashed or hung, and every ten minutes.
Times are compared with times of previous checks on the same machine and with the same runtime, while nothing else runs
there. The compiled program is in the worker's module cache, like other modules.
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
from iree_gauntlet.results import EXTERNAL_SIGNALS
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.system.short_process import get_signal_name, run_tool
from iree_gauntlet.targets import Target, parse_target, target_flags
from iree_gauntlet.toolchains.devices import read_host_cpu, targets_host_cpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.cluster.offers import WorkerDevice
    from iree_gauntlet.engine.modules.module_cache import ModuleCache
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.run import WorkerRun
    from iree_gauntlet.system.short_process import ProcessOutput
    from iree_gauntlet.toolchains.toolchain import Toolchain


# Both inputs are all ones, so each value of the product is 64.
_PROGRAM = """func.func @known_good(%a: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x64xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x64xf32>) -> tensor<64x64xf32>
  %product = linalg.matmul ins(%a, %a : tensor<64x64xf32>, tensor<64x64xf32>)
      outs(%filled : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %product : tensor<64x64xf32>
}
"""
_ROLE, _MODULE_NAME = "module", "cluster:known-good"
_INPUT, _EXPECTED_OUTPUT = "--input=64x64xf32=1", "--expected_output=64x64xf32=64"
_TIMEOUT_SECONDS = 120.0
# A busy machine slows the fastest of ten repetitions by less than this factor; a throttled device is slower.
_MAX_SLOWDOWN = 3.0
_MIN_CHECKS = 5
_MAX_CHECKS = 20
_KFD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
_GFX_VERSION = re.compile(r"^gfx_target_version (\d+)$", re.MULTILINE)
# The seconds for which a check's result is trusted.
_CHECK_INTERVAL_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _PreviousTimes(Recorded):
    """The times of previous checks in ms, by device and runtime."""

    ms: dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The known-good program, compiled for a device."""

    device: str
    toolchain: Toolchain
    module: Path
    records: Path

    def find_error(self) -> str:
        """Return a description of the device's error; empty for none."""
        try:
            answer = _run_tool([*self._compose_arguments(self.toolchain.runtime.run_module), _INPUT, _EXPECTED_OUTPUT])
        except ToolchainError as error:
            return f"a known-good program does not run: {error.message}"
        return f"a known-good program {_describe_end(answer)}" if answer.exit_code else ""

    def find_slowdown(self) -> str:
        """Return a description of the device's slowdown; empty without a slowdown, or without previous times.

        Nothing else may run on the machine during the check.
        """
        time_ms = self._time_ms()
        if time_ms is None:
            return ""
        name = f"{self.device} {self.toolchain.runtime.identity[:16]}"
        with file_lock(self.records.with_suffix(".lock")):
            known_times: dict[str, tuple[float, ...]] = {}
            with suppress(OSError, ValueError):
                known_times = _PreviousTimes.from_dict({"ms": read_json(self.records.read_bytes())}).ms
            previous_times = known_times.get(name, ())
            usual_ms = statistics.median(previous_times) if len(previous_times) >= _MIN_CHECKS else time_ms
            if time_ms > _MAX_SLOWDOWN * usual_ms:
                message = f"a known-good program takes {time_ms:.3g} ms, but took {usual_ms:.3g} ms in earlier checks"
                return f"{message} (remove {self.records} on the worker if that is expected)"
            known_times[name] = (*previous_times, time_ms)[-_MAX_CHECKS:]
            write_atomic(self.records, json.dumps(known_times, indent=1).encode())
        return ""

    def _time_ms(self) -> float | None:
        command = self._compose_arguments(self.toolchain.runtime.benchmark_module)
        flags = ["--benchmark_format=json", "--benchmark_repetitions=10", "--benchmark_min_time=0.02s", _INPUT]
        try:
            answer = run_tool([*command, *flags], timeout=_TIMEOUT_SECONDS)
            return min(parse_benchmark_rows(answer.stdout)[0].real_time_ms)
        except (ToolchainError, BenchmarkError):
            # Ignore the error: the benchmark itself will fail with a better message.
            return None

    def _compose_arguments(self, tool: str) -> list[str]:
        return [tool, f"--device={self.device}", f"--module={self.module}", "--function=known_good"]


def make_health_checks(
    devices: Sequence[WorkerDevice], toolchain: Toolchain, modules: ModuleCache, folder: Path, records: Path
) -> tuple[dict[str, HealthCheck], dict[str, str]]:
    """Build the module for each device; return checks by URI, and error messages by device name."""
    folder.mkdir(parents=True, exist_ok=True)
    checks: dict[str, HealthCheck] = {}
    errors: dict[str, str] = {}
    for index, device in enumerate(devices):
        kind = find_kind(device.uri)
        find_target = _TARGET_FINDERS.get(kind, partial(parse_target, kind.family))
        if (target := find_target()) is None:
            # Skip the check without a known target: the run's own steps will show whether the device works.
            continue
        module = folder / f"known-good-{index}.vmfb"
        if error := _make_module(toolchain, target, modules, module):
            errors[device.name] = f"a known-good program does not compile for it: {error}"
        else:
            checks[device.uri] = HealthCheck(device.uri, toolchain, module, records)
    return checks, errors


def _make_module(toolchain: Toolchain, target: Target, modules: ModuleCache, module: Path) -> str:
    """Put the compiled program at a path, from the cache or by the compiler; return an error message, or ""."""
    flags = target_flags(target)
    key_inputs = {
        "kind": "compile",
        "program": hashlib.sha256(_PROGRAM.encode()).hexdigest(),
        "flags": join_flags(flags),
        "compiler": toolchain.compiler.identity,
        "host": read_host_cpu().identity if targets_host_cpu(flags) else "",
    }
    if (entry := modules.lookup(make_key(key_inputs)).entry) is not None:
        with suppress(EntryGoneError):
            modules.materialise(entry, _ROLE, module)
            return ""
    # The compiler must not write into the module of a previous check, which may be a hard link to the cache's file.
    module.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".mlir", dir=module.parent) as program:
        program.write(_PROGRAM)
        program.flush()
        argv = [toolchain.compiler.compile, program.name, *flags, "-o", str(module)]
        try:
            answer = _run_tool(argv)
        except ToolchainError as error:
            return error.message
    if answer.exit_code:
        return f"iree-compile {_describe_end(answer)}"
    # Ignore whether the cache can store the module: that is not the device's fault.
    modules.publish({_ROLE: module}, name=_MODULE_NAME, ingredients=key_inputs, metadata={}, created=datetime.now(UTC))
    return ""


def _run_tool(argv: Sequence[str]) -> ProcessOutput:
    """Run a program; run it again if it was killed by a person, a job system or the kernel (out of memory)."""
    answer = run_tool(argv, timeout=_TIMEOUT_SECONDS)
    return run_tool(argv, timeout=_TIMEOUT_SECONDS) if _name_signal_of(answer) in EXTERNAL_SIGNALS else answer


def _name_signal_of(answer: ProcessOutput) -> str:
    """Return the signal that ended a program; empty if it ended by itself."""
    return get_signal_name(max(0, -answer.exit_code))


def _describe_end(answer: ProcessOutput) -> str:
    lines = [line.strip() for line in answer.text.splitlines() if line.strip()]
    last_line = lines[-1] if lines else "it printed nothing"
    name = _name_signal_of(answer)
    retry_note = ", as on the first attempt" if name in EXTERNAL_SIGNALS else ""
    return f"is killed by {name}{retry_note}: {last_line}" if name else f"exits with {answer.exit_code}: {last_line}"


def _find_amd_target() -> Target | None:
    """Return the chip of this machine's AMD cards, if they are all the same."""
    chips = set()
    for node in _KFD_NODES.glob("*/properties"):
        match = _GFX_VERSION.search(node.read_text(encoding="ascii", errors="replace"))
        if match and int(match[1]):
            major, minor_and_step = divmod(int(match[1]), 10_000)
            chips.add(f"gfx{major}{minor_and_step // 100:x}{minor_and_step % 100:x}")
    return Target(ROCM.family, chips.pop()) if len(chips) == 1 else None


# For these kinds, the compiler must be told the chip.
_TARGET_FINDERS = {ROCM: _find_amd_target}


class DeviceHealth:
    """Checks devices when they are due."""

    def __init__(self, session: Session[Any], checks: dict[str, HealthCheck]) -> None:
        self._session = session
        self._checks = checks
        # The last time at which each device was found correct, and the last time at which it was fast enough.
        self._checked_at = dict.fromkeys(checks, time.monotonic())
        self._timed_at = dict.fromkeys(checks, -math.inf)

    @classmethod
    def of(cls, run: WorkerRun, devices: Sequence[WorkerDevice]) -> tuple[DeviceHealth, dict[str, str]]:
        """Return the checks of a worker's devices, and the error messages of failing devices by name."""
        toolchain = run.workbench.toolchain
        if toolchain is None or not any(step.stage.row.runs_modules for step in run.steps):
            return cls(run.session, {}), {}
        records = run.workbench.cache_dir / "cluster" / "health.json"
        names = {device.uri: device.name for device in devices}
        # Wait for running benchmarks, and block new ones; share the machine otherwise.
        with run.session.hold_machine(exclusive=False):
            folder = run.session.folder / "health"
            checks, errors = make_health_checks(devices, toolchain, run.workbench.modules, folder, records)
            errors |= {names[uri]: error for uri, check in checks.items() if (error := check.find_error())}
        return cls(run.session, checks), errors

    def check_if_due(self, device: str, *, for_timing: bool) -> str:
        """Check a device if its last check is too old; return an error message, or an empty string."""
        check, current_time = self._checks.get(device), time.monotonic()
        if check is None:
            return ""
        if current_time - self._checked_at[device] > _CHECK_INTERVAL_SECONDS:
            with self._session.hold_machine(exclusive=False):
                error = check.find_error()
            if error:
                return error
            self._checked_at[device] = current_time
        if not for_timing or current_time - self._timed_at[device] < _CHECK_INTERVAL_SECONDS:
            return ""
        with self._session.hold_machine("" if is_cpu(device) else device):
            # A slow device is timed again, because a single slow result may have other causes.
            slowdown = check.find_slowdown() and check.find_slowdown()
        if not slowdown:
            self._timed_at[device] = current_time
        return slowdown

    def distrust(self, device: str) -> None:
        """Make the next step check the device, because a step has crashed or hung on it."""
        if device in self._checks:
            self._checked_at[device] = -math.inf
