"""Renders parts of documents as users read them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from iree_gauntlet.document import Document
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_markdown import render_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.document import Block

__all__ = ["render_blocks_markdown", "render_lines"]


def render_lines(blocks: Iterable[Block]) -> list[str]:
    """Return the lines that a terminal shows for blocks."""
    stream = io.StringIO()
    print_document(Document("", "", (), tuple(blocks)), stream, environ={})
    return stream.getvalue().strip("\n").split("\n")


def render_blocks_markdown(blocks: Iterable[Block]) -> str:
    """Return the Markdown of blocks."""
    return render_markdown(Document("", "", (), tuple(blocks))).partition("****\n\n")[2]
