"""`compare A B` with the real tools, except for benchmarks: their times are synthetic, so every verdict is certain.

`test_compare_measured.py` measures real times.
"""

from __future__ import annotations

import itertools
import json
import shlex
import signal
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.engine import session
from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.rounds import blocks
from iree_gauntlet.engine.rounds import taken_rounds as rounds
from iree_gauntlet.journal_format import read_events
from iree_gauntlet.measuring.machine.disturbance import RoundState, RoundWatch
from iree_gauntlet.measuring.machine.machine_state import CpuUse, MachineState
from tests.support.command_line import LIMIT_SECONDS
from tests.support.faulty_iree import SyntheticBuild, fill_module_cache, write_build_tree
from tests.support.hanging import HANG
from tests.support.processes import list_started_steps, wait_until
from tests.support.toy_project import FLAGS, Project

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from pathlib import Path

    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.steps import Command, Step

pytestmark = pytest.mark.iree

# What else the machine does has no say.
_QUICK = ("--repetitions", "2", "--disturbed", "count", "--cpus", "all", "--no-work")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project")
    fill_module_cache(project)
    yield project
    project.close()


@pytest.fixture
def usual(tmp_path: Path) -> SyntheticBuild:
    return SyntheticBuild(tmp_path / "usual")


@pytest.fixture
def slow(tmp_path: Path) -> SyntheticBuild:
    return SyntheticBuild(tmp_path / "slow", 1.5)


def _words(a: SyntheticBuild, b: SyntheticBuild | str) -> tuple[str, ...]:
    other = b if isinstance(b, str) else b.iree
    return ("compare", a.iree, other, "--model", "toy", "--run-dir", "cmp", *_QUICK)


def _document(project: Project, name: str = "cmp") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.folder / name / "comparison.json").read_text())
    return found


def _blocks(project: Project) -> int:
    """As many as the log holds so far."""
    log = project.folder / "cmp" / "journal.jsonl"
    return log.read_text().count('"event":"block"') if log.exists() else 0


def test_a_slower_runtime_is_found_and_explained(project: Project, usual: SyntheticBuild, slow: SyntheticBuild) -> None:
    done = project.gauntlet(*_words(usual, slow))
    assert done.code == 1, done.text
    document = _document(project)
    model = document["models"]["toy/abs@cpu"]
    assert model["verdict"] == "slower"
    assert 1.01 < model["low"] < model["ratio"] < model["high"]
    assert model["ratio"] == pytest.approx(1.5, rel=0.02)
    assert model["low"] < 1.5 < model["high"]
    assert model["control"]["verdict"] == "same"
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


def test_the_rounds_are_interleaved_and_all_recorded(project: Project, usual: SyntheticBuild, tmp_path: Path) -> None:
    fast = SyntheticBuild(tmp_path / "fast", 0.5)
    done = project.gauntlet(*_words(usual, fast), "--seed", "7")
    assert done.code == 0, done.text
    assert _document(project)["models"]["toy/abs@cpu"]["verdict"] == "faster"
    events = read_events(project.folder / "cmp" / "journal.jsonl")
    taken = [event for event in events if event["event"] == "block"]
    kinds = [block["kind"] for block in taken]
    assert kinds == ["ab", "aa"] * 10, "A against itself between the others; the first look decides"
    assert {block["order"] for block in taken} == {"ABBA", "BAAB"}
    for block in taken:
        assert "".join(item["side"] for item in block["rounds"]) == block["order"]
        assert block["counted"] is True
        assert all(len(item["times_ms"]) == 2 and item["state"] for item in block["rounds"])
    # Each start's times are those of its own side.
    of_a, of_b = (
        [
            item["times_ms"][0]
            for block in taken
            if block["kind"] == "ab"
            for item in block["rounds"]
            if item["side"] == side
        ]
        for side in "AB"
    )
    assert max(of_b) < min(of_a)


def test_one_that_takes_the_same_time_is_the_same(project: Project, usual: SyntheticBuild, tmp_path: Path) -> None:
    done = project.gauntlet(*_words(usual, SyntheticBuild(tmp_path / "other")))
    assert done.code == 0, done.text
    model = _document(project)["models"]["toy/abs@cpu"]
    assert model["verdict"] == "same"
    assert 1 / 1.03 <= model["low"] < 1 < model["high"] <= 1.03


def test_one_that_was_killed_goes_on_where_it_was(project: Project, slow: SyntheticBuild, tmp_path: Path) -> None:
    usual = SyntheticBuild(tmp_path / "the usual")
    # In the sixth block.
    slow.hang_after(11)
    words = (*_words(usual, slow), "--budget", "7")
    process = project.start(*words)
    wait_until(lambda: _blocks(project) >= 10)
    process.kill()
    process.wait()
    before = _blocks(project)
    report = project.gauntlet("report", "cmp")
    assert report.code == 3, report.text
    assert "not measured" in report.out
    again = project.gauntlet(*words)
    assert again.code == 2
    assert "already holds a run" in again.err
    other = project.gauntlet("compare", usual.iree, slow.iree, "--run-dir", "cmp", "--resume", "--seed", "9", *_QUICK)
    assert other.code == 2
    assert "--seed 9: cmp was started with 1" in other.err
    with (project.regressions / "abs.mlir").open("a") as program:
        program.write("// edited\n")
    slow.stop_hanging()
    log = project.folder / "cmp" / "journal.jsonl"
    begun = json.loads(log.read_text().splitlines()[0])
    assert begun["kept"]["options"]["sides"] == [usual.iree, slow.iree]
    assert shlex.split(begun["command"])[1:] == list(words), "it can be typed again"
    done = project.gauntlet("compare", "--resume", "--run-dir", "cmp")
    assert done.code == 1, done.text
    assert "<span>--resume</span>" not in (project.folder / "cmp" / "comparison.html").read_text(), "what began it"
    for side in "ab":
        results = (project.folder / "cmp" / side / "journal.jsonl").read_text().splitlines()
        compiled = [line for line in results if '"event":"result"' in line and ':compile"' in line]
        assert len(compiled) == 1, "what has been measured stays what it was"
    model = _document(project)["models"]["toy/abs@cpu"]
    assert _blocks(project) == model["blocks"] + model["control_blocks"]
    assert before == 10
    events = [json.loads(line) for line in (project.folder / "cmp" / "journal.jsonl").read_text().splitlines()]
    budgets = [event["rules"]["budget_seconds"] for event in events if event["event"] == "opening"]
    assert budgets == [420, 420]
    assert (model["blocks"], model["control_blocks"]) == (10, 10), "no more than the plan asks for"


def test_blocks_of_what_has_changed_since_are_not_joined_with_others(
    project: Project, usual: SyntheticBuild, slow: SyntheticBuild
) -> None:
    slow.hang_after(3)
    process = project.start(*_words(usual, slow))
    wait_until(lambda: _blocks(project) >= 2)
    process.kill()
    process.wait()
    slow.stop_hanging()
    project.benchmark(benchmark_flags=["--benchmark_repetitions=4"])
    _require_another(project, "benchmark")
    project.benchmark()
    project.regression(compiler_flags=[*FLAGS, "--iree-opt-level=O1"])
    _require_another(project, "module")


def _require_another(project: Project, what: str) -> None:
    """The comparison does not go on, as something is not what was measured so far."""
    # The second time nothing is compiled.
    for _ in range(2):
        done = project.gauntlet("compare", "--resume", "--run-dir", "cmp")
        assert done.code == 3, done.text
        why = f"A: its {what} is not the one that was measured so far; start a new comparison"
        assert _document(project)["not_measured"] == {"toy/abs@cpu": why}


def test_what_was_found_slower_is_not_lost_with_its_spec(
    project: Project, usual: SyntheticBuild, slow: SyntheticBuild
) -> None:
    project.add("b")
    assert project.gauntlet(*_words(usual, slow)).code == 1
    for folder in (project.regressions, project.benchmarks):
        (folder / "abs_cpu.json").unlink()
    for _ in range(2):
        done = project.gauntlet("compare", "--resume", "--run-dir", "cmp")
        assert done.code == 3, done.text
        gone = "the comparison was started with it: its spec is gone"
        assert _document(project)["not_measured"] == {"toy/abs@cpu": gone}
        assert set(_document(project)["models"]) == {"toy/b@cpu"}


def test_ctrl_c_leaves_a_report_of_what_there_is(project: Project, usual: SyntheticBuild, slow: SyntheticBuild) -> None:
    slow.hang_after(3)
    process = project.start(*_words(usual, slow))
    wait_until(lambda: _blocks(project) >= 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_SECONDS) == 130
    assert _document(project)["exit_code"] == 130
    document = _document(project)
    assert document["not_measured"] == {}
    (model,) = document["models"].values()
    assert model["blocks"] == 1
    assert model["verdict"] == "inconclusive", "cut short before its first look"
    assert model["reason"].endswith("; interrupted")


@pytest.mark.stress
def test_one_that_is_interrupted_while_a_side_compiles_can_be_reported_and_resumed(
    project: Project, usual: SyntheticBuild, tmp_path: Path
) -> None:
    gate = tmp_path / "closed"
    gate.touch()
    late = SyntheticBuild(tmp_path / "late", 1.5, iree_compile=f'[ -e "{gate}" ] && {HANG}')
    process = project.start(*_words(usual, late))
    journal = project.folder / "cmp" / "b" / "journal.jsonl"
    wait_until(lambda: "toy/abs@cpu:compile" in list_started_steps(journal))
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_SECONDS) == 130
    report = project.gauntlet("report", "cmp")
    assert report.code == 130, report.text
    assert "interrupted" in report.out
    gate.unlink()
    done = project.gauntlet("compare", "--resume")
    assert done.code == 2, "the newest of runs/ is meant, and there is none"
    done = project.gauntlet("compare", "--resume", "--run-dir", "cmp")
    assert done.code == 1, done.text
    assert set(_document(project)["models"]) == {"toy/abs@cpu"}


def test_a_side_that_does_not_compile_or_gives_wrong_numbers_is_not_timed(
    project: Project, usual: SyntheticBuild
) -> None:
    project.add("negated", "arith.negf %a : tensor<4xf32>")
    done = project.gauntlet(*_words(usual, usual))
    assert done.code == 3, done.text
    reason = _document(project)["not_measured"]["toy/negated@cpu"]
    assert "its numbers are wrong" in reason
    assert set(_document(project)["models"]) == {"toy/abs@cpu"}


def test_a_benchmark_that_crashes_is_no_verdict(project: Project, usual: SyntheticBuild, tmp_path: Path) -> None:
    broken = write_build_tree(tmp_path / "broken", iree_benchmark_module="kill -SEGV $$")
    done = project.gauntlet(*_words(usual, broken))
    assert done.code == 3, done.text
    model = _document(project)["models"]["toy/abs@cpu"]
    assert model["verdict"] == "error"
    assert model["reason"] == "B: iree-benchmark-module crashed with SIGSEGV"


def _seeing(monkeypatch: pytest.MonkeyPatch, disturbed: Container[int]) -> None:
    """What else the machine does during a round is synthetic: others keep it busy in rounds of these numbers."""
    numbers = itertools.count()
    nothing = MachineState(2, *(None,) * 11)

    class Watch(RoundWatch):
        def ended(self, *, own_cpu_seconds: float) -> RoundState:
            del own_cpu_seconds
            busy = 0.9 if next(numbers) in disturbed else 0.0
            return RoundState(nothing, nothing, 1.0, CpuUse(busy, 0.0, 0.01))

    monkeypatch.setattr(rounds, "RoundWatch", Watch)
    monkeypatch.setattr(blocks, "_PAUSE_SECONDS", 0.0)


def test_a_block_with_a_disturbed_round_is_taken_again(
    project: Project, usual: SyntheticBuild, slow: SyntheticBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the third round of a block against B, and in the first one of A against itself after it.
    _seeing(monkeypatch, {2, 7})
    words = ("--model", "toy", "--run-dir", "cmp", "--cpus", "all", "--no-work")
    done = project.gauntlet("compare", usual.iree, slow.iree, *words)
    assert done.code == 1, done.text
    model = _document(project)["models"]["toy/abs@cpu"]
    assert (model["verdict"], model["blocks"], model["control_blocks"]) == ("slower", 10, 10)
    assert model["replaced_blocks"] == 2
    assert model["disturbance"] == "other work kept the CPUs 90 % busy (10 % is tolerated)"
    events = read_events(project.folder / "cmp" / "journal.jsonl")
    left_out = [event for event in events if event["event"] == "block" and not event["counted"]]
    assert [(block["kind"], len(block["rounds"])) for block in left_out] == [("ab", 3), ("aa", 1)]


def test_a_machine_that_is_never_quiet_gives_no_verdict(
    project: Project, usual: SyntheticBuild, slow: SyntheticBuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    _seeing(monkeypatch, range(1_000_000))
    words = ("compare", usual.iree, slow.iree, "--model", "toy", "--no-work", "--run-dir")
    done = project.gauntlet(*words, "cmp")
    assert done.code == 4, done.text
    model = _document(project)["models"]["toy/abs@cpu"]
    assert model["verdict"] == "inconclusive"
    assert "other work kept the CPUs 90 % busy" in model["reason"]
    # As evidence they would have been enough.
    done = project.gauntlet(*words, "counted", "--disturbed", "count")
    assert done.code == 1, done.text


class _TimedCompiles(Processes):
    """Processes whose compiles take synthetic seconds and memory: twice as much of both for `late`."""

    chance = np.random.default_rng(1)

    def run(self, step: Step, command: Command | None = None, name: str = "") -> Outcome:
        outcome = super().run(step, command, name)
        if command is None:
            return outcome
        times = 2 if "/late/" in command.argv[0] else 1
        return replace(
            outcome, seconds=times * float(np.exp(self.chance.normal(0, 0.002))), peak_rss_bytes=times * 100_000_000
        )


def test_compile_time_in_rounds(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Processes", _TimedCompiles)
    # A round's module is nobody's; what is in the cache is compiled by the real one.
    made = 'for word; do case $word in *.vmfb.round) echo made > "${word#-o=}" ;; esac; done; exit'
    quick = f'case "$*" in *.round*) {made} ;; esac'
    a, b = (write_build_tree(tmp_path / name, name=name, iree_compile=quick) for name in ("usual", "late"))
    options = ("--model", "toy", "--run-dir", "cmp", "--metric", "compile-time", "--disturbed", "count")
    done = project.gauntlet("compare", a, b, *options)
    assert done.code == 1, done.text
    model = _document(project)["models"]["toy/abs@cpu"]
    assert model["verdict"] == "slower"
    assert model["low"] < 2 < model["high"]
    assert model["time_ms"]["B"]["median"] - model["time_ms"]["A"]["median"] == pytest.approx(1000, rel=0.01)
    assert model["peak_rss_bytes"] == {"A": 100_000_000, "B": 200_000_000}
    assert not list((project.folder / "cache").rglob("*.round")), "rounds write next to the modules, not into the cache"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("installed",), "compare takes two IREEs, not 1"),
        (("installed", "installed", "installed"), "compare takes two IREEs, not 3"),
        (("installed", "3.x"), "3.x"),
        (("installed", "installed", "--metric", "speed"), "--metric speed: unknown"),
        (("installed", "installed", "--least", "5"), "expected 0 < least ≤ band"),
        (("installed", "installed", "--budget", "0"), "--budget 0: expected minutes above 0"),
        (("installed", "installed", "--repetitions", "0"), "--repetitions 0"),
        (("installed", "installed", "--cpus", "x"), "'x' is not a CPU"),
        (("installed", "installed", "--cpus", "4096"), "there is no CPU 4096 on this machine"),
        (("installed", "installed", "--disturbed", "drop"), "--disturbed drop: unknown"),
        (("installed", "installed", "--seed", "-1"), "--seed -1"),
        (("installed", "installed", "--resume"), "no earlier `compare`"),
        (("installed", "installed", "--model", "nothing"), "nothing"),
        (("installed", "installed", "--target", "rocm"), "no"),
        ((), "compare takes two IREEs, not 0"),
    ],
)
def test_nonsense_is_reported_before_anything_runs(project: Project, words: tuple[str, ...], message: str) -> None:
    done = project.gauntlet("compare", *words)
    assert done.code in (2, 5), done.text
    assert message in done.err
    assert not list(project.folder.glob("runs/*/*/journal.jsonl"))
