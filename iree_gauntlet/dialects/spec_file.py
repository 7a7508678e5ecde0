"""Strict reading of hand-written JSON and TOML files: every mistake is a `Problem` with file, line and field."""

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


# The prefix of a schema's names for the branches of a union, which are not part of a field's path.
BRANCH = "#branch "
_MAX_DEPTH = 32
# TOML strings may contain the character 0 as an escape.
_NUL_ESCAPE = re.compile(r"\\u0000|\\U00000000")
_ARRAY_TABLE = re.compile(r"(\w+)\[(\d+)\]")


class FieldError(ValueError):
    """A validator's error; `field` is a document's field or a list's index, None the complete value."""

    def __init__(self, field: str | int | None, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.path = [] if field is None else [field]
        self.hint = hint


def load_json(
    path: Path, name: str, to_json: Callable[[str], str] | None = None
) -> tuple[dict[str, Any] | None, str, list[Problem]]:
    """Return a file's JSON object or None, its text for `find_line`, and its problems; `to_json` keeps positions."""
    text = ""
    try:
        text = read_text(path, name)
        text = to_json(text) if to_json else text
        document = _parse(text, name)
    except SpecError as error:
        return None, text, error.problems
    # Editors use this key to find the fields' descriptions.
    document.pop("$schema", None)
    return document, text, []


def shorten_path(path: Path) -> str:
    """Return a path; if it is below the working folder, return it relative to that folder."""
    return str(path).removeprefix(f"{str(Path.cwd()).rstrip('/')}/")


def read_text(path: Path, name: str, kind: str = "spec files") -> str:
    """Read the text of a hand-written file; SpecError if it cannot be read, or is not UTF-8."""
    try:
        content = read_file(path)
    except OSError as error:
        reason, hint = error.strerror, "Check the path and its permissions."
        if path.is_symlink() and not path.exists():
            reason, hint = f"it is a link to {os.readlink(path)}, which does not exist", "Fix the link, or remove it."  # noqa: PTH115
        problem = Problem(name, 0, "", f"cannot be read: {reason}", hint)
        raise SpecError([problem], kind) from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        message = f"is not UTF-8: byte 0x{content[error.start]:02x} at offset {error.start}"
        raise SpecError([Problem(name, line, "", message, "Save the file as UTF-8.")], kind) from error


def read_byte_order_mark(path: Path) -> str:
    """Return the byte order mark of a file, which `read_text` drops; empty if it has none."""
    with path.open("rb") as file:
        return "\ufeff" if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else ""


def _make_error(name: str, line: int, message: str, hint: str, field: str = "") -> SpecError:
    """Make the error of a complete file; line 0 means that the line is unknown."""
    return SpecError([Problem(name, line, field, message, hint)])


def _parse(text: str, name: str) -> dict[str, Any]:
    if not text.strip():
        raise _make_error(name, 0, "is empty: expected a JSON object", "See docs/reference/specs.md for the fields.")
    too_deep = SpecError([_make_depth_problem(name, "A spec")])
    try:
        document = _load_strictly(text, name)
    except json.JSONDecodeError as error:
        raise _make_syntax_error(text, name, error) from error
    except RecursionError as error:
        raise too_deep from error
    except ValueError as error:
        raise SpecError([_make_number_problem(name, error)]) from error
    if not isinstance(document, dict):
        raise _make_error(name, 1, f"expected a JSON object, found {_describe_value(document)}", "A spec is {…}.")
    # Search the document only if the text has enough brackets to be nested too deeply.
    if text.count("{") + text.count("[") >= _MAX_DEPTH and _is_deeper(document, _MAX_DEPTH):
        raise too_deep
    if "\\u" in text:
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            escape = f"\\u{ord(error.object[error.start]):04x}"
            message = f"contains half of a surrogate pair, which is not a character: {escape}"
            raise _make_error(name, 0, message, "Write the character itself.") from error
    return document


def _make_depth_problem(name: str, noun: str) -> Problem:
    return Problem(name, 0, "", "is nested too deeply", f"{noun} has two or three levels.")


def _make_number_problem(name: str, error: ValueError) -> Problem:
    """Make the problem of an integer with more digits than Python converts."""
    return Problem(name, 0, "", f"contains an invalid number: {error}", "Write a shorter number.")


def _load_strictly(text: str, name: str) -> object:
    """Parse JSON, without duplicate keys, and without numbers that JSON does not have."""

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) == len(pairs):
            return result
        keys = [key for key, _ in pairs]
        key = next(key for index, key in enumerate(keys) if key in keys[:index])
        hits = [match.start() for match in re.finditer(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text)]
        line = text[: hits[-1]].count("\n") + 1 if hits else 0
        raise _make_error(name, line, "appears twice in one object", "Remove one of the two.", key)

    def refuse_constants(constant: str) -> None:
        match = re.search(rf"[:\[,]\s*{constant}", text)
        line = text[: match.end()].count("\n") + 1 if match else 1
        raise _make_error(name, line, f"{constant} is not a JSON number", "Write a finite number.")

    return json.loads(text, object_pairs_hook=refuse_duplicates, parse_constant=refuse_constants)


def _is_deeper(value: object, max_depth: int) -> bool:
    # The depth is limited here, so that no later traversal of a document exhausts the stack.
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max_depth == 0 or any(_is_deeper(child, max_depth - 1) for child in children)


def find_nearest(word: str, valid_words: Iterable[str]) -> str:
    """Return the known word that is spelled most like a word, or an empty string."""
    matches = difflib.get_close_matches(word, list(valid_words), n=1, cutoff=0.6)
    return matches[0] if matches else ""


def did_you_mean(word: str, valid_words: Iterable[str]) -> str:
    """Return a question to append to a message about an unknown word; empty if no valid word is spelled like it."""
    by_lower_case = {valid_word.lower(): valid_word for valid_word in valid_words}
    nearest = find_nearest(word, by_lower_case.values()) or by_lower_case.get(find_nearest(word.lower(), by_lower_case))
    return f"; did you mean {nearest!r}?" if nearest else ""


def drop_unknown_fields(
    content: dict[str, Any], valid_fields: Collection[str], name: str, text: str
) -> tuple[dict[str, Any], list[Problem]]:
    """Drop unknown fields, with a warning for each, as newer versions of the format may have them.

    A field that is spelled nearly like a known field stays, so that the document's validation reports it.
    """
    unknown = [field for field in content if field not in valid_fields and not find_nearest(field, valid_fields)]
    hint = f"Known fields: {', '.join(sorted(valid_fields))}."
    warnings = [make_problem_at(name, text, [field], "unknown field, which is ignored", hint) for field in unknown]
    return {field: value for field, value in content.items() if field not in unknown}, warnings


def make_problem_at(name: str, text: str, path: Sequence[str | int], message: str, hint: str = "") -> Problem:
    """Make a problem at a field of a JSON text; the line is unknown if the text is empty."""
    return Problem(name, find_line(text, path) if text else 0, _join_path(path), message, hint)


def make_field_problem(file: str, field: str, message: str, hint: str = "") -> Problem:
    """Make a problem at a field of a file; the line is known if the file is JSON and has the field."""
    document, text, _ = load_json(Path(file), file, without_comments)
    try:
        return make_problem_at(file, text, find_path(document, field), message, hint)
    except KeyError:
        return Problem(file, 0, field, message, hint)


def iterate_file_strings(path: Path, keys: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (field, text) of a JSON file's strings under some keys, at any depth; the file may be an invalid spec."""
    for location, value in find_strings(load_json(path, str(path), without_comments)[0]):
        if location[-1] in keys:
            yield _join_path(location), value


def find_strings(value: object, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield (path of keys and indices, text) of the strings in a JSON value."""
    if isinstance(value, str):
        yield path, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from find_strings(child, *path, key)


def make_problems(
    error: ValidationError,
    model: type[BaseModel],
    name: str,
    line_at: Callable[[Sequence[str | int]], int],
    read_scalar: Callable[[Sequence[str | int]], str] = lambda _: "",
) -> list[Problem]:
    """Convert pydantic's errors to problems with line, field, found value and allowed values.

    `read_scalar` returns a scalar as written in the file; empty for other values.
    """
    problems = []
    for details in error.errors(include_url=False):
        # Drop the parts that pydantic adds to a field's path.
        pydantic_parts = (BRANCH, "[key]")
        location = [part for part in details["loc"] if not (isinstance(part, str) and part.startswith(pydantic_parts))]
        cause = details.get("ctx", {}).get("error")
        hint = ""
        if isinstance(cause, FieldError):
            location += cause.path
            hint = cause.hint
        kind, value = details["type"], details.get("input")
        if kind == "extra_forbidden":
            valid_fields = _find_fields(model, location[:-1])
            question = did_you_mean(str(location[-1]), valid_fields)
            message = f"unknown field{question}"
            hint = "" if question else f"Known fields: {', '.join(sorted(valid_fields))}."
        elif kind == "missing":
            message = "is missing: the field is required"
        elif kind == "value_error":
            message = str(cause)
        elif kind in ("too_short", "too_long"):
            expected = details["msg"].partition(" should have ")[2]
            message = f"expected {expected.replace(' after validation, not', ', found')}"
        else:
            text = "" if isinstance(value, str) else read_scalar(location)
            message = f"{_describe_expected(details['msg'])}, found {text or _describe_value(value)}"
            if kind == "literal_error" and isinstance(value, str):
                nearest = find_nearest(value, re.findall("'(.*?)'", details["ctx"]["expected"]))
                hint = f"Did you mean {nearest!r}?" if nearest else ""
            elif kind == "string_type" and text:
                hint = f'Write it in quotes: "{text}".'
        problems.append(Problem(name, line_at(location), _join_path(location), message, hint))
    return problems


def _find_fields(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """List the names of the fields that the object at a location may have."""
    for part in location:
        if isinstance(part, str) and part in model.model_fields:
            model = _find_model(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _find_model(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation such as `list[Blob]` or `ImportOptions | None`."""
    if hasattr(annotation, "model_fields"):
        model: type[BaseModel] = annotation
        return model
    return next(filter(None, map(_find_model, get_args(annotation))), None)


def _make_syntax_error(text: str, name: str, error: json.JSONDecodeError) -> SpecError:
    preceding = text[: error.pos].rstrip()
    next_character = text[error.pos :].lstrip()[:1]
    if (next_character in ("}", "]") and preceding.endswith(",")) or "Illegal trailing comma" in error.msg:
        line = preceding.count("\n") + 1
        return _make_error(name, line, "trailing comma: JSON does not allow one before ']' or '}'", "Remove the comma.")
    if next_character == "":
        return _make_error(name, error.lineno, "ends in the middle of a value", "Is the file cut off?")
    if error.msg == "Expecting ',' delimiter" and "\n" in text[len(preceding) : error.pos]:
        return _make_error(
            name, preceding.count("\n") + 1, "is not JSON: a comma is missing at the end of this line", "Add it."
        )
    return _make_error(name, error.lineno, f"is not JSON: {error.msg} (column {error.colno})", "Fix the syntax there.")


def _join_path(location: Sequence[str | int]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def _describe_expected(message: str) -> str:
    expectations = {
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
    return expectations.get(message, message.replace("Input should be", "expected a value").rstrip("."))


def _describe_value(value: object) -> str:
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
    """Read a TOML file, and return its text and content; SpecError if it cannot be read or is not TOML."""
    name = str(path)
    text = read_text(path, name, kind)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError([Problem(name, 0, "", f"is not TOML: {error}", "Fix the syntax there.")], kind) from error
    except RecursionError as error:
        raise SpecError([_make_depth_problem(name, "Such a file")], kind) from error
    except ValueError as error:
        raise SpecError([_make_number_problem(name, error)], kind) from error
    if _is_deeper(content, _MAX_DEPTH):
        raise SpecError([_make_depth_problem(name, "Such a file")], kind)
    if match := _NUL_ESCAPE.search(text):
        line = text[: match.start()].count("\n") + 1
        raise SpecError([Problem(name, line, "", f"contains {match[0]}, invalid in names", "Remove it.")], kind)
    # Editors use this key to find the fields' descriptions.
    content.pop("$schema", None)
    return text, content


def with_lines(problems: Iterable[Problem], text: str) -> list[Problem]:
    """Return the problems with the lines of their fields, because TOML's reader keeps no positions."""
    lines = [line.strip() for line in text.splitlines()]
    return [replace(problem, line=_find_line(problem.field, lines)) for problem in problems]


def _find_line(field: str, lines: list[str]) -> int:
    """Find a field's line in its table (`include[1].model`, `variants.a.flags`), or the only line with its name."""
    table, _, last_part = field.rpartition(".")
    word = last_part.split("[")[0]
    array = _ARRAY_TABLE.fullmatch(table or field)
    header, index = (f"[[{array[1]}]]", int(array[2])) if array else (f"[{table}]", 0)
    starts = [number for number, line in enumerate(lines, 1) if line.startswith(header)]
    if index < len(starts):
        start = starts[index]
        table_lines = itertools.takewhile(
            lambda number: not lines[number - 1].startswith("["), range(start + 1, len(lines) + 1)
        )
        return next((number for number in table_lines if lines[number - 1].startswith(word)), start)
    numbers = [number for number, line in enumerate(lines, 1) if line.strip("[]").startswith(word)]
    return numbers[0] if word and len(numbers) == 1 else 0
