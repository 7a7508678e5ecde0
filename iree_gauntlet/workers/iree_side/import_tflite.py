"""Import a TFLite model to TOSA in MLIR, by Arm's converter, in a Python that has it.

    python import_tflite.py MODEL.tflite -o OUT.mlir
    python import_tflite.py PLAN.json

The plan is `{"model": "/…/m.tflite", "folder": "/…", "memory_bytes": 8e9}`. The answer:

    {"artifact": "/…/imported.mlirbc",            bytecode, or text
     "version": "2026.2.0",                       that of the converter
     "inputs": ["image"], "outputs": ["scores"]}  the names of tensors

Operators that are not TFLite's own are named before anything is converted. Bytecode is independent of the text forms of
TOSA, which change from release to release of MLIR, but not of the properties of an operation. Those of `tosa.variable`
have changed since the converter was built, so that a model with variables is written as text in MLIR's generic form.

Exit codes are those of `plan_file`: the program is at fault, and never IREE. The reason is one line on standard error;
of the first form, it begins with `import: `.
"""

from __future__ import annotations

import os
import re
import struct
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_plan, run_worker_main

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_CONVERTER = "tosa-converter-for-tflite"
_INSTALL_HINT = "pip install 'iree-gauntlet[tflite]'"
_EXIT_USAGE = 2
_MAX_REASON = 400
_MAX_NAMES = 6
_IDENTIFIER = b"TFL3"
# Of TFLite's schema: the numbers of fields, and the code of operators that are not TFLite's own.
_OPERATOR_CODES, _GRAPHS = 1, 2
_TENSORS, _INPUTS, _OUTPUTS, _NAME = 0, 1, 2, 3
_OLD_CODE, _CUSTOM_NAME, _CODE = 0, 1, 3
_CUSTOM, _VARIABLE = 32, 142
# An operation with attributes, as the converter prints it: what is before it, name, operands, attributes, types.
_OPERATION = re.compile(r"^( *(?:%[\w:]+ = )?)tosa\.(\w+) +([^{\n]*?) *\{(.*)\} : (.*)$", re.MULTILINE)
_ENUMERATION = re.compile(r"\b(rounding_mode|nan_mode|mode) = ([A-Z_]+)")
_FOREIGN = re.compile(r"\"?\b(tfl?\.\w+)\"?\(")
_ENUMERATION_TYPES = {"mode": "resize_mode"}


@dataclass(frozen=True, slots=True)
class _ImportPlan:
    model: str
    folder: str


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of a flatbuffer; reading beyond its end raises a `struct.error`."""

    content: bytes
    position: int

    @classmethod
    def open(cls, content: bytes, position: int) -> _Table:
        """Return the table that an offset leads to."""
        return cls(content, position + cls._read(content, "<I", position))

    @staticmethod
    def _read(content: bytes, code: str, position: int) -> int:
        if position < 0:
            raise struct.error("a negative offset")
        if len(content) < (end := position + struct.calcsize(code)):
            raise struct.error(f"it ends after {len(content):,} bytes, and at least {end:,} are needed")
        (number,) = struct.unpack_from(code, content, position)
        return int(number)

    def _find(self, field: int) -> int:
        """Return the position of a field's value; 0 if the table lacks the field."""
        names = self.position - self._read(self.content, "<i", self.position)
        if 4 + 2 * field >= self._read(self.content, "<H", names):
            return 0
        offset = self._read(self.content, "<H", names + 4 + 2 * field)
        return self.position + offset if offset else 0

    def read_number(self, field: int, code: str) -> int:
        """Read an integer; 0 by default."""
        position = self._find(field)
        return self._read(self.content, code, position) if position else 0

    def read_text(self, field: int) -> str:
        """Read a text; empty by default."""
        position = self._find(field)
        if not position:
            return ""
        position += self._read(self.content, "<I", position)
        length = self._read(self.content, "<I", position)
        return self.content[position + 4 : position + 4 + length].decode("utf-8", "replace")

    def list_positions(self, field: int) -> Iterator[int]:
        """Yield the positions of a vector's values, of four bytes each."""
        position = self._find(field)
        if position:
            position += self._read(self.content, "<I", position)
            for index in range(self._read(self.content, "<I", position)):
                yield position + 4 + 4 * index

    def list_tables(self, field: int) -> Iterator[_Table]:
        """Yield the tables of a vector."""
        for position in self.list_positions(field):
            yield _Table.open(self.content, position)

    def list_numbers(self, field: int) -> list[int]:
        """Return the integers of a vector."""
        return [self._read(self.content, "<i", position) for position in self.list_positions(field)]


def _list_operators(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield code and name of a model's operators; TFLite's own have no name; `struct.error` for a damaged file."""
    for item in _Table.open(content, 0).list_tables(_OPERATOR_CODES):
        code = max(item.read_number(_OLD_CODE, "<b"), item.read_number(_CODE, "<i"))
        yield code, item.read_text(_CUSTOM_NAME)


def _make_generic(text: str) -> str:
    """Return a program with the operations that have attributes in MLIR's generic form."""

    def rewrite(match: re.Match[str]) -> str:
        start, name, operands, attributes, types = match.groups()
        attributes = _ENUMERATION.sub(
            lambda item: f"{item[1]} = #tosa.{_ENUMERATION_TYPES.get(item[1], item[1])}<{item[2]}>", attributes
        )
        return f'{start}"tosa.{name}"({operands}) <{{{attributes}}}> : {types}'

    return _OPERATION.sub(rewrite, text)


def _import(model: Path, output: Path) -> str:
    """Convert a model; return the version of the converter.

    Raises:
        PlanError: the file is damaged, has operators that are not TFLite's own, or cannot be converted.
    """
    content = model.read_bytes()
    if content[4:8] != _IDENTIFIER:
        raise PlanError(f"it is no TFLite model: its identifier {_IDENTIFIER.decode()} is missing")
    try:
        operators = list(_list_operators(content))
    except struct.error as error:
        raise PlanError(f"the file is damaged: {error}; copy or download it again") from error
    if custom_names := dict.fromkeys(name for code, name in operators if code == _CUSTOM):
        names = ", ".join(list(custom_names)[:_MAX_NAMES])
        raise PlanError(f"it has custom operators, which only the programs of their makers know: {names}")
    is_text = any(code == _VARIABLE for code, _ in operators)
    try:
        import tosa_converter_for_tflite as converter  # noqa: PLC0415 - only this program's Python has it
    except ImportError as error:
        raise PlanError(f"no {_CONVERTER} in {sys.executable}: {_INSTALL_HINT}") from error
    # The folder is next to the output, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".import-", dir=output.parent) as folder:
        file, text = Path(folder) / "imported.mlirbc", Path(folder) / "imported.mlir"
        if is_text:
            file.write_text(_make_generic(_convert(converter, model, text).read_text(encoding="utf-8")), "utf-8")
        else:
            _convert(converter, model, file)
        # Bytecode has the name of each dialect between zeros; weights may have these bytes, too.
        if not is_text and any(name in file.read_bytes() for name in (b"\0tfl\0", b"\0tf\0")):
            content_left = _convert(converter, model, text).read_text(encoding="utf-8")
            if left := list(dict.fromkeys(_FOREIGN.findall(content_left))):
                raise PlanError(f"{_CONVERTER} leaves operations that are not of TOSA: {', '.join(left[:_MAX_NAMES])}")
        with file.open("rb") as written:
            os.fsync(written.fileno())
        file.replace(output)
    return version(_CONVERTER)


def _convert(converter: ModuleType, model: Path, output: Path) -> Path:
    """Convert a model to bytecode with locations, or to text by the output's name; return the output.

    Raises:
        PlanError: the converter refuses the model.
    """
    formats, details = converter.TosaConverterOutputFormat, converter.TosaConverterDebugInfo
    is_text, log = output.suffix == ".mlir", output.with_suffix(".log")
    form, detail = (formats.Text, details.Disabled) if is_text else (formats.Bytecode, details.Enable)
    try:
        with _redirect_errors(log):
            converter.tflite_flatbuffer_to_tosa_mlir(str(model), str(output), form, detail)
    # Checks in C++ are errors of these types.
    except (RuntimeError, IndexError, ValueError) as error:
        raise PlanError(f"{_CONVERTER} does not convert it: {_find_cause(log, error)}") from error
    return output


@contextmanager
def _redirect_errors(log: Path) -> Iterator[None]:
    """Write what the converter prints into a file."""
    errors = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(errors, 2)
        os.close(errors)


def _find_cause(log: Path, error: Exception) -> str:
    """Return the first error that the converter printed, or else the exception's own text."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    line = next((line.partition("error: ")[2] for line in lines if "error: " in line), "")
    return " ".join((line or str(error)).split())[:_MAX_REASON]


def _list_names(content: bytes, field: int) -> list[str]:
    """Return the names of the inputs or outputs of the main graph; a damaged file has none."""
    try:
        graph = next(_Table.open(content, 0).list_tables(_GRAPHS))
        tensors = list(graph.list_tables(_TENSORS))
        return [tensors[index].read_text(_NAME) for index in graph.list_numbers(field)]
    except (struct.error, IndexError, StopIteration):
        return []


def _answer(document: Mapping[str, object]) -> dict[str, object]:
    plan = read_plan(_ImportPlan, document)
    artifact = Path(plan.folder) / "imported.mlirbc"
    converter_version, content = _import(Path(plan.model), artifact), Path(plan.model).read_bytes()
    names = {"inputs": _list_names(content, _INPUTS), "outputs": _list_names(content, _OUTPUTS)}
    return {"version": converter_version, "artifact": str(artifact), **names}


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    if len(argv) == 2:
        return run_worker_main(argv, _answer)
    model, option, output = argv[1:] if len(argv) == 4 else ("", "", "")
    if option != "-o":
        sys.stderr.write("usage: import_tflite.py MODEL.tflite -o OUT.mlir\n")
        return _EXIT_USAGE
    try:
        _import(Path(model), Path(output))
    except (PlanError, OSError) as error:
        sys.stderr.write(f"import: {Path(model).name}: {error}\n")
        return _EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
