"""What builds IREE: CMake, Ninja, a C++ compiler, and what makes it faster where it is there."""

from __future__ import annotations

import re
import shutil
import sysconfig
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.short_process import ask

if TYPE_CHECKING:
    from collections.abc import Mapping


# What IREE's CMakeLists.txt asks for; and the first Ninja with dynamic dependencies.
_LEAST = {"cmake": Version("3.21"), "ninja": Version("1.10")}
_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?)")
_ASK_SECONDS = 60.0
_LAUNCHERS = ("ccache", "sccache")


@dataclass(frozen=True, slots=True)
class BuildTools:
    """The programs that build.

    Attributes:
        cmake, ninja, cc, cxx: their paths.
        lld: whether there is LLVM's linker for that compiler.
        launcher: path of a compiler cache; empty where there is none.
        compiler: what the C++ compiler calls itself.
    """

    cmake: str
    ninja: str
    cc: str
    cxx: str
    lld: bool
    launcher: str
    compiler: str


def find_build_tools(environ: Mapping[str, str]) -> BuildTools:
    """The machine's own tools where they are new enough, else those of the wheels next to this Python.

    `$CC` and `$CXX` count, as for CMake.

    Raises:
        ToolchainError: some are missing; it names all, and what installs them.
    """
    search_path = environ.get("PATH", "")
    missing: list[str] = []
    found = {name: _new_enough(name, search_path, missing) for name in _LEAST}
    cc, cxx = (_of_variable(name, environ, missing) for name in ("CC", "CXX"))
    for names in (("clang", "clang++"), ("cc", "c++"), ("gcc", "g++")):
        if cc is None or cxx is None:
            here = [shutil.which(name, path=search_path) for name in names]
            cc, cxx = (here[0], here[1]) if all(here) else (cc, cxx)
    if (cc is None or cxx is None) and not any(text.startswith("$C") for text in missing):
        missing.append("a C and a C++ compiler")
    if missing or cc is None or cxx is None:
        raise ToolchainError(
            f"a source build needs {' and '.join(missing)}",
            "Install: sudo apt install cmake ninja-build clang lld; CMake and Ninja also come with "
            "pip install 'iree-gauntlet[source]'",
        )
    said = ask([cxx, "--version"], timeout=_ASK_SECONDS).stdout.splitlines()
    compiler = said[0] if said else cxx
    launcher = next(filter(None, (shutil.which(name, path=search_path) for name in _LAUNCHERS)), "")
    lld = "clang" in compiler and shutil.which("ld.lld", path=search_path) is not None
    return BuildTools(found["cmake"], found["ninja"], cc, cxx, lld, launcher, compiler)


def _of_variable(name: str, environ: Mapping[str, str], missing: list[str]) -> str | None:
    """Path of the compiler that a variable names; None where it names none. One that is not there is missing."""
    named = environ.get(name, "")
    path = shutil.which(named, path=environ.get("PATH", "")) if named else None
    if named and path is None:
        missing.append(f"${name}, which is {named!r} and no program on the PATH")
    return path


def _new_enough(name: str, search_path: str, missing: list[str]) -> str:
    """Path of a tool; where none is new enough, that is added to what is missing."""
    least, old = _LEAST[name], ""
    for place in (search_path, sysconfig.get_path("scripts")):
        path = shutil.which(name, path=place)
        if path is None:
            continue
        version = _VERSION.search(ask([path, "--version"], timeout=_ASK_SECONDS).stdout)
        if version and Version(version[1]) >= least:
            return path
        old = f" ({path} is {version[1] if version else 'of no known version'})"
    missing.append(f"{name} {least} or newer{old}")
    return ""
