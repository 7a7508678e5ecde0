from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from iree_gauntlet.errors import UsageError
from iree_gauntlet.requests import ToolchainRequest
from iree_gauntlet.tasks.program import _add_option_names
from iree_gauntlet.toolchains.choice import ChoiceKind, parse_choice
from iree_gauntlet.toolchains.find import parse_compiler_and_runtime

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", ChoiceKind.INSTALLED),
        ("installed", ChoiceKind.INSTALLED),
        ("3.12.0", ChoiceKind.RELEASE),
        ("3.12", ChoiceKind.RELEASE),
        (">=3.9,<3.12", ChoiceKind.RANGE),
        ("==3.7.*", ChoiceKind.RANGE),
        ("nightly", ChoiceKind.NIGHTLY),
        ("3.14.0rc20261120", ChoiceKind.NIGHTLY),
        ("3.14.0.dev3", ChoiceKind.NIGHTLY),
        ("wheels:dist", ChoiceKind.WHEELS),
        ("venv:~/v", ChoiceKind.VENV),
        ("build:/some/../where", ChoiceKind.BUILD),
        ("path", ChoiceKind.PATH),
    ],
)
def test_every_form(text: str, kind: ChoiceKind) -> None:
    choice = parse_choice(text)
    assert choice.kind is kind
    if choice.folder is not None:
        assert choice.folder.is_absolute()
        assert not {"..", "~"} & set(choice.folder.parts)


def test_a_short_version_is_the_release_that_an_index_takes_it_for() -> None:
    assert str(parse_choice("3.12").version) == "3.12.0"
    assert parse_choice("3.7.1").version == Version("3.7.1")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("instaled", "Did you mean installed?"),
        ("bild:/x", "Did you mean build:?"),
        ("build:", "For example build:/path/to/it."),
        (">=banana", "in quotes"),
        ("latest", "Known: installed, a release"),
        ("3.12.x", "Known: installed, a release"),
    ],
)
def test_what_means_nothing_is_an_error_that_helps(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_choice(text, "--iree-runtime")
    assert raised.value.message.startswith(f"--iree-runtime {text}: ")
    assert hint in raised.value.hint


def test_a_bare_folder_is_guessed_at(tmp_path: Path) -> None:
    for name, file, hint in (
        ("v", "pyvenv.cfg", "write venv:"),
        ("w", "x-1-py3-none-any.whl", "write wheels:"),
        ("b", "CMakeCache.txt", "Write build:"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
        with pytest.raises(UsageError) as raised:
            parse_choice(str(tmp_path / name))
        assert hint in raised.value.hint


@given(st.text(max_size=30))
def test_no_text_is_more_than_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse_choice(text).kind in ChoiceKind


def test_one_side_overrides_the_whole_which_overrides_the_variable() -> None:
    environ = {"IREE_GAUNTLET_IREE": "3.5.0"}
    assert [choice.text for choice in parse_compiler_and_runtime(ToolchainRequest(), {})] == ["installed", "installed"]
    assert [choice.text for choice in parse_compiler_and_runtime(ToolchainRequest(), environ)] == ["3.5.0", "3.5.0"]
    assert [choice.text for choice in parse_compiler_and_runtime(ToolchainRequest(iree="path"), environ)] == [
        "path",
        "path",
    ]
    options = ToolchainRequest(iree="3.9.0", iree_runtime="3.12.0")
    assert [choice.text for choice in parse_compiler_and_runtime(options, environ)] == ["3.9.0", "3.12.0"]
    with pytest.raises(UsageError, match="IREE_GAUNTLET_IREE nonsense"):
        parse_compiler_and_runtime(ToolchainRequest(), {"IREE_GAUNTLET_IREE": "nonsense"})


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (
            ["g", "toolchain.install", "3.5.0", "3.9.0", "--offline"],
            ["g", "toolchain.install", "--version", "3.5.0", "--version", "3.9.0", "--offline"],
        ),
        (["g", "toolchain.remove", "3.5.0"], ["g", "toolchain.remove", "--version", "3.5.0"]),
        (["g", "toolchain.install"], ["g", "toolchain.install"]),
        (["g", "run", "--model", "a"], ["g", "run", "--model", "a"]),
    ],
)
def test_tasks_that_take_several_words(words: list[str], named: list[str]) -> None:
    assert _add_option_names(words) == named
