"""What `doctor` finds: IREE, caches, settings, and whether the machine is fit to measure on."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import VerifiedHashes
from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import ExitCode, GauntletError, ToolchainError
from iree_gauntlet.measuring.machine.machine_state import CpuWatch, benchmark_warnings, machine_facts, machine_state
from iree_gauntlet.settings import Configuration, cache_folder, project_folder
from iree_gauntlet.toolchains.find import find_toolchain
from iree_gauntlet.toolchains.findings import Finding, diagnose
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.toolchain_place import chosen, toolchain_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.toolchains.toolchain import Toolchain


_WATCH_SECONDS = 0.2


def _configuration() -> Iterator[Finding]:
    """What `gauntlet.toml` says, or what is wrong with it."""
    try:
        found = read_configuration(project_folder(), os.environ)
    except GauntletError as error:
        yield Finding("configuration", "broken", error.what, error.hint)
        return
    files = ", ".join(map(str, found.files))
    yield Finding("configuration", "info", files or "no gauntlet.toml: no mirrors, no shared modules")
    for mirror in found.mirrors:
        last = "" if mirror.only else ", then itself"
        yield Finding("configuration", "info", f"{mirror.prefix}… from {', '.join(mirror.to)}{last}")
    if found.shared_modules:
        may = "read and written" if found.shared_modules.write else "read"
        yield Finding("configuration", "info", f"shared modules: {found.shared_modules.url} is {may}")


def _asked_toolchain(request: ToolchainRequest) -> Toolchain:
    """What `--iree` names; nothing is installed, and settings that cannot be read are a finding of their own."""
    root = cache_folder(request.cache_dir)
    compiler, runtime = chosen(request, os.environ)
    try:
        configuration = read_configuration(project_folder(), os.environ)
    except GauntletError:
        configuration = Configuration()
    hashes = VerifiedHashes(root / "verified")
    place = toolchain_place(root, configuration, Leases(root).use, hashes.sha256, find_installed, offline=True)
    return find_toolchain(compiler, runtime, place)


def doctor(request: ToolchainRequest, *, as_json: bool) -> ExitCode:
    """Prints what is here and what is missing; exits with ERROR where no suite could run at all."""
    try:
        toolchain = _asked_toolchain(request)
        findings = diagnose(toolchain, cache_folder(request.cache_dir))
        broken = False
    except ToolchainError as error:
        findings = diagnose(error, cache_folder(request.cache_dir))
        broken = True
    findings += _configuration()
    facts = machine_facts()
    memory = "unknown memory" if facts.memory_bytes is None else f"{facts.memory_bytes / (1 << 30):.1f} GiB"
    text = f"{facts.cpu}, {facts.cores} cores, {memory}, {facts.os}"
    findings.append(Finding("machine", "info", text))
    watch = CpuWatch()
    time.sleep(_WATCH_SECONDS)
    warnings = benchmark_warnings(machine_state(watch.shares()))
    findings += [Finding("benchmarking", "warn", warning) for warning in warnings]
    if not warnings:
        findings.append(Finding("benchmarking", "ok", "nothing here would spoil a benchmark"))
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    else:
        for finding in findings:
            sys.stdout.write(f"{finding.status:<8} {finding.area + ':':<16} {finding.text}\n")
            if finding.hint:
                sys.stdout.write(f"{'':<25} {finding.hint}\n")
    return ExitCode.ERROR if broken else ExitCode.OK
