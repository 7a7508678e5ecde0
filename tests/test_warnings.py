"""Warnings of our own code are errors; warnings of other packages are not."""

from __future__ import annotations

import warnings
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def load(folder: Path, text: str) -> None:
    """Runs a module that nobody has imported before, and nobody finds afterwards."""
    folder.mkdir(parents=True)
    path = folder / "module_of_a_test.py"
    path.write_text(text)
    SourceFileLoader(path.stem, str(path)).exec_module(ModuleType(path.stem))


def test_what_another_package_warns_of_at_its_first_import_is_no_error(tmp_path: Path) -> None:
    # As torchao does: Python says the first as it compiles the file, which it does once.
    with warnings.catch_warnings(record=True) as seen:
        load(
            tmp_path / "lib/python3.11/site-packages/others/tests",
            'import warnings\nwarnings.warn("old")\nx = 1 is 1\n',
        )
    assert [item.category for item in seen] == [SyntaxWarning, UserWarning]


def test_our_own_warnings_are_errors() -> None:
    with pytest.raises(UserWarning, match="ours"):
        warnings.warn("ours", stacklevel=1)


@pytest.mark.parametrize("folder", ["iree_gauntlet/engine", "tests", "tools"])
def test_what_python_says_as_it_compiles_our_files_is_an_error(folder: str, tmp_path: Path) -> None:
    with pytest.raises(SyntaxError, match=r"with .*literal"):
        load(tmp_path / folder, "x = 1 is 1\n")
