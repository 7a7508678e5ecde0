"""What all dialects have in common: a spec that was read, what makes its cases, and what a selection comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

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


# Of specs in files; their cases have the names of `Builder.sources`.
SHARKTANK = "sharktank"
TORCH_MODELS = "torch-models"
TORCH_ROOT = "torch_models"
# Of folders that hold models' folders.
ROOT_NAMES = ("regression_tests", "quality_tests", "benchmarks", TORCH_ROOT)


@dataclass(frozen=True, slots=True)
class SourceFields:
    """Where the files of a format name sources; `{}` stands for an index, and an empty field for nowhere."""

    inputs: str = ""
    outputs: str = ""
    parameters: str = ""
    programs: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """The last names of all of these fields."""
        fields = (self.inputs, self.outputs, self.parameters, *self.programs)
        return {field.rpartition(".")[2] for field in fields if field}


@dataclass(frozen=True, slots=True)
class SpecTree:
    """A folder of specs.

    Attributes:
        modules: the folder of module definitions; None for the root of a spec, or the folder above it.
        variables: names and values of what may stand as `${NAME}` in flags.
    """

    folder: Path
    external: Path
    modules: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Spec:
    """One spec file, read.

    Attributes:
        dialect: by its name, such as `SHARKTANK`.
        document: None where it cannot be understood.
        words: its kind's name and its markers, which marker expressions select it by; None where it does not say.
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
        """Its content, to find lines by: read again, as nearly no spec has problems."""
        try:
            return read_file(self.path).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return ""

    @property
    def torch(self) -> bool:
        """Whether it lies in a tree of torch models."""
        return self.dialect == TORCH_MODELS

    @property
    def is_test(self) -> bool:
        """Whether it is one: no module that tests load, and no file that lies where no spec is read."""
        return not self.defines_module and not (self.document is None and self.warnings and not self.problems)

    @property
    def stem(self) -> str:
        """File name without suffix, what `--filename` selects."""
        return self.path.stem


def words_of(content: Mapping[str, Any], kind: str) -> frozenset[str] | None:
    """The name of a spec's kind and its markers; None where these are no words."""
    markers = content.get("markers", [])
    is_list = isinstance(markers, list) and all(isinstance(marker, str) for marker in markers)
    return frozenset({kind, *markers}) if is_list else None


def base_case(
    spec: Spec, dialect: str, kind: Kind, target: Target, modules: tuple[Module, ...], timeouts: Mapping[str, float]
) -> Case:
    """What a case has of its spec whatever the dialect."""
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


def find_defined_twice(name: str, target: Target, file: str, first: str) -> Problem:
    """The problem of a file that claims the name of another one's."""
    message = f"{name} on {target.name} is already defined by {first}"
    return Problem(file, 0, "", message, "Rename or remove one of the two.")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a selection comes to, as the dialects find it; `CaseSet` has it in order."""

    targets: Sequence[Target]
    expressions: Mapping[Include, MarkerExpression]
    cases: list[Case] = field(default_factory=list)
    required: dict[str, Case] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    problems: set[Problem] = field(default_factory=set)
    warnings: set[Problem] = field(default_factory=set)
    left_out: set[Problem] = field(default_factory=set)
    unmatched: set[Problem] = field(default_factory=set)
    broken: set[Problem] = field(default_factory=set)

    def matches(self, markers: Collection[str], chosen: Iterable[Include]) -> bool:
        """Whether markers satisfy any of the parts of the selection that a spec's names fit."""
        return any(self.expressions[include].matches(markers) for include in chosen)

    def add(self, case: Case, chosen: Iterable[Include]) -> bool:
        """Whether a case is selected by its markers, too."""
        self.known.update(case.markers)
        matches = self.matches(case.markers, chosen)
        if matches:
            self.cases.append(case)
        return matches


_Spec = TypeVar("_Spec")


class Builder(Generic[_Spec]):
    """Makes the cases of one dialect's specs.

    Attributes:
        sources: where its files name sources, by the names that its cases have for the dialect.
    """

    sources: ClassVar[Mapping[str, SourceFields]]

    def __init__(self, specs: Sequence[_Spec], loaded: Loaded) -> None:
        self.specs = specs
        self.loaded = loaded

    def add(self, spec: _Spec, chosen: Sequence[Include]) -> None:
        """Adds what a spec means; of one that is not chosen, what is wrong with it."""
        raise NotImplementedError

    def finish(self) -> None:
        """Adds what the cases of all specs need."""
