"""From folders to specs, and from specs and a selection to cases, whatever their dialects; finds duplicates.

A folder with `run_module_io_flags.txt` or `run_module_io.json` is a case of an operator suite (`op_suites`). Else, a
root is a folder `regression_tests`, `quality_tests`, `benchmarks` or `torch_models` anywhere in a spec folder,
or the spec folder itself where it has none of these. The specs of torch models lie anywhere below their root,
those of sharktank are `<root>/<model>/<name>.json`; a spec folder may be that of one model, too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Argument, ArgumentOrder, Case, Expectation, Origin, Parameters
from iree_gauntlet.dialects.configured_suites import has_word
from iree_gauntlet.dialects.locations import flag_variables, names_device, with_device
from iree_gauntlet.dialects.onnx_models import OUTCOMES, ModelSpec, OnnxModels, is_models_suite, read_model_specs
from iree_gauntlet.dialects.op_suites import CONFIGS, CaseFolder, OpSpec, is_case_folder, read_op_specs
from iree_gauntlet.dialects.op_tests import OpTests
from iree_gauntlet.dialects.selection import Include, MarkerExpression
from iree_gauntlet.dialects.sharktank import Sharktank
from iree_gauntlet.dialects.sharktank_schema import read_sharktank_specs
from iree_gauntlet.dialects.spec import (
    ROOT_NAMES,
    SHARKTANK,
    TORCH_MODELS,
    TORCH_ROOT,
    Builder,
    Loaded,
    Spec,
    SpecTree,
    find_defined_twice,
)
from iree_gauntlet.dialects.spec_file import did_you_mean
from iree_gauntlet.dialects.torch_models import TorchTests
from iree_gauntlet.dialects.torch_schema import has_type, list_json_files, read_torch_specs_below
from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.stages import FailureKind, Kind, Stage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from iree_gauntlet.stages import Stage
    from iree_gauntlet.targets import Target


AnySpec = Spec | OpSpec | ModelSpec

_BUILDERS: dict[str, type[Builder[Any]]] = {
    SHARKTANK: Sharktank,
    TORCH_MODELS: TorchTests,
    OpSpec.dialect: OpTests,
    ModelSpec.dialect: OnnxModels,
}
_EXTERNAL_NAMES = ("external_test_files", "test_suite_files")
_SOURCES = {name: fields for builder in _BUILDERS.values() for name, fields in builder.sources.items()}
SOURCE_NAMES = frozenset().union(*(fields.names for fields in _SOURCES.values()))


def read_specs(
    folders: Sequence[Path],
    external: Path | None = None,
    modules: Path | None = None,
    configs: Sequence[Path] = (),
    model_root: str = "",
) -> list[AnySpec]:
    """Reads every spec file of some folders, each once, in a stable order; UsageError where one is none.

    Args:
        folders: spec folders.
        external: where files named by specs are; by default `external_test_files` or `test_suite_files` in
            the spec folder or next to it.
        modules: where module definitions of torch models are; by default the root of a spec, or the folder above it.
        configs: of operator suites and of ONNX models; by default those in the folder `configs` of each.
        model_root: where ONNX models are fetched from, in place of the URLs of their suite.
    """
    specs: dict[Path, Spec] = {}
    met = _Suites({}, [], [])
    for folder in folders:
        tree = _make_tree(folder, external, modules)
        for root in _find_roots(tree.folder, met):
            is_torch = _holds_torch_models(root, named=modules is not None)
            for spec in read_torch_specs_below(tree, root) if is_torch else read_sharktank_specs(tree, root):
                specs.setdefault(spec.path, spec)
    asked = list(dict.fromkeys(Path(os.path.abspath(path)) for path in configs))  # noqa: PTH100 - links stay as named
    cases = list(met.cases.values())
    of_operators = [path for path in asked if cases and not has_word(path, OUTCOMES)]
    of_models = [path for path in asked if path not in of_operators]
    if (of_models or model_root) and not met.models:
        named = f"--config {of_models[0]}" if of_models else f"--model-root {model_root}"
        what = "operator suite" if of_models and not has_word(of_models[0], OUTCOMES) else "suite of ONNX models"
        hint = f"Leave it out, or give --spec-dir the folder of the {what}."
        raise UsageError(f"{named}: there is no {what} in {', '.join(map(str, folders))}", hint)
    here = str(Path.cwd())
    return [
        *specs.values(),
        *read_op_specs(cases, met.with_configs, of_operators, here),
        *read_model_specs(met.models, of_models, model_root, here),
    ]


def read_torch_specs(
    folder: Path, external: Path | None = None, modules: Path | None = None, without: Path | None = None
) -> list[Spec]:
    """Reads the specs of torch models anywhere below a folder, their root, but for what lies below `without`."""
    tree = _make_tree(folder, external, modules)
    return list(read_torch_specs_below(tree, tree.folder, without))


def _make_tree(folder: Path, external: Path | None, modules: Path | None) -> SpecTree:
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"spec folder {folder} {found}", "Give --spec-dir a folder that holds spec files.")
    if external is None:
        # In the spec folder or next to it; of one model's folder, or of a root's, where those of all models are.
        above = resolve_links(folder).parents
        depth = next((n for n, base in enumerate((resolve_links(folder), *above[:1]), 1) if base.name in ROOT_NAMES), 0)
        candidates = [base / name for base in (folder, *above[: depth + 1]) for name in _EXTERNAL_NAMES]
        external = next((path for path in candidates if path.is_dir()), candidates[0])
    variables = tuple(flag_variables().items())
    return SpecTree(
        resolve_links(folder), resolve_links(external), resolve_links(modules) if modules else None, variables
    )


@dataclass(frozen=True, slots=True)
class _Suites:
    """What is met on the way: operators' folders of cases by path and of configs, and suites of ONNX models."""

    cases: dict[str, CaseFolder]
    with_configs: list[str]
    models: list[Path]

    def add_case(self, path: str, files: Iterable[str], found_from: Path) -> None:
        """Takes in the folder of a case."""
        try:
            path.encode()
        except UnicodeEncodeError:
            name = os.fsencode(path).decode("utf-8", "replace")
            raise UsageError(f"{name}: its name is not UTF-8", "Rename the folder of this case.") from None
        self.cases.setdefault(path, CaseFolder(path, tuple(files), str(found_from)))


def _find_roots(folder: Path, met: _Suites) -> Iterable[Path]:
    """The roots of other specs in a folder; itself where it has neither them nor operator cases."""
    if folder.name in ROOT_NAMES and not _holds_cases(folder):
        return [folder]
    roots: list[Path] = []
    has_cases = False
    for current, subfolders, files in os.walk(folder):
        if is_case_folder(files):
            met.add_case(current, files, folder)
            subfolders.clear()
            has_cases = True
            continue
        if is_models_suite(Path(current), named=current == str(folder)):
            met.models.append(Path(current))
            subfolders.clear()
            continue
        for name in subfolders:
            # Folders behind links are not walked through, but a case may be one.
            place = f"{current}/{name}"
            if os.path.islink(place) and is_case_folder(inside := os.listdir(place)):  # noqa: PTH114, PTH208
                met.add_case(place, inside, folder)
                has_cases = True
        if CONFIGS in subfolders:
            met.with_configs.append(current)
        # A suite of operators may have a folder of such a name, too.
        others = [name for name in sorted(subfolders) if name in ROOT_NAMES and not _holds_cases(Path(current, name))]
        roots += [Path(current, name) for name in others]
        subfolders[:] = sorted(
            name for name in subfolders if name not in (*others, *_EXTERNAL_NAMES) and not name.startswith(".")
        )
    return roots or ([] if has_cases or met.models else [folder])


def _holds_cases(folder: Path) -> bool:
    """Whether there are cases of operator suites anywhere below a folder."""
    return any(is_case_folder(files) for _, _, files in os.walk(folder))


def _holds_torch_models(root: Path, *, named: bool) -> bool:
    """Whether a root is one of torch models: by its name, or a folder of another name whose files have a `type`."""
    if root.name in ROOT_NAMES:
        return root.name == TORCH_ROOT
    return named or any(has_type(path) for path in list_json_files(root))


@dataclass(frozen=True, slots=True)
class ExpectedFailure:
    """An expected failure that a suite lists: a glob over `model/submodel`; and as an `Expectation`."""

    case: str
    stage: Stage
    reason: str
    origin: Origin
    kinds: tuple[FailureKind, ...] = tuple(FailureKind)
    match: str = ""


@dataclass(frozen=True, slots=True)
class CaseSet:
    """What was selected; its cases are in the order of model, submodel, kind."""

    cases: tuple[Case, ...]
    required: tuple[Case, ...]
    problems: tuple[Problem, ...]
    unknown_markers: tuple[str, ...] = ()
    known_markers: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()
    left_out: tuple[Problem, ...] = ()
    unmatched: tuple[Problem, ...] = ()
    broken: tuple[Problem, ...] = ()


def load_cases(
    specs: Sequence[AnySpec],
    includes: Sequence[Include],
    targets: Sequence[Target],
    expected_failures: Sequence[ExpectedFailure] = (),
    device: str = "",
) -> CaseSet:
    """The cases that a selection means on some targets.

    Of the targets, each family is there at most once; without a chip, sharktank's specs get a default one, and torch
    models are meant whatever theirs. A device replaces those of the specs.
    """
    loaded = Loaded(targets, {include: MarkerExpression(include.markers) for include in includes})
    builders = {
        name: builder([spec for spec in specs if spec.dialect == name], loaded) for name, builder in _BUILDERS.items()
    }
    for spec in specs:
        builders[spec.dialect].add(spec, [include for include in includes if include.matches_spec(spec)])
    for builder in builders.values():
        builder.finish()
    cases, required = loaded.cases, loaded.required
    names = {f"{item.model}/{item.submodel}" for item in (*specs, *required.values())}
    problems = loaded.problems | _find_duplicates(cases) | _find_unmatched(expected_failures, names)
    cases.sort(key=lambda case: (case.model, case.submodel, case.target, case.kind is not Kind.QUALITY, case.id))
    words = frozenset().union(*(expression.words for expression in loaded.expressions.values()))
    return CaseSet(
        tuple(adjusted(case, expected_failures, device) for case in cases),
        tuple(adjusted(required[key], expected_failures, device) for key in sorted(required)),
        tuple(sorted(problems)),
        tuple(sorted(words - loaded.known)),
        tuple(sorted(loaded.known)),
        tuple(sorted(loaded.elsewhere)),
        tuple(sorted(loaded.warnings)),
        tuple(sorted(loaded.left_out - problems)),
        tuple(sorted(loaded.unmatched)),
        tuple(sorted(loaded.broken)),
    )


def list_urls(case: Case) -> Iterator[tuple[str, str]]:
    """(field of the spec, URL) of every file that a case itself names.

    The program of an operator's case is a file next to it, which was looked for when the case was read.
    """
    fields = _SOURCES[case.dialect]
    for module in (*case.modules, *case.extra_modules):
        program = module.program
        if program.url and not program.name and module.origin.file == case.origin.file:
            yield module.origin.field, program.url
    named: list[tuple[str, Sequence[Argument | Parameters]]] = [
        (fields.parameters, case.parameters),
        (fields.inputs, case.inputs),
        (fields.outputs, case.expected_outputs),
    ]
    for place, items in named:
        yield from ((place.format(index), item.url) for index, item in enumerate(items) if place and item.url)


def adjusted(case: Case, expected: Sequence[ExpectedFailure], device: str = "") -> Case:
    """The case with those of the expected failures that name it, and on another device where one is given."""
    name = f"{case.model}/{case.submodel}"
    added = tuple(
        Expectation(item.stage, item.reason, item.origin, item.kinds, item.match)
        for item in expected
        if fnmatchcase(name, item.case)
    )
    if added:
        case = replace(case, expectations=(*added, *case.expectations))
    if not device:
        return case
    if case.order is ArgumentOrder.DEVICE_FIRST:
        return replace(case, device=device) if case.device else case
    if case.kind not in (Kind.QUALITY, Kind.BENCHMARK):
        return case
    own = tuple(flag for flag in case.own_flags if not names_device(flag))
    return replace(case, device=device, run_flags=with_device(case.run_flags, device), own_flags=own)


def _find_duplicates(cases: Sequence[Case]) -> set[Problem]:
    """Files that claim one name. A regression and a benchmark of sharktank share it; a torch model's test does not."""
    first: dict[str, Case] = {}
    problems: set[Problem] = set()
    shared = {case.chain for case in cases if case.order is ArgumentOrder.MODULES_FIRST}
    for case in cases:
        kind = "" if case.chain in shared else "benchmark" if case.kind is Kind.BENCHMARK else "regression"
        other = first.setdefault(f"{case.chain}:{kind}", case)
        if other.origin.file != case.origin.file:
            name = f"{case.model}/{case.submodel}"
            problems.add(find_defined_twice(name, case.target, case.origin.file, other.origin.file))
    return problems


def _find_unmatched(expected: Sequence[ExpectedFailure], names: Collection[str]) -> set[Problem]:
    """Expected failures whose glob fits no spec at all: misspelt, or left behind."""
    problems: set[Problem] = set()
    for item in expected:
        if not any(fnmatchcase(name, item.case) for name in names):
            message = f"{item.case!r} fits no spec{did_you_mean(item.case, names)}"
            hint = "Write a glob over model/submodel, or remove the entry."
            problems.add(Problem(item.origin.file, 0, f"{item.origin.field}.case", message, hint))
    return problems
