"""The documents of the sharktank dialects: both generations of regression tests, and benchmarks.

Field by field as the programs that people run today understand them; fields marked *ours* are additions
that those programs ignore.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic looks it up
from typing import Annotated, Any

from pydantic import Field, model_validator

from iree_gauntlet.dialects.fields import (
    TENSOR_TYPE,
    Count,
    Document,
    Family,
    Flag,
    InputText,
    PlainName,
    Positive,
    ProgramDocument,
    RelativePath,
    Releases,
    TargetOptions,
    Text,
    Timeouts,
    Truth,
    WholeNumber,
    WithTargets,
    Word,
    in_schema,
    present,
    require_literal,
    require_no_type,
    require_type,
    when_true,
)
from iree_gauntlet.dialects.spec_file import FieldError

# Fields of benchmarks by their older names.
_PROGRAMS = ("mlir_file_name", "mlir_file_path", "mlir_url", "mlir_file_url")
_NEWER_NAMES = {"golden_time": "golden_time_ms", "specific_rocm_chip_to_ignore": "specific_chip_to_ignore"}


class Blob(Document):
    """A file and, for raw bytes, its type; or values without a file (*ours*)."""

    model_config = in_schema(
        anyOf=[present("source"), present("value")],
        **{"if": present("source"), "then": {"properties": {"value": {"pattern": f"^(?:{TENSOR_TYPE.pattern})$"}}}},
    )

    source: Text | None = None
    value: Text | None = None

    @model_validator(mode="after")
    def _says_what_it_is(self) -> Blob:
        if self.source is None and self.value is None:
            raise ValueError("has neither 'source' nor 'value': give at least one")
        if self.value and self.source:
            require_no_type(self.value, self.source)
            require_type(self.value, "source")
        elif self.value:
            require_literal(self.value, "source")
        return self


class _Common(Document):
    description: str = ""  # ours
    markers: list[Word] = Field(default_factory=list)  # ours
    timeouts: Timeouts = Field(default_factory=dict)  # ours


class _Regression(ProgramDocument, _Common):
    inputs: list[Blob] = Field(default_factory=list)
    outputs: list[Blob] = Field(default_factory=list)
    real_weights: Text | None = None
    pipeline_mlir: Text | None = None
    add_pipeline_module: Truth = False
    compile_only: Truth = False
    tuner_file: dict[str, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _parts_fit(self) -> _Regression:
        if self.add_pipeline_module and not self.pipeline_mlir:
            raise FieldError("add_pipeline_module", "is true, but there is no pipeline_mlir to add")
        return self


class RegressionV1(_Regression):
    """Generation 1: one file for the CPU and ROCm."""

    cpu_compiler_flags: list[Flag] = Field(default_factory=list)
    rocm_compiler_flags: list[Flag] = Field(default_factory=list)
    rocm_pipeline_compiler_flags: list[Flag] = Field(default_factory=list)
    cpu_threshold_args: list[Flag] = Field(default_factory=list)
    rocm_threshold_args: list[Flag] = Field(default_factory=list)
    run_cpu_function: Text | None = None
    run_rocm_function: Text | None = None
    cpu_run_test_expecting_to_fail: Truth = False
    rocm_run_test_expecting_to_fail: Truth = False
    rocm_compile_chip_expecting_to_fail: list[Text] = Field(default_factory=list)
    rocm_tests_only: Truth = False


class RegressionTarget(TargetOptions):
    """What is otherwise on a further target of a regression test (*ours*)."""

    threshold_args: list[Flag] | None = None


class RegressionV2(_Regression, WithTargets):
    """Generation 2: a file for each backend; with `targets`, for others as well."""

    model_config = in_schema(**{"if": when_true("compile_only"), "else": present("device")})

    compiler_flags: list[Flag] = Field(default_factory=list)
    pipeline_compiler_flags: list[Flag] = Field(default_factory=list)
    threshold_args: list[Flag] = Field(default_factory=list)
    targets: Mapping[Family, RegressionTarget] = Field(default_factory=dict)  # ours
    run_function: Text | None = None
    device: Text | None = None
    run_test_expecting_to_fail: Truth = False
    compile_chip_expecting_to_fail: list[Text] = Field(default_factory=list)
    custom_real_weights_group: Text | None = None

    @model_validator(mode="after")
    def _has_a_device(self) -> RegressionV2:
        if not self.compile_only and not self.device:
            raise FieldError("device", "is missing: a spec that is not compile_only names the device it runs on")
        return self


class Benchmark(_Common):
    """A benchmark of a module that a regression spec, or its own fields, define.

    The first generation is for ROCm alone: no `device`, no `benchmark_flags`, and `golden_time`.
    """

    model_config = in_schema(
        anyOf=[
            present("device"),
            {"required": ["benchmark_repetitions"], "properties": {"benchmark_flags": {"maxItems": 0}}},
        ],
        **{"if": when_true("compilation_required"), "then": {"anyOf": [present(name) for name in _PROGRAMS]}},
    )

    inputs: list[InputText]
    function_run: Text
    device: Text | None = None
    submodel_name: Text | None = None
    benchmark_repetitions: WholeNumber | None = None
    benchmark_min_warmup_time: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    benchmark_flags: list[Flag] = Field(default_factory=list)
    compilation_required: Truth = False
    compiled_file_name: RelativePath | None = None
    compile_flags: list[Flag] = Field(default_factory=list)
    mlir_file_name: PlainName | None = None
    mlir_file_path: Text | None = None
    mlir_file_url: Text | None = None
    mlir_url: Text | None = None
    modules: list[Text] = Field(default_factory=list)
    real_weights_file_name: PlainName | None = None
    real_weights_file_path: Text | None = None
    specific_chip_to_ignore: list[Text] = Field(default_factory=list)
    specific_rocm_chip_to_ignore: list[Text] = Field(default_factory=list)
    golden_time_ms: dict[str, Positive] = Field(default_factory=dict)
    golden_time: dict[str, Positive] = Field(default_factory=dict)
    golden_time_tolerance_multiplier: dict[str, Positive] = Field(default_factory=dict)
    golden_dispatch: dict[str, Count] = Field(default_factory=dict)
    golden_size: dict[str, Count] = Field(default_factory=dict)
    golden_instructions: dict[str, Count] = Field(default_factory=dict)  # ours
    golden_compiler: Releases | None = None  # ours

    def notes(self) -> tuple[str, ...]:
        """What is written otherwise today."""
        missing = "device is missing, as in the first generation: hip with --device_allocator=caching is meant"
        notes = [f"{old} is the older name of {new}" for old, new in _NEWER_NAMES.items() if getattr(self, old)]
        return tuple(notes if self.device else [missing, *notes])

    @model_validator(mode="after")
    def _has_a_device(self) -> Benchmark:
        if self.device is None and (self.benchmark_flags or self.benchmark_repetitions is None):
            raise FieldError("device", "is missing: the field is required")
        return self

    @model_validator(mode="after")
    def _names_one_program_and_one_archive(self) -> Benchmark:
        if self.compilation_required and not any(getattr(self, name) for name in _PROGRAMS):
            message = "is true, but neither mlir_file_name nor mlir_file_path nor mlir_file_url says what to compile"
            raise FieldError("compilation_required", message)
        archives = ("real_weights_file_name", "real_weights_file_path")
        for names in (_PROGRAMS, archives, ("golden_time_ms", "golden_time")):
            first, *others = [name for name in names if getattr(self, name)] or [""]
            if others:
                raise FieldError(others[0], f"says what {first} does; keep one of the two")
        return self

    @model_validator(mode="after")
    def _flags_agree(self) -> Benchmark:
        for name in ("benchmark_repetitions", "benchmark_min_warmup_time"):
            field: Any = getattr(self, name)
            written = [
                flag.split("=", 1)[1] for flag in self.benchmark_flags if flag.lstrip("-").startswith(f"{name}=")
            ]
            other = [value for value in written if field is not None and not _same_number(value, field)]
            if other:
                raise FieldError(name, f"is {field:g}, but benchmark_flags say {other[0]}; keep one of the two")
        return self


def _same_number(text: str, number: float) -> bool:
    try:
        return float(text.rstrip("s")) == number
    except ValueError:
        return False
