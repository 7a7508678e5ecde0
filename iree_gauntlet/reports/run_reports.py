"""The reports of a run, from its journal alone: also of a run that was killed.

`job_summary.md` and `job_summary.json` have the shape of iree-test-suites' torch models: one table for each type of
test, with the columns and words that its readers know: `PASSED`, `FAILED` (also for what an error kept from being
judged), `N/A` for what did not run; and `XFAILED`, which that suite has not.

`summary.json` is the result of a run, for programs; docs/reference/results.md has its shape. Within one schema number
keys are only added. NaN and infinities are strings, so that every JSON reader takes the file.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import asdict, replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.diagnostics import group_failures
from iree_gauntlet.document import (
    Bars,
    Block,
    Cell,
    Code,
    Column,
    ColumnKind,
    Document,
    DrawnLimit,
    Folded,
    Heading,
    Items,
    Lanes,
    Name,
    OnPage,
    Paragraph,
    Table,
    Text,
    TextLink,
    WorkSpan,
)
from iree_gauntlet.figures import COMPILES_FIRST, Figure, Statistic
from iree_gauntlet.formatting import byte_size, counted, duration, listed, take_last_lines
from iree_gauntlet.journal_events import ExperimentKind, Opening
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.recorded import strict_json
from iree_gauntlet.records.chain_figures import collect_chain_figures, format_chain_verdict
from iree_gauntlet.records.explain_outcome import with_explanations
from iree_gauntlet.records.outcome import RunOutcome, format_cache_line, format_headline, format_verdicts, read_outcome
from iree_gauntlet.records.run_before import find_changes_since
from iree_gauntlet.reports.details import format_devices, format_explanation, list_findings, list_unapplied
from iree_gauntlet.reports.github import format_error_commands
from iree_gauntlet.reports.junit import format_run_junit
from iree_gauntlet.reports.render_markdown import code, escape, table
from iree_gauntlet.reports.report_files import Reports, make_pages, provenance
from iree_gauntlet.stages import CHECKS, Kind
from iree_gauntlet.steps import NOTHING_COMPARED
from iree_gauntlet.system.collector import pause_collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.records.chain_figures import ChainFigures
    from iree_gauntlet.records.outcome import ChainOutcome, StepOutcome
    from iree_gauntlet.records.run_before import RunBefore
    from iree_gauntlet.results import CacheUse, Check, OutputComparison


_OF_THE_RUN = (*("run", "suite", "version", "command", "cwd", "started"), *("state", "resumed", "torn", "remarks"))
_OF_A_CHAIN = ("id", "dialect", "model", "submodel", "target", "sku", "verdict")
_OF_A_STEP = (
    *("id", "stage", "role", "verdict", "failure", "reason", "behind"),
    *("seconds", "waited_seconds", "cpu_seconds", "tool_seconds", "peak_rss_bytes"),
    *("exit_code", "signal", "timed_out", "command", "device"),
)
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
# Beginning of the names of its files.
JOB_SUMMARY = "job_summary."
_NOT_KNOWN = "N/A"
_HEADERS = {
    Kind.QUALITY: ["Name", "Status"],
    Kind.BENCHMARK: ["Name", "Current Time (ms)", "Golden Time (ms)", "Tolerance Factor", "Threshold (ms)", "Status"],
    Kind.COMPSTAT: [
        "Name",
        "Golden Dispatch Count",
        "Current Dispatch Count",
        "Golden Binary Size (bytes)",
        "Current Binary Size (bytes)",
        "Status",
    ],
}
Summary = dict[str, dict[str, Any]]
# What files hold at most, and what of it a terminal shows.
_MOST_FAILURES, _SHOWN_FAILURES = 200, 20
_MOST_ROWS, _SHOWN_ROWS = 500, 30
_MOST_GROUPS, _SHOWN_GROUPS = 50, 20
_SHOWN_FINDINGS = 12
_GROUPED_FROM = 20
_NAMED_STEPS = 8
# Notes that differ in names and numbers alone are of a kind; from so many on they are folded.
_OF_ONE = re.compile(r"\S*[\d/\\@=]\S*")
_FOLDED_FROM = 4
_NAMING_COLUMNS = (Column("verdict", ColumnKind.VERDICT), Column("model", ColumnKind.NAME))
_FIGURE_COLUMNS = [(figure, figure.row.column) for figure in COMPILES_FIRST if figure.row.column]
_TIME_COLUMNS = (
    Column("model", ColumnKind.NAME),
    *(Column(title, ColumnKind.NUMBER, "ms") for title in ("mean ± stdev", "min", "golden")),
)
_SPEED_COLUMNS = (
    Column("model", ColumnKind.NAME),
    Column("samples/s", ColumnKind.NUMBER),
    Column("samples", ColumnKind.NUMBER),
    Column("in", ColumnKind.DURATION),
    *(Column(name, ColumnKind.NUMBER, "ms") for name in ("p50", "p90", "p99")),
    Column("tokens/s", ColumnKind.NUMBER),
)
_GROUP_COLUMNS = (
    Column("cases", ColumnKind.NUMBER),
    *(Column(title) for title in ("stage", "diagnostic", "for example")),
)
_CHANGED_COLUMNS = (
    Column("model", ColumnKind.NAME),
    Column("figure"),
    *(Column(title, ColumnKind.NUMBER) for title in ("before", "now", "change")),
)
_STAGE_COLUMNS = (
    Column("stage"),
    Column("steps", ColumnKind.NUMBER),
    Column("took", ColumnKind.DURATION),
    Column("", ColumnKind.DRAWN),
    Column("longest", ColumnKind.DURATION),
    Column("waited", ColumnKind.DURATION),
)
_STEP_COLUMNS = (
    Column("verdict", ColumnKind.VERDICT),
    Column("step", ColumnKind.NAME),
    Column("took", ColumnKind.DURATION),
)
_LONGEST_STEPS = 5
# Of a run that was resumed, seconds without a step that are shown as they were.
_PAUSE = 1.0
_FACT_COLUMNS = (Column(""), Column("", ColumnKind.NAME))


def run_reports(run_dir: Path) -> Reports:
    """The reports of the run in a folder.

    Raises:
        GauntletError: there is no journal, or it cannot be read.
    """
    with pause_collector():
        record = read_journal(run_dir / JOURNAL)
        reports = make_run_reports(with_explanations(read_outcome(record), run_dir), run_dir)
        return reports if record.run.micro is None else replace(reports, sweep=record)


def make_run_reports(outcome: RunOutcome, run_dir: Path | None = None) -> Reports:
    """`junit.xml`, `summary.md`, `summary.html`, `summary.json`, and the job summary where torch models were tested.

    Beside the run's folder lies the run before; without one it is not looked for.
    """
    before = find_changes_since(outcome, run_dir) if run_dir else None

    @cache
    def document(folder: Path | None) -> Document:
        return run_document(outcome, folder, before, tuple(name for name in files if not name.endswith(".html")))

    files = {
        "junit.xml": lambda: format_run_junit(outcome),
        **make_pages("summary", lambda: document(None)),
        "summary.json": lambda: format_summary_json(outcome),
    }
    # None of it where no torch models were tested.
    if summary := make_job_summary(outcome):
        files[f"{JOB_SUMMARY}md"] = lambda: _format_job_summary(summary, outcome)
        files[f"{JOB_SUMMARY}json"] = lambda: json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    commands = partial(format_error_commands, outcome.steps)
    return Reports(files, document, outcome.exit_code, format_headline(outcome), commands)


def make_job_summary(outcome: RunOutcome) -> Summary:
    """The tests of torch models by type: `{type: {"headers": […], "rows": [[…]]}}`; empty where there are none."""
    verdicts = {step.id: step.verdict for step in outcome.steps}
    found: Summary = {}
    for kind, headers in _HEADERS.items():
        steps = [step for step in outcome.steps if step.dialect == "torch-models" and step.stage is CHECKS[kind]]
        rows = [_make_row(kind, step, _classify(step, verdicts)) for step in steps]
        if rows:
            found[str(kind)] = {"headers": headers, "rows": sorted(rows, key=lambda row: str(row[0]))}
    return found


def _format_job_summary(summary: Summary, outcome: RunOutcome) -> str:
    """As Markdown; what was explained stands behind the tables, whose columns are that suite's, a line each."""
    parts = [f"# Job Summary For Markers: {escape(outcome.markers)}\n"]
    for kind, content in summary.items():
        rows = [[escape(str(cell)) for cell in row] for row in content["rows"]]
        parts.append(f"## {kind.capitalize()} Test Summary\n\n{table(content['headers'], rows)}\n")
    lines = []
    for step in outcome.steps:
        if step.explanation is not None:
            bundle = f"; bundle: {code(step.explanation.bundle)}" if step.explanation.bundle else ""
            lines.append(f"- {escape(step.title)}: {escape(format_explanation(step.explanation))}{bundle}\n")
    explained = f"\n## Explanations\n\n{''.join(lines)}" if lines else ""
    return "\n".join(parts) + explained


def _make_row(kind: Kind, step: StepOutcome, status: str) -> list[Any]:
    name = f"{step.model}/{step.submodel}.json"
    goldens = {golden.metric: golden for golden in step.goldens}
    figures: list[Any] = []
    if kind is Kind.BENCHMARK:
        golden = goldens.get(Figure.TIME)
        by_mean = golden is not None and golden.statistic == Statistic.MEAN
        measured = None if step.samples is None else step.samples.mean_ms if by_mean else step.samples.min_ms
        limit = [_NOT_KNOWN] * 3
        if golden:
            most = golden.value * golden.factor
            limit = [_format_milliseconds(golden.value), str(golden.factor), _format_milliseconds(most)]
        figures = [_format_milliseconds(measured), *limit]
    elif kind is Kind.COMPSTAT:
        for figure in (Figure.DISPATCHES, Figure.SIZE):
            golden = goldens.get(figure)
            figures += [_round_whole(golden.value if golden else None), _round_whole(step.measure(figure))]
    return [name, *figures, status]


def _classify(step: StepOutcome, verdicts: Mapping[str, Verdict]) -> str:
    if step.verdict is Verdict.PASSED:
        return "PASSED"
    if Verdict.XFAILED in (step.verdict, verdicts.get(step.behind)):
        return "XFAILED"
    judged = step.behind or not (step.never_started or step.verdict is Verdict.SKIPPED or step.verdict.is_doubtful)
    return "FAILED" if judged else _NOT_KNOWN


def _format_milliseconds(value: float | None) -> str:
    return _NOT_KNOWN if value is None or math.isnan(value) else f"{value:.3f}"


def _round_whole(value: float | None) -> float | int | str:
    if value is None:
        return _NOT_KNOWN
    return int(value) if float(value).is_integer() else value


def format_summary_json(outcome: RunOutcome) -> str:
    """The document as text, ASCII only, ending with a newline."""
    document: dict[str, Any] = {
        "schema": 1,
        **_describe_named(outcome, _OF_THE_RUN),
        "workers": {name: machine.as_dict() for name, machine in outcome.workers.items()},
        "exit_code": outcome.exit_code,
        "exit_meaning": outcome.exit_code.meaning,
        "seconds": outcome.seconds,
        "tool_seconds": outcome.tool_seconds,
        "counts": outcome.counts,
        "unapplied_goldens": sum(len(step.unapplied_goldens) for step in outcome.steps),
        "cache": {name: asdict(getattr(outcome, name)) for name in ("compiles", "imports", "downloads")},
        "targets": [target.as_dict() for target in outcome.targets],
        "toolchain": outcome.toolchain.as_dict(),
        "machine": outcome.machine.as_dict(),
    }
    chains = [_describe_chain(chain) for chain in outcome.chains]
    if not outcome.many:
        return json.dumps(strict_json({**document, "chains": chains}), indent=1, allow_nan=False) + "\n"
    head = json.dumps(strict_json(document), indent=1, allow_nan=False).removesuffix("\n}")
    lines = []
    for chain in chains:
        try:
            lines.append(f"  {_ENCODER.encode(chain)}")
        except ValueError:
            # NaN or an infinity, which few have.
            lines.append(f"  {_ENCODER.encode(strict_json(chain))}")
    listed = ",\n".join(lines)
    return f'{head},\n "chains": [\n{listed}\n ]\n}}\n'


def _describe_chain(chain: ChainOutcome) -> dict[str, Any]:
    figures = collect_chain_figures(chain)
    worst, samples = figures.worst_output, figures.samples
    time: dict[str, Any] | None = None
    if samples is not None and samples.real_time_ms:
        named = {name.removesuffix("_ms"): value for name, value in samples.figures.items()}
        time = {**named, "repetitions": len(samples.real_time_ms), **_describe_limit(figures.checks.get(Figure.TIME))}
    document = {
        **_describe_named(chain, _OF_A_CHAIN),
        "compile": {"seconds": figures.values.get(Figure.COMPILE_TIME), "cached": figures.compile_cached},
        "quality": None if worst is None else _describe_output(worst),
    }
    for figure in sorted(Figure, key=lambda figure: figure.row.optional):
        key, value = figure.row.key_in_summary, figures.values.get(figure)
        if key and (value is not None or not figure.row.optional):
            limit = _describe_limit(figures.checks.get(figure))
            document[key] = None if value is None else {"measured": value, **limit}
    document[Figure.TIME.row.key_in_summary] = time
    return {**document, "steps": [_describe_step(step) for step in chain.steps]}


def _describe_step(step: StepOutcome) -> dict[str, Any]:
    return {
        **_describe_named(step, _OF_A_STEP),
        "cache": None if step.cache is None else _describe_fields(step.cache),
        "checks": [
            _describe_fields(check) | {"factor": 1.0 if check.factor is None else check.factor} for check in step.checks
        ],
        "unapplied_goldens": [str(golden.origin) for golden in step.unapplied_goldens],
        "outputs": [_describe_output(output) for output in step.outputs],
        "figures": step.samples.figures if step.samples else {},
        "real_time_ms": step.samples.real_time_ms if step.samples else (),
        "cpu_time_ms": step.samples.cpu_time_ms if step.samples else (),
        "statistics": step.statistics,
        "explanation": None if step.explanation is None else asdict(step.explanation),
        "notes": step.notes,
        "log": step.log,
        "origin": _describe_fields(step.origin),
        **({"worker": step.worker} if step.worker else {}),
        **({"unsupported": step.unsupported.as_dict()} if step.unsupported else {}),
    }


def _describe_limit(check: Check | None) -> dict[str, Any]:
    return {name: getattr(check, name, None) for name in ("golden", "limit", "passed")}


def _describe_named(holder: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(holder, name) for name in names}


def _describe_fields(record: CacheUse | Check | OutputComparison | Origin) -> dict[str, Any]:
    """What a flat dataclass holds."""
    return _describe_named(record, record.__dataclass_fields__)


def _describe_output(output: OutputComparison) -> dict[str, Any]:
    return _describe_fields(output) | {"mismatches": output.mismatches or 0, "worst_index": output.worst_index or ()}


def run_document(
    outcome: RunOutcome, folder: Path | None = None, before: RunBefore | None = None, files: tuple[str, ...] = ()
) -> Document:
    """What went wrong and what to do about it, what was measured, and with what.

    Of a run with more than 200 chains, as of a suite of operators, tables hold only what did not come out as expected.
    `folder` is that of the run, as the user knows it; None where the document lies in it, beside `files`.
    """
    # Those that began: of those that an interrupted run never began there is nothing to say.
    bad = [step for step in outcome.bad_steps if not step.never_started]
    # Chains with a row of their own: of many those that went wrong.
    shown = [chain for chain in outcome.chains if chain.verdict.is_bad] if outcome.many else list(outcome.chains)
    if not outcome.many and len(shown) > _SHOWN_ROWS:
        # These come first where a terminal has no room for all.
        shown.sort(key=lambda chain: not chain.verdict.is_bad)
    figures = {chain.id: collect_chain_figures(chain) for chain in shown[: _MOST_ROWS if outcome.many else None]}
    inside = f"; IREE's tools ran for {duration(outcome.tool_seconds)} in all" if outcome.tool_seconds else ""
    blocks: list[Block] = []
    if len(bad) >= _GROUPED_FROM:
        blocks += _show_groups("What went wrong, by diagnostic", bad)
    blocks += _show_failures("What went wrong", bad[:_SHOWN_FAILURES], folder)
    if len(bad) > _SHOWN_FAILURES:
        text = f"{len(bad) - _SHOWN_FAILURES} more went wrong; "
        blocks.append(Paragraph((text, Name("junit.xml"), " and ", Name("summary.json"), " have each of them.")))
    idle = len(outcome.bad_steps) - len(bad)
    if idle:
        blocks.append(Paragraph((f"{idle} step{'s' if idle > 1 else ''} did not start.",)))
    blocks += _show_unapplied(outcome)
    blocks += [*_show_figures(outcome, figures, len(shown)), *_describe_changed(before)]
    blocks += [Paragraph((line,)) for line in (*_describe_judged(outcome), format_cache_line(outcome))]
    blocks.append(Paragraph((f"time: {duration(outcome.seconds)}{inside}",)))
    if any(step.stage.row.is_explained and step.verdict is Verdict.FAILED and not step.explanation for step in bad):
        named = Name(f"gauntlet explain {folder or outcome.run}")
        blocks.append(Paragraph(("to find what is at fault, and to pack it up for others: ", named)))
    # What a spec allows, not only what an earlier run measured, which is in no field.
    written = {
        (step.id, item.metric, item.value, item.factor) for step in bad for item in step.goldens if item.origin.field
    }
    broken = ((step.id, check) for step in bad for check in step.checks if check.passed is False)
    if any((name, check.metric, check.golden, check.factor) in written for name, check in broken):
        blocks.append(Paragraph(("where a new figure is right: ", Name("gauntlet golden.update"), " proposes it")))
    if outcome.state != "complete":
        blocks.append(Paragraph(("to go on with it: ", *_say_going_on(outcome, folder))))
    blocks += _show_time_spent(outcome)
    return Document(
        f"IREE Gauntlet: {f'suite {outcome.suite}, ' if outcome.suite else ''}run {outcome.run}",
        format_headline(outcome),
        (f"{counted(len(outcome.steps), 'step')} of {counted(len(outcome.cases), 'case')}",) if outcome.steps else (),
        tuple(blocks),
        tuple(_show_details(outcome, folder, bad, figures)),
        outcome.exit_code,
        outcome.remarks,
        provenance=provenance(
            outcome.toolchain.compiler,
            Opening(
                kind=ExperimentKind.RUN,
                time=outcome.started,
                machine=outcome.machine,
                version=outcome.version,
                command=outcome.command,
                cwd=outcome.cwd,
            ),
            files,
            outcome.seconds if outcome.state == "complete" else None,
        ),
    )


def _show_unapplied(outcome: RunOutcome) -> Iterator[Block]:
    """The goldens that decided nothing, of steps that are not told of already."""
    steps = [step for step in outcome.steps if not step.verdict.is_bad]
    if lines := [f"{origin}: {text}" for step in steps for origin, text in list_unapplied(step)]:
        yield Heading("Goldens that were not applied")
        yield Items(tuple((line,) for line in lines), _SHOWN_FINDINGS)
        moving = Name("gauntlet golden.update --to-release")
        yield Paragraph(("those of another release are moved to this one by ", moving))


def _describe_changed(before: RunBefore | None) -> Iterator[Block]:
    """What is not as it was in the run before."""
    if before is None or not before.changes:
        return
    rows = tuple((*change[:4], None if share is None else f"{100 * share:+.2f} %") for *change, share in before.changes)
    yield Heading(f"Changed since run {before.run}" + (f", IREE {before.compiler}" if before.compiler else ""))
    yield Table(_CHANGED_COLUMNS, rows, _SHOWN_ROWS)
    if any(change[1] == Figure.TIME.row.since for change in before.changes):
        said = "Of times, differences of 10 % and more: "
        yield Paragraph((said, Name("gauntlet compare"), " says which are real."))


def _show_time_spent(outcome: RunOutcome) -> Iterator[Block]:
    """On a page: what ran when, and what each stage took."""
    started = [(step, datetime.fromisoformat(step.started).timestamp()) for step in outcome.steps if step.started]
    if not started:
        return
    spans = tuple(_list_spans(started, resumed=bool(outcome.resumed)))
    stages: dict[str, list[WorkSpan]] = {}
    for span in spans:
        stages.setdefault(span.kind, []).append(span)
    busy, until = 0.0, 0.0
    for begin, end in sorted((span.start, span.start + span.waited + span.seconds) for span in spans):
        busy += max(end - max(begin, until), 0.0)
        until = max(until, end)
    rows: list[tuple[Cell, ...]] = []
    for stage, own in stages.items():
        took, waited = [span.seconds for span in own], sum(span.waited for span in own)
        rows.append((stage, float(len(own)), sum(took), Bars((sum(took),), ""), max(took), waited or None))
    idle = f"; for {duration(outcome.seconds - busy)} no step ran" if outcome.seconds - busy >= 1 else ""
    text = f"{duration(outcome.seconds)} in all{idle}. Steps that ran side by side count in full below."
    longest = sorted(spans, key=lambda span: -span.seconds)[:_LONGEST_STEPS]
    steps = Table(_STEP_COLUMNS, tuple((span.word, span.name, span.seconds) for span in longest))
    pictures = (Paragraph((text,)), Lanes(spans), Table(_STAGE_COLUMNS, tuple(rows)))
    yield OnPage((Heading("How the time was spent"), *pictures, Paragraph(("The steps that took longest:",)), steps))


def _list_spans(started: Iterable[tuple[StepOutcome, float]], *, resumed: bool) -> Iterator[WorkSpan]:
    """The steps from when the first one began; of a run that was resumed, without the pauses between its parts."""
    ordered = sorted(started, key=lambda item: item[1])
    left_out = until = ordered[0][1]
    for step, start in ordered:
        left_out += max(start - until - _PAUSE, 0.0) if resumed else 0.0
        yield WorkSpan(step.title, step.stage, start - left_out, step.seconds, step.waited_seconds, str(step.verdict))
        until = max(until, start + step.waited_seconds + step.seconds)


def _say_going_on(outcome: RunOutcome, folder: Path | None) -> Sequence[str | Name]:
    """How a run that did not end is continued: what its command does again anyway comes from the cache."""
    where = f" --run-dir {folder}" if folder else ""
    dialects = {chain.dialect for chain in outcome.chains} or {outcome.suite}
    if dialects == {"bench"}:
        return (Name(outcome.command), " again: what is done comes from the cache")
    if dialects == {"micro"}:
        return (Name(f"gauntlet micro --resume{where}"),)
    return (Name(f"gauntlet run --resume{where}{' --cluster …' if outcome.workers else ''}"),)


def _describe_judged(outcome: RunOutcome) -> Iterator[str]:
    """What the verdicts rest on: who reads `passed` is to know what was looked at."""
    passed = [step for step in outcome.steps if step.verdict is Verdict.PASSED and NOTHING_COMPARED in step.notes]
    if passed:
        named = listed([step.title for step in passed], _NAMED_STEPS)
        yield f"no expected outputs, only that it runs was checked: {named}"
    verdicts = ", ".join(format_verdicts(Counter(chain.verdict for chain in outcome.cases)).values())
    checks = [(step, check) for step in outcome.steps for check in step.checks]
    judged = Counter(check.metric for _, check in checks if check.passed is not None)
    compared = (step for step in outcome.steps if step.stage.row.checks_numbers and NOTHING_COMPARED not in step.notes)
    numbers = sum(step.verdict.is_conclusive for step in compared)
    timed = [step for step in outcome.steps if step.samples is not None]
    unjudged = not judged[Figure.TIME] and any(check.metric == Figure.TIME for _, check in checks)
    unnamed = unjudged and not any(chain.sku for chain in outcome.chains)
    disturbed = sum(bool(step.known.disturbed) for step in timed)
    without_sku = {Figure.TIME: " (no --sku)"} if unnamed else {}
    said = ", ".join(
        f"{figure.row.judged} {judged[figure]}{without_sku.get(figure, '')}"
        for figure in sorted(Figure, key=lambda figure: not figure.is_exact or figure.row.optional)
        if figure.row.judged and (judged[figure] or not figure.row.optional)
    )
    yield (
        f"{counted(len(outcome.cases), 'case')}: {verdicts}; judged: numbers {numbers}, {said}"
        + (f"; {counted(disturbed, 'time')} disturbed (*)" if disturbed else "")
    )


def _show_details(
    outcome: RunOutcome, folder: Path | None, bad: Sequence[StepOutcome], figures: Mapping[str, ChainFigures]
) -> Iterator[Block]:
    steps, many = outcome.steps, outcome.many
    timed = [(chain.id, own) for chain in outcome.chains if not many and (own := figures[chain.id]).samples]
    if timed:
        rows = ((name, own.format_cell(Figure.TIME), own.least_time_cell, own.golden_time_cell) for name, own in timed)
        yield Heading("Times")
        yield Table(_TIME_COLUMNS, tuple(rows))
    yield from _show_speeds(steps)
    yield from _show_failures("What else went wrong", bad[_SHOWN_FAILURES:_MOST_FAILURES], folder)
    expected = [step for step in steps if step.verdict is Verdict.XFAILED]
    if many:
        yield from _show_groups("Expected failures, by diagnostic", expected)
    else:
        yield from _show_said("Expected failures", ((step.reason, step) for step in expected))
    skipped = []
    for step in (step for step in steps if step.verdict is Verdict.SKIPPED):
        cause = "a step that" if many else f"{step.behind}, which"
        skipped.append((f"behind {cause} did not come out well" if step.behind else step.reason, step))
    yield from _show_said("Skipped", skipped)
    yield from _show_said("Notes", ((note, step) for step in steps for note in step.notes))
    facts = tuple((name, str(value)) for name, value in _list_facts(outcome) if value)
    yield Folded("Environment", (Table(_FACT_COLUMNS, facts),))


def _show_figures(outcome: RunOutcome, figures: Mapping[str, ChainFigures], wanted: int) -> Iterator[Block]:
    """A row for each chain of which there are figures; `wanted` are those that would have one if there was room."""
    count = len(outcome.cases)
    if not outcome.chains:
        yield Paragraph(("No step was planned.",))
        return
    if not figures:
        yield Paragraph((f"All {count} as expected; each is in ", Name("summary.json"), "."))
        return
    shown = [
        (figure, column)
        for figure, column in _FIGURE_COLUMNS
        if not figure.row.optional or any(figure in own.values for own in figures.values())
    ]
    rows: list[tuple[Cell, ...]] = []
    verdicts = {chain.id: format_chain_verdict(chain) for chain in outcome.chains if chain.id in figures}
    for chain, own in figures.items():
        rows.append((verdicts[chain], chain, *(_make_cell(figure, own) for figure, _ in shown)))
    yield Heading("Figures")
    yield Table((*_NAMING_COLUMNS, *(column for _, column in shown)), tuple(rows), _SHOWN_ROWS)
    if counters := {own.counted_by for own in figures.values()} - {""}:
        yield Paragraph((f"instructions of one call on one thread, counted by {'; '.join(sorted(counters))}",))
    if outcome.many and count > len(rows):
        as_expected = f", {count - wanted} of them as expected."
        yield Paragraph((f"{count - len(rows)} more in ", Name("summary.json"), as_expected))


def _make_cell(figure: Figure, figures: ChainFigures) -> Cell:
    """A figure with its limit, where it was held against one."""
    if figure is Figure.ERROR:
        return _make_quality(figures)
    text, check = figures.format_cell(figure), figures.find_check(figure)
    if check is None or check.measured is None or check.limit is None or check.passed is None:
        return text
    return DrawnLimit(text, check.measured, check.limit, "passed" if check.passed else "failed")


def _make_quality(figures: ChainFigures) -> Cell:
    """The largest error with the absolute one that is allowed; a larger one passes where the relative one allows it."""
    output, text = figures.worst_output, figures.format_cell(Figure.ERROR)
    if output is None or output.max_abs_error is None or not output.atol:
        return text
    drawn = math.isfinite(output.max_abs_error) and output.passed is (output.max_abs_error <= output.atol)
    return (
        DrawnLimit(text, output.max_abs_error, output.atol, "passed" if output.passed else "failed") if drawn else text
    )


def _show_speeds(steps: Iterable[StepOutcome]) -> Iterator[Block]:
    """Of benchmarks that push inputs again and again from the host."""
    rows = []
    # Of thousands of others the statistics are not read for this.
    for step in (step for step in steps if step.stage.row.is_alone):
        found = step.known
        if found.samples_per_sec is not None and found.latency_ms is not None:
            latency = found.latency_ms
            tokens = None if found.tokens_per_sec is None else f"{found.tokens_per_sec:.1f}"
            speed = (f"{found.samples_per_sec:.2f}", found.total_samples, found.total_s)
            rows.append((step.chain, *speed, latency.p50, latency.p90, latency.p99, tokens))
    if rows:
        yield Heading("Speed")
        yield Table(_SPEED_COLUMNS, tuple(rows))


def _show_groups(title: str, steps: Sequence[StepOutcome]) -> Iterator[Block]:
    """What steps failed of, the most frequent first."""
    groups = group_failures((step.chain, step.name, step.diagnosis) for step in steps)
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


def _show_failures(title: str, steps: Sequence[StepOutcome], folder: Path | None) -> Iterator[Block]:
    if steps:
        yield Heading(title)
    for step in steps:
        yield Heading(f"{step.verdict}: {step.title}", 3)
        yield Paragraph((step.reason,))
        if step.explanation is not None:
            bundle = step.explanation.bundle
            link: Text = ("; bundle: ", TextLink(bundle, str((folder or Path()) / bundle))) if bundle else ()
            yield Paragraph((format_explanation(step.explanation), *link))
        if found := list_findings(step):
            yield Items(tuple((line,) for line in found), _SHOWN_FINDINGS)
        if tail := take_last_lines(step.tail):
            yield Folded("the tool's last lines", (Code("\n".join(tail)),), brief=True)
        if step.ran:
            yield Paragraph(("Reproduce:",))
            yield Code(step.command, "sh")
        # A page that lies beside it leads to it.
        file = Name(str(folder / step.log)) if folder else Name(step.log, step.log)
        log: Text = ("full log ", file) if step.log else ()
        written: Text = ("spec ", Name(str(step.origin))) if step.origin.file else ()
        if log or written:
            yield Paragraph((*log, *([" · "] if log and written else []), *written))


def _show_said(title: str, said: Iterable[tuple[str, StepOutcome]]) -> Iterator[Block]:
    """What is said of several steps in the same words, said once; of a kind that is said often, folded."""
    steps_of: dict[str, list[str]] = {}
    for text, step in said:
        steps_of.setdefault(text, []).append(step.title)
    if not steps_of:
        return
    kinds: dict[str, list[str]] = {}
    for text in steps_of:
        kinds.setdefault(_OF_ONE.sub("…", text), []).append(text)
    often = {kind: texts for kind, texts in kinds.items() if len(texts) >= _FOLDED_FROM}
    seldom = [text for kind, texts in kinds.items() if kind not in often for text in texts]

    def items(texts: Iterable[str]) -> Items:
        return Items(tuple((f"{text}: {listed(steps_of[text], _NAMED_STEPS)}",) for text in texts))

    yield Heading(title)
    if seldom:
        yield items(seldom)
    yield from (Folded(f"{kind} ({len(texts)} times)", (items(texts),)) for kind, texts in often.items())


def _list_facts(outcome: RunOutcome) -> tuple[tuple[str, object], ...]:
    toolchain, machine = outcome.toolchain, outcome.machine
    targets = dict.fromkeys(f"{chain.target} ({chain.sku})" if chain.sku else chain.target for chain in outcome.chains)
    return (
        ("compiler", toolchain.compiler_text or "unknown"),
        ("runtime", toolchain.runtime_text or "unknown"),
        ("toolchain", toolchain.source),
        ("gauntlet", outcome.version),
        ("targets", ", ".join(targets)),
        ("host", machine.host),
        ("CPU", machine.cpu),
        ("cores", machine.cores),
        ("memory", byte_size(machine.memory_bytes) if machine.memory_bytes else ""),
        ("devices", format_devices(machine)),
        ("system", machine.os),
        ("Python", machine.python),
        ("command", outcome.command),
        ("started", outcome.started),
    )
