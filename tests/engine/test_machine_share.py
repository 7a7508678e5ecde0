"""The machine's shared lock: taken once for many small steps, and released for waiting processes."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.engine.rounds.machine_lock import LockFolder, MachineLocks, MachineShare
from iree_gauntlet.errors import GauntletError
from tests.support.clocks import Clock
from tests.support.command_line import LIMIT_SECONDS
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class CountingLocks(MachineLocks):
    """Locks that count how often the machine was asked for."""

    asked = 0

    @contextmanager
    def quiet_machine(self, *, exclusive: bool, on_wait: Callable[[str], None]) -> Iterator[None]:
        self.asked += 1
        with super().quiet_machine(exclusive=exclusive, on_wait=on_wait):
            yield


@pytest.fixture
def locks(tmp_path: Path) -> CountingLocks:
    return CountingLocks(LockFolder(tmp_path / "locks"), patience=LIMIT_SECONDS, cancelled=threading.Event())


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stretch(locks: CountingLocks, clock: Clock) -> Iterator[MachineShare]:
    held = MachineShare(locks, pytest.fail, seconds=1.0, clock=clock)
    yield held
    held.release()


def is_held(locks: CountingLocks, tmp_path: Path) -> bool:
    """Whether a benchmark of another run would have to wait."""
    other = MachineLocks(LockFolder(tmp_path / "locks"), patience=0.0, cancelled=threading.Event())
    try:
        with other.quiet_machine(exclusive=True, on_wait=lambda _: None):
            return False
    except GauntletError:
        return True


def test_steps_ask_once_until_the_stretch_is_old(stretch: MachineShare, locks: CountingLocks, clock: Clock) -> None:
    for _ in range(100):
        with stretch.hold():
            pass
    assert locks.asked == 1
    clock.now += 1.0
    with stretch.hold(), stretch.hold():
        pass
    assert locks.asked == 2


def test_it_is_held_between_steps_until_release(stretch: MachineShare, locks: CountingLocks, tmp_path: Path) -> None:
    with stretch.hold():
        assert is_held(locks, tmp_path)
        stretch.release()
        assert is_held(locks, tmp_path)
    assert is_held(locks, tmp_path)
    stretch.release()
    assert not is_held(locks, tmp_path)
    stretch.release()


def test_an_old_stretch_ends_with_its_last_step(
    stretch: MachineShare, locks: CountingLocks, clock: Clock, tmp_path: Path
) -> None:
    with stretch.hold():
        clock.now += 1.0
        with stretch.hold():
            assert locks.asked == 2
        stretch.release()
        assert is_held(locks, tmp_path)
    assert not is_held(locks, tmp_path)


def test_a_step_that_fails_lets_go_like_any_other(stretch: MachineShare, locks: CountingLocks, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), stretch.hold():
        raise RuntimeError
    stretch.release()
    assert not is_held(locks, tmp_path)


def test_a_benchmark_of_another_run_gets_its_turn_among_endless_small_steps(
    locks: CountingLocks, clock: Clock, tmp_path: Path
) -> None:
    over, waiting, alone = threading.Event(), threading.Event(), threading.Event()
    turned_away: list[str] = []
    during: list[int] = []
    stretch = MachineShare(locks, turned_away.append, seconds=1.0, clock=clock)
    other = MachineLocks(LockFolder(tmp_path / "locks"), patience=LIMIT_SECONDS, cancelled=threading.Event())
    steps = [0, 0]

    def small_steps(number: int) -> None:
        while not over.is_set():
            with stretch.hold():
                steps[number] += 1
                during.extend([number] * alone.is_set())
        stretch.release()

    def benchmark() -> None:
        with other.quiet_machine(exclusive=True, on_wait=lambda _: waiting.set()):
            alone.set()
            # Both come to the gate, and no further.
            wait_until(lambda: len(turned_away) >= 2)
            alone.clear()

    def more_steps() -> None:
        before = list(steps)
        wait_until(lambda: all(step > first for step, first in zip(steps, before, strict=True)))

    threads = [threading.Thread(target=small_steps, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        more_steps()
        measured = threading.Thread(target=benchmark)
        measured.start()
        assert waiting.wait(LIMIT_SECONDS)
        # A stretch that is young continues while one waits, and an old one ends.
        more_steps()
        turned_away.clear()
        clock.now += 1.0
        measured.join()
        more_steps()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert during == []
