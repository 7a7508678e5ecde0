"""A benchmark that breaks its golden is run again before it fails: further rounds decide, up to a budget.

The rule is that of `measuring/goldens/goldens.py`: process starts of the spec's own command, looked at a few times,
with a false-alarm rate over all looks together. What broke the golden is left out, as it was picked for being slow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Statistic, Verdict
from iree_gauntlet.engine.rounds.taken_rounds import as_written, take_round
from iree_gauntlet.measuring.goldens.goldens import Confirmation, confirm_breach
from iree_gauntlet.measuring.statistics.rounds import SequentialPlan, plan_looks
from iree_gauntlet.results import Check, shorten

if TYPE_CHECKING:
    import threading

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.measuring.statistics.rounds import Round
    from iree_gauntlet.steps import Step


_ALPHA = 0.01
_MOST_ROUNDS = 26
# Rounds that may be replaced for a disturbance, beyond one for each that counts.
_SPARE_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class ConfirmRules:
    """When a golden counts as broken.

    Attributes:
        plan: when to look, and the false-alarm rate of all looks together.
        budget: seconds for the rounds of one benchmark.
        replace_disturbed: whether a round that other work disturbed is taken again; else it is marked and counts.
    """

    plan: SequentialPlan
    budget: float
    replace_disturbed: bool


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What further rounds said.

    Attributes:
        verdict: passed, failed or inconclusive; error where a round failed.
        check: the golden's check with what is known now.
        record: everything that was measured, for the journal.
        tool_seconds: wall time of the rounds' processes.
    """

    verdict: Verdict
    check: Check
    reason: str
    record: dict[str, Any]
    tool_seconds: float


def confirm_rules(verdict: str, budget: float, *, replace_disturbed: bool = True) -> ConfirmRules | None:
    """The rules of a run; None where the dialects' plain rule is the verdict.

    Args:
        verdict: `confirm` or `strict`.
        budget: seconds for the rounds of one benchmark.
        replace_disturbed: whether a round that other work disturbed is taken again.
    """
    if verdict == "strict":
        return None
    return ConfirmRules(plan_looks(_ALPHA, _MOST_ROUNDS), budget, replace_disturbed)


def confirm_time(
    step: Step, check: Check, processes: Processes, rules: ConfirmRules, cancelled: threading.Event
) -> Confirmed:
    """Takes rounds of a benchmark until it is clear whether its golden is broken.

    Args:
        step: the benchmark; the machine is its alone.
        check: the golden that its first run broke.
        processes: starts the rounds.
        rules: when it is clear.
        cancelled: set to end it.

    Raises:
        GauntletError: a process cannot be started at all.
    """
    measurement = as_written(step)
    deadline = time.monotonic() + rules.budget
    rounds: list[Round] = []
    records: list[dict[str, Any]] = []
    disturbance, seconds, failure = "", 0.0, ""
    verdict: Confirmation | None = None
    while not cancelled.is_set():
        replaced = len(records) - len(rounds)
        if replaced > _SPARE_ROUNDS + len(rounds):
            failure = f"{replaced} of {len(records)} more rounds were disturbed; for example: {disturbance}"
            break
        if time.monotonic() >= deadline:
            break
        taken = take_round(measurement, processes, "confirm.")
        seconds += taken.seconds
        records.append(taken.as_dict())
        if taken.failure:
            failure = f"a further round failed: {taken.failure}"
            return Confirmed(Verdict.ERROR, check, shorten(failure), _record(records, None, failure), seconds)
        disturbance = next(iter(taken.disturbed), disturbance)
        if taken.disturbed and rules.replace_disturbed:
            continue
        rounds.append(taken.evidence)
        verdict = confirm_breach(rounds, check.golden, check.factor, Statistic(check.statistic), rules.plan)
        if verdict.next_look is None:
            break
    if failure:
        reason, passed = failure, None
    elif verdict is None:
        reason, passed = f"no further round within {rules.budget:g} s", None
    else:
        passed = verdict.passed
        late = "; the time is up" if passed is None and verdict.next_look is not None else ""
        marked = sum(bool(record["disturbed"]) for record in records) if not rules.replace_disturbed else 0
        disturbed_text = f" ({marked} of them disturbed; for example: {disturbance})" if marked else ""
        reason = f"after {len(rounds)} more rounds{disturbed_text}, {verdict.reason}{late}"
    outcomes = {True: Verdict.PASSED, False: Verdict.FAILED, None: Verdict.INCONCLUSIVE}
    check = replace(check, passed=passed, note=f"{check.note}; {reason}")
    return Confirmed(outcomes[passed], check, shorten(reason), _record(records, verdict, reason), seconds)


def _record(rounds: list[dict[str, Any]], verdict: Confirmation | None, reason: str) -> dict[str, Any]:
    record: dict[str, Any] = {"reason": reason, "rounds": rounds}
    if verdict is not None:
        bounded = verdict.low > 0
        record |= {
            "passed": verdict.passed,
            "measured_ms": verdict.measured,
            "low_ms": verdict.low if bounded else None,
            "high_ms": verdict.high if bounded else None,
            "limit_ms": verdict.limit,
            "confidence": verdict.confidence,
        }
    return record
