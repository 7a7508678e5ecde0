"""Read the interface of a program in MLIR, in a Python that has IREE's compiler; nothing is compiled.

    python read_mlir.py PLAN.json

The plan is `{"model": "/…/m.mlir", "folder": "/…", "memory_bytes": 8e9}`. The file is text or bytecode, of any dialect
that IREE's compiler has, or a portable artifact of StableHLO. The answer:

    {"dialects": ["func", "linalg"],              those of all operations
     "functions": [{"name": "main",               public functions with a body
                    "inputs": [{"name", "type", "dtype", "element_type", "shape",
                                "index_uses": […],        those of an integer: `IndexUse` in `index_operators.py`
                                "uses_known": true}],     whether all that uses an integer is known there
                    "outputs": […]}],             the same
     "has_f64": false,
     "longest_sum": 64,                           an estimate of the largest number of products in a sum
     "is_partial": false,                         whether an operation may be undefined for some integers
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.index_operators import LIST_OPERANDS, IndexUse, trace_indices
from iree_gauntlet.workers.iree_side.mlir_bindings import read_narrow_elements, read_string
from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, find_dtype
from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_plan, run_worker_main

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx

    from iree_gauntlet.workers.iree_side.index_operators import Size
    from iree_gauntlet.workers.iree_side.mlir_bindings import (
        IrAttribute,
        IrBlock,
        IrModule,
        IrOperation,
        IrRegion,
        IrValue,
    )
    from iree_gauntlet.workers.iree_side.plan_file import Array


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
# Operations that may be undefined for some integers: zero, an index outside of a tensor, a shift by too many bits.
_PARTIAL = re.compile(
    r"div|rem|mod(?!ule)|sh[lr]|shift|pow|gather|scatter|index|take|embedding|extract|insert|slice|table|\bfor|while",
    re.IGNORECASE,
)
# The size in place of an open one, for the estimate of sums.
_ASSUMED_SIZE = 8
_MAX_SUM = 1 << 24
# Of ONNX operators in MLIR: `torch.operator "onnx.…"`.
_OPERATOR = "torch.operator"
_PREFIX = "onnx."
_ATTRIBUTE_PREFIX = "torch.onnx."
_META_PREFIX = "torch.onnx_meta."
_DEFAULT_OPSET, _DEFAULT_IR_VERSION = 17, 8
# The attributes of graphs, in the order of the regions.
_GRAPHS = {"If": ("else_branch", "then_branch"), "Loop": ("body",), "Scan": ("body",)}
# Attributes of StableHLO that have others inside, of which the bindings know nothing.
_DIMENSIONS = ("dimension_numbers", "scatter_dimension_numbers")
_TYPE_TEXT = re.compile(r"#vhlo\.\w+<|array<\w+:|dense<|: (?:tensor<(\d+)x\w+>|\w+)")
_INTEGER = re.compile(r"(u?)s?i(?:nt)?(\d+)|index")
# The number of an operand of which no row knows.
_ALL_OTHERS = 1 << 20
_RESOURCE = re.compile(r"dense_resource<([^>]+)> : tensor<((?:\d+x)*)(\w+)>\Z")
_RESOURCE_TEXT = re.compile(r'^\s*("?[\w.$:/-]+"?): "0x([0-9A-Fa-f]*)"', re.MULTILINE)
_ALIGNMENT_BYTES = 4
_MAX_RESOURCE_BYTES = 1 << 28
# NumPy's types by MLIR's names of elements.
_HOST_TYPES = {
    **{f"f{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{
        f"{sign}{bits}": f"<{kind}{bits // 8}"
        for sign, kind in (("i", "i"), ("si", "i"), ("ui", "u"))
        for bits in (8, 16, 32, 64)
    },
    "i1": "|b1",
}
_NARROW_TYPES = {"bf16": "bfloat16", "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2"}


@dataclass(frozen=True, slots=True)
class _InterfacePlan:
    model: str
    folder: str

    def parse(self) -> IrModule:
        """Parse the program; raise a PlanError if that fails."""
        try:
            from iree.compiler import ir  # noqa: PLC0415 - only this program's Python has it
        except ImportError as error:
            raise PlanError(f"no IREE compiler in {sys.executable}: {error}") from error
        content = Path(self.model).read_bytes()
        try:
            module: IrModule = ir.Module.parse(content, ir.Context())
        # A module that its verifier rejects is another exception than text that does not parse.
        except Exception as error:
            raise PlanError(_describe_error(error)) from error
        return module


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An input or output of a function; an open size is None."""

    name: str
    type: str
    dtype: str
    element_type: str
    shape: list[int | None]
    index_uses: tuple[IndexUse, ...] = ()
    uses_known: bool = True


def _read_type(text: str, name: str = "") -> _Tensor:
    """Describe a value by the text of its type."""
    match = _TENSOR.match(text) or _VERSIONED_TENSOR.match(text) or _TORCH_TENSOR.match(text)
    if match is None:
        return _Tensor(name, text, "", "", [])
    sizes = re.split("[x,]", match[1].rstrip("x")) if match[1] else []
    dtype = _DTYPES.get(match[2], "")
    shape = [None if size == "?" else int(size) for size in sizes]
    return _Tensor(name, text, dtype, ELEMENT_TYPES.get(dtype, ""), shape)


def _list_inputs(operation: IrOperation) -> list[_Tensor]:
    """Describe a function's arguments, by the names of their locations if each has one of its own."""
    arguments = operation.regions[0].blocks[0].arguments
    names = [match[1] if (match := _LOCATION_NAME.match(str(item.location))) else "" for item in arguments]
    counts = Counter(names)
    return [
        _read_type(str(item.type), name if name and counts[name] == 1 else f"arg{index}")
        for index, (name, item) in enumerate(zip(names, arguments, strict=True))
    ]


def _list_outputs(operation: IrOperation) -> list[_Tensor]:
    """Describe a function's results."""
    from iree.compiler import ir  # noqa: PLC0415 - only this program's Python has it

    try:
        types = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value).results
    except ValueError:
        # The type of a function of the versioned StableHLO has no bindings: its return has the values.
        *_, terminator = operation.regions[0].blocks[0].operations
        types = [value.type for value in terminator.operands]
    return [_read_type(str(item), f"output_{index}") for index, item in enumerate(types)]


@dataclass(frozen=True, slots=True)
class _MlirOperator:
    """An operation as `index_operators.py` sees it; `arguments` are those of the program's function, by value."""

    name: str
    operation: IrOperation
    graph: _MlirGraph

    def get_shape(self, operand: int) -> list[Size]:
        value = self.graph.find_origin(self.operation.operands[self._find_position(operand)])
        names, name = self.graph.names, self.graph.names.get(value, "")
        shape = _read_type(str(value.type)).shape
        return [(name, axis) if size is None and value in names else size for axis, size in enumerate(shape)]

    def get_result_shape(self) -> list[Size]:
        return [*_read_type(str(self.operation.results[0].type)).shape]

    def get_integers(self, name: str) -> list[int] | None:
        return _read_integers(self.operation, name)

    def get_constant(self, operand: int) -> int | None:
        owner = self.operation.operands[operand].owner
        name = getattr(owner, "name", "")
        return int(owner.attributes["value"].value) if name.startswith("torch.constant.") else None

    def list_inner(self) -> list[str]:
        blocks = [block for region in self.operation.regions for block in region.blocks]
        return [item.operation.name for block in blocks for item in block.operations]

    def list_followers(self, operand: int) -> list[IrValue]:
        match self.name:
            case "func.call":
                function = self.graph.functions.get(_read_callee(self.operation))
                return [function.regions[0].blocks[0].arguments[operand]] if function else []
            case "func.return":
                calls = self.graph.calls.get(read_string(self.operation.parent.operation, "sym_name"), ())
                return [call.results[operand] for call in calls]
            case "linalg.generic":
                return [self.operation.regions[0].blocks[0].arguments[operand]]
            case "linalg.yield":
                return [self.operation.parent.operation.results[operand]]
            case "stablehlo.optimization_barrier":
                return [self.operation.results[operand]]
        return [*self.operation.results]

    def _find_position(self, operand: int) -> int:
        """Return the operand of a list's entry, or of StableHLO's scatter, whose indices come after all inputs."""
        is_scatter = self.name == "stablehlo.scatter" and operand == 1
        return len(self.operation.operands) // 2 if is_scatter else operand


class _MlirGraph:
    """A module as `index_operators.py` sees it; `names` are those of the arguments of the program's function."""

    def __init__(self, module: IrModule) -> None:
        from iree.compiler import ir  # noqa: PLC0415 - only this program's Python has it

        self.names: dict[IrValue, str] = {}
        self.functions: dict[str, IrOperation] = {}
        self.calls: dict[str, list[IrOperation]] = {}

        def visit(item: IrOperation) -> object:
            operation = item.operation
            if "function_type" in operation.attributes and len(operation.regions) == 1:
                self.functions[read_string(operation, "sym_name")] = operation
            if _name_operation(operation) == "func.call":
                self.calls.setdefault(_read_callee(operation), []).append(operation)
            return ir.WalkResult.ADVANCE

        module.operation.walk(visit)
        self._origins: dict[IrValue, IrValue] = {}
        for name, calls in self.calls.items():
            if len(calls) == 1 and name in self.functions:
                arguments = self.functions[name].regions[0].blocks[0].arguments
                self._origins |= dict(zip(arguments, calls[0].operands, strict=True))

    def find_origin(self, value: IrValue) -> IrValue:
        """Return the operand that is an argument of a function with one call, or else the value itself."""
        while value in self._origins:
            value = self._origins[value]
        return value

    def trace(self, function: IrOperation, inputs: Sequence[_Tensor]) -> list[_Tensor]:
        """Return a function's inputs with what uses their integers."""
        arguments = function.regions[0].blocks[0].arguments
        self.names = {value: item.name for value, item in zip(arguments, inputs, strict=True)}
        traced_inputs = []
        for value, item in zip(arguments, inputs, strict=True):
            uses, are_known = trace_indices(self, value) if "int" in item.dtype else ((), True)
            traced_inputs.append(replace(item, index_uses=uses, uses_known=are_known))
        return traced_inputs

    def list_users(self, value: IrValue) -> Iterator[tuple[_MlirOperator, int]]:
        for use in value.uses:
            operation, operand = use.owner.operation, use.operand_number
            if operation.name == "torch.prim.ListConstruct":
                for list_use in operation.results[0].uses:
                    owner = list_use.owner.operation
                    yield _MlirOperator(owner.name, owner, self), LIST_OPERANDS + operand
                continue
            name = _name_operation(operation)
            if name == "stablehlo.scatter":
                operand = 1 if operand == len(operation.operands) // 2 else _ALL_OTHERS
            yield _MlirOperator(name, operation, self), operand

    def get_integer_type(self, value: IrValue) -> tuple[int, bool] | None:
        text = str(value.type)
        match = _INTEGER.fullmatch(_read_type(text).dtype or text)
        return (int(match[2] or 64), match[1] != "u") if match else None


def _read_integers(operation: IrOperation, name: str) -> list[int] | None:
    """Return the integers of an attribute, or of an entry of StableHLO's dimensions; None without it."""
    if name in operation.attributes:
        text = str(operation.attributes[name])
        numbers = [int(number == "true" or number) for number in re.findall(r"-?\d+|true", _TYPE_TEXT.sub(" ", text))]
        count = next((int(match[1]) for match in _TYPE_TEXT.finditer(text) if match[1]), 1)
        return numbers * count if len(numbers) == 1 else numbers
    for dimensions in _DIMENSIONS:
        text = str(operation.attributes[dimensions]) if dimensions in operation.attributes else ""
        if match := re.search(rf"\b{name} = (\[[^\]]*\]|\d+)", text):
            return [*map(int, re.findall(r"\d+", match[1]))]
    return None


def _read_callee(operation: IrOperation) -> str:
    return read_string(operation, "callee") or str(operation.attributes["callee"]).removeprefix("@")


def _name_operation(operation: IrOperation) -> str:
    """Return the name of an operation; of the versioned StableHLO, that of StableHLO or of functions."""
    name = re.sub(r"^vhlo\.(\w+?)_v\d+$", r"stablehlo.\1", operation.name)
    is_function = name == "stablehlo.return" and "function_type" in operation.parent.operation.attributes
    return "func.return" if is_function else "func.call" if name == "stablehlo.call" else name


def _list_functions(module: IrModule) -> Iterator[IrOperation]:
    """Yield the public functions that have a body."""
    for item in module.body.operations:
        operation = item.operation
        is_function = "function_type" in operation.attributes and len(operation.regions) == 1
        if (
            is_function
            and len(operation.regions[0].blocks)
            and read_string(operation, "sym_visibility") in ("", "public")
        ):
            yield operation


def _count_values(value: IrValue) -> int:
    sizes = _read_type(str(value.type)).shape
    return math.prod(_ASSUMED_SIZE if size is None else size for size in sizes)


def _estimate_sum(operation: IrOperation) -> int:
    """Estimate the number of products in each sum of an operation: of a matrix product M×K · K×N it is K."""
    counts = [_count_values(value) for value in operation.operands]
    result = max([1, *(_count_values(value) for value in operation.results)])
    factors = sorted(counts)[-2:]
    estimate = math.isqrt(math.prod(factors) // result) if len(factors) == 2 else 0
    return min(_MAX_SUM, max([estimate, *(count // result for count in counts)]))


def _read(document: Mapping[str, object]) -> dict[str, object]:
    plan = read_plan(_InterfacePlan, document)
    module = plan.parse()
    from iree.compiler import ir  # noqa: PLC0415 - see above

    dialects: set[str] = set()
    state: list[str] = []
    longest_sum, has_f64, has_onnx, is_partial = 1, False, False, False

    def visit(item: IrOperation) -> object:
        nonlocal longest_sum, has_f64, has_onnx, is_partial
        operation = item.operation
        dialects.add(operation.name.partition(".")[0])
        has_onnx = has_onnx or _is_onnx_operator(operation)
        is_partial = is_partial or bool(_PARTIAL.search(operation.name))
        is_global = operation.name == "util.global" and "is_mutable" in operation.attributes
        if is_global or operation.name == "tosa.variable":
            state.append(read_string(operation, "sym_name"))
        has_f64 = has_f64 or any(_read_type(str(value.type)).element_type == "f64" for value in operation.results)
        if _SUMS.search(operation.name) or has_onnx:
            longest_sum = max(longest_sum, _estimate_sum(operation))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    functions, graph = [], _MlirGraph(module)
    onnx_files, onnx_problem = {}, ""
    for operation in _list_functions(module):
        name = read_string(operation, "sym_name")
        inputs, outputs = graph.trace(operation, _list_inputs(operation)), _list_outputs(operation)
        functions.append({"name": name, "inputs": [*map(asdict, inputs)], "outputs": [*map(asdict, outputs)]})
        has_f64 = has_f64 or any(item.element_type == "f64" for item in inputs)
        if has_onnx:
            file = Path(plan.folder) / f"function_{len(functions)}.onnx"
            try:
                _restore(module, operation, inputs, outputs, file)
                onnx_files[name] = str(file)
            except PlanError as error:
                onnx_problem = str(error)
    return {
        "dialects": sorted(dialects - {"builtin"}),
        "functions": functions,
        "has_f64": has_f64,
        "longest_sum": longest_sum,
        "is_partial": is_partial,
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


def _is_onnx_operator(operation: IrOperation) -> bool:
    """Return whether an operation is an operator of ONNX."""
    return operation.name == _OPERATOR and read_string(operation, "name").startswith(_PREFIX)


def _restore(
    module: IrModule, function: IrOperation, inputs: Sequence[_Tensor], outputs: Sequence[_Tensor], file: Path
) -> None:
    """Write a function of ONNX operators as an ONNX file, with inputs and outputs as described.

    This is the inverse of IREE's importer. Only operators of ONNX are understood; any other operation is an error, so
    that a file is either what the function computes or does not exist. Subtleties of the importer's output:
    - The regions of `onnx.If` are in the order of its attributes' names: else first.
    - A missing optional input is the result of `torch.constant.none`.
    - Initializers are `onnx.Constant` operators. Large ones are resources, which the bindings only print, in
      hexadecimal; their first four bytes are an alignment.
    - Operators do not have their domain. If ONNX lacks an operator, its domain is the model's other one.

    Raises:
        PlanError: the function has something that ONNX lacks, or that cannot be read.
    """
    try:
        import onnx  # noqa: PLC0415 - a Python with IREE's compiler may lack it
        from onnx import helper  # noqa: PLC0415
    except ImportError as error:
        raise PlanError(f"onnx is not installed: {error}") from error
    meta = {name.removeprefix(_META_PREFIX): value for name, value in _list_attributes(function)}
    opset, ir_version = (
        int(meta[name].value) if name in meta else default
        for name, default in (("opset_version", _DEFAULT_OPSET), ("ir_version", _DEFAULT_IR_VERSION))
    )
    versions = {item.name: int(item.attr.value) for item in meta.get("opset_versions", ())}
    restorer = _Restorer(_read_resources(module), opset, versions)
    for item in (*inputs, *outputs):
        if not item.dtype:
            raise PlanError(f"{item.name} is {item.type}")
    block = function.regions[0].blocks[0]
    restorer.values |= {value: item.name for value, item in zip(block.arguments, inputs, strict=True)}
    nodes, results = restorer.read_block(block)
    nodes += [helper.make_node("Identity", [name], [item.name]) for name, item in zip(results, outputs, strict=True)]
    graph = helper.make_graph(nodes, "main_graph", [*map(_declare, inputs)], [*map(_declare, outputs)])
    model = helper.make_model(
        graph,
        ir_version=ir_version,
        opset_imports=[helper.make_opsetid("", opset), *(helper.make_opsetid(*item) for item in versions.items())],
    )
    onnx.save(model, str(file))


def _declare(tensor: _Tensor) -> onnx.ValueInfoProto:
    """Return an input or output of a graph."""
    from onnx import helper  # noqa: PLC0415 - the caller has it

    element_type = helper.np_dtype_to_tensor_dtype(find_dtype(tensor.dtype))
    # Each open size has a name of its own, since nothing says that two are equal.
    sizes = [f"{tensor.name}_{axis}" if size is None else size for axis, size in enumerate(tensor.shape)]
    return helper.make_tensor_value_info(tensor.name, element_type, sizes)


def _list_attributes(operation: IrOperation) -> Iterator[tuple[str, IrAttribute]]:
    """Yield the attributes of an operation by name; IREE's older bindings yield objects in place of names."""
    for item in operation.attributes:
        name = getattr(item, "name", item)
        yield name, operation.attributes[name]


def _read_resources(module: IrModule) -> dict[str, str]:
    """Return the content of all resources in hexadecimal; the bindings have no other way than to print the module."""
    text = str(module)
    start = text.rfind("dialect_resources: {")
    return (
        {match[1].strip('"'): match[2] for match in _RESOURCE_TEXT.finditer(text, max(0, start))} if start >= 0 else {}
    )


class _Restorer:
    """Reads the operators of a function; `values` has the names of values in ONNX."""

    def __init__(self, resources: Mapping[str, str], opset: int, versions: Mapping[str, int]) -> None:
        self.values: dict[IrValue, str] = {}
        self._resources, self._opset, self._domains = resources, opset, versions
        self._count = 0

    def read_block(self, block: IrBlock) -> tuple[list[onnx.NodeProto], list[str]]:
        """Return a block's operators, and the names of the values that its last operation returns."""
        nodes = []
        *operations, terminator = block.operations
        for item in operations:
            operation = item.operation
            if operation.name == "torch.constant.none":
                self.values[operation.results[0]] = ""
            elif _is_onnx_operator(operation):
                nodes.append(self._read_operator(operation))
            else:
                raise PlanError(f"{operation.name} is not an operator of ONNX")
        return nodes, [self._name(value) for value in terminator.operands]

    def _name(self, value: IrValue) -> str:
        """Return the ONNX name of a value that an operator takes."""
        name = self.values.get(value)
        if name is None:
            raise PlanError(f"{value.get_name()} is not a value of this function")
        return name

    def _add(self, value: IrValue) -> str:
        """Give a new value a name that no other value has, not even one of another region."""
        self._count += 1
        name = self.values[value] = f"value_{self._count}"
        return name

    def _read_operator(self, operation: IrOperation) -> onnx.NodeProto:
        from onnx import helper  # noqa: PLC0415 - the caller has it

        kind = read_string(operation, "name").removeprefix(_PREFIX)
        domain = self._find_domain(kind)
        attributes = {
            name.removeprefix(_ATTRIBUTE_PREFIX): self._read_attribute(value)
            for name, value in _list_attributes(operation)
            if name.startswith(_ATTRIBUTE_PREFIX)
        }
        inputs = [self._name(value) for value in operation.operands]
        graph_names = _GRAPHS.get(kind, ())
        if len(operation.regions) != len(graph_names):
            raise PlanError(f"{kind} has {len(operation.regions)} regions")
        for name, region in zip(graph_names, operation.regions, strict=True):
            attributes[name] = self._read_graph(name, region)
        outputs = [self._add(value) for value in operation.results]
        node = helper.make_node(kind, inputs, outputs, domain=domain)
        node.attribute.extend(helper.make_attribute(name, value) for name, value in sorted(attributes.items()))
        return node

    def _find_domain(self, kind: str) -> str:
        from onnx import defs  # noqa: PLC0415 - the caller has it

        try:
            defs.get_schema(kind, self._opset, "")
        except defs.SchemaError:
            if len(self._domains) != 1:
                raise PlanError(f"{kind} is not an operator of ONNX, version {self._opset}") from None
            return next(iter(self._domains))
        return ""

    def _read_graph(self, name: str, region: IrRegion) -> onnx.GraphProto:
        """Read a region; values of the same name outside of it keep their names."""
        from onnx import TensorProto, helper  # noqa: PLC0415 - the caller has it

        outer_values = dict(self.values)
        block = region.blocks[0]
        inputs = [helper.make_tensor_value_info(self._add(item), 0, None) for item in block.arguments]
        for value in inputs:
            value.ClearField("type")
        nodes, results = self.read_block(block)
        # A graph's output must be made in it.
        names = []
        for result in results:
            self._count += 1
            names.append(f"value_{self._count}")
            nodes.append(helper.make_node("Identity", [result], [names[-1]]))
        outputs = [helper.make_tensor_value_info(item, TensorProto.UNDEFINED, None) for item in names]
        for value in outputs:
            value.ClearField("type")
        self.values = outer_values
        return helper.make_graph(nodes, name, inputs, outputs)

    def _read_attribute(self, attribute: IrAttribute) -> object:
        from iree.compiler import ir  # noqa: PLC0415 - only this program's Python has it
        from onnx import numpy_helper  # noqa: PLC0415 - the caller has it

        match attribute:
            case ir.IntegerAttr() | ir.FloatAttr() | ir.StringAttr():
                return attribute.value
            case ir.ArrayAttr():
                return [self._read_attribute(item) for item in attribute]
        return numpy_helper.from_array(self._read_tensor(attribute))

    def _read_tensor(self, attribute: IrAttribute) -> Array:
        match = _RESOURCE.match(str(attribute)[:1000])
        if match is None:
            return _read_elements(attribute)
        if match[1].strip('"') not in self._resources:
            raise PlanError(f"the resource {match[1]} has no content")
        text = self._resources[match[1].strip('"')]
        if len(text) > 2 * _MAX_RESOURCE_BYTES or match[3] not in _HOST_TYPES:
            raise PlanError(f"the resource {match[1]} is too large, or of {match[3]}")
        content = bytes.fromhex(text)[_ALIGNMENT_BYTES:]
        shape = [int(size) for size in match[2].split("x") if size]
        dtype = np.dtype(_HOST_TYPES[match[3]])
        if len(content) != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
            raise PlanError(f"the resource {match[1]} is not of the size that its type says")
        return np.frombuffer(content, dtype).reshape(shape)


def _read_elements(attribute: IrAttribute) -> Array:
    """Read a constant with its values in the text."""
    match = re.search(r"tensor<((?:\d+x)*)(\w+)>\Z", str(attribute.type))
    if match is None:
        raise PlanError(f"an attribute is {str(attribute)[:80]}")
    shape = [int(size) for size in match[1].split("x") if size]
    if match[2] in _HOST_TYPES:
        return np.array(attribute).astype(_HOST_TYPES[match[2]]).reshape(shape)
    try:
        return read_narrow_elements(attribute, find_dtype(_NARROW_TYPES[match[2]])).reshape(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"a constant is of {match[2]}") from error


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, _read))
