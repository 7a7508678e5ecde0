"""Hand-written YAML files: plain values, their lines, and validation by a pydantic model.

Anchors, aliases and merge keys (`<<`) work as in YAML 1.1. Duplicate fields are errors, although YAML readers take the
last one. Numbers whose value differs from their look are errors too: YAML reads 010 as 8, and 2:30 as 150.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from iree_gauntlet.dialects.spec_file import make_problems, read_text
from iree_gauntlet.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


Model = TypeVar("Model", bound=BaseModel)

_TAG = "tag:yaml.org,2002:"
_MAX_SCALAR_CHARS = 60
_PLAIN_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A parsed YAML file; the nodes below `root` have their positions."""

    name: str
    kind: str
    content: object
    root: yaml.Node
    duplicate_fields: tuple[Problem, ...]

    def validate(self, model: type[Model], context: object = None) -> Model:
        """Validate the content as a model; SpecError with all problems of its fields."""
        problems = list(self.duplicate_fields)
        try:
            document = model.model_validate(self.content, context=context)
        except ValidationError as error:
            problems += make_problems(error, model, self.name, self.find_line, self._read_scalar)
        if problems:
            raise SpecError(problems, self.kind)
        return document

    def find_line(self, path: Sequence[str | int]) -> int:
        """Return the line (from 1) of a field's name or a list's item; if it is absent, that of its nearest parent."""
        return self._find(path)[1]

    def _read_scalar(self, path: Sequence[str | int]) -> str:
        """Return a scalar, such as a string or number, as written in the file; empty for long or other values."""
        node, _ = self._find(path)
        return str(node.value) if isinstance(node, yaml.ScalarNode) and len(node.value) <= _MAX_SCALAR_CHARS else ""

    def _find(self, path: Sequence[str | int]) -> tuple[yaml.Node, int]:
        node, line = self.root, _count_line(self.root)
        for part in path:
            children: dict[object, tuple[yaml.Node, int]] = {}
            if isinstance(node, yaml.MappingNode):
                # The mapping's own pairs come after the pairs from `<<`, and override them.
                children = {key.value: (value, _count_line(key)) for key, value in node.value}
            elif isinstance(node, yaml.SequenceNode):
                children = {index: (item, _count_line(item)) for index, item in enumerate(node.value)}
            if part not in children:
                break
            node, line = children[part]
        return node, line


def read_yaml(path: Path, kind: str, example: str) -> YamlFile:
    """Read a YAML file; SpecError if it cannot be read, is not YAML, or contains more than plain data."""
    name = str(path)
    try:
        loader = _Loader(read_text(path, name, kind))
        root = loader.get_single_node()
        content = loader.construct_document(root) if root else None
    except RecursionError as error:
        raise SpecError([Problem(name, 0, "", "is nested too deeply", "Look for unclosed brackets.")], kind) from error
    except yaml.YAMLError as error:
        raise SpecError([_explain_syntax(name, error)], kind) from error
    if root is None:
        raise SpecError([Problem(name, 0, "", "is empty", f"See {example} for an example.")], kind)
    if isinstance(content, dict):
        # Editors use this key to find the fields' descriptions.
        content.pop("$schema", None)
    duplicates = tuple(
        Problem(name, line, field, message, "Remove one of them.") for line, field, message in loader.duplicate_fields
    )
    return YamlFile(name, kind, content, root, duplicates)


@dataclass(frozen=True, slots=True)
class _UnusualScalar:
    """A scalar that no field accepts, such as a date, or a number whose value differs from its text."""

    text: str

    def __repr__(self) -> str:
        return self.text


class _Loader(yaml.SafeLoader):
    """A loader that records duplicate fields of mappings: line, name, message."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicate_fields: list[tuple[int, str, str]] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), _count_line(key)
            if name in lines:
                self.duplicate_fields.append((line, name, f"this field is already on line {lines[name]}"))
            lines.setdefault(name, line)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge the mappings of `<<`; the first mapping wins, as YAML requires (in PyYAML 6.0.4 the last wins)."""
        for index, (key, merge_value) in enumerate(node.value):
            if key.tag == f"{_TAG}merge" and isinstance(merge_value, yaml.SequenceNode):
                if not all(isinstance(mapping, yaml.MappingNode) for mapping in merge_value.value):
                    break
                pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
                for mapping in reversed(merge_value.value):
                    self.flatten_mapping(mapping)
                    pairs |= {str(pair[0].value): pair for pair in mapping.value}
                node.value[index] = key, yaml.MappingNode(f"{_TAG}map", list(pairs.values()))
        super().flatten_mapping(node)

    def construct_plain(self, node: yaml.ScalarNode) -> object:
        """Construct a value as YAML defines it; return an `_UnusualScalar` if its text is unusual."""
        text = str(self.construct_scalar(node))
        kind = node.tag.removeprefix(_TAG)
        is_usual = kind != "timestamp" and (kind != "int" or _PLAIN_INTEGER.fullmatch(text))
        if not is_usual or self.resolve(yaml.ScalarNode, text, (True, False)) != node.tag:  # type: ignore[no-untyped-call]
            return _UnusualScalar(text)
        return yaml.SafeLoader.yaml_constructors[node.tag](self, node)


for _name in ("null", "bool", "int", "float", "timestamp"):
    _Loader.add_constructor(f"{_TAG}{_name}", _Loader.construct_plain)


def _count_line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _explain_syntax(name: str, error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        message = ", ".join(filter(None, (error.context, error.problem)))
        return Problem(name, mark.line + 1 if mark else 0, "", f"is not YAML: {message}", "Fix the syntax there.")
    return Problem(name, 0, "", f"is not YAML: {str(error).splitlines()[0]}", "Save the file as plain text.")
