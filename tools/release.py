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

__all__ = ["UNTIL_RELEASED", "build", "files_of", "turn_around"]

_CHECKOUT = Path(__file__).resolve().parent.parent
_REPOSITORY = " @ git+https://github.com/OWNER/iree-gauntlet"
# What is written otherwise while nothing is on PyPI: file, text, and the text from the first release on.
UNTIL_RELEASED = (
    ("README.md", "In a clone of this repository, on Linux", "On Linux"),
    (
        "README.md",
        """python3 -m venv .venv && .venv/bin/pip install -q -e '.[iree]'
""",
        """python3 -m venv .venv && .venv/bin/pip install -q 'iree-gauntlet[iree]'
""",
    ),
    ("README.md", " Nothing is on PyPI before the first release.", " In a clone, install `-e '.[iree]'`."),
    ("docs/start/goldens-and-ci.md", f"'iree-gauntlet[iree]{_REPOSITORY}'", "'iree-gauntlet[iree]'"),
    ("docs/start/goldens-and-ci.md", "`OWNER` stands for where this repository is. ", ""),
    ("docs/how-to/ci.md", f"'iree-gauntlet[source]{_REPOSITORY}'", "'iree-gauntlet[source]'"),
    ("docs/how-to/cluster.md", "-e '.[iree,cluster]'     # in the clone", "'iree-gauntlet[iree,cluster]'"),
    ("docs/how-to/cluster-ssh.md", "-e '.[iree,cluster]'` in a clone", "'iree-gauntlet[iree,cluster]'`"),
    (
        "docs/how-to/cluster-slurm.md",
        "-e '.[iree,cluster]'` in a clone, both it and the environment where they see them",
        "'iree-gauntlet[iree,cluster]'`, in an environment that they see",
    ),
    (".github/workflows/compare.yml", f'"iree-gauntlet[iree]{_REPOSITORY}"', "iree-gauntlet[iree]"),
    (".github/workflows/shards.yml", f'"iree-gauntlet[iree]{_REPOSITORY}"', "iree-gauntlet[iree]"),
)


def turn_around(checkout: Path) -> None:
    """Writes pages and workflows of a checkout as they are from the first release on: `release.py --first`."""
    texts = {name: (checkout / name).read_text(encoding="utf-8") for name, _, _ in UNTIL_RELEASED}
    for name, now, then in UNTIL_RELEASED:
        if texts[name].count(now) != 1:
            raise SystemExit(f"{name}: expected once, found {texts[name].count(now)} times: {now}")
        texts[name] = texts[name].replace(now, then)
    for name, text in texts.items():
        (checkout / name).write_text(text, encoding="utf-8")


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
    """Builds, checks and tries; with `--first` turns the pages around before."""
    if sys.argv[1:] == ["--first"]:
        turn_around(_CHECKOUT)
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
