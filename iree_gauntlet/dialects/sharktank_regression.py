"""sharktank regression tests, both generations → modules and quality cases.

Commands follow the programs that people run: compile with the flags as written plus the target's, then
`iree-run-module --device --module --function`, threshold flags, inputs, expected outputs, parameters, and the
pipeline module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iree_gauntlet.cases import MAIN, Argument, Case, Expectation, Kind, Module, Origin, Parameters, Program, Stage
from iree_gauntlet.dialects.locations import EXTERNAL_HINT, external_file, is_url, resolve_url
from iree_gauntlet.dialects.sharktank_schema import Blob, RegressionV1, RegressionV2
from iree_gauntlet.dialects.spec import SourceFields, base_case
from iree_gauntlet.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.targets import Target


DIALECT = "sharktank-regression"
SOURCES = SourceFields("inputs[{}].source", "outputs[{}].source", "real_weights", ("mlir", "pipeline_mlir"))
_TUNER_FLAG = "--iree-codegen-transform-dialect-library"


@dataclass(frozen=True, slots=True)
class Regression:
    """What a regression spec means on one target: its cases, and the modules that others may use.

    Attributes:
        case: the main module's, with the pipeline where that is loaded.
        companion: of a pipeline that is compiled and not loaded; None for none.
        main: the module that other specs refer to.
        parameters: the archive that it runs with.
        urls: every file that the spec names.
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


def build_regression(spec: Spec, target: Target) -> tuple[Regression | None, list[Problem]]:
    """What a spec means on a target.

    Returns:
        The regression, or None where its problems leave nothing to run; and the problems.
    """
    document = spec.document
    assert isinstance(document, RegressionV1 | RegressionV2), "only these are built"
    problems: list[Problem] = []

    def url(path: Sequence[str | int], source: str) -> str:
        resolved = resolve_url(spec, path, source)
        if isinstance(resolved, Problem):
            problems.append(resolved)
            return ""
        return resolved

    tuner = _tuner(spec, document, target, problems)
    if isinstance(document, RegressionV1):
        fields = _first(document, target, tuner.flags)
    else:
        fields = _second(document, target, tuner.flags)
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
    inputs = _arguments(document.inputs, "inputs", url)
    outputs = _arguments(document.outputs, "outputs", url)
    case = replace(
        base_case(spec, DIALECT, Kind.COMPILE if document.compile_only else Kind.QUALITY, target, (main,)),
        extra_modules=pipeline if document.add_pipeline_module or document.compile_only else (),
        parameters=parameters,
        inputs=inputs,
        expected_outputs=outputs,
        function=fields.function,
        device=fields.device,
        run_flags=fields.threshold_args,
        expectations=_expectations(spec, fields, target),
        markers=frozenset({*document.markers, target.family, target.chip or target.family, "quality"}),
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


def _tuner(spec: Spec, document: RegressionV1 | RegressionV2, target: Target, problems: list[Problem]) -> _Tuner:
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


def _first(document: RegressionV1, target: Target, tuner: tuple[str, ...]) -> _Fields:
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


def _second(document: RegressionV2, target: Target, tuner: tuple[str, ...]) -> _Fields:
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


def _expectations(spec: Spec, fields: _Fields, target: Target) -> tuple[Expectation, ...]:
    found: list[Expectation] = []
    field = fields.chips_failing
    if target.chip and target.chip in getattr(spec.document, field, ()):
        found.append(Expectation(Stage.COMPILE, f"{field} lists {target.chip}", Origin(spec.name, field)))
    if getattr(spec.document, fields.run_fails, False):
        found.append(Expectation(Stage.THRESHOLD, f"{fields.run_fails} is true", Origin(spec.name, fields.run_fails)))
    return tuple(found)


def _arguments(blobs: list[Blob], field: str, url: Callable[[Sequence[str | int], str], str]) -> tuple[Argument, ...]:
    return tuple(
        Argument(blob.value or "", url([field, index, "source"], blob.source) if blob.source else "")
        for index, blob in enumerate(blobs)
    )
