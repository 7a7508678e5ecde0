"""Prepare an ONNX model and import it to MLIR, in the Python of the measured toolchain.

    python import_onnx.py MODEL.onnx -o OUT.mlir [--opset N | --least-opset N] [--shape NAME=1x3x48x192]...

The order of preparation matters: first input shapes are fixed, then the opset is converted, then shapes are inferred.
Before inference, the recorded shapes of outputs and inner values are removed: they are wrong in some files, and
contradict the fixed inputs in others. If inference finds no shape for an output, the output's declared rank is
restored, because the importer's checker rejects outputs without a rank.

Prints the name of each imported function on a line of stdout. Exit codes: 0 imported; 1 the importer failed;
2 the command or the file cannot be used. The reason is one line on stderr.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import onnx


Shape = tuple[int, ...]

_EXIT_IMPORTER_FAILED = 1
_EXIT_USAGE = 2
_FUNCTION_LINE = re.compile(rb'\s*func\.func @(?:"((?:[^"\\]|\\.)*)"|([\w$.-]+))\s*\(')
_INSTALL_HINT = 'install the importer\'s needs with the compiler: pip install "iree-base-compiler[onnx]"'


class InputError(Exception):
    """The command line or the model file cannot be used as requested; the text is one line."""


class ImportFailedError(Exception):
    """The model could not be converted or imported; the text is one line."""


def parse_shape(text: str) -> tuple[str, Shape]:
    """Parse `NAME=1x3x48x192` (`NAME=` for a scalar), or raise an InputError."""
    # Input names may contain `=`, but dimensions never do, so the last `=` is the separator.
    name, separator, dimensions = text.rpartition("=")
    if not separator or not name:
        raise InputError(f"--shape {text!r}: expected NAME=1x3x48x192")
    if not dimensions:
        return name, ()
    sizes = dimensions.split("x")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in sizes):
        raise InputError(f"--shape {text!r}: dimensions are positive numbers joined by x, as in 1x3x48x192")
    return name, tuple(int(part) for part in sizes)


def _describe(value: onnx.ValueInfoProto) -> str:
    dimensions = value.type.tensor_type.shape.dim
    sizes = [str(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or "?" for dim in dimensions]
    return f"{value.name}=[{', '.join(sizes)}]"


def list_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller passes, without the initializers that files of old IR versions list as inputs."""
    constants = {tensor.name for tensor in graph.initializer} | {item.values.name for item in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in constants]


def list_inner_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs inside a node, such as branches and bodies of loops."""
    return [graph for item in node.attribute for graph in (item.g, *item.graphs) if graph.node]


def _freeze(model: onnx.ModelProto, shapes: dict[str, Shape]) -> None:
    inputs = {value.name: value for value in list_inputs(model.graph)}
    for name, shape in shapes.items():
        if name not in inputs:
            input_list = ", ".join(_describe(value) for value in inputs.values())
            raise InputError(f"no input is named {name!r}; the model's inputs: {input_list}")
        dimensions = inputs[name].type.tensor_type.shape.dim
        if len(dimensions) != len(shape):
            raise InputError(
                f"shape {'x'.join(map(str, shape)) or 'scalar'} has rank {len(shape)}, "
                f"but input {_describe(inputs[name])} has rank {len(dimensions)}"
            )
        for axis, (dimension, size) in enumerate(zip(dimensions, shape, strict=True)):
            # Some exporters write -1 as the size of a dynamic dimension.
            if dimension.dim_value > 0 and dimension.dim_value != size:
                raise InputError(
                    f"input {_describe(inputs[name])} has a fixed size of {dimension.dim_value} "
                    f"in dimension {axis}, but {size} was requested"
                )
            dimension.dim_value = size


def _get_opset(model: onnx.ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)


def prepare(model: onnx.ModelProto, shapes: dict[str, Shape], opset: int | None) -> onnx.ModelProto:
    """Fix the shapes of named inputs, convert the default operator set to `opset` if it is set, and infer shapes.

    This changes the given model.

    Raises:
        InputError: an unknown input, an incompatible shape, an opset lower than the file's.
        ImportFailedError: the opset conversion or the shape inference failed.
    """
    import onnx.shape_inference  # noqa: PLC0415
    import onnx.version_converter  # noqa: PLC0415

    current_opset = _get_opset(model)
    newest_opset = onnx.defs.onnx_opset_version()
    if opset is not None and not current_opset <= opset <= newest_opset:
        limit = (
            f"lower than the file's {current_opset}" if opset < current_opset else f"unknown to onnx {onnx.__version__}"
        )
        raise InputError(f"opset {opset} is {limit}; {current_opset} to {newest_opset} are possible")
    # The declared ranks of outputs whose shapes are removed.
    ranks: dict[str, int] = {}
    if shapes:
        _freeze(model, shapes)
        del model.graph.value_info[:]
        for output in model.graph.output:
            tensor = output.type.tensor_type
            if tensor.HasField("shape"):
                ranks[output.name] = len(tensor.shape.dim)
                tensor.ClearField("shape")
    try:
        if opset is not None and opset > current_opset:
            model = onnx.version_converter.convert_version(model, opset)
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (RuntimeError, ValueError) as error:  # raised by onnx's converter and inference
        raise ImportFailedError(_get_first_line(error)) from error
    for output in model.graph.output:
        # Restore the rank if inference found no shape for this output.
        tensor = output.type.tensor_type
        if output.name in ranks and not tensor.HasField("shape"):
            tensor.shape.SetInParent()
            for _ in range(ranks[output.name]):
                tensor.shape.dim.add()
    return model


def find_functions(lines: Iterable[bytes]) -> list[str]:
    """Return the names of the functions that a program's text defines, in the text's order.

    Lines are bytes and not decoded, because an imported text has perhaps 100 MB, mostly weights in hexadecimal.
    """
    matches = [match for line in lines if (match := _FUNCTION_LINE.match(line))]
    return [_unescape(match[1]) if match[1] is not None else match[2].decode() for match in matches]


def _unescape(escaped_name: bytes) -> str:
    r"""Undo MLIR's escapes in a quoted symbol: `\\`, and `\22` for the byte 0x22."""
    name = re.sub(
        rb"\\(\\|[0-9A-Fa-f]{2})",
        lambda match: b"\\" if match[1] == b"\\" else bytes.fromhex(match[1].decode()),
        escaped_name,
    )
    return name.decode()


def _get_first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _list_tensors(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    """Yield all tensors whose values may be in a separate file, including tensors of inner graphs."""
    yield from getattr(graph, "initializer", ())
    for sparse in getattr(graph, "sparse_initializer", ()):
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for item in node.attribute:
            yield from (item.t, *item.tensors)
        for inner in list_inner_graphs(node):
            yield from _list_tensors(inner)


def read_with_weights(path: Path) -> onnx.ModelProto:
    """Read a model with its weights, also if the weight files are links, as in the cache of the Hugging Face hub.

    onnx does not follow links, so locations that are links are replaced by the links' targets. Raises the errors
    of `onnx.load`.
    """
    import onnx.external_data_helper  # noqa: PLC0415

    model = onnx.load(str(path), load_external_data=False)
    folder = path.absolute().parent
    tensors = [tensor for part in (model.graph, *model.functions) for tensor in _list_tensors(part)]
    locations = [entry for tensor in tensors for entry in tensor.external_data if entry.key == "location"]
    files = {entry.value: Path(os.path.realpath(folder / entry.value)) for entry in locations}
    # Names that lead out of the folder are left to onnx, which rejects them.
    is_inside = all(not Path(name).is_absolute() and ".." not in Path(name).parts for name in files)
    if is_inside and any(file != folder / name for name, file in files.items()):
        folder = Path(os.path.commonpath([file.parent for file in files.values()]))
        for entry in locations:
            entry.value = str(files[entry.value].relative_to(folder))
    onnx.external_data_helper.load_external_data_for_model(model, str(folder))
    return model


def load_onnx(path: Path) -> onnx.ModelProto:
    """Load the model of a file; raise an InputError if the file cannot be read or is not a model."""
    import onnx  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        model = read_with_weights(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (DecodeError, ValueError, onnx.checker.ValidationError) as error:
        # External weights can cause a ValueError.
        raise InputError(f"{path} is not a usable ONNX file: {_get_first_line(error)}") from error
    if not model.graph.node:
        raise InputError(f"{path} is not a usable ONNX file: it has no nodes")
    return model


def import_to_mlir(model: onnx.ModelProto, folder: Path) -> Path:
    """Run the toolchain's own importer on a prepared model; keep the importer's files in `folder`."""
    import onnx  # noqa: PLC0415
    from iree.compiler.extras import onnx_importer  # noqa: PLC0415
    from iree.compiler.ir import MLIRError  # noqa: PLC0415
    from iree.compiler.tools.import_onnx import __main__ as importer  # noqa: PLC0415

    prepared_path = folder / "prepared.onnx"
    imported_path = folder / "imported.mlir"
    onnx.save(model, prepared_path)
    try:
        importer.main(importer.parse_arguments([str(prepared_path), "-o", str(imported_path)]))
    except (onnx_importer.OnnxImportError, MLIRError, RuntimeError, onnx.checker.ValidationError) as error:
        raise ImportFailedError(_get_first_line(error)) from error
    return imported_path


def prepare_file(path: Path, shapes: dict[str, Shape], opset: int | None, least_opset: int | None) -> onnx.ModelProto:
    """Prepare the model of a file; if the file's opset is lower than `least_opset`, convert it to that."""
    model = load_onnx(path)
    return prepare(model, shapes, opset if least_opset is None else max(least_opset, _get_opset(model)))


def _run(arguments: argparse.Namespace) -> list[str]:
    """Run the command; return the names of the imported functions."""
    shapes: dict[str, Shape] = {}
    for name, shape in map(parse_shape, arguments.shape):
        if shapes.setdefault(name, shape) != shape:
            raise InputError(f"--shape gives input {name!r} two shapes")
    output: Path = arguments.output
    if not output.parent.is_dir():
        raise InputError(f"no folder {output.parent} to write {output.name} in")
    model = prepare_file(arguments.model, shapes, arguments.opset, arguments.least_opset)
    # The folder is next to the output, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".import-", dir=output.parent) as folder:
        imported_path = import_to_mlir(model, Path(folder))
        with imported_path.open("rb") as lines:
            functions = find_functions(lines)
            os.fsync(lines.fileno())
        # Readers see the complete file or no file.
        imported_path.replace(output)
    return functions


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="import_onnx.py", description="Prepare an ONNX model and import it to MLIR.")
    parser.add_argument("model", type=Path, help="the .onnx file")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    versions = parser.add_mutually_exclusive_group()
    versions.add_argument("--opset", type=int, help="convert to this opset version first")
    lower_help = "convert to this opset version first if the file's is lower"
    versions.add_argument("--least-opset", type=int, help=lower_help)
    shape_help = "fix the shape of an input; may be repeated"
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1x3x48x192", help=shape_help)
    arguments = parser.parse_args(argv)
    try:
        functions = _run(arguments)
    except ModuleNotFoundError as error:
        print(f"import: no module {error.name!r} in {sys.executable}; {_INSTALL_HINT}", file=sys.stderr)
        return _EXIT_USAGE
    except InputError as error:
        print(f"import: {error}", file=sys.stderr)
        return _EXIT_USAGE
    except ImportFailedError as error:
        print(f"import: {arguments.model.name}: {error}", file=sys.stderr)
        return _EXIT_IMPORTER_FAILED
    print("\n".join(functions))
    return 0


if __name__ == "__main__":
    sys.exit(main())
