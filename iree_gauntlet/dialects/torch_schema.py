"""The documents of the torch-models dialect: module definitions, and quality, benchmark and compstat tests.

Each field has the meaning that iree-test-suites' `torch_models` gives it; fields marked *ours* are additions, which
iree-test-suites ignores.
"""

from __future__ import annotations

import contextlib
import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from iree_gauntlet.dialects.fields import (
    Count,
    Flag,
    Flags,
    ForPeople,
    GoldenCompiler,
    InputText,
    Positive,
    ProgramDocument,
    StrictDocument,
    Text,
    Timeouts,
    WithTargets,
    Word,
    about,
    make_list,
    make_schema_config,
    read_tolerant,
    require_fields,
    require_type,
    validate,
)
from iree_gauntlet.dialects.json_text import without_comments
from iree_gauntlet.dialects.spec import TORCH_MODELS, Spec, SpecTree, read_marker_words
from iree_gauntlet.dialects.spec_file import (
    FieldError,
    did_you_mean,
    drop_unknown_fields,
    load_json,
    make_problem_at,
    shorten_path,
)
from iree_gauntlet.settings import read_file
from iree_gauntlet.stages import Kind, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# The stages of a module definition; every other stage is a step of a test.
_MODULE_STAGES = [str(stage) for stage in Stage if Kind.COMPILE in stage.row.kinds]
# Words that are more than marks to pytest, which may run the same suite.
_PYTEST_WORDS = ("parametrize", "usefixtures", "filterwarnings", "skipif", "timeout", "tryfirst", "trylast")


# The fields that weights of each type must have; other fields are not allowed.
_FIELDS_BY_WEIGHT_TYPE = {"url": ("url",), "random": ("module", "seed"), "splat": ("module", "value")}
_WEIGHT_FIELDS = ("url", "module", "seed", "value")
_ONE_MODULE: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1}]
}
_TORCH_HINT = "docs/reference/torch-models.md lists the fields of tests and module definitions."
# Fields that a JSON file has only if it is meant as a test.
_TEST_FIELDS = frozenset(
    {
        "modules",
        "module",
        "run_args",
        "expected_outputs",
        "golden_time_ms",
        "golden_time",
        "golden_dispatch_count",
        "golden_binary_size",
    }
)


def _check_marker(word: str) -> str:
    if word in _PYTEST_WORDS:
        raise ValueError(f"{word!r} means something else to pytest: choose another marker")
    return word


def _check_module_name(name: str) -> str:
    parts = name.removesuffix(".json").split("/")
    if "\\" in name or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"expected the name of a module definition below the module folder, found {name!r}")
    return name.removesuffix(".json")


def _check_run_flag(text: str) -> str:
    name = text.lstrip("-").split("=")[0]
    if name in ("benchmark_format", "benchmark_out", "benchmark_out_format"):
        raise ValueError(f"--{name} would prevent the results from being read: remove it")
    return text


def _unpack_module(value: object) -> object:
    """Unwrap a compstat's module: iree-test-suites documents an array, but its program takes a name."""
    if isinstance(value, list) and len(value) != 1:
        raise ValueError(f"expected one module, found {len(value)}")
    return value[0] if isinstance(value, list) else value


Marker = Annotated[Word, AfterValidator(_check_marker)]
_MARKER: TypeAdapter[str] = TypeAdapter(Marker, config=ConfigDict(strict=True, defer_build=True))
_ModuleName = Annotated[Text, AfterValidator(_check_module_name)]
_RunFlag = Annotated[Flag, AfterValidator(_check_run_flag)]


class ModuleDefinition(ProgramDocument, WithTargets):
    """What is compiled, and how: `<module folder>/<name>.json`."""

    type: Literal["azure", "git-lfs"] | None = about(
        None, "git-lfs: the program is relative to the module folder; azure: it is a URL."
    )
    compiler_flags: list[Flag] = Field(description="Flags of iree-compile.")
    description: ForPeople  # ours
    timeouts: Timeouts  # ours

    @model_validator(mode="after")
    def _check_timeouts(self) -> ModuleDefinition:
        for stage in self.timeouts:
            if stage not in _MODULE_STAGES:
                stages = ", ".join(_MODULE_STAGES)
                raise FieldError("timeouts", f"{stage!r} is not a stage of a module definition ({stages})")
        return self


class ArgumentSpec(StrictDocument):
    """An input or expected output: `<value>`, `@<file>`, or `<value>=@<file>`."""

    model_config = make_schema_config(anyOf=[require_fields("value"), require_fields("url")])

    value: InputText | None = about(None, "A type with a url, a value such as 1xf32=3.0, or a file: @name.npy.")
    url: Text | None = about(None, "Where it comes from: a file, or a URL.")

    @model_validator(mode="after")
    def _check_value(self) -> ArgumentSpec:
        if self.value is None and self.url is None:
            raise ValueError("has neither 'value' nor 'url': give at least one")
        if self.value and self.url:
            require_type(self.value, self.url, "url")
        return self


class OutputSpec(StrictDocument):
    """Where a run writes an output: `@file`, `+file`, or `-` for standard output."""

    value: Text = Field(description="A type with a url, a value such as 1xf32=3.0, or a file: @name.npy.")

    @model_validator(mode="after")
    def _check_name(self) -> OutputSpec:
        name = self.value.removeprefix("@") if self.value.startswith("@") else self.value.removeprefix("+")
        if self.value[0] in "@+" and (not name or name[0] == "/" or "\\" in name or "/" in name or name == ".."):
            raise FieldError("value", f"{self.value!r}: expected a file name without folders, such as @output_0.npy")
        if self.value[0] not in "@+" and self.value != "-":
            raise FieldError("value", f"{self.value!r}: expected @file, +file, or - for standard output")
        return self


class Weight(StrictDocument):
    """An archive of parameters: fetched, or generated for the parameters that a module names.

    The first generation of iree-test-suites has no `type`: it fetches all of them.
    """

    model_config = make_schema_config(
        oneOf=[
            {
                **require_fields(*fields),
                "properties": {
                    "type": {"const": kind},
                    **{name: {"type": "null"} for name in _WEIGHT_FIELDS if name not in fields},
                    **{name: {"not": {"type": "null"}} for name in fields},
                },
                **({} if kind == "url" else {"required": ["type", *fields]}),
            }
            for kind, fields in _FIELDS_BY_WEIGHT_TYPE.items()
        ]
    )

    type: Literal["url", "random", "splat"] = about("url", "Type of the file.")
    scope: Annotated[str, Field(pattern=r"^[^=\x00]*$")] = Field(
        description="Name under which an archive is loaded: --parameters=<scope>=…."
    )
    url: Text | None = about(None, "Where it comes from: a file, or a URL.")
    module: _ModuleName | None = about(None, "Name of a module definition below the module folder.")
    seed: Count | None = about(None, "Seed of the generated values.")
    value: Annotated[float, Field(allow_inf_nan=False)] | None = about(
        None, "A type with a url, a value such as 1xf32=3.0, or a file: @name.npy."
    )

    @model_validator(mode="after")
    def _check_fields(self) -> Weight:
        required_fields = _FIELDS_BY_WEIGHT_TYPE[self.type]
        for field in _WEIGHT_FIELDS:
            is_set = getattr(self, field) is not None
            if field in required_fields and not is_set:
                raise FieldError(field, f"is missing: weights of type {self.type!r} need it")
            if is_set and field not in required_fields:
                fields = ", ".join(("type", "scope", *required_fields))
                raise FieldError(field, f"has no meaning for weights of type {self.type!r} (fields: {fields})")
        return self


class _Test(StrictDocument):
    markers: list[Marker] = Field(description="Words to select by.")
    description: ForPeople  # ours
    timeouts: Timeouts  # ours

    @model_validator(mode="after")
    def _check_timeouts(self) -> _Test:
        for stage in self.timeouts:
            if stage in _MODULE_STAGES and not Stage(stage).row.fetches:
                raise FieldError("timeouts", f"{stage!r} is a stage of module definitions: set it in one")
        return self


class _RunTest(_Test):
    """A test that runs modules. IREE's files carry sharktank's `pipeline_…`, which no torch model's program reads."""

    modules: Annotated[list[_ModuleName], Field(min_length=1)] = Field(description="Modules in load order.")
    weights: list[Weight] = Field(default_factory=make_list, description="Archives of parameters.")
    inputs: list[ArgumentSpec] = Field(default_factory=make_list, description="Arguments of the function, in order.")
    run_args: list[_RunFlag] = Field(
        default_factory=make_list, description="Flags of iree-run-module, or of iree-benchmark-module."
    )
    pipeline_mlir: Text | None = about(None, "A second module, which is compiled as well.")
    pipeline_compiler_flags: Flags = Field(description="A second module, which is compiled as well: its flags.")

    @model_validator(mode="after")
    def _check_modules(self) -> _RunTest:
        for index, name in enumerate(self.modules):
            if name in self.modules[:index]:
                raise FieldError("modules", f"names {name!r} twice")
        return self


class QualityTest(_RunTest):
    """Runs modules and compares their outputs with the expected ones."""

    type: Literal["quality"] = Field(description="Type of the file.")
    expected_outputs: list[ArgumentSpec] = Field(
        default_factory=make_list, description="What outputs are compared with; without any, the test only has to run."
    )
    outputs: list[OutputSpec] = Field(
        default_factory=make_list, description="Files to which outputs are written: {value: @name.npy}."
    )


class BenchmarkTest(_RunTest):
    """Measures modules: the fastest repetition is compared with golden × factor.

    The first generation of iree-test-suites holds the mean against `golden_time`, without a factor.
    """

    type: Literal["benchmark"] = Field(description="Type of the file.")
    golden_time_ms: Positive | None = about(
        None, "Milliseconds that the fastest repetition may take, times the factor."
    )
    golden_time: Positive | None = about(None, "From the first generation: the mean must not exceed it.")
    tolerance_factor: Positive = about(1.1, "Limit as a multiple of the golden time.")
    sku: Word | None = about(None, "The golden time is checked only with this --sku.")  # ours


class CompstatTest(_Test):
    """Compares a module's dispatch count and size with upper bounds."""

    type: Literal["compstat"] = Field(description="Type of the file.")
    module: Annotated[_ModuleName, BeforeValidator(_unpack_module), WithJsonSchema(_ONE_MODULE)] = Field(
        description="Name of a module definition below the module folder."
    )
    golden_dispatch_count: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = about(None, "Dispatch limit.")
    golden_binary_size: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = about(
        None, "Maximum bytes of the module."
    )
    golden_compiler: GoldenCompiler  # ours


_TEST_TYPES: dict[str, type[QualityTest | BenchmarkTest | CompstatTest]] = {
    "quality": QualityTest,
    "benchmark": BenchmarkTest,
    "compstat": CompstatTest,
}
_TorchDocument = ModuleDefinition | QualityTest | BenchmarkTest | CompstatTest
_TORCH_FIELDS = frozenset().union(*(kind.model_fields for kind in (ModuleDefinition, *_TEST_TYPES.values())))


def read_valid_markers(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a test's valid markers and its type, even if other markers or fields are invalid."""
    words = content.get("markers")
    markers = []
    for word in (*(words if isinstance(words, list) else ()), content.get("type")):
        with contextlib.suppress(ValidationError):
            markers.append(_MARKER.validate_python(word))
    return tuple(markers)


def _choose_document(content: dict[str, Any]) -> type[_TorchDocument] | str | None:
    """Choose a JSON object's document type; None if it is no test or definition; a message if `type` is wrong."""
    has_module_fields = not content.keys().isdisjoint({"mlir", "compiler_flags"})
    has_test_fields = not content.keys().isdisjoint(_TEST_FIELDS)
    if "type" not in content:
        if has_module_fields:
            return ModuleDefinition
        return f"is missing: a test is of type {', '.join(_TEST_TYPES)}" if has_test_fields else None
    kind = content["type"]
    if isinstance(kind, str) and kind in _TEST_TYPES:
        return _TEST_TYPES[kind]
    if kind in ("azure", "git-lfs") or (has_module_fields and not has_test_fields):
        return ModuleDefinition
    valid_types = ", ".join(_TEST_TYPES)
    if not isinstance(kind, str):
        return f"expected the type of a test ({valid_types})"
    return f"unknown type {kind!r}{did_you_mean(kind, _TEST_TYPES) or f' of a test; known: {valid_types}'}"


def has_type(path: Path) -> bool:
    """Return whether a file is a JSON object with a `type`."""
    try:
        content = read_file(path)
        document = json.loads(without_comments(content.decode("utf-8-sig"))) if b'"type"' in content else None
    except (OSError, ValueError, RecursionError):
        # The problem is reported when the file is read as a spec.
        return False
    return isinstance(document, dict) and "type" in document


def list_json_files(root: Path, excluded_folder: Path | None = None) -> Iterator[Path]:
    """Yield the files that may be specs, in a stable order; `excluded_folder` is skipped."""
    for current, subfolders, files in os.walk(root):
        subfolders[:] = sorted(
            name for name in subfolders if not name.startswith(".") and Path(current, name) != excluded_folder
        )
        for name in sorted(files):
            if name.endswith(".json") and not name.startswith("."):
                yield Path(current, name)


def read_torch_specs_below(tree: SpecTree, root: Path, excluded_folder: Path | None = None) -> Iterator[Spec]:
    """Yield the specs anywhere below a root."""
    return (spec for path in list_json_files(root, excluded_folder) if (spec := _read_torch(tree, root, path)))


def _read_torch(tree: SpecTree, root: Path, path: Path) -> Spec | None:
    """Read a test or module definition; None for a JSON file that is neither."""
    name = shorten_path(path)
    spec = partial(Spec, tree, root, path, name, TORCH_MODELS, _name_model(root, path), path.stem)
    content, text, problems = load_json(path, name, without_comments)
    if content is None:
        return spec(None, tuple(problems))
    document_type = _choose_document(content)
    if document_type is None:
        return None
    if isinstance(document_type, str):
        return spec(None, (make_problem_at(name, text, ["type"], document_type, _TORCH_HINT),))
    content, warnings = drop_unknown_fields(content, _TORCH_FIELDS, name, text)
    document, problems = validate(document_type, content, name, text)
    if document_type is ModuleDefinition:
        return spec(document, tuple(problems), tuple(warnings), defines_module=True)
    return spec(document, tuple(problems), tuple(warnings), words=read_marker_words(content, str(content["type"])))


def read_module_definition(tree: SpecTree, root: Path, path: Path) -> Spec:
    """Read a file as a module definition, whatever its content."""
    name, model = shorten_path(path), _name_model(root, path)
    document, _, problems, warnings = read_tolerant(ModuleDefinition, path, name, without_comments)
    all_problems = tuple(problems), tuple(warnings)
    return Spec(tree, root, path, name, TORCH_MODELS, model, path.stem, document, *all_problems, defines_module=True)


def _name_model(root: Path, path: Path) -> str:
    """Return a model's name: the path from the root to the file's folder, as models' folders may be nested."""
    return "/".join(path.parts[len(root.parts) : -1]) or root.name
