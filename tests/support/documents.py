"""Parts of documents as people read them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from iree_gauntlet.document import Document
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_markdown import render_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.document import Block

__all__ = ["block_lines", "block_markdown"]


def block_lines(blocks: Iterable[Block]) -> list[str]:
    """What a terminal shows of them."""
    stream = io.StringIO()
    print_document(Document("", "", (), tuple(blocks)), stream, environ={})
    return stream.getvalue().strip("\n").split("\n")


def block_markdown(blocks: Iterable[Block]) -> str:
    """The same in a file."""
    return render_markdown(Document("", "", (), tuple(blocks))).partition("****\n\n")[2]
