"""`golden.set` and `golden.update --from-history`: golden times from a history, and what they would call red there.

A golden comes from the newest segment of its series: the runs since the last change that `history.check` reports. It is
refused if the segment is too short, or if it is not level.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
import os
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.dialects.sharktank_schema import Benchmark
from iree_gauntlet.document import Cell, Document, Heading, Items, Table
from iree_gauntlet.engine.workspace import refuse_untrusted, select
from iree_gauntlet.errors import ExitCode, NothingSelectedError, UsageError
from iree_gauntlet.figures import Figure, GoldenRule
from iree_gauntlet.formatting import Column, ColumnKind, pluralize
from iree_gauntlet.measuring.goldens.golden_evidence import UNSET, Proposal
from iree_gauntlet.measuring.goldens.golden_rules import find_outliers, parse_rule
from iree_gauntlet.measuring.statistics.change_points import compute_trend_p, find_change_points
from iree_gauntlet.records.history_record import FindingKind
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_markdown import render_markdown
from iree_gauntlet.requests import Defaults
from iree_gauntlet.settings import find_project_folder
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.targets import FAMILIES
from iree_gauntlet.upkeep.history_keep import judge_history, warn_of_unread
from iree_gauntlet.upkeep.spec_goldens import (
    collect_goldens,
    emit_first,
    emit_proposals,
    list_missing_goldens,
    require_time_tolerance,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.cases import Case, Golden
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.engine.workspace import Selection
    from iree_gauntlet.measuring.goldens.golden_rules import LimitRule
    from iree_gauntlet.records.history_record import Finding, HistoryOutcome, Point, Series
    from iree_gauntlet.requests import SelectionRequest
    from iree_gauntlet.upkeep.upkeep_requests import GoldenSetRequest, GoldenUpdateRequest, SeriesRequest


# The largest p-value of a trend without a step; that of steps is the same.
_MAX_TREND_P = 1e-3
_COLUMNS = (
    Column("golden", ColumnKind.NAME),
    Column("of runs"),
    Column("n", ColumnKind.NUMBER),
    *(Column(title, ColumnKind.NUMBER, "ms", drop_order=order) for title, order in (("mean", 3), ("p50", 4))),
    *(Column(title, ColumnKind.NUMBER, "ms", drop_order=order) for title, order in (("p95", 2), ("max", 1))),
    *(Column(title, ColumnKind.NUMBER, "ms") for title in ("old limit", "new limit")),
    *(Column(title) for title in ("red, old", "red, new")),
)


@dataclass(frozen=True, slots=True)
class GoldenOutlook:
    """The judgement of a history on a golden.

    Attributes:
        outcome: the proposal, or the reason why the golden stays.
        times: the times of the series that were not disturbed, in order.
        segment: those of the newest segment.
    """

    golden: Golden
    outcome: Proposal | str
    times: tuple[float, ...] = ()
    segment: tuple[float, ...] = ()


def update_from_history(
    selection_request: SelectionRequest, options: GoldenUpdateRequest, series_request: SeriesRequest
) -> ExitCode:
    """Print, and with `write` apply, the golden times that follow from a history by the requested rule."""
    rule, selection = _read_request(selection_request, options)
    goldens = _collect_times(selection, selection_request, options)
    if not goldens:
        raise NothingSelectedError(
            "no golden time is selected",
            "--from-history updates golden times that specs have: golden.show lists them, and golden.set adds others.",
        )
    outcome = judge_history(series_request)
    outlooks = _judge_all(goldens, outcome, rule)
    emit_proposals([(outlook.golden, outlook.outcome) for outlook in outlooks], options)
    return _end(outlooks, outcome, selection, options)


def set_from_history(
    selection_request: SelectionRequest, options: GoldenSetRequest, series_request: SeriesRequest
) -> ExitCode:
    """Print, and with `write` add, the golden times that specs lack, as they follow from a history by a rule."""
    require_time_tolerance(options)
    rule, selection = _read_request(selection_request, options)
    outcome = judge_history(series_request)
    specs = {spec.name: spec for spec in selection.specs if isinstance(spec.document, Benchmark)}
    cases = [
        case
        for case in selection.cases.cases
        if case.origin.file in specs and fnmatch.fnmatch(case.chain, options.match or "*")
    ]
    if not cases:
        raise NothingSelectedError(
            "no benchmark spec is selected", "golden.set --from-history sets golden times of benchmark specs."
        )
    goldens = _collect_times(selection, selection_request, options) if options.update else {}
    obstacles = []
    for case in cases:
        series_goldens = list(_list_missing_times(case, specs[case.origin.file], outcome, selection_request.sku))
        for golden in filter(None, series_goldens):
            factor = options.time_tolerance or golden.factor
            goldens.setdefault(str(golden.origin), (case.chain, replace(golden, factor=factor)))
        if not series_goldens:
            machine = f"the SKU {selection_request.sku}" if selection_request.sku else "a SKU"
            obstacles.append(("not set", f"the history has no time of it with {machine}", case.origin.file))
    outlooks = _judge_all(goldens, outcome, rule)
    proposals = []
    for outlook in outlooks:
        if isinstance(outlook.outcome, Proposal):
            proposals.append(outlook.outcome)
        else:
            verb = "not set" if outlook.golden.value == UNSET else "stays"
            obstacles.append((verb, outlook.outcome, str(outlook.golden.origin)))
    emit_first(proposals, obstacles, options)
    return _end(outlooks, outcome, selection, options)


def _read_request(selection_request: SelectionRequest, options: GoldenUpdateRequest) -> tuple[LimitRule, Selection]:
    refuse_untrusted(selection_request)
    if not options.from_history:
        raise UsageError("--rule, --summary, --store and --marks are for --from-history", "Add --from-history.")
    if options.run or options.last != 1 or options.size_headroom or options.to_release:
        raise UsageError(
            "--from-history cannot be combined with --run, --last, --size-headroom and --to-release",
            "Counts and sizes have no noise: take them from a run, without --from-history.",
        )
    rule = parse_rule(options.rule)
    selection = select(selection_request, Defaults(targets=FAMILIES))
    for problem in selection.cases.problems:
        sys.stderr.write(f"{problem}\n")
    return rule, selection


def _collect_times(
    selection: Selection, selection_request: SelectionRequest, options: GoldenUpdateRequest
) -> dict[str, tuple[str, Golden]]:
    """Collect the golden times of the selection that match, with their chains, by place."""
    goldens: dict[str, tuple[str, Golden]] = {}
    for chain, golden in collect_goldens(selection, selection_request):
        if golden.field.rule is GoldenRule.TIMED and fnmatch.fnmatch(chain, options.match or "*"):
            goldens.setdefault(str(golden.origin), (chain, golden))
    return goldens


def _list_missing_times(case: Case, spec: Spec, outcome: HistoryOutcome, sku: str) -> Iterator[Golden | None]:
    """Yield, for each SKU and variant of a case in the history, the missing golden time; None if there is one.

    An empty `sku` stands for all SKUs.
    """
    places: dict[tuple[str, str], None] = {}
    for series in outcome.series:
        key = series.key
        is_time = key.history_view is Figure.TIME.row.history and key.sku and sku in ("", key.sku)
        plus_variant = key.case.removeprefix(case.chain)
        if is_time and key.case.startswith(case.chain) and plus_variant[:1] in ("", "+"):
            places[plus_variant.removeprefix("+"), key.sku] = None
    for variant, series_sku in places:
        target = replace(case.target, sku=series_sku)
        missing_goldens = list_missing_goldens(spec, Figure.TIME.golden.stage, target, variant, "")
        yield next((golden for golden in missing_goldens if golden.metric is Figure.TIME), None)


def _judge_all(
    goldens: Mapping[str, tuple[str, Golden]], outcome: HistoryOutcome, rule: LimitRule
) -> list[GoldenOutlook]:
    least_time = read_configuration(find_project_folder(), os.environ).history.least_time
    return [_judge_golden(*goldens[place], outcome, rule, least_time) for place in sorted(goldens)]


def _end(
    outlooks: Sequence[GoldenOutlook], outcome: HistoryOutcome, selection: Selection, options: GoldenUpdateRequest
) -> ExitCode:
    """Print the table of the outlooks, and write the summary; return the exit code."""
    document = _make_document(outlooks, outcome.location)
    print_document(replace(document, title=""), sys.stderr, environ=os.environ)
    if options.summary:
        try:
            write_atomic(Path(options.summary), render_markdown(document))
        except OSError as error:
            raise UsageError(f"--summary {options.summary}: {error.strerror}", "Name another file.") from error
    return ExitCode.USAGE if selection.cases.problems else warn_of_unread(outcome.problems)


def _judge_golden(
    chain: str, golden: Golden, outcome: HistoryOutcome, rule: LimitRule, least_time: float
) -> GoldenOutlook:
    case = "+".join(filter(None, (chain, golden.variant)))
    view = Figure.TIME.row.history
    candidates = [
        series
        for series in outcome.series
        if (series.key.case, series.key.history_view, series.key.sku) == (case, view, golden.sku)
    ]
    if not candidates:
        return GoldenOutlook(golden, f"the history has no time of {case} with the SKU {golden.sku}")
    # Another machine or other flags began another series: what is measured now decides.
    series = max(candidates, key=lambda candidate: max(point.time for point in candidate.points))
    findings = [finding for finding in outcome.findings if finding.key == series.key]
    return propose_from_series(golden, series, findings, rule, least_time)


def propose_from_series(
    golden: Golden, series: Series, findings: Sequence[Finding], rule: LimitRule, least_time: float
) -> GoldenOutlook:
    """Propose a golden time from the newest segment of a series with these findings, or say why it stays.

    `least_time` is the smallest relative change of a time that counts. For a rule of the mean, smaller changes within a
    segment, and between golden and mean, do not matter. A rule for a share of runs needs a segment without any change.
    """
    impossible = next((point for point in series.points if not 0 < point.value < math.inf), None)
    if impossible:
        problem = f"{impossible.run} has {impossible.value:g} ms, which is impossible"
        return GoldenOutlook(golden, f"{problem}: mark it as invalid in history_marks.toml")
    steps = [finding for finding in findings if finding.kind is not FindingKind.DRIFT]
    last_step = max(steps, key=lambda finding: finding.index, default=None)
    points = series.points[last_step.index if last_step else 0 :]
    times = _list_times(series.points)
    segment = _list_times(points)
    outlook = GoldenOutlook(golden, "", times, segment)
    since = ""
    if last_step:
        suspected = ", only suspected" if last_step.suspected else ""
        change = f"{100 * last_step.change:+.1f} % with {last_step.point_after.dated_iree}{suspected}"
        since = f" since its last step ({change})"
    if len(segment) < rule.min_runs:
        busy_count = len(points) - len(segment)
        busy = f" (and {busy_count} on a busy machine: see `gauntlet doctor`)" if busy_count else ""
        possible = f": they allow 1 in {len(segment) + 1} at most" if rule.share and len(segment) > 1 else ""
        needs = f"the rule {rule.text or 'of the mean'} needs {rule.min_runs}"
        return replace(outlook, outcome=f"{pluralize(len(segment), 'run')}{since}{busy}, and {needs}{possible}")
    drift = next((finding for finding in findings if finding.kind is FindingKind.DRIFT), None)
    unrest = _describe_unrest(points, rule, least_time)
    if drift:
        unrest = f"drifts: {100 * drift.change:+.1f} % since {drift.point_before.dated_iree}"
    if unrest:
        return replace(outlook, outcome=f"its newest segment {unrest}")
    value = rule.compute_golden(segment, golden.factor)
    is_close = abs(math.log(value / golden.value)) < math.log1p(least_time) if golden.value > 0 else False
    if value == golden.value or (is_close and rule.share is None):
        return replace(outlook, outcome=f"as the history says ({value:g} ms of {pluralize(len(segment), 'run')})")
    outliers = find_outliers(segment) if rule.share is None else ()
    basis = f"{rule.text or 'mean'} of {pluralize(len(segment), 'run')}{since or ' (no change is known)'}"
    basis += f", limit {replace(golden, value=value).limit:.4g} ms, {series.key.machine}"
    basis += "".join(
        f"; {count} left out as {kind}"
        for count, kind in ((len(outliers), "outliers"), (len(points) - len(segment), "disturbed"))
        if count
    )
    return replace(outlook, outcome=Proposal(golden, value, golden.release, basis))


def _list_times(points: Sequence[Point]) -> tuple[float, ...]:
    """List the times that were not disturbed, as they were measured first.

    If a time broke its golden, further rounds replaced it. Among such values, there are few above the golden's limit.
    """
    return tuple(point.first_value or point.value for point in points if not point.disturbed)


def _describe_unrest(points: Sequence[Point], rule: LimitRule, least_time: float) -> str:
    """Describe changes within a segment that `history.check` does not report; empty if they do not matter."""
    times = _list_times(points)
    least_effect = math.log1p(least_time) if rule.share is None else 0.0
    changes = find_change_points(
        [point.value for point in points], 0.0, disturbed=[point.disturbed for point in points]
    )
    levels = list(itertools.accumulate((change.effect for change in changes), initial=0.0))
    if changes and max(levels) - min(levels) >= least_effect:
        sizes = ", ".join(f"{100 * math.expm1(change.effect):+.1f} %" for change in changes)
        since = points[changes[0].index].dated_iree
        is_monotonic = levels in (sorted(levels), sorted(levels, reverse=True))
        kind = "has a step" if len(changes) == 1 else "drifts" if is_monotonic else "is not level"
        return f"{kind}: {sizes}, since {since} (too little for history.check)"
    quarter = max(len(times) // 4, 1)
    first, last = statistics.median(times[:quarter]), statistics.median(times[-quarter:])
    if compute_trend_p(times) < _MAX_TREND_P and abs(math.log(last / first)) >= least_effect:
        return f"drifts: {100 * (last / first - 1):+.1f} % from its first to its last quarter"
    outliers = find_outliers(times)
    streak = next(count for count in range(len(times) + 1) if len(times) - 1 - count not in outliers)
    return f"ends with {streak} runs that differ from the others: a step may have begun" if streak > 1 else ""


def _make_document(outlooks: Sequence[GoldenOutlook], location: str) -> Document:
    proposal_count = sum(isinstance(outlook.outcome, Proposal) for outlook in outlooks)
    reasons = tuple(
        (f"{outlook.golden.origin}: {getattr(outlook.outcome, 'basis', outlook.outcome)}",) for outlook in outlooks
    )
    table = Table(_COLUMNS, tuple(row for outlook in outlooks for row in _make_rows(outlook)))
    details = (Heading("Why"), Items(reasons))
    answer = f"{pluralize(proposal_count, 'golden')} proposed, {len(outlooks) - proposal_count} unchanged"
    return Document("Golden times from the history", answer, (location,), (table,) if table.rows else (), details)


def _make_rows(outlook: GoldenOutlook) -> Iterator[tuple[Cell, ...]]:
    """Make a row for the newest segment, and one for all runs of the series."""
    golden, outcome = outlook.golden, outlook.outcome
    new = replace(golden, value=outcome.value) if isinstance(outcome, Proposal) else None
    old = None if golden.value == UNSET else golden
    parts = (("newest segment", outlook.segment), ("all", outlook.times if outlook.times != outlook.segment else ()))
    for label, times in parts:
        if times:
            ordered_times = sorted(times)
            yield (
                *(str(golden.origin), label, len(times), statistics.fmean(times), statistics.median(times)),
                *(ordered_times[math.ceil(0.95 * len(times)) - 1], ordered_times[-1]),
                *(item.limit if item else None for item in (old, new)),
                *(_format_red_share(item, times) if item else None for item in (old, new)),
            )


def _format_red_share(golden: Golden, times: Sequence[float]) -> str:
    count = sum(not golden.is_kept(time) for time in times)
    return f"{count} ({100 * count / len(times):.1f} %)"
