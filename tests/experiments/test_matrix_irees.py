from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import UsageError
from iree_gauntlet.experiments.matrix import name_irees


def labels(*texts: str) -> list[str]:
    return [iree.label for iree in name_irees(texts)]


def test_releases_keep_their_names() -> None:
    found = name_irees(["3.12", ">=3.9,<3.12", "nightly", "3.14.0rc20261120", "installed", "path"])
    assert [iree.iree for iree in found] == ["3.12", ">=3.9,<3.12", "nightly", "3.14.0rc20261120", "installed", "path"]
    assert [iree.label for iree in found] == [iree.iree for iree in found]
    assert [iree.folder for iree in found] == [
        *("3.12", "3.9-3.12", "nightly", "3.14.0rc20261120", "installed", "path")
    ]


def test_folders_are_named_by_as_much_of_their_end_as_tells_them_apart() -> None:
    assert labels("venv:/home/me/old/env") == ["venv:env"]
    assert labels("venv:/home/me/old/env", "venv:/home/me/new/env") == ["venv:old/env", "venv:new/env"]
    assert labels("venv:/a/env", "venv:/env") == ["venv:a/env", "venv:/env"]
    assert labels("venv:/a/env", "build:/b/env", "wheels:dist") == ["venv:env", "build:env", "wheels:dist"]
    assert labels("venv:/", "venv://") == ["venv:/", "venv://"]


def test_the_folders_of_runs_differ_where_the_names_do() -> None:
    found = name_irees(["venv:/a/b", "venv:/x/a-b", "build:/t/UP", "build:/t/up", "venv:/odd/@%é: '"])
    folders = [iree.folder for iree in found]
    assert len({folder.lower() for folder in folders}) == len(folders)
    assert all(re.fullmatch(r"[A-Za-z0-9._+-]+", folder) for folder in folders)


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ([], "gauntlet matrix --iree 3.9.0 --iree 3.13.0"),
        (["3.12.0", " "], "--iree is empty"),
        (["3.12.0", "3.12.0"], "--iree 3.12.0: one IREE is named twice"),
        (["3.12", "3.12.0"], "--iree 3.12 and 3.12.0: one IREE is named twice"),
        (["venv:a", "venv:./b/../a"], "one IREE is named twice"),
        (["3.9.0,3.12.0"], "--iree 3.9.0 --iree 3.12.0"),
        (["3.9.0 3.12.0"], "--iree 3.9.0 --iree 3.12.0"),
        (["banana"], "--iree banana: not a known IREE"),
        (["3.12.0", "venv:"], "a folder must follow the colon"),
    ],
)
def test_wrong_input(texts: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        name_irees(texts)
    assert says in str(caught.value)


@given(
    st.lists(
        st.tuples(st.sampled_from(["venv", "build", "wheels"]), st.text("aB.-@% /é", min_size=1, max_size=8)),
        min_size=1,
        max_size=6,
    )
)
def test_every_iree_has_a_label_and_a_folder_of_its_own(named: list[tuple[str, str]]) -> None:
    texts = [f"{kind}:/{path}" for kind, path in named]
    try:
        found = name_irees(texts)
    except UsageError:
        return
    assert len({iree.label for iree in found}) == len(found)
    assert len({iree.folder for iree in found}) == len(found)
    for iree in found:
        assert Path(iree.folder).name == iree.folder
        assert iree.folder not in (".", "..", "journal.jsonl", "matrix.md", "junit.xml")
        assert not set(iree.folder) & set("@% :/")
