"""The tasks that only read: list, plan, lint."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import messages
from iree_gauntlet.cache_folders import find_cache_folder
from iree_gauntlet.dialects.load import list_urls
from iree_gauntlet.dialects.locations import get_url_path, make_flag_problem
from iree_gauntlet.dialects.spec_file import make_field_problem
from iree_gauntlet.engine.varying import list_known_variants
from iree_gauntlet.engine.workspace import Selection, merge_equal_texts, select
from iree_gauntlet.errors import ExitCode, Problem, SpecError, ToolchainError
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.progress import Progress
from iree_gauntlet.reports.output import print_table
from iree_gauntlet.requests import Defaults, RunRequest, SelectionRequest, ShardRequest, ToolchainRequest
from iree_gauntlet.settings import find_runs_folder, resolve_links
from iree_gauntlet.system.collector import pause_collector
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.cases import Case
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.measuring.numerics.tolerances import FlagFinding
    from iree_gauntlet.steps import Step


@pause_collector()
def list_cases(request: SelectionRequest, shard: ShardRequest, *, as_json: bool) -> ExitCode:
    """Print everything that can be selected: a line for each model, submodel and target."""
    selection = select(request, Defaults(targets=FAMILIES))
    _warn(selection.warnings())
    rows: dict[tuple[str, str, str], list[Case]] = {}
    cases_of_shard = selection.cases.cases
    if shard != ShardRequest():
        from iree_gauntlet.experiments.shards import choose_shard_of_cases  # noqa: PLC0415 - it imports the journal

        cases_of_shard = choose_shard_of_cases(selection.cases, shard)
    for case in cases_of_shard:
        rows.setdefault((case.model, case.submodel, case.target.name), []).append(case)
    problems = (*selection.cases.problems, *selection.cases.operator_case_problems)
    _report_problems(problems)
    code = ExitCode.USAGE if problems else ExitCode.OK
    document = []
    table = [("MODEL", "SUBMODEL", "TARGET", "CHECKS", "MARKERS")]
    for (model, submodel, target), cases in rows.items():
        checks = [case.kind.value for case in cases]
        markers = sorted(frozenset().union(*(case.markers for case in cases)))
        specs = sorted({case.origin.file for case in cases})
        identity = {"model": model, "submodel": submodel, "target": target}
        document.append({**identity, "checks": checks, "markers": markers, "specs": specs})
        table.append((model, submodel, target, " ".join(checks), " ".join(markers)))
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return code
    print_table(table)
    models = len({model for model, _, _ in rows})
    sys.stdout.write(f"{pluralize(models, 'model')}, {pluralize(len(rows), 'chain')}\n")
    for variant in list_known_variants(selection.known_variants).values():
        sys.stdout.write(f"variant {variant.name}: {variant.changes}\n")
    return code


@pause_collector()
def show_plan(request: RunRequest, *, as_json: bool) -> ExitCode:
    """Print the steps that would run, and for each step why it would or would not come from the cache."""
    # The planner's context imports pydantic, numpy and the caches; `list` does without them.
    from iree_gauntlet.engine.plan import make_plan  # noqa: PLC0415
    from iree_gauntlet.engine.workbench import make_plan_context, open_workbench  # noqa: PLC0415
    from iree_gauntlet.experiments.shards import choose_shard  # noqa: PLC0415

    selection = select(request.selection, request.defaults)
    selection.require_no_problems()
    _warn(selection.warnings())
    for note in selection.notes:
        messages.note(note)
    name, cases, stages = selection.name, selection.cases, request.choose_stages(selection.stages)
    # Free the specs, so that the steps can reuse their memory.
    del selection
    workbench = open_workbench(request.toolchain, Progress(), request.network, need_toolchain=False, read_only=True)
    run_dir_text = request.folder.run_dir
    run_dir = resolve_links(Path(run_dir_text)) if run_dir_text else find_runs_folder() / f"next-{name}"
    plan, _ = choose_shard(
        make_plan(cases, stages, make_plan_context(workbench, run_dir, request.execution)), request.shard
    )
    missing_files_text = ""
    if request.network.offline:
        from iree_gauntlet.engine.run_start import describe_missing, find_missing_files, note_missing_files  # noqa: PLC0415 - it imports the code that runs a plan

        missing_files = find_missing_files(plan.steps, (*cases.cases, *cases.needed_cases), workbench.store)
        plan = replace(plan, steps=note_missing_files(plan.steps, missing_files))
        missing_files_text = describe_missing(missing_files) + "\n" if missing_files else ""
    if as_json:
        header = {
            "schema": 1,
            "suite": name,
            "run_dir": str(run_dir),
            "toolchain": workbench.toolchain.as_dict() if workbench.toolchain else None,
        }
        sys.stdout.writelines(_format_plan_lines(header, plan))
    else:
        if workbench.toolchain_error is not None:
            sys.stdout.write(f"note: {workbench.toolchain_error}\n")
        _print_plan(plan)
        sys.stdout.write(missing_files_text)
    _report_problems(plan.problems)
    return ExitCode.USAGE if plan.problems else ExitCode.OK


@pause_collector()
def lint(request: SelectionRequest, toolchain: ToolchainRequest | None) -> ExitCode:
    """Read every selected spec and report all problems at once; with an IREE, problems of flags, too."""
    from iree_gauntlet.artifacts.registry_file import Registry  # noqa: PLC0415
    from iree_gauntlet.artifacts.store import ArtifactStore  # noqa: PLC0415
    from iree_gauntlet.measuring.numerics.tolerances import (  # noqa: PLC0415
        find_ineffective_tolerances,
        find_loose_tolerances,
        find_wrong_tolerances,
    )
    from iree_gauntlet.upkeep.lint_checks import find_unused_golden_keys, list_case_warnings, list_unreadable_arrays  # noqa: PLC0415 - with NumPy

    selection = select(request, Defaults(targets=FAMILIES), allow_only_problems=True)
    _warn(selection.file_warnings(omit_lint_warnings=True))
    # Broken files that are not selected are errors, too.
    selected = selection.cases
    problems = [*selected.problems, *selected.unselected_problems, *selected.operator_case_problems]
    problems += selection.find_url_problems(problems)
    problems += _list_tolerance_problems(selected.cases, find_wrong_tolerances)
    cases = (*selected.cases, *selected.needed_cases)
    broken_files = {problem.file for problem in selected.operator_case_problems}
    project_problems: list[Problem] = []
    project_warnings: list[Problem] = []
    if request == SelectionRequest():
        from iree_gauntlet.upkeep.lint_checks import list_project_problems  # noqa: PLC0415

        project_problems, project_warnings = list_project_problems()
        problems += project_problems
    sound = [case for case in cases if case.origin.file not in broken_files]
    problems += [*_list_missing_files(sound), *{problem for case in sound for problem in list_unreadable_arrays(case)}]
    # A benchmark's reference to a regression test with problems is not reported: it resolves once they are corrected.
    broken_pair_keys = {_get_pair_key(problem.file) for problem in problems}
    blocked = [
        case for case in sound if case.blocked_reason and _get_pair_key(case.origin.file) not in broken_pair_keys
    ]
    problems += _list_unresolved_references(blocked)
    warnings = {(case.origin.file, note) for case in sound for note in case.notes}
    warnings |= {(case.origin.file, case.blocked_reason) for case in blocked if not case.blocked_field}
    notes: list[str] = []
    if toolchain:
        try:
            flag_problems, notes = _list_flag_problems(toolchain, selection)
        except ToolchainError as error:
            if not problems:
                raise
            notes = [f"flags were not checked: {error.message}"]
        else:
            problems += flag_problems
    for line in merge_equal_texts(sorted(warnings)):
        sys.stdout.write(f"warning: {line}\n")
    # Use the store only for lookups; it fetches no files.
    store = ArtifactStore(find_cache_folder(""), Registry())
    doubts = [
        *find_unused_golden_keys(selection.specs, cases, request.sku),
        *(problem for case in selected.cases for problem in list_case_warnings(case, store)),
        *_list_tolerance_problems(selected.cases, find_loose_tolerances),
        *_list_tolerance_problems(selected.cases, find_ineffective_tolerances),
    ]
    is_narrowed = any((request.model, request.submodel, request.filename, request.markers))
    # List unmatched entries only if the whole suite is selected and most of its cases are present; `file_warnings` has
    # printed their number in any case.
    unmatched_entries = (
        () if is_narrowed or len(selected.unmatched_entries) > len(selected.cases) else selected.unmatched_entries
    )
    all_warnings = (*selected.warnings, *unmatched_entries, *doubts, *project_warnings, *selection.risks)
    for problem in all_warnings:
        sys.stdout.write(f"warning: {problem}\n")
    for note in notes:
        sys.stdout.write(f"note: {note}\n")
    files = len({case.origin.file for case in cases} | {problem.file for problem in problems})
    if problems:
        raise SpecError(problems, "files of the project" if project_problems else "spec files")
    files_with_warnings = {file for file, _ in warnings} | {problem.file for problem in all_warnings}
    suffix = f", {len(files_with_warnings)} with warnings" if files_with_warnings else ""
    sys.stdout.write(f"{pluralize(files, 'spec file')} {'is' if files == 1 else 'are'} valid{suffix}\n")
    return ExitCode.OK


def _list_weights(case: Case) -> Iterator[tuple[str, str]]:
    """Yield (field, URL) of the external data files of a case's ONNX programs."""
    from iree_gauntlet.artifacts.onnx_data import list_data_files  # noqa: PLC0415

    for module in case.modules:
        path = Path(get_url_path(module.program.url)) if module.program.onnx and not module.program.local_file else None
        if path is not None and module.origin.file == case.origin.file:
            yield from (
                (module.origin.field, (path.parent / name).absolute().as_uri()) for name in list_data_files(path)
            )


def _get_pair_key(file: str) -> tuple[str, ...]:
    """Return the end of a file's path, which is the same for a regression and its benchmark."""
    return tuple(file.split("/")[-2:])


def _list_unresolved_references(cases: Iterable[Case]) -> list[Problem]:
    """Return problems of references to things that no spec defines, or to paths that do not exist."""
    references = {(case.origin.file, case.blocked_field, case.blocked_reason) for case in cases if case.blocked_field}
    return [make_field_problem(*reference) for reference in sorted(references)]


def _list_missing_files(cases: Iterable[Case]) -> list[Problem]:
    """Return problems of files that specs name by path, but that do not exist."""
    from iree_gauntlet.artifacts.sources import describe_missing_file  # noqa: PLC0415

    missing_files = {
        (case.origin.file, field, path)
        for case in cases
        for field, url in (*list_urls(case), *_list_weights(case))
        if (path := get_url_path(url)) and path not in case.blocked_reason and not os.path.isfile(path)  # noqa: PTH113
    }
    return [
        make_field_problem(file, field, *describe_missing_file(Path(path)))
        for file, field, path in sorted(missing_files)
    ]


def _warn(warnings: Iterable[str]) -> None:
    for text in warnings:
        messages.warn(text)


def _list_flag_problems(toolchain: ToolchainRequest, selection: Selection) -> tuple[list[Problem], list[str]]:
    """Return problems of flags that the installed tools lack, and notes on flags with another spelling in the tools."""
    from iree_gauntlet.engine.plan import make_plan  # noqa: PLC0415
    from iree_gauntlet.engine.workbench import make_plan_context, open_workbench  # noqa: PLC0415

    workbench = open_workbench(toolchain, Progress(), need_toolchain=True)
    context = make_plan_context(workbench, find_runs_folder() / "lint")
    # Problems of sources are reported elsewhere, and do not affect flags.
    context = replace(context, artifact_path=Path, artifact_hash=lambda _url: "")
    plan = make_plan(selection.cases, selection.stages, context)
    notes = sorted({f"{step.origin.file}: {note}" for step in plan.steps for note in step.notes})
    return [*plan.problems, *plan.operator_case_problems], notes


def _list_tolerance_problems(cases: Iterable[Case], find: Callable[[Case], Iterator[FlagFinding]]) -> list[Problem]:
    """Return the problems of the cases' tolerances; each flag of a file occurs once."""
    findings = dict.fromkeys(finding for case in cases for finding in find(case))
    return [make_flag_problem(finding.file, finding.flag, finding.message, finding.hint) for finding in findings]


def _format_plan_lines(header: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """Yield a plan as one JSON object, a line for each step, so that a long plan is never completely in memory."""
    write = partial(json.dumps, ensure_ascii=False)
    yield "{\n"
    for name, value in header.items():
        yield f"{write(name)}: {write(value)},\n"
    lists = {"steps": map(_collect_step_record, plan.steps), "problems": map(asdict, plan.problems)}
    for name, records in lists.items():
        yield f"{write(name)}: ["
        for index, record in enumerate(records):
            yield f"{',' if index else ''}\n{write(record)}"
        yield "\n]\n" if name == "problems" else "\n],\n"
    yield "}\n"


def _collect_step_record(step: Step) -> dict[str, Any]:
    """Return a step as in `plan --format json`; docs/reference/results.md describes the fields."""
    return {
        "id": step.id,
        "case": step.chain,
        "step": step.stage.value,
        "spec": step.origin.file,
        "field": step.origin.field,
        "argv": list(step.command.words) if step.command else [],
        "cwd": step.command.cwd if step.command else "",
        "env": dict(step.command.env) if step.command else {},
        # Avoid `asdict`, whose deep copies take a third of the time of a plan with thousands of steps.
        "inputs": [
            {"role": item.role, "path": item.path, "url": item.url, "sha256": item.sha256} for item in step.inputs
        ],
        "outputs": dict(step.outputs),
        "needs": list(step.needs),
        "key": step.cache.key,
        "cached": step.cache.hit,
        "why": step.cache.reason,
        "resources": {name: getattr(step.resources, name) for name in ("cores", "exclusive", "device")},
        "timeout_seconds": step.timeout,
        "expectation": {
            "outcome": "fail" if step.expect_failure else "pass",
            "reason": step.expect_failure,
            "kinds": list(step.expect_kinds),
            "match": step.expect_match,
        },
        "quarantine": step.quarantine and step.quarantine.as_dict(),
        "goldens": [{**asdict(golden), "limit": golden.limit} for golden in step.goldens],
        "skip": step.skip,
        "blocked": step.blocked,
        "notes": list(step.notes),
    }


def _print_plan(plan: Plan) -> None:
    chain = ""
    for step in plan.steps:
        if step.chain != chain:
            chain = step.chain
            sys.stdout.write(f"{chain}  ({step.origin.file})\n")
        state = "skipped" if step.skip else "blocked" if step.blocked else "cached" if step.cache.hit else "runs"
        reason = step.skip or step.blocked or step.cache.reason
        expectation = f"; expected: {' or '.join(step.expect_kinds)}" if step.expect_failure else ""
        expectation += f"; in quarantine until {step.quarantine.until}" if step.quarantine else ""
        sys.stdout.write(f"  {step.id.removeprefix(chain + ':'):<10} {state:<8} {reason}{expectation}\n")
        if step.command is not None:
            sys.stdout.write(f"    $ {shlex.join(step.command.words)}\n")
        for note in step.notes:
            sys.stdout.write(f"    note: {note}\n")
    cached_count = sum(step.cache.hit for step in plan.steps)
    sys.stdout.write(f"{pluralize(len(plan.steps), 'step')}, {cached_count} from the cache\n")


def _report_problems(problems: Sequence[Problem]) -> None:
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
