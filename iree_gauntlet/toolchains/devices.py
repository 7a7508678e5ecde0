"""A toolchain's backends and devices (listed by its tools, cached for one process), and the meaning of `host`.

`--iree-llvmcpu-target-cpu=host` and `--iree-llvmcpu-target-cpu-features=host` (each sets both) generate code for the
CPU of the compiling machine, so the output is only for machines of that kind.

Without a target flag, the compiler targets a **generic** CPU of the machine's architecture, and warns that this will
perform poorly. The output then depends only on the architecture (checked with 3.9.0 and 3.13.0). The value must be
exactly `host`: neither `HOST` nor `host,+avx2` is accepted.

A program may also name `host` in an attribute (`cpu = "host"`), which is not detected here.
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
from iree_gauntlet.toolchains.flag_words import split_flags
from iree_gauntlet.toolchains.flags import CPU_FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.toolchains.toolchain import Toolchain


# Listing devices starts the drivers of every vendor, and a faulty driver may hang.
_TIMEOUT_SECONDS = 20.0
_DRIVER_LINE = re.compile(r"^\s+([\w-]+): ", re.MULTILINE)
# A device in a dump: `# --device=URI`, a line with its name, a rule, and `key: value` lines.
_DEVICE_DUMP = re.compile(r"^# --device=(\S+)\n#\s*(.*)\n# ===[-=]+\n((?:(?!# ).*\n?)*)", re.MULTILINE)
# Devices that compute on the CPU: Vulkan reports their type, and these two drivers are recognised by name.
_SOFTWARE_DEVICE = re.compile(r"^type: cpu$|^name: (?:llvmpipe|SwiftShader)", re.MULTILINE)
# `c/runtime/src/…/file.c:155: UNAVAILABLE; what happened; what was being done`
_STATUS_MESSAGE = re.compile(r"^\S+:\d+: [A-Z_]+; (.*)$", re.MULTILINE)

_HOST_SECONDS = 30.0

# These fields of /proc/cpuinfo (x86, Arm, RISC-V, Power) determine LLVM's detection of the host. Fields that differ
# between equal machines (frequency, microcode, bogomips) are left out.
_CPU_KIND_FIELDS = (
    *("vendor_id", "cpu family", "model"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part"),
    *("mvendorid", "marchid", "uarch"),
    "cpu",
)
_CPU_FEATURE_FIELDS = ("flags", "Features", "isa", "features")
_CPU_NAME_FIELDS = ("model name", "Model", "uarch", "cpu")
# On macOS, these sysctl names give the kind of CPU and its features.
_SYSCTL_KIND_NAMES = ("machdep.cpu.vendor", "machdep.cpu.family", "machdep.cpu.model", "hw.cputype", "hw.cpufamily")
_SYSCTL_FEATURE_NAMES = ("machdep.cpu.features", "machdep.cpu.extfeatures", "machdep.cpu.leaf7_features")


@dataclass(frozen=True, slots=True)
class Availability:
    """The availability of a device; `reason` is its URI, or why it is missing; `hint` tells how to get it."""

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
    """List the names of the HAL drivers that the runtime was built with; a driver need not have a device."""
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
        ToolchainError: the given driver does not work here (the error has its reason), or does not answer in time.
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
    """Return the driver version of each NVIDIA GPU by UUID, from nvidia-smi; empty if nvidia-smi reports none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    result = run_tool([program, "--query-gpu=uuid,driver_version", "--format=csv,noheader"], timeout=_TIMEOUT_SECONDS)
    pairs = (line.partition(", ") for line in result.stdout.splitlines())
    return {uuid: f"NVIDIA {version}" for uuid, _, version in pairs if version}


# Functions that read driver versions that IREE's runtime does not report.
_DRIVER_VERSION_READERS = {CUDA: _ask_nvidia_drivers}


def find_device(toolchain: Toolchain, device: str) -> Device:
    """Find a device as `--device=` names it: a driver (`hip`), an ordinal (`hip://1`), or its own URI.

    Raises:
        ToolchainError: the device does not exist, or the runtime does not answer.
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
    # An empty path means the first device; any other path is an ordinal or the device's own name.
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
    """The properties of a CPU that affect generated code; `kind` has `field=value` for each kind of core."""

    name: str
    kind: tuple[str, ...]
    features: frozenset[str]

    @property
    def identity(self) -> str:
        """The CPU's text and digest for cache keys and people; if equal, the same code is generated for `host`.

        The identity is made from the operating system's description. A new kernel that reports more features changes
        it, which costs an unnecessary compile, but never gives a wrong result.
        """
        text = "\n".join([platform.machine(), *self.kind, *sorted(self.features)])
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self.name} ({platform.machine()}, {len(self.features)} features, {digest})"


@functools.cache
def read_host_cpu() -> HostCpu:
    """Return the CPU of this machine, which is read once per process."""
    if sys.platform == "darwin":
        return _parse_sysctl(run_tool(["/usr/sbin/sysctl", "machdep.cpu", "hw"], timeout=_HOST_SECONDS).stdout)
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> HostCpu:
    """Parse Linux's `/proc/cpuinfo`; the result has all kinds of cores of a machine.

    If the text has no usable field, Python's description of the machine is used.
    """
    fields: dict[str, set[str]] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), set()).add(value.strip())
    kind = tuple(f"{key}={value}" for key in _CPU_KIND_FIELDS for value in sorted(fields.get(key, ())))
    # Code must run on every core, so only features of all cores count.
    per_core = [set(re.split(r"[\s_]+", value)) for key in _CPU_FEATURE_FIELDS for value in sorted(fields.get(key, ()))]
    features = frozenset(set.intersection(*per_core) if per_core else ())
    if not kind:
        return _make_unknown_cpu()
    names = next((sorted(fields[key]) for key in _CPU_NAME_FIELDS if fields.get(key)), ["CPU"])
    return HostCpu(" + ".join(names), kind, features)


def _parse_sysctl(text: str) -> HostCpu:
    """Parse the output of macOS's `sysctl`: lines of `name: value`."""
    info = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    features = {word for name in _SYSCTL_FEATURE_NAMES for word in info.get(name, "").split()}
    features |= {name for name, value in info.items() if name.startswith("hw.optional.") and value == "1"}
    kind = tuple(f"{name}={info[name]}" for name in _SYSCTL_KIND_NAMES if name in info)
    if not kind:
        return _make_unknown_cpu()
    return HostCpu(info.get("machdep.cpu.brand_string", "CPU"), kind, frozenset(features))


def _make_unknown_cpu() -> HostCpu:
    name = platform.processor() or platform.machine() or "unknown CPU"
    # Nothing is known about the CPU, so machines are distinguished by name: separate caches are the safe choice.
    return HostCpu(name, (f"processor={name}", f"node={platform.node()}"), frozenset())


def targets_host_cpu(flags: Sequence[str]) -> bool:
    """Return whether compile flags generate code for the CPU of the compiling machine."""
    return any(
        flag.name in CPU_FLAGS and flag.value is not None and "host" in flag.value.split(",")
        for flag in split_flags(flags, CPU_FLAGS)
    )


def ask_host_cpu(toolchain: Toolchain) -> str:
    """Compile an empty program to find LLVM's name of the CPU that `host` stands for (`znver4`)."""
    flags = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host", "--compile-to=executable-targets")
    result = run_tool([toolchain.compiler.compile, "-", *flags], timeout=_HOST_SECONDS, stdin="module {}")
    cpu = re.search(r'\bcpu = "([^"]+)"', result.stdout)
    if cpu is None:
        hint = "name the CPU in the flags: --iree-llvmcpu-target-cpu=<cpu>"
        raise ToolchainError(f"the compiler does not report which CPU `host` is (exit code {result.exit_code})", hint)
    return cpu[1]
