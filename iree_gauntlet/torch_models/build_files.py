"""The files between the toolkit and the Python that has torch: builders' plans, and builders' results.

`build_steps.py` writes `build.json` and the files that it names; the scripts that measure torch read them too.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path  # noqa: TC003 - a record's field is read by its type
from typing import TYPE_CHECKING, Any, TypeVar

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.measuring.numerics.arrays import Tensor, read_npy
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.torch_models.formats import TORCH_TYPES, DataFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_BASELINE = "baseline"
_PLAN_HINT = "the file is written by the toolkit; one written by hand needs the fields of {kind}"

_PlanType = TypeVar("_PlanType", bound="ModelPlan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """The plan of a build.

    Attributes:
        output: folder to create and fill, which is missing or empty; an empty name if nothing is to be written.
    """

    output: str = ""

    def to_json(self) -> str:
        """Return the file's text."""
        return json.dumps(asdict(self), indent=1) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions(ModelPlan):
    """The options of a model function.

    Attributes:
        config: one of the model's configurations; None if the model has none, or only one.
        microbatch: samples in one call; None for the function's default, or for 1 if it has no default.
    """

    config: str | None = None
    training: bool = False
    layers: int | None = None
    microbatch: int | None = None
    dataformat: str = field(default="Fp32", metadata={"choices": tuple(form.value for form in DataFormat)})

    @property
    def form(self) -> DataFormat:
        """The data format."""
        return DataFormat(self.dataformat)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan(BuildOptions):
    """A model to build.

    Attributes:
        accumulate: True if, in training, the program takes the gradients so far and returns the sums.
        sensitivity: True to try the effect of an error of every contraction, no matter how long it takes.
    """

    models_dirs: tuple[str, ...]
    model: str
    accumulate: bool = False
    sensitivity: bool = False

    def __post_init__(self) -> None:
        if self.accumulate and not self.training:
            raise UsageError(f"{self.model}: accumulate requires training", "remove it, or set training")


def read_plan(path: Path, kind: type[_PlanType]) -> _PlanType:
    """Read a plan."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        hint = _PLAN_HINT.format(kind=kind.__name__)
        raise UsageError(f"{path}: the plan cannot be read: {error}", hint) from error
    return check_plan(document, str(path), kind)


def check_plan(plan: object, source: str, kind: type[_PlanType]) -> _PlanType:
    """Return the plan in a JSON object; errors name `source`."""
    hint = _PLAN_HINT.format(kind=kind.__name__)
    plan_fields = {field.name: field for field in fields(kind)}
    if not isinstance(plan, dict) or not plan.keys() <= plan_fields.keys():
        unknown = sorted(plan.keys() - plan_fields.keys()) if isinstance(plan, dict) else [type(plan).__name__]
        raise UsageError(f"{source}: unknown fields of a plan: {', '.join(unknown)}", hint)
    invalid = [name for name in sorted(plan_fields) if not _is_valid_value(plan_fields[name], plan)]
    if invalid:
        raise UsageError(f"{source}: missing or of the wrong type: {', '.join(invalid)}", hint)
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plan.items()}
    return kind(**values)


def _is_valid_value(entry: Field[Any], document: Mapping[str, Any]) -> bool:
    """Return True if a document has a valid value of a plan's field; required texts and lists must not be empty."""
    is_required = entry.default is MISSING
    if entry.name not in document:
        return not is_required
    value, type_name = document[entry.name], str(entry.type)
    if value is None or type_name == "bool":
        return isinstance(value, bool) if type_name == "bool" else type_name.endswith("None")
    if type_name.startswith("int"):
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if type_name.startswith("tuple"):
        return (
            isinstance(value, list | tuple)
            and (bool(value) or not is_required)
            and all(type(item) is str for item in value)
        )
    return (
        isinstance(value, str) and (value or entry.default) == value and value in entry.metadata.get("choices", [value])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantPlan(ModelPlan):
    """An architecture at a shape, changed by recipes.

    Attributes:
        plugins: absolute paths of files with recipes and architectures besides the built-in ones.
        model_type: the architecture's name in a configuration: `ln_linear_gelu`.
        config: absolute path of a configuration of the transformers library, or of its folder; None for none.
        quantization: a recipe with its arguments; `baseline` for none.
    """

    plugins: tuple[str, ...] = ()
    model_type: str
    config: str | None = None
    m: int
    k: int
    n: int
    dtype: str = field(default="f32", metadata={"choices": tuple(TORCH_TYPES)})
    quantization: str = _BASELINE
    sparsity: str | None = None

    @property
    def label(self) -> str:
        """The label of the recipes: `int8wo`, `baseline+block`."""
        return "+".join(filter(None, (self.quantization, self.sparsity)))

    @property
    def is_baseline(self) -> bool:
        """True if the recipes leave the architecture's model unchanged."""
        return self.quantization == _BASELINE and self.sparsity is None


@dataclass(frozen=True, slots=True)
class PeerProgram(Recorded):
    """A program that a peer is to measure: a built model, which the peer may rebuild.

    Attributes:
        mode: torch's mode: `eager` or `compile`.
        calls: number of calls; for a generative model, number of generations.
    """

    name: str
    build: Path
    builder: dict[str, Any] = field(default_factory=dict)
    mode: str = ""
    compile_mode: str | None = None
    calls: int = 1


@dataclass(frozen=True, slots=True)
class PeerPlan(Recorded):
    """The plan of a peer's process.

    Attributes:
        outputs: folder for the outputs to be checked; empty for none.
        compile_threads: number of processes that torch.compile may use; None for torch's default.
    """

    models: tuple[PeerProgram, ...]
    warm_up_calls: int
    compile_threads: int | None = None
    outputs: str = ""

    @classmethod
    def read(cls, path: Path) -> PeerPlan:
        """Read a plan from its file."""
        return cls.from_dict(json.loads(path.read_bytes()))


BUILD_FILE = "build.json"
_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Array(Recorded):
    """A tensor in a `.npy` file; a tensor that a measuring program did not fetch has neither file nor shape.

    Attributes:
        errors: rms and maximum of the errors that a correct program may make, by kind: `rounding` of operators'
            results, `sums` of products, `products` of rounded inputs, and `flips` of values at a kink. Empty if there
            were no trials.
    """

    file: str
    type: str
    shape: tuple[int, ...] = ()
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Directions(Recorded):
    """The effects of contractions' errors on the outputs (see `agreement.py`).

    Attributes:
        names: names of the contractions with trials; `contractions`: number of the program's contractions.
    """

    file: str
    names: tuple[str, ...]
    contractions: int


@dataclass(frozen=True, slots=True)
class ProgramBuild(Recorded):
    """A program to compile; `name`: `main`, or `prefill` and `decode`."""

    name: str
    onnx: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    directions: Directions | None = None


@dataclass(frozen=True, slots=True)
class TokenLoop(Recorded):
    """The loop in which a model generates tokens (see `model_registry.Generative`).

    Attributes:
        state: number of tensors in the state.
        carried: number of the state's tensors that `decode` returns with new values.
    """

    position: int
    tokens: int
    state: int
    carried: int
    chosen: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep(Recorded):
    """A training step as a program: the loss in words, and the parameters whose gradients (or sums) are returned."""

    loss: str
    gradients: tuple[str, ...]
    accumulate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecord(Recorded):
    """A built model.

    Attributes:
        kind: `pipeline`, `training` or `generative`.
        host: True if a module runs on the host before the device (`pre`), or after it (`post`).
        contractions: matrix products on the longest path through a variant of `micro`; 0 if not counted.
        flops: operations of one call of a variant of `micro` before its recipes; 0 if not counted.
        changed_layers, changed_bytes: number of linear layers that the recipes changed, and the former size of these
            layers' weights; None if not counted.
        reference: outputs of the first program in f32 with weights that are not rounded; empty if these are the
            expected outputs.
        weight_error: rms of the rounding of weights, relative to the weights' rms; None if weights are not rounded.
    """

    schema: int = _SCHEMA_VERSION
    kind: str = "pipeline"
    model: str = ""
    config: str | None = None
    samples: int = 1
    parameter_count: int = 0
    programs: tuple[ProgramBuild, ...] = ()
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
        """True if torch modules run on the host, too."""
        return any(self.host.values())


def read_build(folder: Path) -> BuildRecord:
    """Read `build.json`."""
    path = folder / BUILD_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != _SCHEMA_VERSION:
            raise ValueError(f"schema {document['schema']}, expected {_SCHEMA_VERSION}")  # noqa: TRY301 - reported like all other errors
        return BuildRecord.from_dict(document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GauntletError(
            f"{path}: the built model cannot be read: {type(error).__name__}: {error}",
            "Run again; if the error persists, clear the cache (`cache.gc`).",
        ) from error


def read_tensors(folder: Path, arrays: Sequence[Array]) -> list[Tensor]:
    """Map the arrays' files, which may be relative to a folder."""
    return [read_npy(folder / array.file).with_element_type(array.type) for array in arrays]
