"""Which specs and cases a command means: globs over names, marker expressions, and what to say when none fits."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NoReturn, Protocol

from iree_gauntlet.dialects.spec_file import did_you_mean
from iree_gauntlet.errors import NothingSelectedError, UsageError
from iree_gauntlet.formatting import listed
from iree_gauntlet.requests import suggest_each
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


_MOST_DEPTH = 100  # of parentheses and `not`, well below what the interpreter's stack allows
# A marker may hold what it may for pytest.
_OPERATORS = {"and", "or", "not", "(", ")"}
_TOKEN = re.compile(r"\s*(?:(\()|(\))|([\w:+\-.\[\]\\/]+))")


class Selectable(Protocol):
    """What is asked of a spec, whatever its dialect; an `AnySpec`."""

    @property
    def model(self) -> str:
        """What `--model` selects."""

    @property
    def submodel(self) -> str:
        """What `--submodel` selects."""

    @property
    def stem(self) -> str:
        """What `--filename` selects."""

    @property
    def document(self) -> object:
        """What it says; None where that cannot be understood."""

    @property
    def families(self) -> tuple[str, ...]:
        """Families of targets that it may be for."""

    @property
    def is_test(self) -> bool:
        """Whether it is one."""


@dataclass(frozen=True, slots=True)
class Include:
    """Globs that a spec has to match, all of them; `*` matches everything."""

    model: str = "*"
    submodel: str = "*"
    filename: str = "*"
    markers: str = ""
    within: Include | None = None

    def matches_spec(self, spec: Selectable) -> bool:
        """Whether the names of a spec match; markers are not looked at."""
        # A file that could not be understood is matched by either reading of its name: its problems are shown.
        submodels = {spec.submodel} | ({spec.stem} if spec.document is None else set())
        return (
            (self.within is None or self.within.matches_spec(spec))
            and fnmatchcase(spec.model, self.model)
            and any(fnmatchcase(name, self.submodel) for name in submodels)
            and fnmatchcase(spec.stem, self.filename)
        )


class MarkerExpression:
    """A boolean expression over words, as pytest's `-m`: `and`, `or`, `not`, parentheses; else a UsageError."""

    def __init__(self, text: str) -> None:
        self.text = text
        tokens: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if not match:
                self._fail(f"{text[position:].strip()[0]!r} is not a marker, 'and', 'or', 'not' or parenthesis")
            tokens.append(match.group().strip())
            position = match.end()
        self.words = set(tokens) - _OPERATORS
        if sum(token in ("(", "not") for token in tokens) > _MOST_DEPTH:
            self._fail(f"more than {_MOST_DEPTH} times 'not' or '('")
        self._check_order(tokens)
        # Python's words mean the same; an empty expression matches everything.
        asked = [token if token in _OPERATORS else f"({token!r} in markers)" for token in tokens]
        self._code = compile(" ".join(asked) or "True", "<markers>", "eval")

    def matches(self, markers: Collection[str]) -> bool:
        """Whether a set of markers satisfies it."""
        return bool(eval(self._code, {"__builtins__": {}, "markers": markers}))  # noqa: S307 - of what is checked

    def _check_order(self, tokens: Sequence[str]) -> None:
        depth, before_marker = 0, True
        for word in tokens:
            if before_marker and word in ("not", "("):
                depth += word == "("
            elif before_marker:
                if word in _OPERATORS:
                    self._fail(f"expected a marker, found {word!r}")
                before_marker = False
            elif word in ("and", "or"):
                before_marker = True
            elif word == ")" and depth:
                depth -= 1
            else:
                self._fail("a parenthesis is not closed" if depth else f"unexpected {word!r}")
        if tokens and before_marker:
            self._fail("expected a marker, found 'the end'")
        if depth:
            self._fail("a parenthesis is not closed")

    def _fail(self, message: str) -> NoReturn:
        raise UsageError(
            f"marker expression {self.text!r}: {message}",
            "Write for example: --markers 'cpu and not (slow or vision)'.",
        )


def explain_no_match(
    includes: Sequence[Include],
    specs: Iterable[Selectable],
    families: Collection[str],
    markers: Collection[str] = (),
    elsewhere: Collection[str] = (),
    unread: Sequence[str] = (),
) -> NothingSelectedError:
    """The error for a selection that matches nothing: what exists, and the nearest names."""
    everywhere = [spec for spec in specs if spec.is_test]
    within = [include.within or Include() for include in includes]
    inside = [spec for spec in everywhere if any(include.matches_spec(spec) for include in within)]
    # Tests of torch models may be for any target until their modules are read; then `elsewhere` says for which.
    here = [
        spec
        for spec in inside
        if set(spec.families) & set(families) and not (elsewhere and set(spec.families) == set(FAMILIES))
    ]
    models = sorted({spec.model for spec in here})
    others = sorted({spec.model for spec in inside} - set(models))
    lines = [text for include in includes if (text := find_unmatched(include, here))]
    if markers:
        lines.append(f"Markers of what matches otherwise: {_format_names(sorted(markers))}.")
    if elsewhere:
        meant = _format_names(sorted(elsewhere))
        lines.append(f"What matches otherwise is for {meant}: name it with --target, or add a target to its spec.")
    lines.append(f"Models for {', '.join(sorted(families))}: {_format_names(models)}.")
    if others and not models:
        lines.append(f"Models for other targets: {_format_names(others)}; see --target.")
    if len(inside) < len(everywhere):
        outside = sorted({spec.model for spec in everywhere} - {spec.model for spec in inside})
        lines.append(f"Models outside the suite: {_format_names(outside)}.")
    if unread:
        lines.append(f"Files that cannot be used: {_format_names(unread)}; `lint` shows why.")
    lines.append("`list` shows every model, submodel and marker.")
    wanted = "; ".join(dict.fromkeys(filter(None, map(_describe, includes))))
    target = "" if set(families) >= set(FAMILIES) else f" for target {' or '.join(sorted(families))}"
    what = f"no case matches {wanted}" if wanted else f"no case{target}" if target else "there is no case"
    return NothingSelectedError(f"nothing selected: {what}", "\n  ".join(dict.fromkeys(lines)))


def find_idle_globs(includes: Sequence[Include], specs: Sequence[Selectable]) -> list[Include]:
    """Those with a glob, one of several, that fits no spec in any of them: a slip among names that fit."""
    idle: list[Include] = []
    for name in ("model", "submodel", "filename"):
        by_glob: dict[str, list[Include]] = {}
        for include in includes:
            by_glob.setdefault(getattr(include, name), []).append(include)
        for own in by_glob.values() if len(by_glob) > 1 else ():
            if not any(include.matches_spec(spec) for include in own for spec in specs if spec.is_test):
                idle += own
    return idle


def find_unmatched(include: Include, specs: Sequence[Selectable]) -> str:
    """Which of its globs fits no spec, and what is spelled like it; empty where each of them fits one."""
    models = sorted({spec.model for spec in specs})
    if not any(fnmatchcase(model, include.model) for model in models):
        return _describe_unmatched("model", include.model, models) if include.model != "*" else ""
    chosen = [spec for spec in specs if fnmatchcase(spec.model, include.model)]
    lines = []
    for option, wanted, names in (
        ("submodel", include.submodel, sorted({spec.submodel for spec in chosen})),
        ("filename", include.filename, sorted({spec.stem for spec in chosen})),
    ):
        if chosen and not any(fnmatchcase(name, wanted) for name in names):
            lines.append(f"{_describe_unmatched(option, wanted, names)} {include.model!r} has: {_format_names(names)}.")
    return "\n  ".join(lines)


def _describe_unmatched(option: str, wanted: str, names: Sequence[str]) -> str:
    several = suggest_each(option, wanted, names)
    return f"No {option} {wanted!r}{f'. {several}.' if several else did_you_mean(wanted, names) or '.'}"


def _describe(include: Include) -> str:
    parts = [("--model", include.model), ("--submodel", include.submodel), ("--filename", include.filename)]
    words = [word for option, value in parts if value != "*" for word in (option, value)]
    return shlex.join([*words, *(["--markers", include.markers] if include.markers else [])])


def _format_names(names: Sequence[str]) -> str:
    return listed(names, 30) or "none"
