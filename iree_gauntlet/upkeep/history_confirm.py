"""`history.confirm`: is a step there when both IREEs are measured in turns, and which bisect would find its cause?"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ExitCode, NothingSelectedError, UsageError
from iree_gauntlet.experiments.compare import compare
from iree_gauntlet.history.extract import iree_version
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.records.compare_record import read_comparison
from iree_gauntlet.records.history_outcome import Finding, Kind
from iree_gauntlet.records.history_run import HistoryMachine, HistoryRun, history_file
from iree_gauntlet.requests import CompareRequest, Defaults, RunRequest
from iree_gauntlet.settings import runs_folder
from iree_gauntlet.upkeep.history_ask import outcome_for
from iree_gauntlet.upkeep.history_keep import store_of

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.experiments.performing import Machines
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.records.compare_record import ComparisonRecord
    from iree_gauntlet.upkeep.history_requests import ConfirmRequest


# How `compare` and `bisect` call a figure; what has no noise needs no comparison.
_METRICS = {"time_ms": "time", "compile_s": "compile-time"}
_EXACT = {"size_bytes": "size", "dispatches": "dispatches", "max_error": "error", "instructions": "instructions"}


def confirm(asked: ConfirmRequest, presenter: Presenter, machines: Machines | None = None) -> ExitCode:
    """Measure the two IREEs of a step in turns, keep what comes of it with the step, and say which bisect comes next.

    Args:
        asked: which step.
        presenter: shows it.
        machines: measure it; None for this machine.

    Raises:
        NothingSelectedError: nothing got worse that fits.
        UsageError: the history does not say which two IREEs to compare, or the figure is none that can be.
    """
    finding = _chosen(asked)
    key, irees = finding.key, (finding.before.named or finding.before.iree, finding.after.named or finding.after.iree)
    metric = (_METRICS | _EXACT).get(key.figure)
    if metric is None or irees[0] == irees[1]:
        why = f"{key.figure} is not measured by compare" if metric is None else f"both sides are IREE {irees[0]}"
        raise UsageError(f"{key.title} cannot be confirmed: {why}", "Compare two of your own: gauntlet compare A B.")
    presenter.line(f"{key.title}: {100 * finding.change:+.1f} % between {irees[0]} and {irees[1]}")
    if key.figure in _EXACT:
        presenter.line("it has no noise: there is nothing to confirm")
        code = ExitCode.OK
    else:
        code = _measured(asked, finding, irees, presenter, machines)
    if code is not ExitCode.INTERRUPTED:
        words = ["gauntlet", "bisect", "--good", irees[0], "--bad", irees[1], "--metric", metric]
        words += ["--model", key.model, "--submodel", key.submodel, "--target", key.target]
        presenter.line(f"since which release or commit: {shlex.join(words)}")
    return code


def _chosen(asked: ConfirmRequest) -> Finding:
    """The surest loss that fits and has not been confirmed yet; one that can be measured, where there is one."""
    found = [item for item in outcome_for(asked).regressions if item.kind is Kind.REGRESSION]
    if not found:
        raise NothingSelectedError("nothing got worse that fits", "`history.check` shows all that changed.")

    def order(item: Finding) -> tuple[bool, bool, bool, float]:
        return item.same_iree, bool(item.confirmed), item.key.figure not in _METRICS, item.p_value or 0.0

    return min(found, key=order)


def _measured(
    asked: ConfirmRequest, finding: Finding, irees: tuple[str, str], presenter: Presenter, machines: Machines | None
) -> ExitCode:
    key, now = finding.key, datetime.now(UTC)
    folder = runs_folder() / f"{now:%Y%m%d-%H%M%S}-confirm"
    selection = {"model": key.model, "submodel": key.submodel, "target": [key.target], "sku": key.sku}
    request = RunRequest.of({**selection, "cache_dir": asked.cache_dir, "run_dir": str(folder)}, Defaults())
    compared = CompareRequest(sides=" ".join(irees), metric=_METRICS[key.figure], budget=asked.budget)
    code = compare(compared, request, presenter, machines)
    _keep(asked, finding, folder, now)
    return code


def _keep(asked: ConfirmRequest, finding: Finding, folder: Path, now: datetime) -> None:
    """What came of it becomes a part of the history."""
    record = read_comparison(folder)
    verdict = record.verdicts.get(finding.key.case)
    if verdict is None:
        return
    confirms = {
        "case": finding.key.case,
        "figure": finding.key.figure,
        "before": finding.before.iree,
        "after": finding.after.iree,
        **{name: verdict.get(name) for name in ("verdict", "ratio", "low", "high", "blocks")},
    }
    run = HistoryRun(
        run=folder.name,
        time=now.isoformat(),
        cases=(),
        iree=iree_version(record.sides[1].toolchain),
        machine=HistoryMachine.from_dict(_machine_of(record, finding.key.case)),
        state="confirmation",
        more={"confirms": confirms},
    )
    store_of(asked).add(dict([history_file(run)]))


def _machine_of(record: ComparisonRecord, case: str) -> dict[str, Any]:
    """What a case was measured on."""
    elsewhere = record.measured.get(case)
    return dict(elsewhere["machine"]) if elsewhere else asdict(machine_facts())
