"""Planning: the steps, their needs and inputs, all without a change of the context."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.cases import Expectation, Origin
from iree_gauntlet.dialects.selection import Include
from iree_gauntlet.engine.commands import make_counted_flags
from iree_gauntlet.engine.workbench import Workbench, make_plan_context, open_workbench
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.figures import Figure
from iree_gauntlet.requests import ToolchainRequest
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import CacheLookup
from iree_gauntlet.targets import Target
from iree_gauntlet.toolchains.flags import Translation, UnknownFlag
from tests.support.spec_trees import BENCHMARK, CPU, HIP_SPEC, SPEC, find_argv, find_step, load, plan, write_tree

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.steps import Step

MI300 = Target("rocm", "gfx942", "mi300")
ALL = (Stage.COMPILE, Stage.THRESHOLD, Stage.COMPSTAT, Stage.BENCHMARK)
E2E = BENCHMARK | {"compilation_required": True, "mlir_file_name": "p.mlir", "modules": ["m_clip", "m_unet"]}
TREE = {
    "regression_tests/m/clip_rocm.json": HIP_SPEC | {"real_weights": "https://h/clip.irpa"},
    "regression_tests/m/unet_rocm.json": HIP_SPEC
    | {
        "mlir": "https://h/unet.mlir",
        "pipeline_mlir": "https://h/pipeline.mlir",
        "add_pipeline_module": True,
        "real_weights": "https://h/unet.irpa",
    },
    "regression_tests/m/vae_rocm.json": {
        "mlir": "https://h/vae.mlir",
        "compiler_flags": [],
        "compile_only": True,
        "real_weights": "https://h/vae.irpa",
    },
    "benchmarks/m/clip_rocm.json": BENCHMARK,
    "benchmarks/m/e2e_rocm.json": E2E,
    "external_test_files/p.mlir": "module {}",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "specs", TREE)


def ids(made: Plan) -> list[str]:
    return [step.id.replace("@rocm-gfx942", "") for step in made.steps]


def needs(made: Plan, name: str) -> set[str]:
    model, stage = name.split(":")
    return {need.replace("@rocm-gfx942", "") for need in find_step(made, f"{model}@rocm-gfx942:{stage}").needs}


def urls(step: Step) -> list[str]:
    return [item.url for item in step.inputs if item.url]


CHAINS = {
    Stage.FETCH: ["m/clip:fetch", "m/e2e:fetch", "m/unet:fetch", "m/vae:fetch"],
    Stage.COMPILE: [
        *("m/clip:fetch", "m/clip:compile", "m/e2e:fetch", "m/e2e:compile"),
        *("m/unet:fetch", "m/unet:compile", "m/unet:compile.pipeline", "m/vae:fetch", "m/vae:compile"),
    ],
    Stage.THRESHOLD: [
        *("m/clip:fetch", "m/clip:compile", "m/clip:threshold"),
        *("m/unet:fetch", "m/unet:compile", "m/unet:compile.pipeline", "m/unet:threshold"),
        *("m/vae:fetch", "m/vae:compile"),
    ],
    Stage.COMPSTAT: [
        *("m/clip:fetch", "m/clip:compile", "m/clip:compstat", "m/e2e:fetch", "m/e2e:compile", "m/e2e:compstat"),
        *("m/unet:fetch", "m/unet:compile"),
    ],
    Stage.BENCHMARK: [
        *("m/clip:fetch", "m/clip:compile", "m/clip:benchmark", "m/e2e:fetch", "m/e2e:compile", "m/e2e:benchmark"),
        *("m/unet:fetch", "m/unet:compile"),
    ],
}


@pytest.mark.parametrize("stage", CHAINS)
def test_stages_bring_the_stages_before_them_and_nothing_else(tree: Path, stage: Stage) -> None:
    assert ids(plan(load(tree, MI300), [stage])) == CHAINS[stage]


def test_the_whole_chain(tree: Path) -> None:
    assert ids(plan(load(tree, MI300), ALL)) == [
        *("m/clip:fetch", "m/clip:compile", "m/clip:threshold", "m/clip:compstat", "m/clip:benchmark"),
        *("m/e2e:fetch", "m/e2e:compile", "m/e2e:compstat", "m/e2e:benchmark"),
        *("m/unet:fetch", "m/unet:compile", "m/unet:compile.pipeline", "m/unet:threshold"),
        *("m/vae:fetch", "m/vae:compile"),
    ]


@pytest.mark.parametrize("stages", [ALL, (Stage.BENCHMARK,), (Stage.COMPILE, Stage.BENCHMARK)])
def test_one_benchmark_brings_the_compiles_of_its_modules(tree: Path, stages: Sequence[Stage]) -> None:
    made = plan(load(tree, MI300, includes=[Include(filename="e2e_rocm")]), stages)
    expected = ["m/clip:fetch", "m/clip:compile", "m/e2e:fetch", "m/e2e:compile"]
    expected += ["m/e2e:compstat"] if Stage.COMPSTAT in stages else []
    # The pipeline of unet is no module of the benchmark: neither compiled nor fetched.
    assert ids(made) == [*expected, "m/e2e:benchmark", "m/unet:fetch", "m/unet:compile"]
    assert urls(find_step(made, "m/unet@rocm-gfx942:fetch")) == ["https://h/unet.mlir", "https://h/unet.irpa"]


@pytest.mark.parametrize("includes", [[Include()], [Include(filename="e2e_rocm")], [Include(markers="benchmark")]])
def test_a_benchmark_waits_for_all_that_it_loads(tree: Path, includes: Sequence[Include]) -> None:
    for stages in (ALL, (Stage.BENCHMARK,)):
        made = plan(load(tree, MI300, includes=includes), stages)
        compiles = {"m/clip:compile", "m/unet:compile", "m/e2e:compile"}
        fetches = {"m/clip:fetch", "m/unet:fetch", "m/e2e:fetch"}
        assert needs(made, "m/e2e:benchmark") == compiles | fetches
        assert needs(made, "m/e2e:compile") == {"m/e2e:fetch"}
        assert {need for step in made.steps for need in step.needs} <= {step.id for step in made.steps}


def test_needs_within_a_chain(tree: Path) -> None:
    made = plan(load(tree, MI300), ALL)
    assert needs(made, "m/unet:compile.pipeline") == {"m/unet:fetch"}
    assert needs(made, "m/unet:threshold") == {"m/unet:compile", "m/unet:compile.pipeline", "m/unet:fetch"}
    assert needs(made, "m/clip:compstat") == {"m/clip:compile"}


def test_every_input_is_fetched_or_made_by_what_a_step_needs(tree: Path) -> None:
    made = plan(load(tree, MI300), ALL)
    for step in made.steps:
        before = [find_step(made, need) for need in step.needs]
        there = {item.path for other in before if other.stage is Stage.FETCH for item in other.inputs}
        there |= {path for other in before for _, path in other.outputs}
        if step.stage is not Stage.FETCH:
            assert {item.path for item in step.inputs} <= there, step.id


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ((Stage.COMPILE,), ["model.mlir"]),
        ((Stage.THRESHOLD,), ["model.mlir", "clip.irpa", "in0.bin", "out0.npy"]),
        ((Stage.COMPSTAT,), ["model.mlir"]),
        ((Stage.BENCHMARK,), ["model.mlir", "clip.irpa"]),
        ((Stage.FETCH,), ["model.mlir", "clip.irpa", "in0.bin", "out0.npy"]),
        (ALL, ["model.mlir", "clip.irpa", "in0.bin", "out0.npy"]),
    ],
)
def test_only_what_is_read_is_fetched(tree: Path, stages: Sequence[Stage], expected: list[str]) -> None:
    made = plan(load(tree, MI300, includes=[Include(submodel="clip")]), stages)
    found = [url.removeprefix("https://h/") for url in urls(find_step(made, "m/clip@rocm-gfx942:fetch"))]
    assert sorted(found) == sorted(expected)


def test_a_compile_only_case_is_compiled_and_never_run(tree: Path) -> None:
    made = plan(load(tree, MI300, includes=[Include(submodel="vae")]), ALL)
    assert ids(made) == ["m/vae:fetch", "m/vae:compile"]
    assert urls(made.steps[0]) == ["https://h/vae.mlir"]


def test_goldens_are_those_of_the_sku(tree: Path) -> None:
    for sku, times, counts in (
        ("mi300", [(7.5, 1.1)], [(Figure.DISPATCHES, 792.0), (Figure.SIZE, 460000.0)]),
        ("mi250", [(9.0, 1.0)], []),  # no multiplier: 1.0
        ("mi355", [], []),
        ("", [], []),
    ):
        made = plan(load(tree, Target("rocm", "gfx942", sku)), ALL)
        step = find_step(made, "m/clip@rocm-gfx942:benchmark")
        assert [(golden.value, golden.factor) for golden in step.goldens] == times
        assert step.golden_keys == ("mi300", "mi250")
        assert step.sku == sku
        figures = find_step(made, "m/clip@rocm-gfx942:compstat").goldens
        assert [(golden.metric, golden.value) for golden in figures] == counts
        assert all(golden.limit == golden.value for golden in figures)


def test_counts_for_a_family_belong_to_every_sku_of_it(tmp_path: Path) -> None:
    golden = {"golden_dispatch": {"cpu": 5}, "golden_size": {"cpu": 6}, "golden_time_ms": {"cpu": 7}}
    tree = write_tree(
        tmp_path,
        {
            "regression_tests/m/s_cpu.json": HIP_SPEC,
            "benchmarks/m/s_cpu.json": BENCHMARK | golden | {"golden_compiler": "3.13.0"},
        },
    )
    made = plan(load(tree, Target("cpu", "", "laptop")), ALL)
    figures = find_step(made, "m/s@cpu:compstat").goldens
    assert [(golden.value, golden.release) for golden in figures] == [(5.0, "3.13.0"), (6.0, "3.13.0")]
    assert find_step(made, "m/s@cpu:benchmark").goldens == ()
    (time,) = find_step(plan(load(tree, Target("cpu", "", "cpu")), ALL), "m/s@cpu:benchmark").goldens
    assert time.value == 7.0


@pytest.mark.parametrize("field", ["specific_chip_to_ignore", "specific_rocm_chip_to_ignore"])
def test_chips_to_ignore_are_skipped_with_a_reason(tree: Path, field: str) -> None:
    write_tree(tree, {"benchmarks/m/clip_rocm.json": BENCHMARK | {field: ["gfx90a"]}})
    made = plan(load(tree, Target("rocm", "gfx90a", "mi250")), ALL)
    for stage in ("compstat", "benchmark"):
        assert "specific_chip_to_ignore lists gfx90a" in find_step(made, f"m/clip@rocm-gfx90a:{stage}").skip
    assert not find_step(made, "m/clip@rocm-gfx90a:compile").skip
    assert not [step for step in plan(load(tree, MI300), ALL).steps if step.skip]


def test_a_module_that_no_spec_defines_blocks_the_benchmark_alone(tree: Path) -> None:
    (tree / "regression_tests/m/unet_rocm.json").unlink()
    made = plan(load(tree, MI300), ALL)
    assert {step.id for step in made.steps if step.blocked} == {
        "m/e2e@rocm-gfx942:compstat",
        "m/e2e@rocm-gfx942:benchmark",
    }
    assert "no regression spec defines module 'm_unet'" in find_step(made, "m/e2e@rocm-gfx942:benchmark").blocked


def test_a_benchmark_without_its_regression_is_blocked(tree: Path) -> None:
    (tree / "regression_tests/m/clip_rocm.json").unlink()
    made = plan(load(tree, MI300, includes=[Include(submodel="clip")]), ALL)
    assert ids(made) == ["m/clip:compstat", "m/clip:benchmark"]
    assert "no regression spec defines m/clip for rocm-gfx942" in made.steps[1].blocked


def test_a_program_that_is_missing_blocks_the_benchmark(tree: Path) -> None:
    (tree / "external_test_files/p.mlir").unlink()
    made = plan(load(tree, MI300), ALL)
    assert "p.mlir is missing (mlir_file_name)" in find_step(made, "m/e2e@rocm-gfx942:benchmark").blocked


def test_a_tuner_file_that_is_missing_blocks_the_compile(tree: Path) -> None:
    write_tree(tree, {"regression_tests/m/clip_rocm.json": HIP_SPEC | {"tuner_file": {"mi300": "t.mlir"}}})
    made = plan(load(tree, MI300), ALL)
    for stage in ("compile", "threshold"):
        assert "t.mlir is missing (tuner_file.mi300)" in find_step(made, f"m/clip@rocm-gfx942:{stage}").blocked
    write_tree(tree, {"external_test_files/t.mlir": "module {}"})
    assert not [step for step in plan(load(tree, MI300), ALL).steps if step.blocked]


def test_expectations_belong_to_a_stage(tree: Path) -> None:
    spec = HIP_SPEC | {"compile_chip_expecting_to_fail": ["gfx90a"], "run_test_expecting_to_fail": True}
    write_tree(tree, {"regression_tests/m/clip_rocm.json": spec})

    def expected(chip: str, *failures: Expectation) -> dict[str, str]:
        made = plan(load(tree, Target("rocm", chip, "mi300"), expected_failures=failures), ALL)
        return {step.id.rpartition(":")[2]: step.expect_failure for step in made.steps if step.submodel == "clip"}

    found = expected("gfx942")
    assert not found["compile"]
    assert "run_test_expecting_to_fail is true" in found["threshold"]
    assert not found["benchmark"]
    assert "compile_chip_expecting_to_fail lists gfx90a" in expected("gfx90a")["compile"]
    suite = Expectation(Stage.BENCHMARK, "slow here", Origin("x.toml", "expect_failure[0]"), cases="m/cl*")
    found = expected("gfx942", suite)
    assert found["benchmark"] == "slow here (x.toml)"
    assert "run_test_expecting_to_fail" in found["threshold"]
    assert not found["compile"]


def test_expectations_of_the_first_generation(tmp_path: Path) -> None:
    spec = SPEC | {"cpu_run_test_expecting_to_fail": True, "rocm_compile_chip_expecting_to_fail": ["gfx942"]}
    made = plan(load(write_tree(tmp_path, {"m/s.json": spec}), CPU, MI300), ALL)
    found = {step.id: bool(step.expect_failure) for step in made.steps if step.stage is not Stage.FETCH}
    assert found == {
        "m/s@cpu:compile": False,
        "m/s@cpu:threshold": True,
        "m/s@rocm-gfx942:compile": True,
        "m/s@rocm-gfx942:threshold": False,
    }


def test_an_expected_failure_of_the_main_module_is_not_the_pipelines(tree: Path) -> None:
    spec = TREE["regression_tests/m/unet_rocm.json"]
    assert isinstance(spec, dict)
    write_tree(tree, {"regression_tests/m/unet_rocm.json": spec | {"compile_chip_expecting_to_fail": ["gfx942"]}})
    made = plan(load(tree, MI300), ALL)
    assert find_step(made, "m/unet@rocm-gfx942:compile").expect_failure
    assert not find_step(made, "m/unet@rocm-gfx942:compile.pipeline").expect_failure


def test_timeouts_of_options_beat_those_of_specs(tree: Path) -> None:
    write_tree(tree, {"regression_tests/m/clip_rocm.json": HIP_SPEC | {"timeouts": {"compile": 5, "threshold": 6}}})
    made = plan(load(tree, MI300), ALL, timeouts={Stage.COMPILE: 7.0})
    found = {step.stage: step.timeout for step in made.steps if step.submodel == "clip"}
    assert (found[Stage.COMPILE], found[Stage.THRESHOLD], found[Stage.BENCHMARK]) == (7.0, 6.0, 900.0)


def test_resources(tree: Path) -> None:
    for step in plan(load(tree, MI300), ALL).steps:
        assert step.resources.exclusive == (step.stage is Stage.BENCHMARK)
        assert (step.resources.device == "hip") == (step.stage in (Stage.BENCHMARK, Stage.THRESHOLD))
        assert (step.resources.cores == 0) == (step.stage in (Stage.FETCH, Stage.COMPSTAT))


def test_a_tolerance_that_the_tool_itself_makes_void_is_noted(tree: Path) -> None:
    flags = ["--expected_f32_threshold=2e-06"]
    write_tree(tree, {"regression_tests/b/y.json": SPEC | {"cpu_threshold_args": flags}})
    made = plan(load(tree, CPU, includes=[Include(model="b")]), ALL)
    (step,) = [step for step in made.steps if step.stage is Stage.THRESHOLD]
    assert any("iree-run-module adds 1e-05·|expected|" in note for note in step.notes)


def test_unknown_flags_are_problems_and_translated_ones_are_notes(tree: Path) -> None:
    def translate(flags: Sequence[str], tool: str) -> Translation:
        unknown = tuple(UnknownFlag(flag, f"{tool} does not know {flag}", "Hint.") for flag in flags if flag == "--x")
        return Translation(("--new", *flags[1:]), ("--old was written as --new",), unknown)

    made = plan(load(tree, MI300, includes=[Include(submodel="clip")]), (Stage.COMPILE,), translate=translate)
    (problem,) = made.problems
    assert problem.message == "iree-compile does not know --x"
    assert problem.file.endswith("clip_rocm.json")
    assert find_argv(made, "m/clip@rocm-gfx942:compile")[2] == "--new"
    assert find_step(made, "m/clip@rocm-gfx942:compile").notes == ("--old was written as --new",)


def test_a_tolerance_that_a_release_does_not_know_blocks_its_case_alone(tree: Path) -> None:
    def translate(flags: Sequence[str], tool: str) -> Translation:
        unknown = tuple(UnknownFlag(flag, f"{tool} does not know {flag}", "Hint.") for flag in flags if "rtol" in flag)
        return Translation(tuple(flags), (), unknown)

    flags = ["--expected_f16_threshold=0.002", "--expected_rtol=0.002"]
    write_tree(tree, {"regression_tests/b/y.json": SPEC | {"cpu_threshold_args": flags}})
    made = plan(load(tree, CPU), ALL, translate=translate)
    assert made.problems == ()
    blocked = [step for step in made.steps if "does not know --expected_rtol=0.002" in step.blocked]
    assert [(step.model, step.stage) for step in blocked] == [("b", Stage.THRESHOLD)]
    (problem,) = made.operator_case_problems
    assert problem.file.endswith("y.json")


def test_the_reason_of_a_lookup(tree: Path) -> None:
    cases = load(tree, MI300, includes=[Include(submodel="clip")])
    step_id = "m/clip@rocm-gfx942:compile"
    hit = CacheLookup("key", hit=True, reason="in the cache")

    def lookup(**changes: Any) -> CacheLookup:
        return find_step(plan(cases, ALL, **({"lookup": lambda *_: hit} | changes)), step_id).cache

    found = lookup()
    assert (found.key, found.hit) == ("key", True)
    assert dict(found.ingredients)["program"] == "ab" * 32
    assert lookup(force_recompile=True).reason == "--force-recompile"
    assert "not known before it is fetched" in lookup(artifact_hash=lambda _url: "").reason


def test_the_key_depends_on_what_the_compile_depends_on_alone(tree: Path) -> None:
    def ingredients(**changes: Any) -> dict[str, str]:
        cases = load(tree, changes.pop("target", MI300), includes=[Include(submodel="clip")])
        made = plan(cases, ALL, **changes)
        return dict(next(step for step in made.steps if step.stage is Stage.COMPILE).cache.ingredients)

    before = ingredients()
    assert ingredients(compiler_identity="other") != before
    assert ingredients(artifact_hash=lambda _url: "cd" * 32) != before
    assert ingredients(target=Target("rocm", "gfx90a", "mi300")) != before
    assert ingredients(target=Target("rocm", "gfx942", "mi308")) == before
    assert ingredients(timeouts={Stage.COMPILE: 1.0}) == before


def test_the_same_input_gives_the_same_plan(tree: Path) -> None:
    first, second = (plan(load(tree, MI300, CPU), ALL) for _ in range(2))
    assert first == second
    assert [asdict(step) for step in first.steps] == [asdict(step) for step in second.steps]


def test_folders_of_steps_are_their_own(tree: Path) -> None:
    made = plan(load(tree, MI300), ALL)
    folders = [step.folder for step in made.steps]
    assert len(set(folders)) == len(folders)
    assert all(folder.startswith("/run/steps/m/") and "@" not in folder for folder in folders)


# With the real caches and toolchain.


def machine_of(cache: Path) -> Workbench:
    from iree_gauntlet.progress import Progress  # noqa: PLC0415

    return open_workbench(ToolchainRequest(str(cache)), Progress(), need_toolchain=True, read_only=True)


@pytest.mark.iree
def test_planning_starts_nothing_and_writes_nothing(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tree(tree, {"regression_tests/m/clip_rocm.json": HIP_SPEC | {"compiler_flags": ["--iree-opt-level=O3"]}})
    cache = tmp_path / "cache"
    machine = machine_of(cache)
    before = sorted(path for path in tmp_path.rglob("*"))
    cases = load(tree, MI300, includes=[Include(submodel="clip")])

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("planning started a process")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(os, "posix_spawn", refuse)
    monkeypatch.setattr(os, "fork", refuse)
    from iree_gauntlet.engine.plan import make_plan  # noqa: PLC0415

    made = [make_plan(cases, ALL, make_plan_context(machine, tmp_path / "run")) for _ in range(2)]
    assert made[0] == made[1]
    assert made[0].steps
    assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.iree
def test_planning_needs_no_cache_folder(tree: Path, tmp_path: Path) -> None:
    # A file where the folder should be: nothing can be written there, also not by root.
    (tmp_path / "file").touch()
    machine = machine_of(tmp_path / "file" / "cache")
    from iree_gauntlet.engine.plan import make_plan  # noqa: PLC0415

    made = make_plan(load(tree, MI300), (Stage.FETCH,), make_plan_context(machine, tmp_path / "run"))
    assert len(made.steps) == 4


def test_a_source_of_an_unknown_scheme_is_an_error_that_names_it(tree: Path) -> None:
    def artifact(url: str) -> Path:
        raise ArtifactError(url, f"unknown scheme in {url}")

    with pytest.raises(ArtifactError, match="unknown scheme"):
        plan(load(tree, MI300), ALL, artifact_path=artifact)


def test_a_linker_in_a_folder_with_a_blank_is_one_word_of_the_compilers_shell() -> None:
    flags = make_counted_flags(("--iree-opt-level=O3",), "", "/an iree/iree-lld")
    assert flags[0] == "--iree-opt-level=O3"
    name, _, value = flags[-1].partition("=")
    assert (name, shlex.split(value)) == ("--iree-llvmcpu-system-linker-path", ["/an iree/iree-lld", "-flavor", "gnu"])


def test_what_keeps_a_benchmark_from_running_keeps_its_count(tree: Path) -> None:
    cases = load(tree, Target("rocm", "gfx942", "mi300"))
    kept = (
        replace(case, skips=((Stage.BENCHMARK, "slow"),), blocked_reason="no data", blocked_stage=Stage.BENCHMARK)
        for case in cases.cases
    )
    cases = replace(cases, cases=tuple(kept))
    counts = [step for step in plan(cases, (Stage.COUNT,)).steps if step.stage is Stage.COUNT]
    assert {(step.skip, step.blocked) for step in counts} == {("slow", "no data")}
