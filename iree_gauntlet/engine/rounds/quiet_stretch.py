"""The machine's shared lock, taken once for a stretch of small steps.

Taking it costs a dozen system calls, more than many a step of an operator suite. A benchmark of another run waits
inside the gate (`machine_lock.py`) for all shared holders to let go, so no stretch lasts: when one has grown old, the
next step begins a new one, for which it has to pass the gate, and the old one ends with the last step begun in it.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iree_gauntlet.engine.rounds.machine_lock import MachineLocks


_STRETCH_SECONDS = 0.5


class QuietStretch:
    """Holds the machine shared for as many steps as there are; may be used from several threads.

    Between two steps the lock is kept, for the thread that takes the next one at once. Whoever does something else
    than such a step calls `rest` first, or a benchmark, of this run too, would wait for nobody.

    Args:
        locks: of this machine.
        on_wait: called with a line that says for whom one waits.
        seconds: the age at which a stretch takes no more steps.
        clock: seconds.
    """

    def __init__(
        self,
        locks: MachineLocks,
        on_wait: Callable[[str], None],
        *,
        seconds: float = _STRETCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._locks = locks
        self._on_wait = on_wait
        self._seconds = seconds
        self._clock = clock
        self._mutex = threading.Lock()
        self._current: _Stretch | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the machine shared.

        Raises:
            GauntletError: as for `MachineLocks.quiet_machine`.
        """
        stretch = self._joined() or self._begun()
        try:
            yield
        finally:
            with self._mutex:
                stretch.steps -= 1
                if stretch is not self._current:
                    stretch.end_if_unused()

    def rest(self) -> None:
        """Let go of the lock, unless a step that holds it is under way."""
        with self._mutex:
            if self._current is not None and not self._current.steps:
                self._retire()

    def _joined(self) -> _Stretch | None:
        """The present stretch with a step more; None where there is none that is young enough."""
        with self._mutex:
            if self._current is not None and self._clock() - self._current.began >= self._seconds:
                self._retire()
            if self._current is not None:
                self._current.steps += 1
            return self._current

    def _begun(self) -> _Stretch:
        """A new stretch. Several threads may begin one each; the last one counts from then on."""
        held = ExitStack()
        held.enter_context(self._locks.quiet_machine(exclusive=False, on_wait=self._on_wait))
        stretch = _Stretch(held, self._clock())
        with self._mutex:
            self._retire()
            self._current = stretch
        return stretch

    def _retire(self) -> None:
        retired, self._current = self._current, None
        if retired is not None:
            retired.end_if_unused()


class _Stretch:
    """One holding of the lock, and how many steps go on under it."""

    def __init__(self, held: ExitStack, began: float) -> None:
        self._held = held
        self.began = began
        self.steps = 1

    def end_if_unused(self) -> None:
        if not self.steps:
            self._held.close()
