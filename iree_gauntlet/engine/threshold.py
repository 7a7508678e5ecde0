"""The threshold step: does a model give the expected numbers, and if not, by how much.

The verdict is the tool's: `iree-run-module` runs with the spec's flags and compares. A second run of the same
module keeps its outputs, so that the figures of every output can be reported; they are compared here by the
same rule, and the two verdicts must agree.

Cases that say `numpy.allclose` are run once, with their outputs kept, and compared here: no tool has that rule.
"""

from __future__ import annotations

import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Allclose, Metric, Verdict
from iree_gauntlet.engine.allclose import compare_allclose, with_known_type
from iree_gauntlet.engine.commands import REFERENCE_FLAGS
from iree_gauntlet.engine.judging import after_process
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.goldens.goldens import check_figure, describe
from iree_gauntlet.measuring.numerics.arrays import Tensor, read_arguments, read_output
from iree_gauntlet.measuring.numerics.comparison import compare_outputs
from iree_gauntlet.measuring.numerics.tolerances import parse_tolerances
from iree_gauntlet.results import Result, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.steps import Command, Step


_TOOL = "iree-run-module"
_INPUT = "--input="
_EXPECTED = "--expected_output="
# How a .npy is named behind these: opened, read on, or read to its end.
_NPY = ("@", "+", "*")
_OUTPUT = "--output="
# Of another type or shape; of one whose values differ, the type is the expected one.
_OTHER_TYPE = re.compile(r"\[FAILED\] result\[(\d+)\]: (?!element at index)")
# A model that passed and whose run takes longer is not run again for its figures.
_LONG_RUN_SECONDS = 120.0


def check_threshold(step: Step, processes: Processes) -> Result:
    """Runs a threshold step."""
    result = _checked(step, processes)
    if not step.goldens or result.verdict is not Verdict.PASSED:
        return result
    error = result.max_abs_error
    if error is None:
        note = f"its error is not held against {step.goldens[0].origin.file}: no output was compared value by value"
        return replace(result, notes=(*result.notes, note))
    check = check_figure(Metric.MAX_ABS_ERROR, error, step.goldens, "")
    verdict, reason = (Verdict.FAILED, shorten(describe(check))) if check.passed is False else (result.verdict, "")
    return replace(result, verdict=verdict, reason=reason, checks=(check,))


def _checked(step: Step, processes: Processes) -> Result:
    step = _with_reference(step)
    assert step.command is not None, "planned with a command"
    if step.allclose is not None:
        return _check_allclose(step, step.command, step.allclose, processes)
    outcome = processes.run(step)
    log = processes.log(step, "stdout.txt")
    passed = outcome.exit_code == 0
    complaints = [line for line in processes.stdout(step).splitlines() if line.startswith("[FAILED]")]
    if not passed and not complaints:
        return processes.complete(step, outcome, _not_run(step, outcome, processes))
    verdict = Verdict.PASSED if passed else Verdict.FAILED
    result = Result(verdict, notes=step.notes, log=log, tail=() if passed else tuple(outcome.tail))
    if not passed:
        result = replace(result, reason=shorten(complaints[0].removeprefix("[FAILED] ")))
    if step.outputs and not (passed and outcome.seconds > _LONG_RUN_SECONDS):
        result = _with_figures(step, step.command, processes, result, _of_other_types(complaints))
    return processes.complete(step, outcome, result)


def _not_run(step: Step, outcome: Outcome, processes: Processes) -> Result:
    """The result of a run that did not finish."""
    lines = processes.error_lines(step)
    result = after_process(step, outcome, lines, tool=_TOOL, reason=_status_line(lines))
    result = replace(result, log=processes.log(step), notes=(*step.notes, *result.notes))
    return _without_data(step, result)


def _without_data(step: Step, result: Result) -> Result:
    """The result of a run that did not finish; where a .npy that it reads is damaged, an error of that file."""
    assert step.command is not None, "it was run"
    if result.verdict is not Verdict.FAILED or step.expect_failure:
        return result
    try:
        for name in (_INPUT, _EXPECTED):
            texts = (flag.removeprefix(name) for flag in step.command.argv if flag.startswith(name))
            # Of these alone, what cannot be read here cannot be read by the tool.
            read_arguments((text for text in texts if text.startswith(_NPY)), Path(step.command.cwd))
    except GauntletError as error:
        notes = (*result.notes, error.hint or "fetch or record this file again")
        return replace(result, verdict=Verdict.ERROR, reason=shorten(error.what), notes=notes)
    return result


def _check_allclose(step: Step, command: Command, allclose: Allclose, processes: Processes) -> Result:
    """Runs with the outputs kept, and compares them by NumPy's rule."""
    try:
        texts = (flag.removeprefix(_EXPECTED) for flag in command.argv if flag.startswith(_EXPECTED))
        expected = [item and with_known_type(item) for item in read_arguments(texts, Path(command.cwd))]
        paths = [_output_path(tensor, Path(path)) for tensor, (_, path) in zip(expected, step.outputs, strict=True)]
        kept = [flag for flag in command.argv if not flag.startswith((_EXPECTED, _OUTPUT))]
        # What is run is what the journal says.
        step = replace(step, command=replace(command, argv=(*kept, *(f"--output=@{path}" for path in paths))))
        outcome = processes.run(step)
        if outcome.exit_code != 0:
            return processes.complete(step, outcome, _not_run(step, outcome, processes))
        actual = [_read(path, tensor, complained=True) for path, tensor in zip(paths, expected, strict=True)]
    except GauntletError as error:
        notes = (*step.notes, *filter(None, [error.hint]))
        return Result(Verdict.ERROR, shorten(error.what), command=processes.typed(step), notes=notes)
    comparisons = compare_allclose(actual, expected, allclose)
    failing = [comparison for comparison in comparisons if not comparison.passed]
    result = Result(
        Verdict.FAILED if failing else Verdict.PASSED,
        shorten(f"output {failing[0].index}: {failing[0].message}") if failing else "",
        outputs=tuple(comparisons),
        notes=step.notes,
        log=processes.log(step, "stdout.txt"),
    )
    return processes.complete(step, outcome, result)


def _of_other_types(complaints: Sequence[str]) -> frozenset[int]:
    """Indices of the outputs whose type or shape the tool found wrong."""
    return frozenset(int(match[1]) for line in complaints if (match := _OTHER_TYPE.match(line)))


def _with_figures(
    step: Step, command: Command, processes: Processes, result: Result, other_types: frozenset[int]
) -> Result:
    """Runs again with the outputs kept, and compares them here."""
    try:
        expected = read_arguments(
            (flag.removeprefix(_EXPECTED) for flag in command.argv if flag.startswith(_EXPECTED)),
            Path(command.cwd),
        )
        tolerances = parse_tolerances(command.argv)
    except GauntletError as error:
        return replace(result, notes=(*result.notes, f"no figures: {error.what}"))
    paths = [_output_path(tensor, Path(path)) for tensor, (_, path) in zip(expected, step.outputs, strict=True)]
    kept = [flag for flag in command.argv if not flag.startswith((_EXPECTED, _OUTPUT))]
    argv = (*kept, *(f"--output=@{path}" for path in paths))
    outcome = processes.run(step, replace(command, argv=argv), name="outputs.")
    result = replace(
        result,
        tool_seconds=result.tool_seconds + outcome.seconds,
        cpu_seconds=result.cpu_seconds + outcome.cpu_seconds,
        peak_rss_bytes=max(result.peak_rss_bytes, outcome.peak_rss_bytes),
    )
    if outcome.exit_code != 0:
        why = _status_line(processes.error_lines(step, "outputs."))
        return replace(
            result,
            notes=(*result.notes, shorten(f"no figures: the run that keeps the outputs failed: {why}")),
        )
    try:
        actual = [
            _read(path, tensor, complained=index in other_types)
            for index, (path, tensor) in enumerate(zip(paths, expected, strict=True))
        ]
    except GauntletError as error:
        return replace(result, notes=(*result.notes, f"no figures: {error.what}"))
    comparisons = compare_outputs(actual, expected, tolerances)
    result = replace(result, outputs=tuple(comparisons))
    agrees = all(comparison.passed for comparison in comparisons) == (result.verdict is Verdict.PASSED)
    if not agrees:
        note = (
            "a second run of the same module gives another verdict than the first: its results are not "
            "deterministic, or near the tolerance"
        )
        return replace(result, notes=(*result.notes, note))
    failing = [comparison for comparison in comparisons if not comparison.passed]
    if failing:
        return replace(result, reason=shorten(f"output {failing[0].index}: {failing[0].message}"))
    return result


def _output_path(expected: Tensor | None, path: Path) -> Path:
    """`.npy` keeps the shape; raw bytes for the types that it cannot hold."""
    return path if expected is None or expected.array.dtype.kind in "fiub" else path.with_suffix(".bin")


def _read(path: Path, expected: Tensor | None, *, complained: bool) -> Tensor:
    if path.suffix == ".bin" and expected is not None:
        return read_output(path, expected.type)
    tensor = read_output(path)
    if expected is None or complained or tensor.element_type != expected.element_type.removeprefix("s"):
        return tensor
    # A .npy does not tell i64 from si64. An output that hands an input through keeps the input's type: where the
    # tool did not complain of the type, the two were the same.
    return tensor.with_element_type(expected.element_type)


def _status_line(lines: Sequence[str]) -> str:
    """IREE's status in an error's text: `…; INVALID_ARGUMENT; why; while …` without the source path."""
    for line in lines:
        parts = [part.strip() for part in line.split(";")]
        if len(parts) > 1 and ".c" in parts[0]:
            return shorten("; ".join(parts[1:3]))
    return shorten(next((line for line in lines if line.strip()), ""))


def _with_reference(step: Step) -> Step:
    """A threshold step with its reference unpacked in its folder, and the flagfile's flags in its place.

    A step without a reference is returned as it is.

    Raises:
        GauntletError: the archive cannot be unpacked.
    """
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
    count = sum(flag.startswith("--expected_output=") for flag in flags)
    outputs = tuple(("actual_output", f"{folder}/actual_{index}.npy") for index in range(count))
    return replace(step, command=replace(step.command, argv=argv), outputs=outputs)
