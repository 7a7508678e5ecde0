"""The choice of inputs by an engine that runs a program in MLIR."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.workers.iree_side.expected_outputs import EnginePlan, run_sets

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.workers.iree_side.plan_file import Array


def test_inputs_of_which_one_output_is_nothing_but_nan_are_not_taken(tmp_path: Path) -> None:
    def run(_: list[str], arrays: list[Array]) -> list[Array]:
        with np.errstate(invalid="ignore"):
            return [np.sqrt(arrays[0]), arrays[0] + 1]

    sets = [["2xf32=-1 -2"], ["2xf32=4 9"]]
    answer = run_sets(EnginePlan("m", "f", "e", sets, ["float32"], str(tmp_path), str(tmp_path)), "1", run)
    assert (answer["taken"], answer["tells"]) == (1, True)
    # If there are no others, the first that run are taken, and are named as useless.
    answer = run_sets(EnginePlan("m", "f", "e", sets[:1], ["float32"], str(tmp_path), str(tmp_path)), "1", run)
    assert (answer["taken"], answer["tells"]) == (0, False)
