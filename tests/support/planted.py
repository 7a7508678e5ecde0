"""A small network in each data format, computed here, with what `bench` keeps of a build: for planting errors in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from iree_gauntlet.measuring.numerics.arrays import Tensor
from iree_gauntlet.torch_models.agreement import TrialErrors, write_directions
from iree_gauntlet.torch_models.build_files import Array, Directions
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF, DataFormat, round_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Product = Callable[[int, NDArray[Any], NDArray[Any]], NDArray[np.float64]]

__all__ = ["Network", "tensor_of"]

_TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
_WIDTH, _SAMPLES, _RUNS, _STEP = 64, 128, 8, 2.0**-6
_LAYERS = 3
# A value of the first layer that is zero but for rounding: its sample and place.
_NEAR_ZERO = (3, 17)


def tensor_of(values: NDArray[np.float64], form: DataFormat) -> Tensor:
    held = values.astype(_TYPES[form.element_type])
    return Tensor(form.element_type, held.shape, held)


@dataclass(frozen=True)
class Network:
    """y = W3 relu(W2 relu(W1 x)), 64 wide, for 128 samples; in training the gradients of its weights by mean of y²."""

    form: DataFormat
    training: bool = False

    @property
    def weights(self) -> list[NDArray[np.float64]]:
        random = np.random.default_rng(5)
        made = [random.standard_normal((_WIDTH, _WIDTH)) * np.sqrt(2 / _WIDTH) for _ in range(_LAYERS)]
        return [round_weights(weight, self.form).astype(np.float64) for weight in made]

    @property
    def inputs(self) -> NDArray[np.float64]:
        values = np.random.default_rng(6).standard_normal((_SAMPLES, _WIDTH))
        sample, place = _NEAR_ZERO
        weight = self.weights[0][:, place]
        values[sample] -= weight * (values[sample] @ weight) / (weight @ weight)
        return self.rounded(values)

    @property
    def contractions(self) -> int:
        """Their number: the layers, and in training each weight's gradient and all inputs' but the first's."""
        return 3 * _LAYERS - 1 if self.training else _LAYERS

    def rounded(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """In the type that holds the format."""
        return values.astype(_TYPES[self.form.element_type]).astype(np.float64)

    def run(self, product: Product, weights: list[NDArray[np.float64]], *, flip: bool = False) -> list[Any]:
        """The outputs."""
        seen, sides = [self.inputs], []
        for layer, weight in enumerate(weights):
            values = product(layer, seen[-1], weight)
            sides.append(values > 0)
            seen.append(np.maximum(values, 0) if layer < _LAYERS - 1 else values)
        if not self.training:
            return [seen[-1]]
        sides[0][_NEAR_ZERO] = not flip
        # Of the mean of y², so that nothing is too small for f16.
        gradient, found, number = seen[-1], list[Any](), _LAYERS
        for layer in reversed(range(_LAYERS)):
            found.append(product(number, seen[layer].T, gradient))
            if layer:
                gradient = product(number + 1, gradient, weights[layer].T) * sides[layer - 1]
            number += 2
        return [np.mean(seen[-1] ** 2), *reversed(found)]

    def reference(self) -> list[NDArray[np.float64]]:
        return self.run(lambda _, one, other: self.rounded(one @ other), self.weights)

    def compiled(
        self, seed: int, layer: int = -1, share: float = 1.0, *, contraction: int = -1, flip: bool = False
    ) -> list[NDArray[np.float64]]:
        """As a compiler may have it that splits each sum in two, which it keeps in the format; with a planted error.

        `share`: of what they should be; they are held in the format's type. `contraction`: whose result is wrong by the
        share, before it is rounded. `flip`: as of `run`.
        """
        weights = self.weights
        if layer >= 0:
            weights[layer] = self.rounded(weights[layer] * np.float32(share))
        random = np.random.default_rng(seed)

        def product(number: int, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.float64]:
            left, right = one.astype(np.float32), other.astype(np.float32)
            halves = np.zeros((2, len(left), right.shape[1]), np.float32)
            for turn, place in enumerate(random.permutation(len(right))):
                halves[turn % 2] += left[:, place, np.newaxis] * right[place]
            return self.rounded(np.sum(self.rounded(halves), axis=0) * (share if number == contraction else 1.0))

        return self.run(product, weights, flip=flip)

    def tried(self, folder: Path) -> tuple[list[Array], Directions]:
        """The outputs with their errors, and the directions of the contractions, as the builder leaves them."""
        arrays, directions, content = _try_once(self)
        (folder / directions.file).write_bytes(content)
        return arrays, directions

    def try_errors(self, folder: Path) -> tuple[list[Array], Directions]:
        """Computes what `tried` hands out."""
        own, f32 = UNIT_ROUNDOFF[self.form.element_type], UNIT_ROUNDOFF["f32"]
        expected = self.reference()

        def error(outputs: list[Any]) -> NDArray[np.float64]:
            return np.concatenate([np.ravel(one - other) for one, other in zip(outputs, expected, strict=True)])

        astray: dict[str, list[NDArray[np.float64]]] = {"rounding": [], "sums": [], "products": []}
        for kind, runs in astray.items():
            for seed in range(_RUNS):
                random = np.random.default_rng(seed)

                def product(
                    _: int, one: NDArray[Any], other: NDArray[Any], kind: str = kind, random: Any = random
                ) -> NDArray[np.float64]:
                    exact = one @ other
                    if kind == "rounding":
                        return self.rounded(exact * (1 + own * random.uniform(-1, 1, exact.shape)))
                    units = np.sqrt(len(other) / 2 if kind == "sums" else 2)
                    scale = 0.41 * f32 * units * np.sqrt(np.mean(exact**2))
                    return self.rounded(exact + scale * random.standard_normal(exact.shape))

                runs.append(error(self.run(product, self.weights)))
        flips = [error(self.run(lambda _, a, b: self.rounded(a @ b), self.weights, flip=True))] * self.training
        sizes = np.cumsum([np.size(values) for values in expected])[:-1]
        plain = error(self.run(lambda _, one, other: one @ other, self.weights))

        def larger(at: int) -> Product:
            return lambda number, one, other: one @ other * (1 + _STEP * (number == at))

        count = self.contractions
        slopes = [(error(self.run(larger(at), self.weights)) - plain) / _STEP for at in range(count)]
        kinds = {**astray, "flips": flips}
        worst = [
            {
                kind: (max(float(np.sqrt(np.mean(part**2))) for part in parts), float(np.max(np.abs(parts))))
                for kind, parts in ((kind, [np.split(run, sizes)[at] for run in runs]) for kind, runs in kinds.items())
                if parts
            }
            for at in range(len(expected))
        ]
        found = TrialErrors(
            places=[np.arange(np.size(values)) for values in expected],
            slopes=slopes,
            errors=astray,
            flips=flips,
            scales=np.repeat(
                [np.hypot(errors["rounding"][0], errors["sums"][0]) for errors in worst],
                [np.size(values) for values in expected],
            ),
            names=[f"contraction {at + 1} of {count} (mm)" for at in range(count)],
            contractions=count,
        )
        made = write_directions(found, folder / "directions.npz")
        assert made is not None
        arrays = [
            Array(f"{index}.npy", self.form.element_type, np.shape(values), errors)
            for index, (values, errors) in enumerate(zip(expected, worst, strict=True))
        ]
        return arrays, made


@cache
def _try_once(network: Network) -> tuple[list[Array], Directions, bytes]:
    """What `try_errors` returns, and the file that it writes: the same for all networks of a format."""
    with TemporaryDirectory() as folder:
        arrays, directions = network.try_errors(Path(folder))
        return arrays, directions, (Path(folder) / directions.file).read_bytes()
