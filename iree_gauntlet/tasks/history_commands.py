"""The commands of histories, as the command line has them.

What they do is imported when they run: `--list` must be quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.requests import ClusterRequest, ConductRequest, FormatRequest
from iree_gauntlet.tasks.cluster_commands import machines_of
from iree_gauntlet.tasks.task_options import console_presenter, gauntlet_task
from iree_gauntlet.upkeep.upkeep_requests import (
    AddRequest,
    AskRequest,
    CheckRequest,
    ConfirmRequest,
    ExportRequest,
    HistoryRequest,
    ImportRequest,
    PageRequest,
    PruneRequest,
)

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


@gauntlet_task("history.add", AddRequest)
def history_add_task(asked: AddRequest) -> ExitCode:
    """Add runs to a history: what they measured, with what and where, and what came of it.

    Examples: history.add
              history.add runs/20261124-164453-cpu --store git:origin#history
    """
    from iree_gauntlet.upkeep.history_keep import add  # noqa: PLC0415

    return add(asked)


@gauntlet_task("history.import", ImportRequest)
def history_import_task(asked: ImportRequest) -> ExitCode:
    """Add what other tools have kept: job_summary.json, Google Benchmark's JSON, data.js, results of asv.

    Examples: history.import dev/bench/data.js
              history.import job_summary.json --date 2026-04-24T10:00:00Z --commit b48a595557 --sku mi325
    """
    from iree_gauntlet.upkeep.history_keep import add_imported  # noqa: PLC0415

    return add_imported(asked)


@gauntlet_task("history.list", HistoryRequest, FormatRequest)
def history_list_task(asked: HistoryRequest, output: FormatRequest) -> ExitCode:
    """Show the runs of a history, the newest last."""
    from iree_gauntlet.upkeep.history_keep import list_runs  # noqa: PLC0415

    return list_runs(asked, as_json=output.as_json)


@gauntlet_task("history.show", AskRequest, FormatRequest)
def history_show_task(asked: AskRequest, output: FormatRequest) -> ExitCode:
    """Show series of a history: their course, and where they changed.

    Example: history.show --series 'dtln/* time_ms'
    """
    from iree_gauntlet.upkeep.history_keep import show  # noqa: PLC0415

    return show(asked, as_json=output.as_json)


@gauntlet_task("history.check", CheckRequest, FormatRequest)
def history_check_task(asked: CheckRequest, output: FormatRequest) -> ExitCode:
    """Say what changed over all runs, the largest loss first.

    Exit codes: 0 nothing got worse, 1 something did and has not been won back, 4 something is suspected to, 2 usage,
    3 an error.

    Example: history.check --since 2026-11-01
    """
    from iree_gauntlet.upkeep.history_keep import check  # noqa: PLC0415

    return check(asked, as_json=output.as_json)


@gauntlet_task("history.confirm", ConfirmRequest, ClusterRequest)
def history_confirm_task(asked: ConfirmRequest, cluster: ClusterRequest) -> ExitCode:
    """Measure the two IREEs of a step in turns, as `compare` does: is it real, and which bisect finds its cause?

    Of the losses that fit, the surest one that can be measured is taken. What comes of it is kept in the history, and
    shown with the step.

    Example: history.confirm --series 'dtln/spectral@cpu time_ms'
    """
    from iree_gauntlet.upkeep.history_keep import confirm  # noqa: PLC0415

    with machines_of(cluster, ConductRequest()) as machines:
        return confirm(asked, console_presenter(), machines)


@gauntlet_task("history.page", PageRequest)
def history_page_task(asked: PageRequest) -> ExitCode:
    """Write a page of a history: what changed, and every series as a line. It needs neither network nor scripts.

    Example: history.page --series '* time_ms' --output times.html
    """
    from iree_gauntlet.upkeep.history_keep import page  # noqa: PLC0415

    return page(asked)


@gauntlet_task("history.export", ExportRequest)
def history_export_task(asked: ExportRequest) -> ExitCode:
    """Write all figures of a history as CSV.

    Example: history.export --series '* time_ms' --output times.csv
    """
    from iree_gauntlet.upkeep.history_keep import export  # noqa: PLC0415

    return export(asked)


@gauntlet_task("history.prune", PruneRequest)
def history_prune_task(asked: PruneRequest) -> ExitCode:
    """Remove old runs from a history.

    Example: history.prune --before 2026-01-31 --delete
    """
    from iree_gauntlet.upkeep.history_keep import prune  # noqa: PLC0415

    return prune(asked)
