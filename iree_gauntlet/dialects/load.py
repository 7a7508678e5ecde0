"""From spec files and a selection to cases: pairs tests with what defines their modules, finds duplicates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import ArgumentOrder, Case, Expectation, FailureKind, Kind, Origin, Stage
from iree_gauntlet.dialects import onnx_models, op_tests, sharktank_benchmark, sharktank_regression, torch_models
from iree_gauntlet.dialects.locations import names_device, with_device
from iree_gauntlet.dialects.onnx_models import ModelSpec, build_model_cases
from iree_gauntlet.dialects.op_suites import OpSpec
from iree_gauntlet.dialects.op_tests import build_op_cases
from iree_gauntlet.dialects.selection import Include, MarkerExpression
from iree_gauntlet.dialects.sharktank_benchmark import build_benchmark
from iree_gauntlet.dialects.sharktank_regression import Regression, build_regression
from iree_gauntlet.dialects.sharktank_schema import Benchmark, RegressionV1, RegressionV2
from iree_gauntlet.dialects.spec import Spec
from iree_gauntlet.dialects.spec_file import did_you_mean
from iree_gauntlet.dialects.torch_models import TorchModules, build_test
from iree_gauntlet.errors import Problem
from iree_gauntlet.targets import FAMILIES, Target, target_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from iree_gauntlet.cases import Argument, Parameters
    from iree_gauntlet.dialects.configured_suites import ConfiguredSuite
    from iree_gauntlet.dialects.trees import AnySpec


# What specs for ROCm mean by it where nobody names a chip: that of the programs that run them today.
_DEFAULT_CHIP = "gfx942"
# Where the files of each format name sources.
_SOURCES = {
    dialect.DIALECT: dialect.SOURCES
    for dialect in (sharktank_regression, sharktank_benchmark, torch_models, op_tests, onnx_models)
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
        required: cases that others' modules come from, of which only the compile runs.
        problems: of the files that were selected, and of those that they need.
        left_out: problems of other files.
        unknown_markers: words of marker expressions that no case has.
        known_markers: the markers that cases have.
        broken: problems of single cases of operator suites, whose steps end in an error: all others can run.
        warnings: what is of no use in the files, and does no harm.
        unmatched: entries of configs that name no case that is here.
        elsewhere: names of targets that were not asked for, and that selected torch models are for.
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


class _Library:
    """Regressions by (name, target), built when first asked for."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._specs: dict[tuple[str, str], list[Spec]] = {}
        self._unread: dict[str, list[Spec]] = {}
        for spec in specs:
            if spec.torch:
                continue
            if spec.document is None:
                for stem in {spec.stem, spec.submodel}:
                    self._unread.setdefault(f"{spec.model}_{stem}", []).append(spec)
            elif isinstance(spec.document, RegressionV1 | RegressionV2):
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

    def further(self, spec: Spec) -> Iterator[str]:
        """The further targets of the regression that defines a benchmark's module: it runs there as well."""
        if not isinstance(spec.document, Benchmark):
            return
        name = f"{spec.model}_{spec.document.submodel_name or spec.submodel}"
        for family in FAMILIES:
            if any(family in getattr(other.document, "targets", ()) for other in self._specs.get((name, family), [])):
                yield family

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
    specs: Sequence[AnySpec],
    includes: Sequence[Include],
    targets: Sequence[Target],
    expected_failures: Sequence[ExpectedFailure] = (),
    device: str = "",
) -> CaseSet:
    """The cases that a selection means on some targets.

    Args:
        specs: everything that was read; benchmarks find their modules among all of them.
        includes: a spec is selected by matching any.
        targets: each family at most once; without a chip, sharktank's specs get `_DEFAULT_CHIP`, and torch models
            are meant whatever their chip.
        expected_failures: a suite's list, added to what the specs say.
        device: replaces the specs' devices where given.
    """
    files = [spec for spec in specs if isinstance(spec, Spec)]
    expressions = {include: MarkerExpression(include.markers) for include in includes}
    library, modules = _Library(files), TorchModules(files)
    loader = _Loader(specs, targets, expected_failures, device, expressions, library, modules)
    for spec in specs:
        chosen = [include for include in includes if include.matches_spec(spec)]
        if not isinstance(spec, Spec):
            loader.add_built(spec, chosen)
        elif spec.torch:
            loader.add_torch(spec, chosen)
        else:
            loader.add_sharktank(spec, chosen)
    return loader.result()


@dataclass(frozen=True, slots=True)
class _Loader:
    """Collects the cases of one selection."""

    specs: Sequence[AnySpec]
    targets: Sequence[Target]
    expected: Sequence[ExpectedFailure]
    device: str
    expressions: Mapping[Include, MarkerExpression]
    library: _Library
    modules: TorchModules
    suites: set[tuple[ConfiguredSuite[Any], bool]] = field(default_factory=set)
    cases: list[Case] = field(default_factory=list)
    required: dict[str, Case] = field(default_factory=dict)
    problems: set[Problem] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    warnings: set[Problem] = field(default_factory=set)
    left_out: set[Problem] = field(default_factory=set)
    unmatched: set[Problem] = field(default_factory=set)
    broken: set[Problem] = field(default_factory=set)

    def add_sharktank(self, spec: Spec, chosen: Sequence[Include]) -> None:
        """Adds what a spec for the CPU or ROCm means on the targets that it is for."""
        families = {*spec.families, *self.library.further(spec)}
        fitting = [_with_chip(target) for target in self.targets if chosen and target.family in families]
        self.known.update(*(_words(spec, target) for target in fitting))
        wanted = [target for target in fitting if spec.words is None or self._matches(_words(spec, target), chosen)]
        (self.problems if wanted else self.left_out).update(spec.problems)
        self.warnings.update(spec.warnings)
        if spec.document is None:
            return
        for target in wanted:
            for case in _build(spec, target, self.library, self.problems):
                self._add(case, chosen)

    def add_torch(self, spec: Spec, chosen: Sequence[Include]) -> None:
        """Adds what a test of torch models means; of a module definition, only what is wrong with it."""
        if spec.defines_module:
            # It is the business of the tests that load it.
            self.left_out.update(spec.problems or self.modules.define(spec))
            self.warnings.update(spec.warnings)
            return
        wanted = chosen and (spec.words is None or self._matches(spec.words, chosen)) and self._asks_for(spec)
        problems = self.problems if wanted else self.left_out
        problems.update(spec.problems)
        self.warnings.update(spec.warnings if wanted else ())
        if spec.document is None:
            return
        test, found = build_test(spec, self.modules, self.targets)
        problems.update(found)
        if test is None or not chosen:
            return
        here = [test] if any(target.covers(test.case.target) for target in self.targets) else []
        here += test.further(self.targets)
        if not here:
            self.elsewhere.add(test.case.target.name)
        for each in here:
            if self._add(each.case, chosen):
                self._require(each.required)

    def add_built(self, spec: OpSpec | ModelSpec, chosen: Sequence[Include]) -> None:
        """Adds the cases of a spec that stands for itself, such as an operator's folder: one for each config."""
        suite, problems = spec.suite, self.problems if chosen else self.left_out
        if (suite, bool(chosen)) not in self.suites:
            self.suites.add((suite, bool(chosen)))
            problems.update(suite.problems, *(config.problems for config in suite.configs))
            self.warnings.update(*(config.warnings for config in suite.configs if chosen))
            self.unmatched.update(*(config.unmatched for config in suite.configs if chosen))
        problems.update(spec.problems)
        if not chosen:
            return
        if isinstance(spec, OpSpec):
            found = build_op_cases(spec, self.targets)
        else:
            found = build_model_cases(spec, self.targets)
        self.broken.update(found.problems)
        self.warnings.update(found.warnings)
        self.elsewhere.update(found.elsewhere)
        for case in found.cases:
            self._add(case, chosen)

    def _require(self, cases: Sequence[Case]) -> None:
        """Adds what modules come from: a name means one definition, also over several trees."""
        for case in cases:
            first = self.required.setdefault(case.id, case)
            if first.origin.file != case.origin.file:
                name = f"module {case.modules[0].name}"
                self.problems.add(_defined_twice(name, case.target, case.origin.file, first.origin.file))

    def _asks_for(self, spec: Spec) -> bool:
        """Whether the targets are those that a test's markers name, such as `hip`; where they name none, it may be."""
        named = [target for word in spec.words or () if (target := target_of(word))]
        return not named or any(target.covers(other) for target in self.targets for other in named)

    def _matches(self, markers: Collection[str], chosen: Sequence[Include]) -> bool:
        return any(self.expressions[include].matches(markers) for include in chosen)

    def _add(self, case: Case, chosen: Sequence[Include]) -> bool:
        self.known.update(case.markers)
        matches = self._matches(case.markers, chosen)
        if matches:
            self.cases.append(adjusted(case, self.expected, self.device))
        return matches

    def result(self) -> CaseSet:
        """Everything that was added, in its order."""
        cases = self.cases
        required = _required(cases, self.library)
        required.update(self.required)
        names = {f"{spec.model}/{spec.submodel}" for spec in self.specs}
        names |= {f"{case.model}/{case.submodel}" for case in required.values()}
        problems = self.problems | self.library.problems | _duplicates(cases) | _unmatched(self.expected, names)
        cases.sort(key=lambda case: (case.model, case.submodel, case.target, case.kind != "quality", case.id))
        words = frozenset().union(*(expression.words for expression in self.expressions.values()))
        return CaseSet(
            tuple(cases),
            tuple(adjusted(required[key], self.expected, self.device) for key in sorted(required)),
            tuple(sorted(problems)),
            tuple(sorted(words - self.known)),
            tuple(sorted(self.known)),
            tuple(sorted(self.elsewhere)),
            tuple(sorted(self.warnings)),
            tuple(sorted(self.left_out - problems)),
            tuple(sorted(self.unmatched)),
            tuple(sorted(self.broken)),
        )


def urls_of(case: Case) -> Iterator[tuple[str, str]]:
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


def _words(spec: Spec, target: Target) -> frozenset[str]:
    return (spec.words or frozenset()) | {target.family, target.chip or target.family}


def _with_chip(target: Target) -> Target:
    return replace(target, chip=_DEFAULT_CHIP) if target.family == "rocm" and not target.chip else target


def _build(spec: Spec, target: Target, library: _Library, problems: set[Problem]) -> list[Case]:
    if not isinstance(spec.document, Benchmark):
        regression = library.build(spec, target)
        return [case for case in (regression.case, regression.companion) if case] if regression else []
    case, found = build_benchmark(spec, target, lambda name: library.find(name, target))
    problems.update(found)
    return [case] if case else []


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


def _required(cases: Sequence[Case], library: _Library) -> dict[str, Case]:
    """The regressions whose modules the cases use, where they were not selected themselves, by id."""
    have = {module.id for case in cases if case.kind != "benchmark" for module in case.modules}
    found: dict[str, Case] = {}
    for case in cases:
        for module in case.modules:
            elsewhere = module.program.url and module.origin.file != case.origin.file
            if module.id in have or case.order is ArgumentOrder.MODULES_FIRST or not elsewhere:
                continue
            regression = library.find(module.name, case.target)
            if regression is not None:
                found[regression.case.id] = regression.case
    return found


def _duplicates(cases: Sequence[Case]) -> set[Problem]:
    """Files that claim one name. A regression and a benchmark of sharktank share it; a torch model's test does not."""
    first: dict[str, Case] = {}
    problems: set[Problem] = set()
    shared = {case.chain for case in cases if case.order is ArgumentOrder.MODULES_FIRST}
    for case in cases:
        kind = "" if case.chain in shared else "benchmark" if case.kind == "benchmark" else "regression"
        other = first.setdefault(f"{case.chain}:{kind}", case)
        if other.origin.file != case.origin.file:
            name = f"{case.model}/{case.submodel}"
            problems.add(_defined_twice(name, case.target, case.origin.file, other.origin.file))
    return problems


def _unmatched(expected: Sequence[ExpectedFailure], names: Collection[str]) -> set[Problem]:
    """Expected failures whose glob fits no spec at all: misspelt, or left behind."""
    problems: set[Problem] = set()
    for item in expected:
        if not any(fnmatchcase(name, item.case) for name in names):
            message = f"{item.case!r} fits no spec{did_you_mean(item.case, names)}"
            hint = "Write a glob over model/submodel, or remove the entry."
            problems.add(Problem(item.origin.file, 0, f"{item.origin.field}.case", message, hint))
    return problems


def _defined_twice(name: str, target: Target, file: str, first: str) -> Problem:
    message = f"{name} on {target.name} is already defined by {first}"
    return Problem(file, 0, "", message, "Rename or remove one of the two.")
