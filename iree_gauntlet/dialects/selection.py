"""Selection of specs and cases by a command: globs over names, marker expressions, and the error if none matches."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NoReturn, Protocol

from iree_gauntlet.dialects.spec_file import did_you_mean
from iree_gauntlet.errors import NothingSelectedError, UsageError
from iree_gauntlet.formatting import list_first
from iree_gauntlet.requests import suggest_each
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


_MAX_DEPTH = 100  # The limit on parentheses and `not` is well below what the interpreter's stack allows.
# Markers may contain the characters that pytest allows.
_OPERATORS = {"and", "or", "not", "(", ")"}
_TOKEN = re.compile(r"\s*(?:(\()|(\))|([\w:+\-.\[\]\\/]+))")


class Selectable(Protocol):
    """The fields of specs that selection uses, in every dialect; each `AnySpec` has them."""

    @property
    def model(self) -> str:
        """The name that `--model` selects."""

    @property
    def submodel(self) -> str:
        """The name that `--submodel` selects."""

    @property
    def stem(self) -> str:
        """The name that `--filename` selects."""

    @property
    def document(self) -> object:
        """The parsed content; None if it is invalid."""

    @property
    def families(self) -> tuple[str, ...]:
        """The families of targets for which the spec may be."""

    @property
    def is_test(self) -> bool:
        """True for a test."""


@dataclass(frozen=True, slots=True)
class Include:
    """Globs, all of which a spec must match; `*` matches everything."""

    model: str = "*"
    submodel: str = "*"
    filename: str = "*"
    markers: str = ""
    outer: Include | None = None

    def matches_spec(self, spec: Selectable) -> bool:
        """Return whether the names of a spec match; markers are ignored."""
        # Match an invalid file by its stem, too, so that its problems are shown.
        submodels = {spec.submodel} | ({spec.stem} if spec.document is None else set())
        return (
            (self.outer is None or self.outer.matches_spec(spec))
            and fnmatchcase(spec.model, self.model)
            and any(fnmatchcase(name, self.submodel) for name in submodels)
            and fnmatchcase(spec.stem, self.filename)
        )


class MarkerExpression:
    """A boolean expression over words with `and`, `or`, `not` and parentheses, like pytest's `-m`; or a UsageError."""

    def __init__(self, text: str) -> None:
        self.text = text
        tokens: list[str] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if not match:
                self._fail(f"{text[position:].strip()[0]!r} is not a marker, 'and', 'or', 'not' or a parenthesis")
            tokens.append(match.group().strip())
            position = match.end()
        self.words = set(tokens) - _OPERATORS
        if sum(symbol in ("(", "not") for symbol in tokens) > _MAX_DEPTH:
            self._fail(f"more than {_MAX_DEPTH} uses of 'not' or '('")
        self._check_order(tokens)
        # Compile as Python, whose operators mean the same. An empty expression matches everything.
        terms = [symbol if symbol in _OPERATORS else f"({symbol!r} in markers)" for symbol in tokens]
        self._code = compile(" ".join(terms) or "True", "<markers>", "eval")

    def matches(self, markers: Collection[str]) -> bool:
        """Return whether a set of markers satisfies the expression."""
        return bool(eval(self._code, {"__builtins__": {}, "markers": markers}))  # noqa: S307 - the tokens are checked

    def _check_order(self, tokens: Sequence[str]) -> None:
        depth, expects_marker = 0, True
        for symbol in tokens:
            if expects_marker and symbol in ("not", "("):
                depth += symbol == "("
            elif expects_marker:
                if symbol in _OPERATORS:
                    self._fail(f"expected a marker, found {symbol!r}")
                expects_marker = False
            elif symbol in ("and", "or"):
                expects_marker = True
            elif symbol == ")" and depth:
                depth -= 1
            else:
                self._fail("a parenthesis is not closed" if depth else f"unexpected {symbol!r}")
        if tokens and expects_marker:
            self._fail("expected a marker, found the end")
        if depth:
            self._fail("a parenthesis is not closed")

    def _fail(self, message: str) -> NoReturn:
        raise UsageError(
            f"marker expression {self.text!r}: {message}", "For example: --markers 'cpu and not (slow or vision)'."
        )


def explain_no_match(
    includes: Sequence[Include],
    specs: Iterable[Selectable],
    families: Collection[str],
    markers: Collection[str] = (),
    other_targets: Collection[str] = (),
    invalid_files: Sequence[str] = (),
) -> NothingSelectedError:
    """Make the error for a selection that matches nothing, with the existing and the nearest names."""
    tests = [spec for spec in specs if spec.is_test]
    outer_includes = [include.outer or Include() for include in includes]
    suite_tests = [spec for spec in tests if any(include.matches_spec(spec) for include in outer_includes)]
    # Until its modules are read, a torch model's test has all families; `other_targets` has the target found then.
    target_tests = [
        spec
        for spec in suite_tests
        if set(spec.families) & set(families) and not (other_targets and set(spec.families) == set(FAMILIES))
    ]
    models = sorted({spec.model for spec in target_tests})
    other_models = sorted({spec.model for spec in suite_tests} - set(models))
    lines = [text for include in includes if (text := find_unmatched(include, target_tests))]
    if markers:
        lines.append(f"Markers of what otherwise matches: {_format_names(sorted(markers))}.")
    if other_targets:
        targets = _format_names(sorted(other_targets))
        lines.append(f"What otherwise matches is for {targets}: select one with --target, or add a target to its spec.")
    lines.append(f"Models for {', '.join(sorted(families))}: {_format_names(models)}.")
    if other_models and not models:
        lines.append(f"Models for other targets: {_format_names(other_models)}; see --target.")
    if len(suite_tests) < len(tests):
        outside_models = sorted({spec.model for spec in tests} - {spec.model for spec in suite_tests})
        lines.append(f"Models outside the suite: {_format_names(outside_models)}.")
    if invalid_files:
        lines.append(f"Files that cannot be used: {_format_names(invalid_files)}; `lint` shows why.")
    lines.append("`list` shows every model, submodel and marker.")
    options = "; ".join(dict.fromkeys(filter(None, map(_format_options, includes))))
    target = "" if set(families) >= set(FAMILIES) else f" for target {' or '.join(sorted(families))}"
    message = f"no case matches {options}" if options else f"no case{target}" if target else "there is no case"
    return NothingSelectedError(f"nothing selected: {message}", "\n  ".join(dict.fromkeys(lines)))


def find_unmatched_globs(includes: Sequence[Include], specs: Sequence[Selectable]) -> list[Include]:
    """Find includes with a mistyped glob: one of several globs for a name, with which no include matches a spec."""
    idle_includes: list[Include] = []
    for name in ("model", "submodel", "filename"):
        by_glob: dict[str, list[Include]] = {}
        for include in includes:
            by_glob.setdefault(getattr(include, name), []).append(include)
        for same_glob in by_glob.values() if len(by_glob) > 1 else ():
            if not any(include.matches_spec(spec) for include in same_glob for spec in specs if spec.is_test):
                idle_includes += same_glob
    return idle_includes


def find_unmatched(include: Include, specs: Sequence[Selectable]) -> str:
    """Describe the globs of an include that match no spec, with similar names; empty if each glob matches a spec."""
    models = sorted({spec.model for spec in specs})
    if not any(fnmatchcase(model, include.model) for model in models):
        return _describe_unmatched("model", include.model, models) if include.model != "*" else ""
    model_specs = [spec for spec in specs if fnmatchcase(spec.model, include.model)]
    lines = []
    for option, glob, names in (
        ("submodel", include.submodel, sorted({spec.submodel for spec in model_specs})),
        ("filename", include.filename, sorted({spec.stem for spec in model_specs})),
    ):
        if model_specs and not any(fnmatchcase(name, glob) for name in names):
            lines.append(f"{_describe_unmatched(option, glob, names)} {include.model!r} has: {_format_names(names)}.")
    return "\n  ".join(lines)


def _describe_unmatched(option: str, glob: str, names: Sequence[str]) -> str:
    suggestions = suggest_each(option, glob, names)
    return f"No {option} {glob!r}{f'. {suggestions}.' if suggestions else did_you_mean(glob, names) or '.'}"


def _format_options(include: Include) -> str:
    parts = [("--model", include.model), ("--submodel", include.submodel), ("--filename", include.filename)]
    words = [word for option, value in parts if value != "*" for word in (option, value)]
    return shlex.join([*words, *(["--markers", include.markers] if include.markers else [])])


def _format_names(names: Sequence[str]) -> str:
    return list_first(names, 30) or "none"
