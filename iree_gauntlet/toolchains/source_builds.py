"""IREE that is built here from a checkout, kept as other toolchains are.

    <toolchains>/builds/<commit>-<options>-<parts>/  a finished build of a commit, `gauntlet-build.json` in it
    <toolchains>/builds/tree-<name>-<options>-<content>/    one of a work tree as it was
    <toolchains>/work/<name>-<options>/              where it is built: `tree` (a git worktree, of commits alone),
                                                           `build` (CMake's), `log.txt`, `python` (for the bindings)
    <toolchains>/work/.<name>.lock                   held while it is built; dies with its holder

A finished build is a copy of the programs and libraries that are run, so that the next build changes nothing under
somebody's feet. The work folder stays: the next commit, or the work tree after a change, is built from where it is.
CMake configures it, Ninja builds.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import sysconfig
import time
from contextlib import ExitStack, suppress
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from packaging.version import Version

from iree_gauntlet.cache_folders import TOOLCHAINS_VARIABLE
from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.formatting import byte_size, duration
from iree_gauntlet.system.atomic import discard_folder, replace_folder, write_atomic
from iree_gauntlet.system.file_lock import file_lock, take_lock
from iree_gauntlet.system.short_process import ask, run_logged
from iree_gauntlet.toolchains.build_tree import list_shipped_files
from iree_gauntlet.toolchains.checkout import Checkout
from iree_gauntlet.toolchains.environments import Sealed, name_refusals, seal
from iree_gauntlet.toolchains.installer import Installer, Sources
from iree_gauntlet.toolchains.toolchain import compute_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from iree_gauntlet.toolchains.choice import Choice


_SEAL = "gauntlet-build.json"
_LATEST = "latest.json"
_WHOLE_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")
# How folders of work trees' builds begin.
_TREE = "tree-"
_TARGETS = {
    "compiler": ("iree-compile", "iree-opt"),
    "runtime": ("iree-run-module", "iree-benchmark-module"),
    "importer": ("IREECompilerPythonModules",),
}
COMPILER, RUNTIME, IMPORTER = _TARGETS
# Built where a checkout has it: it reads the profiles that the runtime writes from 3.12 on.
_OPTIONAL_TARGETS = ("iree-profile",)
_REQUIREMENTS = "runtime/bindings/python/iree/runtime/build_requirements.txt"
_NO_COMPILER = "-DIREE_BUILD_COMPILER=OFF"
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

    def make_settings_key(self, options: Sequence[str]) -> str:
        """Hex digest of what makes two builds of one commit differ: options and compiler, but no cache of compiles."""
        said = [("compiler", f"{self.compiler} {self.cc} {self.cxx} {self.lld}")]
        settings = enumerate((*_SETTINGS, *options))
        return compute_identity([*said, *((f"option {index}", text) for index, text in settings)])


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


class Uses(Protocol):
    """What of a folder is in use by a living process."""

    def use(self, path: Path) -> None:
        """Say that this process uses a folder, before it is looked for."""

    def collecting(self) -> AbstractContextManager[None]:
        """While nobody may begin to use anything."""

    def in_use(self) -> set[str]:
        """Paths relative to the folder that it is of."""


@dataclass(frozen=True, slots=True)
class Build(Sealed):
    """A finished build."""

    seal_name = _SEAL

    source: str
    commit: str
    modified: bool
    options: tuple[str, ...]
    compiler: str
    parts: tuple[str, ...]
    seconds: float

    @property
    def of_tree(self) -> bool:
        """Whether it is of a work tree, and not of a commit."""
        return self.label.startswith(_TREE)

    @property
    def title(self) -> str:
        """For people: `abc123def456 of /home/me/iree, modified`."""
        return f"{self.commit[:12]} of {self.source}{', modified' if self.modified else ''}"


@dataclass(frozen=True, slots=True)
class _WorkFolder:
    """Where a checkout is built with some options."""

    folder: Path
    checkout: Checkout
    options: tuple[str, ...]
    tools: BuildTools
    key: str

    def label(self, commit: str, parts: Iterable[str]) -> str:
        """Of the finished build of a commit."""
        return f"{commit[:12]}-{self.key}-{''.join(sorted(part[0] for part in parts))}"


@dataclass(frozen=True, slots=True)
class SourceBuilds:
    """The source builds of a folder.

    Attributes:
        uses: of the folder above it.
        use: what says that a build is used, wherever it is.
        earlier: folders of projects' caches, where they were made before: builds there are used, and no others made;
            what is built in beside them goes on there.
    """

    folder: Path
    options: tuple[str, ...]
    environ: Mapping[str, str]
    _: KW_ONLY
    offline: bool
    uses: Uses
    use: Callable[[Path], None]
    news: Callable[[str], None]
    earlier: tuple[Path, ...] = ()

    def ready(self, choice: Choice, parts: frozenset[str]) -> Build:
        """The build of a commit, or of a work tree as it is now, with the parts that are needed; built where it is not.

        Raises:
            ToolchainError: there is no such checkout or commit, something is missing that builds it, or it does not
                build; or this is offline, and it is not built.
        """
        checkout = Checkout.of(choice.folder, self.environ.get("PATH", ""))
        commit = checkout.commit_of(choice.ref or "HEAD")
        try:
            tools = find_build_tools(self.environ)
        except ToolchainError:
            # What was built where these were there, or by another compiler that is gone, can be run all the same.
            if choice.ref and (found := self._find_by_commit(commit, parts)):
                return found
            raise
        whole = self._work(checkout, tools, tree=not choice.ref, runtime_only=False)
        alone = self._work(checkout, tools, tree=not choice.ref, runtime_only=True)
        for work in (whole, alone) if parts == {RUNTIME} else (whole,):
            if (choice.ref or self.offline) and (found := self._find_finished(work, choice, commit, parts)):
                if not choice.ref:
                    self.news(f"{choice.text}: its last build is used, {found.title}; the work tree is not looked at")
                return found
        if self.offline:
            what = f"{choice.text} is not built: nothing is in {self.folder} for {commit[:12]} and these options"
            raise ToolchainError(what, f"Build it: gauntlet toolchain.build {choice.text}")
        work = alone if parts == {RUNTIME} else whole
        lock = work.folder.with_name(f".{work.folder.name}.lock")
        with name_refusals(self.folder):
            lock.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(lock, self._tell_waiting(work.folder.name)) as held:
                # Somebody else may have built it meanwhile.
                if choice.ref and (found := self._find_finished(work, choice, commit, parts)):
                    return found
                return self._make(work, choice, commit, parts, held)

    def all(self) -> list[tuple[Path, Build | None, str]]:
        """Every finished build: folder, what it is, and what is wrong where it is none."""
        return [row for folder in self._folders for row in Build.list_in(folder)]

    def work_folders(self) -> list[Path]:
        """Folders that are built in."""
        works = [folder.with_name("work") for folder in self._folders]
        return sorted(path for work in works if work.is_dir() for path in work.iterdir() if path.is_dir())

    @property
    def _folders(self) -> tuple[Path, ...]:
        return (self.folder, *self.earlier)

    def remove(self, path: Path) -> None:
        """Deletes a finished build, which the caller has made sure is not in use."""
        with name_refusals(path):
            discard_folder(path)

    def remove_work(self, path: Path) -> None:
        """Deletes a folder that is built in, and its worktrees, unless somebody builds there."""
        with name_refusals(path), ExitStack() as held:
            lock = take_lock(path.with_name(f".{path.name}.lock"))
            if lock is None:
                raise ToolchainError(f"a running process builds in {path}", "Remove it when that has ended.")
            held.callback(os.close, lock)
            source = json.loads((path / "source.json").read_bytes()) if (path / "source.json").is_file() else ""
            tree = path / "tree"
            # Git forgets by itself what a checkout that is gone, or none any more, had laid out.
            with suppress(ToolchainError):
                if tree.exists() and source:
                    Checkout.of(Path(source), self.environ.get("PATH", "")).forget(tree)
            shutil.rmtree(path)

    def _work(self, checkout: Checkout, tools: BuildTools, *, tree: bool, runtime_only: bool) -> _WorkFolder:
        options = (*self.options, *([_NO_COMPILER] if runtime_only else []))
        key = tools.make_settings_key(options)[:8]
        place = compute_identity([("checkout", str(checkout.folder.resolve())), ("tree", str(tree))])[:8]
        name = f"{checkout.folder.name}-{place}-{key}"
        works = [folder.with_name("work") / name for folder in self._folders]
        # What was begun goes on where it is: a folder of CMake's cannot be moved.
        folder = next((work for work in works if work.is_dir()), works[0])
        return _WorkFolder(folder, checkout, options, tools, key)

    def _find_by_commit(self, commit: str, parts: frozenset[str]) -> Build | None:
        """A finished build of a commit by any compiler, with these options."""
        for path, found, _ in self.all():
            if found and found.commit == commit and found.options == self.options and parts <= set(found.parts):
                self.use(path)
                return Build.inspect(path)[0]
        return None

    def _find_finished(self, work: _WorkFolder, choice: Choice, commit: str, parts: frozenset[str]) -> Build | None:
        """The finished build of a commit, or the last one of a work tree; None where it has not all that is needed."""
        for path in self._list_paths(work, choice, commit):
            self.use(path)
            found, _ = Build.inspect(path)
            if found and parts <= set(found.parts):
                found.note_use()
                return found
        return None

    def _list_paths(self, work: _WorkFolder, choice: Choice, commit: str) -> list[Path]:
        """Where that build is, if there is one; the most of it first."""
        if choice.ref:
            like = f"{work.label(commit, ())}*"
            there = [path for folder in self._folders for path in folder.glob(like)]
            return sorted(there, key=lambda path: -len(path.name))
        try:
            label = str(json.loads((work.folder / _LATEST).read_bytes()))
            return [folder / label for folder in self._folders]
        except (OSError, ValueError):
            return []

    def _make(self, work: _WorkFolder, choice: Choice, commit: str, parts: frozenset[str], held: int) -> Build:
        runtime_only = _NO_COMPILER in work.options
        began = time.monotonic()
        tree = work.checkout.folder
        work.checkout.require_submodules(commit, runtime_only=runtime_only)
        for folder in (work.folder, self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomic(work.folder / "source.json", json.dumps(str(work.checkout.folder)))

        named = _WHOLE_HASH.sub(r"\1", choice.text)

        def news(text: str) -> None:
            self.news(f"{named}: {text}")

        title = f"{tree} at {commit[:12]}" if choice.ref else str(tree)
        build = BuildFolder(title, tree, work.folder / "build", work.folder / "log.txt", work.tools, held, news)
        build.require_space(runtime_only=runtime_only)
        if choice.ref:
            tree = work.folder / "tree"
            news(f"checking out {commit[:12]} in {tree}")
            work.checkout.lay_out(commit, tree, runtime_only=runtime_only)
            build = replace(build, source=tree)
        options = [*work.options, "-DIREE_BUILD_PYTHON_BINDINGS=OFF"]
        # What was built before is not left out now. It is looked at, and not in use yet: if it is replaced, it may go.
        before = [found for path in self._list_paths(work, choice, commit) if (found := Build.inspect(path)[0])]
        wanted = parts.union(*(found.parts for found in before))
        if IMPORTER in wanted:
            python = self._provide_python(work.folder / "python", tree, held, news)
            options[-1:] = ["-DIREE_BUILD_PYTHON_BINDINGS=ON", f"-DPython3_EXECUTABLE={python}"]
        build.configure(options)
        # The longest of the builds with these options.
        before_took = max(
            (found.seconds for _, found, _ in self.all() if found and work.key in found.label), default=0.0
        )
        worked = build.build(_choose_targets(build, wanted), before_took)
        modified = not choice.ref and work.checkout.is_modified()
        if not worked and (found := self._find_finished(work, choice, commit, wanted)):
            return replace(found, commit=commit, modified=modified)
        said: dict[str, Any] = {
            "source": str(work.checkout.folder),
            "commit": commit,
            "modified": modified,
            "options": work.options,
            "compiler": work.tools.compiler,
            "parts": sorted(wanted),
            "seconds": round(time.monotonic() - began, 1),
        }
        like = work.label(commit, ()) if choice.ref else f"{_TREE}{work.folder.name}-"
        label = work.label(commit, wanted) if choice.ref else f"{like}{_hash_content(build.folder)}"
        with file_lock(self.folder / f".{label}.lock", self._tell_waiting(label)):
            # A commit may be built from two checkouts; and what was built again may be what it was.
            if fresh := Build.inspect(self.folder / label)[0] is None:
                self._ship(build.folder, self.folder / label, said)
        if not choice.ref:
            write_atomic(work.folder / _LATEST, json.dumps(label))
        self._prune(like, label)
        found, why = Build.inspect(self.folder / label)
        if found is None:
            raise ToolchainError(f"{self.folder / label} {why}, although it was just built", "Look at the disk.")
        news(f"built in {found.seconds:.0f} s" if fresh else "up to date: nothing of what is run has changed")
        return found if fresh else replace(found, commit=commit, modified=modified)

    def _ship(self, build: Path, path: Path, said: Mapping[str, Any]) -> None:
        """Copies what is run out of the folder that it was built in."""
        self.use(path)
        names, real = list_shipped_files(build), build.resolve()
        with replace_folder(path) as new:
            for name in names:
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                target = (build / name).resolve()
                inside = target.relative_to(real).as_posix() if target.is_relative_to(real) else name
                if inside != name and inside in names:
                    # The bindings' links to the compiler's library, which is large.
                    (new / name).symlink_to(os.path.relpath(new / inside, (new / name).parent))
                else:
                    shutil.copy2(target, new / name)
            seal(new, _SEAL, {"label": path.name, **said})

    def _prune(self, prefix: str, label: str) -> None:
        """Deletes what a build has replaced, and nobody uses: earlier ones of a work tree, or with less of a commit."""
        root = self.folder.parent
        with self.uses.collecting():
            used = self.uses.in_use()
            for path in self.folder.glob(f"{prefix}*"):
                if path.name != label and path.relative_to(root).as_posix() not in used:
                    discard_folder(path)

    def _provide_python(self, folder: Path, source: Path, held: int, news: Callable[[str], None]) -> Path:
        """A Python that IREE's bindings are built for, with what that and the importer need."""
        python = folder / "bin" / "python"
        if not os.access(python, os.X_OK):
            news(f"installing what the Python bindings need into {folder}")
            with replace_folder(folder) as new:
                installer = Installer()
                installer.make_environment(new, held, news)
                listing = source / _REQUIREMENTS
                listed = ("-r", str(listing)) if listing.is_file() else ()
                installer.install(new / "bin" / "python", (*listed, "numpy", "onnx"), Sources(), held, news)
        return python

    def _tell_waiting(self, name: str) -> Callable[[float], None]:
        return lambda seconds: self.news(f"waiting for another process that builds in {name} ({seconds:.0f} s so far)")


def _choose_targets(build: BuildFolder, wanted: frozenset[str]) -> list[str]:
    """What Ninja builds for some parts."""
    known = build.known(_OPTIONAL_TARGETS) if RUNTIME in wanted else []
    for name in _OPTIONAL_TARGETS:
        if name not in known:
            # Of another commit, which was built here before.
            (build.folder / "tools" / name).unlink(missing_ok=True)
    return [target for part in _TARGETS if part in wanted for target in _TARGETS[part]] + known


def _hash_content(build: Path) -> str:
    """What a build's programs and libraries are, in eight letters; by their content: some are copied by each build."""

    def facts() -> Iterator[tuple[str, str]]:
        for name in list_shipped_files(build):
            with (build / name).open("rb") as file:
                yield name, hashlib.file_digest(file, "sha256").hexdigest()

    return compute_identity(facts())[:8]
