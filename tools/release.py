"""Builds what is released into dist/, checks it, and runs a suite from the wheel alone, outside of any checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

import uv

__all__ = ["build", "files_of"]

_CHECKOUT = Path(__file__).resolve().parent.parent


def build(checkout: Path, dist: Path) -> tuple[Path, Path]:
    """Builds a source archive, and a wheel out of that; theirs are the only files of the folder.

    Returns:
        The wheel and the source archive.
    """
    shutil.rmtree(dist, ignore_errors=True)
    subprocess.run([uv.find_uv_bin(), "build", "--quiet", "--out-dir", str(dist), str(checkout)], check=True)
    (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    return wheel, archive


def files_of(package: Path) -> list[str]:
    """What a wheel or a source archive holds."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return wheel.namelist()
    with tarfile.open(package) as archive:
        return [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]


def main() -> int:
    """Builds, checks and tries."""
    wheel, archive = build(_CHECKOUT, _CHECKOUT / "dist")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", wheel, archive], check=True)
    for package in (wheel, archive):
        size = package.stat().st_size / 1e6
        sys.stdout.write(f"{package.name}: {len(files_of(package))} files, {size:.1f} MB\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="gauntlet-release-") as name:
        folder = Path(name)
        venv.create(folder / "venv", symlinks=True)
        tools = folder / "venv" / "bin"
        install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--python", str(tools / "python"), f"{wheel}[iree]"]
        subprocess.run(install, check=True)
        empty = folder / "empty"
        empty.mkdir()
        environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PATH": f"{tools}{os.pathsep}{os.defpath}"}
        gauntlet = str(tools / "gauntlet")
        for words in (["doctor"], ["run", "--suite", "cpu", "--model", "dtln"], ["init", "mine"]):
            sys.stdout.write(f"$ gauntlet {' '.join(words)}\n")
            sys.stdout.flush()
            subprocess.run([gauntlet, *words], cwd=empty, env=environ, check=True)
        subprocess.run([gauntlet, "run"], cwd=empty / "mine", env=environ, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
