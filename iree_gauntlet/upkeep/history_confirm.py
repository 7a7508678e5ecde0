"""`history.confirm`: is a step there when both IREEs are measured in turns, and which bisect would find its cause?"""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import messages
from iree_gauntlet.dialects.history_marks import MARKS_FILE, read_marks
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.experiments.compare import compare
from iree_gauntlet.figures import counted
from iree_gauntlet.history.extract import iree_version
from iree_gauntlet.history.judge import Effects, idle_marks, judge, with_confirmations, with_marks, without_invalid
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.records.compare_record import read_comparison
from iree_gauntlet.records.history_outcome import Finding, HistoryOutcome, Kind
from iree_gauntlet.records.history_run import HistoryMachine, HistoryRun, history_file
from iree_gauntlet.reports.history_page import changes_document, history_page, series_document, series_json
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import html_page, memory_of
from iree_gauntlet.reports.report_files import append_document
from iree_gauntlet.requests import CompareRequest, Defaults, RunRequest
from iree_gauntlet.settings import project_folder, runs_folder
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.upkeep.history_keep import chosen, configuration, day_of, index_of, store_of, unread

if TYPE_CHECKING:
    from iree_gauntlet.experiments.compare_elsewhere import ComparingMachines
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.records.compare_record import ComparisonRecord
    from iree_gauntlet.upkeep.upkeep_requests import AskRequest, CheckRequest, ConfirmRequest, PageRequest


# How `compare` and `bisect` call a figure; what has no noise needs no comparison.
_METRICS = {"time_ms": "time", "compile_s": "compile-time"}
_EXACT = {"size_bytes": "size", "dispatches": "dispatches", "max_error": "error", "instructions": "instructions"}


def confirm(asked: ConfirmRequest, presenter: Presenter, machines: ComparingMachines | None = None) -> ExitCode:
    """Measure the two IREEs of a step in turns, keep what comes of it with the step, and say which bisect comes next.

    Args:
        asked: which step.
        presenter: shows it.
        machines: measure it; None for this machine.

    Raises:
        NothingSelectedError: nothing got worse that fits.
        UsageError: the history does not say which two IREEs to compare, or the figure is none that can be.
    """
    finding = _chosen(asked)
    key, irees = finding.key, (finding.before.named or finding.before.iree, finding.after.named or finding.after.iree)
    metric = (_METRICS | _EXACT).get(key.figure)
    if metric is None or irees[0] == irees[1]:
        why = f"{key.figure} is not measured by compare" if metric is None else f"both sides are IREE {irees[0]}"
        raise UsageError(f"{key.title} cannot be confirmed: {why}", "Compare two of your own: gauntlet compare A B.")
    presenter.line(f"{key.title}: {100 * finding.change:+.1f} % between {irees[0]} and {irees[1]}")
    if key.figure in _EXACT:
        presenter.line("it has no noise: there is nothing to confirm")
        code = ExitCode.OK
    else:
        code = _measured(asked, finding, irees, presenter, machines)
    if code is not ExitCode.INTERRUPTED:
        words = ["gauntlet", "bisect", "--good", irees[0], "--bad", irees[1], "--metric", metric]
        words += ["--model", key.model, "--submodel", key.submodel, "--target", key.target]
        presenter.line(f"since which release or commit: {shlex.join(words)}")
    return code


def _chosen(asked: ConfirmRequest) -> Finding:
    """The surest loss that fits and has not been confirmed yet; one that can be measured, where there is one."""
    found = [item for item in _outcome_for(asked).regressions if item.kind is Kind.REGRESSION]
    if not found:
        raise NothingSelectedError("nothing got worse that fits", "`history.check` shows all that changed.")

    def order(item: Finding) -> tuple[bool, bool, bool, float]:
        return item.same_iree, bool(item.confirmed), item.key.figure not in _METRICS, item.p_value or 0.0

    return min(found, key=order)


def _measured(
    asked: ConfirmRequest,
    finding: Finding,
    irees: tuple[str, str],
    presenter: Presenter,
    machines: ComparingMachines | None,
) -> ExitCode:
    key, now = finding.key, datetime.now(UTC)
    folder = runs_folder() / f"{now:%Y%m%d-%H%M%S}-confirm"
    selection = {"model": key.model, "submodel": key.submodel, "target": [key.target], "sku": key.sku}
    request = RunRequest.of({**selection, "cache_dir": asked.cache_dir, "run_dir": str(folder)}, Defaults())
    compared = CompareRequest(sides=" ".join(irees), metric=_METRICS[key.figure], budget=asked.budget)
    code = compare(compared, request, presenter, machines)
    _keep(asked, finding, folder, now)
    return code


def _keep(asked: ConfirmRequest, finding: Finding, folder: Path, now: datetime) -> None:
    """What came of it becomes a part of the history."""
    record = read_comparison(folder)
    verdict = record.verdicts.get(finding.key.case)
    if verdict is None:
        return
    confirms = {
        "case": finding.key.case,
        "figure": finding.key.figure,
        "before": finding.before.iree,
        "after": finding.after.iree,
        **{name: verdict.get(name) for name in ("verdict", "ratio", "low", "high", "blocks")},
    }
    run = HistoryRun(
        run=folder.name,
        time=now.isoformat(),
        cases=(),
        iree=iree_version(record.sides[1].toolchain),
        machine=HistoryMachine.from_dict(_machine_of(record, finding.key.case)),
        state="confirmation",
        more={"confirms": confirms},
    )
    store_of(asked).add(dict([history_file(run)]))


def _machine_of(record: ComparisonRecord, case: str) -> dict[str, Any]:
    """What a case was measured on."""
    elsewhere = record.measured.get(case)
    return dict(elsewhere["machine"]) if elsewhere else asdict(machine_facts())


# Of the project: what people say about changes.


def check(asked: CheckRequest, *, as_json: bool) -> ExitCode:
    """Say what changed; a regression that is not won back is a failure."""
    outcome = _outcome_for(asked)
    if asked.since:
        day = day_of(asked.since, "--since")
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
        document = changes_document(outcome)
        print_document(document, sys.stdout, environ=os.environ)
        append_document(document, os.environ)
    return outcome.exit_code


def show(asked: AskRequest, *, as_json: bool) -> ExitCode:
    """Show series with their changes."""
    outcome = _outcome_for(asked)
    if as_json:
        sys.stdout.write(json.dumps(series_json(outcome), indent=2) + "\n")
    else:
        print_document(series_document(outcome), sys.stdout, environ=os.environ)
    return unread(outcome.problems)


def page(asked: PageRequest) -> ExitCode:
    """Write the page of a history; of one that it replaces, it knows what was on it."""
    outcome = _outcome_for(asked)
    file = Path(asked.output or "history.html")
    try:
        memory = memory_of(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else ""
        write_atomic(file, html_page(history_page(outcome, f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}", memory)))
    except OSError as error:
        raise GauntletError(f"{file}: {error.strerror}", "Name another file with --output.") from error
    sys.stdout.write(f"{file}: {len(outcome.series)} series of {counted(outcome.runs, 'run')}\n")
    return unread(outcome.problems)


def _outcome_for(asked: AskRequest) -> HistoryOutcome:
    """What the history that is asked for says of the series that are.

    Raises:
        NothingSelectedError: none fits.
        UsageError: a file of marks is named that is not there.
    """
    index, settings = index_of(asked), configuration().history
    series = chosen(index, asked.series, asked.sku)
    if asked.marks and not Path(asked.marks).is_file():
        raise UsageError(f"--marks {asked.marks}: there is no such file", "Name a file such as history_marks.toml.")
    marks = read_marks(Path(asked.marks) if asked.marks else project_folder() / MARKS_FILE)
    for idle in idle_marks(series, marks) if not (asked.series or asked.sku) else ():
        messages.warn(idle)
    series = without_invalid(series, marks)
    findings = with_marks(
        judge(series, Effects(settings.least_time, settings.least_other, settings.least_size)), series, marks
    )
    findings = with_confirmations(findings, index.confirmations())
    return HistoryOutcome(
        store_of(asked).place,
        sum(run["state"] != "confirmation" for run in index.runs()),
        series,
        findings,
        index.problems(),
    )
