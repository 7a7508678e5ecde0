from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.journal_events import (
    EndEvent,
    ExperimentKind,
    MachineInfo,
    RunOpening,
    RunShard,
    RunTarget,
    ToolchainInfo,
)
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal, read_kind
from iree_gauntlet.records.event_log import EventLog, Journal
from iree_gauntlet.records.matrix_outcome import MATRIX, MatrixOpening, MatrixResult
from iree_gauntlet.results import Result, StepStatistics
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import CacheLookup, Command, Step
from tests.support.command_line import LIMIT_SECONDS
from tests.support.places import ROOT
from tests.support.processes import wait_until

NOW = datetime(2026, 11, 21, 7, 18, 0, 123_456, tzinfo=timezone(timedelta(hours=2)))
PASSED = Result(Verdict.PASSED)


def a_step(name: str, **changes: Any) -> Step:
    said: dict[str, Any] = {"dialect": "d", "model": "m", "submodel": "s", "target": "cpu", "sku": "", "folder": "f"}
    said |= {"stage": Stage.COMPILE, "timeout": 1.5, "origin": Origin("spec.json", "field")}
    return Step(id=name, chain="m/s@cpu", **said, **changes)


STEPS = (a_step("a"), a_step("b"))


def clock() -> datetime:
    return NOW


def write_run(path: Path) -> None:
    with Journal(path, clock) as journal:
        journal.write_opening(RunOpening(name="r"), STEPS)
        for step in ("a", "b"):
            journal.write_start(step)
            journal.write_result(step, Result(Verdict.PASSED, "ünï\n\u2028"))
        journal.write_end(exit_code=0, seconds=1.5, interrupted=False)


def test_ctrl_c_before_anything_is_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupt)
    path = tmp_path / "journal.jsonl"
    with Journal(path, clock) as journal:
        journal.write_opening(RunOpening(name="r"), STEPS)
        with pytest.raises(KeyboardInterrupt):
            journal.write_start("a")
    assert read_journal(path).starts == {"a": "2026-11-21T05:18:00.123Z"}


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_run(path)
    record = read_journal(path)
    assert record.path == path
    assert record.planned == STEPS
    assert (record.run.name, record.run.time) == ("r", "2026-11-21T05:18:00.123Z")
    assert record.starts == {"a": "2026-11-21T05:18:00.123Z", "b": "2026-11-21T05:18:00.123Z"}
    assert record.results["a"].reason == "ünï\n\u2028"
    assert record.end == EndEvent(record.starts["a"], ExitCode.OK, 1.5)
    assert not record.torn
    assert datetime.fromisoformat(record.starts["a"]) == NOW.replace(microsecond=123_000).astimezone(UTC)
    assert path.read_bytes().isascii()


def test_cut_at_every_byte_reads_and_invents_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_run(path)
    whole = path.read_bytes()
    full = read_journal(path)
    ends = [index for index, byte in enumerate(whole) if byte == 10]
    cut = tmp_path / "cut.jsonl"
    for size in range(len(whole) + 1):
        cut.write_bytes(whole[:size])
        record = read_journal(cut)
        assert all(full.results[step] == result for step, result in record.results.items())
        assert record.torn == (size > 0 and size - 1 not in ends)
        lines = sum(end < size for end in ends)
        assert len(record.results) == (lines >= 3) + (lines >= 5)
        assert (record.end is not None) == (lines >= 6)


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.stress)])
def test_resume_after_any_cut_starts_on_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    # What is tested is what stands in the file: nothing need be brought to the disk a thousand times over.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    path = tmp_path / "journal.jsonl"
    write_run(path)
    whole = path.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    # Each time, the cuts beside the ends of lines are among them.
    for size in sorted({*range(0, len(whole) + 1, stride), *(end + step for end in ends for step in (-1, 0, 1))}):
        path.write_bytes(whole[:size])
        before = read_journal(path)
        with Journal(path, clock) as journal:
            journal.write_opening(RunOpening(resumed=True), (*STEPS, a_step("c")))
            journal.write_result("c", Result(Verdict.FAILED))
        after = read_journal(path)
        assert {*before.results, "c"} <= {*after.results}
        assert after.end is None
        assert len(after.steps) == 3
        assert len(after.runs) >= len(before.runs) + 1


def test_killed_in_the_first_line_of_a_resume_it_reads_as_before(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_run(path)
    before = path.read_bytes()[:-9]
    path.write_bytes(before)
    known = read_journal(path)
    path.write_bytes(before + b"\n" + before[:40])
    assert read_journal(path) == known


def test_what_is_started_again_has_no_result_until_then(tmp_path: Path) -> None:
    with EventLog(tmp_path / JOURNAL, clock) as log:
        log.write("opening", MatrixOpening(irees=()))
        for label in "ab":
            log.write("start", {}, step=label)
            log.write("result", MatrixResult(exit_code=ExitCode.ERROR, error="gone"), step=label)
        log.write("opening", MatrixOpening(irees=(), resumed=True))
        log.write("start", {}, step="b")
    assert set(MATRIX.read(tmp_path).collect_results(MatrixResult)) == {"a"}


def test_a_journal_of_another_kind_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "opening", "kind": "matrix", "irees": []}\n')
    with pytest.raises(GauntletError, match=r"journal\.jsonl: describes a matrix, not a run"):
        read_journal(path)


def test_broken_line_in_the_middle_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    write_run(path)
    lines = path.read_bytes().split(b"\n")
    for broken in (b"garbage", b"[1]", b'{"event":"result"', b'{"event":"result","x":NaN}', b"\xff\xfe", b"[" * 9999):
        path.write_bytes(b"\n".join([lines[0], broken, *lines[1:]]))
        with pytest.raises(GauntletError, match=r"journal\.jsonl:2:"):
            read_journal(path)
    path.write_bytes(lines[0] + b'\n{"event":"result"}\n')
    with pytest.raises(GauntletError, match=r"journal\.jsonl:2: the result event cannot be read: step: expected text"):
        read_journal(path)
    path.write_bytes(b'{"event":"opening","kind":"run","steps":3}\n')
    with pytest.raises(
        GauntletError, match=r"journal\.jsonl:1: the opening event cannot be read: steps: expected a list, found 3"
    ):
        read_journal(path)


def test_unknown_events_are_left_out_and_the_last_result_wins(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, clock) as journal:
        journal.write_opening(RunOpening(), ())
        journal.write_result("a", Result(Verdict.FAILED))
        journal.write("weather", {"sun": True})
        journal.write_result("a", PASSED)
    record = read_journal(path)
    assert record.results["a"].verdict == "passed"
    assert record.end is None


def test_missing_journal_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(GauntletError, match="no journal") as caught:
        read_journal(tmp_path / "none")
    assert caught.value.hint
    with pytest.raises(GauntletError, match="cannot read"):
        read_journal(tmp_path)
    (tmp_path / "empty").touch()
    assert read_journal(tmp_path / "empty") == JournalRecord(tmp_path / "empty")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, Path()])
def test_what_is_no_strict_json_writes_nothing(tmp_path: Path, value: object) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, clock) as journal:
        with pytest.raises((ValueError, TypeError)):
            journal.write_result("a", Result(Verdict.PASSED, statistics={"x": value}))
        assert path.read_bytes() == b""


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, clock), pytest.raises(GauntletError, match=f"being written by process {os.getpid()}"):
        Journal(path, clock)
    with Journal(path, clock):
        pass


def test_lock_dies_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    script = (
        "import sys; from pathlib import Path; from datetime import datetime, UTC\n"
        "from iree_gauntlet.records.event_log import Journal\n"
        "j = Journal(Path(sys.argv[1]), lambda: datetime.now(UTC))\n"
        "print('held', flush=True); sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(GauntletError, match=f"process {process.pid}"):
            Journal(path, clock)
        process.kill()
    with Journal(path, clock) as journal:
        journal.write_opening(RunOpening(), ())


def test_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.jsonl"
    write = os.write
    calls = 0

    def fails_halfway(descriptor: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return write(descriptor, data[:10])
        raise OSError(28, "No space left on device")

    with Journal(path, clock) as journal:
        journal.write_opening(RunOpening(), STEPS)
        before = path.read_bytes()
        monkeypatch.setattr(os, "write", fails_halfway)
        with pytest.raises(GauntletError, match="No space left"):
            journal.write_result("a", PASSED)
        monkeypatch.undo()
        assert path.read_bytes() == before
        journal.write_result("b", PASSED)
    assert set(read_journal(path).results) == {"b"}


def test_unwritable_place_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(GauntletError, match=r"cannot write journal\.jsonl"):
        Journal(tmp_path / "none" / "journal.jsonl", clock)


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, clock) as journal:
        journal.write_opening(RunOpening(), ())

        def work(name: str) -> None:
            for number in range(20):
                journal.write_start(f"{name}{number}")

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read_journal(path).starts) == 80


def test_closed_journal_refuses(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", clock)
    journal.close()
    journal.close()
    with pytest.raises(RuntimeError):
        journal.write_start("a")


def test_results_of_many_small_steps_share_a_sync_and_a_long_one_waits_for_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    syncs: list[str] = []
    busy, go = threading.Event(), threading.Event()
    sync, own = os.fsync, threading.current_thread()

    def slow(descriptor: int) -> None:
        """A disk that is busy with what the journal's thread brings it until the test lets it go on."""
        if threading.current_thread() is not own:
            busy.set()
            assert go.wait(LIMIT_SECONDS)
        sync(descriptor)
        syncs.append("own" if threading.current_thread() is own else "thread")

    with Journal(path, clock) as journal:
        monkeypatch.setattr(os, "fsync", slow)
        journal.write_opening(RunOpening(), ())
        assert syncs == ["own"]
        for number in range(300):
            journal.write_start(str(number))
            journal.write_result(str(number), Result(Verdict.PASSED, seconds=0.001))
            if number == 0:
                assert busy.wait(LIMIT_SECONDS)
        assert syncs == ["own"]
        go.set()
        wait_until(lambda: len(syncs) == 3)
        assert syncs == ["own", "thread", "thread"]
        journal.write_result("long", Result(Verdict.PASSED, seconds=1.0))
        assert syncs == ["own", "thread", "thread", "own"]
    assert len(read_journal(path).results) == 301


def test_a_result_is_with_the_kernel_and_a_start_soon(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, clock) as journal:
        journal.write_start("a")
        journal.write_result("a", PASSED)
        record = read_journal(path)
        assert list(record.starts) == list(record.results) == ["a"]
        journal.write_start("b")
        wait_until(lambda: "b" in read_journal(path).starts)
        journal.write_start("c")
    assert list(read_journal(path).starts) == ["a", "b", "c"]


def test_what_was_reported_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    script = (
        "import os, signal, sys; from pathlib import Path; from datetime import datetime, UTC\n"
        "from iree_gauntlet.cases import Verdict; from iree_gauntlet.results import Result\n"
        "from iree_gauntlet.records.event_log import Journal\n"
        "from iree_gauntlet.journal_events import RunOpening\n"
        "j = Journal(Path(sys.argv[1]), lambda: datetime.now(UTC))\n"
        "j.write_opening(RunOpening(), ())\n"
        "for n in range(50): j.write_start(str(n)); j.write_result(str(n), Result(Verdict.PASSED))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script, str(path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(read_journal(path).results) == 50


@pytest.mark.parametrize("closed", [False, True])
def test_a_disk_that_fails_to_sync_is_told_to_the_next_who_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    def fails(_descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    journal = Journal(tmp_path / "journal.jsonl", clock)
    monkeypatch.setattr(os, "fsync", fails)
    journal.write_result("a", PASSED)
    if not closed:
        wait_until(lambda: journal._failure)
        with pytest.raises(GauntletError, match="Input/output error"):
            journal.write_result("b", PASSED)
    with pytest.raises(GauntletError, match="Input/output error"):
        journal.close()
    journal.close()


def test_a_step_is_written_as_it_is(tmp_path: Path) -> None:
    step = a_step(
        "m/s@cpu:compile",
        command=Command(("iree-compile", "m.mlir"), "f", (("A", "b"),)),
        cache=CacheLookup("key", ingredients=(("flags", "--x"),)),
    )
    path = tmp_path / "journal.jsonl"
    with Journal(path, clock) as journal:
        journal.write_opening(RunOpening(), (step,))
    record = read_journal(path)
    assert list(record.steps) == json.loads(json.dumps([asdict(step)]))
    assert record.planned == (step,)


def test_a_step_that_is_none_names_the_version_that_wrote_it(tmp_path: Path) -> None:
    record = JournalRecord(tmp_path / "journal.jsonl", runs=(RunOpening(version="0.9"),), steps=({"id": "a"},))
    with pytest.raises(
        GauntletError, match=r"a step cannot be read: chain: is missing\n  It was written by version 0.9"
    ):
        _ = record.planned


def test_a_run_event_is_read_as_it_was_written_and_says_no_more_than_it_knows(tmp_path: Path) -> None:
    event = RunOpening(
        kind=ExperimentKind.MICRO,
        name="r",
        target=(RunTarget("cpu", "mi300"),),
        toolchain=ToolchainInfo("3.13.0", identity="c0ffee"),
        machine=MachineInfo("host", cores=2),
        shard=RunShard(1, 2, "cut", 5),
        micro={"points": ["a"]},
    )
    path = tmp_path / "journal.jsonl"
    with Journal(path, clock) as journal:
        journal.write_opening(RunOpening(), ())
        journal.write_opening(event, ())
    bare, full = (json.loads(line) for line in path.read_text().splitlines())
    assert {"kept", "lock_folder", "machine", "merged", "micro", "remarks", "shard"}.isdisjoint(bare)
    assert (bare["kind"], bare["toolchain"]) == ("run", {})
    assert full["machine"] == {"host": "host", "cores": 2}
    assert read_journal(path).run == replace(event, time="2026-11-21T05:18:00.123Z")
    assert read_kind(path) is ExperimentKind.RUN


def test_a_run_event_of_another_version_names_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"event": "opening", "kind": "run", "steps": []}\n{"event": "end", "seconds": {}}\n')
    with pytest.raises(
        GauntletError, match=r"journal.jsonl:2: the end event cannot be read: seconds: expected a number"
    ) as caught:
        read_journal(path)
    assert "version unknown" in caught.value.hint


_INTEGERS = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | _INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


# Statistics that the toolkit reads have types: hypothesis tries names that the code under test contains.
_TYPED_NAMES = {*StepStatistics.__dataclass_fields__, *(figure.row.statistic for figure in Figure)}
_FREE_NAMES = st.text().filter(lambda name: name not in _TYPED_NAMES)


@given(fields=st.dictionaries(_FREE_NAMES, JSON, max_size=4))
def test_any_json_comes_back(tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    with mock.patch("os.fsync"), Journal(path, clock) as journal:
        journal.write_result("s", Result(Verdict.PASSED, statistics=fields))
    assert read_journal(path).results["s"].statistics == json.loads(json.dumps(fields))


def test_steps_that_a_run_learns_of_on_the_way_are_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, lambda: datetime.now(UTC)) as journal:
        journal.write_opening(RunOpening(), (a_step("old"),))
        journal.write_opening(RunOpening(), (a_step("a"),))
        journal.write_steps((a_step("b"), a_step("c")))
    assert [step.id for step in read_journal(path).planned] == ["a", "b", "c"]
    path.write_text('{"event": "opening", "kind": "run", "steps": []}\n{"event": "steps"}\n')
    with pytest.raises(GauntletError, match=r"journal.jsonl:2: the steps event cannot be read: steps: is missing"):
        read_journal(path)
