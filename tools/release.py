"""Builds the release into dist/, checks it, and runs a suite from the wheel alone, outside of any checkout."""

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

__all__ = ["RELEASE_TEXTS", "build", "list_files", "write_release_texts"]

_CHECKOUT = Path(__file__).resolve().parent.parent
_REPOSITORY = " @ git+https://github.com/OWNER/iree-gauntlet"
# These texts change with the first release on PyPI: file, current text, and the text from then on.
RELEASE_TEXTS = (
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


def write_release_texts(checkout: Path) -> None:
    """Apply `RELEASE_TEXTS` to a checkout's pages and workflows, for `release.py --first`."""
    texts = {name: (checkout / name).read_text(encoding="utf-8") for name, _, _ in RELEASE_TEXTS}
    for name, current, replacement in RELEASE_TEXTS:
        if texts[name].count(current) != 1:
            raise SystemExit(f"{name}: expected once, found {texts[name].count(current)} times: {current}")
        texts[name] = texts[name].replace(current, replacement)
    for name, text in texts.items():
        (checkout / name).write_text(text, encoding="utf-8")


def build(checkout: Path, dist: Path) -> tuple[Path, Path]:
    """Build a source archive, and a wheel from it, into a folder that is emptied first.

    Returns:
        The wheel and the source archive.
    """
    shutil.rmtree(dist, ignore_errors=True)
    subprocess.run([uv.find_uv_bin(), "build", "--quiet", "--out-dir", str(dist), str(checkout)], check=True)
    (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    return wheel, archive


def list_files(package: Path) -> list[str]:
    """Return the paths of the files in a wheel or a source archive."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return wheel.namelist()
    with tarfile.open(package) as archive:
        return [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]


def main() -> int:
    """Build, check and try the release; with `--first`, first write its texts."""
    if sys.argv[1:] == ["--first"]:
        write_release_texts(_CHECKOUT)
    wheel, archive = build(_CHECKOUT, _CHECKOUT / "dist")
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", wheel, archive], check=True)
    for package in (wheel, archive):
        size = package.stat().st_size / 1e6
        sys.stdout.write(f"{package.name}: {len(list_files(package))} files, {size:.1f} MB\n")
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="gauntlet-release-") as directory:
        folder = Path(directory)
        venv.create(folder / "venv", symlinks=True)
        tools = folder / "venv" / "bin"
        install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--python", str(tools / "python"), f"{wheel}[iree]"]
        subprocess.run(install, check=True)
        work_dir = folder / "empty"
        work_dir.mkdir()
        environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PATH": f"{tools}{os.pathsep}{os.defpath}"}
        gauntlet = str(tools / "gauntlet")
        for arguments in (["doctor"], ["run", "--suite", "cpu", "--model", "dtln"], ["init", "mine"]):
            sys.stdout.write(f"$ gauntlet {' '.join(arguments)}\n")
            sys.stdout.flush()
            subprocess.run([gauntlet, *arguments], cwd=work_dir, env=environ, check=True)
        subprocess.run([gauntlet, "run"], cwd=work_dir / "mine", env=environ, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
