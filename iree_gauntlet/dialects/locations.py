"""Where what a spec names lies, and what its flags name.

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
from iree_gauntlet.targets import Target, parse_target

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
# What to do about a URL that cannot be read.
BRACKETS_HINT = "Brackets in a path are written %5B and %5D."


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


class SpecReader:
    """Resolves what the fields of a spec name, and collects what is wrong with it.

    What cannot be used is empty, or None.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.problems: list[Problem] = []

    def refuse(self, path: Sequence[str | int], message: str, hint: str = "") -> None:
        """A field cannot be used."""
        self.problems.append(problem_at(self.spec.name, self.spec.text, path, message, hint))

    def url(self, path: Sequence[str | int], source: str) -> str:
        """The absolute URL that a `source` means; a path, relative to the spec's folder, stays inside the spec tree.

        A link in the tree may lead out of it, and to a file without a type, as those of the Hugging Face hub and of DVC
        do: what is read is called as the link is.
        """
        if is_url(source):
            return self._require_readable(path, source)
        if PurePosixPath(source).is_absolute() or PureWindowsPath(source).drive or "\\" in source:
            what = f"{source!r} is an absolute path or has backslashes: expected a URL or a path relative to the spec"
            self.refuse(path, what, "Write file:///… for a file outside the spec tree.")
            return ""
        # Without following links.
        path_of_file = Path(os.path.normpath(self.spec.path.parent / source))
        if path_of_file.is_relative_to(self.spec.tree.folder):
            return path_of_file.as_uri()
        what = f"{source!r} leaves the spec folder {self.spec.tree.folder}"
        self.refuse(path, what, "Keep the file inside, or write file:///…")
        return ""

    def torch_url(self, path: Sequence[str | int], source: str, module_folders: Sequence[Path] = ()) -> str:
        """The URL that a torch model's `url` or `mlir` means. The file need not exist.

        A path is of a file in one of `module_folders` where some are given, else in the external files folder or next
        to the spec.
        """
        if is_url(source):
            return self._require_readable(path, source)
        if not self._is_inside(path, source, "module" if module_folders else "external files"):
            return ""
        folders = module_folders or (self.spec.tree.external, self.spec.path.parent)
        places = [folder / source for folder in folders]
        missing = next((place for place in places if place.parent.is_dir()), places[0])
        return next((place for place in places if place.is_file()), missing).absolute().as_uri()

    def external_file(self, path: Sequence[str | int], name: str) -> Path | None:
        """The file that a spec names without a URL: an external file, or below the spec's root. It need not exist."""
        if not self._is_inside(path, name, "external files"):
            return None
        tree = self.spec.tree
        candidates = [tree.external / name, self.spec.root / name, tree.folder / name]
        candidates.append(tree.external / PurePosixPath(name).name)
        return next((candidate for candidate in candidates if candidate.is_file()), candidates[-1])

    def machine_file(self, path: Sequence[str | int], name: str) -> Path | None:
        """The file that a field called `…_path` names: where it lies, or an external file. It need not exist."""
        if not PurePosixPath(name).is_absolute():
            return self.external_file(path, name)
        return Path(name) if self._is_short(path, name) else None

    def flags(self, field: str, flags: Sequence[str]) -> tuple[str, ...]:
        """The flags of a field, with the values of their variables."""
        values = dict(self.spec.tree.variables)
        for index, flag in enumerate(flags):
            for what, hint in strange_variables(flag, values):
                self.refuse([field, index], what, hint)
        return tuple(with_variables(flag, values) for flag in flags)

    def _require_readable(self, path: Sequence[str | int], url: str) -> str:
        if why := unreadable(url):
            self.refuse(path, why, BRACKETS_HINT)
        return "" if why else url

    def _is_inside(self, path: Sequence[str | int], name: str, folder: str) -> bool:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
            what = f"{name!r} leaves the {folder} folder: expected a relative path without '..'"
            self.refuse(path, what, "Name the file alone and put it there, or write file:///….")
            return False
        if PurePosixPath(name).parts:
            return self._is_short(path, name)
        self.refuse(path, f"{name!r} is the {folder} folder itself: expected a file in it", "Name the file.")
        return False

    def _is_short(self, path: Sequence[str | int], name: str) -> bool:
        parts = PurePosixPath(name).parts
        what = "name" if any(len(part.encode()) > _LONGEST_NAME for part in parts) else "path"
        if what == "path" and len(name.encode()) <= _LONGEST_PATH:
            return True
        self.refuse(path, f"{name[:40] + '…'!r} has a longer {what} than a file can have", "Shorten it.")
        return False


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
    found = next((target for name in named if (target := parse_target(name))), None)
    if found is None:
        return Target(next((name for name in named if _NAME.fullmatch(name)), "cpu"))
    local = parse_target(values.get(_TARGET_FLAGS[-1], ""))
    if found.kind.is_cpu and local and local.kind.device == found.kind.device:
        return local
    names = [flag.lstrip("-") for flag in found.kind.chip_flags]
    chip = next((values[name].split(":")[0] for name in names if values.get(name)), "")
    return parse_target(f"{found.family}-{chip}") or found


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
