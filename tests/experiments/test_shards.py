"""Shards of a run: complete, disjoint, balanced by recorded cost, and stable if cases are added."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.engine.plan import Plan
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.experiments.shards import (
    assign_groups,
    assign_shards,
    choose_chains,
    choose_shard,
    estimate_costs,
    group_chains,
    hash_shards,
    parse_shard,
    record_costs,
)
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.requests import ShardRequest
from iree_gauntlet.stages import Stage
from tests.support.journal_builder import CACHE_HIT, JournalBuilder
from tests.support.steps import make_step

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.steps import Step

_NAMES = st.sets(st.text("abcdef/@_", min_size=1, max_size=8), max_size=40)
_COSTS = st.dictionaries(st.text("abcdef/@_", min_size=1, max_size=8), st.floats(0, 1e4), max_size=40)
_COUNTS = st.integers(1, 9)


@given(_NAMES, _COSTS, _COUNTS)
def test_every_name_is_in_one_share(names: set[str], costs: dict[str, float], count: int) -> None:
    shards = assign_shards(names, costs, count)
    assert shards.keys() == names
    assert all(1 <= shard <= count for shard in shards.values())
    assert shards == assign_shards(sorted(names, reverse=True), dict(reversed(costs.items())), count)


@given(_NAMES, _COSTS, _COUNTS, _NAMES)
def test_added_cases_move_no_other_one(names: set[str], costs: dict[str, float], count: int, added: set[str]) -> None:
    before = assign_shards(names, costs, count)
    after = assign_shards(names | (added - costs.keys()), costs, count)
    assert {name: after[name] for name in names} == before


@given(_COSTS, _COUNTS)
def test_shares_are_balanced_by_cost(costs: dict[str, float], count: int) -> None:
    shards = assign_shards(costs, costs, count)
    loads = [sum(cost for name, cost in costs.items() if shards[name] == shard) for shard in range(1, count + 1)]
    # Graham: what came last to the fullest shard was put where least was.
    assert max(loads) - min(loads) <= max(costs.values(), default=0.0) * (1 + 1e-9) + 1e-9


def test_cases_without_a_cost_spread_evenly() -> None:
    names = [f"onnx/node/generated/test_{number}@cpu" for number in range(1152)]
    shards = list(assign_shards(names, {}, 8).values())
    assert all(100 < shards.count(shard) < 190 for shard in range(1, 9))
    # Where a name goes is for ever: a CI's caches depend on it.
    assert assign_shards(["onnx/node/generated/test_abs@cpu"], {}, 8) == {"onnx/node/generated/test_abs@cpu": 7}


def test_chains_that_need_each_other_stay_together() -> None:
    groups = group_chains("abcdef", [("b", "a"), ("c", "b"), ("e", "d"), ("e", "e"), ("f", "gone")])
    assert groups == {"a": "a", "b": "a", "c": "a", "d": "d", "e": "d", "f": "f"}
    # What joins them does not change their name, wherever it stands in the alphabet.
    assert group_chains("Abc", [("b", "c"), ("A", "c")]) == {"A": "c", "b": "c", "c": "c"}
    shards = assign_groups(groups, {"b": 5.0, "c": 5.0, "d": 6.0, "f": 1.0}, 2)
    assert {shards[chain] for chain in "abc"} == {1}
    assert {shards[chain] for chain in "de"} == {2}
    assert shards["f"] == 2
    assert hash_shards(shards) != hash_shards({**shards, "f": 1})


@pytest.fixture
def plan() -> Plan:
    steps: list[Step] = []
    for number in range(10):
        chain = f"m/s{number}@cpu"
        needs = (f"{chain}:compile", "m/s0@cpu:compile")
        steps += [make_step(Stage.COMPILE, chain), make_step(Stage.THRESHOLD, chain, needs=needs)]
    return Plan(tuple(steps[:6]) + tuple(make_step(Stage.COMPILE, f"n/s{number}@cpu") for number in range(30)))


def test_the_shares_of_a_plan_are_the_plan(plan: Plan) -> None:
    parts = [choose_shard(plan, ShardRequest(shard=f"{index}/4")) for index in (1, 2, 3, 4)]
    ids = [step.id for part, _ in parts for step in part.steps]
    assert sorted(ids) == sorted(step.id for step in plan.steps)
    assert [[step.id for step in plan.steps if step in part.steps] for part, _ in parts] == [
        [step.id for step in part.steps] for part, _ in parts
    ]
    together = [part for part, _ in parts if any(step.model == "m" for step in part.steps)]
    assert len(together) == 1
    cuts = [shard for _, shard in parts if shard]
    assert [(shard.index, shard.count, shard.chains) for shard in cuts] == [(i, 4, 33) for i in (1, 2, 3, 4)]
    assert len({shard.cut for shard in cuts}) == 1
    assert choose_shard(plan, ShardRequest()) == (plan, None)


def test_what_is_run_again_comes_with_what_it_needs(plan: Plan) -> None:
    part = choose_chains(plan, ["m/s1@cpu"])
    assert [step.id for step in part.steps] == ["m/s0@cpu:compile", "m/s1@cpu:compile", "m/s1@cpu:threshold"]


def test_costs_decide_from_a_file_and_from_a_run(plan: Plan, tmp_path: Path) -> None:
    costs = {"n/s3@cpu": 60.0, "n/s4@cpu": 50.0, "n/s5@cpu": 5}
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    by_file = choose_shard(plan, ShardRequest(shard="1/2", shard_costs=str(tmp_path / "costs.json")))
    names = {step.submodel for step in by_file[0].steps if step.model == "n"}
    assert ("s3" in names, "s4" in names, "s5" in names) == (True, False, False)
    builder = JournalBuilder()
    steps = [builder.step("n", name, "compile") for name in ("s3", "s4", "s5")]
    builder.begin()
    for step, seconds in zip(steps, costs.values(), strict=True):
        builder.result(step, seconds=seconds)
    builder.write(tmp_path / "run")
    assert choose_shard(plan, ShardRequest(shard="1/2", shard_costs=str(tmp_path / "run"))) == by_file


@pytest.mark.parametrize("text", ["3", "0/8", "9/8", "a/b", "1/0", "1/8 ", "-1/2", "1/99999"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a shard and the number of shards, such as 3/8"):
        parse_shard(ShardRequest(shard=text))


def test_mistakes(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="--shard-costs without --shard"):
        parse_shard(ShardRequest(shard_costs="x"))
    with pytest.raises(UsageError, match="--shard-costs nope: no such run"):
        choose_shard(plan, ShardRequest(shard="1/2", shard_costs="nope"))
    for content, message in [
        ("[", "cannot be read"),
        ("[" * 100_000, "cannot be read: it is nested more than 64 levels deep"),
        ('{"m": 1' + "0" * 400 + "}", "cannot be read: a number has more than 64 bits: 1000"),
        ("[]", "an object"),
        ('{"a": "b"}', 'a: expected seconds, found "b"'),
    ]:
        (tmp_path / "costs.json").write_text(content)
        with pytest.raises(UsageError, match=message):
            choose_shard(plan, ShardRequest(shard="1/2", shard_costs="costs.json"))
    lonely = Plan((make_step(Stage.COMPILE),))
    empty = 3 - assign_shards(["m/s@cpu"], {}, 2)["m/s@cpu"]
    rest, said = choose_shard(lonely, ShardRequest(shard=f"{empty}/2"))
    assert said is not None
    assert (rest.steps, said.index, said.chains) == ((), empty, 1)
    assert f"--shard {empty}/2: none of the 1 chain belongs to it" in capsys.readouterr().err


def _run(folder: Path, name: str, seconds: dict[str, float], **changes: Any) -> Path:
    builder = JournalBuilder(run=name)
    batch = builder.step("batch", "0a1b", "compile")
    steps = {}
    for submodel in seconds:
        builder.step("m", submodel, "fetch")
        steps[submodel] = builder.step("m", submodel, "compile"), builder.step("m", submodel, "threshold")
    needs = {steps[submodel][0] for submodel in ("a", "b")}
    builder.steps = [{**step, "needs": [batch]} if step["id"] in needs else step for step in builder.steps]
    builder.begin()
    builder.result(batch, seconds=4.0)
    for submodel, (compiled, ran) in steps.items():
        builder.result(f"m/{submodel}@cpu:fetch", seconds=100.0)
        builder.result(compiled, seconds=seconds[submodel], **changes)
        if submodel != "c":
            builder.result(ran, seconds=0.5)
    builder.end()
    return builder.write(folder / "runs" / name)


def test_costs_are_the_median_of_runs_that_did_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("specs", "suites"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    _run(tmp_path, "one", {"a": 1.0, "b": 2.0, "c": 3.0})
    _run(tmp_path, "two", {"a": 3.0, "b": 2.0})
    _run(tmp_path, "warm", {"a": 0.1, "b": 0.1, "d": 0.25}, cache=CACHE_HIT)
    assert record_costs(("one", "runs/two", "warm"), "costs.json") is ExitCode.OK
    assert "wrote costs.json: 4 chains" in capsys.readouterr().err
    text = (tmp_path / "costs.json").read_text()
    # A batch's compile is its cases', in equal parts; fetches do not count, and `d` was never made.
    assert json.loads(text) == {"m/a@cpu": 4.5, "m/b@cpu": 4.5, "m/c@cpu": 3.0, "m/d@cpu": 0.75}
    assert text.startswith('{\n "m/a@cpu": 4.5,\n')
    record_costs(("one",), "")
    assert json.loads(capsys.readouterr().out) == estimate_costs([read_journal(tmp_path / "runs/one/journal.jsonl")])
    with pytest.raises(UsageError, match="there is no folder gone"):
        record_costs(("one",), "gone/costs.json")
    with pytest.raises(UsageError, match=r"shard\.costs three: no such run"):
        record_costs(("one", "three"), "")


def test_what_has_cost_nothing_is_dealt_out_evenly() -> None:
    shards = assign_shards([f"case{number}" for number in range(80)], {f"case{number}": 0.0 for number in range(80)}, 8)
    assert sorted(Counter(shards.values()).values()) == [10] * 8
