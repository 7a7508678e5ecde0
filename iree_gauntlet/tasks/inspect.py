"""The tasks that only look: list, plan, lint."""

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
from iree_gauntlet.dialects.locations import file_path, problem_of_flag
from iree_gauntlet.dialects.spec_file import problem_of_field
from iree_gauntlet.engine.workspace import Selection, each_once, select
from iree_gauntlet.errors import ExitCode, Problem, SpecError, ToolchainError
from iree_gauntlet.formatting import counted
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
    """Prints what can be selected: a line for each model, submodel and target."""
    selection = select(request, Defaults(targets=FAMILIES))
    _warn(selection.warnings())
    rows: dict[tuple[str, str, str], list[Case]] = {}
    chosen = selection.cases.cases
    if shard != ShardRequest():
        from iree_gauntlet.experiments.shards import choose_shard_of_cases  # noqa: PLC0415 - it brings the journal

        chosen = choose_shard_of_cases(selection.cases, shard)
    for case in chosen:
        rows.setdefault((case.model, case.submodel, case.target.name), []).append(case)
    problems = (*selection.cases.problems, *selection.cases.broken)
    _report_problems(problems)
    code = ExitCode.USAGE if problems else ExitCode.OK
    document = []
    table = [("MODEL", "SUBMODEL", "TARGET", "CHECKS", "MARKERS")]
    for (model, submodel, target), cases in rows.items():
        checks = [case.kind.value for case in cases]
        markers = sorted(frozenset().union(*(case.markers for case in cases)))
        specs = sorted({case.origin.file for case in cases})
        listed = {"model": model, "submodel": submodel, "target": target}
        document.append({**listed, "checks": checks, "markers": markers, "specs": specs})
        table.append((model, submodel, target, " ".join(checks), " ".join(markers)))
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return code
    print_table(table)
    models = len({model for model, _, _ in rows})
    sys.stdout.write(f"{counted(models, 'model')}, {counted(len(rows), 'chain')}\n")
    return code


@pause_collector()
def show_plan(request: RunRequest, *, as_json: bool) -> ExitCode:
    """Prints what would run, and why each step would or would not come from the cache."""
    # The planner's context brings pydantic, numpy and the caches; `list` answers without them.
    from iree_gauntlet.engine.plan import make_plan  # noqa: PLC0415
    from iree_gauntlet.engine.workbench import open_workbench, plan_context  # noqa: PLC0415
    from iree_gauntlet.experiments.shards import choose_shard  # noqa: PLC0415

    selection = select(request.selection, request.defaults)
    selection.require_sound()
    _warn(selection.warnings())
    for note in selection.notes:
        messages.note(note)
    name, cases, stages = selection.name, selection.cases, request.stages_after(selection.stages)
    # What the specs say takes more memory than the steps, which find room where it was.
    del selection
    machine = open_workbench(request.toolchain, Progress(), request.network, need_toolchain=False, look_only=True)
    named = request.folder.run_dir
    run_dir = resolve_links(Path(named)) if named else find_runs_folder() / f"next-{name}"
    plan, _ = choose_shard(make_plan(cases, stages, plan_context(machine, run_dir, request.conduct)), request.shard)
    not_here = ""
    if request.network.offline:
        from iree_gauntlet.engine.run_start import describe_missing, find_missing_files, without_missing_files  # noqa: PLC0415 - it brings what runs a plan

        missing = find_missing_files(plan.steps, (*cases.cases, *cases.required), machine.store)
        plan = replace(plan, steps=without_missing_files(plan.steps, missing))
        not_here = describe_missing(missing) + "\n" if missing else ""
    if as_json:
        head = {
            "schema": 1,
            "suite": name,
            "run_dir": str(run_dir),
            "toolchain": machine.toolchain.as_dict() if machine.toolchain else None,
        }
        sys.stdout.writelines(_plan_lines(head, plan))
    else:
        if machine.missing is not None:
            sys.stdout.write(f"note: {machine.missing}\n")
        _print_plan(plan)
        sys.stdout.write(not_here)
    _report_problems(plan.problems)
    return ExitCode.USAGE if plan.problems else ExitCode.OK


@pause_collector()
def lint(request: SelectionRequest, toolchain: ToolchainRequest | None) -> ExitCode:
    """Reads every selected spec, with all that is wrong with them at once; flags too, where an IREE is given."""
    from iree_gauntlet.artifacts.registry_file import Registry  # noqa: PLC0415
    from iree_gauntlet.artifacts.store import ArtifactStore  # noqa: PLC0415
    from iree_gauntlet.measuring.numerics.tolerances import (  # noqa: PLC0415
        find_loose_tolerances,
        find_void_tolerances,
        find_wrong_tolerances,
    )
    from iree_gauntlet.upkeep.lint_checks import find_idle_keys, list_doubts, list_unreadable_arrays  # noqa: PLC0415 - with NumPy

    selection = select(request, Defaults(targets=FAMILIES), for_problems=True)
    _warn(selection.file_warnings(listed=True))
    # One that was not selected is a mistake all the same.
    found = selection.cases
    problems = [*found.problems, *found.left_out, *found.broken]
    problems += selection.source_problems(problems)
    problems += _list_tolerance_problems(found.cases, find_wrong_tolerances)
    cases = (*found.cases, *found.required)
    broken = {problem.file for problem in found.broken}
    of_files: list[Problem] = []
    beside: list[Problem] = []
    if request == SelectionRequest():
        from iree_gauntlet.upkeep.lint_checks import list_project_problems  # noqa: PLC0415

        of_files, beside = list_project_problems()
        problems += of_files
    sound = [case for case in cases if case.origin.file not in broken]
    problems += [*_list_missing_files(sound), *{problem for case in sound for problem in list_unreadable_arrays(case)}]
    # What a benchmark lacks of a regression of the same name is there once that can be read.
    faulty = {_pair(problem.file) for problem in problems}
    lacking = [case for case in sound if case.blocked_reason and _pair(case.origin.file) not in faulty]
    problems += _list_unnamed(lacking)
    warnings = {(case.origin.file, note) for case in sound for note in case.notes}
    warnings |= {(case.origin.file, case.blocked_reason) for case in lacking if not case.blocked_field}
    notes: list[str] = []
    if toolchain:
        try:
            more, notes = _list_flag_problems(toolchain, selection)
        except ToolchainError as error:
            if not problems:
                raise
            notes = [f"flags were not checked: {error.what}"]
        else:
            problems += more
    for line in each_once(sorted(warnings)):
        sys.stdout.write(f"warning: {line}\n")
    # Nothing is fetched.
    store = ArtifactStore(find_cache_folder(""), Registry())
    doubtful = [
        *find_idle_keys(selection.specs, cases, request.sku),
        *(problem for case in found.cases for problem in list_doubts(case, store)),
        *_list_tolerance_problems(found.cases, find_loose_tolerances),
        *_list_tolerance_problems(found.cases, find_void_tolerances),
    ]
    part = any((request.model, request.submodel, request.filename, request.markers))
    # Of a part of a suite, `file_warnings` has said how many entries name none of its cases.
    unmatched = () if part or len(found.unmatched) > len(found.cases) else found.unmatched
    passed_over = (*found.warnings, *unmatched, *doubtful, *beside, *selection.risks)
    for problem in passed_over:
        sys.stdout.write(f"warning: {problem}\n")
    for note in notes:
        sys.stdout.write(f"note: {note}\n")
    files = len({case.origin.file for case in cases} | {problem.file for problem in problems})
    if problems:
        raise SpecError(problems, "files of the project" if of_files else "spec files")
    warned_of = {file for file, _ in warnings} | {problem.file for problem in passed_over}
    warned = f", {len(warned_of)} with warnings" if warned_of else ""
    sys.stdout.write(f"{counted(files, 'spec file')} {'is' if files == 1 else 'are'} valid{warned}\n")
    return ExitCode.OK


def _list_weights(case: Case) -> Iterator[tuple[str, str]]:
    """(field, URL) of the files that ONNX programs of a case keep weights in."""
    from iree_gauntlet.artifacts.onnx_data import list_data_files  # noqa: PLC0415

    for module in case.modules:
        path = Path(file_path(module.program.url)) if module.program.onnx and not module.program.name else None
        if path is not None and module.origin.file == case.origin.file:
            yield from (
                (module.origin.field, (path.parent / name).absolute().as_uri()) for name in list_data_files(path)
            )


def _pair(file: str) -> tuple[str, ...]:
    """The end of a file's name, by which a regression and its benchmark belong together."""
    return tuple(file.split("/")[-2:])


def _list_unnamed(cases: Iterable[Case]) -> list[Problem]:
    """What specs name that no other spec defines, or that is at no path."""
    found = {(case.origin.file, case.blocked_field, case.blocked_reason) for case in cases if case.blocked_field}
    return [problem_of_field(*item) for item in sorted(found)]


def _list_missing_files(cases: Iterable[Case]) -> list[Problem]:
    """Files that specs name by their paths, and that are not there."""
    from iree_gauntlet.artifacts.sources import missing  # noqa: PLC0415

    gone = {
        (case.origin.file, field, path)
        for case in cases
        for field, url in (*list_urls(case), *_list_weights(case))
        if (path := file_path(url)) and path not in case.blocked_reason and not os.path.isfile(path)  # noqa: PTH113
    }
    return [problem_of_field(file, field, *missing(Path(path))) for file, field, path in sorted(gone)]


def _warn(warnings: Iterable[str]) -> None:
    for text in warnings:
        messages.warn(text)


def _list_flag_problems(toolchain: ToolchainRequest, selection: Selection) -> tuple[list[Problem], list[str]]:
    """Flags that the installed tools do not know, and those that would be written otherwise."""
    from iree_gauntlet.engine.plan import make_plan  # noqa: PLC0415
    from iree_gauntlet.engine.workbench import open_workbench, plan_context  # noqa: PLC0415

    machine = open_workbench(toolchain, Progress(), need_toolchain=True)
    context = plan_context(machine, find_runs_folder() / "lint")
    # What is wrong with a source is said without it, and is nothing to a flag.
    context = replace(context, artifact_path=Path, artifact_hash=lambda _url: "")
    plan = make_plan(selection.cases, selection.stages, context)
    notes = sorted({f"{step.origin.file}: {note}" for step in plan.steps for note in step.notes})
    return [*plan.problems, *plan.broken], notes


def _list_tolerance_problems(cases: Iterable[Case], find: Callable[[Case], Iterator[FlagFinding]]) -> list[Problem]:
    """What is found of the tolerances that cases give, each flag of a file once."""
    findings = dict.fromkeys(finding for case in cases for finding in find(case))
    return [problem_of_flag(item.file, item.flag, item.message, item.hint) for item in findings]


def _plan_lines(head: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """A plan as one JSON object, a line for each step: a long one is never in memory as a whole."""
    write = partial(json.dumps, ensure_ascii=False)
    yield "{\n"
    for name, value in head.items():
        yield f"{write(name)}: {write(value)},\n"
    lists = {"steps": map(_collect_step_record, plan.steps), "problems": map(asdict, plan.problems)}
    for name, records in lists.items():
        yield f"{write(name)}: ["
        for index, record in enumerate(records):
            yield f"{',' if index else ''}\n{write(record)}"
        yield "\n]\n" if name == "problems" else "\n],\n"
    yield "}\n"


def _collect_step_record(step: Step) -> dict[str, Any]:
    """A step as `plan --format json` gives it; docs/reference/results.md describes the fields."""
    return {
        "id": step.id,
        "case": step.chain,
        "step": step.stage.value,
        "spec": step.origin.file,
        "field": step.origin.field,
        "argv": list(step.command.argv) if step.command else [],
        "cwd": step.command.cwd if step.command else "",
        "env": dict(step.command.env) if step.command else {},
        # `asdict` copies deeply: a third of what a plan of thousands of steps costs.
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
        why = step.skip or step.blocked or step.cache.reason
        expected = f"; expected: {' or '.join(step.expect_kinds)}" if step.expect_failure else ""
        sys.stdout.write(f"  {step.id.removeprefix(chain + ':'):<10} {state:<8} {why}{expected}\n")
        if step.command is not None:
            sys.stdout.write(f"    $ {shlex.join(step.command.argv)}\n")
        for note in step.notes:
            sys.stdout.write(f"    note: {note}\n")
    cached = sum(step.cache.hit for step in plan.steps)
    sys.stdout.write(f"{counted(len(plan.steps), 'step')}, {cached} from the cache\n")


def _report_problems(problems: Sequence[Problem]) -> None:
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
