"""The flags that a tool supports, and the translation of a spec's flags to a release's spelling.

A tool's flags are read from its own help. The result is cached, so a tool runs once for each identity. A supported
flag stays unchanged. A flag that is supported under another name is renamed, with a note. Other flags are reported and
never dropped, because a spec must not silently get something else than it requests.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.short_process import run_tool
from iree_gauntlet.toolchains.flag_words import Flag, split_flags
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, Toolchain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# An option in the help of LLVM's command line library: `  --flag=<value>`, `  --flag[=<value>]`, `  -o <file>` or
# `  --flag`. Flags that set one common value are indented by six spaces, and descriptions by many more.
_COMPILER_OPTION = re.compile(r"^ {2,8}--?(\w[\w.+-]*)([= ](?=<))?(?=[\s<\[]|$)", re.MULTILINE)
# The description of a flag that an optimisation level sets has a line for each level from which on its default differs.
_LEVEL_DEFAULT = re.compile(r"^ +At optimization level (O\d) the default is (\S+)$")
_LEVEL = re.compile(r"O\d")
# A flag of IREE's runtime: `--flag=default`, or `# --flag=...` for a flag without a default.
_RUNTIME_FLAG = re.compile(r"^(?:# )?--(\w+)(=(?!(?:true|false)$).*)?(?:=.*)?$")
# Google Benchmark's own usage text: `[--benchmark_filter=<regex>]`.
_BENCHMARK_FLAG = re.compile(r"\[--(\w+)=(\{true\|false\})?")
# Increase this whenever a change of the parsers changes their results.
_FILE_FORMAT = 2
# These flags make a tool list all of its flags.
_HELP_FLAGS = {COMPILE: "--help-list-hidden", RUN_MODULE: "--help", BENCHMARK_MODULE: "--help"}
# Every release has these flags. If the result lacks them, the help was not parsed correctly.
_EXPECTED_FLAGS = {COMPILE: "iree-hal-target-backends", RUN_MODULE: "module", BENCHMARK_MODULE: "module"}
# These flags make a tool only print something and exit, regardless of its other flags.
_PRINTING_FLAGS = {
    COMPILE: re.compile(r"h|help(-list)?(-hidden)?|version|iree-list-plugins|iree-(hal|llvmcpu)-list-[a-z-]+"),
    RUN_MODULE: re.compile(r"help|agents_md|list_[a-z]+|dump_devices|dump_task_topologies"),
    BENCHMARK_MODULE: re.compile(r"help|agents_md|list_[a-z]+|dump_devices|dump_task_topologies|benchmark_list_tests"),
}
# The flags that set the CPU of a module of the llvm-cpu backend.
CPU_FLAGS = frozenset({"iree-llvmcpu-target-cpu", "iree-llvmcpu-target-cpu-features"})
FLAG_RELEASES = Path(__file__).with_name("flag_releases.toml")

# Older releases name these flags of the ROCm backend after its driver, HIP.
_ROCM_FLAGS = (
    *("bc-dir", "denormal-fp-math-f32", "emit-debug-info", "enable-register-spill-warning", "enable-tensor-ukernels"),
    *("enable-ukernels", "encoding-layout-resolver", "llvm-global-isel", "llvm-slp-vec", "specialize-dispatches"),
    *("target", "target-features", "waves-per-eu"),
)
_TRUE_VALUES = ("", "true", "1")
_FALSE_VALUES = ("false", "0")
_DEFAULT_RTOL = 1e-5


@dataclass(frozen=True, slots=True)
class FlagSet:
    """The flags of one tool.

    Attributes:
        value_flags: flags that need a value; without `=`, LLVM's library takes the next argument as the value.
        level_defaults: flags that optimisation levels set: the name, the lowest level with a default, and the default.
    """

    names: frozenset[str]
    value_flags: frozenset[str] = frozenset()
    level_defaults: frozenset[tuple[str, str, str]] = frozenset()

    def list_level_flags(self, level: str) -> tuple[str, ...]:
        """Return the flags that an optimisation level such as `O2` sets, with their values; none for another text."""
        defaults = {name: value for name, lowest, value in sorted(self.level_defaults) if lowest <= level}
        return tuple(f"--{name}={value}" for name, value in defaults.items()) if _LEVEL.fullmatch(level) else ()

    def find_nearest(self, name: str) -> str:
        """Return the name with the most similar spelling; empty if no name is similar."""
        # Most of a compiler's flags are LLVM's, and must not be suggested for a mistyped IREE flag.
        prefix = "iree-" if name.startswith("iree-") else ""
        candidates = [candidate for candidate in self.names if candidate.startswith(prefix)]
        return next(iter(difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=0.7)), "")


def parse_compiler_help(text: str) -> FlagSet:
    """Parse the flags from `iree-compile --help-list-hidden`, the help of LLVM's command line library.

    Lines of values (`    =none`) and continued descriptions are not flags.
    """
    flags = _make_flag_set((name, bool(value)) for name, value in _COMPILER_OPTION.findall(text))
    name, level_defaults = "", set()
    for line in text.splitlines():
        if option := _COMPILER_OPTION.match(line):
            name = option[1]
        elif default := _LEVEL_DEFAULT.match(line):
            level_defaults.add((name, default[1], default[2]))
    return replace(flags, level_defaults=frozenset(level_defaults))


def parse_runtime_help(text: str) -> FlagSet:
    """Parse the flags from the `--help` of a runtime tool, which is a flag file with comments.

    A flag without a default is a comment line, the last one of its paragraph. A description that happens to start a
    line with a flag is not the last line. `value_flags` has all flags except switches; the tools accept values only
    with `=`.
    """
    lines = text.splitlines()
    flags = [(name, not switch) for name, switch in _BENCHMARK_FLAG.findall(text)]
    for line, next_line in zip_longest(lines, lines[1:], fillvalue=""):
        match = _RUNTIME_FLAG.match(line)
        if match and (not line.startswith("#") or not next_line.strip()):
            flags.append((match[1], bool(match[2])))
    return _make_flag_set(flags)


def _make_flag_set(pairs: Iterable[tuple[str, bool]]) -> FlagSet:
    """Make a flag set from the names of flags, and whether each takes a value."""
    flags = list(pairs)
    return FlagSet(frozenset(name for name, _ in flags), frozenset(name for name, takes_value in flags if takes_value))


# A table without flags, for all tools.
NO_FLAGS: Mapping[str, FlagSet] = dict.fromkeys(_HELP_FLAGS, FlagSet(frozenset()))


def read_known_flags(toolchain: Toolchain, cache_dir: Path) -> dict[str, FlagSet]:
    """Return the flags that a toolchain's tools support, by the tools' names.

    The flags are cached in `<cache_dir>/toolchains/<identity>.json`, with one file for the compiler and one for the
    runtime. A damaged file is rewritten. If the cache cannot be written, the only loss is that the next process runs
    the tools again.
    """
    compiler = _load_flags(cache_dir, toolchain, toolchain.compiler.identity, (COMPILE,))
    return compiler | _load_flags(cache_dir, toolchain, toolchain.runtime.identity, (RUN_MODULE, BENCHMARK_MODULE))


def _read_tool_flags(toolchain: Toolchain, tool: str) -> FlagSet:
    path, help_flag = toolchain.tool(tool), _HELP_FLAGS[tool]
    result = run_tool([path, help_flag], timeout=60.0)
    flags = (parse_compiler_help if tool == COMPILE else parse_runtime_help)(result.stdout)
    if result.exit_code != 0 or _EXPECTED_FLAGS[tool] not in flags.names:
        error = (result.stderr.strip().splitlines() or ["no error message"])[-1]
        hint = "run it by hand; reinstall the toolchain if it does not start"
        raise ToolchainError(f"{path} {help_flag} did not list its flags (exit code {result.exit_code}): {error}", hint)
    return flags


def _load_flags(cache_dir: Path, toolchain: Toolchain, identity: str, tools: tuple[str, ...]) -> dict[str, FlagSet]:
    """Read the flags from an identity's cache file; if the file is unusable, run the tools."""
    path = cache_dir / "toolchains" / f"{identity}.json"
    # If the file is missing, damaged or of another format, the errors are ignored and the file is rewritten.
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        document = json.loads(path.read_bytes())
        tables = document["tools"]
        if document["format"] == _FILE_FORMAT and document["sha256"] == _digest(tables) and tables.keys() == set(tools):
            return {tool: _read_flag_set(tables[tool]) for tool in tools}
    flag_sets = {tool: _read_tool_flags(toolchain, tool) for tool in tools}
    tables = {
        tool: {"names": sorted(f.names), "valued": sorted(f.value_flags), "levels": sorted(f.level_defaults)}
        for tool, f in flag_sets.items()
    }
    document = {"format": _FILE_FORMAT, "sha256": _digest(tables), "tools": tables}
    with suppress(OSError):  # If the cache is read-only or full, the result is just not cached.
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(document))
    return flag_sets


def _read_flag_set(table: Mapping[str, Any]) -> FlagSet:
    return FlagSet(frozenset(table["names"]), frozenset(table["valued"]), frozenset(map(tuple, table["levels"])))


def _digest(document: object) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FlagRename:
    """One flag under two names.

    Attributes:
        new_values: value under the old name → value under the new name, both in lower case; empty if values stay
            the same. The key "" is the flag without a value. Values that are not listed cannot be translated.
        companion: a flag and its value that the new name needs to mean the same as the old name.
    """

    old: str
    new: str
    last_old: str = "3.9.0"
    first_new: str = "3.12.0"
    new_values: tuple[tuple[str, str], ...] = ()
    old_values: tuple[tuple[str, str], ...] = ()
    companion: tuple[str, str] | None = None
    tools: tuple[str, ...] = (COMPILE,)

    @property
    def release_note(self) -> str:
        """The releases of the rename, for messages."""
        return f"renamed between {self.last_old} and {self.first_new}"


# This table is from the full help of 3.5.0, 3.9.0, 3.12.0 and 3.13.0, so each rename was between two of these releases.
# Names have no dashes. A renamed flag means the same under both names, so it is translated in both directions.
FLAG_RENAMES: tuple[FlagRename, ...] = (
    *(FlagRename(f"iree-hip-{flag}", f"iree-rocm-{flag}") for flag in _ROCM_FLAGS),
    # A switch became a number of stages: 0 and 1 mean off, and 2 means on.
    FlagRename(
        "iree-llvmgpu-enable-prefetch",
        "iree-llvmgpu-prefetch-num-stages",
        new_values=(*((value, "2") for value in _TRUE_VALUES), *((value, "0") for value in _FALSE_VALUES)),
        old_values=(("0", "false"), ("1", "false"), ("2", "true")),
    ),
    FlagRename("iree-opt-import-parameters", "iree-parameter-import"),
    FlagRename("iree-opt-import-parameter-keys", "iree-parameter-import-keys"),
    FlagRename("iree-opt-import-parameter-maximum-size", "iree-parameter-import-maximum-size"),
    FlagRename("iree-opt-export-parameter-minimum-size", "iree-parameter-export-minimum-size"),
    # 3.13.0 still accepts these two under their old names.
    FlagRename("iree-opt-export-parameters", "iree-parameter-export"),
    FlagRename("iree-opt-splat-parameters", "iree-parameter-splat"),
    FlagRename(
        "iree-global-opt-enable-demote-contraction-inputs-to-bf16",
        "iree-global-opt-demote-contraction-inputs-operations",
        companion=("iree-global-opt-demote-contraction-inputs-type", "bf16"),
    ),
    # Two flags became one.
    FlagRename("iree-llvmcpu-general-matmul-tile-bytes", "iree-llvmcpu-matmul-tile-bytes"),
    FlagRename("iree-llvmcpu-narrow-matmul-tile-bytes", "iree-llvmcpu-matmul-tile-bytes"),
    # This rename is inferred: the names are similar, and the help describes both in the same words.
    FlagRename(
        "iree-dispatch-creation-experimental-data-tiling",
        "iree-dispatch-creation-data-tiling",
        last_old="3.5.0",
        first_new="3.9.0",
    ),
    FlagRename("device_profiling_file", "device_profiling_output", tools=(RUN_MODULE, BENCHMARK_MODULE)),
)


@dataclass(frozen=True, slots=True)
class FlagReleases:
    """The releases of each flag that not all releases have."""

    releases: tuple[str, ...]
    releases_by_flag: Mapping[str, Mapping[str, tuple[str, ...]]]

    def with_flag(self, tool: str, flag: str) -> tuple[str, ...]:
        """Return the releases whose tool has a flag, given without dashes; empty for a flag that is not listed."""
        return self.releases_by_flag[tool].get(flag, ())


@functools.cache
def read_flag_releases() -> FlagReleases:
    """Read `flag_releases.toml` once."""
    document = tomllib.loads(FLAG_RELEASES.read_text(encoding="utf-8"))
    releases = tuple(document.pop("compared"))
    tables: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in ("compile", "runtime", "benchmark")}
    for name, rows in document.items():
        for pattern, flags in rows.items():
            supporting = tuple(release for release, mark in zip(releases, pattern, strict=True) if mark == "x")
            tables[name] |= dict.fromkeys(flags, supporting)
    compiler, runtime, benchmark = tables.values()
    return FlagReleases(releases, {COMPILE: compiler, RUN_MODULE: runtime, BENCHMARK_MODULE: runtime | benchmark})


@dataclass(frozen=True, slots=True)
class UnknownFlag:
    """A flag (as written) that the tool supports under no name, or that makes the tool only print something."""

    flag: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Translation:
    """The result of translating a list of flags.

    Attributes:
        flags: the arguments for the tool, including unknown flags as written.
        notes: one line for each flag that was rewritten.
    """

    flags: tuple[str, ...]
    notes: tuple[str, ...]
    unknown: tuple[UnknownFlag, ...]


class _UntranslatableError(Exception):
    """The tool has no equivalent of a flag; the text is the hint for people."""


def translate(flags: Sequence[str], flag_set: FlagSet, tool: str) -> Translation:
    """Translate flags of one command line (one dash or two, `--flag=value` or `--flag` and `value`) for a tool."""
    # Flags that take a value have values under both their names.
    value_renames = [rename for rename in FLAG_RENAMES if not rename.new_values]
    renamed_flags = {rename.old for rename in value_renames if rename.new in flag_set.value_flags}
    renamed_flags |= {rename.new for rename in value_renames if rename.old in flag_set.value_flags}
    parsed_flags = list(split_flags(flags, flag_set.value_flags | renamed_flags))
    words: list[str] = []
    notes: list[str] = []
    unknown: list[UnknownFlag] = []
    for flag in parsed_flags:
        # The runtime's tools accept values only with `=`.
        has_readable_form = tool == COMPILE or flag.words == (flag.text,)
        if _PRINTING_FLAGS[tool].fullmatch(flag.name) and (flag.value or "").lower() not in _FALSE_VALUES:
            words.extend(flag.words)
            message = f"with {flag.words[0]} {tool} only prints something and exits"
            unknown.append(UnknownFlag(flag.words[0], message, "Remove it."))
            continue
        if not flag.name or (flag.name in flag_set.names and has_readable_form):
            words.extend(flag.words)
            continue
        if _is_implied(flag, tool):
            notes.append(f"{' '.join(flag.words)} was omitted: the default of this release allows no more")
            continue
        try:
            successors, reason = _find_successors(flag, parsed_flags, flag_set, tool)
        except _UntranslatableError as hint:
            words.extend(flag.words)
            unknown.append(UnknownFlag(flag.words[0], f"{tool} does not know {' '.join(flag.words)}", str(hint)))
            continue
        words.extend(successor.text for successor in successors)
        original = " ".join(flag.words)
        if successors:
            notes.append(f"{original} was written as {' '.join(s.text for s in successors)} ({reason})")
        else:
            notes.append(f"{original} is covered by another flag ({reason})")
    return Translation(tuple(words), tuple(notes), tuple(unknown))


def _is_implied(flag: Flag, tool: str) -> bool:
    """Return whether a tool that lacks a flag already behaves as the flag requests, or more strictly."""
    try:
        return tool == RUN_MODULE and flag.name == "expected_rtol" and float(flag.value or "nan") == _DEFAULT_RTOL
    except ValueError:
        return False


def _find_successors(flag: Flag, parsed_flags: Sequence[Flag], flag_set: FlagSet, tool: str) -> tuple[list[Flag], str]:
    """Return the equivalents of a flag, and the reason for rewriting it."""
    if flag.name in flag_set.names:
        return [Flag(flag.name, flag.value, ())], f"{tool} accepts only this form"
    renames = [rename for rename in FLAG_RENAMES if tool in rename.tools]
    for rename in renames:
        if rename.old == flag.name and rename.new in flag_set.names:
            return _translate_to_new(flag, rename, parsed_flags), rename.release_note
    to_old = [rename for rename in renames if rename.new == flag.name and rename.old in flag_set.names]
    if to_old:
        for rename in to_old:
            if rename.companion is not None:
                _require_companion(rename, rename.companion, parsed_flags)
        old_flags = [Flag(rename.old, _map_value(flag, rename.old_values, rename.old), ()) for rename in to_old]
        return old_flags, to_old[0].release_note
    for rename in renames:
        if rename.companion and rename.companion[0] == flag.name and rename.old in flag_set.names:
            _require_companion(rename, rename.companion, parsed_flags)
            return [], rename.release_note
    raise _UntranslatableError(_make_unknown_flag_hint(flag, renames, flag_set, tool))


def _translate_to_new(flag: Flag, rename: FlagRename, parsed_flags: Sequence[Flag]) -> list[Flag]:
    """Translate an old name into the new one."""
    successors = [Flag(rename.new, _map_value(flag, rename.new_values, rename.new), ())]
    if rename.companion is not None:
        successors.append(Flag(*rename.companion, ()))
    old_names = [sibling.old for sibling in FLAG_RENAMES if sibling.new == rename.new]
    if len(old_names) == 1 and rename.companion is None:
        return successors
    # The compiler accepts the new flag only once, so all flags that translate to it must have the same value.
    for name in successors:
        sources = [name.name, *(old_names if name.name == rename.new else [])]
        peers = [peer for peer in parsed_flags if peer.name in sources and peer is not flag]
        differing = next((peer for peer in peers if peer.value != name.value), None)
        if differing is not None:
            raise _UntranslatableError(
                f"this IREE calls it --{name.name}, which {differing.text} also sets: keep one of them"
            )
    # If an earlier flag gives the same value, the new flag is not repeated.
    if any(peer.name in old_names and peer.value == flag.value for peer in parsed_flags[: parsed_flags.index(flag)]):
        return []
    return [successor for successor in successors if all(peer.name != successor.name for peer in parsed_flags)]


def _require_companion(rename: FlagRename, companion: tuple[str, str], parsed_flags: Sequence[Flag]) -> None:
    """Check that the new flag and its companion are both given; only together they replace the old flag."""
    name, value = companion
    values = [parsed_flag.value for parsed_flag in parsed_flags if parsed_flag.name == name]
    if values != [value] or all(parsed_flag.name != rename.new for parsed_flag in parsed_flags):
        raise _UntranslatableError(
            f"this IREE calls it --{rename.old}, which means --{rename.new}=... "
            f"together with --{name}={value}: the spec must give both"
        )


def _map_value(flag: Flag, values: Iterable[tuple[str, str]], name: str) -> str | None:
    """Return the value that a flag's value becomes under another name."""
    table = dict(values)
    if not table:
        return flag.value
    value = table.get((flag.value or "").lower())
    if value is None:
        values_text = ", ".join(old_value for old_value in table if old_value)
        raise _UntranslatableError(f"this IREE calls it --{name}, which can express only --{flag.name}={values_text}")
    return value


def _make_unknown_flag_hint(flag: Flag, renames: Sequence[FlagRename], flag_set: FlagSet, tool: str) -> str:
    """Make the hint for a flag without any known name."""
    releases = read_flag_releases()
    supporting = releases.with_flag(tool, flag.name)
    if supporting and not any(flag.name in (rename.old, rename.new) for rename in renames):
        missing = [release for release in releases.releases if release not in supporting]
        is_in_newest = supporting[-1] == releases.releases[-1]
        advice = "use a release that has it" if is_in_newest else "it has no replacement: remove it from the spec"
        return f"{_format_supporting_releases(supporting)} it, {_format_supporting_releases(missing)} not: {advice}"
    for rename in renames:
        if flag.name in (rename.old, rename.new):
            other_name = rename.new if flag.name == rename.old else rename.old
            return f"its other name, --{other_name}, is not known either ({rename.release_note})"
    nearest = flag_set.find_nearest(flag.name)
    return f"did you mean --{nearest}?" if nearest else f"see all flags: {tool} {_HELP_FLAGS[tool]}"


def _format_supporting_releases(releases: Sequence[str]) -> str:
    """Format a list of releases: `3.5.0, 3.9.0 and 3.12.0 have`."""
    *earlier, last = releases
    return f"{', '.join(earlier)} and {last} have" if earlier else f"{last} has"
