"""What builders of models are asked for: the file that the toolkit writes and the Python with torch reads."""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path  # noqa: TC003 - a record's field is read by its type
from typing import TYPE_CHECKING, Any, TypeVar

from iree_gauntlet.errors import UsageError
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.torch_models.formats import TORCH_TYPES, DataFormat

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    """

    models_dirs: tuple[str, ...]
    model: str
    accumulate: bool = False

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
