"""Live progress on a terminal: what runs, for how long, how far the downloads are."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

import rich.console
from rich.live import Live
from rich.text import Text

from iree_gauntlet.reporting.cleaning import clean, one_line
from iree_gauntlet.reporting.console import finished_text, started_text, step_title
from iree_gauntlet.reporting.download_rates import Downloads
from iree_gauntlet.reporting.download_text import arrival_text, beginning_text, columns
from iree_gauntlet.reporting.figures import duration
from iree_gauntlet.reporting.pace import MANY_STEPS, Pace, is_worth_a_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.results import Result

__all__ = ["STYLES", "LiveConsole"]

STYLES = {
    "passed": "green",
    "failed": "bold red",
    "error": "bold magenta",
    "xpassed": "bold red",
    "xfailed": "cyan",
    "skipped": "dim",
    "inconclusive": "yellow",
}
_MOST_STEPS = 8
_MOST_DOWNLOADS = 5


class LiveConsole:
    """Live progress; finished steps scroll by above it.

    Args:
        stream: a terminal.
        colour: False for no colours (`NO_COLOR`).
        width: columns; None for the terminal's own.
        clock: seconds, for elapsed times.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        colour: bool = True,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        # Guards the state only. It is never held while rich is called: rich's refreshing thread holds
        # rich's own lock when it asks for the state.
        self._lock = threading.Lock()
        self._running: dict[str, tuple[dict[str, Any], float]] = {}
        self._downloads = Downloads()
        self._pace = Pace(clock(), 0)
        self._waiting = ""
        self._began = clock()
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
            self,  # asked by `__rich__` at each painting, so what is shown is never stale
            console=self._console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def run_started(self, run: dict[str, Any]) -> None:
        """Say what begins, and start the live part."""
        with self._lock:
            self._began = self._clock()
            self._pace = Pace(self._began, len(run["steps"]))
        self._console.print(Text(started_text(run), style="bold"), soft_wrap=True)
        self._live.start()

    def steps_added(self, count: int) -> None:
        """Count them."""
        with self._lock:
            self._pace.total += count

    def step_started(self, step: dict[str, Any]) -> None:
        """Show it among those that run."""
        with self._lock:
            self._running[str(step["id"])] = (step, self._clock())
            self._waiting = ""

    def step_finished(self, step: dict[str, Any], result: Result) -> None:
        """Count it; write its line where it is worth one."""
        verdict = str(result.verdict)
        with self._lock:
            self._running.pop(str(step["id"]), None)
            self._pace.finished(self._clock(), verdict)
            worth = self._pace.total <= MANY_STEPS or is_worth_a_line(verdict)
            line = finished_text(step, result, self._pace.done, self._pace.total) if worth else ""
        if worth:
            text = Text(line)
            start = line.index(verdict)
            text.stylize(STYLES.get(verdict, ""), start, start + len(verdict))
            self._console.print(text, soft_wrap=True)

    def download(self, url: str, done: int, total: int | None) -> None:
        """Show how far it is; a line stays that says what is resumed."""
        with self._lock:
            begun = self._downloads.update(self._clock(), url, done, total)
        if begun and begun.resumed:
            self.message(beginning_text(begun))

    def checking(self, url: str, done: int, total: int) -> None:
        """Show how far it is."""
        with self._lock:
            self._downloads.checking(self._clock(), url, done, total)

    def download_finished(self, url: str) -> None:
        """Take it away; a line stays of one that has taken long."""
        with self._lock:
            arrival = self._downloads.finished(self._clock(), url)
        text = arrival_text(arrival) if arrival else ""
        if text:
            self.message(text)

    def message(self, text: str) -> None:
        """Write a line above the live part."""
        self._console.print(Text(clean(text)), soft_wrap=True)

    def waiting(self, text: str) -> None:
        """Show what is waited for, in the live part."""
        with self._lock:
            self._waiting = text

    def close(self) -> None:
        """Take the live part away and show the cursor again."""
        self._live.stop()

    def __rich__(self) -> Text:
        with self._lock:
            return Text("\n", no_wrap=True, overflow="ellipsis").join(self._lines())

    def _lines(self) -> list[Text]:
        now = self._clock()
        pace = self._pace
        many = pace.total > MANY_STEPS
        left = pace.left(now) if many else ""
        times = duration(now - self._began) + (f", {left}" if left else "")
        head = Text.assemble((f"{pace.done}/{pace.total} done", "bold"), f" · {times}")
        for verdict, style in STYLES.items():
            if (many or verdict != "passed") and pace.counts.get(verdict):
                head.append(" · ")
                head.append(f"{pace.counts[verdict]} {verdict}", style)
        lines = [head]
        # One line is the cursor's.
        room = max(0, self._console.height - 1 - len(lines) - bool(self._waiting))
        downloads = self._download_lines(now, min(_MOST_DOWNLOADS, (room + 1) // 2))
        lines += self._step_lines(now, room - len(downloads))
        lines += downloads
        if self._waiting:
            lines.append(Text(f"  waiting {one_line(self._waiting)}", style="yellow"))
        return lines

    def _step_lines(self, now: float, room: int) -> list[Text]:
        """The steps that have run longest, and how many more there are."""
        running = sorted(self._running.values(), key=lambda started: started[1])
        shown = running[: min(_MOST_STEPS, room if len(running) <= room else max(0, room - 1))]
        lines = [
            Text.assemble("  ", (f"{duration(now - began):>9}", "cyan"), f"  {step_title(step)}")
            for step, began in shown
        ]
        if len(running) > len(shown) and room:
            lines.append(Text(f"  and {len(running) - len(shown)} more run", style="dim"))
        return lines

    def _download_lines(self, now: float, room: int) -> list[Text]:
        """All downloads together, then each of them as far as there is room."""
        together = self._downloads.together(now)
        files = self._downloads.running(now)[: max(0, room - bool(together))]
        shown = columns(together if room else None, files, self._console.width - 4)
        return [
            Text(f"  {'↓' if not together or index == 0 else ' '} {line}", style="blue")
            for index, line in enumerate(shown)
        ]
