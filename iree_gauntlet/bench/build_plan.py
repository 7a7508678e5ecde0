"""What the builder of models is asked for: the file that the toolkit writes and the Python with torch reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from iree_gauntlet.bench.formats import DataFormat
from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BuildPlan", "read_plan"]

_REMEDY = "the file is written by the toolkit; one written by hand has the fields of BuildPlan"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """A model to build.

    Attributes:
        models_dirs: folders that are searched for it.
        model: its name.
        config: one of its configurations; None where it has none, or one alone.
        training: forward, loss and backward as one program.
        layers: number of layers; None for the model's own.
        microbatch: samples in one call; None for the model's own.
        dataformat: as the command line spells it.
        accumulate: in training, the program takes the gradients so far and returns the sums.
        output: folder that is made and filled; it does not exist, or is empty.
    """

    models_dirs: tuple[str, ...]
    model: str
    config: str | None = None
    training: bool = False
    layers: int | None = None
    microbatch: int | None = None
    dataformat: str = "Fp32"
    accumulate: bool = False
    output: str

    @property
    def form(self) -> DataFormat:
        """The data format."""
        return DataFormat(self.dataformat)

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read_plan(path: Path) -> BuildPlan:
    """Read a plan.

    Raises:
        UsageError: the file cannot be read, lacks a field, or has one that is unknown or of another type.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the plan cannot be read: {error}", _REMEDY) from error
    known = {field.name for field in fields(BuildPlan)}
    if not isinstance(found, dict) or not found.keys() <= known:
        odd = sorted(found.keys() - known) if isinstance(found, dict) else [type(found).__name__]
        raise UsageError(f"{path}: unknown in a plan: {', '.join(odd)}", _REMEDY)
    wrong = [name for name in sorted(known) if not _fits(name, found)]
    if wrong:
        raise UsageError(f"{path}: missing or of a wrong type: {', '.join(wrong)}", _REMEDY)
    plan = BuildPlan(**{**found, "models_dirs": tuple(found["models_dirs"])})
    if plan.accumulate and not plan.training:
        raise UsageError(f"{path}: accumulate is for training", "leave it out, or set training")
    return plan


def _fits(name: str, found: dict[str, Any]) -> bool:
    value = found.get(name)
    if name in {"model", "output"}:
        return isinstance(value, str) and bool(value)
    if name == "models_dirs":
        return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
    if name in {"training", "accumulate"}:
        return isinstance(found.get(name, False), bool)
    if name == "dataformat":
        return found.get(name, "Fp32") in {form.value for form in DataFormat}
    if name == "config":
        return value is None or isinstance(value, str)
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
