"""Read the interface of a program in MLIR, in a Python that has IREE's compiler; nothing is compiled.

    python read_mlir.py PLAN.json

The plan is `{"model": "/…/m.mlir", "folder": "/…", "memory_bytes": 8e9}`. The file is text or bytecode, of any dialect
that IREE's compiler has, or a portable artifact of StableHLO. The answer:

    {"dialects": ["func", "linalg"],              those of all operations
     "functions": [{"name": "main",               public functions with a body
                    "inputs": [{"name", "type", "dtype", "element_type", "shape"}],
                    "outputs": […]}],             the same
     "has_f64": false,
     "longest_sum": 64,                           an estimate of the largest number of products in a sum
     "state": ["s"],                              mutable globals
     "onnx": {"main": "/…/main.onnx"},            functions of ONNX operators, put together to ONNX files in `folder`
     "onnx_problem": ""}                          why that failed

`type` is the type as the program has it. `dtype` is NumPy's or ml_dtypes' name of the elements, `element_type` is
IREE's; both are empty if the value is no tensor of numbers. An open size is null. The names of inputs are those of
their locations (JAX writes them), or arg0, arg1, ….

Exit codes: those of `plan_file`; 2 if IREE's parser does not accept the file.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES
from iree_gauntlet.workers.iree_side.plan_file import PlanError, run_worker_main
from iree_gauntlet.workers.iree_side.restore_onnx import is_onnx_operator, restore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_LOCATION_NAME = re.compile(r'loc\("([A-Za-z_][\w.]*)"(?:\(.*\))?\)\Z', re.DOTALL)
# A builtin tensor, one of torch-mlir, and one of the versioned StableHLO.
_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([A-Za-z]\w*)>\Z")
_TORCH_TENSOR = re.compile(r"!torch\.v?tensor<\[((?:\d+|\?|,)*)\],\s*([A-Za-z]\w*)>\Z")
_VERSIONED_TENSOR = re.compile(r"!vhlo\.tensor_v1<((?:(?:\d+|\?)x)*)!vhlo\.(\w+)_v\d+>\Z")
# NumPy's names by MLIR's names of element types; signless integers count as signed.
_DTYPES = {
    **{name: dtype for dtype, name in ELEMENT_TYPES.items() if not dtype.startswith("uint")},
    **{
        f"{sign}{name}": f"{word}{name[1:]}"
        for sign, word in (("s", "int"), ("u", "uint"))
        for name in ("i2", "i4", "i8", "i16", "i32", "i64")
    },
    "bool": "bool",
}
# Operations that add products or values, by a part of their names.
_SUMS = re.compile(
    r"dot|conv|matmul|matvec|\.b?mm\b|einsum|linear|gemm|generic|contract|reduce|attention|sum|mean", re.IGNORECASE
)
# The size in place of an open one, for the estimate of sums.
_ASSUMED_SIZE = 8
_MAX_SUM = 1 << 24


def _read_type(text: str) -> dict[str, Any]:
    """Return the type, elements and sizes of a value, by the text of its type."""
    entry: dict[str, Any] = {"type": text, "dtype": "", "element_type": "", "shape": []}
    match = _TENSOR.match(text) or _VERSIONED_TENSOR.match(text) or _TORCH_TENSOR.match(text)
    if match is None:
        return entry
    sizes = re.split("[x,]", match[1].rstrip("x")) if match[1] else []
    dtype = _DTYPES.get(match[2], "")
    return entry | {
        "dtype": dtype,
        "element_type": ELEMENT_TYPES.get(dtype, ""),
        "shape": [None if size == "?" else int(size) for size in sizes],
    }


def _read_string(operation: Any, name: str) -> str:
    """Return a text attribute, also one of the versioned StableHLO; empty if it is missing."""
    if name not in operation.attributes:
        return ""
    match = re.fullmatch(r'(?:#vhlo\.string_v\d+<)?"(.*?)">?', str(operation.attributes[name]), re.DOTALL)
    return match[1] if match else ""


def _name_inputs(arguments: Sequence[Any]) -> list[str]:
    names = [match[1] if (match := _LOCATION_NAME.match(str(item.location))) else "" for item in arguments]
    counts = Counter(names)
    return [name if name and counts[name] == 1 else f"arg{index}" for index, name in enumerate(names)]


def _list_outputs(operation: Any) -> list[str]:
    """Return the types of a function's results."""
    from iree.compiler import ir  # noqa: PLC0415 - only this program's Python has it

    block = operation.regions[0].blocks[0]
    try:
        return [str(item) for item in ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value).results]
    except ValueError:
        # The type of a function of the versioned StableHLO has no bindings: its return has the values.
        *_, terminator = block.operations
        return [str(value.type) for value in terminator.operands]


def _list_functions(module: Any) -> Iterator[Any]:
    """Yield the public functions that have a body."""
    for item in module.body.operations:
        operation = item.operation
        is_function = "function_type" in operation.attributes and len(operation.regions) == 1
        if (
            is_function
            and len(operation.regions[0].blocks)
            and _read_string(operation, "sym_visibility") in ("", "public")
        ):
            yield operation


def _count_values(value: Any) -> int:
    sizes = _read_type(str(value.type))["shape"]
    return math.prod(_ASSUMED_SIZE if size is None else size for size in sizes)


def _estimate_sum(operation: Any) -> int:
    """Estimate the number of products in each sum of an operation: of a matrix product M×K · K×N it is K."""
    counts = [_count_values(value) for value in operation.operands]
    result = max([1, *(_count_values(value) for value in operation.results)])
    factors = sorted(counts)[-2:]
    estimate = math.isqrt(math.prod(factors) // result) if len(factors) == 2 else 0
    return min(_MAX_SUM, max([estimate, *(count // result for count in counts)]))


def _read(plan: dict[str, Any]) -> dict[str, Any]:
    try:
        from iree.compiler import ir  # noqa: PLC0415 - see above
    except ImportError as error:
        raise PlanError(f"no IREE compiler in {sys.executable}: {error}") from error

    context = ir.Context()
    content = Path(plan["model"]).read_bytes()
    try:
        module = ir.Module.parse(content, context)
    # A module that its verifier rejects is another exception than text that does not parse.
    except Exception as error:
        raise PlanError(_describe_error(error)) from error
    dialects: set[str] = set()
    state: list[str] = []
    longest_sum, has_f64, has_onnx = 1, False, False

    def visit(item: Any) -> Any:
        nonlocal longest_sum, has_f64, has_onnx
        operation = item.operation
        dialects.add(operation.name.partition(".")[0])
        has_onnx = has_onnx or is_onnx_operator(operation)
        if operation.name == "util.global" and "is_mutable" in operation.attributes:
            state.append(_read_string(operation, "sym_name"))
        texts = [str(value.type) for value in operation.results]
        has_f64 = has_f64 or any(_read_type(text)["element_type"] == "f64" for text in texts)
        if _SUMS.search(operation.name) or has_onnx:
            longest_sum = max(longest_sum, _estimate_sum(operation))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    functions = []
    onnx_files, onnx_problem = {}, ""
    for operation in _list_functions(module):
        name = _read_string(operation, "sym_name")
        arguments = list(operation.regions[0].blocks[0].arguments)
        inputs = [
            {"name": name, **_read_type(str(item.type))}
            for name, item in zip(_name_inputs(arguments), arguments, strict=True)
        ]
        outputs = [{"name": f"output_{i}", **_read_type(text)} for i, text in enumerate(_list_outputs(operation))]
        functions.append({"name": name, "inputs": inputs, "outputs": outputs})
        has_f64 = has_f64 or any(item["element_type"] == "f64" for item in inputs)
        if has_onnx:
            file = Path(plan["folder"]) / f"function_{len(functions)}.onnx"
            try:
                restore(module, operation, inputs, outputs, file)
                onnx_files[name] = str(file)
            except PlanError as error:
                onnx_problem = str(error)
    return {
        "dialects": sorted(dialects - {"builtin"}),
        "functions": functions,
        "has_f64": has_f64,
        "longest_sum": longest_sum,
        "state": state,
        "onnx": onnx_files,
        "onnx_problem": onnx_problem,
    }


def _describe_error(error: Exception) -> str:
    """Return the first error of IREE's parser, with its line and column."""
    for line in str(error).splitlines():
        if match := re.match(r'error: (?:"-":(\d+):(\d+): |loc\(.*?\): )?(.*)', line.strip()):
            place = f"line {match[1]}, column {match[2]}: " if match[1] else ""
            return place + match[3].strip().removesuffix("'")[:300]
    return " ".join(str(error).split())[:300] or type(error).__name__


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, _read))
