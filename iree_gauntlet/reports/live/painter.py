"""What both painters of progress know: steps that run, verdicts so far, files that arrive; kept as tasks of rich."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

import rich.progress

from iree_gauntlet import messages
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.progress import Progress
from iree_gauntlet.reports.live.progress_text import (
    StepsLeft,
    format_arrived,
    format_beginning,
    format_finished,
    format_pace,
    format_started,
    format_step_title,
    is_worth_a_line,
    list_details,
    shorten_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.progress import Task, TaskID

    from iree_gauntlet.journal_events import RunEvent
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step


_DOWNLOADING = "downloading"
CHECKING = "checking"
# Above this many steps only what did not come out as expected gets a line of its own: thousands of them would scroll
# away what matters, and all are in the reports.
_MANY_STEPS = 200
# Steps of a suite are of a kind, but a cache may hold the first half of them: the last minute says more of the rest.
_STEPS_SECONDS = 60.0
_BYTES_SECONDS = 30.0
# Before that, the rate of steps is that of those which were there already.
_EARLY_SECONDS = 3.0
# The first news of a fresh download is of a block or two; where more is there, an earlier attempt had left it.
_RESUMED_BYTES = 4 << 20


class Painter(Progress):
    """Keeps the state, and says which lines stay; how they are written is the subclass's, and by itself nothing is.

    Args:
        clock: seconds.
        earlier: what each step of a suite took when it was last run, by its id.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        earlier: Callable[[str], Mapping[str, float]] = lambda _suite: {},
    ) -> None:
        self._clock = clock
        self._earlier = earlier
        self._left = StepsLeft([], {})
        self._lock = threading.RLock()
        self._steps = self._make_tasks(_STEPS_SECONDS)
        # The first of its tasks is the whole run.
        self._run_id = self._steps.add_task("", total=0, visible=False)
        self._counts: dict[str, int] = {}
        self._many = False
        # Downloads, also those that have arrived while others are under way; hashing; work on bytes.
        self._files = self._make_tasks(_BYTES_SECONDS)
        self._ids: dict[tuple[str, str], TaskID] = {}
        self._urls: set[str] = set()
        self._status = self._waiting = ""
        self._cancelled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal as it was found; may be called twice."""

    def cancel(self) -> None:
        """End downloads and work on bytes at their next block."""
        self._cancelled = True

    def run_started(self, run: RunEvent, count: int, ids: Sequence[str] = ()) -> None:
        """Say what begins."""
        with self._lock:
            self._many = count > _MANY_STEPS
            self._counts = {}
            self._left = StepsLeft(ids, self._earlier(run.suite) if ids and not self._many else {})
            self._steps.reset(self._run_id, total=count, visible=True)
            self._write_line(format_started(run, count))
        self._show(at_once=True)

    def steps_added(self, count: int) -> None:
        """Count them."""
        with self._lock:
            self._steps.update(self._run_id, total=(self._run.total or 0) + count)

    def step_started(self, step: Step, worker: str = "") -> None:
        """Show it among those that run."""
        with self._lock:
            # It may be there, by a worker that was lost.
            self.step_put_back(step)
            title = f"{format_step_title(step)}{f' on {worker}' if worker else ''}"
            self._ids["step", step.id] = self._steps.add_task(title, total=None)
            self._waiting = ""

    def step_put_back(self, step: Step) -> None:
        """Show it no more."""
        with self._lock:
            started = self._ids.pop(("step", step.id), None)
            if started is not None:
                self._steps.remove_task(started)

    def step_finished(self, step: Step, result: Result) -> None:
        """Count it; write its line, where it is worth one."""
        verdict = str(result.verdict)
        with self._lock:
            self.step_put_back(step)
            self._status = ""
            self._counts[verdict] = self._counts.get(verdict, 0) + 1
            self._steps.advance(self._run_id)
            self._left.finished(step.id)
            if not self._many or is_worth_a_line(verdict) or messages.is_verbose():
                self._write_line(format_finished(step, result, self._place), verdict)
            for line in list_details(result) if messages.is_verbose() else ():
                self._write_line(line)

    def download(self, url: str, done: int, total: int | None) -> None:
        """Show how far it is; one that was checked in vain begins again."""
        with self._lock:
            self._go_on(url)
            task = self._find_file(_DOWNLOADING, url)
            if task is None or self._find_file(CHECKING, url) is not None:
                self._forget(url)
                resumed = done if done >= _RESUMED_BYTES else 0
                self._urls.add(url)
                self._add(_DOWNLOADING, url, done, total, resumed)
                self._note_begun(format_beginning(url, done, total, resumed=bool(resumed)), resumed=bool(resumed))
            elif done == 0 and task.completed:
                self._files.reset(task.id, total=total, url=url, first=0, last=self._clock())
            elif done > task.completed:
                self._files.update(task.id, total=total, completed=done, last=self._clock())

    def checking(self, url: str, done: int, total: int) -> None:
        """Show how far it is; what is hashed has arrived."""
        with self._lock:
            self._go_on(url)
            task = self._find_file(CHECKING, url)
            if task is not None:
                self._files.update(task.id, total=total, completed=done, last=self._clock())
                return
            arrived = self._find_file(_DOWNLOADING, url)
            if arrived is not None:
                self._files.update(arrived.id, total=total, completed=total)
            self._urls.add(url)
            self._add(CHECKING, url, done, total)

    def download_finished(self, url: str) -> None:
        """Take it away; a line stays of one that has taken long."""
        with self._lock:
            task = self._find_file(_DOWNLOADING, url)
            if task is not None and task.finished and task.total is not None:
                # It stays in the sum of those that are still under way.
                del self._ids[_DOWNLOADING, url]
                self._files.update(task.id, visible=False)
                new = task.total - task.fields["first"]
                text = format_arrived(shorten_name(url, self._urls), task.total, new, task.finished_time or 0.0)
                if text:
                    self._write_line(text)
            self._forget(url)

    def work(self, what: str, total: int) -> None:
        """Begin something that is measured in bytes, such as `packing`; `advance` says how far it is."""
        with self._lock:
            self._add(what, "", 0, total)

    def advance(self, count: int) -> None:
        """So many further bytes of the work are done.

        Raises:
            GauntletError: it was cancelled.
        """
        with self._lock:
            self._go_on("the work")
            (task,) = (task for task in self._files.tasks if not task.fields["url"])
            self._files.update(task.id, advance=count, last=self._clock())
        self._show()

    def note(self, url: str, message: str) -> None:
        """Write it."""
        self.message(f"{url}: {message}")

    def message(self, text: str) -> None:
        """Write it."""
        with self._lock:
            self._write_line(text)

    def status(self, text: str) -> None:
        """Show it."""
        with self._lock:
            self._status, self._waiting = text, ""
        self._show()

    def waiting(self, text: str) -> None:
        """Show it."""
        with self._lock:
            self._waiting = text
        self._show()

    def _write_line(self, text: str, verdict: str = "") -> None:
        """Write a line that stays; it holds the verdict, if one is given."""

    def _note_begun(self, text: str, *, resumed: bool) -> None:
        """Say that a download has begun, if that is worth a line."""

    def _show(self, *, at_once: bool = False) -> None:
        """There is something to show from now on."""

    def _make_tasks(self, seconds: float) -> rich.progress.Progress:
        """Tasks whose speed is that of the last so many seconds."""
        return rich.progress.Progress(auto_refresh=False, speed_estimate_period=seconds, get_time=self._clock)

    @property
    def _run(self) -> Task:
        return self._steps.tasks[0]

    def _format_pace(self) -> str:
        """`3 failed, 760 passed; 2 min 01 s, about 4 min 10 s left`; of a beginning nothing is left to say."""
        run = self._run
        seconds = run.elapsed or 0.0
        if seconds < _EARLY_SECONDS:
            return format_pace(dict(self._counts), seconds, None)
        left = self._left.seconds(seconds)
        return format_pace(dict(self._counts), seconds, run.time_remaining if left is None else left)

    @property
    def _place(self) -> str:
        """`[ 3/24]`."""
        total = str(int(self._run.total or 0))
        return f"[{int(self._run.completed):>{len(total)}}/{total}]"

    def _go_on(self, what: str) -> None:
        if self._cancelled:
            raise GauntletError(f"{what}: interrupted")

    def _find_file(self, doing: str, url: str) -> Task | None:
        task_id = self._ids.get((doing, url))
        return next((task for task in self._files.tasks if task.id == task_id), None)

    def _add(self, doing: str, url: str, done: int, total: int | None, first: int = 0) -> None:
        """A file, or work on bytes; what an earlier attempt had left of it counts as done, but not as speed."""
        now = self._clock()
        self._ids[doing, url] = self._files.add_task(doing, total=total, completed=done, url=url, first=first, last=now)
        self._show()

    def _forget(self, url: str) -> None:
        for doing in (_DOWNLOADING, CHECKING):
            task_id = self._ids.pop((doing, url), None)
            if task_id is not None:
                self._files.remove_task(task_id)
        if not any(task.visible for task in self._files.tasks):
            for task_id in self._files.task_ids:
                self._files.remove_task(task_id)

    def _list_running_files(self) -> list[Task]:
        """What is shown of files, in the order in which they began: those that are hashed are so alone."""
        hashed = {task.fields["url"] for task in self._files.tasks if task.description == CHECKING}
        return [
            task
            for task in self._files.tasks
            if task.visible and (task.description != _DOWNLOADING or task.fields["url"] not in hashed)
        ]

    def _list_downloads(self) -> list[Task]:
        """All downloads since last nothing was under way; none where fewer than two are on their way."""
        found = [task for task in self._files.tasks if task.description == _DOWNLOADING]
        return found if sum(not task.finished for task in found) > 1 else []
