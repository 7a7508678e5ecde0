"""Chains whose programs torch makes: their steps, the Python that exports them, and the programs that measure them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import MAIN, Module, OnnxImport, Origin, Program, Stage, Verdict
from iree_gauntlet.engine.commands import Places
from iree_gauntlet.engine.judging import after_process
from iree_gauntlet.engine.modules.module_cache import EntryGoneError
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan_modules import DEFAULT_TIMEOUTS, PlanContext, compile_step
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.results import CacheUse, Result, shorten
from iree_gauntlet.steps import CacheLookup, Command, Resources, Step, StepInput, step_id
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.short_process import ask
from iree_gauntlet.toolchains.devices import find_device
from iree_gauntlet.torch_models.build_folder import BUILD_FILE, BuildRecord, read_build
from iree_gauntlet.torch_models.declarations import INSTALL_HINT
from iree_gauntlet.torch_models.model_registry import find_reached_files
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.journal_events import Device
    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.torch_models import build_folder
    from iree_gauntlet.torch_models.build_folder import Array
    from iree_gauntlet.torch_models.build_plan import ModelPlan


_PROCESS = Path(__file__).with_name("torch_process.py")
# Nothing is imported: torch takes seconds.
_PROBE = """
import importlib.metadata as metadata, json, sys, sysconfig
found = {}
for name in ("torch", "torchao", "transformers", "onnxscript", "onnx", "numpy"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
places = dict.fromkeys(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
print(json.dumps({"python": list(sys.version_info[:3]), "versions": found, "paths": list(places)}))
"""
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
MODULE_WORKER = "measure_module.py"
GENERATIVE_WORKER = "measure_generative.py"
PIPELINE_WORKER = "measure_pipeline.py"
_TOOL = "the measuring program"


@dataclass(frozen=True, slots=True)
class TorchPython:
    """A Python that has torch.

    Attributes:
        paths: its folders of packages, for a Python of the same version that lacks torch.
    """

    path: str
    python: str
    versions: Mapping[str, str]
    paths: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Changes where what it builds may change."""
        return " ".join(
            [f"python {self.python}", *(f"{name} {found}" for name, found in sorted(self.versions.items()))]
        )


def make_torch_words(python: str, module: str) -> tuple[str, ...]:
    """The words that run a module of this package in a Python (see `torch_process.py`), but for its plan."""
    return (python, "-B", str(_PROCESS), module)


def find_torch_python(named: str) -> TorchPython:
    """The Python of `--torch-python`, or the toolkit's own where it has torch.

    Args:
        named: the option; empty where it is not given.

    Raises:
        UsageError: what is named is no Python.
        GauntletError: it has no torch, or lacks what exports with it.
    """
    path = shutil.which(named) if named else sys.executable
    if path is None:
        raise UsageError(
            f"--torch_python {named}: there is no such program", "Give the path of a Python that has torch."
        )
    if not named and importlib.util.find_spec("torch") is None:
        raise GauntletError(f"models are built with torch, and {path} has none", f"{INSTALL_HINT} with --torch_python.")
    answer = ask([path, "-c", _PROBE], timeout=60.0)
    try:
        found = json.loads(answer.stdout)
        python = ".".join(map(str, found["python"]))
        result = TorchPython(path, python, dict(found["versions"]), tuple(found["paths"]))
    except (ValueError, KeyError, TypeError):
        said = next(iter(answer.stderr.strip().splitlines()), f"exit code {answer.exit_code}")
        raise UsageError(f"--torch_python {named}: no Python answers there: {said[:80]}") from None
    missing = [name for name in ("torch", "onnxscript", "onnx") if name not in result.versions]
    if missing:
        raise GauntletError(f"{path} lacks {', '.join(missing)}, which models are built with", f"{INSTALL_HINT}.")
    return result


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program that was built, imported and compiled, where measuring programs find it.

    Attributes:
        parameters: the archive of its weights, of the scope `model`.
    """

    module: Path
    parameters: Path
    exported: Path
    program: build_folder.BuiltProgram

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
    # The toolkit's own files that the builder runs by their paths.
    loaded: ClassVar[tuple[Path, ...]] = ()

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
        return Path(Places(self.context.run_dir, {}, str).folder(self.id, stage, role))

    def exported(self, role: str = MAIN) -> Path:
        """The folder of what torch made."""
        return self.folder(Stage.EXPORT, role)

    def compiled(self, program: build_folder.BuiltProgram, role: str, side: str) -> CompiledProgram:
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

    def exporting(self, role: str, plan: ModelPlan, ingredients: Mapping[str, str], sources: Sequence[Path]) -> Step:
        """Makes a model with torch and exports it.

        Args:
            role: of the step.
            plan: of the builder.
            ingredients: what the model depends on besides; in place of the plan's fields that are paths.
            sources: files that it is made from.
        """
        step = self.step(Stage.EXPORT, role)
        asked = {name: str(value) for name, value in asdict(plan).items() if name not in _PATHS}
        made_by = {"builder": _hash_builder(self.builder, self.loaded), "torch": self.torch.identity}
        environment = {"environment": _join_environment(self.env)} if self.env else {}
        step = self._looked_up(step, {**asked, **ingredients, **made_by, **environment})
        words = (*make_torch_words(self.torch.path, self.builder), f"{step.folder}/{_PLAN_FILE}")
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
        return self._looked_up(done, {**dict(done.cache.ingredients), "environment": _join_environment(self.env)})

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


def find_builder_files(builder: str, loaded: Sequence[Path] = ()) -> tuple[Path, ...]:
    """The files of this folder that make a model: the builder's module, and all that it and what it loads import.

    `loaded`: files that it runs by their paths.

    Other rooms are not among them: they read and write files for it.
    """
    package, _, name = builder.rpartition(".")
    return find_reached_files([_OWN_FOLDER / f"{name}.py", *loaded], _OWN_FOLDER, package)


@cache
def _hash_builder(builder: str, loaded: tuple[Path, ...]) -> str:
    """Changes where the toolkit's own code that makes models may have changed."""
    return hash_of_files(find_builder_files(builder, loaded), _OWN_FOLDER)


def list_runnable_files(compiled: Step, imported: Step) -> tuple[StepInput, ...]:
    """What a step that runs a compiled program reads."""
    return (StepInput("module", compiled.output("module")), StepInput("parameters", imported.output("parameters")))


def hash_of_files(paths: Sequence[Path], root: Path) -> str:
    """One for several files, by their names below a folder and their content."""
    digest = hashlib.sha256()
    for path in paths:
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name}\0{hash_file(path)}\n".encode())
    return digest.hexdigest()


def _join_environment(env: Sequence[tuple[str, str]]) -> str:
    return " ".join(f"{name}={value}" for name, value in env)


class Exporter:
    """Performs export steps."""

    def __init__(self, session: Session[Any], workbench: Workbench) -> None:
        self._cache = workbench.modules
        self._processes = session.processes
        self.builds: dict[str, BuildRecord] = {}
        self.hashes: dict[str, Mapping[str, str]] = {}
        self._folders: dict[str, Path] = {}
        self._cancelled = session.cancelled

    def perform(self, step: Step, plan: ModelPlan) -> Result:
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

    def _made(self, step: Step, plan: ModelPlan, key: str) -> Result:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes(Recorded):
    """What a measuring program says of times.

    Attributes:
        prefill_ms, decode_ms: of each generation, in place of calls.
        host_ms: of the stages on the host; None where there are none.
    """

    total_s: float = 0.0
    calls: int = 0
    call_ms: tuple[tuple[float, ...], ...] = ()
    prefill_ms: tuple[float, ...] = ()
    decode_ms: tuple[tuple[float, ...], ...] = ()
    host_ms: dict[str, list[float]] | None = None

    @property
    def times_ms(self) -> tuple[float, ...]:
        """Of all calls, or generations."""
        if self.prefill_ms:
            return tuple(first + sum(rest) for first, rest in zip(self.prefill_ms, self.decode_ms, strict=True))
        return tuple(value for context in self.call_ms for value in context)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCalls(CallTimes):
    """The answer of a measuring program; the programs say what is what.

    Attributes:
        chosen: tokens of the last generation, by sample.
        pushed: `async` or `one by one`.
    """

    load_ms: float
    overhead_us: float
    peak_rss_bytes: int
    device_memory: dict[str, Any]
    generations: int = 0
    chosen: tuple[tuple[int, ...], ...] = ()
    pushed: str = ""
    host_outputs: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """The result of a measuring program.

    Attributes:
        figures: its answer; None where it failed.
    """

    step: Step
    processes: Processes
    outcome: Outcome
    figures: Mapping[str, Any] | None
    failure: Result

    def complete(self, result: Result) -> Result:
        """A result of the step with what is known of the process."""
        return self.processes.complete(self.step, self.outcome, result)


def make_worker_command(chain: TorchChain, step: Step, script: str, plan: Mapping[str, Any], name: str = "") -> Command:
    """The command of a measuring program in the toolchain's own Python."""
    home = Path(__file__).parent if script == PIPELINE_WORKER else Path(iree_side.__file__).parent
    return write_planned_command(
        step, (chain.toolchain.compiler.python, "-B", str(home / script)), plan, name, chain.env
    )


def write_planned_command(
    step: Step, words: Sequence[str], plan: Mapping[str, Any], name: str = "", env: tuple[tuple[str, str], ...] = ()
) -> Command:
    """A command whose plan is written into the step's folder and named by its last word."""
    folder = Path(step.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}plan.json"
    write_atomic(path, json.dumps(dict(plan), indent=1))
    return Command((*words, str(path)), step.folder, env)


def ask_worker(
    chain: TorchChain, step: Step, processes: Processes, script: str, plan: Mapping[str, Any], name: str = ""
) -> WorkerAnswer:
    """Runs a measuring program to its end; arguments as for `make_worker_command`."""
    command = make_worker_command(chain, step, script, plan, name)
    outcome = processes.run(step, command, name=name)
    step = replace(step, command=step.command or command)
    figures, failure = None, Result(Verdict.PASSED)
    if outcome.exit_code == 0:
        try:
            figures = json.loads(processes.stdout(step, name))
        except ValueError:
            failure = Result(Verdict.ERROR, f"{_TOOL} gave no answer", tail=tuple(outcome.tail))
    else:
        lines = [line for line in processes.error_lines(step, name) if line.strip()]
        # Its last line says why; what other libraries say is before it.
        reason = shorten(lines[-1]) if lines and not outcome.signal else ""
        failure = after_process(step, outcome, lines, tool=_TOOL, reason=reason)
    return WorkerAnswer(step, processes, outcome, figures, processes.complete(step, outcome, failure))
