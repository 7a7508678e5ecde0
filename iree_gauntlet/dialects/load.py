"""From spec files and a selection to cases: pairs benchmarks with their regressions, finds duplicates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Case, Expectation, Module, Stage
from iree_gauntlet.dialects.selection import Include, MarkerExpression
from iree_gauntlet.dialects.sharktank_benchmark import build_benchmark
from iree_gauntlet.dialects.sharktank_regression import Regression, build_regression
from iree_gauntlet.dialects.sharktank_schema import Benchmark
from iree_gauntlet.dialects.spec_file import nearest
from iree_gauntlet.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.cases import Origin
    from iree_gauntlet.dialects.trees import Spec
    from iree_gauntlet.targets import Target

__all__ = ["CaseSet", "ExpectedFailure", "load_cases"]


@dataclass(frozen=True, slots=True)
class ExpectedFailure:
    """An expected failure that a suite lists: a glob over `model/submodel`, a stage, a reason."""

    case: str
    stage: Stage
    reason: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class CaseSet:
    """What was selected.

    Attributes:
        cases: in the order of model, submodel, kind.
        required: cases that others' modules come from, of which only the compile runs.
        problems: of the files that were selected, and of those that they need.
        unknown_markers: words of marker expressions that no case has.
        known_markers: the markers that cases have.
    """

    cases: tuple[Case, ...]
    required: tuple[Case, ...]
    problems: tuple[Problem, ...]
    unknown_markers: tuple[str, ...] = ()
    known_markers: tuple[str, ...] = ()


class _Library:
    """Regressions by (name, target), built when first asked for."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._specs: dict[tuple[str, str], list[Spec]] = {}
        self._unread: dict[str, list[Spec]] = {}
        for spec in specs:
            if spec.document is None:
                for stem in {spec.stem, spec.submodel}:
                    self._unread.setdefault(f"{spec.model}_{stem}", []).append(spec)
            elif not isinstance(spec.document, Benchmark):
                for family in spec.families:
                    self._specs.setdefault((f"{spec.model}_{spec.submodel}", family), []).append(spec)
        self._built: dict[tuple[str, str, Target], Regression | None] = {}
        self.problems: set[Problem] = set()

    def build(self, spec: Spec, target: Target) -> Regression | None:
        key = (spec.name, str(spec.path), target)
        if key not in self._built:
            self._built[key], problems = build_regression(spec, target)
            self.problems.update(problems)
        return self._built[key]

    def find(self, name: str, target: Target) -> Regression | None:
        specs = self._specs.get((name, target.family), [])
        if not specs:
            # It may be the one that is meant: what keeps it from being read is what the user has to know.
            unread = [spec for spec in self._unread.get(name, []) if target.family in spec.families]
            self.problems.update(problem for spec in unread for problem in spec.problems)
            return None
        for other in specs[1:]:
            self.problems.add(_defined_twice(f"module {name}", target, other.name, specs[0].name))
        return self.build(specs[0], target)


def load_cases(
    specs: Sequence[Spec],
    includes: Sequence[Include],
    targets: Sequence[Target],
    expected_failures: Sequence[ExpectedFailure] = (),
    device: str = "",
) -> CaseSet:
    """The cases that a selection means on some targets.

    Args:
        specs: everything that was read; benchmarks find their modules among all of them.
        includes: a spec is selected by matching any.
        targets: each family at most once.
        expected_failures: a suite's list, added to what the specs say.
        device: replaces the specs' devices where given.
    """
    expressions = {include: MarkerExpression(include.markers) for include in includes}
    library = _Library(specs)
    problems: set[Problem] = set()
    cases: list[Case] = []
    known: set[str] = set()
    for spec in specs:
        chosen = [include for include in includes if include.matches_spec(spec)]
        if not chosen:
            continue
        wanted = [target for target in targets if target.family in spec.families]
        if wanted:
            problems.update(spec.problems)
        if spec.document is None:
            continue
        for target in wanted:
            for case in _build(spec, target, library, problems):
                known |= case.markers
                if any(expressions[include].matches(case.markers) for include in chosen):
                    cases.append(_adjust(case, expected_failures, device))
    problems |= library.problems | _duplicates(cases) | _aimless(expected_failures, specs)
    cases.sort(key=lambda case: (case.model, case.submodel, case.target, case.kind != "quality", case.id))
    words = frozenset().union(*(expression.words for expression in expressions.values()))
    return CaseSet(
        tuple(cases),
        _required(cases, library, expected_failures, device),
        tuple(sorted(problems)),
        tuple(sorted(words - known)),
        tuple(sorted(known)),
    )


def _build(spec: Spec, target: Target, library: _Library, problems: set[Problem]) -> list[Case]:
    if not isinstance(spec.document, Benchmark):
        regression = library.build(spec, target)
        return [case for case in (regression.case, regression.beside) if case] if regression else []
    case, found = build_benchmark(spec, target, lambda name: library.find(name, target))
    problems.update(found)
    return [case] if case else []


def _adjust(case: Case, expected: Sequence[ExpectedFailure], device: str) -> Case:
    name = f"{case.model}/{case.submodel}"
    added = tuple(
        Expectation(item.stage, item.reason, item.origin) for item in expected if fnmatchcase(name, item.case)
    )
    return replace(
        case,
        expectations=(*added, *case.expectations),
        device=device if device and case.device else case.device,
    )


def _required(
    cases: Sequence[Case], library: _Library, expected: Sequence[ExpectedFailure], device: str
) -> tuple[Case, ...]:
    """The regressions whose modules the cases use, where they were not selected themselves."""
    have = {module.id for case in cases if case.kind != "benchmark" for module in case.modules}
    found: dict[str, Case] = {}
    for case in cases:
        for module in case.modules:
            if module.id in have or not _defined_elsewhere(case, module):
                continue
            regression = library.find(module.name, case.target)
            if regression is not None:
                found[regression.case.id] = _adjust(regression.case, expected, device)
    return tuple(found[key] for key in sorted(found))


def _defined_elsewhere(case: Case, module: Module) -> bool:
    return bool(module.program.url) and module.origin.file != case.origin.file


def _duplicates(cases: Sequence[Case]) -> set[Problem]:
    first: dict[str, Case] = {}
    problems: set[Problem] = set()
    for case in cases:
        kind = "benchmark" if case.kind == "benchmark" else "regression"
        key = f"{case.chain}:{kind}"
        other = first.setdefault(key, case)
        if other.origin.file != case.origin.file:
            name = f"{case.model}/{case.submodel}"
            problems.add(_defined_twice(name, case.target, case.origin.file, other.origin.file))
    return problems


def _aimless(expected: Sequence[ExpectedFailure], specs: Sequence[Spec]) -> set[Problem]:
    """Expected failures whose glob fits no spec at all: misspelt, or left behind."""
    names = {f"{spec.model}/{spec.submodel}" for spec in specs}
    problems: set[Problem] = set()
    for item in expected:
        if not any(fnmatchcase(name, item.case) for name in names):
            near = nearest(item.case, names)
            message = f"{item.case!r} fits no spec" + (f"; did you mean {near!r}?" if near else "")
            hint = "Write a glob over model/submodel, or remove the entry."
            problems.add(Problem(item.origin.file, 0, f"{item.origin.field}.case", message, hint))
    return problems


def _defined_twice(name: str, target: Target, file: str, first: str) -> Problem:
    message = f"{name} on {target.name} is already defined by {first}"
    return Problem(file, 0, "", message, "Rename or remove one of the two.")
