"""A document as a page: one file that needs no other and no network, in light and dark, without scripts."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2

from iree_gauntlet.cleaning import clean

if TYPE_CHECKING:
    from iree_gauntlet.reports.document import Document

__all__ = ["html_page"]

_TEMPLATE = "document.html"


def html_page(document: Document) -> str:
    """The page; ends with a newline."""
    environment = jinja2.Environment(
        autoescape=True, finalize=_cleaned, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((files(__package__) / _TEMPLATE).read_text(encoding="utf-8"))
    blocks = [(type(block).__name__, block) for block in document.in_files]
    return template.render(document=document, blocks=blocks) + "\n"


def _cleaned(value: Any) -> Any:
    """Text without control characters; what is markup already is left as it is."""
    return clean(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
