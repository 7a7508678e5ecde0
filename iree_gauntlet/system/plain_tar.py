"""Unpacking of tar archives of plain files, without writing outside of the target directory.

`tarfile` has such a filter since Python 3.11.4, but Debian's Python is older.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path


class NotPlainError(tarfile.TarError):
    """An archive with a member that is neither file nor directory, or is outside of the target directory."""


def unpack_plain(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive into a directory; apply only the executable bit of the permissions.

    Raises:
        NotPlainError: a member is no plain file or directory; earlier members are already unpacked.
    """
    for member in tar:
        path = Path(os.path.normpath(folder / member.name))
        if not path.is_relative_to(folder) or not (member.isfile() or member.isdir()):
            raise NotPlainError(f"{member.name!r} is not a plain file below it")
        content = tar.extractfile(member)
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            shutil.copyfileobj(content, file)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)
