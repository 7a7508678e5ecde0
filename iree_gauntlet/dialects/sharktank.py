"""sharktank's specs → cases: regression tests of both generations, and benchmarks of the modules that these define.

Commands follow the programs that people run: compile with the flags as written plus the target's, then
`iree-run-module --device --module --function`, threshold flags, inputs, expected outputs, parameters, and the
pipeline module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.cases import (
    MAIN,
    WORK_MARGIN,
    Argument,
    ArgumentOrder,
    Case,
    Expectation,
    Golden,
    Kind,
    Metric,
    Module,
    Origin,
    Parameters,
    Program,
    Stage,
    Statistic,
)
from iree_gauntlet.dialects.locations import EXTERNAL_HINT, external_file, is_url, machine_file, problem, resolve_url
from iree_gauntlet.dialects.sharktank_schema import Benchmark, Blob, RegressionV1, RegressionV2
from iree_gauntlet.dialects.spec import Builder, Loaded, SourceFields, Spec, base_case, defined_twice
from iree_gauntlet.errors import Problem
from iree_gauntlet.targets import FAMILIES, Target, flags_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iree_gauntlet.dialects.selection import Include


_REGRESSION = "sharktank-regression"
_BENCHMARK = "sharktank-benchmark"
SOURCES = {
    _REGRESSION: SourceFields("inputs[{}].source", "outputs[{}].source", "real_weights", ("mlir", "pipeline_mlir")),
    # Its weights are its regression's.
    _BENCHMARK: SourceFields(programs=("mlir_url", "mlir_file_url")),
}
_TUNER_FLAG = "--iree-codegen-transform-dialect-library"
# What specs for ROCm mean by it where nobody names a chip: that of the programs that run them today.
_DEFAULT_CHIP = "gfx942"
# What benchmarks of the first generation run on, and with; their own modules are compiled for it.
_FIRST_DEVICE = "hip"
_FIRST_FLAG = "--device_allocator=caching"


class Sharktank(Builder[Spec]):
    """Regressions are built when first asked for: benchmarks find their modules among all of them."""

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
        self._built: dict[tuple[str, str, Target], Regression | None] = {}

    def add(self, spec: Spec, chosen: Sequence[Include]) -> None:
        """Adds what a spec means on the targets that it is for."""
        families = {*spec.families, *self._further(spec)}
        fitting = {
            replace(target, chip=_DEFAULT_CHIP) if target.family == "rocm" and not target.chip else target: None
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
        have = {module.id for case in cases if case.kind != "benchmark" for module in case.modules}
        for case in cases:
            for module in case.modules:
                elsewhere = module.program.url and module.origin.file != case.origin.file
                if module.id in have or case.order is ArgumentOrder.MODULES_FIRST or not elsewhere:
                    continue
                regression = self._find(case.target, module.name)
                if regression is not None:
                    self.loaded.required.setdefault(regression.case.id, regression.case)

    def _build(self, spec: Spec, target: Target) -> list[Case]:
        if isinstance(spec.document, Benchmark):
            case, found = _build_benchmark(spec, target, partial(self._find, target))
            self.loaded.problems.update(found)
            return [case] if case else []
        regression = self._regression(spec, target)
        return [case for case in (regression.case, regression.companion) if case] if regression else []

    def _regression(self, spec: Spec, target: Target) -> Regression | None:
        key = (spec.name, str(spec.path), target)
        if key not in self._built:
            self._built[key], problems = _build_regression(spec, target)
            self.loaded.problems.update(problems)
        return self._built[key]

    def _further(self, spec: Spec) -> Iterator[str]:
        """The further targets of the regression that defines a benchmark's module: it runs there as well."""
        if not isinstance(spec.document, Benchmark):
            return
        name = f"{spec.model}_{spec.document.submodel_name or spec.submodel}"
        for family in FAMILIES:
            if any(family in getattr(other.document, "targets", ()) for other in self._by_name.get((name, family), [])):
                yield family

    def _find(self, target: Target, name: str) -> Regression | None:
        specs = self._by_name.get((name, target.family), [])
        if not specs:
            # It may be the one that is meant: what keeps it from being read is what the user has to know.
            unread = [spec for spec in self._unread.get(name, []) if target.family in spec.families]
            self.loaded.problems.update(problem for spec in unread for problem in spec.problems)
            return None
        for other in specs[1:]:
            self.loaded.problems.add(defined_twice(f"module {name}", target, other.name, specs[0].name))
        return self._regression(specs[0], target)


def _name_markers(target: Target) -> frozenset[str]:
    return frozenset({target.family, target.chip or target.family})


@dataclass(frozen=True, slots=True)
class Regression:
    """What a regression spec means on one target: its cases, and the modules that others may use.

    Attributes:
        case: the main module's, with the pipeline where that is loaded.
        companion: of a pipeline that is compiled and not loaded; None for none.
    """

    case: Case
    companion: Case | None
    main: Module
    parameters: tuple[Parameters, ...]
    urls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Fields:
    """The generations' fields under one name each, for one target."""

    flags: tuple[str, ...]
    pipeline_flags: tuple[str, ...]
    threshold_args: tuple[str, ...]
    function: str
    device: str
    run_fails: str
    chips_failing: str
    splat: bool


def _build_regression(spec: Spec, target: Target) -> tuple[Regression | None, list[Problem]]:
    """What a spec means on a target."""
    document = spec.document
    assert isinstance(document, RegressionV1 | RegressionV2), "only these are built"
    problems: list[Problem] = []

    def url(path: Sequence[str | int], source: str) -> str:
        resolved = resolve_url(spec, path, source)
        if isinstance(resolved, Problem):
            problems.append(resolved)
            return ""
        return resolved

    tuner = _find_tuner(spec, document, target, problems)
    if isinstance(document, RegressionV1):
        fields = _read_first(document, target, tuner.flags)
    else:
        fields = _read_second(document, target, tuner.flags)
    name = f"{spec.model}_{spec.submodel}"
    main = Module(
        name=name,
        role=MAIN,
        target=target,
        program=Program(url(["mlir"], document.mlir), document.imported),
        flags=fields.flags,
        origin=Origin(spec.name, "mlir"),
        splat=fields.splat,
        file_flags=tuner.file_flags,
    )
    pipeline: tuple[Module, ...] = ()
    if document.pipeline_mlir:
        program = Program(url(["pipeline_mlir"], document.pipeline_mlir))
        origin = Origin(spec.name, "pipeline_mlir")
        pipeline = (Module(name, "pipeline", target, program, fields.pipeline_flags, origin),)
    parameters: tuple[Parameters, ...] = ()
    if document.real_weights:
        parameters = (Parameters("model", url=url(["real_weights"], document.real_weights)),)
    elif fields.splat:
        parameters = (Parameters("model", splat_of=main.id),)
    inputs = _read_arguments(document.inputs, "inputs", url)
    outputs = _read_arguments(document.outputs, "outputs", url)
    case = replace(
        base_case(
            spec,
            _REGRESSION,
            Kind.COMPILE if document.compile_only else Kind.QUALITY,
            target,
            (main,),
            document.timeouts,
        ),
        extra_modules=pipeline if document.add_pipeline_module or document.compile_only else (),
        parameters=parameters,
        inputs=inputs,
        expected_outputs=outputs,
        function=fields.function,
        device=fields.device,
        run_flags=fields.threshold_args,
        expectations=_read_expectations(spec, fields, target),
        markers=frozenset({*document.markers, "quality"}) | _name_markers(target),
        blocked_reason=tuner.blocked,
    )
    if problems:
        return None, problems
    companion = None
    if pipeline and not case.extra_modules:
        companion = replace(
            case, kind=Kind.COMPILE, modules=pipeline, parameters=(), inputs=(), expected_outputs=(), blocked_reason=""
        )
    urls = [main.program.url, *(item.url for item in (*inputs, *outputs)), *(item.url for item in parameters)]
    return Regression(case, companion, main, parameters, tuple(filter(None, urls))), []


@dataclass(frozen=True, slots=True)
class _Tuner:
    """The SKU's tuner file: a flag with a local file, or one with the file of a URL; and what blocks the compile."""

    flags: tuple[str, ...] = ()
    file_flags: tuple[tuple[str, str], ...] = ()
    blocked: str = ""


def _find_tuner(spec: Spec, document: RegressionV1 | RegressionV2, target: Target, problems: list[Problem]) -> _Tuner:
    if target.family != "rocm" or target.sku not in document.tuner_file:
        return _Tuner()
    field, name = ("tuner_file", target.sku), document.tuner_file[target.sku]
    found = resolve_url(spec, field, name) if is_url(name) else external_file(spec, field, name)
    if isinstance(found, Problem):
        problems.append(found)
        return _Tuner()
    if isinstance(found, str):
        return _Tuner(file_flags=((_TUNER_FLAG, found),))
    missing = f"the tuner file {found} is missing (tuner_file.{target.sku}); {EXTERNAL_HINT}"
    blocked = "" if found.is_file() else missing
    return _Tuner(flags=(f"{_TUNER_FLAG}={found}",), blocked=blocked)


def _read_first(document: RegressionV1, target: Target, tuner: tuple[str, ...]) -> _Fields:
    if target.family == "cpu":
        flags = (*document.cpu_compiler_flags, "--iree-hal-target-backends=llvm-cpu")
        return _Fields(
            flags=flags,
            pipeline_flags=flags,
            threshold_args=tuple(document.cpu_threshold_args),
            function=document.run_cpu_function or "",
            device="local-task",
            run_fails="cpu_run_test_expecting_to_fail",
            chips_failing="",
            splat=False,
        )
    rocm = ("--iree-hal-target-backends=rocm", f"--iree-hip-target={target.chip}")
    return _Fields(
        flags=(*document.rocm_compiler_flags, *rocm, *tuner),
        pipeline_flags=(*document.rocm_pipeline_compiler_flags, *rocm),
        threshold_args=tuple(document.rocm_threshold_args),
        function=document.run_rocm_function or "",
        device="hip",
        run_fails="rocm_run_test_expecting_to_fail",
        chips_failing="rocm_compile_chip_expecting_to_fail",
        splat=False,
    )


def _read_second(document: RegressionV2, target: Target, tuner: tuple[str, ...]) -> _Fields:
    if target.family in document.targets:
        own = document.targets[target.family].threshold_args
        return _Fields(
            flags=(*document.flags_for(target, document.compiler_flags), *tuner),
            pipeline_flags=document.flags_for(target, document.pipeline_compiler_flags),
            threshold_args=tuple(document.threshold_args if own is None else own),
            function=document.run_function or "",
            device=document.device_for(target),
            run_fails="",
            chips_failing="",
            splat=not document.real_weights,
        )
    chip = (f"--iree-rocm-target={target.chip}",) if target.family == "rocm" else ()
    return _Fields(
        flags=(*document.compiler_flags, *tuner, *chip),
        pipeline_flags=(*document.pipeline_compiler_flags, *chip),
        threshold_args=tuple(document.threshold_args),
        function=document.run_function or "",
        device=document.device or "",
        run_fails="run_test_expecting_to_fail",
        chips_failing="compile_chip_expecting_to_fail",
        splat=not document.real_weights,
    )


def _read_expectations(spec: Spec, fields: _Fields, target: Target) -> tuple[Expectation, ...]:
    found: list[Expectation] = []
    field = fields.chips_failing
    if target.chip and target.chip in getattr(spec.document, field, ()):
        found.append(Expectation(Stage.COMPILE, f"{field} lists {target.chip}", Origin(spec.name, field)))
    if getattr(spec.document, fields.run_fails, False):
        found.append(Expectation(Stage.THRESHOLD, f"{fields.run_fails} is true", Origin(spec.name, fields.run_fails)))
    return tuple(found)


def _read_arguments(
    blobs: list[Blob], field: str, url: Callable[[Sequence[str | int], str], str]
) -> tuple[Argument, ...]:
    return tuple(
        Argument(blob.value or "", url([field, index, "source"], blob.source) if blob.source else "")
        for index, blob in enumerate(blobs)
    )


def _build_benchmark(
    spec: Spec, target: Target, find: Callable[[str], Regression | None]
) -> tuple[Case | None, list[Problem]]:
    """What a benchmark spec means on a target."""
    document = spec.document
    assert isinstance(document, Benchmark), "only these are built"
    problems: list[Problem] = []
    missing: list[str] = []
    modules: list[Module] = []
    parameters: list[Parameters] = []
    own = f"{spec.model}_{spec.submodel}"
    for name in document.modules:
        regression = find(name)
        if regression is None:
            missing.append(f"no regression spec defines module {name!r} for {target.name}")
            origin = Origin(spec.name, "modules")
            modules.append(Module(name, MAIN, target, Program(""), (), origin))
            parameters.append(Parameters("model"))
            continue
        modules.append(regression.main)
        parameters.extend(regression.parameters or (Parameters("model"),))
    submodel = document.submodel_name or spec.submodel
    paired = find(f"{spec.model}_{submodel}")
    # A pipeline has no weights in addition to those of the modules that it calls.
    is_pipeline = document.compilation_required and document.modules
    weights = () if is_pipeline else _find_weights(spec, document, paired, problems, missing)
    if document.compilation_required:
        role = "benchmark" if find(own) else MAIN
        module = Module(own, role, target, Program(""), (), Origin(spec.name))
        if weights and weights[0].splat_of:
            # The pair's archive is of the pair's program: this one makes its own.
            module, weights = replace(module, splat=True), (replace(weights[0], splat_of=module.id),)
        main = _complete_module(spec, document, module, problems, missing)
    else:
        if paired is None:
            missing.append(f"no regression spec defines {spec.model}/{submodel} for {target.name}")
        main = paired.main if paired else Module(own, MAIN, target, Program(""), (), Origin(spec.name))
    parameters.extend(weights)
    if problems:
        return None, problems
    own_target = target.family in spec.families
    if not own_target and document.compilation_required:
        main = replace(main, flags=flags_for(target, main.flags))
    skip = ""
    ignored = [*document.specific_chip_to_ignore, *document.specific_rocm_chip_to_ignore]
    if target.chip and target.chip in ignored:
        skip = f"specific_chip_to_ignore lists {target.chip} ({spec.name})"
    case = replace(
        base_case(spec, _BENCHMARK, Kind.BENCHMARK, target, (*modules, main), document.timeouts),
        parameters=tuple(parameters),
        inputs=tuple(Argument(value=text) for text in document.inputs),
        function=document.function_run,
        device=(document.device or _FIRST_DEVICE) if own_target or paired is None else paired.case.device,
        run_flags=_run_flags(document),
        compile_statistics=True,
        goldens=_read_goldens(spec, document, target, "" if own_target else f"{target.family}-"),
        golden_keys=tuple(document.golden_time or document.golden_time_ms),
        markers=frozenset({*document.markers, "benchmark"}) | _name_markers(target),
        skip_reason=skip,
        blocked_reason="; ".join(missing),
        notes=document.notes(),
    )
    return case, []


def _complete_module(
    spec: Spec, document: Benchmark, module: Module, problems: list[Problem], missing: list[str]
) -> Module:
    """Completes the module that a benchmark compiles for itself."""
    chip = (f"--iree-rocm-target={module.target.chip}",) if module.target.family == "rocm" else ()
    backend = () if document.device else ("--iree-hal-target-backends=rocm",)
    names = ("mlir_file_name", "mlir_file_path", "mlir_url", "mlir_file_url")
    field, name = next((field, text) for field in names if (text := getattr(document, field)))
    if field.endswith("_url") or is_url(name):
        url = resolve_url(spec, [field], name)
    else:
        find = machine_file if field == "mlir_file_path" else external_file
        found = find(spec, [field], name)
        if not isinstance(found, Problem) and not found.is_file():
            missing.append(f"the program {found} is missing ({field}); {EXTERNAL_HINT}")
        url = found if isinstance(found, Problem) else found.as_uri()
    if isinstance(url, Problem):
        problems.append(url)
        return module
    return replace(
        module, program=Program(url), flags=(*backend, *document.compile_flags, *chip), origin=Origin(spec.name, field)
    )


def _find_weights(
    spec: Spec, document: Benchmark, paired: Regression | None, problems: list[Problem], missing: list[str]
) -> tuple[Parameters, ...]:
    """The file that is named, or else the paired regression's archive, or one of another name that it downloads."""
    if document.real_weights_file_path:
        field = "real_weights_file_path"
        found = machine_file(spec, [field], document.real_weights_file_path)
        if isinstance(found, Problem):
            problems.append(found)
            return ()
        if not found.is_file():
            missing.append(f"the weights {found} are missing ({field})")
        return (Parameters("model", url=found.as_uri()),)
    wanted = document.real_weights_file_name
    if paired is None:
        if wanted and document.compilation_required:
            missing.append(f"no regression spec for {spec.model}/{spec.submodel} downloads {wanted!r}")
        return ()
    if not wanted or any(_name_file(item.url) == wanted for item in paired.parameters):
        return paired.parameters
    other = next((url for url in paired.urls if _name_file(url) == wanted), "")
    if other:
        return (Parameters("model", url=other),)
    has = ", ".join(sorted({_name_file(url) for url in paired.urls if url})) or "none"
    problems.append(
        problem(
            spec,
            ["real_weights_file_name"],
            f"{wanted!r} is not among the files of {paired.case.origin.file} (has: {has})",
            "Name the weights file that the regression spec downloads.",
        )
    )
    return ()


def _name_file(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _run_flags(document: Benchmark) -> tuple[str, ...]:
    """The two fields of older files as flags, then the written ones; a flag that stands in both stands once."""
    written = {flag.lstrip("-").split("=")[0] for flag in document.benchmark_flags}
    fields = {
        "benchmark_repetitions": document.benchmark_repetitions,
        "benchmark_min_warmup_time": document.benchmark_min_warmup_time,
    }
    flags = [
        f"--{name}={value:.0f}" if name == "benchmark_repetitions" else f"--{name}={value}"
        for name, value in fields.items()
        if value is not None and name not in written
    ]
    first = () if document.device else (_FIRST_FLAG,)
    return (*first, *flags, *document.benchmark_flags)


def _read_goldens(spec: Spec, document: Benchmark, target: Target, prefix: str) -> tuple[Golden, ...]:
    """Golden times belong to their SKU alone; counts and sizes to the SKU, or to the whole target family."""
    # Those of a further target have its family before the SKU: `vulkan-mi300`.
    goldens: list[Golden] = []
    sku = f"{prefix}{target.sku}" if target.sku else ""
    field = "golden_time" if document.golden_time else "golden_time_ms"
    times = document.golden_time or document.golden_time_ms
    if sku in times:
        factor = document.golden_time_tolerance_multiplier.get(sku, 1.0)
        origin = Origin(spec.name, f"{field}.{sku}")
        goldens.append(Golden(Metric.TIME_MS, times[sku], factor, Statistic.MEAN, target.sku, "", origin))
    figures = (
        (Metric.DISPATCH_COUNT, "golden_dispatch", document.golden_dispatch, 1.0),
        (Metric.BINARY_SIZE_BYTES, "golden_size", document.golden_size, 1.0),
        (Metric.INSTRUCTIONS, "golden_instructions", document.golden_instructions, WORK_MARGIN),
    )
    for metric, field, values, factor in figures:
        key = sku if sku in values else target.family
        if key in values:
            origin = Origin(spec.name, f"{field}.{key}")
            release = document.golden_compiler or ""
            named = target.sku if key == sku else key
            goldens.append(Golden(metric, float(values[key]), factor, Statistic.MEAN, named, release, origin))
    return tuple(goldens)
