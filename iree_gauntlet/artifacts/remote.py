"""The interface between downloads and servers: byte ranges of one version of a file, and errors with next steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager


BLOCK_BYTES = 1 << 18

# These statuses are temporary by definition (RFC 9110, RFC 6585). Other statuses from 500 on are permanent.
TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})

NETWORK_HINT = "Run again later: received data is kept. Check the network and the proxy settings (HTTPS_PROXY)."

_QUERY = re.compile(r"\?[^\s'\")]+")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A server's metadata of a file.

    Attributes:
        size: the file's bytes; None if the server does not report them.
        version: an identifier that changes with the content (ETag, or else Last-Modified); empty if not reported.
        accepts_ranges: True if the server sends parts of the file.
    """

    size: int | None
    version: str
    accepts_ranges: bool
    checksums: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Body:
    """A response: bytes from `start` on, in blocks.

    Attributes:
        blocks: the bytes; raises TransientError if the connection fails. If the server stops early,
            iteration just ends: the caller must compare the byte count.
    """

    file: RemoteFile
    start: int
    blocks: Iterator[bytes]


class TransientError(Exception):
    """A failure that may be temporary; with the seconds to wait, if the server gives them."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class HostLookupError(TransientError):
    """A host name that cannot be resolved."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"the host {host} cannot be resolved: {reason}")
        self.host = host


class SourceChangeError(Exception):
    """The file is no longer the requested version: bytes of the old version are useless."""


class MissingError(ArtifactError):
    """The server has no such file. After this failure alone, the next mirror is tried silently."""


def remove_queries(text: str) -> str:
    """Remove the queries of URLs, which may contain a signature, from a library's message."""
    return _QUERY.sub("?…", text)


class Remote(Protocol):
    """A file on a server; used by several threads."""

    @property
    def url(self) -> str:
        """The URL for messages, without secrets."""

    def open(self, start: int, stop: int | None, version: str) -> AbstractContextManager[Body]:
        """Request bytes `start` (inclusive) to `stop` (exclusive); None means the end, a stop past the end is allowed.

        A server without range support may send the complete file, from byte 0 on. An empty `version` means any version.

        Raises:
            TransientError: the failure may be temporary.
            SourceChangeError: the file has another version now.
            ArtifactError: the file is not available.
        """
