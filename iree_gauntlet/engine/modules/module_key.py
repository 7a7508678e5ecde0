"""The key of a compiled module: a hash of all that it depends on (`complete_compile` in `engine/plan.py` lists it).

A key must change whenever the module might change. It must not change with facts that cannot change the module: the
locations of files, and the destinations of other outputs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


# A new number invalidates every earlier entry.
_KEY_FORMAT = 1

# The values of these flags of iree-compile (3.13) are paths of outputs; they do not change the module. Flags that only
# look alike (--compile-to, --output-format) change it.
_OUTPUT_FLAGS = frozenset(
    {
        "o",
        "dump-compilation-phases-to",
        "iree-codegen-dump-tuning-specs-to",
        "iree-flow-dump-dispatch-graph-output-file",
        "iree-scheduling-dump-statistics-file",
        "iree-util-hoist-into-globals-print-constexpr-dotgraph-to",
        "iree-parameter-encoder-output-file",
        "log-actions-to",
        "profile-actions-to",
        "mlir-generate-reproducer",
        "mlir-pass-pipeline-crash-reproducer",
        "mlir-print-ir-tree-dir",
        "remarks-output-file",
    }
)
_OUTPUT_PATTERN = re.compile(r"iree-hal-dump-executable-[a-z-]+-to|save-temp-iree-input|mlir-.*-reproducer")
# The values of these flags are outputs too, but the compiler writes the scope of `scope=path` into the module.
_SCOPED_OUTPUT_FLAGS = frozenset(
    {"iree-opt-export-parameters", "iree-opt-splat-parameters", "iree-parameter-export", "iree-parameter-splat"}
)
_HASH = re.compile(r"(?:sha256:)?[0-9a-f]{32,}")
# These characters separate a file name from the rest of a flag's value.
_SEPARATOR = re.compile("[,=@]")
_MAX_CHANGES = 3
_MAX_VALUE_CHARS = 80


def format_canonical_json(document: object) -> bytes:
    """Format a document in its canonical form: sorted keys, no white space, ASCII."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def make_key(ingredients: Mapping[str, str]) -> str:
    """Return the SHA-256 of a module's ingredients in hex; the order of the mapping makes no difference."""
    document = {"format": _KEY_FORMAT, "ingredients": dict(ingredients)}
    return hashlib.sha256(format_canonical_json(document)).hexdigest()


def join_flags(flags: Iterable[str]) -> str:
    """Return flags as one ingredient: a JSON list, so that different lists of flags differ."""
    return json.dumps(list(flags))


def flag_ingredients(
    flags: Sequence[str], hash_file: Callable[[Path], str], *, folder: Path | None = None
) -> tuple[str, ...]:
    """Return compile flags (without the program) with paths replaced by what they mean; their order is kept.

    - The path of an existing file is replaced by the file's hash, also inside `scope=file`, `file@symbol` and
      `file,file`, and also as a token of its own. A name without a folder is kept next to the hash, since
      a word such as `host` may also happen to be the name of a file.
    - The path of another output is left out, but its flag is kept.
    - The path of a folder stays as text, since the folder's content is not read.

    Relative paths are resolved in `folder`, the working directory of the compile.
    """
    replace_files = partial(_replace_files, partial(_replace_file, folder or Path(), hash_file))
    result: list[str] = []
    tokens = iter(flags)
    for token in tokens:
        name, equals, value = token.partition("=")
        flag_name = name.lstrip("-")
        if not name.startswith("-"):
            result.append(replace_files(token))
        elif flag_name in _SCOPED_OUTPUT_FLAGS:
            scope, separator, _ = (value if equals else next(tokens, "")).partition("=")
            result.append(f"{name}={scope if separator else ''}")
        elif flag_name in _OUTPUT_FLAGS or _OUTPUT_PATTERN.fullmatch(flag_name):
            if not equals:
                next(tokens, "")
            result.append(f"{name}=")
        else:
            result.append(f"{name}={replace_files(value)}" if equals else token)
    return tuple(result)


def _replace_files(replace_file: Callable[[str], str | None], text: str) -> str:
    """Return a text with every file name replaced by `replace_file`, which returns None for any other text."""
    replacement = replace_file(text)
    if replacement is not None:
        return replacement
    if not _SEPARATOR.search(text):
        return text
    return ",".join(_replace_item(replace_file, entry) for entry in text.split(","))


def _replace_item(replace_file: Callable[[str], str | None], entry: str) -> str:
    """Replace the file name in one item of a list: `file`, `scope=file`, `file@symbol` or `@file`."""
    starts = [0, *([1] if entry.startswith("@") else ()), *(match.end() for match in re.finditer("=", entry))]
    for start in starts:
        ends = [match.start() for match in re.finditer("@", entry) if match.start() >= start]
        for end in (len(entry), *reversed(ends)):
            replacement = replace_file(entry[start:end])
            if replacement is not None:
                return entry[:start] + replacement + entry[end:]
    return entry


def _replace_file(base: Path, hash_file: Callable[[Path], str], text: str) -> str | None:
    if not text or "\0" in text:
        return None
    # Most values are not files, and building a Path for each would take longer than all other work here.
    if not os.path.isfile(os.path.join(base, text)):  # noqa: PTH113, PTH118
        return None
    name = "" if "/" in text else text
    return f"<{name}:{hash_file(base / text)}>"


def describe_changes(old_ingredients: Mapping[str, str], new_ingredients: Mapping[str, str]) -> str:
    """Return the differences in one line: `compiler changed: 3.12.0 → 3.13.0; flag added: --x`. Empty for none."""
    changes: list[str] = []
    for name in sorted({*old_ingredients, *new_ingredients}):
        old, new = old_ingredients.get(name), new_ingredients.get(name)
        if old == new:
            continue
        old_flags, new_flags = _parse_list(old), _parse_list(new)
        if old_flags is not None and new_flags is not None:
            changes.extend(_list_flag_changes(old_flags, new_flags))
        elif old is None or new is None or _HASH.fullmatch(old) or _HASH.fullmatch(new):
            changes.append(f"{name} changed")
        else:
            changes.append(f"{name} changed: {_shorten(old) or 'none'} → {_shorten(new) or 'none'}")
    summary = changes[:_MAX_CHANGES]
    if len(changes) > len(summary):
        summary.append(f"and {len(changes) - len(summary)} more")
    return "; ".join(summary)


def _parse_list(value: str | None) -> list[str] | None:
    if value is None or not value.startswith("["):
        return None
    try:
        entries = json.loads(value)
    except ValueError:
        return None
    return entries if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries) else None


def _list_flag_changes(old: list[str], new: list[str]) -> Iterator[str]:
    old_only = [flag for flag in old if flag not in new]
    new_only = [flag for flag in new if flag not in old]
    if not old_only and not new_only:
        yield "order or repetition of flags changed"
    for flag in old_only:
        name = flag.partition("=")[0]
        replacement = next((candidate for candidate in new_only if candidate.partition("=")[0] == name), None)
        if replacement is None:
            yield f"flag removed: {_shorten(flag)}"
        elif "<" in flag and "<" in replacement:
            new_only.remove(replacement)
            yield f"file of flag changed: {name}"
        else:
            new_only.remove(replacement)
            yield f"flag changed: {_shorten(flag)} → {_shorten(replacement)}"
    for flag in new_only:
        yield f"flag added: {_shorten(flag)}"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"
