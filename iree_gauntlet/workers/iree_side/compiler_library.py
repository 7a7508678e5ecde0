"""The IREE compiler's library, loaded by ctypes and used as `iree-compile` uses it; and programs that become one.

Importing `iree.compiler` is avoided: it brings NumPy, whose OpenBLAS starts threads, and a process with threads cannot
be forked.

`iree-compile` itself is a small program that calls `ireeCompilerRunMain` of this library. With flags of the compiler
alone, `compile` makes the calls of that function (IREE's compiler/src/iree/compiler/Tools/iree_compile_lib.cc): command
line, session, source, invocation, output; but it leaves the ending of the process to clean up, which saves some five
per cent. With any other flag it calls the function itself. So every flag, diagnostic and exit code is the tool's, and
the bytes are the same.

Of programs that become one, symbols are made unique, and locations stay as they are: a diagnostic says which of them
it belongs to.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import io
import os
import platform
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    # Objects of MLIR's bindings, which have no types: the module `ir`, operations, and all others.
    Bindings = Any
    Operation = Any
    Native = Any


_NAME = {"Darwin": "libIREECompiler.dylib", "Windows": "IREECompiler.dll"}.get(platform.system(), "libIREECompiler.so")
_TOOL = "iree-compile"
_BANNER = b"IREE compilation driver\n"
_DISABLE_THREADING = "mlir-disable-threading"
# Flags of the compiler, and not of the tool around it; what prints may wait for the tool's orderly end.
_COMPILER_FLAG = re.compile(r"--?iree-(?!.*(?:list|print)-).*|--?mlir-disable-threading")
# Entry points, by their names after `ireeCompiler`, with result and arguments (IREE's embedding_api.h).
_ENTRIES: dict[str, tuple[Any, list[Any]]] = {
    "ErrorGetMessage": (ctypes.c_char_p, [ctypes.c_void_p]),
    "GlobalInitialize": (None, []),
    "InvocationCreate": (ctypes.c_void_p, [ctypes.c_void_p]),
    "InvocationEnableConsoleDiagnostics": (None, [ctypes.c_void_p]),
    "InvocationOutputVMBytecode": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p]),
    "InvocationParseSource": (ctypes.c_bool, [ctypes.c_void_p, ctypes.c_void_p]),
    "InvocationPipeline": (ctypes.c_bool, [ctypes.c_void_p, ctypes.c_int]),
    "OutputDestroy": (None, [ctypes.c_void_p]),
    "OutputKeep": (None, [ctypes.c_void_p]),
    "OutputOpenFile": (ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_void_p]),
    "RunMain": (ctypes.c_int, [ctypes.c_int, ctypes.c_void_p]),
    "SessionCreate": (ctypes.c_void_p, []),
    "SetupGlobalCL": (None, [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_bool]),
    "SourceOpenFile": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]),
}
_STANDARD_PIPELINE = 0
_DIALECTS = "iree.compiler.dialects"
FUNCTIONS = ("func.func", "util.func")


class LibraryMissingError(Exception):
    """This Python has no IREE compiler that can be loaded; the text is one line."""


class CompilerLibrary:
    """The library in the folder of `iree.compiler`, with its global state made once, before any fork.

    Raises:
        LibraryMissingError: it is not there, cannot be loaded, or lacks an entry point.
    """

    def __init__(self, package: Path) -> None:
        path = next((found for found in _list_candidates(package) if found.exists()), None)
        if path is None:
            raise LibraryMissingError(f"{package} has no {_NAME}")
        self.path = path
        neighbour = path.with_name(_TOOL)
        # What the tool would see as its own name; it stands in the compiler's crash reports.
        self._program = str(neighbour if neighbour.exists() else _TOOL)
        linker = shlex.quote(str(path.with_name("iree-lld")))
        if linker.startswith("'"):
            # The compiler starts it by a shell line, in which it quotes nothing.
            os.environ.setdefault("IREE_LLVM_EMBEDDED_LINKER_PATH", linker)
        try:
            library = ctypes.CDLL(str(path))
            self._entries: dict[str, Callable[..., Any]] = {}
            for name, (result, arguments) in _ENTRIES.items():
                entry = library[f"ireeCompiler{name}"]
                entry.restype, entry.argtypes = result, arguments
                self._entries[name] = entry
        except (OSError, AttributeError) as error:
            raise LibraryMissingError(f"{path} cannot be used: {error}") from error
        self._orderly = False
        self._call("GlobalInitialize")

    def compile(self, program: str, flags: Sequence[str], output: str) -> int:
        """Do what `iree-compile PROGRAM FLAGS -o OUTPUT` does in this process, without threads.

        May be called once in a process: the compiler's flags are global to it. `end` is to follow. Gives the exit code
        of the tool. (The compiler ends the process where it knows a flag not.)
        """
        # Given twice it is an error.
        threading = () if any(_DISABLE_THREADING in flag for flag in flags) else (f"--{_DISABLE_THREADING}",)
        if all(_COMPILER_FLAG.fullmatch(flag) for flag in flags):
            return self._compile(program, (*flags, *threading), output)
        self._orderly = True
        words = (self._program, program, *flags, *threading, "-o", output)
        return int(self._call("RunMain", len(words), self._make_vector(words)))

    def end(self, code: int) -> None:
        """End the process, where the compiler is to write what it holds back, or else return."""
        if self._orderly:
            ctypes.CDLL(None).exit(code)

    def _compile(self, program: str, flags: Sequence[str], output: str) -> int:
        words = (self._program, *flags)
        self._call("SetupGlobalCL", len(words), self._make_vector(words), _BANNER, True)
        session = self._call("SessionCreate")
        source, target = ctypes.c_void_p(), ctypes.c_void_p()
        if self._has_failed(self._call("SourceOpenFile", session, program.encode(), ctypes.byref(source))):
            return 1
        if self._has_failed(self._call("OutputOpenFile", output.encode(), ctypes.byref(target))):
            return 1
        invocation = self._call("InvocationCreate", session)
        self._call("InvocationEnableConsoleDiagnostics", invocation)
        if not self._call("InvocationParseSource", invocation, source):
            return 1
        if not self._call("InvocationPipeline", invocation, _STANDARD_PIPELINE):
            return 1
        if self._has_failed(self._call("InvocationOutputVMBytecode", invocation, target)):
            return 1
        self._call("OutputKeep", target)
        # Writes what is left of it.
        self._call("OutputDestroy", target)
        return 0

    def _has_failed(self, error: int | None) -> bool:
        if error is None:
            return False
        # The tool says so whatever it was.
        text = self._call("ErrorGetMessage", error).decode(errors="replace")
        sys.stderr.write(f"error opening input file: {text}\n")
        sys.stderr.flush()
        return True

    def _make_vector(self, words: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
        """`argv`, with the null pointer at its end; kept, because the compiler's crash reports read it."""
        self._words = (ctypes.c_char_p * (len(words) + 1))(*(word.encode() for word in words), None)
        return self._words

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._entries[name](*arguments)


def find_package() -> Path:
    """The folder of `iree.compiler`, without importing it; a `LibraryMissingError` where this Python has none.

    Leaves an empty package of that name behind, so that its parts can be imported without all of it.
    """
    try:
        spec = importlib.util.find_spec("iree.compiler")
    except ModuleNotFoundError:
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise LibraryMissingError(f"{sys.executable} has no iree.compiler")
    package = ModuleType("iree.compiler")
    package.__path__ = folders
    package.__spec__ = importlib.machinery.ModuleSpec("iree.compiler", None, is_package=True)
    sys.modules["iree.compiler"] = package
    return Path(folders[0])


def _list_candidates(package: Path) -> Iterator[Path]:
    """Where the library may lie: in the package, or in the build tree around it (as `iree.compiler.api` looks)."""
    yield package / "_mlir_libs" / _NAME
    for folder in package.resolve().parents:
        if (folder / "tools" / _TOOL).exists():
            for part in ("lib", "tools", "bin"):
                yield folder / part / _NAME
            return


@dataclass(slots=True)
class MergedPrograms:
    """What came of a merge: `module` is MLIR bytecode, and empty where programs were refused."""

    module: bytes = b""
    functions: list[list[str]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def import_bindings() -> Bindings:
    """The compiler's `ir` module without what imports NumPy, which costs more than a merge."""
    if _DIALECTS not in sys.modules:
        # Operations of all dialects are taken as operations, and not as the classes that it has for some.
        sys.modules[_DIALECTS] = ModuleType(_DIALECTS)
        sys.modules[_DIALECTS].__path__ = []
    from iree.compiler import _mlir_libs  # noqa: PLC0415  needs the empty package that find_package makes

    return _mlir_libs._mlir.ir  # noqa: SLF001  the name under which the wheel's own `ir` takes it


def merge_programs(programs: Sequence[str], prefixes: Sequence[str]) -> MergedPrograms:
    """Merge programs into one module.

    Every symbol at the top of a program gets the program's prefix, and all references to it, those inside of
    functions and globals included. The module's own name goes.
    """
    ir = import_bindings()
    merged = MergedPrograms()
    with ir.Context() as context:
        # As iree-compile parses.
        context.allow_unregistered_dialects = True
        whole = ir.Module.create(ir.Location.unknown())
        attributes: dict[str, Native] | None = None
        for index, (path, prefix) in enumerate(zip(programs, prefixes, strict=True)):
            names: list[str] = []
            merged.functions.append(names)
            try:
                # From the file: its path stands in the locations, which diagnostics print.
                part = ir.Module.parseFile(path)
            except (OSError, ir.MLIRError) as error:
                merged.refused[index] = str(error)
                continue
            own = {name: value for name, value in list_attributes(part.operation).items() if name != "sym_name"}
            if attributes is None:
                attributes = own
                for name, value in own.items():
                    whole.operation.attributes[name] = value
            if own != attributes:
                merged.refused[index] = f"{path}: error: its module has other attributes than the first program's"
                continue
            names += _take_over(ir, whole, part, prefix)
        if not merged.refused:
            buffer = io.BytesIO()
            whole.operation.write_bytecode(buffer)
            merged.module = buffer.getvalue()
    return merged


def list_attributes(operation: Operation) -> dict[str, Native]:
    """An operation's attributes by their names."""
    # Releases differ in what iterating over attributes gives: names, or names with values.
    names = [item if isinstance(item, str) else item.name for item in operation.attributes]
    return {name: operation.attributes[name] for name in names}


def _take_over(ir: Bindings, whole: Operation, part: Operation, prefix: str) -> list[str]:
    """Move a program's operations into the whole, renamed."""
    functions = []
    operations = list(part.operation.regions[0].blocks[0].operations)
    for operation in operations:
        attributes = operation.operation.attributes
        if "sym_name" not in attributes:
            continue
        old = ir.StringAttr(attributes["sym_name"]).value
        new = prefix + old
        ir.SymbolTable.replace_all_symbol_uses(old, new, part.operation)
        ir.SymbolTable.set_symbol_name(operation, new)
        if operation.operation.name in FUNCTIONS:
            public = "sym_visibility" not in attributes or str(attributes["sym_visibility"]) != '"private"'
            if public and len(operation.operation.regions[0].blocks) > 0:
                functions.append(new)
    for operation in operations:
        whole.body.append(operation)
    return functions
