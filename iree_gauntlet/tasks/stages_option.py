"""The option that names stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import SPEC_STAGES, Stage
from iree_gauntlet.errors import UsageError
from iree_gauntlet.requests import Option

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["STAGES", "asked_stages"]

STAGES = Option("stages", [], "Only these stages (repeatable): fetch, import, compile, threshold, compstat, benchmark.")


def asked_stages(options: Mapping[str, Any]) -> tuple[Stage, ...] | None:
    """The stages of a command line; None where it names none.

    Raises:
        UsageError: there is no such stage.
    """
    for name in options.get(STAGES.name, ()):
        if name not in SPEC_STAGES:
            raise UsageError(f"--stages {name}: unknown stage", f"Stages: {', '.join(SPEC_STAGES)}.")
    return tuple(Stage(name) for name in options.get(STAGES.name, ())) or None
