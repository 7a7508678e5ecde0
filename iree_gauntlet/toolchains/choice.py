"""What `--iree` means: which IREE is asked for, before anything is looked for."""

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

_FORMS = (
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


_WORDS = (ChoiceKind.INSTALLED, ChoiceKind.NIGHTLY, ChoiceKind.PATH)
_FOLDERS = (ChoiceKind.WHEELS, ChoiceKind.VENV, ChoiceKind.BUILD, ChoiceKind.SOURCE)


@dataclass(frozen=True, slots=True)
class Choice:
    """One IREE, as it was asked for.

    Attributes:
        version: of a release or a nightly; None for `nightly`, the newest, and for the other kinds.
        range: None but for a range.
        folder: absolute; None where the kind names none.
        ref: what git calls a commit of a checkout, empty for its work tree; of a commit, the beginning of its hash.
    """

    kind: ChoiceKind
    text: str
    version: Version | None = None
    range: SpecifierSet | None = None
    folder: Path | None = None
    ref: str = ""

    @property
    def place(self) -> Path | None:
        """The folder, with the commit behind its name where there is one: the same for what is the same IREE."""
        return self.folder.with_name(f"{self.folder.name}@{self.ref}") if self.folder and self.ref else self.folder


def parse_choice(text: str, option: str = "--iree") -> Choice:
    """What a value of `--iree` asks for; `installed` for an empty one."""
    text = text.strip()
    if not text:
        return Choice(ChoiceKind.INSTALLED, str(ChoiceKind.INSTALLED))
    if text in _WORDS:
        return Choice(ChoiceKind(text), text)
    word, colon, rest = text.partition(":")
    if colon and word in _FOLDERS:
        if not rest:
            raise UsageError(f"{option} {text}: a folder must follow the colon", f"Such as {word}:/path/to/it.")
        if word == ChoiceKind.SOURCE:
            return _parse_checkout(text, rest, option)
        return Choice(ChoiceKind(word), text, folder=_make_absolute(rest))
    if colon and word == ChoiceKind.COMMIT:
        if not _COMMIT.fullmatch(rest):
            hint = "Such as commit:89ece87b."
            raise UsageError(f"{option} {text}: 7 to 40 digits of a commit's hash must follow", hint)
        return Choice(ChoiceKind.COMMIT, text, ref=rest)
    return _parse_versions(text, option)


def _parse_versions(text: str, option: str) -> Choice:
    """A range, a release or a nightly."""
    if text[0] in "<>=!~":
        try:
            return Choice(ChoiceKind.RANGE, text, range=SpecifierSet(text))
        except InvalidSpecifier as error:
            hint = "Such as '>=3.9,<3.12' (in quotes: < and > mean something to the shell)."
            raise UsageError(f"{option} {text}: not a range of versions", hint) from error
    try:
        version = Version(text)
    except InvalidVersion as error:
        raise UsageError(f"{option} {text}: not a known IREE", _guess(text)) from error
    if version.is_prerelease:
        return Choice(ChoiceKind.NIGHTLY, text, version)
    # `3.12` is 3.12.0 to an index, and should be to people and names of folders.
    return Choice(ChoiceKind.RELEASE, text, version if len(version.release) > 2 else Version(f"{text}.0"))


def _parse_checkout(text: str, rest: str, option: str) -> Choice:
    """A checkout, or a commit of it: `DIR@REF`, unless there is a folder of that whole name."""
    folder, at, ref = rest.rpartition("@")
    if not at or expand_home(rest).is_dir():
        return Choice(ChoiceKind.SOURCE, text, folder=_make_absolute(rest))
    if not folder or not ref or ref.startswith("-"):
        raise UsageError(f"{option} {text}: a commit must follow the @", "Such as source:../iree@main.")
    return Choice(ChoiceKind.SOURCE, text, folder=_make_absolute(folder), ref=ref)


def _make_absolute(text: str) -> Path:
    """A folder without `..`; links stay, as a virtual environment may lie behind one."""
    return Path(os.path.abspath(expand_home(text)))  # noqa: PTH100


def _guess(text: str) -> str:
    """What was perhaps meant."""
    folder = expand_home(text)
    if folder.is_dir():
        if (folder / "pyvenv.cfg").is_file():
            return f"{text} is a virtual environment: write venv:{text}."
        if any(folder.glob("*.whl")):
            return f"{text} holds wheels: write wheels:{text}."
        if (folder / ".git").exists():
            return f"{text} is a checkout: write source:{text} to have it built. Known: {_FORMS}."
        return f"Write build:{text} for a source build. Known: {_FORMS}."
    near = difflib.get_close_matches(text.partition(":")[0], [*_WORDS, *_FOLDERS, ChoiceKind.COMMIT], n=1)
    meant = f"Did you mean {near[0]}{'' if near[0] in _WORDS else ':'}? " if near else ""
    return f"{meant}Known: {_FORMS}."
