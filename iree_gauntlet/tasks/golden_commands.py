"""The `golden` and `xfail` tasks as the command line has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from invoke.collection import Collection

from iree_gauntlet.requests import Option
from iree_gauntlet.tasks.options import CACHE, FORMAT, RUNNING, SELECTION, gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["golden_collection", "xfail_collection"]

# Of those that run something, what a run that is made again wants to know.
_AGAIN = ("jobs", "offline", "timeout_compile", "timeout_threshold", "timeout_benchmark")


@gauntlet_task("record", (*SELECTION, *CACHE, *RUNNING))
def record_task(options: dict[str, Any]) -> ExitCode:
    """Record expected outputs of ONNX models with onnxruntime, beside their specs, with provenance."""
    from iree_gauntlet.tasks.golden import record  # noqa: PLC0415

    return record(options)


@gauntlet_task(
    "sensitivity",
    (*SELECTION, *CACHE, *RUNNING, Option("write", False, "Write the share into the provenance of the outputs.")),
)
def sensitivity_task(options: dict[str, Any]) -> ExitCode:
    """Say which weights of ONNX models the expected outputs could see if they were 1 % wrong.

    Scales each weight by 1.01, one at a time, and runs the model with onnxruntime: whether a spec's tolerance and
    inputs could tell a wrong result from a right one.

    Example: golden.sensitivity --model dtln --write
    """
    from iree_gauntlet.tasks.golden import sensitivity  # noqa: PLC0415

    return sensitivity(options)


@gauntlet_task(
    "update",
    (
        Option("run", [], "Run whose figures count: its folder or name (repeatable; default: the newest)."),
        Option("last", 1, "How many of the newest runs count."),
        Option("match", "", "Only chains that fit this glob, such as 'dtln/*@cpu'."),
        Option("size_headroom", 0.0, "Room to leave in sizes, for the code of other CPUs: 1.25 for a quarter."),
        Option("to_release", False, "Move counts and sizes to the release that was measured."),
        Option("output", "", "Write the diff to this file, to apply it later."),
        Option("write", False, "Change the spec files."),
    ),
)
def update_task(options: dict[str, Any]) -> ExitCode:
    """Propose golden times, dispatch counts and sizes from what runs have measured, as a diff of the specs.

    Figures of failed, unfinished or disturbed measurements do not count, and are told.

    Examples: golden.update --last 5
              golden.update --match 'dtln/*' --write
    """
    from iree_gauntlet.tasks.golden_update import update  # noqa: PLC0415

    return update(options)


@gauntlet_task(
    "update",
    (
        Option("run", "", "Run that counts: its folder or name (default: the newest)."),
        Option("suite", "", "Suite to change (default: the run's)."),
        Option(
            "rerun",
            3,
            "How often cases of operator suites that came out otherwise than expected are run again; what does not "
            "come out the same every time is told and left as it is. 0 trusts the run.",
        ),
        Option("output", "", "Write the diff to this file, to apply it later."),
        Option("write", False, "Change the suite or the configs."),
        *CACHE,
        *(option for option in RUNNING if option.name in _AGAIN),
    ),
)
def xfail_update_task(options: dict[str, Any]) -> ExitCode:
    """Propose expected failures as a run has found them, as a diff of the suite, or of operator suites' configs.

    What passes now is removed, what fails newly is added with its stage and first diagnostic. Comments and order stay.

    Examples: xfail.update --write
              xfail.update --run 20261121-051800-custom --rerun 0 --output xfail.patch
    """
    from iree_gauntlet.tasks.xfail_update import update  # noqa: PLC0415

    return update(options)


@gauntlet_task("show", (*SELECTION, FORMAT, Option("last", 20, "How many of the newest runs are looked through.")))
def golden_show_task(options: dict[str, Any]) -> ExitCode:
    """Show every golden of the selection, beside the newest figure that was measured for it.

    Example: golden.show --model 'dtln*' --target cpu
    """
    from iree_gauntlet.tasks.golden_show import show  # noqa: PLC0415

    return show(options)


def golden_collection() -> Collection:
    """The tasks on goldens under their common name."""
    return Collection("golden", record_task, sensitivity_task, update_task, golden_show_task)


def xfail_collection() -> Collection:
    """The tasks on expected failures under their common name."""
    return Collection("xfail", xfail_update_task)
