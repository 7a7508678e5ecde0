"""The facts of a program in MLIR for its spec: its public function, its inputs and outputs, its dialects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import list_first
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.upkeep.programs import ProgramOutput, UserProgram, make_input, make_model_name, require_known_inputs
from iree_gauntlet.upkeep.references import get_memory_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.upkeep.programs import ProgramInput
    from iree_gauntlet.upkeep.references import ReferenceWorkers


_READER_SECONDS = 60.0
_MAX_NAMES = 12
# Element types without a spec's input, or without values that a reference takes.
_SUFFIXES = (".mlir", ".mlirbc")
_VERSION = re.compile(rb"StableHLO_v(\d+\.\d+\.\d+)\0")


@dataclass(frozen=True, slots=True)
class _MlirValue(Recorded):
    """An input or output of a function; `read_mlir.py` describes it."""

    name: str
    type: str
    dtype: str
    element_type: str
    shape: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _MlirFunction(Recorded):
    name: str
    inputs: tuple[_MlirValue, ...]
    outputs: tuple[_MlirValue, ...]


@dataclass(frozen=True, slots=True)
class _Interface(Recorded):
    """The answer of `read_mlir`."""

    dialects: tuple[str, ...]
    functions: tuple[_MlirFunction, ...]
    has_f64: bool
    longest_sum: int
    state: tuple[str, ...]
    onnx: dict[str, str]
    onnx_problem: str


@dataclass(frozen=True, slots=True)
class _ReaderPlan(Recorded):
    model: str
    folder: str
    memory_bytes: int


def read_mlir(
    path: Path,
    workers: ReferenceWorkers,
    python: str,
    *,
    name: str = "",
    function: str = "",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    title: str = "",
) -> UserProgram:
    """Read the interface of a program in MLIR, by IREE's parser in another process.

    Args:
        path: text or bytecode.
        workers: start the process.
        python: the Python that has IREE's compiler.
        name: the name of the model; by default that of the file.
        function: the function; needed if several are public.
        shapes: sizes by the names of inputs.
        title: the program in messages; by default its file.

    Raises:
        UsageError: the parser refuses the file, it has no such function, or the function has inputs or outputs that
            are no tensors of numbers.
        GauntletError: the parser crashed, or ran too long.
    """
    title = title or f"--program {path}"
    plan = _ReaderPlan(str(path.absolute()), str(workers.folder), get_memory_limit())
    text = f"{title}: IREE's parser does not take it as MLIR"
    try:
        interface = workers.run_worker("read_mlir", text, plan, _Interface, python=python, seconds=_READER_SECONDS)
    except GauntletError as error:
        raise UsageError(error.message, _explain_refusal(path)) from error
    chosen = _choose_function(title, interface.functions, function)
    overrides = shapes or {}
    inputs = tuple(_read_input(title, chosen, value, overrides.get(value.name)) for value in chosen.inputs)
    require_known_inputs(path, overrides, (item.name for item in inputs))
    if not chosen.outputs:
        raise UsageError(f"{title}: @{chosen.name} returns nothing: there is nothing to check", "")
    if strange := next((value for value in chosen.outputs if not value.dtype), None):
        message = f"{title}: @{chosen.name} returns {strange.type}: only tensors of numbers can be compared"
        raise UsageError(message, "Return tensors: `tensor<4xf32>`.")
    notes = []
    if interface.state:
        state = list_first(interface.state, _MAX_NAMES)
        notes.append(f"it has state ({state}): what is checked is the first call")
    restored = interface.onnx.get(chosen.name)
    if interface.onnx_problem:
        notes.append(f"its operators of ONNX cannot be put together to an ONNX file: {interface.onnx_problem}")
    return UserProgram(
        path,
        path.name if path.suffix in _SUFFIXES else f"{path.name}.mlir",
        make_model_name(name or path.stem),
        chosen.name,
        inputs,
        tuple(ProgramOutput(value.name, value.dtype) for value in chosen.outputs),
        interface.has_f64,
        model=_load_model(restored),
        restored=Path(restored) if restored else None,
        dialects=interface.dialects,
        longest_sum=interface.longest_sum,
        notes=tuple(notes),
    )


def _choose_function(title: str, functions: tuple[_MlirFunction, ...], name: str) -> _MlirFunction:
    names = [item.name for item in functions]
    if not functions:
        message = f"{title}: it has no public function with a body"
        raise UsageError(message, "A private function cannot be called: remove `private` from the one to check.")
    if name and name not in names:
        raise UsageError(
            f"{title}: --function {name}: there is no such function", f"Its functions: {', '.join(names)}."
        )
    if not name and len(functions) > 1:
        message = f"{title}: {len(functions)} functions are public: {list_first(names, _MAX_NAMES)}"
        raise UsageError(message, f"Choose one: --function {names[0]}.")
    return functions[names.index(name)] if name else functions[0]


def _read_input(
    title: str, function: _MlirFunction, value: _MlirValue, given_shape: tuple[int, ...] | None
) -> ProgramInput:
    if not value.element_type:
        message = f"{title}: input {value.name} of @{function.name} is {value.type}"
        raise UsageError(message, "Only tensors of numbers have inputs in a spec: `tensor<4xf32>`, `tensor<f32>`.")
    sizes = [f"?{axis}" if size is None else size for axis, size in enumerate(value.shape)]
    return make_input(value.name, value.element_type, sizes, given_shape, value.dtype)


def _load_model(restored: str | None) -> Any:
    """Load the ONNX file that operators in MLIR were put together to, which tells what inputs they accept."""
    if not restored:
        return None
    import onnx  # noqa: PLC0415 - the file was made with it

    return onnx.load(restored)


def _explain_refusal(path: Path) -> str:
    """Return what to do if the parser refuses a file."""
    with path.open("rb") as file:
        version = _VERSION.search(file.read(64))
    if version:
        return f"It is of StableHLO {version[1].decode()}; if this IREE reads only older ones, export for one of them."
    return "It must be MLIR of IREE's dialects, as text or bytecode; `iree-opt FILE` reports details."
