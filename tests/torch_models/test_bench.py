"""Whole benchmarks of Python models with the real compiler and runtime; torch is stood in for."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.fake_torch import stand_in
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.command_line import Done

pytestmark = pytest.mark.iree

_MODELS = """
from iree_gauntlet.bench import benchmark_model

@benchmark_model(configs=["small", "other"], parameters={"small": 4096})
def line(training: bool, config: str, microbatch: int = 2):
    raise AssertionError("models are built in the Python that has torch")

@benchmark_model
def counter(training: bool):
    raise AssertionError("models are built in the Python that has torch")
"""


class Bench:
    """A project with two models, and a Python that seems to have torch."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder)
        self.folder = folder
        self.python = stand_in(folder)
        self.models = folder / "specs" / "models"
        self.models.mkdir()
        (self.models / "line.py").write_text(_MODELS)

    def run(self, *words: str) -> Done:
        return self.project.gauntlet("bench", "--torch-python", str(self.python), *words)

    def result(self, name: str) -> dict[str, Any]:
        return self.project.journal.results[name]

    @property
    def perf(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = json.loads((self.folder / "perf.json").read_text())
        return entries

    @property
    def builds(self) -> list[str]:
        return (self.folder / "builds.txt").read_text().split()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.project.close()


def test_a_model_is_measured_and_the_second_time_nothing_is_made(bench: Bench) -> None:
    first = bench.run("-m", "line", "-c", "small", "-o", "perf.json", "--loop-count", "7")
    assert first.code == 0, first.text
    assert "line/small: " in first.out
    assert "result 1 of perf.json" in first.out
    assert "note: 7 calls are few: --loop_count 100" in first.out
    second = bench.run("-m", "line", "-c", "small", "-o", "perf")
    assert second.code == 0, second.text
    assert "result 2 of perf.json" in second.out
    assert bench.builds == ["line"]
    steps = ("export", "import", "compile")
    assert all(bench.result(f"line/small@cpu:{stage}")["cache"]["hit"] for stage in steps)
    one, two = bench.perf
    assert (one["total_samples"], two["total_samples"]) == (14, 10)
    assert one["samples_per_sec"] == pytest.approx(one["total_samples"] / one["total_time"])
    assert one["args"]["loop_count"] == 7
    assert one["args"]["model"] == "line"
    assert one["arch"] == "cpu"
    assert "error" not in one
    assert one["numeric_error"]["rms"] <= one["numeric_error"]["rms_tolerance"]
    latency = one["latency_ms"]
    assert latency["min"] <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latency["max"]
    # Calls follow each other, so that together they take what the loop takes, less its overhead.
    samples = bench.result("line/small@cpu:benchmark")["samples"]
    assert sum(samples["real_time"]) <= two["total_time"] * 1000
    for name in ("overhead_us", "first_call_ms", "compile_seconds", "peak_rss_bytes", "module_bytes", "parameters"):
        assert one[name] > 0


def test_all_reports_have_it(bench: Bench) -> None:
    assert bench.run("-m", "line", "-c", "small").code == 0
    run = bench.project.newest
    cases = [case.get("name") for case in ET.parse(run / "junit.xml").getroot().iter("testcase")]
    assert cases == ["export", "import", "compile", "threshold", "benchmark"]
    speed = (run / "summary.md").read_text().partition("## Speed")[2]
    assert "| line | small |" in speed
    again = bench.project.gauntlet("report", "latest")
    assert again.code == 0
    assert "line/small@cpu" in again.out


def test_wrong_numbers_have_no_speed(bench: Bench) -> None:
    done = bench.run("-m", "line", "-c", "small", "-o", "perf.json", "--env", "STAND_IN=wrong")
    assert done.code == 1, done.text
    (entry,) = bench.perf
    assert entry["error"].startswith("threshold failed: output 0: ")
    assert not {"samples_per_sec", "total_time", "total_samples"} & entry.keys()
    assert "no speed is reported" in done.out
    assert bench.result("line/small@cpu:threshold")["outputs"][0]["mismatches"] == 1
    assert bench.result("line/small@cpu:benchmark")["verdict"] == "skipped"


def test_what_is_no_number_is_a_failure_like_any_other(bench: Bench) -> None:
    done = bench.run("-m", "line", "-c", "small", "-o", "perf.json", "--env", "STAND_IN=infinite")
    assert done.code == 1, done.text
    assert bench.perf[0]["error"].startswith("threshold failed: output 0: ")
    assert bench.result("line/small@cpu:threshold")["statistics"]["error"]["rms"] == "nan"


def test_zeros_that_equal_zeros_prove_nothing(bench: Bench) -> None:
    done = bench.run("-m", "line", "-c", "small", "--env", "STAND_IN=zero")
    assert done.code == 0, done.text
    assert "torch's outputs are all zero" in (bench.project.newest / "summary.md").read_text()


def test_a_builder_that_ends_without_a_result(bench: Bench) -> None:
    done = bench.run("-m", "line", "-c", "small", "--env", "STAND_IN=ends")
    assert done.code == 3, done.text
    assert "the builder ended without a result" in done.out


def test_a_model_that_is_written_wrong_is_an_error(bench: Bench) -> None:
    done = bench.run("-m", "line", "-c", "small", "-o", "perf.json", "--env", "STAND_IN=usage")
    assert done.code == 3, done.text
    assert bench.perf[0]["error"] == "export error: models/line.py:3: line: nothing is right here"
    assert "models/line.py:3: line: nothing is right here" in done.out


def test_flags_reach_the_compiler(bench: Bench) -> None:
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


def test_another_format_is_another_model(bench: Bench) -> None:
    for form in ("Fp32", "Fp16"):
        assert bench.run("-m", "line", "-c", "small", "-df", form, "-o", "perf.json").code == 0
    assert bench.builds == ["line", "line"]
    errors = [entry["numeric_error"]["to_f32"] for entry in bench.perf]
    assert errors[0] < 1e-6 < errors[1]
    assert [entry["dataformat"] for entry in bench.perf] == ["Fp32", "Fp16"]


def test_microbatches_and_contexts(bench: Bench) -> None:
    words = ("-mb", "5", "--microbatch-count", "3", "--chips", "2", "--loop-count", "6")
    done = bench.run("-m", "line", "-c", "small", *words, "-o", "perf.json")
    assert done.code == 0, done.text
    assert bench.perf[0]["total_samples"] == 30
    assert "; means of 3)" in done.out
    # A group of three on each context, the time of a call in it.
    assert len(bench.result("line/small-mb5-3mbs-2chips@cpu:benchmark")["samples"]["real_time"]) == 2


def test_a_generative_model(bench: Bench) -> None:
    done = bench.run("-m", "counter", "-o", "perf.json", "--loop-count", "3", "--trace", "light")
    assert done.code == 0, done.text
    (entry,) = bench.perf
    assert entry["tokens_per_sec"] == pytest.approx(6 * entry["samples_per_sec"])
    assert "tokens/s; the first after" in done.out
    assert [trace["program"] for trace in entry["trace"]] == ["prefill", "decode"]
    assert "trace of decode: " in done.out
    refused = bench.run("-m", "counter", "--chips", "2")
    assert refused.code == 3
    assert refused.out.count("--chips 2: a model that generates runs on one device") == 2  # as it ends, and at the end
    assert "compile" not in {step["stage"] for step in bench.project.journal.steps}


def test_a_damaged_file_of_results_is_kept(bench: Bench) -> None:
    (bench.folder / "perf.json").write_text("[{")
    done = bench.run("-m", "line", "-c", "small", "-o", "perf.json")
    assert done.code == 0, done.text
    assert (bench.folder / "perf.json").read_text() == "[{"
    assert "perf.new-1.json" in done.out
    assert len(json.loads((bench.folder / "perf.new-1.json").read_text())) == 1


def test_the_documents_command_line(bench: Bench) -> None:
    words = ["-m", "line", "-c", "small", "-df", "Fp16", "--loop_count", "4", "-o", "perf.json"]
    done = subprocess.run(
        [sys.executable, "-m", "iree_gauntlet.bench", *words, "--torch_python", str(bench.python)],
        cwd=bench.folder,
        env=bench.project.environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert bench.perf[0]["args"]["dataformat"] == "Fp16"
    listed = subprocess.run(
        [sys.executable, "-m", "iree_gauntlet.bench", "-l"],
        cwd=bench.folder,
        env=bench.project.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert ["line", "small", "4,096", "microbatch", "specs/models/line.py:4"] in rows
    assert ["line", "other", "not", "declared", "microbatch", "specs/models/line.py:4"] in rows


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-m", "lime", "-c", "small"), "there is no benchmark model 'lime'\n  did you mean line?"),
        (("-m", "line"), "no configuration is named\n  -c with one of small, other"),
        (("-m", "line", "-c", "small", "--layers", "2"), "--layers means nothing to this model"),
        (("-m", "line", "-c", "small", "--device", "warp"), "no driver is called warp"),
        (("-m", "line", "-c", "small", "--device", "hip"), "which chip is it?\n  Name it with --target"),
        (("-m", "line", "-c", "small", "--device", "hip://0", "--target", "sm_90"), "hip://0 is no device of that"),
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
    done = bench.project.gauntlet("bench", "-m", "line", "-c", "small", "--torch-python", sys.executable)
    assert done.code == 3
    assert "torch" in done.err
    assert 'pip install "iree-gauntlet[models]"' in done.err


def test_what_is_killed_leaves_a_report_and_nothing_half_made(bench: Bench) -> None:
    words = ("bench", "--torch-python", str(bench.python), "-m", "line", "-c", "small")
    run = bench.project.start(*words, "--env", "STAND_IN=hang")
    deadline = time.monotonic() + 60
    while not (bench.folder / "builds.txt").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    run.send_signal(signal.SIGKILL)
    run.wait()
    report = bench.project.gauntlet("report", "latest")
    assert report.code == 3
    assert "the run was killed while this step ran" in report.out
    done = bench.run("-m", "line", "-c", "small")
    assert done.code == 0, done.text


def test_a_benchmark_is_not_gone_on_with(bench: Bench) -> None:
    assert bench.run("-m", "line", "-c", "small").code == 0
    for words in ((), ("--run-dir", str(bench.project.newest))):
        done = bench.project.gauntlet("run", "--resume", *words)
        assert done.code == 2
        assert "start it again, and what is done comes from the cache" in done.err


def test_a_slip_of_the_keyboard(bench: Bench) -> None:
    done = bench.run("-m", "line", "-c", "small", "--loop-cuont", "5")
    assert done.code == 2
    assert "Did you mean --loop-count?" in done.err


def test_a_run_of_specs_is_gone_on_with_beside_benchmarks(bench: Bench) -> None:
    assert bench.project.gauntlet("run", "--model", "toy").code == 0
    specs = bench.project.newest
    assert bench.run("-m", "line", "-c", "small").code == 0
    done = bench.project.gauntlet("run", "--resume")
    assert done.code == 0, done.text
    assert str(specs.name) in done.out
