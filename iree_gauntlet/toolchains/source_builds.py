"""Builds of IREE from a checkout, cached like other toolchains.

    <toolchains>/builds/<commit>-<options>-<parts>/  a finished build of a commit, with `gauntlet-build.json`
    <toolchains>/builds/tree-<name>-<options>-<content>/    a finished build of a work tree
    <toolchains>/work/<name>-<options>/              the build directory: `tree` (a git worktree, of commits alone),
                                                           `build` (CMake's), `log.txt`, `python` (for the bindings)
    <toolchains>/work/.<name>.lock                   held during a build; released when its holder dies

A finished build is a copy of the programs and libraries, so that the next build changes no file in use. The work folder
is kept, so that the next commit, or the changed work tree, is built incrementally. CMake configures a build, and Ninja
builds it.
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
from iree_gauntlet.formatting import format_bytes, format_duration
from iree_gauntlet.system.atomic import discard_folder, replace_folder, write_atomic
from iree_gauntlet.system.file_lock import file_lock, try_file_lock
from iree_gauntlet.system.short_process import run_logged, run_tool
from iree_gauntlet.toolchains.build_tree import list_shipped_files
from iree_gauntlet.toolchains.checkout import Checkout
from iree_gauntlet.toolchains.environments import CompleteFolder, convert_file_errors, seal
from iree_gauntlet.toolchains.installer import Installer, Sources
from iree_gauntlet.toolchains.toolchain import compute_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from iree_gauntlet.toolchains.choice import Choice


_SEAL_FILE = "gauntlet-build.json"
_LATEST_FILE = "latest.json"
_FULL_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28}\b")
# The prefix of the folders of work trees' builds.
_TREE_PREFIX = "tree-"
_TARGETS = {
    "compiler": ("iree-compile", "iree-opt"),
    "runtime": ("iree-run-module", "iree-benchmark-module"),
    "importer": ("IREECompilerPythonModules",),
}
COMPILER, RUNTIME, IMPORTER = _TARGETS
# This target is built if the checkout has it (from 3.12 on); it reads profiles of the runtime.
_OPTIONAL_TARGETS = ("iree-profile",)
_REQUIREMENTS = "runtime/bindings/python/iree/runtime/build_requirements.txt"
_NO_COMPILER = "-DIREE_BUILD_COMPILER=OFF"
# IREE's CMakeLists.txt requires this version of CMake; 1.10 is the first Ninja with dynamic dependencies.
_MIN_VERSIONS = {"cmake": Version("3.21"), "ninja": Version("1.10")}
_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?)")
_ASK_SECONDS = 60.0
_LAUNCHERS = ("ccache", "sccache")
_CONFIGURE_STAMP = "gauntlet-configured.json"
# IREE's documented settings for its developers, without targets that this toolkit does not run.
_SETTINGS = (
    "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    "-DIREE_ENABLE_ASSERTIONS=ON",
    "-DIREE_ENABLE_SPLIT_DWARF=ON",
    "-DIREE_ENABLE_THIN_ARCHIVES=ON",
    "-DIREE_BUILD_TESTS=OFF",
    "-DIREE_BUILD_SAMPLES=OFF",
    # Relative paths of libraries stay valid when files are copied out of the build directory.
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
)
# The memory needed to link LLVM with debug information.
_BYTES_PER_LINK = 4 << 30
# The disk space needed by a build of the compiler, and by a build of the runtime alone.
_LLVM_BUILD_BYTES, _RUNTIME_BUILD_BYTES = 25 << 30, 1 << 30
_NINJA_STATUS = re.compile(r"\[(\d+)/(\d+)\] ")
_NINJA_FAILURE = re.compile(r"FAILED: (?:\[code=\d+\] )?(\S+)")
_COMPILE_ERROR = re.compile(r"([^\s:(][^:(\n]*)[:(](\d+)(?:[:,](\d+))?\)?: (?:fatal )?error: (.+)")
_LINK_ERROR = re.compile(r".*(?:undefined reference to|ld(?:\.lld)?: error:|error: ).*")
_CMAKE_ERROR = re.compile(r"CMake Error(?: at ([^:\n]+):(\d+).*?)?:\s*(.*)")
# CMake lists the names on indented lines; a line without indentation ends the list.
_UNUSED_OPTIONS = re.compile(r"Manually-specified variables were not used.*\n((?:[ \t]+\S.*\n|[ \t]*\n)*)")
_DISK_FULL_MESSAGES = ("No space left on device", "Disk quota exceeded")
_NEWS_SECONDS = 10.0
# The timeout of a query of Ninja, which must first read the large files of a build.
_QUERY_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class BuildTools:
    """The build programs; `launcher` is a compiler cache, or empty."""

    cmake: str
    ninja: str
    cc: str
    cxx: str
    lld: bool
    launcher: str
    compiler: str

    def make_settings_key(self, options: Sequence[str]) -> str:
        """Return a hex digest of the options and the C++ compiler, which affect a build; compiler caches do not."""
        key_inputs = [("compiler", f"{self.compiler} {self.cc} {self.cxx} {self.lld}")]
        settings = enumerate((*_SETTINGS, *options))
        return compute_identity([*key_inputs, *((f"option {index}", text) for index, text in settings)])


def find_build_tools(environ: Mapping[str, str]) -> BuildTools:
    """Find the machine's own tools if they are recent enough, else the tools of the wheels next to this Python.

    `$CC` and `$CXX` are used as in CMake. A ToolchainError lists all missing tools, and how to install them.
    """
    search_path = environ.get("PATH", "")
    missing: list[str] = []
    tools = {name: _find_recent_tool(name, search_path, missing) for name in _MIN_VERSIONS}
    cc, cxx = (_find_compiler_by_variable(name, environ, missing) for name in ("CC", "CXX"))
    for names in (("clang", "clang++"), ("cc", "c++"), ("gcc", "g++")):
        if cc is None or cxx is None:
            paths = [shutil.which(name, path=search_path) for name in names]
            cc, cxx = (paths[0], paths[1]) if all(paths) else (cc, cxx)
    if (cc is None or cxx is None) and not any(text.startswith("$C") for text in missing):
        missing.append("a C and a C++ compiler")
    if missing or cc is None or cxx is None:
        raise ToolchainError(
            f"a source build needs {' and '.join(missing)}",
            "Install: sudo apt install cmake ninja-build clang lld; CMake and Ninja also come with "
            "pip install 'iree-gauntlet[source]'",
        )
    version_lines = run_tool([cxx, "--version"], timeout=_ASK_SECONDS).stdout.splitlines()
    compiler = version_lines[0] if version_lines else cxx
    launcher = next(filter(None, (shutil.which(name, path=search_path) for name in _LAUNCHERS)), "")
    lld = "clang" in compiler and shutil.which("ld.lld", path=search_path) is not None
    return BuildTools(tools["cmake"], tools["ninja"], cc, cxx, lld, launcher, compiler)


def _find_compiler_by_variable(name: str, environ: Mapping[str, str], missing: list[str]) -> str | None:
    """Return the path of the compiler that a variable names, or None; append a nonexistent compiler to `missing`."""
    program = environ.get(name, "")
    path = shutil.which(program, path=environ.get("PATH", "")) if program else None
    if program and path is None:
        missing.append(f"${name}, which is {program!r} and not a program on the PATH")
    return path


def _find_recent_tool(name: str, search_path: str, missing: list[str]) -> str:
    """Return the path of a recent enough tool; if there is none, append the requirement to `missing`."""
    min_version, old_version_note = _MIN_VERSIONS[name], ""
    for folder in (search_path, sysconfig.get_path("scripts")):
        path = shutil.which(name, path=folder)
        if path is None:
            continue
        version = _VERSION.search(run_tool([path, "--version"], timeout=_ASK_SECONDS).stdout)
        if version and Version(version[1]) >= min_version:
            return path
        old_version_note = f" ({path} is {version[1] if version else 'of unknown version'})"
    missing.append(f"{name} {min_version} or newer{old_version_note}")
    return ""


@dataclass(frozen=True, slots=True)
class BuildFolder:
    """A CMake build directory; the caller holds its lock."""

    title: str
    source: Path
    folder: Path
    log: Path
    tools: BuildTools
    lock_fd: int
    news: Callable[[str], None]

    def configure(self, options: Sequence[str]) -> None:
        """Run CMake, unless the build is already configured with the same options; errors as in `_run`."""
        tools = self.tools
        links = max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _BYTES_PER_LINK)
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
        stamp = self.folder / _CONFIGURE_STAMP
        try:
            previous_argv = json.loads(stamp.read_bytes())
        except (OSError, ValueError):
            previous_argv = None
        if previous_argv == argv and (self.folder / "build.ninja").is_file():
            return
        if previous_argv is not None and previous_argv[3:7] != argv[3:7]:
            self.news("the folder of this build has been moved: starting again")
            shutil.rmtree(self.folder)
        stamp.unlink(missing_ok=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.news("configuring with CMake")
        match = _UNUSED_OPTIONS.search(self._run(argv, "cannot configure"))
        names = match[1].split() if match else []
        if unused_options := [name for name in names if any(option.startswith(f"-D{name}") for option in options)]:
            self.news(f"CMake reports that the project has no option {', '.join(unused_options)}: check the spelling")
        write_atomic(stamp, json.dumps(argv))

    def build(self, targets: Sequence[str], seconds_before: float) -> bool:
        """Build targets that are not up to date; return whether there was anything to build; errors as in `_run`.

        `seconds_before` is the time of the last build from nothing; 0 if unknown.
        """
        start_time = last_report = time.monotonic()
        has_built = False

        def follow(line: str) -> None:
            """Report Ninja's progress at intervals, with an estimate of the remaining time."""
            nonlocal last_report, has_built
            status = _NINJA_STATUS.match(line)
            now = time.monotonic()
            has_built = has_built or status is not None
            if status is None or now - last_report < _NEWS_SECONDS:
                return
            last_report, finished, total = now, int(status[1]), int(status[2])
            remaining_seconds = (now - start_time) * (total - finished) / max(finished, 1)
            if seconds_before and finished * 10 < total:
                # The first files allow no estimate, so the time of the previous build is used.
                remaining_seconds = max(0.0, seconds_before - (now - start_time))
            self.news(f"built {finished:,} of {total:,} files, about {format_duration(remaining_seconds)} left")

        self._run([self.tools.ninja, "-C", str(self.folder), *targets], "cannot build", follow)
        return has_built

    def filter_known_targets(self, targets: Sequence[str]) -> list[str]:
        """Return the given targets that the configured build has."""
        # Build `build.ninja` first: until CMake rewrites it, Ninja has the targets of the previously built commit.
        self._run([self.tools.ninja, "-C", str(self.folder), "build.ninja"], "cannot configure")
        query = [self.tools.ninja, "-C", str(self.folder), "-t", "query"]
        return [name for name in targets if run_tool([*query, name], timeout=_QUERY_SECONDS).exit_code == 0]

    def require_space(self, *, runtime_only: bool) -> None:
        """Raise a GauntletError if the disk has too little space for a build from nothing."""
        if (self.folder / "build.ninja").is_file():
            return
        builds_llvm = not runtime_only and (self.source / "third_party/llvm-project/llvm/CMakeLists.txt").is_file()
        required_bytes = _LLVM_BUILD_BYTES if builds_llvm else _RUNTIME_BUILD_BYTES
        folder = next(path for path in self.folder.parents if path.exists())
        if (free := shutil.disk_usage(folder).free) < required_bytes:
            raise GauntletError(
                f"a build needs about {format_bytes(required_bytes)}, but {folder} has {format_bytes(free)} left",
                f"Free disk space (toolchain.remove), or name another folder with ${TOOLCHAINS_VARIABLE}.",
            )

    def _run(self, argv: Sequence[str], action: str, follow: Callable[[str], None] = lambda _: None) -> str:
        """Run a program and return its output; raise a GauntletError for a full disk, else a ToolchainError."""
        start = self.log.stat().st_size if self.log.exists() else 0
        environment = os.environ | {"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"}
        try:
            code = run_logged(argv, self.log, environment=environment, inherited_fds=(self.lock_fd,), follow=follow)
        except OSError as error:
            raise ToolchainError(f"{argv[0]} cannot be started: {error}", "Reinstall it.") from error
        with self.log.open("rb") as file:
            file.seek(start)
            output = file.read().decode("utf-8", "replace")
        if code == 0:
            return output
        if any(text in output for text in _DISK_FULL_MESSAGES):
            # The commit is not at fault, so a search over several commits must stop: not a ToolchainError.
            raise GauntletError(f"{action} {self.title}: disk full", f"Free space, and run again. Log: {self.log}")
        exit_reason = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        summary = find_first_error(output).removeprefix(f"{self.source}/") or exit_reason
        raise ToolchainError(f"{action} {self.title}: {summary}", f"Log: {self.log}\n  To repeat: {shlex.join(argv)}")


def find_first_error(output: str) -> str:
    """Return the first error of CMake, a compiler or a linker, with file and line if it has them."""
    lines = output.splitlines()
    failure_index = next((index for index, line in enumerate(lines) if _NINJA_FAILURE.match(line)), None)
    for index, line in enumerate(lines if failure_index is None else ()):
        # CMake may also fail within a build that reconfigures itself; Ninja's message about that comes later.
        if match := _CMAKE_ERROR.match(line):
            text = match[3] or next((following.strip() for following in lines[index + 1 :] if following.strip()), "")
            return f"{match[1]}:{match[2]}: {text}" if match[1] else text
    for pattern in (_COMPILE_ERROR, _LINK_ERROR):
        for line in lines[failure_index or 0 :]:
            if match := pattern.match(line):
                return f"{match[1]}:{match[2]}: {match[4]}" if match.lastindex else match[0].strip()
    return next((line for line in lines if "error" in line.lower()), "")


class UsageRegistry(Protocol):
    """The folders of a toolchain cache that living processes use."""

    def use(self, path: Path) -> None:
        """Register that this process uses a folder; call this before looking for the folder."""

    def block_new_leases(self) -> AbstractContextManager[None]:
        """Keep all processes from registering the use of a folder."""

    def list_used_paths(self) -> set[str]:
        """Return the used folders, relative to the toolchain folder."""


@dataclass(frozen=True, slots=True)
class Build(CompleteFolder):
    """A finished build."""

    seal_name = _SEAL_FILE

    source: str
    commit: str
    modified: bool
    options: tuple[str, ...]
    compiler: str
    parts: tuple[str, ...]
    seconds: float

    @property
    def of_tree(self) -> bool:
        """True if the build is of a work tree, not of a commit."""
        return self.label.startswith(_TREE_PREFIX)

    @property
    def title(self) -> str:
        """The build for people: `abc123def456 of /home/me/iree, modified`."""
        return f"{self.commit[:12]} of {self.source}{', modified' if self.modified else ''}"


@dataclass(frozen=True, slots=True)
class _WorkFolder:
    """The folder in which a checkout is built with some options."""

    folder: Path
    checkout: Checkout
    options: tuple[str, ...]
    tools: BuildTools
    key: str

    def make_label(self, commit: str, parts: Iterable[str]) -> str:
        """Return the label of the finished build of a commit."""
        return f"{commit[:12]}-{self.key}-{''.join(sorted(part[0] for part in parts))}"


@dataclass(frozen=True, slots=True)
class SourceBuilds:
    """The source builds of a folder.

    Attributes:
        uses: the usage records of the parent folder, the toolchain folder.
        mark_used: registers the use of a build in any folder.
        legacy_folders: folders of projects' caches, where older versions made builds. Finished builds there are used,
            but none is added; work folders next to them are reused.
    """

    folder: Path
    options: tuple[str, ...]
    environ: Mapping[str, str]
    _: KW_ONLY
    offline: bool
    uses: UsageRegistry
    mark_used: Callable[[Path], None]
    news: Callable[[str], None]
    legacy_folders: tuple[Path, ...] = ()

    def provide(self, choice: Choice, parts: frozenset[str]) -> Build:
        """Return the build of a commit, or of the current work tree, with the required parts; build it if necessary.

        Raises:
            ToolchainError: the checkout or commit does not exist, a build tool is missing, the build fails, or a build
                is needed but this is offline.
        """
        checkout = Checkout.open(choice.folder, self.environ.get("PATH", ""))
        commit = checkout.resolve_commit(choice.ref or "HEAD")
        try:
            tools = find_build_tools(self.environ)
        except ToolchainError:
            # An existing build can be used even without build tools, or without the compiler that built it.
            if choice.ref and (build := self._find_by_commit(commit, parts)):
                return build
            raise
        full_work = self._make_work(checkout, tools, tree=not choice.ref, runtime_only=False)
        runtime_work = self._make_work(checkout, tools, tree=not choice.ref, runtime_only=True)
        for work in (full_work, runtime_work) if parts == {RUNTIME} else (full_work,):
            if (choice.ref or self.offline) and (build := self._find_finished(work, choice, commit, parts)):
                if not choice.ref:
                    self.news(f"{choice.text}: using its last build, {build.title}; the work tree is not checked")
                return build
        if self.offline:
            message = f"{choice.text} is not built: {self.folder} has no build of {commit[:12]} with these options"
            raise ToolchainError(message, f"Build it: gauntlet toolchain.build {choice.text}")
        work = runtime_work if parts == {RUNTIME} else full_work
        lock = work.folder.with_name(f".{work.folder.name}.lock")
        with convert_file_errors(self.folder):
            lock.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(lock, self._make_wait_reporter(work.folder.name)) as lock_fd:
                # Another process may have built it while this one waited for the lock.
                if choice.ref and (build := self._find_finished(work, choice, commit, parts)):
                    return build
                return self._build(work, choice, commit, parts, lock_fd)

    def all(self) -> list[tuple[Path, Build | None, str]]:
        """List all finished builds: folder, build or None, and the reason if it is invalid."""
        return [row for folder in self._folders for row in Build.list_folders(folder)]

    def work_folders(self) -> list[Path]:
        """List the build directories."""
        parents = [folder.with_name("work") for folder in self._folders]
        return sorted(path for parent in parents if parent.is_dir() for path in parent.iterdir() if path.is_dir())

    @property
    def _folders(self) -> tuple[Path, ...]:
        return (self.folder, *self.legacy_folders)

    def remove(self, path: Path) -> None:
        """Delete a finished build; the caller has made sure that no process uses it."""
        with convert_file_errors(path):
            discard_folder(path)

    def remove_work(self, path: Path) -> None:
        """Delete a build directory and its worktrees, unless a process builds there."""
        with convert_file_errors(path), ExitStack() as stack:
            lock_fd = try_file_lock(path.with_name(f".{path.name}.lock"))
            if lock_fd is None:
                raise ToolchainError(f"a running process builds in {path}", "Remove it when the process has ended.")
            stack.callback(os.close, lock_fd)
            source = json.loads((path / "source.json").read_bytes()) if (path / "source.json").is_file() else ""
            tree = path / "tree"
            # Git itself prunes the worktrees of a deleted or invalid checkout.
            with suppress(ToolchainError):
                if tree.exists() and source:
                    Checkout.open(Path(source), self.environ.get("PATH", "")).remove_worktree(tree)
            shutil.rmtree(path)

    def _make_work(self, checkout: Checkout, tools: BuildTools, *, tree: bool, runtime_only: bool) -> _WorkFolder:
        options = (*self.options, *([_NO_COMPILER] if runtime_only else []))
        key = tools.make_settings_key(options)[:8]
        checkout_key = compute_identity([("checkout", str(checkout.folder.resolve())), ("tree", str(tree))])[:8]
        name = f"{checkout.folder.name}-{checkout_key}-{key}"
        candidates = [folder.with_name("work") / name for folder in self._folders]
        # An existing directory is reused in its place, because CMake's folders cannot be moved.
        folder = next((path for path in candidates if path.is_dir()), candidates[0])
        return _WorkFolder(folder, checkout, options, tools, key)

    def _find_by_commit(self, commit: str, parts: frozenset[str]) -> Build | None:
        """Find a finished build of a commit with these options, made by any C++ compiler."""
        for path, build, _ in self.all():
            if build and build.commit == commit and build.options == self.options and parts <= set(build.parts):
                self.mark_used(path)
                return Build.inspect(path)[0]
        return None

    def _find_finished(self, work: _WorkFolder, choice: Choice, commit: str, parts: frozenset[str]) -> Build | None:
        """Find the finished build of a commit, or the last one of a work tree; None if it lacks a required part."""
        for path in self._list_paths(work, choice, commit):
            self.mark_used(path)
            build, _ = Build.inspect(path)
            if build and parts <= set(build.parts):
                build.update_last_use()
                return build
        return None

    def _list_paths(self, work: _WorkFolder, choice: Choice, commit: str) -> list[Path]:
        """List the candidate paths of a finished build; paths with the most parts come first."""
        if choice.ref:
            pattern = f"{work.make_label(commit, ())}*"
            paths = [path for folder in self._folders for path in folder.glob(pattern)]
            return sorted(paths, key=lambda path: -len(path.name))
        try:
            label = str(json.loads((work.folder / _LATEST_FILE).read_bytes()))
            return [folder / label for folder in self._folders]
        except (OSError, ValueError):
            return []

    def _build(self, work: _WorkFolder, choice: Choice, commit: str, parts: frozenset[str], lock_fd: int) -> Build:
        runtime_only = _NO_COMPILER in work.options
        start_time = time.monotonic()
        tree = work.checkout.folder
        work.checkout.require_submodules(commit, runtime_only=runtime_only)
        for folder in (work.folder, self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomic(work.folder / "source.json", json.dumps(str(work.checkout.folder)))

        short_text = _FULL_HASH.sub(r"\1", choice.text)

        def news(text: str) -> None:
            self.news(f"{short_text}: {text}")

        title = f"{tree} at {commit[:12]}" if choice.ref else str(tree)
        builder = BuildFolder(title, tree, work.folder / "build", work.folder / "log.txt", work.tools, lock_fd, news)
        builder.require_space(runtime_only=runtime_only)
        if choice.ref:
            tree = work.folder / "tree"
            news(f"checking out {commit[:12]} in {tree}")
            work.checkout.create_worktree(commit, tree, runtime_only=runtime_only)
            builder = replace(builder, source=tree)
        options = [*work.options, "-DIREE_BUILD_PYTHON_BINDINGS=OFF"]
        # The new build also gets the parts of earlier builds. These are not marked as used, so that they can be
        # deleted when they are replaced.
        old_builds = [build for path in self._list_paths(work, choice, commit) if (build := Build.inspect(path)[0])]
        required_parts = parts.union(*(build.parts for build in old_builds))
        if IMPORTER in required_parts:
            python = self._provide_python(work.folder / "python", tree, lock_fd, news)
            options[-1:] = ["-DIREE_BUILD_PYTHON_BINDINGS=ON", f"-DPython3_EXECUTABLE={python}"]
        builder.configure(options)
        # The time of the longest build with these options, which was probably a build from nothing.
        previous_seconds = max(
            (build.seconds for _, build, _ in self.all() if build and work.key in build.label), default=0.0
        )
        has_built = builder.build(_choose_targets(builder, required_parts), previous_seconds)
        modified = not choice.ref and work.checkout.is_modified()
        if not has_built and (build := self._find_finished(work, choice, commit, required_parts)):
            return replace(build, commit=commit, modified=modified)
        document: dict[str, Any] = {
            "source": str(work.checkout.folder),
            "commit": commit,
            "modified": modified,
            "options": work.options,
            "compiler": work.tools.compiler,
            "parts": sorted(required_parts),
            "seconds": round(time.monotonic() - start_time, 1),
        }
        prefix = work.make_label(commit, ()) if choice.ref else f"{_TREE_PREFIX}{work.folder.name}-"
        label = work.make_label(commit, required_parts) if choice.ref else f"{prefix}{_hash_content(builder.folder)}"
        with file_lock(self.folder / f".{label}.lock", self._make_wait_reporter(label)):
            # The build may exist: a commit may be built from two checkouts, and a rebuild may give the same content.
            if is_new := Build.inspect(self.folder / label)[0] is None:
                self._copy_build(builder.folder, self.folder / label, document)
        if not choice.ref:
            write_atomic(work.folder / _LATEST_FILE, json.dumps(label))
        self._remove_replaced_builds(prefix, label)
        build, reason = Build.inspect(self.folder / label)
        if build is None:
            raise ToolchainError(f"{self.folder / label} {reason}, although it was just built", "Check the disk.")
        news(f"built in {build.seconds:.0f} s" if is_new else "up to date: no program or library has changed")
        return build if is_new else replace(build, commit=commit, modified=modified)

    def _copy_build(self, build: Path, path: Path, document: Mapping[str, Any]) -> None:
        """Copy the files that are needed to run a build out of the build directory."""
        self.mark_used(path)
        files, real_build = list_shipped_files(build), build.resolve()
        with replace_folder(path) as new_folder:
            for file in files:
                (new_folder / file).parent.mkdir(parents=True, exist_ok=True)
                target = (build / file).resolve()
                inner_path = target.relative_to(real_build).as_posix() if target.is_relative_to(real_build) else file
                if inner_path != file and inner_path in files:
                    # Keep links between the files: the bindings link to the compiler's library, which is large.
                    (new_folder / file).symlink_to(os.path.relpath(new_folder / inner_path, (new_folder / file).parent))
                else:
                    shutil.copy2(target, new_folder / file)
            seal(new_folder, _SEAL_FILE, {"label": path.name, **document})

    def _remove_replaced_builds(self, prefix: str, label: str) -> None:
        """Delete unused builds that a new build replaces: of its work tree, or of its commit with fewer parts."""
        root = self.folder.parent
        with self.uses.block_new_leases():
            used_paths = self.uses.list_used_paths()
            for path in self.folder.glob(f"{prefix}*"):
                if path.name != label and path.relative_to(root).as_posix() not in used_paths:
                    discard_folder(path)

    def _provide_python(self, folder: Path, source: Path, lock_fd: int, news: Callable[[str], None]) -> Path:
        """Return a Python to build IREE's bindings for; it has the packages that bindings and importer need."""
        python = folder / "bin" / "python"
        if not os.access(python, os.X_OK):
            news(f"installing what the Python bindings need into {folder}")
            with replace_folder(folder) as venv:
                installer = Installer()
                installer.make_environment(venv, lock_fd, news)
                requirements_file = source / _REQUIREMENTS
                requirements = ("-r", str(requirements_file)) if requirements_file.is_file() else ()
                installer.install(venv / "bin" / "python", (*requirements, "numpy", "onnx"), Sources(), lock_fd, news)
        return python

    def _make_wait_reporter(self, name: str) -> Callable[[float], None]:
        return lambda seconds: self.news(f"waiting for another process that builds in {name} ({seconds:.0f} s so far)")


def _choose_targets(build: BuildFolder, required_parts: frozenset[str]) -> list[str]:
    """Return Ninja's targets for some parts."""
    optional_targets = build.filter_known_targets(_OPTIONAL_TARGETS) if RUNTIME in required_parts else []
    for name in _OPTIONAL_TARGETS:
        if name not in optional_targets:
            # A previous commit may have left one here.
            (build.folder / "tools" / name).unlink(missing_ok=True)
    return [target for part in _TARGETS if part in required_parts for target in _TARGETS[part]] + optional_targets


def _hash_content(build: Path) -> str:
    """Return a digest (8 digits) of the content of programs and libraries, without their times."""

    def read_hashes() -> Iterator[tuple[str, str]]:
        for name in list_shipped_files(build):
            with (build / name).open("rb") as file:
                yield name, hashlib.file_digest(file, "sha256").hexdigest()

    return compute_identity(read_hashes())[:8]
