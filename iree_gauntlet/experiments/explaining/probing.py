"""Which switches of the compiler mend a failure."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage
from iree_gauntlet.experiments.explaining.traced_sides import run_with
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.toolchains.toolchain import COMPILE

if TYPE_CHECKING:
    from collections.abc import Callable

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


@dataclass(frozen=True, slots=True)
class Probed:
    """What a switch does: `passes`, `fails`, or `unknown` and why."""

    name: str
    flag: str
    verdict: str
    reason: str = ""


def probe(failure: Failure, symptom: Symptom, tools: Tools, say: Callable[[str], None]) -> list[Probed]:
    """Which switches mend it: each by itself, compiled, and run where that is what fails."""
    # One after the other: each holds the model's weights.
    runs = threading.Lock()
    known = [(name, flag) for name, flag in _PROBES if tools.knows(COMPILE, flag) and _applies(flag, failure)]

    def one(item: tuple[str, str]) -> Probed:
        name, flag = item
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

    found = []
    with ThreadPoolExecutor(machine_facts().cores) as pool:
        for probed in pool.map(one, known):
            say(f"{probed.name}: {probed.verdict}")
            found.append(probed)
    if failure.argv and failure.device == "local-task":
        argv = [word for word in failure.argv[1:] if not word.startswith("--device=")]
        ran = tools.run_module(
            "probe_local_sync", ("--device=local-sync", *argv), timeout=failure.timeout, cwd=failure.cwd
        )
        found.append(Probed("one thread", "--device=local-sync", *_verdict(ran, symptom)))
    return found


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
