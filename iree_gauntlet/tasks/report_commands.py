"""The commands about what was recorded: `report` and `shard.costs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from invoke.collection import Collection

from iree_gauntlet.option import Option
from iree_gauntlet.tasks.task_options import gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


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

    return report(options["run"], options["merge"], lenient=options["lenient"])


@gauntlet_task(
    "costs",
    (
        Option("runs", None, "Folders of runs, or their names in runs/; several in quotes with `inv`."),
        Option("output", "", "File to write, for --shard-costs (default: standard output)."),
    ),
    positional="runs",
    usage="shard.costs RUN… --output FILE",
)
def costs_task(options: dict[str, Any]) -> ExitCode:
    """Write the seconds that each chain took in some runs (their median), to balance shards by.

    Example: shard.costs runs/20261121-051800-ops runs/20261122-051800-ops --output ops-costs.json
    """
    from iree_gauntlet.experiments.shards import record_costs  # noqa: PLC0415

    return record_costs(options["runs"], options["output"])


def shard_collection() -> Collection:
    """The tasks on shards under their common name."""
    return Collection("shard", costs_task)
