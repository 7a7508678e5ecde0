"""`summary.md`: what a run came to, in tables, ready for a CI system's summary page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.reporting.chain_figures import chain_figures
from iree_gauntlet.reporting.cleaning import last_lines
from iree_gauntlet.reporting.details import finding_lines
from iree_gauntlet.reporting.figures import byte_size, duration
from iree_gauntlet.reporting.headline import cache_line, headline
from iree_gauntlet.reporting.markdown import code, escape, fenced, shortened, table
from iree_gauntlet.reporting.outcome import BAD_VERDICTS, exit_meaning
from iree_gauntlet.reporting.speeds import speed_section

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.reporting.outcome import ChainOutcome, RunOutcome
    from iree_gauntlet.reporting.step_outcome import StepOutcome

__all__ = ["STEP_SUMMARY_LIMIT", "append_step_summary", "summary_markdown"]

# GitHub refuses a step's summary above 1 MiB as a whole:
# docs.github.com, "Workflow commands for GitHub Actions", step isolation and limits.
STEP_SUMMARY_LIMIT = 1 << 20
_SMALLEST_USEFUL = 4096
_CUT = "*Cut here: this page may not be longer. The whole summary is `summary.md` in the run's folder.*"

_COLUMNS = (
    *("model", "submodel", "compile", "quality", "time ms (mean ± stdev)", "min", "golden"),
    *("dispatches / limit", "bytes / limit", "verdict"),
)
_RIGHT = frozenset({2, 4, 5, 7, 8})


def summary_markdown(outcome: RunOutcome) -> str:
    """The summary of a run as GitHub-flavoured Markdown; ends with a newline."""
    parts = [f"# IREE Gauntlet: {headline(outcome)}", _facts(outcome)]
    parts += [f"> {escape(remark)}" for remark in outcome.remarks]
    if not outcome.chains:
        parts.append("No step was planned.")
    for target in dict.fromkeys((chain.target, chain.sku) for chain in outcome.chains):
        chains = [chain for chain in outcome.chains if (chain.target, chain.sku) == target]
        parts += _target_section(*target, chains)
    parts += speed_section(outcome.steps)
    parts += _failures([step for step in outcome.steps if step.verdict in BAD_VERDICTS])
    parts += _grouped(
        "Expected failures",
        [(step.reason, step) for step in outcome.steps if step.verdict is Verdict.XFAILED],
    )
    parts += _grouped(
        "Skipped",
        [
            (f"behind {step.behind}, which did not come out well" if step.behind else step.reason, step)
            for step in outcome.steps
            if step.verdict is Verdict.SKIPPED
        ],
    )
    parts += _grouped("Notes", [(note, step) for step in outcome.steps for note in step.notes])
    parts += _environment(outcome)
    return "\n\n".join(parts) + "\n"


def append_step_summary(path: Path, text: str) -> None:
    """Append a summary to `$GITHUB_STEP_SUMMARY`, shortened to what GitHub takes.

    The limit is one of the whole file, which earlier commands of the same CI step may have written to.
    The file is the runner's, so it is appended to, not replaced; nothing is written where no room is left
    for a useful part.

    Raises:
        OSError: the file cannot be written.
    """
    used = path.stat().st_size if path.exists() else 0
    room = STEP_SUMMARY_LIMIT - used - 1
    if room < _SMALLEST_USEFUL:
        return
    with path.open("ab") as stream:
        stream.write(b"\n" * bool(used) + shortened(text, room, _CUT).encode())


def _facts(outcome: RunOutcome) -> str:
    code_number = int(outcome.exit_code)
    facts = [
        f"suite {code(outcome.suite)}" if outcome.suite else "",
        f"run {code(outcome.run)}",
        f"exit code {code_number} ({exit_meaning(outcome.exit_code)})",
        f"{duration(outcome.seconds)}; IREE's tools ran for {duration(outcome.tool_seconds)} in all"
        if outcome.tool_seconds
        else duration(outcome.seconds),
    ]
    return f"{' · '.join(fact for fact in facts if fact)}\\\n{cache_line(outcome)}"


def _target_section(target: str, sku: str, chains: list[ChainOutcome]) -> list[str]:
    title = f"## {escape(target)}" + (f" ({escape(sku)})" if sku else "")
    rows = []
    for chain in chains:
        figures = chain_figures(chain)
        verdict = escape(figures.verdict)
        rows.append(
            [
                *(escape(chain.model), escape(chain.submodel), figures.compile_cell),
                *(escape(figures.quality_cell), figures.time_cell, figures.least_time_cell),
                *(escape(figures.golden_time_cell), figures.dispatches_cell, figures.size_cell),
                f"**{verdict}**" if chain.verdict in BAD_VERDICTS else verdict,
            ]
        )
    return [title, table(_COLUMNS, rows, _RIGHT)]


def _failures(steps: list[StepOutcome]) -> list[str]:
    if not steps:
        return []
    parts = ["## What went wrong"]
    for step in steps:
        parts.append(f"### {step.verdict}: {escape(step.title)}")
        parts.append(escape(step.reason, 1000))
        found = finding_lines(step)
        if found:
            parts.append("\n".join(f"- {escape(line, 1000)}" for line in found))
        tail = last_lines(step.tail)
        if tail:
            parts.append(fenced("\n".join(tail)))
        if step.command:
            parts += ["Reproduce:", fenced(step.command, "sh")]
        where = f"{step.origin.file}: {step.origin.field}" if step.origin.field else step.origin.file
        links = [
            f"full log {code(step.log)}" if step.log else "",
            f"written in {code(where)}" if where else "",
        ]
        if any(links):
            parts.append(" · ".join(link for link in links if link))
    return parts


def _grouped(title: str, said: list[tuple[str, StepOutcome]]) -> list[str]:
    """What is said of several steps in the same words, said once."""
    if not said:
        return []
    steps_of: dict[str, list[StepOutcome]] = {}
    for text, step in said:
        steps_of.setdefault(text, []).append(step)
    lines = []
    for text, steps in steps_of.items():
        names = ", ".join(escape(step.title) for step in steps[:8])
        more = f" and {len(steps) - 8} more" if len(steps) > 8 else ""
        lines.append(f"- {escape(text)}: {names}{more}")
    return [f"## {title}", "\n".join(lines)]


def _environment(outcome: RunOutcome) -> list[str]:
    toolchain, machine = outcome.toolchain, outcome.machine

    def version(name: str) -> str:
        commit = str(toolchain.get(f"{name}_commit") or "")
        return f"{toolchain.get(name) or 'unknown'}{f' at {commit[:12]}' if commit else ''}"

    memory = machine.get("memory_bytes")
    rows = [
        ("compiler", version("compiler")),
        ("runtime", version("runtime")),
        ("toolchain", toolchain.get("source")),
        ("gauntlet", outcome.version),
        ("host", machine.get("host")),
        ("CPU", machine.get("cpu")),
        ("cores", machine.get("cores")),
        ("memory", byte_size(memory) if memory else ""),
        ("system", machine.get("os")),
        ("Python", machine.get("python")),
        ("command", outcome.command),
        ("started", outcome.started),
    ]
    return [
        "## Environment",
        table(("", ""), [(name, code(str(value))) for name, value in rows if value not in (None, "")]),
    ]
