"""The docs as a site: its pages, its links, and messages about broken links. `nox -s site` builds the site."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from site_pages import build_navigation, copy_pages, find_broken_links

from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    docs = tmp_path_factory.mktemp("site") / "docs"
    copy_pages(ROOT, docs, "https://example.org/repo/blob/main")
    return docs


def test_every_link_of_a_page_is_to_a_page_or_to_the_repository(pages: Path) -> None:
    for path in pages.rglob("*.md"):
        for link in _LINK.findall(_CODE.sub("", path.read_text())):
            target = link.partition("#")[0]
            if target and not target.startswith("http"):
                assert (path.parent / target).resolve().is_file(), (path.name, link)
                assert (path.parent / target).resolve().is_relative_to(pages), (path.name, link)


def test_what_is_outside_of_the_docs_is_linked_where_that_is_known(pages: Path, tmp_path: Path) -> None:
    page = "start/own-model.md"
    assert "(https://example.org/repo/blob/main/specs/torch_models/dtln)" in (pages / page).read_text()
    copy_pages(ROOT, tmp_path / "docs")
    alone = (tmp_path / "docs" / page).read_text()
    assert "see specs/torch_models/dtln" in alone
    assert "[CONTRIBUTING.md](../contributing.md)" in (pages / "explanation" / "design.md").read_text()
    # In code, nothing is a link.
    assert "../../../.schemas/regression.json" in (pages / "how-to" / "editors.md").read_text()


def test_every_page_is_in_the_navigation(pages: Path) -> None:
    text = str(build_navigation((ROOT / "docs" / "README.md").read_text()))
    for path in pages.rglob("*.md"):
        assert f"'{path.relative_to(pages).as_posix()}'" in text


def test_broken_links_are_told(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="a b">x</h1><a href="sub/page.html#there">1</a><a href="sub/page.html#gone">2</a><a href="#a%20b">3</a>'
        '<img src="no.png"><a href="https://example.org/x">4</a><a href="sub">5</a>'
    )
    (tmp_path / "sub" / "page.html").write_text('<p id="there"><a href="../index.html">back</a>')
    assert list(find_broken_links(tmp_path)) == [
        "index.html: sub/page.html#gone: there is no such heading",
        "index.html: there is no no.png",
        "index.html: there is no sub",
    ]
