"""`cache.list` and `cache.where` as a user runs them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.sources import make_local_name
from tests.support.cache_builder import CacheBuilder
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://host.example/dir/weights.irpa"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project", cache="empty")


@pytest.fixture
def cache(project: Project) -> CacheBuilder:
    return CacheBuilder(project.folder / "cache")


def test_the_list_is_sorted_and_adds_up(project: Project, cache: CacheBuilder) -> None:
    cache.artifact(URL, b"a" * 5_000_000, days=3, in_lock_file=True)
    cache.module("toy/abs@cpu", b"m" * 2000)
    cache.partial_download("https://host.example/large.irpa", 10_000, 20_000_000)
    done = project.gauntlet("cache.list")
    assert done.code == 0, done.text
    lines = done.out.splitlines()
    assert lines[0].split() == ["SIZE", "LAST", "USE", "KIND", "PINNED", "VERIFIED", "NAME"]
    assert lines[1].split() == ["5.0", "MB", "3", "d", "ago", "artifact", "lock", "yes", make_local_name(URL)]
    assert any(line.endswith("https://host.example/large.irpa (10.0 kB of 20.0 MB arrived)") for line in lines)
    assert any(line.endswith("toy/abs@cpu") for line in lines)
    assert "artifact 5.0 MB (1)" in lines[-1]
    assert lines[-1].endswith(f"in {cache.root}")


def test_the_list_as_json_and_a_part_of_it(project: Project, cache: CacheBuilder) -> None:
    cache.artifact(URL, b"a" * 1000)
    cache.artifact("https://host.example/input.npy", b"b" * 500)
    document = json.loads(project.gauntlet("cache.list", "--format", "json", "--match", "*.irpa").out)
    (item,) = document["items"]
    assert (document["schema"], document["bytes"], document["cache"]) == (1, 1000, str(cache.root))
    assert (item["kind"], item["name"], item["verified"], item["pin"]) == ("artifact", make_local_name(URL), True, "")
    none = project.gauntlet("cache.list", "--match", "*.onnx")
    assert none.code == 5
    assert "--match *.onnx matches nothing in" in none.err
    assert project.gauntlet("cache.list", "--format", "yaml").code == 2


def test_an_empty_cache_is_no_mistake(project: Project) -> None:
    done = project.gauntlet("cache.list")
    assert (done.code, done.out) == (0, f"{project.folder / 'cache'} is empty\n")


def test_where_prints_the_path_alone(project: Project, cache: CacheBuilder) -> None:
    missing = project.gauntlet("cache.where", URL)
    path = cache.root / "artifacts" / make_local_name(URL)
    assert (missing.code, missing.out) == (3, f"{path}\n")
    assert missing.err == f"not there\nnot pinned yet\nsources, in this order:\n  {URL}\n"
    cache.artifact(URL, b"abc", in_lock_file=True)
    there = project.gauntlet("cache.where", URL)
    assert (there.code, there.out) == (0, f"{path}\n")
    assert there.err.startswith("present, verified\npinned: sha256 ba7816bf8f01")
    assert there.err.endswith(" in cache/registry.lock.txt\n")
    shutil.rmtree(cache.root / "verified")
    assert "present, not verified yet" in project.gauntlet("cache.where", URL).err


def test_where_knows_the_mirrors(project: Project, cache: CacheBuilder) -> None:
    (project.folder / "gauntlet.toml").write_text(
        '[[mirrors]]\nprefix = "https://host.example/"\nto = ["s3://our-ci/mirror/", "/mnt/mirror"]\n'
    )
    done = project.gauntlet("cache.where", URL, "--format", "json")
    document = json.loads(done.out)
    assert done.code == 3
    assert document["places"] == ["s3://our-ci/mirror/dir/weights.irpa", "/mnt/mirror/dir/weights.irpa", URL]
    assert (document["present"], document["verified"], document["sha256"]) == (False, False, "")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("random://uniform/4xf32?seed=1", "needs no pin\nsources, in this order:\n  generated on this machine"),
        ("pypi://toy==1.0/toy/model.onnx", "the wheel toy==1.0, by pip"),
        ("file:///nowhere/x.npy", "not there\nneeds no pin"),
    ],
)
def test_where_of_other_sources(project: Project, url: str, said: str) -> None:
    done = project.gauntlet("cache.where", url)
    assert done.code == 3
    assert said in done.err


@pytest.mark.parametrize("words", [["cache.where"], ["cache.where", "weights.irpa"], ["cache.where", "ftp://host/x"]])
def test_where_without_a_url_is_a_usage_error(project: Project, words: list[str]) -> None:
    assert project.gauntlet(*words).code == 2


@pytest.mark.parametrize("task", ["list", "where", "verify", "gc", "lock", "export", "import"])
def test_every_task_has_its_help(project: Project, task: str) -> None:
    done = project.gauntlet(f"cache.{task}", "--help") if task in ("where", "import") else None
    done = done or project.gauntlet("--help", f"cache.{task}")
    assert done.code == 0
    assert "Usage: " in done.out
