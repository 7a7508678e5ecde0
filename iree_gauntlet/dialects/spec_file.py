"""Reading JSON and TOML files that people write strictly: every mistake is a `Problem` with file, line and field."""

from __future__ import annotations

import codecs
import difflib
import itertools
import json
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from iree_gauntlet.dialects.json_text import find_line, find_path, without_comments
from iree_gauntlet.errors import Problem, SpecError
from iree_gauntlet.settings import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pydantic import BaseModel, ValidationError


# What a schema's names of the branches of a union begin with: they are no part of a field's path.
BRANCH = "#branch "
_MOST_DEPTH = 32
# The character 0, as TOML can have it in a string.
_NUL = re.compile(r"\\u0000|\\U00000000")
_TABLE = re.compile(r"(\w+)\[(\d+)\]")


class FieldError(ValueError):
    """A validator's complaint about a document or a list that belongs to a field or item; None for the value itself."""

    def __init__(self, field: str | int | None, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.path = [] if field is None else [field]
        self.hint = hint


def load_json(
    path: Path, name: str, plain: Callable[[str], str] | None = None
) -> tuple[dict[str, Any] | None, str, list[Problem]]:
    """The JSON object of a file or None, its text (for `find_line`), and what is wrong with it."""
    text = ""
    try:
        text = read_text(path, name)
        text = plain(text) if plain else text
        document = _parse(text, name)
    except SpecError as error:
        return None, text, error.problems
    # For editors: where they find what the fields mean.
    document.pop("$schema", None)
    return document, text, []


def as_typed(path: Path) -> str:
    """The path from the working folder where it lies below it."""
    return str(path).removeprefix(f"{str(Path.cwd()).rstrip('/')}/")


def read_text(path: Path, name: str, kind: str = "spec files") -> str:
    """The text of a file that a person wrote; SpecError where it cannot be read, or is not UTF-8."""
    try:
        raw = read_file(path)
    except OSError as error:
        why, hint = error.strerror, "Check the path and its rights."
        if path.is_symlink() and not path.exists():
            why, hint = f"it is a link to {os.readlink(path)}, which is not there", "Fix the link, or remove it."  # noqa: PTH115
        problem = Problem(name, 0, "", f"cannot be read: {why}", hint)
        raise SpecError([problem], kind) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        message = f"is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise SpecError([Problem(name, line, "", message, "Save the file as UTF-8.")], kind) from error


def read_mark(path: Path) -> str:
    """The byte order mark that a file begins with, which its text here is without; empty where it has none."""
    with path.open("rb") as file:
        return "\ufeff" if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else ""


def _refuse(name: str, line: int, message: str, hint: str, field: str = "") -> SpecError:
    """What is wrong with a file as a whole; line 0 where it is unknown."""
    return SpecError([Problem(name, line, field, message, hint)])


def _parse(text: str, name: str) -> dict[str, Any]:
    if not text.strip():
        raise _refuse(name, 0, "is empty: expected a JSON object", "See docs/reference/specs.md for the fields.")
    too_deep = SpecError([_refuse_depth(name, "A spec")])
    try:
        document = _load_strictly(text, name)
    except json.JSONDecodeError as error:
        raise _explain_syntax(text, name, error) from error
    except RecursionError as error:
        raise too_deep from error
    except ValueError as error:
        raise SpecError([_refuse_number(name, error)]) from error
    if not isinstance(document, dict):
        raise _refuse(name, 1, f"expected a JSON object, found {_describe(document)}", "A spec is {…}.")
    # What it holds is only walked where the text can hold the mistake.
    if text.count("{") + text.count("[") >= _MOST_DEPTH and _is_deeper(document, _MOST_DEPTH):
        raise too_deep
    if "\\u" in text:
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            message = f"holds half of a surrogate pair, which is not a character: {half}"
            raise _refuse(name, 0, message, "Write the character itself.") from error
    return document


def _refuse_depth(name: str, what: str) -> Problem:
    return Problem(name, 0, "", "is nested too deeply", f"{what} is two or three levels deep.")


def _refuse_number(name: str, error: ValueError) -> Problem:
    """An integer of more digits than Python converts."""
    return Problem(name, 0, "", f"holds a number that cannot be read: {error}", "Write a shorter number.")


def _load_strictly(text: str, name: str) -> object:
    """Without keys that appear twice, and numbers that JSON does not have."""

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) == len(pairs):
            return result
        keys = [key for key, _ in pairs]
        key = next(key for index, key in enumerate(keys) if key in keys[:index])
        found = [match.start() for match in re.finditer(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text)]
        line = text[: found[-1]].count("\n") + 1 if found else 0
        raise _refuse(name, line, "appears twice in one object", "Remove one of the two.", key)

    def refuse_constants(word: str) -> None:
        match = re.search(rf"[:\[,]\s*{word}", text)
        line = text[: match.end()].count("\n") + 1 if match else 1
        raise _refuse(name, line, f"{word} is not a JSON number", "Write a finite number.")

    return json.loads(text, object_pairs_hook=refuse_duplicates, parse_constant=refuse_constants)


def _is_deeper(value: object, most: int) -> bool:
    # Bounded here, so that nothing that walks a document later can run out of stack.
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most == 0 or any(_is_deeper(child, most - 1) for child in children)


def find_nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is spelled most like this one, or an empty string."""
    matches = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question to put behind a message about an unknown word; empty where no known one is spelled like it."""
    near = find_nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""


def without_strange_fields(
    content: dict[str, Any], known: Collection[str], name: str, text: str
) -> tuple[dict[str, Any], list[Problem]]:
    """A document without the fields that its format may have gained since, and a warning of each.

    A field that is spelled nearly as a known one stays, and is an error when the document is validated.
    """
    strange = [field for field in content if field not in known and not find_nearest(field, known)]
    hint = f"Known fields: {', '.join(sorted(known))}."
    warnings = [problem_at(name, text, [field], "unknown field, which is passed over", hint) for field in strange]
    return {field: value for field, value in content.items() if field not in strange}, warnings


def problem_at(name: str, text: str, path: Sequence[str | int], message: str, hint: str = "") -> Problem:
    """A problem at a field of a JSON text; an empty text gives no line."""
    return Problem(name, find_line(text, path) if text else 0, _join_path(path), message, hint)


def problem_of_field(file: str, field: str, message: str, hint: str = "") -> Problem:
    """A problem at a field of a file; with its line where that is a JSON file that has the field."""
    document, text, _ = load_json(Path(file), file, without_comments)
    try:
        return problem_at(file, text, find_path(document, field), message, hint)
    except KeyError:
        return Problem(file, 0, field, message, hint)


def strings_of(path: Path, keys: Collection[str]) -> Iterator[tuple[str, str]]:
    """(field, text) of the strings under some keys, however deep, of a JSON file that may not be a valid spec."""
    for place, value in strings_in(load_json(path, str(path), without_comments)[0]):
        if place[-1] in keys:
            yield _join_path(place), value


def strings_in(value: object, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """(path of keys and indices, text) of the strings in a JSON value."""
    if isinstance(value, str):
        yield path, value
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield from strings_in(item, *path, key)


def problems_at(
    error: ValidationError,
    model: type[BaseModel],
    name: str,
    line_at: Callable[[Sequence[str | int]], int],
    written: Callable[[Sequence[str | int]], str] = lambda _: "",
) -> list[Problem]:
    """Turns pydantic's errors into problems that name line, field, what was found and what is allowed.

    `written` gives a scalar as it stands in the file; empty for other values.
    """
    problems = []
    for item in error.errors(include_url=False):
        # What pydantic adds is no part of a field's path.
        added = (BRANCH, "[key]")
        location = [part for part in item["loc"] if not (isinstance(part, str) and part.startswith(added))]
        cause = item.get("ctx", {}).get("error")
        hint = ""
        if isinstance(cause, FieldError):
            location += cause.path
            hint = cause.hint
        kind, found = item["type"], item.get("input")
        if kind == "extra_forbidden":
            known = _find_fields(model, location[:-1])
            question = did_you_mean(str(location[-1]), known)
            message = f"unknown field{question}"
            hint = "" if question else f"Known fields: {', '.join(sorted(known))}."
        elif kind == "missing":
            message = "is missing: the field is required"
        elif kind == "value_error":
            message = str(cause)
        elif kind in ("too_short", "too_long"):
            expected = item["msg"].partition(" should have ")[2]
            message = f"expected {expected.replace(' after validation, not', ', found')}"
        else:
            text = "" if isinstance(found, str) else written(location)
            message = f"{_say_expected(item['msg'])}, found {text or _describe(found)}"
            if kind == "literal_error" and isinstance(found, str):
                near = find_nearest(found, re.findall("'(.*?)'", item["ctx"]["expected"]))
                hint = f"Did you mean {near!r}?" if near else ""
            elif kind == "string_type" and text:
                hint = f'Write it in quotes: "{text}".'
        problems.append(Problem(name, line_at(location), _join_path(location), message, hint))
    return problems


def _find_fields(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Names of the fields that the object at a location may have."""
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _find_model(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _find_model(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as `list[Blob]` or `ImportOptions | None`."""
    if hasattr(annotation, "model_fields"):
        found: type[BaseModel] = annotation
        return found
    return next(filter(None, map(_find_model, get_args(annotation))), None)


def _explain_syntax(text: str, name: str, error: json.JSONDecodeError) -> SpecError:
    before = text[: error.pos].rstrip()
    after = text[error.pos :].lstrip()[:1]
    if (after in ("}", "]") and before.endswith(",")) or "Illegal trailing comma" in error.msg:
        line = before.count("\n") + 1
        return _refuse(name, line, "trailing comma: JSON has none before ']' or '}'", "Remove the comma.")
    if after == "":
        return _refuse(name, error.lineno, "ends in the middle of a value", "Is the file cut off?")
    if error.msg == "Expecting ',' delimiter" and "\n" in text[len(before) : error.pos]:
        return _refuse(
            name, before.count("\n") + 1, "is not JSON: a comma is missing at the end of this line", "Add it."
        )
    return _refuse(name, error.lineno, f"is not JSON: {error.msg} (column {error.colno})", "Fix the syntax there.")


def _join_path(location: Sequence[str | int]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def _say_expected(message: str) -> str:
    words = {
        "Input should be a valid string": "expected a string",
        "Input should be a valid list": "expected an array",
        "Input should be a valid dictionary": "expected an object",
        "Input should be a valid boolean": "expected true or false",
        "Input should be a valid integer": "expected a whole number",
        "Input should be a valid number": "expected a number",
        "Input should be a finite number": "expected a finite number",
        "Keys should be strings": "expected the name of a field, in quotes",
    }
    if message.startswith("Input should be a valid dictionary or instance"):
        return "expected an object"
    return words.get(message, message.replace("Input should be", "expected a value").rstrip("."))


def _describe(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > 60:
        text = text[:57] + "…"
    kind = "string" if isinstance(value, str) else "number" if isinstance(value, int | float) else "value"
    return f"the {kind} {text}"


def read_toml(path: Path, kind: str = "spec files") -> tuple[str, dict[str, Any]]:
    """Text and content of a TOML file; SpecError where it cannot be read, or is no TOML."""
    name = str(path)
    text = read_text(path, name, kind)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError([Problem(name, 0, "", f"is not TOML: {error}", "Fix the syntax there.")], kind) from error
    except RecursionError as error:
        raise SpecError([_refuse_depth(name, "Such a file")], kind) from error
    except ValueError as error:
        raise SpecError([_refuse_number(name, error)], kind) from error
    if _is_deeper(content, _MOST_DEPTH):
        raise SpecError([_refuse_depth(name, "Such a file")], kind)
    if nothing := _NUL.search(text):
        line = text[: nothing.start()].count("\n") + 1
        raise SpecError([Problem(name, line, "", f"holds {nothing[0]}, which no name has", "Remove it.")], kind)
    # For editors: where they find what the fields mean.
    content.pop("$schema", None)
    return text, content


def with_lines(problems: Iterable[Problem], text: str) -> list[Problem]:
    """Finds the lines of fields: TOML's reader keeps no positions."""
    lines = [line.strip() for line in text.splitlines()]
    return [replace(problem, line=_find_line(problem.field, lines)) for problem in problems]


def _find_line(field: str, lines: list[str]) -> int:
    """In the table of an array where the field says which (`include[1].model`), else the one that has its last word."""
    table, _, last = field.rpartition(".")
    word = last.split("[")[0]
    numbered = _TABLE.fullmatch(table or field)
    starts = [number for number, line in enumerate(lines, 1) if numbered and line.startswith(f"[[{numbered[1]}]]")]
    if numbered and int(numbered[2]) < len(starts):
        start = starts[int(numbered[2])]
        inside = itertools.takewhile(
            lambda number: not lines[number - 1].startswith("["), range(start + 1, len(lines) + 1)
        )
        return next((number for number in inside if lines[number - 1].startswith(word)), start)
    numbers = [number for number, line in enumerate(lines, 1) if line.strip("[]").startswith(word)]
    return numbers[0] if word and len(numbers) == 1 else 0
