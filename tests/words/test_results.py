"""Results in the journal: written as the same bytes as ever, and read back unchanged."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.results import CacheUse, Check, FetchedFile, OutputComparison, Result, Samples
from tests.support.places import DATA

if TYPE_CHECKING:
    from collections.abc import Sequence

# A run of a small project: a program that does not compile, wrong numbers, and a size above its golden.
RECORDED = DATA / "results" / "journal.jsonl"

_TEXTS = st.text(max_size=5)
_INTEGERS = st.integers(-(2**63), 2**63 - 1)
_NUMBERS = st.floats() | st.integers(-(2**60), 2**60)
_TIMES = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3).map(tuple)
_CHECKS = st.builds(Check, _TEXTS, *[st.none() | _NUMBERS] * 4, *[_TEXTS] * 4, st.none() | st.booleans(), _TEXTS)
_OUTPUTS = st.builds(
    OutputComparison,
    _INTEGERS,
    _TEXTS,
    _TEXTS,
    passed=st.booleans(),
    mismatches=st.none() | _INTEGERS,
    max_abs_error=st.none() | st.floats(),
    worst_index=st.none() | st.lists(_INTEGERS, max_size=3).map(tuple),
)
_RESULTS = st.builds(
    Result,
    st.sampled_from(Verdict),
    _TEXTS,
    exit_code=st.none() | _INTEGERS,
    timed_out=st.booleans(),
    cache=st.none() | st.builds(CacheUse, st.booleans(), _TEXTS, _TEXTS),
    checks=st.lists(_CHECKS, max_size=2).map(tuple),
    outputs=st.lists(_OUTPUTS, max_size=2).map(tuple),
    samples=st.none() | st.builds(Samples, _TEXTS, _TIMES, _TIMES, st.lists(_INTEGERS).map(tuple), st.booleans()),
    statistics=st.dictionaries(_TEXTS, st.none() | _INTEGERS | _TEXTS, max_size=2),
    notes=st.lists(_TEXTS, max_size=2).map(tuple),
    fetched=st.lists(st.builds(FetchedFile, _TEXTS, st.just(Path("a/b")), cached=st.booleans()), max_size=2).map(tuple),
)


def result_lines(journal: Path) -> list[bytes]:
    return [line for line in journal.read_bytes().splitlines() if line.startswith(b'{"event":"result"')]


def written(folder: Path, results: Sequence[tuple[dict[str, Any], Result]]) -> list[bytes]:
    """The lines of a journal for results, each written at the time of an event."""
    times = [datetime.fromisoformat(event["time"]) for event, _ in results]
    path = folder / "journal.jsonl"
    with Journal(path, iter(times).__next__) as journal:
        for event, result in results:
            journal.write_result(event["step"], result)
    return result_lines(path)


def test_results_that_were_recorded_are_written_again_byte_by_byte(tmp_path: Path) -> None:
    lines = result_lines(RECORDED)
    events = [json.loads(line) for line in lines]
    results = [Result.from_dict(event) for event in events]
    assert {result.verdict for result in results} == {Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED}
    for part in ("cache", "checks", "outputs", "samples", "statistics", "notes", "tail", "fetched"):
        assert any(getattr(result, part) for result in results), part
    assert written(tmp_path, list(zip(events, results, strict=True))) == lines


def test_every_part_of_a_result_has_the_names_and_the_order_that_it_had(tmp_path: Path) -> None:
    result = Result(
        Verdict.FAILED,
        "why",
        "iree-run-module",
        seconds=0.5,
        exit_code=1,
        cache=CacheUse(True, "aa", "in the cache"),
        checks=(Check("time_ms", 9.5, 9, 1.0, 9.0, "ms", "mean", "mi300", "", False, "b.json: golden_time_ms"),),
        outputs=(OutputComparison(0, "2xf32", "1 of 2", passed=False, max_abs_error=math.inf, max_rel_error=math.nan),),
        samples=Samples("BM_f", (9.5,), (9.0,), (3,), aggregated=True),
        statistics={"dispatch_count": 2},
        fetched=(FetchedFile("file:///a", Path("/a"), 3, 0.25, cached=True, sha256="c0ffee", notes=("slow",)),),
        said="a lot",
    )
    event = {"step": "s", "time": "2026-11-21T05:18:00.000Z"}
    (line,) = written(tmp_path, [(event, result)])
    assert line == (
        b'{"event":"result","time":"2026-11-21T05:18:00.000Z","step":"s","verdict":"failed","reason":"why",'
        b'"command":"iree-run-module","seconds":0.5,"cpu_seconds":0.0,"peak_rss_bytes":0,"tool_seconds":0.0,'
        b'"exit_code":1,"signal":"","timed_out":false,"cache":{"hit":true,"key":"aa","reason":"in the cache"},'
        b'"checks":[{"metric":"time_ms","measured":9.5,"golden":9,"factor":1.0,"limit":9.0,"unit":"ms",'
        b'"statistic":"mean","sku":"mi300","release":"","passed":false,"note":"b.json: golden_time_ms"}],'
        b'"outputs":[{"index":0,"type":"2xf32","passed":false,"message":"1 of 2","mismatches":null,"count":0,'
        b'"max_abs_error":"inf","max_rel_error":"nan","worst_index":null,"worst_actual":"","worst_expected":"",'
        b'"cosine_similarity":null,"actual_nans":0,"expected_nans":0,"actual_infs":0,"expected_infs":0,"atol":0.0,'
        b'"rtol":0.0,"actual_path":"","expected_path":""}],"samples":{"name":"BM_f","real_time_ms":[9.5],'
        b'"cpu_time_ms":[9.0],"iterations":[3],"aggregated":true},"statistics":{"dispatch_count":2},'
        b'"notes":[],"log":"","tail":[],"fetched":[{"url":"file:///a","path":"/a","bytes":3,"seconds":0.25,'
        b'"cached":true}]}'
    )


@given(result=_RESULTS)
def test_what_is_written_is_read_as_what_it_was(result: Result) -> None:
    text = json.dumps(result.as_dict(), allow_nan=False)
    again = Result.from_dict(json.loads(text))
    # By text: NaN is not equal to itself.
    assert repr(again) == repr(result)
    assert json.dumps(again.as_dict(), allow_nan=False) == text


def test_a_recorded_journal_is_reported_on(tmp_path: Path) -> None:
    outcome = read_outcome(read_journal(RECORDED))
    assert {chain.id: str(chain.verdict) for chain in outcome.chains} == dict.fromkeys(
        ("toy/abs@cpu", "toy/none@cpu", "toy/wrong@cpu"), "failed"
    )
    steps = {step.id: step for step in outcome.steps}
    (wrong,) = steps["toy/wrong@cpu:threshold"].outputs
    assert (wrong.mismatches, wrong.worst_index, wrong.expected_nans) == (4, (2,), 1)
    size = next(check for check in steps["toy/abs@cpu:compstat"].checks if check.metric == "binary_size_bytes")
    assert (size.measured, size.limit, size.passed) == (10356, 100, False)
    timed = steps["toy/abs@cpu:benchmark"].samples
    assert timed is not None
    assert len(timed.real_time_ms) == 3
    # Fields that other programs lack or add.
    lines = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    for event in (line for line in lines if line["event"] == "result"):
        for name in ("tool_seconds", "fetched", "cache"):
            del event[name]
        event["weather"] = "fair"
        for output in event["outputs"]:
            del output["rtol"]
            output["mood"] = 1
    path = tmp_path / "journal.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    found = {step.id: step for step in read_outcome(read_journal(path)).steps}
    assert {name: step.verdict for name, step in found.items()} == {name: step.verdict for name, step in steps.items()}
    assert found["toy/wrong@cpu:threshold"].outputs[0].rtol == 0
    assert found["toy/abs@cpu:compile"].cache is None


@pytest.mark.parametrize(
    "fields",
    [
        {"verdict": "maybe"},
        {"verdict": None},
        {"exit_code": "one"},
        {"seconds": True},
        {"cache": "hit"},
        {"cache": {"key": "aa"}},
        {"checks": [{"measured": 1.0}]},
        {"outputs": [{"index": 0}]},
        {"outputs": 3},
        {"samples": {"real_time_ms": "soon"}},
    ],
)
def test_a_result_that_is_none_is_refused_with_its_line_and_its_version(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = tmp_path / "journal.jsonl"
    run = {"event": "opening", "kind": "run", "version": "9.9", "steps": []}
    result = {"event": "result", "step": "s", "verdict": "passed", **fields}
    path.write_text(f"{json.dumps(run)}\n{json.dumps(result)}\n", encoding="utf-8")
    with pytest.raises(GauntletError, match=r"journal\.jsonl:2: the result of s cannot be read") as caught:
        read_journal(path)
    assert "version 9.9" in caught.value.hint


def test_numbers_of_a_journal() -> None:
    def read(value: object) -> float | None:
        return Check.from_dict({"metric": "time", "measured": value}).measured

    assert [read(value) for value in (None, 3, 2.5, "inf", "-inf")] == [None, 3, 2.5, math.inf, -math.inf]
    assert math.isnan(read("nan") or 0)
    for value in (True, "soon", [1]):
        with pytest.raises(ValueError, match=r"measured: expected a number, found (true|\"soon\"|\[1\])"):
            read(value)


def test_samples_of_which_only_the_mean_is_known_have_no_fastest() -> None:
    assert Samples("f", (3.0, 2.0, 2.5), (), ()).min_ms == 2
    assert Samples("f", (2.5,), (), (), aggregated=True).min_ms is None
    assert Samples("f", (), (), ()).min_ms is None
    assert math.isnan(Samples("f", (), (), ()).mean_ms)


def test_the_worst_verdict_is_that_with_the_worst_exit_code_and_a_failure_before_what_is_none() -> None:
    worst_first = ["error", "failed", "xpassed", "inconclusive", "xfailed", "passed", "skipped"]
    for place, worst in enumerate(worst_first):
        assert Verdict.worst(map(Verdict, reversed(worst_first[place:]))) == worst
    assert Verdict.worst([]) is Verdict.SKIPPED
