"""Downloads from Azurite through a proxy with faults: messages, files that remain, and recovery.

Every fault is a row of docs/reference/failures.md, and the tests compare the messages with that page.
"""

from __future__ import annotations

import ast
import itertools
import os
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.remote import BLOCK_BYTES
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.progress import Progress
from tests.support.clocks import Clock
from tests.support.command_line import LIMIT_SECONDS
from tests.support.download_checks import (
    CONTENT_BYTES,
    MANY_RETRIES,
    PART_BYTES,
    QUICK_POLICY,
    SHORT_STALL_SECONDS,
    FakeWaits,
    NoteTrigger,
    break_off_fetch,
    list_partials,
    make_content,
    make_store,
    read_artifacts,
    sha256,
)
from tests.support.fault_proxy import Fault, FaultProxy, run_proxy
from tests.support.fault_table import read_fault_rows
from tests.support.permissions import can_mount, with_mount_rights
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iree_gauntlet.artifacts.transfer import Policy
    from iree_gauntlet.results import FetchedFile
    from tests.support.emulators import Azurite

    _Listed = Callable[[str], None]

_KEPT = ["data", "state.jsonl"]

# Eight runs at once: cache, URL. Each says that it waits for another one, and what it has fetched.
_RUNS = """
import os, sys
from pathlib import Path
import pooch, requests
from iree_gauntlet.artifacts.remotes import HttpRemote
from iree_gauntlet.system import file_lock
from tests.support.download_checks import NoteTrigger, make_store
vars(file_lock)["_FIRST_REMINDER_SECONDS"] = 0.01
def say(*words):
    os.write(1, " ".join(map(str, words)).encode() + b"\\n")
for _ in range(8):
    if os.fork() == 0:
        waits = NoteTrigger("waiting for another download", lambda: say("waits", os.getpid()))
        fetched = make_store(Path(sys.argv[1]), progress=waits).fetch(sys.argv[2])
        say(fetched.cached, fetched.sha256)
        os._exit(0)
for _ in range(8):
    os.wait()
"""


@pytest.fixture(scope="module")
def container(azurite: Azurite) -> str:
    return azurite.container(public=True)


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[FaultProxy]:
    with run_proxy(azurite.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def blob(azurite: Azurite, container: str) -> str:
    return azurite.upload(container, "llama/weights.irpa", make_content())


@pytest.fixture
def url(blob: str, proxy: FaultProxy) -> str:
    return proxy.url(blob)


@dataclass(frozen=True)
class Changing:
    """A blob that changes.

    Attributes:
        url: through the proxy.
        swap: replaces it by another one of its size, or of the first one.
    """

    url: str
    swap: Callable[[int], object]


@pytest.fixture
def changing(azurite: Azurite, container: str, proxy: FaultProxy) -> Changing:
    def swap(seed: int) -> str:
        return azurite.upload(container, "llama/changing.irpa", make_content(seed))

    return Changing(proxy.url(swap(0)), swap)


@pytest.fixture
def listed(request: pytest.FixtureRequest) -> _Listed:
    """Requires that something was said which the test's row of docs/reference/failures.md says."""
    name = (request.path.name, request.function.__name__)
    patterns = [pattern for row in read_fault_rows() if name in row.tests for pattern in row.output_patterns]

    def listed(text: str) -> None:
        assert any(pattern.search(text) for pattern in patterns), f"not in docs/reference/failures.md: {text}"

    return listed


def _heals(
    root: Path, url: str, data: bytes = b"", *, policy: Policy = QUICK_POLICY, progress: Progress | None = None
) -> FetchedFile:
    """The next fetch has the file whole and leaves nothing else."""
    fetched = make_store(root, policy=policy, progress=progress).fetch(url)
    assert not fetched.cached
    assert fetched.path.read_bytes() == (data or make_content())
    assert fetched.sha256 == sha256(data or make_content())
    assert list_partials(root) == []
    assert list(read_artifacts(root).values()) == [data or make_content()]
    assert make_store(root, offline=True).fetch(url).cached
    return fetched


def _failure(root: Path, url: str, *, pins: dict[str, str] | None = None, policy: Policy = QUICK_POLICY) -> str:
    """What a fetch says that fails; nothing is published, and nobody takes a part for the whole."""
    with pytest.raises(ArtifactError) as caught:
        make_store(root, pins=pins, policy=policy).fetch(url)
    _require_nothing(root, url)
    assert url in str(caught.value)
    return str(caught.value)


def _require_nothing(root: Path, url: str) -> None:
    assert read_artifacts(root) == {}
    assert not make_store(root).is_present(url)
    with pytest.raises(ArtifactError, match="offline"):
        make_store(root, offline=True).fetch(url)


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_is_cut(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed, *, reset: bool) -> None:
    """In the first part, and in a later one: each continues where it broke off."""
    proxy.faults += [
        Fault(cut_after=300_000, reset=reset),
        Fault(cut_after=400_000, reset=reset, from_byte=2 * PART_BYTES),
    ]
    fetched = _heals(tmp_path, url)
    for note in fetched.notes[:2]:
        listed(note)
    assert not proxy.faults[0].max_uses
    assert not proxy.faults[1].max_uses
    # What a machine had sent when it crashed may be lost on the way, but not more than that.
    assert proxy.sent_bytes <= CONTENT_BYTES + 2 * (PART_BYTES if reset else BLOCK_BYTES)


def test_connections_that_bring_little(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    """Each is cut after a few bytes: that is progress, so there is no end of trying."""
    proxy.faults.append(Fault(max_uses=None, cut_after=100_000))
    fetched = _heals(tmp_path, url)
    listed(fetched.notes[0])
    assert proxy.sent_bytes == CONTENT_BYTES


def test_a_network_that_goes_away(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    error = break_off_fetch(tmp_path, url, proxy, 3 * PART_BYTES, Fault(cut_after=0))
    listed(error)
    assert url in error
    _require_nothing(tmp_path, url)
    assert list_partials(tmp_path) == _KEPT
    fetched = _heals(tmp_path, url)
    listed(fetched.notes[0])
    assert proxy.sent_bytes == CONTENT_BYTES - 3 * PART_BYTES


@pytest.mark.parametrize("first", [0, 3 * PART_BYTES])
def test_a_stall(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed, first: int) -> None:
    """It continues where the silence began."""
    stalls = Fault(from_byte=first, to_byte=first + PART_BYTES, max_uses=50, stall_after=400_000, spares_resumed=True)
    proxy.faults.append(stalls)
    fetched = _heals(
        tmp_path, url, policy=replace(QUICK_POLICY, retries=MANY_RETRIES, stall_timeout=SHORT_STALL_SECONDS)
    )
    listed(fetched.notes[0])
    assert set(proxy.stall_offsets) & set(proxy.range_starts)


def test_a_server_that_falls_silent(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    break_off_fetch(tmp_path, url, proxy, 2 * PART_BYTES, Fault(status=500))
    proxy.faults += [
        Fault(from_byte=2 * PART_BYTES, max_uses=3, stall_after=100_000),
        Fault(from_byte=2 * PART_BYTES, max_uses=None, stall_after=0),
    ]
    listed(_failure(tmp_path, url, policy=replace(QUICK_POLICY, stall_timeout=SHORT_STALL_SECONDS)))
    assert list_partials(tmp_path) == _KEPT
    proxy.faults.clear()
    proxy.reset_counts()
    _heals(tmp_path, url)
    assert proxy.sent_bytes <= CONTENT_BYTES - 2 * PART_BYTES


def test_a_server_that_is_busy(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    proxy.faults.append(Fault(status=503, retry_after="1", max_uses=2))
    waits = FakeWaits()
    fetched = _heals(tmp_path, url, policy=waits.make_policy(QUICK_POLICY))
    listed(fetched.notes[0])
    assert "1.0 s" in fetched.notes[0]
    assert waits.seconds == [1.0, 1.0]
    assert proxy.range_starts.count(0) == 3


def test_a_server_that_is_busy_in_the_middle(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    """One connection has to wait: the others, which are answered afterwards, wait as well."""
    clock, waits, told_to_wait = Clock(), list[float](), threading.Event()

    def pass_a_second() -> None:
        clock.now += 1

    all_wait = threading.Barrier(QUICK_POLICY.connections, pass_a_second)

    def wait(_stop: threading.Event, seconds: float) -> None:
        if seconds > 0:
            waits.append(seconds)
            told_to_wait.set()
            all_wait.wait(LIMIT_SECONDS)

    proxy.faults += [
        Fault(from_byte=PART_BYTES, status=503, retry_after="1"),
        Fault(
            from_byte=PART_BYTES,
            max_uses=QUICK_POLICY.connections - 1,
            before_response=lambda: told_to_wait.wait(LIMIT_SECONDS),
        ),
    ]
    fetched = _heals(tmp_path, url, policy=replace(QUICK_POLICY, now=clock, wait=wait))
    listed(fetched.notes[0])
    assert waits == [1.0] * QUICK_POLICY.connections
    assert proxy.sent_bytes == CONTENT_BYTES


def test_a_server_that_is_busy_for_an_hour(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    proxy.faults.append(Fault(status=503, retry_after="3600"))
    waits = FakeWaits()
    listed(_failure(tmp_path, url, policy=waits.make_policy(QUICK_POLICY)))
    assert list_partials(tmp_path) == []
    assert len(proxy.range_starts) == 1
    assert waits.seconds == []
    _heals(tmp_path, url)


def test_a_body_shorter_than_its_length(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    """Content-Length says more than there is, so the end comes too early."""
    proxy.faults.append(
        Fault(from_byte=PART_BYTES, headers={"Content-Length": str(PART_BYTES + 1000)}, cut_after=PART_BYTES - 1000)
    )
    fetched = _heals(tmp_path, url)
    listed(fetched.notes[0])
    assert proxy.sent_bytes <= CONTENT_BYTES + BLOCK_BYTES


def test_a_length_that_is_too_small(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    proxy.faults.append(Fault(from_byte=PART_BYTES, headers={"Content-Length": "500000"}))
    fetched = _heals(tmp_path, url)
    listed(fetched.notes[0])


def test_a_total_that_differs(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    """Two servers behind one name that do not agree."""
    span = f"bytes {6 * PART_BYTES}-{CONTENT_BYTES - 1}/{CONTENT_BYTES + 1}"
    proxy.faults.append(Fault(from_byte=6 * PART_BYTES, headers={"Content-Range": span}))
    fetched = _heals(tmp_path, url)
    listed(fetched.notes[0])


def test_a_trickle(url: str, tmp_path: Path) -> None:
    """There is a limit on silence, none on time: an hour passes with each block. `test_slow_server.py` really waits."""
    clock = Clock()

    class Crawling(Progress):
        seen = 0

        def download_progress(self, url: str, done: int, total: int | None) -> None:  # noqa: ARG002
            self.seen += 1
            clock.now += 3600

    progress = Crawling()
    fetched = _heals(tmp_path, url, policy=replace(QUICK_POLICY, now=clock), progress=progress)
    assert progress.seen >= CONTENT_BYTES // BLOCK_BYTES
    assert not [note for note in fetched.notes if "retry" in note]


def test_a_file_that_changes_between_two_parts(
    proxy: FaultProxy, changing: Changing, tmp_path: Path, listed: _Listed
) -> None:
    proxy.faults.append(Fault(from_byte=2 * PART_BYTES, before_response=lambda: changing.swap(1)))
    fetched = _heals(tmp_path, changing.url, make_content(1))
    listed(fetched.notes[0])


def test_a_pinned_file_that_changes_between_two_parts(
    proxy: FaultProxy, changing: Changing, tmp_path: Path, listed: _Listed
) -> None:
    proxy.faults.append(Fault(from_byte=2 * PART_BYTES, before_response=lambda: changing.swap(1)))
    listed(_failure(tmp_path, changing.url, pins={changing.url: sha256(make_content())}))
    assert list_partials(tmp_path) == []
    changing.swap(0)
    _heals(tmp_path, changing.url)


def test_a_file_that_never_stays_the_same(
    proxy: FaultProxy, changing: Changing, tmp_path: Path, listed: _Listed
) -> None:
    versions = itertools.cycle((1, 0))
    proxy.faults.append(
        Fault(from_byte=2 * PART_BYTES, max_uses=None, before_response=lambda: changing.swap(next(versions)))
    )
    listed(_failure(tmp_path, changing.url))
    proxy.faults.clear()
    changing.swap(0)
    _heals(tmp_path, changing.url)


def test_a_file_that_changes_before_it_is_gone_on_with(
    proxy: FaultProxy, changing: Changing, tmp_path: Path, listed: _Listed
) -> None:
    break_off_fetch(tmp_path, changing.url, proxy, 3 * PART_BYTES, Fault(status=500))
    changing.swap(1)
    fetched = _heals(tmp_path, changing.url, make_content(1))
    listed("\n".join(fetched.notes))


def test_a_wrong_checksum_of_the_server(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    wrong = "AAAAAAAAAAAAAAAAAAAAAA=="
    proxy.faults.append(Fault(max_uses=None, headers={"x-ms-blob-content-md5": wrong, "Content-MD5": wrong}))
    listed(_failure(tmp_path, url))
    assert list_partials(tmp_path) == []
    assert not (tmp_path / "registry.lock.txt").exists(), "nothing is learnt of such a file"
    proxy.faults.clear()
    _heals(tmp_path, url)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_bit_that_is_turned_over(
    proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed, *, pinned: bool
) -> None:
    """By a proxy or a bad memory: the length is right, the content is not."""
    pins = {url: sha256(make_content())} if pinned else {}
    proxy.faults.append(Fault(from_byte=2 * PART_BYTES, flip_at=1000))
    listed(_failure(tmp_path, url, pins=pins))
    assert list_partials(tmp_path) == [], "damaged bytes are not resumed"
    _heals(tmp_path, url)


def test_a_server_without_parts(proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed) -> None:
    """A proxy that gives the whole file whatever is asked for, and breaks off."""
    proxy.faults += [Fault(ignores_range=True, cut_after=2 * PART_BYTES), Fault(ignores_range=True, max_uses=None)]
    fetched = _heals(tmp_path, url)
    listed(fetched.notes[0])
    assert proxy.sent_bytes == 2 * PART_BYTES + CONTENT_BYTES


def test_a_server_that_is_away_for_a_moment(
    azurite: Azurite, url: str, proxy: FaultProxy, tmp_path: Path, listed: _Listed
) -> None:
    """It listens again when the first retry has been noted: no clock decides what this test sees."""
    with ExitStack() as back, socket.socket() as place:
        # Bound, but nobody listens: no other process can take the port meanwhile.
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
        gone = url.replace(proxy.base, f"http://127.0.0.1:{port}")

        # Before the wait is over; a second retry would find the port taken.
        back_again = NoteTrigger("; retry ", lambda: back.enter_context(run_proxy(azurite.endpoint, port=port)))
        fetched = _heals(tmp_path, gone, progress=back_again)
    listed(fetched.notes[0])


def test_nobody_answers(azurite: Azurite, url: str, proxy: FaultProxy, tmp_path: Path, listed: _Listed) -> None:
    with run_proxy(azurite.endpoint) as other:
        gone = other.url(url.replace(proxy.base, azurite.endpoint.rpartition("/")[0]))
    error = _failure(tmp_path, gone)
    listed(error)
    assert "Connection refused (3 attempts)" in error
    assert "object at 0x" not in error
    assert list_partials(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for one file and a half."""
    folder = tmp_path / "small"
    folder.mkdir()
    if not can_mount():
        yield folder
        return
    size = f"size={CONTENT_BYTES * 3 // 2}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "gauntlet-test", str(folder)], check=True)
    yield folder
    # Lazily: the lease of this process stays open for as long as it lives.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@with_mount_rights
def test_a_disk_that_is_too_small(small_disk: Path, proxy: FaultProxy, url: str, listed: _Listed) -> None:
    (small_disk / "else").write_bytes(make_content()[: CONTENT_BYTES * 3 // 4])
    listed(_failure(small_disk, url))
    assert proxy.range_starts == [0], "it was known after the first answer"
    (small_disk / "else").unlink()
    _heals(small_disk, url)


@with_mount_rights
def test_a_disk_that_fills_up_meanwhile(small_disk: Path, proxy: FaultProxy, url: str, listed: _Listed) -> None:
    other = small_disk / "else"

    def fill() -> None:
        other.write_bytes(make_content()[: CONTENT_BYTES * 3 // 4])

    proxy.faults.append(Fault(from_byte=PART_BYTES, before_response=fill))
    listed(_failure(small_disk, url))
    assert list_partials(small_disk) == _KEPT
    other.unlink()
    arrived = proxy.sent_bytes
    proxy.reset_counts()
    _heals(small_disk, url)
    assert proxy.sent_bytes < CONTENT_BYTES - PART_BYTES // 2, f"resumed; {arrived} bytes had arrived"


@pytest.mark.parametrize("damage", ["truncated", "swapped", "emptied"])
def test_a_local_file_that_is_damaged(
    proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed, damage: str
) -> None:
    path = make_store(tmp_path).fetch(url).path
    damaged = {"truncated": make_content()[:-1], "swapped": make_content(1), "emptied": b""}[damage]
    if damage == "swapped":
        # With its time, as `cp -p` and `rsync -t` bring a file.
        status = path.stat()
        other = tmp_path / "other"
        other.write_bytes(damaged)
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(path)
    else:
        path.write_bytes(damaged)
    with pytest.raises(ArtifactError, match="offline"):
        make_store(tmp_path, offline=True).fetch(url)
    fetched = _heals(tmp_path, url)
    listed(fetched.notes[0])


@pytest.mark.parametrize("damage", ["data flipped", "data cut", "state garbled", "state gone", "data gone"])
def test_a_partial_file_that_is_damaged(
    proxy: FaultProxy, url: str, tmp_path: Path, listed: _Listed, damage: str
) -> None:
    break_off_fetch(tmp_path, url, proxy, 4 * PART_BYTES, Fault(status=500))
    data, state = (next((tmp_path / "incoming").glob(f"*/{name}")) for name in ("data", "state.jsonl"))
    if damage == "data flipped":
        with data.open("r+b") as file:
            file.seek(PART_BYTES + 5)
            file.write(bytes([make_content()[PART_BYTES + 5] ^ 1]))
    elif damage == "data cut":
        os.truncate(data, 2 * PART_BYTES)
    elif damage == "state garbled":
        state.write_bytes(b"\0" * 512)
    else:
        (state if damage == "state gone" else data).unlink()
    fetched = _heals(tmp_path, url)
    if damage.startswith("data") and damage != "data gone":
        listed(fetched.notes[0])


def test_eight_runs_want_the_same_file(proxy: FaultProxy, url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _RUNS, str(tmp_path), url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as runs:
        assert runs.stdout is not None
        waiting, others_wait, outputs = set[str](), threading.Event(), list[str]()
        # The first one has its file when all others wait for it.
        proxy.faults.append(Fault(before_response=lambda: others_wait.wait(LIMIT_SECONDS)))
        for line in runs.stdout:
            (waiting.add if line.startswith("waits") else outputs.append)(line)
            if len(waiting) == 7:
                others_wait.set()
    digest = sha256(make_content())
    assert len(waiting) == 7
    assert sorted(outputs) == [f"False {digest}\n", *[f"True {digest}\n"] * 7]
    assert proxy.sent_bytes == CONTENT_BYTES, "the file crossed the network once"
    assert list_partials(tmp_path) == []


def test_each_fault_of_the_table_has_its_test() -> None:
    rows = read_fault_rows()
    assert len(rows) >= 20
    for row in rows:
        for file, function in row.tests:
            (path,) = (ROOT / "tests").rglob(file)
            tree = ast.parse(path.read_text(encoding="utf-8"))
            functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert function in functions, f"docs/reference/failures.md names {file}::{function} for: {row.fault}"
    tested = {function for row in rows for file, function in row.tests if file == Path(__file__).name}
    here = {name for name in globals() if name.startswith("test_")} - {"test_each_fault_of_the_table_has_its_test"}
    assert tested == here, "every fault that is tested here is in the table"
