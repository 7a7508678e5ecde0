"""The `report` task as the command line has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.requests import Option
from iree_gauntlet.tasks.options import gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["report_task"]


@gauntlet_task(
    "report",
    (
        Option(
            "run", None, "Folder of the run, its name in runs/, or `latest`; several, in quotes with `inv`, to merge."
        ),
        Option("merge", "", "Make one run's folder of several runs (the shards of a suite), and its reports."),
        Option("lenient", False, "Merge runs of different IREEs too."),
    ),
    positional="run",
    usage="report RUN… [--merge DIR]",
)
def report_task(options: dict[str, Any]) -> ExitCode:
    """Make reports again from what was recorded, also of what was killed: of runs, comparisons, matrices, bisections.

    Examples: report latest
              report runs/20261121-051800-cpu
              report shard-1 shard-2 shard-3 --merge runs/whole
    """
    from iree_gauntlet.tasks.report import report  # noqa: PLC0415

    return report(options)
