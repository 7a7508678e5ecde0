"""Steps for tests, with defaults for the fields that a test does not depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Origin
from iree_gauntlet.steps import Step
from tests.support.command_line import LIMIT_SECONDS

if TYPE_CHECKING:
    from iree_gauntlet.stages import Stage

__all__ = ["make_step"]


def make_step(stage: Stage, chain: str = "m/s@cpu", **fields: Any) -> Step:
    """Make a step of a chain, `<model>/<submodel>@<target>`; its name consists of the chain and the stage."""
    model, _, target = chain.partition("@")
    model, _, submodel = model.partition("/")
    defaults: dict[str, Any] = {
        "id": f"{chain}:{stage}",
        "dialect": "d",
        "model": model,
        "submodel": submodel,
        "target": target,
        "sku": "",
        "folder": "/nowhere",
        "timeout": LIMIT_SECONDS,
        "origin": Origin("spec.json"),
    }
    return Step(chain=chain, stage=stage, **{**defaults, **fields})
