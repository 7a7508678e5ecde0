"""Where in a run's folder the files of steps lie: known before anything runs."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.parameters.names import archive_name
from iree_gauntlet.cases import MAIN, Case, MadeValues, Module, Parameters, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


__all__ = ["Places", "parameters_role"]


def parameters_role(scope: str, made: MadeValues) -> str:
    """What tells the step that makes an archive from others of its chain: kind of values and scope."""
    return f"{made.label}.{archive_name(scope).removesuffix('.irpa')}"


@dataclass(frozen=True, slots=True)
class Places:
    """Where steps keep their files.

    Attributes:
        run_dir: the run's folder.
        owners: the case in whose chain a module is made, by module id; a module that no spec defines has none.
    """

    run_dir: Path
    owners: Mapping[str, Case]

    def folder(self, chain: str, stage: Stage, role: str = MAIN) -> str:
        """The folder of a step."""
        case, _, target = chain.rpartition("@")
        name = stage.value if role == MAIN else f"{stage}.{role}"
        return f"{self.run_dir}/steps/{_safe(f'{case}.{target}')}/{name}"

    def module_folder(self, module: Module) -> str:
        """The folder of the step that compiles a module."""
        owner = self.owners.get(module.id)
        if owner is None:
            return f"{self.run_dir}/steps/{module.name}.{module.target.name}/compile"
        return self.folder(owner.chain, Stage.COMPILE, module.role)

    def module_path(self, module: Module) -> str:
        """Path of a module's .vmfb."""
        return f"{self.module_folder(module)}/module.vmfb"

    def archive_path(self, parameters: Parameters) -> str:
        """Path of an archive that a step of the run makes; empty for one that is fetched, or that nothing makes."""
        if parameters.made is not None:
            made = parameters.made
            owner = self.owners.get(made.module.id)
            chain = owner.chain if owner else f"{made.module.name}.{made.module.target.name}"
            folder = self.folder(chain, Stage.PARAMETERS, parameters_role(parameters.scope, made))
            return f"{folder}/{archive_name(parameters.scope)}"
        return self._splat_path(parameters.splat_of) if parameters.splat_of else ""

    def _splat_path(self, module_id: str) -> str:
        owner = self.owners.get(module_id)
        if owner is None:
            return f"{self.run_dir}/steps/{module_id.replace('@', '.')}/splat.irpa"
        module = next(item for item in owner.modules if item.id == module_id)
        return f"{self.module_folder(module)}/splat.irpa"


def _safe(path: str) -> str:
    """A path without '@' and '%': iree-run-module reads `path@entry`, and iree-compile fills in a '%'."""
    plain = re.sub(r"[@%]", "_", path)
    return plain if plain == path else f"{plain}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
