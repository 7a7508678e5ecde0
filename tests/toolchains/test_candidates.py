from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.errors import ToolchainError, UsageError
from iree_gauntlet.experiments.bisect_question import list_nightlies_inside
from iree_gauntlet.toolchains.candidates import Candidate, list_candidates_among, list_candidates_between
from iree_gauntlet.toolchains.choice import parse_choice
from iree_gauntlet.toolchains.find import ToolchainLocations, provide_environment
from tests.support.iree_source import make_toolchain_place
from tests.support.iree_wheels import write_release_wheels, write_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_RELEASES = ("3.5.0", "3.6.0", "3.7.0", "3.8.0", "3.9.0", "3.10.0", "3.11.0", "3.12.0")
_NIGHTLIES = ("3.12.0rc20261001", "3.13.0rc20261101", "3.13.0rc20261102", "3.13.0rc20261103", "3.13.0rc20261104")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@dataclass(frozen=True)
class Index:
    """A loopback server with pages as PEP 503 has them, and a folder of nightlies.

    Attributes:
        folder: with `simple`, which it serves, and `nightlies`.
        url: of `simple`.
    """

    folder: Path
    url: str


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("index")
    for version in _RELEASES:
        write_wheel(folder / "simple" / "iree-base-compiler", "compiler", version)
        if version != "3.7.0":
            write_wheel(folder / "simple" / "iree-base-runtime", "runtime", version)
    # What PyPI has in addition to releases.
    write_wheel(folder / "simple" / "iree-base-compiler", "compiler", "3.11.0rc20260801")
    write_wheel(folder / "simple" / "iree-base-runtime", "runtime", "3.11.0rc20260801")
    write_release_wheels(folder / "nightlies", *_NIGHTLIES)
    write_wheel(folder / "nightlies", "compiler", "3.13.0rc20261105")
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield Index(folder, f"http://127.0.0.1:{server.server_address[1]}/simple")
        server.shutdown()


@pytest.fixture
def place(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ToolchainLocations:
    for name in ("UV_FIND_LINKS", "UV_EXTRA_INDEX_URL", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in {
        "UV_DEFAULT_INDEX": index.url,
        "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(index.folder / "uv-cache"),
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    return make_place(tmp_path, str(index.folder / "nightlies"))


def make_place(folder: Path, nightlies: str, *, offline: bool = False) -> ToolchainLocations:
    return make_toolchain_place(folder, nightlies=nightlies, offline=offline)


def labels(good: str, bad: str, place: ToolchainLocations, *, nightlies: bool = False) -> tuple[list[str], bool]:
    row, good_is_older = list_candidates_between(good, bad, place, nightlies=nightlies)
    assert all(candidate.label == candidate.iree for candidate in row)
    return [candidate.label for candidate in row], good_is_older


def test_versions_between_two(place: ToolchainLocations) -> None:
    # 3.7.0 has no runtime; what is no release is left out.
    expected = ["3.5.0", "3.6.0", "3.8.0", "3.9.0", "3.10.0", "3.11.0", "3.12.0"]
    assert labels("3.5.0", "3.12.0", place) == (expected, True)


def test_nightlies_between_two(place: ToolchainLocations) -> None:
    expected = ["3.12.0", *_NIGHTLIES[1:], "3.13.0"]
    assert labels("3.12.0", "3.13.0", place, nightlies=True) == (expected, True)


def test_from_releases_a_bisect_goes_on_to_their_nightlies(place: ToolchainLocations, tmp_path: Path) -> None:
    said: list[str] = []
    old, new = Candidate("3.12.0", "3.12.0"), Candidate("3.13.0", "3.13.0")
    inside = list_nightlies_inside(old, new, place, said.append)
    assert [candidate.iree for candidate in inside] == list(_NIGHTLIES[1:])
    assert said == [f"between 3.12.0 and 3.13.0: nightlies ({len(inside)})"]
    assert list_nightlies_inside(old, Candidate("b", "build:/b"), place, said.append) == ()
    nowhere = make_place(tmp_path, str(tmp_path / "nowhere"))
    assert list_nightlies_inside(old, new, nowhere, said.append) == ()
    assert said[1].startswith(
        "the nightlies between 3.12.0 and 3.13.0 are not known: uv cannot list the versions of iree-base-compiler"
    )
    assert said[1].endswith("; searching the commits")


def test_releases_at_the_edges(place: ToolchainLocations) -> None:
    # The ends are there whether the index has them or not: the check of the ends says that they are not.
    assert labels("3.12.9", "3.10", place) == (["3.10.0", "3.11.0", "3.12.0", "3.12.9"], False)
    assert labels("3.11.0", "3.12.0", place) == (["3.11.0", "3.12.0"], True)
    assert labels("1.0.0", "2.0.0", place) == (["1.0.0", "2.0.0"], True)


def test_nightlies_as_ends(place: ToolchainLocations) -> None:
    assert labels("3.13.0rc20261101", "3.13.0rc20261103", place) == (list(_NIGHTLIES[1:4]), True)
    # `nightly` is the newest one, though only its compiler is there.
    assert labels("3.13.0rc20261102", "nightly", place) == ([*_NIGHTLIES[2:], "3.13.0rc20261105"], True)


def test_without_a_network_what_is_installed_is_all_there_is(place: ToolchainLocations, tmp_path: Path) -> None:
    for version in ("3.6.0", "3.8.0"):
        provide_environment(parse_choice(version), place)
    nightlies = place.nightly_links
    offline = make_place(tmp_path, nightlies, offline=True)
    assert labels("3.5.0", "3.12.0", offline) == (["3.5.0", "3.6.0", "3.8.0", "3.12.0"], True)
    with pytest.raises(ToolchainError, match="no nightly of IREE is installed"):
        labels("3.5.0", "nightly", offline)
    provide_environment(parse_choice("3.13.0rc20261103"), place)
    assert labels("3.13.0rc20261101", "nightly", offline) == (["3.13.0rc20261101", "3.13.0rc20261103"], True)


def test_an_index_that_does_not_answer(place: ToolchainLocations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(ToolchainError, match=r"cannot list the versions of iree-base-compiler"):
        labels("3.5.0", "3.12.0", place)


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        ("3.5.0", "3.5", "both 3.5.0"),
        ("banana", "3.5.0", "--good banana: not a known IREE"),
        ("3.5.0", "venv:/somewhere", "--bad venv:/somewhere: is not a version"),
        ("installed", "3.5.0", "--good installed: is not a version"),
        (">=3.5", "3.12.0", "is not a version"),
    ],
)
def test_ends_that_are_none(tmp_path: Path, good: str, bad: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        labels(good, bad, make_place(tmp_path, "", offline=True))


def test_a_row_that_is_named(tmp_path: Path) -> None:
    def row(good: str, bad: str, *among: str) -> list[tuple[str, str]]:
        return [(candidate.label, candidate.iree) for candidate in list_candidates_among(good, bad, among)]

    ends = [("3.5.0", "3.5"), ("b", f"build:{tmp_path}/b")]
    assert row("3.5", f"build:{tmp_path}/b", f"venv:{tmp_path}/a") == [ends[0], ("a", f"venv:{tmp_path}/a"), ends[1]]
    assert row("3.5.0", "nightly", "3.5", "path", "nightly") == [("3.5.0", "3.5"), ("path", "path"), ("nightly",) * 2]
    # Names of folders: unique, and fit for a path.
    named = row("build:/x/iree@1", "build:/y/iree@1", "build:/z/..%", "wheels:/", "build:/a/iree-1")
    assert [label for label, _ in named] == ["iree-1", "build", "wheels", "iree-1-2", "iree-1-3"]
    assert all(not set(label) & set("@%/") for label, _ in named)


@pytest.mark.parametrize(
    ("good", "bad", "among", "says"),
    [
        ("3.5.0", "3.9.0", ["3.6.0", "3.5.0"], "--good 3.5.0 is not first in --among"),
        ("3.5.0", "3.9.0", ["3.9.0", "3.6.0"], "--bad 3.9.0 is not last in --among"),
        ("3.5.0", "3.9.0", ["3.6.0", "3.6"], "3.6 is listed twice"),
        ("3.5.0", "3.5", ["3.6.0"], "3.5 is listed twice"),
        ("3.5.0", "3.9.0", ["bananas"], "--among bananas: not a known IREE"),
    ],
)
def test_a_row_that_cannot_be(good: str, bad: str, among: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        list_candidates_among(good, bad, among)
