"""`compare A B`: is one IREE faster than another, model by model, and where not."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Kind, Stage
from iree_gauntlet.engine.modules.modules import read_statistics
from iree_gauntlet.engine.profiling import Profiling, compared, profile_dispatches
from iree_gauntlet.engine.rounds.blocks import Pair, PairEvidence, evidence_of
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError, lock_facts
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.errors import ExitCode, NothingSelectedError, UsageError
from iree_gauntlet.experiments.experiment_log import begun_by, recorded_end
from iree_gauntlet.experiments.run import choose
from iree_gauntlet.experiments.session_verdicts import Comparer, ModelVerdict, Rules, judge, summary_of
from iree_gauntlet.experiments.sides import Side, pair_of, prepare_side, rounds_asked, unready
from iree_gauntlet.journal_format import read_events
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.measuring.profiles.dispatch_profile import merged
from iree_gauntlet.measuring.profiles.side_changes import CompileChange, compile_changes
from iree_gauntlet.measuring.statistics.comparison_verdict import Verdict
from iree_gauntlet.measuring.statistics.sequential import DEFAULT_ALPHA, sequential_plan
from iree_gauntlet.option import read
from iree_gauntlet.records.compare_record import COMPARISON_FILE, read_comparison
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.run_folder import asked_folder, make_folder
from iree_gauntlet.requests import CompareRequest, ConductRequest, RunRequest, given, require_as_begun
from iree_gauntlet.settings import shown
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.rounds.taken_rounds import Measurement, RoundSettings
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.performing import Chosen
    from iree_gauntlet.progress import Presenter


# What may differ in a resumed comparison: the rest stays, as other values would make two sessions of one.
_TAKEN_ANEW = ("budget", "iree", "shard", "shard_costs", "batch")
# What stays as it was unless a resumed comparison asks for something else: blocks that count stay as they are.
_MAY_CHANGE = ("disturbed",)
# In which the sides are profiled.
_PROFILE_ORDER = "ABBA"
_DIFFERENT = (Verdict.SLOWER, Verdict.FASTER)
_CODES = {
    "error": ExitCode.ERROR,
    str(Verdict.SLOWER): ExitCode.FAILED,
    str(Verdict.INCONCLUSIVE): ExitCode.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True)
class _Settings:
    """How rounds are taken and judged."""

    metric: str
    rules: Rules
    rounds: RoundSettings


def compare(asked: CompareRequest, request: RunRequest, presenter: Presenter) -> ExitCode:
    """Compares two IREEs over a selection.

    Args:
        asked: which two, and how.
        request: what is run with each.
        presenter: shows it.

    Raises:
        UsageError: options that make no sense.
        GauntletError: what keeps a side from being run.
    """
    named, resumed = asked_folder("compare", request.folder, COMPARISON_FILE)
    if named and resumed:
        now = given((asked, request.selection, request.toolchain, request.conduct))
        begun = read_comparison(named)
        before = begun.options | {name: now[name] for name in _MAY_CHANGE if name in now}
        require_as_begun("comparison", shown(named), now, before)
        budget = {} if "budget" in now else {"budget": begun.opening["rules"]["budget_seconds"] / 60}
        asked, request = read(CompareRequest, asdict(asked) | budget | before), request.with_kept(before)
    names = _sides(asked.sides)
    settings = _settings(asked, request.conduct)
    # A typing mistake is reported, and what is missing installed, before hours of work.
    chosen = _chosen(request, settings)
    machines = [chosen.workbench(name) for name in names]
    folder = make_folder(named, "compare")
    path = folder / COMPARISON_FILE
    earlier = evidence_of(event for _, event in read_events(path, "comparison").events) if resumed else {}
    with EventLog(path, lambda: datetime.now(UTC)) as log:
        kept = {name: value for name, value in (asdict(asked) | request.kept).items() if name not in _TAKEN_ANEW}
        kept["disturbed"] = request.conduct.disturbed
        log.write("comparison", _opening(names, settings, kept, resumed=resumed))
        with recorded_end(log, folder, presenter) as ending:
            sides: list[Side] = []
            for name, text, machine in zip("AB", names, machines, strict=True):
                sides.append(prepare_side(name, machine, text, chosen, folder / name.lower(), presenter))
                if sides[-1].interrupted:
                    ending.code = ExitCode.INTERRUPTED
                    break
            else:
                ending.code = _measure(folder, (sides[0], sides[1]), settings, log, earlier, presenter)
    return ending.code


def _measure(
    folder: Path,
    sides: tuple[Side, Side],
    settings: _Settings,
    log: EventLog,
    earlier: dict[str, PairEvidence],
    presenter: Presenter,
) -> ExitCode:
    """Takes the rounds, judges them and says where B is slower; everything goes into the log."""
    pairs, left_out = _pairs(*sides, settings)
    log.write(
        "prepared",
        {
            "sides": {side.name: side.as_dict() for side in sides},
            "models": [pair.chain for pair in pairs],
            "left_out": left_out,
            "benchmarks": _benchmarks(pairs, sides) if settings.metric == "time" else {},
        },
    )
    with presenter.progress() as progress, open_session(folder, log, progress) as session:
        try:
            with session.interruptible():
                verdicts = judge(Comparer(session, settings.rules).run(pairs, earlier), settings.rules)
                _write_verdicts(log, verdicts)
                if settings.metric == "time":
                    different = [item for item in verdicts.values() if item.verdict in _DIFFERENT]
                    _explain(session, different, pairs, sides)
                return _exit_code(verdicts, left_out)
        except (KeyboardInterrupt, WaitCancelledError):
            # What was measured says something, if not all that it could have said.
            models = {pair.chain for pair in pairs}
            begun = {chain: found for chain, found in earlier.items() if chain in models and found.blocks}
            _write_verdicts(log, judge(begun, settings.rules, "interrupted"))
            progress.message("interrupted; `compare --resume` continues it")
            return ExitCode.INTERRUPTED


def _benchmarks(pairs: Sequence[Pair], sides: tuple[Side, Side]) -> dict[str, dict[str, Any]]:
    """How each model is benchmarked, for `explain --slower`, which benchmarks parts of it."""
    parts = ("command", "timeout", "resources")
    return {
        pair.chain: {
            side.name: {name: value for name, value in asdict(side.benchmarks[pair.chain]).items() if name in parts}
            for side in sides
        }
        for pair in pairs
    }


def _explain(
    session: Session[Any], different: Sequence[ModelVerdict], pairs: Sequence[Pair], sides: tuple[Side, Side]
) -> None:
    """Profiles the models that B is slower or faster with, on both sides, and writes an event `where` for each.

    What cannot be profiled is reported with its reason: a comparison does not fail for want of an explanation.
    """
    by_chain = {pair.chain: pair for pair in pairs}
    for verdict in different:
        chain = verdict.chain
        session.progress.status(f"{chain}: looking for where the time went")
        measured = by_chain[chain].measured(verdict.evidence.cpus or ())
        with session.quiet(measured[0].device):
            dispatches = _dispatches(sides, measured, session.processes, verdict)
        compiled = [change.as_dict() for change in _compile_changes(sides, measured)]
        session.log.write("where", {"chain": chain, "dispatches": dispatches, "compile": compiled})


def _dispatches(
    sides: tuple[Side, Side], measured: tuple[Measurement, Measurement], processes: Processes, verdict: ModelVerdict
) -> dict[str, Any]:
    """Two profiles a side, taken in turn like rounds: one pair alone is weak evidence on a machine that wanders."""
    times = verdict.as_dict()["time_ms"]
    medians = (float(times["A"]["median"]), float(times["B"]["median"]))
    named = dict(zip("AB", zip(sides, measured, medians, strict=True), strict=True))
    taken: dict[str, list[Profiling]] = {"A": [], "B": []}
    for name in _PROFILE_ORDER:
        failed = any(profiling.profile is None for profiling in (*taken["A"], *taken["B"]))
        # Where one side fails, the other is asked all the same: both reasons are reported.
        if not failed or not taken[name]:
            side, measurement, median = named[name]
            taken[name].append(_profile(side, measurement, processes, median, len(taken[name]) + 1))
    return compared(_joined(taken["A"]), _joined(taken["B"]), medians)


def _profile(side: Side, measurement: Measurement, processes: Processes, median: float, number: int) -> Profiling:
    toolchain = side.machine.toolchain
    assert toolchain is not None, "a side has been run"
    return profile_dispatches(
        measurement.step,
        toolchain,
        processes,
        side.machine.flags_of(BENCHMARK_MODULE),
        command=measurement.command,
        invocation_ms=median,
        name=f"profile.{number}.",
    )


def _joined(profilings: Sequence[Profiling]) -> Profiling:
    """The profiles of a side as one; where one of them failed, that one."""
    failed = [item for item in profilings if item.profile is None]
    if failed or len(profilings) == 1:
        return (failed or [*profilings])[0]
    return Profiling(
        merged([item.profile for item in profilings if item.profile is not None]),
        commands=tuple(command for item in profilings for command in item.commands),
        seconds=sum(item.seconds for item in profilings),
        log=profilings[-1].log,
    )


def _compile_changes(sides: tuple[Side, Side], measured: tuple[Measurement, Measurement]) -> tuple[CompileChange, ...]:
    """What the compiler says of the two main modules."""
    ours, theirs = map(_main_module, sides, measured)
    if ours is None or theirs is None:
        return ()
    sizes = [Path(outputs["module"]).stat().st_size for outputs in (ours, theirs)]
    return compile_changes(
        read_statistics(Path(ours["statistics"])),
        read_statistics(Path(theirs["statistics"])),
        a_bytes=sizes[0],
        b_bytes=sizes[1],
    )


def _main_module(side: Side, measurement: Measurement) -> dict[str, str] | None:
    """Outputs of the compile of the module that is loaded last; None where there is none."""
    step = measurement.step
    loaded = [item.path for item in step.inputs if item.role.startswith("module")]
    made: dict[str, dict[str, Any]] = {
        dict(item["outputs"])["module"]: dict(item["outputs"])
        for item in side.record.steps
        if item["stage"] == "compile"
    }
    found = [made[path] for path in loaded if path in made]
    return found[-1] if found else None


def _write_verdicts(log: EventLog, verdicts: Mapping[str, ModelVerdict]) -> None:
    for verdict in verdicts.values():
        log.write("verdict", verdict.as_dict())
    log.write("summary", summary_of(verdicts))


def _exit_code(verdicts: Mapping[str, ModelVerdict], left_out: Mapping[str, str]) -> ExitCode:
    codes = [ExitCode.ERROR for _ in left_out]
    codes += [_CODES.get(item.verdict, ExitCode.OK) for item in verdicts.values()]
    return ExitCode.worst(codes)


def _pairs(a: Side, b: Side, settings: _Settings) -> tuple[list[Pair], dict[str, str]]:
    """What can be measured on both sides, and why the rest cannot."""
    sides = tuple((side, side.steps(settings.metric)) for side in (a, b))
    pairs: list[Pair] = []
    left_out: dict[str, str] = {}
    for chain in sorted({chain for _, steps in sides for chain in steps}):
        reasons = [f"{side.name} has no such step" for side, steps in sides if chain not in steps][:1]
        if not reasons:
            reasons = [f"{side.name}: {reason}" for side, steps in sides if (reason := unready(side, steps[chain]))]
        if reasons:
            left_out[chain] = "; ".join(reasons)
            continue
        ours, theirs = (steps[chain] for _, steps in sides)
        pairs.append(pair_of(chain, (ours, theirs), settings.metric, settings.rounds))
    return pairs, left_out


def _chosen(request: RunRequest, settings: _Settings) -> Chosen:
    """What is run with each side; raises where there is nothing to compare."""
    chosen = choose(request)
    if Stage.COMPILE not in chosen.stages:
        raise UsageError("a comparison compiles, and this suite does not", "Take another suite, or name models.")
    if settings.metric == "time" and not any(case.kind is Kind.BENCHMARK for case in chosen.selection.cases.cases):
        raise NothingSelectedError(
            "the selection has no benchmark to compare", "`list` shows which models have one; or --metric compile-time."
        )
    stages = (*chosen.stages, Stage.BENCHMARK) if settings.metric == "time" else chosen.stages
    return replace(chosen, stages=tuple(dict.fromkeys(stages)))


def _opening(asked: tuple[str, str], settings: _Settings, kept: Mapping[str, Any], *, resumed: bool) -> dict[str, Any]:
    rules = settings.rules
    return {
        "schema": 1,
        **begun_by(),
        "resumed": resumed,
        "sides": {name: {"asked": text, "folder": name.lower()} for name, text in zip("AB", asked, strict=True)},
        "options": dict(kept),
        "rules": {
            "alpha": rules.plan.alpha,
            "looks": list(rules.plan.looks),
            "least": rules.least,
            "band": rules.band,
            "allow": rules.allow,
            "budget_seconds": rules.budget,
            "seed": rules.seed,
        },
        "rounds": asdict(settings.rounds),
        "machine": machine_facts().as_dict(),
        **lock_facts(os.environ),
    }


def _sides(text: str) -> tuple[str, str]:
    words = text.split()
    if len(words) != 2:
        raise UsageError(
            f"compare takes two IREEs, not {len(words)}",
            "Such as: compare 3.12.0 3.13.0 --model dtln, or compare installed build:../iree-build --suite cpu.",
        )
    return words[0], words[1]


def _settings(asked: CompareRequest, conduct: ConductRequest) -> _Settings:
    least, band = asked.least / 100, asked.band / 100
    if not 0 < least <= band < 1:
        raise UsageError(
            f"--least {asked.least:g} and --band {asked.band:g} (per cent): expected 0 < least ≤ band < 100",
            "The defaults are 1 and 3.",
        )
    if asked.allow < 0:
        raise UsageError(f"--allow {asked.allow:g}: expected per cent, 0 or more", "Leave it out for that of --band.")
    if asked.seed < 0:
        raise UsageError(f"--seed {asked.seed}: expected 0 or more", "Any number will do.")
    rules = Rules(
        plan=sequential_plan(DEFAULT_ALPHA),
        least=least,
        band=band,
        allow=(asked.allow or asked.band) / 100,
        budget=60 * asked.budget,
        seed=asked.seed,
        replace_disturbed=conduct.replaces_disturbed,
    )
    return _Settings(asked.metric, rules, rounds_asked(asked))
