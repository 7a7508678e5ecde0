"""Traces of programs with the real tools: the table, the file for Perfetto, and the reasons for missing traces."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.cases import Origin
from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.profiles.dispatch_profile import DispatchProfile, DispatchTime, ProfileError
from iree_gauntlet.measuring.profiles.perfetto import make_perfetto_trace
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Command, Resources, Step
from iree_gauntlet.toolchains.flags import FlagSet, parse_runtime_help
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.torch_models.build_files import Array, ProgramBuild
from iree_gauntlet.torch_models.torch_chain import CompiledProgram
from iree_gauntlet.torch_models.tracing import (
    VERBOSE,
    Trace,
    TraceTable,
    format_console_lines,
    format_table,
    make_benchmark_command,
    make_trace_table,
    trace,
)
from tests.support.command_line import LIMIT_SECONDS, with_fields
from tests.support.places import DATA
from tests.support.recorded_profiles import read_profile
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.toolchains.toolchain import Toolchain

_DATA = DATA / "profiles"
_SIZE = 64
_MATRIX = f"{_SIZE}x{_SIZE}xf32"
_NARROW = f"{_SIZE}xbf16"
# Two products of one shape, and what bf16 is added to.
_PROGRAM = f"""
util.global private @weight = #flow.parameter.named<"model"::"weight"> : tensor<{_MATRIX}>
func.func @main_graph(%x: tensor<{_MATRIX}>, %narrow: tensor<{_NARROW}>, %flag: tensor<i1>) -> tensor<{_MATRIX}> {{
  %weight = util.global.load @weight : tensor<{_MATRIX}>
  %zero = arith.constant dense<0.0> : tensor<{_MATRIX}>
  %a = linalg.matmul ins(%x, %weight : tensor<{_MATRIX}>, tensor<{_MATRIX}>) outs(%zero : tensor<{_MATRIX}>)
      -> tensor<{_MATRIX}>
  %b = linalg.matmul ins(%a, %weight : tensor<{_MATRIX}>, tensor<{_MATRIX}>) outs(%zero : tensor<{_MATRIX}>)
      -> tensor<{_MATRIX}>
  %empty = tensor.empty() : tensor<{_MATRIX}>
  %result = linalg.generic {{
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> ()>,
                       affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}}
      ins(%b, %narrow, %flag : tensor<{_MATRIX}>, tensor<{_NARROW}>, tensor<i1>) outs(%empty : tensor<{_MATRIX}>) {{
    ^bb0(%product: f32, %low: bf16, %chosen: i1, %out: f32):
      %wide = arith.extf %low : bf16 to f32
      %sum = arith.addf %product, %wide : f32
      %value = arith.select %chosen, %sum, %product : f32
      linalg.yield %value : f32
  }} -> tensor<{_MATRIX}>
  return %result : tensor<{_MATRIX}>
}}
"""
_INPUTS = (
    Array("main.input_0.npy", "f32", (_SIZE, _SIZE)),
    Array("main.input_1.npy", "bf16", (_SIZE,)),
    Array("main.input_2.npy", "i1", ()),
)


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_installed()


@pytest.fixture(scope="module")
def known(toolchain: Toolchain) -> FlagSet:
    argv = [toolchain.runtime.benchmark_module, "--help"]
    return parse_runtime_help(
        subprocess.run(argv, capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS).stdout
    )


@pytest.fixture(scope="module")
def built(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from iree import runtime  # noqa: PLC0415 - only where the runtime is

    folder = tmp_path_factory.mktemp("built")
    (folder / "program.mlir").write_text(_PROGRAM)
    target = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
    argv = [toolchain.compiler.compile, str(folder / "program.mlir"), "-o", str(folder / "main.vmfb"), *target]
    subprocess.run([*argv, "--iree-llvmcpu-target-cpu=host"], check=True, timeout=LIMIT_SECONDS)
    index = runtime.ParameterIndex()
    index.add_buffer("weight", np.eye(_SIZE, dtype=np.float32).tobytes())
    index.create_archive_file(str(folder / "model.irpa"))
    np.save(folder / "main.input_0.npy", np.ones((_SIZE, _SIZE), np.float32))
    np.save(folder / "main.input_1.npy", np.full(_SIZE, 0x4040, np.uint16))  # 3.0
    np.save(folder / "main.input_2.npy", np.array(1, np.bool_))
    return folder


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Supervisor() as supervisor:
        yield Processes(supervisor, tmp_path)


def command(toolchain: Toolchain, built: Path, folder: Path, device: str = "local-task") -> Command:
    program = ProgramBuild("main", "main.onnx", _INPUTS, ())
    compiled = CompiledProgram(built / "main.vmfb", built / "model.irpa", built, program)
    return make_benchmark_command(toolchain.runtime.benchmark_module, folder, compiled, device)


def step(command: Command) -> Step:
    return make_step(
        Stage.BENCHMARK,
        "m@cpu",
        folder=command.cwd,
        origin=Origin("m.py"),
        command=command,
        resources=Resources(device="local-task"),
    )


def without_reason(made: Trace) -> TraceTable:
    assert made.reason == ""
    assert made.table is not None
    return made.table


@pytest.mark.iree
def test_the_command_gives_the_program_its_own_inputs(toolchain: Toolchain, built: Path, tmp_path: Path) -> None:
    made = command(toolchain, built, tmp_path / "trace")
    words = [word.replace(str(built), "B").replace(str(tmp_path), "T") for word in made.argv[1:]]
    assert words == [
        "--device=local-task",
        "--module=B/main.vmfb",
        "--parameters=model=B/model.irpa",
        "--function=main_graph",
        "--input=@B/main.input_0.npy",
        f"--input={_NARROW}=@T/trace/main.input_1.bin",
        "--input=@B/main.input_2.npy",
    ]
    tool = [toolchain.runtime.run_module, *made.argv[1:], f"--output=@{tmp_path / 'out.npy'}"]
    subprocess.run(tool, check=True, timeout=LIMIT_SECONDS)
    assert np.load(tmp_path / "out.npy").tolist() == np.full((_SIZE, _SIZE), 4.0).tolist()


@pytest.mark.iree
def test_an_input_that_cannot_be_written_is_told(toolchain: Toolchain, built: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GauntletError, match="an input of bf16 cannot be written as bytes"):
        command(toolchain, built, tmp_path / "file" / "trace")


@pytest.mark.iree
@pytest.mark.parametrize("device", ["local-task", "local-sync"])
def test_light_gives_a_table(
    toolchain: Toolchain, known: FlagSet, built: Path, processes: Processes, tmp_path: Path, device: str
) -> None:
    made = step(command(toolchain, built, tmp_path / "run", device))
    found = trace(made, "light", tmp_path / "traces" / "main", toolchain, processes, known, call_ms=100.0)
    table = without_reason(found)
    assert table.profile.invocations == 20
    matmul = [row for row in table.rows if row.kind == "matmul"]
    assert sum(row.count for row in matmul) == 2
    assert {row.shape for row in matmul} == {f"{_SIZE}x{_SIZE}x{_SIZE} f32"}
    assert table.profile.elapsed_ns is not None
    assert table.profile.outside_ns == table.profile.elapsed_ns - sum(row.ns for row in table.rows)
    assert all(row.share == pytest.approx(row.ns / table.profile.elapsed_ns) for row in table.rows)
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["main.trace.json", "main.trace.txt"]
    lines = (tmp_path / "traces" / "main.trace.txt").read_text().splitlines()
    assert lines[0].startswith("trace of main: ")
    assert lines[1].split() == ["dispatch", "shape", "a", "call", "ms", "a", "call", "share"]
    assert lines[2 + len(table.rows)].startswith("outside of dispatches")
    assert json.loads((tmp_path / "traces" / "main.trace.json").read_text()) == found.as_dict()
    files = dict(found.files)
    assert sorted(files) == ["data", "profile", "table"]
    assert all(Path(file).is_file() for file in files.values())
    assert len(found.commands) == 2
    assert found.seconds > 0
    assert format_console_lines(found) == [*lines, f"all functions: {files['table']}"]


@pytest.mark.iree
def test_verbose_gives_a_file_for_perfetto_too(
    toolchain: Toolchain, known: FlagSet, built: Path, processes: Processes, tmp_path: Path
) -> None:
    made = step(command(toolchain, built, tmp_path / "run"))
    found = trace(made, VERBOSE, tmp_path / "traces" / "decode", toolchain, processes, known)
    table = without_reason(found)
    assert table.profile.invocations == 5
    file = tmp_path / "traces" / "decode.perfetto.json"
    assert dict(found.files)["perfetto"] == str(file)
    assert format_console_lines(found)[-1] == f"for https://ui.perfetto.dev: {file}"
    document = json.loads(file.read_text())
    check_trace_events(document)
    dispatched: dict[str, list[float]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event.get("cat") == "dispatch":
            dispatched[event["name"]].append(event["dur"])
    assert {name: len(times) for name, times in dispatched.items()} == {
        row.name: row.count * table.profile.invocations for row in table.rows
    }
    threads = thread_names(document)
    assert {"queue 0: submissions", "queue 0: execution on the host", "queue 0: dispatches"} <= threads
    executions = [event for event in document["traceEvents"] if event["name"] == "execute"]
    assert len(executions) == table.profile.invocations
    assert " export --format=ireeperf-jsonl " in found.commands[2]
    assert json.loads((tmp_path / "traces" / "decode.trace.json").read_text()) == found.as_dict()


@pytest.mark.iree
def test_a_release_without_profiles_fails_nothing(
    toolchain: Toolchain, built: Path, processes: Processes, tmp_path: Path
) -> None:
    made = step(command(toolchain, built, tmp_path / "run"))
    older = replace(toolchain, runtime=replace(toolchain.runtime, release="3.11.0"))
    flags = FlagSet(frozenset({"device_profiling_mode", "device_profiling_file"}))
    found = trace(made, VERBOSE, tmp_path / "traces" / "main", older, processes, flags)
    assert format_console_lines(found) == [f"no trace of main: {found.reason}"]
    assert found.reason == (
        "iree-benchmark-module of 3.11.0 writes no profiles (it has no --device_profiling_output); "
        "releases from 3.12.0 on do"
    )
    assert found.as_dict() == {
        "program": "main",
        "level": "verbose",
        "reason": found.reason,
        "files": {},
        "commands": [],
        "seconds": 0.0,
        "log": "",
    }
    assert not (tmp_path / "traces").exists()


@pytest.mark.iree
def test_what_the_tool_says_is_the_reason(
    toolchain: Toolchain, known: FlagSet, built: Path, processes: Processes, tmp_path: Path
) -> None:
    made = command(toolchain, built, tmp_path / "run")
    wrong = replace(made, argv=(*made.argv, "--input=4xf32"))
    found = trace(step(wrong), "light", tmp_path / "traces" / "main", toolchain, processes, known)
    assert found.table is None
    assert found.reason.startswith("iree-benchmark-module failed with exit code 1")
    assert found.log == "run/main.profile.stderr.txt"


@pytest.mark.iree
def test_a_folder_that_cannot_be_made_leaves_the_table(
    toolchain: Toolchain, known: FlagSet, built: Path, processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    made = step(command(toolchain, built, tmp_path / "run"))
    found = trace(made, "light", tmp_path / "file" / "traces" / "main", toolchain, processes, known)
    assert found.table is not None
    assert found.files == ()
    assert found.reason.endswith("Not a directory")
    assert format_console_lines(found)[-1] == f"note: {found.reason}"


@pytest.mark.iree
def test_an_export_that_fails_leaves_the_table(
    toolchain: Toolchain, known: FlagSet, built: Path, processes: Processes, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    real = Path(toolchain.runtime.benchmark_module)
    (tools / real.name).symlink_to(real)
    reader = tools / "iree-profile"
    reader.write_text(
        f'#!/bin/sh\n[ "$1" = export ] && echo "no such command" >&2 && exit 3\n'
        f'exec "{real.parent}/iree-profile" "$@"\n'
    )
    reader.chmod(0o755)
    lacking = with_fields(toolchain, {"benchmark_module": str(tools / real.name)})
    made = step(command(toolchain, built, tmp_path / "run"))
    found = trace(made, VERBOSE, tmp_path / "traces" / "main", lacking, processes, known)
    assert found.table is not None
    assert found.reason == "no file for Perfetto: iree-profile failed with exit code 3: no such command"
    assert "perfetto" not in dict(found.files)
    assert format_console_lines(found)[-2:] == [f"note: {found.reason}", f"all functions: {dict(found.files)['table']}"]


def test_the_console_has_ten_rows_and_one_for_the_rest() -> None:
    table = make_trace_table(read_profile("minilm-3.13.0"))
    assert len(table.rows) > 11
    lines = format_table(table, 10)
    assert len(lines) == 1 + 1 + 10 + 2
    rest = len(table.rows) - 10
    count = sum(row.count for row in table.rows[10:])
    assert lines[12].split()[:5] == ["the", "other", str(rest), "functions", str(count)]
    assert [row.ns for row in table.rows] == sorted((row.ns for row in table.rows), reverse=True)
    assert len({len(line.rstrip()) for line in lines[1:]}) == 1, "columns end at one place"
    # One row more takes no more room than a line that stands for it.
    assert len(format_table(table, len(table.rows) - 1)) == len(format_table(table))


def one(name: str, ns: int, elapsed_ns: int | None, *, on_device: bool = False) -> TraceTable:
    return make_trace_table(DispatchProfile((DispatchTime(name, 5, 5 * ns, ns),), 5, elapsed_ns, on_device))


@pytest.mark.parametrize(
    ("name", "first", "shape"),
    [
        ("main$async_dispatch_3_matmul_256x64x8_f32", "main$async_dispatch_3_matmul", "256x64x8 f32"),
        ("main_dispatch_0_softmax_12x64x64xf32_dispatch_tensor_store", "main_dispatch_0_softmax_dispatch_tensor_store",
         "12x64x64xf32"),
        ("m_dispatch_1_elementwise_broadcast_4xD_i64xf32", "m_dispatch_1_elementwise_broadcast", "4xD i64xf32"),
        ("m_dispatch_7_elementwise_64_f8E4M3FN", "m_dispatch_7_elementwise", "64 f8E4M3FN"),
        ("m_dispatch_18_slow_memcpy", "m_dispatch_18_slow_memcpy", "–"),
        ("m_dispatch_18", "m_dispatch_18", "–"),
        ("m_dispatch_2_4x4xf32", "m_dispatch_2", "4x4xf32"),
        ("kernel_4x4", "kernel_4x4", "–"),
    ],
)  # fmt: skip
def test_names_are_split_from_shapes(name: str, first: str, shape: str) -> None:
    table = one(name, 1000, None)
    assert table.rows[0].name == name
    assert table.rows[0].shape == shape.strip("–")
    words = format_table(table)[2].split()
    assert words[0] == first
    assert " ".join(words[1:-4]) == shape


def test_shares_are_of_the_call_where_it_is_known() -> None:
    assert one("d", 250_000, 1_000_000).rows[0].share == 0.25
    assert one("d", 250_000, None).rows[0].share == 1.0
    assert format_table(one("d", 0, None))[2].split()[-1] == "–"
    on_device_lines = format_table(one("d", 1_500_000, 1_000_000, on_device=True))
    assert on_device_lines[0].endswith("(medians of 5 calls under the profiler, by the device's clock)")
    assert on_device_lines[-2].split()[-2:] == ["-0.5000", "–"]
    assert on_device_lines[-1].startswith("note: dispatches overlap")


def thread_names(document: dict[str, Any]) -> set[str]:
    return {event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"}


def check_trace_events(document: dict[str, Any]) -> None:
    """The rules of the trace event format, as far as they are about what is written here."""
    json.dumps(document, allow_nan=False)
    processes: set[int] = set()
    threads: set[tuple[int, int]] = set()
    lanes = defaultdict(list)
    for event in document["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0
        thread = (event["pid"], event["tid"])
        match event["ph"]:
            case "M" if event["name"] == "process_name":
                assert event["args"]["name"]
                assert event["pid"] not in processes
                processes.add(event["pid"])
            case "M" if event["name"] == "thread_name":
                assert event["args"]["name"]
                assert thread not in threads
                threads.add(thread)
            case "M":
                assert event["name"] in ("process_sort_index", "thread_sort_index")
                assert isinstance(event["args"]["sort_index"], int)
            case "X":
                assert event["dur"] >= 0
                lanes[thread].append((event["ts"], event["ts"] + event["dur"]))
            case "i":
                assert event["s"] in ("t", "p", "g")
                lanes[thread].append((event["ts"], event["ts"]))
            case other:
                pytest.fail(f"ph {other!r}")
    assert set(lanes) == threads
    assert {pid for pid, _ in lanes} == processes
    for spans in lanes.values():
        ends = sorted(spans)
        # A µs has three decimals; sums of them are off in the last bits.
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(ends))


def exported() -> list[str]:
    file = _DATA / "matmuls-3.13.0-vulkan.ireeperf.jsonl.gz"
    return gzip.decompress(file.read_bytes()).decode().splitlines()


def test_a_gpus_events_stand_on_the_hosts_clock() -> None:
    document = make_perfetto_trace(exported(), "vulkan")
    check_trace_events(document)
    assert thread_names(document) == {"queue 0: submissions", "queue 0: execution on the device", "queue 0: dispatches"}
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    dispatches = [event for event in events if event["cat"] == "dispatch"]
    executions = [event for event in events if event["name"] == "execute"]
    submitted = [event for event in document["traceEvents"] if event["name"] == "submit execute"]
    assert len(dispatches) == 6
    for index, (execution, submission) in enumerate(zip(executions, submitted, strict=True)):
        first, second = dispatches[2 * index : 2 * index + 2]
        assert submission["ts"] < execution["ts"] <= first["ts"]
        assert first["ts"] + first["dur"] <= second["ts"]
        assert second["ts"] + second["dur"] <= execution["ts"] + execution["dur"] + 1
    assert dispatches[0]["args"]["workgroup count"] == "9x1x1"
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
    assert names == ["vulkan, device 0"]


def test_a_device_without_a_clock_has_no_place_in_time() -> None:
    rows = [line for line in exported() if '"clock_correlation"' not in line.partition("source_record_index")[0]]
    document = make_perfetto_trace(rows, "vulkan")
    check_trace_events(document)
    assert document["otherData"] == {"left_out": 9}
    assert thread_names(document) == {"queue 0: submissions"}


_SCHEMA = {"record_type": "schema", "format": "ireeperf-jsonl"}


def host_row(start: int, end: int, queue: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "record_type": "host_execution_event",
        "physical_device_ordinal": 0,
        "queue_ordinal": queue,
        "op": "dispatch",
        "key": "d",
        "valid": True,
        "start_host_time_ns": start,
        "end_host_time_ns": end,
        **more,
    }


def lines_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [json.dumps(row) for row in (_SCHEMA, *rows)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 1)), min_size=1, max_size=40))
def test_what_runs_side_by_side_goes_to_threads_of_its_own(spans: list[tuple[int, int, int]]) -> None:
    document = make_perfetto_trace(lines_of([host_row(at, at + ns, queue) for at, ns, queue in spans]), "local-task")
    check_trace_events(document)
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    begin = min(at for at, _, _ in spans)
    assert sorted((round(event["ts"] * 1000), round(event["dur"] * 1000)) for event in events) == sorted(
        (at - begin, ns) for at, ns, _ in spans
    )
    assert events == sorted(events, key=lambda event: event["ts"])


def test_events_without_a_valid_time_are_counted() -> None:
    no_queue = (1 << 32) - 1
    rows = [
        host_row(10, 20, no_queue),
        host_row(10, 20, valid=False),
        host_row(30, 20),
        {"record_type": "of a later release"},
    ]
    document = make_perfetto_trace(lines_of(rows), "local-sync")
    check_trace_events(document)
    assert document["otherData"] == {"left_out": 2}
    assert thread_names(document) == {"no queue: dispatches"}
    with pytest.raises(ProfileError, match="no events with a time"):
        make_perfetto_trace(lines_of(rows[1:]), "local-sync")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "is not marked as ireeperf-jsonl"),
        (['{"record_type": "schema"}'], "is not marked as ireeperf-jsonl"),
        (["[1]"], "line 1 of the exported profile has no record_type"),
        ([*lines_of([]), '{"record_ty'], "line 2 of the exported profile is not JSON"),
        (lines_of([host_row(1, 2, key=None)]), "line 2 .*host_execution_event.: key is None, expected a name"),
        (lines_of([host_row(1, 2, start_host_time_ns="1")]), "start_host_time_ns is '1', expected a whole number"),
        (
            lines_of([{"record_type": "queue_event", "physical_device_ordinal": 0, "queue_ordinal": 0, "op": "fill"}]),
            "host_time_ns is missing, expected a whole number",
        ),
    ],
)
def test_rows_of_another_form_are_named(lines: list[str], says: str) -> None:
    with pytest.raises(ProfileError, match=says):
        make_perfetto_trace(lines, "local-task")
