"""What a matrix is asked for: by the command line, or by the earlier part that is gone on with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage
from iree_gauntlet.errors import UsageError
from iree_gauntlet.requests import Defaults, SelectionRequest, given, require_as_begun
from iree_gauntlet.settings import shown
from iree_gauntlet.tasks.matrix_irees import AskedIree, asked_irees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.reporting.matrix_record import MatrixRecord
    from iree_gauntlet.requests import RunRequest

__all__ = ["AskedMatrix", "asked_before", "asked_now"]

# What a record keeps of each run's request; its IREE is the matrix's own.
_KEPT = (*SelectionRequest.__dataclass_fields__, "iree_compiler", "iree_runtime")


@dataclass(frozen=True, slots=True)
class AskedMatrix:
    """What a matrix was asked for.

    Attributes:
        irees: in the order given.
        request: what is run with each.
    """

    irees: tuple[AskedIree, ...]
    request: RunRequest

    @property
    def kept(self) -> dict[str, Any]:
        """Options that a resumed matrix keeps, by name."""
        return {name: value for name, value in self.request.kept.items() if name in _KEPT}


def asked_now(irees: Sequence[str], request: RunRequest) -> AskedMatrix:
    """What a command line asks for.

    Raises:
        UsageError: `--iree` is missing, or names what is no IREE, or one twice.
    """
    if request.toolchain.iree_compiler and request.toolchain.iree_runtime:
        raise UsageError(
            "--iree-compiler and --iree-runtime: with both, every run of the matrix would be of the same IREE",
            "Give one of them, to vary the other side alone, or none.",
        )
    return AskedMatrix(asked_irees(irees), request)


def asked_before(record: MatrixRecord, irees: Sequence[str], request: RunRequest) -> AskedMatrix:
    """What the matrix of a record was asked for.

    Raises:
        UsageError: it does not say, or the command line asks for something else.
    """
    folder = shown(record.path.parent)
    if not record.parts:
        raise UsageError(f"{folder} does not say what was to run", "Start a new matrix.")
    last = record.parts[-1]
    known = tuple(AskedIree(item["iree"], item["label"], item["folder"]) for item in last["irees"])
    before = {**last["selection"], "iree": [iree.text for iree in known], "stages": last["stages"] or []}
    now = given((request.selection, request.toolchain))
    now |= {"iree": irees} if irees else {}
    now |= {"stages": request.stages} if request.stages else {}
    require_as_begun("matrix", folder, now, before)
    stages = tuple(Stage(stage) for stage in last["stages"]) if last["stages"] else None
    request = replace(request, defaults=Defaults.of(last["defaults"]), stages=stages)
    return AskedMatrix(known, request.with_kept(last["selection"]))
