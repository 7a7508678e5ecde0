"""Recording of expected outputs: runs a program with a reference, and writes them next to its spec."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.artifacts.onnx_data import count_operators, list_data_files
from iree_gauntlet.dialects.locations import get_url_path
from iree_gauntlet.dialects.sharktank_schema import RegressionV1
from iree_gauntlet.dialects.spec_file import read_byte_order_mark, read_text
from iree_gauntlet.dialects.torch_schema import QualityTest
from iree_gauntlet.engine.commands import format_argument
from iree_gauntlet.engine.judging import PROVENANCE_FILE, read_provenance
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.measuring.numerics.tolerances import Tolerances, parse_tolerance, parse_tolerances
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.upkeep.exports import find_source
from iree_gauntlet.upkeep.json_edits import with_member
from iree_gauntlet.upkeep.program_kinds import read_program
from iree_gauntlet.upkeep.references import INPUTS_HINT, ReferencePlan, ReferenceResult, is_weak, list_references
from iree_gauntlet.workers.iree_side.value_errors import OutputTolerance

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cases import Argument, Case
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.upkeep.programs import ExportSource
    from iree_gauntlet.upkeep.references import ModelInput, ModelOutput, ReferenceSources, ReferenceWorkers


# Errors above this fraction of an output's largest value should be detected.
_MAX_BLIND_FRACTION = 0.01
# Slices with fewer values, and axes with more slices, do not show what a model computes.
_MIN_SLICE_VALUES, _MAX_SLICES = 8, 4096
# The types of outputs that are saved as .npy. iree-run-module reads integers of a .npy as signed, which never equal a
# module's computed outputs.
_NPY_TYPES = ("f16", "f32", "f64", "i1")
_LARGE_BYTES = 1_000_000
# The flags of a spec that say what its program means, and so are those of IREE another way too.
_INPUT_FLAGS = ("--iree-input-",)
_QUANT_OPS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinear", "ConvInteger", "MatMulInteger")
_RESTORED_FILE = "program.onnx"
_AGREEMENT_NOTE = "this is IREE itself: a pass is agreement, not proof, and a fault of both is not seen"
# The sentence of a spec's description about outputs that no reference computed.
_WEAK_NOTE = re.compile(r"\s*The expected outputs are those of [^;]*; a pass means that IREE agrees with itself\.")


@dataclass(frozen=True, slots=True)
class WeightEffect(Recorded):
    """The largest effect of scaling a tensor of a model by 1.01, in units of the tolerance; detected above 1."""

    name: str
    elements: int
    effect: float


@dataclass(frozen=True, slots=True)
class WeightEffects(Recorded):
    """The result of `golden_sensitivity`."""

    weights: tuple[WeightEffect, ...]


@dataclass(frozen=True, slots=True)
class OutputFile:
    """An output to be written.

    Attributes:
        source: its name in the spec.
        value: the tensor type for a file of raw values, which lacks it; otherwise empty.
    """

    path: Path
    content: bytes
    source: str
    value: str


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded expected outputs of a case, in the order of the graph's outputs.

    Attributes:
        reference: the program that computed them, `onnxruntime 1.32.0`.
        tolerance: flags for the allowed differences of outputs, if the spec had none.
    """

    outputs: tuple[OutputFile, ...]
    reference: str
    tolerance: tuple[str, ...]
    notes: tuple[str, ...]


def find_recording_obstacle(case: Case) -> str:
    """Return the reason that no reference can compute a case's outputs; empty if one can."""
    program = case.modules[-1].program
    is_onnx = program.onnx is not None
    paths = [Path(path) for argument in case.expected_outputs if (path := get_url_path(argument.url))]
    obstacle = ""
    if case.reference:
        obstacle = "there is nothing to record: onnxruntime gives its expected outputs in every run"
    elif len(case.calls) > 1:
        obstacle = "it makes several calls, and a reference makes one: write the outputs with the model's own framework"
    elif any(archive.url or archive.generated for archive in case.parameters):
        kind = ".onnx" if is_onnx else "program"
        obstacle = f"its weights lie outside of the {kind} file: no reference can load them"
    elif not is_onnx and (len(case.modules) > 1 or case.pipeline_modules):
        obstacle = "it runs several modules, of which no reference can run one in MLIR"
    elif not is_onnx and any(path.is_file() and read_provenance(path.parent) is None for path in paths):
        obstacle = (
            f"its program is {program.kind}, and its expected outputs are given: they were not recorded, and stay"
        )
    return obstacle


def record_outputs(
    case: Case, spec: Spec, store: ArtifactStore, sources: ReferenceSources, known_result: ReferenceResult | None = None
) -> Recording:
    """Record the expected outputs of a quality case, with their provenance, and name them in its spec.

    Args:
        case: its last module is of a program that `find_recording_obstacle` has nothing against.
        spec: the case's spec.
        store: fetches the model and its inputs.
        sources: the references.
        known_result: the result of a reference for the model and these inputs; None to run one.

    Raises:
        UsageError: the case cannot be recorded, or its outputs are useless as expected outputs.
        ArtifactError: the model or an input is not available.
        GauntletError: no reference can run the model.
    """
    folder = find_output_folder(case, spec)
    plan = _plan(case, store, sources.workers.folder)
    failure_text = f"{spec.name}: nothing was recorded"
    result = known_result or _run_reference(case, failure_text, plan, sources, folder)
    _require_worth(spec.name, result, plan.tolerances)
    outputs = tuple(_make_output(spec, folder, index, result, plan) for index in range(len(result.outputs)))
    provenance = _describe_provenance(case, store, plan, result, folder, outputs)
    folder.mkdir(parents=True, exist_ok=True)
    if result.model is not None:
        write_atomic(folder / _RESTORED_FILE, result.model.read_bytes())
    # The provenance is written last: if it exists and matches, all outputs exist.
    for output in outputs:
        write_atomic(output.path, output.content)
    write_atomic(folder / PROVENANCE_FILE, (json.dumps(provenance, indent=2, ensure_ascii=False) + "\n").encode())
    written_paths = {output.path for output in outputs}
    for stale_path in sorted({*folder.glob("output_*.npy"), *folder.glob("output_*.bin")} - written_paths):
        stale_path.unlink()
    tolerances_by_type = {element: OutputTolerance(**limits) for element, limits in result.allowed.items()}
    tolerance = () if plan.tolerances else make_tolerance_flags(tolerances_by_type)
    _write_to_spec(spec, outputs, tolerance, result.reference.agrees_with)
    limits = plan.tolerances or {element: limit.atol for element, limit in tolerances_by_type.items()}
    notes = ((_AGREEMENT_NOTE,) if result.reference.agrees_with else ()) + tuple(_list_notes(result, outputs, limits))
    return Recording(outputs, str(result.reference), tolerance, notes)


def _run_reference(
    case: Case, failure_text: str, plan: ReferencePlan, sources: ReferenceSources, folder: Path
) -> ReferenceResult:
    """Run the strongest reference that a case's program has here; `folder` has the previous outputs, if any.

    Raises:
        UsageError: the program cannot be read, or the previous outputs are of a reference, and only IREE is left.
        GauntletError: no reference can run it.
    """
    module = case.modules[-1]
    if module.program.onnx is not None:
        return sources.workers.run_worker("run_onnx", failure_text, plan, ReferenceResult)
    program = read_program(Path(plan.model), sources, name="", function=case.calls[0].function, shapes={})
    if len(plan.inputs[0]) != len(program.inputs):
        counts = f"the spec has {len(plan.inputs[0])}, and @{program.function} takes {len(program.inputs)}"
        raise UsageError(f"{failure_text}: inputs: {counts}", "Give an input for each argument, in order.")
    sources = replace(sources, flags=tuple(flag for flag in module.flags if flag.startswith(_INPUT_FLAGS)))
    reasons: list[str] = []
    previous = read_provenance(folder)
    if previous is not None and previous.exported_from is not None:
        try:
            program = find_source(program, previous.exported_from, folder, sources)
        except UsageError as error:
            reasons.append(error.message)
    for reference in list_references(program, sources):
        if previous is not None and previous.made_by and not previous.agrees_with and is_weak(reference):
            message = f"{failure_text}: its outputs are those of {previous.made_by}, and here is only IREE itself"
            raise UsageError(f"{message}: {'; '.join(reasons)}", f"Remove {PROVENANCE_FILE} to have weaker outputs.")
        try:
            if not isinstance(reference, str):
                result = reference.run(failure_text, plan)
                return replace(result, notes=(*reasons, *result.notes))
            reasons.append(reference)
        except GauntletError as error:
            reasons.append(error.message.removeprefix(f"{failure_text}: "))
    raise GauntletError(f"{failure_text}: {'; '.join(reasons)}", INPUTS_HINT)


def measure_weight_effects(case: Case, store: ArtifactStore, workers: ReferenceWorkers) -> Sequence[WeightEffect]:
    """Measure the effect of each weight of a quality case's model on its outputs, in the order of the file.

    Raises:
        UsageError, ArtifactError, GauntletError: as in `record_outputs`.
    """
    program = case.modules[-1].program
    if program.onnx is None:
        message = f"{case.origin.file}: its program is {program.kind}"
        raise UsageError(message, "Only weights of ONNX models are tried.")
    tolerances = parse_tolerances(case.run_flags)
    limits = {} if tolerances.exact else _read_allowed_by(tolerances)
    plan = replace(_plan(case, store, workers.folder), tolerances=limits)
    failure_text = f"{case.origin.file}: its weights were not tried"
    return workers.run_worker("golden_sensitivity", failure_text, plan, WeightEffects).weights


def make_tolerance_flags(tolerances: Mapping[str, OutputTolerance]) -> tuple[str, ...]:
    """Return iree-run-module's flags for a worker's allowed differences; none for a comparison of bytes."""
    if not tolerances:
        return ()
    flags = [f"--expected_{element}_threshold={tolerance.atol:g}" for element, tolerance in tolerances.items()]
    return (*flags, f"--expected_rtol={max(tolerance.rtol for tolerance in tolerances.values()):g}")


def _plan(case: Case, store: ArtifactStore, folder: Path) -> ReferencePlan:
    reason = find_recording_obstacle(case)
    if reason:
        raise UsageError(f"{case.origin.file}: {reason}", "Record with the framework that the program comes from.")
    flags = [flag for flag in (*case.run_flags, *case.own_flags) if parse_tolerance(flag) or "equality_mode" in flag]
    return ReferencePlan(
        model=str(store.fetch(case.modules[-1].program.url).path),
        inputs=(tuple(format_argument(argument, lambda url: str(store.fetch(url).path)) for argument in case.inputs),),
        cwd=case.working_directory or str(folder),
        folder=str(folder),
        tolerances=_read_allowed_by(parse_tolerances(flags)) if flags else None,
    )


def _read_allowed_by(tolerances: Tolerances) -> dict[str, float]:
    """Return the allowed differences by element type, and the relative one."""
    limits = {element: tolerances.get_as_written(element)[0] for element in ("f16", "bf16", "f32", "f64")}
    return limits | {"rtol": tolerances.get_as_written("f32")[1]}


def _require_worth(name: str, result: ReferenceResult, tolerances: Mapping[str, float] | None) -> None:
    """Raise UsageError if outputs differ from run to run, none can detect errors, or one is nothing but NaN."""
    if differing := [output.name for output in result.outputs if output.differs]:
        causes = f" ({', '.join(result.random)})" if result.random else ""
        differ = f"{', '.join(differing)} {'differs' if len(differing) == 1 else 'differ'} from run to run"
        message = f"{name}: nothing was recorded: {differ}{causes}"
        hint = "Outputs that differ each time cannot be expected: take the operators that make random numbers out."
        raise UsageError(message, hint)
    problems = []
    is_void = False
    for output in result.outputs:
        if output.count and output.nans == output.count:
            is_void = True
            problems.append(f"every value of output {output.name!r} ({output.type}) is NaN")
            continue
        blind_spot, zeros_pass = _find_blind_spot(output, tolerances or {})
        if zeros_pass:
            problem = f"{blind_spot}; remove the spec's tolerance to have one chosen"
            problems.append(f"output {output.name!r} ({output.type}): {problem}")
    if is_void or len(problems) == len(result.outputs):
        raise UsageError(f"{name}: nothing was recorded: {'; '.join(problems)}", INPUTS_HINT)


def _list_notes(result: ReferenceResult, outputs: Sequence[OutputFile], limits: Mapping[str, float]) -> Iterator[str]:
    """List notes for people about recorded outputs."""
    yield from result.notes
    for out in result.outputs:
        blind_spot, _ = _find_blind_spot(out, limits)
        name = f"{out.name} ({out.type})"
        if blind_spot:
            yield f"{name}: {blind_spot}"
        if out.count == 0:
            yield f"{name} has no values: its shape is compared"
        if out.nans:
            yield f"{name}: {out.nans} of {pluralize(out.count, 'value')} NaN, which is what is expected of IREE too"
        if out.infinities:
            yield f"{name}: {out.infinities} of {pluralize(out.count, 'value')} infinite"
        if out.count > 1 and out.least is not None and out.least == out.most:
            extent = "wherever it is a number" if out.nans + out.infinities else "everywhere"
            yield f"{name} is {out.least:g} {extent}: a model that always gives that would pass"
        for error, reference, consequence in (
            (out.optimised, "onnxruntime with its graph optimisations", "they are not those of the model"),
            (out.other, result.second, "one of the two is wrong"),
        ):
            if error is not None:
                error_text = f"by up to {error:.3g}" if error >= 0 else "by infinity, NaN or their shape"
                yield f"{name}: {reference} gives other numbers, {error_text}: {consequence}"
    total = sum(len(output.content) for output in outputs)
    if total > _LARGE_BYTES:
        yield f"outputs are {total / 1e6:.1f} MB together: smaller inputs keep a repository small"


def _make_output(spec: Spec, folder: Path, index: int, result: ReferenceResult, plan: ReferencePlan) -> OutputFile:
    """Make an output for writing."""
    output = result.outputs[index]
    content = output.file.read_bytes()
    # An input that a module passes through keeps the type of its .npy file.
    is_npy_input = output.input is not None and plan.inputs[0][output.input].startswith("@")
    is_npy = output.type.rpartition("x")[2] in _NPY_TYPES or is_npy_input
    if is_npy:
        stream = io.BytesIO()
        array = np.frombuffer(content, output.dtype).reshape(output.shape)
        np.lib.format.write_array(stream, array, version=(1, 0))
        content = stream.getvalue()
    path = folder / f"output_{index}.{'npy' if is_npy else 'bin'}"
    external = spec.tree.external
    # The file itself may be a link, which the spec names, so only its folder is resolved.
    resolved_path = resolve_links(path.parent) / path.name
    if spec.is_torch and resolved_path.is_relative_to(external):
        source = resolved_path.relative_to(external).as_posix()
    else:
        source = _make_path_beside(resolved_path, resolve_links(spec.path.parent))
    return OutputFile(path, content, source, "" if is_npy else output.type)


def _describe_provenance(
    case: Case,
    store: ArtifactStore,
    plan: ReferencePlan,
    result: ReferenceResult,
    folder: Path,
    outputs: Sequence[OutputFile],
) -> dict[str, Any]:
    """Return the provenance of outputs."""
    model, reference, source = Path(plan.model), result.reference, result.exported_from
    data_files = [model.parent / name for name in list_data_files(model)]
    data = {"data": [{"source": _make_path_beside(path, folder), "sha256": hash_file(path)} for path in data_files]}
    return {
        "made_by": reference.name,
        reference.name: reference.version,
        **({"optimisations": "off"} if reference.name == "onnxruntime" else {}),
        **({"agrees_with": reference.agrees_with} if reference.agrees_with else {}),
        **({"second": result.second} if result.second and not result.model else {}),
        **({"restored": _RESTORED_FILE} if result.model else {}),
        **({"exported_from": _describe_source(source, folder)} if source else {}),
        **({"imported_by": result.imported_by} if result.imported_by else {}),
        "numpy": np.__version__,
        **({} if reference.agrees_with or result.exported_from or reference.name == "xla" else {"threads": 1}),
        "model": {
            "source": _as_named(case.modules[-1].program.url, folder),
            "sha256": hash_file(model),
            "bytes": model.stat().st_size,
            **(data if data_files else {}),
        },
        "inputs": [
            _describe_input(argument, text, model_input, store, folder)
            for argument, text, model_input in zip(case.inputs, plan.inputs[0], result.inputs, strict=True)
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
            for item, output in zip(result.outputs, outputs, strict=True)
        ],
        "tolerance": result.allowed,
    }


def _describe_source(source: ExportSource, folder: Path) -> dict[str, str]:
    """Return the origin of an exported program, from which it can be exported again."""
    return {
        "source": source.name,
        "framework": source.framework,
        "path": _make_path_beside(source.path, folder),
        "function": source.function,
        "sha256": hash_file(source.path),
    }


def _describe_input(
    argument: Argument, text: str, model_input: ModelInput, store: ArtifactStore, folder: Path
) -> dict[str, Any]:
    """Return the provenance of an input: the hash of a file, or the text of a value in the spec."""
    artifact = store.fetch(argument.url) if argument.url else None
    value = "" if text.startswith("@") else text.partition("=")[0]
    return {
        "name": model_input.name,
        "source": _as_named(artifact.url, folder) if artifact else argument.value,
        **({"sha256": hash_file(artifact.path)} if artifact else {}),
        "shape": model_input.shape,
        "type": model_input.dtype,
        "declared_shape": model_input.declared_shape,
        **({"value": value} if value else {}),
    }


def _write_to_spec(spec: Spec, outputs: Sequence[OutputFile], tolerance: Sequence[str], agrees_with: str) -> None:
    """Write the outputs into their spec, and their tolerance, unless the spec has one; name IREE as their origin."""
    field, file, flags = "outputs", "source", "threshold_args"
    if isinstance(spec.document, QualityTest):
        field, file, flags = "expected_outputs", "url", "run_args"
    elif isinstance(spec.document, RegressionV1):
        flags = "cpu_threshold_args"
    old_text = new_text = read_text(spec.path, spec.name)
    entries = [{file: output.source} | ({"value": output.value} if output.value else {}) for output in outputs]
    if [entry.model_dump(exclude_none=True) for entry in getattr(spec.document, field)] != entries:
        new_text = with_member(new_text, field, entries)
    if tolerance:
        new_text = with_member(new_text, flags, [*getattr(spec.document, flags), *tolerance])
    description = getattr(spec.document, "description", "") or ""
    new_description = _WEAK_NOTE.sub("", description)
    if agrees_with:
        note = f"The expected outputs are those of {agrees_with}; a pass means that IREE agrees with itself."
        new_description = f"{new_description} {note}".lstrip()
    if new_description != description:
        new_text = with_member(new_text, "description", new_description)
    if new_text != old_text:
        write_atomic(spec.path, read_byte_order_mark(spec.path) + new_text)


def _make_path_beside(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _as_named(url: str, folder: Path) -> str:
    """Return a source as the provenance names it: a file by a relative path, which is valid on every machine."""
    parts = urlsplit(url)
    return _make_path_beside(Path(unquote(parts.path)), folder) if parts.scheme == "file" else url


def check_recording(case: Case, store: ArtifactStore) -> Iterator[str]:
    """Report differences from the recording of a quality case's expected outputs, as far as files are present.

    The content of models and inputs behind URLs is left to the registry of hashes. A model in the store is searched for
    operators whose numbers depend on how they were recorded.
    """
    outputs = [Path(path) for argument in case.expected_outputs if (path := get_url_path(argument.url))]
    folder = outputs[0].parent if outputs else None
    record = read_provenance(folder) if folder is not None else None
    if folder is None or record is None or record.model is None:
        return
    for output in outputs:
        recorded_hash = record.hashes.get(output.name) if output.parent == folder and output.is_file() else None
        if recorded_hash and hash_file(output) != recorded_hash:
            yield f"{output.name} is not what was recorded"
    url = case.modules[-1].program.url
    if _as_named(url, folder) != record.model.source:
        yield f"it was recorded with the model {record.model.source}"
    elif get_url_path(url):
        recorded_files = {folder / source.source: source.sha256 for source in (record.model, *record.model.data)}
        yield from (
            f"{file.name} has changed since it was recorded"
            for file, sha256 in recorded_files.items()
            if sha256 and file.is_file() and hash_file(file) != sha256
        )
    has_optimisations = record.made_by == "onnxruntime" and not record.optimisations
    if has_optimisations and any(name.startswith(_QUANT_OPS) for _, name in count_operators(store.path(url))):
        yield "it was recorded with onnxruntime's graph optimisations, which change the numbers of quantised models"
    inputs = [source.source for source in record.inputs]
    names = [
        name for argument in case.inputs if argument.url and (name := _as_named(argument.url, folder)) not in inputs
    ]
    yield from (f"it was recorded with another input than {name}" for name in names)


def find_output_folder(case: Case, spec: Spec) -> Path:
    """Find the folder of a spec's outputs, or the one named after the spec.

    Raises:
        UsageError: outputs are not the spec's own files, or are in several folders or outside of the specs.
    """
    default_folder = spec.path.with_suffix("")
    hint = f"Remove them from the spec to have outputs recorded in {default_folder.name}/."
    folders = set()
    external = spec.tree.external
    for argument in case.expected_outputs:
        url = urlsplit(argument.url)
        if url.scheme == "file":
            path = Path(unquote(url.path))
            if spec.is_torch and path.is_relative_to(external) and not path.parent.is_dir():
                # External files have precedence; a file that does not exist yet goes next to the spec.
                path = spec.path.parent / path.relative_to(external)
            folders.add(path.parent)
        elif argument.url:
            raise UsageError(f"{spec.name}: its outputs are no files of its own: {argument.url}", hint)
    if len(folders) > 1:
        raise UsageError(f"{spec.name}: outputs lie in {len(folders)} folders", "Keep them in one folder.")
    folder = folders.pop() if folders else default_folder
    if not any(resolve_links(folder).is_relative_to(resolve_links(root)) for root in (spec.tree.folder, external)):
        raise UsageError(f"{spec.name}: its outputs lie outside of the specs, in {folder}", hint)
    return folder


def _find_blind_spot(output: ModelOutput, limits: Mapping[str, float]) -> tuple[str, bool]:
    """Find the worst error in an output that the tolerances (by element type) would accept; empty for none.

    Also return True if all zeros would pass.
    """
    element = output.type.rpartition("x")[2]
    atol = limits.get(element, 0.0)
    needs_check = atol and element in _NPY_TYPES
    content = np.frombuffer(output.file.read_bytes(), output.dtype) if needs_check else np.empty(0)
    if not content.size or not np.isfinite(content).all():
        return "", False
    expected_values = content.reshape(output.shape).astype(np.float64)
    values = np.abs(expected_values)
    largest = float(values.max())
    spread = float(np.ptp(expected_values))
    limit = f"and the tolerance is {atol:g}"
    if 0 < largest <= atol:
        return f"zeros would pass: no value exceeds {largest:.3g}, {limit}", True
    if 0 < spread <= atol:
        return f"a constant would pass: its values differ by {spread:.3g}, {limit}", False
    for axis, count in enumerate(expected_values.shape):
        if 1 < count <= _MAX_SLICES and values.size >= _MIN_SLICE_VALUES * count:
            maxima = np.moveaxis(values, axis, 0).reshape(count, -1).max(axis=1)
            blind = (maxima > 0) & (maxima <= atol)
            if blind.any():
                slices = f"{int(blind.sum())} of {count} slices of axis {axis}"
                return (f"zeros would pass in {slices}: they never exceed {maxima[blind].max():.3g}, {limit}", False)
    if not atol > _MAX_BLIND_FRACTION * largest > 0:
        return "", False
    return f"mistakes of up to {100 * atol / largest:.2g} % of its largest value would pass, {largest:.3g}", False
