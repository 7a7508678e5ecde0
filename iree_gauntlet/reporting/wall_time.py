"""How long a run took, from the times in its journal."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from iree_gauntlet.results import number

if TYPE_CHECKING:
    from iree_gauntlet.journal_format import JournalRecord

__all__ = ["wall_seconds"]


def wall_seconds(record: JournalRecord) -> float:
    """Wall time of a run in seconds: from each `run` event to the last event before the next one.

    The time between a kill and the resume does not count. The last part's time is what its `end` event
    measured, where there is one (a monotonic clock, where the other times are of the wall clock).

    Raises:
        ValueError: a time in the journal is no ISO 8601 time.
    """
    begins = [time for run in record.runs if (time := _time(run.get("time")))]
    if not begins:
        return 0.0
    texts = [*record.starts.values(), *record.result_times.values()]
    if record.end is not None:
        texts.append(str(record.end.get("time", "")))
    times = [time for text in texts if (time := _time(text))]
    total = 0.0
    for begin, following in zip(begins, [*begins[1:], None], strict=True):
        own = [time for time in times if time >= begin and (following is None or time < following)]
        measured = number(record.end.get("seconds")) if record.end is not None and following is None else None
        total += measured if measured is not None else (max(own, default=begin) - begin).total_seconds()
    return total


def _time(text: object) -> datetime | None:
    if not text:
        return None
    time = datetime.fromisoformat(str(text))
    return time if time.tzinfo else time.replace(tzinfo=UTC)
