"""A small network in each data format, computed here, with what `bench` keeps of a build: for planting errors in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from iree_gauntlet.bench.build_folder import Array, Directions
from iree_gauntlet.bench.formats import UNIT_ROUNDOFF, DataFormat, round_weights
from iree_gauntlet.measuring.arrays import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Network", "tensor_of"]

_TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
_WIDTH, _SAMPLES, _RUNS, _STEP = 64, 128, 8, 2.0**-6
_LAYERS = 3


def tensor_of(values: NDArray[np.float64], form: DataFormat) -> Tensor:
    held = values.astype(_TYPES[form.element_type])
    return Tensor(form.element_type, held.shape, held)


@dataclass(frozen=True)
class Network:
    """y = W3 relu(W2 relu(W1 x)), 64 wide, for 128 samples.

    Attributes:
        form: its data format.
    """

    form: DataFormat

    @property
    def weights(self) -> list[NDArray[np.float64]]:
        random = np.random.default_rng(5)
        made = [random.standard_normal((_WIDTH, _WIDTH)) * np.sqrt(2 / _WIDTH) for _ in range(_LAYERS)]
        return [round_weights(weight, self.form).astype(np.float64) for weight in made]

    def rounded(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """In the type that holds the format."""
        return values.astype(_TYPES[self.form.element_type]).astype(np.float64)

    def run(
        self, result: Callable[[int, NDArray[np.float64]], NDArray[np.float64]], weights: list[NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """The outputs; `result` makes the result of a layer out of its exact product."""
        values = self.rounded(np.random.default_rng(6).standard_normal((_SAMPLES, _WIDTH)))
        for layer, weight in enumerate(weights):
            values = result(layer, values @ weight)
            values = np.maximum(values, 0) if layer < _LAYERS - 1 else values
        return values

    def reference(self) -> NDArray[np.float64]:
        return self.run(lambda _, product: self.rounded(product), self.weights)

    def compiled(self, seed: int, layer: int = -1, share: float = 1.0) -> NDArray[np.float64]:
        """As a compiler may have it that splits each sum in two, which it keeps in the format; with a planted error.

        Args:
            seed: of the order in which products are summed, in f32.
            layer: whose weights are wrong.
            share: of what they should be; they are held in the format's type.
        """
        weights = self.weights
        if layer >= 0:
            weights[layer] = self.rounded(weights[layer] * np.float32(share))
        values = self.rounded(np.random.default_rng(6).standard_normal((_SAMPLES, _WIDTH))).astype(np.float32)
        order = np.random.default_rng(seed).permutation(_WIDTH)
        for number, weight in enumerate(weights):
            narrow = weight.astype(np.float32)
            halves = np.zeros((2, _SAMPLES, _WIDTH), np.float32)
            for turn, place in enumerate(order):
                halves[turn % 2] += values[:, place, np.newaxis] * narrow[place]
            total = self.rounded(np.sum(self.rounded(halves), axis=0)).astype(np.float32)
            values = np.maximum(total, 0) if number < _LAYERS - 1 else total
        return values.astype(np.float64)

    def tried(self, folder: Path) -> tuple[Array, Directions]:
        """The output with its errors, and the directions of the layers, as the builder leaves them."""
        own, f32 = UNIT_ROUNDOFF[self.form.element_type], UNIT_ROUNDOFF["f32"]
        expected = self.reference()
        astray: dict[str, list[NDArray[np.float64]]] = {"rounding": [], "sums": [], "products": []}
        for kind, runs in astray.items():
            for seed in range(_RUNS):
                random = np.random.default_rng(seed)

                def result(
                    _: int, product: NDArray[np.float64], kind: str = kind, random: np.random.Generator = random
                ) -> NDArray[np.float64]:
                    if kind == "rounding":
                        return self.rounded(product * (1 + own * random.uniform(-1, 1, product.shape)))
                    scale = 0.41 * f32 * np.sqrt(_WIDTH / 2 if kind == "sums" else 2) * np.sqrt(np.mean(product**2))
                    return self.rounded(product + scale * random.standard_normal(product.shape))

                runs.append((self.run(result, self.weights) - expected).ravel())
        plain = self.run(lambda _, product: product, self.weights)
        slopes = []
        for layer in range(_LAYERS):

            def larger(at: int, product: NDArray[np.float64], layer: int = layer) -> NDArray[np.float64]:
                return product * (1 + _STEP * (at == layer))

            slopes.append((self.run(larger, self.weights) - plain).ravel() / _STEP)
        filters = np.array([slope / np.dot(slope, slope) for slope in slopes])
        spread = {kind: np.sqrt(np.mean((np.array(runs) @ filters.T) ** 2, axis=0)) for kind, runs in astray.items()}
        places = np.arange(expected.size)
        np.savez(
            folder / "directions.npz",
            outputs=np.zeros_like(places),
            places=places,
            filters=filters,
            rounding=spread["rounding"],
            sums=spread["sums"],
            products=spread["products"],
        )
        errors = {
            kind: (max(float(np.sqrt(np.mean(run**2))) for run in runs), max(float(np.abs(run).max()) for run in runs))
            for kind, runs in astray.items()
        }
        names = tuple(f"contraction {layer + 1} of {_LAYERS} (mm)" for layer in range(_LAYERS))
        array = Array("output.npy", self.form.element_type, expected.shape, errors)
        return array, Directions("directions.npz", names)
