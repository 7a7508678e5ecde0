"""Variants: named changes of the flags that specs give to IREE's tools, to compare one IREE with itself."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.targets import Target


TUNING_SPEC_FLAG = "--iree-codegen-tuning-spec-path"
# The older flag also takes a tuning spec; sharktank's tuner files are such specs.
TUNER_FILE_FLAG = "--iree-codegen-transform-dialect-library"
_TUNING_FLAGS = tuple(flag.lstrip("-") for flag in (TUNING_SPEC_FLAG, TUNER_FILE_FLAG))
# Variants follow an IREE after this character: `3.13.0+data-tiling`.
_SEPARATOR = "+"
VARIANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-]*")
_SYNTAX = "For example --variant data-tiling, or --variant 'O3=--iree-opt-level=O3'."


@dataclass(frozen=True, slots=True)
class FlagVariant(Recorded):
    """A named change of flags.

    Attributes:
        compiler_flags: flags that replace the spec's flags of the same names, or are added.
        remove_compiler_flags: names of flags of the spec that are left out, with their dashes.
        run_flags: the same as `compiler_flags`, for the runtime's tools.
        tuning_spec: URL of the compiler's tuning spec; empty for none.
        targets: names of the targets that it applies to; empty for all.
        origin: the file that defines it; empty for the command line.
    """

    name: str
    compiler_flags: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    remove_compiler_flags: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    run_flags: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    tuning_spec: str = field(default="", metadata=UNLESS_DEFAULT)
    targets: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    description: str = field(default="", metadata=UNLESS_DEFAULT)
    origin: str = field(default="", metadata=UNLESS_DEFAULT)

    @property
    def changes(self) -> str:
        """The changes of flags in one line, for people."""
        removals = (f"removing {flag}" for flag in self.remove_compiler_flags)
        tuning = (f"{TUNING_SPEC_FLAG}={self.tuning_spec}",) if self.tuning_spec else ()
        return " ".join((*self.compiler_flags, *removals, *self.run_flags, *tuning))

    def changes_the_same(self, other: FlagVariant) -> bool:
        """Return whether another variant changes flags in the same way; its description and file do not count."""
        return replace(self, description="", origin="") == replace(other, description="", origin="")

    def applies_to(self, target: Target) -> bool:
        """Return whether the variant changes the flags of cases for a target."""
        return not self.targets or target.family in self.targets or target.name in self.targets


def name_flag(word: str) -> str:
    """Return the name of a flag, without dashes and value."""
    return word.lstrip("-").partition("=")[0]


def has_tuning_flags(words: Sequence[str]) -> bool:
    """Return True if a tuning spec is among the flags of a compile."""
    return any(word.startswith("-") and name_flag(word) in _TUNING_FLAGS for word in words)


def remove_tuning_flags(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a compile without the flags of a tuning spec, and without their values."""
    result: list[str] = []
    is_value = False
    for word in words:
        if has_tuning_flags((word,)):
            is_value = "=" not in word
        elif is_value:
            is_value = False
        else:
            result.append(word)
    return tuple(result)


def name_variants(variants: Sequence[FlagVariant]) -> str:
    """Return the name of several variants together, `data-tiling+O3`; empty without variants."""
    return _SEPARATOR.join(variant.name for variant in variants)


def sort_names(name: str) -> str:
    """Return the name of several variants with their names in order, as a run has them."""
    return _SEPARATOR.join(sorted(name.split(_SEPARATOR)))


def parse_variant(text: str) -> FlagVariant | None:
    """Parse a variant that is defined on the command line, `NAME=FLAGS`; None for the name of another one.

    Raises:
        UsageError: the text is neither, or its flags cannot be split into words.
    """
    name, equals, flags = text.partition("=")
    if not VARIANT_NAME.fullmatch(name):
        advice = f"Write {name.lstrip(_SEPARATOR)}, without the plus sign. " if name.startswith(_SEPARATOR) else ""
        raise UsageError(f"variant {text}: expected a name, or NAME=FLAGS", advice + _SYNTAX)
    if not equals:
        return None
    try:
        words = tuple(shlex.split(flags))
    except ValueError as error:
        raise UsageError(f"variant {text}: {error}", _SYNTAX) from error
    if not words or not words[0].startswith("-"):
        raise UsageError(f"variant {text}: expected compile flags after {name}=", _SYNTAX)
    return FlagVariant(name, words)


def split_side(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a side, `3.13.0+data-tiling`, into the IREE and the names of variants.

    A folder that exists keeps the plus signs in its name; the IREE is empty in `+data-tiling`.
    """
    iree, separator, names = text.partition(_SEPARATOR)
    kind, colon, folder = text.partition(":")
    if colon:
        parts = folder.split(_SEPARATOR)
        counts = range(len(parts), 0, -1)
        count = next((n for n in counts if os.path.isdir(os.path.expanduser(_SEPARATOR.join(parts[:n])))), 1)  # noqa: PTH111, PTH112 - settings.py imports this file
        iree, names = f"{kind}:{_SEPARATOR.join(parts[:count])}", _SEPARATOR.join(parts[count:])
    if separator and iree != text and not all(map(VARIANT_NAME.fullmatch, names.split(_SEPARATOR))):
        raise UsageError(f"{text}: expected names of variants after the plus sign", "For example 3.13.0+data-tiling.")
    return iree, tuple(names.split(_SEPARATOR)) if names else ()
