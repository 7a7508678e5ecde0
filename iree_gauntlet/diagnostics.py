"""Failures grouped by what their tools said: forty-one cases that want one operator are one line.

What differs from case to case goes; the name of an operation stays, since that is what people act on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.formatting import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable


_MOST_EXAMPLES = 5
_LONGEST = 160
_WHOLE = 4096

_EXIT_CODE = re.compile(r"^\S+ failed with exit code -?\d+: ")
# What an expectation adds to a reason is about the expectation, not about the failure.
_EXPECTED = re.compile(r"; (?:[a-z ]+, )?expected: .*$|; [a-z ]+, but expected is: .*$")
_PASSED = re.compile(r"^(passed, but is expected to (?:fail|crash)).*$")
# An operation printed in full, as MLIR does behind its message; a name attribute says which custom operation it is.
_PRINTED = re.compile(r":\s+(?:%\S+\s*=\s*)?\"[\w.$]+\"\(.*$")
_CUSTOM = re.compile(r"<\{name = \"([\w.]+)\"")
_LOCATION = re.compile(r"(?<!\S)(?:\S+:\d+:\d+|\S+\.(?:txt|json)(?::\d+)?):\s*")
_TYPE = re.compile(r"!?\b[a-z_][\w.]*<")
_SHAPE = re.compile(r"\b(?:(?:\d+|\?)x)+([a-z]\w*)\b|(?<!\w)\?(?:x(?:\d+|\?))*x([a-z]\w*)\b")
_VALUE = re.compile(r"%[\w$.-]+(?::\d+)?(?:#\d+)?")
_QUOTED = re.compile(r"(['\"`])((?:(?!\1).){1,200})\1")
_OPERATION = re.compile(r"[a-z]\w*(?:\.[A-Za-z_]\w*)+")
_FILE = re.compile(r".*\.(?:mlir|mlirbc|vmfb|npy|bin|irpa|onnx|so|o|txt|json)")
_PATH = re.compile(r"(?<![\w<])(?:~|\.{1,2})?(?:/[\w.@%+=-]+){2,}/?")
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")
_HASH = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b")
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?(?![\w])")
# Words that may differ from run to run: numbers and shapes, values, types, paths.
_VARYING = re.compile(r"(?<!\S)\S*(?:[/\\%<>…]|(?<![A-Za-z_])\d)\S*")
_SHORTEST_MATCH, _LONGEST_MATCH = 12, 100
_EDGES = " \t;:,=("


@dataclass(frozen=True, slots=True)
class Group:
    """Failures that have one cause for the person who fixes them; `text` is what their diagnostics have in common."""

    stage: str
    text: str
    count: int
    examples: tuple[str, ...]


def group_failures(items: Iterable[tuple[str, str, str]]) -> list[Group]:
    """Groups of (name, stage, reason), the largest first; of one size in the order in which they first appear."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, stage, reason in items:
        names.setdefault((stage, find_same_in_all(reason)), []).append(name)
    groups = [Group(stage, text, len(own), tuple(own[:_MOST_EXAMPLES])) for (stage, text), own in names.items()]
    return sorted(groups, key=lambda group: -group.count)


def find_diagnostic(reason: str) -> str:
    """What a tool said, on one line: a reason without the exit code, what was expected, and the printed operation.

    `iree-compile failed with exit code 1: failed to legalize operation 'torch.operator': %0 = "torch.operator"(%arg0)
    <{name = "onnx.If"}> …` becomes `failed to legalize operation 'torch.operator' (onnx.If)`.
    """
    text = _EXIT_CODE.sub("", without_expectation(one_line(reason, _WHOLE)))
    if match := _PRINTED.search(text):
        custom = _CUSTOM.search(text, match.start())
        text = text[: match.start()] + (f" ({custom[1]})" if custom else "")
    return text


def strip_unstable(reason: str) -> str:
    """What a reason has word for word whenever the tool says the same, without numbers, shapes, values and paths.

    The first such part that says something; empty where there is none.
    """
    text = _EXIT_CODE.sub("", without_expectation(reason[:_WHOLE]))
    if match := _PRINTED.search(text):
        text = text[: match.start()]
    parts = (part.strip(_EDGES) for part in _VARYING.split(text))
    found = next((part for part in parts if len(part) >= _SHORTEST_MATCH), "")
    return found if len(found) <= _LONGEST_MATCH else found[:_LONGEST_MATCH].rpartition(" ")[0].rstrip(_EDGES)


def without_expectation(reason: str) -> str:
    """A reason without what was expected."""
    return _EXPECTED.sub("", reason)


def find_same_in_all(reason: str) -> str:
    """A reason's diagnostic without what differs from case to case; one line of at most 160 characters."""
    if match := _PASSED.match(one_line(reason, _WHOLE)):
        return match[1]
    text = _without_types(_LOCATION.sub("", find_diagnostic(reason)))

    def without_name(match: re.Match[str]) -> str:
        mark, name = match[1], match[2]
        kept = (_OPERATION.fullmatch(name) and not _FILE.fullmatch(name)) or name.endswith("<…>")
        return match[0] if kept else f"{mark}…{mark}"

    text = _QUOTED.sub(without_name, text)
    text = _SHAPE.sub(lambda match: f"…x{match[1] or match[2]}", text)
    text = _VALUE.sub("%…", text)
    text = _NUMBER.sub("#", _HASH.sub("…", _ADDRESS.sub("0x…", _PATH.sub("…", text))))
    return one_line(text, _LONGEST) or "no reason was given"


def _without_types(text: str) -> str:
    """The text with `tensor<…>` for `tensor<3x4xf32>`, however deep the brackets go, cut short or not."""
    parts = []
    position = 0
    while match := _TYPE.search(text, position):
        end, depth = match.end(), 1
        while end < len(text) and depth:
            # The `>` of an arrow closes nothing.
            depth += {"<": 1, ">": 0 if text[end - 1] == "-" else -1}.get(text[end], 0)
            end += 1
        parts += [text[position : match.end()], "…>"]
        position = end
    return "".join(parts) + text[position:]
