"""The reports of an explanation: one document on the terminal, as Markdown and as a page; JSON."""

from __future__ import annotations

import json
import math
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.document import (
    Block,
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
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import byte_size, duration, format_dispatch_change
from iree_gauntlet.records.explain_outcome import EXPLAIN_FOLDER, explain_outcome
from iree_gauntlet.records.run_folder import LATEST
from iree_gauntlet.reports.provenance import RecordOrigin, count_seconds_between, provenance
from iree_gauntlet.reports.report_files import Reports, make_pages

if TYPE_CHECKING:
    from iree_gauntlet.records.explain_outcome import (
        ExplainedCase,
        ExplainOutcome,
        FoundCulprit,
        FoundReduced,
        FoundSlower,
    )


_MEANINGS = {ExitCode.OK: "each failure has a bundle", ExitCode.INCONCLUSIVE: "not every failure has a bundle"}
_SIDES = ("target", "reference")
_PROBES = (Column("switch"), Column("flag", ColumnKind.NAME), Column("then it", ColumnKind.VERDICT))


def explain_reports(folder: Path) -> Reports:
    """The reports of the explanation in a folder.

    Raises:
        GauntletError: there is no record, or it cannot be read.
    """
    outcome = explain_outcome(folder)
    document = partial(_explain_document, outcome)
    files = {
        **make_pages("explain", lambda: document(None)),
        "explain.json": lambda: json.dumps(outcome.as_dict(), indent=2) + "\n",
    }
    return Reports(files, document, outcome.exit_code, outcome.answer)


def _explain_document(outcome: ExplainOutcome, folder: Path | None) -> Document:
    """What people read of it."""
    asked = outcome.asked
    # What was explained before is in no other report, but on a terminal nobody has asked for it.
    cases = {item.case: item for item in (*outcome.cases, *(() if folder else outcome.known.values()))}
    blocks = [block for case in cases.values() for block in _describe_case(case, folder)]
    details: tuple[Block, ...] = (
        Paragraph(("Again, in ", Name(asked.cwd), ":")),
        Code(_say_again(asked.command, outcome.run), "sh"),
    )
    iree = asked.toolchain["compiler"]
    facts = (f"IREE {iree}" + (f" against {asked.base['compiler']}" if asked.base else ""),)
    title = f"Explanation of {outcome.run}"
    return Document(
        title,
        outcome.answer,
        facts,
        tuple(blocks),
        details,
        outcome.exit_code,
        meaning=_MEANINGS.get(outcome.exit_code, ""),
        provenance=provenance(
            iree,
            RecordOrigin.from_dict(asked.as_dict()),
            ("explain.md", "explain.json"),
            count_seconds_between(asked.time, outcome.end.time if outcome.end else ""),
        ),
    )


def _say_again(command: str, run: str) -> str:
    """The command, of this run: the latest one may be another by then."""
    words = [run if word == LATEST else word for word in shlex.split(command)]
    if "explain" in words:
        place = words.index("explain") + 1
        place += words[place : place + 1] == ["--slower"]
        # Words that follow are of the run; where there are none, it was the latest one.
        if words[place : place + 1] == [] or words[place].startswith("-"):
            words.insert(place, run)
    return shlex.join(words)


def _describe_case(case: ExplainedCase, folder: Path | None) -> list[Block]:
    """What is said of a case."""
    blocks: list[Block] = [Heading(f"{case.case}: {case.asked.kind}"), Paragraph((case.asked.reason,))]
    found, bundle = case.found, case.found.bundle
    lines: list[str] = []
    if found.again is not None:
        how = "in the same way" if found.again.same else "in another way each time"
        lines.append(f"fails again {found.again.failed} of 2 times, {how}")
    lines += _say_where(case)
    lines += _describe_operator(found.operator)
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
    blocks += [*_show_errors(found.located), Items(tuple(items))]
    if probes:
        blocks.append(Table(_PROBES, tuple((item.name, item.flag, item.verdict) for item in probes)))
        reasons = tuple(f"{item.name}: {item.reason}" for item in probes if item.reason)
        blocks += [Notes(reasons)] if reasons else []
    if case.done:
        blocks.append(Paragraph((f"It took {duration(case.end.seconds)}.",)))
    return blocks


def _say_where(case: ExplainedCase) -> list[str]:
    """What is said of where it fails, or is slower."""
    found = case.found
    if found.reduced is not None:
        return _describe_reduced(found.reduced)
    if found.slower is not None:
        return _describe_slower(found.slower)
    if found.located.dispatch:
        return _describe_located(found.located)
    if case.events.keys() & {"located", "nothing", "same"}:
        return [found.located.why or case.answer]
    return []


def _show_errors(located: FoundCulprit) -> tuple[Block, ...]:
    """How the error grows along the dispatches around the one that is at fault; older records have not kept it."""
    around = located.around
    if not around:
        return ()
    place = [call for call, *_ in around].index(located.call)
    stops = tuple(
        Stop(
            name.rpartition("$")[2],
            "infinite" if error is None else f"{error:.2g}",
            "failed" if index == place else "",
            math.inf if error is None else error,
        )
        for index, (_, name, error) in enumerate(around)
    )
    text = f"Largest error of each dispatch, as a share of its largest value, against {located.reference}"
    between = (place - 1, place) if place else None
    return (OnPage((Paragraph((f"{text}:",)), Line(stops, text, between))),)


def _describe_located(located: FoundCulprit) -> list[str]:
    """What is said of a dispatch that is at fault."""
    where = f"{located.dispatch} (call {located.call} of {located.of})"
    takes = f"it takes {', '.join(located.inputs)}"
    if not located.reference:
        return [f"fails in {where}, and in that alone", takes]
    off = _format_error(located)
    found = f"first wrong dispatch: {where}, off {off} on inputs on which {located.reference} is right"
    lines = [found, f"{takes} and gives {', '.join(located.outputs)}"]
    if exact := located.in_f64:
        target, reference = ("infinitely" if off is None else f"by {off:.2g}" for off in map(exact.get, _SIDES))
        lines.append(f"held against the same in f64, it is off {target}, and {located.reference} {reference}")
    return lines


def _format_error(culprit: FoundCulprit) -> str:
    return f"by {culprit.error:.3g} of its largest value" if math.isfinite(culprit.error) else "infinitely"


def _describe_reduced(reduced: FoundReduced) -> list[str]:
    """What is said of a program that was made smaller."""
    if reduced.why:
        return [reduced.why]
    lines = [f"reduced from {reduced.change} in {reduced.tried} compiles: {', '.join(reduced.names)}"]
    lines += [f"it fails on the way to the phase {reduced.phase}"] if reduced.phase else []
    lines += [] if reduced.complete else ["the time was up before all was tried: --budget gives more"]
    return lines


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


def _describe_operator(found: FoundCulprit) -> list[str]:
    """What is said of an ONNX model's operators."""
    lines = [text for text in (found.why, found.note) if text]
    if found.operator:
        made = ", its large tensors with their first values over and over," if found.repeated else ""
        what = f"first wrong operator: {found.operator}, off {_format_error(found)}{made} on inputs on which"
        lines.append(f"{what} {found.reference} is right")
        lines.append(f"it takes {', '.join(found.inputs) or 'nothing'} and gives {', '.join(found.outputs)}")
    return lines
