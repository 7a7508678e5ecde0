"""The text of a JSON file: comments, where its values stand, and edits that change nothing else.

Configs of operator suites have comments and trailing commas, which is what they use of JSON5; torch models have
comments. Such a text becomes plain JSON of the same length, every value in its place: the standard library reads it in
a millisecond (a parser of all of JSON5 in Python takes a second, one in C keeps no places), messages name its lines,
and edits keep every other byte. What else JSON5 has is refused, with its line, as JSON refuses it.

The lists of expected failures of an operator suite's config are edited where they stand: comments, order, indentation,
line ends and the way in which the last comma is written are the author's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = r"//[^\n]*|/\*.*?(?:\*/|\Z)"
_WORDS = re.compile(rf"{_STRING}|(?P<comment>{_COMMENT})", re.DOTALL)
_TOKEN = re.compile(rf"{_STRING}|\S")
_CLOSING = re.compile(r"\s*[\]}]")
_NOT_SPACE = re.compile(r"[^\n\r]")
_INDEX = re.compile(r"\[(\d+)\]")
_SPACE = " \t\n\r\ufeff"
# An array that is longer has a line for each item.
_LONG_LINE = 100
EXPECTED_LISTS = (
    "expected_compile_failures",
    "expected_compile_crashes",
    "expected_run_failures",
    "expected_run_crashes",
)
_LONGEST_REASON = 160
# What ends a line or cannot be seen, to whatever reader of JSON5.
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]+")
# Space and comments up to the end of a line, and that end. A comment of several lines begins something else.
_REST_OF_LINE = re.compile(r"(?:[ \t]|/\*[^\n]*?\*/)*(?://[^\n]*?)?\r?\n")
_REMARKS = re.compile(r"(?:[ \t]*/\*[^\n]*?\*/)*")
_BLANK_LINES = re.compile(r"\A(?:[ \t]*\r?\n)+")


def read_plain_json(text: str) -> str:
    """The same values in the same places, without comments and trailing commas.

    A comment that does not end swallows the rest, so that the JSON that is left does not end either.
    """
    text = without_comments(text)
    pieces: list[str] = []
    done = 0
    value = False  # whether what stands before may be followed by a comma
    for match in _TOKEN.finditer(text):
        word = match[0]
        if word == "," and value and _CLOSING.match(text, match.end()):
            pieces += [text[done : match.start()], " "]
            done = match.end()
        value = word not in (",", "[", "{", ":")
    return "".join((*pieces, text[done:]))


def without_comments(text: str) -> str:
    """The same values in the same places; a comment becomes spaces."""
    # Most specs have no `//` but those of their URLs, and no comment can begin within `s://`.
    if "/*" in text or "//" in text.replace("s://", ""):
        text = _WORDS.sub(lambda match: _NOT_SPACE.sub(" ", match[0]) if match["comment"] else match[0], text)
    return text


def list_comments(text: str) -> dict[int, str]:
    """What is said in the comments of one line each, by number of the line (1-based); of several, the last one."""
    found = [match for match in _WORDS.finditer(text) if match["comment"]]
    lines = _count_lines(text, (match.start() for match in found))
    comments = ((line, match["comment"]) for line, match in zip(lines, found, strict=True))
    return {line: comment[2:].removesuffix("*/").strip() for line, comment in comments if "\n" not in comment}


def _count_lines(text: str, positions: Iterable[int]) -> Iterator[int]:
    """Lines (1-based) of rising positions."""
    line, counted = 1, 0
    for position in positions:
        line += text.count("\n", counted, position)
        counted = position
        yield line


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a container.

    Attributes:
        start, end: of `value`, or of `"key": value`.
        comma: position of the comma behind it.
        text: of a value that is a string.
        key: of an object's member, else empty.
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
    """The places of a document that is an array or an object; ValueError where it is none, by this grammar."""
    plain = read_plain_json(text)
    opening = _skip(plain, 0)
    document, end = json.JSONDecoder().raw_decode(plain, opening)
    if not isinstance(document, dict | list) or not _is_blank(plain[end:]):
        raise ValueError("the document is not one object or array")
    return _read_container(plain, without_comments(text), opening, end)


def _read_container(plain: str, with_commas: str, opening: int, end: int) -> Container:
    """The places of what is between two positions; the second text has the commas before closing brackets, too."""
    members: list[Member] = []
    for key, start, position in _read_members(plain, opening):
        value, stop = json.JSONDecoder().raw_decode(plain, position)
        behind = _skip(with_commas, stop)
        comma = behind if with_commas[behind] == "," else None
        string = value if isinstance(value, str) else None
        own = _read_container(plain, with_commas, position, stop) if isinstance(value, dict | list) else None
        members.append(Member(start, stop, comma, string, key if isinstance(key, str) else "", own))
    return Container(opening, end - 1, tuple(members))


def _is_blank(text: str) -> bool:
    """Whether a text between tokens is space alone, without comments."""
    return not text.strip(_SPACE)


def find_line(text: str, path: Sequence[str | int]) -> int:
    """Line (1-based) on which the value at a path of keys and indices starts; its nearest parent's if absent."""
    text = without_comments(text)
    position, _ = _find(text, path)
    return text[:position].count("\n") + 1


def find_item_lines(text: str, path: Sequence[str | int]) -> list[int]:
    """Lines (1-based) of the items of the array at a path, in their order; empty where there is no array."""
    position, missing = _find(text, path)
    if missing or text[position : position + 1] != "[":
        return []
    return list(_count_lines(text, (start for _, _, start in _read_members(text, position))))


def find_path(document: object, field: str) -> tuple[str | int, ...]:
    """Keys and indices of a dotted field (`golden_time_ms.mi300`, `inputs[0].value`) of a document.

    A key may have dots in it: of several readings, the one that the document has; KeyError where it has none.
    """
    if not field:
        return ()
    if isinstance(document, list):
        match = _INDEX.match(field)
        if match and int(match[1]) < len(document):
            return (int(match[1]), *find_path(document[int(match[1])], field[match.end() :].removeprefix(".")))
    if isinstance(document, dict):
        for key in sorted(document, key=len, reverse=True):
            rest = field[len(key) :]
            if field.startswith(key) and (not rest or rest[0] in ".["):
                try:
                    return (key, *find_path(document[key], rest.removeprefix(".")))
                except KeyError:
                    continue
    raise KeyError(field)


def with_value(text: str, path: Sequence[str | int], value: float | str) -> str:
    """The text with another number or string at a path, all else as it was; KeyError where there is none."""
    plain = without_comments(text)
    position, missing = _find(plain, path)
    if missing:
        raise KeyError(missing[0])
    before, end = json.JSONDecoder().raw_decode(plain, position)
    if not isinstance(before, str if isinstance(value, str) else int | float) or isinstance(before, bool):
        raise KeyError(path[-1] if path else "")
    if not isinstance(value, str):
        value = int(value) if value == int(value) else float(value)
    return text[:position] + _quote(value) + text[end:]


def with_member(text: str, key: str, value: object) -> str:
    """The text of an object with a value under a key, in its place or as the last one; all else is as it was."""
    whole = read_spans(text)
    first = whole.members[0].start if whole.members else whole.closing
    line = text.rfind("\n", 0, first) + 1
    # As the first member; four spaces where it would be that.
    indent = (text[line:first] if _is_blank(text[line:first]) else "") if whole.members else "    "
    written = _quote(value)
    if isinstance(value, list) and len(value) > 1 and len(written) > _LONG_LINE:
        inner = ",\n".join(f"{indent}{indent}{_quote(item)}" for item in value)
        written = f"[\n{inner}\n{indent}]"
    written = f"{_quote(key)}: {written}"
    there = next((member for member in whole.members if member.key == key), None)
    if there is not None:
        return text[: there.start] + written + text[there.end :]
    if not whole.members:
        return text[: whole.opening + 1] + f"\n{indent}{written}\n" + text[whole.closing :]
    end = whole.members[-1].end
    gap = f"\n{indent}" if line else " "
    return f"{text[:end]},{gap}{written}{text[end:]}"


@dataclass(frozen=True, slots=True)
class Removal:
    """An entry that is to go from a list, wherever it stands in it."""

    list: str
    entry: str


@dataclass(frozen=True, slots=True)
class Addition:
    """An entry that is to come into a list, with the comment on its line."""

    list: str
    entry: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Segment:
    """A member with the text around it that goes where it goes; its `trail` is the rest of a line that it ends."""

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
    """What stands between a container's brackets: the rest of its first line, its members, what is behind them."""

    head: str
    segments: tuple[_Segment, ...]
    tail: str

    def __str__(self) -> str:
        return f"{self.head}{''.join(map(str, self.segments))}{self.tail}"

    def begins_line(self, place: int) -> bool:
        """Whether what comes before the segment of an index would stand at the beginning of a line."""
        return self.segments[place - 1].ends_line if place else self.head.endswith("\n")


@dataclass(frozen=True, slots=True)
class _Style:
    """How a document is written: the end of its lines, one step of indentation, whether a last comma is written."""

    newline: str
    step: str
    last_comma: bool


def with_changes(text: str, changes: Sequence[Removal | Addition]) -> str:
    """The text of a config with other expected failures.

    An entry goes with the comment on its line, and with a comment directly above it that is about nothing that stays:
    a comment is taken to be about the entries below it up to the next comment or blank line. A new entry comes to
    where the order of a sorted list asks for it, else to the list's end. A list that is missing becomes a field.

    Raises:
        GauntletError: an entry to be removed is not there, one to be added is, or the text cannot be edited so that
            it means just that.
    """
    expected = _apply(_read(text), changes)
    document = read_spans(text)
    style = _detect_style(text, document)
    # From the last one on, so that the places hold.
    for member in reversed(document.members):
        own = [change for change in changes if change.list == member.key]
        if own and member.container:
            text = _edit_list(text, member.container, own, style)
    fields = {member.key for member in document.members}
    for name in dict.fromkeys(change.list for change in changes):
        if name not in fields:
            added = [change for change in changes if change.list == name and isinstance(change, Addition)]
            text = _with_field(text, name, added, style)
    if json.dumps(_read(text), sort_keys=True) != json.dumps(expected, sort_keys=True):
        raise GauntletError(
            "the config cannot be edited so that it means the same otherwise",
            "Change its lists by hand; the changes are listed above.",
        )
    return text


def _read(text: str) -> dict[str, Any]:
    def refuse_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key appears twice in one object")
        return found

    try:
        document = json.loads(read_plain_json(text).removeprefix("\ufeff"), object_pairs_hook=refuse_twins)
    except ValueError as error:
        raise GauntletError(f"the config cannot be read: {error}", "`lint` shows what is wrong with it.") from error
    if not isinstance(document, dict):
        raise GauntletError("the config is not an object", "`lint` shows what is wrong with it.")
    return document


def _apply(document: dict[str, Any], changes: Sequence[Removal | Addition]) -> dict[str, Any]:
    """What the changed text is to mean."""
    lists: dict[str, list[str]] = {}
    for change in changes:
        before = document.get(change.list, [])
        if change.list not in EXPECTED_LISTS or not isinstance(before, list):
            raise GauntletError(
                f"{change.list} is not a list of expected failures", f"Known: {', '.join(EXPECTED_LISTS)}."
            )
        entries = lists.setdefault(change.list, list(before))
        if isinstance(change, Removal) == (change.entry not in entries):
            what = "is not in" if isinstance(change, Removal) else "is already in"
            raise GauntletError(f"{change.entry} {what} {change.list}", "The config was changed since: run again.")
        if isinstance(change, Removal):
            lists[change.list] = [entry for entry in entries if entry != change.entry]
        else:
            key = _order(before)
            place = len(entries) if key is None else sum(key(entry) < key(change.entry) for entry in entries)
            entries.insert(place, change.entry)
    return document | lists


def _order(entries: Sequence[Any]) -> Callable[[str], str] | None:
    """By what a list is sorted; None where it is not."""
    keys: tuple[Callable[[str], str], ...] = (str, str.casefold)
    for key in keys:
        if all(isinstance(entry, str) for entry in entries) and list(entries) == sorted(entries, key=key):
            return key
    return None


def _detect_style(text: str, document: Container) -> _Style:
    newline = "\r\n" if "\r\n" in text else "\n"
    indents = [_find_indentation(text, member.start) for member in document.members]
    step = next((indent for indent in indents if indent), "  ")
    lasts = [
        container.members[-1].comma is not None
        for container in (document, *(member.container for member in document.members if member.container))
        if container.members and "\n" in text[container.members[-1].end : container.closing]
    ]
    return _Style(newline, step, any(lasts))


def _find_indentation(text: str, position: int) -> str:
    """The space before a position, where nothing else stands before it on its line."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return "" if line.strip(" \t") else line


def _edit_list(text: str, container: Container, changes: Sequence[Removal | Addition], style: _Style) -> str:
    """The text with what stands between the brackets of a list changed."""
    parts, last_comma, outer, indent = _open(text, container, style)
    key = _order([segment.value for segment in parts.segments])
    gone = {change.entry for change in changes if isinstance(change, Removal)}
    if gone:
        parts = _without(parts, gone)
    for change in changes:
        if isinstance(change, Addition):
            place = len(parts.segments)
            if key is not None:
                place = sum(key(segment.value or "") < key(change.entry) for segment in parts.segments)
            new = _Segment(indent, _quote(change.entry), _comment(change.reason), True, outer, change.entry)
            parts = _insert(parts, place, new, style.newline)
    return _close(text, container, parts, last_comma=last_comma)


def _with_field(text: str, name: str, added: Sequence[Addition], style: _Style) -> str:
    """The text with a list more: behind the one before it in `EXPECTED_LISTS`, else as its last field."""
    document = read_spans(text)
    parts, last_comma, outer, indent = _open(text, document, style)
    keys = [member.key for member in document.members]
    before = [keys.index(other) for other in EXPECTED_LISTS[: EXPECTED_LISTS.index(name)] if other in keys]
    place = before[-1] + 1 if before else len(keys)
    entries = sorted(added, key=lambda change: change.entry)
    if parts.begins_line(place) or not parts.segments:
        lines = [
            f"{indent}{style.step}{_quote(change.entry)}"
            f"{',' if style.last_comma or number < len(entries) else ''}{_line_comment(_comment(change.reason))}"
            for number, change in enumerate(entries, start=1)
        ]
        value = style.newline.join(["[", *lines, f"{indent}]"])
    else:
        inline = [f"{_quote(change.entry)}{_block_comment(_comment(change.reason))}" for change in entries]
        value = f"[{', '.join(inline)}]"
    parts = _insert(parts, place, _Segment(indent, f"{_quote(name)}: {value}", "", True, outer), style.newline)
    return _close(text, document, parts, last_comma=last_comma)


def _open(text: str, container: Container, style: _Style) -> tuple[_ContainerParts, bool, str, str]:
    """A container's parts, whether its last comma is written, and the indentation of its line and of its members."""
    parts = _parts(text, container)
    line = text[text.rfind("\n", 0, container.opening) + 1 : container.opening]
    outer = line[: len(line) - len(line.lstrip(" \t"))]
    indent = (container.members and _find_indentation(text, container.members[0].start)) or outer + style.step
    return parts, parts.segments[-1].comma if parts.segments else style.last_comma, outer, indent


def _close(text: str, container: Container, parts: _ContainerParts, *, last_comma: bool) -> str:
    """The text with other parts in a container."""
    last = len(parts.segments) - 1
    segments = [replace(item, comma=last_comma or number < last) for number, item in enumerate(parts.segments)]
    inner = str(replace(parts, segments=tuple(segments)))
    return text[: container.opening + 1] + inner + text[container.closing :]


def _parts(text: str, container: Container) -> _ContainerParts:
    members = container.members
    starts = [*(member.start for member in members), container.closing]
    position = container.opening + 1
    if opening := _REST_OF_LINE.match(text, position, starts[0]):
        position = opening.end()
    head = text[container.opening + 1 : position]
    segments = []
    for member, following in zip(members, starts[1:], strict=True):
        gap_end = after = member.end
        if member.comma is not None:
            gap_end, after = member.comma, member.comma + 1
        elif remark := _REMARKS.match(text, member.end, following):
            gap_end = after = remark.end()
        rest = _REST_OF_LINE.match(text, after, following)
        end = rest.end() if rest else after
        lead, own, gap = text[position : member.start], text[member.start : member.end], text[member.end : gap_end]
        segments.append(_Segment(lead, own, gap, member.comma is not None, text[after:end], member.text))
        position = end
    return _ContainerParts(head, tuple(segments), text[position : container.closing])


def _without(parts: _ContainerParts, gone: set[str]) -> _ContainerParts:
    kept: list[_Segment] = []
    left = ""  # what stays of the text around what has gone since the last one that is kept
    same_line = False  # whether what has gone stood on the line of what comes next
    for number, segment in enumerate(parts.segments):
        lead = segment.lead.lstrip(" \t") if same_line else segment.lead
        if segment.value not in gone:
            if number and (left or not kept):
                # Of blank lines that meet, or come first, some go.
                if _is_blank(left) and "\n" in left and (not kept or _BLANK_LINES.match(lead)):
                    left = ""
                if not (kept or left):
                    lead = _BLANK_LINES.sub("", lead)
            kept.append(replace(segment, lead=left + lead))
            left, same_line = "", False
            continue
        fresh = kept[-1].ends_line if kept else parts.head.endswith("\n")
        before = f"{chr(10) if fresh else ' '}{left}{lead}"
        same_line = not segment.ends_line
        if same_line:
            left += lead
        elif "\n" in before and _is_blank(before.rpartition("\n")[2]):
            # The whole line goes, and the comment above it where that is about nothing else.
            lead = _lead_that_stays(parts.segments, number, gone) if lead == segment.lead else lead
            left = f"{left}{lead}"
            left = left[: left.rfind("\n") + 1]
        else:
            left = f"{left}{lead}".rstrip(" \t") + segment.trail
    if _is_blank(left):
        left = ""
    tail = left + parts.tail
    if not kept and _is_blank(parts.head + tail):
        return _ContainerParts("", (), "")
    return _ContainerParts(parts.head, tuple(kept), tail)


def _lead_that_stays(segments: Sequence[_Segment], number: int, gone: set[str]) -> str:
    """What stands above an entry that goes, without a comment directly above that is about nothing else."""
    lead = segments[number].lead
    lines = lead[: lead.rfind("\n") + 1].splitlines(keepends=True)
    for following in segments[number + 1 :]:
        if not _is_blank(following.lead) or "\n" in following.lead:
            break
        if following.value not in gone:
            return "".join(lines)
    while lines and not _is_blank(lines[-1]):
        lines.pop()
    return "".join(lines)


def _insert(parts: _ContainerParts, place: int, new: _Segment, newline: str) -> _ContainerParts:
    """With a new segment before another one."""
    # Its `lead` is the indentation for a line of its own, its `gap` a remark, its `trail` the container's indentation.
    before, after = parts.segments[:place], parts.segments[place:]
    head, tail = parts.head, parts.tail
    if not parts.segments and "\n" not in head:
        head, tail = f"{f'{head}{tail}'.rstrip()}{newline}", new.trail
        parts = _ContainerParts(head, (), tail)
    if parts.begins_line(place):
        line = replace(new, gap="", trail=f"{_line_comment(new.gap)}{newline}")
        return _ContainerParts(head, (*before, line, *after), tail)
    inline = replace(new, lead=" ", gap=_block_comment(new.gap), trail="")
    if not before and _is_blank(after[0].lead):
        # It takes the place of the first one.
        inline = replace(inline, lead=after[0].lead)
        after = (replace(after[0], lead=" "), *after[1:])
    return _ContainerParts(head, (*before, inline, *after), tail)


def _quote(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _comment(reason: str) -> str:
    """A reason on one bounded line, with nothing in it that ends a comment of any kind."""
    text = " ".join(_UNFIT.sub(" ", reason).split()).replace("*/", "* /")
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"


def _line_comment(text: str) -> str:
    return f" // {text}" if text else ""


def _block_comment(text: str) -> str:
    return f" /* {text} */" if text else ""


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def _find(text: str, path: Sequence[str | int]) -> tuple[int, Sequence[str | int]]:
    """Position of the value at a path, or of its nearest parent, and what of the path is not there."""
    position = _skip(text, 0)
    for depth, part in enumerate(path):
        found = next((start for key, _, start in _read_members(text, position) if key == part), None)
        if found is None:
            return position, path[depth:]
        position = found
    return position, ()


def _read_members(text: str, position: int) -> Iterator[tuple[str | int, int, int]]:
    """(key or index, position, position of the value) of the members of the container that starts at `position`."""
    opening = text[position : position + 1]
    if opening not in ("{", "["):
        return
    decoder = json.JSONDecoder()
    index = 0
    position = _skip(text, position + 1)
    while text[position] not in "}]":
        key: str | int = index
        start = position
        if opening == "{":
            key, position = scanstring(text, position + 1, True)
            position = _skip(text, _skip(text, position) + 1)
        yield key, start, position
        _, position = decoder.raw_decode(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
        index += 1
