"""Command lines of specs; the expected lines are written by hand from the documents of today's programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.stages import Stage
from iree_gauntlet.targets import Target
from tests.support.spec_trees import BENCHMARK, CPU, HIP_SPEC, SPEC, find_argv, find_step, load, plan, split, write_tree

if TYPE_CHECKING:
    from pathlib import Path

MI300 = Target("rocm", "gfx942", "mi300")
MI308 = Target("rocm", "gfx942", "mi308")
ALL = (Stage.COMPILE, Stage.THRESHOLD, Stage.COMPSTAT, Stage.BENCHMARK)


def statistics(folder: str) -> list[str]:
    """What every compile is asked for in addition to what its spec says."""
    return [
        f"--iree-scheduling-dump-statistics-file={folder}/statistics.json",
        "--iree-scheduling-dump-statistics-format=json",
    ]


def test_first_generation_on_the_cpu(tmp_path: Path) -> None:
    made = plan(load(write_tree(tmp_path, {"m/clip.json": SPEC})), ALL)
    folder = "/run/steps/m/clip.cpu/compile"
    assert find_argv(made, "m/clip@cpu:compile") == split(
        "iree-compile /cache/h/model.mlir --cpu-a --cpu-b=1 --iree-hal-target-backends=llvm-cpu",
        *statistics(folder),
        f"-o {folder}/module.vmfb",
    )
    assert find_argv(made, "m/clip@cpu:threshold") == split(
        f"iree-run-module --device=local-task --module={folder}/module.vmfb --function=encode_cpu",
        "--expected_f16_threshold=1.0f --input=1x64xi64=@/cache/h/in0.bin --input=@/cache/h/in1.npy",
        "--expected_output=2x1280xf16=@/cache/h/out0.bin --parameters=model=/cache/h/weights.irpa",
    )


def test_first_generation_on_rocm_with_tuner_and_pipeline(tmp_path: Path) -> None:
    spec = SPEC | {
        "pipeline_mlir": "https://h/pipeline.mlir",
        "rocm_pipeline_compiler_flags": ["--verify=false"],
        "add_pipeline_module": True,
        "tuner_file": {"mi308": "external_test_files/tuner.mlir"},
    }
    tree = write_tree(
        tmp_path / "specs", {"regression_tests/m/unet.json": spec, "external_test_files/tuner.mlir": "module {}"}
    )
    made = plan(load(tree, CPU, MI308), ALL)
    folder = "/run/steps/m/unet.rocm-gfx942"
    assert find_argv(made, "m/unet@rocm-gfx942:compile") == split(
        "iree-compile /cache/h/model.mlir --rocm-a --iree-hal-target-backends=rocm",
        "--iree-hip-target=gfx942",
        [f"--iree-codegen-transform-dialect-library={tree}/external_test_files/tuner.mlir"],
        *statistics(f"{folder}/compile"),
        f"-o {folder}/compile/module.vmfb",
    )
    assert find_argv(made, "m/unet@rocm-gfx942:compile.pipeline") == split(
        "iree-compile /cache/h/pipeline.mlir --verify=false --iree-hal-target-backends=rocm",
        "--iree-hip-target=gfx942",
        *statistics(f"{folder}/compile.pipeline"),
        f"-o {folder}/compile.pipeline/module.vmfb",
    )
    assert find_argv(made, "m/unet@rocm-gfx942:threshold") == split(
        f"iree-run-module --device=hip --module={folder}/compile/module.vmfb --function=encode_rocm",
        "--expected_f16_threshold=0.5f --input=1x64xi64=@/cache/h/in0.bin --input=@/cache/h/in1.npy",
        "--expected_output=2x1280xf16=@/cache/h/out0.bin --parameters=model=/cache/h/weights.irpa",
        f"--module={folder}/compile.pipeline/module.vmfb",
    )
    # The CPU's pipeline is compiled with the flags of its main module, and no tuner file.
    cpu = "/run/steps/m/unet.cpu/compile.pipeline"
    assert find_argv(made, "m/unet@cpu:compile.pipeline") == split(
        "iree-compile /cache/h/pipeline.mlir --cpu-a --cpu-b=1 --iree-hal-target-backends=llvm-cpu",
        *statistics(cpu),
        f"-o {cpu}/module.vmfb",
    )
    # Files that flags name are found from the external files folder, which is the working folder.
    command = find_step(made, "m/unet@rocm-gfx942:compile").command
    assert command is not None
    assert command.cwd == f"{tree}/external_test_files"


def test_a_sku_without_tuner_file_gets_no_tuner_flag(tmp_path: Path) -> None:
    spec = HIP_SPEC | {"tuner_file": {"mi308": "tuner.mlir"}}
    made = plan(load(write_tree(tmp_path, {"m/s_rocm.json": spec}), MI300), ALL)
    assert not any("transform-dialect" in word for word in find_argv(made, "m/s@rocm-gfx942:compile"))
    assert not find_step(made, "m/s@rocm-gfx942:compile").blocked


def test_second_generation(tmp_path: Path) -> None:
    spec = HIP_SPEC | {"tuner_file": {"mi308": "tuner.mlir"}}
    tree = write_tree(tmp_path, {"quality_tests/m/s_rocm.json": spec, "test_suite_files/tuner.mlir": "module {}"})
    made = plan(load(tree, CPU, MI308), ALL)
    folder = "/run/steps/m/s.rocm-gfx942/compile"
    assert {step.chain for step in made.steps} == {"m/s@rocm-gfx942"}
    assert find_argv(made, "m/s@rocm-gfx942:compile") == split(
        "iree-compile /cache/h/model.mlir --iree-hal-target-device=hip --x",
        [f"--iree-codegen-transform-dialect-library={tree}/test_suite_files/tuner.mlir"],
        "--iree-rocm-target=gfx942",
        *statistics(folder),
        f"-o {folder}/module.vmfb",
    )
    assert find_argv(made, "m/s@rocm-gfx942:threshold") == split(
        f"iree-run-module --device=hip --module={folder}/module.vmfb --function=main",
        "--expected_f16_threshold=1.0f --input=1x64xi64=@/cache/h/in0.bin",
        "--expected_output=@/cache/h/out0.npy --parameters=model=/cache/h/weights.irpa",
    )


def test_second_generation_without_weights_is_compiled_with_a_splat_archive_and_runs_with_it(tmp_path: Path) -> None:
    spec = {key: value for key, value in HIP_SPEC.items() if key != "real_weights"} | {"device": "local-task"}
    tree = write_tree(tmp_path, {"regression_tests/m/s_cpu.json": spec, "benchmarks/m/s_cpu.json": BENCHMARK})
    made = plan(load(tree), ALL)
    folder = "/run/steps/m/s.cpu/compile"
    assert find_argv(made, "m/s@cpu:compile") == split(
        "iree-compile /cache/h/model.mlir --iree-hal-target-device=hip --x",
        *statistics(folder),
        f"--iree-parameter-splat={folder}/splat.irpa -o {folder}/module.vmfb",
    )
    assert find_step(made, "m/s@cpu:compile").find_output("splat") == f"{folder}/splat.irpa"
    weights = f"--parameters=model={folder}/splat.irpa"
    assert find_argv(made, "m/s@cpu:threshold")[-1] == weights
    assert weights in find_argv(made, "m/s@cpu:benchmark")


def test_a_statistics_flag_of_the_spec_keeps_its_place_and_gets_our_file(tmp_path: Path) -> None:
    flags = ["--a", "--iree-scheduling-dump-statistics-file=info.json", "--b"]
    made = plan(load(write_tree(tmp_path, {"m/s_cpu.json": HIP_SPEC | {"compiler_flags": flags}})), ALL)
    folder = "/run/steps/m/s.cpu/compile"
    assert find_argv(made, "m/s@cpu:compile")[2:-2] == [
        "--a",
        f"--iree-scheduling-dump-statistics-file={folder}/statistics.json",
        "--b",
        "--iree-scheduling-dump-statistics-format=json",
    ]


@pytest.mark.parametrize("generation", ["first", "second"])
def test_a_pipeline_that_is_not_added_is_compiled_and_not_loaded(tmp_path: Path, generation: str) -> None:
    name, spec = ("m/s.json", SPEC) if generation == "first" else ("m/s_cpu.json", HIP_SPEC)
    cases = load(write_tree(tmp_path, {name: spec | {"pipeline_mlir": "https://h/pipeline.mlir"}}))
    assert not cases.problems
    made = plan(cases, ALL)
    assert find_argv(made, "m/s@cpu:compile.pipeline")[1] == "/cache/h/pipeline.mlir"
    run = find_step(made, "m/s@cpu:threshold")
    assert not [word for word in find_argv(made, run.id) if "pipeline" in word]
    assert "m/s@cpu:compile.pipeline" not in run.needs
    assert [item.path for item in run.inputs if item.role == "module"] == ["/run/steps/m/s.cpu/compile/module.vmfb"]
    fetch = find_step(made, "m/s@cpu:fetch")
    assert {item.url for item in fetch.inputs if item.role == "program"} == {
        "https://h/model.mlir",
        "https://h/pipeline.mlir",
    }


def test_no_function_and_no_weights_give_no_flags(tmp_path: Path) -> None:
    made = plan(load(write_tree(tmp_path, {"m/s.json": {"mlir": "https://h/m.mlir", "cpu_compiler_flags": []}})), ALL)
    assert find_argv(made, "m/s@cpu:threshold") == [
        "iree-run-module",
        "--device=local-task",
        "--module=/run/steps/m/s.cpu/compile/module.vmfb",
    ]


@pytest.mark.parametrize("fields", ["fields", "flags", "both"])
def test_benchmark_of_a_regression_specs_module(tmp_path: Path, fields: str) -> None:
    spec = dict(BENCHMARK)
    flags = ["--benchmark_repetitions=10", "--benchmark_min_warmup_time=3.0", "--device_allocator=caching"]
    if fields != "fields":
        spec["benchmark_flags"] = flags
    if fields == "flags":
        del spec["benchmark_repetitions"], spec["benchmark_min_warmup_time"]
    tree = write_tree(tmp_path, {"regression_tests/m/s_rocm.json": HIP_SPEC, "benchmarks/m/s_rocm.json": spec})
    made = plan(load(tree, MI300), ALL)
    assert find_argv(made, "m/s@rocm-gfx942:benchmark") == split(
        "iree-benchmark-module --device=hip --function=main --parameters=model=/cache/h/weights.irpa",
        "--benchmark_format=json --input=1x64xi64 --input=1xf16",
        *flags,
        "--module=/run/steps/m/s.rocm-gfx942/compile/module.vmfb",
    )


def test_weights_of_another_name_are_found_among_the_regressions_files(tmp_path: Path) -> None:
    spec = BENCHMARK | {"real_weights_file_name": "other.irpa"}
    regression = HIP_SPEC | {"inputs": [{"source": "https://h/other.irpa", "value": "1xf32"}]}
    tree = write_tree(tmp_path, {"regression_tests/m/s_rocm.json": regression, "benchmarks/m/s_rocm.json": spec})
    assert "--parameters=model=/cache/h/other.irpa" in find_argv(
        plan(load(tree, MI300), ALL), "m/s@rocm-gfx942:benchmark"
    )
    write_tree(tmp_path, {"benchmarks/m/s_rocm.json": BENCHMARK | {"real_weights_file_name": "nowhere.irpa"}})
    (problem,) = load(tree, MI300).problems
    assert problem.field == "real_weights_file_name"
    assert problem.line > 1
    assert "weights.irpa" in problem.message


def test_end_to_end_benchmark(tmp_path: Path) -> None:
    spec = BENCHMARK | {
        "compilation_required": True,
        "compiled_file_name": "pipeline",
        "compile_flags": ["--y", "--iree-hal-target-backends=rocm"],
        "mlir_file_path": "external_test_files/pipeline.mlir",
        "modules": ["m_clip", "m_unet"],
    }
    splat = {key: value for key, value in HIP_SPEC.items() if key != "real_weights"}
    tree = write_tree(
        tmp_path,
        {
            "regression_tests/m/clip.json": SPEC,
            "regression_tests/m/unet_rocm.json": splat,
            "benchmarks/m/e2e_rocm.json": spec,
            "external_test_files/pipeline.mlir": "module {}",
        },
    )
    made = plan(load(tree, MI300), ALL)
    steps = "/run/steps/m"
    assert find_argv(made, "m/e2e@rocm-gfx942:compile") == split(
        ["iree-compile", f"{tree}/external_test_files/pipeline.mlir", "--y", "--iree-hal-target-backends=rocm"],
        "--iree-rocm-target=gfx942",
        *statistics(f"{steps}/e2e.rocm-gfx942/compile"),
        f"-o {steps}/e2e.rocm-gfx942/compile/module.vmfb",
    )
    assert find_argv(made, "m/e2e@rocm-gfx942:benchmark") == split(
        "iree-benchmark-module --device=hip --function=main",
        f"--module={steps}/clip.rocm-gfx942/compile/module.vmfb --parameters=model=/cache/h/weights.irpa",
        f"--module={steps}/unet.rocm-gfx942/compile/module.vmfb",
        f"--parameters=model={steps}/unet.rocm-gfx942/compile/splat.irpa --benchmark_format=json",
        "--input=1x64xi64 --input=1xf16 --benchmark_repetitions=10 --benchmark_min_warmup_time=3.0",
        f"--device_allocator=caching --module={steps}/e2e.rocm-gfx942/compile/module.vmfb",
    )


def test_a_benchmark_with_modules_and_a_regression_of_its_own_loads_its_own_weights_too(tmp_path: Path) -> None:
    own = HIP_SPEC | {"real_weights": "https://h/own.irpa"}
    tree = write_tree(
        tmp_path,
        {
            "regression_tests/m/clip_rocm.json": HIP_SPEC,
            "regression_tests/m/s_rocm.json": own,
            "benchmarks/m/s_rocm.json": BENCHMARK | {"modules": ["m_clip"]},
        },
    )
    assert find_argv(plan(load(tree, MI300), ALL), "m/s@rocm-gfx942:benchmark")[3:6] == [
        "--module=/run/steps/m/clip.rocm-gfx942/compile/module.vmfb",
        "--parameters=model=/cache/h/weights.irpa",
        "--parameters=model=/cache/h/own.irpa",
    ]


def test_onnx_programs_are_imported_first(tmp_path: Path) -> None:
    spec = HIP_SPEC | {
        "mlir": "https://h/model.onnx",
        "onnx_import": {"opset": 17, "shapes": {"x": [1, 3], "scalar": []}},
    }
    made = plan(load(write_tree(tmp_path, {"m/s_cpu.json": spec})), ALL)
    program = "/run/steps/m/s.cpu/import/program.mlir"
    assert find_argv(made, "m/s@cpu:import") == [
        *("python", "import_onnx.py", "/cache/h/model.onnx", "-o", program),
        *("--opset", "17", "--shape", "x=1x3", "--shape", "scalar=scalar"),
    ]
    # Relative, because the compiler keeps the path in the module: the same bytes in every run and checkout.
    compile_step = find_step(made, "m/s@cpu:compile")
    assert find_argv(made, "m/s@cpu:compile")[:2] == ["iree-compile", "../import/program.mlir"]
    assert compile_step.command is not None
    assert compile_step.command.cwd == "/run/steps/m/s.cpu/compile"
    assert compile_step.inputs[0].path == program
    assert find_step(made, "m/s@cpu:compile").needs == ("m/s@cpu:import",)


def test_a_tuner_file_may_be_a_url(tmp_path: Path) -> None:
    spec = {
        "mlir": "https://example.com/m.mlir",
        "compiler_flags": ["--iree-hal-target-device=hip"],
        "compile_only": True,
        "tuner_file": {"mi300": "https://example.com/tuners/spec_mi300.mlir"},
    }
    write_tree(tmp_path, {"quality_tests/m/s_rocm.json": spec})
    unknown = "https://example.com/tuners/spec_mi300.mlir"
    made = plan(
        load(tmp_path, Target("rocm", "gfx942", "mi300")),
        [Stage.THRESHOLD],
        artifact_hash=lambda url: "" if url == unknown else "ab" * 32,
    )
    steps = {step.stage: step for step in made.steps}
    argv = find_argv(made, "m/s@rocm-gfx942:compile")
    flag = next(word for word in argv if word.startswith("--iree-codegen-transform-dialect-library="))
    fetched = {item.url: item.path for item in steps[Stage.FETCH].inputs}
    assert flag.partition("=")[2] == fetched[unknown]
    # Its content is part of the key, and not known before it is fetched.
    ingredients = dict(steps[Stage.COMPILE].cache.ingredients)
    assert ingredients["file --iree-codegen-transform-dialect-library"] == ""
    assert "tuners" not in ingredients["flags"]
    assert not steps[Stage.COMPILE].cache.key


def test_a_benchmark_may_compile_a_program_from_a_url(tmp_path: Path) -> None:
    spec = {
        "inputs": ["1xf16"],
        "function_run": "main",
        "device": "hip",
        "compilation_required": True,
        "compiled_file_name": "m",
        "mlir_url": "https://example.com/m.mlir",
        "compile_flags": ["--iree-hal-target-backends=rocm"],
    }
    write_tree(tmp_path, {"benchmarks/m/e2e_rocm.json": spec})
    made = plan(load(tmp_path, Target("rocm", "gfx942", "mi300")), [Stage.BENCHMARK])
    steps = {step.stage: step for step in made.steps}
    assert [item.url for item in steps[Stage.FETCH].inputs] == ["https://example.com/m.mlir"]
    assert steps[Stage.COMPILE].id == "m/e2e@rocm-gfx942:compile"
    assert not steps[Stage.BENCHMARK].blocked
