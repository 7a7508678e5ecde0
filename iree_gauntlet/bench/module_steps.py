"""The steps that make a module of an exported program: import, with the weights beside it, and compile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Module, OnnxImport, Program
from iree_gauntlet.engine.plan_modules import compile_step
from iree_gauntlet.steps import Command, StepInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.engine.plan_context import PlanContext
    from iree_gauntlet.steps import Step
    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.toolchains.translate import Translation

__all__ = ["PARAMETERS", "ModuleSteps"]

PARAMETERS = "model.irpa"


class ModuleSteps:
    """Completes the steps of one benchmark.

    Args:
        context: what planning knows of the machine.
        toolchain: compiler and importer.
        target: what is compiled for.
        env: variables of their processes.
    """

    def __init__(
        self, context: PlanContext, toolchain: Toolchain, target: Target, env: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self._context = context
        self._toolchain = toolchain
        self._target = target
        self._env = env

    def importing(self, step: Step, onnx: Path, content: str) -> Step:
        """Imports a program; its parameters go into an archive of the scope `model`.

        Args:
            step: what all steps of the chain have in common.
            onnx: the program.
            content: hash of it and of its weights.
        """
        program, parameters = f"{step.folder}/program.mlir", f"{step.folder}/{PARAMETERS}"
        externals = ("--externalize-params", "--save-params-to", parameters)
        argv = (*self._toolchain.compiler.import_onnx, str(onnx), "-o", program, *externals)
        # The importer writes the parameters' scope into the program, and nothing of where they lie.
        ingredients = {"kind": "import with parameters", "program": content, "importer": self._context.importer}
        found = self._context.lookup(step.id, ingredients)
        return replace(
            step,
            command=Command(argv, step.folder, self._env),
            inputs=(StepInput("program", str(onnx)),),
            outputs=(("program", program), ("parameters", parameters)),
            cache=replace(found, ingredients=tuple(ingredients.items())),
        )

    def compiling(
        self, step: Step, name: str, role: str, flags: tuple[str, ...], onnx: Path, content: str, imported: Step
    ) -> Step:
        """Compiles what was imported.

        Args:
            step: as above.
            name: of the module.
            role: of it in its chain.
            flags: for the compiler.
            onnx: the program before its import.
            content: hash of it and of its weights.
            imported: the step that imports it.
        """
        program = Program(str(onnx), OnnxImport())
        module = Module(name=name, role=role, target=self._target, program=program, flags=flags, origin=step.origin)
        context = replace(self._context, artifact_path=Path, artifact_hash=lambda _: content)
        done = compile_step(step, module, imported.output("program"), step.folder, context, self._translated)
        assert done.command is not None, "a compile step has one"
        done = replace(done, needs=(imported.id,), command=replace(done.command, env=self._env))
        if not self._env:
            return done
        environment = " ".join(f"{name}={value}" for name, value in self._env)
        ingredients = {**dict(done.cache.ingredients), "environment": environment}
        found = self._context.lookup(step.id, ingredients)
        return replace(done, cache=replace(found, ingredients=tuple(ingredients.items())))

    def _translated(self, flags: Sequence[str], tool: str) -> Translation:
        return self._context.translate(flags, tool)
