"""The rounds of a comparison that a worker takes: a model at a time, both sides on one of its devices."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.cluster.run_order import with_paths
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.compare_elsewhere import ENDED
from iree_gauntlet.experiments.compare_where import SideTools, explain_differences
from iree_gauntlet.experiments.session_verdicts import Comparer, judge
from iree_gauntlet.experiments.sides import pair_of
from iree_gauntlet.journal_format import read_events
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.compare_record import COMPARISON_FILE
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.results import Result

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.cluster.device_health import DeviceHealth
    from iree_gauntlet.cluster.link import Made, Order
    from iree_gauntlet.cluster.run_steps import HereSteps
    from iree_gauntlet.engine.rounds.blocks import Pair
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.compare_settings import CompareSettings
    from iree_gauntlet.steps import Step


class RoundsPart:
    """What a worker does of a comparison.

    Args:
        sides: A and B, opened here.
        settings: how rounds are taken and judged.
        health: checks devices.
        renamed: paths here, and what they are where the comparison was started.
        folder: has both sides, and gets a log for each model.
    """

    def __init__(
        self,
        sides: tuple[HereSteps, HereSteps],
        settings: CompareSettings,
        health: DeviceHealth,
        renamed: Mapping[str, str],
        folder: Path,
    ) -> None:
        self._sides = dict(zip("AB", sides, strict=True))
        self._settings = settings
        self._health = health
        self._renamed = renamed
        self._folder = folder
        self._numbers = count()
        # Of the model that is being measured.
        self._session: Session[EventLog] | None = None
        self._ended = False

    def do(self, order: Order) -> dict[str, Any]:
        """The answer to an order: a `result` with the `events` of what was measured, or `missing` files."""
        steps = []
        for name, side in self._sides.items():
            step = side.on_device(order.step, order.device)
            made = [_of_side(item, name) for item in order.made if item.step.startswith(f"{name} ")]
            if (failed := side.needed(step, made)) is not None:
                result = replace(failed.result, reason=f"{name}: {failed.result.reason}")
                return replace(failed, result=result).as_dict(self._renamed)
            steps.append(step)
        # Nothing of the sides' keeps the machine from being quiet.
        self.rest()
        try:
            if unfit := self._health.due(order.device, timed=True):
                return {"unfit": unfit}
            settings = self._settings
            pair = pair_of(steps[0].chain, (steps[0], steps[1]), settings.metric, settings.rounds)
            events = self._measured(pair, order.seconds)
        except GauntletError as error:
            return {"result": Result(Verdict.ERROR, error.what, tail=(error.hint,)).as_dict()}
        return {"result": Result(Verdict.PASSED).as_dict(), "events": with_paths(events, self._renamed)}

    def rest(self) -> None:
        """Nothing is to be done for now."""
        for side in self._sides.values():
            side.run.engine.rest()

    def abort(self) -> None:
        """Ends what is under way."""
        for side in self._sides.values():
            side.run.engine.abort()
        self._ended = True
        if self._session is not None:
            self._session.cancel()

    def _measured(self, pair: Pair, seconds: float) -> list[dict[str, Any]]:
        """Takes the rounds of a model; what its log has then."""
        folder = self._folder / "rounds" / str(next(self._numbers))
        folder.mkdir(parents=True)
        rules = replace(self._settings.rules, budget=seconds)
        with EventLog(folder / COMPARISON_FILE, lambda: datetime.now(UTC)) as log:
            with open_session(self._folder, log, Progress()) as session:
                self._session = session
                if self._ended:
                    session.cancel()
                evidence = Comparer(session, rules).run([pair], {})
                failure = evidence[pair.chain].failure
                log.write(ENDED, {"machine": machine_facts().as_dict(), "failure": failure})
                verdicts = judge(evidence, rules)
                if self._settings.metric == "time":
                    a, b = (_tools(side) for side in self._sides.values())
                    explain_differences(session, verdicts, [pair], (a, b), lambda _: {})
            self._session = None
        events = [event for _, event in read_events(folder / COMPARISON_FILE, "comparison").events]
        shutil.rmtree(folder)
        return events


def _of_side(made: Made, side: str) -> Made:
    return replace(made, step=made.step.removeprefix(f"{side} "))


def _tools(side: HereSteps) -> SideTools:
    compiles: list[Step] = [step for step in side.run.steps if step.stage is Stage.COMPILE]
    outputs = [dict(step.outputs) for step in compiles]
    return SideTools(side.run.machine, {made["module"]: made for made in outputs})
