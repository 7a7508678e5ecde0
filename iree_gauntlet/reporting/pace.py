"""How far a run with many steps is: what they came to, and when the rest may be done."""

from __future__ import annotations

from collections import deque

from iree_gauntlet.reporting.figures import duration

__all__ = ["MANY_STEPS", "Pace", "is_worth_a_line"]

# Above this many steps only what did not come out as expected gets a line of its own: thousands of them would scroll
# away what matters, and all are in the reports.
MANY_STEPS = 200
_EXPECTED = ("passed", "xfailed", "skipped")
# Steps of a suite are of a kind, but a cache may hold the first half of them: only the last minute tells of the rest.
_WINDOW_SECONDS = 60.0
_LEAST_SECONDS = 3.0


def is_worth_a_line(verdict: str) -> bool:
    """Whether a step is told of among many."""
    return verdict not in _EXPECTED


class Pace:
    """Counts of verdicts, and the rate at which steps come to an end.

    Args:
        now: seconds, at the beginning.
        total: how many steps there are.
    """

    def __init__(self, now: float, total: int) -> None:
        self.total = total
        self.done = 0
        self.counts: dict[str, int] = {}
        self._began = now
        # (seconds, steps done by then), at most one a second.
        self._marks: deque[tuple[float, int]] = deque([(now, 0)])

    def finished(self, now: float, verdict: str) -> None:
        """A step came to an end."""
        self.done += 1
        self.counts[verdict] = self.counts.get(verdict, 0) + 1
        if now - self._marks[-1][0] >= 1.0:
            self._marks.append((now, self.done))
            while len(self._marks) > 1 and now - self._marks[1][0] >= _WINDOW_SECONDS:
                self._marks.popleft()

    def left(self, now: float) -> str:
        """`about 2 min 05 s left`; empty where nothing can be said yet."""
        since, done_then = self._marks[0]
        done = self.done - done_then
        if now - since < _LEAST_SECONDS or not done or self.done >= self.total:
            return ""
        return f"about {duration((now - since) / done * (self.total - self.done))} left"

    def line(self, now: float) -> str:
        """`[ 812/2304] 760 passed, 3 failed, 49 xfailed; 2 min 01 s, about 4 min 10 s left`."""
        worst_first = sorted(self.counts.items(), key=lambda item: (not is_worth_a_line(item[0]), item[0]))
        counts = ", ".join(f"{count} {verdict}" for verdict, count in worst_first)
        left = self.left(now)
        times = duration(now - self._began) + (f", {left}" if left else "")
        return f"[{self.done:>{len(str(self.total))}}/{self.total}] {counts}; {times}"
