"""Batches of a plan: the compiles that are put together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cases import Origin
from iree_gauntlet.engine.operator_suites import BatchPlan, flags_of, with_batches
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import BATCH_MODEL, CacheLookup, Command, Step, StepInput
from tests.support.steps import make_step

_RUN = Path("/run")


def _compile(name: str, *flags: str, target: str = "cpu", hit: bool = False) -> Step:
    chain = f"node/{name}@{target}"
    return make_step(
        Stage.COMPILE,
        chain,
        dialect="op_tests",
        model="node",
        submodel=name,
        target=target,
        folder=f"/run/steps/node/{name}.{target}/compile",
        origin=Origin("model.mlir"),
        command=Command(("iree-compile", "model.mlir", *flags, "-o", f"/run/{name}.vmfb"), f"/suite/{name}"),
        inputs=(StepInput("program", f"/suite/{name}/model.mlir", sha256=name),),
        outputs=(("module", f"/run/{name}.vmfb"),),
        cache=CacheLookup(key=name, hit=hit, ingredients=(("program", name),)),
    )


def _threshold(compiled: Step) -> Step:
    return replace(compiled, id=f"{compiled.chain}:threshold", stage=Stage.THRESHOLD, needs=(compiled.id,))


def _batched(steps: list[Step], size: int, finished: tuple[str, ...] = ()) -> BatchPlan:
    return with_batches(steps, size, _RUN, lambda step: step.dialect == "op_tests", finished)


def test_compiles_of_the_same_flags_are_put_together_in_order() -> None:
    steps = [_compile(name, "--a") for name in "abcde"] + [_compile("f", "--b"), _compile("g", "--b", target="gpu")]
    found = _batched(steps, 2)
    assert [[step.submodel for step in members] for members in found.members.values()] == [["a", "b"], ["c", "d"]]
    by_id = {step.id: step for step in found.steps}
    for batch, members in found.members.items():
        assert by_id[batch].model == BATCH_MODEL
        assert all(by_id[member.id].needs == (batch,) for member in members)
    # One alone is no batch.
    assert all(by_id[f"node/{name}:compile"].needs == () for name in ("e@cpu", "f@cpu", "g@gpu"))


def test_what_is_expected_to_fail_skipped_or_done_stands_alone() -> None:
    plain = [_compile(name) for name in "ab"]
    others = [
        replace(_compile("c"), expect_failure="known"),
        replace(_compile("d"), skip="not here"),
        replace(_compile("e"), blocked="no device"),
        _compile("f"),
        replace(_compile("g"), dialect="torch_models"),
    ]
    found = _batched([*plain, *others], 8, finished=("node/f@cpu:compile",))
    assert [[step.submodel for step in members] for members in found.members.values()] == [["a", "b"]]


def test_a_batch_is_the_same_when_some_of_it_is_in_the_cache_by_itself() -> None:
    cold = _batched([_compile(name) for name in "abc"], 8)
    warm = _batched([_compile("a"), _compile("b", hit=True), _compile("c")], 8)
    assert list(cold.members) == list(warm.members)
    keys = [next(step for step in found.steps if step.model == BATCH_MODEL).cache.ingredients for found in (cold, warm)]
    assert keys[0] == keys[1]
    needs = {step.submodel: step.needs for step in warm.steps if step.model != BATCH_MODEL}
    assert needs["b"] == ()
    assert _batched([_compile(name, hit=True) for name in "abc"], 8).members == {}


def test_another_program_is_another_batch_of_the_same_name() -> None:
    before = _batched([_compile("a"), _compile("b")], 8)
    edited = replace(_compile("b"), cache=CacheLookup(ingredients=(("program", "edited"),)))
    after = _batched([_compile("a"), edited], 8)
    assert list(before.members) == list(after.members)
    assert before.steps[0].cache.ingredients != after.steps[0].cache.ingredients


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=40), st.integers(2, 7))
def test_every_step_stays_and_every_miss_is_in_one_batch_at_most(cases: list[tuple[str, bool]], size: int) -> None:
    compiles = [_compile(str(number), f"--{flag}", hit=hit) for number, (flag, hit) in enumerate(cases)]
    steps = [step for compiled in compiles for step in (compiled, _threshold(compiled))]
    found = _batched(steps, size)
    own = [step for step in found.steps if step.model != BATCH_MODEL]
    assert [step.id for step in own] == [step.id for step in steps]
    members = [step.id for group in found.members.values() for step in group]
    assert len(members) == len(set(members))
    assert all(2 <= len(group) <= size for group in found.members.values())
    assert all(len({flags_of(step) for step in group}) == 1 for group in found.members.values())


def test_dumps_and_files_of_a_case_folder_are_no_part_of_a_batch() -> None:
    flags = ("--iree-hal-dump-executable-files-to=dumps", "--iree-codegen-transform-dialect-library=specs/lib.mlir")
    steps = [_compile(f"{name}{number}", flag) for number, flag in enumerate(flags) for name in "ab"]
    assert _batched(steps, 8).members == {}
