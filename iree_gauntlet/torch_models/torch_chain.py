"""Chains of programs that torch exports: their steps, the Python with torch, and the measuring programs.

Options are translated here for the IREE compiler: target, optimisation level, math fidelity.
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
from iree_gauntlet.engine.plan import PlanContext, add_build_command, complete_compile, make_step
from iree_gauntlet.errors import GauntletError, ToolchainError, UsageError
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.stages import Kind, Stage
from iree_gauntlet.steps import Command, Step, StepInput, make_step_id
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.short_process import run_tool
from iree_gauntlet.targets import Target, parse_target
from iree_gauntlet.toolchains.devices import check_device, find_device, list_device_uris
from iree_gauntlet.torch_models.build_files import Array, ProgramBuild  # noqa: TC001 - fields are read by their types
from iree_gauntlet.torch_models.declarations import INSTALL_HINT
from iree_gauntlet.torch_models.model_registry import find_imported_files
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.journal_events import Device
    from iree_gauntlet.toolchains.flags import FlagSet
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.torch_models.build_files import ModelPlan
    from iree_gauntlet.torch_models.formats import DataFormat


_PACKAGE_FOLDER = Path(__file__).parent
_PACKAGE = "iree_gauntlet.torch_models"
_TORCH_SIDE = _PACKAGE_FOLDER / "torch_side"
# The probe does not import torch, which takes seconds.
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
# The name that torch.onnx.export gives to graphs, and so the name of the imported function.
FUNCTION = "main_graph"
_MODULE_FILE = "module.vmfb"
_PARAMETERS_FILE = "model.irpa"
# A plan's fields that are paths. Keys have no paths: a model depends on the files' content.
_PATH_FIELDS = ("output", "models_dirs", "plugins")
# By default torch's threads wait actively for each other, which takes five times the CPU time on a busy machine.
_TORCH_ENV = (("OMP_WAIT_POLICY", "passive"),)
MODULE_WORKER = "measure_module.py"
GENERATIVE_WORKER = "measure_generative.py"
PIPELINE_WORKER = "measure_pipeline.py"
_OPT_LEVEL_FLAG = "iree-opt-level"
_MAX_OPT_LEVEL = 3
# From this level on, the compiler rewrites matrix products as generic operations first. The pass that narrows the
# inputs of matrix products then finds no products.
_GENERALIZING_LEVEL = 2
_GENERALIZE_FLAG = "iree-opt-generalize-matmul"
_NARROW_TYPE_FLAG = "iree-global-opt-demote-contraction-inputs-type"
_NARROW_OPERATIONS_FLAG = "iree-global-opt-demote-contraction-inputs-operations"
# The flag of IREE up to 3.11, whose compiler narrows to bf16 only.
_NARROW_TO_BF16_FLAG = "iree-global-opt-enable-demote-contraction-inputs-to-bf16"
# From the widest to the narrowest. The compiler offers only two narrow types, so the lowest two fidelities are equal.
_FIDELITY_TYPES = {"HiFi4": "f32", "HiFi3": "f16", "HiFi2": "bf16", "LoFi": "bf16"}


@dataclass(frozen=True, slots=True)
class TorchPython(Recorded):
    """A Python that has torch; from its package folders, `paths`, another Python of its version can import torch."""

    path: str
    python: str
    versions: dict[str, str]
    paths: tuple[str, ...]

    @property
    def identity(self) -> str:
        """A text that changes whenever the models built in this Python may change."""
        return " ".join(
            [f"python {self.python}", *(f"{name} {version}" for name, version in sorted(self.versions.items()))]
        )


def make_torch_argv(python: str, module: str) -> tuple[str, ...]:
    """Return the command that runs a module of `torch_side/` in a Python, without the plan (see `torch_process.py`).

    Python may write bytecode (no -B): uv installs packages without bytecode, which costs torch 15 s at each start.
    """
    return (python, str(_TORCH_SIDE / "torch_process.py"), f"{_PACKAGE}.torch_side.{module}")


def find_torch_python(python_option: str) -> TorchPython:
    """Return the Python of `--torch-python`; without the option, the toolkit's Python."""
    path = shutil.which(python_option) if python_option else sys.executable
    if path is None:
        raise UsageError(
            f"--torch_python {python_option}: no such program", "Give the path of a Python that has torch."
        )
    if not python_option and importlib.util.find_spec("torch") is None:
        raise GauntletError(
            f"models are built with torch, but {path} does not have it", f"{INSTALL_HINT} with --torch_python."
        )
    probe = run_tool([path, "-c", _PROBE], timeout=60.0)
    try:
        result = TorchPython.from_dict({"path": path, **json.loads(probe.stdout)})
    except (ValueError, TypeError, AttributeError):
        message = next(iter(probe.stderr.strip().splitlines()), f"exit code {probe.exit_code}")
        raise UsageError(f"--torch_python {python_option}: it does not run as a Python: {message[:80]}") from None
    missing = [name for name in ("torch", "onnxscript", "onnx") if name not in result.versions]
    if missing:
        raise GauntletError(f"{path} lacks {', '.join(missing)}, needed to build models", f"{INSTALL_HINT}.")
    return result


def choose_target(device: str, chip: str) -> Target:
    """Return the target to compile for."""
    driver, _ = split_device(device)
    family = parse_target(driver)
    if family is None:
        raise UsageError(f"--device {device}: no such driver: {driver}", "Such as local-task, hip://0, cuda://1.")
    if not chip:
        if family.kind.needs_chip:
            raise UsageError(f"--device {device}: its chip is unknown", "Name it with --target, such as gfx942.")
        return family
    target = parse_target(chip) or parse_target(f"{family.family}-{chip}")
    if target is not None and target.architecture:
        message = f"--target {chip}: models are measured on this machine, which is no such processor"
        raise UsageError(message, f"`gauntlet run --target {chip}` checks specs for it, by a runner.")
    if target is None or target.family != family.family or not family.kind.chip_flags:
        raise UsageError(
            f"--target {chip}: {device} is not a device with this chip",
            "Such as gfx942 with hip://0, sm_89 with cuda://0.",
        )
    return target


def choose_devices(device: str, chips: int, toolchain: Toolchain) -> tuple[str, ...]:
    """Return a benchmark's devices, one for each context; if there are fewer devices than contexts, they repeat.

    A `device` with an ordinal means that device only. `chips` is the number of contexts; 0 means all devices.
    """
    available = check_device(toolchain, device)
    if not available.ok:
        raise UsageError(f"--device {device}: {available.reason}", available.hint)
    driver, path = split_device(device)
    if chips == 1 or is_cpu(device):
        return (device,) * max(1, chips)
    available_devices = (device,) if path else list_device_uris(toolchain, driver)
    count = chips or len(available_devices)
    return tuple(available_devices[index % len(available_devices)] for index in range(count))


@dataclass(frozen=True, slots=True)
class CompilerOptions:
    """The flags for an option; `contraction_type`: the type to which inputs of f32 products are narrowed, or empty."""

    flags: tuple[str, ...] = ()
    contraction_type: str = ""
    notes: tuple[str, ...] = ()


def find_opt_level_flags(level: int | None, compiler_flags: FlagSet) -> CompilerOptions:
    """Return an optimisation level's flags: 0 to 3 mean O0 to O3, 4 also means O3, None the compiler's default."""
    if level is None:
        return CompilerOptions()
    if _OPT_LEVEL_FLAG not in compiler_flags.names:
        raise ToolchainError(
            f"--backend_opt_level {level}: this compiler has no --{_OPT_LEVEL_FLAG}",
            "Omit the option, or choose a newer compiler with --iree; releases from 3.5 on have the flag.",
        )
    notes = (f"backend_opt_level {level} is O{_MAX_OPT_LEVEL}: IREE's highest level.",)
    return CompilerOptions(
        (f"--{_OPT_LEVEL_FLAG}=O{min(level, _MAX_OPT_LEVEL)}",), notes=notes if level > _MAX_OPT_LEVEL else ()
    )


def find_fidelity_flags(fidelity: str, form: DataFormat, level: int | None, compiler_flags: FlagSet) -> CompilerOptions:
    """Return math fidelity's flags, which narrow inputs of f32 matrix products; sums stay f32.

    HiFi4 narrows nothing, HiFi3 narrows to f16, HiFi2 and LoFi to bf16. A fidelity is a lower bound, so HiFi3 means f32
    if the compiler can narrow to bf16 only. Products of f16 and bf16 are the same at every fidelity.
    """
    narrow_type = _FIDELITY_TYPES[fidelity]
    if narrow_type == "f32":
        return CompilerOptions()
    if form.element_type != "f32":
        note = (
            f"{fidelity} changes nothing here: the compiler narrows f32 only, and {form.value} is {form.element_type}."
        )
        return CompilerOptions(notes=(note,))
    names = compiler_flags.names
    flags: tuple[str, ...]
    if {_NARROW_TYPE_FLAG, _NARROW_OPERATIONS_FLAG} <= names:
        flags = (f"--{_NARROW_TYPE_FLAG}={narrow_type}", f"--{_NARROW_OPERATIONS_FLAG}=all")
    elif _NARROW_TO_BF16_FLAG not in names:
        raise ToolchainError(
            f"--math_fidelity {fidelity}: this compiler has no flag that narrows the inputs of contractions",
            "Use HiFi4, or choose another compiler with --iree; releases from 3.5 on have one.",
        )
    elif narrow_type == "bf16":
        flags = (f"--{_NARROW_TO_BF16_FLAG}=all",)
    else:
        return CompilerOptions(notes=(f"{fidelity} is HiFi4 here: up to 3.11 the compiler narrows to bf16 only.",))
    notes = ["Inputs of matrix products are narrowed; those of convolutions only by compilers before 3.7."]
    if fidelity == "LoFi":
        notes.append("LoFi is HiFi2 on IREE: bf16 is the narrowest type that the compiler offers.")
    if level is not None and level >= _GENERALIZING_LEVEL:
        flags = (*flags, f"--{_GENERALIZE_FLAG}=false")
        notes.append(f"--{_GENERALIZE_FLAG}=false is set, without which level {level} would narrow nothing.")
    return CompilerOptions(flags, narrow_type, tuple(notes))


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A compiled program with its build; `parameters` is the archive of its weights, with the scope `model`."""

    module: Path
    parameters: Path
    export_folder: Path
    program: ProgramBuild

    def describe_arrays(self, arrays: Sequence[Array]) -> list[dict[str, str]]:
        """Return arrays of the build in the form that plans have."""
        return [{"file": str(self.export_folder / array.file), "type": array.type} for array in arrays]

    @property
    def call_plan(self) -> dict[str, Any]:
        """The module, parameters and function, in the form that plans of measuring programs have."""
        parameters = [["model", str(self.parameters)]]
        return {"modules": [str(self.module)], "parameters": parameters, "function": FUNCTION}

    def plan(self, devices: Sequence[str], calls: int, warm_up_calls: int = 1, outputs: str = "") -> dict[str, Any]:
        """Return a plan for `measure_module`, with the inputs of the build."""
        return {
            **self.call_plan,
            "devices": list(devices),
            "inputs": self.describe_arrays(self.program.inputs),
            "calls": calls,
            "warm_up_calls": warm_up_calls,
            "outputs": outputs,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchChain(ABC):
    """Base class of chains whose programs torch exports."""

    target: Target
    device: str
    flags: tuple[str, ...]
    context: PlanContext
    toolchain: Toolchain
    torch: TorchPython

    dialect: ClassVar[str]
    builder: ClassVar[str]
    # The toolkit's files that the builder runs by their paths.
    loaded_files: ClassVar[tuple[Path, ...]] = ()

    @property
    @abstractmethod
    def names(self) -> tuple[str, str]:
        """The names of the model and the submodel."""

    @property
    @abstractmethod
    def origin(self) -> Origin:
        """The source location of the model."""

    @property
    def case(self) -> Case:
        """The case of the model on its device."""
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
        """The chain's name: `bert/tiny@cpu`."""
        return self.case.chain

    @property
    def gpus(self) -> tuple[Device, ...]:
        """The device on which the model runs; empty if it is the CPU."""
        return () if is_cpu(self.device) else (find_device(self.toolchain, self.device),)

    def folder(self, stage: Stage, role: str = MAIN) -> Path:
        """Return the folder of a step."""
        return Path(locate_step_folder(self.context.run_dir, self.id, stage, role))

    def get_export_folder(self, role: str = MAIN) -> Path:
        """Return the folder of torch's build."""
        return self.folder(Stage.EXPORT, role)

    def make_program(self, program: ProgramBuild, role: str, side: str) -> CompiledProgram:
        """Return a compiled program of a build."""
        parameters = self.folder(Stage.IMPORT, side) / _PARAMETERS_FILE
        return CompiledProgram(
            self.folder(Stage.COMPILE, role) / _MODULE_FILE, parameters, self.get_export_folder(side), program
        )

    def step(self, stage: Stage, role: str = MAIN) -> Step:
        """Return a step with the fields that are common to all steps of the chain."""
        return make_step(self.case, stage, self.context, role)

    def plan_export(self, role: str, plan: ModelPlan, key_fields: Mapping[str, str], sources: Sequence[Path]) -> Step:
        """Plan a model's build and export by torch; in the cache key, `key_fields` replace the plan's path fields."""
        step = replace(self.step(Stage.EXPORT, role), inputs=tuple(StepInput("program", str(path)) for path in sources))
        plan_fields = {name: str(value) for name, value in asdict(plan).items() if name not in _PATH_FIELDS}
        tool_inputs = {"builder": _hash_builder(self.builder, self.loaded_files), "torch": self.torch.identity}
        argv = (*make_torch_argv(self.torch.path, self.builder), f"{step.folder}/{PLAN_FILE}")
        key_inputs = {**plan_fields, **key_fields, **tool_inputs, **self.context.env_ingredient}
        return add_build_command(step, argv, key_inputs, self.context, env=_TORCH_ENV)

    def plan_import(self, role: str, onnx: Path, content: str, export: str) -> Step:
        """Plan the import of a program; its parameters go into an archive of the scope `model`."""
        step = replace(self.step(Stage.IMPORT, role), needs=(make_step_id(self.id, Stage.EXPORT, export),))
        program, parameters = f"{step.folder}/program.mlir", f"{step.folder}/{_PARAMETERS_FILE}"
        externals = ("--externalize-params", "--save-params-to", parameters)
        argv = (*self.toolchain.compiler.import_onnx, str(onnx), "-o", program, *externals)
        outputs = (("program", program), ("parameters", parameters))
        step = replace(step, inputs=(StepInput("program", str(onnx)),), outputs=outputs)
        # The importer writes the parameters' scope into the program, but not their path.
        key_inputs = {"kind": "import with parameters", "program": content, "importer": self.context.importer}
        return add_build_command(step, argv, key_inputs, self.context)

    def plan_compile(
        self, role: str, name: str, flags: tuple[str, ...], onnx: Path, content: str, import_step: Step
    ) -> Step:
        """Plan the compilation of an imported program."""
        step = replace(self.step(Stage.COMPILE, role), needs=(import_step.id,))
        program = Program(str(onnx), OnnxImport())
        module = Module(name=name, role=role, target=self.target, program=program, flags=flags, origin=step.origin)
        context = replace(self.context, artifact_path=Path, artifact_hash=lambda _: content)
        return complete_compile(
            step, module, import_step.find_output("program"), step.folder, context, context.translate
        )

    def plan_run(
        self, stage: Stage, inputs: Sequence[StepInput], needs: tuple[str, ...] = (), role: str = MAIN
    ) -> Step:
        """Plan a step that runs modules on the device; its result is never cached."""
        step = replace(self.step(stage, role), needs=needs, inputs=tuple(inputs))
        for gpu in self.gpus:
            step = step.place_on(gpu)
        return step

    def plan_rounds(self, inputs: Sequence[StepInput], needs: tuple[str, ...] = (), role: str = MAIN) -> Step:
        """Plan a step that measures in rounds, and that locks the machine itself for each block of rounds."""
        step = self.plan_run(Stage.BENCHMARK, inputs, needs, role)
        return replace(step, resources=replace(step.resources, cores=0, exclusive=False))


def find_builder_files(builder: str, loaded_files: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Return this package's files that affect a build: the builder in `torch_side/`, `loaded_files`, and their imports.

    The toolkit's other packages are excluded, because the builder uses them only to read and write files.
    """
    return find_imported_files([_TORCH_SIDE / f"{builder}.py", *loaded_files], _PACKAGE_FOLDER, _PACKAGE)


@cache
def _hash_builder(builder: str, loaded_files: tuple[Path, ...]) -> str:
    """Return a hash of the toolkit's code that builds models."""
    return hash_files(find_builder_files(builder, loaded_files), _PACKAGE_FOLDER)


def list_runnable_files(compile_step: Step, import_step: Step) -> tuple[StepInput, ...]:
    """Return the inputs of a step that runs a compiled program."""
    return (
        StepInput("module", compile_step.find_output("module")),
        StepInput("parameters", import_step.find_output("parameters")),
    )


def hash_files(paths: Sequence[Path], root: Path) -> str:
    """Return one hash for several files, by their names below a folder and their content."""
    digest = hashlib.sha256()
    for path in paths:
        name = path.relative_to(root) if path.is_relative_to(root) else path.name
        digest.update(f"{name}\0{hash_file(path)}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes(Recorded):
    """Times from a measuring program: of calls (`call_ms`), or of generations (`prefill_ms`, `decode_ms`)."""

    total_s: float = 0.0
    calls: int = 0
    call_ms: tuple[tuple[float, ...], ...] = ()
    prefill_ms: tuple[float, ...] = ()
    decode_ms: tuple[tuple[float, ...], ...] = ()
    host_ms: dict[str, list[float]] | None = None

    @property
    def times_ms(self) -> tuple[float, ...]:
        """The times of all calls, or of all generations."""
        if self.prefill_ms:
            return tuple(prefill + sum(decode) for prefill, decode in zip(self.prefill_ms, self.decode_ms, strict=True))
        return tuple(value for context in self.call_ms for value in context)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMeasurement(CallTimes):
    """The result of a measuring program, in whose docstring the fields are described."""

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
    """Return a measuring program's command in the toolchain's Python; the plan is written to `{name}plan.json`."""
    folder = _TORCH_SIDE if script == PIPELINE_WORKER else Path(iree_side.__file__).parent
    argv = (chain.toolchain.compiler.python, "-B", str(folder / script))
    return write_planned_command(step, argv, plan, f"{name}plan", chain.context.env)


def write_planned_command(
    step: Step, argv: Sequence[str], plan: Mapping[str, Any], name: str, env: tuple[tuple[str, str], ...]
) -> Command:
    """Write a plan to NAME.json in the step's folder, and return the command with that path as its last argument."""
    folder = Path(step.folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    write_atomic(path, json.dumps(dict(plan), indent=1))
    return Command((*argv, str(path)), step.folder, env)
