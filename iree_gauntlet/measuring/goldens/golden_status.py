"""How goldens stand against what runs have measured last. Pure functions over goldens and journals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Golden, Metric
from iree_gauntlet.measuring.goldens.golden_proposals import Evidence, collect_evidence
from iree_gauntlet.measuring.goldens.goldens import covers
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.results import Check, Result


# A golden of which less than this is used guards nothing any more.
_LOOSE = 0.5
_STAGES = {
    Metric.TIME_MS: "benchmark",
    Metric.DISPATCH_COUNT: "compstat",
    Metric.BINARY_SIZE_BYTES: "compstat",
}


class Verdict(StrEnum):
    """What a golden is worth today."""

    KEPT = "kept"
    LOOSE = "loose"
    BROKEN = "broken"
    INCONCLUSIVE = "inconclusive"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Standing:
    """A golden, and the newest figure that may be held against it.

    Attributes:
        chain: model/submodel@target.
        golden: as it is written.
        verdict: `loose` is a kept one of which the figure is less than half.
        measured: the newest figure; None where no run has one.
        run: the run that has measured it; empty where none has.
        note: what a person should know of it; of one that was not measured, why the newest figure does not count.
    """

    chain: str
    golden: Golden
    verdict: Verdict
    measured: float | None = None
    run: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured by golden; None without a figure, and for a golden of 0."""
        return None if self.measured is None or not self.golden.value else self.measured / self.golden.value


def golden_standings(
    goldens: Sequence[tuple[str, Golden]], records: Sequence[JournalRecord], folder: Path
) -> list[Standing]:
    """How each golden stands.

    A figure is held against a golden as a run would do it: a time on its SKU, a count or a size with its compiler
    release. That the golden has changed since the run, or is new, does not matter: the figure is held against the
    present one. Figures of unfinished runs and of models whose outputs were wrong do not count.

    Args:
        goldens: chain and golden.
        records: journals, the newest first.
        folder: of all runs; one that is a part of a comparison is named by its path in it.
    """
    runs = [_Run(record, goldens, folder) for record in records if record.runs]
    standings = []
    for chain, golden in goldens:
        rivals = {
            other.sku
            for place, other in goldens
            if place == chain and other.metric is golden.metric and other != golden
        }
        standings.append(_standing(chain, golden, rivals, runs))
    return standings


class _Run:
    """The figures of one run, also for goldens that it did not know."""

    def __init__(self, record: JournalRecord, goldens: Sequence[tuple[str, Golden]], folder: Path) -> None:
        by_chain: dict[str, list[dict[str, Any]]] = {}
        for chain, golden in goldens:
            by_chain.setdefault(chain, []).append(asdict(golden))
        self.name = record.path.parent.relative_to(folder).as_posix()
        self._steps = {(step["chain"], step["stage"]): step for step in record.steps}
        self._results = record.results
        steps = tuple({**step, "goldens": by_chain.get(step["chain"], ())} for step in record.steps)
        self._evidence: dict[tuple[str, Golden], Evidence] = {
            (item.chain, golden): item
            for golden, items in collect_evidence([replace(record, steps=steps)]).items()
            for item in items
        }

    def figure(self, chain: str, golden: Golden) -> tuple[Evidence, Mapping[str, Any], Result] | None:
        """A golden's figure, the step that has measured it, and the step's result."""
        evidence = self._evidence.get((chain, golden))
        if evidence is None:
            return None
        step = self._steps[chain, _STAGES[golden.metric]]
        return evidence, step, self._results[step["id"]]


def _standing(chain: str, golden: Golden, rivals: Collection[str], runs: Sequence[_Run]) -> Standing:
    passed_over = ""
    for run in runs:
        found = run.figure(chain, golden)
        if found is None:
            continue
        evidence, step, result = found
        objection = _objection(golden, evidence, str(step.get("sku", "")), rivals)
        if not objection:
            verdict, note = _verdict(golden, evidence, result)
            return Standing(chain, golden, verdict, evidence.measured, run.name, note)
        passed_over = passed_over or f"{run.name} measured {_figure(golden, evidence.measured)} {objection}"
    return Standing(chain, golden, Verdict.NOT_MEASURED, note=passed_over)


def _figure(golden: Golden, measured: float) -> str:
    return f"{measured:.4g} ms" if golden.metric is Metric.TIME_MS else f"{measured:,.10g}"


def _objection(golden: Golden, evidence: Evidence, sku: str, rivals: Collection[str]) -> str:
    """Why a figure may not be held against a golden; empty where it may."""
    everywhere = not golden.sku or (golden.metric is not Metric.TIME_MS and golden.sku in FAMILIES)
    if everywhere and sku in rivals and sku:
        return f"with the SKU {sku}, which has a golden of its own"
    if not everywhere and sku != golden.sku:
        return f"with the SKU {sku}" if sku else "without a SKU"
    if golden.release and not covers(golden.release, evidence.release):
        return f"with release {evidence.release or 'unknown'}"
    disturbed = evidence.refused.startswith("disturbed:")
    undecided = evidence.refused.endswith(" inconclusive")
    return "" if not evidence.refused or disturbed or undecided else f"but {evidence.refused}"


def _verdict(golden: Golden, evidence: Evidence, result: Result) -> tuple[Verdict, str]:
    """The verdict, and a remark on it."""
    own = next(_own_checks(golden, result), None)
    if result.verdict == "inconclusive":
        return Verdict.INCONCLUSIVE, result.reason
    # Where the run has held it against this very golden, it knows more: a breach may not have been confirmed.
    broken = own.passed is False if own else evidence.measured > golden.limit
    if broken:
        return Verdict.BROKEN, evidence.refused
    loose = evidence.measured < _LOOSE * golden.value
    return Verdict.LOOSE if loose else Verdict.KEPT, evidence.refused


def _own_checks(golden: Golden, result: Result) -> Iterator[Check]:
    place = f"{golden.origin.file}: {golden.origin.field}"
    for check in result.checks:
        same = check.golden == golden.value and check.factor == golden.factor
        if check.metric == golden.metric and same and check.note == place and check.passed is not None:
            yield check
