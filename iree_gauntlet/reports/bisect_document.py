"""The reports of a bisect: one document on the terminal, as Markdown and as a page; JSON."""

from __future__ import annotations

import json
import math
import shlex
from typing import TYPE_CHECKING

from iree_gauntlet.document import (
    Block,
    Cell,
    Code,
    Column,
    ColumnKind,
    Document,
    Line,
    Name,
    Notes,
    OnPage,
    Paragraph,
    Stop,
    Table,
    TextLink,
)
from iree_gauntlet.records.bisect_outcome import BISECT_COMPARE, BisectOutcome, bisect_outcome
from iree_gauntlet.reports.provenance import RecordOrigin, count_seconds_between, provenance
from iree_gauntlet.reports.report_files import Reports, make_pages

if TYPE_CHECKING:
    from pathlib import Path


_COLUMNS = (
    Column("IREE", ColumnKind.NAME),
    Column("value"),
    Column("like", ColumnKind.VERDICT),
    Column("took", ColumnKind.DURATION, rank=2),
    Column("commit", rank=1),
    Column("remarks"),
)


def bisect_reports(folder: Path) -> Reports:
    """The reports of the bisect in a folder.

    Raises:
        GauntletError: there is no record, or it cannot be read.
    """
    outcome = bisect_outcome(folder)
    document = bisect_document(outcome)
    files = {**make_pages("bisect", lambda: document), "bisect.json": lambda: bisect_json(outcome)}
    return Reports(files, lambda _: document, outcome.exit_code, outcome.answer)


def bisect_document(outcome: BisectOutcome) -> Document:
    """What people read of it."""
    asked = outcome.asked
    title = f"Bisect of {asked.chain} by {asked.metric}: good {asked.good}, bad {asked.bad}"
    untried = [label for label in outcome.labels if label not in outcome.judged]
    names = [part for label in untried for part in (", ", Name(label))]
    rows = tuple(_make_row(outcome, label) for label in outcome.labels if label in outcome.judged)
    blocks: list[Block] = [OnPage((_make_line(outcome), _change(outcome)))] if rows else []
    blocks.append(Table(_COLUMNS, rows) if rows else Paragraph(("Nothing was tried.",)))
    blocks += [Notes(tuple(outcome.remarks))] if outcome.remarks else []
    if outcome.link:
        blocks.append(Paragraph(("Commits: ", TextLink(BISECT_COMPARE.removeprefix("https://") + "…", outcome.link))))
    if outcome.change:
        pull = TextLink(f"#{outcome.change.pull}", outcome.change.pull_link)
        request = (" (pull request ", pull, ")") if outcome.change.pull else ()
        blocks.append(Paragraph(("It was ", str(outcome.change), *request)))
        source = asked.asked.get("source") or asked.asked.get("into") or "."
        blocks.append(Code(shlex.join(("git", "-C", source, "show", outcome.change.commit)), "sh"))
    details: list[Block] = [Paragraph(("Not tried: ", *names[1:], "."))] if untried else []
    details += [Paragraph(("Again, in ", Name(asked.cwd), ":")), Code(asked.command, "sh")]
    tried = f"{len(outcome.judged)} of {len(outcome.labels)} tried"
    facts = (outcome.confidence, tried) if outcome.confidence else (tried,)
    toolchain = f"{asked.good} (good) to {asked.bad} (bad)"
    seconds = count_seconds_between(asked.time, outcome.end.time if outcome.end else "")
    began = RecordOrigin.from_dict(asked.as_dict())
    origin = provenance(toolchain, began, ("bisect.md", "bisect.json"), seconds)
    return Document(title, outcome.answer, facts, tuple(blocks), tuple(details), outcome.exit_code, provenance=origin)


def bisect_json(outcome: BisectOutcome) -> str:
    """The report for programs; ends with a newline."""
    return json.dumps(outcome.as_dict(), indent=2) + "\n"


def _make_line(outcome: BisectOutcome) -> Line:
    """Every candidate in its place, those that were tried with their values, and where the change is."""
    labels, judged = outcome.labels, outcome.judged
    stops = []
    for label in labels:
        if label in judged:
            found = judged[label]
            value = found.value if found.value is not None and math.isfinite(found.value) else None
            stops.append(Stop(label, found.text, found.word, value))
        else:
            stops.append(Stop(label, "", "skipped"))
    ends = [outcome.search.last_old, outcome.search.first_new] if outcome.search else []
    between = (labels.index(ends[0]), labels.index(ends[1])) if ends and set(ends) <= set(labels) else None
    return Line(tuple(stops), f"{outcome.answer}: the candidates in their order", between)


def _change(outcome: BisectOutcome) -> Paragraph:
    """From what to what, and what `good` and `bad` say."""
    ends = [outcome.search.last_old, outcome.search.first_new] if outcome.search else []
    texts = [(outcome.judged[label].text, label) for label in ends if label in outcome.judged]
    change = " to ".join(f"{text} ({label})" for text, label in texts)
    known = len(texts) == 2 and all(text for text, _ in texts)
    meaning = "Good and bad are what the two ends were named: nothing is said of which figure is the better one."
    return Paragraph((f"From {change}. {meaning}" if known else meaning,))


def _make_row(outcome: BisectOutcome, label: str) -> tuple[Cell, ...]:
    """What is shown of a candidate that was tried, in the order of `_COLUMNS`."""
    judged = outcome.judged[label]
    remarks = [f"the {word} end" for word in ("good", "bad") if getattr(outcome.asked, word) == label]
    remarks += ["a third value"] if judged.third else []
    remarks += [judged.reason] if judged.reason else []
    commit = outcome.commit_of(label)[:10] or None
    return label, judged.text or None, judged.word, float(judged.seconds), commit, "; ".join(remarks)
