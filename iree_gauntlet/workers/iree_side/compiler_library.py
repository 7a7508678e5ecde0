"""The IREE compiler's library, loaded by ctypes and used in the same way as by `iree-compile`; and merging programs.

Importing `iree.compiler` is avoided, because it imports NumPy, whose OpenBLAS starts threads. A process with threads
cannot be forked safely.

`iree-compile` is a small program that calls the library's `ireeCompilerRunMain`. With only compiler flags, `compile`
makes the same calls as that function (IREE's compiler/src/iree/compiler/Tools/iree_compile_lib.cc), but not the
clean-up, which the end of the process does; this saves about five per cent. With any other flag, `compile` calls
`ireeCompilerRunMain`. So flags, diagnostics, exit codes and output bytes are the tool's.

Merging makes symbols unique but keeps locations, so that a diagnostic names the right program.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import io
import locale
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


_LIBRARY_NAME = {"Darwin": "libIREECompiler.dylib", "Windows": "IREECompiler.dll"}.get(
    platform.system(), "libIREECompiler.so"
)
_TOOL_NAME = "iree-compile"
_BANNER = b"IREE compilation driver\n"
_DISABLE_THREADING = "mlir-disable-threading"
# Flags of the compiler itself, without the tool's flags and without flags that print, which may need the tool's exit.
_COMPILER_FLAG = re.compile(r"--?iree-(?!.*(?:list|print)-).*|--?mlir-disable-threading")
# Entry points (IREE's embedding_api.h) by their names without `ireeCompiler`: types of the result and the arguments.
_ENTRY_POINTS: dict[str, tuple[Any, list[Any]]] = {
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
    """The library in the folder of `iree.compiler`; its global state is initialised once, before any fork.

    Raises:
        LibraryMissingError: the library does not exist, cannot be loaded, or lacks an entry point.
    """

    def __init__(self, package: Path) -> None:
        path = next((candidate for candidate in _list_candidates(package) if candidate.exists()), None)
        if path is None:
            raise LibraryMissingError(f"{package} has no {_LIBRARY_NAME}")
        self.path = path
        tool_path = path.with_name(_TOOL_NAME)
        # The tool's name, as in its `argv`; it appears in the compiler's crash reports.
        self._program = str(tool_path if tool_path.exists() else _TOOL_NAME)
        linker = shlex.quote(str(path.with_name("iree-lld")))
        if linker.startswith("'"):
            # The compiler starts the linker by a shell line without quoting, so the path is quoted here.
            os.environ.setdefault("IREE_LLVM_EMBEDDED_LINKER_PATH", linker)
        # Python sets the user's locale, unlike iree-compile. With a Turkish locale, the compiler could not convert the
        # I of names such as BuiltIn to lower case.
        locale.setlocale(locale.LC_ALL, "C")
        try:
            library = ctypes.CDLL(str(path))
            self._entries: dict[str, Callable[..., Any]] = {}
            for name, (result, arguments) in _ENTRY_POINTS.items():
                entry = library[f"ireeCompiler{name}"]
                entry.restype, entry.argtypes = result, arguments
                self._entries[name] = entry
        except (OSError, AttributeError) as error:
            raise LibraryMissingError(f"{path} cannot be used: {error}") from error
        self._needs_exit = False
        self._call("GlobalInitialize")

    def compile(self, program: str, flags: Sequence[str], output: str) -> int:
        """Do the same as `iree-compile PROGRAM FLAGS -o OUTPUT` in this process, without threads.

        Call it only once in a process, because the compiler's flags are global; then call `end`. Returns the tool's
        exit code. (The compiler ends the process if it does not support a flag.)
        """
        # The compiler rejects this flag if it is given twice.
        threading_flags = () if any(_DISABLE_THREADING in flag for flag in flags) else (f"--{_DISABLE_THREADING}",)
        if all(_COMPILER_FLAG.fullmatch(flag) for flag in flags):
            return self._compile(program, (*flags, *threading_flags), output)
        self._needs_exit = True
        argv = (self._program, program, *flags, *threading_flags, "-o", output)
        return int(self._call("RunMain", len(argv), self._make_vector(argv)))

    def end(self, code: int) -> None:
        """End the process if the compiler still has buffered output to write; otherwise return."""
        if self._needs_exit:
            ctypes.CDLL(None).exit(code)

    def _compile(self, program: str, flags: Sequence[str], output: str) -> int:
        argv = (self._program, *flags)
        self._call("SetupGlobalCL", len(argv), self._make_vector(argv), _BANNER, True)
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
        # This writes the buffered rest of the output.
        self._call("OutputDestroy", target)
        return 0

    def _has_failed(self, error: int | None) -> bool:
        if error is None:
            return False
        # The tool prints this prefix for any error.
        message = self._call("ErrorGetMessage", error).decode(errors="replace")
        sys.stderr.write(f"error opening input file: {message}\n")
        sys.stderr.flush()
        return True

    def _make_vector(self, arguments: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
        """Make `argv`, which ends with a null pointer, and keep it alive: the compiler's crash reports read it."""
        self._argument_vector = (ctypes.c_char_p * (len(arguments) + 1))(*(word.encode() for word in arguments), None)
        return self._argument_vector

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._entries[name](*arguments)


def find_package() -> Path:
    """Find the folder of `iree.compiler`, without importing it; raise a `LibraryMissingError` if there is none.

    An empty package of that name is left behind, so that single modules can be imported without the whole package.
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
    """Yield the library's possible paths: in the package, or in the build tree around the package."""
    yield package / "_mlir_libs" / _LIBRARY_NAME
    for folder in package.resolve().parents:
        if (folder / "tools" / _TOOL_NAME).exists():
            for part in ("lib", "tools", "bin"):
                yield folder / part / _LIBRARY_NAME
            return


@dataclass(slots=True)
class MergeResult:
    """The result of a merge: `module` is MLIR bytecode; it is empty if programs were rejected."""

    module: bytes = b""
    functions: list[list[str]] = field(default_factory=list)
    faulty_programs: dict[int, str] = field(default_factory=dict)


def import_bindings() -> Bindings:
    """Import the compiler's `ir` module without the modules that import NumPy, which costs more than a merge."""
    if _DIALECTS not in sys.modules:
        # Without the package of dialects, all operations are generic operations without special classes.
        sys.modules[_DIALECTS] = ModuleType(_DIALECTS)
        sys.modules[_DIALECTS].__path__ = []
    from iree.compiler import _mlir_libs  # noqa: PLC0415  needs the empty package that find_package makes

    return _mlir_libs._mlir.ir  # noqa: SLF001  the name under which the wheel's own `ir` takes it


def merge_programs(programs: Sequence[str], prefixes: Sequence[str]) -> MergeResult:
    """Merge programs into one module.

    Each symbol at the top of a program gets the program's prefix, and so do all references to the symbol, also inside
    functions and globals. The name of the program's module is dropped.
    """
    ir = import_bindings()
    merge = MergeResult()
    with ir.Context() as context:
        # iree-compile accepts unregistered dialects, too.
        context.allow_unregistered_dialects = True
        target = ir.Module.create(ir.Location.unknown())
        attributes: dict[str, Native] | None = None
        for index, (path, prefix) in enumerate(zip(programs, prefixes, strict=True)):
            names: list[str] = []
            merge.functions.append(names)
            try:
                # Parsing from the file puts the file's path into the locations, which diagnostics print.
                part = ir.Module.parseFile(path)
            except (OSError, ir.MLIRError) as error:
                merge.faulty_programs[index] = str(error)
                continue
            module_attributes = {
                name: value for name, value in list_attributes(part.operation).items() if name != "sym_name"
            }
            if attributes is None:
                attributes = module_attributes
                for name, value in module_attributes.items():
                    target.operation.attributes[name] = value
            if module_attributes != attributes:
                merge.faulty_programs[index] = f"{path}: error: its module's attributes differ from the first program's"
                continue
            names += _move_operations(ir, target, part, prefix)
        if not merge.faulty_programs:
            buffer = io.BytesIO()
            target.operation.write_bytecode(buffer)
            merge.module = buffer.getvalue()
    return merge


def list_attributes(operation: Operation) -> dict[str, Native]:
    """Return an operation's attributes by their names."""
    # Iterating over attributes gives names in some releases, and names with values in others.
    names = [item if isinstance(item, str) else item.name for item in operation.attributes]
    return {name: operation.attributes[name] for name in names}


def _move_operations(ir: Bindings, target: Operation, part: Operation, prefix: str) -> list[str]:
    """Move a program's operations into the target, with new names."""
    functions = []
    operations = list(part.operation.regions[0].blocks[0].operations)
    for operation in operations:
        attributes = operation.operation.attributes
        if "sym_name" not in attributes:
            continue
        old_name = ir.StringAttr(attributes["sym_name"]).value
        new_name = prefix + old_name
        ir.SymbolTable.replace_all_symbol_uses(old_name, new_name, part.operation)
        ir.SymbolTable.set_symbol_name(operation, new_name)
        if operation.operation.name in FUNCTIONS:
            is_public = "sym_visibility" not in attributes or str(attributes["sym_visibility"]) != '"private"'
            if is_public and len(operation.operation.regions[0].blocks) > 0:
                functions.append(new_name)
    for operation in operations:
        target.body.append(operation)
    return functions
