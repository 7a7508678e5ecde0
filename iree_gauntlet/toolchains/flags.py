"""The flags that a tool knows, read from its own help, and how flags are spelled on a command line."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# An option of LLVM's command line library: `  --flag=<value>`, `  --flag[=<value>]`, `  -o <file>` or
# `  --flag`; six spaces where several flags set one value. Descriptions continue far to the right.
_COMPILER_OPTION = re.compile(r"^ {2,8}--?(?P<name>\w[\w.+-]*)(?P<value>[= ](?=<))?(?=[\s<\[]|$)", re.MULTILINE)
# A flag of IREE's runtime: `--flag=default`, or `# --flag=...` where it has no default.
_RUNTIME_FLAG = re.compile(r"^(?:# )?--(?P<name>\w+)(?P<value>=(?!(?:true|false)$).*)?(?:=.*)?$")
# Google Benchmark's own usage text: `[--benchmark_filter=<regex>]`.
_BENCHMARK_FLAG = re.compile(r"\[--(?P<name>\w+)=(?P<switch>\{true\|false\})?")


@dataclass(frozen=True, slots=True)
class FlagSet:
    """The flags of one tool.

    Attributes:
        names: without dashes.
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
        words: the arguments as written.
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
    names: set[str] = set()
    valued: set[str] = set()
    for option in _COMPILER_OPTION.finditer(text):
        names.add(option["name"])
        if option["value"]:
            valued.add(option["name"])
    return FlagSet(frozenset(names), frozenset(valued))


def parse_runtime_help(text: str) -> FlagSet:
    """Flags from the `--help` of a runtime tool, which is a flag file with comments.

    A flag without a default is written as a comment of its own, the last of its paragraph; that tells it
    from a sentence that happens to start a line with a flag. `valued` holds all but the switches; the tools
    take values with `=` only.
    """
    lines = text.splitlines()
    names: set[str] = set()
    valued: set[str] = set()
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        flag = _RUNTIME_FLAG.match(line)
        if flag and (not line.startswith("#") or not following.strip()):
            names.add(flag["name"])
            if flag["value"]:
                valued.add(flag["name"])
    for flag in _BENCHMARK_FLAG.finditer(text):
        names.add(flag["name"])
        if not flag["switch"]:
            valued.add(flag["name"])
    return FlagSet(frozenset(names), frozenset(valued))
