"""`random://` sources: arrays made from a seed, byte for byte the same on every machine.

    random://uniform/1x3x48x192xf32?seed=7&low=-1&high=1
    random://normal/1x64xf32?seed=1&mean=0&stddev=0.01
    random://integers/1x64xi64?seed=3&low=0&high=30522      (high is exclusive)
    random://text/1x3x320x320xf32?seed=3&scale=4&lines=4
    random://zeros/1x2x128x2xf32   random://ones/4xi1
    random://formula/64x64xf16?seed=1&skip=4096&coeff=2&offset=-1

The path is a shape and an element type as IREE writes them; `f32` alone is a scalar.

How the numbers are made. NumPy promises the raw 64-bit stream of a bit generator for ever, but not what
its distribution methods make of it, and the C library's log and cos differ between machines. So every value
comes from PCG64's raw stream by integer operations and by the exactly rounded IEEE operations + - * only.
The generator's seed is the SHA-256 of the source in canonical form (all parameters, defaults included):
whatever changes the meaning of the URL changes the whole stream, and two ways to write it do not.

* `uniform`: the top 53 bits of a word give u in [0, 1) exactly; low + (high - low) * u in binary64.
* `normal`: the sum of twelve 32-bit uniform integers (Irwin-Hall, n = 12) has a variance of exactly one
  unit up to 2^-64; mean + stddev * z. Its tails end at six standard deviations, its excess kurtosis is
  -0.1: near enough to a normal distribution for inputs and weights, and exact everywhere.
* `integers`: the high half of word * (high - low) in 128 bits, plus low (a bias below 2^-64 per value of the
  range).
* `text`: a picture of seeded words in NCHW order, dark (-0.9) on light (0.9), the same in all channels.
  Text detectors and recognisers give nearly nothing on noise, so noise would check nothing.
* `formula`: what operator suites made of `(coeff * numpy.random.rand(*shape) + offset).astype(dtype)`, bit for bit:
  the values of NumPy's legacy generator (MT19937), whose stream is frozen, seeded with `seed`, after `skip` others.

Values are rounded once to f32 or f64; f16, bf16 and the f8 types are rounded from f32, those of `formula` from f64.

`glyphs.txt` has the font: a character in each line, then its seven rows of five dots, the top row first, `#` for ink.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
import string
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

from iree_gauntlet.artifacts.program_parameters import ML_DTYPES
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray


_GLYPH_WIDTH = 5
_GLYPH_HEIGHT = 7
ALPHABET = string.digits + string.ascii_uppercase

_GAP = 1
_SHORTEST_WORD = 3
_LONGEST_WORD = 8
_SCHEME = "random"
_EXAMPLE = f"Write {_SCHEME}://uniform/1x64xf32?seed=1."

_LARGEST_BYTES = 1 << 32
_SHAPE = re.compile(r"(?:([0-9]{1,12}(?:x[0-9]{1,12})*)x)?([a-z][A-Za-z0-9]*)")
_ELEMENTS = (
    *("i1", "i8", "i16", "i32", "i64", "si8", "si16", "si32", "si64", "ui8", "ui16", "ui32", "ui64"),
    *("f16", "bf16", "f32", "f64", "f8E4M3FN", "f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ"),
)
_FLOATS = frozenset(name for name in _ELEMENTS if name.startswith(("f", "bf")))

# Parameters of each distribution with their defaults; None where it depends on the element type.
_PARAMETERS: dict[str, dict[str, int | float | None]] = {
    "uniform": {"seed": 0, "low": 0.0, "high": 1.0},
    "normal": {"seed": 0, "mean": 0.0, "stddev": 1.0},
    "integers": {"seed": 0, "low": None, "high": None},
    "text": {"seed": 0, "scale": 4, "lines": 1},
    "zeros": {},
    "ones": {},
    "formula": {"seed": 0, "skip": 0, "coeff": 1.0, "offset": 0.0},
}
_FLOATING_ONLY = frozenset({"uniform", "normal", "text"})

# The largest seed that NumPy's legacy generator takes; values that are drawn at once.
_MOST_FORMULA_SEED = (1 << 32) - 1
_DRAWN_AT_ONCE = 1 << 20

_NCHW_RANK = 4


@dataclass(frozen=True, slots=True)
class SeededSpec:
    """What a `random://` URL asks for."""

    url: str
    distribution: str
    shape: tuple[int, ...]
    element_type: str
    parameters: Mapping[str, int | float]

    @property
    def value(self) -> str:
        """Shape and element type as IREE's `--input=` takes them, such as `1x64xi64`."""
        return "x".join((*map(str, self.shape), self.element_type))

    @property
    def suffix(self) -> str:
        """`.npy` where NumPy knows the element type, else `.bin` (raw bytes)."""
        return ".bin" if self.element_type in ML_DTYPES else ".npy"

    @property
    def canonical(self) -> str:
        """The same for every URL that means the same; the stream is seeded with its SHA-256."""
        parameters = "&".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"{_SCHEME}://{self.distribution}/{self.value}?{parameters}"

    def generate(self) -> NDArray[Any]:
        """Make the array: `shape` elements of the element type, in C order, little-endian."""
        dtype = _find_dtype(self.element_type)
        if self.distribution in ("zeros", "ones"):
            return np.full(self.shape, self.distribution == "ones", dtype=np.float32).astype(dtype)
        given: dict[str, Any] = dict(self.parameters)
        if self.distribution == "formula":
            return self._compute_formula(dtype, **given)
        # The stream of the others is seeded with all of them.
        del given["seed"]
        if self.distribution == "integers":
            return self._make_integers(dtype, **given)
        if self.distribution == "text":
            real = self._draw_text(**given)
        else:
            real = self._make_uniform(**given) if self.distribution == "uniform" else self._make_normal(**given)
        if dtype == np.float64:
            return real
        with np.errstate(over="ignore"):  # what a small type cannot hold becomes its infinity or NaN
            return real.astype("<f4").astype(dtype)

    def _draw_words(self, count: int) -> NDArray[np.uint64]:
        seed = int.from_bytes(hashlib.sha256(self.canonical.encode()).digest(), "little")
        return np.asarray(np.random.PCG64(seed).random_raw(count), dtype=np.uint64)

    def _make_uniform(self, low: float, high: float) -> NDArray[np.float64]:
        unit = (self._draw_words(math.prod(self.shape)) >> np.uint64(11)).astype("<f8") * 2.0**-53
        values: NDArray[np.float64] = low + (high - low) * unit
        return values.reshape(self.shape)

    def _make_normal(self, mean: float, stddev: float) -> NDArray[np.float64]:
        words = self._draw_words(6 * math.prod(self.shape)).reshape(-1, 6)
        halves = (words >> np.uint64(32)).sum(axis=1) + (words & np.uint64(0xFFFFFFFF)).sum(axis=1)
        # The sum has the mean 6 * 2^32 - 6 and stays below 2^36, so z is exact in binary64.
        z = (halves.astype("<i8") - (6 * 2**32 - 6)).astype("<f8") * 2.0**-32
        values: NDArray[np.float64] = mean + stddev * z
        return values.reshape(self.shape)

    def _make_integers(self, dtype: np.dtype[Any], low: int, high: int) -> NDArray[Any]:
        words = self._draw_words(math.prod(self.shape))
        values = (words if high - low == 1 << 64 else _compute_high_half(words, high - low)) + np.uint64(
            low % (1 << 64)
        )
        # Two's complement: the low bytes of the sum modulo 2^64 are the value, signed or not.
        narrow = values.astype(f"<u{dtype.itemsize}")
        return (narrow != 0 if dtype == np.bool_ else narrow.view(dtype)).reshape(self.shape)

    def _compute_formula(self, dtype: np.dtype[Any], seed: int, skip: int, coeff: float, offset: float) -> NDArray[Any]:
        generator = np.random.RandomState(seed)
        for count in _split(skip):
            generator.random_sample(count)
        values = np.empty(math.prod(self.shape), dtype)
        done = 0
        for count in _split(values.size):
            drawn = coeff * generator.random_sample(count) + offset
            with np.errstate(over="ignore", invalid="ignore"):  # as NumPy converts it, whatever the result
                values[done : done + count] = drawn.astype(dtype)
            done += count
        return values.reshape(self.shape)

    def _draw_text(self, scale: int, lines: int) -> NDArray[np.float64]:
        batch, channels, height, width = self.shape
        # As many as `draw_words_picture` draws at most from its stream.
        drawn_a_line = 2 * max(1, _count_columns(width, scale))
        words = iter(int(word) for word in self._draw_words(batch * lines * drawn_a_line))
        pictures = [draw_words_picture(words, height, width, scale, lines) for _ in range(batch)]
        ink = np.array(pictures, dtype=np.bool_).reshape(batch, 1, height, width)
        return np.repeat(np.where(ink, -0.9, 0.9), channels, axis=1)


def _split(count: int) -> Iterator[int]:
    """Counts that sum up to a count, none of them large."""
    while count > 0:
        yield min(count, _DRAWN_AT_ONCE)
        count -= _DRAWN_AT_ONCE


def _compute_high_half(words: NDArray[np.uint64], factor: int) -> NDArray[np.uint64]:
    """The high 64 bits of words * factor, exactly; factor < 2^64."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    low_factor, high_factor = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    low, high = words & mask, words >> shift
    middle = high * low_factor + ((low * low_factor) >> shift)
    carry = low * high_factor + (middle & mask)
    result: NDArray[np.uint64] = high * high_factor + (middle >> shift) + (carry >> shift)
    return result


def _find_dtype(element_type: str) -> np.dtype[Any]:
    if element_type in ML_DTYPES:
        # Registers the types with NumPy; slow to import, and most sources do without.
        import ml_dtypes  # noqa: PLC0415

        known: np.dtype[Any] = np.dtype(getattr(ml_dtypes, ML_DTYPES[element_type]))
        return known
    if element_type == "i1":
        return np.dtype(np.bool_)
    kind = element_type.rstrip("0123456789")
    return np.dtype(f"<{ {'f': 'f', 'ui': 'u'}.get(kind, 'i') }{int(element_type[len(kind) :]) // 8}")


class _WrongSourceError(Exception):
    """What is wrong with a source, and what to do."""


def parse_seeded(url: str) -> SeededSpec:
    """Read a `random://` URL; ArtifactError says what is wrong with it and what exists."""
    try:
        return _parse(url)
    except _WrongSourceError as error:
        what, hint = error.args
        raise ArtifactError(url, f"{url}: {what}", hint) from error


def _parse(url: str) -> SeededSpec:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _WrongSourceError(f"{error}", _EXAMPLE) from error
    if parts.scheme != _SCHEME:
        raise _WrongSourceError(f"not a {_SCHEME}:// source", _EXAMPLE)
    distribution = parts.netloc
    if distribution not in _PARAMETERS:
        near = _suggest_nearest(distribution, _PARAMETERS)
        hint = f"Distributions: {', '.join(_PARAMETERS)}."
        raise _WrongSourceError(f"unknown distribution {distribution!r}{near}", hint)
    if parts.fragment:
        raise _WrongSourceError(f"#{parts.fragment} has no meaning here", "Parameters follow a ?.")
    shape, element_type = _parse_value(parts.path.removeprefix("/"))
    if distribution in _FLOATING_ONLY and element_type not in _FLOATS:
        hint = f"Use random://integers/..., or one of {', '.join(sorted(_FLOATS))}."
        raise _WrongSourceError(f"{distribution} makes floating-point values, not {element_type}", hint)
    if distribution == "integers" and element_type in _FLOATS:
        hint = "Use random://uniform/..., or an integer type."
        raise _WrongSourceError(f"integers makes no {element_type} values", hint)
    parameters = _parse_parameters(distribution, element_type, parts.query)
    if distribution == "text":
        _check_text(shape, **{name: int(value) for name, value in parameters.items() if name != "seed"})
    return SeededSpec(url, distribution, shape, element_type, dict(sorted(parameters.items())))


def _parse_value(text: str) -> tuple[tuple[int, ...], str]:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise _WrongSourceError(f"{text!r} is no shape with an element type", "Write 1x64xf32, or f32 for a scalar.")
    dims, element_type = match.groups()
    if element_type not in _ELEMENTS:
        near = _suggest_nearest(element_type, _ELEMENTS)
        hint = f"Element types: {', '.join(_ELEMENTS)}."
        raise _WrongSourceError(f"unknown element type {element_type!r}{near}", hint)
    shape = tuple(int(size) for size in dims.split("x")) if dims else ()
    size = math.prod(shape) * max(1, int(re.findall(r"[0-9]+", element_type)[0]) // 8)
    if size > _LARGEST_BYTES:
        hint = "Check the shape."
        raise _WrongSourceError(f"{size} bytes are more than the {_LARGEST_BYTES} that are made here", hint)
    return shape, element_type


def _parse_parameters(distribution: str, element_type: str, query: str) -> dict[str, int | float]:
    allowed = _PARAMETERS[distribution]
    given: dict[str, int | float] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise _WrongSourceError(f"{error}", "Write parameters as ?seed=1&low=0.") from error
    for name, text in pairs:
        if name not in allowed:
            near = _suggest_nearest(name, allowed)
            hint = f"Parameters of {distribution}: {', '.join(allowed) or 'none'}."
            raise _WrongSourceError(f"{distribution} has no parameter {name!r}{near}", hint)
        if name in given:
            raise _WrongSourceError(f"parameter {name!r} is given twice", "Keep one of them.")
        given[name] = _parse_number(name, text, whole=not isinstance(allowed[name], float))
    if distribution == "integers":
        least, most = 0, 1
        if element_type != "i1":
            info = np.iinfo(_find_dtype(element_type))
            least, most = int(info.min), int(info.max)
        given = {"seed": 0, "low": least, "high": most + 1, **given}
        low, high = given["low"], given["high"]
        if not least <= low < high <= most + 1:
            hint = f"low < high (exclusive) are wanted, within {least} and {most + 1}."
            raise _WrongSourceError(f"{element_type} integers from {low} below {high} do not exist", hint)
        return given
    given = {name: given.get(name, default) for name, default in allowed.items() if default is not None}
    if distribution == "formula" and (seed := given["seed"]) > _MOST_FORMULA_SEED:
        raise _WrongSourceError(f"seed={seed} is too large", f"NumPy takes seeds up to {_MOST_FORMULA_SEED}.")
    low, high = given.get("low", 0.0), given.get("high", 1.0)
    if distribution == "uniform" and not 0 <= high - low < math.inf:
        raise _WrongSourceError(f"no values lie between low={low} and high={high}", "low <= high are wanted.")
    return given


def _parse_number(name: str, text: str, *, whole: bool) -> int | float:
    pattern = r"[+-]?[0-9]{1,40}" if whole else r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?"
    if re.fullmatch(pattern, text.strip()) is None:
        kind = "a whole number" if whole else "a number"
        raise _WrongSourceError(f"{name}={text!r} is not {kind}", f"Write {name}=3, for example.")
    number = int(text) if whole else float(text)
    if name in ("seed", "skip", "stddev") and number < 0:
        raise _WrongSourceError(f"{name}={text} is negative", "0 or more is wanted.")
    if not whole and not math.isfinite(number):
        raise _WrongSourceError(f"{name}={text} is beyond binary64", "Write a smaller number.")
    if name in ("coeff", "offset"):
        # A zero keeps its sign in what is computed with it.
        return number
    # -0.0 and 0.0 mean the same and must give the same stream.
    return number or abs(number)


def _check_text(shape: tuple[int, ...], scale: int, lines: int) -> None:
    if len(shape) != _NCHW_RANK:
        raise _WrongSourceError(f"a picture of text has 4 dimensions, not {len(shape)}", "Write 1x3x48x320.")
    if scale < 1 or lines < 1:
        raise _WrongSourceError("scale and lines begin at 1", "Write scale=4&lines=1.")
    _, _, height, width = shape
    wanted_height, wanted_width = lines * (_GLYPH_HEIGHT + _GAP) * scale, (_GLYPH_WIDTH + 2 * _GAP) * scale
    if height < wanted_height or width < wanted_width:
        raise _WrongSourceError(
            f"{lines} lines at scale {scale} need at least {wanted_height} rows and "
            f"{wanted_width} columns, the picture has {height} and {width}",
            "Make the picture larger, or scale or lines smaller.",
        )


def _suggest_nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _make_npy_header(array: NDArray[Any]) -> bytes:
    """Header of the NPY format, version 1.0, written here so that it depends on no NumPy version."""
    description = f"{{'descr': {array.dtype.str!r}, 'fortran_order': False, 'shape': {array.shape!r}, }}"
    prefix = b"\x93NUMPY\x01\x00"
    unpadded = len(prefix) + 2 + len(description) + 1
    text = description + " " * (-unpadded % 64) + "\n"
    return prefix + len(text).to_bytes(2, "little") + text.encode("latin-1")


def make_seeded_content(url: str) -> bytes:
    """What the file of a `random://` URL holds: .npy where NumPy has the type, else raw bytes."""
    spec = parse_seeded(url)
    array = spec.generate()
    return (_make_npy_header(array) if spec.suffix == ".npy" else b"") + array.tobytes()


def write_seeded(url: str, path: Path) -> None:
    """Make the file that a `random://` URL stands for; it appears whole or not at all."""
    content = make_seeded_content(url)
    try:
        write_atomic(path, content)
    except OSError as error:
        raise ArtifactError(
            url, f"{path}: cannot be written: {error.strerror or error}", "Check the disk space and the rights there."
        ) from error


def draw_words_picture(stream: Iterator[int], height: int, width: int, scale: int, lines: int) -> NDArray[np.bool_]:
    """Draw lines of random words of 64-bit numbers: height x width pixels, True where there is ink.

    Each line is in the middle of its share of the height; a dot of the font takes scale x scale pixels.
    """
    picture = np.zeros((height, width), dtype=np.bool_)
    for line in range(lines):
        text = _draw_sentence(stream, _count_columns(width, scale))
        # A blank is a glyph's width of paper.
        dots = np.zeros((_GLYPH_HEIGHT, len(text) * (_GLYPH_WIDTH + _GAP) - _GAP), dtype=np.bool_)
        for position, character in enumerate(text):
            if character in ALPHABET:
                left = position * (_GLYPH_WIDTH + _GAP)
                dots[:, left : left + _GLYPH_WIDTH] = _read_font()[character]
        ink = dots.repeat(scale, axis=0).repeat(scale, axis=1)
        top = (2 * line + 1) * height // (2 * lines) - ink.shape[0] // 2
        left = (width - ink.shape[1]) // 2
        picture[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return picture


def _count_columns(width: int, scale: int) -> int:
    """Characters that fit into a line, with a dot's margin at both ends."""
    return (width // scale - _GAP) // (_GLYPH_WIDTH + _GAP)


def _draw_sentence(stream: Iterator[int], columns: int) -> str:
    """Words of three to eight characters, one blank between them, until the line is full."""
    text = ""
    while columns - len(text) >= _SHORTEST_WORD:
        length = _SHORTEST_WORD + next(stream) % (_LONGEST_WORD - _SHORTEST_WORD + 1)
        length = min(length, columns - len(text))
        text += "".join(ALPHABET[next(stream) % len(ALPHABET)] for _ in range(length)) + " "
    return text.strip() or ALPHABET[next(stream) % len(ALPHABET)]


@cache
def _read_font() -> dict[str, NDArray[np.bool_]]:
    """The dots of each character, True for ink."""
    lines = Path(__file__).with_name("glyphs.txt").read_text(encoding="ascii").splitlines()
    return {character: np.array([list(row) for row in rows]) == "#" for character, *rows in map(str.split, lines)}
