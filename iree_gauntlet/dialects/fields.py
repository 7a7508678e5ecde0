"""The types of fields that several dialects share, and the base of their documents."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from iree_gauntlet.cases import SPEC_STAGES

_ELEMENT_TYPE = r"(?:i|si|ui)(?:1|2|4|8|16|32|64)|index|f16|bf16|tf32|f32|f64|f8E\w+|f6E\w+|f4E\w+|complex<f(?:32|64)>"
TENSOR_TYPE = re.compile(rf"(?:\d+x)*(?:{_ELEMENT_TYPE})")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_RELEASE = re.compile(r"\d+(?:\.\d+)*(?:(?:rc|\.?dev)\d*)?(?:\+\w+)?")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")


def _tensor_type(text: str) -> str:
    if not TENSOR_TYPE.fullmatch(text):
        raise ValueError(f"expected a tensor type such as 1x64xf16, found {text!r}")
    return text


def _input_text(text: str) -> str:
    """`1x64xi64`, `1xf32=3.0`, `@file.npy` and the runtime's other notations."""
    head = text.split("=", 1)[0]
    if not text.strip() or "\0" in text:
        raise ValueError(f"expected an input such as 1x64xi64, found {text!r}")
    if head[:1].isdigit() and not _NUMBER.fullmatch(text) and not TENSOR_TYPE.fullmatch(head):
        raise ValueError(f"expected an input such as 1x64xi64 or 1xf32=3.0, found {text!r}")
    return text


def _flag(text: str) -> str:
    if not text.startswith("-"):
        raise ValueError(f"expected a flag that starts with '-', found {text!r}")
    if "\0" in text or "\n" in text:
        raise ValueError("a flag holds neither a line break nor a NUL")
    return text


def _plain_name(text: str) -> str:
    if "/" in text or "\\" in text or text in ("", ".", "..") or "\0" in text:
        raise ValueError(f"expected a file name without folders, found {text!r}")
    return text


def _relative_path(text: str) -> str:
    path = PurePosixPath(text)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in text or "\0" in text:
        raise ValueError(f"expected a relative path without '..', found {text!r}")
    return text


def _releases(text: str) -> str:
    if not (_RELEASE.fullmatch(text) or _is_range(text)):
        raise ValueError(f"expected a release such as 3.13.0, or a range such as >=3.13, found {text!r}")
    return text


def _is_range(text: str) -> bool:
    if not text or text[0] not in "<>=!~":
        return False
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return False
    return True


def _truth(value: object) -> object:
    """`"True"` is true for the programs that read sharktank's files, and stands in some of them."""
    return True if value == "True" else value


def _not_blank(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("expected a non-empty string")
    return text


def _word(text: str) -> str:
    if not _WORD.fullmatch(text) or text in ("and", "or", "not"):
        raise ValueError(f"expected one word of letters, digits, '_', '-' and '.', found {text!r}")
    return text


def _whole(number: float) -> float:
    if not number.is_integer():
        raise ValueError(f"expected a whole number of repetitions, found {number:g}")
    return number


def _of_stages(timeouts: dict[str, float]) -> dict[str, float]:
    for stage in timeouts:
        if stage not in SPEC_STAGES:
            raise ValueError(f"unknown stage {stage!r}; stages are {', '.join(SPEC_STAGES)}")
    return timeouts


Flag = Annotated[str, AfterValidator(_flag)]
Text = Annotated[str, AfterValidator(_not_blank)]
Word = Annotated[str, AfterValidator(_word)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
TensorType = Annotated[str, AfterValidator(_tensor_type)]
InputText = Annotated[str, AfterValidator(_input_text)]
PlainName = Annotated[str, AfterValidator(_plain_name)]
RelativePath = Annotated[str, AfterValidator(_relative_path)]
Releases = Annotated[str, AfterValidator(_releases)]
Truth = Annotated[bool, BeforeValidator(_truth)]
WholeNumber = Annotated[float, AfterValidator(_whole), Field(gt=0, lt=1 << 31)]
Timeouts = Annotated[dict[str, Positive], AfterValidator(_of_stages)]


class Document(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, title=None, defer_build=True)


class ImportOptions(Document):
    """How an `.onnx` program is prepared and imported (*ours*)."""

    opset: Annotated[int, Field(ge=1, le=64)] | None = None
    shapes: dict[Text, list[Count]] = Field(default_factory=dict)
