"""What tells a failure from others: how the process ends, and a line of what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.diagnostics import find_diagnostic, find_same_in_all
from iree_gauntlet.figures import one_line
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.results import SENT_SIGNALS

if TYPE_CHECKING:
    from iree_gauntlet.experiments.explaining.tools import ToolResult


WRONG, FAILURE, CRASH, HANG = "wrong numbers", "failure", "crash", "does not end"
# As LLVM prints a stack: `#4 0x00007f… (anonymous namespace)::Op::match(mlir::Op) File.cpp:0:0`.
_FRAME = re.compile(r"^ *#\d+ 0x[0-9a-f]+ (.+)$", re.MULTILINE)
# How the process came to print it.
_HANDLING = re.compile(
    r"llvm::sys::|SignalHandler|\blibc\b|libc\.so|libpthread|__assert|gsignal|\babort\b|\braise\b|pthread_kill"
    r"|report_fatal_error|llvm_unreachable"
)
# What a program that ends itself says before.
_LAST_WORDS = re.compile(r"^(?:LLVM ERROR: .*|.*Assertion [`'].*|.*UNREACHABLE executed.*)$", re.MULTILINE)
_MODULE_FRAME = re.compile(r"\(([^()]*/)?([^()/]+\+0x[0-9a-f]+)\)$")
_ERROR = re.compile(r"\berror: (.*)")
_CUSTOM = re.compile(r" \(([\w.]+)\)$")
# What `find_same_in_all` puts for what differs.
_DIFFERS = re.compile("[…#]+")
_SPECIAL = re.compile(r"([\\.\[\](){}*+?^$|])")


@dataclass(frozen=True, slots=True)
class Symptom(Recorded):
    """What a failure shows.

    Attributes:
        ending: `wrong numbers`, `failure`, `crash` or `does not end`.
        said: what the process says, in a line; empty for nothing.
        pattern: an extended regular expression (grep -E) that a line of what it says matches; empty for any.
        seconds: after which it counts as one that does not end; 0 for all others.
    """

    ending: str
    said: str = ""
    pattern: str = ""
    seconds: float = 0.0

    def is_in(self, ran: ToolResult) -> bool:
        """Whether a process shows it too."""
        if _describe_ending(ran) != self.ending:
            return False
        return any(re.search(self.pattern, line) for line in ran.errors.splitlines() or [""])


def find_symptom(ran: ToolResult, timeout: float) -> Symptom | None:
    """What a process shows that ended; None where nothing is wrong, or where it was ended from outside.

    Args:
        ran: how it ended.
        timeout: seconds that it was given.
    """
    ending = _describe_ending(ran)
    if ending == WRONG:
        return Symptom(ending, one_line(ran.complaints[0]))
    if ending == HANG:
        return Symptom(ending, f"not done in {timeout:.0f} s", seconds=timeout)
    if ending == CRASH:
        words = _LAST_WORDS.search(ran.errors)
        if words is not None:
            return Symptom(ending, one_line(f"{ran.outcome.signal}: {words[0]}"), find_pattern(words[0]))
        frame = _format_crash_frame(ran.errors)
        return Symptom(ending, f"{ran.outcome.signal}{f' in {frame}' if frame else ''}", _escape(frame))
    if ending == FAILURE:
        found = _ERROR.search(ran.errors)
        lines = (text.strip() for text in ran.errors.splitlines() if text.strip())
        line = found[1] if found else next(lines, "")
        return Symptom(ending, one_line(find_diagnostic(line)).rstrip(": "), find_pattern(line))
    return None


def _describe_ending(ran: ToolResult) -> str:
    """How it ended, in one of four ways; empty for none of them."""
    if ran.outcome.timed_out:
        return HANG
    if ran.outcome.signal:
        return "" if ran.outcome.signal in SENT_SIGNALS else CRASH
    if ran.passed:
        return ""
    return WRONG if ran.complaints else FAILURE


def _format_crash_frame(errors: str) -> str:
    """The function that crashed: the innermost one that has not to do with how the crash is reported."""
    for frame in _FRAME.findall(errors):
        if _HANDLING.search(frame):
            continue
        if where := _MODULE_FRAME.search(frame):
            return where[2]
        text = frame.replace("(anonymous namespace)::", "")
        names = re.split(r"[(<]", text, maxsplit=1)[0].split()
        if names:
            return str(names[-1])
    return ""


def find_pattern(line: str) -> str:
    """A line as a regular expression that is free of what differs from program to program; empty for none."""
    text = find_same_in_all(line) if line.strip() else ""
    custom = _CUSTOM.search(text)
    if custom is not None:
        # It was an attribute of an operation that was printed in full.
        text = text[: custom.start()] + "…" + custom[1]
    pieces, end = [], 0
    for piece in _DIFFERS.split(text):
        # What was put in to close a type that was cut short is not there.
        if (word := piece.strip()) and (place := line.find(word, end)) >= 0:
            pieces.append(_escape(word))
            end = place + len(word)
    return ".*".join(pieces)


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
