"""Whole runs of `micro` with the real compiler and runtime; torch is stood in for."""

from __future__ import annotations

import csv
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

_CONFIG = """
quantization_config_recipe_names: [int8wo, O3]
output_dir: measured
model_params:
  name: lin
  matrix_shapes:
    - name: custom
      shapes: [{shapes}]
  high_precision_dtype: torch.float32
  device: {device}
  model_type: linear
  enable_profiler: {profile}
  enable_memory_profiler: {profile}
"""
_SHAPE = "[4, 64, 128]"


class Micro:
    """A project with a configuration, and a Python that seems to have torch."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder)
        self.folder = folder
        self.python = stand_in(folder)
        self.write(_SHAPE)

    def write(self, *shapes: str, device: str = "cpu", profile: str = "false") -> None:
        text = _CONFIG.format(shapes=", ".join(shapes), device=device, profile=profile)
        (self.folder / "lin.yml").write_text(text)

    def words(self, *words: str) -> tuple[str, ...]:
        common = ("--torch-python", str(self.python), "--against", "none", "--disturbed", "count")
        return ("micro", "--config", "lin.yml", *common, *words)

    def run(self, *words: str) -> Done:
        return self.project.gauntlet(*self.words(*words))

    def result(self, step: str, shape: str = "4-64-128") -> dict[str, Any]:
        return self.project.journal.results[f"lin/{shape}@cpu:{step}"]

    def record(self, shape: str = "4-64-128") -> dict[str, Any]:
        found: dict[str, Any] = self.result("benchmark", shape)["statistics"]["micro"]
        return found

    def variant(self, label: str) -> dict[str, Any]:
        return next(item for item in self.record()["variants"] if item["label"] == label)

    @property
    def results(self) -> Path:
        return self.project.newest / "results"

    @property
    def builds(self) -> list[str]:
        return (self.folder / "builds.txt").read_text().split()


@pytest.fixture
def micro(tmp_path: Path) -> Iterator[Micro]:
    made = Micro(tmp_path)
    yield made
    made.project.close()


def test_recipes_are_measured_beside_the_baseline(micro: Micro) -> None:
    done = micro.run("--output", "oss.json")
    assert done.code == 0, done.text
    assert sorted(micro.builds) == ["baseline", "int8wo"]
    record = micro.record()
    assert (record["point"]["flops"], record["blocks"]) == (2 * 4 * 64 * 128, 6)
    baseline, int8wo, level = record["variants"]
    assert [item["label"] for item in record["variants"]] == ["baseline", "int8wo", "O3"]
    assert baseline["iree"]["speedup"] is None
    assert int8wo["status"] == "measured"
    ratio = int8wo["iree"]["speedup"]
    assert 0 < ratio["low"] <= ratio["ratio"] <= ratio["high"]
    # Four bytes a weight, and one with a step for each output.
    assert baseline["parameter_bytes"] == 4 * 64 * 128
    assert int8wo["parameter_bytes"] == 64 * 128 + 4 * 128
    assert any("parameters i8" in line for line in int8wo["shows"])
    assert 0 < int8wo["error"]["relative"] < 0.02
    assert 30 < int8wo["error"]["sqnr_db"] < 60
    assert level["status"] in ("measured", "same module")
    assert level["parameter_bytes"] == baseline["parameter_bytes"]
    for item in (baseline, int8wo):
        for name in ("module_bytes", "peak_rss_bytes", "compile_s", "first_call_ms"):
            assert item[name] > 0, name
        assert item["roofline"]["share"] > 0
    # The same in every report.
    rows = list(csv.DictReader((micro.results / "results.csv").read_text().splitlines()))
    assert len(rows) == 3
    assert {"results.md", "results.html", "results.json"} <= {path.name for path in micro.results.iterdir()}
    records = json.loads((micro.folder / "oss.json").read_text())
    assert {item["benchmark"]["dtype"] for item in records} == {"baseline", "int8wo", "O3"}
    assert (micro.folder / "measured" / micro.project.newest.name / "results.csv").is_file()
    assert "int8wo" in done.out
    cases = [case.get("name") for case in ET.parse(micro.project.newest / "junit.xml").getroot().iter("testcase")]
    assert {"export.int8wo", "compile.O3", "threshold.int8wo", "benchmark"} <= set(cases)
    # Weights and modules do not pile up.
    assert not [path for path in micro.project.newest.rglob("*") if path.suffix in (".irpa", ".vmfb", ".onnx", ".npy")]


def test_the_second_time_nothing_is_made_and_reports_can_be_made_again(micro: Micro) -> None:
    assert micro.run().code == 0
    again = micro.run()
    assert again.code == 0, again.text
    assert len(micro.builds) == 2
    assert micro.result("compile.int8wo")["cache"]["hit"]
    table = (micro.results / "results.md").read_text()
    (micro.results / "results.md").unlink()
    assert micro.project.gauntlet("report", "latest").code == 0
    assert (micro.results / "results.md").read_text() == table


def test_profiles_are_there_where_they_are_asked_for(micro: Micro) -> None:
    micro.write(_SHAPE, profile="true")
    done = micro.run()
    assert done.code == 0, done.text
    trace = micro.result("benchmark.trace.int8wo")
    assert trace["statistics"]["trace"]["files"]["perfetto"].endswith("int8wo.perfetto.json")
    memory = micro.result("benchmark.memory.int8wo")["statistics"]["memory"]
    assert memory["peak_bytes"] > 0
    assert next(phase["name"] for phase in memory["phases"]) == "load"
    folder = micro.project.newest / "steps" / "lin"
    assert list(folder.glob("*/benchmark.memory.int8wo/memory.json"))


def test_a_recipe_that_changes_nothing_is_found_out(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    # As where an exporter folds integers and steps into f32 weights: it runs, its numbers are right, and nothing of it
    # is int8.
    monkeypatch.setenv("STAND_IN", "folded")
    done = micro.run()
    assert done.code == 1, done.text
    int8wo = micro.variant("int8wo")
    assert int8wo["status"] == "failed"
    assert "it reads no parameter of type i8" in int8wo["reason"]
    assert int8wo["iree"] is None
    assert micro.variant("baseline")["iree"]["ms"] > 0
    assert "is not what the recipe promises" in done.out


def test_wrong_numbers_have_no_speed_and_the_others_go_on(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "wrong")
    done = micro.run()
    assert done.code == 1, done.text
    int8wo = micro.variant("int8wo")
    assert (int8wo["status"], int8wo["iree"]) == ("failed", None)
    assert int8wo["reason"].startswith("threshold: output 0: ")
    assert micro.variant("O3")["status"] in ("measured", "same module")


def test_a_model_that_cannot_be_made_is_an_error_and_says_why(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "usage")
    done = micro.run()
    assert done.code == 3, done.text
    assert [item["status"] for item in micro.record()["variants"]] == ["error"] * 3
    assert micro.variant("int8wo")["reason"].startswith("export: ")
    assert micro.result("benchmark")["verdict"] == "skipped"


_ODD = """
from iree_gauntlet.micro.registry import compiler_recipe

compiler_recipe("unknown", flags=("--iree-no-such-flag",), about="no compiler has it")
compiler_recipe("closed", flags=("--iree-vm-emit-polyglot-zip=false",), about="a module that shows nothing")
"""


def test_a_recipe_that_cannot_be_looked_at_is_an_error_and_the_sweep_goes_on(micro: Micro) -> None:
    (micro.folder / "odd.py").write_text(_ODD)
    micro.write("[1, 64, 64]", "[2, 64, 64]")
    text = (micro.folder / "lin.yml").read_text()
    (micro.folder / "lin.yml").write_text(text.replace("[int8wo, O3]", "[unknown, closed]"))
    done = micro.run("--plugin", "odd.py")
    assert done.code == 3, done.text
    for shape in ("1-64-64", "2-64-64"):
        baseline, unknown, closed = micro.record(shape)["variants"]
        assert baseline["iree"]["ms"] > 0
        # Neither is the compiler's failure.
        assert (unknown["status"], closed["status"]) == ("error", "error")
        assert "--iree-no-such-flag" in unknown["reason"]
        assert closed["reason"].startswith("what its module shows cannot be read: ")
        assert (unknown["iree"], closed["iree"]) == (None, None)
        assert micro.result("compile.unknown", shape)["verdict"] == "error"


_SHAPES = ("[1, 64, 64]", "[2, 64, 64]", "[3, 64, 64]")


def test_a_sweep_that_was_killed_goes_on_where_it_was(micro: Micro) -> None:
    micro.write(*_SHAPES)
    process = micro.project.start(*micro.words())
    journal = wait_for(micro, "lin/1-64-64@cpu:benchmark")
    process.kill()
    process.wait(timeout=60)
    done_before = [line for line in journal.read_text().splitlines() if '"step":"lin/1-64-64@cpu:benchmark"' in line]
    resumed = micro.project.gauntlet("micro", "--resume")
    assert resumed.code == 0, resumed.text
    assert "point 1 of 3" not in resumed.out
    assert "point 3 of 3: lin/3-64-64" in resumed.out
    # The first point is the one that was measured before.
    measured = [json.loads(line) for line in done_before if json.loads(line)["event"] == "result"]
    assert micro.record("1-64-64") == measured[0]["statistics"]["micro"]
    assert len(json.loads((micro.results / "results.json").read_text())["points"]) == 3
    # Nothing is left to do, and the reports are those of all points.
    again = micro.project.gauntlet("micro", "--resume")
    assert again.code == 0, again.text
    assert "point" not in [line.split()[0] for line in again.out.splitlines() if line]


def wait_for(micro: Micro, step: str) -> Path:
    """The journal, once a step has come to a result."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for journal in (micro.folder / "runs").glob("*/journal.jsonl"):
            lines = [line for line in journal.read_text().splitlines() if line.endswith("}")]
            events = [json.loads(line) for line in lines]
            if any(event["event"] == "result" and event["step"] == step for event in events):
                return journal
        time.sleep(0.1)
    raise AssertionError(f"{step} did not come to an end")


def test_an_interrupted_sweep_says_so_and_keeps_what_it_has(micro: Micro) -> None:
    micro.write(*_SHAPES)
    process = micro.project.start(*micro.words())
    wait_for(micro, "lin/1-64-64@cpu:benchmark")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert micro.record("1-64-64")["blocks"] == 6
    assert len(json.loads((micro.results / "results.json").read_text())["points"]) >= 1


def test_a_changed_sweep_is_not_gone_on_with(micro: Micro) -> None:
    assert micro.run().code == 0
    micro.write("[8, 64, 128]")
    done = micro.project.gauntlet("micro", "--resume")
    assert done.code == 2
    assert "is not what" in done.err
    micro.write(_SHAPE)
    done = micro.project.gauntlet("micro", "--resume", "--dtype", "float16")
    assert done.code == 2
    assert "--dtype asks for something else" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which configuration?"),
        (("--config", "none.yml"), "none.yml does not exist"),
        (("--config", "lin.yml", "--against", "tensorflow"), "--against tensorflow: unknown"),
        (("--config", "lin.yml", "--dtype", "int3"), "--dtype int3: unknown"),
        (("--config", "lin.yml", "--targets", "none.json"), "--targets none.json"),
        (("--config", "lin.yml", "--plugin", "none.py"), "none.py"),
        (("--config", "lin.yml", "--output", "."), "--output .: it is a folder"),
        (("--config", "lin.yml", "--output", "lin.yml/oss.json"), "--output lin.yml/oss.json: "),
        (("--resume",), "there is no run of `micro`"),
        (("--config", "lin.yml", "--run-dir", "runs/mine"), "--run-dir names a run to continue"),
    ],
)
def test_mistakes_are_told_before_anything_runs(micro: Micro, words: tuple[str, ...], said: str) -> None:
    done = micro.project.gauntlet("micro", "--torch-python", str(micro.python), *words)
    assert done.code == 2, done.text
    assert said in done.err
    assert "Traceback" not in done.text
    assert not (micro.folder / "runs").exists()


def test_a_device_that_is_not_there_is_said_before_anything_runs(micro: Micro) -> None:
    done = micro.run("--device", "cuda")
    assert done.code == 2, done.text
    assert "cuda" in done.err


def test_targets_stand_in_the_records(micro: Micro) -> None:
    (micro.folder / "targets.json").write_text('{"Fwd Speedup (x)": {"int8wo": 1.25}}')
    assert micro.run("--output", "oss.json", "--targets", "targets.json").code == 0
    wanted = [
        item["metric"]["target_value"]
        for item in json.loads((micro.folder / "oss.json").read_text())
        if item["metric"]["name"] == "Fwd Speedup (x)" and item["benchmark"]["dtype"] == "int8wo"
    ]
    assert wanted == [1.25]


def test_the_module_is_a_door_too() -> None:
    words = [sys.executable, "-m", "iree_gauntlet.micro", "--list"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "model types:" in done.stdout


def test_what_a_configuration_can_name_is_listed_with_a_plugin(micro: Micro) -> None:
    plugin = "from iree_gauntlet.micro.registry import recipe\n\n@recipe('mine', kind='quantization', about='my own')\n"
    (micro.folder / "mine.py").write_text(plugin + "def mine(model): return model\n")
    done = micro.project.gauntlet("micro", "--list", "--plugin", "mine.py")
    assert done.code == 0, done.text
    assert any(line.split() == ["mine", "my", "own"] for line in done.out.splitlines())


def test_other_runs_are_not_taken_for_a_run_of_specs(micro: Micro) -> None:
    assert micro.run().code == 0
    done = micro.project.gauntlet("run", "--resume")
    assert done.code == 2
    assert "there is no run of spec files" in done.err
