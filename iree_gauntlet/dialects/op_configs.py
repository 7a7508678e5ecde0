"""Configs of operator suites: how its cases are compiled and run, what is skipped, what is expected to fail.

An entry of a list names the folder of a case from the suite's root. What is said in the comment on an entry's line
is the reason that reports give.

Facts: iree-test-suites, `onnx_ops/conftest.py` and `torch_ops/common.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from iree_gauntlet.cases import Expectation, FailureKind, Origin, Stage
from iree_gauntlet.dialects.configured_suites import Config, SuiteDocument, read_config
from iree_gauntlet.dialects.fields import Count, Document, Positive, Text, in_schema, one_of, present
from iree_gauntlet.dialects.json_text import line_of, lines_of_items
from iree_gauntlet.dialects.locations import CASE_FOLDER, flag_variables, strange_variables
from iree_gauntlet.dialects.spec_file import BRANCH, FieldError, nearest
from iree_gauntlet.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path


# NumPy's names of element types, and IREE's.
ELEMENT_TYPES = {
    "bool": "i1",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "ui8",
    "uint16": "ui16",
    "uint32": "ui32",
    "uint64": "ui64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8E4M3FN",
    "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e5m2": "f8E5M2",
    "float8_e5m2fnuz": "f8E5M2FNUZ",
}
# `f8E4M3FN` and `f8e4m3fn`, which are written for the long names.
_SHORT_NAMES = {iree.lower(): name for name, iree in ELEMENT_TYPES.items() if iree.startswith("f8")}
_SHORT_SPELLINGS = (*(iree for iree in ELEMENT_TYPES.values() if iree.startswith("f8")), *_SHORT_NAMES)
EXAMPLE = """{
  "config_name": "cpu_llvm_sync",
  "iree_compile_flags": ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"],
  "iree_run_module_flags": ["--device=local-sync"]
}"""
_RUNS = (Stage.THRESHOLD, Stage.BENCHMARK)
# The stages that the entries of a list do without, and those at which they are expected to fail, and how.
_SKIPS: dict[str, tuple[Stage, ...]] = {"skip_compile_tests": (Stage.COMPILE, *_RUNS), "skip_run_tests": _RUNS}
_CRASH = (FailureKind.CRASHES,)
_NO_CRASH = tuple(kind for kind in FailureKind if kind is not FailureKind.CRASHES)
_FAILURES: dict[str, tuple[tuple[Stage, ...], tuple[FailureKind, ...]]] = {
    "expected_compile_crashes": ((Stage.COMPILE,), _CRASH),
    "expected_compile_failures": ((Stage.COMPILE,), _NO_CRASH),
    "expected_run_crashes": (_RUNS, _CRASH),
    "expected_run_failures": (_RUNS, _NO_CRASH),
}
_LISTS = (*_SKIPS, *_FAILURES)
# Looking for the nearest of thousands of names takes a while.
_MOST_GUESSES = 10


@dataclass(frozen=True, slots=True, eq=False)
class SuiteConfig(Config):
    """A config of an operator suite, read.

    Attributes:
        skips: (stage, reason) of the stages that an entry does without.
        expected: what is expected of an entry.
    """

    document: OpConfig | None = None
    skips: Mapping[str, tuple[tuple[Stage, str], ...]] = field(default_factory=dict)
    expected: Mapping[str, tuple[Expectation, ...]] = field(default_factory=dict)


def read_op_config(path: Path, name: str) -> SuiteConfig:
    """Reads a config.

    Args:
        path: the file.
        name: how the user names it, for messages.
    """
    config, comments = read_config(path, name, OpConfig, SuiteConfig)
    document, text = config.document, config.text
    if document is None:
        return config
    reason = _reasons(text, comments) if comments else lambda where, _: f"in {where}"
    known = {CASE_FOLDER: "", **flag_variables()}
    strange = [
        _problem(name, text, "iree_compile_flags", index, what, hint)
        for index, flag in enumerate(document.iree_compile_flags)
        for what, hint in strange_variables(flag, known)
    ]
    if strange:
        return SuiteConfig(path, name, problems=tuple(strange))
    skips: dict[str, tuple[tuple[Stage, str], ...]] = {}
    for where, stages in _SKIPS.items():
        for index, entry in enumerate(getattr(document, where)):
            why = f"{reason(where, index)} ({name})"
            skips.setdefault(entry, tuple((stage, why) for stage in stages))
    expected: dict[str, tuple[Expectation, ...]] = {}
    for where, (stages, kinds) in _FAILURES.items():
        for index, entry in enumerate(getattr(document, where)):
            before = expected.get(entry, ())
            origin = Origin(name, f"{where}[{index}]")
            # The list of crashes comes first, and counts.
            if all(item.stage is not stages[0] for item in before):
                found_here = (Expectation(stage, reason(where, index), origin, kinds) for stage in stages)
                expected[entry] = (*before, *found_here)
    warnings = (*config.warnings, *_idle(name, text, document))
    return replace(config, skips=skips, expected=expected, warnings=warnings)


def _reasons(text: str, comments: Mapping[int, str]) -> Callable[[str, int], str]:
    """What the comment on an entry's line says, by list and index."""
    lines = {where: lines_of_items(text, [where]) for where in _LISTS}
    return lambda where, index: comments.get(lines[where][index], "") or f"in {where}"


def _idle(name: str, text: str, document: OpConfig) -> Iterator[Problem]:
    """Entries that say nothing: they stand twice in a list, or expect a failure of a stage that is skipped."""
    skipped = {skip: frozenset(getattr(document, skip)) for skip in _SKIPS}
    for where in _LISTS:
        before: dict[str, int] = {}
        stage = _FAILURES[where][0][0] if where in _FAILURES else None
        for index, entry in enumerate(getattr(document, where)):
            if before.setdefault(entry, index) != index:
                message = f"{entry!r} stands in this list before ([{before[entry]}])"
                yield _problem(name, text, where, index, message, "Remove one of the two.")
                continue
            skip = next((skip for skip, stages in _SKIPS.items() if stage in stages and entry in skipped[skip]), "")
            if skip:
                message = f"{entry!r} stands in {skip} too, and is skipped: what does not run cannot fail"
                yield _problem(name, text, where, index, message, "Remove it from one of the two.")


def unmatched_entries(config: SuiteConfig, known: Collection[str], is_case: Callable[[str], bool]) -> Iterator[Problem]:
    """Entries that name no case: misspelt, left behind, or of a part of the suite that is not here.

    Args:
        config: whose.
        known: names of cases that were found.
        is_case: whether there is a case of a name that was not found, since less was looked at than the whole suite.
    """
    document = config.document
    if document is None:
        return
    lists = {where: getattr(document, where) for where in _LISTS} | {"golden_times_ms": list(document.golden_times_ms)}
    unmatched = {
        where: [(index, entry) for index, entry in enumerate(entries) if entry not in known and not is_case(entry)]
        for where, entries in lists.items()
    }
    # So many are no slips: a part of the suite is not here. A guess takes its time.
    guesses = sum(map(len, unmatched.values())) <= _MOST_GUESSES
    for where, lost in unmatched.items():
        lines = lines_of_items(config.text, [where]) if lost else []
        for index, entry in lost:
            near = _nearest(entry, known) if guesses else ""
            message = f"{entry!r} names no case" + (f"; did you mean {near!r}?" if near else "")
            hint = "Write the case's folder from the suite's root, or remove the entry."
            if where == "golden_times_ms":
                yield _problem(config.name, config.text, where, entry, message, hint)
            else:
                yield Problem(config.name, lines[index], f"{where}[{index}]", message, hint)


def _nearest(entry: str, known: Collection[str]) -> str:
    """The case that is spelled most like an entry: of the same folder where there are any."""
    folder, _, name = entry.rpartition("/")
    siblings = {other.rpartition("/")[2]: other for other in known if other.rpartition("/")[0] == folder}
    return siblings.get(nearest(name, siblings), "") if siblings else nearest(entry, known)


def _problem(name: str, text: str, where: str, place: int | str, message: str, hint: str) -> Problem:
    field_name = f"{where}[{place}]" if isinstance(place, int) else f"{where}.{place}"
    return Problem(name, line_of(text, [where, place]), field_name, message, hint)


def _long_name(text: str) -> str:
    return _SHORT_NAMES.get(text.lower(), text)


def _number(value: object) -> object:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a finite number, true or false, found {value!r}")
    return value


def _number_or_file(value: object) -> object:
    if isinstance(value, str) and value.endswith((".npy", ".bin")):
        return value
    return None if value is None else _number(value)


def _unquoted(value: object) -> object:
    """The number of a string that is one; anything else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _is_object(value: object) -> str:
    return f"{BRANCH}object" if isinstance(value, dict) else f"{BRANCH}plain"


_NUMBER_OR_FILE: dict[str, Any] = {
    "anyOf": [{"type": ["number", "boolean", "null"]}, {"type": "string", "pattern": r"\.(npy|bin)$"}]
}
ElementType = Annotated[str, AfterValidator(_long_name), one_of("element type", ELEMENT_TYPES, _SHORT_SPELLINGS)]
Number = Annotated[Any, AfterValidator(_number), WithJsonSchema({"type": ["number", "boolean"]})]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# A number, also in quotes.
Factor = Annotated[
    Positive,
    BeforeValidator(_unquoted),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": "[0-9]"}]}),
]
Entries = Annotated[list[Text], Field(default_factory=list)]


class OpConfig(SuiteDocument):
    """How the cases of a suite are compiled and run, and what is expected of them.

    The lists name case folders, relative to the suite's root.
    """

    skip_compile_tests: Entries
    skip_run_tests: Entries
    expected_compile_failures: Entries
    expected_run_failures: Entries
    expected_compile_crashes: Entries
    expected_run_crashes: Entries
    golden_times_ms: dict[Text, Factor] = Field(default_factory=dict)
    tolerance_factor: Factor = 1.0


class FormulaFields(Document):
    """`(coeff * numpy.random.rand(*shape) + offset).astype(dtype)`."""

    shape: list[Count]
    dtype: ElementType = "float32"
    coeff: _Finite = 1.0
    offset: _Finite = 0.0


class FormulaArgument(Document):
    """A synthetic argument."""

    Formula: FormulaFields


class TensorMeta(Document):
    """What a raw file holds."""

    dtype: ElementType
    shape: list[Count]


class ExpectedOutput(Document):
    """An expected output: a URL or file, or one value; the name of a file may stand in either."""

    model_config = in_schema(oneOf=[present("url"), present("value")])

    url: Text | None = None
    value: Annotated[Any, AfterValidator(_number_or_file), WithJsonSchema(_NUMBER_OR_FILE)] = None
    meta: TensorMeta | None = None

    @model_validator(mode="after")
    def _one_source(self) -> ExpectedOutput:
        if (self.url is None) == (self.value is None):
            raise FieldError("url", "expected one of 'url' and 'value'")
        if self.file.split("?")[0].endswith(".bin") and self.meta is None:
            raise FieldError("meta", "is missing: a .bin file does not say its shape and type")
        return self

    @property
    def file(self) -> str:
        """The URL or name of the file; empty for one value."""
        return self.url or (self.value if isinstance(self.value, str) else "")


_FlatArgument = Annotated[
    Annotated[FormulaArgument, Tag(f"{BRANCH}object")] | Annotated[Number, Tag(f"{BRANCH}plain")],
    Discriminator(_is_object),
]
Expected = Annotated[
    Annotated[ExpectedOutput, Tag(f"{BRANCH}object")] | Annotated[Text, Tag(f"{BRANCH}plain")],
    Discriminator(_is_object),
]


class TorchOp(Document):
    """`run_module_io.json`."""

    model_config = in_schema(
        **{
            "if": {"required": ["mode"], "properties": {"mode": {"const": "benchmark"}}},
            "else": {
                "required": ["expected_output"],
                "properties": {"expected_output": {"minItems": 1, "type": "array"}},
            },
        }
    )

    function_name: Text = "main"
    flat_args: list[_FlatArgument] = Field(default_factory=list)
    seed: Annotated[int, Field(ge=0, le=(1 << 32) - 1)] = 0
    rtol: Tolerance = 1e-05
    atol: Tolerance = 1e-08
    equal_nan: bool = False
    mode: Literal["compare", "quality", "benchmark"] = "compare"
    file_name: Text = "test.mlir"
    vmfb_name: Text = "out.vmfb"
    expected_output: list[Expected] | None = None
    azure_blob: bool = True

    @model_validator(mode="after")
    def _comparable(self) -> TorchOp:
        if self.mode != "benchmark" and not self.expected_output:
            raise FieldError("expected_output", "is missing: a case that compares needs what is expected")
        return self


def tensor_of(shape: list[int], dtype: str) -> str:
    """IREE's name of a tensor type: `64x64xbf16`."""
    return "x".join((*map(str, shape), ELEMENT_TYPES[dtype]))
