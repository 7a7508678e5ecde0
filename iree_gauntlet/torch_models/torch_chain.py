"""Chains whose programs torch makes: their steps, the Python that exports them, and the programs that measure them.

And what options are to the IREE compiler: a target, an optimisation level, math fidelity.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import MAIN, Case, Module, OnnxImport, Origin, Program
from iree_gauntlet.device_kinds import is_cpu, split_device
from iree_gauntlet.engine.commands import locate_step_folder
from iree_gauntlet.engine.plan import PlanContext, complete_compile, make_step, plan_making
from iree_gauntlet.errors import GauntletError, ToolchainError, UsageError
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.stages import Kind, Stage
from iree_gauntlet.steps import Command, Step, StepInput, make_step_id
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.short_process import ask
from iree_gauntlet.targets import Target, parse_target
from iree_gauntlet.toolchains.devices import check_device, devices, find_device
from iree_gauntlet.torch_models.build_files import Array, BuiltProgram  # noqa: TC001 - fields are read by their types
from iree_gauntlet.torch_models.declarations import INSTALL_HINT
from iree_gauntlet.torch_models.model_registry import find_reached_files
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.journal_events import Device
    from iree_gauntlet.toolchains.flags import FlagSet
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.torch_models.build_files import ModelPlan
    from iree_gauntlet.torch_models.formats import DataFormat


_OWN_FOLDER = Path(__file__).parent
_PACKAGE = "iree_gauntlet.torch_models"
_TORCH_SIDE = _OWN_FOLDER / "torch_side"
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
python = ".".join(map(str, sys.version_info[:3]))
print(json.dumps({"python": python, "versions": found, "paths": list(places)}))
"""
PLAN_FILE = "plan.json"
# What torch.onnx.export calls its graph, and so the importer the function.
FUNCTION = "main_graph"
_MODULE = "module.vmfb"
_PARAMETERS = "model.irpa"
# Fields of plans: it is the content that a model depends on.
_PATHS = ("output", "models_dirs", "plugins")
# Threads of torch's that wait for each other in a loop take five times as much of a busy machine.
_QUIETLY = (("OMP_WAIT_POLICY", "passive"),)
MODULE_WORKER = "measure_module.py"
GENERATIVE_WORKER = "measure_generative.py"
PIPELINE_WORKER = "measure_pipeline.py"
_LEVEL = "iree-opt-level"
_GREATEST_LEVEL = 3
# From this level on the compiler rewrites matrix products as generic operations, before it looks for products whose
# inputs are to be narrowed, and finds none.
_GENERALIZING_LEVEL = 2
_GENERALIZE = "iree-opt-generalize-matmul"
_TYPE = "iree-global-opt-demote-contraction-inputs-type"
_OPERATIONS = "iree-global-opt-demote-contraction-inputs-operations"
# Up to 3.11 the compiler narrows to bf16 only.
_TO_BF16 = "iree-global-opt-enable-demote-contraction-inputs-to-bf16"
# The widest first. The compiler offers two narrower types, so that the lowest two fidelities are one.
_LADDER = {"HiFi4": "f32", "HiFi3": "f16", "HiFi2": "bf16", "LoFi": "bf16"}


@dataclass(frozen=True, slots=True)
class TorchPython(Recorded):
    """A Python that has torch; `paths` are its folders of packages, for one of the same version that lacks it."""

    path: str
    python: str
    versions: dict[str, str]
    paths: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Changes where what it builds may change."""
        return " ".join(
            [f"python {self.python}", *(f"{name} {found}" for name, found in sorted(self.versions.items()))]
        )


def make_torch_words(python: str, module: str) -> tuple[str, ...]:
    """The words that run a module of `torch_side/` in a Python (see `torch_process.py`), but for its plan.

    Python keeps what it compiles of torch and the packages beside it, as installers such as uv do not: 15 s each time.
    """
    return (python, str(_TORCH_SIDE / "torch_process.py"), f"{_PACKAGE}.torch_side.{module}")


def find_torch_python(named: str) -> TorchPython:
    """The Python of `--torch-python`, or the toolkit's own where it has torch."""
    path = shutil.which(named) if named else sys.executable
    if path is None:
        raise UsageError(
            f"--torch_python {named}: there is no such program", "Give the path of a Python that has torch."
        )
    if not named and importlib.util.find_spec("torch") is None:
        raise GauntletError(f"models are built with torch, and {path} has none", f"{INSTALL_HINT} with --torch_python.")
    answer = ask([path, "-c", _PROBE], timeout=60.0)
    try:
        result = TorchPython.from_dict({"path": path, **json.loads(answer.stdout)})
    except (ValueError, TypeError, AttributeError):
        said = next(iter(answer.stderr.strip().splitlines()), f"exit code {answer.exit_code}")
        raise UsageError(f"--torch_python {named}: no Python answers there: {said[:80]}") from None
    missing = [name for name in ("torch", "onnxscript", "onnx") if name not in result.versions]
    if missing:
        raise GauntletError(f"{path} lacks {', '.join(missing)}, which models are built with", f"{INSTALL_HINT}.")
    return result


def choose_target(device: str, chip: str) -> Target:
    """What is compiled for."""
    driver, _ = split_device(device)
    family = parse_target(driver)
    if family is None:
        raise UsageError(f"--device {device}: no driver is called {driver}", "Such as local-task, hip://0, cuda://1.")
    if not chip:
        if family.kind.needs_chip:
            raise UsageError(f"--device {device}: which chip is it?", "Name it with --target, such as gfx942.")
        return family
    target = parse_target(chip) or parse_target(f"{family.family}-{chip}")
    if target is None or target.family != family.family or not family.kind.chip_flags:
        raise UsageError(
            f"--target {chip}: {device} is no device of that", "Such as gfx942 with hip://0, sm_89 with cuda://0."
        )
    return target


def choose_devices(device: str, chips: int, toolchain: Toolchain) -> tuple[str, ...]:
    """The devices that a benchmark runs on, one for each context, and the same one several times where there are fewer.

    `device` is one of several where it names an ordinal; 0 `chips` are all that there are.
    """
    available = check_device(toolchain, device)
    if not available.ok:
        raise UsageError(f"--device {device}: {available.reason}", available.hint)
    driver, path = split_device(device)
    if chips == 1 or is_cpu(device):
        return (device,) * max(1, chips)
    found = (device,) if path else devices(toolchain, driver)
    count = chips or len(found)
    return tuple(found[index % len(found)] for index in range(count))


@dataclass(frozen=True, slots=True)
class CompilerOptions:
    """The result of an option; `contraction_type` is what inputs of f32 matrix products are narrowed to, if at all."""

    flags: tuple[str, ...] = ()
    contraction_type: str = ""
    notes: tuple[str, ...] = ()


def find_opt_level_flags(level: int | None, known: FlagSet) -> CompilerOptions:
    """The optimisation level: 0 to 3 are O0 to O3, and 4 is O3 as well; None is the compiler's own default."""
    if level is None:
        return CompilerOptions()
    if _LEVEL not in known.names:
        raise ToolchainError(
            f"--backend_opt_level {level}: this compiler has no --{_LEVEL}",
            "Leave the option out, or choose a newer compiler with --iree; releases from 3.5 on have the flag.",
        )
    notes = (f"backend_opt_level {level} is O{_GREATEST_LEVEL}: IREE has no level above it.",)
    return CompilerOptions(
        (f"--{_LEVEL}=O{min(level, _GREATEST_LEVEL)}",), notes=notes if level > _GREATEST_LEVEL else ()
    )


def find_fidelity_flags(fidelity: str, form: DataFormat, level: int | None, known: FlagSet) -> CompilerOptions:
    """Math fidelity: the type that inputs of f32 matrix products are narrowed to; sums stay f32.

    HiFi4 narrows nothing, HiFi3 to f16, HiFi2 and LoFi to bf16. A compiler that knows bf16 only leaves HiFi3 at
    f32: a fidelity is never less than it says. f16 and bf16 products are as they are, whatever the fidelity.
    """
    wanted = _LADDER[fidelity]
    if wanted == "f32":
        return CompilerOptions()
    if form.element_type != "f32":
        note = (
            f"{fidelity} changes nothing here: the compiler narrows f32 only, and {form.value} is {form.element_type}."
        )
        return CompilerOptions(notes=(note,))
    names = known.names
    flags: tuple[str, ...]
    if {_TYPE, _OPERATIONS} <= names:
        flags = (f"--{_TYPE}={wanted}", f"--{_OPERATIONS}=all")
    elif _TO_BF16 not in names:
        raise ToolchainError(
            f"--math_fidelity {fidelity}: this compiler has no flag that narrows the inputs of contractions",
            "Use HiFi4, or choose another compiler with --iree; releases from 3.5 on have one.",
        )
    elif wanted == "bf16":
        flags = (f"--{_TO_BF16}=all",)
    else:
        return CompilerOptions(notes=(f"{fidelity} is HiFi4 here: up to 3.11 the compiler narrows to bf16 only.",))
    notes = ["Inputs of matrix products are narrowed; those of convolutions only by compilers before 3.7."]
    if fidelity == "LoFi":
        notes.append("LoFi is HiFi2 on IREE: bf16 is the narrowest type that the compiler offers.")
    if level is not None and level >= _GENERALIZING_LEVEL:
        flags = (*flags, f"--{_GENERALIZE}=false")
        notes.append(f"--{_GENERALIZE}=false is set, without which level {level} would narrow nothing.")
    return CompilerOptions(flags, wanted, tuple(notes))


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A program that was built, imported and compiled; the archive of its weights has the scope `model`."""

    module: Path
    parameters: Path
    exported: Path
    program: BuiltProgram

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
    def case(self) -> Case:
        """The model on its device, as planning knows cases."""
        model, submodel = self.names
        return Case(
            dialect=self.dialect,
            model=model,
            submodel=submodel,
            stem="",
            kind=Kind.BENCHMARK,
            target=self.target,
            modules=(),
            origin=self.origin,
            device=self.device,
        )

    @property
    def id(self) -> str:
        """`bert/tiny@cpu`."""
        return self.case.chain

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The device that it runs on, where that is not the CPU itself."""
        return () if is_cpu(self.device) else (find_device(self.toolchain, self.device),)

    def folder(self, stage: Stage, role: str = MAIN) -> Path:
        """The folder of a step."""
        return Path(locate_step_folder(self.context.run_dir, self.id, stage, role))

    def exported(self, role: str = MAIN) -> Path:
        """The folder of what torch made."""
        return self.folder(Stage.EXPORT, role)

    def compiled(self, program: BuiltProgram, role: str, side: str) -> CompiledProgram:
        """A program that was built."""
        parameters = self.folder(Stage.IMPORT, side) / _PARAMETERS
        return CompiledProgram(self.folder(Stage.COMPILE, role) / _MODULE, parameters, self.exported(side), program)

    def step(self, stage: Stage, role: str = MAIN) -> Step:
        """What all steps of the chain have in common."""
        return make_step(self.case, stage, self.context, role)

    def exporting(self, role: str, plan: ModelPlan, ingredients: Mapping[str, str], sources: Sequence[Path]) -> Step:
        """Makes a model with torch and exports it; `ingredients` stand in place of the plan's fields that are paths."""
        step = replace(self.step(Stage.EXPORT, role), inputs=tuple(StepInput("program", str(path)) for path in sources))
        asked = {name: str(value) for name, value in asdict(plan).items() if name not in _PATHS}
        made_by = {"builder": _hash_builder(self.builder, self.loaded), "torch": self.torch.identity}
        words = (*make_torch_words(self.torch.path, self.builder), f"{step.folder}/{PLAN_FILE}")
        key_inputs = {**asked, **ingredients, **made_by, **self.context.environment}
        return plan_making(step, words, key_inputs, self.context, env=_QUIETLY)

    def importing(self, role: str, onnx: Path, content: str, export: str) -> Step:
        """Imports a program; its parameters go into an archive of the scope `model`."""
        step = replace(self.step(Stage.IMPORT, role), needs=(make_step_id(self.id, Stage.EXPORT, export),))
        program, parameters = f"{step.folder}/program.mlir", f"{step.folder}/{_PARAMETERS}"
        externals = ("--externalize-params", "--save-params-to", parameters)
        argv = (*self.toolchain.compiler.import_onnx, str(onnx), "-o", program, *externals)
        outputs = (("program", program), ("parameters", parameters))
        step = replace(step, inputs=(StepInput("program", str(onnx)),), outputs=outputs)
        # The importer writes the parameters' scope into the program, and nothing of where they lie.
        ingredients = {"kind": "import with parameters", "program": content, "importer": self.context.importer}
        return plan_making(step, argv, ingredients, self.context)

    def compiling(self, role: str, name: str, flags: tuple[str, ...], onnx: Path, content: str, imported: Step) -> Step:
        """Compiles what was imported."""
        step = replace(self.step(Stage.COMPILE, role), needs=(imported.id,))
        program = Program(str(onnx), OnnxImport())
        module = Module(name=name, role=role, target=self.target, program=program, flags=flags, origin=step.origin)
        context = replace(self.context, artifact_path=Path, artifact_hash=lambda _: content)
        return complete_compile(step, module, imported.output("program"), step.folder, context, context.translate)

    def running(self, stage: Stage, inputs: Sequence[StepInput], needs: tuple[str, ...] = (), role: str = MAIN) -> Step:
        """Runs modules on the device, every time."""
        step = replace(self.step(stage, role), needs=needs, inputs=tuple(inputs))
        for gpu in self.gpus:
            step = step.place_on(gpu)
        return step

    def running_in_rounds(self, inputs: Sequence[StepInput], needs: tuple[str, ...] = (), role: str = MAIN) -> Step:
        """Measures in rounds; it takes the machine for each block of them by itself."""
        step = self.running(Stage.BENCHMARK, inputs, needs, role)
        return replace(step, resources=replace(step.resources, cores=0, exclusive=False))


def find_builder_files(builder: str, loaded: Sequence[Path] = ()) -> tuple[Path, ...]:
    """The files of this folder that make a model: a module of `torch_side/`, and all that it and what it loads import.

    Other rooms are not among them: they read and write files for it.
    """
    return find_reached_files([_TORCH_SIDE / f"{builder}.py", *loaded], _OWN_FOLDER, _PACKAGE)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes(Recorded):
    """What a measuring program says of times: of calls, or of generations (`prefill_ms`, `decode_ms`)."""

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
    """The answer of a measuring program; the programs say what is what."""

    load_ms: float
    overhead_us: float
    peak_rss_bytes: int
    device_memory: dict[str, Any]
    generations: int = 0
    chosen: tuple[tuple[int, ...], ...] = ()
    pushed: str = ""
    first_call_ms: float = 0.0
    outputs: tuple[Array, ...] = ()
    host_outputs: tuple[Array, ...] = ()


def make_worker_command(chain: TorchChain, step: Step, script: str, plan: Mapping[str, Any], name: str = "") -> Command:
    """The command of a measuring program in the toolchain's own Python; `name`: what its plan's begins with."""
    home = _TORCH_SIDE if script == PIPELINE_WORKER else Path(iree_side.__file__).parent
    words = (chain.toolchain.compiler.python, "-B", str(home / script))
    return write_planned_command(step, words, plan, f"{name}plan", chain.context.env)


def write_planned_command(
    step: Step, words: Sequence[str], plan: Mapping[str, Any], name: str, env: tuple[tuple[str, str], ...]
) -> Command:
    """A command whose plan is written into the step's folder, under a name, and named by its last word."""
    folder = Path(step.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    write_atomic(path, json.dumps(dict(plan), indent=1))
    return Command((*words, str(path)), step.folder, env)
