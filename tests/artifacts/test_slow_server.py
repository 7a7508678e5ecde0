"""A server that sends slowly for longer than the limit on silence, in real time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.support.artifact_server import Request, run_server, send_response
from tests.support.download_checks import QUICK_POLICY, make_content, make_store

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.measure

_SILENCE_SECONDS = 2.0
_BLOCK = 10_000


def test_there_is_a_limit_on_silence_and_none_on_time(tmp_path: Path) -> None:
    data = make_content(size=60 * _BLOCK)

    def trickle(request: Request) -> None:
        send_response(request, Content_Length=str(len(data)))
        for start in range(0, len(data), _BLOCK):
            request.wfile.write(data[start : start + _BLOCK])
            time.sleep(_SILENCE_SECONDS / 20)

    with run_server() as server:
        fetched = make_store(tmp_path, policy=replace(QUICK_POLICY, stall_timeout=_SILENCE_SECONDS)).fetch(
            server.url("/weights.irpa", trickle)
        )
    assert fetched.seconds > 2 * _SILENCE_SECONDS
    assert fetched.path.read_bytes() == data
    assert not fetched.notes[:-1], fetched.notes
