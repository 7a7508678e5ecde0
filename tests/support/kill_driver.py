"""Kills downloads: forks a child that fetches, kills it with SIGKILL, looks at what is there, continues with the next.

`python -m tests.support.kill_driver <slow url> <fast url> <folder> <sha256> <kills> <of each way> <stride> <seed>`. A
process of its own, without threads, because it forks. Three ways to die:

- after a random time: nothing is judged by when;
- at the n-th *point*: before a file is opened, written, made durable, renamed, linked or removed, before a folder
  is made or emptied, before a connection is made (audit events, and `os` functions that have none);
- in the middle of the n-th write, of which a random part reaches the file.

After some kills the power fails as well, and any part of what nobody had made durable is lost. Prints what it did as
JSON; ends with an error where a half passes for a whole.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import random
import select
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts import remotes, transfer
from iree_gauntlet.artifacts.registry_file import Registry, RegistryEntry
from iree_gauntlet.artifacts.sources import local_name
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable

_POLICY = transfer.Policy(connections=3, part_bytes=128 << 10, retries=2, backoff=0.01, stall_timeout=10.0)
_EVENTS = ("open", "os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.utime")
_LONGEST_SECONDS = 0.12
_MANY_POINTS = 120
_PAGE = 4096
# What is counted of each: the ways of a chain, and what may happen to one after a kill.
WAYS = ("time", "point", "torn", "power cuts")
_EXIT_FAILED = 3


class HalfReadAsWholeError(Exception):
    """What must never happen."""


class _Death:
    """Counts points, and kills this process at one of them."""

    def __init__(self, at: int, torn: random.Random | None = None) -> None:
        self.count = 0
        self._at = at
        self._torn = torn

    def install(self) -> None:
        sys.addaudithook(self._audit)
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._before(getattr(os, name)))
        for name in ("write", "pwrite"):
            setattr(os, name, self._writing(getattr(os, name)))

    def _audit(self, event: str, _arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS or event.startswith(("shutil.", "socket.connect")):
            self._point()

    def _point(self) -> None:
        self.count += 1
        if self.count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def dying(*arguments: Any) -> Any:
            self._point()
            return function(*arguments)

        return dying

    def _writing(self, function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def dying(descriptor: int, data: Any, *position: int) -> int:
            if self._torn is not None and self.count + 1 == self._at:
                function(descriptor, memoryview(data)[: self._torn.randrange(len(data) + 1)], *position)
            self._point()
            return function(descriptor, data, *position)

        return dying


class _Victims:
    """Children that fetch one file into one folder."""

    def __init__(self, url: str, sha256: str, seed: int) -> None:
        self.url = url
        self.sha256 = sha256
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        # What the present chain has gone through, for messages.
        self.lived: list[str] = []

    def store(self, root: Path, *, pinned: bool, offline: bool = False) -> ArtifactStore:
        entries = [RegistryEntry(local_name(self.url), self.sha256, self.url)] if pinned else []
        registry = Registry(root / "registry.txt").with_entries(entries)
        return ArtifactStore(root, registry, offline=offline, policy=_POLICY)

    def run(self, root: Path, death: _Death | None, seconds: float | None, *, pinned: bool) -> tuple[bool, int]:
        """Whether a child was killed, and its number of points if it was not."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._fetch(root, death, writing, pinned=pinned)
        os.close(writing)
        if seconds is not None:
            # No longer than it lives.
            select.select([reading], [], [], seconds)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read().decode()
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) != signal.SIGKILL:
                raise RuntimeError(f"a child died of signal {os.WTERMSIG(status)}")
            return True, 0
        if os.WEXITSTATUS(status) != 0:
            raise HalfReadAsWholeError(f"a child failed: {said}")
        points, sha256 = said.split()[:2]
        if sha256 != self.sha256:
            raise HalfReadAsWholeError(f"a child fetched something else: {said}")
        return False, int(points)

    def _fetch(self, root: Path, death: _Death | None, writing: int, *, pinned: bool) -> None:
        """What the child does."""
        code, write = _EXIT_FAILED, os.write
        try:
            store = self.store(root, pinned=pinned)
            death = death or _Death(-1)
            death.install()
            fetched = store.fetch(self.url)
            write(writing, f"{death.count} {fetched.sha256} {fetched.notes}".encode())
            code = 0
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            write(writing, repr(error).encode())
        finally:
            os._exit(code)

    def inspect(self, root: Path, *, pinned: bool) -> bool:
        """Require that nothing in the cache passes for the file but the whole file; whether it is there."""
        folder = root / "artifacts"
        files = [path for path in folder.rglob("*") if path.is_file()]
        for path in files:
            if path != folder / local_name(self.url):
                raise HalfReadAsWholeError(f"{path} is no artifact")
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest != self.sha256:
                raise HalfReadAsWholeError(f"{path}: {path.stat().st_size} bytes with sha256 {digest}")
        self._ask(self.store(root, pinned=pinned, offline=True), there=bool(files))
        return bool(files)

    def _ask(self, store: ArtifactStore, *, there: bool) -> None:
        """Require that a process without network gets the truth."""
        if store.present(self.url) != there:
            raise HalfReadAsWholeError(f"present() says {not there}")
        learnt = store.learnt.registry().get(local_name(self.url))
        if learnt is not None and learnt.sha256 != self.sha256:
            raise HalfReadAsWholeError(f"learnt {learnt}")
        # Not always: it finishes what a killed child has begun.
        if self.random.random() < 0.5:
            try:
                fetched = store.fetch(self.url)
            except ArtifactError:
                if there:
                    raise
            else:
                if fetched.sha256 != self.sha256 or not there:
                    raise HalfReadAsWholeError(f"fetch() gave {fetched}")

    def chain(self, root: Path) -> None:
        """Kill child after child, each of which continues where the last one died, until the file is whole."""
        pinned = self.random.random() < 0.5
        self.lived = [f"pinned: {pinned}"]
        while True:
            seconds, death = None, None
            way = self.random.choice(("time", "time", "point", "torn"))
            if way == "time":
                seconds = self.random.uniform(0.0, _LONGEST_SECONDS)
            else:
                torn = random.Random(self.random.random()) if way == "torn" else None
                death = _Death(self.random.randint(1, _MANY_POINTS), torn)
            self.lived.append(way)
            killed, _ = self.run(root, death, seconds, pinned=pinned)
            there = self.inspect(root, pinned=pinned)
            if not killed:
                if not there:
                    raise HalfReadAsWholeError("a child has fetched nothing")
                self.counts["whole"] += 1
                self._note_rest(root)
                return
            self.counts[way] += 1
            self.counts["killed"] += 1
            self.counts["killed after it was published"] += there
            if self.random.random() < 0.2:
                self.lived.append("power cut")
                self.counts["power cuts"] += self._power_cut(root)

    def each_point(self, root: Path, stride: int) -> None:
        """Kill at every point, or every so many, of one download in turn, from an empty cache; the next one heals."""
        _, points = self.run(root / "whole", None, None, pinned=False)
        for number in range(self.random.randint(1, stride), points + 1, stride):
            place = root / str(number)
            killed, _ = self.run(place, _Death(number), None, pinned=False)
            there = self.inspect(place, pinned=False)
            self.counts["each point"] += killed
            self.counts["killed"] += killed
            self.counts["killed after it was published"] += there and killed
            self.run(place, None, None, pinned=False)
            if not self.inspect(place, pinned=False):
                raise HalfReadAsWholeError(f"not healed after point {number}")
            shutil.rmtree(place)

    def _note_rest(self, root: Path) -> None:
        """Count what is left next to the file."""
        self.counts["partials left next to whole files"] += len(list((root / "incoming").glob("*/*")))

    def _power_cut(self, root: Path) -> bool:
        """Of both files any part of what was written is there, in any order: pages of zeros, ends that are missing."""
        states = list((root / "incoming").glob("*/state.jsonl"))
        for state in states:
            content = state.read_bytes()
            kept = content[: self.random.choice((len(content), self.random.randint(0, len(content))))]
            state.write_bytes(kept + b"\0" * self.random.choice((0, 0, 100)))
            data = state.with_name("data")
            # Linked, it is durable already: about to be published.
            if data.exists() and data.stat().st_nlink == 1:
                pages = bytearray(data.read_bytes())
                lost = self.random.choice((0.0, 0.1, 1.0))
                for start in range(0, len(pages), _PAGE):
                    if self.random.random() < lost:
                        pages[start : start + _PAGE] = bytes(len(pages[start : start + _PAGE]))
                stop = self.random.choice((len(pages), self.random.randint(0, len(pages))))
                data.write_bytes(pages[:stop])
        return bool(states)


def main() -> None:
    slow, fast, folder, sha256, kills, of_each, stride, seed = sys.argv[1:]
    # Small, so that there is much to kill in a small file.
    vars(remotes)["BLOCK_BYTES"] = 16 << 10
    transfer._JOURNAL_INTERVAL_BYTES = 32 << 10
    victims = _Victims(fast, sha256, int(seed))
    chain = -1
    try:
        victims.each_point(Path(folder) / "points", int(stride))
        victims.url = slow
        counts = victims.counts
        while counts["killed"] < int(kills) or any(counts[way] < int(of_each) for way in WAYS):
            chain += 1
            root = Path(folder) / str(chain)
            victims.chain(root)
            shutil.rmtree(root)
    except HalfReadAsWholeError as error:
        sys.exit(f"HALF READ AS WHOLE (seed {seed}, chain {chain}, {victims.lived}): {error}")
    sys.stdout.write(json.dumps({**victims.counts, "chains": chain + 1}))


if __name__ == "__main__":
    main()
