"""`micro` from its command line to its reports, with the real compiler and synthetic times.

Fakes replace torch and the measuring Python (`tests/support/fake_measuring.py`). All tests here begin with the cache of
a first sweep; real sweeps are in `test_micro_measured.py`.
"""

from __future__ import annotations

import csv
import html
import json
import os
import signal
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.toolchains import devices
from tests.support.command_line import run_in_process
from tests.support.fake_measuring import CALL_MS, FIRST_CALL_MS, FLOPS_PER_S, PEAK_RSS_BYTES
from tests.support.micro_project import Micro, Sweep, make_first_sweep
from tests.support.processes import wait_until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.journal_events import Device

pytestmark = pytest.mark.iree


@pytest.fixture
def micro(tmp_path: Path, first: Sweep) -> Iterator[Micro]:
    made = Micro(tmp_path)
    yield made
    made.project.close()


@pytest.fixture(scope="module")
def first() -> Sweep:
    return make_first_sweep()


def test_recipes_are_measured_with_the_baseline(first: Sweep) -> None:
    assert sorted(first.builds) == ["baseline", "int8wo"]
    record = first.record()
    assert (record["point"]["flops"], record["blocks"]) == (2 * 4 * 64 * 128, 6)
    baseline, int8wo, level = record["variants"]
    assert [item["label"] for item in record["variants"]] == ["baseline", "int8wo", "O3"]
    assert baseline["iree"] == {"ms": 3.0, "speedup": None}
    assert int8wo["status"] == "measured"
    speedup = int8wo["iree"]["speedup"]
    assert (int8wo["iree"]["ms"], speedup["word"]) == (1.5, "faster")
    assert [speedup[name] for name in ("low", "ratio", "high")] == pytest.approx([2.0, 2.0, 2.0])
    # Four bytes a weight, and one with a step for each output.
    assert baseline["parameter_bytes"] == 4 * 64 * 128
    assert int8wo["parameter_bytes"] == 64 * 128 + 4 * 128
    assert any("parameters i8" in line for line in int8wo["shows"])
    assert 0 < int8wo["error"]["relative"] < 0.02
    assert 30 < int8wo["error"]["sqnr_db"] < 60
    assert level["status"] in ("measured", "same module")
    assert level["iree"]["ms"] == (CALL_MS if level["status"] == "measured" else 3.0)
    assert level["parameter_bytes"] == baseline["parameter_bytes"]
    for item in (baseline, int8wo):
        for name in ("module_bytes", "peak_rss_bytes", "compile_s", "first_call_ms"):
            assert item[name] > 0, name
        least_ms = 1000 * record["point"]["flops"] / FLOPS_PER_S
        assert item["roofline"] == {"share": pytest.approx(least_ms / item["iree"]["ms"]), "bound": "compute"}


def test_every_report_of_a_sweep_has_the_same(first: Sweep) -> None:
    rows = list(csv.DictReader((first.results / "results.csv").read_text().splitlines()))
    assert len(rows) == 3
    files = {path.name for path in first.results.iterdir()}
    assert {"results.md", "results.html", "results.json", "heat-lin.svg", "bars-lin.svg"} <= files
    records = json.loads((first.folder / "oss.json").read_text())
    assert {item["benchmark"]["dtype"] for item in records} == {"baseline", "int8wo", "O3"}
    assert (first.folder / "measured" / first.run.name / "results.csv").is_file()
    said = (first.folder / "said.txt").read_text()
    assert "int8wo        2.00  2.00 … 2.00" in said
    cases = [case.get("name") for case in ET.parse(first.run / "junit.xml").getroot().iter("testcase")]
    assert {"export.int8wo", "compile.O3", "threshold.int8wo", "benchmark"} <= set(cases)
    # Weights and modules do not pile up.
    assert not [path for path in first.run.rglob("*") if path.suffix in (".irpa", ".vmfb", ".onnx", ".npy")]


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Micro:
    """A sweep that has ended, of what was all made before."""
    micro = Micro(tmp_path_factory.mktemp("second"))
    (micro.folder / "gauntlet.toml").write_text('[history]\nstore = "history"\nadd = true\n')
    (micro.folder / "targets.json").write_text('{"Fwd Speedup (x)": {"int8wo": 1.25}}')
    done = micro.sweep("--output", "oss.json", "--targets", "targets.json")
    assert done.code == 0, done.text
    return micro


def test_the_second_time_nothing_is_made(second: Micro) -> None:
    assert second.builds == []
    steps = [step["id"] for step in second.journal.steps if step["stage"] in ("export", "import", "compile")]
    assert len(steps) == 7
    assert all(second.journal.results[step].as_dict()["cache"]["hit"] for step in steps)
    assert second.variant("int8wo")["first_call_ms"] == FIRST_CALL_MS


def test_it_adds_itself_to_the_history_with_each_recipe(second: Micro) -> None:
    exported = second.project.gauntlet("history.export", "--series", "* time_ms")
    rows = [row.split(",") for row in exported.out.splitlines()[1:]]
    recipes = ("O3", "baseline", "int8wo")
    assert [row[:4] for row in rows] == [["lin", f"4-64-128/{name}", "cpu", "time_ms"] for name in recipes]
    assert all(str(CALL_MS) in row for row in rows), exported.text
    sizes = second.project.gauntlet("history.export", "--series", "* size_bytes")
    assert len(sizes.out.splitlines()) == 1 + len(recipes)


def test_it_is_on_the_page_of_all_runs(second: Micro) -> None:
    assert f'href="{second.run.name}/results/results.html"' in (second.folder / "runs" / "index.html").read_text()


def test_reports_can_be_made_again(second: Micro) -> None:
    table = (second.results / "results.md").read_text()
    assert "1.00 (1.00–1.00) =" in table
    (second.results / "results.md").unlink()
    assert second.gauntlet("report", "latest").code == 0
    assert (second.results / "results.md").read_text() == table


def test_targets_stand_in_the_records(second: Micro) -> None:
    wanted = [
        item["metric"]["target_value"]
        for item in json.loads((second.folder / "oss.json").read_text())
        if item["metric"]["name"] == "Fwd Speedup (x)" and item["benchmark"]["dtype"] == "int8wo"
    ]
    assert wanted == [1.25]


def test_a_changed_sweep_is_not_gone_on_with(second: Micro) -> None:
    second.write(shape="[8, 64, 128]")
    done = second.gauntlet("micro", "--resume")
    second.write()
    assert done.code == 2
    assert "has changed since" in done.err
    done = second.gauntlet("micro", "--resume", "--dtype", "float16")
    assert done.code == 2
    assert "--dtype float16: " in done.err
    assert "was started without it" in done.err


def test_a_sweep_is_not_taken_for_a_run_of_specs(second: Micro) -> None:
    done = second.gauntlet("run", "--resume")
    assert done.code == 2
    assert "no run of spec files" in done.err


def test_profiles_are_there_where_they_are_asked_for(tmp_path: Path) -> None:
    micro = Micro(tmp_path)
    micro.write(recipes="int8wo", profile="true")
    done = micro.sweep()
    assert done.code == 0, done.text
    trace = micro.result("benchmark.trace.int8wo")
    assert trace["statistics"]["trace"]["files"]["perfetto"].endswith("int8wo.perfetto.json")
    memory = micro.result("benchmark.memory.int8wo")["statistics"]["memory"]
    assert memory["peak_bytes"] == PEAK_RSS_BYTES
    assert next(phase["name"] for phase in memory["phases"]) == "load"
    (folder,) = (micro.run / "steps" / "lin").glob("*/benchmark.memory.int8wo")
    assert {"memory.json", "memory.svg"} <= {path.name for path in folder.iterdir()}


def test_a_recipe_that_changes_nothing_is_found_out(
    tmp_path: Path, first: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As where an exporter folds integers and steps into f32 weights: it runs, its numbers are right, and nothing of it
    # is int8.
    micro = Micro(tmp_path, real_outputs="int8wo")
    monkeypatch.setenv("STAND_IN", "folded")
    micro.write(recipes="int8wo")
    done = micro.sweep()
    assert done.code == 1, done.text
    int8wo = micro.variant("int8wo")
    assert int8wo["status"] == "failed"
    assert "it reads no parameter of type i8" in int8wo["reason"]
    assert int8wo["iree"] is None
    assert micro.result("threshold.int8wo")["verdict"] == "passed"
    assert micro.variant("baseline")["iree"]["ms"] == CALL_MS
    assert "does not have what the recipe promises" in done.out


def test_wrong_numbers_have_no_speed_and_the_others_go_on(
    tmp_path: Path, first: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    micro = Micro(tmp_path, real_outputs="int8wo")
    monkeypatch.setenv("STAND_IN", "wrong")
    done = micro.sweep()
    assert done.code == 1, done.text
    int8wo = micro.variant("int8wo")
    assert (int8wo["status"], int8wo["iree"]) == ("failed", None)
    assert int8wo["reason"].startswith("threshold: output 0: ")
    # Nor the compiler's memory for its own.
    assert (int8wo["peak_rss_bytes"], int8wo["first_call_ms"]) == (None, None)
    assert micro.variant("O3")["status"] in ("measured", "same module")
    assert micro.variant("O3")["iree"]["ms"] == CALL_MS


def test_a_model_that_cannot_be_made_is_an_error_and_says_why(micro: Micro, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN", "usage")
    done = micro.sweep()
    assert done.code == 3, done.text
    assert [item["status"] for item in micro.record()["variants"]] == ["error"] * 3
    assert micro.variant("int8wo")["reason"].startswith("export: ")
    assert micro.result("benchmark")["verdict"] == "skipped"


def test_recipes_that_are_not_made_here_are_refused_each_by_itself(micro: Micro) -> None:
    micro.write(recipes="gemlitewo-4-64, O3, int4wo-32-hqq")
    done = micro.sweep()
    assert done.code == 0, done.text
    assert micro.builds == []
    assert "not measured: gemlitewo-4-64: GemLite's kernels are written for CUDA" in done.out
    assert {item["label"]: item["status"] for item in micro.record()["variants"]} == {
        "baseline": "measured",
        "gemlitewo-4-64": "skipped",
        "O3": "measured",
        "int4wo-32-hqq": "skipped",
    }
    assert micro.variant("int4wo-32-hqq")["reason"].startswith("HQQ, which searches")
    assert micro.result("export.gemlitewo-4-64")["verdict"] == "skipped"
    page = (micro.results / "results.md").read_text()
    assert "gemlitewo-4-64: skipped: GemLite's kernels are written for CUDA" in page


def test_a_device_that_is_not_there_keeps_nobody_else_from_running(micro: Micro) -> None:
    micro.write("here", "there", recipes="O3")
    config = micro.folder / "lin.yml"
    cpu, other = config.read_text().rsplit("device: cpu", 1)
    config.write_text(f"{cpu}device: mps{other}")
    done = micro.sweep("--output", "oss.json")
    assert done.code == 0, done.text
    assert micro.record("here/4-64-128")["blocks"] == 6
    refused = "lin.yml:16: there: no device 'mps' here: the runtime"
    assert f"not measured: {refused}" in done.out
    for report in (micro.results / name for name in ("results.md", "results.html", "results.csv", "results.json")):
        assert "device 'mps'" in html.unescape(report.read_text()), report.name
    rows = list(csv.DictReader((micro.results / "results.csv").read_text().splitlines()))
    assert [(row["name"], row["status"]) for row in rows][-1] == ("there", "skipped")
    assert "--device cpu measures it on this machine's CPU" in rows[-1]["reason"]
    assert "no device 'mps' here" in (micro.run / "junit.xml").read_text()
    # Where there is nothing else, it is the sweep's.
    config.write_text(config.read_text().replace("device: cpu", "device: mps"))
    done = micro.sweep()
    assert done.code == 2, done.text
    assert "lin.yml:6: here: no device 'mps' here: " in done.err
    assert "--device cpu measures it on this machine's CPU" in done.err


_ODD = """
from iree_gauntlet.micro.registry import compiler_recipe

compiler_recipe("unknown", flags=("--iree-no-such-flag",), about="no compiler has it")
compiler_recipe("closed", flags=("--iree-vm-emit-polyglot-zip=false",), about="a module that shows nothing")
"""


def test_a_recipe_that_cannot_be_looked_at_is_an_error_and_the_sweep_goes_on(micro: Micro) -> None:
    (micro.folder / "odd.py").write_text(_ODD)
    micro.write("one", "two", recipes="unknown, closed")
    done = micro.sweep("--plugin", "odd.py")
    assert done.code == 3, done.text
    for point in ("one/4-64-128", "two/4-64-128"):
        baseline, unknown, closed = micro.record(point)["variants"]
        assert baseline["iree"]["ms"] == CALL_MS
        # Neither is the compiler's failure.
        assert (unknown["status"], closed["status"]) == ("error", "error")
        assert "--iree-no-such-flag" in unknown["reason"]
        assert closed["reason"].startswith("the contents of its module cannot be read: ")
        assert (unknown["iree"], closed["iree"]) == (None, None)
        assert micro.result("compile.unknown", point)["verdict"] == "error"


def test_a_sweep_that_was_killed_goes_on_where_it_was(micro: Micro) -> None:
    process = second_point(micro)
    process.kill()
    process.wait()
    before = (micro.run / "journal.jsonl").read_text().splitlines()
    said = "the sweep was killed, or is still running: 1 of 3 points measured; micro --resume continues it"
    assert said in micro.gauntlet("report", "latest").out
    micro.measuring_python.stop_hanging("b.baseline")
    micro.measuring_python.set_call_ms("baseline", 7.0)
    resumed = micro.gauntlet("micro", "--resume")
    assert resumed.code == 0, resumed.text
    assert "point 1 of 3" not in resumed.out
    assert "point 2 of 3: b/4-64-128" in resumed.out
    assert "point 3 of 3: c/4-64-128" in resumed.out
    opening = json.loads((micro.run / "journal.jsonl").read_text().splitlines()[len(before)])
    assert {step.partition("/")[0] for step in opening["again"]} == {"b"}
    # The first point is the one that was measured before.
    events = [json.loads(line) for line in before if '"step":"a/4-64-128@cpu:benchmark"' in line]
    measured = [event for event in events if event["event"] == "result"]
    assert micro.record("a/4-64-128") == measured[0]["statistics"]["micro"]
    times = {point: micro.record(f"{point}/4-64-128")["variants"][0]["iree"]["ms"] for point in "abc"}
    assert times == {"a": CALL_MS, "b": 7.0, "c": 7.0}
    assert len(json.loads((micro.results / "results.json").read_text())["points"]) == 3
    # Nothing is left to do, and the reports are those of all points.
    again = micro.gauntlet("micro", "--resume")
    assert again.code == 0, again.text
    command = json.loads((micro.results / "results.json").read_text())["header"]["command"]
    assert "micro --config lin.yml" in command, "what began it"
    assert "point" not in [line.split()[0] for line in again.out.splitlines() if line]


def second_point(micro: Micro) -> subprocess.Popen[bytes]:
    """A sweep over three points that has come to the rounds of the second one, and comes no further."""
    micro.write("a", "b", "c", recipes="O3")
    micro.measuring_python.hang("b.baseline")
    process = micro.start()
    rounds = "runs/*/steps/b/*/benchmark/rounds.baseline.stdout.txt"
    wait_until(lambda: list(micro.folder.glob(rounds)) or process.poll() is not None)
    assert process.poll() is None, "it ended by itself"
    return process


def test_an_interrupted_sweep_says_so_and_keeps_what_it_has(micro: Micro) -> None:
    process = second_point(micro)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert micro.record("a/4-64-128")["blocks"] == 6
    results = json.loads((micro.results / "results.json").read_text())
    assert [point["point"]["name"] for point in results["points"]] == ["a"]
    assert results["header"]["state"] == "interrupted"
    said = "the sweep was interrupted: 1 of 3 points measured; micro --resume continues it"
    assert said in (micro.results / "results.md").read_text()
    assert said in (micro.results / "results.html").read_text()
    assert said in micro.gauntlet("report", "latest").out
    rows = list(csv.DictReader((micro.results / "results.csv").read_text().splitlines()))
    left = [(row["name"], row["m"], row["k"], row["n"], row["status"]) for row in rows[2:]]
    assert left == [("b", "4", "64", "128", "not measured"), ("c", "4", "64", "128", "not measured")]
    assert rows[-1]["reason"] == "the sweep was interrupted"
    records = json.loads((micro.results / "benchmark_results.json").read_text())
    assert {item["benchmark"]["extra_info"]["sweep"] for item in records} == {"interrupted"}
    assert "the run was interrupted" in (micro.run / "junit.xml").read_text()


@pytest.mark.vulkan
def test_a_sweep_takes_a_gpu_block_by_block(tmp_path: Path, vulkan: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step holds no lock of the device, or its own rounds would wait for it for ever."""
    # As if it were none in software, which nobody has to himself.
    gpu = replace(vulkan, software=False)
    monkeypatch.setattr(devices, "describe_devices", lambda _toolchain, _driver: (gpu,))
    micro = Micro(tmp_path)
    micro.write(recipes="O3")
    done = micro.sweep("--device", "vulkan")
    assert done.code == 0, done.text
    (step,) = [step for step in micro.journal.steps if step["id"].endswith(":benchmark")]
    assert step["resources"]["device"] == gpu.uri
    assert step["resources"]["software"] is False
    assert micro.journal.run.machine.devices == (gpu,)


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
        # A device that is not there.
        (("--config", "lin.yml", "--device", "cuda"), "cuda"),
        (("--resume",), "no earlier `micro`"),
        (("--config", "lin.yml", "--run-dir", "runs/mine"), "--run-dir names a run to continue"),
    ],
)
def test_mistakes_are_told_before_anything_runs(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    micro = Micro(tmp_path, warm=False)
    done = micro.gauntlet("micro", "--torch-python", str(micro.torch_python), *words)
    assert done.code == 2, done.text
    assert said in done.err
    assert "Traceback" not in done.text
    assert not (micro.folder / "runs").exists()


def test_a_named_sweep_that_cannot_be_read_is_told_with_the_reason(tmp_path: Path) -> None:
    micro = Micro(tmp_path, warm=False)
    run = micro.folder / "runs" / "mine"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_text(
        '{"event":"opening","time":"2026-11-20T10:00:00+00:00","kind":"micro","steps":[],"micro":{"points":3}}\n'
    )
    done = micro.gauntlet("micro", "--resume", "--run-dir", "mine")
    assert done.code == 3, done.text
    assert "journal.jsonl: the sweep cannot be read: points: expected a list, found 3" in done.err
    # Whoever wants the newest one is to hear that it cannot be read.
    done = micro.gauntlet("micro", "--resume")
    assert (done.code, "journal.jsonl: the sweep cannot be read" in done.err) == (3, True)


def test_the_module_is_a_door_too(tmp_path: Path) -> None:
    done = run_in_process(["--list"], tmp_path, os.environ, package="iree_gauntlet.micro")
    assert done.code == 0, done.text
    assert "model types:" in done.out
    assert "  gemlitewo*  " in done.out


def test_what_a_configuration_can_name_is_listed_with_a_plugin(tmp_path: Path) -> None:
    plugin = "from iree_gauntlet.micro.registry import recipe\n\n@recipe('mine', kind='quantization', about='my own')\n"
    micro = Micro(tmp_path, warm=False)
    (micro.folder / "mine.py").write_text(plugin + "def mine(model): return model\n")
    done = micro.gauntlet("micro", "--list", "--plugin", "mine.py")
    assert done.code == 0, done.text
    assert any(line.split() == ["mine", "my", "own"] for line in done.out.splitlines())
