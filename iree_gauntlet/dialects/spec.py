"""A spec file that was read, and the tree of folders that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Case, Origin, Stage
from iree_gauntlet.dialects.sharktank_schema import Benchmark, RegressionV1, RegressionV2
from iree_gauntlet.dialects.torch_schema import BenchmarkTest, CompstatTest, ModuleDefinition, QualityTest
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.cases import Kind, Module
    from iree_gauntlet.errors import Problem
    from iree_gauntlet.targets import Target


# The suffixes of sharktank's spec files.
SHARKTANK_FAMILIES = ("cpu", "rocm")

Document = RegressionV1 | RegressionV2 | Benchmark | ModuleDefinition | QualityTest | BenchmarkTest | CompstatTest


@dataclass(frozen=True, slots=True)
class SourceFields:
    """Where the files of a format name sources; `{}` stands for an index, and an empty field for nowhere.

    Attributes:
        inputs: each input's.
        outputs: each expected output's.
        parameters: each archive's.
        programs: names of fields that hold a program's.
    """

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
        folder: as the user named it, resolved.
        external: the folder in which files named by specs are looked up (tuner files, pipelines).
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
        tree: the tree that it belongs to.
        root: the folder above its model's folder.
        path: the file.
        name: the file as the user names it.
        document: what it says; None where it cannot be understood.
        problems: what is wrong with it.
        warnings: fields that its format may have gained since, and which are passed over.
        torch: whether it lies in a tree of torch models.
        kind: what its fields make it, of one that cannot be used too; None where they do not say.
        words: its kind's name and its markers, which marker expressions select it by; None where it does not say.
    """

    tree: SpecTree
    root: Path
    path: Path
    name: str
    document: Document | None
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    torch: bool = False
    kind: type[Document] | None = None
    words: frozenset[str] | None = None

    @property
    def text(self) -> str:
        """Its content, to find lines by: read again, as nearly no spec has problems."""
        try:
            return self.path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return ""

    @property
    def is_test(self) -> bool:
        """Whether it is one: no module that tests load, and no file that lies where no spec is read."""
        return not self.defines_module and not (self.document is None and self.warnings and not self.problems)

    @property
    def defines_module(self) -> bool:
        """Whether it is no test, but what tests load."""
        return self.kind is ModuleDefinition

    @property
    def model(self) -> str:
        """The folder's name; of torch models its path below the root, as they may lie deeper."""
        if not self.torch:
            return self.path.parent.name
        return "/".join(self.path.parts[len(self.root.parts) : -1]) or self.root.name

    @property
    def stem(self) -> str:
        """File name without suffix, what `--filename` selects."""
        return self.path.stem

    @property
    def submodel(self) -> str:
        """What `--submodel` selects: the stem without the backend where the dialect puts it there."""
        if self.torch or isinstance(self.document, RegressionV1):
            return self.stem
        head, _, family = self.stem.rpartition("_")
        return head if head and family in SHARKTANK_FAMILIES else self.stem

    @property
    def families(self) -> tuple[str, ...]:
        """Families of targets that it may be for; of a torch model, its module's flags decide."""
        if self.torch:
            return FAMILIES
        if isinstance(self.document, RegressionV1):
            return ("rocm",) if self.document.rocm_tests_only else SHARKTANK_FAMILIES
        if isinstance(self.document, Benchmark) and self.document.device is None:
            return ("rocm",)
        family = self.stem.rpartition("_")[2]
        own = (family,) if family in SHARKTANK_FAMILIES else SHARKTANK_FAMILIES
        further = self.document.targets if isinstance(self.document, RegressionV2) else ()
        return (*own, *(family for family in further if family not in own))


def base_case(spec: Spec, dialect: str, kind: Kind, target: Target, modules: tuple[Module, ...]) -> Case:
    """What a case has of its spec whatever the dialect."""
    assert spec.document is not None, "only what was read has cases"
    return Case(
        dialect=dialect,
        model=spec.model,
        submodel=spec.submodel,
        stem=spec.stem,
        kind=kind,
        target=target,
        modules=modules,
        timeouts=tuple((Stage(stage), seconds) for stage, seconds in spec.document.timeouts.items()),
        working_directory=str(spec.tree.external) if spec.tree.external.is_dir() else "",
        origin=Origin(spec.name),
    )
