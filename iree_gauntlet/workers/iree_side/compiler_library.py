"""The IREE compiler's library, loaded by ctypes and used as `iree-compile` uses it.

Importing `iree.compiler` is avoided: it brings NumPy, whose OpenBLAS starts threads, and a process with threads cannot
be forked.

`iree-compile` itself is a small program that calls `ireeCompilerRunMain` of this library. With flags of the compiler
alone, `compile` makes the calls of that function (IREE's compiler/src/iree/compiler/Tools/iree_compile_lib.cc): command
line, session, source, invocation, output; but it leaves the ending of the process to clean up, which saves some five
per cent. With any other flag it calls the function itself. So every flag, diagnostic and exit code is the tool's, and
the bytes are the same.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import platform
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


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


class LibraryMissingError(Exception):
    """This Python has no IREE compiler that can be loaded; the text is one line."""


class CompilerLibrary:
    """The library, with its global state made once, before any fork.

    Args:
        package: folder of `iree.compiler`.

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

        May be called once in a process: the compiler's flags are global to it. `end` is to follow.

        Returns:
            The exit code of the tool. (The compiler ends the process where it knows a flag not.)
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
    """The folder of `iree.compiler`, without importing it.

    Leaves an empty package of that name behind, so that its parts can be imported without all of it.

    Raises:
        LibraryMissingError: this Python has none.
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
