"""The key under which a compiled module is kept: a hash of what it depends on, which `compile_step` lists.

A key must change whenever the module might, and must not change with what the module cannot depend on:
where files lie, and where other outputs go.
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


# A new number disowns every entry made before.
_KEY_FORMAT = 1

# Flags of iree-compile (3.13) whose value says where something besides the module is written. Flags that
# only look alike (--compile-to, --output-format) change the module.
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
# Outputs too, but a scope before the path (`scope=path`) is written into the module.
_SCOPED_OUTPUT_FLAGS = frozenset(
    {"iree-opt-export-parameters", "iree-opt-splat-parameters", "iree-parameter-export", "iree-parameter-splat"}
)
_HASH = re.compile(r"(?:sha256:)?[0-9a-f]{32,}")
# What parts a file from the rest of a value.
_PARTED = re.compile("[,=@]")
_SHOWN_CHANGES = 3
_SHOWN_CHARACTERS = 80


def format_canonical_json(document: object) -> bytes:
    """The one way to write a document: sorted keys, no white space, ASCII."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def make_key(ingredients: Mapping[str, str]) -> str:
    """SHA-256, in hex, of what goes into a module; the order of the mapping does not count."""
    document = {"format": _KEY_FORMAT, "ingredients": dict(ingredients)}
    return hashlib.sha256(format_canonical_json(document)).hexdigest()


def join_flags(flags: Iterable[str]) -> str:
    """Flags as one ingredient: a JSON list, so that no two lists of flags read alike."""
    return json.dumps(list(flags))


def flag_ingredients(
    flags: Sequence[str], hash_file: Callable[[Path], str], *, folder: Path | None = None
) -> tuple[str, ...]:
    """Compile flags (without the program) as the compiler sees them, free of paths; their order is kept.

    - A value that is an existing file is replaced by its hash, also inside `scope=file`, `file@symbol` and
      `file,file`, and also as a token of its own. A name without a folder is kept with the hash: `host`
      may be a word and the name of a file at once.
    - A value that says where another output goes is left out, and its flag is kept.
    - A folder stays as text: what it holds is not looked at.

    Relative paths lie in the `folder`, the compile's working directory.
    """
    content_of = partial(_replace_files, partial(_replace_file, folder or Path(), hash_file))
    result: list[str] = []
    tokens = iter(flags)
    for token in tokens:
        name, equals, value = token.partition("=")
        bare = name.lstrip("-")
        if not name.startswith("-"):
            result.append(content_of(token))
        elif bare in _SCOPED_OUTPUT_FLAGS:
            scope, scoped, _ = (value if equals else next(tokens, "")).partition("=")
            result.append(f"{name}={scope if scoped else ''}")
        elif bare in _OUTPUT_FLAGS or _OUTPUT_PATTERN.fullmatch(bare):
            if not equals:
                next(tokens, "")
            result.append(f"{name}=")
        else:
            result.append(f"{name}={content_of(value)}" if equals else token)
    return tuple(result)


def _replace_files(hashed: Callable[[str], str | None], text: str) -> str:
    """The text with every file in it replaced by its hash; `hashed` does it for a text that is one, else None."""
    whole = hashed(text)
    if whole is not None:
        return whole
    if not _PARTED.search(text):
        return text
    return ",".join(_replace_item(hashed, item) for item in text.split(","))


def _replace_item(hashed: Callable[[str], str | None], item: str) -> str:
    """One of a list of values: `file`, `scope=file`, `file@symbol` or `@file`."""
    starts = [0, *([1] if item.startswith("@") else ()), *(match.end() for match in re.finditer("=", item))]
    for start in starts:
        ends = [match.start() for match in re.finditer("@", item) if match.start() >= start]
        for end in (len(item), *reversed(ends)):
            found = hashed(item[start:end])
            if found is not None:
                return item[:start] + found + item[end:]
    return item


def _replace_file(base: Path, hash_file: Callable[[Path], str], text: str) -> str | None:
    if not text or "\0" in text:
        return None
    # Most values are no files, and building a Path for each would take longer than all else here.
    if not os.path.isfile(os.path.join(base, text)):  # noqa: PTH113, PTH118
        return None
    name = "" if "/" in text else text
    return f"<{name}:{hash_file(base / text)}>"


def describe_changes(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What differs, in one line: `compiler changed: 3.12.0 → 3.13.0; flag added: --x`. Empty for nothing."""
    changes: list[str] = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        old_flags, new_flags = _list_of(old), _list_of(new)
        if old_flags is not None and new_flags is not None:
            changes.extend(_list_flag_changes(old_flags, new_flags))
        elif old is None or new is None or _HASH.fullmatch(old) or _HASH.fullmatch(new):
            changes.append(f"{name} changed")
        else:
            changes.append(f"{name} changed: {_shorten(old) or 'none'} → {_shorten(new) or 'none'}")
    shown = changes[:_SHOWN_CHANGES]
    if len(changes) > len(shown):
        shown.append(f"and {len(changes) - len(shown)} more")
    return "; ".join(shown)


def _list_of(value: str | None) -> list[str] | None:
    if value is None or not value.startswith("["):
        return None
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, list) and all(isinstance(item, str) for item in found) else None


def _list_flag_changes(old: list[str], new: list[str]) -> Iterator[str]:
    gone = [flag for flag in old if flag not in new]
    come = [flag for flag in new if flag not in old]
    if not gone and not come:
        yield "order or repetition of flags changed"
    for flag in gone:
        name = flag.partition("=")[0]
        twin = next((other for other in come if other.partition("=")[0] == name), None)
        if twin is None:
            yield f"flag removed: {_shorten(flag)}"
        elif "<" in flag and "<" in twin:
            come.remove(twin)
            yield f"file of flag changed: {name}"
        else:
            come.remove(twin)
            yield f"flag changed: {_shorten(flag)} → {_shorten(twin)}"
    for flag in come:
        yield f"flag added: {_shorten(flag)}"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
