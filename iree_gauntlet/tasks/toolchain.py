"""The `toolchain` tasks: install, list, show, remove."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.publishing import human_bytes
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import ExitCode, ToolchainError, UsageError
from iree_gauntlet.requests import ToolchainRequest, read
from iree_gauntlet.settings import cache_folder, project_folder
from iree_gauntlet.tasks.cache_place import age_text, asked_format, print_table
from iree_gauntlet.toolchains.choice import ChoiceKind, parse_choice
from iree_gauntlet.toolchains.find import environment_for, find_toolchain
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.toolchain import UNKNOWN_VERSION
from iree_gauntlet.toolchains.toolchain_place import chosen, toolchain_place

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.toolchains.choice import Choice
    from iree_gauntlet.toolchains.environments import Environment
    from iree_gauntlet.toolchains.find import Place
    from iree_gauntlet.toolchains.toolchain import Toolchain

__all__ = ["install", "list_toolchains", "remove", "show"]

_INSTALLABLE = (ChoiceKind.RELEASE, ChoiceKind.RANGE, ChoiceKind.NIGHTLY, ChoiceKind.WHEELS)


def install(options: Mapping[str, Any]) -> ExitCode:
    """Installs releases into the cache, each into an environment of its own.

    Raises:
        UsageError: a name means nothing that can be installed.
        ToolchainError: one cannot be had; those before it stay.
    """
    choices = [_installable(text) for text in _names(options, "install")]
    place, _leases = _open(options, offline=bool(options["offline"]))
    for choice in choices:
        found = environment_for(choice, place)
        sys.stdout.write(f"{_title(found)}: {found.path} ({human_bytes(found.bytes)})\n")
        sys.stdout.flush()
    return ExitCode.OK


def list_toolchains(options: Mapping[str, Any]) -> ExitCode:
    """Prints what is installed here, and every environment of the cache with its size and last use."""
    wanted = asked_format(options)
    place, _leases = _open(options, offline=True)
    here: Toolchain | None = None
    missing: ToolchainError | None = None
    try:
        here = find_installed()
    except ToolchainError as error:
        missing = error
    rows = place.environments.all()
    if wanted == "json":
        document = {
            "installed": asdict(here) if here else None,
            "environments": [
                {"path": str(path), "problem": why} | (_listed(found) if found else {}) for path, found, why in rows
            ],
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return ExitCode.OK
    if here is not None:
        sys.stdout.write(f"installed here: {here.compiler_release} ({here.source.partition(': ')[2]})\n")
    else:
        sys.stdout.write(f"installed here: none: {missing}\n")
    now = time.time()
    table = [("VERSION", "SIZE", "LAST USE", "PATH")]
    table += [
        (_title(found), human_bytes(found.bytes), age_text(now - found.last_use), str(path))
        if found is not None
        else (path.name, "", "", f"{path} {why}: it is made again when it is needed")
        for path, found, why in rows
    ]
    if rows:
        print_table(table)
    else:
        sys.stdout.write(f"none in {place.environments.folder}; toolchain.install VERSION installs one\n")
    return ExitCode.OK


def show(options: Mapping[str, Any]) -> ExitCode:
    """Prints what `--iree` would use; installs nothing.

    Raises:
        ToolchainError: it is not there.
        UsageError: the value names no IREE.
    """
    wanted = asked_format(options)
    compiler, runtime = chosen(read(ToolchainRequest, options), os.environ)
    place, _leases = _open(options, offline=True)
    found = find_toolchain(compiler, runtime, place)
    if wanted == "json":
        sys.stdout.write(json.dumps(asdict(found), indent=2) + "\n")
        return ExitCode.OK
    rows = (
        ("source", found.source),
        ("compiler", _version_text(found.compiler_release, found.compiler_version, found.compiler_commit)),
        ("  identity", found.identity),
        ("  iree-compile", found.compile),
        ("  iree-opt", found.ir_tool or "none"),
        ("runtime", _version_text(found.runtime_release, found.runtime_version, found.runtime_commit)),
        ("  identity", found.runtime_identity),
        ("  iree-run-module", found.run_module),
        ("  iree-benchmark-module", found.benchmark_module),
        ("ONNX importer", f"onnx {found.onnx_version} in {found.python}" if found.has_onnx_importer else "none"),
    )
    for name, text in rows:
        sys.stdout.write(f"{name + ':':<25} {text}\n")
    if found.compiler_version != found.runtime_version != UNKNOWN_VERSION:
        sys.stdout.write("note: compiler and runtime differ: modules may not load\n")
    return ExitCode.OK


def remove(options: Mapping[str, Any]) -> ExitCode:
    """Deletes environments of the cache, but none that a running process uses.

    Raises:
        UsageError: there is no such environment.
        ToolchainError: one is in use, or cannot be deleted.
    """
    names = _names(options, "remove")
    place, leases = _open(options, offline=True)
    root = cache_folder(options["cache_dir"])
    chosen_paths = [_removable(name, place) for name in names]
    for path, label, size in chosen_paths:
        relative = path.relative_to(root).as_posix()
        with leases.collecting():
            if relative in leases.in_use():
                raise ToolchainError(f"{path} is in use by a running process", "Remove it when that has ended.")
            place.environments.remove(path, label)
        sys.stdout.write(f"removed {label} ({human_bytes(size)})\n")
    return ExitCode.OK


def _open(options: Mapping[str, Any], *, offline: bool) -> tuple[Place, Leases]:
    """The place, and the leases that must live as long as what is found in it is used."""
    root = cache_folder(options["cache_dir"])
    leases = Leases(root)
    hashes = VerifiedHashes(root / "verified")
    configuration = read_configuration(project_folder(), os.environ)
    return toolchain_place(root, configuration, leases.use, hashes.sha256, find_installed, offline=offline), leases


def _names(options: Mapping[str, Any], task: str) -> list[str]:
    text = str(options["version"] or "").strip()
    # A folder's name may have spaces.
    names = [text] if text.startswith("wheels:") else text.split()
    if not names:
        raise UsageError(f"toolchain.{task} needs to know which", f"Such as toolchain.{task} 3.12.0.")
    return names


def _installable(text: str) -> Choice:
    choice = parse_choice(text, "toolchain.install")
    if choice.kind not in _INSTALLABLE:
        raise UsageError(
            f"toolchain.install {text}: that is not installed by this toolkit, but used where it is",
            f"Use it with --iree {text}. To install, name a release, a range, a nightly, or wheels:DIR.",
        )
    return choice


def _removable(name: str, place: Place) -> tuple[Path, str, int]:
    """Folder, label and bytes of an environment that is named by its version, its label or its folder's name."""
    environments = place.environments
    there = environments.all()
    wanted = {name, environments.path_of(name).name}
    if name[:1].isdigit():
        wanted.add(environments.path_of(str(parse_choice(name, "toolchain.remove").version)).name)
    for path, found, _ in there:
        if path.name in wanted:
            return path, found.label if found else path.name, found.bytes if found else 0
    have = ", ".join(found.label if found else path.name for path, found, _ in there) or "none"
    raise UsageError(f"toolchain.remove {name}: there is no such environment", f"There are: {have}.")


def _title(found: Environment) -> str:
    return found.label if found.label in (found.compiler, found.runtime) else f"{found.label} ({found.compiler or '-'})"


def _listed(found: Environment) -> dict[str, Any]:
    return {
        "label": found.label,
        "compiler": found.compiler,
        "runtime": found.runtime,
        "bytes": found.bytes,
        "installer": found.installer,
        "last_use": found.last_use,
    }


def _version_text(release: str, version: str, commit: str) -> str:
    says = "" if version == release else f" ({version})"
    return f"{release}{says}{f' @ {commit}' if commit else ', commit unknown'}"
