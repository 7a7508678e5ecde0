"""The process of one run on a worker: plans the same run in its own folders, and does the steps that it is given.

Standard input has a line for each message, standard output likewise; the first line of each is the run and what came
of planning it. It ends when its input does, and all that it has started with it: a worker that dies takes it along.
"""

from __future__ import annotations

import base64
import json
import math
import os
import pickle
import re
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.cluster.health import HealthCheck, health_checks
from iree_gauntlet.cluster.offers import LOCAL
from iree_gauntlet.engine.modules.modules import note_made_again
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.performing import Opened, opened
from iree_gauntlet.experiments.run import choose
from iree_gauntlet.progress import Progress
from iree_gauntlet.results import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.cluster.link import Made, Order
    from iree_gauntlet.cluster.offers import DeviceOffer
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.performing import Chosen
    from iree_gauntlet.requests import RunRequest
    from iree_gauntlet.steps import Step
    from iree_gauntlet.toolchains.toolchain import Part, Toolchain


_GOOD = (Verdict.PASSED, Verdict.XPASSED)
# Of files that go back with a result, and of one of them; of a longer one, beginning and end.
_SMALL_FILES = frozenset({".txt", ".json"})
# How long a device is believed.
_CHECK_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Home:
    """What is where, where a run was started: results are to say what is true there.

    Attributes:
        run_dir, cache_dir: of the run.
        compiler, runtime: folders of the tools; empty for none.
        python: the interpreter of the compiler; empty for none.
    """

    run_dir: str
    cache_dir: str
    compiler: str = ""
    runtime: str = ""
    python: str = ""

    @classmethod
    def of(cls, run_dir: Path, cache_dir: Path, toolchain: Toolchain | None) -> Home:
        """What is where on this machine."""
        if toolchain is None:
            return cls(str(run_dir), str(cache_dir))
        compiler, runtime = toolchain.compiler, toolchain.runtime
        tools = str(Path(compiler.compile).parent), str(Path(runtime.run_module).parent)
        return cls(str(run_dir), str(cache_dir), tools[0], tools[1], compiler.python)


@dataclass(frozen=True, slots=True)
class RunOrder:
    """A run that a worker is to take part in.

    Attributes:
        request: what is asked for, with the worker's own folders.
        compiler, runtime: identities of the IREE that the run is about.
        devices: that the worker has.
        home: what is where, where the run was started.
        places: folders here, and what they are there.
    """

    request: RunRequest
    compiler: str
    runtime: str
    devices: tuple[DeviceOffer, ...]
    home: Home
    places: tuple[tuple[str, str], ...]


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


class _Health:
    """Checks devices when they are due.

    Args:
        session: what the run runs in.
        checks: by the device's own name.
    """

    def __init__(self, session: Session[Any], checks: dict[str, HealthCheck]) -> None:
        self._session = session
        self._checks = checks
        # When each was last found right, and as fast as it was.
        self._right = dict.fromkeys(checks, time.monotonic())
        self._fast = dict.fromkeys(checks, -math.inf)

    @classmethod
    def of(cls, run: Opened, order: RunOrder) -> tuple[_Health, dict[str, str]]:
        """The checks of a worker's devices, and what is wrong with those that do not pass, by name."""
        toolchain = run.machine.toolchain
        if toolchain is None or not {Stage.THRESHOLD, Stage.BENCHMARK} & {step.stage for step in run.steps}:
            return cls(run.session, {}), {}
        records = run.machine.cache_dir / "cluster" / "health.json"
        names = {device.uri: device.name for device in order.devices}
        # Nobody's benchmark is to see this.
        with run.session.quiet(exclusive=False):
            checks, unfit = health_checks(order.devices, toolchain, run.session.folder / "health", records)
            unfit |= {names[uri]: why for uri, check in checks.items() if (why := check.wrong())}
        return cls(run.session, checks), unfit

    def due(self, device: str, *, timed: bool) -> str:
        """What is wrong with a device that was not checked for a while; empty for nothing."""
        check, now = self._checks.get(device), time.monotonic()
        if check is None:
            return ""
        if now - self._right[device] > _CHECK_SECONDS:
            with self._session.quiet(exclusive=False):
                wrong = check.wrong()
            if wrong:
                return wrong
            self._right[device] = now
        if not timed or now - self._fast[device] < _CHECK_SECONDS:
            return ""
        with self._session.quiet("" if device.startswith(LOCAL) else device):
            # Twice: one slow answer may be anything's fault.
            slow = check.slow() and check.slow()
        if not slow:
            self._fast[device] = now
        return slow

    def distrust(self, device: str) -> None:
        """A step has crashed or hung on it: it is checked before the next."""
        if device in self._checks:
            self._right[device] = -math.inf


class _Steps:
    """Does steps, after those that they need here.

    Args:
        run: the run.
        health: checks devices.
        renamed: paths here, and what they are where the run was started.
    """

    def __init__(self, run: Opened, health: _Health, renamed: Mapping[str, str]) -> None:
        self._engine = run.engine
        self._health = health
        self._renamed = renamed
        self._run_dir = run.session.folder
        self._store = run.machine.store
        self._steps = {step.id: step for step in run.steps}
        self._locks = {step.id: threading.Lock() for step in run.steps}
        self._done: dict[str, Result] = {}

    def do(self, order: Order) -> dict[str, Any]:
        """The answer to an order."""
        step = self._steps.get(order.step)
        if step is None:
            return {"result": Result(Verdict.ERROR, f"{order.step} is not in this worker's plan").as_dict()}
        try:
            unfit = self._health.due(order.device, timed=step.resources.exclusive)
        except GauntletError as error:
            # The machine was not to be had for it: the step would have fared alike.
            return {"result": Result(Verdict.ERROR, error.what, tail=(error.hint,), notes=step.notes).as_dict()}
        if unfit:
            return {"unfit": unfit}
        step = _on_device(replace(step, goldens=order.goldens), order.device)
        made = {item.step: item for item in order.made}
        missing: tuple[str, ...] = ()
        with self._locks[step.id]:
            obstacle = self._needed(step, made)
            if obstacle is None:
                result = self._done[step.id] = self._engine.result_of(step)
                if step.stage is Stage.FETCH and result.verdict is Verdict.ERROR:
                    missing = self._missing(step)
            else:
                need, found = obstacle
                result = replace(found, verdict=Verdict.ERROR, reason=f"{need.id} failed here: {found.reason}")
                missing = self._missing(need) if need.stage is Stage.FETCH else ()
        if result.crashed or result.timed_out:
            self._health.distrust(order.device)
        return {"result": self._as_at_home(result), "files": self._files(step), "missing": list(missing)}

    def _as_at_home(self, result: Result) -> dict[str, Any]:
        """A result as the journal keeps it, with the paths of where the run was started."""
        said: dict[str, Any] = with_paths(result.as_dict(), self._renamed)
        return said

    def _needed(self, step: Step, made: dict[str, Made]) -> tuple[Step, Result] | None:
        """Does what a step needs and was not done here; what of that failed, or None."""
        for name in step.needs:
            need = self._steps.get(name)
            if need is None:
                continue
            with self._locks[name]:
                done = self._done.get(name)
                if done is None or done.verdict not in _GOOD:
                    if name in made:
                        # It was made for this run, if elsewhere.
                        note_made_again(self._engine.options.made_again, made[name].key)
                    elif (obstacle := self._needed(need, made)) is not None:
                        return obstacle
                    done = self._done[name] = self._engine.result_of(need)
                    if done.verdict not in _GOOD and name in made:
                        # What others have made is not to be had: then with all that it needs.
                        if (obstacle := self._needed(need, {})) is not None:
                            return obstacle
                        done = self._done[name] = self._engine.result_of(need)
            if done.verdict not in _GOOD:
                return need, done
        return None

    def _missing(self, step: Step) -> tuple[str, ...]:
        """URLs of files that are not here."""
        return tuple(item.url for item in step.inputs if not self._store.present(item.url))

    def _files(self, step: Step) -> list[str]:
        folder = Path(step.folder)
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return [
            str(path.relative_to(self._run_dir)) for path in found if path.suffix in _SMALL_FILES and path.is_file()
        ]


def _on_device(step: Step, device: str) -> Step:
    """A step on a device that is called something else here."""
    if not device or device.startswith(LOCAL) or step.command is None:
        return step
    argv = tuple(f"--device={device}" if word.startswith("--device=") else word for word in step.command.argv)
    resources = replace(step.resources, device=device)
    return replace(step, command=replace(step.command, argv=argv), resources=resources)


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
            run = stack.enter_context(opened(_chosen(order.request), Progress()))
            _require_the_same(run.machine.toolchain, order)
            health, unfit = _Health.of(run, order)
        except GauntletError as error:
            output.write({"refused": error.on_one_line})
            return
        output.write({"ready": len(run.steps), "unfit": unfit})
        done = _Steps(
            run, health, _renamed(Home.of(run.session.folder, run.machine.cache_dir, run.machine.toolchain), order)
        )
        pool = stack.enter_context(ThreadPoolExecutor(order.request.conduct.jobs, thread_name_prefix="step"))

        def answer(number: int, message: Order) -> None:
            try:
                said = done.do(message)
            except BaseException as error:
                # A defect of ours: whoever asked is not left waiting, and the log has the rest.
                output.write({"answer": number, "broken": f"{type(error).__name__}: {error}"})
                traceback.print_exc()
                raise
            run.engine.rest()
            output.write({"answer": number, **said})

        try:
            while line := lines.readline():
                number, message = _read(line)
                pool.submit(answer, number, message)
        finally:
            # What is cut short has no result.
            output.close()
            run.engine.abort()


def _chosen(request: RunRequest) -> Chosen:
    """What a run is about; the run that it is held against is where it was started, as are its figures."""
    return replace(choose(replace(request, conduct=replace(request.conduct, baseline=""))), request=request)


def _require_the_same(toolchain: Toolchain | None, order: RunOrder) -> None:
    """Makes sure that the IREE here is the run's.

    Raises:
        GauntletError: it is another.
    """
    wanted = {"compiler": order.compiler, "runtime": order.runtime}
    for name, identity in wanted.items():
        part: Part | None = getattr(toolchain, name) if toolchain else None
        if identity and (part is None or part.identity != identity):
            what = f"its {name} is {part.version if part else 'missing'}, and not the same as the run's"
            raise GauntletError(what, _OTHER)


def _renamed(here: Home, order: RunOrder) -> dict[str, str]:
    """Paths here, and what they are where the run was started."""
    pairs = [*zip(astuple(here), astuple(order.home), strict=True), *order.places]
    return {mine: theirs for mine, theirs in pairs if mine and mine != theirs}


def with_paths(said: Any, renamed: Mapping[str, str]) -> Any:
    """A journal's object with other paths in place of some: whole ones and what lies below them, each replaced once."""
    if isinstance(said, dict):
        return {name: with_paths(value, renamed) for name, value in said.items()}
    if isinstance(said, list | tuple):
        return [with_paths(value, renamed) for value in said]
    if not isinstance(said, str) or not renamed:
        return said
    # Of two that fit, the longer one is meant.
    known = "|".join(re.escape(path) for path in sorted(renamed, key=len, reverse=True))
    # A path begins a word, or follows the scheme of an address: file:///cache/x.
    return re.sub(rf"(?:(?<=://)|(?<![\w./-]))(?:{known})(?![\w.-])", lambda match: renamed[match[0]], said)


_OTHER = "`--iree RELEASE` is installed on each worker; other IREEs have to be there already, and be the same"


def _read(line: bytes) -> Any:
    # From the worker alone, which has it from the run: both may have anything done here.
    return pickle.loads(base64.b64decode(line))  # noqa: S301


if __name__ == "__main__":
    main()
