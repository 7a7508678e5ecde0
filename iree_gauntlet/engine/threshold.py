"""The threshold step: compares a model's outputs with the expected ones, and measures the error.

`iree-run-module` runs with the spec's flags, compares, and so decides the verdict. A second run of the same module
writes its outputs to files; from them the toolkit computes the error metrics of every output, by the tool's rule. A
note reports if the two verdicts differ.

Cases that ask for `numpy.allclose` run once and write their outputs; the toolkit compares, as no tool has that rule.
So do cases of several calls, which `workers/iree_side/run_calls.py` makes in one process, as no tool does.
"""

from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import Allclose, Verdict
from iree_gauntlet.engine.commands import REFERENCE_FLAGS, split_calls
from iree_gauntlet.engine.judging import (
    GOLDEN_FLAG,
    find_agreement,
    find_changed_goldens,
    judge_process,
    list_values,
    name_culprit,
    require_whole_files,
)
from iree_gauntlet.engine.processes.run_client import RunOutput  # noqa: TC001 - read by its type
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.measuring.code.emulated_crash import CrashPlace, make_crash_argv
from iree_gauntlet.measuring.code.module_code import list_module_bodies
from iree_gauntlet.measuring.goldens.goldens import check_figure, describe_check
from iree_gauntlet.measuring.numerics.arrays import (
    Tensor,
    get_storage_dtype,
    parse_tensor_type,
    read_arguments,
    read_npy,
    read_output,
    read_raw,
)
from iree_gauntlet.measuring.numerics.comparison import compare_allclose, compare_outputs
from iree_gauntlet.measuring.numerics.tolerances import parse_tolerances
from iree_gauntlet.recorded import Recorded, read_json
from iree_gauntlet.results import AGREES_WITH, OutputComparison, Result, shorten
from iree_gauntlet.stages import FailureKind
from iree_gauntlet.steps import ACTUAL_OUTPUT
from iree_gauntlet.system.short_process import TAIL_LINES
from iree_gauntlet.targets import split_vector_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.processes.run_client import RunJob, RunResponse
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.steps import Command, Step


_TOOL = "iree-run-module"
# The names of qemu's programs that run those of another architecture, and whose debugger finds a crash.
_EMULATOR_PREFIX = "qemu-"
_OUTPUT_FLAG = "--output="
# The tool prints the first when it calls a function, the second if all outputs match and none is missing or extra.
_CALL, _SUCCESS = "EXEC @", "[SUCCESS]"
# Matches complaints about a type or shape; a complaint "element at index" means that the type was right.
_TYPE_MISMATCH = re.compile(r"\[FAILED\] result\[(\d+)\]: (?!element at index)")
# A passed model that took longer than this is not run a second time for the error metrics.
_MAX_RERUN_SECONDS = 120.0


def check_threshold(step: Step, processes: Processes) -> Result:
    """Run a threshold step.

    Raises:
        GauntletError: the step's data cannot be used.
    """
    step = _use_reference(step)
    result = _compare(step, processes)
    if not split_vector_bits(step.target)[1]:
        return result
    paths = [Path(path) for _, path in step.outputs]
    files = [file for path in paths if (file := next(filter(Path.is_file, (path, path.with_suffix(".bin"))), None))]
    digest = hashlib.sha256("".join(map(hash_file, files)).encode()).hexdigest() if files else ""
    return replace(result, statistics={**result.statistics, "outputs_sha256": digest})


def _compare(step: Step, processes: Processes) -> Result:
    """Run a step and compare its outputs."""
    require_whole_files(step.required_command)
    if step.allclose is not None:
        return _check_allclose(step, step.allclose, processes)
    if calls := split_calls(step.required_command.argv):
        return _check_calls(step, calls, processes)
    outcome = processes.run(step)
    log = processes.log(step, "stdout.txt")
    passes = outcome.exit_code == 0
    output_lines = processes.stdout(step).splitlines()
    complaints = [line for line in output_lines if line.startswith("[FAILED]")]
    if not passes and not complaints:
        return processes.complete(step, outcome, _make_not_run_result(step, outcome, processes))
    prefix, missing_effect = (
        (_SUCCESS, "compared no output")
        if list_values(step.required_command, GOLDEN_FLAG)
        else (_CALL, "called no function")
    )
    if passes and not any(line.startswith(prefix) for line in output_lines):
        return processes.complete(step, outcome, _make_no_effect_result(step, missing_effect, processes))
    verdict = Verdict.PASSED if passes else Verdict.FAILED
    result = Result(verdict, notes=step.notes, log=log, tail=() if passes else tuple(outcome.tail))
    if not passes:
        reason = shorten(complaints[0].removeprefix("[FAILED] "))
        result = replace(result, reason=reason, failure=FailureKind.WRONG_NUMBERS)
    if step.outputs and not (passes and outcome.seconds > _MAX_RERUN_SECONDS):
        result = _add_metrics(step, processes, result, complaints)
    if way := find_agreement(step.required_command):
        # Agreement with IREE's other way is no proof, and either may be wrong.
        result = replace(result, statistics={**result.statistics, AGREES_WITH: way})
        note = f"agrees with {way}, which is no proof of right numbers: a fault of both is not seen"
        result = (
            replace(result, notes=(*result.notes, note))
            if result.verdict is not Verdict.FAILED
            else replace(result, reason=shorten(f"differs from {way}, one of the two is wrong: {result.reason}"))
        )
    if changed_goldens := "" if passes else "; ".join(find_changed_goldens(step.required_command)):
        advice = f"`gauntlet golden.record --model {step.model}` records them again"
        result = replace(result, reason=shorten(f"{changed_goldens}; {advice}; {result.reason}"))
    return processes.complete(step, outcome, result)


def compare_error_with_baseline(step: Step, result: Result) -> Result:
    """Compare the error in a threshold step's result with the error of a baseline run, if any; return the result."""
    if not step.goldens or result.verdict is not Verdict.PASSED:
        return result
    error = result.max_abs_error
    if error is None:
        note = f"its error is not compared with {step.goldens[0].origin.file}: no output was compared value by value"
        return replace(result, notes=(*result.notes, note))
    check = check_figure(Figure.ERROR, error, step.goldens, "")
    result = replace(result, checks=(check,))
    if check.passed is not False:
        return result
    return replace(
        result, verdict=Verdict.FAILED, reason=shorten(describe_check(check)), failure=FailureKind.WRONG_NUMBERS
    )


def _make_not_run_result(step: Step, outcome: Outcome, processes: Processes) -> Result:
    """Return the result of a run that failed before it compared anything."""
    lines = processes.error_lines(step)
    tool = name_culprit(step.required_command, processes.stdout(step), _TOOL)
    result = judge_process(step, outcome, lines, tool=tool, reason=_format_status_line(lines))
    if outcome.signal and result.failure is FailureKind.CRASHES:
        result = replace(result, reason=shorten(f"{result.reason}{_locate_crash(step, processes)}"))
    return replace(result, log=processes.log(step), notes=(*step.notes, *result.notes))


def _locate_crash(step: Step, processes: Processes) -> str:
    """Return the instruction and the dispatch at which an emulated program crashes; empty if they are not found."""
    command, output = step.required_command, Path(step.folder) / "crash.json"
    if not command.runner or not Path(command.runner[0]).name.startswith(_EMULATOR_PREFIX):
        return ""
    output.unlink(missing_ok=True)
    argv = make_crash_argv(sys.executable, command.words, output)
    processes.run(step, replace(command, argv=argv, runner=()), name="crash.")
    try:
        crash = CrashPlace.from_dict(read_json(output.read_bytes()))
    except (OSError, ValueError):
        return ""
    modules = [Path(text) for text in list_values(command, "--module=")]
    dispatch = crash.find_function([entry for module in modules for entry in list_module_bodies(module)])
    instruction = f", instruction {crash.instruction}" if crash.instruction else ""
    return f" at {crash.address:#x}{instruction}" + (f", in dispatch {dispatch}" if dispatch else "")


def _make_no_effect_result(step: Step, missing_effect: str, processes: Processes) -> Result:
    """Return the result of a run that exited with 0 without doing its work."""
    reason = f"{_TOOL} {missing_effect} and ended with exit code 0: see the flags of {step.origin.file}"
    lines = processes.stdout(step).splitlines()[:TAIL_LINES]
    log = processes.log(step, "stdout.txt")
    return Result(Verdict.ERROR, shorten(reason), tail=tuple(lines), notes=step.notes, log=log, is_mistake=True)


def _check_allclose(step: Step, allclose: Allclose, processes: Processes) -> Result:
    """Run the module, write its outputs to files, and compare them by NumPy's rule."""
    try:
        expected_tensors = [tensor and tensor.with_known_type() for tensor in _list_expected(step.required_command)]
        command, paths = _make_output_command(step, expected_tensors)
        # The journal shows the command that is actually run.
        step = replace(step, command=command)
        outcome = processes.run(step)
        if outcome.exit_code != 0:
            return processes.complete(step, outcome, _make_not_run_result(step, outcome, processes))
        if not all(path.is_file() for path in paths):
            return processes.complete(step, outcome, _make_no_effect_result(step, "kept no output", processes))
        actual = [_read(path, tensor, type_mismatch=True) for path, tensor in zip(paths, expected_tensors, strict=True)]
    except GauntletError as error:
        notes = (*step.notes, *filter(None, [error.hint]))
        return Result(Verdict.ERROR, shorten(error.message), command=processes.format_command(step), notes=notes)
    comparisons = compare_allclose(actual, expected_tensors, allclose)
    warnings = _list_zero_warnings(expected_tensors, lambda _: (allclose.atol, allclose.rtol))
    return processes.complete(step, outcome, _make_compared_result(step, comparisons, warnings, processes))


def _make_compared_result(
    step: Step, comparisons: Sequence[OutputComparison], warnings: Iterable[str], processes: Processes
) -> Result:
    """Return the result of a run whose outputs were compared here; `warnings` are notes if all of them pass."""
    complaints = _list_complaints(comparisons)
    return Result(
        Verdict.FAILED if complaints else Verdict.PASSED,
        shorten(complaints[0]) if complaints else "",
        outputs=tuple(comparisons),
        notes=(*step.notes, *(() if complaints else warnings)),
        log=processes.log(step, "stdout.txt"),
        failure=FailureKind.WRONG_NUMBERS if complaints else None,
    )


@dataclass(frozen=True, slots=True)
class _CallRecord(Recorded):
    """The worker's record of a call that has ended; `changed` are the earlier outputs that have other values since."""

    function: str
    outputs: tuple[RunOutput, ...]
    changed: tuple[tuple[int, int], ...]


def _check_calls(step: Step, calls: Sequence[Sequence[str]], processes: Processes) -> Result:
    """Make several calls in one process, which writes their outputs to files, and compare these."""
    record_file = Path(step.folder) / "calls.jsonl"
    record_file.unlink(missing_ok=True)
    outcome = processes.run(step)
    try:
        text = record_file.read_text(encoding="utf-8") if record_file.is_file() else ""
        # The last line may be incomplete if the process was ended while it wrote.
        lines = text[: text.rfind("\n") + 1].splitlines()
        records = [_CallRecord.from_dict(read_json(line.encode())) for line in lines]
        expected = [_list_expected(step.required_command, call) for call in calls]
        comparisons = _compare_calls(step, records, expected)
    except (GauntletError, ValueError, OSError) as error:
        message = error.message if isinstance(error, GauntletError) else str(error)
        return Result(Verdict.ERROR, shorten(message), command=processes.format_command(step), notes=step.notes)
    if len(records) < len(calls) or outcome.exit_code not in (0, 1):
        result = _make_not_run_result(step, outcome, processes)
        notes = (*result.notes, *(f"before that: {complaint}" for complaint in _list_complaints(comparisons)))
        return processes.complete(step, outcome, replace(result, outputs=tuple(comparisons), notes=notes))
    get_limits = parse_tolerances(step.required_command.argv).get_limits
    warnings = (
        f"call {number} ({record.function}), {warning}"
        for number, (record, tensors) in enumerate(zip(records, expected, strict=True))
        for warning in _list_zero_warnings(tensors, get_limits)
    )
    return processes.complete(step, outcome, _make_compared_result(step, comparisons, warnings, processes))


def _compare_calls(
    step: Step, records: Sequence[_CallRecord], expected: Sequence[Sequence[Tensor | None]]
) -> list[OutputComparison]:
    """Compare the outputs of the calls that have ended; an output that a later call changed does not pass."""
    tolerances = parse_tolerances(step.required_command.argv)
    comparisons: dict[tuple[int, int], OutputComparison] = {}
    for number, (record, tensors) in enumerate(zip(records, expected, strict=False)):
        actual = [_read_server_output(output) for output in record.outputs if output.type] if tensors else []
        for comparison in compare_outputs(actual, tensors, tolerances):
            comparisons[number, comparison.index] = replace(comparison, call=number, function=record.function)
    for number, record in enumerate(records):
        for call, index in record.changed:
            comparisons[call, index] = OutputComparison(
                index,
                records[call].outputs[index].type,
                f"changed in place by call {number} ({record.function})",
                passed=False,
                call=call,
                function=records[call].function,
            )
    return [comparisons[place] for place in sorted(comparisons)]


def judge_mismatch(step: Step, job: RunJob, response: RunResponse, processes: Processes, result: Result) -> Result:
    """Return the result of a case in which a run server found wrong outputs, with error metrics for each output."""
    result = replace(result, verdict=Verdict.FAILED, failure=FailureKind.WRONG_NUMBERS)
    try:
        expected_tensors = read_arguments(job.expected, Path(job.cwd))
        actual = [_read_server_output(record) for record in response.outputs if record.type]
        tolerances = parse_tolerances(step.required_command.argv)
    except (GauntletError, OSError) as error:
        message = error.message if isinstance(error, GauntletError) else str(error)
        mismatch = next(record for record in response.outputs if not record.passed)
        reason = f"output {mismatch.index}: not as expected"
        return replace(result, reason=reason, notes=(*result.notes, f"no figures: {message}"))
    if step.allclose is None:
        comparisons = compare_outputs(actual, expected_tensors, tolerances)
    else:
        comparisons = compare_allclose(actual, expected_tensors, step.allclose)
    complaints = _list_complaints(comparisons)
    if not complaints:
        note = "the two comparisons of these outputs disagree: report this as a bug in the toolkit"
        result = replace(result, notes=(*result.notes, note))
    lines = [f"[FAILED] {complaint}" for complaint in complaints]
    return replace(
        result,
        reason=shorten(complaints[0]) if complaints else "an output is not as expected",
        outputs=tuple(comparisons),
        tail=tuple(lines),
        log=result.log or processes.write_log(step, "stdout.txt", lines),
    )


def _read_server_output(record: RunOutput) -> Tensor:
    """Read an output of a run server; an output without a file becomes a tensor with a type and no values."""
    tensor_type = parse_tensor_type(record.type)
    path = Path(record.file)
    if not record.file:
        empty = np.empty(0, get_storage_dtype(tensor_type.element_type))
        return Tensor(tensor_type.element_type, tensor_type.shape, empty)
    if path.suffix == ".npy":
        return read_npy(path).with_element_type(tensor_type.element_type)
    return read_raw(path, tensor_type)


def _find_type_mismatches(complaints: Sequence[str]) -> frozenset[int]:
    """Return the indices of the outputs whose type or shape the tool found wrong."""
    return frozenset(int(match[1]) for line in complaints if (match := _TYPE_MISMATCH.match(line)))


def _add_metrics(step: Step, processes: Processes, result: Result, complaints: Sequence[str]) -> Result:
    """Run again and add error metrics of the outputs; `complaints` are the tool's messages about the first run."""
    try:
        expected_tensors = _list_expected(step.required_command)
        tolerances = parse_tolerances(step.required_command.argv)
    except GauntletError as error:
        return replace(result, notes=(*result.notes, f"no figures: {error.message}"))
    command, paths = _make_output_command(step, expected_tensors)
    outcome = processes.run(step, command, name="outputs.")
    result = replace(
        result,
        tool_seconds=result.tool_seconds + outcome.seconds,
        cpu_seconds=result.cpu_seconds + outcome.cpu_seconds,
        peak_rss_bytes=max(result.peak_rss_bytes, outcome.peak_rss_bytes),
    )
    if outcome.exit_code != 0:
        status = _format_status_line(processes.error_lines(step, "outputs."))
        note = shorten(f"no figures: the run that keeps the outputs failed: {status}")
        return replace(result, notes=(*result.notes, note))
    other_types = _find_type_mismatches(complaints)
    try:
        actual = [
            _read(path, tensor, type_mismatch=index in other_types)
            for index, (path, tensor) in enumerate(zip(paths, expected_tensors, strict=True))
        ]
    except GauntletError as error:
        return replace(result, notes=(*result.notes, f"no figures: {error.message}"))
    comparisons = compare_outputs(actual, expected_tensors, tolerances)
    result = replace(result, outputs=tuple(comparisons))
    errors = _list_complaints(comparisons)
    if bool(errors) == (result.verdict is Verdict.PASSED):
        note = (
            "a second run of the same module gives a different verdict from the first: its results are not "
            "deterministic, or near the tolerance"
        )
        return replace(result, notes=(*result.notes, note))
    if not errors:
        result = replace(result, notes=(*result.notes, *_list_zero_warnings(expected_tensors, tolerances.get_limits)))
    arrays = [tensor.array for tensor in expected_tensors if tensor is not None and tensor.array.size]
    has_several_values = sum(array.size for array in arrays) > len(arrays)
    if not errors and has_several_values and all((array == array.flat[0]).all() for array in arrays):
        note = "every expected value is the same: a model that always gives it would pass; choose other inputs"
        return replace(result, notes=(*result.notes, note))
    return replace(result, reason=shorten(errors[0])) if errors else result


def _list_zero_warnings(
    expected_tensors: Sequence[Tensor | None], get_limits: Callable[[str], tuple[float, float]]
) -> Iterator[str]:
    """Yield a note for each output that is not all zero, but for which all zeros would pass; limits: (atol, rtol)."""
    for index, tensor in enumerate(expected_tensors):
        if tensor is None or tensor.array.dtype.kind == "c" or tensor.has_unknown_type:
            continue
        atol, rtol = get_limits(tensor.element_type)
        sizes = np.abs(tensor.array.astype(np.float64))
        if sizes.any() and (sizes <= atol + rtol * sizes).all():
            yield f"output {index}: zeros would pass: no value exceeds {sizes.max():.3g}, and the tolerance is larger"


def _list_complaints(comparisons: Sequence[OutputComparison]) -> list[str]:
    """Return a message for each output that is not as expected."""
    return [f"{comparison.label}: {comparison.message}" for comparison in comparisons if not comparison.passed]


def _list_expected(command: Command, argv: Sequence[str] = ()) -> list[Tensor | None]:
    """Return the expected outputs of a command, or only those of some of its arguments."""
    values = list_values(replace(command, argv=tuple(argv) or command.argv), GOLDEN_FLAG)
    return read_arguments(values, Path(command.cwd))


def _make_output_command(step: Step, expected_tensors: Sequence[Tensor | None]) -> tuple[Command, list[Path]]:
    """Return a command that writes the outputs to files, and their paths; types that .npy lacks become raw bytes.

    Remove the outputs of an earlier attempt, which could be mistaken for outputs of this attempt.
    """
    paths = []
    for tensor, (_, path) in zip(expected_tensors, step.outputs, strict=True):
        is_npy_type = tensor is None or tensor.array.dtype.kind in "fiub"
        paths.append(Path(path) if is_npy_type else Path(path).with_suffix(".bin"))
        paths[-1].unlink(missing_ok=True)
    flags = [flag for flag in step.required_command.argv if not flag.startswith((GOLDEN_FLAG, _OUTPUT_FLAG))]
    return replace(step.required_command, argv=(*flags, *(f"{_OUTPUT_FLAG}@{path}" for path in paths))), paths


def _read(path: Path, golden: Tensor | None, *, type_mismatch: bool) -> Tensor:
    if path.suffix == ".bin" and golden is not None:
        return read_output(path, golden.type)
    tensor = read_output(path)
    if golden is None or type_mismatch or tensor.element_type != golden.element_type.removeprefix("s"):
        return tensor
    # A .npy does not distinguish i64 from si64, but the tool does. So unless the tool reported a mismatch, take the
    # golden's signedness.
    return tensor.with_element_type(golden.element_type)


def _format_status_line(lines: Sequence[str]) -> str:
    """Return the status and its reason from IREE's error `path.c:1: INVALID_ARGUMENT; reason; …`, or else a line."""
    for line in lines:
        parts = [part.strip() for part in line.split(";")]
        if len(parts) > 1 and ".c" in parts[0]:
            return shorten("; ".join(parts[1:3]))
    return shorten(next((line for line in lines if line.strip()), ""))


def _use_reference(step: Step) -> Step:
    """Unpack a step's reference, if any, into its folder; return the step with the flags of the flagfile inserted."""
    archive = next((step_input.path for step_input in step.inputs if step_input.role == "reference"), "")
    if not archive or step.command is None:
        return step
    folder = Path(step.folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(archive) as members:
            members.extractall(folder)
        flags = (folder / REFERENCE_FLAGS.partition("=")[2]).read_text(encoding="utf-8").splitlines()
    except (OSError, zipfile.BadZipFile) as error:
        raise GauntletError(f"{archive} cannot be unpacked: {error}", "Run again with --force-recompile.") from error
    position = step.command.argv.index(REFERENCE_FLAGS)
    argv = (*step.command.argv[:position], *flags, *step.command.argv[position + 1 :])
    count = sum(flag.startswith(GOLDEN_FLAG) for flag in flags)
    outputs = tuple((ACTUAL_OUTPUT, f"{folder}/actual_{index}.npy") for index in range(count))
    return replace(step, command=replace(step.command, argv=argv), outputs=outputs)
