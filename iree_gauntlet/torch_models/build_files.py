"""The files between the toolkit and the Python that has torch: what builders are asked for, and what they leave.

`build.json` and the files that it names are written by `build_steps.py`, and read where torch is measured, too.
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
_REMEDY = "the file is written by the toolkit; one written by hand has the fields of {kind}"

Asked = TypeVar("Asked", bound="ModelPlan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """Something to build.

    Attributes:
        output: folder that is made and filled; it does not exist, or is empty. Empty where nothing is written.
    """

    output: str = ""

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self), indent=1) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions(ModelPlan):
    """The options of a model function.

    Attributes:
        config: one of the model's configurations; None where it has none, or one alone.
        microbatch: samples in one call; None for the function's default, else 1.
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
        accumulate: in training, the program takes the gradients so far and returns the sums.
        sensitivity: whether each contraction is tried for what an error of it looks like, whatever that takes.
    """

    models_dirs: tuple[str, ...]
    model: str
    accumulate: bool = False
    sensitivity: bool = False

    def __post_init__(self) -> None:
        if self.accumulate and not self.training:
            raise UsageError(f"{self.model}: accumulate is for training", "leave it out, or set training")


def read_plan(path: Path, kind: type[Asked]) -> Asked:
    """Read a plan."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        remedy = _REMEDY.format(kind=kind.__name__)
        raise UsageError(f"{path}: the plan cannot be read: {error}", remedy) from error
    return check_plan(found, str(path), kind)


def check_plan(found: object, where: str, kind: type[Asked]) -> Asked:
    """The plan that a JSON object is."""
    remedy = _REMEDY.format(kind=kind.__name__)
    known = {field.name: field for field in fields(kind)}
    if not isinstance(found, dict) or not found.keys() <= known.keys():
        odd = sorted(found.keys() - known.keys()) if isinstance(found, dict) else [type(found).__name__]
        raise UsageError(f"{where}: unknown in a plan: {', '.join(odd)}", remedy)
    wrong = [name for name in sorted(known) if not _is_fitting(known[name], found)]
    if wrong:
        raise UsageError(f"{where}: missing or of a wrong type: {', '.join(wrong)}", remedy)
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return kind(**given)


def _is_fitting(asked: Field[Any], found: Mapping[str, Any]) -> bool:
    """Whether a plan has a field's value; texts and lists that have to be given are not empty."""
    needed = asked.default is MISSING
    if asked.name not in found:
        return not needed
    value, kind = found[asked.name], str(asked.type)
    if value is None or kind == "bool":
        return isinstance(value, bool) if kind == "bool" else kind.endswith("None")
    if kind.startswith("int"):
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if kind.startswith("tuple"):
        return (
            isinstance(value, list | tuple) and (bool(value) or not needed) and all(type(item) is str for item in value)
        )
    return (
        isinstance(value, str) and (value or asked.default) == value and value in asked.metadata.get("choices", [value])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantPlan(ModelPlan):
    """An architecture at a shape, as recipes change it.

    Attributes:
        plugins: files with recipes and architectures besides the built-in ones, absolute.
        model_type: as a configuration spells it: `ln_linear_gelu`.
        config: a configuration of the transformers library, or its folder, absolute; None for none.
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
        """Of the recipes: `int8wo`, `baseline+block`."""
        return "+".join(filter(None, (self.quantization, self.sparsity)))

    @property
    def is_baseline(self) -> bool:
        """Whether the model stays as the architecture makes it."""
        return self.quantization == _BASELINE and self.sparsity is None


@dataclass(frozen=True, slots=True)
class PeerProgram(Recorded):
    """What a peer measures: a built model, which it may make again.

    Attributes:
        mode: of torch: `eager` or `compile`.
        calls: of a generative model, generations.
    """

    name: str
    build: Path
    builder: dict[str, Any] = field(default_factory=dict)
    mode: str = ""
    compile_mode: str | None = None
    calls: int = 1


@dataclass(frozen=True, slots=True)
class PeerPlan(Recorded):
    """What a peer is started with.

    Attributes:
        outputs: where outputs go, to be checked; empty for nowhere.
        compile_threads: processes that torch.compile may use; None for torch's own choice.
    """

    models: tuple[PeerProgram, ...]
    warm_up_calls: int
    compile_threads: int | None = None
    outputs: str = ""

    @classmethod
    def read(cls, path: Path) -> PeerPlan:
        """From its file."""
        return cls.from_dict(json.loads(path.read_bytes()))


BUILD_FILE = "build.json"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Array(Recorded):
    """A tensor in a `.npy` file; without file and shape, one that a measuring program did not fetch.

    Attributes:
        errors: rms and largest of the errors that a correct program may make, by kind: `rounding` of operators'
            results, `sums` of products, `products` of rounded inputs, `flips` of values at a kink; none where that
            was not tried.
    """

    file: str
    type: str
    shape: tuple[int, ...] = ()
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Directions(Recorded):
    """What errors of contractions look like in the outputs (see `agreement.py`).

    Attributes:
        names: of those that were tried, in words; `contractions`: how many the program has.
    """

    file: str
    names: tuple[str, ...]
    contractions: int


@dataclass(frozen=True, slots=True)
class BuiltProgram(Recorded):
    """A program that is compiled; `name`: `main`, or `prefill` and `decode`."""

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
