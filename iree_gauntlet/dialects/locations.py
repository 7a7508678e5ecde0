"""Where what a spec names lies.

A URL stays as it is, `file:///…` too. A relative path never leaves the folder that it is relative to. An absolute path
is taken only in fields that are called `…_path`, which name files of the machine, as `file:///…` does.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.dialects.spec_file import problem_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.errors import Problem


EXTERNAL_HINT = "--external-file-directory names the folder of such files"

# Bytes: of a name on the file systems of Linux, macOS and Windows, and of a path with its folders on macOS.
_LONGEST_NAME = 255
_LONGEST_PATH = 1024
# Of one letter, it would be a drive.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+:")


def problem(spec: Spec, path: Sequence[str | int], message: str, hint: str = "") -> Problem:
    """A problem at a field of a spec."""
    return problem_at(spec.name, spec.text, path, message, hint)


def file_path(url: str) -> str:
    """The path that a `file:` URL means; empty for another URL."""
    return unquote(urlsplit(url).path) if url.startswith("file:") else ""


def is_url(source: str) -> bool:
    """Whether a source says its scheme; another is a path."""
    return _SCHEME.match(source) is not None


# What to do about a URL that cannot be read.
BRACKETS_HINT = "Brackets in a path are written %5B and %5D."


def unreadable(url: str) -> str:
    """Why a text with a scheme is no URL; empty where it is one."""
    try:
        urlsplit(url)
    except ValueError as error:
        return f"{url!r} is not a URL: {error}"
    return ""


def _readable(spec: Spec, path: Sequence[str | int], url: str) -> str | Problem:
    why = unreadable(url)
    return problem(spec, path, why, BRACKETS_HINT) if why else url


def resolve_url(spec: Spec, path: Sequence[str | int], source: str) -> str | Problem:
    """The absolute URL that a `source` means.

    A source with a scheme stays as it is; another is a path relative to the spec's folder, must stay inside
    the spec tree, and becomes a `file:` URL.
    """
    if is_url(source):
        return _readable(spec, path, source)
    if PurePosixPath(source).is_absolute() or PureWindowsPath(source).drive or "\\" in source:
        message = f"{source!r} is an absolute path or has backslashes: expected a URL or a path relative to the spec"
        return problem(spec, path, message, "Write file:///… for a file outside the spec tree.")
    resolved = (spec.path.parent / source).resolve()
    if not resolved.is_relative_to(spec.tree.folder):
        return problem(
            spec,
            path,
            f"{source!r} leaves the spec folder {spec.tree.folder}",
            "Keep the file inside, or write file:///…",
        )
    return resolved.as_uri()


def torch_url(spec: Spec, path: Sequence[str | int], source: str, module_folders: Sequence[Path] = ()) -> str | Problem:
    """The URL that a torch model's `url` or `mlir` means.

    A source with a scheme stays as it is; another is a file in one of `module_folders` where some are given, else
    in the external files folder or next to the spec. The file need not exist.
    """
    if is_url(source):
        return _readable(spec, path, source)
    wrong = _not_inside(spec, path, source, "module" if module_folders else "external files")
    if wrong:
        return wrong
    folders = module_folders or (spec.tree.external, spec.path.parent)
    places = [folder / source for folder in folders]
    missing = next((place for place in places if place.parent.is_dir()), places[0])
    return next((place for place in places if place.is_file()), missing).absolute().as_uri()


def _not_inside(spec: Spec, path: Sequence[str | int], name: str, folder: str) -> Problem | None:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
        message = f"{name!r} leaves the {folder} folder: expected a relative path without '..'"
        return problem(spec, path, message, "Name the file alone and put it there, or write file:///….")
    too_long = _too_long(spec, path, name)
    if too_long or PurePosixPath(name).parts:
        return too_long
    return problem(spec, path, f"{name!r} is the {folder} folder itself: expected a file in it", "Name the file.")


def _too_long(spec: Spec, path: Sequence[str | int], name: str) -> Problem | None:
    if any(len(part.encode()) > _LONGEST_NAME for part in PurePosixPath(name).parts):
        return problem(spec, path, f"{name[:40] + '…'!r} has a longer name than a file can have", "Shorten it.")
    if len(name.encode()) > _LONGEST_PATH:
        return problem(spec, path, f"{name[:40] + '…'!r} has a longer path than a file can have", "Shorten it.")
    return None


def external_file(spec: Spec, path: Sequence[str | int], name: str) -> Path | Problem:
    """The file that a spec names without a URL: in the external files folder, or below the spec's root.

    The file need not exist: planning continues without it and says so.
    """
    wrong = _not_inside(spec, path, name, "external files")
    if wrong:
        return wrong
    candidates = [spec.tree.external / name, spec.root / name, spec.tree.folder / name]
    candidates.append(spec.tree.external / PurePosixPath(name).name)
    return next((candidate for candidate in candidates if candidate.is_file()), candidates[-1])


def machine_file(spec: Spec, path: Sequence[str | int], name: str) -> Path | Problem:
    """The file that a field called `…_path` names: where it lies, or an external file. It need not exist."""
    if not PurePosixPath(name).is_absolute():
        return external_file(spec, path, name)
    return _too_long(spec, path, name) or Path(name)
