"""Documents of operator suites: configs, and the `run_module_io.json` of the torch variant.

Facts: iree-test-suites, `onnx_ops/conftest.py` and `torch_ops/common.py`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator

from iree_gauntlet.dialects.configured_suites import SuiteDocument
from iree_gauntlet.dialects.fields import Count, Document, Positive, Text, in_schema, one_of, present
from iree_gauntlet.dialects.spec_file import BRANCH, FieldError

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
