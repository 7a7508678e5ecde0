"""`compare A B` with the real tools, and with one whose times are known to be longer."""

from __future__ import annotations

import json
import signal
import time
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.journal_format import read_events
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.faulty_iree import slow_benchmarks, tree
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.iree

# Rounds of a program of microseconds, on a machine on which other tests run.
_QUICK = ("--repetitions", "2", "--min-time", "0.002", "--disturbed", "count")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def _document(project: Project, name: str = "cmp") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.folder / name / "comparison.json").read_text())
    return found


def test_a_slower_runtime_is_found_and_explained(project: Project, tmp_path: Path) -> None:
    slow = tree(tmp_path / "slow", iree_benchmark_module=slow_benchmarks(tmp_path / "scripts", 10.0))
    done = project.gauntlet("compare", "installed", slow, "--model", "toy", "--run-dir", "cmp", *_QUICK)
    assert done.code == 1, done.text
    document = _document(project)
    model = document["models"]["toy/abs@cpu"]
    assert model["verdict"] == "slower"
    assert 1.01 < model["low"] < model["ratio"] < model["high"]
    assert model["ratio"] > 2
    assert model["bootstrap"][0] < model["ratio"] < model["bootstrap"][1]
    assert model["control"]["verdict"] in ("same", "inconclusive")
    assert document["where"]["toy/abs@cpu"]["dispatches"]
    assert document["summary"]["verdicts"]["slower"] == 1
    junit = ET.parse(project.folder / "cmp" / "junit.xml").getroot()
    assert [case.find("failure") is not None for case in junit.iter("testcase")] == [True]
    markdown = (project.folder / "cmp" / "comparison.md").read_text()
    assert "**slower**" in markdown
    assert "## Where toy/abs@cpu is slower" in markdown
    assert "1 slower" in done.out
    # Both sides are ordinary runs.
    for side in ("a", "b"):
        assert (project.folder / "cmp" / side / "summary.md").is_file()


def test_the_rounds_are_interleaved_and_all_recorded(project: Project, tmp_path: Path) -> None:
    fast = tree(tmp_path / "fast", iree_benchmark_module=slow_benchmarks(tmp_path / "scripts", 0.1))
    done = project.gauntlet("compare", "installed", fast, "--model", "toy", "--run-dir", "cmp", "--seed", "7", *_QUICK)
    assert done.code == 0, done.text
    assert _document(project)["models"]["toy/abs@cpu"]["verdict"] == "faster"
    record = read_events(project.folder / "cmp" / "comparison.jsonl", "comparison")
    blocks = [event for _, event in record.events if event["event"] == "block"]
    kinds = [block["kind"] for block in blocks]
    assert kinds[:20] == ["ab", "aa"] * 10, "A against itself between the others"
    assert set(kinds[20:]) <= {"ab"}
    assert {block["order"] for block in blocks} == {"ABBA", "BAAB"}
    for block in blocks:
        assert "".join(item["side"] for item in block["rounds"]) == block["order"]
        assert block["counted"] is True
        assert all(len(item["times_ms"]) == 2 and item["state"] for item in block["rounds"])


def test_one_that_was_killed_goes_on_where_it_was(project: Project, tmp_path: Path) -> None:
    slow = tree(tmp_path / "slow", iree_benchmark_module=slow_benchmarks(tmp_path / "scripts", 10.0))
    words = ("compare", "installed", slow, "--model", "toy", "--run-dir", "cmp", *_QUICK)
    process = project.start(*words)
    log = project.folder / "cmp" / "comparison.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count('"block"') >= 5):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    before = log.read_text().count('"event":"block"')
    report = project.gauntlet("report", "cmp")
    assert report.code == 3, report.text
    assert "not measured" in report.out
    again = project.gauntlet(*words)
    assert again.code == 2
    assert "already holds a run" in again.err
    other = project.gauntlet("compare", "installed", slow, "--run-dir", "cmp", "--resume", "--seed", "9", *_QUICK)
    assert other.code == 2
    assert "--seed 9: cmp was begun with 1" in other.err
    done = project.gauntlet("compare", "--resume", "--run-dir", "cmp")
    assert done.code == 1, done.text
    model = _document(project)["models"]["toy/abs@cpu"]
    assert log.read_text().count('"event":"block"') == model["blocks"] + model["control_blocks"]
    assert before >= 5
    assert model["blocks"] in (10, 14, 19, 26, 40), "no more than the plan asks for"
    assert model["control_blocks"] == 10


def test_ctrl_c_leaves_a_report_of_what_there_is(project: Project, tmp_path: Path) -> None:
    slow = tree(tmp_path / "slow", iree_benchmark_module=slow_benchmarks(tmp_path / "scripts", 10.0))
    process = project.start("compare", "installed", slow, "--model", "toy", "--run-dir", "cmp", *_QUICK)
    log = project.folder / "cmp" / "comparison.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and '"block"' in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert _document(project)["exit_code"] == 130
    document = _document(project)
    assert document["not_measured"].keys() | document["models"].keys() == {"toy/abs@cpu"}
    for model in document["models"].values():
        assert model["verdict"] == "inconclusive", "cut short before its first look"
        assert model["reason"].endswith("; interrupted")


def test_one_that_is_interrupted_while_a_side_compiles_can_be_reported_and_resumed(
    project: Project, tmp_path: Path
) -> None:
    script = tmp_path / "late"
    script.write_text(f'#!/bin/sh\ncase "$*" in *-o*) sleep 20;; esac\nexec "{find_installed().compile}" "$@"\n')
    script.chmod(0o755)
    late = tree(tmp_path / "late_tree", iree_compile=script)
    process = project.start("compare", "installed", late, "--model", "toy", "--run-dir", "cmp", *_QUICK)
    journal = project.folder / "cmp" / "b" / "journal.jsonl"
    deadline = time.monotonic() + 120
    while not (journal.exists() and "toy/abs@cpu:compile" in journal.read_text().rpartition('"event":"start"')[2]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    report = project.gauntlet("report", "cmp")
    assert report.code == 130, report.text
    assert "interrupted" in report.out
    script.write_text(f'#!/bin/sh\nexec "{find_installed().compile}" "$@"\n')
    done = project.gauntlet("compare", "--resume")
    assert done.code == 2, "the newest of runs/ is meant, and there is none"
    done = project.gauntlet("compare", "--resume", "--run-dir", "cmp")
    assert done.code != 2, done.text
    assert set(_document(project)["models"]) == {"toy/abs@cpu"}


def test_a_side_that_does_not_compile_or_gives_wrong_numbers_is_not_timed(project: Project) -> None:
    project.add("negated", "arith.negf %a : tensor<4xf32>")
    done = project.gauntlet("compare", "installed", "installed", "--model", "toy", "--run-dir", "cmp", *_QUICK)
    assert done.code == 3, done.text
    reason = _document(project)["not_measured"]["toy/negated@cpu"]
    assert "its numbers are wrong" in reason
    assert set(_document(project)["models"]) == {"toy/abs@cpu"}


def test_a_benchmark_that_crashes_is_no_verdict(project: Project, tmp_path: Path) -> None:
    script = tmp_path / "crash"
    tool = find_installed().benchmark_module
    script.write_text(f'#!/bin/sh\ncase "$1" in --help) exec "{tool}" --help;; esac\nkill -SEGV $$\n')
    script.chmod(0o755)
    broken = tree(tmp_path / "broken", iree_benchmark_module=script)
    done = project.gauntlet("compare", "installed", broken, "--model", "toy", "--run-dir", "cmp", *_QUICK)
    assert done.code == 3, done.text
    model = _document(project)["models"]["toy/abs@cpu"]
    assert model["verdict"] == "error"
    assert model["reason"] == "B: iree-benchmark-module crashed with SIGSEGV"


def test_compile_time_in_rounds(project: Project, tmp_path: Path) -> None:
    script = tmp_path / "late"
    script.write_text(f'#!/bin/sh\nsleep 1\nexec "{find_installed().compile}" "$@"\n')
    script.chmod(0o755)
    late = tree(tmp_path / "late_tree", iree_compile=script)
    options = ("--model", "toy", "--run-dir", "cmp", "--metric", "compile-time", "--disturbed", "count")
    done = project.gauntlet("compare", "installed", late, *options)
    assert done.code == 1, done.text
    model = _document(project)["models"]["toy/abs@cpu"]
    assert model["verdict"] == "slower"
    assert model["time_ms"]["B"]["median"] - model["time_ms"]["A"]["median"] == pytest.approx(1000, rel=0.3)
    assert model["peak_rss_bytes"]["A"] > 10_000_000
    assert not list((project.folder / "cache").rglob("*.round")), "rounds write beside the modules, not into the cache"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("installed",), "compare takes two IREEs, not 1"),
        (("installed", "installed", "installed"), "compare takes two IREEs, not 3"),
        (("installed", "3.x"), "3.x"),
        (("installed", "installed", "--metric", "speed"), "--metric speed: unknown metric"),
        (("installed", "installed", "--least", "5"), "expected 0 < least ≤ band"),
        (("installed", "installed", "--budget", "0"), "--budget 0: expected minutes above 0"),
        (("installed", "installed", "--repetitions", "0"), "--repetitions 0"),
        (("installed", "installed", "--cpus", "x"), "'x' is no CPU"),
        (("installed", "installed", "--cpus", "4096"), "there is no CPU 4096 here"),
        (("installed", "installed", "--disturbed", "drop"), "--disturbed drop: unknown"),
        (("installed", "installed", "--seed", "-1"), "--seed -1"),
        (("installed", "installed", "--resume"), "there is no earlier `compare`"),
        (("installed", "installed", "--model", "nothing"), "nothing"),
        (("installed", "installed", "--target", "rocm"), "no"),
        ((), "compare takes two IREEs, not 0"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_runs(project: Project, words: tuple[str, ...], told: str) -> None:
    done = project.gauntlet("compare", *words)
    assert done.code in (2, 5), done.text
    assert told in done.err
    assert not list(project.folder.glob("runs/*/*/journal.jsonl"))
