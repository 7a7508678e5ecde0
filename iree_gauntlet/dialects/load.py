"""From spec files and a selection to cases, whatever their dialects; finds duplicates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from iree_gauntlet.cases import ArgumentOrder, Case, Expectation, FailureKind, Kind, Origin, Stage
from iree_gauntlet.dialects.locations import names_device, with_device
from iree_gauntlet.dialects.selection import Include, MarkerExpression
from iree_gauntlet.dialects.spec import Loaded, SourceFields, find_defined_twice
from iree_gauntlet.dialects.spec_file import did_you_mean
from iree_gauntlet.dialects.trees import DIALECTS
from iree_gauntlet.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from iree_gauntlet.cases import Argument, Parameters
    from iree_gauntlet.dialects.trees import AnySpec
    from iree_gauntlet.targets import Target


_SOURCES: dict[str, SourceFields] = {
    name: sources for dialect in DIALECTS.values() for name, sources in dialect.sources.items()
}
SOURCE_NAMES = frozenset().union(*(fields.names for fields in _SOURCES.values()))


@dataclass(frozen=True, slots=True)
class ExpectedFailure:
    """An expected failure that a suite lists: a glob over `model/submodel`; and as an `Expectation`."""

    case: str
    stage: Stage
    reason: str
    origin: Origin
    kinds: tuple[FailureKind, ...] = tuple(FailureKind)
    match: str = ""


@dataclass(frozen=True, slots=True)
class CaseSet:
    """What was selected.

    Attributes:
        cases: in the order of model, submodel, kind.
    """

    cases: tuple[Case, ...]
    required: tuple[Case, ...]
    problems: tuple[Problem, ...]
    unknown_markers: tuple[str, ...] = ()
    known_markers: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()
    left_out: tuple[Problem, ...] = ()
    unmatched: tuple[Problem, ...] = ()
    broken: tuple[Problem, ...] = ()


def load_cases(
    specs: Sequence[AnySpec],
    includes: Sequence[Include],
    targets: Sequence[Target],
    expected_failures: Sequence[ExpectedFailure] = (),
    device: str = "",
) -> CaseSet:
    """The cases that a selection means on some targets.

    Of the targets, each family is there at most once; without a chip, sharktank's specs get a default one, and torch
    models are meant whatever theirs. A device replaces those of the specs.
    """
    loaded = Loaded(targets, {include: MarkerExpression(include.markers) for include in includes})
    builders = {
        name: dialect.builder([spec for spec in specs if spec.dialect == name], loaded)
        for name, dialect in DIALECTS.items()
    }
    for spec in specs:
        builders[spec.dialect].add(spec, [include for include in includes if include.matches_spec(spec)])
    for builder in builders.values():
        builder.finish()
    cases, required = loaded.cases, loaded.required
    names = {f"{item.model}/{item.submodel}" for item in (*specs, *required.values())}
    problems = loaded.problems | _find_duplicates(cases) | _find_unmatched(expected_failures, names)
    cases.sort(key=lambda case: (case.model, case.submodel, case.target, case.kind != "quality", case.id))
    words = frozenset().union(*(expression.words for expression in loaded.expressions.values()))
    return CaseSet(
        tuple(adjusted(case, expected_failures, device) for case in cases),
        tuple(adjusted(required[key], expected_failures, device) for key in sorted(required)),
        tuple(sorted(problems)),
        tuple(sorted(words - loaded.known)),
        tuple(sorted(loaded.known)),
        tuple(sorted(loaded.elsewhere)),
        tuple(sorted(loaded.warnings)),
        tuple(sorted(loaded.left_out - problems)),
        tuple(sorted(loaded.unmatched)),
        tuple(sorted(loaded.broken)),
    )


def list_urls(case: Case) -> Iterator[tuple[str, str]]:
    """(field of the spec, URL) of every file that a case itself names.

    The program of an operator's case is a file next to it, which was looked for when the case was read.
    """
    fields = _SOURCES[case.dialect]
    for module in (*case.modules, *case.extra_modules):
        program = module.program
        if program.url and not program.name and module.origin.file == case.origin.file:
            yield module.origin.field, program.url
    named: list[tuple[str, Sequence[Argument | Parameters]]] = [
        (fields.parameters, case.parameters),
        (fields.inputs, case.inputs),
        (fields.outputs, case.expected_outputs),
    ]
    for place, items in named:
        yield from ((place.format(index), item.url) for index, item in enumerate(items) if place and item.url)


def adjusted(case: Case, expected: Sequence[ExpectedFailure], device: str = "") -> Case:
    """The case with those of the expected failures that name it, and on another device where one is given."""
    name = f"{case.model}/{case.submodel}"
    added = tuple(
        Expectation(item.stage, item.reason, item.origin, item.kinds, item.match)
        for item in expected
        if fnmatchcase(name, item.case)
    )
    if added:
        case = replace(case, expectations=(*added, *case.expectations))
    if not device:
        return case
    if case.order is ArgumentOrder.DEVICE_FIRST:
        return replace(case, device=device) if case.device else case
    if case.kind not in (Kind.QUALITY, Kind.BENCHMARK):
        return case
    own = tuple(flag for flag in case.own_flags if not names_device(flag))
    return replace(case, device=device, run_flags=with_device(case.run_flags, device), own_flags=own)


def _find_duplicates(cases: Sequence[Case]) -> set[Problem]:
    """Files that claim one name. A regression and a benchmark of sharktank share it; a torch model's test does not."""
    first: dict[str, Case] = {}
    problems: set[Problem] = set()
    shared = {case.chain for case in cases if case.order is ArgumentOrder.MODULES_FIRST}
    for case in cases:
        kind = "" if case.chain in shared else "benchmark" if case.kind == "benchmark" else "regression"
        other = first.setdefault(f"{case.chain}:{kind}", case)
        if other.origin.file != case.origin.file:
            name = f"{case.model}/{case.submodel}"
            problems.add(find_defined_twice(name, case.target, case.origin.file, other.origin.file))
    return problems


def _find_unmatched(expected: Sequence[ExpectedFailure], names: Collection[str]) -> set[Problem]:
    """Expected failures whose glob fits no spec at all: misspelt, or left behind."""
    problems: set[Problem] = set()
    for item in expected:
        if not any(fnmatchcase(name, item.case) for name in names):
            message = f"{item.case!r} fits no spec{did_you_mean(item.case, names)}"
            hint = "Write a glob over model/submodel, or remove the entry."
            problems.add(Problem(item.origin.file, 0, f"{item.origin.field}.case", message, hint))
    return problems
