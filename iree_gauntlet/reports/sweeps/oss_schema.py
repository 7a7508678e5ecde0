"""What a record of the PyTorch OSS benchmark database may hold: our reading of its table `oss_ci_benchmark_v3`.

The table is `clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql` of pytorch/test-infra: `extra_info` maps hold text
alone, counts are UInt32, values Float32. What the upload adds (repository, commit, workflow, time) is not in a record.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Sequence


_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


def fits_float32(value: float) -> bool:
    """Whether the table can hold a number as one."""
    return math.isfinite(value) and abs(value) <= _LARGEST_FLOAT32


def _float32(value: float) -> float:
    if not fits_float32(value):
        raise ValueError(f"{value} is no finite Float32")
    return value


_Count = Annotated[int, Field(ge=0, lt=2**32)]
_Float = Annotated[float, AfterValidator(_float32)]
_Text = Annotated[str, Field(min_length=1)]
_Extra = dict[str, str]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OssBenchmark(_Part):
    """What was benchmarked, in the words of dashboards: `dtype` is the recipe."""

    name: _Text
    mode: _Text
    dtype: _Text
    extra_info: _Extra = {}


class OssModel(_Part):
    """Of which model."""

    name: _Text
    type: str = ""
    backend: str = ""
    origins: list[str] = []
    extra_info: _Extra = {}


class OssMetric(_Part):
    """One figure; several values where it was taken several times."""

    name: _Text
    benchmark_values: Annotated[list[_Float], Field(min_length=1)]
    target_value: _Float = 0.0
    extra_info: _Extra = {}


class OssRunner(_Part):
    """A machine. Dashboards take `name` for the device and `type` for its architecture."""

    name: str = ""
    type: str = ""
    cpu_info: str = ""
    cpu_count: _Count = 0
    mem_info: str = ""
    avail_mem_in_gb: _Count = 0
    gpu_info: str = ""
    gpu_count: _Count = 0
    gpu_mem_info: str = ""
    avail_gpu_mem_in_gb: _Count = 0
    extra_info: _Extra = {}


class OssDependency(_Part):
    """A package that the figures depend on."""

    repo: str = ""
    branch: str = ""
    sha: str = ""
    version: str = ""
    extra_info: _Extra = {}


class OssInput(_Part):
    """An input of the model."""

    dtype: str = ""
    extra_info: _Extra = {}


class OssRecord(_Part):
    """One metric of one variant at one point."""

    benchmark: OssBenchmark
    model: OssModel
    metric: OssMetric
    runners: list[OssRunner] = []
    dependencies: dict[str, OssDependency] = {}
    inputs: dict[str, OssInput] = {}


_RECORDS = TypeAdapter(list[OssRecord])


def check_oss_records(records: Sequence[dict[str, Any]]) -> None:
    """Makes sure that the database can take records.

    Raises:
        GauntletError: it could not; the first field that does not fit is named.
    """
    try:
        _RECORDS.validate_python(list(records))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise GauntletError(f"record {where} of the benchmark database: {first['msg']}") from error


def oss_json_schema() -> dict[str, Any]:
    """The same as JSON Schema, for those who check the file elsewhere."""
    return _RECORDS.json_schema()
