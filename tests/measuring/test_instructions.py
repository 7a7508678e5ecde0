"""The tool that counts instructions, its files, and comparisons of two counts."""

from __future__ import annotations

import json
import os
import platform
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.measuring.instructions import count_call, counters
from iree_gauntlet.measuring.instructions.count_call import (
    CountError,
    ProcessCounts,
    link_files,
    make_environment,
    read_cachegrind,
)
from iree_gauntlet.measuring.instructions.counters import (
    CounterKind,
    Counts,
    find_counter,
    open_hardware_counter,
    read_counts,
)
from iree_gauntlet.measuring.instructions.work import Work, combine_work, compare_work, judge_parts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Of software, which every machine counts: page faults.
_PAGE_FAULTS = (1, 2)
_BENCHMARK = """{"benchmarks": [
    {"name": "BM_f", "run_type": "iteration", "iterations": CALLS, "real_time": 1, "cpu_time": 1, "time_unit": "ms"}
]}"""
_CACHEGRIND = """desc: I1 cache: -
cmd: links/000 --function=f
events: Ir
fl=???
fn=main
0 1000
fl=../import/program.mlir
fn=f$async_dispatch_0_matmul_4x4x4_f32
3 40
7 60
fl=???
fn=f$async_dispatch_1_elementwise_4_f32
0 12
summary: 1112
"""


class _Recorded:
    """Counts as they were recorded, by the number of calls."""

    def __init__(self, **counts: dict[str, int]) -> None:
        self.counts = {int(calls.removeprefix("of_")): counted for calls, counted in counts.items()}
        self.asked: list[int] = []

    def count(self, argv: Sequence[str], stdout: int) -> ProcessCounts:
        calls = int(argv[-1].removeprefix("--benchmark_min_time=").removesuffix("x"))
        self.asked.append(calls)
        os.write(stdout, _BENCHMARK.replace("CALLS", str(calls)).encode())
        functions = self.counts[calls]
        return ProcessCounts(sum(functions.values()), functions, {})


def _tool(folder: Path) -> list[str]:
    tool = folder / "tool"
    tool.write_text("#!/bin/sh\n")
    return [str(tool), "--function=f"]


def test_starting_cancels_out(tmp_path: Path) -> None:
    counter = _Recorded(
        of_1={"main": 5_000, "f_dispatch_0_matmul": 300_000_000},
        of_2={"main": 5_000, "f_dispatch_0_matmul": 600_000_000},
    )
    counted = count_call.count_call(counter, _tool(tmp_path), tmp_path)
    assert counted == Counts(300_000_000, 1, (("f_dispatch_0_matmul", 300_000_000, ""),))
    assert counter.asked == [1, 2]


def test_a_small_model_is_called_until_starting_has_no_say(tmp_path: Path) -> None:
    """What has less than an instruction a call, and the printing of the report, is how this process happened to be."""
    counter = _Recorded(
        of_1={"main": 5_000, "lock": 700, "hack_digit": 2_000, "f_dispatch_0_add": 10_000},
        of_2={"main": 5_000, "lock": 650, "hack_digit": 2_000, "f_dispatch_0_add": 20_000},
        of_5027={"main": 5_000, "lock": 3_000, "hack_digit": 90_000, "f_dispatch_0_add": 50_270_000},
    )
    counted = count_call.count_call(counter, _tool(tmp_path), tmp_path)
    assert counter.asked == [1, 2, 5_027]
    assert counted == Counts(10_000, 5_026, (("f_dispatch_0_add", 10_000, ""),))


def test_the_loop_that_interprets_the_module_is_counted_by_itself(tmp_path: Path) -> None:
    names = {"iree_vm_bytecode_dispatch": 900_000, "iree_vm_bytecode_dispatch.part.0": 90_000, "iree_vm_invoke": 10_000}
    of_two = {name: 2 * count for name, count in names.items()}
    counter = _Recorded(of_1=names, of_2=of_two, of_51={name: 51 * count for name, count in names.items()})
    counted = count_call.count_call(counter, _tool(tmp_path), tmp_path)
    assert counted == Counts(1_000_000, 50, (), 990_000)


def test_one_of_middle_size_is_called_three_times_more(tmp_path: Path) -> None:
    counter = _Recorded(
        of_1={"main": 5_000, "f_dispatch_0_add": 60_000_000},
        of_2={"main": 5_700, "f_dispatch_0_add": 120_000_000},
        of_4={"main": 5_000, "f_dispatch_0_add": 240_000_000},
    )
    assert count_call.count_call(counter, _tool(tmp_path), tmp_path).instructions == 60_000_000
    assert counter.asked == [1, 2, 4]


def test_one_that_does_less_when_called_twice_is_not_counted(tmp_path: Path) -> None:
    counter = _Recorded(of_1={"main": 5_000}, of_2={"main": 4_000})
    with pytest.raises(CountError, match=r"two calls took 4,000 instructions, one 5,000"):
        count_call.count_call(counter, _tool(tmp_path), tmp_path)


def test_nothing_is_left_of_temporary_files(tmp_path: Path) -> None:
    class Leaving(_Recorded):
        def count(self, argv: Sequence[str], stdout: int) -> ProcessCounts:
            script = 'touch "$TMPDIR/library" && test -z "${TMPDIR%%[!/]*}"'
            subprocess.run(["sh", "-c", script], cwd=tmp_path, env=make_environment(argv), check=True)
            return super().count(argv, stdout)

    counter = Leaving(of_1={"f": 10**8}, of_2={"f": 2 * 10**8})
    assert count_call.count_call(counter, _tool(tmp_path), tmp_path).instructions == 10**8
    assert {path.name for path in tmp_path.iterdir()} == {"tool", "links", "stdout.1.txt", "stdout.2.txt"}


def test_what_cachegrind_writes() -> None:
    counted = read_cachegrind(_CACHEGRIND.splitlines(keepends=True))
    assert counted.total == 1112
    assert counted.functions["f$async_dispatch_0_matmul_4x4x4_f32"] == 100
    # Where most of it is; what cachegrind does not know is no place.
    assert counted.places == {"f$async_dispatch_0_matmul_4x4x4_f32": "../import/program.mlir:7"}


def test_a_file_that_was_cut_short_is_no_count() -> None:
    lines = _CACHEGRIND.splitlines(keepends=True)[:-1]
    with pytest.raises(CountError, match="cut short"):
        read_cachegrind(lines)


def test_files_have_names_of_one_length_and_the_stack_one_size(tmp_path: Path) -> None:
    found = []
    for folder in (tmp_path / "a", tmp_path / "a-longer-name" / "deeper"):
        folder.mkdir(parents=True)
        for name in ("tool", "module.vmfb", "weights.irpa", "x.npy"):
            (folder / name).write_text(name)
        words = [f"--module={folder}/module.vmfb", f"--parameters=scope={folder}/weights.irpa"]
        words += [f"--input=4xf32=@{folder}/x.npy", "--input=4xf32=1", "--function=f"]
        found.append(link_files([f"{folder}/tool", *words], folder))
        assert (folder / "links" / "001.vmfb").read_text() == "module.vmfb"
        assert (folder / "links" / "003.npy").read_text() == "x.npy"
    assert found[0] == found[1]
    expected = ["links/000", "--module=links/001.vmfb", "--parameters=scope=links/002.irpa"]
    assert found[0] == [*expected, "--input=4xf32=@links/003.npy", "--input=4xf32=1", "--function=f"]
    environment = make_environment(found[0])
    size = sum(len(text) + 1 for text in (*found[0], *(f"{name}={value}" for name, value in environment.items())))
    assert size % 8192 == 0
    assert "HOME" not in environment


def test_each_call_finds_memory_that_was_used_before() -> None:
    """A block from the system need not be cleared, and one that was given back is from the system again."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("needs glibc")
    script = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
taken = [libc.malloc(size) for size in (1 << 20, 48 << 20, 1 << 20)]
ctypes.memset(taken[1], 7, 48 << 20)
for block in taken:
    libc.free(block)
again = libc.malloc(48 << 20)
assert ctypes.string_at(again + (24 << 20), 1) == b"\\7", "memory of the system"
"""
    argv = [sys.executable, "-c", script]
    # The last is what malloc does otherwise.
    for environment, code in ((make_environment(argv), 0), ({}, 1)):
        ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == code, ended.stderr


def test_io_uring_is_hidden_from_what_is_started() -> None:
    if platform.machine() not in ("x86_64", "aarch64") or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux on x86-64 or aarch64")
    script = (
        "import ctypes, errno\n"
        "from iree_gauntlet.measuring.instructions.count_call import refuse_io_uring\n"
        "refuse_io_uring()\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.syscall(425, 1, 0) == -1\n"
        "assert ctypes.get_errno() == errno.ENOSYS, ctypes.get_errno()\n"
        "open('/dev/null').close()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_counter_of_the_cpu_counts_a_process_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual machines hide instructions; page faults are counted in the same way."""
    try:
        os.close(open_hardware_counter(0, _PAGE_FAULTS))
    except OSError as error:
        pytest.skip(f"needs perf_event_open(2): {error.strerror}")
    monkeypatch.setattr(count_call, "open_hardware_counter", lambda pid: open_hardware_counter(pid, _PAGE_FAULTS))
    tool = tmp_path / "tool"
    report = _BENCHMARK.replace("CALLS", "1").replace("\n", "")
    # A child of it is counted too.
    tool.write_text(
        f"#!{sys.executable}\nimport subprocess\nfor _ in range(3): subprocess.run(['true'])\nprint('{report}')\n"
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    counter = count_call._Hardware(tmp_path)
    with (tmp_path / "out").open("wb") as out:
        whole = counter.count([str(tool)], out.fileno())
        alone = counter.count(["/bin/true"], out.fileno())
    assert 0 < alone.total < whole.total
    assert json.loads((tmp_path / "out").read_text())["benchmarks"][0]["iterations"] == 1
    with (tmp_path / "out").open("wb") as out, pytest.raises(CountError, match="false ended with exit code 1"):
        counter.count(["/bin/false"], out.fileno())


def test_without_any_counter_the_message_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(counters, "explain_missing_hardware_counter", lambda: "not supported by this machine")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError) as error:
        find_counter()
    assert error.value.message == (
        "nothing on this machine counts instructions: the CPU's own counter is not supported by this machine; "
        "valgrind is not installed"
    )
    assert "apt install valgrind" in error.value.hint
    with pytest.raises(ToolchainError, match="the CPU's instruction counter cannot be read: not supported") as error:
        find_counter("hardware")
    assert "apt install valgrind" in error.value.hint
    (tmp_path / "valgrind").write_text("#!/bin/sh\n")
    (tmp_path / "valgrind").chmod(0o755)
    with pytest.raises(ToolchainError) as error:
        find_counter("hardware")
    assert error.value.hint == "valgrind is installed: leave --counter out."


def test_hardware_goes_first_and_can_be_declined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(counters, "explain_missing_hardware_counter", lambda: "")
    assert find_counter().kind is CounterKind.HARDWARE
    assert find_counter().cpu == ""
    valgrind = tmp_path / "valgrind"
    valgrind.write_text("#!/bin/sh\necho valgrind-3.24.0\n")
    valgrind.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = find_counter("valgrind")
    assert (found.kind, found.identity, found.cpu) == (CounterKind.VALGRIND, "valgrind 3.24.0", "x86-64-v3,-fma")
    assert find_counter("valgrind", "znver4").cpu == "znver4"
    valgrind.write_text("#!/bin/sh\necho it is broken >&2; exit 1\n")
    with pytest.raises(ToolchainError, match="does not work: it is broken"):
        find_counter("valgrind")


@pytest.mark.parametrize(
    ("a", "b", "least", "work"),
    [
        (1_121_396_412, 1_121_396_792, 0.0001, Work.SAME),
        (1_144_481_835, 1_121_396_412, 0.0001, Work.LESS),
        (1_000_000, 1_000_101, 0.0001, Work.MORE),
        (1_000_000, 1_000_100, 0.0001, Work.SAME),
        (1_000_000, 1_000_001, 0.0, Work.MORE),
    ],
)
def test_two_counts(a: int, b: int, least: float, work: Work) -> None:
    assert compare_work(a, b, least) is work


def _counts(outside: int, own: int | None = None, **dispatches: int) -> Counts:
    """Of a call with `mm` for `f_dispatch_0_mm`, in their order."""
    named = tuple((f"f_dispatch_{number}_{name}", count, "") for number, (name, count) in enumerate(dispatches.items()))
    return Counts(outside + (own or 0) + sum(dispatches.values()), 9, named, own)


def _judge(a: Counts, b: Counts, *, same_runtime: bool = True) -> tuple[Work, dict[str, tuple[str, int]]]:
    parts = judge_parts(a, b, 0.00001, same_runtime=same_runtime)
    assert sum(part.b - part.a for part in parts) == b.instructions - a.instructions
    return combine_work(parts), {part.part: (part.verdict, part.b - part.a) for part in parts}


@pytest.mark.parametrize(
    ("a", "b", "work", "changes"),
    [
        # What lies outside hides no dispatch that does more, and one that does less hides it neither.
        (_counts(100_000, mm=555_000), _counts(99_236, mm=555_760), Work.MORE, {"dispatches": 760, "outside": -764}),
        (_counts(9, mm=555_000, add=9_000), _counts(9, mm=555_760, add=1_000), Work.MORE, {"dispatches": -7_240}),
        (_counts(9, mm=555_000), _counts(9, mm=554_000), Work.LESS, {"dispatches": -1_000}),
        # 0.002 % of a dispatch of 100,000 instructions, 0.0005 % of one of 400,000.
        (_counts(9, mm=100_000), _counts(9, mm=100_002), Work.MORE, {"dispatches": 2}),
        (_counts(9, mm=400_000), _counts(9, mm=400_002), Work.SAME, {"dispatches": 2}),
        # How memory was laid out.
        (_counts(40_000, 999, mm=10_000), _counts(41_128, 999, mm=10_000), Work.SAME, {"outside": 1_128}),
        # Limits of its own: both of them.
        (_counts(40_000, mm=10_000), _counts(42_001, mm=10_000), Work.MORE, {"outside": 2_001}),
        (_counts(900_000, mm=10_000), _counts(908_000, mm=10_000), Work.SAME, {"outside": 8_000}),
        (_counts(900_000, mm=10_000), _counts(880_000, mm=10_000), Work.LESS, {"outside": -20_000}),
        # The module's own code is exact with one runtime.
        (_counts(40_000, 999, mm=10_000), _counts(40_000, 1_003, mm=10_000), Work.MORE, {"own code": 4}),
        (_counts(40_000, 999), _counts(40_000, 1_003), Work.MORE, {"own code": 4}),
    ],
)
def test_each_part_is_judged_by_itself(a: Counts, b: Counts, work: Work, changes: dict[str, int]) -> None:
    found, parts = _judge(a, b)
    assert found is work
    assert {name: change for name, (_, change) in parts.items() if change} == changes


def test_the_interpreter_of_another_runtime_is_part_of_what_lies_outside() -> None:
    a, b = _counts(40_000, 999, mm=10_000), _counts(40_283, 1_003, mm=10_000)
    assert _judge(a, b, same_runtime=False) == (
        Work.SAME,
        {"dispatches": ("same work", 0), "outside": ("same work", 287)},
    )


def test_a_call_whose_dispatches_are_not_known_is_judged_as_a_whole() -> None:
    for more, work in ((2_000, Work.SAME), (2_001, Work.MORE)):
        found = _judge(Counts(500_000, 9, ()), Counts(500_000 + more, 9, ()))
        assert found == (work, {"call": (work, more)})
    assert _judge(Counts(10**9, 9, ()), Counts(10**9 + 90_000, 9, ()))[0] is Work.SAME


def test_dispatches_are_named_whatever_they_are_fused_to() -> None:
    """What one side has fused is judged together; two of one name that have changed places are the same."""
    a = Counts(1_000, 9, (("f_dispatch_0_mm_4x4_f32", 100, ""), ("f_dispatch_1_mm_4x4_f32", 900, "")))
    b = Counts(1_000, 9, (("f_dispatch_0_mm_4x4_f32", 900, ""), ("f_dispatch_1_mm_4x4_f32", 100, "")))
    assert _judge(a, b)[0] is Work.SAME
    longer = Counts(1_001, 9, (("f_dispatch_0_mm_4x4_f32", 901, ""), ("f_dispatch_1_mm_4x4_f32", 100, "")))
    (part, _) = judge_parts(a, longer, 0.00001, same_runtime=True)
    assert (part.verdict, part.more, part.less) == (Work.MORE, ("f_dispatch_0_mm_4x4_f32",), ())
    apart = Counts(1_000, 9, (("f_dispatch_0_matmul_4x4_f32", 600, ""), ("f_dispatch_1_elementwise_4_f32", 400, "")))
    fused = Counts(900, 9, (("f_dispatch_0_matmul_like_4x4_f32", 900, ""),))
    (part, _) = judge_parts(apart, fused, 0.00001, same_runtime=True)
    assert (part.verdict, part.more) == (Work.LESS, ())
    assert any("elementwise" in name for name in part.less)
    (part, _) = judge_parts(fused, apart, 0.00001, same_runtime=True)
    assert part.verdict == Work.MORE


@pytest.mark.parametrize("text", ["", "{}", '{"instructions": 1, "calls": 1, "dispatches": [["x"]]}', "[1]"])
def test_a_damaged_file_of_counts_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "counts.json"
    path.write_text(text)
    with pytest.raises(GauntletError, match=r"the counts .*counts\.json cannot be read"):
        read_counts(path)
