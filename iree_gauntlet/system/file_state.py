"""What tells cheaply whether a file is still the one that was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import os


class FileState(NamedTuple):
    """Size, times and inode of a file, that no write leaves as they were.

    A time of modification can be set back (`cp -p`, tar, nix, bazel, layers of docker); the time of change (`st_ctime`)
    is the kernel's own. It also changes with rights, owner and hard links: the content then has to be read once more.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """The state that a `stat` has found."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def is_linked_only(self, later: FileState) -> bool:
        """Whether a later state is what a new hard link makes of this one."""
        return self._replace(ctime_ns=later.ctime_ns) == later
