"""sharktank benchmarks → benchmark cases on the modules that regression specs define."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.cases import (
    MAIN,
    WORK_MARGIN,
    Argument,
    Case,
    Golden,
    Kind,
    Metric,
    Module,
    Origin,
    Parameters,
    Program,
    Statistic,
)
from iree_gauntlet.dialects.locations import EXTERNAL_HINT, external_file, is_url, machine_file, problem, resolve_url
from iree_gauntlet.dialects.sharktank_schema import Benchmark
from iree_gauntlet.dialects.spec import SourceFields, base_case
from iree_gauntlet.errors import Problem
from iree_gauntlet.targets import flags_for

if TYPE_CHECKING:
    from iree_gauntlet.dialects.sharktank_regression import Regression
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.targets import Target


DIALECT = "sharktank-benchmark"
# Its weights are its regression's.
SOURCES = SourceFields(programs=("mlir_url", "mlir_file_url"))

# What benchmarks of the first generation run on, and with; their own modules are compiled for it.
_FIRST_DEVICE = "hip"
_FIRST_FLAG = "--device_allocator=caching"

# The regression that defines `<model>_<submodel>`, or None where no spec does.
_FindRegression = Callable[[str], "Regression | None"]


def build_benchmark(spec: Spec, target: Target, find: _FindRegression) -> tuple[Case | None, list[Problem]]:
    """What a benchmark spec means on a target.

    Args:
        spec: a spec whose document is a `Benchmark`.
        target: where.
        find: looks up the regression that defines a module on this target.

    Returns:
        The case, or None where its problems leave nothing to run; and the problems. A module that no spec
        defines is no such problem: the case is blocked and says so.
    """
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
    weights = () if is_pipeline else _weights(spec, document, paired, problems, missing)
    if document.compilation_required:
        role = "benchmark" if find(own) else MAIN
        module = Module(own, role, target, Program(""), (), Origin(spec.name))
        if weights and weights[0].splat_of:
            # The pair's archive is of the pair's program: this one makes its own.
            module, weights = replace(module, splat=True), (replace(weights[0], splat_of=module.id),)
        main = _own_module(spec, document, module, problems, missing)
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
        base_case(spec, DIALECT, Kind.BENCHMARK, target, (*modules, main)),
        parameters=tuple(parameters),
        inputs=tuple(Argument(value=text) for text in document.inputs),
        function=document.function_run,
        device=(document.device or _FIRST_DEVICE) if own_target or paired is None else paired.case.device,
        run_flags=_run_flags(document),
        compile_statistics=True,
        goldens=_goldens(spec, document, target, "" if own_target else f"{target.family}-"),
        golden_keys=tuple(document.golden_time or document.golden_time_ms),
        markers=frozenset({*document.markers, target.family, target.chip or target.family, "benchmark"}),
        skip_reason=skip,
        blocked_reason="; ".join(missing),
        notes=document.notes(),
    )
    return case, []


def _own_module(spec: Spec, document: Benchmark, module: Module, problems: list[Problem], missing: list[str]) -> Module:
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


def _weights(
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
    if not wanted or any(_file_name(item.url) == wanted for item in paired.parameters):
        return paired.parameters
    other = next((url for url in paired.urls if _file_name(url) == wanted), "")
    if other:
        return (Parameters("model", url=other),)
    has = ", ".join(sorted({_file_name(url) for url in paired.urls if url})) or "none"
    problems.append(
        problem(
            spec,
            ["real_weights_file_name"],
            f"{wanted!r} is not among the files of {paired.case.origin.file} (has: {has})",
            "Name the weights file that the regression spec downloads.",
        )
    )
    return ()


def _file_name(url: str) -> str:
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


def _goldens(spec: Spec, document: Benchmark, target: Target, prefix: str) -> tuple[Golden, ...]:
    """Golden times belong to their SKU alone; counts and sizes to the SKU, or to the whole target family.

    Those of a further target have its family before the SKU: `vulkan-mi300`.
    """
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
