"""Make the reports of `code.diff`: a document for the terminal, Markdown and a page, and JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from iree_gauntlet.document import (
    Block,
    Details,
    Difference,
    Document,
    Heading,
    Items,
    Notes,
    Paragraph,
    Table,
    TextLink,
)
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.formatting import Column, ColumnKind, pluralize
from iree_gauntlet.measuring.code.code_changes import CodeChange
from iree_gauntlet.records.code_outcome import read_code_outcome
from iree_gauntlet.reports.report_files import Reports, make_pages, make_provenance
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.records.code_outcome import CodeDiffOutcome, DispatchDiff, ModuleCodeDiff


_COLUMNS = (Column("dispatch", ColumnKind.NAME), Column("target"), Column("A → B"))
# A terminal lists so many dispatches of a module, and files list all.
_MOST_CHANGES = 20


def make_code_reports(folder: Path) -> Reports:
    """Return the reports of a comparison of code."""
    outcome = read_code_outcome(folder)
    document = _make_document(outcome)
    files = make_pages("code", lambda: document, folder)
    files["code.json"] = lambda: json.dumps(outcome.as_dict(), indent=2) + "\n"
    return Reports(files, lambda _: document, outcome.exit_code, outcome.answer)


def _make_document(outcome: CodeDiffOutcome) -> Document:
    sides = outcome.opening.sides
    modules = {step.removesuffix(f":{Stage.COMPILE}"): module for step, module in outcome.modules.items()}
    problems = tuple(f"{name}: {module.problem}" for name, module in modules.items() if module.problem)
    same = [name for name, module in modules.items() if not (module.problem or module.changes)]
    blocks: list[Block] = [Notes(problems)] if problems else []
    if same:
        blocks.append(Paragraph((f"All dispatches have the same code: {', '.join(same)}.",)))
    for name, module in modules.items():
        blocks += _describe_module(name, module, sides)
    return Document(
        f"Code of {sides[0]} (A) and {sides[1]} (B)",
        outcome.answer,
        (f"shown: {outcome.opening.level}",),
        tuple(blocks),
        exit_code=outcome.exit_code,
        meaning="compared" if outcome.exit_code is ExitCode.OK else "",
        provenance=make_provenance(" and ".join(sides), outcome.opening, ("code.md", "code.json"), outcome.end),
    )


def _describe_module(name: str, module: ModuleCodeDiff, sides: tuple[str, ...]) -> Iterator[Block]:
    if not module.changes:
        return
    changes = [CodeChange(entry.a, entry.b) for entry in module.changes]
    rows = tuple((change.name, change.target, change.description) for change in changes)
    yield Heading(name)
    text = f"{pluralize(module.same_count, 'dispatch', 'es')} with the same code, {len(changes)} with other code"
    yield Paragraph((f"{text}, those that got worse first:",))
    yield Table(_COLUMNS, rows, most=_MOST_CHANGES)
    for entry, change in zip(module.changes, changes, strict=True):
        if entry.rows or entry.note:
            yield Heading(change.name, 3)
            yield Paragraph((f"{change.description}.",))
            yield from _show_difference(entry, sides)


def _show_difference(entry: DispatchDiff, sides: tuple[str, ...]) -> Iterator[Block]:
    if entry.note:
        yield Notes((entry.note,))
    if entry.rows:
        rows = tuple((row.a, row.b) for row in entry.rows)
        yield Difference(f"A: {sides[0]}", f"B: {sides[1]}", rows, tuple(row.text for row in entry.rows))
    if entry.files:
        yield Details("The whole text", (Items(tuple((TextLink(file, file),) for file in entry.files)),))
