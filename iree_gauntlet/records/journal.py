"""Writing a run's journal.

Its events, as `EventLog` writes them:

- `run`: what is to be done and with what; `steps` holds every step. A resumed run appends another one.
- `steps`: further steps, of a run that learns on the way what there is to do.
- `start`: a `step` begins.
- `result`: its result.
- `end`: the run is over.

A result is with the kernel before the call returns: `kill -9` of this process loses none that was reported. The plan,
the end, and results of steps that took a second or longer are on the disk by then; other results within 20 ms, many
with one sync, as a suite of operators has hundreds a second: a power cut may lose that much. A start is written with
the next line, or within 20 ms: `kill -9` may lose those of steps that had only just begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.records.event_log import EventLog, Sync

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.results import Result

__all__ = ["Journal"]

# What took as long would be missed, and a sync is little beside it.
_LONG_SECONDS = 1.0


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
        self.write("start", {"step": step}, sync=Sync.LATER)

    def result(self, step: str, result: Result) -> None:
        """Write the result of a step."""
        sync = Sync.NOW if result.seconds >= _LONG_SECONDS else Sync.SOON
        self.write("result", {"step": step, **result.as_dict()}, sync=sync)

    def end(self, *, exit_code: int, seconds: float, interrupted: bool) -> None:
        """Write that the run is over."""
        self.write("end", {"exit_code": exit_code, "seconds": seconds, "interrupted": interrupted})
