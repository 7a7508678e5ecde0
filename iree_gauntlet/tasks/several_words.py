"""Command lines on which a task takes several words, in a form that Invoke understands."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from iree_gauntlet.tasks.toolchain_tasks import TAKES_SEVERAL

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["several_in_one"]

# Tasks whose words may be left out: they become an option, since Invoke knows no optional words.
_AS_OPTION = {"compare": "--sides"}
# Those that take folders, which may have blanks in their names.
_FOLDERS = frozenset({"report", "shard.costs"})
_TAKE_SEVERAL = frozenset({*TAKES_SEVERAL, *_AS_OPTION, *_FOLDERS})


def several_in_one(argv: Sequence[str]) -> list[str]:
    """A command line on which the words after a task that takes several are one word, with spaces.

    Invoke fills a positional argument with one word.
    """
    words = list(argv)
    start = next((place for place, word in enumerate(words) if word in _TAKE_SEVERAL), None)
    if start is None:
        return words
    end = start + 1
    while end < len(words) and not words[end].startswith("-"):
        end += 1
    if end == start + 1:
        return words
    join = shlex.join if words[start] in _FOLDERS else " ".join
    option = [_AS_OPTION[words[start]]] if words[start] in _AS_OPTION else []
    return [*words[: start + 1], *option, join(words[start + 1 : end]), *words[end:]]
