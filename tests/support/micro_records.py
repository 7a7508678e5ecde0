"""Records of micro-benchmarks that never ran: as the journal has them, made up by a rule or by hypothesis."""

from __future__ import annotations

import math
import random
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["HEADER", "RECIPES", "grid", "point", "ratio", "record", "records", "squares", "variant"]

_Value = TypeVar("_Value")
# Share of the fields that a record may lack.
_PRESENT = 0.7
HEADER: dict[str, Any] = {
    "run": "20261121-220000-micro",
    "started": "2026-11-21T22:00:00.000Z",
    "config": "specs/recipes/dashboard.yml",
    "toolchain": {
        "compiler": "3.13.0rc20261016",
        "compiler_commit": "89ece87b89852100c0a4ac3d515e14842d090967",
        "runtime": "3.13.0rc20261016",
        "runtime_commit": "89ece87b89852100c0a4ac3d515e14842d090967",
        "identity": "cc3f70c4",
        "source": "installed: /home/me/venv",
    },
    "machine": {
        "host": "box",
        "cpu": "AMD EPYC 7763",
        "cores": 2,
        "memory_bytes": 25_274_793_984,
        "os": "Linux 6.18.44 x86_64",
        "python": "3.11.7",
    },
    "versions": {"torch": "2.13.0+cpu", "torchao": "0.18.0"},
}
RECIPES = (
    ("int8wo", "quantization"),
    ("int8dq", "quantization"),
    ("float8wo", "quantization"),
    ("int4wo-32", "quantization"),
    ("baseline+block", "sparsity"),
    ("demote-bf16", "compiler"),
)


def point(m: int, k: int, n: int, **changes: Any) -> dict[str, Any]:
    """A point of a linear layer on the CPU."""
    found = {
        "name": "small_linear",
        "model_type": "linear",
        "shape": "pow2_0",
        "m": m,
        "k": k,
        "n": n,
        "label": f"{m}-{k}-{n}",
        "dtype": "f32",
        "device": "local-task",
        "flops": 2 * m * k * n,
        "torch_compile_mode": "default",
    }
    return found | changes


def ratio(value: float, *, spread: float = 0.05) -> dict[str, Any]:
    """A ratio with an interval, and the word that fits it."""
    low, high = value / (1 + spread), value * (1 + spread)
    if low > 1.01:
        word = "faster"
    elif high < 0.99:
        word = "slower"
    else:
        word = "same" if low > 0.97 and high < 1.03 else "inconclusive"
    return {"ratio": value, "low": low, "high": high, "word": word}


def variant(label: str, ms: float, speedup: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    """A variant that was measured; torch takes 1.5 times as long, torch.compile 0.9 times."""
    quantization, _, sparsity = label.partition("+")
    torch_speedup = None if speedup is None else ratio(1.1)
    found = {
        "label": label,
        "quantization": quantization,
        "sparsity": sparsity or None,
        "kind": "sparsity" if sparsity else "quantization",
        "status": "measured",
        "reason": "",
        "iree": {"ms": ms, "speedup": speedup},
        "torch_eager": {
            "ms": 1.5 * ms,
            "first_call_ms": 8 * ms,
            "speedup": torch_speedup,
            "beside_iree": ratio(1.5),
        },
        "torch_compile": {
            "ms": 0.9 * ms,
            "first_call_ms": 4000.5,
            "speedup": torch_speedup,
            "beside_iree": ratio(0.9),
        },
        "error": {"max": 0.01, "relative": 0.005, "sqnr_db": 46.02}
        if speedup
        else {
            "max": 0.0,
            "relative": 0.0,
            "sqnr_db": "inf",
        },
        "module_bytes": 14_236,
        "parameter_bytes": 1_048_576 if speedup else 4_194_304,
        "peak_rss_bytes": 61_000_000,
        "device_peak_bytes": 9_000_000,
        "compile_s": 1.25,
        "roofline": {"share": 0.41, "bound": "compute"},
        "shows": ["parameters i8: 1.0 MB"] if speedup else [],
        "notes": [],
        "first_call_ms": 3 * ms,
    }
    return found | changes


def record(where: dict[str, Any], variants: Iterable[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """The record of a point."""
    return {
        "point": where,
        "variants": list(variants),
        "blocks": 6,
        "replaced": 0,
        "seconds": 40.1,
        "notes": [],
    } | changes


def made_up(where: dict[str, Any], recipes: Sequence[tuple[str, str]] = RECIPES) -> dict[str, Any]:
    """A record whose speed-ups depend on recipe and shape by some rule, from 0.2 to 6, with each of the words."""
    ms = where["flops"] / 5e7
    found = [variant("baseline", ms, None)]
    for number, (label, kind) in enumerate(recipes):
        chance = zlib.crc32(f"{label} {where['label']}".encode()) / 2**32
        value = 2.0 ** (2.4 * math.sin(0.9 * number + where["m"] / 2500 + where["k"] / 7000) + 0.6 * (chance - 0.5))
        value = value if chance > 0.12 else 1 + 0.01 * (chance - 0.06)
        found.append(
            variant(label, ms / value, ratio(value, spread=0.005 if chance < 0.06 else 0.04 + 0.2 * chance), kind=kind)
        )
    return record(where, found)


def squares(powers: Iterable[int] = range(10, 16), **changes: Any) -> list[dict[str, Any]]:
    """The points of `pow2`."""
    return [made_up(point(2**p, 2**p, 2**p, shape=f"pow2_{index}", **changes)) for index, p in enumerate(powers)]


def grid(
    powers: Sequence[int] = range(10, 14), recipes: Sequence[tuple[str, str]] = RECIPES, **changes: Any
) -> list[dict[str, Any]]:
    """The points of `small_sweep`: powers of two with m ≤ k ≤ n."""
    sizes = [(2**a, 2**b, 2**c) for a in powers for b in powers for c in powers if a <= b <= c]
    points = [point(*size, shape=f"small_sweep_{index}", **changes) for index, size in enumerate(sizes)]
    return [made_up(where, recipes) for where in points]


_TEXTS = st.lists(st.text(max_size=12), min_size=1, max_size=4)
_FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64)
_NUMBERS = st.lists(_FINITE | st.sampled_from(["nan", "inf", "-inf"]), min_size=1, max_size=4)
_POSITIVES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4)
_SIZES = st.lists(st.integers(0, 2**50), min_size=1, max_size=4)


class _Fields:
    """Fields of records, out of a few values of each kind that hypothesis has drawn.

    To draw each field by itself would take a hundred times as long.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        # It draws lots for tests.
        self._lots = random.Random(draw(st.integers(0, 2**32)))
        self._texts, self._numbers = draw(_TEXTS), draw(_NUMBERS)
        self._positives, self._sizes = draw(_POSITIVES), draw(_SIZES)

    def one_of(self, values: Sequence[_Value]) -> _Value:
        return self._lots.choice(values)

    def maybe(self, make: Callable[[], _Value]) -> _Value | None:
        return make() if self._lots.random() < _PRESENT else None

    def texts(self, most: int) -> list[str]:
        return [self.text() for _ in range(self._lots.randint(0, most))]

    def text(self) -> str:
        return self.one_of(self._texts)

    def number(self) -> float | str:
        return self.one_of(self._numbers)

    def positive(self) -> float:
        return self.one_of(self._positives)

    def size(self) -> int:
        return self.one_of(self._sizes)

    def ratio(self) -> dict[str, Any]:
        return {
            "ratio": self.positive(),
            "low": self.maybe(self.positive),
            "high": self.maybe(self.positive),
            "word": self.one_of(["faster", "slower", "same", "inconclusive"]),
        }

    def torch(self) -> dict[str, Any]:
        return {"ms": self.positive(), "speedup": self.maybe(self.ratio), "beside_iree": self.maybe(self.ratio)}

    def variant(self, label: str) -> dict[str, Any]:
        quantization, _, sparsity = label.partition("+")
        return {
            "label": label,
            "quantization": quantization,
            "sparsity": sparsity or None,
            "kind": dict(RECIPES).get(label, "quantization"),
            "status": self.one_of(["measured", "same module", "skipped", "failed", "error"]),
            "reason": self.text(),
            "iree": self.maybe(lambda: {"ms": self.positive(), "speedup": self.maybe(self.ratio)}),
            "torch_eager": self.maybe(self.torch),
            "torch_compile": self.maybe(self.torch),
            "error": self.maybe(lambda: {name: self.number() for name in ("max", "relative", "sqnr_db")}),
            "module_bytes": self.maybe(self.size),
            "parameter_bytes": self.maybe(self.size),
            "peak_rss_bytes": self.maybe(self.size),
            "device_peak_bytes": self.maybe(self.size),
            "compile_s": self.maybe(self.positive),
            "roofline": self.maybe(lambda: {"share": self.positive(), "bound": self.one_of(["compute", "memory"])}),
            "shows": self.texts(2),
            "notes": self.texts(2),
            "first_call_ms": self.maybe(self.positive),
        }


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Some points of two entries, with whatever a record may lack; each point once."""
    sizes = st.sampled_from([16, 64, 1024])
    places = draw(st.lists(st.tuples(st.sampled_from(["a", "b"]), sizes, sizes, sizes), unique=True, max_size=4))
    recipes = st.lists(st.sampled_from([label for label, _ in RECIPES]), unique=True, max_size=3)
    fields = _Fields(draw)
    return [
        record(
            point(m, k, n, name=name),
            [fields.variant(label) for label in ("baseline", *draw(recipes))],
            notes=fields.texts(1),
        )
        for name, m, k, n in places
    ]
