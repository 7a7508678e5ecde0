"""Reading a comparison: its own log, and the runs of its two sides."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from iree_gauntlet.errors import UsageError
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_events, read_journal
from iree_gauntlet.records.earlier_runs import LATEST
from iree_gauntlet.records.run_folder import newest_of
from iree_gauntlet.settings import runs_folder, shown

COMPARISON_FILE = "comparison.jsonl"


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One of the two.

    Attributes:
        name: `A` or `B`.
        asked: as the command line named it.
        toolchain: what it was (the journal's record).
        run: the result of its run; None where there is none.
    """

    name: str
    asked: str
    toolchain: dict[str, Any]
    run: JournalRecord | None

    @property
    def title(self) -> str:
        """`3.12.0 (3.12.0rc20260701)`: what was asked for, and what it was where that says more."""
        version = str(self.toolchain.get("compiler") or "")
        return self.asked if version in ("", self.asked) else f"{self.asked} ({version})"


@dataclass(frozen=True, slots=True)
class ComparisonRecord:
    """A comparison, whole or cut short.

    Attributes:
        opening: the last `comparison` event: what was asked for, by which rules, on which machine.
        sides: A and B; none where the log has no opening.
        verdicts: the `verdict` events, by model; those that were not reached are missing.
        summary: the `summary` event; empty where it was not reached.
        where: why a model is slower, by model (`where` events).
        begun: how many blocks of each model were measured.
        under_way: who measured a model when that was cut short (`begun` events).
        remarks: what a reader must know (`remark` events).
        measured: the `measured` events, by model: by whom, and on what machine, where it was not this one.
        end: the `end` event; None for one that was killed or is under way.
    """

    opening: dict[str, Any] = field(default_factory=dict)
    sides: tuple[ComparedSide, ...] = ()
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    where: dict[str, dict[str, Any]] = field(default_factory=dict)
    begun: Counter[str] = field(default_factory=Counter)
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)
    under_way: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    end: dict[str, Any] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Those that a resumed comparison keeps."""
        return dict(self.opening.get("options") or {})

    @property
    def models(self) -> tuple[str, ...]:
        """All that were to be measured, in their order."""
        return tuple(self.opening.get("models") or ())

    @property
    def left_out(self) -> dict[str, str]:
        """Models that could not be measured, and why."""
        return dict(self.opening.get("left_out") or {})

    def worker_of(self, model: str) -> str:
        """Who has measured a model; empty for this machine."""
        return str(self.measured[model]["worker"]) if model in self.measured else ""

    @property
    def exit_code(self) -> int | None:
        """What the comparison ended with; None where it did not."""
        return None if self.end is None else int(self.end["exit_code"])


def comparison_named(text: str) -> Path:
    """The folder of a comparison: a path, its name in runs/, or `latest`.

    Raises:
        UsageError: there is none.
    """
    if text == LATEST:
        return newest_of("compare", COMPARISON_FILE)
    for folder in (Path(text), runs_folder() / text):
        if (folder / COMPARISON_FILE).is_file():
            return folder
    raise UsageError(
        f"explain --slower {text}: there is no such comparison",
        f"Comparisons are folders with a {COMPARISON_FILE}, such as those below {shown(runs_folder())}/.",
    )


def read_comparison(folder: Path) -> ComparisonRecord:
    """Reads a comparison's folder.

    Raises:
        GauntletError: there is no log, or it cannot be read.
    """
    record = ComparisonRecord()
    for _, event in read_events(folder / COMPARISON_FILE, "comparison").events:
        match event.get("event"):
            case "comparison":
                # A resumed one judges again.
                record = ComparisonRecord(event, begun=record.begun, measured=record.measured)
            case "prepared":
                record = replace(record, opening={**record.opening, **event, "time": record.opening.get("time")})
            case "block":
                record.begun[str(event["chain"])] += 1
            case "begun" | "remark" | "measured":
                _take_of_a_cluster(record, event)
            case "verdict":
                record.verdicts[str(event["chain"])] = event
            case "summary":
                record = replace(record, summary=event)
            case "where":
                record.where[str(event["chain"])] = event
            case "end":
                record = replace(record, end=event)
    sides = tuple(_make_side(name, side, folder) for name, side in (record.opening.get("sides") or {}).items())
    return replace(record, sides=sides)


def _take_of_a_cluster(record: ComparisonRecord, event: dict[str, Any]) -> None:
    if event["event"] == "remark":
        record.remarks.append(str(event["text"]))
        return
    chain = str(event["chain"])
    if event["event"] == "begun":
        record.under_way[chain] = str(event["worker"])
        return
    record.under_way.pop(chain, None)
    record.measured[chain] = event
    record.begun[chain] = len(event["blocks"])


def _make_side(name: str, side: dict[str, Any], folder: Path) -> ComparedSide:
    journal = folder / str(side["folder"]) / JOURNAL
    run = read_journal(journal) if journal.is_file() else None
    return ComparedSide(name, str(side["asked"]), dict(side.get("toolchain") or {}), run)
