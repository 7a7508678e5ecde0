"""Properties of torch models' tests other than their commands: targets, selection, markers and modules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.cases import Expectation, Origin
from iree_gauntlet.dialects.load import read_specs, read_torch_specs
from iree_gauntlet.dialects.locations import find_target
from iree_gauntlet.dialects.selection import Include, explain_no_match
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.stages import Stage
from iree_gauntlet.targets import FAMILIES, Target, parse_target
from tests.support.spec_trees import BENCHMARK as SHARKTANK_BENCHMARK
from tests.support.spec_trees import CPU, HIP_SPEC, find_argv, find_step, plan, write_tree
from tests.support.torch_trees import (
    ALL_STAGES,
    BENCHMARK,
    COMPSTAT,
    MODULE,
    QUALITY,
    TREE,
    load_torch,
    make_quality_file,
)

if TYPE_CHECKING:
    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.errors import Problem


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path, TREE)


def only(cases: CaseSet) -> Problem:
    assert len(cases.problems) == 1, cases.problems
    return cases.problems[0]


# Targets


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--iree-hal-target-device=hip --iree-rocm-target=gfx942", "rocm-gfx942"),
        ("--iree-hal-target-device=hip --iree-hip-target=gfx90a", "rocm-gfx90a"),
        ("--iree-hal-target-device=amdgpu --iree-rocm-target=gfx1201", "rocm-gfx1201"),
        ("--iree-hal-target-device=hip://0 --iree-rocm-target=gfx942:sramecc+:xnack-", "rocm-gfx942"),
        ("--iree-hal-target-device=hip[0],hip[1] --iree-rocm-target=gfx942", "rocm-gfx942"),
        ("--iree-hal-target-device=main=hip[0] --iree-rocm-target=gfx942", "rocm-gfx942"),
        ("--iree-hal-target-device=hip --iree-rocm-target=mi300x", "rocm"),
        ("--iree-hal-target-device=hip --iree-cuda-target=sm_80", "rocm"),
        ("-iree-hal-target-device=hip -iree-hip-target=gfx942", "rocm-gfx942"),
        ("--iree-hal-target-backends=rocm --iree-hip-target=gfx942", "rocm-gfx942"),
        ("--iree-hal-target-device=hip", "rocm"),
        ("--iree-hal-target-device=cuda --iree-cuda-target=sm_80", "cuda-sm_80"),
        ("--iree-hal-target-backends=cuda --iree-cuda-target=sm_90a", "cuda-sm_90a"),
        ("--iree-hal-target-backends=cuda", "cuda"),
        ("--iree-hal-target-device=vulkan --iree-vulkan-target=rdna3", "vulkan-rdna3"),
        ("--iree-hal-target-backends=vulkan-spirv", "vulkan"),
        ("--iree-hal-target-device=metal", "metal"),
        ("--iree-hal-target-backends=metal-spirv", "metal"),
        ("--iree-hal-target-backends=vmvx", "vmvx"),
        ("--iree-hal-target-device=local --iree-hal-local-target-device-backends=vmvx", "vmvx"),
        ("--iree-hal-local-target-device-backends=vmvx", "vmvx"),
        ("--iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu", "cpu"),
        ("--iree-hal-target-device=local", "cpu"),
        ("--iree-hal-target-backends=llvm-cpu --iree-rocm-target=gfx942", "cpu"),
        ("--iree-hal-target-device=webgpu", "webgpu"),
        ("--iree-hal-target-backends=amd-aie --iree-amdaie-target-device=npu1", "amd-aie"),
        ("--iree-opt-level=O3", "cpu"),
        ("", "cpu"),
    ],
)
def test_targets_of_flags(flags: str, name: str) -> None:
    target = find_target(flags.split())
    assert target.name == name
    assert target.sku == ""


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("cpu", Target("cpu")),
        ("local-task", Target("cpu")),
        ("ROCm", Target("rocm")),
        ("gfx942", Target("rocm", "gfx942")),
        ("rocm-gfx942", Target("rocm", "gfx942")),
        ("rocm-mi300", None),
        ("rocm-", None),
        ("sm_80", Target("cuda", "sm_80")),
        ("cuda-sm_80", Target("cuda", "sm_80")),
        ("cuda-", None),
        ("vulkan-rdna3", Target("vulkan", "rdna3")),
        ("metal", Target("metal")),
        ("vmvx", Target("vmvx")),
        ("vmvx-1", None),
        ("cpu-gfx942", None),
        ("gfx-942", None),
        ("tpu", None),
        ("", None),
        ("-", None),
    ],
)
def test_names_of_targets(name: str, found: Target | None) -> None:
    assert parse_target(name) == found


def test_every_target_is_found_by_its_name() -> None:
    for family in FAMILIES:
        assert parse_target(family) == Target(family)
    for target in (Target("rocm", "gfx942"), Target("cuda", "sm_80"), Target("vulkan", "rdna3"), Target("metal", "m1")):
        assert parse_target(target.name) == target


def flags_for(device: str, *more: str) -> dict[str, Any]:
    return MODULE | {"compiler_flags": [f"--iree-hal-target-device={device}", *more]}


MANY = {
    "torch_models/m/modules/a.json": MODULE,
    "torch_models/m/modules/mi300.json": flags_for("hip", "--iree-rocm-target=gfx942"),
    "torch_models/m/modules/mi200.json": flags_for("hip", "--iree-rocm-target=gfx90a"),
    "torch_models/m/modules/any.json": flags_for("hip"),
    "torch_models/m/modules/sm.json": flags_for("cuda", "--iree-cuda-target=sm_80"),
    "torch_models/m/modules/vulkan.json": flags_for("vulkan"),
    **make_quality_file("m/q_a"),
    **make_quality_file("m/q_mi300", modules=["m/modules/mi300"], markers=["hip"]),
    **make_quality_file("m/q_mi200", modules=["m/modules/mi200"], markers=["hip"]),
    **make_quality_file("m/q_any", modules=["m/modules/any"], markers=["hip"]),
    **make_quality_file("m/q_sm", modules=["m/modules/sm"]),
    **make_quality_file("m/q_vulkan", modules=["m/modules/vulkan"]),
}


@pytest.mark.parametrize(
    ("targets", "names", "elsewhere"),
    [
        ("cpu", "a", "cuda-sm_80 rocm rocm-gfx90a rocm-gfx942 vulkan"),
        ("rocm", "any mi200 mi300", "cpu cuda-sm_80 vulkan"),
        ("gfx942", "any mi300", "cpu cuda-sm_80 rocm-gfx90a vulkan"),
        ("gfx1100", "any", "cpu cuda-sm_80 rocm-gfx90a rocm-gfx942 vulkan"),
        ("sm_80", "sm", "cpu rocm rocm-gfx90a rocm-gfx942 vulkan"),
        ("sm_90", "", "cpu cuda-sm_80 rocm rocm-gfx90a rocm-gfx942 vulkan"),
        ("cpu vulkan", "a vulkan", "cuda-sm_80 rocm rocm-gfx90a rocm-gfx942"),
        ("metal", "", "cpu cuda-sm_80 rocm rocm-gfx90a rocm-gfx942 vulkan"),
    ],
)
def test_selection_by_target(tmp_path: Path, targets: str, names: str, elsewhere: str) -> None:
    asked = [target for name in targets.split() if (target := parse_target(name))]
    cases = load_torch(write_tree(tmp_path, MANY), *asked)
    assert not cases.problems
    assert [case.submodel for case in cases.cases] == [f"q_{name}" for name in names.split()]
    assert list(cases.other_targets) == elsewhere.split()
    # Only the modules of what was selected are made.
    assert {case.submodel for case in cases.needed_cases} == set(names.split())


def test_a_chip_that_is_asked_for_changes_no_test(tmp_path: Path) -> None:
    # The flags say no chip: it is a test for all of them, and its commands stay as they are.
    write_tree(tmp_path, MANY)
    (case,) = load_torch(tmp_path, Target("rocm", "gfx1100"), includes=[Include(submodel="q_any")]).cases
    assert case.target == Target("rocm")


def test_nothing_selected_names_the_targets_that_there_is_something_for(tmp_path: Path) -> None:
    write_tree(tmp_path, MANY)
    include = Include(submodel="q_mi*")
    cases = load_torch(tmp_path, CPU, includes=[include])
    error = explain_no_match([include], read_specs([tmp_path]), {"cpu"}, cases.known_markers, cases.other_targets)
    assert "is for rocm-gfx90a, rocm-gfx942: select one with --target" in error.hint


# Selection by names and markers


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        ({"model": "m"}, ["m/bench", "m/quality", "m/stat"]),
        ({"model": "m/deep"}, ["m/deep/q"]),
        ({"model": "m*"}, ["m/bench", "m/quality", "m/stat", "m/deep/q"]),
        ({"model": "torch_models"}, ["torch_models/top_cpu"]),
        ({"submodel": "top_cpu"}, ["torch_models/top_cpu"]),
        ({"submodel": "top"}, []),
        ({"filename": "q*"}, ["m/quality", "m/deep/q"]),
        ({"markers": "quality and not text"}, []),
        ({"markers": "cpu and (benchmark or compstat)"}, ["m/bench", "m/stat"]),
        ({"model": "m/modules"}, []),
    ],
)
def test_selection_by_name(tree: Path, globs: dict[str, Any], expected: list[str]) -> None:
    write_tree(tree, make_quality_file("m/deep/q") | make_quality_file("top_cpu"))
    cases = load_torch(tree, CPU, includes=[Include(**globs)])
    assert [f"{case.model}/{case.submodel}" for case in cases.cases] == expected


def test_types_and_markers_are_markers(tree: Path) -> None:
    cases = load_torch(tree, includes=[Include(markers="text or compstats or modules")])
    assert set(cases.known_markers) == {"quality", "benchmark", "compstat", "cpu", "text"}
    assert cases.unknown_markers == ("compstats", "modules")
    # Words of a test whose target nobody asked for are no words of this selection.
    assert load_torch(tree, Target("rocm"), includes=[Include(markers="text")]).unknown_markers == ("text",)


@pytest.mark.parametrize(("name", "stage"), [("bench", "benchmark"), ("stat", "compstat"), ("quality", "threshold")])
def test_the_marker_skip(tree: Path, name: str, stage: str) -> None:
    document = TREE[f"torch_models/m/{name}.json"]
    write_tree(tree, {f"torch_models/m/{name}.json": document | {"markers": ["skip"]}})
    made = plan(load_torch(tree), ALL_STAGES)
    skipped = {step.id: step.skip for step in made.steps if step.skip}
    assert set(skipped) == {f"m/{name}@cpu:{stage}"}
    assert "marked 'skip'" in skipped[f"m/{name}@cpu:{stage}"]
    assert all(not step.needs for step in made.steps if step.skip)


def test_nothing_is_done_for_tests_that_are_skipped(tree: Path) -> None:
    for name in ("quality", "bench", "stat"):
        document = TREE[f"torch_models/m/{name}.json"]
        write_tree(tree, {f"torch_models/m/{name}.json": document | {"markers": ["skip"]}})
    made = plan(load_torch(tree), ALL_STAGES)
    assert {step.id: bool(step.skip) for step in made.steps} == {
        "m/quality@cpu:threshold": True,
        "m/bench@cpu:benchmark": True,
        "m/stat@cpu:compstat": True,
    }


@pytest.mark.parametrize(("name", "stage"), [("bench", "benchmark"), ("stat", "compstat"), ("quality", "threshold")])
def test_the_marker_xfail(tree: Path, name: str, stage: str) -> None:
    document = TREE[f"torch_models/m/{name}.json"]
    write_tree(tree, {f"torch_models/m/{name}.json": document | {"markers": ["xfail"]}})
    made = plan(load_torch(tree), ALL_STAGES)
    expected = {step.id: step.expect_failure for step in made.steps if step.expect_failure}
    assert set(expected) == {f"m/{name}@cpu:{stage}"}
    assert "marked 'xfail'" in expected[f"m/{name}@cpu:{stage}"]
    assert f"{name}.json" in expected[f"m/{name}@cpu:{stage}"]


def test_a_suite_expects_failures_of_tests_and_of_modules(tree: Path) -> None:
    failures = [
        Expectation(Stage.THRESHOLD, "wrong numbers", Origin("x.toml", "expect_failure[0]"), cases="m/qu*"),
        Expectation(Stage.COMPILE, "no lowering", Origin("x.toml", "expect_failure[1]"), cases="m/modules/a"),
        Expectation(Stage.COMPILE, "gone", Origin("x.toml", "expect_failure[2]"), cases="m/nothing"),
    ]
    cases = load_torch(tree, expected_failures=failures)
    assert "'m/nothing' matches no spec" in only(cases).message
    expected = {step.id: step.expect_failure for step in plan(cases, ALL_STAGES).steps if step.expect_failure}
    assert expected == {
        "m/quality@cpu:threshold": "wrong numbers (x.toml)",
        "m/modules/a@cpu:compile": "no lowering (x.toml)",
    }


# Goldens and devices


@pytest.mark.parametrize(
    ("changes", "sku", "golden"),
    [
        ({}, "", (12.5, 1.1, "")),
        # Without a SKU of its own, a golden time counts on every machine.
        ({}, "laptop", (12.5, 1.1, "laptop")),
        ({"tolerance_factor": 1.5}, "", (12.5, 1.5, "")),
        ({"sku": "epyc"}, "epyc", (12.5, 1.1, "epyc")),
        ({"sku": "epyc"}, "laptop", (12.5, 1.1, "epyc")),
        ({"sku": "epyc"}, "", (12.5, 1.1, "epyc")),
        ({"golden_time_ms": None}, "", None),
    ],
)
def test_golden_times(tree: Path, changes: dict[str, Any], sku: str, golden: tuple[float, float, str] | None) -> None:
    write_tree(tree, {"torch_models/m/bench.json": BENCHMARK | changes})
    step = find_step(plan(load_torch(tree, Target("cpu", "", sku)), ALL_STAGES), "m/bench@cpu:benchmark")
    assert step.sku == sku
    assert [(item.value, item.factor, item.sku) for item in step.goldens] == ([golden] if golden else [])
    assert step.golden_keys == ((changes["sku"],) if "sku" in changes else ())
    assert all((item.metric, item.statistic) == (Figure.TIME, Statistic.MIN) for item in step.goldens)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({}, [(Figure.DISPATCHES, 7.0), (Figure.SIZE, 9000.0)]),
        ({"golden_dispatch_count": 0}, [(Figure.DISPATCHES, 0.0), (Figure.SIZE, 9000.0)]),
        ({"golden_dispatch_count": None}, [(Figure.SIZE, 9000.0)]),
        ({"golden_binary_size": 1.5e6}, [(Figure.DISPATCHES, 7.0), (Figure.SIZE, 1.5e6)]),
    ],
)
def test_golden_figures(tree: Path, changes: dict[str, Any], values: list[tuple[Figure, float]]) -> None:
    write_tree(tree, {"torch_models/m/stat.json": COMPSTAT | changes | {"golden_compiler": "3.13.0"}})
    goldens = find_step(plan(load_torch(tree), ALL_STAGES), "m/stat@cpu:compstat").goldens
    assert [(golden.metric, golden.limit) for golden in goldens] == values
    assert {golden.release for golden in goldens} == {"3.13.0"}


def test_one_device_replaces_all_of_a_test(tree: Path) -> None:
    flags = ["--a", "--device=local-task", "--device_allocator=caching", "--device=hip", "--b"]
    write_tree(tree, {"torch_models/m/quality.json": QUALITY | {"run_args": flags}})
    made = plan(load_torch(tree, device="local-sync"), ALL_STAGES)
    quality = find_step(made, "m/quality@cpu:threshold")
    assert find_argv(made, quality.id)[-4:] == ["--a", "--device=local-sync", "--device_allocator=caching", "--b"]
    assert quality.resources.device == "local-sync"
    assert find_step(made, "m/stat@cpu:compstat").resources.device == ""


def test_timeouts_are_of_the_file_whose_steps_they_are(tree: Path) -> None:
    changes = {
        "torch_models/m/modules/a.json": MODULE | {"timeouts": {"compile": 5, "fetch": 6}},
        "torch_models/m/quality.json": QUALITY | {"timeouts": {"threshold": 7, "fetch": 8}},
        "torch_models/m/bench.json": BENCHMARK | {"timeouts": {"benchmark": 9, "parameters": 10}},
        "torch_models/m/stat.json": COMPSTAT | {"timeouts": {"compstat": 11}},
    }
    cases = load_torch(write_tree(tree, changes))
    assert not cases.problems
    assert {step.id.replace("@cpu", ""): step.timeout for step in plan(cases, ALL_STAGES).steps} == {
        "m/modules/a:fetch": 6,
        "m/modules/a:compile": 5,
        "m/modules/a:parameters.random-42.model": 10,
        "m/quality:fetch": 8,
        "m/quality:threshold": 7,
        "m/bench:benchmark": 9,
        "m/stat:compstat": 11,
    }


# Reading: which files are tests, and which mistakes are reported


def test_lint_reads_everything_also_definitions_that_nothing_loads(tree: Path) -> None:
    files: dict[str, Any] = {
        "m/modules/unused.json": MODULE | {"compiler_flags": "--x"},
        "m/modules/lost.json": MODULE | {"type": "git-lfs", "mlir": "../lost.mlir"},
        "other/rocm.json": QUALITY | {"markers": "hip"},
        "other/no_test.json": {"name": "a file of another tool"},
        ".hidden/x.json": "{",
        "other/.x.json": "{",
        "other/readme.txt": "{",
    }
    cases = load_torch(write_tree(tree, {f"torch_models/{name}": content for name, content in files.items()}), CPU)
    selected, left_out = (
        {problem.file.removeprefix(f"{tree}/torch_models/"): problem.field for problem in problems}
        for problems in (cases.problems, cases.unselected_problems)
    )
    assert selected == {"other/rocm.json": "markers"}
    assert left_out == {"m/modules/unused.json": "compiler_flags", "m/modules/lost.json": "mlir"}
    assert len(cases.cases) == 3


def test_mistakes_elsewhere_are_not_told_to_who_selects_something_else(tree: Path) -> None:
    write_tree(tree, {"torch_models/n/q.json": "{", "torch_models/n/modules/b.json": MODULE | {"mlir": "/x"}})
    assert len(load_torch(tree).problems) == len(load_torch(tree).unselected_problems) == 1
    cases = load_torch(tree, includes=[Include(model="m")])
    assert not cases.problems
    assert {Path(problem.file).name for problem in cases.unselected_problems} == {"q.json", "b.json"}


def test_mistakes_are_those_of_who_asks_for_their_target(tree: Path) -> None:
    """As far as markers say it: what cannot be used, or names no module, has no other target."""
    files = {
        "torch_models/m/broken.json": BENCHMARK | {"markers": ["hip", "gfx942"], "golden_time_ms": "x"},
        "torch_models/m/lost.json": QUALITY | {"markers": ["gfx90a"], "modules": ["m/modules/nowhere"]},
        "torch_models/m/unknown.json": QUALITY | {"markers": ["slow"], "modules": ["m/modules/nowhere"]},
    }
    write_tree(tree, files)
    for name, found in (
        ("cpu", {"unknown"}),
        ("gfx942", {"broken", "unknown"}),
        ("rocm", {"broken", "lost", "unknown"}),
    ):
        target = parse_target(name)
        assert target is not None
        cases = load_torch(tree, target)
        assert {Path(problem.file).stem for problem in cases.problems} == found
        assert {Path(problem.file).stem for problem in cases.unselected_problems} == {
            "broken",
            "lost",
            "unknown",
        } - found


def test_mistakes_are_those_of_who_selects_their_markers(tree: Path) -> None:
    """Also in a file that cannot be used, as far as it says them."""
    files = {
        "torch_models/m/broken.json": BENCHMARK | {"markers": ["slow"], "golden_time_ms": "x"},
        "torch_models/m/lost.json": QUALITY | {"markers": ["slow"], "modules": ["m/modules/nowhere"]},
        "torch_models/m/unknown.json": BENCHMARK | {"markers": "slow"},
    }
    write_tree(tree, files)
    for markers, found in (("slow", {"broken", "lost", "unknown"}), ("not slow", {"unknown"})):
        cases = load_torch(tree, includes=[Include(markers=markers)])
        assert {Path(problem.file).stem for problem in cases.problems} == found
        assert {Path(problem.file).stem for problem in cases.unselected_problems} == {
            "broken",
            "lost",
            "unknown",
        } - found


@pytest.mark.parametrize("content", ["{", "[]", {"compiler_flags": []}, MODULE | {"mlirr": "x"}, MODULE | {"mlir": 5}])
def test_a_broken_definition_is_told_as_such_to_tests_that_load_it(tree: Path, content: object) -> None:
    write_tree(tree, {"torch_models/m/modules/a.json": content})
    for includes in ([Include()], [Include(model="m")]):
        cases = load_torch(tree, includes=includes)
        assert {problem.file.rpartition("/")[2] for problem in cases.problems} == {"a.json"}
        assert not cases.cases


@pytest.mark.parametrize("field", ["modules", "weights"])
def test_a_module_that_is_missing(tree: Path, field: str) -> None:
    weights = [{"type": "splat", "module": "m/modules/aa", "value": 1, "scope": ""}]
    changes = {"modules": ["m/modules/aa"]} if field == "modules" else {"weights": weights}
    problem = only(load_torch(write_tree(tree, make_quality_file("m/quality", **changes))))
    assert problem.field == ("modules[0]" if field == "modules" else "weights[0].module")
    assert problem.line > 5
    assert "no module definition m/modules/aa.json in" in problem.message
    assert problem.hint == "Did you mean 'm/modules/a'?"


def test_a_module_that_is_missing_with_nothing_like_it(tree: Path) -> None:
    for name, changes in (("stat", {"module": "zzz"}), ("quality", {"modules": ["m/modules/a", "x" * 300]})):
        document = TREE[f"torch_models/m/{name}.json"]
        problem = only(load_torch(write_tree(tree, TREE | {f"torch_models/m/{name}.json": document | changes})))
        assert problem.field == ("module" if name == "stat" else "modules[1]")
        assert "--module-directory" in problem.hint


def test_a_test_is_no_module(tree: Path) -> None:
    loads = {"quality": "the test itself", "bench": "a test", "stat": "a test"}
    for name, what in loads.items():
        problem = only(load_torch(write_tree(tree, make_quality_file("m/quality", modules=[f"m/{name}"]))))
        assert (problem.field, problem.file) == ("modules[0]", f"{tree}/torch_models/m/quality.json")
        assert f"'m/{name}' is {what}, not a module definition" in problem.message
    # Two tests that name each other.
    write_tree(
        tree,
        make_quality_file("m/quality", modules=["m/second"]) | make_quality_file("m/second", modules=["m/quality"]),
    )
    assert [problem.field for problem in load_torch(tree).problems] == ["modules[0]", "modules[0]"]
    # One whose mistakes keep it from being read tells them, and nobody else's.
    write_tree(tree, make_quality_file("m/second", modules="m/quality"))
    assert only(load_torch(tree)).field == "modules"


@pytest.mark.parametrize(
    "name", ["../a", "m/../m/modules/a", "/a", "m//modules/a", "./a", "m\\modules\\a", "a\0", "", " ", ".", "..", "a/"]
)
def test_names_that_leave_the_module_folder(tree: Path, name: str) -> None:
    for document, field in ((QUALITY | {"modules": [name]}, "modules[0]"), (COMPSTAT | {"module": name}, "module")):
        problem = only(load_torch(write_tree(tree, {"torch_models/m/quality.json": document})))
        assert problem.field == field
        assert "below the module folder" in problem.message or "non-empty string" in problem.message


@pytest.mark.parametrize("name", ["../x.npy", "a/../../x", "/etc/x", "a\\x", "..", "x" * 300, "a/" * 600 + "x", "."])
@pytest.mark.parametrize("field", ["mlir", "lfs", "inputs[0].url", "expected_outputs[0].url", "weights[0].url"])
def test_files_that_leave_their_folder(tree: Path, name: str, field: str) -> None:
    key = field.partition("[")[0]
    if field in ("mlir", "lfs"):
        kind = {"type": "git-lfs"} if field == "lfs" else {}
        write_tree(tree, {"torch_models/m/modules/a.json": MODULE | kind | {"mlir": name}})
    else:
        more = {"type": "url", "scope": ""} if key == "weights" else {}
        write_tree(tree, make_quality_file("m/quality", **{key: [{"url": name} | more]}))
    problem = only(load_torch(tree))
    assert problem.field == ("mlir" if field == "lfs" else field)
    assert problem.line > 1
    assert ("module folder" if field == "lfs" else "external files folder") in problem.message or len(name) > 100


# Trees


def test_two_tests_of_one_name_in_two_trees(tmp_path: Path) -> None:
    trees = [write_tree(tmp_path / name, TREE) for name in ("a", "b")]
    problems = load_torch(trees).problems
    assert {problem.file for problem in problems} == {
        f"{trees[1]}/torch_models/m/{name}.json" for name in ("quality", "bench", "stat", "modules/a")
    }
    assert all(f"is already defined by {trees[0]}" in problem.message for problem in problems)
    assert not load_torch([trees[0], trees[0], trees[0] / "torch_models"]).problems


def test_a_module_of_two_trees_is_told_where_both_are_needed(tmp_path: Path) -> None:
    other = MODULE | {"mlir": "https://h/other.mlir"}
    trees = [
        write_tree(tmp_path / "a", {"torch_models/m/modules/a.json": MODULE} | make_quality_file("m/first")),
        write_tree(tmp_path / "b", {"torch_models/m/modules/a.json": other} | make_quality_file("m/second")),
    ]
    problem = only(load_torch(trees))
    assert problem.file == f"{trees[1]}/torch_models/m/modules/a.json"
    assert f"module m/modules/a on cpu is already defined by {trees[0]}" in problem.message
    # For whoever runs one of the tests, there is but one.
    for name, program in (("first", "model"), ("second", "other")):
        cases = load_torch(trees, includes=[Include(submodel=name)])
        assert not cases.problems
        assert find_argv(plan(cases, ALL_STAGES), "m/modules/a@cpu:compile")[1] == f"/cache/h/{program}.mlir"
    # Both load one folder's definitions where it is named.
    cases = load_torch(trees, modules=tmp_path / "b" / "torch_models")
    assert not cases.problems
    assert find_argv(plan(cases, ALL_STAGES), "m/modules/a@cpu:compile")[1] == "/cache/h/other.mlir"


def test_modules_of_one_name_for_two_targets(tmp_path: Path) -> None:
    rocm = flags_for("hip", "--iree-rocm-target=gfx942")
    trees = [
        write_tree(tmp_path / "a", {"torch_models/m/modules/a.json": MODULE} | make_quality_file("m/q")),
        write_tree(tmp_path / "b", {"torch_models/m/modules/a.json": rocm} | make_quality_file("m/q")),
    ]
    cases = load_torch(trees)
    assert not cases.problems
    assert [case.chain for case in cases.cases] == ["m/q@cpu", "m/q@rocm-gfx942"]


def test_tests_in_the_root_and_in_a_folder_of_its_name(tree: Path) -> None:
    write_tree(tree, make_quality_file("q") | make_quality_file("torch_models/q"))
    assert "torch_models/q on cpu is already defined" in only(load_torch(tree)).message


@pytest.mark.parametrize("first", ["a", "z"])
def test_a_module_has_one_name_whichever_folder_its_tests_begin_at(tmp_path: Path, first: str) -> None:
    # Where no module folder is named, it is the root or the folder above it; here, tests say both.
    names = {"a": "examples/m/modules/a", "z": "m/modules/a"}
    if first == "z":
        names = {"z": names["a"], "a": names["z"]}
    tests = {f"examples/m/{test}.json": QUALITY | {"modules": [name]} for test, name in names.items()}
    write_tree(tmp_path, {"examples/m/modules/a.json": MODULE} | tests)
    for includes in ([Include()], [Include(submodel="a")], [Include(submodel="z")], [Include(model="m")]):
        cases = load_torch(tmp_path / "examples", includes=includes)
        assert not cases.problems
        assert [case.id for case in cases.needed_cases] == ["m/modules/a@cpu:compile"]


def test_roots(tmp_path: Path) -> None:
    sharktank = {"regression_tests/m/s_cpu.json": HIP_SPEC, "benchmarks/m/s_cpu.json": SHARKTANK_BENCHMARK}
    cases = load_torch(write_tree(tmp_path / "both", TREE | sharktank))
    assert not cases.problems
    assert {case.dialect.partition("-")[0] for case in cases.cases} == {"torch", "sharktank"}
    # A folder of any name whose files have a type, or whose modules are elsewhere.
    for name in ("examples", "x"):
        files = {path.replace("torch_models", name): content for path, content in TREE.items()}
        cases = load_torch(write_tree(tmp_path / f"in_{name}", files) / name)
        assert [case.chain for case in cases.cases] == ["m/bench@cpu", "m/quality@cpu", "m/stat@cpu"]
    specs = read_torch_specs(tmp_path / "both" / "regression_tests")
    assert [spec.document for spec in specs] == [None]  # it is taken at its word: these are no torch models


def test_a_sharktank_spec_and_a_test_of_one_name(tmp_path: Path) -> None:
    write_tree(tmp_path, TREE | {"regression_tests/m/quality_cpu.json": HIP_SPEC})
    assert "m/quality on cpu is already defined by" in only(load_torch(tmp_path)).message
