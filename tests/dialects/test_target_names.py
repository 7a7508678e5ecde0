"""Targets of other architectures: their names, runners, steps and definitions."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.device_kinds import CPU as CPU_KIND
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.dialects.load import CaseSet
from iree_gauntlet.dialects.locations import find_target
from iree_gauntlet.engine.operator_suites import make_run_job
from iree_gauntlet.engine.workspace import select
from iree_gauntlet.errors import SpecError, UsageError
from iree_gauntlet.experiments.matrix import _combine
from iree_gauntlet.requests import Defaults, SelectionRequest, parse_request
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Command
from iree_gauntlet.targets import Target, parse_target, split_vector_bits
from iree_gauntlet.tasks import doctor
from iree_gauntlet.toolchains import target_runtimes
from iree_gauntlet.toolchains.target_runtimes import TargetRuntime, explain_missing_runner, is_native
from iree_gauntlet.torch_models.torch_chain import choose_target
from tests.support import spec_trees, torch_trees
from tests.support.op_trees import COMPILE_FLAGS, add_onnx, load_ops, write_config
from tests.support.spec_trees import CPU, find_step, load, plan, write_tree

if TYPE_CHECKING:
    from iree_gauntlet.engine.plan import Plan
    from tests.support.toy_project import Project

ARM = Target("cpu", "aarch64")
QEMU = TargetRuntime("/arm/iree-run-module", "/arm/iree-benchmark-module", ("qemu-aarch64", "-L", "/root"), True)
BOARD = TargetRuntime("/arm/iree-run-module", "/arm/iree-benchmark-module", ("ssh", "board"))
NAME = "regression_tests/m/s_cpu.json"
REGRESSION: dict[str, Any] = spec_trees.HIP_SPEC | {"device": "local-task"}
BENCHMARK: dict[str, Any] = spec_trees.BENCHMARK | {"device": "local-task", "benchmark_flags": []}
MEASURING = (Stage.THRESHOLD, Stage.COUNT, Stage.MEMORY, Stage.BENCHMARK)


@pytest.mark.parametrize(
    ("text", "name", "processor", "bits"),
    [
        ("arm64", "cpu-aarch64", "aarch64", 0),
        ("aarch64", "cpu-aarch64", "aarch64", 0),
        ("cpu-arm64", "cpu-aarch64", "aarch64", 0),
        ("arm64-sve@512", "cpu-aarch64-sve-512", "aarch64-sve", 512),
        ("cpu-aarch64-sve-512", "cpu-aarch64-sve-512", "aarch64-sve", 512),
        ("ARM64-SVE", "cpu-aarch64-sve", "aarch64-sve", 0),
        ("riscv64@256", "cpu-riscv64-256", "riscv64", 256),
        ("arm64-grace", "cpu-aarch64-grace", "aarch64-grace", 0),
    ],
)
def test_a_name_says_architecture_processor_and_length(text: str, name: str, processor: str, bits: int) -> None:
    target = parse_target(text)
    assert target is not None
    assert (target.name, target.processor_name, target.vector_bits) == (name, processor, bits)
    assert target.golden_names == (processor,)
    assert parse_target(target.name) == target
    assert split_vector_bits(name) == (name.removesuffix(f"-{bits}"), bits)


@pytest.mark.parametrize("text", ["arm64x", "arm64-sve@100", "arm64-sve@", "cpu@128", "x86"])
def test_other_texts_are_no_names(text: str) -> None:
    assert parse_target(text) is None


def test_a_processor_without_a_length_includes_all_lengths() -> None:
    sve, longer = (Target("cpu", f"aarch64-sve{length}") for length in ("", "-512"))
    assert sve.covers(longer)
    assert not longer.covers(sve)
    assert not ARM.covers(sve)
    assert not CPU.covers(ARM)


def test_the_runner_gets_the_length_of_vectors() -> None:
    assert Target("cpu", "aarch64-sve-512").runner[-1] == "max,sve-max-vq=4,sve-default-vector-length=64"
    assert Target("cpu", "aarch64-sve").runner[-1].endswith("=1,sve-default-vector-length=16")
    assert Target("cpu", "riscv64-256").runner[-1] == "rv64,v=true,vlen=256"
    assert CPU.runner == Target("cpu", "aarch64-grace").runner == ()


def test_a_triple_among_flags_names_the_target() -> None:
    local = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
    assert find_target((*local, "--iree-llvmcpu-target-triple=aarch64-linux-gnu")) == ARM
    assert find_target((*local, "--iree-llvmcpu-target-triple=x86_64-linux-gnu")) == CPU


def _plan(folder: Path, runtime: TargetRuntime, **spec: Any) -> Plan:
    tree = write_tree(folder, {NAME: REGRESSION | spec, "benchmarks/m/s_cpu.json": BENCHMARK})
    return plan(load(tree, ARM), MEASURING, runtime_of=lambda _target: runtime)


def test_an_emulator_runs_the_tools_and_gives_no_times(tmp_path: Path) -> None:
    emulated, here = _plan(tmp_path / "a", QEMU), _plan(tmp_path / "b", TargetRuntime())
    step = find_step(emulated, "m/s@cpu-aarch64:threshold")
    assert (step.required_command.runner, step.required_command.argv[0]) == (QEMU.runner, QEMU.run_module)
    assert step.required_command.words[:4] == (*QEMU.runner, QEMU.run_module)
    assert step.timeout == 10 * find_step(here, step.id).timeout
    assert find_step(emulated, "m/s@cpu-aarch64:memory").required_command.runner == QEMU.runner
    skips = {stage: find_step(emulated, f"m/s@cpu-aarch64:{stage}").skip for stage in (Stage.BENCHMARK, Stage.COUNT)}
    assert skips == {
        Stage.BENCHMARK: "no time: qemu-aarch64 emulates cpu-aarch64, and its times say nothing about the processor",
        Stage.COUNT: "instructions are counted of this machine's programs, but qemu-aarch64 runs cpu-aarch64",
    }
    compile_step = find_step(emulated, "m/s@cpu-aarch64:compile")
    assert not compile_step.required_command.runner
    assert not emulated.obstacles


def test_who_has_a_runner_on_a_board_learns_how_its_times_count() -> None:
    definition = replace(CPU.kind.architectures["x86_64"], is_ready_made=False)
    runtime = TargetRuntime(runner=("ssh", "box", "nice", "-n", "5"), is_emulated=True)
    reason = runtime.explain_no_call(Stage.BENCHMARK, Target("cpu", "x86_64-box", definition=definition))
    assert reason.startswith("no time: nice on box emulates cpu-x86_64-box")
    assert reason.endswith("if they do: has_times = true in [targets.x86_64-box]")


def test_a_runner_with_a_real_processor_is_timed(tmp_path: Path) -> None:
    step = find_step(_plan(tmp_path, BOARD), "m/s@cpu-aarch64:benchmark")
    assert not step.skip
    assert step.required_command.words[:3] == ("ssh", "board", BOARD.benchmark_module)


def test_a_runner_makes_no_several_calls(tmp_path: Path) -> None:
    call = {"function": "f", "inputs": [], "outputs": []}
    spec = {key: value for key, value in REGRESSION.items() if key not in ("inputs", "outputs", "run_function")}
    tree = write_tree(tmp_path, {NAME: spec | {"calls": [call, call]}})
    made = plan(load(tree, ARM), [Stage.THRESHOLD], runtime_of=lambda _target: QEMU)
    blocked = find_step(made, "m/s@cpu-aarch64:threshold").blocked
    assert blocked == "several calls are made by IREE's Python bindings, which qemu-aarch64 does not run"


def test_a_torch_model_for_another_architecture_runs_by_its_runner(tmp_path: Path) -> None:
    # So does pytest, which runs the same steps and has no option for targets.
    flags = [*torch_trees.MODULE["compiler_flags"], "--iree-llvmcpu-target-triple=aarch64-linux-gnu"]
    module = torch_trees.MODULE | {"compiler_flags": flags}
    files = {"torch_models/m/modules/a.json": module, **torch_trees.make_quality_file("m/quality", markers=["text"])}
    tree = write_tree(tmp_path, files)
    made = plan(torch_trees.load_torch(tree, ARM), [Stage.THRESHOLD], runtime_of=lambda _target: QEMU)
    assert find_step(made, "m/quality@cpu-aarch64:threshold").required_command.runner == QEMU.runner
    assert not torch_trees.load_torch(tree, CPU).cases


def test_a_config_of_operators_is_for_other_architectures_too(tmp_path: Path) -> None:
    add_onnx(tmp_path)
    write_config(tmp_path, iree_compile_flags=[*COMPILE_FLAGS, "--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O0"])
    cases = load_ops(tmp_path, CPU, Target("cpu", "aarch64-sve-512")).cases
    assert [case.target.name for case in cases] == ["cpu", "cpu-aarch64-sve-512"]
    flags = CPU_KIND.architectures["aarch64-sve"].flags
    assert cases[1].modules[0].flags == (*COMPILE_FLAGS, "--iree-opt-level=O0", *flags)
    step = plan(CaseSet(cases, (), ()), [Stage.THRESHOLD], runtime_of=lambda _target: QEMU).steps[-1]
    # The servers have this machine's runtime, so the tool itself runs the module.
    assert step.required_command.runner == QEMU.runner
    assert make_run_job(step) is None
    assert make_run_job(replace(step, command=replace(step.required_command, runner=()))) is not None


def test_a_command_is_typed_with_its_runner() -> None:
    command = Command(("iree-run-module", "--flag"), "/run", runner=("qemu-aarch64", "-cpu", "max"))
    assert command.command_line == "cd /run && qemu-aarch64 -cpu max iree-run-module --flag"
    assert Command.from_dict(command.as_dict()) == command
    assert "runner" not in Command(("a",), "/").as_dict()


def _read(folder: Path, text: str) -> dict[str, Any]:
    (folder / "gauntlet.toml").write_text(text, encoding="utf-8")
    return dict(read_configuration(folder, {"XDG_CONFIG_HOME": str(folder / "none")}).targets)


def test_settings_define_processors(tmp_path: Path) -> None:
    definitions = _read(
        tmp_path,
        """
        [targets.arm64-grace]
        compiler_flags = ["--iree-llvmcpu-target-triple=aarch64-linux-gnu", "--iree-llvmcpu-target-cpu=neoverse-v2"]
        runner = ["ssh", "grace"]
        has_times = true

        [targets.riscv64]
        runtime = "/opt/iree-riscv64/bin"
        """,
    )
    ready = CPU_KIND.architectures
    grace, riscv = definitions["aarch64-grace"], definitions["riscv64"]
    assert grace.flags[-1] == "--iree-llvmcpu-target-cpu=neoverse-v2"
    assert (grace.runner, grace.has_times, grace.is_ready_made) == (("ssh", "grace"), True, False)
    assert grace.runtime == ready["aarch64"].runtime
    assert (riscv.runtime, riscv.runner) == ("/opt/iree-riscv64/bin", ready["riscv64"].runner)
    # A runner that the user wrote is used on a machine of that architecture too.
    assert not is_native(Target("cpu", "aarch64-grace", definition=grace))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[targets.mips]", "'mips' is no name of a processor"),
        ('[targets."arm64-sve@512"]', "is no name of a processor"),
        ('[targets.arm64]\nrunner = "qemu-aarch64 -cpu max"', "targets.arm64.runner"),
        ('[targets.arm64]\nruntime = "manylinux_2_28_aarch64"', "wheel:PLATFORM, or an absolute folder"),
        ("[targets.arm64]\ncompiler_flags = ['O3']", "targets.arm64.compiler_flags"),
        ("[targets.arm64]\nruner = []", "did you mean 'runner'"),
        ("[targets.arm64-y]\nrunner = []", "targets.arm64-y.runner: no words"),
        ('[targets.arm64-y]\nrunner = "qemu-aarch64 -cpu max"', "targets.arm64-y.runner: expected a list of words"),
        ('[targets.arm64-y]\nrunner = ["adb", "shell"]', "targets.arm64-y.runner: boards are not reached by adb"),
        ('[targets.arm64-y]\nrunner = "ssh"', "targets.arm64-y.runner: expected a list of words, or ssh HOST"),
        ('[targets.arm64-y]\nrunner = ["q", "v={byts}"]', "targets.arm64-y.runner: unknown place {byts}"),
        ('[targets.arm64-y]\ncompiler_flags = ["-O3"]', "--iree-llvmcpu-target-triple=aarch64-… is missing"),
        (
            '[targets.arm64-y]\ncompiler_flags = ["--iree-llvmcpu-target-triple=x86_64-linux-gnu"]',
            "targets.arm64-y.compiler_flags: --iree-llvmcpu-target-triple=aarch64-… is missing",
        ),
        (
            '[targets.arm64-y]\nruntime = "wheel:manylinux_2_28_nope"',
            "targets.arm64-y.runtime: wheel:manylinux_2_28_nope is no platform of aarch64",
        ),
    ],
)
def test_a_wrong_definition_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError) as raised:
        _read(tmp_path, text)
    (problem,) = raised.value.problems
    assert message in str(problem)


def test_what_a_runner_lacks_is_named_with_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    packages = "(Debian, Ubuntu: apt install qemu-user libc6-arm64-cross libstdc++6-arm64-cross)"
    assert explain_missing_runner(ARM) == f"qemu-aarch64 is not installed {packages}"
    (tmp_path / "qemu-aarch64").touch(0o755)
    monkeypatch.setattr(Path, "is_dir", lambda _path: False)
    missing = f"/usr/aarch64-linux-gnu, with the libraries of aarch64, does not exist {packages}"
    assert explain_missing_runner(ARM) == missing


def test_a_machine_of_the_architecture_needs_no_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform.machine().replace("arm64", "aarch64") == target_runtimes._MACHINE
    monkeypatch.setattr(target_runtimes, "_MACHINE", "aarch64")
    assert is_native(ARM)
    assert is_native(CPU)
    assert not is_native(Target("cpu", "aarch64-sve-512"))
    assert not is_native(Target("cpu", "riscv64"))


def test_bench_says_that_it_measures_this_machine() -> None:
    with pytest.raises(UsageError, match="--target arm64: models are measured on this machine"):
        choose_target("local-task", "arm64")


def test_doctor_says_what_each_processor_needs(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_runtimes, "_MACHINE", "x86_64")
    monkeypatch.setattr(Path, "is_dir", lambda _path: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(project.folder)
    for name in ("qemu-riscv64", "env"):
        (tmp_path / name).touch(0o755)
    (project.folder / "gauntlet.toml").write_text('[targets.riscv64-board]\nrunner = ["env"]\nruntime = "/opt/iree"\n')
    lines = {finding.area: (finding.status, finding.text, finding.hint) for finding in doctor._check_architectures()}
    packages = "apt install qemu-user libc6-arm64-cross libstdc++6-arm64-cross (Debian, Ubuntu)"
    missing = ("info", "compiles, does not run: qemu-aarch64 is not installed", packages)
    assert lines["target aarch64"] == lines["target aarch64-sve"] == missing
    assert lines["target riscv64"][:2] == ("info", "compiles, does not run: IREE has no wheel for it")
    assert lines["target riscv64-board"][1] == "compiles, and runs by env (runtime: /opt/iree)"


def test_several_targets_of_a_matrix_need_no_irees() -> None:
    assert _combine((), (), ("arm64-sve@128", "arm64-sve@512")) == ("installed",)
    assert _combine((), (), ("arm64",)) == ()
    assert _combine(("3.12.0",), (), ("arm64", "cpu")) == ("3.12.0",)


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("arm64-grace", ("nothing defines 'aarch64-grace'", "[targets.aarch64-grace] in gauntlet.toml")),
        ("mycpu", ("unknown target 'mycpu'", "begins with an architecture: arm64-mycpu")),
        ("arm64-sve@300", ("unknown target 'arm64-sve@300'", "is 128, 256, 512, 1024, 2048")),
        ("arm64-sve@", ("unknown target 'arm64-sve@'", "is 128, 256, 512, 1024, 2048")),
        ("arm64@256", ("aarch64 has no vectors of 256 bits", "none, as its runner has no place for one")),
        ("riscv64@2048", ("riscv64 has no vectors of 2048 bits", "Its lengths: 128, 256, 512, 1024.")),
    ],
)
def test_a_target_that_does_not_exist_is_refused(
    name: str, texts: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_tree(tmp_path, {NAME: REGRESSION}))
    with pytest.raises(UsageError) as raised:
        select(parse_request(SelectionRequest, {"target": [name], "spec_dir": ["."]}), Defaults())
    for text in texts:
        assert text in f"{raised.value.message}. {raised.value.hint}"
