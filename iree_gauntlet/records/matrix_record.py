"""Reading `matrix.jsonl`, the record that lies beside the runs of a matrix.

Its events, as `records/event_log.py` writes them (`experiments/matrix.py` is the writer):

- `matrix`: `irees` ({label, iree, folder} each, in the order given), what was selected and by which options. A
  resumed matrix appends another one.
- `toolchain`: what a `label` turned out to be (`toolchain`), or why it cannot be had (`error`, `hint`).
- `start`: the run of a `label` begins, or is resumed.
- `result`: it finished with `exit_code`; `error` and `hint` where it could not be run to its end.
- `end`: nothing more comes: `interrupted`, or `stopped` with the reason why IREEs were left out.

All that was measured is in the journals of the runs, `<folder>/journal.jsonl`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from iree_gauntlet.journal_format import read_events

__all__ = ["MATRIX_RECORD", "MatrixRecord", "is_matrix", "read_matrix"]

MATRIX_RECORD = "matrix.jsonl"


@dataclass(frozen=True, slots=True)
class MatrixRecord:
    """What the record of a matrix says.

    Attributes:
        path: the record.
        parts: every `matrix` event; a resumed matrix has more than one.
        toolchains: the last `toolchain` event of each label.
        started: labels whose run was begun.
        results: the `result` event of each label; none while it is run again.
        end: the `end` event; None for a matrix that was killed or is under way.
        torn: whether there is a line that was cut short by a crash (it is left out).
    """

    path: Path
    parts: tuple[dict[str, Any], ...]
    toolchains: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: frozenset[str] = frozenset()
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    torn: bool = False


def is_matrix(folder: Path) -> bool:
    """Whether a folder is that of a matrix."""
    return (folder / MATRIX_RECORD).is_file()


def read_matrix(folder: Path) -> MatrixRecord:
    """Read the record of a matrix, also of one that was killed or is under way.

    Raises:
        GauntletError: there is none, or it is damaged in another way than by a crash.
    """
    record = read_events(folder / MATRIX_RECORD, "matrix")
    parts: list[dict[str, Any]] = []
    toolchains: dict[str, dict[str, Any]] = {}
    results: dict[str, dict[str, Any]] = {}
    started: set[str] = set()
    end: dict[str, Any] | None = None
    for number, event in record.events:
        kind = event.get("event")
        if kind == "matrix":
            if not _names_irees(event):
                record.refuse(number, "is a matrix event without a list of IREEs")
            parts.append(event)
            end = None
        elif kind == "end":
            end = event
        elif kind in ("toolchain", "start", "result"):
            label = event.get("label")
            if not isinstance(label, str):
                record.refuse(number, f"is a {kind} event without a label")
            if kind == "toolchain":
                toolchains[label] = event
            elif kind == "start":
                started.add(label)
                results.pop(label, None)
            else:
                if not isinstance(event.get("exit_code"), int):
                    record.refuse(number, "is a result event without an exit code")
                results[label] = event
    return MatrixRecord(record.path, tuple(parts), toolchains, frozenset(started), results, end, record.torn)


def _names_irees(event: dict[str, Any]) -> bool:
    """Whether it does, each with a folder that is no path to somewhere else."""
    irees = event.get("irees")
    return isinstance(irees, list) and all(
        isinstance(iree, dict)
        and all(isinstance(iree.get(key), str) for key in ("label", "iree", "folder"))
        and PurePath(iree["folder"]).parts == (iree["folder"],)
        and iree["folder"] not in ("..", "/")
        for iree in irees
    )
