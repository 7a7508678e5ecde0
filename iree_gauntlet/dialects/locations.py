"""Where what a spec names lies.

A URL stays as it is, `file:///…` too. A relative path never leaves the folder that it is relative to. An absolute path
is taken only in fields that are called `…_path`, which name files of the machine, as `file:///…` does.

In place of `${NAME}` stands the value of a variable. The programs of iree-test-suites put `IREE_TEST_PATH_EXTENSION`,
the folder of tuning files, in the place of its name before they start the compiler; where it is not set, the folder of
the case. No other variable of a machine reaches a command line.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.dialects.json_text import without_comments
from iree_gauntlet.dialects.spec_file import load_json, problem_at, strings_in
from iree_gauntlet.errors import GauntletError, Problem
from iree_gauntlet.targets import Target, target_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.dialects.spec import Spec


EXTERNAL_HINT = "--external-file-directory names the folder of such files"

# Bytes: of a name on the file systems of Linux, macOS and Windows, and of a path with its folders on macOS.
_LONGEST_NAME = 255
_LONGEST_PATH = 1024
# Of one letter, it would be a drive.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+:")
CASE_FOLDER = "IREE_TEST_PATH_EXTENSION"
_FLAG_VARIABLES = (CASE_FOLDER, "IREE_TEST_FILES", "ROCM_CHIP", "SKU")
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_TARGET_FLAGS = ("iree-hal-target-device", "iree-hal-target-backends", "iree-hal-local-target-device-backends")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_CHIP_FLAGS = {
    "rocm": ("iree-rocm-target", "iree-hip-target"),
    "cuda": ("iree-cuda-target",),
    "vulkan": ("iree-vulkan-target",),
    "metal": ("iree-metal-target",),
}
# What to do about a URL that cannot be read.
BRACKETS_HINT = "Brackets in a path are written %5B and %5D."


def problem(spec: Spec, path: Sequence[str | int], message: str, hint: str = "") -> Problem:
    """A problem at a field of a spec."""
    return problem_at(spec.name, spec.text, path, message, hint)


def file_path(url: str) -> str:
    """The path that a `file:` URL means; empty for another URL."""
    return unquote(urlsplit(url).path) if url.startswith("file:") else ""


def is_url(source: str) -> bool:
    """Whether a source says its scheme; another is a path."""
    return _SCHEME.match(source) is not None


def outside(name: str) -> bool:
    """Whether a file's name is no path inside a folder."""
    return name.startswith("/") or "\\" in name or ".." in name.split("/") or not name.strip("./")


def unreadable(url: str) -> str:
    """Why a text with a scheme is no URL; empty where it is one."""
    try:
        urlsplit(url)
    except ValueError as error:
        return f"{url!r} is not a URL: {error}"
    return ""


def _require_readable(spec: Spec, path: Sequence[str | int], url: str) -> str | Problem:
    why = unreadable(url)
    return problem(spec, path, why, BRACKETS_HINT) if why else url


def resolve_url(spec: Spec, path: Sequence[str | int], source: str) -> str | Problem:
    """The absolute URL that a `source` means.

    A source with a scheme stays as it is; another is a path relative to the spec's folder, must stay inside
    the spec tree, and becomes a `file:` URL.
    """
    if is_url(source):
        return _require_readable(spec, path, source)
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
        return _require_readable(spec, path, source)
    wrong = _check_inside(spec, path, source, "module" if module_folders else "external files")
    if wrong:
        return wrong
    folders = module_folders or (spec.tree.external, spec.path.parent)
    places = [folder / source for folder in folders]
    missing = next((place for place in places if place.parent.is_dir()), places[0])
    return next((place for place in places if place.is_file()), missing).absolute().as_uri()


def _check_inside(spec: Spec, path: Sequence[str | int], name: str, folder: str) -> Problem | None:
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
        message = f"{name!r} leaves the {folder} folder: expected a relative path without '..'"
        return problem(spec, path, message, "Name the file alone and put it there, or write file:///….")
    too_long = _check_length(spec, path, name)
    if too_long or PurePosixPath(name).parts:
        return too_long
    return problem(spec, path, f"{name!r} is the {folder} folder itself: expected a file in it", "Name the file.")


def _check_length(spec: Spec, path: Sequence[str | int], name: str) -> Problem | None:
    if any(len(part.encode()) > _LONGEST_NAME for part in PurePosixPath(name).parts):
        return problem(spec, path, f"{name[:40] + '…'!r} has a longer name than a file can have", "Shorten it.")
    if len(name.encode()) > _LONGEST_PATH:
        return problem(spec, path, f"{name[:40] + '…'!r} has a longer path than a file can have", "Shorten it.")
    return None


def external_file(spec: Spec, path: Sequence[str | int], name: str) -> Path | Problem:
    """The file that a spec names without a URL: in the external files folder, or below the spec's root.

    The file need not exist: planning continues without it and says so.
    """
    wrong = _check_inside(spec, path, name, "external files")
    if wrong:
        return wrong
    candidates = [spec.tree.external / name, spec.root / name, spec.tree.folder / name]
    candidates.append(spec.tree.external / PurePosixPath(name).name)
    return next((candidate for candidate in candidates if candidate.is_file()), candidates[-1])


def machine_file(spec: Spec, path: Sequence[str | int], name: str) -> Path | Problem:
    """The file that a field called `…_path` names: where it lies, or an external file. It need not exist."""
    if not PurePosixPath(name).is_absolute():
        return external_file(spec, path, name)
    return _check_length(spec, path, name) or Path(name)


def flag_variables() -> dict[str, str]:
    """Names and values of those that are set, and not empty."""
    return {name: os.environ[name] for name in _FLAG_VARIABLES if os.environ.get(name)}


def with_variables(flag: str, values: Mapping[str, str]) -> str:
    """A flag with values in the place of their variables; others stay."""
    return _VARIABLE.sub(lambda match: values.get(match[1], match[0]), flag) if "${" in flag else flag


def strange_variables(flag: str, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with each variable of a flag that has no value, and what to do."""
    for name in dict.fromkeys(_VARIABLE.findall(flag)):
        if name in _FLAG_VARIABLES and name not in values:
            yield f"${{{name}}}: the variable is not set", f"Set {name} in the environment."
        elif name not in values:
            yield f"${{{name}}} is not a variable of flags", f"Known: {', '.join(_FLAG_VARIABLES)}."


def resolved_flags(spec: Spec, field: str, flags: Sequence[str]) -> tuple[tuple[str, ...], list[Problem]]:
    """The flags of a spec's field with the values of their variables, and what is wrong with these."""
    values = dict(spec.tree.variables)
    problems = [
        problem(spec, [field, index], what, hint)
        for index, flag in enumerate(flags)
        for what, hint in strange_variables(flag, values)
    ]
    return tuple(with_variables(flag, values) for flag in flags), problems


def target_of_flags(flags: Iterable[str]) -> Target:
    """The target that compile flags name; the CPU where they name none.

    A local device is the CPU, or VMVX where its backend says so. A device that this toolkit does not know is a
    family of its own: nothing selects it by accident.
    """
    values: dict[str, str] = {}
    for flag in flags:
        name, _, value = flag.lstrip("-").partition("=")
        # One of several, perhaps with a name of its own: `main=hip[0],other=local`.
        values[name] = value.split(",")[0].rpartition("=")[2].split("://")[0].split("[")[0]
    named = [values[name] for name in _TARGET_FLAGS if values.get(name)]
    found = next((target for name in named if (target := target_of(name))), None)
    if found is None:
        unknown = next((name for name in named if _NAME.fullmatch(name)), "cpu")
        return Target(unknown)
    if found.family == "cpu" and values.get(_TARGET_FLAGS[-1]) == "vmvx":
        return Target("vmvx")
    flags_of_family = _CHIP_FLAGS.get(found.family, ())
    chip = next((values[name].split(":")[0] for name in flags_of_family if values.get(name)), "")
    return target_of(f"{found.family}-{chip}") or found


def devices_of_flags(flags: Iterable[str]) -> str:
    """The devices that a run's flags name, for the lock: one may be named several times."""
    values = [flag.partition("=")[2].strip('"') for flag in flags if flag.lstrip("-").startswith("device=")]
    return ",".join(dict.fromkeys(values))


def names_device(flag: str) -> bool:
    """Whether a run's flag names a device."""
    return flag.lstrip("-").startswith("device=")


def with_device(flags: Sequence[str], device: str) -> tuple[str, ...]:
    """A run's flags with one device in place of all that they name."""
    kept = [flag for flag in flags if not names_device(flag)]
    place = next((index for index, flag in enumerate(flags) if names_device(flag)), len(kept))
    return (*kept[:place], f"--device={device}", *kept[place:])


def problem_of_flag(file: str, flag: str, message: str, hint: str = "") -> Problem:
    """A problem of a flag: at the first value of a JSON file that is the flag, else at the first line that has it.

    A flag that is not found as it is given (it is made of variables) gives a problem without a line.
    """
    path = Path(file)
    try:
        document, text, _ = load_json(path, file, without_comments)
        place = next((place for place, found in strings_in(document) if found.strip() == flag.strip()), None)
        if place is not None:
            return problem_at(file, text, place, message, hint)
    except GauntletError:
        # A flagfile, or YAML.
        pass
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    line = next((number for number, line in enumerate(lines, 1) if flag in line), 0)
    return Problem(file, line, "", message, hint)
