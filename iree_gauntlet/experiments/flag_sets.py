"""The candidates of `bisect --flags`: one IREE with sets of a variant's flags."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iree_gauntlet.engine.varying import find_variants, split_variant
from iree_gauntlet.errors import UsageError
from iree_gauntlet.toolchains.candidates import Candidate
from iree_gauntlet.toolchains.choice import parse_choice
from iree_gauntlet.toolchains.find import IREE_VARIABLE
from iree_gauntlet.toolchains.toolchain import COMPILE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.experiments.run import RunSetup
    from iree_gauntlet.variants import FlagVariant


@dataclass(frozen=True, slots=True)
class FlagSets:
    """The sets of a variant's flags, which have numbers from 1.

    Attributes:
        flags: each flag as a variant of its own, so that a side (`3.13.0+O3-1+O3-4`) has a set of them.
    """

    iree: str
    variant: FlagVariant
    flags: tuple[FlagVariant, ...]

    def make_candidate(self, numbers: Iterable[int]) -> Candidate:
        """Return the candidate that has the flags of some numbers; its label is `none`, `all`, or such as `1-3+5`."""
        chosen = sorted(numbers)
        if len(chosen) == len(self.flags):
            return Candidate("all", f"{self.iree}+{self.variant.name}")
        runs = [[*run] for _, run in itertools.groupby(chosen, lambda number: number - chosen.index(number))]
        label = "+".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
        return Candidate(label or "none", "+".join((self.iree, *(self.flags[number - 1].name for number in chosen))))

    def make_row(self, kept: tuple[int, ...], count: int) -> tuple[Candidate, ...]:
        """Return candidates that have the `kept` flags, and none, the first one, … the first `count` of all."""
        return tuple(self.make_candidate((*kept, *range(1, last + 1))) for last in range(count + 1))

    def add_to(self, setup: RunSetup) -> RunSetup:
        """Return a setup that finds the variant and its flags by their names."""
        known_variants = (*setup.selection.known_variants, self.variant, *self.flags)
        return replace(setup, selection=replace(setup.selection, known_variants=known_variants))


def leave_one_out(numbers: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the numbers without each of them in turn."""
    return [numbers[:index] + numbers[index + 1 :] for index in range(len(numbers))]


def make_flag_sets(text: str, setup: RunSetup) -> FlagSets:
    """Make the sets of a variant's flags, as `--variant` takes it, for the IREE and the cases of a setup.

    Raises:
        UsageError: the variant is unknown, does not apply, has one flag, or has one that the IREE does not support.
        ToolchainError: the IREE is not available.
    """
    toolchain, cases = setup.request.toolchain, setup.selection.cases
    (variant,) = find_variants([text], setup.selection.known_variants)
    if not any(variant.applies_to(case.target) for case in cases.cases):
        hint = "Select another target, or leave `targets` of the variant out."
        raise UsageError(f"variant {variant.name} is only for {', '.join(variant.targets)}", hint)
    iree = parse_choice(toolchain.iree or os.environ.get(IREE_VARIABLE, "")).text
    sets = FlagSets(iree, variant, (variant,))
    machine = sets.add_to(setup).open_workbench_for(f"{iree}+{variant.name}")
    flags = split_variant(variant, cases, machine.get_flags(COMPILE))
    if len(flags) == 1:
        message = f"variant {variant.name} has only one flag, {variant.changes}: there is nothing to search"
        raise UsageError(message, f"`compare +{variant.name}` shows its effect.")
    return replace(sets, flags=flags)
