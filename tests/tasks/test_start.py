"""The start of a command, and messages on systems and machines that the toolkit does not support."""

from __future__ import annotations

import gc
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet import __main__ as start
from iree_gauntlet import __version__
from iree_gauntlet.tasks import program

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def asked_for_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gauntlet", "--version"])


@pytest.fixture(autouse=True)
def unchanged_collector() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("asked_for_its_version")
@pytest.mark.parametrize(
    ("platform", "system", "hint"),
    [
        ("win32", "Windows", "Use WSL, which runs Linux on Windows."),
        ("freebsd14", "freebsd14", "Use a container or another machine."),
    ],
)
def test_another_system_gets_one_sentence_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], platform: str, system: str, hint: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    # What it would need is not even looked for.
    monkeypatch.setitem(sys.modules, "iree_gauntlet.tasks.program", None)
    with pytest.raises(SystemExit) as ended:
        start.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    first = f"error: IREE Gauntlet runs on Linux (x86-64 and aarch64) and macOS, but this is {system}"
    assert said.splitlines()[0] == first
    assert said.endswith(f"{hint}\n")


@pytest.mark.usefixtures("asked_for_its_version")
def test_another_machine_is_pointed_out_and_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    start.main()
    said = capsys.readouterr()
    assert said.err.endswith("; it is untested on riscv64\n")
    assert __version__ in said.out


@pytest.mark.usefixtures("asked_for_its_version")
def test_here_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    start.main()
    assert capsys.readouterr().err == ""


def test_garbage_is_collected_during_a_command_and_not_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    objects: list[object] = []

    def run_command() -> None:
        assert gc.isenabled()
        assert gc.get_freeze_count() > 10_000
        objects.append([])
        assert any(item is objects[0] for item in gc.get_objects())
        raise SystemExit(1)

    monkeypatch.setattr(program, "main", run_command)
    with pytest.raises(SystemExit):
        start.main()
    assert not any(item is objects[0] for item in gc.get_objects()), "all that is left is frozen"
