"""YAML files that people write: plain values, the line of each, and a pydantic model that says what they mean.

Anchors, aliases and merge keys (`<<`) work as YAML 1.1 has them. Two fields of one name, which YAML readers let the
last one win, are errors; so are numbers that YAML reads as others than they look: 010 is 8, and 2:30 is 150.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from iree_gauntlet.dialects.spec_file import problems_at, read_text
from iree_gauntlet.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


Model = TypeVar("Model", bound=BaseModel)

_TAG = "tag:yaml.org,2002:"
_LONGEST = 60
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class YamlFile:
    """A YAML file, read; the nodes below `root` know where they stand."""

    name: str
    kind: str
    content: object
    root: yaml.Node
    twice: tuple[Problem, ...]

    def as_(self, model: type[Model], context: object = None) -> Model:
        """What it means; SpecError with everything that is wrong with its fields."""
        problems = list(self.twice)
        try:
            meant = model.model_validate(self.content, context=context)
        except ValidationError as error:
            problems += problems_at(error, model, self.name, self.line_of, self._find_written)
        if problems:
            raise SpecError(problems, self.kind)
        return meant

    def line_of(self, path: Sequence[str | int]) -> int:
        """Line (1-based) of a field's name, or of the item of a list; its nearest parent's if absent."""
        return self._find(path)[1]

    def _find_written(self, path: Sequence[str | int]) -> str:
        """A string, number or the like as it stands in the file; empty for a long one, and for others."""
        node, _ = self._find(path)
        return str(node.value) if isinstance(node, yaml.ScalarNode) and len(node.value) <= _LONGEST else ""

    def _find(self, path: Sequence[str | int]) -> tuple[yaml.Node, int]:
        node, line = self.root, _count_line(self.root)
        for part in path:
            children: dict[object, tuple[yaml.Node, int]] = {}
            if isinstance(node, yaml.MappingNode):
                # What `<<` brought stands before what is written.
                children = {key.value: (value, _count_line(key)) for key, value in node.value}
            elif isinstance(node, yaml.SequenceNode):
                children = {index: (item, _count_line(item)) for index, item in enumerate(node.value)}
            if part not in children:
                break
            node, line = children[part]
        return node, line


def read_yaml(path: Path, kind: str, example: str) -> YamlFile:
    """Reads a YAML file; SpecError where it cannot be read, is no YAML, or holds more than plain data."""
    name = str(path)
    try:
        loader = _Loader(read_text(path, name, kind))
        root = loader.get_single_node()
        content = loader.construct_document(root) if root else None
    except RecursionError as error:
        raise SpecError([Problem(name, 0, "", "is nested too deeply", "Look for brackets left open.")], kind) from error
    except yaml.YAMLError as error:
        raise SpecError([_explain_syntax(name, error)], kind) from error
    if root is None:
        raise SpecError([Problem(name, 0, "", "is empty", f"See {example} for an example.")], kind)
    if isinstance(content, dict):
        # For editors: where they find what the fields mean.
        content.pop("$schema", None)
    twice = tuple(Problem(name, line, field, message, "Remove one of them.") for line, field, message in loader.twice)
    return YamlFile(name, kind, content, root, twice)


@dataclass(frozen=True, slots=True)
class _Odd:
    """A number that is another one than its text says, a date, or the like: no field takes it."""

    text: str

    def __repr__(self) -> str:
        return self.text


class _Loader(yaml.SafeLoader):
    """Notes the fields that a mapping has twice: line, name, message."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: list[tuple[int, str, str]] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name, line = str(key.value), _count_line(key)
            if name in lines:
                self.twice.append((line, name, f"this field is there already, at line {lines[name]}"))
            lines.setdefault(name, line)
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merges with `<<`. Of several mappings the first one wins, as YAML says; in PyYAML 6.0.4 the last one does."""
        for index, (key, merged) in enumerate(node.value):
            if key.tag == f"{_TAG}merge" and isinstance(merged, yaml.SequenceNode):
                if not all(isinstance(mapping, yaml.MappingNode) for mapping in merged.value):
                    break
                pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
                for mapping in reversed(merged.value):
                    self.flatten_mapping(mapping)
                    pairs |= {str(pair[0].value): pair for pair in mapping.value}
                node.value[index] = key, yaml.MappingNode(f"{_TAG}map", list(pairs.values()))
        super().flatten_mapping(node)

    def construct_plain(self, node: yaml.ScalarNode) -> object:
        """As YAML has it, where its text is the usual one."""
        text = str(self.construct_scalar(node))
        kind = node.tag.removeprefix(_TAG)
        usual = kind != "timestamp" and (kind != "int" or _WHOLE.fullmatch(text))
        if not usual or self.resolve(yaml.ScalarNode, text, (True, False)) != node.tag:  # type: ignore[no-untyped-call]
            return _Odd(text)
        return yaml.SafeLoader.yaml_constructors[node.tag](self, node)


for _name in ("null", "bool", "int", "float", "timestamp"):
    _Loader.add_constructor(f"{_TAG}{_name}", _Loader.construct_plain)


def _count_line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _explain_syntax(name: str, error: yaml.YAMLError) -> Problem:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        said = ", ".join(filter(None, (error.context, error.problem)))
        return Problem(name, mark.line + 1 if mark else 0, "", f"is not YAML: {said}", "Fix the syntax there.")
    return Problem(name, 0, "", f"is not YAML: {str(error).splitlines()[0]}", "Save the file as plain text.")
