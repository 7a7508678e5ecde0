"""The commands that hold several IREEs against each other: `compare`, `matrix` and `bisect`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.option import Option, options_of, read
from iree_gauntlet.requests import DEFAULT_SUITE, BisectRequest, CompareRequest, Defaults, RunRequest, ToolchainRequest
from iree_gauntlet.tasks.task_options import CACHE, RUNNING, SELECTION, gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


_SIDES = options_of(ToolchainRequest, "iree_compiler", "iree_runtime")
_TIMEOUTS = tuple(option.name for option in RUNNING if option.name.startswith("timeout_"))


def _running(*names: str, **helps: str) -> tuple[Option, ...]:
    """Options of a run, those of them with another help that are given one."""
    options = (option for option in RUNNING if option.name in (*names, *helps))
    return tuple(replace(option, help=helps.get(option.name, option.help)) for option in options)


@gauntlet_task(
    "compare",
    (
        *options_of(CompareRequest),
        *SELECTION,
        *CACHE,
        *_SIDES,
        *_running("jobs", "resume", "run_dir", "offline", "force_recompile", "disturbed", *_TIMEOUTS),
    ),
)
def compare_task(options: dict[str, Any]) -> ExitCode:
    """Compare two IREEs, A B, on this machine: which models got slower or faster, by how much, and where.

    Both compile the selection and check its numbers; then processes of both take turns until each model has its
    verdict: slower, faster, same, not slower or inconclusive. Exit codes: 0 nothing slower, 1 slower, 2 usage, 3 not
    everything could be measured, 4 inconclusive, 130 interrupted.

    Examples: compare 3.12.0 3.13.0 --suite cpu
              compare installed build:../iree-build --suite cpu --model dtln --cpus 1
              compare 3.12.0 3.13.0 --suite cpu --model minilm --metric compile-time
              compare --resume
    """
    from iree_gauntlet.experiments.compare import compare  # noqa: PLC0415
    from iree_gauntlet.reports.experiment_reports import ConsolePresenter  # noqa: PLC0415

    return compare(read(CompareRequest, options), RunRequest.of(options, Defaults()), ConsolePresenter(sys.stdout))


_IREES = Option(
    "iree",
    [],
    "One IREE of the matrix; give it once for each, the base first: 3.12.0, '>=3.9,<3.12', nightly, wheels:DIR, "
    "venv:DIR, build:DIR, path, installed.",
)


@gauntlet_task(
    "matrix",
    (
        *SELECTION,
        *CACHE,
        _IREES,
        *(replace(option, help=f"{option.help[:-1]}: the same in all runs.") for option in _SIDES),
        *_running(
            # What failed lies in one run; a matrix has several.
            *(option.name for option in RUNNING if option.name != "last_failed"),
            fail_fast="Stop at the first failure, and after the first IREE that fails.",
            resume="Continue the newest matrix (or --run-dir): finished IREEs stay, the one that was killed continues.",
            run_dir="Folder of this matrix (default: runs/<time>-matrix).",
        ),
        *options_of(RunRequest),
    ),
)
def matrix_task(options: dict[str, Any]) -> ExitCode:
    """Run the same selection with several IREEs, one after the other, and report on all of them.

    Examples: matrix --iree 3.5.0 --iree 3.9.0 --iree 3.12.0 --iree 3.13.0 --suite releases
              matrix --iree installed --iree build:../iree-build --model minilm
              matrix --resume
    """
    from iree_gauntlet.experiments.matrix import matrix  # noqa: PLC0415 - `list` must not wait for it
    from iree_gauntlet.reports.experiment_reports import ConsolePresenter  # noqa: PLC0415

    # Of several IREEs, which a request has one of.
    values = {name: value for name, value in options.items() if name != _IREES.name}
    request = RunRequest.of(values, Defaults(suite=DEFAULT_SUITE))
    return matrix(options[_IREES.name], request, ConsolePresenter(sys.stdout))


@gauntlet_task(
    "bisect",
    (
        *options_of(BisectRequest),
        *SELECTION,
        *CACHE,
        *_SIDES,
        *_running(
            "jobs",
            "offline",
            "disturbed",
            *_TIMEOUTS,
            run_dir="Folder of this bisect (default: runs/<time>-bisect).",
            resume="Continue the newest bisect (or --run-dir), as it was asked for, where it was cut short.",
        ),
    ),
)
def bisect_task(options: dict[str, Any]) -> ExitCode:
    """Find the release since which something is as it is: since when slower, larger, wrong?

    Examples: bisect --good 3.5.0 --bad 3.13.0 --model dtln --submodel temporal --metric dispatches
              bisect --good 3.13.0 --bad nightly --nightlies --model rapidocr --submodel rec --metric compiles
              bisect --good build:../a --bad build:../c --among build:../b --model toy --metric size
    """
    from iree_gauntlet.experiments.bisect import bisect  # noqa: PLC0415
    from iree_gauntlet.reports.experiment_reports import ConsolePresenter  # noqa: PLC0415

    return bisect(read(BisectRequest, options), RunRequest.of(options, Defaults()), ConsolePresenter(sys.stdout))
