"""The time to list a large cache."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.cache_builder import CacheBuilder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.measure


def test_thousands_of_entries_take_no_time(tmp_path: Path) -> None:
    cache = CacheBuilder(tmp_path / "cache")
    path = cache.artifact("https://host.example/dir/weights.irpa", b"abc")
    for number in range(3000):
        shutil.copy(path, path.with_name(f"{number}.irpa"))
    started = time.perf_counter()
    assert len(cache.items()) > 3000
    assert time.perf_counter() - started < 5
