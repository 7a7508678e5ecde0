"""A model that somebody brings, as a part of a project: its inputs, its spec and its benchmark."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.artifacts.seeded import parse_seeded, write_seeded
from iree_gauntlet.dialects.json_text import with_member
from iree_gauntlet.engine.recording import tolerance_flags
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.upkeep.given_data import file_content
from iree_gauntlet.upkeep.input_choices import input_sets
from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, raw_bytes, tensor_type
from iree_gauntlet.workers.iree_side.rounding import FLOAT_TYPES, allow_of_others, difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.engine.reference_workers import ReferenceWorkers
    from iree_gauntlet.upkeep.input_choices import InputChoice
    from iree_gauntlet.upkeep.onnx_program import OnnxProgram


REGRESSIONS, BENCHMARKS = Path("specs", "regression_tests"), Path("specs", "benchmarks")
# Of the spec of a program.
SPEC = "model_cpu"
_KEEP_F64 = "--iree-input-demote-f64-to-f32=false"


@dataclass(frozen=True, slots=True)
class ChosenInputs:
    """What a program is given.

    Attributes:
        choices: one for each of its inputs.
        tried: why other ones were not taken: what a reference said of them, each once.
        runs: whether a reference ran the program on these; None where none was asked.
        said: what it said of them (`run_onnx`); None where it did not run.
    """

    choices: tuple[InputChoice, ...]
    tried: tuple[str, ...] = ()
    runs: bool | None = None
    said: Mapping[str, Any] | None = None


def choose_inputs(program: OnnxProgram, workers: ReferenceWorkers | None) -> ChosenInputs:
    """The first inputs that a reference can run the program on; the likeliest ones where none can, or none is there."""
    sets = list(input_sets(program.inputs, program.model))
    if workers is None:
        return ChosenInputs(sets[0])
    tried: list[str] = []
    idle: ChosenInputs | None = None
    # Mostly the first one will do.
    for name, wanted in (("first", sets[:1]), ("others", sets[1:])):
        if not wanted:
            break
        plan = _plan(program, wanted, workers.folder / name, last=wanted[-1] is sets[-1])
        try:
            said = workers.answer("run_onnx", program.path.name, plan)
        except GauntletError as error:
            tried.append(error.what.removeprefix(f"{program.path.name}: "))
            continue
        tried += said["refused"]
        found = ChosenInputs(wanted[said["taken"]], tuple(dict.fromkeys(tried)), runs=True, said=said)
        if said["tells"]:
            return found
        idle = idle or found
    return idle or ChosenInputs(sets[0], tuple(dict.fromkeys(tried)), runs=False)


def _plan(program: OnnxProgram, sets: Sequence[Sequence[InputChoice]], folder: Path, *, last: bool) -> dict[str, Any]:
    """What `run_onnx` is told: to run a program on the first of several sets of inputs that will do.

    Args:
        program: what is run.
        sets: in the order of trying.
        folder: a new one, for the files of inputs and outputs.
        last: whether no other sets follow.
    """
    folder.mkdir()
    return {
        "model": str(program.path.resolve()),
        "inputs": [[_given(choice, folder) for choice in choices] for choices in sets],
        "cwd": str(folder),
        "folder": str(folder),
        "tolerances": None,
        "last": last,
    }


def check_outputs(
    program: OnnxProgram, choices: Sequence[InputChoice], outputs: Sequence[NDArray[Any]], workers: ReferenceWorkers
) -> list[str]:
    """What a reference says of outputs that somebody gave, a line for each that it computes otherwise.

    Raises:
        UsageError: one has another shape than the program gives.
    """
    plan = _plan(program, [choices], workers.folder / "given", last=True)
    try:
        said = workers.answer("run_onnx", program.path.name, plan)
    except GauntletError as error:
        return [f"no reference has checked the outputs: {error.what}"]
    by = "{name} {version}".format_map(said["reference"])
    found = []
    for item, array in zip(said["outputs"], outputs, strict=True):
        name = f"output {item['name']}"
        if list(array.shape) != item["shape"]:
            what = f"--data: {name} is {list(array.shape)}, and {by} gives {item['shape']} for these inputs"
            raise UsageError(what, "Give outputs of these inputs, or none to have them recorded.")
        element = ELEMENT_TYPES[array.dtype.name]
        computed = _read_back(item, array)
        limit = allow_of_others(element, [array]).atol if element in FLOAT_TYPES else 0.0
        apart = difference(array, computed)
        if not item["differs"] and apart > limit:
            how_far = f", by up to {apart:.3g}" if math.isfinite(apart) else ""
            found.append(f"{name}: {by} gives other numbers{how_far}")
    return found


def _read_back(item: Mapping[str, Any], like: NDArray[Any]) -> NDArray[Any]:
    """An output of a worker, as an array of another's type."""
    content = Path(item["file"]).read_bytes()
    if raw_bytes(like) == content:
        return like
    if len(content) != like.nbytes:
        # Several values share a byte: they are the same, or they are not.
        return np.frombuffer(content, np.uint8)
    return np.frombuffer(content, like.dtype).reshape(like.shape)


def _given(choice: InputChoice, folder: Path) -> str:
    """What is chosen, as iree-run-module takes it, with its file in a folder."""
    if choice.values:
        return choice.literal
    if choice.content is not None:
        path = folder / f"{abs(hash(choice))}{choice.suffix}"
        path.write_bytes(choice.content)
    else:
        seeded = parse_seeded(choice.source)
        path = folder / f"{abs(hash(choice))}{seeded.suffix}"
        if not path.exists():
            write_seeded(choice.source, path)
    return f"@{path}" if path.suffix == ".npy" else f"{choice.type}=@{path}"


def model_files(
    program: OnnxProgram,
    choices: Sequence[InputChoice],
    outputs: Sequence[NDArray[Any]],
    description: str,
    templates: Path,
) -> dict[Path, bytes | Path]:
    """What a program is copied to, with its weights; its inputs, outputs that are known, spec and benchmark.

    Args:
        program: of somebody's.
        choices: one for each of its inputs.
        outputs: that are expected; empty where they are still to be recorded.
        description: the spec's.
        templates: a new project, whose specs have the flags.
    """
    regressions, benchmarks = REGRESSIONS / program.name, BENCHMARKS / program.name
    regression, benchmark = (
        json.loads((templates / kind / "example" / "dense_cpu.json").read_text(encoding="utf-8"))
        for kind in (REGRESSIONS, BENCHMARKS)
    )
    onnx_import = program.onnx_import(choices)
    given = [_given_output(index, array) for index, array in enumerate(outputs)]
    spec = {
        "description": description,
        "mlir": program.path.name,
        **({"onnx_import": onnx_import} if onnx_import else {}),
        "inputs": [_in_spec(index, choice) for index, choice in enumerate(choices)],
        "outputs": [named for named, _ in given]
        # Until they are recorded, that they are missing is an error.
        or [{"source": f"{SPEC}/output_{index}.npy"} for index in range(program.outputs)],
        "device": regression["device"],
        "compiler_flags": [*regression["compiler_flags"], *((_KEEP_F64,) if program.has_f64 else ())],
        **({"threshold_args": list(_tolerance_of(outputs))} if given else {}),
    }
    timed = {"inputs": [choice.for_benchmark for choice in choices], "function_run": program.function}
    return {
        regressions / f"{SPEC}.json": _json(spec),
        benchmarks / f"{SPEC}.json": _json({**benchmark, **timed}),
        regressions / program.path.name: program.path,
        **{regressions / item.relative_to(program.path.parent): item for item in program.data},
        **{
            regressions / SPEC / f"input_{index}{choice.suffix}": choice.content
            for index, choice in enumerate(choices)
            if choice.content is not None
        },
        **{regressions / named["source"]: content for named, content in given},
    }


def _given_output(index: int, array: NDArray[Any]) -> tuple[dict[str, str], bytes]:
    """How a spec names an output that somebody had, and the content of its file."""
    content = file_content(array)
    if content.startswith(b"\x93NUMPY"):
        return {"source": f"{SPEC}/output_{index}.npy"}, content
    return {"source": f"{SPEC}/output_{index}.bin", "value": tensor_type(f"output_{index}", array)}, content


def _tolerance_of(outputs: Sequence[NDArray[Any]]) -> tuple[str, ...]:
    """The flags for outputs of another program."""
    by_type: dict[str, list[NDArray[Any]]] = {}
    for array in outputs:
        by_type.setdefault(ELEMENT_TYPES[array.dtype.name], []).append(array)
    floats = {name: asdict(allow_of_others(name, arrays)) for name, arrays in by_type.items() if name in FLOAT_TYPES}
    return tolerance_flags(floats)


def _in_spec(index: int, choice: InputChoice) -> dict[str, str]:
    if choice.values:
        return {"value": choice.literal}
    if choice.content is None:
        return {"source": choice.source}
    typed = {} if choice.suffix == ".npy" else {"value": choice.type}
    return {"source": f"{SPEC}/input_{index}{choice.suffix}", **typed}


def _json(content: dict[str, Any]) -> bytes:
    text = "{\n}\n"
    for key, value in content.items():
        text = with_member(text, key, value)
    return text.encode()
