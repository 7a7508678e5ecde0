"""A shell's completions: the toolkit gives values of options, Invoke gives names of tasks and options."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.tasks.program import main, namespace
from iree_gauntlet.tasks.task_options import list_option_values
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def _values(line: str) -> list[str]:
    words = line.split()
    return list_option_values(words, namespace[words[1]].options)


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_models_submodels_and_markers_are_those_of_the_specs() -> None:
    assert {"dtln", "minilm"} <= set(_values("gauntlet run --model"))
    assert {"spectral", "det"} <= set(_values("gauntlet run --submodel"))
    assert {"small", "audio", "quality"} <= set(_values("gauntlet list --markers"))


def test_suites_targets_and_fixed_choices() -> None:
    assert _values("gauntlet run --suite") == sorted(path.stem for path in (ROOT / "suites").glob("*.toml"))
    assert {"cpu", "rocm"} <= set(_values("gauntlet run --target"))
    assert _values("gauntlet compare 3.12.0 3.13.0 --metric") == ["time", "compile-time", "instructions"]


@pytest.mark.parametrize("line", ["run --suite cp", "run --suite = cp", "run --suite =", "run --model dtln --suite cp"])
def test_a_value_that_is_begun(line: str) -> None:
    assert "cpu" in _values(f"gauntlet {line}")


def test_an_option_and_its_value_in_one_word() -> None:
    assert "--suite=cpu" in _values("gauntlet run --suite=c")


@pytest.mark.parametrize(
    "line", ["run", "run --mod", "run --suite cpu", "run --run-dir", "run --run-dir x", "run --no-such-option x"]
)
def test_where_no_value_is_known_invoke_has_the_word(line: str) -> None:
    assert _values(f"gauntlet {line}") == []


def test_outside_of_a_project_there_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _values("gauntlet run --model") == []
    assert "cpu" in _values("gauntlet run --target")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gauntlet", "run", "--suite"], "cpu"),
        (["gauntlet run --suite"], "cpu"),
        (["gauntlet", "ru"], "run"),
        (["gauntlet", "run", "--mod"], "--model"),
    ],
)
def test_the_command_answers_shells(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gauntlet", "--complete", "--", *words])
    main()
    assert expected in capsys.readouterr().out.split()
