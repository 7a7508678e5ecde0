"""Run a program in StableHLO by a program other than IREE, in a Python that has jaxlib.

    python run_stablehlo.py PLAN.json

`expected_outputs.py` describes plan and answer. The engines are `xla`, XLA's compiler for the CPU, which needs jax too,
and `interpreter`, StableHLO's own reference interpreter in jaxlib. The file is text, bytecode or a portable artifact.
Open sizes are fixed to those of the inputs, by StableHLO's own passes.

Both engines end this process when they meet some operations: the interpreter for custom calls, XLA for calls of
libraries that are not registered.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

# XLA must round to f16 and bf16 where the program does; the variables are read when jax is imported.
os.environ.update(XLA_FLAGS="--xla_allow_excess_precision=false", JAX_PLATFORMS="cpu", JAX_ENABLE_X64="1")

import numpy as np

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.expected_outputs import EnginePlan, run_sets
from iree_gauntlet.workers.iree_side.mlir_bindings import read_narrow_elements, read_string
from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, InferenceFailedError, find_dtype
from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_plan, run_worker_main

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.workers.iree_side.mlir_bindings import IrAttribute, IrModule, IrOperation, IrTensorType
    from iree_gauntlet.workers.iree_side.plan_file import Array


_MAX_REASON = 300
# The entry point that StableHLO's passes and XLA expect.
_ENTRY = "main"
_OTHER = "gauntlet_other_main"
_SHAPE_ASSERTION = "shape_assertion"
_NARROW_TYPES = {element: name for name, element in ELEMENT_TYPES.items() if element.startswith(("bf", "f8"))}


def _load(content: bytes) -> IrModule:
    """Parse a module in a context with all dialects that jax has."""
    from jax._src.interpreters import mlir  # noqa: PLC0415 - only this program's Python has it
    from jaxlib.mlir import ir  # noqa: PLC0415
    from jaxlib.mlir.dialects import stablehlo  # noqa: PLC0415

    context = mlir.make_ir_context()
    is_artifact = content.startswith(b"ML\xefR") and b"StableHLO_v" in content[:32]
    module: IrModule = (
        stablehlo.deserialize_portable_artifact(context, content) if is_artifact else ir.Module.parse(content, context)
    )
    return module


def _prepare(module: IrModule, function: str, arrays: Sequence[Array]) -> list[IrTensorType]:
    """Make a function the only public one, called main, and fix its arguments' sizes; return their types."""
    from jaxlib.mlir import ir, passmanager  # noqa: PLC0415 - see above
    from jaxlib.mlir.dialects import stablehlo  # noqa: PLC0415

    with module.context, ir.Location.unknown():
        for old, new in ((_ENTRY, _OTHER), (function, _ENTRY)) if function != _ENTRY else ():
            for operation in module.body.operations:
                if read_string(operation, "sym_name") == old:
                    ir.SymbolTable.set_symbol_name(operation, new)
                    ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
        entry = None
        for operation in module.body.operations:
            if "function_type" not in operation.attributes:
                continue
            is_entry = read_string(operation, "sym_name") == _ENTRY
            operation.attributes["sym_visibility"] = ir.StringAttr.get("public" if is_entry else "private")
            entry = operation if is_entry else entry
        if entry is None:
            raise InferenceFailedError(f"it has no function {function}")
        _remove_assertions(module)
        types: list[IrTensorType] = [ir.RankedTensorType(item.type) for item in entry.regions[0].blocks[0].arguments]
        fixed = [ir.RankedTensorType.get(a.shape, item.element_type) for a, item in zip(arrays, types, strict=True)]
        if any(not item.has_static_shape for item in types):
            stablehlo.register_stablehlo_passes()
            arguments = f"stablehlo-refine-arguments{{types={','.join(map(str, fixed))}}}"
            passes = f"{arguments},stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism)"
            passmanager.PassManager.parse(f"builtin.module({passes})").run(module.operation)
        return fixed


def _remove_assertions(module: IrModule) -> None:
    """Remove JAX's checks of open sizes, which only JAX's own call knows."""
    from jaxlib.mlir import ir  # noqa: PLC0415 - see above

    assertions = []

    def visit(item: IrOperation) -> object:
        if item.name == "stablehlo.custom_call" and read_string(item, "call_target_name") == _SHAPE_ASSERTION:
            assertions.append(item)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for item in assertions:
        item.erase()


class _Xla:
    """XLA's compiler for the CPU; it compiles once for each set of sizes."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan
        self._programs: dict[tuple[tuple[int, ...], ...], Callable[[Sequence[Array]], list[Array]]] = {}

    def run(self, _: list[str], arrays: list[Array]) -> list[Array]:
        key = tuple(array.shape for array in arrays)
        if key not in self._programs:
            self._programs[key] = self._compile(arrays)
        return self._programs[key](arrays)

    def _compile(self, arrays: Sequence[Array]) -> Callable[[Sequence[Array]], list[Array]]:
        """Compile the program for the sizes of these inputs; return the function that runs it."""
        import jax  # noqa: PLC0415 - see above
        from jax._src.lib import xla_client  # noqa: PLC0415

        device = jax.devices("cpu")[0]
        module = _load(Path(self._plan.model).read_bytes())
        _prepare(module, self._plan.function, arrays)
        devices = xla_client.DeviceList((device,))
        program = device.client.compile_and_load(str(module), devices, xla_client.CompileOptions())

        def run(inputs: Sequence[Array]) -> list[Array]:
            results = program.execute_sharded([jax.device_put(array, device) for array in inputs])
            return [np.asarray(shards[0]) for shards in results.disassemble_into_single_device_arrays()]

        return run


class _Interpreter:
    """StableHLO's reference interpreter."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan = plan

    def run(self, _: list[str], arrays: list[Array]) -> list[Array]:
        from jaxlib.mlir import ir  # noqa: PLC0415 - see above
        from jaxlib.mlir.dialects import stablehlo  # noqa: PLC0415

        module = _load(Path(self._plan.model).read_bytes())
        types = _prepare(module, self._plan.function, arrays)
        with module.context, ir.Location.unknown():
            # The bindings take types of ml_dtypes by their bits.
            bits = (array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array for array in arrays)
            values = [
                ir.DenseElementsAttr.get(array, type=item.element_type, shape=array.shape)
                for array, item in zip(bits, types, strict=True)
            ]
            results = stablehlo.eval_module(module, values)
            return [_read_elements(result) for result in results]


def _read_elements(result: IrAttribute) -> Array:
    from jaxlib.mlir import ir  # noqa: PLC0415 - see above

    kind = ir.RankedTensorType(result.type)
    name = _NARROW_TYPES.get(str(kind.element_type))
    array = np.array(result) if name is None else read_narrow_elements(result, find_dtype(name))
    return array.reshape(kind.shape)


_ENGINES: dict[str, type[_Xla | _Interpreter]] = {"xla": _Xla, "interpreter": _Interpreter}


def _run(document: Mapping[str, object]) -> dict[str, object]:
    plan = read_plan(EnginePlan, document)
    try:
        import jaxlib  # noqa: PLC0415 - the error names this Python
    except ImportError as error:
        raise PlanError(f"no jaxlib in {sys.executable}: {error}") from error
    engine = _ENGINES[plan.engine](plan)

    def run(texts: list[str], arrays: list[Array]) -> list[Array]:
        try:
            return engine.run(texts, arrays)
        # jaxlib, MLIR's bindings and XLA have exceptions of their own, and change them from release to release.
        except Exception as error:
            raise InferenceFailedError(" ".join(str(error).split())[:_MAX_REASON] or type(error).__name__) from error

    return run_sets(plan, jaxlib.__version__, run)


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, _run))
