"""`compare A B` in real rounds with planted differences, on a machine without other work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.journal_format import read_events
from tests.support.faulty_iree import write_build_tree, write_slow_benchmark

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.toy_project import Project

pytestmark = pytest.mark.measure

# Rounds of a program of microseconds.
_QUICK = ("--repetitions", "2", "--min-time", "0.002", "--disturbed", "count", "--no-work")


def _scaled(folder: Path, factor: float) -> str:
    """The installed IREE, whose benchmarks report times that are longer by a factor."""
    script = write_slow_benchmark(folder / "scripts", factor)
    return write_build_tree(folder / "tree", iree_benchmark_module=f'exec "{script}" "$@"')


def _document(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.folder / "cmp" / "comparison.json").read_text())
    return found


@pytest.mark.iree
def test_a_slower_runtime_is_found_and_explained(project: Project, tmp_path: Path) -> None:
    slow = _scaled(tmp_path / "slow", 10.0)
    done = project.gauntlet("compare", "installed", slow, "--model", "toy", "--run-dir", "cmp", *_QUICK)
    assert done.code == 1, done.text
    document = _document(project)
    model = document["models"]["toy/abs@cpu"]
    assert model["verdict"] == "slower"
    assert 1.01 < model["low"] < model["ratio"] < model["high"]
    assert model["ratio"] > 2
    assert model["control"]["verdict"] in ("same", "inconclusive")
    assert document["where"]["toy/abs@cpu"]["dispatches"]


@pytest.mark.iree
def test_a_faster_runtime_is_found(project: Project, tmp_path: Path) -> None:
    fast = _scaled(tmp_path / "fast", 0.1)
    done = project.gauntlet("compare", "installed", fast, "--model", "toy", "--run-dir", "cmp", "--seed", "7", *_QUICK)
    assert done.code == 0, done.text
    assert _document(project)["models"]["toy/abs@cpu"]["verdict"] == "faster"
    events = read_events(project.folder / "cmp" / "journal.jsonl")
    blocks = [event for event in events if event["event"] == "block"]
    # The trial of where to run, A against itself, counts as far as it was on the CPUs that were chosen.
    chosen = next(block["cpus"] for block in blocks if block["kind"] == "ab")
    tried = sum(block["kind"] == "trial" and block["cpus"] == chosen for block in blocks)
    rounds = [block["kind"] for block in blocks if block["kind"] in ("ab", "aa")]
    expected = [kind for number in range(1, 11) for kind in (("ab", "aa") if number > tried else ("ab",))]
    assert rounds[: len(expected)] == expected, "A against itself between the others"
    assert set(rounds[len(expected) :]) <= {"ab"}
    for block in blocks:
        assert all(len(item["times_ms"]) == 2 and item["state"] for item in block["rounds"])


@pytest.mark.iree
def test_a_slower_compiler_is_found(project: Project, tmp_path: Path) -> None:
    late = write_build_tree(tmp_path / "late", iree_compile="sleep 1")
    options = ("--model", "toy", "--run-dir", "cmp", "--metric", "compile-time", "--disturbed", "count")
    done = project.gauntlet("compare", "installed", late, *options)
    assert done.code == 1, done.text
    model = _document(project)["models"]["toy/abs@cpu"]
    assert model["verdict"] == "slower"
    assert model["time_ms"]["B"]["median"] - model["time_ms"]["A"]["median"] == pytest.approx(1000, rel=0.3)
    assert model["peak_rss_bytes"]["A"] > 10_000_000
    assert not list((project.folder / "cache").rglob("*.round")), "rounds write next to the modules, not into the cache"
