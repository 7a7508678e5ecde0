"""The `history` tasks: list and judge the runs of a history, and confirm a step by measuring it again."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import sys
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import messages
from iree_gauntlet.cache_folders import make_cache_folder
from iree_gauntlet.dialects.configuration_file import MARKS_FILE, read_configuration, read_marks
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.formatting import list_first, pluralize
from iree_gauntlet.history.extract import extract, make_iree_version
from iree_gauntlet.history.imports import ImportFacts, import_figures
from iree_gauntlet.history.index import HistoryIndex, describe_remedy, explain_new_sku
from iree_gauntlet.history.judge import (
    MinEffects,
    add_confirmations,
    apply_marks,
    find_unused_marks,
    judge,
    judge_verdicts,
    remove_invalid,
)
from iree_gauntlet.history.stores import HistoryStore, find_history, open_history
from iree_gauntlet.journal_events import ToolchainInfo
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.compare_record import read_comparison
from iree_gauntlet.records.history_record import (
    FIGURES_BY_SERIES,
    Finding,
    FindingKind,
    HistoryMachine,
    HistoryOutcome,
    HistoryRun,
    make_history_file,
    select_series,
)
from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.records.run_folder import LATEST, find_named_run, list_inner_runs, list_newer_folders
from iree_gauntlet.reports.history_page import (
    export_rows,
    format_series_json,
    make_changes_document,
    make_history_page,
    make_runs_document,
    make_series_document,
)
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import read_memory, render_html
from iree_gauntlet.reports.report_files import append_document
from iree_gauntlet.requests import CompareRequest, Defaults, RunRequest
from iree_gauntlet.settings import find_project_folder, find_runs_folder, format_path
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.experiments.sides import ComparingMachines
    from iree_gauntlet.progress import Reporter
    from iree_gauntlet.records.history_record import FailureRate, Series
    from iree_gauntlet.upkeep.upkeep_requests import (
        AddRequest,
        CheckRequest,
        ConfirmRequest,
        ExportRequest,
        HistoryRequest,
        ImportRequest,
        PageRequest,
        PruneRequest,
        SeriesRequest,
    )


_MAX_HINTS = 20
_MAX_LISTED_NAMES = 5
_COMMIT = re.compile(r"[0-9a-fA-F]{7,40}")
# The metric of `compare` for each series that it measures in rounds; figures without noise need no comparison.
_METRICS = {name: figure.row.metric for name, figure in FIGURES_BY_SERIES.items() if figure.is_compared_in_rounds}


def _open_store(request: HistoryRequest) -> HistoryStore:
    settings = read_configuration(find_project_folder(), os.environ)
    return open_history(request.store or find_history(settings), settings, make_cache_folder(request.cache_dir))


def _open_index(request: HistoryRequest) -> HistoryIndex:
    """Open the index of the requested history, updated."""
    store = _open_store(request)
    index = HistoryIndex(store)
    index.update()
    if not index.runs() and not index.problems():
        raise UsageError(f"the history in {store.place} has no runs yet", "`gauntlet history.add` adds the latest one.")
    return index


def add(request: AddRequest) -> ExitCode:
    """Add runs, whatever their results; UsageError if one has a SKU that is new, unless `--new-sku` is given."""
    folders = [find_named_run(name, "history.add") for name in request.runs or (LATEST,)]
    store = _open_store(request)
    records = [read_journal(folder / JOURNAL) for folder in folders]
    for record in () if request.new_sku else records:
        if reason := explain_new_sku(record, store):
            raise UsageError(f"nothing was added: {reason}", describe_remedy(map(format_path, folders)))
    code = _keep_runs(store, [part for record in records for part in extract(read_outcome(record))])
    for newer in list_newer_folders(folders[0]) if not request.runs else ():
        runs = [str(format_path(newer / name)) for name in list_inner_runs(newer)]
        hint = f"; its runs can be named: {list_first(runs, _MAX_LISTED_NAMES)}" if runs else ""
        sys.stdout.write(f"left out: {newer.name} is newer, not a run of spec files{hint}\n")
    return code


def add_imported(request: ImportRequest) -> ExitCode:
    """Add the figures that other tools have written."""
    if not request.files:
        raise UsageError("history.import: no files were given", "Name files: gauntlet history.import data.js.")
    if request.commit and not _COMMIT.fullmatch(request.commit):
        raise UsageError(
            f"--commit {request.commit}: expected a commit",
            "Give at least 7 of its hexadecimal digits, such as 89ece87b.",
        )
    info = ImportFacts(request.date, request.commit.lower(), request.machine, request.sku)
    return _keep_runs(_open_store(request), [run for file in request.files for run in import_figures(Path(file), info)])


def _keep_runs(store: HistoryStore, runs: list[HistoryRun]) -> ExitCode:
    added_count = store.add(dict(map(make_history_file, runs)))
    figures = sum(len(case.figures) for run in runs for case in run.cases)
    present_count = len(runs) - added_count
    present_text = f", {present_count} {'was' if present_count == 1 else 'were'} already there" if present_count else ""
    names = list_first(list(dict.fromkeys(run.run for run in runs)), _MAX_LISTED_NAMES)
    added_runs = f"{pluralize(added_count, 'run')} added to {store.place}{present_text}"
    sys.stdout.write(f"{added_runs}; {pluralize(figures, 'figure')} of {names or 'nothing'}\n")
    return ExitCode.OK


def list_runs(request: HistoryRequest, *, as_json: bool) -> ExitCode:
    """Print the runs of a history, the newest last, and the rates of cases that fail."""
    index = _open_index(request)
    runs, rates = index.runs(), judge_verdicts(index.read_verdicts())
    code = warn_of_unread(index.problems())
    if as_json:
        content = {"schema": 1, "runs": list(map(asdict, runs)), "rates": _format_rates(rates)}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        print_document(make_runs_document(runs, rates), sys.stdout, environ=os.environ)
    return code


def _format_rates(rates: Iterable[FailureRate]) -> list[dict[str, Any]]:
    return [{**asdict(rate), "can_be_released": rate.can_be_released} for rate in rates]


def export(request: ExportRequest) -> ExitCode:
    """Write all figures as CSV."""
    index = _open_index(request)
    series = _choose_series(index, request.series)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(export_rows(series))
    code = warn_of_unread(index.problems())
    if not request.output:
        sys.stdout.write(text.getvalue())
        return code
    try:
        write_atomic(Path(request.output), text.getvalue())
    except OSError as error:
        raise GauntletError(f"{request.output}: {error.strerror}", "Name another file with --output.") from error
    sys.stdout.write(f"{request.output}: {len(series)} series\n")
    return code


def _choose_series(index: HistoryIndex, pattern: str, sku: str = "") -> tuple[Series, ...]:
    """Select the series of an index that match a glob, of one device; at least one, if the choice is limited."""
    all_series = index.series()
    matches = select_series(all_series, pattern, sku)
    if not matches and (pattern or sku):
        names = sorted({series.key.sku if sku else series.key.case for series in all_series} - {""})
        hint = (
            f"{'SKUs' if sku else 'Cases'} there: "
            f"{', '.join(names[:_MAX_HINTS]) or 'none'}{', …' if len(names) > _MAX_HINTS else ''}."
        )
        raise NothingSelectedError(f"no series matches {' of '.join(filter(None, (pattern, sku)))}", hint)
    return matches


def warn_of_unread(problems: Iterable[str]) -> ExitCode:
    """Print warnings about unreadable files; return ERROR if there are any."""
    code = ExitCode.OK
    for problem in problems:
        messages.warn(problem)
        code = ExitCode.ERROR
    return code


def prune(request: PruneRequest) -> ExitCode:
    """Remove old runs."""
    if not request.before:
        raise UsageError("history.prune: which runs?", "Give it: --before 2026-01-31.")
    day = parse_day(request.before, "--before")
    store = _open_store(request)
    index = HistoryIndex(store)
    index.update()
    old = [run for run in index.runs() if datetime.fromisoformat(run.time).astimezone(UTC).date() < day]
    if request.delete:
        store.remove([run.file for run in old])
    else:
        print_document(make_runs_document(old), sys.stdout, environ=os.environ)
    outcome = "removed" if request.delete else "would be removed; --delete does it"
    sys.stdout.write(f"{pluralize(len(old), 'run')} before {day} {outcome}\n")
    return ExitCode.OK


def parse_day(text: str, option: str) -> date:
    """Parse the day that an option names; UsageError if it is none."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: expected a day", "Such as 2026-01-31.") from error


def confirm(request: ConfirmRequest, presenter: Reporter, machines: ComparingMachines | None = None) -> ExitCode:
    """Measure the two IREEs of a step alternately, record the result, and print the next bisect command."""
    regressions = [loss for loss in judge_history(request).regressions if loss.kind is FindingKind.REGRESSION]
    if not regressions:
        raise NothingSelectedError("nothing that matches got worse", "`history.check` shows all that changed.")
    # Choose the most certain regression without a confirmation, preferably one that can be measured.
    finding = min(
        regressions,
        key=lambda loss: (loss.same_iree, bool(loss.confirmed), loss.key.figure not in _METRICS, loss.p_value or 0.0),
    )
    key, irees = (
        finding.key,
        (
            finding.point_before.iree_arg or finding.point_before.iree,
            finding.point_after.iree_arg or finding.point_after.iree,
        ),
    )
    metric = FIGURES_BY_SERIES[key.figure].row.metric if key.figure in FIGURES_BY_SERIES else ""
    if not metric or irees[0] == irees[1]:
        reason = f"{key.figure} is not measured by compare" if not metric else f"both sides are IREE {irees[0]}"
        raise UsageError(f"{key.title} cannot be confirmed: {reason}", "Compare two of your own: gauntlet compare A B.")
    change = f"{100 * finding.change:+.1f} % between {irees[0]} and {irees[1]}"
    presenter.line(f"{key.title}: {change}", is_result=True)
    if key.figure not in _METRICS:
        presenter.line("it is exact, so there is nothing to confirm", is_result=True)
        code = ExitCode.OK
    else:
        code = _measure(request, finding, irees, presenter, machines)
    if code is not ExitCode.INTERRUPTED:
        command = ["gauntlet", "bisect", "--good", irees[0], "--bad", irees[1], "--metric", metric]
        words = shlex.join((*command, *key.selection_options))
        presenter.line(f"since which release or commit: {words}", is_result=True)
    return code


def _measure(
    request: ConfirmRequest,
    finding: Finding,
    irees: tuple[str, str],
    presenter: Reporter,
    machines: ComparingMachines | None,
) -> ExitCode:
    """Compare the two IREEs, and add the result to the history."""
    # This import loads the engine, which the other history tasks do not need.
    from iree_gauntlet.experiments.compare import compare  # noqa: PLC0415

    key, start_time = finding.key, datetime.now(UTC)
    folder = find_runs_folder() / f"{start_time:%Y%m%d-%H%M%S}-confirm"
    values = {**key.selection, "sku": key.sku, "cache_dir": request.cache_dir, "run_dir": str(folder)}
    run_request = RunRequest.of(values, Defaults())
    compare_request = CompareRequest(sides=irees, metric=_METRICS[key.figure], budget=request.budget)
    code = compare(compare_request, run_request, presenter, machines)
    record = read_comparison(folder)
    chain = key.case.partition("+")[0]
    verdict, measurement = record.verdicts.get(chain), record.measured.get(chain)
    if verdict is None:
        return code
    confirms = {
        "case": key.case,
        "figure": key.figure,
        "before": finding.point_before.iree,
        "after": finding.point_after.iree,
        "verdict": verdict.verdict,
        **{name: getattr(verdict.figures, name, None) for name in ("ratio", "low", "high")},
        "blocks": verdict.blocks,
    }
    run = HistoryRun(
        run=folder.name,
        time=start_time.isoformat(),
        cases=(),
        iree=make_iree_version(ToolchainInfo.from_dict(record.sides[1].toolchain)),
        machine=HistoryMachine.of(measurement.machine if measurement else read_machine_facts()),
        state="confirmation",
        more={"confirms": confirms},
    )
    _open_store(request).add(dict([make_history_file(run)]))
    return code


def check(request: CheckRequest, *, as_json: bool) -> ExitCode:
    """Print the changes; return a failure if a regression has not recovered."""
    outcome = judge_history(request)
    if request.since:
        day = parse_day(request.since, "--since")
        recent_findings = [
            finding
            for finding in outcome.findings
            if datetime.fromisoformat(finding.point_after.time).astimezone(UTC).date() >= day
        ]
        outcome = replace(outcome, findings=tuple(recent_findings))
    if as_json:
        findings = [finding.as_dict() for finding in outcome.findings]
        content = {"schema": 1, "history": outcome.location, "runs": outcome.runs, "series": len(outcome.series)}
        content |= {"exit_code": int(outcome.exit_code), "findings": findings, "problems": list(outcome.problems)}
        content |= {"rates": _format_rates(outcome.rates)}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        document = make_changes_document(outcome)
        print_document(document, sys.stdout, environ=os.environ)
        append_document(document, os.environ)
    return outcome.exit_code


def show(request: SeriesRequest, *, as_json: bool) -> ExitCode:
    """Print series with their changes."""
    outcome = judge_history(request)
    if as_json:
        sys.stdout.write(json.dumps(format_series_json(outcome), indent=2) + "\n")
    else:
        print_document(make_series_document(outcome), sys.stdout, environ=os.environ)
    return warn_of_unread(outcome.problems)


def page(request: PageRequest) -> ExitCode:
    """Write the page of a history; a replaced page's record of changes already shown is kept."""
    outcome = judge_history(request)
    file = Path(request.output or "history.html")
    try:
        memory = read_memory(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else ""
        write_atomic(file, render_html(make_history_page(outcome, f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}", memory)))
    except OSError as error:
        raise GauntletError(f"{file}: {error.strerror}", "Name another file with --output.") from error
    sys.stdout.write(f"{file}: {len(outcome.series)} series of {pluralize(outcome.runs, 'run')}\n")
    return warn_of_unread(outcome.problems)


def judge_history(request: SeriesRequest) -> HistoryOutcome:
    """Judge the requested series of the requested history."""
    index, settings = _open_index(request), read_configuration(find_project_folder(), os.environ).history
    series = _choose_series(index, request.series, request.sku)
    if request.marks and not Path(request.marks).is_file():
        raise UsageError(f"--marks {request.marks}: no such file", "Name a file such as history_marks.toml.")
    marks = read_marks(Path(request.marks) if request.marks else find_project_folder() / MARKS_FILE)
    for problem in find_unused_marks(index.series(), marks) if marks else ():
        messages.warn(problem)
    series = remove_invalid(series, marks)
    findings = apply_marks(
        judge(series, MinEffects(settings.least_time, settings.least_other, settings.least_size)), series, marks
    )
    findings = add_confirmations(findings, index.confirmations())
    return HistoryOutcome(
        _open_store(request).place,
        sum(run.state != "confirmation" for run in index.runs()),
        series,
        findings,
        index.problems(),
        judge_verdicts(index.read_verdicts(), request.series, request.sku),
    )
