"""A comparison whose rounds other machines take: each model is measured by one of them, both sides on one device.

What comes back goes into the log of the comparison as one event a model, `measured`, with all that was measured of it,
by whom, on what machine: a log that was cut short has a model as a whole, or not at all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.engine.rounds.blocks import PairEvidence
from iree_gauntlet.experiments.run import Machines
from iree_gauntlet.records.compare_record import MeasuredElsewhere, WhereChanged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.run import Chosen
    from iree_gauntlet.experiments.session_verdicts import Rules
    from iree_gauntlet.experiments.sides import PreparedSide
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.requests import CompareRequest
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step


# The last event of a worker's log: its machine, and why there is no verdict.
ENDED = "measured here"
_MADE = (Stage.IMPORT, Stage.COMPILE)


@dataclass(frozen=True, slots=True)
class MadeByWorker:
    """A module that a side has.

    Attributes:
        need: side and step, `A dtln@cpu:compile`.
    """

    need: str
    key: str
    worker: str


class ComparingMachines(Machines, Protocol):
    """Machines that take the rounds of comparisons as well."""

    def comparing(
        self, chosen: Chosen, asked: CompareRequest, sides: tuple[PreparedSide, PreparedSide], progress: Progress
    ) -> AbstractContextManager[RoundsElsewhere]:
        """Has them take the rounds of a comparison whose sides they have run, until it is left.

        Raises:
            GauntletError: none of them can.
        """


class RoundsElsewhere(Protocol):
    """Other machines, which take the rounds of a comparison."""

    def measure(self, units: Sequence[Step], made: Sequence[MadeByWorker], rounds: RoundsLog) -> None:
        """Has each model measured by one of them.

        Args:
            units: the step of each model whose rounds are taken, of A; it has its host to itself, and needs `made`.
            made: the modules of both sides.
            rounds: takes what comes of it.

        Raises:
            BaseException: what a signal handler raises, after they were told to end.
        """


def units_of(
    steps: Iterable[tuple[Step, Step]], sides: tuple[PreparedSide, PreparedSide]
) -> tuple[list[Step], list[MadeByWorker]]:
    """The models that are to be measured, each by its step of both sides; see `RoundsElsewhere.measure`."""
    units: list[Step] = []
    made: list[MadeByWorker] = []
    for both in steps:
        needs = []
        for side, step in zip(sides, both, strict=True):
            for item in side.planned:
                result = side.record.results.get(item.id)
                if item.id in step.needs and item.stage in _MADE and result and result.cache and result.cache.key:
                    needs.append(MadeByWorker(f"{side.name} {item.id}", result.cache.key, result.worker))
        resources = replace(both[0].resources, exclusive=True)
        units.append(replace(both[0], needs=tuple(item.need for item in needs), resources=resources))
        made += needs
    return units, made


class RoundsLog:
    """Takes what comes back of the units, into the log and the evidence; as `Conductor` of a cluster's runner.

    Args:
        session: of the comparison.
        rules: of it; the budget begins now.
        evidence: what an earlier part of it has measured, by model; changed in place.
        earlier: the events of that part.

    Attributes:
        where: where the time went, by model, as `WhereChanged` has it.
    """

    def __init__(
        self,
        session: Session[Any],
        rules: Rules,
        evidence: dict[str, PairEvidence],
        earlier: Iterable[Mapping[str, Any]],
    ) -> None:
        self.session = session
        self.evidence = evidence
        before = [MeasuredElsewhere.from_dict(event) for event in earlier if event.get("event") == "measured"]
        self.where = {item.chain: item.where for item in before if item.where and not item.problem}
        self._rules = rules
        self._events: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._ends = time.monotonic() + rules.budget_seconds

    def share(self, hosts: int, units: int) -> float:
        """Seconds of what is left of the budget for each of some units, of which so many hosts take one each."""
        left = max(0.0, self._ends - time.monotonic())
        return left * min(1.0, hosts / max(1, units))

    def begin(self, step: Step, *, worker: str = "", again: bool = False) -> None:
        """A unit is given to a worker."""
        self.session.log.write("begun", {"chain": step.chain, "worker": worker})
        self.session.progress.message(f"{step.chain}: measured on {worker}{', from the beginning' if again else ''}")

    def keep(self, step: Step, events: Sequence[Mapping[str, Any]]) -> None:
        """What a worker has in its log of a unit; `conclude` follows."""
        self._events[step.id] = events

    def conclude(self, step: Step, result: Result) -> Verdict:
        """A unit is over."""
        events = self._events.pop(step.id, ())
        problem, machine, where = result.reason, {}, None
        blocks: list[dict[str, Any]] = []
        for event in events:
            match event:
                case {"event": "block"}:
                    blocks.append({name: value for name, value in event.items() if name not in ("event", "time")})
                case {"event": "where"}:
                    where = WhereChanged.from_dict(event)
                case {"event": kind, "machine": about, "failure": why} if kind == ENDED:
                    problem, machine = why, about
        measured = MeasuredElsewhere(
            chain=step.chain,
            worker=result.worker,
            problem=problem,
            notes=result.notes,
            machine=machine,
            blocks=tuple(blocks),
            where=where,
        )
        self.session.log.write("measured", measured.as_dict())
        if where:
            self.where[step.chain] = where
        found = self.evidence[step.chain] = PairEvidence(failure=measured.problem)
        for block in measured.blocks:
            found.add(block)
        nothing = found.failure or "the time is up, before its first block"
        what = self._rules.describe(found) if found.blocks else nothing
        self.session.progress.message(f"{step.chain}: {what}, on {result.worker}")
        return result.verdict

    def remark(self, text: str) -> None:
        """Something that a reader must know."""
        self.session.log.write("remark", {"text": text})
        self.session.progress.message(text)

    def abort(self) -> None:
        """Ends what runs here."""
        if not self.session.cancelled.is_set():
            self.session.cancel()
