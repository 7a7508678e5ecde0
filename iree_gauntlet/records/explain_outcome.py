"""The record of an explanation, and its outcome: also of one that was killed.

The record is `explain.jsonl` in the folder `explain` of a run, a log of events (`event_log.py`):

- `explain`: what is explained, `cases` with their kinds and reasons; a further explanation appends another one.
- `start`: a case is begun, perhaps again: what was found of it before does not count.
- `found`: what was found of a case: `part` is `again`, `located`, `reduced` or `slower`, `operator` (of ONNX),
  `bundle`, `probes`; `same` and as which case; or `nothing` and why.
- `case`: a case is done, whether a bundle shows it, and whether that is `private`, without the model's own values.
- `end`: how it ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.figures import one_line
from iree_gauntlet.journal_format import read_events
from iree_gauntlet.records.outcome import Explanation

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.records.outcome import RunOutcome, StepOutcome


# Of a run, where its explanation is.
EXPLAIN_FOLDER = "explain"
EXPLAIN_RECORD = "explain.jsonl"
_RECORD = f"{EXPLAIN_FOLDER}/{EXPLAIN_RECORD}"
_EVENT = ("event", "time", "case", "part")


@dataclass(frozen=True, slots=True)
class ExplainedCase:
    """What is known of a case.

    Attributes:
        done: whether it was brought to an end.
    """

    case: str
    kind: str
    reason: str
    found: dict[str, dict[str, Any]]
    done: bool = False
    bundled: bool = False
    seconds: float = 0.0

    @property
    def answer(self) -> str:
        """What came of it, in a line."""
        located, operator, reduced = (self.found.get(part, {}) for part in ("located", "operator", "reduced"))
        slower = self.found.get("slower", {})
        if slower.get("name"):
            what = f"{slower['name']} is slower by itself"
            return what if self.bundled else f"{what}, but its bundle does not show it"
        if culprit := located.get("dispatch") or operator.get("operator"):
            wrong = operator.get("operator") or located["reference"]
            what = f"{culprit} {'is wrong on right inputs' if wrong else 'fails'}"
            return what if self.bundled else f"{what}, but no bundle shows it"
        if same := self.found.get("same"):
            return f"the program, its flags and so the failure are those of {same['as']}"
        if "after" in reduced:
            before, after = (f"{reduced[when]['operations']:,}" for when in ("before", "after"))
            return f"reduced from {before} operations to {after}: {', '.join(reduced['names'])}"
        why = (part.get("why") for part in (operator, self.found.get("nothing", {}), located, reduced, slower))
        return str(next(filter(None, why), "it was not brought to an end"))

    @property
    def archive(self) -> str:
        """The bundle that shows it, by its path in the run's folder; empty where none does."""
        return f"{EXPLAIN_FOLDER}/{self.found['bundle']['folder']}.tar.gz" if self.bundled else ""

    @property
    def mended_by(self) -> list[str]:
        """The switches with which it passes."""
        return [item["name"] for item in self.found.get("probes", {}).get("probes", []) if item["verdict"] == "passes"]


@dataclass(frozen=True, slots=True)
class ExplainOutcome:
    """The result of an explanation.

    Attributes:
        asked: the last `explain` event.
        end: the `end` event; None for one that was killed or is under way.
        known: every case that was ever asked for, by name.
    """

    run: str
    asked: dict[str, Any]
    cases: tuple[ExplainedCase, ...]
    end: dict[str, Any] | None
    known: dict[str, ExplainedCase]

    @property
    def exit_code(self) -> ExitCode:
        """What the command ended with; ERROR where it did not finish."""
        return ExitCode(self.end["exit_code"]) if self.end else ExitCode.ERROR

    @property
    def answer(self) -> str:
        """What was found, in a line."""
        if self.end is not None and self.end.get("problem"):
            return str(self.end["problem"])
        bundled = sum(case.bundled for case in self.cases)
        failures = "1 failure" if len(self.cases) == 1 else f"{len(self.cases)} failures"
        return f"{failures} of {self.run}: {bundled} with a bundle"

    def as_dict(self) -> dict[str, Any]:
        """What `explain.json` has."""
        return {
            "schema": 1,
            "run": self.run,
            "exit_code": int(self.exit_code),
            "toolchain": self.asked["toolchain"],
            "cases": [
                {
                    "case": case.case,
                    "kind": case.kind,
                    "reason": case.reason,
                    "answer": case.answer,
                    "bundled": case.bundled,
                    "seconds": case.seconds,
                    "found": {
                        part: {name: value for name, value in event.items() if name not in _EVENT}
                        for part, event in case.found.items()
                    },
                }
                for case in self.cases
            ],
        }


def explain_outcome(folder: Path) -> ExplainOutcome:
    """What the record in a folder says.

    Raises:
        GauntletError: there is none, or it cannot be read.
    """
    record = read_events(folder / EXPLAIN_RECORD, "explain")
    asked: dict[str, Any] | None = None
    named: dict[str, dict[str, Any]] = {}
    found: dict[str, dict[str, dict[str, Any]]] = {}
    done: dict[str, dict[str, Any]] = {}
    end: dict[str, Any] | None = None
    for _, event in record.events:
        case = str(event.get("case", ""))
        match event.get("event"):
            case "explain":
                asked, end = event, None
                named |= {item["case"]: item for item in event["cases"]}
            case "start":
                found[case], _ = {}, done.pop(case, None)
            case "found":
                found.setdefault(case, {})[str(event.get("part"))] = event
            case "case":
                done[case] = event
            case "end":
                end = event
    if asked is None:
        raise GauntletError(f"{record.path}: does not say what was explained", "Start a new `explain`.")
    known = {
        name: ExplainedCase(
            name,
            item["kind"],
            item["reason"],
            found.get(name, {}),
            name in done,
            bool(done.get(name, {}).get("bundled")),
            float(done.get(name, {}).get("seconds", 0.0)),
        )
        for name, item in named.items()
    }
    cases = tuple(known[item["case"]] for item in asked["cases"])
    return ExplainOutcome(folder.parent.name, asked, cases, end, known)


def explained_before(folder: Path, *, private: bool = False, budget: float = 0.0) -> set[str]:
    """The cases that a bundle shows already; none where nothing was explained yet.

    Args:
        folder: `explain` of a run.
        private: whether bundles that hold the model's own values do not count.
        budget: minutes that a reduction may take: one that was cut short after fewer does not count.
    """
    if not (folder / EXPLAIN_RECORD).is_file():
        return set()
    events = read_events(folder / EXPLAIN_RECORD, "explain").events
    last = {str(event["case"]): event for _, event in events if event.get("event") == "case"}
    reduced = {str(event["case"]): event for _, event in events if event.get("part") == "reduced"}
    return {
        case
        for case, event in last.items()
        if event.get("bundled")
        and (event.get("private") or not private)
        and (reduced.get(case, {}).get("complete", True) or event.get("budget", budget) >= budget)
    }


def with_explanations(outcome: RunOutcome, run_dir: Path) -> RunOutcome:
    """The outcome of a run whose failures name what `explain` found.

    A record that cannot be read is a remark: the run's reports are whole without it.
    """
    record = run_dir / _RECORD
    if not record.is_file():
        return outcome
    try:
        found = {
            name: _read_explanation(case) for name, case in explain_outcome(record.parent).known.items() if case.done
        }
    except GauntletError as error:
        return _with_remark(outcome, error.what.replace(str(record), _RECORD))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return _with_remark(outcome, f"{_RECORD} is no whole record: {type(error).__name__}: {error}")
    chains = tuple(
        replace(chain, steps=tuple(_explain(step, found[chain.id]) for step in chain.steps))
        if chain.id in found
        else chain
        for chain in outcome.chains
    )
    return replace(outcome, chains=chains)


def _with_remark(outcome: RunOutcome, why: str) -> RunOutcome:
    return replace(outcome, remarks=(*outcome.remarks, one_line(f"what `explain` found is left out: {why}")))


def _read_explanation(case: ExplainedCase) -> tuple[str, Explanation]:
    """The failure that it is about, as the run tells it, and what is said of that."""
    mended = tuple(map(str, case.mended_by))
    return one_line(case.reason), Explanation(one_line(case.answer), mended, case.archive)


def _explain(step: StepOutcome, found: tuple[str, Explanation]) -> StepOutcome:
    """A step with its explanation; a resumed run may have come out otherwise since."""
    reason, explanation = found
    fits = step.stage in (Stage.COMPILE, Stage.THRESHOLD) and not step.role and step.reason == reason
    return replace(step, explanation=explanation) if fits and step.verdict.blocks else step
