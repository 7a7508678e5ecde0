"""New goldens: they come from trustworthy figures, and nothing else in a spec changes."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cases import Golden, Origin
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, SpecError, UsageError
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.measuring.goldens.golden_evidence import GoldenEvidence, Proposal, propose_golden
from iree_gauntlet.requests import SelectionRequest, parse_request
from iree_gauntlet.upkeep.spec_goldens import update
from iree_gauntlet.upkeep.upkeep_requests import GoldenUpdateRequest
from tests.support.journal_builder import JournalBuilder, write_measured_run
from tests.support.toy_project import Project
from tests.support.unified_diff import apply_diff

if TYPE_CHECKING:
    from pathlib import Path

_SPEC = """{
    "golden_compiler": "3.13.0",
    "golden_dispatch": {"cpu": 19, "other": 7},
    "golden_size": {"cpu":1000},
    "golden_time_ms": {"desk": 2.50}
}
"""
_FILE = "specs/benchmarks/toy/net_cpu.json"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("specs/benchmarks/toy", "suites", "runs"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / _FILE).write_text(_SPEC, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _golden(metric: str, field: str, value: float, *, sku: str = "", release: str = "") -> dict[str, Any]:
    return {
        "metric": metric,
        "value": value,
        "factor": 1.1 if metric == "time_ms" else 1.0,
        "statistic": "mean",
        "sku": sku,
        "release": release,
        "origin": {"file": _FILE, "field": field},
    }


def _run(project: Path, name: str, *, golden_release: str = "3.13.0", **changes: Any) -> None:
    counts = [
        _golden("dispatch_count", "golden_dispatch.cpu", 19, release=golden_release),
        _golden("binary_size_bytes", "golden_size.cpu", 1000, release=golden_release),
    ]
    goldens = {"compstat": counts, "benchmark": [_golden("time_ms", "golden_time_ms.desk", 2.5)]}
    changes = {"dispatches": 20, "compstat": "failed", "benchmark": "failed", **changes}
    folder = write_measured_run(project / "runs", name, goldens=goldens, **changes)
    # The journals' order is that of their writing.
    number = int(name.rpartition("-")[2])
    os.utime(folder / "journal.jsonl", (number, number))


def _update(**asked: Any) -> ExitCode:
    return update(SelectionRequest(), parse_request(GoldenUpdateRequest, asked))


def test_the_diff_changes_the_values_alone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(project, "run-1")
    assert _update() is ExitCode.OK
    captured = capsys.readouterr()
    assert (project / _FILE).read_text() == _SPEC, "nothing is written unless it is asked for"
    changed = [line for line in captured.out.splitlines() if line[:1] in "+-" and line[:3] not in ("---", "+++")]
    assert changed == [
        '-    "golden_dispatch": {"cpu": 19, "other": 7},',
        '+    "golden_dispatch": {"cpu": 20, "other": 7},',
        '-    "golden_time_ms": {"desk": 2.50}',
        '+    "golden_time_ms": {"desk": 3.1}',
    ]
    assert "relax" in captured.err
    assert "3 repetitions, Xeon, run-1" in captured.err
    assert "within its limit (900 bytes" in captured.err


def test_the_diff_is_one_that_git_applies(project: Path) -> None:
    _run(project, "run-1")
    _update(output="goldens.patch")
    apply_diff(project, (project / "goldens.patch").read_text())
    patched = (project / _FILE).read_text()
    (project / _FILE).write_text(_SPEC)
    _update(write=True)
    assert (project / _FILE).read_text() == patched
    assert json.loads(patched)["golden_time_ms"] == {"desk": 3.1}


def test_comments_and_line_ends_stay(project: Path) -> None:
    commented = _SPEC.replace("2.50}", "2.50}  // on my desk: 2.50").replace("\n", "\r\n")
    (project / _FILE).write_bytes(commented.encode())
    _run(project, "run-1")
    _update(write=True)
    expected = commented.replace("2.50}", "3.1}").replace('{"cpu": 19', '{"cpu": 20')
    assert (project / _FILE).read_bytes().decode() == expected


def test_several_runs_count_together(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, time in enumerate((2.0, 2.2, 2.1), start=1):
        _run(project, f"run-{number}", times=(time, time))
    _update(last=3)
    captured = capsys.readouterr()
    assert '"golden_time_ms": {"desk": 2.1}' in captured.out
    assert "3 runs (run-1 … run-3)" in captured.err
    assert "tighten" in captured.err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"disturbed": ["the CPU throttled 2 times"]}, "disturbed: the CPU throttled 2 times"),
        ({"threshold": "failed"}, "its threshold failed"),
        ({"threshold": "error"}, "its threshold error"),
        ({"threshold": "quarantined"}, "its threshold quarantined"),
        ({"ended": False}, "did not finish"),
    ],
)
def test_what_does_not_count_is_told(
    project: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], reason: str
) -> None:
    _run(project, "run-1", **changes)
    _update()
    captured = capsys.readouterr()
    assert '"desk": 3.1' not in captured.out
    assert any("golden_time_ms.desk" in line and reason in line for line in captured.err.splitlines())
    # A busy machine says nothing against a count.
    assert ('"cpu": 20' in captured.out) is ("disturbed" in changes)


def test_counts_that_differ_between_runs_are_no_golden(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(project, "run-1", dispatches=20)
    _run(project, "run-2", dispatches=21)
    _update(last=2)
    assert "the counts differ: 20, 21" in capsys.readouterr().err


def test_sizes_are_proposed_with_the_room_that_is_asked_for(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(project, "run-1", size=600)
    _update(size_headroom=1.25)
    assert '"golden_size": {"cpu":750}' in capsys.readouterr().out
    _update(size_headroom=2.0)
    assert "within the headroom" in capsys.readouterr().err
    _run(project, "run-2", size=1200)
    _update()
    assert '"golden_size": {"cpu":1200}' in capsys.readouterr().out


def test_a_golden_of_a_range_keeps_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = project / _FILE
    path.write_text(_SPEC.replace('"3.13.0"', '">=3.13"'))
    _run(project, "run-1", release="3.14.0.dev0", golden_release=">=3.13")
    _update(write=True)
    assert json.loads(path.read_text()) | {"golden_time_ms": {}} == {
        "golden_compiler": ">=3.13",
        "golden_dispatch": {"cpu": 20, "other": 7},
        "golden_size": {"cpu": 1000},
        "golden_time_ms": {},
    }
    _run(project, "run-2", times=(2.5, 2.5), release="3.12.0", golden_release=">=3.13")
    capsys.readouterr()
    _update()
    assert "belongs to release >=3.13, but 3.12.0 was measured (--to-release moves it)" in capsys.readouterr().err


def test_another_release_needs_to_be_asked_for_and_moves_all_or_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(project, "run-1", release="3.14.0")
    _update(match="toy/*")
    assert "belongs to release 3.13.0, but 3.14.0 was measured" in capsys.readouterr().err
    with pytest.raises(GauntletError, match=r"golden_dispatch\.other would be labelled with a release"):
        _update(to_release=True)
    (project / _FILE).write_text(_SPEC.replace(', "other": 7', ""))
    _update(to_release=True, write=True)
    assert json.loads((project / _FILE).read_text()) == {
        "golden_compiler": "3.14.0",
        "golden_dispatch": {"cpu": 20},
        "golden_size": {"cpu": 1000},
        "golden_time_ms": {"desk": 3.1},
    }


def test_a_spec_that_has_changed_since_is_not_overwritten(project: Path) -> None:
    _run(project, "run-1")
    (project / _FILE).write_text(_SPEC.replace("19", "18"))
    with pytest.raises(GauntletError, match=r"golden_dispatch\.cpu is 18, but was 19 when it was measured"):
        _update(write=True)
    (project / _FILE).write_text("{")
    with pytest.raises(GauntletError, match=_FILE):
        _update(write=True)
    (project / _FILE).unlink()
    with pytest.raises(GauntletError, match=_FILE):
        _update(write=True)


@pytest.mark.iree
def test_todays_goldens_are_judged_and_selected_as_golden_show_does(tmp_path: Path) -> None:
    toy = Project(tmp_path)
    toy.benchmark(golden_dispatch={"cpu": 3})
    assert toy.gauntlet("run", "--stages", "compstat").code == 0
    # Edited since.
    toy.benchmark(golden_dispatch={"cpu": 0})
    shown = json.loads(toy.gauntlet("golden.show", "--format", "json").out)["goldens"]
    assert [(item["golden"], item["measured"], item["verdict"]) for item in shown] == [(0, 1, "broken")]
    for selection in ((), ("--model", "toy", "--target", "cpu"), ("--suite", "s")):
        toy.suite('[[include]]\nmodel = "toy"\n')
        done = toy.gauntlet("golden.update", *selection)
        assert done.code == 0, done.text
        assert "golden_dispatch.cpu 0 → 1" in done.err, done.text
    other = toy.gauntlet("golden.update", "--model", "other")
    assert (other.code, "no case matches --model other" in other.err) == (5, True), other.text
    toy.add("negated", "arith.negf %a : tensor<4xf32>")
    toy.benchmark("negated", golden_dispatch={"cpu": 1})
    other = toy.gauntlet("golden.update", "--submodel", "negated")
    assert other.code == 5, other.text
    assert "More runs: --last N, or --run." in other.err
    toy.close()


def test_mistakes_of_the_command_line(project: Path) -> None:
    with pytest.raises(UsageError, match="no run in"):
        _update()
    _run(project, "run-1")
    for changes in ({"run": ["nope"]}, {"last": 0}, {"size_headroom": 0.5}, {"run": ["run-1"], "last": 2}):
        with pytest.raises(UsageError):
            _update(**changes)
    with pytest.raises(UsageError, match="no folder"):
        _update(output="nowhere/x.patch")
    with pytest.raises(NothingSelectedError, match="run-1"):
        _update(match="other/*")
    assert _update(run=["run-1"]) is ExitCode.OK


_PLACES = st.builds(
    Golden,
    origin=st.just(Origin("f", "g")),
    metric=st.sampled_from([Figure.TIME, Figure.DISPATCHES, Figure.SIZE]),
    value=st.integers(1, 100_000).map(float),
    factor=st.sampled_from([1.0, 1.1]),
    statistic=st.sampled_from(Statistic),
    sku=st.just(""),
    release=st.sampled_from(["", "3.13.0", ">=3.13"]),
)
_EVIDENCE = st.builds(
    lambda figure, spread, refused, release: GoldenEvidence(
        "r", "m/s@cpu", figure, (figure, figure + spread, figure + spread / 2), release, "cpu", refused
    ),
    st.integers(1, 100_000).map(float),
    st.integers(0, 1),
    st.sampled_from(["", "", "disturbed"]),
    st.sampled_from(["3.13.0", "3.13.0", "3.14.0"]),
)


@given(
    place=_PLACES,
    evidence=st.lists(_EVIDENCE, min_size=1, max_size=4),
    headroom=st.sampled_from([None, 1.0, 1.25]),
    to_release=st.booleans(),
)
def test_a_proposal_is_never_out_of_thin_air(
    place: Golden, evidence: list[GoldenEvidence], headroom: float | None, *, to_release: bool
) -> None:
    outcome = propose_golden(place, evidence, size_headroom=headroom, relabel=to_release)
    usable = [item for item in evidence if not item.rejection]
    if isinstance(outcome, str):
        assert outcome
        return
    assert isinstance(outcome, Proposal)
    assert usable
    moved = outcome.release not in ("", place.release)
    assert moved <= to_release
    assert outcome.value != place.value or moved
    if outcome.value != place.value:
        largest = max(item.measured for item in usable) * (headroom or 1)
        assert min(item.measured for item in usable) * 0.99 <= outcome.value <= largest * 1.01 + 1
    # Again, from the same: nothing more to change.
    settled = replace(place, value=outcome.value, release=outcome.release)
    again = propose_golden(settled, evidence, size_headroom=headroom, relabel=to_release)
    assert isinstance(again, str), again


def test_a_bench_is_no_newest_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(project, "run-1", dispatches=30)
    _run(project, "run-2")
    builder = JournalBuilder(run="bench-3")
    builder.begin(kind="bench")
    bench = builder.write(project / "runs" / "bench-3")
    os.utime(bench / "journal.jsonl", (3, 3))
    assert _update() is ExitCode.OK
    assert '"golden_dispatch": {"cpu": 20' in capsys.readouterr().out
    assert _update(last=2) is ExitCode.OK
    assert "2 runs (run-1 … run-2)" in capsys.readouterr().err


@pytest.mark.parametrize("time", [0.0, -1.0])
def test_times_that_cannot_be_are_proposed_by_nobody(
    project: Path, capsys: pytest.CaptureFixture[str], time: float
) -> None:
    _run(project, "run-1", times=(time, time))
    _update()
    captured = capsys.readouterr()
    assert '"golden_time_ms"' not in "".join(line for line in captured.out.splitlines() if line[:1] in "+-")
    assert f"its benchmark reports {time:g} ms, which is impossible" in captured.err
    assert '"cpu": 20' in captured.out


def test_a_byte_order_mark_stays(project: Path) -> None:
    marked = b"\xef\xbb\xbf" + _SPEC.encode()
    (project / _FILE).write_bytes(marked)
    _run(project, "run-1")
    _update(output="goldens.patch")
    apply_diff(project, (project / "goldens.patch").read_text(encoding="utf-8"))
    patched = (project / _FILE).read_bytes()
    (project / _FILE).write_bytes(marked)
    _update(write=True)
    assert (
        (project / _FILE).read_bytes()
        == patched
        == marked.replace(b"2.50}", b"3.1}").replace(b'{"cpu": 19', b'{"cpu": 20')
    )


def test_a_spec_that_cannot_be_read_is_named(project: Path) -> None:
    _run(project, "run-1")
    (project / _FILE).write_text(_SPEC.replace('"golden_dispatch"', '"golden_dispatch" 1,'))
    with pytest.raises(SpecError, match=re.escape(_FILE)):
        update(SelectionRequest(model=("toy",)), parse_request(GoldenUpdateRequest, {}))
    with pytest.raises(GauntletError, match=re.escape(_FILE)):
        _update()


def test_an_outlier_is_left_out_and_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, time in enumerate((0.4, 0.4, 0.004, 0.4, 0.4, 0.4), start=1):
        _run(project, f"run-{number}", times=(time, time))
    _update(last=6)
    captured = capsys.readouterr()
    assert '"golden_time_ms": {"desk": 0.4}' in captured.out
    assert "mean 0.4 ms (runs 0.4 … 0.4)" in captured.err
    assert "; left out as an outlier: 0.004 ms (run-3)" in captured.err


def test_an_outlier_does_not_hide_that_a_golden_is_wrong(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, time in enumerate((2.0, 2.1, 4.0, 2.1, 2.0), start=1):
        _run(project, f"run-{number}", times=(time, time))
    _update(last=5)
    assert '"golden_time_ms": {"desk": 2.05}' in capsys.readouterr().out


def test_two_runs_that_disagree_give_no_golden(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, time in enumerate((0.4, 0.004), start=1):
        _run(project, f"run-{number}", times=(time, time))
    _update(last=2)
    captured = capsys.readouterr()
    assert '"desk": 0' not in captured.out
    assert "the runs disagree: 0.004 … 0.4 ms; more runs show what is usual" in captured.err


def test_an_outlier_among_the_repetitions_of_one_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(project, "run-1", times=(0.4, 0.4, 0.4, 0.4, 0.4, 0.8))
    _update()
    assert '"golden_time_ms": {"desk": 0.467}' in capsys.readouterr().out, "slow ones belong to the mean"
    _run(project, "run-2", times=(0.4, 0.4, 0.4, 0.4, 0.4, 0.004))
    _update()
    captured = capsys.readouterr()
    assert '"golden_time_ms": {"desk": 0.4}' in captured.out
    assert "; left out as an outlier: 0.004 ms" in captured.err
