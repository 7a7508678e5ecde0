"""Downloads over HTTP: streamed, hashed on the way, with an end to waiting and few, visible retries.

The store knows only the `Downloader` protocol, so a downloader with more abilities can take this place.
`HttpDownloader` can be given to Pooch as well (`pooch.fetch(name, downloader=HttpDownloader())`).
"""

from __future__ import annotations

import hashlib
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import requests
from urllib3.exceptions import ReadTimeoutError

from iree_gauntlet import __version__
from iree_gauntlet.artifacts.progress import Progress, Silent
from iree_gauntlet.artifacts.publishing import human_bytes, require_space
from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    import os

__all__ = ["Downloaded", "Downloader", "HttpDownloader"]

_BLOCK_BYTES = 1 << 18
_TOO_MANY_REQUESTS = 429
_LONGEST_WAIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What arrived."""

    sha256: str
    size: int


class Downloader(Protocol):
    """Gets the bytes of an `https:` or `http:` URL."""

    def download(self, url: str, path: Path, progress: Progress) -> Downloaded:
        """Write them to `path`, which does not exist yet or may be overwritten.

        Raises:
            ArtifactError: if they cannot be had; what then lies at `path` is the caller's to remove.
            OSError: if `path` cannot be written.
        """


class _TransientError(Exception):
    """A failure that may be gone in a moment.

    Attributes:
        wait: seconds that the server asked to wait; None where it did not.
    """

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class HttpDownloader:
    """Streams over HTTP with `requests`.

    Args:
        stall_timeout: seconds without a single byte after which an attempt is given up.
        retries: further attempts after a transient failure: connection lost, stall, cut off, 429, 5xx.
        backoff: seconds before the first retry; doubles each time, ± half at random so that parallel
            runs do not come back in step. A server's `Retry-After` is honoured instead.
    """

    def __init__(self, *, stall_timeout: float = 60.0, retries: int = 3, backoff: float = 1.0) -> None:
        self._stall_timeout = stall_timeout
        self._retries = retries
        self._backoff = backoff

    def __call__(
        self, url: str, output_file: str | os.PathLike[str], pooch: Any, *, check_only: bool = False
    ) -> bool | None:
        """Pooch's calling convention for downloaders; `pooch` is not used."""
        del pooch
        if check_only:
            return bool(requests.head(url, timeout=self._stall_timeout, allow_redirects=True).ok)
        self.download(url, Path(output_file), Silent())
        return None

    def download(self, url: str, path: Path, progress: Progress) -> Downloaded:
        """See `Downloader`."""
        for attempt in range(self._retries + 1):
            try:
                return self._attempt(url, path, progress)
            except _TransientError as error:
                if attempt == self._retries:
                    what = f"{error} ({attempt + 1} attempts): {url}"
                    hint = "Try again later; check the network and the proxy settings (HTTPS_PROXY)."
                    raise ArtifactError(url, what, hint) from error
                wait = self._wait(attempt, error.wait)
                if wait > _LONGEST_WAIT_SECONDS:
                    what = f"{error}, and the server asks to wait {wait:.0f} s: {url}"
                    raise ArtifactError(url, what, "Try again after that time.") from error
                message = f"{error}; retry {attempt + 1} of {self._retries} in {wait:.1f} s"
                progress.note(url, message)
                time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _wait(self, attempt: int, asked: float | None) -> float:
        if asked is not None:
            return asked
        return self._backoff * 2.0**attempt * random.uniform(0.5, 1.5)  # noqa: S311 - jitter, no secret

    def _attempt(self, url: str, path: Path, progress: Progress) -> Downloaded:
        headers = {
            # The bytes as they are stored: their length and hash are the file's.
            "Accept-Encoding": "identity",
            "User-Agent": f"iree-gauntlet/{__version__}",
        }
        done = 0
        try:
            with (
                requests.Session() as session,
                session.get(url, stream=True, timeout=self._stall_timeout, headers=headers) as response,
            ):
                _check_status(url, response)
                total = _content_length(response)
                if total is not None:
                    require_space(path.parent, url, total)
                digest = hashlib.sha256()
                with path.open("wb") as file:
                    progress.update(url, 0, total)
                    for block in response.iter_content(_BLOCK_BYTES):
                        file.write(block)
                        digest.update(block)
                        done += len(block)
                        progress.update(url, done, total)
                if total is not None and done != total:
                    raise _TransientError(f"cut off after {human_bytes(done)} of {human_bytes(total)}")
                return Downloaded(digest.hexdigest(), done)
        except requests.RequestException as error:
            raise self._explained(url, error, done) from error

    def _explained(self, url: str, error: requests.RequestException, done: int) -> Exception:
        """The error of ours that a failure of the network means; read from the most special on."""
        if isinstance(error, requests.exceptions.SSLError):
            hint = "Where a proxy signs with its own certificate, name it with REQUESTS_CA_BUNDLE."
            return ArtifactError(url, f"TLS to the server failed: {_cause(error)}: {url}", hint)
        if isinstance(error, requests.exceptions.ConnectTimeout):
            return _TransientError(f"no connection within {self._stall_timeout:g} s")
        late = bool(error.args) and isinstance(error.args[0], ReadTimeoutError)
        if late or isinstance(error, requests.exceptions.Timeout):
            return _TransientError(f"no byte for {self._stall_timeout:g} s, after {human_bytes(done)}")
        if isinstance(error, requests.exceptions.ConnectionError | requests.exceptions.ChunkedEncodingError):
            return _TransientError(f"connection lost after {human_bytes(done)}: {_cause(error)}")
        return ArtifactError(url, f"cannot be fetched: {_cause(error)}: {url}", "Check the URL.")


def _check_status(url: str, response: requests.Response) -> None:
    status = response.status_code
    if status == requests.codes.ok:
        return
    reason = f"HTTP {status} {response.reason or ''}".rstrip()
    if status == _TOO_MANY_REQUESTS or status >= 500:
        raise _TransientError(reason, _retry_after(response.headers.get("Retry-After")))
    if status in (401, 403):
        hint = "It needs credentials: put them into ~/.netrc, or use a source that is public."
    elif status in (404, 410):
        hint = "There is no such file: check the spelling, or whether it was moved."
    else:
        hint = "Open the URL in a browser to see what the server says."
    raise ArtifactError(url, f"{reason}: {url}", hint)


def _content_length(response: requests.Response) -> int | None:
    text = response.headers.get("Content-Length", "")
    encoded = response.headers.get("Content-Encoding", "identity") != "identity"
    return int(text) if text.isdecimal() and not encoded else None


def _retry_after(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110: a number, or a date)."""
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
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _cause(error: BaseException) -> str:
    """The innermost reason in one line; the outer ones repeat it with object addresses."""
    while isinstance(getattr(error, "reason", None), BaseException) or (
        error.args and isinstance(error.args[0], BaseException)
    ):
        reason = getattr(error, "reason", None)
        error = reason if isinstance(reason, BaseException) else error.args[0]
    text = str(error.args[-1]) if error.args else str(error)
    return " ".join(text.split()) or type(error).__name__
