"""The log of a small case: written only where there is something to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.running.processes import Processes
    from iree_gauntlet.running.steps import Step

__all__ = ["write_log"]


def write_log(path: Path, lines: Sequence[str], processes: Processes, step: Step) -> str:
    """Writes what there is to say of a failure; the file's path for the journal.

    Raises:
        GauntletError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise GauntletError(f"{path}: cannot write the log: {error.strerror}", "make room there") from error
    return processes.log(step, path.name)
