"""Tests of torch models → cases.

Commands follow iree-test-suites: modules in load order, then parameters, inputs, outputs, expected outputs,
and the run arguments as written, in the external-files folder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, ClassVar

from iree_gauntlet.cases import (
    MAIN,
    Argument,
    ArgumentOrder,
    Case,
    Expectation,
    Golden,
    MadeValues,
    Module,
    Origin,
    Parameters,
    Program,
)
from iree_gauntlet.dialects.fields import OWN_TARGET, OWN_TARGET_HINT
from iree_gauntlet.dialects.locations import SpecReader, devices_of_flags, file_path, target_of_flags, with_device
from iree_gauntlet.dialects.spec import TORCH_MODELS, Builder, Loaded, SourceFields, Spec, base_case, find_defined_twice
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
from iree_gauntlet.figures import JUDGED_FIGURES, Figure, Statistic
from iree_gauntlet.stages import CHECKS, Kind
from iree_gauntlet.targets import Target, parse_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.dialects.selection import Include
    from iree_gauntlet.errors import Problem


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_NOTES = {
    "golden_time": "golden_time is of the first generation: the mean is held against it, without a factor;"
    " golden_time_ms, which goes before it, is for the fastest repetition, with tolerance_factor",
    "pipeline_mlir": "pipeline_mlir is passed over, as in iree-test-suites: a module definition in 'modules' counts",
}


@dataclass(frozen=True, slots=True)
class TorchTest:
    """What a test means: its case, and those that make what it needs."""

    case: Case
    definitions: tuple[ModuleCase, ...]

    @property
    def required(self) -> tuple[Case, ...]:
        """Those that make what it needs."""
        return tuple(item.case for item in self.definitions)

    def further(self, targets: Sequence[Target]) -> Iterator[TorchTest]:
        """The same on those of some targets that all of its modules name as further ones, without its goldens.

        A test that is there for its goldens has no other target.
        """
        for target in targets:
            if self.case.kind is Kind.COMPSTAT or self.case.golden_keys or target.covers(self.case.target):
                continue
            if self.definitions and all(target.family in item.document.targets for item in self.definitions):
                yield self._on(target)

    def _on(self, target: Target) -> TorchTest:
        definitions = tuple(item.on(target) for item in self.definitions)
        modules = {before.module.id: after.module for before, after in zip(self.definitions, definitions, strict=True)}
        weights = tuple(
            replace(item, made=replace(item.made, module=modules[item.made.module.id])) if item.made else item
            for item in self.case.parameters
        )
        device = definitions[-1].document.device_for(target)
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


def build_test(spec: Spec, modules: TorchModules, targets: Sequence[Target]) -> tuple[TorchTest | None, list[Problem]]:
    """What a test means, also for a target that is not asked for, or None where its problems leave nothing to run."""
    document = spec.document
    assert isinstance(document, QualityTest | BenchmarkTest | CompstatTest), "only these are built"
    reader = _TestReader(spec, modules)
    if isinstance(document, CompstatTest):
        loaded = [reader.module(["module"], document.module)]
        weights: tuple[Parameters, ...] = ()
    else:
        loaded = [reader.module(["modules", index], name) for index, name in enumerate(document.modules)]
        weights = tuple(reader.parameters(index, weight) for index, weight in enumerate(document.weights))
    inputs = reader.arguments("inputs", getattr(document, "inputs", []))
    expected = reader.arguments("expected_outputs", getattr(document, "expected_outputs", []))
    run_args = reader.flags("run_args", getattr(document, "run_args", []))
    if reader.problems:
        return None, reader.problems
    used = tuple(module for module in loaded if module)
    # Of several modules, one may not say what it runs on: a scheduler has nothing for a chip.
    target = max((module.target for module in used), key=lambda target: (bool(target.chip), not target.kind.is_cpu))
    asked = next((each for each in targets if each.covers(target)), None)
    sku = asked.sku if asked else ""
    kind = Kind(document.type)
    expected_failure = Expectation(CHECKS[kind], "marked 'xfail'", Origin(spec.name, "markers"))
    case = replace(
        base_case(spec, TORCH_MODELS, kind, replace(target, sku=sku), used, document.timeouts),
        parameters=weights,
        inputs=inputs,
        outputs=tuple(Argument(item.value) for item in getattr(document, "outputs", [])),
        expected_outputs=expected,
        device=devices_of_flags(run_args),
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
    """Tests of torch models; of a module definition, only what is wrong with it is added."""

    sources: ClassVar = {
        TORCH_MODELS: SourceFields("inputs[{}].url", "expected_outputs[{}].url", "weights[{}].url", ("mlir",))
    }

    def __init__(self, specs: Sequence[Spec], loaded: Loaded) -> None:
        super().__init__(specs, loaded)
        self._modules = TorchModules(specs)

    def add(self, spec: Spec, chosen: Sequence[Include]) -> None:
        """Adds what a test means."""
        loaded = self.loaded
        if spec.defines_module:
            # It is the business of the tests that load it.
            loaded.left_out.update(spec.problems or self._modules.define(spec.path, spec)[1])
            loaded.warnings.update(spec.warnings)
            return
        # The targets that its markers name, such as `hip`; where they name none, it may be for any.
        named = [target for word in spec.words or () if (target := parse_target(word))]
        asked_for = not named or any(target.covers(other) for target in loaded.targets for other in named)
        wanted = chosen and (spec.words is None or loaded.matches(spec.words, chosen)) and asked_for
        problems = loaded.problems if wanted else loaded.left_out
        problems.update(spec.problems)
        loaded.warnings.update(spec.warnings if wanted else ())
        if spec.document is None:
            return
        test, found = build_test(spec, self._modules, loaded.targets)
        problems.update(found)
        if test is None or not chosen:
            return
        here = [test] if any(target.covers(test.case.target) for target in loaded.targets) else []
        here += test.further(loaded.targets)
        if not here:
            loaded.elsewhere.add(test.case.target.name)
        for each in here:
            if loaded.add(each.case, chosen):
                for case in each.required:
                    self._require(case)

    def finish(self) -> None:
        """Adds what is said of definitions elsewhere."""
        self.loaded.warnings.update(self._modules.warnings)

    def _require(self, case: Case) -> None:
        """Adds what a module comes from: a name means one definition, also over several trees."""
        first = self.loaded.required.setdefault(case.id, case)
        if first.origin.file != case.origin.file:
            name = f"module {case.modules[0].name}"
            self.loaded.problems.add(find_defined_twice(name, case.target, case.origin.file, first.origin.file))


class _TestReader(SpecReader):
    """Also finds the modules that a test names."""

    def __init__(self, spec: Spec, modules: TorchModules) -> None:
        super().__init__(spec)
        self._modules = modules
        self.required: dict[str, ModuleCase] = {}

    def module(self, field: Sequence[str | int], name: str) -> Module | None:
        found = self._modules.find(self, field, name)
        if found is None:
            return None
        self.required[found.module.id] = found
        return found.module

    def parameters(self, index: int, weight: Weight) -> Parameters:
        if weight.url is not None:
            return Parameters(weight.scope, url=self.torch_url(["weights", index, "url"], weight.url))
        module = self.module(["weights", index, "module"], weight.module or "")
        made = MadeValues(module, weight.seed, weight.value) if module else None
        return Parameters(weight.scope, made=made)

    def arguments(self, field: str, items: Sequence[ArgumentSpec]) -> tuple[Argument, ...]:
        return tuple(
            Argument(item.value or "", self.torch_url([field, index, "url"], item.url) if item.url else "")
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
    fields = [(figure, figure.golden.torch) for figure in JUDGED_FIGURES if figure.golden.torch]
    return tuple(
        Golden(figure, value, 1.0, Statistic.MEAN, "", release, Origin(spec.name, field))
        for figure, field in fields
        if (value := getattr(document, field)) is not None
    )


@dataclass(frozen=True, slots=True)
class ModuleCase:
    """A module definition, read: the case that compiles it."""

    case: Case
    document: ModuleDefinition

    @property
    def module(self) -> Module:
        """What it compiles."""
        return self.case.modules[0]

    def on(self, target: Target) -> ModuleCase:
        """The same on one of its further targets."""
        module = replace(self.module, target=target, flags=self.document.flags_for(target, self.module.flags))
        return replace(self, case=replace(self.case, target=target, modules=(module,)))


class TorchModules:
    """The module definitions that tests name, found in the module folders of their trees."""

    def __init__(self, specs: Iterable[Spec]) -> None:
        self._specs = {spec.path: spec for spec in specs}
        # One module of each file, with one name, whichever test asks for it first; and what is wrong with it.
        self._defined: dict[Path, tuple[ModuleCase | None, Sequence[Problem]]] = {}
        self._names: dict[Path, list[str]] = {}
        # Of definitions that do not lie among the specs.
        self.warnings: set[Problem] = set()

    def find(self, reader: SpecReader, field: Sequence[str | int], name: str) -> ModuleCase | None:
        """The module that a test names; what is wrong with the name or the definition is the reader's to collect."""
        spec = reader.spec
        folders = _find_module_folders(spec)
        # iree-test-suites takes what follows a dot for a suffix: `clip.v2` is its `clip.json`.
        files = (f"{name}.json", PurePosixPath(name).with_suffix(".json"))
        places = (folder / file for file in files for folder in folders)
        path = next((path for path in places if os.path.isfile(path)), None)  # noqa: PTH113 - a name may be too long
        if path is None:
            near = find_nearest(name, sorted({known for folder in folders for known in self._list_names(folder)}))
            message = f"there is no module definition {name}.json in {' or '.join(map(str, folders))}"
            hint = f"Did you mean {near!r}?" if near else "--module-directory names the folder of module definitions."
            reader.refuse(field, message, hint)
            return None
        there = self._specs.get(path)
        if there and there.document and not isinstance(there.document, ModuleDefinition):
            what = "the test itself" if path == spec.path else "a test"
            hint = "Name the file that holds 'mlir' and 'compiler_flags'."
            reader.refuse(field, f"{name!r} is {what}, not a module definition", hint)
            return None
        found, problems = self.define(path, spec)
        reader.problems += problems
        return found

    def define(self, path: Path, spec: Spec) -> tuple[ModuleCase | None, Sequence[Problem]]:
        """The module of a definition that a spec names, or is; and what is wrong with it."""
        if path not in self._defined:
            folders = _find_module_folders(spec)
            definition = self._specs.get(path) or read_module_definition(spec.tree, folders[0], path)
            self.warnings.update(() if path in self._specs else definition.warnings)
            reader = SpecReader(definition)
            case = _build_module(reader, folders) if definition.document else None
            self._defined[path] = case, (reader.problems if definition.document else definition.problems)
        return self._defined[path]

    def _list_names(self, folder: Path) -> list[str]:
        """Names of the definitions in a folder, to suggest one."""
        if folder not in self._names:
            paths = [path for path, spec in self._specs.items() if isinstance(spec.document, ModuleDefinition)]
            inside = [path.relative_to(folder) for path in paths if path.is_relative_to(folder)]
            self._names[folder] = [path.with_suffix("").as_posix() for path in inside]
        return self._names[folder]


def _find_module_folders(spec: Spec) -> tuple[Path, ...]:
    """Where the modules of a test are looked for, the first one first."""
    if spec.tree.modules is not None:
        return (spec.tree.modules,)
    return (spec.root, spec.root.parent)


def _build_module(reader: SpecReader, folders: Sequence[Path]) -> ModuleCase | None:
    spec, document = reader.spec, reader.spec.document
    assert isinstance(document, ModuleDefinition), "read as one"
    folder = next((folder for folder in folders if spec.path.is_relative_to(folder)), spec.path.parent)
    name = spec.path.relative_to(folder).with_suffix("").as_posix()
    url = reader.torch_url(["mlir"], document.mlir, folders if document.type == "git-lfs" else ())
    if reader.problems:
        return None
    flags = reader.flags("compiler_flags", document.compiler_flags)
    target = target_of_flags(flags)
    if not reader.problems and target.family in document.targets:
        reader.refuse(["targets", target.family], OWN_TARGET, OWN_TARGET_HINT)
    if reader.problems:
        return None
    model, _, submodel = name.rpartition("/")
    module = Module(name, MAIN, target, Program(url, document.imported), flags, Origin(spec.name, "mlir"))
    case = replace(
        base_case(spec, TORCH_MODELS, Kind.COMPILE, target, (module,), document.timeouts),
        model=model or folder.name,
        submodel=submodel,
        stem=submodel,
        blocked_reason=_find_lfs_pointer(document, url),
    )
    return ModuleCase(case, document)


def _find_lfs_pointer(document: ModuleDefinition, url: str) -> str:
    """Why a file of Git LFS cannot be compiled yet; empty where it can, or is missing as a whole."""
    if document.type != "git-lfs" or not url.startswith("file:"):
        return ""
    path = Path(file_path(url))
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as stream:
            pointer = stream.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        return ""
    what = f"{path} is a pointer of Git LFS, not the program: run `git lfs pull --include={path.name}`"
    return what if pointer else ""
