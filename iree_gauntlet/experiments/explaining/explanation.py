"""The record of an explanation, from its opening to its end, and the session in which it is made."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.session import open_session
from iree_gauntlet.experiments.experiment_log import begun_by, recorded_end
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.explain_outcome import EXPLAIN_RECORD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.experiment_log import Ending
    from iree_gauntlet.progress import Presenter, Progress


@contextmanager
def recorded_explanation(
    folder: Path, opening: dict[str, Any], presenter: Presenter, progress: Progress
) -> Iterator[tuple[Session[EventLog], Ending]]:
    """A session whose log opens with what is explained and ends with how that ended.

    Args:
        folder: `explain` of a run; made where it is not there.
        opening: fields of its opening event.
        presenter: shows it in the end.
        progress: shows how it goes.
    """
    folder.mkdir(exist_ok=True)
    with EventLog(folder / EXPLAIN_RECORD, lambda: datetime.now(UTC)) as log:
        log.write("explain", {**begun_by(), **opening})
        with (
            recorded_end(log, folder, presenter) as ending,
            open_session(folder, log, progress) as session,
            session.interruptible(),
        ):
            yield session, ending
