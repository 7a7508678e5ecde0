"""Recording expected outputs: a model's published ONNX file, run by onnxruntime, next to its spec."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import numpy as np

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.artifacts.onnx_data import data_files
from iree_gauntlet.dialects.locations import file_path
from iree_gauntlet.engine.commands import argument_text
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.measuring.numerics.arrays import read_arguments
from iree_gauntlet.measuring.numerics.tolerances import parse_tolerances
from iree_gauntlet.steps import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cases import Argument, Case
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.engine.processes.supervisor import Supervisor


_TIMEOUT_SECONDS = 1800.0
# What the recorder ends with where the command, the sizes or the inputs are no use.
_REFUSED = 2
_CHOOSE = "Choose sizes and inputs that suit the model (`onnx_import.shapes`, `inputs`): docs/start/own-model.md"
# Kinds of NumPy's own types: a .npy file holds no others.
_PLAIN_KINDS = "biufc"


@dataclass(frozen=True, slots=True)
class Recorded:
    """An output that was written.

    Attributes:
        path: the file.
        source: what the spec names it by.
        value: its tensor type where the file does not say it (raw integers), else empty.
    """

    path: Path
    source: str
    value: str


@dataclass(frozen=True, slots=True)
class WeightEffect:
    """What scaling one tensor of a model by 1.01 does to its outputs.

    Attributes:
        name: the tensor's.
        elements: how many values it has.
        effect: the largest difference in units of what the tolerance allows; above 1 it is seen.
    """

    name: str
    elements: int
    effect: float


def why_not(case: Case) -> str:
    """Why onnxruntime cannot tell what a case should give; empty where it can."""
    if case.reference:
        return "there is nothing to record: onnxruntime gives its expected outputs in every run"
    program = case.modules[-1].program
    if program.onnx is None:
        url = urlsplit(program.url)
        name = PurePath(unquote(url.path)).name if url.scheme == "file" else program.url
        return f"{name} is not an .onnx file: onnxruntime cannot run it"
    if any(item.url or item.made for item in case.parameters):
        return "its weights lie outside of the .onnx file: onnxruntime cannot load them"
    return ""


def record_outputs(
    case: Case, spec: Spec, store: ArtifactStore, supervisor: Supervisor, python: str, script: str, logs: Path
) -> list[Recorded]:
    """Records the expected outputs of a quality case.

    Args:
        case: a case whose last module is of an ONNX program.
        spec: where it is written.
        store: fetches the model and its inputs.
        supervisor: owns the process.
        python: interpreter that has onnxruntime.
        script: the recorder.
        logs: folder for its output.

    Returns:
        The outputs that were written, in the order of the graph's.

    Raises:
        UsageError: the case is none that can be recorded.
        ArtifactError: the model or an input is not available.
        GauntletError: the recorder failed or refused an output.
    """
    folder = output_folder(case, spec)
    argv = [python, script, *_model_flags(case, store, logs, folder, sources=True)]
    tolerance = parse_tolerances(case.run_flags)
    argv += ["--output-folder", str(folder), "--tolerance", repr(tolerance.f32)]
    _run(f"{spec.name}: nothing was recorded", argv, supervisor, logs)
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    return [
        Recorded(folder / item["source"], _name(folder / item["source"], spec), item.get("value", ""))
        for item in provenance["outputs"]
    ]


def weight_effects(
    case: Case, store: ArtifactStore, supervisor: Supervisor, python: str, logs: Path
) -> list[WeightEffect]:
    """What each weight of a quality case's model does to its outputs, in the order of the file.

    Args:
        case: a case whose last module is of an ONNX program.
        store: fetches the model and its inputs.
        supervisor: owns the process.
        python: interpreter that has onnx, onnxruntime and this package.
        logs: folder for its output.

    Raises:
        UsageError, ArtifactError, GauntletError: as of `record_outputs`.
    """
    argv = [python, "-m", "iree_gauntlet.workers.iree_side.golden_sensitivity", *_model_flags(case, store, logs, logs)]
    tolerances = parse_tolerances(case.run_flags)
    for element in ("f16", "f32", "f64"):
        argv += ["--tolerance", f"{element}={tolerances.effective(element)[0]!r}"] if not tolerances.exact else []
    argv += ["--rtol", repr(tolerances.rtol)]
    text = _run(f"{case.origin.file}: its weights were not tried", argv, supervisor, logs)
    return [WeightEffect(item["name"], item["elements"], float(item["effect"])) for item in json.loads(text)]


def _model_flags(case: Case, store: ArtifactStore, logs: Path, folder: Path, *, sources: bool = False) -> list[str]:
    """The flags of a worker for the model and its inputs; with what a provenance names them by, seen from a folder."""
    reason = why_not(case)
    if reason:
        raise UsageError(f"{case.origin.file}: {reason}", "Record with the framework that the program comes from.")
    url = case.modules[-1].program.url
    model = store.fetch(url).path
    argv = ["--model", str(model)]
    if sources:
        argv += ["--model-url", _as_named(url, folder)]
        argv += [word for name in data_files(model) for word in ("--model-data", str(model.parent / name))]
    for index, argument in enumerate(case.inputs):
        flags = _input_flags(case, argument, store, logs / f"input_{index}.npy", folder)
        argv += flags if sources else flags[:2]
    return argv


def _run(what: str, argv: list[str], supervisor: Supervisor, logs: Path) -> str:
    """Runs a worker; its standard output."""
    out, err = logs / "worker.stdout.txt", logs / "worker.stderr.txt"
    command = Command(tuple(argv), str(Path.cwd()))
    outcome = supervisor.run(command, stdout=out, stderr=err, timeout=_TIMEOUT_SECONDS)
    if outcome.exit_code != 0:
        lines = err.read_text(encoding="utf-8", errors="replace").splitlines()
        why = next((line for line in reversed(lines) if line.strip()), f"exit code {outcome.exit_code}")
        # Without the worker's own name.
        what = f"{what}: {re.sub(r'^[a-z_]+: ', '', why)}"
        if outcome.exit_code == _REFUSED:
            raise UsageError(what, _CHOOSE)
        raise GauntletError(what, _CHOOSE if "cannot load" not in what else "Is the file whole, with its weights?")
    return out.read_text(encoding="utf-8")


def _as_named(url: str, folder: Path) -> str:
    """A source as the provenance names it: a file relative to the provenance, so that it is so on every machine."""
    parts = urlsplit(url)
    return Path(os.path.relpath(unquote(parts.path), folder)).as_posix() if parts.scheme == "file" else url


def _input_flags(case: Case, argument: Argument, store: ArtifactStore, made: Path, folder: Path) -> list[str]:
    """The recorder's flags for an input, which is written as a .npy file where it is none."""
    fetched = store.fetch(argument.url) if argument.url else None
    if fetched and fetched.path.suffix == ".npy":
        return ["--input", str(fetched.path), "--input-url", _as_named(fetched.url, folder), "--input-value", ""]
    text = argument_text(argument, lambda _: str(fetched.path) if fetched else "")
    tensors = read_arguments([text], Path(case.working_directory))
    if len(tensors) != 1 or tensors[0] is None or tensors[0].array.dtype.kind not in _PLAIN_KINDS:
        what = f"{case.origin.file}: onnxruntime cannot be given the input {text!r}"
        raise UsageError(what, "Give the input as a .npy file.")
    np.save(made, tensors[0].array)
    source = _as_named(fetched.url, folder) if fetched else argument.value
    return ["--input", str(made), "--input-url", source, "--input-value", str(tensors[0].type)]


def changed_since(case: Case) -> Iterator[str]:
    """What is not any more as it was when the expected outputs of a quality case were recorded, as far as it is here.

    Models and inputs behind URLs are what these say: their content is what the registry of hashes is for.
    """
    outputs = [Path(path) for item in case.expected_outputs if (path := file_path(item.url))]
    record = outputs[0].with_name("provenance.json") if outputs else None
    if record is None or not record.is_file():
        return
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        kept = {record.parent / item["source"]: item["sha256"] for item in found["outputs"]}
        inputs = [item["source"] for item in found["inputs"]]
        model, files = found["model"], [found["model"], *found["model"].get("data", ())]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        # Of somebody else's making.
        return
    changed = [path.name for path in outputs if path in kept and path.is_file() and hash_file(path) != kept[path]]
    yield from (f"{name} is not what was recorded" for name in changed)
    url = case.modules[-1].program.url
    if _as_named(url, record.parent) != model["source"]:
        yield f"it was recorded with the model {model['source']}"
    elif file_path(url):
        beside = {record.parent / item["source"]: item["sha256"] for item in files}
        yield from (
            f"{file.name} has changed since it was recorded"
            for file, sha256 in beside.items()
            if file.is_file() and hash_file(file) != sha256
        )
    others = [name for item in case.inputs if item.url and (name := _as_named(item.url, record.parent)) not in inputs]
    yield from (f"it was recorded with another input than {name}" for name in others)


def output_folder(case: Case, spec: Spec) -> Path:
    """The folder of the outputs that a spec names, or the one named after the spec.

    Raises:
        UsageError: its outputs are no files of its own, or lie in several folders or outside of the specs.
    """
    own_folder = spec.path.with_suffix("")
    hint = f"Remove them from the spec to have outputs recorded in {own_folder.name}/."
    named = set()
    for argument in case.expected_outputs:
        url = urlsplit(argument.url)
        if url.scheme == "file":
            named.add(_folder_of(Path(unquote(url.path)), spec))
        elif argument.url:
            raise UsageError(f"{spec.name}: its outputs are no files of its own: {argument.url}", hint)
    if len(named) > 1:
        raise UsageError(f"{spec.name}: outputs lie in {len(named)} folders", "Keep them in one folder.")
    folder = named.pop() if named else own_folder
    if not any(folder.resolve().is_relative_to(place.resolve()) for place in (spec.tree.folder, spec.tree.external)):
        raise UsageError(f"{spec.name}: its outputs lie outside of the specs, in {folder}", hint)
    return folder


def _folder_of(path: Path, spec: Spec) -> Path:
    """Where a named output belongs: external files first, else next to the spec, where one that is nowhere yet goes."""
    external = spec.tree.external
    if spec.torch and path.is_relative_to(external) and not path.parent.is_dir():
        return (spec.path.parent / path.relative_to(external)).parent
    return path.parent


def _name(path: Path, spec: Spec) -> str:
    """What a spec names a file by."""
    external = spec.tree.external.resolve()
    if spec.torch and path.resolve().is_relative_to(external):
        return path.resolve().relative_to(external).as_posix()
    return PurePath(os.path.relpath(path.resolve(), spec.path.parent.resolve())).as_posix()
