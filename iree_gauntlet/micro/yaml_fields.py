"""Reading the fields of a YAML mapping: each with its type, its default and what is wrong with it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from iree_gauntlet.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from iree_gauntlet.micro.yaml_values import Value

__all__ = ["Fields", "Report", "kind_of"]

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Report:
    """What is wrong with a file.

    Attributes:
        file: as the user would type it.
        problems: found up to now.
    """

    file: str
    problems: list[Problem] = field(default_factory=list)

    def add(self, line: int, path: str, message: str, hint: str = "") -> None:
        """Notes a problem with a field."""
        self.problems.append(Problem(self.file, line, path, message, hint))

    def asked(self, line: int, path: str, ask: Callable[[str], Made], text: str) -> Made | None:
        """What is found for a text; None where it is refused, which is noted."""
        try:
            return ask(text)
        except UsageError as error:
            self.add(line, path, error.what, error.hint)
            return None


class Fields:
    """The fields of a mapping.

    Every method takes one of them by its name; `finish` says which were taken by none. A field without a value is
    one that is not there. What is wrong is noted in the report, and the default taken.

    Args:
        value: the mapping; anything else is a problem, and has no fields.
        path: of the mapping, empty for the document.
        report: where problems are noted.
    """

    def __init__(self, value: Value, path: str, report: Report) -> None:
        self.line = value.line
        self.report = report
        self._path = path
        self._taken: set[str] = set()
        self._values: dict[str, Value] = {}
        self.usable = isinstance(value.content, Mapping)
        if isinstance(value.content, Mapping):
            self._values = dict(value.content)
        else:
            report.add(value.line, path, f"expected fields with values, found {kind_of(value)}")

    def path(self, name: str) -> str:
        """The dotted path of a field."""
        return f"{self._path}.{name}" if self._path else name

    def line_of(self, name: str) -> int:
        """Where a field stands; the mapping where it does not."""
        return self._values[name].line if name in self._values else self.line

    def add(self, name: str, message: str, hint: str = "") -> None:
        """Notes a problem with a field."""
        self.report.add(self.line_of(name), self.path(name), message, hint)

    def take(self, name: str) -> Value | None:
        """The value of a field; None where it has none."""
        self._taken.add(name)
        value = self._values.get(name)
        return None if value is None or value.content is None else value

    def text(self, name: str, default: str) -> str:
        """A string that is not empty."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value.content, str):
            quoted = f'write it in quotes, "{value.written}"' if value.written else ""
            self.add(name, f"expected a string, found {kind_of(value)}", quoted)
            return default
        if not value.content.strip() or not value.content.isprintable():
            self.add(name, f"expected a string that can be read, found {value.content!r}")
            return default
        return value.content

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value.content, bool):
            self.add(name, f"expected true or false, found {kind_of(value)}")
            return default
        return value.content

    def whole(self, name: str, least: int, most: int) -> int | None:
        """A whole number of a range, both ends included; None where there is none."""
        value = self.take(name)
        if value is None:
            return None
        number = self.whole_of(value, least, most)
        if number is None:
            self.add(name, f"expected a whole number from {least} to {most}, found {kind_of(value)}")
        return number

    @staticmethod
    def whole_of(value: Value, least: int, most: int) -> int | None:
        """A whole number of a range, written without leading zeros and separators; None where it is none."""
        number = value.content
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
            return None
        return number if value.written == str(number) else None

    def choice(self, name: str, choices: Mapping[str, Made], default: Made) -> Made:
        """One of some words, as what it stands for."""
        text = self.text(name, "")
        if text in choices or not text:
            return choices.get(text, default)
        self.add(name, f"expected {_listed(choices)}, found {text!r}", _meant(text, choices))
        return default

    def items(self, name: str, what: str, *, needed: str = "", hint: str = "") -> list[tuple[str, Value]]:
        """The entries of a list with their paths.

        Args:
            name: of the field.
            what: they are.
            needed: why there have to be some; empty where there need not.
            hint: for that.
        """
        value = self.take(name)
        if value is None or value.content == ():
            if needed and self.usable:
                self.add(name, f"{'it is missing' if value is None else 'the list is empty'}: {needed}", hint)
            return []
        if not isinstance(value.content, tuple):
            self.add(name, f"expected a list of {what}, found {kind_of(value)}")
            return []
        return [(f"{self.path(name)}[{index}]", item) for index, item in enumerate(value.content)]

    def finish(self) -> None:
        """Notes every field that was not taken."""
        for name in self._values:
            if name not in self._taken:
                hint = _meant(name, self._taken) or f"Fields here are {', '.join(sorted(self._taken))}."
                self.add(name, "there is no such field", hint)


def kind_of(value: Value) -> str:
    """A value in messages: `the number 5`, `a list`."""
    content = value.content
    if isinstance(content, str):
        return repr(content if len(content) <= 60 else f"{content[:60]}…")
    if isinstance(content, tuple):
        return "a list"
    if isinstance(content, Mapping):
        return "fields with values"
    if content is None:
        return "nothing"
    return value.written if isinstance(content, bool) else f"the number {value.written[:60]}"


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _meant(text: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(text, list(names), n=1)
    return f"Did you mean {near[0]}?" if near else ""
