"""Collect the findings of `doctor`: IREE, targets, caches, settings, and conditions for measurements."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal

from iree_gauntlet.cache_folders import TOOLCHAINS_VARIABLE, find_cache_folder, find_toolchains_folder
from iree_gauntlet.device_kinds import CPU, DEVICE_KINDS
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.engine.processes.boards import Board, BoardError
from iree_gauntlet.errors import ExitCode, GauntletError, ToolchainError
from iree_gauntlet.formatting import add_verdict_sign, format_bytes, pluralize
from iree_gauntlet.measuring.code.module_code import list_missing_packages
from iree_gauntlet.measuring.instructions.counters import CounterKind, explain_missing_hardware_counter, find_counter
from iree_gauntlet.measuring.machine.machine_state import (
    list_benchmark_warnings,
    measure_cpu_use,
    read_cpu_times,
    read_machine_facts,
    read_machine_state,
)
from iree_gauntlet.messages import write_text
from iree_gauntlet.reports.output import print_table
from iree_gauntlet.settings import Configuration, find_project_folder, find_runs_folder
from iree_gauntlet.targets import ARCHITECTURES, Target, split_board
from iree_gauntlet.toolchains.devices import (
    ask_host_cpu,
    describe_devices,
    find_device,
    list_compile_backends,
    list_device_uris,
    list_drivers,
    read_host_cpu,
)
from iree_gauntlet.toolchains.find import find_requested_toolchain
from iree_gauntlet.toolchains.source_builds import find_build_tools
from iree_gauntlet.toolchains.target_runtimes import explain_missing_runner, is_native
from iree_gauntlet.toolchains.toolchain import UNKNOWN_VERSION, Toolchain
from iree_gauntlet.upkeep.installed_toolchains import format_version, open_toolchain_locations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.device_kinds import DeviceKind
    from iree_gauntlet.journal_events import Device
    from iree_gauntlet.requests import ToolchainRequest


_MIN_FREE_DISK_BYTES = 5 * 2**30
# The packages that the toolkit uses, and their purposes.
_PACKAGE_PURPOSES = (
    ("invoke", "the tasks"),
    ("pooch", "fetching artifacts"),
    ("nox", "CI sessions; anything else works without it"),
    ("onnxruntime", "recording expected outputs, and suites of ONNX models"),
    ("jaxlib", "expected outputs of StableHLO; --reference-python may name another Python that has it"),
    ("tosa-converter-for-tflite", "importing TFLite"),
    ("ai-edge-litert", "expected outputs of TFLite"),
    ("iree-turbine", "programs of PyTorch, with torch; --reference-python may name another Python that has both"),
)
_OPTIONAL_PACKAGES = frozenset(
    {"nox", "onnxruntime", "jaxlib", "tosa-converter-for-tflite", "ai-edge-litert", "iree-turbine"}
)

Status = Literal["ok", "warn", "missing", "broken", "info"]
_CPU_SAMPLE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """The result of one check.

    Attributes:
        status: `ok`; `warn` for things that work but should be changed; `missing` for required things that are absent;
            `info` for optional or informative things.
    """

    area: str
    status: Status
    text: str
    hint: str = ""


def diagnose(toolchain: Toolchain | ToolchainError, cache_dir: Path) -> list[DoctorFinding]:
    """Check a run's requirements; `toolchain` is an IREE, or the error without one. The cache need not exist."""
    findings = [DoctorFinding("python", "ok", f"Python {platform.python_version()}: {sys.executable}")]
    if isinstance(toolchain, ToolchainError):
        findings.append(DoctorFinding("iree", "missing", toolchain.message, toolchain.hint))
    else:
        findings += _check_iree(toolchain)
    findings += [
        _check_counter(),
        _check_code_packages(),
        _check_source_builds(),
        *_check_architectures(),
        *_check_packages(),
        *_check_cache(cache_dir),
    ]
    return [*findings, *_check_runs(find_runs_folder()), _check_toolchains(find_toolchains_folder())]


def _check_iree(toolchain: Toolchain) -> Iterator[DoctorFinding]:
    compiler, runtime = toolchain.compiler, toolchain.runtime
    for noun, part in (("compiler", compiler), ("runtime", runtime)):
        yield DoctorFinding("iree", "ok", f"{noun} {format_version(part, digits=8)}")
    yield DoctorFinding("iree", "info", f"{toolchain.source}, identity {compiler.identity[:16]}")
    if toolchain.selection_reason:
        yield DoctorFinding("iree", "info", toolchain.selection_reason)
    if compiler.release != runtime.release != UNKNOWN_VERSION:
        message = f"the compiler is {compiler.release}, the runtime {runtime.release}: modules may not load"
        hint = (
            "use one release of both; if both were installed, another package's requirements may have replaced one: "
            f"{compiler.python or sys.executable} -m pip install iree-base-compiler=={compiler.release} "
            f"iree-base-runtime=={compiler.release}"
        )
        yield DoctorFinding("iree", "warn", message, hint)
    if compiler.onnx_version:
        yield DoctorFinding("iree", "ok", f"ONNX importer, with onnx {compiler.onnx_version}")
    elif not compiler.python:
        message = "no Python bindings in this build: .onnx programs cannot be imported; MLIR programs work"
        yield DoctorFinding("iree", "warn", message, "build it with -DIREE_BUILD_PYTHON_BINDINGS=ON")
    else:
        message = "the ONNX importer lacks the onnx package: .onnx programs cannot be compiled"
        hint = f"{compiler.python} -m pip install 'iree-base-compiler[onnx]=={compiler.release}'"
        yield DoctorFinding("iree", "missing", message, hint)
    checks: dict[str, Callable[[], DoctorFinding]] = {
        "host": lambda: DoctorFinding(
            "host", "info", f"`host` is {ask_host_cpu(toolchain)} to the compiler: {read_host_cpu().identity}"
        ),
        "drivers": lambda: DoctorFinding(
            "drivers",
            "info",
            f"drivers: {', '.join(list_drivers(toolchain))}; "
            f"devices: {', '.join(list_device_uris(toolchain)) or 'none'}",
        ),
        **{
            f"target {kind.family}": partial(_check_target, toolchain, kind)
            for kind in DEVICE_KINDS
            if kind.backend and kind.drivers
        },
    }
    for area, check in checks.items():
        try:
            yield check()
        except ToolchainError as problem:
            # Report a tool that fails to answer.
            yield DoctorFinding(area, "missing", problem.message, problem.hint)


def _check_counter() -> DoctorFinding:
    """Check the instruction counter, for --instructions and --metric instructions."""
    try:
        counter = find_counter()
    except ToolchainError as problem:
        return DoctorFinding("instructions", "info", f"{problem.message} (only instructions need it)", problem.hint)
    if counter.kind is CounterKind.HARDWARE:
        return DoctorFinding("instructions", "ok", f"counted by {counter.identity}")
    text = f"counted by {counter.identity}, of modules for {counter.cpu}"
    text += f"; the CPU's own counter: {explain_missing_hardware_counter()}"
    return DoctorFinding("instructions", "ok", text)


def _check_code_packages() -> DoctorFinding:
    """Check the packages that read the machine code of modules: registers, spills, instructions."""
    if missing_packages := list_missing_packages():
        text = (
            f"{', '.join(missing_packages)} not installed: the code of modules is not read (registers, spills, sizes)"
        )
        return DoctorFinding(
            "code", "info", text, "pip install 'iree-gauntlet[code]'; in a clone: pip install -e '.[code]'"
        )
    return DoctorFinding("code", "ok", "the code of modules is read by pyelftools, msgpack and capstone")


def _check_source_builds() -> DoctorFinding:
    """Check the tools that build IREE, for `--iree source:DIR`."""
    try:
        tools = find_build_tools(os.environ)
    except ToolchainError as problem:
        return DoctorFinding(
            "source builds", "info", f"{problem.message} (only --iree source:… needs it)", problem.hint
        )
    extras = ", ".join(filter(None, ("lld" if tools.lld else "", tools.launcher)))
    extras = extras or "neither lld (with clang) nor ccache"
    text = f"{tools.cmake}, {tools.ninja}, {tools.cxx} ({tools.compiler}); {extras}"
    return DoctorFinding("source builds", "ok", text)


def _check_target(toolchain: Toolchain, kind: DeviceKind) -> DoctorFinding:
    area, backend = f"target {kind.family}", kind.backend
    can_compile = backend in list_compile_backends(toolchain)
    # Only the CPU is required on every machine; a missing GPU is not a fault.
    status: Status = "missing" if kind.is_cpu else "info"
    try:
        device = find_device(toolchain, kind.device)
    except ToolchainError as problem:
        if can_compile:
            return DoctorFinding(area, status, f"compiles ({backend}), does not run: {problem.message}", problem.hint)
        run_text = "does not run either"
    else:
        if can_compile:
            device_text = f"{device.uri}: {device.text}" if device.text else device.uri
            return DoctorFinding(area, "ok", f"compiles ({backend}) and runs ({device_text})")
        run_text = "runs"
    message = f"does not compile: the compiler has no backend {backend}; {run_text}"
    return DoctorFinding(area, status, message, "use a compiler that was built with it")


def _check_architectures() -> Iterator[DoctorFinding]:
    """Check what runs modules for processors of other architectures, which no machine needs."""
    try:
        definitions = read_configuration(find_project_folder(), os.environ).targets
    except GauntletError:
        # Another check reports it.
        definitions = {}
    for chip in dict.fromkeys((*ARCHITECTURES, *definitions)):
        target = Target(CPU.family, chip, definition=definitions.get(chip))
        if is_native(target):
            continue
        runtime = target.processor.runtime if target.processor else ""
        reason = explain_missing_runner(target)
        hint = target.processor.packages if target.processor and reason else ""
        if reason:
            text = f"compiles, does not run: {reason.partition(' (')[0]}"
            yield DoctorFinding(f"target {chip}", "info", text, f"apt install {hint} (Debian, Ubuntu)" if hint else "")
        elif not runtime:
            hint = f"name a folder with IREE's tools for it in gauntlet.toml: [targets.{chip}] runtime"
            yield DoctorFinding(f"target {chip}", "info", "compiles, does not run: IREE has no wheel for it", hint)
        else:
            words = " ".join(target.runner) or "this machine"
            yield DoctorFinding(f"target {chip}", "ok", f"compiles, and runs by {words} (runtime: {runtime})")
            yield from _check_board(target)


def _check_board(target: Target) -> Iterator[DoctorFinding]:
    """Check the board that runs a target's modules, if a board does."""
    words, runner = split_board(target.runner)
    if not words:
        return
    with closing(Board(words)) as board:
        area = f"board {board.host}"
        try:
            facts, state = board.connect(), board.read_state()
        except BoardError as problem:
            yield DoctorFinding(area, "broken", problem.message, problem.hint)
            return
    text = f"{facts.system}, {pluralize(state.cores, 'core')}, {format_bytes(facts.free_bytes)} free in {facts.folder}"
    is_same = bool(runner) or facts.system.endswith(target.architecture)
    hint = (
        ""
        if is_same
        else f"target {target.chip} compiles for {target.architecture}: name the target after this board's"
    )
    yield DoctorFinding(area, "ok" if is_same else "broken", text, hint)
    yield from (DoctorFinding(area, "warn", warning) for warning in list_benchmark_warnings(state))


def _check_packages() -> Iterator[DoctorFinding]:
    for package, purpose in _PACKAGE_PURPOSES:
        try:
            package_version = version(package)
        except PackageNotFoundError:
            status: Status = "info" if package in _OPTIONAL_PACKAGES else "missing"
            install = f"{sys.executable} -m pip install {package}"
            yield DoctorFinding("packages", status, f"{package} is not installed (for {purpose})", install)
        else:
            yield DoctorFinding("packages", "ok", f"{package} {package_version}")


def _check_cache(cache_dir: Path) -> Iterator[DoctorFinding]:
    parent = _find_existing_parent(cache_dir)
    hint = "name another cache with --cache-dir, or change its owner or mode"
    if not parent.is_dir():
        yield DoctorFinding(
            "cache", "missing", f"{parent} is not a folder", "move the file away, or name another cache"
        )
        return
    if _is_writable(parent):
        yield DoctorFinding("cache", "ok", f"{cache_dir} can be written")
    elif parent == cache_dir:
        message = f"{cache_dir} cannot be written: its contents are used, but nothing is added"
        yield DoctorFinding("cache", "warn", message, hint)
    else:
        message = f"{cache_dir} cannot be created, because {parent} cannot be written: nothing can run"
        yield DoctorFinding("cache", "missing", message, hint)
    free = shutil.disk_usage(parent).free
    text = f"{format_bytes(free)} free for {cache_dir}"
    if free < _MIN_FREE_DISK_BYTES:
        hint = "large models will not fit; clear the cache, or name one on a larger disk"
        yield DoctorFinding("cache", "warn", f"only {text}", hint)
    else:
        yield DoctorFinding("cache", "ok", text)


def _check_runs(folder: Path) -> Iterator[DoctorFinding]:
    parent = _find_existing_parent(folder)
    if not parent.is_dir() or not _is_writable(parent):
        reason = f"{parent} cannot be written" if parent.is_dir() else f"{parent} is not a folder"
        hint = "name a folder for each run with --run-dir, or change the owner or mode"
        yield DoctorFinding("runs", "missing", f"no run can be kept in {folder}: {reason}", hint)


def _check_toolchains(folder: Path) -> DoctorFinding:
    parent = _find_existing_parent(folder)
    if parent.is_dir() and _is_writable(parent):
        return DoctorFinding("toolchains", "ok", f"releases that --iree names are in {folder}, for all projects")
    message = f"{folder} cannot be written: no release can be installed or built there"
    hint = f"name another folder with ${TOOLCHAINS_VARIABLE}, or change the owner or mode"
    return DoctorFinding("toolchains", "warn", message, hint)


def _find_existing_parent(folder: Path) -> Path:
    """Return the folder; if it has not been created yet, return its nearest existing parent."""
    return next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)


def _is_writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def _check_configuration() -> Iterator[DoctorFinding]:
    """Check `gauntlet.toml`: report its settings, or its error."""
    try:
        configuration = read_configuration(find_project_folder(), os.environ)
    except GauntletError as error:
        yield DoctorFinding("configuration", "broken", error.message, error.hint)
        return
    files = ", ".join(map(str, configuration.files))
    yield DoctorFinding("configuration", "info", files or "no gauntlet.toml: no mirrors, no shared modules")
    for mirror in configuration.mirrors:
        suffix = "" if mirror.only else ", then itself"
        yield DoctorFinding("configuration", "info", f"{mirror.prefix}… from {', '.join(mirror.targets)}{suffix}")
    if configuration.shared_modules:
        access = "read and written" if configuration.fills_shared_modules else "read"
        yield DoctorFinding("configuration", "info", f"shared modules: {configuration.shared_modules} is {access}")


def _find_requested_toolchain(request: ToolchainRequest) -> Toolchain | ToolchainError:
    """Return the IREE of `--iree`, without installing it; another check reports settings that cannot be read."""
    try:
        configuration = read_configuration(find_project_folder(), os.environ)
    except GauntletError:
        configuration = Configuration()
    locations = open_toolchain_locations(request.cache_dir, configuration, find_toolchains_folder(), offline=True)
    try:
        return find_requested_toolchain(request, os.environ, locations)
    except ToolchainError as error:
        return error


def list_devices(request: ToolchainRequest, *, as_json: bool) -> ExitCode:
    """Print every device of every driver; return ERROR if there is no IREE.

    Raises:
        ToolchainError: there is no IREE.
    """
    toolchain = _find_requested_toolchain(request)
    if isinstance(toolchain, ToolchainError):
        raise toolchain
    rows, document = [("DRIVER", "DEVICE", "WHAT IT IS")], []
    for driver in list_drivers(toolchain):
        entries: Sequence[Device] = ()
        problem = hint = ""
        try:
            entries = describe_devices(toolchain, driver)
        except ToolchainError as error:
            problem, hint = error.message, error.hint
        document.append({"driver": driver, "devices": list(map(asdict, entries)), "problem": problem, "hint": hint})
        rows += [(driver, device.uri, device.text) for device in entries]
        if not entries:
            rows.append((driver, "–", f"{problem}; {hint}" if hint else problem or "no device"))
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        print_table(rows)
    return ExitCode.OK


def doctor(request: ToolchainRequest, *, as_json: bool) -> ExitCode:
    """Print what is present and what is missing; return ERROR if no suite could run at all."""
    toolchain = _find_requested_toolchain(request)
    findings = [*diagnose(toolchain, find_cache_folder(request.cache_dir)), *_check_configuration()]
    machine_info = read_machine_facts()
    memory = "unknown memory" if machine_info.memory_bytes is None else format_bytes(machine_info.memory_bytes)
    text = f"{machine_info.cpu}, {machine_info.cores} cores, {memory}, {machine_info.os}"
    findings.append(DoctorFinding("machine", "info", text))
    cpu_times = read_cpu_times()
    time.sleep(_CPU_SAMPLE_SECONDS)
    warnings = list_benchmark_warnings(read_machine_state(measure_cpu_use(cpu_times, read_cpu_times())))
    findings += [DoctorFinding("benchmarking", "warn", warning) for warning in warnings]
    if not warnings:
        findings.append(DoctorFinding("benchmarking", "ok", "nothing on this machine would spoil a benchmark"))
    if as_json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in findings], indent=2) + "\n")
    else:
        for finding in findings:
            status = add_verdict_sign(f"{finding.status:<8}", finding.status)
            write_text(sys.stdout, f"{status} {finding.area + ':':<16} {finding.text}\n")
            if finding.hint:
                write_text(sys.stdout, f"{'':<27} {finding.hint}\n")
        failing_areas = dict.fromkeys(finding.area for finding in findings if finding.status in ("missing", "broken"))
        answer = f"missing or broken: {', '.join(failing_areas)}" if failing_areas else "nothing is missing"
        if count := sum(finding.status == "warn" for finding in findings):
            answer += f"; {pluralize(count, 'warning')}"
        write_text(sys.stdout, f"\n{answer}\n")
    cannot_run = any(finding.status == "missing" and finding.area in ("cache", "runs") for finding in findings)
    return ExitCode.ERROR if cannot_run or isinstance(toolchain, ToolchainError) else ExitCode.OK
