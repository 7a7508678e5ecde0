"""The process of one run on a worker: plans the same run in its own folders, and does the steps that it is given.

Or that of a comparison, which takes rounds. Standard input has a line for each message, standard output likewise; the
first line of each is the run and what came of planning it. It ends when its input does, and all that it has started
with it: a worker that dies takes it along.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from iree_gauntlet.cluster.health import DeviceHealth
from iree_gauntlet.cluster.run_steps import HereSteps, RoundsPart, RunPart, opened_here
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.compare import compare_settings

if TYPE_CHECKING:
    from iree_gauntlet.cluster.link import Order
    from iree_gauntlet.cluster.run_order import RunOrder


class _Output:
    """Standard output, a line at a time, until it is closed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._mutex = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Nobody is to read what comes from now on."""
        with self._mutex:
            self._closed = True

    def write(self, message: dict[str, Any]) -> None:
        """Write a message; who read it may be gone, which standard input says too."""
        line = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        with self._mutex:
            if self._closed:
                return
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (BrokenPipeError, ValueError):
                return


class _Part(Protocol):
    """What is done of a run here."""

    def do(self, order: Order) -> dict[str, Any]:
        """The answer to an order."""

    def rest(self) -> None:
        """Nothing is to be done for now."""

    def abort(self) -> None:
        """Ends what is under way."""


def _part_of(order: RunOrder, stack: ExitStack) -> tuple[_Part, dict[str, str]]:
    """Takes part in a run, until the stack is left; the devices that it does without come along, with the reasons.

    Raises:
        GauntletError: it cannot.
    """
    runs = [stack.enter_context(opened_here(shared)) for shared in order.runs]
    renamed = dict(order.places)
    for shared, run in zip(order.runs, runs, strict=True):
        renamed |= shared.renamed_from(run.session.folder, run.machine)
    health, unfit = DeviceHealth.of(runs[0], order.devices)
    if order.comparison is None:
        return RunPart(runs[0], health, renamed), unfit
    settings = compare_settings(order.comparison, order.runs[0].request.conduct, here=True)
    sides = (HereSteps(runs[0]), HereSteps(runs[1]))
    return RoundsPart(sides, settings, health, renamed, Path(order.folder)), unfit


def main() -> None:
    """Takes part in a run until standard input ends."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    # What anything here prints goes to the log.
    os.dup2(2, 1)
    output = _Output(stream)
    lines = sys.stdin.buffer
    order: RunOrder = _read(lines.readline())
    # Steps that are under way when the input ends are cancelled by the session, and are waited for.
    with ExitStack() as stack:
        try:
            part, unfit = _part_of(order, stack)
        except GauntletError as error:
            output.write({"refused": error.on_one_line})
            return
        output.write({"ready": True, "unfit": unfit})
        jobs = order.runs[0].request.conduct.jobs
        pool = stack.enter_context(ThreadPoolExecutor(jobs, thread_name_prefix="step"))

        def answer(number: int, message: Order) -> None:
            try:
                said = part.do(message)
            except BaseException as error:
                # A defect of ours: whoever asked is not left waiting, and the log has the rest.
                output.write({"answer": number, "broken": f"{type(error).__name__}: {error}"})
                traceback.print_exc()
                raise
            part.rest()
            output.write({"answer": number, **said})

        try:
            while line := lines.readline():
                number, message = _read(line)
                pool.submit(answer, number, message)
        finally:
            # What is cut short has no result.
            output.close()
            part.abort()


def _read(line: bytes) -> Any:
    # From the worker alone, which has it from the run: both may have anything done here.
    return pickle.loads(base64.b64decode(line))  # noqa: S301


if __name__ == "__main__":
    main()
