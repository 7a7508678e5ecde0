"""The pytest plugin with the real compiler and runtime.

Most tests run a second pytest inside this pytest (`tests/support/pytest_here.py`), which saves its start. Where
processes or signals matter, the second pytest has its own process, as for users.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import LIMIT_SECONDS
from tests.support.faulty_iree import write_build_tree
from tests.support.places import SHARED
from tests.support.processes import find_processes, wait_until
from tests.support.spec_trees import BENCHMARK, HIP_SPEC, write_tree
from tests.support.torch_project import CPU, TorchProject
from tests.support.tuning_specs import write_cpu_spec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandResult

pytestmark = pytest.mark.iree


@pytest.fixture
def project(tmp_path: Path) -> TorchProject:
    return TorchProject.create_filled(tmp_path)


def outcomes(done: CommandResult) -> dict[str, int]:
    """The counts of pytest's last line."""
    last = next(line for line in reversed(done.out.splitlines()) if re.search(r"in \d+\.\d+s", line))
    return {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", last.split(" in ")[0])}


# What is collected


def test_nothing_happens_without_its_options(project: TorchProject) -> None:
    (project.folder / "test_other.py").write_text("def test_other():\n    pass\n")
    assert outcomes(project.plain_pytest(["-q"])) == {"passed": 1}
    assert not (project.folder / "job_summary.md").exists()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((), {"benchmark", "compstat", "quality"}),
        (("-m", "cpu and not benchmark"), {"compstat", "quality"}),
        (("-m", "quality or benchmark"), {"benchmark", "quality"}),
        (("-k", "compstat"), {"compstat"}),
        (("-k", "toy and not quality"), {"benchmark", "compstat"}),
        (("suite/toy/add_quality_cpu.json",), {"quality"}),
        (("suite/toy/add_quality_cpu.json::toy/add_quality_cpu.json",), {"quality"}),
        (("suite/toy",), {"benchmark", "compstat", "quality"}),
    ],
)
def test_collect_only(project: TorchProject, arguments: tuple[str, ...], names: set[str]) -> None:
    done = project.pytest("--collect-only", "-q", *arguments)
    assert done.code == 0, done.text
    found = {line for line in done.out.splitlines() if "::" in line}
    assert found == {f"suite/toy/add_{name}_cpu.json::toy/add_{name}_cpu.json" for name in names}
    assert not (project.folder / "job_summary.md").exists()
    assert not (project.folder / "artifacts" / "runs").exists()


def test_python_tests_of_a_named_folder_run_too_and_those_next_to_the_specs_do_not(project: TorchProject) -> None:
    (project.folder / "more").mkdir()
    (project.folder / "more" / "test_more.py").write_text("def test_more():\n    pass\n")
    (project.suite / "test_neighbour.py").write_text("def test_neighbour():\n    assert False\n")
    assert outcomes(project.pytest("-q", "more")) == {"passed": 4}


def test_a_conftest_that_defines_the_same_options_is_left_out(project: TorchProject) -> None:
    conftest = "import a_package_that_is_not_here  # of a suite with --test-file-directory\n"
    (project.suite / "conftest.py").write_text(conftest)
    (project.folder / "conftest.py").write_text(conftest)
    assert outcomes(project.pytest("-q", "-k", "compstat")) == {"passed": 1, "deselected": 2}


def test_another_conftest_is_loaded(project: TorchProject) -> None:
    (project.folder / "conftest.py").write_text("def pytest_report_header():\n    return 'seen it'\n")
    assert "seen it" in project.pytest("--collect-only").out


def test_a_conftest_above_the_working_folder_counts_where_the_tests_are_elsewhere(project: TorchProject) -> None:
    (project.folder / "own" / "deep").mkdir(parents=True)
    (project.folder / "own" / "pytest.ini").write_text("[pytest]\n")
    (project.folder / "own" / "conftest.py").write_text("def pytest_report_header():\n    return 'seen it'\n")
    options = ["--test-file-directory=../../suite", "--external-file-directory=../../files", "--collect-only"]
    done = project.plain_pytest(options, project.folder / "own" / "deep")
    assert "seen it" in done.out
    assert "3 tests collected" in done.out


def test_folders_of_any_name_and_depth_are_collected(project: TorchProject) -> None:
    project.compstat("build/dist/deep_compstat", golden_dispatch_count=1)
    done = project.pytest("--collect-only", "-q", "-k", "deep")
    assert "suite/build/dist/deep_compstat.json::build/dist/deep_compstat.json" in done.out


def test_what_earlier_sessions_left_below_the_tests_is_no_test(project: TorchProject) -> None:
    left = project.folder / "artifacts" / "artifacts" / "https" / "host"
    left.mkdir(parents=True)
    (left / "data.json").write_text('{"type": "quality"}')
    done = project.plain_pytest([word.replace("./suite", "./") for word in project.options("--collect-only", "-q")])
    assert "3 tests collected" in done.out
    assert "data.json" not in done.out


def test_an_unknown_marker_is_a_warning_that_lists_the_known_ones(project: TorchProject) -> None:
    done = project.pytest("--collect-only", "-q", "-m", "cpu or hip", "--strict-markers")
    assert "no test has the marker hip; known: benchmark, compstat, cpu, quality" in done.out
    assert "3 tests collected" in done.out


def test_bad_files_are_errors_that_name_file_line_and_field(project: TorchProject) -> None:
    (project.suite / "toy" / "broken.json").write_text('{"type": "quality",')
    project.test("toy/nomodule", type="benchmark", inputs=[], modules=["toy/modules/ad_cpu"])
    project.test("toy/typo", type="quality", inputs=[], expectd_outputs=[])
    done = project.pytest("-q", "-k", "not benchmark_cpu and not quality_cpu")
    assert outcomes(done) == {"errors": 3, "passed": 1, "deselected": 2}
    assert "suite/toy/broken.json:1: ends in the middle of a value" in done.out
    assert "suite/toy/nomodule.json:6: modules[0]: there is no module definition toy/modules/ad_cpu.json" in done.out
    assert "Did you mean 'toy/modules/add_cpu'?" in done.out
    assert "suite/toy/typo.json:10: expectd_outputs: unknown field; did you mean 'expected_outputs'?" in done.out
    assert "Traceback" not in done.text


def test_a_bad_file_that_is_not_selected_is_said_and_stops_nobody(project: TorchProject) -> None:
    project.test("toy/typo", type="quality", markers=["hip", "a b", "xfail"], inputs=[], expectd_outputs=[])
    (project.suite / "toy" / "broken.json").write_text('{"type": "quality",')
    done = project.pytest("-q", "-m", "compstat")
    assert outcomes(done) == {"passed": 1, "deselected": 4}
    assert "broken.json:1: ends in the middle of a value" in done.out
    assert "expectd_outputs: unknown field" in done.out
    # Markers that can be read select it, like any other test; it is no failure that was expected.
    assert outcomes(project.pytest("-q", "-m", "hip and quality")) == {"error": 1, "deselected": 4}
    listed = project.pytest("-q", "--collect-only", "-m", "quality")
    assert "2/5 tests collected (3 deselected)" in listed.out
    assert "expectd_outputs: unknown field" in listed.out


# As this repository's own: what pytest would load and refuse there, if it did not know that model tests are meant.
STRICT = """
[tool.pytest.ini_options]
testpaths = ["tests"]
addopts = "--strict-markers --strict-config -m 'not slow'"
filterwarnings = ["error"]
markers = ["slow: takes long"]
"""


@pytest.mark.parametrize("selection", ["hip or cpu", "hip or quality", "not hip"])
def test_a_project_of_python_tests_that_makes_errors_of_warnings(project: TorchProject, selection: str) -> None:
    (project.folder / "pyproject.toml").write_text(STRICT)
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "conftest.py").write_text("import a_package_that_is_not_here\n")
    (project.folder / "conftest.py").write_text("def pytest_report_header():\n    return 'seen it'\n")
    done = project.pytest("-m", selection, "--collect-only")
    assert done.code == 0, done.text
    assert "seen it" in done.out
    assert "warning: no test has the marker hip; known: benchmark, compstat, cpu, quality" in done.out
    # Where its own tests are asked for too, all of it counts.
    assert "a_package_that_is_not_here" in project.pytest("-m", selection, "--collect-only", "tests").err


def test_a_summary_that_cannot_be_written_is_said(project: TorchProject) -> None:
    (project.folder / "pyproject.toml").write_text(STRICT)
    (project.folder / "tests").mkdir()
    (project.folder / "taken").write_text("a file")
    done = project.pytest("-q", "-k", "compstat", "--job-summary-path=taken/summary")
    assert outcomes(done) == {"passed": 1, "deselected": 2}
    assert "warning: " in done.out
    assert "taken/summary: cannot create the folder" in done.out


def test_the_toolkits_modules_are_imported_as_they_are_written(tmp_path: Path) -> None:
    # Installed, as far as pytest looks: it rewrites every module of a distribution that brings a plugin.
    facts = tmp_path / "site" / "other_gauntlet-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: other-gauntlet\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[pytest11]\niree_gauntlet = iree_gauntlet.pytest_plugin\n")
    (facts / "RECORD").write_text("iree_gauntlet/__init__.py,,\n")
    lines = [
        "import iree_gauntlet.cases",
        "def test_it():",
        "    found = type(iree_gauntlet.cases.__loader__).__name__",
    ]
    (tmp_path / "test_loader.py").write_text("\n".join([*lines, "    assert found == 'SourceFileLoader'\n"]))
    environ = TorchProject.environment()
    environ["PYTHONPATH"] += f"{os.pathsep}{tmp_path / 'site'}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_loader.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--module-directory=suite"], "--module-directory needs --test-file-directory"),
        (["--force-recompile"], "--force-recompile needs --test-file-directory"),
        (["--cache-modules"], "--cache-modules needs --test-file-directory"),
        (["--test-file-directory=suite", "--cache-modules", "--force-recompile"], "--cache-modules together with"),
        (["--test-file-directory=gone"], "--test-file-directory: gone is not a folder"),
        (["--test-file-directory=suite", "--module-directory=gone"], "--module-directory: gone is not a folder"),
    ],
)
def test_options_that_do_not_fit(project: TorchProject, arguments: list[str], message: str) -> None:
    _require_nothing_of_the_projects_own_tests(project)
    done = project.plain_pytest(arguments)
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert message in done.err
    assert "Traceback" not in done.err


def _require_nothing_of_the_projects_own_tests(project: TorchProject) -> None:
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "conftest.py").write_text("import a_package_that_is_not_here\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["suite/toy/gone.json"], "suite/toy/gone.json"),
        # As of a plugin that is not installed.
        (["--processes", "2"], "unrecognized arguments: --processes"),
    ],
)
def test_a_typing_error_is_pytests_own_message(project: TorchProject, arguments: list[str], message: str) -> None:
    _require_nothing_of_the_projects_own_tests(project)
    done = project.pytest("-q", *arguments)
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert message in done.err
    assert "a_package_that_is_not_here" not in done.text


def test_specs_of_another_dialect_are_passed_over(project: TorchProject) -> None:
    write_tree(project.suite, {"toy/net_cpu.json": BENCHMARK, "toy/net_rocm.json": HIP_SPEC})
    assert "3 tests collected" in project.pytest("--collect-only", "-q").out
    assert outcomes(project.pytest("-q", "-k", "compstat")) == {"passed": 1, "deselected": 2}
    # What is no whole test of torch models is an error all the same.
    project.test("toy/typeless", inputs=["4xf32"], modules=["toy/modules/add_cpu"])
    assert outcomes(project.pytest("-q", "-k", "typeless"))["error"] == 1


# What comes of it


def test_all_of_it_passes_and_is_reported(project: TorchProject) -> None:
    options = (
        "-v",
        "--cache-modules",
        "--junitxml=junit.xml",
        "--log-cli-level=info",
        "--job-summary-path=out/summary",
        "-m",
        "cpu",
    )
    done = project.pytest(*options)
    assert done.code == 0, done.text
    assert outcomes(done) == {"passed": 3}
    assert "iree-run-module" in done.out
    assert "toy/add_quality_cpu@cpu threshold: passed" in done.out
    markdown = (project.folder / "out" / "summary" / "job_summary.md").read_text()
    assert markdown.startswith("# Job Summary For Markers: cpu\n\n## Quality Test Summary\n\n| Name | Status |\n")
    assert "| toy/add_compstat_cpu.json | 1 | 1 | N/A | " in markdown
    junit = ET.parse(project.folder / "junit.xml").getroot()
    named = {case.get("name"): case for case in junit.iter("testcase")}
    assert set(named) == {f"toy/add_{kind}_cpu.json" for kind in ("quality", "benchmark", "compstat")}
    properties = {item.get("name"): item.get("value") for item in named["toy/add_benchmark_cpu.json"].iter("property")}
    assert properties["verdict"] == "passed"
    assert float(properties["time_ms_min"] or "") > 0
    # Benchmarks run last.
    assert re.findall(r"add_(\w+)_cpu\.json::", done.out)[-1] == "benchmark"
    # Without --force-recompile, nothing is compiled again.
    assert all(event["cache"]["hit"] for event in compiles(project))


def test_a_wrong_expression_leaves_the_last_summary_alone(project: TorchProject) -> None:
    summary = project.folder / "job_summary.md"
    summary.write_text("of the last session")
    done = project.pytest("-q", "-m", "cpu and (quality")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert summary.read_text() == "of the last session"
    assert not (project.folder / "artifacts" / "runs").exists()


def test_a_program_that_does_not_compile_fails_all_its_tests_by_the_compilers_words(project: TorchProject) -> None:
    (project.suite / "toy" / "modules" / "add_cpu.mlir").write_text("func.func @main( {")
    done = project.pytest("-q")
    assert outcomes(done) == {"failed": 3}
    assert done.out.count("iree-compile failed with exit code 1") >= 3
    assert project.gauntlet("run").code == 1


def test_what_fails_and_why(project: TorchProject) -> None:
    expected = project.folder / "files" / "toy_add_quality_cpu" / "y.npy"
    values = np.load(expected)
    values[1, 2] += 1
    np.save(expected, values)
    project.compstat("toy/low", golden_dispatch_count=0)
    project.benchmark("toy/slow", golden_time_ms=1e-9)
    project.module("toy/modules/bad_cpu", compiler_flags=[*CPU, "--iree-llvmcpu-target-cpu=nope"])
    project.compstat("toy/bad", module="toy/modules/bad_cpu")
    project.test("toy/gone", type="quality", inputs=[{"url": "gone/x.npy"}], expected_outputs=[])
    project.compstat("toy/expected", golden_dispatch_count=0, markers=["xfail"])
    project.compstat("toy/unexpected", golden_dispatch_count=1, markers=["xfail"])
    project.compstat("toy/left_out", golden_dispatch_count=1, markers=["skip"])
    # A machine that is never quiet would not confirm the broken time.
    done = project.pytest("--verdict=strict", COLUMNS="240")
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert outcomes(done) == {"failed": 5, "passed": 2, "skipped": 1, "xfailed": 1, "error": 1}
    text = done.out
    assert "output 0: 1 of 8 values (12.5 %) differ" in text
    assert "dispatch count 1 exceeds the limit 0 by 1 (suite/toy/low.json: golden_dispatch_count)" in text
    assert "toy/modules/bad_cpu@cpu compile: failed: iree-compile failed with exit code" in text
    assert "gone/x.npy is missing" in text
    assert "[XPASS(strict)] marked 'xfail'" in text
    assert "reproduce: cd " in text
    assert "session.py" not in text
    assert "FAILED suite/toy/low.json::toy/low.json - CheckFailure: toy/low@cpu compstat: failed: dispatch" in text
    rows = {row[0]: row[-1] for kind in project.summary().values() for row in kind["rows"]}
    assert rows == {
        "toy/add_quality_cpu.json": "FAILED",
        "toy/add_benchmark_cpu.json": "PASSED",
        "toy/add_compstat_cpu.json": "PASSED",
        "toy/low.json": "FAILED",
        "toy/slow.json": "FAILED",
        "toy/bad.json": "FAILED",
        "toy/gone.json": "FAILED",
        "toy/expected.json": "XFAILED",
        "toy/unexpected.json": "FAILED",
        "toy/left_out.json": "N/A",
    }


def test_a_time_that_cannot_be_judged_is_no_pass(project: TorchProject) -> None:
    project.benchmark("toy/slow", golden_time_ms=1e-9)
    done = project.pytest("--confirm-seconds=0.001", "-k", "slow")
    assert outcomes(done) == {"failed": 1, "deselected": 3}
    assert "toy/slow@cpu benchmark: inconclusive: " in done.out
    rows = {row[0]: row[-1] for kind in project.summary().values() for row in kind["rows"]}
    assert rows == {"toy/slow.json": "N/A"}


def test_a_golden_of_another_release_can_fail(project: TorchProject) -> None:
    project.compstat("toy/old", golden_dispatch_count=0, golden_compiler="3.12.0")
    assert outcomes(project.pytest("-q", "-k", "old")) == {"passed": 1, "deselected": 3}
    done = project.pytest("-q", "-k", "old", "--unapplied-goldens=fail")
    assert outcomes(done) == {"failed": 1, "deselected": 3}
    assert "inconclusive: dispatch count 1 (no golden for compiler release" in done.out


def test_a_test_that_passes_when_it_is_repeated_is_flaky(project: TorchProject, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    first_crash = f"[ -e {shlex.quote(str(mark))} ] || {{ touch {shlex.quote(str(mark))}; kill -SEGV $$; }}"
    crash = f'case "$*" in *--input=*) {first_crash} ;; esac'
    iree = write_build_tree(tmp_path / "tree", iree_run_module=crash)
    done = project.pytest("-q", "-k", "quality", "--rerun-failed=1", IREE_GAUNTLET_IREE=iree)
    assert outcomes(done) == {"failed": 1, "deselected": 2}, done.text
    assert "threshold: flaky: passed in attempt 2, after this in attempt 1: iree-run-module crashed" in done.out
    mark.unlink()
    done = project.pytest("-q", "-k", "quality", "--rerun-failed=1", "--flaky=pass", IREE_GAUNTLET_IREE=iree)
    assert outcomes(done) == {"passed": 1, "deselected": 2}, done.text
    assert {row[0]: row[-1] for row in project.summary()["quality"]["rows"]} == {"toy/add_quality_cpu.json": "FLAKY"}


@pytest.mark.parametrize(
    "option",
    [
        *("--confirm-seconds=0", "--confirm-seconds=soon", "--verdict=lenient", "--rerun-failed=-1"),
        *("--rerun-failed=101", "--artifact-directory=", "--module-directory=", "--test-file-directory="),
    ],
)
def test_confirming_in_a_way_that_there_is_not(project: TorchProject, option: str) -> None:
    done = project.pytest(option)
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert option.partition("=")[0] in done.err


def test_flags_that_the_tools_do_not_know_end_it_before_anything_runs(project: TorchProject) -> None:
    project.compstat("toy/other", module=project.module("toy/modules/odd", compiler_flags=["--iree-not-a-flag"]))
    done = project.pytest("-q")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert "iree-not-a-flag" in done.text
    assert "Traceback" not in done.text


# Caches and processes


def compiles(project: TorchProject) -> list[dict[str, Any]]:
    newest = max((project.folder / "artifacts" / "runs").iterdir())
    journals = sorted(newest.glob("journal-*.jsonl")) or [newest / "journal.jsonl"]
    events = [event for journal in journals for event in project.journal(journal.name)]
    return [event for event in events if event["event"] == "result" and event["step"].endswith(":compile")]


def made_again(project: TorchProject) -> list[str]:
    """Why each compile of the newest session that did not come from the cache was done."""
    return [event["cache"]["reason"] for event in compiles(project) if not event["cache"]["hit"]]


# Tools that note when they work on a module, in place of the real ones that they start.
NOTING = """#!/bin/sh
case "$*" in *--module=*) ;; *) exec {real} "$@" ;; esac
echo +{name} >> '{log}'
{real} "$@"
code=$?
echo -{name} >> '{log}'
exit $code
"""
# Loaded by all processes of a pytest.
TOOLS_CONFTEST = """
import os
from dataclasses import replace
from iree_gauntlet.toolchains import find
os.environ["PYTEST_PID"] = str(os.getpid())
found = find.find_installed()
found = replace(found, runtime=replace(found.runtime, **{tools!r}))
find.find_installed = lambda: found
"""


def use_tools(project: TorchProject, **scripts: str) -> None:
    """Has a pytest of its own use scripts in place of IREE's tools."""
    tools = {}
    for name, text in scripts.items():
        path = project.folder / f"{name}.sh"
        path.write_text(text)
        path.chmod(0o755)
        tools[name] = str(path)
    (project.folder / "conftest.py").write_text(TOOLS_CONFTEST.format(tools=tools))


def test_a_variant_changes_the_flags_of_the_tests(project: TorchProject) -> None:
    refused = project.pytest("--variant", "O3")
    assert "there is no variant 'O3'" in refused.text
    done = project.pytest("--variant", "O3=--iree-opt-level=O3", "-k", "compstat")
    assert done.code == 0, done.text
    opening, *_ = project.journal()
    assert (opening["suite"], opening["variants"][0]["name"]) == ("pytest+O3", "O3")
    (compile_step,) = (step for step in opening["steps"] if step["stage"] == "compile")
    assert "--iree-opt-level=O3" in json.dumps(compile_step)


def test_a_tuning_spec_that_matches_nothing_fails_the_test(project: TorchProject) -> None:
    (project.folder / "stale.mlir").write_text(write_cpu_spec("linalg.conv_2d"))
    project.quality("toy/quality")
    variant = f"stale={shlex.quote(f'--iree-codegen-tuning-spec-path={project.folder}/stale.mlir')}"
    done = project.pytest("--variant", variant, "-k", "quality")
    assert done.code == 1, done.text
    assert "tuning spec matches no dispatch" in done.text


def test_the_same_verdicts_by_every_door_and_two_processes_share_modules_and_the_machine(tmp_path: Path) -> None:
    project = TorchProject(tmp_path)
    project.fill()
    project.warm(modules=False)
    project.benchmark("toy/more_benchmark")
    project.quality("toy/quality")
    project.compstat("toy/low", golden_dispatch_count=0)
    project.module("toy/modules/bad_cpu", compiler_flags=[*CPU, "--iree-llvmcpu-target-cpu=nope"])
    project.compstat("toy/bad", module="toy/modules/bad_cpu")
    # What is expected to fail is the check.
    project.compstat("toy/bad_too", module="toy/modules/bad_cpu", markers=["cpu", "xfail"])
    project.test("toy/gone", type="quality", inputs=[{"url": "gone/x.npy"}], expected_outputs=[])
    project.compstat("toy/expected", golden_dispatch_count=0, markers=["cpu", "xfail"])
    (project.suite / "toy" / "broken.json").write_text("{")
    log = tmp_path / "log.txt"
    runtime = find_installed().runtime
    real = {"run_module": runtime.run_module, "benchmark_module": runtime.benchmark_module}
    noting = {name: NOTING.format(name=name, log=log, real=shlex.quote(tool)) for name, tool in real.items()}
    use_tools(project, **noting)
    done = project.pytest_process("--force-recompile", "-n", "2", "-m", "cpu or hip")
    # Said once, by whichever process notices it.
    assert done.out.count("no test has the marker hip") == 1
    assert done.out.count("broken.json:1: ") == 1
    made = [event for event in compiles(project) if not event["cache"]["hit"]]
    assert sorted(event["step"] for event in made) == [f"toy/modules/{name}_cpu@cpu:compile" for name in ("add", "bad")]
    assert {event["cache"]["reason"] for event in made} == {"--force-recompile"}
    assert project.journal()[-1]["exit_code"] == 3
    events = log.read_text().split()
    begun = [number for number, event in enumerate(events) if event == "+benchmark_module"]
    assert len(begun) == 2
    assert events.count("+run_module") >= 2
    for number in begun:
        before = events[:number]
        assert before.count("+run_module") == before.count("-run_module")
        assert events[number + 1] == "-benchmark_module"
    (project.folder / "conftest.py").unlink()
    (project.suite / "toy" / "broken.json").unlink()
    counts = {"failed": 3, "passed": 5, "xfailed": 1, "error": 1}
    found = [project.summary()]
    assert outcomes(done) == counts
    assert outcomes(project.pytest()) == counts
    found.append(project.summary())
    by_gauntlet = project.gauntlet("run", "--run-dir", "runs/by-inv")
    assert by_gauntlet.code == 3, by_gauntlet.out
    found.append(json.loads((project.folder / "runs" / "by-inv" / "job_summary.json").read_text()))
    statuses = [{row[0]: row[-1] for kind in summary.values() for row in kind["rows"]} for summary in found]
    assert statuses[0] == statuses[1] == statuses[2]
    assert len(statuses[0]) == 10


def test_force_recompile_makes_each_module_again_once(project: TorchProject) -> None:
    done = project.pytest("-q", "--force-recompile")
    assert done.code == 0, done.text
    assert made_again(project) == ["--force-recompile"]


def endless(project: TorchProject, name: str, then: str) -> str:
    """Adds a benchmark that never ends, and does something first; what names its processes."""
    never = project.folder / "never"
    os.mkfifo(never)
    real = shlex.quote(find_installed().runtime.benchmark_module)
    use_tools(
        project,
        benchmark_module=f'#!/bin/sh\ncase "$*" in *=77s*) {then}; exec cat "{never}" ;; esac\nexec {real} "$@"\n',
    )
    project.benchmark(name, run_args=["--device=local-task", "--function=main", "--benchmark_min_time=77s"])
    return str(never)


def test_a_test_whose_time_is_up_leaves_nothing_running_and_the_others_go_on(project: TorchProject) -> None:
    # Time is up when the tool says so: pytest-timeout goes by this signal.
    never = endless(project, "toy/aaa_endless", "kill -ALRM $PYTEST_PID")
    done = project.pytest_process("-q", f"--timeout={LIMIT_SECONDS}")
    assert outcomes(done) == {"failed": 1, "passed": 3}, done.text
    assert f"Timeout (>{LIMIT_SECONDS}s) from pytest-timeout" in done.out
    rows = {row[0]: row[-1] for kind in project.summary().values() for row in kind["rows"]}
    assert rows["toy/aaa_endless.json"] == "FAILED"
    assert rows["toy/add_benchmark_cpu.json"] == "PASSED"
    assert find_processes(never) == []


def test_ctrl_c_leaves_nothing_running(project: TorchProject) -> None:
    begun = project.folder / "begun"
    never = endless(project, "toy/endless", f": > '{begun}'")
    process = subprocess.Popen(
        project.pytest_command("-q", "-k", "endless"),
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=project.environment(),
    )
    wait_until(lambda: begun.exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "KeyboardInterrupt" in output
    assert find_processes(never) == []


# The document that the options come from

DOCUMENT = SHARED / "reference" / "seeds" / "torch_models_README.md"


def documented_commands() -> list[str]:
    """The command lines of its section "Example Usages", continued lines joined."""
    if not DOCUMENT.is_file():
        return []
    section = DOCUMENT.read_text().split("## Example Usages")[1].split("### pytest-iree Flags")[0]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    return [" ".join(block.replace("\\\n", " ").split()) for block in blocks]


@pytest.mark.corpus
@pytest.mark.skipif(not DOCUMENT.is_file(), reason="the document is not here")
@pytest.mark.parametrize("command", documented_commands())
def test_the_documents_own_command_lines_work_as_they_stand(command: str, tmp_path: Path) -> None:
    iree = tmp_path / "iree" / "tests" / "external" / "iree-test-suites"
    folder = iree / "torch_models" if "<path-to-iree>" not in command else iree
    project = TorchProject(iree / "torch_models", suite_name="examples")
    # Its own program is there, too.
    conftest = "import pytest_iree\n\ndef pytest_addoption(parser):\n    parser.addoption('--test-file-directory')\n"
    project.folder.mkdir(parents=True)
    (project.folder / "conftest.py").write_text(conftest)
    (iree / "torch_modles").symlink_to("torch_models")
    (iree / "test_suite_files").mkdir()
    module = "modules/add_cpu" if folder == iree else "examples/modules/add_cpu"
    project.module("modules/add_cpu")
    if folder == iree:
        (project.folder / "modules").symlink_to("examples/modules")
    fields = {"modules": [module], "inputs": [{"value": "2x4xf32=1"}]}
    run = ["--device=local-task", "--function=main"]
    weights = [{"type": "splat", "module": module, "value": 0.5, "scope": "model"}]
    expected = [{"value": "2x4xf32=3"}]
    fields |= {"weights": weights}
    project.test("one_quality", type="quality", markers=["cpu"], run_args=run, expected_outputs=expected, **fields)
    short = [*run, "--benchmark_min_time=0.01s"]
    project.test("two_benchmark", type="benchmark", markers=["hip"], run_args=short, **fields)
    project.write(project.suite / "three.json", {"type": "compstat", "markers": ["cpu"], "module": module})
    project.warm(folder / "artifacts")
    words = shlex.split(command.replace("<path-to-iree>", str(tmp_path / "iree")))
    assert words[0] == "pytest"
    done = project.plain_pytest(words[1:], folder)
    assert done.code == 0, done.text
    if "--collect-only" in words:
        assert "3 tests collected" in done.out
    elif "hip and benchmark" in words:
        assert outcomes(done) == {"passed": 1, "deselected": 2}
    else:
        assert outcomes(done) == {"passed": 3}


# Which IREE


def put_on_path(project: TorchProject) -> str:
    """A folder of programs that start the installed tools, as a source build has them, in front of a PATH."""
    found = find_installed()
    tools = project.folder / "build" / "tools"
    tools.mkdir(parents=True)
    for path in (found.compiler.compile, found.runtime.run_module, found.runtime.benchmark_module):
        tool = tools / os.path.basename(path)  # noqa: PTH119 - of a text
        tool.write_text(f'#!/bin/sh\nexec {shlex.quote(path)} "$@"\n')
        tool.chmod(0o755)
    return f"{tools}{os.pathsep}{os.environ['PATH']}"


def test_tools_that_a_shell_finds_are_the_iree_and_the_variable_takes_the_wheels(project: TorchProject) -> None:
    path, tools = put_on_path(project), project.folder / "build" / "tools"
    done = project.pytest("-q", "-k", "quality", PATH=path)
    assert done.code == 0, done.text
    assert f"note: IREE is path: {tools}, since its tools are on the PATH; " in done.out
    run = project.journal()[0]
    assert run["toolchain"]["source"] == f"path: {tools}"
    assert run["remarks"][0].startswith(f"IREE is path: {tools}, ")
    (summary,) = (project.folder / "artifacts" / "runs").glob("*/summary.md")
    # Markdown escapes underscores.
    assert f"IREE is path: {tools}, " in summary.read_text().replace("\\", "")
    done = project.pytest("-q", "-k", "quality", PATH=path, IREE_GAUNTLET_IREE="installed")
    assert done.code == 0, done.text
    assert project.journal()[0]["toolchain"]["source"] == find_installed().source


def test_the_wheels_are_the_iree_where_a_shell_finds_none(project: TorchProject) -> None:
    done = project.pytest("-q", "-k", "quality")
    assert project.journal()[0]["toolchain"]["source"] == find_installed().source
    assert "note: IREE" not in done.out
