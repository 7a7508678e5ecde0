"""Downloads that are killed with SIGKILL at any moment: a half-written file never passes for a complete one.

`kill_driver.py` describes the kills. GAUNTLET_KILL_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.remote import RemoteFile
from iree_gauntlet.artifacts.transfer import ByteRange, Partial
from tests.support.artifact_server import Request, Server, run_server, send_response
from tests.support.download_checks import make_content, sha256
from tests.support.kill_driver import COUNT_NAMES
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_BLOCK = 16 << 10
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass(frozen=True)
class Kills:
    """How many.

    Attributes:
        size: bytes of the file: parts of 128 KiB.
        at_least: in all.
        of_each: in each way.
        stride: of the points of one download, each of these dies.
    """

    size: int
    at_least: int
    of_each: int
    stride: int


_FEW = Kills(size=(3 << 17) + 321, at_least=40, of_each=2, stride=7)
_MANY = Kills(size=(3 << 19) + 321, at_least=1000, of_each=10, stride=1)


def _in_parts(server: Server, data: bytes, seconds: float) -> Callable[[Request], None]:
    """Ranges of a file, with a pause after each block so that there is time to die."""

    def answer(request: Request) -> None:
        match = _RANGE.match(request.headers["Range"])
        assert match is not None
        start, stop = int(match[1]), min(int(match[2]) + 1, len(data))
        span = f"bytes {start}-{stop - 1}/{len(data)}"
        send_response(request, status=206, ETag='"1"', Content_Range=span, Content_Length=str(stop - start))
        for position in range(start, stop, _BLOCK):
            request.wfile.write(data[position : min(position + _BLOCK, stop)])
            server.stop_event.wait(seconds)

    return answer


def _driven(server: Server, root: Path, kills: Kills, seed: int) -> dict[str, int]:
    data = make_content(7, kills.size)
    slow, fast = (server.url(f"/{pause}/weights.irpa", _in_parts(server, data, pause / 1000)) for pause in (2, 0))
    options = [slow, fast, root, sha256(data), kills.at_least, kills.of_each, kills.stride, seed]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kill_driver", *map(str, options)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-3000:]}"
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


_THOUSAND = pytest.param(_MANY, marks=[pytest.mark.stress, pytest.mark.timeout(3600)], id="thousand")


@pytest.mark.parametrize("kills", [pytest.param(_FEW, id="few"), _THOUSAND])
def test_nothing_half_written_reads_as_whole(tmp_path: Path, kills: Kills) -> None:
    seed = int(os.environ.get("GAUNTLET_KILL_SEED") or random.SystemRandom().randrange(1 << 32))
    with run_server() as server:
        counts = _driven(server, tmp_path, kills, seed)
    sys.stdout.write(f"seed {seed}: {counts}\n")
    assert counts["killed"] >= kills.at_least
    for way in (*COUNT_NAMES, "each point"):
        assert counts[way] >= kills.of_each, counts
    assert counts["killed after it was published"] >= kills.of_each / 2, counts


def test_what_a_power_cut_took_is_had_again(tmp_path: Path) -> None:
    """The journal may have reached the disk and the data not: it is the data that counts."""
    url, file = "https://example.org/weights.irpa", RemoteFile(1000, '"1"', accepts_ranges=True)

    def bring(there: Partial, *spans: ByteRange) -> None:
        for span in spans:
            block = make_content(1, 1000)[span.start : span.stop]
            there.write(span.start, block)
            there.record_range(span, zlib.crc32(block))
        there.close()

    def resumed() -> Partial:
        found = Partial.resume(tmp_path, url, lambda _done, _total: None)
        assert found is not None
        return found[0]

    bring(Partial.begin(tmp_path, url, file), ByteRange(0, 100), ByteRange(500, 550))
    with (tmp_path / "data").open("r+b") as data:
        data.seek(500)
        data.write(bytes(50))
    again = resumed()
    assert again.spans == [ByteRange(0, 100)]
    bring(again, ByteRange(100, 200))
    again = resumed()
    assert again.spans == [ByteRange(0, 200)], "what was lost stays lost, whatever comes after it"
    again.close()
