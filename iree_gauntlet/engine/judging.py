"""Verdicts on failed processes, on the files that a command reads, and on steps that are expected to fail."""

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
from iree_gauntlet.engine.commands import split_calls
from iree_gauntlet.engine.processes.supervisor import Outcome, is_disk_full
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import list_first
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.results import EXTERNAL_SIGNALS, Result, shorten
from iree_gauntlet.stages import FailureKind
from iree_gauntlet.targets import parse_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import date

    from iree_gauntlet.steps import Command, Step


# The second alternative is the compiler's last word before it gives up; its name stays.
_ERROR_LINE = re.compile(r"\berror: |(?=\bLLVM ERROR: )")
# A full disk is never the cause of these signals.
_CRASH_SIGNALS = ("SIGFPE", "SIGILL", "SIGSEGV", "SIGTRAP")
# The loader of another architecture's programs prints this if the runner names no folder with their libraries.
_MISSING_LIBRARY = "error while loading shared libraries"
# Drivers print these if a device has disappeared or is broken.
_DEVICE_LOST = re.compile(
    r"VK_ERROR_DEVICE_LOST|CUDA_ERROR_(?:DEVICE_UNAVAILABLE|ECC_UNCORRECTABLE)|hipErrorECCNotCorrectable"
)
# A step fails in one of these ways if its tool exits with an error; stages that allow neither run no tool of IREE.
_EXIT_FAILURES = (FailureKind.DOES_NOT_COMPILE, FailureKind.DOES_NOT_RUN)
# The compiler prints this if it cannot load a tuning spec; the error in the spec follows after many lines of the model.
_TUNING_SPEC_FAILURE = re.compile(r"Failed to load tuning spec .*? from (\S.*)")
# Tools print these messages for a function, device, flag, target or file that does not exist or is invalid. Each
# pattern comes with its explanation.
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
            "does not accept a flag: {name} ({see})",
        ),
        (
            r"(unknown custom value for --[^\n]+|unrecognized allocator '[^']*')",
            "does not accept a flag's value: {name} ({see})",
        ),
        (
            r"(unregistered device alias [^\n]+|target backend '[^']*' not registered[^\n]*)",
            "does not know the target: {name} ({see})",
        ),
        (
            r"(?:unable to open file|failed to open file|cannot open input file) [`']([^`']*)[`']",
            "cannot open {name}: was it removed, or is its name misspelt? ({see})",
        ),
        (r"/io/formats/\S+: \w+; ([^;\n]+)", "cannot read the parameters: {name}; fetch or create them again ({see})"),
        (
            r"OUT_OF_RANGE; end-of-file[^\n]*; parsing input `([^`]*)`",
            "cannot use {name}: the file is cut short; fetch or record it again ({see})",
        ),
        (
            r"(?:input data string|invalid tensor specification)[^\n]*; parsing input `([^`]*)`",
            "cannot use {name}: it is not a value, or not as many as its shape requires ({see})",
        ),
    )
)
NUMPY_ADVICE = "save it again: numpy.save(path, numpy.ascontiguousarray(array.astype(array.dtype.newbyteorder('='))))"
_INPUT_FLAG = "--input="
GOLDEN_FLAG = "--expected_output="
# This file is in the folder of recorded expected outputs.
PROVENANCE_FILE = "provenance.json"
# The lines that `run_calls.py` prints before a call, and when a benchmark has made all calls once.
_CURRENT_CALL = re.compile(r"^EXEC @(.*) \(call (\d+)\)$", re.MULTILINE)
_ALL_CALLS = "all calls were made once\n"
# The exit code of `run_calls.py` for arguments that it cannot use.
_UNUSABLE_ARGUMENTS = 2
# These marks precede a file name: open the file, continue reading it, or read it to its end.
_FILE_MARKS = ("@", "+", "*")
_MAX_NAMES = 8
# The compiler prints these if it does not support the chip.
_UNKNOWN_CHIP = {kind: re.compile(kind.unknown_chip) for kind in DEVICE_KINDS if kind.unknown_chip}
_CHIP_ADVICE = "; this IREE does not know that chip: compile for another one"
# Names of exports as a module stores them: in declarations (`func @name(`), or as `name$async` for torch programs.
_EXPORTED_NAME = re.compile(rb"(?<=func @)[\w$.-]+(?=\()|(?<=\0)[\w.-]+(?=\$async\0)")


def name_culprit(command: Command, output: str, tool: str) -> str:
    """Return the name of what failed in a process with this output: the tool, or the call if there are several."""
    if not split_calls(command.argv):
        return tool
    if _ALL_CALLS in output:
        return "a repetition of the calls"
    names = _CURRENT_CALL.findall(output)
    return f"call {names[-1][1]} ({names[-1][0]})" if names else "the program that makes the calls"


def judge_process(
    step: Step, outcome: Outcome, lines: Sequence[str], *, tool: str, reason: str | None = None
) -> Result:
    """Return the result of a step whose process failed.

    Args:
        step: the step of the process.
        outcome: the exit code, the signal, and the limits that the process reached.
        lines: the standard error of the process.
        tool: the name of the tool, for messages.
        reason: the tool's error message; by default the first nonempty line of `lines`.
    """
    is_full = outcome.signal not in _CRASH_SIGNALS and is_disk_full(Path(step.folder), lines)
    lost_device = next((match[0] for line in (*lines, *outcome.tail) if (match := _DEVICE_LOST.search(line))), "")
    # The first error that applies is the reason. None of these errors is the fault of the product under test.
    errors = (
        (outcome.timed_out, f"ran longer than its {step.timeout:g} s and was ended with its children"),
        (is_full, "ran out of disk space; free some (see `doctor`) and run again"),
        (
            bool(lost_device),
            f"lost its device ({lost_device}): see dmesg, and whether `gauntlet devices` lists it again",
        ),
        (outcome.out_of_memory, f"hit its memory limit: {'; '.join(outcome.notes)}"),
        (outcome.signal == "SIGKILL", "was killed from outside, for lack of memory or by someone (see dmesg)"),
        (outcome.signal in EXTERNAL_SIGNALS, f"was ended from outside with {outcome.signal}"),
    )
    error = next((text for applies, text in errors if applies), "")
    if reason is None:
        reason = shorten(next((line for line in lines if line.strip()), ""))
    mistake = ""
    if not error and not outcome.signal:
        error = mistake = _describe_runner_mistake(step, lines) or _describe_mistake(
            step, "\n".join((*lines, *outcome.tail)), reason
        )
    failure = f"failed with exit code {outcome.exit_code}" + (f": {reason}" if reason else "")
    if outcome.signal:
        fatal_error = find_first_error(lines)
        failure = f"crashed with {outcome.signal}" + (f": {fatal_error}" if fatal_error else "")
    matches = (device_kind for line in lines for device_kind, pattern in _UNKNOWN_CHIP.items() if pattern.search(line))
    if device_kind := next(matches, None):
        failure += _CHIP_ADVICE + device_kind.chip_hint
    if not error and outcome.exit_code == _UNUSABLE_ARGUMENTS and step.command and split_calls(step.command.argv):
        error = mistake = failure
    exit_failure = next((kind for kind in _EXIT_FAILURES if kind in step.stage.row.failures), None)
    kind = None if error else FailureKind.CRASHES if outcome.signal else exit_failure
    return Result(
        Verdict.ERROR if error or outcome.signal else Verdict.FAILED,
        shorten(f"{tool} {error or failure}"),
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        timed_out=outcome.timed_out,
        tail=tuple(outcome.tail),
        notes=tuple(outcome.notes),
        failure=kind if exit_failure else None,
        is_mistake=bool(mistake),
    )


def _describe_runner_mistake(step: Step, lines: Sequence[str]) -> str:
    """Return why a runner does not run a tool; the text follows the tool's name; empty if its last line is no error."""
    line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    program, _, rest = line.partition(": ")
    names = [Path(word).name for word in step.command.runner] if step.command else []
    is_own = Path(program).name in names and not rest.startswith("warning: ")
    if not is_own and not (names and _MISSING_LIBRARY in line):
        return ""
    target = parse_target(step.target.partition("+")[0])
    return f"is not run: {line}; see [targets.{target.processor_name if target else step.target}].runner"


def _describe_mistake(step: Step, output: str, reason: str) -> str:
    """Explain an invalid or missing thing that the spec names; the text follows the tool's name; empty if none is."""
    if step.command and step.stage.row.runs_modules and (damage := _describe_unreadable(step.command)):
        return damage
    for pattern, text in _MISTAKES:
        if match := pattern.search(output):
            name = match[1] if match.lastindex else ""
            functions = _format_functions(step, name) if "{functions}" in text else ""
            see = f"see {step.origin.file}" + (f" and variant {step.origin.variant}" if step.origin.variant else "")
            return text.format(name=name, functions=functions, reason=reason, see=see)
    return ""


def _format_functions(step: Step, name: str) -> str:
    """Return a text with the exports found in a run's modules, and a suggestion for a misspelt name."""
    names: set[str] = set()
    for argument in step.command.argv if step.command else ():
        if step.command and argument.startswith("--module="):
            try:
                with (Path(step.command.cwd) / argument.partition("=")[2]).open("rb") as file:
                    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError):
                continue
            with content:
                names.update(match.decode() for match in _EXPORTED_NAME.findall(content))
    exports = sorted(names)
    return f", which has {list_first(exports, _MAX_NAMES)}{did_you_mean(name, exports)}" if exports else ""


def find_first_error(lines: Iterable[str]) -> str:
    """Return the first line with an error, without the path and `error:` before it; empty if there is none."""
    for line in lines:
        match = _ERROR_LINE.search(line)
        if match:
            return shorten(line[match.end() :].strip())
    return ""


def find_tuning_spec_error(lines: Sequence[str]) -> str:
    """Return the error in a tuning spec that the compiler could not load, with its file and line; empty without one."""
    files = tuple(f"{match[1]}:" for line in lines if (match := _TUNING_SPEC_FAILURE.search(line)))
    error_line = next((line for line in lines if files and line.startswith(files) and _ERROR_LINE.search(line)), "")
    return shorten(f"the tuning spec cannot be loaded: {error_line}") if error_line else ""


def apply_expectation(step: Step, result: Result, *, allow_xpass: bool) -> Result:
    """Convert the verdict of a step that is expected to fail; other steps keep theirs.

    The expectation names kinds of failure, and perhaps a text. Other failures keep their verdict, as do errors that the
    product under test did not cause, such as a time-out or a missing file or function. A pass is unexpected and fails
    the run unless `allow_xpass`.
    """
    if not step.expect_failure:
        return result
    expectation = shorten(step.expect_failure)
    if result.verdict is Verdict.PASSED:
        if allow_xpass:
            return replace(result, notes=(*result.notes, f"passed although expected to fail: {expectation}"))
        reason = f"passed, but is expected to fail: {expectation}; remove the expectation"
        return replace(result, verdict=Verdict.XPASSED, reason=reason)
    if result.failure is None:
        return result
    if result.failure in step.expect_kinds and step.expect_match in f"{result.reason}\n{result.said}":
        reason = f"{result.reason}; {result.failure}, expected: {expectation}"
        return replace(result, verdict=Verdict.XFAILED, reason=reason)
    expected_kinds = " or ".join(step.expect_kinds)
    if step.expect_match:
        expected_kinds += f" with {shorten(step.expect_match)!r} in the reason or the output"
    reason = (
        f"{result.reason}; {result.failure}, but expected is: {expected_kinds} ({step.expect_origin or expectation})"
    )
    return replace(result, reason=f"{reason}; if this is expected, say so there")


def judge_attempts(attempts: Sequence[Result]) -> Result:
    """Return the result of a step from all its attempts: the last one if it passed, otherwise the first."""
    if len(attempts) == 1:
        return attempts[0]
    result, last = attempts[0], attempts[-1]
    if last.verdict.counts_as_pass:
        reason = f"passed in attempt {len(attempts)}, after this in attempt 1: {result.reason}"
        result = replace(last, verdict=Verdict.FLAKY, reason=shorten(reason), failure=result.failure)
    return replace(
        result,
        cpu_seconds=sum(attempt.cpu_seconds for attempt in attempts),
        tool_seconds=sum(attempt.tool_seconds for attempt in attempts),
        seconds=round(sum(attempt.seconds for attempt in attempts), 6),
        waited_seconds=round(sum(attempt.waited_seconds for attempt in attempts), 3),
        peak_rss_bytes=max(attempt.peak_rss_bytes for attempt in attempts),
        attempts=tuple(attempts),
    )


def apply_quarantine(step: Step, result: Result, day: date) -> Result:
    """Excuse a failure of a step in quarantine; mistakes in the spec and missing files are never excused."""
    quarantine = step.quarantine
    is_failure = result.verdict in (Verdict.FAILED, Verdict.FLAKY, Verdict.INCONCLUSIVE) or result.can_differ
    if quarantine is None or not is_failure or not quarantine.applies_on(day):
        return result
    reason = f"{result.reason}; in quarantine until {quarantine.until}: {shorten(quarantine.reason)}"
    return replace(result, verdict=Verdict.QUARANTINED, reason=reason)


def list_values(command: Command, flag: str) -> list[str]:
    """Return the values of all occurrences of a flag in a command; `flag` ends with `=`."""
    return [word.removeprefix(flag) for word in command.argv if word.startswith(flag)]


def require_whole_files(command: Command) -> None:
    """Raise an error if a command would read only the beginning of a file, since the tools ignore the rest silently.

    Raises:
        UnreadError: a file has more content than the command reads.
    """
    # These import NumPy.
    from iree_gauntlet.measuring.numerics.arrays import UnreadError, read_arguments  # noqa: PLC0415

    for flag in (_INPUT_FLAG, GOLDEN_FLAG):
        try:
            values = list_values(command, flag)
            # A file name is the whole value, or follows the type and `=`.
            file_values = [
                text
                for text in values
                if text.startswith(_FILE_MARKS) or text.partition("=")[2].startswith(_FILE_MARKS)
            ]
            read_arguments(file_values, Path(command.cwd))
        except UnreadError:
            raise
        except GauntletError:
            # The tool itself reports files that cannot be read.
            continue


def _describe_unreadable(command: Command) -> str:
    """Describe a .npy file of a command that the tool cannot read; the text follows the tool's name; empty if none."""
    from iree_gauntlet.measuring.numerics.arrays import explain_refusal, read_arguments  # noqa: PLC0415 - it imports NumPy

    try:
        for flag in (_INPUT_FLAG, GOLDEN_FLAG):
            # A file that cannot be read here cannot be read by the tool either.
            arrays = [text for text in list_values(command, flag) if text.startswith(_FILE_MARKS)]
            read_arguments(arrays, Path(command.cwd))
            for path in (Path(command.cwd, text[1:]) for text in arrays):
                if reason := explain_refusal(path):
                    return f"cannot use {path}: {reason}; {NUMPY_ADVICE}"
    except GauntletError as error:
        return f"cannot use {error.message}; {error.hint or 'fetch or record this file again'}"
    return ""


@dataclass(frozen=True, slots=True)
class ProvenanceFile(Recorded):
    """A file that a provenance names, with the `data` files that belong to it; an inline value has no hash."""

    source: str
    sha256: str = ""
    data: tuple[ProvenanceFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportRecord(Recorded):
    """The program of a framework that a model was exported from; `path` is relative to the provenance."""

    source: str
    path: str = ""
    function: str = ""
    framework: str = ""


@dataclass(frozen=True, slots=True)
class GoldenProvenance(Recorded):
    """The recorded outputs in a folder, and the files that they were made from.

    Attributes:
        agrees_with: IREE's other way that computed the outputs; empty if a reference did.
    """

    outputs: tuple[ProvenanceFile, ...]
    made_by: str = ""
    agrees_with: str = ""
    optimisations: str = ""
    model: ProvenanceFile | None = None
    inputs: tuple[ProvenanceFile, ...] = ()
    exported_from: ExportRecord | None = None

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each output that has one, by the output's name."""
        return {file.source: file.sha256 for file in self.outputs if file.sha256}


def read_provenance(folder: Path) -> GoldenProvenance | None:
    """Return the provenance of the outputs in a folder; None if it is missing, or another tool wrote the file."""
    try:
        return GoldenProvenance.from_dict(read_json((folder / PROVENANCE_FILE).read_bytes()))
    except (OSError, ValueError):
        return None


def find_agreement(command: Command) -> str:
    """Return IREE's other way that computed a command's expected outputs; empty if they come from a reference."""
    for path, record in _list_recordings(command):
        if record.agrees_with and path.name in record.hashes:
            return record.agrees_with
    return ""


def _list_recordings(command: Command) -> Iterator[tuple[Path, GoldenProvenance]]:
    """Yield the files of a command's expected outputs that have a provenance."""
    for text in list_values(command, GOLDEN_FLAG):
        _, mark, name = text.partition("@")
        path = Path(command.cwd, name)
        if mark and path.is_file() and (record := read_provenance(path.parent)) is not None:
            yield path, record


def find_changed_goldens(command: Command) -> list[str]:
    """Return a text for each output and model file that has changed since the expected outputs were recorded."""
    changes: dict[str, None] = {}
    for path, record in _list_recordings(command):
        recorded_hash = record.hashes.get(path.name)
        if recorded_hash and hash_file(path) != recorded_hash:
            changes[f"{path.name} differs from what was recorded ({PROVENANCE_FILE} has another hash)"] = None
        model = record.model if recorded_hash else None
        for recorded_file in (model, *model.data) if model else ():
            file = path.parent / recorded_file.source
            if recorded_file.sha256 and file.is_file() and hash_file(file) != recorded_file.sha256:
                changes[f"{file.name} has changed since the expected outputs were recorded"] = None
    return list(changes)
