"""Recording expected outputs: a model's published ONNX file, run as it says itself, next to its spec."""

from __future__ import annotations

import hashlib
import io
import json
import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import numpy as np

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.artifacts.onnx_data import list_data_files, operators
from iree_gauntlet.dialects.json_text import with_member
from iree_gauntlet.dialects.locations import file_path
from iree_gauntlet.dialects.sharktank_schema import RegressionV1
from iree_gauntlet.dialects.spec_file import read_text
from iree_gauntlet.dialects.torch_schema import QualityTest
from iree_gauntlet.engine.commands import argument_text
from iree_gauntlet.engine.reference_workers import CHOOSE_INPUTS
from iree_gauntlet.errors import UsageError
from iree_gauntlet.figures import counted
from iree_gauntlet.measuring.numerics.tolerances import Tolerances, parse_tolerance, parse_tolerances
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cases import Argument, Case
    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.engine.reference_workers import ReferenceWorkers


# A mistake of so much of an output's largest value should show.
_VISIBLE = 0.01
# Slices of fewer values, and axes of more slices, say little of what a model computes.
_LEAST_VALUES, _MOST_SLICES = 8, 4096
_PROVENANCE = "provenance.json"
# Types of outputs that a .npy file can say; iree-run-module reads its integers as signed, which equal no output that a
# module computes.
_IN_NPY = ("f16", "f32", "f64", "i1")
_LARGE_BYTES = 1_000_000
# What else computed outputs, and what follows where they differ.
_OTHERS = (
    ("optimised", "onnxruntime with its graph optimisations", "they are not those of the model"),
    ("other", "the other of onnxruntime and onnx's evaluator", "one of the two is wrong"),
)
_QUANTISING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinear", "ConvInteger", "MatMulInteger")


@dataclass(frozen=True, slots=True)
class RecordedOutput:
    """An output that was written.

    Attributes:
        source: what the spec names it by.
        value: its tensor type where the file does not say it (raw values), else empty.
    """

    path: Path
    source: str
    value: str


@dataclass(frozen=True, slots=True)
class Recording:
    """Expected outputs of a case, as they were recorded.

    Attributes:
        outputs: in the order of the graph's.
        reference: what computed them, `onnxruntime 1.32.0`.
        tolerance: flags that say what outputs may differ by, where the spec said nothing.
        notes: what a person should know of them.
    """

    outputs: tuple[RecordedOutput, ...]
    reference: str
    tolerance: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeightEffect:
    """What scaling one tensor of a model by 1.01 does to its outputs.

    Attributes:
        effect: the largest difference in units of what the tolerance allows; above 1 it is seen.
    """

    name: str
    elements: int
    effect: float


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
    case: Case, spec: Spec, store: ArtifactStore, workers: ReferenceWorkers, known: Mapping[str, Any] | None = None
) -> Recording:
    """Records the expected outputs of a quality case, with their provenance, and names them in its spec.

    Args:
        case: a case whose last module is of an ONNX program.
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
    plan = _plan(case, store, workers.folder) | {"folder": str(workers.folder)}
    answer = known or workers.answer(
        "run_onnx", f"{spec.name}: nothing was recorded", {**plan, "inputs": [plan["inputs"]], "last": True}
    )
    _require_worth(spec.name, answer, plan["tolerances"])
    files = [_make_file(folder, index, item, plan["inputs"]) for index, item in enumerate(answer["outputs"])]
    provenance = _describe_provenance(case, store, plan, answer, folder, files)
    folder.mkdir(parents=True, exist_ok=True)
    # The provenance last: where it is there and fits, the outputs are all there.
    for path, content, _ in files:
        write_atomic(path, content)
    write_atomic(folder / _PROVENANCE, (json.dumps(provenance, indent=2, ensure_ascii=False) + "\n").encode())
    written = {path for path, _, _ in files}
    for stale in sorted({*folder.glob("output_*.npy"), *folder.glob("output_*.bin")} - written):
        stale.unlink()
    outputs = tuple(RecordedOutput(path, _name(path, spec), value) for path, _, value in files)
    tolerance = () if plan["tolerances"] else tolerance_flags(answer["allowed"])
    _name_in(spec, outputs, tolerance)
    reference = "{name} {version}".format_map(answer["reference"])
    return Recording(outputs, reference, tolerance, tuple(_list_notes(answer, files, plan["tolerances"])))


def weight_effects(case: Case, store: ArtifactStore, workers: ReferenceWorkers) -> list[WeightEffect]:
    """What each weight of a quality case's model does to its outputs, in the order of the file.

    Args:
        case: a case whose last module is of an ONNX program.
        store: fetches the model and its inputs.
        workers: run the model.

    Raises:
        UsageError, ArtifactError, GauntletError: as of `record_outputs`.
    """
    plan = _plan(case, store, workers.folder)
    tolerances = parse_tolerances(case.run_flags)
    plan["tolerances"] = {} if tolerances.exact else _read_allowed_by(tolerances)
    found = workers.answer("golden_sensitivity", f"{case.origin.file}: its weights were not tried", plan)
    return [WeightEffect(item["name"], item["elements"], float(item["effect"])) for item in found["weights"]]


def tolerance_flags(allowed: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """The flags of iree-run-module for what a worker says may differ; none where all is compared by its bytes."""
    if not allowed:
        return ()
    flags = [f"--expected_{element}_threshold={item['atol']:g}" for element, item in allowed.items()]
    return (*flags, f"--expected_rtol={max(item['rtol'] for item in allowed.values()):g}")


def _plan(case: Case, store: ArtifactStore, folder: Path) -> dict[str, Any]:
    """What every worker is told: the model, its inputs, and what the spec allows outputs to differ by."""
    reason = why_not(case)
    if reason:
        raise UsageError(f"{case.origin.file}: {reason}", "Record with the framework that the program comes from.")
    written = [flag for flag in (*case.run_flags, *case.own_flags) if parse_tolerance(flag) or "equality_mode" in flag]
    return {
        "model": str(store.fetch(case.modules[-1].program.url).path),
        "inputs": [argument_text(item, lambda url: str(store.fetch(url).path)) for item in case.inputs],
        "cwd": case.working_directory or str(folder),
        "tolerances": _read_allowed_by(parse_tolerances(written)) if written else None,
    }


def _read_allowed_by(tolerances: Tolerances) -> dict[str, float]:
    """What is allowed, by element type; and relatively."""
    allowed = {element: tolerances.written(element)[0] for element in ("f16", "bf16", "f32", "f64")}
    return allowed | {"rtol": tolerances.written("f32")[1]}


def _require_worth(name: str, answer: Mapping[str, Any], given: Mapping[str, float] | None) -> None:
    """Raises UsageError where outputs differ from run to run, or none of them can tell right from wrong."""
    if differing := [item["name"] for item in answer["outputs"] if item["differs"]]:
        makers = f" ({', '.join(answer['random'])})" if answer["random"] else ""
        differ = f"{', '.join(differing)} {'differs' if len(differing) == 1 else 'differ'} from run to run"
        what = f"{name}: nothing was recorded: {differ}{makers}"
        hint = "Outputs that differ each time cannot be expected: take the operators that make random numbers out."
        raise UsageError(what, hint)
    idle = [why for item in answer["outputs"] if (why := _explain_why_idle(item, given))]
    if len(idle) == len(answer["outputs"]):
        raise UsageError(f"{name}: nothing was recorded: {'; '.join(idle)}", CHOOSE_INPUTS)


def _explain_why_idle(item: Mapping[str, Any], given: Mapping[str, float] | None) -> str:
    """Why an output cannot tell anything; empty where it can."""
    if item["count"] and item["nans"] == item["count"]:
        return f"every value of output {item['name']!r} ({item['type']}) is NaN"
    hidden, zeros_pass = _inspect_output(item, given or {})
    if zeros_pass:
        return f"output {item['name']!r} ({item['type']}): {hidden}; remove the spec's tolerance to have one chosen"
    return ""


def _inspect_output(item: Mapping[str, Any], allowed: Mapping[str, float]) -> tuple[str, bool]:
    """What `_find_blind_spot` finds in an output with these tolerances by element type."""
    element = item["type"].rpartition("x")[2]
    limit = allowed.get(element, 0.0)
    if not limit or element not in _IN_NPY:
        return "", False
    array = np.frombuffer(Path(item["file"]).read_bytes(), item["dtype"]).reshape(item["shape"])
    return _find_blind_spot(array, limit)


def _list_notes(
    answer: Mapping[str, Any], files: Sequence[tuple[Path, bytes, str]], given: Mapping[str, float] | None
) -> Iterator[str]:
    """What a person should know of outputs that were recorded."""
    yield from answer["notes"]
    allowed = given or {element: item["atol"] for element, item in answer["allowed"].items()}
    for item in answer["outputs"]:
        hidden, _ = _inspect_output(item, allowed)
        if hidden:
            yield f"{item['name']} ({item['type']}): {hidden}"
        name, count = f"{item['name']} ({item['type']})", item["count"]
        if count == 0:
            yield f"{name} has no values: its shape is compared"
        if item["nans"]:
            yield f"{name}: {item['nans']} of {counted(count, 'value')} NaN, which is what is expected of IREE too"
        if item["infinities"]:
            yield f"{name}: {item['infinities']} of {counted(count, 'value')} infinite"
        if count > 1 and item["least"] is not None and item["least"] == item["most"]:
            where = "wherever it is a number" if item["nans"] + item["infinities"] else "everywhere"
            yield f"{name} is {item['least']:g} {where}: a model that always gives that would pass"
        for side, said, so in _OTHERS:
            if item[side] is not None:
                apart = f"by up to {item[side]:.3g}" if item[side] >= 0 else "by infinity, NaN or their shape"
                yield f"{name}: {said} gives other numbers, {apart}: {so}"
    total = sum(len(content) for _, content, _ in files)
    if total > _LARGE_BYTES:
        yield f"outputs are {total / 1e6:.1f} MB together: smaller inputs keep a repository small"


def _make_file(folder: Path, index: int, item: Mapping[str, Any], inputs: Sequence[str]) -> tuple[Path, bytes, str]:
    """Path and content of an output, and its type where the content does not say it.

    An input that a module hands through keeps the type that it came with, the .npy file's.
    """
    content = Path(item["file"]).read_bytes()
    signed = item["input"] is not None and inputs[item["input"]].startswith("@")
    if item["type"].rpartition("x")[2] in _IN_NPY or signed:
        stream = io.BytesIO()
        array = np.frombuffer(content, item["dtype"]).reshape(item["shape"])
        np.lib.format.write_array(stream, array, version=(1, 0))
        return folder / f"output_{index}.npy", stream.getvalue(), ""
    return folder / f"output_{index}.bin", content, item["type"]


def _describe_provenance(
    case: Case,
    store: ArtifactStore,
    plan: Mapping[str, Any],
    answer: Mapping[str, Any],
    folder: Path,
    files: Sequence[tuple[Path, bytes, str]],
) -> dict[str, Any]:
    """What outputs were made from."""
    model = Path(plan["model"])
    reference = answer["reference"]
    beside = [model.parent / name for name in list_data_files(model)]
    data = {"data": [{"source": _make_path_beside(path, folder), "sha256": hash_file(path)} for path in beside]}
    return {
        "made_by": reference["name"],
        reference["name"]: reference["version"],
        **({"optimisations": "off"} if reference["name"] == "onnxruntime" else {}),
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
            for argument, text, known in zip(case.inputs, plan["inputs"], answer["inputs"], strict=True)
        ],
        "outputs": [
            {
                "name": item["name"],
                "source": path.name,
                "sha256": hashlib.sha256(content).hexdigest(),
                "shape": item["shape"],
                "type": item["dtype"],
                "min": item["least"],
                "max": item["most"],
                **{name: item[name] for name in ("nans", "infinities") if item[name]},
                **({"value": value} if value else {}),
            }
            for item, (path, content, value) in zip(answer["outputs"], files, strict=True)
        ],
        "tolerance": answer["allowed"],
    }


def _describe_input(
    argument: Argument, text: str, known: Mapping[str, Any], store: ArtifactStore, folder: Path
) -> dict[str, Any]:
    """What a provenance says of an input: of a file its hash, of what is written in the spec the text."""
    fetched = store.fetch(argument.url) if argument.url else None
    value = "" if text.startswith("@") else text.partition("=")[0]
    return {
        "name": known["name"],
        "source": _as_named(fetched.url, folder) if fetched else argument.value,
        **({"sha256": hash_file(fetched.path)} if fetched else {}),
        "shape": known["shape"],
        "type": known["dtype"],
        "declared_shape": known["declared_shape"],
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
        write_atomic(spec.path, after.encode())


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
    record = outputs[0].with_name(_PROVENANCE) if outputs else None
    if record is None or not record.is_file():
        return
    try:
        found = json.loads(record.read_text(encoding="utf-8"))
        kept = {record.parent / item["source"]: item["sha256"] for item in found["outputs"]}
        inputs = [item["source"] for item in found["inputs"]]
        model, files = found["model"], [found["model"], *found["model"].get("data", ())]
        fused = found["made_by"] == "onnxruntime" and "optimisations" not in found
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
    if fused and any(name.startswith(_QUANTISING) for name in operators(store.path(url))):
        yield "it was recorded with onnxruntime's graph optimisations, which change the numbers of quantised models"
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
            named.add(_locate_folder(Path(unquote(url.path)), spec))
        elif argument.url:
            raise UsageError(f"{spec.name}: its outputs are no files of its own: {argument.url}", hint)
    if len(named) > 1:
        raise UsageError(f"{spec.name}: outputs lie in {len(named)} folders", "Keep them in one folder.")
    folder = named.pop() if named else own_folder
    if not any(folder.resolve().is_relative_to(place.resolve()) for place in (spec.tree.folder, spec.tree.external)):
        raise UsageError(f"{spec.name}: its outputs lie outside of the specs, in {folder}", hint)
    return folder


def _locate_folder(path: Path, spec: Spec) -> Path:
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


def _find_blind_spot(expected: NDArray[Any], atol: float) -> tuple[str, bool]:
    """The worst thing that would pass for an output, empty for nothing such; and whether zeros would in all of it."""
    values = np.abs(expected.astype(np.float64))
    if not atol or not values.size or not np.isfinite(values).all():
        return "", False
    largest = float(values.max())
    spread = float(np.ptp(expected.astype(np.float64)))
    allowed = f"and the tolerance is {atol:g}"
    if 0 < largest <= atol:
        return f"zeros would pass: no value exceeds {largest:.3g}, {allowed}", True
    if 0 < spread <= atol:
        return f"a constant would pass: its values differ by {spread:.3g}, {allowed}", False
    for axis, count in enumerate(expected.shape):
        if 1 < count <= _MOST_SLICES and values.size >= _LEAST_VALUES * count:
            tops = np.moveaxis(values, axis, 0).reshape(count, -1).max(axis=1)
            hidden = (tops > 0) & (tops <= atol)
            if hidden.any():
                part = f"{int(hidden.sum())} of {count} slices of axis {axis}"
                return f"zeros would pass in {part}: they never exceed {tops[hidden].max():.3g}, {allowed}", False
    if atol > _VISIBLE * largest > 0:
        return f"mistakes of up to {100 * atol / largest:.2g} % of its largest value would pass, {largest:.3g}", False
    return "", False
