"""What a toolchain can compile for and run on here (asked of its tools, remembered for one process); what `host` means.

`--iree-llvmcpu-target-cpu=host` and `--iree-llvmcpu-target-cpu-features=host` (either one sets both) make
code for the compiling machine's CPU, so what they produce belongs to machines of that kind.

Without a target flag the compiler targets a **generic** CPU of the machine's architecture, warns that this
will perform poorly, and its output depends on the architecture alone (checked with 3.9.0 and 3.13.0). The
word must be exactly `host`: neither `HOST` nor `host,+avx2` is understood.

A program may name `host` too, in an attribute (`cpu = "host"`); that is not seen here.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.device_kinds import CUDA, find_driver, find_kind, split_device
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.journal_events import Device
from iree_gauntlet.system.short_process import ask
from iree_gauntlet.toolchains.flags import split_flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.toolchains.toolchain import Toolchain


# Listing starts the drivers of every vendor, and a sick one hangs.
_TIMEOUT_SECONDS = 20.0
_DRIVER = re.compile(r"^\s+([\w-]+): ", re.MULTILINE)
# A device in a dump: `# --device=URI`, a line with its name, facts as `key: value` below the rule.
_DUMPED = re.compile(r"^# --device=(\S+)\n#\s*(.*)\n# ===[-=]+\n((?:(?!# ).*\n?)*)", re.MULTILINE)
# Vulkan's word for a device that computes on the processor, and drivers that do.
_SOFTWARE = re.compile(r"^type: cpu$|^name: (?:llvmpipe|SwiftShader)", re.MULTILINE)
# `c/runtime/src/…/file.c:155: UNAVAILABLE; what happened; what was being done`
_STATUS = re.compile(r"^\S+:\d+: [A-Z_]+; (.*)$", re.MULTILINE)

_HOST_FLAGS = frozenset({"iree-llvmcpu-target-cpu", "iree-llvmcpu-target-cpu-features"})
_HOST_SECONDS = 30.0

# Fields of /proc/cpuinfo from which LLVM's host detection, or the same facts, follow: x86, Arm, RISC-V,
# Power. Left out are those that differ between equal machines (frequency, microcode, bogomips).
_KIND = (
    *("vendor_id", "cpu family", "model"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
    *("mvendorid", "marchid", "uarch"),
    "cpu",
)
_FEATURES = ("flags", "Features", "isa", "features")
_NAMES = ("model name", "Model", "uarch", "cpu")
# macOS: names below `machdep.cpu` and `hw` that tell the kind and the features.
_SYSCTL_KIND = ("machdep.cpu.vendor", "machdep.cpu.family", "machdep.cpu.model", "hw.cputype", "hw.cpufamily")
_SYSCTL_FEATURES = ("machdep.cpu.features", "machdep.cpu.extfeatures", "machdep.cpu.leaf7_features")


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a device can be run on; in one line which was found, or why there is none, and how to get it."""

    ok: bool
    reason: str
    hint: str = ""


@functools.cache
def compile_backends(toolchain: Toolchain) -> tuple[str, ...]:
    """Names of the backends that the compiler can generate code for (`llvm-cpu`, `rocm`)."""
    answer = ask([toolchain.compiler.compile, "--iree-hal-list-target-backends"], timeout=_TIMEOUT_SECONDS)
    lines = answer.stdout.splitlines()
    return tuple(line.strip() for line in lines if line.startswith("  ") and line.strip())


@functools.cache
def list_drivers(toolchain: Toolchain) -> tuple[str, ...]:
    """Names of the HAL drivers that the runtime was built with; their devices may still be missing."""
    answer = ask([toolchain.runtime.run_module, "--list_drivers"], timeout=_TIMEOUT_SECONDS)
    found = tuple(_DRIVER.findall(answer.stdout))
    if not found:
        what = f"{toolchain.runtime.run_module} --list_drivers listed none (exit code {answer.exit_code})"
        raise ToolchainError(what, "run it by hand; reinstall the runtime where it does not start")
    return found


@functools.cache
def devices(toolchain: Toolchain, driver: str = "") -> tuple[str, ...]:
    """URIs of the devices of a driver, or of all drivers that work here (`local-task://`, `hip://GPU-…`).

    Raises:
        ToolchainError: where a named driver does not work here (it says why), or does not answer in time.
    """
    question = f"--list_devices={driver}" if driver else "--list_devices"
    answer = ask([toolchain.runtime.run_module, question], timeout=_TIMEOUT_SECONDS)
    if answer.exit_code != 0:
        status = _STATUS.search(answer.stderr)
        reason = status[1].strip().rstrip(":") if status else f"exit code {answer.exit_code}"
        raise ToolchainError(f"{question} failed: {reason}", find_driver(driver).hint)
    return tuple(line.strip() for line in answer.stdout.splitlines() if "://" in line)


@functools.cache
def describe_devices(toolchain: Toolchain, driver: str) -> tuple[Device, ...]:
    """The devices of a driver, with what the runtime says of each."""
    uris = devices(toolchain, driver)
    dump = ask([toolchain.runtime.run_module, f"--dump_devices={driver}"], timeout=_TIMEOUT_SECONDS).stdout
    described = {}
    for uri, title, text in _DUMPED.findall(dump):
        facts = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        name = facts.get("name", "" if title == "default" else title.strip())
        said = " ".join(filter(None, (facts.get("driver"), facts.get("driver_info"))))
        described[uri] = Device(uri, name, said, software=bool(_SOFTWARE.search(text)))
    found = [described.get(uri, Device(uri)) for uri in uris]
    if ask_versions := _VERSIONS.get(find_kind(driver)):
        versions = ask_versions()
        found = [replace(item, driver=versions.get(split_device(item.uri)[1], "")) for item in found]
    return tuple(found)


def _ask_nvidia_drivers() -> dict[str, str]:
    """The driver of each NVIDIA GPU by its UUID, as nvidia-smi has it; none where that does not say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    answer = ask([program, "--query-gpu=uuid,driver_version", "--format=csv,noheader"], timeout=_TIMEOUT_SECONDS)
    pairs = (line.partition(", ") for line in answer.stdout.splitlines())
    return {uuid: f"NVIDIA {version}" for uuid, _, version in pairs if version}


# The versions of drivers that IREE's runtime does not report, by the devices' own names.
_VERSIONS = {CUDA: _ask_nvidia_drivers}


def find_device(toolchain: Toolchain, device: str) -> Device:
    """The device that is meant, as `--device=` names it: a driver (`hip`), an ordinal (`hip://1`), or its own URI.

    Raises:
        ToolchainError: it is not there, or the runtime does not answer.
    """
    uri = _find_uri(toolchain, device)
    return next(item for item in describe_devices(toolchain, split_device(uri)[0]) if item.uri == uri)


@functools.cache
def check_device(toolchain: Toolchain, device: str) -> Availability:
    """Whether a device is there, named as for `find_device`."""
    try:
        return Availability(ok=True, reason=_find_uri(toolchain, device))
    except ToolchainError as problem:
        return Availability(ok=False, reason=problem.what, hint=problem.hint)


def _find_uri(toolchain: Toolchain, device: str) -> str:
    """The device's own URI."""
    driver, path = split_device(device)
    known = list_drivers(toolchain)
    if driver not in known:
        what = f"the runtime {toolchain.runtime.release} has no driver {driver}: it has {', '.join(known)}"
        raise ToolchainError(what, find_driver(driver).hint or "check the spelling of the device")
    found = devices(toolchain, driver)
    if not found:
        raise ToolchainError(f"the driver {driver} works and finds no device", find_driver(driver).hint)
    # The first for no path, an ordinal, or its own name.
    path = path.partition("?")[0]
    if not path:
        return found[0]
    ordinal = path.isdecimal() and find_driver(driver).has_ordinals
    chosen = found[int(path) :][:1] if ordinal else [uri for uri in found if uri == f"{driver}://{path}"]
    if not chosen:
        raise ToolchainError(f"{driver} has only {', '.join(found)}", "name one of these")
    return chosen[0]


@dataclass(frozen=True, slots=True)
class HostCpu:
    """A CPU, as far as code that is made for it cares; its kind as `field=value`, once for each kind of core."""

    name: str
    kind: tuple[str, ...]
    features: frozenset[str]

    @property
    def identity(self) -> str:
        """Text and digest for a cache key and for people: equal where the same code is made for `host`.

        It follows from what the system says of the CPU, so a new kernel that names more features makes a new
        identity: a needless compile, never a wrong one.
        """
        text = "\n".join([platform.machine(), *self.kind, *sorted(self.features)])
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self.name} ({platform.machine()}, {len(self.features)} features, {digest})"


@functools.cache
def read_host_cpu() -> HostCpu:
    """The CPU of this machine; it does not change while a process runs."""
    if sys.platform == "darwin":
        return _parse_sysctl(ask(["/usr/sbin/sysctl", "machdep.cpu", "hw"], timeout=_HOST_SECONDS).stdout)
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> HostCpu:
    """The CPU that Linux's `/proc/cpuinfo` describes; a machine with several kinds of cores gives them all.

    Where the text says nothing of use, it is what Python knows of the machine.
    """
    fields: dict[str, set[str]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), set()).add(value.strip())
    kind = tuple(f"{key}={value}" for key in _KIND for value in sorted(fields.get(key, ())))
    # Code must run on every core: what only some of them have is no feature of the machine.
    per_core = [set(re.split(r"[\s_]+", value)) for key in _FEATURES for value in sorted(fields.get(key, ()))]
    features = frozenset(set.intersection(*per_core) if per_core else ())
    if not kind:
        return _make_unknown_cpu()
    names = next((sorted(fields[key]) for key in _NAMES if fields.get(key)), ["CPU"])
    return HostCpu(" + ".join(names), kind, features)


def _parse_sysctl(text: str) -> HostCpu:
    """The CPU that macOS's `sysctl` describes, a line `name: value` for each fact."""
    facts = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    features = {word for name in _SYSCTL_FEATURES for word in facts.get(name, "").split()}
    features |= {name for name, value in facts.items() if name.startswith("hw.optional.") and value == "1"}
    kind = tuple(f"{name}={facts[name]}" for name in _SYSCTL_KIND if name in facts)
    if not kind:
        return _make_unknown_cpu()
    return HostCpu(facts.get("machdep.cpu.brand_string", "CPU"), kind, frozenset(features))


def _make_unknown_cpu() -> HostCpu:
    name = platform.processor() or platform.machine() or "unknown CPU"
    # Nothing tells two such machines apart but their names: better a cache of their own for each.
    return HostCpu(name, (f"processor={name}", f"node={platform.node()}"), frozenset())


def means_host(flags: Sequence[str]) -> bool:
    """Whether compile flags make code for the CPU of the compiling machine."""
    return any(
        flag.name in _HOST_FLAGS and flag.value is not None and "host" in flag.value.split(",")
        for flag in split_flags(flags, _HOST_FLAGS)
    )


def ask_host_cpu(toolchain: Toolchain) -> str:
    """LLVM's name of the CPU that the compiler takes `host` for (`znver4`); compiles an empty program."""
    flags = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host", "--compile-to=executable-targets")
    answer = ask([toolchain.compiler.compile, "-", *flags], timeout=_HOST_SECONDS, stdin="module {}")
    cpu = re.search(r'\bcpu = "([^"]+)"', answer.stdout)
    if cpu is None:
        hint = "name the CPU in the flags: --iree-llvmcpu-target-cpu=<cpu>"
        raise ToolchainError(f"the compiler does not say what CPU `host` is (exit code {answer.exit_code})", hint)
    return cpu[1]
