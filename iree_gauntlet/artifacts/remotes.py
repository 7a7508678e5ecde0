"""Where the file of a URL may be had: mirrors first, then the URL itself, each with the credentials for it."""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import timedelta
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
    ChangedError,
    MissingError,
    Remote,
    RemoteFile,
    TransientError,
    UnresolvedError,
    without_queries,
)
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.settings import Configuration, is_below
from iree_gauntlet.system.file_state import FileState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from obstore import GetResult
    from obstore.store import ObjectStore


_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)\Z")
_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:?([A-Za-z0-9+/=]+):?", re.IGNORECASE)
_GOOGLE_MD5 = re.compile(r"(?:^|,)\s*md5=([A-Za-z0-9+/=]+)")
_HEX_MD5 = re.compile(r'"([0-9a-f]{32})"\Z')
_HEX_SHA256 = re.compile(r'"?([0-9a-f]{64})"?\Z')

_NO_ACCESS = frozenset({401, 403})
# Azure: 409 where an account has no public containers.
_REFUSED = _NO_ACCESS | {409}
_GONE = frozenset({404, 410})
_HUB_HINT = (
    "A private or gated repository needs a token: set HF_TOKEN, or sign in with `hf auth login`, "
    "and accept the model's terms on its page."
)
_HUB_PATH = re.compile(r"(datasets/|spaces/)?([^/@]+/[^/@]+)@([0-9a-f]{40})/(.+)\Z")
_SIGNED_FOR = timedelta(hours=1)
_STATUS = re.compile(r"status code: (\d{3})")
_SYSTEM = re.compile(r'kind: \w+,\s*message: "([^"]+)"')
_RANGE_BEYOND = 416


@dataclass(frozen=True, slots=True)
class _Headers:
    """The headers of an answer that are looked at, by HTTP's names; empty where it has none."""

    content_encoding: str
    content_length: str
    content_md5: str
    content_range: str
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

    @classmethod
    def of(cls, response: requests.Response) -> _Headers:
        """Those of an answer, whatever the case of their letters is."""
        return cls(*(response.headers.get(item.name.replace("_", "-"), "") for item in fields(cls)))

    @property
    def encoded(self) -> bool:
        """Whether the bytes are not those of the file."""
        return self.content_encoding not in ("", "identity")


@dataclass(slots=True)
class HttpRemote:
    """A file at a URL.

    Attributes:
        url: as people know it; without any secret.
        target: gives the URL that is asked (with a signature, for one); asked again where the last one has
            expired. By default `url` itself.
        stall_timeout: seconds without a byte after which a connection is given up.
    """

    url: str
    _: KW_ONLY
    target: Callable[[], str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    stall_timeout: float = 60.0
    access_hint: str = "It needs credentials: put them into ~/.netrc, or use a source that is public."
    missing_hint: str = "There is no such file: check the spelling, or whether it was moved."
    # Where the last answer to any thread came from, after redirections: asked directly from then on.
    _resolved: str = ""
    # Of all threads, so that connections are used again.
    _session: requests.Session = field(default_factory=requests.Session)

    def _place(self) -> tuple[str, bool]:
        """The URL to ask, and whether it came out of an earlier answer."""
        if resolved := self._resolved:
            return resolved, True
        return (self.target() if self.target else self.url), False

    @contextmanager
    def open(self, start: int, stop: int | None, version: str) -> Iterator[Body]:
        """See `Remote`."""
        done = [start]
        with ExitStack() as opened:
            try:
                response = opened.enter_context(self._answer(start, stop, version))
                body = self._read_body(response, start, version, done)
            except requests.RequestException as error:
                raise self._explain(error, done[0]) from error
            except (HTTPError, ValueError, ArithmeticError) as error:
                # Such as a `Location` that is no UTF-8, or a length of thousands of digits.
                cause = f"{type(error).__name__}: {_find_cause(error)[:200]}"
                what = f"the server's answer cannot be understood: {cause}: {self.url}"
                hint = "Its redirection or one of its headers is damaged: tell who runs it, or name another source."
                raise ArtifactError(self.url, what, hint) from error
            yield body

    def _answer(self, start: int, stop: int | None, version: str) -> requests.Response:
        """The answer to a request, from where an earlier answer came if that still works."""
        url, resolved = self._place()
        response = self._request(url, start, stop, version, own=not resolved)
        if resolved and response.status_code in _NO_ACCESS | _GONE:
            # Redirections and signatures live for minutes or hours; large files take longer.
            response.close()
            self._resolved = ""
            response = self._request(self._place()[0], start, stop, version, own=True)
        headers = _Headers.of(response)
        empty = start == 0 and stop is not None and response.status_code == requests.codes.range_not_satisfiable
        endless = headers.content_range.endswith("/*") and start == 0
        if empty or ((headers.encoded or endless) and response.status_code == requests.codes.partial_content):
            # An empty file has no ranges; ranges of an encoded one are not ranges of the file; and a part of a
            # file of unknown size does not tell when all of them are there.
            response.close()
            url, resolved = self._place()
            response = self._request(url, 0, None, version, own=not resolved)
        asked = response.history[0].url if response.history else response.url
        if response.ok and (not self.headers or urlsplit(response.url).netloc != urlsplit(asked).netloc):
            # Headers are for the host that was asked first: elsewhere they are neither needed nor sent.
            self._resolved = response.url
        return response

    def _request(self, url: str, start: int, stop: int | None, version: str, *, own: bool) -> requests.Response:
        last = "" if stop is None else stop - 1
        headers = {
            # The bytes as they are stored: their length and hash are the file's.
            "Accept-Encoding": "identity",
            "User-Agent": f"iree-gauntlet/{__version__}",
            **({"Range": f"bytes={start}-{last}"} if start or stop is not None else {}),
            **({"If-Match": version} if version.startswith('"') else {}),
            # A redirection to another host leaves `Authorization` out: requests sees to that.
            **(self.headers if own else {}),
        }
        answers: list[requests.Response] = []

        def keep(answer: requests.Response, **_: object) -> None:
            answers.append(answer)

        try:
            hooks = {"response": keep}
            return self._session.get(url, stream=True, timeout=self.stall_timeout, headers=headers, hooks=hooks)
        except BaseException:
            # requests leaves an answer open that it fails on, such as one with a damaged `Location`.
            for answer in answers:
                answer.close()
            raise

    def _read_body(self, response: requests.Response, start: int, version: str, done: list[int]) -> Body:
        self._check_status(response)
        whole, headers = response.status_code == requests.codes.ok, _Headers.of(response)
        length = headers.content_length
        first, size = 0, int(length) if length.isdecimal() and not headers.encoded else None
        if not whole:
            match = _CONTENT_RANGE.match(headers.content_range)
            if not match or match[1] is None:
                raise TransientError(f"a part without a proper Content-Range: {headers.content_range or None!r}")
            first, size = int(match[1]), int(match[2]) if match[2] != "*" else None
        if first != start and not (whole and start):
            raise TransientError(f"the server sent bytes from {first} on, asked for were those from {start} on")
        file = RemoteFile(size, headers.etag or headers.last_modified, not whole, _read_checksums(response))
        if version and file.version != version:
            raise ChangedError(f"{version} has become {file.version or 'something without an ETag'}")
        return Body(file, first, self._read_blocks(response, first, done))

    def _read_blocks(self, response: requests.Response, first: int, done: list[int]) -> Iterator[bytes]:
        done[0] = first
        try:
            # As it comes, so that nothing is lost of what came before a cut.
            while block := response.raw.read1(BLOCK_BYTES, decode_content=True):
                yield block
                done[0] += len(block)
        except HTTPError as error:
            raise self._explain(error, done[0]) from error

    def _check_status(self, response: requests.Response) -> None:
        status = response.status_code
        if status in (requests.codes.ok, requests.codes.partial_content):
            return
        reason = f"HTTP {status} {response.reason or ''}".rstrip()
        if status in (requests.codes.precondition_failed, requests.codes.range_not_satisfiable):
            raise ChangedError(reason)
        if status in TRANSIENT_STATUSES:
            raise TransientError(reason, _read_wait(_Headers.of(response).retry_after))
        what = f"{reason}: {self.url}"
        if status in _GONE:
            raise MissingError(self.url, what, self.missing_hint)
        hint = "Open the URL in a browser to see what the server says."
        raise ArtifactError(self.url, what, self.access_hint if status in _REFUSED else hint)

    def _explain(self, error: requests.RequestException | HTTPError, done: int) -> Exception:
        """The error of ours that a failure of the network means; read from the most special on."""
        late = bool(error.args) and isinstance(error.args[0], ReadTimeoutError)
        match error:
            case requests.exceptions.SSLError() | SSLError():
                hint = "Where a proxy signs with its own certificate, name it with REQUESTS_CA_BUNDLE."
                return ArtifactError(self.url, f"TLS to the server failed: {_find_cause(error)}: {self.url}", hint)
            case requests.exceptions.ConnectTimeout():
                return TransientError(f"no connection within {self.stall_timeout:g} s")
            case requests.exceptions.Timeout() | ReadTimeoutError():
                late = True
            case requests.exceptions.ConnectionError() | requests.exceptions.ChunkedEncodingError() | ProtocolError():
                asked = getattr(error, "request", None)
                if isinstance(getattr(error.args[0], "reason", None), NameResolutionError) and asked is not None:
                    return UnresolvedError(urlsplit(asked.url).hostname or "", _find_cause(error))
                if not late:
                    return TransientError(f"connection lost after {byte_size(done)}: {_find_cause(error)}")
        if late:
            return TransientError(f"no byte for {self.stall_timeout:g} s, after {byte_size(done)}")
        return ArtifactError(self.url, f"cannot be fetched: {_find_cause(error)}: {self.url}", "Check the URL.")


def _read_checksums(response: requests.Response) -> dict[str, str]:
    """Checksums of the whole content that an answer carries, also one to a request for a part."""
    headers = _Headers.of(response)
    # Content-MD5 is the body's; Azure sends the blob's with a part.
    of_body = headers.content_md5 if response.status_code == requests.codes.ok else ""
    google = _GOOGLE_MD5.search(headers.x_goog_hash)
    md5 = _from_base64(google[1] if google else headers.x_ms_blob_content_md5 or of_body, 16)
    encrypted = headers.x_amz_server_side_encryption not in ("", "AES256")
    etag = _HEX_MD5.match(headers.etag)
    if headers.x_amz_request_id and etag and not (encrypted or headers.x_amz_server_side_encryption_customer_algorithm):
        md5 = etag[1]  # S3's ETag of an object that was put at once
    # RFC 9530, and its predecessor RFC 3230: both of the whole file, whatever part was asked for.
    digest = _DIGEST.search(headers.repr_digest or headers.digest)
    sha256 = _from_base64(digest[1], 32) if digest else ""
    for answer in (*response.history, response):
        # The Hugging Face hub says it where it redirects to its store.
        if linked := _HEX_SHA256.match(_Headers.of(answer).x_linked_etag):
            sha256 = linked[1]
    return {name: value for name, value in (("md5", md5), ("sha256", sha256)) if value}


def _from_base64(text: str, size: int) -> str:
    """Hexadecimal of a digest; empty for what is none."""
    try:
        digest = base64.b64decode(text, validate=True)
    except binascii.Error:
        return ""
    return digest.hex() if len(digest) == size else ""


def _read_wait(value: str) -> float | None:
    """Seconds that a Retry-After header asks for from now on (RFC 9110: a number, or a date)."""
    try:
        return Retry().parse_retry_after(value) if value else None
    except (InvalidHeader, ValueError, OverflowError):
        return None


def _find_cause(error: BaseException) -> str:
    """The innermost reason in one line; the outer ones repeat it with object addresses and whole URLs."""
    while isinstance(getattr(error, "reason", None), BaseException) or (
        error.args and isinstance(error.args[0], BaseException)
    ):
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, BaseException) else error.args[0]
    text = str(error.args[-1]) if error.args else str(error)
    return without_queries(" ".join(text.split())) or type(error).__name__


def places(url: str, configuration: Configuration) -> list[str]:
    """Where a file is looked for, in this order: URLs, and absolute paths of folders' files."""
    found, origin = [], True
    for mirror in configuration.mirrors:
        if is_below(url, mirror.prefix) or (url.startswith(mirror.prefix) and mirror.prefix.endswith("/")):
            rest = url[len(mirror.prefix) :].lstrip("/")
            found += [f"{place.rstrip('/')}/{rest}" for place in mirror.to]
            # One that takes the place of its origin leaves the URL itself out.
            origin = origin and not mirror.only
    return [*found, *([url] if origin else [])]


def list_remotes(place: str, configuration: Configuration, stall_timeout: float) -> Iterator[Remote]:
    """The ways to get at a place, in the order of trying; most have one.

    Raises:
        ArtifactError: options or credentials that are malformed, or a scheme that cannot be fetched.
    """
    if place.startswith(("/", "file:///")):
        path = unquote(urlsplit(place).path if place.startswith("file:") else place)
        if ".." in path.split("/") or "\0" in path:
            raise ArtifactError(place, f"a path that leaves its mirror: {place}", "Write the URL without '..'.")
        yield _FileRemote(Path(path))
        return
    scheme, _, rest = place.partition("://")
    if scheme in ("http", "https"):
        yield from _list_web_remotes(place, configuration, stall_timeout)
    elif scheme == "az":
        account, _, path = rest.partition("/")
        container, _, blob = path.partition("/")
        access = find_azure_access(account, configuration, place)
        yield _make_blob_remote(place, access, container, blob, stall_timeout)
    elif scheme in ("s3", "gs"):
        location = open_store(place, configuration, stall_timeout=stall_timeout, retries=0)
        if scheme == "gs" or location.anonymous:
            # What everybody may read is not encrypted with a key of somebody's: S3's ETag is an MD5.
            hint = GCS_HINT if scheme == "gs" else S3_HINT
            yield ObjectRemote(place, location.store, location.path, hint, etag_is_md5=scheme == "s3")
        else:
            target = _make_signing_target(location)
            yield HttpRemote(place, target=target, stall_timeout=stall_timeout, access_hint=S3_HINT)
    elif scheme == "hf":
        yield _make_hub_remote(place, rest, configuration, stall_timeout)
    else:
        raise ArtifactError(place, f"not a place that files are fetched from: {place}", "See docs/how-to/artifacts.md.")


def _list_web_remotes(url: str, configuration: Configuration, stall_timeout: float) -> Iterator[Remote]:
    blob = parse_azure_blob(url, configuration)
    if blob is None:
        yield HttpRemote(url, stall_timeout=stall_timeout)
        return
    access, container, name = blob
    if not access.own:
        # Most are public, and an identity of another organisation is refused even there: without it first.
        yield _make_azure_remote(url, access, lambda: url, stall_timeout)
    if access.own or access.identity:
        yield _make_blob_remote(url, access, container, name, stall_timeout)


def _make_blob_remote(url: str, access: AzureAccess, container: str, blob: str, stall_timeout: float) -> Remote:
    direct = f"{access.endpoint}/{container}/{blob}"
    if access.sas:
        return _make_azure_remote(url, access, lambda: f"{direct}?{access.sas}", stall_timeout)
    location = open_azure(access, container, unquote(blob), url, stall_timeout)
    if access.signs:
        return _make_azure_remote(url, access, _make_signing_target(location), stall_timeout)
    if location.anonymous:
        return _make_azure_remote(url, access, lambda: direct, stall_timeout)
    return ObjectRemote(url, location.store, location.path, AZURE_HINT)


def _make_azure_remote(url: str, access: AzureAccess, target: Callable[[], str], stall_timeout: float) -> Remote:
    sent = access.said_by
    if not access.own:
        sent = f"no credentials ({sent})" if sent else "no credentials"
    hint = f"Sent: {sent}. {AZURE_HINT}"
    return HttpRemote(
        url,
        target=target,
        stall_timeout=stall_timeout,
        access_hint=hint,
        # Azure answers for what is private, and asked for without credentials, as if it were not there.
        missing_hint=f"There is no such blob: check the spelling; or it is private. {hint}",
    )


def _make_signing_target(location: StoreLocation) -> Callable[[], str]:
    def target() -> str:
        import obstore  # noqa: PLC0415 - a large library, which few runs need

        return obstore.sign(location.store, "GET", location.path, _SIGNED_FOR)  # type: ignore[call-overload, no-any-return]

    return target


def _make_hub_remote(url: str, rest: str, configuration: Configuration, stall_timeout: float) -> Remote:
    match = _HUB_PATH.match(rest)
    if match is None:
        # The URL was checked when it was parsed; what a mirror makes of it was not.
        hint = "Expected hf://organisation/repository@<commit>/path, with the 40 digits of a commit."
        raise ArtifactError(url, f"not the path of a file in a repository of the hub: {url}", hint)
    endpoint = configuration.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    kind, repository, revision, path = match.groups(default="")
    target = f"{endpoint}/{kind}{repository}/resolve/{revision}/{quote(unquote(path))}"
    # The token as the hub's own tools find it (huggingface.co/docs/huggingface_hub/package_reference).
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
    """A file of a mirror."""

    path: Path

    @property
    def url(self) -> str:
        """See `Remote`."""
        return self.path.as_uri()

    @contextmanager
    def open(self, start: int, stop: int | None, version: str) -> Iterator[Body]:
        """See `Remote`."""
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
            present = f'"{"-".join(map(str, FileState.of(status)))}"'
            if version and present != version:
                raise ChangedError(f"{self.path} was written to")
            file.seek(start)
            blocks = iter(lambda: file.read(BLOCK_BYTES), b"")
            yield Body(RemoteFile(status.st_size, present, ranged=True), start, blocks)


@dataclass(frozen=True, slots=True)
class ObjectRemote:
    """An object of a store that retries nothing itself; with `etag_is_md5` an ETag that looks like one is an MD5."""

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
                answer = obstore.get(self.store, self.path, options=options)  # type: ignore[arg-type] # a TypedDict built up
            except BaseError as error:
                if start or stop is None or _find_status(error) != _RANGE_BEYOND:
                    raise
                answer = obstore.get(self.store, self.path)  # an empty object has no ranges
        except (BaseError, OSError) as error:
            raise self._explain(error) from error
        meta = answer.meta
        etag = meta["e_tag"] or ""
        if version and etag != version:
            raise ChangedError(f"{version} has become {etag}")
        md5 = _HEX_MD5.match(etag) if self.etag_is_md5 else None
        file = RemoteFile(meta["size"], etag, ranged=True, checksums={"md5": md5[1]} if md5 else {})
        yield Body(file, answer.range[0], self._read_blocks(answer))

    def _read_blocks(self, answer: GetResult) -> Iterator[bytes]:
        from obstore.exceptions import BaseError  # noqa: PLC0415 - a large library, which few runs need

        try:
            for block in answer.stream(min_chunk_size=BLOCK_BYTES):
                yield bytes(block)
        except (BaseError, OSError) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> Exception:
        """The error of ours that one of obstore's means."""
        from obstore import exceptions  # noqa: PLC0415 - a large library, which few runs need

        reason = without_queries(str(error).partition("\n")[0])
        if isinstance(error, FileNotFoundError):
            hint = "There is no such object: check the spelling, or whether it was moved."
            return MissingError(self.url, f"not found: {self.url}", hint)
        status = _find_status(error)
        if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
            return ArtifactError(self.url, f"access refused (HTTP {status}): {self.url}", self.access_hint)
        if isinstance(error, exceptions.PreconditionError) or status == _RANGE_BEYOND:
            return ChangedError(f"HTTP {status}")
        if status and status not in TRANSIENT_STATUSES:
            return ArtifactError(self.url, f"HTTP {status}: {self.url}: {reason}", self.access_hint)
        if not status and not isinstance(error, OSError) and "HTTP error" not in reason:
            # An identity that is not available, for one: it will not be there in a moment, either.
            return ArtifactError(self.url, f"{reason}: {self.url}", self.access_hint)
        # What the system said, which obstore has only inside of its text.
        system = _SYSTEM.search(str(error))
        return TransientError(f"HTTP {status}" if status else f"connection lost: {system[1] if system else reason}")


def _find_status(error: Exception) -> int:
    """HTTP status of an error of obstore's, which has it in its text alone; 0 for none."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else 0
