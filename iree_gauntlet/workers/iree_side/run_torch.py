"""Export a program of PyTorch as MLIR by iree-turbine, and run it by PyTorch, in a Python that has both.

    python run_torch.py PLAN.json

The program is a file of `torch.export.save`, or a function in a Python file: a function of tensors, an `nn.Module`, or
a class or a function without required parameters that makes one. Beside it are its arguments, `<function>_arguments` or
`arguments`: a tuple of tensors, also inside dicts and the like; a dict of them by name; or a function without
parameters that returns such a tuple or dict. Tensors on the device `meta` have no values. `<function>_dynamic_shapes`
(or `dynamic_shapes`) are given to `torch.export.export`.

The plan of an export is that of `run_jax.py`. The answer:

    {"artifact": "/…/export.mlirbc",              MLIR as bytecode, with the weights
     "examples": "/…/examples",                   a folder with the arguments as input_0.npy, …; empty if they have no
                                                  values
     "arguments": 2, "kept": [0, 1],
     "notes": ["…"]}                              what the user should know

or `{"framework": "jax"}` for a function of JAX.

With an `engine` in the plan, `expected_outputs.py` describes plan and answer: `torch` runs the program eagerly, as it
was exported; `torch-core` its decomposition to core operators; `torch-f64` the program with f64 in place of f16, bf16
and f32. Each call starts from the state that was exported.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.expected_outputs import EnginePlan, run_sets
from iree_gauntlet.workers.iree_side.mlir_bindings import read_string
from iree_gauntlet.workers.iree_side.onnx_reference import InferenceFailedError, find_dtype
from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_plan
from iree_gauntlet.workers.iree_side.user_functions import (
    NPY_KINDS,
    ExportingPlan,
    SourcePlan,
    UserFunction,
    describe_error,
    load_function,
    run_user_main,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node
    from torch.utils._pytree import TreeSpec

    from iree_gauntlet.workers.iree_side.mlir_bindings import IrOperation
    from iree_gauntlet.workers.iree_side.plan_file import Array


_ARGUMENTS = "a tuple (or a dict by name) of tensors"
# The export of a function, beside the artifact; torch.export.load wants this ending.
_SAVED = ".pt2"
# Layers that compute something else while a model is trained.
_TRAINED = re.compile(r"Dropout|BatchNorm")
# Operators that the importer takes, and IREE does not lower as they are.
_UNLOWERED = re.compile(r"aten\.(?:__\w+__|upsample_bilinear2d)\b")
# The operator in which the importer keeps what it does not know.
_UNKNOWN_OPERATOR = "torch.operator"


class _Causes(logging.Handler):
    """Keeps the exceptions that PyTorch logs in place of raising them."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the exception of a record."""
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])


def _import_torch() -> ModuleType:
    try:
        import torch  # noqa: PLC0415 - only this program's Python has it
        import torch.export  # noqa: PLC0415
    except ImportError as error:
        raise PlanError(f"no torch in {sys.executable}: {error}") from error
    # Sums of several threads are added in another order on another machine.
    torch.set_num_threads(1)
    module: ModuleType = torch
    return module


def _export(document: Mapping[str, object]) -> dict[str, object]:
    plan = read_plan(ExportingPlan, document)
    path, artifact = Path(plan.model), Path(plan.folder) / "export.mlirbc"
    torch = _import_torch()
    notes: list[str] = []
    is_meta = False
    if plan.function:
        user = load_function(path, plan.function, _ARGUMENTS)
        if user.find_framework() == "jax":
            return {"framework": "jax"}
        is_meta = any(getattr(leaf, "is_meta", False) for leaf in _flatten(user.arguments)[0])
        try:
            program = _trace(user, notes)
            torch.export.save(program, artifact.with_suffix(_SAVED))
        # Tracing runs the user's function, which may raise anything.
        except (Exception, SystemExit) as error:
            raise PlanError(f"{plan.function} cannot be exported: {describe_error(error)}") from error
    else:
        program = _read_export(path)
    names = [
        item.arg.name
        for item in program.graph_signature.input_specs
        if item.kind.name == "USER_INPUT" and type(item.arg).__name__ == "TensorArgument"
    ]
    _import_program(program, names, artifact, notes)
    examples = "" if is_meta else _write_examples(program, names, plan.folder, notes)
    numbers = [*range(len(names))]
    return {"artifact": str(artifact), "examples": examples, "arguments": len(names), "kept": numbers, "notes": notes}


def _flatten(value: object) -> tuple[list[torch.Tensor], TreeSpec]:
    from torch.utils import _pytree  # noqa: PLC0415 - only this program's Python has it

    leaves: tuple[list[torch.Tensor], TreeSpec] = _pytree.tree_flatten(value)
    return leaves


def _trace(user: UserFunction, notes: list[str]) -> ExportedProgram:
    """Export a function with its arguments; what the user should know is added to `notes`."""
    import torch  # noqa: PLC0415 - only this program's Python has it

    module = _make_module(user)
    layers = {
        type(item).__name__ for item in module.modules() if item.training and _TRAINED.search(type(item).__name__)
    }
    if layers:
        notes.append(f"it is in training mode, in which {', '.join(sorted(layers))} differ: call its .eval() first")
    leaves, spec = _flatten(user.arguments)
    leaves = [torch.zeros(leaf.shape, dtype=leaf.dtype) if getattr(leaf, "is_meta", False) else leaf for leaf in leaves]
    from torch.utils import _pytree  # noqa: PLC0415 - see above

    @functools.wraps(module.forward)
    def forward(*args: object, **kwargs: object) -> tuple[torch.Tensor, ...]:
        return tuple(leaf for leaf in _flatten(module(*args, **kwargs))[0] if isinstance(leaf, torch.Tensor))

    # Not all that a module may return can be saved, or imported: named tuples, None.
    outer = torch.nn.Module()
    outer.user, outer.forward, outer.training = module, forward, module.training
    arguments = _pytree.tree_unflatten(leaves, spec)
    args, kwargs = ((), arguments) if isinstance(arguments, dict) else (tuple(arguments), {})
    with torch.no_grad():
        return torch.export.export(outer, args, kwargs, dynamic_shapes=user.sizes)


def _make_module(user: UserFunction) -> torch.nn.Module:
    """Return what a user's name stands for as a module."""
    import torch  # noqa: PLC0415 - only this program's Python has it

    if isinstance(user.function, torch.nn.Module):
        return user.function
    parameters = inspect.signature(user.function).parameters.values()
    if not any(item.default is item.empty and item.kind is not item.VAR_KEYWORD for item in parameters):
        module = user.function()
        if isinstance(module, torch.nn.Module):
            return module
    module = torch.nn.Module()
    # An attribute of its own, so that inputs have the names of its parameters.
    module.forward = user.function
    return module.eval()


def _read_export(path: Path) -> ExportedProgram:
    """Read a file of `torch.export.save`; raise a PlanError if it is damaged, or could run code.

    PyTorch does not compare checksums, and logs the reason of a failure in place of raising it. It unpickles tensors
    only as data, once it is told so.
    """
    torch = _import_torch()
    try:
        with zipfile.ZipFile(path) as archive:
            bad_member = archive.testzip()
            object_name = next(
                (name for name in archive.namelist() if "opaque_obj" in name or "custom_obj" in name), ""
            )
    # The zip module raises many types.
    except Exception as error:
        raise PlanError(f"it is damaged: {describe_error(error)}") from error
    if bad_member:
        raise PlanError(f"it is damaged: the checksum of {bad_member} is wrong")
    if object_name:
        raise PlanError(f"it has a pickled object, which could run code: {object_name}")
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    causes = _Causes()
    logging.getLogger("torch.export").addHandler(causes)
    try:
        with path.open("rb") as file:
            program: ExportedProgram = torch.export.load(file)
    # Damage may raise anything.
    except Exception as error:
        cause = next(iter(causes.errors), error)
        raise PlanError(f"torch {torch.__version__} cannot read it: {describe_error(cause)}") from error
    return program


def _import_program(program: ExportedProgram, names: Sequence[str], artifact: Path, notes: list[str]) -> None:
    """Write a program as MLIR; decomposed to core operators only if the importer does not know all as they are.

    Raises:
        PlanError: iree-turbine cannot import it.
    """
    torch = _import_torch()
    try:
        from iree.turbine import aot  # noqa: PLC0415 - only this program's Python has it
    except ImportError as error:
        raise PlanError(f"no iree-turbine in {sys.executable}: {error}") from error
    reason = _find_obstacle(program)
    output = None
    if not reason:
        try:
            output = aot.export(_without_traces(program))
            if unknown := _list_unknown(output.mlir_module):
                reason = f"the importer does not know {', '.join(unknown)}"
        # The importer raises many types.
        except Exception as error:  # noqa: BLE001
            reason = describe_error(error)
    if reason:
        try:
            table = torch.export.default_decompositions()
            # As for a module that iree-turbine exports itself.
            table.update(aot.decompositions.current_aot_decompositions())
            core = program.run_decompositions(table)
            output = aot.export(_without_traces(core))
            if buffers := sorted(core.graph_signature.buffers_to_mutate.values()):
                notes.append(f"it changes its buffers: {', '.join(name.removeprefix('user.') for name in buffers)}")
            notes.append(f"it was decomposed to core operators first: {reason}")
        except Exception as error:
            if output is None:
                raise PlanError(f"iree-turbine cannot import it: {describe_error(error)}") from error
            notes.append(f"{reason}, and it cannot be decomposed to core operators: {describe_error(error)}")
    if output is not None:
        _name_inputs(output.mlir_module, names)
        output.save_mlir(artifact)


def _find_obstacle(program: ExportedProgram) -> str:
    """Return the reason that a program cannot be imported as it is, by its operators; empty for none."""
    nodes = program.graph.nodes
    if mutations := sorted({str(node.target) for node in nodes if _is_changing(node)}):
        return f"it changes tensors in place ({', '.join(mutations)})"
    operators = sorted({str(node.target) for node in nodes if _UNLOWERED.match(str(node.target))})
    return f"IREE does not lower {', '.join(operators)}" if operators else ""


def _is_changing(node: Node) -> bool:
    """Return whether a node of a graph changes a tensor in place."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _without_traces(program: ExportedProgram) -> ExportedProgram:
    """Remove the places in Python files, so that a program has the same bytes on each machine."""
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)
    return program


def _list_unknown(module: IrOperation) -> list[str]:
    """Return the operators that the importer left as they were, because IREE's torch dialect lacks them."""
    from iree.compiler import ir  # noqa: PLC0415 - only this program's Python has it

    names: set[str] = set()

    def visit(operation: IrOperation) -> object:
        if operation.name == _UNKNOWN_OPERATOR:
            names.add(str(operation.attributes["name"]).strip('"'))
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return sorted(names)


def _name_inputs(module: IrOperation, names: Sequence[str]) -> None:
    """Give the arguments of the program's function locations with their names, from which `init` takes them."""
    from iree.compiler import ir  # noqa: PLC0415 - only this program's Python has it

    for operation in module.regions[0].blocks[0].operations:
        if read_string(operation.operation, "sym_name") == "main":
            arguments = operation.operation.regions[0].blocks[0].arguments
            if len(arguments) == len(names) and hasattr(ir.BlockArgument, "set_location"):
                for argument, name in zip(arguments, names, strict=True):
                    argument.set_location(ir.Location.name(name, context=argument.context))


def _write_examples(program: ExportedProgram, names: Sequence[str], folder: str, notes: list[str]) -> str:
    """Write the arguments that came with a program; return their folder, empty if they have no values.

    An argument whose values are all the same, as of `torch.zeros`, shows little: noise is in its place.
    """
    if program.example_inputs is None:
        return ""
    arrays = [_make_array(leaf) for leaf in _flatten(program.example_inputs)[0] if hasattr(leaf, "detach")]
    if not names or len(arrays) != len(names) or any(array.dtype.kind not in NPY_KINDS for array in arrays):
        return ""
    examples = Path(folder) / "examples"
    examples.mkdir()
    for index, (name, array) in enumerate(zip(names, arrays, strict=True)):
        values = array
        if array.dtype.kind == "f" and array.size > 1 and array.min() == array.max():
            values = np.random.default_rng(index).standard_normal(array.shape).astype(array.dtype)
            notes.append(f"the example of {name} is {array.flat[0]:g} everywhere: noise is in its place")
        np.save(examples / f"input_{index}.npy", np.ascontiguousarray(values).reshape(values.shape))
    return str(examples)


def _make_array(tensor: torch.Tensor) -> Array:
    """Return the values of a tensor; NumPy has no bf16 and f8, whose bits are read as the types of ml_dtypes."""
    values = tensor.detach().contiguous().clone()
    name = str(values.dtype).removeprefix("torch.")
    try:
        array: Array = values.numpy()
    except TypeError:
        import torch  # noqa: PLC0415 - only this program's Python has it

        bits = {1: torch.uint8, 2: torch.int16}.get(values.element_size())
        if bits is None:
            raise PlanError(f"a tensor is of {name}, which NumPy does not have") from None
        array = values.view(bits).numpy().view(find_dtype(name))
    return array


def _make_tensor(array: Array) -> torch.Tensor:
    """Return an array as a tensor of its own."""
    import torch  # noqa: PLC0415 - only this program's Python has it

    if array.dtype.kind in NPY_KINDS:
        return torch.from_numpy(np.array(array))
    bits = np.array(array).view({1: np.uint8, 2: np.int16}[array.dtype.itemsize])
    return torch.from_numpy(bits).view(getattr(torch, array.dtype.name))


def _widen_graph(module: GraphModule) -> None:
    """Put f64 in place of all narrower floating-point types of a program: weights, constants, casts."""
    import torch  # noqa: PLC0415 - only this program's Python has it
    from torch.fx.node import map_aggregate  # noqa: PLC0415

    narrow = (torch.float32, torch.float16, torch.bfloat16)
    module.double()
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor) and value.dtype in narrow:
                setattr(part, name, value.double())
        for node in getattr(getattr(part, "graph", None), "nodes", ()):
            for field in ("args", "kwargs"):
                wide_value = map_aggregate(getattr(node, field), lambda item: torch.float64 if item in narrow else item)
                setattr(node, field, wide_value)
        if hasattr(part, "recompile"):
            part.recompile()


def _bind_program(program: ExportedProgram, *, is_wide: bool) -> Callable[[Sequence[Array]], object]:
    """Return the function that calls a program with arrays in place of its tensors."""
    import torch  # noqa: PLC0415 - only this program's Python has it
    from torch.utils import _pytree  # noqa: PLC0415

    module = program.module(check_guards=False)
    # A hook compares the inputs with those that were exported.
    module._forward_pre_hooks.clear()  # noqa: SLF001 - there is no other way
    if is_wide:
        _widen_graph(module)
    changes = any(_is_changing(node) for node in program.graph.nodes)
    has_state = changes or bool(program.graph_signature.buffers_to_mutate)
    state = [(item, item.detach().clone()) for item in module.buffers()] if has_state else []
    leaves, spec = _flatten(program.example_inputs or ())
    spec = spec if leaves else program.call_spec.in_spec

    def call(arrays: Sequence[Array]) -> object:
        tensors = [_make_tensor(array) for array in arrays]
        if is_wide:
            tensors = [item.double() if item.is_floating_point() else item for item in tensors]
        rest = iter(tensors)
        values = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves] if leaves else tensors
        args, kwargs = _pytree.tree_unflatten(values, spec)
        with torch.no_grad():
            for tensor, initial_values in state:
                tensor.copy_(initial_values)
            return module(*args, **kwargs)

    return call


def _run(document: Mapping[str, object]) -> dict[str, object]:
    plan = read_plan(EnginePlan, document)
    torch = _import_torch()
    source = read_plan(SourcePlan, plan.options or {})
    if source.function:
        program: ExportedProgram = torch.export.load(Path(plan.model).with_suffix(_SAVED))
    else:
        program = _read_export(Path(source.path))
    try:
        if plan.engine == "torch-core":
            program = program.run_decompositions()
        call = _bind_program(program, is_wide=plan.engine == "torch-f64")
    # PyTorch raises many types.
    except Exception as error:
        raise InferenceFailedError(describe_error(error)) from error

    def run(_: list[str], arrays: list[Array]) -> list[Array]:
        try:
            return [_make_array(torch.as_tensor(value)) for value in _flatten(call(arrays))[0] if value is not None]
        except (Exception, SystemExit) as error:
            raise InferenceFailedError(describe_error(error)) from error

    return run_sets(plan, torch.__version__, run)


if __name__ == "__main__":
    sys.exit(run_user_main(_run, _export))
