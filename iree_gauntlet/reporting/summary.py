"""`summary.md`: what a run came to, in tables, ready for a CI system's summary page.

Of a run with more than 200 chains (a suite of operators) it begins with what did not come out as expected, grouped by
diagnostic, and its tables hold no more than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.reporting.chain_figures import chain_figures
from iree_gauntlet.reporting.cleaning import last_lines
from iree_gauntlet.reporting.details import finding_lines
from iree_gauntlet.reporting.diagnostic_groups import group_failures
from iree_gauntlet.reporting.figures import byte_size, duration
from iree_gauntlet.reporting.headline import cache_line, headline
from iree_gauntlet.reporting.markdown import code, escape, fenced, shortened, table
from iree_gauntlet.reporting.outcome import BAD_VERDICTS, exit_meaning
from iree_gauntlet.reporting.speeds import speed_section

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.reporting.outcome import ChainOutcome, RunOutcome
    from iree_gauntlet.reporting.step_outcome import StepOutcome

__all__ = ["STEP_SUMMARY_LIMIT", "append_step_summary", "summary_markdown"]

# GitHub refuses a step's summary above 1 MiB as a whole:
# docs.github.com, "Workflow commands for GitHub Actions", step isolation and limits.
STEP_SUMMARY_LIMIT = 1 << 20
_SMALLEST_USEFUL = 4096
_MOST_FAILURES = 200
_MOST_ROWS = 500
_MOST_GROUPS = 50
_GROUPED_FROM = 20
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
    failures = _failure_groups("What went wrong, by diagnostic", outcome.bad_steps) + _failures(outcome.bad_steps)
    if outcome.many:
        parts += failures
    chains_of: dict[tuple[str, str], list[ChainOutcome]] = {}
    for chain in outcome.chains:
        chains_of.setdefault((chain.target, chain.sku), []).append(chain)
    for target, chains in chains_of.items():
        parts += _target_section(*target, chains, many=outcome.many)
    parts += speed_section(outcome.steps)
    if not outcome.many:
        parts += failures
    expected = [step for step in outcome.steps if step.verdict is Verdict.XFAILED]
    if outcome.many:
        parts += _failure_groups("Expected failures, by diagnostic", expected, least=1)
    else:
        parts += _grouped("Expected failures", [(step.reason, step) for step in expected])
    parts += _grouped("Skipped", [(_why_skipped(step, outcome), step) for step in _skipped(outcome)])
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


def _skipped(outcome: RunOutcome) -> list[StepOutcome]:
    return [step for step in outcome.steps if step.verdict is Verdict.SKIPPED]


def _why_skipped(step: StepOutcome, outcome: RunOutcome) -> str:
    if not step.behind:
        return step.reason
    behind = "a step that" if outcome.many else f"{step.behind}, which"
    return f"behind {behind} did not come out well"


def _target_section(target: str, sku: str, chains: list[ChainOutcome], *, many: bool) -> list[str]:
    title = f"## {escape(target)}" + (f" ({escape(sku)})" if sku else "")
    bad = [chain for chain in chains if chain.verdict in BAD_VERDICTS] if many else chains
    left = len(chains) - len(bad[:_MOST_ROWS])
    rest = [f"{left} more in `summary.json`, {len(chains) - len(bad)} of them as expected."] if left else []
    if not bad:
        return [title, f"All {len(chains)} as expected; each is in `summary.json`."]
    rows = []
    for chain in bad[:_MOST_ROWS] if many else bad:
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
    return [title, table(_COLUMNS, rows, _RIGHT), *(rest if many else [])]


def _failure_groups(title: str, steps: Sequence[StepOutcome], *, least: int = _GROUPED_FROM) -> list[str]:
    """A section that says what steps failed of, the most frequent first; nothing for fewer steps than `least`."""
    if len(steps) < least:
        return []
    groups = group_failures((step.chain, step.name, step.reason) for step in steps)
    rows = [
        (
            *(str(group.count), escape(group.stage), escape(group.text)),
            ", ".join(map(escape, group.examples[:2])) + (", …" if group.count > 2 else ""),
        )
        for group in groups[:_MOST_GROUPS]
    ]
    left = groups[_MOST_GROUPS:]
    rest = [f"and {len(left)} more kinds, of {sum(group.count for group in left)} steps"] if left else []
    return [f"## {title}", table(("cases", "stage", "diagnostic", "for example"), rows, frozenset({0})), *rest]


def _failures(steps: Sequence[StepOutcome]) -> list[str]:
    if not steps:
        return []
    parts = ["## What went wrong"]
    for step in steps[:_MOST_FAILURES]:
        parts.append(f"### {step.verdict}: {escape(step.title)}")
        parts.append(escape(step.reason, 1000))
        found = finding_lines(step)
        if found:
            parts.append("\n".join(f"- {escape(line, 1000)}" for line in found))
        tail = last_lines(step.tail)
        if tail:
            parts.append(fenced("\n".join(tail)))
        if step.ran:
            parts += ["Reproduce:", fenced(step.command, "sh")]
        where = f"{step.origin.file}: {step.origin.field}" if step.origin.field else step.origin.file
        links = [
            f"full log {code(step.log)}" if step.log else "",
            f"written in {code(where)}" if where else "",
        ]
        if any(links):
            parts.append(" · ".join(link for link in links if link))
    if len(steps) > _MOST_FAILURES:
        more = len(steps) - _MOST_FAILURES
        parts.append(f"*{more} more went wrong; `junit.xml` and `summary.json` have each of them.*")
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
