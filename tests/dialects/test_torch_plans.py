"""Plans for torch models: pointers of Git LFS, shared archives, and the needs of stages and tests."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.dialects.selection import Include
from iree_gauntlet.stages import Stage
from tests.support.spec_trees import find_argv, find_step, plan, write_tree
from tests.support.torch_trees import (
    ALL_STAGES,
    ALL_TARGETS,
    MODULE,
    QUALITY,
    TREE,
    load_torch,
    make_quality_file,
    remove_fields,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.engine.plan import Plan

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path, TREE)


def ids(made: Plan) -> list[str]:
    return [step.id for step in made.steps]


LFS = {
    "torch_models/m/modules/a.json": MODULE | {"type": "git-lfs", "mlir": "m/big.mlir"},
    "torch_models/m/big.mlir": POINTER,
}


def test_a_pointer_of_git_lfs_blocks_what_needs_the_program(tree: Path) -> None:
    made = plan(load_torch(write_tree(tree, LFS)), ALL_STAGES)
    blocked = {step.id: step.blocked for step in made.steps if step.blocked}
    assert set(blocked) == {"m/modules/a@cpu:compile", "m/modules/a@cpu:parameters.random-42.model"}
    for reason in blocked.values():
        assert f"{tree}/torch_models/m/big.mlir is a pointer of Git LFS" in reason
        assert "git lfs pull --include=big.mlir" in reason
    write_tree(tree, {"torch_models/m/big.mlir": "module {}"})
    assert not [step for step in plan(load_torch(tree), ALL_STAGES).steps if step.blocked]
    # One that is missing is for the fetch to tell.
    (tree / "torch_models/m/big.mlir").unlink()
    cases = load_torch(tree)
    assert not cases.problems
    assert not [step for step in plan(cases, ALL_STAGES).steps if step.blocked]


@pytest.mark.parametrize("imported", [False, True])
def test_of_a_module_that_is_not_loaded_only_the_program_is_needed(tree: Path, imported: bool) -> None:
    program = {"mlir": "https://h/b.onnx", "onnx_import": {"opset": 17}} if imported else {"mlir": "https://h/b.mlir"}
    weights = [{"type": "random", "module": "m/modules/b", "seed": 3, "scope": ""}]
    write_tree(tree, {"torch_models/m/modules/b.json": MODULE | program})
    write_tree(tree, make_quality_file("m/quality", weights=weights))
    made = plan(load_torch(tree, includes=[Include(submodel="quality")]), ALL_STAGES)
    stages = [step.id.rpartition(":")[2].partition(".")[0] for step in made.steps if "modules/b" in step.id]
    assert stages == ["fetch", "import", "parameters"] if imported else ["fetch", "parameters"]
    (archive,) = [step for step in made.steps if step.stage is Stage.PARAMETERS]
    assert archive.needs == (f"m/modules/b@cpu:{'import' if imported else 'fetch'}",)
    assert archive.id in find_step(made, "m/quality@cpu:threshold").needs


def test_tests_share_archives_of_one_module_scope_and_seed(tree: Path) -> None:
    def weight(kind: str = "random", scope: str = "model", **values: Any) -> dict[str, Any]:
        return {"type": kind, "module": "m/modules/a", "scope": scope, **values}

    write_tree(tree, {"torch_models/m/modules/b.json": MODULE} | make_quality_file("m/one", weights=[weight(seed=42)]))
    more = [weight(seed=43), weight(scope="other", seed=42), weight("splat", value=42), weight("splat", value=42.5)]
    more += [{**weight(seed=42), "module": "m/modules/b"}, weight("splat", value=0.0), weight("splat", value=-0.0)]
    write_tree(tree, make_quality_file("m/many", weights=[*more, weight(seed=42)]))
    made = plan(load_torch(tree), ALL_STAGES)
    archives = [step.id for step in made.steps if step.stage is Stage.PARAMETERS]
    # One of `bench`, `one` and `many`, and those of `many` alone.
    assert archives == [
        *("m/modules/a@cpu:parameters.random-42.model", "m/modules/a@cpu:parameters.random-42.other"),
        "m/modules/a@cpu:parameters.random-43.model",
        *(f"m/modules/a@cpu:parameters.splat-{value}.model" for value in ("-0.0", "0.0", "42.0", "42.5")),
        "m/modules/b@cpu:parameters.random-42.model",
    ]
    paths = [step.find_output("parameters") for step in made.steps if step.stage is Stage.PARAMETERS]
    assert len(set(paths)) == len(paths)
    for name in ("one@cpu:threshold", "bench@cpu:benchmark"):
        assert f"--parameters=model={paths[0]}" in find_argv(made, f"m/{name}")
        assert archives[0] in find_step(made, f"m/{name}").needs


def test_archives_of_scopes_that_are_no_file_names(tree: Path) -> None:
    scopes = ["", "a/b", "../x", "a b", "é", "A", "a", ".", "x" * 300, "a.b", "@x", "%s"]
    weights = [{"type": "random", "module": "m/modules/a", "seed": 1, "scope": scope} for scope in scopes]
    made = plan(load_torch(write_tree(tree, make_quality_file("m/quality", weights=weights))), ALL_STAGES)
    paths = [step.find_output("parameters") for step in made.steps if step.stage is Stage.PARAMETERS]
    assert len({path.lower() for path in paths}) >= len(scopes)  # and one of the benchmark
    assert all(path.startswith("/run/steps/m/modules/a.cpu/parameters.random-") for path in paths)
    assert not [path for path in paths if ".." in path or "%" in path or "@" in path]


STEPS = {
    Stage.FETCH: "m/modules/a:fetch m/quality:fetch",
    Stage.PARAMETERS: "m/modules/a:fetch m/modules/a:parameters.random-42.model",
    Stage.COMPILE: "m/modules/a:fetch m/modules/a:compile",
    Stage.THRESHOLD: "m/modules/a:fetch m/modules/a:compile m/quality:fetch m/quality:threshold",
    Stage.COMPSTAT: "m/modules/a:fetch m/modules/a:compile m/stat:compstat",
    Stage.BENCHMARK: "m/modules/a:fetch m/modules/a:parameters.random-42.model m/modules/a:compile m/bench:benchmark",
}


@pytest.mark.parametrize(
    "stages", [chosen for count in (1, 2, 6) for chosen in combinations(STEPS, count)], ids="-".join
)
def test_stages_bring_what_is_before_them_and_nothing_else(tree: Path, stages: Sequence[Stage]) -> None:
    made = plan(load_torch(tree), stages)
    wanted = {name.replace(":", "@cpu:") for stage in stages for name in STEPS[stage].split()}
    # Fetching is a step of its own where inputs are read, or nothing but fetching is asked for.
    if stages != (Stage.FETCH,) and Stage.THRESHOLD not in stages:
        wanted -= {"m/quality@cpu:fetch"}
    assert set(ids(made)) == wanted
    known = set(ids(made))
    assert all(set(step.needs) <= known for step in made.steps)


def test_every_input_is_fetched_or_made_by_what_a_step_needs(tree: Path) -> None:
    weights = [
        {"type": "url", "url": "https://h/w.irpa", "scope": "model"},
        {"type": "splat", "module": "m/modules/a", "value": 1, "scope": "x"},
    ]
    write_tree(tree, make_quality_file("m/quality", weights=weights) | {"torch_models/m/modules/b.json": MODULE})
    write_tree(tree, make_quality_file("m/second", modules=["m/modules/b", "m/modules/a"]))
    made = plan(load_torch(tree), ALL_STAGES)
    for step in made.steps:
        before = [find_step(made, need) for need in step.needs]
        there = {item.path for other in before if other.stage is Stage.FETCH for item in other.inputs}
        there |= {path for other in before for _, path in other.outputs}
        if step.stage is not Stage.FETCH:
            assert {item.path for item in step.inputs} <= there, step.id


@pytest.mark.parametrize("stages", [ALL_STAGES, (Stage.COMPSTAT,), (Stage.COMPILE,)])
def test_selecting_one_test_makes_what_it_loads_and_nothing_else(tree: Path, stages: Sequence[Stage]) -> None:
    write_tree(tree, {"torch_models/m/modules/b.json": MODULE} | make_quality_file("m/other", modules=["m/modules/b"]))
    made = plan(load_torch(tree, includes=[Include(submodel="stat")]), stages)
    expected = ["m/modules/a@cpu:fetch", "m/modules/a@cpu:compile"]
    assert ids(made) == expected + ([] if Stage.COMPSTAT not in stages else ["m/stat@cpu:compstat"])


def test_the_same_tree_gives_the_same_plan_in_any_order(tree: Path) -> None:
    specs = {path.name: path for path in (tree / "torch_models/m").glob("*.json")}
    assert len(specs) == 3
    first = plan(load_torch(tree), ALL_STAGES)
    assert plan(load_torch(tree, *reversed(ALL_TARGETS)), ALL_STAGES) == first
    assert plan(load_torch([tree / "torch_models", tree]), ALL_STAGES) == first


def test_an_empty_list_of_weights_is_none(tree: Path) -> None:
    for document in (QUALITY | {"weights": []}, remove_fields(QUALITY, "weights")):
        made = plan(load_torch(write_tree(tree, {"torch_models/m/quality.json": document})), ALL_STAGES)
        assert not [word for word in find_argv(made, "m/quality@cpu:threshold") if word.startswith("--parameters")]
