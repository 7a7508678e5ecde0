"""Flags in specs: their variables, the target and devices that they name, and where each is written.

In place of `${NAME}` stands the value of a variable. The programs of iree-test-suites put `IREE_TEST_PATH_EXTENSION`,
the folder of tuning files, in the place of its name before they start the compiler; where it is not set, the folder of
the case. No other variable of a machine reaches a command line.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.json_text import without_comments
from iree_gauntlet.dialects.locations import problem
from iree_gauntlet.dialects.spec_file import load_json, problem_at, strings_in
from iree_gauntlet.errors import GauntletError, Problem
from iree_gauntlet.targets import Target, target_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.dialects.spec import Spec


CASE_FOLDER = "IREE_TEST_PATH_EXTENSION"
_FLAG_VARIABLES = (CASE_FOLDER, "IREE_TEST_FILES", "ROCM_CHIP", "SKU")
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_TARGET_FLAGS = ("iree-hal-target-device", "iree-hal-target-backends", "iree-hal-local-target-device-backends")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_CHIP_FLAGS = {
    "rocm": ("iree-rocm-target", "iree-hip-target"),
    "cuda": ("iree-cuda-target",),
    "vulkan": ("iree-vulkan-target",),
    "metal": ("iree-metal-target",),
}


def flag_variables() -> dict[str, str]:
    """Names and values of those that are set, and not empty."""
    return {name: os.environ[name] for name in _FLAG_VARIABLES if os.environ.get(name)}


def with_variables(flag: str, values: Mapping[str, str]) -> str:
    """A flag with values in the place of their variables; others stay."""
    return _VARIABLE.sub(lambda match: values.get(match[1], match[0]), flag) if "${" in flag else flag


def strange_variables(flag: str, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with each variable of a flag that has no value, and what to do."""
    for name in dict.fromkeys(_VARIABLE.findall(flag)):
        if name in _FLAG_VARIABLES and name not in values:
            yield f"${{{name}}}: the variable is not set", f"Set {name} in the environment."
        elif name not in values:
            yield f"${{{name}}} is not a variable of flags", f"Known: {', '.join(_FLAG_VARIABLES)}."


def resolved_flags(spec: Spec, field: str, flags: Sequence[str]) -> tuple[tuple[str, ...], list[Problem]]:
    """The flags of a spec's field with the values of their variables, and what is wrong with these."""
    values = dict(spec.tree.variables)
    problems = [
        problem(spec, [field, index], what, hint)
        for index, flag in enumerate(flags)
        for what, hint in strange_variables(flag, values)
    ]
    return tuple(with_variables(flag, values) for flag in flags), problems


def target_of_flags(flags: Iterable[str]) -> Target:
    """The target that compile flags name; the CPU where they name none.

    A local device is the CPU, or VMVX where its backend says so. A device that this toolkit does not know is a
    family of its own: nothing selects it by accident.
    """
    values: dict[str, str] = {}
    for flag in flags:
        name, _, value = flag.lstrip("-").partition("=")
        # One of several, perhaps with a name of its own: `main=hip[0],other=local`.
        values[name] = value.split(",")[0].rpartition("=")[2].split("://")[0].split("[")[0]
    named = [values[name] for name in _TARGET_FLAGS if values.get(name)]
    found = next((target for name in named if (target := target_of(name))), None)
    if found is None:
        unknown = next((name for name in named if _NAME.fullmatch(name)), "cpu")
        return Target(unknown)
    if found.family == "cpu" and values.get(_TARGET_FLAGS[-1]) == "vmvx":
        return Target("vmvx")
    flags_of_family = _CHIP_FLAGS.get(found.family, ())
    chip = next((values[name].split(":")[0] for name in flags_of_family if values.get(name)), "")
    return target_of(f"{found.family}-{chip}") or found


def devices_of_flags(flags: Iterable[str]) -> str:
    """The devices that a run's flags name, for the lock: one may be named several times."""
    values = [flag.partition("=")[2].strip('"') for flag in flags if flag.lstrip("-").startswith("device=")]
    return ",".join(dict.fromkeys(values))


def names_device(flag: str) -> bool:
    """Whether a run's flag names a device."""
    return flag.lstrip("-").startswith("device=")


def with_device(flags: Sequence[str], device: str) -> tuple[str, ...]:
    """A run's flags with one device in place of all that they name."""
    kept = [flag for flag in flags if not names_device(flag)]
    place = next((index for index, flag in enumerate(flags) if names_device(flag)), len(kept))
    return (*kept[:place], f"--device={device}", *kept[place:])


def problem_of_flag(file: str, flag: str, message: str, hint: str = "") -> Problem:
    """A problem of a flag: at the first value of a JSON file that is the flag, else at the first line that has it.

    A flag that is not found as it is given (it is made of variables) gives a problem without a line.
    """
    path = Path(file)
    try:
        document, text, _ = load_json(path, file, without_comments)
        place = next((place for place, found in strings_in(document) if found.strip() == flag.strip()), None)
        if place is not None:
            return problem_at(file, text, place, message, hint)
    except GauntletError:
        # A flagfile, or YAML.
        pass
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    line = next((number for number, line in enumerate(lines, 1) if flag in line), 0)
    return Problem(file, line, "", message, hint)
