"""`init`: a project of one's own, with a model, a suite, settings and a workflow; it is green at once."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.figures import counted
from iree_gauntlet.settings import shown
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.upkeep.format_schemas import FORMATS, schema_text
from iree_gauntlet.upkeep.onnx_program import read_onnx

if TYPE_CHECKING:
    from iree_gauntlet.upkeep.onnx_program import OnnxProgram
    from iree_gauntlet.upkeep.upkeep_requests import InitRequest


_TEMPLATE = Path(__file__).with_name("new_project")
# Git reads it by this name; in ours it would count as our own.
_RENAMED = {"gitignore": ".gitignore"}
_EXAMPLE = "example"
_SCHEMAS = ".schemas"
_REGRESSIONS, _BENCHMARKS = Path("specs", "regression_tests"), Path("specs", "benchmarks")
# Of the spec of a program that was named.
_SPEC = "model_cpu"


def init(asked: InitRequest) -> ExitCode:
    """Begins a project; files that are there stay as they are.

    Raises:
        UsageError: there is one already, or the program cannot be read.
    """
    folder = Path(asked.folder or ".")
    if (folder / "specs").is_dir() and (folder / "suites").is_dir():
        raise UsageError(f"{folder.resolve()} is a project already: it has specs/ and suites/", "Name another folder.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", "Name a folder, which may be new.")
    program = read_onnx(Path(asked.program)) if asked.program else None
    made, kept = _write(folder, _files(program))
    if program is not None:
        place = folder / _REGRESSIONS / program.name / program.path.name
        shutil.copyfile(program.path, place)
        made.append(place)
    # A line for what editors read.
    listed = dict.fromkeys(path.parent if path.parent.name == _SCHEMAS else path for path in made)
    sys.stdout.write("".join(f"  {shown(path.absolute())}{'/' if path.is_dir() else ''}\n" for path in listed))
    sys.stdout.write("".join(f"  {shown(path.absolute())} is there already, and stays\n" for path in kept))
    sys.stdout.write(f"made {counted(len(made), 'file')}\n\n{_next(folder, program)}")
    return ExitCode.OK


def _files(program: OnnxProgram | None) -> dict[Path, bytes]:
    """What goes into a new project, by place in it."""
    files = {}
    for path in sorted(_TEMPLATE.rglob("*")):
        place = path.relative_to(_TEMPLATE)
        if path.is_file() and not (program and _EXAMPLE in place.parts):
            files[place.with_name(_RENAMED.get(place.name, place.name))] = path.read_bytes()
    # For editors: completion, and what is wrong as it is typed.
    files |= {Path(_SCHEMAS, f"{name}.json"): schema_text(name).encode() for name in FORMATS}
    if program is None:
        files[_REGRESSIONS / _EXAMPLE / "dense_cpu" / "output_0.npy"] = _expected_of_example()
        return files
    for place, spec in (
        (_REGRESSIONS / program.name / f"{_SPEC}.json", _regression_of(program)),
        (_BENCHMARKS / program.name / f"{_SPEC}.json", _benchmark_of(program)),
    ):
        files[place] = (json.dumps(spec, indent=4, ensure_ascii=False) + "\n").encode()
    return files


def _write(folder: Path, files: dict[Path, bytes]) -> tuple[list[Path], list[Path]]:
    made: list[Path] = []
    kept: list[Path] = []
    for place, content in files.items():
        path = folder / place
        if path.exists():
            kept.append(path)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
        made.append(path)
    return made, kept


def _expected_of_example() -> bytes:
    spec = json.loads((_TEMPLATE / _REGRESSIONS / _EXAMPLE / "dense_cpu.json").read_text(encoding="utf-8"))
    x, w = (parse_seeded(item["source"]).generate().astype(np.float64) for item in spec["inputs"])
    stream = io.BytesIO()
    np.save(stream, np.maximum(x @ w, 0).astype(np.float32))
    return stream.getvalue()


def _regression_of(program: OnnxProgram) -> dict[str, Any]:
    example = json.loads((_TEMPLATE / _REGRESSIONS / _EXAMPLE / "dense_cpu.json").read_text(encoding="utf-8"))
    return {
        "description": "Inputs are noise: choose some that the model can do something with.",
        "mlir": program.path.name,
        **({"onnx_import": program.onnx_import} if program.onnx_import else {}),
        "inputs": [{"source": f"random://{kind}"} for kind in program.random_inputs],
        "outputs": [{"source": f"{_SPEC}/output_{index}.npy"} for index in range(program.outputs)],
        "device": example["device"],
        "compiler_flags": example["compiler_flags"],
        "threshold_args": ["--expected_f32_threshold=1e-04"],
    }


def _benchmark_of(program: OnnxProgram) -> dict[str, Any]:
    example = json.loads((_TEMPLATE / _BENCHMARKS / _EXAMPLE / "dense_cpu.json").read_text(encoding="utf-8"))
    return {**example, "inputs": list(program.types), "function_run": program.function}


def _next(folder: Path, program: OnnxProgram | None) -> str:
    steps = [("cd " + str(folder), "")] if folder.resolve() != Path.cwd() else []
    if program is not None:
        record = f"gauntlet golden.record --model {program.name}"
        steps.append((record, "expected outputs, by onnxruntime (pip install 'iree-gauntlet[record]')"))
    steps.append(("gauntlet run", "compile, check the numbers, measure"))
    width = max(len(command) for command, _ in steps)
    lines = [f"  {command:{width}}  {f'# {why}' if why else ''}".rstrip() for command, why in steps]
    return "\n".join(("next:", *lines, ""))
