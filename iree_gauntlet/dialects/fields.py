"""The types of fields that several dialects share, and the base of their documents; *ours*: added by this toolkit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic looks it up
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from iree_gauntlet.cases import OnnxImport
from iree_gauntlet.dialects.json_text import find_line
from iree_gauntlet.dialects.spec_file import (
    FieldError,
    did_you_mean,
    drop_unknown_fields,
    load_json,
    make_problems,
    read_toml,
    with_lines,
)
from iree_gauntlet.errors import SpecError
from iree_gauntlet.formatting import parse_c_float, parse_c_integer, split_values
from iree_gauntlet.stages import DEFAULT_STAGES, SPEC_STAGES
from iree_gauntlet.targets import FAMILIES, Target, flags_for, parse_target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

    from iree_gauntlet.errors import Problem


_ELEMENT_TYPE = r"(?:i|si|ui)(?:1|2|4|8|16|32|64)|index|f16|bf16|tf32|f32|f64|f8E\w+|f6E\w+|f4E\w+|complex<f(?:32|64)>"
TENSOR_TYPE = re.compile(rf"(?:\d+x)*(?:{_ELEMENT_TYPE})")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_RELEASE = re.compile(r"\d+(?:\.\d+)*(?:(?:rc|\.?dev)\d*)?(?:\+\w+)?")
_SHAPE = re.compile(r"(?:\d+x)*")
_INTEGER_TYPE = re.compile(r"(?:i|si|ui)(?:8|16|32|64)")
_HEX_BYTES = re.compile(r"(?:[0-9a-fA-F]{2})+")
# After a type, these prefixes precede the name of a file with values.
_FILE_PREFIXES = ("@", "+")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_DEVICES = [*dict.fromkeys(Target(family).kind.device for family in FAMILIES)]
OWN_TARGET_PROBLEM = "is already the file's own target"
OWN_TARGET_HINT = "Name only other targets."


_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class SchemaValidator(AfterValidator):
    """A validator with the JSON Schema of the values that it accepts."""

    schema: Mapping[str, Any] = field(hash=False)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema, as pydantic's protocol requires."""
        return {**handler(core), **self.schema}


def make_list() -> list[_Item]:
    """Return a new list, a field's default; pydantic inspects a function faster than the class `list`."""
    return []


def about(default: Any, description: str, **conditions: Any) -> Any:
    """Make an optional field with a description for users."""
    return Field(default, description=description, **conditions)


def expect(noun: str, fits: Callable[[str], object]) -> SchemaValidator:
    """Make a text validator whose errors name `noun`; if `fits` is the `fullmatch` of a pattern, the schema has it."""

    def check(text: str) -> str:
        if not fits(text):
            raise ValueError(f"expected {noun}, found {text!r}")
        return text

    pattern = getattr(fits, "__self__", None)
    schema = {"pattern": f"^(?:{pattern.pattern})$"} if isinstance(pattern, re.Pattern) else {}
    return SchemaValidator(
        check, {"description": noun if "://" in noun.partition(" ")[0] else noun[:1].upper() + noun[1:], **schema}
    )


def one_of(noun: str, choices: Collection[str], schema_aliases: Iterable[str] = ()) -> SchemaValidator:
    """Make a validator for one of several words; `schema_aliases` are for an earlier validator, which replaces them."""

    def check(text: str) -> str:
        if text not in choices:
            raise ValueError(f"unknown {noun} {text!r}{did_you_mean(text, choices)} ({', '.join(choices)})")
        return text

    return SchemaValidator(check, {"enum": [*choices, *schema_aliases]})


def _check_input_text(text: str) -> str:
    """Check `1x64xi64`, `1xf32=3.0`, `@file.npy` and the runtime's other notations."""
    head, equals, contents = text.partition("=")
    if not text.strip() or "\0" in text:
        raise ValueError(f"expected an input such as 1x64xi64, found {text!r}")
    if head[:1].isdigit() and not _NUMBER.fullmatch(text) and not TENSOR_TYPE.fullmatch(head):
        raise ValueError(f"expected an input such as 1x64xi64 or 1xf32=3.0, found {text!r}")
    if TENSOR_TYPE.fullmatch(head) and not contents.startswith(_FILE_PREFIXES):
        _require_values(head, contents, text)
        if not equals and "x" not in text:
            raise ValueError(f"expected the value of a scalar, such as {text}=0, found {text!r}")
    return text


def _require_values(tensor_type: str, contents: str, text: str) -> None:
    """Raise a ValueError unless values fit a tensor type; no values mean zeros, and one value fills the tensor."""
    match = _SHAPE.match(tensor_type)
    shape = match[0] if match else ""
    element_type = tensor_type.removeprefix(shape)
    tokens, count = split_values(contents), math.prod(map(int, shape.split("x")[:-1]))
    is_packed = element_type.lstrip("sui") in ("2", "4")
    if tokens and len(tokens) not in (1, count) and not is_packed:
        raise ValueError(f"expected one value, or all {count}, found {len(tokens)} in {text!r}")
    for token in tokens:
        try:
            if _INTEGER_TYPE.fullmatch(element_type):
                parse_c_integer(token, element_type)
            elif element_type.startswith(("f", "bf")):
                parse_c_float(token)
            elif not _HEX_BYTES.fullmatch(token):
                advice = "such as 01 (several calls read them from a file only)"
                raise ValueError(f"expected bytes in hexadecimal digits, {advice}")  # noqa: TRY301 - as of numbers
        except ValueError as error:
            raise ValueError(f"{token!r} is not a value of {element_type}: {error}, in {text!r}") from None


def require_type(value: str, source: str, field: str) -> None:
    """Raise a FieldError unless the value of an input with a file is a tensor type, and the file has none itself."""
    if source.split("?", maxsplit=1)[0].endswith(".npy"):
        raise FieldError(
            "value",
            f"{value!r} with an .npy file: iree-run-module would read the file's header as numbers; "
            "remove 'value', because an .npy file has its own type",
        )
    if source.startswith("random:"):
        raise FieldError("value", f"{value!r} with a random:// source: its URL has the type; remove 'value'")
    if not TENSOR_TYPE.fullmatch(value):
        raise FieldError("value", f"expected a tensor type with {field!r}, such as 1x64xf16, found {value!r}")


def require_literal(value: str, field: str) -> None:
    """Raise a FieldError unless the value of an input without a file is like `4xf32=1 2`, `4xf32` (zeros), or `3`."""
    head, _, contents = value.partition("=")
    if not (_NUMBER.fullmatch(value) or TENSOR_TYPE.fullmatch(head)) or contents.startswith(_FILE_PREFIXES):
        message = f"expected values such as 4xf32=1 2 3 4, or 4xf32 for zeros, found {value!r}; {field!r} names a file"
        raise FieldError("value", message)
    try:
        _check_input_text(value)
    except ValueError as error:
        raise FieldError("value", str(error)) from None


def _check_flag(text: str) -> str:
    if not text.startswith("-"):
        raise ValueError(f"expected a flag that starts with '-', found {text!r}")
    if "\0" in text or "\n" in text:
        raise ValueError("a flag must not contain a line break or a NUL")
    return text


def _is_relative_path(text: str) -> bool:
    path = PurePosixPath(text)
    return bool(path.parts) and not (path.is_absolute() or ".." in path.parts or set(text) & set("\\\0"))


def _is_release_range(text: str) -> bool:
    if not text or text[0] not in "<>=!~":
        return bool(_RELEASE.fullmatch(text))
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # noqa: PLC0415 - few specs need it

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def _check_not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("expected a non-empty string")
    if "\0" in text:
        raise ValueError("expected a non-empty string without NUL characters")
    return text


def _is_word(text: str) -> bool:
    return bool(_WORD.fullmatch(text)) and text not in ("and", "or", "not")


def _check_whole(number: float) -> float:
    if not number.is_integer():
        raise ValueError(f"expected a whole number of repetitions, found {number:g}")
    return number


def _check_stages(timeouts: dict[str, float]) -> dict[str, float]:
    for stage in timeouts:
        if stage not in SPEC_STAGES:
            raise ValueError(f"unknown stage {stage!r}; stages are {', '.join(SPEC_STAGES)}")
    return timeouts


Flag = Annotated[str, SchemaValidator(_check_flag, {"pattern": "^-"})]
Text = Annotated[str, AfterValidator(_check_not_blank)]
Word = Annotated[str, expect("one word of letters, digits, '_', '-' and '.'", _is_word)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
InputText = Annotated[str, AfterValidator(_check_input_text)]
PlainName = Annotated[
    str,
    expect("a file name without folders", lambda text: text not in ("", ".", "..") and not set(text) & set("/\\\0")),
]
RelativePath = Annotated[str, expect("a relative path without '..'", _is_relative_path)]
_ReleaseRange = Annotated[str, expect("a release such as 3.13.0, or a range such as >=3.13", _is_release_range)]
# sharktank's programs read `"True"` as true, and some of its files contain it.
Truth = Annotated[
    bool,
    BeforeValidator(lambda value: True if value == "True" else value),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"const": "True"}]}),
]
WholeNumber = Annotated[float, Field(gt=0, lt=1 << 31), AfterValidator(_check_whole)]
# The stages of a run that requests none.
_STAGES = ", ".join(stage for stage in SPEC_STAGES if any(stage in (one, *one.row.upstream) for one in DEFAULT_STAGES))
Timeouts = Annotated[
    dict[str, Positive],
    SchemaValidator(_check_stages, {"propertyNames": {"enum": [*SPEC_STAGES]}}),
    Field(default_factory=dict, description=f"Seconds by stage: {_STAGES}; options of the command line override them."),
]
# These fields are optional.
Flags = Annotated[list[Flag], Field(default_factory=make_list)]
Texts = Annotated[list[Text], Field(default_factory=make_list)]
ForPeople = Annotated[str, Field(default="", description="For people.")]
Device = Annotated[
    Text | None,
    Field(
        default=None, description=f"What it runs on: {', '.join(_DEVICES)}, or a device's own name.", examples=_DEVICES
    ),
]
GoldenCompiler = Annotated[
    _ReleaseRange | None,
    Field(default=None, description="Compiler release of golden counts and size, such as 3.13.0, or a range (>=3.13)."),
]


class StrictDocument(BaseModel):
    """An object of JSON, or a table of TOML, without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, title=None, defer_build=True)


_Document = TypeVar("_Document", bound=StrictDocument)


def _check_family(name: str) -> str:
    if name not in FAMILIES:
        hint = f"; known: {', '.join(FAMILIES)}"
        raise ValueError(f"unknown target {name!r}{did_you_mean(name, FAMILIES) or hint}")
    return name


Family = Annotated[str, SchemaValidator(_check_family, {"enum": [*FAMILIES]})]


def _check_target(text: str) -> str:
    if parse_target(text) is None:
        raise ValueError(f"unknown target {text!r}: expected {', '.join(FAMILIES)}, or a chip such as gfx942")
    return text


TargetName = Annotated[str, AfterValidator(_check_target)]
TARGETS_DESCRIPTION = f"Other targets, and what differs on them: {', '.join(FAMILIES)}."


def make_schema_config(**conditions: Any) -> ConfigDict:
    """Make a model's config with the conditions that its validators check, for the JSON Schema."""
    return ConfigDict(json_schema_extra=conditions)


def require_true(name: str) -> dict[str, Any]:
    """Make the condition of a JSON Schema that a `Truth` is present and true."""
    return {"required": [name], "properties": {name: {"enum": [True, "True"]}}}


def require_fields(*names: str) -> dict[str, Any]:
    """Make the condition of a JSON Schema that fields are present and not null."""
    return {"required": [*names], "properties": {name: {"not": {"type": "null"}} for name in names}}


class ImportOptions(StrictDocument):
    """How an `.onnx` program is prepared and imported (*ours*)."""

    opset: Annotated[int, Field(ge=1, le=64)] | None = about(None, "ONNX operator version to convert to first.")
    shapes: dict[Text, list[Count]] = Field(
        default_factory=dict, description="Sizes of inputs by name, if the file leaves them open."
    )


class TargetOptions(StrictDocument):
    """What differs on another target (*ours*)."""

    compiler_flags: Flags = Field(description="Flags of iree-compile.")
    device: Device


class WithTargets(StrictDocument):
    """A document with further targets besides its own (*ours*)."""

    targets: Mapping[Family, TargetOptions] = Field(default_factory=dict, description=TARGETS_DESCRIPTION)

    def flags_for(self, target: Target, flags: Iterable[str]) -> tuple[str, ...]:
        """Return a further target's compile flags: `flags` with their target flags replaced, and those of its entry."""
        return (*flags_for(target, flags), *self.targets[target.family].compiler_flags)

    def choose_device(self, target: Target) -> str:
        """Return the device of a further target."""
        return self.targets[target.family].device or target.kind.device


class ProgramDocument(StrictDocument):
    """A document that names a program, of MLIR, ONNX or TFLite."""

    mlir: Text = Field(
        description="The program: a file, or a URL, of MLIR, or of ONNX (.onnx) or TFLite (.tflite), which is imported."
    )
    onnx_import: ImportOptions | None = about(None, "How an .onnx program is imported.")  # ours

    @model_validator(mode="after")
    def _import_is_of_onnx(self) -> Self:
        if self.onnx_import and not self._is_onnx:
            raise FieldError("onnx_import", f"is given with mlir {self.mlir!r}, which is not an .onnx file")
        return self

    @property
    def _is_onnx(self) -> bool:
        return self.mlir.split("?")[0].endswith(".onnx")

    @property
    def onnx_options(self) -> OnnxImport | None:
        """The options for preparing and importing the program; None for MLIR."""
        if not self._is_onnx:
            return None
        options = self.onnx_import or ImportOptions()
        return OnnxImport(options.opset, tuple((name, tuple(shape)) for name, shape in options.shapes.items()))


def validate(model: type[_Document], content: object, name: str, text: str) -> tuple[_Document | None, list[Problem]]:
    """Validate a document; return it, or None if it is invalid, with its problems.

    Problems get their lines from `text`: JSON with each value where the file has it; `{}` if the file is not JSON.
    """
    try:
        return model.model_validate(content), []
    except ValidationError as error:
        return None, make_problems(error, model, name, partial(find_line, text))


def read_tolerant(
    model: type[_Document], path: Path, name: str, to_json: Callable[[str], str] | None = None
) -> tuple[_Document | None, str, list[Problem], list[Problem]]:
    """Read a document; return it or None, its text as JSON, its problems, and warnings of unknown fields."""
    content, text, problems = load_json(path, name, to_json)
    if content is None:
        return None, text, problems, []
    content, warnings = drop_unknown_fields(content, model.model_fields, name, text)
    document, problems = validate(model, content, name, text)
    return document, text, problems, warnings


def read_table(path: Path, model: type[_Document], kind: str = "spec files") -> tuple[str, _Document]:
    """Read a TOML file; return its text and its table; SpecError with all of its problems. `kind` names such files."""
    text, content = read_toml(path, kind)
    table, problems = validate(model, content, str(path), "{}")
    if table is None:
        raise SpecError(with_lines(problems, text), kind)
    return text, table
