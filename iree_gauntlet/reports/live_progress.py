"""Progress of work: on a terminal what runs, for how long, and how far the files are; elsewhere lines of a log.

What is known of it is kept as tasks of rich. On a terminal, lines that stay scroll by above the rest. What people read
of runs, steps and downloads, as text, stands at the end.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import TYPE_CHECKING, Self, TextIO

import rich.console
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Tasks
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from iree_gauntlet import messages
from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import STYLES, byte_size, clean, counted, duration, listed, one_line, percent, signed
from iree_gauntlet.messages import write_text
from iree_gauntlet.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.progress import TaskID

    from iree_gauntlet.journal_events import RunOpening
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step


_DOWNLOADING = "downloading"
_CHECKING = "checking"
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
# Of a log.
_HEARTBEAT_SECONDS = 30.0
_PACE_SECONDS = 10.0
_NAMED_STEPS = 4
# Of a terminal.
_MOST_STEPS = 8
_MOST_FILES = 5
_SHORTEST_NAME, _LONGEST_NAME = 12, 40
# Of `60.0 %`, `3.2/16.1 GB`, `80.1 MB/s` and `2 min 41 s left`.
_FIGURES_WIDTH = 58
# What takes less shows nothing.
_QUIET_SECONDS = 1.0
# An arrival that took less is not worth a line of its own.
_WORTH_SECONDS = 5.0
# Seconds of waiting for locks that are shown.
_WORTH_WAITING = 1.0
_STALLED_SECONDS = 10.0


class Painter(Progress):
    """Keeps the state, and says which lines stay; how they are written is the subclass's, and by itself nothing is.

    Args:
        clock: seconds.
        earlier: gives the seconds that each step of a suite took when it was last run, by its id.
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
        # When the last step ended, when what is waited for began to be, and how long was waited before.
        self._ended_at = self._waits_since = clock()
        self._waited_seconds = 0.0
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

    def run_started(self, run: RunOpening, count: int, ids: Sequence[str] = ()) -> None:
        """Say what begins."""
        with self._lock:
            self._many = count > _MANY_STEPS
            self._counts = {}
            self._left = StepsLeft(ids, self._earlier(run.suite) if ids and not self._many else {})
            self._steps.reset(self._run_id, total=count, visible=True)
            what = "resuming run" if run.resumed else "run"
            compiler = f", IREE {run.toolchain.compiler}" if run.toolchain.compiler else ""
            self._write_line(one_line(f"{what} {run.name}: {counted(count, 'step')}{compiler}"))
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
            title = f"{_format_step_title(step)}{f' on {worker}' if worker else ''}"
            self._ids["step", step.id] = self._steps.add_task(title, total=None)
            self._set_waiting("")

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
            self._ended_at = self._clock()
            if not self._many or result.verdict.is_bad or messages.is_verbose():
                self._write_line(format_finished(step, result, self._place), verdict)
            for line in _list_details(result) if messages.is_verbose() else ():
                self._write_line(line)

    def download(self, url: str, done: int, total: int | None) -> None:
        """Show how far it is; one that was checked in vain begins again."""
        with self._lock:
            self._stop_if_cancelled(url)
            task = self._find_file(_DOWNLOADING, url)
            if task is None or self._find_file(_CHECKING, url) is not None:
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
            self._stop_if_cancelled(url)
            task = self._find_file(_CHECKING, url)
            if task is not None:
                self._files.update(task.id, total=total, completed=done, last=self._clock())
                return
            arrived = self._find_file(_DOWNLOADING, url)
            if arrived is not None:
                self._files.update(arrived.id, total=total, completed=total)
            self._urls.add(url)
            self._add(_CHECKING, url, done, total)

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
            self._stop_if_cancelled("the work")
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
            self._status = text
            self._set_waiting("")
        self._show()

    def waiting(self, text: str) -> None:
        """Show it."""
        with self._lock:
            self._set_waiting(text)
        self._show()

    def _write_line(self, text: str, verdict: str = "") -> None:
        """Write a line that stays; it holds the verdict, if one is given."""

    def _note_begun(self, text: str, *, resumed: bool) -> None:
        """Say that a download has begun, if that is worth a line."""

    def _show(self, *, at_once: bool = False) -> None:
        """There is something to show from now on."""

    def _make_tasks(self, seconds: float) -> Tasks:
        """Tasks whose speed is that of the last so many seconds."""
        return Tasks(auto_refresh=False, speed_estimate_period=seconds, get_time=self._clock)

    @property
    def _run(self) -> Task:
        return self._steps.tasks[0]

    def _format_pace(self) -> str:
        """`3 failed, 760 passed; 2 min 01 s, about 4 min 10 s left`; of a beginning nothing is left to say."""
        run = self._run
        seconds = run.elapsed or 0.0
        if seconds < _EARLY_SECONDS:
            return _format_verdicts(dict(self._counts), seconds, None)
        left = self._estimate_left()
        usual = None if self._waiting or left is not None else run.time_remaining
        return _format_verdicts(dict(self._counts), seconds, usual if left is None else left)

    def _set_waiting(self, text: str) -> None:
        now = self._clock()
        if self._waiting:
            self._waited_seconds += now - self._waits_since
        self._waiting, self._waits_since = text, now

    def _estimate_left(self) -> float | None:
        """Seconds that are left; None where nothing tells: while it waits, and where a step took longer than that."""
        left = self._left.seconds((self._run.elapsed or 0.0) - self._waited_seconds)
        late = left is not None and left < self._clock() - max(self._ended_at, self._waits_since)
        return None if self._waiting or late else left

    @property
    def _place(self) -> str:
        """`[ 3/24]`."""
        total = str(int(self._run.total or 0))
        return f"[{int(self._run.completed):>{len(total)}}/{total}]"

    def _stop_if_cancelled(self, what: str) -> None:
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
        for doing in (_DOWNLOADING, _CHECKING):
            task_id = self._ids.pop((doing, url), None)
            if task_id is not None:
                self._files.remove_task(task_id)
        if not any(task.visible for task in self._files.tasks):
            for task_id in self._files.task_ids:
                self._files.remove_task(task_id)

    def _list_running_files(self) -> list[Task]:
        """What is shown of files, in the order in which they began: those that are hashed are so alone."""
        hashed = {task.fields["url"] for task in self._files.tasks if task.description == _CHECKING}
        return [
            task
            for task in self._files.tasks
            if task.visible and (task.description != _DOWNLOADING or task.fields["url"] not in hashed)
        ]

    def _list_downloads(self) -> list[Task]:
        """All downloads since last nothing was under way; none where fewer than two are on their way."""
        found = [task for task in self._files.tasks if task.description == _DOWNLOADING]
        return found if sum(not task.finished for task in found) > 1 else []


class PlainProgress(Painter):
    """One line for each finished step, flushed at once; of a run with many, every 10 s one says how far it is.

    Where nothing was written for a heartbeat (30 s), a line says what is running, so that a CI system does not take
    the run for dead and a reader of its log sees what hangs. As often, lines say how far downloads are.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        heartbeat: float = _HEARTBEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        earlier: Callable[[str], Mapping[str, float]] = lambda _suite: {},
    ) -> None:
        super().__init__(clock, earlier)
        self._stream = stream
        self._heartbeat = heartbeat
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._waited = ""
        self._paced = 0.0
        self._last_line = self._last_files = self._last_pace = self._last_wait = clock()

    def run_started(self, run: RunOpening, count: int, ids: Sequence[str] = ()) -> None:
        """Say what begins."""
        self._last_pace, self._paced = self._clock(), 0.0
        super().run_started(run, count, ids)

    def waiting(self, text: str) -> None:
        """Write what is waited for, once in a while."""
        with self._lock:
            if text and (text != self._waited or self._clock() - self._last_wait >= self._heartbeat):
                self._waited, self._last_wait = text, self._clock()
                self._write_line(f"waiting {one_line(text)}")
        super().waiting(text)

    def close(self) -> None:
        """Stop the heartbeat."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _write_line(self, text: str, verdict: str = "") -> None:
        del verdict  # the text has it
        self._last_line = self._clock()
        write_text(self._stream, f"{clean(text)}\n")

    def _note_begun(self, text: str, *, resumed: bool) -> None:
        del resumed  # a log has a line of every download
        self._write_line(text)

    def _show(self, *, at_once: bool = False) -> None:
        del at_once
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._tick, name="heartbeat", daemon=True)
                thread.start()
                # Ctrl-C may come before it has begun, and then there is nothing to wait for.
                self._thread = thread

    def _tick(self) -> None:
        while not self._closing.wait(min(self._heartbeat / 4, 1.0)):
            with self._lock:
                try:
                    self._tell(self._clock())
                except (BrokenPipeError, ValueError):
                    # Nobody reads any more. The next line meets the same error, and raises it where it can be acted
                    # on; a traceback from this thread would only hide it.
                    return

    def _tell(self, now: float) -> None:
        """Write how far the run is, what runs and how far the files are, where it is time to."""
        run = self._run
        if self._many and now - self._last_pace >= _PACE_SECONDS and run.completed > self._paced:
            self._last_pace, self._paced = now, run.completed
            self._write_line(f"{self._place} {self._format_pace()}")
        state = self._format_state()
        if state and now - self._last_line >= self._heartbeat:
            self._write_line(state)
        files = self._list_running_files()
        if not files:
            # The first news of a file comes a heartbeat after its beginning.
            self._last_files = now
        elif now - self._last_files >= self._heartbeat:
            self._last_files = now
            downloads = self._list_downloads()
            lines = [format_together(downloads)] if downloads else []
            lines += [format_file(task, shorten_name(task.fields["url"], self._urls)) for task in files]
            # Not lines that break the silence: what runs during a long download is shown, too.
            write_text(self._stream, "".join(f"{line}\n" for line in lines))

    def _format_state(self) -> str:
        """What runs; empty where that is nothing that could be named."""
        run, *steps = self._steps.tasks
        named = listed([f"{task.description} ({duration(task.elapsed or 0.0)})" for task in steps], _NAMED_STEPS)
        parts = [f"still running: {named}"] if steps else ["nothing runs"] if run.visible else []
        if self._status:
            parts.append(one_line(self._status))
        if self._waiting:
            parts.append(f"waiting {one_line(self._waiting)}")
        if (left := self._estimate_left()) is not None:
            parts.append(f"about {duration(left)} left")
        return f"{self._place} {'; '.join(parts)}" if run.visible else "; ".join(parts)


class _TextColumn(ProgressColumn):
    """Text that is made of a task, and never broken."""

    def __init__(self, render: Callable[[Task], Text]) -> None:
        super().__init__(Column(no_wrap=True))
        self._render = render

    def render(self, task: Task) -> Text:
        return self._render(task)


class LiveProgress(Painter):
    """Live progress on a terminal; `width` in columns, None for the terminal's own."""

    def __init__(
        self,
        stream: TextIO,
        *,
        colour: bool = True,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        earlier: Callable[[str], Mapping[str, float]] = lambda _suite: {},
    ) -> None:
        super().__init__(clock, earlier)
        self._opened = clock()
        self._closed = False
        one = Column(no_wrap=True)
        self._run_table = _make_table_of(
            BarColumn(20), MofNCompleteColumn(table_column=one), _TextColumn(lambda _: self._render_verdicts())
        )
        self._step_table = _make_table_of(
            TimeElapsedColumn(table_column=one), TextColumn("{task.description}", markup=False, table_column=one)
        )
        self._file_table = _make_table_of(
            _TextColumn(self._render_name),
            BarColumn(20),
            TaskProgressColumn("{task.percentage:>5.1f} %", table_column=one),
            DownloadColumn(table_column=one),
            _TextColumn(lambda task: Text(format_speed(task), justify="right")),
            _TextColumn(lambda task: Text("checking" if task.description == _CHECKING else format_left(task))),
        )
        self._spinner = Spinner("dots")
        self._console = rich.console.Console(
            file=stream,
            force_terminal=True,
            no_color=not colour,
            width=width,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._live = Live(
            self,  # composed at each painting, so that what is shown is never stale
            console=self._console,
            refresh_per_second=4,
            transient=True,
            # Results of a command whose progress goes to standard error come out above it on the same terminal.
            redirect_stdout=stream is sys.stderr and sys.stdout.isatty(),
            redirect_stderr=False,
        )

    def close(self) -> None:
        """Take the live part away and show the cursor again."""
        self._closed = True
        self._live.stop()

    def _write_line(self, text: str, verdict: str = "") -> None:
        line = Text(clean(text))
        if verdict:
            # With its sign.
            start = max(line.plain.index(verdict) - 2, 0)
            line.stylize(STYLES.get(verdict, ""), start, start + 2 + len(verdict))
        self._console.print(line, soft_wrap=True)

    def _note_begun(self, text: str, *, resumed: bool) -> None:
        if resumed:
            self._write_line(text)

    def _show(self, *, at_once: bool = False) -> None:
        if not (self._closed or self._live.is_started) and (at_once or self._clock() - self._opened >= _QUIET_SECONDS):
            self._live.start()

    # What follows is called by rich's own thread, which holds rich's lock: the painter's lock is never taken there.

    def __rich_console__(self, console: rich.console.Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(Group(*self._render_parts()), options, pad=False)
        # One line is the cursor's.
        for line in lines[: max(1, options.size.height - 1)]:
            yield from line
            yield Segment.line()

    def _render_parts(self) -> Iterator[RenderableType]:
        """What matters most comes first: a low terminal cuts off the rest."""
        run, *steps = self._steps.tasks
        if run.visible:
            yield self._run_table([run])
        if self._waiting:
            yield Text(f"  waiting {one_line(self._waiting)}", style="yellow", no_wrap=True, overflow="ellipsis")
        if self._status:
            self._spinner.update(text=Text(one_line(self._status), no_wrap=True, overflow="ellipsis"))
            yield self._spinner
        most = max(1, min(_MOST_STEPS, self._console.height // 3))
        if steps:
            yield self._step_table(steps[:most])
        if len(steps) > most:
            yield Text(f"        and {len(steps) - most} more run", style="dim")
        downloads, files = self._list_downloads(), self._list_running_files()
        if downloads:
            yield Text(f"{format_together(downloads)}", style="blue", no_wrap=True, overflow="ellipsis")
        if files:
            yield self._file_table(files[:_MOST_FILES])

    def _render_verdicts(self) -> Text:
        text = Text(self._format_pace())
        for verdict, style in STYLES.items():
            text.highlight_words([verdict], style)
        return text

    def _render_name(self, task: Task) -> Text:
        name = shorten_name(task.fields["url"], tuple(self._urls)) if task.fields["url"] else ""
        longest = max(_SHORTEST_NAME, min(_LONGEST_NAME, self._console.width - _FIGURES_WIDTH))
        if len(name) > longest:
            # Names differ at their ends.
            name = f"…{name[1 - longest :]}"
        return Text(f"{'↓' if name else task.description} {name}", "blue")


def _make_table_of(*columns: ProgressColumn) -> Callable[[Iterable[Task]], Table]:
    """Rows of tasks in rich's columns."""
    return Tasks(*columns, auto_refresh=False).make_tasks_table


class StepsLeft:
    """How long the steps of a run will take yet, by the seconds that they took in an earlier one, by their ids."""

    def __init__(self, ids: Sequence[str], earlier: Mapping[str, float]) -> None:
        known = [earlier[step] for step in ids if step in earlier]
        # Where most steps are new, the earlier ones say nothing.
        usual = sum(known) / len(known) if len(known) > len(ids) / 2 else 0.0
        # Of a step that took no time it may take some now.
        self._weights = {step: max(earlier.get(step, usual), usual / 20) for step in ids} if usual else {}
        self._all = sum(self._weights.values())

    def finished(self, step: str) -> None:
        """A step is done."""
        self._weights.pop(step, None)

    def seconds(self, elapsed: float) -> float | None:
        """Seconds that are left after so many; None where nothing can be said."""
        left = sum(self._weights.values())
        done = self._all - left
        return elapsed * left / done if done > self._all / 20 else None


def _format_step_title(step: Step) -> str:
    """What people read of a planned step: `ocr/classifier@cpu threshold`."""
    return one_line(f"{step.chain} {step.name}")


def format_finished(step: Step, result: Result, place: str) -> str:
    """The line of a finished step: `[ 3/24] ✓ passed  ocr/cls@cpu compile  8.21 s (cached)`."""
    cached = " (cached)" if result.cache and result.cache.hit else ""
    waited = f" (waited {duration(result.waited_seconds)})" if result.waited_seconds >= _WORTH_WAITING else ""
    took = f"  {duration(result.seconds)}{cached}{waited}" if result.verdict is not Verdict.SKIPPED else ""
    reason = f": {one_line(result.full_reason)}" if result.reason else ""
    verdict = signed(f"{result.verdict:<7}", result.verdict)
    return f"{place} {verdict} {_format_step_title(step)}{took}{reason}"


def _list_details(result: Result) -> list[str]:
    """How a step came to its result: its command, what the cache had, its notes and where its output is."""
    cache = result.cache
    parts = (
        ("$", result.command),
        ("cache:", f"{cache.reason} (key {cache.key[:12]})" if cache and cache.key else cache.reason if cache else ""),
        *(("note:", note) for note in result.notes),
        ("log:", result.log),
    )
    return [f"    {word} {one_line(text, 4000)}" for word, text in parts if text]


def _format_verdicts(counts: Mapping[str, int], seconds: float, left: float | None) -> str:
    """`3 failed, 760 passed; 2 min 01 s, about 4 min 10 s left`."""
    worst_first = sorted(counts.items(), key=lambda item: (not Verdict(item[0]).is_bad, item[0]))
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in worst_first)
    times = duration(seconds) + (f", about {duration(left)} left" if left else "")
    return f"{verdicts}; {times}" if verdicts else times


def shorten_name(url: str, urls: Iterable[str]) -> str:
    """The last component of a URL, with as many before it as distinguish it from every other URL."""
    parts = one_line(url, 1000).split("/")
    tails = ("/".join(parts[-count:]) for count in range(1, len(parts)))
    others = [f"/{other}" for other in urls if other != url]
    return next((tail for tail in tails if tail and not any(other.endswith(f"/{tail}") for other in others)), url)


def format_progress_bytes(done: float, total: float | None) -> str:
    """`3.2 of 16.1 GB`, `12.0 MB of 16.1 GB`, `12.0 MB`."""
    if not total:
        return byte_size(done)
    there, all_of_it = byte_size(done), byte_size(total)
    number, _, unit = there.partition(" ")
    return f"{number if all_of_it.endswith(f' {unit}') else there} of {all_of_it}"


def format_beginning(url: str, done: int, total: int | None, *, resumed: bool) -> str:
    """`downloading URL (16.1 GB)`, `resuming URL at 3.2 of 16.1 GB`."""
    if resumed:
        return f"resuming {one_line(url)} at {format_progress_bytes(done, total)}"
    return f"downloading {one_line(url)}{f' ({byte_size(total)})' if total else ''}"


def format_arrived(name: str, total: float, arrived: float, seconds: float) -> str:
    """`downloaded x (16.1 GB in 3 min 20 s, 80.1 MB/s)`; empty where it was too quick to wait for."""
    if seconds < _WORTH_SECONDS:
        return ""
    missing = f", the missing {byte_size(arrived)}" if arrived < total else ""
    return f"downloaded {name} ({byte_size(total)}{missing} in {duration(seconds)}, {byte_size(arrived / seconds)}/s)"


def format_file(task: Task, name: str) -> str:
    """`downloading x: 3.2 of 16.1 GB (19.9 %), 80.1 MB/s, 2 min 41 s left`."""
    what = f"{task.description} {name}".strip()
    return _format_sentence(what, task.completed, task.total, format_speed(task), format_left(task))


def format_speed(task: Task) -> str:
    """`80.1 MB/s`; empty where nothing can be said, or nothing comes any more."""
    return f"{byte_size(_compute_speed(task))}/s" if _compute_speed(task) else ""


def format_left(task: Task) -> str:
    """`2 min 41 s left`; `nothing for 34 s` where it stands still; empty where it is not known."""
    if task.finished:
        return ""
    silence = _compute_silence(task)
    if silence >= _STALLED_SECONDS:
        return f"nothing for {_format_whole_seconds(silence)}"
    return "" if task.time_remaining is None else f"{_format_whole_seconds(task.time_remaining)} left"


def format_together(tasks: Sequence[Task]) -> str:
    """All downloads in one line, those that have arrived included: `downloading 3 files: 3.2 of 16.1 GB (…), …`."""
    under_way = [task for task in tasks if not task.finished]
    totals = [task.total for task in tasks if task.total is not None]
    lefts = [task.time_remaining for task in under_way if task.time_remaining is not None]
    speed = sum(map(_compute_speed, under_way))
    return _format_sentence(
        f"downloading {len(under_way)} files",
        sum(task.completed for task in tasks),
        sum(totals) if len(totals) == len(tasks) else None,
        f"{byte_size(speed)}/s" if speed else "",
        f"{_format_whole_seconds(max(lefts))} left" if lefts else "",
    )


def _format_sentence(what: str, done: float, total: float | None, speed: str, left: str) -> str:
    share = f" ({percent(done, total)})" if total else ""
    return f"{what}: {', '.join(filter(None, (f'{format_progress_bytes(done, total)}{share}', speed, left)))}"


def _compute_speed(task: Task) -> float:
    return 0.0 if task.finished or _compute_silence(task) >= _STALLED_SECONDS else task.speed or 0.0


def _compute_silence(task: Task) -> float:
    return task.get_time() - float(task.fields["last"])


def _format_whole_seconds(seconds: float) -> str:
    """Rounded up, as nothing is there before it is."""
    return f"{math.ceil(seconds)} s" if seconds < 120 else duration(seconds)
