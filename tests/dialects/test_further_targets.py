"""The field `targets`: one spec on several targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.stages import Kind, Stage
from iree_gauntlet.targets import FAMILIES, Target, flags_for, target_flags
from tests.support import spec_trees, torch_trees
from tests.support.spec_trees import CPU, find_argv, load, plan, write_tree
from tests.support.torch_trees import load_torch

VULKAN = Target("vulkan")
HOST_FLAGS = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
REGRESSION: dict[str, Any] = spec_trees.HIP_SPEC | {
    "device": "local-task",
    "compiler_flags": [*HOST_FLAGS, "--iree-llvmcpu-target-cpu=host", "--iree-opt-level=O2"],
    "run_test_expecting_to_fail": True,
    "targets": {"vulkan": {}},
}
BENCHMARK: dict[str, Any] = spec_trees.BENCHMARK | {"device": "local-task", "benchmark_flags": []}
NAME = "regression_tests/m/s_cpu.json"


def test_a_regression_is_compiled_and_run_for_a_further_target(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, {NAME: REGRESSION})
    made = plan(load(tree, CPU, VULKAN), [Stage.THRESHOLD])
    argv = find_argv(made, "m/s@vulkan:compile")
    assert [word for word in argv if word.startswith("--iree-")][:2] == [
        "--iree-hal-target-device=vulkan",
        "--iree-opt-level=O2",
    ]
    assert not any("llvm" in word or "local" in word for word in argv)
    assert "--device=vulkan" in find_argv(made, "m/s@vulkan:threshold")
    own = find_argv(made, "m/s@cpu:compile")
    assert set(REGRESSION["compiler_flags"]) <= set(own)
    assert "--device=local-task" in find_argv(made, "m/s@cpu:threshold")
    # That it is expected to fail is said of its own target.
    expected = {step.chain: step.expect_failure for step in made.steps if step.stage is Stage.THRESHOLD}
    assert [bool(expected[chain]) for chain in ("m/s@cpu", "m/s@vulkan")] == [True, False]


def test_a_benchmark_for_another_backend_has_not_the_targets_of_the_cpu(tmp_path: Path) -> None:
    files = {
        NAME: REGRESSION,
        "benchmarks/m/s_cpu.json": BENCHMARK,
        "regression_tests/m/s_rocm.json": spec_trees.HIP_SPEC,
        "benchmarks/m/s_rocm.json": spec_trees.BENCHMARK,
    }
    cases = load(write_tree(tmp_path, files), CPU, VULKAN, Target("rocm", "gfx942"))
    assert not cases.problems
    files_by_target = {(case.target.family, Path(case.origin.file).name) for case in cases.cases}
    assert files_by_target == {("cpu", "s_cpu.json"), ("vulkan", "s_cpu.json"), ("rocm", "s_rocm.json")}


def test_a_golden_of_the_family_is_not_for_another_architecture(tmp_path: Path) -> None:
    goldens = {"golden_dispatch": {"cpu": 1, "riscv64": 2}, "golden_size": {"cpu": 100}}
    tree = write_tree(tmp_path, {NAME: REGRESSION, "benchmarks/m/s_cpu.json": BENCHMARK | goldens})
    targets = (CPU, Target("cpu", "aarch64"), Target("cpu", "riscv64"))
    cases = [case for case in load(tree, *targets).cases if case.kind is Kind.BENCHMARK]
    values = {case.target.chip: {golden.metric.value: golden.value for golden in case.goldens} for case in cases}
    assert values == {
        "": {"dispatch_count": 1, "binary_size_bytes": 100},
        "aarch64": {},
        "riscv64": {"dispatch_count": 2},
    }


def test_another_architecture_takes_the_place_of_this_machine(tmp_path: Path) -> None:
    own = {"compile_flags": [*HOST_FLAGS, "--iree-llvmcpu-target-cpu=host"], "compilation_required": True}
    program = {"mlir_file_path": str(tmp_path / "x.mlir"), "function_run": "f"}
    files = {NAME: REGRESSION, "benchmarks/m/own_cpu.json": BENCHMARK | own | program, "x.mlir": "module {}"}
    tree = write_tree(tmp_path, files)
    made = plan(load(tree, CPU, Target("cpu", "aarch64"), Target("cpu", "riscv64")), [Stage.THRESHOLD, Stage.BENCHMARK])
    for chain in ("m/s", "m/own"):
        (host,) = [word for word in find_argv(made, f"{chain}@cpu:compile") if word.startswith("--iree-llvmcpu-target")]
        assert host == "--iree-llvmcpu-target-cpu=host"
        for chip in ("aarch64", "riscv64"):
            argv = find_argv(made, f"{chain}@cpu-{chip}:compile")
            flags = tuple(word for word in argv if word.startswith("--iree-llvmcpu-target"))
            assert flags == CPU.kind.architectures[chip].flags
            assert set(HOST_FLAGS) <= set(argv)
    assert "--iree-opt-level=O2" in find_argv(made, "m/s@cpu-aarch64:compile")
    assert target_flags(Target("cpu", "riscv64")) == (*HOST_FLAGS, *CPU.kind.architectures["riscv64"].flags)


def test_a_further_target_may_have_flags_a_tolerance_and_a_device_of_its_own(tmp_path: Path) -> None:
    options = {
        "compiler_flags": ["--iree-vulkan-target=rdna3"],
        "threshold_args": ["--expected_f16_threshold=2.0f"],
        "device": "vulkan://GPU-1",
    }
    tree = write_tree(tmp_path, {NAME: REGRESSION | {"targets": {"vulkan": options}}})
    made = plan(load(tree, VULKAN), [Stage.THRESHOLD])
    assert "--iree-vulkan-target=rdna3" in find_argv(made, "m/s@vulkan:compile")
    argv = find_argv(made, "m/s@vulkan:threshold")
    assert "--device=vulkan://GPU-1" in argv
    assert [word for word in argv if "expected_f16" in word] == ["--expected_f16_threshold=2.0f"]


def test_a_benchmark_follows_its_regression_and_leaves_its_goldens_behind(tmp_path: Path) -> None:
    goldens = {
        "golden_time_ms": {"mi300": 7.5, "vulkan-mi300": 30},
        "golden_dispatch": {"cpu": 792, "vulkan": 800},
        "golden_size": {"cpu": 460000},
    }
    tree = write_tree(tmp_path, {NAME: REGRESSION, "benchmarks/m/s_cpu.json": BENCHMARK | goldens})
    cases = load(tree, Target("cpu", sku="mi300"), Target("vulkan", sku="mi300"))
    made = plan(cases, [Stage.BENCHMARK])
    argv = find_argv(made, "m/s@vulkan:benchmark")
    assert "--device=vulkan" in argv
    assert any(word.startswith("--module=/run/steps/m/s.vulkan/compile/") for word in argv)
    found = {
        case.target.family: [(golden.metric, golden.value, golden.sku) for golden in case.goldens]
        for case in cases.cases
        if case.kind == "benchmark"
    }
    sizes = [("dispatch_count", 792, "cpu"), ("binary_size_bytes", 460000, "cpu")]
    assert found["cpu"] == [("time_ms", 7.5, "mi300"), *sizes]
    assert found["vulkan"] == [("time_ms", 30, "mi300"), ("dispatch_count", 800, "vulkan")]


def test_a_benchmark_that_compiles_for_itself_does_so_for_the_further_target(tmp_path: Path) -> None:
    own = BENCHMARK | {"compilation_required": True, "mlir_url": "https://h/own.mlir", "compile_flags": HOST_FLAGS}
    tree = write_tree(tmp_path, {NAME: REGRESSION, "benchmarks/m/s_cpu.json": own})
    made = plan(load(tree, VULKAN), [Stage.BENCHMARK])
    argv = find_argv(made, "m/s@vulkan:compile.benchmark")
    assert "--iree-hal-target-device=vulkan" in argv
    assert not set(HOST_FLAGS) & set(argv)


def test_a_chip_is_compiled_for_and_a_benchmark_without_a_pair_follows_nothing(tmp_path: Path) -> None:
    files = {NAME: REGRESSION | {"targets": {"cuda": {}, "rocm": {}}}, "benchmarks/m/other_cpu.json": BENCHMARK}
    tree = write_tree(tmp_path, files)
    cases = load(tree, Target("cuda", "sm_80"), Target("rocm", "gfx942"))
    made = plan(cases, [Stage.COMPILE])
    assert "--iree-cuda-target=sm_80" in find_argv(made, "m/s@cuda-sm_80:compile")
    assert find_argv(made, "m/s@rocm-gfx942:compile").count("--iree-rocm-target=gfx942") == 1
    assert {case.submodel for case in cases.cases} == {"s"}


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"vulcan": {}}, "unknown target 'vulcan'; did you mean 'vulkan'?"),
        ({"abacus": {}}, "unknown target 'abacus'; known: cpu, rocm,"),
        ({"cpu": {}}, "is already the file's own target"),
        ({"vulkan": {"compile_flags": []}}, "unknown field; did you mean 'compiler_flags'?"),
        (["vulkan"], "expected an object"),
    ],
)
def test_targets_that_mean_nothing_are_reported_with_their_line(tmp_path: Path, targets: Any, message: str) -> None:
    for folder, name, document in (("a", NAME, REGRESSION), ("b", "torch_models/m/modules/a.json", torch_trees.MODULE)):
        files = torch_trees.TREE if folder == "b" else {}
        tree = write_tree(tmp_path / folder, {**files, name: document | {"targets": targets}})
        (problem, *_) = load(tree, CPU).problems
        assert message in problem.message
        assert problem.line > 1
        assert problem.field.startswith("targets")


def test_tests_of_torch_models_follow_their_modules(tmp_path: Path) -> None:
    module = torch_trees.MODULE | {"targets": {"vulkan": {"compiler_flags": ["--y"]}}}
    machine = torch_trees.BENCHMARK | {"sku": "mi300"}
    xfail = torch_trees.QUALITY | {"markers": ["cpu", "text", "xfail"]}
    tree = write_tree(
        tmp_path,
        {
            **torch_trees.TREE,
            "torch_models/m/modules/a.json": module,
            "torch_models/m/machine.json": machine,
            "torch_models/m/fails.json": xfail,
        },
    )
    cases = load_torch(tree, VULKAN)
    assert not cases.problems
    assert {case.submodel for case in cases.cases} == {"quality", "bench", "fails"}
    assert not any(case.goldens or case.expectations for case in cases.cases)
    assert {word for case in cases.cases for word in case.markers} == {
        *("vulkan", "text", "xfail", "quality", "benchmark")
    }
    made = plan(cases, [Stage.THRESHOLD, Stage.BENCHMARK])
    argv = find_argv(made, "m/modules/a@vulkan:compile")
    assert [word for word in argv if word.startswith("--")][:3] == ["--iree-hal-target-device=vulkan", "--x=1", "--y"]
    argv = find_argv(made, "m/quality@vulkan:threshold")
    assert argv[-3:] == ["--function=main", "--device=vulkan", "--expected_f16_threshold=1.0f"]
    # Synthetic weights are of the program, whatever it is compiled for.
    assert any(step.stage is Stage.PARAMETERS and step.chain == "m/modules/a@vulkan" for step in made.steps)
    own = load_torch(tree, CPU)
    assert {case.submodel for case in own.cases} == {"quality", "bench", "fails", "machine", "stat"}


def test_tests_follow_only_where_all_of_their_modules_go(tmp_path: Path) -> None:
    module = torch_trees.MODULE | {"targets": {"vulkan": {}}}
    two = torch_trees.QUALITY | {"modules": ["m/modules/a", "m/modules/b"]}
    files = {
        "torch_models/m/modules/a.json": module,
        "torch_models/m/modules/b.json": torch_trees.MODULE,
        "torch_models/m/two.json": two,
    }
    assert not load_torch(write_tree(tmp_path, files), VULKAN).cases


def test_a_chip_that_no_flag_names_is_left_out() -> None:
    assert target_flags(Target("metal", "apple9")) == ("--iree-hal-target-device=metal",)


@pytest.mark.parametrize(
    ("target", "flags"),
    [
        (CPU, f"{' '.join(HOST_FLAGS)} --iree-llvmcpu-target-cpu=host"),
        (Target("vmvx"), "--iree-hal-target-device=local --iree-hal-local-target-device-backends=vmvx"),
        (Target("rocm", "gfx942"), "--iree-hal-target-device=hip --iree-rocm-target=gfx942"),
        (Target("cuda", "sm_80"), "--iree-hal-target-device=cuda --iree-cuda-target=sm_80"),
        (Target("vulkan", "rdna3"), "--iree-hal-target-device=vulkan --iree-vulkan-target=rdna3"),
    ],
)
def test_a_target_is_named_by_its_flags(target: Target, flags: str) -> None:
    assert target_flags(target) == tuple(flags.split())


@pytest.mark.parametrize("words", ["rocm hip cuda vulkan metal vmvx spirv llvmcpu llvmgpu", "llvmcpu llvmgpu spirv"])
def test_flags_that_concern_one_target_alone_are_no_flags_of_another(words: str) -> None:
    codegen = "" if "hip" in words else "codegen-"
    concerned = [f"--iree-{codegen}{word}-x=1" for word in words.split()]
    assert flags_for(VULKAN, [*concerned, "--iree-gpu-x=1"]) == ("--iree-hal-target-device=vulkan", "--iree-gpu-x=1")


@given(st.sampled_from(FAMILIES), st.sampled_from(FAMILIES))
def test_flags_of_one_target_become_those_of_another(one: str, other: str) -> None:
    plain = ("--iree-opt-level=O3", "--iree-input-demote-f64-to-f32=false", "--iree-codegen-llvmgpu-test=1")
    there = flags_for(Target(other), (*target_flags(Target(one)), *plain))
    assert there == (*target_flags(Target(other)), *plain[:2])
    assert flags_for(Target(one), there) == (*target_flags(Target(one)), *plain[:2])
