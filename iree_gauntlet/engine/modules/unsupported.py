"""The operator of a program that a compiler has no lowering for, by the structure of what the compiler says.

MLIR prints the operation that it cannot legalize. Programs of importers have the model's operators as operations: those
of ONNX as `torch.operator` with the name in an attribute, those of torch, StableHLO and others under the names of their
dialects. The domain of an ONNX operator is in the ONNX file alone.
"""

from __future__ import annotations

import itertools
import mmap
import re
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.onnx_data import count_operators
from iree_gauntlet.results import UnsupportedOperator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


_FAILED = re.compile(r"(?::(\d+):\d+: error: )?failed to legalize operation '([\w$.-]+)'")
# An operation that is called by the attribute behind its operands.
_NAMED = "torch.operator"
_NAME = re.compile(r"\"torch\.operator\"\([^)]*\) <\{name = \"([\w.:-]+)\"")
_ONNX = "onnx."
_ONNX_LINE = re.compile(rb"torch\.operator \"(onnx\.\w+)\"")
# What the default domain of ONNX is called.
_DEFAULT_DOMAIN = "ai.onnx"
_DIALECTS = frozenset({"chlo", "mhlo", "stablehlo", "tfl", "tm_tensor", "torch", "torchvision", "tosa"})
_VERSION = re.compile(rb"torch\.onnx_meta\.opset_version = (\d+)")
_VERSIONS = re.compile(rb"torch\.onnx_meta\.opset_versions = \{([^}]*)\}")
_BYTECODE = b"ML\xefR"


def find_unsupported(lines: Sequence[str], program: Path, source: Path) -> UnsupportedOperator | None:
    """The operator that a compile failed for; None where it failed otherwise, or for an operation of no importer's.

    Args:
        lines: what the compiler wrote.
        program: what was compiled.
        source: the file that it was imported from; the program itself where it was not.
    """
    failed = next(filter(None, map(_FAILED.search, lines)), None)
    if failed is None:
        return None
    place, name = failed.groups()
    if name == _NAMED:
        named = next(filter(None, map(_NAME.search, lines)), None)
        if named is None:
            return None
        name = named[1]
    try:
        with program.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            # What an ONNX operator has become fails at the place of the operator.
            number = int(place or 0)
            line = itertools.islice(iter(text.readline, b""), number - 1, None) if number else iter(())
            at_place = _ONNX_LINE.search(next(line, b""))
            if at_place or name.startswith(_ONNX):
                return _describe_onnx(at_place[1].decode() if at_place else name, text, source)
            domain, _, operator = name.partition(".")
            return UnsupportedOperator(operator, domain, None, _count(name, text)) if domain in _DIALECTS else None
    except (OSError, ValueError):  # gone, or empty: there is nothing to say of it
        return None


def _describe_onnx(name: str, text: mmap.mmap, source: Path) -> UnsupportedOperator:
    operator = name.removeprefix(_ONNX)
    counts = {domain: count for (domain, other), count in count_operators(source).items() if other == operator}
    default, others = _VERSION.search(text), _VERSIONS.search(text)
    # Without an ONNX file, the one domain that a program has is that of its operators.
    domains = list(counts) or ([""] if default and not others else [])
    if len(domains) != 1:
        return UnsupportedOperator(operator, "", None, sum(counts.values()) or _count(name, text))
    (domain,) = domains
    version = default
    if domain not in ("", _DEFAULT_DOMAIN):
        version = re.search(rb"%b\"? = (\d+)" % re.escape(domain.encode()), others[1]) if others else None
    count = counts.get(domain) or _count(name, text)
    return UnsupportedOperator(operator, domain or _DEFAULT_DOMAIN, int(version[1]) if version else None, count)


def _count(name: str, text: mmap.mmap) -> int | None:
    """How often an operation stands in a program; None where that is no text."""
    if text[: len(_BYTECODE)] == _BYTECODE:
        return None
    return sum(1 for _ in re.finditer(rb"(?<![\w.])%b(?![\w.])" % re.escape(name.encode()), text))
