"""What people read of a run.

Of a run with more than 200 chains (a suite of operators) its tables hold only what did not come out as expected.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.cleaning import last_lines
from iree_gauntlet.diagnostics import group_failures
from iree_gauntlet.document import (
    Block,
    Cell,
    Code,
    Column,
    Document,
    Heading,
    Items,
    Kind,
    Link,
    Name,
    Paragraph,
    Table,
    Text,
)
from iree_gauntlet.figures import byte_size, counted, duration, listed
from iree_gauntlet.measuring.goldens.goldens import covers
from iree_gauntlet.records.chain_figures import chain_figures, matrix_cell
from iree_gauntlet.records.outcome import BAD_VERDICTS, RunOutcome, cache_line, headline, version
from iree_gauntlet.reports.details import device_text, explanation_line, finding_lines
from iree_gauntlet.steps import NOTHING_COMPARED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.records.step_outcome import StepOutcome


# What files hold at most, and what of it a terminal shows.
_MOST_FAILURES, _SHOWN_FAILURES = 200, 20
_MOST_ROWS, _SHOWN_ROWS = 500, 30
_MOST_GROUPS, _SHOWN_GROUPS = 50, 20
_SHOWN_FINDINGS = 12
_GROUPED_FROM = 20
_NAMED_STEPS = 8
_COMPARED = (Verdict.PASSED, Verdict.FAILED, Verdict.XFAILED, Verdict.XPASSED)
_VERDICT_WORDS = {
    Verdict.ERROR: "in error",
    Verdict.XFAILED: "failed as expected",
    Verdict.XPASSED: "passed unexpectedly",
}
_COLUMNS: tuple[Column, ...] = (
    Column("verdict", Kind.VERDICT),
    Column("model", Kind.NAME),
    Column("compile", Kind.DURATION, rank=3),
    Column("time ms", Kind.NUMBER, rank=1),
    Column("dispatches", Kind.NUMBER, rank=2),
    Column("bytes", Kind.NUMBER, rank=4),
    Column("quality", rank=5),
)
_INSTRUCTIONS = Column("instructions", Kind.NUMBER, rank=1)
_TIME_COLUMNS = (
    Column("model", Kind.NAME),
    *(Column(title, Kind.NUMBER) for title in ("mean ± stdev ms", "min ms", "golden ms")),
)
_SPEED_COLUMNS = (
    Column("model", Kind.NAME),
    Column("samples/s", Kind.NUMBER),
    Column("samples", Kind.NUMBER),
    Column("in", Kind.DURATION),
    *(Column(name, Kind.NUMBER, "ms") for name in ("p50", "p90", "p99")),
    Column("tokens/s", Kind.NUMBER),
)
_GROUP_COLUMNS = (Column("cases", Kind.NUMBER), *(Column(title) for title in ("stage", "diagnostic", "for example")))
# Stages whose failures `explain` is about.
_EXPLAINED = (Stage.COMPILE, Stage.THRESHOLD)
_FACT_COLUMNS = (Column(""), Column("", Kind.NAME))


def run_document(outcome: RunOutcome, folder: Path | None = None) -> Document:
    """What went wrong and what to do about it, what was measured, and with what.

    Args:
        outcome: of the run.
        folder: of the run, as the user knows it; None where the document lies in it.
    """
    bad = _bad_steps(outcome)
    inside = f"; IREE's tools ran for {duration(outcome.tool_seconds)} in all" if outcome.tool_seconds else ""
    blocks: list[Block] = []
    if len(bad) >= _GROUPED_FROM:
        blocks += _groups("What went wrong, by diagnostic", bad)
    blocks += _failures("What went wrong", bad[:_SHOWN_FAILURES], folder)
    if len(bad) > _SHOWN_FAILURES:
        text = f"{len(bad) - _SHOWN_FAILURES} more went wrong; "
        blocks.append(Paragraph((text, Name("junit.xml"), " and ", Name("summary.json"), " have each of them.")))
    idle = len(outcome.bad_steps) - len(bad)
    if idle:
        blocks.append(Paragraph((f"{idle} step{'s' if idle > 1 else ''} did not start.",)))
    blocks += [*_figures(outcome), *_unchecked(outcome)]
    blocks += [Paragraph((line,)) for line in (*_judged(outcome), cache_line(outcome))]
    blocks.append(Paragraph((f"time: {duration(outcome.seconds)}{inside}",)))
    if any(step.stage in _EXPLAINED and step.verdict is Verdict.FAILED and not step.explanation for step in bad):
        named = Name(f"gauntlet explain {folder or outcome.run}")
        blocks.append(Paragraph(("to find what is at fault, and to pack it up for others: ", named)))
    if any(_breaks_golden(step) for step in bad):
        blocks.append(Paragraph(("where a new figure is right: ", Name("gauntlet golden.update"), " proposes it")))
    if outcome.state != "complete":
        blocks.append(Paragraph(("to go on with it: ", *_going_on(outcome, folder))))
    return Document(
        f"IREE Gauntlet: {f'suite {outcome.suite}, ' if outcome.suite else ''}run {outcome.run}",
        headline(outcome),
        (),
        tuple(blocks),
        tuple(_details(outcome, folder)),
        outcome.exit_code,
        outcome.remarks,
    )


def _going_on(outcome: RunOutcome, folder: Path | None) -> Sequence[str | Name]:
    """How a run that did not end is continued: what its command does again anyway comes from the cache."""
    where = f" --run-dir {folder}" if folder else ""
    dialects = {chain.dialect for chain in outcome.chains} or {outcome.suite}
    if dialects == {"bench"}:
        return (Name(outcome.command), " again: what is done comes from the cache")
    if dialects == {"micro"}:
        return (Name(f"gauntlet micro --resume{where}"),)
    return (Name(f"gauntlet run --resume{where}{' --cluster …' if outcome.workers else ''}"),)


def _bad_steps(outcome: RunOutcome) -> tuple[StepOutcome, ...]:
    """Steps that began and came out badly: of those that an interrupted run never began there is nothing to say."""
    return tuple(step for step in outcome.bad_steps if not step.never_started)


def _breaks_golden(step: StepOutcome) -> bool:
    """Whether a figure exceeds what a spec allows, not only what an earlier run measured."""
    # Of a baseline, the note names a run, and no field.
    return any(check.passed is False and ": " in check.note for check in step.checks)


def _judged(outcome: RunOutcome) -> Iterator[str]:
    """What the verdicts rest on: who reads `passed` is to know what was looked at, and which goldens were not."""
    counts = Counter(chain.verdict for chain in outcome.chains)
    verdicts = [f"{count} {_VERDICT_WORDS.get(verdict, verdict)}" for verdict, count in sorted(counts.items())]
    checks = [(step, check) for step in outcome.steps for check in step.checks]
    judged = Counter(check.metric for _, check in checks if check.passed is not None)
    compared = (step for step in outcome.steps if step.stage == "threshold" and NOTHING_COMPARED not in step.notes)
    numbers = sum(step.verdict in _COMPARED for step in compared)
    timed = [step for step in outcome.steps if step.samples is not None]
    unjudged = not judged["time_ms"] and any(check.metric == "time_ms" for _, check in checks)
    unnamed = unjudged and not any(chain.sku for chain in outcome.chains)
    disturbed = sum(bool(step.statistics.get("disturbed")) for step in timed)
    yield (
        f"{counted(len(outcome.chains), 'case' if outcome.many else 'model')}: {', '.join(verdicts)}; "
        f"judged: numbers {numbers}, dispatches {judged['dispatch_count']}, sizes {judged['binary_size_bytes']}, "
        f"times {judged['time_ms']}{' (no --sku)' if unnamed else ''}"
        + (f", instructions {judged['instructions']}" if judged["instructions"] else "")
        + (f"; {counted(disturbed, 'time')} disturbed (*)" if disturbed else "")
    )
    idle = [
        (check.release, golden.release)
        for step, check in checks
        for golden in step.goldens
        if check.passed is None
        and golden.metric == check.metric
        and golden.release
        and not covers(golden.release, check.release)
    ]
    if idle:
        releases = ", ".join(sorted({release for _, release in idle}))
        yield f"{counted(len(idle), 'golden')} not applied: for {releases}, this is {idle[0][0] or 'unknown'}"


def _unchecked(outcome: RunOutcome) -> Iterator[Block]:
    """Who reads `passed` is to know where no number was looked at."""
    steps = [step for step in outcome.steps if step.verdict is Verdict.PASSED and NOTHING_COMPARED in step.notes]
    if steps:
        named = listed([step.title for step in steps], _NAMED_STEPS)
        yield Paragraph((f"no expected outputs, only that it runs was checked: {named}",))


def _details(outcome: RunOutcome, folder: Path | None) -> Iterator[Block]:
    steps, many = outcome.steps, outcome.many
    if not many:
        yield from _times(outcome)
    yield from _speeds(steps)
    yield from _failures("What else went wrong", _bad_steps(outcome)[_SHOWN_FAILURES:_MOST_FAILURES], folder)
    expected = [step for step in steps if step.verdict is Verdict.XFAILED]
    if many:
        yield from _groups("Expected failures, by diagnostic", expected)
    else:
        yield from _said("Expected failures", ((step.reason, step) for step in expected))
    skipped = (step for step in steps if step.verdict is Verdict.SKIPPED)
    yield from _said("Skipped", ((_why_skipped(step, many=many), step) for step in skipped))
    yield from _said("Notes", ((note, step) for step in steps for note in step.notes))
    yield Heading("Environment")
    yield Table(_FACT_COLUMNS, tuple((name, str(value)) for name, value in _facts(outcome) if value))


def _why_skipped(step: StepOutcome, *, many: bool) -> str:
    if not step.behind:
        return step.reason
    return f"behind {'a step that' if many else f'{step.behind}, which'} did not come out well"


def _figures(outcome: RunOutcome) -> Iterator[Block]:
    """A row for each chain; those that went wrong come first where a terminal has no room for all."""
    chains, count = list(outcome.chains), len(outcome.chains)
    if not chains:
        yield Paragraph(("No step was planned.",))
        return
    if outcome.many:
        chains = [chain for chain in chains if chain.verdict in BAD_VERDICTS]
    elif count > _SHOWN_ROWS:
        chains.sort(key=lambda chain: chain.verdict not in BAD_VERDICTS)
    if not chains:
        yield Paragraph((f"All {count} as expected; each is in ", Name("summary.json"), "."))
        return
    shown = [(chain, chain_figures(chain)) for chain in chains[: _MOST_ROWS if outcome.many else None]]
    columns = _COLUMNS
    rows: list[tuple[Cell, ...]] = [
        (own.verdict, chain.id, own.compile_cell, own.time_cell, own.dispatches_cell, own.size_cell, own.quality_cell)
        for chain, own in shown
    ]
    if any(own.instructions is not None for _, own in shown):
        columns = (*columns[:4], _INSTRUCTIONS, *columns[4:])
        rows = [(*row[:4], own.instructions_cell, *row[4:]) for row, (_, own) in zip(rows, shown, strict=True)]
    yield Heading("Figures")
    yield Table(columns, tuple(rows), _SHOWN_ROWS)
    if counters := {cell.counted_by for chain, _ in shown if (cell := matrix_cell(chain)).counted_by}:
        yield Paragraph((f"instructions of one call on one thread, counted by {'; '.join(sorted(counters))}",))
    if outcome.many and count > len(rows):
        as_expected = f", {count - len(chains)} of them as expected."
        yield Paragraph((f"{count - len(rows)} more in ", Name("summary.json"), as_expected))


def _times(outcome: RunOutcome) -> Iterator[Block]:
    found = ((chain.id, chain_figures(chain)) for chain in outcome.chains)
    rows = tuple((name, own.time_cell, own.least_time_cell, own.golden_time_cell) for name, own in found if own.samples)
    if rows:
        yield Heading("Times")
        yield Table(_TIME_COLUMNS, rows)


def _speeds(steps: Iterable[StepOutcome]) -> Iterator[Block]:
    """Of benchmarks that push inputs again and again from the host."""
    rows = []
    for step in steps:
        found = step.statistics
        if {"samples_per_sec", "total_samples", "total_s", "latency_ms"} <= found.keys():
            tokens = f"{float(found['tokens_per_sec']):.1f}" if "tokens_per_sec" in found else None
            latencies = (float(found["latency_ms"][name]) for name in ("p50", "p90", "p99"))
            speed, total = f"{float(found['samples_per_sec']):.2f}", float(found["total_samples"])
            rows.append((step.chain, speed, total, float(found["total_s"]), *latencies, tokens))
    if rows:
        yield Heading("Speed")
        yield Table(_SPEED_COLUMNS, tuple(rows))


def _groups(title: str, steps: Sequence[StepOutcome]) -> Iterator[Block]:
    """What steps failed of, the most frequent first."""
    groups = group_failures((step.chain, step.name, step.reason) for step in steps)
    if not groups:
        return
    rows = tuple(
        (float(group.count), group.stage, group.text, ", ".join(group.examples[:2]) + ", …" * (group.count > 2))
        for group in groups[:_MOST_GROUPS]
    )
    yield Heading(title)
    yield Table(_GROUP_COLUMNS, rows, _SHOWN_GROUPS)
    if left := groups[_MOST_GROUPS:]:
        yield Paragraph((f"and {len(left)} more kinds, of {sum(group.count for group in left)} steps",))


def _failures(title: str, steps: Sequence[StepOutcome], folder: Path | None) -> Iterator[Block]:
    if steps:
        yield Heading(title)
    for step in steps:
        yield Heading(f"{step.verdict}: {step.title}", 3)
        yield Paragraph((step.reason,))
        if step.explanation is not None:
            bundle = step.explanation.bundle
            link: Text = ("; bundle: ", Link(bundle, str((folder or Path()) / bundle))) if bundle else ()
            yield Paragraph((explanation_line(step.explanation), *link))
        if found := finding_lines(step):
            yield Items(tuple((line,) for line in found), _SHOWN_FINDINGS)
        if tail := last_lines(step.tail):
            yield Code("\n".join(tail))
        if step.ran:
            yield Paragraph(("Reproduce:",))
            yield Code(step.command, "sh")
        log: Text = ("full log ", Name(str((folder or Path()) / step.log))) if step.log else ()
        written: Text = ("written in ", Name(str(step.origin))) if step.origin.file else ()
        if log or written:
            yield Paragraph((*log, *([" · "] if log and written else []), *written))


def _said(title: str, said: Iterable[tuple[str, StepOutcome]]) -> Iterator[Block]:
    """What is said of several steps in the same words, said once."""
    steps_of: dict[str, list[str]] = {}
    for text, step in said:
        steps_of.setdefault(text, []).append(step.title)
    if not steps_of:
        return
    yield Heading(title)
    yield Items(tuple((f"{text}: {listed(names, _NAMED_STEPS)}",) for text, names in steps_of.items()))


def _facts(outcome: RunOutcome) -> tuple[tuple[str, object], ...]:
    toolchain, machine = outcome.toolchain, outcome.machine
    memory = machine.get("memory_bytes")
    targets = dict.fromkeys(f"{chain.target} ({chain.sku})" if chain.sku else chain.target for chain in outcome.chains)
    return (
        ("compiler", version(toolchain, "compiler") or "unknown"),
        ("runtime", version(toolchain, "runtime") or "unknown"),
        ("toolchain", toolchain.get("source")),
        ("gauntlet", outcome.version),
        ("targets", ", ".join(targets)),
        ("host", machine.get("host")),
        ("CPU", machine.get("cpu")),
        ("cores", machine.get("cores")),
        ("memory", byte_size(memory) if memory else ""),
        ("devices", device_text(machine)),
        ("system", machine.get("os")),
        ("Python", machine.get("python")),
        ("command", outcome.command),
        ("started", outcome.started),
    )
