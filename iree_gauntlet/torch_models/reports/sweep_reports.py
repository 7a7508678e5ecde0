"""The files of results of `micro`: tables, plots, a page, and the records of a dashboard's database."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from iree_gauntlet.device_kinds import find_kind, is_cpu
from iree_gauntlet.document import Picture
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.journal_format import explain_unreadable
from iree_gauntlet.measuring.profiles.memory_profile import MEMORY_FILE, MEMORY_ROLE, read_written_memory_profile
from iree_gauntlet.records.outcome import state_of
from iree_gauntlet.records.sweep_record import MICRO, UNREADABLE_SWEEP, SweepAsked
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import render_html
from iree_gauntlet.reports.render_markdown import render_markdown
from iree_gauntlet.settings import expand_home, shown
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import make_step_id
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.reports.sweep_document import NOT_MEASURED, UNREACHED, make_sweep_document
from iree_gauntlet.torch_models.reports.sweep_plots import draw_memory_plot
from iree_gauntlet.torch_models.reports.sweep_rows import MissingPoint, SweepHeader, format_results_csv, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.records.sweep_record import IreeTimes, Ratio, TorchTimes
    from iree_gauntlet.torch_models.reports.sweep_rows import Row


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
_MEGABYTE = 1e6
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
    found = [
        _Metric("Allocated Memory (MB)", _scale(row.variant.device_peak_bytes, _MEGABYTE), "MB"),
        _Metric("Peak Resident Memory (MB)", _scale(row.variant.peak_rss_bytes, _MEGABYTE), "MB"),
        _Metric("Module Size (MB)", _scale(row.variant.module_bytes, _MEGABYTE), "MB"),
        _Metric("Parameter Size (MB)", _scale(row.variant.parameter_bytes, _MEGABYTE), "MB"),
        _Metric("Compile Time (s)", row.variant.compile_s, "s"),
        _Metric("First Call (ms)", row.variant.first_call_ms, "ms"),
        _Metric("Max Error", row.errors.max, ""),
        _Metric("Relative Error", row.errors.relative, ""),
        _Metric("SQNR (dB)", row.errors.sqnr_db, "dB"),
        _Metric("Share of Machine Peak (%)", _scale(row.peak_share.share, 0.01), "%"),
    ]
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


def _scale(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _keep_known(facts: Mapping[str, object]) -> dict[str, str]:
    """As the table's maps hold it: text, and nothing for what is not known."""
    return {name: str(value) for name, value in facts.items() if value is not None and value != ""}


def write_micro_reports(record: JournalRecord, run_dir: Path, stream: TextIO) -> dict[str, str]:
    """Writes all into `results/` of the run's folder, prints the document, and returns the files by their names."""
    with explain_unreadable(f"{record.path}: the sweep", UNREADABLE_SWEEP):
        asked = SweepAsked.from_dict(record.run.micro or {})
        results = [record.results.get(make_step_id(chain, Stage.BENCHMARK)) for chain in asked.points]
        records = [item.statistics[MICRO] for item in results if item is not None and MICRO in item.statistics]
        rows = read_rows(records)
        written = _make_header(record, asked)
        header = SweepHeader.from_dict(written)
    targets = read_targets(asked.targets)
    oss = make_oss_json(rows, header, targets=targets)
    document = make_sweep_document(rows, header)
    folder = run_dir / "results"
    files = {
        "results.csv": format_results_csv(rows, header.missing),
        "results.md": render_markdown(document),
        "results.json": json.dumps({"header": written, "points": records}, indent=1) + "\n",
        "results.html": render_html(document),
        "benchmark_results.json": oss,
        **{block.file: block.svg for block in document.blocks if isinstance(block, Picture)},
    }
    _write(folder, files)
    _draw_memory(record, run_dir)
    names = ", ".join(name for name in files if name.startswith("results."))
    print_document(document, stream, f"{shown(folder)}: {names}", environ=os.environ)
    return files


def copy_micro_reports(record: JournalRecord, run_dir: Path, files: Mapping[str, str], stream: TextIO) -> None:
    """Writes the files where the sweep's own command was asked to; a later report of a record writes nowhere else."""
    asked, here = SweepAsked.from_dict(record.run.micro or {}), Path(record.run.cwd)
    if asked.output_dir:
        _write(here / asked.output_dir / run_dir.name, files)
        stream.write(f"the same in {asked.output_dir}/{run_dir.name}\n")
    if asked.output:
        output = here / expand_home(asked.output)
        _write(output.parent, {output.name: files["benchmark_results.json"]})
        stream.write(f"records for a benchmark database: {asked.output}\n")


def check_writable(name: str) -> None:
    """Makes sure that `--output` can be written, before anything is measured."""
    if not name:
        return
    path = expand_home(name).absolute()
    if path.is_dir():
        raise UsageError(f"--output {name}: it is a folder", "Name a file, such as benchmark_results.json.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output {name}: {path.parent}: {error.strerror}", "Name a file where you may write."
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"--output {name}: {path.parent} cannot be written", "Name a file where you may write.")


def read_targets(name: str) -> _Targets:
    """The file of `--targets`: `{metric: {recipe or recipe@shape: value}}`; nothing for an empty name."""
    if not name:
        return {}
    try:
        return _TARGETS.validate_python(json.loads(expand_home(name).read_text(encoding="utf-8")), strict=True)
    except OSError as error:
        raise UsageError(f"--targets {name}: {error.strerror}", "Name a JSON file.") from error
    except ValidationError as error:
        raise UsageError(
            f"--targets {name}: expected an object of objects of numbers",
            'Such as {"Fwd Speedup (x)": {"int8wo": 1.2, "int8wo@1-4096-4096": 1.5}}.',
        ) from error
    except ValueError as error:
        raise UsageError(f"--targets {name}: no JSON: {error}", "See docs/reference/micro.md.") from error


def _draw_memory(record: JournalRecord, run_dir: Path) -> None:
    """Draws each profile of memory next to its file."""
    for step in record.planned:
        result = record.results.get(step.id)
        if result is None or "memory" not in result.statistics:
            continue
        path = (run_dir / result.log).with_name(MEMORY_FILE)
        profile = read_written_memory_profile(path)
        if profile is not None:
            label = step.id.removeprefix(make_step_id(step.chain, Stage.BENCHMARK, MEMORY_ROLE))
            svg = draw_memory_plot(profile, f"{_name_point(step.chain)}: {label}")
            _write(path.parent, {path.with_suffix(".svg").name: svg})


def _name_point(chain: str) -> str:
    """Of a point, which its chain has a target behind."""
    return chain.rpartition("@")[0]


def _make_header(record: JournalRecord, asked: SweepAsked) -> dict[str, Any]:
    """As `results.json` has it."""
    run, first = record.run, record.runs[0]
    # The points without a record: what became of each, and why.
    missing = [MissingPoint(name, "skipped", reason) for name, reason in asked.refused.items()]
    for chain in asked.points:
        result = record.results.get(make_step_id(chain, Stage.BENCHMARK))
        if result is None:
            missing.append(MissingPoint(_name_point(chain), NOT_MEASURED, UNREACHED[state_of(record)]))
        elif MICRO not in result.statistics:
            missing.append(MissingPoint(_name_point(chain), str(result.verdict), result.reason))
    return {
        "run": run.name,
        "state": state_of(record),
        "started": first.time,
        "config": Path(asked.config).name,
        "toolchain": run.toolchain.as_dict(),
        "machine": run.machine.as_dict(),
        "command": first.command,
        "cwd": run.cwd,
        "version": run.version,
        "lock_folder": run.lock_folder,
        "gpus": list(run.gpus),
        "versions": asked.versions,
        "missing": [item.as_dict() for item in missing],
    }


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomic(folder / name, content)
    except OSError as error:
        raise GauntletError(
            f"{folder}: results cannot be written: {error.strerror or error}",
            "Mend that; `gauntlet report` writes those of the run's folder again, from its journal.",
        ) from error
