"""The `bisect` task as the command line has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.tasks.ending import finish
from iree_gauntlet.tasks.options import CACHE, IREE, RUNNING, SELECTION, Option, gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["BISECT_OPTIONS", "bisect_task"]

_RUNNING = ("jobs", "offline", "disturbed")

BISECT_OPTIONS = (
    Option("good", "", "The IREE that is good: a release, a nightly, or any form of --iree with --among."),
    Option("bad", "", "The IREE that is bad; it may be older than the good one."),
    Option("metric", "", "What to look at: time, compile-time, size, dispatches, error, compiles or runs."),
    Option("nightlies", False, "Search among nightlies (so it is where an end is one)."),
    Option("among", [], "What lies between, in order, in any form of --iree (repeatable)."),
    Option("budget", 0.0, "Minutes for the rounds of each candidate (default 30; times only)."),
    Option("repetitions", 0, "Repetitions of a benchmark in each process (default 5; times only)."),
    Option("min_time", 0.0, "Seconds that a repetition takes at least (default 0.05; times only)."),
    Option("cpus", "", "Logical CPUs that rounds run on, such as 2 or 4-7 (default: all; times only)."),
    Option("every", False, "Try every candidate: finds changes back and forth too."),
    *SELECTION,
    *CACHE,
    *(option for option in IREE if option.name != "iree"),
    *(option for option in RUNNING if option.name in _RUNNING or option.name.startswith("timeout_")),
    Option("run_dir", "", "Folder of this bisect (default: runs/<time>-bisect)."),
    Option("resume", False, "Continue the newest bisect (or --run-dir), as it was asked for, where it was cut short."),
)


@gauntlet_task("bisect", BISECT_OPTIONS)
def bisect_task(_context: Any, options: dict[str, Any]) -> None:
    """Find the release since which something is as it is: since when slower, larger, wrong?

    Examples: bisect --good 3.5.0 --bad 3.13.0 --model dtln --submodel temporal --metric dispatches
              bisect --good 3.13.0 --bad nightly --nightlies --model rapidocr --submodel rec --metric compiles
              bisect --good build:../a --bad build:../c --among build:../b --model toy --metric size
    """

    def work() -> ExitCode:
        from iree_gauntlet.tasks.bisect import bisect  # noqa: PLC0415

        return bisect(options)

    finish(work)
