"""The tasks `golden.show` and `golden.update`: the goldens of specs, and the figures that runs have measured for them.

Changes of hand-written files are printed as a diff, saved as one, or applied.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
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
from iree_gauntlet.dialects.spec_file import load_json, read_byte_order_mark
from iree_gauntlet.document import Cell, Column, ColumnKind, Document, Table
from iree_gauntlet.engine.workspace import Selection, refuse_untrusted, select
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, Problem, SpecError, UsageError
from iree_gauntlet.figures import GOLDEN_FIGURES, SHARKTANK_GOLDENS, Figure, GoldenRule, Statistic
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal, read_kind
from iree_gauntlet.measuring.goldens.golden_evidence import (
    GoldenStatus,
    GoldenVerdict,
    Proposal,
    collect_evidence,
    judge_goldens,
    propose_golden,
)
from iree_gauntlet.records.run_folder import find_named_run, find_newest_run, list_runs_of_specs
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.requests import Defaults, SelectionRequest
from iree_gauntlet.settings import find_runs_folder, format_path, require_users_own_file, resolve_links
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.cases import Golden
    from iree_gauntlet.measuring.goldens.golden_evidence import GoldenEvidence
    from iree_gauntlet.upkeep.upkeep_requests import GoldenShowRequest, GoldenUpdateRequest


_SCHEMA = 1
_COLUMNS = (
    *(Column(title, ColumnKind.NAME) for title in ("CASE", "METRIC", "FOR")),
    Column("GOLDEN", ColumnKind.NUMBER),
    Column("FACTOR", ColumnKind.NUMBER, drop_order=3),
    Column("LIMIT", ColumnKind.NUMBER, drop_order=1),
    Column("MEASURED", ColumnKind.NUMBER),
    Column("RATIO", ColumnKind.NUMBER, drop_order=2),
    Column("VERDICT", ColumnKind.VERDICT),
    Column("RUN", ColumnKind.NAME, drop_order=4),
    Column("PLACE", ColumnKind.NAME, drop_order=5),
)
_COMPILER_FIELD = "golden_compiler"


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file's text before and after a change."""

    path: Path
    old_text: str
    new_text: str

    def diff(self) -> str:
        """Return the diff in the form that `git apply` takes; empty without changes."""
        name = format_path(resolve_links(self.path)).as_posix() if self.path.is_absolute() else self.path.as_posix()
        # Split only at \n: `splitlines` also splits at characters where other programs do not, such as U+2028.
        old_lines, new_lines = (list(io.StringIO(text, newline="\n")) for text in (self.old_text, self.new_text))
        lines = difflib.unified_diff(old_lines, new_lines, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def emit_changes(changes: Sequence[FileChange], output: str, *, write: bool) -> None:
    """Print changes as a diff on standard output, save the diff, or apply it; messages go to standard error."""
    changes = [change for change in changes if change.old_text != change.new_text]
    if not changes:
        sys.stderr.write("nothing to change\n")
        return
    patch = "".join(change.diff() for change in changes)
    if output:
        path = Path(output)
        if not path.parent.is_dir():
            raise UsageError(f"--output {path}: no folder {path.parent}", "Make it first.")
        write_atomic(path, patch.encode())
        sys.stderr.write(f"wrote {path}: apply it with `git apply {path}`\n")
    else:
        sys.stdout.write(patch)
    if write:
        for change in changes:
            require_users_own_file(change.path)
        for change in changes:
            write_atomic(change.path, change.new_text.encode())
        sys.stderr.write(f"changed {pluralize(len(changes), 'file')}\n")
    elif not output:
        sys.stderr.write("nothing was written: --write changes the files, --output FILE keeps the diff for later\n")


def show(request: SelectionRequest, options: GoldenShowRequest) -> ExitCode:
    """Print the goldens of the selection, of all SKUs and releases unless `--sku` names one."""
    selection = select(request, Defaults(targets=FAMILIES))
    for problem in selection.cases.problems:
        sys.stderr.write(f"{problem}\n")
    goldens = collect_goldens(selection, request)
    if not goldens and not selection.cases.problems:
        raise NothingSelectedError(
            f"{pluralize(len({case.chain for case in selection.cases.cases}), 'selected chain')}: no golden",
            "docs/how-to/goldens.md describes how to set one.",
        )
    statuses = judge_goldens(goldens, list(_read_records(find_runs_folder(), options.last)), find_runs_folder())
    if options.as_json:
        document = {"schema": _SCHEMA, "goldens": list(map(_describe_status, statuses))}
        sys.stdout.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    elif statuses:
        counts = Counter(status.verdict for status in statuses)
        verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in GoldenVerdict if counts[verdict])
        notes = Counter(status.note for status in statuses if status.note and status.run)
        remarks = tuple(f"{count} of them: {note}" for note, count in notes.items())
        table = Table(_COLUMNS, tuple(map(_make_row, statuses)))
        title = f"{pluralize(len(statuses), 'golden')}: {verdicts}"
        print_document(Document("", title, (), (table,), remarks=remarks), sys.stdout, environ=os.environ)
    return ExitCode.USAGE if selection.cases.problems else ExitCode.OK


def collect_goldens(selection: Selection, request: SelectionRequest) -> list[tuple[str, Golden]]:
    """Collect distinct pairs of chain and golden, in the selection's order, for the selected SKU or all SKUs."""
    selections = [selection]
    if not any(target.sku for target in selection.targets):
        files = {case.origin.file for case in selection.cases.cases}
        skus = {key for case in selection.cases.cases for key in case.golden_keys}
        for spec in selection.specs:
            if spec.name in files and isinstance(spec.document, Benchmark):
                # A golden time may have a family's name in place of a SKU.
                document = spec.document
                skus |= set().union(*(getattr(document, field) for field in SHARKTANK_GOLDENS)) - {*FAMILIES}
        selections += [select(replace(request, sku=sku), Defaults(targets=FAMILIES)) for sku in sorted(skus)]
    goldens: dict[tuple[str, str, str], Golden] = {}
    for sku_selection in selections:
        for case in sku_selection.cases.cases:
            for golden in (*case.goldens, *(golden for _, group in case.variant_goldens for golden in group)):
                goldens.setdefault((case.chain, golden.origin.file, golden.origin.field), golden)
    order = {case.chain: index for index, case in reversed(list(enumerate(selection.cases.cases)))}
    metrics = list(Figure)
    keys = sorted(goldens, key=lambda key: (order.get(key[0], 0), key[1], metrics.index(goldens[key].metric), key[2]))
    return [(key[0], goldens[key]) for key in keys]


def _read_records(folder: Path, last: int) -> Iterator[JournalRecord]:
    """Read the `last` newest journals of runs, newest first; each IREE of a matrix has its own, and counts as a run."""
    paths = [*folder.glob(f"*/{JOURNAL}"), *folder.glob(f"*/*/{JOURNAL}")]
    paths.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    # An empty or unreadable journal may belong to a run, so it counts as one.
    runs = (path for path in paths if (kind := read_kind(path)) is None or kind.is_run)
    for path in itertools.islice(runs, last):
        try:
            record = read_journal(path)
            _ = record.planned  # parses the steps now, so that an error passes over this journal
        except GauntletError as error:
            messages.warn(f"passed over: {error.message}")
        else:
            yield record


def _describe_status(status: GoldenStatus) -> dict[str, Any]:
    golden = status.golden
    return {
        "chain": status.chain,
        "metric": golden.metric.value,
        "unit": golden.metric.row.unit,
        "statistic": golden.statistic.value if golden.field.rule is GoldenRule.TIMED else "",
        "sku": golden.sku,
        "release": golden.release,
        "variant": golden.variant,
        "golden": golden.value,
        "factor": golden.factor,
        "limit": golden.limit,
        "measured": status.measured,
        "ratio": status.ratio,
        "verdict": status.verdict.value,
        "run": status.run,
        "note": status.note,
        "file": golden.origin.file,
        "field": golden.origin.field,
    }


def _make_row(status: GoldenStatus) -> tuple[Cell, ...]:
    """Make a row in the order of `_COLUMNS`."""
    golden = status.golden
    has_statistic = golden.field.rule is GoldenRule.TIMED
    format_number = golden.metric.row.write
    statistic = "fastest" if golden.statistic is Statistic.MIN else "mean"
    return (
        status.chain,
        f"{golden.field.name} ({statistic})" if has_statistic else golden.field.name,
        " ".join(filter(None, (golden.sku, golden.release, golden.variant))) or "all",
        format_number(golden.value),
        f"{golden.factor:g}",
        format_number(golden.limit),
        None if status.measured is None else format_number(status.measured),
        None if status.ratio is None else f"{status.ratio:.2f}",
        status.verdict.value,
        status.run or status.note,
        f"{golden.origin.file}: {golden.origin.field}",
    )


def update(request: SelectionRequest, options: GoldenUpdateRequest) -> ExitCode:
    """Print, and with `write` apply, the goldens that runs support."""
    refuse_untrusted(request)
    headroom = options.size_headroom
    if headroom != 0 and not 1 <= headroom < math.inf:
        raise UsageError(
            f"--size-headroom {headroom:g}: expected a factor of 1 or more", "1.25 leaves room for a quarter more."
        )
    if options.run and options.last != 1:
        raise UsageError("--run and --last cannot be combined", "Give one of the two.")
    runs = [find_named_run(text, "--run") for text in options.run]
    if not runs:
        find_newest_run(find_runs_folder())
        # The runs are in order of age, the oldest first.
        runs = [*itertools.islice(list_runs_of_specs(find_runs_folder()), options.last)][::-1]
    records = [read_journal(run / JOURNAL) for run in runs]
    evidence = collect_evidence([record for record in records if record.runs])
    run_names = ", ".join(record.path.parent.name for record in records)
    current_evidence, problems = _match_current_goldens(evidence, request)
    matches = {
        golden: samples
        for golden, samples in current_evidence.items()
        if not options.match or fnmatch.fnmatch(samples[0].chain, options.match)
    }
    if problems and not matches:
        raise SpecError(problems)
    for problem in problems:
        messages.warn(f"{problem}\n    The goldens of this file were not changed.")
    if not matches:
        raise NothingSelectedError(
            f"no golden {'that was asked for ' if evidence else ''}was measured in {run_names}",
            "Only goldens in specs are updated (docs/how-to/goldens.md); times are measured only with their --sku."
            " More runs: --last N, or --run.",
        )
    goldens = sorted(matches, key=lambda golden: (golden.origin.file, golden.origin.field))
    propose = functools.partial(propose_golden, size_headroom=headroom or None, relabel=options.to_release)
    emit_proposals([(golden, propose(golden, matches[golden])) for golden in goldens], options)
    return ExitCode.USAGE if problems else ExitCode.OK


def emit_proposals(outcomes: Iterable[tuple[Golden, Proposal | str]], options: GoldenUpdateRequest) -> None:
    """Print what becomes of each golden, a proposal or the reason why it stays, and emit the changes of the files."""
    proposals: list[Proposal] = []
    for golden, outcome in outcomes:
        location = f"{golden.origin.file}: {golden.origin.field}"
        if isinstance(outcome, str):
            sys.stderr.write(f"stays    {location} {_format_golden(golden, golden.value)}: {outcome}\n")
            continue
        verb = "tighten" if outcome.value < golden.value else "relax" if outcome.value > golden.value else "move"
        change = f" ({100 * (outcome.change - 1):+.1f} %)" if math.isfinite(outcome.change) else ""
        values = f"{_format_golden(golden, golden.value)} → {_format_golden(golden, outcome.value)}{change}"
        sys.stderr.write(f"{verb:<8} {location} {values}: {outcome.basis}\n")
        proposals.append(outcome)
    changes = [
        _change_file(file, [proposal for proposal in proposals if proposal.golden.origin.file == file])
        for file in dict.fromkeys(proposal.golden.origin.file for proposal in proposals)
    ]
    emit_changes(changes, options.output, write=options.write)


def _match_current_goldens(
    evidence: Mapping[Golden, list[GoldenEvidence]], request: SelectionRequest
) -> tuple[dict[Golden, list[GoldenEvidence]], list[Problem]]:
    """Assign the evidence to the goldens of the current specs, which may have been edited since the runs.

    Also return the problems of the specs whose goldens cannot be read.
    """
    selects_all = request == SelectionRequest()
    try:
        selection = select(request, Defaults(targets=FAMILIES))
    except (UsageError, NothingSelectedError):
        if not selects_all:
            raise
        return dict(evidence), []
    goldens = {(golden.origin.file, golden.origin.field): golden for _, golden in collect_goldens(selection, request)}
    current_evidence: dict[Golden, list[GoldenEvidence]] = {}
    files: set[str] = set()
    for golden, samples in evidence.items():
        current_golden = goldens.get((golden.origin.file, golden.origin.field), golden if selects_all else None)
        if current_golden is not None:
            current_evidence.setdefault(current_golden, []).extend(samples)
        else:
            files.add(golden.origin.file)
    cases = selection.cases
    problems = {
        problem
        for problem in (*cases.problems, *cases.unselected_problems, *cases.operator_case_problems)
        if problem.file in files
    }
    return current_evidence, sorted(problems)


def _change_file(file: str, proposals: Sequence[Proposal]) -> FileChange:
    path = Path(file)
    document, _, problems = load_json(path, file, without_comments)
    if document is None:
        raise GauntletError(f"{file}: {problems[0].message}", problems[0].hint or "The runs used this spec.")
    new_text = text = path.read_bytes().decode("utf-8-sig")
    for proposal in proposals:
        golden, field = proposal.golden, proposal.golden.origin.field
        try:
            value_path = find_path(document, field)
            value: Any = document
            for key in value_path:
                value = value[key]
        except KeyError:
            value = None
        if value != golden.value:
            message = f"{file}: {field} is {value}, but was {_format_golden(golden, golden.value)} when it was measured"
            raise GauntletError(message, "Run again with the current spec.")
        new_text = with_value(new_text, value_path, proposal.value)
    releases = {proposal.release for proposal in proposals if proposal.release}
    if releases and document.get(_COMPILER_FIELD) not in releases:
        _require_all_measured(file, document, proposals)
        new_text = with_value(new_text, (_COMPILER_FIELD,), releases.pop())
    byte_order_mark = read_byte_order_mark(path)
    return FileChange(path, byte_order_mark + text, byte_order_mark + new_text)


def _require_all_measured(file: str, document: Mapping[str, Any], proposals: Sequence[Proposal]) -> None:
    """Require that either all counts and sizes of a file change, or none: they share one release."""
    fields = {name for figure in GOLDEN_FIGURES for name in (figure.golden.sharktank, figure.golden.torch)}
    written_fields = set()
    tables = {"": document, **{f"variants.{name}.": table for name, table in document.get("variants", {}).items()}}
    for prefix, table in tables.items():
        for name, value in table.items():
            if name in fields:
                written_fields |= {f"{prefix}{name}.{key}" for key in value} if isinstance(value, dict) else {name}
    unmeasured_fields = sorted(written_fields - {proposal.golden.origin.field for proposal in proposals})
    if unmeasured_fields:
        message = f"{file}: {', '.join(unmeasured_fields)} would be labelled with a release, but not measured with it"
        raise GauntletError(message, "Measure these fields too and give both runs (--run A --run B), or remove them.")


def _format_golden(golden: Golden, value: float) -> str:
    """Format a count like a measurement, and a time with the digits of the spec."""
    return f"{value:.10g}" if golden.field.rule is GoldenRule.TIMED else golden.metric.row.write(value)
