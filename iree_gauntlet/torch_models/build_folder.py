"""What the builder leaves in its folder: `build.json` and the files that it names.

A Python that has torch writes it (`build_steps.py`), and reads it where torch is measured.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.numerics.arrays import Tensor, read_npy
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


BUILD_FILE = "build.json"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Array(Recorded):
    """A tensor in a `.npy` file.

    Attributes:
        errors: rms and largest of the errors that a correct program may make, by kind: `rounding` of operators'
            results, `sums` of products, `products` of rounded inputs, `flips` of values at a kink; none where that
            was not tried.
    """

    file: str
    type: str
    shape: tuple[int, ...]
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Directions(Recorded):
    """What errors of contractions look like in the outputs (see `agreement.py`)."""

    file: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuiltProgram(Recorded):
    """A program that is compiled.

    Attributes:
        name: `main`, or `prefill` and `decode`.
    """

    name: str
    onnx: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    directions: Directions | None = None


@dataclass(frozen=True, slots=True)
class TokenLoop(Recorded):
    """How a model makes tokens (see `model_registry.Generative`).

    Attributes:
        carried: how many of them `decode` returns again.
    """

    position: int
    tokens: int
    state: int
    carried: int
    chosen: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep(Recorded):
    """A step of training as a program: the loss in words, and of which parameters it returns gradients, or sums."""

    loss: str
    gradients: tuple[str, ...]
    accumulate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecord(Recorded):
    """A built model.

    Attributes:
        kind: `pipeline`, `training` or `generative`.
        host: whether there is a module on the host before the device (`pre`), and after it (`post`).
        contractions: matrix products on the longest way through a variant of `micro`; 0 where not counted.
        flops: of one call of such a variant before its recipes; 0 where not counted.
        changed_layers, changed_bytes: linear layers that its recipes changed, and what their weights took before; None
            where not counted.
        reference: outputs of the first program in f32 with weights that are not rounded; empty where it is the
            same.
        weight_error: rms of the rounding of weights, relative to their rms; None where they are not rounded.
    """

    schema: int = _SCHEMA
    kind: str = "pipeline"
    model: str = ""
    config: str | None = None
    samples: int = 1
    parameter_count: int = 0
    programs: tuple[BuiltProgram, ...] = ()
    host: dict[str, bool] = field(default_factory=lambda: {"pre": False, "post": False})
    host_inputs: tuple[Array, ...] = ()
    host_outputs: tuple[Array, ...] = ()
    generation: TokenLoop | None = None
    training: TrainingStep | None = None
    reference: tuple[Array, ...] = ()
    weight_error: float | None = None
    contractions: int = 0
    flops: int = 0
    changed_layers: int | None = None
    changed_bytes: int | None = None
    versions: dict[str, str | None] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def has_host_modules(self) -> bool:
        """Whether torch modules run on the host, too."""
        return any(self.host.values())


def read_build(folder: Path) -> BuildRecord:
    """Reads `build.json`."""
    path = folder / BUILD_FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["schema"] != _SCHEMA:
            raise ValueError(f"schema {found['schema']}, expected {_SCHEMA}")  # noqa: TRY301 - said as all else that is
        return BuildRecord.from_dict(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GauntletError(
            f"{path}: the built model cannot be read: {type(error).__name__}: {error}",
            "Run again; if it stays, clear the cache (`cache.gc`).",
        ) from error


def read_tensors(folder: Path, arrays: Sequence[Array]) -> list[Tensor]:
    """The arrays themselves, mapped; their files may be named from a folder."""
    return [read_npy(folder / array.file).with_element_type(array.type) for array in arrays]
