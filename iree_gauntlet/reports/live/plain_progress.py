"""Progress as lines of a log, without control sequences."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet.figures import clean, duration, listed, one_line
from iree_gauntlet.messages import write_text
from iree_gauntlet.reports.live.painter import Painter
from iree_gauntlet.reports.live.progress_text import format_file, format_together, shorten_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.journal_events import RunEvent


_HEARTBEAT_SECONDS = 30.0
_PACE_SECONDS = 10.0
_NAMED_STEPS = 4


class PlainProgress(Painter):
    """One line for each finished step, flushed at once.

    Of a run that begins with more than 200 steps, only those that did not come out as expected get a line, and every
    10 s one says how far the run is.

    Where nothing was written for a while (30 s), a line says what is running, so that a CI system does not take the
    run for dead and a reader of its log sees what hangs. As often, lines say how far downloads are.

    Args:
        stream: where to write.
        heartbeat: seconds of silence before a line says what is running, and between two lines on the same download.
        clock: seconds.
        earlier: what each step of a suite took when it was last run, by its id.
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

    def run_started(self, run: RunEvent, count: int, ids: Sequence[str] = ()) -> None:
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
        left = self._left.seconds(run.elapsed or 0.0)
        if left is not None:
            parts.append(f"about {duration(left)} left")
        return f"{self._place} {'; '.join(parts)}" if run.visible else "; ".join(parts)
