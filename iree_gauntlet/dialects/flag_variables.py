"""`${NAME}` in the flags of specs: the variables that the programs of IREE's test suites read.

iree-test-suites puts `IREE_TEST_PATH_EXTENSION` in the place of its name before it starts the compiler; configs of
IREE use it for the folder of tuning files. No other variable of a machine reaches a command line.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.locations import problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.errors import Problem

__all__ = ["FLAG_VARIABLES", "flag_variables", "resolved_flags"]

FLAG_VARIABLES = ("IREE_TEST_PATH_EXTENSION", "IREE_TEST_FILES", "ROCM_CHIP", "SKU")
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")


def flag_variables() -> tuple[tuple[str, str], ...]:
    """Names and values of those that are set, and not empty."""
    return tuple((name, os.environ[name]) for name in FLAG_VARIABLES if os.environ.get(name))


def resolved_flags(spec: Spec, field: str, flags: Sequence[str]) -> tuple[tuple[str, ...], list[Problem]]:
    """The flags of a spec's field with the values of their variables, and what is wrong with these."""
    values = dict(spec.tree.variables)
    problems: list[Problem] = []
    for index, flag in enumerate(flags):
        for name in dict.fromkeys(_VARIABLE.findall(flag)):
            if name in values:
                continue
            if name in FLAG_VARIABLES:
                what, hint = f"${{{name}}}: the variable is not set", f"Set {name} in the environment."
            else:
                what, hint = f"${{{name}}} is no variable of flags", f"Known: {', '.join(FLAG_VARIABLES)}."
            problems.append(problem(spec, [field, index], what, hint))
    return tuple(_VARIABLE.sub(lambda match: values.get(match[1], match[0]), flag) for flag in flags), problems
