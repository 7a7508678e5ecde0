from __future__ import annotations

import functools
import hashlib
import http.server
import json
import shutil
import tarfile
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iree_gauntlet.artifacts.archive import ArchiveDamageError, member
from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.artifacts.sources import make_local_name
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.upkeep.cache_archive import (
    FileEntry,
    FileKind,
    format_manifest,
    import_cache,
    name_member,
    read_manifest,
)
from tests.support.toy_project import INPUT, Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.command_line import CommandResult

URL = "https://models.example/some/a.irpa"
OTHER = "https://models.example/some/b.irpa"
CONTENTS = {URL: b"weights" * 400, OTHER: b"more"}


def packed(url: str, content: bytes) -> FileEntry:
    return FileEntry(FileKind.ARTIFACT, make_local_name(url), url, hashlib.sha256(content).hexdigest(), len(content))


def archive_of(files: list[FileEntry], contents: list[bytes], manifest: bytes = b"") -> bytes:
    manifest = manifest or format_manifest(files, "s", "0")
    parts = [b"".join(member("manifest.json", len(manifest), [manifest]))]
    parts += [b"".join(member(name_member(i), len(content), [content])) for i, content in enumerate(contents)]
    return b"".join(parts) + bytes(1024)


GOOD = archive_of([packed(url, content) for url, content in CONTENTS.items()], list(CONTENTS.values()))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IREE_GAUNTLET_CONFIG", "")


def taken(folder: Path, content: bytes) -> str:
    """Imports an archive into a cache of its own; what is wrong, empty for nothing."""
    folder.mkdir(exist_ok=True)
    (folder / "x.tar").write_bytes(content)
    try:
        import_cache(folder / "x.tar", str(folder / "cache"))
    except UsageError:
        raise
    except GauntletError as error:
        return error.message
    return ""


def held(folder: Path) -> dict[str, bytes]:
    """What a cache has, by URL."""
    paths = {url: folder / "cache" / "artifacts" / make_local_name(url) for url in CONTENTS}
    return {url: path.read_bytes() for url, path in paths.items() if path.exists()}


def test_what_is_packed_arrives_and_its_hash_is_learnt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert taken(tmp_path, GOOD) == ""
    assert held(tmp_path) == CONTENTS
    lock = (tmp_path / "cache" / "registry.lock.txt").read_text()
    assert all(hashlib.sha256(content).hexdigest() in lock for content in CONTENTS.values())
    assert "2 artifacts and 0 modules (2.8 kB) put there, 0 artifacts and 0 modules (0 B) already there" in (
        capsys.readouterr().out
    )
    assert taken(tmp_path, GOOD) == ""
    assert "0 modules (0 B) put there, 2 artifacts and" in capsys.readouterr().out
    assert not list((tmp_path / "cache").glob(".*"))


def test_a_pinned_file_must_be_the_pinned_one(tmp_path: Path) -> None:
    pin = "ab" * 32
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "registry.txt").write_text(f"{make_local_name(URL)} sha256:{pin} {URL}\n")
    text = taken(tmp_path, GOOD)
    assert hashlib.sha256(CONTENTS[URL]).hexdigest() in text
    assert f"registry.txt says {pin}; nothing was replaced" in text
    assert held(tmp_path) == {OTHER: CONTENTS[OTHER]}, "the rest is whole by itself"


def test_what_is_not_what_the_manifest_says_is_left_out(tmp_path: Path) -> None:
    files = [packed(url, content) for url, content in CONTENTS.items()]
    wrong = archive_of(files, [b"weighty" * 400, b"more"])
    assert f"{URL}: its content has sha256 {hashlib.sha256(b'weighty' * 400).hexdigest()}" in taken(tmp_path, wrong)
    assert held(tmp_path) == {OTHER: CONTENTS[OTHER]}
    assert taken(tmp_path, GOOD) == ""
    assert held(tmp_path) == CONTENTS


def test_a_cut_archive_says_how_much_arrived(tmp_path: Path) -> None:
    text = taken(tmp_path, GOOD[:-1100])
    assert "it ends after " in text
    assert text.endswith("; 1 of 2 files (2.8 kB) arrived intact")
    assert held(tmp_path) == {URL: CONTENTS[URL]}
    # Also where what is there already is passed over.
    assert taken(tmp_path, GOOD[:-1100]).endswith("; 1 of 2 files (2.8 kB) arrived intact")


def test_a_cut_archive_says_where_and_counts_nothing_behind_that(tmp_path: Path) -> None:
    # All of it is in the cache already.
    assert taken(tmp_path, GOOD) == ""
    cut = len(GOOD) - 1100
    where = f"x.tar: it ends after {cut:,} of {len(GOOD):,} bytes, in {OTHER} (file 2 of 2)"
    assert taken(tmp_path, GOOD[:cut]).endswith(f"{where}; 1 of 2 files (2.8 kB) arrived intact")
    text = taken(tmp_path, GOOD[:2560])
    assert f"it ends after 2,560 of {len(GOOD):,} bytes, in {URL} (file 1 of 2); 0 of 2 files" in text
    assert "bytes, after its last file; 2 of 2 files" in taken(tmp_path, GOOD[:-600])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "../../x"}, "names '../../x', which is not a path in a cache"),
        ({"name": "/etc/passwd"}, "not a path in a cache"),
        ({"name": "https/models.example/other.irpa"}, "not a path in a cache"),
        ({"name": "x" * 5000}, "not a path in a cache"),
        ({"url": "file:///etc/passwd", "name": ""}, "not a path in a cache"),
        ({"url": "random://uniform/4xf32?seed=1", "name": "random/uniform"}, "not a path in a cache"),
        ({"url": "no url"}, "not a path in a cache"),
        ({"kind": "module"}, "not a path in a cache"),
        ({"kind": "module", "name": "../" + "a" * 61, "url": ""}, "not a path in a cache"),
        ({"kind": "device"}, "not a path in a cache"),
        ({"size": -1}, "is not as it was written"),
        ({"size": True}, "is not as it was written"),
        ({"size": 1 << 50}, "expected files/000001 of 1125899906842624 bytes"),
        ({"sha256": "00"}, "is not as it was written"),
        ({"name": None}, "is not as it was written"),
        ({"more": 1}, "is not as it was written"),
    ],
)
def test_places_are_never_taken_from_an_archive(tmp_path: Path, change: dict[str, object], text: str) -> None:
    manifest = json.loads(format_manifest([packed(URL, CONTENTS[URL])], "s", "0"))
    manifest["files"][0] |= change
    before = sorted(tmp_path.iterdir())
    found = taken(tmp_path / "a", archive_of([], [CONTENTS[URL]], json.dumps(manifest).encode()))
    assert text in found
    assert held(tmp_path / "a") == {}
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "a"]


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    twice = [packed(URL, CONTENTS[URL])] * 2
    assert "names a file twice" in taken(tmp_path, archive_of(twice, [CONTENTS[URL]] * 2))
    assert held(tmp_path) == {}


def test_other_files_are_no_archives(tmp_path: Path) -> None:
    assert "it is truncated after 0 bytes" in taken(tmp_path, b"")
    assert "it must start with manifest.json" in taken(tmp_path, b"no archive" * 100)
    with pytest.raises(UsageError, match="No such file"):
        import_cache(tmp_path / "none.tar", "")
    with pytest.raises(UsageError, match="Is a directory"):
        import_cache(tmp_path, "")


def outside(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} | {path.name for path in folder.parent.iterdir()}


@given(data=st.data())
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_whatever_is_changed_nothing_wrong_arrives(tmp_path: Path, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(GOOD) - 1))
    removed, added = data.draw(st.integers(0, 600)), data.draw(st.binary(max_size=600))
    changed = GOOD[:start] + added + GOOD[start + removed :]
    folder = tmp_path / "a" / "b"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    problem = taken(folder, changed)
    found = held(folder)
    assert problem or found == CONTENTS
    assert all(CONTENTS[url] == content for url, content in found.items())
    assert outside(folder) <= {"b", "x.tar", "cache"}
    assert not list((folder / "cache").glob(".*"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(
    document=JSON, files=JSON, file=st.dictionaries(st.sampled_from(["kind", "name", "url", "sha256", "size"]), JSON)
)
@settings(max_examples=200, deadline=None)
def test_a_manifest_of_any_shape_is_judged(document: object, files: object, file: dict[str, object]) -> None:
    for content in (document, {"format": 1, "files": files}, {"format": 1, "files": [file]}):
        try:
            found = read_manifest(json.dumps(content).encode())
        except ArchiveDamageError:
            continue
        assert found == []


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    folder = tmp_path / "served"
    folder.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_export_says_what_it_needs(tmp_path: Path) -> None:
    project = Project(tmp_path / "p")
    assert project.gauntlet("cache.export").code == ExitCode.USAGE
    done = project.gauntlet("cache.export", "--output", "nowhere/x.tar")
    assert (done.code, "it cannot be written" in done.err) == (ExitCode.USAGE, True)


@pytest.mark.iree
def test_a_suite_travels_to_a_machine_without_network(tmp_path: Path, served: tuple[Path, str]) -> None:
    folder, url = served
    online, offline = (Project(tmp_path / name, cache="flags") for name in ("online", "offline"))
    expected = np.abs(parse_seeded(INPUT).generate())
    np.save(folder / "Expected Output.npy", expected)
    shutil.copy(online.regressions / "abs.mlir", folder / "abs.mlir")
    for project in (online, offline):
        project.regression(mlir=f"{url}/abs.mlir", outputs=[{"source": f"{url}/Expected%20Output.npy"}])
        project.suite('stages = ["threshold", "benchmark"]\n[[include]]\nmodel = "toy"\n')

    def export(*more: str) -> CommandResult:
        return online.gauntlet("cache.export", "--suite", "suites/s.toml", "--output", "s.tar", *more)

    archive = online.folder / "s.tar"
    done = export()
    assert done.code == 0, done.text
    assert "2 artifacts and 0 modules" in done.out
    assert "1 of 1 imports and compiles are not in the cache: the other machine builds them" in done.out
    assert online.gauntlet("run", "--suite", "suites/s.toml").code == 0
    done = export()
    assert done.code == 0, done.text
    assert "2 artifacts and 1 module" in done.out
    assert not list(online.folder.glob(".*.part"))
    with tarfile.open(archive) as tar:
        assert tar.getnames() == ["manifest.json", *(f"files/{index:06d}" for index in (1, 2, 3))]

    (folder / "abs.mlir").unlink()
    done = offline.gauntlet("run", "--offline", "--suite", "suites/s.toml")
    assert done.code == ExitCode.ERROR, "nothing is there yet"
    done = offline.gauntlet("cache.import", str(archive))
    assert done.code == 0, done.text
    assert "2 artifacts and 1 module" in done.out
    done = offline.gauntlet("run", "--offline", "--suite", "suites/s.toml")
    assert done.code == 0, done.text
    result = offline.result("toy/abs@cpu:compile")
    assert (result["cache"]["hit"], result["tool_seconds"]) == (True, 0)
    assert offline.verdict("toy/abs@cpu:threshold") == "passed"
    assert offline.verdict("toy/abs@cpu:benchmark") == "passed"
    done = offline.gauntlet("cache.import", str(archive))
    assert "0 artifacts and 0 modules (0 B) put there" in done.out

    [module] = (offline.folder / "cache" / "modules").rglob("module")
    content = archive.read_bytes()
    at = content.index(module.read_bytes())
    archive.write_bytes(content[: at + 5] + bytes([content[at + 5] ^ 1]) + content[at + 6 :])
    shutil.rmtree(offline.folder / "cache")
    done = offline.gauntlet("cache.import", str(archive))
    assert done.code == ExitCode.ERROR
    assert "the checksum of module does not match" in done.err
    assert not list((offline.folder / "cache" / "modules").rglob("module"))
    assert len([path for path in (offline.folder / "cache" / "artifacts").rglob("*") if path.is_file()]) == 2

    before = archive.read_bytes()
    [cached] = (online.folder / "cache" / "artifacts").rglob("*.mlir")
    cached.unlink()
    done = online.gauntlet("cache.export", "--suite", "suites/s.toml", "--output", "s.tar")
    assert (done.code, "abs.mlir" in done.err) == (ExitCode.ERROR, True)
    assert archive.read_bytes() == before


@pytest.mark.iree
def test_a_failure_that_is_remembered_has_no_module_to_export(tmp_path: Path) -> None:
    project = Project(tmp_path / "p", cache="flags")
    (project.regressions / "abs.mlir").write_text("util.func @abs( {")
    project.regression(outputs=[])
    project.suite('stages = ["threshold"]\n[[include]]\nmodel = "toy"\n')
    for cached in (False, True):
        assert project.gauntlet("run", "--suite", "suites/s.toml").code == ExitCode.FAILED
        assert project.result("toy/abs@cpu:compile")["cache"]["hit"] is cached
    done = project.gauntlet("cache.export", "--suite", "suites/s.toml", "--output", "s.tar")
    assert done.code == 0, done.text
    assert " and 0 modules" in done.out
