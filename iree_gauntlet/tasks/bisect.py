"""The `bisect` task: since which release, nightly or build is something as it is?"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from iree_gauntlet import __version__
from iree_gauntlet.cases import Stage
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.measuring.midpoint import most_comparisons
from iree_gauntlet.measuring.sequential import DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS
from iree_gauntlet.reporting.bisection import BISECT_RECORD, REPORT_NAMES, bisect_document, write_bisect_reports
from iree_gauntlet.reporting.render_console import print_document
from iree_gauntlet.running.event_log import EventLog
from iree_gauntlet.running.machine_lock import lock_facts
from iree_gauntlet.tasks.bisect_probe import EXACT_METRICS, ExactJudge, run_candidate
from iree_gauntlet.tasks.bisect_question import chain_of, question_before, question_of, whole_options
from iree_gauntlet.tasks.bisect_rounds import RoundsJudge
from iree_gauntlet.tasks.bisect_search import BisectSearch
from iree_gauntlet.tasks.bisect_timing import TimingSettings, timed_blocks
from iree_gauntlet.tasks.execute import execute
from iree_gauntlet.tasks.output import Output, open_progress
from iree_gauntlet.tasks.session_folder import session_folder
from iree_gauntlet.tasks.workspace import Defaults, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iree_gauntlet.progress import Progress
    from iree_gauntlet.reporting.bisection import BisectOutcome
    from iree_gauntlet.tasks.bisect_probe import Judge, Judged
    from iree_gauntlet.tasks.bisect_question import Question

__all__ = ["bisect", "report_bisection"]

_FETCH_FOLDER = "fetch"


def bisect(options: Mapping[str, Any]) -> ExitCode:
    """Searches, records what was found as it goes, and reports.

    Raises:
        GauntletError: what keeps it from starting.
    """
    folder, resumed = session_folder("bisect", options, BISECT_RECORD)
    earlier: dict[str, Judged] = {}
    if resumed:
        question, earlier = question_before(folder, options)
    else:
        question = question_of(options)
    options = whole_options(options, question.asked)
    if chain_of(options, question.metric) != question.chain:
        raise UsageError(f"the selection does not mean {question.chain} any more", "Start a new bisect.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"{folder}: cannot make the bisect's folder: {error.strerror}"
        raise UsageError(what, "Give another place with --run-dir.") from error
    output = Output(sys.stdout)
    began = time.monotonic()

    with (
        EventLog(folder / BISECT_RECORD, lambda: datetime.now(UTC)) as log,
        open_progress(output.stream) as progress,
    ):
        log.write(
            "bisect",
            {
                "bisect": folder.name,
                "version": __version__,
                "command": shlex.join((Path(sys.argv[0]).name, *sys.argv[1:])),
                "cwd": str(Path.cwd()),
                "resumed": resumed,
                "confidence": 1.0 if question.metric in EXACT_METRICS else 1 - DEFAULT_ALPHA,
                **lock_facts(os.environ),
                **question.as_dict(),
            },
        )
        problem, code = "", ExitCode.INTERRUPTED
        try:
            _fetch(folder, options)
            with _judge(question, folder, options, log, progress) as judge:
                every = bool(options["every"])
                code, problem = BisectSearch(question, judge, log, progress.message, earlier, every=every).search()
        except GauntletError as error:
            code, problem = error.exit_code, error.what
            raise
        finally:
            log.write(
                "end",
                {
                    "exit_code": int(code),
                    "problem": problem,
                    "seconds": round(time.monotonic() - began, 3),
                    "interrupted": code is ExitCode.INTERRUPTED,
                },
            )
            outcome = write_bisect_reports(folder, environ=os.environ)
    _print(outcome, folder, output.stream)
    if output.lost:
        sys.stderr.write(f"warning: standard output: {output.lost}; see {shown(folder)}\n")
    write_bisect_reports(folder, environ=os.environ, append_step_summary=True)
    return code


def report_bisection(folder: Path) -> ExitCode:
    """Makes the reports of a bisect again; exits as it did.

    Raises:
        GauntletError: its record cannot be read.
    """
    outcome = write_bisect_reports(folder, environ=os.environ)
    _print(outcome, folder, sys.stdout)
    return outcome.exit_code


def _print(outcome: BisectOutcome, folder: Path, stream: TextIO) -> None:
    reports = f"{shown(folder)}: {', '.join(REPORT_NAMES)}"
    print_document(bisect_document(outcome), stream, reports, environ=os.environ)


@contextlib.contextmanager
def _judge(
    question: Question, folder: Path, options: Mapping[str, Any], log: EventLog, progress: Progress
) -> Iterator[Judge]:
    """What decides on candidates by the question's metric."""
    if question.metric in EXACT_METRICS:
        metric = EXACT_METRICS[question.metric]
        yield ExactJudge(
            question.metric, lambda candidate: run_candidate(candidate, metric, question.chain, folder, options)
        )
        return
    # With every candidate tried, that many comparisons share the false-alarm rate.
    count = len(question.row)
    comparisons = count - 1 if options["every"] else most_comparisons(count)
    with timed_blocks(question, folder, options, TimingSettings.of(options), log, progress) as source:
        yield RoundsJudge(source, comparisons, DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS)


def _fetch(folder: Path, options: Mapping[str, Any]) -> None:
    """Fetches what the model needs, once and before any candidate: a download that fails is no candidate's fault.

    Raises:
        GauntletError: something cannot be had.
        KeyboardInterrupt: it was interrupted.
    """
    run_dir, count = folder / _FETCH_FOLDER, 2
    while run_dir.exists():
        run_dir, count = folder / f"{_FETCH_FOLDER}.{count}", count + 1
    with contextlib.redirect_stdout(sys.stderr):
        code = execute({**options, "iree": "", "run_dir": str(run_dir)}, Defaults(), (Stage.FETCH,), brief=True)
    if code is ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code is not ExitCode.OK:
        raise GauntletError("not everything that the model needs could be fetched", f"See {shown(run_dir)}.")
