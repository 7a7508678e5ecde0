"""The `bisect` task as the command line has it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.requests import BisectRequest, Defaults, RunRequest, options_of, read
from iree_gauntlet.tasks.options import CACHE, IREE, RUNNING, SELECTION, gauntlet_task

if TYPE_CHECKING:
    from iree_gauntlet.errors import ExitCode

__all__ = ["bisect_task"]

_RUNNING = ("jobs", "offline", "disturbed")
_FOLDER = {
    "run_dir": "Folder of this bisect (default: runs/<time>-bisect).",
    "resume": "Continue the newest bisect (or --run-dir), as it was asked for, where it was cut short.",
}
_OPTIONS = (
    *options_of(BisectRequest),
    *SELECTION,
    *CACHE,
    *(option for option in IREE if option.name != "iree"),
    *(option for option in RUNNING if option.name in _RUNNING or option.name.startswith("timeout_")),
    *(replace(option, help=_FOLDER[option.name]) for option in RUNNING if option.name in _FOLDER),
)


@gauntlet_task("bisect", _OPTIONS)
def bisect_task(options: dict[str, Any]) -> ExitCode:
    """Find the release since which something is as it is: since when slower, larger, wrong?

    Examples: bisect --good 3.5.0 --bad 3.13.0 --model dtln --submodel temporal --metric dispatches
              bisect --good 3.13.0 --bad nightly --nightlies --model rapidocr --submodel rec --metric compiles
              bisect --good build:../a --bad build:../c --among build:../b --model toy --metric size
    """
    from iree_gauntlet.tasks.bisect import bisect  # noqa: PLC0415

    return bisect(read(BisectRequest, options), RunRequest.of(options, Defaults()))
