"""The record of an explanation, and its outcome: also of one that was killed.

Its journal is in the folder `explain` of a run; its steps are cases. What was found of one is an event for each part
(`again`, `located`, …), and does not count any more when the case is started again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.formatting import one_line
from iree_gauntlet.journal_events import ExperimentKind, Opening, StepStart
from iree_gauntlet.journal_format import JOURNAL, JournalSchema
from iree_gauntlet.recorded import Recorded, RecordError, read_text
from iree_gauntlet.records.outcome import Explanation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.journal_events import EndEvent
    from iree_gauntlet.journal_format import JournalEvent
    from iree_gauntlet.records.outcome import RunOutcome, StepOutcome


# Of a run, where its explanation is.
EXPLAIN_FOLDER = "explain"
_RECORD = f"{EXPLAIN_FOLDER}/{JOURNAL}"
_EVENT = ("event", "time", "step")


@dataclass(frozen=True, slots=True)
class AskedCase(Recorded):
    """A case that is to be explained, and why it did not pass."""

    case: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainOpening(Opening):
    """How an explanation begins: the cases and the IREE, where it is slower than `base` as well."""

    kind: ExperimentKind = ExperimentKind.EXPLAIN
    cases: tuple[AskedCase, ...]
    toolchain: dict[str, str]
    base: dict[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SameCase(Recorded):
    """`same`: the program and its flags are those of another case, which is explained; its name is written as `as`."""

    case: str

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As `Recorded.from_dict`."""
        return cls(read_text(data, "as"))


@dataclass(frozen=True, slots=True)
class FoundReason(Recorded):
    """`nothing`: why nothing was found."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class FoundAgain(Recorded):
    """How often it failed again, of twice, and whether in the same way."""

    failed: int
    same: bool


@dataclass(frozen=True, slots=True)
class FoundCulprit(FoundReason):
    """A dispatch (`located`) or an operator that is at fault, or why none is known.

    Attributes:
        reference: what it was held against; empty where it fails before it gives anything.
        in_f64, around: with None for what is infinite.
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

    def __post_init__(self) -> None:
        if self.around and self.call not in (call for call, *_ in self.around):
            raise RecordError("call", f"expected one of those in `around`, found {self.call}")


@dataclass(frozen=True, slots=True)
class ProgramSize(Recorded):
    """How large a program is."""

    operations: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class FoundReduced(FoundReason):
    """What is left of a program that does not compile, or why nothing could be taken from it: see `reduce_program`."""

    before: ProgramSize = field(default_factory=ProgramSize)
    after: ProgramSize = field(default_factory=ProgramSize)
    tried: int = 0
    complete: bool = True
    phase: str = ""
    names: tuple[str, ...] = ()

    @property
    def change(self) -> str:
        """`500 operations to 1`."""
        return f"{self.before.operations:,} operations to {self.after.operations:,}"


@dataclass(frozen=True, slots=True)
class TriedDispatch(Recorded):
    """A dispatch that was measured by itself, and what came of it."""

    name: str
    said: str


@dataclass(frozen=True, slots=True)
class FoundSlower(FoundReason):
    """A dispatch that is slower, or why none is."""

    tried: tuple[TriedDispatch, ...] = ()
    name: str = ""
    a_ns: int = 0
    b_ns: int = 0
    share: float = 0.0
    unit: str = "ms"
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundBundle(Recorded):
    """A bundle, or the problem that there is none."""

    problem: str = ""
    folder: str = ""
    bytes: int = 0
    exit_code: int | None = None
    form: str = ""


@dataclass(frozen=True, slots=True)
class ProbedSwitch(Recorded):
    """What a switch does: with it, it `passes`, `fails`, or `unknown` and why."""

    name: str
    flag: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FoundProbes(Recorded):
    """What was tried to mend it."""

    probes: tuple[ProbedSwitch, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundParts(Recorded):
    """What was found of a case, by the events of its record."""

    again: FoundAgain | None = None
    located: FoundCulprit = field(default_factory=FoundCulprit)
    operator: FoundCulprit = field(default_factory=FoundCulprit)
    reduced: FoundReduced | None = None
    slower: FoundSlower | None = None
    nothing: FoundReason = field(default_factory=FoundReason)
    same: SameCase | None = None
    bundle: FoundBundle | None = None
    probes: FoundProbes = field(default_factory=FoundProbes)


@dataclass(frozen=True, slots=True)
class CaseEnd(Recorded):
    """`result`: whether a bundle shows a case, and if that is `private`; `budget` is minutes that a reduction had."""

    bundled: bool = False
    private: bool = False
    seconds: float = 0.0
    budget: float = math.inf


EXPLANATION = JournalSchema(
    (ExperimentKind.EXPLAIN,),
    ExplainOpening,
    {
        "again": FoundAgain,
        "located": FoundCulprit,
        "operator": FoundCulprit,
        "reduced": FoundReduced,
        "slower": FoundSlower,
        "nothing": FoundReason,
        "same": SameCase,
        "bundle": FoundBundle,
        "probes": FoundProbes,
        "result": CaseEnd,
    },
)


@dataclass(frozen=True, slots=True)
class ExplainedCase:
    """What is known of a case.

    Attributes:
        events: what was found of it, by name, as written; `found` is the same, read.
        done: whether it was brought to an end.
    """

    asked: AskedCase
    events: dict[str, dict[str, Any]]
    found: FoundParts
    done: bool
    end: CaseEnd

    @property
    def case(self) -> str:
        """Its name."""
        return self.asked.case

    @property
    def bundled(self) -> bool:
        """Whether a bundle shows it."""
        return self.end.bundled

    @property
    def answer(self) -> str:
        """What came of it, in a line."""
        found = self.found
        located, operator, reduced, slower = found.located, found.operator, found.reduced, found.slower
        if slower is not None and slower.name:
            what = f"{slower.name} is slower by itself"
            return what if self.bundled else f"{what}, but its bundle does not show it"
        if culprit := located.dispatch or operator.operator:
            wrong = operator.operator or located.reference
            what = f"{culprit} {'is wrong on right inputs' if wrong else 'fails'}"
            return what if self.bundled else f"{what}, but no bundle shows it"
        if found.same is not None:
            return f"the program, its flags and so the failure are those of {found.same.case}"
        if reduced is not None and not reduced.why:
            return f"reduced from {reduced.change}: {', '.join(reduced.names)}"
        parts = (operator, found.nothing, located, reduced, slower)
        return next((part.why for part in parts if part and part.why), "it was not brought to an end")

    @property
    def archive(self) -> str:
        """The bundle that shows it, by its path in the run's folder; empty where none does."""
        bundle = self.found.bundle
        return f"{EXPLAIN_FOLDER}/{bundle.folder}.tar.gz" if bundle and self.bundled else ""

    @property
    def mended_by(self) -> tuple[str, ...]:
        """The switches with which it passes."""
        return tuple(item.name for item in self.found.probes.probes if item.verdict == "passes")


@dataclass(frozen=True, slots=True)
class ExplainOutcome:
    """The result of an explanation.

    Attributes:
        asked: the last time.
        end: None for one that was killed or is under way.
        known: every case that was ever asked for, by name.
    """

    run: str
    asked: ExplainOpening
    cases: tuple[ExplainedCase, ...]
    end: EndEvent | None
    known: dict[str, ExplainedCase]

    @property
    def exit_code(self) -> ExitCode:
        """What the command ended with; ERROR where it did not finish."""
        return self.end.exit_code if self.end else ExitCode.ERROR

    @property
    def answer(self) -> str:
        """What was found, in a line."""
        if self.end is not None and self.end.problem:
            return self.end.problem
        bundled = sum(case.bundled for case in self.cases)
        failures = "1 failure" if len(self.cases) == 1 else f"{len(self.cases)} failures"
        return f"{failures} of {self.run}: {bundled} with a bundle"

    def as_dict(self) -> dict[str, Any]:
        """What `explain.json` has."""
        return {
            "schema": 1,
            "run": self.run,
            "exit_code": int(self.exit_code),
            "toolchain": self.asked.toolchain,
            "cases": [
                {
                    **case.asked.as_dict(),
                    "answer": case.answer,
                    "bundled": case.bundled,
                    "seconds": case.end.seconds,
                    "found": {
                        part: {name: value for name, value in event.items() if name not in _EVENT}
                        for part, event in case.events.items()
                    },
                }
                for case in self.cases
            ],
        }


def read_explain_outcome(folder: Path) -> ExplainOutcome:
    """What the record in a folder says; GauntletError where there is none, or it cannot be read."""
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
    known: dict[str, ExplainedCase] = {}
    for asked in (case for opening in record.openings for case in opening.cases):
        parts = events.get(asked.case, {})
        contents: dict[str, Any] = {name: part.content for name, part in parts.items()}
        written = {name: part.fields for name, part in parts.items()}
        end = ends.get(asked.case, CaseEnd())
        known[asked.case] = ExplainedCase(asked, written, FoundParts(**contents), asked.case in ends, end)
    cases = tuple(known[asked.case] for asked in record.opening.cases)
    return ExplainOutcome(folder.parent.name, record.opening, cases, record.end, known)


def list_explained(folder: Path, *, private: bool, budget: float) -> set[str]:
    """The cases that a bundle shows already; none where nothing was explained yet.

    Those that hold the model's own values do not count where it shall be `private`, nor those of a reduction that was
    cut short after fewer minutes than the `budget`.
    """
    known = read_explain_outcome(folder).known if (folder / JOURNAL).is_file() else {}
    return {
        case.case
        for case in known.values()
        if case.bundled
        and (case.end.private or not private)
        and (not case.found.reduced or case.found.reduced.complete or case.end.budget >= budget)
    }


def with_explanations(outcome: RunOutcome, run_dir: Path) -> RunOutcome:
    """The outcome of a run whose failures name what `explain` found.

    A record that cannot be read is a remark: the run's reports are whole without it.
    """
    record = run_dir / _RECORD
    if not record.is_file():
        return outcome
    try:
        known = read_explain_outcome(record.parent).known
    except GauntletError as error:
        why = f"what `explain` found is left out: {error.what.replace(str(record), _RECORD)}"
        return replace(outcome, remarks=(*outcome.remarks, one_line(why)))

    def explain(step: StepOutcome) -> StepOutcome:
        case = known.get(step.chain)
        own = step.stage.row.is_explained and not step.role and step.verdict.blocks
        # A resumed run may have come out otherwise since.
        if case is None or not case.done or not own or step.reason != one_line(case.asked.reason):
            return step
        return replace(step, explanation=Explanation(one_line(case.answer), case.mended_by, case.archive))

    chains = tuple(replace(chain, steps=tuple(map(explain, chain.steps))) for chain in outcome.chains)
    return replace(outcome, chains=chains)
