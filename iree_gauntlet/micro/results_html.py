"""`results.html`: everything in one file that needs nothing else: tables and plots, in light and dark, no scripts."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cleaning import clean
from iree_gauntlet.figures import duration, error_figure, milliseconds
from iree_gauntlet.micro.plot_style import INK, PAPER
from iree_gauntlet.micro.report_rows import entries
from iree_gauntlet.micro.results_figures import (
    LEGEND,
    SUMMARY_COLUMNS,
    decibels,
    doubts,
    heading_facts,
    ratio_text,
    remarks,
    size_text,
    speedup_text,
    summaries,
    time_text,
    without_empty,
)
from iree_gauntlet.records.chain_figures import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.micro.plots import Plot
    from iree_gauntlet.micro.report_rows import Entry, Row

__all__ = ["results_html"]

_TITLE = "IREE Gauntlet: micro-benchmarks"
_STYLE = f"""
:root {{ color-scheme: light dark; --paper: #fefefe; --ink: #1b1b1b; --faint: #6b6b6b; --rule: #d8d8d8;
  --head: #f1f1ef; --faster: #00507d; --slower: #a34700; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: #17181a; --ink: #e8e8e6; --faint: #a0a0a0; --rule: #3b3d40; --head: #24262a;
    --faster: #6cc0f2; --slower: #ff9a4d; }}
}}
body {{ background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto;
  max-width: 78rem; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }} h2 {{ font-size: 1.2rem; margin-top: 2.4rem; }} h3 {{ font-size: 1rem; }}
p.facts, li, .legend {{ color: var(--faint); }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.86rem; }}
th, td {{ border-bottom: 1px solid var(--rule); padding: 0.25rem 0.6rem; text-align: right; white-space: nowrap; }}
th {{ background: var(--head); }}
th:first-child, td:first-child {{ text-align: left; }}
td.text {{ text-align: left; }}
td.faster {{ color: var(--faster); font-weight: 600; }}
p.remark {{ border-left: 3px solid var(--slower); padding-left: 0.6rem; }}
td.slower {{ color: var(--slower); }}
td.inconclusive, td.none {{ color: var(--faint); }}
summary {{ cursor: pointer; margin: 0.8rem 0; }}
figure {{ margin: 1.2rem 0; overflow-x: auto; }}
svg text {{ font-family: "DejaVu Sans", Verdana, sans-serif !important; }}
svg [fill="{PAPER}"], svg [style*="fill: {PAPER}"] {{ fill: var(--paper) !important; }}
svg [style*="stroke: {PAPER}"] {{ stroke: var(--paper) !important; }}
svg [style*="fill: {INK}"] {{ fill: var(--ink) !important; }}
svg [style*="stroke: {INK}"] {{ stroke: var(--ink) !important; }}
"""
# Before the SVG itself stand an XML declaration, and a document type with the address of its definition.
_PROLOG = re.compile(r"\A.*?(?=<svg\b)", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_IDENTIFIER = re.compile(r"(\bid=\"|\bhref=\"#|\burl\(#)")
_DETAILS = (
    *("m-k-n", "shape", "recipe", "status", "IREE, ms", "speed-up", "torch eager, ms", "torch eager / IREE"),
    *("torch.compile, ms", "torch.compile / IREE", "max error", "relative error", "SQNR", "module", "parameters"),
    *("peak memory", "device memory", "compile", "first call, ms", "of peak", "the module shows"),
)


def results_html(rows: Sequence[Row], header: Mapping[str, Any] | None = None, plots: Sequence[Plot] = ()) -> str:
    """The page.

    Args:
        rows: of all points.
        header: of the run; what it lacks is left out.
        plots: of `draw_plots`; none where matplotlib is missing.
    """
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        f'<head><meta charset="utf-8"><title>{_TITLE}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head>",
        f'<body><h1>{_TITLE}</h1><p class="facts">{_text(" · ".join(heading_facts(header, rows)))}</p>',
    ]
    parts += [f'<p class="remark">{_text(remark)}</p>' for remark in remarks(header, rows)]
    number = 0
    for entry in entries(rows):
        own = [plot for plot in plots if plot.entry == entry.title]
        parts += _entry(entry, own, number)
        number += len(own)
    if rows:
        parts.append(f'<div class="legend">{"".join(f"<p>{_text(line)}</p>" for line in LEGEND)}</div>')
    return "\n".join([*parts, "</body></html>", ""])


def _entry(entry: Entry, plots: Sequence[Plot], number: int) -> Iterator[str]:
    """An entry of `model_params`; its plots have numbers from this one on."""
    yield f"<h2>{_text(entry.title)}</h2>"
    yield _text_table(SUMMARY_COLUMNS, [summary.cells() for summary in summaries(entry)])
    for index, plot in enumerate(plots, start=number):
        yield f"<figure>{_inline(plot, index)}</figure>"
    if entry.recipes:
        yield "<h3>Speed-ups</h3>"
        yield _table(("m-k-n", "baseline, ms", *entry.recipes), list(_speedups(entry)))
    found = doubts(entry.rows)
    if found:
        yield f"<ul>{''.join(f'<li>{_text(text)}</li>' for text in found)}</ul>"
    lines = [_details(row) for row in entry.rows]
    yield f"<details><summary>All figures ({len(lines)})</summary>{_text_table(_DETAILS, lines)}</details>"


def _speedups(entry: Entry) -> Iterator[list[str]]:
    for shape in entry.shapes:
        baseline = entry.baseline(shape)
        yield [
            _cell(shape),
            _cell(time_text(baseline.iree if baseline else None)),
            *(_speedup_cell(entry.row(recipe, shape)) for recipe in entry.recipes),
        ]


def _speedup_cell(row: Row | None) -> str:
    """Told apart by colour and by a sign."""
    word = row.speedup.word if row and row.speedup else "none"
    sign = {"faster": "▲ ", "slower": "▼ "}.get(word, "")
    return _cell(f"{sign}{speedup_text(row)}", word if word in ("faster", "slower", "inconclusive") else "none")


def _details(row: Row) -> tuple[str, ...]:
    """In the order of `_DETAILS`."""
    eager, compiled = row.torch_eager, row.torch_compile
    first = row.iree.first_call_ms if row.iree else None
    share = NOTHING if row.roofline_share is None else f"{100 * row.roofline_share:.0f} % {row.roofline_bound}"
    error = [NOTHING if value is None else error_figure(value) for value in (row.max_error, row.relative_error)]
    return (
        *(row.label, row.shape, row.recipe, row.status, time_text(row.iree), ratio_text(row.speedup)),
        *(time_text(eager), ratio_text(eager.beside_iree if eager else None)),
        *(time_text(compiled), ratio_text(compiled.beside_iree if compiled else None)),
        *(*error, decibels(row.sqnr_db), size_text(row.module_bytes), size_text(row.parameter_bytes)),
        *(size_text(row.peak_rss_bytes), size_text(row.device_peak_bytes)),
        NOTHING if row.compile_s is None else duration(row.compile_s),
        NOTHING if first is None else milliseconds(first),
        *(share, "; ".join(row.shows)),
    )


def _text_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of plain text, without the columns in which nothing stands."""
    shown, cells = without_empty(head, lines)
    kinds = ["text" if title == _DETAILS[-1] else "" for title in shown]
    return _table(shown, [[_cell(text, kind) for text, kind in zip(line, kinds, strict=True)] for line in cells])


def _table(head: Iterable[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose cells are HTML already."""
    titles = "".join(f'<th scope="col">{_text(title)}</th>' for title in head)
    body = "\n".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _cell(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{_text(text)}</td>' if kind else f"<td>{_text(text)}</td>"


def _text(text: str) -> str:
    return html.escape(clean(text))


def _inline(plot: Plot, number: int) -> str:
    """An SVG as part of the page: without its prolog, with identifiers that no other plot has."""
    svg = _METADATA.sub("", _PROLOG.sub("", plot.svg.decode("utf-8"), count=1))
    svg = _IDENTIFIER.sub(rf"\g<1>p{number}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="{_text(plot.title)}"', 1)
