"""The IREEs of a matrix: what each value of `--iree` asks for, and what it is called in reports and folders."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.toolchains.choice import Choice, ChoiceKind, parse_choice

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AskedIree", "asked_irees"]

_EXAMPLE = "Such as: gauntlet matrix --iree 3.9.0 --iree 3.13.0 --suite cpu"
# IREE's tools misread '@' and '%' in paths; ':' ends an entry of PATH; the rest means something to shells.
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_RANGE_BEGINS = tuple("<>=!~")


@dataclass(frozen=True, slots=True)
class AskedIree:
    """One IREE of a matrix.

    Attributes:
        text: the value of `--iree`, as given.
        label: its name in reports: the text, of a folder only as much of the end as tells it from the others.
        folder: the name of its sub-folder.
    """

    text: str
    label: str
    folder: str


def asked_irees(texts: Sequence[str]) -> tuple[AskedIree, ...]:
    """What `--iree` names, in the order given; nothing is looked for.

    Raises:
        UsageError: there is none, a value names no IREE, or two name the same.
    """
    if not texts:
        raise UsageError("matrix needs to know which IREEs: give --iree once for each", _EXAMPLE)
    choices = [_parsed(text) for text in texts]
    for place, choice in enumerate(choices):
        for other in choices[:place]:
            if replace(choice, text="") == replace(other, text=""):
                both = f"{other.text} and {choice.text}" if other.text != choice.text else choice.text
                raise UsageError(f"--iree {both}: one IREE is named twice", "Name each once.")
    labels = _labels(choices)
    folders: list[str] = []
    for label in labels:
        folders.append(_free(_UNSAFE.sub("-", label).strip("-.") or "iree", folders))
    return tuple(
        AskedIree(choice.text, label, folder) for choice, label, folder in zip(choices, labels, folders, strict=True)
    )


def _parsed(text: str) -> Choice:
    stripped = text.strip()
    if not stripped:
        raise UsageError("--iree is empty", _EXAMPLE)
    several = [word for word in re.split(r"[,\s]+", stripped) if word]
    if len(several) > 1 and ":" not in stripped and not stripped.startswith(_RANGE_BEGINS):
        each = " ".join(f"--iree {word}" for word in several)
        raise UsageError(f"--iree {stripped}: names several", f"Give each with an --iree of its own: {each}")
    return parse_choice(stripped)


def _labels(choices: Sequence[Choice]) -> list[str]:
    parts = [choice.folder.parts[1:] if choice.folder is not None else () for choice in choices]
    labels = []
    for choice, own in zip(choices, parts, strict=True):
        if choice.folder is None:
            labels.append(choice.text)
            continue
        others = [
            theirs
            for other, theirs in zip(choices, parts, strict=True)
            if other is not choice and other.kind is choice.kind
        ]
        # POSIX lets `//` be another root than `/`: then the whole paths tell.
        ends = ["/".join(own[-size:]) for size in range(1, len(own) + 1)] + [str(choice.folder)]
        taken = [{*("/".join(theirs[-size:]) for theirs in others)} for size in range(1, len(own) + 1)] + [set()]
        end = next(text for text, used in zip(ends, taken, strict=True) if text not in used)
        labels.append(f"{ChoiceKind(choice.kind)}:{end}")
    return labels


def _free(name: str, taken: Sequence[str]) -> str:
    """A name that no other IREE has, also where a file system takes upper for lower case."""
    number, candidate = 2, name
    while candidate.lower() in {other.lower() for other in taken}:
        candidate = f"{name}-{number}"
        number += 1
    return candidate
