"""Where a report is from, in the words of its page's head and foot."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from iree_gauntlet.document import Provenance
from iree_gauntlet.figures import byte_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# What the event that opens a record says of where it is from, besides its time.
ORIGIN = ("machine", "command", "cwd", "version")


def provenance(iree: str, event: Mapping[str, Any], files: Iterable[str], seconds: float | None = None) -> Provenance:
    """The provenance of a report.

    Args:
        iree: which IREE it is about.
        event: that opens its record: `time`, and those of `ORIGIN` that are known.
        files: that lie beside the page.
        seconds: that it took; None for one that has not finished.
    """
    command, cwd, version = (str(event.get(name) or "") for name in ("command", "cwd", "version"))
    machine = _format_machine_text(event.get("machine") or {})
    started = _format_day_and_time(str(event.get("time") or ""))
    return Provenance(started, iree, machine, command, cwd, version, tuple(files), seconds)


def seconds_between(begin: str, end: str) -> float | None:
    """From the time of one event of a record to that of another, its last; None where there is none."""
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() if begin and end else None


def _format_day_and_time(text: str) -> str:
    """A time of a record, which is ISO 8601, as `2026-11-27 09:26 UTC`."""
    return f"{datetime.fromisoformat(text).astimezone(UTC):%Y-%m-%d %H:%M} UTC" if text else ""


def _format_machine_text(machine: Mapping[str, Any]) -> str:
    """`host, AMD EPYC, 2 cores, 25.3 GB`."""
    cores, memory = machine.get("cores"), machine.get("memory_bytes")
    parts = (machine.get("host"), machine.get("cpu"), cores and f"{cores} cores", memory and byte_size(memory))
    return ", ".join(str(part) for part in parts if part)
