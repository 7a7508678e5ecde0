"""The table of models that ran with several lengths of vectors: whether each length gives the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.document import Heading, Paragraph, Table
from iree_gauntlet.formatting import Column, ColumnKind
from iree_gauntlet.records.chain_figures import NO_VALUE
from iree_gauntlet.targets import split_vector_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.document import Block, Cell
    from iree_gauntlet.records.outcome import ChainOutcome, StepOutcome


_OTHER_VERDICT, _WITHIN, _SAME = "other verdicts", "within the tolerance", "the same bytes"
# The order of the rows.
_ANSWERS = (_OTHER_VERDICT, NO_VALUE, _WITHIN, _SAME)
_TERMINAL_ROWS = 30


def show_vector_lengths(chains: Iterable[ChainOutcome], title: str = "Numbers by length of vectors") -> Iterator[Block]:
    """Show the models that ran with several lengths, those whose numbers differ first; nothing without such models."""
    groups: dict[str, dict[int, StepOutcome]] = {}
    for chain in chains:
        name, bits = split_vector_bits(chain.target)
        step = next((step for step in chain.steps if step.stage.row.checks_numbers), None) if bits else None
        if step is not None:
            groups.setdefault(f"{chain.model}/{chain.submodel}@{name}", {})[bits] = step
    groups = {
        model: steps
        for model, steps in groups.items()
        if len(steps) > 1 and any(step.verdict is not Verdict.SKIPPED for step in steps.values())
    }
    if not groups:
        return
    lengths = sorted({bits for steps in groups.values() for bits in steps})
    columns = (Column("model", ColumnKind.NAME), Column("numbers"), *(Column(f"{bits} bits") for bits in lengths))
    rows: list[tuple[Cell, ...]] = [
        (model, _compare(steps), *(_describe(steps[bits]) if bits in steps else None for bits in lengths))
        for model, steps in groups.items()
    ]
    # A crash says something about the model; an error of its surroundings does not.
    judged = [
        steps
        for steps in groups.values()
        if any(one.failure or not (one.verdict.is_error or one.verdict is Verdict.SKIPPED) for one in steps.values())
    ]
    agreeing = sum(len({step.verdict for step in steps.values()}) == 1 for steps in judged)
    yield Heading(title)
    rows.sort(key=lambda row: _ANSWERS.index(str(row[1]).partition(" (")[0]))
    yield Table(columns, tuple(rows), _TERMINAL_ROWS)
    unjudged = f"; {len(groups) - len(judged)} could not be judged" if len(judged) < len(groups) else ""
    yield Paragraph((f"{agreeing} of {len(judged)} models have the same verdict with each length{unjudged}",))


def _compare(steps: dict[int, StepOutcome]) -> str:
    """Return whether the numbers of all lengths are the same."""
    verdicts = {step.verdict for step in steps.values()}
    if len(verdicts) > 1:
        bad = [str(bits) for bits, step in sorted(steps.items()) if step.verdict is not Verdict.PASSED]
        return f"{_OTHER_VERDICT} ({', '.join(bad)})"
    hashes = {step.typed_statistics.outputs_sha256 for step in steps.values()}
    if "" in hashes:
        return NO_VALUE
    return _SAME if len(hashes) == 1 else _WITHIN


def _describe(step: StepOutcome) -> str:
    """Return the largest error of a step's outputs, or its verdict if it did not pass."""
    error = step.max_abs_error
    return f"{error:.3g}" if step.verdict is Verdict.PASSED and error is not None else str(step.verdict)
