"""What a toolchain can compile for and run on here: asked of its tools, remembered for one process."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.short_process import ask

if TYPE_CHECKING:
    from iree_gauntlet.toolchains.toolchain import Toolchain


# Listing starts the drivers of every vendor, and a sick one hangs.
_TIMEOUT_SECONDS = 20.0
_DRIVER = re.compile(r"^\s+([\w-]+): ", re.MULTILINE)
# `c/runtime/src/…/file.c:155: UNAVAILABLE; what happened; what was being done`
_STATUS = re.compile(r"^\S+:\d+: [A-Z_]+; (?P<message>.*)$", re.MULTILINE)

_HINTS = {
    "hip": "install AMD's ROCm runtime (it brings libamdhip64.so) on a machine with a supported AMD GPU; "
    "/dev/kfd and /dev/dri must be accessible (groups render and video)",
    "cuda": "install NVIDIA's driver (it brings libcuda.so) on a machine with an NVIDIA GPU, until nvidia-smi lists it",
    "vulkan": "install the Vulkan loader (libvulkan.so.1) and the GPU's Vulkan driver, until vulkaninfo lists it",
    "metal": "only the runtime for macOS has it: run there",
}


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a device can be run on.

    Attributes:
        ok: whether it can.
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
def drivers(toolchain: Toolchain) -> tuple[str, ...]:
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
def device_available(toolchain: Toolchain, device: str) -> Availability:
    """Whether a device, as `--device=` names it, is there.

    Args:
        toolchain: whose runtime.
        device: a driver (`hip`), an ordinal (`hip://1`), or a device's own URI.
    """
    try:
        return Availability(ok=True, reason=_found_device(toolchain, device))
    except ToolchainError as problem:
        return Availability(ok=False, reason=problem.what, hint=problem.hint)


def _found_device(toolchain: Toolchain, device: str) -> str:
    """The device's own URI.

    Raises:
        ToolchainError: it is not there, or the runtime does not answer.
    """
    driver, _, path = device.partition("://")
    known = drivers(toolchain)
    if driver not in known:
        what = f"the runtime {toolchain.runtime.release} has no driver {driver}: it has {', '.join(known)}"
        raise ToolchainError(what, _HINTS.get(driver, "check the spelling of the device"))
    found = devices(toolchain, driver)
    if not found:
        raise ToolchainError(f"the driver {driver} works and finds no device", _HINTS.get(driver, ""))
    chosen = _choose(found, driver, path.partition("?")[0])
    if not chosen:
        raise ToolchainError(f"there is no {device}: {driver} has {', '.join(found)}", "name one of these")
    return chosen


def _choose(found: tuple[str, ...], driver: str, path: str) -> str:
    """The device that a path means: the first for none, an ordinal, or its own name; empty for no device."""
    if not path:
        return found[0]
    if path.isdecimal():
        return found[int(path)] if int(path) < len(found) else ""
    uri = f"{driver}://{path}"
    return uri if uri in found else ""
