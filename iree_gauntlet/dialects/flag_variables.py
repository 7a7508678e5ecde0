"""`${NAME}` in the flags of specs: the variables that the programs of IREE's test suites read.

iree-test-suites puts `IREE_TEST_PATH_EXTENSION`, the folder of tuning files, in the place of its name before it starts
the compiler; where it is not set, the folder of the case. No other variable of a machine reaches a command line.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.locations import problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.errors import Problem


CASE_FOLDER = "IREE_TEST_PATH_EXTENSION"
_FLAG_VARIABLES = (CASE_FOLDER, "IREE_TEST_FILES", "ROCM_CHIP", "SKU")
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")


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
