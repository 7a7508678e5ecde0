"""Symptoms, which distinguish failures from each other, and a bundle's script, which searches for a symptom."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.engine.processes.supervisor import Outcome
from iree_gauntlet.experiments.explaining.bundle import BundleContents, BundleFiles, write_script
from iree_gauntlet.experiments.explaining.tools import Symptom, ToolResult, find_pattern, find_symptom
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.hanging import HANG
from tests.support.places import DATA

if TYPE_CHECKING:
    from pathlib import Path

_STACK = """\
Stack dump:
 #0 0x00007fd10775a0ab llvm::sys::PrintStackTrace(llvm::raw_ostream&, int) Signals.cpp:0:0
 #2 0x00007fd10775ac10 SignalHandler(int, siginfo_t*, void*) Signals.cpp:0:0
 #3 0x00007fd110e5a050 (/lib/x86_64-linux-gnu/libc.so.6+0x3c050)
 #4 0x00007fd108ab4246 {frame}
 #5 0x00007fd108ab1ee2 mlir::Other::matchAndRewrite(mlir::Op) const Other.cpp:0:0
"""


def ran(errors: str = "", *, code: int | None = 1, signal: str = "", timed_out: bool = False) -> ToolResult:
    return ToolResult(Outcome(code, signal=signal, timed_out=timed_out), (), errors)


def script_of(symptom: Symptom, *, device: str = "") -> str:
    """The script of a bundle of a compile; with a device, of a run."""
    return write_script(BundleContents("", (), b"", (), device, (), BundleFiles(), find_installed(), symptom))


def recorded() -> list[str]:
    """What IREE 3.13 says of operators that it does not compile."""
    text = (DATA / "operator_diagnostics.txt").read_text(encoding="utf-8")
    return [line.split(": ", 1)[1] for line in text.splitlines()]


def test_each_recorded_diagnostic_is_found_again_by_grep() -> None:
    for line in recorded():
        pattern = find_pattern(line)
        assert re.search(pattern, line)
        found = subprocess.run(["grep", "-qE", pattern], input=line, text=True, check=False)
        assert found.returncode == 0, (pattern, line)


def test_a_diagnostic_is_known_by_its_operator_and_not_by_its_numbers() -> None:
    line = (
        "failed to legalize operation 'torch.operator' that was explicitly marked illegal: %{} = \"torch.operator\""
        '(%arg0) <{{name = "onnx.{}"}}> {{torch.onnx.axis = {} : si64}} : (!torch.vtensor<[{}],f32>) -> !torch.int'
    )
    pattern = find_pattern(line.format(0, "Unique", 1, "2,3"))
    assert re.search(pattern, line.format(7, "Unique", 0, "5"))
    assert not re.search(pattern, line.format(0, "If", 1, "2,3"))


@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=80))
def test_any_line_is_found_by_its_own_pattern(line: str) -> None:
    shown = " ".join(line.split())
    assert re.search(find_pattern(shown), shown)


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        ("(anonymous namespace)::View::getMultiplier(llvm::SmallVector<long, 6u>) Data.cpp:0:0", "View::getMultiplier"),
        (
            "llvm::LogicalResult mlir::dispatchTo1To1<mlir::Op<View>, View>(mlir::Op) Data.cpp:0:0",
            "mlir::dispatchTo1To1",
        ),
        ("(/usr/lib/libIREECompiler.so+0x5b94348)", "libIREECompiler.so+0x5b94348"),
    ],
)
def test_a_crash_is_known_by_the_function_that_crashed(frame: str, name: str) -> None:
    found = find_symptom(ran(_STACK.format(frame=frame), code=None, signal="SIGSEGV"), 60.0)
    assert found is not None
    assert (found.ending, found.said) == ("crash", f"SIGSEGV in {name}")
    other = _STACK.format(frame="mlir::Another::pattern(int) Data.cpp:0:0")
    assert found.is_in(ran(_STACK.format(frame=frame), code=None, signal="SIGABRT"))
    assert not found.is_in(ran(other, code=None, signal="SIGSEGV"))
    assert not found.is_in(ran(_STACK.format(frame=frame)))


def test_what_a_program_says_before_it_ends_itself_counts_for_more_than_where() -> None:
    text = "LLVM ERROR: cannot select: 0x55 of v4f32\n" + _STACK.format(frame="a::b() c.cpp:0:0")
    found = find_symptom(ran(text, code=None, signal="SIGABRT"), 60.0)
    assert found is not None
    assert found.said == "SIGABRT: LLVM ERROR: cannot select: 0x55 of v4f32"
    assert found.is_in(ran(text.replace("0x55", "0x77"), code=None, signal="SIGABRT"))


def test_what_was_ended_from_outside_shows_nothing() -> None:
    assert find_symptom(ran(code=None, signal="SIGKILL"), 60.0) is None
    assert find_symptom(ran(code=0), 60.0) is None


@pytest.mark.parametrize(
    ("symptom", "tool", "code"),
    [
        (Symptom("failure", pattern="cannot do .* here"), "echo error: cannot do this here; exit 1", 1),
        (Symptom("failure", pattern="cannot do .* here"), "echo error: cannot do this; echo here; exit 1", 1),
        (Symptom("failure", pattern="cannot do .* here"), "echo error: something else; exit 1", 125),
        (Symptom("failure", pattern="cannot do .* here"), "echo cannot do this here; kill -SEGV $$", 125),
        (Symptom("failure", pattern="cannot do .* here"), "exit 0", 0),
        (Symptom("crash", pattern="View::get"), "echo View::get; kill -SEGV $$", 1),
        # As the wheels' tools in Python end where the tool itself crashed.
        (Symptom("crash", pattern="View::get"), "echo View::get; exit 245", 1),
        (Symptom("crash", pattern="View::get"), "echo Other::get; kill -SEGV $$", 125),
        (Symptom("crash"), "kill -SEGV $$", 1),
        (Symptom("crash"), "exit 1", 125),
        (Symptom("does not end", seconds=1), HANG, 1),
        (Symptom("does not end", seconds=600), "exit 0", 0),
        (Symptom("does not end", seconds=600), "exit 1", 125),
    ],
)
def test_a_script_judges_by_how_the_compiler_ends_and_what_it_says(
    tmp_path: Path, symptom: Symptom, tool: str, code: int
) -> None:
    stand_in = tmp_path / "tool.sh"
    stand_in.write_text(f"#!/bin/sh\n{tool}\n")
    stand_in.chmod(0o755)
    script = tmp_path / "repro.sh"
    script.write_text(script_of(symptom))
    names = {"IREE_COMPILE": str(stand_in), "IREE_RUN_MODULE": str(stand_in), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["sh", str(script)], env=names, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout


def test_a_script_of_a_run_cannot_judge_what_does_not_compile(tmp_path: Path) -> None:
    script = tmp_path / "repro.sh"
    script.write_text(script_of(Symptom("crash"), device="local-task"))
    for compiles, runs, code in (("false", "true", 125), ("true", "true", 0), ("true", "false", 125)):
        names = {"IREE_COMPILE": compiles, "IREE_RUN_MODULE": runs, "PATH": "/usr/bin:/bin"}
        assert subprocess.run(["sh", str(script)], env=names, capture_output=True, check=False).returncode == code


def test_tools_that_are_named_in_part_or_are_not_there_are_not_replaced(tmp_path: Path) -> None:
    script = tmp_path / "repro.sh"
    script.write_text(script_of(Symptom("crash"), device="local-task"))
    for names in ({"IREE_COMPILE": "true"}, {"IREE_COMPILE": "true", "IREE_RUN_MODULE": str(tmp_path / "none")}):
        env = {**names, "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["sh", str(script)], env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, "cannot be judged: there is no tool" in done.stdout) == (125, True)
    # Where it is the compile that fails, nothing runs.
    script.write_text(script_of(Symptom("crash")))
    env = {"IREE_COMPILE": "true", "PATH": "/usr/bin:/bin"}
    assert subprocess.run(["sh", str(script)], env=env, capture_output=True, check=False).returncode == 0
