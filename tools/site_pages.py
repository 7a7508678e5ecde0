"""The docs as a site, built by Zensical with its defaults: `python tools/site_pages.py [FOLDER]`, by default `site`.

The pages are those of docs/, which stays readable as it is: a copy has the changelog and CONTRIBUTING.md beside them,
and links to other files of the repository lead there, where $GITHUB_REPOSITORY says where that is. The navigation is
that of docs/README.md. Exits with 1 where a page, an anchor or a picture that a page names is not there.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["broken_links", "copy_of", "navigation"]

CHECKOUT = Path(__file__).resolve().parent.parent
# Pages that lie beside docs/, and where the site has them.
_BESIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Builds the site and checks it."""
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    with tempfile.TemporaryDirectory(prefix="gauntlet-site-") as name:
        folder = Path(name)
        copy_of(CHECKOUT, folder / "docs", _repository())
        (folder / "zensical.toml").write_text(_settings(), encoding="utf-8")
        done = subprocess.run([sys.executable, "-m", "zensical", "build"], cwd=folder, check=False)
        if done.returncode:
            return done.returncode
        built = folder / "site"
        broken = list(broken_links(built))
        sys.stderr.write("".join(f"{line}\n" for line in broken))
        shutil.rmtree(site, ignore_errors=True)
        shutil.move(built, site)
    sys.stdout.write(f"{site}: {len(list(site.rglob('*.html')))} pages, {len(broken)} broken links\n")
    return 1 if broken else 0


def copy_of(checkout: Path, docs: Path, repository: str = "") -> None:
    """Makes the pages of the site.

    `docs`: gets the pages; made. `repository`: the address of its files; empty where it is not known: then there is no
    link to them.
    """
    shutil.copytree(checkout / "docs", docs)
    (docs / "README.md").rename(docs / "index.md")
    for name, page in _BESIDE.items():
        shutil.copyfile(checkout / name, docs / page)
    for path in sorted(docs.rglob("*.md")):
        place = path.relative_to(docs).as_posix()
        # Where a page lies in the checkout decides what its links mean.
        origin = {page: name for name, page in _BESIDE.items()}.get(place, f"docs/{place}")
        text = path.read_text(encoding="utf-8")
        path.write_text(_relinked(text, place, origin, checkout, repository), encoding="utf-8")


def navigation(index: str) -> list[dict[str, object]]:
    """The sections of docs/README.md, with their pages."""
    sections: list[dict[str, object]] = [{"Overview": "index.md"}]
    for section in index.split("\n## ")[1:]:
        title = section.split("\n", 1)[0]
        links = _LINK.findall(section)
        pages: list[dict[str, str]] = [{text.strip("`"): target} for text, target in links if _is_page(target)]
        if pages:
            sections.append({title: pages})
    sections.append({"Project": [{"Changelog": "changelog.md"}, {"Contributing": "contributing.md"}]})
    return sections


def broken_links(site: Path) -> Iterator[str]:
    """What pages of a built site name and the site does not have."""
    pages = {path: _Page.of(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            # It is shown at any address.
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("//"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{path.relative_to(site)}: there is no {link}"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                yield f"{path.relative_to(site)}: {link}: there is no such heading"


class _Page(HTMLParser):
    """What a page names, and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()

    @classmethod
    def of(cls, path: Path) -> _Page:
        """A page that was built."""
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """As the parser calls it."""
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif value and (name, tag) in {("href", "a"), ("src", "img"), ("href", "link"), ("src", "script")}:
                self.links.append(value)


def _relinked(text: str, place: str, origin: str, checkout: Path, repository: str) -> str:
    """A page whose links lead to where things are in the site."""

    def relinked(match: re.Match[str]) -> str:
        words, target = match.groups()
        path, _, fragment = target.partition("#")
        if not path or urlsplit(target).scheme:
            return match[0]
        named = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        if named in _BESIDE:
            found = _BESIDE[named]
        elif named.startswith("docs/") and (checkout / named).is_file():
            found = named.removeprefix("docs/")
            found = "index.md" if found == "README.md" else found
        elif (checkout / named).exists() or named == "README.md":
            return f"[{words}]({repository}/{named})" if repository else words
        else:
            return match[0]
        found = posixpath.relpath(found, posixpath.dirname(place) or ".")
        return f"[{words}]({found}{'#' if fragment else ''}{fragment})"

    parts = _CODE.split(text)
    return "".join(part if number % 2 else _LINK.sub(relinked, part) for number, part in enumerate(parts))


def _is_page(target: str) -> bool:
    return target.endswith(".md") and not target.startswith(("..", "http"))


def _settings() -> str:
    index = (CHECKOUT / "docs" / "README.md").read_text(encoding="utf-8")
    lines = ["[project]", 'site_name = "IREE Gauntlet"', "use_directory_urls = false"]
    lines.append('site_description = "Every ML model runs the gauntlet: compile, threshold, benchmark, on any IREE."')
    lines.append(f"nav = {_toml(navigation(index))}")
    # The reader's own fonts: a page asks nobody else for anything.
    lines += ["[project.theme]", "font = false"]
    return "\n".join((*lines, ""))


def _toml(value: object) -> str:
    """A list, a table or a text on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    return json.dumps(value)


def _repository() -> str:
    name = os.environ.get("GITHUB_REPOSITORY", "")
    return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}/blob/main" if name else ""


if __name__ == "__main__":
    sys.exit(main())
