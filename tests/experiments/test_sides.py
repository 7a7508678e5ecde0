"""Sides of a comparison: logs of models that other machines measured, and differences between two compiles."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cases import COUNTED, Verdict
from iree_gauntlet.engine.rounds.blocks import PairSamples, collect_samples
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments import sides
from iree_gauntlet.experiments.compare import make_compare_settings
from iree_gauntlet.experiments.sides import (
    MODULE_SIZE,
    WORKER_END_EVENT,
    ComparisonSide,
    RoundsLog,
    find_changed_models,
    find_obstacle,
    list_compile_changes,
)
from iree_gauntlet.journal_format import JOURNAL, JournalEvent, JournalRecord
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.compare_record import (
    COMPARISON,
    ComparisonOpening,
    ComparisonPreparation,
    CompileChange,
    RoundRules,
    SideBenchmark,
    SideRecord,
    TimeVerdictRecord,
    read_comparison,
)
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.reports.compare_report import list_rows, make_compile_blocks
from iree_gauntlet.requests import CompareRequest, ExecutionRequest
from iree_gauntlet.results import CacheUse, Result
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Command, Resources
from tests.support.clocks import Clock
from tests.support.documents import render_blocks_markdown, render_lines
from tests.support.simulated_fleet import plan_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

UNIT = plan_step("toy/abs@cpu:benchmark")
SIDES_OF_IT = {name: SideRecord(asked=name, folder=name) for name in "AB"}


def block(kind: str = "ab") -> dict[str, Any]:
    """A block that counts, as a log has it."""
    rounds = [
        {"side": side, "times_ms": [1.0 + (side == "B")], "peak_rss_bytes": 1, "disturbed": []} for side in "ABBA"
    ]
    return {"step": UNIT.chain, "kind": kind, "order": "ABBA", "counted": True, "cpus": [], "rounds": rounds}


def taken(*blocks: dict[str, Any], failure: str = "") -> list[dict[str, Any]]:
    """The log of a worker."""
    machine = {"event": WORKER_END_EVENT, "time": "t", "machine": {"cores": 64}, "failure": failure}
    return [*({"event": "block", "time": "t", **item} for item in blocks), machine]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(sides, "time", clock)
    return clock


@pytest.fixture
def rounds(tmp_path: Path, clock: Clock) -> Iterator[tuple[RoundsLog, dict[str, PairSamples]]]:
    del clock
    settings = make_compare_settings(CompareRequest(budget=10.0), ExecutionRequest(), local=False)
    evidence: dict[str, PairSamples] = {}
    with (
        EventLog(tmp_path / "journal.jsonl", lambda: datetime.now(UTC)) as log,
        open_session(tmp_path, log, Progress()) as session,
    ):
        yield RoundsLog(session, settings.rules, evidence, ()), evidence


def events_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def test_a_model_is_in_the_log_as_a_whole(tmp_path: Path, rounds: tuple[RoundsLog, dict[str, PairSamples]]) -> None:
    log, evidence = rounds
    where = {"event": "where", "time": "t", "step": UNIT.chain, "dispatches": {"reason": "none"}, "compile": []}
    log.keep(UNIT, [*taken(block(), block("aa"), block()), where])
    assert log.conclude(UNIT, Result(Verdict.PASSED, worker="box/cpu", notes=("a note",))) is Verdict.PASSED
    (event,) = events_of(tmp_path)
    assert (event["event"], event["worker"], event["machine"], event["notes"]) == (
        "measured",
        "box/cpu",
        {"cores": 64},
        ["a note"],
    )
    assert [item["kind"] for item in event["blocks"]] == ["ab", "aa", "ab"]
    assert log.where[UNIT.chain].dispatches.reason == "none"
    earlier = as_events(tmp_path / "read", [event])
    assert RoundsLog(log.session, log._rules, {}, earlier).where == log.where
    # And is read back as it was.
    again = collect_samples(earlier)[UNIT.chain]
    assert again == evidence[UNIT.chain]
    assert (len(again.blocks), len(again.control)) == (2, 1)


@pytest.mark.parametrize(
    ("result", "events", "why"),
    [
        (Result(Verdict.ERROR, "abandoned after 3 workers"), [], "abandoned after 3 workers"),
        (Result(Verdict.PASSED), taken(block(), failure="B: it crashed"), "B: it crashed"),
    ],
)
def test_what_has_failed_is_no_evidence_for_one_that_goes_on(
    tmp_path: Path,
    rounds: tuple[RoundsLog, dict[str, PairSamples]],
    result: Result,
    events: list[dict[str, Any]],
    why: str,
) -> None:
    log, evidence = rounds
    log.keep(UNIT, events)
    log.conclude(UNIT, result)
    assert evidence[UNIT.chain].failure == why
    (event,) = events_of(tmp_path)
    assert event["problem"] == why
    assert collect_samples(as_events(tmp_path / "read", [event])) == {}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "first line, which describes the command, is missing"),
        ('{"event":"remark","text":"one"}\n', "first line, which describes the command, is missing"),
        ('{"event":"opening","kind":"compare"}\n', ":1: the opening event cannot be read: sides: is missing"),
        ('{"event":"comparison"}\n', "was written by an earlier version, whose records this version cannot read"),
    ],
)
def test_a_log_without_a_whole_opening_is_told(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / JOURNAL).write_text(line)
    with pytest.raises(GauntletError, match=says):
        read_comparison(tmp_path)


@pytest.mark.parametrize("kind", ["block", "result", "where", "start", "measured", "remark", "later"])
def test_an_event_that_lacks_what_it_needs_is_told_and_an_unknown_one_passed_over(tmp_path: Path, kind: str) -> None:
    rules = make_compare_settings(CompareRequest(), ExecutionRequest(), local=False).rules
    rounds = RoundRules(repetitions=1, min_time=1.0, choose=False)
    opening = ComparisonOpening(sides=SIDES_OF_IT, rules=rules, rounds=rounds).as_dict()
    lines = ({"event": "opening", **opening}, {"event": kind})
    (tmp_path / JOURNAL).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if kind == "later":
        assert not read_comparison(tmp_path).verdicts
        return
    lacking = "text: is missing" if kind == "remark" else "step: expected text, found none"
    with pytest.raises(GauntletError, match=f":2: the {kind} event cannot be read: {lacking}"):
        read_comparison(tmp_path)


def test_a_resumed_comparison_goes_on_with_the_blocks_and_judges_again(tmp_path: Path) -> None:
    settings = make_compare_settings(CompareRequest(), ExecutionRequest(), local=False)
    rounds = RoundRules(repetitions=1, min_time=1.0, choose=False)
    opening = ComparisonOpening(sides=SIDES_OF_IT, rules=settings.rules, rounds=rounds).as_dict()
    prepared = ComparisonPreparation(sides=SIDES_OF_IT, models=("cut", "judged", "there", "untouched")).as_dict()
    verdict = {"verdict": "same", "reason": "it is", "blocks": 1, "control_blocks": 0, "cpus": []}
    verdict |= {"replaced_blocks": 0, "marked_blocks": 0}
    away = {"event": "measured", "step": "there", "worker": "box/cpu", "blocks": [block(), block()]}
    first = [
        {"event": "prepared", **prepared},
        *({"event": "block", **block(), "step": chain} for chain in ("cut", "cut", "judged")),
        away,
        {"event": "result", "step": "judged", "times": verdict},
        {"event": "end", "exit_code": 0, "seconds": 1.0, "interrupted": False, "problem": ""},
    ]
    again = [{"event": "prepared", **prepared}, {"event": "block", **block(), "step": "cut"}]
    lines = [{"event": "opening", **opening}, *first, {"event": "opening", **opening, "resumed": True}, *again]
    (tmp_path / JOURNAL).write_text("".join(f"{json.dumps({'time': _at('00'), **line})}\n" for line in lines))
    record = read_comparison(tmp_path)
    assert (record.block_counts["cut"], record.block_counts["judged"], record.block_counts["there"]) == (3, 1, 2)
    assert (record.get_worker("there"), record.verdicts, record.end) == ("box/cpu", {}, None)
    record.verdicts["judged"] = TimeVerdictRecord.from_dict({**verdict, "verdict": "fastr"})
    with pytest.raises(GauntletError, match="the verdict of judged, 'fastr', is unknown to this version"):
        list_rows(record)
    del record.verdicts["judged"]
    assert {row.model: row.reason.partition(";")[0] for row in list_rows(record)} == {
        "cut": "cut short after 3 blocks of rounds",
        "judged": "cut short after 1 blocks of rounds",
        "there": "cut short after 2 blocks of rounds",
        "untouched": "it was not reached",
    }


def as_events(folder: Path, lines: Sequence[dict[str, Any]]) -> list[JournalEvent]:
    """The events of a comparison's journal that has these lines."""
    rules = make_compare_settings(CompareRequest(), ExecutionRequest(), local=False).rules
    rounds = RoundRules(repetitions=1, min_time=1.0, choose=False)
    opening = ComparisonOpening(sides=SIDES_OF_IT, rules=rules, rounds=rounds).as_dict()
    folder.mkdir(exist_ok=True)
    path = folder / JOURNAL
    path.write_text("".join(f"{json.dumps(line)}\n" for line in ({"event": "opening", **opening}, *lines)))
    return COMPARISON.read(folder).events


@pytest.mark.parametrize(
    ("rounds", "says"),
    [
        (5, "the block of toy/abs@cpu cannot be read: rounds: expected a list, found 5"),
        ([5], "the block of toy/abs@cpu cannot be read: rounds: expected an object, found 5"),
        ([{"side": "A"}], "the block of toy/abs@cpu cannot be read: rounds.times_ms: is missing"),
        ([], "a block of 0 rounds, expected 4 in the order ABBA"),
    ],
)
def test_rounds_that_are_none_are_told(tmp_path: Path, rounds: object, says: str) -> None:
    with pytest.raises(GauntletError, match=says):
        collect_samples(as_events(tmp_path, [{"event": "block", **block(), "rounds": rounds}]))


def test_a_log_that_has_a_model_twice_has_it_as_it_was_measured_last(tmp_path: Path) -> None:
    first = {"event": "measured", "step": "a", "worker": "box", "problem": "", "blocks": [block(), block()]}
    events = as_events(tmp_path, [first, {**first, "blocks": [block()]}])
    assert len(collect_samples(events)["a"].blocks) == 1


_COMPILE = plan_step("toy/abs@cpu:compile", stage=Stage.COMPILE)
_OF_ANOTHER = plan_step("toy/neg@cpu:compile", stage=Stage.COMPILE)
_BENCHMARK = plan_step("toy/abs@cpu:benchmark", stage=Stage.BENCHMARK)


def _at(second: str) -> str:
    return f"2026-11-28T10:00:{second}Z"


def side(folder: Path, name: str, made: dict[str, str], words: str = "bench") -> ComparisonSide:
    """One whose modules were made with these keys at these times; in `words`, how it benchmarks the first model."""
    folder.mkdir()
    lines: list[dict[str, Any]] = [{"event": "opening", "kind": "run", "time": _at("00"), "steps": []}]
    for time, key in made.items():
        for compiled in (_COMPILE, _OF_ANOTHER):
            result = Result(Verdict.PASSED, cache=CacheUse(False, key, ""))
            lines.append({"event": "result", "time": _at(time), "step": compiled.id, **result.as_dict()})
    (folder / "journal.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    benchmark = replace(_BENCHMARK, command=Command((words,), "/"))
    return ComparisonSide(
        name=name,
        iree=name,
        folder=folder,
        workbench=None,  # type: ignore[arg-type]
        record=JournalRecord(folder / "journal.jsonl"),
        planned=(_COMPILE, _OF_ANOTHER, benchmark),
        steps_by_metric={"time": {benchmark.chain: benchmark}},
        interrupted=False,
    )


_PASSED = Result(Verdict.PASSED)
_WRONG = Result(Verdict.FAILED, "no")


@pytest.mark.parametrize(
    ("results", "of_times", "of_counts"),
    [
        ({}, "compile: it did not finish", "compile: it did not finish"),
        ({"compile": _PASSED}, "", "compile: it did not finish"),
        ({"compile": _PASSED, f"compile.{COUNTED}": _PASSED}, "", ""),
        # The module whose instructions are counted is another one, without which times can be taken.
        ({"compile": _PASSED, f"compile.{COUNTED}": _WRONG}, "", "compile: no"),
        ({"compile": _WRONG, f"compile.{COUNTED}": _PASSED}, "compile: no", "compile: no"),
        *(
            ({"compile": _PASSED, f"compile.{COUNTED}": _PASSED, "threshold": checked}, why, why)
            for checked, why in (
                (_PASSED, ""),
                (_WRONG, "its numbers are wrong: no"),
                (Result(Verdict.ERROR, "no"), ""),
            )
        ),
    ],
)
def test_what_has_to_be_ready_of_a_side(
    tmp_path: Path, results: dict[str, Result], of_times: str, of_counts: str
) -> None:
    counted = replace(_COMPILE, id=f"toy/abs@cpu:compile.{COUNTED}", role=COUNTED)
    threshold = plan_step("toy/abs@cpu:threshold", stage=Stage.THRESHOLD)
    count = plan_step("toy/abs@cpu:count", counted.id, stage=Stage.COUNT)
    known = {f"toy/abs@cpu:{name}": result for name, result in results.items()}
    known[count.id] = replace(_PASSED, statistics={"instructions": 5})
    one = side(tmp_path / "a", "A", {})
    one = replace(
        one,
        planned=(_OF_ANOTHER, _COMPILE, counted, threshold, count, _BENCHMARK),
        record=replace(one.record, results=known),
    )
    assert find_obstacle(one, replace(_BENCHMARK, needs=(_COMPILE.id,))) == of_times
    assert find_obstacle(one, count) == of_counts
    assert find_obstacle(one, replace(count, skip="not on this device")) == "not on this device"


def measured_so_far(folder: Path, *times: str, kind: str = "block", words: tuple[str, ...] = ()) -> list[JournalEvent]:
    """Blocks at these times, after parts of a comparison that were prepared with these benchmarks."""
    resources = Resources()
    parts = [SideBenchmark(timeout=1.0, command=Command((word,), "/"), resources=resources) for word in words]
    prepared = [
        ComparisonPreparation(sides=SIDES_OF_IT, benchmarks={UNIT.chain: dict.fromkeys("AB", part)}).as_dict()
        for part in parts
    ]
    measured = block() if kind == "block" else {"step": UNIT.chain, "worker": "box", "blocks": []}
    lines = [
        *({"event": "prepared", "time": _at("00"), **part} for part in prepared),
        *({"event": kind, "time": _at(time), **measured} for time in times),
    ]
    return as_events(folder, lines)


@pytest.mark.parametrize(
    ("made", "times", "changed"),
    [
        ({"01": "k"}, (), False),
        ({"01": "k"}, ("02", "03"), False),
        ({"01": "k", "04": "k"}, ("02", "03"), False),
        ({"01": "k", "04": "other"}, ("02", "03"), True),
        # Blocks of both: the later ones don't make it what the first ones are of.
        ({"01": "k", "04": "other"}, ("02", "05"), True),
        ({"01": "k", "04": "other", "06": "k"}, ("02", "05"), False),
        # Made, and made otherwise, before anything was measured.
        ({"01": "k", "02": "other"}, ("03", "04"), False),
        ({"01": "k", "03": "other"}, (), False),
    ],
)
@pytest.mark.parametrize("kind", ["block", "measured"])
def test_a_module_is_another_one_where_its_key_is_not_that_at_the_first_block(
    tmp_path: Path, made: dict[str, str], times: tuple[str, ...], kind: str, *, changed: bool
) -> None:
    sides = (side(tmp_path / "a", "A", {"01": "k"}), side(tmp_path / "b", "B", made))
    found = find_changed_models(sides, measured_so_far(tmp_path, *times, kind=kind))
    why = "B: its module is not the one that was measured so far; start a new comparison"
    assert found == ({UNIT.chain: why} if changed else {})


@pytest.mark.parametrize(
    ("words", "now", "changed"),
    [
        (("bench",), "bench", False),
        (("bench",), "other", True),
        # The first part says how it was measured; a resumed one that left it out, how it would have been.
        (("bench", "other"), "other", True),
        (("bench", "other"), "bench", False),
    ],
)
def test_a_benchmark_is_another_one_where_it_is_not_that_of_the_first_part(
    tmp_path: Path, words: tuple[str, ...], now: str, *, changed: bool
) -> None:
    sides = [side(tmp_path / name, name, {"01": "k"}, now) for name in "AB"]
    found = find_changed_models(sides, measured_so_far(tmp_path, "02", words=words))
    why = "A: its benchmark is not the one that was measured so far; start a new comparison"
    assert found == ({UNIT.chain: why} if changed else {})
    assert find_changed_models(sides, measured_so_far(tmp_path, words=words)) == {}, "nothing is measured yet"


def test_a_benchmark_is_the_same_in_a_folder_that_was_moved(tmp_path: Path) -> None:
    sides = [side(tmp_path / name, name, {"01": "k"}, f"--module={tmp_path}/m.vmfb") for name in "AB"]
    assert find_changed_models(sides, measured_so_far(tmp_path, "02", words=("--module=/elsewhere/m.vmfb",))) == {}
    other = measured_so_far(tmp_path, "02", words=("--module=/elsewhere/n.vmfb",))
    assert set(find_changed_models(sides, other)) == {UNIT.chain}


@given(hosts=st.integers(1, 20), units=st.integers(1, 50), gone=st.floats(0, 1000))
def test_what_is_left_of_the_time_is_shared(hosts: int, units: int, gone: float) -> None:
    clock = Clock()
    settings = make_compare_settings(CompareRequest(budget=10.0), ExecutionRequest(), local=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sides, "time", clock)
        log = RoundsLog(_NoSession(), settings.rules, {}, ())  # type: ignore[arg-type]
        clock.now += gone
        share = log.share(hosts, units)
    left = max(0.0, 600 - gone)
    assert share == pytest.approx(left if units <= hosts else left * hosts / units)


class _NoSession:
    cancelled = threading.Event()


def statistics(dispatches: int = 19, transient: int = 8256, **more: Any) -> dict[str, Any]:
    """As iree-compile 3.5.0 to 3.13.0 write them."""
    return {
        "stream-aggregate": {
            "global": {"constant-count": 1, "constant-size": 1449536, "variable-count": 0, "variable-size": 0},
            "synchronization": {"await-count": 1},
            "execution": {
                "submission-count": 1,
                "transient-memory-size": transient,
                "fill-count": 1,
                "copy-count": 4,
                "dispatch-count": dispatches,
                "call-count": 0,
            },
            "executable": {"executable-count": 19},
            **more,
        }
    }


def sized(size: int, told: dict[str, Any]) -> dict[str, Any]:
    return {**told, MODULE_SIZE: size}


def test_compiles_that_are_alike_have_no_rows() -> None:
    changes = list_compile_changes(sized(5, statistics()), sized(5, statistics()))
    assert changes == ()
    assert render_lines(make_compile_blocks([])) == ["The compiler's statistics and the module's size are the same."]


def test_what_differs_in_the_order_of_what_it_tells() -> None:
    changes = list_compile_changes(sized(1_509_696, statistics()), sized(1_479_416, statistics(28, 9792)))
    assert [(change.name, change.a, change.b, change.unit) for change in changes] == [
        ("module size", 1_509_696, 1_479_416, "bytes"),
        ("dispatches", 19, 28, ""),
        ("transient memory", 8256, 9792, "bytes"),
    ]
    assert changes[1].ratio == pytest.approx(28 / 19)


def test_turned_round_the_figures_are_swapped() -> None:
    one, other = statistics(), statistics(28, 9792)
    there, back = list_compile_changes(one, other), list_compile_changes(other, one)
    assert [(change.name, change.a, change.b) for change in there] == [
        (change.name, change.b, change.a) for change in back
    ]


def test_what_one_side_does_not_tell_is_not_zero() -> None:
    newer = statistics(executable={"executable-count": 19, "code-size": 4096})
    changes = list_compile_changes(statistics(), sized(10, newer))
    assert changes == (
        CompileChange("module size", None, 10, "bytes"),
        CompileChange("executable/code-size", None, 4096, "bytes"),
    )
    assert changes[0].ratio is None
    assert render_lines(make_compile_blocks(changes))[3].split() == [
        "module",
        "size",
        "not",
        "reported",
        "10",
        "B",
        "–",
    ]


def test_from_nothing_there_is_no_ratio() -> None:
    assert CompileChange("calls", 0, 2).ratio is None


def test_what_is_no_number_is_passed_over() -> None:
    assert list_compile_changes({"a": "x", "b": [1], "c": True}, {"a": "y", "b": [2], "c": False}) == ()


def test_the_text_of_a_report() -> None:
    changes = list_compile_changes(sized(1_509_696, statistics()), sized(1_509_416, statistics(28, 19792)))
    assert render_lines(make_compile_blocks(changes))[2:] == [
        "figure                          A                B  B / A",
        "module size       1,509,696 bytes  1,509,416 bytes  1.000",
        "dispatches                     19               28  1.474",
        "transient memory           8.3 kB          19.8 kB  2.397",
    ]
    assert render_blocks_markdown(make_compile_blocks(changes)).splitlines()[4:6] == [
        "| module size | 1,509,696 bytes | 1,509,416 bytes | 1.000 |",
        "| dispatches | 19 | 28 | 1.474 |",
    ]
