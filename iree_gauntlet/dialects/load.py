"""Reading of folders into specs, and of specs and a selection into cases, for all dialects; finds duplicates.

A folder with `run_module_io_flags.txt` or `run_module_io.json` is a case of an operator suite (`op_suites`). Else, a
root is a folder `regression_tests`, `quality_tests`, `benchmarks` or `torch_models` anywhere in a spec folder,
or the spec folder itself where it has none of these. The specs of torch models are anywhere below their root,
those of sharktank are `<root>/<model>/<name>.json`; a spec folder may be that of one model, too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Argument, ArgumentOrder, Case, Expectation, Parameters, Quarantine
from iree_gauntlet.dialects.locations import names_device, read_flag_variables, with_device
from iree_gauntlet.dialects.selection import Include, MarkerExpression
from iree_gauntlet.dialects.sharktank import Sharktank
from iree_gauntlet.dialects.sharktank_schema import read_sharktank_specs
from iree_gauntlet.dialects.spec import (
    ONNX_MODELS,
    OP_TESTS,
    ROOT_NAMES,
    SOURCE_FIELDS,
    TORCH_MODELS,
    TORCH_ROOT,
    Builder,
    Collector,
    Spec,
    SpecTree,
    make_duplicate,
)
from iree_gauntlet.dialects.spec_file import did_you_mean
from iree_gauntlet.dialects.spec_folders import EXTERNAL_NAMES, OUTCOMES, SuiteFolders, find_roots, has_word
from iree_gauntlet.dialects.torch_models import TorchTests
from iree_gauntlet.dialects.torch_schema import has_type, list_json_files, read_torch_specs_below
from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.stages import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from iree_gauntlet.dialects.onnx_models import ModelSpec
    from iree_gauntlet.dialects.op_suites import OpSpec
    from iree_gauntlet.targets import Target

    AnySpec = Spec | OpSpec | ModelSpec


def read_specs(
    folders: Sequence[Path],
    external: Path | None = None,
    modules: Path | None = None,
    configs: Sequence[Path] = (),
    model_root: str = "",
) -> list[AnySpec]:
    """Read every spec file of some folders, each once, in a stable order; UsageError where one is no folder.

    Args:
        folders: spec folders.
        external: folder of files named by specs; by default `external_test_files` or `test_suite_files` in
            the spec folder or next to it.
        modules: folder of module definitions of torch models; by default the root of a spec, or the folder above it.
        configs: of operator suites and of ONNX models; by default those in the folder `configs` of each.
        model_root: base of ONNX models, in place of the URLs of their suite.
    """
    specs: dict[Path, Spec] = {}
    suites = SuiteFolders({}, [], [])
    for folder in folders:
        tree = _make_tree(folder, external, modules)
        for root in find_roots(tree.folder, suites):
            is_torch = root.name == TORCH_ROOT
            if root.name not in ROOT_NAMES:
                # The `type` in the files of folders of other names tells.
                is_torch = modules is not None or any(has_type(path) for path in list_json_files(root))
            for spec in read_torch_specs_below(tree, root) if is_torch else read_sharktank_specs(tree, root):
                specs.setdefault(spec.path, spec)
    config_paths = list(dict.fromkeys(Path(os.path.abspath(path)) for path in configs))  # noqa: PTH100 - links stay as named
    cases = list(suites.cases.values())
    op_paths = [path for path in config_paths if cases and not has_word(path, OUTCOMES)]
    model_paths = [path for path in config_paths if path not in op_paths]
    if (model_paths or model_root) and not suites.models:
        option = f"--config {model_paths[0]}" if model_paths else f"--model-root {model_root}"
        noun = "operator suite" if model_paths and not has_word(model_paths[0], OUTCOMES) else "suite of ONNX models"
        hint = f"Leave it out, or give --spec-dir the folder of the {noun}."
        raise UsageError(f"{option}: there is no {noun} in {', '.join(map(str, folders))}", hint)
    working_folder = str(Path.cwd())
    all_specs: list[AnySpec] = [*specs.values()]
    # The readers of suites are imported only where there is a suite, because each command that reads specs waits.
    if cases:
        from iree_gauntlet.dialects.op_suites import read_op_specs  # noqa: PLC0415

        all_specs += read_op_specs(cases, suites.with_configs, op_paths, working_folder)
    if suites.models:
        from iree_gauntlet.dialects.onnx_models import read_model_specs  # noqa: PLC0415

        all_specs += read_model_specs(suites.models, model_paths, model_root, working_folder)
    return all_specs


def read_torch_specs(
    folder: Path, external: Path | None = None, modules: Path | None = None, excluded_folder: Path | None = None
) -> list[Spec]:
    """Read the specs of torch models anywhere below a folder, their root, except below `excluded_folder`."""
    tree = _make_tree(folder, external, modules)
    return list(read_torch_specs_below(tree, tree.folder, excluded_folder))


def _make_tree(folder: Path, external: Path | None, modules: Path | None) -> SpecTree:
    if not folder.is_dir():
        problem = "is a file" if folder.exists() else "does not exist"
        raise UsageError(f"spec folder {folder} {problem}", "Give --spec-dir a folder that contains spec files.")
    if external is None:
        # They are in the spec folder or next to it; for the folder of one model or of a root, next to those of all
        # models.
        parents = resolve_links(folder).parents
        depth = next(
            (level for level, path in enumerate((resolve_links(folder), *parents[:1]), 1) if path.name in ROOT_NAMES), 0
        )
        candidates = [path / name for path in (folder, *parents[: depth + 1]) for name in EXTERNAL_NAMES]
        external = next((path for path in candidates if path.is_dir()), candidates[0])
    variables = tuple(read_flag_variables().items())
    return SpecTree(
        resolve_links(folder), resolve_links(external), resolve_links(modules) if modules else None, variables
    )


@dataclass(frozen=True, slots=True)
class CaseSet:
    """The selected cases, in the order of model, submodel and kind; `needed_cases` have modules that these use."""

    cases: tuple[Case, ...]
    needed_cases: tuple[Case, ...]
    problems: tuple[Problem, ...]
    unknown_markers: tuple[str, ...] = ()
    known_markers: tuple[str, ...] = ()
    other_targets: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()
    unselected_problems: tuple[Problem, ...] = ()
    unmatched_entries: tuple[Problem, ...] = ()
    operator_case_problems: tuple[Problem, ...] = ()  # each becomes the verdict of its case


def load_cases(
    specs: Sequence[AnySpec],
    includes: Sequence[Include],
    targets: Sequence[Target],
    expected_failures: Sequence[Expectation] = (),
    device: str = "",
    quarantines: Sequence[Quarantine] = (),
) -> CaseSet:
    """Build the cases that a selection matches on some targets.

    No target includes another; without a chip, sharktank's specs get a default one, and torch models match any chip.
    A device replaces those of the specs.
    """
    collector = Collector(targets, {include: MarkerExpression(include.markers) for include in includes})
    builders = {
        name: _choose_builder(name)([spec for spec in specs if spec.dialect == name], collector)
        for name in dict.fromkeys(spec.dialect for spec in specs)
    }
    for spec in specs:
        builders[spec.dialect].add(spec, [include for include in includes if include.matches_spec(spec)])
    for builder in builders.values():
        builder.finish()
    cases, required = collector.cases, collector.needed_cases
    names = {f"{spec.model}/{spec.submodel}" for spec in (*specs, *required.values())}
    problems = collector.problems | _find_duplicates(cases) | _find_unmatched([*expected_failures, *quarantines], names)
    cases.sort(key=lambda case: (case.model, case.submodel, case.target, case.kind is not Kind.QUALITY, case.id))
    words = frozenset().union(*(expression.words for expression in collector.expressions.values()))
    return CaseSet(
        tuple(adjust_case(case, expected_failures, device, quarantines) for case in cases),
        tuple(adjust_case(required[key], expected_failures, device, quarantines) for key in sorted(required)),
        tuple(sorted(problems)),
        tuple(sorted(words - collector.known_markers)),
        tuple(sorted(collector.known_markers)),
        tuple(sorted(collector.other_targets)),
        tuple(sorted(collector.warnings)),
        tuple(sorted(collector.unselected_problems - problems)),
        tuple(sorted(collector.unmatched_entries)),
        tuple(sorted(collector.operator_case_problems)),
    )


def _choose_builder(dialect: str) -> type[Builder[Any]]:
    """Return the class that builds the cases of a dialect's specs."""
    if dialect == OP_TESTS:
        from iree_gauntlet.dialects.op_tests import OpTests  # noqa: PLC0415 - only for operator suites

        return OpTests
    if dialect == ONNX_MODELS:
        from iree_gauntlet.dialects.onnx_models import OnnxModels  # noqa: PLC0415 - only for suites of ONNX models

        return OnnxModels
    return TorchTests if dialect == TORCH_MODELS else Sharktank


def list_urls(case: Case) -> Iterator[tuple[str, str]]:
    """Yield (field of the spec, URL) of every file that a case itself names.

    The program of an operator's case is a file next to it, which was checked when the case was read.
    """
    fields = SOURCE_FIELDS[case.dialect]
    for module in (*case.modules, *case.pipeline_modules):
        program = module.program
        if program.url and not program.local_file and module.origin.file == case.origin.file:
            yield module.origin.field, program.url
    sources: list[tuple[str, str, Sequence[Argument | Parameters]]] = [("", fields.parameters, case.parameters)]
    for call in case.calls:
        sources += [(call.field, fields.inputs, call.inputs), (call.field, fields.outputs, call.expected_outputs)]
    for prefix, pattern, entries in sources:
        for index, entry in enumerate(entries):
            if pattern and entry.url:
                yield prefix + pattern.format(index), entry.url


def adjust_case(
    case: Case, failures: Sequence[Expectation], device: str = "", quarantines: Sequence[Quarantine] = ()
) -> Case:
    """Add the expected failures and quarantines that match a case, and replace its device if a device is given."""
    expectations = tuple(failure for failure in failures if failure.applies_to(case))
    quarantines = tuple(entry for entry in quarantines if entry.applies_to(case))
    if expectations or quarantines:
        expectations, quarantines = (*expectations, *case.expectations), (*quarantines, *case.quarantines)
        case = replace(case, expectations=expectations, quarantines=quarantines)
    if not device:
        return case
    if case.order is ArgumentOrder.DEVICE_FIRST:
        return replace(case, device=device) if case.device else case
    if case.kind not in (Kind.QUALITY, Kind.BENCHMARK):
        return case
    own_flags = tuple(flag for flag in case.own_flags if not names_device(flag))
    return replace(case, device=device, run_flags=with_device(case.run_flags, device), own_flags=own_flags)


def _find_duplicates(cases: Sequence[Case]) -> set[Problem]:
    """Find files that claim the same name; a regression and a benchmark of sharktank may share a name."""
    first_cases: dict[str, Case] = {}
    problems: set[Problem] = set()
    module_first_chains = {case.chain for case in cases if case.order is ArgumentOrder.MODULES_FIRST}
    for case in cases:
        kind = "" if case.chain in module_first_chains else "benchmark" if case.kind is Kind.BENCHMARK else "regression"
        first_case = first_cases.setdefault(f"{case.chain}:{kind}", case)
        if first_case.origin.file != case.origin.file:
            name = f"{case.model}/{case.submodel}"
            problems.add(make_duplicate(name, case.target, case.origin.file, first_case.origin.file))
    return problems


def _find_unmatched(failures: Sequence[Expectation | Quarantine], names: Collection[str]) -> set[Problem]:
    """Find expected failures and quarantines whose glob matches no spec at all, because it is misspelt or outdated."""
    problems: set[Problem] = set()
    for failure in failures:
        if not any(fnmatchcase(name, failure.cases) for name in names):
            message = f"{failure.cases!r} matches no spec{did_you_mean(failure.cases, names)}"
            hint = "Write a glob over model/submodel, or remove the entry."
            problems.add(Problem(failure.origin.file, 0, f"{failure.origin.field}.case", message, hint))
    return problems
