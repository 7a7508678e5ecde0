"""What a toolchain can compile for and run on here: asked of its tools, remembered for one process."""

from __future__ import annotations

import functools
import re
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.journal_events import Device
from iree_gauntlet.system.short_process import ask

if TYPE_CHECKING:
    from iree_gauntlet.toolchains.toolchain import Toolchain


# Listing starts the drivers of every vendor, and a sick one hangs.
_TIMEOUT_SECONDS = 20.0
_DRIVER = re.compile(r"^\s+([\w-]+): ", re.MULTILINE)
# A device in a dump: `# --device=URI`, a line with its name, facts as `key: value` below the rule.
_DUMPED = re.compile(
    r"^# --device=(?P<uri>\S+)\n#\s*(?P<name>.*)\n# ===[-=]+\n(?P<facts>(?:(?!# ).*\n?)*)", re.MULTILINE
)
# Vulkan's word for a device that computes on the processor, and drivers that do.
_SOFTWARE = re.compile(r"^type: cpu$|^name: (?:llvmpipe|SwiftShader)", re.MULTILINE)
# `c/runtime/src/…/file.c:155: UNAVAILABLE; what happened; what was being done`
_STATUS = re.compile(r"^\S+:\d+: [A-Z_]+; (?P<message>.*)$", re.MULTILINE)

# Drivers that open a device by its own name alone.
# Those of IREE's own; plugins may bring others.
DRIVERS = ("amdgpu", "cuda", "hip", "local-sync", "local-task", "metal", "null", "vulkan", "webgpu")
_WITHOUT_ORDINALS = ("vulkan",)
_HINTS = {
    "hip": "install AMD's ROCm runtime (it brings libamdhip64.so) on a machine with a supported AMD GPU; "
    "/dev/kfd and /dev/dri must be accessible (groups render and video)",
    "cuda": "install NVIDIA's driver (it brings libcuda.so) on a machine with an NVIDIA GPU, until nvidia-smi lists it",
    "vulkan": "install the Vulkan loader and a driver, until `vulkaninfo --summary` lists a device; Mesa's are "
    "apt install mesa-vulkan-drivers (Debian, Ubuntu), dnf install mesa-vulkan-drivers vulkan-loader (Fedora), "
    "pacman -S vulkan-icd-loader vulkan-swrast (Arch), with lavapipe, which needs no GPU",
    "metal": "only the runtime for macOS has it: run there",
}


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a device can be run on.

    Attributes:
        reason: one line: the device that was found, or why there is none.
        hint: how to get it; empty where it is there.
    """

    ok: bool
    reason: str
    hint: str = ""


@functools.cache
def compile_backends(toolchain: Toolchain) -> tuple[str, ...]:
    """Names of the backends that the compiler can generate code for (`llvm-cpu`, `rocm`).

    Raises:
        ToolchainError: where the compiler does not answer.
    """
    answer = ask([toolchain.compiler.compile, "--iree-hal-list-target-backends"], timeout=_TIMEOUT_SECONDS)
    lines = answer.stdout.splitlines()
    return tuple(line.strip() for line in lines if line.startswith("  ") and line.strip())


@functools.cache
def list_drivers(toolchain: Toolchain) -> tuple[str, ...]:
    """Names of the HAL drivers that the runtime was built with; their devices may still be missing.

    Raises:
        ToolchainError: where the runtime does not answer.
    """
    answer = ask([toolchain.runtime.run_module, "--list_drivers"], timeout=_TIMEOUT_SECONDS)
    found = tuple(_DRIVER.findall(answer.stdout))
    if not found:
        raise ToolchainError(
            f"{toolchain.runtime.run_module} --list_drivers listed none (exit code {answer.exit_code})",
            "run it by hand; reinstall the runtime where it does not start",
        )
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
        reason = status["message"].strip().rstrip(":") if status else f"exit code {answer.exit_code}"
        raise ToolchainError(f"{question} failed: {reason}", _HINTS.get(driver, ""))
    return tuple(line.strip() for line in answer.stdout.splitlines() if "://" in line)


@functools.cache
def describe_devices(toolchain: Toolchain, driver: str) -> tuple[Device, ...]:
    """The devices of a driver, with what the runtime says of each.

    Raises:
        ToolchainError: as for `devices`.
    """
    uris = devices(toolchain, driver)
    dump = ask([toolchain.runtime.run_module, f"--dump_devices={driver}"], timeout=_TIMEOUT_SECONDS).stdout
    described = {match["uri"]: _describe(match) for match in _DUMPED.finditer(dump)}
    found = [described.get(uri, Device(uri)) for uri in uris]
    if driver == "cuda":
        # IREE's runtime does not say it.
        versions = _ask_nvidia_drivers()
        found = [replace(item, driver=versions.get(item.uri.partition("://")[2], "")) for item in found]
    return tuple(found)


def _ask_nvidia_drivers() -> dict[str, str]:
    """The driver of each NVIDIA GPU by its UUID, as nvidia-smi has it; none where that does not say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    answer = ask([program, "--query-gpu=uuid,driver_version", "--format=csv,noheader"], timeout=_TIMEOUT_SECONDS)
    pairs = (line.partition(", ") for line in answer.stdout.splitlines())
    return {uuid: f"NVIDIA {version}" for uuid, _, version in pairs if version}


def _describe(match: re.Match[str]) -> Device:
    facts = dict(line.split(": ", 1) for line in match["facts"].splitlines() if ": " in line)
    name = facts.get("name", "" if match["name"] == "default" else match["name"].strip())
    driver = " ".join(filter(None, (facts.get("driver", ""), facts.get("driver_info", ""))))
    return Device(match["uri"], name, driver, software=bool(_SOFTWARE.search(match["facts"])))


def find_device(toolchain: Toolchain, device: str) -> Device:
    """The device that is meant, as `--device=` names it: a driver (`hip`), an ordinal (`hip://1`), or its own URI.

    Raises:
        ToolchainError: it is not there, or the runtime does not answer.
    """
    uri = _find_uri(toolchain, device)
    return next(item for item in describe_devices(toolchain, uri.partition("://")[0]) if item.uri == uri)


@functools.cache
def check_device(toolchain: Toolchain, device: str) -> Availability:
    """Whether a device, as `--device=` names it, is there.

    Args:
        toolchain: whose runtime.
        device: a driver (`hip`), an ordinal (`hip://1`), or a device's own URI.
    """
    try:
        return Availability(ok=True, reason=_find_uri(toolchain, device))
    except ToolchainError as problem:
        return Availability(ok=False, reason=problem.what, hint=problem.hint)


def _find_uri(toolchain: Toolchain, device: str) -> str:
    """The device's own URI."""
    driver, _, path = device.partition("://")
    known = list_drivers(toolchain)
    if driver not in known:
        what = f"the runtime {toolchain.runtime.release} has no driver {driver}: it has {', '.join(known)}"
        raise ToolchainError(what, _HINTS.get(driver, "check the spelling of the device"))
    found = devices(toolchain, driver)
    if not found:
        raise ToolchainError(f"the driver {driver} works and finds no device", _HINTS.get(driver, ""))
    chosen = _choose(found, driver, path.partition("?")[0])
    if not chosen:
        raise ToolchainError(f"{driver} has only {', '.join(found)}", "name one of these")
    return chosen


def _choose(found: tuple[str, ...], driver: str, path: str) -> str:
    """The device that a path means: the first for none, an ordinal, or its own name; empty for no device."""
    if not path:
        return found[0]
    if path.isdecimal() and driver not in _WITHOUT_ORDINALS:
        return found[int(path)] if int(path) < len(found) else ""
    uri = f"{driver}://{path}"
    return uri if uri in found else ""
