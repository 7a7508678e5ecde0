"""Progress on a terminal: what runs, for how long, how far the files are; lines that stay scroll by above it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

import rich.console
import rich.progress
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from iree_gauntlet.figures import STYLES, clean, one_line
from iree_gauntlet.reports.live.painter import CHECKING, Painter
from iree_gauntlet.reports.live.progress_text import format_left, format_speed, format_together, shorten_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_MOST_STEPS = 8
_MOST_FILES = 5
_SHORTEST_NAME, _LONGEST_NAME = 12, 40
# Of `60.0 %`, `3.2/16.1 GB`, `80.1 MB/s` and `2 min 41 s left`.
_FIGURES_WIDTH = 58
# What takes less shows nothing.
_QUIET_SECONDS = 1.0


class _TextColumn(ProgressColumn):
    """Text that is made of a task, and never broken."""

    def __init__(self, text: Callable[[Task], Text]) -> None:
        super().__init__(Column(no_wrap=True))
        self._text = text

    def render(self, task: Task) -> Text:
        """The text."""
        return self._text(task)


class LiveProgress(Painter):
    """Live progress.

    Args:
        stream: a terminal.
        colour: False for no colours (`NO_COLOR`).
        width: columns; None for the terminal's own.
        clock: seconds.
        earlier: what each step of a suite took when it was last run, by its id.
    """

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
        self._run_table = _choose_table(
            BarColumn(20), MofNCompleteColumn(table_column=one), _TextColumn(lambda _: self._render_verdicts())
        )
        self._step_table = _choose_table(
            TimeElapsedColumn(table_column=one), _TextColumn(lambda task: Text(task.description))
        )
        self._file_table = _choose_table(
            _TextColumn(self._name),
            BarColumn(20),
            TaskProgressColumn("{task.percentage:>5.1f} %", table_column=one),
            DownloadColumn(table_column=one),
            _TextColumn(lambda task: Text(format_speed(task), justify="right")),
            _TextColumn(lambda task: Text("checking" if task.description == CHECKING else format_left(task))),
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

    def _name(self, task: Task) -> Text:
        name = shorten_name(task.fields["url"], tuple(self._urls)) if task.fields["url"] else ""
        longest = max(_SHORTEST_NAME, min(_LONGEST_NAME, self._console.width - _FIGURES_WIDTH))
        if len(name) > longest:
            # Names differ at their ends.
            name = f"…{name[1 - longest :]}"
        return Text(f"{'↓' if name else task.description} {name}", "blue")


def _choose_table(*columns: ProgressColumn) -> Callable[[Iterable[Task]], Table]:
    """Rows of tasks in rich's columns."""
    return rich.progress.Progress(*columns, auto_refresh=False).make_tasks_table
