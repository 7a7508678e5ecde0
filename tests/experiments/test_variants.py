"""Variants of flags as a user works with them: in runs, comparisons, matrices, goldens and the history."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.toy_project import FLAGS, Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.iree

_COUNTS = pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind: apt install valgrind")
_SETTINGS = """
[variants.optimised]
compiler_flags = ["--iree-opt-level=O3"]

[variants.unchanged]
compiler_flags = ["--iree-opt-const-eval=true"]

[variants.without-cpu]
remove_compiler_flags = ["--iree-llvmcpu-target-cpu"]

[variants.elsewhere]
compiler_flags = ["--iree-opt-level=O3"]
targets = ["rocm"]
"""


@pytest.fixture
def project(shared_project: Project) -> Project:
    shared_project.reset()
    (shared_project.folder / "gauntlet.toml").write_text(_SETTINGS)
    return shared_project


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _plan_compile(project: Project, *words: str) -> list[str]:
    """Return the flags of the compile that a command plans."""
    done = project.gauntlet("plan", "--format", "json", *words)
    assert done.code == 0, done.text
    (argv,) = (step["argv"] for step in json.loads(done.out)["steps"] if step["step"] == "compile")
    return [word for word in argv if word.startswith("--iree") and "/runs/" not in word]


@pytest.mark.parametrize(
    ("words", "added", "removed"),
    [
        (("--variant", "optimised"), ["--iree-opt-level=O3"], []),
        (("--variant", "without-cpu"), [], [FLAGS[2]]),
        (("--variant", "elsewhere"), [], []),
        (("--variant", "v2=--iree-llvmcpu-target-cpu=x86-64-v2"), ["--iree-llvmcpu-target-cpu=x86-64-v2"], [FLAGS[2]]),
        (("--variant", "optimised", "--variant", "without-cpu"), ["--iree-opt-level=O3"], [FLAGS[2]]),
    ],
)
def test_a_plan_has_the_flags(project: Project, words: tuple[str, ...], added: list[str], removed: list[str]) -> None:
    plain, varied = (_plan_compile(project, *options) for options in ((), words))
    assert [flag for flag in varied if flag not in plain] == added
    assert [flag for flag in plain if flag not in varied] == removed


def test_the_module_is_that_of_a_spec_with_these_flags(project: Project) -> None:
    project.forget_modules()
    assert project.gauntlet("run", "--variant", "optimised", "--stages", "compile").code == 0
    project.regression(compiler_flags=[*FLAGS, "--iree-opt-level=O3"])
    done = project.gauntlet("run", "--stages", "compile")
    assert done.code == 0, done.text
    assert "compiles: 1 from cache, 0 made" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--variant", "optimized"), "there is no variant 'optimized'; did you mean 'optimised'?"),
        (("--variant", "optimised", "--variant", "optimised"), "variant optimised: given twice"),
        (
            ("--variant", "optimised", "--variant", "O1=--iree-opt-level=O1"),
            "variants optimised and O1: they treat --iree-opt-level differently",
        ),
        (("--variant", "x=--iree-opt-levl=O1"), "variant x: iree-compile does not know --iree-opt-levl=O1"),
        (("--variant", "x=O1"), "variant x=O1: expected compile flags after x="),
        (
            ("--variant", "optimised=--iree-opt-level=O2"),
            "--variant optimised=--iree-opt-level=O2: gauntlet.toml defines optimised with other flags",
        ),
        (("--variant", "+optimised"), "variant +optimised: expected a name, or NAME=FLAGS"),
        (("--variant", "x y"), "variant x y: expected a name, or NAME=FLAGS"),
        (("--variant", "x=--a 'b"), "variant x=--a 'b: No closing quotation"),
    ],
)
def test_mistakes_are_errors_before_anything_runs(project: Project, words: tuple[str, ...], message: str) -> None:
    done = project.gauntlet("run", *words)
    assert done.code == 2, done.text
    assert f"error: {message}" in done.err
    assert not (project.folder / "runs").exists()


def test_a_run_names_its_variant_and_its_goldens_are_its_own(project: Project) -> None:
    project.benchmark(golden_dispatch={"cpu": 0}, variants={"unchanged": {"golden_dispatch": {"cpu": 1}}})
    done = project.gauntlet("run", "--variant", "unchanged", "--run-dir", "runs/v", "--stages", "compstat")
    assert done.code == 0, done.text
    assert "suite custom+unchanged, run v" in done.out
    (check,) = (
        check
        for chain in _read(project.folder / "runs" / "v" / "summary.json")["chains"]
        for step in chain["steps"]
        for check in step.get("checks", ())
        if check["metric"] == "dispatch_count"
    )
    assert (check["golden"], check["passed"]) == (1, True)
    assert 'name="iree-gauntlet custom+unchanged"' in (project.folder / "runs" / "v" / "junit.xml").read_text()
    plain = project.gauntlet("run", "--run-dir", "runs/plain", "--stages", "compstat")
    assert plain.code == 1, plain.text
    # A golden is compared only with runs with its own variant.
    shown = project.gauntlet("golden.show", "--format", "json")
    statuses = {entry["field"]: entry for entry in json.loads(shown.out)["goldens"]}
    assert statuses["golden_dispatch.cpu"]["verdict"] == "broken"
    assert statuses["variants.unchanged.golden_dispatch.cpu"]["verdict"] == "kept"
    assert statuses["variants.unchanged.golden_dispatch.cpu"]["variant"] == "unchanged"


def test_a_golden_of_a_variant_is_updated_from_its_run(project: Project) -> None:
    project.benchmark(golden_dispatch={"cpu": 1}, variants={"unchanged": {"golden_dispatch": {"cpu": 0}}})
    assert project.gauntlet("run", "--variant", "unchanged", "--run-dir", "v", "--stages", "compstat").code == 1
    done = project.gauntlet("golden.update", "--run", "v", "--write")
    assert done.code == 0, done.text
    spec = _read(project.benchmarks / "abs_cpu.json")
    assert spec["variants"] == {"unchanged": {"golden_dispatch": {"cpu": 1}}}
    assert spec["golden_dispatch"] == {"cpu": 1}


def test_a_variant_without_effect_is_not_measured(project: Project) -> None:
    done = project.gauntlet("compare", "+unchanged", "--run-dir", "c", "--cpus", "all", "--no-work")
    assert done.code == 0, done.text
    assert "B = installed+unchanged" in done.out
    assert "No effect on 1 model (the modules of both sides are the same bytes" in done.out
    document = _read(project.folder / "c" / "comparison.json")
    assert (document["no_effect"], document["models"], document["not_measured"]) == (["toy/abs@cpu"], {}, {})
    # A resumed comparison comes to the same.
    again = project.gauntlet("compare", "--resume", "--run-dir", "c")
    assert again.code == 0, again.text
    assert _read(project.folder / "c" / "comparison.json")["no_effect"] == ["toy/abs@cpu"]


def test_a_matrix_has_a_row_for_each_variant(project: Project) -> None:
    words = ("--variant", "unchanged", "--variant", "bare=--iree-llvmcpu-debug-symbols=false", "--stages", "threshold")
    done = project.gauntlet("matrix", *words, "--run-dir", "m")
    assert done.code == 0, done.text
    document = _read(project.folder / "m" / "matrix.json")
    assert [iree["label"] for iree in document["irees"]] == ["installed", "installed+unchanged", "installed+bare"]
    assert [iree["no_effect"] for iree in document["irees"]] == [[], ["toy/abs@cpu"], []]
    assert "installed+unchanged: no effect on 1 model (the modules are the same bytes as without it)" in done.out
    assert "the same IREE" not in done.text
    run = json.loads((project.folder / "m" / "installed+bare" / "journal.jsonl").read_text().splitlines()[0])
    assert run["variants"] == [{"name": "bare", "compiler_flags": ["--iree-llvmcpu-debug-symbols=false"]}]
    again = project.gauntlet("matrix", "--resume", "--run-dir", "m")
    assert again.code == 0, again.text
    assert again.out.count("finished earlier with exit code 0: not run again") == 3


def test_a_matrix_does_not_measure_the_same_modules_again(project: Project) -> None:
    words = ("--variant", "unchanged", "--variant", "without-cpu", "--stages", "benchmark")
    done = project.gauntlet("matrix", *words, "--run-dir", "m")
    assert done.code == 0, done.text
    assert "Matrix of one IREE with 2 variants" in done.out
    assert "3 of 3 runs as expected" in done.out
    assert "reports in m/compiles-" not in done.text
    folder = project.folder / "m"
    labels = ("installed", "installed+unchanged", "installed+without-cpu")
    measured = [(folder / label / "steps" / "toy" / "abs.cpu" / "benchmark").exists() for label in labels]
    assert measured == [True, False, True]
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {*labels}
    (row,) = _read(folder / "matrix.json")["chains"]
    assert [row["irees"][label]["time_ms"] is not None for label in labels] == measured


def test_the_variant_is_named_where_its_flags_fail(project: Project) -> None:
    project.regression("other", compiler_flags=[*FLAGS, "--iree-opt-level=O2"])
    words = ("--stages", "compile", "--submodel", "abs")
    done = project.gauntlet("run", "--variant", "x=--iree-opt-level=O9", *words)
    assert done.code == 3, done.text
    assert "'O9' value not a valid optimization level" in done.out
    assert "abs_cpu.json and variant x)" in done.out
    assert "abs_cpu.json: mlir, with variant x" in done.out


def test_a_broken_tuning_spec_is_the_reason(project: Project) -> None:
    (project.folder / "tuning.mlir").write_text("module {\n  oops\n}\n")
    with (project.folder / "gauntlet.toml").open("a") as file:
        file.write('[variants.tuned]\ntuning_spec = "tuning.mlir"\n')
    done = project.gauntlet("run", "--variant", "tuned", "--stages", "compile")
    assert done.code == 1, done.text
    assert f"the tuning spec cannot be loaded: {project.folder}/tuning.mlir:2:3: error: " in done.out
    # The failure is not kept in the cache beyond the file's change.
    (project.folder / "tuning.mlir").write_text("module attributes {transform.with_named_sequence} {}\n")
    again = project.gauntlet("run", "--variant", "tuned", "--stages", "compile")
    assert "tuning spec cannot be loaded" not in again.out


def test_lint_names_wrong_definitions_and_unknown_names(project: Project) -> None:
    project.benchmark(variants={"optimized": {"golden_dispatch": {"cpu": 1}}, "optimised": {"golden_size": {"cpu": 9}}})
    done = project.gauntlet("lint")
    assert done.code == 0, done.text
    assert "no suite and no settings define variant 'optimized'; did you mean 'optimised'?" in done.text
    assert done.text.count("no suite and no settings define") == 1
    with (project.folder / "gauntlet.toml").open("a") as file:
        file.write('[variants.tuned]\ndescription = ""\ntuning_spec = "missing.mlir"\n')
    done = project.gauntlet("lint")
    assert done.code == 2, done.text
    line = _SETTINGS.count("\n") + 3
    assert f"gauntlet.toml:{line}: variants.tuned.tuning_spec: " in done.text
    assert f"{project.folder}/missing.mlir is missing" in done.text


def test_the_list_has_the_variants(project: Project) -> None:
    done = project.gauntlet("list")
    assert done.code == 0, done.text
    assert "variant optimised: --iree-opt-level=O3\n" in done.out
    assert "variant without-cpu: removing --iree-llvmcpu-target-cpu\n" in done.out


def test_runs_with_a_variant_are_series_of_their_own(project: Project) -> None:
    for folder, words in (("plain", ()), ("varied", ("--variant", "unchanged"))):
        assert project.gauntlet("run", "--run-dir", folder, "--stages", "compstat", *words).code == 0
        assert project.gauntlet("history.add", folder).code == 0
    shown = project.gauntlet("history.show", "* dispatches")
    assert shown.code == 0, shown.text
    assert [line.split(" (")[0] for line in shown.out.splitlines() if line.startswith("toy/")] == [
        "toy/abs@cpu dispatches",
        "toy/abs@cpu+unchanged dispatches",
    ]


def test_the_order_of_variants_has_no_meaning(project: Project) -> None:
    project.benchmark(variants={"without-cpu+optimised": {"golden_dispatch": {"cpu": 1}}})
    for words in (("optimised", "without-cpu"), ("without-cpu", "optimised")):
        options = [word for name in words for word in ("--variant", name)]
        done = project.gauntlet("run", *options, "--stages", "compstat")
        assert done.code == 0, done.text
        assert "suite custom+optimised+without-cpu, " in done.out
        assert "judged: numbers 0, dispatches 1" in done.out


def test_a_variant_that_changes_nothing_keeps_the_goldens(project: Project) -> None:
    project.benchmark(golden_dispatch={"cpu": 0})
    done = project.gauntlet("run", "--variant", "elsewhere", "--stages", "compstat")
    assert done.code == 1, done.text
    assert "elsewhere changes the flags of no selected case" in done.text


def test_run_flags_have_an_effect_although_modules_are_the_same(project: Project) -> None:
    with (project.folder / "gauntlet.toml").open("a") as file:
        file.write('[variants.one-group]\nrun_flags = ["--task_topology_group_count=1"]\n')
    done = project.gauntlet("matrix", "--variant", "one-group", "--stages", "threshold", "--run-dir", "m")
    assert done.code == 0, done.text
    assert "no effect" not in done.text
    assert "variant one-group: --task_topology_group_count=1" in done.text


def test_contradictions_of_a_matrix_are_errors_before_anything_runs(project: Project) -> None:
    done = project.gauntlet("matrix", "--iree", "+optimised", "--variant", "O1=--iree-opt-level=O1")
    assert done.code == 2, done.text
    assert "they treat --iree-opt-level differently" in done.err
    assert not (project.folder / "runs").exists()


@_COUNTS
def test_flags_that_a_count_replaces_are_not_compared_by_instructions(project: Project) -> None:
    done = project.gauntlet("compare", "+without-cpu", "--metric", "instructions")
    assert done.code == 2, done.text
    assert "cannot compare --iree-llvmcpu-target-cpu" in done.err


@_COUNTS
def test_modules_for_counts_are_no_evidence_in_a_matrix(project: Project) -> None:
    done = project.gauntlet("matrix", "--variant", "without-cpu", "--stages", "count", "--run-dir", "m")
    assert done.code == 0, done.text
    assert "no effect" not in done.text
    assert "counts instructions without --iree-llvmcpu-target-cpu of the variant" in done.text


def test_a_variant_that_has_changed_is_not_resumed(project: Project) -> None:
    assert project.gauntlet("run", "--variant", "optimised", "--run-dir", "v", "--stages", "compile").code == 0
    (project.folder / "gauntlet.toml").write_text(_SETTINGS.replace("O3", "O2"))
    done = project.gauntlet("run", "--resume", "--run-dir", "v")
    assert done.code == 2, done.text
    assert "variant optimised has changed since v was started" in done.err


def test_a_missing_tuning_spec_is_an_error_before_anything_runs(project: Project) -> None:
    with (project.folder / "gauntlet.toml").open("a") as file:
        file.write('[variants.tuned]\ntuning_spec = "missing.mlir"\n')
    done = project.gauntlet("run", "--variant", "tuned")
    assert done.code == 2, done.text
    assert f"its tuning spec {project.folder}/missing.mlir does not exist" in done.err
    assert "gauntlet.toml" in done.err


def test_the_suite_that_has_a_variant_is_named(project: Project) -> None:
    (project.folder / "suites" / "broken.toml").write_text("[")
    project.suite('[variants.fast]\ncompiler_flags = ["--iree-opt-level=O3"]\n')
    done = project.gauntlet("run", "--variant", "fast")
    assert done.code == 2, done.text
    assert "The suite s has it: --suite s." in done.err


def test_a_resumed_run_keeps_its_variant(project: Project) -> None:
    assert project.gauntlet("run", "--variant", "optimised", "--run-dir", "v", "--stages", "compile").code == 0
    done = project.gauntlet("run", "--resume", "--run-dir", "v")
    assert done.code == 0, done.text
    assert "custom+optimised" in done.out
    refused = project.gauntlet("run", "--resume", "--run-dir", "v", "--variant", "unchanged")
    assert refused.code == 2, refused.text


def test_a_tuning_spec_of_a_variant_is_an_input_of_the_compile(project: Project) -> None:
    (project.folder / "tuning.mlir").write_text("module {}")
    with (project.folder / "gauntlet.toml").open("a") as file:
        file.write('[variants.tuned]\ntuning_spec = "tuning.mlir"\n')
    flags = _plan_compile(project, "--variant", "tuned")
    assert f"--iree-codegen-tuning-spec-path={project.folder}/tuning.mlir" in flags
