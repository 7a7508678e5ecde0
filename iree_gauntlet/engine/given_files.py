"""The files that a command reads values from: whether they can be read, and are read to their ends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from iree_gauntlet.steps import Command


INPUT = "--input="
EXPECTED = "--expected_output="
# Lies beside expected outputs that were recorded.
PROVENANCE_FILE = "provenance.json"
# What names a file behind these: opened, read on, or read to its end.
_FILE_MARKS = ("@", "+", "*")


def values_of(command: Command, flag: str) -> list[str]:
    """What a command says behind all of its flags of one name, which ends with `=`."""
    return [word.removeprefix(flag) for word in command.argv if word.startswith(flag)]


def require_whole_files(command: Command) -> None:
    """Makes sure that a command reads its files to their ends: the tools pass over a rest.

    Raises:
        UnreadError: it does not.
    """
    # They bring NumPy.
    from iree_gauntlet.measuring.numerics.arrays import UnreadError, read_arguments  # noqa: PLC0415

    for flag in (INPUT, EXPECTED):
        try:
            values = values_of(command, flag)
            # By itself, or behind its type.
            named = [
                text
                for text in values
                if text.startswith(_FILE_MARKS) or text.partition("=")[2].startswith(_FILE_MARKS)
            ]
            read_arguments(named, Path(command.cwd))
        except UnreadError:
            raise
        except GauntletError:
            # The tool has its own word on what cannot be read.
            continue


def describe_unreadable(command: Command) -> str:
    """Which .npy of a command is missing or damaged, behind the tool's name; empty where all can be read."""
    from iree_gauntlet.measuring.numerics.arrays import read_arguments  # noqa: PLC0415 - it brings NumPy

    try:
        for flag in (INPUT, EXPECTED):
            # Of these alone, what cannot be read here cannot be read by the tool.
            arrays = [text for text in values_of(command, flag) if text.startswith(_FILE_MARKS)]
            read_arguments(arrays, Path(command.cwd))
    except GauntletError as error:
        return f"cannot use {error.what}; {error.hint or 'fetch or record this file again'}"
    return ""


@dataclass(frozen=True, slots=True)
class RecordedFile(Recorded):
    """A file that a provenance names, beside which there may be `data`; what is written in the spec has no hash."""

    source: str
    sha256: str = ""
    data: tuple[RecordedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class GoldenProvenance(Recorded):
    """What recorded outputs were made from."""

    outputs: tuple[RecordedFile, ...]
    made_by: str = ""
    optimisations: str = ""
    model: RecordedFile | None = None
    inputs: tuple[RecordedFile, ...] = ()

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of outputs, by their names."""
        return {item.source: item.sha256 for item in self.outputs if item.sha256}


def read_provenance(folder: Path) -> GoldenProvenance | None:
    """That of the outputs in a folder; None where there is none, or one of somebody else's making."""
    try:
        return GoldenProvenance.from_dict(json.loads((folder / PROVENANCE_FILE).read_bytes()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def find_changed_goldens(command: Command) -> list[str]:
    """Expected outputs of a command that are not what was recorded, by the record beside them."""
    found = []
    for text in values_of(command, EXPECTED):
        _, mark, name = text.partition("@")
        path = Path(command.cwd, name)
        record = read_provenance(path.parent) if mark and path.is_file() else None
        known = record.hashes.get(path.name) if record is not None else None
        if known and hash_file(path) != known:
            found.append(f"{path.name} is not what was recorded ({PROVENANCE_FILE} has another hash)")
    return found
