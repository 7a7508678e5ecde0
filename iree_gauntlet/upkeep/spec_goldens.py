"""The tasks `golden.show` and `golden.update`: the goldens of specs, and what runs have measured for them.

Changes of files that people have written are shown as a diff, kept as one, or made.
"""

from __future__ import annotations

import difflib
import fnmatch
import io
import itertools
import json
import math
import os
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import messages
from iree_gauntlet.dialects.json_text import find_path, with_value, without_comments
from iree_gauntlet.dialects.sharktank_schema import Benchmark
from iree_gauntlet.dialects.spec_file import load_json, read_mark
from iree_gauntlet.document import Cell, Column, ColumnKind, Document, Table
from iree_gauntlet.engine.workspace import Selection, refuse_untrusted, select
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, Problem, SpecError, UsageError
from iree_gauntlet.figures import JUDGED_FIGURES, SHARKTANK_GOLDENS, Figure, GoldenRule, Statistic
from iree_gauntlet.formatting import counted
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal, read_kind
from iree_gauntlet.measuring.goldens.golden_evidence import (
    GoldenVerdict,
    Proposal,
    Standing,
    collect_evidence,
    judge_standings,
    propose,
)
from iree_gauntlet.records.run_folder import find_newest_run, list_runs_of_specs, run_named
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.requests import Defaults, SelectionRequest
from iree_gauntlet.settings import find_runs_folder, require_ones_own, resolve_links, shown
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.cases import Golden
    from iree_gauntlet.measuring.goldens.golden_evidence import GoldenEvidence
    from iree_gauntlet.upkeep.upkeep_requests import GoldenShowRequest, GoldenUpdateRequest


_SCHEMA = 1
_COLUMNS = (
    *(Column(title, ColumnKind.NAME) for title in ("CASE", "METRIC", "FOR")),
    Column("GOLDEN", ColumnKind.NUMBER),
    Column("FACTOR", ColumnKind.NUMBER, rank=3),
    Column("LIMIT", ColumnKind.NUMBER, rank=1),
    Column("MEASURED", ColumnKind.NUMBER),
    Column("RATIO", ColumnKind.NUMBER, rank=2),
    Column("VERDICT", ColumnKind.VERDICT),
    Column("RUN", ColumnKind.NAME, rank=4),
    Column("PLACE", ColumnKind.NAME, rank=5),
)
_COMPILER_FIELD = "golden_compiler"


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file as it is, and as it ought to be."""

    path: Path
    before: str
    after: str

    def diff(self) -> str:
        """In the form that `git apply` takes; empty where nothing changes."""
        name = shown(resolve_links(self.path)).as_posix() if self.path.is_absolute() else self.path.as_posix()
        # By \n alone: `splitlines` splits also where no other program does, such as at U+2028.
        before, after = (list(io.StringIO(text, newline="\n")) for text in (self.before, self.after))
        lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def hand_out(changes: Sequence[FileChange], output: str, *, write: bool) -> None:
    """Shows changes as a diff on standard output, keeps it, or makes them; words about it go to standard error."""
    changes = [change for change in changes if change.before != change.after]
    if not changes:
        sys.stderr.write("nothing to change\n")
        return
    patch = "".join(change.diff() for change in changes)
    if output:
        path = Path(output)
        if not path.parent.is_dir():
            raise UsageError(f"--output {path}: there is no folder {path.parent}", "Make it first.")
        write_atomic(path, patch.encode())
        sys.stderr.write(f"wrote {path}: apply it with `git apply {path}`\n")
    else:
        sys.stdout.write(patch)
    if write:
        for change in changes:
            require_ones_own(change.path)
        for change in changes:
            write_atomic(change.path, change.after.encode())
        sys.stderr.write(f"changed {counted(len(changes), 'file')}\n")
    elif not output:
        sys.stderr.write("nothing was written: --write changes the files, --output FILE keeps the diff for later\n")


def show(request: SelectionRequest, asked: GoldenShowRequest) -> ExitCode:
    """Prints the goldens of the selection, of all SKUs and releases unless `--sku` names one."""
    selection = select(request, Defaults(targets=FAMILIES))
    for problem in selection.cases.problems:
        sys.stderr.write(f"{problem}\n")
    goldens = _collect_goldens(selection, request)
    if not goldens and not selection.cases.problems:
        raise NothingSelectedError(
            f"{counted(len({case.chain for case in selection.cases.cases}), 'selected chain')}: no golden",
            "docs/how-to/goldens.md says how to set one.",
        )
    standings = judge_standings(goldens, list(_read_records(find_runs_folder(), asked.last)), find_runs_folder())
    if asked.as_json:
        document = {"schema": _SCHEMA, "goldens": list(map(_describe_standing, standings))}
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    elif standings:
        counts = Counter(item.verdict for item in standings)
        verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in GoldenVerdict if counts[verdict])
        notes = Counter(item.note for item in standings if item.note and item.run)
        remarks = tuple(f"{count} of them: {note}" for note, count in notes.items())
        table = Table(_COLUMNS, tuple(map(_make_row, standings)))
        title = f"{counted(len(standings), 'golden')}: {verdicts}"
        print_document(Document("", title, (), (table,), remarks=remarks), sys.stdout, environ=os.environ)
    return ExitCode.USAGE if selection.cases.problems else ExitCode.OK


def _collect_goldens(selection: Selection, request: SelectionRequest) -> list[tuple[str, Golden]]:
    """Chain and golden, each once, in the selection's order; those of other SKUs too unless one was named."""
    selections = [selection]
    if not any(target.sku for target in selection.targets):
        files = {case.origin.file for case in selection.cases.cases}
        skus = {key for case in selection.cases.cases for key in case.golden_keys}
        for spec in selection.specs:
            if spec.name in files and isinstance(spec.document, Benchmark):
                # A family's name is a SKU where a time is for it.
                document = spec.document
                skus |= set().union(*(getattr(document, field) for field in SHARKTANK_GOLDENS)) - {*FAMILIES}
        selections += [select(replace(request, sku=sku), Defaults(targets=FAMILIES)) for sku in sorted(skus)]
    found: dict[tuple[str, str, str], Golden] = {}
    for one in selections:
        for case in one.cases.cases:
            for golden in case.goldens:
                found.setdefault((case.chain, golden.origin.file, golden.origin.field), golden)
    order = {case.chain: place for place, case in reversed(list(enumerate(selection.cases.cases)))}
    metrics = list(Figure)
    keys = sorted(found, key=lambda key: (order.get(key[0], 0), key[1], metrics.index(found[key].metric), key[2]))
    return [(key[0], found[key]) for key in keys]


def _read_records(folder: Path, last: int) -> Iterator[JournalRecord]:
    """Journals of the newest runs, the newest first; a session over several releases has one for each."""
    paths = [*folder.glob(f"*/{JOURNAL}"), *folder.glob(f"*/*/{JOURNAL}")]
    paths.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    # An empty one, and one that cannot be read, may be a run.
    runs = (path for path in paths if (kind := read_kind(path)) is None or kind.is_run)
    for path in itertools.islice(runs, last):
        try:
            record = read_journal(path)
            _ = record.planned
        except GauntletError as error:
            messages.warn(f"passed over: {error.what}")
        else:
            yield record


def _describe_standing(standing: Standing) -> dict[str, Any]:
    golden = standing.golden
    return {
        "chain": standing.chain,
        "metric": golden.metric.value,
        "unit": golden.metric.row.unit,
        "statistic": golden.statistic.value if golden.field.rule is GoldenRule.TIMED else "",
        "sku": golden.sku,
        "release": golden.release,
        "golden": golden.value,
        "factor": golden.factor,
        "limit": golden.limit,
        "measured": standing.measured,
        "ratio": standing.ratio,
        "verdict": standing.verdict.value,
        "run": standing.run,
        "note": standing.note,
        "file": golden.origin.file,
        "field": golden.origin.field,
    }


def _make_row(standing: Standing) -> tuple[Cell, ...]:
    """In the order of `_COLUMNS`."""
    golden = standing.golden
    timed = golden.field.rule is GoldenRule.TIMED
    number = golden.metric.row.write
    statistic = "fastest" if golden.statistic is Statistic.MIN else "mean"
    return (
        standing.chain,
        f"{golden.field.name} ({statistic})" if timed else golden.field.name,
        " ".join(filter(None, (golden.sku, golden.release))) or "all",
        number(golden.value),
        f"{golden.factor:g}",
        number(golden.limit),
        None if standing.measured is None else number(standing.measured),
        None if standing.ratio is None else f"{standing.ratio:.2f}",
        standing.verdict.value,
        standing.run or standing.note,
        f"{golden.origin.file}: {golden.origin.field}",
    )


def update(request: SelectionRequest, asked: GoldenUpdateRequest) -> ExitCode:
    """Shows, and with `write` makes, the goldens that runs speak for."""
    refuse_untrusted(request)
    headroom = asked.size_headroom
    if headroom != 0 and not 1 <= headroom < math.inf:
        raise UsageError(f"--size-headroom {headroom:g}: expected a factor of 1 or more", "1.25 leaves a quarter.")
    if asked.run and asked.last != 1:
        raise UsageError("--run together with --last: which runs?", "Give one of the two.")
    runs = [run_named(text, "--run") for text in asked.run]
    if not runs:
        find_newest_run(find_runs_folder())
        # The oldest first.
        runs = [*itertools.islice(list_runs_of_specs(find_runs_folder()), asked.last)][::-1]
    records = [read_journal(run / JOURNAL) for run in runs]
    evidence = collect_evidence([record for record in records if record.runs])
    names = ", ".join(record.path.parent.name for record in records)
    today, broken = _as_written(evidence, request)
    wanted = {
        golden: items
        for golden, items in today.items()
        if not asked.match or fnmatch.fnmatch(items[0].chain, asked.match)
    }
    if broken and not wanted:
        raise SpecError(broken)
    for problem in broken:
        messages.warn(f"{problem}\n    The goldens of this file stay.")
    if not wanted:
        raise NothingSelectedError(
            f"no golden was measured in {names}{' that is asked for' if evidence else ''}",
            "A golden must stand in the spec to be updated (docs/how-to/goldens.md); times only with their --sku."
            " More runs: --last N, or --run.",
        )
    proposals: list[Proposal] = []
    for golden in sorted(wanted, key=lambda golden: (golden.origin.file, golden.origin.field)):
        outcome = propose(golden, wanted[golden], size_headroom=headroom or None, to_release=asked.to_release)
        where = f"{golden.origin.file}: {golden.origin.field}"
        if isinstance(outcome, str):
            sys.stderr.write(f"stays    {where} {_format_golden(golden, golden.value)}: {outcome}\n")
            continue
        verb = "tighten" if outcome.value < golden.value else "relax" if outcome.value > golden.value else "move"
        change = f" ({100 * (outcome.change - 1):+.1f} %)" if math.isfinite(outcome.change) else ""
        values = f"{_format_golden(golden, golden.value)} → {_format_golden(golden, outcome.value)}{change}"
        sys.stderr.write(f"{verb:<8} {where} {values}: {outcome.basis}\n")
        proposals.append(outcome)
    changes = [
        _change_file(file, [item for item in proposals if item.golden.origin.file == file])
        for file in dict.fromkeys(item.golden.origin.file for item in proposals)
    ]
    hand_out(changes, asked.output, write=asked.write)
    return ExitCode.USAGE if broken else ExitCode.OK


def _as_written(
    evidence: Mapping[Golden, list[GoldenEvidence]], request: SelectionRequest
) -> tuple[dict[Golden, list[GoldenEvidence]], list[Problem]]:
    """The figures by the goldens that stand in the specs today, which may have been edited since the runs.

    Also what is wrong with those of the specs whose goldens cannot be read.
    """
    everything = request == SelectionRequest()
    try:
        selection = select(request, Defaults(targets=FAMILIES))
    except (UsageError, NothingSelectedError):
        if not everything:
            raise
        return dict(evidence), []
    today = {(golden.origin.file, golden.origin.field): golden for _, golden in _collect_goldens(selection, request)}
    found: dict[Golden, list[GoldenEvidence]] = {}
    lost: set[str] = set()
    for golden, items in evidence.items():
        present = today.get((golden.origin.file, golden.origin.field), golden if everything else None)
        if present is not None:
            found.setdefault(present, []).extend(items)
        else:
            lost.add(golden.origin.file)
    cases = selection.cases
    problems = {item for item in (*cases.problems, *cases.left_out, *cases.broken) if item.file in lost}
    return found, sorted(problems)


def _change_file(file: str, proposals: Sequence[Proposal]) -> FileChange:
    path = Path(file)
    document, _, problems = load_json(path, file, without_comments)
    if document is None:
        raise GauntletError(f"{file}: {problems[0].message}", problems[0].hint or "The runs have named this spec.")
    after = text = path.read_bytes().decode("utf-8-sig")
    for proposal in proposals:
        golden, field = proposal.golden, proposal.golden.origin.field
        try:
            where = find_path(document, field)
            present: Any = document
            for part in where:
                present = present[part]
        except KeyError:
            present = None
        if present != golden.value:
            what = f"{file}: {field} is {present}, and was {_format_golden(golden, golden.value)} when it was measured"
            raise GauntletError(what, "Run again with the spec as it is now.")
        after = with_value(after, where, proposal.value)
    moved = {proposal.release for proposal in proposals if proposal.release}
    if moved and document.get(_COMPILER_FIELD) not in moved:
        _require_all_measured(file, document, proposals)
        after = with_value(after, (_COMPILER_FIELD,), moved.pop())
    mark = read_mark(path)
    return FileChange(path, mark + text, mark + after)


def _require_all_measured(file: str, document: Mapping[str, Any], proposals: Sequence[Proposal]) -> None:
    """A release is said once for all counts and sizes of a file: they move together or not at all."""
    fields = {name for figure in JUDGED_FIGURES for name in (figure.golden.sharktank, figure.golden.torch)}
    there = set()
    for name, value in document.items():
        if name in fields:
            there |= {f"{name}.{key}" for key in value} if isinstance(value, dict) else {name}
    left = sorted(there - {proposal.golden.origin.field for proposal in proposals})
    if left:
        what = f"{file}: {', '.join(left)} would come to belong to a release that has not measured it"
        raise GauntletError(what, "Measure it too and give both runs (--run A --run B), or remove it.")


def _format_golden(golden: Golden, value: float) -> str:
    """A count as what was measured is written; a time in the digits that the spec has."""
    return f"{value:.10g}" if golden.field.rule is GoldenRule.TIMED else golden.metric.row.write(value)
