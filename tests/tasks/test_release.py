"""Releases: the contents of wheel and source archive, a wheel that works alone, and the notes of a version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest
from release import RELEASE_TEXTS, build, list_files, write_release_texts
from release_notes import extract_notes

from iree_gauntlet import __version__
from tests.support.checkout import list_committed_files
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_CHANGELOG = """# Changelog

## [Unreleased]: 0.2.0

### Added

- Something ([how](docs/how-to/run.md)), see [there](https://example.org).

## [0.1.0] - 2026-11-30

- The first one.
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(ROOT, tmp_path_factory.mktemp("release") / "dist")


def test_the_source_archive_holds_what_is_committed(packages: tuple[Path, Path]) -> None:
    _, archive = packages
    assert set(list_files(archive)) - {"PKG-INFO"} >= list_committed_files()


def test_nothing_large_is_committed() -> None:
    sizes = {name: (ROOT / name).stat().st_size for name in list_committed_files() if (ROOT / name).is_file()}
    assert {name: size for name, size in sizes.items() if size > 1_000_000} == {}


def test_the_wheel_holds_the_package_and_the_suites_and_nothing_else(packages: tuple[Path, Path]) -> None:
    wheel, _ = packages
    found = {name for name in list_files(wheel) if ".dist-info/" not in name}
    shipped = list_committed_files(
        "suites", "specs/regression_tests", "specs/benchmarks", "specs/torch_models", "cache/registry.txt"
    )
    expected = list_committed_files("iree_gauntlet") | {f"iree_gauntlet/shipped/{name}" for name in shipped}
    assert {name for name in expected if "/__pycache__/" not in name} == found
    assert wheel.stat().st_size < 5_000_000


def test_both_are_what_pypi_takes(packages: tuple[Path, Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *packages], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_works_outside_of_any_checkout(packages: tuple[Path, Path], tmp_path: Path) -> None:
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(packages[0]) as wheel:
        wheel.extractall(installed)
    # The dependencies of this Python, and the package of the wheel.
    environ = {**os.environ, "PYTHONPATH": str(installed), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def gauntlet(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "iree_gauntlet", *words]
        return subprocess.run(command, cwd=empty, env=environ, capture_output=True, text=True, check=False)

    listed = gauntlet("list", "--suite", "cpu")
    assert listed.returncode == 0, listed.stderr
    assert "dtln" in listed.stdout
    linted = gauntlet("lint", "--suite", "cpu")
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert gauntlet("init", "mine").returncode == 0
    assert (empty / "mine" / ".schemas" / "suite.json").is_file()
    where = gauntlet("run")
    assert where.returncode == 2
    assert "--suite cpu" in where.stderr


def test_the_packages_have_the_version_of_the_module(packages: tuple[Path, Path]) -> None:
    wheel, archive = packages
    assert wheel.name == f"iree_gauntlet-{__version__}-py3-none-any.whl"
    assert archive.name == f"iree_gauntlet-{__version__}.tar.gz"


def test_notes_are_those_of_the_version() -> None:
    assert extract_notes("0.1.0", _CHANGELOG) == "- The first one.\n"
    # Links to pages of the repository lead nowhere from a release's page.
    assert extract_notes("0.2.0", _CHANGELOG) == "### Added\n\n- Something (how), see [there](https://example.org).\n"
    assert extract_notes("0.1", _CHANGELOG) == ""
    assert extract_notes("9.9.9", _CHANGELOG) == ""


def test_the_changelog_has_notes_of_this_version() -> None:
    assert "### Added" in extract_notes(__version__, (ROOT / "CHANGELOG.md").read_text())


def test_pages_and_workflows_are_turned_around_at_the_first_release(tmp_path: Path) -> None:
    for name in {name for name, _, _ in RELEASE_TEXTS}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    write_release_texts(tmp_path)
    text = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "git+" not in text
    assert "'iree-gauntlet[iree]'" in (tmp_path / "README.md").read_text()
    with pytest.raises(SystemExit, match="expected once, found 0 times"):
        write_release_texts(tmp_path)


def test_where_one_place_does_not_fit_none_is_turned_around(tmp_path: Path) -> None:
    texts = {name: (ROOT / name).read_text() for name, _, _ in RELEASE_TEXTS}
    last, now, _ = RELEASE_TEXTS[-1]
    texts[last] = texts[last].replace(now, "")
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(SystemExit, match=f"{last}: expected once, found 0 times"):
        write_release_texts(tmp_path)
    assert {name: (tmp_path / name).read_text() for name in texts} == texts


def test_nothing_that_is_printed_to_be_run_needs_a_release() -> None:
    pages = [ROOT / "README.md", ROOT / "action.yml", *(ROOT / "docs").rglob("*.md")]
    pages += [*(ROOT / ".github").rglob("*.yml"), *(ROOT / "iree_gauntlet" / "upkeep").rglob("*.yml")]
    begin = r"""^\s*(?:- )?(?:\$ |run: |default: )?["']?"""
    line = re.compile(begin + r"(?:\S*pip install .*|iree-gauntlet\[.*)$", re.MULTILINE)
    lines = [item for path in pages for item in line.findall(path.read_text()) if "iree-gauntlet" in item]
    # Within a sentence too; what an extra alone adds goes into an environment that has the toolkit.
    anywhere = re.compile(r"pip install [^`\n]*iree-gauntlet(?!\[(?:models|record|source|tflite)\])[^`\n]*")
    found = [item for path in pages for item in anywhere.findall(path.read_text())]
    assert [item for item in (*lines, *found) if "git+https://" not in item] == []
    assert len(lines) > 3
