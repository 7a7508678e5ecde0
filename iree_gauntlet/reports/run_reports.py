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
from urllib.parse import quote

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.document import (
    Block,
    Cell,
    Code,
    ColouredCell,
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
from iree_gauntlet.formatting import Column, ColumnKind, format_duration, list_first, pluralize, take_last_lines
from iree_gauntlet.journal_format import EXPLAIN_FOLDER, JOURNAL, read_journal
from iree_gauntlet.recorded import strict_json
from iree_gauntlet.records.chain_figures import NO_VALUE, collect_chain_figures, format_chain_verdict
from iree_gauntlet.records.outcome import RunOutcome, format_cache_line, format_headline, format_steps, read_outcome
from iree_gauntlet.records.run_before import find_changes_since
from iree_gauntlet.reports import details
from iree_gauntlet.reports.github import format_error_commands
from iree_gauntlet.reports.junit import format_run_junit
from iree_gauntlet.reports.render_markdown import code, escape, table
from iree_gauntlet.reports.report_files import Reports, make_pages, make_provenance
from iree_gauntlet.reports.vector_lengths import show_vector_lengths
from iree_gauntlet.results import CODE_FIGURES, SPILL_FIGURES
from iree_gauntlet.stages import CHECK_STAGES, Kind
from iree_gauntlet.steps import NOTHING_COMPARED
from iree_gauntlet.system.collector import pause_collector

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.records.chain_figures import ChainFigures
    from iree_gauntlet.records.outcome import ChainOutcome, StepOutcome
    from iree_gauntlet.records.run_before import Change, PreviousRun
    from iree_gauntlet.results import CacheUse, Check, OutputComparison


_RUN_FIELDS = ("run", "suite", "version", "command", "cwd", "started", "state", "resumed")
# Only outputs of a step that makes several calls have these fields.
_CALL_FIELDS = ("call", "function")
_CHAIN_FIELDS = ("id", "dialect", "model", "submodel", "target", "sku", "verdict")
_STEP_FIELDS = (
    *("id", "stage", "role", "verdict", "failure", "reason", "behind"),
    *("seconds", "waited_seconds", "cpu_seconds", "tool_seconds", "peak_rss_bytes"),
    *("exit_code", "signal", "timed_out", "command", "device"),
)
_ATTEMPT_FIELDS = ("verdict", "failure", "reason", "seconds", "exit_code", "signal", "timed_out", "log")
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
# A terminal shows at most so many; files have so many more failures, and all rows.
_TERMINAL_FAILURES, _MAX_OTHER_FAILURES = 20, 180
_TERMINAL_ROWS, _TERMINAL_GROUPS, _TERMINAL_FINDINGS = 30, 20, 12
_MAX_LISTED_STEPS, _MAX_LISTED_MODELS = 8, 1
# A limit is near from this share of it on.
_NEAR_LIMIT = 0.9
# Notes that differ only in these words (names and numbers) are alike; so many alike notes are folded.
_VARIABLE_WORD = re.compile(r"\S*[\d/\\@=]\S*")
_MIN_FOLDED_NOTES = 4
_NAMING_COLUMNS = (Column("verdict", ColumnKind.VERDICT), Column("model", ColumnKind.NAME))
_FIGURE_COLUMNS = [(figure, figure.row.column) for figure in COMPILES_FIRST if figure.row.column]
_ROW_COLUMNS = (*_NAMING_COLUMNS, *(column for _, column in _FIGURE_COLUMNS))
_SPEED_COLUMNS = (
    Column("model", ColumnKind.NAME),
    Column("samples/s", ColumnKind.NUMBER),
    Column("samples", ColumnKind.NUMBER),
    Column("in", ColumnKind.DURATION),
    *(Column(name, ColumnKind.NUMBER, "ms") for name in ("p50", "p90", "p99")),
    Column("tokens/s", ColumnKind.NUMBER),
)
_GROUP_COLUMNS = (
    *_NAMING_COLUMNS,
    Column("cases", ColumnKind.NUMBER),
    *(Column(title) for title in ("stage", "cause", "explanation")),
)
_CHANGE_COLUMNS = (
    Column("model", ColumnKind.NAME),
    Column("figure"),
    *(Column(title, ColumnKind.NUMBER) for title in ("before", "now", "change")),
)
_STEP_COLUMNS = (
    Column("verdict", ColumnKind.VERDICT),
    Column("step", ColumnKind.NAME),
    Column("took", ColumnKind.DURATION),
)
_SPILL_DETAILS = ("vgprs", "scratch_bytes", "occupancy")
_SPILL_COLUMNS = (
    Column("model", ColumnKind.NAME),
    Column("dispatch", ColumnKind.NAME),
    Column("target"),
    Column("spills", ColumnKind.NUMBER),
    *(Column(CODE_FIGURES[key], ColumnKind.NUMBER) for key in _SPILL_DETAILS),
)
_CODE_TOTALS = (Figure.CODE_SIZE, Figure.REGISTERS, Figure.SPILLS, Figure.SHARED_MEMORY)
_TOTAL_COLUMNS = (
    Column("model", ColumnKind.NAME),
    *(Column(figure.row.title, ColumnKind.NUMBER) for figure in _CODE_TOTALS),
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
        outcome = read_outcome(record)
        if (run_dir / EXPLAIN_FOLDER / JOURNAL).is_file():
            from iree_gauntlet.records.explain_outcome import add_explanations  # noqa: PLC0415 - only after `explain`

            outcome = add_explanations(outcome, run_dir)
        reports = make_run_reports(outcome, run_dir)
        return reports if record.run.micro is None else replace(reports, sweep=record)


def make_run_reports(outcome: RunOutcome, run_dir: Path | None = None) -> Reports:
    """Return `junit.xml`, `summary.md`, `summary.html`, `summary.json`, and the job summary if there are torch models.

    The previous run is looked up next to the run's folder; without a folder, no previous run is used.
    """
    previous = find_changes_since(outcome, run_dir) if run_dir else None
    links = (TextLink("the run before", f"../{quote(previous.run)}/summary.html"),) if previous else ()

    @cache
    def make_document(folder: Path | None) -> Document:
        return run_document(outcome, folder, previous, tuple(name for name in files if not name.endswith(".html")))

    files = {
        "junit.xml": lambda: format_run_junit(outcome),
        **make_pages("summary", lambda: make_document(None), run_dir, links),
        "summary.json": lambda: format_summary_json(outcome),
    }
    # The job summary is empty if no torch models were tested.
    if summary := make_job_summary(outcome):
        files[f"{JOB_SUMMARY}md"] = lambda: _format_job_summary(summary, outcome)
        files[f"{JOB_SUMMARY}json"] = lambda: json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    commands = partial(format_error_commands, outcome.steps, warnings=outcome.warnings)
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
            lines.append(f"- {escape(step.title)}: {escape(details.format_explanation(step.explanation))}{bundle}\n")
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
    if step.verdict in (Verdict.PASSED, Verdict.FLAKY):
        return str(step.verdict).upper()
    for verdict in (Verdict.XFAILED, Verdict.QUARANTINED):
        if verdict in (step.verdict, verdicts.get(step.behind)):
            return str(verdict).upper()
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
        "exit_meaning": outcome.exit_meaning,
        "seconds": outcome.seconds,
        "tool_seconds": outcome.tool_seconds,
        "counts": outcome.counts,
        "case_counts": {verdict: outcome.case_counts[verdict] for verdict in Verdict},
        "unapplied_goldens": sum(len(step.unapplied_goldens) for step in outcome.steps),
        "cache": {name: asdict(getattr(outcome, name)) for name in ("compiles", "imports", "downloads")},
        "targets": [target.as_dict() for target in outcome.targets],
        "toolchain": outcome.toolchain.as_dict(),
        "machine": outcome.machine.as_dict(),
    }
    chains = strict_json([_describe_chain(chain) for chain in outcome.chains])
    if not outcome.has_many_chains:
        return json.dumps({**strict_json(document), "chains": chains}, indent=1, allow_nan=False) + "\n"
    fields_text = json.dumps(strict_json(document), indent=1, allow_nan=False).removesuffix("\n}")
    chain_lines = ",\n".join(f"  {_ENCODER.encode(chain)}" for chain in chains)
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
        **({"agrees_with": figures.agrees_with} if figures.agrees_with else {}),
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
        **(
            {
                "attempts": [
                    {
                        **_select_fields(attempt, _ATTEMPT_FIELDS),
                        "outputs": list(map(_describe_output, attempt.outputs)),
                    }
                    for attempt in step.attempts
                ]
            }
            if step.attempts
            else {}
        ),
        "explanation": None if step.explanation is None else asdict(step.explanation),
        **({"cause": details.format_cause(step)} if step.verdict.is_bad else {}),
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
    document = _select_all(output) | {"mismatches": output.mismatches or 0, "worst_index": output.worst_index or ()}
    left_out = _CALL_FIELDS if output.call is None else ()
    return {name: value for name, value in document.items() if name not in left_out}


def run_document(
    outcome: RunOutcome, folder: Path | None = None, previous: PreviousRun | None = None, files: tuple[str, ...] = ()
) -> Document:
    """Return the document of a run: failures with next steps, metrics, and the environment.

    If a run has more than 200 chains, as operator suites have, tables contain only unexpected results. `folder` is the
    run's folder, as displayed to the user; None means that the document is in that folder, next to `files`.
    """
    # Leave out steps that an interrupted run never began, because there is nothing to report about them.
    bad = [step for step in outcome.bad_steps if not step.never_started]
    many = outcome.has_many_chains
    # Each of these chains has a row; in a large run, only failed chains have one.
    row_chains = [chain for chain in outcome.chains if chain.verdict.is_bad or not many]
    row_chains.sort(key=lambda chain: not chain.verdict.is_bad)
    figures = {chain.id: collect_chain_figures(chain) for chain in row_chains}
    tools = f"; IREE's tools ran for {format_duration(outcome.tool_seconds)} in total" if outcome.tool_seconds else ""
    groups = _group_failures(bad) if many or len(bad) > _TERMINAL_FAILURES else [[step] for step in bad]
    # The first failure of each kind precedes the others.
    bad = [step for group in groups for step in group[:1]] + [step for group in groups for step in group[1:]]
    described = {step.id for step in bad[: _TERMINAL_FAILURES + _MAX_OTHER_FAILURES]}
    # A page begins with its answer, a terminal ends with it.
    changes_and_next_steps = [*_describe_changed(previous), *_list_next_steps(outcome, bad, folder)]
    blocks = [*_show_groups("What went wrong", groups, described), *([] if folder else changes_and_next_steps)]
    blocks += _show_failures(bad[:_TERMINAL_FAILURES], folder)
    if others := bad[_TERMINAL_FAILURES:]:
        text = f"{len(others)} more went wrong; "
        blocks.append(Paragraph((text, Name("junit.xml"), " and ", Name("summary.json"), " list them all.")))
        blocks.append(Details("What else went wrong", tuple(_show_failures(others[:_MAX_OTHER_FAILURES], folder))))
    unstarted_count = len(outcome.bad_steps) - len(bad)
    if unstarted_count:
        blocks.append(Paragraph((f"{pluralize(unstarted_count, 'step')} did not start.",)))
    blocks += [*_show_quarantined(outcome, folder), *_show_unapplied(outcome)]
    blocks += [*_show_figures(outcome, figures, described), *_show_spills(figures)]
    blocks += show_vector_lengths(outcome.chains)
    if not any(step.stage.row.runs_modules for step in outcome.steps):
        blocks += _show_code_totals(figures)
    blocks += [Paragraph((line,)) for line in (*_summarize_verdicts(outcome), format_cache_line(outcome))]
    blocks.append(Paragraph((f"time: {format_duration(outcome.seconds)}{tools}",)))
    blocks += changes_and_next_steps if folder else []
    blocks += _show_time_spent(outcome)
    return Document(
        f"IREE Gauntlet: {f'suite {outcome.suite}, ' if outcome.suite else ''}run {outcome.run}",
        format_headline(outcome),
        (format_steps(outcome),) if outcome.steps else (),
        tuple(blocks),
        tuple(_show_details(outcome)),
        outcome.exit_code,
        outcome.remarks,
        outcome.exit_meaning,
        first_failure=f"{groups[0][0].title}: {details.format_common_cause(groups[0])}" if groups else "",
        provenance=make_provenance(
            *(outcome.toolchain.compiler, outcome, files),
            outcome.seconds if outcome.state == "complete" else None,
            outcome.longest_stages,
        ),
    )


def _list_next_steps(outcome: RunOutcome, bad: Sequence[StepOutcome], folder: Path | None) -> Iterator[Block]:
    if any(step.stage.row.is_explained and step.verdict is Verdict.FAILED and not step.explanation for step in bad):
        command = Name(f"gauntlet explain {folder or outcome.run}")
        yield Paragraph(("to find the cause, and to pack it up for others: ", command))
    # Limits of specs have a field; a value measured by an earlier run has none.
    missed = (step for step in bad if any(check.passed is False for check in step.checks))
    if any(golden.origin.field for step in missed for golden in step.goldens):
        yield Paragraph(("if a new figure is right: ", Name("gauntlet golden.update"), " proposes it"))
    if outcome.state != "complete":
        yield Paragraph(("to continue it: ", *_format_resume_command(outcome, folder)))


def _show_quarantined(outcome: RunOutcome, folder: Path | None) -> Iterator[Block]:
    """Show the failures that do not fail the run, because a suite has put their cases in quarantine."""
    if steps := [step for step in outcome.steps if step.verdict is Verdict.QUARANTINED]:
        yield Heading("Failures in quarantine")
        yield from _show_failures(steps[:_TERMINAL_FAILURES], folder)
    if others := steps[_TERMINAL_FAILURES:]:
        blocks = tuple(_show_failures(others[:_MAX_OTHER_FAILURES], folder))
        yield Details(f"{len(others)} more failures in quarantine", blocks)


def _show_unapplied(outcome: RunOutcome) -> Iterator[Block]:
    """Show the goldens that were not applied."""
    if lines := [f"{origin}: {text}" for step in outcome.steps for origin, text in details.list_unapplied(step)]:
        yield Heading("Goldens that were not applied")
        yield Items(tuple((line,) for line in lines), _TERMINAL_FINDINGS)
        # Without a figure, neither another release nor another target is the reason.
        checks = ((check, step) for step in outcome.steps for check in step.checks if check.measured is not None)
        goldens = [
            (golden, step)
            for check, step in checks
            for golden in step.unapplied_goldens
            if golden.metric == check.metric
        ]
        if any(golden in step.goldens for golden, step in goldens):
            yield Paragraph(
                ("to move those of another release to this one: ", Name("gauntlet golden.update --to-release"))
            )
        if any(golden in step.idle_goldens for golden, step in goldens):
            yield Paragraph(("to set goldens for this target: ", Name("gauntlet golden.set")))


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
    """Show, on a page, the time line of steps with the time of each stage, and the longest steps."""
    timed_steps = [(step, datetime.fromisoformat(step.started).timestamp()) for step in outcome.steps if step.started]
    if not timed_steps:
        return
    spans = tuple(_list_spans(timed_steps, resumed=bool(outcome.resumed)))
    busy, last_end = 0.0, 0.0
    for begin, end in sorted((span.start, span.start + span.waited + span.seconds) for span in spans):
        busy += max(end - max(begin, last_end), 0.0)
        last_end = max(last_end, end)
    idle_note = f"; for {format_duration(outcome.seconds - busy)} no step ran" if outcome.seconds - busy >= 1 else ""
    text = f"{format_duration(outcome.seconds)} in total{idle_note}. Steps that ran in parallel count in full."
    longest = sorted(spans, key=lambda span: -span.seconds)[:_MAX_LONG_STEPS]
    steps = Table(_STEP_COLUMNS, tuple((span.verdict, span.name, span.seconds) for span in longest))
    pictures = (Paragraph((text,)), Timeline(spans), Paragraph(("The steps that took longest:",)))
    yield PageOnly((Heading("How the time was spent"), *pictures, steps))


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
    titles = [step.title for step in outcome.steps if step.verdict is Verdict.PASSED and NOTHING_COMPARED in step.notes]
    if titles:
        yield f"no expected outputs, so only that it runs was checked: {list_first(titles, _MAX_LISTED_STEPS)}"
    checks = [check for step in outcome.steps for check in step.checks]
    decided_counts = Counter(check.metric for check in checks if check.passed is not None)
    comparing = (step for step in outcome.steps if step.stage.row.checks_numbers and NOTHING_COMPARED not in step.notes)
    number_count = sum(step.has_compared for step in comparing)
    agreeing_count = sum(bool(step.agrees_with) for step in outcome.steps)
    agreeing_note = f" ({agreeing_count} only with IREE itself)" if agreeing_count else ""
    disturbed_count = sum(bool(step.samples and step.typed_statistics.disturbed) for step in outcome.steps)
    no_time = not decided_counts[Figure.TIME] and any(check.metric == Figure.TIME for check in checks)
    time_goldens = ((step, golden) for step in outcome.steps for golden in step.goldens if golden.metric is Figure.TIME)
    sku_note = ""
    if no_time and not any(golden.sku == step.sku for step, golden in time_goldens):
        skus = sorted({chain.sku for chain in outcome.chains} - {""})
        sku_note = f" (no golden for {', '.join(skus)})" if skus else " (no --sku)"
    metrics_text = ", ".join(
        f"{figure.row.judged_noun} {decided_counts[figure]}{sku_note if figure is Figure.TIME else ''}"
        for figure in sorted(Figure, key=lambda figure: not figure.is_exact or figure.row.optional)
        if figure.row.judged_noun and (decided_counts[figure] or not figure.row.optional)
    )
    disturbed_note = f"; {pluralize(disturbed_count, 'time')} disturbed (*)" if disturbed_count else ""
    yield f"judged: numbers {number_count}{agreeing_note}, {metrics_text}{disturbed_note}"


def _show_details(outcome: RunOutcome) -> Iterator[Block]:
    steps, many = outcome.steps, outcome.has_many_chains
    yield from _show_speeds(steps)
    expected_failures = [step for step in steps if step.verdict is Verdict.XFAILED]
    if many:
        yield from _show_groups("Expected failures, by cause", _group_failures(expected_failures))
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


def _show_figures(
    outcome: RunOutcome, figures: Mapping[str, ChainFigures], described: Collection[str]
) -> Iterator[Block]:
    """Show a row for each chain with figures; on a page, the other ones are folded."""
    chains = {chain.id: chain for chain in outcome.chains}
    rows = tuple(_make_figures_row(chains[name], metrics, described) for name, metrics in figures.items())
    others = [chain for chain in outcome.cases if chain.id not in figures]
    if rows:
        yield Heading("Figures")
        yield Table(_ROW_COLUMNS, rows, _TERMINAL_ROWS).filled_form
    elif not others:
        yield Paragraph(("No step was planned.",))
    if counter_names := {metrics.counted_by for metrics in figures.values()} - {""}:
        yield Paragraph((f"instructions of one call on one thread, counted by {'; '.join(sorted(counter_names))}",))
    if others:
        text = f"{pluralize(len(others), 'more case')} as expected; each is in "
        other_rows = tuple(_make_figures_row(chain, collect_chain_figures(chain), ()) for chain in others)
        lines = Table(_ROW_COLUMNS, other_rows).filled_form.lines
        yield Paragraph((text, Name("summary.json"), "."))
        yield PageOnly((Details(f"{len(others)} more cases", (Code("\n".join(lines)),)),))


def _show_spills(figures: Mapping[str, ChainFigures]) -> Iterator[Block]:
    """Show the dispatches that spill registers to memory, the worst first."""
    spills = [
        (sum(dispatch.figures.get(key, 0) for key in SPILL_FIGURES), model, dispatch)
        for model, metrics in figures.items()
        for dispatch in metrics.code
    ]
    rows = tuple(
        (model, dispatch.name, dispatch.target, float(count), *(dispatch.figures.get(key) for key in _SPILL_DETAILS))
        for count, model, dispatch in sorted(spills, key=lambda spill: -spill[0])
        if count
    )
    if rows:
        yield from (Heading("Dispatches that spill registers"), Table(_SPILL_COLUMNS, rows, _TERMINAL_FINDINGS))


def _show_code_totals(figures: Mapping[str, ChainFigures]) -> Iterator[Block]:
    """Show the figures of the code of each module, for runs that only compile."""
    rows = [(model, *(metrics.values.get(figure) for figure in _CODE_TOTALS)) for model, metrics in figures.items()]
    rows = [row for row in rows if any(value is not None for value in row[1:])]
    if rows:
        yield from (Heading("Code of modules"), Table(_TOTAL_COLUMNS, tuple(rows), _TERMINAL_ROWS).filled_form)


def _make_figures_row(chain: ChainOutcome, figures: ChainFigures, described: Collection[str]) -> tuple[Cell, ...]:
    """Return a chain's verdict, with a link to its failure, and its figures, in the order of `_ROW_COLUMNS`.

    If the failure is not described, the row is the target of links to it.
    """
    bad_step = next((step for step in chain.steps if step.verdict is chain.verdict), chain.steps[0])
    verdict = _link_verdict(format_chain_verdict(chain), bad_step, described)
    if chain.verdict.is_bad and not verdict.url:
        verdict = replace(verdict, anchor=bad_step.id)
    return (verdict, chain.id, *(_make_cell(figure, figures) for figure, _ in _FIGURE_COLUMNS))


def _make_cell(figure: Figure, figures: ChainFigures) -> Cell:
    """Return a metric, as a bar if it is near its limit or over it."""
    text, check, output = figures.format_cell(figure), figures.find_check(figure), figures.worst_output
    if text == NO_VALUE:
        return None
    if figure is Figure.ERROR:
        share, passed = (output.limit_share, output.passed) if output else (None, None)
    elif check is None or check.measured is None or not check.limit:
        return text
    else:
        share, passed = check.measured / check.limit, check.passed
    # A count that equals its limit is as usual.
    if share is None or not (passed is False or (passed and _NEAR_LIMIT <= share < 1)):
        return text
    return LimitBar(text, share, "passed" if passed else "failed")


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


def _group_failures(steps: Iterable[StepOutcome]) -> list[list[StepOutcome]]:
    """Group steps by verdict, stage and kind of cause, the largest group first."""
    groups: dict[tuple[str, str, str], list[StepOutcome]] = {}
    for step in steps:
        groups.setdefault((step.verdict, step.name, details.format_cause_kind(step)), []).append(step)
    return sorted(groups.values(), key=lambda group: -len(group))


def _show_groups(
    title: str, groups: Sequence[Sequence[StepOutcome]], described: Collection[str] = ()
) -> Iterator[Block]:
    """Show a row for each group of failed steps, with a link to its first failure."""
    if not groups:
        return
    rows: list[tuple[Cell, ...]] = []
    repeated = any(len(group) > 1 for group in groups)
    for group in groups:
        first, names = group[0], list(dict.fromkeys(step.chain for step in group))
        answer = next((step.explanation.answer for step in group if step.explanation), "")
        link = TextLink(answer, f"{EXPLAIN_FOLDER}/explain.html#{first.chain}") if answer else None
        cells = (float(len(names)) if repeated else None, first.name, details.format_common_cause(group), link)
        verdict = _link_verdict(str(first.verdict), first, described)
        rows.append((verdict, list_first(names, _MAX_LISTED_MODELS), *cells))
    yield Heading(title)
    yield Table(_GROUP_COLUMNS, tuple(rows), _TERMINAL_GROUPS).filled_form


def _link_verdict(text: str, step: StepOutcome, described: Collection[str]) -> ColouredCell:
    """Return a verdict, with a link if the document describes the step's failure."""
    return ColouredCell(text, str(step.verdict), f"#{step.id}" * (step.id in described))


def _show_failures(steps: Iterable[StepOutcome], folder: Path | None) -> Iterator[Block]:
    for step in steps:
        yield Heading(f"{step.verdict}: {step.title}", 3, step.id)
        tail = take_last_lines(step.tail)
        # The reason of a quarantine is nowhere else.
        is_told = details.list_faults(step) or details.is_quoted(step, tail)
        if step.verdict is Verdict.QUARANTINED or not is_told:
            yield Paragraph((step.reason,))
        if step.explanation is not None:
            bundle = step.explanation.bundle
            link: Text = ("; bundle: ", TextLink(bundle, str((folder or Path()) / bundle))) if bundle else ()
            yield Paragraph((details.format_explanation(step.explanation), *link))
        if findings := details.list_findings(step):
            yield Items(tuple((line,) for line in findings), _TERMINAL_FINDINGS)
        if tail:
            yield Code("\n".join(tail))
        if step.ran:
            yield Details("Reproduce", (Code(step.command, "sh"),), brief=True)
        # A page in the same folder links to the log.
        file = Name(str(folder / step.log)) if folder else Name(step.log, quote(step.log))
        log: Text = ("full log ", file) if step.log else ()
        spec: Text = ("spec ", Name(str(step.origin))) if step.origin.file else ()
        if log or spec:
            yield Paragraph((*log, *([" · "] if log and spec else []), *spec))


def _show_step_messages(title: str, messages: Iterable[tuple[str, StepOutcome]]) -> Iterator[Block]:
    """Show each message once for all steps that have it; fold messages if many are alike."""
    titles: dict[str, dict[str, list[str]]] = {}
    for text, step in messages:
        titles.setdefault(_VARIABLE_WORD.sub("…", text), {}).setdefault(text, []).append(step.title)
    rare: list[Text] = []
    folded: list[Block] = []
    for pattern, steps in titles.items():
        items: list[Text] = [(f"{text}: {list_first(names, _MAX_LISTED_STEPS)}",) for text, names in steps.items()]
        if len(items) < _MIN_FOLDED_NOTES:
            rare += items
        else:
            folded.append(Details(f"{pattern} ({len(items)} times)", (Items(tuple(items)),)))
    if titles:
        yield Heading(title)
    yield from (Items(tuple(rare)), *folded) if rare else folded


def _list_environment(outcome: RunOutcome) -> tuple[tuple[str, object], ...]:
    toolchain, machine = outcome.toolchain, outcome.machine
    targets = dict.fromkeys(f"{chain.target} ({chain.sku})" if chain.sku else chain.target for chain in outcome.chains)
    return (
        ("compiler", toolchain.compiler_text or "unknown"),
        ("runtime", toolchain.runtime_text or "unknown"),
        ("toolchain", toolchain.source),
        ("gauntlet", outcome.version),
        ("targets", ", ".join(targets)),
        ("devices", details.format_devices(machine)),
        ("system", machine.os),
        ("Python", machine.python),
    )
