"""What the name of a dispatch says: which function it is of, its number, what it does, on which shape.

IREE names dispatches `<function>[$async]_dispatch_<number>[_<what it does>[_<sizes>_<types>]]`, and changes of layout
`_encoding_<number>_<what it does>`. The numbers are given in the order of the program; each compiler that fuses
otherwise gives other ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DISPATCH = re.compile(r"(?P<function>.*?)(?:\$async)?_dispatch_(?P<number>\d+)(?:_(?P<work>.+))?")
_ENCODING = re.compile(r"(?P<function>)_encoding_(?P<number>\d+)_(?P<work>.+)")
# `256x256`, `4xD`: `D` stands for a dimension that is not known; the last may carry its type (`2xf32`).
_SIZES = re.compile(r"(?:\d+|D)(?:x(?:\d+|D))*(?:x[a-z]+\d+\w*)?")
# What a dispatch is counted as: the heaviest thing that its name tells of.
_KINDS = (
    ("attention", ("attention",)),
    ("conv", ("conv", "im2col", "winograd")),
    ("matmul", ("matmul", "mmt4d", "matvec", "vecmat", "contract")),
    ("pooling", ("pool",)),
    ("reduction", ("reduction", "reduce", "softmax", "argmax", "argmin", "topk")),
    ("encoding", ("encode", "decode", "encoding", "pack")),
    ("elementwise", ("elementwise", "generic", "broadcast", "transpose")),
)


@dataclass(frozen=True, slots=True)
class DispatchName:
    """The parts of a name.

    Attributes:
        function: of the program, without IREE's `$async`; empty where the name has none.
        number: its running number; None where the name has none.
        work: what it does with sizes and types, `matmul_256x256x256_f32`; the whole name where it has another form.
        kind: `matmul`, `conv`, `elementwise`, `reduction` …; the name of the work without sizes where it is none of
            these (`slow_memcpy`), and `other` where the name has no words.
    """

    function: str
    number: int | None
    work: str
    kind: str

    @property
    def label(self) -> tuple[str, str]:
        """What is the same for two compilers: the name without its number."""
        return (self.function, self.work)


def dispatch_name(name: str) -> DispatchName:
    """Takes a name apart; one of another form is its own work."""
    match = _DISPATCH.fullmatch(name) or _ENCODING.fullmatch(name)
    if match is None:
        return DispatchName("", None, name, "other")
    work = match["work"] or ""
    return DispatchName(match["function"], int(match["number"]), work, _kind(work))


def _kind(work: str) -> str:
    words = work.split("_")
    sizes = next((index for index, word in enumerate(words) if _SIZES.fullmatch(word)), len(words))
    kind_words = "_".join(words[:sizes])
    return next((kind for kind, parts in _KINDS if any(part in kind_words for part in parts)), kind_words or "other")
