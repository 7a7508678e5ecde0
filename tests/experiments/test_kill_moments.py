"""Runs that are killed at random moments: no half-written file is ever used."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import find_processes, wait_until

if TYPE_CHECKING:
    from tests.support.toy_project import Project

pytestmark = pytest.mark.stress


@pytest.mark.iree
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_random_moments_nothing_half_written_is_ever_used(project: Project, seed: int) -> None:
    for name in ("b", "c"):
        project.add(name)
    moments = random.Random(seed)
    for _ in range(10):
        run = project.start("run", "--force-recompile")
        time.sleep(moments.uniform(0.4, 2.5))
        run.kill()
        run.wait()
    wait_until(lambda: not find_processes(str(project.folder)))
    done = project.gauntlet("run")
    assert done.code == 0, done.text
    again = project.gauntlet("run")
    assert "compiles: 3 from cache, 0 made" in again.out
