"""The commands for goldens, caches, toolchains, reports and histories, as the command line defines them.

A command's implementation is imported only when the command runs, because `--list` must be quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.requests import (
    DEFAULT_SUITE,
    SEVERAL,
    CacheRequest,
    ClusterRequest,
    Defaults,
    ExecutionRequest,
    FormatRequest,
    NetworkRequest,
    Option,
    RunRequest,
    SelectionRequest,
    ToolchainRequest,
    list_options,
)
from iree_gauntlet.stages import CHECK_STAGES
from iree_gauntlet.tasks.cluster_commands import open_cluster
from iree_gauntlet.tasks.task_options import (
    CACHE,
    RUNNING,
    SELECTION,
    TOOLCHAIN,
    console_presenter,
    gauntlet_task,
    part_of,
    run_part,
)
from iree_gauntlet.upkeep.upkeep_requests import (
    AddRequest,
    ArtifactsRequest,
    BuildRequest,
    CheckRequest,
    CollectRequest,
    ConfirmRequest,
    ExportRequest,
    GoldenSetRequest,
    GoldenShowRequest,
    GoldenUpdateRequest,
    HistoryRequest,
    ImportRequest,
    InitRequest,
    LockRequest,
    PageRequest,
    PruneRequest,
    ReferenceRequest,
    SchemaRequest,
    SeriesRequest,
    VerifyRequest,
    XfailUpdateRequest,
)

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


_NETWORK_OPTIONS = list_options(NetworkRequest)
_HISTORY_PART = part_of(SeriesRequest, "cache_dir", "store", "marks")
_RECORD_PART = run_part((*SELECTION, *CACHE, *_NETWORK_OPTIONS), Defaults())
# The options for repeating a run; they include the checks' time limits, which can be why a check failed.
_RERUN_OPTIONS = ("jobs", "offline", *(f"timeout_{stage}" for stage in CHECK_STAGES.values()))


def _concerns_history(request: GoldenUpdateRequest, series: SeriesRequest) -> bool:
    """Return True if golden times are to come from a history, or an option that is only for this is given."""
    return bool(request.from_history or request.rule or request.summary or series.store or series.marks)


def _make_words_option(name: str, text: str) -> Option:
    """Return an option whose values are the words after the task; at least one word is required."""
    return Option(name, None, text, takes=SEVERAL)


@gauntlet_task("init", InitRequest)
def init_task(request: InitRequest) -> ExitCode:
    """Start a project: a model with its spec, a suite, settings, and a workflow for GitHub.

    Nothing is overwritten without --again; if it fails, nothing is left behind.

    Examples: init
              init my-models --program resnet18.onnx
              init my-models --program resnet18.onnx --shape x=4x3x224x224 --again
              init my-models --program reproducer.mlir --function main
              init my-models --program model.py:dense
    """
    from iree_gauntlet.upkeep.project_start import init  # noqa: PLC0415

    return init(request)


@gauntlet_task("schema", SchemaRequest)
def schema_task(request: SchemaRequest) -> ExitCode:
    """Print the JSON Schema of a format, with which editors complete and check the files that people write.

    Examples: schema
              schema suite
              schema --output-dir .schemas
    """
    from iree_gauntlet.upkeep.format_schemas import print_schemas  # noqa: PLC0415

    return print_schemas(request)


@gauntlet_task("golden.record", _RECORD_PART, ReferenceRequest)
def golden_record_task(request: RunRequest, references: ReferenceRequest) -> ExitCode:
    """Record expected outputs of models with the strongest reference, next to their specs, with provenance.

    ONNX is run by onnxruntime, TFLite by LiteRT, StableHLO by XLA. Other MLIR has no reference but IREE, another way.
    """
    from iree_gauntlet.upkeep.golden_record import record  # noqa: PLC0415

    return record(request, references)


@gauntlet_task(
    "golden.sensitivity", _RECORD_PART, Option("write", False, "Write the share into the provenance of the outputs.")
)
def golden_sensitivity_task(request: RunRequest, write: bool) -> ExitCode:
    """Show in which weights of ONNX models the expected outputs would reveal an error of 1 %.

    Scales each weight by 1.01, one at a time, and runs the model with a reference (onnxruntime, else the evaluator of
    onnx): this shows whether a spec's tolerance and inputs can tell a wrong result from a right one.

    Example: golden.sensitivity --model dtln --write
    """
    from iree_gauntlet.upkeep.golden_record import measure_sensitivity  # noqa: PLC0415

    return measure_sensitivity(request, write=write)


@gauntlet_task("golden.set", SelectionRequest, GoldenSetRequest, _HISTORY_PART)
def golden_set_task(selection: SelectionRequest, request: GoldenSetRequest, series: SeriesRequest) -> ExitCode:
    """Write goldens where specs have none, from what runs measured; without --write, only show them, as a diff.

    Counts, sizes, memory and instructions are for the compiler's release, and times for the SKU of the run. Figures of
    failed, unfinished or disturbed measurements do not count, and are reported. With --from-history, golden times of
    each SKU come from a history, with what they would have called red there.

    Examples: golden.set
              golden.set --run 20261121-051800-custom --sku my-desk --time-tolerance 1.1 --write
              golden.set --from-history --rule '1 in 100' --summary goldens.md
    """
    if _concerns_history(request, series):
        from iree_gauntlet.upkeep.history_goldens import set_from_history  # noqa: PLC0415

        return set_from_history(selection, request, series)
    from iree_gauntlet.upkeep.spec_goldens import set_first  # noqa: PLC0415

    return set_first(selection, request)


@gauntlet_task("golden.update", SelectionRequest, GoldenUpdateRequest, _HISTORY_PART)
def golden_update_task(selection: SelectionRequest, request: GoldenUpdateRequest, series: SeriesRequest) -> ExitCode:
    """Propose golden times, dispatch counts and sizes from what runs measured, as a diff of the specs.

    Figures of failed, unfinished or disturbed measurements do not count, and are reported. With --from-history, golden
    times come from a history, with what they would have called red there.

    Examples: golden.update --last 5
              golden.update --model dtln --write
              golden.update --from-history --rule '1 in 100' --summary goldens.md
    """
    if _concerns_history(request, series):
        from iree_gauntlet.upkeep.history_goldens import update_from_history  # noqa: PLC0415

        return update_from_history(selection, request, series)
    from iree_gauntlet.upkeep.spec_goldens import update  # noqa: PLC0415

    return update(selection, request)


@gauntlet_task(
    "xfail.update",
    XfailUpdateRequest,
    # --suite names the suite that is changed; the run determines the selection.
    run_part((*CACHE, *(option for option in RUNNING if option.name in _RERUN_OPTIONS)), Defaults()),
)
def xfail_update_task(update_request: XfailUpdateRequest, run_request: RunRequest) -> ExitCode:
    """Propose expected failures as a run found them, as a diff of the suite, or of operator suites' configs.

    Cases that pass now are removed; new failures are added with stage and first diagnostic. Comments and order stay.

    Examples: xfail.update --write
              xfail.update --run 20261121-051800-custom --rerun 0 --output xfail.patch
    """
    from iree_gauntlet.upkeep.xfail_update import update  # noqa: PLC0415

    return update(update_request, run_request)


@gauntlet_task("golden.show", SelectionRequest, GoldenShowRequest)
def golden_show_task(selection: SelectionRequest, request: GoldenShowRequest) -> ExitCode:
    """Show every golden of the selection, with the newest figure that was measured for it.

    Example: golden.show --model 'dtln*' --target cpu
    """
    from iree_gauntlet.upkeep.spec_goldens import show  # noqa: PLC0415

    return show(selection, request)


@gauntlet_task(
    "cache.list",
    CacheRequest,
    FormatRequest,
    Option("match", "", "Only names that match this glob, such as '*.irpa'."),
    Option("board", "", "The cache of this board: 'ssh HOST', as its `runner`."),
)
def cache_list_task(cache: CacheRequest, output: FormatRequest, match: str, board: str) -> ExitCode:
    """Show what is in the cache, largest first: size, last use, pinned or not, verified or not.

    Example: cache.list --match '*.irpa'
    """
    if board:
        from iree_gauntlet.upkeep.board_cache import list_board_cache  # noqa: PLC0415

        return list_board_cache(board, match, as_json=output.as_json)
    from iree_gauntlet.upkeep.cache_list import list_cache  # noqa: PLC0415

    return list_cache(cache.cache_dir, match, as_json=output.as_json)


@gauntlet_task("cache.verify", VerifyRequest)
def cache_verify_task(request: VerifyRequest) -> ExitCode:
    """Hash everything in the cache again, and fetch damaged files again. Exit code 3 if damage remains."""
    from iree_gauntlet.upkeep.cache_cleaning import verify  # noqa: PLC0415

    return verify(request)


@gauntlet_task("cache.gc", CollectRequest)
def cache_gc_task(request: CollectRequest) -> ExitCode:
    """Free space: remove what was not used for long, but never what a running process uses.

    Example: cache.gc --older-than 30d --max-size 50GB --delete
    """
    if request.board:
        from iree_gauntlet.upkeep.board_cache import collect_board_garbage  # noqa: PLC0415

        return collect_board_garbage(request)
    from iree_gauntlet.upkeep.cache_cleaning import collect_garbage  # noqa: PLC0415

    return collect_garbage(request)


@gauntlet_task("cache.lock", LockRequest)
def cache_lock_task(request: LockRequest) -> ExitCode:
    """Write hashes that were learnt on this machine into cache/registry.txt, to be committed, and show what changes."""
    from iree_gauntlet.upkeep.cache_lock import lock_hashes  # noqa: PLC0415

    return lock_hashes(request)


@gauntlet_task(
    "cache.where", Option("url", None, "The URL as in a spec."), CacheRequest, FormatRequest, usage="cache.where URL"
)
def cache_where_task(url: str, cache: CacheRequest, output: FormatRequest) -> ExitCode:
    """Print the local path of a URL's file; exit code 3 if it is not there yet.

    Example: cp "$(gauntlet cache.where https://host/weights.irpa)" .
    """
    from iree_gauntlet.upkeep.cache_list import print_location  # noqa: PLC0415

    return print_location(url, cache.cache_dir, as_json=output.as_json)


@gauntlet_task(
    "cache.export",
    run_part((*SELECTION, *TOOLCHAIN, *_NETWORK_OPTIONS), Defaults(suite=DEFAULT_SUITE)),
    Option("output", "", "The archive to write."),
)
def cache_export_task(request: RunRequest, output: str) -> ExitCode:
    """Pack what the selection needs, modules included, into one archive, for a machine without a network.

    Example: cache.export --suite cpu --output cpu.tar
    """
    from iree_gauntlet.upkeep.cache_archive import export_cache  # noqa: PLC0415

    return export_cache(request, output)


@gauntlet_task(
    "cache.import",
    Option("archive", None, "An archive that `cache.export` wrote."),
    CacheRequest,
    usage="cache.import ARCHIVE",
)
def cache_import_task(archive: str, cache: CacheRequest) -> ExitCode:
    """Put an archive's contents into the cache; every file is checked, and nothing else is touched."""
    from iree_gauntlet.upkeep.cache_archive import import_cache  # noqa: PLC0415

    return import_cache(Path(archive), cache.cache_dir)


@gauntlet_task(
    "toolchain.install",
    _make_words_option(
        "version", "Releases, ranges, nightlies, commit:SHA or wheels:DIR; with `inv`, --version for each."
    ),
    CacheRequest,
    part_of(NetworkRequest, "offline"),
    usage="toolchain.install VERSION…",
)
def toolchain_install_task(versions: tuple[str, ...], cache: CacheRequest, network: NetworkRequest) -> ExitCode:
    """Install releases of IREE for all projects (or into the cache of --cache-dir), each in an environment of its own.

    Examples: toolchain.install 3.9.0 3.12.0
              toolchain.install nightly
              toolchain.install commit:89ece87b
              toolchain.install wheels:dist
    """
    from iree_gauntlet.upkeep.installed_toolchains import install  # noqa: PLC0415

    return install(versions, cache.cache_dir, offline=network.offline)


@gauntlet_task(
    "toolchain.build",
    _make_words_option("sources", "Checkouts of IREE: DIR for the work tree, DIR@REF for a commit."),
    BuildRequest,
    usage="toolchain.build SOURCE… [--commit REF]",
)
def toolchain_build_task(sources: tuple[str, ...], request: BuildRequest) -> ExitCode:
    """Build IREE from source for all projects (or into the cache of --cache-dir): a work tree as it is, or a commit.

    Examples: toolchain.build ../iree
              toolchain.build ../iree --commit main --option -DIREE_TARGET_BACKEND_CUDA=ON
              toolchain.build ../iree --runtime-only
    """
    from iree_gauntlet.upkeep.installed_toolchains import build  # noqa: PLC0415

    return build(sources, request)


@gauntlet_task("toolchain.list", CacheRequest, FormatRequest)
def toolchain_list_task(cache: CacheRequest, output: FormatRequest) -> ExitCode:
    """Show which IREE is installed, and those that all projects share, with their size and last use."""
    from iree_gauntlet.upkeep.installed_toolchains import list_toolchains  # noqa: PLC0415

    return list_toolchains(cache.cache_dir, as_json=output.as_json)


@gauntlet_task("toolchain.show", ToolchainRequest, FormatRequest)
def toolchain_show_task(toolchain: ToolchainRequest, output: FormatRequest) -> ExitCode:
    """Show what --iree would use: paths, versions, commits, identities. Installs nothing.

    Example: toolchain.show --iree build:../iree-build
    """
    from iree_gauntlet.upkeep.installed_toolchains import show  # noqa: PLC0415

    return show(toolchain, as_json=output.as_json)


@gauntlet_task(
    "toolchain.remove",
    _make_words_option("version", "Versions, or names as `toolchain.list` shows them."),
    CacheRequest,
    usage="toolchain.remove VERSION…",
)
def toolchain_remove_task(versions: tuple[str, ...], cache: CacheRequest) -> ExitCode:
    """Delete releases of IREE from the cache; one that a running process uses is kept.

    Example: toolchain.remove 3.9.0
    """
    from iree_gauntlet.upkeep.installed_toolchains import remove  # noqa: PLC0415

    return remove(versions, cache.cache_dir)


@gauntlet_task(
    "report",
    _make_words_option(
        "run", "Folder of the run, its name in runs/, or `latest`; several to merge: with `inv`, --run for each."
    ),
    Option("merge", "", "Merge several runs (the shards of a suite) into one run's folder, with its reports."),
    Option("lenient", False, "Merge runs of different IREEs too."),
    Option("index", False, "Make index.html, the page of all runs, in RUN, a folder of runs (default: runs/)."),
    usage="report RUN… [--merge DIR] | report --index",
)
def report_task(runs: tuple[str, ...], merge: str, lenient: bool, index: bool) -> ExitCode:
    """Write reports again from the records of runs, comparisons, matrices and bisections, also of killed ones.

    Examples: report latest
              report runs/20261121-051800-cpu
              report shard-1 shard-2 shard-3 --merge runs/whole
              report --index
    """
    from iree_gauntlet.tasks.report import report, write_runs_page  # noqa: PLC0415

    return write_runs_page(runs) if index else report(runs, merge, lenient=lenient)


@gauntlet_task(
    "shard.costs",
    _make_words_option("runs", "Folders of runs, or their names in runs/; with `inv`, --runs for each."),
    Option("output", "", "File to write, for --shard-costs (default: standard output)."),
    usage="shard.costs RUN… --output FILE",
)
def shard_costs_task(runs: tuple[str, ...], output: str) -> ExitCode:
    """Write the seconds that each chain took in some runs (their median), to balance shards.

    Example: shard.costs runs/20261121-051800-ops runs/20261122-051800-ops --output ops-costs.json
    """
    from iree_gauntlet.experiments.shards import record_costs  # noqa: PLC0415

    return record_costs(runs, output)


@gauntlet_task("history.add", AddRequest)
def history_add_task(request: AddRequest) -> ExitCode:
    """Add runs to a history: what they measured, with what and where, and the results.

    Examples: history.add
              history.add runs/20261124-164453-cpu --store git:origin#history
    """
    from iree_gauntlet.upkeep.history_keep import add  # noqa: PLC0415

    return add(request)


@gauntlet_task("history.import", ImportRequest)
def history_import_task(request: ImportRequest) -> ExitCode:
    """Add results of other tools: job_summary.json, Google Benchmark's JSON, data.js, results of asv, JUnit.

    Examples: history.import dev/bench/data.js
              history.import job_summary.json --date 2026-04-24T10:00:00Z --commit b48a595557 --sku mi325
    """
    from iree_gauntlet.upkeep.history_keep import add_imported  # noqa: PLC0415

    return add_imported(request)


@gauntlet_task("history.collect", ArtifactsRequest, part_of(NetworkRequest, "timeout_stall"))
def history_collect_task(request: ArtifactsRequest, network: NetworkRequest) -> ExitCode:
    """Add what CI has kept, before it is deleted: runs' records, and results of other tools, each artifact once.

    The token is in $GITHUB_TOKEN or $GH_TOKEN, GitHub's address in $GITHUB_API_URL. Exit code 3 if an artifact has
    expired or cannot be read (all others are added), 5 if there are artifacts and none ever matched.

    Examples: history.collect github:OWNER/REPO --workflow benchmarks.yml --artifact 'results-*' --branch main
              history.collect s3://bucket/artifacts --artifact 'results-*'
    """
    from iree_gauntlet.upkeep.history_collect import collect  # noqa: PLC0415

    return collect(request, network)


@gauntlet_task("history.list", HistoryRequest, FormatRequest)
def history_list_task(request: HistoryRequest, output: FormatRequest) -> ExitCode:
    """Show the runs of a history, the newest last."""
    from iree_gauntlet.upkeep.history_keep import list_runs  # noqa: PLC0415

    return list_runs(request, as_json=output.as_json)


@gauntlet_task("history.show", SeriesRequest, FormatRequest)
def history_show_task(request: SeriesRequest, output: FormatRequest) -> ExitCode:
    """Show series of a history over time, and where they changed.

    Example: history.show --series 'dtln/* time_ms'
    """
    from iree_gauntlet.upkeep.history_keep import show  # noqa: PLC0415

    return show(request, as_json=output.as_json)


@gauntlet_task("history.check", CheckRequest, FormatRequest)
def history_check_task(request: CheckRequest, output: FormatRequest) -> ExitCode:
    """Show what changed over all runs, the largest loss first.

    Exit codes: 0 nothing got worse, 1 something did and has not recovered, 4 something is suspected to have, 2 usage,
    3 an error.

    Example: history.check --since 2026-11-01
    """
    from iree_gauntlet.upkeep.history_keep import check  # noqa: PLC0415

    return check(request, as_json=output.as_json)


@gauntlet_task("history.confirm", ConfirmRequest, ClusterRequest)
def history_confirm_task(request: ConfirmRequest, cluster: ClusterRequest) -> ExitCode:
    """Measure the two IREEs of a step in turns, as `compare` does: is it real, and which bisect finds its cause?

    Of the losses that match, the surest one that can be measured is used. The result is kept in the history, and
    shown with the step.

    Example: history.confirm --series 'dtln/spectral@cpu time_ms'
    """
    from iree_gauntlet.upkeep.history_keep import confirm  # noqa: PLC0415

    with open_cluster(cluster, ExecutionRequest()) as machines:
        return confirm(request, console_presenter(), machines)


@gauntlet_task("history.page", PageRequest)
def history_page_task(request: PageRequest) -> ExitCode:
    """Write a page of a history: what changed, and every series as a line. It needs neither network nor scripts.

    Example: history.page --series '* time_ms' --output times.html
    """
    from iree_gauntlet.upkeep.history_keep import page  # noqa: PLC0415

    return page(request)


@gauntlet_task("history.export", ExportRequest)
def history_export_task(request: ExportRequest) -> ExitCode:
    """Write all figures of a history as CSV.

    Example: history.export --series '* time_ms' --output times.csv
    """
    from iree_gauntlet.upkeep.history_keep import export  # noqa: PLC0415

    return export(request)


@gauntlet_task("history.prune", PruneRequest)
def history_prune_task(request: PruneRequest) -> ExitCode:
    """Remove old runs from a history.

    Example: history.prune --before 2026-01-31 --delete
    """
    from iree_gauntlet.upkeep.history_keep import prune  # noqa: PLC0415

    return prune(request)
