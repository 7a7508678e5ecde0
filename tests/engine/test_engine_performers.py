"""Performers, which execute steps in place of the engine, and the facts that the engine gives them."""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.engine.modules.module_cache import ModuleCache
from iree_gauntlet.engine.rounds.machine_lock import LockFolder, MachineLocks
from iree_gauntlet.engine.workbench import Workbench
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.journal_events import RunOpening
from iree_gauntlet.journal_format import JournalRecord, read_journal
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.reports.live_progress import format_finished_step
from iree_gauntlet.results import CacheUse, Result
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import CacheLookup, Command, Resources, Step, StepInput
from iree_gauntlet.toolchains.flags import NO_FLAGS
from tests.support.clocks import Clock
from tests.support.command_line import LIMIT_SECONDS
from tests.support.iree_source import make_toolchain_place
from tests.support.sessions import open_session
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

STEP = make_step(Stage.THRESHOLD, dialect="op_tests")


class Kept(Progress):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.started: list[Step] = []
        self.finished: list[tuple[Step, Result]] = []

    def step_started(self, step: Step, worker: str = "") -> None:
        del worker
        self.started.append(step)

    def step_finished(self, step: Step, result: Result) -> None:
        self.finished.append((step, result))

    def waiting(self, text: str) -> None:
        pytest.fail(text)


def performed(
    tmp_path: Path,
    steps: Sequence[Step],
    performers: Mapping[Stage, Callable[[Step], Result]],
    *,
    jobs: int = 2,
    memory: Callable[[], int | None] = lambda: 64 << 30,
) -> tuple[ExitCode, Kept, JournalRecord]:
    kept, cache = Kept(), tmp_path / "cache"
    store, modules = ArtifactStore(cache, Registry()), ModuleCache(cache)
    bench = Workbench(None, None, NO_FLAGS, cache, store, modules, None, make_toolchain_place(cache))
    options = RunOptions(jobs=jobs, fail_fast=False, rebuilt_marks_dir=None, allow_xpass=False, all_goldens=False)
    with (
        Journal(tmp_path / "journal.jsonl", lambda: datetime.now(UTC)) as journal,
        open_session(tmp_path, journal, kept) as session,
    ):
        journal.write_opening(RunOpening(), steps)
        engine = Engine(session, bench, options, performers, memory)
        with engine.record_end() as done:
            done.verdicts = engine.perform(steps, {})
        locks = session.locks
    with locks.quiet_machine(exclusive=True, on_wait=pytest.fail):
        pass
    return done.code, kept, read_journal(tmp_path / "journal.jsonl")


def test_a_performer_executes_the_steps_of_its_stage_and_the_engine_others(tmp_path: Path) -> None:
    fetch = replace(STEP, id="m/s@cpu:fetch", stage=Stage.FETCH, resources=Resources(0))

    def passes(_step: Step) -> Result:
        return Result(Verdict.PASSED, notes=("served",))

    code, kept, record = performed(tmp_path, [fetch, STEP], {Stage.THRESHOLD: passes})
    assert code is ExitCode.OK
    assert record.results[fetch.id].cache == CacheUse(True, reason="all files present")
    assert record.results[STEP.id].notes == ("served",)
    assert record.results[STEP.id].seconds > 0
    assert STEP in kept.started
    assert {result.verdict for _, result in kept.finished} == {"passed"}
    assert not (tmp_path / "steps").exists()


def test_a_failure_for_want_of_an_input_is_no_failure_of_the_tool(tmp_path: Path) -> None:
    needy = replace(
        STEP,
        command=Command(("iree-run-module",), "/"),
        inputs=(StepInput("module", str(tmp_path / "gone.vmfb")),),
        expect_failure="known",
    )

    def fails(_step: Step) -> Result:
        return Result(Verdict.FAILED, "no such file", command="iree-run-module", log="steps/stderr.txt")

    code, _, record = performed(tmp_path, [needy], {Stage.THRESHOLD: fails})
    result = record.results[STEP.id]
    assert code is ExitCode.ERROR
    assert result.verdict == "error"
    assert result.reason.startswith(f"{tmp_path}/gone.vmfb no longer exists")
    assert result.log == "steps/stderr.txt"


def test_a_count_waits_for_no_benchmark_and_keeps_none_waiting(tmp_path: Path) -> None:
    count = replace(STEP, id="m/s@cpu:count", stage=Stage.COUNT)
    other = MachineLocks(LockFolder(tmp_path / "locks"), patience=0.0, cancelled=threading.Event())

    def counts(_step: Step) -> Result:
        with other.quiet_machine(exclusive=True, on_wait=pytest.fail):
            return Result(Verdict.PASSED)

    code, _, _ = performed(tmp_path, [count], {Stage.COUNT: counts})
    assert code is ExitCode.OK


def test_exclusive_steps_have_the_machine_alone_after_small_ones(tmp_path: Path) -> None:
    """The lock that is kept between small steps must not be in the way of the run's own benchmark."""
    small = [replace(STEP, id=f"m/{number}@cpu:threshold") for number in range(20)]
    alone = replace(STEP, id="m/b@cpu:benchmark", stage=Stage.BENCHMARK, resources=Resources(1, exclusive=True))
    other = MachineLocks(LockFolder(tmp_path / "locks"), patience=0.0, cancelled=threading.Event())

    def busy(_step: Step) -> Result:
        with pytest.raises(GauntletError), other.quiet_machine(exclusive=True, on_wait=lambda _: None):
            pytest.fail("not held")
        return Result(Verdict.PASSED)

    def quiet(_step: Step) -> Result:
        with pytest.raises(GauntletError), other.quiet_machine(exclusive=False, on_wait=lambda _: None):
            pytest.fail("not held alone")
        return Result(Verdict.PASSED)

    # One job: a lock that two threads pass to each other can be waited for.
    code, _, _ = performed(tmp_path, [*small, alone], {Stage.THRESHOLD: busy, Stage.BENCHMARK: quiet}, jobs=1)
    assert code is ExitCode.OK


def test_memory_is_not_asked_for_each_of_many_small_steps(tmp_path: Path) -> None:
    asked = 0

    def memory() -> int:
        nonlocal asked
        asked += 1
        return 64 << 30

    steps = [replace(STEP, id=f"m/{number}@cpu:threshold") for number in range(200)]
    code, kept, _ = performed(tmp_path, steps, {Stage.THRESHOLD: lambda _step: Result(Verdict.PASSED)}, memory=memory)
    assert code is ExitCode.OK
    assert len(kept.finished) == 200
    assert asked < 50


@pytest.mark.parametrize("memory", [None, 64 << 30])
def test_memory_that_is_not_known_keeps_no_step_back(tmp_path: Path, memory: int | None) -> None:
    meeting = threading.Barrier(2)

    def meet(_step: Step) -> Result:
        meeting.wait(LIMIT_SECONDS)
        return Result(Verdict.PASSED)

    steps = [replace(STEP, id=f"m/{number}@cpu:threshold") for number in range(2)]
    code, _, _ = performed(tmp_path, steps, {Stage.THRESHOLD: meet}, memory=lambda: memory)
    assert code is ExitCode.OK


def test_chains_whose_modules_are_in_the_cache_fill_the_time_of_compiles(tmp_path: Path) -> None:
    def chain(name: str, *, hit: bool) -> tuple[Step, Step]:
        compile_step = replace(
            STEP, id=f"{name}:compile", chain=name, stage=Stage.COMPILE, cache=CacheLookup("key", hit=hit)
        )
        return compile_step, replace(STEP, id=f"{name}:threshold", chain=name, needs=(compile_step.id,))

    steps = [*chain("kept", hit=True), *chain("new", hit=False)]
    _, kept, _ = performed(
        tmp_path,
        steps,
        {Stage.COMPILE: lambda _: Result(Verdict.PASSED), Stage.THRESHOLD: lambda _: Result(Verdict.PASSED)},
        jobs=1,
    )
    order = [step.id for step in kept.started]
    assert order == ["new:compile", "new:threshold", "kept:compile", "kept:threshold"]


@pytest.mark.parametrize(
    ("lock", "work", "seconds", "waited"), [(20.0, 2.5, 2.0, 20.5), (0.0007, 0.50001, 0.00001, 0.501)]
)
def test_waiting_for_locks_is_no_part_of_a_steps_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: float, work: float, seconds: float, waited: float
) -> None:
    clock = Clock()

    @contextmanager
    def contended(_locks: MachineLocks, **_asked: object) -> Iterator[None]:
        clock.advance(lock)
        yield

    def measured(_step: Step) -> Result:
        clock.advance(work)
        # A part of which it waited itself, for another process.
        return Result(Verdict.PASSED, waited_seconds=0.5)

    monkeypatch.setattr("iree_gauntlet.engine.engine.time", clock)
    monkeypatch.setattr(MachineLocks, "quiet_machine", contended)
    step = replace(STEP, stage=Stage.BENCHMARK, resources=Resources(exclusive=True))
    _, kept, record = performed(tmp_path, [step], {Stage.BENCHMARK: measured})
    result = record.results[STEP.id]
    assert (result.seconds, result.waited_seconds) == (seconds, waited)
    assert format_finished_step(kept.started[0], result, "[1/1]").endswith(" (waited 20.5 s)") == (waited > 1)


def test_a_step_without_room_names_where_it_writes(tmp_path: Path) -> None:
    def copy(step: Step) -> Result:
        raise OSError(errno.ENOSPC, "No space left on device", "/cache/module", None, "/runs/x/module.vmfb")

    step = make_step(Stage.COMPILE, dialect="op_tests")
    code, _, record = performed(tmp_path, [step], {Stage.COMPILE: copy})
    result = record.results[step.id]
    assert (code, result.verdict) == (ExitCode.ERROR, Verdict.ERROR)
    assert result.reason == "/runs/x/module.vmfb: No space left on device"
    assert result.tail == ("Make room there, then resume the run.",)
