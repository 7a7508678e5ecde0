"""Builds the docs as a site, with Zensical's defaults: `python tools/site_pages.py [FOLDER]` (`site` by default).

The pages are a copy of docs/, with the changelog and CONTRIBUTING.md added; docs/ itself is not changed. Links to other
files of the repository lead to $GITHUB_REPOSITORY; if this variable is unset, only their text remains. The navigation
is that of docs/README.md. Exits with 1 if a link leads to a page, an anchor or a picture that does not exist.
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

__all__ = ["build_navigation", "copy_pages", "find_broken_links"]

CHECKOUT = Path(__file__).resolve().parent.parent
# These pages are outside of docs/; each has a path in the site.
_ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Build the site, check its links and return the exit code."""
    site = Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve()
    with tempfile.TemporaryDirectory(prefix="gauntlet-site-") as directory:
        folder = Path(directory)
        copy_pages(CHECKOUT, folder / "docs", _find_repository_url())
        (folder / "zensical.toml").write_text(_build_settings(), encoding="utf-8")
        process = subprocess.run([sys.executable, "-m", "zensical", "build"], cwd=folder, check=False)
        if process.returncode:
            return process.returncode
        built_site = folder / "site"
        problems = list(find_broken_links(built_site))
        sys.stderr.write("".join(f"{line}\n" for line in problems))
        shutil.rmtree(site, ignore_errors=True)
        shutil.move(built_site, site)
    sys.stdout.write(f"{site}: {len(list(site.rglob('*.html')))} pages, {len(problems)} broken links\n")
    return 1 if problems else 0


def copy_pages(checkout: Path, docs: Path, repository: str = "") -> None:
    """Write the pages of the site into `docs`, a new directory.

    `repository`: the URL of the repository's files; if empty, only the text of links to them remains.
    """
    shutil.copytree(checkout / "docs", docs)
    (docs / "README.md").rename(docs / "index.md")
    for name, page in _ROOT_PAGES.items():
        shutil.copyfile(checkout / name, docs / page)
    for path in sorted(docs.rglob("*.md")):
        site_path = path.relative_to(docs).as_posix()
        # Links are relative to the page's path in the checkout, which differs from its path in the site.
        origin = {page: name for name, page in _ROOT_PAGES.items()}.get(site_path, f"docs/{site_path}")
        text = path.read_text(encoding="utf-8")
        path.write_text(_rewrite_links(text, site_path, origin, checkout, repository), encoding="utf-8")


def build_navigation(index: str) -> list[dict[str, object]]:
    """Return the sections of docs/README.md, with their pages."""
    sections: list[dict[str, object]] = [{"Overview": "index.md"}]
    for section in index.split("\n## ")[1:]:
        title = section.split("\n", 1)[0]
        links = _LINK.findall(section)
        pages: list[dict[str, str]] = [{text.strip("`"): target} for text, target in links if _is_page(target)]
        if pages:
            sections.append({title: pages})
    sections.append({"Project": [{"Changelog": "changelog.md"}, {"Contributing": "contributing.md"}]})
    return sections


def find_broken_links(site: Path) -> Iterator[str]:
    """Yield a message about each broken link of a built site."""
    pages = {path: _Page.read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        if path.name == "404.html":
            # This page is shown at any address, so its relative links are not checked.
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
    """The links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()

    @classmethod
    def read(cls, path: Path) -> _Page:
        """Read a built page."""
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the links and the id of a tag."""
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif value and (name, tag) in {("href", "a"), ("src", "img"), ("href", "link"), ("src", "script")}:
                self.links.append(value)


def _rewrite_links(text: str, site_path: str, origin: str, checkout: Path, repository: str) -> str:
    """Return a page's text with its links rewritten for the site."""

    def rewrite(match: re.Match[str]) -> str:
        label, target = match.groups()
        path, _, fragment = target.partition("#")
        if not path or urlsplit(target).scheme:
            return match[0]
        target_path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        if target_path in _ROOT_PAGES:
            page = _ROOT_PAGES[target_path]
        elif target_path.startswith("docs/") and (checkout / target_path).is_file():
            page = target_path.removeprefix("docs/")
            page = "index.md" if page == "README.md" else page
        elif (checkout / target_path).exists() or target_path == "README.md":
            return f"[{label}]({repository}/{target_path})" if repository else label
        else:
            return match[0]
        page = posixpath.relpath(page, posixpath.dirname(site_path) or ".")
        return f"[{label}]({page}{'#' if fragment else ''}{fragment})"

    parts = _CODE.split(text)
    return "".join(part if number % 2 else _LINK.sub(rewrite, part) for number, part in enumerate(parts))


def _is_page(target: str) -> bool:
    return target.endswith(".md") and not target.startswith(("..", "http"))


def _build_settings() -> str:
    index = (CHECKOUT / "docs" / "README.md").read_text(encoding="utf-8")
    lines = ["[project]", 'site_name = "IREE Gauntlet"', "use_directory_urls = false"]
    lines.append('site_description = "Every ML model runs the gauntlet: compile, threshold, benchmark, on any IREE."')
    lines.append(f"nav = {_format_toml(build_navigation(index))}")
    # Without web fonts, a page loads nothing from third parties.
    lines += ["[project.theme]", "font = false"]
    return "\n".join((*lines, ""))


def _format_toml(value: object) -> str:
    """Format a list, a table or a string as TOML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_format_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_format_toml(element)}" for name, element in value.items()) + "}"
    return json.dumps(value)


def _find_repository_url() -> str:
    name = os.environ.get("GITHUB_REPOSITORY", "")
    return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{name}/blob/main" if name else ""


if __name__ == "__main__":
    sys.exit(main())
