"""The record of each point as flat rows, one a variant; these as CSV, and as records of a dashboard's database.

Columns of what torchao's `generate_results_csv` (benchmarks/microbenchmarks/utils.py) writes have its names and order;
its times are torch's, eager and compiled. Ours follow. A cell is empty without a figure; numbers have all their digits.
"""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from iree_gauntlet.device_kinds import find_kind, is_cpu
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import one_line
from iree_gauntlet.journal_events import MachineFacts, ToolchainFacts
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.records.chain_figures import NOTHING
from iree_gauntlet.records.sweep_record import (
    VARIANT_FIGURES,
    IreeTimes,
    NumberErrors,
    PointFacts,
    PointRecord,
    Ratio,
    TorchTimes,
    VariantFigure,
    VariantRecord,
)
from iree_gauntlet.settings import expand_home, read_file

_BASELINE = "baseline"
# What a ratio says, where it is not plain from its size.
_MARKS = {"inconclusive": " ?", "same": " ="}
_TITLE = 100
# What stands in a column, of a variant and of the baseline at its point.
_Column = Callable[["Row", "Row | None"], object]
_TORCH_TYPES = {"f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16"}
_SIDES = ("iree", "torch_eager", "torch_compile")
_RATIO = {"": "ratio", "_low": "low", "_high": "high", "_word": "word"}


@dataclass(frozen=True, slots=True)
class Row:
    """One variant at one point."""

    record: PointRecord
    variant: VariantRecord

    @property
    def point(self) -> PointFacts:
        """The point."""
        return self.record.point

    @property
    def place(self) -> tuple[str, str, str, str, str]:
        """What tells its point from others."""
        point = self.point
        return point.name, point.model_type, point.dtype, point.device, point.label

    @property
    def label(self) -> str:
        """Of the shape."""
        return self.point.label

    @property
    def recipe(self) -> str:
        """Of the variant."""
        return self.variant.label

    @property
    def is_baseline(self) -> bool:
        """Whether the others are compared with it."""
        return self.recipe == _BASELINE

    @property
    def speedup(self) -> Ratio | None:
        """On IREE, against the baseline."""
        return self.variant.iree.speedup if self.variant.iree else None

    @property
    def errors(self) -> NumberErrors:
        """How far its outputs are from the unchanged model's."""
        return self.variant.error or NumberErrors()


@dataclass(frozen=True, slots=True)
class HeaderGpu(Recorded):
    """A GPU of a sweep."""

    name: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MissingPoint(Recorded):
    """A point without a record: what became of it, and why."""

    point: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepHeader(Recorded):
    """Where a sweep is from, as far as is known.

    Attributes:
        state: `complete`, `interrupted` or `unfinished`.
        lock_folder: empty for the usual one.
    """

    run: str = ""
    state: str = "complete"
    started: str = ""
    config: str = ""
    toolchain: ToolchainFacts = field(default_factory=ToolchainFacts)
    machine: MachineFacts = field(default_factory=MachineFacts)
    command: str = ""
    cwd: str = ""
    version: str = ""
    lock_folder: str = ""
    gpus: tuple[HeaderGpu, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    missing: tuple[MissingPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepEntry:
    """An entry of `model_params` with everything that was measured for it.

    Attributes:
        rows: in the order of the records; never empty.
    """

    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.rows[0].point.name

    @property
    def title(self) -> str:
        """`small_linear (linear, f32, cpu)`."""
        point = self.rows[0].point
        return one_line(f"{point.name} ({point.model_type}, {point.dtype}, {point.device})", _TITLE)

    @property
    def shapes(self) -> tuple[str, ...]:
        """Labels of its shapes."""
        return tuple(dict.fromkeys(row.label for row in self.rows))

    @property
    def recipes(self) -> tuple[str, ...]:
        """Labels of its variants, without the baseline's."""
        return tuple(dict.fromkeys(row.recipe for row in self.rows if not row.is_baseline))

    def row(self, recipe: str, shape: str) -> Row | None:
        """Of a variant at a shape; the last where there are several."""
        return next((row for row in reversed(self.rows) if (row.recipe, row.label) == (recipe, shape)), None)

    def baseline(self, shape: str) -> Row | None:
        """What the others at a shape are compared with."""
        return self.row(_BASELINE, shape)

    def of_recipe(self, recipe: str) -> tuple[Row, ...]:
        """A variant at all shapes."""
        return tuple(row for row in self.rows if row.recipe == recipe)


def read_rows(records: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """The rows of some points, in their order."""
    points = map(PointRecord.from_dict, records)
    return tuple(Row(point, variant) for point in points for variant in point.variants)


def group_entries(rows: Iterable[Row]) -> tuple[SweepEntry, ...]:
    """The rows by entry of `model_params`, in the order of their first ones."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(row.place[:-1], []).append(row)
    return tuple(SweepEntry(tuple(own)) for own in found.values())


def find_mean_ratio(ratios: Sequence[float]) -> float | None:
    """Geometric mean of those that are positive and finite; None where none is."""
    usable = [ratio for ratio in ratios if 0 < ratio < math.inf]
    return statistics.geometric_mean(usable) if usable else None


def times(ratio: float) -> str:
    """A ratio in three digits: `1.72`, `0.094`, `12.5`."""
    if not math.isfinite(ratio):
        return str(ratio)
    if abs(ratio) >= 99.95 or ratio == 0:
        return f"{ratio:.0f}"
    if abs(ratio) >= 9.995:
        return f"{ratio:.1f}"
    return f"{ratio:.2f}" if abs(ratio) >= 0.0995 else f"{ratio:.2g}"


def format_ratio(ratio: Ratio | None) -> str:
    """`1.72 (1.60–1.84)`, marked where it is no difference; a dash for none."""
    if ratio is None:
        return NOTHING
    span = "" if ratio.low is None or ratio.high is None else f" ({times(ratio.low)}–{times(ratio.high)})"
    return f"{times(ratio.ratio)}{span}{_MARKS.get(ratio.word, '')}"


def _take(path: str) -> _Column:
    """What a variant has at the end of a path of fields; None where a part of it is None."""
    return lambda row, _: _find_field(row, path)


def _take_of_baseline(path: str) -> _Column:
    return lambda _, baseline: _find_field(baseline, path)


def _find_field(found: object, path: str) -> object:
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


def _compare_eager_and_compiled(row: Row, _: Row | None) -> float | None:
    eager, compiled = row.variant.torch_eager, row.variant.torch_compile
    return eager.ms / compiled.ms if eager and compiled and compiled.ms else None


CSV_COLUMNS: dict[str, _Column | VariantFigure] = {
    # torchao's
    "name": _take("point.name"),
    **{name: _take(f"variant.{name}") for name in ("quantization", "sparsity")},
    **{name: _take(f"point.{name}") for name in ("m", "k", "n")},
    "high_precision_dtype": lambda row, _: _TORCH_TYPES.get(row.point.dtype, row.point.dtype),
    **{name: _take(f"point.{name}") for name in ("torch_compile_mode", "device", "model_type")},
    "baseline_model_eager_inference_time_in_ms": _take_of_baseline("variant.torch_eager.ms"),
    "quantized_model_eager_inference_time_in_ms": _take("variant.torch_eager.ms"),
    "baseline_model_compiled_inference_time_in_ms": _take_of_baseline("variant.torch_compile.ms"),
    "quantized_model_compiled_inference_time_in_ms": _take("variant.torch_compile.ms"),
    "eager speedup on baseline": _take("variant.torch_eager.speedup.ratio"),
    "compile speedup on baseline": _take("variant.torch_compile.speedup.ratio"),
    "eager vs compile speedup": _compare_eager_and_compiled,
    # ours
    "shape": _take("point.shape"),
    "recipe": _take("recipe"),
    **{name: _take(f"variant.{name}") for name in ("kind", "status", "reason")},
    "iree_baseline_ms": _take_of_baseline("variant.iree.ms"),
    "iree_ms": _take("variant.iree.ms"),
    **{
        f"{side}_speedup{part}": _take(f"variant.{side}.speedup.{name}")
        for side in _SIDES
        for part, name in _RATIO.items()
    },
    **{
        f"{side}_beside_iree{part}": _take(f"variant.{side}.beside_iree.{name}")
        for side in _SIDES[1:]
        for part, name in _RATIO.items()
    },
    **{figure.key or figure.field: figure for figure in VARIANT_FIGURES if figure.part != "roofline"},
    **{f"{side}_first_call_ms": _take(f"variant.{side}.first_call_ms") for side in _SIDES[1:]},
    "flops": _take("point.flops"),
    **{f"roofline_{name}": _take(f"variant.roofline.{name}") for name in ("share", "bound")},
    **{name: _take(f"record.{name}") for name in ("blocks", "replaced", "seconds")},
    "shows": lambda row, _: "; ".join(row.variant.shows),
    "notes": lambda row, _: "; ".join((*row.record.notes, *row.variant.notes)),
}


def format_results_csv(rows: Sequence[Row], missing: Sequence[MissingPoint] = ()) -> str:
    """The whole file, with its header; lines end as RFC 4180 has it.

    A point without figures (of a sweep that was interrupted, say) has a line with its status and the reason.
    """
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, CSV_COLUMNS, restval="")
    writer.writeheader()
    baselines = {row.place: row for row in rows if row.is_baseline}
    for row in rows:
        cells = {}
        for name, column in CSV_COLUMNS.items():
            if isinstance(column, VariantFigure):
                cells[name] = _format_cell(column.read_for_table(row.variant))
            else:
                cells[name] = _format_cell(column(row, baselines.get(row.place)))
        writer.writerow(cells)
    for item in missing:
        name, _, label = item.point.rpartition("/")
        sizes = zip("mkn", label.split("-"), strict=False)
        writer.writerow({"name": name, **dict(sizes), "status": item.status, "reason": item.reason})
    return stream.getvalue()


def _format_cell(value: object) -> str:
    """A whole number without a point (bytes), another with all its digits."""
    if value is None:
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)
    return str(value)


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
_GIB = 1 << 30
_TARGETS = TypeAdapter(dict[str, dict[str, float]])
_Targets: TypeAlias = Mapping[str, Mapping[str, float]]


def is_float32(value: float) -> bool:
    """Whether the table can hold a number as one."""
    return math.isfinite(value) and abs(value) <= _LARGEST_FLOAT32


def _check_float32(value: float) -> float:
    if not is_float32(value):
        raise ValueError(f"{value} is no finite Float32")
    return value


_Float = Annotated[float, AfterValidator(_check_float32)]


class _OssPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OssBenchmark(_OssPart):
    """What was benchmarked, in the words of dashboards: `dtype` is the recipe."""

    name: _Text
    mode: _Text
    dtype: _Text
    extra_info: _Extra = {}


class OssModel(_OssPart):
    """Of which model."""

    name: _Text
    type: str = ""
    backend: str = ""
    origins: list[str] = []
    extra_info: _Extra = {}


class OssMetric(_OssPart):
    """One figure; several values where it was taken several times."""

    name: _Text
    benchmark_values: Annotated[list[_Float], Field(min_length=1)]
    target_value: _Float = 0.0
    extra_info: _Extra = {}


class OssRunner(_OssPart):
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


class OssDependency(_OssPart):
    """A package that the figures depend on."""

    repo: str = ""
    branch: str = ""
    sha: str = ""
    version: str = ""
    extra_info: _Extra = {}


class OssRecord(_OssPart):
    """One metric of one variant at one point."""

    benchmark: OssBenchmark
    model: OssModel
    metric: OssMetric
    runners: list[OssRunner] = []
    dependencies: dict[str, OssDependency] = {}
    # None is said of.
    inputs: dict[str, _Extra] = {}


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    value: float | None
    unit: str
    ratio: Ratio | None = None


def make_oss_json(rows: Sequence[Row], header: SweepHeader, *, targets: _Targets | None = None) -> str:
    """The file: a JSON array of records, checked against the schema; arguments as for `make_oss_records`."""
    try:
        records = [record.model_dump() for record in make_oss_records(rows, header, targets=targets)]
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise GauntletError(f"record {where} of the benchmark database: {first['msg']}") from error
    return json.dumps(records, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def make_oss_records(
    rows: Sequence[Row], header: SweepHeader, *, targets: _Targets | None = None
) -> Iterator[OssRecord]:
    """The records of all figures that are finite.

    Args:
        rows: of all points.
        header: of the run; its state is in every record where it is not `complete`.
        targets: the value that a metric should have, by its name and then by `<recipe>@<model.name>` or `<recipe>`; 0
            for those that are not named, which dashboards read as none.
    """
    baselines = {row.place: row for row in rows if row.is_baseline}
    shapes: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        shapes.setdefault(row.label, set()).add(row.place)
    dependencies = _find_dependencies(header)
    for row in rows:
        name = row.label if len(shapes[row.label]) == 1 else f"{row.point.name} {row.label}"
        runner = _describe_runner(row, header)
        named = {name: getattr(row.point, name) for name in ("name", "model_type", "shape", "m", "k", "n")}
        flops = None if row.point.flops is None else f"{row.point.flops:.0f}"
        for backend, metrics in _find_backends(row, baselines.get(row.place)):
            model = OssModel(
                name=name,
                type="micro-benchmark custom layer",
                backend=backend,
                origins=["iree"],
                extra_info=_keep_known({**named, "flops": flops}),
            )
            benchmark = _describe_benchmark(row, backend, runner.type, header.state)
            for metric in metrics:
                if metric.value is not None and is_float32(metric.value):
                    wanted = (targets or {}).get(metric.name, {})
                    ratio = metric.ratio
                    more = {"low": ratio.low, "high": ratio.high, "verdict": ratio.word} if ratio else {}
                    yield OssRecord(
                        benchmark=benchmark,
                        model=model,
                        metric=OssMetric(
                            name=metric.name,
                            benchmark_values=[metric.value],
                            target_value=float(wanted.get(f"{row.recipe}@{name}", wanted.get(row.recipe, 0.0))),
                            extra_info=_keep_known({"unit": metric.unit, **more}),
                        ),
                        runners=[runner],
                        dependencies=dependencies,
                    )


def _find_backends(row: Row, baseline: Row | None) -> Iterator[tuple[str, list[_Metric]]]:
    """The metrics of each side that was measured."""
    own, other = row.variant, baseline.variant if baseline else None
    yield "iree", [*_collect_times(row, own.iree, other.iree if other else None), *_collect_iree_metrics(row)]
    if own.kind == "compiler" and not row.is_baseline:
        # It is nothing to torch.
        return
    yield "eager", _collect_times(row, own.torch_eager, other.torch_eager if other else None)
    yield "inductor", _collect_times(row, own.torch_compile, other.torch_compile if other else None)


def _collect_times(
    row: Row, side: IreeTimes | TorchTimes | None, baseline: IreeTimes | TorchTimes | None
) -> list[_Metric]:
    if side is None:
        return []
    own = _BASELINE_TIMES.get(row.point.dtype, "Baseline Fwd Time (ms)")
    if row.is_baseline:
        return [_Metric(own, side.ms, "ms")]
    speedup = side.speedup
    ratio = speedup.ratio if speedup else None
    return [
        # As torchao's program names it, and as its guide does.
        *(_Metric(name, ratio, "x", speedup) for name in (SPEEDUP, f"speedup(wrt {row.point.dtype})")),
        _Metric(own, baseline.ms if baseline else None, "ms"),
        _Metric(_RECIPE_TIMES.get(row.variant.kind, "Recipe Fwd Time (ms)"), side.ms, "ms"),
    ]


def _collect_iree_metrics(row: Row) -> list[_Metric]:
    """What is known of IREE alone."""
    if row.variant.iree is None:
        return []
    found = []
    for figure in sorted(VARIANT_FIGURES, key=lambda figure: figure.metric.place):
        value, metric = figure.read(row.variant), figure.metric
        found.append(_Metric(metric.name, None if value is None else value / metric.scale, metric.unit))
    for name, side in (("torch eager", row.variant.torch_eager), ("torch.compile", row.variant.torch_compile)):
        beside = side.beside_iree if side else None
        found.append(_Metric(f"Speedup over {name} (x)", beside.ratio if beside else None, "x", beside))
    return found


def _describe_benchmark(row: Row, backend: str, arch: str, state: str) -> OssBenchmark:
    compiled = backend == "inductor"
    facts = {
        "device": _name_device(row),
        "iree_device": row.point.device,
        "arch": arch,
        # Of torch.compile alone: dashboards take a series without these for an eager one.
        "torch_compile_mode": row.point.torch_compile_mode if compiled else None,
        "use_compile": "true" if compiled else None,
        "sweep": None if state == "complete" else state,
        "high_precision_dtype": row.point.dtype,
        "quantization": row.variant.quantization,
        "sparsity": row.variant.sparsity or "",
        "recipe_kind": row.variant.kind,
        "status": row.variant.status,
    }
    return OssBenchmark(name="micro-benchmark api", mode="inference", dtype=row.recipe, extra_info=_keep_known(facts))


def _describe_runner(row: Row, header: SweepHeader) -> OssRunner:
    """The machine. `name` and `type` are what dashboards call device and architecture."""
    machine, device = header.machine, _name_device(row)
    gpus = () if is_cpu(row.point.device) else header.gpus
    names = ", ".join(filter(None, dict.fromkeys(gpu.name for gpu in gpus)))
    return OssRunner(
        name=device,
        type=names or machine.cpu or "unknown",
        cpu_info=machine.cpu,
        cpu_count=machine.cores,
        avail_mem_in_gb=(machine.memory_bytes or 0) // _GIB,
        gpu_info=names,
        gpu_count=len(gpus),
        avail_gpu_mem_in_gb=sum(gpu.memory_bytes for gpu in gpus) // _GIB,
        extra_info=_keep_known(
            {"hostname": machine.host, "os": machine.os, "python": machine.python}
            | {"run": header.run, "started": header.started}
        ),
    )


def _find_dependencies(header: SweepHeader) -> dict[str, OssDependency]:
    toolchain = header.toolchain
    found = {}
    for package, version, sha in (
        ("iree-base-compiler", toolchain.compiler, toolchain.compiler_commit),
        ("iree-base-runtime", toolchain.runtime, toolchain.runtime_commit),
    ):
        if version:
            found[package] = OssDependency(repo="iree-org/iree", version=version, sha=sha)
    for name, version in header.versions.items():
        found[name] = OssDependency(repo=_REPOSITORIES.get(name, ""), version=version)
    return found


def _name_device(row: Row) -> str:
    kind = find_kind(row.point.device)
    return kind.dashboard_device or kind.family


def _keep_known(facts: Mapping[str, object]) -> dict[str, str]:
    """As the table's maps hold it: text, and nothing for what is not known."""
    return {name: str(value) for name, value in facts.items() if value is not None and value != ""}


def read_targets(name: str) -> _Targets:
    """The file of `--targets`: `{metric: {recipe or recipe@shape: value}}`; nothing for an empty name."""
    if not name:
        return {}
    try:
        return _TARGETS.validate_python(json.loads(read_file(expand_home(name))), strict=True)
    except OSError as error:
        raise UsageError(f"--targets {name}: {error.strerror}", "Name a JSON file.") from error
    except ValidationError as error:
        raise UsageError(
            f"--targets {name}: expected an object of objects of numbers",
            'Such as {"Fwd Speedup (x)": {"int8wo": 1.2, "int8wo@1-4096-4096": 1.5}}.',
        ) from error
    except ValueError as error:
        raise UsageError(f"--targets {name}: no JSON: {error}", "See docs/reference/micro.md.") from error
