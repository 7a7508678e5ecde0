"""What torch does beside IREE at a point: the same models, eager and compiled, tried once before they are measured."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.taken_rounds import Measurement
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.results import shorten
from iree_gauntlet.torch_models.agreement import agreement
from iree_gauntlet.torch_models.build_folder import Build, read_outputs, tensors
from iree_gauntlet.torch_models.interleaved import TorchRound
from iree_gauntlet.torch_models.measuring_worker import ask, planned_command
from iree_gauntlet.torch_models.point_check import variant_tolerance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.configuration import Variant
    from iree_gauntlet.torch_models.point_chain import PointChain


EAGER = "eager"
COMPILE = "compile"
_TRIAL_CALLS = 3
_WARM_UP_CALLS = 1
# Code that torch.compile makes, kept from round to round: a process's TMPDIR does not outlive it.
_CODE = "inductor"


@dataclass(slots=True)
class TorchTrial:
    """A trial of torch.

    Attributes:
        round: for the blocks; None where nothing of torch's can be measured.
        version: of torch.
        problems: why a program is not measured, by its name.
        first_call_ms: by name of the program.
    """

    round: TorchRound | None = None
    version: str = ""
    problems: dict[str, str] = field(default_factory=dict)
    first_call_ms: dict[str, float] = field(default_factory=dict)


def torch_name(mode: str, label: str) -> str:
    """Of a program of torch: `torch eager int8wo`."""
    return f"torch {mode} {label}"


def try_torch(
    step: Step,
    chain: PointChain,
    builds: Mapping[str, Build],
    variants: Sequence[Variant],
    modes: Sequence[str],
    round_ms: float,
    processes: Processes,
) -> TorchTrial:
    """Runs each program of torch once, checks its outputs, and decides how many calls a round of it has.

    Args:
        step: of the benchmark; gives the folder and the time limit.
        chain: the point.
        builds: what torch made before, by label.
        variants: that are measured.
        modes: `eager`, `compile`.
        round_ms: how long the calls of a round take.
        processes: starts torch.

    Raises:
        GauntletError: what it left cannot be read.
    """
    folder = Path(step.folder) / "torch"
    outputs = folder / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    env = (("TORCHINDUCTOR_CACHE_DIR", str(folder / _CODE)),)
    by_label = {variant.side: variant for variant in reversed(variants)}
    programs = {
        torch_name(mode, label): {
            "builder": asdict(chain.plan(label)),
            "build": str(chain.exported(label)),
            "mode": mode,
            "compile_mode": chain.point.model.torch_compile_mode,
            "label": label,
            "calls": _TRIAL_CALLS,
        }
        for mode in modes
        for label in by_label
    }
    words = chain.torch.running("iree_gauntlet.torch_models.measure_torch_variants")
    plan = {"variants": list(programs.values()), "warm_up_calls": _WARM_UP_CALLS, "compile_threads": None}
    command = planned_command(step, words, {**plan, "outputs": str(outputs)}, "torch.trial.", env)
    answer = ask(step, processes, command, "torch.trial.")
    trial = TorchTrial()
    if answer.figures is None:
        trial.problems = dict.fromkeys(programs, answer.failure.reason)
        return trial
    trial.version = str(answer.figures["version"])
    for (name, program), found in zip(programs.items(), answer.figures["variants"], strict=True):
        variant = by_label[str(program["label"])]
        problem = found.get("error", "") or _wrong(chain, variant, builds[str(program["label"])], outputs, found)
        if problem:
            trial.problems[name] = shorten(problem)
            continue
        trial.first_call_ms[name] = float(found["first_call_ms"])
        program["calls"] = calls_of(statistics.median(found["call_ms"]), round_ms)
    shutil.rmtree(outputs)
    good = {name: program for name, program in programs.items() if name not in trial.problems}
    if good:
        # Compiled before: torch.compile's processes would be work beside what is measured.
        plan = {**plan, "compile_threads": 1, "outputs": ""}
        command = planned_command(step, words, plan, "torch.", env)
        trial.round = TorchRound(Measurement(step, command, "torch", _times), plan, good)
    return trial


def calls_of(call_ms: float, round_ms: float) -> int:
    """How many calls a round has."""
    return max(_TRIAL_CALLS, math.ceil(round_ms / call_ms))


def _wrong(chain: PointChain, variant: Variant, build: Build, outputs: Path, found: Mapping[str, Any]) -> str:
    """Where its outputs are not those of torch eager that lie in the build folder; empty where they are."""
    actual = read_outputs(found["outputs"], outputs)
    expected = tensors(chain.exported(variant.side), build.programs[0].outputs)
    problem = agreement(actual, expected, variant_tolerance(variant, chain.point.model.dtype, build)).problem
    return f"its outputs are not those of torch eager: {problem}" if problem else ""


def _times(text: str, _seconds: float) -> tuple[float, ...]:
    """The median call of each program, in the order of the plan."""
    found = json.loads(text.rstrip().splitlines()[-1])
    failed = next((item for item in found["variants"] if "error" in item), None)
    if failed is not None:
        raise GauntletError(f"{failed['mode']} {failed['label']}: {failed['error']}")
    return tuple(statistics.median(item["call_ms"]) for item in found["variants"])
