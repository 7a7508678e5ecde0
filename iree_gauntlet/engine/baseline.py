"""An earlier run as the baseline of another: what it measured is a golden, whatever the release."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Golden, Kind, Metric, Origin, Stage, Statistic, Verdict
from iree_gauntlet.steps import NOTHING_COMPARED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.steps import Step


# What each figure may be of the earlier one: a count is exact; a size has the names of releases and paths in it; and an
# error is of rounding, which other instructions and another order of threads do otherwise.
_FACTORS = {Metric.DISPATCH_COUNT: 1.0, Metric.BINARY_SIZE_BYTES: 1.01, Metric.MAX_ABS_ERROR: 2.0}


def with_counts(cases: CaseSet) -> CaseSet:
    """Cases of which, for each module, one reads how many dispatches it has and how large it is.

    Operator suites are left as they are: the compiler does not count for them.
    """
    counted = {case.modules[-1].id for case in cases.cases if case.kind is Kind.COMPSTAT or case.compile_statistics}
    found = []
    for case in cases.cases:
        main = case.modules[-1]
        if main.id not in counted and not main.program.name:
            counted.add(main.id)
            case = replace(case, compile_statistics=True)  # noqa: PLW2901 - the same, with one more step
        found.append(case)
    return replace(cases, cases=tuple(found))


def held_against(plan: Plan, record: JournalRecord, name: str, release: str) -> tuple[Plan, tuple[str, ...]]:
    """A plan with the figures of an earlier run as goldens, in addition to the specs' own.

    Args:
        plan: of the run to come.
        record: the earlier run.
        name: of it, for people.
        release: of the compiler: the figures are held against it, whichever the earlier run had.

    Returns:
        The plan, and the chains of which the earlier run has no figure.
    """
    steps, missing = [], []
    for step in plan.steps:
        judged = step.stage is Stage.COMPSTAT or (step.stage is Stage.THRESHOLD and NOTHING_COMPARED not in step.notes)
        # Before the spec's own, which stay what reports name.
        goldens = tuple(_goldens(step, record, Origin(f"--baseline {name}"), release)) if judged else ()
        if judged and not goldens and not step.skip:
            missing.append(step.chain)
        steps.append(replace(step, goldens=(*goldens, *step.goldens)))
    return replace(plan, steps=tuple(steps)), tuple(dict.fromkeys(missing))


def _goldens(step: Step, record: JournalRecord, origin: Origin, release: str) -> Iterator[Golden]:
    """What an earlier run measured of a step's chain; no error of outputs that were not as expected."""
    if step.stage is Stage.THRESHOLD:
        checked = record.results.get(step.id)
        error = checked.max_abs_error if checked is not None and checked.verdict is Verdict.PASSED else None
        if error is not None:
            yield _golden(Metric.MAX_ABS_ERROR, error, origin)
        return
    # A run that did not read them by themselves has them with its compiles.
    results = [record.results[name] for name in (step.id, *step.needs) if name in record.results]
    for metric in (Metric.DISPATCH_COUNT, Metric.BINARY_SIZE_BYTES):
        value = next((result.statistics[metric] for result in results if metric in result.statistics), None)
        if value is not None:
            yield _golden(metric, float(value), origin, release)


def _golden(metric: Metric, value: float, origin: Origin, release: str = "") -> Golden:
    return Golden(metric, value, _FACTORS[metric], Statistic.MEAN, "", release, origin)
