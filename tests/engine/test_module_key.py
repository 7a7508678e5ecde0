"""Modules' keys: the ingredients that count or not, and descriptions of changes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iree_gauntlet.engine.modules.module_key import describe_changes, flag_ingredients, join_flags, make_key

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({}, {}, ""),
        ({"program": "ab" * 32}, {"program": "cd" * 32}, "program changed"),
        ({"program": "sha256:" + "ab" * 32}, {}, "program changed"),
        ({"host": ""}, {"host": "znver4"}, "host changed: none → znver4"),
        ({"f": '["-a"]'}, {"f": '["-a", "--x"]'}, "flag added: --x"),
        ({"f": '["-a", "--x"]'}, {"f": '["-a"]'}, "flag removed: --x"),
        ({"f": '["--a=1"]'}, {"f": '["--a=2"]'}, "flag changed: --a=1 → --a=2"),
        ({"f": '["--a=<:11>"]'}, {"f": '["--a=<:22>"]'}, "file of flag changed: --a"),
        ({"f": '["-a", "-b"]'}, {"f": '["-b", "-a"]'}, "order or repetition of flags changed"),
        ({"f": "[x"}, {"f": "[y"}, "f changed: [x → [y"),
        ({}, {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}, "a changed; b changed; c changed; and 2 more"),
    ],
)
def test_changes_are_described(before: dict[str, str], after: dict[str, str], text: str) -> None:
    assert describe_changes(before, after) == text


NAMES = st.text(max_size=6)


@given(first=st.dictionaries(NAMES, NAMES, max_size=4), second=st.dictionaries(NAMES, NAMES, max_size=4))
def test_keys_differ_exactly_when_ingredients_do(first: dict[str, str], second: dict[str, str]) -> None:
    assert (make_key(first) == make_key(second)) == (first == second)
    assert make_key(first) == make_key(dict(reversed(first.items())))


@given(first=st.lists(NAMES, max_size=4), second=st.lists(NAMES, max_size=4))
def test_lists_of_flags_never_collide(first: list[str], second: list[str]) -> None:
    assert (join_flags(first) == join_flags(second)) == (first == second)


def content_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


VALUES = ["--x={}", "--x=scope={}", "--x={}@entry", "--x=scope={}@entry", "--x=1,{}", "--x={},{}", "-x={}", "{}", "@{}"]


@pytest.mark.parametrize("form", VALUES)
def test_files_count_by_content_not_by_place(tmp_path: Path, form: str) -> None:
    paths = [tmp_path / name for name in ("a/s.mlir", "b c/t.mlir", "d/s.mlir")]
    for path, content in zip(paths, ("same", "same", "other"), strict=True):
        path.parent.mkdir()
        path.write_text(content)
    absolute = [flag_ingredients([form.replace("{}", str(path))], content_hash) for path in paths]
    assert absolute[0] == absolute[1] != absolute[2]
    assert str(tmp_path) not in str(absolute)
    relative = form.replace("{}", "a/s.mlir")
    assert flag_ingredients([relative], content_hash, folder=tmp_path) == absolute[0]
    assert flag_ingredients([relative], content_hash, folder=tmp_path / "a") == (relative,)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["-o", "/x/m.vmfb", "--y"], ("-o=", "--y")),
        (["-o=/x/m.vmfb"], ("-o=",)),
        (["--iree-scheduling-dump-statistics-file=/x/s.json"], ("--iree-scheduling-dump-statistics-file=",)),
        (["--iree-hal-dump-executable-files-to", "/x", "-y"], ("--iree-hal-dump-executable-files-to=", "-y")),
        (["--iree-parameter-splat=/x/p.irpa"], ("--iree-parameter-splat=",)),
        (["--iree-opt-splat-parameters=/x/p.irpa"], ("--iree-opt-splat-parameters=",)),
        (["--iree-parameter-export=model=/x/p.irpa"], ("--iree-parameter-export=model",)),
        (["--mlir-pass-pipeline-crash-reproducer=/x"], ("--mlir-pass-pipeline-crash-reproducer=",)),
        (["--compile-to=vm"], ("--compile-to=vm",)),
        (["--output-format=vm-c"], ("--output-format=vm-c",)),
        (["--iree-llvmcpu-target-cpu=host"], ("--iree-llvmcpu-target-cpu=host",)),
        (["--iree-llvmcpu-target-cpu-features=+a,-b"], ("--iree-llvmcpu-target-cpu-features=+a,-b",)),
        (["--x=/usr"], ("--x=/usr",)),
        (["--x=" + "y" * 5000, "--", "", "--z=\0"], ("--x=" + "y" * 5000, "--", "", "--z=\0")),
        (["-o"], ("-o=",)),
    ],
)
def test_outputs_are_left_out_and_the_rest_is_kept(flags: list[str], expected: tuple[str, ...]) -> None:
    assert flag_ingredients(flags, content_hash) == expected


def test_word_that_is_also_a_file_stays_itself(tmp_path: Path) -> None:
    (tmp_path / "host").touch()
    (tmp_path / "generic").touch()
    host, generic = (flag_ingredients([f"--cpu={word}"], content_hash, folder=tmp_path) for word in ("host", "generic"))
    assert host != generic


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(flags=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="/\0"), max_size=9), max_size=4))
def test_flags_without_files_and_outputs_stay(tmp_path: Path, flags: list[str]) -> None:
    flags = [f"--gauntlet{flag}" for flag in flags]
    assert flag_ingredients(flags, content_hash, folder=tmp_path / "empty") == tuple(flags)
