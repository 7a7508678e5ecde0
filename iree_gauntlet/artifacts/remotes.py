"""Where the file of a URL may be had: mirrors first, then the URL itself, each with the credentials for it."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from iree_gauntlet.artifacts.http_remote import HttpRemote
from iree_gauntlet.artifacts.object_stores import (
    AZURE_HINT,
    GCS_HINT,
    S3_HINT,
    AzureAccess,
    StoreLocation,
    azure_access,
    azure_blob,
    open_azure,
    open_store,
)
from iree_gauntlet.artifacts.remote import (
    BLOCK_BYTES,
    TRANSIENT_STATUSES,
    Body,
    ChangedError,
    Connection,
    MissingError,
    Remote,
    RemoteFile,
    TransientError,
    without_queries,
)
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.settings import Configuration, is_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from obstore import GetResult
    from obstore.store import ObjectStore


_HUB_HINT = (
    "A private or gated repository needs a token: set HF_TOKEN, or sign in with `hf auth login`, "
    "and accept the model's terms on its page."
)
_HUB_PATH = re.compile(r"(datasets/|spaces/)?([^/@]+/[^/@]+)@([0-9a-f]{40})/(.+)\Z")
_SIGNED_FOR = timedelta(hours=1)
_STATUS = re.compile(r"status code: (\d{3})")
_MD5_ETAG = re.compile(r'"([0-9a-f]{32})"\Z')
_SYSTEM = re.compile(r'kind: \w+,\s*message: "([^"]+)"')
_RANGE_BEYOND = 416


def places(url: str, configuration: Configuration) -> list[str]:
    """Where a file is looked for, in this order: URLs, and absolute paths of folders' files.

    A mirror that takes the place of its origin leaves the URL itself out.
    """
    found, origin = [], True
    for mirror in configuration.mirrors:
        if is_below(url, mirror.prefix) or (url.startswith(mirror.prefix) and mirror.prefix.endswith("/")):
            rest = url[len(mirror.prefix) :].lstrip("/")
            found += [f"{place.rstrip('/')}/{rest}" for place in mirror.to]
            origin = origin and not mirror.only
    return [*found, *([url] if origin else [])]


def remotes_of(place: str, configuration: Configuration, stall_timeout: float) -> Iterator[Remote]:
    """The ways to get at a place, in the order of trying; most have one.

    Raises:
        ArtifactError: options or credentials that are malformed, or a scheme that cannot be fetched.
    """
    if place.startswith(("/", "file:///")):
        yield _FileRemote(_inside_mirror(place))
        return
    scheme, _, rest = place.partition("://")
    if scheme in ("http", "https"):
        yield from _web(place, configuration, stall_timeout)
    elif scheme == "az":
        account, _, path = rest.partition("/")
        container, _, blob = path.partition("/")
        access = azure_access(account, configuration, place)
        yield _blob(place, access, container, blob, stall_timeout)
    elif scheme == "s3":
        yield _s3(place, configuration, stall_timeout)
    elif scheme == "gs":
        location = open_store(place, configuration, stall_timeout=stall_timeout, retries=0)
        yield ObjectRemote(place, location.store, location.path, GCS_HINT)
    elif scheme == "hf":
        yield _hub(place, rest, configuration, stall_timeout)
    else:
        raise ArtifactError(place, f"not a place that files are fetched from: {place}", "See docs/how-to/artifacts.md.")


def _inside_mirror(place: str) -> Path:
    path = unquote(urlsplit(place).path if place.startswith("file:") else place)
    if ".." in path.split("/") or "\0" in path:
        raise ArtifactError(place, f"a path that leaves its mirror: {place}", "Write the URL without '..'.")
    return Path(path)


def _web(url: str, configuration: Configuration, stall_timeout: float) -> Iterator[Remote]:
    blob = azure_blob(url, configuration)
    if blob is None:
        yield HttpRemote(url, stall_timeout=stall_timeout)
        return
    access, container, name = blob
    if access.own:
        yield _blob(url, access, container, name, stall_timeout)
        return
    # Most are public, and an identity of another organisation is refused even there: without it first.
    yield _azure_web(url, access, lambda: url, stall_timeout)
    if access.identity:
        yield _blob(url, access, container, name, stall_timeout)


def _blob(url: str, access: AzureAccess, container: str, blob: str, stall_timeout: float) -> Remote:
    direct = f"{access.endpoint}/{container}/{blob}"
    if access.sas:
        return _azure_web(url, access, lambda: f"{direct}?{access.sas}", stall_timeout)
    location = open_azure(access, container, unquote(blob), url)
    if access.signs:
        return _azure_web(url, access, _signing(location), stall_timeout)
    if location.anonymous:
        return _azure_web(url, access, lambda: direct, stall_timeout)
    return ObjectRemote(url, location.store, location.path, AZURE_HINT)


def _azure_web(url: str, access: AzureAccess, target: Callable[[], str], stall_timeout: float) -> Remote:
    hint = _azure_hint(access)
    return HttpRemote(
        url,
        target=target,
        stall_timeout=stall_timeout,
        access_hint=hint,
        # Azure answers for what is private, and asked for without credentials, as if it were not there.
        missing_hint=f"There is no such blob: check the spelling; or it is private. {hint}",
    )


def _azure_hint(access: AzureAccess) -> str:
    """What was sent, and what may be set."""
    if access.own:
        sent = f"Sent: {access.said_by}. "
    elif access.said_by:
        sent = f"Sent: no credentials ({access.said_by}). "
    else:
        sent = "Sent: no credentials. "
    return f"{sent}{AZURE_HINT}"


def _s3(url: str, configuration: Configuration, stall_timeout: float) -> Remote:
    location = open_store(url, configuration, stall_timeout=stall_timeout, retries=0)
    if location.anonymous:
        # What everybody may read is not encrypted with a key of somebody's: the ETag is an MD5.
        return ObjectRemote(url, location.store, location.path, S3_HINT, etag_is_md5=True)
    return HttpRemote(url, target=_signing(location), stall_timeout=stall_timeout, access_hint=S3_HINT)


def _signing(location: StoreLocation) -> Callable[[], str]:
    def target() -> str:
        import obstore  # noqa: PLC0415 - a large library, which few runs need

        return obstore.sign(location.store, "GET", location.path, _SIGNED_FOR)  # type: ignore[call-overload, no-any-return]

    return target


def _hub(url: str, rest: str, configuration: Configuration, stall_timeout: float) -> Remote:
    match = _HUB_PATH.match(rest)
    assert match is not None, "checked when the URL was parsed"
    environ = configuration.environ
    endpoint = environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    kind, repository, revision, path = match[1] or "", match[2], match[3], match[4]
    target = f"{endpoint}/{kind}{repository}/resolve/{revision}/{quote(unquote(path))}"
    token = _hub_token(configuration)
    return HttpRemote(
        url,
        target=lambda: target,
        headers={"Authorization": f"Bearer {token}"} if token else {},
        stall_timeout=stall_timeout,
        access_hint=_HUB_HINT,
    )


def _hub_token(configuration: Configuration) -> str:
    """The token as the hub's own tools find it (huggingface.co/docs/huggingface_hub/package_reference)."""
    environ = configuration.environ
    if environ.get("HF_TOKEN"):
        return environ["HF_TOKEN"].strip()
    home = environ.get("HF_HOME") or str(Path(environ.get("HOME", "/")) / ".cache/huggingface")
    path = Path(environ.get("HF_TOKEN_PATH") or str(Path(home) / "token"))
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


@dataclass(frozen=True, slots=True)
class _FileRemote:
    """A file of a mirror.

    Attributes:
        path: where it is.
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
            blocks = iter(lambda: file.read(BLOCK_BYTES), b"")
            yield Body(RemoteFile(status.st_size, present, ranged=True), start, blocks)


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
            # An identity that is not available, for one: it will not be there in a moment, either.
            return ArtifactError(self.url, f"{reason}: {self.url}", self.access_hint)
        # What the system said, which obstore has only inside of its text.
        system = _SYSTEM.search(str(error))
        return TransientError(f"HTTP {status}" if status else f"connection lost: {system[1] if system else reason}")


def _status(error: Exception) -> int:
    """HTTP status of an error of obstore's, which has it in its text alone; 0 for none."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else 0
