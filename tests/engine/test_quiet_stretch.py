"""The machine's shared lock, taken once for many small steps, and let go of for those who wait."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.running.machine_lock import LockFolder, MachineLocks
from iree_gauntlet.running.quiet_stretch import QuietStretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Counted(MachineLocks):
    """Locks that count how often the machine was asked for."""

    asked = 0

    @contextmanager
    def quiet_machine(self, *, exclusive: bool, on_wait: Callable[[str], None]) -> Iterator[None]:
        self.asked += 1
        with super().quiet_machine(exclusive=exclusive, on_wait=on_wait):
            yield


@pytest.fixture
def locks(tmp_path: Path) -> Counted:
    return Counted(LockFolder(tmp_path / "locks"), patience=10.0, cancelled=threading.Event())


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def stretch(locks: Counted, now: list[float]) -> Iterator[QuietStretch]:
    held = QuietStretch(locks, pytest.fail, seconds=1.0, clock=lambda: now[0])
    yield held
    held.rest()


def is_held(locks: Counted, tmp_path: Path) -> bool:
    """Whether a benchmark of another run would have to wait."""
    other = MachineLocks(LockFolder(tmp_path / "locks"), patience=0.0, cancelled=threading.Event())
    try:
        with other.quiet_machine(exclusive=True, on_wait=lambda _: None):
            return False
    except GauntletError:
        return True


def test_many_steps_ask_once_until_the_stretch_is_old(stretch: QuietStretch, locks: Counted, now: list[float]) -> None:
    for _ in range(100):
        with stretch.held():
            pass
    assert locks.asked == 1
    now[0] += 1.0
    with stretch.held(), stretch.held():
        pass
    assert locks.asked == 2


def test_it_is_held_between_steps_and_not_in_a_rest(stretch: QuietStretch, locks: Counted, tmp_path: Path) -> None:
    with stretch.held():
        assert is_held(locks, tmp_path)
        stretch.rest()
        assert is_held(locks, tmp_path)
    assert is_held(locks, tmp_path)
    stretch.rest()
    assert not is_held(locks, tmp_path)
    stretch.rest()


def test_an_old_stretch_ends_with_its_last_step(
    stretch: QuietStretch, locks: Counted, now: list[float], tmp_path: Path
) -> None:
    with stretch.held():
        now[0] += 1.0
        with stretch.held():
            assert locks.asked == 2
        stretch.rest()
        assert is_held(locks, tmp_path)
    assert not is_held(locks, tmp_path)


def test_a_step_that_fails_lets_go_like_any_other(stretch: QuietStretch, locks: Counted, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), stretch.held():
        raise RuntimeError
    stretch.rest()
    assert not is_held(locks, tmp_path)


def test_a_benchmark_of_another_run_gets_its_turn_among_endless_small_steps(tmp_path: Path) -> None:
    over = threading.Event()

    def locks() -> MachineLocks:
        return MachineLocks(LockFolder(tmp_path / "locks"), patience=30.0, cancelled=threading.Event())

    stretch = QuietStretch(locks(), lambda _: None, seconds=0.05)
    steps = [0, 0]

    def work(number: int) -> None:
        while not over.is_set():
            with stretch.held():
                steps[number] += 1
                time.sleep(0.001)
        stretch.rest()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(0.1)
        began = time.monotonic()
        with locks().quiet_machine(exclusive=True, on_wait=lambda _: None):
            waited = time.monotonic() - began
            before = list(steps)
            time.sleep(0.05)
            assert steps == before
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert waited < 5
