"""`history.check`, `history.show`: what a history says."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.dialects.history_marks import MARKS_FILE, read_marks
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.figures import counted
from iree_gauntlet.history.judge import Effects, judge
from iree_gauntlet.history.marked import idle_marks, with_confirmations, with_marks, without_invalid
from iree_gauntlet.records.history_outcome import HistoryOutcome
from iree_gauntlet.reports.history_document import changes_document, series_document, series_json
from iree_gauntlet.reports.history_page import history_page
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import html_page, memory_of
from iree_gauntlet.reports.report_files import append_document
from iree_gauntlet.settings import project_folder
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.upkeep.history_keep import chosen, configuration, day_of, index_of, store_of, unread

if TYPE_CHECKING:
    from iree_gauntlet.upkeep.history_requests import AskRequest, CheckRequest, PageRequest


# Of the project: what people say about changes.


def check(asked: CheckRequest, *, as_json: bool) -> ExitCode:
    """Say what changed; a regression that is not won back is a failure."""
    outcome = outcome_for(asked)
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
    outcome = outcome_for(asked)
    if as_json:
        sys.stdout.write(json.dumps(series_json(outcome), indent=2) + "\n")
    else:
        print_document(series_document(outcome), sys.stdout, environ=os.environ)
    return unread(outcome.problems)


def page(asked: PageRequest) -> ExitCode:
    """Write the page of a history; of one that it replaces, it knows what was on it."""
    outcome = outcome_for(asked)
    file = Path(asked.output or "history.html")
    try:
        memory = memory_of(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else ""
        write_atomic(file, html_page(history_page(outcome, f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}", memory)))
    except OSError as error:
        raise GauntletError(f"{file}: {error.strerror}", "Name another file with --output.") from error
    sys.stdout.write(f"{file}: {len(outcome.series)} series of {counted(outcome.runs, 'run')}\n")
    return unread(outcome.problems)


def outcome_for(asked: AskRequest) -> HistoryOutcome:
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
