"""`compare A B`: is one IREE faster than another, model by model, and where not."""

from __future__ import annotations

import math
import os
import sys
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import __version__
from iree_gauntlet.cases import Kind
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.journal_format import read_events
from iree_gauntlet.measuring.comparison_verdict import Verdict
from iree_gauntlet.measuring.machine import machine_facts
from iree_gauntlet.measuring.sequential import DEFAULT_ALPHA, sequential_plan
from iree_gauntlet.progress import Progress
from iree_gauntlet.reporting.comparison import COMPARISON_FILE, read_comparison
from iree_gauntlet.reporting.comparison_report import print_comparison, write_comparison_reports
from iree_gauntlet.running.blocks import Pair, evidence_of
from iree_gauntlet.running.comparing import Comparer, Rules
from iree_gauntlet.running.event_log import EventLog
from iree_gauntlet.running.machine_lock import WaitCancelledError, lock_facts, machine_locks
from iree_gauntlet.running.processes import Processes
from iree_gauntlet.running.rounds import RoundSettings, compile_round, parse_cpus, timed
from iree_gauntlet.running.session_verdicts import judge, summary_of
from iree_gauntlet.running.supervisor import Supervisor
from iree_gauntlet.tasks.compare_tasks import COMPARE_OPTIONS
from iree_gauntlet.tasks.interruptible import interruptible
from iree_gauntlet.tasks.options import replaces_disturbed
from iree_gauntlet.tasks.output import open_progress
from iree_gauntlet.tasks.session_folder import session_folder
from iree_gauntlet.tasks.sides import prepare_side, unready
from iree_gauntlet.tasks.surroundings import make_machine
from iree_gauntlet.tasks.where_slower import explain
from iree_gauntlet.tasks.workspace import Defaults, select, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.running.blocks import Evidence
    from iree_gauntlet.running.session_verdicts import ModelVerdict
    from iree_gauntlet.tasks.sides import Side

__all__ = ["METRICS", "compare"]

METRICS = ("time", "compile-time")
# What a resumed comparison takes anew: the rest stays, as other values would make two sessions of one.
_TAKEN_ANEW = ("resume", "run_dir", "budget", "jobs", "offline", "force_recompile", "cache_dir")
_KEPT = {
    option.name: option.default
    for option in COMPARE_OPTIONS
    if option.name not in _TAKEN_ANEW and not option.name.startswith("timeout_")
}
_DIFFERENT = (Verdict.SLOWER, Verdict.FASTER)
_CODES = {
    "error": ExitCode.ERROR,
    str(Verdict.SLOWER): ExitCode.FAILED,
    str(Verdict.INCONCLUSIVE): ExitCode.INCONCLUSIVE,
}


@dataclass(frozen=True, slots=True)
class _Settings:
    """The command line, checked."""

    metric: str
    rules: Rules
    rounds: RoundSettings


def compare(options: Mapping[str, Any]) -> ExitCode:
    """Compares two IREEs over a selection.

    Raises:
        UsageError: options that make no sense.
        GauntletError: what keeps a side from being run.
    """
    folder, resumed = session_folder("compare", options, COMPARISON_FILE)
    if resumed:
        options = _as_before(folder, options)
    asked = _sides(options)
    settings = _settings(options)
    defaults = Defaults()
    # A slip of the keyboard is told, and what is missing installed, before hours of work.
    _require_work(options, defaults, settings)
    for text in asked:
        make_machine({**options, "iree": text}, Progress(), need_toolchain=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / COMPARISON_FILE
    earlier = evidence_of(event for _, event in read_events(path, "comparison").events) if resumed else {}
    with EventLog(path, lambda: datetime.now(UTC)) as log:
        log.write("comparison", _opening(asked, settings, options, resumed=resumed))
        code = ExitCode.INTERRUPTED
        try:
            a = prepare_side("A", asked[0], options, defaults, folder / "a")
            b = None if a.interrupted else prepare_side("B", asked[1], options, defaults, folder / "b")
            if b is not None and not b.interrupted:
                code = _measure(folder, (a, b), settings, log, earlier)
        except GauntletError as error:
            code = error.exit_code
            raise
        finally:
            log.write("end", {"exit_code": int(code), "interrupted": code is ExitCode.INTERRUPTED})
    record = read_comparison(folder)
    write_comparison_reports(record, folder, environ=os.environ)
    print_comparison(record, shown(folder), sys.stdout, environ=os.environ)
    return code


def _measure(
    folder: Path, sides: tuple[Side, Side], settings: _Settings, log: EventLog, earlier: dict[str, Evidence]
) -> ExitCode:
    """Takes the rounds, judges them and says where B is slower; everything goes into the log."""
    pairs, left_out = _pairs(*sides, settings)
    log.write(
        "prepared",
        {
            "sides": {side.name: side.as_dict() for side in sides},
            "models": [pair.chain for pair in pairs],
            "left_out": left_out,
        },
    )
    cancelled = threading.Event()
    with Supervisor() as supervisor, open_progress(sys.stdout) as progress:

        def cancel() -> None:
            cancelled.set()
            supervisor.cancel_all()

        locks = machine_locks(os.environ, cancelled)
        processes = Processes(supervisor, folder)
        try:
            with interruptible(cancel):
                comparer = Comparer(processes, locks, log, progress, settings.rules, cancelled)
                verdicts = judge(comparer.run(pairs, earlier), settings.rules)
                _write_verdicts(log, verdicts)
                if settings.metric == "time":
                    different = [item for item in verdicts.values() if item.verdict in _DIFFERENT]
                    explain(different, pairs, sides, processes, locks, log, progress)
                return _exit_code(verdicts, left_out)
        except (KeyboardInterrupt, WaitCancelledError):
            # What was measured says something, if not all that it could have said.
            models = {pair.chain for pair in pairs}
            begun = {chain: found for chain, found in earlier.items() if chain in models and found.blocks}
            _write_verdicts(log, judge(begun, settings.rules, "interrupted"))
            progress.message("interrupted; `compare --resume` goes on with it")
            return ExitCode.INTERRUPTED


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
    compile_time = settings.metric == "compile-time"
    steps = (a.compiles, b.compiles) if compile_time else (a.benchmarks, b.benchmarks)
    pairs: list[Pair] = []
    left_out: dict[str, str] = {}
    for chain in sorted({*steps[0], *steps[1]}):
        missing = [side.name for side, found in zip((a, b), steps, strict=True) if chain not in found]
        if missing:
            left_out[chain] = f"{missing[0]} has no such step"
            continue
        reasons = [
            f"{side.name}: {reason}"
            for side, found in zip((a, b), steps, strict=True)
            if (reason := unready(side, found[chain]))
        ]
        if reasons:
            left_out[chain] = "; ".join(reasons)
            continue
        measured = compile_round if compile_time else timed
        pairs.append(
            Pair(chain, measured(steps[0][chain], settings.rounds), measured(steps[1][chain], settings.rounds))
        )
    return pairs, left_out


def _require_work(options: Mapping[str, Any], defaults: Defaults, settings: _Settings) -> None:
    """Raises where the selection has problems, or nothing that could be compared."""
    selection = select(options, defaults)
    selection.require_sound()
    if settings.metric == "time" and not any(case.kind is Kind.BENCHMARK for case in selection.cases.cases):
        raise NothingSelectedError(
            "the selection has no benchmark to compare", "`list` shows which models have one; or --metric compile-time."
        )


def _opening(
    asked: tuple[str, str], settings: _Settings, options: Mapping[str, Any], *, resumed: bool
) -> dict[str, Any]:
    rules = settings.rules
    return {
        "schema": 1,
        "version": __version__,
        "resumed": resumed,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "cwd": str(Path.cwd()),
        "sides": {name: {"asked": text, "folder": name.lower()} for name, text in zip("AB", asked, strict=True)},
        "options": {name: options[name] for name in _KEPT},
        "rules": {
            "alpha": rules.plan.alpha,
            "looks": list(rules.plan.looks),
            "least": rules.least,
            "band": rules.band,
            "budget_seconds": rules.budget,
            "seed": rules.seed,
        },
        "rounds": asdict(settings.rounds),
        "machine": machine_facts().as_dict(),
        **lock_facts(os.environ),
    }


def _sides(options: Mapping[str, Any]) -> tuple[str, str]:
    words = str(options["sides"]).split()
    if len(words) != 2:
        raise UsageError(
            f"compare takes two IREEs, not {len(words)}",
            "Such as: compare 3.12.0 3.13.0 --model dtln, or compare installed build:../iree-build --suite cpu.",
        )
    return words[0], words[1]


def _settings(options: Mapping[str, Any]) -> _Settings:
    metric = str(options["metric"])
    if metric not in METRICS:
        raise UsageError(f"--metric {metric}: unknown metric", f"Metrics: {', '.join(METRICS)}.")
    least, band = float(options["least"]) / 100, float(options["band"]) / 100
    if not 0 < least <= band < 1:
        raise UsageError(
            f"--least {options['least']:g} and --band {options['band']:g} (per cent): expected 0 < least ≤ band < 100",
            "The defaults are 1 and 3.",
        )
    budget = float(options["budget"])
    if not 0 < budget < math.inf:
        raise UsageError(f"--budget {budget:g}: expected minutes above 0", "The default is 30, for all models.")
    repetitions, min_time = int(options["repetitions"]), float(options["min_time"])
    if repetitions < 1 or not 0 < min_time < 3600:
        raise UsageError(
            f"--repetitions {repetitions} with --min-time {min_time:g}: expected at least one, of more than 0 seconds",
            "The defaults are 5 and 0.05.",
        )
    if int(options["seed"]) < 0:
        raise UsageError(f"--seed {options['seed']}: expected 0 or more", "Any number will do.")
    cpus = parse_cpus(str(options["cpus"]), _usable_cpus())
    rules = Rules(
        plan=sequential_plan(DEFAULT_ALPHA),
        least=least,
        band=band,
        budget=60 * budget,
        seed=int(options["seed"]),
        replace_disturbed=replaces_disturbed(options),
    )
    return _Settings(metric, rules, RoundSettings(repetitions, min_time, cpus))


def _usable_cpus() -> frozenset[int]:
    # Linux alone can say and pin.
    affinity = getattr(os, "sched_getaffinity", None)
    return frozenset(affinity(0)) if affinity else frozenset()


def _as_before(folder: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a comparison that is gone on with: those that it was begun with.

    Raises:
        UsageError: others are given.
    """
    before = read_comparison(folder)
    for name, was in before.options.items():
        given = options[name]
        if given not in (was, _KEPT[name]):
            raise UsageError(
                f"{'compare' if name == 'sides' else '--' + name.replace('_', '-')} {given}: "
                f"{shown(folder)} was begun with {was or 'none'}",
                "Leave it out to go on with that one, or start a comparison anew.",
            )
    return {**options, **before.options}
