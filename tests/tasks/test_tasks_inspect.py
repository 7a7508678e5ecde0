"""`list`, `plan` and `lint`, as the command line runs them."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains import find
from iree_gauntlet.toolchains.flags import read_known_flags
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import CommandResult, run_in_process
from tests.support.spec_trees import BENCHMARK, HIP_SPEC, SPEC, write_tree

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., CommandResult]
STEP_FIELDS = {
    *("id", "case", "step", "spec", "field", "argv", "cwd", "env", "inputs", "outputs", "needs", "key", "cached"),
    *("why", "resources", "timeout_seconds", "expectation", "quarantine", "goldens", "skip", "blocked", "notes"),
}


def absent() -> Any:
    raise ToolchainError("no IREE in this Python", "pip install iree-base-compiler iree-base-runtime")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    spec = HIP_SPEC | {"device": "local-task", "compiler_flags": ["--iree-hal-target-backends=llvm-cpu"]}
    spec |= {"mlir": "program.mlir", "real_weights": "random://zeros/4xf32"}
    write_tree(
        tmp_path,
        {
            "specs/regression_tests/a/x_cpu.json": spec | {"markers": ["text"], "run_test_expecting_to_fail": True},
            "specs/regression_tests/a/program.mlir": "module {}",
            "specs/regression_tests/b/y.json": SPEC,
            "specs/benchmarks/a/x_cpu.json": BENCHMARK
            | {"golden_time_ms": {"box": 2}, "golden_time_tolerance_multiplier": {"box": 1}, "device": "local-task"}
            | {"golden_dispatch": {"box": 792}, "golden_size": {"cpu": 460000}},
            "suites/cpu.toml": 'name = "cpu"\ntarget = "cpu"\n',
        },
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IREE_GAUNTLET_CACHE", raising=False)
    return tmp_path


@pytest.fixture
def without_iree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "find_installed", absent)


@pytest.fixture
def run(project: Path) -> Run:
    return lambda *words: run_in_process(words, project, os.environ)


# list


def test_list_as_text(project: Path, run: Run) -> None:
    result = run("list")
    assert result.code == 0
    assert result.out.splitlines() == [
        "MODEL  SUBMODEL  TARGET       CHECKS             MARKERS",
        "a      x         cpu          quality benchmark  benchmark cpu quality text",
        "b      y         cpu          quality            cpu quality",
        "b      y         rocm-gfx942  quality            gfx942 quality rocm",
        "2 models, 3 chains",
    ]
    assert result.err == ""


def test_list_as_json(project: Path, run: Run) -> None:
    assert json.loads(run("list", "--format", "json", "--model", "a").out) == [
        {
            "model": "a",
            "submodel": "x",
            "target": "cpu",
            "checks": ["quality", "benchmark"],
            "markers": ["benchmark", "cpu", "quality", "text"],
            "specs": ["specs/benchmarks/a/x_cpu.json", "specs/regression_tests/a/x_cpu.json"],
        }
    ]


@pytest.mark.parametrize("form", ["text", "json"])
def test_list_tells_of_broken_specs_with_the_valid_ones(project: Path, run: Run, form: str) -> None:
    write_tree(project, {"specs/regression_tests/b/z_cpu.json": HIP_SPEC | {"junk": 1}})
    result = run("list", "--format", form)
    assert result.code == 2
    assert "z_cpu.json:" in result.err
    assert "junk: unknown field" in result.err
    assert "a" in result.out


def test_selection_that_matches_nothing(project: Path, run: Run) -> None:
    for task in ("list", "plan", "lint"):
        result = run(task, "--model", "aa")
        assert result.code == 5
        assert "did you mean 'a'?" in result.err
        assert "Models for cpu" in result.err
        assert result.out == ""


def test_unknown_markers_are_told_by_every_task(project: Path, run: Run, without_iree: None) -> None:
    for task in ("list", "plan", "lint"):
        result = run(task, "--markers", "not slwo", "--target", "cpu", "--model", "a")
        assert result.code == 0
        assert "no case has the marker 'slwo'; known: benchmark, cpu, quality, text" in result.err


# plan


@pytest.mark.iree
def test_plan_as_json(project: Path, run: Run) -> None:
    result = run("plan", "--format", "json", "--model", "a", "--sku", "box")
    assert result.code == 0
    document = json.loads(result.out)
    assert document["schema"] == 1
    assert document["suite"] == "custom"
    assert document["problems"] == []
    tools = find_installed()
    assert document["toolchain"] == tools.as_dict()
    steps = {step["id"]: step for step in document["steps"]}
    assert list(steps) == [f"a/x@cpu:{stage}" for stage in ("fetch", "compile", "threshold", "compstat", "benchmark")]
    for step in steps.values():
        assert set(step) == STEP_FIELDS
        assert step["case"] == "a/x@cpu"
        for item in step["inputs"]:
            assert set(item) == {"role", "path", "url", "sha256"}
    compiled = steps["a/x@cpu:compile"]
    assert compiled["argv"][:2] == [tools.compiler.compile, str(project / "specs/regression_tests/a/program.mlir")]
    assert compiled["argv"][-1] == compiled["outputs"]["module"]
    assert compiled["cwd"] == str(project / "runs/next-custom/steps/a/x.cpu/compile")
    assert compiled["resources"] == {"cores": 1, "exclusive": False, "device": ""}
    assert compiled["expectation"] == {"outcome": "pass", "reason": "", "kinds": [], "match": ""}
    threshold = steps["a/x@cpu:threshold"]
    assert threshold["expectation"]["outcome"] == "fail"
    assert "run_test_expecting_to_fail" in threshold["expectation"]["reason"]
    assert threshold["argv"][0] == tools.runtime.run_module
    sources = {item["role"]: (item["url"], item["path"]) for item in threshold["inputs"]}
    assert sources["input"][0] == "https://h/in0.bin"
    assert sources["input"][1].startswith(str(project / "cache"))
    assert sources["module"] == ("", compiled["outputs"]["module"])
    benchmark = steps["a/x@cpu:benchmark"]
    assert benchmark["resources"]["exclusive"] is True
    (golden,) = benchmark["goldens"]
    assert (golden["value"], golden["limit"], golden["sku"]) == (2, 2, "box")
    assert benchmark["spec"] == "specs/benchmarks/a/x_cpu.json"


@pytest.mark.iree
def test_a_plan_as_json_has_a_line_for_each_step(project: Path, run: Run, without_iree: None) -> None:
    result = run("plan", "--format", "json", "--model", "a")
    lines = result.out.splitlines()
    start = lines.index('"steps": [') + 1
    steps = [json.loads(line.removesuffix(",")) for line in lines[start : lines.index("],")]]
    assert steps == json.loads(result.out)["steps"]
    assert list(json.loads(result.out)) == ["schema", "suite", "run_dir", "toolchain", "steps", "problems"]


def test_a_plan_leaves_the_collection_of_garbage_as_it_was(project: Path, run: Run, without_iree: None) -> None:
    assert run("plan", "--model", "a").code == 0
    assert gc.isenabled()
    gc.disable()
    try:
        run("plan", "--model", "a")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_plan_as_text(project: Path, run: Run) -> None:
    result = run("plan", "--model", "a")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("a/x@cpu  (specs/")
    assert any(line.startswith("    $ ") and "iree-run-module --device=local-task" in line for line in lines)
    expected = "  threshold  runs     runs every time; expected: crashes or does not run or wrong numbers"
    assert any(line.startswith(expected) for line in lines)
    assert lines[-1] == "5 steps, 0 from the cache"


@pytest.mark.iree
def test_plan_writes_nothing_but_the_flags_that_the_tools_know(project: Path, run: Run) -> None:
    before = {path for path in project.rglob("*") if path.is_file()}
    run("plan", "--suite", "cpu")
    new = {path for path in project.rglob("*") if path.is_file()} - before
    kept = project / "kept"
    read_known_flags(find_installed(), kept)
    assert {path.name for path in new} == {path.name for path in kept.rglob("*") if path.is_file()}
    shutil.rmtree(kept)
    again = {path: path.stat().st_mtime_ns for path in project.rglob("*")}
    run("plan", "--suite", "cpu")
    assert {path: path.stat().st_mtime_ns for path in project.rglob("*")} == again


def test_plan_without_iree_works_and_says_so(project: Path, run: Run, without_iree: None) -> None:
    result = run("plan", "--model", "a")
    assert result.code == 0
    assert result.out.startswith("note: no IREE in this Python\n  pip install")
    assert "  compile    runs " in result.out
    document = json.loads(run("plan", "--model", "a", "--format", "json").out)
    assert document["toolchain"] is None
    assert [step["argv"][:1] for step in document["steps"] if step["argv"]] == [
        ["iree-compile"],
        ["iree-run-module"],
        ["iree-benchmark-module"],
    ]
    assert sorted(path.name for path in project.iterdir()) == ["specs", "suites"]


def test_plan_of_broken_specs_shows_all_problems(project: Path, run: Run, without_iree: None) -> None:
    write_tree(project, {"specs/regression_tests/b/z_cpu.json": HIP_SPEC | {"junk": 1, "mlir": 2}})
    result = run("plan")
    assert result.code == 2
    assert "2 problems in spec files" in result.err
    assert result.out == ""


def test_a_source_of_an_unknown_scheme_is_a_problem_of_the_spec(project: Path, run: Run, without_iree: None) -> None:
    write_tree(project, {"specs/regression_tests/b/z_cpu.json": HIP_SPEC | {"mlir": "htps://h/m.mlir"}})
    for task in ("plan", "lint"):
        result = run(task, "--target", "cpu")
        assert result.code == 2
        assert "z_cpu.json:14: mlir: unknown scheme 'htps'" in result.err


def test_sources_are_checked_with_other_mistakes(project: Path, run: Run, without_iree: None) -> None:
    spec = HIP_SPEC | {"mlir": "ftp://h/m.mlir", "inputs": [{"source": "hf://a/b/c"}], "junk": 1}
    write_tree(project, {"specs/regression_tests/b/z_cpu.json": spec})
    for words in (["plan", "--target", "cpu"], ["lint"], ["lint", "--model", "a"]):
        result = run(*words)
        assert result.code == 2
        assert result.err.startswith("error: 3 problems in spec files:")
        for text in ("mlir: unknown scheme 'ftp'", "z_cpu.json:4: inputs[0].source: ", "junk: unknown field"):
            assert text in result.err


def test_a_missing_module_is_named_of_tests_that_are_not_selected(project: Path, run: Run, without_iree: None) -> None:
    write_tree(project, {"specs/torch_models/t/q.json": {"type": "quality", "modules": ["gone"], "markers": []}})
    for words in (["lint"], ["lint", "--model", "a"]):
        result = run(*words)
        assert (result.code, "there is no module definition gone.json" in result.err) == (2, True)
    assert "torch_models/t/q.json cannot be used (1 problem" in run("plan", "--model", "a", "--target", "cpu").err


def test_a_selection_that_a_broken_file_may_hold(project: Path, run: Run, without_iree: None) -> None:
    files = {"onnx_models/tests/vision_models_test.py": "def compare_between_iree_and_onnxruntime(:\n"}
    write_tree(project, files)
    result = run("plan", "--spec-dir", "onnx_models", "--submodel", "tiny-1")
    assert result.code == 5
    assert "onnx_models/tests/vision_models_test.py; `lint` shows why." in result.err
    assert "No model '*'" not in result.err


def test_plan_stages(project: Path, run: Run, without_iree: None) -> None:
    document = json.loads(run("plan", "--stages", "compile", "--model", "a", "--format", "json").out)
    assert [step["step"] for step in document["steps"]] == ["fetch", "compile"]


# lint


def test_lint_of_sound_specs(project: Path, run: Run, without_iree: None) -> None:
    result = run("lint")
    assert (result.code, result.out, result.err) == (0, "3 spec files are valid\n", "")


def test_lint_reports_everything_at_once(project: Path, run: Run, without_iree: None) -> None:
    write_tree(
        project,
        {
            "specs/regression_tests/b/p_cpu.json": HIP_SPEC | {"mlir": 2, "jnk": 1},
            "specs/regression_tests/b/q_rocm.json": "{",
            "specs/regression_tests/b/r_cpu.json": HIP_SPEC | {"inputs": [{"source": "../../../x"}]},
            "specs/benchmarks/b/y_cpu.json": BENCHMARK | {"golden_time_ms": []},
        },
    )
    result = run("lint")
    assert result.code == 2
    assert result.err.startswith("error: 5 problems in spec files:")
    for text in ("p_cpu.json:", "mlir: expected a string", "jnk: unknown field", "q_rocm.json", "r_cpu.json:"):
        assert text in result.err
    assert "golden_time_ms: expected an object, found an array" in result.err


PIPELINE: dict[str, Any] = {"compilation_required": True, "mlir_url": "https://h/p.mlir", "modules": ["t_p"]}
BROKEN = {
    "regression_tests/c/s_cpu.json": HIP_SPEC | {"junk": 1, "mlir": 2},
    "benchmarks/c/s_rocm.json": "{",
    "torch_models/c/modules/unused.json": {"mlir": "https://h/m.mlir", "compiler_flags": 1},
    "torch_models/c/test.json": {"type": "quality", "modules": 1},
    "operators/node/test_x/run_module_io_flags.txt": "",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_used_stops_who_selects_it_alone(
    project: Path, run: Run, without_iree: None, name: str
) -> None:
    write_tree(project, {f"specs/{name}": BROKEN[name]})
    file = f"specs/{name}"
    for task in (["plan", "--target", "cpu"], ["list"]):
        result = run(*task, "--model", "a")
        assert result.code == 0
        assert "a/x@cpu" in result.out or task == ["list"]
        assert f"warning: {file} cannot be used (" in result.err
        assert result.err.count("warning: ") == 1
    for words in (["lint"], ["lint", "--model", "a"]):
        result = run(*words)
        assert result.code == 2
        assert f"  {file}" in result.err
    # What no test loads is nobody's.
    assert run("plan", "--target", "cpu", "--target", "rocm").code == (0 if "unused" in name else 2)


def test_lint_of_files_that_nothing_selects(project: Path, run: Run, without_iree: None) -> None:
    write_tree(project / "alone", {"torch_models/modules/unused.json": BROKEN["torch_models/c/modules/unused.json"]})
    result = run("lint", "--spec-dir", "alone")
    assert result.code == 2
    assert "alone/torch_models/modules/unused.json:" in result.err


def test_lint_warns_of_what_has_another_name_today(project: Path, run: Run, without_iree: None) -> None:
    fields = {name: value for name, value in BENCHMARK.items() if not name.startswith("golden_time")}
    write_tree(project, {"specs/benchmarks/b/y_rocm.json": fields | {"golden_time": {"mi300": 5}}})
    result = run("lint")
    assert result.code == 0
    assert "warning: specs/benchmarks/b/y_rocm.json: golden_time is the older name of golden_time_ms\n" in result.out


def test_what_is_missing_is_told_once_before_anything_runs(project: Path, run: Run, without_iree: None) -> None:
    spec = HIP_SPEC | {"tuner_file": {"mi308": "tuner.mlir"}, "inputs": [], "outputs": []}
    spec |= {"mlir": "../a/program.mlir", "real_weights": "random://zeros/4xf32"}
    names = [f"specs/regression_tests/t/{name}_rocm.json" for name in ("p", "q")]
    write_tree(project, dict.fromkeys(names, spec) | {"specs/benchmarks/u/e2e_rocm.json": BENCHMARK | PIPELINE})
    words = ("--model", "t", "--target", "rocm", "--sku", "mi308")
    text = f"the tuner file {project}/specs/external_test_files/tuner.mlir is missing (tuner_file.mi308); "
    hint = "--external-file-directory names the folder of such files"
    for task in ("plan", "fetch"):
        result = run(task, *words)
        assert result.code == 0
        assert result.err == f"warning: {names[0]}, {names[1]}: {text}{hint}\n"
    assert run("lint", *words).out.count(text) == 1
    assert run("plan", *words[:-1], "mi300").err == ""
    # Where another model's benchmark needs the module, too.
    assert run("plan", "--model", "u", *words[2:]).err == f"warning: {names[0]}: {text}{hint}\n"


def test_lint_finds_missing_files(project: Path, run: Run, without_iree: None) -> None:
    write_tree(
        project,
        {
            "specs/regression_tests/b/p_cpu.json": HIP_SPEC | {"mlir": "nowhere.mlir"},
            "specs/regression_tests/b/o_cpu.json": HIP_SPEC | {"outputs": [{"source": "gone.npy"}]},
            "specs/benchmarks/b/e_cpu.json": BENCHMARK | {"modules": ["b_gone"], "compilation_required": True}
            | {"mlir_file_name": "gone.mlir"},
        },
    )  # fmt: skip
    result = run("lint", "--target", "cpu")
    assert result.code == 2
    assert "p_cpu.json:14: mlir: the file " in result.err
    assert "nowhere.mlir is missing" in result.err
    assert "o_cpu.json:10: outputs[0].source: the file " in result.err
    assert "benchmarks/b/e_cpu.json:26: modules: no regression spec defines module 'b_gone'" in result.err
    assert "gone.mlir is missing (mlir_file_name)" in result.err
    assert result.text.count("gone.mlir") == 1
    assert "valid" not in result.out


def test_lint_reads_suites_settings_and_marks_too(project: Path, run: Run, without_iree: None) -> None:
    write_tree(
        project,
        {
            "suites/wrong.toml": 'name = "wrong"\ntarget = "cpuu"\nstages = ["compil"]\n',
            "suites/idle.toml": 'name = "idle"\ntarget = "cpu"\n[[include]]\nmodel = "resnet"\n',
            "suites/part.toml": 'name = "part"\ntarget = "cpu"\n[[include]]\nmodel = "a"\n[[include]]\nmodel = "c"\n',
            "suites/far.toml": 'name = "far"\ntarget = "cpu"\nspec_dirs = ["../elsewhere"]\n',
            "gauntlet.toml": '[histori]\nadd = "yes"\n',
            "history_marks.toml": '[[mark]]\nseries = "a"\niree = "3.8"\nmark = "wrongly"\nreason = "why"\n',
        },
    )
    result = run("lint")
    assert result.code == 2
    for words in (
        "suites/wrong.toml:2: target",
        "suites/wrong.toml:3: stages[0]",
        "gauntlet.toml:1: histori",
        "history_marks.toml:4: mark[0].mark",
        "suites/idle.toml:3: include[0]",
        "suites/part.toml:5: include[1]",
        "suites/far.toml:",
    ):
        assert words in result.text, (words, result.text)
    # What is asked for by name is what is read.
    assert run("lint", "--suite", "suites/cpu.toml").code == 0


def test_a_missing_file_has_a_near_one_or_is_recorded(project: Path, run: Run, without_iree: None) -> None:
    path = project / "specs/regression_tests/a/x_cpu.json"
    spec = json.loads(path.read_text())
    path.write_text(json.dumps(spec | {"mlir": "progam.mlir", "outputs": [{"source": "x_cpu/output_0.npy"}]}))
    found = run("lint").err
    assert "a/progam.mlir is missing; did you mean 'program.mlir'?" in found
    assert "x_cpu/output_0.npy is missing\n    `gauntlet golden.record --model a` creates it" in found


def test_a_spec_outside_of_a_models_folder_is_pointed_out(project: Path, run: Run, without_iree: None) -> None:
    shutil.copyfile(project / "specs/regression_tests/b/y.json", project / "specs/regression_tests/y.json")
    result = run("lint")
    assert "y.json: is not read: specs must be in their model's folder, specs/regression_tests/MODEL/" in result.out
    assert "b" in run("list").out


def test_a_benchmark_of_a_broken_spec_lacks_nothing(project: Path, run: Run, without_iree: None) -> None:
    path = project / "specs/regression_tests/a/x_cpu.json"
    path.write_text(path.read_text().replace('"device"', '"devise"'))
    result = run("lint")
    assert result.code == 2
    assert "devise" in result.err
    assert "no regression spec defines" not in result.text
    path.unlink()
    alone = run("lint")
    assert alone.code == 2
    assert "benchmarks/a/x_cpu.json:6: function_run: no regression spec defines a/x for cpu" in alone.err


@pytest.mark.parametrize(("field", "code"), [("mlir_file_path", 2), ("mlir_file_name", 0)])
def test_lint_refuses_a_program_that_is_not_at_its_path(
    project: Path, run: Run, without_iree: None, field: str, code: int
) -> None:
    # An external file may be in a folder that another machine has.
    spec = BENCHMARK | {"compilation_required": True, field: "gone.mlir", "device": "local-task"}
    write_tree(project, {"specs/benchmarks/c/e_cpu.json": spec | {"golden_dispatch": {}, "golden_size": {}}})
    result = run("lint", "--model", "c")
    assert result.code == code, result.text
    assert "gone.mlir is missing" in (result.err if code else result.out), result.text
    assert (f"c/e_cpu.json:23: {field}: the program " in result.err) is bool(code)


@pytest.mark.parametrize("name", ["f16", "f32", "f64", "bf16"])
def test_lint_checks_tolerances(project: Path, run: Run, name: str) -> None:
    def linted(value: str) -> CommandResult:
        flags = ["--expected_f32_threshold=0.1f", f"--expected_{name}_threshold={value}"]
        write_tree(project, {"specs/regression_tests/b/y.json": SPEC | {"cpu_threshold_args": flags}})
        return run("lint", "--model", "b", "--target", "cpu")

    place = "specs/regression_tests/b/y.json:28: cpu_threshold_args[1]: flag"
    for value, what in (
        ("abc", "not a number"),
        ("1e-05x", "not a number"),
        ("nan", "only equal values pass"),
        ("-1", "only equal values pass"),
    ):
        found = linted(value)
        assert found.code == 2, value
        assert f"{place} '--expected_{name}_threshold={value}'" in found.err
        assert what in found.err
        assert "write a number that is not negative" in found.err
    for value in ("inf", "1e30"):
        found = linted(value)
        assert found.code == 0, value
        assert f"warning: {place} '--expected_{name}_threshold={value}': so large a tolerance" in found.out
    valid = linted("1.5")
    assert (valid.code, "warning" in valid.out) == (0, False)


@pytest.mark.parametrize(("value", "warned"), [("1", True), ("7.5", True), ("0.99", False)])
def test_lint_warns_of_a_relative_tolerance_that_lets_zeros_pass(
    project: Path, run: Run, value: str, *, warned: bool
) -> None:
    flags = [f"--expected_rtol={value}"]
    write_tree(project, {"specs/regression_tests/b/y.json": SPEC | {"cpu_threshold_args": flags}})
    found = run("lint", "--model", "b", "--target", "cpu")
    assert found.code == 0, found.text
    said = f"flag '--expected_rtol={value}': with such a large tolerance zeros pass, whatever is expected"
    assert (said in found.out) is warned


def test_lint_warns_of_a_tolerance_that_the_tool_itself_makes_void(project: Path, run: Run) -> None:
    def linted(*flags: str) -> CommandResult:
        write_tree(project, {"specs/regression_tests/b/y.json": SPEC | {"cpu_threshold_args": list(flags)}})
        result = run("lint", "--model", "b", "--target", "cpu")
        assert result.code == 0
        return result

    found = linted("--expected_f32_threshold=2e-06")
    assert (
        "specs/regression_tests/b/y.json:27: cpu_threshold_args[0]: flag '--expected_f32_threshold=2e-06':"
        " iree-run-module adds 1e-05·|expected| to it, which is more for values above 0.2"
    ) in found.out
    assert "--expected_rtol=0" in found.out
    for flags in (
        ("--expected_f32_threshold=1e-05",),
        ("--expected_f32_threshold=2e-06", "--expected_rtol=0"),
        ("--expected_rtol=1e-05", "--expected_f64_threshold=1e-12"),
    ):
        assert "warning" not in linted(*flags).out, flags


@pytest.mark.iree
def test_lint_with_the_toolchain_knows_the_flags(project: Path, run: Run) -> None:
    flags = ["--iree-hal-target-backends=llvm-cpu", "--iree-no-such-flag"]
    name = "specs/regression_tests/a/x_cpu.json"
    document = json.loads((project / name).read_text(encoding="utf-8"))
    write_tree(project, {name: document | {"compiler_flags": flags}})
    assert run("lint", "--model", "a").code == 0
    result = run("lint", "--model", "a", "--toolchain")
    assert result.code == 2
    assert "--iree-no-such-flag" in result.err


def test_lint_with_the_toolchain_checks_flags_with_other_mistakes(project: Path, run: Run) -> None:
    spec = HIP_SPEC | {"device": "local-task", "compiler_flags": ["--iree-hal-target-backends=llvm-cpu", "--iree-typo"]}
    files = {
        "b/flag_cpu.json": spec,
        "b/field_cpu.json": HIP_SPEC | {"junk": 1},
        "b/source_cpu.json": spec | {"mlir": "ftp://h/m.mlir", "compiler_flags": ["--iree-slip=1"]},
    }
    write_tree(project / "specs/regression_tests", files)
    benchmark = BENCHMARK | {"golden_time_ms": {"box": 2}, "device": "local-task"}
    write_tree(project / "specs/benchmarks", {"b/source_cpu.json": benchmark})
    result = run("lint", "--toolchain")
    assert result.code == 2
    flags = (
        "flag_cpu.json:18: compiler_flags[1]: iree-compile does not know --iree-typo",
        "source_cpu.json:17: compiler_flags[0]: iree-compile does not know",
    )
    for text in (*flags, "junk: unknown", "unknown scheme 'ftp'"):
        assert text in result.err


def test_lint_without_the_toolchain_shows_other_mistakes_all_the_same(
    project: Path, run: Run, without_iree: None
) -> None:
    write_tree(project, {"specs/regression_tests/b/field_cpu.json": HIP_SPEC | {"junk": 1}})
    result = run("lint", "--toolchain")
    assert (result.code, "junk: unknown field" in result.err) == (2, True)
    assert "note: flags were not checked: no IREE in this Python" in result.out


def test_lint_with_the_toolchain_needs_one(project: Path, run: Run, without_iree: None) -> None:
    result = run("lint", "--toolchain", "--model", "a")
    assert result.code == 3
    assert "no IREE in this Python" in result.err
