"""A cheap check that a file is still the one that was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import os


class FileState(NamedTuple):
    """A file's size, times and inode; every write changes at least one of them.

    Tools (`cp -p`, tar, nix, bazel, docker layers) can set back the modification time, but only the kernel sets the
    change time (`st_ctime`). New permissions, owners or hard links also change it; the file then has to be read again.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Return the state that a `stat` result describes."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def is_linked_only(self, later: FileState) -> bool:
        """Return True if the later state differs only as a new hard link makes it differ."""
        return self._replace(ctime_ns=later.ctime_ns) == later
