"""Put a function of ONNX operators in MLIR (`torch.operator "onnx.…"`) together to an ONNX file again.

This is the inverse of IREE's importer. Only operators of ONNX are understood; any other operation is an error, so that
a file is either what the function computes or does not exist. Subtleties of the importer's output:
- The regions of `onnx.If` are in the order of its attributes' names: else first.
- A missing optional input is the result of `torch.constant.none`.
- Initializers are `onnx.Constant` operators. Large ones are resources, which the bindings only print, in hexadecimal;
  their first four bytes are an alignment.
- Operators do not have their domain. If ONNX lacks an operator, its domain is the model's other one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.workers.iree_side.onnx_reference import find_dtype
from iree_gauntlet.workers.iree_side.plan_file import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import onnx

    from iree_gauntlet.workers.iree_side.plan_file import Array


_OPERATOR = "torch.operator"
_PREFIX = "onnx."
_ATTRIBUTE_PREFIX = "torch.onnx."
_META_PREFIX = "torch.onnx_meta."
_DEFAULT_OPSET, _DEFAULT_IR_VERSION = 17, 8
# The attributes of graphs, in the order of the regions.
_GRAPHS = {"If": ("else_branch", "then_branch"), "Loop": ("body",), "Scan": ("body",)}
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


def is_onnx_operator(operation: Any) -> bool:
    """Return whether an operation is an operator of ONNX."""
    return operation.name == _OPERATOR and _get_kind(operation).startswith(_PREFIX)


def _get_kind(operation: Any) -> str:
    return str(operation.attributes["name"].value)


def restore(
    module: Any, function: Any, inputs: Sequence[Mapping[str, Any]], outputs: Sequence[Mapping[str, Any]], file: Path
) -> None:
    """Write a function as an ONNX file, with inputs and outputs of the given names, `dtype`s and `shape`s.

    Raises:
        PlanError: the function has something that ONNX lacks, or that cannot be read.
    """
    try:
        import onnx  # noqa: PLC0415 - a Python with IREE's compiler may lack it
        from onnx import helper  # noqa: PLC0415
    except ImportError as error:
        raise PlanError(f"onnx is not installed: {error}") from error
    meta = {name.removeprefix(_META_PREFIX): value for name, value in _list_attributes(function)}
    opset = int(meta["opset_version"].value) if "opset_version" in meta else _DEFAULT_OPSET
    versions = {}
    if "opset_versions" in meta:
        versions = {item.name: int(item.attr.value) for item in meta["opset_versions"]}
    restorer = _Restorer(_read_resources(module), opset, versions)
    for item in (*inputs, *outputs):
        if not item["dtype"]:
            raise PlanError(f"{item['name']} is {item['type']}")
    block = function.regions[0].blocks[0]
    names = [str(item["name"]) for item in inputs]
    restorer.values |= dict(zip(block.arguments, names, strict=True))
    nodes, results = restorer.read_block(block)
    output_names = [str(item["name"]) for item in outputs]
    nodes += [helper.make_node("Identity", [name], [out]) for name, out in zip(results, output_names, strict=True)]
    graph = helper.make_graph(
        nodes, "main_graph", [_describe(item) for item in inputs], [_describe(item) for item in outputs]
    )
    model = helper.make_model(
        graph,
        ir_version=int(meta["ir_version"].value) if "ir_version" in meta else _DEFAULT_IR_VERSION,
        opset_imports=[helper.make_opsetid("", opset), *(helper.make_opsetid(*item) for item in versions.items())],
    )
    onnx.save(model, str(file))


def _describe(item: Mapping[str, Any]) -> onnx.ValueInfoProto:
    from onnx import helper  # noqa: PLC0415 - the caller has it

    dtype = item["dtype"]
    element_type = helper.np_dtype_to_tensor_dtype(find_dtype(dtype))
    # Each open size has a name of its own, since nothing says that two are equal.
    sizes = [f"{item['name']}_{axis}" if size is None else size for axis, size in enumerate(item["shape"])]
    return helper.make_tensor_value_info(item["name"], element_type, sizes)


def _list_attributes(operation: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an operation by name; IREE's older bindings yield objects in place of names."""
    for item in operation.attributes:
        name = getattr(item, "name", item)
        yield name, operation.attributes[name]


def _read_resources(module: Any) -> dict[str, str]:
    """Return the content of all resources in hexadecimal; the bindings have no other way than to print the module."""
    text = str(module)
    start = text.rfind("dialect_resources: {")
    return (
        {match[1].strip('"'): match[2] for match in _RESOURCE_TEXT.finditer(text, max(0, start))} if start >= 0 else {}
    )


class _Restorer:
    """Reads the operators of a function; `values` has the names of values in ONNX."""

    def __init__(self, resources: Mapping[str, str], opset: int, versions: Mapping[str, int]) -> None:
        self.values: dict[Any, str] = {}
        self._resources, self._opset, self._domains = resources, opset, versions
        self._count = 0

    def read_block(self, block: Any) -> tuple[list[onnx.NodeProto], list[str]]:
        """Return a block's operators, and the names of the values that its last operation returns."""
        nodes = []
        *operations, terminator = block.operations
        for item in operations:
            operation = item.operation
            if operation.name == "torch.constant.none":
                self.values[operation.results[0]] = ""
            elif is_onnx_operator(operation):
                nodes.append(self._read_operator(operation))
            else:
                raise PlanError(f"{operation.name} is not an operator of ONNX")
        return nodes, [self._name(value) for value in terminator.operands]

    def _name(self, value: Any) -> str:
        """Return the ONNX name of a value that an operator takes."""
        name = self.values.get(value)
        if name is None:
            raise PlanError(f"{value.get_name()} is not a value of this function")
        return name

    def _add(self, value: Any) -> str:
        """Give a new value a name that no other value has, not even one of another region."""
        self._count += 1
        name = self.values[value] = f"value_{self._count}"
        return name

    def _read_operator(self, operation: Any) -> onnx.NodeProto:
        from onnx import helper  # noqa: PLC0415 - the caller has it

        kind = _get_kind(operation).removeprefix(_PREFIX)
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
        return helper.make_node(kind, inputs, outputs, domain=domain, **attributes)

    def _find_domain(self, kind: str) -> str:
        from onnx import defs  # noqa: PLC0415 - the caller has it

        try:
            defs.get_schema(kind, self._opset, "")
        except defs.SchemaError:
            if len(self._domains) != 1:
                raise PlanError(f"{kind} is not an operator of ONNX, version {self._opset}") from None
            return next(iter(self._domains))
        return ""

    def _read_graph(self, name: str, region: Any) -> onnx.GraphProto:
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

    def _read_attribute(self, attribute: Any) -> Any:
        from iree.compiler import ir  # noqa: PLC0415 - only this program's Python has it
        from onnx import numpy_helper  # noqa: PLC0415 - the caller has it

        match attribute:
            case ir.IntegerAttr() | ir.FloatAttr() | ir.StringAttr():
                return attribute.value
            case ir.ArrayAttr():
                return [self._read_attribute(item) for item in attribute]
        return numpy_helper.from_array(self._read_tensor(attribute))

    def _read_tensor(self, attribute: Any) -> Array:
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


def _read_elements(attribute: Any) -> Array:
    """Read a constant with its values in the text."""
    match = re.search(r"tensor<((?:\d+x)*)(\w+)>\Z", str(attribute.type))
    if match is None:
        raise PlanError(f"an attribute is {str(attribute)[:80]}")
    shape = [int(size) for size in match[1].split("x") if size]
    if match[2] in _HOST_TYPES:
        return np.array(attribute).astype(_HOST_TYPES[match[2]]).reshape(shape)
    try:
        # The bindings have no buffer of bf16 and the like, but yield their values.
        values = [attribute[index] for index in range(len(attribute))]
        return np.array(values, np.float64).astype(find_dtype(_NARROW_TYPES[match[2]])).reshape(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"a constant is of {match[2]}") from error
