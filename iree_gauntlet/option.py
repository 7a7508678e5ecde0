"""Options, declared once: for Invoke, for argparse, for the page of options, and as fields of requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the command line.

    Attributes:
        name: Python name; `--` and dashes are the command line's.
        default: also gives the type; a list for an option that may be repeated.
        help: one or two lines.
        short: a single letter, empty for none.
        choices: the values that it can have; empty for any.
        unit: of a number that has to be above 0; empty for any number.
    """

    name: str
    default: Any
    help: str
    short: str = ""
    choices: tuple[str, ...] = ()
    unit: str = ""


def option(default: Any, text: str, *, short: str = "", choices: tuple[str, ...] = (), unit: str = "") -> Any:
    """A field of a request that is an option; arguments as for `Option`, repeatable where the default is a tuple."""
    plain = list(default) if isinstance(default, tuple) else default
    return field(default=default, metadata={"option": Option("", plain, text, short, choices, unit)})


def options_of(request: type, *names: str) -> tuple[Option, ...]:
    """The options of a request, or those of them that are named."""
    found = [replace(item.metadata["option"], name=item.name) for item in fields(request) if "option" in item.metadata]
    return tuple(item for item in found if not names or item.name in names)


def dashed(name: str) -> str:
    """An option as it is typed: `--spec-dir`."""
    return f"--{name.replace('_', '-')}"


_Request = TypeVar("_Request")


def read(request: type[_Request], values: Mapping[str, Any]) -> _Request:
    """Makes a request of the values of options; those that are missing have their defaults.

    Raises:
        UsageError: a value is none that its option can have.
    """
    return request(**values_of(request, values))


def values_of(request: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are options of a request, by name.

    Raises:
        UsageError: as for `read`.
    """
    return {item.name: _value(item, values[item.name]) for item in options_of(request) if item.name in values}


def _value(item: Option, value: Any) -> Any:
    for word in (value if isinstance(item.default, list) else [value]) if item.choices else ():
        if word not in item.choices:
            raise UsageError(f"{dashed(item.name)} {word}: unknown", f"Known: {', '.join(item.choices)}.")
    # 0 stands for an option that is left out.
    if item.unit and (value or item.default) and not 0 < value < math.inf:
        hint = f"Leave it out for {item.default:g}." if item.default else "Leave it out for the default."
        raise UsageError(f"{dashed(item.name)} {value:g}: expected {item.unit} above 0", hint)
    return tuple(value) if isinstance(item.default, list) else value
