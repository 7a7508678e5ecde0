"""The commands that run something, show what would run and with which tools, or explain the results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.device_kinds import CPU, ROCM
from iree_gauntlet.requests import (
    DEFAULT_SUITE,
    BisectRequest,
    CacheRequest,
    ClusterRequest,
    CodeDiffRequest,
    CompareRequest,
    CompatRequest,
    Defaults,
    ExplainRequest,
    FormatRequest,
    MicroRequest,
    Option,
    QualifyRequest,
    RunRequest,
    SelectionRequest,
    ShardRequest,
    ToolchainRequest,
    list_options,
)
from iree_gauntlet.stages import Stage
from iree_gauntlet.tasks.cluster_commands import open_cluster
from iree_gauntlet.tasks.task_options import (
    BATCH,
    CACHE,
    COUNTING,
    RUNNING,
    SELECTION,
    SHARD,
    TOOLCHAIN,
    TaskPart,
    console_presenter,
    describe_defaults,
    gauntlet_task,
    run_part,
)
from iree_gauntlet.torch_models.bench_options import OPTIONS, BenchOption, BenchOptions, read_options

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


# The defaults of sharktank's programs, so that their command lines mean the same here.
_THRESHOLD_DEFAULTS = Defaults(model="sdxl", targets=(CPU.family, ROCM.family), sku="mi300")
_BENCHMARK_DEFAULTS = Defaults(model="sdxl", targets=(ROCM.family,), sku="mi300")
_DEFAULTS = Defaults(suite=DEFAULT_SUITE)

_TOOL_OPTIONS = list_options(ToolchainRequest, "iree_compiler", "iree_runtime")
_BISECT_IREE_OPTION = replace(list_options(ToolchainRequest, "iree")[0], help="With --flags: the IREE, as for `run`.")
_TIMEOUTS = tuple(option.name for option in RUNNING if option.name.startswith("timeout_"))
_BUNDLE_OPTION = Option("bundle", None, "A bundle that `explain` wrote: the archive, or its folder.")


_RUN_OPTIONS = (*SELECTION, *TOOLCHAIN, *RUNNING, *BATCH, *SHARD)
_STAGE_OPTIONS = (*list_options(RunRequest, "stages", "instructions", "memory"), *COUNTING)
_EXPLAIN_OPTIONS = list_options(RunRequest, "explain")


def _run(request: RunRequest, cluster: ClusterRequest) -> ExitCode:
    from iree_gauntlet.experiments.run import execute  # noqa: PLC0415 - `list` must not wait for it

    with open_cluster(cluster, request.execution) as machines:
        return execute(request, console_presenter(), machines)


@gauntlet_task("list", SelectionRequest, ShardRequest, FormatRequest)
def list_task(selection: SelectionRequest, shard: ShardRequest, output: FormatRequest) -> ExitCode:
    """Show the available models, submodels, targets and markers."""
    from iree_gauntlet.tasks.inspect import list_cases  # noqa: PLC0415

    return list_cases(selection, shard, as_json=output.as_json)


@gauntlet_task("plan", run_part((*_RUN_OPTIONS, *_STAGE_OPTIONS), _DEFAULTS), FormatRequest)
def plan_task(request: RunRequest, output: FormatRequest) -> ExitCode:
    """Show what `run` would do, and why each step would or would not come from the cache.

    Touches no network and runs nothing. --format json gives every step with its exact argument vector.
    """
    from iree_gauntlet.tasks.inspect import show_plan  # noqa: PLC0415

    return show_plan(request, as_json=output.as_json)


@gauntlet_task(
    "lint",
    SelectionRequest,
    ToolchainRequest,
    Option("toolchain", False, "Check flags against the IREE of --iree too."),
)
def lint_task(selection: SelectionRequest, toolchain: ToolchainRequest, check_flags: bool) -> ExitCode:
    """Check spec files: reads everything that is selected and reports all problems at once."""
    from iree_gauntlet.tasks.inspect import lint  # noqa: PLC0415

    return lint(selection, toolchain if check_flags else None)


@gauntlet_task("fetch", run_part(_RUN_OPTIONS, _DEFAULTS, Stage.FETCH), ClusterRequest)
def fetch_task(request: RunRequest, cluster: ClusterRequest) -> ExitCode:
    """Download programs, weights, inputs and expected outputs of the selection into the cache."""
    return _run(request, cluster)


@gauntlet_task("compile", run_part((*_RUN_OPTIONS, *_EXPLAIN_OPTIONS), _DEFAULTS, Stage.COMPILE), ClusterRequest)
def compile_task(request: RunRequest, cluster: ClusterRequest) -> ExitCode:
    """Compile the selected models."""
    return _run(request, cluster)


@gauntlet_task(
    "threshold",
    run_part(
        describe_defaults((*_RUN_OPTIONS, *_EXPLAIN_OPTIONS), model="sdxl", sku="mi300", target="cpu and rocm"),
        _THRESHOLD_DEFAULTS,
        Stage.THRESHOLD,
    ),
    ClusterRequest,
)
def threshold_task(request: RunRequest, cluster: ClusterRequest) -> ExitCode:
    """Compile, run and compare outputs with the expected ones (sharktank's run_thresholds.py).

    Example: threshold --model=sdxl --submodel='clip*' --rocm-chip=gfx942 --sku=mi300
    """
    return _run(request, cluster)


@gauntlet_task(
    "benchmark",
    run_part(
        describe_defaults((*_RUN_OPTIONS, *_EXPLAIN_OPTIONS), model="sdxl", sku="mi300", target="rocm (gfx942)"),
        _BENCHMARK_DEFAULTS,
        Stage.COMPSTAT,
        Stage.BENCHMARK,
    ),
    ClusterRequest,
)
def benchmark_task(request: RunRequest, cluster: ClusterRequest) -> ExitCode:
    """Compile, measure and check golden times, dispatch counts and sizes (sharktank's run_benchmarks.py).

    Example: benchmark --model=sdxl --filename=clip_rocm --sku=mi300 --backend=gfx942
    """
    return _run(request, cluster)


@gauntlet_task("run", run_part((*_RUN_OPTIONS, *_STAGE_OPTIONS, *_EXPLAIN_OPTIONS), _DEFAULTS), ClusterRequest)
def run_task(request: RunRequest, cluster: ClusterRequest) -> ExitCode:
    """Run the gauntlet: compile → threshold → benchmark for the selection (default: suites/cpu.toml).

    Examples: run --suite suites/cpu.toml -j 2
              run --model rapidocr --submodel 'det*' --force-recompile
              run --model dtln --explain
              run --suite cpu --cluster tcp://127.0.0.1:8786
              run --resume
    """
    return _run(request, cluster)


@gauntlet_task("doctor", ToolchainRequest, FormatRequest)
def doctor_task(toolchain: ToolchainRequest, output: FormatRequest) -> ExitCode:
    """Show what is present and what is missing: IREE, drivers, devices, disk, and what would spoil a benchmark.

    Exit code 3 if nothing can run: there is no IREE, or the cache or the folder of runs cannot be written. What a
    single target, board or package lacks does not change the exit code; --format json has the status of each.
    """
    from iree_gauntlet.tasks.doctor import doctor  # noqa: PLC0415

    return doctor(toolchain, as_json=output.as_json)


@gauntlet_task("devices", ToolchainRequest, FormatRequest)
def devices_task(toolchain: ToolchainRequest, output: FormatRequest) -> ExitCode:
    """List the devices that IREE can use on this machine, by driver, with their names and driver versions.

    --device accepts a driver (vulkan), a device's ordinal (hip://1), or a device's own name (vulkan://GPU-…).
    """
    from iree_gauntlet.tasks.doctor import list_devices  # noqa: PLC0415

    return list_devices(toolchain, as_json=output.as_json)


def _list_running_options(*names: str, **help_by_name: str) -> tuple[Option, ...]:
    """Return options of a run; `help_by_name` replaces the help of some of these options."""
    options = (option for option in RUNNING if option.name in (*names, *help_by_name))
    return tuple(replace(option, help=help_by_name.get(option.name, option.help)) for option in options)


@gauntlet_task(
    "compare",
    CompareRequest,
    run_part(
        (
            *SELECTION,
            *CACHE,
            *_TOOL_OPTIONS,
            *_list_running_options("jobs", "resume", "run_dir", "offline", "force_recompile", "disturbed", *_TIMEOUTS),
            *list_options(RunRequest, "memory"),
            *COUNTING,
        ),
        Defaults(),
    ),
    ClusterRequest,
)
def compare_task(compare_request: CompareRequest, run_request: RunRequest, cluster: ClusterRequest) -> ExitCode:
    """Compare two IREEs, A B, on one machine: which models got slower or faster, by how much, and where.

    Both compile the selection and check its numbers; then processes of both take turns until each model has its
    verdict: slower, faster, same, not slower or inconclusive. With --metric instructions the instructions of one call
    are counted instead: more, less or the same work. Exit codes: 0 nothing slower and no more work, 1 slower or more
    work, 2 usage, 3 not everything could be measured, 4 inconclusive, 130 interrupted.

    Examples: compare 3.12.0 3.13.0 --suite cpu
              compare installed build:../iree-build --suite cpu --model dtln --cpus 1
              compare 3.12.0 3.13.0 --suite cpu --model minilm --metric compile-time
              compare 3.12.0 3.13.0 --suite cpu --cluster tcp://127.0.0.1:8786
              compare --resume
    """
    from iree_gauntlet.experiments.compare import compare  # noqa: PLC0415

    with open_cluster(cluster, run_request.execution) as machines:
        return compare(compare_request, run_request, console_presenter(), machines)


@gauntlet_task(
    "code.diff",
    CodeDiffRequest,
    run_part(
        (
            *SELECTION,
            *CACHE,
            *_TOOL_OPTIONS,
            *_list_running_options(
                "jobs", "offline", "timeout_compile", run_dir="Folder of this comparison (default: runs/<time>-code)."
            ),
        ),
        Defaults(),
    ),
)
def code_diff_task(code_request: CodeDiffRequest, run_request: RunRequest) -> ExitCode:
    """Compare the code that two IREEs, A B, generate: which dispatches differ, and how, down to the instructions.

    Both compile the selection; nothing is run, so that no device is needed. Exit codes: 0 compared, 2 usage, 3 a module
    has no code to compare, 5 nothing matches, 130 interrupted.

    Examples: code.diff 3.12.0 3.13.0 --suite codegen --model magika --target gfx942
              code.diff +data-tiling --suite cpu --model dtln --submodel temporal --dispatch '*_matmul_*' --level llvm
    """
    from iree_gauntlet.experiments.code_diff import diff_code  # noqa: PLC0415

    return diff_code(code_request, run_request, console_presenter())


@gauntlet_task(
    "compat",
    CompatRequest,
    run_part(
        (
            *SELECTION,
            *CACHE,
            *_list_running_options(
                "jobs",
                "offline",
                *("timeout_compile", "timeout_threshold"),
                resume="Continue the newest `compat` (or --run-dir): pairs that are finished are kept.",
                run_dir="Folder of this compatibility matrix (default: runs/<time>-compat).",
            ),
        ),
        _DEFAULTS,
        Stage.THRESHOLD,
    ),
)
def compat_task(compat_request: CompatRequest, run_request: RunRequest) -> ExitCode:
    """Run the modules of each IREE with the runtime of each: which run, are refused, crash, or give wrong numbers.

    Exit codes: 0 no crash and no wrong numbers (a refusal with a message is none), 1 a crash, wrong numbers, or a
    refusal that --require-compatible forbids, 2 usage, 3 a module could not be judged, 5 nothing matches, 130
    interrupted.

    Examples: compat 3.9.0 3.10.0 3.11.0 3.12.0 3.13.0 --suite cpu --model dtln --model speechmos
              compat 3.13.0 build:../iree-build --model dtln --require-compatible 1
              compat --resume
    """
    from iree_gauntlet.experiments.compat import check_compatibility  # noqa: PLC0415

    return check_compatibility(compat_request, run_request, console_presenter())


@gauntlet_task(
    "matrix",
    Option(
        "iree",
        [],
        "One IREE of the matrix; give it once for each, the base first: 3.12.0, '>=3.9,<3.12', nightly, wheels:DIR, "
        "venv:DIR, build:DIR, source:DIR, source:DIR@REF, commit:SHA, path, installed.",
    ),
    run_part(
        (
            *SELECTION,
            *CACHE,
            *(replace(option, help=f"{option.help[:-1]}: the same in all runs.") for option in _TOOL_OPTIONS),
            *_list_running_options(
                # Omit --last-failed, which is for the failures of one run: a matrix has several runs.
                *(option.name for option in RUNNING if option.name != "last_failed"),
                fail_fast="Stop at the first failure, and after the first IREE that fails.",
                resume="Continue the newest matrix (or --run-dir): finished IREEs are kept, and the interrupted one "
                "continues.",
                run_dir="Folder of this matrix (default: runs/<time>-matrix).",
            ),
            *_STAGE_OPTIONS,
        ),
        _DEFAULTS,
    ),
    ClusterRequest,
)
def matrix_task(irees: tuple[str, ...], request: RunRequest, cluster: ClusterRequest) -> ExitCode:
    """Run the same selection with several IREEs, one after another, and report on all of them.

    Examples: matrix --iree 3.5.0 --iree 3.9.0 --iree 3.12.0 --iree 3.13.0 --suite releases
              matrix --iree installed --iree build:../iree-build --model minilm
              matrix --resume
    """
    from iree_gauntlet.experiments.matrix import matrix  # noqa: PLC0415 - `list` must not wait for it

    with open_cluster(cluster, request.execution) as machines:
        return matrix(irees, request, console_presenter(), machines)


@gauntlet_task(
    "qualify",
    QualifyRequest,
    run_part(
        (
            *SELECTION,
            *CACHE,
            *_list_running_options(
                "jobs",
                "offline",
                "disturbed",
                *_TIMEOUTS,
                resume="Continue the newest `qualify` (or --run-dir): parts that are finished are kept.",
                run_dir="Folder of this qualification (default: runs/<time>-qualify).",
            ),
            *list_options(RunRequest, "instructions", "memory"),
            *COUNTING,
        ),
        _DEFAULTS,
    ),
)
def qualify_task(qualify_request: QualifyRequest, run_request: RunRequest) -> ExitCode:
    """Say if a NEW IREE is as good as an OLD one: what got worse, how serious it is, and since which release.

    Runs a matrix up to the exact figures, `compat`, a comparison of times, and of each loss an explanation with a
    bundle, if it fails, and a bisection. Exit codes: 0 nothing lost, 1 a loss, 2 usage, 3 not everything could be
    judged, 5 nothing matches, 130 interrupted.

    Examples: qualify 3.12.0 3.13.0 --suite cpu
              qualify 3.13.0 build:../iree-build --suite cpu --instructions --no-times
              qualify --resume
    """
    from iree_gauntlet.experiments.qualify import qualify  # noqa: PLC0415

    return qualify(qualify_request, run_request, console_presenter())


@gauntlet_task(
    "bisect",
    BisectRequest,
    run_part(
        (
            *SELECTION,
            *CACHE,
            _BISECT_IREE_OPTION,
            *_TOOL_OPTIONS,
            *_list_running_options(
                "jobs",
                "offline",
                "disturbed",
                *_TIMEOUTS,
                run_dir="Folder of this bisect (default: runs/<time>-bisect).",
                resume="Continue the newest bisect (or --run-dir), with its own options, from where it was cut short.",
            ),
            *COUNTING,
        ),
        Defaults(),
    ),
)
def bisect_task(bisect_request: BisectRequest, run_request: RunRequest) -> ExitCode:
    """Find the release, or the flags of a variant, that made something slower, larger, wrong or otherwise different.

    Examples: bisect --good 3.5.0 --bad 3.13.0 --model dtln --submodel temporal --metric dispatches
              bisect --good 3.13.0 --bad nightly --nightlies --model rapidocr --submodel rec --metric compiles
              bisect --good build:../a --bad build:../c --among build:../b --model toy --metric size
              bisect --bundle runs/20261124-164453-cpu/explain/dtln/spectral.cpu/bundle.tar.gz --good 3.5.0 --bad 3.6.0
              bisect --flags 'O3=--iree-opt-level=O3' --model dtln --submodel temporal --metric size
    """
    from iree_gauntlet.experiments.bisect import bisect  # noqa: PLC0415

    return bisect(bisect_request, run_request, console_presenter())


@gauntlet_task("explain", ExplainRequest, CacheRequest)
def explain_task(request: ExplainRequest, cache: CacheRequest) -> ExitCode:
    """Find what fails to compile, crashes or gives wrong numbers, and pack it as a bundle that reproduces it.

    RUN [CASE…]: the run (a folder, its name in runs/, or latest) and globs of cases; without them, all that failed in
    the latest run. --slower [COMPARISON [MODEL…]]: the dispatches that a comparison found slower, in bundles that
    measure both IREEs. Exit codes: 0 each failure has a bundle, 2 usage, 3 an error, 4 not all have a bundle, 5
    nothing failed, 130 interrupted.

    Examples: explain
              explain latest 'dtln/*'
              explain runs/20261124-164453-cpu dtln/spectral@cpu --no-weights
              explain --slower latest 'rapid*'
    """
    from iree_gauntlet.experiments.explain import explain  # noqa: PLC0415
    from iree_gauntlet.experiments.explain_slower import explain_slower  # noqa: PLC0415

    return (explain_slower if request.slower else explain)(request, cache, console_presenter())


@gauntlet_task("bundle.check", _BUNDLE_OPTION, usage="bundle.check BUNDLE")
def bundle_check_task(bundle: str) -> ExitCode:
    """Show that a bundle fails elsewhere: in an environment made for it, with the IREE that it names (from PyPI).

    Exit codes: 0 it fails there too, 1 it does not, 2 usage, 3 it cannot be judged.

    Example: bundle.check runs/20261124-164453-cpu/explain/dtln/spectral.cpu/bundle.tar.gz
    """
    from iree_gauntlet.experiments.explaining.bundle import check_bundle  # noqa: PLC0415

    return check_bundle(Path(bundle), console_presenter())


@gauntlet_task("bundle.run", _BUNDLE_OPTION, ToolchainRequest, usage="bundle.run BUNDLE [--iree IREE]")
def bundle_run_task(bundle: str, toolchain: ToolchainRequest) -> ExitCode:
    """Run a bundle with an IREE: is the failure still there?

    Exit codes: 0 fixed, 1 still there, 2 usage, 3 it cannot be judged.

    Example: bundle.run bundle.tar.gz --iree 3.13.0
    """
    from iree_gauntlet.experiments.explaining.bundle import run_bundle_with_iree  # noqa: PLC0415

    return run_bundle_with_iree(Path(bundle), toolchain, console_presenter())


def _make_option(option: BenchOption) -> Option:
    """Return an option for Invoke, which allows one letter as a short name; longer names (-df) are expanded earlier."""
    has_letter = len(option.short) == 1
    help_text = option.help.rstrip(".")
    help_text += f": {', '.join(option.choices)}" if option.choices else ""
    help_text += f" (default {option.default_text})" if option.default_text else ""
    help_text += f"; -{option.short} with `gauntlet`" if option.short and not has_letter else ""
    return Option(option.name, option.default, f"{help_text}.", option.short if has_letter else "")


@gauntlet_task("bench", TaskPart(tuple(map(_make_option, OPTIONS)), read_options))
def bench_task(options: BenchOptions) -> ExitCode:
    """Benchmark a model that is a Python function (PyBuda's benchmark.py): built by torch, compiled by IREE, checked.

    The outputs are compared with torch eager once, then the same inputs are pushed repeatedly; no speed is
    reported for wrong numbers. Exit codes: 0 measured, 1 wrong or does not compile, 2 usage, 3 an error.

    Examples: bench --list
              bench -m bert -c tiny -o perf.json
              bench -m bert -c tiny -df Fp16 -mf HiFi4 -opt 3 --loop-count 50 -o perf.json
              bench -m vit -c tiny --against torch --trace light
    """
    from iree_gauntlet.torch_models.torch_commands import bench  # noqa: PLC0415

    return bench(options)


@gauntlet_task("micro", MicroRequest, ToolchainRequest)
def micro_task(request: MicroRequest, toolchain: ToolchainRequest) -> ExitCode:
    """Measure recipes (quantisation, sparsity, compiler options) on small models over many shapes (torchao's dialect).

    Each recipe is made by torch, compiled by IREE, compared with torch eager, shown to change what it claims to change,
    and measured with the baseline in interleaved rounds. Exit codes: 0 measured, 1 wrong or does not compile,
    2 usage, 3 an error, 4 too disturbed.

    Examples: micro --list
              micro --config specs/recipes/quick.yml
              micro --config specs/recipes/dashboard.yml --output benchmark_results.json
              micro --resume
    """
    from iree_gauntlet.torch_models.torch_commands import micro  # noqa: PLC0415

    return micro(request, toolchain)
