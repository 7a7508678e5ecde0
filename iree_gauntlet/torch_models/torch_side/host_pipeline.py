"""A pipeline of three parallel stages: before the device, on the device, after the device.

While a device computes one call, the host prepares the next call and finishes the previous call. The stages are
threads; the stage on the device has a thread for each context. Bounded queues keep stages from running ahead.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_clock = time.perf_counter_ns


class StageError(RuntimeError):
    """A stage's failure, which ends the pipeline; the text names the stage, the cause is the stage's exception."""


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """The times of a loop through the pipeline.

    Attributes:
        total_ns: from the first call's begin in the first stage to the last call's end in the last stage.
        post_ns: the times of the last stage's calls, in the order in which the device finished these calls.
    """

    total_ns: int
    pre_ns: tuple[int, ...]
    device_ns: tuple[tuple[int, ...], ...]
    post_ns: tuple[int, ...]


class _PipelineFailedError(Exception):
    """Another stage's failure, which ends the waiting of this stage."""


class _CallQueue:
    """A bounded queue of calls between two stages, first in, first out."""

    def __init__(self, condition: threading.Condition, failures: Sequence[BaseException], capacity: int) -> None:
        self._condition = condition
        self._failures = failures
        self._capacity = capacity
        self._items: deque[Any] = deque()

    def put(self, items: Sequence[Any]) -> None:
        with self._condition:
            self._wait(lambda: len(self._items) + len(items) <= self._capacity)
            self._items.extend(items)
            self._condition.notify_all()

    def take(self, count: int) -> list[Any]:
        with self._condition:
            self._wait(lambda: len(self._items) >= count)
            items = [self._items.popleft() for _ in range(count)]
            self._condition.notify_all()
            return items

    def _wait(self, ready: Callable[[], bool]) -> None:
        self._condition.wait_for(lambda: self._failures or ready())
        if self._failures:
            raise _PipelineFailedError


class _PipelineRun:
    """One run of a pipeline: its stages, and their times."""

    def __init__(self, groups: int, group: int, contexts: int) -> None:
        self.failures: list[BaseException] = []
        self.condition = threading.Condition()
        self.to_device = _CallQueue(self.condition, self.failures, group * contexts)
        self.to_host = _CallQueue(self.condition, self.failures, group * contexts)
        self.begin_ns = self.end_ns = 0
        self.pre_ns: list[int] = []
        self.device_ns: list[list[int]] = [[] for _ in range(contexts)]
        self.post_ns: list[int] = []
        self._groups = groups
        self._group = group
        self._started_groups = 0

    def prepare(self, pre: Callable[[], Any]) -> None:
        self.begin_ns = _clock()
        for _ in range(self._groups * self._group):
            begin = _clock()
            item = pre()
            self.pre_ns.append(_clock() - begin)
            self.to_device.put([item])

    def compute(self, device: Callable[[list[Any]], Sequence[Any]], context: int) -> None:
        while True:
            with self.condition:
                self._started_groups += 1
                if self._started_groups > self._groups:
                    return
            items = self.to_device.take(self._group)
            begin = _clock()
            outputs = device(items)
            self.device_ns[context].append(_clock() - begin)
            self.to_host.put(outputs)

    def finish(self, post: Callable[[Any], object]) -> None:
        for _ in range(self._groups * self._group):
            [item] = self.to_host.take(1)
            begin = _clock()
            post(item)
            self.post_ns.append(_clock() - begin)
        self.end_ns = _clock()

    def run_guarded(self, name: str, stage: Callable[[], None]) -> None:
        """Run a thread's stage; if it raises an exception, all other stages end."""
        try:
            stage()
        except _PipelineFailedError:
            return
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it again
            failure = error
            if not isinstance(error, StageError):
                failure = StageError(f"{name}: {type(error).__name__}: {error}")
                failure.__cause__ = error
            with self.condition:
                self.failures.append(failure)
                self.condition.notify_all()


def run_pipeline(
    pre: Callable[[], Any],
    devices: Sequence[Callable[[list[Any]], Sequence[Any]]],
    post: Callable[[Any], object],
    groups: int,
    group: int = 1,
) -> PipelineTimes:
    """Send calls through the three stages.

    `pre` returns the device's inputs for one call. `devices` has a function for each context, which computes a group of
    calls; a context that is free takes the next group. `post` takes the outputs of one call.

    Raises:
        StageError: a stage failed. Each other stage has finished its current call and ended.
    """
    run = _PipelineRun(groups, group, len(devices))
    stages: list[tuple[str, Callable[[], None]]] = [
        ("before the device", partial(run.prepare, pre)),
        *(("on the device", partial(run.compute, device, context)) for context, device in enumerate(devices)),
        ("after the device", partial(run.finish, post)),
    ]
    threads = [threading.Thread(target=run.run_guarded, args=stage, daemon=True) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if run.failures:
        raise run.failures[0]
    return PipelineTimes(
        run.end_ns - run.begin_ns, tuple(run.pre_ns), tuple(tuple(times) for times in run.device_ns), tuple(run.post_ns)
    )
