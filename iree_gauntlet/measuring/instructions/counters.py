"""Find the instruction counter of this machine, the CPU's own or valgrind, and read the counts that it wrote."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.measuring.profiles.dispatch_profile import DispatchProfile, DispatchTime
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.system.short_process import run_tool

# Modules are compiled for these CPUs if a counter does not support every CPU. Valgrind has no AVX-512, and emulates
# fused multiply-add in software, which can make a program twenty times slower.
WITHOUT_FMA = ",-fma"
_COUNT_CPUS = {"x86_64": f"x86-64-v3{WITHOUT_FMA}", "aarch64": "generic"}
# The number of the system call perf_event_open(2).
_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_PARANOID_PATH = Path("/proc/sys/kernel/perf_event_paranoid")
_PERF_COUNT_HW_INSTRUCTIONS = 1
# With these flags, counters start at exec, include children of the process, and exclude kernel and hypervisor.
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR, _ENABLE_ON_EXEC, _DISABLED_FLAG = 1 << 1, 1 << 5, 1 << 6, 1 << 12, 1
_VALGRIND_HINT = "Install valgrind (Debian and Ubuntu: apt install valgrind; Fedora: dnf install valgrind)"


class CounterKind(StrEnum):
    """The kind of a counter; counts of two kinds are never compared."""

    HARDWARE = "hardware"
    VALGRIND = "valgrind"


@dataclass(frozen=True, slots=True)
class Counter:
    """An instruction counter; modules are compiled for `cpu` (`x86-64-v3,-fma`), or by their specs if it is empty."""

    kind: CounterKind
    identity: str
    cpu: str
    path: str = ""

    @property
    def argument(self) -> str:
        """The value of `--counter` for the program that counts."""
        return f"{self.kind}:{self.path}" if self.path else str(self.kind)


def find_counter(kind: str = "auto", cpu: str = "") -> Counter:
    """Find the requested counter; for `auto`, the hardware counter if it can be read, otherwise valgrind.

    `cpu` is the CPU that modules are compiled for; empty for the counter's default.
    """
    error = ""
    if kind != CounterKind.VALGRIND:
        error = explain_missing_hardware_counter()
        if not error:
            return Counter(CounterKind.HARDWARE, f"hardware counters ({platform.machine()})", cpu)
        if kind == CounterKind.HARDWARE:
            next_step = "valgrind is installed: leave --counter out" if shutil.which("valgrind") else _VALGRIND_HINT
            raise ToolchainError(f"the CPU's instruction counter cannot be read: {error}", f"{next_step}.")
    path = shutil.which("valgrind")
    if path is None:
        error_prefix = f"the CPU's own counter is {error}; " if error else ""
        message = f"nothing on this machine counts instructions: {error_prefix}valgrind is not installed"
        raise ToolchainError(message, f"{_VALGRIND_HINT}.")
    answer = run_tool([path, "--version"], timeout=60)
    if answer.exit_code != 0 or not answer.stdout.startswith("valgrind-"):
        first_line = (answer.text.strip().splitlines() or ["it printed nothing"])[0]
        raise ToolchainError(f"{path} does not work: {first_line}", f"{_VALGRIND_HINT} again.")
    version = answer.stdout.split()[0].removeprefix("valgrind-")
    return Counter(
        CounterKind.VALGRIND, f"valgrind {version}", cpu or _COUNT_CPUS.get(platform.machine(), "generic"), path
    )


def is_usual_count(counter: str, cpu: str) -> bool:
    """Return whether a count can be compared with goldens: counted by valgrind, of modules for the default CPU."""
    return counter.startswith(CounterKind.VALGRIND) and cpu in _COUNT_CPUS.values()


def explain_missing_hardware_counter() -> str:
    """Return why the CPU's counter of instructions cannot be read here; empty if it can."""
    try:
        os.close(open_hardware_counter(0))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            level = _PARANOID_PATH.read_text(encoding="ascii").strip() if _PARANOID_PATH.is_file() else "unknown"
            return f"not allowed: kernel.perf_event_paranoid is {level} (sysctl kernel.perf_event_paranoid=2 will do)"
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.ENOSYS):
            return "not supported by this machine (most virtual machines hide it)"
        return os.strerror(error.errno or 0)
    return ""


def open_hardware_counter(pid: int, event: tuple[int, int] = (0, _PERF_COUNT_HW_INSTRUCTIONS)) -> int:
    """Open a counter of a process (0: this one) and its children, which starts at the next exec; a read gives 8 bytes.

    `event` is the type and number of the event (perf_event_open(2)), by default PERF_TYPE_HARDWARE and
    PERF_COUNT_HW_INSTRUCTIONS. Raise OSError if the machine has no such counter, or denies access to it.
    """
    number = _SYSCALLS.get(platform.machine())
    if number is None or os.uname().sysname != "Linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    # perf_event_attr: type, size, config, and the bits that follow three more fields of 8 bytes.
    flags = _DISABLED_FLAG | _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR | _ENABLE_ON_EXEC
    attributes = (ctypes.c_uint64 * 14)(event[0] | ctypes.sizeof(ctypes.c_uint64) * 14 << 32, event[1], 0, 0, 0, flags)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(number, ctypes.byref(attributes), pid, -1, -1, 8)  # 8: close on exec
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


@dataclass(frozen=True, slots=True)
class Counts(Recorded):
    """The instructions of one call.

    Attributes:
        dispatches: (name, instructions, location in the program) of each; empty if the counter does not know them.
        own: the instructions that interpret the module's own code; None if unknown.
    """

    instructions: int
    calls: int
    dispatches: tuple[tuple[str, int, str], ...]
    own: int | None = None

    @property
    def outside(self) -> int:
        """The instructions that are in no dispatch."""
        return self.instructions - sum(count for _, count, _ in self.dispatches)

    @property
    def profile(self) -> DispatchProfile:
        """The counts as a profile whose times are instructions."""
        dispatch_times = tuple(DispatchTime(name, 1, count, count) for name, count, _ in self.dispatches)
        return DispatchProfile(dispatch_times, 1, self.instructions)


def read_counts(path: Path) -> Counts:
    """Read the counts that `count_call` has written."""
    try:
        return Counts.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise GauntletError(f"the counts {path} cannot be read: {error}", "Count again.") from error
