"""Make the reports of `qualify`: a document for the terminal, Markdown and a page, JSON, and JUnit XML."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import junit_xml

from iree_gauntlet.cases import Verdict
from iree_gauntlet.document import (
    Block,
    Cell,
    Code,
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
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import Column, ColumnKind, join_lines
from iree_gauntlet.journal_events import MachineInfo
from iree_gauntlet.journal_format import EXPLAIN_FOLDER
from iree_gauntlet.measuring.code.code_changes import compare_code
from iree_gauntlet.records.qualify_outcome import (
    COMPAT_AGAIN,
    COMPAT_PART,
    EXACT,
    TIMES,
    name_dispatch,
    read_qualify_outcome,
)
from iree_gauntlet.reports.junit import format_junit, make_suite
from iree_gauntlet.reports.matrix_report import group_alike
from iree_gauntlet.reports.render_markdown import escape, table
from iree_gauntlet.reports.report_files import Reports, list_next_steps, make_pages, make_provenance, show_continuation
from iree_gauntlet.results import SPILL_FIGURES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.records.chain_figures import ChainFigures
    from iree_gauntlet.records.qualify_outcome import BumpFinding, PartResult, QualifyOutcome
    from iree_gauntlet.results import DispatchCode


_PART_COLUMNS = (Column("part", ColumnKind.NAME), Column("result"), Column("report"))
_LOSS_COLUMNS = (Column("loss"), Column("model", ColumnKind.NAME), Column("old → new"), Column("since"))
_PARTS = {
    EXACT: ("compiles, numbers, exact figures", "matrix.html"),
    COMPAT_PART: ("modules of one, runtime of the other", "compat.html"),
    COMPAT_AGAIN: ("what failed there, run again", "compat.html"),
    TIMES: ("times", "comparison.html"),
}
_MEANINGS = {ExitCode.OK: "nothing lost", ExitCode.FAILED: "something got worse"}
_MAX_ROWS = 30
# The figures of a dispatch's code that make up a figure of its module, by metric.
_CODE_FIGURES = {
    Figure.SIZE.row.metric: ("code_bytes",),
    Figure.CODE_SIZE.row.metric: ("code_bytes",),
    Figure.SPILLS.row.metric: SPILL_FIGURES,
}


def make_qualify_reports(folder: Path) -> Reports:
    """Return the reports of a qualification; GauntletError if a record cannot be read."""
    outcome = _locate_losses(read_qualify_outcome(folder))
    document = partial(_make_document, outcome)
    files = {
        "junit.xml": lambda: _format_junit(outcome),
        **make_pages("qualify", document, folder),
        "qualify.json": lambda: _format_json(outcome),
    }
    return Reports(files, document, outcome.exit_code, outcome.answer)


def _locate_losses(outcome: QualifyOutcome) -> QualifyOutcome:
    """Return an outcome whose losses of code name the dispatches that account for most of them, if these are known."""
    rows = {row.chain: tuple(row.cells.values()) for row in outcome.matrix.rows} if outcome.matrix else {}

    def locate(loss: BumpFinding) -> str:
        if loss.metric not in _CODE_FIGURES:
            return ""
        old, new = rows[loss.chain]
        return _find_code(_CODE_FIGURES[loss.metric], old.figures, new.figures)

    losses = tuple(replace(loss, text=f"{loss.text}{locate(loss)}") for loss in outcome.losses)
    return replace(outcome, losses=losses)


def _find_code(keys: Sequence[str], old: ChainFigures, new: ChainFigures) -> str:
    """Name the dispatch whose code grew most in a figure; return an empty text if none did, or the code is unknown."""

    def add(code: DispatchCode | None) -> int:
        return sum(code.figures.get(key, 0) for key in keys) if code else 0

    return name_dispatch((change.name, add(change.a), add(change.b)) for change in compare_code(old.code, new.code))


def _make_document(outcome: QualifyOutcome, folder: Path | None = None) -> Document:
    opening = outcome.opening
    parts = tuple(_describe_part(outcome, name, part) for name, part in outcome.parts.items())
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
    if causes := tuple(
        (Name(loss.chain, loss.bundle), f": {_describe_cause(loss)}") for loss in outcome.losses if loss.cause
    ):
        blocks += [Heading("Causes"), Items(causes, _MAX_ROWS)]
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
        blocks += [Heading("Undecided"), Items(undecided, _MAX_ROWS)]
    blocks += [*_show_expectations(outcome), Heading("Parts"), Table(_PART_COLUMNS, parts)]
    if losses:
        texts = [Code(_format_issue(outcome, loss), "markdown") for loss in outcome.losses]
        blocks.append(Details("Text for issues", tuple(texts)))
    blocks += show_continuation("qualify", outcome.state, folder)
    if losses or outcome.gains:
        blocks.append(Details("Table for release notes", (Code(_format_notes(outcome), "markdown"),)))
    matrix = outcome.matrix
    return Document(
        f"{outcome.names[1]} against {outcome.names[0]}: suite {opening.suite}",
        outcome.answer,
        (f"{opening.allowed:g} % allowed",),
        tuple(blocks),
        exit_code=outcome.exit_code,
        remarks=outcome.remarks,
        meaning=_MEANINGS.get(outcome.exit_code, ""),
        first_failure=outcome.verdict if losses else "",
        provenance=make_provenance(
            ", ".join(outcome.names),
            replace(opening, machine=matrix.machine if matrix else MachineInfo()),
            ("qualify.md", "qualify.json", "junit.xml"),
            outcome.end,
        ),
    )


def _describe_part(outcome: QualifyOutcome, name: str, part: PartResult) -> tuple[Cell, ...]:
    title, page = _PARTS.get(name, (f"bisection of {part.chain} by {part.metric}", "bisect.html"))
    url = f"{name}/{page}"
    if part.chain and not part.metric and outcome.matrix:
        title = f"explanation of {part.chain}"
        url = f"{EXACT}/{quote(outcome.matrix.irees[-1].folder)}/{EXPLAIN_FOLDER}/explain.html"
    result = part.problem or ("done" if part.exit_code is ExitCode.OK else part.exit_code.meaning)
    if not part.problem and part.exit_code is ExitCode.FAILED and name in outcome.bisections:
        result = outcome.bisections[name].answer
    return title, result, None if part.problem else TextLink(name, url)


def _describe_cause(loss: BumpFinding) -> str:
    """Describe what an explanation says of a loss, and where the bundle is."""
    return f"{loss.cause}; {loss.bundle or 'no bundle shows it'}"


def _describe_release(outcome: QualifyOutcome, loss: BumpFinding) -> str:
    """Describe since when a loss is there, by its bisection."""
    bisection = outcome.bisections.get(loss.part)
    if bisection is None:
        return "not searched"
    return f"{bisection.answer}; {bisection.change}" if bisection.change else bisection.answer


def _format_command(outcome: QualifyOutcome, loss: BumpFinding) -> str:
    """Return the command that searches for the release of a loss; empty if there is none."""
    opening = outcome.opening
    row, spec_dirs = opening.choose_row(loss.metric), opening.options.get("spec_dir", ())
    return row.format_command(loss.metric, loss.chain, opening.variants, spec_dirs)


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
    if bisection := outcome.bisections.get(loss.part):
        lines += ["", f"Bisected: {_describe_release(outcome, loss)}"]
        lines += [bisection.change.pull_link] if bisection.change and bisection.change.pull else []
    if loss.cause:
        lines += ["", f"Explained: {loss.cause}"]
    if loss.bundle:
        lines += ["", f"Bundle, run by `gauntlet bundle.run`: {outcome.name}/{loss.bundle}"]
    if command := _format_command(outcome, loss):
        lines += ["", f"    {command}"]
    return "\n".join(lines)


def _format_notes(outcome: QualifyOutcome) -> str:
    """Return a table of losses, accepted ones too, and of gains, in Markdown."""
    old, new = outcome.names
    header = ("", "model", f"{old} → {new}", "since")
    rows = [
        tuple(map(escape, (f"{word}: {finding.kind}", finding.chain, finding.text, since)))
        for word, findings in (("worse", (*outcome.losses, *outcome.accepted)), ("better", outcome.gains))
        for finding in findings
        for bisection in (outcome.bisections.get(finding.part),)
        for since in (bisection.search.first_new if bisection and bisection.search else "",)
    ]
    return table([escape(cell) for cell in header], rows)


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
        "omissions": outcome.omissions,
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
        if outcome.state != "complete" and not case.is_failure():
            case.add_error_info(f"the qualification is {outcome.state}", error_type="not judged")
        cases.append(case)
    for text in outcome.unjudged or ([] if cases else [outcome.answer]):
        case = junit_xml.TestCase(name=join_lines(text), classname="qualify.unjudged")
        case.add_error_info(join_lines(text))
        cases.append(case)
    suite = make_suite(f"qualify {outcome.opening.old} {outcome.opening.new}", cases, {})
    return format_junit("iree-gauntlet qualify", [suite])
