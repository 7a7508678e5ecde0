"""The task `golden.show`: every golden of a selection, with what was measured for it last."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Golden, Metric, Statistic
from iree_gauntlet.dialects.sharktank_schema import Benchmark
from iree_gauntlet.document import Cell, Column, Document, Kind, Table
from iree_gauntlet.engine.workspace import Selection, select
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError
from iree_gauntlet.figures import milliseconds, whole
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.goldens.golden_evidence import Standing, Verdict, golden_standings
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.requests import Defaults, SelectionRequest
from iree_gauntlet.settings import runs_folder
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.upkeep.upkeep_requests import GoldenShowRequest


_SCHEMA = 1
_UNITS = {Metric.TIME_MS: "ms", Metric.DISPATCH_COUNT: "dispatches", Metric.BINARY_SIZE_BYTES: "bytes"}
_RANKS = {"FACTOR": 2, "RATIO": 1}
_COLUMNS = (
    *(Column(title, Kind.NAME) for title in ("CASE", "METRIC", "FOR")),
    *(
        Column(title, Kind.NUMBER, rank=_RANKS.get(title, 0))
        for title in ("GOLDEN", "FACTOR", "LIMIT", "MEASURED", "RATIO")
    ),
    Column("VERDICT", Kind.VERDICT),
    Column("RUN"),
    Column("PLACE", Kind.NAME, rank=3),
)


def show(request: SelectionRequest, asked: GoldenShowRequest) -> ExitCode:
    """Prints the goldens of the selection, of all SKUs and releases unless `--sku` names one.

    Args:
        request: the selection.
        asked: with which runs, and in which form.

    Raises:
        UsageError: an option names what does not exist.
        NothingSelectedError: nothing matches, or what matches has no golden.
        GauntletError: a suite cannot be read.
    """
    selection = select(request, Defaults(targets=FAMILIES))
    for problem in selection.cases.problems:
        sys.stderr.write(f"{problem}\n")
    goldens = _goldens(selection, request)
    if not goldens and not selection.cases.problems:
        raise NothingSelectedError(
            f"the {len({case.chain for case in selection.cases.cases})} selected chains have no golden",
            "docs/how-to/goldens.md says how to set one.",
        )
    standings = golden_standings(goldens, list(_records(runs_folder(), asked.last)), runs_folder())
    if asked.as_json:
        document = {"schema": _SCHEMA, "goldens": [_record(item) for item in standings]}
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    elif standings:
        print_document(_document(standings), sys.stdout, environ=os.environ)
    return ExitCode.USAGE if selection.cases.problems else ExitCode.OK


def _goldens(selection: Selection, request: SelectionRequest) -> list[tuple[str, Golden]]:
    """Chain and golden, each once, in the selection's order; those of other SKUs too unless one was named."""
    selections = [selection]
    if not any(target.sku for target in selection.targets):
        skus = sorted(_skus(selection))
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


def _skus(selection: Selection) -> set[str]:
    """The SKUs that goldens of the selected specs are for."""
    files = {case.origin.file for case in selection.cases.cases}
    found = {key for case in selection.cases.cases for key in case.golden_keys}
    for spec in selection.specs:
        if spec.name in files and isinstance(spec.document, Benchmark):
            # A family's name is a SKU where a time is for it.
            found |= {*spec.document.golden_dispatch, *spec.document.golden_size} - {*FAMILIES}
    return found


def _records(folder: Path, last: int) -> Iterator[JournalRecord]:
    """Journals of the newest runs, the newest first; a session over several releases has one for each."""
    paths = [*folder.glob(f"*/{JOURNAL}"), *folder.glob(f"*/*/{JOURNAL}")]
    paths.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in paths[:last]:
        try:
            yield read_journal(path)
        except GauntletError as error:
            sys.stderr.write(f"warning: passed over: {error.what}\n")


def _record(standing: Standing) -> dict[str, Any]:
    golden = standing.golden
    return {
        "chain": standing.chain,
        "metric": golden.metric.value,
        "unit": _UNITS[golden.metric],
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


def _document(standings: Sequence[Standing]) -> Document:
    counts = Counter(item.verdict for item in standings)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])
    remarks = Counter(item.note for item in standings if item.note and item.run)
    return Document(
        "",
        f"{len(standings)} golden{'s' if len(standings) != 1 else ''}: {verdicts}",
        (),
        (Table(_COLUMNS, tuple(map(_row, standings))),),
        remarks=tuple(f"{count} of them: {remark}" for remark, count in remarks.items()),
    )


def _row(standing: Standing) -> tuple[Cell, ...]:
    """In the order of `_COLUMNS`."""
    golden = standing.golden
    timed = golden.metric is Metric.TIME_MS
    number = milliseconds if timed else whole
    statistic = "fastest" if golden.statistic is Statistic.MIN else "mean"
    return (
        standing.chain,
        f"{_UNITS[golden.metric]} ({statistic})" if timed else _UNITS[golden.metric],
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
