"""Generate `random://` sources: arrays from a seed, byte for byte the same on every machine.

    random://uniform/1x3x48x192xf32?seed=7&low=-1&high=1
    random://normal/1x64xf32?seed=1&mean=0&stddev=0.01
    random://integers/1x64xi64?seed=3&low=0&high=30522      (high is exclusive)
    random://text/1x3x320x320xf32?seed=3&scale=4&lines=4
    random://zeros/1x2x128x2xf32   random://ones/4xi1
    random://formula/64x64xf16?seed=1&skip=4096&coeff=2&offset=-1

The path is a shape and an element type in IREE's syntax; `f32` alone is a scalar.

NumPy guarantees the raw 64-bit stream of a bit generator, but not the results of its distribution methods, and the C
library's log and cos differ between machines. So every value is computed from PCG64's raw stream, only with integer
operations and the exactly rounded IEEE operations + - *. The generator's seed is the SHA-256 of the URL in canonical
form (all parameters, with defaults). So different spellings of a URL give the same stream, and every change of its
meaning gives another stream.

* `uniform`: low + (high - low) * u in binary64, where u in [0, 1) is exactly the top 53 bits of a word.
* `normal`: mean + stddev * z, where z is the scaled sum of twelve 32-bit uniform integers (Irwin-Hall, n = 12). The
  variance of z is 1 up to 2^-64, its tails end at six standard deviations, and its excess kurtosis is -0.1. That is
  near enough to a normal distribution for inputs and weights, and the same everywhere.
* `integers`: low plus the high half of word * (high - low) in 128 bits; the bias is below 2^-64 per value.
* `text`: a picture of seeded words in NCHW order, dark (-0.9) on light (0.9), the same in all channels.
  Text detectors and recognisers return nearly nothing for noise, so noise would test nothing.
* `formula`, for operator suites: bit for bit `(coeff * numpy.random.rand(*shape) + offset).astype(dtype)`. The random
  numbers come from NumPy's legacy generator (MT19937, whose stream is frozen), seeded with `seed`; its first `skip`
  numbers are dropped.

Values are rounded once to f32 or f64. Smaller floats are rounded from f32, or in `formula` from f64.

`glyphs.txt` has the font: each line has a character, then its seven rows of five dots, the top row first, `#` for ink.
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

_GAP_DOTS = 1
_MIN_WORD_CHARS = 3
_MAX_WORD_CHARS = 8
_SCHEME = "random"
_EXAMPLE_HINT = f"Write {_SCHEME}://uniform/1x64xf32?seed=1."

_MAX_BYTES = 1 << 32
_SHAPE = re.compile(r"(?:([0-9]{1,12}(?:x[0-9]{1,12})*)x)?([a-z][A-Za-z0-9]*)")
_ELEMENT_TYPES = (
    *("i1", "i8", "i16", "i32", "i64", "si8", "si16", "si32", "si64", "ui8", "ui16", "ui32", "ui64"),
    *("f16", "bf16", "f32", "f64", "f8E4M3FN", "f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ"),
)
_FLOAT_TYPES = frozenset(name for name in _ELEMENT_TYPES if name.startswith(("f", "bf")))

# The defaults of each distribution's parameters; None means that the default depends on the element type.
_DEFAULTS: dict[str, dict[str, int | float | None]] = {
    "uniform": {"seed": 0, "low": 0.0, "high": 1.0},
    "normal": {"seed": 0, "mean": 0.0, "stddev": 1.0},
    "integers": {"seed": 0, "low": None, "high": None},
    "text": {"seed": 0, "scale": 4, "lines": 1},
    "zeros": {},
    "ones": {},
    "formula": {"seed": 0, "skip": 0, "coeff": 1.0, "offset": 0.0},
}
_FLOAT_DISTRIBUTIONS = frozenset({"uniform", "normal", "text"})

# The largest seed of NumPy's legacy generator, and the number of values drawn at a time.
_MAX_FORMULA_SEED = (1 << 32) - 1
_MAX_BATCH = 1 << 20

_NCHW_RANK = 4


@dataclass(frozen=True, slots=True)
class SyntheticContent:
    """The content of a `random://` URL."""

    url: str
    distribution: str
    shape: tuple[int, ...]
    element_type: str
    parameters: Mapping[str, int | float]

    @property
    def value(self) -> str:
        """The shape and element type in the syntax of IREE's `--input=`, such as `1x64xi64`."""
        return "x".join((*map(str, self.shape), self.element_type))

    @property
    def suffix(self) -> str:
        """`.npy` if NumPy supports the element type, otherwise `.bin` (raw bytes)."""
        return ".bin" if self.element_type in ML_DTYPES else ".npy"

    @property
    def canonical(self) -> str:
        """The canonical form, the same for all URLs with the same meaning; its SHA-256 seeds the stream."""
        parameters = "&".join(f"{name}={value!r}" for name, value in self.parameters.items())
        return f"{_SCHEME}://{self.distribution}/{self.value}?{parameters}"

    def generate(self) -> NDArray[Any]:
        """Generate the array: `shape` elements of the element type, in C order, little-endian."""
        dtype = _find_dtype(self.element_type)
        if self.distribution in ("zeros", "ones"):
            return np.full(self.shape, self.distribution == "ones", dtype=np.float32).astype(dtype)
        parameters: dict[str, Any] = dict(self.parameters)
        if self.distribution == "formula":
            return self._compute_formula(dtype, **parameters)
        # The seed parameter is already in the stream's seed, which is made of all parameters.
        del parameters["seed"]
        if self.distribution == "integers":
            return self._make_integers(dtype, **parameters)
        if self.distribution == "text":
            real = self._draw_text(**parameters)
        else:
            real = (
                self._make_uniform(**parameters) if self.distribution == "uniform" else self._make_normal(**parameters)
            )
        if dtype == np.float64:
            return real
        with np.errstate(over="ignore"):  # a value too large for a small type becomes infinity or NaN
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
        # In two's complement, the low bytes of the sum modulo 2^64 are the value, signed or unsigned.
        narrow = values.astype(f"<u{dtype.itemsize}")
        return (narrow != 0 if dtype == np.bool_ else narrow.view(dtype)).reshape(self.shape)

    def _compute_formula(self, dtype: np.dtype[Any], seed: int, skip: int, coeff: float, offset: float) -> NDArray[Any]:
        generator = np.random.RandomState(seed)
        for count in _split_into_batches(skip):
            generator.random_sample(count)
        values = np.empty(math.prod(self.shape), dtype)
        position = 0
        for count in _split_into_batches(values.size):
            batch = coeff * generator.random_sample(count) + offset
            with np.errstate(over="ignore", invalid="ignore"):  # the definition includes NumPy's overflows
                values[position : position + count] = batch.astype(dtype)
            position += count
        return values.reshape(self.shape)

    def _draw_text(self, scale: int, lines: int) -> NDArray[np.float64]:
        batch, channels, height, width = self.shape
        # `draw_words_picture` draws at most this many words for each line.
        words_per_line = 2 * max(1, _count_columns(width, scale))
        words = iter(int(word) for word in self._draw_words(batch * lines * words_per_line))
        pictures = [draw_words_picture(words, height, width, scale, lines) for _ in range(batch)]
        ink = np.array(pictures, dtype=np.bool_).reshape(batch, 1, height, width)
        return np.repeat(np.where(ink, -0.9, 0.9), channels, axis=1)


def _split_into_batches(count: int) -> Iterator[int]:
    """Yield counts of at most one batch that add up to `count`."""
    while count > 0:
        yield min(count, _MAX_BATCH)
        count -= _MAX_BATCH


def _compute_high_half(words: NDArray[np.uint64], factor: int) -> NDArray[np.uint64]:
    """Return the high 64 bits of words * factor, exactly; factor < 2^64."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    low_factor, high_factor = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    low, high = words & mask, words >> shift
    middle = high * low_factor + ((low * low_factor) >> shift)
    carry = low * high_factor + (middle & mask)
    result: NDArray[np.uint64] = high * high_factor + (middle >> shift) + (carry >> shift)
    return result


def _find_dtype(element_type: str) -> np.dtype[Any]:
    if element_type in ML_DTYPES:
        # The import registers the types with NumPy. It is slow, and most sources do not need these types.
        import ml_dtypes  # noqa: PLC0415

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, ML_DTYPES[element_type]))
        return dtype
    if element_type == "i1":
        return np.dtype(np.bool_)
    letters = element_type.rstrip("0123456789")
    return np.dtype(f"<{ {'f': 'f', 'ui': 'u'}.get(letters, 'i') }{int(element_type[len(letters) :]) // 8}")


class _SourceError(Exception):
    """An error in a source, with a hint."""


def parse_seeded(url: str) -> SyntheticContent:
    """Parse a `random://` URL; raise an ArtifactError that names the mistake and the alternatives."""
    try:
        return _parse_url(url)
    except _SourceError as error:
        message, hint = error.args
        raise ArtifactError(url, f"{url}: {message}", hint) from error


def _parse_url(url: str) -> SyntheticContent:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _SourceError(f"{error}", _EXAMPLE_HINT) from error
    if parts.scheme != _SCHEME:
        raise _SourceError(f"not a {_SCHEME}:// source", _EXAMPLE_HINT)
    distribution = parts.netloc
    if distribution not in _DEFAULTS:
        suggestion = _suggest_nearest(distribution, _DEFAULTS)
        hint = f"Distributions: {', '.join(_DEFAULTS)}."
        raise _SourceError(f"unknown distribution {distribution!r}{suggestion}", hint)
    if parts.fragment:
        raise _SourceError(f"#{parts.fragment} has no meaning in a random:// URL", "Parameters follow a ?.")
    shape, element_type = _parse_value(parts.path.removeprefix("/"))
    if distribution in _FLOAT_DISTRIBUTIONS and element_type not in _FLOAT_TYPES:
        hint = f"Use random://integers/..., or one of {', '.join(sorted(_FLOAT_TYPES))}."
        raise _SourceError(f"{distribution} generates floating-point values, not {element_type}", hint)
    if distribution == "integers" and element_type in _FLOAT_TYPES:
        hint = "Use random://uniform/..., or an integer type."
        raise _SourceError(f"integers does not generate {element_type} values", hint)
    parameters = _parse_parameters(distribution, element_type, parts.query)
    if distribution == "text":
        _check_text(shape, **{name: int(value) for name, value in parameters.items() if name != "seed"})
    return SyntheticContent(url, distribution, shape, element_type, dict(sorted(parameters.items())))


def _parse_value(text: str) -> tuple[tuple[int, ...], str]:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise _SourceError(f"{text!r} is not a shape with an element type", "Write 1x64xf32, or f32 for a scalar.")
    dims, element_type = match.groups()
    if element_type not in _ELEMENT_TYPES:
        suggestion = _suggest_nearest(element_type, _ELEMENT_TYPES)
        hint = f"Element types: {', '.join(_ELEMENT_TYPES)}."
        raise _SourceError(f"unknown element type {element_type!r}{suggestion}", hint)
    shape = tuple(int(size) for size in dims.split("x")) if dims else ()
    size = math.prod(shape) * max(1, int(re.findall(r"[0-9]+", element_type)[0]) // 8)
    if size > _MAX_BYTES:
        hint = "Check the shape."
        raise _SourceError(f"{size} bytes exceed the maximum of {_MAX_BYTES} for generated data", hint)
    return shape, element_type


def _parse_parameters(distribution: str, element_type: str, query: str) -> dict[str, int | float]:
    defaults = _DEFAULTS[distribution]
    parameters: dict[str, int | float] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise _SourceError(f"{error}", "Write parameters as ?seed=1&low=0.") from error
    for name, text in pairs:
        if name not in defaults:
            suggestion = _suggest_nearest(name, defaults)
            hint = f"Parameters of {distribution}: {', '.join(defaults) or 'none'}."
            raise _SourceError(f"{distribution} has no parameter {name!r}{suggestion}", hint)
        if name in parameters:
            raise _SourceError(f"parameter {name!r} is given twice", "Keep one of them.")
        parameters[name] = _parse_number(name, text, integer=not isinstance(defaults[name], float))
    if distribution == "integers":
        minimum, maximum = 0, 1
        if element_type != "i1":
            info = np.iinfo(_find_dtype(element_type))
            minimum, maximum = int(info.min), int(info.max)
        parameters = {"seed": 0, "low": minimum, "high": maximum + 1, **parameters}
        low, high = parameters["low"], parameters["high"]
        if not minimum <= low < high <= maximum + 1:
            hint = f"Expected low < high (exclusive), between {minimum} and {maximum + 1}."
            raise _SourceError(f"{element_type} integers from {low} below {high} do not exist", hint)
        return parameters
    parameters = {name: parameters.get(name, default) for name, default in defaults.items() if default is not None}
    if distribution == "formula" and (seed := parameters["seed"]) > _MAX_FORMULA_SEED:
        raise _SourceError(f"seed={seed} is too large", f"NumPy accepts seeds up to {_MAX_FORMULA_SEED}.")
    low, high = parameters.get("low", 0.0), parameters.get("high", 1.0)
    if distribution == "uniform" and not 0 <= high - low < math.inf:
        raise _SourceError(f"no values lie between low={low} and high={high}", "Expected low <= high.")
    return parameters


def _parse_number(name: str, text: str, *, integer: bool) -> int | float:
    pattern = r"[+-]?[0-9]{1,40}" if integer else r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?"
    if re.fullmatch(pattern, text.strip()) is None:
        description = "a whole number" if integer else "a number"
        raise _SourceError(f"{name}={text!r} is not {description}", f"Write {name}=3, for example.")
    number = int(text) if integer else float(text)
    if name in ("seed", "skip", "stddev") and number < 0:
        raise _SourceError(f"{name}={text} is negative", "Expected 0 or more.")
    if not integer and not math.isfinite(number):
        raise _SourceError(f"{name}={text} exceeds binary64", "Write a smaller number.")
    if name in ("coeff", "offset"):
        # The sign of zero affects the computation.
        return number
    # -0.0 and 0.0 have the same meaning and must result in the same stream.
    return number or abs(number)


def _check_text(shape: tuple[int, ...], scale: int, lines: int) -> None:
    if len(shape) != _NCHW_RANK:
        raise _SourceError(f"a picture of text has 4 dimensions, not {len(shape)}", "Write 1x3x48x320.")
    if scale < 1 or lines < 1:
        raise _SourceError("scale and lines must be at least 1", "Write scale=4&lines=1.")
    _, _, height, width = shape
    min_height, min_width = lines * (_GLYPH_HEIGHT + _GAP_DOTS) * scale, (_GLYPH_WIDTH + 2 * _GAP_DOTS) * scale
    if height < min_height or width < min_width:
        raise _SourceError(
            f"{lines} lines at scale {scale} need at least {min_height} rows and "
            f"{min_width} columns, the picture has {height} and {width}",
            "Make the picture larger, or scale or lines smaller.",
        )


def _suggest_nearest(word: str, candidates: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word, list(candidates), 1)
    return f" (did you mean {matches[0]}?)" if matches else ""


def _make_npy_header(array: NDArray[Any]) -> bytes:
    """Return the header of NPY 1.0; NumPy's own header may differ between NumPy versions."""
    description = f"{{'descr': {array.dtype.str!r}, 'fortran_order': False, 'shape': {array.shape!r}, }}"
    prefix = b"\x93NUMPY\x01\x00"
    header_size = len(prefix) + 2 + len(description) + 1
    text = description + " " * (-header_size % 64) + "\n"
    return prefix + len(text).to_bytes(2, "little") + text.encode("latin-1")


def make_seeded_content(url: str) -> bytes:
    """Return the content of a `random://` URL's file: .npy if NumPy supports the type, otherwise raw bytes."""
    spec = parse_seeded(url)
    array = spec.generate()
    return (_make_npy_header(array) if spec.suffix == ".npy" else b"") + array.tobytes()


def write_seeded(url: str, path: Path) -> None:
    """Write the file of a `random://` URL; the file appears complete or not at all."""
    content = make_seeded_content(url)
    try:
        write_atomic(path, content)
    except OSError as error:
        raise ArtifactError(
            url, f"{path}: cannot be written: {error.strerror or error}", "Check the disk space and the permissions."
        ) from error


def draw_words_picture(stream: Iterator[int], height: int, width: int, scale: int, lines: int) -> NDArray[np.bool_]:
    """Draw lines of random words from 64-bit numbers: height x width pixels, True for ink.

    Each line is centred in its part of the height; a dot of the font has scale x scale pixels.
    """
    picture = np.zeros((height, width), dtype=np.bool_)
    for line in range(lines):
        text = _draw_sentence(stream, _count_columns(width, scale))
        # A blank has the width of a glyph, without ink.
        dots = np.zeros((_GLYPH_HEIGHT, len(text) * (_GLYPH_WIDTH + _GAP_DOTS) - _GAP_DOTS), dtype=np.bool_)
        for position, character in enumerate(text):
            if character in ALPHABET:
                left = position * (_GLYPH_WIDTH + _GAP_DOTS)
                dots[:, left : left + _GLYPH_WIDTH] = _read_font()[character]
        ink = dots.repeat(scale, axis=0).repeat(scale, axis=1)
        top = (2 * line + 1) * height // (2 * lines) - ink.shape[0] // 2
        left = (width - ink.shape[1]) // 2
        picture[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return picture


def _count_columns(width: int, scale: int) -> int:
    """Return the number of characters that fit into a line with a margin of one dot at both ends."""
    return (width // scale - _GAP_DOTS) // (_GLYPH_WIDTH + _GAP_DOTS)


def _draw_sentence(stream: Iterator[int], columns: int) -> str:
    """Draw words of three to eight characters, separated by a blank, until the line is full."""
    text = ""
    while columns - len(text) >= _MIN_WORD_CHARS:
        length = _MIN_WORD_CHARS + next(stream) % (_MAX_WORD_CHARS - _MIN_WORD_CHARS + 1)
        length = min(length, columns - len(text))
        text += "".join(ALPHABET[next(stream) % len(ALPHABET)] for _ in range(length)) + " "
    return text.strip() or ALPHABET[next(stream) % len(ALPHABET)]


@cache
def _read_font() -> dict[str, NDArray[np.bool_]]:
    """Read the dots of each character, True for ink."""
    lines = Path(__file__).with_name("glyphs.txt").read_text(encoding="ascii").splitlines()
    return {character: np.array([list(row) for row in rows]) == "#" for character, *rows in map(str.split, lines)}
