"""List the locations of a URL's file: mirrors first, then the URL itself, each with its credentials."""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import requests
from urllib3 import Retry
from urllib3.exceptions import HTTPError, InvalidHeader, NameResolutionError, ProtocolError, ReadTimeoutError, SSLError

from iree_gauntlet import __version__
from iree_gauntlet.artifacts.object_stores import (
    AZURE_HINT,
    GCS_HINT,
    S3_HINT,
    AzureAccess,
    StoreLocation,
    find_azure_access,
    open_azure,
    open_store,
    parse_azure_blob,
)
from iree_gauntlet.artifacts.remote import (
    BLOCK_BYTES,
    TRANSIENT_STATUSES,
    Body,
    HostLookupError,
    MissingError,
    Remote,
    RemoteFile,
    SourceChangeError,
    TransientError,
    remove_queries,
)
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.settings import Configuration, is_below
from iree_gauntlet.system.file_state import FileState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from obstore import GetResult
    from obstore.store import ObjectStore


_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)\Z")
_SHA256_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:?([A-Za-z0-9+/=]+):?", re.IGNORECASE)
_GOOGLE_MD5 = re.compile(r"(?:^|,)\s*md5=([A-Za-z0-9+/=]+)")
_HEX_MD5 = re.compile(r'"([0-9a-f]{32})"\Z')
_HEX_SHA256 = re.compile(r'"?([0-9a-f]{64})"?\Z')

_AUTH_STATUSES = frozenset({401, 403})
# Azure responds with 409 if an account has no public containers.
_ACCESS_STATUSES = _AUTH_STATUSES | {409}
_MISSING_STATUSES = frozenset({404, 410})
_HUB_HINT = (
    "A private or gated repository needs a token: set HF_TOKEN, or sign in with `hf auth login`, "
    "and accept the model's terms on its page."
)
_HUB_PATH = re.compile(r"(datasets/|spaces/)?([^/@]+/[^/@]+)@([0-9a-f]{40})/(.+)\Z")
_SIGNATURE_DURATION = timedelta(hours=1)
_STATUS_TEXT = re.compile(r"status code: (\d{3})")
_SYSTEM_MESSAGE = re.compile(r'kind: \w+,\s*message: "([^"]+)"')
_RANGE_NOT_SATISFIABLE = 416
# The wait if a rate limit's end cannot be read.
_RATE_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Headers:
    """The used headers of a response, by their HTTP names; empty if missing."""

    content_encoding: str
    content_length: str
    content_md5: str
    content_range: str
    date: str
    digest: str
    etag: str
    last_modified: str
    repr_digest: str
    retry_after: str
    x_amz_request_id: str
    x_amz_server_side_encryption: str
    x_amz_server_side_encryption_customer_algorithm: str
    x_goog_hash: str
    x_linked_etag: str
    x_ms_blob_content_md5: str
    x_ratelimit_remaining: str
    x_ratelimit_reset: str

    @classmethod
    def of(cls, response: requests.Response) -> _Headers:
        """Read the headers of a response, case-insensitively."""
        return cls(*(response.headers.get(header.name.replace("_", "-"), "") for header in fields(cls)))

    @property
    def is_encoded(self) -> bool:
        """True if the body is encoded (for example compressed), so its bytes are not the file's."""
        return self.content_encoding not in ("", "identity")


@dataclass(slots=True)
class HttpRemote:
    """A file at a URL.

    Attributes:
        url: the user's URL, without secrets.
        target: returns the URL to request, by default `url`. It is called again after the last URL (for example a
            signed one) has expired.
        stall_timeout: seconds without a byte after which a connection is closed.
    """

    url: str
    _: KW_ONLY
    target: Callable[[], str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stall_timeout: float = 60.0
    access_hint: str = "It needs credentials: put them into ~/.netrc, or use a public source."
    missing_hint: str = "There is no such file: check the spelling; it may have been moved."
    # The URL of the last response to any thread, after redirections. Later requests are sent to this URL directly.
    _resolved_url: str = ""
    # All threads share the session, so that connections are reused.
    _session: requests.Session = field(default_factory=requests.Session)

    def _get_request_url(self) -> tuple[str, bool]:
        """Return the URL to request, and True if it comes from an earlier response."""
        if resolved_url := self._resolved_url:
            return resolved_url, True
        return (self.target() if self.target else self.url), False

    @contextmanager
    def open(self, start: int, stop: int | None, version: str) -> Iterator[Body]:
        """See `Remote`."""
        position = [start]  # a list, because the reader of the body updates it
        with ExitStack() as stack:
            try:
                response = stack.enter_context(self._send(start, stop, version))
                body = self._read_body(response, start, version, position)
            except requests.RequestException as error:
                raise self._make_error(error, position[0]) from error
            except (HTTPError, ValueError, ArithmeticError) as error:
                # Examples are a `Location` that is not UTF-8, or a length of thousands of digits.
                cause = f"{type(error).__name__}: {_find_cause(error)[:200]}"
                message = f"the server's response is invalid: {cause}: {self.url}"
                hint = "Its redirect or one of its headers is malformed: tell its operator, or use another source."
                raise ArtifactError(self.url, message, hint) from error
            yield body

    def _send(self, start: int, stop: int | None, version: str) -> requests.Response:
        """Request a range; use the URL of an earlier response as long as that URL works."""
        url, is_redirect = self._get_request_url()
        response = self._request(url, start, stop, version, own_headers=not is_redirect)
        if is_redirect and response.status_code in _AUTH_STATUSES | _MISSING_STATUSES:
            # A large file may take longer than its redirection or signature is valid (minutes or hours).
            response.close()
            self._resolved_url = ""
            response = self._request(self._get_request_url()[0], start, stop, version, own_headers=True)
        headers = _Headers.of(response)
        empty = start == 0 and stop is not None and response.status_code == requests.codes.range_not_satisfiable
        endless = headers.content_range.endswith("/*") and start == 0
        if empty or ((headers.is_encoded or endless) and response.status_code == requests.codes.partial_content):
            # Request the complete file: an empty file has no ranges, ranges of an encoded body are not ranges of the
            # file, and without a known size the end of the last part is unknown.
            response.close()
            url, is_redirect = self._get_request_url()
            response = self._request(url, 0, None, version, own_headers=not is_redirect)
        requested_url = response.history[0].url if response.history else response.url
        if response.ok and (not self.headers or urlsplit(response.url).netloc != urlsplit(requested_url).netloc):
            # The remote's own headers are only for the host of the first request; other hosts do not get them.
            self._resolved_url = response.url
        return response

    def _request(self, url: str, start: int, stop: int | None, version: str, *, own_headers: bool) -> requests.Response:
        last_byte = "" if stop is None else stop - 1
        headers = {
            # The bytes are requested as stored: their length and hash are the file's.
            "Accept-Encoding": "identity",
            "User-Agent": f"iree-gauntlet/{__version__}",
            **({"Range": f"bytes={start}-{last_byte}"} if start or stop is not None else {}),
            **({"If-Match": version} if version.startswith('"') else {}),
            # On a redirection to another host, requests removes `Authorization`.
            **(self.headers if own_headers else {}),
        }
        responses: list[requests.Response] = []

        def record_response(response: requests.Response, **_: object) -> None:
            responses.append(response)

        try:
            hooks = {"response": record_response}
            return self._session.get(url, stream=True, timeout=self.stall_timeout, headers=headers, hooks=hooks)
        except BaseException:
            # requests does not close a response that it fails on, such as one with a damaged `Location`.
            for response in responses:
                response.close()
            raise

    def _read_body(self, response: requests.Response, start: int, version: str, position: list[int]) -> Body:
        self._check_status(response)
        is_complete, headers = response.status_code == requests.codes.ok, _Headers.of(response)
        length = headers.content_length
        first, size = 0, int(length) if length.isdecimal() and not headers.is_encoded else None
        if not is_complete:
            match = _CONTENT_RANGE.match(headers.content_range)
            if not match or match[1] is None:
                raise TransientError(f"a part without a valid Content-Range: {headers.content_range or None!r}")
            first, size = int(match[1]), int(match[2]) if match[2] != "*" else None
        if first != start and not (is_complete and start):
            raise TransientError(f"the server sent bytes from {first} on instead of from {start} on")
        file = RemoteFile(size, headers.etag or headers.last_modified, not is_complete, _read_checksums(response))
        if version and file.version != version:
            raise SourceChangeError(f"{version} became {file.version or 'a version without an ETag'}")
        return Body(file, first, self._read_blocks(response, first, position))

    def _read_blocks(self, response: requests.Response, first: int, position: list[int]) -> Iterator[bytes]:
        position[0] = first
        try:
            # Blocks are yielded as they arrive, so that no byte before an interruption is lost.
            while block := response.raw.read1(BLOCK_BYTES, decode_content=True):
                yield block
                position[0] += len(block)
        except HTTPError as error:
            raise self._make_error(error, position[0]) from error

    def _check_status(self, response: requests.Response) -> None:
        status = response.status_code
        if status in (requests.codes.ok, requests.codes.partial_content):
            return
        reason = f"HTTP {status} {response.reason or ''}".rstrip()
        if status in (requests.codes.precondition_failed, requests.codes.range_not_satisfiable):
            raise SourceChangeError(reason)
        wait = _find_wait(_Headers.of(response))
        if status in TRANSIENT_STATUSES or (status == requests.codes.forbidden and wait is not None):
            raise TransientError(reason, wait)
        message = f"{reason}: {self.url}"
        if status in _MISSING_STATUSES:
            raise MissingError(self.url, message, self.missing_hint)
        hint = "Open the URL in a browser to see the server's message."
        raise ArtifactError(self.url, message, self.access_hint if status in _ACCESS_STATUSES else hint)

    def _make_error(self, error: requests.RequestException | HTTPError, received_bytes: int) -> Exception:
        """Return this package's error for a network failure; the most specific case is first."""
        is_timeout = bool(error.args) and isinstance(error.args[0], ReadTimeoutError)
        match error:
            case requests.exceptions.SSLError() | SSLError():
                hint = "If a proxy signs with its own certificate, set REQUESTS_CA_BUNDLE to it."
                return ArtifactError(self.url, f"TLS to the server failed: {_find_cause(error)}: {self.url}", hint)
            case requests.exceptions.ConnectTimeout():
                return TransientError(f"no connection within {self.stall_timeout:g} s")
            case requests.exceptions.Timeout() | ReadTimeoutError():
                is_timeout = True
            case requests.exceptions.ConnectionError() | requests.exceptions.ChunkedEncodingError() | ProtocolError():
                request = getattr(error, "request", None)
                if isinstance(getattr(error.args[0], "reason", None), NameResolutionError) and request is not None:
                    return HostLookupError(urlsplit(request.url).hostname or "", _find_cause(error))
                if not is_timeout:
                    return TransientError(f"connection lost after {format_bytes(received_bytes)}: {_find_cause(error)}")
        if is_timeout:
            return TransientError(f"no data for {self.stall_timeout:g} s, after {format_bytes(received_bytes)}")
        return ArtifactError(self.url, f"cannot be fetched: {_find_cause(error)}: {self.url}", "Check the URL.")


def _read_checksums(response: requests.Response) -> dict[str, str]:
    """Return the checksums of the complete file from a response, which may be to a range request."""
    headers = _Headers.of(response)
    # Content-MD5 is the MD5 of the body, which may be a part; for parts, Azure sends the blob's MD5 separately.
    body_md5 = headers.content_md5 if response.status_code == requests.codes.ok else ""
    google_match = _GOOGLE_MD5.search(headers.x_goog_hash)
    md5 = _decode_digest(google_match[1] if google_match else headers.x_ms_blob_content_md5 or body_md5, 16)
    own_key = headers.x_amz_server_side_encryption not in ("", "AES256")
    etag = _HEX_MD5.match(headers.etag)
    if headers.x_amz_request_id and etag and not (own_key or headers.x_amz_server_side_encryption_customer_algorithm):
        md5 = etag[1]  # S3's ETag of an object uploaded in one part
    # RFC 9530 and its predecessor RFC 3230: the digest is of the complete file even in a response with a range.
    digest = _SHA256_DIGEST.search(headers.repr_digest or headers.digest)
    sha256 = _decode_digest(digest[1], 32) if digest else ""
    for step in (*response.history, response):
        # The Hugging Face hub sends the hash with the redirection to its store.
        if match := _HEX_SHA256.match(_Headers.of(step).x_linked_etag):
            sha256 = match[1]
    return {name: value for name, value in (("md5", md5), ("sha256", sha256)) if value}


def _decode_digest(text: str, size: int) -> str:
    """Convert a base64 digest to hexadecimal; return an empty string if it does not have `size` bytes."""
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error:
        return ""
    return digest.hex() if len(digest) == size else ""


def _parse_retry_after(value: str) -> float | None:
    """Return the seconds to wait by a Retry-After header (RFC 9110: a number, or a date)."""
    try:
        return Retry().parse_retry_after(value) if value else None
    except (InvalidHeader, ValueError, OverflowError):
        return None


def _find_wait(headers: _Headers) -> float | None:
    """Return the seconds that a server asks to wait: by Retry-After, or until GitHub's rate limit is reset."""
    wait = _parse_retry_after(headers.retry_after)
    if wait is not None or headers.x_ratelimit_remaining != "0":
        return wait
    try:
        # The reset is a time of the server's clock, and so is the date.
        return max(0.0, int(headers.x_ratelimit_reset) - parsedate_to_datetime(headers.date).timestamp()) + 1.0
    except (ValueError, TypeError, OverflowError):
        return _RATE_LIMIT_SECONDS


def _find_cause(error: BaseException) -> str:
    """Return the innermost reason in one line; outer errors only add object addresses and complete URLs."""
    while isinstance(getattr(error, "reason", None), BaseException) or (
        error.args and isinstance(error.args[0], BaseException)
    ):
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, BaseException) else error.args[0]
    text = str(error.args[-1]) if error.args else str(error)
    return remove_queries(" ".join(text.split())) or type(error).__name__


def list_locations(url: str, configuration: Configuration) -> list[str]:
    """List the locations of a file, in order: URLs, and absolute paths of files in folders."""
    locations, include_url = [], True
    for mirror in configuration.mirrors:
        if is_below(url, mirror.prefix) or (url.startswith(mirror.prefix) and mirror.prefix.endswith("/")):
            rest = url[len(mirror.prefix) :].lstrip("/")
            locations += [f"{target.rstrip('/')}/{rest}" for target in mirror.targets]
            # A mirror with `only` replaces the URL itself.
            include_url = include_url and not mirror.only
    return [*locations, *([url] if include_url else [])]


def list_remotes(location: str, configuration: Configuration, stall_timeout: float) -> Iterator[Remote]:
    """Yield the ways to access a location, in the order of attempts; most locations have one.

    Raises:
        ArtifactError: options or credentials are malformed, or the scheme is not supported.
    """
    if location.startswith(("/", "file:///")):
        path = unquote(urlsplit(location).path if location.startswith("file:") else location)
        if ".." in path.split("/") or "\0" in path:
            raise ArtifactError(location, f"a path that leaves its mirror: {location}", "Write the URL without '..'.")
        yield _FileRemote(Path(path))
        return
    scheme, _, remainder = location.partition("://")
    if scheme in ("http", "https"):
        yield from _list_web_remotes(location, configuration, stall_timeout)
    elif scheme == "az":
        account, _, path = remainder.partition("/")
        container, _, blob = path.partition("/")
        access = find_azure_access(account, configuration, location)
        yield _make_blob_remote(location, access, container, blob, stall_timeout)
    elif scheme in ("s3", "gs"):
        store = open_store(location, configuration, stall_timeout=stall_timeout, retries=0)
        if scheme == "gs" or store.anonymous:
            # A publicly readable object is not encrypted with a private key, so S3's ETag is an MD5.
            hint = GCS_HINT if scheme == "gs" else S3_HINT
            yield ObjectRemote(location, store.store, store.path, hint, etag_is_md5=scheme == "s3")
        else:
            target = _make_signing_target(store)
            yield HttpRemote(location, target=target, stall_timeout=stall_timeout, access_hint=S3_HINT)
    elif scheme == "hf":
        yield _make_hub_remote(location, remainder, configuration, stall_timeout)
    else:
        raise ArtifactError(
            location, f"not a location to fetch files from: {location}", "See docs/how-to/artifacts.md."
        )


def _list_web_remotes(url: str, configuration: Configuration, stall_timeout: float) -> Iterator[Remote]:
    blob = parse_azure_blob(url, configuration)
    if blob is None:
        yield HttpRemote(url, stall_timeout=stall_timeout)
        return
    access, container, name = blob
    if not access.has_own_credentials:
        # Try without an identity first: most blobs are public, and even public ones reject a foreign identity.
        yield _make_azure_remote(url, access, lambda: url, stall_timeout)
    if access.has_own_credentials or access.has_identity:
        yield _make_blob_remote(url, access, container, name, stall_timeout)


def _make_blob_remote(url: str, access: AzureAccess, container: str, blob: str, stall_timeout: float) -> Remote:
    direct = f"{access.endpoint}/{container}/{blob}"
    if access.sas:
        return _make_azure_remote(url, access, lambda: f"{direct}?{access.sas}", stall_timeout)
    location = open_azure(access, container, unquote(blob), url, stall_timeout)
    if access.can_sign:
        return _make_azure_remote(url, access, _make_signing_target(location), stall_timeout)
    if location.anonymous:
        return _make_azure_remote(url, access, lambda: direct, stall_timeout)
    return ObjectRemote(url, location.store, location.path, AZURE_HINT)


def _make_azure_remote(url: str, access: AzureAccess, target: Callable[[], str], stall_timeout: float) -> Remote:
    credentials = access.credentials_source
    if not access.has_own_credentials:
        credentials = f"no credentials ({credentials})" if credentials else "no credentials"
    hint = f"Sent: {credentials}. {AZURE_HINT}"
    return HttpRemote(
        url,
        target=target,
        stall_timeout=stall_timeout,
        access_hint=hint,
        # Azure reports a private blob as missing if the request has no credentials.
        missing_hint=f"There is no such blob, or it is private: check the spelling. {hint}",
    )


def _make_signing_target(location: StoreLocation) -> Callable[[], str]:
    def target() -> str:
        import obstore  # noqa: PLC0415 - a large library, which few runs need

        # Each overload of `sign` takes one class of store, but `location.store` is a union of them.
        return obstore.sign(location.store, "GET", location.path, _SIGNATURE_DURATION)  # type: ignore[call-overload, no-any-return]

    return target


def _make_hub_remote(url: str, hub_path: str, configuration: Configuration, stall_timeout: float) -> Remote:
    match = _HUB_PATH.match(hub_path)
    if match is None:
        # The URL was checked when it was parsed; a mirror's replacement was not.
        hint = "Expected hf://organisation/repository@<commit>/path, with the 40 digits of a commit."
        raise ArtifactError(url, f"not the path of a file in a repository of the hub: {url}", hint)
    endpoint = configuration.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    repository_type, repository, revision, path = match.groups(default="")
    target = f"{endpoint}/{repository_type}{repository}/resolve/{revision}/{quote(unquote(path))}"
    # The token is located as by the hub's tools (huggingface.co/docs/huggingface_hub/package_reference).
    environ = configuration.environ
    token = environ.get("HF_TOKEN", "").strip()
    if not token:
        home = environ.get("HF_HOME") or str(Path(environ.get("HOME", "/")) / ".cache/huggingface")
        with suppress(OSError, UnicodeDecodeError):
            token = Path(environ.get("HF_TOKEN_PATH") or f"{home}/token").read_text(encoding="ascii").strip()
    return HttpRemote(
        url,
        target=lambda: target,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        stall_timeout=stall_timeout,
        access_hint=_HUB_HINT,
    )


@dataclass(frozen=True, slots=True)
class _FileRemote:
    """A file in a mirror's folder."""

    path: Path

    @property
    def url(self) -> str:
        """See `Remote`."""
        return self.path.as_uri()

    @contextmanager
    def open(self, start: int, stop: int | None, version: str) -> Iterator[Body]:
        """See `Remote`."""
        del stop  # the caller stops reading at the end of the range
        try:
            file = self.path.open("rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingError(self.url, f"not in the mirror: {self.path}", "Put it there.") from error
        except OSError as error:
            message = f"cannot read {self.path}: {error.strerror}"
            raise ArtifactError(self.url, message, "Check the mirror's path and permissions.") from error
        with file:
            status = self.path.stat()
            present_version = f'"{"-".join(map(str, FileState.of(status)))}"'
            if version and present_version != version:
                raise SourceChangeError(f"{self.path} was modified")
            file.seek(start)
            blocks = iter(lambda: file.read(BLOCK_BYTES), b"")
            yield Body(RemoteFile(status.st_size, present_version, accepts_ranges=True), start, blocks)


@dataclass(frozen=True, slots=True)
class ObjectRemote:
    """An object in a store, with retries left to `Transfer`; `etag_is_md5` if ETags like an MD5 are the content's."""

    url: str
    store: ObjectStore
    path: str
    access_hint: str
    etag_is_md5: bool = False

    @contextmanager
    def open(self, start: int, stop: int | None, version: str) -> Iterator[Body]:
        """See `Remote`."""
        import obstore  # noqa: PLC0415 - a large library, which few runs need
        from obstore.exceptions import BaseError  # noqa: PLC0415 - a large library, which few runs need

        options: dict[str, object] = {"if_match": version} if version else {}
        if start or stop is not None:
            options |= {"range": (start, stop) if stop is not None else {"offset": start}}
        try:
            try:
                response = obstore.get(self.store, self.path, options=options)  # type: ignore[arg-type] # a TypedDict built up
            except BaseError as error:
                if start or stop is None or _find_status(error) != _RANGE_NOT_SATISFIABLE:
                    raise
                response = obstore.get(self.store, self.path)  # an empty object has no ranges
        except (BaseError, OSError) as error:
            raise self._make_error(error) from error
        metadata = response.meta
        etag = metadata["e_tag"] or ""
        if version and etag != version:
            raise SourceChangeError(f"{version} became {etag}")
        md5 = _HEX_MD5.match(etag) if self.etag_is_md5 else None
        file = RemoteFile(metadata["size"], etag, accepts_ranges=True, checksums={"md5": md5[1]} if md5 else {})
        yield Body(file, response.range[0], self._read_blocks(response))

    def _read_blocks(self, response: GetResult) -> Iterator[bytes]:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - a large library, which few runs need

        try:
            for block in response.stream(min_chunk_size=BLOCK_BYTES):
                yield bytes(block)
        except (BaseError, OSError) as error:
            raise self._make_error(error) from error

    def _make_error(self, error: Exception) -> Exception:
        """Return this package's error for an obstore error."""
        from obstore import exceptions  # noqa: PLC0415 - a large library, which few runs need

        reason = remove_queries(str(error).partition("\n")[0])
        if isinstance(error, FileNotFoundError):
            hint = "There is no such object: check the spelling; it may have been moved."
            return MissingError(self.url, f"not found: {self.url}", hint)
        status = _find_status(error)
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            return ArtifactError(self.url, f"access refused (HTTP {status}): {self.url}", self.access_hint)
        if isinstance(error, exceptions.PreconditionError) or status == _RANGE_NOT_SATISFIABLE:
            return SourceChangeError(f"HTTP {status}")
        if status and status not in TRANSIENT_STATUSES:
            return ArtifactError(self.url, f"HTTP {status}: {self.url}: {reason}", self.access_hint)
        if not status and not isinstance(error, OSError) and "HTTP error" not in reason:
            # These errors are permanent: for example, an unavailable identity will not soon be available.
            return ArtifactError(self.url, f"{reason}: {self.url}", self.access_hint)
        # The system's message is only in the text of obstore's error.
        cause = _SYSTEM_MESSAGE.search(str(error))
        return TransientError(f"HTTP {status}" if status else f"connection lost: {cause[1] if cause else reason}")


def _find_status(error: Exception) -> int:
    """Return the HTTP status from the text of an obstore error; 0 if there is none."""
    match = _STATUS_TEXT.search(str(error))
    return int(match[1]) if match else 0
