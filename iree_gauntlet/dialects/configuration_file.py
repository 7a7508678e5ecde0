"""`gauntlet.toml`, the project's and the user's settings, and `history_marks.toml`, which is reviewed like code.

Settings are read from the user's `config.toml` in `$XDG_CONFIG_HOME/iree-gauntlet`, and from the project's
`gauntlet.toml`; the user's mirrors and stores come first. If `$IREE_GAUNTLET_CONFIG` is set, it names the file to read
instead of both; if it is empty, no file is read.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from iree_gauntlet.dialects.fields import Flag, StrictDocument, Text, about, expect, make_list, read_table
from iree_gauntlet.dialects.locations import BRACKETS_HINT, describe_url_error
from iree_gauntlet.dialects.spec_file import BRANCH, find_nearest, with_lines
from iree_gauntlet.dialects.variant_table import WithVariants, make_variants
from iree_gauntlet.errors import Problem, SpecError, UsageError
from iree_gauntlet.settings import Configuration, HistorySettings, Mirror, find_settings_files, is_cmake_option
from iree_gauntlet.targets import ARCHITECTURES, LENGTH_PLACES, parse_target, split_board

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iree_gauntlet.device_kinds import Processor
    from iree_gauntlet.targets import Target


_WRITE_VARIABLE = "IREE_GAUNTLET_SHARED_MODULES_WRITE"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s]+\Z")
_STORE_URL = re.compile(r"(az|s3|gs)://[^\s/]+(/[^\s]*)?\Z")
_SHARED_URL = re.compile(r"((az|s3|gs)://[^\s/]+(/[^\s]*)?|file:///[^\s]+)\Z")
# Unknown options that resemble one of these are typing errors: our options, and the most used of obstore's stores.
_TOOLKIT = ("connection_string", "sas_token", "base_url", "instance_profile")
_AZURE = ("account_name", "account_key", "sas_key", "client_id", "client_secret", "tenant_id", "authority_host")
_AZURE_IDENTITY = ("use_azure_cli", "federated_token_file", "msi_endpoint", "object_id", "token", "bearer_token")
_S3 = ("access_key_id", "secret_access_key", "session_token", "region", "default_region", "role_arn", "sts_endpoint")
_S3_REQUEST = ("virtual_hosted_style_request", "request_payer", "unsigned_payload", "checksum_algorithm")
_GCS = ("service_account", "service_account_key", "application_credentials")
_COMMON = ("endpoint", "skip_signature", "conditional_put", "server_side_encryption")
_OPTIONS = frozenset((*_TOOLKIT, *_AZURE, *_AZURE_IDENTITY, *_S3, *_S3_REQUEST, *_GCS, *_COMMON))
_BOARD = re.compile(r"ssh( [^\s'\"\\\\$]+)+")
_PLACE = re.compile(r"\{\w*\}")
_TRIPLE_FLAG = re.compile(r"--?iree-llvmcpu-target-triple=(\w+)")
_RUNTIME = re.compile(r"wheel:\w+|/.+")
_SETTINGS_KIND = "settings"
_ENDPOINT_OPTIONS = ("endpoint", "base_url", "authority_host", "sts_endpoint")
_SECRET_OPTION = re.compile(r"key|token|secret|password|connection_string|signature", re.IGNORECASE)
# The file with marks is in the project's folder.
MARKS_FILE = "history_marks.toml"
_MARKS_KIND = "marks"


def _check_url(text: str) -> str:
    """Reject a URL that cannot be parsed, or that contains a secret; the message does not repeat the secret."""
    if "://" in text and ("@" in text.partition("://")[2].partition("/")[0] or "?" in text or "#" in text):
        raise ValueError(
            "a URL with a user, a password or a query: remove it (docs/how-to/artifacts.md: where credentials go)"
        )
    if "://" in text and (reason := describe_url_error(text)):
        raise ValueError(f"{reason}. {BRACKETS_HINT}")
    return text


_NoSecret = Annotated[str, AfterValidator(_check_url)]
_Url = Annotated[_NoSecret, expect("the beginning of a URL, such as https://host/folder/", _URL.match)]
_UrlOrFolder = Annotated[
    _NoSecret, expect("a URL or an absolute folder", lambda text: text.startswith("/") or _URL.match(text))
]
_Shared = Annotated[
    _NoSecret, expect("az://account/container/…, s3://bucket/…, gs://bucket/… or file:///…", _SHARED_URL.match)
]


_CMakeOption = Annotated[str, expect("an option of CMake, -DNAME=VALUE", is_cmake_option)]


class _MirrorTable(StrictDocument):
    prefix: _Url
    to: Annotated[list[_UrlOrFolder], Field(min_length=1)] = Field(
        description="What replaces it: URLs, or absolute folders."
    )
    only: bool = about(False, "Never use the URL itself.")


class _ModulesTable(StrictDocument):
    url: _Shared
    write: bool = about(False, "Whether this machine may write to it.")


class _DownloadsTable(StrictDocument):
    connections: Annotated[int, Field(ge=1, le=64)] = about(4, "Simultaneous connections for one large file.")
    retries: Annotated[int, Field(ge=0, le=100)] = about(4, "More attempts without any progress.")


class _SourceTable(StrictDocument):
    options: list[_CMakeOption] = Field(
        default_factory=make_list, description="Options of CMake, -DNAME=VALUE, for every source build."
    )


class _ToolchainsTable(StrictDocument):
    nightly_links: _UrlOrFolder = Configuration().nightly_links
    packages_api: _Url = Configuration().packages_api
    source: _SourceTable = Field(default_factory=_SourceTable, description="How IREE is built from source.")


class _HistoryTable(StrictDocument):
    store: Annotated[_NoSecret, expect("a folder, git:REPOSITORY#BRANCH, or the URL of an object store", bool)] = (
        HistorySettings().store
    )
    add: bool = about(False, "Every run adds itself.")
    least_time: Annotated[float, Field(gt=0, lt=1)] = about(
        HistorySettings().least_time, "Smallest change of a time that counts, as a share: 0.02 is 2 %."
    )
    least_other: Annotated[float, Field(gt=0, lt=1)] = about(
        HistorySettings().least_other, "The same for memory and compile times."
    )
    least_size: Annotated[float, Field(ge=0, lt=1)] = about(HistorySettings().least_size, "The same for sizes.")


_Runner = Annotated[
    Annotated[list[Text], Tag(f"{BRANCH}words")]
    | Annotated[str, expect("a list of words, or ssh HOST", _BOARD.fullmatch), Tag(f"{BRANCH}board")],
    Discriminator(lambda value: f"{BRANCH}board" if isinstance(value, str) else f"{BRANCH}words"),
]


class _TargetTable(StrictDocument):
    compiler_flags: list[Flag] | None = about(None, "Flags of iree-compile that select the processor.")
    runtime: Annotated[str, expect("wheel:PLATFORM, or an absolute folder", _RUNTIME.fullmatch)] | None = about(
        None, "IREE's tools for it: wheel:manylinux_2_28_aarch64, or a folder."
    )
    runner: _Runner | None = about(
        None,
        "Words before the tools' command lines, or 'ssh HOST'; {vq}, {bytes} and {bits} are the length of a vector.",
    )
    has_times: bool | None = about(
        None, "Whether the runner runs programs on such a processor: times count (default: if it is ssh HOST)."
    )

    @property
    def runner_words(self) -> tuple[str, ...] | None:
        """The words of the runner; None if it is the ready-made one."""
        words = self.runner.split() if isinstance(self.runner, str) else self.runner
        return None if words is None else tuple(words)


class SettingsFile(WithVariants):
    """Settings of a project, or of a user."""

    mirrors: list[_MirrorTable] = Field(
        default_factory=make_list, description="Other locations of files, in the order in which they are tried."
    )
    stores: dict[str, dict[str, str | bool | int]] = Field(
        default_factory=dict,
        description="Options of object stores by the beginning of their URLs; $NAME is an environment variable.",
    )
    modules: _ModulesTable | None = about(None, "The shared module cache.")
    downloads: _DownloadsTable | None = about(None, "How files are fetched.")
    toolchains: _ToolchainsTable | None = about(None, "Where IREEs come from.")
    history: _HistoryTable | None = about(None, "What every run measured.")
    targets: dict[str, _TargetTable] = Field(
        default_factory=dict, description="Processors of other architectures by name, such as arm64 and arm64-grace."
    )


def read_configuration(project: Path, environ: Mapping[str, str]) -> Configuration:
    """Read the settings of a project.

    Raises:
        UsageError: a variable names no file, or is neither 0 nor 1.
        SpecError: all problems of a file.
    """
    files = find_settings_files(project, environ)
    if not files:
        # Most projects have none; a default of a table would build its schema.
        return Configuration(environ=environ)
    tables = [_read_settings(path) for path in files]
    stores: dict[str, dict[str, str]] = {}
    for prefix, options in (item for table in tables for item in table.stores.items()):
        # obstore accepts the options in this form.
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
        stores.setdefault(prefix, texts)
    modules = next((table.modules for table in tables if table.modules), None)
    write_value = environ.get(_WRITE_VARIABLE, "") if modules else ""
    if write_value not in ("", "0", "1"):
        raise UsageError(f"${_WRITE_VARIABLE} is {write_value!r}: expected 0 or 1", "Unset it to use the setting.")
    downloads = next((table.downloads for table in tables if table.downloads), _DownloadsTable())
    history = next((table.history for table in tables if table.history), None)
    toolchains = next((table.toolchains for table in tables if table.toolchains), _ToolchainsTable())
    return Configuration(
        files=tuple(files),
        mirrors=tuple(Mirror(item.prefix, tuple(item.to), item.only) for table in tables for item in table.mirrors),
        stores=stores,
        shared_modules=modules.url if modules else "",
        fills_shared_modules=write_value == "1" if write_value else modules is not None and modules.write,
        connections=downloads.connections,
        retries=downloads.retries,
        history=HistorySettings(**history.model_dump()) if history else HistorySettings(),
        nightly_links=toolchains.nightly_links,
        packages_api=toolchains.packages_api.rstrip("/"),
        build_options=tuple(toolchains.source.options),
        variants=tuple(
            variant for table, file in zip(tables, files, strict=True) for variant in make_variants(table, file)
        ),
        targets={
            target.chip: _make_processor(target, table)
            # The user's own definitions replace those of the project.
            for name, table in (item for file in reversed(tables) for item in file.targets.items())
            if (target := parse_target(name))
        },
        environ=environ,
    )


def _make_processor(target: Target, table: _TargetTable) -> Processor:
    """Make the processor of a definition; the fields that it lacks are those of the ready-made one."""
    ready_made = target.kind.architectures
    processor = ready_made.get(target.chip) or ready_made[target.architecture]
    words = table.runner_words
    board, rest = split_board(words or ())
    return replace(
        processor,
        flags=processor.flags if table.compiler_flags is None else tuple(table.compiler_flags),
        runtime=processor.runtime if table.runtime is None else table.runtime,
        runner=processor.runner if words is None else words,
        packages=processor.packages if words is None else "",
        has_times=bool(board) and not rest if table.has_times is None else table.has_times,
        is_ready_made=words is None,
    )


def _read_settings(path: Path) -> SettingsFile:
    text, table = read_table(path, SettingsFile, _SETTINGS_KIND)
    problems = [
        Problem(str(path), 0, field, *problem)
        for prefix, options in table.stores.items()
        for field, *problem in _check_store(prefix, options)
    ]
    problems += [
        Problem(str(path), 0, f"targets.{name}{field}", *problem)
        for name, definition in table.targets.items()
        for field, *problem in _check_target(name, definition)
    ]
    if problems:
        raise SpecError(with_lines(problems, text), _SETTINGS_KIND)
    return table


def _check_target(name: str, table: _TargetTable) -> Iterator[tuple[str, ...]]:
    """Yield the problems of a processor's definition: field, message, hint."""
    target, words = parse_target(name), table.runner_words or ()
    if table.runner == []:
        hint = 'For a kernel that starts the emulator itself: ["env"]. The ready-made one: without this field.'
        yield ".runner", "no words", hint
    if words and Path(words[0]).name == "ssh" and not split_board(words)[0]:
        yield ".runner", "ssh has no host", 'Such as ssh HOST, or ["ssh", "-p", "2222", "HOST"].'
    if words and Path(words[0]).name == "adb":
        yield ".runner", "boards are not reached by adb", "Run an SSH server on the board, and name it: ssh HOST."
    for place in {*_PLACE.findall(" ".join(words))}.difference(LENGTH_PLACES):
        yield ".runner", f"unknown place {place}", f"For the length of vectors: {', '.join(LENGTH_PLACES)}."
    if target is None or not target.architecture or target.vector_bits:
        hint = f"Such as {', '.join(ARCHITECTURES)}, or a name that begins with one: arm64-grace."
        yield "", f"{name!r} is no name of a processor", hint
        return
    architecture, flags, runtime = target.architecture, table.compiler_flags, table.runtime or ""
    triples = [match[1].replace("arm64", "aarch64") for flag in flags or () if (match := _TRIPLE_FLAG.match(flag))]
    if flags is not None and triples[-1:] != [architecture]:
        hint = f"These flags replace all of the ready-made: {' '.join(target.kind.architectures[architecture].flags)}."
        yield ".compiler_flags", f"--iree-llvmcpu-target-triple={architecture}-… is missing", hint
    if runtime.startswith("wheel:") and not runtime.endswith(f"_{architecture}"):
        known = dict.fromkeys(processor.runtime for processor in target.kind.architectures.values())
        hint = f"IREE has {' and '.join(filter(None, known))}; for others, name a folder with its tools."
        yield ".runtime", f"{runtime} is no platform of {architecture}", hint


def _check_store(prefix: str, options: Mapping[str, str | bool | int]) -> Iterator[tuple[str, ...]]:
    """Yield the problems of a store's options: field, message, hint."""
    if not _STORE_URL.match(prefix):
        yield f'stores."{prefix}"', f"expected az://account, s3://bucket or gs://bucket, found {prefix!r}"
        return
    for name, value in options.items():
        field = f'stores."{prefix}".{name}'
        if name not in _OPTIONS and (nearest := find_nearest(name, _OPTIONS)):
            # Leave other options to obstore, because each release has more options.
            yield field, f"unknown option; did you mean {nearest!r}?"
        literal = value if isinstance(value, str) and not value.startswith("$") else ""
        if literal and _SECRET_OPTION.search(name):
            yield field, "a secret in a file", 'Put it into an environment variable and write its name: "$NAME".'
        elif literal and name in _ENDPOINT_OPTIONS:
            try:
                _check_url(literal)
            except ValueError as error:
                yield field, str(error)
            else:
                if not literal.startswith(("http://", "https://")):
                    yield field, f"expected a URL, such as https://minio.example, found {literal!r}"


@dataclass(frozen=True, slots=True)
class Mark:
    """A user's comment on a change; marks as in `_MarkTable`."""

    series: str
    iree: str
    mark: str
    reason: str
    to: str = ""


class _MarkTable(StrictDocument):
    series: Annotated[str, Field(min_length=1)] = Field(description="Glob of series, or of cases.")
    iree: Annotated[str, Field(min_length=1)] = Field(
        description="The IREE that introduced it: a version, the beginning of a commit, or a day."
    )
    mark: Literal["accepted", "invalid", "moved"] = Field(
        description="accepted: it is intended; invalid: measurements with it do not count; or moved."
    )
    reason: Annotated[str, Field(min_length=1)] = Field(description="Why, with a link if there is one.")
    to: str = about("", "For `moved`: the IREE that really introduced it.")


class MarksFile(StrictDocument):
    """Users' comments on changes in a history."""

    mark: list[_MarkTable] = Field(
        default_factory=make_list,
        description="accepted: it is intended; invalid: measurements with it do not count; or moved.",
    )


def read_marks(file: Path) -> tuple[Mark, ...]:
    """Read the marks in a file (none if it does not exist); SpecError with all problems of the file."""
    if not os.path.lexists(file):
        return ()
    text, table = read_table(file, MarksFile, _MARKS_KIND)
    problems = [
        Problem(str(file), 0, f"mark[{index}].to", "a `moved` mark must name the IREE that caused it", "Add `to`.")
        for index, item in enumerate(table.mark)
        if (item.mark == "moved") != bool(item.to)
    ]
    if problems:
        raise SpecError(with_lines(problems, text), _MARKS_KIND)
    return tuple(Mark(**item.model_dump()) for item in table.mark)
