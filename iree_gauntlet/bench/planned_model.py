"""The model of a plan, made by its function: the same weights and inputs in every process that makes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.bench.discovery import discover, find_model
from iree_gauntlet.bench.instantiate import BuildOptions, instantiate

if TYPE_CHECKING:
    from iree_gauntlet.bench.build_plan import BuildPlan
    from iree_gauntlet.bench.instantiate import Instance

__all__ = ["planned_model"]

_SEED = 0


def planned_model(plan: BuildPlan) -> Instance:
    """Calls the function of a plan's model, with torch's generator seeded for functions that do not.

    Raises:
        UsageError: for options that do not fit the model, or a model that there is not.
        ModelError: for what is wrong with it.
    """
    import torch  # noqa: PLC0415 - importing this module must not need it

    model = find_model(discover([Path(path) for path in plan.models_dirs], []), plan.model)
    torch.manual_seed(_SEED)
    options = BuildOptions(
        training=plan.training,
        config=plan.config,
        force_num_layers=plan.layers,
        microbatch=plan.microbatch,
        dataformat=plan.dataformat,
    )
    return instantiate(model, options)
