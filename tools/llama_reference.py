"""A small decoder language model in NumPy: its architecture, its parameters, and what it must compute.

This is what the expected output is made with. It shares no code with torch, ONNX or IREE, and computes in
float64, so that its own rounding is far below any tolerance that makes sense for float32.

The model is of the Llama family: token embedding; per layer a pre-norm causal attention with grouped heads
and rotary positions, then a pre-norm SwiGLU; a last norm and an untied head. Two things differ from Llama,
both so that weights drawn from normal(0, 0.01) leave something to be tested:

* A norm's gain is `1 + weight`, as in Gemma. With the weight alone each norm would damp the signal a hundred
  times, and the output would sink below every tolerance.
* Queries and keys are normalised per head, as in Qwen 3. Without it such weights give scores near zero,
  attention is an even average whatever the positions are, and an error in it would not be seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Architecture", "ArchitectureError", "logits", "parameter_shapes", "read_architecture"]


class ArchitectureError(GauntletError):
    """An architecture file that describes no model that can be built."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of the model.

    Attributes:
        vocabulary: number of tokens; their ids are 0 to vocabulary - 1.
        heads: query heads; they share `hidden` evenly.
        key_value_heads: heads of keys and values, each serving `heads / key_value_heads` query heads.
    """

    name: str
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    intermediate: int
    rope_theta: float
    norm_epsilon: float
    sequence: int

    @property
    def head_width(self) -> int:
        """Numbers per head."""
        return self.hidden // self.heads

    @property
    def group(self) -> int:
        """Query heads per key and value head."""
        return self.heads // self.key_value_heads


def read_architecture(path: Path) -> Architecture:
    """The architecture that a JSON file describes.

    Raises ArchitectureError: the file cannot be read, a field is missing, unknown or of the wrong type, or the sizes do
    not fit together.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArchitectureError(f"{path}: cannot be read: {error}", "Expected a JSON object.") from error
    wanted = {field.name: str(field.type) for field in fields(Architecture)}
    if not isinstance(document, dict) or document.keys() != wanted.keys():
        raise ArchitectureError(f"{path}: expected a JSON object with exactly the fields {', '.join(wanted)}")
    for name, kind in wanted.items():
        if not _is(kind, document[name]):
            raise ArchitectureError(f"{path}: {name} is {document[name]!r}, expected a positive {kind}")
    architecture = Architecture(**document)
    if architecture.hidden % (2 * architecture.heads) or architecture.heads % architecture.key_value_heads:
        raise ArchitectureError(
            f"{path}: the heads do not divide the model evenly",
            "hidden must be a multiple of 2 * heads, and heads one of key_value_heads.",
        )
    return architecture


def parameter_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Every parameter with its shape; matrices are (inputs, outputs), so that `x @ matrix` applies them."""
    hidden, width = architecture.hidden, architecture.head_width
    queries, keys = architecture.heads * width, architecture.key_value_heads * width
    shapes: dict[str, tuple[int, ...]] = {"token_embedding": (architecture.vocabulary, hidden)}
    for index in range(architecture.layers):
        layer: dict[str, tuple[int, ...]] = {
            "attention_norm": (hidden,),
            "attention.query": (hidden, queries),
            "attention.key": (hidden, keys),
            "attention.value": (hidden, keys),
            "attention.query_norm": (width,),
            "attention.key_norm": (width,),
            "attention.output": (queries, hidden),
            "mlp_norm": (hidden,),
            "mlp.gate": (hidden, architecture.intermediate),
            "mlp.up": (hidden, architecture.intermediate),
            "mlp.down": (architecture.intermediate, hidden),
        }
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | {"norm": (hidden,), "head": (hidden, architecture.vocabulary)}


def logits(
    architecture: Architecture, weights: Mapping[str, NDArray[Any]], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Scores of every next token, for every position of a prompt.

    `weights`: by the names of `parameter_shapes`.

    Returns:
        (batch, positions, vocabulary).
    """
    exact = {name: np.asarray(weight, dtype=np.float64) for name, weight in weights.items()}
    stream = exact["token_embedding"][tokens]
    for index in range(architecture.layers):
        prefix = f"layers.{index}."
        layer = {name.removeprefix(prefix): weight for name, weight in exact.items() if name.startswith(prefix)}
        stream = stream + _attention(architecture, layer, _normed(architecture, stream, layer["attention_norm"]))
        stream = stream + _swiglu(layer, _normed(architecture, stream, layer["mlp_norm"]))
    return _normed(architecture, stream, exact["norm"]) @ exact["head"]


def _is(kind: str, value: object) -> bool:
    if kind == "str":
        return isinstance(value, str) and bool(value)
    number = isinstance(value, int) or (kind == "float" and isinstance(value, float))
    return number and not isinstance(value, bool) and value > 0  # type: ignore[operator]


def _normed(
    architecture: Architecture, values: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """RMSNorm over the last axis (Zhang and Sennrich 2019), its gain one more than the weight."""
    mean_square = np.mean(np.square(values), axis=-1, keepdims=True)
    normed: NDArray[np.float64] = values / np.sqrt(mean_square + architecture.norm_epsilon) * (1 + weight)
    return normed


def _rotated(architecture: Architecture, heads: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotary positions (Su et al. 2021): number `i` of a head is turned together with `i + width / 2`."""
    half = architecture.head_width // 2
    frequencies = architecture.rope_theta ** (-np.arange(half) / half)
    turns = np.exp(1j * np.outer(np.arange(heads.shape[-2]), frequencies))
    turned = (heads[..., :half] + 1j * heads[..., half:]) * turns
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _attention(
    architecture: Architecture, layer: Mapping[str, NDArray[np.float64]], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Causal attention, head by head: query head `h` looks at key and value head `h // group`."""
    batch, positions, _ = values.shape

    def heads(name: str) -> NDArray[np.float64]:
        parts = (values @ layer[f"attention.{name}"]).reshape(batch, positions, -1, architecture.head_width)
        return parts.swapaxes(1, 2)

    query = _rotated(architecture, _normed(architecture, heads("query"), layer["attention.query_norm"]))
    key = _rotated(architecture, _normed(architecture, heads("key"), layer["attention.key_norm"]))
    value = heads("value")
    future = np.triu(np.full((positions, positions), -np.inf), k=1)
    seen = []
    for head in range(architecture.heads):
        source = head // architecture.group
        scores = query[:, head] @ key[:, source].swapaxes(1, 2) / np.sqrt(architecture.head_width) + future
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        seen.append(shares / shares.sum(axis=-1, keepdims=True) @ value[:, source])
    joined: NDArray[np.float64] = np.concatenate(seen, axis=-1) @ layer["attention.output"]
    return joined


def _swiglu(layer: Mapping[str, NDArray[np.float64]], values: NDArray[np.float64]) -> NDArray[np.float64]:
    gate = values @ layer["mlp.gate"]
    product: NDArray[np.float64] = (gate / (1 + np.exp(-gate)) * (values @ layer["mlp.up"])) @ layer["mlp.down"]
    return product
