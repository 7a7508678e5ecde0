"""The cost of a short process under the supervisor: a printed figure without a verdict."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.steps import Command

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.measure


def test_overhead_of_short_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Supervisor() as supervisor:

        def run() -> float:
            log = tmp_path / "log"
            return supervisor.run(Command(("true",), ""), stdout=log, stderr=log, timeout=60, tmpdir=tmp_path).seconds

        run()
        begun = time.perf_counter()
        inside = sum(run() for _ in range(50))
        each = (time.perf_counter() - begun) / 50
    with capsys.disabled():
        print(f"\na short process: {each * 1e3:.1f} ms, {inside / 50 * 1e3:.1f} ms of them its own")  # noqa: T201
