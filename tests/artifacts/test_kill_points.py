"""Nothing half-written ever reads as whole: a thousand downloads killed with SIGKILL, at any moment.

`kill_driver.py` says how they die. GAUNTLET_KILLS sets how many there are at least, GAUNTLET_KILL_SEED repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
import zlib
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.partial import Partial, Span
from iree_gauntlet.artifacts.remote import RemoteFile
from tests.support.artifact_server import Request, Server, serving
from tests.support.download_checks import content, sha256
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


_SIZE = (3 << 19) + 321
_BLOCK = 16 << 10
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_KILLS = int(os.environ.get("GAUNTLET_KILLS", "1000"))


def _in_parts(data: bytes, seconds: float) -> Callable[[Request], None]:
    """Ranges of a file, with a pause after each block so that there is time to die."""

    def answer(request: Request) -> None:
        match = _RANGE.match(request.headers["Range"])
        assert match is not None
        start, stop = int(match[1]), min(int(match[2]) + 1, len(data))
        request.send_response(206)
        request.send_header("ETag", '"1"')
        request.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        request.send_header("Content-Length", str(stop - start))
        request.end_headers()
        for position in range(start, stop, _BLOCK):
            request.wfile.write(data[position : min(position + _BLOCK, stop)])
            time.sleep(seconds)

    return answer


def _driven(server: Server, root: Path, kills: int, seed: int) -> dict[str, int]:
    data = content(7, _SIZE)
    slow, fast = (server.url(f"/{pause}/weights.irpa", _in_parts(data, pause / 1000)) for pause in (2, 0))
    options = [slow, fast, str(root), sha256(data), str(kills), str(seed)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.kill_driver", *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-3000:]}"
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def test_nothing_half_written_reads_as_whole(tmp_path: Path) -> None:
    seed = int(os.environ.get("GAUNTLET_KILL_SEED") or random.SystemRandom().randrange(1 << 32))
    began = time.monotonic()
    with serving() as server:
        counts = _driven(server, tmp_path, _KILLS, seed)
    sys.stdout.write(f"seed {seed}, {time.monotonic() - began:.0f} s: {counts}\n")
    assert counts["killed"] >= _KILLS
    if _KILLS >= 500:
        for way in ("time", "point", "torn", "each point", "power cuts"):
            assert counts[way] >= 10, counts
        assert counts["killed after it was published"] >= 5, counts


def test_what_a_power_cut_took_is_had_again(tmp_path: Path) -> None:
    """The journal may have reached the disk and the data not: it is the data that counts."""
    url, file = "https://example.org/weights.irpa", RemoteFile(1000, '"1"', ranged=True)

    def bring(there: Partial, *spans: Span) -> None:
        for span in spans:
            block = content(1, 1000)[span.start : span.stop]
            there.write(span.start, block)
            there.got(span, zlib.crc32(block))
        there.close()

    def resumed() -> Partial:
        found = Partial.resume(tmp_path, url, lambda _done, _total: None)
        assert found is not None
        return found[0]

    bring(Partial.begin(tmp_path, url, file), Span(0, 100), Span(500, 550))
    with (tmp_path / "data").open("r+b") as data:
        data.seek(500)
        data.write(bytes(50))
    again = resumed()
    assert again.spans == [Span(0, 100)]
    bring(again, Span(100, 200))
    again = resumed()
    assert again.spans == [Span(0, 200)], "what was lost stays lost, whatever comes after it"
    again.close()
