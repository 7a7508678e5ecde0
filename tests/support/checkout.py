"""Git and the files of this checkout; tests that need git or a clone are skipped without them."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.support.places import ROOT

__all__ = ["list_committed_files", "needs_git"]

_REASON = "needs git: apt install git"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason=_REASON)


def list_committed_files(*folders: str) -> set[str]:
    """Return the paths, relative to the checkout, of all committed files, or of those below directories."""
    if shutil.which("git") is None:
        pytest.skip(_REASON)
    environ = os.environ | {"LC_ALL": "C"}
    result = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    # For a source archive inside another repository, git lists no files.
    if "not a git repository" in result.stderr or (result.returncode == 0 and not result.stdout):
        pytest.skip("needs a clone: this is the source archive")
    assert result.returncode == 0, result.stderr
    return set(result.stdout.splitlines())
