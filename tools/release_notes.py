"""Prints the notes of a release from CHANGELOG.md: `python tools/release_notes.py v0.1.0`.

Exits with 1 if the version is not the package's, or if the changelog has no notes of this version.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["extract_notes"]

_CHECKOUT = Path(__file__).resolve().parent.parent
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def extract_notes(version: str, changelog: str) -> str:
    """Return the section of a version, which need not have a date yet, or an empty string."""
    heading = re.compile(rf"^## \[(?:Unreleased\]: )?{re.escape(version)}(?=[\]\s]|$).*$", re.MULTILINE)
    match = heading.search(changelog)
    if match is None:
        return ""
    remainder = changelog[match.end() :]
    section = remainder.split("\n## ", 1)[0]
    # Only a link's text is kept: links to pages of the repository do not work on a release's page.
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", section).strip() + "\n"


def main() -> int:
    """Print the notes and return the exit code."""
    version = sys.argv[1].removeprefix("v")
    match = _VERSION.search((_CHECKOUT / "iree_gauntlet" / "__init__.py").read_text(encoding="utf-8"))
    expected = match[1] if match else ""
    if version != expected:
        sys.stderr.write(f"the tag is of {version}, and the package is {expected}: change __version__, or the tag\n")
        return 1
    notes = extract_notes(version, (_CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8"))
    sys.stdout.write(notes)
    if not notes.strip():
        sys.stderr.write(f"CHANGELOG.md has nothing of {version}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
