"""A parameter that a program names, and how its values lie in memory.

Sub-byte integers are packed as the compiler packs them: `i4` two and `i2` four to a byte, the first value in
the lowest bits, a last byte that is not full padded. `i1` takes a byte a value.

What archives of synthetic parameters are called, and the version of their making, is known without a program.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Iterable


_MAX_BYTES = (1 << 63) - 1  # IREE's offsets in files are signed 64-bit numbers

# What ml_dtypes calls the types that NumPy lacks.
ML_DTYPES = {
    "bf16": "bfloat16",
    "f8E3M4": "float8_e3m4",
    "f8E4M3": "float8_e4m3",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2": "float8_e5m2",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
}
_INTEGER = re.compile(r"(?P<sign>|s|u)i(?P<bits>[0-9]+)")
# A new number disowns every archive that was made before: values of a seed, or the layout, have changed.
PARAMETERS_FORMAT = 1

_PLAIN_SCOPE = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ParameterError(GauntletError):
    """Parameters that cannot be found in a program, or for which no values can be made."""


class BitsKind(Enum):
    """How the bits of a value are read."""

    BOOL = "bool"
    INTEGER = "integer"
    FLOAT = "float"


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type of MLIR for which values can be made.

    Attributes:
        dtype: NumPy's or ml_dtypes' name of the type; empty where values share a byte.
        least: smallest integer that can be written, 0 for floats.
        most: largest integer that can be written, 0 for floats. A signless integer takes -2^(n-1) to 2^n - 1.
    """

    name: str
    kind: BitsKind
    bits: int
    dtype: str
    least: int = 0
    most: int = 0


def element_type(name: str) -> ElementType | None:
    """The element type of this name; None where no values can be made for it."""
    if name == "i1":
        return ElementType(name, BitsKind.BOOL, 8, "uint8", 0, 1)
    if name in ML_DTYPES:
        return ElementType(name, BitsKind.FLOAT, 16 if name == "bf16" else 8, ML_DTYPES[name])
    if name in {"f16", "f32", "f64"}:
        return ElementType(name, BitsKind.FLOAT, int(name[1:]), f"float{name[1:]}")
    match = _INTEGER.fullmatch(name)
    if match is None or int(match["bits"]) not in (2, 4, 8, 16, 32, 64):
        return None
    bits = int(match["bits"])
    least = 0 if match["sign"] == "u" else -(1 << (bits - 1))
    most = (1 << (bits - 1)) - 1 if match["sign"] == "s" else (1 << bits) - 1
    return ElementType(name, BitsKind.INTEGER, bits, f"uint{bits}" if bits >= 8 else "", least, most)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a program.

    Attributes:
        scope: scope that `--parameters=<scope>=<file>` gives; empty for the anonymous one.
        name: key within the scope. Bytes that are not UTF-8 stand as lone surrogates (`surrogateescape`).
        shape: dimensions; empty for a scalar.
        element_type: MLIR's name of the element type, one that `element_type` knows.
    """

    scope: str
    name: str
    shape: tuple[int, ...]
    element_type: str

    @property
    def element(self) -> ElementType:
        """What is known of the element type.

        Raises:
            ParameterError: no values can be made for it.
        """
        known = element_type(self.element_type)
        if known is None:
            raise ParameterError(f"parameter {self.label}: element type {self.element_type} has no values here")
        return known

    @property
    def type(self) -> str:
        """The type as MLIR writes it, such as `tensor<4x4xf32>`."""
        return f"tensor<{'x'.join((*map(str, self.shape), self.element_type))}>"

    @property
    def label(self) -> str:
        """Scope and name for people, such as `"model"::"w"`; what cannot be printed is escaped."""
        path = (self.scope, self.name) if self.scope else (self.name,)
        texts = [text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for text in path]
        quoted = ["".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in t) for t in texts]
        return "::".join(f'"{text}"' for text in quoted)

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def byte_size(self) -> int:
        """Bytes of all values, dense, sub-byte values packed."""
        return (self.count * self.element.bits + 7) // 8

    def check(self) -> None:
        """See that values can be made for it.

        Raises:
            ParameterError: they cannot: the element type, or a size beyond what a file can hold.
        """
        if self.byte_size > _MAX_BYTES:
            raise ParameterError(
                f"parameter {self.label}: {self.type} takes {self.byte_size} bytes, more than a file can hold",
                "Check the shape in the program.",
            )


def select_scope(parameters: Iterable[Parameter], scope: str) -> tuple[Parameter, ...]:
    """The parameters of one scope, in the order given.

    Args:
        parameters: those of a program.
        scope: empty for the anonymous scope.

    Raises:
        ParameterError: there are none; it names the scopes that have some.
    """
    everything = tuple(parameters)
    found = tuple(parameter for parameter in everything if parameter.scope == scope)
    if not found:
        scopes = ", ".join(sorted({repr(parameter.scope) for parameter in everything}))
        raise ParameterError(
            f"no parameter in scope {scope!r}",
            f"Scopes that have parameters: {scopes}." if scopes else "The program names no parameters at all.",
        )
    return found


def archive_name(scope: str) -> str:
    """A safe file name for the archive of a scope, different for each; it depends on the scope alone."""
    if _PLAIN_SCOPE.fullmatch(scope):
        return f"{scope}.irpa"
    digest = hashlib.sha256(scope.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"scope.{digest}.irpa"  # no plain scope has a dot
