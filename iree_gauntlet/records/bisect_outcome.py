"""The record of a bisect, and its outcome: also of one that was killed.

The record is `bisect.jsonl` in the bisect's folder, a log of events (`event_log.py`):

- `bisect`: what is looked for; a resumed bisect appends another one.
- `judged`: the result of a candidate, and in `search` what is known of the change by then.
- `ends`: both ends are judged; `search` is what follows from them.
- `refined`: a longer row, with the commits between two of its candidates.
- `change`: the commit that made the change, as git describes it.
- `end`: how it ended.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.journal_format import EventRecord, read_events
from iree_gauntlet.records.outcome import lock_remark

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


BISECT_RECORD = "bisect.jsonl"
_REPOSITORY = "https://github.com/iree-org/iree"
BISECT_COMPARE = f"{_REPOSITORY}/compare"
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_CHANGE = ("commit", "date", "author", "subject", "pull")
_JUDGED = ("bad", "value", "text", "low", "high", "third", "reason", "folder", "toolchain", "seconds")


@dataclass(frozen=True, slots=True)
class BisectOutcome:
    """The result of a bisect.

    Attributes:
        name: of its folder.
        asked: the last `bisect` event.
        judged: the last `judged` event of each candidate, by label.
        search: what is known of the change; empty before both ends are.
        change: the commit that made the change; empty where none is known.
        end: the `end` event; None for a bisect that was killed or is under way.
        torn: whether the record has a line that was cut short by a crash (it is left out).
    """

    name: str
    asked: dict[str, Any]
    judged: dict[str, dict[str, Any]]
    search: dict[str, Any]
    change: dict[str, Any]
    end: dict[str, Any] | None
    torn: bool

    @property
    def exit_code(self) -> ExitCode:
        """What the command ended with; ERROR where it did not finish."""
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
        return f"{BISECT_COMPARE}/{old}...{new}"

    @property
    def change_text(self) -> str:
        """The commit that made the change: hash, date, author, subject; empty where none is known."""
        change = self.change
        return (
            f"{change['commit'][:12]} of {change['date']} by {change['author']}: {change['subject']}" if change else ""
        )

    @property
    def pull_link(self) -> str:
        """The pull request of that commit; empty where its subject names none."""
        return f"{_REPOSITORY}/pull/{self.change['pull']}" if self.change.get("pull") else ""

    @property
    def remarks(self) -> list[str]:
        """What a reader should know in addition to the answer."""
        found = lock_remark(self.asked)
        changes = self.search.get("changes", [])
        if len(changes) > 1:
            text = "; ".join(f"{one} is {self.word_of(one)}, {other} {self.word_of(other)}" for one, other in changes)
            found.append(f"there is more than one change, and the newest is reported: {text}")
        third = [label for label in self.labels if self.judged.get(label, {}).get("third")]
        if third:
            values = ", ".join(f"{label} ({self.judged[label]['text']})" for label in third)
            found.append(f"a third value, neither the good end's nor the bad one's, was taken for the nearer: {values}")
        if self.torn:
            found.append(f"{BISECT_RECORD} has a line that a crash cut short: it is left out")
        if self.end is None:
            found.append("it did not finish: --resume continues it")
        elif self.end["interrupted"]:
            found.append("it was interrupted: --resume continues it")
        return found

    def commit_of(self, label: str) -> str:
        """IREE's commit of a candidate, of the side that is searched; empty where it is not known."""
        toolchain = self.judged.get(label, {}).get("toolchain") or {}
        return str(toolchain.get(self.asked["commit"]) or "")

    def word_of(self, label: str) -> str:
        """Which end a candidate is like: `good`, `bad`, or a dash where it could not be judged."""
        bad = self.judged[label]["bad"]
        return "–" if bad is None else "bad" if bad else "good"

    def as_dict(self) -> dict[str, Any]:
        """What `bisect.json` has."""
        asked, search = self.asked, self.search
        return {
            "bisect": self.name,
            "answer": self.answer,
            "exit_code": int(self.exit_code),
            **{name: asked[name] for name in ("metric", "chain", "good", "bad", "good_is_older")},
            "last_old": search.get("last_old"),
            "first_new": search.get("first_new"),
            "between": search.get("between", []),
            "changes": search.get("changes", []),
            "confidence": asked["confidence"] if search else None,
            "commits": self.link or None,
            "change": self.change or None,
            "remarks": self.remarks,
            "candidates": [self._candidate(item) for item in asked["row"]],
        }

    def _candidate(self, item: Mapping[str, str]) -> dict[str, Any]:
        judged = self.judged.get(item["label"])
        result = {name: judged[name] for name in _JUDGED} if judged else {}
        return {"label": item["label"], "iree": item["iree"], "tried": judged is not None, **result}


def bisect_outcome(folder: Path) -> BisectOutcome:
    """What the record in a bisect's folder says.

    Raises:
        GauntletError: there is none, or it cannot be read.
    """
    record = read_events(folder / BISECT_RECORD, "bisect")
    asked: dict[str, Any] | None = None
    judged: dict[str, dict[str, Any]] = {}
    search: dict[str, Any] = {}
    change: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    for _, event in record.events:
        match event.get("event"):
            case "bisect":
                # A resumed one is made again by the command that began it.
                asked, end = {**event, "command": (asked or event).get("command")}, None
            case "refined" if asked is not None:
                asked = {**asked, "row": event["row"]}
            case "change":
                change = {name: event.get(name) for name in _CHANGE}
            case "judged":
                judged[str(event.get("candidate"))] = event
                search = event.get("search") or search
            case "ends":
                search = event.get("search") or search
            case "end":
                end = event
    if asked is None:
        raise GauntletError(f"{record.path}: does not say what was looked for", "Start a new bisect.")
    outcome = BisectOutcome(folder.name, asked, judged, search, change, end, record.torn)
    _require_whole(outcome, record)
    return outcome


def _require_whole(outcome: BisectOutcome, record: EventRecord) -> None:
    """Make sure that a record that others may have written to holds what the reports need."""
    try:
        needed = [outcome.asked[name] for name in ("command", "cwd")]
        needed += [float(judged["seconds"]) for judged in outcome.judged.values()]
        json.dumps([outcome.as_dict(), needed])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GauntletError(
            f"{record.path} is no whole record of a bisect: {type(error).__name__}: {error}",
            "It was written by another version of this toolkit, or changed; start a new bisect.",
        ) from error
