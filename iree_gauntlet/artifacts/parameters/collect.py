"""The parameters that a program names, found without loading the program.

Text is read in chunks; bytecode is read where its parameters lie. Only bytecode that is newer than this
module goes through the toolchain's `iree-opt`.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from iree_gauntlet.artifacts.parameters.mlir_bytecode import MAGIC, UnknownEncodingError, references_in_bytecode
from iree_gauntlet.artifacts.parameters.mlir_text import references_in_text
from iree_gauntlet.artifacts.parameters.parameter import Parameter, ParameterError, element_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from iree_gauntlet.artifacts.parameters.reference import Reference


_CHUNK = 1 << 20
_ELIDED = 16  # elements, or characters of a resource; a reference is neither
_SHOWN = 300  # characters of the tool's own words in an error
# Large constants are left out, so that what is printed is the program without its weights.
_TOOL_FLAGS = (
    f"--mlir-elide-elementsattrs-if-larger={_ELIDED}",
    f"--mlir-elide-resource-strings-if-larger={_ELIDED}",
)
_TENSOR = re.compile(r"tensor<((?:(?:[0-9]{1,19}|\?)x)*)([^,]*?)(,.*)?>", re.DOTALL)


def collect_parameters(program: Path, ir_tool: str) -> tuple[Parameter, ...]:
    """The parameters named in MLIR text or bytecode, each once, in the order in which the program has them.

    Memory does not grow with the weights that are inside the program, only with the number of parameters.

    Args:
        program: `.mlir` or `.mlirbc`; its content says which, not its name.
        ir_tool: `iree-opt` of the toolchain, for bytecode in an encoding that is not known here.

    Raises:
        ParameterError: the program cannot be read, is damaged, gives one parameter two types, or one a type
            whose values have no known size.
    """
    try:
        with program.open("rb") as file:
            return _merged(_references(file, program, ir_tool), str(program))
    except OSError as error:
        raise ParameterError(
            f"{program}: cannot be read: {error.strerror}", "Check the path and the rights there."
        ) from error


def _references(file: BinaryIO, program: Path, ir_tool: str) -> Iterable[Reference]:
    magic = file.read(len(MAGIC))
    file.seek(0)
    if magic != MAGIC:
        return references_in_text(iter(lambda: file.read(_CHUNK), b""), str(program))
    try:
        return list(references_in_bytecode(file, str(program)))
    except UnknownEncodingError:
        return _references_through_tool(program, ir_tool)


def _references_through_tool(program: Path, ir_tool: str) -> Iterator[Reference]:
    with _printed_program(program, ir_tool) as text:
        yield from references_in_text(text, f"{program} as iree-opt prints it")


@contextmanager
def _printed_program(program: Path, ir_tool: str) -> Iterator[Iterator[bytes]]:
    """The text of a program in pieces; the tool is gone when the block is left, however it is left.

    Args:
        program: bytecode or text.
        ir_tool: `iree-opt` of the toolchain that the program is for.

    Raises:
        ParameterError: there is no such tool, or it cannot read the program.
    """
    argv = [ir_tool, str(program.absolute()), *_TOOL_FLAGS, "-o", "-"]
    with tempfile.TemporaryFile() as messages:
        try:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages)
        except OSError as error:
            raise ParameterError(
                f"{ir_tool}: cannot be started: {error.strerror}",
                f"{program} needs the compiler's iree-opt to be read: give the path of the one in the toolchain.",
            ) from error
        assert process.stdout is not None, "a pipe was asked for"
        with process:
            output = process.stdout
            try:
                yield iter(lambda: output.read(_CHUNK), b"")
                while output.read(_CHUNK):
                    pass  # it must not die of a closed pipe: how it ends is asked below
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            messages.seek(0)
            said = messages.read(1 << 16).decode(errors="backslashreplace").strip() or "nothing"
            raise ParameterError(
                f"{program}: iree-opt cannot read it (exit code {process.returncode}): {said[:_SHOWN]}",
                "Use the compiler that the program was written for.",
            )


def _merged(references: Iterable[Reference], source: str) -> tuple[Parameter, ...]:
    found: dict[tuple[str, str], Parameter] = {}
    for reference in references:
        where = f"{source}:{reference.line}" if reference.line else source
        parameter = _parameter(reference, where)
        known = found.setdefault((parameter.scope, parameter.name), parameter)
        if known != parameter:
            raise ParameterError(
                f"{where}: parameter {parameter.label} is {parameter.type} here and {known.type} before",
                "One parameter has one type: name one of the two differently in the program.",
            )
    return tuple(found.values())


def _parameter(reference: Reference, where: str) -> Parameter:
    label = Parameter(reference.scope, reference.name, (), "").label
    if not reference.type:
        raise ParameterError(f"{where}: parameter {label} has no type", 'Write <"name"> : tensor<4xf32>.')
    match = _TENSOR.fullmatch(reference.type)
    if match is None:
        raise ParameterError(
            f"{where}: parameter {label} is {reference.type}, not a tensor",
            "Values are made for tensors of known size, such as tensor<4x4xf32>.",
        )
    dims, name, encoding = match.groups()
    if "?" in dims:
        raise ParameterError(
            f"{where}: parameter {label} is {reference.type}, of unknown size",
            "Values need a static shape: write the sizes in the program, or use weights from a URL.",
        )
    if encoding:
        raise ParameterError(
            f"{where}: parameter {label} is {reference.type}, whose encoding has no known size",
            "Remove the encoding from the global, or use weights from a URL.",
        )
    if element_type(name) is None:
        raise ParameterError(
            f"{where}: parameter {label} is {reference.type}, whose element type has no values here",
            "Known are i1, i2, i4, i8 to i64 (also si…, ui…), f16, bf16, f32, f64 and the f8 types with a sign.",
        )
    parameter = Parameter(reference.scope, reference.name, tuple(int(size) for size in dims.split("x") if size), name)
    parameter.check()
    return parameter
