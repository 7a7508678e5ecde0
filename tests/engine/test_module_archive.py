from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.artifacts.archive import ArchiveDamageError, ArchiveEndError, ArchiveReader, Blocks, member
from iree_gauntlet.engine.modules.module_cache import (
    DamageError,
    ModuleCache,
    compute_packed_size,
    pack,
    parse_untrusted_entry,
    seal_entry,
    unpack,
)
from iree_gauntlet.engine.modules.module_key import make_key

if TYPE_CHECKING:
    from collections.abc import Iterator

INGREDIENTS = {"kind": "compile", "program": "ab" * 32, "compiler": "3.13.0"}
KEY = make_key(INGREDIENTS)
FILES = {"module": b"vmfb" * 300, "statistics": b"{}"}


def make_entry(folder: Path) -> Path:
    """The folder of an entry in a cache."""
    cache = ModuleCache(folder / "cache")
    for role, content in FILES.items():
        (folder / role).write_bytes(content)
    published = cache.publish(
        {role: folder / role for role in FILES},
        name="model/sub@cpu:compile",
        ingredients=INGREDIENTS,
        metadata={"statistics": {"dispatch_count": 3}, "diagnostics": "", "command": "iree-compile"},
        created=datetime(2026, 11, 21, tzinfo=UTC),
    )
    assert published.note == ""
    return cache.get_entry_folder(KEY)


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_entry(tmp_path_factory.mktemp("entry"))


@pytest.fixture(scope="module")
def archive(entry: Path) -> bytes:
    return b"".join(pack(entry, KEY))


def test_what_was_packed_is_unpacked(entry: Path, archive: bytes, tmp_path: Path) -> None:
    assert len(archive) == compute_packed_size(entry, KEY)
    hashes = unpack(io.BytesIO(archive), KEY, tmp_path, roles=["module"], size=len(archive))
    assert hashes == {role: hashlib.sha256(content).hexdigest() for role, content in FILES.items()}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        path.name: path.read_bytes() for path in entry.iterdir()
    }


def test_any_tar_lists_it(archive: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.getnames() == ["entry.json", "module", "statistics"]
        found = tar.extractfile("module")
        assert found is not None
        assert found.read() == FILES["module"]


def test_sizes_from_8_gib_on_are_as_gnu_writes_them() -> None:
    size = (8 << 30) + 7
    header = next(member("files/000001", size, []))
    found = tarfile.TarInfo.frombuf(header, "ascii", "strict")
    assert (found.size, found.name, found.isreg()) == (size, "files/000001", True)


@pytest.mark.parametrize("step", [1, 511, 512, 513, 4096])
def test_blocks_of_any_size_are_read(archive: bytes, step: int, tmp_path: Path) -> None:
    blocks = (archive[start : start + step] for start in range(0, len(archive), step))
    assert unpack(Blocks(blocks), KEY, tmp_path)


def refused(content: bytes, key: str = KEY, **expected: Any) -> str:
    """What is wrong with an archive; all that was written lies in the folder that was given."""
    outside = Path(tempfile.mkdtemp())
    try:
        folder = outside / "a" / "b"
        folder.mkdir(parents=True)
        with pytest.raises(DamageError) as caught:
            unpack(io.BytesIO(content), key, folder, **expected)
        assert [path.name for path in outside.iterdir()] == ["a"]
        assert [path.name for path in (outside / "a").iterdir()] == ["b"]
        assert {path.name for path in folder.iterdir()} <= set(FILES), "entry.json comes last"
        assert all(path.is_file() and not path.is_symlink() for path in folder.iterdir())
        return str(caught.value)
    finally:
        shutil.rmtree(outside)


def test_every_flipped_bit_of_a_header_or_seal_is_seen(archive: bytes) -> None:
    for index in [*range(0, len(archive), 37), len(archive) - 1]:
        assert refused(archive[:index] + bytes([archive[index] ^ 1]) + archive[index + 1 :])


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_archive_is_never_taken(archive: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(archive) - 1))
    removed = data.draw(st.integers(0, 700))
    added = data.draw(st.binary(max_size=700))
    changed = archive[:start] + added + archive[start + removed :]
    if changed != archive:
        refused(changed)


@given(length=st.integers(0, 6000))
@settings(max_examples=60, deadline=None)
def test_a_cut_archive_is_never_taken(archive: bytes, length: int) -> None:
    if length < len(archive):
        assert refused(archive[:length])


def rebuilt(entry: Path, **changes: Any) -> bytes:
    """The entry as another program would pack it: every header changed in the same way, or one of them."""
    output = io.BytesIO()
    at = changes.pop("at", None)
    with tarfile.open(fileobj=output, mode="w", format=changes.pop("format", tarfile.USTAR_FORMAT)) as tar:
        for name in ("entry.json", *sorted(FILES)):
            content = (entry / name).read_bytes()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            if at in (None, name):
                for field, value in changes.items():
                    setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return output.getvalue()


NAMES = [
    "../module",
    "/etc/module",
    "a/../../module",
    "module/",
    "./module",
    "MODULE",
    "modul\u00e9",
    "m" * 90,
    "C:\\x",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", ["entry.json", "module"])
def test_names_are_never_interpreted(entry: Path, name: str, at: str) -> None:
    refused(rebuilt(entry, name=name, at=at))


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE])
def test_only_plain_files_are_members(entry: Path, kind: bytes) -> None:
    refused(rebuilt(entry, type=kind, linkname="/etc/passwd", at="module"))


@pytest.mark.parametrize(("kind", "name"), [("1", "hard link"), ("2", "symbolic link"), ("S", "sparse file")])
def test_it_is_said_what_was_found(archive: bytes, kind: str, name: str) -> None:
    at = archive.index(b"module\0")
    changed = archive[:at] + b"../m\0\0" + archive[at + 6 : at + 156] + kind.encode() + archive[at + 157 :]
    assert refused(changed) == f"expected module of 1200 bytes, found a {name} '../m' of 1200 bytes"


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE])
def test_odd_kinds_are_refused(entry: Path, kind: bytes) -> None:
    refused(rebuilt(entry, type=kind, at="statistics"))


def test_extended_headers_are_refused(entry: Path) -> None:
    refused(rebuilt(entry, format=tarfile.PAX_FORMAT, pax_headers={"path": "../x"}, at="module"))
    refused(rebuilt(entry, format=tarfile.GNU_FORMAT, name="../" * 60, at="module"))


def test_members_twice_missing_or_added_are_refused(archive: bytes) -> None:
    first = 512 + -(-int(archive[124:135], 8) // 512) * 512
    refused(archive[:first] + archive)
    refused(archive[:first] + archive[first + 2048 :])
    refused(archive[:-1024] + b"".join(member("more", 3, [b"abc"])) + bytes(1024))
    assert refused(archive + b"\0") == "there is data after its end"
    refused(archive[first:])


def packed_document(entry: Path, **changes: Any) -> bytes:
    """The entry under another document, with a good seal: anybody can make one."""
    document = json.loads((entry / "entry.json").read_bytes())["entry"] | changes
    data = seal_entry(document)
    contents = b"".join(
        b"".join(member(role, len(FILES[role]), [FILES[role]])) for role in sorted(FILES) if role in document["files"]
    )
    return b"".join(member("entry.json", len(data), [data])) + contents + bytes(1024)


def described(size: object = 2, sha256: object = hashlib.sha256(b"{}").hexdigest()) -> dict[str, Any]:
    return {"sha256": sha256, "bytes": size}


@pytest.mark.parametrize(
    "changes",
    [
        {"key": "cd" * 32},
        {"ingredients": {"kind": "other"}},
        {"ingredients": [1]},
        {"format": 2},
        {"metadata": []},
        {"metadata": {"statistics": {"dispatch_count": "three"}}},
        {"metadata": {"diagnostics": 5}},
        {"metadata": {"notes": {"a": 1}}},
        {"name": 5},
        {"name": "\ud800"},
        {"more": 1},
        {"files": {}},
        {"files": []},
        {"files": {f"f{index}": described() for index in range(17)}},
        {"files": {"statistics": described(size=True)}},
        {"files": {"statistics": described(size=-2)}},
        {"files": {"statistics": described(size=2.0)}},
        {"files": {"statistics": described(sha256="")}},
        {"files": {"statistics": described(sha256=None)}},
        {"files": {"statistics": {**described(), "mode": 1}}},
        {"files": {"statistics": described(sha256="00" * 32)}},
        {"files": {"statistics": described(size=1 << 12)}},
        *({"files": {role: described()}} for role in ("../x", "/x", "entry.json", "", "A", "x" * 99, "a\0", "a\n")),
    ],
    ids=lambda changes: ascii(changes)[:60],
)
def test_a_good_seal_makes_no_field_good(entry: Path, changes: dict[str, Any]) -> None:
    refused(packed_document(entry, **changes))


def test_a_huge_size_does_not_fill_the_disk(entry: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        unpack(io.BytesIO(packed_document(entry, files={"statistics": described(size=1 << 60)})), KEY, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_huge_document_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(DamageError, match="at most"):
        unpack(Blocks(member("entry.json", 5 << 20, [])), KEY, tmp_path)


def test_it_must_be_the_entry_that_was_asked_for(archive: bytes) -> None:
    assert "another key" in refused(archive, key="ab" * 32)
    assert refused(archive, roles=["module", "program"]) == "it has no program"
    assert refused(archive, size=7).startswith("it has 7 bytes instead of ")


def test_a_changed_entry_is_not_packed(tmp_path: Path) -> None:
    folder = make_entry(tmp_path)
    (folder / "module").write_bytes(b"tree" * 300)
    with pytest.raises(DamageError, match="checksum of module"):
        list(pack(folder, KEY))
    (folder / "module").write_bytes(b"tree")
    with pytest.raises(DamageError, match="checksum of module"):
        list(pack(folder, KEY))
    (folder / "entry.json").write_bytes(b"{}")
    with pytest.raises(DamageError):
        compute_packed_size(folder, KEY)


def test_files_are_passed_over_without_being_read(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    for size in (0, 1, 512, 513):
        path.write_bytes(b"".join(member("a", size, [bytes(size)])) + b"".join(member("b", 1, [b"x"])) + bytes(1024))
        with path.open("rb") as stream:
            reader = ArchiveReader(stream)
            reader.skip("a", size, stream)
            assert list(reader.member("b", 1)) == [b"x"]
            reader.end()
            assert reader.position == path.stat().st_size
        if size:
            path.write_bytes(path.read_bytes()[:512])
            with path.open("rb") as stream, pytest.raises(ArchiveEndError):
                ArchiveReader(stream).skip("a", size, stream)
        with path.open("rb") as stream, pytest.raises(ArchiveDamageError):
            ArchiveReader(stream).skip("b", size, stream)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["format", "key", "name", "created", "ingredients", "metadata", "files", "x"])


@given(changes=st.dictionaries(FIELDS, JSON, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_documents_of_any_shape_are_judged_not_believed(entry: Path, changes: dict[str, Any]) -> None:
    document = json.loads((entry / "entry.json").read_bytes())["entry"] | changes
    try:
        found = parse_untrusted_entry(seal_entry(document), KEY)
    except DamageError:
        return
    assert make_key(found["ingredients"]) == KEY
    assert all(isinstance(file["bytes"], int) for file in found["files"].values())


def mutated(entry: Path) -> Iterator[bytes]:
    for name in NAMES:
        yield rebuilt(entry, name=name, at="module")


def test_nothing_wrong_is_published(entry: Path, tmp_path: Path) -> None:
    cache = ModuleCache(tmp_path / "cache")
    for content in mutated(entry):
        with pytest.raises(DamageError), cache.reserve_entry_folder(KEY) as folder:
            cache.adopt(folder, KEY, unpack(io.BytesIO(content), KEY, folder))
        assert cache.lookup(KEY).entry is None
        assert list((cache.folder / "modules" / "making").iterdir()) == []
