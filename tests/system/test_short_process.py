from __future__ import annotations

import math
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.system import short_process
from iree_gauntlet.system.short_process import run_logged, run_short
from tests.support.hanging import HANG, iterate_timeouts, make_hang_command
from tests.support.processes import find_processes, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_what_a_program_says() -> None:
    answer = run_short(["sh", "-c", "cat; printf '\\377' >&2; kill -9 $$"], timeout=math.inf, stdin="héllo")
    assert (answer.exit_code, answer.stdout, answer.stderr) == (-9, "héllo", "\N{REPLACEMENT CHARACTER}")
    assert answer.text == "héllo\N{REPLACEMENT CHARACTER}"


def test_what_cannot_be_started_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        run_short([str(tmp_path / "none")], timeout=1)
    assert raised.value.filename == str(tmp_path / "none")


def test_it_says_so_while_a_program_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_process, "_PROGRESS_INTERVAL_SECONDS", 0.01)
    go_on = tmp_path / "go-on"
    os.mkfifo(go_on)
    reported: list[float] = []

    def news(seconds: float) -> None:
        reported.append(seconds)
        if len(reported) == 2:
            go_on.write_text("went on")

    assert run_short(["cat", str(go_on)], timeout=math.inf, news=news).stdout == "went on"
    assert 0 < reported[0] <= reported[1]


@pytest.mark.parametrize("grace", [0.0, 60.0])
def test_an_interrupt_of_ours_ends_the_program_and_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    monkeypatch.setattr(short_process, "_PROGRESS_INTERVAL_SECONDS", 0.01)
    child, asked, ready = make_hang_command(), tmp_path / "asked", tmp_path / "ready"

    def interrupt(_: float) -> None:
        if ready.exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_short(_stubborn(child, asked, f"touch '{ready}'"), timeout=math.inf, grace=grace, news=interrupt)
    wait_until(lambda: not find_processes(child))
    assert asked.exists() == bool(grace)


def _stubborn(child: str, asked: Path, when_ready: str) -> list[str]:
    """A program that ends when it is asked to, but what it has started does not, once it is ready."""
    stubborn = f"(trap '' TERM; {when_ready}; exec {child} >'{os.devnull}' 2>&1) &"
    return ["sh", "-c", f"ask() {{ touch '{asked}'; exit; }}; trap ask TERM; {stubborn} wait"]


def test_what_was_said_until_the_time_is_up_is_kept() -> None:
    for seconds in iterate_timeouts():
        with pytest.raises(subprocess.TimeoutExpired) as raised:
            run_short(["sh", "-c", f"echo thinking; echo hard >&2; {HANG}"], timeout=seconds)
        if "hard" in raised.value.output:
            break
    assert raised.value.output == "thinking\nhard\n"


def test_an_interrupt_of_ours_ends_a_program_that_is_logged(tmp_path: Path) -> None:
    child, asked = make_hang_command(), tmp_path / "asked"

    def follow(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_logged(
            _stubborn(child, asked, "echo at work"),
            tmp_path / "log",
            environment=dict(os.environ),
            inherited_fds=(),
            follow=follow,
        )
    wait_until(lambda: not find_processes(child))
    assert asked.exists()
    assert (tmp_path / "log").read_text().endswith("at work\n")
