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
from dataclasses import asdict, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.recorded import strict_json
from iree_gauntlet.records.chain_figures import collect_chain_figures
from iree_gauntlet.records.explain_outcome import with_explanations
from iree_gauntlet.records.outcome import RunOutcome, format_headline, read_outcome
from iree_gauntlet.records.run_before import find_changes_since
from iree_gauntlet.reports.details import format_explanation
from iree_gauntlet.reports.github import format_error_commands
from iree_gauntlet.reports.junit import format_run_junit
from iree_gauntlet.reports.render_markdown import code, escape, table
from iree_gauntlet.reports.report_files import Reports, make_pages
from iree_gauntlet.reports.summary import run_document
from iree_gauntlet.stages import CHECKS, Kind
from iree_gauntlet.system.collector import pause_collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from iree_gauntlet.document import Document
    from iree_gauntlet.records.outcome import ChainOutcome, StepOutcome
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
