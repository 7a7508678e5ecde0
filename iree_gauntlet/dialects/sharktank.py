"""sharktank's specs → cases: regression tests of both generations, and benchmarks of the modules that these define.

Commands follow the programs that people run: compile with the flags as written plus the target's, then
`iree-run-module --device --module --function`, threshold flags, inputs, expected outputs, parameters, and the
pipeline module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote, urlsplit

from iree_gauntlet.cases import (
    MAIN,
    Argument,
    ArgumentOrder,
    Case,
    Expectation,
    Golden,
    Module,
    Origin,
    Parameters,
    Program,
)
from iree_gauntlet.device_kinds import CPU, ROCM
from iree_gauntlet.dialects.locations import EXTERNAL_HINT, SpecReader, is_url
from iree_gauntlet.dialects.sharktank_schema import PROGRAMS, Benchmark, Blob, RegressionV1, RegressionV2
from iree_gauntlet.dialects.spec import Builder, Loaded, SourceFields, Spec, base_case, find_defined_twice
from iree_gauntlet.figures import SHARKTANK_GOLDENS, Figure, Statistic
from iree_gauntlet.stages import Kind, Stage
from iree_gauntlet.targets import FAMILIES, Target, compose_chip_flags, flags_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iree_gauntlet.dialects.selection import Include


_REGRESSION = "sharktank-regression"
_BENCHMARK = "sharktank-benchmark"
_BACKEND_FLAG = "--iree-hal-target-backends"
_TUNER_FLAG = "--iree-codegen-transform-dialect-library"
# What specs for ROCm mean by it where nobody names a chip: that of the programs that run them today.
_DEFAULT_CHIP = "gfx942"
# What benchmarks of the first generation run with, on ROCm alone; their own modules are compiled for it.
_FIRST_FLAG = "--device_allocator=caching"


class Sharktank(Builder[Spec]):
    """Regressions are built when first asked for: benchmarks find their modules among all of them."""

    sources: ClassVar = {
        _REGRESSION: SourceFields("inputs[{}].source", "outputs[{}].source", "real_weights", ("mlir", "pipeline_mlir")),
        # Its weights are its regression's.
        _BENCHMARK: SourceFields(programs=("mlir_url", "mlir_file_url")),
    }

    def __init__(self, specs: Sequence[Spec], loaded: Loaded) -> None:
        super().__init__(specs, loaded)
        self._by_name: dict[tuple[str, str], list[Spec]] = {}
        self._unread: dict[str, list[Spec]] = {}
        for spec in specs:
            if spec.document is None:
                for stem in {spec.stem, spec.submodel}:
                    self._unread.setdefault(f"{spec.model}_{stem}", []).append(spec)
            elif isinstance(spec.document, RegressionV1 | RegressionV2):
                for family in spec.families:
                    self._by_name.setdefault((f"{spec.model}_{spec.submodel}", family), []).append(spec)
        self._built: dict[tuple[str, str, Target], list[Case]] = {}

    def add(self, spec: Spec, chosen: Sequence[Include]) -> None:
        """Adds what a spec means on the targets that it is for."""
        families = {*spec.families}
        if isinstance(spec.document, Benchmark):
            # The further targets of the regression that defines its module: it runs there as well.
            name = f"{spec.model}_{spec.document.submodel_name or spec.submodel}"
            families |= {
                family
                for family in FAMILIES
                for other in self._by_name.get((name, family), [])
                if family in getattr(other.document, "targets", ())
            }
        fitting = {
            replace(target, chip=_DEFAULT_CHIP) if target.kind is ROCM and not target.chip else target: None
            for target in self.loaded.targets
            if chosen and target.family in families
        }
        words = {target: (spec.words or frozenset()) | _name_markers(target) for target in fitting}
        self.loaded.known.update(*words.values())
        wanted = [target for target in fitting if spec.words is None or self.loaded.matches(words[target], chosen)]
        (self.loaded.problems if wanted else self.loaded.left_out).update(spec.problems)
        self.loaded.warnings.update(spec.warnings)
        for target in wanted if spec.document else ():
            for case in self._build(spec, target):
                self.loaded.add(case, chosen)

    def finish(self) -> None:
        """Adds the regressions whose modules the cases use, where they were not selected themselves."""
        cases = self.loaded.cases
        have = {module.id for case in cases if case.kind is not Kind.BENCHMARK for module in case.modules}
        for case in cases:
            for module in case.modules:
                elsewhere = module.program.url and module.origin.file != case.origin.file
                if module.id in have or case.order is ArgumentOrder.MODULES_FIRST or not elsewhere:
                    continue
                if (regression := self._find(case.target, module.name)) is not None:
                    self.loaded.required.setdefault(regression.id, regression)

    def _build(self, spec: Spec, target: Target) -> list[Case]:
        if isinstance(spec.document, Benchmark):
            benchmark = _BenchmarkReader(spec, spec.document, target)
            case = benchmark.build(partial(self._find, target))
            self.loaded.problems.update(benchmark.problems)
            return [case] if case else []
        key = (spec.name, str(spec.path), target)
        if key not in self._built:
            reader = SpecReader(spec)
            self._built[key] = _build_regression(reader, target)
            self.loaded.problems.update(reader.problems)
        return self._built[key]

    def _find(self, target: Target, name: str) -> Case | None:
        """The case of a regression, whose modules others may use."""
        specs = self._by_name.get((name, target.family), [])
        if not specs:
            # It may be the one that is meant: what keeps it from being read is what the user has to know.
            unread = [spec for spec in self._unread.get(name, []) if target.family in spec.families]
            self.loaded.problems.update(problem for spec in unread for problem in spec.problems)
            return None
        for other in specs[1:]:
            self.loaded.problems.add(find_defined_twice(f"module {name}", target, other.name, specs[0].name))
        return next(iter(self._build(specs[0], target)), None)


def _name_markers(target: Target) -> frozenset[str]:
    return frozenset({target.family, target.chip or target.family})


@dataclass(frozen=True, slots=True)
class _Fields:
    """The generations' fields under one name each, for one target."""

    flags: tuple[str, ...]
    pipeline_flags: tuple[str, ...]
    threshold_args: tuple[str, ...]
    function: str
    device: str
    run_fails: str
    chips_failing: str = ""
    splat: bool = False


def _build_regression(reader: SpecReader, target: Target) -> list[Case]:
    """What a spec means on a target: the main module's case, and that of a pipeline which is only compiled."""
    spec, document = reader.spec, reader.spec.document
    assert isinstance(document, RegressionV1 | RegressionV2), "only these are built"
    tuner, file_flags, blocked = _find_tuner(reader, document, target)
    if isinstance(document, RegressionV1):
        fields = _read_first(document, target, tuner)
    else:
        fields = _read_second(document, target, tuner)
    name = f"{spec.model}_{spec.submodel}"
    program, origin = Program(reader.url(["mlir"], document.mlir), document.imported), Origin(spec.name, "mlir")
    main = Module(name, MAIN, target, program, fields.flags, origin, splat=fields.splat, file_flags=file_flags)
    pipeline: tuple[Module, ...] = ()
    if document.pipeline_mlir:
        program = Program(reader.url(["pipeline_mlir"], document.pipeline_mlir))
        origin = Origin(spec.name, "pipeline_mlir")
        pipeline = (Module(name, "pipeline", target, program, fields.pipeline_flags, origin),)
    parameters: tuple[Parameters, ...] = ()
    if document.real_weights:
        parameters = (Parameters("model", url=reader.url(["real_weights"], document.real_weights)),)
    elif fields.splat:
        parameters = (Parameters("model", splat_of=main.id),)
    kind = Kind.COMPILE if document.compile_only else Kind.QUALITY
    case = replace(
        base_case(spec, _REGRESSION, kind, target, (main,), document.timeouts),
        extra_modules=pipeline if document.add_pipeline_module or document.compile_only else (),
        parameters=parameters,
        inputs=_read_arguments(reader, "inputs", document.inputs),
        expected_outputs=_read_arguments(reader, "outputs", document.outputs),
        function=fields.function,
        device=fields.device,
        run_flags=fields.threshold_args,
        expectations=_read_expectations(spec, fields, target),
        markers=frozenset({*document.markers, "quality"}) | _name_markers(target),
        blocked_reason=blocked,
    )
    if reader.problems:
        return []
    if not pipeline or case.extra_modules:
        return [case]
    without = replace(case, parameters=(), inputs=(), expected_outputs=(), blocked_reason="")
    return [case, replace(without, kind=Kind.COMPILE, modules=pipeline)]


def _find_tuner(
    reader: SpecReader, document: RegressionV1 | RegressionV2, target: Target
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], str]:
    """The SKU's tuner file: a flag with a local file, or one with the file of a URL; and what blocks the compile."""
    if target.kind is not ROCM or target.sku not in document.tuner_file:
        return (), (), ""
    field, name = ("tuner_file", target.sku), document.tuner_file[target.sku]
    if is_url(name):
        return (), ((_TUNER_FLAG, reader.url(field, name)),), ""
    found = reader.external_file(field, name)
    missing = f"the tuner file {found} is missing (tuner_file.{target.sku}); {EXTERNAL_HINT}"
    return (f"{_TUNER_FLAG}={found}",), (), "" if found and found.is_file() else missing


def _read_first(document: RegressionV1, target: Target, tuner: tuple[str, ...]) -> _Fields:
    if target.kind is CPU:
        flags = (*document.cpu_compiler_flags, f"{_BACKEND_FLAG}={CPU.backend}")
        return _Fields(
            flags=flags,
            pipeline_flags=flags,
            threshold_args=tuple(document.cpu_threshold_args),
            function=document.run_cpu_function or "",
            device=CPU.device,
            run_fails="cpu_run_test_expecting_to_fail",
        )
    rocm = (f"{_BACKEND_FLAG}={ROCM.backend}", f"--iree-hip-target={target.chip}")
    return _Fields(
        flags=(*document.rocm_compiler_flags, *rocm, *tuner),
        pipeline_flags=(*document.rocm_pipeline_compiler_flags, *rocm),
        threshold_args=tuple(document.rocm_threshold_args),
        function=document.run_rocm_function or "",
        device=ROCM.device,
        run_fails="rocm_run_test_expecting_to_fail",
        chips_failing="rocm_compile_chip_expecting_to_fail",
    )


def _read_second(document: RegressionV2, target: Target, tuner: tuple[str, ...]) -> _Fields:
    chip = compose_chip_flags(target)
    fields = _Fields(
        flags=(*document.compiler_flags, *tuner, *chip),
        pipeline_flags=(*document.pipeline_compiler_flags, *chip),
        threshold_args=tuple(document.threshold_args),
        function=document.run_function or "",
        device=document.device or "",
        run_fails="run_test_expecting_to_fail",
        chips_failing="compile_chip_expecting_to_fail",
        splat=not document.real_weights,
    )
    if target.family not in document.targets:
        return fields
    own = document.targets[target.family].threshold_args
    return replace(
        fields,
        flags=(*document.flags_for(target, document.compiler_flags), *tuner),
        pipeline_flags=document.flags_for(target, document.pipeline_compiler_flags),
        threshold_args=fields.threshold_args if own is None else tuple(own),
        device=document.device_for(target),
        run_fails="",
        chips_failing="",
    )


def _read_expectations(spec: Spec, fields: _Fields, target: Target) -> tuple[Expectation, ...]:
    found: list[Expectation] = []
    field = fields.chips_failing
    if target.chip and target.chip in getattr(spec.document, field, ()):
        found.append(Expectation(Stage.COMPILE, f"{field} lists {target.chip}", Origin(spec.name, field)))
    if getattr(spec.document, fields.run_fails, False):
        found.append(Expectation(Stage.THRESHOLD, f"{fields.run_fails} is true", Origin(spec.name, fields.run_fails)))
    return tuple(found)


def _read_arguments(reader: SpecReader, field: str, blobs: list[Blob]) -> tuple[Argument, ...]:
    return tuple(
        Argument(blob.value or "", reader.url([field, index, "source"], blob.source) if blob.source else "")
        for index, blob in enumerate(blobs)
    )


class _BenchmarkReader(SpecReader):
    """Reads what a benchmark spec means on a target; also collects what is missing that it needs."""

    def __init__(self, spec: Spec, document: Benchmark, target: Target) -> None:
        super().__init__(spec)
        self._document = document
        self._target = target
        # With the field that names it; of external files, which may be elsewhere, without.
        self._missing: list[tuple[str, str]] = []

    def build(self, find: Callable[[str], Case | None]) -> Case | None:
        """Its case, with modules of regressions by their names; None where it cannot be used."""
        spec, document, target = self.spec, self._document, self._target
        modules: list[Module] = []
        parameters: list[Parameters] = []
        for name in document.modules:
            regression = find(name)
            if regression is None:
                self._missing.append(("modules", f"no regression spec defines module {name!r} for {target.name}"))
            absent = Module(name, MAIN, target, Program(""), (), Origin(spec.name, "modules"))
            modules.append(regression.modules[0] if regression else absent)
            parameters.extend((regression and regression.parameters) or (Parameters("model"),))
        submodel = document.submodel_name or spec.submodel
        paired = find(f"{spec.model}_{submodel}")
        # A pipeline has no weights in addition to those of the modules that it calls.
        is_pipeline = document.compilation_required and document.modules
        weights = () if is_pipeline else self._find_weights(paired)
        own = f"{spec.model}_{spec.submodel}"
        main = paired.modules[0] if paired else Module(own, MAIN, target, Program(""), (), Origin(spec.name))
        own_target = target.family in spec.families
        if document.compilation_required:
            role = "benchmark" if find(own) else MAIN
            main = self._read_module(Module(own, role, target, Program(""), (), Origin(spec.name)))
            if weights and weights[0].splat_of:
                # The pair's archive is of the pair's program: this one makes its own.
                main, weights = replace(main, splat=True), (replace(weights[0], splat_of=main.id),)
            if not own_target:
                main = replace(main, flags=flags_for(target, main.flags))
        elif paired is None:
            what = f"no regression spec defines {spec.model}/{submodel} for {target.name}"
            self._missing.append(("submodel_name" if document.submodel_name else "function_run", what))
        if self.problems:
            return None
        skip = ""
        if target.chip and target.chip in (*document.specific_chip_to_ignore, *document.specific_rocm_chip_to_ignore):
            skip = f"specific_chip_to_ignore lists {target.chip} ({spec.name})"
        goldens, idle = _read_goldens(spec, document, target, "" if own_target else f"{target.family}-")
        return replace(
            base_case(spec, _BENCHMARK, Kind.BENCHMARK, target, (*modules, main), document.timeouts),
            parameters=(*parameters, *weights),
            inputs=tuple(Argument(value=text) for text in document.inputs),
            function=document.function_run,
            device=(document.device or ROCM.device) if own_target or paired is None else paired.device,
            run_flags=_run_flags(document),
            compile_statistics=True,
            goldens=goldens,
            idle_goldens=idle,
            golden_keys=tuple(document.golden_time or document.golden_time_ms),
            markers=frozenset({*document.markers, "benchmark"}) | _name_markers(target),
            skip_reason=skip,
            blocked_reason="; ".join(text for _, text in self._missing),
            blocked_field=next((field for field, _ in self._missing if field), ""),
            notes=document.notes(),
        )

    def _read_module(self, module: Module) -> Module:
        """Completes the module that a benchmark compiles for itself."""
        document = self._document
        backend = () if document.device else (f"{_BACKEND_FLAG}={ROCM.backend}",)
        field, name = next((field, text) for field in PROGRAMS if (text := getattr(document, field)))
        if field.endswith("_url") or is_url(name):
            url = self.url([field], name)
        else:
            find = self.machine_file if field == "mlir_file_path" else self.external_file
            found = find([field], name)
            if found and not found.is_file():
                by_path = field if field.endswith("_path") else ""
                self._missing.append((by_path, f"the program {found} is missing ({field}); {EXTERNAL_HINT}"))
            url = found.as_uri() if found else ""
        flags = (*backend, *document.compile_flags, *compose_chip_flags(module.target))
        return replace(module, program=Program(url), flags=flags, origin=Origin(self.spec.name, field))

    def _find_weights(self, paired: Case | None) -> tuple[Parameters, ...]:
        """The file that is named, or else the paired regression's archive, or one of another name that it downloads."""
        document, spec = self._document, self.spec
        if document.real_weights_file_path:
            found = self.machine_file(["real_weights_file_path"], document.real_weights_file_path)
            if found and not found.is_file():
                field = "real_weights_file_path"
                self._missing.append((field, f"the weights {found} are missing ({field})"))
            return (Parameters("model", url=found.as_uri()),) if found else ()
        wanted = document.real_weights_file_name
        if paired is None:
            if wanted and document.compilation_required:
                what = f"no regression spec for {spec.model}/{spec.submodel} downloads {wanted!r}"
                self._missing.append(("real_weights_file_name", what))
            return ()
        if not wanted or any(_name_file(item.url) == wanted for item in paired.parameters):
            return paired.parameters
        urls = [paired.modules[0].program.url, *(item.url for item in (*paired.inputs, *paired.expected_outputs))]
        urls += [item.url for item in paired.parameters]
        if other := next((url for url in urls if _name_file(url) == wanted), ""):
            return (Parameters("model", url=other),)
        has = ", ".join(sorted({_name_file(url) for url in urls if url})) or "none"
        what = f"{wanted!r} is not among the files of {paired.origin.file} (has: {has})"
        self.refuse(["real_weights_file_name"], what, "Name the weights file that the regression spec downloads.")
        return ()


def _name_file(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _run_flags(document: Benchmark) -> tuple[str, ...]:
    """The two fields of older files as flags, then the written ones; a flag that stands in both stands once."""
    written = {flag.lstrip("-").split("=")[0] for flag in document.benchmark_flags}
    flags = [] if document.device else [_FIRST_FLAG]
    if document.benchmark_repetitions is not None and "benchmark_repetitions" not in written:
        flags.append(f"--benchmark_repetitions={document.benchmark_repetitions:.0f}")
    if document.benchmark_min_warmup_time is not None and "benchmark_min_warmup_time" not in written:
        flags.append(f"--benchmark_min_warmup_time={document.benchmark_min_warmup_time}")
    return (*flags, *document.benchmark_flags)


def _read_goldens(
    spec: Spec, document: Benchmark, target: Target, prefix: str
) -> tuple[tuple[Golden, ...], tuple[Golden, ...]]:
    """Golden times belong to their SKU alone; counts and sizes to the SKU, or to the whole target family.

    Returns also the counts and sizes of a spec's own target that stand under other keys alone.
    """
    # Those of a further target have its family before the SKU: `vulkan-mi300`.
    goldens: list[Golden] = []
    idle: list[Golden] = []
    sku = f"{prefix}{target.sku}" if target.sku else ""
    field = "golden_time" if document.golden_time else "golden_time_ms"
    times = document.golden_time or document.golden_time_ms
    if sku in times:
        factor = document.golden_time_tolerance_multiplier.get(sku, 1.0)
        origin = Origin(spec.name, f"{field}.{sku}")
        goldens.append(Golden(Figure.TIME, times[sku], factor, Statistic.MEAN, target.sku, "", origin))
    for field, figure in SHARKTANK_GOLDENS.items():
        values = getattr(document, field)
        own = next((key for key in (sku, target.family) if key in values), "")
        others = [key for key in values if not prefix and key.partition("-")[0] not in FAMILIES]
        for key in [own] if own else others:
            value = float(values[key])
            golden = Golden(
                metric=figure,
                value=value,
                factor=figure.golden.compute_factor(value),
                statistic=Statistic.MEAN,
                sku=target.sku if key == sku else key,
                release=document.golden_compiler or "",
                origin=Origin(spec.name, f"{field}.{key}"),
            )
            (goldens if own else idle).append(golden)
    return tuple(goldens), tuple(idle)
