"""What is printed at the end of a run: what went wrong, what to do about it, what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.text import Text

from iree_gauntlet.reporting.chain_figures import chain_figures
from iree_gauntlet.reporting.cleaning import clean, last_lines, one_line
from iree_gauntlet.reporting.details import finding_lines
from iree_gauntlet.reporting.diagnostic_groups import group_failures
from iree_gauntlet.reporting.document import Column, Kind, Table
from iree_gauntlet.reporting.figures import STYLES, duration
from iree_gauntlet.reporting.headline import cache_line, headline
from iree_gauntlet.reporting.outcome import BAD_VERDICTS, exit_meaning
from iree_gauntlet.reporting.printing import printing
from iree_gauntlet.reporting.render_console import rich_table
from iree_gauntlet.reporting.report import report_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import rich.console

    from iree_gauntlet.reporting.outcome import ChainOutcome, RunOutcome
    from iree_gauntlet.reporting.step_outcome import StepOutcome

__all__ = ["print_final"]

_MOST_FAILURES = 20
_MOST_GROUPS = 20
_MOST_FINDINGS = 12
_MOST_ROWS = 60
_COLUMNS = (
    Column("verdict", Kind.VERDICT),
    Column("model", Kind.NAME),
    Column("compile", Kind.DURATION, rank=3),
    Column("time ms", Kind.NUMBER, rank=1),
    Column("dispatches", Kind.NUMBER, rank=2),
    Column("bytes", Kind.NUMBER, rank=4),
    Column("quality", rank=5),
)


def print_final(
    outcome: RunOutcome,
    run_dir: Path,
    stream: TextIO,
    *,
    environ: Mapping[str, str],
    width: int | None = None,
) -> None:
    """Print the end of a run.

    The length is bounded: 20 failures with 20 lines of output each, 20 diagnostics of more failures than that, 60 rows
    of the table; what is left out is counted, with where to find it. Commands are never broken over lines.

    Args:
        outcome: what to print.
        run_dir: the run's folder, as the user knows it.
        stream: where to; coloured where it is a terminal and `NO_COLOR` is not set.
        environ: the environment.
        width: columns; None for the terminal's own, or 160 where there is none.
    """
    with printing(stream, environ, width=width) as console:
        _print_failures(console, outcome, run_dir)
        _print_table(console, outcome, run_dir)
        for remark in outcome.remarks:
            _line(console, f"note: {one_line(remark)}", "yellow")
        _line(console, headline(outcome), "bold")
        _line(console, cache_line(outcome))
        _line(console, f"reports in {run_dir}: {', '.join(report_names(outcome))}")
        inside = f"; IREE's tools ran for {duration(outcome.tool_seconds)} in all" if outcome.tool_seconds else ""
        _line(console, f"time: {duration(outcome.seconds)}{inside}")
        code = int(outcome.exit_code)
        _line(console, f"exit code {code}: {exit_meaning(outcome.exit_code)}", "bold red" if code else "bold green")


def _print_failures(console: rich.console.Console, outcome: RunOutcome, run_dir: Path) -> None:
    bad = outcome.bad_steps
    if not bad:
        return
    _line(console, "")
    if len(bad) > _MOST_FAILURES:
        _print_groups(console, bad)
    _line(console, "What went wrong", "bold")
    for step in bad[:_MOST_FAILURES]:
        _print_failure(console, step, run_dir)
    if len(bad) > _MOST_FAILURES:
        more = len(bad) - _MOST_FAILURES
        where = "summary.json" if outcome.many else "summary.md"
        _line(console, "")
        _line(console, f"and {more} more, all of them in {run_dir / where}", "bold")


def _print_groups(console: rich.console.Console, bad: Sequence[StepOutcome]) -> None:
    """What most of them failed of: `  41 compile: failed to legalize operation 'torch.onnx.If'`."""
    groups = group_failures((step.chain, step.name, step.reason) for step in bad)
    _line(console, f"{len(bad)} went wrong, by diagnostic", "bold")
    width = len(str(groups[0].count))
    for group in groups[:_MOST_GROUPS]:
        _line(console, f"  {group.count:>{width}} {group.stage}: {group.text} ({one_line(group.examples[0])}…)")
    if len(groups) > _MOST_GROUPS:
        left = groups[_MOST_GROUPS:]
        _line(console, f"  and {len(left)} more kinds, of {sum(group.count for group in left)} steps")
    _line(console, "")


def _print_failure(console: rich.console.Console, step: StepOutcome, run_dir: Path) -> None:
    _line(console, "")
    title = Text.assemble((str(step.verdict), STYLES[step.verdict]), f"  {one_line(step.title)}: {step.reason}")
    console.print(title, soft_wrap=True)
    found = finding_lines(step)
    for line in found[:_MOST_FINDINGS]:
        _line(console, f"    {line}")
    if len(found) > _MOST_FINDINGS:
        _line(console, f"    and {len(found) - _MOST_FINDINGS} more, in {run_dir / 'summary.md'}")
    for line in last_lines(step.tail):
        _line(console, f"    | {line}", "dim")
    if step.ran:
        _line(console, f"    reproduce: {clean(step.command).strip()}")
    if step.log:
        _line(console, f"    full log:  {run_dir / one_line(step.log, 4096)}")


def _print_table(console: rich.console.Console, outcome: RunOutcome, run_dir: Path) -> None:
    chains = _shown(outcome)
    if not chains:
        return
    figures = [(chain, chain_figures(chain)) for chain in chains]
    rows = tuple(
        (own.verdict, chain.id, own.compile_cell, own.time_cell, own.dispatches_cell, own.size_cell, own.quality_cell)
        for chain, own in figures
    )
    _line(console, "")
    console.print(rich_table(Table(_COLUMNS, rows), console.width))
    more = len(outcome.chains) - len(chains)
    if more:
        where = "summary.json" if outcome.many else "summary.md"
        _line(console, f"and {more} more, all of them in {run_dir / where}")
    _line(console, "")


def _shown(outcome: RunOutcome) -> list[ChainOutcome]:
    """The chains of the table, in plan order; where they are too many, those that went wrong go first.

    Of a suite of operators only those: what came out as expected has no figures worth a screen.
    """
    chains = outcome.chains
    if len(chains) <= _MOST_ROWS:
        return list(chains)
    ranked = sorted(range(len(chains)), key=lambda i: (chains[i].verdict not in BAD_VERDICTS, i))
    shown = [chains[i] for i in sorted(ranked[:_MOST_ROWS])]
    return [chain for chain in shown if chain.verdict in BAD_VERDICTS] if outcome.many else shown


def _line(console: rich.console.Console, text: str, style: str = "") -> None:
    """A line as it is: never broken, so that what is copied from it works."""
    console.print(Text(clean(text), style=style), soft_wrap=True)
