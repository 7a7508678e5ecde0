"""Chains whose programs torch makes: their steps, from the export to the runs, and how exports are performed."""

from __future__ import annotations

import hashlib
import shutil
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import MAIN, Module, OnnxImport, Origin, Program, Stage, Verdict
from iree_gauntlet.engine.judging import after_process
from iree_gauntlet.engine.modules.module_cache import EntryGoneError
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan_modules import DEFAULT_TIMEOUTS, Places, PlanContext, compile_step
from iree_gauntlet.results import CacheUse, Result, shorten
from iree_gauntlet.steps import CacheLookup, Command, Resources, Step, StepInput, step_id
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.toolchains.devices import find_device
from iree_gauntlet.torch_models.build_folder import BUILD_FILE, Build, read_build
from iree_gauntlet.torch_models.torch_python import running

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.devices import Device
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.torch_models import build_folder
    from iree_gauntlet.torch_models.build_folder import Array
    from iree_gauntlet.torch_models.build_plan import Plan
    from iree_gauntlet.torch_models.torch_python import TorchPython


_PLAN_FILE = "plan.json"
_EXIT_USAGE = 2
_LOGS = ("stdout.txt", "stderr.txt", _PLAN_FILE)
# What torch.onnx.export calls its graph, and so the importer the function.
FUNCTION = "main_graph"
_MODULE = "module.vmfb"
_PARAMETERS = "model.irpa"
_OWN_FOLDER = Path(__file__).parent
# Fields of plans: it is the content that a model depends on.
_PATHS = ("output", "models_dirs", "plugins")


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program that was built, imported and compiled, where measuring programs find it.

    Attributes:
        parameters: the archive of its weights, of the scope `model`.
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
    """What all chains have whose programs torch makes."""

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

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The device that it runs on, where that is not the CPU itself.

        Raises:
            ToolchainError: it is not there.
        """
        return () if self.device.startswith("local-") else (find_device(self.toolchain, self.device),)

    def folder(self, stage: Stage, role: str = MAIN) -> Path:
        """The folder of a step."""
        return Path(Places(self.context.run_dir, {}).folder(self.id, stage, role))

    def exported(self, role: str = MAIN) -> Path:
        """The folder of what torch made."""
        return self.folder(Stage.EXPORT, role)

    def compiled(self, program: build_folder.Program, role: str, side: str) -> CompiledProgram:
        """A program that was built."""
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

    def exporting(self, role: str, plan: Plan, ingredients: Mapping[str, str], sources: Sequence[Path]) -> Step:
        """Makes a model with torch and exports it.

        `ingredients`: what the model depends on besides; in place of the plan's fields that are paths.
        """
        step = self.step(Stage.EXPORT, role)
        asked = {name: str(value) for name, value in asdict(plan).items() if name not in _PATHS}
        made_by = {"builder": _builder_identity(), "torch": self.torch.identity}
        environment = {"environment": _environment(self.env)} if self.env else {}
        step = self._looked_up(step, {**asked, **ingredients, **made_by, **environment})
        words = (*running(self.torch.path, self.builder), f"{step.folder}/{_PLAN_FILE}")
        inputs = tuple(StepInput("program", str(path)) for path in sources)
        return replace(step, command=Command(words, step.folder, self.env), inputs=inputs)

    def importing(self, role: str, onnx: Path, content: str, export: str) -> Step:
        """Imports a program; its parameters go into an archive of the scope `model`."""
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
        """Compiles what was imported."""
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
        """A step that runs modules on the device, every time."""
        device, software = self.device, False
        for gpu in self.gpus:
            # By its own name, as `run` has it: two names of one device are one.
            device, software = gpu.uri, gpu.software
        taken = Resources(**{"cores": 1, "device": device, "software": software, **resources})
        every_time = CacheLookup(reason="runs every time")
        return replace(step, needs=needs, inputs=tuple(inputs), cache=every_time, resources=taken)

    def _looked_up(self, step: Step, ingredients: Mapping[str, str]) -> Step:
        found = self.context.lookup(step.id, dict(ingredients))
        return replace(step, cache=replace(found, ingredients=tuple(ingredients.items())))


@cache
def _builder_identity() -> str:
    """Changes where the toolkit's own code that makes models may have changed."""
    return hash_of_files(sorted(_OWN_FOLDER.glob("*.py")), _OWN_FOLDER)


def runnable_files(compiled: Step, imported: Step) -> tuple[StepInput, ...]:
    """What a step that runs a compiled program reads."""
    return (StepInput("module", compiled.output("module")), StepInput("parameters", imported.output("parameters")))


def hash_of_files(paths: Sequence[Path], root: Path) -> str:
    """One for several files, by their names below a folder and their content."""
    digest = hashlib.sha256()
    for path in paths:
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name}\0{hash_file(path)}\n".encode())
    return digest.hexdigest()


def _environment(env: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"{name}={value}" for name, value in env)


class Exporter:
    """Performs export steps."""

    def __init__(self, session: Session[Any], workbench: Workbench) -> None:
        self._cache = workbench.modules
        self._processes = session.processes
        self.builds: dict[str, Build] = {}
        self.hashes: dict[str, Mapping[str, str]] = {}
        self._folders: dict[str, Path] = {}
        self._cancelled = session.cancelled

    def perform(self, step: Step, plan: Plan) -> Result:
        """Fills the step's folder, and keeps what it finds there.

        Raises:
            GauntletError: what was made cannot be read.
        """
        Path(step.folder).mkdir(parents=True, exist_ok=True)
        key = make_key(dict(step.cache.ingredients))
        result = self._looked_up(step, key)
        if result is None:
            with self._cache.making(key, self._cancelled) as waited:
                result = self._looked_up(step, key) or self._made(step, plan, key)
            result = replace(result, waited_seconds=waited)
        if result.verdict is Verdict.PASSED:
            self.builds[step.role] = read_build(Path(step.folder))
            self.hashes[step.role] = result.statistics["hashes"]
            self._folders[step.id] = Path(step.folder)
        return result

    def unshare(self, steps: Iterable[Step]) -> None:
        """Gives weights that are about to be imported a copy of their own in place of a hard link into the cache.

        The onnx package refuses to read weights that have a second name: it takes that for an attack.
        """
        exports = {need for step in steps if step.stage is Stage.IMPORT and not step.cache.hit for need in step.needs}
        for folder in (self._folders[export] for export in exports):
            for path in folder.glob("*.onnx.data"):
                if path.stat().st_nlink > 1:
                    copy = path.with_name(f"{path.name}.copy")
                    shutil.copyfile(path, copy)
                    copy.replace(path)

    def _looked_up(self, step: Step, key: str) -> Result | None:
        entry = self._cache.lookup(key).entry
        if entry is None:
            return None
        try:
            for role in entry.files:
                entry.materialise(role, Path(step.folder) / role)
        except EntryGoneError:
            return None
        return Result(
            Verdict.PASSED,
            command=self._processes.typed(step),
            cache=CacheUse(True, key, "in the cache"),
            statistics={**entry.metadata["statistics"], "hashes": entry.metadata["hashes"]},
            notes=step.notes,
        )

    def _made(self, step: Step, plan: Plan, key: str) -> Result:
        folder = Path(step.folder)
        ingredients = dict(step.cache.ingredients)
        write_atomic(folder / _PLAN_FILE, replace(plan, output=step.folder).to_json())
        cache = CacheUse(False, key, self._cache.explain_miss(step.id, ingredients))
        outcome = self._processes.run(step)
        if outcome.exit_code != 0 or not (folder / BUILD_FILE).is_file():
            return self._processes.complete(step, outcome, replace(self._failed(step, outcome), cache=cache))
        # What cannot be read is not kept.
        build = read_build(folder)
        files = {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and path.name not in _LOGS}
        statistics = {
            "tool_seconds": outcome.seconds,
            "peak_rss_bytes": outcome.peak_rss_bytes,
            "parameter_count": build.parameter_count,
        }
        hashes = {name: hash_file(path) for name, path in files.items() if ".onnx" in name}
        published = self._cache.publish(
            files,
            name=step.id,
            ingredients=ingredients,
            metadata={"statistics": statistics, "hashes": hashes, "command": self._processes.typed(step)},
            created=datetime.now(UTC),
        )
        notes = (*step.notes, published.note) if published.note else step.notes
        result = Result(Verdict.PASSED, cache=cache, statistics={**statistics, "hashes": hashes}, notes=notes)
        return self._processes.complete(step, outcome, result)

    def _failed(self, step: Step, outcome: Any) -> Result:
        """A model that is written wrong, or cannot be exported: torch's side, so an error and no failure of IREE's."""
        if outcome.exit_code == 0:
            what = "the builder ended without a result, and with exit code 0: does the model end the process?"
            return Result(Verdict.ERROR, what, tail=tuple(outcome.tail))
        lines = [line for line in self._processes.error_lines(step) if line.strip()]
        if outcome.exit_code in (1, _EXIT_USAGE) and lines and not outcome.signal:
            reason = next((line for line in lines if line.startswith("error: ")), lines[-1]).removeprefix("error: ")
            return Result(Verdict.ERROR, shorten(reason), tail=tuple(outcome.tail))
        return replace(after_process(step, outcome, lines, tool="the export", reason=""), verdict=Verdict.ERROR)
