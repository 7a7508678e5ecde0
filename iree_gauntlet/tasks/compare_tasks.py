"""The `compare` task as the command line has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.tasks.ending import finish
from iree_gauntlet.tasks.options import CACHE, IREE, RUNNING, SELECTION, Option, gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["COMPARE_OPTIONS", "SIDES", "compare_task"]

SIDES = "sides"

_RUNNING = (
    *("jobs", "resume", "run_dir", "offline", "force_recompile", "timeout_import", "timeout_parameters"),
    *("timeout_compile", "timeout_threshold", "timeout_benchmark", "timeout_stall", "disturbed"),
)


COMPARE_OPTIONS = (
    Option(SIDES, "", "A and B, as for --iree, where no words follow the task: --sides '3.12.0 3.13.0' with `inv`."),
    *SELECTION,
    *CACHE,
    *(option for option in IREE if option.name != "iree"),
    *(option for option in RUNNING if option.name in _RUNNING),
    Option("metric", "time", "What is compared: time (of benchmarks) or compile-time."),
    Option("least", 1.0, "The least difference that matters, in per cent."),
    Option("band", 3.0, "Within so many per cent two times are the same."),
    Option("budget", 30.0, "Minutes for the rounds of all models together."),
    Option("repetitions", 5, "Repetitions of a benchmark in each process."),
    Option("min_time", 0.05, "Seconds that a repetition takes at least."),
    Option("cpus", "", "Logical CPUs that rounds run on, such as 2 or 4-7 (default: all)."),
    Option("seed", 1, "Of the coins that choose the order of rounds."),
)


@gauntlet_task("compare", COMPARE_OPTIONS)
def compare_task(_context: Any, options: dict[str, Any]) -> None:
    """Compare two IREEs, A B, on this machine: which models got slower or faster, by how much, and where.

    Both compile the selection and check its numbers; then processes of both take turns until each model has its
    verdict: slower, faster, same or inconclusive. Exit codes: 0 nothing slower, 1 slower, 2 usage, 3 not everything
    could be measured, 4 inconclusive, 130 interrupted.

    Examples: compare 3.12.0 3.13.0 --suite cpu
              compare installed build:../iree-build --suite cpu --model dtln --cpus 1
              compare 3.12.0 3.13.0 --suite cpu --model minilm --metric compile-time
              compare --resume
    """

    def work() -> ExitCode:
        from iree_gauntlet.tasks.compare import compare  # noqa: PLC0415

        return compare(options)

    finish(work)
