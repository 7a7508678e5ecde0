"""The flags that a tool knows, and how flags are spelled on a command line.

A tool's flags are read from its own help; it is asked once for each identity, and the answer is kept.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.short_process import ask
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, Toolchain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


# An option of LLVM's command line library: `  --flag=<value>`, `  --flag[=<value>]`, `  -o <file>` or
# `  --flag`; six spaces where several flags set one value. Descriptions continue far to the right.
_COMPILER_OPTION = re.compile(r"^ {2,8}--?(?P<name>\w[\w.+-]*)(?P<value>[= ](?=<))?(?=[\s<\[]|$)", re.MULTILINE)
# A flag of IREE's runtime: `--flag=default`, or `# --flag=...` where it has no default.
_RUNTIME_FLAG = re.compile(r"^(?:# )?--(?P<name>\w+)(?P<value>=(?!(?:true|false)$).*)?(?:=.*)?$")
# Google Benchmark's own usage text: `[--benchmark_filter=<regex>]`.
_BENCHMARK_FLAG = re.compile(r"\[--(?P<name>\w+)=(?P<switch>\{true\|false\})?")
# To be raised whenever the parsers change what they find.
_FORMAT = 1
# What makes a tool list all of its flags.
HELP = {COMPILE: "--help-list-hidden", RUN_MODULE: "--help", BENCHMARK_MODULE: "--help"}
# Flags that every release has: help in which they are missing was not understood.
_LANDMARKS = {COMPILE: "iree-hal-target-backends", RUN_MODULE: "module", BENCHMARK_MODULE: "module"}


@dataclass(frozen=True, slots=True)
class FlagSet:
    """The flags of one tool.

    Attributes:
        valued: those that need a value; LLVM's library takes the next argument where none is attached.
    """

    names: frozenset[str]
    valued: frozenset[str] = frozenset()

    def nearest(self, name: str) -> str:
        """The known name that is spelled most alike; empty where none is close."""
        # Most of a compiler's flags are LLVM's: a mistyped IREE flag must not be taken for one of them.
        prefix = "iree-" if name.startswith("iree-") else ""
        candidates = [known for known in self.names if known.startswith(prefix)]
        return next(iter(difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=0.7)), "")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as it stands on a command line, or an argument that is none.

    Attributes:
        name: without dashes; empty for an argument that is no flag.
        value: what follows `=`, or the next argument; None where there is none.
    """

    name: str
    value: str | None
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """As written, with `=`."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


def split_flags(words: Sequence[str], valued: frozenset[str]) -> Iterator[Flag]:
    """Flags of a command line, with one dash or two, and with `=value` or a separate value.

    A separate value belongs to a flag only where the flag is one of `valued`. What follows `--` is no flag.
    """
    rest = iter(words)
    for word in rest:
        if word == "--":
            yield Flag("", None, (word, *rest))
            return
        if len(word) < 2 or not word.startswith("-"):
            yield Flag("", None, (word,))
            continue
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if equals:
            yield Flag(name, value, (word,))
        elif name in valued and (following := next(rest, None)) is not None:
            yield Flag(name, following, (word, following))
        else:
            yield Flag(name, None, (word,))


def parse_compiler_help(text: str) -> FlagSet:
    """Flags from `iree-compile --help-list-hidden`, the help of LLVM's command line library.

    Lines of values (`    =none`) and continued descriptions are no flags.
    """
    return _make_flag_set((option["name"], bool(option["value"])) for option in _COMPILER_OPTION.finditer(text))


def parse_runtime_help(text: str) -> FlagSet:
    """Flags from the `--help` of a runtime tool, which is a flag file with comments.

    A flag without a default is written as a comment of its own, the last of its paragraph; that tells it
    from a sentence that happens to start a line with a flag. `valued` holds all but the switches; the tools
    take values with `=` only.
    """
    lines = text.splitlines()
    found = [(flag["name"], not flag["switch"]) for flag in _BENCHMARK_FLAG.finditer(text)]
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        flag = _RUNTIME_FLAG.match(line)
        if flag and (not line.startswith("#") or not following.strip()):
            found.append((flag["name"], bool(flag["value"])))
    return _make_flag_set(found)


def _make_flag_set(found: Iterable[tuple[str, bool]]) -> FlagSet:
    """Of the names of flags, and whether each takes a value."""
    flags = list(found)
    return FlagSet(frozenset(name for name, _ in flags), frozenset(name for name, valued in flags if valued))


@dataclass(frozen=True, slots=True)
class KnownFlags:
    """The flags of the three tools."""

    compile: FlagSet
    run_module: FlagSet
    benchmark_module: FlagSet

    def of(self, tool: str) -> FlagSet:
        """The flags of a tool by its name (`iree-compile`); KeyError for another name."""
        return {COMPILE: self.compile, RUN_MODULE: self.run_module, BENCHMARK_MODULE: self.benchmark_module}[tool]


NO_FLAGS = KnownFlags(FlagSet(frozenset()), FlagSet(frozenset()), FlagSet(frozenset()))


def read_known_flags(toolchain: Toolchain, cache_dir: Path) -> KnownFlags:
    """The flags that a toolchain's tools know.

    They are kept in `<cache_dir>/toolchains/<identity>.json`, a file for the compiler and one for the
    runtime. A file that is damaged is made again; a cache that cannot be written costs the question again
    in the next process, and nothing else.

    Raises:
        ToolchainError: where a tool does not answer, or with something that is no list of flags.
    """
    compiler = _find_kept(cache_dir, toolchain, toolchain.compiler.identity, (COMPILE,))
    runtime = _find_kept(cache_dir, toolchain, toolchain.runtime.identity, (RUN_MODULE, BENCHMARK_MODULE))
    return KnownFlags(compiler[COMPILE], runtime[RUN_MODULE], runtime[BENCHMARK_MODULE])


def _ask_tool(toolchain: Toolchain, tool: str) -> FlagSet:
    path, question = toolchain.tool(tool), HELP[tool]
    answer = ask([path, question], timeout=60.0)
    found = (parse_compiler_help if tool == COMPILE else parse_runtime_help)(answer.stdout)
    if answer.exit_code != 0 or _LANDMARKS[tool] not in found.names:
        last = (answer.stderr.strip().splitlines() or ["no error message"])[-1]
        raise ToolchainError(
            f"{path} {question} did not list its flags (exit code {answer.exit_code}): {last}",
            "run it by hand; reinstall the toolchain where it does not start",
        )
    return found


def _find_kept(cache_dir: Path, toolchain: Toolchain, identity: str, tools: tuple[str, ...]) -> dict[str, FlagSet]:
    """What the file of an identity holds, or what the tools say where it holds nothing that can be used."""
    path = cache_dir / "toolchains" / f"{identity}.json"
    # None, or one that is damaged or of another format: it is made again.
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        document = json.loads(path.read_bytes())
        kept = document["tools"]
        if document["format"] == _FORMAT and document["sha256"] == _digest(kept) and kept.keys() == set(tools):
            return {tool: FlagSet(*(frozenset(kept[tool][field]) for field in ("names", "valued"))) for tool in tools}
    made = {tool: _ask_tool(toolchain, tool) for tool in tools}
    body = {tool: {"names": sorted(f.names), "valued": sorted(f.valued)} for tool, f in made.items()}
    document = {"format": _FORMAT, "sha256": _digest(body), "tools": body}
    with suppress(OSError):  # a cache that is read-only or full: the answer is as good without being kept
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(document))
    return made


def _digest(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
