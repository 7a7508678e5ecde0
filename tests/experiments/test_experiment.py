"""The end of an experiment, whatever its cause, is in the journal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.journal_events import ResumeOptions
from iree_gauntlet.journal_format import JOURNAL, ExperimentRecord
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.matrix_outcome import MATRIX, MatrixOpening
from iree_gauntlet.reports.experiment_reports import ConsolePresenter

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("ended_by", "code", "problem"),
    [
        (GauntletError("no disk"), ExitCode.ERROR, "no disk"),
        (UsageError("no such IREE"), ExitCode.USAGE, "no such IREE"),
        (ValueError("a defect"), ExitCode.ERROR, "ValueError: a defect"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, ""),
    ],
)
def test_what_ended_it_is_recorded(tmp_path: Path, ended_by: BaseException, code: ExitCode, problem: str) -> None:
    experiment = Experiment(MATRIX, tmp_path / "m")
    with pytest.raises(type(ended_by)), experiment.open(ConsolePresenter(io.StringIO()), MatrixOpening(irees=())):
        raise ended_by
    end = MATRIX.read(tmp_path / "m").end
    assert end is not None
    assert (end.exit_code, end.problem, end.interrupted) == (code, problem, code is ExitCode.INTERRUPTED)


def test_what_may_change_is_taken_as_it_is_given_now(tmp_path: Path) -> None:
    kept = ResumeOptions({"disturbed": "count", "metric": "time"})
    record = ExperimentRecord(tmp_path / "m" / JOURNAL, openings=[MatrixOpening(irees=(), kept=kept)])
    experiment = Experiment(MATRIX, tmp_path / "m", record)
    now = {"disturbed": "replace", "metric": "time"}
    assert experiment.keep_options(now, ("disturbed",)) == now
    assert experiment.keep_options({}, ("disturbed",)) == kept.options
    with pytest.raises(UsageError, match=r"--metric size: .* was started with time"):
        experiment.keep_options({"metric": "size"}, ("disturbed",))


def test_an_end_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = Experiment(MATRIX, tmp_path / "m")
    with (
        pytest.raises(GauntletError, match="No space left"),
        experiment.open(ConsolePresenter(io.StringIO()), MatrixOpening(irees=())),
    ):
        monkeypatch.setattr(EventLog, "write", fail)


def fail(*_: object, **__: object) -> None:
    raise GauntletError("No space left")
