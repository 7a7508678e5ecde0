"""sharktank's real files: of several generations, of a single model, with paths of other machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.stages import Stage
from iree_gauntlet.targets import Target
from tests.support.spec_trees import BENCHMARK, CPU, HIP_SPEC, SPEC, find_argv, find_step, load, plan, split, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.engine.plan import Plan

MI300 = Target("rocm", "gfx942", "mi300")
OWN = BENCHMARK | {"compilation_required": True, "mlir_url": "https://h/own.mlir", "compile_flags": ["--own"]}
STEPS = "/run/steps/m"


def planned(tree: Path, *targets: Target) -> Plan:
    cases = load(tree, *(targets or (MI300,)))
    assert not cases.problems
    return plan(cases, [Stage.THRESHOLD, Stage.BENCHMARK])


def parameters(made: Plan, chain: str) -> list[str]:
    return [word for word in find_argv(made, f"{chain}:benchmark") if word.startswith("--parameters")]


# Weights of a benchmark that compiles for itself


def test_a_benchmark_that_compiles_for_itself_has_its_pairs_weights(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, {"quality_tests/m/s_rocm.json": HIP_SPEC, "benchmarks/m/s_rocm.json": OWN})
    made = planned(tree)
    assert parameters(made, "m/s@rocm-gfx942") == ["--parameters=model=/cache/h/weights.irpa"]
    argv = find_argv(made, "m/s@rocm-gfx942:compile.benchmark")
    assert "/cache/h/own.mlir" in argv
    assert not any("splat" in word for word in argv)
    assert find_argv(made, "m/s@rocm-gfx942:benchmark")[-1] == (
        "--module=/run/steps/m/s.rocm-gfx942/compile.benchmark/module.vmfb"
    )


def test_a_pair_that_runs_with_made_up_weights_has_the_benchmark_make_its_own(tmp_path: Path) -> None:
    pair = {name: value for name, value in HIP_SPEC.items() if name != "real_weights"}
    tree = write_tree(tmp_path, {"quality_tests/m/s_rocm.json": pair, "benchmarks/m/s_rocm.json": OWN})
    made = planned(tree)
    archive = f"{STEPS}/s.rocm-gfx942/compile.benchmark/splat.irpa"
    assert parameters(made, "m/s@rocm-gfx942") == [f"--parameters=model={archive}"]
    assert f"--iree-parameter-splat={archive}" in find_argv(made, "m/s@rocm-gfx942:compile.benchmark")


def test_a_pipeline_that_compiles_for_itself_has_the_weights_of_its_modules_alone(tmp_path: Path) -> None:
    files = {"quality_tests/m/e2e_rocm.json": HIP_SPEC, "quality_tests/m/clip_rocm.json": HIP_SPEC}
    pipeline = OWN | {"modules": ["m_clip"], "real_weights_file_name": "another.irpa"}
    tree = write_tree(tmp_path, files | {"benchmarks/m/e2e_rocm.json": pipeline})
    assert parameters(planned(tree), "m/e2e@rocm-gfx942") == ["--parameters=model=/cache/h/weights.irpa"]


def test_one_without_a_pair_runs_without_weights_and_cannot_name_a_file_of_the_pair(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, {"benchmarks/m/s_rocm.json": OWN})
    assert parameters(planned(tree), "m/s@rocm-gfx942") == []
    write_tree(tmp_path, {"benchmarks/m/s_rocm.json": OWN | {"real_weights_file_name": "x.irpa"}})
    blocked = find_step(planned(tree), "m/s@rocm-gfx942:benchmark").blocked
    assert "no regression spec for m/s downloads 'x.irpa'" in blocked


# Fields of several generations


def test_submodel_name_is_whose_module_and_weights_are_measured(tmp_path: Path) -> None:
    files = {"quality_tests/m/8b_rocm.json": HIP_SPEC}
    for name in ("prefill", "decode"):
        files[f"benchmarks/m/8b-{name}_rocm.json"] = BENCHMARK | {"submodel_name": "8b", "function_run": name}
    made = planned(write_tree(tmp_path, files))
    for name in ("prefill", "decode"):
        argv = find_argv(made, f"m/8b-{name}@rocm-gfx942:benchmark")
        assert f"--function={name}" in argv
        assert argv[-1] == f"--module={STEPS}/8b.rocm-gfx942/compile/module.vmfb"
        assert "--parameters=model=/cache/h/weights.irpa" in argv
    write_tree(tmp_path, {"benchmarks/m/8b-decode_rocm.json": BENCHMARK | {"submodel_name": "9b"}})
    blocked = find_step(planned(tmp_path), "m/8b-decode@rocm-gfx942:benchmark").blocked
    assert "no regression spec defines m/9b" in blocked


@pytest.mark.parametrize("field", ["mlir_url", "mlir_file_url", "mlir_file_path"])
def test_a_program_by_its_url(tmp_path: Path, field: str) -> None:
    spec = {name: value for name, value in OWN.items() if name != "mlir_url"} | {field: "https://h/p.mlir"}
    made = planned(write_tree(tmp_path, {"benchmarks/m/s_rocm.json": spec}))
    assert "/cache/h/p.mlir" in find_argv(made, "m/s@rocm-gfx942:compile")


def test_true_as_a_word_and_folders_in_the_name_of_a_module(tmp_path: Path) -> None:
    files = {
        "quality_tests/m/s_rocm.json": HIP_SPEC | {"compile_only": "True"},
        "benchmarks/m/t_rocm.json": OWN
        | {"compilation_required": "True", "compiled_file_name": "m_t_vmfbs/model.rocm_gfx942"},
    }
    made = planned(write_tree(tmp_path, files))
    assert [step.stage for step in made.steps if step.chain == "m/s@rocm-gfx942"] == [Stage.FETCH, Stage.COMPILE]
    assert "--own" in find_argv(made, "m/t@rocm-gfx942:compile")


# Absolute paths


@pytest.mark.parametrize("where", ["outside", "missing"])
def test_an_absolute_path_is_a_file_of_the_machine(tmp_path: Path, where: str) -> None:
    program, weights = tmp_path / "there" / "own.mlir", tmp_path / "there" / "w.irpa"
    if where == "outside":
        write_tree(tmp_path / "there", {"own.mlir": "module {}", "w.irpa": b""})
    spec = {name: value for name, value in OWN.items() if name != "mlir_url"}
    spec |= {"mlir_file_path": str(program), "real_weights_file_path": str(weights)}
    made = planned(write_tree(tmp_path / "specs", {"benchmarks/m/s_rocm.json": spec}))
    assert str(program) in find_argv(made, "m/s@rocm-gfx942:compile")
    assert parameters(made, "m/s@rocm-gfx942") == [f"--parameters=model={weights}"]
    blocked = find_step(made, "m/s@rocm-gfx942:benchmark").blocked
    for text in (f"the program {program} is missing (mlir_file_path)", f"the weights {weights} are missing"):
        assert (text in blocked) == (where == "missing")


# One model's folder


@pytest.mark.parametrize("folder", ["quality_tests/m", "quality_tests", "."])
def test_one_models_folder_with_the_external_files_of_all(tmp_path: Path, folder: str) -> None:
    spec = HIP_SPEC | {"tuner_file": {"mi300": "tuner.mlir"}, "mlir": "../programs/m.mlir"}
    files = {"quality_tests/m/s_rocm.json": spec, "quality_tests/n/s_rocm.json": HIP_SPEC}
    tree = write_tree(tmp_path / "suite" / "models", files)
    write_tree(tmp_path / "suite", {"test_suite_files/tuner.mlir": "module {}"})
    made = planned(tree / folder)
    found = {step.chain for step in made.steps}
    assert found == ({"m/s@rocm-gfx942"} if folder.endswith("/m") else {"m/s@rocm-gfx942", "n/s@rocm-gfx942"})
    flag = f"--iree-codegen-transform-dialect-library={tmp_path}/suite/test_suite_files/tuner.mlir"
    argv = find_argv(made, "m/s@rocm-gfx942:compile")
    assert flag in argv
    assert f"{tree}/quality_tests/programs/m.mlir" in argv
    write_tree(tree, {"quality_tests/m/s_rocm.json": spec | {"mlir": "../../../m.mlir"}})
    (problem,) = load(tree / folder, MI300).problems
    assert f"is outside of the spec folder {tree}" in problem.message


def test_a_folder_of_spec_files_is_one_models_whatever_lies_above_it(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "mine" / "m", {"s_rocm.json": HIP_SPEC, "notes/readme.md": "text"})
    assert {step.chain for step in planned(tree).steps} == {"m/s@rocm-gfx942"}
    # Where folders of models are in it, a file next to them is none of theirs.
    write_tree(tree, {"deeper/t_rocm.json": HIP_SPEC, "s_rocm.json": "{}"})
    assert {step.chain for step in planned(tree).steps} == {"deeper/t@rocm-gfx942"}
    # Nor is what others keep in a folder of such a name.
    write_tree(tmp_path / "all", {"quality_tests/m/s_rocm.json": HIP_SPEC, "benchmarks/results.json": "{}"})
    assert {step.chain for step in planned(tmp_path / "all").steps} == {"m/s@rocm-gfx942"}


@pytest.mark.parametrize(
    ("name", "spec", "says"),
    [
        ("quality_tests/m/s_rocm.json", HIP_SPEC | {"tuner_file": {"mi300": "x.mlir"}}, "(tuner_file.mi300)"),
        ("benchmarks/m/s_rocm.json", OWN | {"mlir_url": "", "mlir_file_name": "x.mlir"}, "(mlir_file_name)"),
    ],
)
def test_a_missing_external_file_names_the_option(tmp_path: Path, name: str, spec: dict[str, Any], says: str) -> None:
    made = planned(write_tree(tmp_path, {name: {field: value for field, value in spec.items() if value}}))
    (blocked,) = {step.blocked for step in made.steps if step.blocked}
    assert "x.mlir is missing" in blocked
    assert f"{says}; --external-file-directory names the folder" in blocked


# The first generation of benchmarks


def first_generation(**changes: Any) -> dict[str, Any]:
    left_out = ("device", "benchmark_flags", "golden_time_ms")
    return {name: value for name, value in BENCHMARK.items() if name not in left_out} | changes


def test_a_benchmark_of_the_first_generation(tmp_path: Path) -> None:
    own = {"compilation_required": True, "mlir_file_path": "external_test_files/p.mlir", "compile_flags": ["--own"]}
    files = {
        "regression_tests/m/clip.json": SPEC,
        "benchmarks/m/clip.json": first_generation(golden_time={"mi300": 15.0}),
        "benchmarks/m/e2e.json": first_generation(modules=["m_clip"], **own),
        "external_test_files/p.mlir": "module {}",
    }
    tree = write_tree(tmp_path, files)
    made = planned(tree, CPU, MI300)
    assert {step.chain for step in made.steps if step.stage is Stage.BENCHMARK} == {
        "m/clip@rocm-gfx942",
        "m/e2e@rocm-gfx942",
    }
    step = find_step(made, "m/clip@rocm-gfx942:benchmark")
    assert find_argv(made, step.id) == split(
        "iree-benchmark-module --device=hip --function=main --parameters=model=/cache/h/weights.irpa",
        "--benchmark_format=json --input=1x64xi64 --input=1xf16 --device_allocator=caching",
        "--benchmark_repetitions=10 --benchmark_min_warmup_time=3.0",
        f"--module={STEPS}/clip.rocm-gfx942/compile/module.vmfb",
    )
    (golden,) = step.goldens
    missing = "device is missing, as in the first generation: using hip with --device_allocator=caching"
    assert step.notes == (missing, "golden_time is the older name of golden_time_ms")
    assert find_step(made, "m/e2e@rocm-gfx942:benchmark").notes == (missing,)
    assert (golden.value, golden.factor, golden.origin.field) == (15.0, 1.1, "golden_time.mi300")
    compiled = find_argv(made, "m/e2e@rocm-gfx942:compile")
    assert {"--iree-hal-target-backends=rocm", "--iree-rocm-target=gfx942", "--own"} < set(compiled)


def test_a_benchmark_for_the_cpu_is_of_no_first_generation(tmp_path: Path) -> None:
    tree = write_tree(tmp_path, {"benchmarks/m/s_cpu.json": first_generation()})
    (problem,) = load(tree, CPU).problems
    assert (problem.field, problem.line) == ("device", 1)
    assert "is missing" in problem.message
