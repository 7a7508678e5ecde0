"""Make the reports of the experiment in a folder, whatever its kind, and show them.

This file has the reports of bisections and explanations; other files have the rest.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet import messages
from iree_gauntlet.document import (
    Block,
    Cell,
    Code,
    Document,
    Heading,
    Items,
    Line,
    Name,
    Notes,
    PageOnly,
    Paragraph,
    Stop,
    Table,
    Text,
    TextLink,
)
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.formatting import (
    Column,
    ColumnKind,
    format_bytes,
    format_dispatch_change,
    format_duration,
    format_share,
    pluralize,
)
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.journal_format import EXPLAIN_FOLDER, JOURNAL, read_kind
from iree_gauntlet.records.run_folder import LATEST
from iree_gauntlet.reports.output import Output, open_progress
from iree_gauntlet.reports.report_files import Reports, list_next_steps, make_pages, make_provenance
from iree_gauntlet.reports.run_reports import read_run_reports
from iree_gauntlet.reports.runs_index import write_index
from iree_gauntlet.settings import find_runs_folder, format_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iree_gauntlet.records.bisect_outcome import BisectOutcome
    from iree_gauntlet.records.explain_outcome import CaseExplanation, CulpritFinding, ExplainOutcome, SlowdownFinding
    from iree_gauntlet.reports.live_progress import Painter


_BISECT_COLUMNS = (
    Column("IREE", ColumnKind.NAME),
    Column("value"),
    Column("like", ColumnKind.VERDICT),
    Column("took", ColumnKind.DURATION, drop_order=2),
    Column("commit", drop_order=1),
    Column("remarks"),
)
# Of sets of flags: the numbers of the flags instead of an IREE, and no commit, which is the same for all.
_SET_COLUMNS = (
    Column("flags", ColumnKind.NAME),
    *(column for column in _BISECT_COLUMNS[1:] if column.title != "commit"),
)
_FLAG_COLUMNS = (Column("no."), Column("flag", ColumnKind.NAME), Column("needed for the difference"))
_MEANINGS = {ExitCode.OK: "each failure has a bundle", ExitCode.INCONCLUSIVE: "not every failure has a bundle"}
_FAILURE_COLUMNS = (Column("case", ColumnKind.NAME), *map(Column, ("failure", "conclusion", "fixed by")))
_BISECT_MEANINGS = {ExitCode.OK: "the change was found", ExitCode.INCONCLUSIVE: "the change was narrowed down"}
_PROBE_COLUMNS = (Column("switch"), Column("flag", ColumnKind.NAME), Column("outcome", ColumnKind.VERDICT))


def _make_reports(
    name: str, folder: Path, outcome: BisectOutcome | ExplainOutcome, make: Callable[[Path | None], Document]
) -> Reports:
    pages = make_pages(name, lambda: make(None), folder)
    files = {**pages, f"{name}.json": lambda: json.dumps(outcome.as_dict(), indent=2) + "\n"}
    return Reports(files, make, outcome.exit_code, outcome.answer)


def bisect_document(outcome: BisectOutcome) -> Document:
    """Return the document of a bisection."""
    from iree_gauntlet.records.bisect_outcome import COMMIT_COMPARISON_URL  # noqa: PLC0415 - see `make_reports`

    opening, results, variant = outcome.opening, outcome.results, outcome.opening.variant
    tried_labels = [label for label in outcome.labels if label in results]
    blocks: list[Block] = [Paragraph(("Nothing was tried.",))]
    if tried_labels:
        ends = [outcome.search.last_old, outcome.search.first_new] if outcome.search else []
        end_values = [(results[label].text, label) for label in ends if label in results]
        note = "Good and bad are only the names of the two ends: they do not tell which figure is better."
        if len(end_values) == 2 and all(text for text, _ in end_values):
            note = f"From {' to '.join(f'{text} ({label})' for text, label in end_values)}. {note}"
        rows = tuple(_make_candidate_row(outcome, label) for label in tried_labels)
        if variant:
            blocks = [_make_flag_table(outcome), Table(_SET_COLUMNS, rows)]
        else:
            picture = PageOnly((_make_candidate_line(outcome, ends), Paragraph((note,))))
            blocks = [picture, Table(_BISECT_COLUMNS, rows)]
    blocks += [Notes(tuple(outcome.remarks))] if outcome.remarks else []
    if outcome.link:
        blocks.append(
            Paragraph(("Commits: ", TextLink(COMMIT_COMPARISON_URL.removeprefix("https://") + "…", outcome.link)))
        )
    if outcome.change:
        blocks.append(Paragraph(("Changed by ", TextLink(str(outcome.change), outcome.change.pull_link))))
        source = str(opening.options.get("source") or opening.options.get("into") or ".")
        blocks.append(Code(shlex.join(("git", "-C", source, "show", outcome.change.commit)), "sh"))
    names = [part for label in outcome.labels if label not in results for part in (", ", Name(label))]
    details = (Paragraph(("Not tried: ", *names[1:], ".")),) if names else ()
    summary = f"{len(results)} of {len(outcome.labels)} tried"
    is_without_effect = variant is not None and outcome.found is None and outcome.exit_code is ExitCode.OK
    subject = f"{opening.good} (good) to {opening.bad} (bad)"
    title = f"Bisect of {opening.chain} by {opening.metric}: good {opening.good}, bad {opening.bad}"
    if variant:
        subject, title = (
            f"{opening.row[0].iree}+{variant.name}",
            f"Flags of {variant.name} by {opening.metric} of {opening.chain}",
        )
        summary = f"{pluralize(len(results), 'set')} of {pluralize(len(opening.flags), 'flag')} tried"
    return Document(
        title,
        outcome.answer,
        (outcome.confidence, summary) if outcome.confidence else (summary,),
        tuple(blocks),
        details,
        outcome.exit_code,
        meaning="the flags have no effect" if is_without_effect else _BISECT_MEANINGS.get(outcome.exit_code, ""),
        provenance=make_provenance(subject, opening, ("bisect.md", "bisect.json"), outcome.end),
    )


def _make_flag_table(outcome: BisectOutcome) -> Table:
    """Return the flags with the numbers by which candidates name them, and whether the difference needs each."""
    found = outcome.found.flags if outcome.found else ()
    flags = [flag.changes for flag in outcome.opening.flags]
    rows = ((str(number), flag, "yes" if flag in found else None) for number, flag in enumerate(flags, start=1))
    return Table(_FLAG_COLUMNS, tuple(rows))


def _make_candidate_line(outcome: BisectOutcome, ends: list[str]) -> Line:
    """Return all candidates in order, the values of tried candidates, and marks on the two around the change."""
    stops = []
    for label in outcome.labels:
        result = outcome.results.get(label)
        if result is None:
            stops.append(Stop(label, "", "skipped"))
        else:
            value = result.value if result.value is not None and math.isfinite(result.value) else None
            stops.append(Stop(label, result.text, result.verdict_text, value))
    indices = [outcome.labels.index(end) for end in ends if end in outcome.labels]
    between = (indices[0], indices[1]) if len(indices) == 2 else None
    return Line(tuple(stops), f"{outcome.answer}: the candidates in order", between)


def _make_candidate_row(outcome: BisectOutcome, label: str) -> tuple[Cell, ...]:
    """Return a tried candidate's cells, in the order of `_BISECT_COLUMNS` or `_SET_COLUMNS`."""
    result = outcome.results[label]
    remarks = [f"the {word} end" for word in ("good", "bad") if getattr(outcome.opening, word) == label]
    remarks += ["a third value"] if result.third else []
    remarks += [result.reason] if result.reason else []
    commits = () if outcome.opening.variant else (outcome.get_commit(label)[:10] or None,)
    return label, result.text or None, result.verdict_text, float(result.seconds), *commits, "; ".join(remarks)


def _make_explain_document(outcome: ExplainOutcome, folder: Path | None) -> Document:
    compiler = outcome.opening.toolchain.get("compiler", "")
    opening = replace(outcome.opening, command=format_explain_command(outcome.opening.command, outcome.run))
    # Files include earlier explanations, which no other report has; a terminal shows only the new ones.
    cases = {case.case: case for case in (*outcome.cases, *(() if folder else outcome.cases_by_name.values()))}
    rows = tuple(
        (TextLink(case.case, f"#{case.case}"), case.request.kind, case.answer, ", ".join(case.passing_switches) or None)
        for case in cases.values()
    )
    run_folder = folder.parent if folder else Path("runs", outcome.run)
    next_blocks = list_next_steps(_format_next_command(case, run_folder) for case in cases.values())
    blocks: list[Block] = [Heading("Failures"), Table(_FAILURE_COLUMNS, rows).filled_form] if len(rows) > 1 else []
    blocks += (block for case in cases.values() for block in _describe_case(case, folder))
    return Document(
        f"Explanation of {outcome.run}",
        outcome.answer,
        (f"IREE {compiler}" + (f" against {opening.base.get('compiler', '')}" if opening.base else ""),),
        # Each place is the nearest to the headline: a terminal has it at the end.
        tuple(blocks + next_blocks if folder else next_blocks + blocks),
        exit_code=outcome.exit_code,
        meaning=_MEANINGS.get(outcome.exit_code, ""),
        provenance=make_provenance(compiler, opening, ("explain.md", "explain.json"), outcome.end),
    )


def _format_next_command(case: CaseExplanation, run_folder: Path) -> str:
    """Return the command to go on with; empty if there is none."""
    if case.findings.operator.agrees or case.request.changed:
        return f"gauntlet golden.record --model {shlex.quote(case.case.partition('/')[0])}"
    if case.archive:
        return f"gauntlet bundle.check {shlex.quote(str(run_folder / case.archive))}"
    return ""


def format_explain_command(command: str, run: str) -> str:
    """Return the command that explained a run, with the run's name, because the latest run may be another one later."""
    words = [run if word == LATEST else word for word in shlex.split(command)]
    if "explain" in words:
        index = words.index("explain") + 1
        index += words[index : index + 1] == ["--slower"]
        # If no word follows that can name a run, the command explained the latest run.
        if words[index : index + 1] == [] or words[index].startswith("-"):
            words.insert(index, run)
    return shlex.join(words)


def _describe_case(case: CaseExplanation, folder: Path | None) -> Iterator[Block]:
    yield Heading(f"{case.case}: {case.request.kind}", anchor=case.case)
    yield Paragraph((case.request.reason,))
    findings, bundle = case.findings, case.findings.bundle
    lines: list[str] = []
    if findings.again is not None:
        manner = "in the same way" if findings.again.same else "in a different way each time"
        lines.append(f"fails again {findings.again.failed} of 2 times, {manner}")
    lines += [*_describe_failure_location(case), *_describe_operator(findings.operator)]
    if not (case.is_complete or case.events):
        lines.append("not examined yet: explain the run again to continue")
    probes = findings.probes.probes
    if probes and all(probe.verdict == "fails" for probe in probes):
        lines.append(f"none of these fixes it: {', '.join(probe.name for probe in probes)}")
        probes = ()
    if case.passing_switches:
        lines.append(f"fixed by: {', '.join(case.passing_switches)}")
    if bundle is not None and bundle.problem:
        lines.append(f"no bundle: {bundle.problem}")
    items: list[Text] = [(line,) for line in lines]
    if bundle is not None and not bundle.problem:
        shows = "running it shows the failure" if case.has_bundle else f"running it exits with {bundle.exit_code}"
        archive = f"{bundle.folder}.tar.gz"
        link = TextLink(f"{EXPLAIN_FOLDER}/{archive}", str((folder or Path()) / archive))
        items.append(("bundle: ", link, f" ({format_bytes(bundle.bytes)}, {bundle.form}); {shows}"))
    yield from _show_errors(findings.located)
    yield Items(tuple(items))
    if probes:
        yield Table(_PROBE_COLUMNS, tuple((probe.name, probe.flag, probe.verdict) for probe in probes))
        if reasons := tuple(f"{probe.name}: {probe.reason}" for probe in probes if probe.reason):
            yield Notes(reasons)
    if case.is_complete:
        yield Paragraph((f"It took {format_duration(case.end.seconds)}.",))


def _describe_failure_location(case: CaseExplanation) -> list[str]:
    """Describe the part that fails, or is slower."""
    findings, reduced = case.findings, case.findings.reduced
    if reduced is not None and reduced.why:
        return [reduced.why]
    if reduced is not None:
        lines = [reduced.describe(f" in {reduced.tried} compiles")]
        lines += [f"it fails when compiled to the phase {reduced.phase}"] if reduced.phase else []
        lines += [] if reduced.complete else ["the time ran out before everything was tried: --budget allows more"]
        return lines
    if findings.slower is not None:
        return _describe_slower(findings.slower)
    if findings.located.dispatch:
        return _describe_located(findings.located)
    if case.events.keys() & {"located", "nothing", "same"}:
        return [findings.located.why or case.answer]
    return []


def _describe_slower(culprit: SlowdownFinding) -> list[str]:
    """Describe a slower dispatch, or the reason why there is none."""
    attempts = [f"{attempt.name}: {attempt.said}" for attempt in culprit.tried]
    if not culprit.name:
        return [culprit.why, *attempts]
    change = format_dispatch_change(culprit.a_ns, culprit.b_ns, culprit.unit)
    return [
        f"slower dispatch: {culprit.name}, {change}, {100 * culprit.share:.0f} % of the loss",
        *attempts,
        f"it takes {', '.join(culprit.inputs) or 'nothing'}",
    ]


def _describe_located(located: CulpritFinding) -> list[str]:
    """Describe a dispatch that is at fault."""
    function_call = f", in call {located.function_call} of the spec" if located.function_call else ""
    location = f"{located.dispatch} (call {located.call} of {located.of}{function_call})"
    inputs = f"it takes {', '.join(located.inputs)}"
    if not located.reference:
        return [f"fails in {location}, and only there", inputs]
    share = format_share(located.error)
    first_line = f"first wrong dispatch: {location}, off by {share} on inputs for which {located.reference} is right"
    lines = [first_line, f"{inputs} and returns {', '.join(located.outputs)}"]
    if f64_errors := located.in_f64:
        errors = (f64_errors.get(side) for side in ("target", "reference"))
        target, reference = ("NaN or infinity" if error is None else f"{error:.2g}" for error in errors)
        lines.append(f"compared with the same in f64, it is off by {target}, and {located.reference} by {reference}")
    return lines


def _describe_operator(culprit: CulpritFinding) -> list[str]:
    """Describe an ONNX model's operators that are at fault."""
    lines = [text for text in (culprit.why, culprit.note) if text]
    if culprit.operator:
        note = ", with the first values of its large tensors repeated," if culprit.repeated else ""
        start = f"first wrong operator: {culprit.operator}, off by {format_share(culprit.error)}{note}"
        lines.append(f"{start} on inputs for which {culprit.reference} is right")
        lines.append(f"it takes {', '.join(culprit.inputs) or 'nothing'} and returns {', '.join(culprit.outputs)}")
    return lines


def _show_errors(located: CulpritFinding) -> Iterator[Block]:
    """Show how the error grows over the dispatches around the faulty dispatch, if one was found."""
    if not located.around:
        return
    fault_index = [call for call, *_ in located.around].index(located.call)
    stops = tuple(
        Stop(
            name.rpartition("$")[2],
            "not finite" if error is None else f"{error:.2g}",
            "failed" if index == fault_index else "",
            math.inf if error is None else error,
        )
        for index, (_, name, error) in enumerate(located.around)
    )
    text = f"Largest error of each dispatch, as a share of its largest value, against {located.reference}"
    between = (fault_index - 1, fault_index) if fault_index else None
    yield PageOnly((Paragraph((f"{text}:",)), Line(stops, text, between)))


def make_reports(folder: Path) -> Reports:
    """Return the reports of the experiment in a folder; GauntletError if the journal is missing or unreadable."""
    # A run, above all, must not wait for the records and reports of other kinds.
    match read_kind(folder / JOURNAL):
        case ExperimentKind.BISECT:
            from iree_gauntlet.records.bisect_outcome import read_bisect_outcome  # noqa: PLC0415 - as above

            bisection = read_bisect_outcome(folder)
            return _make_reports("bisect", folder, bisection, lambda _: bisect_document(bisection))
        case ExperimentKind.EXPLAIN:
            from iree_gauntlet.records.explain_outcome import read_explain_outcome  # noqa: PLC0415 - as above

            explanation = read_explain_outcome(folder)
            return _make_reports("explain", folder, explanation, partial(_make_explain_document, explanation))
        case ExperimentKind.COMPARE:
            from iree_gauntlet.reports.compare_report import make_comparison_reports as make  # noqa: PLC0415 - as above
        case ExperimentKind.MATRIX:
            from iree_gauntlet.reports.matrix_report import make_matrix_reports as make  # noqa: PLC0415 - as above
        case ExperimentKind.CODE_DIFF:
            from iree_gauntlet.reports.code_report import make_code_reports as make  # noqa: PLC0415 - as above
        case ExperimentKind.COMPAT:
            from iree_gauntlet.reports.compat_report import make_compat_reports as make  # noqa: PLC0415 - as above
        case ExperimentKind.QUALIFY:
            from iree_gauntlet.reports.qualify_report import make_qualify_reports as make  # noqa: PLC0415 - as above
        case _:
            return read_run_reports(folder)
    return make(folder)


def write_reports(folder: Path) -> Reports:
    """Write the reports of an experiment next to its journal; it may have been killed, or still be running.

    For an explanation, also write the reports of the explained run, which refer to the explanation's results.

    Raises:
        GauntletError: see `make_reports`, or the reports cannot be written.
    """
    reports = make_reports(folder)
    reports.write(folder)
    if read_kind(folder / JOURNAL) is ExperimentKind.EXPLAIN and folder.name == EXPLAIN_FOLDER:
        parent_kind = read_kind(folder.parent / JOURNAL)
        if parent_kind and parent_kind.is_run:
            read_run_reports(folder.parent).write(folder.parent)
    return reports


def publish_reports(folder: Path, reports: Reports) -> None:
    """Append the reports to the summary of a CI step, and list them on the page of the project's runs."""
    reports.append_to_step_summary(os.environ)
    if folder.absolute().parent == find_runs_folder():
        try:
            write_index(find_runs_folder(), make_reports, existing={folder.name: reports})
        except UsageError as problem:
            messages.note(problem.on_one_line)


class ConsolePresenter:
    """Shows runs on a stream; see `progress.Reporter`."""

    def __init__(self, stream: TextIO) -> None:
        self._output = Output(stream)

    def progress(self) -> Painter:
        """Return live progress on a terminal, log lines elsewhere."""
        return open_progress(self._output.stream)

    def line(self, text: str, *, is_result: bool = False) -> None:
        """Write a line between runs, a quiet presenter only a result."""
        if is_result or not messages.is_quiet():
            self._output.write(f"{text}\n")

    def report_run(self, folder: Path, *, brief: bool) -> ExitCode:
        """Write a folder's reports, show its result, and return its exit code."""
        reports = write_reports(folder)
        if brief:
            self.line(f"{reports.headline}; reports in {format_path(folder)}")
        else:
            reports.print(format_path(folder), self._output.stream, environ=os.environ)
            for command in reports.commands(os.environ):
                self.line(command, is_result=True)
        if self._output.lost:
            messages.warn(f"standard output: {self._output.lost}; the run continued, see {format_path(folder)}")
        # Write the summary last, so that a write error does not hide the verdict.
        if not brief:
            publish_reports(folder, reports)
        return reports.exit_code

    def with_stream(self, stream: TextIO) -> ConsolePresenter:
        """Return a presenter for another stream."""
        return ConsolePresenter(stream)
