"""Runs of a history that are made up."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from iree_gauntlet.records.history_record import HistoryCase, HistoryFigure, HistoryMachine, HistoryRun, IreeVersion

__all__ = ["history_bytes", "run_of"]


def run_of(
    day: int, figures: dict[str, float] | None = None, *, iree: str = "", named: str = "", **changes: Any
) -> HistoryRun:
    """A run of one model on the day of March 2026 (from 1 on), with what it measured."""
    measured = {"time_ms": 10.0, "dispatches": 7.0} if figures is None else figures
    month, day_of_month = divmod(day - 1, 28)
    case = HistoryCase(
        model="toy",
        submodel="abs",
        target="cpu",
        flags="f",
        verdict="passed",
        figures=tuple(HistoryFigure(name, value, disturbed=False) for name, value in measured.items()),
    )
    given: dict[str, Any] = {
        "run": f"run{day}",
        "time": f"2026-{3 + month:02}-{day_of_month + 1:02}T10:00:00+00:00",
        "cases": (case,),
        "iree": IreeVersion(iree, f"{day:040x}", named=named),
        "machine": HistoryMachine("CPU", 2, 1, "Linux 6"),
    }
    return HistoryRun(**(given | changes))


def history_bytes(content: dict[str, Any] | str) -> tuple[str, bytes]:
    """The name and the bytes of a file of a history with any content, as a document or as JSON."""
    data = (content if isinstance(content, str) else json.dumps(content)).encode() + b"\n"
    return f"20260309T100000Z-{hashlib.sha256(data).hexdigest()[:20]}.json", data
