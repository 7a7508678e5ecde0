"""A cheap check that a file is still the one that was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import os


class FileState(NamedTuple):
    """A file's size, times and inode, at least one of which changes with every write.

    The modification time can be set back (`cp -p`, tar, nix, bazel, layers of docker); the change time (`st_ctime`) is
    set by the kernel. It also changes with rights, owner and hard links: the content then has to be read once more.
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
