"""Flagfiles: read as IREE's tools read them; messages about mistakes name the line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.dialects.locations import is_outside
from iree_gauntlet.dialects.op_tests import find_argument_file, read_flagfile


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--input=1xf32=1", []),
        ("  --input=4xf32=1 2 3 4  # five\n// six\n# seven\n\n--function=f", []),
        ("input=1", ["1: expected a flag such as --input=3x4xf32=@input_0.bin, found 'input=1'"]),
        ("\n-input=1", ["2: expected a flag"]),
        ("--input 3xf32", ["1: expected a flag"]),
        ("-- input = 3xf32", []),
        ('--input="2xf32=1 2"', []),
        ('--input="@a.npy"', ["1: input: the tools treat quotes around a file as a part of its name"]),
        ('--input="2xf32=@a.bin"', ["1: input: the tools treat quotes around a file as a part of its name"]),
        ("--input=", ["1: input: has no value"]),
        ("--input", ["1: input: has no value"]),
        ("--expected_output=3xq32=@a.bin", ["1: expected_output: expected a tensor type such as 3x4xf32 before '=@'"]),
        ("--flagfile=more.txt", ["1: flagfile: a flagfile inside a flagfile is not read"]),
    ],
)
def test_lines_of_a_flagfile(text: str, expected: list[str]) -> None:
    _, problems = read_flagfile(text, "f")
    assert len(problems) == len(expected)
    for problem, beginning in zip(problems, expected, strict=True):
        assert str(problem).startswith(f"f:{beginning}")


_NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda name: name != "flagfile")
_FLAG_VALUES = st.text("ab1 =x#/", min_size=1, max_size=8).map(str.strip).filter(bool)
_FLAGS = st.tuples(_NAMES, st.none() | _FLAG_VALUES)


@given(st.lists(_FLAGS, max_size=6), st.data())
def test_flags_come_back_in_their_order(flags: list[tuple[str, str | None]], data: st.DataObject) -> None:
    lines = []
    for name, value in flags:
        lines.append(data.draw(st.sampled_from(["", "   ", "# --no=flag", "// --no=flag"])))
        lines.append(f"  --{name}" + (f" = {value} " if value else ""))
    read, problems = read_flagfile("\n".join(lines), "f")
    assert [(flag.name, flag.value) for flag in read] == flags
    assert {problem.field for problem in problems} <= {"input", "expected_output"}
    assert [flag.text for flag in read] == [f"--{name}" + (f"={value}" if value else "") for name, value in flags]


def test_quotes_are_the_tools_to_drop() -> None:
    """`--expected_f32_threshold="0.5"` is 0 to them, and `--function="main"` is main (flags.c)."""
    lines = ['--expected_f32_threshold="0.5"', '--function="main"', '--input="2xf32=1 2"']
    flags, problems = read_flagfile("\n".join(lines), "f")
    assert [flag.text for flag in flags] == lines
    assert not problems


@pytest.mark.parametrize(
    ("written", "read"),
    [("2xf8e4m3fn=@a.bin", "2xf8E4M3FN=@a.bin"), ("f8E5M2FNUZ=1", "f8E5M2FNUZ=1"), ("2xf32=1e4", "2xf32=1e4")],
)
def test_types_of_8_bits_are_spelled_both_ways(written: str, read: str) -> None:
    (flag,), problems = read_flagfile(f"--input={written}", "f")
    assert (flag.value, problems) == (read, [])


@given(st.text(max_size=60))
def test_no_flagfile_makes_the_reader_fail(text: str) -> None:
    flags, problems = read_flagfile(text, "f")
    lines = [line for line in text.split("\n") if line.strip() and not line.strip().startswith(("#", "//"))]
    assert len(flags) + len([problem for problem in problems if not problem.field]) == len(lines)


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("--input=2xf32=@a.bin", "a.bin"),
        ("--input=@a.npy", "a.npy"),
        ("--expected_output=+a b.npy", "a b.npy"),
        ("--expected_output=2xf32=1 2", ""),
        ("--output=@a.npy", ""),
        ("--input=(null)", ""),
    ],
)
def test_files_of_arguments(line: str, file: str) -> None:
    (flag,), _ = read_flagfile(line, "f")
    assert find_argument_file(flag) == file


def test_files_outside_of_a_folder() -> None:
    assert [
        name for name in ("a", "a/b", "/a", "../a", "a/../../b", ".", "a\\b", "./a", "..a") if is_outside(name)
    ] == [*("/a", "../a", "a/../../b", ".", "a\\b")]
