"""A document as a page: one file that needs no other and no network, in light and dark, readable without scripts."""

from __future__ import annotations

import base64
import html
import itertools
import re
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from iree_gauntlet.cleaning import clean
from iree_gauntlet.document import INK, PAPER, Document, Picture
from iree_gauntlet.reports.page_charts import PageCharts

if TYPE_CHECKING:
    from collections.abc import Iterator


# What a page has no use for: all before the SVG itself (a declaration, a document type) and its metadata.
_AROUND_SVG = re.compile(r"\A.*?(?=<svg\b)|<metadata>.*?</metadata>\s*", re.DOTALL)
_MEMORY = re.compile(r'<meta name="memory" content="([^"]*)">')
_IDENTIFIER = re.compile(r"(\bid=\"|\bhref=\"#|\burl\(#)")


def html_page(document: Document) -> str:
    """The page; ends with a newline."""
    environment = jinja2.Environment(
        autoescape=True, finalize=_cleaned, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["inlined"] = partial(_inlined, numbers=itertools.count())
    template = environment.from_string((files(__package__) / "document.html").read_text(encoding="utf-8"))
    scripts = PageCharts(document.in_files)
    return template.render(document=document, scripts=scripts, ink=INK, paper=PAPER) + "\n"


def memory_of(page: str) -> str:
    """What a page remembers for the next one in its place; empty for a page of others."""
    found = _MEMORY.search(page)
    return html.unescape(found[1]) if found else ""


def _cleaned(value: Any) -> Any:
    """Text without control characters; what is markup already is left as it is."""
    return clean(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _inlined(picture: Picture, numbers: Iterator[int]) -> Markup:
    """A picture as part of the page; an SVG with identifiers that no other has."""
    text = clean(picture.text)
    if picture.data.startswith(b"\x89PNG"):
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(
            text, base64.b64encode(picture.data).decode()
        )
    svg = _IDENTIFIER.sub(rf"\g<1>p{next(numbers)}-", _AROUND_SVG.sub("", picture.data.decode("utf-8")))
    return Markup(svg.replace("<svg", Markup('<svg role="img" aria-label="{}"').format(text), 1))  # noqa: S704
