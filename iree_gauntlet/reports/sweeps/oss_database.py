"""`benchmark_results.json`: results as records of the PyTorch OSS benchmark database (v3), one a metric.

The table is `clickhouse_db_schema/oss_ci_benchmark_v3/schema.sql` of pytorch/test-infra: `extra_info` maps hold text
alone, counts are UInt32, values Float32. What the upload adds (repository, commit, workflow, time) is not in a record.
Names of metrics, and what is in `benchmark`, `model` and `metric`, follow torchao's `ci_microbenchmark_runner.py`,
so that its dashboards find them. IREE's figures have the backend `iree`; torch's are next to them with the backends
`eager` and `inductor` (torch.compile).

Dashboards tell series apart by repository, branch, device, architecture, backend, mode, dtype, model and metric. Where
two entries of a configuration share a shape, the entry's name is therefore put before the shape in `model.name`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.reports.sweeps.sweep_rows import Ratio, Row, Side


_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
_Count = Annotated[int, Field(ge=0, lt=2**32)]
_Text = Annotated[str, Field(min_length=1)]
_Extra = dict[str, str]
SPEEDUP = "Fwd Speedup (x)"
# torchao writes this one for bf16, whatever the baseline's type is.
_BASELINE_TIMES = {"bf16": "Bfloat16 Fwd Time (ms)", "f16": "Float16 Fwd Time (ms)", "f32": "Float32 Fwd Time (ms)"}
_RECIPE_TIMES = {"quantization": "Quantized Fwd Time (ms)", "sparsity": "Sparse Fwd Time (ms)"}
_REPOSITORIES = {
    "numpy": "numpy/numpy",
    "onnx": "onnx/onnx",
    "onnxruntime": "microsoft/onnxruntime",
    "onnxscript": "microsoft/onnxscript",
    "torch": "pytorch/pytorch",
    "torchao": "pytorch/ao",
    "transformers": "huggingface/transformers",
}
# As dashboards call devices, by IREE's driver.
_DEVICES = {"local-task": "cpu", "local-sync": "cpu", "hip": "rocm", "amdgpu": "rocm", "metal": "mps"}
_MEGABYTE = 1e6
_GIB = 1 << 30


def fits_float32(value: float) -> bool:
    """Whether the table can hold a number as one."""
    return math.isfinite(value) and abs(value) <= _LARGEST_FLOAT32


def _float32(value: float) -> float:
    if not fits_float32(value):
        raise ValueError(f"{value} is no finite Float32")
    return value


_Float = Annotated[float, AfterValidator(_float32)]


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


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    value: float | None
    unit: str
    ratio: Ratio | None = None


def oss_json(
    rows: Sequence[Row], header: Mapping[str, Any], *, targets: Mapping[str, Mapping[str, float]] | None = None
) -> str:
    """The file: a JSON array of records, checked against the schema; arguments as for `oss_records`.

    Raises:
        GauntletError: a record is none that the database can take.
    """
    records = oss_records(rows, header, targets=targets)
    check_oss_records(records)
    return json.dumps(records, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def oss_records(
    rows: Sequence[Row], header: Mapping[str, Any], *, targets: Mapping[str, Mapping[str, float]] | None = None
) -> list[dict[str, Any]]:
    """The records of all figures that are finite.

    `header`: of the run: `run`, `toolchain`, `machine`, `versions`, and `gpus` where it ran on some, each with `name`
    and `memory_bytes`; `state`, which is in every record where it is not `complete`; `targets`: the value that a metric
    should have, by its name and then by `<recipe>@<model.name>` or `<recipe>`; 0 for those that are not named, which
    dashboards read as none.
    """
    baselines = {row.point: row for row in rows if row.is_baseline}
    shapes: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        shapes.setdefault(row.label, set()).add(row.point)
    dependencies = _dependencies(header)
    state = str(header.get("state") or "complete")
    records = []
    for row in rows:
        model = row.label if len(shapes[row.label]) == 1 else f"{row.name} {row.label}"
        runner = _runner(row, header)
        for backend, metrics in _backends(row, baselines.get(row.point)):
            for metric in metrics:
                if metric.value is None or not fits_float32(metric.value):
                    continue
                wanted = (targets or {}).get(metric.name, {})
                records.append(
                    {
                        "benchmark": _benchmark(row, backend, runner["type"], state),
                        "model": {
                            "name": model,
                            "type": "micro-benchmark custom layer",
                            "backend": backend,
                            "origins": ["iree"],
                            "extra_info": _about(row),
                        },
                        "metric": {
                            "name": metric.name,
                            "benchmark_values": [metric.value],
                            "target_value": float(wanted.get(f"{row.recipe}@{model}", wanted.get(row.recipe, 0.0))),
                            "extra_info": _metric_facts(metric),
                        },
                        "runners": [runner],
                        "dependencies": dependencies,
                        "inputs": {},
                    }
                )
    return records


def _backends(row: Row, baseline: Row | None) -> Iterator[tuple[str, list[_Metric]]]:
    """The metrics of each side that was measured."""
    yield "iree", [*_times(row, row.iree, baseline.iree if baseline else None), *_iree_metrics(row)]
    if row.kind == "compiler" and not row.is_baseline:
        # It is nothing to torch.
        return
    yield "eager", _times(row, row.torch_eager, baseline.torch_eager if baseline else None)
    yield "inductor", _times(row, row.torch_compile, baseline.torch_compile if baseline else None)


def _times(row: Row, side: Side | None, baseline: Side | None) -> list[_Metric]:
    if side is None:
        return []
    own = _BASELINE_TIMES.get(row.dtype, "Baseline Fwd Time (ms)")
    if row.is_baseline:
        return [_Metric(own, side.ms, "ms")]
    speedup = side.speedup
    return [
        _Metric(SPEEDUP, speedup.ratio if speedup else None, "x", speedup),
        _Metric(own, baseline.ms if baseline else None, "ms"),
        _Metric(_RECIPE_TIMES.get(row.kind, "Recipe Fwd Time (ms)"), side.ms, "ms"),
    ]


def _iree_metrics(row: Row) -> list[_Metric]:
    """What is known of IREE alone."""
    if row.iree is None:
        return []
    found = [
        _Metric("Allocated Memory (MB)", _scaled(row.device_peak_bytes, _MEGABYTE), "MB"),
        _Metric("Peak Resident Memory (MB)", _scaled(row.peak_rss_bytes, _MEGABYTE), "MB"),
        _Metric("Module Size (MB)", _scaled(row.module_bytes, _MEGABYTE), "MB"),
        _Metric("Parameter Size (MB)", _scaled(row.parameter_bytes, _MEGABYTE), "MB"),
        _Metric("Compile Time (s)", row.compile_s, "s"),
        _Metric("First Call (ms)", row.iree.first_call_ms, "ms"),
        _Metric("Max Error", row.max_error, ""),
        _Metric("Relative Error", row.relative_error, ""),
        _Metric("SQNR (dB)", row.sqnr_db, "dB"),
        _Metric("Share of Machine Peak (%)", _scaled(row.roofline_share, 0.01), "%"),
    ]
    for name, side in (("torch eager", row.torch_eager), ("torch.compile", row.torch_compile)):
        beside = side.beside_iree if side else None
        found.append(_Metric(f"Speedup over {name} (x)", beside.ratio if beside else None, "x", beside))
    return found


def _benchmark(row: Row, backend: str, arch: str, state: str) -> dict[str, Any]:
    facts = {
        "device": _device(row),
        "iree_device": row.device,
        "arch": arch,
        "torch_compile_mode": row.torch_compile_mode,
        # Of torch.compile alone: dashboards take a series without it for an eager one.
        "use_compile": "true" if backend == "inductor" else None,
        "sweep": None if state == "complete" else state,
        "high_precision_dtype": row.dtype,
        "quantization": row.quantization,
        "sparsity": row.sparsity or "",
        "recipe_kind": row.kind,
        "status": row.status,
    }
    return {"name": "micro-benchmark api", "mode": "inference", "dtype": row.recipe, "extra_info": _known(facts)}


def _about(row: Row) -> dict[str, str]:
    facts = {"name": row.name, "model_type": row.model_type, "shape": row.shape}
    sizes = {"m": row.m, "k": row.k, "n": row.n, "flops": None if row.flops is None else f"{row.flops:.0f}"}
    return _known({**facts, **sizes})


def _metric_facts(metric: _Metric) -> dict[str, str]:
    ratio = metric.ratio
    more = {"low": ratio.low, "high": ratio.high, "verdict": ratio.word} if ratio else {}
    return _known({"unit": metric.unit, **more})


def _runner(row: Row, header: Mapping[str, Any]) -> dict[str, Any]:
    """The machine. `name` and `type` are what dashboards call device and architecture."""
    machine = header.get("machine") or {}
    device = _device(row)
    gpus = () if device == "cpu" else header.get("gpus") or ()
    names = list(dict.fromkeys(str(gpu.get("name") or "") for gpu in gpus))
    memory = sum(int(gpu.get("memory_bytes") or 0) for gpu in gpus)
    cpu = str(machine.get("cpu") or "")
    return {
        "name": device,
        "type": ", ".join(filter(None, names)) or cpu or "unknown",
        "cpu_info": cpu,
        "cpu_count": int(machine.get("cores") or 0),
        "mem_info": "",
        "avail_mem_in_gb": int(machine.get("memory_bytes") or 0) // _GIB,
        "gpu_info": ", ".join(filter(None, names)),
        "gpu_count": len(gpus),
        "gpu_mem_info": "",
        "avail_gpu_mem_in_gb": memory // _GIB,
        "extra_info": _known(
            {"hostname": machine.get("host"), "os": machine.get("os"), "python": machine.get("python")}
            | {"run": header.get("run"), "started": header.get("started")}
        ),
    }


def _dependencies(header: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    toolchain = header.get("toolchain") or {}
    found = {}
    for package, part in (("iree-base-compiler", "compiler"), ("iree-base-runtime", "runtime")):
        if toolchain.get(part):
            sha = str(toolchain.get(f"{part}_commit") or "")
            found[package] = _dependency("iree-org/iree", str(toolchain[part]), sha)
    for name, version in (header.get("versions") or {}).items():
        found[str(name)] = _dependency(_REPOSITORIES.get(str(name), ""), str(version))
    return found


def _dependency(repo: str, version: str, sha: str = "") -> dict[str, Any]:
    return {"repo": repo, "branch": "", "sha": sha, "version": version, "extra_info": {}}


def _device(row: Row) -> str:
    driver = row.device.partition(":")[0]
    return _DEVICES.get(driver, driver)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _known(facts: Mapping[str, object]) -> dict[str, str]:
    """As the table's maps hold it: text, and nothing for what is not known."""
    return {name: str(value) for name, value in facts.items() if value is not None and value != ""}
