"""Verdicts of processes that ended badly, and of steps that are expected to fail."""

from __future__ import annotations

import mmap
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import FailureKind, Stage, Verdict
from iree_gauntlet.dialects.spec_file import did_you_mean
from iree_gauntlet.engine.given_files import describe_unreadable
from iree_gauntlet.engine.processes.supervisor import Outcome, disk_full
from iree_gauntlet.figures import listed
from iree_gauntlet.results import SENT_SIGNALS, Result, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iree_gauntlet.steps import Step


_ERROR_LINE = re.compile(r"\berror: ")
# Signals that no full disk is the cause of.
_OF_ITSELF = ("SIGFPE", "SIGILL", "SIGSEGV", "SIGTRAP")
# What drivers say of a device that is gone, or broken.
_DEVICE_LOST = re.compile(
    r"VK_ERROR_DEVICE_LOST|CUDA_ERROR_(?:DEVICE_UNAVAILABLE|ECC_UNCORRECTABLE)|hipErrorECCNotCorrectable"
)
# How a step fails whose tool ends with an error of its own; at other stages it is no tool of IREE's.
_ORDINARY = {
    Stage.IMPORT: FailureKind.DOES_NOT_COMPILE,
    Stage.COMPILE: FailureKind.DOES_NOT_COMPILE,
    Stage.THRESHOLD: FailureKind.DOES_NOT_RUN,
    Stage.BENCHMARK: FailureKind.DOES_NOT_RUN,
}
# What tools say of a function, a device, a flag, a target or a file that is not there, or is none; and what it means.
_MISTAKES = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"no function `([^`]*)` exported by module", "finds no function {name!r} in the module{functions} ({see})"),
        (r"more than one exported function present", "has to be told which function to call{functions} ({see})"),
        (
            r"no driver '([^']*)' registered",
            "has no driver {name}: see `device` of the spec, and what `gauntlet doctor` lists",
        ),
        (
            r"creating (?:driver for )?device '([^']*)'",
            "cannot open the device {name}: see `device` of the spec, and what `gauntlet devices` lists ({reason})",
        ),
        (
            r"(?:flags\.c:\d+: \w+; |iree-compile: )((?:flag |Unknown command line argument |for the --)[^;\n]+)",
            "does not take a flag: {name} ({see})",
        ),
        (
            r"(unknown custom value for --[^\n]+|unrecognized allocator '[^']*')",
            "does not take a flag's value: {name} ({see})",
        ),
        (
            r"(unregistered device alias [^\n]+|target backend '[^']*' not registered[^\n]*)",
            "does not know the target: {name} ({see})",
        ),
        (
            r"(?:unable to open file|failed to open file|cannot open input file) [`']([^`']*)[`']",
            "cannot open {name}: was it removed, or is its name misspelt? ({see})",
        ),
        (r"/io/formats/\S+: \w+; ([^;\n]+)", "cannot read the parameters: {name}; fetch or make them again ({see})"),
        (
            r"OUT_OF_RANGE; end-of-file[^\n]*; parsing input `([^`]*)`",
            "cannot use {name}: the file is cut short; fetch or record it again ({see})",
        ),
        (
            r"(?:input data string|invalid tensor specification)[^\n]*; parsing input `([^`]*)`",
            "cannot use {name}: it is no value, or has not as many as its shape says ({see})",
        ),
    )
)
_MOST_NAMES = 8
# What a compiler says of a chip that it does not know; the first of a chip of NVIDIA's that even its help names.
_UNKNOWN_CHIP = re.compile(r"missing GPU target in #hal\.executable\.target|Unknown (?:CUDA|ROCM|Vulkan) target")
_CHIP_ADVICE = "; this IREE does not know that chip: compile for another one"
_NVIDIA_ADVICE = f"{_CHIP_ADVICE}, as sm_89 (a newer NVIDIA GPU runs what is compiled for an older one)"
# What a module keeps of what it exports: declarations, or of programs made of torch's the names of both forms.
_EXPORTED = re.compile(rb"(?<=func @)[\w$.-]+(?=\()|(?<=\0)[\w.-]+(?=\$async\0)")


def after_process(
    step: Step, outcome: Outcome, lines: Sequence[str], *, tool: str, reason: str | None = None
) -> Result:
    """The result of a step whose process ended badly.

    Args:
        step: gives the folder that it wrote to, and its time limit.
        outcome: how it ended.
        lines: what it wrote to standard error.
        tool: its name, for messages.
        reason: why it failed by its own account, for an ordinary exit; the first of its lines where not given.
    """
    full = outcome.signal not in _OF_ITSELF and disk_full(Path(step.folder), lines)
    lost = next((found[0] for line in (*lines, *outcome.tail) if (found := _DEVICE_LOST.search(line))), "")
    # The first one that is true says why; none is the fault of the product under test.
    errors = (
        (outcome.timed_out, f"ran longer than its {step.timeout:g} s and was ended with its children"),
        (full, "ran out of disk space; free some (see `doctor`) and run again"),
        (bool(lost), f"lost its device ({lost}): see dmesg, and whether `gauntlet devices` lists it again"),
        (outcome.out_of_memory, f"ran into its limit of memory: {'; '.join(outcome.notes)}"),
        (outcome.signal == "SIGKILL", "was killed from outside, for lack of memory or by someone (see dmesg)"),
        (outcome.signal in SENT_SIGNALS, f"was ended from outside with {outcome.signal}"),
    )
    error = next((text for happened, text in errors if happened), "")
    if reason is None:
        reason = shorten(next((line for line in lines if line.strip()), ""))
    if not error and not outcome.signal:
        error = _describe_mistake(step, "\n".join((*lines, *outcome.tail)), reason)
    failure = f"failed with exit code {outcome.exit_code}" + (f": {reason}" if reason else "")
    if outcome.signal:
        failure = f"crashed with {outcome.signal}"
    unknown = next(filter(None, map(_UNKNOWN_CHIP.search, lines)), None)
    if unknown:
        failure += _CHIP_ADVICE if unknown[0].endswith(("ROCM target", "Vulkan target")) else _NVIDIA_ADVICE
    kind = None if error else FailureKind.CRASHES if outcome.signal else _ORDINARY.get(step.stage)
    return Result(
        Verdict.ERROR if error or outcome.signal else Verdict.FAILED,
        shorten(f"{tool} {error or failure}"),
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        timed_out=outcome.timed_out,
        tail=tuple(outcome.tail),
        notes=tuple(outcome.notes),
        failure=kind if step.stage in _ORDINARY else None,
    )


def _describe_mistake(step: Step, said: str, reason: str) -> str:
    """What the spec asks for that is not there, or is none, behind the tool's name; empty where that is not why."""
    runs = step.stage in (Stage.THRESHOLD, Stage.BENCHMARK)
    if step.command and runs and (damaged := describe_unreadable(step.command)):
        return damaged
    for pattern, text in _MISTAKES:
        if found := pattern.search(said):
            name = found[1] if found.lastindex else ""
            functions = _format_functions(step, name) if "{functions}" in text else ""
            return text.format(name=name, functions=functions, reason=reason, see=f"see {step.origin.file}")
    return ""


def _format_functions(step: Step, name: str) -> str:
    """What the modules of a run export, as far as they say so, and what a name may be meant for."""
    names: set[str] = set()
    for word in step.command.argv if step.command else ():
        if step.command and word.startswith("--module="):
            try:
                with (Path(step.command.cwd) / word.partition("=")[2]).open("rb") as file:
                    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError):
                continue
            with content:
                names.update(found.decode() for found in _EXPORTED.findall(content))
    known = sorted(names)
    return f", which has {listed(known, _MOST_NAMES)}{did_you_mean(name, known)}" if known else ""


def first_error(lines: Iterable[str]) -> str:
    """The first line that says `error:`, without the path before it; empty where there is none."""
    for line in lines:
        match = _ERROR_LINE.search(line)
        if match:
            return shorten(line[match.end() :].strip())
    return ""


def with_expectation(step: Step, result: Result, *, lenient: bool) -> Result:
    """Turns the verdict of a step that is expected to fail.

    What is expected are some kinds of failure, perhaps with a text; another one keeps its verdict, and so does what is
    no failure of what is tested: a time-out, a file or function that is not there. A pass is an unexpected one, which
    fails the run unless `lenient`.
    """
    if not step.expect_failure:
        return result
    expected = shorten(step.expect_failure)
    if result.verdict is Verdict.PASSED:
        if lenient:
            note = f"passed although expected to fail: {expected}"
            return replace(result, notes=(*result.notes, note))
        reason = f"passed, but is expected to fail: {expected}; remove the expectation"
        return replace(result, verdict=Verdict.XPASSED, reason=reason)
    if result.failure is None:
        return result
    if result.failure in step.expect_kinds and step.expect_match in f"{result.reason}\n{result.said}":
        reason = f"{result.reason}; {result.failure}, expected: {expected}"
        return replace(result, verdict=Verdict.XFAILED, reason=reason)
    wanted = " or ".join(step.expect_kinds)
    if step.expect_match:
        wanted += f" with {shorten(step.expect_match)!r} in the reason or the output"
    reason = f"{result.reason}; {result.failure}, but expected is: {wanted} ({step.expect_origin or expected})"
    return replace(result, reason=f"{reason}; if this is expected, say so there")
