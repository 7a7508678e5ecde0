"""The folder of a pytest session: the journals of its processes as one, and the reports made of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from iree_gauntlet.atomic import write_atomic
from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.reporting.report import write_job_summary, write_reports
from iree_gauntlet.running.engine import exit_code_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from iree_gauntlet.journal_format import JournalRecord

__all__ = ["write_session_reports"]


def write_session_reports(run_dir: Path, summary_folder: Path) -> bool:
    """Writes the reports of a session, also of one in which a process died.

    Args:
        run_dir: the session's folder.
        summary_folder: where `job_summary.md` and `job_summary.json` go.

    Returns:
        Whether there was anything to report.

    Raises:
        GauntletError: a journal cannot be read, or a report not be written.
    """
    journals = sorted(run_dir.glob("journal-*.jsonl"))
    if journals:
        merged = _merged([read_journal(path) for path in journals])
        write_atomic(run_dir / "journal.jsonl", "".join(f"{json.dumps(event)}\n" for event in merged))
    if not (run_dir / "journal.jsonl").is_file():
        return False
    outcome = write_reports(run_dir, environ={})
    try:
        summary_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GauntletError(f"{summary_folder}: cannot make the folder: {error.strerror}") from error
    write_job_summary(outcome, summary_folder, run_dir)
    return True


def _merged(records: Iterable[JournalRecord]) -> list[dict[str, Any]]:
    """The events of several journals of one plan as those of one: of what several did, the first result counts."""
    whole = [record for record in records if record.runs]
    results: dict[str, dict[str, Any]] = {}
    starts: dict[str, str] = {}
    for record in whole:
        for step, time in record.starts.items():
            starts[step] = min(time, starts.get(step, time))
        for step, result in record.results.items():
            if step not in results or str(result["time"]) < str(results[step]["time"]):
                results[step] = result
    if not whole:
        return []
    begin = min((record.runs[0] for record in whole), key=lambda run: str(run["time"]))
    begun = [{"event": "start", "time": time, "step": step} for step, time in starts.items()]
    events = sorted([*begun, *results.values()], key=lambda event: (str(event["time"]), event["event"] == "result"))
    if any(record.end is None for record in whole):
        return [begin, *events]
    code = exit_code_of(Verdict(result["verdict"]) for result in results.values())
    last = max((record.end or {} for record in whole), key=lambda end: str(end["time"]))
    return [begin, *events, {**last, "exit_code": int(code)}]
