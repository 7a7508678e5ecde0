"""The result of `qualify`: what got worse from one IREE to another, and better, by the experiments of its folder.

The journal's steps are the parts: the folder of each has an experiment with a record of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from iree_gauntlet.diagnostics import find_diagnostic
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import CALL_MARGIN, METRICS, OUTSIDE_MARGIN, UNCONFIRMED_MARGIN, Figure
from iree_gauntlet.formatting import (
    format_count,
    format_count_change,
    format_factor,
    format_milliseconds,
    join_lines,
    pluralize,
)
from iree_gauntlet.journal_events import ExperimentKind, Opening
from iree_gauntlet.journal_format import JOURNAL, JournalSchema
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.records.bisect_outcome import CandidateRow, read_bisect_outcome
from iree_gauntlet.records.compare_record import read_comparison
from iree_gauntlet.records.compat_outcome import Compatibility, read_compat_outcome
from iree_gauntlet.records.explain_outcome import add_explanations
from iree_gauntlet.records.matrix_outcome import list_equal_irees, read_matrix_outcome
from iree_gauntlet.records.outcome import list_record_remarks
from iree_gauntlet.stages import FailureKind, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.journal_events import EndEvent
    from iree_gauntlet.records.bisect_outcome import BisectOutcome
    from iree_gauntlet.records.chain_figures import MatrixCell
    from iree_gauntlet.records.compat_outcome import CompatOutcome
    from iree_gauntlet.records.matrix_outcome import MatrixOutcome, MatrixRow
    from iree_gauntlet.records.outcome import StepOutcome

    # Each finding with its group: `loss`, `gain`, `change`, `unjudged`, or `undecided` if rounds could not decide.
    _Findings = Iterator[tuple[str, "BumpFinding"]]


# The parts, in their order: cheap and exact ones first. Bisections follow, each in a folder of its own.
EXACT, COMPAT_PART, COMPAT_AGAIN, TIMES = "matrix", "compat", "compat-again", "times"
_UNSAFE = re.compile(r"[^\w.-]+")
# The folders of files in notes, which differ from run to run.
_FOLDERS = re.compile(r"[^\s=@,]*/")
# The groups of the verdicts of times that need one.
_TIME_GROUPS = {"slower": "loss", "faster": "gain", "error": "unjudged", "inconclusive": "undecided"}
# The kinds of findings besides figures, the most serious first.
_WRONG, _CRASHES, _FAILING, _PASSING = "wrong numbers", "crashes", "newly failing", "newly passing"
_KINDS = (_WRONG, _CRASHES, _FAILING, _PASSING, *_TIME_GROUPS)
# The metrics of models that fail: in a stage that makes a module, or in a later one.
_COMPILES, _RUNS = "compiles", "runs"
# Larger figures in these units are losses; other counts are only changes.
_COSTS = ("bytes", "instructions", "spills")
# The groups of the verdicts of dispatches' instructions.
_WORK_GROUPS = {"more work": "loss", "less work": "gain"}
# These failures depend on what the spec expects of one IREE.
_OWN_FAILURES = (FailureKind.MISSES_A_GOLDEN, FailureKind.TUNES_NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualifyOpening(Opening):
    """The opening of a qualification.

    Attributes:
        old, new: the IREEs.
        allowed: exact figures may be this many per cent larger.
        row: the candidates of bisections.
    """

    kind: ExperimentKind = ExperimentKind.QUALIFY
    suite: str = ""
    old: str
    new: str
    allowed: float
    row: CandidateRow

    def choose_row(self, metric: str) -> CandidateRow:
        """Return the candidates of a bisection by a metric: times are compared in one row, so it goes into no other."""
        figure = METRICS.get(metric)
        return replace(self.row, into="") if figure and figure.is_compared_in_rounds else self.row

    @property
    def variants(self) -> tuple[str, ...]:
        """The variants of both sides, as `--variant` takes them."""
        return tuple(self.options.get("variant", ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult(Recorded):
    """`result`: the end of a part; with a `problem`, the part has no result of its own.

    Attributes:
        chain, metric: the loss that an explanation, or a bisection by a metric, follows.
    """

    exit_code: ExitCode
    problem: str = ""
    chain: str = field(default="", metadata=UNLESS_DEFAULT)
    metric: str = field(default="", metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossAcceptance(Recorded):
    """`accepted`: a loss that the history's marks accept, with their reason."""

    chain: str
    kind: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchWork(Recorded):
    """`work`: the verdict of a model's dispatches by their instructions.

    Attributes:
        verdict: a `Work` of `measuring/instructions/work.py`.
        larger: the dispatches that execute more instructions, each with the counts of OLD and NEW.
    """

    verdict: str
    larger: tuple[tuple[str, int, int], ...]


QUALIFY = JournalSchema(
    (ExperimentKind.QUALIFY,),
    QualifyOpening,
    {"result": PartResult, "work": DispatchWork},
    {"accepted": LossAcceptance},
)


@dataclass(frozen=True, slots=True)
class BumpFinding:
    """A difference between the two IREEs.

    Attributes:
        kind: `wrong numbers`, `newly failing`, `slower`, or the word of a figure.
        chain: the model.
        text: the difference in words: `1,000 → 1,200 bytes`.
        metric: the metric of `bisect` by which the release of the change can be found; empty if there is none.
        url: the report that has more, relative to the folder.
        factor: NEW's figure in relation to OLD's; 1 if there is none.
        cause: the answer of the explanation; empty if it was not explained.
        bundle: the bundle that shows it, relative to the folder; empty if there is none.
    """

    kind: str
    chain: str
    text: str
    metric: str = ""
    url: str = ""
    factor: float = 1.0
    cause: str = ""
    bundle: str = ""

    @property
    def part(self) -> str:
        """The name of the bisection of this loss, and of its folder."""
        return f"bisect-{self.metric}-{_UNSAFE.sub('-', self.chain)}"

    @property
    def explanation(self) -> str:
        """The name of the part that explains this loss; empty if it is no failure of a model."""
        return f"explain-{_UNSAFE.sub('-', self.chain)}" if self.metric in (_COMPILES, _RUNS) else ""


@dataclass(frozen=True, slots=True)
class QualifyOutcome:
    """The result of a qualification.

    Attributes:
        parts: the parts that have ended.
        losses: what got worse, the most serious first.
        accepted: what got worse and is accepted, with the reasons.
        gains: what got better.
        changes: differences that are neither.
        undecided: models that are not judged by a time, because the machine could not say.
        unjudged: what could not be judged, with the reasons.
        omissions: the figures that no verdict is about, with the reasons.
        bisections: the searches for the release of a loss, by part.
        end: None if it did not end.
    """

    name: str
    opening: QualifyOpening
    parts: Mapping[str, PartResult]
    matrix: MatrixOutcome | None
    compat: CompatOutcome | None
    losses: tuple[BumpFinding, ...]
    accepted: tuple[BumpFinding, ...]
    gains: tuple[BumpFinding, ...]
    changes: tuple[BumpFinding, ...]
    undecided: tuple[BumpFinding, ...]
    unjudged: tuple[str, ...]
    omissions: tuple[str, ...]
    bisections: Mapping[str, BisectOutcome]
    remarks: tuple[str, ...]
    state: str
    end: EndEvent | None

    @property
    def worst_code(self) -> ExitCode:
        """The exit code of the parts: a loss fails; a part without a result is an error."""
        codes = [ExitCode.FAILED] if self.losses else []
        codes += [part.exit_code for part in self.parts.values() if part.problem and not part.chain]
        codes += [ExitCode.ERROR] if self.unjudged else []
        return ExitCode.worst(codes)

    @property
    def exit_code(self) -> ExitCode:
        """The command's exit code; ERROR if it did not end."""
        return self.end.exit_code if self.end else ExitCode.ERROR

    @property
    def names(self) -> tuple[str, str]:
        """The names of OLD and NEW in reports."""
        labels = [iree.label for iree in self.matrix.irees] if self.matrix else [self.opening.old, self.opening.new]
        return labels[0], labels[1]

    @property
    def models(self) -> tuple[str, ...]:
        """The models."""
        return tuple(row.chain for row in self.matrix.rows) if self.matrix else ()

    @property
    def answer(self) -> str:
        """The answer in one line, with what it is not about."""
        omissions = f"; not judged: {', '.join(self.omissions)}" if self.omissions else ""
        return f"{self.verdict}{omissions}"

    @property
    def verdict(self) -> str:
        """The losses in one line."""
        shared = self.models if self.matrix and self.matrix.is_over else ()
        models = pluralize(len(shared), "model") + ("" if self.state == "complete" else ", so far")
        if not (shared or self.losses):
            return "no model was compared" if self.state == "complete" else "no model is compared yet"
        if not self.losses:
            gains = f", {pluralize(len(self.gains), 'gain')}" if self.gains else ""
            return f"{self.names[1]} loses nothing against {self.names[0]} in {models}{gains}"
        worst = self.losses[0]
        count = pluralize(len(self.losses), "loss", "es")
        return f"{count} in {models}, first {worst.chain}: {worst.kind}: {worst.text}"


def read_qualify_outcome(folder: Path) -> QualifyOutcome:
    """Read a qualification, even a killed one; GauntletError if its record, or one of a part, cannot be read."""
    record = QUALIFY.read(folder)
    opening, first_opening = record.opening, record.openings[0]
    parts = record.collect_results(PartResult)

    def has(part: str) -> bool:
        return part in parts and (folder / part / JOURNAL).is_file()

    matrix = read_matrix_outcome(folder / EXACT) if has(EXACT) else None
    compat = read_compat_outcome(folder / COMPAT_PART) if has(COMPAT_PART) else None
    findings: list[tuple[str, BumpFinding]] = []
    # A bisection or an explanation that finds nothing says so among the parts, and changes no verdict.
    failed_parts = {name: part for name, part in parts.items() if part.exit_code and not part.chain}
    unjudged = [f"{name}: {part.problem}" for name, part in failed_parts.items() if part.problem]
    if matrix and matrix.is_over:
        unjudged += _list_missing_runs(matrix)
        findings += _compare_irees(matrix, opening.allowed, record.collect(DispatchWork), folder / EXACT)
    if compat:
        repetition = read_compat_outcome(folder / COMPAT_AGAIN) if has(COMPAT_AGAIN) else None
        findings += _list_incompatible(compat, repetition)
    if has(TIMES):
        findings += _read_times(folder / TIMES)
    unjudged += [
        f"{finding.chain}, {finding.kind}: {finding.text}" for group, finding in findings if group == "unjudged"
    ]
    bisections = {name: read_bisect_outcome(folder / name) for name, part in parts.items() if part.metric and has(name)}
    if opening.row.among:
        bisections = {name: _name_as_typed(bisection) for name, bisection in bisections.items()}
    findings = [_confirm(group, finding, bisections) for group, finding in findings]
    order = {kind: position for position, kind in enumerate(_KINDS)}
    findings.sort(key=lambda entry: (order.get(entry[1].kind, len(order)), -entry[1].factor))
    marks = [event.content for event in record.events if isinstance(event.content, LossAcceptance)]
    reasons = {(mark.chain, mark.kind): mark.reason for mark in marks}
    for index, (group, finding) in enumerate(findings):
        if group == "loss" and (reason := reasons.get((finding.chain, finding.kind))):
            findings[index] = "accepted", replace(finding, text=f"{finding.text}; accepted: {reason}")
    losses, accepted, gains, changes, undecided = (
        tuple(finding for group, finding in findings if group == name)
        for name in ("loss", "accepted", "gain", "change", "undecided")
    )
    return QualifyOutcome(
        name=opening.name or folder.name,
        opening=replace(opening, time=first_opening.time, command=first_opening.command),
        parts=parts,
        matrix=matrix,
        compat=compat,
        losses=losses,
        accepted=accepted,
        gains=gains,
        changes=changes,
        undecided=undecided,
        unjudged=tuple(unjudged),
        omissions=tuple(_list_omissions(opening, matrix, parts, undecided)),
        bisections=bisections,
        remarks=(
            *list_record_remarks(
                "qualification", "record", len(record.openings), record.end, torn=record.has_truncated_line
            ),
            *(list_equal_irees(matrix.irees) if matrix else ()),
        ),
        state=record.state,
        end=record.end,
    )


def _name_as_typed(bisection: BisectOutcome) -> BisectOutcome:
    """Return a bisection whose candidates have the names that `--among` has, and not their folders'."""
    names = {candidate.label: candidate.iree for candidate in bisection.opening.row}
    search = bisection.search
    if search:
        search = replace(
            search,
            last_old=names.get(search.last_old, search.last_old),
            first_new=names.get(search.first_new, search.first_new),
            between=tuple(names.get(label, label) for label in search.between),
        )
    opening = replace(
        bisection.opening,
        good=names.get(bisection.opening.good, bisection.opening.good),
        bad=names.get(bisection.opening.bad, bisection.opening.bad),
    )
    results = {names.get(label, label): result for label, result in bisection.results.items()}
    return replace(bisection, opening=opening, search=search, results=results)


def _list_omissions(
    opening: QualifyOpening,
    matrix: MatrixOutcome | None,
    parts: Mapping[str, PartResult],
    undecided: Sequence[BumpFinding],
) -> Iterator[str]:
    """List the figures that are not judged, of all models or of some, with the reasons."""
    outcomes = [iree.outcome for iree in matrix.irees if iree.outcome] if matrix else []
    compiles = [
        step.statistics
        for outcome in outcomes
        for step in outcome.steps
        if step.stage is Stage.COMPILE and step.verdict.counts_as_pass and not step.is_for_count
    ]
    if any(not ({"code", "code_problems"} & statistics.keys()) for statistics in compiles):
        yield "code (only with the extra code; operator suites have none)"
    elif problems := [text for statistics in compiles for text in statistics.get("code_problems", ())]:
        yield f"some code ({problems[0]})"
    if opening.options.get("no_times"):
        yield "times (--no-times)"
    for part, name in ((COMPAT_PART, "modules with the other runtime"), (TIMES, "times")):
        if part in parts and parts[part].problem:
            yield f"{name} ({parts[part].problem})"
    for name in ("instructions", "memory"):
        if not opening.options.get(name):
            yield f"{name} (only with --{name})"
    for kind, count in Counter(finding.kind for finding in undecided).items():
        yield f"{kind} of {pluralize(count, 'model')} (undecided)"


def _confirm(group: str, finding: BumpFinding, bisections: Mapping[str, BisectOutcome]) -> tuple[str, BumpFinding]:
    """Return a finding with its group: it is no loss if its bisection measured both ends again and did not find it.

    A compile that took longer is a loss only if its bisection found it again.
    """
    bisection = bisections.get(finding.part)
    if not finding.metric or group not in ("loss", "undecided"):
        return group, finding
    if bisection is None:
        return group, finding if group == "loss" else replace(finding, text=f"{finding.text}; not measured again")
    ends = (bisection.results.get(label) for label in (bisection.opening.good, bisection.opening.bad))
    values = [end.value for end in ends if end and end.value is not None]
    figure, is_measured = METRICS.get(finding.metric), len(values) == 2
    is_faster = bool(figure and figure.is_compared_in_rounds and is_measured and values[1] < values[0])
    if (bisection.search and not is_faster) or (group == "loss" and not is_measured):
        return "loss", finding
    kind = "time" if finding.kind == "slower" else finding.kind
    reason = "the second measurement is faster" if is_faster and bisection.search else bisection.answer
    return "undecided", replace(finding, kind=kind, text=f"{finding.text}; not confirmed: {reason}")


def _list_missing_runs(matrix: MatrixOutcome) -> list[str]:
    """List the IREEs without a run: OLD for any reason, NEW if it was left out."""
    old, new = matrix.irees
    missing = old if old.problem else new if new.exit_code is None else None
    return [f"{missing.label}: {missing.problem}"] if missing else []


def _compare_irees(matrix: MatrixOutcome, allowed: float, works: Mapping[str, DispatchWork], folder: Path) -> _Findings:
    """Compare the runs of both, if there are two."""
    old, new = matrix.irees
    if new.problem and new.exit_code is not None and not old.problem:
        # Such as a flag that the new IREE does not know: none of the models is compiled.
        yield "loss", BumpFinding(_FAILING, "all models", new.problem)
    elif old.outcome and new.outcome and not old.problem:
        yield from _compare_cells(matrix, allowed, works, folder)


def _compare_cells(matrix: MatrixOutcome, allowed: float, works: Mapping[str, DispatchWork], folder: Path) -> _Findings:
    """Compare verdicts, flags and exact figures of each model."""
    outcomes = (add_explanations(iree.outcome, folder / iree.folder) for iree in matrix.irees if iree.outcome)
    old_run, new_run = ({chain.id: chain for chain in outcome.cases} for outcome in outcomes)
    page = f"{EXACT}/matrix.html"
    for row in matrix.rows:
        if row.chain not in old_run or row.chain not in new_run:
            continue
        chains = old_run[row.chain], new_run[row.chain]
        old_cause, new_cause = (next((step for step in chain.steps if step.verdict.blocks), None) for chain in chains)
        for label, cause in zip((iree.label for iree in matrix.irees), (old_cause, new_cause), strict=True):
            if cause and cause.failure is None:
                yield "unjudged", BumpFinding(f"with {label}", row.chain, _describe_step(cause))
        old, new = (row.cells[iree.label] for iree in matrix.irees)
        old_notes, new_notes = (
            {_FOLDERS.sub("", note) for step in chain.steps if step.stage is Stage.COMPILE for note in step.notes}
            for chain in chains
        )
        for note in sorted(new_notes - old_notes):
            yield "change", BumpFinding("note", row.chain, note, "", page)
        if old_cause is None and new_cause and new_cause.failure:
            metric = _COMPILES if new_cause.stage.row.makes_modules else _RUNS
            metric = "" if new_cause.failure in _OWN_FAILURES else metric
            kind = {FailureKind.WRONG_NUMBERS: _WRONG, FailureKind.CRASHES: _CRASHES}.get(new_cause.failure, _FAILING)
            text = f"{new_cause.name}: {_describe_step(new_cause)}"
            loss = BumpFinding(kind, row.chain, text, metric, f"{EXACT}/{new.url}")
            if explanation := new_cause.explanation:
                archive = explanation.bundle and f"{EXACT}/{matrix.irees[-1].folder}/{explanation.bundle}"
                loss = replace(loss, cause=explanation.answer, bundle=archive)
            yield "loss", loss
        elif old_cause and old_cause.failure and new_cause is None:
            yield "gain", BumpFinding(_PASSING, row.chain, f"{old_cause.name}: {_describe_step(old_cause)}", "", page)
        elif old_cause is None and new_cause is None:
            yield from _compare_figures(row, old, new, allowed, works.get(row.chain))
            yield from _compare_compiles(row)


def _describe_step(step: StepOutcome) -> str:
    return join_lines(find_diagnostic(step.diagnosis), 300)


def _compare_figures(
    row: MatrixRow, old: MatrixCell, new: MatrixCell, allowed: float, work: DispatchWork | None
) -> _Findings:
    """Compare exact figures; if each dispatch's instructions are known, these are judged one by one."""
    for figure in Figure:
        # If the instructions in dispatches are unknown, those of the call are compared.
        is_call = figure is Figure.DISPATCH_INSTRUCTIONS and figure not in old.figures.values
        source = Figure.CALL_INSTRUCTIONS if is_call else figure
        old_value, new_value = old.figures.values.get(source), new.figures.values.get(source)
        changes = figure.row.matrix_changes
        if not changes or not figure.is_exact or old_value is None or new_value is None:
            continue
        if figure.is_counted and old.figures.counted_by != new.figures.counted_by:
            continue
        is_cost = figure.row.unit in _COSTS
        margin = max(allowed / 100 * old_value, OUTSIDE_MARGIN.amount if is_call else changes.margin.amount)
        is_larger, is_smaller = new_value - old_value > margin, old_value - new_value > margin
        change = f" ({format_count_change(old_value, new_value)})" if old_value else ""
        text = f"{figure.row.write(old_value)} → {figure.row.write(new_value)}{change}"
        group = "loss" if is_larger else "gain" if is_smaller else ""
        metric = figure.row.metric
        if not is_cost:
            group = "change" if changes.margin.is_exceeded(old_value, new_value) else ""
        elif work and figure is Figure.DISPATCH_INSTRUCTIONS:
            group, text = _WORK_GROUPS.get(work.verdict, ""), f"{text}{name_dispatch(work.larger)}"
            # A bisection compares the sums of all dispatches.
            metric = metric if new_value > old_value and CALL_MARGIN.is_exceeded(old_value, new_value) else ""
        if group:
            factor = new_value / old_value if old_value else new_value
            yield group, BumpFinding(changes.word, row.chain, text, metric, f"{EXACT}/matrix.html", factor)


def name_dispatch(costs: Iterable[tuple[str, int, int]], write: Callable[[float], str] = format_count) -> str:
    """Name the dispatch whose cost grew most, by the costs of both sides; return an empty text if none did."""
    name, old_value, new_value = max(costs, key=lambda cost: cost[2] - cost[1], default=("", 0, 0))
    return f"; most in {name}: {write(old_value)} → {write(new_value)}" if new_value > old_value else ""


def _compare_compiles(row: MatrixRow) -> _Findings:
    """Compare the time and memory of compiles by the margin of noisy figures; more time has to be confirmed."""
    cached = [label for label, cell in row.cells.items() if cell.figures.all_from_cache]
    for figure in (Figure.COMPILE_TIME, Figure.COMPILE_MEMORY):
        old_value, new_value = (cell.figures.values.get(figure) for cell in row.cells.values())
        is_time = figure is Figure.COMPILE_TIME
        if is_time and cached:
            reason = f"the modules of {' and '.join(cached)} came from the cache"
            yield "undecided", BumpFinding(figure.row.title, row.chain, reason)
        elif old_value and new_value and UNCONFIRMED_MARGIN.is_exceeded(old_value, new_value):
            factor, unit = new_value / old_value, " s" if is_time else ""
            text = (
                f"{figure.row.write(old_value)}{unit} → {figure.row.write(new_value)}{unit} ({format_factor(factor)})"
            )
            group = "gain" if new_value < old_value else "undecided" if is_time else "loss"
            metric, url = figure.row.metric, f"{EXACT}/matrix.html"
            yield group, BumpFinding(figure.row.title, row.chain, text, metric, url, factor)


def _list_incompatible(compat: CompatOutcome, repetition: CompatOutcome | None) -> _Findings:
    """List pairs of different IREEs that fail; what one of them does alone too is found by the matrix.

    What runs in the repetition is no loss.
    """
    repeated = {(cell.chain, cell.folder): cell.compatibility for cell in repetition.cells} if repetition else {}
    owns = {(cell.chain, cell.compiler): cell.compatibility for cell in compat.cells if cell.compiler == cell.runtime}
    for cell in compat.cells:
        if cell.compatibility in (owns[cell.chain, cell.compiler], owns[cell.chain, cell.runtime]):
            continue
        place = f"module of {cell.compiler}, runtime of {cell.runtime}"
        reason = _describe_step(cell.step) if cell.step else cell.problem
        url = f"{COMPAT_PART}/{cell.url}"
        if cell.compatibility in (Compatibility.CRASHES, Compatibility.WRONG):
            kind = _CRASHES if cell.compatibility is Compatibility.CRASHES else _WRONG
            text, group = f"{place}: {reason}", "loss"
            if repeated.get((cell.chain, cell.folder)) is Compatibility.RUNS:
                text, group = f"{text}; but it ran with the right numbers when it was run again", "change"
            yield group, BumpFinding(kind, cell.chain, text, "", url)
        elif cell.compatibility is Compatibility.REFUSED:
            yield "change", BumpFinding("refused", cell.chain, f"{place}: {reason}", "", url)


def _read_times(folder: Path) -> _Findings:
    """Compare the times of each model."""
    comparison = read_comparison(folder)
    for chain, reason in comparison.prepared.left_out.items():
        yield "undecided", BumpFinding("time", chain, reason)
    for chain, times in comparison.verdicts.items():
        text = format_factor(times.figures.ratio) if times.figures else times.reason
        factor = times.figures.ratio if times.figures else 1.0
        where = comparison.where.get(chain)
        for costs in (where.dispatches, where.work) if where and times.verdict == "slower" else ():
            if costs and costs.difference:
                write = format_count if costs.unit != "ms" else lambda ns: f"{format_milliseconds(ns / 1e6)} ms"
                text += name_dispatch(((row.name, row.a_ns, row.b_ns) for row in costs.difference.rows), write)
        finding = BumpFinding(times.verdict, chain, text, "time", f"{TIMES}/comparison.html", factor)
        if group := _TIME_GROUPS.get(times.verdict):
            is_judged = group in ("loss", "gain")
            yield group, finding if is_judged else replace(finding, kind="time", text=times.reason, metric="")
