"""The documentation: every link works, every page is linked from its index, and generated pages are current."""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest
from docs_commands import PAGES
from markdown_it import MarkdownIt
from options_page import PAGE, render_page

from iree_gauntlet.requests import format_option
from iree_gauntlet.tasks.program import namespace
from iree_gauntlet.torch_models.bench_options import OPTIONS as BENCH_OPTIONS
from tests.support.checkout import list_committed_files
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from markdown_it.token import Token

DOOR = ROOT / "docs" / "README.md"
LINKING = [ROOT / name for name in (*PAGES, "CHANGELOG.md", "specs/README.md", "cache/README.md")]
LONGEST = 250
# A page of Google Benchmark's.
OTHERS = {"docs/user_guide.md"}
NAMED = re.compile(r"\bdocs/[\w/-]+\.md")
# These cannot be imported where there is no torch.
OF_TORCH = {"iree_gauntlet.micro.linear_layers": {"replace_linear_layers"}}
IMPORTED = re.compile(r"^ *from (iree_gauntlet[\w.]*) import (.+)$", re.MULTILINE)
FILES = re.compile(r"\b(?:benchmarks|iree_gauntlet|tools)/[\w/]+\.py\b")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def inline(path: Path) -> Iterator[tuple[str, list[Token]]]:
    """Each stretch of text, with the type of what it is in."""
    before = ""
    for token in MarkdownIt().enable("table").parse(path.read_text(encoding="utf-8")):
        if token.type == "inline":
            yield before, token.children or []
        before = token.type


@cache
def anchors(path: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for kind, children in inline(path):
        if kind == "heading_open":
            text = "".join(child.content for child in children if child.type in ("text", "code_inline"))
            anchor = re.sub(r"[^\w -]", "", text.strip().lower()).replace(" ", "-")
            again = sum(item.rpartition("-")[0] == anchor for item in found)
            found.add(f"{anchor}-{again + 1}" if anchor in found else anchor)
    return found


def links(path: Path) -> Iterator[str]:
    for _, children in inline(path):
        yield from (str(child.attrs["href"]) for child in children if child.type == "link_open")


@pytest.mark.parametrize("path", LINKING, ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    broken = []
    for link in links(path):
        place, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (path.parent / place).resolve() if place else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_is_named_by_its_door() -> None:
    named = {(DOOR.parent / link.partition("#")[0]).resolve() for link in links(DOOR) if not link.startswith("#")}
    assert {path for path in DOOR.parent.rglob("*.md") if path != DOOR} == named


def test_pages_are_short() -> None:
    pages = [path for path in DOOR.parent.rglob("*.md") if path != PAGE]
    assert [name_of(path) for path in pages if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST] == []


def test_pages_that_are_named_elsewhere_exist() -> None:
    suffixes = (".py", ".toml", ".md", ".json", ".yml")
    missing = []
    for line in sorted(list_committed_files()):
        file = ROOT / line
        if file.suffix in suffixes and not line.startswith("tests/data/") and file.exists():
            named = set(NAMED.findall(file.read_text(encoding="utf-8"))) - OTHERS
            missing += [f"{line}: {item}" for item in sorted(named) if not (ROOT / item).exists()]
    assert not missing


def test_files_of_the_toolkit_that_pages_name_exist() -> None:
    missing = []
    for path in (ROOT / name for name in PAGES):
        named = set(FILES.findall(path.read_text(encoding="utf-8")))
        missing += [f"{name_of(path)}: {item}" for item in sorted(named) if not (ROOT / item).exists()]
    assert not missing


def test_what_examples_import_exists() -> None:
    wrong = []
    for path in (ROOT / name for name in PAGES):
        for module, names in IMPORTED.findall(path.read_text(encoding="utf-8")):
            known = vars(importlib.import_module(module)) if module not in OF_TORCH else OF_TORCH[module]
            wrong += [f"{name_of(path)}: {module}.{name}" for name in names.split(", ") if name not in known]
    assert not wrong


def test_the_page_of_options_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(), (
        "python tools/options_page.py makes docs/reference/options.md again"
    )


def test_the_page_of_options_has_every_option_of_every_command() -> None:
    sections = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##)", render_page(), re.DOTALL | re.MULTILINE))
    groups = {f"#{title.lower().replace(' ', '-')}": text for title, text in _groups(render_page())}
    for name in namespace.task_names:
        task = namespace[name]
        text = sections[name] + "".join(groups[link] for link in re.findall(r"\((#[\w-]+)\)", sections[name]))
        for option in task.options if name != "bench" else ():
            wanted = option.name.upper() if option.name in task.positional else format_option(option.name)
            assert f"| `{wanted}`" in text, (name, wanted)
    for bench in BENCH_OPTIONS:
        assert f"`--{bench.name}`" in sections["bench"]
        assert bench.on_iree in sections["bench"]


def _groups(text: str) -> list[tuple[str, str]]:
    shared = text.partition("## Options that several commands take")[2].partition("## Commands")[0]
    return re.findall(r"^### ([^\n]+)\n(.*?)(?=^###|\Z)", shared, re.DOTALL | re.MULTILINE)
