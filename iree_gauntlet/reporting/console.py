"""What is shown while a run is under way: lines where nobody watches, live progress on a terminal."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from iree_gauntlet.reporting.cleaning import clean, one_line
from iree_gauntlet.reporting.download_rates import Downloads
from iree_gauntlet.reporting.download_text import arrival_text, beginning_text, progress_text
from iree_gauntlet.reporting.figures import duration
from iree_gauntlet.reporting.pace import MANY_STEPS, Pace, is_worth_a_line
from iree_gauntlet.reporting.step_outcome import step_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iree_gauntlet.results import Result

__all__ = [
    "Console",
    "PlainConsole",
    "finished_text",
    "is_live",
    "open_console",
    "started_text",
    "step_title",
    "write_text",
]

_HEARTBEAT_SECONDS = 30.0
_PROGRESS_SECONDS = 10.0
_NAMED_STEPS = 4


class Console(Protocol):
    """What the engine tells while it runs; every method may be called from any thread."""

    def run_started(self, run: dict[str, Any]) -> None:
        """Take the journal's `run` event: a run, or its resumption, begins."""

    def steps_added(self, count: int) -> None:
        """Take how many further steps there are, of a run that did not know of them when it began."""

    def step_started(self, step: dict[str, Any]) -> None:
        """Take a step that begins to run: its `id`, `chain` and `stage`."""

    def step_finished(self, step: dict[str, Any], result: Result) -> None:
        """Take a step and what it came to; it need not have been started (skipped)."""

    def download(self, url: str, done: int, total: int | None) -> None:
        """Take the progress of a download in bytes; `total` is None where the server did not say."""

    def checking(self, url: str, done: int, total: int) -> None:
        """Take how many bytes of a file that has arrived were hashed, of how many."""

    def download_finished(self, url: str) -> None:
        """Forget a download: it is there, or cannot be had; may be called for one that never was."""

    def message(self, text: str) -> None:
        """Show a line that stays."""

    def waiting(self, text: str) -> None:
        """Say what the run waits for (a lock, a quiet machine); an empty text: it no longer waits."""

    def close(self) -> None:
        """Leave the terminal as it was found; may be called twice."""


def open_console(stream: TextIO, environ: Mapping[str, str]) -> Console:
    """Live progress where `stream` is a terminal that can show it, lines elsewhere."""
    if is_live(stream, environ):
        # rich takes long to import, and most runs in CI never need it.
        from iree_gauntlet.reporting.live import LiveConsole  # noqa: PLC0415

        return LiveConsole(stream, colour=not environ.get("NO_COLOR"))
    return PlainConsole(stream)


def is_live(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a stream is a terminal that can move its cursor (`TERM=dumb` cannot)."""
    return stream.isatty() and environ.get("TERM", "") not in ("dumb", "unknown")


class PlainConsole:
    """One line for each finished step, without control sequences, flushed at once.

    Of a run that begins with more than 200 steps, only those that did not come out as expected get a line, and every
    10 s one says how far the run is.

    Where no step came to an end for a while (30 s), a line says what is running, so that a CI system does
    not take the run for dead and a reader of its log sees what hangs. As often, lines say how far the
    downloads are.

    Args:
        stream: where to write.
        heartbeat: seconds of silence before a line says what is running, and from one progress of downloads
            to the next.
        progress: seconds from one line to the next that says how far a run of many steps is.
        clock: seconds, for elapsed times.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        heartbeat: float = _HEARTBEAT_SECONDS,
        progress: float = _PROGRESS_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._heartbeat = heartbeat
        self._clock = clock
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress = progress
        self._running: dict[str, tuple[dict[str, Any], float]] = {}
        self._downloads = Downloads()
        self._pace = Pace(clock(), 0)
        self._many = False
        self._last_pace = clock()
        self._told = 0
        self._waiting = ""
        self._last_line = clock()
        self._last_progress = clock()

    def run_started(self, run: dict[str, Any]) -> None:
        """Say what begins, and start the heartbeat."""
        with self._lock:
            self._pace = Pace(self._clock(), len(run["steps"]))
            self._many = self._pace.total > MANY_STEPS
            self._last_pace, self._told = self._clock(), 0
            self._write(started_text(run))
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._thread.start()

    def steps_added(self, count: int) -> None:
        """Count them."""
        with self._lock:
            self._pace.total += count

    def step_started(self, step: dict[str, Any]) -> None:
        """Remember that it runs; its line comes when it is finished."""
        with self._lock:
            self._running[str(step["id"])] = (step, self._clock())
            self._waiting = ""

    def step_finished(self, step: dict[str, Any], result: Result) -> None:
        """Write its line, where it is worth one."""
        verdict = str(result.verdict)
        with self._lock:
            self._running.pop(str(step["id"]), None)
            self._pace.finished(self._clock(), verdict)
            if not self._many or is_worth_a_line(verdict):
                self._write(finished_text(step, result, self._pace.done, self._pace.total))

    def download(self, url: str, done: int, total: int | None) -> None:
        """Write a line when a download begins; the heartbeat tells how it goes."""
        with self._lock:
            now = self._clock()
            if self._downloads.idle:
                # The first progress comes a heartbeat after the beginning.
                self._last_progress = now
            begun = self._downloads.update(now, url, done, total)
            if begun:
                self._write(beginning_text(begun))

    def checking(self, url: str, done: int, total: int) -> None:
        """The heartbeat tells how it goes."""
        with self._lock:
            now = self._clock()
            if self._downloads.idle:
                self._last_progress = now
            self._downloads.checking(now, url, done, total)

    def download_finished(self, url: str) -> None:
        """Write a line where a download has taken long."""
        with self._lock:
            arrival = self._downloads.finished(self._clock(), url)
            text = arrival_text(arrival) if arrival else ""
            if text:
                self._write(text)

    def message(self, text: str) -> None:
        """Write a line."""
        with self._lock:
            self._write(clean(text))

    def waiting(self, text: str) -> None:
        """Write what is waited for, once."""
        with self._lock:
            if text and text != self._waiting:
                self._write(f"waiting {one_line(text)}")
            self._waiting = text

    def close(self) -> None:
        """Stop the heartbeat."""
        self._closing.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _write(self, text: str) -> None:
        self._last_line = self._clock()
        write_text(self._stream, text + "\n")

    def _beat(self) -> None:
        while not self._closing.wait(min(self._heartbeat / 4, self._progress / 4, 1.0)):
            with self._lock:
                try:
                    self._tell(self._clock())
                except (BrokenPipeError, ValueError):
                    # Nobody reads any more. The engine's own next line meets the same error and raises
                    # it where it can be acted on; a traceback from this thread would only hide it.
                    return

    def _tell(self, now: float) -> None:
        """Write how far the run is, what runs and how far the downloads are, where it is time to."""
        if self._many and now - self._last_pace >= self._progress and self._pace.done > self._told:
            self._last_pace, self._told = now, self._pace.done
            self._write(self._pace.line(now))
        if now - self._last_line >= self._heartbeat:
            self._write(self._state(now))
        if self._downloads.idle or now - self._last_progress < self._heartbeat:
            return
        self._last_progress = now
        together = self._downloads.together(now)
        shown = [*([together] if together else []), *self._downloads.running(now)]
        # Not a line that breaks the silence: what runs beside a long download is told, too.
        write_text(self._stream, "".join(f"{progress_text(figures)}\n" for figures in shown))

    def _state(self, now: float) -> str:
        longest = sorted(self._running.values(), key=lambda started: started[1])
        names = [f"{step_title(step)} ({duration(now - began)})" for step, began in longest[:_NAMED_STEPS]]
        more = len(longest) - len(names)
        running = ", ".join(names) + (f" and {more} more" if more else "")
        parts = [f"still running: {running}" if running else "nothing runs"]
        if self._waiting:
            parts.append(f"waiting {one_line(self._waiting)}")
        return f"[{self._pace.done}/{self._pace.total}] {'; '.join(parts)}"


def write_text(stream: TextIO, text: str) -> None:
    """Write and flush text, whatever the stream's encoding: what it lacks becomes `?`."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def step_title(step: dict[str, Any]) -> str:
    """What people read of a planned step: `ocr/classifier@cpu threshold`."""
    return one_line(f"{step['chain']} {step_name(step)}")


def started_text(run: dict[str, Any]) -> str:
    """The line at the start of a run."""
    what = "resuming run" if run.get("resumed") else "run"
    toolchain = run.get("toolchain") or {}
    compiler = f", IREE {toolchain['compiler']}" if toolchain.get("compiler") else ""
    count = len(run["steps"])
    steps = "1 step" if count == 1 else f"{count} steps"
    return one_line(f"{what} {run.get('run', '')}: {steps}{compiler}")


def finished_text(step: dict[str, Any], result: Result, done: int, total: int) -> str:
    """The line of a finished step: `[ 3/24] passed  ocr/cls@cpu compile  8.21 s (cached)`."""
    cached = " (cached)" if result.cache and result.cache.hit else ""
    took = f"  {duration(result.seconds)}{cached}" if result.verdict != "skipped" else ""
    reason = f": {one_line(result.reason)}" if result.reason else ""
    width = len(str(total))
    return f"[{done:>{width}}/{total}] {result.verdict:<7} {step_title(step)}{took}{reason}"
