"""Where a report is from, in the words of its page's head and foot."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from iree_gauntlet.document import Provenance
from iree_gauntlet.figures import byte_size
from iree_gauntlet.journal_events import MachineFacts
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class RecordOrigin(Recorded):
    """What the event that opens a record says of where it is from; its time is ISO 8601."""

    time: str = ""
    machine: MachineFacts = field(default_factory=MachineFacts)
    command: str = ""
    cwd: str = ""
    version: str = ""


def provenance(iree: str, origin: RecordOrigin, files: Iterable[str], seconds: float | None = None) -> Provenance:
    """The provenance of a report.

    Args:
        iree: which IREE it is about.
        origin: of its record.
        files: that lie beside the page.
        seconds: that it took; None for one that has not finished.
    """
    started = f"{datetime.fromisoformat(origin.time).astimezone(UTC):%Y-%m-%d %H:%M} UTC" if origin.time else ""
    facts = origin.machine
    cores = f"{facts.cores} cores" if facts.cores else ""
    memory = byte_size(facts.memory_bytes) if facts.memory_bytes else ""
    machine = ", ".join(filter(None, (facts.host, facts.cpu, cores, memory)))
    return Provenance(started, iree, machine, origin.command, origin.cwd, origin.version, tuple(files), seconds)


def count_seconds_between(begin: str, end: str) -> float | None:
    """From the time of one event of a record to that of another, its last; None where there is none."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() if begin and end else None
