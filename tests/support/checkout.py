"""Git, and what it knows of this checkout; tests that need one of them are skipped where it is not here."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.support.places import ROOT

__all__ = ["list_committed", "needs_git"]

_REASON = "needs git: apt install git"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason=_REASON)


def list_committed(*folders: str) -> set[str]:
    """Files of folders, or all, by their paths in the checkout."""
    if shutil.which("git") is None:
        pytest.skip(_REASON)
    environ = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    # Inside of another repository, git lists none of its files.
    if "not a git repository" in done.stderr or (done.returncode == 0 and not done.stdout):
        pytest.skip("needs a clone: this is the source archive")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())
