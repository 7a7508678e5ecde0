"""Finished steps of a resumed run: those whose plan is unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.cases import Allclose, Golden, Origin, Verdict
from iree_gauntlet.engine.run_start import repeat_changed_steps
from iree_gauntlet.errors import UsageError
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.run_folder import find_finished_verdicts
from iree_gauntlet.stages import FailureKind
from iree_gauntlet.steps import CacheLookup, Command
from tests.support.journal_builder import JournalBuilder

if TYPE_CHECKING:
    from pathlib import Path

_GOLDEN = Golden(Figure.TIME, 5.0, 1.1, Statistic.MEAN, "", "", Origin("spec.json:3"))


@pytest.mark.parametrize(
    ("before", "now", "done"),
    [
        ({}, {}, True),
        ({"command": Command(("tool",), "/")}, {"command": Command(("tool", "--more"), "/")}, False),
        ({"command": Command(("tool",), "/")}, {"command": Command(("tool",), "/elsewhere")}, True),
        ({"goldens": (_GOLDEN,)}, {"goldens": ()}, False),
        ({"goldens": (_GOLDEN,)}, {"goldens": (replace(_GOLDEN, value=4.0),)}, False),
        ({"goldens": (_GOLDEN,)}, {"goldens": (replace(_GOLDEN, origin=Origin("spec.json:9")),)}, True),
        ({}, {"expect_failure": "known"}, False),
        ({}, {"expect_kinds": frozenset({FailureKind.CRASHES})}, False),
        ({"expect_match": "this"}, {"expect_match": "that"}, False),
        ({}, {"allclose": Allclose(1e-3, 0.0, equal_nan=False)}, False),
        ({"allclose": Allclose(1e-3, 0.0, equal_nan=True)}, {"allclose": Allclose(1e-5, 0.0, equal_nan=True)}, False),
        ({}, {"cache": CacheLookup(ingredients=(("flags", "[]"),))}, False),
        # What it is made from is looked at by itself.
        (
            {"cache": CacheLookup(ingredients=(("program", "aa"),))},
            {"cache": CacheLookup(ingredients=(("program", "bb"),))},
            True,
        ),
        ({}, {"notes": ("a note",), "timeout": 7.0}, True),
        # It failed, and so has made nothing.
        ({"outputs": (("module", "/nowhere/module.vmfb"),)}, {}, True),
    ],
)
def test_a_step_is_done_where_it_is_planned_as_it_was(
    tmp_path: Path, before: dict[str, Any], now: dict[str, Any], *, done: bool
) -> None:
    builder = JournalBuilder()
    name = builder.step("m", "a", "threshold")
    (step,) = builder.planned_steps
    builder.steps[:] = [replace(step, **before).as_dict()]
    builder.begin()
    builder.result(name, "failed")
    builder.write(tmp_path)
    iree = builder.opening.toolchain
    assert find_finished_verdicts(read_journal(tmp_path / JOURNAL), [replace(step, **before)], iree) == {
        name: Verdict.FAILED
    }
    found = find_finished_verdicts(read_journal(tmp_path / JOURNAL), [replace(step, **{**before, **now})], iree)
    assert found == ({name: Verdict.FAILED} if done else {})
    with pytest.raises(UsageError, match="was run with another IREE"):
        find_finished_verdicts(read_journal(tmp_path / JOURNAL), [step], replace(iree, identity="another"))


@pytest.mark.parametrize("verdict", ["error", "skipped"])
def test_what_came_to_no_verdict_is_done_again(tmp_path: Path, verdict: str) -> None:
    builder = JournalBuilder()
    name = builder.step("m", "a", "threshold")
    builder.begin()
    builder.result(name, verdict)
    builder.write(tmp_path)
    record = read_journal(tmp_path / JOURNAL)
    assert find_finished_verdicts(record, builder.planned_steps, builder.opening.toolchain) == {}


def test_all_that_comes_of_what_has_changed_is_done_again(tmp_path: Path) -> None:
    builder = JournalBuilder()
    chain = [builder.step("m", "a", stage) for stage in ("import", "compile", "threshold")]
    other = builder.step("m", "b", "compile")
    builder.begin()
    for name in (*chain, other):
        builder.result(name)
    builder.write(tmp_path)
    record = read_journal(tmp_path / JOURNAL)
    made, *rest = builder.planned_steps
    changed = replace(made, command=Command(("iree-import-onnx", "--more"), "/"))
    finished = dict.fromkeys((*chain[1:], other), Verdict.PASSED)
    _, done = repeat_changed_steps((changed, *rest), finished, record, lambda _: "")
    assert done == {other: Verdict.PASSED}
