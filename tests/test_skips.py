"""The end of a session's output: each missing requirement is listed once."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_TESTS = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_one(number):
    pytest.skip("needs a moon")

@pytest.mark.skipif(True, reason="needs a moon")
def test_two():
    pass

@pytest.mark.skip(reason="needs a sun")
def test_three():
    pass

@pytest.mark.xfail(reason="never works", strict=True)
def test_four():
    raise ValueError

def test_five():
    pass
"""
_FILE = """
import pytest

pytest.importorskip("moon", reason="needs a moon")
"""


def test_what_was_missing_is_listed_once_with_the_number_of_tests(tmp_path: Path) -> None:
    (tmp_path / "test_tests.py").write_text(_TESTS)
    (tmp_path / "test_file.py").write_text(_FILE)
    # The tests in a process of their own, as `nox -s tests` has them.
    words = ("-p", "xdist.plugin", "-n", "1", "-p", "tests.support.skipped", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, f"--rootdir={tmp_path}", tmp_path],
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    _, _, shown = done.stdout.partition("skipped for what is not here")
    assert [line.strip() for line in shown.splitlines() if "needs" in line] == [
        "4 tests: needs a moon",
        "1 whole file: needs a moon",
        "1 test: needs a sun",
    ]
