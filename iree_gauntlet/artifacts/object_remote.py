"""Files in object stores whose credentials cannot be put into a URL: read through `obstore`."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.remote import (
    BLOCK_BYTES,
    TRANSIENT_STATUSES,
    Body,
    ChangedError,
    Connection,
    MissingError,
    RemoteFile,
    TransientError,
    without_queries,
)
from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore import GetResult
    from obstore.store import ObjectStore

__all__ = ["ObjectRemote"]

_STATUS = re.compile(r"status code: (\d{3})")
_MD5_ETAG = re.compile(r'"([0-9a-f]{32})"\Z')
_SYSTEM = re.compile(r'kind: \w+,\s*message: "([^"]+)"')
_RANGE_BEYOND = 416


@dataclass(frozen=True, slots=True)
class ObjectRemote:
    """An object.

    Attributes:
        url: where, for messages.
        store: of obstore; retries nothing itself.
        path: key inside it.
        access_hint: what to do where access is refused.
        etag_is_md5: whether an ETag that looks like an MD5 is the content's.
    """

    url: str
    store: ObjectStore
    path: str
    access_hint: str
    etag_is_md5: bool = False

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """See `Remote`; obstore pools the connections itself."""
        yield self

    @contextmanager
    def open(self, start: int, stop: int | None, version: str) -> Iterator[Body]:
        """See `Connection`."""
        answer = self._answer(start, stop, version)
        meta = answer.meta
        etag = meta["e_tag"] or ""
        if version and etag != version:
            raise ChangedError(f"{version} has become {etag}")
        md5 = _MD5_ETAG.match(etag) if self.etag_is_md5 else None
        file = RemoteFile(meta["size"], etag, ranged=True, checksums={"md5": md5[1]} if md5 else {})
        yield Body(file, answer.range[0], self._blocks(answer))

    def _answer(self, start: int, stop: int | None, version: str) -> GetResult:
        import obstore  # noqa: PLC0415 - a large library, which few runs need
        from obstore.exceptions import BaseError  # noqa: PLC0415 - a large library, which few runs need

        options: dict[str, object] = {}
        if start or stop is not None:
            options["range"] = (start, stop) if stop is not None else {"offset": start}
        if version:
            options["if_match"] = version
        try:
            try:
                return obstore.get(self.store, self.path, options=options)  # type: ignore[arg-type] # a TypedDict built up
            except BaseError as error:
                if start or stop is None or _status(error) != _RANGE_BEYOND:
                    raise
                return obstore.get(self.store, self.path)  # an empty object has no ranges
        except (BaseError, OSError) as error:
            raise self._explained(error) from error

    def _blocks(self, answer: GetResult) -> Iterator[bytes]:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - a large library, which few runs need

        try:
            for block in answer.stream(min_chunk_size=BLOCK_BYTES):
                yield bytes(block)
        except (BaseError, OSError) as error:
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Exception:
        """The error of ours that one of obstore's means."""
        from obstore import exceptions  # noqa: PLC0415 - a large library, which few runs need

        reason = without_queries(str(error).partition("\n")[0])
        if isinstance(error, FileNotFoundError):
            hint = "There is no such object: check the spelling, or whether it was moved."
            return MissingError(self.url, f"not found: {self.url}", hint)
        status = _status(error)
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            return ArtifactError(self.url, f"access refused (HTTP {status}): {self.url}", self.access_hint)
        if isinstance(error, exceptions.PreconditionError) or status == _RANGE_BEYOND:
            return ChangedError(f"HTTP {status}")
        if status and status not in TRANSIENT_STATUSES:
            return ArtifactError(self.url, f"HTTP {status}: {self.url}: {reason}", self.access_hint)
        if not status and not isinstance(error, OSError) and "HTTP error" not in reason:
            # An identity that cannot be had, for one: it will not be there in a moment, either.
            return ArtifactError(self.url, f"{reason}: {self.url}", self.access_hint)
        return TransientError(f"HTTP {status}" if status else f"connection lost: {_cause(error, reason)}")


def _cause(error: Exception, reason: str) -> str:
    """What the system said, which obstore has in the depths of its text alone."""
    match = _SYSTEM.search(str(error))
    return match[1] if match else reason


def _status(error: Exception) -> int:
    """HTTP status of an error of obstore's, which has it in its text alone; 0 for none."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else 0
