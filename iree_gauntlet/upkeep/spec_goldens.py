"""The tasks `golden.show` and `golden.update`: the goldens of specs, and what runs have measured for them.

`golden.show` prints every golden of a selection; `golden.update` proposes new ones, as a diff of the spec files.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import math
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import messages
from iree_gauntlet.cases import Golden, Metric, Statistic
from iree_gauntlet.dialects.json_text import find_path, with_value, without_comments
from iree_gauntlet.dialects.sharktank_schema import Benchmark
from iree_gauntlet.dialects.spec_file import load_json
from iree_gauntlet.document import Cell, Column, ColumnKind, Document, Table
from iree_gauntlet.engine.workspace import Selection, select
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.figures import counted, milliseconds, whole
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.goldens.golden_evidence import (
    GoldenVerdict,
    Proposal,
    Standing,
    collect_evidence,
    judge_standings,
    propose,
)
from iree_gauntlet.records.earlier_runs import find_newest_run, run_named, runs_of_specs
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.requests import Defaults, SelectionRequest
from iree_gauntlet.settings import find_runs_folder
from iree_gauntlet.targets import FAMILIES
from iree_gauntlet.upkeep.proposed_changes import FileChange, hand_out

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.measuring.goldens.golden_evidence import GoldenEvidence
    from iree_gauntlet.upkeep.upkeep_requests import GoldenShowRequest, GoldenUpdateRequest


_SCHEMA = 1
_COLUMNS = (
    *(Column(title, ColumnKind.NAME) for title in ("CASE", "METRIC", "FOR")),
    Column("GOLDEN", ColumnKind.NUMBER),
    Column("FACTOR", ColumnKind.NUMBER, rank=2),
    *(Column(title, ColumnKind.NUMBER) for title in ("LIMIT", "MEASURED")),
    Column("RATIO", ColumnKind.NUMBER, rank=1),
    Column("VERDICT", ColumnKind.VERDICT),
    Column("RUN"),
    Column("PLACE", ColumnKind.NAME, rank=3),
)
_COMPILER_FIELD = "golden_compiler"


def show(request: SelectionRequest, asked: GoldenShowRequest) -> ExitCode:
    """Prints the goldens of the selection, of all SKUs and releases unless `--sku` names one.

    Raises:
        UsageError: an option names what does not exist.
        NothingSelectedError: nothing matches, or what matches has no golden.
        GauntletError: a suite cannot be read.
    """
    selection = select(request, Defaults(targets=FAMILIES))
    for problem in selection.cases.problems:
        sys.stderr.write(f"{problem}\n")
    goldens = _collect_goldens(selection, request)
    if not goldens and not selection.cases.problems:
        raise NothingSelectedError(
            f"the {len({case.chain for case in selection.cases.cases})} selected chains have no golden",
            "docs/how-to/goldens.md says how to set one.",
        )
    standings = judge_standings(goldens, list(_read_records(find_runs_folder(), asked.last)), find_runs_folder())
    if asked.as_json:
        document = {"schema": _SCHEMA, "goldens": [_record(item) for item in standings]}
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    elif standings:
        print_document(_make_document(standings), sys.stdout, environ=os.environ)
    return ExitCode.USAGE if selection.cases.problems else ExitCode.OK


def _collect_goldens(selection: Selection, request: SelectionRequest) -> list[tuple[str, Golden]]:
    """Chain and golden, each once, in the selection's order; those of other SKUs too unless one was named."""
    selections = [selection]
    if not any(target.sku for target in selection.targets):
        skus = sorted(_find_skus(selection))
        selections += [select(replace(request, sku=sku), Defaults(targets=FAMILIES)) for sku in skus]
    found: dict[tuple[str, str, str], Golden] = {}
    for one in selections:
        for case in one.cases.cases:
            for golden in case.goldens:
                found.setdefault((case.chain, golden.origin.file, golden.origin.field), golden)
    order = {case.chain: place for place, case in reversed(list(enumerate(selection.cases.cases)))}
    metrics = list(Metric)
    keys = sorted(found, key=lambda key: (order.get(key[0], 0), key[1], metrics.index(found[key].metric), key[2]))
    return [(key[0], found[key]) for key in keys]


def _find_skus(selection: Selection) -> set[str]:
    """The SKUs that goldens of the selected specs are for."""
    files = {case.origin.file for case in selection.cases.cases}
    found = {key for case in selection.cases.cases for key in case.golden_keys}
    for spec in selection.specs:
        if spec.name in files and isinstance(spec.document, Benchmark):
            # A family's name is a SKU where a time is for it.
            counts = (spec.document.golden_dispatch, spec.document.golden_size, spec.document.golden_instructions)
            found |= set().union(*counts) - {*FAMILIES}
    return found


def _read_records(folder: Path, last: int) -> Iterator[JournalRecord]:
    """Journals of the newest runs, the newest first; a session over several releases has one for each."""
    paths = [*folder.glob(f"*/{JOURNAL}"), *folder.glob(f"*/*/{JOURNAL}")]
    paths.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in paths[:last]:
        try:
            record = read_journal(path)
            # Its steps may be of another version.
            _ = record.planned
        except GauntletError as error:
            messages.warn(f"passed over: {error.what}")
        else:
            yield record


def _record(standing: Standing) -> dict[str, Any]:
    golden = standing.golden
    return {
        "chain": standing.chain,
        "metric": golden.metric.value,
        "unit": golden.metric.unit,
        "statistic": golden.statistic.value if golden.metric is Metric.TIME_MS else "",
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


def _make_document(standings: Sequence[Standing]) -> Document:
    counts = Counter(item.verdict for item in standings)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in GoldenVerdict if counts[verdict])
    remarks = Counter(item.note for item in standings if item.note and item.run)
    return Document(
        "",
        f"{counted(len(standings), 'golden')}: {verdicts}",
        (),
        (Table(_COLUMNS, tuple(map(_make_row, standings))),),
        remarks=tuple(f"{count} of them: {remark}" for remark, count in remarks.items()),
    )


def _make_row(standing: Standing) -> tuple[Cell, ...]:
    """In the order of `_COLUMNS`."""
    golden = standing.golden
    timed = golden.metric is Metric.TIME_MS
    number = milliseconds if timed else whole
    statistic = "fastest" if golden.statistic is Statistic.MIN else "mean"
    return (
        standing.chain,
        f"{golden.metric.unit} ({statistic})" if timed else golden.metric.unit,
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
    """Shows, and with `write` makes, the goldens that runs speak for.

    Raises:
        UsageError: there is no such run, or an option is out of range.
        NothingSelectedError: the runs hold nothing against goldens.
        GauntletError: a journal or a spec cannot be read, or a spec has changed since.
    """
    headroom = asked.size_headroom
    if headroom != 0 and not 1 <= headroom < math.inf:
        raise UsageError(f"--size-headroom {headroom:g}: expected a factor of 1 or more", "1.25 leaves a quarter.")
    records = [read_journal(run / JOURNAL) for run in _choose_runs(asked)]
    evidence = collect_evidence([record for record in records if record.runs])
    names = ", ".join(record.path.parent.name for record in records)
    wanted = {
        golden: items
        for golden, items in _as_written(evidence, request).items()
        if not asked.match or fnmatch.fnmatch(items[0].chain, asked.match)
    }
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
            sys.stderr.write(f"stays    {where} {_write_number(golden.value)}: {outcome}\n")
            continue
        verb = "tighten" if outcome.value < golden.value else "relax" if outcome.value > golden.value else "move"
        change = f" ({100 * (outcome.change - 1):+.1f} %)" if math.isfinite(outcome.change) else ""
        values = f"{_write_number(golden.value)} → {_write_number(outcome.value)}{change}"
        sys.stderr.write(f"{verb:<8} {where} {values}: {outcome.basis}\n")
        proposals.append(outcome)
    changes = [
        _change_file(file, [item for item in proposals if item.golden.origin.file == file])
        for file in dict.fromkeys(item.golden.origin.file for item in proposals)
    ]
    hand_out(changes, asked.output, write=asked.write)
    return ExitCode.OK


def _as_written(
    evidence: Mapping[Golden, list[GoldenEvidence]], request: SelectionRequest
) -> dict[Golden, list[GoldenEvidence]]:
    """The figures by the goldens that stand in the specs today, which may have been edited since the runs."""
    everything = request == SelectionRequest()
    try:
        selection = select(request, Defaults(targets=FAMILIES))
    except (UsageError, NothingSelectedError):
        if not everything:
            raise
        return dict(evidence)
    today = {(golden.origin.file, golden.origin.field): golden for _, golden in _collect_goldens(selection, request)}
    found: dict[Golden, list[GoldenEvidence]] = {}
    for golden, items in evidence.items():
        present = today.get((golden.origin.file, golden.origin.field), golden if everything else None)
        if present is not None:
            found.setdefault(present, []).extend(items)
    return found


def _choose_runs(asked: GoldenUpdateRequest) -> list[Path]:
    """Folders of the runs that are asked, the oldest first."""
    if asked.run and asked.last != 1:
        raise UsageError("--run together with --last: which runs?", "Give one of the two.")
    if asked.run:
        return [run_named(text, "--run") for text in asked.run]
    find_newest_run(find_runs_folder())
    return [*itertools.islice(runs_of_specs(find_runs_folder()), asked.last)][::-1]


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
            what = f"{file}: {field} is {present}, and was {_write_number(golden.value)} when it was measured"
            raise GauntletError(what, "Run again with the spec as it is now.")
        after = with_value(after, where, proposal.value)
    moved = {proposal.release for proposal in proposals if proposal.release}
    if moved and document.get(_COMPILER_FIELD) not in moved:
        _require_all_measured(file, document, proposals)
        after = with_value(after, (_COMPILER_FIELD,), moved.pop())
    return FileChange(path, text, after)


def _require_all_measured(file: str, document: Mapping[str, Any], proposals: Sequence[Proposal]) -> None:
    """A release is said once for all counts and sizes of a file: they move together or not at all."""
    there = set()
    for name, value in document.items():
        if name.startswith(("golden_dispatch", "golden_size", "golden_binary", "golden_instructions")):
            there |= {f"{name}.{key}" for key in value} if isinstance(value, dict) else {name}
    left = sorted(there - {proposal.golden.origin.field for proposal in proposals})
    if left:
        what = f"{file}: {', '.join(left)} would come to belong to a release that has not measured it"
        raise GauntletError(what, "Measure it too and give both runs (--run A --run B), or remove it.")


def _write_number(value: float) -> str:
    return json.dumps(int(value) if value == int(value) else value)
