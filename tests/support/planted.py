"""A small network in each data format, for planted errors: computed with NumPy, with the build files of `bench`."""

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

__all__ = ["Network", "make_tensor"]

_DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
_WIDTH, _SAMPLES, _RUN_COUNT, _STEP = 64, 128, 8, 2.0**-6
_LAYER_COUNT = 3
# The sample and feature of a value of the first layer that is zero except for rounding.
_NEAR_ZERO = (3, 17)


def make_tensor(values: NDArray[np.float64], form: DataFormat) -> Tensor:
    converted_values = values.astype(_DTYPES[form.element_type])
    return Tensor(form.element_type, converted_values.shape, converted_values)


@dataclass(frozen=True)
class Network:
    """y = W3 relu(W2 relu(W1 x)), 64 wide, for 128 samples; in training the loss mean(y²) and its gradients."""

    data_format: DataFormat
    training: bool = False

    @property
    def weights(self) -> list[NDArray[np.float64]]:
        rng = np.random.default_rng(5)
        matrices = [rng.standard_normal((_WIDTH, _WIDTH)) * np.sqrt(2 / _WIDTH) for _ in range(_LAYER_COUNT)]
        return [round_weights(matrix, self.data_format).astype(np.float64) for matrix in matrices]

    @property
    def inputs(self) -> NDArray[np.float64]:
        values = np.random.default_rng(6).standard_normal((_SAMPLES, _WIDTH))
        sample, feature = _NEAR_ZERO
        weight = self.weights[0][:, feature]
        values[sample] -= weight * (values[sample] @ weight) / (weight @ weight)
        return self.cast(values)

    @property
    def contraction_count(self) -> int:
        """The number of contractions: the layers, and in training the gradients of weights and later layers' inputs."""
        return 3 * _LAYER_COUNT - 1 if self.training else _LAYER_COUNT

    def cast(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Round values to the type of the format."""
        return values.astype(_DTYPES[self.data_format.element_type]).astype(np.float64)

    def run(self, product: Product, weights: list[NDArray[np.float64]], *, flip: bool = False) -> list[Any]:
        """Compute the outputs; `product` computes a contraction, and gets its number."""
        activations, sign_masks = [self.inputs], []
        for layer, weight in enumerate(weights):
            values = product(layer, activations[-1], weight)
            sign_masks.append(values > 0)
            activations.append(np.maximum(values, 0) if layer < _LAYER_COUNT - 1 else values)
        if not self.training:
            return [activations[-1]]
        sign_masks[0][_NEAR_ZERO] = not flip
        # The loss is the mean of y², so that no gradient is too small for f16.
        gradient, gradients, number = activations[-1], list[Any](), _LAYER_COUNT
        for layer in reversed(range(_LAYER_COUNT)):
            gradients.append(product(number, activations[layer].T, gradient))
            if layer:
                gradient = product(number + 1, gradient, weights[layer].T) * sign_masks[layer - 1]
            number += 2
        return [np.mean(activations[-1] ** 2), *reversed(gradients)]

    def run_reference(self) -> list[NDArray[np.float64]]:
        return self.run(lambda _, left, right: self.cast(left @ right), self.weights)

    def run_compiled(
        self, seed: int, layer: int = -1, factor: float = 1.0, *, contraction: int = -1, flip: bool = False
    ) -> list[NDArray[np.float64]]:
        """Compute the outputs in the format, like a compiler that splits each sum in two; with a planted error.

        `factor`: multiplies the weights of `layer`, which are then rounded. `contraction`: the number of a contraction;
        its result is multiplied by the factor before rounding. `flip`: as for `run`.
        """
        weights = self.weights
        if layer >= 0:
            weights[layer] = self.cast(weights[layer] * np.float32(factor))
        rng = np.random.default_rng(seed)

        def product(number: int, left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
            left_f32, right_f32 = left.astype(np.float32), right.astype(np.float32)
            halves = np.zeros((2, len(left_f32), right_f32.shape[1]), np.float32)
            for position, index in enumerate(rng.permutation(len(right_f32))):
                halves[position % 2] += left_f32[:, index, np.newaxis] * right_f32[index]
            return self.cast(np.sum(self.cast(halves), axis=0) * (factor if number == contraction else 1.0))

        return self.run(product, weights, flip=flip)

    def write_errors(self, folder: Path) -> tuple[list[Array], Directions]:
        """Write the directions of the contractions; return the outputs with their errors, and the directions."""
        arrays, directions, content = _compute_errors_once(self)
        (folder / directions.file).write_bytes(content)
        return arrays, directions

    def compute_errors(self, folder: Path) -> tuple[list[Array], Directions]:
        """Compute the results of `write_errors`."""
        unit_roundoff, f32_roundoff = UNIT_ROUNDOFF[self.data_format.element_type], UNIT_ROUNDOFF["f32"]
        reference = self.run_reference()

        def error(outputs: list[Any]) -> NDArray[np.float64]:
            return np.concatenate([np.ravel(left - right) for left, right in zip(outputs, reference, strict=True)])

        sampled_errors: dict[str, list[NDArray[np.float64]]] = {"rounding": [], "sums": [], "products": []}
        for kind, runs in sampled_errors.items():
            for seed in range(_RUN_COUNT):
                rng = np.random.default_rng(seed)

                def product(
                    _: int, left: NDArray[Any], right: NDArray[Any], kind: str = kind, rng: Any = rng
                ) -> NDArray[np.float64]:
                    exact = left @ right
                    if kind == "rounding":
                        return self.cast(exact * (1 + unit_roundoff * rng.uniform(-1, 1, exact.shape)))
                    magnitude = np.sqrt(len(right) / 2 if kind == "sums" else 2)
                    scale = 0.41 * f32_roundoff * magnitude * np.sqrt(np.mean(exact**2))
                    return self.cast(exact + scale * rng.standard_normal(exact.shape))

                runs.append(error(self.run(product, self.weights)))
        flips = [error(self.run(lambda _, a, b: self.cast(a @ b), self.weights, flip=True))] * self.training
        sizes = np.cumsum([np.size(values) for values in reference])[:-1]
        base_error = error(self.run(lambda _, left, right: left @ right, self.weights))

        def scale_at(index: int) -> Product:
            return lambda number, left, right: left @ right * (1 + _STEP * (number == index))

        count = self.contraction_count
        slopes = [(error(self.run(scale_at(index), self.weights)) - base_error) / _STEP for index in range(count)]
        by_kind = {**sampled_errors, "flips": flips}
        worst = [
            {
                kind: (max(float(np.sqrt(np.mean(part**2))) for part in parts), float(np.max(np.abs(parts))))
                for kind, parts in (
                    (kind, [np.split(run, sizes)[index] for run in runs]) for kind, runs in by_kind.items()
                )
                if parts
            }
            for index in range(len(reference))
        ]
        tried_errors = TrialErrors(
            places=[np.arange(np.size(values)) for values in reference],
            slopes=slopes,
            errors=sampled_errors,
            flips=flips,
            scales=np.repeat(
                [np.hypot(errors["rounding"][0], errors["sums"][0]) for errors in worst],
                [np.size(values) for values in reference],
            ),
            names=[f"contraction {index + 1} of {count} (mm)" for index in range(count)],
            contractions=count,
        )
        directions = write_directions(tried_errors, folder / "directions.npz")
        assert directions is not None
        arrays = [
            Array(f"{index}.npy", self.data_format.element_type, np.shape(values), errors)
            for index, (values, errors) in enumerate(zip(reference, worst, strict=True))
        ]
        return arrays, directions


@cache
def _compute_errors_once(network: Network) -> tuple[list[Array], Directions, bytes]:
    """Return the results of `compute_errors` and its file, which are the same for all networks of a format."""
    with TemporaryDirectory() as folder:
        arrays, directions = network.compute_errors(Path(folder))
        return arrays, directions, (Path(folder) / directions.file).read_bytes()
