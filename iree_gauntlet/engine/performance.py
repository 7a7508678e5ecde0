"""Benchmark and compile-statistics steps: figures against goldens."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import FailureKind, Metric, Verdict
from iree_gauntlet.engine.judging import judge_process, require_whole_files
from iree_gauntlet.engine.modules.modules import Kept, read_dispatch_count
from iree_gauntlet.engine.rounds.taken_rounds import Confirmed, ConfirmRules, confirm_time, gpu_of
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.goldens.goldens import check_figure, check_time, describe
from iree_gauntlet.measuring.instructions.counters import is_usual_count
from iree_gauntlet.measuring.machine.disturbance import RoundWatch
from iree_gauntlet.measuring.machine.machine_state import list_benchmark_warnings
from iree_gauntlet.measuring.profiles.benchmark_rows import parse_benchmark_rows
from iree_gauntlet.measuring.profiles.dispatch_profile import find_dispatch_names, find_new_and_gone
from iree_gauntlet.results import Check, Result, shorten

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from iree_gauntlet.engine.modules.module_cache import ModuleCache
    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.steps import Step


_MODULE = "module"
# Parts of a module that hold weights.
_CONSTANTS = "_const"
_TOOL = "iree-benchmark-module"


def run_benchmark(step: Step, processes: Processes, confirm: ConfirmRules | None, cancelled: threading.Event) -> Result:
    """Runs a benchmark step: all repetitions are kept, and held against the golden time by the dialect's rule.

    Args:
        step: the benchmark; the machine is its alone.
        processes: starts its process.
        confirm: how a broken golden is confirmed; None to take the dialect's rule for the verdict.
        cancelled: set to end it.

    Raises:
        GauntletError: its inputs cannot be used as they are.
    """
    require_whole_files(step.process)
    gpu = gpu_of(step)
    watch = RoundWatch(gpu=bool(gpu), device=gpu)
    outcome = processes.run(step)
    state = watch.ended(own_cpu_seconds=outcome.cpu_seconds)
    if outcome.exit_code != 0:
        result = judge_process(step, outcome, processes.error_lines(step), tool=_TOOL)
        return processes.complete(step, outcome, result)
    try:
        samples = parse_benchmark_rows(processes.stdout(step))[0]
    except GauntletError as error:
        failed = Result(Verdict.ERROR, shorten(error.what), tail=tuple(outcome.tail), notes=(error.hint,))
        return processes.complete(step, outcome, failed)
    check = check_time(samples, step.goldens, step.golden_keys, step.sku)
    result = replace(
        _judge([check]),
        samples=samples,
        statistics={"machine": state.as_dict(), "disturbed": list(state.disturbances())},
        notes=(*step.notes, *list_benchmark_warnings(state.watched)),
        log=processes.log(step, "stdout.txt"),
    )
    # What is expected to fail needs no proof of it.
    if check.passed is False and confirm is not None and FailureKind.MISSES_A_GOLDEN not in step.expect_kinds:
        result = _confirm(result, check, confirm_time(step, check, processes, confirm, cancelled))
    return processes.complete(step, outcome, result)


def _confirm(result: Result, breach: Check, confirmed: Confirmed) -> Result:
    """The result of a benchmark that broke its golden, after further rounds."""
    first = f"{describe(breach)} in the first run"
    passed = confirmed.verdict is Verdict.PASSED
    return replace(
        result,
        verdict=confirmed.verdict,
        failure=result.failure if confirmed.verdict is Verdict.FAILED else None,
        reason="" if passed else shorten(f"{confirmed.reason}; {first}"),
        checks=(confirmed.check,),
        statistics={**result.statistics, "confirmation": confirmed.record},
        notes=(*result.notes, f"not confirmed: {first}; {confirmed.reason}") if passed else result.notes,
        tool_seconds=result.tool_seconds + confirmed.tool_seconds,
    )


def check_compile_statistics(step: Step, release: str, cache: ModuleCache) -> Result:
    """Holds a module's dispatch count and size against its goldens; every figure is reported.

    Args:
        step: names the module and its statistics.
        release: of the compiler.
        cache: has earlier modules, to say which dispatches are new.
    """
    paths = {item.role: Path(item.path) for item in step.inputs}
    figures = {
        Metric.DISPATCH_COUNT: read_dispatch_count(paths["statistics"]),
        Metric.BINARY_SIZE_BYTES: paths["module"].stat().st_size,
    }
    checks = [
        check_figure(metric, measured, step.goldens, release)
        for metric, measured in figures.items()
        if measured is not None
    ]
    statistics: dict[str, Any] = {metric.value: measured for metric, measured in figures.items()}
    counts = [check for check in checks if check.metric == Metric.DISPATCH_COUNT and check.passed is False]
    why = [_describe_dispatch_changes(cache, step, check.limit) for check in counts if check.limit is not None]
    return replace(_judge(checks), statistics=statistics, notes=(*step.notes, *filter(None, why)))


def check_instructions(step: Step, counted: Result, release: str) -> Result:
    """Holds a count of instructions against its goldens."""
    if counted.verdict is not Verdict.PASSED:
        return counted
    figures = counted.statistics
    # Of another counter, or of modules for another CPU, they say nothing.
    usual = is_usual_count(str(figures["counter"]), str(figures["cpu"]))
    check = check_figure(Metric.INSTRUCTIONS, figures["instructions"], step.goldens if usual else (), release)
    if step.goldens and not usual:
        how = f"{figures['counter']}, for {figures['cpu'] or 'the CPU of the spec'}"
        check = replace(check, note=f"its golden is of valgrind's usual count, and this is by {how}: measured only")
    judged = _judge([check])
    return replace(counted, verdict=judged.verdict, reason=judged.reason, checks=judged.checks, failure=judged.failure)


def _judge(checks: Sequence[Check]) -> Result:
    broken = [check for check in checks if check.passed is False]
    verdict = Verdict.FAILED if broken else Verdict.PASSED
    reason = shorten("; ".join(map(describe, broken)))
    return Result(verdict, reason, checks=tuple(checks), failure=FailureKind.MISSES_A_GOLDEN if broken else None)


def _describe_dispatch_changes(cache: ModuleCache, step: Step, limit: float) -> str:
    """The dispatches that are new and gone against the newest module in the cache that kept the golden."""
    # For the module that the step looks at, whatever compiled them.
    compiled = (entry for entry in cache.list_entries() if entry.name in step.needs and _MODULE in entry.files)
    counted = ((Kept.from_dict(entry.metadata).statistics.get("dispatch_count"), entry) for entry in compiled)
    kept = [(count, entry) for count, entry in counted if count is not None and count <= limit]
    if not kept:
        return ""
    count, newest = max(kept, key=lambda item: item[1].created)
    found = cache.lookup(newest.key).entry
    before = _list_names(found.files[_MODULE]) if found is not None else []
    after = _list_names(step.input(_MODULE).path)
    if not (before and after):
        return ""
    new, gone = find_new_and_gone(before, after)
    changes = "; ".join(f"{what}: {', '.join(names)}" for what, names in (("new", new), ("gone", gone)) if names)
    dispatches = f"{count} dispatch" + ("" if count == 1 else "es")
    day = newest.created[:16].replace("T", " ")
    return f"against the newest module with {dispatches} (of {day} UTC): {changes or 'the same names'}"


def _list_names(module: Path | str) -> list[str]:
    """Names of its dispatches; none where it is not an archive, as which the compiler writes modules."""
    if not zipfile.is_zipfile(module):
        return []
    with zipfile.ZipFile(module) as archive:
        parts = (item for item in archive.infolist() if not item.filename.startswith(_CONSTANTS))
        return find_dispatch_names(map(archive.read, parts))
