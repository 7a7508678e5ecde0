"""The registry: it reads the same files as Pooch, and errors name the wrong line."""

from __future__ import annotations

from pathlib import Path

import pooch
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from iree_gauntlet.artifacts.registry_file import Registry, RegistryEntry
from iree_gauntlet.errors import ArtifactError

_HASH = "ab" * 32
_WORD = st.text(st.characters(exclude_categories=("Cs", "Cc", "Z")), min_size=1, max_size=20)
_NAMES = _WORD.filter(lambda n: not n.startswith(("/", "\\", "#")) and ".." not in n)
_ENTRIES = st.builds(RegistryEntry, _NAMES, st.text("0123456789abcdef", min_size=64, max_size=64), st.just("") | _WORD)


@given(st.lists(_ENTRIES, unique_by=lambda entry: entry.name))
def test_round_trip(entries: list[RegistryEntry]) -> None:
    registry = Registry().with_entries(entries)
    again = Registry.parse(registry.text(), Path("r"))
    assert sorted(again.entries.values()) == sorted(entries)
    assert again.text() == registry.text()


@given(st.lists(_ENTRIES, unique_by=lambda entry: entry.name))
def test_pooch_reads_the_same(entries: list[RegistryEntry]) -> None:
    import io  # noqa: PLC0415

    library = pooch.create(path="unused", base_url="")
    library.load_registry(io.BytesIO(Registry().with_entries(entries).text().encode()))
    assert library.registry == {entry.name: f"sha256:{entry.sha256}" for entry in entries}
    assert library.urls == {entry.name: entry.url for entry in entries if entry.url}


def test_comments_blank_lines_bare_hashes_and_case() -> None:
    registry = Registry.parse(f"# a comment\n\n  a.npy {_HASH.upper()}\nb.npy SHA256:{_HASH} https://h/b\n", Path("r"))
    assert registry.get("a.npy") == RegistryEntry("a.npy", _HASH)
    assert registry.get("b.npy") == RegistryEntry("b.npy", _HASH, "https://h/b")
    assert registry.get("c.npy") is None


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="'\"\\\\#"), min_size=1))
def test_quotes_change_nothing_where_none_are_needed(name: str) -> None:
    assume(not name.startswith("/") and ".." not in name)
    bare, quoted = (Registry.parse(f"{word}\tsha256:{_HASH}  u", Path("r")) for word in (name, f"'{name}'"))
    assert bare == quoted == Registry(Path("r"), {name: RegistryEntry(name, _HASH, "u")})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("only-a-name", "1 words"),
        (f"a sha256:{_HASH} url more", "4 words"),
        ("a sha256:abc", "not a SHA-256"),
        ("a md5:" + "0" * 32, "'md5'"),
        (f"../a sha256:{_HASH}", "outside"),
        (f"/a sha256:{_HASH}", "outside"),
        (f"'' sha256:{_HASH}", "outside"),
        ("'open quote", "No closing quotation"),
        (f"ok sha256:{_HASH}", "twice"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "registry.txt"
    path.write_text(f"ok sha256:{_HASH}\n{line}\n")
    with pytest.raises(ArtifactError, match=problem) as caught:
        Registry.read(path)
    assert f"{path}:2: " in str(caught.value)
    assert caught.value.hint


def test_a_missing_file_is_an_empty_registry(tmp_path: Path) -> None:
    assert dict(Registry.read(tmp_path / "none.txt").entries) == {}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match="not UTF-8"):
        Registry.read(tmp_path / "binary")
    with pytest.raises(ArtifactError, match="cannot be read"):
        Registry.read(tmp_path)
