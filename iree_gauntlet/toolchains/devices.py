"""A toolchain's backends and devices (listed by its tools, cached for one process), and the meaning of `host`.

`--iree-llvmcpu-target-cpu=host` and `--iree-llvmcpu-target-cpu-features=host` (either one sets both) make
code for the compiling machine's CPU, so their output belongs to machines of that kind.

Without a target flag the compiler targets a **generic** CPU of the machine's architecture, warns that this
will perform poorly, and its output depends on the architecture alone (checked with 3.9.0 and 3.13.0). The
word must be exactly `host`: neither `HOST` nor `host,+avx2` is accepted.

A program may name `host` too, in an attribute (`cpu = "host"`); that is not detected here.
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
from iree_gauntlet.system.short_process import run_tool
from iree_gauntlet.toolchains.flags import split_flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.toolchains.toolchain import Toolchain


# Listing starts the drivers of every vendor, and a faulty one hangs.
_TIMEOUT_SECONDS = 20.0
_DRIVER_LINE = re.compile(r"^\s+([\w-]+): ", re.MULTILINE)
# A device in a dump: `# --device=URI`, a line with its name, and `key: value` lines below the rule.
_DEVICE_DUMP = re.compile(r"^# --device=(\S+)\n#\s*(.*)\n# ===[-=]+\n((?:(?!# ).*\n?)*)", re.MULTILINE)
# Vulkan reports a device that computes on the processor by its type; these drivers do so too.
_SOFTWARE_DEVICE = re.compile(r"^type: cpu$|^name: (?:llvmpipe|SwiftShader)", re.MULTILINE)
# `c/runtime/src/…/file.c:155: UNAVAILABLE; what happened; what was being done`
_STATUS_MESSAGE = re.compile(r"^\S+:\d+: [A-Z_]+; (.*)$", re.MULTILINE)

_HOST_FLAGS = frozenset({"iree-llvmcpu-target-cpu", "iree-llvmcpu-target-cpu-features"})
_HOST_SECONDS = 30.0

# LLVM's host detection follows from these fields of /proc/cpuinfo: x86, Arm, RISC-V, Power. Fields that differ between
# equal machines (frequency, microcode, bogomips) are left out.
_CPU_KIND_FIELDS = (
    *("vendor_id", "cpu family", "model"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
    *("mvendorid", "marchid", "uarch"),
    "cpu",
)
_CPU_FEATURE_FIELDS = ("flags", "Features", "isa", "features")
_CPU_NAME_FIELDS = ("model name", "Model", "uarch", "cpu")
# On macOS, these names below `machdep.cpu` and `hw` give the kind and the features.
_SYSCTL_KIND_NAMES = ("machdep.cpu.vendor", "machdep.cpu.family", "machdep.cpu.model", "hw.cputype", "hw.cpufamily")
_SYSCTL_FEATURE_NAMES = ("machdep.cpu.features", "machdep.cpu.extfeatures", "machdep.cpu.leaf7_features")


@dataclass(frozen=True, slots=True)
class Availability:
    """The availability of a device; `reason` is its URI, or why there is none, and `hint` how to get it."""

    ok: bool
    reason: str
    hint: str = ""


@functools.cache
def list_compile_backends(toolchain: Toolchain) -> tuple[str, ...]:
    """List the names of the backends that the compiler can generate code for (`llvm-cpu`, `rocm`)."""
    result = run_tool([toolchain.compiler.compile, "--iree-hal-list-target-backends"], timeout=_TIMEOUT_SECONDS)
    lines = result.stdout.splitlines()
    return tuple(line.strip() for line in lines if line.startswith("  ") and line.strip())


@functools.cache
def list_drivers(toolchain: Toolchain) -> tuple[str, ...]:
    """List the names of the HAL drivers that the runtime was built with; their devices may still be missing."""
    result = run_tool([toolchain.runtime.run_module, "--list_drivers"], timeout=_TIMEOUT_SECONDS)
    drivers = tuple(_DRIVER_LINE.findall(result.stdout))
    if not drivers:
        message = f"{toolchain.runtime.run_module} --list_drivers listed no driver (exit code {result.exit_code})"
        raise ToolchainError(message, "run it by hand; reinstall the runtime if it does not start")
    return drivers


@functools.cache
def list_device_uris(toolchain: Toolchain, driver: str = "") -> tuple[str, ...]:
    """List the URIs of the devices of a driver, or of all working drivers (`local-task://`, `hip://GPU-…`).

    Raises:
        ToolchainError: a given driver does not work here (with its reason), or does not answer in time.
    """
    list_flag = f"--list_devices={driver}" if driver else "--list_devices"
    result = run_tool([toolchain.runtime.run_module, list_flag], timeout=_TIMEOUT_SECONDS)
    if result.exit_code != 0:
        status = _STATUS_MESSAGE.search(result.stderr)
        reason = status[1].strip().rstrip(":") if status else f"exit code {result.exit_code}"
        raise ToolchainError(f"{list_flag} failed: {reason}", find_driver(driver).hint)
    return tuple(line.strip() for line in result.stdout.splitlines() if "://" in line)


@functools.cache
def describe_devices(toolchain: Toolchain, driver: str) -> tuple[Device, ...]:
    """List the devices of a driver, with the runtime's description of each."""
    uris = list_device_uris(toolchain, driver)
    dump = run_tool([toolchain.runtime.run_module, f"--dump_devices={driver}"], timeout=_TIMEOUT_SECONDS).stdout
    by_uri = {}
    for uri, title, text in _DEVICE_DUMP.findall(dump):
        info = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        name = info.get("name", "" if title == "default" else title.strip())
        driver_version = " ".join(filter(None, (info.get("driver"), info.get("driver_info"))))
        by_uri[uri] = Device(uri, name, driver_version, software=bool(_SOFTWARE_DEVICE.search(text)))
    result = [by_uri.get(uri, Device(uri)) for uri in uris]
    if read_versions := _DRIVER_VERSION_READERS.get(find_kind(driver)):
        versions = read_versions()
        result = [replace(device, driver=versions.get(split_device(device.uri)[1], "")) for device in result]
    return tuple(result)


def _ask_nvidia_drivers() -> dict[str, str]:
    """Return the driver of each NVIDIA GPU by its UUID, from nvidia-smi; empty where that reports none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    result = run_tool([program, "--query-gpu=uuid,driver_version", "--format=csv,noheader"], timeout=_TIMEOUT_SECONDS)
    pairs = (line.partition(", ") for line in result.stdout.splitlines())
    return {uuid: f"NVIDIA {version}" for uuid, _, version in pairs if version}


# These read the versions of drivers that IREE's runtime does not report, by device name.
_DRIVER_VERSION_READERS = {CUDA: _ask_nvidia_drivers}


def find_device(toolchain: Toolchain, device: str) -> Device:
    """Find a device as `--device=` names it: a driver (`hip`), an ordinal (`hip://1`), or its own URI.

    Raises:
        ToolchainError: it does not exist, or the runtime does not answer.
    """
    uri = _find_uri(toolchain, device)
    return next(candidate for candidate in describe_devices(toolchain, split_device(uri)[0]) if candidate.uri == uri)


@functools.cache
def check_device(toolchain: Toolchain, device: str) -> Availability:
    """Check whether a device exists, named as for `find_device`."""
    try:
        return Availability(ok=True, reason=_find_uri(toolchain, device))
    except ToolchainError as error:
        return Availability(ok=False, reason=error.message, hint=error.hint)


def _find_uri(toolchain: Toolchain, device: str) -> str:
    """Return the device's own URI."""
    driver, path = split_device(device)
    drivers = list_drivers(toolchain)
    if driver not in drivers:
        message = f"the runtime {toolchain.runtime.release} has no driver {driver}: it has {', '.join(drivers)}"
        raise ToolchainError(message, find_driver(driver).hint or "check the spelling of the device")
    uris = list_device_uris(toolchain, driver)
    if not uris:
        raise ToolchainError(f"the driver {driver} works but finds no device", find_driver(driver).hint)
    # An empty path means the first device; others are an ordinal, or the device's own name.
    path = path.partition("?")[0]
    if not path:
        return uris[0]
    is_ordinal = path.isdecimal() and find_driver(driver).has_ordinals
    matches = uris[int(path) :][:1] if is_ordinal else [uri for uri in uris if uri == f"{driver}://{path}"]
    if not matches:
        raise ToolchainError(f"{driver} has only {', '.join(uris)}", "name one of these")
    return matches[0]


@dataclass(frozen=True, slots=True)
class HostCpu:
    """A CPU, as far as it affects generated code; `kind` as `field=value`, once for each kind of core."""

    name: str
    kind: tuple[str, ...]
    features: frozenset[str]

    @property
    def identity(self) -> str:
        """The text and digest for cache keys and people: equal where the same code is generated for `host`.

        It follows from the operating system's description, so a new kernel that reports more features gives a new
        identity: an unnecessary compile, never a wrong one.
        """
        text = "\n".join([platform.machine(), *self.kind, *sorted(self.features)])
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self.name} ({platform.machine()}, {len(self.features)} features, {digest})"


@functools.cache
def read_host_cpu() -> HostCpu:
    """Return the CPU of this machine; it does not change while a process runs."""
    if sys.platform == "darwin":
        return _parse_sysctl(run_tool(["/usr/sbin/sysctl", "machdep.cpu", "hw"], timeout=_HOST_SECONDS).stdout)
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> HostCpu:
    """Parse Linux's `/proc/cpuinfo`; a machine with several kinds of cores gives them all.

    Where the text has no usable field, Python's description of the machine is used.
    """
    fields: dict[str, set[str]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), set()).add(value.strip())
    kind = tuple(f"{key}={value}" for key in _CPU_KIND_FIELDS for value in sorted(fields.get(key, ())))
    # Code must run on every core: a feature of only some of them is no feature of the machine.
    per_core = [set(re.split(r"[\s_]+", value)) for key in _CPU_FEATURE_FIELDS for value in sorted(fields.get(key, ()))]
    features = frozenset(set.intersection(*per_core) if per_core else ())
    if not kind:
        return _make_unknown_cpu()
    names = next((sorted(fields[key]) for key in _CPU_NAME_FIELDS if fields.get(key)), ["CPU"])
    return HostCpu(" + ".join(names), kind, features)


def _parse_sysctl(text: str) -> HostCpu:
    """Parse the output of macOS's `sysctl`, a line `name: value` for each fact."""
    info = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    features = {word for name in _SYSCTL_FEATURE_NAMES for word in info.get(name, "").split()}
    features |= {name for name, value in info.items() if name.startswith("hw.optional.") and value == "1"}
    kind = tuple(f"{name}={info[name]}" for name in _SYSCTL_KIND_NAMES if name in info)
    if not kind:
        return _make_unknown_cpu()
    return HostCpu(info.get("machdep.cpu.brand_string", "CPU"), kind, frozenset(features))


def _make_unknown_cpu() -> HostCpu:
    name = platform.processor() or platform.machine() or "unknown CPU"
    # Only their names distinguish two such machines: separate caches are the safe choice.
    return HostCpu(name, (f"processor={name}", f"node={platform.node()}"), frozenset())


def targets_host_cpu(flags: Sequence[str]) -> bool:
    """Return whether compile flags generate code for the CPU of the compiling machine."""
    return any(
        flag.name in _HOST_FLAGS and flag.value is not None and "host" in flag.value.split(",")
        for flag in split_flags(flags, _HOST_FLAGS)
    )


def ask_host_cpu(toolchain: Toolchain) -> str:
    """Return LLVM's name of the CPU that the compiler takes `host` for (`znver4`); compiles an empty program."""
    flags = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host", "--compile-to=executable-targets")
    result = run_tool([toolchain.compiler.compile, "-", *flags], timeout=_HOST_SECONDS, stdin="module {}")
    cpu = re.search(r'\bcpu = "([^"]+)"', result.stdout)
    if cpu is None:
        hint = "name the CPU in the flags: --iree-llvmcpu-target-cpu=<cpu>"
        raise ToolchainError(f"the compiler does not report which CPU `host` is (exit code {result.exit_code})", hint)
    return cpu[1]
