"""Export a program of JAX as StableHLO, and run it by JAX, in a Python that has jax.

    python run_jax.py PLAN.json

The program is a serialised `jax.export` (of `export.serialize()`), or a function in a Python file. Beside the function
are its arguments, `<function>_arguments` or `arguments`: a tuple of arrays or `jax.ShapeDtypeStruct`s, also inside
dicts and the like; a dict of them by name; or a function without parameters that returns such a tuple or dict.

The plan of an export is `{"model": "/…/m.py", "function": "f", "folder": "/…", "memory_bytes": 8e9}`, with an empty
function for a serialised one. The answer:

    {"artifact": "/…/export.mlirbc",              a portable artifact of StableHLO
     "examples": "/…/examples",                   a folder with the arguments as input_0.npy, …; empty if they have no
                                                  values
     "arguments": 3, "kept": [0, 2]}              the number of arguments, and those that the program uses

or `{"framework": "torch"}` for a function of PyTorch.

With an `engine` in the plan, `expected_outputs.py` describes plan and answer: `jax` runs the program as JAX does (a
function as it was exported, because it may be another one each time that it is traced), `jax-f64` the function with f64
in place of f16, bf16 and f32. `options` are `{"path": "/…/m.py", "function": "f",
"kept": [0, 2]}`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

# XLA must round to f16 and bf16 where the program does; the variables are read when jax is imported.
os.environ.update(XLA_FLAGS="--xla_allow_excess_precision=false", JAX_PLATFORMS="cpu")

import numpy as np

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.expected_outputs import EnginePlan, run_sets
from iree_gauntlet.workers.iree_side.onnx_reference import InferenceFailedError
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

    from iree_gauntlet.workers.iree_side.plan_file import Array


_ARGUMENTS = "a tuple (or a dict by name) of arrays or jax.ShapeDtypeStructs"
# The serialised export of a function, beside the artifact.
_SERIALISED = ".jax_export"


class _ArrayLike(Protocol):
    """An array, or the description of one; an open size is no integer."""

    shape: Sequence[object]
    dtype: np.dtype[np.generic]


class _JaxProgram(Protocol):
    """The fields of `jax.export.Exported` that are used."""

    nr_devices: int
    module_kept_var_idx: Sequence[int]
    mlir_module_serialized: bytes
    in_avals: Sequence[_ArrayLike]
    in_tree: object

    def serialize(self) -> bytearray:
        """Return the bytes that `jax.export.deserialize` reads."""

    def call(self, *arguments: object, **named_arguments: object) -> object:
        """Call the program."""


def _call_function(user: UserFunction, kept: Sequence[int], arrays: Sequence[Array], *, is_wide: bool) -> object:
    """Call a function; the arrays are its arguments of the given numbers, and the other ones are not used."""
    jax = _import_jax()
    leaves, tree = jax.tree_util.tree_flatten(user.arguments)
    used_arrays = dict(zip(kept, arrays, strict=True))
    values = []
    for index, leaf in enumerate(leaves):
        array = used_arrays.get(index, _make_zeros(leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf)
        is_widened = is_wide and jax.numpy.issubdtype(array.dtype, np.floating)
        values.append(array.astype(np.float64) if is_widened else array)
    return user.call_with(jax.jit(user.function), jax.tree_util.tree_unflatten(tree, values))


def _import_jax() -> ModuleType:
    try:
        import jax  # noqa: PLC0415 - only this program's Python has it
        import jax.export  # noqa: PLC0415
    except ImportError as error:
        raise PlanError(f"no jax in {sys.executable}: {error}") from error
    module: ModuleType = jax
    return module


def _export(document: Mapping[str, object]) -> dict[str, object]:
    plan = read_plan(ExportingPlan, document)
    jax = _import_jax()
    path, leaves = Path(plan.model), []
    if plan.function:
        function = load_function(path, plan.function, _ARGUMENTS)
        if function.find_framework() == "torch":
            return {"framework": "torch"}
        leaves = jax.tree_util.tree_leaves(function.arguments)
        try:
            exported = _trace(function)
        # Tracing runs the user's function, which may raise anything.
        except (Exception, SystemExit) as error:
            raise PlanError(f"{plan.function} cannot be exported: {describe_error(error)}") from error
    else:
        exported = _read_export(path)
    if exported.nr_devices != 1:
        raise PlanError(f"it is for {exported.nr_devices} devices")
    kept = sorted(exported.module_kept_var_idx)
    artifact = Path(plan.folder) / "export.mlirbc"
    artifact.write_bytes(exported.mlir_module_serialized)
    if plan.function and len(kept) == len(exported.in_avals):
        # Containers of other types than Python's have no serialised form.
        with contextlib.suppress(ValueError):
            artifact.with_suffix(_SERIALISED).write_bytes(exported.serialize())
    examples = ""
    arrays = [
        np.asarray(leaves[index]) for index in kept if leaves and not isinstance(leaves[index], jax.ShapeDtypeStruct)
    ]
    if kept and len(arrays) == len(kept) and all(array.dtype.kind in NPY_KINDS for array in arrays):
        examples = str(Path(plan.folder) / "examples")
        Path(examples).mkdir()
        for index, array in enumerate(arrays):
            np.save(Path(examples) / f"input_{index}.npy", array.astype(exported.in_avals[kept[index]].dtype))
    return {"artifact": str(artifact), "examples": examples, "arguments": len(exported.in_avals), "kept": kept}


def _trace(function: UserFunction) -> _JaxProgram:
    jax = _import_jax()
    # IREE's parser does not know the dialect of the new partitioner.
    jax.config.update("jax_use_shardy_partitioner", False)
    # So the same program has the same bytes, wherever it is traced.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    export: Callable[..., _JaxProgram] = jax.export.export(jax.jit(function.function), platforms=["cpu"])
    return function.call_with(export, function.arguments)


def _read_export(path: Path) -> _JaxProgram:
    jax = _import_jax()
    try:
        exported: _JaxProgram = jax.export.deserialize(bytearray(path.read_bytes()))
    # The flatbuffer's reader checks nothing: damage may raise anything.
    except Exception as error:
        raise PlanError(f"jax {jax.__version__} cannot read it as an export: {describe_error(error)}") from error
    return exported


def _bind_program(source: SourcePlan, artifact: Path, *, is_wide: bool) -> Callable[[Sequence[Array]], object]:
    """Return the function that calls a program with the arguments that it uses; the other ones are zeros.

    Raises:
        InferenceFailedError: the function in f64 would be another one than what was exported as `artifact`.
    """
    if source.function:
        function = load_function(Path(source.path), source.function, _ARGUMENTS)
        if is_wide and _trace(function).mlir_module_serialized != artifact.read_bytes():
            raise InferenceFailedError(f"{source.function} differs from trace to trace")
        return partial(_call_function, function, source.kept, is_wide=is_wide)
    exported = _read_export(Path(source.path))

    def call(arrays: Sequence[Array]) -> object:
        used_arrays = dict(zip(sorted(exported.module_kept_var_idx), arrays, strict=True))
        leaves = [used_arrays.get(index, _make_zeros(item)) for index, item in enumerate(exported.in_avals)]
        args, kwargs = _import_jax().tree_util.tree_unflatten(exported.in_tree, leaves)
        return exported.call(*args, **kwargs)

    return call


def _run(document: Mapping[str, object]) -> dict[str, object]:
    plan = read_plan(EnginePlan, document)
    jax = _import_jax()
    source = read_plan(SourcePlan, plan.options or {})
    is_wide = plan.engine == "jax-f64"
    serialised = Path(plan.model).with_suffix(_SERIALISED)
    if serialised.is_file() and not is_wide:
        source = replace(source, path=str(serialised), function="")
    call = _bind_program(source, Path(plan.model), is_wide=is_wide)
    if is_wide or any(item.endswith("64") for item in plan.dtypes):
        # Only now, since a file's own random weights are others in this mode.
        jax.config.update("jax_enable_x64", True)

    def run(_: list[str], arrays: list[Array]) -> list[Array]:
        try:
            return [np.asarray(value) for value in jax.tree_util.tree_leaves(call(arrays))]
        # The same holds as for the export.
        except (Exception, SystemExit) as error:
            raise InferenceFailedError(describe_error(error)) from error

    return run_sets(plan, jax.__version__, run)


def _make_zeros(value: _ArrayLike) -> Array:
    """Make an argument that a program does not use; open sizes are 1."""
    return np.zeros([size if isinstance(size, int) else 1 for size in value.shape], value.dtype)


if __name__ == "__main__":
    sys.exit(run_user_main(_run, _export))
