"""Conversion of sharktank's specs to cases: regression tests of both generations, and benchmarks of their modules.

Commands are those of existing programs. A compile has the spec's flags as written, then the target's flags. A run is
`iree-run-module --device --module --function`, with threshold flags, inputs, expected outputs, parameters and the
pipeline's module, in this order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

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
)
from iree_gauntlet.device_kinds import CPU, ROCM
from iree_gauntlet.dialects.locations import EXTERNAL_HINT, SpecReader, is_url
from iree_gauntlet.dialects.sharktank_schema import (
    PROGRAMS,
    Benchmark,
    BenchmarkCall,
    Blob,
    RegressionCall,
    RegressionV1,
    RegressionV2,
)
from iree_gauntlet.dialects.spec import BENCHMARK, REGRESSION, Builder, Collector, Spec, make_case, make_duplicate
from iree_gauntlet.figures import SHARKTANK_GOLDENS, Figure, Statistic
from iree_gauntlet.stages import Kind, Stage
from iree_gauntlet.targets import Target, compose_chip_flags, flags_for, omit_processor
from iree_gauntlet.variants import TUNER_FILE_FLAG, sort_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from iree_gauntlet.dialects.selection import Include


_BACKEND_FLAG = "--iree-hal-target-backends"
# The default ROCm chip of the programs that run these specs today.
_DEFAULT_CHIP = "gfx942"
# The flag with which benchmarks of the first generation run. These benchmarks, and the modules that they compile, are
# for ROCm only.
_FIRST_GENERATION_FLAG = "--device_allocator=caching"


class Sharktank(Builder[Spec]):
    """The builder of sharktank's cases; a regression is built on first use, as benchmarks use regressions' modules."""

    def __init__(self, specs: Sequence[Spec], collector: Collector) -> None:
        super().__init__(specs, collector)
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

    def add(self, spec: Spec, includes: Sequence[Include]) -> None:
        """Add the cases of a spec on its targets."""
        families = {*spec.families}
        if isinstance(spec.document, Benchmark):
            # A benchmark also runs on the further targets of the regression for its own target that defines its module.
            name = f"{spec.model}_{spec.document.submodel_name or spec.submodel}"
            for family in spec.families:
                for regression in self._by_name.get((name, family), []):
                    targets = getattr(regression.document, "targets", {})
                    families |= {*targets} if family not in targets else set()
        matching_targets = {
            replace(target, chip=_DEFAULT_CHIP) if target.kind is ROCM and not target.chip else target: None
            for target in self.collector.targets
            if includes and target.family in families
        }
        words = {target: (spec.words or frozenset()) | _make_target_markers(target) for target in matching_targets}
        self.collector.known_markers.update(*words.values())
        selected_targets = [
            target
            for target in matching_targets
            if spec.words is None or self.collector.matches(words[target], includes)
        ]
        (self.collector.problems if selected_targets else self.collector.unselected_problems).update(spec.problems)
        self.collector.warnings.update(spec.warnings)
        for target in selected_targets if spec.document else ():
            for case in self._build(spec, target, families):
                self.collector.add(case, includes)

    def finish(self) -> None:
        """Add the regressions that are not selected, but whose modules the cases use."""
        cases = self.collector.cases
        module_ids = {module.id for case in cases if case.kind is not Kind.BENCHMARK for module in case.modules}
        for case in cases:
            for module in case.modules:
                is_external = module.program.url and module.origin.file != case.origin.file
                if module.id in module_ids or case.order is ArgumentOrder.MODULES_FIRST or not is_external:
                    continue
                if (regression := self._find(case.target, module.name)) is not None:
                    self.collector.needed_cases.setdefault(regression.id, regression)

    def _build(self, spec: Spec, target: Target, families: Collection[str] = ()) -> list[Case]:
        if isinstance(spec.document, Benchmark):
            benchmark = _BenchmarkReader(spec, spec.document, target, families)
            case = benchmark.build(partial(self._find, target))
            self.collector.problems.update(benchmark.problems)
            return [case] if case else []
        key = (spec.name, str(spec.path), target)
        if key not in self._built:
            reader = SpecReader(spec)
            self._built[key] = _build_regression(reader, target)
            self.collector.problems.update(reader.problems)
        return self._built[key]

    def _find(self, target: Target, name: str) -> Case | None:
        """Find a regression's case by its model and submodel; benchmarks may use its modules."""
        specs = self._by_name.get((name, target.family), [])
        if not specs:
            # An unreadable spec may be the intended spec, so report its problems.
            invalid_specs = [spec for spec in self._unread.get(name, []) if target.family in spec.families]
            self.collector.problems.update(problem for spec in invalid_specs for problem in spec.problems)
            return None
        for duplicate in specs[1:]:
            self.collector.problems.add(make_duplicate(f"module {name}", target, duplicate.name, specs[0].name))
        return next(iter(self._build(specs[0], target)), None)


def _make_target_markers(target: Target) -> frozenset[str]:
    return frozenset({target.family, target.chip or target.family})


@dataclass(frozen=True, slots=True)
class _TargetFields:
    """The fields of both generations under common names, for one target."""

    flags: tuple[str, ...]
    pipeline_flags: tuple[str, ...]
    threshold_args: tuple[str, ...]
    function: str
    device: str
    run_fails: str
    chips_failing: str = ""
    splat: bool = False


def _build_regression(reader: SpecReader, target: Target) -> list[Case]:
    """Build a spec's cases on a target: the main module's case, and another if the pipeline is only compiled."""
    spec, document = reader.spec, reader.spec.document
    assert isinstance(document, RegressionV1 | RegressionV2), "only these are built"
    tuner, file_flags, blocked_reason = _find_tuner(reader, document, target)
    if isinstance(document, RegressionV1):
        fields = _read_v1_fields(document, target, tuner)
    else:
        fields = _read_v2_fields(document, target, tuner)
    name = f"{spec.model}_{spec.submodel}"
    program, origin = (
        Program(reader.resolve_url(["mlir"], document.mlir), document.onnx_options),
        Origin(spec.name, "mlir"),
    )
    main = Module(name, MAIN, target, program, fields.flags, origin, splat=fields.splat, file_flags=file_flags)
    pipeline: tuple[Module, ...] = ()
    if document.pipeline_mlir:
        program = Program(reader.resolve_url(["pipeline_mlir"], document.pipeline_mlir))
        origin = Origin(spec.name, "pipeline_mlir")
        pipeline = (Module(name, "pipeline", target, program, fields.pipeline_flags, origin),)
    parameters: tuple[Parameters, ...] = ()
    if document.real_weights:
        parameters = (Parameters("model", url=reader.resolve_url(["real_weights"], document.real_weights)),)
    elif fields.splat:
        parameters = (Parameters("model", splat_of=main.id),)
    kind = Kind.COMPILE if document.compile_only else Kind.QUALITY
    case = replace(
        make_case(spec, REGRESSION, kind, target, (main,), document.timeouts),
        pipeline_modules=pipeline if document.add_pipeline_module or document.compile_only else (),
        parameters=parameters,
        calls=tuple(_read_calls(reader, document, fields.function)),
        device=fields.device,
        run_flags=fields.threshold_args,
        expectations=_read_expectations(spec, fields, target),
        markers=frozenset({*document.markers, "quality"}) | _make_target_markers(target),
        blocked_reason=blocked_reason,
    )
    if reader.problems:
        return []
    if not pipeline or case.pipeline_modules:
        return [case]
    pipeline_case = replace(case, parameters=(), calls=(Call(),), blocked_reason="")
    return [case, replace(pipeline_case, kind=Kind.COMPILE, modules=pipeline)]


def _find_tuner(
    reader: SpecReader, document: RegressionV1 | RegressionV2, target: Target
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], str]:
    """Return the SKU's tuner flag with a local file, or the flag and its URL; and a reason if the file is missing."""
    if target.kind is not ROCM or target.sku not in document.tuner_file:
        return (), (), ""
    field, name = ("tuner_file", target.sku), document.tuner_file[target.sku]
    if is_url(name):
        return (), ((TUNER_FILE_FLAG, reader.resolve_url(field, name)),), ""
    path = reader.find_external_file(field, name)
    message = f"the tuner file {path} is missing (tuner_file.{target.sku}); {EXTERNAL_HINT}"
    return (f"{TUNER_FILE_FLAG}={path}",), (), "" if path and path.is_file() else message


def _read_v1_fields(document: RegressionV1, target: Target, tuner_flags: tuple[str, ...]) -> _TargetFields:
    if target.kind is CPU:
        cpu_flags = omit_processor(target, document.cpu_compiler_flags)
        flags = (*cpu_flags, f"{_BACKEND_FLAG}={CPU.backend}", *compose_chip_flags(target))
        return _TargetFields(
            flags=flags,
            pipeline_flags=flags,
            threshold_args=tuple(document.cpu_threshold_args),
            function=document.run_cpu_function or "",
            device=CPU.device,
            run_fails="cpu_run_test_expecting_to_fail",
        )
    rocm_flags = (f"{_BACKEND_FLAG}={ROCM.backend}", f"--iree-hip-target={target.chip}")
    return _TargetFields(
        flags=(*document.rocm_compiler_flags, *rocm_flags, *tuner_flags),
        pipeline_flags=(*document.rocm_pipeline_compiler_flags, *rocm_flags),
        threshold_args=tuple(document.rocm_threshold_args),
        function=document.run_rocm_function or "",
        device=ROCM.device,
        run_fails="rocm_run_test_expecting_to_fail",
        chips_failing="rocm_compile_chip_expecting_to_fail",
    )


def _read_v2_fields(document: RegressionV2, target: Target, tuner_flags: tuple[str, ...]) -> _TargetFields:
    chip_flags = compose_chip_flags(target)
    fields = _TargetFields(
        flags=(*omit_processor(target, document.compiler_flags), *tuner_flags, *chip_flags),
        pipeline_flags=(*omit_processor(target, document.pipeline_compiler_flags), *chip_flags),
        threshold_args=tuple(document.threshold_args),
        function=document.run_function or "",
        device=document.device or "",
        run_fails="run_test_expecting_to_fail",
        chips_failing="compile_chip_expecting_to_fail",
        splat=not document.real_weights,
    )
    if target.family not in document.targets:
        return fields
    target_args = document.targets[target.family].threshold_args
    return replace(
        fields,
        flags=(*document.flags_for(target, document.compiler_flags), *tuner_flags),
        pipeline_flags=document.flags_for(target, document.pipeline_compiler_flags),
        threshold_args=fields.threshold_args if target_args is None else tuple(target_args),
        device=document.choose_device(target),
        run_fails="",
        chips_failing="",
    )


def _read_expectations(spec: Spec, fields: _TargetFields, target: Target) -> tuple[Expectation, ...]:
    results: list[Expectation] = []
    field = fields.chips_failing
    if target.chip and target.chip in getattr(spec.document, field, ()):
        results.append(Expectation(Stage.COMPILE, f"{field} lists {target.chip}", Origin(spec.name, field)))
    if getattr(spec.document, fields.run_fails, False):
        results.append(Expectation(Stage.THRESHOLD, f"{fields.run_fails} is true", Origin(spec.name, fields.run_fails)))
    return tuple(results)


def _read_calls(reader: SpecReader, document: RegressionV1 | RegressionV2, function: str) -> Iterator[Call]:
    """Yield the calls of a spec, which is one call itself if it does not list them."""
    if isinstance(document, RegressionV2) and document.calls:
        yield from _read_listed_calls(reader, document.calls)
    else:
        inputs = _read_arguments(reader, ["inputs"], document.inputs)
        yield Call(function, inputs, _read_arguments(reader, ["outputs"], document.outputs))


def _read_listed_calls(reader: SpecReader, calls: Sequence[RegressionCall | BenchmarkCall]) -> Iterator[Call]:
    for number, document in enumerate(calls):
        path: list[str | int] = ["calls", number]
        inputs = _read_arguments(reader, [*path, "inputs"], document.inputs)
        call = Call(document.function or "", inputs, field=f"calls[{number}].")
        if isinstance(document, BenchmarkCall):
            yield replace(call, is_timed=document.timed)
        else:
            outputs = _read_arguments(reader, [*path, "outputs"], document.outputs)
            changes = tuple(text.removeprefix("@") for text in document.changes)
            yield replace(call, expected_outputs=outputs, changes=changes)


def _read_arguments(reader: SpecReader, path: Sequence[str | int], blobs: Sequence[Blob | str]) -> tuple[Argument, ...]:
    arguments: list[Argument] = []
    for index, blob in enumerate(blobs):
        if isinstance(blob, str):
            arguments.append(Argument(value_of=blob.removeprefix("@")))
        else:
            url = reader.resolve_url([*path, index, "source"], blob.source) if blob.source else ""
            arguments.append(Argument(blob.value or "", url))
    return tuple(arguments)


class _BenchmarkReader(SpecReader):
    """A reader of a benchmark spec on a target of its families, which also collects missing modules and files."""

    def __init__(self, spec: Spec, document: Benchmark, target: Target, families: Collection[str]) -> None:
        super().__init__(spec)
        self._families = families
        self._document = document
        self._target = target
        # (field, message) of missing things; the field is empty for external files, which may be in another folder.
        self._missing: list[tuple[str, str]] = []

    def build(self, find: Callable[[str], Case | None]) -> Case | None:
        """Build the benchmark's case, or None if the spec has problems; `find` returns a regression's case by name."""
        spec, document, target = self.spec, self._document, self._target
        modules: list[Module] = []
        parameters: list[Parameters] = []
        for name in document.modules:
            regression = find(name)
            if regression is None:
                self._missing.append(("modules", f"no regression spec defines module {name!r} for {target.name}"))
            placeholder = Module(name, MAIN, target, Program(""), (), Origin(spec.name, "modules"))
            modules.append(regression.modules[0] if regression else placeholder)
            parameters.extend((regression and regression.parameters) or (Parameters("model"),))
        submodel = document.submodel_name or spec.submodel
        pair = find(f"{spec.model}_{submodel}")
        # A pipeline has only the weights of its modules.
        is_pipeline = document.compilation_required and document.modules
        weights = () if is_pipeline else self._find_weights(pair)
        module_name = f"{spec.model}_{spec.submodel}"
        main = pair.modules[0] if pair else Module(module_name, MAIN, target, Program(""), (), Origin(spec.name))
        is_own_target = target.family in spec.families
        if document.compilation_required:
            role = "benchmark" if find(module_name) else MAIN
            main = self._read_module(Module(module_name, role, target, Program(""), (), Origin(spec.name)))
            if weights and weights[0].splat_of:
                # The regression's archive is for the regression's program: generate another for this program.
                main, weights = replace(main, splat=True), (replace(weights[0], splat_of=main.id),)
            if not is_own_target:
                main = replace(main, flags=flags_for(target, main.flags))
        elif pair is None:
            message = f"no regression spec defines {spec.model}/{submodel} for {target.name}"
            self._missing.append(("submodel_name" if document.submodel_name else "function_run", message))
        if self.problems:
            return None
        skip = ""
        if target.chip and target.chip in (*document.specific_chip_to_ignore, *document.specific_rocm_chip_to_ignore):
            skip = f"specific_chip_to_ignore lists {target.chip} ({spec.name})"
        prefix = "" if is_own_target else f"{target.family}-"
        goldens, unused_goldens = _read_goldens(spec, document, target, self._families, prefix)
        only_call = Call(document.function_run or "", tuple(Argument(value=text) for text in document.inputs))
        return replace(
            make_case(spec, BENCHMARK, Kind.BENCHMARK, target, (*modules, main), document.timeouts),
            parameters=(*parameters, *weights),
            calls=tuple(_read_listed_calls(self, document.calls)) or (only_call,),
            device=(document.device or ROCM.device) if is_own_target or pair is None else pair.device,
            run_flags=_make_run_flags(document),
            compile_statistics=True,
            goldens=goldens,
            idle_goldens=unused_goldens,
            variant_goldens=tuple(
                (sort_names(name), _read_goldens(spec, document, target, self._families, prefix, name)[0])
                for name in document.variants
            ),
            golden_keys=tuple(document.golden_time or document.golden_time_ms),
            markers=frozenset({*document.markers, "benchmark"}) | _make_target_markers(target),
            skip_reason=skip,
            blocked_reason="; ".join(text for _, text in self._missing),
            blocked_field=next((field for field, _ in self._missing if field), ""),
            notes=document.list_notes(),
        )

    def _read_module(self, module: Module) -> Module:
        """Complete the module that a benchmark compiles itself."""
        document = self._document
        backend = () if document.device else (f"{_BACKEND_FLAG}={ROCM.backend}",)
        field, name = next((field, text) for field in PROGRAMS if (text := getattr(document, field)))
        if field.endswith("_url") or is_url(name):
            url = self.resolve_url([field], name)
        else:
            find = self.find_machine_file if field == "mlir_file_path" else self.find_external_file
            path = find([field], name)
            if path and not path.is_file():
                path_field = field if field.endswith("_path") else ""
                self._missing.append((path_field, f"the program {path} is missing ({field}); {EXTERNAL_HINT}"))
            url = path.as_uri() if path else ""
        flags = (*backend, *omit_processor(module.target, document.compile_flags), *compose_chip_flags(module.target))
        return replace(module, program=Program(url), flags=flags, origin=Origin(self.spec.name, field))

    def _find_weights(self, pair: Case | None) -> tuple[Parameters, ...]:
        """Find the weights: a file on this machine, the paired regression's archive, or a file that it downloads."""
        document, spec = self._document, self.spec
        if document.real_weights_file_path:
            path = self.find_machine_file(["real_weights_file_path"], document.real_weights_file_path)
            if path and not path.is_file():
                field = "real_weights_file_path"
                self._missing.append((field, f"the weights {path} are missing ({field})"))
            return (Parameters("model", url=path.as_uri()),) if path else ()
        file_name = document.real_weights_file_name
        if pair is None:
            if file_name and document.compilation_required:
                error = f"no regression spec for {spec.model}/{spec.submodel} downloads {file_name!r}"
                self._missing.append(("real_weights_file_name", error))
            return ()
        if not file_name or any(_get_file_name(argument.url) == file_name for argument in pair.parameters):
            return pair.parameters
        urls = [pair.modules[0].program.url, *(argument.url for argument in (*pair.inputs, *pair.expected_outputs))]
        urls += [argument.url for argument in pair.parameters]
        if weights_url := next((url for url in urls if _get_file_name(url) == file_name), ""):
            return (Parameters("model", url=weights_url),)
        available = ", ".join(sorted({_get_file_name(url) for url in urls if url})) or "none"
        error = f"{file_name!r} is not among the files of {pair.origin.file} (has: {available})"
        self.add_problem(["real_weights_file_name"], error, "Name the weights file that the regression spec downloads.")
        return ()


def _get_file_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _make_run_flags(document: Benchmark) -> tuple[str, ...]:
    """Return `benchmark_flags`, preceded by flags for two fields of older files; a flag in both occurs once."""
    flag_names = {flag.lstrip("-").split("=")[0] for flag in document.benchmark_flags}
    flags = [] if document.device else [_FIRST_GENERATION_FLAG]
    if document.benchmark_repetitions is not None and "benchmark_repetitions" not in flag_names:
        flags.append(f"--benchmark_repetitions={document.benchmark_repetitions:.0f}")
    if document.benchmark_min_warmup_time is not None and "benchmark_min_warmup_time" not in flag_names:
        flags.append(f"--benchmark_min_warmup_time={document.benchmark_min_warmup_time}")
    return (*flags, *document.benchmark_flags)


def _read_goldens(
    spec: Spec, document: Benchmark, target: Target, families: Collection[str], prefix: str, variant: str = ""
) -> tuple[tuple[Golden, ...], tuple[Golden, ...]]:
    """Return the goldens that apply to the target, and unused goldens: counts and sizes that only other SKUs have.

    Keys of the spec's other `families` are used on other targets. Times apply only to their SKU; counts and sizes to
    their SKU, their chip or the complete target family.
    """
    # The keys of a further target have its family before the SKU: `vulkan-mi300`.
    goldens: list[Golden] = []
    unused: list[Golden] = []
    sku = f"{prefix}{target.sku}" if target.sku else ""
    table = document.variants[variant] if variant else document
    path = f"variants.{variant}." if variant else ""
    field, times = "golden_time_ms", table.golden_time_ms
    if isinstance(table, Benchmark) and table.golden_time:
        field, times = "golden_time", table.golden_time
    if sku in times:
        factor = table.golden_time_tolerance_multiplier.get(sku, 1.0)
        origin = Origin(spec.name, f"{path}{field}.{sku}")
        goldens.append(
            Golden(Figure.TIME, times[sku], factor, Statistic.MEAN, target.sku, "", origin, sort_names(variant))
        )
    for field, figure in SHARKTANK_GOLDENS.items():
        values = getattr(table, field)
        matching_key = next((key for key in (sku, *target.golden_names) if key in values), "")
        other_keys = [key for key in values if not prefix and key.partition("-")[0] not in families]
        for key in [matching_key] if matching_key else other_keys:
            value = float(values[key])
            golden = Golden(
                metric=figure,
                value=value,
                factor=figure.golden.compute_factor(value),
                statistic=Statistic.MEAN,
                sku=target.sku if key == sku else key,
                release=document.golden_compiler or "",
                origin=Origin(spec.name, f"{path}{field}.{key}"),
                variant=sort_names(variant),
            )
            (goldens if matching_key else unused).append(golden)
    return tuple(goldens), tuple(unused)
