"""Recording expected outputs: a model's published ONNX file, run by onnxruntime, beside its spec."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.measuring.tolerances import parse_tolerances
from iree_gauntlet.running.steps import Command

if TYPE_CHECKING:
    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cases import Case
    from iree_gauntlet.running.supervisor import Supervisor

__all__ = ["Recorded", "record_outputs"]

_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """An output that was written.

    Attributes:
        path: the file.
        value: its tensor type where the file does not say it (raw integers), else empty.
    """

    path: Path
    value: str


def record_outputs(
    case: Case, store: ArtifactStore, supervisor: Supervisor, python: str, script: str, logs: Path
) -> list[Recorded]:
    """Records the expected outputs of a quality case.

    Args:
        case: a case of an ONNX program.
        store: fetches the model and its inputs.
        supervisor: owns the process.
        python: interpreter that has onnxruntime.
        script: the recorder.
        logs: folder for its output.

    Returns:
        The outputs that were written, in the order of the graph's.

    Raises:
        UsageError: the case is none that can be recorded.
        ArtifactError: the model or an input cannot be had.
        GauntletError: the recorder failed or refused an output.
    """
    program = case.modules[-1].program
    if program.onnx is None:
        raise UsageError(
            f"{case.origin.file}: {program.url} is no .onnx file: onnxruntime cannot run it",
            "Record with the framework that the program comes from.",
        )
    folder = _output_folder(case)
    files = [store.fetch(argument.url) for argument in case.inputs]
    argv = [python, script, "--model", str(store.fetch(program.url).path), "--model-url", program.url]
    for file in files:
        argv += ["--input", str(file.path), "--input-url", file.url]
    tolerance = parse_tolerances(case.run_flags)
    argv += ["--output-folder", str(folder), "--tolerance", repr(tolerance.f32)]
    outcome = supervisor.run(
        Command(tuple(argv), str(Path.cwd())),
        stdout=logs / "record.stdout.txt",
        stderr=logs / "record.stderr.txt",
        timeout=_TIMEOUT_SECONDS,
    )
    if outcome.exit_code != 0:
        lines = (logs / "record.stderr.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        why = next((line for line in reversed(lines) if line.strip()), f"exit code {outcome.exit_code}")
        raise GauntletError(f"{case.origin.file}: nothing was recorded: {why}", "docs/add-a-model.md shows each step.")
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    return [Recorded(folder / item["source"], item.get("value", "")) for item in provenance["outputs"]]


def _output_folder(case: Case) -> Path:
    """The folder of the outputs that a spec names, or the one named after the spec."""
    named = {Path(unquote(urlsplit(argument.url).path)).parent for argument in case.expected_outputs if argument.url}
    if len(named) == 1:
        return named.pop()
    if named:
        raise UsageError(f"{case.origin.file}: outputs lie in {len(named)} folders", "Keep them in one folder.")
    return Path(case.origin.file).with_suffix("")
