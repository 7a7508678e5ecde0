"""Changes of files that people have written: shown as a diff, kept as one, or made."""

from __future__ import annotations

import difflib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.figures import counted
from iree_gauntlet.settings import require_ones_own, shown
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file as it is, and as it ought to be."""

    path: Path
    before: str
    after: str

    def diff(self) -> str:
        """In the form that `git apply` takes; empty where nothing changes."""
        name = shown(self.path.resolve()).as_posix() if self.path.is_absolute() else self.path.as_posix()
        # By \n alone: `splitlines` splits also where no other program does, such as at U+2028.
        before, after = (list(io.StringIO(text, newline="\n")) for text in (self.before, self.after))
        lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def hand_out(changes: Sequence[FileChange], output: str, *, write: bool) -> None:
    """Shows changes as a diff on standard output, keeps it, or makes them; words about it go to standard error.

    Raises:
        UsageError: there is no folder for the diff, or a file came with the toolkit.
        OSError: a file cannot be written.
    """
    changes = [change for change in changes if change.before != change.after]
    if not changes:
        sys.stderr.write("nothing to change\n")
        return
    patch = "".join(change.diff() for change in changes)
    if output:
        path = Path(output)
        if not path.parent.is_dir():
            raise UsageError(f"--output {path}: there is no folder {path.parent}", "Make it first.")
        write_atomic(path, patch.encode())
        sys.stderr.write(f"wrote {path}: apply it with `git apply {path}`\n")
    else:
        sys.stdout.write(patch)
    if write:
        for change in changes:
            require_ones_own(change.path)
        for change in changes:
            write_atomic(change.path, change.after.encode())
        sys.stderr.write(f"changed {counted(len(changes), 'file')}\n")
    elif not output:
        sys.stderr.write("nothing was written: --write changes the files, --output FILE keeps the diff for later\n")
