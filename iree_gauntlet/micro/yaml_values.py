"""YAML documents with the line of every value.

Only plain data is read: lists, mappings, strings, numbers, true and false, and nothing. Anchors, aliases and merge
keys (`<<`) work as YAML 1.1 has them; two fields of one name, which YAML readers let the last one win, are errors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import yaml

from iree_gauntlet.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Content", "Value", "read_yaml"]

Content: TypeAlias = "bool | int | float | str | tuple[Value, ...] | Mapping[str, Value] | None"

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_PLAIN = {f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "str", "value")}
# Documents that are written by hand have 5.
_DEEPEST = 40


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a document.

    Attributes:
        line: where it stands, 1-based; of a field's value, where the field's name does.
        content: what it is.
        written: as it stands in the file, for strings, numbers and the like.
    """

    line: int
    content: Content
    written: str = ""


def read_yaml(path: Path, kind: str) -> tuple[Value, list[Problem]]:
    """The document of a YAML file, and the fields that it has twice.

    Args:
        path: the file, which exists.
        kind: what such files are, for messages.

    Raises:
        SpecError: it cannot be read, is no YAML, or holds more than plain data.
    """
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                raise SpecError([Problem(name, 0, "", "is empty", "See docs/micro.md for an example.")], kind)
            reader = _Reader(name, loader)
            value = reader.value(node)
        finally:
            loader.dispose()
    except OSError as error:
        raise SpecError(
            [Problem(name, 0, "", f"cannot be read: {error.strerror}", "Check its rights.")], kind
        ) from error
    except UnicodeDecodeError as error:
        raise SpecError([Problem(name, 0, "", "is not UTF-8", "Save the file as UTF-8.")], kind) from error
    except RecursionError as error:
        raise SpecError([Problem(name, 0, "", "is nested too deeply", "Look for brackets left open.")], kind) from error
    except yaml.YAMLError as error:
        raise SpecError([_syntax_problem(name, error)], kind) from error
    except _NotPlainError as error:
        raise SpecError([error.problem], kind) from error
    return value, reader.problems


class _NotPlainError(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(slots=True)
class _Reader:
    """Turns nodes into values; a node that is used several times is turned once, so that aliases stay cheap."""

    file: str
    loader: yaml.SafeLoader
    problems: list[Problem] = field(default_factory=list)
    done: dict[int, tuple[Content, str]] = field(default_factory=dict)
    path: list[int] = field(default_factory=list)

    def value(self, node: yaml.Node, line: int = 0) -> Value:
        """The value of a node.

        Args:
            node: as it was composed.
            line: of the field whose value it is; 0 for its own.

        Raises:
            _NotPlainError: it is no plain data.
        """
        if id(node) in self.path:
            raise self._refused(node, "a value contains itself", "Write it out instead of using an alias.")
        if id(node) not in self.done:
            if len(self.path) == _DEEPEST:
                raise self._refused(node, "is nested too deeply", "Look for brackets left open.")
            self.path.append(id(node))
            self.done[id(node)] = self._content(node)
            self.path.pop()
        content, written = self.done[id(node)]
        return Value(line or _line(node), content, written)

    def _content(self, node: yaml.Node) -> tuple[Content, str]:
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return tuple(self.value(item) for item in node.value), ""
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return MappingProxyType(self._fields(node)), ""
        if isinstance(node, yaml.ScalarNode) and node.tag in _PLAIN:
            try:
                return self.loader.construct_object(node), str(node.value)
            except ValueError as error:
                raise self._refused(node, f"{_short(node.value)} is no number", str(error)) from error
        what = node.tag.removeprefix(_TAG)
        shown = f"{_short(node.value)} is read as a {what}" if isinstance(node, yaml.ScalarNode) else f"is a {what}"
        raise self._refused(node, shown, "Write text in quotes; other types are not read.")

    def _fields(self, node: yaml.MappingNode) -> dict[str, Value]:
        own: dict[str, Value] = {}
        merged: dict[str, Value] = {}
        for key, item in node.value:
            if key.tag == _MERGE:
                for name, value in self._merged(item).items():
                    merged.setdefault(name, value)
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != f"{_TAG}str":
                raise self._refused(key, "the name of a field is no string", "Write it in quotes.")
            value = self.value(item, _line(key))
            if key.value in own:
                message = f"this field is there already, at line {own[key.value].line}"
                self.problems.append(Problem(self.file, value.line, key.value, message, "Remove one of them."))
            own.setdefault(key.value, value)
        return merged | own

    def _merged(self, node: yaml.Node) -> dict[str, Value]:
        """What `<<` brings: of several mappings the first that has a field wins."""
        value = self.value(node)
        found: dict[str, Value] = {}
        for item in value.content if isinstance(value.content, tuple) else (value,):
            if not isinstance(item.content, MappingProxyType):
                raise self._refused(node, "<< brings something that is no mapping", "Name the anchor of a mapping.")
            found = {**item.content, **found}
        return found

    def _refused(self, node: yaml.Node, message: str, hint: str) -> _NotPlainError:
        return _NotPlainError(Problem(self.file, _line(node), "", message, hint))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _syntax_problem(name: str, error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        said = ", ".join(filter(None, (error.context, error.problem)))
        return Problem(name, mark.line + 1 if mark else 0, "", f"is not YAML: {said}", "Mend the syntax there.")
    return Problem(name, 0, "", f"is not YAML: {str(error).splitlines()[0]}", "Save the file as plain text.")
