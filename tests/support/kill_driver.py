"""Kills downloads: forks a child that fetches, kills it with SIGKILL, checks the cache, and continues with a new child.

`python -m tests.support.kill_driver <slow url> <fast url> <folder> <sha256> <kills> <of each way> <stride> <seed>` is a
process without threads, because it forks. It kills a child in one of three ways:

- after a random time;
- at the n-th *point*: before a file is opened, written, synced, renamed, linked or removed, before a directory is made
  or emptied, before a connection is made (seen by audit events, or by wrapped `os` functions);
- in the middle of the n-th write, of which a random part reaches the file.

After some kills the power fails as well, which loses any part of the unsynced data. The driver prints its counts as
JSON; it exits with an error if a partial file passes for a complete one.
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
from iree_gauntlet.artifacts.sources import make_local_name
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable

_POLICY = transfer.Policy(connections=3, part_bytes=128 << 10, retries=2, backoff=0.01, stall_timeout=10.0)
_EVENTS = ("open", "os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.utime")
_MAX_KILL_SECONDS = 0.12
_MAX_KILL_POINT = 120
_PAGE_BYTES = 4096
# These counts have a minimum: kills of children of a chain in each way, and power cuts after a kill.
COUNT_NAMES = ("time", "point", "torn", "power cuts")
_FAILURE_EXIT_CODE = 3


class PartialFileError(Exception):
    """Raised if a partial or wrong file passes for the complete one."""


class _Killer:
    """Counts points, and kills this process at the `kill_point`-th one."""

    def __init__(self, kill_point: int, rng: random.Random | None = None) -> None:
        self.count = 0
        self._kill_point = kill_point
        self._rng = rng

    def install(self) -> None:
        sys.addaudithook(self._audit)
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._wrap_sync(getattr(os, name)))
        for name in ("write", "pwrite"):
            setattr(os, name, self._wrap_write(getattr(os, name)))

    def _audit(self, event: str, _arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS or event.startswith(("shutil.", "socket.connect")):
            self._pass_point()

    def _pass_point(self) -> None:
        self.count += 1
        if self.count == self._kill_point:
            os.kill(os.getpid(), signal.SIGKILL)

    def _wrap_sync(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*arguments: Any) -> Any:
            self._pass_point()
            return function(*arguments)

        return wrapped

    def _wrap_write(self, function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def wrapped(descriptor: int, data: Any, *offset: int) -> int:
            if self._rng is not None and self.count + 1 == self._kill_point:
                function(descriptor, memoryview(data)[: self._rng.randrange(len(data) + 1)], *offset)
            self._pass_point()
            return function(descriptor, data, *offset)

        return wrapped


class _Victims:
    """Runs and kills children that fetch one file into one directory."""

    def __init__(self, url: str, sha256: str, seed: int) -> None:
        self.url = url
        self.sha256 = sha256
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        # These are the events of the present chain, for the error message.
        self.events: list[str] = []

    def store(self, root: Path, *, pinned: bool, offline: bool = False) -> ArtifactStore:
        entries = [RegistryEntry(make_local_name(self.url), self.sha256, self.url)] if pinned else []
        registry = Registry(root / "registry.txt").with_entries(entries)
        return ArtifactStore(root, registry, offline=offline, policy=_POLICY)

    def run_child(self, root: Path, killer: _Killer | None, seconds: float | None, *, pinned: bool) -> tuple[bool, int]:
        """Run a child; return whether it was killed, and its number of points if it was not."""
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._fetch(root, killer, write_fd, pinned=pinned)
        os.close(write_fd)
        if seconds is not None:
            # The pipe becomes readable when the child ends, which stops the wait early.
            select.select([read_fd], [], [], seconds)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with os.fdopen(read_fd, "rb") as pipe:
            output = pipe.read().decode()
        if os.WIFSIGNALED(status):
            if os.WTERMSIG(status) != signal.SIGKILL:
                raise RuntimeError(f"a child died of signal {os.WTERMSIG(status)}")
            return True, 0
        if os.WEXITSTATUS(status) != 0:
            raise PartialFileError(f"a child failed: {output}")
        points, sha256 = output.split()[:2]
        if sha256 != self.sha256:
            raise PartialFileError(f"a child fetched something else: {output}")
        return False, int(points)

    def _fetch(self, root: Path, killer: _Killer | None, write_fd: int, *, pinned: bool) -> None:
        """Fetch the file in the child, write the result to the pipe, and exit."""
        exit_code, real_write = _FAILURE_EXIT_CODE, os.write
        try:
            store = self.store(root, pinned=pinned)
            killer = killer or _Killer(-1)
            killer.install()
            artifact = store.fetch(self.url)
            real_write(write_fd, f"{killer.count} {artifact.sha256} {artifact.notes}".encode())
            exit_code = 0
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            real_write(write_fd, repr(error).encode())
        finally:
            os._exit(exit_code)

    def inspect(self, root: Path, *, pinned: bool) -> bool:
        """Require that only the complete file passes for the artifact; return whether it is in the cache."""
        folder = root / "artifacts"
        cached_files = [path for path in folder.rglob("*") if path.is_file()]
        for path in cached_files:
            if path != folder / make_local_name(self.url):
                raise PartialFileError(f"{path} is no artifact")
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest != self.sha256:
                raise PartialFileError(f"{path}: {path.stat().st_size} bytes with sha256 {digest}")
        self._check_offline(self.store(root, pinned=pinned, offline=True), is_cached=bool(cached_files))
        return bool(cached_files)

    def _check_offline(self, store: ArtifactStore, *, is_cached: bool) -> None:
        """Require that an offline process gets the right answers about the file."""
        if store.is_present(self.url) != is_cached:
            raise PartialFileError(f"present() says {not is_cached}")
        entry = store.lock_file.registry().get(make_local_name(self.url))
        if entry is not None and entry.sha256 != self.sha256:
            raise PartialFileError(f"learnt {entry}")
        # Only every second time, since this fetch completes the publication that a killed child has started.
        if self.random.random() < 0.5:
            try:
                artifact = store.fetch(self.url)
            except ArtifactError:
                if is_cached:
                    raise
            else:
                if artifact.sha256 != self.sha256 or not is_cached:
                    raise PartialFileError(f"fetch() gave {artifact}")

    def run_chain(self, root: Path) -> None:
        """Kill successive children, each of which resumes the download, until one completes the file."""
        is_pinned = self.random.random() < 0.5
        self.events = [f"pinned: {is_pinned}"]
        while True:
            seconds, killer = None, None
            method = self.random.choice(("time", "time", "point", "torn"))
            if method == "time":
                seconds = self.random.uniform(0.0, _MAX_KILL_SECONDS)
            else:
                rng = random.Random(self.random.random()) if method == "torn" else None
                killer = _Killer(self.random.randint(1, _MAX_KILL_POINT), rng)
            self.events.append(method)
            is_killed, _ = self.run_child(root, killer, seconds, pinned=is_pinned)
            is_complete = self.inspect(root, pinned=is_pinned)
            if not is_killed:
                if not is_complete:
                    raise PartialFileError("a child has fetched nothing")
                self.counts["whole"] += 1
                self._count_partials(root)
                return
            self.counts[method] += 1
            self.counts["killed"] += 1
            self.counts["killed after it was published"] += is_complete
            if self.random.random() < 0.2:
                self.events.append("power cut")
                self.counts["power cuts"] += self._cut_power(root)

    def kill_at_each_point(self, root: Path, stride: int) -> None:
        """Kill a download from an empty cache at every `stride`-th point; require that the next child completes it."""
        _, point_count = self.run_child(root / "whole", None, None, pinned=False)
        for point in range(self.random.randint(1, stride), point_count + 1, stride):
            cache_folder = root / str(point)
            is_killed, _ = self.run_child(cache_folder, _Killer(point), None, pinned=False)
            is_complete = self.inspect(cache_folder, pinned=False)
            self.counts["each point"] += is_killed
            self.counts["killed"] += is_killed
            self.counts["killed after it was published"] += is_complete and is_killed
            self.run_child(cache_folder, None, None, pinned=False)
            if not self.inspect(cache_folder, pinned=False):
                raise PartialFileError(f"not healed after point {point}")
            shutil.rmtree(cache_folder)

    def _count_partials(self, root: Path) -> None:
        """Count the partial downloads that remain next to a complete file."""
        self.counts["partials left next to whole files"] += len(list((root / "incoming").glob("*/*")))

    def _cut_power(self, root: Path) -> bool:
        """Lose random parts of the journal and data of downloads: zeroed pages, truncated ends."""
        journals = list((root / "incoming").glob("*/state.jsonl"))
        for journal in journals:
            content = journal.read_bytes()
            remaining = content[: self.random.choice((len(content), self.random.randint(0, len(content))))]
            journal.write_bytes(remaining + b"\0" * self.random.choice((0, 0, 100)))
            data = journal.with_name("data")
            # A file with a second link was synced already, just before its publication.
            if data.exists() and data.stat().st_nlink == 1:
                data_bytes = bytearray(data.read_bytes())
                loss_share = self.random.choice((0.0, 0.1, 1.0))
                for start in range(0, len(data_bytes), _PAGE_BYTES):
                    if self.random.random() < loss_share:
                        data_bytes[start : start + _PAGE_BYTES] = bytes(len(data_bytes[start : start + _PAGE_BYTES]))
                end = self.random.choice((len(data_bytes), self.random.randint(0, len(data_bytes))))
                data.write_bytes(data_bytes[:end])
        return bool(journals)


def main() -> None:
    slow, fast, folder, sha256, kills, min_count, stride, seed = sys.argv[1:]
    # Blocks are small, so that a small file has many points.
    vars(remotes)["BLOCK_BYTES"] = 16 << 10
    transfer._JOURNAL_INTERVAL_BYTES = 32 << 10
    victims = _Victims(fast, sha256, int(seed))
    chain_number = -1
    try:
        victims.kill_at_each_point(Path(folder) / "points", int(stride))
        victims.url = slow
        counts = victims.counts
        while counts["killed"] < int(kills) or any(counts[name] < int(min_count) for name in COUNT_NAMES):
            chain_number += 1
            root = Path(folder) / str(chain_number)
            victims.run_chain(root)
            shutil.rmtree(root)
    except PartialFileError as error:
        sys.exit(f"HALF READ AS WHOLE (seed {seed}, chain {chain_number}, {victims.events}): {error}")
    sys.stdout.write(json.dumps({**victims.counts, "chains": chain_number + 1}))


if __name__ == "__main__":
    main()
