"""Trees of spec files: which files are specs, of which dialect, and what is wrong with them.

A folder with `run_module_io_flags.txt` or `run_module_io.json` is a case of an operator suite (`op_trees`). Else, a
root is a folder `regression_tests`, `quality_tests`, `benchmarks` or `torch_models` anywhere in a spec folder,
or the spec folder itself where it has none of these. The specs of torch models lie anywhere below their root,
those of sharktank are `<root>/<model>/<name>.json`; a spec folder may be that of one model, too.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.dialects.fields import OWN_TARGET, OWN_TARGET_HINT, validated
from iree_gauntlet.dialects.json_text import without_comments
from iree_gauntlet.dialects.locations import flag_variables
from iree_gauntlet.dialects.onnx_models import OUTCOMES, ModelSpec, has_word, is_models_suite, read_model_specs
from iree_gauntlet.dialects.op_suites import CONFIGS, CaseFolder, OpSpec, is_case_folder, read_op_specs
from iree_gauntlet.dialects.sharktank_schema import Benchmark, RegressionV1, RegressionV2
from iree_gauntlet.dialects.spec import SHARKTANK_FAMILIES, Spec, SpecTree
from iree_gauntlet.dialects.spec_file import load_json, problem_at, without_strange_fields
from iree_gauntlet.dialects.torch_schema import TEST_TYPES, ModuleDefinition, torch_document
from iree_gauntlet.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


AnySpec = Spec | OpSpec | ModelSpec

_TORCH_ROOT = "torch_models"
_ROOT_NAMES = ("regression_tests", "quality_tests", "benchmarks", _TORCH_ROOT)
_EXTERNAL_NAMES = ("external_test_files", "test_suite_files")
_SHARKTANK: tuple[type[RegressionV1 | RegressionV2 | Benchmark], ...] = (RegressionV1, RegressionV2, Benchmark)
_TORCH_FIELDS = frozenset().union(*(kind.model_fields for kind in (ModuleDefinition, *TEST_TYPES.values())))
_OWN_FIELDS = {
    kind: frozenset(kind.model_fields).difference(*(other.model_fields for other in _SHARKTANK if other is not kind))
    for kind in _SHARKTANK
}
_TORCH_HINT = "docs/reference/torch-models.md lists the fields of tests and module definitions."


def read_specs(
    folders: Sequence[Path],
    external: Path | None = None,
    modules: Path | None = None,
    configs: Sequence[Path] = (),
    model_root: str = "",
) -> list[AnySpec]:
    """Reads every spec file of some folders, each once, in a stable order.

    Args:
        folders: spec folders.
        external: where files named by specs are; by default `external_test_files` or `test_suite_files` in
            the spec folder or next to it.
        modules: where module definitions of torch models are; by default the root of a spec, or the folder
            above it.
        configs: of operator suites and of ONNX models; by default those in the folder `configs` of each.
        model_root: where ONNX models are fetched from, in place of the URLs of their suite.

    Raises:
        UsageError: a folder or config does not exist or is none.
    """
    specs: dict[Path, Spec] = {}
    operators = _Operators({}, [], [])
    for folder in folders:
        tree = _tree(folder, external, modules)
        for root in _roots(tree.folder, operators):
            if _holds_torch_models(root, named=modules is not None):
                found = _torch_specs(tree, root)
            else:
                found = _sharktank_specs(tree, root)
            for spec in found:
                specs.setdefault(spec.path, spec)
    asked = list(dict.fromkeys(Path(os.path.abspath(path)) for path in configs))  # noqa: PTH100 - links stay as named
    cases, roots = list(operators.cases.values()), operators.models
    of_operators = [path for path in asked if cases and not has_word(path, OUTCOMES)]
    of_models = [path for path in asked if path not in of_operators]
    if (of_models or model_root) and not roots:
        named = f"--config {of_models[0]}" if of_models else f"--model-root {model_root}"
        what = "operator suite" if of_models and not has_word(of_models[0], OUTCOMES) else "suite of ONNX models"
        hint = f"Leave it out, or give --spec-dir the folder of the {what}."
        raise UsageError(f"{named}: there is no {what} in {', '.join(map(str, folders))}", hint)
    here = str(Path.cwd())
    return [
        *specs.values(),
        *(read_op_specs(cases, operators.with_configs, of_operators, here) if cases else ()),
        *read_model_specs(roots, of_models, model_root, here),
    ]


def read_torch_specs(
    folder: Path, external: Path | None = None, modules: Path | None = None, without: Path | None = None
) -> list[Spec]:
    """Reads the specs of torch models anywhere below a folder, which is their root.

    Args:
        folder: the folder of the tests.
        external: as for `read_specs`.
        modules: as for `read_specs`.
        without: a folder that is not looked into.

    Raises:
        UsageError: the folder does not exist or is none.
    """
    tree = _tree(folder, external, modules)
    return list(_torch_specs(tree, tree.folder, without))


def read_module_definition(tree: SpecTree, root: Path, path: Path) -> Spec:
    """Reads a file as a module definition, whatever it looks like."""
    name = _shown(path)
    content, text, problems = load_json(path, name, without_comments)
    document = None
    if content is not None:
        document, problems = validated(ModuleDefinition, content, name, text)
    return Spec(tree, root, path, name, document, tuple(problems), torch=True, kind=ModuleDefinition)


def _tree(folder: Path, external: Path | None, modules: Path | None) -> SpecTree:
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"spec folder {folder} {found}", "Give --spec-dir a folder that holds spec files.")
    external = (external or _external_folder(folder)).resolve()
    variables = tuple(flag_variables().items())
    return SpecTree(folder.resolve(), external, modules.resolve() if modules else None, variables)


def _external_folder(folder: Path) -> Path:
    """In the spec folder or next to it; of one model's folder, or of a root's, where those of all models are."""
    above = folder.resolve().parents
    depth = next((n for n, base in enumerate((folder.resolve(), *above[:1]), 1) if base.name in _ROOT_NAMES), 0)
    candidates = [base / name for base in (folder, *above[: depth + 1]) for name in _EXTERNAL_NAMES]
    return next((path for path in candidates if path.is_dir()), candidates[0])


@dataclass(frozen=True, slots=True)
class _Operators:
    """What of operator suites is met on the way: folders of cases by path, and folders that may hold configs.

    And roots of suites of ONNX models.
    """

    cases: dict[str, CaseFolder]
    with_configs: list[str]
    models: list[Path]

    def add(self, path: str, files: Iterable[str], found_from: Path) -> None:
        """Takes in the folder of a case.

        Raises:
            UsageError: its name cannot be written anywhere.
        """
        try:
            path.encode()
        except UnicodeEncodeError:
            name = os.fsencode(path).decode("utf-8", "replace")
            raise UsageError(f"{name}: its name is not UTF-8", "Rename the folder of this case.") from None
        self.cases.setdefault(path, CaseFolder(path, tuple(files), str(found_from)))


def _roots(folder: Path, operators: _Operators) -> Iterable[Path]:
    """The roots of other specs in a folder; itself where it has neither them nor operator cases."""
    if folder.name in _ROOT_NAMES and not _holds_cases(folder):
        return [folder]
    roots: list[Path] = []
    has_cases = False
    for current, subfolders, files in os.walk(folder):
        if is_case_folder(files):
            operators.add(current, files, folder)
            subfolders.clear()
            has_cases = True
            continue
        if is_models_suite(Path(current), named=current == str(folder)):
            operators.models.append(Path(current))
            subfolders.clear()
            continue
        for name in subfolders:
            # Folders behind links are not walked through, but a case may be one.
            place = f"{current}/{name}"
            if os.path.islink(place) and is_case_folder(inside := os.listdir(place)):  # noqa: PTH114, PTH208
                operators.add(place, inside, folder)
                has_cases = True
        if CONFIGS in subfolders:
            operators.with_configs.append(current)
        # A suite of operators may have a folder of such a name, too.
        others = [name for name in sorted(subfolders) if name in _ROOT_NAMES and not _holds_cases(Path(current, name))]
        roots += [Path(current, name) for name in others]
        subfolders[:] = sorted(
            name for name in subfolders if name not in (*others, *_EXTERNAL_NAMES) and not name.startswith(".")
        )
    return roots or ([] if has_cases or operators.models else [folder])


def _holds_cases(folder: Path) -> bool:
    """Whether there are cases of operator suites anywhere below a folder."""
    return any(is_case_folder(files) for _, _, files in os.walk(folder))


# torch models


def _holds_torch_models(root: Path, *, named: bool) -> bool:
    """Whether a root is one of torch models: by its name, or a folder of another name whose files have a `type`."""
    if root.name in _ROOT_NAMES:
        return root.name == _TORCH_ROOT
    return named or any(_has_type(path) for path in _files_below(root))


def _has_type(path: Path) -> bool:
    try:
        content = path.read_bytes()
        document = json.loads(without_comments(content.decode("utf-8-sig"))) if b'"type"' in content else None
    except (OSError, ValueError, RecursionError):
        # It is reported when it is read as a spec.
        return False
    return isinstance(document, dict) and "type" in document


def _files_below(root: Path, without: Path | None = None) -> Iterator[Path]:
    for current, subfolders, files in os.walk(root):
        subfolders[:] = sorted(
            name for name in subfolders if not name.startswith(".") and Path(current, name) != without
        )
        for name in sorted(files):
            if name.endswith(".json") and not name.startswith("."):
                yield Path(current, name)


def _torch_specs(tree: SpecTree, root: Path, without: Path | None = None) -> Iterator[Spec]:
    return (spec for path in _files_below(root, without) if (spec := _read_torch(tree, root, path)))


def _read_torch(tree: SpecTree, root: Path, path: Path) -> Spec | None:
    """A test or module definition; None for a JSON file that is neither."""
    name = _shown(path)
    spec = partial(Spec, tree, root, path, name, torch=True)
    content, text, problems = load_json(path, name, without_comments)
    if content is None:
        return spec(None, tuple(problems))
    kind = torch_document(content)
    if kind is None:
        return None
    if isinstance(kind, str):
        return spec(None, (problem_at(name, text, ["type"], kind, _TORCH_HINT),))
    content, warnings = without_strange_fields(content, _TORCH_FIELDS, name, text)
    document, problems = validated(kind, content, name, text)
    words = None if kind is ModuleDefinition else _words(content, str(content["type"]))
    return spec(document, tuple(problems), tuple(warnings), kind=kind, words=words)


def _words(content: dict[str, Any], kind: str) -> frozenset[str] | None:
    """The name of a spec's kind and its markers; None where these are no words."""
    markers = content.get("markers", [])
    is_list = isinstance(markers, list) and all(isinstance(marker, str) for marker in markers)
    return frozenset({kind, *markers}) if is_list else None


# sharktank


def _sharktank_specs(tree: SpecTree, root: Path) -> Iterator[Spec]:
    models = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = [path for model in models for path in _json_in(model)]
    if root.name in _ROOT_NAMES:
        yield from (_misplaced(tree, root, path) for path in _json_in(root))
    if not files and root == tree.folder:
        # It is the folder of one model, perhaps of a root whose files it may name.
        root, files = root.parent, _json_in(root)
        tree = replace(tree, folder=root) if root.name in _ROOT_NAMES else tree
    yield from (_read_sharktank(tree, root, path) for path in files)


def _misplaced(tree: SpecTree, root: Path, path: Path) -> Spec:
    """A file where no model's folder is: it may have been meant as a spec."""
    name = _shown(path)
    message = f"is not read: specs lie in their model's folder, {_shown(root)}/MODEL/"
    return Spec(tree, root, path, name, None, warnings=(Problem(name, 0, "", message, "Move it there."),))


def _json_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))


def _read_sharktank(tree: SpecTree, root: Path, path: Path) -> Spec:
    name = _shown(path)
    spec = partial(Spec, tree, root, path, name)
    content, text, problems = load_json(path, name)
    if content is None:
        return spec(None, tuple(problems))
    kind = _sharktank_document(content, root, path)
    if isinstance(kind, str):
        return spec(None, (Problem(name, 1, "", kind, "docs/reference/specs.md lists the fields of each format."),))
    words = _words(content, "benchmark" if kind is Benchmark else "quality")
    document, problems = validated(kind, content, name, text)
    family = path.stem.rpartition("_")[2]
    first = isinstance(document, RegressionV1) or (isinstance(document, Benchmark) and document.device is None)
    if document is not None and not first and family not in SHARKTANK_FAMILIES:
        message = f"the file name does not say the backend: expected {path.stem}_cpu.json or {path.stem}_rocm.json"
        problems = [*problems, Problem(name, 0, "", message, "Rename the file.")]
    if isinstance(document, RegressionV2) and family in document.targets:
        problems = [*problems, problem_at(name, text, ["targets", family], OWN_TARGET, OWN_TARGET_HINT)]
    if isinstance(document, Benchmark) and first and family == "cpu":
        problems = [problem_at(name, text, ["device"], "is missing: only the first generation, for ROCm, has none")]
        document = None
    return spec(document, tuple(problems), kind=kind, words=words)


def _sharktank_document(
    content: dict[str, Any], root: Path, path: Path
) -> type[RegressionV1 | RegressionV2 | Benchmark] | str:
    """The dialect by the fields that a file has; a message where none or two fit."""
    keys = set(content)
    own = _OWN_FIELDS
    if keys & own[RegressionV1] and keys & own[RegressionV2]:
        first, second = sorted(keys & own[RegressionV1]), sorted(keys & own[RegressionV2])
        return f"mixes two generations of regression tests: {', '.join(first)} with {', '.join(second)}"
    scores = {kind: len(keys & own[kind]) for kind in _SHARKTANK}
    if isinstance(content.get("inputs"), list) and any(isinstance(item, dict) for item in content["inputs"]):
        scores[Benchmark] = 0
    best = max(_SHARKTANK, key=lambda kind: scores[kind])
    shares_fields = keys & set().union(*(set(kind.model_fields) for kind in _SHARKTANK))
    if not shares_fields or "type" in keys:
        found = ", ".join(sorted(keys)[:8]) or "none"
        return f"is not a spec of a known format (fields found: {found})"
    if "mlir" in keys and "function_run" not in keys and best is Benchmark:
        best = RegressionV2
    if scores[best] == 0 or (best is RegressionV2 and scores[RegressionV1] == scores[RegressionV2]):
        if "mlir" not in keys and root.name == "benchmarks":
            return Benchmark
        return RegressionV2 if path.stem.rpartition("_")[2] in SHARKTANK_FAMILIES else RegressionV1
    return best


def _shown(path: Path) -> str:
    """The path from the working folder where it lies below it."""
    return str(path).removeprefix(f"{str(Path.cwd()).rstrip('/')}/")
