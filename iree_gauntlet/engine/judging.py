"""Verdicts of processes that ended badly, of files that they read, and of steps that are expected to fail."""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import Verdict
from iree_gauntlet.device_kinds import DEVICE_KINDS
from iree_gauntlet.dialects.spec_file import did_you_mean
from iree_gauntlet.engine.processes.supervisor import Outcome, is_disk_full
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import listed
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.results import SENT_SIGNALS, Result, shorten
from iree_gauntlet.stages import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iree_gauntlet.steps import Command, Step


_ERROR_LINE = re.compile(r"\berror: ")
# Signals that no full disk is the cause of.
_OF_ITSELF = ("SIGFPE", "SIGILL", "SIGSEGV", "SIGTRAP")
# What drivers say of a device that is gone, or broken.
_DEVICE_LOST = re.compile(
    r"VK_ERROR_DEVICE_LOST|CUDA_ERROR_(?:DEVICE_UNAVAILABLE|ECC_UNCORRECTABLE)|hipErrorECCNotCorrectable"
)
# How a step fails whose tool ends with an error of its own; at stages with neither it is no tool of IREE's.
_ORDINARY = (FailureKind.DOES_NOT_COMPILE, FailureKind.DOES_NOT_RUN)
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
NUMPY_ADVICE = "save it again: numpy.save(path, numpy.ascontiguousarray(array.astype(array.dtype.newbyteorder('='))))"
INPUT = "--input="
EXPECTED = "--expected_output="
# Lies beside expected outputs that were recorded.
PROVENANCE_FILE = "provenance.json"
# What names a file behind these: opened, read on, or read to its end.
_FILE_MARKS = ("@", "+", "*")
_MOST_NAMES = 8
# The compiler's words for a chip that it does not know.
_UNKNOWN_CHIPS = {kind: re.compile(kind.unknown_chip) for kind in DEVICE_KINDS if kind.unknown_chip}
_CHIP_ADVICE = "; this IREE does not know that chip: compile for another one"
# What a module keeps of what it exports: declarations, or of programs made of torch's the names of both forms.
_EXPORTED = re.compile(rb"(?<=func @)[\w$.-]+(?=\()|(?<=\0)[\w.-]+(?=\$async\0)")


def judge_process(
    step: Step, outcome: Outcome, lines: Sequence[str], *, tool: str, reason: str | None = None
) -> Result:
    """The result of a step whose process ended badly.

    Args:
        step: whose.
        outcome: how it ended.
        lines: what it wrote to standard error.
        tool: its name, for messages.
        reason: why it failed by its own account, for an ordinary exit; the first of its lines where not given.
    """
    full = outcome.signal not in _OF_ITSELF and is_disk_full(Path(step.folder), lines)
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
    matches = (device_kind for line in lines for device_kind, words in _UNKNOWN_CHIPS.items() if words.search(line))
    if device_kind := next(matches, None):
        failure += _CHIP_ADVICE + device_kind.chip_hint
    ordinary = next((kind for kind in _ORDINARY if kind in step.stage.row.failures), None)
    kind = None if error else FailureKind.CRASHES if outcome.signal else ordinary
    return Result(
        Verdict.ERROR if error or outcome.signal else Verdict.FAILED,
        shorten(f"{tool} {error or failure}"),
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        timed_out=outcome.timed_out,
        tail=tuple(outcome.tail),
        notes=tuple(outcome.notes),
        failure=kind if ordinary else None,
    )


def _describe_mistake(step: Step, said: str, reason: str) -> str:
    """What the spec asks for that is not there, or is none, behind the tool's name; empty where that is not why."""
    if step.command and step.stage.row.runs_modules and (damaged := _describe_unreadable(step.command)):
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


def find_first_error(lines: Iterable[str]) -> str:
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
            return replace(result, notes=(*result.notes, f"passed although expected to fail: {expected}"))
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


def values_of(command: Command, flag: str) -> list[str]:
    """What a command says behind all of its flags of one name, which ends with `=`."""
    return [word.removeprefix(flag) for word in command.argv if word.startswith(flag)]


def require_whole_files(command: Command) -> None:
    """Makes sure that a command reads its files to their ends: the tools pass over a rest.

    Raises:
        UnreadError: it does not.
    """
    # They bring NumPy.
    from iree_gauntlet.measuring.numerics.arrays import UnreadError, read_arguments  # noqa: PLC0415

    for flag in (INPUT, EXPECTED):
        try:
            values = values_of(command, flag)
            # By itself, or behind its type.
            named = [
                text
                for text in values
                if text.startswith(_FILE_MARKS) or text.partition("=")[2].startswith(_FILE_MARKS)
            ]
            read_arguments(named, Path(command.cwd))
        except UnreadError:
            raise
        except GauntletError:
            # The tool has its own word on what cannot be read.
            continue


def _describe_unreadable(command: Command) -> str:
    """Which .npy of a command the tool cannot read, behind its name; empty where it can read all."""
    from iree_gauntlet.measuring.numerics.arrays import explain_refusal, read_arguments  # noqa: PLC0415 - with NumPy

    try:
        for flag in (INPUT, EXPECTED):
            # Of these alone, what cannot be read here cannot be read by the tool.
            arrays = [text for text in values_of(command, flag) if text.startswith(_FILE_MARKS)]
            read_arguments(arrays, Path(command.cwd))
            for path in (Path(command.cwd, text[1:]) for text in arrays):
                if why := explain_refusal(path):
                    return f"cannot use {path}: {why}; {NUMPY_ADVICE}"
    except GauntletError as error:
        return f"cannot use {error.what}; {error.hint or 'fetch or record this file again'}"
    return ""


@dataclass(frozen=True, slots=True)
class RecordedFile(Recorded):
    """A file that a provenance names, beside which there may be `data`; what is written in the spec has no hash."""

    source: str
    sha256: str = ""
    data: tuple[RecordedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class GoldenProvenance(Recorded):
    """What recorded outputs were made from."""

    outputs: tuple[RecordedFile, ...]
    made_by: str = ""
    optimisations: str = ""
    model: RecordedFile | None = None
    inputs: tuple[RecordedFile, ...] = ()

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of outputs, by their names."""
        return {item.source: item.sha256 for item in self.outputs if item.sha256}


def read_provenance(folder: Path) -> GoldenProvenance | None:
    """That of the outputs in a folder; None where there is none, or one of somebody else's making."""
    try:
        return GoldenProvenance.from_dict(read_json((folder / PROVENANCE_FILE).read_bytes()))
    except (OSError, ValueError):
        return None


def find_changed_goldens(command: Command) -> list[str]:
    """What of a command is not as its expected outputs were recorded, or for: outputs and the model's own files."""
    found: dict[str, None] = {}
    for text in values_of(command, EXPECTED):
        _, mark, name = text.partition("@")
        path = Path(command.cwd, name)
        record = read_provenance(path.parent) if mark and path.is_file() else None
        known = record.hashes.get(path.name) if record is not None else None
        if known and hash_file(path) != known:
            found[f"{path.name} is not what was recorded ({PROVENANCE_FILE} has another hash)"] = None
        model = record.model if record is not None and known else None
        for item in (model, *model.data) if model else ():
            file = path.parent / item.source
            if item.sha256 and file.is_file() and hash_file(file) != item.sha256:
                found[f"{file.name} has changed since the expected outputs were recorded"] = None
    return list(found)
