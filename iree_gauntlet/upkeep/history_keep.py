"""The `history` tasks: what is in a history, what changed in it, and whether a step is there when measured again."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import sys
from dataclasses import asdict, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.cache_folders import make_cache_folder
from iree_gauntlet.dialects.configuration_file import MARKS_FILE, read_configuration, read_marks
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.formatting import counted, listed
from iree_gauntlet.history.extract import extract, make_iree_version
from iree_gauntlet.history.imports import ImportFacts, import_figures
from iree_gauntlet.history.index import HistoryIndex
from iree_gauntlet.history.judge import Effects, find_idle_marks, judge, with_confirmations, with_marks, without_invalid
from iree_gauntlet.history.stores import HistoryStore, find_history, open_history
from iree_gauntlet.journal_events import ToolchainFacts
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.compare_record import read_comparison
from iree_gauntlet.records.history_record import (
    TRENDS,
    Finding,
    FindingKind,
    HistoryMachine,
    HistoryOutcome,
    HistoryRun,
    history_file,
    select_series,
)
from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.records.run_folder import LATEST, list_newer, list_runs_within, run_named
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
from iree_gauntlet.settings import find_project_folder, find_runs_folder, shown
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.experiments.sides import ComparingMachines
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.records.history_record import Series
    from iree_gauntlet.upkeep.upkeep_requests import (
        AddRequest,
        AskRequest,
        CheckRequest,
        ConfirmRequest,
        ExportRequest,
        HistoryRequest,
        ImportRequest,
        PageRequest,
        PruneRequest,
    )


# Names in a hint, and in a line.
_MOST = 20
_MOST_NAMED = 5
# How `compare` and `bisect` call a figure; what has no noise needs no comparison.
# Of the series that `compare` measures in rounds.
_TIMED = {name: figure.row.metric for name, figure in TRENDS.items() if figure.is_compared_in_rounds}


def _store_of(asked: HistoryRequest) -> HistoryStore:
    settings = read_configuration(find_project_folder(), os.environ)
    return open_history(asked.store or find_history(settings), settings, make_cache_folder(asked.cache_dir))


def _open_index(asked: HistoryRequest) -> HistoryIndex:
    """The index of the history that is asked for, brought up to date."""
    store = _store_of(asked)
    index = HistoryIndex(store)
    index.update()
    if not index.runs() and not index.problems():
        raise UsageError(f"the history in {store.place} has no run yet", "`gauntlet history.add` adds the latest one.")
    return index


def add(asked: AddRequest) -> ExitCode:
    """Add runs, whatever came of them."""
    folders = [run_named(word, "history.add") for word in asked.runs or (LATEST,)]
    code = _keep_runs(
        _store_of(asked), [part for folder in folders for part in extract(read_outcome(read_journal(folder / JOURNAL)))]
    )
    for newer in list_newer(folders[0]) if not asked.runs else ():
        runs = [str(shown(newer / name)) for name in list_runs_within(newer)]
        within = f"; its runs can be named: {listed(runs, _MOST_NAMED)}" if runs else ""
        sys.stdout.write(f"left out: {newer.name} is newer, and no run of spec files{within}\n")
    return code


def add_imported(asked: ImportRequest) -> ExitCode:
    """Add what other tools have kept."""
    if not asked.files:
        raise UsageError("history.import: no file is named", "Name files: gauntlet history.import data.js.")
    given = ImportFacts(asked.date, asked.commit, asked.machine, asked.sku)
    return _keep_runs(_store_of(asked), [run for file in asked.files for run in import_figures(Path(file), given)])


def _keep_runs(store: HistoryStore, runs: list[HistoryRun]) -> ExitCode:
    added = store.add(dict(map(history_file, runs)))
    figures = sum(len(case.figures) for run in runs for case in run.cases)
    before = len(runs) - added
    there = f", {before} {'was' if before == 1 else 'were'} there already" if before else ""
    names = listed(list(dict.fromkeys(run.run for run in runs)), _MOST_NAMED)
    added_runs = f"{counted(added, 'run')} added to {store.place}{there}"
    sys.stdout.write(f"{added_runs}; {counted(figures, 'figure')} of {names or 'nothing'}\n")
    return ExitCode.OK


def list_runs(asked: HistoryRequest, *, as_json: bool) -> ExitCode:
    """Show the runs of a history, the newest last."""
    index = _open_index(asked)
    runs = index.runs()
    code = _warn_of_unread(index.problems())
    if as_json:
        sys.stdout.write(json.dumps(list(map(asdict, runs)), indent=2) + "\n")
    else:
        print_document(make_runs_document(runs), sys.stdout, environ=os.environ)
    return code


def export(asked: ExportRequest) -> ExitCode:
    """Write all figures as CSV."""
    index = _open_index(asked)
    series = _choose_series(index, asked.series)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(export_rows(series))
    code = _warn_of_unread(index.problems())
    if not asked.output:
        sys.stdout.write(text.getvalue())
        return code
    try:
        write_atomic(Path(asked.output), text.getvalue())
    except OSError as error:
        raise GauntletError(f"{asked.output}: {error.strerror}", "Name another file with --output.") from error
    sys.stdout.write(f"{asked.output}: {len(series)} series\n")
    return code


def _choose_series(index: HistoryIndex, pattern: str, sku: str = "") -> tuple[Series, ...]:
    """The series of an index that fit a glob, of one device; at least one."""
    every = index.series()
    found = select_series(every, pattern, sku)
    if not found:
        names = sorted({item.key.sku for item in every} if sku else {item.key.case for item in every})
        hint = f"{'SKUs' if sku else 'Cases'} there: {', '.join(names[:_MOST])}{', …' if len(names) > _MOST else ''}."
        raise NothingSelectedError(f"no series fits {' of '.join(filter(None, (pattern, sku)))}", hint)
    return found


def _warn_of_unread(problems: Iterable[str]) -> ExitCode:
    """Warns of files that could not be read: an error, whatever the others say."""
    code = ExitCode.OK
    for problem in problems:
        messages.warn(problem)
        code = ExitCode.ERROR
    return code


def prune(asked: PruneRequest) -> ExitCode:
    """Remove old runs."""
    if not asked.before:
        raise UsageError("history.prune: which runs?", "Say it: --before 2026-01-31.")
    day = _parse_day(asked.before, "--before")
    store = _store_of(asked)
    index = HistoryIndex(store)
    index.update()
    old = [run for run in index.runs() if datetime.fromisoformat(run.time).astimezone(UTC).date() < day]
    if asked.delete:
        store.remove([run.file for run in old])
    else:
        print_document(make_runs_document(old), sys.stdout, environ=os.environ)
    done = "removed" if asked.delete else "would be removed; --delete does it"
    sys.stdout.write(f"{counted(len(old), 'run')} before {day} {done}\n")
    return ExitCode.OK


def _parse_day(text: str, where: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{where} {text}: expected a day", "Such as 2026-01-31.") from error


def confirm(asked: ConfirmRequest, presenter: Presenter, machines: ComparingMachines | None = None) -> ExitCode:
    """Measure the two IREEs of a step in turns, keep what comes of it with the step, and say which bisect is next."""
    found = [item for item in _judge_history(asked).regressions if item.kind is FindingKind.REGRESSION]
    if not found:
        raise NothingSelectedError("nothing got worse that fits", "`history.check` shows all that changed.")
    # The surest loss that has not been confirmed yet; one that can be measured, where there is one.
    finding = min(
        found,
        key=lambda item: (item.same_iree, bool(item.confirmed), item.key.figure not in _TIMED, item.p_value or 0.0),
    )
    key, irees = finding.key, (finding.before.named or finding.before.iree, finding.after.named or finding.after.iree)
    metric = TRENDS[key.figure].row.metric if key.figure in TRENDS else ""
    if not metric or irees[0] == irees[1]:
        why = f"{key.figure} is not measured by compare" if not metric else f"both sides are IREE {irees[0]}"
        raise UsageError(f"{key.title} cannot be confirmed: {why}", "Compare two of your own: gauntlet compare A B.")
    presenter.line(f"{key.title}: {100 * finding.change:+.1f} % between {irees[0]} and {irees[1]}")
    if key.figure not in _TIMED:
        presenter.line("it has no noise: there is nothing to confirm")
        code = ExitCode.OK
    else:
        code = _measure(asked, finding, irees, presenter, machines)
    if code is not ExitCode.INTERRUPTED:
        words = ["gauntlet", "bisect", "--good", irees[0], "--bad", irees[1], "--metric", metric]
        words += ["--model", key.model, "--submodel", key.submodel, "--target", key.target]
        presenter.line(f"since which release or commit: {shlex.join(words)}")
    return code


def _measure(
    asked: ConfirmRequest,
    finding: Finding,
    irees: tuple[str, str],
    presenter: Presenter,
    machines: ComparingMachines | None,
) -> ExitCode:
    """Compare the two IREEs, and make what comes of it a part of the history."""
    # It brings the engine, which no other of these tasks needs.
    from iree_gauntlet.experiments.compare import compare  # noqa: PLC0415

    key, now = finding.key, datetime.now(UTC)
    folder = find_runs_folder() / f"{now:%Y%m%d-%H%M%S}-confirm"
    selection = {"model": [key.model], "submodel": [key.submodel], "target": [key.target], "sku": key.sku}
    request = RunRequest.of({**selection, "cache_dir": asked.cache_dir, "run_dir": str(folder)}, Defaults())
    compared = CompareRequest(sides=irees, metric=_TIMED[key.figure], budget=asked.budget)
    code = compare(compared, request, presenter, machines)
    record = read_comparison(folder)
    verdict, elsewhere = record.verdicts.get(key.case), record.measured.get(key.case)
    if verdict is None:
        return code
    confirms = {
        "case": key.case,
        "figure": key.figure,
        "before": finding.before.iree,
        "after": finding.after.iree,
        "verdict": verdict.verdict,
        **{name: getattr(verdict.figures, name, None) for name in ("ratio", "low", "high")},
        "blocks": verdict.blocks,
    }
    run = HistoryRun(
        run=folder.name,
        time=now.isoformat(),
        cases=(),
        iree=make_iree_version(ToolchainFacts.from_dict(record.sides[1].toolchain)),
        machine=HistoryMachine.of(elsewhere.machine if elsewhere else read_machine_facts()),
        state="confirmation",
        more={"confirms": confirms},
    )
    _store_of(asked).add(dict([history_file(run)]))
    return code


def check(asked: CheckRequest, *, as_json: bool) -> ExitCode:
    """Say what changed; a regression that is not won back is a failure."""
    outcome = _judge_history(asked)
    if asked.since:
        day = _parse_day(asked.since, "--since")
        kept = [
            item for item in outcome.findings if datetime.fromisoformat(item.after.time).astimezone(UTC).date() >= day
        ]
        outcome = replace(outcome, findings=tuple(kept))
    if as_json:
        found = [item.as_dict() for item in outcome.findings]
        content = {"schema": 1, "history": outcome.place, "runs": outcome.runs, "series": len(outcome.series)}
        content |= {"exit_code": int(outcome.exit_code), "findings": found, "problems": list(outcome.problems)}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        document = make_changes_document(outcome)
        print_document(document, sys.stdout, environ=os.environ)
        append_document(document, os.environ)
    return outcome.exit_code


def show(asked: AskRequest, *, as_json: bool) -> ExitCode:
    """Show series with their changes."""
    outcome = _judge_history(asked)
    if as_json:
        sys.stdout.write(json.dumps(format_series_json(outcome), indent=2) + "\n")
    else:
        print_document(make_series_document(outcome), sys.stdout, environ=os.environ)
    return _warn_of_unread(outcome.problems)


def page(asked: PageRequest) -> ExitCode:
    """Write the page of a history; of one that it replaces, it knows what was on it."""
    outcome = _judge_history(asked)
    file = Path(asked.output or "history.html")
    try:
        memory = read_memory(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else ""
        write_atomic(file, render_html(make_history_page(outcome, f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}", memory)))
    except OSError as error:
        raise GauntletError(f"{file}: {error.strerror}", "Name another file with --output.") from error
    sys.stdout.write(f"{file}: {len(outcome.series)} series of {counted(outcome.runs, 'run')}\n")
    return _warn_of_unread(outcome.problems)


def _judge_history(asked: AskRequest) -> HistoryOutcome:
    """What the history that is asked for says of the series that are."""
    index, settings = _open_index(asked), read_configuration(find_project_folder(), os.environ).history
    series = _choose_series(index, asked.series, asked.sku)
    if asked.marks and not Path(asked.marks).is_file():
        raise UsageError(f"--marks {asked.marks}: there is no such file", "Name a file such as history_marks.toml.")
    marks = read_marks(Path(asked.marks) if asked.marks else find_project_folder() / MARKS_FILE)
    for idle in find_idle_marks(series, marks) if not (asked.series or asked.sku) else ():
        messages.warn(idle)
    series = without_invalid(series, marks)
    findings = with_marks(
        judge(series, Effects(settings.least_time, settings.least_other, settings.least_size)), series, marks
    )
    findings = with_confirmations(findings, index.confirmations())
    return HistoryOutcome(
        _store_of(asked).place,
        sum(run.state != "confirmation" for run in index.runs()),
        series,
        findings,
        index.problems(),
    )
