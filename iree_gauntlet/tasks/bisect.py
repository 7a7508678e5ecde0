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
from typing import TYPE_CHECKING

from iree_gauntlet import __version__
from iree_gauntlet.cases import Stage
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.measuring.midpoint import most_comparisons
from iree_gauntlet.measuring.sequential import DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS
from iree_gauntlet.reporting.bisection import BISECT_RECORD, bisect_text, write_bisect_reports
from iree_gauntlet.requests import FolderRequest
from iree_gauntlet.running.event_log import EventLog
from iree_gauntlet.running.machine_lock import lock_facts
from iree_gauntlet.running.run_folder import asked_folder, free_folder, make_folder
from iree_gauntlet.settings import shown
from iree_gauntlet.tasks.bisect_probe import EXACT_METRICS, ExactJudge, run_candidate
from iree_gauntlet.tasks.bisect_question import question_before, question_of
from iree_gauntlet.tasks.bisect_rounds import RoundsJudge
from iree_gauntlet.tasks.bisect_search import BisectSearch
from iree_gauntlet.tasks.bisect_timing import TimingSettings, timed_blocks
from iree_gauntlet.tasks.execute import run
from iree_gauntlet.tasks.output import Output

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.reporting.bisection import BisectOutcome
    from iree_gauntlet.requests import BisectRequest, RunRequest
    from iree_gauntlet.tasks.bisect_probe import Judge, Judged
    from iree_gauntlet.tasks.bisect_question import Question
    from iree_gauntlet.tasks.execute import Chosen

__all__ = ["bisect", "report_bisection"]

_FETCH_FOLDER = "fetch"


def bisect(asked: BisectRequest, request: RunRequest) -> ExitCode:
    """Searches, records what was found as it goes, and reports.

    Args:
        asked: for what, and how.
        request: what is run with each candidate.

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
    output = Output(sys.stdout)
    began = time.monotonic()

    def say(text: str) -> None:
        output.stream.write(f"{text}\n")

    with EventLog(folder / BISECT_RECORD, lambda: datetime.now(UTC)) as log:
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
            _fetch(folder, question.chosen)
            with _judge(question, folder, log) as judge:
                code, problem = BisectSearch(question, judge, log, say, earlier, every=question.asked.every).search()
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
    output.stream.write(f"\n{_final_text(outcome, folder)}")
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
    sys.stdout.write(_final_text(outcome, folder))
    return outcome.exit_code


def _final_text(outcome: BisectOutcome, folder: Path) -> str:
    return f"{bisect_text(outcome)}reports in {shown(folder)}: bisect.md, bisect.json\n"


@contextlib.contextmanager
def _judge(question: Question, folder: Path, log: EventLog) -> Iterator[Judge]:
    """What decides on candidates by the question's metric."""
    chosen = question.chosen
    if question.metric in EXACT_METRICS:
        metric = EXACT_METRICS[question.metric]
        yield ExactJudge(
            question.metric, lambda candidate: run_candidate(candidate, metric, question.chain, folder, chosen)
        )
        return
    # With every candidate tried, that many comparisons share the false-alarm rate.
    count = len(question.row)
    comparisons = count - 1 if question.asked.every else most_comparisons(count)
    settings = TimingSettings.of(question.asked, chosen.request.conduct)
    with timed_blocks(question, folder, settings, log) as source:
        yield RoundsJudge(source, comparisons, DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS)


def _fetch(folder: Path, chosen: Chosen) -> None:
    """Fetches what the model needs, once and before any candidate: a download that fails is no candidate's fault.

    Raises:
        GauntletError: something cannot be had.
        KeyboardInterrupt: it was interrupted.
    """
    run_dir = free_folder(folder / _FETCH_FOLDER)
    request = replace(chosen.request, folder=FolderRequest(run_dir=str(run_dir)))
    code = run(replace(chosen, request=request, stages=(Stage.FETCH,)), sys.stderr, brief=True).exit_code
    if code is ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code is not ExitCode.OK:
        raise GauntletError("not everything that the model needs could be fetched", f"See {shown(run_dir)}.")
