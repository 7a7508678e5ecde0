"""The steps of chains whose programs torch makes: export, import with the weights beside it, compile, and runs."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import MAIN, Module, OnnxImport, Origin, Program, Stage
from iree_gauntlet.engine.plan_context import DEFAULT_TIMEOUTS, Places, PlanContext
from iree_gauntlet.engine.plan_modules import compile_step
from iree_gauntlet.steps import CacheLookup, Command, Resources, Step, StepInput, step_id
from iree_gauntlet.torch_models.exporting import PLAN_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.torch_models import build_folder
    from iree_gauntlet.torch_models.build_folder import Array
    from iree_gauntlet.torch_models.torch_python import TorchPython


# What torch.onnx.export calls its graph, and so the importer the function.
FUNCTION = "main_graph"
_MODULE = "module.vmfb"
_PARAMETERS = "model.irpa"
_OWN_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program that was built, imported and compiled, where measuring programs find it.

    Attributes:
        module: the compiled one.
        parameters: the archive of its weights, of the scope `model`.
        exported: the folder of what its builder made.
        program: as it was built.
    """

    module: Path
    parameters: Path
    exported: Path
    program: build_folder.Program

    def arrays(self, arrays: Sequence[Array]) -> list[dict[str, str]]:
        """Arrays of the build as plans have them."""
        return [{"file": str(self.exported / array.file), "type": array.type} for array in arrays]

    @property
    def called(self) -> dict[str, Any]:
        """What is called, as plans of measuring programs have it."""
        parameters = [["model", str(self.parameters)]]
        return {"modules": [str(self.module)], "parameters": parameters, "function": FUNCTION}

    def plan(self, devices: Sequence[str], calls: int, warm_up_calls: int = 1, outputs: str = "") -> dict[str, Any]:
        """A plan for `measure_module`, with the inputs of the build."""
        return {
            **self.called,
            "devices": list(devices),
            "inputs": self.arrays(self.program.inputs),
            "calls": calls,
            "warm_up_calls": warm_up_calls,
            "outputs": outputs,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchChain(ABC):
    """What all chains have whose programs torch makes.

    Attributes:
        target: what is compiled for.
        device: what it runs on.
        flags: for the compiler.
        context: what planning knows of the machine.
        toolchain: compiler and runtime.
        torch: what builds the models.
        env: variables of all processes.
    """

    target: Target
    device: str
    flags: tuple[str, ...]
    context: PlanContext
    toolchain: Toolchain
    torch: TorchPython
    env: tuple[tuple[str, str], ...] = ()

    dialect: ClassVar[str]
    builder: ClassVar[str]

    @property
    @abstractmethod
    def names(self) -> tuple[str, str]:
        """Of the model and the submodel."""

    @property
    @abstractmethod
    def origin(self) -> Origin:
        """Where the model is written."""

    @property
    def id(self) -> str:
        """`bert/tiny@cpu`."""
        return f"{'/'.join(self.names)}@{self.target.name}"

    def folder(self, stage: Stage, role: str = MAIN) -> Path:
        """The folder of a step."""
        return Path(Places(self.context.run_dir, {}).folder(self.id, stage, role))

    def exported(self, role: str = MAIN) -> Path:
        """The folder of what torch made."""
        return self.folder(Stage.EXPORT, role)

    def compiled(self, program: build_folder.Program, role: str, side: str) -> CompiledProgram:
        """A program that was built.

        Args:
            program: as it was built.
            role: of the step that compiles it.
            side: role of the step that imports it.
        """
        parameters = self.folder(Stage.IMPORT, side) / _PARAMETERS
        return CompiledProgram(self.folder(Stage.COMPILE, role) / _MODULE, parameters, self.exported(side), program)

    def step(self, stage: Stage, role: str = MAIN) -> Step:
        """What all steps of the chain have in common."""
        model, submodel = self.names
        return Step(
            id=step_id(self.id, stage, role),
            chain=self.id,
            dialect=self.dialect,
            model=model,
            submodel=submodel,
            target=self.target.name,
            sku="",
            stage=stage,
            role=role,
            folder=str(self.folder(stage, role)),
            timeout=DEFAULT_TIMEOUTS[stage],
            origin=self.origin,
        )

    def exporting(self, role: str, ingredients: Mapping[str, str], sources: Sequence[Path]) -> Step:
        """Makes a model with torch and exports it.

        Args:
            role: of the step.
            ingredients: what the model depends on, but for torch and the variables.
            sources: files that it is made from.
        """
        step = self.step(Stage.EXPORT, role)
        environment = {"environment": _environment(self.env)} if self.env else {}
        step = self._looked_up(step, {**ingredients, "torch": self.torch.identity, **environment})
        words = (*self.torch.running(self.builder), f"{step.folder}/{PLAN_FILE}")
        inputs = tuple(StepInput("program", str(path)) for path in sources)
        return replace(step, command=Command(words, step.folder, self.env), inputs=inputs)

    def importing(self, role: str, onnx: Path, content: str, export: str) -> Step:
        """Imports a program; its parameters go into an archive of the scope `model`.

        Args:
            role: of the step.
            onnx: the program.
            content: hash of it and of its weights.
            export: role of the step that exports it.
        """
        step = self.step(Stage.IMPORT, role)
        program, parameters = f"{step.folder}/program.mlir", f"{step.folder}/{_PARAMETERS}"
        externals = ("--externalize-params", "--save-params-to", parameters)
        argv = (*self.toolchain.compiler.import_onnx, str(onnx), "-o", program, *externals)
        # The importer writes the parameters' scope into the program, and nothing of where they lie.
        ingredients = {"kind": "import with parameters", "program": content, "importer": self.context.importer}
        return replace(
            self._looked_up(step, ingredients),
            command=Command(argv, step.folder, self.env),
            needs=(step_id(self.id, Stage.EXPORT, export),),
            inputs=(StepInput("program", str(onnx)),),
            outputs=(("program", program), ("parameters", parameters)),
        )

    def compiling(self, role: str, name: str, flags: tuple[str, ...], onnx: Path, content: str, imported: Step) -> Step:
        """Compiles what was imported.

        Args:
            role: of the module in the chain.
            name: of the module.
            flags: for the compiler.
            onnx: the program before its import.
            content: hash of it and of its weights.
            imported: the step that imports it.
        """
        step = self.step(Stage.COMPILE, role)
        program = Program(str(onnx), OnnxImport())
        module = Module(name=name, role=role, target=self.target, program=program, flags=flags, origin=step.origin)
        context = replace(self.context, artifact_path=Path, artifact_hash=lambda _: content)
        done = compile_step(step, module, imported.output("program"), step.folder, context, self.context.translate)
        assert done.command is not None, "a compile step has one"
        done = replace(done, needs=(imported.id,), command=replace(done.command, env=self.env))
        if not self.env:
            return done
        return self._looked_up(done, {**dict(done.cache.ingredients), "environment": _environment(self.env)})

    def ran(self, step: Step, inputs: Sequence[StepInput], needs: tuple[str, ...] = (), **resources: Any) -> Step:
        """A step that runs modules on the device, every time.

        Args:
            step: what all steps of the chain have in common.
            inputs: files that it reads.
            needs: steps before it.
            resources: what it takes beside the device; a core where nothing is said.
        """
        taken = Resources(**{"cores": 1, "device": self.device, **resources})
        every_time = CacheLookup(reason="runs every time")
        return replace(step, needs=needs, inputs=tuple(inputs), cache=every_time, resources=taken)

    def _looked_up(self, step: Step, ingredients: Mapping[str, str]) -> Step:
        found = self.context.lookup(step.id, dict(ingredients))
        return replace(step, cache=replace(found, ingredients=tuple(ingredients.items())))


def builder_identity() -> str:
    """Changes where the toolkit's own code that makes models may have changed."""
    return hash_of_files(sorted(_OWN_FOLDER.glob("*.py")), _OWN_FOLDER)


def hash_of_files(paths: Sequence[Path], root: Path) -> str:
    """One for several files, by their names below a folder and their content."""
    digest = hashlib.sha256()
    for path in paths:
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name}\0{hash_file(path)}\n".encode())
    return digest.hexdigest()


def _environment(env: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"{name}={value}" for name, value in env)
