"""The `golden` and `xfail` tasks as the command line has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from invoke.collection import Collection

from iree_gauntlet.option import Option, options_of, read
from iree_gauntlet.requests import Defaults, NetworkRequest, RunRequest, SelectionRequest
from iree_gauntlet.tasks.task_options import CACHE, RUNNING, SELECTION, gauntlet_task
from iree_gauntlet.upkeep.upkeep_requests import GoldenShowRequest, GoldenUpdateRequest, XfailUpdateRequest

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode


_FETCHING = options_of(NetworkRequest)
# Of those that run something, what a run that is made again wants to know.
_AGAIN = ("jobs", "offline", "timeout_compile", "timeout_threshold", "timeout_benchmark")


@gauntlet_task("record", (*SELECTION, *CACHE, *_FETCHING))
def record_task(options: dict[str, Any]) -> ExitCode:
    """Record expected outputs of ONNX models with onnxruntime, next to their specs, with provenance."""
    from iree_gauntlet.upkeep.golden_record import record  # noqa: PLC0415

    return record(RunRequest.of(options, Defaults()))


@gauntlet_task(
    "sensitivity",
    (*SELECTION, *CACHE, *_FETCHING, Option("write", False, "Write the share into the provenance of the outputs.")),
)
def sensitivity_task(options: dict[str, Any]) -> ExitCode:
    """Say which weights of ONNX models the expected outputs could see if they were 1 % wrong.

    Scales each weight by 1.01, one at a time, and runs the model with onnxruntime: whether a spec's tolerance and
    inputs could tell a wrong result from a right one.

    Example: golden.sensitivity --model dtln --write
    """
    from iree_gauntlet.upkeep.golden_record import sensitivity  # noqa: PLC0415

    return sensitivity(RunRequest.of(options, Defaults()), write=options["write"])


@gauntlet_task("update", options_of(GoldenUpdateRequest))
def update_task(options: dict[str, Any]) -> ExitCode:
    """Propose golden times, dispatch counts and sizes from what runs have measured, as a diff of the specs.

    Figures of failed, unfinished or disturbed measurements do not count, and are reported.

    Examples: golden.update --last 5
              golden.update --match 'dtln/*' --write
    """
    from iree_gauntlet.upkeep.golden_update import update  # noqa: PLC0415

    return update(read(GoldenUpdateRequest, options))


@gauntlet_task(
    "update",
    (*options_of(XfailUpdateRequest), *CACHE, *(option for option in RUNNING if option.name in _AGAIN)),
)
def xfail_update_task(options: dict[str, Any]) -> ExitCode:
    """Propose expected failures as a run has found them, as a diff of the suite, or of operator suites' configs.

    What passes now is removed, what fails newly is added with its stage and first diagnostic. Comments and order stay.

    Examples: xfail.update --write
              xfail.update --run 20261121-051800-custom --rerun 0 --output xfail.patch
    """
    from iree_gauntlet.upkeep.xfail_update import update  # noqa: PLC0415

    # Its suite is the one that changes; what is selected, the run says.
    return update(read(XfailUpdateRequest, options), RunRequest.of(options, Defaults()))


@gauntlet_task("show", (*SELECTION, *options_of(GoldenShowRequest)))
def golden_show_task(options: dict[str, Any]) -> ExitCode:
    """Show every golden of the selection, with the newest figure that was measured for it.

    Example: golden.show --model 'dtln*' --target cpu
    """
    from iree_gauntlet.upkeep.golden_show import show  # noqa: PLC0415

    return show(read(SelectionRequest, options), read(GoldenShowRequest, options))


def golden_collection() -> Collection:
    """The tasks on goldens under their common name."""
    return Collection("golden", record_task, sensitivity_task, update_task, golden_show_task)


def xfail_collection() -> Collection:
    """The tasks on expected failures under their common name."""
    return Collection("xfail", xfail_update_task)
