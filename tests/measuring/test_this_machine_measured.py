"""Real neighbours in the eyes of a watch, and the cost of watching and judging, on a machine without other work."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from iree_gauntlet.measuring.machine.disturbance import RoundWatch
from iree_gauntlet.measuring.statistics.comparison_verdict import compare
from iree_gauntlet.measuring.statistics.rounds import plan_looks
from tests.support.recorded_noise import make_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.measure


def _work(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.fixture
def a_cpu_of_our_own() -> Iterator[int]:
    """A CPU on which neighbours are started: there, others' work hardly matters for what is shown."""
    mine = psutil.Process().cpu_affinity()
    assert mine
    number = mine[-1]
    psutil.Process().cpu_affinity([number])
    yield number
    psutil.Process().cpu_affinity(mine)


def test_a_busy_neighbour_is_seen(a_cpu_of_our_own: int) -> None:
    with _work("while True: pass") as neighbour:
        try:
            time.sleep(0.1)
            watch = RoundWatch(cpus=(a_cpu_of_our_own,))
            time.sleep(0.6)
            state = watch.ended(own_cpu_seconds=0.0)
        finally:
            neighbour.kill()
    assert state.own_cpus is not None
    assert state.own_cpus.busy_share > 0.5
    assert any(line.startswith("other work kept the round's own CPUs") for line in state.list_disturbances())


def test_our_own_work_and_sleeping_neighbours_are_no_disturbance(a_cpu_of_our_own: int) -> None:
    lines = []
    with _work("import time; time.sleep(600)") as neighbour:
        try:
            time.sleep(0.2)
            # Before what else this machine does, where that is allowed.
            with contextlib.suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            for _ in range(20):
                watch = RoundWatch(cpus=(a_cpu_of_our_own,))
                spent, until = time.process_time(), time.monotonic() + 0.3
                while time.monotonic() < until:
                    pass
                state = watch.ended(own_cpu_seconds=time.process_time() - spent)
                lines = [line for line in state.list_disturbances() if "the round's own CPUs" in line]
                if not lines:
                    break
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            neighbour.kill()
    if lines:
        pytest.skip(f"this machine was never quiet: {lines[0]}")


def test_a_round_too_short_to_be_judged_is_not() -> None:
    for _ in range(20):
        state = RoundWatch(cpus=(0,)).ended(own_cpu_seconds=0.0)
        assert not [line for line in state.list_disturbances() if "other work" in line or "hypervisor" in line]


def test_watching_costs_little() -> None:
    costs = []
    for _ in range(50):
        begin = time.perf_counter()
        RoundWatch().ended(own_cpu_seconds=0.0).list_disturbances()
        costs.append(time.perf_counter() - begin)
    # The least of many: what the watch costs, and not what else this machine does. Measured: 1.4 ms.
    assert min(costs) < 0.010


def test_a_verdict_takes_no_time() -> None:
    rounds = np.exp(np.random.default_rng(0).normal(0, 0.02, (120, 10)))
    blocks, plan = make_blocks(rounds, 0), plan_looks()
    compare(blocks, plan)
    began = time.process_time()
    for _ in range(5):
        compare(blocks, plan)
    assert (time.process_time() - began) / 5 < 0.1
