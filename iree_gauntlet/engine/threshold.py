"""The threshold step: does a model give the expected numbers, and if not, by how much.

The verdict is the tool's: `iree-run-module` runs with the spec's flags and compares. A second run of the same
module keeps its outputs, so that the figures of every output can be reported; they are compared here by the
same rule; where the two verdicts differ, a note says so.

Cases that say `numpy.allclose` are run once, with their outputs kept, and compared here: no tool has that rule.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.cases import Allclose, Verdict
from iree_gauntlet.engine.commands import REFERENCE_FLAGS
from iree_gauntlet.engine.judging import EXPECTED, find_changed_goldens, judge_process, require_whole_files, values_of
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.measuring.goldens.goldens import check_figure, describe
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
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.stages import FailureKind
from iree_gauntlet.steps import ACTUAL_OUTPUT
from iree_gauntlet.system.short_process import TAIL_LINES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.processes.run_client import RunAnswer, RunJob, RunOutput
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.results import OutputComparison
    from iree_gauntlet.steps import Command, Step


_TOOL = "iree-run-module"
_OUTPUT = "--output="
# How the tool says that it calls a function, and that all outputs of it are as expected, as many as there are.
_RAN, _JUDGED = "EXEC @", "[SUCCESS]"
# Of another type or shape; of one whose values differ, the type is the expected one.
_OTHER_TYPE = re.compile(r"\[FAILED\] result\[(\d+)\]: (?!element at index)")
# A model that passed and whose run takes longer is not run again for its figures.
_LONG_RUN_SECONDS = 120.0


def check_threshold(step: Step, processes: Processes) -> Result:
    """Runs a threshold step.

    Raises:
        GauntletError: its data cannot be used as they are.
    """
    step = _with_reference(step)
    require_whole_files(step.process)
    if step.allclose is not None:
        return _check_allclose(step, step.allclose, processes)
    outcome = processes.run(step)
    log = processes.log(step, "stdout.txt")
    passed = outcome.exit_code == 0
    said = processes.stdout(step).splitlines()
    complaints = [line for line in said if line.startswith("[FAILED]")]
    if not passed and not complaints:
        return processes.complete(step, outcome, _make_not_run_result(step, outcome, processes))
    mark, missed = (
        (_JUDGED, "compared no output") if values_of(step.process, EXPECTED) else (_RAN, "called no function")
    )
    if passed and not any(line.startswith(mark) for line in said):
        return processes.complete(step, outcome, _make_idle_result(step, missed, processes))
    verdict = Verdict.PASSED if passed else Verdict.FAILED
    result = Result(verdict, notes=step.notes, log=log, tail=() if passed else tuple(outcome.tail))
    if not passed:
        reason = shorten(complaints[0].removeprefix("[FAILED] "))
        result = replace(result, reason=reason, failure=FailureKind.WRONG_NUMBERS)
    if step.outputs and not (passed and outcome.seconds > _LONG_RUN_SECONDS):
        result = _with_figures(step, processes, result, complaints)
    if changed := "" if passed else "; ".join(find_changed_goldens(step.process)):
        advice = f"`gauntlet golden.record --model {step.model}` records them again"
        result = replace(result, reason=shorten(f"{changed}; {advice}; {result.reason}"))
    return processes.complete(step, outcome, result)


def check_error(step: Step, result: Result) -> Result:
    """The result of a threshold step, with its error held against that of an earlier run where it has one."""
    if not step.goldens or result.verdict is not Verdict.PASSED:
        return result
    error = result.max_abs_error
    if error is None:
        note = f"its error is not held against {step.goldens[0].origin.file}: no output was compared value by value"
        return replace(result, notes=(*result.notes, note))
    check = check_figure(Figure.ERROR, error, step.goldens, "")
    result = replace(result, checks=(check,))
    if check.passed is not False:
        return result
    return replace(result, verdict=Verdict.FAILED, reason=shorten(describe(check)), failure=FailureKind.WRONG_NUMBERS)


def _make_not_run_result(step: Step, outcome: Outcome, processes: Processes) -> Result:
    """The result of a run that did not finish."""
    lines = processes.error_lines(step)
    result = judge_process(step, outcome, lines, tool=_TOOL, reason=_format_status_line(lines))
    return replace(result, log=processes.log(step), notes=(*step.notes, *result.notes))


def _make_idle_result(step: Step, missed: str, processes: Processes) -> Result:
    """The result of a run that ended well and did not do what it was for."""
    reason = f"{_TOOL} {missed} and ended with exit code 0: see the flags of {step.origin.file}"
    said = processes.stdout(step).splitlines()[:TAIL_LINES]
    return Result(
        Verdict.ERROR, shorten(reason), tail=tuple(said), notes=step.notes, log=processes.log(step, "stdout.txt")
    )


def _check_allclose(step: Step, allclose: Allclose, processes: Processes) -> Result:
    """Runs with the outputs kept, and compares them by NumPy's rule."""
    try:
        expected = [item and item.with_known_type() for item in _list_expected(step.process)]
        keeping, paths = _keep_outputs(step, expected)
        # What is run is what the journal says.
        step = replace(step, command=keeping)
        outcome = processes.run(step)
        if outcome.exit_code != 0:
            return processes.complete(step, outcome, _make_not_run_result(step, outcome, processes))
        if not all(path.is_file() for path in paths):
            return processes.complete(step, outcome, _make_idle_result(step, "kept no output", processes))
        actual = [_read(path, tensor, complained=True) for path, tensor in zip(paths, expected, strict=True)]
    except GauntletError as error:
        notes = (*step.notes, *filter(None, [error.hint]))
        return Result(Verdict.ERROR, shorten(error.what), command=processes.typed(step), notes=notes)
    comparisons = compare_allclose(actual, expected, allclose)
    complaints = _list_complaints(comparisons)
    result = Result(
        Verdict.FAILED if complaints else Verdict.PASSED,
        shorten(complaints[0]) if complaints else "",
        outputs=tuple(comparisons),
        notes=(
            *step.notes,
            *(() if complaints else _list_vanishing(expected, lambda _: (allclose.atol, allclose.rtol))),
        ),
        log=processes.log(step, "stdout.txt"),
        failure=FailureKind.WRONG_NUMBERS if complaints else None,
    )
    return processes.complete(step, outcome, result)


def make_mismatch_result(step: Step, job: RunJob, answer: RunAnswer, processes: Processes, result: Result) -> Result:
    """The result of a case whose outputs are not as expected, with the figures of each from what a run server kept."""
    result = replace(result, verdict=Verdict.FAILED, failure=FailureKind.WRONG_NUMBERS)
    try:
        expected = read_arguments(job.expected, Path(job.cwd))
        actual = [_read_kept_output(record) for record in answer.outputs if record.type]
        tolerances = parse_tolerances(step.process.argv)
    except (GauntletError, OSError) as error:
        what = error.what if isinstance(error, GauntletError) else str(error)
        first = next(record for record in answer.outputs if not record.passed)
        reason = f"output {first.index}: not as expected"
        return replace(result, reason=reason, notes=(*result.notes, f"no figures: {what}"))
    if step.allclose is None:
        comparisons = compare_outputs(actual, expected, tolerances)
    else:
        comparisons = compare_allclose(actual, expected, step.allclose)
    complaints = _list_complaints(comparisons)
    if not complaints:
        note = "the two comparisons of these outputs do not agree: report this as a fault of the toolkit"
        result = replace(result, notes=(*result.notes, note))
    lines = [f"[FAILED] {complaint}" for complaint in complaints]
    return replace(
        result,
        reason=shorten(complaints[0]) if complaints else "an output is not as expected",
        outputs=tuple(comparisons),
        tail=tuple(lines),
        log=result.log or processes.write_log(step, "stdout.txt", lines),
    )


def _read_kept_output(record: RunOutput) -> Tensor:
    """An output that a server has written; one that it had no place for has its type alone."""
    tensor_type = parse_tensor_type(record.type)
    path = Path(record.file)
    if not record.file:
        empty = np.empty(0, get_storage_dtype(tensor_type.element_type))
        return Tensor(tensor_type.element_type, tensor_type.shape, empty)
    if path.suffix == ".npy":
        return read_npy(path).with_element_type(tensor_type.element_type)
    return read_raw(path, tensor_type)


def _find_other_types(complaints: Sequence[str]) -> frozenset[int]:
    """Indices of the outputs whose type or shape the tool found wrong."""
    return frozenset(int(match[1]) for line in complaints if (match := _OTHER_TYPE.match(line)))


def _with_figures(step: Step, processes: Processes, result: Result, complaints: Sequence[str]) -> Result:
    """Runs again with the outputs kept, and compares them here; of the first run the tool has complained so."""
    try:
        expected = _list_expected(step.process)
        tolerances = parse_tolerances(step.process.argv)
    except GauntletError as error:
        return replace(result, notes=(*result.notes, f"no figures: {error.what}"))
    keeping, paths = _keep_outputs(step, expected)
    outcome = processes.run(step, keeping, name="outputs.")
    result = replace(
        result,
        tool_seconds=result.tool_seconds + outcome.seconds,
        cpu_seconds=result.cpu_seconds + outcome.cpu_seconds,
        peak_rss_bytes=max(result.peak_rss_bytes, outcome.peak_rss_bytes),
    )
    if outcome.exit_code != 0:
        why = _format_status_line(processes.error_lines(step, "outputs."))
        note = shorten(f"no figures: the run that keeps the outputs failed: {why}")
        return replace(result, notes=(*result.notes, note))
    other_types = _find_other_types(complaints)
    try:
        actual = [
            _read(path, tensor, complained=index in other_types)
            for index, (path, tensor) in enumerate(zip(paths, expected, strict=True))
        ]
    except GauntletError as error:
        return replace(result, notes=(*result.notes, f"no figures: {error.what}"))
    comparisons = compare_outputs(actual, expected, tolerances)
    result = replace(result, outputs=tuple(comparisons))
    found = _list_complaints(comparisons)
    if bool(found) == (result.verdict is Verdict.PASSED):
        note = (
            "a second run of the same module gives another verdict than the first: its results are not "
            "deterministic, or near the tolerance"
        )
        return replace(result, notes=(*result.notes, note))
    if not found:
        result = replace(result, notes=(*result.notes, *_list_vanishing(expected, tolerances.effective)))
    arrays = [tensor.array for tensor in expected if tensor is not None and tensor.array.size]
    several = sum(array.size for array in arrays) > len(arrays)
    if not found and several and all((array == array.flat[0]).all() for array in arrays):
        note = "every expected value is the same: a model that always gives it would pass; choose other inputs"
        return replace(result, notes=(*result.notes, note))
    return replace(result, reason=shorten(found[0])) if found else result


def _list_vanishing(
    expected: Sequence[Tensor | None], limits_of: Callable[[str], tuple[float, float]]
) -> Iterator[str]:
    """A note for each output that is not zero and in place of which zeros would pass; limits are (atol, rtol)."""
    for index, tensor in enumerate(expected):
        if tensor is None or tensor.array.dtype.kind == "c" or tensor.lacks_meaning:
            continue
        atol, rtol = limits_of(tensor.element_type)
        sizes = np.abs(tensor.array.astype(np.float64))
        if sizes.any() and (sizes <= atol + rtol * sizes).all():
            yield f"output {index}: zeros would pass: no value exceeds {sizes.max():.3g}, and the tolerance is larger"


def _list_complaints(comparisons: Sequence[OutputComparison]) -> list[str]:
    """What there is to say of each output that is not as expected."""
    return [f"output {item.index}: {item.message}" for item in comparisons if not item.passed]


def _list_expected(command: Command) -> list[Tensor | None]:
    return read_arguments(values_of(command, EXPECTED), Path(command.cwd))


def _keep_outputs(step: Step, expected: Sequence[Tensor | None]) -> tuple[Command, list[Path]]:
    """The command with its outputs kept in place of compared, and where: raw bytes for types that no .npy can hold.

    What an earlier attempt has left there is removed: it must not be taken for what this one gives.
    """
    paths = []
    for tensor, (_, path) in zip(expected, step.outputs, strict=True):
        plain = tensor is None or tensor.array.dtype.kind in "fiub"
        paths.append(Path(path) if plain else Path(path).with_suffix(".bin"))
        paths[-1].unlink(missing_ok=True)
    kept = [flag for flag in step.process.argv if not flag.startswith((EXPECTED, _OUTPUT))]
    return replace(step.process, argv=(*kept, *(f"{_OUTPUT}@{path}" for path in paths))), paths


def _read(path: Path, expected: Tensor | None, *, complained: bool) -> Tensor:
    if path.suffix == ".bin" and expected is not None:
        return read_output(path, expected.type)
    tensor = read_output(path)
    if expected is None or complained or tensor.element_type != expected.element_type.removeprefix("s"):
        return tensor
    # A .npy does not tell i64 from si64. An output that hands an input through keeps the input's type: where the
    # tool did not complain of the type, the two were the same.
    return tensor.with_element_type(expected.element_type)


def _format_status_line(lines: Sequence[str]) -> str:
    """IREE's status in an error's text: `…; INVALID_ARGUMENT; why; while …` without the source path."""
    for line in lines:
        parts = [part.strip() for part in line.split(";")]
        if len(parts) > 1 and ".c" in parts[0]:
            return shorten("; ".join(parts[1:3]))
    return shorten(next((line for line in lines if line.strip()), ""))


def _with_reference(step: Step) -> Step:
    """A threshold step with its reference, if any, unpacked in its folder, and the flagfile's flags in its place."""
    archive = next((item.path for item in step.inputs if item.role == "reference"), "")
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
    place = step.command.argv.index(REFERENCE_FLAGS)
    argv = (*step.command.argv[:place], *flags, *step.command.argv[place + 1 :])
    count = sum(flag.startswith(EXPECTED) for flag in flags)
    outputs = tuple((ACTUAL_OUTPUT, f"{folder}/actual_{index}.npy") for index in range(count))
    return replace(step, command=replace(step.command, argv=argv), outputs=outputs)
