"""`gauntlet.toml`, the project's and the user's settings, and `history_marks.toml`, which is reviewed like code.

Of settings are read, the first one's mirrors and stores before the second's: `config.toml` of the user in
`$XDG_CONFIG_HOME/iree-gauntlet` and `gauntlet.toml` of the project. `$IREE_GAUNTLET_CONFIG` names a file in place of
both; set and empty, it stands for no file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from iree_gauntlet.dialects.fields import StrictDocument, about, expecting, read_table
from iree_gauntlet.dialects.locations import BRACKETS_HINT, unreadable
from iree_gauntlet.dialects.spec_file import find_nearest, with_lines
from iree_gauntlet.errors import Problem, SpecError, UsageError
from iree_gauntlet.settings import Configuration, HistorySettings, Mirror, is_cmake_option

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_VARIABLE = "IREE_GAUNTLET_CONFIG"
_WRITE_VARIABLE = "IREE_GAUNTLET_SHARED_MODULES_WRITE"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s]+\Z")
_STORE = re.compile(r"(az|s3|gs)://[^\s/]+(/[^\s]*)?\Z")
_SHARED = re.compile(r"((az|s3|gs)://[^\s/]+(/[^\s]*)?|file:///[^\s]+)\Z")
# To tell a typing error from an option that is new: ours, and obstore's most used ones of each store.
_OURS = ("connection_string", "sas_token", "base_url", "instance_profile")
_OF_AZURE = ("account_name", "account_key", "sas_key", "client_id", "client_secret", "tenant_id", "authority_host")
_OF_AZURE_IDENTITIES = ("use_azure_cli", "federated_token_file", "msi_endpoint", "object_id", "token", "bearer_token")
_OF_S3 = ("access_key_id", "secret_access_key", "session_token", "region", "default_region", "role_arn", "sts_endpoint")
_OF_S3_REQUESTS = ("virtual_hosted_style_request", "request_payer", "unsigned_payload", "checksum_algorithm")
_OF_GCS = ("service_account", "service_account_key", "application_credentials")
_OF_ALL = ("endpoint", "skip_signature", "conditional_put", "server_side_encryption")
_OPTIONS = frozenset((*_OURS, *_OF_AZURE, *_OF_AZURE_IDENTITIES, *_OF_S3, *_OF_S3_REQUESTS, *_OF_GCS, *_OF_ALL))
_KIND = "settings"
_ENDPOINTS = ("endpoint", "base_url", "authority_host", "sts_endpoint")
_SECRET = re.compile(r"key|token|secret|password|connection_string|signature", re.IGNORECASE)
# In the project's folder.
MARKS_FILE = "history_marks.toml"
_MARKS = "marks"


def _check_url(text: str) -> str:
    """Refuse a URL that cannot be read, or that has something secret in it, which is not repeated."""
    if "://" in text and ("@" in text.partition("://")[2].partition("/")[0] or "?" in text or "#" in text):
        raise ValueError(
            "a URL with a user, a password or a query: leave it out (docs/how-to/artifacts.md: where credentials go)"
        )
    if "://" in text and (why := unreadable(text)):
        raise ValueError(f"{why}. {BRACKETS_HINT}")
    return text


_Public = Annotated[str, AfterValidator(_check_url)]
_Url = Annotated[_Public, expecting("the beginning of a URL, such as https://host/folder/", _URL.match)]
_Place = Annotated[
    _Public, expecting("a URL or an absolute folder", lambda text: text.startswith("/") or _URL.match(text))
]
_Shared = Annotated[
    _Public, expecting("az://account/container/…, s3://bucket/…, gs://bucket/… or file:///…", _SHARED.match)
]


_CMakeOption = Annotated[str, expecting("an option of CMake, -DNAME=VALUE", is_cmake_option)]


class _MirrorTable(StrictDocument):
    prefix: _Url
    to: Annotated[list[_Place], Field(min_length=1)] = Field(
        description="What takes its place: URLs, or absolute folders."
    )
    only: bool = about(False, "Never go to the URL itself.")


class _ModulesTable(StrictDocument):
    url: _Shared
    write: bool = about(False, "Whether this machine may fill it.")


class _DownloadsTable(StrictDocument):
    connections: Annotated[int, Field(ge=1, le=64)] = about(4, "At once, for one large file.")
    retries: Annotated[int, Field(ge=0, le=100)] = about(4, "Further attempts without any progress.")


class _SourceTable(StrictDocument):
    options: list[_CMakeOption] = Field(
        default_factory=list, description="CMake's, -DNAME=VALUE, of every source build."
    )


class _ToolchainsTable(StrictDocument):
    nightly_links: _Place = Configuration().nightly_links
    packages_api: _Url = Configuration().packages_api
    source: _SourceTable = Field(default_factory=_SourceTable, description="How IREE is built from source.")


class _HistoryTable(StrictDocument):
    store: Annotated[_Public, expecting("a folder, git:REPOSITORY#BRANCH, or the URL of an object store", bool)] = (
        HistorySettings().store
    )
    add: bool = about(False, "Every run adds itself.")
    least_time: Annotated[float, Field(gt=0, lt=1)] = about(
        HistorySettings().least_time, "Share below which a change of a time is none: 0.02 is 2 %."
    )
    least_other: Annotated[float, Field(gt=0, lt=1)] = about(
        HistorySettings().least_other, "The same for memory and compile times."
    )
    least_size: Annotated[float, Field(ge=0, lt=1)] = about(HistorySettings().least_size, "The same for sizes.")


class SettingsFile(StrictDocument):
    """Settings of a project, or of a user."""

    mirrors: list[_MirrorTable] = Field(
        default_factory=list, description="Where files may be had instead of at their URL, in the order of trying."
    )
    stores: dict[str, dict[str, str | bool | int]] = Field(
        default_factory=dict,
        description="Options of object stores by the beginning of their URLs; $NAME is a variable of the environment.",
    )
    modules: _ModulesTable | None = about(None, "The shared module cache.")
    downloads: _DownloadsTable | None = about(None, "How files are fetched.")
    toolchains: _ToolchainsTable | None = about(None, "Where IREEs come from.")
    history: _HistoryTable | None = about(None, "What every run measured.")


def read_configuration(project: Path, environ: Mapping[str, str]) -> Configuration:
    """The settings that hold for a project.

    Raises:
        UsageError: a variable names no file, or is neither 0 nor 1.
        SpecError: with everything that is wrong with a file.
    """
    named = environ.get(_VARIABLE)
    if named and not Path(named).is_file():
        raise UsageError(f"${_VARIABLE} names {named}, which is not a file", "Fix the path, or unset the variable.")
    # Where there is no home it stays as it is, and names no file.
    home = environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    usual = [Path(home) / "iree-gauntlet" / "config.toml", project / "gauntlet.toml"]
    places = usual if named is None else [Path(named)] if named else []
    files = [path for path in places if path.is_file()]
    tables = [_read(path) for path in files]
    stores: dict[str, dict[str, str]] = {}
    for prefix, options in (item for table in tables for item in table.stores.items()):
        # As obstore takes them.
        written = {
            name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
        }
        stores.setdefault(prefix, written)
    modules = next((table.modules for table in tables if table.modules), None)
    said = environ.get(_WRITE_VARIABLE, "") if modules else ""
    if said not in ("", "0", "1"):
        raise UsageError(f"${_WRITE_VARIABLE} is {said!r}: expected 0 or 1", "Unset it for what the file says.")
    downloads = next((table.downloads for table in tables if table.downloads), _DownloadsTable())
    history = next((table.history for table in tables if table.history), None)
    toolchains = next((table.toolchains for table in tables if table.toolchains), _ToolchainsTable())
    return Configuration(
        files=tuple(files),
        mirrors=tuple(Mirror(item.prefix, tuple(item.to), item.only) for table in tables for item in table.mirrors),
        stores=stores,
        shared_modules=modules.url if modules else "",
        fills_shared_modules=said == "1" if said else modules is not None and modules.write,
        connections=downloads.connections,
        retries=downloads.retries,
        history=HistorySettings(**history.model_dump()) if history else HistorySettings(),
        nightly_links=toolchains.nightly_links,
        packages_api=toolchains.packages_api.rstrip("/"),
        build_options=tuple(toolchains.source.options),
        environ=environ,
    )


def _read(path: Path) -> SettingsFile:
    text, table = read_table(path, SettingsFile, _KIND)
    problems = [
        Problem(str(path), 0, field, *why)
        for prefix, options in table.stores.items()
        for field, *why in _check_store(prefix, options)
    ]
    if problems:
        raise SpecError(with_lines(problems, text), _KIND)
    return table


def _check_store(prefix: str, options: Mapping[str, str | bool | int]) -> Iterator[tuple[str, ...]]:
    """What is wrong with the options of a store: field, message, hint."""
    if not _STORE.match(prefix):
        yield f'stores."{prefix}"', f"expected az://account, s3://bucket or gs://bucket, found {prefix!r}"
        return
    for name, value in options.items():
        field = f'stores."{prefix}".{name}'
        if name not in _OPTIONS and (near := find_nearest(name, _OPTIONS)):
            # Others are obstore's to know: it has more of them with each release.
            yield field, f"unknown option; did you mean {near!r}?"
        given = value if isinstance(value, str) and not value.startswith("$") else ""
        if given and _SECRET.search(name):
            yield field, "a secret in a file", 'Put it into an environment variable and write its name: "$NAME".'
        elif given and name in _ENDPOINTS:
            try:
                _check_url(given)
            except ValueError as error:
                yield field, str(error)
            else:
                if not given.startswith(("http://", "https://")):
                    yield field, f"expected a URL, such as https://minio.example, found {given!r}"


@dataclass(frozen=True, slots=True)
class Mark:
    """What somebody says about a change; marks as `_MarkTable` has them."""

    series: str
    iree: str
    mark: str
    reason: str
    to: str = ""


class _MarkTable(StrictDocument):
    series: Annotated[str, Field(min_length=1)] = Field(description="Glob of series, or of cases.")
    iree: Annotated[str, Field(min_length=1)] = Field(
        description="With which IREE it came: a version, the beginning of a commit, or a day."
    )
    mark: Literal["accepted", "invalid", "moved"] = Field(
        description="accepted: it is meant; invalid: what was measured with it does not count; or moved."
    )
    reason: Annotated[str, Field(min_length=1)] = Field(description="Why, with a link where there is one.")
    to: str = about("", "Of one that was moved: with which IREE it really came.")


class MarksFile(StrictDocument):
    """What people say about changes in a history."""

    mark: list[_MarkTable] = Field(
        default_factory=list,
        description="accepted: it is meant; invalid: what was measured with it does not count; or moved.",
    )


def read_marks(file: Path) -> tuple[Mark, ...]:
    """The marks in a file, none where it is not there; SpecError with everything that is wrong with it."""
    if not file.is_file():
        return ()
    text, table = read_table(file, MarksFile, _MARKS)
    problems = [
        Problem(str(file), 0, f"mark[{place}].to", "a mark `moved` says with which IREE it really came", "Add `to`.")
        for place, item in enumerate(table.mark)
        if (item.mark == "moved") != bool(item.to)
    ]
    if problems:
        raise SpecError(with_lines(problems, text), _MARKS)
    return tuple(Mark(**item.model_dump()) for item in table.mark)
