"""A run's outcome with what `explain` found out about it, where it did: from the record beside the journal."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.cleaning import one_line
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.records.explain_outcome import EXPLAIN_FOLDER, EXPLAIN_RECORD, explain_outcome
from iree_gauntlet.records.step_outcome import Explanation

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.records.explain_outcome import ExplainedCase
    from iree_gauntlet.records.outcome import RunOutcome
    from iree_gauntlet.records.step_outcome import StepOutcome


_RECORD = f"{EXPLAIN_FOLDER}/{EXPLAIN_RECORD}"
_NOT_EXPLAINED = (Verdict.PASSED, Verdict.XPASSED, Verdict.SKIPPED)


def with_explanations(outcome: RunOutcome, run_dir: Path) -> RunOutcome:
    """The outcome of a run whose failures name what `explain` found.

    A record that cannot be read is a remark: the run's reports are whole without it.
    """
    record = run_dir / _RECORD
    if not record.is_file():
        return outcome
    try:
        found = {name: _explanation(case) for name, case in explain_outcome(record.parent).known.items() if case.done}
    except GauntletError as error:
        return _with_remark(outcome, error.what.replace(str(record), _RECORD))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return _with_remark(outcome, f"{_RECORD} is no whole record: {type(error).__name__}: {error}")
    chains = tuple(
        replace(chain, steps=tuple(_explained(step, found[chain.id]) for step in chain.steps))
        if chain.id in found
        else chain
        for chain in outcome.chains
    )
    return replace(outcome, chains=chains)


def _with_remark(outcome: RunOutcome, why: str) -> RunOutcome:
    return replace(outcome, remarks=(*outcome.remarks, one_line(f"what `explain` found is left out: {why}")))


def _explanation(case: ExplainedCase) -> tuple[str, Explanation]:
    """The failure that it is about, as the run tells it, and what is said of that."""
    mended = tuple(map(str, case.mended_by))
    return one_line(case.reason), Explanation(one_line(case.answer), mended, case.archive)


def _explained(step: StepOutcome, found: tuple[str, Explanation]) -> StepOutcome:
    """A step with its explanation; a resumed run may have come out otherwise since."""
    reason, explanation = found
    fits = step.stage in (Stage.COMPILE, Stage.THRESHOLD) and not step.role and step.reason == reason
    return replace(step, explanation=explanation) if fits and step.verdict not in _NOT_EXPLAINED else step
