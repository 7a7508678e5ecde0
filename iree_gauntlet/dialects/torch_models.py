"""Conversion of torch models' tests to cases.

Commands follow iree-test-suites, and run in the folder of external files. They have the modules in load order, then
parameters, inputs, outputs, expected outputs, and the run arguments as written.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from iree_gauntlet.cases import (
    MAIN,
    Argument,
    ArgumentOrder,
    Call,
    Case,
    Expectation,
    Golden,
    Module,
    Origin,
    Parameters,
    Program,
    SyntheticParameters,
)
from iree_gauntlet.dialects.fields import OWN_TARGET_HINT, OWN_TARGET_PROBLEM
from iree_gauntlet.dialects.locations import SpecReader, find_devices, find_target, get_url_path, with_device
from iree_gauntlet.dialects.spec import TORCH_MODELS, Builder, Collector, Spec, make_case, make_duplicate
from iree_gauntlet.dialects.spec_file import find_nearest
from iree_gauntlet.dialects.torch_schema import (
    ArgumentSpec,
    BenchmarkTest,
    CompstatTest,
    ModuleDefinition,
    QualityTest,
    Weight,
    read_module_definition,
)
from iree_gauntlet.figures import GOLDEN_FIGURES, Figure, Statistic
from iree_gauntlet.stages import CHECK_STAGES, Kind
from iree_gauntlet.targets import Target, parse_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.dialects.selection import Include
    from iree_gauntlet.errors import Problem


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_NOTES = {
    "golden_time": "golden_time is from the first generation: the mean is compared with it, without a factor;"
    " golden_time_ms, which overrides it, is for the fastest repetition, with tolerance_factor",
    "pipeline_mlir": "pipeline_mlir is ignored, as in iree-test-suites: use a module definition in 'modules'",
}


@dataclass(frozen=True, slots=True)
class TorchTest:
    """A test's case, and the cases of the modules that it needs."""

    case: Case
    definitions: tuple[ModuleCase, ...]

    @property
    def required(self) -> tuple[Case, ...]:
        """The cases of the modules that the test needs."""
        return tuple(definition.case for definition in self.definitions)

    def expand_targets(self, targets: Sequence[Target]) -> Iterator[TorchTest]:
        """Yield the test, without goldens, on each target that all of its modules list as a further target.

        Tests that exist for their goldens have no further targets.
        """
        for target in targets:
            if self.case.kind is Kind.COMPSTAT or self.case.golden_keys or target.covers(self.case.target):
                continue
            if self.definitions and all(target.family in module.document.targets for module in self.definitions):
                yield self._replace_target(target)

    def _replace_target(self, target: Target) -> TorchTest:
        definitions = tuple(definition.replace_target(target) for definition in self.definitions)
        modules = {old.module.id: new.module for old, new in zip(self.definitions, definitions, strict=True)}
        weights = tuple(
            replace(item, generated=replace(item.generated, module=modules[item.generated.module.id]))
            if item.generated
            else item
            for item in self.case.parameters
        )
        device = definitions[-1].document.choose_device(target)
        words = {word for word in self.case.markers if parse_target(word) is None}
        case = replace(
            self.case,
            target=target,
            modules=tuple(modules[module.id] for module in self.case.modules),
            parameters=weights,
            device=device,
            run_flags=with_device(self.case.run_flags, device),
            goldens=(),
            golden_keys=(),
            expectations=(),
            markers=frozenset({*words, target.family, *filter(None, (target.chip,))}),
        )
        return TorchTest(case, definitions)


def build_test(
    spec: Spec, modules: ModuleDefinitions, targets: Sequence[Target]
) -> tuple[TorchTest | None, list[Problem]]:
    """Build a test, even if its target is not requested; return None and the problems if it cannot be run."""
    document = spec.document
    assert isinstance(document, QualityTest | BenchmarkTest | CompstatTest), "only these are built"
    reader = _TestReader(spec, modules)
    if isinstance(document, CompstatTest):
        modules_found = [reader.find_module(["module"], document.module)]
        weights: tuple[Parameters, ...] = ()
    else:
        modules_found = [reader.find_module(["modules", index], name) for index, name in enumerate(document.modules)]
        weights = tuple(reader.read_parameters(index, weight) for index, weight in enumerate(document.weights))
    inputs = reader.read_arguments("inputs", getattr(document, "inputs", []))
    expected_outputs = reader.read_arguments("expected_outputs", getattr(document, "expected_outputs", []))
    run_args = reader.expand_flags("run_args", getattr(document, "run_args", []))
    if reader.problems:
        return None, reader.problems
    used_modules = tuple(module for module in modules_found if module)
    # Prefer a module's target with a chip, because other modules, such as a scheduler, may name no device.
    target = max(
        (module.target for module in used_modules), key=lambda target: (bool(target.chip), not target.kind.is_cpu)
    )
    match = next((candidate for candidate in targets if candidate.covers(target)), None)
    sku = match.sku if match else ""
    kind = Kind(document.type)
    expected_failure = Expectation(CHECK_STAGES[kind], "marked 'xfail'", Origin(spec.name, "markers"))
    case = replace(
        make_case(spec, TORCH_MODELS, kind, target.complete_with(match), used_modules, document.timeouts),
        parameters=weights,
        calls=(Call("", inputs, expected_outputs),),
        outputs=tuple(Argument(item.value) for item in getattr(document, "outputs", [])),
        device=find_devices(run_args),
        run_flags=run_args,
        order=ArgumentOrder.MODULES_FIRST,
        goldens=_read_goldens(spec, document, sku),
        golden_keys=(document.sku,) if isinstance(document, BenchmarkTest) and document.sku else (),
        expectations=(expected_failure,) if "xfail" in document.markers else (),
        markers=frozenset({*document.markers, document.type}),
        skip_reason=f"marked 'skip' ({spec.name})" if "skip" in document.markers else "",
        notes=tuple(text for field, text in _NOTES.items() if getattr(document, field, None)),
    )
    return TorchTest(case, tuple(reader.required.values())), []


class TorchTests(Builder[Spec]):
    """The builder of torch models' tests; for a module definition, it adds only problems and warnings."""

    def __init__(self, specs: Sequence[Spec], collector: Collector) -> None:
        super().__init__(specs, collector)
        self._modules = ModuleDefinitions(specs)

    def add(self, spec: Spec, includes: Sequence[Include]) -> None:
        """Add the cases of a test."""
        collector = self.collector
        if spec.defines_module:
            # The tests that load a definition report its problems.
            collector.unselected_problems.update(spec.problems or self._modules.build_definition(spec.path, spec)[1])
            collector.warnings.update(spec.warnings)
            return
        # The targets that the test's markers name, such as `hip`. Without them, the test may be for any target.
        marker_targets = [target for word in spec.words or () if (target := parse_target(word))]
        for_target = not marker_targets or any(
            target.covers(marker_target) for target in collector.targets for marker_target in marker_targets
        )
        selects = includes and (spec.words is None or collector.matches(spec.words, includes)) and for_target
        problems = collector.problems if selects else collector.unselected_problems
        problems.update(spec.problems)
        collector.warnings.update(spec.warnings if selects else ())
        if spec.document is None:
            return
        test, test_problems = build_test(spec, self._modules, collector.targets)
        problems.update(test_problems)
        if test is None or not includes:
            return
        tests = [test] if any(target.covers(test.case.target) for target in collector.targets) else []
        tests += test.expand_targets(collector.targets)
        if not tests:
            collector.other_targets.add(test.case.target.name)
        for test_case in tests:
            if collector.add(test_case.case, includes):
                for case in test_case.required:
                    self._require(case)

    def finish(self) -> None:
        """Add the warnings of module definitions that are not among the specs."""
        self.collector.warnings.update(self._modules.warnings)

    def _require(self, case: Case) -> None:
        """Add a module's case; another definition with the same name, also in another tree, is a problem."""
        first = self.collector.needed_cases.setdefault(case.id, case)
        if first.origin.file != case.origin.file:
            name = f"module {case.modules[0].name}"
            self.collector.problems.add(make_duplicate(name, case.target, case.origin.file, first.origin.file))


class _TestReader(SpecReader):
    """A reader that also finds the modules that a test names."""

    def __init__(self, spec: Spec, modules: ModuleDefinitions) -> None:
        super().__init__(spec)
        self._modules = modules
        self.required: dict[str, ModuleCase] = {}

    def find_module(self, field: Sequence[str | int], name: str) -> Module | None:
        module_case = self._modules.find(self, field, name)
        if module_case is None:
            return None
        self.required[module_case.module.id] = module_case
        return module_case.module

    def read_parameters(self, index: int, weight: Weight) -> Parameters:
        if weight.url is not None:
            return Parameters(weight.scope, url=self.resolve_torch_url(["weights", index, "url"], weight.url))
        module = self.find_module(["weights", index, "module"], weight.module or "")
        values = SyntheticParameters(module, weight.seed, weight.value) if module else None
        return Parameters(weight.scope, generated=values)

    def read_arguments(self, field: str, items: Sequence[ArgumentSpec]) -> tuple[Argument, ...]:
        return tuple(
            Argument(item.value or "", self.resolve_torch_url([field, index, "url"], item.url) if item.url else "")
            for index, item in enumerate(items)
        )


def _read_goldens(spec: Spec, document: QualityTest | BenchmarkTest | CompstatTest, sku: str) -> tuple[Golden, ...]:
    if isinstance(document, QualityTest):
        return ()
    if isinstance(document, BenchmarkTest):
        field, value, factor, rule = "golden_time_ms", document.golden_time_ms, document.tolerance_factor, Statistic.MIN
        if value is None:
            field, value, factor, rule = "golden_time", document.golden_time, 1.0, Statistic.MEAN
        if value is None:
            return ()
        return (Golden(Figure.TIME, value, factor, rule, document.sku or sku, "", Origin(spec.name, field)),)
    release = document.golden_compiler or ""
    fields = [(figure, figure.golden.torch) for figure in GOLDEN_FIGURES if figure.golden.torch]
    return tuple(
        Golden(figure, value, 1.0, Statistic.MEAN, "", release, Origin(spec.name, field))
        for figure, field in fields
        if (value := getattr(document, field)) is not None
    )


@dataclass(frozen=True, slots=True)
class ModuleCase:
    """A parsed module definition, with the case that compiles it."""

    case: Case
    document: ModuleDefinition

    @property
    def module(self) -> Module:
        """The compiled module."""
        return self.case.modules[0]

    def replace_target(self, target: Target) -> ModuleCase:
        """Return the module on one of its further targets."""
        module = replace(self.module, target=target, flags=self.document.flags_for(target, self.module.flags))
        return replace(self, case=replace(self.case, target=target, modules=(module,)))


class ModuleDefinitions:
    """The module definitions that tests name, found in the module folders of their trees."""

    def __init__(self, specs: Iterable[Spec]) -> None:
        self._specs = {spec.path: spec for spec in specs}
        # By file: its module and its problems. The module's name does not depend on the test that names it first.
        self._defined: dict[Path, tuple[ModuleCase | None, Sequence[Problem]]] = {}
        self._names: dict[Path, list[str]] = {}
        # Warnings of definitions that are not among the specs.
        self.warnings: set[Problem] = set()

    def find(self, reader: SpecReader, field: Sequence[str | int], name: str) -> ModuleCase | None:
        """Find the module that a test names; add problems of the name or the definition to the reader."""
        spec = reader.spec
        folders = _find_module_folders(spec)
        # iree-test-suites replaces the text after a dot as if it were a suffix: there `clip.v2` means `clip.json`.
        files = (f"{name}.json", PurePosixPath(name).with_suffix(".json"))
        candidates = (folder / file for file in files for folder in folders)
        path = next((path for path in candidates if os.path.isfile(path)), None)  # noqa: PTH113 - a name may be too long
        if path is None:
            guess = find_nearest(name, sorted({module for folder in folders for module in self._list_names(folder)}))
            message = f"there is no module definition {name}.json in {' or '.join(map(str, folders))}"
            hint = f"Did you mean {guess!r}?" if guess else "--module-directory names the folder of module definitions."
            reader.add_problem(field, message, hint)
            return None
        spec_there = self._specs.get(path)
        if spec_there and spec_there.document and not isinstance(spec_there.document, ModuleDefinition):
            description = "the test itself" if path == spec.path else "a test"
            hint = "Name the file that contains 'mlir' and 'compiler_flags'."
            reader.add_problem(field, f"{name!r} is {description}, not a module definition", hint)
            return None
        module_case, problems = self.build_definition(path, spec)
        reader.problems += problems
        return module_case

    def build_definition(self, path: Path, spec: Spec) -> tuple[ModuleCase | None, Sequence[Problem]]:
        """Build a definition's module, and return it with its problems; the spec names the definition or is one."""
        if path not in self._defined:
            folders = _find_module_folders(spec)
            definition = self._specs.get(path) or read_module_definition(spec.tree, folders[0], path)
            self.warnings.update(() if path in self._specs else definition.warnings)
            reader = SpecReader(definition)
            case = _build_module(reader, folders) if definition.document else None
            self._defined[path] = case, (reader.problems if definition.document else definition.problems)
        return self._defined[path]

    def _list_names(self, folder: Path) -> list[str]:
        """List the names of the definitions in a folder, to suggest one."""
        if folder not in self._names:
            paths = [path for path, spec in self._specs.items() if isinstance(spec.document, ModuleDefinition)]
            relative_paths = [path.relative_to(folder) for path in paths if path.is_relative_to(folder)]
            self._names[folder] = [path.with_suffix("").as_posix() for path in relative_paths]
        return self._names[folder]


def _find_module_folders(spec: Spec) -> tuple[Path, ...]:
    """Return the folders that are searched for a test's modules, in order."""
    if spec.tree.modules is not None:
        return (spec.tree.modules,)
    return (spec.root, spec.root.parent)


def _build_module(reader: SpecReader, folders: Sequence[Path]) -> ModuleCase | None:
    spec, document = reader.spec, reader.spec.document
    assert isinstance(document, ModuleDefinition), "read as one"
    folder = next((folder for folder in folders if spec.path.is_relative_to(folder)), spec.path.parent)
    name = spec.path.relative_to(folder).with_suffix("").as_posix()
    url = reader.resolve_torch_url(["mlir"], document.mlir, folders if document.type == "git-lfs" else ())
    if reader.problems:
        return None
    flags = reader.expand_flags("compiler_flags", document.compiler_flags)
    target = find_target(flags)
    if not reader.problems and target.family in document.targets:
        reader.add_problem(["targets", target.family], OWN_TARGET_PROBLEM, OWN_TARGET_HINT)
    if reader.problems:
        return None
    model, _, submodel = name.rpartition("/")
    module = Module(name, MAIN, target, Program(url, document.onnx_options), flags, Origin(spec.name, "mlir"))
    case = replace(
        make_case(spec, TORCH_MODELS, Kind.COMPILE, target, (module,), document.timeouts),
        model=model or folder.name,
        submodel=submodel,
        stem=submodel,
        blocked_reason=_find_lfs_pointer(document, url),
    )
    return ModuleCase(case, document)


def _find_lfs_pointer(document: ModuleDefinition, url: str) -> str:
    """Return a reason if a definition's program is still a pointer of Git LFS; otherwise empty."""
    if document.type != "git-lfs" or not url.startswith("file:"):
        return ""
    path = Path(get_url_path(url))
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as stream:
            is_pointer = stream.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        return ""
    message = f"{path} is a pointer of Git LFS, not the program: run `git lfs pull --include={path.name}`"
    return message if is_pointer else ""
