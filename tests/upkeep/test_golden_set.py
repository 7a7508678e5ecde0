"""First goldens: what a run has measured becomes the golden of a spec that has none, and nothing else changes."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.journal_builder import JournalBuilder
from tests.support.synthetic_times import write_benchmark_tool
from tests.support.toy_project import FLAGS, Project
from tests.support.unified_diff import apply_diff

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.iree

_STAGES = ("--stages", "compstat")
_PLANNED_MEMORY = {"golden_transient_memory", "golden_constant_memory", "golden_variable_memory"}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    yield project
    project.close()


def _spec(project: Project, name: str = "abs_cpu") -> dict[str, Any]:
    spec: dict[str, Any] = json.loads((project.benchmarks / f"{name}.json").read_text())
    return spec


def _goldens(project: Project, name: str = "abs_cpu") -> dict[str, Any]:
    return {key: value for key, value in _spec(project, name).items() if key.startswith("golden_")}


def _run(project: Project, *words: str, code: int = 0, **toolchain: str) -> None:
    done = project.gauntlet("run", *words, **toolchain)
    assert done.code == code, done.text


def _time(project: Project, *words: str, causes: Sequence[str] = ()) -> None:
    """Measure times; the run then has these disturbances, whatever else the machine does."""
    tool = project.folder / "times" / "iree-benchmark-module"
    times = str(tool) if tool.exists() else write_benchmark_tool(tool.parent, [0.3, 0.4, 0.35])
    _run(project, *words, benchmark_module=times)
    journal = project.newest / "journal.jsonl"
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    for event in events:
        if event.get("samples"):
            event["statistics"]["disturbed"] = [*causes]
    journal.write_text("".join(f"{json.dumps(event)}\n" for event in events))


def _set(project: Project, *words: str, code: int = 0) -> str:
    done = project.gauntlet("golden.set", *words)
    assert done.code == code, done.text
    return done.err


def _release(project: Project) -> str:
    match = re.match(r"[0-9.]*[0-9]", project.journal.run.toolchain.compiler)
    assert match
    return match[0]


def test_a_spec_gets_the_goldens_of_its_first_run(project: Project) -> None:
    path = project.benchmarks / "abs_cpu.json"
    text = path.read_text()
    _time(project, "--sku", "desk")
    counts = project.result("toy/abs@cpu:compstat")["statistics"]

    done = project.gauntlet("golden.set", "--time-tolerance", "1.5")
    assert done.code == 0, done.text
    # Another kind of CPU has other code.
    assert "golden_code_size.cpu: this machine's CPU decides the code" in done.err
    assert path.read_text() == text, "nothing is written unless it is asked for"
    assert "nothing was written: --write changes the files" in done.err
    row = next(line.split() for line in done.err.splitlines() if "golden_dispatch.cpu" in line)
    assert row[:4] == ["specs/benchmarks/toy/abs_cpu.json", "golden_dispatch.cpu", "–", "1"]
    apply_diff(project.folder, done.out)
    patched = path.read_text()
    path.write_text(text)
    _set(project, "--time-tolerance", "1.5", "--write")
    assert path.read_text() == patched

    goldens = _goldens(project)
    assert _spec(project) == json.loads(text) | goldens
    assert patched.startswith(text.rstrip("}\n")), "order and layout stay"
    assert {
        "golden_compiler": _release(project),
        "golden_dispatch": {"cpu": counts["dispatch_count"]},
        "golden_size": {"cpu": counts["binary_size_bytes"]},
        "golden_transient_memory": {"cpu": counts["transient_bytes"]},
        "golden_time_ms": {"desk": 0.35},
        "golden_time_tolerance_multiplier": {"desk": 1.5},
    }.items() <= goldens.items()
    # The goldens hold, each is applied, and a second `golden.set` has nothing to do.
    _time(project, "--sku", "desk", "--unapplied-goldens", "fail")
    shown = json.loads(project.gauntlet("golden.show", "--format", "json").out)["goldens"]
    assert {item["verdict"] for item in shown} == {"kept"}
    assert len(shown) == len(goldens) - 2
    assert "nothing to change" in _set(project, "--write")
    assert project.gauntlet("lint").code == 0


def test_sizes_get_room_and_memory_is_set_where_it_is_measured(project: Project) -> None:
    _run(project, "--memory", "--stages", "compstat")
    _set(project, "--size-headroom", "2", "--write")
    goldens = _goldens(project)
    size = project.result("toy/abs@cpu:compstat")["statistics"]["binary_size_bytes"]
    assert 2 * size <= goldens["golden_size"]["cpu"] < 2.02 * size
    memory = project.result("toy/abs@cpu:memory")["statistics"]
    assert goldens["golden_peak_memory"] == {"cpu": memory["peak_memory_bytes"]}
    assert set(goldens) > _PLANNED_MEMORY
    assert not {"golden_instructions", "golden_time_ms", "golden_tuned_dispatches"} & set(goldens)


def test_what_is_there_stays_unless_it_is_to_be_updated(project: Project) -> None:
    text = (
        '{\n  "inputs": ["4xf32"],\n  "golden_dispatch": {"cpu": 7, "rack": 9},  "markers": [],\n'
        '  "golden_compiler": ">=3.9",\n  "function_run": "abs", "device": "local-task"\n}\n'
    )
    path = project.benchmarks / "abs_cpu.json"
    path.write_text(text)
    _run(project, *_STAGES)
    _set(project, "--write")
    written = path.read_text()
    assert '"golden_dispatch": {"cpu": 7, "rack": 9},  "markers": [],\n' in written
    assert '"golden_compiler": ">=3.9",\n  "golden_size": {"cpu": ' in written
    assert '"function_run": "abs", "device": "local-task"\n}\n' in written
    path.write_text(text)
    table = _set(project, "--update", "--write")
    assert '"golden_dispatch": {"cpu": 1, "rack": 9},  "markers": [],\n' in path.read_text()
    row = next(line.split() for line in table.splitlines() if "golden_dispatch.cpu" in line)
    assert row[2:4] == ["7", "1"]
    assert '"golden_size": {"cpu": ' in path.read_text()


def test_goldens_of_every_release_get_no_release(project: Project) -> None:
    project.benchmark(golden_dispatch={"cpu": 1})
    _run(project, *_STAGES)
    _set(project, "--write")
    goldens = _goldens(project)
    assert "golden_size" in goldens
    assert "golden_compiler" not in goldens


def test_goldens_of_another_release_are_not_mixed(project: Project) -> None:
    project.benchmark(golden_compiler="3.0.0", golden_dispatch={"cpu": 1})
    text = (project.benchmarks / "abs_cpu.json").read_text()
    _run(project, *_STAGES)
    assert f"it belongs to release 3.0.0, but {_release(project)} was measured" in _set(project, "--write")
    assert (project.benchmarks / "abs_cpu.json").read_text() == text
    assert "Give --update too." in _set(project, "--to-release", code=2)
    _set(project, "--update", "--to-release", "--write")
    assert _goldens(project)["golden_compiler"] == _release(project)
    assert "golden_size" in _goldens(project)


def test_times_need_a_sku(project: Project) -> None:
    _time(project, "--stages", "benchmark")
    reason = "it was measured without a SKU, and a golden time needs one: `gauntlet run --sku NAME`"
    assert f"abs_cpu.json: golden_time_ms: {reason}" in _set(project)
    _time(project, "--stages", "benchmark", "--sku", "desk", causes=["other work"])
    assert "golden_time_ms.desk: " in (errors := _set(project, "--write"))
    assert errors.rstrip().endswith("disturbed: other work\nnothing to change")
    _time(project, "--stages", "benchmark", "--sku", "desk")
    assert "measured with --sku desk, and a golden time needs one: `gauntlet run --sku rack`" in _set(
        project, "--sku", "rack", "--write"
    )
    assert _goldens(project) == {}
    _set(project, "--sku", "desk", "--write")
    assert _goldens(project) == {"golden_time_ms": {"desk": 0.35}}


@pytest.mark.parametrize("change", ["outputs", "program", "golden"])
def test_a_failed_result_gives_no_golden(project: Project, change: str) -> None:
    project.add("good", "math.absf %a : tensor<4xf32>")
    stage = {"outputs": "threshold", "program": "compile", "golden": "compstat"}[change]
    if change == "outputs":
        project.write_expected("abs", [9, 9, 9, 9])
    elif change == "program":
        (project.regressions / "abs.mlir").write_text("no program")
    else:
        project.benchmark(golden_dispatch={"cpu": 0})
    _run(project, "--stages", "threshold", "--stages", "compstat", code=1)
    errors = _set(project, "--write")
    assert re.search(rf"^not set +specs/benchmarks/toy/abs_cpu.json.*: its {stage} failed$", errors, re.MULTILINE)
    assert _goldens(project) == ({"golden_dispatch": {"cpu": 0}} if change == "golden" else {})
    assert _goldens(project, "good_cpu")["golden_dispatch"] == {"cpu": 1}


def test_runs_that_disagree_give_no_golden(project: Project) -> None:
    _run(project, *_STAGES, "--run-dir", "runs/a")
    shutil.copytree(project.folder / "runs/a", project.folder / "runs/b")
    journal = project.folder / "runs/b/journal.jsonl"
    journal.write_text(re.sub(r'("dispatch_count": ?)1\b', r"\g<1>2", journal.read_text()))
    errors = _set(project, "--run", "a", "--run", "b", "--write")
    assert "golden_dispatch.cpu: the counts differ: 1, 2" in errors
    assert "golden_dispatch" not in _goldens(project)
    assert "golden_size" in _goldens(project)


def test_what_has_no_place_or_no_result_is_told(project: Project) -> None:
    project.add("lone")
    (project.benchmarks / "lone_cpu.json").unlink()
    project.add("other")
    _run(project, *_STAGES, "--submodel", "abs", "--run-dir", "runs/one")
    errors = _set(project, "--model", "toy")
    assert "not set  specs/benchmarks/toy/other_cpu.json: no figure of it is in one" in errors
    _run(project, "--submodel", "lone", "--stages", "threshold")
    assert "not set  toy/lone@cpu: it has no benchmark spec" in _set(project)
    (project.benchmarks / "lone_cpu.json").write_text("{")
    assert "warning: specs/benchmarks/toy/lone_cpu.json:1: ends in the middle" in _set(project, code=2)
    (project.benchmarks / "lone_cpu.json").unlink()
    _run(project, "--submodel", "abs", "--stages", "compile")
    assert "no figure of a benchmark spec was measured" in _set(project, code=5)
    assert "no figure of it is in 2" in _set(project, "--submodel", "abs")
    assert "no case matches" in _set(project, "--model", "nope", code=5)


def test_a_spec_that_cannot_be_read_is_told_and_the_others_are_written(project: Project) -> None:
    project.add("good")
    _run(project, *_STAGES)
    (project.benchmarks / "abs_cpu.json").write_text("{")
    assert "warning: specs/benchmarks/toy/abs_cpu.json:1: ends in the middle" in _set(project, "--write", code=2)
    assert _goldens(project, "good_cpu")["golden_dispatch"] == {"cpu": 1}
    (project.benchmarks / "good_cpu.json").unlink()
    assert "good_cpu.json: it is not among the specs (--spec-dir" in _set(project, code=2)


def test_the_older_name_of_a_time_is_kept(project: Project) -> None:
    project.benchmark(golden_time={"rack": 9.0})
    _time(project, "--stages", "benchmark", "--sku", "desk")
    _set(project, "--write")
    assert _goldens(project) == {"golden_time": {"rack": 9.0, "desk": 0.35}}
    assert project.gauntlet("lint").code == 0


def test_formats_without_such_goldens_are_told(project: Project) -> None:
    builder = JournalBuilder(run="mixed")
    for dialect in ("torch-models", "op_tests"):
        builder.step(dialect, "x", "compstat", dialect=dialect)
    builder.begin()
    builder.end()
    builder.write(project.folder / "runs" / "mixed")
    errors = _set(project, "--run", "mixed")
    assert "not set  torch-models/x@cpu: it is a test of a torch model" in errors
    assert "not set  op_tests/x@cpu: it is in an operator suite" in errors


def test_a_variant_gets_goldens_of_its_own(project: Project) -> None:
    _run(project, *_STAGES, "--variant", "slow=--iree-opt-level=O1")
    assert "`gauntlet golden.set` writes the first goldens of a variant." in project.gauntlet("golden.update").err
    _set(project, "--write")
    spec = _spec(project)
    assert spec["golden_compiler"] == _release(project)
    assert spec["variants"]["slow"]["golden_dispatch"] == {"cpu": 1}
    assert "golden_dispatch" not in spec
    _run(project, *_STAGES, "--variant", "slow=--iree-opt-level=O1", "--unapplied-goldens", "fail")
    _run(project, *_STAGES)
    _set(project, "--write")
    assert _spec(project) == spec | _goldens(project)
    assert _spec(project)["golden_dispatch"] == {"cpu": 1}


def test_another_target_has_its_chip_as_key(project: Project) -> None:
    project.regression(targets={"vulkan": {}}, compiler_flags=FLAGS)
    _run(project, *_STAGES, "--target", "aarch64", "--target", "vulkan")
    assert "specs/benchmarks/toy/abs_cpu.json: no figure of it is in " in _set(project, "--target", "cpu")
    _set(project, "--target", "vulkan", "--write")
    assert _goldens(project)["golden_dispatch"] == {"vulkan": 1}
    _set(project, "--write")
    assert _goldens(project)["golden_dispatch"] == {"vulkan": 1, "aarch64": 1}
    _run(project, *_STAGES, "--target", "aarch64", "--target", "vulkan", "--unapplied-goldens", "fail")
    # A golden of this machine's CPU is none of another architecture.
    project.benchmark(golden_dispatch={"cpu": 5})
    _set(project, "--write")
    assert _goldens(project)["golden_dispatch"] == {"cpu": 5, "vulkan": 1, "aarch64": 1}


@pytest.mark.parametrize("option", ["--size-headroom", "--time-tolerance"])
def test_a_factor_below_one_is_refused(project: Project, option: str) -> None:
    assert f"{option} 0.5: expected a factor of 1 or more" in _set(project, option, "0.5", code=2)


def test_a_sku_that_no_golden_names_is_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.benchmark(golden_time_ms={"desk": 9.0, "rack": 9.0}, golden_dispatch={"cpu": 1})
    times = write_benchmark_tool(project.folder / "times", [0.3, 0.4, 0.35])
    warning = "no golden of the selection is for --sku dekk; did you mean 'desk'? (SKUs with goldens: desk, rack)"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    done = project.gauntlet("run", "--sku", "dekk", benchmark_module=times)
    assert done.code == 0, done.text
    assert f"warning: {warning}\n" in done.err
    assert f"::warning title=selection::{warning}\n" in done.text
    assert "times 0 (no golden for dekk)" in done.out
    assert warning in (project.newest / "summary.md").read_text().replace("\\", "")
    assert warning in json.loads((project.newest / "summary.json").read_text())["remarks"]
    for command in ("golden.show", "golden.update"):
        assert f"warning: {warning}\n" in project.gauntlet(command, "--sku", "dekk").err
    assert f"warning: {warning}\n" in project.gauntlet("golden.set").err, "it would begin goldens of its own"
    refused = project.gauntlet("run", "--sku", "dekk", "--unapplied-goldens", "fail")
    assert (refused.code, f"error: {warning}\n" in refused.err) == (2, True), refused.text

    done = project.gauntlet("run", "--sku", "desk", benchmark_module=times)
    assert "no golden of the selection" not in done.text
    assert "times 1" in done.out
    # Stages without goldens do not need one; `benchmark` has a SKU of its own that nobody asked for.
    for words in (("run", "--sku", "dekk", "--stages", "compile"), ("benchmark", "--target", "cpu")):
        assert "no golden of the selection" not in project.gauntlet(*words, benchmark_module=times).text
    project.benchmark()
    assert "is for --sku desk (no SKU has one)" in project.gauntlet("run", *_STAGES, "--sku", "desk").err
