"""Health checks of devices: before use, their results and times are compared with known ones."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.cluster import health
from iree_gauntlet.cluster.health import HealthCheck, make_health_checks
from iree_gauntlet.cluster.offers import WorkerDevice
from iree_gauntlet.engine.modules.module_cache import ModuleCache
from iree_gauntlet.targets import Target
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.toolchain import Toolchain

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.iree

CPU = WorkerDevice("cpu", "local-task")


def with_runtime(folder: Path, **scripts: str) -> Toolchain:
    """The real toolchain, with scripts in place of tools of the runtime."""
    found = find_installed()
    tools = {}
    for name, script in scripts.items():
        path = folder / f"{name}.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        tools[name] = str(path)
    return Toolchain(found.compiler, replace(found.runtime, **tools))


def make_checks(folder: Path, toolchain: Toolchain) -> tuple[dict[str, HealthCheck], dict[str, str]]:
    modules = ModuleCache(folder / "cache")
    return make_health_checks([CPU], toolchain, modules, folder / "health", folder / "health.json")


def check_of(folder: Path, toolchain: Toolchain) -> HealthCheck:
    checks, missing = make_checks(folder, toolchain)
    assert not missing
    return checks["local-task"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> HealthCheck:
    """A check of the installed tools."""
    return check_of(tmp_path_factory.mktemp("compiled"), find_installed())


def check_with(compiled: HealthCheck, folder: Path, toolchain: Toolchain) -> HealthCheck:
    """The same with another runtime, and times of its own."""
    return replace(compiled, toolchain=toolchain, records=folder / "health.json")


def test_a_good_device_passes_and_its_time_is_kept(tmp_path: Path) -> None:
    check = check_of(tmp_path, find_installed())
    assert check.find_error() == ""
    assert check.find_slowdown() == ""
    ((name, times),) = json.loads((tmp_path / "health.json").read_text()).items()
    assert name.startswith("local-task ")
    assert len(times) == 1
    assert times[0] > 0


def test_a_device_that_computes_wrong_is_found(compiled: HealthCheck, tmp_path: Path) -> None:
    real = shlex.quote(find_installed().runtime.run_module)
    # Something goes in that does not come out as it should.
    wrong = with_runtime(tmp_path, run_module=f'exec {real} "$@" --input=64x64xf32=2')
    assert "a known-good program exits with 1" in check_with(compiled, tmp_path, wrong).find_error()
    crashes = with_runtime(tmp_path, run_module="kill -SEGV $$")
    error = check_with(compiled, tmp_path, crashes).find_error()
    assert "a known-good program is killed by SIGSEGV: it printed nothing" in error


def timed(folder: Path, milliseconds: float) -> Toolchain:
    run = {"name": "BM_known_good", "real_time": milliseconds, "cpu_time": milliseconds, "time_unit": "ms"}
    said = shlex.quote(json.dumps({"benchmarks": [run, {**run, "real_time": 9 * milliseconds}]}))
    return with_runtime(folder, benchmark_module=f"echo {said}")


def test_a_device_that_became_slow_is_found_when_enough_is_known(compiled: HealthCheck, tmp_path: Path) -> None:
    for _ in range(4):
        assert check_with(compiled, tmp_path, timed(tmp_path, 1.0)).find_slowdown() == ""
    # Four are not enough to know what is usual.
    assert check_with(compiled, tmp_path, timed(tmp_path, 4.0)).find_slowdown() == ""
    assert check_with(compiled, tmp_path, timed(tmp_path, 2.9)).find_slowdown() == ""
    slow = check_with(compiled, tmp_path, timed(tmp_path, 3.1)).find_slowdown()
    assert slow.startswith("a known-good program takes 3.1 ms, but took 1 ms in earlier checks (remove ")
    assert str(tmp_path / "health.json") in slow
    # What is slow is not what is usual from then on.
    times = next(iter(json.loads((tmp_path / "health.json").read_text()).values()))
    assert times == [1.0, 1.0, 1.0, 1.0, 4.0, 2.9]


def test_a_compiler_that_fails_is_said(tmp_path: Path) -> None:
    found = find_installed()
    script = tmp_path / "compile.sh"
    script.write_text("#!/bin/sh\necho 'error: no such target' >&2\nexit 1\n")
    script.chmod(0o755)
    broken = Toolchain(replace(found.compiler, compile=str(script)), found.runtime)
    checks, missing = make_checks(tmp_path, broken)
    assert not checks
    what = "a known-good program does not compile for it: iree-compile"
    assert missing == {"cpu": f"{what} exits with 1: error: no such target"}
    script.write_text("#!/bin/sh\nkill -SEGV $$\n")
    checks, missing = make_checks(tmp_path, broken)
    assert missing == {"cpu": f"{what} is killed by SIGSEGV: it printed nothing"}


def test_the_known_good_module_is_kept_and_a_damaged_one_compiled_again(tmp_path: Path) -> None:
    found = find_installed()
    assert check_of(tmp_path, found).find_error() == ""
    # The same compiler, as far as the key knows, and one that compiles nothing.
    broken = Toolchain(replace(found.compiler, compile="/bin/false"), found.runtime)
    kept = check_of(tmp_path, broken)
    assert kept.find_error() == ""
    (entry,) = ModuleCache(tmp_path / "cache").list_entries()
    with entry.files["module"].open("r+b") as file:
        file.write(b"damage")
    checks, missing = make_checks(tmp_path, broken)
    assert not checks
    assert missing["cpu"].startswith("a known-good program does not compile for it: iree-compile exits with 1")
    assert check_of(tmp_path, found).find_error() == ""
    other = Toolchain(replace(broken.compiler, identity="another"), found.runtime)
    assert make_checks(tmp_path, other)[1]


def write_killed_tool(folder: Path, tool: str, times: int) -> str:
    """A script in place of a tool, which is killed so many times, and is the tool from then on."""
    (folder / "gate").write_text("x" * times)
    gate = shlex.quote(str(folder / "gate"))
    script = folder / "killed.sh"
    left = f'left=$(cat {gate}); [ -z "$left" ]'
    script.write_text(
        f'#!/bin/sh\n{left} || {{ printf %s "${{left#x}}" > {gate}; kill -KILL $$; }}\nexec {tool} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def test_a_compiler_that_is_killed_is_tried_again_once(tmp_path: Path) -> None:
    found = find_installed()
    tool = shlex.quote(found.compiler.compile)
    once = Toolchain(replace(found.compiler, compile=write_killed_tool(tmp_path, tool, 1)), found.runtime)
    assert check_of(tmp_path, once).find_error() == ""
    twice = Toolchain(replace(found.compiler, compile=write_killed_tool(tmp_path, tool, 2)), found.runtime)
    checks, missing = make_checks(tmp_path / "other", twice)
    assert not checks
    assert missing["cpu"].endswith("iree-compile is killed by SIGKILL, as on the first attempt: it printed nothing")


def test_a_program_that_is_killed_on_the_device_is_tried_again_once(compiled: HealthCheck, tmp_path: Path) -> None:
    found = find_installed()
    tool = shlex.quote(found.runtime.run_module)
    killed = "a known-good program is killed by SIGKILL, as on the first attempt: it printed nothing"
    for times, says in ((1, ""), (2, killed)):
        runtime = replace(found.runtime, run_module=write_killed_tool(tmp_path, tool, times))
        assert check_with(compiled, tmp_path, Toolchain(found.compiler, runtime)).find_error() == says


@pytest.mark.parametrize("content", ["[1]", '{"local-task": "fast"}', "[" * 100_000, '{"x": [1' + "0" * 400 + "]}"])
def test_times_that_others_have_changed_are_taken_anew(compiled: HealthCheck, content: str, tmp_path: Path) -> None:
    (tmp_path / "health.json").write_text(content)
    assert check_with(compiled, tmp_path, timed(tmp_path, 1.0)).find_slowdown() == ""
    assert next(iter(json.loads((tmp_path / "health.json").read_text()).values())) == [1.0]


@pytest.mark.parametrize(
    ("properties", "target"),
    [
        (["gfx_target_version 0", "gfx_target_version 90402"], Target("rocm", "gfx942")),
        (["gfx_target_version 90010"], Target("rocm", "gfx90a")),
        (["gfx_target_version 110000", "gfx_target_version 110001"], None),
        ([], None),
    ],
)
def test_amd_chips_are_what_the_kernel_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: list[str], target: Target | None
) -> None:
    for number, text in enumerate(properties):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "properties").write_text(f"cpu_cores_count 8\n{text}\nvendor_id 4098\n")
    monkeypatch.setattr(health, "_KFD_NODES", tmp_path)
    assert health._find_amd_target() == target
