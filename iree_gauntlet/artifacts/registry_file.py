"""The registry of hashes, in Pooch's format: `name algorithm:hash url` a line, comments begin with `#`.

The format is Pooch's (`Pooch.load_registry`), so any tool that knows Pooch can use the file. Ours is
stricter where a mistake would pass silently: the hash must be a SHA-256 (the one that cache keys are
made of), and a name must not stand there twice. A parser of our own names file and line of what is wrong.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.settings import find_shipped_folder, read_file, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# In a project.
_PLACE = "cache/registry.txt"
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
# Printable ASCII without quotes and backslashes: a shell parts such a line at its blanks, as `str.split` does.
_UNQUOTED = re.compile(r"[ \t!#-&(-\[\]-~]*\Z")
_BARE = re.compile(r"[A-Za-z0-9_@%+=:,./~-]+\Z")


@dataclass(frozen=True, slots=True, order=True)
class RegistryEntry:
    """One file: its name in the store, its hash in lower case, and where it comes from, if that was written."""

    name: str
    sha256: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Pin:
    """The hash that an artifact must have, by the "registry" or the "lock"."""

    source: str
    sha256: str
    url: str
    path: Path


@dataclass(frozen=True, slots=True)
class Registry:
    """Known hashes by name, and the file that they were read from, for messages."""

    path: Path = Path("registry.txt")
    entries: Mapping[str, RegistryEntry] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of_project(cls, project: Path) -> Registry:
        """The registry of a project; where it has none, the hashes that come with the toolkit."""
        path = shown(project / _PLACE)
        return cls.read(path) if path.exists() else cls(path, cls.read(find_shipped_folder() / _PLACE).entries)

    @classmethod
    def read(cls, path: Path) -> Registry:
        """The registry in a file; an empty one where there is no file.

        Raises:
            ArtifactError: it cannot be read or has a line that is wrong; names file and line.
        """
        try:
            text = read_file(path).decode()
        except FileNotFoundError:
            return cls(path)
        except UnicodeDecodeError as error:
            raise ArtifactError("", f"{path}: not UTF-8 at byte {error.start}", "Save it as UTF-8.") from error
        except OSError as error:
            raise ArtifactError("", f"{path}: cannot be read: {error.strerror}", "It is a text file.") from error
        return cls.parse(text, path)

    @classmethod
    def parse(cls, text: str, path: Path) -> Registry:
        """The registry that the text of a file means."""
        entries: dict[str, RegistryEntry] = {}
        lines: dict[str, int] = {}
        for number, line in enumerate(text.split("\n"), start=1):
            entry = _parse_entry(line.strip(), f"{path}:{number}")
            if entry is None:
                continue
            if entry.name in entries:
                what = f"{path}:{number}: {entry.name} stands there twice (first in line {lines[entry.name]})"
                raise ArtifactError(entry.url, what, "Keep the line whose hash is right.")
            entries[entry.name], lines[entry.name] = entry, number
        return cls(path, MappingProxyType(entries))

    def get(self, name: str) -> RegistryEntry | None:
        """The entry of a name."""
        return self.entries.get(name)

    def pin(self, name: str, source: str) -> Pin | None:
        """The entry of a name as a pin."""
        entry = self.get(name)
        return Pin(source, entry.sha256, entry.url, self.path) if entry else None

    def with_entries(self, added: Iterable[RegistryEntry]) -> Registry:
        """A registry with more entries; one of the same name is replaced."""
        return Registry(self.path, MappingProxyType({**self.entries, **{entry.name: entry for entry in added}}))

    def text(self) -> str:
        """The file's text, sorted by name."""
        lines = []
        for entry in sorted(self.entries.values()):
            words = (entry.name, f"sha256:{entry.sha256}", *([entry.url] if entry.url else []))
            # Quoted only where a shell would need it, so that ordinary lines stay as people write them.
            lines.append(" ".join(word if _BARE.match(word) else shlex.quote(word) for word in words) + "\n")
        return "".join(lines)


@dataclass(frozen=True, slots=True)
class Pins:
    """The hashes that artifacts must have."""

    registry: Registry
    learnt: Registry

    def of(self, name: str) -> Pin | None:
        """What is known of a name; None where neither of the two knows it."""
        return self.registry.pin(name, "registry") or self.learnt.pin(name, "lock")


def _parse_entry(line: str, where: str) -> RegistryEntry | None:
    if not line or line.startswith("#"):
        return None
    expected = "Expected: name sha256:<64 hexadecimal digits> url"
    try:
        words = line.split() if _UNQUOTED.match(line) else shlex.split(line)
    except ValueError as error:
        raise ArtifactError("", f"{where}: {error}: {line!r}", expected) from error
    if len(words) not in (2, 3):
        raise ArtifactError("", f"{where}: {len(words)} words instead of 2 or 3: {line!r}", expected)
    name, digest, url = (*words, "")[:3]
    algorithm, colon, value = digest.rpartition(":")
    if colon and algorithm.lower() != "sha256":
        raise ArtifactError(url, f"{where}: hash of algorithm {algorithm!r}, not sha256", expected)
    if not _SHA256.match(value.lower()):
        raise ArtifactError(url, f"{where}: not a SHA-256: {digest!r}", expected)
    if name.startswith(("/", "\\")) or ".." in name.split("/") or not name:
        raise ArtifactError(url, f"{where}: a name outside the store: {name!r}", expected)
    return RegistryEntry(name, value.lower(), url)
