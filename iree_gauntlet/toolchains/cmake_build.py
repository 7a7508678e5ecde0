"""IREE configured with CMake and built with Ninja, in a folder that goes on where it was."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sysconfig
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

from iree_gauntlet.cache_folders import TOOLCHAINS_VARIABLE
from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.formatting import byte_size, duration
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.short_process import ask, run_logged
from iree_gauntlet.toolchains.toolchain import compute_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


# What IREE's CMakeLists.txt asks for; and the first Ninja with dynamic dependencies.
_LEAST = {"cmake": Version("3.21"), "ninja": Version("1.10")}
_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?)")
_ASK_SECONDS = 60.0
_LAUNCHERS = ("ccache", "sccache")
_CONFIGURED = "gauntlet-configured.json"
# IREE's documented settings for its developers; and nothing that no tool of ours runs.
_SETTINGS = (
    "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    "-DIREE_ENABLE_ASSERTIONS=ON",
    "-DIREE_ENABLE_SPLIT_DWARF=ON",
    "-DIREE_ENABLE_THIN_ARCHIVES=ON",
    "-DIREE_BUILD_TESTS=OFF",
    "-DIREE_BUILD_SAMPLES=OFF",
    # What is built is copied out of its folder.
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
)
COMPILER_TARGETS = ("iree-compile", "iree-opt")
RUNTIME_TARGETS = ("iree-run-module", "iree-benchmark-module")
# Built where a checkout has it: it reads the profiles that the runtime writes from 3.12 on.
OPTIONAL_TARGETS = ("iree-profile",)
IMPORTER_TARGETS = ("IREECompilerPythonModules",)
# Of a link of LLVM with debug information.
_BYTES_A_LINK = 4 << 30
# What a build of the compiler takes on the disk, and one of the runtime alone.
_BYTES_OF_LLVM, _BYTES_OF_RUNTIME = 25 << 30, 1 << 30
_STATUS = re.compile(r"\[(\d+)/(\d+)\] ")
_FAILED = re.compile(r"FAILED: (?:\[code=\d+\] )?(\S+)")
_ERROR = re.compile(r"([^\s:(][^:(\n]*)[:(](\d+)(?:[:,](\d+))?\)?: (?:fatal )?error: (.+)")
_LINK_ERROR = re.compile(r".*(?:undefined reference to|ld(?:\.lld)?: error:|error: ).*")
_CMAKE_ERROR = re.compile(r"CMake Error(?: at ([^:\n]+):(\d+).*?)?:\s*(.*)")
# Indented names, which end where a line is not.
_UNUSED = re.compile(r"Manually-specified variables were not used.*\n((?:[ \t]+\S.*\n|[ \t]*\n)*)")
_DISK_FULL = ("No space left on device", "Disk quota exceeded")
_NEWS_SECONDS = 10.0
# Ninja reads the files of a build first, which are large.
_QUERY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class BuildTools:
    """The programs that build; the launcher is a compiler cache, if there is one."""

    cmake: str
    ninja: str
    cc: str
    cxx: str
    lld: bool
    launcher: str
    compiler: str


def find_build_tools(environ: Mapping[str, str]) -> BuildTools:
    """The machine's own tools where they are new enough, else those of the wheels next to this Python.

    `$CC` and `$CXX` count, as for CMake. ToolchainError names all that are missing, and what installs them.
    """
    search_path = environ.get("PATH", "")
    missing: list[str] = []
    found = {name: _find_new_enough(name, search_path, missing) for name in _LEAST}
    cc, cxx = (_find_by_variable(name, environ, missing) for name in ("CC", "CXX"))
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


def _find_by_variable(name: str, environ: Mapping[str, str], missing: list[str]) -> str | None:
    """Path of the compiler that a variable names; None where it names none. One that is not there is missing."""
    named = environ.get(name, "")
    path = shutil.which(named, path=environ.get("PATH", "")) if named else None
    if named and path is None:
        missing.append(f"${name}, which is {named!r} and no program on the PATH")
    return path


def _find_new_enough(name: str, search_path: str, missing: list[str]) -> str:
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


@dataclass(frozen=True, slots=True)
class BuildFolder:
    """Where CMake builds; the caller holds its lock."""

    title: str
    source: Path
    folder: Path
    log: Path
    tools: BuildTools
    held: int
    news: Callable[[str], None]

    def configure(self, options: Sequence[str]) -> None:
        """Has CMake write the build's files, unless they are there for the same options; errors as `_run`."""
        tools = self.tools
        links = max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _BYTES_A_LINK)
        languages = ("C", "CXX") if tools.launcher else ()
        argv = [tools.cmake, "-G", "Ninja", "-S", str(self.source), "-B", str(self.folder)]
        argv += [
            f"-DCMAKE_MAKE_PROGRAM={tools.ninja}",
            *_SETTINGS,
            f"-DCMAKE_C_COMPILER={tools.cc}",
            f"-DCMAKE_CXX_COMPILER={tools.cxx}",
            *(["-DIREE_ENABLE_LLD=ON"] if tools.lld else []),
            *(f"-DCMAKE_{language}_COMPILER_LAUNCHER={tools.launcher}" for language in languages),
            f"-DCMAKE_JOB_POOLS=gauntlet_links={links}",
            "-DCMAKE_JOB_POOL_LINK=gauntlet_links",
            *options,
        ]
        stamp = self.folder / _CONFIGURED
        try:
            before = json.loads(stamp.read_bytes())
        except (OSError, ValueError):
            before = None
        if before == argv and (self.folder / "build.ninja").is_file():
            return
        if before is not None and before[3:7] != argv[3:7]:
            self.news("the folder of this build has another place than it had: it begins again")
            shutil.rmtree(self.folder)
        stamp.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.news("configuring with CMake")
        unused = _UNUSED.search(self._run(argv, "cannot configure"))
        names = unused[1].split() if unused else []
        if ours := [name for name in names if any(option.startswith(f"-D{name}") for option in options)]:
            self.news(f"CMake says that the project has no option {', '.join(ours)}: is it misspelt?")
        write_atomic(stamp, json.dumps(argv))

    def build(self, targets: Sequence[str], seconds_before: float) -> bool:
        """Builds what is not up to date; whether there was anything. Errors as `_run`.

        The last build that began from nothing took `seconds_before`; 0 where that is not known.
        """
        began = told = time.monotonic()
        worked = False

        def follow(line: str) -> None:
            """Tells how far Ninja is, now and then, and how long it may take."""
            nonlocal told, worked
            status = _STATUS.match(line)
            now = time.monotonic()
            worked = worked or status is not None
            if status is None or now - told < _NEWS_SECONDS:
                return
            told, done, total = now, int(status[1]), int(status[2])
            left = (now - began) * (total - done) / max(done, 1)
            if seconds_before and done * 10 < total:
                # The first files say little.
                left = max(0.0, seconds_before - (now - began))
            self.news(f"built {done:,} of {total:,} files, about {duration(left)} left")

        self._run([self.tools.ninja, "-C", str(self.folder), *targets], "cannot build", follow)
        return worked

    def known(self, targets: Sequence[str]) -> list[str]:
        """Those of some targets that the configured build has."""
        # Ninja knows the targets of the commit that was built last until it has had CMake write them again.
        self._run([self.tools.ninja, "-C", str(self.folder), "build.ninja"], "cannot configure")
        query = [self.tools.ninja, "-C", str(self.folder), "-t", "query"]
        return [name for name in targets if ask([*query, name], timeout=_QUERY_SECONDS).exit_code == 0]

    def require_space(self, *, runtime_only: bool) -> None:
        """GauntletError where the disk has no space for a build from nothing."""
        if (self.folder / "build.ninja").is_file():
            return
        whole = not runtime_only and (self.source / "third_party/llvm-project/llvm/CMakeLists.txt").is_file()
        needed = _BYTES_OF_LLVM if whole else _BYTES_OF_RUNTIME
        place = next(path for path in self.folder.parents if path.exists())
        if (free := shutil.disk_usage(place).free) < needed:
            raise GauntletError(
                f"a build needs about {byte_size(needed)}, and {place} has {byte_size(free)} left",
                f"Free disk space (toolchain.remove), or name another folder with ${TOOLCHAINS_VARIABLE}.",
            )

    def _run(self, argv: Sequence[str], what: str, follow: Callable[[str], None] = lambda _: None) -> str:
        """What a program says; ToolchainError with its first error where it fails, GauntletError for a full disk."""
        start = self.log.stat().st_size if self.log.exists() else 0
        environment = os.environ | {"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"}
        try:
            code = run_logged(argv, self.log, environment=environment, held=(self.held,), follow=follow)
        except OSError as error:
            raise ToolchainError(f"{argv[0]} cannot be started: {error}", "Install it again.") from error
        with self.log.open("rb") as file:
            file.seek(start)
            said = file.read().decode("utf-8", "replace")
        if code == 0:
            return said
        if any(words in said for words in _DISK_FULL):
            # No fault of what is built: whoever tries several commits stops here.
            raise GauntletError(f"{what} {self.title}: disk full", f"Free space, and run again. Log: {self.log}")
        ended = f"it was ended with signal {-code}" if code < 0 else f"exit code {code}"
        first = find_first_error(said).removeprefix(f"{self.source}/") or ended
        raise ToolchainError(f"{what} {self.title}: {first}", f"Log: {self.log}\n  To repeat: {shlex.join(argv)}")


def make_settings_key(tools: BuildTools, options: Sequence[str]) -> str:
    """Hex digest of what makes two builds of one commit differ: options and compiler, but no cache of compiles."""
    said = [("compiler", f"{tools.compiler} {tools.cc} {tools.cxx} {tools.lld}")]
    return compute_identity([*said, *((f"option {index}", text) for index, text in enumerate((*_SETTINGS, *options)))])


def find_first_error(said: str) -> str:
    """The first error that CMake, a compiler or a linker reports, with file and line where it has them."""
    lines = said.splitlines()
    failed = next((index for index, line in enumerate(lines) if _FAILED.match(line)), None)
    for index, line in enumerate(lines if failed is None else ()):
        # Also of a build that configures itself again, before what Ninja says of that.
        if found := _CMAKE_ERROR.match(line):
            text = found[3] or next((words.strip() for words in lines[index + 1 :] if words.strip()), "")
            return f"{found[1]}:{found[2]}: {text}" if found[1] else text
    for pattern in (_ERROR, _LINK_ERROR):
        for line in lines[failed or 0 :]:
            if found := pattern.match(line):
                return f"{found[1]}:{found[2]}: {found[4]}" if found.lastindex else found[0].strip()
    return next((line for line in lines if "error" in line.lower()), "")
