"""The `bisect` task: since which release, nightly or build is something as it is?"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import __version__
from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.rounds.machine_lock import lock_facts
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.experiments.bisect_probe import EXACT_METRICS, ExactJudge, run_candidate
from iree_gauntlet.experiments.bisect_question import question_before, question_of
from iree_gauntlet.experiments.bisect_rounds import RoundsJudge
from iree_gauntlet.experiments.bisect_search import BisectSearch
from iree_gauntlet.experiments.bisect_timing import TimingSettings, timed_blocks
from iree_gauntlet.experiments.ending import recorded_end
from iree_gauntlet.experiments.run import run
from iree_gauntlet.measuring.statistics.midpoint import most_comparisons
from iree_gauntlet.measuring.statistics.sequential import DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS
from iree_gauntlet.records.bisect_outcome import BISECT_RECORD
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.run_folder import asked_folder, free_folder, make_folder
from iree_gauntlet.requests import FolderRequest
from iree_gauntlet.settings import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.experiments.bisect_probe import Judge, Judged
    from iree_gauntlet.experiments.bisect_question import Question
    from iree_gauntlet.experiments.run import Chosen
    from iree_gauntlet.progress import Presenter, Progress
    from iree_gauntlet.requests import BisectRequest, RunRequest

__all__ = ["bisect"]

_FETCH_FOLDER = "fetch"


def bisect(asked: BisectRequest, request: RunRequest, presenter: Presenter) -> ExitCode:
    """Searches, records what was found as it goes, and reports.

    Args:
        asked: for what, and how.
        request: what is run with each candidate.
        presenter: shows it.

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
        try:
            with recorded_end(log) as ending, presenter.progress() as progress:
                _fetch(folder, question.chosen, presenter)
                with _judge(question, folder, log, progress, presenter) as judge:
                    search = BisectSearch(question, judge, log, progress.message, earlier, every=question.asked.every)
                    ending.code, ending.problem = search.search()
        finally:
            presenter.ran(folder, brief=False)
    return ending.code


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
