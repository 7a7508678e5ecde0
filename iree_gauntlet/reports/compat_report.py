"""Make the reports of `compat`: a document for the terminal, Markdown and a page, JSON, and JUnit XML."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import junit_xml

from iree_gauntlet.cases import Verdict
from iree_gauntlet.document import Block, Cell, ColouredCell, Document, Heading, Items, Name, Notes, PageOnly, Table
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.formatting import Column, ColumnKind, format_duration, join_lines, list_first, pluralize
from iree_gauntlet.records.compat_outcome import Compatibility, read_compat_outcome
from iree_gauntlet.reports.details import format_cause
from iree_gauntlet.reports.junit import format_junit, make_suite
from iree_gauntlet.reports.matrix_report import group_alike
from iree_gauntlet.reports.report_files import Reports, make_pages, make_provenance, show_continuation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.records.compat_outcome import CompatCell, CompatOutcome


_REFUSAL_COLUMNS = (
    Column("module of", ColumnKind.NAME),
    Column("refused by the runtime of", ColumnKind.NAME),
    Column("message"),
    Column("models", ColumnKind.NAME, drop_order=1),
)
_NEED_COLUMNS = (
    Column("module of", ColumnKind.NAME),
    Column("bytecode"),
    Column("features", ColumnKind.NAME),
    Column("dependencies", ColumnKind.NAME),
    Column("imports", ColumnKind.NUMBER),
    Column("imports against the IREE before", drop_order=1),
)
_SEVERITIES = tuple(Compatibility)
_MEANINGS = {ExitCode.OK: "no crash, no wrong numbers", ExitCode.FAILED: "not compatible"}
_MAX_NAMES = 3
_TERMINAL_ROWS = 30


def make_compat_reports(folder: Path) -> Reports:
    """Return the reports of a compatibility matrix; GauntletError if a record cannot be read."""
    outcome = read_compat_outcome(folder)
    document = partial(_make_document, outcome)
    files = {
        "junit.xml": lambda: _format_junit(outcome),
        **make_pages("compat", document, folder),
        "compat.json": lambda: _format_json(outcome),
    }
    return Reports(files, document, outcome.exit_code, outcome.answer)


def _make_document(outcome: CompatOutcome, folder: Path | None = None) -> Document:
    failures = _list_failures(outcome)
    blocks: list[Block] = [_make_grid(outcome, outcome.cells)] if outcome.cells else []
    blocks += [Heading("What went wrong"), Items(failures, _TERMINAL_ROWS)] if failures else []
    refusals = _list_refusals(outcome)
    blocks += [Heading("Refusals"), Table(_REFUSAL_COLUMNS, refusals, _TERMINAL_ROWS).filled_form] if refusals else []
    for chain in outcome.chains if len(outcome.chains) > 1 else ():
        grid = _make_grid(outcome, [cell for cell in outcome.cells if cell.chain == chain])
        blocks.append(PageOnly((Heading(chain, 3), grid)))
    if rows := tuple(_list_needs(outcome)):
        blocks += [Heading("What the modules need"), Table(_NEED_COLUMNS, rows, _TERMINAL_ROWS).filled_form]
    if problems := tuple(
        f"{needs.chain}, module of {needs.iree}: {needs.problem}" for needs in outcome.needs if needs.problem
    ):
        blocks.append(Notes(problems))
    blocks += show_continuation("compat", outcome.state, folder)
    opening, suite = outcome.opening, f": suite {outcome.opening.suite}" if outcome.opening.suite else ""
    promise = f"each IREE has to run the modules of the {pluralize(opening.promised, 'IREE')} before it"
    irees = (f"{label} ({info.compiler_text})" for label, info in outcome.toolchains.items())
    files = ("compat.md", "compat.json", "junit.xml")
    seconds = outcome.seconds if outcome.state == "complete" else None
    return Document(
        f"Modules and runtimes of {pluralize(len(outcome.labels), 'IREE')}{suite}",
        outcome.answer,
        (format_duration(outcome.seconds), *([promise] if opening.promised else [])),
        tuple(blocks),
        exit_code=outcome.exit_code,
        remarks=outcome.remarks,
        meaning=_MEANINGS.get(outcome.exit_code, ""),
        first_failure=f"{failures[0][0].text}{failures[0][1]}" if failures else "",
        provenance=make_provenance(", ".join(irees), replace(opening, machine=outcome.machine), files, seconds),
    )


def _list_failures(outcome: CompatOutcome) -> tuple[tuple[Name, str], ...]:
    """List what went wrong; a fault that a module has with its own runtime too is not the pair's."""
    owns = {(cell.chain, cell.compiler): cell.compatibility for cell in outcome.cells if cell.compiler == cell.runtime}
    urls: dict[tuple[str, str], str] = {}
    failures = (cell for cell in outcome.cells if cell.exit_code is not ExitCode.OK)
    for cell in sorted(failures, key=lambda cell: cell.compiler != cell.runtime):
        text = f"module of {cell.compiler}, runtime of {cell.runtime}: {_describe(cell)}"
        if cell.compiler == cell.runtime:
            text = f"module of {cell.compiler}, its own runtime: {_describe(cell)}"
        elif owns[cell.chain, cell.compiler] is cell.compatibility:
            text = f"module of {cell.compiler}, other runtimes: {cell.compatibility}, as with its own runtime"
        urls.setdefault((cell.chain, text), cell.url)
    return group_alike((chain, text, url) for (chain, text), url in urls.items())


def _make_grid(outcome: CompatOutcome, cells: Sequence[CompatCell]) -> Table:
    """Return a row for each compiler with a cell for each runtime: the worst of the models', and of how many."""
    runtimes = (Column(label, ColumnKind.VERDICT) for label in outcome.labels)
    rows: list[tuple[Cell, ...]] = []
    for compiler in outcome.labels:
        row: list[Cell] = [compiler]
        for runtime in outcome.labels:
            group = [cell for cell in cells if (cell.compiler, cell.runtime) == (compiler, runtime)]
            worst = min(group, key=lambda cell: (cell.exit_code.rank, _SEVERITIES.index(cell.compatibility)))
            count = sum(cell.compatibility is worst.compatibility for cell in group)
            share = f" ({count} of {len(group)})" if count < len(group) else ""
            row.append(ColouredCell(f"{worst.compatibility}{share}", _find_style(worst), worst.url))
        rows.append(tuple(row))
    return Table((Column("module of ↓, runtime of →", ColumnKind.NAME), *runtimes), tuple(rows))


def _find_style(cell: CompatCell) -> str:
    """Return the verdict whose colour a cell has."""
    if cell.exit_code is not ExitCode.OK:
        return Verdict.ERROR if cell.exit_code is ExitCode.ERROR else Verdict.FAILED
    if cell.step is not None and cell.step.verdict is Verdict.XFAILED:
        return Verdict.XFAILED
    return Verdict.PASSED if cell.compatibility is Compatibility.RUNS else Verdict.SKIPPED


def _describe(cell: CompatCell) -> str:
    """Describe what becomes of a module, with the tool's message."""
    if cell.compatibility is Compatibility.RUNS:
        return str(cell.compatibility)
    promise = ", which --require-compatible forbids" if cell.is_promised and cell.exit_code is not ExitCode.OK else ""
    return f"{cell.compatibility}{promise}: {_find_message(cell)}"


def _find_message(cell: CompatCell) -> str:
    return join_lines(format_cause(cell.step) if cell.step else cell.problem, 300)


def _list_refusals(outcome: CompatOutcome) -> tuple[tuple[str | None, ...], ...]:
    """List the messages of refusals: whose modules, by which runtimes, and of which models if not of all."""
    cells: dict[tuple[str, str], list[CompatCell]] = {}
    for cell in sorted(outcome.cells, key=lambda cell: outcome.labels.index(cell.compiler)):
        if cell.compatibility is Compatibility.REFUSED:
            cells.setdefault((cell.compiler, _find_message(cell)), []).append(cell)
    rows = []
    for (compiler, message), group in cells.items():
        runtimes, models = ({getattr(cell, name): None for cell in group} for name in ("runtime", "chain"))
        is_same = len(models) == len(outcome.chains)
        rows.append((compiler, ", ".join(runtimes), message, None if is_same else list_first([*models], _MAX_NAMES)))
    return tuple(rows)


def _list_needs(outcome: CompatOutcome) -> Iterator[tuple[Cell, ...]]:
    """Yield a row for each IREE: what its modules need, and how their imports differ from those of the IREE before."""
    earlier: dict[tuple[str, str], Mapping[str, str]] = {}
    for label in outcome.labels:
        modules = [needs for needs in outcome.needs if needs.iree == label and not needs.problem]
        if not modules:
            continue
        imports = {(needs.chain, needs.name): dict(text.split(" ", 1) for text in needs.imports) for needs in modules}
        counts = sorted({len(names) for names in imports.values()})
        pairs = [(earlier[key], names) for key, names in imports.items() if key in earlier]
        yield (
            label,
            _join(needs.bytecode for needs in modules),
            _join(needs.features for needs in modules),
            _join(", ".join(needs.dependencies) for needs in modules),
            "–".join(map(str, dict.fromkeys((counts[0], counts[-1])))),
            _describe_imports(pairs) if pairs else None,
        )
        earlier |= imports


def _join(texts: Iterable[str]) -> str | None:
    """Return what the modules of an IREE have in common, or all that they have."""
    return "; ".join(filter(None, dict.fromkeys(texts))) or None


def _describe_imports(pairs: Sequence[tuple[Mapping[str, str], Mapping[str, str]]]) -> str:
    """Describe how the imports of modules differ; each pair has the signatures before and after, by name."""
    changes = {
        "other signature": (name for old, new in pairs for name in new if old.get(name, new[name]) != new[name]),
        "new": (name for old, new in pairs for name in new if name not in old),
        "gone": (name for old, new in pairs for name in old if name not in new),
    }
    texts = {kind: list_first([*dict.fromkeys(names)], _MAX_NAMES) for kind, names in changes.items()}
    return "; ".join(f"{kind}: {text}" for kind, text in texts.items() if text) or "the same"


def _format_json(outcome: CompatOutcome) -> str:
    opening = outcome.opening
    document = {
        "schema": 1,
        "compat": outcome.name,
        **{name: getattr(opening, name) for name in ("suite", "version", "command", "cwd")},
        "started": opening.time,
        "state": outcome.state,
        "remarks": outcome.remarks,
        "exit_code": outcome.exit_code,
        "exit_meaning": _MEANINGS.get(outcome.exit_code, outcome.exit_code.meaning),
        "seconds": outcome.seconds,
        "require_compatible": opening.promised,
        "irees": [
            {"label": iree.label, "iree": iree.iree, "toolchain": outcome.toolchains[iree.label].as_dict()}
            if iree.label in outcome.toolchains
            else {"label": iree.label, "iree": iree.iree, "toolchain": {}}
            for iree in opening.irees
        ],
        "cells": [
            {
                **{name: getattr(cell, name) for name in ("chain", "compiler", "runtime", "folder", "compatibility")},
                "verdict": str(cell.step.verdict) if cell.step else None,
                "exit_code": cell.exit_code,
                "message": "" if cell.compatibility is Compatibility.RUNS else _find_message(cell),
                "max_abs_error": cell.step.max_abs_error if cell.step else None,
                "promised": cell.is_promised,
            }
            for cell in outcome.cells
        ],
        "modules": [needs.as_dict() for needs in outcome.needs],
    }
    return json.dumps(document, indent=1) + "\n"


def _format_junit(outcome: CompatOutcome) -> str:
    """Return the complete document: a suite for each model, a test for each pair."""
    suites = [
        make_suite(
            f"compat/{chain}",
            [_make_case(cell) for cell in outcome.cells if cell.chain == chain],
            {f"{label}.compiler": info.compiler_text for label, info in outcome.toolchains.items()},
            timestamp=join_lines(outcome.opening.time),
            hostname=join_lines(outcome.machine.host),
        )
        for chain in outcome.chains
    ]
    return format_junit(f"iree-gauntlet compat {outcome.opening.suite}".rstrip(), suites, outcome.seconds)


def _make_case(cell: CompatCell) -> junit_xml.TestCase:
    """Return a test: a refusal that nothing forbids is skipped, so that it is counted and does not fail."""
    case = junit_xml.TestCase(
        name=join_lines(f"{cell.compiler} on {cell.runtime}"),
        classname=join_lines(f"compat.{cell.chain}"),
        elapsed_sec=cell.step.seconds if cell.step else 0.0,
    )
    message = _describe(cell)
    if cell.exit_code is ExitCode.ERROR:
        case.add_error_info(message, cell.url, str(cell.compatibility))
    elif cell.exit_code is ExitCode.FAILED:
        case.add_failure_info(message, cell.url, str(cell.compatibility))
    elif cell.compatibility is not Compatibility.RUNS:
        case.add_skipped_info(message)
    return case
