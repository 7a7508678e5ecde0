"""What is in an archive of a suite: `manifest.json`, its first file.

    {"format": 1, "suite": "cpu", "version": "0.1.0", "files": [
      {"kind": "artifact", "name": "https/host/a.irpa", "url": "https://host/a.irpa", "sha256": "…", "size": 12},
      {"kind": "module", "name": "<key>", "url": "", "sha256": "…", "size": 34}]}

The files follow in this order, under the names `files/000001` and so on. Where an artifact goes is decided by its URL
and where a module goes by its key, never by what an archive says.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.archive import DamagedArchiveError
from iree_gauntlet.artifacts.sources import PypiSource, RemoteSource, parse_source
from iree_gauntlet.engine.modules.module_entry import is_key
from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Sequence


MANIFEST_FILE = "manifest.json"
# At some 300 bytes a file, far more than any suite has.
LONGEST_MANIFEST = 64 << 20

_FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHOWN = 120


class PackedKind(StrEnum):
    """What a file of an archive is."""

    ARTIFACT = "artifact"
    MODULE = "module"


@dataclass(frozen=True, slots=True)
class Packed:
    """A file of an archive.

    Attributes:
        kind: what it is.
        name: an artifact's name in the store, or a module's key.
        url: an artifact's source; empty for a module.
        sha256: of its content; a module's is that of its own archive.
        size: bytes of its content.
    """

    kind: PackedKind
    name: str
    url: str
    sha256: str
    size: int


def member_name(index: int) -> str:
    """The name, in the archive, of the file at a place of the manifest (from 0 on)."""
    return f"files/{index + 1:06d}"


def manifest_bytes(files: Sequence[Packed], suite: str, version: str) -> bytes:
    """The manifest of an archive."""
    head = json.dumps({"format": _FORMAT, "suite": suite, "version": version})
    lines = ",\n".join(json.dumps(asdict(file)) for file in files)
    return f'{head[:-1]}, "files": [\n{lines}\n]}}\n'.encode("ascii")


def read_manifest(data: bytes) -> list[Packed]:
    """The files of an archive.

    Raises:
        DamagedArchiveError: the manifest is not as this toolkit writes it, or names what no cache keeps.
    """
    try:
        document = json.loads(data)
        if document["format"] != _FORMAT:
            raise DamagedArchiveError(
                f"its format is {document['format']!r:.{_SHOWN}}, and this toolkit reads {_FORMAT}"
            )
        found = [_packed(item) for item in document["files"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedArchiveError(f"its {MANIFEST_FILE} is not as it was written") from error
    names = {(file.kind, file.name.casefold()) for file in found}
    if len(names) != len(found):
        raise DamagedArchiveError(f"its {MANIFEST_FILE} names a file twice")
    return found


def _packed(item: dict[str, object]) -> Packed:
    file = Packed(**item)  # type: ignore[arg-type]
    texts = (file.kind, file.name, file.url, file.sha256)
    if not all(isinstance(text, str) for text in texts) or type(file.size) is not int or file.size < 0:
        raise ValueError
    if not _SHA256.fullmatch(file.sha256):
        raise ValueError
    if file.kind == PackedKind.MODULE and is_key(file.name) and not file.url:
        return Packed(PackedKind.MODULE, file.name, "", file.sha256, file.size)
    if file.kind == PackedKind.ARTIFACT and _local_name(file.url) == file.name:
        return Packed(PackedKind.ARTIFACT, file.name, file.url, file.sha256, file.size)
    raise DamagedArchiveError(f"its {MANIFEST_FILE} names {file.name!a:.{_SHOWN}}, which is no place in a cache")


def _local_name(url: str) -> str | None:
    try:
        source = parse_source(url)
    except ArtifactError:
        return None
    return source.local_name if isinstance(source, RemoteSource | PypiSource) else None
