"""How far downloads are, how fast, and for how much longer: figures of each file, and of all together.

What an earlier attempt had left counts as done, but not as speed. A download whose server begins again from
the start is measured from there.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

__all__ = ["Arrival", "Beginning", "Downloads", "Figures", "Names", "Speed"]

_WINDOW_SECONDS = 10.0
# Samples closer to each other than this tell nothing more about the window.
_STEP_SECONDS = 0.25
# A rate over less than this is noise.
_SHORTEST_SECONDS = 0.5
# Silence up to this is the time between two blocks or two reports, and no slowing down.
_GRACE_SECONDS = 2.0
# The first news of a fresh download is of a block or two; where more is there, an earlier attempt had left it.
_RESUMED_BYTES = 4 << 20


class Speed:
    """Bytes a second over the last ten seconds.

    Args:
        now: when the counting begins, in seconds of any steady clock.
    """

    __slots__ = ("_count", "_last", "_samples")

    def __init__(self, now: float) -> None:
        self._samples: deque[tuple[float, int]] = deque([(now, 0)])
        self._last = now
        self._count = 0

    def add(self, now: float, count: int) -> None:
        """So many bytes more have arrived."""
        if count <= 0:
            return
        self._count += count
        self._last = max(now, self._last)
        samples = self._samples
        if self._last - samples[-1][0] >= _STEP_SECONDS:
            samples.append((self._last, self._count))
            while len(samples) > 2 and samples[1][0] <= self._last - _WINDOW_SECONDS:
                samples.popleft()
        elif len(samples) > 1 and samples[-1][0] == self._last:
            samples[-1] = (self._last, self._count)

    def rate(self, now: float) -> float | None:
        """Bytes a second; 0 where nothing has come for the whole window, None where it is too early to say."""
        end = max(self._last, now - _GRACE_SECONDS)
        start = max(end - _WINDOW_SECONDS, self._samples[0][0])
        if end - start < _SHORTEST_SECONDS:
            return None
        return max(0.0, (self._count - self._count_at(start)) / (end - start))

    def silence(self, now: float) -> float:
        """Seconds since the last byte."""
        return max(0.0, now - self._last)

    def _count_at(self, moment: float) -> float:
        """Bytes that had arrived at a moment, between two samples in proportion to the time."""
        before = self._samples[0]
        for sample in (*self._samples, (self._last, self._count)):
            if sample[0] > moment:
                return before[1] + (sample[1] - before[1]) * (moment - before[0]) / (sample[0] - before[0])
            before = sample
        return before[1]


@dataclass(frozen=True, slots=True)
class Figures:
    """What people are told of a download, or of all of them.

    Attributes:
        name: short name of the file; empty for all.
        done: bytes that are there.
        total: bytes that there will be; None where that is not known.
        rate: bytes a second; None where it is too early to say.
        left: seconds until it is there; None where nobody knows.
        silence: seconds since the last byte.
        checking: it has arrived and is being hashed; the bytes are those that have been hashed.
        files: of how many files.
    """

    name: str
    done: int
    total: int | None
    rate: float | None
    left: float | None
    silence: float
    checking: bool = False
    files: int = 1


@dataclass(frozen=True, slots=True)
class Beginning:
    """A download that has begun.

    Attributes:
        url: of the file.
        total: its bytes; None where they are not known.
        resumed: how many of them an earlier attempt had left; 0 for a fresh one.
    """

    url: str
    total: int | None
    resumed: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A download that is whole.

    Attributes:
        name: short name of the file.
        total: its bytes.
        arrived: those of them that were downloaded now.
        seconds: how long that took.
    """

    name: str
    total: int
    arrived: int
    seconds: float


class Names:
    """Short names of URLs: the last component, with as many before it as tell it from every other URL seen."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seen: set[str] = set()

    def add(self, url: str) -> None:
        """Take a URL into account."""
        if url not in self._seen:
            self._seen.add(url)
            self._counts.update(_tails(url))

    def short(self, url: str) -> str:
        """The name of a URL; it may become longer when more URLs are seen."""
        return next((tail for tail in _tails(url) if self._counts[tail] <= 1), url)


def _tails(url: str) -> list[str]:
    """What ends a URL, from its last component up to the whole; the query belongs to the last component."""
    path, mark, query = url.partition("?")
    parts = [part for part in path.split("/") if part] or [url]
    parts[-1] += mark + query
    return ["/".join(parts[index:]) for index in range(len(parts) - 1, -1, -1)]


@dataclass(slots=True)
class _Download:
    """A file that is on its way, or being checked."""

    url: str
    began: float
    # Bytes that an earlier attempt had left.
    first: int
    done: int
    total: int | None
    speed: Speed
    fetched: bool
    # Bytes and seconds of a download that has arrived whole.
    arrived: tuple[int, int, float] | None = None
    checking: bool = False
    stale: int = 0

    def figures(self, name: str, now: float) -> Figures:
        rate = self.speed.rate(now)
        left = _left(self.done, self.total, rate)
        done = self.done if self.total is None else min(self.done, self.total)
        return Figures(name, done, self.total, rate, left, self.speed.silence(now), self.checking)

    @property
    def sizes(self) -> tuple[int, int | None]:
        """Bytes that are there, and that there will be, whether it is being checked already or not."""
        if self.arrived is not None:
            return self.arrived[0], self.arrived[0]
        return self.done if self.total is None else min(self.done, self.total), self.total


@dataclass(slots=True)
class Downloads:
    """The downloads that are under way. Not safe between threads: the caller holds a lock."""

    names: Names = field(default_factory=Names)
    _running: dict[str, _Download] = field(default_factory=dict)
    _speed: Speed = field(default_factory=lambda: Speed(0.0))
    # Of the files that have arrived since last nothing was under way.
    _files: int = 0
    _bytes: int = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._running

    def update(self, now: float, url: str, done: int, total: int | None) -> Beginning | None:
        """Take how far a download is; what has begun, at its first news.

        Args:
            now: seconds of a steady clock.
            url: of the file.
            done: its bytes that are there.
            total: its bytes; None where the server did not say.
        """
        found = self._running.get(url)
        if found is None or not found.fetched or found.arrived is not None:
            return self._begun(now, url, done, total)
        if total is not None:
            found.total = total
        if done < found.done and done != total:
            # News of several connections may overtake each other; two in a row are a new beginning.
            found.stale += 1
            if found.stale > 1:
                found.began, found.first, found.done, found.stale, found.speed = now, 0, done, 0, Speed(now)
            return None
        self._speed.add(now, done - found.done)
        found.speed.add(now, done - found.done)
        found.done, found.stale = done, 0
        return None

    def checking(self, now: float, url: str, done: int, total: int) -> None:
        """Take how much of a file that has arrived was hashed, in bytes."""
        found = self._running.get(url)
        if found is None:
            self.names.add(url)
            found = self._running[url] = _Download(url, now, 0, 0, total, Speed(now), fetched=False, checking=True)
        elif not found.checking:
            found.arrived = (total, max(0, total - found.first), now - found.began)
            found.checking, found.done, found.speed = True, 0, Speed(now)
        found.speed.add(now, done - found.done)
        found.done, found.total = done, total

    def finished(self, now: float, url: str) -> Arrival | None:
        """Forget a file; what was downloaded, where it came whole."""
        found = self._running.pop(url, None)
        if found is None or not found.fetched:
            return None
        arrived = found.arrived
        if arrived is None and found.total is not None and found.done >= found.total:
            arrived = (found.total, max(0, found.total - found.first), now - found.began)
        if arrived is None:
            return None
        self._files += 1
        self._bytes += arrived[0]
        return Arrival(self.names.short(url), *arrived)

    def running(self, now: float) -> list[Figures]:
        """Each file that is under way, in the order in which they began."""
        return [item.figures(self.names.short(item.url), now) for item in self._running.values()]

    def together(self, now: float) -> Figures | None:
        """All downloads since last nothing was under way; None where fewer than two are under way."""
        under_way = [item for item in self._running.values() if item.fetched]
        if len(under_way) < 2:
            return None
        sizes = [item.sizes for item in under_way]
        totals = [total for _, total in sizes if total is not None]
        done = self._bytes + sum(done for done, _ in sizes)
        total = self._bytes + sum(totals) if len(totals) == len(sizes) else None
        rate = self._speed.rate(now)
        left = _left(done, total, rate)
        if left is not None:
            # Not before the slowest one, unless the others leave their share to it, which nobody knows.
            slowest = [_left(*item.sizes, item.speed.rate(now)) for item in under_way if item.arrived is None]
            left = max([left, *(seconds for seconds in slowest if seconds is not None)])
        return Figures("", done, total, rate, left, self._speed.silence(now), files=len(under_way))

    def _begun(self, now: float, url: str, done: int, total: int | None) -> Beginning:
        if not any(item.fetched for item in self._running.values()):
            self._speed, self._files, self._bytes = Speed(now), 0, 0
        self.names.add(url)
        resumed = done if done >= _RESUMED_BYTES else 0
        self._running[url] = _Download(url, now, resumed, done, total, Speed(now), fetched=True)
        return Beginning(url, total, resumed)


def _left(done: int, total: int | None, rate: float | None) -> float | None:
    """Seconds until all is there."""
    if total is None or not rate:
        return None
    return max(0, total - done) / rate
