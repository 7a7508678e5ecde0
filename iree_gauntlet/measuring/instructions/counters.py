"""What counts instructions on this machine, the CPU's own counters or valgrind; and what it has counted."""

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
from iree_gauntlet.system.short_process import ask

# What modules are compiled for where a counter does not know every CPU: valgrind has no AVX-512, and computes a fused
# multiply-add in software, up to twenty times as slowly as without.
_COUNT_CPUS = {"x86_64": "x86-64-v3,-fma", "aarch64": "generic"}
# perf_event_open(2).
_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_INSTRUCTIONS = 1
# Counts stand still until exec, go on in the process' own children, and leave out kernel and hypervisor.
_INHERIT, _EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR, _ENABLE_ON_EXEC, _DISABLED = 1 << 1, 1 << 5, 1 << 6, 1 << 12, 1
_VALGRIND_HINT = "Install valgrind (Debian and Ubuntu: apt install valgrind; Fedora: dnf install valgrind)"


class CounterKind(StrEnum):
    """What counts; counts of two kinds are never compared."""

    HARDWARE = "hardware"
    VALGRIND = "valgrind"


@dataclass(frozen=True, slots=True)
class Counter:
    """What counts; modules are compiled for its `cpu`, `x86-64-v3,-fma`, or where that is empty as their specs say."""

    kind: CounterKind
    identity: str
    cpu: str
    path: str = ""

    @property
    def argument(self) -> str:
        """As the program that counts takes it."""
        return f"{self.kind}:{self.path}" if self.path else str(self.kind)


def find_counter(kind: str = "auto", cpu: str = "") -> Counter:
    """The counter of this machine: the one that is wanted, or for `auto` hardware where it can be read, else valgrind.

    `cpu` is what modules are compiled for; empty for what the counter knows.
    """
    why_not = ""
    if kind != CounterKind.VALGRIND:
        why_not = why_no_hardware()
        if not why_not:
            return Counter(CounterKind.HARDWARE, f"hardware counters ({platform.machine()})", cpu)
        if kind == CounterKind.HARDWARE:
            there = "valgrind is here: leave --counter out" if shutil.which("valgrind") else _VALGRIND_HINT
            raise ToolchainError(f"the CPU's instruction counter cannot be read: {why_not}", f"{there}.")
    path = shutil.which("valgrind")
    if path is None:
        own = f"the CPU's own counter is {why_not}; " if why_not else ""
        what = f"nothing here counts instructions: {own}valgrind is not installed"
        raise ToolchainError(what, f"{_VALGRIND_HINT}.")
    answer = ask([path, "--version"], timeout=60)
    if answer.exit_code != 0 or not answer.stdout.startswith("valgrind-"):
        said = (answer.text.strip().splitlines() or ["it said nothing"])[0]
        raise ToolchainError(f"{path} does not work: {said}", f"{_VALGRIND_HINT} again.")
    version = answer.stdout.split()[0].removeprefix("valgrind-")
    return Counter(
        CounterKind.VALGRIND, f"valgrind {version}", cpu or _COUNT_CPUS.get(platform.machine(), "generic"), path
    )


def is_usual_count(counter: str, cpu: str) -> bool:
    """Whether a count is of the kind that goldens are of: valgrind's, of modules for the CPU that it has by default."""
    return counter.startswith(CounterKind.VALGRIND) and cpu in _COUNT_CPUS.values()


def why_no_hardware() -> str:
    """Why the CPU's counter of instructions cannot be read here; empty where it can."""
    try:
        os.close(open_hardware_counter(0))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            level = _PARANOID.read_text(encoding="ascii").strip() if _PARANOID.is_file() else "unknown"
            return f"not allowed: kernel.perf_event_paranoid is {level} (sysctl kernel.perf_event_paranoid=2 will do)"
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.ENOSYS):
            return "not supported by this machine (most virtual machines hide it)"
        return os.strerror(error.errno or 0)
    return ""


def open_hardware_counter(pid: int, event: tuple[int, int] = (0, _INSTRUCTIONS)) -> int:
    """A file descriptor that gives a count of a process (0: this one) and its children, from its next exec on: 8 bytes.

    `event` is its type and number (perf_event_open(2)): PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS. An OSError
    says that the machine has no such counter, or does not let one read it.
    """
    number = _SYSCALLS.get(platform.machine())
    if number is None or os.uname().sysname != "Linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    # perf_event_attr: type, size, config, and the bits that follow three more fields of 8 bytes.
    flags = _DISABLED | _INHERIT | _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR | _ENABLE_ON_EXEC
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
        dispatches: (name, instructions, place in the program) of each; none where the counter does not know them.
        own: those that interpret the module's own code; None where that is not known.
    """

    instructions: int
    calls: int
    dispatches: tuple[tuple[str, int, str], ...]
    own: int | None = None

    @property
    def outside(self) -> int:
        """Those that are in no dispatch."""
        return self.instructions - sum(count for _, count, _ in self.dispatches)

    @property
    def profile(self) -> DispatchProfile:
        """As a profile whose times are instructions."""
        found = tuple(DispatchTime(name, 1, count, count) for name, count, _ in self.dispatches)
        return DispatchProfile(found, 1, self.instructions)


def read_counts(path: Path) -> Counts:
    """What `count_call` has written."""
    try:
        return Counts.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise GauntletError(f"the counts {path} cannot be read: {error}", "Count again.") from error
