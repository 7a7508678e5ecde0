"""A trace of a benchmark's program: `--trace light` and `--trace verbose`.

After the measured run, `iree-benchmark-module` of the same toolchain runs the program again, under the runtime's
profiler. A trace shows how a call's time is distributed, but not how fast the program is. If tracing fails, the reason
is reported, and the benchmark remains valid.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.document import Cell, Table
from iree_gauntlet.engine.judging import judge_process
from iree_gauntlet.engine.processes.supervisor import format_shell_line
from iree_gauntlet.engine.profiling import profile_dispatches
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import Column, ColumnKind, format_milliseconds, join_lines
from iree_gauntlet.measuring.profiles.dispatch_profile import OUTSIDE_NAME, DispatchProfile, parse_dispatch_name
from iree_gauntlet.measuring.profiles.perfetto import make_perfetto_trace
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.steps import Command, Step
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.torch_chain import FUNCTION, CompiledProgram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.toolchains.flags import FlagSet
    from iree_gauntlet.toolchains.toolchain import Toolchain
    from iree_gauntlet.torch_models.build_files import Array


_COLUMNS = (
    *(Column(title, ColumnKind.NAME) for title in ("dispatch", "shape")),
    *(Column(title, ColumnKind.NUMBER) for title in ("a call", "ms a call", "share")),
)
_MAX_NAME_CHARS = 80
_NS_PER_MS = 1e6
# Matches the first sizes in a name (`128x2x64`, `4xDxf32`), and the types after them.
_SHAPE_PATTERN = re.compile(r"(?:^|_)(?P<shape>(?:\d+|D)(?:x(?:\d+|D))*(?:x[a-z]+\d+\w*?)?(?:_[a-z]+\d+[^_]*)?)(?=_|$)")
VERBOSE = "verbose"
_VIEWER_URL = "https://ui.perfetto.dev"
_PROFILE_TOOL = "iree-profile"
# The maximum of rows on the console; the files have all rows.
_MAX_ROWS = 10
# The element types for which the tool reads .npy files; inputs of other types are passed as raw bytes.
_NPY_TYPES = frozenset(
    {"i1", "f16", "f32", "f64"} | {f"{sign}i{bits}" for sign in ("", "s", "u") for bits in (8, 16, 32, 64)}
)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """The dispatches of one function of a program.

    Attributes:
        name: the compiler's name, `main$async_dispatch_12_matmul_256x256x256_f32`.
        shape: sizes and types of the function's loops, from the name (`256x256x256 f32`); empty if the name has none.
        kind: `matmul`, `conv`, `elementwise` …
        ns: nanoseconds of these dispatches in one call; the median over the traced calls.
    """

    name: str
    shape: str
    kind: str
    count: int
    ns: int
    share: float


@dataclass(frozen=True, slots=True)
class TraceTable:
    """The dispatches of a program, the slowest first."""

    profile: DispatchProfile
    rows: tuple[TraceRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the table for the journal and files, with times in ns per call."""
        profile = self.profile
        return {
            "calls": profile.invocations,
            "call_ns": profile.elapsed_ns,
            "dispatched_ns": profile.dispatched_ns,
            "outside_ns": profile.outside_ns,
            "on_device": profile.on_device,
            "rows": [asdict(row) for row in self.rows],
            "notes": list(profile.notes),
        }


def make_trace_table(profile: DispatchProfile) -> TraceTable:
    """Return the rows of a profile, the slowest first; rows with equal times are in the program's order."""
    total_ns = profile.elapsed_ns or profile.dispatched_ns
    rows = [
        TraceRow(
            dispatch.name,
            _split_name(dispatch.name)[1],
            parse_dispatch_name(dispatch.name).kind,
            profile.count_per_invocation(dispatch),
            dispatch.invocation_ns,
            dispatch.invocation_ns / total_ns if total_ns else 0.0,
        )
        for dispatch in profile.dispatches
    ]
    rows.sort(key=lambda row: -row.ns)
    return TraceTable(profile, tuple(rows))


def format_table(table: TraceTable, max_rows: int | None = None) -> list[str]:
    """Return the table as text in columns, below a summary line."""
    visible_rows, rest = table.rows[:max_rows], table.rows[len(table.rows[:max_rows]) :]
    if len(rest) == 1:
        visible_rows, rest = table.rows, ()
    cells: list[tuple[Cell, ...]] = []
    for row in visible_rows:
        name, shape = _split_name(row.name)
        cells.append((join_lines(name, _MAX_NAME_CHARS), shape or None, *_make_figures(table, row.ns, row.count)))
    if rest:
        label = f"the other {len(rest)} functions"
        cells.append((label, "", *_make_figures(table, sum(row.ns for row in rest), sum(row.count for row in rest))))
    profile = table.profile
    notes, outside_ns = profile.notes, profile.outside_ns
    if outside_ns is not None:
        cells.append((OUTSIDE_NAME, "", *_make_figures(table, outside_ns, "")))
        if outside_ns < 0:
            notes = (*notes, "dispatches overlap: their times add up to more than the call")
    count = sum(row.count for row in table.rows)
    dispatches = f"{_format_ms(profile.dispatched_ns)} ms in {count} dispatches of {len(table.rows)} functions"
    clock = "device" if profile.on_device else "host"
    method = f"medians of {profile.invocations} calls under the profiler, by the {clock}'s clock"
    call = "" if profile.elapsed_ns is None else f"{_format_ms(profile.elapsed_ns)} ms a call, "
    return [
        f"{call}{dispatches} ({method})",
        *Table(_COLUMNS, tuple(cells)).lines,
        *(f"note: {join_lines(note)}" for note in notes),
    ]


def _make_figures(table: TraceTable, ns: int, count: Cell) -> tuple[Cell, ...]:
    total = table.profile.elapsed_ns or table.profile.dispatched_ns
    return (count, _format_ms(ns), f"{100 * ns / total:.1f} %" if total and ns >= 0 else None)


def _split_name(name: str) -> tuple[str, str]:
    """Split a dispatch's name into `…_dispatch_12_matmul` and the sizes and types, `256x256x256 f32`."""
    work = parse_dispatch_name(name).work
    match = _SHAPE_PATTERN.search(work)
    if match is None or work == name:
        return name, ""
    remaining_work = work[: match.start()] + work[match.end() :]
    head = name.removesuffix(work)
    return (head + remaining_work) if remaining_work else head.removesuffix("_"), match["shape"].replace("_", " ")


def _format_ms(ns: int) -> str:
    return format_milliseconds(ns / _NS_PER_MS)


@dataclass(frozen=True, slots=True)
class Trace:
    """The result of tracing a program.

    Attributes:
        files: written files by role: `table` (text), `data` (the table as JSON), `perfetto`, `profile`.
        log: the last tool's log, relative to the run's folder; empty if no tool was started.
    """

    name: str
    level: str
    table: TraceTable | None
    reason: str = ""
    files: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()
    seconds: float = 0.0
    log: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the trace for the journal, the file of results and the trace's file, with times in ns per call."""
        return {
            "program": self.name,
            "level": self.level,
            "reason": self.reason,
            **({} if self.table is None else self.table.as_dict()),
            "files": dict(self.files),
            "commands": list(self.commands),
            "seconds": self.seconds,
            "log": self.log,
        }


def make_benchmark_command(tool: str, folder: Path, program: CompiledProgram, device: str) -> Command:
    """Return the command of `iree-benchmark-module` for a program of a model.

    Inputs whose type .npy files do not support (bf16) are written to `folder` as raw bytes. The tool would read the
    header of a .npy file as values of such an input.
    """
    inputs = program.program.inputs
    argv = (
        tool,
        f"--device={device}",
        f"--module={program.module}",
        f"--parameters=model={program.parameters}",
        f"--function={FUNCTION}",
        *(f"--input={_write_input(program.export_folder / array.file, array, folder)}" for array in inputs),
    )
    return Command(argv, str(folder))


def trace(
    step: Step,
    level: str,
    path: Path,
    toolchain: Toolchain,
    processes: Processes,
    flags: FlagSet,
    *,
    call_ms: float | None = None,
) -> Trace:
    """Run a program under the profiler and write its dispatches.

    The caller ensures that the machine and the device are idle. The step's command is that of
    `make_benchmark_command`, and its folder gets the tools' files. `path` is a folder and the program's name: the files
    PATH.trace.txt, PATH.trace.json and PATH.perfetto.json are written. `call_ms` determines how many calls (5 to 100).
    """
    folder, name = path.parent, path.name
    prefix = f"{name}.profile."
    profiling = profile_dispatches(step, toolchain, processes, flags, invocation_ms=call_ms, name=prefix)
    table = None if profiling.profile is None else make_trace_table(profiling.profile)
    result = Trace(name, level, table, profiling.reason, (), profiling.commands, profiling.seconds, profiling.log)
    if table is None:
        return result
    bundle = Path(step.folder) / f"{prefix}ireeprof"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text, data = folder / f"{name}.trace.txt", folder / f"{name}.trace.json"
        files = (("table", str(text)), ("data", str(data)), ("profile", str(bundle)))
        result = replace(result, files=files)
        if level == VERBOSE:
            result = _add_perfetto_file(result, bundle, folder / f"{name}.perfetto.json", step, toolchain, processes)
        write_atomic(text, "\n".join([*_add_headline(result, format_table(table)), ""]))
        write_atomic(data, json.dumps(result.as_dict(), indent=2) + "\n")
    except OSError as error:
        return replace(result, reason=_explain_write_error(error), files=())
    return result


def make_result(traces: Sequence[Trace], statistics: dict[str, Any]) -> Result:
    """Return the result of a step that traced programs."""
    return Result(
        Verdict.PASSED,
        statistics=statistics,
        notes=tuple(line for trace_result in traces for line in format_console_lines(trace_result)),
        tool_seconds=sum(trace_result.seconds for trace_result in traces),
    )


def format_console_lines(trace: Trace) -> list[str]:
    """Return a trace's console lines: the slowest functions, and one line for all others."""
    if trace.table is None:
        return [f"no trace of {trace.name}: {join_lines(trace.reason)}"]
    lines = _add_headline(trace, format_table(trace.table, _MAX_ROWS))
    files = dict(trace.files)
    if "table" in files:
        lines.append(f"all functions: {files['table']}")
    if "perfetto" in files:
        lines.append(f"for {_VIEWER_URL}: {files['perfetto']}")
    return lines


def _add_headline(trace: Trace, lines: Sequence[str]) -> list[str]:
    summary, *other_lines = lines
    reason_lines = [f"note: {join_lines(trace.reason)}"] if trace.reason else []
    return [f"trace of {trace.name}: {summary}", *other_lines, *reason_lines]


def _add_perfetto_file(
    trace: Trace, bundle: Path, file: Path, step: Step, toolchain: Toolchain, processes: Processes
) -> Trace:
    """Return the trace with a file for Perfetto, or with the reason why there is none."""
    assert step.command is not None, "it was profiled"
    tool = Path(toolchain.runtime.benchmark_module).with_name(_PROFILE_TOOL)
    rows = bundle.with_suffix(".ireeperf.jsonl")
    rows.unlink(missing_ok=True)
    argv = (str(tool), "export", "--format=ireeperf-jsonl", f"--output={rows}", str(bundle))
    command = Command(argv, step.command.cwd, step.command.env)
    prefix = f"{trace.name}.profile.export."
    device = next((word.partition("=")[2] for word in step.command.argv if word.startswith("--device=")), "")
    try:
        outcome = processes.run(step, command, name=prefix)
        trace = replace(
            trace,
            commands=(*trace.commands, format_shell_line(command)),
            seconds=trace.seconds + outcome.seconds,
            log=processes.log(step, f"{prefix}stderr.txt"),
        )
        if outcome.cancelled:
            return replace(trace, reason=f"no file for Perfetto: {_PROFILE_TOOL} was interrupted")
        if outcome.exit_code != 0:
            judgement = judge_process(step, outcome, processes.error_lines(step, prefix), tool=_PROFILE_TOOL)
            return replace(trace, reason=f"no file for Perfetto: {judgement.reason}")
        with rows.open(encoding="utf-8") as lines_of_rows:
            document = make_perfetto_trace(lines_of_rows, device)
    except GauntletError as error:
        return replace(trace, reason=shorten(f"no file for Perfetto: {error.message}"))
    write_atomic(file, json.dumps(document, separators=(",", ":")) + "\n")
    return replace(trace, files=(*trace.files, ("perfetto", str(file))))


def _explain_write_error(error: OSError) -> str:
    return shorten(f"{error.filename}: {error.strerror or error}")


def _write_input(file: Path, array: Array, folder: Path) -> str:
    """Return the value of `--input=`."""
    if array.type in _NPY_TYPES:
        return f"@{file}"
    from iree_gauntlet.measuring.numerics.arrays import read_npy  # noqa: PLC0415 - imports NumPy

    raw_file = folder / f"{file.stem}.bin"
    raw_bytes = read_npy(file).array.tobytes()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(raw_file, raw_bytes)
    except OSError as error:
        raise GauntletError(
            f"an input of {array.type} cannot be written as bytes: {_explain_write_error(error)}"
        ) from error
    shape = "".join(f"{size}x" for size in array.shape)
    return f"{shape}{array.type}=@{raw_file}"
