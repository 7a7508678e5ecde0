"""The documents of the sharktank dialects: both generations of regression tests, and benchmarks.

Each field has the meaning that existing programs give it; fields marked *ours* are additions that
those programs ignore.
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - pydantic looks it up
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Field, Tag, model_validator

from iree_gauntlet.device_kinds import CPU, ROCM
from iree_gauntlet.dialects.fields import (
    OWN_TARGET_HINT,
    OWN_TARGET_PROBLEM,
    TARGETS_DESCRIPTION,
    TENSOR_TYPE,
    Count,
    Device,
    Family,
    Flag,
    Flags,
    ForPeople,
    GoldenCompiler,
    InputText,
    PlainName,
    Positive,
    ProgramDocument,
    RelativePath,
    StrictDocument,
    TargetOptions,
    Text,
    Texts,
    Timeouts,
    Truth,
    WholeNumber,
    WithTargets,
    Word,
    about,
    expect,
    make_list,
    make_schema_config,
    require_fields,
    require_literal,
    require_true,
    require_type,
    validate,
)
from iree_gauntlet.dialects.spec import ROOT_NAMES, SHARKTANK, Spec, SpecTree, read_marker_words
from iree_gauntlet.dialects.spec_file import BRANCH, FieldError, load_json, make_problem_at, shorten_path
from iree_gauntlet.errors import Problem
from iree_gauntlet.figures import SHARKTANK_GOLDENS
from iree_gauntlet.formatting import split_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


_Counts = Annotated[dict[str, Count], Field(default_factory=dict)]
_Factors = Annotated[dict[str, Positive], Field(default_factory=dict)]
# The fields that may name a benchmark's program.
PROGRAMS = ("mlir_file_name", "mlir_file_path", "mlir_url", "mlir_file_url")
_NEWER_NAMES = {"golden_time": "golden_time_ms", "specific_rocm_chip_to_ignore": "specific_chip_to_ignore"}
# The names of spec files end in one of these families.
_FAMILIES_IN_NAMES = (CPU.family, ROCM.family)


_BLOB_FIELDS = ("source", "value")
# The numbers, and the types with numbers, that `run_calls.py` reads from a flag.
_DECIMAL = re.compile(r"[+-]?[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?")
_NUMBER_TYPE = re.compile(r"(?:\d+x)*(?:[su]?i(?:8|16|32|64)|b?f16|f32|f64)")
# These fields describe the only call of a spec without `calls`.
_FIELDS_OF_A_CALL = ("run_function", "inputs", "outputs")


def _require(name: str) -> dict[str, Any]:
    """Return the condition of a JSON Schema that a text field is present and not empty."""
    return {"required": [name], "properties": {name: {"type": "string", "minLength": 1}}}


class Blob(StrictDocument):
    """A file and, for raw bytes, its type; or values without a file (*ours*)."""

    model_config = make_schema_config(
        anyOf=[_require("source"), _require("value")],
        **{"if": _require("source"), "then": {"properties": {"value": {"pattern": f"^(?:{TENSOR_TYPE.pattern})?$"}}}},
    )

    source: Text | None = about(
        None, "A file relative to the spec, or a URL: https, az, s3, gs, hf, pypi, file, random."
    )
    value: Text | None = about(
        None, "Type of raw bytes, such as 1x64xf16 (a .npy file has its own); without a source, values: 4xf32=1 2 3 4."
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, document: object) -> object:
        """Drop an empty field if the other field is given, because sharktank's page writes both fields."""
        if isinstance(document, dict) and any(document.get(name) for name in _BLOB_FIELDS):
            return {name: value for name, value in document.items() if name not in _BLOB_FIELDS or value != ""}
        return document

    @model_validator(mode="after")
    def _check_source(self) -> Blob:
        if self.source is None and self.value is None:
            raise ValueError("has neither 'source' nor 'value': give at least one")
        if self.value and self.source:
            require_type(self.value, self.source, "source")
        elif self.value:
            require_literal(self.value, "source")
        return self


_CallOutput = Annotated[
    str,
    expect(
        "an output of an earlier call such as @0.1, which is output 1 of call 0", re.compile(r"@\d+\.\d+").fullmatch
    ),
]
_CallValue = Annotated[
    str,
    expect(
        "a value of an earlier call such as @0.1, which is output 1 of call 0, or @0.input1",
        re.compile(r"@\d+\.(?:input)?\d+").fullmatch,
    ),
]
_CallInput = Annotated[
    Annotated[_CallValue, Tag(f"{BRANCH}text")] | Annotated[Blob, Tag(f"{BRANCH}object")],
    Discriminator(lambda value: f"{BRANCH}text" if isinstance(value, str) else f"{BRANCH}object"),
]


class RegressionCall(StrictDocument):
    """One of several calls that a regression test makes on one instance of its modules (*ours*)."""

    function: Text | None = about(None, "Function to call; optional if a module exports only one.")
    inputs: list[_CallInput] = Field(
        default_factory=make_list,
        description="Arguments of the function, in order; @0.1 is output 1 of call 0, @0.input1 input 1.",
    )
    outputs: list[Blob] = Field(default_factory=make_list, description="Expected outputs, in order.")
    changes: list[_CallOutput] = Field(
        default_factory=make_list, description="Outputs of earlier calls that the call changes in place, such as @0.1."
    )


class BenchmarkCall(StrictDocument):
    """One of several calls that a benchmark makes on one instance of its modules (*ours*)."""

    function: Text | None = about(None, "Function to call; optional if a module exports only one.")
    inputs: list[_CallInput] = Field(
        default_factory=make_list,
        description="Arguments of the function, in order; @0.1 is output 1 of call 0, @0.input1 input 1.",
    )
    timed: Truth = about(False, "Its time counts; without any timed call, that of the last call does.")


def _check_calls(calls: Sequence[RegressionCall | BenchmarkCall]) -> None:
    """Raise FieldError for an argument that several calls cannot have."""
    for number, call in enumerate(calls):
        sources: dict[str, Sequence[Blob | str]] = {"inputs": call.inputs}
        if isinstance(call, RegressionCall):
            sources |= {"outputs": [*call.outputs], "changes": [*call.changes]}
        for name, values in sources.items():
            for index, source in enumerate(values):
                place: list[str | int] = [number, name, index]
                if isinstance(source, str):
                    message = _explain_no_value(source, number, calls)
                else:
                    message, place = _explain_no_number(source, len(calls)), [*place, "value"]
                if message:
                    error = FieldError("calls", message)
                    error.path += place
                    raise error


def _explain_no_number(blob: Blob, call_count: int) -> str:
    """Return why several calls cannot read a value without a file; empty if they can, or if there is one call."""
    head, _, contents = (blob.value or "").partition("=")
    tokens = split_values(contents)
    is_decimal = not tokens or (_NUMBER_TYPE.fullmatch(head) and all(map(_DECIMAL.fullmatch, tokens)))
    if blob.source or call_count < 2 or (is_decimal and TENSOR_TYPE.fullmatch(head)):
        return ""
    return (
        f"{blob.value!r} must be decimal numbers with their type, such as 4xf32=1 2 3 4; "
        "write others, and those of i1, complex and f8, to a file"
    )


def _explain_no_value(text: str, number: int, calls: Sequence[RegressionCall | BenchmarkCall]) -> str:
    """Return why a text names no value of a call before a call with a number; empty if it may name one."""
    call_text, _, place = text.removeprefix("@").partition(".")
    call, index = int(call_text), int(place.removeprefix("input"))
    if call >= number:
        earlier = f"0 to {number - 1}" if number > 1 else "only call 0" if number else "none"
        return f"{text} is of call {call}, which is not before call {number} (earlier calls: {earlier})"
    source = calls[call]
    if place.startswith("input"):
        count = len(source.inputs)
        return f"{text}: call {call} has {count} inputs" * (index >= count)
    count = len(source.outputs) if isinstance(source, RegressionCall) else 0
    return f"{text}: call {call} has {count} expected outputs" * (0 < count <= index)


class _Common(StrictDocument):
    description: ForPeople  # ours
    markers: list[Word] = Field(default_factory=make_list, description="Words to select by.")  # ours
    timeouts: Timeouts  # ours


class _Regression(ProgramDocument, _Common):
    inputs: list[Blob] = Field(default_factory=make_list, description="Arguments of the function, in order.")
    outputs: list[Blob] = Field(default_factory=make_list, description="Expected outputs, in order.")
    real_weights: Text | None = about(
        None, "Archive of weights (IRPA). Without it, the compile writes one with equal values."
    )
    pipeline_mlir: Text | None = about(None, "A second module to compile.")
    add_pipeline_module: Truth = about(False, "Also load the second module, after the main one.")
    compile_only: Truth = about(False, "Compile without running.")
    tuner_file: dict[str, Text] = Field(
        default_factory=dict, description="Transform dialect libraries by SKU, on ROCm."
    )

    @model_validator(mode="after")
    def _check_parts(self) -> _Regression:
        if self.add_pipeline_module and not self.pipeline_mlir:
            raise FieldError("add_pipeline_module", "is true, but pipeline_mlir is missing")
        return self


class RegressionV1(_Regression):
    """Generation 1: one file for the CPU and ROCm."""

    cpu_compiler_flags: Flags = Field(description="Flags of iree-compile on the CPU.")
    rocm_compiler_flags: Flags = Field(description="Flags of iree-compile on ROCm.")
    rocm_pipeline_compiler_flags: Flags = Field(description="Flags on ROCm for the second module.")
    cpu_threshold_args: Flags = Field(description="More flags for iree-run-module on the CPU.")
    rocm_threshold_args: Flags = Field(description="More flags for iree-run-module on ROCm.")
    run_cpu_function: Text | None = about(None, "Function to run on the CPU.")
    run_rocm_function: Text | None = about(None, "Function to run on ROCm.")
    cpu_run_test_expecting_to_fail: Truth = about(False, "The threshold step is expected to fail on the CPU.")
    rocm_run_test_expecting_to_fail: Truth = about(False, "The threshold step is expected to fail on ROCm.")
    rocm_compile_chip_expecting_to_fail: Texts = Field(description="Chips on which the compile is expected to fail.")
    rocm_tests_only: Truth = about(False, "Skip everything on the CPU.")


class RegressionTarget(TargetOptions):
    """What differs on another target of a regression test (*ours*)."""

    threshold_args: list[Flag] | None = about(
        None, "More flags for iree-run-module, such as --expected_f16_threshold=1.0f."
    )


class RegressionV2(_Regression, WithTargets):
    """Generation 2: a file for each backend; with `targets`, for others as well."""

    model_config = make_schema_config(**{"if": require_true("compile_only"), "else": require_fields("device")})

    compiler_flags: Flags = Field(description="Flags of iree-compile.")
    pipeline_compiler_flags: Flags = Field(description="Flags for the second module.")
    threshold_args: Flags = Field(description="More flags for iree-run-module, such as --expected_f16_threshold=1.0f.")
    targets: Mapping[Family, RegressionTarget] = Field(default_factory=dict, description=TARGETS_DESCRIPTION)  # ours
    run_function: Text | None = about(None, "Function to run; optional if a module exports only one.")
    calls: list[RegressionCall] = Field(
        default_factory=make_list,
        min_length=1,
        description="Calls, in order, in place of run_function, inputs and outputs.",
    )  # ours
    device: Device
    run_test_expecting_to_fail: Truth = about(False, "The threshold step is expected to fail.")
    compile_chip_expecting_to_fail: Texts = Field(description="Chips on which the compile is expected to fail.")
    custom_real_weights_group: Text | None = about(None, "Accepted, but ignored: each file is fetched once anyway.")

    @model_validator(mode="after")
    def _has_a_device(self) -> RegressionV2:
        if not self.compile_only and not self.device:
            raise FieldError("device", "is missing: a spec that is not compile_only must name its device")
        return self

    @model_validator(mode="after")
    def _check_calls(self) -> RegressionV2:
        if self.calls and (field := next((name for name in _FIELDS_OF_A_CALL if getattr(self, name)), "")):
            raise FieldError("calls", f"is given with {field}: write {field} into the calls")
        _check_calls(self.calls)
        return self


class Goldens(StrictDocument):
    """Goldens of a benchmark."""

    golden_time_ms: _Factors = Field(description="Milliseconds that a run may take, by SKU, or by cpu.")
    golden_time_tolerance_multiplier: _Factors = Field(
        description="Limit as a multiple of the golden time, by SKU, or by cpu."
    )
    # The goldens of instructions are ours.
    __annotations__ |= {
        name: Annotated[_Counts, Field(description=f"{figure.row.limit}, by SKU, or by cpu.")]
        for name, figure in SHARKTANK_GOLDENS.items()
    }


class Benchmark(_Common, Goldens):
    """A benchmark of a module that a regression spec, or its own fields, define.

    The first generation is for ROCm alone: no `device`, no `benchmark_flags`, and `golden_time`.
    """

    model_config = make_schema_config(
        anyOf=[
            require_fields("device"),
            {"required": ["benchmark_repetitions"], "properties": {"benchmark_flags": {"maxItems": 0}}},
        ],
        oneOf=[require_fields("inputs", "function_run"), require_fields("calls")],
        **{"if": require_true("compilation_required"), "then": {"anyOf": [require_fields(name) for name in PROGRAMS]}},
    )

    inputs: list[InputText] = Field(
        default_factory=make_list, description="Each is one --input=: 1x64xi64 (zeros), 1xf32=3.0."
    )
    function_run: Text | None = about(None, "Function to measure.")
    calls: list[BenchmarkCall] = Field(
        default_factory=make_list, min_length=1, description="Calls, in order, in place of function_run and inputs."
    )  # ours
    device: Device
    submodel_name: Text | None = about(None, "Submodel whose module and weights are measured, if not the file's own.")
    benchmark_repetitions: WholeNumber | None = about(None, "--benchmark_repetitions, in the style of older files.")
    benchmark_min_warmup_time: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = about(
        None, "--benchmark_min_warmup_time, in the style of older files."
    )
    benchmark_flags: Flags = Field(description="More flags for iree-benchmark-module.")
    compilation_required: Truth = about(False, "It compiles a program of its own.")
    compiled_file_name: RelativePath | None = about(None, "Accepted, but ignored: modules are kept in the cache.")
    compile_flags: Flags = Field(description="Flags of iree-compile for its own program.")
    mlir_file_name: PlainName | None = about(None, "Its own program: an external file.")
    mlir_file_path: Text | None = about(None, "Its own program: a path.")
    mlir_file_url: Text | None = about(None, "Its own program: a URL.")
    mlir_url: Text | None = about(None, "Its own program: a URL.")
    modules: Texts = Field(description="<model>_<submodel> of modules to load before it, each with its weights.")
    real_weights_file_name: PlainName | None = about(None, "Another file of weights that the paired test downloads.")
    real_weights_file_path: Text | None = about(None, "A file of weights on this machine.")
    specific_chip_to_ignore: Texts = Field(description="Chips on which it is skipped.")
    specific_rocm_chip_to_ignore: Texts = Field(description="The older name of specific_chip_to_ignore.")
    golden_time: _Factors = Field(description="The older name of golden_time_ms.")
    variants: dict[str, Goldens] = Field(default_factory=dict, description="Goldens of variants, by name.")  # ours
    golden_compiler: GoldenCompiler  # ours

    def list_notes(self) -> tuple[str, ...]:
        """Return a note for each outdated field."""
        device_note = "device is missing, as in the first generation: using hip with --device_allocator=caching"
        notes = [f"{old} is the older name of {new}" for old, new in _NEWER_NAMES.items() if getattr(self, old)]
        return tuple(notes if self.device else [device_note, *notes])

    @model_validator(mode="after")
    def _check_parts(self) -> Benchmark:
        if self.device is None and (self.benchmark_flags or self.benchmark_repetitions is None):
            raise FieldError("device", "is missing: the field is required")
        for field in ("inputs", "function_run"):
            if self.calls and getattr(self, field):
                raise FieldError("calls", f"is given with {field}: write it into the calls")
            if not self.calls and (field not in self.model_fields_set or getattr(self, field) is None):
                raise FieldError(field, "is missing: only a benchmark with calls omits it")
        if len(self.calls) == 1 and not self.calls[0].function:
            raise FieldError("calls", "the only call has no function: a benchmark of one call names it")
        _check_calls(self.calls)
        if self.compilation_required and not any(getattr(self, name) for name in PROGRAMS):
            message = "is true, but none of mlir_file_name, mlir_file_path and mlir_file_url is given"
            raise FieldError("compilation_required", message)
        archives = ("real_weights_file_name", "real_weights_file_path")
        for names in (PROGRAMS, archives, ("golden_time_ms", "golden_time")):
            first, *duplicates = [name for name in names if getattr(self, name)] or [""]
            if duplicates:
                raise FieldError(duplicates[0], f"duplicates {first}; keep one of the two")
        return self

    @model_validator(mode="after")
    def _check_flags(self) -> Benchmark:
        for name in ("benchmark_repetitions", "benchmark_min_warmup_time"):
            field: Any = getattr(self, name)
            flag_values = [
                flag.split("=", 1)[1] for flag in self.benchmark_flags if flag.lstrip("-").startswith(f"{name}=")
            ]
            differing = [value for value in flag_values if field is not None and not _is_same_number(value, field)]
            if differing:
                raise FieldError(name, f"is {field:g}, but benchmark_flags set {differing[0]}; keep one of the two")
        return self


def _is_same_number(text: str, number: float) -> bool:
    try:
        return float(text.rstrip("s")) == number
    except ValueError:
        return False


_AnyDocument = RegressionV1 | RegressionV2 | Benchmark
_DOCUMENTS: tuple[type[_AnyDocument], ...] = (RegressionV1, RegressionV2, Benchmark)
_UNIQUE_FIELDS = {
    kind: frozenset(kind.model_fields).difference(*(model.model_fields for model in _DOCUMENTS if model is not kind))
    for kind in _DOCUMENTS
}


def read_sharktank_specs(tree: SpecTree, root: Path) -> Iterator[Spec]:
    """Yield the specs in the models' folders of a root."""
    models = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = [path for model in models for path in _list_json(model)]
    if root.name in ROOT_NAMES:
        # Warn about files outside of the models' folders, which may be meant as specs.
        message = f"is not read: specs must be in their model's folder, {shorten_path(root)}/MODEL/"
        for path in _list_json(root):
            spec = _make_spec(tree, root, path, None)
            yield replace(spec, warnings=(Problem(spec.name, 0, "", message, "Move it there."),))
    if not files and root == tree.folder:
        # The root is the folder of one model. Its parent may be the real root, whose files the specs may name.
        root, files = root.parent, _list_json(root)
        tree = replace(tree, folder=root) if root.name in ROOT_NAMES else tree
    yield from (_read_sharktank(tree, root, path) for path in files)


def _list_json(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if not path.name.startswith("."))


def _read_sharktank(tree: SpecTree, root: Path, path: Path) -> Spec:
    name = shorten_path(path)
    content, text, problems = load_json(path, name)
    if content is None:
        return _make_spec(tree, root, path, None, problems)
    document_type = _choose_document(content, root, path)
    if isinstance(document_type, str):
        problem = Problem(name, 1, "", document_type, "docs/reference/specs.md lists the fields of each format.")
        return _make_spec(tree, root, path, None, [problem])
    words = read_marker_words(content, "benchmark" if document_type is Benchmark else "quality")
    document, problems = validate(document_type, content, name, text)
    family = path.stem.rpartition("_")[2]
    is_first = isinstance(document, RegressionV1) or (isinstance(document, Benchmark) and document.device is None)
    if document is not None and not is_first and family not in _FAMILIES_IN_NAMES:
        message = "the file name does not contain the backend: expected "
        message += " or ".join(f"{path.stem}_{name}.json" for name in _FAMILIES_IN_NAMES)
        problems = [*problems, Problem(name, 0, "", message, "Rename the file.")]
    if isinstance(document, RegressionV2) and family in document.targets:
        problems = [*problems, make_problem_at(name, text, ["targets", family], OWN_TARGET_PROBLEM, OWN_TARGET_HINT)]
    if isinstance(document, Benchmark) and is_first and family == CPU.family:
        problems = [
            make_problem_at(name, text, ["device"], "is missing: only the first generation, for ROCm, omits it")
        ]
        document = None
    return _make_spec(tree, root, path, document, problems, words)


def _make_spec(
    tree: SpecTree,
    root: Path,
    path: Path,
    document: _AnyDocument | None,
    problems: Sequence[Problem] = (),
    words: frozenset[str] | None = None,
) -> Spec:
    """Make a spec, with names from its file's path; since generation 2, the stem ends in the target family."""
    head, _, family = path.stem.rpartition("_")
    has_family = family in _FAMILIES_IN_NAMES
    submodel = head if head and has_family and not isinstance(document, RegressionV1) else path.stem
    families = (family,) if has_family else _FAMILIES_IN_NAMES
    if isinstance(document, RegressionV1):
        families = (ROCM.family,) if document.rocm_tests_only else _FAMILIES_IN_NAMES
    elif isinstance(document, Benchmark) and document.device is None:
        families = (ROCM.family,)
    elif isinstance(document, RegressionV2):
        families = (*families, *(further for further in document.targets if further not in families))
    name, model = shorten_path(path), path.parent.name
    return Spec(
        tree, root, path, name, SHARKTANK, model, submodel, document, tuple(problems), families=families, words=words
    )


def _choose_document(content: dict[str, Any], root: Path, path: Path) -> type[_AnyDocument] | str:
    """Choose the document type by the fields of a file; return a message if none or two match."""
    keys = set(content)
    unique_fields = _UNIQUE_FIELDS
    if keys & unique_fields[RegressionV1] and keys & unique_fields[RegressionV2]:
        v1_fields, v2_fields = sorted(keys & unique_fields[RegressionV1]), sorted(keys & unique_fields[RegressionV2])
        return f"mixes two generations of regression tests: {', '.join(v1_fields)} with {', '.join(v2_fields)}"
    scores = {kind: len(keys & unique_fields[kind]) for kind in _DOCUMENTS}
    if isinstance(content.get("inputs"), list) and any(isinstance(item, dict) for item in content["inputs"]):
        scores[Benchmark] = 0
    best = max(_DOCUMENTS, key=lambda kind: scores[kind])
    shares_fields = keys & set().union(*(set(kind.model_fields) for kind in _DOCUMENTS))
    if not shares_fields or "type" in keys:
        field_names = ", ".join(sorted(keys)[:8]) or "none"
        return f"is not a spec of a known format (fields found: {field_names})"
    if "mlir" in keys and "function_run" not in keys and best is Benchmark:
        best = RegressionV2
    if scores[best] == 0 or (best is RegressionV2 and scores[RegressionV1] == scores[RegressionV2]):
        if "mlir" not in keys and root.name == "benchmarks":
            return Benchmark
        return RegressionV2 if path.stem.rpartition("_")[2] in _FAMILIES_IN_NAMES else RegressionV1
    return best
