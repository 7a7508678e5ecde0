"""What a history keeps of a run, taken from its record."""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING

from iree_gauntlet import __version__
from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.journal_events import MachineFacts
from iree_gauntlet.journal_format import explain_unreadable
from iree_gauntlet.measuring.instructions.counters import is_usual_count
from iree_gauntlet.records.chain_figures import collect_chain_figures
from iree_gauntlet.records.history_record import HistoryCase, HistoryFigure, HistoryMachine, HistoryRun, IreeVersion
from iree_gauntlet.records.sweep_record import MICRO, UNREADABLE_SWEEP, VARIANT_FIGURES, PointRecord
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.journal_events import ToolchainFacts
    from iree_gauntlet.records.outcome import ChainOutcome, RunOutcome, StepOutcome


_REASON_CHARACTERS = 200
# What says where something is written or read, and nothing of what is compiled and run.
_PLACES = re.compile(
    r"--(?:iree-scheduling-dump|iree-hal-dump|dump-compilation|mlir-print-ir-tree|iree-opt-splat-parameters"
    r"|iree-parameter-splat|module|parameters|input|output|expected_output|flagfile|benchmark_out)"
)
_RELEASE = re.compile(r"\d+\.\d+\.\d+\S*")
_FOLDER = re.compile(r"=.*/")


def extract(outcome: RunOutcome) -> list[HistoryRun]:
    """What is kept of a run, whatever came of it: of one that a cluster did, a part for each kind of its machines."""
    if not outcome.started:
        raise GauntletError(f"run {outcome.run} never began: its journal is empty", "Name another run.")
    done: dict[HistoryMachine, list[ChainOutcome]] = {}
    for chain in outcome.cases:
        done.setdefault(HistoryMachine.of(_find_machine(chain, outcome)), []).append(chain)
    machines = done or {HistoryMachine.of(outcome.machine): []}
    return [
        HistoryRun(
            run=outcome.run,
            time=outcome.started,
            cases=tuple(case for chain in chains for case in (*_list_variants(chain), _make_case(chain, outcome))),
            iree=make_iree_version(outcome.toolchain),
            machine=machine,
            suite=outcome.suite,
            command=outcome.command,
            state=outcome.state,
            exit_code=outcome.exit_code,
            source=f"gauntlet {outcome.version or __version__}",
        )
        for machine, chains in machines.items()
    ]


def _find_machine(chain: ChainOutcome, outcome: RunOutcome) -> MachineFacts:
    """What a chain was measured on; where nothing was measured, what it ran on."""
    ran = [step for step in chain.steps if step.worker]
    measured = [step for step in ran if step.samples is not None] or [step for step in ran if step.device] or ran
    return _find_worker(measured[-1], outcome) if measured else outcome.machine


def _find_worker(step: StepOutcome, outcome: RunOutcome) -> MachineFacts:
    return outcome.workers.get(step.worker.partition("/")[0], MachineFacts())


def make_iree_version(toolchain: ToolchainFacts) -> IreeVersion:
    """Of a toolchain, as journals have it."""
    named = toolchain.source.partition(":")[0]
    return IreeVersion(
        toolchain.compiler,
        toolchain.compiler_commit,
        toolchain.runtime,
        toolchain.runtime_commit,
        named if _RELEASE.fullmatch(named) else "",
    )


def _make_case(chain: ChainOutcome, outcome: RunOutcome) -> HistoryCase:
    # The compile time of another machine is not that of the one that it was measured on.
    machine = _find_machine(chain, outcome)
    compiles = [step for step in chain.steps if step.stage is Stage.COMPILE and step.worker]
    compiled_there = all(_find_worker(step, outcome) == machine for step in compiles)
    bad = next((step for step in chain.steps if step.reason and step.verdict is chain.verdict), None)
    device = next((step.device for step in chain.steps if step.device), "")
    return HistoryCase(
        model=chain.model,
        submodel=chain.submodel,
        target=chain.target,
        sku=chain.sku,
        device=device,
        flags=_format_flags(chain.steps),
        verdict=str(chain.verdict),
        reason=bad.reason[:_REASON_CHARACTERS] if bad is not None and chain.verdict is not Verdict.PASSED else "",
        figures=tuple(_list_figures(chain, compiled_there=compiled_there)),
    )


def _list_variants(chain: ChainOutcome) -> Iterator[HistoryCase]:
    """What a point of a sweep says of each of its recipes: `lin/4-64-128/int8wo`."""
    with explain_unreadable(f"{chain.id}: its point of a sweep", UNREADABLE_SWEEP):
        points = [PointRecord.from_dict(step.statistics[MICRO]) for step in chain.steps if MICRO in step.statistics]
    for variant in (item for point in points for item in point.variants):
        figures = [HistoryFigure("time_ms", variant.iree.ms, "median")] if variant.iree else []
        kept = ((figure.series, figure.read(variant)) for figure in VARIANT_FIGURES if figure.series)
        figures += [HistoryFigure(series, value) for series, value in kept if value]
        yield HistoryCase(
            model=chain.model,
            submodel=f"{chain.submodel}/{variant.label}",
            target=chain.target,
            sku=chain.sku,
            flags=_format_flags(step for step in chain.steps if step.role == variant.label),
            verdict=variant.status,
            reason=variant.reason[:_REASON_CHARACTERS],
            figures=tuple(figures),
        )


def _list_figures(chain: ChainOutcome, *, compiled_there: bool) -> Iterator[HistoryFigure]:
    figures = collect_chain_figures(chain)
    # A program that gives other numbers is another one: its time is no time of the model.
    wrong = any(step.stage.row.checks_numbers and step.verdict.blocks for step in chain.steps)
    # A module from the cache was compiled in another run, which has its time.
    compiled = compiled_there and not figures.compile_cached
    counted_flags = _format_flags(chain.steps, counted=True)
    counter, _, cpu = figures.counted_by.partition(", ")
    # A series for each kind of counter and CPU: counts of two have nothing to do with each other.
    kind = "" if is_usual_count(counter, cpu) else f" ({counter.split(' ')[0]}{f', {cpu}' if cpu else ''})"
    for figure, value in figures.values.items():
        trend = figure.row.trend
        # Instructions of a call are a series only where it is not known which are in dispatches.
        part = figure is Figure.CALL_INSTRUCTIONS and Figure.INSTRUCTIONS in figures.values
        foreign = figure.row.stage.row.makes_modules and not figure.is_exact and not compiled
        if trend is None or part or foreign or (figure is Figure.TIME and wrong) or not math.isfinite(value):
            continue
        check = figures.checks.get(figure)
        golden, limit = (check.golden, check.limit) if check else (None, None)
        if figure is Figure.TIME and figures.samples is not None:
            rounds, disturbed = figures.samples.real_time_ms, bool(figures.disturbed) or figures.is_marked
            yield HistoryFigure(trend.name, value, figures.statistic, rounds, disturbed, golden, limit)
        elif figure.is_counted:
            # Of a module of its own, which is there with others or alone.
            yield HistoryFigure(f"{trend.name}{kind}", value, golden=golden, limit=limit, flags=counted_flags)
        else:
            yield HistoryFigure(trend.name, value, golden=golden, limit=limit)


def _format_flags(steps: Iterable[StepOutcome], *, counted: bool = False) -> str:
    """Of all that it was compiled and run with, or counted; where files lie is no part of it."""
    words = {
        f"{step.name} {_FOLDER.sub('=', flag)}"
        for step in steps
        for flag in step.flags
        if step.stage.row.in_series and step.of_count is counted and not _PLACES.match(flag)
    }
    return hashlib.sha256("\n".join(sorted(words)).encode()).hexdigest()[:12]
