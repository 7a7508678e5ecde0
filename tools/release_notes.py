"""The notes of a release, out of CHANGELOG.md: `python tools/release_notes.py v0.1.0`.

Exits with 1 where the version is another one than the package's, or the changelog has nothing of it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["notes_of"]

_CHECKOUT = Path(__file__).resolve().parent.parent
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def notes_of(version: str, changelog: str) -> str:
    """The section of a version; of one that is not dated yet, too. Empty where there is none."""
    heading = re.compile(rf"^## \[(?:Unreleased\]: )?{re.escape(version)}(?=[\]\s]|$).*$", re.MULTILINE)
    found = heading.search(changelog)
    if found is None:
        return ""
    after = changelog[found.end() :]
    section = after.split("\n## ", 1)[0]
    # Its links are to pages of the repository, which a release's page does not know.
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", section).strip() + "\n"


def main() -> int:
    """Prints the notes."""
    version = sys.argv[1].removeprefix("v")
    found = _VERSION.search((_CHECKOUT / "iree_gauntlet" / "__init__.py").read_text(encoding="utf-8"))
    own = found[1] if found else ""
    if version != own:
        sys.stderr.write(f"the tag is of {version}, and the package is {own}: change __version__, or the tag\n")
        return 1
    notes = notes_of(version, (_CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8"))
    sys.stdout.write(notes)
    if not notes.strip():
        sys.stderr.write(f"CHANGELOG.md has nothing of {version}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
