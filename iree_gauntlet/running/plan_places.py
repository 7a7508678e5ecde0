"""Names of steps, and where in a run's folder their files lie: known before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.cases import Case, Module

__all__ = ["Places", "step_id"]


def step_id(chain: str, stage: Stage, role: str = "main") -> str:
    """`<chain>:<stage>`, with `.<role>` for what belongs to a module beside the main one."""
    return f"{chain}:{stage}" if role == "main" else f"{chain}:{stage}.{role}"


@dataclass(frozen=True, slots=True)
class Places:
    """Where steps keep their files.

    Attributes:
        run_dir: the run's folder.
        owners: the case in whose chain a module is made, by module id; a module that no spec defines has none.
    """

    run_dir: Path
    owners: Mapping[str, Case]

    def folder(self, chain: str, stage: Stage, role: str = "main") -> str:
        """The folder of a step."""
        model, _, rest = chain.partition("/")
        name = stage.value if role == "main" else f"{stage}.{role}"
        # Not '@': iree-run-module reads `--module=path@entry`.
        return str(self.run_dir / "steps" / model / rest.replace("@", ".") / name)

    def module_folder(self, module: Module) -> str:
        """The folder of the step that compiles a module."""
        owner = self.owners.get(module.id)
        if owner is None:
            return str(self.run_dir / "steps" / f"{module.name}.{module.target.name}" / "compile")
        return self.folder(owner.chain, Stage.COMPILE, module.role)

    def module_path(self, module: Module) -> str:
        """Path of a module's .vmfb."""
        return str(Path(self.module_folder(module)) / "module.vmfb")

    def splat_path(self, module_id: str) -> str:
        """Path of the splat archive that compiling a module makes."""
        owner = self.owners.get(module_id)
        if owner is None:
            return str(self.run_dir / "steps" / module_id.replace("@", ".") / "splat.irpa")
        module = next(item for item in owner.modules if item.id == module_id)
        return str(Path(self.module_folder(module)) / "splat.irpa")
