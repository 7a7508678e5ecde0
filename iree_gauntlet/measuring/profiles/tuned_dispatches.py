"""Counts the dispatches that a tuning spec matches: `python -m iree_gauntlet.measuring.profiles.tuned_dispatches`.

    tuned_dispatches -o tuned.json -- iree-compile PROGRAM FLAG… -o MODULE

The compiler runs with the flags of the tuning spec and without them, up to the phase in which every dispatch has its
configuration; it generates no code. A dispatch is matched if its `lowering_config` or `translation_info` differ. One
that the program calls several times counts once. The written document:

    matched       the names of the dispatches that the tuning spec matches
    dispatches    the number of all dispatches

Exit codes: 0; 2 if nothing could be counted, with one line that explains why.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import list_first
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.variants import remove_tuning_flags

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


# Constants are not printed, since the weights of a large model would take gigabytes.
_PHASE_FLAGS = ("--compile-to=executable-configurations", "--mlir-elide-elementsattrs-if-larger=16")
# Executables, their variants for devices, and functions have names that repeat in others.
_SYMBOL = re.compile(r"\s*(hal\.executable|hal\.executable\.variant|func\.func) (?:\w+ )?@(\"[^\"]*\"|[\w$.-]+)")
_CONFIGURATION = re.compile(r"\b(?:lowering_config|translation_info) = ")
_MAX_NAMES = 8
_BRACKET = re.compile(r"[<({\[]|(?<!-)[>)}\]]|,")


@dataclass(frozen=True, slots=True)
class TunedDispatches(Recorded):
    """The names of the dispatches that a tuning spec matches, and the number of all dispatches."""

    matched: tuple[str, ...]
    dispatches: int

    @property
    def description(self) -> str:
        """The matched dispatches in one line: `the tuning spec matches 1 of 12 dispatches: main_dispatch_3`."""
        names = f": {list_first(self.matched, _MAX_NAMES)}" if self.matched else ""
        return f"the tuning spec matches {len(self.matched)} of {self.dispatches} dispatches{names}"


def main(arguments: Sequence[str]) -> int:
    """Count the dispatches as the command line requests."""
    parser = argparse.ArgumentParser(prog="tuned_dispatches")
    parser.add_argument("-o", dest="output", required=True, type=lambda text: Path(text).resolve())
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    try:
        tuned = _compile(options.command, options.output.parent, "with")
        untuned = _compile(remove_tuning_flags(options.command), options.output.parent, "without")
    except GauntletError as error:
        sys.stderr.write(f"tuned_dispatches: {error.message}\n")
        return 2
    write_atomic(options.output, json.dumps(_find_matched(tuned, untuned).as_dict()).encode())
    return 0


def _compile(command: Sequence[str], folder: Path, word: str) -> Mapping[tuple[str, ...], list[str]]:
    """Return the configurations of the dispatches; the last two words of a command name its output."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        output = Path(temporary) / "configured.mlir"
        done = subprocess.run([*command[:-2], *_PHASE_FLAGS, "-o", str(output)], check=False)
        if done.returncode != 0:
            message = f"{word} the tuning spec, {Path(command[0]).name} ended with exit code {done.returncode}"
            raise GauntletError(f"{message} before it had configured the dispatches")
        with output.open(encoding="utf-8", errors="replace") as lines:
            return _read_configurations(lines)


def _read_configurations(lines: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    """Read the configurations of a program's dispatches, by the names of executable, variant and function."""
    names: dict[str, str] = {}
    configurations: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        if match := _SYMBOL.match(line):
            names[match[1]] = match[2].strip('"')
        if len(names) == len(("executable", "variant", "function")):
            configurations.setdefault(tuple(names.values()), []).extend(_find_values(line))
    # Functions without configurations are called by others, or are the host's.
    return {key: values for key, values in configurations.items() if values}


def _find_values(line: str) -> Iterator[str]:
    """Yield the configurations in a line; each ends at a comma, or at the end of the brackets that it stands in."""
    for start in _CONFIGURATION.finditer(line):
        depth = 0
        for bracket in _BRACKET.finditer(line, start.end()):
            depth += 0 if bracket[0] == "," else 1 if bracket[0] in "<({[" else -1
            if depth < 0 or (depth == 0 and bracket[0] == ","):
                yield line[start.start() : bracket.start()]
                break


def _find_matched(
    tuned: Mapping[tuple[str, ...], list[str]], untuned: Mapping[tuple[str, ...], list[str]]
) -> TunedDispatches:
    """Find the dispatches whose configurations differ from those without the tuning spec."""
    matched = tuple(key[-1] for key, values in tuned.items() if untuned.get(key) != values)
    return TunedDispatches(matched, len(tuned))


def read_tuned_dispatches(path: Path) -> TunedDispatches:
    """Read the document that this program wrote.

    Raises:
        GauntletError: the file cannot be read, or is no such document.
    """
    try:
        return TunedDispatches.from_dict(read_json(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise GauntletError(f"the tuned dispatches {path} cannot be read: {error}", "Run again.") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
