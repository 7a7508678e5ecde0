"""`cache.lock`: learnt hashes become the project's, and every change is shown."""

from __future__ import annotations

import hashlib
import string
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.artifacts.registry_file import Registry, RegistryEntry
from iree_gauntlet.artifacts.sources import make_local_name
from iree_gauntlet.upkeep.cache_lock import format_locked_registry, plan_registry_update, write_registry
from tests.support.artifact_server import Server, make_responder
from tests.support.cache_builder import CacheBuilder
from tests.support.command_line import LIMIT_SECONDS
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

URL = "https://host.example/{}.irpa"


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project", cache="empty")
    yield project
    project.close()


def entry(name: str, digit: str = "0", url: str = "") -> RegistryEntry:
    return RegistryEntry(name, digit * 64, url)


def registry_of(project: Project) -> dict[str, RegistryEntry]:
    return dict(Registry.read(project.folder / "cache" / "registry.txt").entries)


# the plan

_NAMES = st.text(string.ascii_lowercase, min_size=1, max_size=2)
_ENTRIES = st.dictionaries(_NAMES, st.sampled_from("0123")).map(
    lambda found: Registry(Path("r"), {name: entry(name, digit) for name, digit in found.items()})
)


@given(_ENTRIES, _ENTRIES, _ENTRIES, st.one_of(st.none(), st.sets(_NAMES)), st.booleans())
def test_a_plan_loses_no_hash_unsaid(
    registry: Registry, learnt: Registry, fresh: Registry, named: set[str] | None, prune: bool
) -> None:
    relock = plan_registry_update(registry, learnt, fresh.entries.values(), used_names=named, prune=prune)
    after = {item.name: item for item in relock.entries}
    assert fresh.entries.items() <= after.items(), "what was asked for is there"
    changed = {change.name: change for change in relock.changes}
    for name in {*registry.entries, *after}:
        before, now = registry.get(name), after.get(name)
        assert (name in changed) == (before != now)
        if name not in fresh.entries and before and now:
            assert before == now, "a pin changes on request alone"
        if before and not now:
            assert prune
            assert named is not None
            assert name not in named
    said = {item.name for item in relock.conflicting_entries}
    for item in learnt.entries.values():
        assert (item.name in relock.moved_names) != (item in relock.foreign)
        if item.name in relock.moved_names and after.get(item.name) != item:
            assert item.name in {*said, *fresh.entries} or item.name in changed or prune


@given(_ENTRIES, _ENTRIES)
def test_a_registry_says_what_it_was_told_and_is_sorted(before: Registry, after: Registry) -> None:
    text = format_locked_registry("# top\n\n" + before.text(), Path("r"), after.entries.values())
    assert text == "# top\n\n" + after.text()
    assert format_locked_registry(text, Path("r"), after.entries.values()) == text


def test_comments_stay_where_they_belong(tmp_path: Path) -> None:
    path = tmp_path / "registry.txt"
    lines = [f"{name} sha256:{'0' * 64}\n" for name in ("a", "b", "c")]
    path.write_text(f"# top\n{lines[0]}# of c\n{lines[2]}# of b\n# more\n{lines[1]}# end\n")
    write_registry(path, [entry("c"), entry("b"), entry("aa", "1")])
    new = f"aa sha256:{'1' * 64}\n"
    assert path.read_text() == f"# top\n{new}# of b\n# more\n{lines[1]}# of c\n{lines[2]}# end\n"
    written = path.stat()
    write_registry(path, [entry("c"), entry("b"), entry("aa", "1")])
    assert path.stat() == written


# the task


def test_learnt_hashes_become_the_projects(project: Project) -> None:
    assert "nothing to do" in project.gauntlet("cache.lock").out
    cache = CacheBuilder(project.folder / "cache")
    cache.artifact(URL.format("b"), b"b", in_lock_file=True)
    cache.artifact(URL.format("a"), b"a", in_lock_file=True)
    (cache.root / "registry.txt").write_text("# hashes\n")
    shown = project.gauntlet("cache.lock", "--dry-run")
    assert shown.code == 0
    assert "+ https/host.example/a.irpa sha256 ca978112ca1b…\n+ https/host.example/b.irpa" in shown.out
    assert "was not changed (--dry-run)" in shown.out
    assert registry_of(project) == {}
    done = project.gauntlet("cache.lock")
    assert done.code == 0, done.text
    assert "cache/registry.txt: 2 added, 0 changed, 0 dropped; commit it" in done.out
    assert list(registry_of(project)) == [make_local_name(URL.format("a")), make_local_name(URL.format("b"))]
    assert (cache.root / "registry.txt").read_text().startswith("# hashes\nhttps/")
    assert (cache.root / "registry.lock.txt").read_text() == ""
    assert "nothing to do" in project.gauntlet("cache.lock").out


def test_a_pin_of_the_project_counts_more_than_a_learnt_hash(project: Project) -> None:
    cache = CacheBuilder(project.folder / "cache")
    cache.artifact(URL.format("a"), b"a", in_lock_file=True)
    pinned = entry(make_local_name(URL.format("a")), "7")
    (cache.root / "registry.txt").write_text(Registry().with_entries([pinned]).text())
    done = project.gauntlet("cache.lock")
    assert "dropped: https/host.example/a.irpa sha256 ca978112ca1b… was recorded" in done.out
    assert registry_of(project) == {pinned.name: pinned}


def test_in_a_shared_cache_hashes_of_other_projects_stay(project: Project, tmp_path: Path) -> None:
    shared = CacheBuilder(tmp_path / "shared")
    shared.artifact(URL.format("other"), b"o", in_lock_file=True)
    shared.artifact(URL.format("own"), b"a", in_lock_file=True)
    project.regression(inputs=[{"source": URL.format("own")}])
    done = project.gauntlet("cache.lock", "--cache-dir", str(shared.root))
    assert done.code == 0, done.text
    assert "1 recorded hash remains in " in done.out
    assert list(registry_of(project)) == [make_local_name(URL.format("own"))]
    assert list(shared.pins().lock_file.entries) == [make_local_name(URL.format("other"))]


def test_prune_drops_what_no_spec_names(project: Project) -> None:
    (project.folder / "cache").mkdir()
    needed, weights = make_local_name(URL.format("needed")), make_local_name(URL.format("weights"))
    file = project.folder / "cache" / "registry.txt"
    file.write_text(Registry().with_entries(map(entry, (needed, weights, "https/host.example/left.irpa"))).text())
    project.regression(inputs=[{"source": URL.format("needed")}])
    project.benchmark(benchmark_flags=[f"--parameters=model={URL.format('weights')}"])
    done = project.gauntlet("cache.lock", "--prune")
    assert done.code == 0, done.text
    assert "- https/host.example/left.irpa\n" in done.out
    assert sorted(registry_of(project)) == [needed, weights]
    (project.regressions / "broken.json").write_text("{")
    broken = project.gauntlet("cache.lock", "--prune")
    assert broken.code == 2
    assert "it may name an artifact, so nothing was changed" in broken.err


def test_refresh_pins_what_the_source_has_now(project: Project, server: Server) -> None:
    cache = CacheBuilder(project.folder / "cache")
    url, same = server.url("/a.irpa", make_responder(b"new")), server.url("/same.irpa", make_responder(b"same"))
    path = cache.artifact(url, b"old", in_lock_file=True)
    cache.artifact(same, b"same", in_lock_file=True)
    assert project.gauntlet("cache.lock").code == 0
    shown = project.gauntlet("cache.lock", "--refresh", url, "--dry-run")
    assert f"~ {make_local_name(url)} sha256 {hashlib.sha256(b'old').hexdigest()[:12]}… → " in shown.out
    assert path.read_bytes() == b"old"
    done = project.gauntlet("cache.lock", "--refresh", url, "--refresh", same)
    assert done.code == 0, done.text
    assert f"= {make_local_name(same)} sha256 {hashlib.sha256(b'same').hexdigest()[:12]}…: unchanged" in done.out
    assert "0 added, 1 changed, 0 dropped" in done.out
    assert path.read_bytes() == b"new"
    assert registry_of(project)[make_local_name(url)].sha256 == hashlib.sha256(b"new").hexdigest()
    assert cache.verified.get_cached_hash(path) == hashlib.sha256(b"new").hexdigest()
    assert not list((cache.root / "refreshing").iterdir())
    assert project.gauntlet("cache.verify").code == 0


def test_a_refresh_that_fails_changes_nothing(project: Project, server: Server) -> None:
    cache = CacheBuilder(project.folder / "cache")
    url = f"{server.base}/missing.irpa"
    path = cache.artifact(url, b"old", in_lock_file=True)
    done = project.gauntlet("cache.lock", "--refresh", url)
    assert done.code == 3
    assert "404" in done.err
    assert path.read_bytes() == b"old"
    assert not list((cache.root / "refreshing").iterdir())
    assert registry_of(project) == {}


def test_two_at_once_lose_nothing(project: Project, tmp_path: Path) -> None:
    caches = [CacheBuilder(tmp_path / f"cache{number}") for number in range(2)]
    names = []
    for number, cache in enumerate(caches):
        for index in range(5):
            url = URL.format(f"n{number}-{index}")
            cache.artifact(url, b"x", in_lock_file=True)
            names.append(make_local_name(url))
    project.regression(inputs=[{"source": URL.format(f"n{n}-{i}")} for n in range(2) for i in range(5)])
    started = [project.start("cache.lock", "--cache-dir", str(cache.root)) for cache in caches]
    assert [process.wait(LIMIT_SECONDS) for process in started] == [0, 0]
    assert sorted(registry_of(project)) == sorted(names)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--refresh", "random://uniform/4xf32?seed=1"], "a local file has no pin"),
        (["--refresh", "file:///x.npy"], "a local file has no pin"),
        (["--refresh", "weights.irpa"], "--refresh: URL without a scheme"),
    ],
)
def test_mistakes_are_usage_errors(project: Project, words: list[str], said: str) -> None:
    done = project.gauntlet("cache.lock", *words)
    assert done.code == 2
    assert said in done.err


def test_a_registry_that_cannot_be_read_is_left_alone(project: Project) -> None:
    (project.folder / "cache").mkdir()
    file = project.folder / "cache" / "registry.txt"
    file.write_text("a md5:0\n")
    done = project.gauntlet("cache.lock")
    assert done.code == 3
    assert "registry.txt:1: hash algorithm 'md5'" in done.err
    assert file.read_text() == "a md5:0\n"
