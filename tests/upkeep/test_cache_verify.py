"""`cache.verify`: every changed byte is found, and repaired if possible."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.leases import Leases
from tests.support.artifact_server import Server, make_responder
from tests.support.cache_builder import CacheBuilder
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.artifacts.hashing import HashCache

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", cache="empty")


@pytest.fixture
def cache(project: Project) -> CacheBuilder:
    return CacheBuilder(project.folder / "cache")


def rot(path: Path, verified: HashCache) -> None:
    """Changes a byte as a failing disk does: nothing that is remembered of the file tells."""
    known = verified.get_cached_hash(path)
    with path.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    if known:
        verified.remember(path, known)


@pytest.mark.usefixtures("settled")
def test_a_sound_cache_is_said_to_be_sound_and_its_last_uses_stay(project: Project, cache: CacheBuilder) -> None:
    path = cache.artifact("https://host.example/a.irpa", CONTENT, days=20, in_lock_file=True)
    other = cache.artifact("https://host.example/b.irpa", CONTENT, days=20, in_lock_file=True)
    stamp = next(file for file in (cache.root / "verified").rglob("*.json") if "b.irpa" in file.read_text())
    stamp.unlink()
    used = other.stat().st_mtime - 1e6
    os.utime(other, (used, used))
    cache.module("toy/abs@cpu", b"m" * 100)
    before = cache.verified.last_use(path)
    done = project.gauntlet("cache.verify")
    assert done.code == 0, done.text
    assert "verified 3 items, 2.0 MB" in done.out
    assert "3 good\n" in done.out
    assert cache.verified.last_use(path) == before
    assert cache.verified.get_cached_hash(other)
    assert cache.verified.last_use(other) == pytest.approx(used)


def test_a_damaged_artifact_is_fetched_again(project: Project, cache: CacheBuilder, server: Server) -> None:
    url = server.url("/a.irpa", make_responder(CONTENT))
    path = cache.artifact(url, CONTENT, in_lock_file=True)
    rot(path, cache.verified)
    assert cache.verified.get_cached_hash(path), "its stamp holds: nothing but reading it tells"
    seen = project.gauntlet("cache.verify", "--check-only")
    assert seen.code == 3
    assert f"damaged: artifact {path.relative_to(cache.root / 'artifacts')}: sha256 " in seen.out
    assert "cache/registry.lock.txt" in seen.out
    assert "nothing was changed (--check-only)" in seen.out
    assert not cache.verified.get_cached_hash(path), "its next use hashes it"
    offline = project.gauntlet("cache.verify", "--offline")
    assert offline.code == 3
    assert "not repaired: " in offline.out
    assert "offline" in offline.out
    done = project.gauntlet("cache.verify")
    assert done.code == 0, done.text
    assert "fetched again: " in done.out
    assert "1 damaged (1 repaired)" in done.out
    assert path.read_bytes() == CONTENT


def test_wrong_content_at_the_source_mends_nothing(project: Project, cache: CacheBuilder, server: Server) -> None:
    url = server.url("/a.irpa", make_responder(b"something else"))
    path = cache.artifact(url, CONTENT, in_lock_file=True)
    rot(path, cache.verified)
    done = project.gauntlet("cache.verify")
    assert done.code == 3
    assert "wrong content" in done.out
    assert path.stat().st_size == len(CONTENT)


def test_a_damaged_module_goes_and_is_made_anew(project: Project, cache: CacheBuilder) -> None:
    modules = [
        cache.module(f"toy/{name}@cpu", CONTENT + name.encode()) for name in ("file", "entry", "missing", "good")
    ]
    rot(modules[0] / "module.vmfb", cache.verified)
    rot(modules[1] / "entry.json", cache.verified)
    (modules[2] / "module.vmfb").unlink()
    done = project.gauntlet("cache.verify", "--offline")
    assert done.code == 0, done.text
    assert "damaged: module toy/file@cpu: the checksum of module.vmfb does not match" in done.out
    assert "entry.json has changed since it was written" in done.out
    assert "damaged: module toy/missing@cpu: module.vmfb is missing" in done.out
    assert "removed: module toy/file@cpu; it is built again when it is needed" in done.out
    assert "1 good, 3 damaged (3 repaired)" in done.out
    assert [module.exists() for module in modules] == [False, False, False, True]


def test_a_large_module_that_was_checked_before_is_hashed_all_the_same(project: Project, cache: CacheBuilder) -> None:
    folder = cache.module("toy/large@cpu", CONTENT * 20)
    path = folder / "module.vmfb"
    cache.verified.remember(path, hashlib.sha256(CONTENT * 20).hexdigest())
    rot(path, cache.verified)
    assert cache.verified.get_cached_hash(path)
    assert project.gauntlet("cache.verify", "--check-only").code == 3
    assert not cache.verified.get_cached_hash(path)
    assert folder.exists()


def test_seeded_data_and_wheels_go_unless_someone_uses_them(project: Project, cache: CacheBuilder) -> None:
    seeded = cache.artifact("random://uniform/4xf32?seed=1", CONTENT)
    rot(seeded, cache.verified)
    wheel = cache.wheel("toy", b"")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("toy/model.onnx", CONTENT)
    wheel.write_bytes(wheel.read_bytes().replace(CONTENT[:100], CONTENT[1:101], 1))
    leases = Leases(cache.root)
    leases.use(seeded)
    done = project.gauntlet("cache.verify")
    assert done.code == 3
    assert "damaged: wheel toy-1.0-py3-none-any.whl: Bad CRC-32 for file 'toy/model.onnx'" in done.out
    assert "another process uses it" in done.out
    assert (seeded.exists(), wheel.exists()) == (True, False)


def test_what_no_record_knows_is_named_and_left_alone(project: Project, cache: CacheBuilder) -> None:
    path = cache.root / "artifacts" / "https" / "host.example" / "x.irpa"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"?")
    done = project.gauntlet("cache.verify")
    assert done.code == 0
    assert "unknown: artifact https/host.example/x.irpa: no record has its expected hash" in done.out
    assert "0 good, 1 without a record" in done.out
    assert path.exists()


def test_damage_without_a_source_stays_and_is_told(project: Project, cache: CacheBuilder) -> None:
    path = cache.artifact("https://host.example/Strange Name.irpa".replace(" ", "%20"), CONTENT)
    rot(path, cache.verified)
    done = project.gauntlet("cache.verify")
    assert done.code == 3
    assert "no record has its origin; delete it, and fetch it again" in done.out


def test_an_empty_cache_is_sound(project: Project) -> None:
    done = project.gauntlet("cache.verify")
    assert done.code == 0
    assert re.fullmatch(r"verified 0 items, 0 B in \S+ s: 0 good\n", done.out)
