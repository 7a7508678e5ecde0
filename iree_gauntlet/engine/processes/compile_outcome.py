"""What the compile server's answers and logs say of a compile."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.processes.supervisor import Outcome
from iree_gauntlet.system.signals import signal_name
from iree_gauntlet.system.tail import TAIL_LINES, read_tail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


# What `workers/iree_side/compile_child.py` exits with where it is not the compiler that failed.
EXIT_DEFECT = 70
EXIT_UNWRITABLE = 74

# Room that standard output gets in the tail next to a long standard error, as for other processes.
_STDOUT_LINES = 6
_ERRORS_BYTES = 1 << 20
_ERROR_PLACE = re.compile(r"^(.+?):\d+:\d+: error: ", re.MULTILINE)
# The tool's own main function in the stack of a crash; what called it here is the server's Python.
_MAIN_FRAME = re.compile(rb"^ *#?\d+ .*(?:runIreecMain|ireeCompilerRunMain|ireeCompilerInvocation).*\n", re.MULTILINE)
_NO_MEMORY_WORDS = ("out of memory", "bad_alloc", "cannot allocate memory", "memoryerror")


def outcome_of(answer: Mapping[str, Any], stdout: Path, stderr: Path, memory_bytes: int) -> Outcome:
    """How a compile ended, in the terms of all processes.

    Args:
        answer: of the server.
        stdout: its log.
        stderr: its other log.
        memory_bytes: its limit; 0 for none.
    """
    status, stuck = answer["status"], answer["stuck"]
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number:
        _cut_stack(stderr)
    errors = read_tail(stderr)
    output = read_tail(stdout, max(_STDOUT_LINES, TAIL_LINES - len(errors.lines)))
    lines = errors.lines
    if output.lines:
        lines = (*output.lines, *lines[-(TAIL_LINES - len(output.lines)) :])[-TAIL_LINES:]
    outcome = Outcome(
        exit_code=None if number or stuck else os.WEXITSTATUS(status),
        signal=signal_name(number),
        timed_out=answer["timed_out"],
        seconds=answer["seconds"],
        cpu_seconds=answer["cpu_seconds"],
        peak_rss_bytes=answer["peak_rss_bytes"],
        tail=lines,
        truncated=errors.truncated or output.truncated or len(errors.lines) + len(output.lines) > len(lines),
        output_bytes=errors.size + output.size,
        stuck=stuck,
        notes=tuple(answer["notes"]),
    )
    if memory_bytes and outcome.exit_code != 0 and _lacked_memory(stderr):
        note = f"the compiler ran into its memory limit of {memory_bytes / 1e9:.3g} GB"
        return replace(outcome, out_of_memory=True, notes=(*outcome.notes, note))
    return outcome


def _cut_stack(stderr: Path) -> None:
    """Leave the frames that the tool itself would have shown; the log's end is what people see first."""
    with stderr.open("r+b") as stream:
        frames = list(_MAIN_FRAME.finditer(stream.read(_ERRORS_BYTES)))
        if frames:
            stream.truncate(frames[-1].end())


def _lacked_memory(stderr: Path) -> bool:
    text = _head(stderr).lower()
    return any(words in text for words in _NO_MEMORY_WORDS)


def blamed_programs(stderr: Path, programs: Sequence[str]) -> tuple[int, ...]:
    """Programs that the compiler's errors point at, by their index."""
    places = set(_ERROR_PLACE.findall(_head(stderr)))
    return tuple(index for index, program in enumerate(programs) if program in places)


def _head(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(_ERRORS_BYTES).decode(errors="replace")
