"""Tasks on goldens of specs and the figures that runs measured for them: `golden.show`, `golden.set`, `golden.update`.

Changes of hand-written files are printed as a diff, saved as one, or applied.
"""

from __future__ import annotations

import difflib
import fnmatch
import io
import itertools
import json
import math
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import messages
from iree_gauntlet.cases import Golden, Origin
from iree_gauntlet.device_kinds import CPU
from iree_gauntlet.dialects.json_text import find_path, without_comments
from iree_gauntlet.dialects.sharktank_schema import Benchmark, Goldens
from iree_gauntlet.dialects.spec import BENCHMARK, REGRESSION, TORCH_MODELS
from iree_gauntlet.dialects.spec_file import load_json, read_byte_order_mark
from iree_gauntlet.document import Cell, Document, Table
from iree_gauntlet.engine.workspace import Selection, explain_unused_sku, list_golden_skus, refuse_untrusted, select
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, Problem, SpecError, UsageError
from iree_gauntlet.figures import GOLDEN_FIGURES, SHARKTANK_GOLDENS, Figure, GoldenRule, Statistic
from iree_gauntlet.formatting import Column, ColumnKind, list_first, pluralize
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal, read_kind
from iree_gauntlet.measuring.goldens.golden_evidence import (
    UNSET,
    GoldenStatus,
    GoldenVerdict,
    Proposal,
    collect_evidence,
    collect_first_evidence,
    judge_goldens,
    propose_golden,
)
from iree_gauntlet.measuring.goldens.goldens import parse_release
from iree_gauntlet.records.run_folder import find_named_run, find_newest_run, list_runs_of_specs
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.requests import Defaults, SelectionRequest
from iree_gauntlet.settings import find_runs_folder, format_path, require_users_own_file, resolve_links
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.targets import FAMILIES, parse_target
from iree_gauntlet.upkeep.json_edits import with_added_value, with_value
from iree_gauntlet.variants import name_variants, sort_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.measuring.goldens.golden_evidence import GoldenEvidence
    from iree_gauntlet.stages import Stage
    from iree_gauntlet.steps import Step
    from iree_gauntlet.targets import Target
    from iree_gauntlet.upkeep.upkeep_requests import GoldenSetRequest, GoldenShowRequest, GoldenUpdateRequest


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
_SET_COLUMNS = (
    Column("SPEC", ColumnKind.NAME),
    Column("GOLDEN", ColumnKind.NAME),
    Column("WAS", ColumnKind.NUMBER, drop_order=1),
    Column("VALUE", ColumnKind.NUMBER),
    Column("MEASURED", ColumnKind.NAME, drop_order=2),
)
_COMPILER_FIELD = "golden_compiler"
_GOLDEN_FIELD = re.compile(r"(?:variants\.(.+)\.)?(golden_\w+)\.(.*)")
# The reasons why the specs of these dialects, and of operator suites, get no golden.
_NO_GOLDENS = {
    REGRESSION: "it has no benchmark spec, which would have its goldens",
    TORCH_MODELS: "it is a test of a torch model, in whose file goldens are written by hand",
}
_NO_SUITE_GOLDENS = "it is in an operator suite, whose golden times are written by hand, in a config"
_MAX_PLACES = 3
_UNKNOWN = "unknown"
# The goldens of a variant that a spec does not have yet.
_NO_VARIANT = Goldens.model_validate({})


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
    _warn_of_unused_sku(selection, request)
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


def _warn_of_unused_sku(selection: Selection, request: SelectionRequest) -> None:
    if warning := explain_unused_sku(selection.cases.cases, request.sku):
        messages.warn(warning)


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


def set_first(request: SelectionRequest, options: GoldenSetRequest) -> ExitCode:
    """Print, and with `write` add, the goldens that specs lack, as runs have measured their figures."""
    require_time_tolerance(options)
    if options.to_release and not options.update:
        raise UsageError("--to-release moves goldens that are there", "Give --update too.")
    records = [record for record in _read_runs(request, options) if record.runs]
    selection = select(request, Defaults(targets=FAMILIES))
    evidence, obstacles = _collect_first_evidence(selection, records, request)
    if options.update:
        # A golden that was removed after the run is a first golden again.
        missing = {golden.origin for golden in evidence}
        current_evidence, _ = _match_current_goldens(collect_evidence(records), request)
        evidence |= {golden: samples for golden, samples in current_evidence.items() if golden.origin not in missing}
    proposals: list[Proposal] = []
    # The goldens of a file are in the order of the figures, with times last.
    for golden in sorted(
        evidence, key=lambda it: (it.origin.file, it.metric is Figure.TIME, [*Figure].index(it.metric))
    ):
        if not _is_match(evidence[golden][0].chain, options):
            continue
        outcome = _explain_refusal(golden, request.sku) or _propose(golden, evidence[golden], options)
        if isinstance(outcome, str):
            verb = "not set" if golden.value == UNSET else "stays"
            obstacles.append((verb, outcome, f"{golden.origin.file}: {golden.origin.field.rstrip('.')}"))
        else:
            proposals.append(outcome)
    steps = [step for record in records for step in record.planned]
    if not (evidence or obstacles or any(step.dialect == BENCHMARK for step in steps)):
        raise NothingSelectedError(
            f"no figure of a benchmark spec was measured in {_name_runs(records)}",
            "`gauntlet run` measures those of the default stages. More runs: --last N, or --run.",
        )
    files = {step.origin.file for step in steps}
    cases = selection.cases
    for sku in sorted({step.sku for step in steps}) if list_golden_skus(cases.cases) else ():
        # The first golden of another machine, or of a mistyped name.
        if warning := explain_unused_sku(cases.cases, sku):
            messages.warn(warning)
    problems = sorted({*cases.problems, *(item for item in cases.unselected_problems if item.file in files)})
    for problem in problems:
        messages.warn(f"{problem}\n    The goldens of this file were not changed.")
    emit_first(proposals, obstacles, options)
    return ExitCode.USAGE if problems else ExitCode.OK


def _collect_first_evidence(
    selection: Selection, records: Sequence[JournalRecord], request: SelectionRequest
) -> tuple[dict[Golden, list[GoldenEvidence]], list[tuple[str, str, str]]]:
    """Return the evidence for the goldens that selected specs lack, and the obstacles: verb, reason and place."""
    specs = {spec.name: spec for spec in selection.specs if isinstance(spec.document, Benchmark)}
    selected = {(case.origin.file, case.target.family) for case in selection.cases.cases}

    def list_goldens(record: JournalRecord, step: Step) -> Iterator[Golden]:
        target, file = parse_target(step.target), step.origin.file
        if target and file in specs and (file, target.family) in selected and _is_requested(step, selection, request):
            variant = name_variants(record.run.variants) if step.origin.variant else ""
            release = parse_release(records[-1].run.toolchain.compiler) or _UNKNOWN
            target = replace(target, sku=step.sku)
            yield from list_missing_goldens(specs[file], step.stage, target, variant, release)

    evidence = collect_first_evidence(records, list_goldens)
    missing_specs = _explain_missing_specs(selection, records, request)
    pairs = (*missing_specs, *_explain_unmeasured(records, list_goldens, evidence))
    return evidence, [("not set", reason, place) for place, reason in pairs]


def emit_first(
    proposals: Sequence[Proposal], obstacles: Iterable[tuple[str, str, str]], options: GoldenSetRequest
) -> None:
    """Print a line for each reason why goldens are not written and a table of the other ones; emit the changes.

    An obstacle is a verb (`not set`), a reason and a place.
    """
    places: dict[tuple[str, str], dict[str, None]] = {}
    for verb, reason, place in obstacles:
        places.setdefault((verb, reason), {})[place] = None
    for (verb, reason), names in places.items():
        sys.stderr.write(f"{verb:<8} {list_first(list(names), _MAX_PLACES)}: {reason}\n")
    if proposals:
        files = {proposal.golden.origin.file for proposal in proposals}
        title = f"{pluralize(len(proposals), 'golden')} in {pluralize(len(files), 'file')}"
        rows = tuple(
            (
                *(golden.origin.file, golden.origin.field),
                None if golden.value == UNSET else _format_golden(golden, golden.value),
                *(_format_golden(golden, proposal.value), proposal.basis),
            )
            for proposal, golden in ((proposal, proposal.golden) for proposal in proposals)
        )
        print_document(Document("", title, (), (Table(_SET_COLUMNS, rows),)), sys.stderr, environ=os.environ)
    emit_changes(_change_files(proposals, options.time_tolerance), options.output, write=options.write)


def _name_runs(records: Iterable[JournalRecord]) -> str:
    return ", ".join(record.path.parent.name for record in records)


def list_missing_goldens(spec: Spec, stage: Stage, target: Target, variant: str, release: str) -> Iterator[Golden]:
    """Yield a golden without a value for each figure of a stage that has none in the spec.

    The golden of a time belongs to the target's SKU, the other ones to its chip or family.
    """
    document = spec.document
    if not isinstance(document, Benchmark):
        return
    name = next((key for key in document.variants if sort_names(key) == variant), variant)
    table: Goldens = document.variants.get(name, _NO_VARIANT) if variant else document
    path = f"variants.{name}." if variant else ""
    prefix = "" if target.family in spec.families else f"{target.family}-"
    sku = f"{prefix}{target.sku}" if target.sku else ""
    count_key = target.golden_names[0]
    tables = (document, *document.variants.values())
    # Without `golden_compiler`, the goldens that are there are for every release, and so are those beside them.
    if not document.golden_compiler and any(getattr(item, field) for item in tables for field in SHARKTANK_GOLDENS):
        release = ""
    for figure in GOLDEN_FIGURES:
        is_time = figure is Figure.TIME
        time_field = "golden_time" if getattr(table, "golden_time", None) else "golden_time_ms"
        field = time_field if is_time else figure.golden.sharktank
        if figure.golden.stage is not stage or not field:
            continue
        keys = {sku} if is_time else {sku, *target.golden_names}
        if keys.isdisjoint(getattr(table, field)):
            yield Golden(
                metric=figure,
                value=UNSET,
                factor=table.golden_time_tolerance_multiplier.get(sku, 1.0) if is_time else 1.0,
                statistic=Statistic.MEAN,
                sku=target.sku if is_time else count_key,
                release="" if is_time else document.golden_compiler or release,
                origin=Origin(spec.name, f"{path}{field}.{sku if is_time else count_key}"),
                variant=variant,
            )


def _explain_missing_specs(
    selection: Selection, records: Sequence[JournalRecord], request: SelectionRequest
) -> Iterator[tuple[str, str]]:
    """Yield what was run and has no place for goldens, and what was not run, each with the reason."""
    steps = [step for record in records for step in record.planned]
    cases = selection.cases.cases
    names = {(case.model, case.submodel) for case in cases}
    measurable = {(case.model, case.submodel) for case in cases if case.dialect == BENCHMARK}
    files = {spec.name for spec in selection.specs}
    chains = {step.chain for step in steps if step.dialect == BENCHMARK}
    for step in steps:
        if request != SelectionRequest() and (step.model, step.submodel) not in names:
            continue
        has_spec = step.dialect == REGRESSION and (step.model, step.submodel) in measurable
        if step.chain not in chains and not has_spec:
            yield step.chain, _NO_GOLDENS.get(step.dialect, _NO_SUITE_GOLDENS)
        if step.dialect == BENCHMARK and step.origin.file not in files:
            yield step.origin.file, "it is not among the specs (--spec-dir FOLDER reads others)"
    run_files = {step.origin.file for step in steps if _is_requested(step, selection, request)}
    for case in cases if request != SelectionRequest() else ():
        if case.dialect == BENCHMARK and case.origin.file not in run_files:
            yield case.origin.file, f"no figure of it is in {_name_runs(records)}"


def _is_requested(step: Step, selection: Selection, request: SelectionRequest) -> bool:
    """Return whether a step is for a requested target; if none is requested, all are."""
    target = parse_target(step.target)
    covers_target = target is not None and any(requested.covers(target) for requested in selection.targets)
    return covers_target or not (request.target or request.backend or request.suite)


def _explain_unmeasured(
    records: Sequence[JournalRecord],
    list_goldens: Callable[[JournalRecord, Step], Iterator[Golden]],
    evidence: Mapping[Golden, Sequence[GoldenEvidence]],
) -> Iterator[tuple[str, str]]:
    """Yield the spec of each step that lacks goldens and gave no figure, and what did not pass before it."""
    measured = {(sample.chain, golden.field.stage) for golden in evidence for sample in evidence[golden]}
    for record in records:
        for step in record.planned:
            result = record.results.get(step.id)
            is_done = step.skip or (result is not None and result.verdict.counts_as_pass)
            if is_done or (step.chain, step.stage) in measured or not any(list_goldens(record, step)):
                continue
            for other in (other for other in record.planned if other.chain == step.chain):
                result = record.results.get(other.id)
                if result is None or not result.verdict.counts_as_pass:
                    verdict = result.verdict if result else "unfinished"
                    yield step.origin.file, f"{record.path.parent.name}: its {other.stage} {verdict}"
                    break


def _explain_refusal(golden: Golden, sku: str) -> str:
    """Return the reason why a figure is never the first golden; empty for most figures."""
    if golden.value != UNSET:
        return ""
    if golden.metric is Figure.CODE_SIZE and golden.origin.field.endswith(f".{CPU.family}"):
        return "this machine's CPU decides the code, so another machine would break such a golden"
    if golden.field.rule is not GoldenRule.TIMED:
        return "the release of its compiler is unknown" if golden.release == _UNKNOWN else ""
    if golden.sku and sku in ("", golden.sku):
        return ""
    measured = f"it was measured with --sku {golden.sku}" if golden.sku else "it was measured without a SKU"
    return f"{measured}, and a golden time needs one: `gauntlet run --sku {sku or 'NAME'}`"


def require_time_tolerance(options: GoldenSetRequest) -> None:
    """Raise UsageError for a tolerance of new golden times that is no factor."""
    _require_factor("--time-tolerance", options.time_tolerance, "1.1 allows a tenth more")


def _require_factor(option: str, factor: float, example: str) -> None:
    if factor != 0 and not 1 <= factor < math.inf:
        raise UsageError(f"{option} {factor:g}: expected a factor of 1 or more", f"{example}.")


def _read_runs(request: SelectionRequest, options: GoldenUpdateRequest) -> list[JournalRecord]:
    """Read the journals of the requested runs, the oldest run first; UsageError for options that are wrong."""
    refuse_untrusted(request)
    _require_factor("--size-headroom", options.size_headroom, "1.25 leaves room for a quarter more")
    if options.run and options.last != 1:
        raise UsageError("--run and --last cannot be combined", "Give one of the two.")
    runs = [find_named_run(text, "--run") for text in options.run]
    if not runs:
        find_newest_run(find_runs_folder())
        # The runs are in order of age, the oldest first.
        runs = [*itertools.islice(list_runs_of_specs(find_runs_folder()), options.last)][::-1]
    return [read_journal(run / JOURNAL) for run in runs]


def _propose(golden: Golden, evidence: Sequence[GoldenEvidence], options: GoldenUpdateRequest) -> Proposal | str:
    return propose_golden(golden, evidence, size_headroom=options.size_headroom or None, relabel=options.to_release)


def _is_match(chain: str, options: GoldenUpdateRequest) -> bool:
    return not options.match or fnmatch.fnmatch(chain, options.match)


def update(request: SelectionRequest, options: GoldenUpdateRequest) -> ExitCode:
    """Print, and with `write` apply, the goldens that runs support."""
    records = _read_runs(request, options)
    evidence = collect_evidence([record for record in records if record.runs])
    current_evidence, problems = _match_current_goldens(evidence, request)
    matches = {golden: samples for golden, samples in current_evidence.items() if _is_match(samples[0].chain, options)}
    if problems and not matches:
        raise SpecError(problems)
    for problem in problems:
        messages.warn(f"{problem}\n    The goldens of this file were not changed.")
    if not matches:
        message = f"no golden {'that was asked for ' if evidence else ''}was measured in {_name_runs(records)}"
        hint = "Only goldens in specs are updated (docs/how-to/goldens.md); times are measured only with their --sku."
        if all(record.run.variants for record in records):
            message += ", with a variant, which has goldens of its own"
            hint = "`gauntlet golden.set` writes the first goldens of a variant."
        raise NothingSelectedError(message, f"{hint} More runs: --last N, or --run.")
    goldens = sorted(matches, key=lambda golden: (golden.origin.file, golden.origin.field))
    emit_proposals([(golden, _propose(golden, matches[golden], options)) for golden in goldens], options)
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
    emit_changes(_change_files(proposals), options.output, write=options.write)


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
    _warn_of_unused_sku(selection, request)
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


def _change_files(proposals: Sequence[Proposal], time_tolerance: float = 0.0) -> list[FileChange]:
    return [
        _change_file(file, [proposal for proposal in proposals if proposal.golden.origin.file == file], time_tolerance)
        for file in dict.fromkeys(proposal.golden.origin.file for proposal in proposals)
    ]


def _change_file(file: str, proposals: Sequence[Proposal], time_tolerance: float) -> FileChange:
    """Change the goldens of a file; each new golden time gets the tolerance, unless it is 0."""
    path = Path(file)
    document, _, problems = load_json(path, file, without_comments)
    if document is None:
        raise GauntletError(f"{file}: {problems[0].message}", problems[0].hint or "The runs used this spec.")
    new_text = text = path.read_bytes().decode("utf-8-sig")
    releases = {proposal.release for proposal in proposals if proposal.release}
    if releases and document.get(_COMPILER_FIELD) not in releases:
        _require_all_measured(file, document, proposals)
        write_value = with_value if _COMPILER_FIELD in document else with_added_value
        new_text = write_value(new_text, (_COMPILER_FIELD,), releases.pop())
    for proposal in proposals:
        golden, field = proposal.golden, proposal.golden.origin.field
        if golden.value == UNSET:
            keys = _split_field(field)
            new_text = with_added_value(new_text, keys, proposal.value)
            if time_tolerance and golden.field.rule is GoldenRule.TIMED:
                keys = (*keys[:-2], "golden_time_tolerance_multiplier", keys[-1])
                try:
                    new_text = with_value(new_text, keys, time_tolerance)
                except KeyError:
                    new_text = with_added_value(new_text, keys, time_tolerance)
            continue
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
    byte_order_mark = read_byte_order_mark(path)
    return FileChange(path, byte_order_mark + text, byte_order_mark + new_text)


def _split_field(field: str) -> tuple[str, ...]:
    """Split the place of a new golden into keys; names of variants and SKUs may contain dots."""
    match = _GOLDEN_FIELD.fullmatch(field)
    if match is None:
        raise ValueError(f"{field} is no golden")
    variant, name, key = match.groups()
    return ("variants", variant, name, key) if variant else (name, key)


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
