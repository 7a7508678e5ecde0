"""Trees of spec files: which files are specs, of which dialect, and what is wrong with them.

A root is a folder `regression_tests`, `quality_tests` or `benchmarks` anywhere in a spec folder, or the spec
folder itself where it has none of these; its specs are `<root>/<model>/<name>.json`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from iree_gauntlet.dialects.sharktank_schema import Benchmark, RegressionV1, RegressionV2
from iree_gauntlet.dialects.spec_file import load_json, problems_of
from iree_gauntlet.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["FAMILIES", "Document", "Spec", "SpecTree", "read_specs"]

FAMILIES = ("cpu", "rocm")
_ROOT_NAMES = ("regression_tests", "quality_tests", "benchmarks")
_EXTERNAL_NAMES = ("external_test_files", "test_suite_files")

Document = RegressionV1 | RegressionV2 | Benchmark


@dataclass(frozen=True, slots=True)
class SpecTree:
    """A folder of specs.

    Attributes:
        folder: as the user named it, resolved.
        external: the folder in which files named by specs are looked up (tuner files, pipelines).
    """

    folder: Path
    external: Path


@dataclass(frozen=True, slots=True)
class Spec:
    """One spec file, read.

    Attributes:
        tree: the tree that it belongs to.
        root: the folder above its model's folder.
        path: the file.
        name: the file as the user names it.
        text: its content, to find lines by.
        document: what it says; None where it cannot be understood.
        problems: what is wrong with it.
    """

    tree: SpecTree
    root: Path
    path: Path
    name: str
    text: str
    document: Document | None
    problems: tuple[Problem, ...] = ()

    @property
    def model(self) -> str:
        """The folder's name."""
        return self.path.parent.name

    @property
    def stem(self) -> str:
        """File name without suffix, what `--filename` selects."""
        return self.path.stem

    @property
    def submodel(self) -> str:
        """What `--submodel` selects: the stem without the backend where the dialect puts it there."""
        if isinstance(self.document, RegressionV1):
            return self.stem
        head, _, family = self.stem.rpartition("_")
        return head if head and family in FAMILIES else self.stem

    @property
    def families(self) -> tuple[str, ...]:
        """Families of targets that it is for."""
        if isinstance(self.document, RegressionV1):
            return ("rocm",) if self.document.rocm_tests_only else FAMILIES
        family = self.stem.rpartition("_")[2]
        return (family,) if family in FAMILIES else FAMILIES


def read_specs(folders: Sequence[Path], external: Path | None = None) -> list[Spec]:
    """Reads every spec file of some folders, each once, in a stable order.

    Args:
        folders: spec folders.
        external: where files named by specs are; by default `external_test_files` or `test_suite_files` in
            the spec folder or beside it.

    Raises:
        UsageError: a folder does not exist or is none.
    """
    specs: dict[Path, Spec] = {}
    for folder in folders:
        if not folder.is_dir():
            found = "is a file" if folder.exists() else "does not exist"
            raise UsageError(f"spec folder {folder} {found}", "Give --spec-dir a folder that holds spec files.")
        tree = SpecTree(folder.resolve(), (external or _external_folder(folder)).resolve())
        for root in _roots(tree.folder):
            for path in _spec_files(root):
                if path not in specs:
                    specs[path] = _read(tree, root, path)
    return list(specs.values())


def _external_folder(folder: Path) -> Path:
    candidates = [base / name for base in (folder, folder.resolve().parent) for name in _EXTERNAL_NAMES]
    return next((path for path in candidates if path.is_dir()), candidates[0])


def _roots(folder: Path) -> Iterable[Path]:
    if folder.name in _ROOT_NAMES:
        return [folder]
    roots: list[Path] = []
    for current, subfolders, _ in os.walk(folder):
        here = Path(current)
        roots += [here / name for name in sorted(subfolders) if name in _ROOT_NAMES]
        subfolders[:] = sorted(
            name for name in subfolders if name not in (*_ROOT_NAMES, *_EXTERNAL_NAMES) and not name.startswith(".")
        )
    return roots or [folder]


def _spec_files(root: Path) -> Iterable[Path]:
    for model in sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")):
        yield from sorted(path for path in model.glob("*.json") if not path.name.startswith("."))


def _read(tree: SpecTree, root: Path, path: Path) -> Spec:
    name = _shown(path)
    content, text, problems = load_json(path, name)
    document: Document | None = None
    if content is not None:
        kind = _dialect(content, root, path)
        if isinstance(kind, str):
            problems = [Problem(name, 1, "", kind, "docs/specs.md lists the fields of each format.")]
        else:
            try:
                document = kind.model_validate(content)
            except ValidationError as error:
                problems = problems_of(error, kind, name, text)
    family = path.stem.rpartition("_")[2]
    if document is not None and not isinstance(document, RegressionV1) and family not in FAMILIES:
        message = f"the file name does not say the backend: expected {path.stem}_cpu.json or {path.stem}_rocm.json"
        problems = [*problems, Problem(name, 0, "", message, "Rename the file.")]
    return Spec(tree, root, path, name, text, document, tuple(problems))


def _dialect(content: dict[str, Any], root: Path, path: Path) -> type[Document] | str:
    """The dialect by the fields that a file has; a message where none or two fit."""
    keys = set(content)
    own = {
        kind: set(kind.model_fields)
        - set().union(*(set(other.model_fields) for other in _DIALECTS if other is not kind))
        for kind in _DIALECTS
    }
    if keys & own[RegressionV1] and keys & own[RegressionV2]:
        first, second = sorted(keys & own[RegressionV1]), sorted(keys & own[RegressionV2])
        return f"mixes two generations of regression tests: {', '.join(first)} with {', '.join(second)}"
    scores = {kind: len(keys & own[kind]) for kind in _DIALECTS}
    if isinstance(content.get("inputs"), list) and any(isinstance(item, dict) for item in content["inputs"]):
        scores[Benchmark] = 0
    best = max(_DIALECTS, key=lambda kind: scores[kind])
    shares_fields = keys & set().union(*(set(kind.model_fields) for kind in _DIALECTS))
    if not shares_fields or "type" in keys:
        found = ", ".join(sorted(keys)[:8]) or "none"
        return f"is no spec of a known format (fields found: {found})"
    if "mlir" in keys and "function_run" not in keys and best is Benchmark:
        best = RegressionV2
    if scores[best] == 0 or (best is RegressionV2 and scores[RegressionV1] == scores[RegressionV2]):
        if "mlir" not in keys and root.name == "benchmarks":
            return Benchmark
        return RegressionV2 if path.stem.rpartition("_")[2] in FAMILIES else RegressionV1
    return best


_DIALECTS: tuple[type[Document], ...] = (RegressionV1, RegressionV2, Benchmark)


def _shown(path: Path) -> str:
    """The path from the working folder where it lies below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
