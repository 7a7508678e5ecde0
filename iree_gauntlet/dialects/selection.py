"""Which specs and cases a command means: globs over names, marker expressions, and what to say when none fits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NoReturn

from iree_gauntlet.dialects.spec_file import nearest
from iree_gauntlet.errors import NothingSelectedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from iree_gauntlet.dialects.trees import Spec

__all__ = ["Include", "MarkerExpression", "no_match"]

_TOKEN = re.compile(r"\s*(?:(\()|(\))|([A-Za-z0-9_][A-Za-z0-9_.\-]*))")


@dataclass(frozen=True, slots=True)
class Include:
    """Globs that a spec has to match, all of them; `*` matches everything.

    Attributes:
        within: another selection that a spec has to match too.
    """

    model: str = "*"
    submodel: str = "*"
    filename: str = "*"
    markers: str = ""
    within: Include | None = None

    def matches_spec(self, spec: Spec) -> bool:
        """Whether the names of a spec match; markers are not looked at.

        A file that could not be understood is matched by either reading of its name, so that its problems are
        shown to whoever selects it.
        """
        submodels = {spec.submodel} | ({spec.stem} if spec.document is None else set())
        return (
            (self.within is None or self.within.matches_spec(spec))
            and fnmatchcase(spec.model, self.model)
            and any(fnmatchcase(name, self.submodel) for name in submodels)
            and fnmatchcase(spec.stem, self.filename)
        )


class MarkerExpression:
    """A boolean expression over words: `and`, `or`, `not`, parentheses; as pytest's `-m`.

    Raises:
        UsageError: the expression cannot be read.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = self._split(text)
        self._position = 0
        self._words: set[str] = set()
        if self._tokens:
            self._evaluate_or(frozenset())
            if self._position != len(self._tokens):
                self._fail(f"unexpected {self._tokens[self._position]!r}")

    @property
    def words(self) -> frozenset[str]:
        """The markers that it names."""
        return frozenset(self._words)

    def matches(self, markers: Collection[str]) -> bool:
        """Whether a set of markers satisfies it; an empty expression matches everything."""
        if not self._tokens:
            return True
        self._position = 0
        return self._evaluate_or(frozenset(markers))

    def _split(self, text: str) -> list[str]:
        tokens: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if not match:
                self._fail(f"{text[position:].strip()[0]!r} is no marker, 'and', 'or', 'not' or parenthesis")
            tokens.append(match.group().strip())
            position = match.end()
        return tokens

    def _peek(self) -> str:
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def _evaluate_or(self, markers: frozenset[str]) -> bool:
        result = self._evaluate_and(markers)
        while self._peek() == "or":
            self._position += 1
            right = self._evaluate_and(markers)
            result = result or right
        return result

    def _evaluate_and(self, markers: frozenset[str]) -> bool:
        result = self._evaluate_not(markers)
        while self._peek() == "and":
            self._position += 1
            right = self._evaluate_not(markers)
            result = result and right
        return result

    def _evaluate_not(self, markers: frozenset[str]) -> bool:
        word = self._peek()
        self._position += 1
        if word == "not":
            return not self._evaluate_not(markers)
        if word == "(":
            result = self._evaluate_or(markers)
            if self._peek() != ")":
                self._fail("a parenthesis is not closed")
            self._position += 1
            return result
        if word in ("", ")", "and", "or"):
            self._fail(f"expected a marker, found {word or 'the end'!r}")
        self._words.add(word)
        return word in markers

    def _fail(self, message: str) -> NoReturn:
        raise UsageError(
            f"marker expression {self.text!r}: {message}",
            "Write for example: --markers 'cpu and not (slow or vision)'.",
        )


def no_match(includes: Sequence[Include], specs: Iterable[Spec], families: Collection[str]) -> NothingSelectedError:
    """The error for a selection that matches nothing: what exists, and the nearest names."""
    known = sorted({(spec.model, spec.submodel) for spec in specs if set(spec.families) & set(families)})
    elsewhere = sorted({(spec.model, spec.submodel) for spec in specs} - set(known))
    wanted = "; ".join(_describe(include) for include in includes) or "everything"
    models = sorted({model for model, _ in known})
    lines = []
    for include in includes:
        if not any(fnmatchcase(model, include.model) for model in models):
            near = nearest(include.model, models)
            lines.append(f"No model {include.model!r}" + (f"; did you mean {near!r}?" if near else "."))
            continue
        submodels = sorted({name for model, name in known if fnmatchcase(model, include.model)})
        if not any(fnmatchcase(name, include.submodel) for name in submodels):
            near = nearest(include.submodel, submodels)
            hint = f"; did you mean {near!r}?" if near else "."
            lines.append(f"No submodel {include.submodel!r} of {include.model!r}{hint} It has: {_listed(submodels)}.")
    lines.append(f"Models for {', '.join(sorted(families))}: {_listed(models)}.")
    if not known and elsewhere:
        lines.append(f"Models for other targets: {_listed(sorted({model for model, _ in elsewhere}))}; see --target.")
    lines.append("`list` shows every model, submodel and marker.")
    return NothingSelectedError(f"nothing selected: no case matches {wanted}", "\n  ".join(lines))


def _describe(include: Include) -> str:
    parts = [("--model", include.model), ("--submodel", include.submodel), ("--filename", include.filename)]
    words = [f"{option} {value}" for option, value in parts if value != "*"]
    words += [f"--markers {include.markers!r}"] if include.markers else []
    return " ".join(words) or "everything"


def _listed(names: Sequence[str], most: int = 30) -> str:
    shown = ", ".join(names[:most]) or "none"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
