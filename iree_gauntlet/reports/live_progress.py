"""Report progress on a terminal as a live display of running steps and transfers, elsewhere as log lines.

The state is kept as tasks of the package rich. On a terminal, permanent lines scroll by above the live display. The
functions that format runs, steps and downloads as text are at the end of the file.
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
from iree_gauntlet.formatting import (
    STYLES,
    add_verdict_sign,
    clean_text,
    format_bytes,
    format_duration,
    format_percent,
    join_lines,
    list_first,
    pluralize,
)
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
# With more steps than this, only unexpected results get a line. Thousands of lines would scroll the important ones
# away, and the reports have all results.
_MANY_STEPS = 200
# Predict the remaining time from the last minute: a suite's steps are alike, but many early ones may come from a cache.
_STEP_RATE_PERIOD_SECONDS = 60.0
_BYTE_RATE_PERIOD_SECONDS = 30.0
# Before that time, the measured rate would mostly count steps that were done before.
_MIN_ESTIMATE_SECONDS = 3.0
# A new download's first report has one or two blocks; a larger first report means that a download is resumed.
_MIN_RESUMED_BYTES = 4 << 20
# The following three apply to logs.
_HEARTBEAT_INTERVAL_SECONDS = 30.0
_PACE_SECONDS = 10.0
_MAX_LISTED_STEPS = 4
# The following apply to terminals.
_MAX_SHOWN_STEPS = 8
_MAX_SHOWN_FILES = 5
_MIN_NAME_WIDTH, _MAX_NAME_WIDTH = 12, 40
# The width has room for `60.0 %`, `3.2/16.1 GB`, `80.1 MB/s` and `2 min 41 s left`.
_METRICS_WIDTH = 58
# Commands that take less time show no live display.
_DELAY_SECONDS = 1.0
# Downloads that take less time get no line at their end.
_MIN_DOWNLOAD_SECONDS = 5.0
# Shorter waits for locks (in seconds) are not shown.
_MIN_WAIT_SECONDS = 1.0
_STALLED_SECONDS = 10.0


class Painter(Progress):
    """The progress state, and the choice of permanent lines; only subclasses write the lines.

    Args:
        clock: a function that returns seconds.
        read_step_seconds: returns, for a suite, each step's seconds in the suite's last run, by the step's id.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        read_step_seconds: Callable[[str], Mapping[str, float]] = lambda _suite: {},
    ) -> None:
        self._clock = clock
        self._read_step_seconds = read_step_seconds
        self._remaining_time = RemainingTime([], {})
        self._lock = threading.RLock()
        self._steps = self._make_tasks(_STEP_RATE_PERIOD_SECONDS)
        # The first of these tasks represents the whole run.
        self._run_id = self._steps.add_task("", total=0, visible=False)
        self._counts: dict[str, int] = {}
        self._is_large = False
        # These are tasks of downloads (while any runs, also finished ones), of hashing, and of work measured in bytes.
        self._files = self._make_tasks(_BYTE_RATE_PERIOD_SECONDS)
        self._task_ids: dict[tuple[str, str], TaskID] = {}
        self._urls: set[str] = set()
        self._status = self._waiting = ""
        # These are the last step's end, the beginning of the present wait, and the seconds of earlier waits.
        self._ended_at = self._wait_started_at = clock()
        self._past_wait_seconds = 0.0
        self._cancelled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the terminal; may be called twice."""

    def cancel(self) -> None:
        """Abort downloads and work on bytes at their next block."""
        self._cancelled = True

    def run_started(self, run: RunOpening, count: int, ids: Sequence[str] = ()) -> None:
        """Write the line that announces the run."""
        with self._lock:
            self._is_large = count > _MANY_STEPS
            self._counts = {}
            known_seconds = self._read_step_seconds(run.suite) if ids and not self._is_large else {}
            self._remaining_time = RemainingTime(ids, known_seconds)
            self._steps.reset(self._run_id, total=count, visible=True)
            label = "resuming run" if run.resumed else "run"
            compiler = f", IREE {run.toolchain.compiler}" if run.toolchain.compiler else ""
            self._write_line(join_lines(f"{label} {run.name}: {pluralize(count, 'step')}{compiler}"))
        self._show(at_once=True)

    def steps_added(self, count: int) -> None:
        """Add further steps to the total."""
        with self._lock:
            self._steps.update(self._run_id, total=(self._run_task.total or 0) + count)

    def step_started(self, step: Step, worker: str = "") -> None:
        """Add the step to the running ones."""
        with self._lock:
            # Remove the step first: it may be listed for a worker that was lost.
            self.step_put_back(step)
            title = f"{_format_step_title(step)}{f' on {worker}' if worker else ''}"
            self._task_ids["step", step.id] = self._steps.add_task(title, total=None)
            self._set_waiting("")

    def step_put_back(self, step: Step) -> None:
        """Remove the step from the running ones."""
        with self._lock:
            task_id = self._task_ids.pop(("step", step.id), None)
            if task_id is not None:
                self._steps.remove_task(task_id)

    def step_finished(self, step: Step, result: Result) -> None:
        """Count the result, and write its line unless the line would be too much."""
        verdict = str(result.verdict)
        with self._lock:
            self.step_put_back(step)
            self._status = ""
            self._counts[verdict] = self._counts.get(verdict, 0) + 1
            self._steps.advance(self._run_id)
            self._remaining_time.remove_step(step.id)
            self._ended_at = self._clock()
            if not self._is_large or result.verdict.is_bad or messages.is_verbose():
                self._write_line(format_finished_step(step, result, self._step_counter), verdict)
            for line in _list_details(result) if messages.is_verbose() else ():
                self._write_line(line)

    def download_progress(self, url: str, done: int, total: int | None) -> None:
        """Update a download's progress; a download whose check failed begins again."""
        with self._lock:
            self._stop_if_cancelled(url)
            task = self._find_file_task(_DOWNLOADING, url)
            if task is None or self._find_file_task(_CHECKING, url) is not None:
                self._forget(url)
                resumed = done if done >= _MIN_RESUMED_BYTES else 0
                self._urls.add(url)
                self._add_file_task(_DOWNLOADING, url, done, total, resumed)
                text = format_download_start(url, done, total, resumed=bool(resumed))
                self._report_start(text, resumed=bool(resumed))
            elif done == 0 and task.completed:
                self._files.reset(task.id, total=total, url=url, first=0, last=self._clock())
            elif done > task.completed:
                self._files.update(task.id, total=total, completed=done, last=self._clock())

    def hash_progress(self, url: str, done: int, total: int) -> None:
        """Update the progress of hashing a file; the file's download is then complete."""
        with self._lock:
            self._stop_if_cancelled(url)
            task = self._find_file_task(_CHECKING, url)
            if task is not None:
                self._files.update(task.id, total=total, completed=done, last=self._clock())
                return
            download = self._find_file_task(_DOWNLOADING, url)
            if download is not None:
                self._files.update(download.id, total=total, completed=total)
            self._urls.add(url)
            self._add_file_task(_CHECKING, url, done, total)

    def download_finished(self, url: str) -> None:
        """Remove a download; if it took long, write a line about it."""
        with self._lock:
            task = self._find_file_task(_DOWNLOADING, url)
            if task is not None and task.finished and task.total is not None:
                # Keep the task: the total includes finished downloads while others run.
                del self._task_ids[_DOWNLOADING, url]
                self._files.update(task.id, visible=False)
                new_bytes = task.total - task.fields["first"]
                name = shorten_name(url, self._urls)
                line = format_download_end(name, task.total, new_bytes, task.finished_time or 0.0)
                if line:
                    self._write_line(line)
            self._forget(url)

    def work(self, description: str, total: int) -> None:
        """Begin work that is measured in bytes, such as `packing`; `advance` reports its progress."""
        with self._lock:
            self._add_file_task(description, "", 0, total)

    def advance(self, count: int) -> None:
        """Count further bytes of the work as done.

        Raises:
            GauntletError: the work was cancelled.
        """
        with self._lock:
            self._stop_if_cancelled("the work")
            (task,) = (task for task in self._files.tasks if not _get_url(task))
            self._files.update(task.id, advance=count, last=self._clock())
        self._show()

    def note(self, url: str, message: str) -> None:
        """Write the note as a permanent line."""
        self.message(f"{url}: {message}")

    def message(self, text: str) -> None:
        """Write a permanent line."""
        with self._lock:
            self._write_line(text)

    def status(self, text: str) -> None:
        """Show what is being done."""
        with self._lock:
            self._status = text
            self._set_waiting("")
        self._show()

    def waiting(self, text: str) -> None:
        """Show the reason for waiting."""
        with self._lock:
            self._set_waiting(text)
        self._show()

    def _write_line(self, text: str, verdict: str = "") -> None:
        """Write a permanent line; a non-empty `verdict` is a word in it."""

    def _report_start(self, text: str, *, resumed: bool) -> None:
        """Write that a download has begun, if this output has a line for such downloads."""

    def _show(self, *, at_once: bool = False) -> None:
        """Start the display, because there is something to show."""

    def _make_tasks(self, seconds: float) -> Tasks:
        """Return tasks whose speed is measured over the last `seconds`."""
        return Tasks(auto_refresh=False, speed_estimate_period=seconds, get_time=self._clock)

    @property
    def _run_task(self) -> Task:
        return self._steps.tasks[0]

    def _format_progress(self) -> str:
        """Return `3 failed, 760 passed; 2 min 01 s, about 4 min 10 s left`; without an estimate at the beginning."""
        run = self._run_task
        seconds = run.elapsed or 0.0
        if seconds < _MIN_ESTIMATE_SECONDS:
            return _format_verdicts(dict(self._counts), seconds, None)
        remaining = self._estimate_remaining_seconds()
        rate_estimate = None if self._waiting or remaining is not None else run.time_remaining
        return _format_verdicts(dict(self._counts), seconds, rate_estimate if remaining is None else remaining)

    def _set_waiting(self, text: str) -> None:
        now = self._clock()
        if self._waiting:
            self._past_wait_seconds += now - self._wait_started_at
        self._waiting, self._wait_started_at = text, now

    def _estimate_remaining_seconds(self) -> float | None:
        """Return the remaining seconds; None if unknown: during a wait, or once a step exceeds the estimate."""
        remaining = self._remaining_time.estimate_seconds((self._run_task.elapsed or 0.0) - self._past_wait_seconds)
        is_overdue = remaining is not None and remaining < self._clock() - max(self._ended_at, self._wait_started_at)
        return None if self._waiting or is_overdue else remaining

    @property
    def _step_counter(self) -> str:
        """The number of finished steps, as `[ 3/24]`."""
        total = str(int(self._run_task.total or 0))
        return f"[{int(self._run_task.completed):>{len(total)}}/{total}]"

    def _stop_if_cancelled(self, label: str) -> None:
        if self._cancelled:
            raise GauntletError(f"{label}: interrupted")

    def _find_file_task(self, activity: str, url: str) -> Task | None:
        task_id = self._task_ids.get((activity, url))
        return next((task for task in self._files.tasks if task.id == task_id), None)

    def _add_file_task(self, activity: str, url: str, done: int, total: int | None, first: int = 0) -> None:
        """Add a file or work on bytes; the `first` bytes are from an earlier attempt and do not count for the speed."""
        task = self._files.add_task(activity, total=total, completed=done, url=url, first=first, last=self._clock())
        self._task_ids[activity, url] = task
        self._show()

    def _forget(self, url: str) -> None:
        for activity in (_DOWNLOADING, _CHECKING):
            task_id = self._task_ids.pop((activity, url), None)
            if task_id is not None:
                self._files.remove_task(task_id)
        if not any(task.visible for task in self._files.tasks):
            for task_id in self._files.task_ids:
                self._files.remove_task(task_id)

    def _list_active_file_tasks(self) -> list[Task]:
        """Return the visible file tasks in order of start; for a file that is being hashed, only the hashing task."""
        hashed_urls = {_get_url(task) for task in self._files.tasks if task.description == _CHECKING}
        return [
            task
            for task in self._files.tasks
            if task.visible and (task.description != _DOWNLOADING or _get_url(task) not in hashed_urls)
        ]

    def _list_downloads(self) -> list[Task]:
        """Return all downloads since none was running; return nothing if fewer than two are running."""
        downloads = [task for task in self._files.tasks if task.description == _DOWNLOADING]
        return downloads if sum(not task.finished for task in downloads) > 1 else []


class PlainProgress(Painter):
    """Progress as a log: a line for each finished step, flushed at once; for long runs, a summary every 10 s.

    After 30 s (a heartbeat) without a line, a line names the running steps. It shows a CI system that the run is alive,
    and a reader of the log which step hangs. At the same interval, lines report the progress of downloads.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        heartbeat: float = _HEARTBEAT_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        read_step_seconds: Callable[[str], Mapping[str, float]] = lambda _suite: {},
    ) -> None:
        super().__init__(clock, read_step_seconds)
        self._stream = stream
        self._heartbeat = heartbeat
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_waiting = ""
        self._reported_steps = 0.0
        self._line_at = self._files_at = self._pace_at = self._wait_at = clock()

    def run_started(self, run: RunOpening, count: int, ids: Sequence[str] = ()) -> None:
        """Write the line that announces the run."""
        self._pace_at, self._reported_steps = self._clock(), 0.0
        super().run_started(run, count, ids)

    def waiting(self, text: str) -> None:
        """Write the reason for waiting; an unchanged reason is written at most once per heartbeat."""
        with self._lock:
            if text and (text != self._last_waiting or self._clock() - self._wait_at >= self._heartbeat):
                self._last_waiting, self._wait_at = text, self._clock()
                self._write_line(f"waiting {join_lines(text)}")
        super().waiting(text)

    def close(self) -> None:
        """Stop the heartbeat."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _write_line(self, text: str, verdict: str = "") -> None:
        del verdict  # the text contains the verdict
        self._line_at = self._clock()
        write_text(self._stream, f"{clean_text(text)}\n")

    def _report_start(self, text: str, *, resumed: bool) -> None:
        del resumed  # a log has a line for each download
        self._write_line(text)

    def _show(self, *, at_once: bool = False) -> None:
        del at_once
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._tick, name="heartbeat", daemon=True)
                thread.start()
                # Set this only now: if Ctrl-C comes before the thread has begun, there is no thread to join.
                self._thread = thread

    def _tick(self) -> None:
        while not self._closing.wait(min(self._heartbeat / 4, 1.0)):
            with self._lock:
                try:
                    self._write_due_lines(self._clock())
                except (BrokenPipeError, ValueError):
                    # The stream's reader has gone. The next line of another thread raises the same error, where it can
                    # be handled; a traceback from this thread would only hide that error.
                    return

    def _write_due_lines(self, now: float) -> None:
        """Write the run's progress, the running steps and the downloads, each when it is due."""
        run = self._run_task
        if self._is_large and now - self._pace_at >= _PACE_SECONDS and run.completed > self._reported_steps:
            self._pace_at, self._reported_steps = now, run.completed
            self._write_line(f"{self._step_counter} {self._format_progress()}")
        state = self._format_state()
        if state and now - self._line_at >= self._heartbeat:
            self._write_line(state)
        files = self._list_active_file_tasks()
        if not files:
            # The first report about a file comes one heartbeat after its start.
            self._files_at = now
        elif now - self._files_at >= self._heartbeat:
            self._files_at = now
            downloads = self._list_downloads()
            lines = [format_download_total(downloads)] if downloads else []
            lines += [format_download(task, shorten_name(_get_url(task), self._urls)) for task in files]
            # These lines do not reset the heartbeat, so running steps are also reported during a long download.
            write_text(self._stream, "".join(f"{line}\n" for line in lines))

    def _format_state(self) -> str:
        """Describe the running steps; empty if there are none to name."""
        run, *steps = self._steps.tasks
        titles = [f"{task.description} ({format_duration(task.elapsed or 0.0)})" for task in steps]
        parts = ["nothing is running"] if run.visible and not steps else []
        parts += [f"still running: {list_first(titles, _MAX_LISTED_STEPS)}"] if steps else []
        if self._status:
            parts.append(join_lines(self._status))
        if self._waiting:
            parts.append(f"waiting {join_lines(self._waiting)}")
        if (remaining := self._estimate_remaining_seconds()) is not None:
            parts.append(f"about {format_duration(remaining)} left")
        return f"{self._step_counter} {'; '.join(parts)}" if run.visible else "; ".join(parts)


class _TextColumn(ProgressColumn):
    """A column of text rendered from a task, never wrapped."""

    def __init__(self, render: Callable[[Task], Text]) -> None:
        super().__init__(Column(no_wrap=True))
        self._render = render

    def render(self, task: Task) -> Text:
        return self._render(task)


class LiveProgress(Painter):
    """Live progress on a terminal; `width` is in columns (None: the terminal's width)."""

    def __init__(
        self,
        stream: TextIO,
        *,
        colour: bool = True,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        read_step_seconds: Callable[[str], Mapping[str, float]] = lambda _suite: {},
    ) -> None:
        super().__init__(clock, read_step_seconds)
        self._opened_at = clock()
        self._closed = False
        column = Column(no_wrap=True)
        self._run_bar = BarColumn(20)
        self._run_table = _make_table_renderer(
            self._run_bar, MofNCompleteColumn(table_column=column), _TextColumn(lambda _: self._render_verdicts())
        )
        self._step_table = _make_table_renderer(
            TimeElapsedColumn(table_column=column), TextColumn("{task.description}", markup=False, table_column=column)
        )
        self._file_table = _make_table_renderer(
            _TextColumn(self._render_name),
            BarColumn(20),
            TaskProgressColumn("{task.percentage:>5.1f} %", table_column=column),
            DownloadColumn(table_column=column),
            _TextColumn(lambda task: Text(format_speed(task), justify="right")),
            _TextColumn(lambda task: Text("checking" if task.description == _CHECKING else format_time_left(task))),
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
            self,  # rendered at each refresh, so the display is always up to date
            console=self._console,
            refresh_per_second=4,
            transient=True,
            # Results that the command writes to the same terminal's standard output appear above the live display.
            redirect_stdout=stream is sys.stderr and sys.stdout.isatty(),
            redirect_stderr=False,
        )

    def close(self) -> None:
        """Remove the live display and show the cursor again."""
        self._closed = True
        self._live.stop()

    def _write_line(self, text: str, verdict: str = "") -> None:
        line = Text(clean_text(text))
        if verdict:
            # The style covers the verdict and the sign before it.
            start = max(line.plain.index(verdict) - 2, 0)
            line.stylize(STYLES.get(verdict, ""), start, start + 2 + len(verdict))
        self._console.print(line, soft_wrap=True)

    def _report_start(self, text: str, *, resumed: bool) -> None:
        if resumed:
            self._write_line(text)

    def _show(self, *, at_once: bool = False) -> None:
        is_due = at_once or self._clock() - self._opened_at >= _DELAY_SECONDS
        if is_due and not (self._closed or self._live.is_started):
            self._live.start()

    # Rich's own thread calls the methods below while holding rich's lock, so they must never take the painter's lock.

    def __rich_console__(self, console: rich.console.Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(Group(*self._render_parts()), options, pad=False)
        # Leave one line for the cursor.
        for line in lines[: max(1, options.size.height - 1)]:
            yield from line
            yield Segment.line()

    def _render_parts(self) -> Iterator[RenderableType]:
        """Yield the parts, the most important first, because a low terminal cuts off the last ones."""
        run, *steps = self._steps.tasks
        if run.visible:
            worst = "red" if any(Verdict(word).is_bad for word in dict(self._counts)) else "green"
            self._run_bar.complete_style = self._run_bar.finished_style = worst
            yield self._run_table([run])
        if self._waiting:
            yield Text(f"  waiting {join_lines(self._waiting)}", style="yellow", no_wrap=True, overflow="ellipsis")
        if self._status:
            self._spinner.update(text=Text(join_lines(self._status), no_wrap=True, overflow="ellipsis"))
            yield self._spinner
        max_steps = max(1, min(_MAX_SHOWN_STEPS, self._console.height // 3))
        if steps:
            yield self._step_table(steps[:max_steps])
        if len(steps) > max_steps:
            yield Text(f"        and {len(steps) - max_steps} more running", style="dim")
        downloads, files = self._list_downloads(), self._list_active_file_tasks()
        if downloads:
            yield Text(f"{format_download_total(downloads)}", style="blue", no_wrap=True, overflow="ellipsis")
        if files:
            yield self._file_table(files[:_MAX_SHOWN_FILES])

    def _render_verdicts(self) -> Text:
        text = Text(self._format_progress())
        for verdict, style in STYLES.items():
            text.highlight_words([verdict], style)
        return text

    def _render_name(self, task: Task) -> Text:
        url = _get_url(task)
        name = shorten_name(url, tuple(self._urls)) if url else ""
        max_width = max(_MIN_NAME_WIDTH, min(_MAX_NAME_WIDTH, self._console.width - _METRICS_WIDTH))
        if len(name) > max_width:
            # Keep the end of a name, which distinguishes it from others.
            name = f"…{name[1 - max_width :]}"
        return Text(f"{'↓' if name else task.description} {name}", "blue")


def _make_table_renderer(*columns: ProgressColumn) -> Callable[[Iterable[Task]], Table]:
    """Return a function that renders tasks as rows of these columns."""
    return Tasks(*columns, auto_refresh=False).make_tasks_table


class RemainingTime:
    """An estimate of a run's remaining time, from the seconds (by step id) that its steps took in an earlier run."""

    def __init__(self, ids: Sequence[str], durations: Mapping[str, float]) -> None:
        known_seconds = [durations[step] for step in ids if step in durations]
        # If most steps are new, the earlier run predicts nothing.
        mean = sum(known_seconds) / len(known_seconds) if len(known_seconds) > len(ids) / 2 else 0.0
        # The minimum is for steps that took no time: they may take some now.
        self._weights = {step: max(durations.get(step, mean), mean / 20) for step in ids} if mean else {}
        self._total_weight = sum(self._weights.values())

    def remove_step(self, step: str) -> None:
        """Remove a step that is done."""
        self._weights.pop(step, None)

    def estimate_seconds(self, elapsed: float) -> float | None:
        """Return the remaining seconds after `elapsed` seconds; None if there is no basis for an estimate."""
        remaining_weight = sum(self._weights.values())
        done_weight = self._total_weight - remaining_weight
        return elapsed * remaining_weight / done_weight if done_weight > self._total_weight / 20 else None


def _format_step_title(step: Step) -> str:
    """Return a step's title: `ocr/classifier@cpu threshold`."""
    return join_lines(f"{step.chain} {step.name}")


def format_finished_step(step: Step, result: Result, counter: str) -> str:
    """Return the line of a finished step: `[ 3/24] ✓ passed  ocr/cls@cpu compile  8.21 s (cached)`."""
    cache_note = " (cached)" if result.cache and result.cache.hit else ""
    waited = result.waited_seconds
    wait_note = f" (waited {format_duration(waited)})" if waited >= _MIN_WAIT_SECONDS else ""
    took = "" if result.verdict is Verdict.SKIPPED else f"  {format_duration(result.seconds)}{cache_note}{wait_note}"
    reason = f": {join_lines(result.full_reason)}" if result.reason else ""
    verdict = add_verdict_sign(f"{result.verdict:<7}", result.verdict)
    return f"{counter} {verdict} {_format_step_title(step)}{took}{reason}"


def _list_details(result: Result) -> list[str]:
    """Return detail lines: the step's command, cache lookup, notes and the path of its log."""
    cache = result.cache
    parts = (
        ("$", result.command),
        ("cache:", f"{cache.reason} (key {cache.key[:12]})" if cache and cache.key else cache.reason if cache else ""),
        *(("note:", note) for note in result.notes),
        ("log:", result.log),
    )
    return [f"    {word} {join_lines(text, 4000)}" for word, text in parts if text]


def _format_verdicts(counts: Mapping[str, int], seconds: float, remaining: float | None) -> str:
    """Return `3 failed, 760 passed; 2 min 01 s, about 4 min 10 s left`."""
    worst_first = sorted(counts.items(), key=lambda item: (not Verdict(item[0]).is_bad, item[0]))
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in worst_first)
    duration_text = format_duration(seconds) + (f", about {format_duration(remaining)} left" if remaining else "")
    return f"{verdicts}; {duration_text}" if verdicts else duration_text


def _get_url(task: Task) -> str:
    """Return the URL of a file's task; empty for other work."""
    return str(task.fields["url"])


def shorten_name(url: str, urls: Iterable[str]) -> str:
    """Return a URL's last components: as many as distinguish this URL from all other URLs."""
    parts = join_lines(url, 1000).split("/")
    tails = ("/".join(parts[-count:]) for count in range(1, len(parts)))
    other_paths = [f"/{other}" for other in urls if other != url]
    return next((tail for tail in tails if tail and not any(other.endswith(f"/{tail}") for other in other_paths)), url)


def format_progress_bytes(done: float, total: float | None) -> str:
    """Return `3.2 of 16.1 GB`, `12.0 MB of 16.1 GB` or `12.0 MB`."""
    if not total:
        return format_bytes(done)
    done_text, total_text = format_bytes(done), format_bytes(total)
    number, _, unit = done_text.partition(" ")
    return f"{number if total_text.endswith(f' {unit}') else done_text} of {total_text}"


def format_download_start(url: str, done: int, total: int | None, *, resumed: bool) -> str:
    """Return `downloading URL (16.1 GB)` or `resuming URL at 3.2 of 16.1 GB`."""
    if resumed:
        return f"resuming {join_lines(url)} at {format_progress_bytes(done, total)}"
    return f"downloading {join_lines(url)}{f' ({format_bytes(total)})' if total else ''}"


def format_download_end(name: str, total: float, new_bytes: float, seconds: float) -> str:
    """Return `downloaded x (16.1 GB in 3 min 20 s, 80.1 MB/s)`; empty if it was too quick to report."""
    if seconds < _MIN_DOWNLOAD_SECONDS:
        return ""
    missing = f", the missing {format_bytes(new_bytes)}" if new_bytes < total else ""
    speed = f"in {format_duration(seconds)}, {format_bytes(new_bytes / seconds)}/s"
    return f"downloaded {name} ({format_bytes(total)}{missing} {speed})"


def format_download(task: Task, name: str) -> str:
    """Return `downloading x: 3.2 of 16.1 GB (19.9 %), 80.1 MB/s, 2 min 41 s left`."""
    label = f"{task.description} {name}".strip()
    return _format_transfer(label, task.completed, task.total, format_speed(task), format_time_left(task))


def format_speed(task: Task) -> str:
    """Return `80.1 MB/s`; empty if the speed is unknown or the transfer has stalled."""
    return f"{format_bytes(_compute_speed(task))}/s" if _compute_speed(task) else ""


def format_time_left(task: Task) -> str:
    """Return `2 min 41 s left`; `no data for 34 s` if the transfer has stalled; empty if unknown."""
    if task.finished:
        return ""
    idle_seconds = _compute_idle_seconds(task)
    if idle_seconds >= _STALLED_SECONDS:
        return f"no data for {_format_rounded_up_seconds(idle_seconds)}"
    return "" if task.time_remaining is None else f"{_format_rounded_up_seconds(task.time_remaining)} left"


def format_download_total(tasks: Sequence[Task]) -> str:
    """Return one line for all downloads, finished ones included: `downloading 3 files: 3.2 of 16.1 GB (…), …`."""
    active_tasks = [task for task in tasks if not task.finished]
    totals = [task.total for task in tasks if task.total is not None]
    remaining_seconds = [task.time_remaining for task in active_tasks if task.time_remaining is not None]
    speed = sum(map(_compute_speed, active_tasks))
    return _format_transfer(
        f"downloading {len(active_tasks)} files",
        sum(task.completed for task in tasks),
        sum(totals) if len(totals) == len(tasks) else None,
        f"{format_bytes(speed)}/s" if speed else "",
        f"{_format_rounded_up_seconds(max(remaining_seconds))} left" if remaining_seconds else "",
    )


def _format_transfer(label: str, done: float, total: float | None, speed: str, time_left: str) -> str:
    share = f" ({format_percent(done, total)})" if total else ""
    return f"{label}: {', '.join(filter(None, (f'{format_progress_bytes(done, total)}{share}', speed, time_left)))}"


def _compute_speed(task: Task) -> float:
    return 0.0 if task.finished or _compute_idle_seconds(task) >= _STALLED_SECONDS else task.speed or 0.0


def _compute_idle_seconds(task: Task) -> float:
    return task.get_time() - float(task.fields["last"])


def _format_rounded_up_seconds(seconds: float) -> str:
    """Format seconds rounded up, because a countdown must not end early."""
    return f"{math.ceil(seconds)} s" if seconds < 120 else format_duration(seconds)
