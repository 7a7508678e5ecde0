"""`qualify` as a user runs it: what a new IREE loses, named with its cause, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.experiments.qualify import _select
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.measuring.instructions.counters import Counts
from iree_gauntlet.records.bisect_outcome import select_chain
from iree_gauntlet.records.qualify_outcome import read_qualify_outcome
from iree_gauntlet.records.run_folder import list_folders
from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.requests import RunRequest, SelectionRequest
from tests.support.faulty_iree import SyntheticBuild, fill_module_cache, write_build_tree
from tests.support.journal_builder import JournalBuilder
from tests.support.matrix_builder import make_chain, make_release_run, write_qualification, write_record
from tests.support.page_samples import write_slower_comparison
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.requests import BisectRequest

# With modules of the old IREE, the new runtime crashes on one model; it computes another one wrongly.
_FAULTS = """case "$*" in
*/compat*/build-old-on-build-new/*/abs.cpu/*) kill -SEGV $$ ;;
*/wrong.cpu/*)
  for word; do shift; case $word in --input=*) word=--input=4xf32=9 ;; esac; set -- "$@" "$word"; done ;;
esac"""
# One model does not compile.
_BROKEN = 'case "$*" in *broken*) echo "error: planted" >&2; exit 1 ;; esac'
_RELEASES = ("3.12.0", "3.13.0")
_VARIANT_FLAG = "--iree-opt-level=O0"
_LACKED_FLAG = "iree-llvmcpu-target-cpu"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    fill_module_cache(project)
    yield project
    project.close()


def _newest(project: Project) -> Path:
    return next(list_folders(project.folder / "runs", ExperimentKind.QUALIFY))


def _read(project: Project) -> Any:
    return json.loads((_newest(project) / "qualify.json").read_text())


@pytest.mark.iree
def test_each_loss_is_named_with_its_cause_and_followed(project: Project) -> None:
    project.add("wrong")
    old, new = (
        write_build_tree(project.folder / "old"),
        write_build_tree(project.folder / "new", iree_run_module=_FAULTS),
    )
    (project.folder / "gauntlet.toml").write_text("[history]\nadd = true\n")
    done = project.gauntlet("qualify", old, new, "--no-times", "--no-bundles")
    assert done.code == 1, done.text
    assert not (project.folder / "history").exists(), "its runs and its bisection's are parts of it"
    document = _read(project)
    wrong, crash = document["losses"]
    assert (wrong["kind"], wrong["chain"]) == ("wrong numbers", "toy/wrong@cpu")
    # It is measured again with both, and found again.
    assert wrong["since"] == f"first bad: {new}; last good: {old}"
    assert (crash["kind"], crash["chain"]) == ("crashes", "toy/abs@cpu")
    assert crash["text"].startswith("module of build:old, runtime of build:new: iree-run-module crashed with SIGSEGV")
    assert (document["gains"], document["changes"], document["unjudged"]) == ([], [], [])
    assert list(document["parts"]) == ["matrix", "compat", "compat-again", "bisect-runs-toy-wrong-cpu"]
    # There are texts to paste.
    page = (_newest(project) / "qualify.md").read_text()
    assert 'case = "toy/wrong"\nstage = "threshold"\nkind = "wrong numbers"' in page
    assert "toy/wrong@cpu: wrong numbers from build:old to build:new" in page


@pytest.mark.iree
def test_both_sides_have_the_flags_of_a_variant(project: Project) -> None:
    # Only with the variant's flag, the new compiler fails.
    fault = f'case "$*" in *{_VARIANT_FLAG}*) echo "error: planted" >&2; exit 1 ;; esac'
    old = write_build_tree(project.folder / "old")
    new = write_build_tree(project.folder / "new", iree_compile=fault)
    done = project.gauntlet("qualify", old, new, "--no-times", "--variant", f"O0={_VARIANT_FLAG}")
    assert done.code == 1, done.text
    document = _read(project)
    (loss,) = document["losses"]
    assert (loss["kind"], loss["chain"]) == ("newly failing", "toy/abs@cpu")
    assert loss["since"] == f"first bad: {new}; last good: {old}"
    assert "build:new+O0 against build:old+O0" in done.out
    # The failure is in a bundle, which the report and the text for an issue name.
    bundle = "matrix/build-new+O0/explain/toy/abs.cpu/bundle.tar.gz"
    assert loss["bundle"] == bundle
    assert (_newest(project) / bundle).is_file()
    assert list(document["parts"]) == ["matrix", "compat", "explain-toy-abs-cpu", "bisect-compiles-toy-abs-cpu"]
    assert (_newest(project) / "qualify.md").read_text().count(f"/{bundle}\n") == 1
    assert "Causes" in done.out


@pytest.mark.iree
@pytest.mark.parametrize("kept", [4, *(pytest.param(count, marks=pytest.mark.stress) for count in (1, 2, 3, 5, 6, 7))])
def test_killed_in_any_part_and_gone_on_with(project: Project, kept: int) -> None:
    # Without benchmarks, the part about times is left out.
    for path in project.benchmarks.glob("*.json"):
        path.unlink()
    old, new = (
        write_build_tree(project.folder / "old", name="old"),
        write_build_tree(project.folder / "new", name="new"),
    )
    assert project.gauntlet("qualify", old, new).code == 0
    folder = _newest(project)
    # As if it had been killed after so many lines, in the middle of the next one.
    lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
    part = json.loads(lines[kept - 1]).get("step", "")
    (folder / "journal.jsonl").write_text("".join(lines[:kept]) + lines[kept][:20])
    journal = folder / part / "journal.jsonl"
    if journal.is_file() and json.loads(lines[kept - 1])["event"] == "start" and part:
        inner = journal.read_text().splitlines(keepends=True)
        journal.write_text("".join(inner[: len(inner) // 2]))
    report = project.gauntlet("report", str(folder))
    assert report.code == 3, report.text
    assert f"to continue it: gauntlet qualify --resume --run-dir runs/{folder.name}" in report.out
    done = project.gauntlet("qualify", "--resume")
    assert done.code == 0, done.text
    assert [result["exit_code"] for result in _read(project)["parts"].values()] == [0, 0, 0]
    assert "left out: the selection has no benchmark to compare" in done.out
    assert "loses nothing against" in done.out


@pytest.mark.iree
@pytest.mark.stress
def test_killed_in_each_part_of_one_with_losses_and_gone_on_with(project: Project) -> None:
    project.add("broken")
    old = SyntheticBuild(project.folder / "old")
    new = SyntheticBuild(project.folder / "new", 1.5, iree_run_module=_FAULTS, iree_compile=_BROKEN)
    assert project.gauntlet("qualify", old.iree, new.iree, "--disturbed", "count").code == 1
    folder, before = _newest(project), _read(project)
    assert [(loss["kind"], loss["chain"]) for loss in before["losses"]] == [
        ("crashes", "toy/abs@cpu"),
        ("newly failing", "toy/broken@cpu"),
        ("slower", "toy/abs@cpu"),
    ]
    parts = ["matrix", "compat", "compat-again", "times"]
    parts += ["explain-toy-broken-cpu", "bisect-compiles-toy-broken-cpu", "bisect-time-toy-abs-cpu"]
    assert list(before["parts"]) == parts
    for part in parts:
        # As if it had been killed in the middle of this part, and of a line.
        lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
        (start, *_) = [place for place, line in enumerate(lines) if '"start"' in line and f'"{part}"' in line]
        (folder / "journal.jsonl").write_text("".join(lines[: start + 1]) + lines[start + 1][:20])
        place = folder / part if (folder / part).exists() else next(folder.glob("matrix/*/explain"))
        inner = (place / "journal.jsonl").read_text().splitlines(keepends=True)
        (place / "journal.jsonl").write_text("".join(inner[: len(inner) // 2]))
        done = project.gauntlet("qualify", "--resume")
        assert done.code == 1, (part, done.text)
        after = _read(project)
        assert list(after["parts"]) == parts
        for loss, other in zip(before["losses"], after["losses"], strict=True):
            assert {**loss, "text": "", "factor": 0} == {**other, "text": "", "factor": 0}, part


@pytest.mark.iree
def test_a_flag_that_is_gone_is_the_loss(project: Project) -> None:
    old, new = write_build_tree(project.folder / "old"), write_build_tree(project.folder / "new")
    path = project.folder / "new" / "tools" / "iree-compile"
    path.write_text(path.read_text().replace("exec cat", f"exec grep -v {_LACKED_FLAG}"))
    done = project.gauntlet("qualify", old, new)
    assert done.code == 1, done.text
    (loss,) = _read(project)["losses"]
    assert loss["chain"] == "all models"
    assert f"does not know --{_LACKED_FLAG}" in loss["text"]
    assert list(_read(project)["parts"]) == ["matrix"]


@pytest.mark.iree
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["installed"], 2, "qualify takes two IREEs, OLD and NEW, not 1"),
        (["installed", "banana"], 2, "banana: not a known IREE"),
        (["--resume"], 2, "no earlier `qualify`"),
        (["installed", "path", "--model", "zzz"], 5, "No model 'zzz'"),
        (["installed", "build:nope"], 2, "nope is not a folder"),
        (["3.99.0", "installed", "--offline"], 3, "3.99.0"),
        (["installed", "installed"], 2, "installed: one IREE is named twice"),
        (["installed", "path", "--allow", "nan"], 2, "--allow nan: expected a finite number"),
        (["installed", "path", "--allow", "-1"], 2, "--allow -1: expected a percentage, 0 or more"),
        (["installed", "path", "--among", "foo"], 2, "--among foo: not a known IREE"),
        (["3.12.0", "3.13.0", "--among", "3.5.0"], 2, "--among 3.5.0: it is not between 3.12.0 and 3.13.0"),
        (["installed", "path", "--nightlies"], 2, "--nightlies: OLD and NEW have to be two releases or nightlies"),
        (
            ["3.10.0", "3.13.0", "--among", "3.12.0", "--among", "3.11.0"],
            2,
            "3.11.0: it is not between 3.12.0 and 3.13.0",
        ),
        (["3.11.0", "3.13.0", "--among", "3.12.0", "--among", "3.11.0"], 2, "OLD 3.11.0 is not first in --among"),
        (["3.12.0", "source:nope@main", "--nightlies"], 2, "--nightlies: OLD and NEW have to be two releases"),
        (["installed", "path", "--packages"], 2, "Name their checkout with --source.\n"),
        (["installed", "path", "--source", "nope"], 2, "nope is not a folder"),
    ],
)
def test_wrong_input(project: Project, words: list[str], code: int, says: str) -> None:
    done = project.gauntlet("qualify", *words)
    assert (done.code, says in done.text) == (code, True), done.text
    assert not (project.folder / "runs").exists()


@pytest.mark.iree
def test_a_suite_that_only_compiles_has_no_other_parts(project: Project) -> None:
    project.suite('stages = ["compile", "compstat"]\n')
    # The time of its compiles would be measured again.
    (project.benchmarks / "abs_cpu.json").unlink()
    old, new = (
        write_build_tree(project.folder / "old", name="old"),
        write_build_tree(project.folder / "new", name="new"),
    )
    done = project.gauntlet("qualify", old, new, "--suite", "s")
    assert done.code == 0, done.text
    document = _read(project)
    assert [part["problem"] for part in document["parts"].values()] == [
        "",
        "left out: the suite has no stage threshold",
        "left out: the suite has no stage benchmark",
    ]
    assert "modules with the other runtime (left out: the suite has no stage threshold)" in document["omissions"]
    plans = [path.read_text() for path in _newest(project).glob("matrix/*/journal.jsonl")]
    assert [plan.count('"step":"toy/abs@cpu:threshold"') for plan in plans] == [0, 0]


@pytest.mark.iree
def test_a_compile_that_fails_in_a_suite_that_only_compiles_is_followed(project: Project) -> None:
    project.suite('stages = ["compile", "compstat"]\n')
    # The time of its compiles would be measured again.
    (project.benchmarks / "abs_cpu.json").unlink()
    project.add("broken")
    old, new = (
        write_build_tree(project.folder / "old", name="old"),
        write_build_tree(project.folder / "new", iree_compile=_BROKEN),
    )
    done = project.gauntlet("qualify", old, new, "--suite", "s", "--no-bundles")
    assert done.code == 1, done.text
    (loss,) = _read(project)["losses"]
    assert (loss["chain"], loss["metric"]) == ("toy/broken@cpu", "compiles")
    assert loss["since"] == f"first bad: {new}; last good: {old}"


@pytest.mark.iree
def test_a_slower_compile_of_a_model_without_a_benchmark_is_not_measured_again(project: Project) -> None:
    project.add("untimed")
    (project.benchmarks / "untimed_cpu.json").unlink()
    old = write_build_tree(project.folder / "old", name="old")
    new = write_build_tree(project.folder / "new", iree_compile="sleep 1")
    done = project.gauntlet("qualify", old, new, "--no-times", "--submodel", "untimed")
    assert done.code == 0, done.text
    document = _read(project)
    assert list(document["parts"]) == ["matrix", "compat"]
    assert all("not measured again" in finding["text"] for finding in document["undecided"])


@pytest.mark.iree
def test_marks_are_read_before_anything_runs(project: Project) -> None:
    (project.folder / "history_marks.toml").write_text("[[mark]]\nseries = 3\n")
    done = project.gauntlet("qualify", "installed", "path")
    assert (done.code, "history_marks.toml" in done.text) == (2, True), done.text
    assert not (project.folder / "runs").exists()


@pytest.mark.iree
def test_a_part_that_is_interrupted_is_named_and_gone_on_with(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in project.benchmarks.glob("*.json"):
        path.unlink()
    old, new = (
        write_build_tree(project.folder / "old", name="old"),
        write_build_tree(project.folder / "new", name="new"),
    )
    with monkeypatch.context() as patch:
        patch.setattr("iree_gauntlet.experiments.qualify.check_compatibility", lambda *_: ExitCode.INTERRUPTED)
        assert project.gauntlet("qualify", old, new).code == 130
    assert _read(project)["parts"]["compat"] == {"exit_code": 130, "problem": "interrupted"}
    done = project.gauntlet("qualify", "--resume")
    assert done.code == 0, done.text
    assert list(_read(project)["parts"].values())[:2] == [{"exit_code": 0, "problem": ""}] * 2


@pytest.mark.iree
def test_what_somebody_accepted_is_no_loss(project: Project) -> None:
    old = write_build_tree(project.folder / "old")
    new = write_build_tree(project.folder / "new", iree_run_module=_FAULTS)
    mark = f'[[mark]]\nseries = "toy/*"\niree = "{new}"\nmark = "accepted"\nreason = "planted"\n'
    (project.folder / "history_marks.toml").write_text(mark)
    done = project.gauntlet("qualify", old, new, "--no-times")
    assert done.code == 0, done.text
    (accepted,) = _read(project)["accepted"]
    assert (accepted["kind"], accepted["text"].endswith("; accepted: planted")) == ("crashes", True)
    assert "Accepted" in done.out


@pytest.mark.iree
def test_a_crash_that_does_not_come_again_is_no_loss(project: Project) -> None:
    old = write_build_tree(project.folder / "old")
    new = write_build_tree(project.folder / "new", iree_run_module=_FAULTS.replace("compat*", "compat"))
    done = project.gauntlet("qualify", old, new, "--no-times")
    assert done.code == 0, done.text
    document = _read(project)
    (change,) = document["changes"]
    assert (change["kind"], change["chain"]) == ("crashes", "toy/abs@cpu")
    assert change["text"].endswith("; but it ran with the right numbers when it was run again")
    assert list(document["parts"]) == ["matrix", "compat", "compat-again"]


def test_what_got_worse_is_told_from_what_got_better(tmp_path: Path) -> None:
    outcome = read_qualify_outcome(write_qualification(tmp_path / "q"))
    assert [(loss.kind, loss.chain, loss.metric) for loss in outcome.losses] == [
        ("newly failing", "m/broken@cpu", "compiles"),
        ("size", "m/larger@cpu", "size"),
    ]
    assert outcome.losses[1].text == "1,000,000 → 1,020,000 (+2.0000 %)"
    assert [(gain.kind, gain.chain) for gain in outcome.gains] == [
        ("newly passing", "m/mended@cpu"),
        ("size", "m/smaller@cpu"),
    ]
    # A count that changes is no loss, and what failed before is none either.
    assert [(change.kind, change.chain) for change in outcome.changes] == [("dispatches", "m/larger@cpu")]
    assert outcome.worst_code is ExitCode.FAILED
    write_reports(tmp_path / "q")
    junit = (tmp_path / "q" / "junit.xml").read_text()
    assert junit.count("<failure") == 2
    page = (tmp_path / "q" / "qualify.md").read_text()
    assert "gauntlet bisect --good 3.12.0 --bad 3.13.0 --metric size --model m --submodel larger" in page


def test_an_interrupted_qualification_is_not_green_and_says_how_it_goes_on(tmp_path: Path) -> None:
    folder = write_qualification(tmp_path / "q")
    # The second IREE was running.
    old = make_release_run(_RELEASES[0], same=make_chain())
    new = JournalBuilder(run=_RELEASES[1])
    new.step("m", "same", "compile")
    new.begin(toolchain={"compiler": _RELEASES[1], "identity": _RELEASES[1]})
    end = {"exit_code": 130, "interrupted": True}
    write_record(folder / "matrix", {_RELEASES[0]: old, _RELEASES[1]: new}, results={_RELEASES[0]: 0}, end=end)
    lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)[:2]
    (folder / "journal.jsonl").write_text("".join(lines))
    _add_events(
        folder,
        [{"event": "result", "step": "matrix", "exit_code": 130, "problem": "interrupted"}, {"event": "end", **end}],
    )
    write_reports(folder)
    document = json.loads((folder / "qualify.json").read_text())
    assert document["parts"] == {"matrix": {"exit_code": 130, "problem": "interrupted"}}
    assert document["models"] == ["m/same@cpu"]
    junit = (folder / "junit.xml").read_text()
    assert '<error type="not judged" message="the qualification is interrupted"' in junit
    page = (folder / "qualify.md").read_text()
    assert "**no model is compared yet;" in page
    assert "to continue it: `gauntlet qualify --resume`" in page


def test_the_verdict_says_what_it_is_not_about(tmp_path: Path) -> None:
    def judge(name: str, options: dict[str, Any], **compile_statistics: Any) -> str:
        chains = make_chain(), make_chain()
        for chain in chains:
            chain["compile"]["statistics"] |= compile_statistics
        folder = write_qualification(tmp_path / name)
        runs = {label: make_release_run(label, same=chain) for label, chain in zip(_RELEASES, chains, strict=True)}
        write_record(folder / "matrix", dict(runs))
        _keep_options(folder, options)
        write_reports(folder)
        answer = read_qualify_outcome(folder).answer
        assert all(answer in (folder / page).read_text() for page in ("qualify.md", "qualify.html"))
        return answer

    nothing = "3.13.0 loses nothing against 3.12.0 in 1 model"
    both = {"instructions": True, "memory": True}
    assert judge("all", both, code=[]) == nothing
    assert judge("less", both | {"no_times": True}) == (
        f"{nothing}; not judged: code (only with the extra code; operator suites have none), times (--no-times)"
    )
    assert judge("least", {}, code_problems=["no machine code"]) == (
        f"{nothing}; not judged: some code (no machine code), instructions (only with --instructions), "
        "memory (only with --memory)"
    )
    document = json.loads((tmp_path / "less" / "qualify.json").read_text())
    assert document["omissions"] == ["code (only with the extra code; operator suites have none)", "times (--no-times)"]


def _keep_options(folder: Path, options: dict[str, Any]) -> None:
    opening, *lines = (folder / "journal.jsonl").read_text().splitlines()
    kept = json.dumps(json.loads(opening) | {"kept": {"options": options}})
    (folder / "journal.jsonl").write_text("\n".join([kept, *lines, ""]))


def test_a_case_of_an_operator_suite_is_searched_without_its_config_as_a_target(tmp_path: Path) -> None:
    request = RunRequest(selection=SelectionRequest(target=("rocm",), spec_dir=("ops",)))
    places = [
        (
            _select(request, [f"node/test_abs@{place}"]).selection.target,
            select_chain(f"node/test_abs@{place}")["target"],
        )
        for place in ("cpu", "rocm-gfx942", "cpu_llvm_sync")
    ]
    assert places == [(("cpu",), ["cpu"]), (("rocm-gfx942",), ["rocm-gfx942"]), (("rocm",), [])]
    folder = write_qualification(tmp_path / "q")
    _keep_options(folder, {"spec_dir": ["ops"]})
    write_reports(folder)
    command = "gauntlet bisect --good 3.12.0 --bad 3.13.0 --metric size --spec-dir ops --model m --submodel larger"
    assert command in (folder / "qualify.md").read_text()


def test_a_table_for_release_notes_has_gains_too(tmp_path: Path) -> None:
    folder = write_qualification(tmp_path / "q")
    write_reports(folder)
    page = (folder / "qualify.md").read_text()
    assert (
        """
|  | model | 3.12.0 → 3.13.0 | since |
| --- | --- | --- | --- |
| worse: newly failing | m/broken@cpu | compile: error: failed |  |
| worse: size | m/larger@cpu | 1,000,000 → 1,020,000 (+2.0000 %) |  |
| better: newly passing | m/mended@cpu | compile: error: failed |  |
| better: size | m/smaller@cpu | 1,000,000 → 900,000 (-10.0000 %) |  |
"""
        in page
    )


def test_more_may_be_allowed(tmp_path: Path) -> None:
    outcome = read_qualify_outcome(write_qualification(tmp_path / "q", allowed=2.5))
    assert [loss.chain for loss in outcome.losses] == ["m/broken@cpu"]


def test_the_dispatch_that_grew_is_named(tmp_path: Path) -> None:
    def make(**spills: int) -> dict[str, Any]:
        chain = make_chain()
        code = [
            {"name": name, "target": "gfx942", "figures": {"vgpr_spills": count}, "code_hash": f"{name} {count}"}
            for name, count in spills.items()
        ]
        chain["compile"]["statistics"] |= {"code": code, "spill_count": sum(spills.values())}
        return chain

    folder = write_qualification(tmp_path / "q", spilling=(make(a=2, b=0), make(a=1, b=109)))
    write_reports(folder)
    losses = json.loads((folder / "qualify.json").read_text())["losses"]
    (loss,) = [loss for loss in losses if loss["chain"] == "m/spilling@cpu"]
    assert (loss["kind"], loss["text"]) == ("spills", "2 → 110 (×55); most in b: 0 → 109")


@pytest.mark.iree
@pytest.mark.parametrize(
    ("counts", "words", "text"),
    [
        # A dispatch is judged by itself: neither the others nor what they save hide it.
        ((50_000, 2_020), (), "52,000 → 52,020 (+0.0385 %); most in f$async_dispatch_1: 2,000 → 2,020"),
        ((40_000, 2_020), (), "52,000 → 42,020 (-19.1923 %); most in f$async_dispatch_1: 2,000 → 2,020"),
        ((50_000, 2_020), ("--least-work", "2"), ""),
        # A module of other bytes changes the work of the loader, but of no dispatch.
        ((50_000, 2_000), (), ""),
    ],
)
def test_one_per_cent_more_in_one_dispatch_is_a_loss(
    project: Project, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, int], words: tuple[str, ...], text: str
) -> None:
    def count(_: object, request: RunRequest, presenter: object) -> ExitCode:
        _write_counts(Path(request.folder.run_dir), (50_000, 2_000, 3_000), (*counts, 3_700))
        return ExitCode.OK

    followed: list[str] = []

    def bisect(question: BisectRequest, request: RunRequest, presenter: object) -> ExitCode:
        # An option of rounds is none of an exact search.
        assert request.execution.disturbed != "count"
        followed.append(question.metric)
        return ExitCode.OK

    monkeypatch.setattr("iree_gauntlet.experiments.qualify.matrix", count)
    monkeypatch.setattr("iree_gauntlet.experiments.qualify.check_compatibility", lambda *_: ExitCode.OK)
    monkeypatch.setattr("iree_gauntlet.experiments.qualify.bisect", bisect)
    old, new = write_build_tree(project.folder / "old"), write_build_tree(project.folder / "new")
    done = project.gauntlet("qualify", old, new, "--no-times", "--instructions", "--disturbed", "count", *words)
    document = _read(project)
    assert (done.code, [loss["text"] for loss in document["losses"]]) == (int(bool(text)), [text] * bool(text))
    assert (document["gains"], document["changes"], document["undecided"]) == ([], [], [])
    # The sum of all dispatches, by which a bisection searches, has to be larger too.
    assert followed == ["instructions"] * (sum(counts) > 52_000 and bool(text))


def test_a_call_whose_dispatches_are_not_known_is_judged_as_a_whole(tmp_path: Path) -> None:
    folder = write_qualification(tmp_path / "q")
    texts = []
    for new in (1_009_000, 1_020_000):
        _write_counts(folder / "matrix", (1_000_000, 0, 0), (new, 0, 0), is_known=False)
        texts.append([loss.text for loss in read_qualify_outcome(folder).losses])
    assert texts == [[], ["1,000,000 → 1,020,000 (+2.0000 %)"]]


def _write_counts(folder: Path, *sides: tuple[int, int, int], is_known: bool = True) -> None:
    """Write a matrix of two builds with the counts of one model: of its two dispatches, and outside of them."""
    runs: dict[str, JournalBuilder | str | None] = {}
    for label, (first, second, outside) in zip(("build:old", "build:new"), sides, strict=True):
        dispatches = (("f$async_dispatch_0", first, ""), ("f$async_dispatch_1", second, ""))
        counts = Counts(first + second + outside, 1, dispatches)
        file = folder / f"{label}.json"
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(counts.as_dict()))
        builder = JournalBuilder(run=label)
        step = builder.step("toy", "abs", "count", outputs=[("counts", str(file))])
        builder.begin(toolchain={"compiler": label, "identity": label})
        statistics: dict[str, Any] = {"instructions": counts.instructions, "counter": "valgrind"}
        statistics |= {"instructions_outside": outside} if is_known else {}
        builder.result(step, statistics=statistics)
        builder.end()
        runs[label] = builder
    write_record(folder, runs)


def test_the_dispatch_that_is_slower_is_named(tmp_path: Path) -> None:
    folder = write_qualification(tmp_path / "q")
    write_slower_comparison(folder / "times")
    _add_events(folder, [{"event": "result", "step": "times", "exit_code": 1}])
    losses = {loss.chain: loss.text for loss in read_qualify_outcome(folder).losses if loss.kind == "slower"}
    assert losses == {
        "ocr/classifier@cpu": "×1.06; most in main$async_dispatch_14_conv_14x14x256x5x5_f32: 2.52 ms → 3.97 ms",
        "ocr/cls@cpu": "×1.09",
    }


def test_compiles_are_judged_where_the_matrix_can_say(tmp_path: Path) -> None:
    cached = make_chain(seconds=9.0)
    cached["compile"]["cache"] = {"hit": True, "key": "bb22"}
    folder = write_qualification(
        tmp_path / "q",
        slower=(make_chain(), make_chain(seconds=6.0)),
        faster=(make_chain(), make_chain(seconds=2.0)),
        as_fast=(make_chain(), make_chain(seconds=4.9, peak_rss_bytes=240_000_000)),
        cached=(make_chain(), cached),
        hungry=(make_chain(), make_chain(peak_rss_bytes=300_000_000)),
    )
    outcome = read_qualify_outcome(folder)
    findings = {
        name: {(entry.chain, entry.kind): entry.text for entry in getattr(outcome, name) if "compile" in entry.kind}
        for name in ("losses", "gains", "undecided")
    }
    assert findings == {
        "losses": {("m/hungry@cpu", "compile memory"): "200.0 MB → 300.0 MB (×1.50)"},
        "gains": {("m/faster@cpu", "compile time"): "4.00 s → 2.00 s (×0.50)"},
        "undecided": {
            ("m/slower@cpu", "compile time"): "4.00 s → 6.00 s (×1.50); not measured again",
            ("m/cached@cpu", "compile time"): "the modules of 3.13.0 came from the cache",
        },
    }


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_slower_compile_is_a_loss_if_it_is_slower_again(tmp_path: Path, is_confirmed: bool) -> None:
    folder = write_qualification(tmp_path / "q", slower=(make_chain(), make_chain(seconds=6.0)))
    search = [{"event": "search", "last_old": "3.12.0", "first_new": "3.13.0"}] * is_confirmed
    problem = "" if is_confirmed else "the ends do not clearly differ"
    _add_bisection(folder, "compile-time", "m/slower@cpu", search, problem)
    outcome = read_qualify_outcome(folder)
    losses = [loss.text for loss in outcome.losses if loss.kind == "compile time"]
    undecided = [finding.text for finding in outcome.undecided]
    text = "4.00 s → 6.00 s (×1.50)"
    assert losses == [text] * is_confirmed
    assert undecided == [f"{text}; not confirmed: the ends do not clearly differ"] * (not is_confirmed)


@pytest.mark.parametrize(
    ("ratio", "differs", "answer"),
    [
        (1.06, True, ""),
        (1.01, False, "not confirmed: the ends do not clearly differ"),
        (0.95, True, "not confirmed: the second measurement is faster"),
        # It could not be measured again, so the first measurement stands.
        (None, False, ""),
    ],
)
def test_a_slower_model_that_is_not_slower_again_is_no_loss(
    tmp_path: Path, ratio: float | None, differs: bool, answer: str
) -> None:
    folder = write_qualification(tmp_path / "q")
    write_slower_comparison(folder / "times")
    _add_events(folder, [{"event": "result", "step": "times", "exit_code": 1}])
    ends = zip(_RELEASES, (1.0, ratio), strict=True)
    events = [{"event": "result", "step": end, "bad": end == "3.13.0", "value": value} for end, value in ends]
    events += [{"event": "search", "last_old": "3.12.0", "first_new": "3.13.0"}] * differs
    _add_bisection(folder, "time", "ocr/cls@cpu", events, "" if differs else "the ends do not clearly differ")
    outcome = read_qualify_outcome(folder)
    losses = {loss.chain: loss.kind for loss in outcome.losses}
    undecided = {(finding.chain, finding.kind): finding.text for finding in outcome.undecided}
    if answer:
        assert undecided == {("ocr/cls@cpu", "time"): f"×1.09; {answer}"}
        assert "time of 1 model (undecided)" in outcome.answer
    else:
        assert undecided == {}
    assert losses == {
        "m/broken@cpu": "newly failing",
        "ocr/classifier@cpu": "slower",
        **({} if answer else {"ocr/cls@cpu": "slower"}),
        "m/larger@cpu": "size",
    }


@pytest.mark.parametrize("value", [1.0, 0.0])
def test_a_failure_that_does_not_come_again_is_undecided(tmp_path: Path, value: float) -> None:
    folder = write_qualification(tmp_path / "q", among=_RELEASES)
    results = [
        {"event": "result", "step": label, "bad": label == "b", "value": end, "text": "passes"}
        for label, end in (("a", 1.0), ("b", value))
    ]
    if value == 0.0:
        results.append({"event": "search", "last_old": "a", "first_new": "b"})
    _add_bisection(folder, "compiles", "m/broken@cpu", results, "both pass" if value else "", labels=("a", "b"))
    outcome = read_qualify_outcome(folder)
    is_loss = value == 0.0
    assert [
        "m/broken@cpu" in [finding.chain for finding in group] for group in (outcome.losses, outcome.undecided)
    ] == [is_loss, not is_loss]
    write_reports(folder)
    page = (folder / "qualify.md").read_text()
    # What the bisection said is its result, and its ends have the names of the command line.
    if is_loss:
        assert "first bad: 3.13.0; last good: 3.12.0" in page
        assert "first bad: b" not in page
    else:
        assert "compile: error: failed; not confirmed: both pass" in page
        assert "newly failing of 1 model (undecided)" in page
        assert "`bisection of m/broken@cpu by compiles` | both pass |" in page


def _add_bisection(
    folder: Path,
    metric: str,
    chain: str,
    events: list[dict[str, Any]],
    problem: str,
    labels: tuple[str, str] = _RELEASES,
) -> None:
    part = f"bisect-{metric}-{chain.replace('/', '-').replace('@', '-')}"
    _add_events(folder, [{"event": "result", "step": part, "exit_code": 1, "chain": chain, "metric": metric}])
    opening = {
        "kind": "bisect",
        "name": part,
        "good": labels[0],
        "bad": labels[1],
        "confidence": 0.99,
        "chain": chain,
        "good_is_older": True,
        "commit": "compiler_commit",
        "metric": metric,
        "row": [{"label": label, "iree": iree} for label, iree in zip(labels, _RELEASES, strict=True)],
    }
    end = {"event": "end", "exit_code": 1, "problem": problem}
    _add_events(folder / part, [{"event": "opening", **opening}, *events, end])


def _add_events(folder: Path, events: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / "journal.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
