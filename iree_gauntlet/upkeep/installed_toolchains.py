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

from iree_gauntlet.artifacts.hashing import HashCache
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.cache_folders import find_cache_folder, find_toolchains_folder, make_cache_folder
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import ExitCode, ToolchainError, UsageError
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.reports.output import print_table
from iree_gauntlet.settings import Configuration, find_project_folder, is_cmake_option
from iree_gauntlet.toolchains.choice import ChoiceKind, parse_choice
from iree_gauntlet.toolchains.find import (
    ToolchainLocations,
    find_requested_toolchain,
    make_toolchain_locations,
    provide_environment,
)
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.source_builds import COMPILER, IMPORTER, RUNTIME, Build
from iree_gauntlet.toolchains.toolchain import UNKNOWN_VERSION, Part, Toolchain
from iree_gauntlet.upkeep.cache_list import format_age

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.toolchains.environments import Environment
    from iree_gauntlet.upkeep.upkeep_requests import BuildRequest


_MIN_COMMIT_CHARS = 7
_INSTALLABLE_KINDS = (ChoiceKind.RELEASE, ChoiceKind.RANGE, ChoiceKind.NIGHTLY, ChoiceKind.COMMIT, ChoiceKind.WHEELS)


def install(versions: Sequence[str], cache_dir: str, *, offline: bool) -> ExitCode:
    """Install releases into the cache, each into its own environment; if one fails, earlier environments stay."""
    choices = [parse_choice(text, "toolchain.install") for text in _require_some(versions, "install")]
    for text, choice in zip(versions, choices, strict=True):
        if choice.kind not in _INSTALLABLE_KINDS:
            raise UsageError(
                f"toolchain.install {text}: this toolkit does not install it, but uses it in place",
                f"Use it with --iree {text}. To install, name a release, a range, a nightly, commit:SHA or wheels:DIR.",
            )
    store = _open_store(cache_dir, offline=offline)
    for choice in choices:
        environment = provide_environment(choice, store)
        sys.stdout.write(f"{_make_title(environment)}: {environment.path} ({format_bytes(environment.bytes)})\n")
        sys.stdout.flush()
    return ExitCode.OK


def build(sources: Sequence[str], request: BuildRequest) -> ExitCode:
    """Build checkouts of IREE, or commits of them, into the cache; if one fails, earlier builds stay."""
    choices = []
    for text in _require_some(sources, "build"):
        choice = parse_choice(text if text.startswith("source:") else f"source:{text}", "toolchain.build")
        if choice.ref and request.commit:
            raise UsageError(f"toolchain.build {text} --commit {request.commit}: two commits", "Name one of them.")
        if request.commit:
            choice = replace(choice, text=f"{choice.text}@{request.commit}", ref=request.commit)
        choices.append(choice)
    options = [text if text.startswith("-D") else f"-D{text}" for text in request.option]
    if request.runtime_only and request.bindings:
        raise UsageError("--runtime-only and --bindings cannot be combined", "The bindings belong to the compiler.")
    for text in options:
        if not is_cmake_option(text):
            raise UsageError(
                f"--option {text}: not an option of CMake", "Such as --option -DIREE_TARGET_BACKEND_CUDA=ON."
            )
    store = _open_store(request.cache_dir, offline=False)
    builds = replace(store.builds, options=(*store.builds.options, *options))
    parts = frozenset(
        (RUNTIME, *(() if request.runtime_only else (COMPILER,)), *((IMPORTER,) if request.bindings else ()))
    )
    for choice in choices:
        result = builds.provide(choice, parts)
        sys.stdout.write(f"{choice.text}: {result.path} ({format_bytes(result.bytes)}, {', '.join(result.parts)})\n")
        # Later commands know options of the settings, but not this command's options: name the build by its path.
        choice_text = f"build:{result.path}" if options else choice.text
        sys.stdout.write(f"  use it: --iree{'-runtime' if request.runtime_only else ''} {shlex.quote(choice_text)}\n")
        sys.stdout.flush()
    return ExitCode.OK


def list_toolchains(cache_dir: str, *, as_json: bool) -> ExitCode:
    """Print the installed IREE, and every environment of the cache with its size and last use."""
    store = _open_store(cache_dir, offline=True)
    installed: Toolchain | ToolchainError
    try:
        installed = find_installed()
    except ToolchainError as error:
        installed = error
    environments, builds = store.environments.all(), store.builds.all()
    work_folders = [(path, _measure_folder(path)) for path in store.builds.work_folders()]
    if as_json:
        document = {
            "installed": _flatten(installed) if isinstance(installed, Toolchain) else None,
            "environments": list(map(_describe_folder, environments)),
            "builds": list(map(_describe_folder, builds)),
            "work": [{"path": str(path), "bytes": size} for path, size in work_folders],
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return ExitCode.OK
    if isinstance(installed, Toolchain):
        sys.stdout.write(f"installed here: {installed.compiler.release} ({installed.source.partition(': ')[2]})\n")
    else:
        sys.stdout.write(f"installed here: none: {installed}\n")
    current_time = time.time()
    rows = [("VERSION", "SIZE", "LAST USE", "PATH")]
    for path, folder, problem in (*environments, *builds):
        if folder is not None:
            title = folder.title if isinstance(folder, Build) else _make_title(folder)
            rows.append((title, format_bytes(folder.bytes), format_age(current_time - folder.last_use), str(path)))
        else:
            verb = "made" if path.parent.name == store.environments.folder.name else "built"
            rows.append((path.name, "", "", f"{path} {problem}: it is {verb} again when it is needed"))
    rows += [("build folder", format_bytes(size), "", str(path)) for path, size in work_folders]
    if rows[1:]:
        print_table(rows)
    else:
        sys.stdout.write(f"none in {store.environments.folder}; toolchain.install VERSION installs one\n")
    return ExitCode.OK


def _describe_folder(row: tuple[Path, Environment | Build | None, str]) -> dict[str, object]:
    path, folder, problem = row
    return {"path": str(path), "problem": problem} | ({**asdict(folder), "path": str(path)} if folder else {})


def show(request: ToolchainRequest, *, as_json: bool) -> ExitCode:
    """Print the toolchain that `--iree` would use; install nothing."""
    configuration = read_configuration(find_project_folder(), os.environ)
    store = open_toolchain_locations(request.cache_dir, configuration, find_toolchains_folder(), offline=True)
    toolchain = find_requested_toolchain(request, os.environ, store)
    if as_json:
        sys.stdout.write(json.dumps(_flatten(toolchain), indent=2) + "\n")
        return ExitCode.OK
    compiler, runtime = toolchain.compiler, toolchain.runtime
    rows = (
        ("source", toolchain.source),
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
    if toolchain.selection_reason:
        sys.stdout.write(f"note: {toolchain.selection_reason}\n")
    if compiler.version != runtime.version != UNKNOWN_VERSION:
        sys.stdout.write("note: compiler and runtime differ: modules may not load\n")
    return ExitCode.OK


def remove(versions: Sequence[str], cache_dir: str) -> ExitCode:
    """Delete environments and builds of the cache, except those that a running process uses."""
    store = _open_store(cache_dir, offline=True)
    chosen_paths = [_find_removable(name, store) for name in _require_some(versions, "remove")]
    for path, label, size in chosen_paths:
        if path in store.builds.work_folders():
            # Only a running build prevents the removal: no process uses the content of a work folder.
            store.builds.remove_work(path)
        else:
            folder = path.parents[1]
            leases = Leases(folder)
            with leases.block_new_leases():
                if path.relative_to(folder).as_posix() in leases.list_used_paths():
                    raise ToolchainError(
                        f"{path} is in use by a running process", "Remove it after that process has ended."
                    )
                if path.parent.name == store.builds.folder.name:
                    store.builds.remove(path)
                else:
                    store.environments.remove(path, label)
        sys.stdout.write(f"removed {label} ({format_bytes(size)})\n")
    return ExitCode.OK


def _open_store(cache_dir: str, *, offline: bool) -> ToolchainLocations:
    """Open the folder of toolchains: the folder of the given cache, or else the folder of all projects."""
    configuration = read_configuration(find_project_folder(), os.environ)
    folder = find_cache_folder(cache_dir) / "toolchains" if cache_dir else find_toolchains_folder()
    return open_toolchain_locations(cache_dir, configuration, folder, offline=offline)


def open_toolchain_locations(
    cache_dir: str, configuration: Configuration, folder: Path, *, offline: bool
) -> ToolchainLocations:
    """Open the places of toolchains; toolchains from it are in use as long as the result lives."""
    root = (find_cache_folder if offline else make_cache_folder)(cache_dir)
    hashes = HashCache(root / "verified")
    return make_toolchain_locations(folder, root, configuration, Leases, hashes.sha256, offline=offline)


def _require_some(names: Sequence[str], task: str) -> Sequence[str]:
    if not any(map(str.strip, names)):
        raise UsageError(f"toolchain.{task} needs a name", f"Such as toolchain.{task} 3.12.0.")
    return names


def _find_removable(name: str, store: ToolchainLocations) -> tuple[Path, str, int]:
    """Find the folder, label and bytes of a version, a label, a folder's name, or a build's commit."""
    environments = store.environments
    for path, build, _ in store.builds.all():
        if name == path.name or (build and len(name) >= _MIN_COMMIT_CHARS and build.commit.startswith(name)):
            return path, path.name, build.bytes if build else 0
    for path in store.builds.work_folders():
        if name == path.name:
            return path, path.name, _measure_folder(path)
    all_environments = environments.all()
    folder_names = {name, environments.make_path(name).name}
    if name[:1].isdigit() and not any(path.name in folder_names for path, *_ in all_environments):
        folder_names.add(environments.make_path(str(parse_choice(name, "toolchain.remove").version)).name)
    for path, environment, _ in all_environments:
        if path.name in folder_names:
            return path, environment.label if environment else path.name, environment.bytes if environment else 0
    labels = [environment.label if environment else path.name for path, environment, _ in all_environments]
    labels += [path.name for path, _, _ in store.builds.all()] + [path.name for path in store.builds.work_folders()]
    available = ", ".join(labels) or "none"
    raise UsageError(f"toolchain.remove {name}: no such environment", f"There are: {available}.")


def _measure_folder(path: Path) -> int:
    """Return the total size of a folder's files; files that vanish meanwhile do not count."""
    total_bytes = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total_bytes += Path(folder, name).lstat().st_size
    return total_bytes


def _make_title(environment: Environment) -> str:
    return (
        environment.label
        if environment.label in (environment.compiler, environment.runtime)
        else f"{environment.label} ({environment.compiler or 'the runtime only'})"
    )


def format_version(part: Part, digits: int | None = None) -> str:
    """Format the release, the reported version if it differs, and the first `digits` digits of the commit."""
    own_version = "" if part.version == part.release else f" ({part.version})"
    return f"{part.release}{own_version}{f' @ {part.commit[:digits]}' if part.commit else ', commit unknown'}"


def _flatten(toolchain: Toolchain) -> dict[str, Any]:
    """Make the document of `--format json`."""
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
        "why": toolchain.selection_reason,
    }
