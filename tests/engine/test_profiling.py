"""Profiles of a benchmark with the real tools, and the reasons for missing profiles."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.engine.profiling import Profiling, compare_profiles, profile_dispatches
from iree_gauntlet.measuring.profiles.dispatch_profile import Match, match_dispatches
from iree_gauntlet.records.compare_record import UnprofiledTimes
from iree_gauntlet.reports.compare_report import make_dispatch_blocks
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Command, Resources, Step
from iree_gauntlet.toolchains.flags import FlagSet, parse_runtime_help
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import LIMIT_SECONDS
from tests.support.documents import render_lines
from tests.support.hanging import HANG
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.toolchains.toolchain import Toolchain

pytestmark = pytest.mark.iree

LARGE = "192x192xf32"
SMALL = "192x8xf32"
PROGRAM = f"""
func.func @main(%x: tensor<{LARGE}>, %y: tensor<{LARGE}>, %z: tensor<{SMALL}>) -> tensor<{SMALL}> {{
  %zero = arith.constant dense<0.0> : tensor<{LARGE}>
  %little = arith.constant dense<0.0> : tensor<{SMALL}>
  %product = linalg.matmul ins(%x, %y : tensor<{LARGE}>, tensor<{LARGE}>) outs(%zero : tensor<{LARGE}>)
      -> tensor<{LARGE}>
  %result = linalg.matmul ins(%product, %z : tensor<{LARGE}>, tensor<{SMALL}>) outs(%little : tensor<{SMALL}>)
      -> tensor<{SMALL}>
  return %result : tensor<{SMALL}>
}}
"""
WITH_PROFILES = FlagSet(frozenset({"device_profiling_mode", "device_profiling_output"}))


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    return find_installed()


@pytest.fixture(scope="session")
def known(toolchain: Toolchain) -> FlagSet:
    done = subprocess.run([toolchain.runtime.benchmark_module, "--help"], capture_output=True, text=True, check=True)
    return parse_runtime_help(done.stdout)


@pytest.fixture(scope="session")
def modules(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One program, compiled for this CPU and for any."""
    folder = tmp_path_factory.mktemp("modules")
    source = folder / "program.mlir"
    source.write_text(PROGRAM)
    made = {}
    for cpu in ("host", "generic"):
        made[cpu] = folder / f"{cpu}.vmfb"
        subprocess.run(
            [
                toolchain.compiler.compile,
                source,
                "--iree-hal-target-device=local",
                "--iree-hal-local-target-device-backends=llvm-cpu",
                f"--iree-llvmcpu-target-cpu={cpu}",
                "-o",
                made[cpu],
            ],
            check=True,
        )
    return made


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Supervisor() as supervisor:
        yield Processes(supervisor, tmp_path)


def benchmark(tool: str, module: Path, folder: Path, *flags: str, device: str = "local-sync") -> Step:
    return make_step(
        Stage.BENCHMARK,
        folder=str(folder / "benchmark"),
        command=Command(
            (
                tool,
                f"--device={device}",
                "--function=main",
                f"--module={module}",
                *(f"--input={shape}=0.5" for shape in (LARGE, LARGE, SMALL)),
                "--benchmark_format=json",
                "--benchmark_repetitions=3",
                "--benchmark_min_warmup_time=0.1",
                *flags,
            ),
            str(folder),
        ),
        resources=Resources(device=device),
    )


def profiled(
    toolchain: Toolchain,
    known: FlagSet,
    modules: dict[str, Path],
    processes: Processes,
    folder: Path,
    invocation_ms: float,
) -> dict[str, Profiling]:
    """The profiles of both builds."""
    found = {}
    for cpu, module in modules.items():
        step = benchmark(toolchain.runtime.benchmark_module, module, folder / cpu)
        (folder / cpu).mkdir()
        found[cpu] = profile_dispatches(step, toolchain, processes, known, invocation_ms=invocation_ms)
    return found


def test_the_dispatches_of_two_builds_are_profiled_and_compared(
    toolchain: Toolchain, known: FlagSet, modules: dict[str, Path], processes: Processes, tmp_path: Path
) -> None:
    # 2 s of them are enough.
    found = profiled(toolchain, known, modules, processes, tmp_path, invocation_ms=100.0)
    times = {"matmul_192x192x192_f32": 1_000_000, "matmul_192x8x192_f32": 50_000}
    for cpu, slowdown in (("host", 1), ("generic", 3)):
        assert found[cpu].reason == ""
        assert sorted(path.name for path in (tmp_path / cpu / "benchmark").iterdir()) == [
            "profile.dispatches.stderr.txt",
            "profile.dispatches.stdout.txt",
            "profile.ireeprof",
            "profile.stderr.txt",
            "profile.stdout.txt",
        ]
        profile = found[cpu].profile
        assert profile is not None
        assert profile.invocations == 20
        assert [profile.count_per_invocation(dispatch) for dispatch in profile.dispatches] == [1, 1]
        assert all(dispatch.invocation_ns > 0 for dispatch in profile.dispatches)
        # The real names with synthetic times: `nox -s measure` goes by the real ones.
        dispatches = tuple(
            replace(dispatch, invocation_ns=times["_".join(dispatch.name.split("_")[-3:])] * slowdown)
            for dispatch in profile.dispatches
        )
        made_up = replace(profile, dispatches=dispatches, elapsed_ns=1_100_000 * slowdown)
        found[cpu] = replace(found[cpu], profile=made_up)
    fast, slow = found["host"].profile, found["generic"].profile
    assert fast is not None
    assert slow is not None
    changes = match_dispatches(fast, slow)
    guilty = changes.changes[0]
    assert guilty.name.endswith("matmul_192x192x192_f32")
    assert guilty.match is Match.NAME
    assert (changes.share(guilty) or 0) > 0.6
    assert guilty in changes.select_main_changes()
    record = compare_profiles(found["host"], found["generic"], (1.0, 2.0))
    assert record.difference is not None
    assert record.difference.measured == UnprofiledTimes(a_ns=1_000_000, b_ns=2_000_000)
    assert record.commands is not None
    assert [len(commands) for commands in record.commands.values()] == [2, 2]
    assert "matmul_192x192x192_f32" in render_lines(make_dispatch_blocks(record))[3]


@pytest.mark.measure
def test_the_dispatches_explain_the_difference_of_two_builds(
    toolchain: Toolchain, known: FlagSet, modules: dict[str, Path], processes: Processes, tmp_path: Path
) -> None:
    found = profiled(toolchain, known, modules, processes, tmp_path, invocation_ms=20.0)
    fast, slow = found["host"].profile, found["generic"].profile
    assert fast is not None
    assert slow is not None
    assert fast.invocations == 100
    changes = match_dispatches(fast, slow)
    if changes.b_ns < 1.2 * changes.a_ns:
        pytest.skip("this CPU has little that a generic one has not")
    guilty = changes.changes[0]
    assert guilty.name.endswith("matmul_192x192x192_f32")
    assert guilty.match is Match.NAME
    assert (changes.share(guilty) or 0) > 0.6
    assert guilty in changes.select_main_changes()
    assert (
        "matmul_192x192x192_f32"
        in render_lines(make_dispatch_blocks(compare_profiles(found["host"], found["generic"], (1.0, 2.0))))[3]
    )


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_a_pinned_command_takes_the_place_of_the_steps(
    toolchain: Toolchain, known: FlagSet, modules: dict[str, Path], processes: Processes, tmp_path: Path, device: str
) -> None:
    step = benchmark(
        toolchain.runtime.benchmark_module, modules["host"], tmp_path, "--dispatch_statistics=true", device=device
    )
    assert step.command is not None
    pinned = replace(step.command, argv=("env", "PINNED=1", *step.command.argv))
    found = profile_dispatches(step, toolchain, processes, known, command=pinned, name="profile.2.")
    assert found.profile is not None, found.reason
    assert found.profile.invocations == 5
    first, second = map(shlex.split, found.commands)
    assert first[3:5] == ["env", "PINNED=1"]
    assert "--device_profiling_mode=queue-events,host-execution" in first
    assert "--dispatch_statistics=true" not in first
    assert [word for word in first if word.startswith("--benchmark_")] == [
        "--benchmark_format=json",
        "--benchmark_repetitions=5",
        "--benchmark_min_time=1x",
    ]
    assert second[-1].endswith("benchmark/profile.2.ireeprof")
    assert found.log.endswith("profile.2.dispatches.stderr.txt")
    assert found.seconds > 0


def failed(found: Profiling) -> str:
    assert found.profile is None
    assert "\n" not in found.reason
    return found.reason


def test_a_release_without_profiles_says_which_have_them(
    toolchain: Toolchain, modules: dict[str, Path], processes: Processes, tmp_path: Path
) -> None:
    step = benchmark(toolchain.runtime.benchmark_module, modules["host"], tmp_path)
    older = FlagSet(frozenset({"device_profiling_mode", "device_profiling_file"}))
    found = profile_dispatches(
        step, replace(toolchain, runtime=replace(toolchain.runtime, release="3.9.0")), processes, older
    )
    assert failed(found) == (
        "iree-benchmark-module of 3.9.0 writes no profiles (it has no --device_profiling_output); "
        "releases from 3.12.0 on do"
    )
    assert found.commands == ()
    assert compare_profiles(found, found, (1.0, 1.0)).reason == f"A: {found.reason}; B: {found.reason}"


def test_a_runtime_without_iree_profile(
    toolchain: Toolchain, known: FlagSet, modules: dict[str, Path], processes: Processes, tmp_path: Path
) -> None:
    alone = tmp_path / "iree-benchmark-module"
    alone.symlink_to(toolchain.runtime.benchmark_module)
    step = benchmark(str(alone), modules["host"], tmp_path)
    found = profile_dispatches(
        step, replace(toolchain, runtime=replace(toolchain.runtime, benchmark_module=str(alone))), processes, known
    )
    assert f"{tmp_path}/iree-profile: " in failed(found)


def test_a_gpu_is_asked_for_the_events_of_its_dispatches(
    toolchain: Toolchain, known: FlagSet, modules: dict[str, Path], processes: Processes, tmp_path: Path
) -> None:
    step = benchmark(toolchain.runtime.benchmark_module, modules["host"], tmp_path, device="no-such-device")
    found = profile_dispatches(step, toolchain, processes, known)
    assert "iree-benchmark-module has no driver no-such-device" in failed(found)
    assert "no-such-device" in found.reason
    assert "--device_profiling_mode=dispatch-events" in found.commands[0]


def test_a_mode_that_the_device_refuses_is_told_in_the_tools_words(
    toolchain: Toolchain, known: FlagSet, modules: dict[str, Path], processes: Processes, tmp_path: Path
) -> None:
    step = benchmark(toolchain.runtime.benchmark_module, modules["host"], tmp_path)
    assert step.command is not None
    tool = tmp_path / "tool.sh"
    real = shlex.quote(toolchain.runtime.benchmark_module)
    tool.write_text(
        '#!/bin/sh\nshift\nfor word; do case $word in --device_profiling_mode=*) ;; *) set -- "$@" "$word" ;; esac;'
        f' shift; done\nexec {real} "$@" --device_profiling_mode=dispatch-events\n'
    )
    tool.chmod(0o755)
    refused = replace(step.command, argv=(str(tool), *step.command.argv))
    reason = failed(profile_dispatches(step, toolchain, processes, known, command=refused))
    assert "UNIMPLEMENTED" in reason


FAULTS = {
    "nothing is printed": ("exit 0", "the benchmark printed no results"),
    "it crashes": ("kill -SEGV $$", "crashed with SIGSEGV"),
    "it is too slow": (HANG, "ran longer than its 0.2 s"),
    "it warns, then fails": (
        "echo '***WARNING*** noise' >&2; echo 'bad device' >&2; exit 1",
        "exit code 1: bad device",
    ),
    "it writes no bundle": ("cat DOCUMENT", "iree-profile cannot open "),
}


@pytest.mark.parametrize(("script", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_tool_that_fails_is_a_reason(
    toolchain: Toolchain, processes: Processes, tmp_path: Path, script: str, expected: str
) -> None:
    document = tmp_path / "document.json"
    document.write_text('{"benchmarks": [{"name": "BM_f", "real_time": 1, "cpu_time": 1, "iterations": 1}]}')
    tool = tmp_path / "tool.sh"
    tool.write_text(f"#!/bin/sh\n{script.replace('DOCUMENT', shlex.quote(str(document)))}\n")
    tool.chmod(0o755)
    timeout = 0.2 if script == HANG else LIMIT_SECONDS
    step = replace(benchmark(str(tool), tmp_path / "none.vmfb", tmp_path), timeout=timeout)
    assert expected in failed(profile_dispatches(step, toolchain, processes, WITH_PROFILES))


def test_a_tool_that_is_missing_is_a_reason(toolchain: Toolchain, processes: Processes, tmp_path: Path) -> None:
    step = benchmark(str(tmp_path / "gone"), tmp_path / "none.vmfb", tmp_path)
    assert "no such program" in failed(profile_dispatches(step, toolchain, processes, WITH_PROFILES))


def test_several_calls_are_a_reason(toolchain: Toolchain, processes: Processes, tmp_path: Path) -> None:
    step = benchmark(sys.executable, tmp_path / "x.vmfb", tmp_path, "--call=init", "--call=step")
    profiling = profile_dispatches(step, toolchain, processes, WITH_PROFILES)
    assert profiling.profile is None
    assert profiling.reason == "its calls are made by IREE's Python bindings, which write no profile"


def test_a_module_with_several_functions_is_a_reason(
    toolchain: Toolchain, processes: Processes, tmp_path: Path
) -> None:
    rows = ",".join(f'{{"name": "BM_{name}", "real_time": 1, "cpu_time": 1, "iterations": 1}}' for name in "fg")
    (tmp_path / "document.json").write_text(f'{{"benchmarks": [{rows}]}}')
    tool = tmp_path / "tool.sh"
    tool.write_text(f"#!/bin/sh\ncat '{tmp_path}/document.json'\n")
    tool.chmod(0o755)
    step = benchmark(str(tool), tmp_path / "none.vmfb", tmp_path)
    assert "several functions" in failed(profile_dispatches(step, toolchain, processes, WITH_PROFILES))


def test_an_interrupted_run_is_a_reason(toolchain: Toolchain, tmp_path: Path) -> None:
    step = benchmark(toolchain.runtime.benchmark_module, tmp_path / "none.vmfb", tmp_path)
    with Supervisor() as supervisor:
        supervisor.cancel_all()
        found = profile_dispatches(step, toolchain, Processes(supervisor, tmp_path), WITH_PROFILES)
    assert failed(found) == "iree-benchmark-module was interrupted"
