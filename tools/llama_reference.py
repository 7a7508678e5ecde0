"""A small decoder language model in NumPy: its architecture, its parameters, and its forward pass.

This model computes the expected output of llama_block. It shares no code with torch, ONNX or IREE. It computes in
float64, so its rounding errors are far below any sensible tolerance for float32.

The model is of the Llama family: a token embedding; in each layer a pre-norm causal attention with grouped heads and
rotary positions, then a pre-norm SwiGLU; at the end a norm and an untied head. It differs from Llama in two points, so
that a test finds errors even with weights drawn from normal(0, 0.01):

* A norm's gain is `1 + weight`, as in Gemma. With a gain of `weight`, each norm would make the signal a hundred times
  smaller, and the output would be below every tolerance.
* Queries and keys are normalised per head, as in Qwen 3. Without this, all scores would be near zero and attention
  would be an even average over any positions, which would hide an error of attention.
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

__all__ = ["Architecture", "ArchitectureError", "compute_logits", "list_parameter_shapes", "read_architecture"]


class ArchitectureError(GauntletError):
    """An invalid architecture file."""


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
    """Read an architecture from a JSON file.

    Raises ArchitectureError: the file cannot be read, a field is missing, unknown or of the wrong type, or the sizes do
    not fit together.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArchitectureError(f"{path}: cannot be read: {error}", "Expected a JSON object.") from error
    field_types = {field.name: str(field.type) for field in fields(Architecture)}
    if not isinstance(document, dict) or document.keys() != field_types.keys():
        raise ArchitectureError(f"{path}: expected a JSON object with exactly the fields {', '.join(field_types)}")
    for name, type_name in field_types.items():
        if not _matches_type(type_name, document[name]):
            raise ArchitectureError(f"{path}: {name} is {document[name]!r}, expected a positive {type_name}")
    architecture = Architecture(**document)
    if architecture.hidden % (2 * architecture.heads) or architecture.heads % architecture.key_value_heads:
        raise ArchitectureError(
            f"{path}: the heads do not divide the model evenly",
            "hidden must be a multiple of 2 * heads, and heads one of key_value_heads.",
        )
    return architecture


def list_parameter_shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return every parameter's shape by name; a matrix is (inputs, outputs), for `x @ matrix`."""
    hidden_size, width = architecture.hidden, architecture.head_width
    queries, keys = architecture.heads * width, architecture.key_value_heads * width
    shapes: dict[str, tuple[int, ...]] = {"token_embedding": (architecture.vocabulary, hidden_size)}
    for index in range(architecture.layers):
        layer: dict[str, tuple[int, ...]] = {
            "attention_norm": (hidden_size,),
            "attention.query": (hidden_size, queries),
            "attention.key": (hidden_size, keys),
            "attention.value": (hidden_size, keys),
            "attention.query_norm": (width,),
            "attention.key_norm": (width,),
            "attention.output": (queries, hidden_size),
            "mlp_norm": (hidden_size,),
            "mlp.gate": (hidden_size, architecture.intermediate),
            "mlp.up": (hidden_size, architecture.intermediate),
            "mlp.down": (architecture.intermediate, hidden_size),
        }
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes | {"norm": (hidden_size,), "head": (hidden_size, architecture.vocabulary)}


def compute_logits(
    architecture: Architecture, weights: Mapping[str, NDArray[Any]], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Compute the score of every possible next token at every position of a prompt.

    `weights` are keyed by the names of `list_parameter_shapes`.

    Returns:
        Scores of shape (batch, positions, vocabulary).
    """
    exact_weights = {name: np.asarray(weight, dtype=np.float64) for name, weight in weights.items()}
    stream = exact_weights["token_embedding"][tokens]
    for index in range(architecture.layers):
        prefix = f"layers.{index}."
        layer = {name.removeprefix(prefix): weight for name, weight in exact_weights.items() if name.startswith(prefix)}
        stream = stream + _attend(architecture, layer, _apply_norm(architecture, stream, layer["attention_norm"]))
        stream = stream + _compute_swiglu(layer, _apply_norm(architecture, stream, layer["mlp_norm"]))
    return _apply_norm(architecture, stream, exact_weights["norm"]) @ exact_weights["head"]


def _matches_type(type_name: str, value: object) -> bool:
    if type_name == "str":
        return isinstance(value, str) and bool(value)
    is_number = isinstance(value, int) or (type_name == "float" and isinstance(value, float))
    return is_number and not isinstance(value, bool) and value > 0  # type: ignore[operator]


def _apply_norm(
    architecture: Architecture, values: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Apply RMSNorm over the last axis (Zhang and Sennrich 2019); the gain is 1 + weight."""
    mean_square = np.mean(np.square(values), axis=-1, keepdims=True)
    output: NDArray[np.float64] = values / np.sqrt(mean_square + architecture.norm_epsilon) * (1 + weight)
    return output


def _rotate(architecture: Architecture, heads: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply rotary positions (Su et al. 2021): number `i` of a head is rotated together with `i + width / 2`."""
    half = architecture.head_width // 2
    frequencies = architecture.rope_theta ** (-np.arange(half) / half)
    rotations = np.exp(1j * np.outer(np.arange(heads.shape[-2]), frequencies))
    pairs = (heads[..., :half] + 1j * heads[..., half:]) * rotations
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def _attend(
    architecture: Architecture, layer: Mapping[str, NDArray[np.float64]], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute causal attention, head by head: query head `h` uses key and value head `h // group`."""
    batch, positions, _ = values.shape

    def heads(name: str) -> NDArray[np.float64]:
        parts = (values @ layer[f"attention.{name}"]).reshape(batch, positions, -1, architecture.head_width)
        return parts.swapaxes(1, 2)

    query = _rotate(architecture, _apply_norm(architecture, heads("query"), layer["attention.query_norm"]))
    key = _rotate(architecture, _apply_norm(architecture, heads("key"), layer["attention.key_norm"]))
    value = heads("value")
    future = np.triu(np.full((positions, positions), -np.inf), k=1)
    head_outputs = []
    for head in range(architecture.heads):
        source_head = head // architecture.group
        scores = query[:, head] @ key[:, source_head].swapaxes(1, 2) / np.sqrt(architecture.head_width) + future
        exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
        head_outputs.append(exponentials / exponentials.sum(axis=-1, keepdims=True) @ value[:, source_head])
    output: NDArray[np.float64] = np.concatenate(head_outputs, axis=-1) @ layer["attention.output"]
    return output


def _compute_swiglu(layer: Mapping[str, NDArray[np.float64]], values: NDArray[np.float64]) -> NDArray[np.float64]:
    gate = values @ layer["mlp.gate"]
    product: NDArray[np.float64] = (gate / (1 + np.exp(-gate)) * (values @ layer["mlp.up"])) @ layer["mlp.down"]
    return product
