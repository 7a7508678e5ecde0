"""How an experiment ends, in its record."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ExitCode, GauntletError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.records.event_log import EventLog


@dataclass(slots=True)
class Ending:
    """What an experiment ends with.

    Attributes:
        code: its exit code; an error until it is set.
        problem: why it has no result; empty where it has one.
    """

    code: ExitCode = ExitCode.ERROR
    problem: str = ""


@contextmanager
def recorded_end(log: EventLog) -> Iterator[Ending]:
    """Write an `end` event when what stands inside is over, by whatever exception."""
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
        log.write("end", {**end, "interrupted": ending.code is ExitCode.INTERRUPTED})
