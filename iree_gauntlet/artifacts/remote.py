"""What a download needs of a server: byte ranges of one version of one file, and errors that say what to do."""

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

# Temporary by their meaning (RFC 9110, RFC 6585). Of the others from 500 on, a repetition changes nothing.
TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})

NETWORK_HINT = "Run again later: what has arrived is kept. Check the network and the proxy settings (HTTPS_PROXY)."

_QUERY = re.compile(r"\?[^\s'\")]+")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """What a server says of a file.

    Attributes:
        size: bytes of the whole file; None where it does not say.
        version: what changes with the content (ETag, or else Last-Modified); empty where it does not say.
    """

    size: int | None
    version: str
    ranged: bool
    checksums: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Body:
    """An answer: bytes from `start` on, in blocks.

    Attributes:
        blocks: the bytes; raises TransientError where the connection fails. Ends early without an error
            where the server ends early: count.
    """

    file: RemoteFile
    start: int
    blocks: Iterator[bytes]


class TransientError(Exception):
    """A failure that may be gone in a moment, with the seconds that the server asked to wait, if it did."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class UnresolvedError(TransientError):
    """A host whose address nobody knows."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"the host {host} cannot be resolved: {reason}")
        self.host = host


class ChangedError(Exception):
    """The file is not the version that was asked for: what was had of it is of no use."""


class MissingError(ArtifactError):
    """There is no such file there: the one failure after which a mirror is silently passed over."""


def without_queries(text: str) -> str:
    """A library's words without the queries of URLs in them: those may carry a signature."""
    return _QUERY.sub("?…", text)


class Remote(Protocol):
    """A file on a server; used by several threads."""

    @property
    def url(self) -> str:
        """Where, for messages; without any secret."""

    def open(self, start: int, stop: int | None, version: str) -> AbstractContextManager[Body]:
        """Ask for the bytes from `start` up to and without `stop` (None: to the end; it may lie beyond the end).

        A server that knows no ranges may answer with the whole file, from 0 on. An empty version means any.

        Raises:
            TransientError: try again.
            ChangedError: it is another version now.
            ArtifactError: it is not available.
        """
