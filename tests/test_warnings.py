"""Which warnings are errors here: ours, and none of other packages."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def test_what_another_package_warns_of_at_its_first_import_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As torchao does: Python says the first as it compiles the file, which it does once.
    (tmp_path / "of_others.py").write_text('import warnings\nwarnings.warn("old")\nSAME = 1 is 1\n')
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings(record=True) as seen:
        importlib.import_module("of_others")
    assert [item.category for item in seen] == [SyntaxWarning, UserWarning]


def test_our_own_warnings_are_errors() -> None:
    with pytest.raises(UserWarning, match="ours"):
        warnings.warn("ours", stacklevel=1)
