"""The reports of a bisect, from its record alone: also of one that was killed.

The record is `bisect.jsonl` in the bisect's folder, a log of events (`records/event_log.py`):

- `bisect`: what is looked for; a resumed bisect appends another one.
- `judged`: what a candidate came to, and in `search` what is known of the change by then.
- `ends`: both ends are judged; `search` is what follows from them.
- `end`: how it ended.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.journal_format import read_events
from iree_gauntlet.records.outcome import lock_remark
from iree_gauntlet.reports.document import Code, Column, Document, Kind, Link, Name, Notes, Paragraph, Table
from iree_gauntlet.reports.render_html import html_page
from iree_gauntlet.reports.render_markdown import markdown
from iree_gauntlet.reports.report_files import add_to_step_summary, write_report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.journal_format import EventRecord
    from iree_gauntlet.reports.document import Block, Cell

__all__ = [
    "BISECT_RECORD",
    "REPORT_NAMES",
    "BisectOutcome",
    "bisect_document",
    "bisect_json",
    "bisect_outcome",
    "write_bisect_reports",
]

BISECT_RECORD = "bisect.jsonl"
REPORT_NAMES = ("bisect.md", "bisect.html", "bisect.json")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_COMPARE = "https://github.com/iree-org/iree/compare"
_COLUMNS = (
    Column("IREE", Kind.NAME),
    Column("value"),
    Column("like", Kind.VERDICT),
    Column("took", Kind.DURATION, rank=2),
    Column("commit", rank=1),
    Column("remarks"),
)
_SHORT_COMMIT = 10


@dataclass(frozen=True, slots=True)
class BisectOutcome:
    """What a bisect has come to.

    Attributes:
        name: of its folder.
        asked: the last `bisect` event.
        judged: the last `judged` event of each candidate, by label.
        search: what is known of the change; empty before both ends are.
        end: the `end` event; None for a bisect that was killed or is under way.
        torn: whether the record has a line that was cut short by a crash (it is left out).
    """

    name: str
    asked: dict[str, Any]
    judged: dict[str, dict[str, Any]]
    search: dict[str, Any]
    end: dict[str, Any] | None
    torn: bool

    @property
    def exit_code(self) -> ExitCode:
        """What the command ended with; ERROR where it did not come to its end."""
        return ExitCode(self.end["exit_code"]) if self.end else ExitCode.ERROR

    @property
    def labels(self) -> list[str]:
        """All candidates, from the oldest to the newest."""
        return [item["label"] for item in self.asked["row"]]

    @property
    def answer(self) -> str:
        """What was found, in a line."""
        if self.end is not None and self.end.get("problem"):
            return str(self.end["problem"])
        if not self.search:
            return "the ends are not judged yet"
        old, new = self.search["last_old"], self.search["first_new"]
        older, newer = ("good", "bad") if self.asked["good_is_older"] else ("bad", "good")
        if not self.search["between"]:
            return f"first {newer}: {new}; last {older}: {old}"
        why = "could not be judged" if self.search["over"] else "not judged"
        return f"between {old} ({older}) and {new} ({newer}); {why}: {', '.join(self.search['between'])}"

    @property
    def confidence(self) -> str:
        """How sure the answer is; empty where there is none."""
        if not self.search:
            return ""
        share = self.asked["confidence"]
        return "exact" if share == 1 else f"{100 * share:g} % confidence"

    @property
    def link(self) -> str:
        """The commits of the change; empty where they are not known."""
        if not self.search:
            return ""
        old, new = (self.commit_of(self.search[end]) for end in ("last_old", "first_new"))
        if not (_COMMIT.fullmatch(old) and _COMMIT.fullmatch(new)) or old == new:
            return ""
        return f"{_COMPARE}/{old}...{new}"

    @property
    def remarks(self) -> list[str]:
        """What a reader should know beside the answer."""
        found = lock_remark(self.asked)
        changes = self.search.get("changes", [])
        if len(changes) > 1:
            text = "; ".join(f"{one} is {self._word(one)}, {other} {self._word(other)}" for one, other in changes)
            found.append(f"there is more than one change, and the newest is told: {text}")
        third = [label for label in self.labels if self.judged.get(label, {}).get("third")]
        if third:
            values = ", ".join(f"{label} ({self.judged[label]['text']})" for label in third)
            found.append(f"a third value, neither the good end's nor the bad one's, was taken for the nearer: {values}")
        if self.torn:
            found.append(f"{BISECT_RECORD} has a line that a crash cut short: it is left out")
        if self.end is None:
            found.append("it did not come to its end: --resume goes on with it")
        elif self.end["interrupted"]:
            found.append("it was interrupted: --resume goes on with it")
        return found

    def commit_of(self, label: str) -> str:
        """IREE's commit of a candidate, of the side that is searched; empty where it is not known."""
        toolchain = self.judged.get(label, {}).get("toolchain") or {}
        return str(toolchain.get(self.asked["commit"]) or "")

    def rows(self) -> tuple[tuple[Cell, ...], ...]:
        """What is shown of each candidate that was tried, in the order of `_COLUMNS`."""
        return tuple(self._row(label, self.judged[label]) for label in self.labels if label in self.judged)

    def _row(self, label: str, judged: dict[str, Any]) -> tuple[Cell, ...]:
        remarks = [f"the {word} end" for word in ("good", "bad") if self.asked[word] == label]
        remarks += ["a third value"] if judged["third"] else []
        remarks += [judged["reason"]] if judged["reason"] else []
        commit = self.commit_of(label)[:_SHORT_COMMIT] or None
        text = judged["text"] or None
        return label, text, self._word(label), float(judged["seconds"]), commit, "; ".join(remarks)

    def _word(self, label: str) -> str:
        bad = self.judged[label]["bad"]
        return "–" if bad is None else "bad" if bad else "good"


def bisect_outcome(folder: Path) -> BisectOutcome:
    """What the record in a bisect's folder says.

    Raises:
        GauntletError: there is none, or it cannot be read.
    """
    record = read_events(folder / BISECT_RECORD, "bisect")
    asked: dict[str, Any] | None = None
    judged: dict[str, dict[str, Any]] = {}
    search: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    for _, event in record.events:
        match event.get("event"):
            case "bisect":
                asked, end = event, None
            case "judged":
                judged[str(event.get("candidate"))] = event
                search = event.get("search") or search
            case "ends":
                search = event.get("search") or search
            case "end":
                end = event
    if asked is None:
        raise GauntletError(f"{record.path}: does not say what was looked for", "Start a new bisect.")
    outcome = BisectOutcome(folder.name, asked, judged, search, end, record.torn)
    _require_whole(outcome, record)
    return outcome


def bisect_document(outcome: BisectOutcome) -> Document:
    """What people read of it."""
    asked = outcome.asked
    title = f"Bisect of {asked['chain']} by {asked['metric']}: good {asked['good']}, bad {asked['bad']}"
    untried = [label for label in outcome.labels if label not in outcome.judged]
    names = [part for label in untried for part in (", ", Name(label))]
    blocks: list[Block] = [Table(_COLUMNS, outcome.rows())] if outcome.judged else [Paragraph(("Nothing was tried.",))]
    blocks += [Notes(tuple(outcome.remarks))] if outcome.remarks else []
    if outcome.link:
        blocks.append(Paragraph(("Commits: ", Link(_COMPARE.removeprefix("https://") + "…", outcome.link))))
    details: list[Block] = [Paragraph(("Not tried: ", *names[1:], "."))] if untried else []
    details += [Paragraph(("Again, in ", Name(asked["cwd"]), ":")), Code(asked["command"], "sh")]
    tried = f"{len(outcome.judged)} of {len(outcome.labels)} tried"
    facts = (outcome.confidence, tried) if outcome.confidence else (tried,)
    return Document(title, outcome.answer, facts, tuple(blocks), tuple(details), outcome.exit_code)


def bisect_json(outcome: BisectOutcome) -> str:
    """The report for programs; ends with a newline."""
    asked, search = outcome.asked, outcome.search
    document = {
        "bisect": outcome.name,
        "answer": outcome.answer,
        "exit_code": int(outcome.exit_code),
        "metric": asked["metric"],
        "chain": asked["chain"],
        "good": asked["good"],
        "bad": asked["bad"],
        "good_is_older": asked["good_is_older"],
        "last_old": search.get("last_old"),
        "first_new": search.get("first_new"),
        "between": search.get("between", []),
        "changes": search.get("changes", []),
        "confidence": asked["confidence"] if search else None,
        "commits": outcome.link or None,
        "remarks": outcome.remarks,
        "candidates": [_candidate(outcome, item) for item in asked["row"]],
    }
    return json.dumps(document, indent=2) + "\n"


def write_bisect_reports(
    folder: Path, *, environ: Mapping[str, str], append_step_summary: bool = False
) -> BisectOutcome:
    """Write `bisect.md`, `bisect.html` and `bisect.json` beside a bisect's record.

    Args:
        folder: the bisect's.
        environ: the environment; names GitHub's summary file in `GITHUB_STEP_SUMMARY`.
        append_step_summary: append the report to that file, where there is one.

    Raises:
        GauntletError: there is no record, it cannot be read, or the reports cannot be written.
    """
    outcome = bisect_outcome(folder)
    document = bisect_document(outcome)
    text = markdown(document)
    for name, content in zip(REPORT_NAMES, (text, html_page(document), bisect_json(outcome)), strict=True):
        write_report(folder / name, content, folder)
    if append_step_summary:
        add_to_step_summary(environ, text)
    return outcome


def _candidate(outcome: BisectOutcome, item: Mapping[str, str]) -> dict[str, Any]:
    label = item["label"]
    judged = outcome.judged.get(label)
    if judged is None:
        return {"label": label, "iree": item["iree"], "tried": False}
    names = ("bad", "value", "text", "low", "high", "third", "reason", "folder", "toolchain", "seconds")
    return {"label": label, "iree": item["iree"], "tried": True, **{name: judged[name] for name in names}}


def _require_whole(outcome: BisectOutcome, record: EventRecord) -> None:
    """Make sure that a record that others may have written to holds what the reports need.

    Raises:
        GauntletError: it does not.
    """
    try:
        markdown(bisect_document(outcome))
        bisect_json(outcome)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GauntletError(
            f"{record.path} is no whole record of a bisect: {type(error).__name__}: {error}",
            "It was written by another version of this toolkit, or changed; start a new bisect.",
        ) from error
