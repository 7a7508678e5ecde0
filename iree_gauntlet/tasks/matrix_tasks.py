"""The `matrix` task as the command line has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.requests import DEFAULT_SUITE, Defaults, Option, RunRequest
from iree_gauntlet.tasks.options import CACHE, IREE, RUNNING, SELECTION, gauntlet_task
from iree_gauntlet.tasks.stages_option import STAGES, asked_stages

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["matrix_task"]

_IREES = Option(
    "iree",
    [],
    "One IREE of the matrix; give it once for each, the base first: 3.12.0, '>=3.9,<3.12', nightly, wheels:DIR, "
    "venv:DIR, build:DIR, path, installed.",
)
_SIDES = tuple(
    Option(option.name, "", f"{option.help[:-1]}: the same in all runs.") for option in IREE if option.name != "iree"
)
_CHANGED = {
    "fail_fast": "Stop at the first failure, and after the first IREE that fails.",
    "resume": "Continue the newest matrix (or --run-dir): finished IREEs stay, the one that was killed goes on.",
    "run_dir": "Folder of this matrix (default: runs/<time>-matrix).",
}
_RUNNING = tuple(
    Option(option.name, option.default, _CHANGED.get(option.name, option.help), option.short)
    for option in RUNNING
    # What failed lies in one run; a matrix has several.
    if option.name != "last_failed"
)


@gauntlet_task("matrix", (*SELECTION, *CACHE, _IREES, *_SIDES, *_RUNNING, STAGES))
def matrix_task(options: dict[str, Any]) -> ExitCode:
    """Run the same selection with several IREEs, one after the other, and put the results beside each other.

    Examples: matrix --iree 3.5.0 --iree 3.9.0 --iree 3.12.0 --iree 3.13.0 --suite releases
              matrix --iree installed --iree build:../iree-build --model minilm
              matrix --resume
    """
    from iree_gauntlet.tasks.matrix import matrix  # noqa: PLC0415 - `list` must not wait for it

    # Of several IREEs, which a request has one of.
    values = {name: value for name, value in options.items() if name != _IREES.name}
    request = RunRequest.of(values, Defaults(suite=DEFAULT_SUITE), asked_stages(options))
    return matrix(options[_IREES.name], request, options)
