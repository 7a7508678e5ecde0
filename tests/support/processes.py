"""Finds processes, and waits for their effects."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.command_line import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["find_processes", "list_started_steps", "wait_until"]


def wait_until(condition: Callable[[], object], seconds: float = LIMIT_SECONDS) -> None:
    """Wait until a condition holds that another process fulfils; the limit only ends a hang."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def find_processes(text: str) -> list[int]:
    """Return the ids of processes whose command line contains a text; zombies are left out."""
    pids = []
    # `wait_until` polls this function: a Path for each process would be slow.
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        if int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb", buffering=0) as file:  # noqa: PTH123
                    line = file.read().replace(b"\0", b" ").decode(errors="replace")
                if text not in line:
                    continue
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if state != "Z":
                pids.append(int(name))
    return pids


def list_started_steps(journal: Path) -> list[str]:
    """Return the steps that a run, which may be active, has started; none if it has no journal yet."""
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event["step"] for event in events if event["event"] == "start"]
