"""What the options of a benchmark are to the IREE compiler: a target, an optimisation level, math fidelity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError, UsageError
from iree_gauntlet.targets import CHIP_FLAGS, Target, target_of
from iree_gauntlet.toolchains.devices import check_device, devices

if TYPE_CHECKING:
    from iree_gauntlet.toolchains.flags import FlagSet
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.torch_models.formats import DataFormat


DEFAULT_DEVICE = "local-task"
_LEVEL = "iree-opt-level"
_GREATEST_LEVEL = 3
# From this level on the compiler rewrites matrix products as generic operations, before it looks for products whose
# inputs are to be narrowed, and finds none.
_GENERALIZING_LEVEL = 2
_GENERALIZE = "iree-opt-generalize-matmul"
_TYPE = "iree-global-opt-demote-contraction-inputs-type"
_OPERATIONS = "iree-global-opt-demote-contraction-inputs-operations"
# Up to 3.11 the compiler narrows to bf16 only.
_TO_BF16 = "iree-global-opt-enable-demote-contraction-inputs-to-bf16"
# The widest first. The compiler offers two narrower types, so that the lowest two fidelities are one.
_LADDER = {"HiFi4": "f32", "HiFi3": "f16", "HiFi2": "bf16", "LoFi": "bf16"}


def choose_target(device: str, chip: str) -> Target:
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
    if target is None or target.family != family.family or family.family not in CHIP_FLAGS:
        raise UsageError(
            f"--target {chip}: {device} is no device of that", "Such as gfx942 with hip://0, sm_89 with cuda://0."
        )
    return target


def choose_devices(device: str, chips: int, toolchain: Toolchain) -> tuple[str, ...]:
    """The devices that a benchmark runs on, one for each context, and the same one several times where there are fewer.

    Args:
        device: as in `chosen_target`; one of several where it names an ordinal.
        chips: how many; 0 for all that there are.
        toolchain: whose runtime.

    Raises:
        ToolchainError: there is no such device.
    """
    available = check_device(toolchain, device)
    if not available.ok:
        raise UsageError(f"--device {device}: {available.reason}", available.hint)
    driver, separator, path = device.partition("://")
    if chips == 1 or driver.startswith("local-"):
        return (device,) * max(1, chips)
    found = (device,) if separator and path else devices(toolchain, driver)
    count = chips or len(found)
    return tuple(found[index % len(found)] for index in range(count))


@dataclass(frozen=True, slots=True)
class CompilerOptions:
    """The result of an option.

    Attributes:
        flags: for `iree-compile`.
        contraction_type: type that inputs of f32 matrix products are narrowed to; empty where they are not.
    """

    flags: tuple[str, ...] = ()
    contraction_type: str = ""
    notes: tuple[str, ...] = ()


def find_opt_level_flags(level: int | None, known: FlagSet) -> CompilerOptions:
    """The optimisation level: 0 to 3 are O0 to O3, and 4 is O3 as well; None is the compiler's own default.

    Raises:
        ToolchainError: a level for a compiler that has none.
    """
    if level is None:
        return CompilerOptions()
    if _LEVEL not in known.names:
        raise ToolchainError(
            f"--backend_opt_level {level}: this compiler has no --{_LEVEL}",
            "Leave the option out, or choose a newer compiler with --iree; releases from 3.5 on have the flag.",
        )
    notes = (f"backend_opt_level {level} is O{_GREATEST_LEVEL}: IREE has no level above it.",)
    return CompilerOptions(
        (f"--{_LEVEL}=O{min(level, _GREATEST_LEVEL)}",), notes=notes if level > _GREATEST_LEVEL else ()
    )


def find_fidelity_flags(fidelity: str, form: DataFormat, level: int | None, known: FlagSet) -> CompilerOptions:
    """Math fidelity: the type that inputs of f32 matrix products are narrowed to; sums stay f32.

    HiFi4 narrows nothing, HiFi3 to f16, HiFi2 and LoFi to bf16. A compiler that knows bf16 only leaves HiFi3 at
    f32: a fidelity is never less than it says. f16 and bf16 products are as they are, whatever the fidelity.

    Raises:
        ToolchainError: a fidelity below HiFi4 for a compiler that cannot narrow anything.
    """
    wanted = _LADDER[fidelity]
    if wanted == "f32":
        return CompilerOptions()
    if form.element_type != "f32":
        note = (
            f"{fidelity} changes nothing here: the compiler narrows f32 only, and {form.value} is {form.element_type}."
        )
        return CompilerOptions(notes=(note,))
    names = known.names
    flags: tuple[str, ...]
    if {_TYPE, _OPERATIONS} <= names:
        flags = (f"--{_TYPE}={wanted}", f"--{_OPERATIONS}=all")
    elif _TO_BF16 not in names:
        raise ToolchainError(
            f"--math_fidelity {fidelity}: this compiler has no flag that narrows the inputs of contractions",
            "Use HiFi4, or choose another compiler with --iree; releases from 3.5 on have one.",
        )
    elif wanted == "bf16":
        flags = (f"--{_TO_BF16}=all",)
    else:
        return CompilerOptions(notes=(f"{fidelity} is HiFi4 here: up to 3.11 the compiler narrows to bf16 only.",))
    notes = ["Inputs of matrix products are narrowed; those of convolutions only by compilers before 3.7."]
    if fidelity == "LoFi":
        notes.append("LoFi is HiFi2 on IREE: bf16 is the narrowest type that the compiler offers.")
    if level is not None and level >= _GENERALIZING_LEVEL:
        flags = (*flags, f"--{_GENERALIZE}=false")
        notes.append(f"--{_GENERALIZE}=false is set, without which level {level} would narrow nothing.")
    return CompilerOptions(flags, wanted, tuple(notes))
