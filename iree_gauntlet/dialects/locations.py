"""Locations that a spec's fields and flags name.

A URL stays as it is, `file:///…` too. A relative path never leaves the folder that it is relative to. An absolute path
is accepted only in fields that are called `…_path`, which name files of the machine, as `file:///…` does.

`${NAME}` is replaced by the value of a variable. The programs of iree-test-suites replace
`IREE_TEST_PATH_EXTENSION` by the folder of tuning files before they start the compiler; if it is unset, by the folder
of the case. No other variable of a machine reaches a command line.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.device_kinds import VMVX
from iree_gauntlet.dialects.json_text import without_comments
from iree_gauntlet.dialects.spec_file import find_strings, load_json, make_problem_at
from iree_gauntlet.errors import GauntletError, Problem
from iree_gauntlet.targets import Target, parse_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.dialects.spec import Spec


EXTERNAL_HINT = "--external-file-directory names the folder of such files"

# The limits of a name on the file systems of Linux, macOS and Windows, and of a path with its folders on macOS.
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 1024
# A scheme of one letter would be a drive.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+:")
CASE_FOLDER = "IREE_TEST_PATH_EXTENSION"
_FLAG_VARIABLES = (CASE_FOLDER, "IREE_TEST_FILES", "ROCM_CHIP", "SKU")
_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_TARGET_FLAGS = ("iree-hal-target-device", "iree-hal-target-backends", "iree-hal-local-target-device-backends")
_TRIPLE_FLAG = "iree-llvmcpu-target-triple"
_FAMILY_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
# The hint for a URL that cannot be parsed.
BRACKETS_HINT = "Write brackets in a path as %5B and %5D."


def get_url_path(url: str) -> str:
    """Return the path of a `file:` URL; empty for another URL."""
    return unquote(urlsplit(url).path) if url.startswith("file:") else ""


def is_url(source: str) -> bool:
    """Return whether a source has a scheme; sources without a scheme are paths."""
    return _SCHEME.match(source) is not None


def is_outside(name: str) -> bool:
    """Return whether a file's name leads outside of a folder."""
    return name.startswith("/") or "\\" in name or ".." in name.split("/") or not name.strip("./")


def describe_url_error(url: str) -> str:
    """Return why a text with a scheme is not a valid URL; empty if it is valid."""
    try:
        urlsplit(url)
    except ValueError as error:
        return f"{url!r} is not a URL: {error}"
    return ""


class SpecReader:
    """A resolver of the sources in a spec's fields, which collects the spec's problems.

    If a source is unusable, the result is an empty text, or None.
    """

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.problems: list[Problem] = []

    def add_problem(self, path: Sequence[str | int], message: str, hint: str = "") -> None:
        """Add the problem of a field that cannot be used."""
        self.problems.append(make_problem_at(self.spec.name, self.spec.text, path, message, hint))

    def resolve_url(self, path: Sequence[str | int], source: str) -> str:
        """Resolve a `source` to an absolute URL; a path, relative to the spec's folder, stays inside the spec tree.

        A link in the tree may lead out of it, and to a file without a suffix, as those of the Hugging Face hub and
        of DVC
        do: the file has the link's name.
        """
        if is_url(source):
            return self._require_readable(path, source)
        if PurePosixPath(source).is_absolute() or PureWindowsPath(source).drive or "\\" in source:
            message = (
                f"{source!r} is an absolute path or has backslashes: expected a URL or a path relative to the spec"
            )
            self.add_problem(path, message, "Write file:///… for a file outside the spec tree.")
            return ""
        # This check does not follow links.
        file = Path(os.path.normpath(self.spec.path.parent / source))
        if file.is_relative_to(self.spec.tree.folder):
            return file.as_uri()
        message = f"{source!r} is outside of the spec folder {self.spec.tree.folder}"
        self.add_problem(path, message, "Keep the file inside, or write file:///…")
        return ""

    def resolve_torch_url(self, path: Sequence[str | int], source: str, module_folders: Sequence[Path] = ()) -> str:
        """Resolve a torch model's `url` or `mlir` to a URL. The file need not exist.

        A path is relative to one of `module_folders` if there are any, else to the external files folder or the
        spec's folder.
        """
        if is_url(source):
            return self._require_readable(path, source)
        if not self._is_inside(path, source, "module" if module_folders else "external files"):
            return ""
        folders = module_folders or (self.spec.tree.external, self.spec.path.parent)
        candidates = [folder / source for folder in folders]
        default = next((candidate for candidate in candidates if candidate.parent.is_dir()), candidates[0])
        return next((candidate for candidate in candidates if candidate.is_file()), default).absolute().as_uri()

    def find_external_file(self, path: Sequence[str | int], name: str) -> Path | None:
        """Find the file that a spec names without a URL (external, or below the spec's root); it need not exist."""
        if not self._is_inside(path, name, "external files"):
            return None
        tree = self.spec.tree
        candidates = [tree.external / name, self.spec.root / name, tree.folder / name]
        candidates.append(tree.external / PurePosixPath(name).name)
        return next((candidate for candidate in candidates if candidate.is_file()), candidates[-1])

    def find_machine_file(self, path: Sequence[str | int], name: str) -> Path | None:
        """Find the file that a field called `…_path` names: an absolute path, or an external file; it may not exist."""
        if not PurePosixPath(name).is_absolute():
            return self.find_external_file(path, name)
        return Path(name) if self._is_short(path, name) else None

    def expand_flags(self, field: str, flags: Sequence[str]) -> tuple[str, ...]:
        """Return the flags of a field, with the values of their variables."""
        values = dict(self.spec.tree.variables)
        for index, flag in enumerate(flags):
            for message, hint in find_unknown_variables(flag, values):
                self.add_problem([field, index], message, hint)
        return tuple(with_variables(flag, values) for flag in flags)

    def _require_readable(self, path: Sequence[str | int], url: str) -> str:
        if error := describe_url_error(url):
            self.add_problem(path, error, BRACKETS_HINT)
        return "" if error else url

    def _is_inside(self, path: Sequence[str | int], name: str, folder: str) -> bool:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
            message = f"{name!r} is outside of the {folder} folder: expected a relative path without '..'"
            self.add_problem(path, message, "Put the file into that folder and give only its name, or write file:///….")
            return False
        if PurePosixPath(name).parts:
            return self._is_short(path, name)
        self.add_problem(path, f"{name!r} is the {folder} folder itself: expected a file in it", "Name the file.")
        return False

    def _is_short(self, path: Sequence[str | int], name: str) -> bool:
        parts = PurePosixPath(name).parts
        noun = "name" if any(len(part.encode()) > _MAX_NAME_BYTES for part in parts) else "path"
        if noun == "path" and len(name.encode()) <= _MAX_PATH_BYTES:
            return True
        self.add_problem(path, f"{name[:40] + '…'!r} has a {noun} longer than the system allows", "Shorten it.")
        return False


def read_flag_variables() -> dict[str, str]:
    """Return the names and values of variables that are set and not empty."""
    return {name: os.environ[name] for name in _FLAG_VARIABLES if os.environ.get(name)}


def with_variables(flag: str, values: Mapping[str, str]) -> str:
    """Replace the variables in a flag by their values; unknown variables stay."""
    return _VARIABLE.sub(lambda match: values.get(match[1], match[0]), flag) if "${" in flag else flag


def find_unknown_variables(flag: str, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the message and hint for each variable of a flag that has no value."""
    for name in dict.fromkeys(_VARIABLE.findall(flag)):
        if name in _FLAG_VARIABLES and name not in values:
            yield f"${{{name}}}: the variable is not set", f"Set {name} in the environment."
        elif name not in values:
            yield f"${{{name}}} is not a variable for flags", f"Known: {', '.join(_FLAG_VARIABLES)}."


def find_target(flags: Iterable[str]) -> Target:
    """Find the target that compile flags name; if they name none, the target is the CPU.

    A local device is the CPU, or VMVX if its backend is that. A device that this toolkit does not support is a
    family of its own: nothing selects it by accident.
    """
    values: dict[str, str] = {}
    for flag in flags:
        name, _, value = flag.lstrip("-").partition("=")
        # The value may be a list with names: `main=hip[0],other=local`.
        values[name] = value.split(",")[0].rpartition("=")[2].split("://")[0].split("[")[0]
    target_names = [values[name] for name in _TARGET_FLAGS if values.get(name)]
    target = next((match for name in target_names if (match := parse_target(name))), None)
    if target is None:
        return Target(next((name for name in target_names if _FAMILY_NAME.fullmatch(name)), "cpu"))
    other_processor = parse_target(values.get(_TRIPLE_FLAG, "").partition("-")[0])
    # A triple of x86-64, which has no ready-made runner, is usual in specs for this machine.
    if target.kind.is_cpu and other_processor and other_processor.runner and VMVX.family not in target_names:
        return other_processor
    local_target = parse_target(values.get(_TARGET_FLAGS[-1], ""))
    if target.kind.is_cpu and local_target and local_target.kind.device == target.kind.device:
        return local_target
    names = [flag.lstrip("-") for flag in target.kind.chip_flags]
    chip = next((values[name].split(":")[0] for name in names if values.get(name)), "")
    return parse_target(f"{target.family}-{chip}") or target


def find_devices(flags: Iterable[str]) -> str:
    """Return the devices that a run's flags name, for the lock; a device may be named several times."""
    values = [flag.partition("=")[2].strip('"') for flag in flags if flag.lstrip("-").startswith("device=")]
    return ",".join(dict.fromkeys(values))


def names_device(flag: str) -> bool:
    """Return whether a run's flag names a device."""
    return flag.lstrip("-").startswith("device=")


def with_device(flags: Sequence[str], device: str) -> tuple[str, ...]:
    """Replace all devices that a run's flags name by one device."""
    other_flags = [flag for flag in flags if not names_device(flag)]
    index = next((index for index, flag in enumerate(flags) if names_device(flag)), len(other_flags))
    return (*other_flags[:index], f"--device={device}", *other_flags[index:])


def make_flag_problem(file: str, flag: str, message: str, hint: str = "") -> Problem:
    """Make a problem of a flag, located at the first JSON value that is the flag, else at the first line with the flag.

    A flag that is not found as written (because it contains variables) gives a problem without a line.
    """
    path = Path(file)
    try:
        document, text, _ = load_json(path, file, without_comments)
        keys = next(
            (keys for keys, text in find_strings(document) if flag.strip() in (text.strip(), f"-{text.strip()}")), None
        )
        if keys is not None:
            return make_problem_at(file, text, keys, message, hint)
    except GauntletError:
        # The file is not JSON, but a flagfile or YAML.
        pass
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    line = next((number for number, line in enumerate(lines, 1) if flag in line), 0)
    return Problem(file, line, "", message, hint)
