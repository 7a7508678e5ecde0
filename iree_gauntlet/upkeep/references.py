"""References: the programs other than the tested IREE that compute what a user's program gives, by their strength.

A model is run in separate processes, because it may crash or hang, and because another Python may have the reference.
`_REFERENCES` has a row for each kind. The strongest that runs the program makes its expected outputs. If a second one
of the same row runs it too, the two are compared.

IREE itself, compiled or built another way, is the last row: it is no reference, and what passes against it only
*agrees* with it. A fault that both share is not seen.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import sys
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import psutil

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.recorded import UNRECORDED, Recorded
from iree_gauntlet.steps import Command
from iree_gauntlet.system.short_process import run_tool
from iree_gauntlet.upkeep.programs import ExportSource  # noqa: TC001 - read by its type
from iree_gauntlet.workers import iree_side
from iree_gauntlet.workers.iree_side.expected_outputs import choose_tolerances, describe_array, measure_excess
from iree_gauntlet.workers.iree_side.onnx_reference import find_dtype, pack_bytes
from iree_gauntlet.workers.iree_side.plan_file import PlanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iree_gauntlet.engine.processes.supervisor import Supervisor
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.upkeep.programs import UserProgram
    from iree_gauntlet.workers.iree_side.plan_file import Array


INPUTS_HINT = "Choose sizes and inputs that suit the model (`onnx_import.shapes`, `inputs`): docs/start/own-model.md"
_TIMEOUT_SECONDS = 1800.0
# A second opinion must be cheap.
_SECOND_SECONDS = 120.0
# The limit of each compile and run of IREE another way.
_IREE_SECONDS = 600.0
_PROBE_SECONDS = 60.0
# To import a framework takes seconds.
_PACKAGE_PROBE = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"it has no {name}")
"""
# A worker's exit code if the model, the sizes or the inputs are unsuitable.
_REJECTED_EXIT_CODE = 2
# The share of the machine's memory that a worker may use.
_MEMORY_SHARE = 0.75
_FATAL = re.compile(r"\b(?:LLVM ERROR|error|Assertion|terminate called|Check failed)\b")
_MAX_CAUSE = 200
_Result = TypeVar("_Result", bound=Recorded)


@dataclass(frozen=True, slots=True)
class ReferencePlan(Recorded):
    """The plan that a worker reads.

    Attributes:
        inputs: sets of inputs, as iree-run-module takes them, the preferred first.
        cwd: the folder of relative paths.
        folder: the folder of outputs.
        tolerances: the spec's allowed differences, by element type, and `rtol`; None to have them chosen.
        last: True if no other sets follow.
        memory_bytes: the limit of the worker's memory.
    """

    model: str
    inputs: tuple[tuple[str, ...], ...]
    cwd: str
    folder: str
    tolerances: dict[str, float] | None = None
    last: bool = True
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReferenceName(Recorded):
    """The program that ran a model, such as `onnxruntime`.

    Attributes:
        agrees_with: IREE's other way that ran it, for people; empty for a reference, which is not IREE.
    """

    name: str
    version: str
    agrees_with: str = ""

    def __str__(self) -> str:
        return self.agrees_with or f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class ModelInput(Recorded):
    """An input of a model's run."""

    name: str
    dtype: str
    declared_shape: list[int | str | None]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelOutput(Recorded):
    """An output of a model.

    Attributes:
        type: IREE's type.
        file: the file of the raw values.
        dtype: NumPy's type.
        least, most: the range of its finite values; None without any.
        differs: True if it differs from run to run.
        optimised, other: the difference of onnxruntime with optimisations, and of the other reference, if above the
            tolerance; None if within it or not run; -1 for an infinite difference.
        input: the index of the input that is passed through; None for a computed output.
    """

    name: str
    type: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    count: int
    nans: int
    infinities: int
    differs: bool
    least: float | None = None
    most: float | None = None
    optimised: float | None = None
    other: float | None = None
    input: int | None = None


@dataclass(frozen=True, slots=True)
class ReferenceResult(Recorded):
    """The result of a reference: of `run_onnx`, or of engines.

    Attributes:
        taken: the index of the set of inputs.
        tells: True if the outputs can detect errors.
        refused: the reasons for which other sets were rejected.
        random: operators of the model that make random numbers.
        allowed: the allowed differences of outputs, by element type: the fields of a worker's `OutputTolerance`.
        second: the other reference, whose differences the outputs have as `other`; empty if none ran.
        model: the ONNX file to which operators in MLIR were put together, if it was run.
        exported_from: the program of a framework that was exported.
        imported_by: the converter of TFLite that made the MLIR whose inputs were taken; empty for others.
        failed: True if another engine ended on these inputs, other than by refusing the program.
        as_declared: False if an output has other sizes than the model declares.
    """

    taken: int
    tells: bool
    refused: tuple[str, ...]
    reference: ReferenceName
    inputs: tuple[ModelInput, ...]
    outputs: tuple[ModelOutput, ...]
    random: tuple[str, ...]
    allowed: dict[str, Any]
    notes: tuple[str, ...]
    second: str = "the other of onnxruntime and onnx's evaluator"
    model: Path | None = None
    exported_from: ExportSource | None = field(default=None, metadata=UNRECORDED)
    imported_by: str = field(default="", metadata=UNRECORDED)
    failed: bool = field(default=False, metadata=UNRECORDED)
    as_declared: bool = True


@dataclass(frozen=True, slots=True)
class ReferenceWorkers:
    """The programs that read and run models, by default in a Python that has onnxruntime; `folder` has their files."""

    supervisor: Supervisor
    python: str
    folder: Path

    def run_worker(
        self,
        name: str,
        failure_text: str,
        plan: Recorded,
        result_type: type[_Result],
        *,
        python: str = "",
        seconds: float = _TIMEOUT_SECONDS,
    ) -> _Result:
        """Run a worker on a plan, and return its result; `failure_text` begins the message of an error.

        Raises:
            UsageError: the plan cannot be used with this model.
            GauntletError: no reference can run the model, or the worker crashed.
        """
        file, out, err = (self.folder / f"{name}{suffix}" for suffix in (".json", ".stdout.txt", ".stderr.txt"))
        file.write_text(json.dumps(plan.as_dict()), encoding="utf-8")
        script = str(Path(iree_side.__file__).with_name(f"{name}.py"))
        command = Command((python or self.python, script, str(file)), str(Path.cwd()))
        outcome = self.supervisor.run(command, stdout=out, stderr=err, timeout=seconds)
        if outcome.exit_code == 0:
            try:
                return result_type.from_dict(json.loads(out.read_text(encoding="utf-8")))
            except ValueError as error:
                raise GauntletError(f"{failure_text}: it ended without an answer", INPUTS_HINT) from error
        lines = [line for line in err.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit code {outcome.exit_code}"
        if outcome.signal:
            # The last lines are of the stack, if any.
            cause = next((line for line in lines if _FATAL.search(line)), "")
            reason = f"it crashed with {outcome.signal}{f': {cause[:_MAX_CAUSE]}' if cause else ''}"
        if outcome.timed_out:
            reason = f"it ran longer than {seconds:g} s"
        raise (UsageError if outcome.exit_code == _REJECTED_EXIT_CODE else GauntletError)(
            f"{failure_text}: {reason}", INPUTS_HINT
        )


def get_memory_limit() -> int:
    """Return the number of bytes that a worker may use."""
    return int(psutil.virtual_memory().total * _MEMORY_SHARE)


@dataclass(frozen=True, slots=True)
class EngineOutput(Recorded):
    """An output of an engine: a file with the values as NumPy has them; `differs` from run to run."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    differs: bool

    def read(self) -> Array:
        """Read the values."""
        return np.frombuffer(self.file.read_bytes(), find_dtype(self.dtype)).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class EngineAnswer(Recorded):
    """The answer of an engine; `expected_outputs.py` describes it."""

    taken: int
    tells: bool
    refused: tuple[str, ...]
    version: str
    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[EngineOutput, ...]


@dataclass(frozen=True, slots=True)
class EngineRun(Recorded):
    """The plan of an engine; `expected_outputs.py` describes it."""

    model: str
    function: str
    engine: str
    inputs: tuple[tuple[str, ...], ...]
    dtypes: tuple[str, ...]
    cwd: str
    folder: str
    memory_bytes: int
    options: Recorded | None = None


@dataclass(frozen=True, slots=True)
class _IreeTools(Recorded):
    """The options of `run_iree.py`, which describes them."""

    compile: str
    run_module: str
    flags: tuple[str, ...]
    dtypes: tuple[str, ...]
    version: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ReferenceEngine:
    """A program that computes a program in MLIR.

    Attributes:
        name: its name in provenances, and of the worker's engine.
        title: its name for people.
        worker: the worker that runs it, in `python`.
        options: the options of the worker.
        weak: True for IREE itself.
    """

    name: str
    title: str
    worker: str
    python: str
    options: Recorded | None = None
    weak: bool = False


@dataclass(frozen=True, slots=True)
class OnnxReference:
    """onnxruntime, and onnx's evaluator, for an ONNX file."""

    workers: ReferenceWorkers
    model: Path
    restored: bool

    def run(self, name: str, plan: ReferencePlan) -> ReferenceResult:
        """Run the model of a plan; errors as in `ReferenceWorkers.run_worker`."""
        plan = replace(plan, model=str(self.model.absolute()))
        result = self.workers.run_worker("run_onnx", name, plan, ReferenceResult)
        return replace(result, model=self.model) if self.restored else result


@dataclass(frozen=True, slots=True)
class EngineReference:
    """Engines for a program in MLIR: the first that runs it is the reference, the next one the second opinion.

    Attributes:
        exact_engine: runs the program in f64, for the tolerance; None if no engine does.
    """

    workers: ReferenceWorkers
    program: UserProgram
    engines: tuple[ReferenceEngine, ...]
    exact_engine: ReferenceEngine | None = None

    def run(self, name: str, plan: ReferencePlan) -> ReferenceResult:
        """Run the program; raise a GauntletError with the reasons of all engines if none runs it."""
        taken: tuple[ReferenceEngine, EngineAnswer] | None = None
        second: tuple[ReferenceEngine, EngineAnswer] | None = None
        reasons = []
        inputs, failed = plan.inputs, False
        for engine in self.engines:
            try:
                seconds = _TIMEOUT_SECONDS if taken is None else _SECOND_SECONDS
                answer = self._run_engine(engine, inputs, plan, seconds)
            except GauntletError as error:
                reasons.append(error.message)
                failed = failed or not isinstance(error, UsageError)
                continue
            if taken is not None:
                second = engine, answer
                break
            taken, inputs = (engine, answer), (inputs[answer.taken],)
        if taken is None:
            raise GauntletError(f"{name}: {'; '.join(reasons)}", INPUTS_HINT)
        return replace(self._make_result(plan, taken, second, reasons), failed=failed)

    def _run_engine(
        self, engine: ReferenceEngine, inputs: tuple[tuple[str, ...], ...], plan: ReferencePlan, seconds: float
    ) -> EngineAnswer:
        dtypes = tuple(tensor.dtype for tensor in self.program.inputs)
        path, function = str(self.program.path.absolute()), self.program.function
        run = EngineRun(
            path, function, engine.name, inputs, dtypes, plan.cwd, plan.folder, get_memory_limit(), engine.options
        )
        return self.workers.run_worker(
            engine.worker, engine.title, run, EngineAnswer, python=engine.python, seconds=seconds
        )

    def _run_exactly(self, plan: ReferencePlan, answer: EngineAnswer) -> Sequence[Array | None]:
        """Return the outputs in f64; None for each if no engine has them."""
        if self.exact_engine is not None and plan.tolerances is None:
            with contextlib.suppress(GauntletError):
                exact = self._run_engine(self.exact_engine, (plan.inputs[answer.taken],), plan, _SECOND_SECONDS)
                return [output.read() for output in exact.outputs]
        return [None] * len(answer.outputs)

    def _make_result(
        self,
        plan: ReferencePlan,
        taken: tuple[ReferenceEngine, EngineAnswer],
        second: tuple[ReferenceEngine, EngineAnswer] | None,
        reasons: Sequence[str],
    ) -> ReferenceResult:
        engine, answer = taken
        arrays = [output.read() for output in answer.outputs]
        second_arrays = [output.read() for output in second[1].outputs] if second else [None] * len(arrays)
        if len(second_arrays) != len(arrays):
            raise GauntletError(f"{engine.title} gives {len(arrays)} outputs, and another engine {len(second_arrays)}")
        trios = zip(arrays, self._run_exactly(plan, answer), second_arrays, strict=True)
        tolerances = choose_tolerances(plan.tolerances, trios, self.program.longest_sum)
        outputs = []
        for index, (declared, item, array, second_array) in enumerate(
            zip(self.program.outputs, answer.outputs, arrays, second_arrays, strict=True)
        ):
            try:
                kind = declared.format_type(array)
            except PlanError as error:
                raise UsageError(f"{self.program.file_name}: {error}") from error
            file = Path(plan.folder) / f"output_{index}.bin"
            file.write_bytes(pack_bytes(array))
            excess = measure_excess(array, second_array, tolerances)
            facts = asdict(describe_array(array))
            outputs.append(ModelOutput(declared.name, kind, file, differs=item.differs, other=excess, **facts))
        version = answer.version
        title = f"{engine.title} of IREE {version}" if engine.weak else ""
        return ReferenceResult(
            taken=answer.taken,
            tells=answer.tells,
            refused=answer.refused,
            reference=ReferenceName(engine.name, version, title),
            inputs=tuple(
                ModelInput(tensor.name, tensor.dtype, list(tensor.declared_shape), shape)
                for tensor, shape in zip(self.program.inputs, answer.shapes, strict=True)
            ),
            outputs=tuple(outputs),
            random=(),
            allowed={name: asdict(tolerance) for name, tolerance in tolerances.items()},
            notes=tuple(reasons),
            second=second[0].title if second else "",
            exported_from=self.program.source,
            imported_by=self.program.tflite.converter if self.program.tflite else "",
        )


_Reference = OnnxReference | EngineReference


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework whose programs are exported, and run as references.

    Attributes:
        title: its name for people.
        worker: the worker that exports and runs programs.
        packages: the packages that its Python must have.
        extra: the extra of this package that brings them.
        imports: packages whose import shows that a Python file is for this framework.
    """

    title: str
    worker: str
    packages: tuple[str, ...]
    extra: str
    imports: tuple[str, ...]

    @property
    def hint(self) -> str:
        """The command that installs it."""
        return f"pip install 'iree-gauntlet[{self.extra}]'"


FRAMEWORKS = {
    "jax": Framework("JAX", "run_jax", ("jaxlib", "jax"), "jax", ("jax", "flax", "equinox", "haiku")),
    "torch": Framework(
        "PyTorch", "run_torch", ("torch", "iree-turbine"), "models", ("torch", "torchvision", "transformers", "timm")
    ),
}

# Its files are imported, not exported.
TFLITE = Framework("TFLite", "run_tflite", ("ai-edge-litert",), "tflite", ())


@dataclass(frozen=True)
class ReferenceSources:
    """The sources of references: workers, a Python that may have frameworks, the tested IREE, and perhaps another."""

    workers: ReferenceWorkers
    python: str = ""
    find_toolchain: Callable[[str], Toolchain] | None = None
    other_iree: str = ""
    flags: tuple[str, ...] = ()

    @cached_property
    def jax_python(self) -> str:
        """The Python that has jaxlib; empty if there is none.

        Raises:
            UsageError: `--reference-python` names no Python with jaxlib.
        """
        return self.find_python(FRAMEWORKS["jax"])

    @cached_property
    def tflite_python(self) -> str:
        """The Python that has LiteRT; empty if there is none; errors as of `jax_python`."""
        return self.find_python(TFLITE)

    def find_python(self, framework: Framework) -> str:
        """Return the Python that has a framework; empty if there is none.

        Raises:
            UsageError: `--reference-python` names no Python with it.
        """
        option = f"--reference-python {self.python}"
        path = shutil.which(self.python) if self.python else sys.executable
        if path is None:
            raise UsageError(f"{option}: no such program", f"Name a Python that has {framework.title}.")
        probe = run_tool([path, "-c", _PACKAGE_PROBE, *framework.packages], timeout=_PROBE_SECONDS)
        if probe.exit_code and self.python:
            reason = (probe.stderr.strip().splitlines() or [f"exit code {probe.exit_code}"])[-1]
            raise UsageError(f"{option}: {reason[:_MAX_CAUSE]}", f"{framework.hint} in it.")
        return "" if probe.exit_code else path

    @cached_property
    def toolchain(self) -> Toolchain:
        """The tested IREE."""
        if self.find_toolchain is None:
            raise GauntletError("there is no IREE")
        return self.find_toolchain("")

    @cached_property
    def other_toolchain(self) -> Toolchain | None:
        """The IREE of `--reference-iree`."""
        return self.find_toolchain(self.other_iree) if self.other_iree and self.find_toolchain else None


@dataclass(frozen=True, slots=True)
class ReferenceRow:
    """A kind of reference: the programs that it applies to, and how it is made; a text is the reason that it is not."""

    title: str
    applies: Callable[[UserProgram], bool]
    make: Callable[[UserProgram, ReferenceSources], _Reference | str]


def _is_of(framework: str) -> Callable[[UserProgram], bool]:
    return lambda program: program.source is not None and program.source.framework == framework


def _make_torch(program: UserProgram, sources: ReferenceSources) -> _Reference | str:
    source = program.source
    if source is None:
        return "it is not of PyTorch"
    eager = ReferenceEngine("torch", "PyTorch", "run_torch", source.python, source)
    core = replace(eager, name="torch-core", title="PyTorch's decomposition to core operators")
    return EngineReference(sources.workers, program, (eager, core), replace(eager, name="torch-f64"))


def _make_jax(program: UserProgram, sources: ReferenceSources) -> _Reference | str:
    source = program.source
    if source is None:
        return "it is not of JAX"
    jax = ReferenceEngine("jax", "JAX", "run_jax", source.python, source)
    interpreter = ReferenceEngine("interpreter", "StableHLO's interpreter", "run_stablehlo", source.python)
    exact = replace(jax, name="jax-f64") if source.function else None
    return EngineReference(sources.workers, program, (jax, interpreter), exact)


def _make_tflite(program: UserProgram, sources: ReferenceSources) -> _Reference | str:
    python = sources.tflite_python
    if not python or program.tflite is None:
        return f"ai-edge-litert is not installed, which computes TFLite: {TFLITE.hint}, or give --reference-python"
    engines = (
        ReferenceEngine("litert", "LiteRT's reference kernels", "run_tflite", python, program.tflite),
        ReferenceEngine("xnnpack", "LiteRT's optimised kernels", "run_tflite", python, program.tflite),
    )
    return EngineReference(sources.workers, program, engines)


def _make_stablehlo(program: UserProgram, sources: ReferenceSources) -> _Reference | str:
    python = sources.jax_python
    if not python:
        hint = FRAMEWORKS["jax"].hint
        return f"jaxlib is not installed, which computes StableHLO: {hint}, or give --reference-python"
    engines = (
        ReferenceEngine("xla", "XLA", "run_stablehlo", python),
        ReferenceEngine("interpreter", "StableHLO's interpreter", "run_stablehlo", python),
    )
    return EngineReference(sources.workers, program, engines)


_LOCAL = "--iree-hal-target-device=local"
_BACKEND = "--iree-hal-local-target-device-backends="
_GENERIC_CPU = (f"{_BACKEND}llvm-cpu", "--iree-llvmcpu-target-cpu=generic")


def _make_iree(program: UserProgram, sources: ReferenceSources) -> _Reference | str:
    other = sources.other_toolchain
    # The tested way comes from the specs' flags: llvm-cpu for this CPU.
    ways: list[tuple[str, str, Toolchain, tuple[str, ...]]] = [
        ("iree-vmvx", "vmvx", sources.toolchain, (f"{_BACKEND}vmvx",)),
        ("iree-o0", "llvm-cpu at O0", sources.toolchain, (*_GENERIC_CPU, "--iree-opt-level=O0")),
    ]
    if other is not None:
        ways[1:] = ways[:1]
        ways[0] = ("iree-other", "llvm-cpu", other, _GENERIC_CPU)
    dtypes = tuple(output.dtype for output in program.outputs)
    engines = []
    for name, title, toolchain, flags in ways:
        tools = _IreeTools(
            toolchain.compiler.compile,
            toolchain.runtime.run_module,
            (_LOCAL, *flags, *sources.flags, *((KEEP_F64,) if program.has_f64 else ())),
            dtypes,
            toolchain.compiler.release or toolchain.compiler.version,
            _IREE_SECONDS,
        )
        engines.append(ReferenceEngine(name, title, "run_iree", "", tools, weak=True))
    return EngineReference(sources.workers, program, tuple(engines))


KEEP_F64 = "--iree-input-demote-f64-to-f32=false"
_STABLEHLO = frozenset(("stablehlo", "vhlo", "chlo"))
_WITH_STABLEHLO = _STABLEHLO | {"func", "shape", "tensor"}


# The strongest first.
_REFERENCES = (
    ReferenceRow(
        "onnxruntime and onnx's evaluator",
        lambda program: program.is_onnx or bool(program.restored),
        lambda program, sources: OnnxReference(
            sources.workers, program.restored or program.path, bool(program.restored)
        ),
    ),
    ReferenceRow("LiteRT", lambda program: program.tflite is not None, _make_tflite),
    ReferenceRow("JAX's own call", _is_of("jax"), _make_jax),
    ReferenceRow("PyTorch's own call", _is_of("torch"), _make_torch),
    ReferenceRow(
        "XLA and StableHLO's interpreter",
        lambda program: (
            bool(_STABLEHLO.intersection(program.dialects)) and _WITH_STABLEHLO.issuperset(program.dialects)
        ),
        _make_stablehlo,
    ),
    ReferenceRow("IREE another way", lambda program: not program.is_onnx, _make_iree),
)


def is_weak(reference: _Reference | str) -> bool:
    """Return whether a reference is IREE itself."""
    return isinstance(reference, EngineReference) and reference.engines[0].weak


def list_references(program: UserProgram, sources: ReferenceSources) -> Iterator[_Reference | str]:
    """Yield the references of a program, the strongest first; a text is the reason that one is not here."""
    for row in _REFERENCES:
        if row.applies(program):
            yield row.make(program, sources)
