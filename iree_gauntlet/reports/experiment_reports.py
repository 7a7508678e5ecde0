"""The reports of whatever was recorded in a folder, by the kind of its experiment, and how they are shown.

Those of a bisect and of an explanation are made here.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet import messages
from iree_gauntlet.document import (
    Block,
    Cell,
    Code,
    Column,
    ColumnKind,
    Document,
    Heading,
    Items,
    Line,
    Name,
    Notes,
    OnPage,
    Paragraph,
    Stop,
    Table,
    Text,
    TextLink,
)
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.formatting import byte_size, duration, format_dispatch_change
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.journal_format import JOURNAL, read_kind
from iree_gauntlet.records.bisect_outcome import BISECT_COMPARE, BisectOutcome, read_bisect_outcome
from iree_gauntlet.records.explain_outcome import EXPLAIN_FOLDER, read_explain_outcome
from iree_gauntlet.records.run_folder import LATEST
from iree_gauntlet.reports.compare_report import make_comparison_reports
from iree_gauntlet.reports.matrix_report import make_matrix_reports
from iree_gauntlet.reports.output import Output, open_progress
from iree_gauntlet.reports.report_files import Reports, count_seconds_between, make_pages, provenance
from iree_gauntlet.reports.run_reports import run_reports
from iree_gauntlet.reports.runs_index import write_index
from iree_gauntlet.settings import find_runs_folder, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iree_gauntlet.records.explain_outcome import ExplainedCase, ExplainOutcome, FoundCulprit, FoundSlower
    from iree_gauntlet.reports.live_progress import Painter


_BISECT_COLUMNS = (
    Column("IREE", ColumnKind.NAME),
    Column("value"),
    Column("like", ColumnKind.VERDICT),
    Column("took", ColumnKind.DURATION, rank=2),
    Column("commit", rank=1),
    Column("remarks"),
)
_MEANINGS = {ExitCode.OK: "each failure has a bundle", ExitCode.INCONCLUSIVE: "not every failure has a bundle"}
_PROBES = (Column("switch"), Column("flag", ColumnKind.NAME), Column("then it", ColumnKind.VERDICT))


def _make_bisect_reports(folder: Path) -> Reports:
    outcome = read_bisect_outcome(folder)
    document = bisect_document(outcome)
    files = {
        **make_pages("bisect", lambda: document),
        "bisect.json": lambda: json.dumps(outcome.as_dict(), indent=2) + "\n",
    }
    return Reports(files, lambda _: document, outcome.exit_code, outcome.answer)


def bisect_document(outcome: BisectOutcome) -> Document:
    """What people read of a bisect."""
    asked, judged = outcome.asked, outcome.judged
    tried = [label for label in outcome.labels if label in judged]
    blocks: list[Block] = [Paragraph(("Nothing was tried.",))]
    if tried:
        ends = [outcome.search.last_old, outcome.search.first_new] if outcome.search else []
        known = [(judged[label].text, label) for label in ends if label in judged]
        said = "Good and bad are what the two ends were named: nothing is said of which figure is the better one."
        if len(known) == 2 and all(text for text, _ in known):
            said = f"From {' to '.join(f'{text} ({label})' for text, label in known)}. {said}"
        rows = tuple(_make_candidate_row(outcome, label) for label in tried)
        blocks = [OnPage((_make_line(outcome, ends), Paragraph((said,)))), Table(_BISECT_COLUMNS, rows)]
    blocks += [Notes(tuple(outcome.remarks))] if outcome.remarks else []
    if outcome.link:
        blocks.append(Paragraph(("Commits: ", TextLink(BISECT_COMPARE.removeprefix("https://") + "…", outcome.link))))
    if outcome.change:
        pull = TextLink(f"#{outcome.change.pull}", outcome.change.pull_link)
        request = (" (pull request ", pull, ")") if outcome.change.pull else ()
        blocks.append(Paragraph(("It was ", str(outcome.change), *request)))
        source = str(asked.options.get("source") or asked.options.get("into") or ".")
        blocks.append(Code(shlex.join(("git", "-C", source, "show", outcome.change.commit)), "sh"))
    names = [part for label in outcome.labels if label not in judged for part in (", ", Name(label))]
    details: list[Block] = [Paragraph(("Not tried: ", *names[1:], "."))] if names else []
    details += [Paragraph(("Again, in ", Name(asked.cwd), ":")), Code(asked.command, "sh")]
    facts = f"{len(judged)} of {len(outcome.labels)} tried"
    return Document(
        f"Bisect of {asked.chain} by {asked.metric}: good {asked.good}, bad {asked.bad}",
        outcome.answer,
        (outcome.confidence, facts) if outcome.confidence else (facts,),
        tuple(blocks),
        tuple(details),
        outcome.exit_code,
        provenance=provenance(
            f"{asked.good} (good) to {asked.bad} (bad)",
            asked,
            ("bisect.md", "bisect.json"),
            count_seconds_between(asked.time, outcome.end.time if outcome.end else ""),
        ),
    )


def _make_line(outcome: BisectOutcome, ends: list[str]) -> Line:
    """Every candidate in its place, those that were tried with their values, and between which two the change is."""
    stops = []
    for label in outcome.labels:
        found = outcome.judged.get(label)
        if found is None:
            stops.append(Stop(label, "", "skipped"))
        else:
            value = found.value if found.value is not None and math.isfinite(found.value) else None
            stops.append(Stop(label, found.text, found.word, value))
    places = [outcome.labels.index(end) for end in ends if end in outcome.labels]
    between = (places[0], places[1]) if len(places) == 2 else None
    return Line(tuple(stops), f"{outcome.answer}: the candidates in their order", between)


def _make_candidate_row(outcome: BisectOutcome, label: str) -> tuple[Cell, ...]:
    """What is shown of a candidate that was tried, in the order of `_BISECT_COLUMNS`."""
    judged = outcome.judged[label]
    remarks = [f"the {word} end" for word in ("good", "bad") if getattr(outcome.asked, word) == label]
    remarks += ["a third value"] if judged.third else []
    remarks += [judged.reason] if judged.reason else []
    commit = outcome.commit_of(label)[:10] or None
    return label, judged.text or None, judged.word, float(judged.seconds), commit, "; ".join(remarks)


def _make_explain_reports(folder: Path) -> Reports:
    outcome = read_explain_outcome(folder)
    document = partial(_make_explain_document, outcome)
    files = {
        **make_pages("explain", lambda: document(None)),
        "explain.json": lambda: json.dumps(outcome.as_dict(), indent=2) + "\n",
    }
    return Reports(files, document, outcome.exit_code, outcome.answer)


def _make_explain_document(outcome: ExplainOutcome, folder: Path | None) -> Document:
    asked, compiler = outcome.asked, outcome.asked.toolchain.get("compiler", "")
    # What was explained before is in no other report, but on a terminal nobody has asked for it.
    cases = {item.case: item for item in (*outcome.cases, *(() if folder else outcome.known.values()))}
    return Document(
        f"Explanation of {outcome.run}",
        outcome.answer,
        (f"IREE {compiler}" + (f" against {asked.base.get('compiler', '')}" if asked.base else ""),),
        tuple(block for case in cases.values() for block in _describe_case(case, folder)),
        (Paragraph(("Again, in ", Name(asked.cwd), ":")), Code(say_explain_again(asked.command, outcome.run), "sh")),
        outcome.exit_code,
        meaning=_MEANINGS.get(outcome.exit_code, ""),
        provenance=provenance(
            compiler,
            asked,
            ("explain.md", "explain.json"),
            count_seconds_between(asked.time, outcome.end.time if outcome.end else ""),
        ),
    )


def say_explain_again(command: str, run: str) -> str:
    """The command that explained a run, of that run: the latest one may be another by then."""
    words = [run if word == LATEST else word for word in shlex.split(command)]
    if "explain" in words:
        place = words.index("explain") + 1
        place += words[place : place + 1] == ["--slower"]
        # Words that follow are of the run; where there are none, it was the latest one.
        if words[place : place + 1] == [] or words[place].startswith("-"):
            words.insert(place, run)
    return shlex.join(words)


def _describe_case(case: ExplainedCase, folder: Path | None) -> Iterator[Block]:
    yield Heading(f"{case.case}: {case.asked.kind}")
    yield Paragraph((case.asked.reason,))
    found, bundle = case.found, case.found.bundle
    lines: list[str] = []
    if found.again is not None:
        how = "in the same way" if found.again.same else "in another way each time"
        lines.append(f"fails again {found.again.failed} of 2 times, {how}")
    lines += [*_say_where(case), *_describe_operator(found.operator)]
    if not (case.done or case.events):
        lines.append("not looked at yet: explain the run again, and it goes on here")
    probes = found.probes.probes
    if probes and all(item.verdict == "fails" for item in probes):
        lines.append(f"none of these mends it: {', '.join(item.name for item in probes)}")
        probes = ()
    if case.mended_by:
        lines.append(f"mended by: {', '.join(case.mended_by)}")
    if bundle is not None and bundle.problem:
        lines.append(f"no bundle: {bundle.problem}")
    items: list[Text] = [(line,) for line in lines]
    if bundle is not None and not bundle.problem:
        shows = "running it shows the failure" if case.bundled else f"running it ends with {bundle.exit_code}"
        archive = f"{bundle.folder}.tar.gz"
        link = TextLink(f"{EXPLAIN_FOLDER}/{archive}", str((folder or Path()) / archive))
        items.append(("bundle: ", link, f" ({byte_size(bundle.bytes)}, {bundle.form}); {shows}"))
    yield from _show_errors(found.located)
    yield Items(tuple(items))
    if probes:
        yield Table(_PROBES, tuple((item.name, item.flag, item.verdict) for item in probes))
        if reasons := tuple(f"{item.name}: {item.reason}" for item in probes if item.reason):
            yield Notes(reasons)
    if case.done:
        yield Paragraph((f"It took {duration(case.end.seconds)}.",))


def _say_where(case: ExplainedCase) -> list[str]:
    """What is said of where it fails, or is slower."""
    found, reduced = case.found, case.found.reduced
    if reduced is not None and reduced.why:
        return [reduced.why]
    if reduced is not None:
        lines = [f"reduced from {reduced.change} in {reduced.tried} compiles: {', '.join(reduced.names)}"]
        lines += [f"it fails on the way to the phase {reduced.phase}"] if reduced.phase else []
        lines += [] if reduced.complete else ["the time was up before all was tried: --budget gives more"]
        return lines
    if found.slower is not None:
        return _describe_slower(found.slower)
    if found.located.dispatch:
        return _describe_located(found.located)
    if case.events.keys() & {"located", "nothing", "same"}:
        return [found.located.why or case.answer]
    return []


def _describe_slower(found: FoundSlower) -> list[str]:
    """What is said of a dispatch that is slower, or of why there is none."""
    tried = [f"{item.name}: {item.said}" for item in found.tried]
    if not found.name:
        return [found.why, *tried]
    change = format_dispatch_change(found.a_ns, found.b_ns, found.unit)
    return [
        f"slower dispatch: {found.name}, {change}, {100 * found.share:.0f} % of the loss",
        *tried,
        f"it takes {', '.join(found.inputs) or 'nothing'}",
    ]


def _describe_located(located: FoundCulprit) -> list[str]:
    """What is said of a dispatch that is at fault."""
    where = f"{located.dispatch} (call {located.call} of {located.of})"
    takes = f"it takes {', '.join(located.inputs)}"
    if not located.reference:
        return [f"fails in {where}, and in that alone", takes]
    off = _format_share(located)
    found = f"first wrong dispatch: {where}, off {off} on inputs on which {located.reference} is right"
    lines = [found, f"{takes} and gives {', '.join(located.outputs)}"]
    if exact := located.in_f64:
        errors = (exact.get(side) for side in ("target", "reference"))
        target, reference = ("infinitely" if off is None else f"by {off:.2g}" for off in errors)
        lines.append(f"held against the same in f64, it is off {target}, and {located.reference} {reference}")
    return lines


def _describe_operator(found: FoundCulprit) -> list[str]:
    """What is said of an ONNX model's operators."""
    lines = [text for text in (found.why, found.note) if text]
    if found.operator:
        made = ", its large tensors with their first values over and over," if found.repeated else ""
        what = f"first wrong operator: {found.operator}, off {_format_share(found)}{made} on inputs on which"
        lines.append(f"{what} {found.reference} is right")
        lines.append(f"it takes {', '.join(found.inputs) or 'nothing'} and gives {', '.join(found.outputs)}")
    return lines


def _format_share(culprit: FoundCulprit) -> str:
    return f"by {culprit.error:.3g} of its largest value" if math.isfinite(culprit.error) else "infinitely"


def _show_errors(located: FoundCulprit) -> Iterator[Block]:
    """How the error grows along the dispatches around the one that is at fault, where one was found."""
    if not located.around:
        return
    place = [call for call, *_ in located.around].index(located.call)
    stops = tuple(
        Stop(
            name.rpartition("$")[2],
            "infinite" if error is None else f"{error:.2g}",
            "failed" if index == place else "",
            math.inf if error is None else error,
        )
        for index, (_, name, error) in enumerate(located.around)
    )
    text = f"Largest error of each dispatch, as a share of its largest value, against {located.reference}"
    between = (place - 1, place) if place else None
    yield OnPage((Paragraph((f"{text}:",)), Line(stops, text, between)))


_MAKERS: dict[ExperimentKind | None, Callable[[Path], Reports]] = {
    ExperimentKind.COMPARE: make_comparison_reports,
    ExperimentKind.MATRIX: make_matrix_reports,
    ExperimentKind.BISECT: _make_bisect_reports,
    ExperimentKind.EXPLAIN: _make_explain_reports,
}


def make_reports(folder: Path) -> Reports:
    """The reports of the experiment in a folder; GauntletError where it has no journal, or one that cannot be read."""
    return _MAKERS.get(read_kind(folder / JOURNAL), run_reports)(folder)


def write_reports(folder: Path) -> Reports:
    """Write the reports of an experiment next to its journal; those of a run that it explains name what it found.

    The experiment may have been killed, or be under way.

    Raises:
        GauntletError: as of `make_reports`, or the reports cannot be written.
    """
    reports = make_reports(folder)
    reports.write(folder)
    if read_kind(folder / JOURNAL) is ExperimentKind.EXPLAIN and folder.name == EXPLAIN_FOLDER:
        of = read_kind(folder.parent / JOURNAL)
        if of and of.is_run:
            run_reports(folder.parent).write(folder.parent)
    return reports


class ConsolePresenter:
    """Shows runs on a stream; see `progress.Presenter`."""

    def __init__(self, stream: TextIO) -> None:
        self._output = Output(stream)

    def progress(self) -> Painter:
        """Live on a terminal, lines elsewhere."""
        return open_progress(self._output.stream)

    def line(self, text: str) -> None:
        """A line between runs."""
        self._output.write(f"{text}\n")

    def ran(self, folder: Path, *, brief: bool) -> ExitCode:
        """Writes the reports of what was recorded there, shows its result, and gives its exit code."""
        reports = write_reports(folder)
        if brief:
            self.line(f"{reports.headline}; reports in {shown(folder)}")
        else:
            reports.print(shown(folder), self._output.stream, environ=os.environ)
            for command in reports.commands(os.environ):
                self.line(command)
        if self._output.lost:
            messages.warn(f"standard output: {self._output.lost}; the run continued, see {shown(folder)}")
        # Last, so that a file that cannot be written hides no verdict.
        if not brief:
            reports.append_to_step_summary(os.environ)
            if folder.absolute().parent == find_runs_folder():
                try:
                    write_index(find_runs_folder(), make_reports, made={folder.name: reports})
                except UsageError as problem:
                    messages.note(problem.on_one_line)
        return reports.exit_code

    def to(self, stream: TextIO) -> ConsolePresenter:
        """The same on another stream."""
        return ConsolePresenter(stream)
