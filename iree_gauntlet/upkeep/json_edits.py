"""Edits of JSON files that keep every other byte.

The lists of expected failures in an operator suite's config are edited in place, with the author's comments, order,
indentation, line ends and style of the last comma.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.dialects.json_text import (
    WHITESPACE,
    find_value,
    read_members,
    read_plain_json,
    skip_whitespace,
    without_comments,
)
from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Longer arrays are written with one line for each item.
_MAX_INLINE_CHARS = 100
EXPECTED_LISTS = (
    "expected_compile_failures",
    "expected_compile_crashes",
    "expected_run_failures",
    "expected_run_crashes",
)
_MAX_REASON_CHARS = 160
# For some readers of JSON5, these characters end a line or are invisible.
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]+")
# Whitespace and comments up to the end of a line, including that end. A comment of several lines does not match.
_REST_OF_LINE = re.compile(r"(?:[ \t]|/\*[^\n]*?\*/)*(?://[^\n]*?)?\r?\n")
_BLOCK_COMMENTS = re.compile(r"(?:[ \t]*/\*[^\n]*?\*/)*")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\r?\n)+")


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a container.

    Attributes:
        start, end: positions of `value`, or of `"key": value`.
        comma: position of the comma after it.
        text: the value of a string.
        key: key of an object's member, else empty.
    """

    start: int
    end: int
    comma: int | None
    text: str | None
    key: str = ""
    container: Container | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """An array or an object: positions of its brackets, and its members."""

    opening: int
    closing: int
    members: tuple[Member, ...]


def read_spans(text: str) -> Container:
    """Parse the positions in a document; ValueError if it is not JSON, or neither an array nor an object."""
    plain = read_plain_json(text)
    opening = skip_whitespace(plain, 0)
    document, end = json.JSONDecoder().raw_decode(plain, opening)
    if not isinstance(document, dict | list) or not _is_blank(plain[end:]):
        raise ValueError("the document is not one object or array")
    return _read_container(plain, without_comments(text), opening, end)


def _read_container(plain: str, with_commas: str, opening: int, end: int) -> Container:
    """Parse the members between two positions; `with_commas` is the text with its trailing commas."""
    members: list[Member] = []
    for key, start, position in read_members(plain, opening):
        value, value_end = json.JSONDecoder().raw_decode(plain, position)
        next_position = skip_whitespace(with_commas, value_end)
        comma = next_position if with_commas[next_position] == "," else None
        string = value if isinstance(value, str) else None
        container = _read_container(plain, with_commas, position, value_end) if isinstance(value, dict | list) else None
        members.append(Member(start, value_end, comma, string, key if isinstance(key, str) else "", container))
    return Container(opening, end - 1, tuple(members))


def _is_blank(text: str) -> bool:
    """Return whether a text between tokens is whitespace only, without comments."""
    return not text.strip(WHITESPACE)


def with_value(text: str, path: Sequence[str | int], value: float | str) -> str:
    """Replace the number or string at a path, and keep all else; KeyError where there is none."""
    plain = without_comments(text)
    position, missing = find_value(plain, path)
    if missing:
        raise KeyError(missing[0])
    old_value, end = json.JSONDecoder().raw_decode(plain, position)
    if not isinstance(old_value, str if isinstance(value, str) else int | float) or isinstance(old_value, bool):
        raise KeyError(path[-1] if path else "")
    return text[:position] + _quote(value) + text[end:]


def with_added_value(text: str, path: Sequence[str], value: float | str) -> str:
    """Add a number or string at a path, with the objects that lead to it, and keep all else.

    It follows the last member whose key begins with the same word (`golden_`), or else the last member.
    """
    document = container = read_spans(text)
    for key in path[:-1]:
        member = next((member for member in container.members if member.key == key), None)
        if member is None:
            break
        if member.container is None:
            raise KeyError(key)
        container, path = member.container, path[1:]
    name, *inner_keys = path
    added_text = _quote(value)
    for key in reversed(inner_keys):
        added_text = f"{{{_quote(key)}: {added_text}}}"
    style = _detect_style(text, document)
    parts, last_comma, outer, indent = _split_container(text, container, style)
    word = name.partition("_")[0] + "_"
    alike = [number for number, member in enumerate(container.members, start=1) if member.key.startswith(word)]
    index = alike[-1] if alike else len(container.members)
    segment = _Segment(indent, f"{_quote(name)}: {added_text}", "", True, outer)
    return _join_container(text, container, _insert(parts, index, segment, style.newline), last_comma=last_comma)


def with_member(text: str, key: str, value: object) -> str:
    """Set a key of an object, in place or as the last member, and keep all else."""
    container = read_spans(text)
    start = container.members[0].start if container.members else container.closing
    line = text.rfind("\n", 0, start) + 1
    # The indentation is that of the first member, or four spaces.
    indent = (text[line:start] if _is_blank(text[line:start]) else "") if container.members else "    "
    member_text = _quote(value)
    if isinstance(value, list) and len(value) > 1 and len(member_text) > _MAX_INLINE_CHARS:
        item_lines = ",\n".join(f"{indent}{indent}{_quote(item)}" for item in value)
        member_text = f"[\n{item_lines}\n{indent}]"
    member_text = f"{_quote(key)}: {member_text}"
    old_member = next((member for member in container.members if member.key == key), None)
    if old_member is not None:
        return text[: old_member.start] + member_text + text[old_member.end :]
    if not container.members:
        return text[: container.opening + 1] + f"\n{indent}{member_text}\n" + text[container.closing :]
    end = container.members[-1].end
    gap = f"\n{indent}" if line else " "
    return f"{text[:end]},{gap}{member_text}{text[end:]}"


@dataclass(frozen=True, slots=True)
class Removal:
    """An entry to be removed from a list."""

    list: str
    entry: str


@dataclass(frozen=True, slots=True)
class Addition:
    """An entry to be added to a list, with the comment for its line."""

    list: str
    entry: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Segment:
    """A member with the text around it that is moved or removed with it; `trail` is the rest of a line that it ends."""

    lead: str
    text: str
    gap: str
    comma: bool
    trail: str
    value: str | None = None

    def __str__(self) -> str:
        return f"{self.lead}{self.text}{self.gap}{',' if self.comma else ''}{self.trail}"

    @property
    def ends_line(self) -> bool:
        return self.trail.endswith("\n")


@dataclass(frozen=True, slots=True)
class _ContainerParts:
    """The text between a container's brackets: the rest of its first line, its members, and the text after them."""

    head: str
    segments: tuple[_Segment, ...]
    tail: str

    def __str__(self) -> str:
        return f"{self.head}{''.join(map(str, self.segments))}{self.tail}"

    def begins_line(self, index: int) -> bool:
        """Return whether the text before the segment of an index would be at the beginning of a line."""
        return self.segments[index - 1].ends_line if index else self.head.endswith("\n")


@dataclass(frozen=True, slots=True)
class _Style:
    """A document's style: its line end, one step of indentation, and whether the last comma is written."""

    newline: str
    step: str
    last_comma: bool


def with_changes(text: str, changes: Sequence[Removal | Addition]) -> str:
    """Return the text of a config with other expected failures.

    A comment applies to the entries below it, up to the next comment or blank line. An entry is removed with the
    comment on its line, and with a comment directly above that applies to no remaining entry. A new entry is inserted
    in order if the list is sorted, else at the end. A missing list becomes a new field.

    Raises:
        GauntletError: an entry to be removed does not exist, an entry to be added exists already, or the edited text
            would not have exactly the intended meaning.
    """
    result = _apply_changes(_read(text), changes)
    document = read_spans(text)
    style = _detect_style(text, document)
    # Edit from the end backwards, so that earlier positions stay valid.
    for member in reversed(document.members):
        list_changes = [change for change in changes if change.list == member.key]
        if list_changes and member.container:
            text = _edit_list(text, member.container, list_changes, style)
    fields = {member.key for member in document.members}
    for name in dict.fromkeys(change.list for change in changes):
        if name not in fields:
            additions = [change for change in changes if change.list == name and isinstance(change, Addition)]
            text = _with_field(text, name, additions, style)
    if json.dumps(_read(text), sort_keys=True) != json.dumps(result, sort_keys=True):
        raise GauntletError(
            "the config cannot be edited without changing its meaning elsewhere",
            "Change its lists by hand; the changes are listed above.",
        )
    return text


def _read(text: str) -> dict[str, Any]:
    def refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) < len(pairs):
            raise ValueError("a key appears twice in one object")
        return document

    try:
        document = json.loads(read_plain_json(text).removeprefix("\ufeff"), object_pairs_hook=refuse_twins)
    except ValueError as error:
        raise GauntletError(f"the config cannot be read: {error}", "`lint` reports its problems.") from error
    if not isinstance(document, dict):
        raise GauntletError("the config is not an object", "`lint` reports its problems.")
    return document


def _apply_changes(document: dict[str, Any], changes: Sequence[Removal | Addition]) -> dict[str, Any]:
    """Apply changes to a document; the changed text must have this meaning."""
    lists: dict[str, list[str]] = {}
    for change in changes:
        old_entries = document.get(change.list, [])
        if change.list not in EXPECTED_LISTS or not isinstance(old_entries, list):
            raise GauntletError(
                f"{change.list} is not a list of expected failures", f"Known: {', '.join(EXPECTED_LISTS)}."
            )
        entries = lists.setdefault(change.list, list(old_entries))
        if isinstance(change, Removal) == (change.entry not in entries):
            state = "is not in" if isinstance(change, Removal) else "is already in"
            raise GauntletError(f"{change.entry} {state} {change.list}", "The config has changed: run again.")
        if isinstance(change, Removal):
            lists[change.list] = [entry for entry in entries if entry != change.entry]
        else:
            key = _find_sort_key(old_entries)
            index = len(entries) if key is None else sum(key(entry) < key(change.entry) for entry in entries)
            entries.insert(index, change.entry)
    return document | lists


def _find_sort_key(entries: Sequence[Any]) -> Callable[[str], str] | None:
    """Return the key by which a list is sorted; None where it is not sorted."""
    keys: tuple[Callable[[str], str], ...] = (str, str.casefold)
    for key in keys:
        if all(isinstance(entry, str) for entry in entries) and list(entries) == sorted(entries, key=key):
            return key
    return None


def _detect_style(text: str, document: Container) -> _Style:
    newline = "\r\n" if "\r\n" in text else "\n"
    indents = [_find_indentation(text, member.start) for member in document.members]
    step = next((indent for indent in indents if indent), "  ")
    has_last_commas = [
        container.members[-1].comma is not None
        for container in (document, *(member.container for member in document.members if member.container))
        if container.members and "\n" in text[container.members[-1].end : container.closing]
    ]
    return _Style(newline, step, any(has_last_commas))


def _find_indentation(text: str, position: int) -> str:
    """Return the whitespace before a position, where only whitespace precedes it on its line."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return "" if line.strip(" \t") else line


def _edit_list(text: str, container: Container, changes: Sequence[Removal | Addition], style: _Style) -> str:
    """Apply changes to the text between the brackets of a list."""
    parts, last_comma, outer, indent = _split_container(text, container, style)
    key = _find_sort_key([segment.value for segment in parts.segments])
    removed_entries = {change.entry for change in changes if isinstance(change, Removal)}
    if removed_entries:
        parts = _remove_entries(parts, removed_entries)
    for change in changes:
        if isinstance(change, Addition):
            index = len(parts.segments)
            if key is not None:
                index = sum(key(segment.value or "") < key(change.entry) for segment in parts.segments)
            segment = _Segment(indent, _quote(change.entry), _format_comment(change.reason), True, outer, change.entry)
            parts = _insert(parts, index, segment, style.newline)
    return _join_container(text, container, parts, last_comma=last_comma)


def _with_field(text: str, name: str, additions: Sequence[Addition], style: _Style) -> str:
    """Add a list as a field: after the preceding one of `EXPECTED_LISTS`, else as the last field."""
    document = read_spans(text)
    parts, last_comma, outer, indent = _split_container(text, document, style)
    keys = [member.key for member in document.members]
    indices = [keys.index(key) for key in EXPECTED_LISTS[: EXPECTED_LISTS.index(name)] if key in keys]
    index = indices[-1] + 1 if indices else len(keys)
    entries = sorted(additions, key=lambda change: change.entry)
    if parts.begins_line(index) or not parts.segments:
        lines = [
            f"{indent}{style.step}{_quote(change.entry)}"
            f"{',' if style.last_comma or number < len(entries) else ''}"
            f"{_format_line_comment(_format_comment(change.reason))}"
            for number, change in enumerate(entries, start=1)
        ]
        value = style.newline.join(["[", *lines, f"{indent}]"])
    else:
        inline_items = [
            f"{_quote(change.entry)}{_format_block_comment(_format_comment(change.reason))}" for change in entries
        ]
        value = f"[{', '.join(inline_items)}]"
    parts = _insert(parts, index, _Segment(indent, f"{_quote(name)}: {value}", "", True, outer), style.newline)
    return _join_container(text, document, parts, last_comma=last_comma)


def _split_container(text: str, container: Container, style: _Style) -> tuple[_ContainerParts, bool, str, str]:
    """Return a container's parts, whether its last comma is written, and its line's and its members' indentation."""
    parts = _parse_parts(text, container)
    line = text[text.rfind("\n", 0, container.opening) + 1 : container.opening]
    outer = line[: len(line) - len(line.lstrip(" \t"))]
    indent = (container.members and _find_indentation(text, container.members[0].start)) or outer + style.step
    return parts, parts.segments[-1].comma if parts.segments else style.last_comma, outer, indent


def _join_container(text: str, container: Container, parts: _ContainerParts, *, last_comma: bool) -> str:
    """Return the text with a container's parts replaced."""
    last = len(parts.segments) - 1
    segments = [replace(segment, comma=last_comma or number < last) for number, segment in enumerate(parts.segments)]
    content = str(replace(parts, segments=tuple(segments)))
    return text[: container.opening + 1] + content + text[container.closing :]


def _parse_parts(text: str, container: Container) -> _ContainerParts:
    members = container.members
    starts = [*(member.start for member in members), container.closing]
    position = container.opening + 1
    if opening := _REST_OF_LINE.match(text, position, starts[0]):
        position = opening.end()
    head = text[container.opening + 1 : position]
    segments = []
    for member, next_start in zip(members, starts[1:], strict=True):
        gap_end = content_end = member.end
        if member.comma is not None:
            gap_end, content_end = member.comma, member.comma + 1
        elif match := _BLOCK_COMMENTS.match(text, member.end, next_start):
            gap_end = content_end = match.end()
        rest = _REST_OF_LINE.match(text, content_end, next_start)
        end = rest.end() if rest else content_end
        lead, body, gap = text[position : member.start], text[member.start : member.end], text[member.end : gap_end]
        segments.append(_Segment(lead, body, gap, member.comma is not None, text[content_end:end], member.text))
        position = end
    return _ContainerParts(head, tuple(segments), text[position : container.closing])


def _remove_entries(parts: _ContainerParts, removed_entries: set[str]) -> _ContainerParts:
    segments: list[_Segment] = []
    pending_text = ""  # The remaining text around the entries that were removed since the last kept one.
    joins_line = False  # True if the removed entries are on the line of the next segment.
    for number, segment in enumerate(parts.segments):
        lead = segment.lead.lstrip(" \t") if joins_line else segment.lead
        if segment.value not in removed_entries:
            if number and (pending_text or not segments):
                # Adjacent blank lines are merged, and leading ones removed.
                if _is_blank(pending_text) and "\n" in pending_text and (not segments or _BLANK_LINES.match(lead)):
                    pending_text = ""
                if not (segments or pending_text):
                    lead = _BLANK_LINES.sub("", lead)
            segments.append(replace(segment, lead=pending_text + lead))
            pending_text, joins_line = "", False
            continue
        starts_line = segments[-1].ends_line if segments else parts.head.endswith("\n")
        preceding_text = f"{chr(10) if starts_line else ' '}{pending_text}{lead}"
        joins_line = not segment.ends_line
        if joins_line:
            pending_text += lead
        elif "\n" in preceding_text and _is_blank(preceding_text.rpartition("\n")[2]):
            # Remove the complete line, and the comment above it unless this applies to other entries.
            lead = _keep_shared_comment(parts.segments, number, removed_entries) if lead == segment.lead else lead
            pending_text = f"{pending_text}{lead}"
            pending_text = pending_text[: pending_text.rfind("\n") + 1]
        else:
            pending_text = f"{pending_text}{lead}".rstrip(" \t") + segment.trail
    if _is_blank(pending_text):
        pending_text = ""
    tail = pending_text + parts.tail
    if not segments and _is_blank(parts.head + tail):
        return _ContainerParts("", (), "")
    return _ContainerParts(parts.head, tuple(segments), tail)


def _keep_shared_comment(segments: Sequence[_Segment], number: int, removed_entries: set[str]) -> str:
    """Return the text above a removed entry, without a comment directly above it that applies to nothing else."""
    lead = segments[number].lead
    lines = lead[: lead.rfind("\n") + 1].splitlines(keepends=True)
    for next_segment in segments[number + 1 :]:
        if not _is_blank(next_segment.lead) or "\n" in next_segment.lead:
            break
        if next_segment.value not in removed_entries:
            return "".join(lines)
    while lines and not _is_blank(lines[-1]):
        lines.pop()
    return "".join(lines)


def _insert(parts: _ContainerParts, index: int, segment: _Segment, newline: str) -> _ContainerParts:
    """Insert a segment before another one."""
    # The segment's `lead` is the indentation of a line, its `gap` a comment, its `trail` the container's indentation.
    preceding, following = parts.segments[:index], parts.segments[index:]
    head, tail = parts.head, parts.tail
    if not parts.segments and "\n" not in head:
        head, tail = f"{f'{head}{tail}'.rstrip()}{newline}", segment.trail
        parts = _ContainerParts(head, (), tail)
    if parts.begins_line(index):
        line_segment = replace(segment, gap="", trail=f"{_format_line_comment(segment.gap)}{newline}")
        return _ContainerParts(head, (*preceding, line_segment, *following), tail)
    inline_segment = replace(segment, lead=" ", gap=_format_block_comment(segment.gap), trail="")
    if not preceding and _is_blank(following[0].lead):
        # The new segment takes the first segment's position.
        inline_segment = replace(inline_segment, lead=following[0].lead)
        following = (replace(following[0], lead=" "), *following[1:])
    return _ContainerParts(head, (*preceding, inline_segment, *following), tail)


def _quote(value: object) -> str:
    """Format a value as JSON; a float without a fraction becomes an integer."""
    value = int(value) if isinstance(value, float) and value == int(value) else value
    return json.dumps(value, ensure_ascii=False)


def _format_comment(reason: str) -> str:
    """Format a reason as one bounded line, without text that ends any kind of comment."""
    text = " ".join(_CONTROL_CHARACTERS.sub(" ", reason).split()).replace("*/", "* /")
    return text if len(text) <= _MAX_REASON_CHARS else text[: _MAX_REASON_CHARS - 1] + "…"


def _format_line_comment(text: str) -> str:
    return f" // {text}" if text else ""


def _format_block_comment(text: str) -> str:
    return f" /* {text} */" if text else ""
