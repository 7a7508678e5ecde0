"""The flags that a tool knows, and flags as a spec writes them → as this release of the tool knows them.

A tool's flags are read from its own help; it is asked once for each identity, and the answer is kept. A flag that the
tool knows is left as it is. One that it knows under another name is written so, with a note. All others are reported,
never dropped: a spec that asks for something must not silently get something else.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.short_process import ask
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, Toolchain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


# An option of LLVM's command line library: `  --flag=<value>`, `  --flag[=<value>]`, `  -o <file>` or
# `  --flag`; six spaces where several flags set one value. Descriptions continue far to the right.
_COMPILER_OPTION = re.compile(r"^ {2,8}--?(\w[\w.+-]*)([= ](?=<))?(?=[\s<\[]|$)", re.MULTILINE)
# A flag of IREE's runtime: `--flag=default`, or `# --flag=...` where it has no default.
_RUNTIME_FLAG = re.compile(r"^(?:# )?--(\w+)(=(?!(?:true|false)$).*)?(?:=.*)?$")
# Google Benchmark's own usage text: `[--benchmark_filter=<regex>]`.
_BENCHMARK_FLAG = re.compile(r"\[--(\w+)=(\{true\|false\})?")
# To be raised whenever the parsers change what they find.
_FORMAT = 1
# What makes a tool list all of its flags.
_HELP = {COMPILE: "--help-list-hidden", RUN_MODULE: "--help", BENCHMARK_MODULE: "--help"}
# Flags that every release has: help in which they are missing was not understood.
_LANDMARKS = {COMPILE: "iree-hal-target-backends", RUN_MODULE: "module", BENCHMARK_MODULE: "module"}
# Flags that have a tool print something and end, whatever it was started for.
_LISTING = {
    COMPILE: re.compile(r"h|help(-list)?(-hidden)?|version|iree-list-plugins|iree-(hal|llvmcpu)-list-[a-z-]+"),
    RUN_MODULE: re.compile(r"help|agents_md|list_[a-z]+|dump_devices|dump_task_topologies"),
    BENCHMARK_MODULE: re.compile(r"help|agents_md|list_[a-z]+|dump_devices|dump_task_topologies|benchmark_list_tests"),
}
FLAG_RELEASES = Path(__file__).with_name("flag_releases.toml")

# The ROCm backend's flags were named after HIP, its driver.
_ROCM = (
    *("bc-dir", "denormal-fp-math-f32", "emit-debug-info", "enable-register-spill-warning", "enable-tensor-ukernels"),
    *("enable-ukernels", "encoding-layout-resolver", "llvm-global-isel", "llvm-slp-vec", "specialize-dispatches"),
    *("target", "target-features", "waves-per-eu"),
)
_TRUE = ("", "true", "1")
_FALSE = ("false", "0")
_DEFAULT_RTOL = 1e-5


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
    return _make_flag_set((name, bool(value)) for name, value in _COMPILER_OPTION.findall(text))


def parse_runtime_help(text: str) -> FlagSet:
    """Flags from the `--help` of a runtime tool, which is a flag file with comments.

    A flag without a default is written as a comment of its own, the last of its paragraph; that tells it
    from a sentence that happens to start a line with a flag. `valued` holds all but the switches; the tools
    take values with `=` only.
    """
    lines = text.splitlines()
    found = [(name, not switch) for name, switch in _BENCHMARK_FLAG.findall(text)]
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        flag = _RUNTIME_FLAG.match(line)
        if flag and (not line.startswith("#") or not following.strip()):
            found.append((flag[1], bool(flag[2])))
    return _make_flag_set(found)


def _make_flag_set(found: Iterable[tuple[str, bool]]) -> FlagSet:
    """Of the names of flags, and whether each takes a value."""
    flags = list(found)
    return FlagSet(frozenset(name for name, _ in flags), frozenset(name for name, valued in flags if valued))


# Of no tool any.
NO_FLAGS: Mapping[str, FlagSet] = dict.fromkeys(_HELP, FlagSet(frozenset()))


def read_known_flags(toolchain: Toolchain, cache_dir: Path) -> dict[str, FlagSet]:
    """The flags that a toolchain's tools know, by the tools' names.

    They are kept in `<cache_dir>/toolchains/<identity>.json`, a file for the compiler and one for the
    runtime. A file that is damaged is made again; a cache that cannot be written costs the question again
    in the next process, and nothing else.
    """
    compiler = _find_kept(cache_dir, toolchain, toolchain.compiler.identity, (COMPILE,))
    return compiler | _find_kept(cache_dir, toolchain, toolchain.runtime.identity, (RUN_MODULE, BENCHMARK_MODULE))


def _ask_tool(toolchain: Toolchain, tool: str) -> FlagSet:
    path, question = toolchain.tool(tool), _HELP[tool]
    answer = ask([path, question], timeout=60.0)
    found = (parse_compiler_help if tool == COMPILE else parse_runtime_help)(answer.stdout)
    if answer.exit_code != 0 or _LANDMARKS[tool] not in found.names:
        last = (answer.stderr.strip().splitlines() or ["no error message"])[-1]
        hint = "run it by hand; reinstall the toolchain where it does not start"
        raise ToolchainError(f"{path} {question} did not list its flags (exit code {answer.exit_code}): {last}", hint)
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


@dataclass(frozen=True, slots=True)
class Rename:
    """One flag under two names.

    Attributes:
        to_new: value under the old name → value under the new one, both in lower case; empty where values
            stay as they are. The key "" is the flag without a value. What is not listed cannot be said.
        with_new: a flag and value that must be given with the new name to mean the same.
    """

    old: str
    new: str
    last_old: str = "3.9.0"
    first_new: str = "3.12.0"
    to_new: tuple[tuple[str, str], ...] = ()
    to_old: tuple[tuple[str, str], ...] = ()
    with_new: tuple[str, str] | None = None
    tools: tuple[str, ...] = (COMPILE,)

    @property
    def when(self) -> str:
        """For messages."""
        return f"renamed between {self.last_old} and {self.first_new}"


# Read off the full help of 3.5.0, 3.9.0, 3.12.0 and 3.13.0: a change is known to lie between two of these.
# Names are without dashes. A renamed flag means the same under both names, in both directions.
RENAMED: tuple[Rename, ...] = (
    *(Rename(f"iree-hip-{flag}", f"iree-rocm-{flag}") for flag in _ROCM),
    # A switch became a number of stages: 0 and 1 are off, 2 is what the switch turned on.
    Rename(
        "iree-llvmgpu-enable-prefetch",
        "iree-llvmgpu-prefetch-num-stages",
        to_new=(*((value, "2") for value in _TRUE), *((value, "0") for value in _FALSE)),
        to_old=(("0", "false"), ("1", "false"), ("2", "true")),
    ),
    Rename("iree-opt-import-parameters", "iree-parameter-import"),
    Rename("iree-opt-import-parameter-keys", "iree-parameter-import-keys"),
    Rename("iree-opt-import-parameter-maximum-size", "iree-parameter-import-maximum-size"),
    Rename("iree-opt-export-parameter-minimum-size", "iree-parameter-export-minimum-size"),
    # 3.13.0 still takes these two under their old names.
    Rename("iree-opt-export-parameters", "iree-parameter-export"),
    Rename("iree-opt-splat-parameters", "iree-parameter-splat"),
    Rename(
        "iree-global-opt-enable-demote-contraction-inputs-to-bf16",
        "iree-global-opt-demote-contraction-inputs-operations",
        with_new=("iree-global-opt-demote-contraction-inputs-type", "bf16"),
    ),
    # Two flags became one.
    Rename("iree-llvmcpu-general-matmul-tile-bytes", "iree-llvmcpu-matmul-tile-bytes"),
    Rename("iree-llvmcpu-narrow-matmul-tile-bytes", "iree-llvmcpu-matmul-tile-bytes"),
    # This pair is inferred from the names; the help says the same of both.
    Rename(
        "iree-dispatch-creation-experimental-data-tiling",
        "iree-dispatch-creation-data-tiling",
        last_old="3.5.0",
        first_new="3.9.0",
    ),
    Rename("device_profiling_file", "device_profiling_output", tools=(RUN_MODULE, BENCHMARK_MODULE)),
)


@dataclass(frozen=True, slots=True)
class FlagReleases:
    """Which releases have the flags that not all of them have."""

    compared: tuple[str, ...]
    having: Mapping[str, Mapping[str, tuple[str, ...]]]

    def with_flag(self, tool: str, flag: str) -> tuple[str, ...]:
        """The compared releases whose tool has a flag, by its name without dashes; none for one that is not listed."""
        return self.having[tool].get(flag, ())


@functools.cache
def read_flag_releases() -> FlagReleases:
    """What `flag_releases.toml` says, read once."""
    document = tomllib.loads(FLAG_RELEASES.read_text(encoding="utf-8"))
    compared = tuple(document.pop("compared"))
    tables: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in ("compile", "runtime", "benchmark")}
    for name, rows in document.items():
        for pattern, flags in rows.items():
            having = tuple(release for release, has in zip(compared, pattern, strict=True) if has == "x")
            tables[name] |= dict.fromkeys(flags, having)
    compiler, runtime, benchmark = tables.values()
    return FlagReleases(compared, {COMPILE: compiler, RUN_MODULE: runtime, BENCHMARK_MODULE: runtime | benchmark})


@dataclass(frozen=True, slots=True)
class UnknownFlag:
    """A flag (its word as written) that the tool does not know under any name, or with which it does nothing else."""

    flag: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Translation:
    """What became of a list of flags.

    Attributes:
        flags: what to give to the tool; unknown flags are among them as written.
        notes: one line for each flag that was written otherwise.
    """

    flags: tuple[str, ...]
    notes: tuple[str, ...]
    unknown: tuple[UnknownFlag, ...]


class _CannotSayError(Exception):
    """The tool has no way to say what a flag says; the text is the hint for people."""


def translate(flags: Sequence[str], known: FlagSet, tool: str) -> Translation:
    """Flags of one command line (one dash or two, `--flag=value` or `--flag` and `value`) in the spelling of a tool."""
    # Other names of flags that take a value.
    same = [rename for rename in RENAMED if not rename.to_new]
    renamed = {rename.old for rename in same if rename.new in known.valued}
    renamed |= {rename.new for rename in same if rename.old in known.valued}
    written = list(split_flags(flags, known.valued | renamed))
    words: list[str] = []
    notes: list[str] = []
    unknown: list[UnknownFlag] = []
    for flag in written:
        # The runtime's tools read a flag with `=` alone.
        readable = tool == COMPILE or flag.words == (flag.text,)
        if _LISTING[tool].fullmatch(flag.name) and (flag.value or "").lower() not in _FALSE:
            words.extend(flag.words)
            what = f"with {flag.words[0]} {tool} prints something and ends: nothing would be done"
            unknown.append(UnknownFlag(flag.words[0], what, "Remove it."))
            continue
        if not flag.name or (flag.name in known.names and readable):
            words.extend(flag.words)
            continue
        if _is_implied(flag, tool):
            notes.append(f"{' '.join(flag.words)} was left out: this release allows no more than that without it")
            continue
        try:
            successors, why = _find_successors(flag, written, known, tool)
        except _CannotSayError as hint:
            words.extend(flag.words)
            unknown.append(UnknownFlag(flag.words[0], f"{tool} does not know {' '.join(flag.words)}", str(hint)))
            continue
        words.extend(successor.text for successor in successors)
        spelled = " ".join(flag.words)
        if successors:
            notes.append(f"{spelled} was written as {' '.join(s.text for s in successors)} ({why})")
        else:
            notes.append(f"{spelled} is said by another flag here ({why})")
    return Translation(tuple(words), tuple(notes), tuple(unknown))


def _is_implied(flag: Flag, tool: str) -> bool:
    """Whether a tool that does not know a flag does what it says, or is stricter."""
    try:
        return tool == RUN_MODULE and flag.name == "expected_rtol" and float(flag.value or "nan") == _DEFAULT_RTOL
    except ValueError:
        return False


def _find_successors(flag: Flag, written: Sequence[Flag], known: FlagSet, tool: str) -> tuple[list[Flag], str]:
    """What says the same as a flag, and why it is written so."""
    if flag.name in known.names:
        return [Flag(flag.name, flag.value, ())], f"{tool} reads no other form"
    renames = [rename for rename in RENAMED if tool in rename.tools]
    for rename in renames:
        if rename.old == flag.name and rename.new in known.names:
            return _translate_forward(flag, rename, written), rename.when
    backward = [rename for rename in renames if rename.new == flag.name and rename.old in known.names]
    if backward:
        for rename in backward:
            if rename.with_new is not None:
                _require_companion(rename, rename.with_new, written)
        older = [Flag(rename.old, _map_value(flag, rename.to_old, rename.old), ()) for rename in backward]
        return older, backward[0].when
    for rename in renames:
        if rename.with_new and rename.with_new[0] == flag.name and rename.old in known.names:
            _require_companion(rename, rename.with_new, written)
            return [], rename.when
    raise _CannotSayError(_hint(flag, renames, known, tool))


def _translate_forward(flag: Flag, rename: Rename, written: Sequence[Flag]) -> list[Flag]:
    """Old name → new name."""
    successors = [Flag(rename.new, _map_value(flag, rename.to_new, rename.new), ())]
    if rename.with_new is not None:
        successors.append(Flag(*rename.with_new, ()))
    siblings = [other.old for other in RENAMED if other.new == rename.new]
    if len(siblings) == 1 and rename.with_new is None:
        return successors
    # The compiler takes such a flag once, so all that says it must agree.
    for name in successors:
        sources = [name.name, *(siblings if name.name == rename.new else [])]
        others = [other for other in written if other.name in sources and other is not flag]
        differing = next((other for other in others if other.value != name.value), None)
        if differing is not None:
            raise _CannotSayError(f"it is called --{name.name} here, which {differing.text} sets too: keep one of them")
    # What another flag gives already is not said again.
    if any(other.name in siblings and other.value == flag.value for other in written[: written.index(flag)]):
        return []
    return [successor for successor in successors if all(other.name != successor.name for other in written)]


def _require_companion(rename: Rename, companion: tuple[str, str], written: Sequence[Flag]) -> None:
    """The old flag says what the new flag and its companion say together."""
    name, value = companion
    values = [other.value for other in written if other.name == name]
    if values != [value] or all(other.name != rename.new for other in written):
        raise _CannotSayError(
            f"it is called --{rename.old} here, which means --{rename.new}=... "
            f"together with --{name}={value}: the spec must give both"
        )


def _map_value(flag: Flag, values: Iterable[tuple[str, str]], name: str) -> str | None:
    """A flag's value under another name."""
    table = dict(values)
    if not table:
        return flag.value
    value = table.get((flag.value or "").lower())
    if value is None:
        sayable = ", ".join(written for written in table if written)
        raise _CannotSayError(f"it is called --{name} here, which can say --{flag.name}={sayable} only")
    return value


def _hint(flag: Flag, renames: Sequence[Rename], known: FlagSet, tool: str) -> str:
    """What to do about a flag that is known under no name."""
    releases = read_flag_releases()
    having = releases.with_flag(tool, flag.name)
    if having and not any(flag.name in (rename.old, rename.new) for rename in renames):
        lacking = [release for release in releases.compared if release not in having]
        newest = having[-1] == releases.compared[-1]
        advice = "use one of those that have it" if newest else "nothing took its place: remove it from the spec"
        return f"{_list_having(having)} it, {_list_having(lacking)} not; {advice}"
    for rename in renames:
        if flag.name in (rename.old, rename.new):
            other = rename.new if flag.name == rename.old else rename.old
            return f"its other name, --{other}, is not known either ({rename.when})"
    nearest = known.nearest(flag.name)
    return f"did you mean --{nearest}?" if nearest else f"see all flags: {tool} {_HELP[tool]}"


def _list_having(releases: Sequence[str]) -> str:
    """`3.5.0, 3.9.0 and 3.12.0 have`."""
    *most, last = releases
    return f"{', '.join(most)} and {last} have" if most else f"{last} has"
