"""What the records of experiments have in common: how they begin and how they end."""

from __future__ import annotations

import shlex
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import __version__
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.explain_outcome import EXPLAIN_RECORD
from iree_gauntlet.settings import typed_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.progress import Presenter, Progress


@dataclass(slots=True)
class Ending:
    """What an experiment ends with.

    Attributes:
        code: its exit code; an error until it is set.
        problem: why it has no result; empty where it has one.
    """

    code: ExitCode = ExitCode.ERROR
    problem: str = ""


def begun_by() -> dict[str, str]:
    """The fields of an opening event that say which command this is."""
    return {"version": __version__, "command": shlex.join(typed_command()), "cwd": str(Path.cwd())}


@contextmanager
def recorded_end(log: EventLog, folder: Path, presenter: Presenter) -> Iterator[Ending]:
    """Write an `end` event when what stands inside is over, by whatever exception, and show what is recorded then."""
    began, ending = time.monotonic(), Ending()
    try:
        yield ending
    except KeyboardInterrupt:
        ending.code = ExitCode.INTERRUPTED
        raise
    except GauntletError as error:
        ending.code, ending.problem = error.exit_code, error.what
        raise
    except Exception as error:
        ending.code, ending.problem = ExitCode.ERROR, f"{type(error).__name__}: {error}"
        raise
    finally:
        end = {"exit_code": int(ending.code), "problem": ending.problem, "seconds": round(time.monotonic() - began, 3)}
        try:
            try:
                log.write("end", {**end, "interrupted": ending.code is ExitCode.INTERRUPTED})
            finally:
                presenter.ran(folder, brief=False)
        except GauntletError:
            # What it ended by says more: on a full disk, nothing of the end can be written either.
            if not ending.problem:
                raise


@contextmanager
def recorded_explanation(
    folder: Path, opening: dict[str, Any], presenter: Presenter, progress: Progress
) -> Iterator[tuple[Session[EventLog], Ending]]:
    """A session whose log opens with what is explained and ends with how that ended.

    `folder`: `explain` of a run; made where it is not there.
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
