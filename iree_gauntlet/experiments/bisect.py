"""The `bisect` task: since which release, nightly or build is something as it is?"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet import __version__
from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.rounds.machine_lock import lock_facts
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.experiments.bisect_probe import EXACT_METRICS, ExactJudge, run_candidate
from iree_gauntlet.experiments.bisect_question import question_before, question_of
from iree_gauntlet.experiments.bisect_rounds import RoundsJudge
from iree_gauntlet.experiments.bisect_search import BisectSearch
from iree_gauntlet.experiments.bisect_timing import TimingSettings, timed_blocks
from iree_gauntlet.experiments.run import run
from iree_gauntlet.measuring.statistics.midpoint import most_comparisons
from iree_gauntlet.measuring.statistics.sequential import DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.run_folder import asked_folder, free_folder, make_folder
from iree_gauntlet.reports.bisect_document import BISECT_RECORD, REPORT_NAMES, bisect_document, write_bisect_reports
from iree_gauntlet.reports.output import Output
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.requests import FolderRequest
from iree_gauntlet.settings import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.experiments.bisect_probe import Judge, Judged
    from iree_gauntlet.experiments.bisect_question import Question
    from iree_gauntlet.experiments.run import Chosen
    from iree_gauntlet.progress import Presenter, Progress
    from iree_gauntlet.reports.bisect_document import BisectOutcome
    from iree_gauntlet.requests import BisectRequest, RunRequest

__all__ = ["bisect", "report_bisection"]

_FETCH_FOLDER = "fetch"


def bisect(asked: BisectRequest, request: RunRequest, presenter: Presenter) -> tuple[Path, ExitCode]:
    """Searches, records what was found as it goes, and reports.

    Args:
        asked: for what, and how.
        request: what is run with each candidate.
        presenter: shows it.

    Returns:
        The bisection's folder, and what it ends with.

    Raises:
        GauntletError: what keeps it from starting.
    """
    named, resumed = asked_folder("bisect", request.folder, BISECT_RECORD)
    earlier: dict[str, Judged] = {}
    if named and resumed:
        question, earlier = question_before(named, asked, request)
    else:
        question = question_of(asked, request)
    folder = make_folder(named, "bisect")
    began = time.monotonic()

    with (
        EventLog(folder / BISECT_RECORD, lambda: datetime.now(UTC)) as log,
        presenter.progress() as progress,
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
            _fetch(folder, question.chosen, presenter)
            with _judge(question, folder, log, progress, presenter) as judge:
                search = BisectSearch(question, judge, log, progress.message, earlier, every=question.asked.every)
                code, problem = search.search()
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
            write_bisect_reports(folder, environ=os.environ)
    return folder, code


def report_bisection(folder: Path, *, step_summary: bool = False) -> ExitCode:
    """Makes the reports of a bisect, and prints them; exits as it did.

    Raises:
        GauntletError: its record cannot be read.
    """
    outcome = write_bisect_reports(folder, environ=os.environ)
    output = Output(sys.stdout)
    _print(outcome, folder, output.stream)
    if output.lost:
        sys.stderr.write(f"warning: standard output: {output.lost}; see {shown(folder)}\n")
    if step_summary:
        # Last, so that a summary file that cannot be written hides no verdict.
        write_bisect_reports(folder, environ=os.environ, append_step_summary=True)
    return outcome.exit_code


def _print(outcome: BisectOutcome, folder: Path, stream: TextIO) -> None:
    reports = f"{shown(folder)}: {', '.join(REPORT_NAMES)}"
    print_document(bisect_document(outcome), stream, reports, environ=os.environ)


@contextlib.contextmanager
def _judge(
    question: Question, folder: Path, log: EventLog, progress: Progress, presenter: Presenter
) -> Iterator[Judge]:
    """What decides on candidates by the question's metric."""
    chosen = question.chosen
    if question.metric in EXACT_METRICS:
        metric = EXACT_METRICS[question.metric]
        yield ExactJudge(
            question.metric,
            lambda candidate: run_candidate(candidate, metric, question.chain, folder, chosen, presenter),
        )
        return
    # With every candidate tried, that many comparisons share the false-alarm rate.
    count = len(question.row)
    comparisons = count - 1 if question.asked.every else most_comparisons(count)
    settings = TimingSettings.of(question.asked, chosen.request.conduct)
    with timed_blocks(question, folder, settings, log, progress, presenter) as source:
        yield RoundsJudge(source, comparisons, DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS)


def _fetch(folder: Path, chosen: Chosen, presenter: Presenter) -> None:
    """Fetches what the model needs, once and before any candidate: a download that fails is no candidate's fault.

    Raises:
        GauntletError: something cannot be had.
        KeyboardInterrupt: it was interrupted.
    """
    run_dir = free_folder(folder / _FETCH_FOLDER)
    request = replace(chosen.request, folder=FolderRequest(run_dir=str(run_dir)))
    code = run(replace(chosen, request=request, stages=(Stage.FETCH,)), presenter.to(sys.stderr), brief=True).exit_code
    if code is ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code is not ExitCode.OK:
        raise GauntletError("not everything that the model needs could be fetched", f"See {shown(run_dir)}.")
