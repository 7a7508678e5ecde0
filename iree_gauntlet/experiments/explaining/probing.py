"""Which switches of the compiler mend a failure."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage
from iree_gauntlet.experiments.explaining.traced_sides import run_with
from iree_gauntlet.toolchains.toolchain import COMPILE

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.symptom import Symptom
    from iree_gauntlet.experiments.explaining.tools import Ran, Tools


# One compile each: flags of the compiler, in the order in which they are reported.
_PROBES = (
    ("data tiling off", "--iree-opt-data-tiling=false"),
    ("no optimisation (O0)", "--iree-opt-level=O0"),
    ("constant evaluation off", "--iree-opt-const-eval=false"),
    ("generic CPU", "--iree-llvmcpu-target-cpu=generic"),
    ("no microkernels", "--iree-llvmcpu-enable-ukernels=none"),
    ("reductions not reordered", "--iree-llvmcpu-reassociate-fp-reductions=false"),
)
# Of a program and its parameters: up to it, memory has room for one more of them.
_SMALL_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Probed:
    """What a switch does: `passes`, `fails`, or `unknown` and why."""

    name: str
    flag: str
    verdict: str
    reason: str = ""


def begin_probes(
    failure: Failure, symptom: Symptom, tools: Tools, pool: ThreadPoolExecutor
) -> tuple[Future[Probed], ...]:
    """Begin to find out which switches mend it: each by itself, compiled, and run where that is what fails."""
    # One after the other: each holds the model's weights.
    runs = threading.Lock()

    def one(name: str, flag: str) -> Probed:
        setting = flag.partition("=")[0]
        flags = [word for word in failure.flags if word.partition("=")[0] != setting]
        file = f"probe_{setting.removeprefix('--')}.vmfb"
        ran = tools.cached_compile(
            file, failure.program, [*flags, flag], timeout=failure.compile_timeout, cwd=failure.compile_cwd
        )
        if failure.stage is Stage.COMPILE:
            return Probed(name, flag, *_verdict(ran, symptom))
        if not ran.passed:
            return Probed(name, flag, "unknown", f"does not compile: {_first_error(ran)}")
        with runs:
            ran = run_with(failure, tools, file, tools.folder / file)
        return Probed(name, flag, *_verdict(ran, symptom))

    def one_thread() -> Probed:
        with runs:
            argv = [word for word in failure.argv[1:] if not word.startswith("--device=")]
            argv = ["--device=local-sync", *argv]
            ran = tools.run_module("probe_local_sync", argv, timeout=failure.timeout, cwd=failure.cwd)
        return Probed("one thread", "--device=local-sync", *_verdict(ran, symptom))

    known = [(name, flag) for name, flag in _PROBES if tools.knows(COMPILE, flag) and _applies(flag, failure)]
    probes = [pool.submit(one, name, flag) for name, flag in known]
    if failure.argv and failure.device == "local-task":
        probes.append(pool.submit(one_thread))
    return tuple(probes)


def side_by_side(failure: Failure) -> bool:
    """Whether a model is small enough for its probes to run while its dispatches are traced."""
    archives = [Path(failure.cwd, text.rpartition("=")[2]) for text in failure.values("--parameters")]
    sizes = [file.stat().st_size for file in (failure.program, *archives)]
    return sum(sizes) <= _SMALL_BYTES


def _applies(flag: str, failure: Failure) -> bool:
    of_cpu = any("llvm-cpu" in word for word in failure.flags)
    return of_cpu or not flag.startswith("--iree-llvmcpu")


def _verdict(ran: Ran, symptom: Symptom) -> tuple[str, str]:
    if ran.passed:
        return "passes", ""
    if symptom.is_in(ran):
        return "fails", ""
    return "unknown", ran.outcome.signal or _first_error(ran)


def _first_error(ran: Ran) -> str:
    lines = ran.errors.splitlines()
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "it does not run")[:400]
