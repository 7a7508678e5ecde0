"""Make the reports of a run from only its journal, even if the run was killed.

`job_summary.md` and `job_summary.json` have the format of iree-test-suites' torch models: one table for each type of
test, with that suite's columns and words. The words are `PASSED`, `FAILED` (also if an error prevented a verdict) and
`N/A` for tests that did not run. `XFAILED` is added; that suite lacks it.

`summary.json` is the result of a run, for programs; docs/reference/results.md has its fields. Within one schema number,
keys are only added. NaN and infinities are strings, because not every JSON parser accepts the numbers.
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
    Details,
    Document,
    Heading,
    Items,
    LimitBar,
    Name,
    PageOnly,
    Paragraph,
    Table,
    Text,
    TextLink,
    Timeline,
    WorkSpan,
)
from iree_gauntlet.figures import COMPILES_FIRST, Figure, Statistic
from iree_gauntlet.formatting import format_bytes, format_duration, list_first, pluralize, take_last_lines
from iree_gauntlet.journal_events import ExperimentKind, Opening
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.recorded import strict_json
from iree_gauntlet.records.chain_figures import collect_chain_figures, format_chain_verdict
from iree_gauntlet.records.explain_outcome import add_explanations
from iree_gauntlet.records.outcome import RunOutcome, format_cache_line, format_headline, format_verdicts, read_outcome
from iree_gauntlet.records.run_before import find_changes_since
from iree_gauntlet.reports.details import format_devices, format_explanation, list_findings, list_unapplied
from iree_gauntlet.reports.github import format_error_commands
from iree_gauntlet.reports.junit import format_run_junit
from iree_gauntlet.reports.render_markdown import code, escape, table
from iree_gauntlet.reports.report_files import Reports, make_pages, make_provenance
from iree_gauntlet.stages import CHECK_STAGES, Kind
from iree_gauntlet.steps import NOTHING_COMPARED
from iree_gauntlet.system.collector import pause_collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.records.chain_figures import ChainFigures
    from iree_gauntlet.records.outcome import ChainOutcome, StepOutcome
    from iree_gauntlet.records.run_before import Change, PreviousRun
    from iree_gauntlet.results import CacheUse, Check, OutputComparison


_RUN_FIELDS = ("run", "suite", "version", "command", "cwd", "started", "state", "resumed")
_CHAIN_FIELDS = ("id", "dialect", "model", "submodel", "target", "sku", "verdict")
_STEP_FIELDS = (
    *("id", "stage", "role", "verdict", "failure", "reason", "behind"),
    *("seconds", "waited_seconds", "cpu_seconds", "tool_seconds", "peak_rss_bytes"),
    *("exit_code", "signal", "timed_out", "command", "device"),
)
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
# The names of the job summary's files begin like this.
JOB_SUMMARY = "job_summary."
_UNKNOWN_VALUE = "N/A"
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
# In each pair, the first number is the maximum in files, and the second the maximum on a terminal.
_MAX_FAILURES, _TERMINAL_FAILURES = 200, 20
_MAX_ROWS, _TERMINAL_ROWS = 500, 30
_MAX_GROUPS, _TERMINAL_GROUPS = 50, 20
_TERMINAL_FINDINGS = 12
_MIN_GROUPED_FAILURES = 20
_MAX_LISTED_STEPS = 8
# Notes that differ only in these words (names and numbers) are alike; so many alike notes are folded.
_VARIABLE_WORD = re.compile(r"\S*[\d/\\@=]\S*")
_MIN_FOLDED_NOTES = 4
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
_CHANGE_COLUMNS = (
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
_MAX_LONG_STEPS = 5
# In a resumed run, longer gaps between steps are shortened to this.
_MAX_PAUSE_SECONDS = 1.0
_ENVIRONMENT_COLUMNS = (Column(""), Column("", ColumnKind.NAME))


def read_run_reports(run_dir: Path) -> Reports:
    """Return the reports of the run in a folder.

    Raises:
        GauntletError: the journal is missing or cannot be read.
    """
    with pause_collector():
        record = read_journal(run_dir / JOURNAL)
        reports = make_run_reports(add_explanations(read_outcome(record), run_dir), run_dir)
        return reports if record.run.micro is None else replace(reports, sweep=record)


def make_run_reports(outcome: RunOutcome, run_dir: Path | None = None) -> Reports:
    """Return `junit.xml`, `summary.md`, `summary.html`, `summary.json`, and the job summary if there are torch models.

    The previous run is looked up next to the run's folder; without a folder, no previous run is used.
    """
    previous = find_changes_since(outcome, run_dir) if run_dir else None

    @cache
    def make_document(folder: Path | None) -> Document:
        return run_document(outcome, folder, previous, tuple(name for name in files if not name.endswith(".html")))

    files = {
        "junit.xml": lambda: format_run_junit(outcome),
        **make_pages("summary", lambda: make_document(None)),
        "summary.json": lambda: format_summary_json(outcome),
    }
    # The job summary is empty if no torch models were tested.
    if summary := make_job_summary(outcome):
        files[f"{JOB_SUMMARY}md"] = lambda: _format_job_summary(summary, outcome)
        files[f"{JOB_SUMMARY}json"] = lambda: json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    commands = partial(format_error_commands, outcome.steps)
    return Reports(files, make_document, outcome.exit_code, format_headline(outcome), commands)


def make_job_summary(outcome: RunOutcome) -> Summary:
    """Return the tests of torch models by type: `{type: {"headers": […], "rows": [[…]]}}`; empty if there are none."""
    verdicts = {step.id: step.verdict for step in outcome.steps}
    summary: Summary = {}
    for kind, headers in _HEADERS.items():
        steps = [step for step in outcome.steps if step.dialect == "torch-models" and step.stage is CHECK_STAGES[kind]]
        rows = [_make_row(kind, step, _classify(step, verdicts)) for step in steps]
        if rows:
            summary[str(kind)] = {"headers": headers, "rows": sorted(rows, key=lambda row: str(row[0]))}
    return summary


def _format_job_summary(summary: Summary, outcome: RunOutcome) -> str:
    """Format the summary as Markdown: the tables with that suite's columns, then the explanations, a line each."""
    parts = [f"# Job Summary For Markers: {escape(outcome.markers)}\n"]
    for kind, content in summary.items():
        rows = [[escape(str(cell)) for cell in row] for row in content["rows"]]
        parts.append(f"## {kind.capitalize()} Test Summary\n\n{table(content['headers'], rows)}\n")
    lines = []
    for step in outcome.steps:
        if step.explanation is not None:
            bundle = f"; bundle: {code(step.explanation.bundle)}" if step.explanation.bundle else ""
            lines.append(f"- {escape(step.title)}: {escape(format_explanation(step.explanation))}{bundle}\n")
    explanations = f"\n## Explanations\n\n{''.join(lines)}" if lines else ""
    return "\n".join(parts) + explanations


def _make_row(kind: Kind, step: StepOutcome, status: str) -> list[Any]:
    name = f"{step.model}/{step.submodel}.json"
    goldens = {golden.metric: golden for golden in step.goldens}
    metrics: list[Any] = []
    if kind is Kind.BENCHMARK:
        golden = goldens.get(Figure.TIME)
        uses_mean = golden is not None and golden.statistic == Statistic.MEAN
        time_ms = None if step.samples is None else step.samples.mean_ms if uses_mean else step.samples.min_ms
        limit = [_UNKNOWN_VALUE] * 3
        if golden:
            threshold = golden.value * golden.factor
            limit = [_format_milliseconds(golden.value), str(golden.factor), _format_milliseconds(threshold)]
        metrics = [_format_milliseconds(time_ms), *limit]
    elif kind is Kind.COMPSTAT:
        for figure in (Figure.DISPATCHES, Figure.SIZE):
            golden = goldens.get(figure)
            metrics += [_format_number(golden.value if golden else None), _format_number(step.measure(figure))]
    return [name, *metrics, status]


def _classify(step: StepOutcome, verdicts: Mapping[str, Verdict]) -> str:
    if step.verdict is Verdict.PASSED:
        return "PASSED"
    if Verdict.XFAILED in (step.verdict, verdicts.get(step.behind)):
        return "XFAILED"
    was_judged = step.behind or not (step.never_started or step.verdict is Verdict.SKIPPED or step.verdict.is_doubtful)
    return "FAILED" if was_judged else _UNKNOWN_VALUE


def _format_milliseconds(value: float | None) -> str:
    return _UNKNOWN_VALUE if value is None or math.isnan(value) else f"{value:.3f}"


def _format_number(value: float | None) -> float | int | str:
    if value is None:
        return _UNKNOWN_VALUE
    return int(value) if float(value).is_integer() else value


def format_summary_json(outcome: RunOutcome) -> str:
    """Return the run as JSON text, ASCII only, ending with a newline."""
    document: dict[str, Any] = {
        "schema": 1,
        **_select_fields(outcome, _RUN_FIELDS),
        "torn": outcome.has_truncated_line,
        "remarks": outcome.remarks,
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
    if not outcome.has_many_chains:
        return json.dumps(strict_json({**document, "chains": chains}), indent=1, allow_nan=False) + "\n"
    fields_text = json.dumps(strict_json(document), indent=1, allow_nan=False).removesuffix("\n}")
    lines = []
    for chain in chains:
        try:
            lines.append(f"  {_ENCODER.encode(chain)}")
        except ValueError:
            # NaN or an infinity, which is rare.
            lines.append(f"  {_ENCODER.encode(strict_json(chain))}")
    chain_lines = ",\n".join(lines)
    return f'{fields_text},\n "chains": [\n{chain_lines}\n ]\n}}\n'


def _describe_chain(chain: ChainOutcome) -> dict[str, Any]:
    figures = collect_chain_figures(chain)
    worst, samples = figures.worst_output, figures.samples
    time: dict[str, Any] | None = None
    if samples is not None and samples.real_time_ms:
        stats = {name.removesuffix("_ms"): value for name, value in samples.figures.items()}
        time = {**stats, "repetitions": len(samples.real_time_ms), **_describe_limit(figures.checks.get(Figure.TIME))}
    document = {
        **_select_fields(chain, _CHAIN_FIELDS),
        "compile": {"seconds": figures.values.get(Figure.COMPILE_TIME), "cached": figures.all_from_cache},
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
        **_select_fields(step, _STEP_FIELDS),
        "cache": None if step.cache is None else _select_all(step.cache),
        "checks": [
            _select_all(check) | {"factor": 1.0 if check.factor is None else check.factor} for check in step.checks
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
        "origin": _select_all(step.origin),
        **({"worker": step.worker} if step.worker else {}),
        **({"unsupported": step.unsupported.as_dict()} if step.unsupported else {}),
    }


def _describe_limit(check: Check | None) -> dict[str, Any]:
    return {name: getattr(check, name, None) for name in ("golden", "limit", "passed")}


def _select_fields(record: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _select_all(record: CacheUse | Check | OutputComparison | Origin) -> dict[str, Any]:
    """Return the fields of a flat dataclass."""
    return _select_fields(record, record.__dataclass_fields__)


def _describe_output(output: OutputComparison) -> dict[str, Any]:
    return _select_all(output) | {"mismatches": output.mismatches or 0, "worst_index": output.worst_index or ()}


def run_document(
    outcome: RunOutcome, folder: Path | None = None, previous: PreviousRun | None = None, files: tuple[str, ...] = ()
) -> Document:
    """Return the document of a run: failures with next steps, metrics, and the environment.

    If a run has more than 200 chains, as operator suites have, tables contain only unexpected results. `folder` is the
    run's folder, as displayed to the user; None means that the document is in that folder, next to `files`.
    """
    # Leave out steps that an interrupted run never began, because there is nothing to report about them.
    bad = [step for step in outcome.bad_steps if not step.never_started]
    # Each of these chains has a row; in a large run, only failed chains have one.
    row_chains = (
        [chain for chain in outcome.chains if chain.verdict.is_bad] if outcome.has_many_chains else list(outcome.chains)
    )
    if not outcome.has_many_chains and len(row_chains) > _TERMINAL_ROWS:
        # Failed chains come first, because a terminal may not have room for all.
        row_chains.sort(key=lambda chain: not chain.verdict.is_bad)
    figures = {
        chain.id: collect_chain_figures(chain) for chain in row_chains[: _MAX_ROWS if outcome.has_many_chains else None]
    }
    tool_time = (
        f"; IREE's tools ran for {format_duration(outcome.tool_seconds)} in total" if outcome.tool_seconds else ""
    )
    blocks: list[Block] = []
    if len(bad) >= _MIN_GROUPED_FAILURES:
        blocks += _show_groups("What went wrong, by diagnostic", bad)
    blocks += _show_failures("What went wrong", bad[:_TERMINAL_FAILURES], folder)
    if len(bad) > _TERMINAL_FAILURES:
        text = f"{len(bad) - _TERMINAL_FAILURES} more went wrong; "
        blocks.append(Paragraph((text, Name("junit.xml"), " and ", Name("summary.json"), " list them all.")))
    unstarted_count = len(outcome.bad_steps) - len(bad)
    if unstarted_count:
        blocks.append(Paragraph((f"{unstarted_count} step{'s' if unstarted_count > 1 else ''} did not start.",)))
    blocks += _show_unapplied(outcome)
    blocks += [*_show_figures(outcome, figures, len(row_chains)), *_describe_changed(previous)]
    blocks += [Paragraph((line,)) for line in (*_summarize_verdicts(outcome), format_cache_line(outcome))]
    blocks.append(Paragraph((f"time: {format_duration(outcome.seconds)}{tool_time}",)))
    if any(step.stage.row.is_explained and step.verdict is Verdict.FAILED and not step.explanation for step in bad):
        command = Name(f"gauntlet explain {folder or outcome.run}")
        blocks.append(Paragraph(("to find the cause, and to pack it up for others: ", command)))
    # Limits of specs have a field; a value measured by an earlier run has none.
    spec_limits = {
        (step.id, golden.metric, golden.value, golden.factor)
        for step in bad
        for golden in step.goldens
        if golden.origin.field
    }
    failed_checks = ((step.id, check) for step in bad for check in step.checks if check.passed is False)
    if any((name, check.metric, check.golden, check.factor) in spec_limits for name, check in failed_checks):
        blocks.append(Paragraph(("if a new figure is right: ", Name("gauntlet golden.update"), " proposes it")))
    if outcome.state != "complete":
        blocks.append(Paragraph(("to continue it: ", *_format_resume_command(outcome, folder))))
    blocks += _show_time_spent(outcome)
    return Document(
        f"IREE Gauntlet: {f'suite {outcome.suite}, ' if outcome.suite else ''}run {outcome.run}",
        format_headline(outcome),
        (f"{pluralize(len(outcome.steps), 'step')} of {pluralize(len(outcome.cases), 'case')}",)
        if outcome.steps
        else (),
        tuple(blocks),
        tuple(_show_details(outcome, folder, bad, figures)),
        outcome.exit_code,
        outcome.remarks,
        provenance=make_provenance(
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
    """Show the goldens that were not applied in steps that did not fail."""
    steps = [step for step in outcome.steps if not step.verdict.is_bad]
    if lines := [f"{origin}: {text}" for step in steps for origin, text in list_unapplied(step)]:
        yield Heading("Goldens that were not applied")
        yield Items(tuple((line,) for line in lines), _TERMINAL_FINDINGS)
        command = Name("gauntlet golden.update --to-release")
        yield Paragraph(("to move those of another release to this one: ", command))


def _describe_changed(previous: PreviousRun | None) -> Iterator[Block]:
    """Show the changes since the previous run."""
    if previous is None or not (previous.changes or previous.machine_changes):
        return
    yield Heading(f"Changed since run {previous.run}" + (f", IREE {previous.compiler}" if previous.compiler else ""))
    if previous.changes:
        yield _make_change_table(previous.changes)
    if any(change[1] == Figure.TIME.row.change_title for change in previous.changes):
        note = "Times are listed if they differ by 10 % or more: "
        yield Paragraph((note, Name("gauntlet compare"), " tells which are real."))
    if previous.machine_changes:
        yield Paragraph((previous.machine_line,))
        yield Details("times of the same modules", (_make_change_table(previous.machine_changes),))


def _make_change_table(changes: Iterable[Change]) -> Table:
    rows = ((*change[:4], None if share is None else f"{100 * share:+.2f} %") for *change, share in changes)
    return Table(_CHANGE_COLUMNS, tuple(rows), _TERMINAL_ROWS)


def _show_time_spent(outcome: RunOutcome) -> Iterator[Block]:
    """Show, on a page, the time line of steps and the time of each stage."""
    timed_steps = [(step, datetime.fromisoformat(step.started).timestamp()) for step in outcome.steps if step.started]
    if not timed_steps:
        return
    spans = tuple(_list_spans(timed_steps, resumed=bool(outcome.resumed)))
    stages: dict[str, list[WorkSpan]] = {}
    for span in spans:
        stages.setdefault(span.stage, []).append(span)
    busy, last_end = 0.0, 0.0
    for begin, end in sorted((span.start, span.start + span.waited + span.seconds) for span in spans):
        busy += max(end - max(begin, last_end), 0.0)
        last_end = max(last_end, end)
    rows: list[tuple[Cell, ...]] = []
    for stage, group in stages.items():
        times, wait = [span.seconds for span in group], sum(span.waited for span in group)
        rows.append((stage, float(len(group)), sum(times), Bars((sum(times),), ""), max(times), wait or None))
    idle_note = f"; for {format_duration(outcome.seconds - busy)} no step ran" if outcome.seconds - busy >= 1 else ""
    text = f"{format_duration(outcome.seconds)} in total{idle_note}. Steps that ran in parallel count in full below."
    longest = sorted(spans, key=lambda span: -span.seconds)[:_MAX_LONG_STEPS]
    steps = Table(_STEP_COLUMNS, tuple((span.verdict, span.name, span.seconds) for span in longest))
    pictures = (Paragraph((text,)), Timeline(spans), Table(_STAGE_COLUMNS, tuple(rows)))
    yield PageOnly((Heading("How the time was spent"), *pictures, Paragraph(("The steps that took longest:",)), steps))


def _list_spans(timed_steps: Iterable[tuple[StepOutcome, float]], *, resumed: bool) -> Iterator[WorkSpan]:
    """Yield the steps' spans, relative to the first start; the pauses between a resumed run's parts are shortened."""
    by_start = sorted(timed_steps, key=lambda timed_step: timed_step[1])
    offset = last_end = by_start[0][1]
    for step, start in by_start:
        offset += max(start - last_end - _MAX_PAUSE_SECONDS, 0.0) if resumed else 0.0
        yield WorkSpan(step.title, step.stage, start - offset, step.seconds, step.waited_seconds, str(step.verdict))
        last_end = max(last_end, start + step.waited_seconds + step.seconds)


def _format_resume_command(outcome: RunOutcome, folder: Path | None) -> Sequence[str | Name]:
    """Return the command that continues an unfinished run; steps that it must repeat come from the cache."""
    option = f" --run-dir {folder}" if folder else ""
    dialects = {chain.dialect for chain in outcome.chains} or {outcome.suite}
    if dialects == {"bench"}:
        return (Name(outcome.command), " again: finished work comes from the cache")
    if dialects == {"micro"}:
        return (Name(f"gauntlet micro --resume{option}"),)
    return (Name(f"gauntlet run --resume{option}{' --cluster …' if outcome.workers else ''}"),)


def _summarize_verdicts(outcome: RunOutcome) -> Iterator[str]:
    """Summarise the basis of the verdicts: a reader of `passed` needs to know the checks that were made."""
    no_output_steps = [
        step for step in outcome.steps if step.verdict is Verdict.PASSED and NOTHING_COMPARED in step.notes
    ]
    if no_output_steps:
        titles = list_first([step.title for step in no_output_steps], _MAX_LISTED_STEPS)
        yield f"no expected outputs, so only that it runs was checked: {titles}"
    verdicts = ", ".join(format_verdicts(Counter(chain.verdict for chain in outcome.cases)).values())
    checks = [(step, check) for step in outcome.steps for check in step.checks]
    decided_counts = Counter(check.metric for _, check in checks if check.passed is not None)
    comparing = (step for step in outcome.steps if step.stage.row.checks_numbers and NOTHING_COMPARED not in step.notes)
    number_count = sum(step.verdict.is_conclusive for step in comparing)
    timed_steps = [step for step in outcome.steps if step.samples is not None]
    no_time = not decided_counts[Figure.TIME] and any(check.metric == Figure.TIME for _, check in checks)
    lacks_sku = no_time and not any(chain.sku for chain in outcome.chains)
    disturbed_count = sum(bool(step.typed_statistics.disturbed) for step in timed_steps)
    without_sku = {Figure.TIME: " (no --sku)"} if lacks_sku else {}
    metrics_text = ", ".join(
        f"{figure.row.judged_noun} {decided_counts[figure]}{without_sku.get(figure, '')}"
        for figure in sorted(Figure, key=lambda figure: not figure.is_exact or figure.row.optional)
        if figure.row.judged_noun and (decided_counts[figure] or not figure.row.optional)
    )
    yield (
        f"{pluralize(len(outcome.cases), 'case')}: {verdicts}; judged: numbers {number_count}, {metrics_text}"
        + (f"; {pluralize(disturbed_count, 'time')} disturbed (*)" if disturbed_count else "")
    )


def _show_details(
    outcome: RunOutcome, folder: Path | None, bad: Sequence[StepOutcome], figures: Mapping[str, ChainFigures]
) -> Iterator[Block]:
    steps, many = outcome.steps, outcome.has_many_chains
    timings = [(chain.id, row) for chain in outcome.chains if not many and (row := figures[chain.id]).samples]
    if timings:
        rows = ((name, row.format_cell(Figure.TIME), row.min_time_cell, row.golden_time_cell) for name, row in timings)
        yield Heading("Times")
        yield Table(_TIME_COLUMNS, tuple(rows))
    yield from _show_speeds(steps)
    yield from _show_failures("What else went wrong", bad[_TERMINAL_FAILURES:_MAX_FAILURES], folder)
    expected_failures = [step for step in steps if step.verdict is Verdict.XFAILED]
    if many:
        yield from _show_groups("Expected failures, by diagnostic", expected_failures)
    else:
        yield from _show_step_messages("Expected failures", ((step.reason, step) for step in expected_failures))
    skip_reasons = []
    for step in (step for step in steps if step.verdict is Verdict.SKIPPED):
        cause = "a step that" if many else f"{step.behind}, which"
        skip_reasons.append((f"behind {cause} did not succeed" if step.behind else step.reason, step))
    yield from _show_step_messages("Skipped", skip_reasons)
    yield from _show_step_messages("Notes", ((note, step) for step in steps for note in step.notes))
    facts = tuple((name, str(value)) for name, value in _list_environment(outcome) if value)
    yield Details("Environment", (Table(_ENVIRONMENT_COLUMNS, facts),))


def _show_figures(outcome: RunOutcome, figures: Mapping[str, ChainFigures], row_count: int) -> Iterator[Block]:
    """Show a row for each chain with metrics; `row_count` is the number of rows if there were no limit."""
    count = len(outcome.cases)
    if not outcome.chains:
        yield Paragraph(("No step was planned.",))
        return
    if not figures:
        yield Paragraph((f"All {count} as expected; each is in ", Name("summary.json"), "."))
        return
    shown_columns = [
        (figure, column)
        for figure, column in _FIGURE_COLUMNS
        if not figure.row.optional or any(figure in metrics.values for metrics in figures.values())
    ]
    rows: list[tuple[Cell, ...]] = []
    verdicts = {chain.id: format_chain_verdict(chain) for chain in outcome.chains if chain.id in figures}
    for chain, metrics in figures.items():
        rows.append((verdicts[chain], chain, *(_make_cell(figure, metrics) for figure, _ in shown_columns)))
    yield Heading("Figures")
    yield Table((*_NAMING_COLUMNS, *(column for _, column in shown_columns)), tuple(rows), _TERMINAL_ROWS)
    if counter_names := {metrics.counted_by for metrics in figures.values()} - {""}:
        yield Paragraph((f"instructions of one call on one thread, counted by {'; '.join(sorted(counter_names))}",))
    if outcome.has_many_chains and count > len(rows):
        note = f", {count - row_count} of them as expected."
        yield Paragraph((f"{count - len(rows)} more in ", Name("summary.json"), note))


def _make_cell(figure: Figure, figures: ChainFigures) -> Cell:
    """Return a metric, with the limit that it was compared with, if any."""
    if figure is Figure.ERROR:
        return _make_quality(figures)
    text, check = figures.format_cell(figure), figures.find_check(figure)
    if check is None or check.measured is None or check.limit is None or check.passed is None:
        return text
    return LimitBar(text, check.measured, check.limit, "passed" if check.passed else "failed")


def _make_quality(figures: ChainFigures) -> Cell:
    """Return the largest error, with the absolute limit unless the relative limit decided the verdict."""
    output, text = figures.worst_output, figures.format_cell(Figure.ERROR)
    if output is None or output.max_abs_error is None or not output.atol:
        return text
    is_comparable = math.isfinite(output.max_abs_error) and output.passed is (output.max_abs_error <= output.atol)
    return (
        LimitBar(text, output.max_abs_error, output.atol, "passed" if output.passed else "failed")
        if is_comparable
        else text
    )


def _show_speeds(steps: Iterable[StepOutcome]) -> Iterator[Block]:
    """Show the speed of benchmarks that feed inputs repeatedly from the host."""
    rows = []
    # Read the statistics only of benchmarks, not of thousands of other steps.
    for step in (step for step in steps if step.stage.row.is_alone):
        statistics = step.typed_statistics
        if statistics.samples_per_sec is not None and statistics.latency_ms is not None:
            latency = statistics.latency_ms
            tokens = None if statistics.tokens_per_sec is None else f"{statistics.tokens_per_sec:.1f}"
            speed = (f"{statistics.samples_per_sec:.2f}", statistics.total_samples, statistics.total_s)
            rows.append((step.chain, *speed, latency.p50, latency.p90, latency.p99, tokens))
    if rows:
        yield Heading("Speed")
        yield Table(_SPEED_COLUMNS, tuple(rows))


def _show_groups(title: str, steps: Sequence[StepOutcome]) -> Iterator[Block]:
    """Show the diagnostics of failed steps, the most frequent first."""
    groups = group_failures((step.chain, step.name, step.diagnosis) for step in steps)
    if not groups:
        return
    rows = tuple(
        (float(group.count), group.stage, group.text, ", ".join(group.examples[:2]) + ", …" * (group.count > 2))
        for group in groups[:_MAX_GROUPS]
    )
    yield Heading(title)
    yield Table(_GROUP_COLUMNS, rows, _TERMINAL_GROUPS)
    if others := groups[_MAX_GROUPS:]:
        yield Paragraph((f"and {len(others)} more kinds, in {sum(group.count for group in others)} steps",))


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
        if findings := list_findings(step):
            yield Items(tuple((line,) for line in findings), _TERMINAL_FINDINGS)
        if tail := take_last_lines(step.tail):
            yield Details("the tool's last lines", (Code("\n".join(tail)),), brief=True)
        if step.ran:
            yield Paragraph(("Reproduce:",))
            yield Code(step.command, "sh")
        # A page in the same folder links to the log.
        file = Name(str(folder / step.log)) if folder else Name(step.log, step.log)
        log: Text = ("full log ", file) if step.log else ()
        spec: Text = ("spec ", Name(str(step.origin))) if step.origin.file else ()
        if log or spec:
            yield Paragraph((*log, *([" · "] if log and spec else []), *spec))


def _show_step_messages(title: str, messages: Iterable[tuple[str, StepOutcome]]) -> Iterator[Block]:
    """Show each message once for all steps that have it; fold messages if many are alike."""
    steps_by_text: dict[str, list[str]] = {}
    for text, step in messages:
        steps_by_text.setdefault(text, []).append(step.title)
    if not steps_by_text:
        return
    texts_by_pattern: dict[str, list[str]] = {}
    for text in steps_by_text:
        texts_by_pattern.setdefault(_VARIABLE_WORD.sub("…", text), []).append(text)
    frequent = {pattern: texts for pattern, texts in texts_by_pattern.items() if len(texts) >= _MIN_FOLDED_NOTES}
    rare = [text for pattern, texts in texts_by_pattern.items() if pattern not in frequent for text in texts]

    def make_items(texts: Iterable[str]) -> Items:
        return Items(tuple((f"{text}: {list_first(steps_by_text[text], _MAX_LISTED_STEPS)}",) for text in texts))

    yield Heading(title)
    if rare:
        yield make_items(rare)
    yield from (Details(f"{pattern} ({len(texts)} times)", (make_items(texts),)) for pattern, texts in frequent.items())


def _list_environment(outcome: RunOutcome) -> tuple[tuple[str, object], ...]:
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
        ("memory", format_bytes(machine.memory_bytes) if machine.memory_bytes else ""),
        ("devices", format_devices(machine)),
        ("system", machine.os),
        ("Python", machine.python),
        ("command", outcome.command),
        ("started", outcome.started),
    )
