"""Files on web servers: ranges over HTTP with `requests`.

Also for what is only a signed URL away: Azure blobs with a SAS, S3 objects, files of the Hugging Face hub.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import requests
from urllib3.exceptions import HTTPError, NameResolutionError, ProtocolError, ReadTimeoutError, SSLError

from iree_gauntlet import __version__
from iree_gauntlet.artifacts.remote import (
    BLOCK_BYTES,
    TRANSIENT_STATUSES,
    Body,
    ChangedError,
    Connection,
    MissingError,
    RemoteFile,
    TransientError,
    UnresolvedError,
    without_queries,
)
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.figures import byte_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)\Z")
_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:?([A-Za-z0-9+/=]+):?", re.IGNORECASE)
_GOOGLE_MD5 = re.compile(r"(?:^|,)\s*md5=([A-Za-z0-9+/=]+)")
_HEX_MD5 = re.compile(r'"([0-9a-f]{32})"\Z')
_HEX_SHA256 = re.compile(r'"?([0-9a-f]{64})"?\Z')

_NO_ACCESS = frozenset({401, 403})
# Azure: 409 where an account has no public containers.
_REFUSED = _NO_ACCESS | {409}
_GONE = frozenset({404, 410})


@dataclass(slots=True)
class HttpRemote:
    """A file at a URL.

    Attributes:
        url: as people know it; without any secret.
        target: gives the URL that is asked (with a signature, for one); asked again where the last one has
            expired. By default `url` itself.
        headers: sent to the host of the target alone.
        stall_timeout: seconds without a byte after which a connection is given up.
        access_hint: what to do where access is refused.
        missing_hint: what to do where there is no such file.
    """

    url: str
    _: KW_ONLY
    target: Callable[[], str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stall_timeout: float = 60.0
    access_hint: str = "It needs credentials: put them into ~/.netrc, or use a source that is public."
    missing_hint: str = "There is no such file: check the spelling, or whether it was moved."
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # Where the last answer came from, after redirections: asked directly from then on.
    _resolved: str = ""

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """See `Remote`."""
        with requests.Session() as session:
            yield _HttpConnection(self, session)

    def place(self) -> tuple[str, bool]:
        """The URL to ask, and whether it came out of an earlier answer."""
        with self._lock:
            if self._resolved:
                return self._resolved, True
        return (self.target() if self.target else self.url), False

    def remember(self, resolved: str) -> None:
        """Note where an answer came from; empty to begin at the beginning again."""
        with self._lock:
            self._resolved = resolved


@dataclass(frozen=True, slots=True)
class _HttpConnection:
    _remote: HttpRemote
    _session: requests.Session

    @contextmanager
    def open(self, start: int, stop: int | None, version: str) -> Iterator[Body]:
        """See `Connection`."""
        done = [start]
        try:
            with self._answer(start, stop, version) as response:
                yield self._body(response, start, version, done)
        except requests.RequestException as error:
            raise self._explained(error, done[0]) from error

    def _answer(self, start: int, stop: int | None, version: str) -> requests.Response:
        """The answer to a request, from where an earlier answer came if that still works."""
        url, resolved = self._remote.place()
        response = self._request(url, start, stop, version, own=not resolved)
        if resolved and response.status_code in _NO_ACCESS | _GONE:
            # Redirections and signatures live for minutes or hours; large files take longer.
            response.close()
            self._remote.remember("")
            response = self._request(self._remote.place()[0], start, stop, version, own=True)
        empty = start == 0 and stop is not None and response.status_code == requests.codes.range_not_satisfiable
        encoded = response.headers.get("Content-Encoding", "identity") != "identity"
        endless = response.headers.get("Content-Range", "").endswith("/*") and start == 0
        if empty or ((encoded or endless) and response.status_code == requests.codes.partial_content):
            # An empty file has no ranges; ranges of an encoded one are not ranges of the file; and a part of a
            # file of unknown size does not tell when all of them are there.
            response.close()
            url, resolved = self._remote.place()
            response = self._request(url, 0, None, version, own=not resolved)
        asked = response.history[0].url if response.history else response.url
        if response.ok and (not self._remote.headers or urlsplit(response.url).netloc != urlsplit(asked).netloc):
            # Headers are for the host that was asked first: elsewhere they are neither needed nor sent.
            self._remote.remember(response.url)
        return response

    def _request(self, url: str, start: int, stop: int | None, version: str, *, own: bool) -> requests.Response:
        headers = {
            # The bytes as they are stored: their length and hash are the file's.
            "Accept-Encoding": "identity",
            "User-Agent": f"iree-gauntlet/{__version__}",
        }
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        if version.startswith('"'):
            headers["If-Match"] = version
        if own:
            # A redirection to another host leaves `Authorization` out: requests sees to that.
            headers |= self._remote.headers
        return self._session.get(url, stream=True, timeout=self._remote.stall_timeout, headers=headers)

    def _body(self, response: requests.Response, start: int, version: str, done: list[int]) -> Body:
        self._check_status(response)
        whole = response.status_code == requests.codes.ok
        first, size = (0, _content_length(response)) if whole else _content_range(response)
        if first != start and not (whole and start):
            raise TransientError(f"the server sent bytes from {first} on, asked for were those from {start} on")
        file = RemoteFile(size, _version(response), not whole, _checksums(response))
        if version and file.version != version:
            raise ChangedError(f"{version} has become {file.version or 'something without an ETag'}")
        return Body(file, first, self._blocks(response, first, done))

    def _blocks(self, response: requests.Response, first: int, done: list[int]) -> Iterator[bytes]:
        done[0] = first
        try:
            # As it comes, so that nothing is lost of what came before a cut.
            while block := response.raw.read1(BLOCK_BYTES, decode_content=True):
                yield block
                done[0] += len(block)
        except HTTPError as error:
            raise self._explained(error, done[0]) from error

    def _check_status(self, response: requests.Response) -> None:
        status, remote = response.status_code, self._remote
        if status in (requests.codes.ok, requests.codes.partial_content):
            return
        reason = f"HTTP {status} {response.reason or ''}".rstrip()
        if status in (requests.codes.precondition_failed, requests.codes.range_not_satisfiable):
            raise ChangedError(reason)
        if status in TRANSIENT_STATUSES:
            raise TransientError(reason, _retry_after(response.headers.get("Retry-After"), datetime.now(UTC)))
        what = f"{reason}: {remote.url}"
        if status in _GONE:
            raise MissingError(remote.url, what, remote.missing_hint)
        hint = "Open the URL in a browser to see what the server says."
        raise ArtifactError(remote.url, what, remote.access_hint if status in _REFUSED else hint)

    def _explained(self, error: requests.RequestException | HTTPError, done: int) -> Exception:
        """The error of ours that a failure of the network means; read from the most special on."""
        remote = self._remote
        late = bool(error.args) and isinstance(error.args[0], ReadTimeoutError)
        match error:
            case requests.exceptions.SSLError() | SSLError():
                hint = "Where a proxy signs with its own certificate, name it with REQUESTS_CA_BUNDLE."
                return ArtifactError(remote.url, f"TLS to the server failed: {_cause(error)}: {remote.url}", hint)
            case requests.exceptions.ConnectTimeout():
                return TransientError(f"no connection within {remote.stall_timeout:g} s")
            case requests.exceptions.Timeout() | ReadTimeoutError():
                late = True
            case requests.exceptions.ConnectionError() | requests.exceptions.ChunkedEncodingError() | ProtocolError():
                asked = getattr(error, "request", None)
                if isinstance(getattr(error.args[0], "reason", None), NameResolutionError) and asked is not None:
                    return UnresolvedError(urlsplit(asked.url).hostname or "", _cause(error))
                if not late:
                    return TransientError(f"connection lost after {byte_size(done)}: {_cause(error)}")
        if late:
            return TransientError(f"no byte for {remote.stall_timeout:g} s, after {byte_size(done)}")
        return ArtifactError(remote.url, f"cannot be fetched: {_cause(error)}: {remote.url}", "Check the URL.")


def _content_length(response: requests.Response) -> int | None:
    text = response.headers.get("Content-Length", "")
    encoded = response.headers.get("Content-Encoding", "identity") != "identity"
    return int(text) if text.isdecimal() and not encoded else None


def _content_range(response: requests.Response) -> tuple[int, int | None]:
    match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    if not match or match[1] is None:
        raise TransientError(f"a part without a proper Content-Range: {response.headers.get('Content-Range')!r}")
    return int(match[1]), int(match[2]) if match[2] != "*" else None


def _version(response: requests.Response) -> str:
    return response.headers.get("ETag") or response.headers.get("Last-Modified") or ""


def _checksums(response: requests.Response) -> dict[str, str]:
    """Checksums of the whole content that an answer carries, also one to a request for a part."""
    headers = response.headers
    found: dict[str, str] = {}
    # Content-MD5 is the body's; Azure sends the blob's with a part.
    md5 = headers.get("Content-MD5", "") if response.status_code == requests.codes.ok else ""
    md5 = headers.get("x-ms-blob-content-md5", md5)
    google = _GOOGLE_MD5.search(headers.get("x-goog-hash", ""))
    if decoded := _from_base64(google[1] if google else md5, 16):
        found["md5"] = decoded
    encrypted = headers.get("x-amz-server-side-encryption", "AES256") != "AES256"
    customer = "x-amz-server-side-encryption-customer-algorithm" in headers
    etag = _HEX_MD5.match(headers.get("ETag", ""))
    if "x-amz-request-id" in headers and etag and not encrypted and not customer:
        found["md5"] = etag[1]  # S3's ETag of an object that was put at once
    # RFC 9530, and its predecessor RFC 3230: both of the whole file, whatever part was asked for.
    digest = _DIGEST.search(headers.get("Repr-Digest", headers.get("Digest", "")))
    if digest and (decoded := _from_base64(digest[1], 32)):
        found["sha256"] = decoded
    for answer in (*response.history, response):
        # The Hugging Face hub says it where it redirects to its store.
        if linked := _HEX_SHA256.match(answer.headers.get("X-Linked-ETag", "")):
            found["sha256"] = linked[1]
    return found


def _from_base64(text: str, size: int) -> str:
    """Hexadecimal of a digest; empty for what is none."""
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error:
        return ""
    return digest.hex() if len(digest) == size else ""


def _retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for from now on (RFC 9110: a number, or a date)."""
    if not value:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def _cause(error: BaseException) -> str:
    """The innermost reason in one line; the outer ones repeat it with object addresses and whole URLs."""
    while isinstance(getattr(error, "reason", None), BaseException) or (
        error.args and isinstance(error.args[0], BaseException)
    ):
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, BaseException) else error.args[0]
    text = str(error.args[-1]) if error.args else str(error)
    return without_queries(" ".join(text.split())) or type(error).__name__
