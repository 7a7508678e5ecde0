"""The tools that run the modules of a target on this machine: its own, or those of another architecture by a runner.

The runtime of another architecture is the wheel of the same release for that platform, installed like a release of
IREE (`environments.py`), or a folder with IREE's tools. `Command.runner` has the words that start them.
"""

from __future__ import annotations

import itertools
import os
import platform
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.stages import Stage
from iree_gauntlet.targets import split_board
from iree_gauntlet.toolchains.environments import Recipe
from iree_gauntlet.toolchains.installed import RUNTIME_WHEEL, find_runtime_on, find_site_packages
from iree_gauntlet.toolchains.installer import Sources
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, RUN_MODULE

if TYPE_CHECKING:
    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.find import ToolchainLocations
    from iree_gauntlet.toolchains.toolchain import Toolchain


# The architecture of this machine, as LLVM calls it.
_MACHINE = platform.machine().replace("arm64", "aarch64")
_WHEEL = "wheel:"
# The option of qemu that names the folder with the libraries of the other architecture.
_ROOT_OPTION = "-L"


@dataclass(frozen=True, slots=True)
class TargetRuntime:
    """The tools that run the modules of a target.

    Attributes:
        runner: the words before a tool's command line; empty if this machine runs the tools itself.
        is_emulated: True if times mean nothing.
        obstacle: why they do not run here; empty if they do.
    """

    run_module: str = RUN_MODULE
    benchmark_module: str = BENCHMARK_MODULE
    runner: tuple[str, ...] = ()
    is_emulated: bool = False
    obstacle: str = ""

    @property
    def name(self) -> str:
        """The name of the board or runner, for people."""
        board, rest = split_board(self.runner)
        return board[-1] if board else Path(rest[0]).name if rest else "this machine"

    @property
    def calls_obstacle(self) -> str:
        """Why it cannot make several calls in one process; empty if it can."""
        return (
            f"several calls are made by IREE's Python bindings, which {self.name} does not run" if self.runner else ""
        )

    @property
    def timeout_factor(self) -> int:
        """The factor of the limits of time, which are for this machine's speed: an emulator is many times as slow."""
        return 10 if self.is_emulated else 1

    def explain_no_call(self, stage: Stage, target: Target) -> str:
        """Return why a stage cannot be measured with this runtime; empty if it can."""
        if stage is Stage.COUNT and self.runner:
            return f"instructions are counted of this machine's programs, but {self.name} runs {target.name}"
        if stage is Stage.BENCHMARK and self.is_emulated:
            board, rest = split_board(self.runner)
            name = f"{Path(rest[0]).name} on {board[-1]}" if board and rest else self.name
            reason = f"no time: {name} emulates {target.name}, and its times say nothing about the processor"
            is_own = target.processor is not None and not target.processor.is_ready_made
            return f"{reason}; if they do: has_times = true in [targets.{target.processor_name}]" if is_own else reason
        return ""


def find_target_runtime(target: Target, toolchain: Toolchain | None, locations: ToolchainLocations) -> TargetRuntime:
    """Find the tools that run a target's modules; install the wheel of another architecture, unless this is offline."""
    if toolchain is None:
        return TargetRuntime()
    if is_native(target):
        return TargetRuntime(toolchain.runtime.run_module, toolchain.runtime.benchmark_module)
    is_emulated = bool(target.runner) and not (target.processor and target.processor.has_times)
    runtime = TargetRuntime(runner=target.runner, is_emulated=is_emulated)
    obstacle = explain_missing_runner(target)
    if not obstacle:
        try:
            run_module, benchmark_module = _find_tools(target, toolchain, locations)
        except ToolchainError as error:
            obstacle = error.on_one_line
        else:
            return replace(runtime, run_module=run_module, benchmark_module=benchmark_module)
    reason = f"this machine is {_MACHINE}, which does not run modules for {target.name}: {obstacle}"
    return replace(runtime, obstacle=f"{reason}; --stages compile makes them")


def is_native(target: Target) -> bool:
    """Return whether this machine runs a target's modules itself; a runner is needed to choose a length of vectors."""
    processor = target.processor
    is_same = target.architecture == _MACHINE and not target.vector_bits
    return not target.architecture or (is_same and processor is not None and processor.is_ready_made)


def explain_missing_runner(target: Target) -> str:
    """Return what the runner of a target lacks on this machine, and how to get it; empty if nothing is missing."""
    board, rest = split_board(target.runner)
    runner, packages = board or rest, target.processor.packages if target.processor else ""
    if not runner:
        return f"no runner is known: name one in gauntlet.toml, [targets.{target.processor_name}] runner"
    advice = f" (Debian, Ubuntu: apt install {packages})" if packages else ""
    if shutil.which(runner[0]) is None:
        return f"{runner[0]} is not installed{advice}"
    roots = [word for option, word in itertools.pairwise(() if board else runner) if option == _ROOT_OPTION]
    missing_root = next((root for root in roots if not Path(root).is_dir()), "")
    return (
        f"{missing_root}, with the libraries of {target.architecture}, does not exist{advice}" if missing_root else ""
    )


def _find_tools(target: Target, toolchain: Toolchain, locations: ToolchainLocations) -> tuple[str, str]:
    """Return the paths of iree-run-module and iree-benchmark-module for a target."""
    source = target.processor.runtime if target.processor else ""
    if target.architecture == _MACHINE and source == target.kind.architectures[_MACHINE].runtime:
        # The wheel for this machine's architecture is the installed one; a board gets it.
        return toolchain.runtime.run_module, toolchain.runtime.benchmark_module
    if source.startswith(_WHEEL):
        wheel_platform = source.removeprefix(_WHEEL)
        recipe = _make_recipe(toolchain.runtime.release, wheel_platform, locations.nightly_links)
        environment = locations.environments.provide(recipe)
        folders = [str(folder) for folder in find_site_packages(environment.python)]
        runtime = find_runtime_on(folders, str(environment.python), wheel_platform)
        return runtime.run_module, runtime.benchmark_module
    if not source:
        raise ToolchainError(
            f"IREE has no wheel of its runtime for {target.architecture}",
            f"Name a folder with its tools in gauntlet.toml: [targets.{target.processor_name}] runtime",
        )
    tools = [Path(source) / name for name in (RUN_MODULE, BENCHMARK_MODULE)]
    if missing := next((tool for tool in tools if not os.access(tool, os.X_OK)), None):
        raise ToolchainError(f"{missing}, the runtime of [targets.{target.processor_name}], is no program")
    return str(tools[0]), str(tools[1])


def _make_recipe(release: str, wheel_platform: str, nightly_links: str) -> Recipe:
    """Return the recipe of the runtime of a release for a platform, such as `manylinux_2_28_aarch64`."""
    try:
        is_nightly = Version(release).is_prerelease
    except InvalidVersion:
        hint = "Name a folder with IREE's tools as its `runtime`, or choose a release with --iree."
        raise ToolchainError(f"the runtime's release is {release or 'unknown'}, which no wheel has", hint) from None
    return Recipe(
        label=f"{release}-{wheel_platform}",
        requirements=(f"{RUNTIME_WHEEL.distribution}=={release}",),
        sources=Sources(nightly_links if is_nightly else "", platform=wheel_platform),
        compiler="",
        runtime=release,
        asked=f"{release} for {wheel_platform}",
    )
