"""The common parts of all dialects: a parsed spec, a builder of its cases, and the collected cases of a selection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from iree_gauntlet.cases import Case, Module, Origin
from iree_gauntlet.errors import Problem
from iree_gauntlet.settings import read_file
from iree_gauntlet.stages import Kind, Stage
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.dialects.fields import StrictDocument
    from iree_gauntlet.dialects.selection import Include, MarkerExpression
    from iree_gauntlet.targets import Target


# The dialects of specs.
SHARKTANK = "sharktank"
TORCH_MODELS = "torch-models"
OP_TESTS = "op_tests"
ONNX_MODELS = "onnx_models"
# The dialects of the cases of sharktank's specs. Cases of other specs have the dialects of these specs.
REGRESSION = "sharktank-regression"
BENCHMARK = "sharktank-benchmark"
TORCH_ROOT = "torch_models"
# These folders hold models' folders.
ROOT_NAMES = ("regression_tests", "quality_tests", "benchmarks", TORCH_ROOT)


@dataclass(frozen=True, slots=True)
class SourceFields:
    """The fields of a format that name sources; `{}` stands for an index, and an empty text means no field."""

    inputs: str = ""
    outputs: str = ""
    parameters: str = ""
    programs: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """The last parts of all fields' names."""
        fields = (self.inputs, self.outputs, self.parameters, *self.programs)
        return {field.rpartition(".")[2] for field in fields if field}


# The fields that name sources, by the dialect of cases.
SOURCE_FIELDS = {
    REGRESSION: SourceFields("inputs[{}].source", "outputs[{}].source", "real_weights", ("mlir", "pipeline_mlir")),
    # A benchmark takes the weights of its regression; inputs are files only in one of several calls.
    BENCHMARK: SourceFields("inputs[{}].source", programs=("mlir_url", "mlir_file_url")),
    TORCH_MODELS: SourceFields("inputs[{}].url", "expected_outputs[{}].url", "weights[{}].url", ("mlir",)),
    OP_TESTS: SourceFields("flat_args[{}]", "expected_output[{}]"),
    ONNX_MODELS: SourceFields(),
}
SOURCE_NAMES = frozenset().union(*(fields.names for fields in SOURCE_FIELDS.values()))


@dataclass(frozen=True, slots=True)
class SpecTree:
    """A folder of specs.

    Attributes:
        modules: the folder of module definitions; None means a spec's root or, after it, the folder above that root.
        variables: names and values of the variables that may occur as `${NAME}` in flags.
    """

    folder: Path
    external: Path
    modules: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """One parsed spec file.

    Attributes:
        dialect: a name such as `SHARKTANK`.
        document: the parsed content; None if it is invalid.
        words: the words for marker expressions: the spec's kind and its markers; None if the markers are invalid.
    """

    tree: SpecTree
    root: Path
    path: Path
    name: str
    dialect: str
    model: str
    submodel: str
    document: StrictDocument | None = None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    families: tuple[str, ...] = FAMILIES
    words: frozenset[str] | None = None
    defines_module: bool = False

    @property
    def text(self) -> str:
        """The file's content, to find problems' lines; it is read again, as nearly no spec has problems."""
        try:
            return read_file(self.path).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return ""

    @property
    def is_torch(self) -> bool:
        """True if the spec is in a tree of torch models."""
        return self.dialect == TORCH_MODELS

    @property
    def is_test(self) -> bool:
        """True unless the spec is a module definition, or a file at a place where specs are not read."""
        return not self.defines_module and not (self.document is None and self.warnings and not self.problems)

    @property
    def stem(self) -> str:
        """The file name without suffix, which `--filename` selects."""
        return self.path.stem


def read_marker_words(content: Mapping[str, Any], kind: str) -> frozenset[str] | None:
    """Return the name of a spec's kind and its markers; None if the markers are not a list of texts."""
    markers = content.get("markers", [])
    is_list = isinstance(markers, list) and all(isinstance(marker, str) for marker in markers)
    return frozenset({kind, *markers}) if is_list else None


def make_case(
    spec: Spec, dialect: str, kind: Kind, target: Target, modules: tuple[Module, ...], timeouts: Mapping[str, float]
) -> Case:
    """Make a case with the fields that all dialects take from a spec."""
    return Case(
        dialect=dialect,
        model=spec.model,
        submodel=spec.submodel,
        stem=spec.stem,
        kind=kind,
        target=target,
        modules=modules,
        timeouts=tuple((Stage(stage), seconds) for stage, seconds in timeouts.items()),
        working_directory=str(spec.tree.external) if spec.tree.external.is_dir() else "",
        origin=Origin(spec.name),
    )


def make_duplicate(name: str, target: Target, file: str, first: str) -> Problem:
    """Make the problem of a file that claims the name of another file."""
    message = f"{name} on {target.name} is already defined by {first}"
    return Problem(file, 0, "", message, "Rename or remove one of the two.")


@dataclass(frozen=True, slots=True)
class Collector:
    """The result of a selection, to which all dialects add their parts; `CaseSet` is the sorted result."""

    targets: Sequence[Target]
    expressions: Mapping[Include, MarkerExpression]
    cases: list[Case] = field(default_factory=list)
    needed_cases: dict[str, Case] = field(default_factory=dict)
    known_markers: set[str] = field(default_factory=set)
    other_targets: set[str] = field(default_factory=set)
    problems: set[Problem] = field(default_factory=set)
    warnings: set[Problem] = field(default_factory=set)
    unselected_problems: set[Problem] = field(default_factory=set)
    unmatched_entries: set[Problem] = field(default_factory=set)
    operator_case_problems: set[Problem] = field(default_factory=set)

    def matches(self, markers: Collection[str], includes: Iterable[Include]) -> bool:
        """Return whether markers satisfy the marker expression of any of some includes."""
        return any(self.expressions[include].matches(markers) for include in includes)

    def add(self, case: Case, includes: Iterable[Include]) -> bool:
        """Add a case if its markers are selected too; return whether it was added."""
        self.known_markers.update(case.markers)
        matches = self.matches(case.markers, includes)
        if matches:
            self.cases.append(case)
        return matches


_Spec = TypeVar("_Spec")


class Builder(Generic[_Spec]):
    """A builder of the cases of one dialect's specs."""

    def __init__(self, specs: Sequence[_Spec], collector: Collector) -> None:
        self.specs = specs
        self.collector = collector

    def add(self, spec: _Spec, includes: Sequence[Include]) -> None:
        """Add the cases of a spec; if the spec is not selected, add only its problems."""
        raise NotImplementedError

    def finish(self) -> None:
        """Add the cases that the cases of all specs need."""
