"""The registry of hashes, in Pooch's format: lines of `name algorithm:hash url`; comments begin with `#`.

Any tool that supports Pooch (`Pooch.load_registry`) can use the file. This parser is stricter where a mistake would
pass silently: the hash must be a SHA-256, which cache keys are made of, and names must be unique. Its errors name file
and line.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.settings import find_shipped_folder, format_path, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# The path is relative to a project.
_REGISTRY_PATH = "cache/registry.txt"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
# Printable ASCII without quotes and backslashes: for such lines, `str.split` gives the same fields as a shell.
_QUOTE_FREE_LINE = re.compile(r"[ \t!#-&(-\[\]-~]*\Z")
_SHELL_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./~-]+\Z")


@dataclass(frozen=True, slots=True, order=True)
class RegistryEntry:
    """A file's name in the store, its SHA-256 in lower case, and its URL (empty if not in the registry)."""

    name: str
    sha256: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Pin:
    """The hash that an artifact must have, and the source of that hash: "registry" or "lock"."""

    source: str
    sha256: str
    url: str
    path: Path


@dataclass(frozen=True, slots=True)
class Registry:
    """Known hashes by name; the path of their file is for messages."""

    path: Path = Path("registry.txt")
    entries: Mapping[str, RegistryEntry] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of_project(cls, project: Path) -> Registry:
        """Return a project's registry, or the toolkit's own if the project has none."""
        path = format_path(project / _REGISTRY_PATH)
        return cls.read(path) if path.exists() else cls(path, cls.read(find_shipped_folder() / _REGISTRY_PATH).entries)

    @classmethod
    def read(cls, path: Path) -> Registry:
        """Read the registry from a file; empty if there is no file.

        Raises:
            ArtifactError: the file is unreadable or has a wrong line; the message names file and line.
        """
        try:
            text = read_file(path).decode()
        except FileNotFoundError:
            return cls(path)
        except UnicodeDecodeError as error:
            raise ArtifactError("", f"{path}: not UTF-8 at byte {error.start}", "Save it as UTF-8.") from error
        except OSError as error:
            raise ArtifactError("", f"{path}: cannot be read: {error.strerror}", "It must be a text file.") from error
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: Path) -> Registry:
        """Parse the registry from a file's text."""
        entries: dict[str, RegistryEntry] = {}
        lines: dict[str, int] = {}
        for number, line in enumerate(text.split("\n"), start=1):
            entry = _parse_entry(line.strip(), f"{path}:{number}")
            if entry is None:
                continue
            if entry.name in entries:
                message = f"{path}:{number}: {entry.name} is listed twice (first on line {lines[entry.name]})"
                raise ArtifactError(entry.url, message, "Keep the line with the correct hash.")
            entries[entry.name], lines[entry.name] = entry, number
        return cls(path, MappingProxyType(entries))

    def get(self, name: str) -> RegistryEntry | None:
        """Return the entry of a name, if there is one."""
        return self.entries.get(name)

    def pin(self, name: str, source: str) -> Pin | None:
        """Return the entry of a name as a pin, if there is one."""
        entry = self.get(name)
        return Pin(source, entry.sha256, entry.url, self.path) if entry else None

    def with_entries(self, new_entries: Iterable[RegistryEntry]) -> Registry:
        """Return a registry with further entries; they replace entries of the same name."""
        return Registry(self.path, MappingProxyType({**self.entries, **{entry.name: entry for entry in new_entries}}))

    def text(self) -> str:
        """Return the file's text, sorted by name."""
        lines = []
        for entry in sorted(self.entries.values()):
            fields = (entry.name, f"sha256:{entry.sha256}", *([entry.url] if entry.url else []))
            # Fields are quoted only if a shell needs quotes, so that ordinary lines stay as people write them.
            lines.append(" ".join(text if _SHELL_SAFE.match(text) else shlex.quote(text) for text in fields) + "\n")
        return "".join(lines)


@dataclass(frozen=True, slots=True)
class Pins:
    """The hashes that artifacts must have."""

    registry: Registry
    lock_file: Registry

    def of(self, name: str) -> Pin | None:
        """Return the pin of a name; None if neither source has one."""
        return self.registry.pin(name, "registry") or self.lock_file.pin(name, "lock")


def _parse_entry(line: str, location: str) -> RegistryEntry | None:
    if not line or line.startswith("#"):
        return None
    hint = "Expected: name sha256:<64 hexadecimal digits> url"
    try:
        fields = line.split() if _QUOTE_FREE_LINE.match(line) else shlex.split(line)
    except ValueError as error:
        raise ArtifactError("", f"{location}: {error}: {line!r}", hint) from error
    if len(fields) not in (2, 3):
        raise ArtifactError("", f"{location}: {len(fields)} words instead of 2 or 3: {line!r}", hint)
    name, digest, url = (*fields, "")[:3]
    algorithm, colon, hexdigest = digest.rpartition(":")
    if colon and algorithm.lower() != "sha256":
        raise ArtifactError(url, f"{location}: hash algorithm {algorithm!r} instead of sha256", hint)
    if not _SHA256.match(hexdigest.lower()):
        raise ArtifactError(url, f"{location}: not a SHA-256: {digest!r}", hint)
    if name.startswith(("/", "\\")) or ".." in name.split("/") or not name:
        raise ArtifactError(url, f"{location}: a name outside the store: {name!r}", hint)
    return RegistryEntry(name, hexdigest.lower(), url)
