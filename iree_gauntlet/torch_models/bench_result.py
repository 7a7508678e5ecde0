"""The result of a benchmark, from its journal: an entry of perf.json, and lines for people.

perf.json is an array of results; failed runs have entries in perf.failed.json, next to it. A new entry is inserted
before the closing bracket, and all earlier bytes stay unchanged. A lock file in the cache makes writers take turns, and
a file is replaced by rename.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from iree_gauntlet.cases import MAIN, Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import format_bytes, format_duration, format_error, format_milliseconds
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import make_step_id
from iree_gauntlet.system.atomic import remove_reserved, write_atomic
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.torch_models.bench_session import PEERS, TRACE, BenchChain, BenchFigures, CheckFigures, Latencies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.results import Result
    from iree_gauntlet.torch_models.agreement import ContractionErrors
    from iree_gauntlet.torch_models.build_files import BuildRecord


_HASH_CHARS = 8
_MIN_CALLS = 20
_MAX_P90_RATIO = 2.0
_LOCK_SECONDS = 60.0
# The figures of an entry, by the stage whose result has them: each figure's name in the entry, and in the statistics.
_FIGURES = {
    Stage.THRESHOLD: {"first_call_ms": "first_call_ms"},
    Stage.COMPILE: {
        "compile_seconds": Figure.COMPILE_TIME.row.statistic,
        "compile_peak_rss_bytes": Figure.COMPILE_MEMORY.row.statistic,
        "module_bytes": Figure.SIZE.row.statistic,
        "dispatch_count": Figure.DISPATCHES.row.statistic,
    },
    Stage.BENCHMARK: {
        name: name
        for name in (
            *("latency_ms", "overhead_us", "load_ms", "peak_rss_bytes", "device_memory", "disturbed"),
            *("tokens_per_sec", "prefill_ms", "decode_ms", "host_ms"),
        )
    },
}
_MAX_NAMES = 1000


def make_perf_entry(
    record: JournalRecord, chain: BenchChain, build: BuildRecord | None, notes: tuple[str, ...]
) -> dict[str, Any]:
    """Return the entry for perf.json; without a result, the entry has a verdict and an error instead of a speed."""
    run, toolchain = record.run, chain.toolchain
    source = (toolchain.compiler.commit or toolchain.compiler.identity)[:_HASH_CHARS]
    identification = {
        "args": chain.options.as_args(),
        "arch": chain.target.name,
        "machine_name": run.machine.host,
        "hash": source,
        "date": run.time,
    }
    benchmark = _find_result(record, chain, Stage.BENCHMARK)
    run_fields = _collect_run_fields(record, chain, build, notes)
    problem = _find_problem(record)
    if problem or benchmark is None:
        verdict, error = problem or (Verdict.ERROR, "interrupted")
        return {"verdict": verdict, "error": error, **identification, **run_fields}
    figures = BenchFigures.from_dict(benchmark.statistics)
    speed = {
        "total_time": figures.total_s,
        "total_samples": figures.total_samples,
        "samples_per_sec": figures.total_samples / figures.total_s,
    }
    return {**speed, **identification, **run_fields, **_collect_figures(Stage.BENCHMARK, benchmark)}


def make_result_lines(record: JournalRecord, chain: BenchChain, build: BuildRecord | None) -> list[str]:
    """Return the lines about the measurement for the end of the console's output."""
    name = chain.id.partition("@")[0]
    benchmark = _find_result(record, chain, Stage.BENCHMARK)
    if _find_problem(record) or benchmark is None or build is None:
        return [f"{name}: no speed is reported"]
    figures, check = BenchFigures.from_dict(benchmark.statistics), _find_result(record, chain, Stage.THRESHOLD)
    latency = figures.latency_ms
    median, p90, p99 = map(format_milliseconds, (latency.p50, latency.p90, latency.p99))
    call_name = "a generation" if build.generation else "a call"
    total = format_duration(figures.total_s)
    speed = f"{name}: {figures.samples_per_sec:.2f} samples/s ({figures.total_samples} in {total})"
    groups = f"; means of {chain.options.microbatch_count}" if chain.options.microbatch_count > 1 else ""
    lines = [f"{speed}, {median} ms {call_name} (p90 {p90}, p99 {p99}{groups})", *_list_notes(latency, benchmark)]
    if figures.tokens_per_sec is not None and figures.prefill_ms:
        # A generation of one token has no later tokens.
        later_tokens = f", then {format_milliseconds(figures.decode_ms.p50)} ms each" if figures.decode_ms else ""
        first_token = format_milliseconds(figures.prefill_ms.p50)
        lines.append(f"{figures.tokens_per_sec:.1f} tokens/s; the first after {first_token} ms{later_tokens}")
    if check:
        check_figures = CheckFigures.from_dict(check.statistics)
        error, contractions = check_figures.error, check_figures.error.contractions
        narrow = f", {format_error(check_figures.to_f32)} against f32" if build.reference else ""
        lines.append(
            f"error against the model in {chain.options.dataformat.value}: {format_error(error.rms)} (rms, "
            f"{format_error(error.rms_tolerance)} is allowed){narrow}; first call "
            f"{format_milliseconds(check_figures.first_call_ms)} ms"
        )
        if error.flips and error.rms_without_flips is not None:
            lines.append(
                f"{format_error(error.rms_without_flips)} without flips, {error.flips}: values that rounding moved "
                "across a kink, as of a ReLU"
            )
        if contractions:
            lines.append(_format_sensitivity(contractions))
    compilation = _find_result(record, chain, Stage.COMPILE)
    if compilation:
        seconds = format_duration(compilation.statistics["tool_seconds"])
        size = format_bytes(compilation.statistics["binary_size_bytes"])
        lines.append(f"compiled in {seconds} to {size}; peak memory {format_bytes(figures.peak_rss_bytes)}")
    for role in (PEERS, TRACE):
        further_result = _find_result(record, chain, Stage.BENCHMARK, role)
        lines += further_result.notes if further_result else ()
    return lines


def _collect_figures(stage: Stage, result: Result) -> dict[str, Any]:
    """Return those of the entry's figures that a result has; only generative models have figures of tokens."""
    return {name: result.statistics[key] for name, key in _FIGURES[stage].items() if key in result.statistics}


def _format_sensitivity(errors: ContractionErrors) -> str:
    shown_count = errors.shown["1%"]
    if errors.of == errors.in_model:
        return f"an error of 1 % would show in {shown_count} of {errors.of} contractions"
    return (
        f"an error of 1 % in a contraction: {errors.of - shown_count} of the {errors.of} that were tried, of "
        f"{errors.in_model}, would not show it (--sensitivity tries all)"
    )


def _list_notes(latency: Latencies, benchmark: Result) -> list[str]:
    """Return notes about the reliability of the figures."""
    notes = list(benchmark.notes)
    if latency.p90 > _MAX_P90_RATIO * latency.p50:
        notes.append(f"calls vary: one in ten takes {latency.p90 / latency.p50:.1f} times the median or longer")
    calls = len(benchmark.samples.real_time_ms) if benchmark.samples else 0
    if calls < _MIN_CALLS:
        notes.append(f"{calls} calls are too few to compare: use --loop_count 100")
    return [f"note: {text}" for text in notes]


def _find_result(record: JournalRecord, chain: BenchChain, stage: Stage, role: str = MAIN) -> Result | None:
    """Return the result of a step if it has figures."""
    result = record.results.get(make_step_id(chain.id, stage, role))
    return result if result is not None and not result.verdict.is_bad and result.statistics else None


def _find_problem(record: JournalRecord) -> tuple[Verdict, str] | None:
    """Return the verdict and reason of the first failed step (later steps were skipped)."""
    for step in record.planned:
        result = record.results.get(step.id)
        if result is not None and result.verdict.is_bad:
            return result.verdict, f"{step.name} {result.verdict}: {result.reason}"
    return None


def _collect_run_fields(
    record: JournalRecord, chain: BenchChain, build: BuildRecord | None, notes: tuple[str, ...]
) -> dict[str, Any]:
    """Return the toolkit's additional fields, which entries of failed runs have too."""
    toolchain, form = chain.toolchain, chain.options.dataformat
    # Steps after the benchmark have their results as notes.
    further_ids = {make_step_id(chain.id, Stage.BENCHMARK, role) for role in (PEERS, TRACE)}
    main_results = [result for name, result in record.results.items() if name not in further_ids]
    fields: dict[str, Any] = {
        "run": record.run.name,
        "device": chain.device,
        "iree": toolchain.as_dict(),
        "dataformat": form.label,
        "compile_flags": list(chain.flags),
        "notes": [*notes, *dict.fromkeys(note for result in main_results for note in result.notes)],
    }
    if build is not None:
        fields |= {
            "parameters": build.parameter_count,
            "samples_per_call": build.samples,
            "weight_error": build.weight_error,
            "built_with": dict(build.versions),
        }
        fields |= {"loss_definition": build.training.loss} if build.training else {}
    check, compilation = _find_result(record, chain, Stage.THRESHOLD), _find_result(record, chain, Stage.COMPILE)
    if check:
        figures = CheckFigures.from_dict(check.statistics)
        error = {**figures.error.as_dict(), "to_f32": figures.to_f32}
        fields |= {"numeric_error": error, **_collect_figures(Stage.THRESHOLD, check)}
    if compilation:
        fields |= _collect_figures(Stage.COMPILE, compilation)
    for role in (PEERS, TRACE):
        further_result = _find_result(record, chain, Stage.BENCHMARK, role)
        fields |= {role: further_result.statistics[role]} if further_result else {}
    return fields


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The location of an appended result; `note` tells the user why this is not the requested file."""

    path: Path
    entries: int
    note: str = ""


def find_result_path(output: str | Path) -> Path:
    """Return the file of `--output`, with `.json` added if missing."""
    path = Path(output)
    return path if path.name.endswith(".json") else path.with_name(f"{path.name}.json")


def append_result(output: str | Path, result: Mapping[str, object], locks: Path) -> AppendResult:
    """Append a result to the file of `--output`, or a failure to the file of failures next to it.

    Missing folders are created. A file that is damaged, or is not a list of results, stays unchanged, and the result
    goes to `<name>.new-1.json` next to it, or to the first such file that is intact or missing. Numbers that JSON lacks
    are written as "nan", "inf" and "-inf". Locks make processes with a common cache take turns. After an error, all
    files are unchanged.
    """
    line = json.dumps(_convert_to_json(result), ensure_ascii=False, allow_nan=False)
    path = find_result_path(output)
    if "error" in result:
        # Failures have their own file: readers of results must find only results.
        path = path.with_name(f"{path.name.removesuffix('.json')}.failed.json")
    with _lock_target(path, locks) as target:
        remove_reserved(target)
        entries, problem = _append_line(target, line)
        if not problem:
            return AppendResult(path, entries)
        for number in range(1, _MAX_NAMES):
            sibling = target.with_name(f"{target.name.removesuffix('.json')}.new-{number}.json")
            with _hold_lock(sibling, locks):
                remove_reserved(sibling)
                entries, damage = _append_line(sibling, line)
            if not damage:
                return AppendResult(
                    sibling, entries, f"{path} {problem}: it was left unchanged, and the result is in {sibling}"
                )
    raise GauntletError(
        f"{path} {problem}, and so are {_MAX_NAMES - 1} files beside it", "Name another file with --output."
    )


def check_output(output: str | Path, locks: Path) -> None:
    """Check that a result can be written, before a long run; this creates missing folders and changes no file."""
    with _lock_target(find_result_path(output), locks) as target:
        if target.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        probe = target.with_name(f".{target.name}.{os.getpid()}.probe")
        try:
            probe.touch()
        finally:
            probe.unlink(missing_ok=True)


def _convert_to_json(value: object) -> object:
    """Return a value in which numbers that JSON lacks are text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _convert_to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_convert_to_json(item) for item in value]
    return value


def _append_line(path: Path, line: str) -> tuple[int, str]:
    """Append an entry to a file; return the number of entries, or the reason why the file was left unchanged."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return 0, "is not a regular file"
        old_bytes = path.read_bytes()
    except FileNotFoundError:
        old_bytes = b""
    try:
        # An empty file may be overwritten, because it has no content to lose.
        text = old_bytes.decode() if old_bytes.strip() else "[]"
        entries = json.loads(text, parse_constant=_raise_number_error)
    except (ValueError, RecursionError) as error:
        return 0, f"is damaged ({str(error).splitlines()[0]})"
    if not isinstance(entries, list):
        return 0, "is not an array of results"
    for number, entry in enumerate(entries):
        if not isinstance(entry, dict) or not {"samples_per_sec", "error"} & entry.keys():
            return 0, f"is not an array of results (entry {number} has neither samples_per_sec nor error)"
    body = text.rstrip().removesuffix("]").rstrip()
    write_atomic(path, f"{body}{',' if entries else ''}\n{line}\n]\n")
    return len(entries) + 1, ""


def _raise_number_error(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@contextlib.contextmanager
def _hold_lock(target: Path, locks: Path) -> Iterator[None]:
    """Hold the lock of a file, by the file's absolute path; the lock ends with this process."""
    path = locks / f"result-{hashlib.sha256(os.fsencode(target)).hexdigest()[:32]}.lock"
    with contextlib.ExitStack() as stack:
        try:
            locks.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(path, timeout=_LOCK_SECONDS))
        except TimeoutError:
            raise GauntletError(
                f"{target}: another process has been writing to it for {_LOCK_SECONDS:.0f} s",
                f"Find the process that holds the lock {path}, or name another file with --output.",
            ) from None
        except OSError as error:
            raise GauntletError(
                f"{locks}: the lock of {target} cannot be created there ({error.strerror or error})",
                "The cache's folder must be writable; --cache-dir names another one.",
            ) from error
        yield


@contextlib.contextmanager
def _lock_target(path: Path, locks: Path) -> Iterator[Path]:
    """Hold the lock of a result's file and yield the file's real path; disk errors name the requested path."""
    try:
        # Use the real path: two names of one file must share one lock, and a link's target is replaced, not the link.
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _hold_lock(target, locks):
            yield target
    except OSError as error:
        raise GauntletError(
            f"{path}: the result cannot be written ({error.strerror or error})",
            "Name a file in a writable folder with --output; the existing file is unchanged.",
        ) from error
