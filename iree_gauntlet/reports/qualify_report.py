"""Make the reports of `qualify`: a document for the terminal, Markdown and a page, JSON, and JUnit XML."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import junit_xml

from iree_gauntlet.cases import Verdict
from iree_gauntlet.document import (
    Block,
    Cell,
    Code,
    Column,
    ColumnKind,
    Details,
    Document,
    Heading,
    Items,
    Name,
    Notes,
    Paragraph,
    Table,
    TextLink,
)
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.formatting import join_lines
from iree_gauntlet.journal_events import MachineInfo
from iree_gauntlet.records.bisect_outcome import format_bisect_command
from iree_gauntlet.records.qualify_outcome import COMPAT_PART, EXACT, TIMES, read_qualify_outcome
from iree_gauntlet.reports.junit import format_junit, make_suite
from iree_gauntlet.reports.matrix_report import group_alike
from iree_gauntlet.reports.report_files import Reports, list_next_steps, make_pages, make_provenance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.records.qualify_outcome import BumpFinding, PartResult, QualifyOutcome


_PART_COLUMNS = (Column("part", ColumnKind.NAME), Column("result"), Column("report"))
_LOSS_COLUMNS = (Column("loss"), Column("model", ColumnKind.NAME), Column("old → new"), Column("since"))
_PARTS = {
    EXACT: ("compiles, numbers, exact figures", "matrix.html"),
    COMPAT_PART: ("modules of one, runtime of the other", "compat.html"),
    TIMES: ("times", "comparison.html"),
}
_MEANINGS = {ExitCode.OK: "nothing lost", ExitCode.FAILED: "something got worse"}
_MAX_ROWS = 30


def make_qualify_reports(folder: Path) -> Reports:
    """Return the reports of a qualification; GauntletError if a record cannot be read."""
    outcome = read_qualify_outcome(folder)
    document = _make_document(outcome)
    files = {
        "junit.xml": lambda: _format_junit(outcome),
        **make_pages("qualify", lambda: document, folder),
        "qualify.json": lambda: _format_json(outcome),
    }
    return Reports(files, lambda _: document, outcome.exit_code, outcome.answer)


def _make_document(outcome: QualifyOutcome) -> Document:
    opening = outcome.opening
    parts = tuple(_describe_part(name, part) for name, part in outcome.parts.items())
    losses = tuple(
        (
            loss.kind,
            TextLink(loss.chain, loss.url) if loss.url else loss.chain,
            loss.text,
            _describe_release(outcome, loss),
        )
        for loss in outcome.losses
    )
    blocks: list[Block] = [Heading("Losses"), Table(_LOSS_COLUMNS, losses, _MAX_ROWS)] if losses else []
    open_losses = (loss for loss in outcome.losses if loss.part not in outcome.bisections)
    commands = filter(None, (_format_command(outcome, loss) for loss in open_losses))
    blocks += list_next_steps(itertools.islice(commands, 1))
    lists = {"Accepted": outcome.accepted, "Gains": outcome.gains, "Other changes": outcome.changes}
    for title, findings in lists.items():
        if items := group_alike(
            (finding.chain, f"{finding.kind}: {finding.text}", finding.url) for finding in findings
        ):
            blocks += [Heading(title), Items(items, _MAX_ROWS)]
    blocks += [Heading("Not judged"), Notes(outcome.unjudged)] if outcome.unjudged else []
    if undecided := group_alike(
        (finding.chain, f"{finding.kind}: {finding.text}", finding.url) for finding in outcome.undecided
    ):
        blocks += [Heading("Not judged by time"), Items(undecided, _MAX_ROWS)]
    blocks += [*_show_expectations(outcome), Heading("Parts"), Table(_PART_COLUMNS, parts)]
    if losses:
        texts = [Code(_format_issue(outcome, loss), "markdown") for loss in outcome.losses]
        blocks.append(Details("Text for issues", tuple(texts)))
    matrix = outcome.matrix
    return Document(
        f"{outcome.names[1]} against {outcome.names[0]}: suite {opening.suite}",
        outcome.answer,
        (f"{opening.allowed:g} % allowed",),
        tuple(blocks),
        exit_code=outcome.exit_code,
        remarks=outcome.remarks,
        meaning=_MEANINGS.get(outcome.exit_code, ""),
        first_failure=outcome.answer if losses else "",
        provenance=make_provenance(
            ", ".join(outcome.names),
            replace(opening, machine=matrix.machine if matrix else MachineInfo()),
            ("qualify.md", "qualify.json", "junit.xml"),
            outcome.end,
        ),
    )


def _describe_part(name: str, part: PartResult) -> tuple[Cell, ...]:
    title, page = _PARTS.get(name, (f"bisection of {part.chain} by {part.metric}", "bisect.html"))
    result = part.problem or ("done" if part.exit_code is ExitCode.OK else part.exit_code.meaning)
    return title, result, None if part.problem else TextLink(name, f"{name}/{page}")


def _describe_release(outcome: QualifyOutcome, loss: BumpFinding) -> str:
    """Describe since when a loss is there, by its bisection."""
    bisection = outcome.bisections.get(loss.part)
    return bisection.answer if bisection else "not searched"


def _format_command(outcome: QualifyOutcome, loss: BumpFinding) -> str:
    """Return the command that searches for the release of a loss; empty if there is none."""
    opening = outcome.opening
    return format_bisect_command((opening.old, opening.new), loss.metric, loss.chain, opening.variants)


def _show_expectations(outcome: QualifyOutcome) -> Iterator[Block]:
    """Show texts for the suite: expectations of what fails now, and what to remove because it passes."""
    texts: list[str] = []
    lost_chains = {loss.chain for loss in outcome.losses}
    run = outcome.matrix.irees[-1].outcome if outcome.matrix else None
    for step in run.bad_steps if run else ():
        name = json.dumps(f"{step.model}/{step.submodel}", ensure_ascii=False)
        if step.verdict is Verdict.XPASSED:
            texts.append(f"# Remove the expectation of {step.model}/{step.submodel} at {step.stage}: it passes.")
        elif step.failure and step.chain in lost_chains:
            reason = json.dumps(join_lines(step.diagnosis, 200), ensure_ascii=False)
            lines = ("[[expect_failure]]", f"case = {name}", f'stage = "{step.stage}"', f'kind = "{step.failure}"')
            texts.append("\n".join((*lines, f"reason = {reason}")))
    if texts:
        yield Heading("For the suite")
        yield Paragraph(("If these failures are accepted with ", Name(outcome.names[1]), ":"))
        yield Code("\n\n".join(texts), "toml")


def _format_issue(outcome: QualifyOutcome, loss: BumpFinding) -> str:
    """Return a text for an issue: what, since when, how to see it."""
    lines = [f"{loss.chain}: {loss.kind} from {outcome.names[0]} to {outcome.names[1]}", "", loss.text]
    if outcome.bisections.get(loss.part):
        lines += ["", f"Bisected: {outcome.bisections[loss.part].answer}"]
    if command := _format_command(outcome, loss):
        lines += ["", f"    {command}"]
    return "\n".join(lines)


def _format_json(outcome: QualifyOutcome) -> str:
    opening = outcome.opening

    def describe(finding: BumpFinding) -> dict[str, object]:
        return {**asdict(finding), "since": _describe_release(outcome, finding)}

    document = {
        "schema": 1,
        "qualify": outcome.name,
        **{name: getattr(opening, name) for name in ("old", "new", "suite", "version", "command", "cwd", "allowed")},
        "started": opening.time,
        "state": outcome.state,
        "remarks": outcome.remarks,
        "exit_code": outcome.exit_code,
        "exit_meaning": _MEANINGS.get(outcome.exit_code, outcome.exit_code.meaning),
        "models": outcome.models,
        "parts": {name: part.as_dict() for name, part in outcome.parts.items()},
        "losses": [describe(finding) for finding in outcome.losses],
        "accepted": [asdict(finding) for finding in outcome.accepted],
        "gains": [asdict(finding) for finding in outcome.gains],
        "changes": [asdict(finding) for finding in outcome.changes],
        "undecided": [asdict(finding) for finding in outcome.undecided],
        "unjudged": outcome.unjudged,
    }
    return json.dumps(document, indent=1) + "\n"


def _format_junit(outcome: QualifyOutcome) -> str:
    """Return the complete document: a test for each model, which fails with its losses."""
    cases = []
    for chain in dict.fromkeys((*outcome.models, *(loss.chain for loss in outcome.losses))):
        case = junit_xml.TestCase(name=join_lines(chain), classname="qualify")
        for loss in outcome.losses:
            if loss.chain == chain:
                case.add_failure_info(join_lines(f"{loss.kind}: {loss.text}"), loss.url, loss.kind)
        cases.append(case)
    for text in outcome.unjudged:
        case = junit_xml.TestCase(name=join_lines(text), classname="qualify.unjudged")
        case.add_error_info(join_lines(text))
        cases.append(case)
    suite = make_suite(f"qualify {outcome.opening.old} {outcome.opening.new}", cases, {})
    return format_junit("iree-gauntlet qualify", [suite])
