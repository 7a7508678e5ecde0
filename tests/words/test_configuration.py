"""`gauntlet.toml`: read completely, or rejected with file, field and a suggestion."""

from __future__ import annotations

import os
import pwd
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.artifacts.remotes import list_locations, list_remotes
from iree_gauntlet.cache_folders import find_cache_folder
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import ArtifactError, GauntletError, SpecError, UsageError
from iree_gauntlet.settings import Configuration, Mirror, expand_home, is_below
from tests.support.command_line import run_in_process
from tests.support.toy_project import Project

_WHOLE = """
[[mirrors]]
prefix = "https://host/models/"
to = ["s3://ours/models/", "/mnt/mirror"]

[[mirrors]]
prefix = "https://closed/"
to = ["az://account/container"]
only = true

[stores."s3://ours"]
region = "eu-central-1"
secret_access_key = "$OUR_KEY"
virtual_hosted_style_request = true

[modules]
url = "gs://bucket/modules"

[downloads]
connections = 8
"""


def _read(folder: Path, text: str, **environ: str) -> Configuration:
    (folder / "gauntlet.toml").write_text(text, encoding="utf-8")
    return read_configuration(folder, {"XDG_CONFIG_HOME": str(folder / "none"), **environ})


def test_everything_that_can_be_set(tmp_path: Path) -> None:
    found = _read(tmp_path, _WHOLE)
    assert found.files == (tmp_path / "gauntlet.toml",)
    assert found.mirrors == (
        Mirror("https://host/models/", ("s3://ours/models/", "/mnt/mirror")),
        Mirror("https://closed/", ("az://account/container",), only=True),
    )
    assert dict(found.find_store_options("s3://ours/x")) == {
        "region": "eu-central-1",
        "secret_access_key": "$OUR_KEY",
        "virtual_hosted_style_request": "true",
    }
    assert not found.find_store_options("s3://ours-too/x")
    assert (found.shared_modules, found.fills_shared_modules) == ("gs://bucket/modules", False)
    assert (found.connections, found.retries) == (8, 4)


def test_an_option_that_only_obstore_knows_is_left_to_it(tmp_path: Path) -> None:
    found = _read(tmp_path, "[stores.'s3://b']\nsse_kms_thing_of_tomorrow = true")
    assert dict(found.find_store_options("s3://b/x")) == {"sse_kms_thing_of_tomorrow": "true"}


def test_no_file_sets_nothing(tmp_path: Path) -> None:
    assert read_configuration(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path)}) == Configuration(
        environ={"XDG_CONFIG_HOME": str(tmp_path)}
    )


def test_the_users_own_file_comes_first(tmp_path: Path) -> None:
    own = tmp_path / "home" / "iree-gauntlet" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[[mirrors]]\nprefix = "https://host/models/"\nto = ["/own"]\n')
    found = _read(tmp_path, _WHOLE, XDG_CONFIG_HOME=str(tmp_path / "home"))
    assert found.mirrors[0].targets == ("/own",)
    assert len(found.mirrors) == 3


def test_a_named_file_takes_the_place_of_both(tmp_path: Path) -> None:
    named = tmp_path / "ci.toml"
    named.write_text("[downloads]\nretries = 9\n")
    assert _read(tmp_path, _WHOLE, IREE_GAUNTLET_CONFIG=str(named)).mirrors == ()
    assert _read(tmp_path, _WHOLE, IREE_GAUNTLET_CONFIG="").files == ()
    with pytest.raises(UsageError, match=r"names .*absent"):
        _read(tmp_path, _WHOLE, IREE_GAUNTLET_CONFIG=str(tmp_path / "absent"))


@pytest.mark.parametrize(("said", "write"), [("1", True), ("0", False), ("", False)])
def test_writing_is_switched_by_the_environment(tmp_path: Path, said: str, *, write: bool) -> None:
    found = _read(tmp_path, _WHOLE, IREE_GAUNTLET_SHARED_MODULES_WRITE=said)
    assert found.fills_shared_modules is write


def test_a_switch_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected 0 or 1"):
        _read(tmp_path, _WHOLE, IREE_GAUNTLET_SHARED_MODULES_WRITE="yes")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[mirrors]]\nprefix = 'host'\nto = ['/x']", "mirrors[0].prefix: expected the beginning of a URL"),
        ("[[mirrors]]\nprefix = 'https://h/'\nto = ['rel']", "expected a URL or an absolute folder, found 'rel'"),
        (
            "[[mirrors]]\nprefix = 'https://[h/'\nto = ['/x']",
            "'https://[h/' is not a URL: Invalid IPv6 URL. Write brackets",
        ),
        ("[[mirrors]]\nprefix = 'https://h/'\nto = ['http://[x/']", "'http://[x/' is not a URL: Invalid IPv6 URL"),
        ("[[mirrors]]\nprefix = 'https://h/'\nto = []", "mirrors[0].to"),
        ("[[mirrors]]\nto = ['/x']", "mirrors[0].prefix: is missing"),
        ("[[mirror]]\nprefix = 'https://h/'", "did you mean 'mirrors'?"),
        ("[stores.'ftp://x']\na = 'b'", "expected az://account"),
        ("[stores.'s3://b']\nsecret_access_key = 'abc'", "a secret in a file"),
        ("[stores.'az://a']\nsas_token = 'sv=1'", "environment variable"),
        ("[modules]\nurl = 'https://h/x'", "expected az://account/container"),
        ("[modules]\nurl = 's3://b/x'\nwrite = 'yes'", "modules.write"),
        ("[[mirrors]]\nprefix = 'https://h/'\nto = ['http://u:abc@h/']", "a user, a password or a query"),
        ("[[mirrors]]\nprefix = 'https://h/'\nto = ['http://h/?sig=abc']", "a user, a password or a query"),
        ("[stores.'s3://b']\nendpoint = 'http://h?sig=abc'", "a user, a password or a query"),
        ("[stores.'s3://b']\nendpoint = '127.0.0.1:9000'", "expected a URL, such as https://minio.example"),
        ("[stores.'s3://b']\nendpiont = 'http://h'", "unknown option; did you mean 'endpoint'?"),
        ("[downloads]\nconnections = 0", "downloads.connections"),
        ("[downloads", "is not TOML"),
    ],
)
def test_mistakes_name_file_and_field(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        _read(tmp_path, text)
    assert expected in str(caught.value)
    assert "gauntlet.toml" in str(caught.value)
    assert "abc" not in str(caught.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 99) | st.text("a:/$sz3é", max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("abz:/3s", max_size=8), inner, max_size=2),
    max_leaves=4,
)


@given(st.data())
def test_no_change_of_a_file_ends_in_a_traceback(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = tomllib.loads(_WHOLE)
    table = data.draw(st.sampled_from([content, content["mirrors"][0], content["stores"], content["modules"]]))
    table[data.draw(st.sampled_from(sorted(table)) | st.text("ab", min_size=1, max_size=3))] = data.draw(_JSON)
    folder = tmp_path_factory.mktemp("c")
    try:
        _read(folder, "\n".join(_toml(content)))
    except GauntletError as error:
        assert "Traceback" not in str(error)  # noqa: PT017 - most changes are fine


def _toml(table: dict[str, object], prefix: str = "") -> list[str]:
    """A table as TOML, everything inline."""
    return [f"{_quoted(name)} = {_value(value)}" for name, value in table.items() if value is not None]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _value(value: object) -> str:
    if isinstance(value, dict):
        items = (f"{_quoted(name)} = {_value(item)}" for name, item in value.items() if item is not None)
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value if item is not None) + "]"
    return (
        str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else _quoted(str(value))
    )


def test_mirrors_come_before_their_origin() -> None:
    configuration = Configuration(
        mirrors=(
            Mirror("https://host/", ("/mnt/all/",)),
            Mirror("https://host/models", ("s3://ours/m",)),
            Mirror("https://only/", ("/mnt/only",), only=True),
        )
    )
    assert list_locations("https://host/models/a/b.mlir", configuration) == [
        "/mnt/all/models/a/b.mlir",
        "s3://ours/m/a/b.mlir",
        "https://host/models/a/b.mlir",
    ]
    assert list_locations("https://host/models2/x", configuration) == ["/mnt/all/models2/x", "https://host/models2/x"]
    assert list_locations("https://only/x", configuration) == ["/mnt/only/x"]
    assert list_locations("https://other/x", configuration) == ["https://other/x"]


@given(st.text("ab/", max_size=8), st.text("ab/", max_size=8))
def test_a_prefix_ends_at_a_slash(prefix: str, rest: str) -> None:
    assert is_below(f"s3://b/{prefix}/{rest}", f"s3://b/{prefix}")
    assert not is_below(f"s3://b/{prefix}x{rest}", f"s3://b/{prefix}") or prefix.endswith("/") or not prefix


@pytest.mark.parametrize("place", ["/mnt/m/../x", "file:///mnt/m/%2e%2e/x", "/mnt/m/%2E./x"])
def test_no_url_leaves_its_mirror(place: str) -> None:
    with pytest.raises(ArtifactError, match="leaves its mirror"):
        list(list_remotes(place, Configuration(), 1))


def test_a_variable_that_is_not_set_is_named() -> None:
    stores = {"az://account": {"sas_token": "$NOT_THERE"}}
    with pytest.raises(ArtifactError, match=r"\$NOT_THERE, which is not set"):
        list(list_remotes("az://account/c/x", Configuration(stores=stores), 1))


_ODD = {
    "a number of 5,000 digits": b"x = " + b"9" * 5000,
    "5,000 nested arrays": b"x = " + b"[" * 5000 + b"]" * 5000,
    "200 nested arrays": b"x = " + b"[" * 200 + b"]" * 200,
    "3,000 nested tables": b"x = " + b"{a = " * 3000 + b"1" + b"}" * 3000,
    "a name of 2,000 parts": b"a." * 2000 + b"a = 1",
    "no UTF-8": b'name = "\xff"',
    "UTF-16": 'name = "é"'.encode("utf-16"),
    "half of a surrogate pair": b'name = "\\ud800"',
    "the character 0": b'name = "a\\u0000b"',
    "the byte 0": b'name = "a\x00b"',
    "a day that no month has": b"x = 1979-02-30",
}


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A project without settings."""
    return Project(tmp_path / "project", cache="empty").folder


_PLACES = ("gauntlet.toml", "suites/s.toml", "history_marks.toml")


@pytest.mark.parametrize("content", _ODD.values(), ids=_ODD)
def test_odd_files_are_mistakes_of_their_own(bare: Path, content: bytes) -> None:
    for place in _PLACES:
        (bare / place).write_bytes(content)
    done = run_in_process(["lint"], bare, os.environ)
    assert done.code == 2, done.text
    assert [place for place in _PLACES if f"  {place}:" not in done.err] == []
    assert run_in_process(["list", "--suite", "s"], bare, os.environ).code == 2
    assert run_in_process(["cache.list"], bare, os.environ).code == 2


def test_a_folder_or_a_link_to_nowhere_in_place_of_a_file_is_named(bare: Path) -> None:
    for begin, said in (
        (Path.mkdir, "cannot be read: Is a directory"),
        (
            lambda path: (path.rmdir(), path.symlink_to("gone")),
            "cannot be read: it is a link to gone, which does not exist",
        ),
    ):
        for place in _PLACES:
            begin(bare / place)
        done = run_in_process(["lint"], bare, os.environ)
        found = [place for place in _PLACES if f"{place}: {said}" in done.err]
        # A suite that is a folder is none; `list` and `run` say so where it is named.
        assert (done.code, found) == (2, ["gauntlet.toml", "history_marks.toml"]), done.text
        assert run_in_process(["list", "--suite", "s"], bare, os.environ).code == 2


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "gauntlet.toml").write_bytes(b"\xef\xbb\xbf[downloads]\nretries = 7\n")
    assert read_configuration(tmp_path, {"XDG_CONFIG_HOME": str(tmp_path)}).retries == 7


def test_a_name_that_is_too_long_is_a_mistake(tmp_path: Path) -> None:
    done = run_in_process(["list", "--spec-dir", "x" * 5000], tmp_path, os.environ)
    assert (done.code, done.err.partition("\n")[0]) == (2, f"error: {'x' * 60}…: File name too long")


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home and without an entry of the system's, as containers have."""

    def find_none(_: object) -> None:
        raise KeyError("uid not found")

    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", find_none)


def test_without_a_home_there_are_the_projects_settings_alone(tmp_path: Path, no_home: None) -> None:
    assert read_configuration(tmp_path, {}).files == ()


def test_without_a_home_the_caches_folder_has_to_be_named(
    tmp_path: Path, no_home: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"^~/\.cache/iree-gauntlet cannot be found: this user has no home folder"):
        find_cache_folder("")
    assert find_cache_folder(str(tmp_path / "cache")) == tmp_path / "cache"


def test_the_home_of_a_user_whom_nobody_knows_is_said() -> None:
    with pytest.raises(UsageError, match=r"^~no-such-user/cache cannot be found: there is no user no-such-user"):
        expand_home("~no-such-user/cache")
