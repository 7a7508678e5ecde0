"""The value of `--iree`: parsing the request, before any toolchain is located."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from iree_gauntlet.errors import UsageError
from iree_gauntlet.settings import expand_home

_SYNTAX_SUMMARY = (
    "installed, a release (3.12.0), a range ('>=3.9,<3.12'), nightly, a nightly's version (3.14.0rc20261120), "
    "wheels:DIR, venv:DIR, build:DIR, source:DIR, source:DIR@REF, commit:SHA, path"
)
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


class ChoiceKind(StrEnum):
    """The ways to name an IREE."""

    INSTALLED = "installed"
    RELEASE = "release"
    RANGE = "range"
    NIGHTLY = "nightly"
    WHEELS = "wheels"
    VENV = "venv"
    BUILD = "build"
    SOURCE = "source"
    COMMIT = "commit"
    PATH = "path"


_KEYWORDS = (ChoiceKind.INSTALLED, ChoiceKind.NIGHTLY, ChoiceKind.PATH)
_FOLDER_KINDS = (ChoiceKind.WHEELS, ChoiceKind.VENV, ChoiceKind.BUILD, ChoiceKind.SOURCE)


@dataclass(frozen=True, slots=True)
class Choice:
    """One IREE, as requested.

    Attributes:
        version: the version of a release or a nightly; None for `nightly` (the newest one) and for other kinds.
        range: the range of versions; None for other kinds.
        folder: the absolute path of a folder; None for kinds without a folder.
        ref: for a checkout, git's name of a commit, or empty for its work tree; for a commit, the abbreviated hash.
    """

    kind: ChoiceKind
    text: str
    version: Version | None = None
    range: SpecifierSet | None = None
    folder: Path | None = None
    ref: str = ""

    @property
    def identity_path(self) -> Path | None:
        """The folder, with `ref` (if any) appended to its name; equal paths mean the same IREE."""
        return self.folder.with_name(f"{self.folder.name}@{self.ref}") if self.folder and self.ref else self.folder


def parse_choice(text: str, option: str = "--iree") -> Choice:
    """Parse a value of `--iree`; an empty value means `installed`."""
    text = text.strip()
    if not text:
        return Choice(ChoiceKind.INSTALLED, str(ChoiceKind.INSTALLED))
    if text in _KEYWORDS:
        return Choice(ChoiceKind(text), text)
    kind, colon, argument = text.partition(":")
    if colon and kind in _FOLDER_KINDS:
        if not argument:
            raise UsageError(f"{option} {text}: a folder must follow the colon", f"For example {kind}:/path/to/it.")
        if kind == ChoiceKind.SOURCE:
            return _parse_checkout(text, argument, option)
        return Choice(ChoiceKind(kind), text, folder=_make_absolute(argument))
    if colon and kind == ChoiceKind.COMMIT:
        if not _COMMIT.fullmatch(argument):
            hint = "For example commit:89ece87b."
            raise UsageError(f"{option} {text}: 7 to 40 digits of a commit's hash must follow", hint)
        return Choice(ChoiceKind.COMMIT, text, ref=argument)
    return _parse_versions(text, option)


def _parse_versions(text: str, option: str) -> Choice:
    """Parse a range, a release or a nightly."""
    if text[0] in "<>=!~":
        try:
            return Choice(ChoiceKind.RANGE, text, range=SpecifierSet(text))
        except InvalidSpecifier as error:
            hint = "For example '>=3.9,<3.12' (in quotes, because the shell interprets < and >)."
            raise UsageError(f"{option} {text}: not a range of versions", hint) from error
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise UsageError(f"{option} {text}: not a known IREE", _suggest_syntax(text)) from error
    if version.is_prerelease:
        return Choice(ChoiceKind.NIGHTLY, text, version)
    # To a package index, `3.12` means 3.12.0, so people and names of folders get 3.12.0, too.
    return Choice(ChoiceKind.RELEASE, text, version if len(version.release) > 2 else Version(f"{text}.0"))


def _parse_checkout(text: str, argument: str, option: str) -> Choice:
    """Parse a checkout `DIR`, or a commit of a checkout `DIR@REF`, unless `DIR@REF` itself is a folder."""
    folder, separator, ref = argument.rpartition("@")
    if not separator or expand_home(argument).is_dir():
        return Choice(ChoiceKind.SOURCE, text, folder=_make_absolute(argument))
    if not folder or not ref or ref.startswith("-"):
        raise UsageError(f"{option} {text}: a commit must follow the @", "For example source:../iree@main.")
    return Choice(ChoiceKind.SOURCE, text, folder=_make_absolute(folder), ref=ref)


def _make_absolute(text: str) -> Path:
    """Return an absolute path without `..`; links stay, because a virtual environment must keep its path."""
    return Path(os.path.abspath(expand_home(text)))  # noqa: PTH100


def _suggest_syntax(text: str) -> str:
    """Suggest the syntax that the user probably meant."""
    if "+" in text:
        return f"Give variants of flags with --variant: --iree {text.partition('+')[0]} --variant NAME."
    folder = expand_home(text)
    if folder.is_dir():
        if (folder / "pyvenv.cfg").is_file():
            return f"{text} is a virtual environment: write venv:{text}."
        if any(folder.glob("*.whl")):
            return f"{text} contains wheels: write wheels:{text}."
        if (folder / ".git").exists():
            return f"{text} is a checkout: write source:{text} to have it built. Known: {_SYNTAX_SUMMARY}."
        return f"Write build:{text} for a source build. Known: {_SYNTAX_SUMMARY}."
    matches = difflib.get_close_matches(text.partition(":")[0], [*_KEYWORDS, *_FOLDER_KINDS, ChoiceKind.COMMIT], n=1)
    question = f"Did you mean {matches[0]}{'' if matches[0] in _KEYWORDS else ':'}? " if matches else ""
    return f"{question}Known: {_SYNTAX_SUMMARY}."
