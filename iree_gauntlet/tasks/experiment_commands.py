"""The commands that compare IREEs (`compare`, `matrix`, `bisect`), explain what failed, or measure torch's models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from invoke.collection import Collection

from iree_gauntlet.requests import (
    DEFAULT_SUITE,
    BisectRequest,
    CacheRequest,
    ClusterRequest,
    CompareRequest,
    Defaults,
    ExplainRequest,
    MicroRequest,
    Option,
    RunRequest,
    ToolchainRequest,
    options_of,
)
from iree_gauntlet.tasks.cluster_commands import machines_of
from iree_gauntlet.tasks.task_options import (
    CACHE,
    COUNTING,
    RUNNING,
    SELECTION,
    TaskPart,
    console_presenter,
    gauntlet_task,
    run_part,
)
from iree_gauntlet.torch_models.bench_options import OPTIONS, BenchOption, BenchOptions, read_options

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


_SIDES = options_of(ToolchainRequest, "iree_compiler", "iree_runtime")
_TIMEOUTS = tuple(option.name for option in RUNNING if option.name.startswith("timeout_"))
_BUNDLE = Option("bundle", None, "A bundle that `explain` has written: the archive, or its folder.")


def _list_running_options(*names: str, **helps: str) -> tuple[Option, ...]:
    """Options of a run, those of them with another help that are given one."""
    options = (option for option in RUNNING if option.name in (*names, *helps))
    return tuple(replace(option, help=helps.get(option.name, option.help)) for option in options)


@gauntlet_task(
    "compare",
    CompareRequest,
    run_part(
        (
            *SELECTION,
            *CACHE,
            *_SIDES,
            *_list_running_options("jobs", "resume", "run_dir", "offline", "force_recompile", "disturbed", *_TIMEOUTS),
            *COUNTING,
        ),
        Defaults(),
    ),
    ClusterRequest,
)
def compare_task(asked: CompareRequest, request: RunRequest, cluster: ClusterRequest) -> ExitCode:
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

    with machines_of(cluster, request.conduct) as machines:
        return compare(asked, request, console_presenter(), machines)


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
            *(replace(option, help=f"{option.help[:-1]}: the same in all runs.") for option in _SIDES),
            *_list_running_options(
                # What failed is known of one run; a matrix has several.
                *(option.name for option in RUNNING if option.name != "last_failed"),
                fail_fast="Stop at the first failure, and after the first IREE that fails.",
                resume="Continue the newest matrix (or --run-dir): finished IREEs stay, the one that was killed "
                "continues.",
                run_dir="Folder of this matrix (default: runs/<time>-matrix).",
            ),
            *options_of(RunRequest, "stages", "instructions"),
            *COUNTING,
        ),
        Defaults(suite=DEFAULT_SUITE),
    ),
    ClusterRequest,
)
def matrix_task(irees: tuple[str, ...], request: RunRequest, cluster: ClusterRequest) -> ExitCode:
    """Run the same selection with several IREEs, one after the other, and report on all of them.

    Examples: matrix --iree 3.5.0 --iree 3.9.0 --iree 3.12.0 --iree 3.13.0 --suite releases
              matrix --iree installed --iree build:../iree-build --model minilm
              matrix --resume
    """
    from iree_gauntlet.experiments.matrix import matrix  # noqa: PLC0415 - `list` must not wait for it

    with machines_of(cluster, request.conduct) as machines:
        return matrix(irees, request, console_presenter(), machines)


@gauntlet_task(
    "bisect",
    BisectRequest,
    run_part(
        (
            *SELECTION,
            *CACHE,
            *_SIDES,
            *_list_running_options(
                "jobs",
                "offline",
                "disturbed",
                *_TIMEOUTS,
                run_dir="Folder of this bisect (default: runs/<time>-bisect).",
                resume="Continue the newest bisect (or --run-dir), as it was asked for, where it was cut short.",
            ),
            *COUNTING,
        ),
        Defaults(),
    ),
)
def bisect_task(asked: BisectRequest, request: RunRequest) -> ExitCode:
    """Find the release since which something is as it is: since when slower, larger, wrong?

    Examples: bisect --good 3.5.0 --bad 3.13.0 --model dtln --submodel temporal --metric dispatches
              bisect --good 3.13.0 --bad nightly --nightlies --model rapidocr --submodel rec --metric compiles
              bisect --good build:../a --bad build:../c --among build:../b --model toy --metric size
              bisect --bundle runs/20261124-164453-cpu/explain/dtln/spectral.cpu/bundle.tar.gz --good 3.5.0 --bad 3.6.0
    """
    from iree_gauntlet.experiments.bisect import bisect  # noqa: PLC0415

    return bisect(asked, request, console_presenter())


@gauntlet_task("explain", ExplainRequest, CacheRequest)
def explain_task(asked: ExplainRequest, cache: CacheRequest) -> ExitCode:
    """Find what fails to compile, crashes or gives wrong numbers, and pack it up as a bundle that shows it to others.

    RUN [CASE…]: the run (a folder, its name in runs/, or latest) and globs of cases; without, all that failed in the
    latest run. --slower [COMPARISON [MODEL…]]: the dispatches that a comparison found slower, in bundles that measure
    both IREEs. Exit codes: 0 each failure has a bundle, 2 usage, 3 an error, 4 not all have a bundle, 5
    nothing failed, 130 interrupted.

    Examples: explain
              explain latest 'dtln/*'
              explain runs/20261124-164453-cpu dtln/spectral@cpu --no-weights
              explain --slower latest 'rapid*'
    """
    from iree_gauntlet.experiments.explain import explain  # noqa: PLC0415
    from iree_gauntlet.experiments.explain_slower import explain_slower  # noqa: PLC0415

    return (explain_slower if asked.slower else explain)(asked, cache, console_presenter())


@gauntlet_task("check", _BUNDLE, usage="bundle.check BUNDLE")
def bundle_check_task(bundle: str) -> ExitCode:
    """Show that a bundle fails elsewhere: in an environment made for it, with the IREE that it names (from PyPI).

    Exit codes: 0 it fails there too, 1 it does not, 2 usage, 3 it cannot be judged.

    Example: bundle.check runs/20261124-164453-cpu/explain/dtln/spectral.cpu/bundle.tar.gz
    """
    from iree_gauntlet.experiments.explaining.bundle import check  # noqa: PLC0415

    return check(Path(bundle), console_presenter())


@gauntlet_task("run", _BUNDLE, ToolchainRequest, usage="bundle.run BUNDLE [--iree IREE]")
def bundle_run_task(bundle: str, toolchain: ToolchainRequest) -> ExitCode:
    """Run a bundle with an IREE: is the failure still there?

    Exit codes: 0 fixed, 1 still there, 2 usage, 3 it cannot be judged.

    Example: bundle.run bundle.tar.gz --iree 3.13.0
    """
    from iree_gauntlet.experiments.explaining.bundle import run_with  # noqa: PLC0415

    return run_with(Path(bundle), toolchain, console_presenter())


def _make_option(option: BenchOption) -> Option:
    """As Invoke has it: it knows one letter as a short name; longer ones (-df) are spelled out before it sees them."""
    one_letter = len(option.short) == 1
    said = option.help.rstrip(".")
    said += f": {', '.join(option.choices)}" if option.choices else ""
    said += f" (default {option.value})" if option.value else ""
    said += f"; -{option.short} with `gauntlet`" if option.short and not one_letter else ""
    return Option(option.name, option.default, f"{said}.", option.short if one_letter else "")


@gauntlet_task("bench", TaskPart(tuple(map(_make_option, OPTIONS)), read_options))
def bench_task(asked: BenchOptions) -> ExitCode:
    """Benchmark a model that is a Python function (PyBuda's benchmark.py): built by torch, compiled by IREE, checked.

    The outputs are compared with torch eager once, then the same inputs are pushed again and again; no speed is
    reported for wrong numbers. Exit codes: 0 measured, 1 wrong or does not compile, 2 usage, 3 an error.

    Examples: bench --list
              bench -m bert -c tiny -o perf.json
              bench -m bert -c tiny -df Fp16 -mf HiFi4 -opt 3 --loop-count 50 -o perf.json
              bench -m vit -c tiny --against torch --trace light
    """
    from iree_gauntlet.tasks.model_benchmarks import bench  # noqa: PLC0415

    return bench(asked)


@gauntlet_task("micro", MicroRequest, ToolchainRequest)
def micro_task(asked: MicroRequest, toolchain: ToolchainRequest) -> ExitCode:
    """Measure recipes (quantisation, sparsity, compiler options) on small models over many shapes (torchao's dialect).

    Each recipe is made by torch, compiled by IREE, compared with torch eager, shown to change what it says it changes,
    and measured with the baseline in interleaved rounds. Exit codes: 0 measured, 1 wrong or does not compile,
    2 usage, 3 an error, 4 too disturbed.

    Examples: micro --list
              micro --config specs/recipes/quick.yml
              micro --config specs/recipes/dashboard.yml --output benchmark_results.json
              micro --resume
    """
    from iree_gauntlet.tasks.model_benchmarks import micro  # noqa: PLC0415

    return micro(asked, toolchain)


def bundle_collection() -> Collection:
    """The tasks about bundles, under their common name."""
    return Collection("bundle", bundle_check_task, bundle_run_task)
