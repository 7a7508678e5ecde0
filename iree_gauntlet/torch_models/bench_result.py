"""The result of a benchmark, out of its journal: an entry of perf.json, and lines for people.

perf.json is an array of results; runs without one have entries in perf.failed.json, beside it. A new entry is put
before the closing bracket, and everything in front of it stays as it is, byte by byte. Writers take turns by a lock
file of the cache, and a file is replaced by rename.
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
from iree_gauntlet.formatting import byte_size, duration, format_error, milliseconds
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import make_step_id
from iree_gauntlet.system.atomic import remove_reserved, write_atomic
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.torch_models.bench_session import AGAINST, TRACE, BenchFigures, Chain, CheckFigures, Latencies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.results import Result
    from iree_gauntlet.torch_models.agreement import ContractionErrors
    from iree_gauntlet.torch_models.build_files import BuildRecord


_HASH_LENGTH = 8
_FEW_CALLS = 20
_UNSTEADY = 2.0
_LOCK_SECONDS = 60.0
# The figures of an entry, by the stage whose result has them: their names there, and among its statistics.
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
_MOST_NAMES = 1000


def make_perf_entry(
    record: JournalRecord, chain: Chain, build: BuildRecord | None, notes: tuple[str, ...]
) -> dict[str, Any]:
    """What is appended to perf.json; without a speed, but with a verdict and an error, where there is no result."""
    run, toolchain = record.run, chain.toolchain
    source = (toolchain.compiler.commit or toolchain.compiler.identity)[:_HASH_LENGTH]
    about = {
        "args": chain.options.as_args(),
        "arch": chain.target.name,
        "machine_name": run.machine.host,
        "hash": source,
        "date": run.time,
    }
    benchmark = _find_result(record, chain, Stage.BENCHMARK)
    more = _collect_more(record, chain, build, notes)
    problem = _find_problem(record)
    if problem or benchmark is None:
        verdict, error = problem or (Verdict.ERROR, "interrupted")
        return {"verdict": verdict, "error": error, **about, **more}
    figures = BenchFigures.from_dict(benchmark.statistics)
    speed = {
        "total_time": figures.total_s,
        "total_samples": figures.total_samples,
        "samples_per_sec": figures.total_samples / figures.total_s,
    }
    return {**speed, **about, **more, **_collect_figures(Stage.BENCHMARK, benchmark)}


def make_result_lines(record: JournalRecord, chain: Chain, build: BuildRecord | None) -> list[str]:
    """What was measured, for the end of the console."""
    name = chain.id.partition("@")[0]
    benchmark = _find_result(record, chain, Stage.BENCHMARK)
    if _find_problem(record) or benchmark is None or build is None:
        return [f"{name}: no speed is reported"]
    figures, checked = BenchFigures.from_dict(benchmark.statistics), _find_result(record, chain, Stage.THRESHOLD)
    latency = figures.latency_ms
    median, p90, p99 = map(milliseconds, (latency.p50, latency.p90, latency.p99))
    each = "a generation" if build.generation else "a call"
    total = duration(figures.total_s)
    speed = f"{name}: {figures.samples_per_sec:.2f} samples/s ({figures.total_samples} in {total})"
    groups = f"; means of {chain.options.microbatch_count}" if chain.options.microbatch_count > 1 else ""
    lines = [f"{speed}, {median} ms {each} (p90 {p90}, p99 {p99}{groups})", *_find_doubts(latency, benchmark)]
    if figures.tokens_per_sec is not None and figures.prefill_ms:
        # Of one token there is no later one.
        later = f", then {milliseconds(figures.decode_ms.p50)} ms each" if figures.decode_ms else ""
        first = milliseconds(figures.prefill_ms.p50)
        lines.append(f"{figures.tokens_per_sec:.1f} tokens/s; the first after {first} ms{later}")
    if checked:
        found = CheckFigures.from_dict(checked.statistics)
        error, tried = found.error, found.error.contractions
        narrow = f", {format_error(found.to_f32)} against f32" if build.reference else ""
        lines.append(
            f"error against the model in {chain.options.dataformat.value}: {format_error(error.rms)} (rms, "
            f"{format_error(error.rms_tolerance)} is allowed){narrow}; first call "
            f"{milliseconds(found.first_call_ms)} ms"
        )
        if error.flips and error.rms_without_flips is not None:
            lines.append(
                f"{format_error(error.rms_without_flips)} without flips, {error.flips}: values that rounding moved "
                "across a kink, as of a ReLU"
            )
        if tried:
            lines.append(_say_sensitivity(tried))
    compiled = _find_result(record, chain, Stage.COMPILE)
    if compiled:
        seconds = duration(compiled.statistics["tool_seconds"])
        size = byte_size(compiled.statistics["binary_size_bytes"])
        lines.append(f"compiled in {seconds} to {size}; peak memory {byte_size(figures.peak_rss_bytes)}")
    for role in (AGAINST, TRACE):
        beside = _find_result(record, chain, Stage.BENCHMARK, role)
        lines += beside.notes if beside else ()
    return lines


def _collect_figures(stage: Stage, result: Result) -> dict[str, Any]:
    """Take the figures that a result has; a model that makes no tokens has none of them."""
    return {name: result.statistics[key] for name, key in _FIGURES[stage].items() if key in result.statistics}


def _say_sensitivity(tried: ContractionErrors) -> str:
    if tried.of == tried.in_model:
        return f"an error of 1 % would show in {tried.shown['1%']} of {tried.of} contractions"
    return (
        f"an error of 1 % in a contraction: {tried.of - tried.shown['1%']} of the {tried.of} that were tried, of "
        f"{tried.in_model}, would not show it (--sensitivity tries all)"
    )


def _find_doubts(latency: Latencies, benchmark: Result) -> list[str]:
    """What should be known before a figure is believed."""
    found = list(benchmark.notes)
    if latency.p90 > _UNSTEADY * latency.p50:
        found.append(f"calls vary: one in ten takes {latency.p90 / latency.p50:.1f} times the median or longer")
    calls = len(benchmark.samples.real_time_ms) if benchmark.samples else 0
    if calls < _FEW_CALLS:
        found.append(f"{calls} calls are few: --loop_count 100 gives figures that can be compared")
    return [f"note: {text}" for text in found]


def _find_result(record: JournalRecord, chain: Chain, stage: Stage, role: str = MAIN) -> Result | None:
    """The figures of a step, where it has any."""
    found = record.results.get(make_step_id(chain.id, stage, role))
    return found if found is not None and not found.verdict.is_bad and found.statistics else None


def _find_problem(record: JournalRecord) -> tuple[Verdict, str] | None:
    """The verdict of the first step that came out badly, and what is wrong; those behind it were skipped."""
    for step in record.planned:
        result = record.results.get(step.id)
        if result is not None and result.verdict.is_bad:
            return result.verdict, f"{step.name} {result.verdict}: {result.reason}"
    return None


def _collect_more(
    record: JournalRecord, chain: Chain, build: BuildRecord | None, notes: tuple[str, ...]
) -> dict[str, Any]:
    """Our own fields, of a run that failed too."""
    toolchain, form = chain.toolchain, chain.options.dataformat
    # The notes of steps that follow the benchmark are their results.
    beside = {make_step_id(chain.id, Stage.BENCHMARK, role) for role in (AGAINST, TRACE)}
    own = [result for name, result in record.results.items() if name not in beside]
    found: dict[str, Any] = {
        "run": record.run.name,
        "device": chain.device,
        "iree": toolchain.as_dict(),
        "dataformat": form.label,
        "compile_flags": list(chain.flags),
        "notes": [*notes, *dict.fromkeys(note for result in own for note in result.notes)],
    }
    if build is not None:
        found |= {
            "parameters": build.parameter_count,
            "samples_per_call": build.samples,
            "weight_error": build.weight_error,
            "built_with": dict(build.versions),
        }
        found |= {"loss_definition": build.training.loss} if build.training else {}
    checked, compiled = _find_result(record, chain, Stage.THRESHOLD), _find_result(record, chain, Stage.COMPILE)
    if checked:
        figures = CheckFigures.from_dict(checked.statistics)
        error = {**figures.error.as_dict(), "to_f32": figures.to_f32}
        found |= {"numeric_error": error, **_collect_figures(Stage.THRESHOLD, checked)}
    if compiled:
        found |= _collect_figures(Stage.COMPILE, compiled)
    for role in (AGAINST, TRACE):
        more = _find_result(record, chain, Stage.BENCHMARK, role)
        found |= {role: more.statistics[role]} if more else {}
    return found


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a result went; `note`: why it is another file than the one asked for, for the user."""

    path: Path
    entries: int
    note: str = ""


def find_result_path(output: str | Path) -> Path:
    """The file that `--output` means: `.json` is added where it is missing."""
    path = Path(output)
    return path if path.name.endswith(".json") else path.with_name(f"{path.name}.json")


def append_result(output: str | Path, result: Mapping[str, object], locks: Path) -> Appended:
    """Appends a result to what `--output` names, or what has an error to the file of failures beside it.

    Missing folders are made. A file that is damaged, or is no list of results, is left as it is: the result goes to
    `<name>.new-1.json` next to it, or to the first such file that is whole or not there. Numbers that JSON does not
    have are written as "nan", "inf" and "-inf". Those who share a cache's locks take turns. After an error what was
    there is untouched.
    """
    line = json.dumps(_make_json(result), ensure_ascii=False, allow_nan=False)
    asked = find_result_path(output)
    if "error" in result:
        # Who reads results finds nothing but results.
        asked = asked.with_name(f"{asked.name.removesuffix('.json')}.failed.json")
    with _lock_target(asked, locks) as target:
        remove_reserved(target)
        entries, why = _add(target, line)
        if not why:
            return Appended(asked, entries)
        for number in range(1, _MOST_NAMES):
            other = target.with_name(f"{target.name.removesuffix('.json')}.new-{number}.json")
            with _hold_lock(other, locks):
                remove_reserved(other)
                entries, damage = _add(other, line)
            if not damage:
                return Appended(other, entries, f"{asked} {why}: it is kept, and the result is in {other}")
    raise GauntletError(
        f"{asked} {why}, and so are {_MOST_NAMES - 1} files beside it", "Give another file with --output."
    )


def check_output(output: str | Path, locks: Path) -> None:
    """Makes sure that a result could be written, before a long run; makes missing folders and changes no file."""
    with _lock_target(find_result_path(output), locks) as target:
        if target.is_dir():
            raise IsADirectoryError(None, "Is a directory")
        probe = target.with_name(f".{target.name}.{os.getpid()}.probe")
        try:
            probe.touch()
        finally:
            probe.unlink(missing_ok=True)


def _make_json(value: object) -> object:
    """The same with numbers that JSON does not have as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _make_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_make_json(item) for item in value]
    return value


def _add(path: Path, line: str) -> tuple[int, str]:
    """Puts an entry into a file: how many it holds then, and what is wrong with it where it was left alone."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return 0, "is no regular file"
        old = path.read_bytes()
    except FileNotFoundError:
        old = b""
    try:
        # An empty file holds nothing that could be lost.
        text = old.decode() if old.strip() else "[]"
        found = json.loads(text, parse_constant=_refuse_number)
    except (ValueError, RecursionError) as error:
        return 0, f"is damaged ({str(error).splitlines()[0]})"
    if not isinstance(found, list):
        return 0, "is no array of results"
    for number, entry in enumerate(found):
        if not isinstance(entry, dict) or not {"samples_per_sec", "error"} & entry.keys():
            return 0, f"is no array of results (entry {number} has neither samples_per_sec nor error)"
    before = text.rstrip().removesuffix("]").rstrip()
    write_atomic(path, f"{before}{',' if found else ''}\n{line}\n]\n")
    return len(found) + 1, ""


def _refuse_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


@contextlib.contextmanager
def _hold_lock(target: Path, locks: Path) -> Iterator[None]:
    """Holds the lock of a file, by its absolute path; it dies with its owner."""
    path = locks / f"result-{hashlib.sha256(os.fsencode(target)).hexdigest()[:32]}.lock"
    with contextlib.ExitStack() as stack:
        try:
            locks.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(path, timeout=_LOCK_SECONDS))
        except TimeoutError:
            raise GauntletError(
                f"{target}: another process has been writing it for {_LOCK_SECONDS:.0f} s",
                f"Find out who holds {path}, or give another file with --output.",
            ) from None
        except OSError as error:
            raise GauntletError(
                f"{locks}: the lock of {target} cannot be made there ({error.strerror or error})",
                "The cache's folder must be writable; --cache-dir names another one.",
            ) from error
        yield


@contextlib.contextmanager
def _lock_target(asked: Path, locks: Path) -> Iterator[Path]:
    """The file that a result goes to, with its lock held; what the disk refuses is said of the one asked for."""
    try:
        # Two names of one file must meet at one lock, and what a link points to is what is replaced.
        target = Path(os.path.realpath(asked))
        target.parent.mkdir(parents=True, exist_ok=True)
        with _hold_lock(target, locks):
            yield target
    except OSError as error:
        raise GauntletError(
            f"{asked}: the result cannot be written ({error.strerror or error})",
            "Give a file with --output in a folder that can be written; nothing that was there has changed.",
        ) from error
