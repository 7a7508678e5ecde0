"""The config of a suite as a file: JSON with comments and trailing commas, read and validated."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from iree_gauntlet.dialects.json5_text import comments_of, plain_json
from iree_gauntlet.dialects.op_schema import SuiteDocument
from iree_gauntlet.dialects.spec_file import load_json, problems_of, without_strange_fields

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.errors import Problem

__all__ = ["read_document"]

_Document = TypeVar("_Document", bound=SuiteDocument)


def read_document(
    path: Path, name: str, model: type[_Document]
) -> tuple[_Document | None, str, dict[int, str], list[Problem], list[Problem]]:
    """Reads a config.

    Args:
        path: the file.
        name: how the user names it, for messages.
        model: what it has to be.

    Returns:
        The document, or None where it cannot be understood; its text as JSON, every value in its place; its comments by
        line; what is wrong with it; and what is passed over in it.
    """
    comments: dict[int, str] = {}

    def plain(text: str) -> str:
        comments.update(comments_of(text))
        return plain_json(text)

    content, text, problems = load_json(path, name, plain)
    if content is None:
        return None, text, comments, problems, []
    content, warnings = without_strange_fields(content, model.model_fields, name, text)
    try:
        return model.model_validate(content), text, comments, [], warnings
    except ValidationError as error:
        return None, text, comments, problems_of(error, model, name, text), warnings
