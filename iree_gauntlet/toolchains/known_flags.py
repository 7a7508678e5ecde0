"""The flags that each tool of a toolchain knows: asked once of each identity, and kept."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.toolchains.flags import FlagSet, parse_compiler_help, parse_runtime_help
from iree_gauntlet.toolchains.probe import ask
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, Toolchain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# To be raised whenever the parsers change what they find.
_FORMAT = 1
_TIMEOUT_SECONDS = 60.0
# Flags that every release has: help in which they are missing was not understood.
_LANDMARKS = {COMPILE: "iree-hal-target-backends", RUN_MODULE: "module", BENCHMARK_MODULE: "module"}


@dataclass(frozen=True, slots=True)
class KnownFlags:
    """The flags of the three tools."""

    compile: FlagSet
    run_module: FlagSet
    benchmark_module: FlagSet

    def of(self, tool: str) -> FlagSet:
        """The flags of a tool by its name (`iree-compile`); KeyError for another name."""
        return {
            COMPILE: self.compile,
            RUN_MODULE: self.run_module,
            BENCHMARK_MODULE: self.benchmark_module,
        }[tool]


def known_flags(toolchain: Toolchain, cache_dir: Path) -> KnownFlags:
    """The flags that a toolchain's tools know.

    They are kept in `<cache_dir>/toolchains/<identity>.json`, a file for the compiler and one for the
    runtime. A file that is damaged is made again; a cache that cannot be written costs the question again
    in the next process, and nothing else.

    Raises:
        ToolchainError: where a tool does not answer, or with something that is no list of flags.
    """
    folder = cache_dir / "toolchains"
    compiler = _kept(
        folder / f"{toolchain.compiler.identity}.json",
        (COMPILE,),
        lambda: {COMPILE: _ask_tool(toolchain, COMPILE, "--help-list-hidden", parse_compiler_help)},
    )
    runtime = _kept(
        folder / f"{toolchain.runtime.identity}.json",
        (RUN_MODULE, BENCHMARK_MODULE),
        lambda: {
            tool: _ask_tool(toolchain, tool, "--help", parse_runtime_help) for tool in (RUN_MODULE, BENCHMARK_MODULE)
        },
    )
    return KnownFlags(compiler[COMPILE], runtime[RUN_MODULE], runtime[BENCHMARK_MODULE])


def flag_complaints(toolchain: Toolchain, flags: tuple[str, ...]) -> tuple[str, ...]:
    """What the compiler itself says against flags and their values; nothing is compiled (0.1 s).

    It also knows the few flags that no help lists. A flag that ends the program (`--help`) hides what
    follows it.

    Raises:
        ToolchainError: where the compiler does not answer.
    """
    # --version makes it parse the command line, then print and leave, whatever the line was like.
    answer = ask([toolchain.compiler.compile, *flags, "--version"], timeout=_TIMEOUT_SECONDS)
    return tuple(
        line.removeprefix(f"{COMPILE}: ").split("  Try: ")[0]
        for line in answer.stderr.splitlines()
        if line.startswith(f"{COMPILE}: ") and "Did you mean" not in line
    )


def _ask_tool(toolchain: Toolchain, tool: str, question: str, parse: Callable[[str], FlagSet]) -> FlagSet:
    path = toolchain.tool(tool)
    answer = ask([path, question], timeout=_TIMEOUT_SECONDS)
    found = parse(answer.stdout)
    if answer.exit_code != 0 or _LANDMARKS[tool] not in found.names:
        last = (answer.stderr.strip().splitlines() or ["no error message"])[-1]
        raise ToolchainError(
            f"{path} {question} did not list its flags (exit code {answer.exit_code}): {last}",
            "run it by hand; reinstall the toolchain where it does not start",
        )
    return found


def _kept(path: Path, tools: tuple[str, ...], make: Callable[[], dict[str, FlagSet]]) -> dict[str, FlagSet]:
    """What a file holds, or what is made where it holds nothing that can be used."""
    kept = _read(path, tools)
    if kept is not None:
        return kept
    made = make()
    body = {tool: {"names": sorted(f.names), "valued": sorted(f.valued)} for tool, f in made.items()}
    document = {"format": _FORMAT, "sha256": _digest(body), "tools": body}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(document))
    except OSError:
        # A cache that is read-only or full: the answer is as good without being kept.
        return made
    return made


def _read(path: Path, tools: tuple[str, ...]) -> dict[str, FlagSet] | None:
    """The kept flags; None where there are none, or they are damaged or of another format."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        return None
    body = document.get("tools")
    if not isinstance(body, dict) or sorted(body) != sorted(tools) or document.get("sha256") != _digest(body):
        return None
    return {tool: FlagSet(frozenset(body[tool]["names"]), frozenset(body[tool]["valued"])) for tool in tools}


def _digest(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
