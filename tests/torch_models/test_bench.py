"""`bench` from its command line to its reports, with the real compiler and a fake torch.

The tests begin with the cache of a first benchmark, and most of them have synthetic times
(`tests/support/fake_measuring.py`).
"""

from __future__ import annotations

import json
import signal
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING
from unittest.mock import Mock

import numpy as np
import pytest

from iree_gauntlet.cases import Verdict
from iree_gauntlet.results import Result, Samples
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import make_step_id
from iree_gauntlet.torch_models import bench_session
from iree_gauntlet.torch_models.agreement import ContractionErrors
from iree_gauntlet.torch_models.bench_result import _format_sensitivity, make_result_lines
from iree_gauntlet.torch_models.bench_session import make_bench_figures
from iree_gauntlet.torch_models.build_files import TokenLoop
from iree_gauntlet.torch_models.torch_chain import CallMeasurement
from iree_gauntlet.workers.iree_side.plan_file import write_arrays
from tests.support.bench_project import Bench, Benchmarks, make_first_benchmarks
from tests.support.fake_measuring import CALL_MS
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.journal_events import Device

pytestmark = pytest.mark.iree


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.project.close()


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A benchmark that has ended, of what was all made before."""
    made = Bench(tmp_path_factory.mktemp("second"))
    (made.folder / "gauntlet.toml").write_text('[history]\nstore = "history"\nadd = true\n')
    done = made.run("-m", "line", "-c", "small", "-o", "perf")
    assert done.code == 0, done.text
    return made


@pytest.fixture(scope="module")
def first() -> Benchmarks:
    return make_first_benchmarks()


@pytest.fixture(scope="module")
def said(first: Benchmarks) -> str:
    return (first.folder / "said.txt").read_text()


def test_a_model_is_measured(first: Benchmarks, said: str) -> None:
    assert "line/small: " in said
    assert "result 2 of perf.json" in said
    assert "note: 7 calls are too few to compare: use --loop_count 100" in said
    entry = first.perf[1]
    assert entry["total_samples"] == 14
    assert entry["samples_per_sec"] == pytest.approx(entry["total_samples"] / entry["total_time"])
    assert entry["args"]["loop_count"] == 7
    assert entry["args"]["model"] == "line"
    assert entry["arch"] == "cpu"
    assert "error" not in entry
    assert entry["numeric_error"]["rms"] <= entry["numeric_error"]["rms_tolerance"]
    latency = entry["latency_ms"]
    assert latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    for name in ("overhead_us", "first_call_ms", "compile_seconds", "peak_rss_bytes", "module_bytes", "parameters"):
        assert entry[name] > 0


@pytest.mark.vulkan
def test_what_is_measured_against_others_takes_its_gpu_too(
    bench: Bench, vulkan: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block by block, so that its step itself holds nothing."""
    monkeypatch.setattr(bench_session, "measure_peers", lambda *_arguments: [])
    done = bench.run("-m", "line", "-c", "small", "--device", "vulkan", "--against", "torch-eager")
    steps = {step["id"].rpartition(":")[2]: step["resources"] for step in bench.journal.steps}
    assert (steps["benchmark.against"]["device"], steps["benchmark.against"]["cores"]) == (vulkan.uri, 0), done.text
    assert (steps["benchmark"]["device"], steps["threshold"]["device"]) == (vulkan.uri, vulkan.uri)


def test_a_broken_file_keeps_no_other_model_from_its_benchmark(bench: Bench) -> None:
    (bench.models / "broken.py").write_text("def f(:\n")
    done = bench.run("-m", "line", "-c", "small")
    assert done.code == 0, done.text
    assert "warning: specs/models/broken.py:1: SyntaxError: invalid syntax" in done.err
    listed = bench.run("--list")
    assert (listed.code, "2 models, " in listed.out) == (2, True)
    assert "error: 1 problem in benchmark models:\n  specs/models/broken.py:1: SyntaxError" in listed.err
    assert bench.run("-m", "broken").code == 2
    # Which of the two is meant?
    (bench.models / "broken.py").write_text((bench.models / "line.py").read_text())
    twice = bench.run("-m", "line", "-c", "small")
    assert (twice.code, "a model of this name is already declared at" in twice.err) == (2, True)


def test_another_format_is_another_model(first: Benchmarks) -> None:
    assert first.builds == ["line", "line", "counter"]
    errors = [entry["numeric_error"]["to_f32"] for entry in first.perf[:2]]
    assert errors[1] < 1e-6 < errors[0]
    assert [entry["dataformat"] for entry in first.perf[:2]] == ["Fp16", "Fp32"]


def test_the_second_time_nothing_is_made(second: Bench) -> None:
    assert second.builds == []
    steps = ("export", "import", "compile")
    assert all(second.result(f"line/small@cpu:{stage}")["cache"]["hit"] for stage in steps)
    (entry,) = second.perf
    assert entry["total_samples"] == 10
    assert entry["total_time"] == pytest.approx(5 * CALL_MS / 1000)
    assert entry["samples_per_sec"] == pytest.approx(2000 / CALL_MS)
    assert second.result("line/small@cpu:benchmark")["samples"]["real_time_ms"] == [CALL_MS] * 5


def test_it_adds_itself_to_the_history(second: Bench) -> None:
    exported = second.project.gauntlet("history.export", "--series", "* time_ms")
    assert exported.code == 0, exported.text
    _, row = exported.out.splitlines()
    assert row.startswith("line,small,cpu,time_ms,")
    assert f",{CALL_MS}," in row


def test_it_is_on_the_page_of_all_runs(second: Bench) -> None:
    assert "/summary.html" in (second.folder / "runs" / "index.html").read_text()


def test_all_reports_have_it(second: Bench) -> None:
    run = second.newest
    cases = [case.get("name") for case in ET.parse(run / "junit.xml").getroot().iter("testcase")]
    assert cases == ["export", "import", "compile", "threshold", "benchmark"]
    speed = (run / "summary.md").read_text().partition("## Speed")[2]
    assert "| `line/small@cpu` |" in speed
    again = second.project.gauntlet("report", "latest")
    assert again.code == 0
    assert "line/small@cpu" in again.out


def test_wrong_numbers_have_no_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, real_steps="threshold")
    monkeypatch.setenv("STAND_IN", "wrong")
    done = bench.run("-m", "line", "-c", "small", "-o", "perf.json")
    assert done.code == 1, done.text
    (entry,) = bench.failures
    assert entry["verdict"] == "failed"
    assert entry["error"].startswith("threshold failed: output 0: ")
    assert not {"samples_per_sec", "total_time", "total_samples"} & entry.keys()
    assert "no speed is reported\nfailure 1 of perf.failed.json" in done.out
    # Readers of results take none of it for one.
    assert not (bench.folder / "perf.json").exists()
    assert bench.result("line/small@cpu:threshold")["outputs"][0]["mismatches"] == 1
    assert bench.result("line/small@cpu:benchmark")["verdict"] == "skipped"


@pytest.mark.parametrize("share", ["1.01", "1.001"])
def test_a_layer_that_is_a_little_wrong_has_no_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str
) -> None:
    bench = Bench(tmp_path, real_steps="threshold")
    monkeypatch.setenv("STAND_IN", f"one layer is {share}")
    done = bench.run("-m", "line", "-c", "small", "-df", "Fp16", "-o", "perf.json")
    assert done.code == 1, done.text
    assert bench.failures[0]["error"].startswith("threshold failed: ")
    if share == "1.001":
        # No value is far off; all together are.
        assert "as if contraction 1 of 1 (mm) were +0.1 % off" in bench.failures[0]["error"]


def test_every_contraction_is_tried_where_that_is_asked_for(bench: Bench) -> None:
    words = ("-m", "line", "-c", "small")
    for more, asked in ((("--sensitivity",), True), ((), False)):
        done = bench.run(*words, *more)
        assert done.code == 0, done.text
        assert "an error of 1 % would show in 1 of 1 contractions" in done.out
        # What is in the cache was made without.
        assert bench.result("line/small@cpu:export")["cache"]["hit"] is not asked
        plan = bench.newest / "steps" / "line" / "small.cpu" / "export" / "plan.json"
        assert plan.exists() is asked
        assert not asked or json.loads(plan.read_text())["sensitivity"]


@pytest.mark.parametrize(
    ("shown", "of", "in_model", "says"),
    [
        (18, 18, 18, "an error of 1 % would show in 18 of 18 contractions"),
        (57, 64, 98, "an error of 1 % in a contraction: 7 of the 64 that were tried, of 98, would not show it (--sens"),
    ],
)
def test_what_was_not_tried_is_no_part_of_what_would_show(shown: int, of: int, in_model: int, says: str) -> None:
    found = ContractionErrors(
        worst="contraction 1 of 98 (mm)", error=0.0, limit=0.01, shown={"1%": shown}, of=of, in_model=in_model
    )
    assert _format_sensitivity(found).startswith(says)


def test_what_is_no_number_is_a_failure_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, real_steps="threshold")
    monkeypatch.setenv("STAND_IN", "infinite")
    done = bench.run("-m", "line", "-c", "small", "-o", "perf.json")
    assert done.code == 1, done.text
    assert bench.failures[0]["error"].startswith("threshold failed: output 0: ")
    assert bench.result("line/small@cpu:threshold")["statistics"]["error"]["rms"] == "nan"


def test_zeros_that_equal_zeros_prove_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "zero")
    done = bench.run("-m", "line", "-c", "small")
    assert done.code == 0, done.text
    assert "the expected outputs are all zero" in (bench.project.newest / "summary.md").read_text()


def test_flags_reach_the_compiler(tmp_path: Path) -> None:
    bench = Bench(tmp_path, real_steps="threshold")
    done = bench.run("-m", "line", "-c", "small", "-df", "Fp32", "-mf", "LoFi", "-opt", "3", "-o", "perf.json")
    assert done.code == 0, done.text
    command = bench.result("line/small-LoFi-O3@cpu:compile")["command"]
    assert "--iree-opt-level=O3" in command
    assert "demote-contraction-inputs" in command
    assert "LoFi is HiFi2 on IREE" in done.out
    (entry,) = bench.perf
    assert any("LoFi is HiFi2" in note for note in entry["notes"])
    # Narrow inputs are worse than f32 ones, and better than the tolerance that they get.
    assert 1e-4 < entry["numeric_error"]["rms"] < entry["numeric_error"]["rms_tolerance"]


def test_a_generative_model(first: Benchmarks, said: str, bench: Bench) -> None:
    entry = first.perf[2]
    assert entry["tokens_per_sec"] == pytest.approx(6 * entry["samples_per_sec"])
    assert "tokens/s; the first after" in said
    assert [trace["program"] for trace in entry["trace"]] == ["prefill", "decode"]
    assert "trace of decode: " in said
    refused = bench.run("-m", "counter", "--chips", "2")
    assert refused.code == 3
    # As it ends, in the table of failures, and below it.
    assert refused.out.count("--chips 2: a model that generates runs on one device") == 3
    assert "compile" not in {step["stage"] for step in bench.journal.steps}


def test_the_documents_command_line(bench: Bench) -> None:
    words = ["-m", "line", "-c", "small", "-df", "Fp16", "--loop_count", "4", "-o", "perf.json"]
    done = bench.module(*words, "--torch_python", str(bench.torch_python))
    assert done.code == 0, done.text
    assert bench.perf[0]["args"]["dataformat"] == "Fp16"
    assert bench.journal.run.command.startswith("python -m iree_gauntlet.bench -m line -c small ")
    listed = bench.module("-l")
    assert listed.code == 0, listed.text
    rows = [line.split() for line in listed.out.splitlines()]
    assert ["line", "small", "4,096", "microbatch", "specs/models/line.py:4"] in rows
    assert ["line", "other", "not", "declared", "microbatch", "specs/models/line.py:4"] in rows


def test_what_is_killed_leaves_a_report_and_nothing_half_made(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "hangs once")
    words = ("-m", "line", "-c", "small")
    run = bench.project.start("bench", "--torch-python", str(bench.torch_python), *words)
    wait_until(lambda: bench.builds or run.poll() is not None)
    assert run.poll() is None, "it ended by itself"
    run.send_signal(signal.SIGKILL)
    run.wait()
    report = bench.project.gauntlet("report", "latest")
    assert report.code == 3
    assert "the run was killed while this step ran" in report.out
    done = bench.run(*words)
    assert done.code == 0, done.text
    assert bench.builds == ["line", "line"]


def test_a_benchmark_is_not_gone_on_with(second: Bench) -> None:
    for words in ((), ("--run-dir", str(second.newest))):
        done = second.project.gauntlet("run", "--resume", *words)
        assert done.code == 2
        assert "start it again; finished work comes from the cache" in done.err


def test_a_builder_that_ends_without_a_result(bench: Bench) -> None:
    done = bench.run("-m", "line", "-c", "small", "--env", "STAND_IN=ends")
    assert done.code == 3, done.text
    assert "the builder exited with code 0 but wrote no result" in done.out


def test_a_model_that_is_written_wrong_is_an_error(bench: Bench) -> None:
    done = bench.run("-m", "line", "-c", "small", "-o", "perf.json", "--env", "STAND_IN=usage")
    assert done.code == 3, done.text
    (entry,) = bench.failures
    assert (entry["verdict"], entry["error"]) == (
        "error",
        "export error: models/line.py:3: line: nothing is right here",
    )
    assert "models/line.py:3: line: nothing is right here" in done.out


def test_microbatches_and_contexts(bench: Bench) -> None:
    words = ("-mb", "5", "--microbatch-count", "3", "--chips", "2", "--loop-count", "6")
    done = bench.run("-m", "line", "-c", "small", *words, "-o", "perf.json")
    assert done.code == 0, done.text
    assert bench.perf[0]["total_samples"] == 30
    assert "; means of 3)" in done.out
    # A group of three on each context, the time of a call in it.
    assert len(bench.result("line/small-mb5-3mbs-2chips@cpu:benchmark")["samples"]["real_time_ms"]) == 2


def test_a_damaged_file_of_results_is_kept(bench: Bench) -> None:
    (bench.folder / "perf.json").write_text("[{")
    done = bench.run("-m", "line", "-c", "small", "-o", "perf.json")
    assert done.code == 0, done.text
    assert (bench.folder / "perf.json").read_text() == "[{"
    assert "perf.new-1.json" in done.out
    assert len(json.loads((bench.folder / "perf.new-1.json").read_text())) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-m", "lime", "-c", "small"), "no such benchmark model: 'lime'\n  Did you mean line?"),
        (("-m", "line"), "no configuration is named\n  -c with one of small, other"),
        (("-m", "line", "-c", "small", "--layers", "2"), "--layers does not apply to this model"),
        (("-m", "line", "-c", "small", "--device", "warp"), "no such driver: warp"),
        (("-m", "line", "-c", "small", "--device", "hip"), "its chip is unknown\n  Name it with --target"),
        (
            ("-m", "line", "-c", "small", "--device", "hip://0", "--target", "sm_90"),
            "hip://0 is not a device with this chip",
        ),
        (("-m", "line", "-c", "small", "-o", "/proc/nothing/perf.json"), "cannot be written"),
        (("-m", "line", "-c", "small", "-opt", "9"), "--backend_opt_level 9"),
        (("-m", "line", "-c", "small", "--chips", "3", "--loop-count", "2"), "3 chips with --microbatch_count 1 each"),
        (("-c", "small"), "--model: not given"),
        (("-m", "line", "-c", "small", "--models-dir", "nowhere"), "no models folder nowhere"),
    ],
)
def test_mistakes_are_told_before_anything_runs(bench: Bench, words: tuple[str, ...], said: str) -> None:
    done = bench.run(*words)
    assert done.code in (2, 3), done.text
    assert said in done.err
    assert not (bench.folder / "runs").exists()
    assert not (bench.folder / "builds.txt").exists()


def test_a_python_without_torch(bench: Bench) -> None:
    # Without any packages: the tests' own may have torch.
    python = bench.folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    done = bench.project.gauntlet("bench", "-m", "line", "-c", "small", "--torch-python", str(python))
    assert done.code == 3
    assert "torch" in done.err
    assert 'pip install "iree-gauntlet[models]"' in done.err


def test_a_slip_of_the_keyboard(bench: Bench) -> None:
    done = bench.run("-m", "line", "-c", "small", "--loop-cuont", "5")
    assert done.code == 2
    assert "did you mean --loop-count?" in done.err


def test_a_run_of_specs_is_gone_on_with_beside_benchmarks(bench: Bench) -> None:
    assert bench.project.gauntlet("run", "--model", "toy").code == 0
    specs = bench.project.newest
    assert bench.run("-m", "line", "-c", "small").code == 0
    done = bench.project.gauntlet("run", "--resume")
    assert done.code == 0, done.text
    assert str(specs.name) in done.out


def test_a_generation_of_one_token_has_no_later_one() -> None:
    answer = {"total_s": 0.002, "generations": 1, "prefill_ms": [2.0], "decode_ms": [[]], "chosen": [[7]]}
    common = {"load_ms": 1.0, "overhead_us": 0.5, "peak_rss_bytes": 1000, "device_memory": {}}
    made = TokenLoop(position=1, tokens=1, state=1, carried=1, chosen=((7,),))
    build = Mock(generation=made, samples=1)
    figures = make_bench_figures(build, CallMeasurement.from_dict(answer | common)).as_dict()
    assert "decode_ms" not in figures
    step = make_step_id("counter@cpu", Stage.BENCHMARK)
    result = Result(Verdict.PASSED, statistics=figures, samples=Samples("bench", (2.0,), (), (1,)))
    record = Mock(planned=(), results={step: result})
    lines = make_result_lines(record, Mock(id="counter@cpu", options=Mock(microbatch_count=1)), build)
    assert "500.0 tokens/s; the first after 2.00 ms" in lines


def test_outputs_that_stay_on_the_device_have_no_shape() -> None:
    # Gradients of a group of calls, which the last of them gives.
    common = {"load_ms": 1.0, "overhead_us": 0.5, "peak_rss_bytes": 1000, "device_memory": {}}
    outputs = write_arrays("", "output", [("f32", np.zeros((2, 3), np.float32)), ("f32", None)])
    answer = CallMeasurement.from_dict({"total_s": 0.002, "calls": 1, "outputs": outputs, **common})
    assert [item.shape for item in answer.outputs] == [(2, 3), ()]
