"""The measuring programs that run in IREE's Python, in this process: a start of their own takes longer than they do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from iree_gauntlet.workers.iree_side.plan_file import answer_plan
from tests.support.command_line import Done

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

__all__ = ["answered_here"]


def answered_here(
    measure: Callable[[dict[str, Any]], dict[str, Any]],
    plan: dict[str, Any],
    folder: Path,
    capture: pytest.CaptureFixture[str],
) -> Done:
    """What a program does with a plan.

    Args:
        measure: of the program.
        plan: of it.
        folder: where it is written.
        capture: pytest's `capfd`, which sees what the runtime itself writes.
    """
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    capture.readouterr()
    code = answer_plan(["measure.py", str(path)], measure)
    out, err = capture.readouterr()
    return Done(code, out, err)
