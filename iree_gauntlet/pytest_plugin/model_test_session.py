"""Planning and running the tests of one pytest process with the toolkit's engine."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.cases import Case, Verdict, exit_code_of
from iree_gauntlet.dialects.load import CaseSet
from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.engine.plan import make_plan
from iree_gauntlet.engine.run_start import assign_local_devices, block_impossible_imports, make_run_event
from iree_gauntlet.engine.session import Session, open_session
from iree_gauntlet.engine.varying import require_known_flags, vary_cases
from iree_gauntlet.engine.workbench import make_plan_context, open_workbench
from iree_gauntlet.errors import SpecError
from iree_gauntlet.journal_events import EndEvent
from iree_gauntlet.journal_format import JournalRecord
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.records.outcome import StepOutcome, read_step_outcome
from iree_gauntlet.reports.details import list_findings
from iree_gauntlet.reports.live_progress import PlainProgress
from iree_gauntlet.requests import ExecutionRequest, ToolchainRequest
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.stages import CHECK_STAGES, Stage
from iree_gauntlet.steps import Step, make_step_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.dialects.torch_models import TorchTest
    from iree_gauntlet.engine.rounds.taken_rounds import ConfirmRules
    from iree_gauntlet.variants import FlagVariant


_LOG = logging.getLogger("iree_gauntlet")


class _PlainFailure(pytest.fail.Exception):  # type: ignore[name-defined,misc] # pytest types it as a function's attribute
    """A failure that is shown as text, because a traceback of the toolkit would not help."""

    __test__ = False
    __module__ = "builtins"  # as for pytest's own: summaries then show only the class name

    def __init__(self, step: StepOutcome, run_dir: Path) -> None:
        lines = [f"{step.title}: {step.verdict}: {step.reason}", *(f"    {line}" for line in list_findings(step))]
        lines += [f"    | {line}" for line in step.tail]
        lines += [f"note: {note}" for note in step.notes if note]
        if step.ran:
            lines.append(f"reproduce: {step.command}")
        if step.log:
            lines.append(f"full log:  {run_dir / step.log}")
        super().__init__("\n".join(lines), pytrace=False)


class TestFailure(_PlainFailure):
    """A failure of the product under test."""

    __module__ = "builtins"


class CheckFailure(TestFailure):
    """A failure of the check itself; a test that is marked `xfail` is expected to raise this."""

    __module__ = "builtins"


class StepError(_PlainFailure):
    """An error outside of the product under test; the test cannot be judged."""

    __module__ = "builtins"


class _Log(PlainProgress):
    """Progress in pytest's log, which `--log-cli-level=info` shows."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.results: dict[str, Result] = {}
        self.running: set[str] = set()

    def step_started(self, step: Step, worker: str = "") -> None:
        del worker  # only a run has any
        self.running.add(step.id)
        self._write_line(f"{step.chain} {step.stage}")

    def step_finished(self, step: Step, result: Result) -> None:
        self.results[step.id] = result
        self.running.discard(step.id)
        if result.command:
            self._write_line(result.command)
        self._write_line(f"{step.chain} {step.stage}: {result.verdict} {result.full_reason}".rstrip())

    def _write_line(self, text: str, verdict: str = "") -> None:
        del verdict
        _LOG.info("%s", text)

    def _show(self, *, at_once: bool = False) -> None:
        """Do nothing, because pytest's log has no heartbeat."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The settings of one process's tests.

    Attributes:
        journal: the name of this process's journal in the session's folder.
        force_recompile: True if modules are rebuilt, once for all processes.
        confirm: how a broken golden time is confirmed; None to fail at once.
        all_goldens: True if a golden that is not applied makes its test inconclusive.
        reruns: how often a step that failed is repeated.
        flaky_passes: True if a flaky step does not fail its test.
        command: the pytest command of the user.
    """

    journal: str
    processes: int
    force_recompile: bool
    confirm: ConfirmRules | None
    all_goldens: bool
    reruns: int
    flaky_passes: bool
    markers: str
    variants: tuple[FlagVariant, ...]
    command: Sequence[str]


class ModelTestSession:
    """The selected tests of one process: one plan and one journal; each test runs its part.

    Processes share the session's folder; `artifacts` is the folder of downloads and modules.

    Raises:
        GauntletError: there is no IREE, its tools lack a flag, or a folder cannot be written.
    """

    def __init__(self, tests: Sequence[TorchTest], run_dir: Path, artifacts: Path, settings: SessionSettings) -> None:
        self.run_dir = run_dir
        self._log = _Log()
        self._workbench = open_workbench(
            ToolchainRequest(str(artifacts)), self._log, need_toolchain=True, prefer_path=True
        )
        needed_cases = {case.id: case for test in tests for case in test.required}
        cases = CaseSet(tuple(test.case for test in tests), tuple(needed_cases.values()), ())
        variants = settings.variants
        require_known_flags(variants, self._workbench.get_flags)
        cases = vary_cases(cases, variants, added=variants)
        execution = ExecutionRequest(force_recompile=settings.force_recompile)
        plan = make_plan(cases, CHECK_STAGES.values(), make_plan_context(self._workbench, run_dir, execution))
        if plan.problems:
            raise SpecError(list(plan.problems))
        plan = assign_local_devices(block_impossible_imports(plan, self._workbench), self._workbench)
        self._steps = {step.id: step for step in plan.steps}
        self._verdicts: dict[str, Verdict] = {}
        self._options = RunOptions(
            jobs=max(1, read_machine_facts().cores // settings.processes),
            fail_fast=False,
            rebuilt_marks_dir=run_dir / "made-again" if settings.force_recompile else None,
            allow_xpass=False,
            all_goldens=settings.all_goldens,
            confirm=settings.confirm,
            reruns=settings.reruns,
            flaky_passes=settings.flaky_passes,
        )
        self._began = datetime.now(UTC)
        self._journal = Journal(run_dir / settings.journal, lambda: datetime.now(UTC))
        targets = sorted({test.case.target for test in tests})
        suite = "+".join(("pytest", *(variant.name for variant in variants)))
        event = make_run_event(plan, run_dir, self._workbench, suite, targets, settings.command)
        event = replace(event, markers=settings.markers, variants=variants, flaky_passes=settings.flaky_passes)
        self._journal.write_opening(event, plan.steps)
        self._session: Session[Journal] | None = None
        self._stack = ExitStack()

    @property
    def why(self) -> str:
        """The reason for choosing this IREE among several."""
        return self._workbench.iree.selection_reason

    def prepare(self, case: Case) -> None:
        """Run the steps that a test's check needs.

        Raises:
            StepError: an error prevented one of them.
        """
        steps = self._list_steps(case)
        self._perform(steps[:-1])
        for step in steps[:-1]:
            if self._verdicts[step.id].is_error:
                raise StepError(self._make_outcome(step), self.run_dir)

    def check(self, case: Case) -> StepOutcome:
        """Run a test's check and return its result.

        Raises:
            TestFailure: a step that it needs failed.
            StepError: an error prevented the check, or its result is inconclusive.
        """
        steps = self._list_steps(case)
        self._perform(steps)
        for step in steps[:-1]:
            verdict = self._verdicts[step.id]
            if verdict is Verdict.FAILED or self.is_failed_flake(verdict):
                raise TestFailure(self._make_outcome(step), self.run_dir)
        outcome = self._make_outcome(steps[-1])
        # A test that could not be judged does not pass.
        if outcome.verdict.is_bad and not outcome.verdict.is_conclusive:
            raise StepError(outcome, self.run_dir)
        return outcome

    def is_failed_flake(self, verdict: Verdict) -> bool:
        """Return True if a step was flaky, and so fails its test."""
        return verdict is Verdict.FLAKY and not self._options.flaky_passes

    def close(self) -> None:
        """End the running steps and the journal."""
        self._stack.close()
        seconds = (datetime.now(UTC) - self._began).total_seconds()
        self._journal.write_end(
            exit_code=int(exit_code_of(self._verdicts.values(), flaky_passes=self._options.flaky_passes)),
            seconds=seconds,
            interrupted=False,
        )
        self._journal.close()

    def _list_steps(self, case: Case) -> list[Step]:
        """Return the steps of a case's checks, and the checks, in an order of dependencies."""
        steps_by_id: dict[str, Step] = {}

        def visit(step: Step) -> None:
            for need in step.needs:
                if need in self._steps and need not in steps_by_id:
                    visit(self._steps[need])
            steps_by_id[step.id] = step

        # With a tuning spec, each test has a check of its dispatches. The check of the test's own kind is last.
        for stage in (Stage.COMPSTAT, CHECK_STAGES[case.kind]):
            if step := self._steps.get(make_step_id(case.chain, stage)):
                visit(step)
        return list(steps_by_id.values())

    def _perform(self, steps: Sequence[Step]) -> None:
        verdicts = {step.id: self._verdicts[step.id] for step in steps if step.id in self._verdicts}
        if len(verdicts) == len(steps):
            return
        # An exception in another test, such as a timeout, has ended the session: open a new one.
        if self._session is None or self._session.cancelled.is_set():
            self._stack.close()
            self._session = self._stack.enter_context(open_session(self.run_dir, self._journal, self._log))
        try:
            self._verdicts |= Engine(self._session, self._workbench, self._options).perform(steps, verdicts)
        except BaseException as error:
            # The test has timed out, or the user has interrupted it.
            reason = f"ended by pytest: {type(error).__name__} {error}".strip()
            for step_id in self._log.running:
                self._journal.write_result(step_id, Result(Verdict.ERROR, shorten(reason)))
            self._log.running.clear()
            raise

    def _make_outcome(self, step: Step) -> StepOutcome:
        return read_step_outcome(step, JournalRecord(self.run_dir, results=self._log.results, end=EndEvent()))
