"""The files of results of `micro`: tables, plots, a page, and the records of a dashboard's database."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from iree_gauntlet.cases import Stage
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.measuring.profiles.memory_profile import MEMORY_FILE, MEMORY_ROLE, read_written_memory_profile
from iree_gauntlet.records.outcome import state_of
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import html_page
from iree_gauntlet.reports.render_markdown import markdown
from iree_gauntlet.reports.sweeps.sweep_document import NOT_MEASURED, UNREACHED, make_sweep_document
from iree_gauntlet.reports.sweeps.sweep_plots import draw_memory_plot, draw_plots
from iree_gauntlet.reports.sweeps.sweep_rows import read_rows, write_results_csv
from iree_gauntlet.settings import shown
from iree_gauntlet.steps import step_id
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.reports.sweeps.sweep_rows import Ratio, Row, SideFigures


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
_TARGETS = TypeAdapter(dict[str, dict[str, float]])
_NO_PLOTS = "no plots: matplotlib is not installed (pip install 'iree-gauntlet[plots]')"


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


class OssInput(_OssPart):
    """An input of the model."""

    dtype: str = ""
    extra_info: _Extra = {}


class OssRecord(_OssPart):
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


def make_oss_json(
    rows: Sequence[Row], header: Mapping[str, Any], *, targets: Mapping[str, Mapping[str, float]] | None = None
) -> str:
    """The file: a JSON array of records, checked against the schema; arguments as for `make_oss_records`.

    Raises:
        GauntletError: a record is none that the database can take.
    """
    records = make_oss_records(rows, header, targets=targets)
    check_oss_records(records)
    return json.dumps(records, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def make_oss_records(
    rows: Sequence[Row], header: Mapping[str, Any], *, targets: Mapping[str, Mapping[str, float]] | None = None
) -> list[dict[str, Any]]:
    """The records of all figures that are finite.

    Args:
        rows: of all points.
        header: of the run: `run`, `toolchain`, `machine`, `versions`, and `gpus` where it ran on some, each with
            `name` and `memory_bytes`; `state`, which is in every record where it is not `complete`.
        targets: the value that a metric should have, by its name and then by `<recipe>@<model.name>` or `<recipe>`; 0
            for those that are not named, which dashboards read as none.
    """
    baselines = {row.point: row for row in rows if row.is_baseline}
    shapes: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        shapes.setdefault(row.label, set()).add(row.point)
    dependencies = _find_dependencies(header)
    state = str(header.get("state") or "complete")
    records = []
    for row in rows:
        model = row.label if len(shapes[row.label]) == 1 else f"{row.name} {row.label}"
        runner = _describe_runner(row, header)
        named = {name: getattr(row, name) for name in ("name", "model_type", "shape", "m", "k", "n")}
        about = _keep_known({**named, "flops": None if row.flops is None else f"{row.flops:.0f}"})
        for backend, metrics in _find_backends(row, baselines.get(row.point)):
            for metric in metrics:
                if metric.value is None or not is_float32(metric.value):
                    continue
                wanted = (targets or {}).get(metric.name, {})
                records.append(
                    {
                        "benchmark": _describe_benchmark(row, backend, runner["type"], state),
                        "model": {
                            "name": model,
                            "type": "micro-benchmark custom layer",
                            "backend": backend,
                            "origins": ["iree"],
                            "extra_info": about,
                        },
                        "metric": {
                            "name": metric.name,
                            "benchmark_values": [metric.value],
                            "target_value": float(wanted.get(f"{row.recipe}@{model}", wanted.get(row.recipe, 0.0))),
                            "extra_info": _describe_metric(metric),
                        },
                        "runners": [runner],
                        "dependencies": dependencies,
                        "inputs": {},
                    }
                )
    return records


def _find_backends(row: Row, baseline: Row | None) -> Iterator[tuple[str, list[_Metric]]]:
    """The metrics of each side that was measured."""
    yield "iree", [*_collect_times(row, row.iree, baseline.iree if baseline else None), *_collect_iree_metrics(row)]
    if row.kind == "compiler" and not row.is_baseline:
        # It is nothing to torch.
        return
    yield "eager", _collect_times(row, row.torch_eager, baseline.torch_eager if baseline else None)
    yield "inductor", _collect_times(row, row.torch_compile, baseline.torch_compile if baseline else None)


def _collect_times(row: Row, side: SideFigures | None, baseline: SideFigures | None) -> list[_Metric]:
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


def _collect_iree_metrics(row: Row) -> list[_Metric]:
    """What is known of IREE alone."""
    if row.iree is None:
        return []
    found = [
        _Metric("Allocated Memory (MB)", _scale(row.device_peak_bytes, _MEGABYTE), "MB"),
        _Metric("Peak Resident Memory (MB)", _scale(row.peak_rss_bytes, _MEGABYTE), "MB"),
        _Metric("Module Size (MB)", _scale(row.module_bytes, _MEGABYTE), "MB"),
        _Metric("Parameter Size (MB)", _scale(row.parameter_bytes, _MEGABYTE), "MB"),
        _Metric("Compile Time (s)", row.compile_s, "s"),
        _Metric("First Call (ms)", row.iree.first_call_ms, "ms"),
        _Metric("Max Error", row.max_error, ""),
        _Metric("Relative Error", row.relative_error, ""),
        _Metric("SQNR (dB)", row.sqnr_db, "dB"),
        _Metric("Share of Machine Peak (%)", _scale(row.roofline_share, 0.01), "%"),
    ]
    for name, side in (("torch eager", row.torch_eager), ("torch.compile", row.torch_compile)):
        beside = side.beside_iree if side else None
        found.append(_Metric(f"Speedup over {name} (x)", beside.ratio if beside else None, "x", beside))
    return found


def _describe_benchmark(row: Row, backend: str, arch: str, state: str) -> dict[str, Any]:
    facts = {
        "device": _name_device(row),
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
    return {"name": "micro-benchmark api", "mode": "inference", "dtype": row.recipe, "extra_info": _keep_known(facts)}


def _describe_metric(metric: _Metric) -> dict[str, str]:
    ratio = metric.ratio
    more = {"low": ratio.low, "high": ratio.high, "verdict": ratio.word} if ratio else {}
    return _keep_known({"unit": metric.unit, **more})


def _describe_runner(row: Row, header: Mapping[str, Any]) -> dict[str, Any]:
    """The machine. `name` and `type` are what dashboards call device and architecture."""
    machine = header.get("machine") or {}
    device = _name_device(row)
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
        "extra_info": _keep_known(
            {"hostname": machine.get("host"), "os": machine.get("os"), "python": machine.get("python")}
            | {"run": header.get("run"), "started": header.get("started")}
        ),
    }


def _find_dependencies(header: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    toolchain = header.get("toolchain") or {}
    found = {}
    for package, part in (("iree-base-compiler", "compiler"), ("iree-base-runtime", "runtime")):
        if toolchain.get(part):
            sha = str(toolchain.get(f"{part}_commit") or "")
            found[package] = _describe_dependency("iree-org/iree", str(toolchain[part]), sha)
    for name, version in (header.get("versions") or {}).items():
        found[str(name)] = _describe_dependency(_REPOSITORIES.get(str(name), ""), str(version))
    return found


def _describe_dependency(repo: str, version: str, sha: str = "") -> dict[str, Any]:
    return {"repo": repo, "branch": "", "sha": sha, "version": version, "extra_info": {}}


def _name_device(row: Row) -> str:
    driver = row.device.partition(":")[0]
    return _DEVICES.get(driver, driver)


def _scale(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _keep_known(facts: Mapping[str, object]) -> dict[str, str]:
    """As the table's maps hold it: text, and nothing for what is not known."""
    return {name: str(value) for name, value in facts.items() if value is not None and value != ""}


def write_micro_reports(record: JournalRecord, run_dir: Path, stream: TextIO) -> None:
    """Writes everything into `results/` of the run's folder, and where the run was asked to write it; prints the rest.

    Raises:
        GauntletError: a file cannot be written, or a record is none.
    """
    asked = record.run.micro or {}
    results = [record.results.get(step_id(chain, Stage.BENCHMARK)) for chain in asked["points"]]
    records = [item.statistics["micro"] for item in results if item is not None and "micro" in item.statistics]
    rows = read_rows(records)
    header = _make_header(record) | {"missing": _find_missing(record, asked)}
    targets = read_targets(asked["targets"])
    oss = make_oss_json(rows, header, targets=targets)
    plots = draw_plots(rows) if importlib.util.find_spec("matplotlib") else ()
    document = make_sweep_document(rows, header, plots)
    folder = run_dir / "results"
    files: dict[str, str | bytes] = {
        "results.csv": write_results_csv(rows, header),
        "results.md": markdown(document),
        "results.json": json.dumps({"header": header, "points": records}, indent=1) + "\n",
        "results.html": html_page(document),
        "benchmark_results.json": oss,
        **{f"{plot.name}.svg": plot.svg for plot in plots},
        **{f"{plot.name}.png": plot.png for plot in plots},
    }
    _write(folder, files)
    _draw_memory(record, run_dir)
    names = ", ".join(name for name in files if name.startswith("results."))
    print_document(document, stream, f"{shown(folder)}: {names}", environ=os.environ)
    if not plots and any(row.speedup for row in rows):
        stream.write(f"{_NO_PLOTS}\n")
    here = Path(record.run.cwd)
    if asked["output_dir"]:
        _write(here / asked["output_dir"] / run_dir.name, files)
        stream.write(f"the same in {asked['output_dir']}/{run_dir.name}\n")
    if asked["output"]:
        output = here / Path(asked["output"]).expanduser()
        _write(output.parent, {output.name: oss})
        stream.write(f"records for a benchmark database: {asked['output']}\n")


def check_writable(name: str) -> None:
    """Makes sure that `--output` can be written, before anything is measured.

    Raises:
        UsageError: it cannot.
    """
    if not name:
        return
    path = Path(name).expanduser().absolute()
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


def read_targets(name: str) -> Mapping[str, Mapping[str, float]]:
    """The file of `--targets`: `{metric: {recipe or recipe@shape: value}}`; nothing for an empty name.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    if not name:
        return {}
    try:
        return _TARGETS.validate_python(json.loads(Path(name).expanduser().read_text(encoding="utf-8")), strict=True)
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
    """Draws each profile of memory next to its file; without matplotlib, the profile's step has said so."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    for step in record.planned:
        result = record.results.get(step.id)
        if result is None or "memory" not in result.statistics:
            continue
        path = (run_dir / result.log).with_name(MEMORY_FILE)
        profile = read_written_memory_profile(path)
        if profile is not None:
            label = step.id.removeprefix(step_id(step.chain, Stage.BENCHMARK, MEMORY_ROLE))
            svg, png = draw_memory_plot(profile, f"{_name(step.chain)}: {label}")
            _write(path.parent, {path.with_suffix(".svg").name: svg, path.with_suffix(".png").name: png})


def _find_missing(record: JournalRecord, asked: Mapping[str, Any]) -> list[dict[str, str]]:
    """The points without a record: what became of each, and why."""
    # Journals of older versions have none that were refused.
    refused = asked.get("refused") or {}
    found = [{"point": name, "status": "skipped", "reason": reason} for name, reason in refused.items()]
    for chain in asked["points"]:
        result = record.results.get(step_id(chain, Stage.BENCHMARK))
        if result is None:
            found.append({"point": _name(chain), "status": NOT_MEASURED, "reason": UNREACHED[state_of(record)]})
        elif "micro" not in result.statistics:
            found.append({"point": _name(chain), "status": str(result.verdict), "reason": result.reason})
    return found


def _name(chain: str) -> str:
    """Of a point, which its chain has a target behind."""
    return chain.rpartition("@")[0]


def _make_header(record: JournalRecord) -> dict[str, Any]:
    run, first = record.run, record.runs[0]
    asked = run.micro or {}
    return {
        "run": run.run,
        "state": state_of(record),
        "started": first.time,
        "config": Path(asked["config"]).name,
        "toolchain": run.toolchain.as_dict(),
        "machine": run.machine.as_dict(),
        "command": first.command,
        "cwd": run.cwd,
        "version": run.version,
        "lock_folder": run.lock_folder,
        "gpus": list(run.gpus),
        "versions": asked["versions"],
    }


def _write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomic(folder / name, content)
    except OSError as error:
        raise GauntletError(
            f"{folder}: results cannot be written: {error.strerror or error}",
            "Mend that, and `report` writes them again from the journal.",
        ) from error
