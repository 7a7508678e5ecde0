"""What a matrix is asked for: by the command line, or by the earlier part that is gone on with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage
from iree_gauntlet.errors import UsageError
from iree_gauntlet.tasks.matrix_irees import AskedIree, asked_irees
from iree_gauntlet.tasks.options import SELECTION_NAMES
from iree_gauntlet.tasks.workspace import Defaults, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.reporting.matrix_record import MatrixRecord

__all__ = ["SIDES", "AskedMatrix", "asked_before", "asked_now"]

# Options of a compiler or a runtime for all runs.
SIDES = ("iree_compiler", "iree_runtime")


@dataclass(frozen=True, slots=True)
class AskedMatrix:
    """What a matrix was asked for.

    Attributes:
        irees: in the order given.
        selection: the options that select, and those of a compiler or runtime for all.
        defaults: what is selected where they say nothing.
        stages: what is done; None for what the suite says.
    """

    irees: tuple[AskedIree, ...]
    selection: dict[str, Any]
    defaults: Defaults
    stages: tuple[Stage, ...] | None


def asked_now(options: Mapping[str, Any], defaults: Defaults, stages: Sequence[Stage] | None) -> AskedMatrix:
    """What a command line asks for.

    Raises:
        UsageError: `--iree` is missing, or names what is no IREE, or one twice.
    """
    if all(options[name] for name in SIDES):
        raise UsageError(
            "--iree-compiler and --iree-runtime: with both, every run of the matrix would be of the same IREE",
            "Give one of them, to vary the other side alone, or none.",
        )
    return AskedMatrix(
        irees=asked_irees(options["iree"]),
        selection={name: options[name] for name in (*SELECTION_NAMES, *SIDES)},
        defaults=defaults,
        stages=tuple(stages) if stages is not None else None,
    )


def asked_before(record: MatrixRecord, options: Mapping[str, Any], stages: Sequence[Stage] | None) -> AskedMatrix:
    """What the matrix of a record was asked for.

    Raises:
        UsageError: it does not say, or the command line asks for something else.
    """
    folder = shown(record.path.parent)
    if not record.parts:
        raise UsageError(f"{folder} does not say what was to run", "Start a new matrix.")
    last = record.parts[-1]
    asked = AskedMatrix(
        irees=tuple(AskedIree(item["iree"], item["label"], item["folder"]) for item in last["irees"]),
        selection=last["selection"],
        defaults=Defaults(**{**last["defaults"], "targets": tuple(last["defaults"]["targets"])}),
        stages=tuple(Stage(stage) for stage in last["stages"]) if last["stages"] else None,
    )
    other = [name for name, value in asked.selection.items() if options[name] and options[name] != value]
    if options["iree"] and asked_irees(options["iree"]) != asked.irees:
        other.append("iree")
    if stages is not None and tuple(stages) != asked.stages:
        other.append("stages")
    if other:
        raise UsageError(
            f"--{other[0].replace('_', '-')}: a resumed matrix keeps the IREEs and the selection of {folder}",
            "Leave them out, or start a new matrix.",
        )
    return asked
