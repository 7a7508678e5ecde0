"""Writing a run's journal.

Its events, as `EventLog` writes them:

- `run`: what is to be done and with what; `steps` holds every step. A resumed run appends another one.
- `steps`: further steps, of a run that learns on the way what there is to do.
- `start`: a `step` begins.
- `result`: what it came to.
- `end`: the run is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.running.event_log import EventLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Journal"]


class Journal(EventLog):
    """The one writer of a run's `journal.jsonl`."""

    def run(self, fields: Mapping[str, Any]) -> None:
        """Write what the run is about to do: the fields of a `run` event, `steps` among them."""
        self.write("run", fields)

    def more_steps(self, steps: Sequence[Mapping[str, Any]]) -> None:
        """Write steps that the run did not know of when it began."""
        self.write("steps", {"steps": list(steps)})

    def start(self, step: str) -> None:
        """Write that a step begins: of use only while it goes on, so that it need not last."""
        self.write("start", {"step": step}, lasting=False)

    def result(self, step: str, fields: Mapping[str, Any]) -> None:
        """Write what a step came to."""
        self.write("result", {"step": step, **fields})

    def end(self, *, exit_code: int, seconds: float, interrupted: bool) -> None:
        """Write that the run is over."""
        self.write("end", {"exit_code": exit_code, "seconds": seconds, "interrupted": interrupted})
