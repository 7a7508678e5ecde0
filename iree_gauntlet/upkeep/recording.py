"""Recording expected outputs: a model's published ONNX file, run as it says itself, next to its spec.

The programs that run ONNX models are processes of their own, which may crash or hang.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.artifacts.onnx_data import count_operators, list_data_files
from iree_gauntlet.dialects.json_text import with_member
from iree_gauntlet.dialects.locations import file_path
from iree_gauntlet.dialects.sharktank_schema import RegressionV1
from iree_gauntlet.dialects.spec_file import read_mark, read_text
from iree_gauntlet.dialects.torch_schema import QualityTest
from iree_gauntlet.engine.commands import format_argument
from iree_gauntlet.engine.judging import PROVENANCE_FILE, read_provenance
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import counted
from iree_gauntlet.measuring.numerics.tolerances import Tolerances, parse_tolerance, parse_tolerances
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.steps import Command
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.workers import iree_side
from iree_gauntlet.workers.iree_side.value_errors import Allowed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cases import Argument, Case
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.engine.processes.supervisor import Supervisor


_CHOOSE_INPUTS = "Choose sizes and inputs that suit the model (`onnx_import.shapes`, `inputs`): docs/start/own-model.md"
_TIMEOUT_SECONDS = 1800.0
# What a worker ends with where the model, the sizes or the inputs are no use.
_REFUSED = 2
# A mistake of so much of an output's largest value should show.
_VISIBLE = 0.01
# Slices of fewer values, and axes of more slices, say little of what a model computes.
_LEAST_VALUES, _MOST_SLICES = 8, 4096
# Types of outputs that a .npy file can say; iree-run-module reads its integers as signed, which equal no output that a
# module computes.
_IN_NPY = ("f16", "f32", "f64", "i1")
_LARGE_BYTES = 1_000_000
_QUANTISING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinear", "ConvInteger", "MatMulInteger")
_Answer = TypeVar("_Answer", bound=Recorded)


@dataclass(frozen=True, slots=True)
class ReferencePlan(Recorded):
    """What workers are told of a model.

    Attributes:
        inputs: sets of them, as iree-run-module takes them, in the order of wishes.
        cwd: where their files lie.
        folder: for outputs.
        tolerances: what the spec allows outputs to differ by, by element type, and `rtol`; None to have it chosen.
        last: whether no other sets come.
    """

    model: str
    inputs: tuple[tuple[str, ...], ...]
    cwd: str
    folder: str
    tolerances: dict[str, float] | None
    last: bool = True


@dataclass(frozen=True, slots=True)
class ReferenceName(Recorded):
    """What ran a model: `onnxruntime`, or onnx's own evaluator."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True, slots=True)
class ModelInput(Recorded):
    """An input of a model, as it was run."""

    name: str
    dtype: str
    declared_shape: list[int | str | None]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelOutput(Recorded):
    """An output of a model.

    Attributes:
        type: IREE's.
        file: its raw values.
        dtype: NumPy's.
        least, most: of its finite values; None where there are none.
        differs: from run to run.
        optimised, other: by how much onnxruntime with optimisations, and the other reference, differ by more than is
            allowed; None where they don't, or were not run; -1 for an infinite difference.
        input: its place, of one that is handed through; None for what is computed.
    """

    name: str
    type: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    count: int
    nans: int
    infinities: int
    differs: bool
    least: float | None = None
    most: float | None = None
    optimised: float | None = None
    other: float | None = None
    input: int | None = None


@dataclass(frozen=True, slots=True)
class ReferenceAnswer(Recorded):
    """What `run_onnx` says.

    Attributes:
        taken: which set of inputs.
        tells: whether the outputs can tell right from wrong.
        refused: why other sets that were tried were not taken.
        random: operators of the model that make random numbers.
        allowed: what outputs may differ by, by element type: the fields of a worker's `Allowed`.
    """

    taken: int
    tells: bool
    refused: tuple[str, ...]
    reference: ReferenceName
    inputs: tuple[ModelInput, ...]
    outputs: tuple[ModelOutput, ...]
    random: tuple[str, ...]
    allowed: dict[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeightEffect(Recorded):
    """What scaling a tensor of a model by 1.01 does: its largest effect in units of the tolerance, seen above 1."""

    name: str
    elements: int
    effect: float


@dataclass(frozen=True, slots=True)
class WeightEffects(Recorded):
    """What `golden_sensitivity` says."""

    weights: tuple[WeightEffect, ...]


@dataclass(frozen=True, slots=True)
class ReferenceWorkers:
    """The programs that run ONNX models, in a Python that has onnx and onnxruntime; `folder` is for their files."""

    supervisor: Supervisor
    python: str
    folder: Path

    def answer(self, name: str, what: str, plan: ReferencePlan, kind: type[_Answer]) -> _Answer:
        """What a worker says of a plan; `what` does not happen where it fails, for messages.

        Raises:
            UsageError: the plan cannot be used with this model.
            GauntletError: no reference can run the model, or the worker crashed.
        """
        file, out, err = (self.folder / f"{name}{suffix}" for suffix in (".json", ".stdout.txt", ".stderr.txt"))
        file.write_text(json.dumps(plan.as_dict()), encoding="utf-8")
        script = str(Path(iree_side.__file__).with_name(f"{name}.py"))
        command = Command((self.python, script, str(file)), str(Path.cwd()))
        outcome = self.supervisor.run(command, stdout=out, stderr=err, timeout=_TIMEOUT_SECONDS)
        if outcome.exit_code == 0:
            return kind.from_dict(json.loads(out.read_text(encoding="utf-8")))
        lines = err.read_text(encoding="utf-8", errors="replace").splitlines()
        ended = f"it crashed with {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
        said = next((line for line in reversed(lines) if line.strip()), ended)
        why = f"it ran longer than {_TIMEOUT_SECONDS:g} s" if outcome.timed_out else said
        raise (UsageError if outcome.exit_code == _REFUSED else GauntletError)(f"{what}: {why}", _CHOOSE_INPUTS)


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """An output that was written.

    Attributes:
        source: what the spec names it by.
        value: its tensor type where the file does not say it (raw values), else empty.
    """

    path: Path
    content: bytes
    source: str
    value: str


@dataclass(frozen=True, slots=True)
class Recording:
    """Expected outputs of a case, as they were recorded, in the order of the graph's.

    Attributes:
        reference: what computed them, `onnxruntime 1.32.0`.
        tolerance: flags that say what outputs may differ by, where the spec said nothing.
    """

    outputs: tuple[RecordedOutput, ...]
    reference: str
    tolerance: tuple[str, ...]
    notes: tuple[str, ...]


def why_not(case: Case) -> str:
    """Why no reference can tell what a case should give; empty where one can."""
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
    case: Case, spec: Spec, store: ArtifactStore, workers: ReferenceWorkers, known: ReferenceAnswer | None = None
) -> Recording:
    """Records the expected outputs of a quality case, with their provenance, and names them in its spec.

    Args:
        case: its last module is of an ONNX program.
        spec: where it is written.
        store: fetches the model and its inputs.
        workers: run the model.
        known: what `run_onnx` has said of the model on these inputs; None to have it run.

    Raises:
        UsageError: the case is none that can be recorded, or its outputs are nothing to expect.
        ArtifactError: the model or an input is not available.
        GauntletError: no reference can run the model.
    """
    folder = output_folder(case, spec)
    plan = _plan(case, store, workers.folder)
    answer = known or workers.answer("run_onnx", f"{spec.name}: nothing was recorded", plan, ReferenceAnswer)
    _require_worth(spec.name, answer, plan.tolerances)
    outputs = tuple(_make_output(spec, folder, index, answer, plan) for index in range(len(answer.outputs)))
    provenance = _describe_provenance(case, store, plan, answer, folder, outputs)
    folder.mkdir(parents=True, exist_ok=True)
    # The provenance last: where it is there and fits, the outputs are all there.
    for output in outputs:
        write_atomic(output.path, output.content)
    write_atomic(folder / PROVENANCE_FILE, (json.dumps(provenance, indent=2, ensure_ascii=False) + "\n").encode())
    written = {output.path for output in outputs}
    for stale in sorted({*folder.glob("output_*.npy"), *folder.glob("output_*.bin")} - written):
        stale.unlink()
    allowed = {element: Allowed(**said) for element, said in answer.allowed.items()}
    tolerance = () if plan.tolerances else tolerance_flags(allowed)
    _name_in(spec, outputs, tolerance)
    limits = plan.tolerances or {element: item.atol for element, item in allowed.items()}
    return Recording(outputs, str(answer.reference), tolerance, tuple(_list_notes(answer, outputs, limits)))


def measure_weight_effects(case: Case, store: ArtifactStore, workers: ReferenceWorkers) -> Sequence[WeightEffect]:
    """What each weight of a quality case's model does to its outputs, in the order of the file.

    Raises:
        UsageError, ArtifactError, GauntletError: as of `record_outputs`.
    """
    tolerances = parse_tolerances(case.run_flags)
    allowed = {} if tolerances.exact else _read_allowed_by(tolerances)
    plan = replace(_plan(case, store, workers.folder), tolerances=allowed)
    what = f"{case.origin.file}: its weights were not tried"
    return workers.answer("golden_sensitivity", what, plan, WeightEffects).weights


def tolerance_flags(allowed: Mapping[str, Allowed]) -> tuple[str, ...]:
    """The flags of iree-run-module for what a worker says may differ; none where all is compared by its bytes."""
    if not allowed:
        return ()
    flags = [f"--expected_{element}_threshold={item.atol:g}" for element, item in allowed.items()]
    return (*flags, f"--expected_rtol={max(item.rtol for item in allowed.values()):g}")


def _plan(case: Case, store: ArtifactStore, folder: Path) -> ReferencePlan:
    reason = why_not(case)
    if reason:
        raise UsageError(f"{case.origin.file}: {reason}", "Record with the framework that the program comes from.")
    written = [flag for flag in (*case.run_flags, *case.own_flags) if parse_tolerance(flag) or "equality_mode" in flag]
    return ReferencePlan(
        model=str(store.fetch(case.modules[-1].program.url).path),
        inputs=(tuple(format_argument(item, lambda url: str(store.fetch(url).path)) for item in case.inputs),),
        cwd=case.working_directory or str(folder),
        folder=str(folder),
        tolerances=_read_allowed_by(parse_tolerances(written)) if written else None,
    )


def _read_allowed_by(tolerances: Tolerances) -> dict[str, float]:
    """What is allowed, by element type; and relatively."""
    allowed = {element: tolerances.written(element)[0] for element in ("f16", "bf16", "f32", "f64")}
    return allowed | {"rtol": tolerances.written("f32")[1]}


def _require_worth(name: str, answer: ReferenceAnswer, given: Mapping[str, float] | None) -> None:
    """Raises UsageError where outputs differ from run to run, or none of them can tell right from wrong."""
    if differing := [item.name for item in answer.outputs if item.differs]:
        makers = f" ({', '.join(answer.random)})" if answer.random else ""
        differ = f"{', '.join(differing)} {'differs' if len(differing) == 1 else 'differ'} from run to run"
        what = f"{name}: nothing was recorded: {differ}{makers}"
        hint = "Outputs that differ each time cannot be expected: take the operators that make random numbers out."
        raise UsageError(what, hint)
    idle = []
    for item in answer.outputs:
        if item.count and item.nans == item.count:
            idle.append(f"every value of output {item.name!r} ({item.type}) is NaN")
            continue
        hidden, zeros_pass = _find_blind_spot(item, given or {})
        if zeros_pass:
            why = f"{hidden}; remove the spec's tolerance to have one chosen"
            idle.append(f"output {item.name!r} ({item.type}): {why}")
    if len(idle) == len(answer.outputs):
        raise UsageError(f"{name}: nothing was recorded: {'; '.join(idle)}", _CHOOSE_INPUTS)


def _list_notes(
    answer: ReferenceAnswer, outputs: Sequence[RecordedOutput], allowed: Mapping[str, float]
) -> Iterator[str]:
    """What a person should know of outputs that were recorded."""
    yield from answer.notes
    for item in answer.outputs:
        hidden, _ = _find_blind_spot(item, allowed)
        name = f"{item.name} ({item.type})"
        if hidden:
            yield f"{name}: {hidden}"
        if item.count == 0:
            yield f"{name} has no values: its shape is compared"
        if item.nans:
            yield f"{name}: {item.nans} of {counted(item.count, 'value')} NaN, which is what is expected of IREE too"
        if item.infinities:
            yield f"{name}: {item.infinities} of {counted(item.count, 'value')} infinite"
        if item.count > 1 and item.least is not None and item.least == item.most:
            where = "wherever it is a number" if item.nans + item.infinities else "everywhere"
            yield f"{name} is {item.least:g} {where}: a model that always gives that would pass"
        for apart, said, so in (
            (item.optimised, "onnxruntime with its graph optimisations", "they are not those of the model"),
            (item.other, "the other of onnxruntime and onnx's evaluator", "one of the two is wrong"),
        ):
            if apart is not None:
                by = f"by up to {apart:.3g}" if apart >= 0 else "by infinity, NaN or their shape"
                yield f"{name}: {said} gives other numbers, {by}: {so}"
    total = sum(len(output.content) for output in outputs)
    if total > _LARGE_BYTES:
        yield f"outputs are {total / 1e6:.1f} MB together: smaller inputs keep a repository small"


def _make_output(spec: Spec, folder: Path, index: int, answer: ReferenceAnswer, plan: ReferencePlan) -> RecordedOutput:
    """An output to be written."""
    item = answer.outputs[index]
    content = item.file.read_bytes()
    # An input that a module hands through keeps the type that it came with, the .npy file's.
    signed = item.input is not None and plan.inputs[0][item.input].startswith("@")
    plain = item.type.rpartition("x")[2] in _IN_NPY or signed
    if plain:
        stream = io.BytesIO()
        array = np.frombuffer(content, item.dtype).reshape(item.shape)
        np.lib.format.write_array(stream, array, version=(1, 0))
        content = stream.getvalue()
    path = folder / f"output_{index}.{'npy' if plain else 'bin'}"
    external = spec.tree.external
    # Of the file itself no link is followed: the spec names it as it is called.
    place = resolve_links(path.parent) / path.name
    if spec.torch and place.is_relative_to(external):
        source = place.relative_to(external).as_posix()
    else:
        source = _make_path_beside(place, resolve_links(spec.path.parent))
    return RecordedOutput(path, content, source, "" if plain else item.type)


def _describe_provenance(
    case: Case,
    store: ArtifactStore,
    plan: ReferencePlan,
    answer: ReferenceAnswer,
    folder: Path,
    outputs: Sequence[RecordedOutput],
) -> dict[str, Any]:
    """What outputs were made from."""
    model, by = Path(plan.model), answer.reference
    beside = [model.parent / name for name in list_data_files(model)]
    data = {"data": [{"source": _make_path_beside(path, folder), "sha256": hash_file(path)} for path in beside]}
    return {
        "made_by": by.name,
        by.name: by.version,
        **({"optimisations": "off"} if by.name == "onnxruntime" else {}),
        "numpy": np.__version__,
        "threads": 1,
        "model": {
            "source": _as_named(case.modules[-1].program.url, folder),
            "sha256": hash_file(model),
            "bytes": model.stat().st_size,
            **(data if beside else {}),
        },
        "inputs": [
            _describe_input(argument, text, known, store, folder)
            for argument, text, known in zip(case.inputs, plan.inputs[0], answer.inputs, strict=True)
        ],
        "outputs": [
            {
                "name": item.name,
                "source": output.path.name,
                "sha256": hashlib.sha256(output.content).hexdigest(),
                "shape": item.shape,
                "type": item.dtype,
                "min": item.least,
                "max": item.most,
                **({"nans": item.nans} if item.nans else {}),
                **({"infinities": item.infinities} if item.infinities else {}),
                **({"value": output.value} if output.value else {}),
            }
            for item, output in zip(answer.outputs, outputs, strict=True)
        ],
        "tolerance": answer.allowed,
    }


def _describe_input(
    argument: Argument, text: str, known: ModelInput, store: ArtifactStore, folder: Path
) -> dict[str, Any]:
    """What a provenance says of an input: of a file its hash, of what is written in the spec the text."""
    fetched = store.fetch(argument.url) if argument.url else None
    value = "" if text.startswith("@") else text.partition("=")[0]
    return {
        "name": known.name,
        "source": _as_named(fetched.url, folder) if fetched else argument.value,
        **({"sha256": hash_file(fetched.path)} if fetched else {}),
        "shape": known.shape,
        "type": known.dtype,
        "declared_shape": known.declared_shape,
        **({"value": value} if value else {}),
    }


def _name_in(spec: Spec, outputs: Sequence[RecordedOutput], tolerance: Sequence[str]) -> None:
    """Writes the outputs into their spec, and what they may differ by, where it says nothing else."""
    field, file, flags = "outputs", "source", "threshold_args"
    if isinstance(spec.document, QualityTest):
        field, file, flags = "expected_outputs", "url", "run_args"
    elif isinstance(spec.document, RegressionV1):
        flags = "cpu_threshold_args"
    before = after = read_text(spec.path, spec.name)
    items = [{file: item.source} | ({"value": item.value} if item.value else {}) for item in outputs]
    if [item.model_dump(exclude_none=True) for item in getattr(spec.document, field)] != items:
        after = with_member(after, field, items)
    if tolerance:
        after = with_member(after, flags, [*getattr(spec.document, flags), *tolerance])
    if after != before:
        write_atomic(spec.path, read_mark(spec.path) + after)


def _make_path_beside(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _as_named(url: str, folder: Path) -> str:
    """A source as the provenance names it: a file relative to the provenance, so that it is so on every machine."""
    parts = urlsplit(url)
    return _make_path_beside(Path(unquote(parts.path)), folder) if parts.scheme == "file" else url


def changed_since(case: Case, store: ArtifactStore) -> Iterator[str]:
    """What is not any more as it was when the expected outputs of a quality case were recorded, as far as it is here.

    Models and inputs behind URLs are what these say: their content is what the registry of hashes is for. A model that
    the store has is looked at for operators whose numbers were recorded otherwise.
    """
    outputs = [Path(path) for item in case.expected_outputs if (path := file_path(item.url))]
    place = outputs[0].parent if outputs else None
    record = read_provenance(place) if place is not None else None
    if place is None or record is None or record.model is None:
        return
    for output in outputs:
        known = record.hashes.get(output.name) if output.parent == place and output.is_file() else None
        if known and hash_file(output) != known:
            yield f"{output.name} is not what was recorded"
    url = case.modules[-1].program.url
    if _as_named(url, place) != record.model.source:
        yield f"it was recorded with the model {record.model.source}"
    elif file_path(url):
        beside = {place / item.source: item.sha256 for item in (record.model, *record.model.data)}
        yield from (
            f"{file.name} has changed since it was recorded"
            for file, sha256 in beside.items()
            if sha256 and file.is_file() and hash_file(file) != sha256
        )
    fused = record.made_by == "onnxruntime" and not record.optimisations
    if fused and any(name.startswith(_QUANTISING) for _, name in count_operators(store.path(url))):
        yield "it was recorded with onnxruntime's graph optimisations, which change the numbers of quantised models"
    inputs = [item.source for item in record.inputs]
    others = [name for item in case.inputs if item.url and (name := _as_named(item.url, place)) not in inputs]
    yield from (f"it was recorded with another input than {name}" for name in others)


def output_folder(case: Case, spec: Spec) -> Path:
    """The folder of the outputs that a spec names, or the one named after the spec.

    Raises:
        UsageError: its outputs are no files of its own, or lie in several folders or outside of the specs.
    """
    own_folder = spec.path.with_suffix("")
    hint = f"Remove them from the spec to have outputs recorded in {own_folder.name}/."
    named = set()
    external = spec.tree.external
    for argument in case.expected_outputs:
        url = urlsplit(argument.url)
        if url.scheme == "file":
            path = Path(unquote(url.path))
            if spec.torch and path.is_relative_to(external) and not path.parent.is_dir():
                # External files come first; one that is nowhere yet goes next to the spec.
                path = spec.path.parent / path.relative_to(external)
            named.add(path.parent)
        elif argument.url:
            raise UsageError(f"{spec.name}: its outputs are no files of its own: {argument.url}", hint)
    if len(named) > 1:
        raise UsageError(f"{spec.name}: outputs lie in {len(named)} folders", "Keep them in one folder.")
    folder = named.pop() if named else own_folder
    if not any(resolve_links(folder).is_relative_to(resolve_links(place)) for place in (spec.tree.folder, external)):
        raise UsageError(f"{spec.name}: its outputs lie outside of the specs, in {folder}", hint)
    return folder


def _find_blind_spot(item: ModelOutput, allowed: Mapping[str, float]) -> tuple[str, bool]:
    """The worst thing that would pass for an output with tolerances by element type, empty for nothing such.

    Also whether zeros would pass in all of it.
    """
    element = item.type.rpartition("x")[2]
    atol = allowed.get(element, 0.0)
    known = atol and element in _IN_NPY
    content = np.frombuffer(item.file.read_bytes(), item.dtype) if known else np.empty(0)
    if not content.size or not np.isfinite(content).all():
        return "", False
    expected = content.reshape(item.shape).astype(np.float64)
    values = np.abs(expected)
    largest = float(values.max())
    spread = float(np.ptp(expected))
    limit = f"and the tolerance is {atol:g}"
    if 0 < largest <= atol:
        return f"zeros would pass: no value exceeds {largest:.3g}, {limit}", True
    if 0 < spread <= atol:
        return f"a constant would pass: its values differ by {spread:.3g}, {limit}", False
    for axis, count in enumerate(expected.shape):
        if 1 < count <= _MOST_SLICES and values.size >= _LEAST_VALUES * count:
            tops = np.moveaxis(values, axis, 0).reshape(count, -1).max(axis=1)
            hidden = (tops > 0) & (tops <= atol)
            if hidden.any():
                part = f"{int(hidden.sum())} of {count} slices of axis {axis}"
                return f"zeros would pass in {part}: they never exceed {tops[hidden].max():.3g}, {limit}", False
    if not atol > _VISIBLE * largest > 0:
        return "", False
    return f"mistakes of up to {100 * atol / largest:.2g} % of its largest value would pass, {largest:.3g}", False
