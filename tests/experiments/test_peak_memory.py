"""The memory of one call, as IREE's tools report it, as figures with goldens."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.history.extract import extract
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.measuring.profiles.memory_profile import DEVICE_HEAP, HOST_HEAP, read_heap_peaks
from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.requests import RunRequest
from iree_gauntlet.stages import Stage
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.faulty_iree import SyntheticBuild, write_build_tree
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_BLOCK = """Device: local-sync
[[ iree_hal_allocator_t memory statistics ]]
  HOST_LOCAL:          128B peak /          128B allocated /          128B freed /            0B live
DEVICE_LOCAL:       147456B peak /       294912B allocated /       294912B freed /            0B live
"""
_FIGURES = (Figure.PEAK_MEMORY, Figure.LOADED_MEMORY, Figure.HOST_MEMORY, Figure.PROCESS_MEMORY)
# The inputs, the product of the first two, and the product of this with the third.
_PRODUCTS = """
func.func @products(%a: tensor<64x64xf32>, %b: tensor<64x1024xf32>, %c: tensor<1024x64xf32>) -> tensor<64x64xf32> {
  %left = tensor.extract_slice %b[0, 0] [64, 512] [1, 1] : tensor<64x1024xf32> to tensor<64x512xf32>
  %right = tensor.extract_slice %c[0, 0] [512, 64] [1, 1] : tensor<1024x64xf32> to tensor<512x64xf32>
  %zero = arith.constant 0.0 : f32
  %wide = tensor.empty() : tensor<64x512xf32>
  %filled_wide = linalg.fill ins(%zero : f32) outs(%wide : tensor<64x512xf32>) -> tensor<64x512xf32>
  %first = linalg.matmul ins(%a, %left : tensor<64x64xf32>, tensor<64x512xf32>)
    outs(%filled_wide : tensor<64x512xf32>) -> tensor<64x512xf32>
  %small = tensor.empty() : tensor<64x64xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%small : tensor<64x64xf32>) -> tensor<64x64xf32>
  %0 = linalg.matmul ins(%first, %right : tensor<64x512xf32>, tensor<512x64xf32>)
    outs(%filled : tensor<64x64xf32>) -> tensor<64x64xf32>
  return %0 : tensor<64x64xf32>
}
"""
_SHAPES = ["64x64xf32", "64x1024xf32", "1024x64xf32"]
_INPUT_BYTES = 4 * (64 * 64 + 64 * 1024 + 1024 * 64)
# The bytes by which the first product grows if its width is doubled.
_GROWTH = 4 * 64 * 512
_WIDEN = 'program=$1; shift; sed s/512/1024/g "$program" > wide.mlir; set -- wide.mlir "$@"'


def test_the_peaks_of_all_devices_are_added() -> None:
    lines = ["Running it", *(2 * _BLOCK).splitlines(), "done"]
    assert read_heap_peaks(lines, is_call=True) == {DEVICE_HEAP: 2 * 147456, HOST_HEAP: 2 * 128}
    nothing = re.sub(r"\d+B", "0B", _BLOCK).splitlines()
    assert read_heap_peaks(nothing) == {DEVICE_HEAP: 0, HOST_HEAP: 0}
    with pytest.raises(GauntletError, match="allocator counted no bytes"):
        read_heap_peaks(nothing, is_call=True)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("memory statistics", "statistics", "printed no memory statistics"),
        ("147456B peak", "144KiB peak", "have '144KiB' for DEVICE_LOCAL: expected a peak in bytes"),
        ("147456B peak", "147456B at most", "have no DEVICE_LOCAL"),
        ("HOST_LOCAL", "HOST", "have no HOST_LOCAL"),
        ("147456B peak", "-1B peak", "have '-1B' for DEVICE_LOCAL"),
        (_BLOCK[90:], "", "have no DEVICE_LOCAL"),
    ],
)
def test_other_texts_are_refused_with_what_is_wrong(old: str, new: str, reason: str) -> None:
    # A second block does not make up for the first.
    for text in (_BLOCK.replace(old, new), _BLOCK.replace(old, new) + _BLOCK):
        if "[[ iree" in text and reason.startswith("printed"):
            continue
        with pytest.raises(GauntletError, match=re.escape(reason)):
            read_heap_peaks(text.splitlines())


def test_a_resumed_run_measures_memory_again() -> None:
    kept = RunRequest(memory=True).resume_options
    assert RunRequest().with_resumed_options(kept).choose_stages((Stage.BENCHMARK,)) == (Stage.BENCHMARK, Stage.MEMORY)


_SELECTED = ("--submodel", "products")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    # Each test compiles in its own folder, because a module's bytes depend on the path of its program.
    project = Project(tmp_path, cache="flags")
    _write(project)
    project.regression("products", inputs=[{"value": shape} for shape in _SHAPES], outputs=[])
    _benchmark(project)
    yield project
    project.close()


def _write(project: Project, width: int = 512) -> None:
    (project.regressions / "products.mlir").write_text(_PRODUCTS.replace("512", str(width)))


def _benchmark(project: Project, **changes: Any) -> None:
    project.benchmark("products", inputs=_SHAPES, **changes)


def _run(
    project: Project, *words: str, model: str = "products", folder: str = "r", code: int = 0, **tools: str
) -> tuple[dict[str, Any], str]:
    """Measure the memory; return the chain in `summary.json`, and the output."""
    words = ("--submodel", model, "--stages", "memory", "--run-dir", folder, *words)
    done = project.gauntlet("run", *words, **tools)
    assert done.code == code, done.text
    (chain,) = json.loads((project.folder / folder / "summary.json").read_text())["chains"]
    return chain, done.out


@pytest.mark.iree
def test_the_figures_are_those_of_the_tool(project: Project) -> None:
    words = ("--memory", "--stages", "benchmark", "--run-dir", "r")
    done = project.gauntlet("run", *_SELECTED, *words)
    assert done.code == 0, done.text
    (chain,) = json.loads((project.folder / "r" / "summary.json").read_text())["chains"]
    peak, loaded, host, process = (chain[figure.row.key_in_summary]["measured"] for figure in _FIGURES)
    (module,) = (project.folder / "r").rglob("module.vmfb")
    argv = [find_installed().runtime.benchmark_module, "--device=local-sync", "--function=products",
            f"--module={module}", "--input=64x64xf32", "--input=64x1024xf32", "--input=1024x64xf32",
            "--print_statistics", "--benchmark_min_time=3x"]  # fmt: skip
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stderr
    assert re.search(rf"DEVICE_LOCAL: +{peak}B peak", printed), printed
    assert (loaded, host) == (_INPUT_BYTES, 0)
    # The compiler's transient memory of one call has the output too.
    assert peak == loaded + chain["transient_bytes"]["measured"]
    assert peak > process / 100 > 0
    assert f"{peak:,}" in done.out
    properties = {
        item.get("name"): item.get("value") for item in ET.parse(project.folder / "r/junit.xml").iter("property")
    }
    assert properties["memory.peak_memory_bytes"] == str(peak)
    # The benchmark's command is as without the option.
    journal = read_journal(project.folder / "r" / "journal.jsonl")
    (benchmark,) = (step.required_command.argv for step in journal.planned if step.stage is Stage.BENCHMARK)
    assert "--print_statistics" not in benchmark
    assert "--device=local-task" in benchmark
    (part,) = extract(read_outcome(journal))
    series = {figure.name: figure.value for case in part.cases for figure in case.figures}
    assert {name: series[name] for name in ("peak_memory_bytes", "loaded_memory_bytes", "process_peak_bytes")} == {
        "peak_memory_bytes": peak, "loaded_memory_bytes": loaded, "process_peak_bytes": process}  # fmt: skip


@pytest.mark.iree
def test_a_golden_is_broken_by_a_larger_buffer_and_updated(project: Project) -> None:
    peak = _run(project)[0]["peak_memory_bytes"]["measured"]
    _benchmark(project, golden_peak_memory={"cpu": peak}, golden_loaded_memory={"cpu": _INPUT_BYTES})
    chain, out = _run(project, folder="kept")
    assert chain["peak_memory_bytes"] == {"measured": peak, "golden": peak, "limit": peak, "passed": True}
    assert "peak memory 1, loaded memory 1" in out
    _write(project, 1024)
    chain, out = _run(project, folder="broken", code=1)
    assert chain["peak_memory_bytes"]["measured"] == peak + _GROWTH
    assert f"peak memory {peak + _GROWTH:,} bytes exceeds the limit {peak:,} bytes by {_GROWTH:,} bytes" in out
    done = project.gauntlet("golden.update", "--run", "broken", "--write")
    assert done.code == 0, done.text
    spec = json.loads((project.benchmarks / "products_cpu.json").read_text())
    assert spec["golden_peak_memory"] == {"cpu": peak + _GROWTH}
    # A baseline is a golden too.
    _benchmark(project)
    _, out = _run(project, "--baseline", "kept", folder="larger", code=1)
    assert "(--baseline kept)" in out


@pytest.mark.iree
@pytest.mark.stress
def test_a_compiler_that_needs_larger_buffers_is_found(project: Project, tmp_path: Path) -> None:
    builds = SyntheticBuild(tmp_path / "plain"), SyntheticBuild(tmp_path / "wide", iree_compile=_WIDEN)
    plain, wide = (build.iree for build in builds)
    quick = ("--repetitions", "2", "--disturbed", "count", "--cpus", "all", "--no-work", *_SELECTED)
    done = project.gauntlet("compare", plain, wide, "--memory", *quick, "--run-dir", "cmp")
    assert done.code == 0, done.text
    changes = json.loads((project.folder / "cmp" / "comparison.json").read_text())["changes"]
    (change,) = (change for change in changes if change["figure"] == "peak memory")
    a, b = (int(change[side].replace(",", "")) for side in "ab")
    assert (b - a, change["notable"]) == (_GROWTH, True)
    assert re.search(rf"peak memory +{a:,} +{b:,}", done.out)
    matrix = project.gauntlet("matrix", "--iree", plain, "--iree", wide, "--memory", "--stages", "memory", *_SELECTED,
                              "--run-dir", "m")  # fmt: skip
    assert matrix.code == 0, matrix.text
    assert "Peak memory, bytes" in matrix.out
    (chain,) = json.loads((project.folder / "m" / "matrix.json").read_text())["chains"]
    assert [cell["peak_memory_bytes"] for cell in chain["irees"].values()] == [a, b]
    other = write_build_tree(tmp_path / "other", name="other")
    done = project.gauntlet("bisect", "--good", plain, "--bad", wide, "--among", other, "--metric", "peak-memory",
                            *_SELECTED, "--run-dir", "b")  # fmt: skip
    assert done.code == 0, done.text
    assert "first bad: wide; last good: other · exact" in done.out


@pytest.mark.iree
@pytest.mark.parametrize(
    ("edit", "reason", "missing"),
    [
        ("/memory statistics/d", "the tool printed no memory statistics", _FIGURES[:3]),
        ("s/[0-9]*B peak/1.2KiB peak/", "have '1.2KiB' for DEVICE_LOCAL: expected a peak in bytes", _FIGURES[:3]),
        ("s/[0-9]*B /0B /g", "the device's allocator counted no bytes", _FIGURES[:3]),
        ("", "the tool printed no memory statistics", [Figure.LOADED_MEMORY]),
    ],
)
def test_an_unknown_text_is_a_reason_and_no_figure(
    tmp_path: Path, edit: str, reason: str, missing: Sequence[Figure]
) -> None:
    project = Project(tmp_path)
    # Loading without a call fails in the last case.
    first = "case $* in *list_tests*) exit 1 ;; esac" if len(missing) == 1 else ""
    real = find_installed().runtime.benchmark_module
    tool = project.write_tool(f"{first}\n{real} \"$@\" 2> said.txt; code=$?; sed '{edit}' said.txt >&2; exit $code")
    chain, out = _run(project, model="abs", benchmark_module=tool)
    assert reason in (project.folder / "r" / "summary.md").read_text()
    assert {figure for figure in _FIGURES if figure.row.key_in_summary not in chain} == {*missing}
    # A golden of what is unknown is not kept.
    project.benchmark("abs", golden_peak_memory={"cpu": 10**9}, golden_loaded_memory={"cpu": 10**9})
    _, out = _run(project, model="abs", folder="golden", code=3, benchmark_module=tool)
    assert "not all memory is known: the" in out
    assert reason in out


@pytest.mark.iree
def test_a_tool_that_crashes_or_calls_nothing_is_an_error(tmp_path: Path) -> None:
    project = Project(tmp_path)
    _, out = _run(project, model="abs", code=3, benchmark_module=project.write_tool("kill -SEGV $$"))
    assert "crashed with SIGSEGV" in out
    _, out = _run(project, model="abs", folder="nothing", code=3, benchmark_module=project.write_tool("exit 0"))
    assert "the benchmark printed no results" in out


@pytest.mark.iree
def test_a_benchmark_that_is_expected_to_crash_is_not_called(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.suite('[[expect_failure]]\ncase = "toy/abs"\nstage = "benchmark"\nkind = "crashes"\nreason = "r"\n')
    done = project.gauntlet("plan", "--suite", "s", "--memory", "--stages", "benchmark", "--format", "json")
    assert done.code == 0, done.text
    steps = {step["id"]: step for step in json.loads(done.out)["steps"]}
    assert steps["toy/abs@cpu:memory"]["skip"] == "its benchmark is expected to fail: r"
    assert not steps["toy/abs@cpu:benchmark"]["skip"]
