"""Files of gigabytes: beyond 32-bit sizes, cut, killed and resumed, and never entirely in memory."""

from __future__ import annotations

import hashlib
import os
import random
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.artifact_server import send_response
from tests.support.places import ROOT
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.artifact_server import Request, Server

pytestmark = pytest.mark.stress

_SIZE = (1 << 31) + 123_457
_BLOCK = 1 << 20
_FILL = random.Random(0).randbytes(_BLOCK)
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
# Of each so many bytes of the file, the connection that reaches them first is cut there.
_CUT_EVERY = 150_000_000
_MOST_MEMORY = 200 << 20
# What a kill may lose: what four connections have not noted yet, and what is on its way to them.
_LOST = 4 * (16 << 20)

# A run of its own: cache, URL, hash. Prints what is out of the ordinary, and its peak memory in bytes.
_RUN = """
import re, sys
from pathlib import Path
from iree_gauntlet.artifacts.registry_file import RegistryEntry, Registry
from iree_gauntlet.artifacts.sources import make_local_name
from iree_gauntlet.artifacts.store import ArtifactStore
root, url, sha256 = sys.argv[1:]
registry = Registry().with_entries([RegistryEntry(make_local_name(url), sha256, url)])
fetched = ArtifactStore(Path(root), registry).fetch(url)
print(*fetched.notes, sep="; ")
print(fetched.path)
print(fetched.sha256)
# Not ru_maxrss, which begins at what the process had that forked this one.
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""


class _LargeFile:
    """The file, and what has been sent of it."""

    def __init__(self) -> None:
        self.sent = 0
        self._cut = set[int]()
        self._lock = threading.Lock()

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for block in self._blocks(0, _SIZE):
            digest.update(block)
        return digest.hexdigest()

    def answer(self, request: Request) -> None:
        match = _RANGE.match(request.headers["Range"])
        assert match is not None
        start, stop = int(match[1]), min(int(match[2]) + 1, _SIZE)
        span = f"bytes {start}-{stop - 1}/{_SIZE}"
        send_response(request, status=206, ETag='"1"', Content_Range=span, Content_Length=str(stop - start))
        for block in self._blocks(start, stop):
            request.wfile.write(block)
            start += len(block)
            if self._cut_after(start, len(block)):
                return

    def _cut_after(self, position: int, sent: int) -> bool:
        number = position // _CUT_EVERY
        with self._lock:
            self.sent += sent
            if not number or number in self._cut:
                return False
            self._cut.add(number)
            return True

    @staticmethod
    def _blocks(start: int, stop: int) -> Iterator[bytes]:
        """Each block of the file begins with its number."""
        while start < stop:
            number, first = divmod(start, _BLOCK)
            block = number.to_bytes(8, "little") + _FILL[8:]
            yield block[first : first + stop - start]
            start += _BLOCK - first

    @property
    def cuts(self) -> int:
        return len(self._cut)


@pytest.mark.timeout(3600)
def test_two_gigabytes_that_are_cut_killed_and_gone_on_with(server: Server, tmp_path: Path) -> None:
    file = _LargeFile()
    url, sha256 = server.url("/weights.irpa", file.answer), file.sha256()
    command = [sys.executable, "-c", _RUN, str(tmp_path), url, sha256]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    with subprocess.Popen(command, env=environment) as killed:
        wait_until(lambda: file.sent > _SIZE // 2)
        killed.kill()
    assert not list((tmp_path / "artifacts").rglob("*.irpa"))
    arrived, file.sent = file.sent, 0

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    notes, path, digest, memory = done.stdout.splitlines()
    assert "resuming at 1." in notes
    assert digest == sha256
    assert Path(path).stat().st_size == _SIZE
    assert arrived + file.sent <= _SIZE + _LOST
    assert file.cuts == _SIZE // _CUT_EVERY
    assert int(memory) < _MOST_MEMORY
