"""The `toolchain` tasks: install, build, list, show, remove."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.cache_folders import find_cache_folder, find_toolchains_folder, make_cache_folder
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import ExitCode, ToolchainError, UsageError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.reports.output import print_table
from iree_gauntlet.settings import Configuration, find_project_folder, is_cmake_option
from iree_gauntlet.toolchains.choice import ChoiceKind, parse_choice
from iree_gauntlet.toolchains.find import ToolchainPlace, find_requested, make_toolchain_place, provide_environment
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.source_builds import COMPILER, IMPORTER, RUNTIME, Build
from iree_gauntlet.toolchains.toolchain import UNKNOWN_VERSION, Part, Toolchain
from iree_gauntlet.upkeep.cache_list import format_age

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.toolchains.environments import Environment
    from iree_gauntlet.upkeep.upkeep_requests import BuildRequest


_LEAST_OF_COMMIT = 7
_INSTALLABLE = (ChoiceKind.RELEASE, ChoiceKind.RANGE, ChoiceKind.NIGHTLY, ChoiceKind.COMMIT, ChoiceKind.WHEELS)


def install(versions: Sequence[str], cache_dir: str, *, offline: bool) -> ExitCode:
    """Installs releases into the cache, each into an environment of its own; where one fails, those before it stay."""
    choices = [parse_choice(text, "toolchain.install") for text in _require_some(versions, "install")]
    for text, choice in zip(versions, choices, strict=True):
        if choice.kind not in _INSTALLABLE:
            raise UsageError(
                f"toolchain.install {text}: that is not installed by this toolkit, but used where it is",
                f"Use it with --iree {text}. To install, name a release, a range, a nightly, commit:SHA or wheels:DIR.",
            )
    place = open_store(cache_dir, offline=offline)
    for choice in choices:
        found = provide_environment(choice, place)
        sys.stdout.write(f"{_make_title(found)}: {found.path} ({byte_size(found.bytes)})\n")
        sys.stdout.flush()
    return ExitCode.OK


def build(sources: Sequence[str], asked: BuildRequest) -> ExitCode:
    """Builds checkouts of IREE, or commits of them, into the cache; where one does not build, those before it stay."""
    choices = []
    for text in _require_some(sources, "build"):
        choice = parse_choice(text if text.startswith("source:") else f"source:{text}", "toolchain.build")
        if choice.ref and asked.commit:
            raise UsageError(f"toolchain.build {text} --commit {asked.commit}: two commits", "Name one of them.")
        if asked.commit:
            choice = replace(choice, text=f"{choice.text}@{asked.commit}", ref=asked.commit)
        choices.append(choice)
    options = [text if text.startswith("-D") else f"-D{text}" for text in asked.option]
    if asked.runtime_only and asked.bindings:
        raise UsageError("--runtime-only and --bindings exclude each other", "The bindings are the compiler's.")
    for text in options:
        if not is_cmake_option(text):
            raise UsageError(
                f"--option {text}: no option of CMake's", "Such as --option -DIREE_TARGET_BACKEND_CUDA=ON."
            )
    place = open_store(asked.cache_dir, offline=False)
    builds = replace(place.builds, options=(*place.builds.options, *options))
    parts = frozenset((RUNTIME, *(() if asked.runtime_only else (COMPILER,)), *((IMPORTER,) if asked.bindings else ())))
    for choice in choices:
        found = builds.ready(choice, parts)
        sys.stdout.write(f"{choice.text}: {found.path} ({byte_size(found.bytes)}, {', '.join(found.parts)})\n")
        # The settings' options are those of every command.
        named = f"build:{found.path}" if options else choice.text
        sys.stdout.write(f"  use it: --iree{'-runtime' if asked.runtime_only else ''} {shlex.quote(named)}\n")
        sys.stdout.flush()
    return ExitCode.OK


def list_toolchains(cache_dir: str, *, as_json: bool) -> ExitCode:
    """Prints what is installed here, and every environment of the cache with its size and last use."""
    place = open_store(cache_dir, offline=True)
    here: Toolchain | ToolchainError
    try:
        here = find_installed()
    except ToolchainError as error:
        here = error
    environments, builds = place.environments.all(), place.builds.all()
    work = [(path, _measure_folder(path)) for path in place.builds.work_folders()]
    if as_json:
        document = {
            "installed": _flatten(here) if isinstance(here, Toolchain) else None,
            "environments": list(map(_describe_folder, environments)),
            "builds": list(map(_describe_folder, builds)),
            "work": [{"path": str(path), "bytes": size} for path, size in work],
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return ExitCode.OK
    if isinstance(here, Toolchain):
        sys.stdout.write(f"installed here: {here.compiler.release} ({here.source.partition(': ')[2]})\n")
    else:
        sys.stdout.write(f"installed here: none: {here}\n")
    now = time.time()
    table = [("VERSION", "SIZE", "LAST USE", "PATH")]
    for path, found, why in (*environments, *builds):
        if found is not None:
            title = found.title if isinstance(found, Build) else _make_title(found)
            table.append((title, byte_size(found.bytes), format_age(now - found.last_use), str(path)))
        else:
            how = "made" if path.parent.name == place.environments.folder.name else "built"
            table.append((path.name, "", "", f"{path} {why}: it is {how} again when it is needed"))
    table += [("build folder", byte_size(size), "", str(path)) for path, size in work]
    if table[1:]:
        print_table(table)
    else:
        sys.stdout.write(f"none in {place.environments.folder}; toolchain.install VERSION installs one\n")
    return ExitCode.OK


def _describe_folder(row: tuple[Path, Environment | Build | None, str]) -> dict[str, object]:
    path, found, why = row
    return {"path": str(path), "problem": why} | ({**asdict(found), "path": str(path)} if found else {})


def show(request: ToolchainRequest, *, as_json: bool) -> ExitCode:
    """Prints what `--iree` would use; installs nothing."""
    configuration = read_configuration(find_project_folder(), os.environ)
    place = open_place(request.cache_dir, configuration, find_toolchains_folder(), offline=True)
    found = find_requested(request, os.environ, place)
    if as_json:
        sys.stdout.write(json.dumps(_flatten(found), indent=2) + "\n")
        return ExitCode.OK
    compiler, runtime = found.compiler, found.runtime
    rows = (
        ("source", found.source),
        ("compiler", format_version(compiler)),
        ("  identity", compiler.identity),
        ("  iree-compile", compiler.compile),
        ("  iree-opt", compiler.ir_tool or "none"),
        ("runtime", format_version(runtime)),
        ("  identity", runtime.identity),
        ("  iree-run-module", runtime.run_module),
        ("  iree-benchmark-module", runtime.benchmark_module),
        ("ONNX importer", f"onnx {compiler.onnx_version} in {compiler.python}" if compiler.onnx_version else "none"),
    )
    for name, text in rows:
        sys.stdout.write(f"{name + ':':<25} {text}\n")
    if found.why:
        sys.stdout.write(f"note: {found.why}\n")
    if compiler.version != runtime.version != UNKNOWN_VERSION:
        sys.stdout.write("note: compiler and runtime differ: modules may not load\n")
    return ExitCode.OK


def remove(versions: Sequence[str], cache_dir: str) -> ExitCode:
    """Deletes environments and builds of the cache, but none that a running process uses."""
    place = open_store(cache_dir, offline=True)
    chosen_paths = [_find_removable(name, place) for name in _require_some(versions, "remove")]
    for path, label, size in chosen_paths:
        if path in place.builds.work_folders():
            # Nobody runs what is in it: only who builds there is in the way.
            place.builds.remove_work(path)
        else:
            folder = path.parents[1]
            leases = Leases(folder)
            with leases.collecting():
                if path.relative_to(folder).as_posix() in leases.in_use():
                    raise ToolchainError(f"{path} is in use by a running process", "Remove it when that has ended.")
                if path.parent.name == place.builds.folder.name:
                    place.builds.remove(path)
                else:
                    place.environments.remove(path, label)
        sys.stdout.write(f"removed {label} ({byte_size(size)})\n")
    return ExitCode.OK


def open_store(cache_dir: str, *, offline: bool) -> ToolchainPlace:
    """Where toolchains are kept: for all projects, or in a cache that is named."""
    configuration = read_configuration(find_project_folder(), os.environ)
    folder = find_cache_folder(cache_dir) / "toolchains" if cache_dir else find_toolchains_folder()
    return open_place(cache_dir, configuration, folder, offline=offline)


def open_place(cache_dir: str, configuration: Configuration, folder: Path, *, offline: bool) -> ToolchainPlace:
    """Where toolchains are looked for; what is found there is in use for as long as this lives."""
    root = (find_cache_folder if offline else make_cache_folder)(cache_dir)
    hashes = VerifiedHashes(root / "verified")
    return make_toolchain_place(folder, root, configuration, Leases, hashes.sha256, offline=offline)


def _require_some(names: Sequence[str], task: str) -> Sequence[str]:
    if not any(map(str.strip, names)):
        raise UsageError(f"toolchain.{task} needs to know which", f"Such as toolchain.{task} 3.12.0.")
    return names


def _find_removable(name: str, place: ToolchainPlace) -> tuple[Path, str, int]:
    """Folder, label and bytes of what is named by its version, its label, its folder's name, or a build's commit."""
    environments = place.environments
    for path, build, _ in place.builds.all():
        if name == path.name or (build and len(name) >= _LEAST_OF_COMMIT and build.commit.startswith(name)):
            return path, path.name, build.bytes if build else 0
    for path in place.builds.work_folders():
        if name == path.name:
            return path, path.name, _measure_folder(path)
    there = environments.all()
    wanted = {name, environments.path_of(name).name}
    if name[:1].isdigit():
        wanted.add(environments.path_of(str(parse_choice(name, "toolchain.remove").version)).name)
    for path, found, _ in there:
        if path.name in wanted:
            return path, found.label if found else path.name, found.bytes if found else 0
    kept = [found.label if found else path.name for path, found, _ in there]
    kept += [path.name for path, _, _ in place.builds.all()] + [path.name for path in place.builds.work_folders()]
    have = ", ".join(kept) or "none"
    raise UsageError(f"toolchain.remove {name}: there is no such environment", f"There are: {have}.")


def _measure_folder(path: Path) -> int:
    """What its files hold together; those that vanish meanwhile do not count."""
    sizes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                sizes += Path(folder, name).lstat().st_size
    return sizes


def _make_title(found: Environment) -> str:
    return found.label if found.label in (found.compiler, found.runtime) else f"{found.label} ({found.compiler or '-'})"


def format_version(part: Part, digits: int | None = None) -> str:
    """Release, what it calls itself where that differs, and the commit, of which so many digits are shown."""
    says = "" if part.version == part.release else f" ({part.version})"
    return f"{part.release}{says}{f' @ {part.commit[:digits]}' if part.commit else ', commit unknown'}"


def _flatten(toolchain: Toolchain) -> dict[str, Any]:
    """For `--format json`."""
    compiler, runtime = toolchain.compiler, toolchain.runtime
    return {
        "source": toolchain.source,
        "python": compiler.python,
        "compile": compiler.compile,
        "run_module": runtime.run_module,
        "benchmark_module": runtime.benchmark_module,
        "import_onnx": compiler.import_onnx,
        "onnx_version": compiler.onnx_version,
        "compiler_version": compiler.version,
        "compiler_release": compiler.release,
        "compiler_commit": compiler.commit,
        "runtime_version": runtime.version,
        "runtime_release": runtime.release,
        "runtime_commit": runtime.commit,
        "identity": compiler.identity,
        "runtime_identity": runtime.identity,
        "ir_tool": compiler.ir_tool,
        "why": toolchain.why,
    }
