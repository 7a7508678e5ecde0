"""A mirror that is a folder: on this machine, or on a file system that several share."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.remote import BLOCK_BYTES, Body, ChangedError, Connection, MissingError, RemoteFile
from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import FileIO
    from pathlib import Path

__all__ = ["FileRemote"]


@dataclass(frozen=True, slots=True)
class FileRemote:
    """A file of a mirror.

    Attributes:
        path: where it lies.
    """

    path: Path

    @property
    def url(self) -> str:
        """See `Remote`."""
        return self.path.as_uri()

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """See `Remote`."""
        yield self

    @contextmanager
    def open(self, start: int, stop: int | None, version: str) -> Iterator[Body]:
        """See `Connection`."""
        del stop  # the reader takes what it wants
        try:
            file = self.path.open("rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingError(self.url, f"not in the mirror: {self.path}", "Put it there.") from error
        except OSError as error:
            what = f"cannot read {self.path}: {error.strerror}"
            raise ArtifactError(self.url, what, "Check the mirror's path and rights.") from error
        with file:
            status = self.path.stat()
            present = f'"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"'
            if version and present != version:
                raise ChangedError(f"{self.path} was written to")
            file.seek(start)
            yield Body(RemoteFile(status.st_size, present, ranged=True), start, _blocks(file))


def _blocks(file: FileIO) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block
