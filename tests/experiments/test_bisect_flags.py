"""`bisect --flags`: the flags of a variant that make a difference, found with few tries."""

from __future__ import annotations

import itertools
import json
import signal
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.dialects.load import CaseSet
from iree_gauntlet.engine.varying import split_variant
from iree_gauntlet.engine.workspace import Selection
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.experiments.bisect import BisectSearch, BlockSource, RoundsJudge
from iree_gauntlet.experiments.bisect_question import ExactJudge, Question, make_place
from iree_gauntlet.experiments.flag_sets import FlagSets
from iree_gauntlet.experiments.run import RunSetup
from iree_gauntlet.journal_events import EndEvent
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.measuring.statistics.bisection import count_max_flag_comparisons
from iree_gauntlet.records.bisect_outcome import BisectOutcome, CandidateResult, read_bisect_outcome
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.requests import BisectRequest, RunRequest
from iree_gauntlet.toolchains.flags import FlagSet
from iree_gauntlet.variants import FlagVariant
from tests.support.faulty_iree import SyntheticBuild, write_build_tree
from tests.support.hanging import HANG
from tests.support.processes import wait_until
from tests.support.toy_project import FLAGS, Project

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from iree_gauntlet.toolchains.candidates import Candidate
    from tests.support.command_line import CommandResult

_FLAGS = tuple(f"--iree-f{number}" for number in range(1, 9))


class Searches:
    """Searches among eight flags without any IREE, recorded as the task records them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        flags = tuple(FlagVariant(f"v-{number}", (flag,)) for number, flag in enumerate(_FLAGS, start=1))
        self.sets = FlagSets("installed", FlagVariant("v", _FLAGS), flags)
        self.tried: list[frozenset[int]] = []

    def judge(self, measure: Callable[[frozenset[int]], float | None], metric: str = "size") -> ExactJudge:
        """A judge by the value of a set of flags; None for a set that cannot be judged."""

        def run(candidate: Candidate) -> CandidateResult:
            numbers = self.parse(candidate)
            self.tried.append(numbers)
            value = measure(numbers)
            reason = "" if value is not None else "it crashed"
            return CandidateResult(value=value, text=f"{value} bytes", reason=reason, folder=candidate.label)

        return ExactJudge(metric, run, in_any_order=True)

    def parse(self, candidate: Candidate) -> frozenset[int]:
        """The numbers of a candidate's flags, from its side."""
        names = candidate.iree.split("+")[1:]
        return frozenset(range(1, 9)) if names == ["v"] else frozenset(int(name.removeprefix("v-")) for name in names)

    def run(
        self, judge: ExactJudge | RoundsJudge, earlier: dict[str, CandidateResult] | None = None
    ) -> tuple[BisectOutcome, ExitCode]:
        setup = RunSetup(RunRequest(), Selection("custom", (), (), (), CaseSet((), (), ())), ())
        row = self.sets.make_row((), 8)
        place = make_place(RunRequest())
        question = Question("size", "toy/abs@cpu", row, True, BisectRequest(), setup, place, self.sets)
        with EventLog(self.folder / JOURNAL, lambda: datetime.now(UTC)) as log:
            log.write("opening", replace(question.opening(), command="bisect", cwd="/"))
            search = BisectSearch(question, judge, log, lambda _: None, dict(earlier or {}), try_all=False)
            code, problem = search.search()
            log.write("end", EndEvent(exit_code=code, problem=problem, seconds=1.0))
        return read_bisect_outcome(self.folder), code


def _require_all(needed: Collection[int]) -> Callable[[frozenset[int]], float]:
    return lambda numbers: 130.0 if numbers >= {*needed} else 100.0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_least_set_is_found_wherever_it_is(tmp_path: Path, count: int) -> None:
    for needed in itertools.combinations(range(1, 9), count):
        folder = tmp_path / "".join(map(str, needed))
        folder.mkdir()
        searches = Searches(folder)
        outcome, code = searches.run(searches.judge(_require_all(needed)))
        assert code is ExitCode.OK
        assert outcome.found is not None
        assert outcome.found.flags == tuple(_FLAGS[number - 1] for number in needed)
        assert outcome.found.is_least
        assert len(searches.tried) == len({*searches.tried})
        # Both ends, a search and a try for each flag, and a try without each but the first one.
        assert len(searches.tried) <= 2 + 4 * count + count - 1


def test_answers(tmp_path: Path) -> None:
    for needed, answer in (
        ((3,), "--iree-f3 alone makes the difference"),
        ((3, 8), "--iree-f3 and --iree-f8 together make the difference; none of them can be left out"),
        ((1, 2, 3), "--iree-f1, --iree-f2 and --iree-f3 together make the difference; none of them can be left out"),
    ):
        folder = tmp_path / str(len(needed))
        folder.mkdir()
        searches = Searches(folder)
        outcome, _ = searches.run(searches.judge(_require_all(needed)))
        assert outcome.answer == answer
        write_reports(folder)
        assert answer in (folder / "bisect.md").read_text().splitlines()[2]
        assert answer in (folder / "bisect.html").read_text()
        document = json.loads((folder / "bisect.json").read_text())
        assert (document["answer"], document["found_is_least"], document["variant"]) == (answer, True, "v")
        assert document["found"] == [_FLAGS[number - 1] for number in needed]
        assert document["flags"] == list(_FLAGS)
        assert {item["label"] for item in document["candidates"] if item["tried"]} == outcome.results.keys()


def test_a_value_between_those_of_the_ends_is_most_of_the_difference(tmp_path: Path) -> None:
    searches = Searches(tmp_path)
    outcome, code = searches.run(searches.judge(lambda numbers: 100 + 30 * (4 in numbers) + 5 * (6 in numbers)))
    assert (outcome.answer, code) == ("--iree-f4 alone makes most of the difference", ExitCode.OK)


def test_a_value_beyond_the_bad_end_is_more_than_the_difference(tmp_path: Path) -> None:
    searches = Searches(tmp_path)
    outcome, code = searches.run(searches.judge(lambda numbers: 100 + 90 * (4 in numbers) - 60 * (6 in numbers)))
    assert (outcome.answer, code) == ("--iree-f4 alone makes more than the whole difference", ExitCode.OK)


def test_a_flag_may_mend_what_fails_without_it(tmp_path: Path) -> None:
    searches = Searches(tmp_path)
    outcome, code = searches.run(searches.judge(lambda numbers: float(5 in numbers), "compiles"))
    assert (outcome.answer, code) == ("--iree-f5 alone makes the difference", ExitCode.OK)


def test_what_cannot_be_judged_leaves_a_set_that_may_be_too_large(tmp_path: Path) -> None:
    searches = Searches(tmp_path)
    broken = searches.judge(lambda numbers: None if 3 in numbers and len(numbers) < 5 else _require_all([3])(numbers))
    outcome, code = searches.run(broken)
    assert code is ExitCode.INCONCLUSIVE
    assert outcome.found is not None
    assert _FLAGS[2] in outcome.found.flags
    assert not outcome.found.is_least
    assert outcome.answer.endswith("together make the difference; not all smaller sets could be judged")
    assert outcome.exit_code is ExitCode.INCONCLUSIVE


def test_flags_in_a_range_that_cannot_be_judged_are_told_apart_one_by_one(tmp_path: Path) -> None:
    searches = Searches(tmp_path)
    # No set that ends with 4, 5 or 6 can be judged.
    broken = searches.judge(lambda numbers: None if max(numbers, default=0) in (4, 5, 6) else 100 + (5 in numbers))
    outcome, code = searches.run(broken)
    assert (outcome.answer, code) == (
        "--iree-f5 and --iree-f7 together make the difference; not all smaller sets could be judged",
        ExitCode.INCONCLUSIVE,
    )


def test_a_flag_that_undoes_another_one(tmp_path: Path) -> None:
    """2 makes it worse, 5 undoes that, and 7 makes it worse again."""
    searches = Searches(tmp_path)
    bad = searches.judge(lambda numbers: 130 if 7 in numbers or (2 in numbers and 5 not in numbers) else 100)
    outcome, code = searches.run(bad)
    assert code is ExitCode.OK
    assert outcome.answer in (f"{_FLAGS[6]} alone makes the difference", f"{_FLAGS[1]} alone makes the difference")


def test_ends_without_a_difference(tmp_path: Path) -> None:
    searches = Searches(tmp_path)
    outcome, code = searches.run(searches.judge(lambda _: 100.0))
    assert code is ExitCode.OK
    assert outcome.answer == "v has no effect on size: both ends give the same value (100.0 bytes)"
    write_reports(tmp_path)
    assert "the flags have no effect" in (tmp_path / "bisect.html").read_text()
    assert len(searches.tried) == 2


@pytest.mark.parametrize("count", range(13))
def test_a_search_goes_on_from_its_record(tmp_path: Path, count: int) -> None:
    """However many results there were, none is tried again, and the answer is the same."""
    searches = Searches(tmp_path)
    whole, _ = searches.run(searches.judge(_require_all((2, 3, 7))))
    known = dict(itertools.islice(whole.results.items(), count))
    searches.tried.clear()
    again, code = searches.run(searches.judge(_require_all((2, 3, 7))), known)
    assert (again.answer, code) == (whole.answer, ExitCode.OK)
    assert len(searches.tried) == len(whole.results) - len(known)


def test_a_record_that_was_cut_short_says_so(tmp_path: Path) -> None:
    searches = Searches(tmp_path)
    searches.run(searches.judge(_require_all((2, 7))))
    lines = (tmp_path / JOURNAL).read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        (tmp_path / JOURNAL).write_bytes(b"".join(lines[:count]))
        outcome = read_bisect_outcome(tmp_path)
        assert outcome.exit_code is ExitCode.ERROR
        assert outcome.answer.startswith(("the ends", "the flags that", "--iree-f2 and --iree-f7 together"))
        for make in write_reports(tmp_path).files.values():
            assert "--resume continues it" in make()


_KNOWN = FlagSet(
    frozenset({"iree-opt-level", "iree-opt-a", "iree-opt-b"}),
    frozenset({"iree-opt-level"}),
    frozenset({(name, "O0", "false") for name in ("iree-opt-a", "iree-opt-b")} | {("iree-opt-b", "O2", "true")}),
)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--x=1", "--y", "2", "--x=3"), ["--x=1 --x=3", "--y 2"]),
        (("--iree-opt-level=O1",), ["--iree-opt-a=false", "--iree-opt-b=false", "--iree-opt-level=O1"]),
        (("--iree-opt-level", "O3", "--x"), ["--iree-opt-a=false", "--iree-opt-b=true", "--iree-opt-level O3", "--x"]),
        # What the variant sets itself is not the level's.
        (("--iree-opt-b=false", "--iree-opt-level=O2"), ["--iree-opt-b=false", "--iree-opt-a=false"]),
        (("--iree-opt-level=O2", "--iree-part-opt-level=O0"), ["--iree-opt-level=O2", "--iree-part-opt-level=O0"]),
        (("--iree-opt-level=Os",), ["--iree-opt-level=Os"]),
    ],
)
def test_the_flags_of_a_variant(flags: tuple[str, ...], parts: list[str]) -> None:
    variant = FlagVariant("v", flags, ("--z", "--w"), ("--run=1",), "file:///t.mlir", ("cpu",))
    split = split_variant(variant, CaseSet((), (), ()), _KNOWN)
    changes = [part.changes for part in split]
    assert changes[: len(parts)] == parts
    others = ["removing --z", "removing --w", "--run=1", "--iree-codegen-tuning-spec-path=file:///t.mlir"]
    assert changes[-4:] == others
    assert [part.name for part in split] == [f"v-{number}" for number in range(1, len(split) + 1)]
    assert {part.targets for part in split} == {("cpu",)}


class _Times(BlockSource):
    """No times: each set of flags has the module of one of the ends."""

    def __init__(self, searches: Searches) -> None:
        self._searches = searches

    def prepare(self, candidate: Candidate) -> CandidateResult:
        return CandidateResult(folder=candidate.label)

    def find_twin(self, candidate: Candidate) -> str:
        """Only flag 7 changes the module."""
        known = {label for label in ("none", "all") if label != candidate.label}
        numbers = self._searches.parse(candidate)
        return next(iter(known & {"all" if 7 in numbers else "none"}), "")


def test_sets_with_the_module_of_another_one_are_not_measured(tmp_path: Path) -> None:
    searches = Searches(tmp_path)
    judge = RoundsJudge(_Times(searches), count_max_flag_comparisons(8), 0.01, 40)
    bad = CandidateResult(bad=True, value=1.5, text="1.5 × the good end's time", low=1.4, high=1.6)
    judge._results["all"] = bad
    judge.start(CandidateResult(bad=False, value=1.0, text="1"), bad)
    outcome, code = searches.run(judge, {"all": bad})
    assert (outcome.answer, code) == (f"{_FLAGS[6]} alone makes the difference", ExitCode.OK)
    assert outcome.results["1-4"].text == "1, measured with none: the same module"
    assert outcome.results["7"].text.endswith("time, measured with all: the same module")


# ---- The task.

_INPUT = "4x4xf32=0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1.1 1.2 1.3 1.4 1.5 1.6 1.7"
_OUTPUT = "4x4xf32=0.94 1.07 1.17 1.27 2.1 2.43 2.69 2.95 3.54 4.11 4.56 5.01 4.71 5.49 6.11 6.73"
_MATMUL = """func.func @mm(%a: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x4xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x4xf32>) -> tensor<4x4xf32>
  %product = linalg.matmul ins(%a, %a : tensor<4x4xf32>, tensor<4x4xf32>) outs(%zeros : tensor<4x4xf32>)
      -> tensor<4x4xf32>
  return %product : tensor<4x4xf32>
}
"""
_DEMOTE = "--iree-global-opt-demote-contraction-inputs-operations=matmul"
_BF16 = "--iree-global-opt-demote-contraction-inputs-type=bf16"
_SETTINGS = f"""
[variants.five]
compiler_flags = [
  "--iree-opt-const-eval=true",
  "--iree-opt-const-expr-hoisting=true",
  "{_BF16}",
  "{_DEMOTE}",
  "--iree-opt-numeric-precision-reduction=false",
]

[variants.harmless]
compiler_flags = ["--iree-opt-const-eval=true", "--iree-opt-const-expr-hoisting=true"]

[variants.one]
compiler_flags = ["--iree-opt-const-eval=true"]

[variants.elsewhere]
compiler_flags = ["--iree-opt-const-eval=true", "--iree-opt-level=O3"]
targets = ["rocm"]
"""


@pytest.fixture
def project(shared_project: Project) -> Project:
    project = shared_project
    project.reset()
    project.add("mm")
    (project.regressions / "mm.mlir").write_text(_MATMUL)
    (project.folder / "gauntlet.toml").write_text(_SETTINGS)
    project.benchmark("mm", inputs=["4x4xf32"])
    _tolerate(project, 1e-5)
    return project


def _tolerate(project: Project, tolerance: float) -> None:
    project.regression(
        "mm",
        inputs=[{"value": _INPUT}],
        outputs=[{"value": _OUTPUT}],
        threshold_args=[f"--expected_f32_threshold={tolerance}"],
    )


def _bisect(project: Project, variant: str, metric: str, *words: str, **tools: str) -> CommandResult:
    selection = ("--model", "toy", "--submodel", "mm", "--run-dir", "found")
    return project.gauntlet("bisect", "--flags", variant, "--metric", metric, *selection, *words, **tools)


def _read(project: Project) -> Any:
    return json.loads((project.folder / "found" / "bisect.json").read_text())


@pytest.mark.iree
def test_one_of_five_flags_makes_a_model_wrong(project: Project) -> None:
    project.forget_modules()
    tools = project.write_logging_tools()
    done = _bisect(project, "five", "runs", **tools)
    assert done.code == 0, done.text
    assert f"{_DEMOTE} alone makes the difference · exact · 5 sets of 5 flags tried" in done.out
    assert "  4: " + _DEMOTE in done.out
    assert project.calls.count("compile") == 5
    document = _read(project)
    tried = {item["label"]: item["text"].partition(":")[0] for item in document["candidates"] if item["tried"]}
    assert tried == {"none": "passes", "all": "fails", "1-3": "passes", "1-4": "fails", "4": "fails"}
    # The modules are known now.
    again = project.gauntlet("bisect", "--flags", "five", "--metric", "dispatches", "--submodel", "mm", **tools)
    assert again.code == 0, again.text
    assert f"{_DEMOTE} alone makes the difference" in again.out
    assert project.calls.count("compile") == 5


@pytest.mark.iree
@pytest.mark.stress
def test_two_flags_make_a_model_wrong_together(project: Project) -> None:
    """Demoted to f16 the numbers are good enough, demoted to bf16 they are not; the type alone demotes nothing."""
    _tolerate(project, 2e-3)
    done = _bisect(project, "five", "runs")
    assert done.code == 0, done.text
    answer = f"{_BF16} and {_DEMOTE} together make the difference; none of them can be left out"
    assert f"{answer} · exact · 8 sets of 5 flags tried" in done.out
    # The same again from the record, without running anything, whatever the settings are now.
    (project.folder / "gauntlet.toml").write_text("")
    again = project.gauntlet("bisect", "--resume", "--run-dir", "found")
    assert (again.code, answer in again.out, "bisecting" in again.out) == (0, True, False), again.text
    other = project.gauntlet("bisect", "--resume", "--run-dir", "found", "--flags", "harmless")
    assert (other.code, "--flags harmless: " in other.err) == (2, True), other.text
    other = project.gauntlet("bisect", "--resume", "--run-dir", "found", "--iree", "path")
    assert (other.code, "--iree path: found was started without it" in other.err) == (2, True), other.text


@pytest.mark.iree
def test_a_removal_counts_as_a_flag(project: Project) -> None:
    (project.folder / "gauntlet.toml").write_text(
        '[variants.plain]\ncompiler_flags = ["--iree-opt-const-eval=true"]\n'
        'remove_compiler_flags = ["--iree-llvmcpu-target-cpu"]\n'
    )
    done = _bisect(project, "plain", "size")
    assert done.code == 0, done.text
    assert "removing --iree-llvmcpu-target-cpu alone makes the difference" in done.out


@pytest.mark.iree
@pytest.mark.stress
def test_a_level_is_searched_by_the_flags_that_it_sets(project: Project) -> None:
    """A concatenation along the inner dimension: from O1 on it is transposed to the outer one."""
    (project.regressions / "mm.mlir").write_text(
        "func.func @mm(%a: tensor<4x4xf32>) -> tensor<4x8xf32> {\n"
        "  %0 = math.absf %a : tensor<4x4xf32>\n"
        "  %1 = math.exp %a : tensor<4x4xf32>\n"
        "  %2 = tensor.concat dim(1) %0, %1 : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x8xf32>\n"
        "  return %2 : tensor<4x8xf32>\n}\n"
    )
    done = _bisect(project, "O3=--iree-opt-level=O3", "size")
    assert done.code == 0, done.text
    document = _read(project)
    assert "--iree-opt-outer-dim-concat=true" in document["flags"]
    assert document["flags"][-1] == "--iree-opt-level=O3"
    assert document["answer"] == "--iree-opt-outer-dim-concat=true alone makes the difference"


@pytest.mark.iree
def test_a_level_leaves_alone_what_a_spec_sets(project: Project) -> None:
    project.regression("mm", inputs=[{"value": _INPUT}], compiler_flags=[*FLAGS, "--iree-opt-outer-dim-concat=false"])
    done = _bisect(project, "O1=--iree-opt-level=O1", "dispatches")
    assert done.code == 0, done.text
    assert "(1 dispatch)" in done.out
    assert "--iree-opt-strip-assertions=true" in _read(project)["flags"]
    assert "outer-dim-concat" not in done.out


@pytest.mark.iree
def test_flags_without_effect_leave_nothing_to_search(project: Project) -> None:
    done = _bisect(project, "harmless", "size")
    assert done.code == 0, done.text
    assert "harmless has no effect on size: both ends give the same value" in done.out
    assert "exit code 0: the flags have no effect" in done.out
    (project.folder / "found").rename(project.folder / "sizes")
    timed = _bisect(project, "harmless", "time")
    assert timed.code == 0, timed.text
    assert "harmless has no effect on time: both ends run the same module in the same way" in timed.out


@pytest.mark.stress
@pytest.mark.iree
def test_times_of_flags_are_judged_by_rounds(project: Project, tmp_path: Path) -> None:
    """By synthetic times: those of a process with the flag of `mixed` are longer."""
    (project.folder / "gauntlet.toml").write_text(
        '[variants.mixed]\ncompiler_flags = ["--iree-opt-const-eval=true", "--iree-opt-const-expr-hoisting=true"]\n'
        'run_flags = ["--task_topology_max_group_count=1"]\n'
    )
    build = SyntheticBuild(tmp_path / "build").set_times_for("--task_topology_max_group_count=1", 1.5)
    done = _bisect(
        project, "mixed", "time", "--iree", build.iree, "--repetitions", "2", "--disturbed", "count", "--cpus", "0"
    )
    assert done.code == 0, done.text
    assert "--task_topology_max_group_count=1 alone makes the difference · 99 % confidence" in done.out
    assert "1, measured with none: the same module" in done.out
    assert "measured with all: the same module" in done.out


@pytest.mark.stress
@pytest.mark.iree
def test_killed_it_goes_on_where_it_was(project: Project, tmp_path: Path) -> None:
    gate = tmp_path / "closed"
    gate.touch()
    # Without the last flag the compiler hangs.
    hangs = f'case "$*" in *{_DEMOTE}*|*version*|*help*) ;; *const-eval*) [ -e "{gate}" ] && {HANG} ;; esac'
    iree = write_build_tree(tmp_path / "build", iree_compile=hangs)
    words = ("--submodel", "mm", "--run-dir", "found", "--iree", iree)

    def judged() -> list[str]:
        path = project.folder / "found" / JOURNAL
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["step"] for line in lines if '"event":"result"' in line]

    process = project.start("bisect", "--flags", "five", "--metric", "dispatches", *words)
    wait_until(lambda: list(project.folder.glob("found/1-3/journal.jsonl")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert judged() == ["none", "all"]
    gate.unlink()
    done = project.gauntlet("bisect", "--resume", "--run-dir", "found")
    assert done.code == 0, done.text
    assert f"{_DEMOTE} alone makes the difference" in done.out
    assert judged() == ["none", "all", "1-3", "1-4", "4"]


@pytest.mark.iree
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--flags", "five"), "bisect needs --metric"),
        (("--flags", "fife", "--metric", "size"), "there is no variant 'fife'; did you mean 'five'?"),
        (("--flags", "one", "--metric", "size"), "variant one has only one flag, --iree-opt-const-eval=true"),
        (("--flags", "elsewhere", "--metric", "size"), "variant elsewhere is only for rocm"),
        (("--flags", "x=--iree-a=1 --iree-b", "--metric", "size"), "variant x: iree-compile does not know --iree-a"),
        (("--flags", "five", "--metric", "speed"), "--metric speed: unknown metric"),
        *(
            (("--flags", "five", "--metric", "size", *words), f"--flags and {words[0]} exclude each other")
            for words in (
                ("--good", "3.12.0"),
                ("--bad", "3.12.0"),
                ("--bundle", "x"),
                ("--source", "."),
                ("--packages",),
                ("--into", "."),
                ("--among", "path"),
                ("--nightlies",),
                ("--every",),
            )
        ),
        (("--iree", "path", "--metric", "size"), "bisect has no --iree: name them as --good A --bad B"),
    ],
)
def test_wrong_input(project: Project, words: tuple[str, ...], says: str) -> None:
    done = project.gauntlet("bisect", "--model", "toy", "--submodel", "mm", *words)
    assert (done.code, f"error: {says}" in done.err) == (2, True), done.text
    assert not (project.folder / "runs").exists()
