"""Points' records as flat rows, one per variant, and these rows as CSV and as records of a dashboard's database.

The first columns have the names and order of torchao's `generate_results_csv`
(benchmarks/microbenchmarks/utils.py); times there are torch's, eager and compiled. The toolkit's columns follow. A cell
without a figure is empty; numbers have all digits.
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
from iree_gauntlet.formatting import join_lines
from iree_gauntlet.journal_events import MachineInfo, ToolchainInfo
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.records.chain_figures import NO_VALUE
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
# The marks of ratios whose verdict is not evident from their size.
_VERDICT_MARKS = {"inconclusive": " ?", "same": " ="}
_MAX_TITLE_CHARS = 100
# A column's function: it takes a variant's row and the baseline's row at the same point, and returns the cell's value.
_Column = Callable[["Row", "Row | None"], object]
_TORCH_TYPES = {"f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16"}
_SIDES = ("iree", "torch_eager", "torch_compile")
_RATIO_FIELDS = {"": "ratio", "_low": "low", "_high": "high", "_word": "word"}


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
    def point_key(self) -> tuple[str, str, str, str, str]:
        """A unique key of the row's point."""
        point = self.point
        return point.name, point.model_type, point.dtype, point.device, point.label

    @property
    def shape_label(self) -> str:
        """The label of the shape."""
        return self.point.label

    @property
    def recipe(self) -> str:
        """The label of the variant."""
        return self.variant.label

    @property
    def is_baseline(self) -> bool:
        """True if the variant is the baseline, with which the others are compared."""
        return self.recipe == _BASELINE

    @property
    def speedup(self) -> Ratio | None:
        """The speed-up on IREE over the baseline."""
        return self.variant.iree.speedup if self.variant.iree else None

    @property
    def errors(self) -> NumberErrors:
        """The errors of the variant's outputs relative to the unchanged model's outputs."""
        return self.variant.error or NumberErrors()


@dataclass(frozen=True, slots=True)
class HeaderGpu(Recorded):
    """A GPU of a sweep."""

    name: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MissingPoint(Recorded):
    """A point without a record, with its status and the reason."""

    point: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepHeader(Recorded):
    """The provenance of a sweep, as far as is known.

    Attributes:
        state: `complete`, `interrupted` or `unfinished`.
        lock_folder: folder of locks; empty for the default.
    """

    run: str = ""
    state: str = "complete"
    started: str = ""
    config: str = ""
    toolchain: ToolchainInfo = field(default_factory=ToolchainInfo)
    machine: MachineInfo = field(default_factory=MachineInfo)
    command: str = ""
    cwd: str = ""
    version: str = ""
    lock_folder: str = ""
    gpus: tuple[HeaderGpu, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    missing: tuple[MissingPoint, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepEntry:
    """An entry of `model_params` with all its measurements.

    Attributes:
        rows: the rows in the order of the records; never empty.
    """

    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """The entry's name in the configuration."""
        return self.rows[0].point.name

    @property
    def title(self) -> str:
        """The heading: `small_linear (linear, f32, cpu)`."""
        point = self.rows[0].point
        return join_lines(f"{point.name} ({point.model_type}, {point.dtype}, {point.device})", _MAX_TITLE_CHARS)

    @property
    def shapes(self) -> tuple[str, ...]:
        """Labels of its shapes."""
        return tuple(dict.fromkeys(row.shape_label for row in self.rows))

    @property
    def recipes(self) -> tuple[str, ...]:
        """Labels of its variants, without the baseline's."""
        return tuple(dict.fromkeys(row.recipe for row in self.rows if not row.is_baseline))

    def row(self, recipe: str, shape: str) -> Row | None:
        """Return the row of a variant at a shape; if there are several rows, return the last."""
        return next((row for row in reversed(self.rows) if (row.recipe, row.shape_label) == (recipe, shape)), None)

    def baseline(self, shape: str) -> Row | None:
        """Return the baseline's row at a shape."""
        return self.row(_BASELINE, shape)

    def get_recipe_rows(self, recipe: str) -> tuple[Row, ...]:
        """Return a variant's rows at all shapes."""
        return tuple(row for row in self.rows if row.recipe == recipe)


def read_rows(records: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
    """Return the rows of points' records, in their order."""
    points = map(PointRecord.from_dict, records)
    return tuple(Row(point, variant) for point in points for variant in point.variants)


def group_entries(rows: Iterable[Row]) -> tuple[SweepEntry, ...]:
    """Group the rows by entry of `model_params`, in the order of their first rows."""
    rows_by_entry: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        rows_by_entry.setdefault(row.point_key[:-1], []).append(row)
    return tuple(SweepEntry(tuple(entry_rows)) for entry_rows in rows_by_entry.values())


def find_mean_ratio(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean of the positive finite ratios; None if there are none."""
    finite_ratios = [ratio for ratio in ratios if 0 < ratio < math.inf]
    return statistics.geometric_mean(finite_ratios) if finite_ratios else None


def format_factor(ratio: float) -> str:
    """Format a ratio with three digits: `1.72`, `0.094`, `12.5`."""
    if not math.isfinite(ratio):
        return str(ratio)
    if abs(ratio) >= 99.95 or ratio == 0:
        return f"{ratio:.0f}"
    if abs(ratio) >= 9.995:
        return f"{ratio:.1f}"
    return f"{ratio:.2f}" if abs(ratio) >= 0.0995 else f"{ratio:.2g}"


def format_ratio(ratio: Ratio | None) -> str:
    """Format a ratio as `1.72 (1.60–1.84)`, with a mark if there is no difference; None is a dash."""
    if ratio is None:
        return NO_VALUE
    span = (
        "" if ratio.low is None or ratio.high is None else f" ({format_factor(ratio.low)}–{format_factor(ratio.high)})"
    )
    return f"{format_factor(ratio.ratio)}{span}{_VERDICT_MARKS.get(ratio.word, '')}"


def _make_column(path: str) -> _Column:
    """Return a column with the value at a path of fields; None if a part of the path is None."""
    return lambda row, _: _find_field(row, path)


def _make_baseline_column(path: str) -> _Column:
    return lambda _, baseline: _find_field(baseline, path)


def _find_field(value: object, path: str) -> object:
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _divide_eager_by_compiled(row: Row, _: Row | None) -> float | None:
    torch_eager, torch_compile = row.variant.torch_eager, row.variant.torch_compile
    return torch_eager.ms / torch_compile.ms if torch_eager and torch_compile and torch_compile.ms else None


CSV_COLUMNS: dict[str, _Column | VariantFigure] = {
    # These are torchao's columns.
    "name": _make_column("point.name"),
    **{name: _make_column(f"variant.{name}") for name in ("quantization", "sparsity")},
    **{name: _make_column(f"point.{name}") for name in ("m", "k", "n")},
    "high_precision_dtype": lambda row, _: _TORCH_TYPES.get(row.point.dtype, row.point.dtype),
    **{name: _make_column(f"point.{name}") for name in ("torch_compile_mode", "device", "model_type")},
    "baseline_model_eager_inference_time_in_ms": _make_baseline_column("variant.torch_eager.ms"),
    "quantized_model_eager_inference_time_in_ms": _make_column("variant.torch_eager.ms"),
    "baseline_model_compiled_inference_time_in_ms": _make_baseline_column("variant.torch_compile.ms"),
    "quantized_model_compiled_inference_time_in_ms": _make_column("variant.torch_compile.ms"),
    "eager speedup on baseline": _make_column("variant.torch_eager.speedup.ratio"),
    "compile speedup on baseline": _make_column("variant.torch_compile.speedup.ratio"),
    "eager vs compile speedup": _divide_eager_by_compiled,
    # These are the toolkit's columns.
    "shape": _make_column("point.shape"),
    "recipe": _make_column("recipe"),
    **{name: _make_column(f"variant.{name}") for name in ("kind", "status", "reason")},
    "iree_baseline_ms": _make_baseline_column("variant.iree.ms"),
    "iree_ms": _make_column("variant.iree.ms"),
    **{
        f"{side}_speedup{part}": _make_column(f"variant.{side}.speedup.{name}")
        for side in _SIDES
        for part, name in _RATIO_FIELDS.items()
    },
    **{
        f"{side}_beside_iree{part}": _make_column(f"variant.{side}.beside_iree.{name}")
        for side in _SIDES[1:]
        for part, name in _RATIO_FIELDS.items()
    },
    **{figure.key or figure.field: figure for figure in VARIANT_FIGURES if figure.part != "roofline"},
    **{f"{side}_first_call_ms": _make_column(f"variant.{side}.first_call_ms") for side in _SIDES[1:]},
    "flops": _make_column("point.flops"),
    **{f"roofline_{name}": _make_column(f"variant.roofline.{name}") for name in ("share", "bound")},
    **{name: _make_column(f"record.{name}") for name in ("blocks", "replaced", "seconds")},
    "shows": lambda row, _: "; ".join(row.variant.shows),
    "notes": lambda row, _: "; ".join((*row.record.notes, *row.variant.notes)),
}


def format_results_csv(rows: Sequence[Row], missing: Sequence[MissingPoint] = ()) -> str:
    """Return the CSV file, with its header and the line ends of RFC 4180.

    A point without figures (of an interrupted sweep, for example) has a line with its status and the reason.
    """
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, CSV_COLUMNS, restval="")
    writer.writeheader()
    baselines = {row.point_key: row for row in rows if row.is_baseline}
    for row in rows:
        cells = {}
        for name, column in CSV_COLUMNS.items():
            if isinstance(column, VariantFigure):
                cells[name] = _format_cell(column.read_for_table(row.variant))
            else:
                cells[name] = _format_cell(column(row, baselines.get(row.point_key)))
        writer.writerow(cells)
    for missing_point in missing:
        name, _, label = missing_point.point.rpartition("/")
        sizes = zip("mkn", label.split("-"), strict=False)
        writer.writerow({"name": name, **dict(sizes), "status": missing_point.status, "reason": missing_point.reason})
    return stream.getvalue()


def _format_cell(value: object) -> str:
    """Format an integral value (such as bytes) without a point, and other numbers with all digits."""
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
# torchao always writes the name for bf16, even if the baseline has another type.
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
    """Return True if a number fits the table's Float32 column."""
    return math.isfinite(value) and abs(value) <= _LARGEST_FLOAT32


def _check_float32(value: float) -> float:
    if not is_float32(value):
        raise ValueError(f"{value} is not a finite Float32")
    return value


_Float = Annotated[float, AfterValidator(_check_float32)]


class _OssPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class OssBenchmark(_OssPart):
    """The benchmark, in the dashboards' terms: `dtype` is the recipe."""

    name: _Text
    mode: _Text
    dtype: _Text
    extra_info: _Extra = {}


class OssModel(_OssPart):
    """The benchmarked model."""

    name: _Text
    type: str = ""
    backend: str = ""
    origins: list[str] = []
    extra_info: _Extra = {}


class OssMetric(_OssPart):
    """One metric; several values if it was measured several times."""

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
    # Records name no inputs.
    inputs: dict[str, _Extra] = {}


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    value: float | None
    unit: str
    ratio: Ratio | None = None


def make_oss_json(rows: Sequence[Row], header: SweepHeader, *, targets: _Targets | None = None) -> str:
    """Return the JSON array of records, checked against the schema; arguments as for `make_oss_records`."""
    try:
        records = [record.model_dump() for record in make_oss_records(rows, header, targets=targets)]
    except ValidationError as error:
        first_error = error.errors()[0]
        field_path = ".".join(map(str, first_error["loc"]))
        raise GauntletError(f"record {field_path} of the benchmark database: {first_error['msg']}") from error
    return json.dumps(records, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def make_oss_records(
    rows: Sequence[Row], header: SweepHeader, *, targets: _Targets | None = None
) -> Iterator[OssRecord]:
    """Yield the records of all finite figures.

    Args:
        rows: rows of all points.
        header: the run's header; its state is in every record unless it is `complete`.
        targets: target values by metric, then by `<recipe>@<model.name>` or `<recipe>`; records without a target have
            0, which dashboards read as none.
    """
    baselines = {row.point_key: row for row in rows if row.is_baseline}
    shapes: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        shapes.setdefault(row.shape_label, set()).add(row.point_key)
    dependencies = _find_dependencies(header)
    for row in rows:
        name = row.shape_label if len(shapes[row.shape_label]) == 1 else f"{row.point.name} {row.shape_label}"
        runner = _describe_runner(row, header)
        point_facts = {name: getattr(row.point, name) for name in ("name", "model_type", "shape", "m", "k", "n")}
        flops = None if row.point.flops is None else f"{row.point.flops:.0f}"
        for backend, metrics in _find_backends(row, baselines.get(row.point_key)):
            model = OssModel(
                name=name,
                type="micro-benchmark custom layer",
                backend=backend,
                origins=["iree"],
                extra_info=_drop_empty({**point_facts, "flops": flops}),
            )
            benchmark = _describe_benchmark(row, backend, runner.type, header.state)
            for metric in metrics:
                if metric.value is not None and is_float32(metric.value):
                    goals = (targets or {}).get(metric.name, {})
                    ratio = metric.ratio
                    ratio_facts = {"low": ratio.low, "high": ratio.high, "verdict": ratio.word} if ratio else {}
                    yield OssRecord(
                        benchmark=benchmark,
                        model=model,
                        metric=OssMetric(
                            name=metric.name,
                            benchmark_values=[metric.value],
                            target_value=float(goals.get(f"{row.recipe}@{name}", goals.get(row.recipe, 0.0))),
                            extra_info=_drop_empty({"unit": metric.unit, **ratio_facts}),
                        ),
                        runners=[runner],
                        dependencies=dependencies,
                    )


def _find_backends(row: Row, baseline: Row | None) -> Iterator[tuple[str, list[_Metric]]]:
    """Yield the metrics of each measured backend."""
    variant, base = row.variant, baseline.variant if baseline else None
    yield ("iree", [*_collect_times(row, variant.iree, base.iree if base else None), *_collect_iree_metrics(row)])
    if variant.kind == "compiler" and not row.is_baseline:
        # A compiler recipe does not concern torch.
        return
    yield "eager", _collect_times(row, variant.torch_eager, base.torch_eager if base else None)
    yield ("inductor", _collect_times(row, variant.torch_compile, base.torch_compile if base else None))


def _collect_times(
    row: Row, side: IreeTimes | TorchTimes | None, baseline: IreeTimes | TorchTimes | None
) -> list[_Metric]:
    if side is None:
        return []
    baseline_metric = _BASELINE_TIMES.get(row.point.dtype, "Baseline Fwd Time (ms)")
    if row.is_baseline:
        return [_Metric(baseline_metric, side.ms, "ms")]
    speedup = side.speedup
    ratio = speedup.ratio if speedup else None
    return [
        # One name is that of torchao's program, the other that of its guide.
        *(_Metric(name, ratio, "x", speedup) for name in (SPEEDUP, f"speedup(wrt {row.point.dtype})")),
        _Metric(baseline_metric, baseline.ms if baseline else None, "ms"),
        _Metric(_RECIPE_TIMES.get(row.variant.kind, "Recipe Fwd Time (ms)"), side.ms, "ms"),
    ]


def _collect_iree_metrics(row: Row) -> list[_Metric]:
    """Return the metrics that only IREE has."""
    if row.variant.iree is None:
        return []
    metrics = []
    for figure in sorted(VARIANT_FIGURES, key=lambda figure: figure.metric.place):
        value, metric = figure.read(row.variant), figure.metric
        metrics.append(_Metric(metric.name, None if value is None else value / metric.scale, metric.unit))
    for name, side in (("torch eager", row.variant.torch_eager), ("torch.compile", row.variant.torch_compile)):
        ratio = side.beside_iree if side else None
        metrics.append(_Metric(f"Speedup over {name} (x)", ratio.ratio if ratio else None, "x", ratio))
    return metrics


def _describe_benchmark(row: Row, backend: str, arch: str, state: str) -> OssBenchmark:
    uses_compile = backend == "inductor"
    facts = {
        "device": _name_device(row),
        "iree_device": row.point.device,
        "arch": arch,
        # Only torch.compile has these: dashboards take a series without them for an eager one.
        "torch_compile_mode": row.point.torch_compile_mode if uses_compile else None,
        "use_compile": "true" if uses_compile else None,
        "sweep": None if state == "complete" else state,
        "high_precision_dtype": row.point.dtype,
        "quantization": row.variant.quantization,
        "sparsity": row.variant.sparsity or "",
        "recipe_kind": row.variant.kind,
        "status": row.variant.status,
    }
    return OssBenchmark(name="micro-benchmark api", mode="inference", dtype=row.recipe, extra_info=_drop_empty(facts))


def _describe_runner(row: Row, header: SweepHeader) -> OssRunner:
    """Return the machine's record. `name` and `type` are the dashboards' device and architecture."""
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
        extra_info=_drop_empty(
            {"hostname": machine.host, "os": machine.os, "python": machine.python}
            | {"run": header.run, "started": header.started}
        ),
    )


def _find_dependencies(header: SweepHeader) -> dict[str, OssDependency]:
    toolchain = header.toolchain
    dependencies = {}
    for package, version, sha in (
        ("iree-base-compiler", toolchain.compiler, toolchain.compiler_commit),
        ("iree-base-runtime", toolchain.runtime, toolchain.runtime_commit),
    ):
        if version:
            dependencies[package] = OssDependency(repo="iree-org/iree", version=version, sha=sha)
    for name, version in header.versions.items():
        dependencies[name] = OssDependency(repo=_REPOSITORIES.get(name, ""), version=version)
    return dependencies


def _name_device(row: Row) -> str:
    kind = find_kind(row.point.device)
    return kind.dashboard_device or kind.family


def _drop_empty(facts: Mapping[str, object]) -> dict[str, str]:
    """Return the facts as text, as in the table's maps, without unknown ones."""
    return {name: str(value) for name, value in facts.items() if value is not None and value != ""}


def read_targets(name: str) -> _Targets:
    """Read the file of `--targets`: `{metric: {recipe or recipe@shape: value}}`; empty for an empty name."""
    if not name:
        return {}
    try:
        return _TARGETS.validate_python(json.loads(read_file(expand_home(name))), strict=True)
    except OSError as error:
        raise UsageError(f"--targets {name}: {error.strerror}", "Name a JSON file.") from error
    except ValidationError as error:
        raise UsageError(
            f"--targets {name}: expected an object that maps metrics to objects of numbers",
            'Such as {"Fwd Speedup (x)": {"int8wo": 1.2, "int8wo@1-4096-4096": 1.5}}.',
        ) from error
    except ValueError as error:
        raise UsageError(f"--targets {name}: not JSON: {error}", "See docs/reference/micro.md.") from error
