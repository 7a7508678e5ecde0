from __future__ import annotations

import io
import json
import math
import os
import shlex
import signal
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.dialects.load import CaseSet
from iree_gauntlet.engine.rounds.blocks import MAX_SPEC_BLOCKS
from iree_gauntlet.engine.workspace import Selection
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.experiments.bisect import BisectSearch, BlockSource, RoundsJudge
from iree_gauntlet.experiments.bisect_question import ExactJudge, Question, make_place
from iree_gauntlet.experiments.run import RunSetup
from iree_gauntlet.experiments.session_verdicts import compare_in_spec_way
from iree_gauntlet.journal_events import EndEvent
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.measuring.statistics.bisection import count_max_comparisons
from iree_gauntlet.measuring.statistics.comparison_verdict import DEFAULT_EQUIVALENCE_MARGIN, DEFAULT_MIN_EFFECT
from iree_gauntlet.records.bisect_outcome import BisectOutcome, CandidateResult, read_bisect_outcome
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.reports.experiment_reports import bisect_document, write_reports
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.requests import BisectRequest, RunRequest
from iree_gauntlet.toolchains.candidates import Candidate
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import LIMIT_SECONDS, gauntlet_argv
from tests.support.faulty_iree import SyntheticBuild, fill_module_cache, write_build_tree
from tests.support.hanging import HANG
from tests.support.operator_suite import OperatorSuite
from tests.support.places import ROOT
from tests.support.processes import wait_until
from tests.support.recorded_noise import make_blocks
from tests.support.toy_project import Project
from tests.support.tuning_specs import MATMULS, write_cpu_spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison
    from iree_gauntlet.measuring.statistics.rounds import Block
    from tests.support.command_line import CommandResult

_LABELS = ("a", "b", "c", "d", "e", "f", "g")


def printed(outcome: BisectOutcome) -> str:
    stream = io.StringIO()
    print_document(bisect_document(outcome), stream, environ={})
    return stream.getvalue()


class Bisects:
    """Searches among seven candidates without any IREE, recorded as the task records them."""

    def __init__(self, folder: Path, *, good_is_older: bool = True) -> None:
        self.folder = folder
        row = tuple(Candidate(label, f"build:/{label}") for label in _LABELS)
        selection = Selection("custom", (), (), (), CaseSet((), (), ()))
        chosen = RunSetup(RunRequest(), selection, ())
        self.question = Question(
            "size", "toy/abs@cpu", row, good_is_older, BisectRequest(), chosen, make_place(RunRequest())
        )
        self.asked: list[str] = []
        self.said: list[str] = []

    def run(
        self,
        judge: ExactJudge | RoundsJudge,
        earlier: Mapping[str, CandidateResult] | None = None,
        *,
        every: bool = False,
    ) -> tuple[BisectOutcome, tuple[ExitCode, str]]:
        with EventLog(self.folder / JOURNAL, lambda: datetime.now(UTC)) as log:
            log.write("opening", replace(self.question.opening(), command="bisect", cwd="/"))
            search = BisectSearch(self.question, judge, log, self.said.append, dict(earlier or {}), try_all=every)
            done = search.search()
            log.write("end", EndEvent(exit_code=done[0], problem=done[1], seconds=1.0))
        write_reports(self.folder)
        return read_bisect_outcome(self.folder), done

    def exact(self, values: Sequence[float | None], name: str = "size") -> ExactJudge:
        """A judge by values that are known; None for what cannot be judged."""

        def run(candidate: Candidate) -> CandidateResult:
            self.asked.append(candidate.label)
            value = values[_LABELS.index(candidate.label)]
            found = (
                CandidateResult(reason="it crashed")
                if value is None
                else CandidateResult(value=value, text=f"{value} bytes")
            )
            toolchain = {"compiler": candidate.label, "compiler_commit": 10 * f"{ord(candidate.label):x}"}
            return replace(found, folder=candidate.label, toolchain=toolchain)

        return ExactJudge(name, run)


@pytest.mark.parametrize("change", range(1, 7))
def test_a_change_is_found_wherever_it_is(tmp_path: Path, change: int) -> None:
    bisects = Bisects(tmp_path)
    found, done = bisects.run(bisects.exact([100] * change + [130] * (7 - change)))
    assert done == (ExitCode.OK, "")
    assert found.answer == f"first bad: {_LABELS[change]}; last good: {_LABELS[change - 1]}"
    assert (found.confidence, found.exit_code, found.remarks) == ("exact", ExitCode.OK, [])
    assert len(bisects.asked) <= 5
    assert found.link.startswith("https://github.com/iree-org/iree/compare/6")
    assert "about 3 steps left" in "\n".join(bisects.said)


def test_the_good_end_may_be_the_newer_one(tmp_path: Path) -> None:
    bisects = Bisects(tmp_path, good_is_older=False)
    found, done = bisects.run(bisects.exact([130, 130, 100, 100, 100, 100, 100]))
    assert (found.answer, done[0]) == ("first good: c; last bad: b", ExitCode.OK)
    assert bisects.asked[:2] == ["g", "a"]


def test_what_cannot_be_judged_makes_a_range(tmp_path: Path) -> None:
    bisects = Bisects(tmp_path)
    found, done = bisects.run(bisects.exact([100, 100, None, None, None, 130, 130]))
    assert done == (ExitCode.INCONCLUSIVE, "")
    assert found.answer == "between b (good) and f (bad); could not be judged: c, d, e"
    assert len(set(bisects.asked)) == len(bisects.asked)
    assert "cannot be judged: it crashed" in "\n".join(bisects.said)
    text = printed(found)
    assert text.count("it crashed") == 3
    assert "exact · 7 of 7 tried" in text


def test_third_values_and_changes_back_and_forth_are_told(tmp_path: Path) -> None:
    bisects = Bisects(tmp_path)
    found, done = bisects.run(bisects.exact([100, 130, 160, 100, 100, 115, 130]), every=True)
    assert done[0] is ExitCode.OK
    assert found.answer == "first nearer to bad: f; last good: e"
    assert len(bisects.asked) == 7
    back, third = found.remarks
    assert "a is good, b bad; c is nearer to bad, d good; e is good, f nearer to bad" in back
    assert third.endswith("c (160 bytes), f (115 bytes)")
    assert "trying the other" in "\n".join(bisects.said)
    assert found.as_dict()["changes"] == (("a", "b"), ("c", "d"), ("e", "f"))


def test_what_is_not_the_value_of_an_end_is_said_to_be_a_third_one(tmp_path: Path) -> None:
    """16 dispatches are not the 15 of the good end, as little as 19 are."""
    bisects = Bisects(tmp_path, good_is_older=False)
    found, done = bisects.run(bisects.exact([21, 19, 19, 16, 15, 17, 15], "dispatches"), every=True)
    assert (found.answer, done[0]) == ("first nearer to good: d; last nearer to bad: c", ExitCode.OK)
    words = {label: judged.verdict_text for label, judged in found.results.items()}
    assert words == {"a": "bad", "e": "good", "g": "good"} | dict.fromkeys("bc", "nearer to bad") | dict.fromkeys(
        "df", "nearer to good"
    )


@pytest.mark.parametrize(
    ("name", "value", "third"),
    [
        ("dispatches", 101, True),
        ("instructions", 1_000_090, False),
        ("instructions", 1_000_110, True),
        ("instructions-outside", 1_009_000, False),
        ("instructions-outside", 1_011_000, True),
        # Of paths and names in a module.
        ("size", 1_000_900, False),
        # Of another order of sums.
        ("error", 1_100_000, False),
    ],
)
def test_how_near_to_an_end_a_value_is_that_ends(tmp_path: Path, name: str, value: float, third: bool) -> None:
    good = 100 if name == "dispatches" else 1_000_000
    bisects = Bisects(tmp_path)
    found, _ = bisects.run(bisects.exact([good, good, good, value, 2 * good, 2 * good, 2 * good], name))
    assert found.results["d"].third is third


@pytest.mark.parametrize(
    ("values", "name", "code", "says"),
    [
        ([100] * 7, "size", ExitCode.FAILED, "nothing to search for: both ends give the same value (100 bytes)"),
        ([2_532_528] * 6 + [2_532_544], "size", ExitCode.FAILED, "the ends differ by too little to search for"),
        ([math.nan] * 7, "error", ExitCode.FAILED, "nothing to search for"),
        ([None] * 7, "size", ExitCode.ERROR, "the good end a cannot be judged: it crashed"),
        ([100, *[None] * 6], "size", ExitCode.ERROR, "the bad end g cannot be judged: it crashed"),
        ([0, 0, 0, 0, 0, 0, 1], "runs", ExitCode.FAILED, "good and bad are swapped"),
    ],
)
def test_ends_that_leave_nothing_to_look_for(
    tmp_path: Path, values: list[float | None], name: str, code: ExitCode, says: str
) -> None:
    bisects = Bisects(tmp_path)
    found, done = bisects.run(bisects.exact(values, name))
    assert done[0] is code
    assert says in done[1]
    assert set(bisects.asked) <= {"a", "g"}
    assert (found.answer, found.exit_code, found.link) == (done[1], code, "")
    assert says in (tmp_path / "bisect.md").read_text()
    assert json.loads((tmp_path / "bisect.json").read_text())["first_new"] is None


def test_what_was_judged_is_not_judged_again(tmp_path: Path) -> None:
    bisects = Bisects(tmp_path)
    judge = bisects.exact([100, 100, 100, 130, 130, 130, 130])
    before, _ = bisects.run(judge)
    known = {label: CandidateResult(found.bad, found.value, found.text) for label, found in before.results.items()}
    bisects.asked.clear()
    again, done = bisects.run(judge, known)
    assert (bisects.asked, done[0], again.answer) == ([], ExitCode.OK, before.answer)
    del known["d"], known["g"]
    again, _ = bisects.run(judge, known)
    assert (sorted(bisects.asked), again.answer) == (["d", "e", "g"], before.answer)


def test_between_ends_that_differ_by_little_more_than_the_margin_a_value_is_that_of_neither(tmp_path: Path) -> None:
    """Each of the sizes is within 0.1 % of its neighbours."""
    bisects = Bisects(tmp_path)
    found, _ = bisects.run(bisects.exact([1_000_000, 1_000_000, 1_000_000, 1_000_700, *[1_001_200] * 3]))
    assert found.results["d"].verdict_text == "nearer to bad"


class _Rounds(BlockSource):
    """Blocks of synthetic times: good against a candidate that takes so many times as long."""

    def __init__(self, ratios: Sequence[float | None], spread: float, most: int = 1000) -> None:
        self._ratios = ratios
        self._spread = spread
        self._most = most
        self._chance = np.random.default_rng(5)
        self.taken = 0
        self.void = ""
        self.cpus: tuple[int, ...] = ()
        # In the spec's own way; None where that is the way of the others.
        self.own: float | None = None

    def prepare(self, candidate: Candidate) -> CandidateResult:
        known = self._ratios[_LABELS.index(candidate.label)] is not None
        return CandidateResult(reason="" if known else "it does not compile", folder=candidate.label)

    def measure_blocks(self, candidate: Candidate, count: int) -> Sequence[Block]:
        count = min(count, self._most - self.taken)
        self.taken += count
        ratio = self._ratios[_LABELS.index(candidate.label)]
        assert ratio is not None
        times = np.exp(self._chance.normal(0, self._spread, (4 * count, 5)))
        return make_blocks(times, self.taken, ratio)

    def measure_spec_way(self, candidate: Candidate) -> Comparison | None:
        assert candidate.label == "g", "the bad end alone"
        if self.own is None:
            return None
        times = np.exp(self._chance.normal(0, self._spread, (4 * MAX_SPEC_BLOCKS, 5)))
        return compare_in_spec_way(make_blocks(times, 1, self.own), DEFAULT_MIN_EFFECT, DEFAULT_EQUIVALENCE_MARGIN)

    def find_twin(self, candidate: Candidate) -> str:
        del candidate
        return ""

    def find_problem(self, candidate: Candidate) -> str:
        return "void: the good end differs from itself" if candidate.label in self.void else ""


def test_times_are_judged_by_their_ratio_to_the_good_end(tmp_path: Path) -> None:
    bisects = Bisects(tmp_path)
    rounds = _Rounds([1, 1, 1, None, 1.07, 1.07, 1.07], 0.01)
    found, done = bisects.run(RoundsJudge(rounds, count_max_comparisons(7), 0.01, 40))
    assert done == (ExitCode.INCONCLUSIVE, "")
    assert found.answer == "between c (good) and e (bad); could not be judged: d"
    assert "1.07" in found.results["g"].text
    assert (found.results["g"].low or 0.0) > 1.03
    # The other direction: bad is the faster one.
    (tmp_path / "other").mkdir()
    found, _ = Bisects(tmp_path / "other").run(
        RoundsJudge(_Rounds([1, 1, 0.9, 0.9, 0.9, 0.9, 0.9], 0.01), count_max_comparisons(7), 0.01, 40)
    )
    assert found.answer == "first bad: c; last good: b"


@pytest.mark.parametrize(("own", "contradicted"), [(None, False), (1.0, True), (1.07, False)])
def test_the_bad_end_is_seen_in_its_specs_own_way_too(tmp_path: Path, own: float | None, contradicted: bool) -> None:
    rounds = _Rounds([1, 1, 1, 1, 1.07, 1.07, 1.07], 0.01)
    rounds.own = own
    found, done = Bisects(tmp_path).run(RoundsJudge(rounds, count_max_comparisons(7), 0.01, 40))
    assert (found.answer, done[0]) == ("first bad: e; last good: d", ExitCode.OK)
    text = found.results["g"].text
    assert ("; run as in its spec " in text) == (own is not None)
    assert text.endswith(", which contradicts this") == contradicted


def test_times_that_stay_in_the_middle_end_the_search_with_a_range(tmp_path: Path) -> None:
    bisects = Bisects(tmp_path)
    middle = math.sqrt(1.2)
    rounds = _Rounds([1, middle, middle, middle, middle, middle, 1.2], 0.02)
    found, done = bisects.run(RoundsJudge(rounds, count_max_comparisons(7), 0.01, 20))
    assert done == (ExitCode.INCONCLUSIVE, "")
    # The ends' comparison, and not one more than the confidence was shared out over.
    assert len(found.results) == 1 + count_max_comparisons(7)
    assert "not judged" in found.answer or "could not be judged" in found.answer
    assert all("contains the middle" in found.results[label].reason for label in found.results if label not in "ag")


def test_times_of_a_session_that_is_void_decide_nothing(tmp_path: Path) -> None:
    rounds = _Rounds([1, 1, 1, 1, 1.07, 1.07, 1.07], 0.01)
    rounds.void = "d"
    found, done = Bisects(tmp_path).run(RoundsJudge(rounds, count_max_comparisons(7), 0.01, 40))
    assert (done[0], found.results["d"].bad) == (ExitCode.INCONCLUSIVE, None)
    assert found.results["d"].reason == "void: the good end differs from itself"
    (tmp_path / "end").mkdir()
    rounds.void = "g"
    found, done = Bisects(tmp_path / "end").run(RoundsJudge(rounds, count_max_comparisons(7), 0.01, 40))
    assert done == (ExitCode.FAILED, "void: the good end differs from itself")
    (tmp_path / "short").mkdir()
    short = _Rounds([1, 1, 1, 1.03, 1.07, 1.07, 1.07], 0.01, most=25)
    found, _ = Bisects(tmp_path / "short").run(RoundsJudge(short, count_max_comparisons(7), 0.01, 40))
    assert found.results["d"].reason.endswith("; the time is up")


def test_ends_that_take_the_same_time_leave_nothing_to_look_for(tmp_path: Path) -> None:
    bisects = Bisects(tmp_path)
    found, done = bisects.run(RoundsJudge(_Rounds([1] * 7, 0.01), count_max_comparisons(7), 0.01, 20))
    assert done[0] is ExitCode.FAILED
    assert "the ends do not clearly differ" in found.answer
    (tmp_path / "none").mkdir()
    _, done = Bisects(tmp_path / "none").run(RoundsJudge(_Rounds([1] * 7, 0.01, most=0), 3, 0.01, 20))
    assert done == (ExitCode.ERROR, "the bad end g cannot be judged: no rounds could be measured")


def test_a_record_that_was_cut_short_is_reported_as_far_as_it_goes(tmp_path: Path) -> None:
    bisects = Bisects(tmp_path)
    bisects.run(bisects.exact([100, 100, 100, 130, 130, 130, 130]))
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        (tmp_path / JOURNAL).write_bytes(b"".join(lines[:count]) + b'{"event":"res')
        found = read_bisect_outcome(tmp_path)
        assert any("crash cut short" in remark for remark in found.remarks)
        assert (found.end is None) == (count < len(lines))
        for report in (printed(found), *(make() for make in write_reports(tmp_path).files.values())):
            assert report.endswith("\n")
        if count < len(lines):
            assert any("--resume continues" in remark for remark in found.remarks)
            assert found.exit_code is ExitCode.ERROR
    for content, says in (
        (b"", "first line, which describes the command, is missing"),
        (b'{"event":"opening","kind":"bisect"}\n', "opening event cannot be read: confidence: is missing"),
    ):
        (tmp_path / JOURNAL).write_bytes(content)
        with pytest.raises(GauntletError, match=says):
            read_bisect_outcome(tmp_path)


def test_text_of_tools_cannot_break_the_reports(tmp_path: Path) -> None:
    bisects = Bisects(tmp_path)

    def run(candidate: Candidate) -> CandidateResult:
        if candidate.label in "ag":
            return CandidateResult(value=float("ag".index(candidate.label)), text="x|y`z\n<b>")
        return CandidateResult(reason="\x1b[31m| a\r\nb | `c` <script>", toolchain={"compiler_commit": "../.."})

    found, _ = bisects.run(ExactJudge("size", run))
    text = (tmp_path / "bisect.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 7
    assert "<script>" not in text
    page = (tmp_path / "bisect.html").read_text()
    assert page.count("<script") == 1, "what copies commands"
    assert "\x1b" not in printed(found) + text + page
    assert found.link == ""


# ---- The task, on builds that are IREE's own tools behind scripts.


class Builds(Project):
    """A project, and builds next to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.builds = folder.parent / "builds"

    def build(self, name: str, compile_flags: str = "", **before: str) -> str:
        """A build of its own, whose compiler adds flags, and whose tools do something before; how `--iree` names it."""
        before["iree_compile"] = f'{before.get("iree_compile", "")}\nset -- "$@" {compile_flags}'
        return write_build_tree(self.builds / name, name=name, **before)

    def row(self, change: int, flags: str, count: int = 7) -> list[str]:
        """Builds in a row, from the one at `change` on with these flags."""
        return [self.build(f"b{index}", flags if index >= change else "") for index in range(count)]

    def bisect(self, row: Sequence[str], *words: str) -> CommandResult:
        return self.gauntlet(*self.words(row, *words))

    @staticmethod
    def words(row: Sequence[str], *words: str) -> list[str]:
        among = [word for iree in row[1:-1] for word in ("--among", iree)]
        return ["bisect", "--good", row[0], "--bad", row[-1], *among, "--model", "toy", "--submodel", "abs", *words]

    @property
    def found(self) -> dict[str, Any]:
        reports = [path.parent for path in (self.folder / "runs").glob("*/bisect.json")]
        newest = max(reports, key=lambda path: (path / "bisect.json").stat().st_mtime_ns)
        return dict(json.loads((newest / "bisect.json").read_text()))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Builds]:
    project = Builds(tmp_path / "project")
    yield project
    project.close()


_SMALLER = "--iree-llvmcpu-debug-symbols=false"


@pytest.mark.iree
def test_a_planted_change_of_size_is_found(project: Builds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    done = project.bisect(project.row(3, _SMALLER), "--metric", "size")
    assert done.code == 0, done.text
    assert "first bad: b3; last good: b2 · exact · 4 of 7 tried" in done.out
    assert "bisecting 5 candidates, about 3 steps left" in done.out
    assert "verdict" not in done.out, "a candidate's own console"
    found = project.found
    assert (found["exit_code"], found["first_new"], found["last_old"], found["between"]) == (0, "b3", "b2", [])
    sizes = {item["label"]: item["value"] for item in found["candidates"] if item["tried"]}
    assert sizes["b0"] == sizes["b2"] > sizes["b3"] == sizes["b6"]
    assert found["candidates"][0]["toolchain"]["compiler_commit"] == find_installed().compiler.commit
    assert found["commits"] is None, "all are of one commit"
    # Only its own report goes into a CI job's summary.
    assert (tmp_path / "summary.md").read_text() == next((project.folder / "runs").glob("*/bisect.md")).read_text()
    # The same again from the record, without running anything.
    again = project.gauntlet("bisect", "--resume")
    assert again.code == 0, again.text
    assert "bisecting" not in again.out
    assert "first bad: b3; last good: b2 · exact · 4 of 7 tried" in again.out
    reported = project.gauntlet("report", "latest")
    assert (reported.code, reported.out in again.out) == (0, True), reported.text
    assert "bisect --resume" not in next((project.folder / "runs").glob("*/bisect.md")).read_text(), "what began it"
    other = project.gauntlet("bisect", "--resume", "--metric", "error")
    assert (other.code, "--metric error: runs" in other.err) == (2, True)


@pytest.mark.iree
def test_a_change_of_what_a_tuning_spec_matches_is_found(project: Builds) -> None:
    (project.regressions / "abs.mlir").write_text(MATMULS)
    (project.folder / "tuning.mlir").write_text(write_cpu_spec("linalg.matmul"))
    variant = f"tuned={shlex.quote(f'--iree-codegen-tuning-spec-path={project.folder}/tuning.mlir')}"
    # Then the program has no operation of that name, and the candidates fail.
    row = project.row(2, "--iree-opt-generalize-matmul", count=3)
    done = project.bisect(row, "--metric", "tuned-dispatches", "--variant", variant)
    assert done.code == 0, done.text
    assert [item["value"] for item in project.found["candidates"]] == [1, 1, 0]


@pytest.mark.iree
def test_broken_builds_are_stepped_around_and_told(project: Builds) -> None:
    row = [
        project.build("b0"),
        project.build("b1", iree_compile='echo "x.mlir:1:1: error: no" >&2; exit 1'),
        project.build("b2"),
        project.build("b3", "--no-such-flag"),
        f"build:{project.builds}/nowhere",
        project.build("b5", _SMALLER),
    ]
    done = project.bisect(row, "--metric", "size")
    assert done.code == 4, done.text
    assert "between b2 (good) and b5 (bad); could not be judged: b3, nowhere" in done.out
    assert "nowhere is not a folder" in done.out
    # What does not compile is bad by another metric.
    done = project.bisect([row[0], row[2], row[1]], "--metric", "compiles")
    assert done.code == 0, done.text
    assert "first bad: b1; last good: b2" in done.out
    assert "fails: compile: " in done.out


@pytest.mark.iree
def test_a_case_of_an_operator_suite_needs_no_fetch(project: Builds) -> None:
    OperatorSuite(project).add_unary("abs")
    row = [project.build("good"), project.build("bad", iree_compile='echo "x.mlir:1:1: error: no" >&2; exit 1')]
    words = ("--good", row[0], "--bad", row[1], "--among", row[0], "--among", row[1], "--metric", "compiles")
    done = project.gauntlet("bisect", *words, "--spec-dir", "ops", "--submodel", "abs")
    assert done.code == 0, done.text
    assert "first bad: bad; last good: good" in done.out


@pytest.mark.iree
def test_a_planted_crash_is_found(project: Builds) -> None:
    fill_module_cache(project)
    crashes = ["", "", "kill -SEGV $$"]
    row = [write_build_tree(project.builds / f"b{index}", iree_run_module=what) for index, what in enumerate(crashes)]
    done = project.bisect(row, "--metric", "runs")
    assert done.code == 0, done.text
    assert "first bad: b2; last good: b1" in done.out
    assert "SIGSEGV" in done.out
    # By its error a crash says nothing.
    done = project.bisect(row, "--metric", "error")
    assert done.code == 3, done.text
    assert "the bad end b2 cannot be judged: threshold: " in done.out
    same = project.bisect([row[0], row[2], row[1]], "--metric", "error")
    assert same.code == 1, same.text
    assert "nothing to search for: both ends give the same value (max error 0)" in same.out


@pytest.mark.iree
def test_killed_or_interrupted_it_goes_on_where_it_was(project: Builds, tmp_path: Path) -> None:
    # The second one never ends by itself.
    gate = tmp_path / "closed"
    gate.touch()
    hangs = f'[ -e "{gate}" ] && {HANG}'
    row = [
        project.build(f"b{index}", _SMALLER if index == 2 else "", iree_compile=hangs if index == 1 else "")
        for index in range(3)
    ]

    def record() -> Path | None:
        return next((project.folder / "runs").glob(f"*/{JOURNAL}"), None)

    def judged() -> list[str]:
        path = record()
        lines = path.read_text().splitlines() if path else []
        return [json.loads(line)["step"] for line in lines if '"event":"result"' in line]

    process = project.start(*project.words(row, "--metric", "size"))
    wait_until(lambda: len(judged()) == 2)
    wait_until(lambda: list((project.folder / "runs").glob("*/b1/journal.jsonl")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process = project.start("bisect", "--resume")
    wait_until(lambda: list((project.folder / "runs").glob("*/b1.2/journal.jsonl")))
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_SECONDS) == 130
    path = record()
    assert path is not None
    assert read_bisect_outcome(path.parent).end is not None
    assert "it was interrupted" in (path.parent / "bisect.md").read_text()
    gate.unlink()
    done = project.gauntlet("bisect", "--resume")
    assert done.code == 0, done.text
    assert "first bad: b2; last good: b1" in done.out
    assert len(judged()) == len(set(judged()))
    assert judged() == ["b0", "b2", "b1"]


@pytest.mark.iree
def test_a_slowdown_is_found_by_rounds(project: Builds) -> None:
    """By synthetic times; `test_bisect_measured.py` measures real ones."""
    fill_module_cache(project)
    row = [SyntheticBuild(project.builds / f"b{index}", 1.5 if index >= 2 else 1.0).iree for index in range(4)]
    done = project.bisect(row, "--metric", "time", "--repetitions", "2", "--disturbed", "count")
    assert done.code == 0, done.text
    assert "first bad: b2; last good: b1 · 99 % confidence · 4 of 4 tried" in done.out
    found = project.found
    values = {item["label"]: item for item in found["candidates"] if item["tried"]}
    assert 1 < values["b3"]["low"] < values["b3"]["value"] < values["b3"]["high"]
    assert values["b3"]["low"] < 1.5 < values["b3"]["high"]
    assert values["b1"]["high"] < math.sqrt(1.5) < values["b2"]["low"]
    assert values["b1"]["low"] < 1 < values["b1"]["high"]
    assert found["confidence"] == 0.99
    assert (values["b1"]["bad"], values["b2"]["bad"]) == (False, True)
    # Again: nothing is measured twice.
    again = project.gauntlet("bisect", "--resume")
    assert (again.code, "bisecting" in again.out) == (0, False), again.text


_ENDS = ["--good", "3.9.0", "--bad", "3.12.0"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--bad", "3.9.0"], 2, "bisect needs --good"),
        (_ENDS, 2, "bisect needs --metric"),
        ([*_ENDS, "--metric", "speed"], 2, "--metric speed: unknown metric"),
        ([*_ENDS, "--metric", "size"], 2, "but 2 are selected: toy/abs@cpu, toy/neg@cpu"),
        ([*_ENDS, "--metric", "size", "--model", "none"], 5, "none"),
        ([*_ENDS, "--metric", "size", "--budget", "3"], 2, "--budget is for --metric time and compile-time"),
        ([*_ENDS, "--metric", "time", "--budget", "-3"], 2, "--budget -3: expected minutes above 0"),
        ([*_ENDS, "--metric", "time", "--min-time", "-1"], 2, "--min-time -1"),
        ([*_ENDS, "--metric", "time", "--disturbed", "ignore"], 2, "--disturbed ignore: unknown"),
        ([*_ENDS, "--metric", "time", "--cpus", "9999"], 2, "there is no CPU 9999"),
        (["--good", "3.9", "--bad", "3.9.0", "--metric", "size", "--submodel", "abs"], 2, "are both 3.9.0"),
        (["--good", "build:x", "--bad", "3.9.0", "--metric", "size", "--submodel", "abs"], 2, "is not a version"),
        (
            [*_ENDS, "--metric", "size", "--submodel", "abs", "--among", "3.10.0", "--nightlies"],
            2,
            "exclude each other",
        ),
        ([*_ENDS, "--metric", "size", "--iree-compiler", "path", "--iree-runtime", "path"], 2, "nothing to search"),
        ([*_ENDS, "--metric", "size", "--submodel", "abs", "--run-dir", "job@2"], 2, "misread a path"),
        (["--resume"], 2, "no earlier `bisect`"),
    ],
)
def test_wrong_input(project: Builds, words: list[str], code: int, says: str) -> None:
    project.add("neg", "arith.negf %a : tensor<4xf32>")
    done = project.gauntlet("bisect", "--offline", *words)
    assert (done.code, says in done.text) == (code, True), done.text
    assert not list((project.folder / "runs").glob("*")) if (project.folder / "runs").exists() else True


@pytest.mark.iree
def test_what_cannot_be_fetched_is_an_error_of_its_own(project: Builds) -> None:
    project.regression(inputs=[{"source": "http://127.0.0.1:9/x.npy"}])
    done = project.bisect(project.row(1, _SMALLER, 3), "--metric", "size", "--offline")
    assert done.code == 3, done.text
    assert "not everything that the model needs could be fetched" in done.err
    assert project.found["exit_code"] == 3


@pytest.mark.iree
@pytest.mark.models
def test_a_model_that_older_releases_do_not_compile(tmp_path: Path) -> None:
    # Three releases: an environment takes some 600 MB.
    words = ["--good", "3.7.0", "--bad", "3.5.0", "--model", "rapidocr", "--submodel", "rec", "--metric", "compiles"]
    done = subprocess.run(
        gauntlet_argv(["bisect", *words, "--run-dir", str(tmp_path / "found")], {}),
        cwd=ROOT,
        env={**os.environ, "IREE_GAUNTLET_CACHE": str(tmp_path / "cache"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "last bad: 3" in done.stdout
