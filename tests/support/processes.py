"""Looking at processes, and waiting for what they do."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.command_line import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["begun_steps", "running", "wait_until"]


def wait_until(condition: Callable[[], object], seconds: float = LIMIT_SECONDS) -> None:
    """Waits for something that another process does; the limit only ends a hang."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def running(word: str) -> list[int]:
    """Processes whose command line holds a word."""
    found = []
    # Asked for again and again by who waits: without a Path for each process.
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        if int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/cmdline", "rb", buffering=0) as file:  # noqa: PTH123
                    line = file.read().replace(b"\0", b" ").decode(errors="replace")
                if word not in line:
                    continue
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if state != "Z":
                found.append(int(name))
    return found


def begun_steps(journal: Path) -> list[str]:
    """Steps that a run which may still go on has begun, by its journal; none where there is no journal yet."""
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event["step"] for event in events if event["event"] == "start"]
