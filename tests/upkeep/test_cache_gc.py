"""`cache.gc`: the least recently used files go first, files in use stay, and without `--delete` nothing goes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.artifacts.inventory import CacheItem, CacheItemKind
from iree_gauntlet.artifacts.leases import Leases, try_lock
from iree_gauntlet.artifacts.sources import make_local_name
from iree_gauntlet.errors import UsageError
from iree_gauntlet.formatting import parse_age, parse_bytes
from iree_gauntlet.upkeep.cache_cleaning import (
    CacheLimits,
    CacheUsage,
    collect,
    list_leftovers,
    plan_collection,
    remove_leftovers,
)
from tests.support.cache_builder import DAY_SECONDS, CacheBuilder
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

URL = "https://host.example/{}.irpa"
_KINDS = st.sampled_from(list(CacheItemKind))


@pytest.fixture
def cache(tmp_path: Path) -> CacheBuilder:
    return CacheBuilder(tmp_path / "cache")


# sizes and ages


@given(st.integers(0, 10**9), st.sampled_from([("B", 1), ("kB", 1000), ("GiB", 1 << 30), ("tb", 1000**4)]))
def test_sizes_are_read_exactly(number: int, unit: tuple[str, int]) -> None:
    for text in (f"{number}{unit[0]}", f" {number} {unit[0]} ", f"{number}.0{unit[0]}"):
        assert parse_bytes(text, "--max-size") == number * unit[1]


@given(st.integers(0, 10**6), st.sampled_from([("h", 3600), ("d", 86400), ("W", 604800)]))
def test_ages_are_read_exactly(number: int, unit: tuple[str, int]) -> None:
    assert parse_age(f"{number}{unit[0]}", "--older-than") == number * unit[1]


@given(st.text(max_size=12))
def test_anything_else_is_a_usage_error(text: str) -> None:
    for parse in (parse_bytes, parse_age):
        try:
            assert parse(text, "--x") >= 0
        except UsageError as error:
            assert "expected a number and a unit" in error.message  # noqa: PT017


@pytest.mark.parametrize("text", ["", "50", "GB", "-1GB", "1e3GB", "50 GBs", "٣GB", "1.GB", "nanGB", "1,5GB"])
def test_sizes_without_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a number and a unit, such as 50GB"):
        parse_bytes(text, "--max-size")


def test_fractions_count() -> None:
    assert parse_bytes("1.5TiB", "--max-size") == 3 << 39
    assert parse_age("0.5d", "--older-than") == 43200


# the plan

_ITEMS = st.lists(
    st.builds(
        lambda kind, size, used, number: CacheItem(kind, f"{kind}/{number}", str(number), size, used),
        _KINDS,
        st.integers(0, 1000),
        st.floats(0, 1000),
        st.integers(0, 10**6),
    ),
    max_size=30,
    unique_by=lambda item: item.path,
)

# What is never collected.
_STAYS = (CacheItemKind.OTHER, CacheItemKind.TOOLCHAIN)


@given(
    _ITEMS,
    st.one_of(st.none(), st.floats(0, 1000)),
    st.one_of(st.none(), st.integers(0, 10_000)),
    st.sets(st.integers(0, 29)),
)
def test_a_plan_keeps_what_is_used_and_goes_no_further_than_it_must(
    items: list[CacheItem], age: float | None, size: int | None, used_indices: set[int]
) -> None:
    used = {items[index].path for index in used_indices if index < len(items)}
    now = 1000.0
    plan = plan_collection(items, CacheLimits(age, size), now, lambda item: item.path in used)

    goes = {item.path for item in plan.removable_items}
    stays = [item for item in items if item.path not in goes]
    assert not goes & used, "what is used stays"
    assert all(item.kind not in _STAYS for item in plan.removable_items)
    assert plan.bytes_before == sum(item.bytes for item in items)
    assert plan.bytes_after == sum(item.bytes for item in stays)
    assert list(plan.removable_items) == sorted(plan.removable_items, key=lambda item: (item.last_use, item.path)), (
        "the oldest first"
    )
    free = [item for item in stays if item.kind not in _STAYS and item.path not in used]
    if size is not None and plan.bytes_after > size:
        assert not free, "it does not fit because the rest may not go"
    if age is not None:
        assert all(now - item.last_use <= age for item in free)
    for item in plan.removable_items:
        old = age is not None and now - item.last_use > age
        newer = sum(
            other.bytes for other in plan.removable_items if (other.last_use, other.path) >= (item.last_use, item.path)
        )
        assert old or (size is not None and plan.bytes_after + newer > size), "nothing goes in vain"
    if free and plan.removable_items:
        younger = max((item.last_use for item in plan.removable_items), default=0.0)
        assert all(item.last_use >= younger for item in free), "nothing goes before what is older"
    assert {item.path for item in plan.used_items} <= used


# the cache itself


def _plan(cache: CacheBuilder, limits: CacheLimits) -> tuple[CacheItem, ...]:
    now = cache.now()
    leases = Leases(cache.root)
    return plan_collection(
        cache.items().values(), limits, now, CacheUsage(cache.root, leases, now).is_used
    ).removable_items


@contextmanager
def _held(path: Path) -> Iterator[None]:
    path.touch()
    with try_lock(path) as locked:
        assert locked
        yield


def test_what_was_not_used_for_long_goes_whole(cache: CacheBuilder) -> None:
    old = cache.artifact(URL.format("old"), b"a" * 100, days=40)
    new = cache.artifact(URL.format("new"), b"b" * 100, days=1)
    module = cache.module("toy/abs@cpu", b"m", days=31)
    wheel = cache.wheel("toy", b"w", days=50)
    partial = cache.partial_download(URL.format("partial"), 10, 1000, days=33)
    planned = _plan(cache, CacheLimits(age=30 * DAY_SECONDS))
    assert [item.path for item in planned] == [
        path.relative_to(cache.root).as_posix() for path in (wheel, old, partial, module)
    ]
    assert collect(cache.root, planned, Leases(cache.root)) == list(planned)
    assert [path.exists() for path in (old, new, module, wheel, partial)] == [False, True, False, False, False]
    assert not list((cache.root / "modules" / "making").iterdir())


def test_a_leased_file_and_one_that_is_fetched_stay(cache: CacheBuilder) -> None:
    old = cache.artifact(URL.format("old"), b"a", days=40)
    module = cache.module("toy/abs@cpu", b"m", days=40)
    fetched = cache.partial_download(URL.format("fetched"), 10, 1000, days=40)
    leased = cache.partial_download(URL.format("leased"), 10, 1000, days=40)
    leases = Leases(cache.root)
    leases.use(old)
    leases.use(module / "module.vmfb")
    leases.use(cache.root / "artifacts" / make_local_name(URL.format("leased")))
    with _held(cache.root / "locks" / f"{fetched.name}.lock"):
        assert _plan(cache, CacheLimits(age=1.0, bytes=0)) == ()
        everything = [item for item in cache.items().values() if item.kind is not CacheItemKind.OTHER]
        assert collect(cache.root, everything, Leases(cache.root)) == []
    assert old.exists()
    assert (module / "entry.json").exists()
    assert leased.exists()
    assert [item.name for item in _plan(cache, CacheLimits(bytes=0))] == [URL.format("fetched")]


def test_what_is_used_after_the_plan_stays(cache: CacheBuilder) -> None:
    path = cache.artifact(URL.format("old"), b"a", days=40)
    module = cache.module("toy/abs@cpu", b"m", days=40)
    planned = _plan(cache, CacheLimits(age=DAY_SECONDS))
    cache.verified.touch(path)
    os.utime(module / "entry.json")
    assert len(planned) == 2
    assert collect(cache.root, planned, Leases(cache.root)) == []
    assert path.exists()


def test_a_download_that_has_only_just_begun_is_left_alone(cache: CacheBuilder) -> None:
    name = hashlib.sha256(b"x").hexdigest()[:32]
    (cache.root / "incoming" / name).mkdir(parents=True)
    assert _plan(cache, CacheLimits(age=0.0, bytes=0)) == ()


def test_leftovers_of_the_dead_go_and_others_stay(cache: CacheBuilder) -> None:
    making = cache.root / "modules" / "making"
    making.mkdir(parents=True)
    for name, days in (("damaged-old", 2), ("0123-new", 0)):
        (making / name).mkdir()
        (making / name / "file").write_bytes(b"x")
        for path in (making / name / "file", making / name):
            os.utime(path, (cache.now() - days * DAY_SECONDS,) * 2)
    for name in ("held.lock", "free.lock"):
        (making / name).touch()
        os.utime(making / name, (cache.now() - DAY_SECONDS,) * 2)
    gone, kept = cache.artifact(URL.format("gone"), b"a"), cache.artifact(URL.format("kept"), b"b")
    gone.unlink()
    part = kept.with_name(".0123.part")
    part.touch()
    os.utime(part, (cache.now() - 2 * DAY_SECONDS,) * 2)
    code = "import sys; from pathlib import Path; from iree_gauntlet.artifacts.leases import Leases; "
    code += "Leases(Path(sys.argv[1])).use(Path(sys.argv[1]) / 'a')"
    subprocess.run([sys.executable, "-c", code, str(cache.root)], check=True)

    with try_lock(making / "held.lock"):
        found = list_leftovers(cache.root, Leases(cache.root), cache.now())
        names = {path.name for path in found if path.parent.parent.name != "verified" and path.parent.name != "leases"}
        assert names == {"damaged-old", "free.lock", ".0123.part"}
        assert len(found) == 5
        remove_leftovers(found)
    assert {path.name for path in making.iterdir()} == {"0123-new", "held.lock"}
    assert cache.verified.get_last_hash(kept)
    assert not cache.verified.get_last_hash(gone)


# It says what it has seen, and looks again once it is answered.
_USER = """
import sys
from pathlib import Path
from iree_gauntlet.artifacts.leases import Leases
root = Path(sys.argv[1])
leases, lost = Leases(root), 0
for number in range(40):
    path = root / f"artifacts/https/host.example/{number}.irpa"
    leases.use(path)
    if path.exists():
        print(number, flush=True)
        sys.stdin.readline()
        lost += not path.exists()
print("lost", lost, flush=True)
sys.stdin.readline()
"""


def test_who_uses_first_and_looks_then_loses_nothing(cache: CacheBuilder) -> None:
    for number in range(40):
        cache.artifact(URL.format(number), b"a", days=40)
    planned = sorted(_plan(cache, CacheLimits(age=DAY_SECONDS)), key=lambda item: int(item.name.split("/")[-1][:-5]))
    argv = [sys.executable, "-c", _USER, str(cache.root)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdin is not None
        assert user.stdout is not None
        seen, gone, left = 0, 0, list(planned)
        while (line := user.stdout.readline().strip()).isdecimal():
            seen += 1
            assert collect(cache.root, [planned[int(line)]], Leases(cache.root)) == [], "it is in use"
            user.stdin.write("\n")
            user.stdin.flush()
            # From the end, while the next one is taken into use: the two meet somewhere.
            gone += len(collect(cache.root, [left.pop()], Leases(cache.root)))
    assert line == "lost 0"
    assert seen + gone == 40


# the task


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", cache="empty")


def test_nothing_goes_without_delete(project: Project) -> None:
    cache = CacheBuilder(project.folder / "cache")
    old = cache.artifact(URL.format("old"), b"a" * 5000, days=40)
    shown = project.gauntlet("cache.gc", "--older-than", "30d")
    assert (shown.code, old.exists()) == (0, True)
    assert "5.0 kB  40 d ago  artifact  https/host.example/old.irpa" in shown.out
    assert "would go: 1 item, 5.0 kB of" in shown.out
    assert "nothing was deleted: add --delete to delete these items" in shown.out
    done = project.gauntlet("cache.gc", "--older-than", "30d", "--delete")
    assert (done.code, old.exists()) == (0, False)
    assert "deleted: 1 item, 5.0 kB of" in done.out
    assert "and 1 leftover of processes that have ended" in done.out
    assert not list((cache.root / "verified").rglob("*.json"))


def test_a_size_that_cannot_be_had_is_told(project: Project) -> None:
    cache = CacheBuilder(project.folder / "cache")
    path = cache.artifact(URL.format("used"), b"a" * 5000)
    leases = Leases(cache.root)
    leases.use(path)
    done = project.gauntlet("cache.gc", "--max-size", "1kB", "--delete")
    assert done.code == 0
    assert path.exists()
    assert "kept, as other processes use them: 1, 5.0 kB" in done.out
    assert "more than 1.0 kB" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Give --older-than 30d, --max-size 50GB, or both."),
        (["--older-than", "30"], "--older-than 30: expected a number and a unit, such as 30d"),
        (["--max-size", "lots"], "Units: B, kB, MB, GB, TB, KiB"),
        (["--older-than", "1d", "--cache-dir", "specs"], "specs does not look like a cache"),
        (["--older-than", "1d", "--cache-dir", "specs/regression_tests/toy/abs.mlir"], "is a file"),
    ],
)
def test_mistakes_delete_nothing(project: Project, words: list[str], said: str) -> None:
    done = project.gauntlet("cache.gc", "--delete", *words)
    assert done.code == 2
    assert said in done.err
