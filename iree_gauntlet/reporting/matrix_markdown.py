"""`matrix.md`: what a matrix came to, in tables, ready for a CI system's summary page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.reporting.chain_figures import NOTHING
from iree_gauntlet.reporting.figures import duration
from iree_gauntlet.reporting.markdown import code, escape, table
from iree_gauntlet.reporting.matrix_changes import ChangeKind, changes, mean_ratios
from iree_gauntlet.reporting.matrix_marks import FIGURES
from iree_gauntlet.reporting.matrix_words import LEGEND, NOTE, TITLES, failures, figure_lines, mean_lines
from iree_gauntlet.reporting.outcome import BAD_VERDICTS, exit_meaning

if TYPE_CHECKING:
    from iree_gauntlet.reporting.matrix import MatrixIree, MatrixOutcome
    from iree_gauntlet.reporting.matrix_changes import Change

__all__ = ["matrix_markdown"]


def matrix_markdown(matrix: MatrixOutcome) -> str:
    """The matrix as GitHub-flavoured Markdown; ends with a newline."""
    code_number = int(matrix.exit_code)
    count = len(matrix.irees)
    facts = [
        f"suite {code(matrix.suite)}" if matrix.suite else "",
        f"matrix {code(matrix.name)}",
        f"exit code {code_number} ({exit_meaning(matrix.exit_code)})",
        duration(matrix.seconds),
    ]
    parts = [
        f"# IREE Gauntlet: {'one IREE' if count == 1 else f'{count} IREEs'}",
        " · ".join(fact for fact in facts if fact),
        *(f"> {escape(remark)}" for remark in matrix.remarks),
        table(("IREE", "compiler", "runtime", "result", "run"), [_iree_row(iree) for iree in matrix.irees]),
    ]
    if matrix.rows:
        parts += _markdown_changes(changes(matrix), len(matrix.ran))
        parts += _markdown_verdicts(matrix)
        parts += _markdown_figures(matrix)
        parts += _markdown_failures(matrix)
    return "\n\n".join(parts) + "\n"


def _iree_row(iree: MatrixIree) -> list[str]:
    def version(name: str) -> str:
        commit = str(iree.toolchain.get(f"{name}_commit") or "")
        told = str(iree.toolchain.get(name) or "")
        return code(f"{told}{f' at {commit[:12]}' if commit else ''}") if told else NOTHING

    result = escape(iree.result_text)
    bad = iree.exit_code is None or int(iree.exit_code)
    shown = f"**{result}**" if bad and result else result
    return [code(iree.label), version("compiler"), version("runtime"), shown, code(iree.folder) if iree.outcome else ""]


def _markdown_changes(found: list[Change], ran: int) -> list[str]:
    if ran < 2:
        return []
    parts = ["## What changed between releases"]
    if not found:
        parts.append("Nothing: verdicts, dispatch counts, sizes and times are the same within the margins.")
    for kind in ChangeKind:
        lines = [f"- {code(change.chain)}: {escape(change.text)}" for change in found if change.kind is kind]
        if lines:
            parts += [f"### {TITLES[kind]}", "\n".join(lines)]
    return parts


def _markdown_failures(matrix: MatrixOutcome) -> list[str]:
    lines = [f"- {code(f'{label}: {chain}')}: {escape(text)}" for label, chain, text in failures(matrix)]
    if not lines:
        return []
    where = "Output, logs and commands to reproduce: `summary.md` in the folder of each run."
    return ["## What went wrong", "\n".join(lines), where]


def _markdown_verdicts(matrix: MatrixOutcome) -> list[str]:
    rows = []
    for row in matrix.rows:
        cells = [row.cells.get(iree.label) for iree in matrix.ran]
        texts = [
            NOTHING
            if cell is None
            else f"**{escape(cell.verdict_text)}**"
            if cell.verdict in BAD_VERDICTS
            else escape(cell.verdict_text)
            for cell in cells
        ]
        rows.append([escape(row.chain), *texts])
    return ["## Verdicts", table(("model", *(escape(iree.label) for iree in matrix.ran)), rows)]


def _markdown_figures(matrix: MatrixOutcome) -> list[str]:
    rows = [
        [escape(row.chain) if first else "", escape(label), *map(escape, figures)]
        for row in matrix.rows
        for first, (label, _, figures) in zip(
            [True, *[False] * len(row.cells)], figure_lines(row, matrix), strict=False
        )
    ]
    parts = ["## Figures", table(("model", "IREE", *FIGURES), rows, frozenset({2, 3, 4, 5, 6}))]
    notes = [escape(" ".join(LEGEND).format(base=matrix.base), 1000)] if len(matrix.ran) > 1 else []
    notes += [escape(line) for line in mean_lines(mean_ratios(matrix))]
    if len(matrix.ran) > 1:
        notes += NOTE
    return [*parts, *notes]
