"""The record of an explanation, and the outcome, even of a killed explanation.

The journal is in the folder `explain` of a run, and its steps are cases. Each part of a case's findings is an event
(`again`, `located`, …); a new start of the case makes the earlier events void.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.formatting import join_lines, pluralize
from iree_gauntlet.journal_events import ExperimentKind, Opening, StepStart
from iree_gauntlet.journal_format import EXPLAIN_FOLDER, JOURNAL, JournalSchema
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded, RecordError, read_text
from iree_gauntlet.records.outcome import Explanation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.journal_events import EndEvent
    from iree_gauntlet.journal_format import JournalEvent
    from iree_gauntlet.records.outcome import RunOutcome, StepOutcome


# The subfolder of a run's folder that has the run's explanation.
_JOURNAL_PATH = f"{EXPLAIN_FOLDER}/{JOURNAL}"
_EVENT_KEYS = ("event", "time", "step")
_MAX_ANSWERS = 2


@dataclass(frozen=True, slots=True)
class CaseRequest(Recorded):
    """A case to explain, and why it did not pass; `changed`: an expected output is not the one that was recorded."""

    case: str
    kind: str
    reason: str
    changed: bool = field(default=False, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOpening(Opening):
    """The opening of an explanation: the cases and the IREE; `base` is the faster IREE if slowness is explained."""

    kind: ExperimentKind = ExperimentKind.EXPLAIN
    cases: tuple[CaseRequest, ...]
    toolchain: dict[str, str]
    base: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SameCase(Recorded):
    """`same`: another, explained case has the same program and flags; the record has that case's name as `as`."""

    case: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create the object from plain data; errors as in `Recorded.from_dict`."""
        return cls(read_text(data, "as"))


@dataclass(frozen=True, slots=True)
class EmptyFinding(Recorded):
    """`nothing`: the reason why nothing was found."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class RepetitionFinding(Recorded):
    """The number of failures in two repeated attempts; `same` is True if both failed in the same way."""

    failed: int
    same: bool


@dataclass(frozen=True, slots=True)
class CulpritFinding(EmptyFinding):
    """A faulty dispatch (`located`) or operator, or the reason why none is known.

    Attributes:
        reference: the reference of the comparison; empty if the dispatch fails before it has outputs.
        in_f64, around: errors; None means infinity.
        agrees: True if IREE gives what onnxruntime gives, so that it is not at fault.
        function_call: of several calls, the one that the dispatch belongs to, `2 (step)`.
    """

    note: str = ""
    dispatch: str = ""
    operator: str = ""
    call: int = 0
    of: int = 0
    reference: str = ""
    error: float = math.inf
    in_f64: dict[str, float | None] = field(default_factory=dict)
    around: tuple[tuple[int, str, float | None], ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    repeated: bool = False
    agrees: bool = field(default=False, metadata=UNLESS_DEFAULT)
    function_call: str = field(default="", metadata=UNLESS_DEFAULT)

    def __post_init__(self) -> None:
        if self.around and self.call not in (call for call, *_ in self.around):
            raise RecordError("call", f"expected one of those in `around`, found {self.call}")


@dataclass(frozen=True, slots=True)
class ProgramSize(Recorded):
    """The size of a program."""

    operations: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReductionFinding(EmptyFinding):
    """The reduced form of a program that does not compile, or the reason why there is none; see `reduce_program`."""

    before: ProgramSize = field(default_factory=ProgramSize)
    after: ProgramSize = field(default_factory=ProgramSize)
    tried: int = 0
    complete: bool = True
    phase: str = ""
    names: tuple[str, ...] = ()

    def describe(self, effort: str = "") -> str:
        """Describe the change in size: `reduced from 500 operations to 1 in 10 compiles: onnx.Cast`."""
        size = f"{self.after.operations:,}" if self.after.operations else "none"
        names = ", ".join(self.names) or "a function without operations"
        return f"reduced from {self.before.operations:,} operations to {size}{effort}: {names}"


@dataclass(frozen=True, slots=True)
class DispatchTrial(Recorded):
    """A dispatch that was measured alone, and the result."""

    name: str
    said: str


@dataclass(frozen=True, slots=True)
class SlowdownFinding(EmptyFinding):
    """A dispatch that is slower, or the reason why none is slower."""

    tried: tuple[DispatchTrial, ...] = ()
    name: str = ""
    a_ns: int = 0
    b_ns: int = 0
    share: float = 0.0
    unit: str = "ms"
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BundleResult(Recorded):
    """A bundle, or the problem that prevented it."""

    problem: str = ""
    folder: str = ""
    bytes: int = 0
    exit_code: int | None = None
    form: str = ""


@dataclass(frozen=True, slots=True)
class SwitchProbe(Recorded):
    """The effect of a compiler switch: the case `passes` or `fails` with the switch, or this is `unknown`, and why."""

    name: str
    flag: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SwitchProbes(Recorded):
    """The switches that were tried as workarounds."""

    probes: tuple[SwitchProbe, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseFindings(Recorded):
    """The findings about a case, by the events of its record."""

    again: RepetitionFinding | None = None
    located: CulpritFinding = field(default_factory=CulpritFinding)
    operator: CulpritFinding = field(default_factory=CulpritFinding)
    reduced: ReductionFinding | None = None
    slower: SlowdownFinding | None = None
    nothing: EmptyFinding = field(default_factory=EmptyFinding)
    same: SameCase | None = None
    bundle: BundleResult | None = None
    probes: SwitchProbes = field(default_factory=SwitchProbes)


@dataclass(frozen=True, slots=True)
class CaseEnd(Recorded):
    """`result`: `bundled`: a bundle reproduces the case; `private`: without own values; `budget`: reduction minutes."""

    bundled: bool = False
    private: bool = False
    seconds: float = 0.0
    budget: float = math.inf


EXPLANATION = JournalSchema(
    (ExperimentKind.EXPLAIN,),
    ExplainOpening,
    {
        "again": RepetitionFinding,
        "located": CulpritFinding,
        "operator": CulpritFinding,
        "reduced": ReductionFinding,
        "slower": SlowdownFinding,
        "nothing": EmptyFinding,
        "same": SameCase,
        "bundle": BundleResult,
        "probes": SwitchProbes,
        "result": CaseEnd,
    },
)


@dataclass(frozen=True, slots=True)
class CaseExplanation:
    """The findings about a case.

    Attributes:
        events: the events by name, as written; `findings` has the same, as objects.
        is_complete: True if the explanation was completed.
    """

    request: CaseRequest
    events: dict[str, dict[str, Any]]
    findings: CaseFindings
    is_complete: bool
    end: CaseEnd

    @property
    def case(self) -> str:
        """The case's name."""
        return self.request.case

    @property
    def has_bundle(self) -> bool:
        """True if a bundle reproduces the case."""
        return self.end.bundled

    @property
    def answer(self) -> str:
        """The answer in one line."""
        findings = self.findings
        fault, operator, reduction, slower = findings.located, findings.operator, findings.reduced, findings.slower
        if slower is not None and slower.name:
            summary = f"{slower.name} is slower by itself"
            return summary if self.has_bundle else f"{summary}, but its bundle does not show it"
        if culprit := fault.dispatch or operator.operator:
            gives_wrong_values = operator.operator or fault.reference
            summary = f"{culprit} {'is wrong on right inputs' if gives_wrong_values else 'fails'}"
            return summary if self.has_bundle else f"{summary}, but no bundle shows it"
        if findings.same is not None:
            return f"the program, its flags and so the failure are those of {findings.same.case}"
        if reduction is not None and not reduction.why:
            return reduction.describe()
        parts = (operator, findings.nothing, fault, reduction, slower)
        return next((finding.why for finding in parts if finding and finding.why), "it was not finished")

    @property
    def archive(self) -> str:
        """The bundle that reproduces the case, as a path in the run's folder; empty if there is none."""
        bundle = self.findings.bundle
        return f"{EXPLAIN_FOLDER}/{bundle.folder}.tar.gz" if bundle and self.has_bundle else ""

    @property
    def passing_switches(self) -> tuple[str, ...]:
        """The switches with which the case passes."""
        return tuple(probe.name for probe in self.findings.probes.probes if probe.verdict == "passes")


@dataclass(frozen=True, slots=True)
class ExplainOutcome:
    """The result of an explanation.

    Attributes:
        opening: the last opening.
        end: None if the explanation was killed or is running.
        cases_by_name: all cases of all openings, by name.
    """

    run: str
    opening: ExplainOpening
    cases: tuple[CaseExplanation, ...]
    end: EndEvent | None
    cases_by_name: dict[str, CaseExplanation]

    @property
    def exit_code(self) -> ExitCode:
        """The command's exit code; ERROR if the explanation did not finish."""
        return self.end.exit_code if self.end else ExitCode.ERROR

    @property
    def answer(self) -> str:
        """The answer in one line."""
        if self.end is not None and self.end.problem:
            return self.end.problem
        answers = list(dict.fromkeys(case.answer for case in self.cases if case.findings.same is None))
        prefix = "" if len(self.cases) == 1 else f"{pluralize(len(self.cases), 'failure')}: "
        others = len(answers) - _MAX_ANSWERS
        return prefix + "; ".join(answers[:_MAX_ANSWERS]) + (f"; and {others} more" if others > 0 else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `explain.json`."""
        return {
            "schema": 1,
            "run": self.run,
            "answer": self.answer,
            "exit_code": int(self.exit_code),
            "toolchain": self.opening.toolchain,
            "cases": [
                {
                    **case.request.as_dict(),
                    "answer": case.answer,
                    "bundled": case.has_bundle,
                    "seconds": case.end.seconds,
                    "found": {
                        part: {name: value for name, value in event.items() if name not in _EVENT_KEYS}
                        for part, event in case.events.items()
                    },
                }
                for case in self.cases
            ],
        }


def read_explain_outcome(folder: Path) -> ExplainOutcome:
    """Read the outcome from a folder; GauntletError if there is no readable record."""
    record = EXPLANATION.read(folder)
    events: dict[str, dict[str, JournalEvent]] = {}
    ends: dict[str, CaseEnd] = {}
    for event in record.events:
        match event.content:
            case StepStart():
                events[event.step], _ = {}, ends.pop(event.step, None)
            case CaseEnd() as end:
                ends[event.step] = end
            case _ if event.step:
                events.setdefault(event.step, {})[event.name] = event
    by_name: dict[str, CaseExplanation] = {}
    for request in (case for opening in record.openings for case in opening.cases):
        parts = events.get(request.case, {})
        contents: dict[str, Any] = {name: part.content for name, part in parts.items()}
        fields = {name: part.fields for name, part in parts.items()}
        end = ends.get(request.case, CaseEnd())
        by_name[request.case] = CaseExplanation(request, fields, CaseFindings(**contents), request.case in ends, end)
    cases = tuple(by_name[request.case] for request in record.opening.cases)
    return ExplainOutcome(folder.parent.name, record.opening, cases, record.end, by_name)


def list_reproduced_cases(folder: Path, *, without_weights: bool, budget: float) -> set[str]:
    """List the cases that a bundle reproduces; return none if nothing was explained yet.

    With `without_weights`, bundles with the model's own values do not count. Bundles of a reduction that was cut
    short after fewer minutes than the `budget` do not count either.
    """
    cases_by_name = read_explain_outcome(folder).cases_by_name if (folder / JOURNAL).is_file() else {}
    return {
        case.case
        for case in cases_by_name.values()
        if case.has_bundle
        and (case.end.private or not without_weights)
        and (not case.findings.reduced or case.findings.reduced.complete or case.end.budget >= budget)
    }


def add_explanations(outcome: RunOutcome, run_dir: Path) -> RunOutcome:
    """Return a run's outcome with the findings of `explain` added to the failed steps.

    An unreadable record becomes only a remark, because the run's reports are complete without explanations.
    """
    journal = run_dir / _JOURNAL_PATH
    if not journal.is_file():
        return outcome
    try:
        cases_by_name = read_explain_outcome(journal.parent).cases_by_name
    except GauntletError as error:
        remark = f"what `explain` found is left out: {error.message.replace(str(journal), _JOURNAL_PATH)}"
        return replace(outcome, remarks=(*outcome.remarks, join_lines(remark)))

    def explain(step: StepOutcome) -> StepOutcome:
        case = cases_by_name.get(step.chain)
        is_explainable = step.stage.row.is_explained and not step.role and step.verdict.blocks
        # Skip outdated explanations: a resumed run may have another result now.
        if case is None or not case.is_complete or not is_explainable or step.reason != join_lines(case.request.reason):
            return step
        return replace(step, explanation=Explanation(join_lines(case.answer), case.passing_switches, case.archive))

    chains = tuple(replace(chain, steps=tuple(map(explain, chain.steps))) for chain in outcome.chains)
    return replace(outcome, chains=chains)
