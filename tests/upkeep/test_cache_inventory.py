"""The inventory of a cache: made from names, sizes and times; last uses are stored to the hour."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.artifacts.hashing import HashCache
from iree_gauntlet.artifacts.inventory import CacheItemKind, find_url, take_inventory
from iree_gauntlet.artifacts.registry_file import Registry, RegistryEntry
from iree_gauntlet.artifacts.sources import make_local_name
from tests.support.cache_builder import DAY_SECONDS, CacheBuilder

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://host.example/dir/weights.irpa"


@pytest.fixture
def cache(tmp_path: Path) -> CacheBuilder:
    return CacheBuilder(tmp_path / "cache")


def test_every_kind_is_listed(cache: CacheBuilder) -> None:
    cache.artifact(URL, b"a" * 1000, days=3)
    cache.artifact("random://uniform/4xf32?seed=1", b"r" * 10)
    module = cache.module("toy/abs@cpu", b"m" * 2000, days=5)
    folder = cache.partial_download("https://host.example/large.irpa", 100_000, 50_000_000, days=2)
    cache.wheel("toy", b"w" * 30, days=1)
    environment = cache.root / "toolchains" / "envs" / "3.12.0-py3.11-linux-x86_64"
    environment.mkdir(parents=True)
    (environment / "iree-compile").write_bytes(b"t" * 3000)
    (cache.root / "toolchains" / "x.json").write_text("{}")
    (cache.root / "registry.txt").write_text("")
    registry = Registry().with_entries([RegistryEntry(make_local_name(URL), "0" * 64, URL)])
    items = cache.items(registry)
    now = cache.now()

    weights = items["artifacts/https/host.example/dir/weights.irpa"]
    assert (weights.kind, weights.bytes, weights.pin, weights.verified) == (
        CacheItemKind.ARTIFACT,
        1000,
        "registry",
        True,
    )
    assert now - weights.last_use == pytest.approx(3 * DAY_SECONDS, abs=60)
    compiled = items[module.relative_to(cache.root).as_posix()]
    assert (compiled.kind, compiled.name, compiled.key) == (CacheItemKind.MODULE, "toy/abs@cpu", module.name)
    assert now - compiled.last_use == pytest.approx(5 * DAY_SECONDS, abs=60)
    assert compiled.bytes > 2000
    arriving = items[folder.relative_to(cache.root).as_posix()]
    assert (arriving.kind, arriving.name) == (CacheItemKind.UNFINISHED, "https://host.example/large.irpa")
    assert (arriving.present, arriving.total) == (100_000, 50_000_000)
    assert arriving.bytes < 1_000_000, "holes take no room"
    assert sorted(item.kind for item in items.values() if item.kind is not CacheItemKind.OTHER) == sorted(
        ["artifact", "artifact", "module", "unfinished", "wheel", "toolchain"]
    )
    toolchain = items["toolchains/envs/3.12.0-py3.11-linux-x86_64"]
    assert (toolchain.name, toolchain.bytes) == ("3.12.0-py3.11-linux-x86_64", 3000)
    assert items["toolchains"].bytes == 2, "what is known of their flags"
    assert "registry.txt" not in items


def test_an_empty_or_missing_cache_has_no_items(tmp_path: Path) -> None:
    assert CacheBuilder(tmp_path / "cache").items().keys() == {"locks"}
    shutil.rmtree(tmp_path / "cache")
    assert take_inventory(tmp_path / "cache", CacheBuilder(tmp_path / "other").pins()) == []


def test_a_changed_file_is_not_called_verified(cache: CacheBuilder) -> None:
    path = cache.artifact(URL, b"abc")
    path.write_bytes(b"abcd")
    (item,) = (item for item in cache.items().values() if item.kind is CacheItemKind.ARTIFACT)
    assert item.verified is False


def test_damaged_entries_are_listed_all_the_same(cache: CacheBuilder) -> None:
    module = cache.module("toy/abs@cpu", b"m")
    (module / "entry.json").write_text("{")
    (cache.root / "incoming" / "0123").mkdir(parents=True)
    names = {item.kind: item.name for item in cache.items().values()}
    assert names[CacheItemKind.MODULE] == f"{module.name[:12]} (damaged)"
    assert names[CacheItemKind.UNFINISHED] == "incoming/0123/"


def test_links_out_of_the_cache_are_not_followed(cache: CacheBuilder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(b"x" * 100_000)
    cache.artifact(URL, b"abc")
    (cache.root / "artifacts" / "link").symlink_to(outside)
    assert sum(item.bytes for item in cache.items().values()) < 10_000


def test_what_a_run_folder_holds_too_is_told(cache: CacheBuilder, tmp_path: Path) -> None:
    module = cache.module("toy/abs@cpu", b"m" * 5000)
    os.link(module / "module.vmfb", tmp_path / "run.vmfb")
    (item,) = (item for item in cache.items().values() if item.kind is CacheItemKind.MODULE)
    assert item.shared_bytes == 5000


@pytest.mark.parametrize(
    ("url", "known"),
    [
        (URL, True),
        ("pypi://toy==1.0/toy/model.onnx", False),
        ("https://host.example/Dir/weights.irpa?x=1", False),
        ("s3://bucket/dir/weights.irpa", True),
    ],
)
def test_plain_names_tell_their_url(url: str, *, known: bool) -> None:
    name = make_local_name(url)
    assert find_url(name, "") == (url if known else "")
    assert find_url(name, url) == url


def test_a_last_use_is_written_once_an_hour(tmp_path: Path) -> None:
    verified = HashCache(tmp_path / "verified")
    path = tmp_path / "file"
    verified.touch(path)
    assert verified.last_use(path) is None
    path.write_bytes(b"abc")
    verified.remember(path, "0" * 64)
    now = path.stat().st_mtime
    verified.touch(path, now - 1800)
    before = verified.last_use(path)
    verified.touch(path)
    assert verified.last_use(path) == before
    verified.touch(path, now - 4000)
    verified.touch(path)
    used = verified.last_use(path)
    assert used is not None
    assert used >= now
    assert verified.get_cached_hash(path) == "0" * 64


def test_doubt_forgets_neither_the_hash_nor_the_use(tmp_path: Path) -> None:
    verified = HashCache(tmp_path / "verified")
    path = tmp_path / "file"
    verified.invalidate(path)
    path.write_bytes(b"abc")
    verified.remember(path, "0" * 64)
    verified.touch(path, 1_700_000_000.0)
    verified.invalidate(path)
    assert (verified.get_cached_hash(path), verified.get_last_hash(path), verified.last_use(path)) == (
        "",
        "0" * 64,
        1_700_000_000.0,
    )


def test_what_is_listed_is_looked_at_once_and_not_opened(cache: CacheBuilder) -> None:
    """How long thousands of entries take: test_cache_speed.py."""
    path = cache.artifact(URL, b"abc")
    for number in range(20):
        shutil.copy(path, path.with_name(f"{number}.irpa"))
    opened: list[str] = []
    listed: list[str] = []
    watching = [True]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and event == "open":
            opened.append(str(arguments[0]))
        elif watching and event in ("os.scandir", "os.listdir"):
            listed.append(str(arguments[0]))

    # A hook stays for as long as the process lives.
    sys.addaudithook(watch)
    try:
        assert sum(item.kind is CacheItemKind.ARTIFACT for item in cache.items().values()) == 21
    finally:
        watching.clear()
    artifacts = str(cache.root / "artifacts")
    assert listed.count(artifacts) == 1
    assert not [name for name in opened if name.startswith(artifacts)]
    assert len([name for name in opened if name.endswith(".json")]) <= 21, "a stamp each"
