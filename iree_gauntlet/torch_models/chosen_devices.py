"""Where a benchmark runs: what `--device`, `--target` and `--chips` come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.targets import Target, target_of
from iree_gauntlet.toolchains.devices import device_available, devices

if TYPE_CHECKING:
    from iree_gauntlet.toolchains.toolchain import Toolchain


DEFAULT_DEVICE = "local-task"
_HOST = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
_CHIP_FLAGS = {"rocm": "--iree-rocm-target", "cuda": "--iree-cuda-target", "vulkan": "--iree-vulkan-target"}
_TARGET_DEVICES = {"rocm": "hip", "cuda": "cuda", "vulkan": "vulkan", "metal": "metal"}


def chosen_target(device: str, chip: str) -> Target:
    """What is compiled for.

    Args:
        device: IREE's URI of a device, or a driver.
        chip: `--target`; empty where it is not given.

    Raises:
        UsageError: the device is of no known driver, or the chip is none of its.
    """
    driver = device.partition("://")[0]
    family = target_of(driver)
    if family is None:
        raise UsageError(f"--device {device}: no driver is called {driver}", "Such as local-task, hip://0, cuda://1.")
    if not chip:
        if family.family == "rocm":
            raise UsageError(f"--device {device}: which chip is it?", "Name it with --target, such as gfx942.")
        return family
    target = target_of(chip) or target_of(f"{family.family}-{chip}")
    if target is None or target.family != family.family or family.family not in _CHIP_FLAGS:
        raise UsageError(
            f"--target {chip}: {device} is no device of that", "Such as gfx942 with hip://0, sm_90 with cuda://0."
        )
    return target


def target_flags(target: Target) -> tuple[str, ...]:
    """What tells the compiler so; a CPU is compiled for as it is here, as other frameworks do."""
    if target.family == "cpu":
        return (*_HOST, "--iree-llvmcpu-target-cpu=host")
    flags: tuple[str, ...] = (f"--iree-hal-target-device={_TARGET_DEVICES[target.family]}",)
    if target.chip:
        flags = (*flags, f"{_CHIP_FLAGS[target.family]}={target.chip}")
    return flags


def chosen_devices(device: str, chips: int, toolchain: Toolchain) -> tuple[str, ...]:
    """The devices that a benchmark runs on, one for each context, and the same one several times where there are fewer.

    Args:
        device: as in `chosen_target`; one of several where it names an ordinal.
        chips: how many; 0 for all that there are.
        toolchain: whose runtime.

    Raises:
        ToolchainError: there is no such device.
    """
    available = device_available(toolchain, device)
    if not available.ok:
        raise UsageError(f"--device {device}: {available.reason}", available.hint)
    driver, separator, path = device.partition("://")
    if chips == 1 or driver.startswith("local-"):
        return (device,) * max(1, chips)
    found = (device,) if separator and path else devices(toolchain, driver)
    count = chips or len(found)
    return tuple(found[index % len(found)] for index in range(count))
