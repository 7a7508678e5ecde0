"""The entries of a run in a history, taken from its record."""

from __future__ import annotations

import hashlib
import math
import re
from typing import TYPE_CHECKING

from iree_gauntlet import __version__
from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.journal_events import MachineInfo
from iree_gauntlet.journal_format import explain_unreadable
from iree_gauntlet.measuring.instructions.counters import is_usual_count
from iree_gauntlet.records.chain_figures import collect_chain_figures
from iree_gauntlet.records.history_record import HistoryCase, HistoryFigure, HistoryMachine, HistoryRun, IreeVersion
from iree_gauntlet.records.sweep_record import MICRO, UNREADABLE_SWEEP, VARIANT_FIGURES, PointRecord
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.journal_events import ToolchainInfo
    from iree_gauntlet.records.outcome import ChainOutcome, RunOutcome, StepOutcome


MAX_REASON_CHARS = 200
# Flags that say where something is written or read, and do not affect what is compiled and run.
_FILE_FLAGS = re.compile(
    r"--(?:iree-scheduling-dump|iree-hal-dump|dump-compilation|mlir-print-ir-tree|iree-opt-splat-parameters"
    r"|iree-parameter-splat|module|parameters|input|output|expected_output|flagfile|benchmark_out)"
)
_RELEASE = re.compile(r"\d+\.\d+\.\d+\S*")
_FOLDER = re.compile(r"=.*/")


def extract(outcome: RunOutcome) -> list[HistoryRun]:
    """Return the history's entries of a run, whatever its result: one for each kind of machine that took part."""
    if not outcome.started:
        raise GauntletError(f"run {outcome.run} never started: its journal is empty", "Name another run.")
    chains_by_machine: dict[HistoryMachine, list[ChainOutcome]] = {}
    for chain in outcome.cases:
        chains_by_machine.setdefault(HistoryMachine.of(_find_machine(chain, outcome)), []).append(chain)
    machines = chains_by_machine or {HistoryMachine.of(outcome.machine): []}
    return [
        HistoryRun(
            run=outcome.run,
            time=outcome.started,
            cases=tuple(case for chain in chains for case in (*_list_recipes(chain), _make_case(chain, outcome))),
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


def _find_machine(chain: ChainOutcome, outcome: RunOutcome) -> MachineInfo:
    """Return the machine that measured a chain; if nothing was measured, the machine that ran the chain."""
    steps = [step for step in chain.steps if step.worker]
    measuring = [step for step in steps if step.samples is not None] or [step for step in steps if step.device] or steps
    return _find_worker(measuring[-1], outcome) if measuring else outcome.machine


def _find_worker(step: StepOutcome, outcome: RunOutcome) -> MachineInfo:
    return outcome.workers.get(step.worker.partition("/")[0], MachineInfo())


def make_iree_version(toolchain: ToolchainInfo) -> IreeVersion:
    """Return the version of a journal's toolchain."""
    release = toolchain.source.partition(":")[0]
    return IreeVersion(
        toolchain.compiler,
        toolchain.compiler_commit,
        toolchain.runtime,
        toolchain.runtime_commit,
        release if _RELEASE.fullmatch(release) else "",
    )


def _make_case(chain: ChainOutcome, outcome: RunOutcome) -> HistoryCase:
    # A compile time counts only if the same machine compiled and measured.
    machine = _find_machine(chain, outcome)
    compiles = [step for step in chain.steps if step.stage is Stage.COMPILE and step.worker]
    same_machine = all(_find_worker(step, outcome) == machine for step in compiles)
    cause = next((step for step in chain.steps if step.reason and step.verdict is chain.verdict), None)
    device = next((step.device for step in chain.steps if step.device), "")
    return HistoryCase(
        model=chain.model,
        submodel=chain.submodel,
        target="+".join(filter(None, (chain.target, outcome.variant))),
        sku=chain.sku,
        device=device,
        flags=_format_flags(chain.steps),
        verdict=str(chain.verdict),
        reason=cause.reason[:MAX_REASON_CHARS] if cause is not None and chain.verdict is not Verdict.PASSED else "",
        figures=tuple(_list_figures(chain, same_machine=same_machine)),
        quarantine=next((str(step.quarantine.origin) for step in chain.steps if step.quarantine), ""),
    )


def _list_recipes(chain: ChainOutcome) -> Iterator[HistoryCase]:
    """Yield a case for each recipe at a point of a sweep: `lin/4-64-128/int8wo`."""
    with explain_unreadable(f"{chain.id}: its point of a sweep", UNREADABLE_SWEEP):
        points = [PointRecord.from_dict(step.statistics[MICRO]) for step in chain.steps if MICRO in step.statistics]
    for variant in (variant for point in points for variant in point.variants):
        figures = [HistoryFigure("time_ms", variant.iree.ms, "median")] if variant.iree else []
        values = ((figure.series, figure.read(variant)) for figure in VARIANT_FIGURES if figure.series)
        figures += [HistoryFigure(series, value) for series, value in values if value]
        yield HistoryCase(
            model=chain.model,
            submodel=f"{chain.submodel}/{variant.label}",
            target=chain.target,
            sku=chain.sku,
            flags=_format_flags(step for step in chain.steps if step.role == variant.label),
            verdict=variant.status,
            reason=variant.reason[:MAX_REASON_CHARS],
            figures=tuple(figures),
        )


def _list_figures(chain: ChainOutcome, *, same_machine: bool) -> Iterator[HistoryFigure]:
    figures = collect_chain_figures(chain)
    # The time of a program with wrong numbers is not the time of the model.
    wrong = any(step.stage.row.checks_numbers and step.verdict.blocks for step in chain.steps)
    # A cached module was compiled in another run; the compile time belongs to that run.
    has_compile_time = same_machine and not figures.all_from_cache
    counted_flags = _format_flags(chain.steps, of_count=True)
    counter, _, cpu = figures.counted_by.partition(", ")
    # Each kind of counter and CPU has a series of its own, because their counts cannot be compared.
    suffix = "" if is_usual_count(counter, cpu) else f" ({counter.split(' ')[0]}{f', {cpu}' if cpu else ''})"
    for figure, value in figures.values.items():
        view = figure.row.history
        # Instructions of a call make a series only if the instructions in dispatches are unknown.
        partial = figure is Figure.CALL_INSTRUCTIONS and Figure.DISPATCH_INSTRUCTIONS in figures.values
        foreign = figure.row.stage.row.makes_modules and not figure.is_exact and not has_compile_time
        if view is None or partial or foreign or (figure is Figure.TIME and wrong) or not math.isfinite(value):
            continue
        check = figures.checks.get(figure)
        golden, limit = (check.golden, check.limit) if check else (None, None)
        if figure is Figure.TIME and figures.samples is not None:
            rounds, noisy = figures.samples.real_time_ms, bool(figures.disturbance)
            yield HistoryFigure(view.name, value, figures.statistic, rounds, noisy, golden, limit)
        elif figure.is_counted:
            # The counted module differs from the timed module, and may exist without it.
            yield HistoryFigure(f"{view.name}{suffix}", value, golden=golden, limit=limit, flags=counted_flags)
        else:
            more = view.more_is_better
            yield HistoryFigure(view.name, value, golden=golden, limit=limit, more_is_better=more)


def _format_flags(steps: Iterable[StepOutcome], *, of_count: bool = False) -> str:
    """Hash the flags that the steps were compiled and run, or counted, with; file paths are left out."""
    parts = {
        f"{step.name} {_FOLDER.sub('=', flag)}"
        for step in steps
        for flag in step.flags
        if step.stage.row.in_series and step.is_for_count is of_count and not _FILE_FLAGS.match(flag)
    }
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:12]
