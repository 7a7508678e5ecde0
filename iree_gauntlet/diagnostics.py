"""Grouping of failures by their diagnostics, such as one line for forty-one cases that need the same operator.

Parts that differ from case to case are removed; the name of an operation stays, since people act on it.
"""

from __future__ import annotations

import re

from iree_gauntlet.formatting import join_lines

_MAX_LINE_CHARS = 160
_MAX_REASON_CHARS = 4096

_EXIT_CODE = re.compile(r"^\S+ failed with exit code -?\d+: ")
# An expectation adds this suffix to the reason of a failure; the suffix says nothing about the failure itself.
_EXPECTATION_SUFFIX = re.compile(r"; (?:[a-z ]+, )?expected: .*$|; [a-z ]+, but expected is: .*$")
_UNEXPECTED_PASS = re.compile(r"^(passed, but is expected to (?:fail|crash)).*$")
# MLIR prints the whole operation after its message; a name attribute is the name of a custom operation.
_PRINTED_OPERATION = re.compile(r":\s+(?:%\S+\s*=\s*)?\"[\w.$]+\"\(.*$")
_CUSTOM_OPERATION_NAME = re.compile(r"<\{name = \"([\w.]+)\"")
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
# These words may differ from run to run: numbers, shapes, values, types, paths.
_VARYING_WORDS = re.compile(r"(?<!\S)\S*(?:[/\\%<>…]|(?<![A-Za-z_])\d)\S*")
_MIN_MATCH_CHARS, _MAX_MATCH_CHARS = 12, 100
_EDGE_CHARS = " \t;:,=("


def find_diagnostic(reason: str) -> str:
    """Extract a tool's diagnostic from a reason: one line without exit code, expectation and printed operation.

    `iree-compile failed with exit code 1: failed to legalize operation 'torch.operator': %0 = "torch.operator"(%arg0)
    <{name = "onnx.If"}> …` becomes `failed to legalize operation 'torch.operator' (onnx.If)`.
    """
    text = strip_exit_code(without_expectation(join_lines(reason, _MAX_REASON_CHARS)))
    if match := _PRINTED_OPERATION.search(text):
        custom = _CUSTOM_OPERATION_NAME.search(text, match.start())
        text = text[: match.start()] + (f" ({custom[1]})" if custom else "")
    return text


def strip_unstable(reason: str) -> str:
    """Extract the first part of a reason that stays the same from run to run: no numbers, shapes, values and paths.

    Empty if every such part is too short to be specific.
    """
    text = strip_exit_code(without_expectation(reason[:_MAX_REASON_CHARS]))
    if match := _PRINTED_OPERATION.search(text):
        text = text[: match.start()]
    parts = (part.strip(_EDGE_CHARS) for part in _VARYING_WORDS.split(text))
    stable_part = next((part for part in parts if len(part) >= _MIN_MATCH_CHARS), "")
    if len(stable_part) <= _MAX_MATCH_CHARS:
        return stable_part
    return stable_part[:_MAX_MATCH_CHARS].rpartition(" ")[0].rstrip(_EDGE_CHARS)


def strip_exit_code(reason: str) -> str:
    """Remove the tool's name and exit code from the beginning of a reason."""
    return _EXIT_CODE.sub("", reason)


def without_expectation(reason: str) -> str:
    """Remove the expectation from a reason."""
    return _EXPECTATION_SUFFIX.sub("", reason)


def normalize_diagnostic(reason: str) -> str:
    """Remove all parts of a reason's diagnostic that differ from case to case; one line of at most 160 characters."""
    if match := _UNEXPECTED_PASS.match(join_lines(reason, _MAX_REASON_CHARS)):
        return match[1]
    text = _remove_types(_LOCATION.sub("", find_diagnostic(reason)))

    def remove_name(match: re.Match[str]) -> str:
        quote, name = match[1], match[2]
        is_operation = _OPERATION.fullmatch(name) and not _FILE.fullmatch(name)
        return match[0] if is_operation or name.endswith("<…>") else f"{quote}…{quote}"

    text = _QUOTED.sub(remove_name, text)
    text = _SHAPE.sub(lambda match: f"…x{match[1] or match[2]}", text)
    text = _VALUE.sub("%…", text)
    text = _NUMBER.sub("#", _HASH.sub("…", _ADDRESS.sub("0x…", _PATH.sub("…", text))))
    return join_lines(text, _MAX_LINE_CHARS) or "no reason was given"


def _remove_types(text: str) -> str:
    """Replace `tensor<3x4xf32>` by `tensor<…>`, however deep the brackets nest, also in truncated text."""
    parts = []
    position = 0
    while match := _TYPE.search(text, position):
        end, depth = match.end(), 1
        while end < len(text) and depth:
            # The `>` of an arrow `->` does not close a bracket.
            depth += {"<": 1, ">": 0 if text[end - 1] == "-" else -1}.get(text[end], 0)
            end += 1
        parts += [text[position : match.end()], "…>"]
        position = end
    return "".join(parts) + text[position:]
