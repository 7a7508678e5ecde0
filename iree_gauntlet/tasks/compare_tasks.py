"""The `compare` task as the command line has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.requests import CompareRequest, Defaults, RunRequest, options_of, read
from iree_gauntlet.tasks.options import CACHE, IREE, RUNNING, SELECTION, gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["compare_task"]

_RUNNING = (
    *("jobs", "resume", "run_dir", "offline", "force_recompile", "timeout_import", "timeout_parameters"),
    *("timeout_compile", "timeout_threshold", "timeout_benchmark", "timeout_stall", "disturbed"),
)
_OPTIONS = (
    *options_of(CompareRequest),
    *SELECTION,
    *CACHE,
    *(option for option in IREE if option.name != "iree"),
    *(option for option in RUNNING if option.name in _RUNNING),
)


@gauntlet_task("compare", _OPTIONS)
def compare_task(options: dict[str, Any]) -> ExitCode:
    """Compare two IREEs, A B, on this machine: which models got slower or faster, by how much, and where.

    Both compile the selection and check its numbers; then processes of both take turns until each model has its
    verdict: slower, faster, same or inconclusive. Exit codes: 0 nothing slower, 1 slower, 2 usage, 3 not everything
    could be measured, 4 inconclusive, 130 interrupted.

    Examples: compare 3.12.0 3.13.0 --suite cpu
              compare installed build:../iree-build --suite cpu --model dtln --cpus 1
              compare 3.12.0 3.13.0 --suite cpu --model minilm --metric compile-time
              compare --resume
    """
    from iree_gauntlet.tasks.compare import compare  # noqa: PLC0415

    return compare(read(CompareRequest, options), RunRequest.of(options, Defaults()))
