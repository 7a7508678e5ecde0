"""The CPUs to which rounds may be pinned, and the choice of the steadiest."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cases import Origin
from iree_gauntlet.engine.rounds.blocks import choose_steadiest, compute_spread, list_cpu_sets
from iree_gauntlet.formatting import format_cpus
from iree_gauntlet.measuring.statistics.rounds import Block, BlockOrder, Round
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Command, Resources, Step

if TYPE_CHECKING:
    from pathlib import Path

STEP = Step(
    id="m/s@cpu:benchmark",
    chain="m/s@cpu",
    dialect="op_tests",
    model="m",
    submodel="s",
    target="cpu",
    sku="",
    stage=Stage.BENCHMARK,
    folder="/nowhere",
    timeout=5.0,
    origin=Origin("spec.json"),
    command=Command(("iree-benchmark-module", "--function=f"), "/nowhere"),
    resources=Resources(exclusive=True, device="local-task"),
)


def _with(*flags: str, device: str = "local-task") -> Step:
    assert STEP.command is not None
    command = replace(STEP.command, argv=(*STEP.command.argv, *flags))
    return replace(STEP, command=command, resources=replace(STEP.resources, device=device))


def _machine(
    root: Path, monkeypatch: pytest.MonkeyPatch, siblings: dict[int, str], speeds: dict[int, int] | None = None
) -> Path:
    """A machine whose CPUs share cores as the kernel's lists say."""
    for number, text in siblings.items():
        folder = root / f"sys/devices/system/cpu/cpu{number}"
        (folder / "topology").mkdir(parents=True)
        (folder / "topology" / "thread_siblings_list").write_text(f"{text}\n")
        if speeds:
            (folder / "cpufreq").mkdir()
            (folder / "cpufreq" / "cpuinfo_max_freq").write_text(f"{speeds[number]}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(siblings), raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    return root


_FOUR_CORES = {number: f"{number % 4},{number % 4 + 4}" for number in range(8)}


def test_one_cpu_and_as_many_as_there_are_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _machine(tmp_path, monkeypatch, _FOUR_CORES)
    assert list_cpu_sets(STEP, root) == ((), (7,), (4, 5, 6, 7)), "one of each pair that shares a core"
    assert list_cpu_sets(_with("--task_topology_group_count=2"), root) == ((), (6, 7)), "the spec says how many"
    assert list_cpu_sets(_with(device="local-sync"), root) == ((), (7,)), "one thread"


def test_the_fastest_kind_of_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {number: str(number) for number in range(6)}
    speeds = {number: 5_000_000 if number < 2 else 3_000_000 for number in range(6)}
    root = _machine(tmp_path, monkeypatch, alone, speeds)
    assert list_cpu_sets(STEP, root) == ((), (1,), (0, 1))


def test_two_cpus_that_are_all_there_are_no_pinning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_cpu_sets(STEP, _machine(tmp_path, monkeypatch, {0: "0", 1: "1"})) == ((), (1,))


@pytest.mark.parametrize(
    "step",
    [
        _with(device="hip://0"),
        _with("--task_topology_cpu_ids=0,1"),
        _with("--task_topology_group_count=x"),
        _with("--task_topology_group_count=2", "--task_topology_nodes=all"),
    ],
)
def test_what_says_where_it_runs_runs_there(step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_cpu_sets(step, _machine(tmp_path, monkeypatch, _FOUR_CORES)) == ((),)


def test_one_cpu_leaves_nothing_to_choose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list_cpu_sets(STEP, _machine(tmp_path, monkeypatch, {0: "0"})) == ((),)


def test_without_taskset_there_is_one_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _machine(tmp_path, monkeypatch, _FOUR_CORES)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert list_cpu_sets(STEP, root) == ((),)


def _block(*times: float) -> Block:
    return Block.of_rounds(BlockOrder.ABBA, [Round((time,)) for time in times])


def test_the_way_with_the_smallest_spread() -> None:
    wide, narrow = [_block(10, 11, 9, 10)] * 3, [_block(10, 10.1, 9.9, 10)] * 3
    assert choose_steadiest({(): wide, (1,): narrow}) == (1,)
    assert choose_steadiest({(): narrow, (1,): wide}) == ()
    assert choose_steadiest({(): narrow, (1,): narrow}) == (), "the spec's own, where none is clearly better"
    assert choose_steadiest({(): wide, (1,): narrow[:2]}) == (), "a block was disturbed"
    assert choose_steadiest({(): [], (1,): wide}) == (1,)
    assert choose_steadiest({(): [], (1,): []}) == ()


@given(st.lists(st.floats(0.1, 1000), min_size=4, max_size=4), st.floats(0.001, 1000), st.permutations(range(4)))
def test_a_spread_has_no_unit_and_no_order(times: list[float], factor: float, order: list[int]) -> None:
    found = compute_spread([_block(*times)])
    assert compute_spread([_block(*(factor * times[place] for place in order))]) == pytest.approx(found, abs=1e-9)
    assert (found == 0) == (len(set(times)) == 1) or found < 1e-9


def test_the_spread_of_rounds_that_are_known() -> None:
    assert compute_spread([_block(*map(math.exp, (0.0, 0.02, 0.02, 0.0)))]) == pytest.approx(0.02 / math.sqrt(3))
    assert compute_spread([]) == math.inf


@pytest.mark.parametrize(("cpus", "text"), [((), "all"), ((3,), "3"), ((0, 2, 3, 4), "0,2-4"), ((4, 5, 6, 7), "4-7")])
def test_cpus_are_written_as_taskset_reads_them(cpus: tuple[int, ...], text: str) -> None:
    assert format_cpus(cpus) == text
