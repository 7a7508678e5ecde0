"""`init`: a project of one's own, with a model, a suite, settings and a workflow; it is green at once."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet import messages
from iree_gauntlet.artifacts.publishing import publishing
from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.figures import counted
from iree_gauntlet.settings import project_folder, shown
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.upkeep.format_schemas import FORMATS, schema_text
from iree_gauntlet.upkeep.onnx_program import parse_shapes, read_onnx

if TYPE_CHECKING:
    from iree_gauntlet.upkeep.onnx_program import OnnxProgram
    from iree_gauntlet.upkeep.upkeep_requests import InitRequest


_TEMPLATE = Path(__file__).with_name("new_project")
# Git reads it by this name; in ours it would count as our own.
_RENAMED = {"gitignore": ".gitignore"}
_EXAMPLE = "example"
_SCHEMAS = ".schemas"
_WORKFLOW = Path(".github", "workflows", "gauntlet.yml")
_REGRESSIONS, _BENCHMARKS = Path("specs", "regression_tests"), Path("specs", "benchmarks")
# Of the spec of a program that was named.
_SPEC = "model_cpu"


def init(asked: InitRequest) -> ExitCode:
    """Begins a project, or adds a model to one; files that are there stay as they are.

    Raises:
        UsageError: there is one already, with that model; the program cannot be read; or a file cannot be written.
    """
    # In a project, wherever in it a command is typed.
    folder = Path(asked.folder) if asked.folder else shown(project_folder())
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", "Name a folder, which may be new.")
    if (asked.shape or asked.name) and not asked.program:
        raise UsageError("--shape and --name are of a program", "Give --program FILE too.")
    program = read_onnx(Path(asked.program), asked.name, parse_shapes(asked.shape)) if asked.program else None
    is_project = (folder / "specs").is_dir() and (folder / "suites").is_dir()
    if is_project and program is None:
        what = f"{folder.resolve()} is a project already: it has specs/ and suites/"
        raise UsageError(what, "`init --program FILE` adds a model; or name another folder.")
    places = [folder / kind / program.name for kind in (_REGRESSIONS, _BENCHMARKS)] if program else []
    if there := [str(place) for place in places if place.exists()]:
        hint = "--name gives the model another name; to begin it again, remove what is there."
        raise UsageError(f"there already: {' and '.join(there)}", hint)
    files = _of_program(program) if program else {}
    try:
        made, kept = _write(folder, files if is_project else _of_project(program) | files)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}", "Name a folder that can be written to.") from error
    if not messages.is_quiet():
        # A line for what editors read.
        listed = dict.fromkeys(path.parent if path.parent.name == _SCHEMAS else path for path in made)
        sys.stdout.write("".join(f"  {shown(path.absolute())}{'/' if path.is_dir() else ''}\n" for path in listed))
        sys.stdout.write("".join(f"  {shown(path.absolute())} is there already, and stays\n" for path in kept))
    sys.stdout.write(f"made {counted(len(made), 'file')}\n")
    if not messages.is_quiet():
        sys.stdout.write(
            f"{_assumed(program)}{_elsewhere(folder) if folder / _WORKFLOW in made else ''}\n{_next(folder, program)}"
        )
    return ExitCode.OK


def _of_project(program: OnnxProgram | None) -> dict[Path, bytes | Path]:
    """What goes into a new project, by place in it; without the example where there is a program."""
    files: dict[Path, bytes | Path] = {}
    for path in sorted(_TEMPLATE.rglob("*")):
        place = path.relative_to(_TEMPLATE)
        if path.is_file() and not (program and _EXAMPLE in place.parts):
            files[place.with_name(_RENAMED.get(place.name, place.name))] = path.read_bytes()
    # For editors: completion, and what is wrong as it is typed.
    files |= {Path(_SCHEMAS, f"{name}.json"): schema_text(name).encode() for name in FORMATS}
    if program is None:
        files[_REGRESSIONS / _EXAMPLE / "dense_cpu" / "output_0.npy"] = _expected_of_example()
    return files


def _of_program(program: OnnxProgram) -> dict[Path, bytes | Path]:
    """What a program is copied to, with its weights, and its spec and benchmark."""
    regressions, benchmarks = _REGRESSIONS / program.name, _BENCHMARKS / program.name
    return {
        regressions / f"{_SPEC}.json": _json(_regression_of(program)),
        benchmarks / f"{_SPEC}.json": _json(_benchmark_of(program)),
        regressions / program.path.name: program.path,
        **{regressions / item.relative_to(program.path.parent): item for item in program.data},
    }


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=4, ensure_ascii=False) + "\n").encode()


def _write(folder: Path, files: dict[Path, bytes | Path]) -> tuple[list[Path], list[Path]]:
    """Writes or copies what is not there; what was made, and what was there."""
    made: list[Path] = []
    kept: list[Path] = []
    for place, content in files.items():
        path = folder / place
        if path.exists():
            kept.append(path)
            continue
        if isinstance(content, Path):
            with publishing(path, str(content)) as temporary:
                shutil.copyfile(content, temporary)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content)
        made.append(path)
    return made, kept


def _assumed(program: OnnxProgram | None) -> str:
    """What a program leaves open, and what stands for it now."""
    lines = [
        f"  input {item.name}: {item.type}; open in the file: {', '.join(item.open_sizes)}\n"
        for item in (program.inputs if program else ())
        if item.open_sizes
    ]
    if not lines:
        return ""
    hint = "Other sizes: `init … --shape NAME=SIZES`, or in both specs (onnx_import.shapes and inputs)"
    return f"\nsizes that were chosen:\n{''.join(lines)}  {hint}.\n"


def _elsewhere(folder: Path) -> str:
    """That GitHub reads workflows only at the top of a repository."""
    here = folder.resolve()
    top = next((path for path in here.parents if (path / ".git").exists()), None)
    if top is None or (here / ".git").exists():
        return ""
    inner = here.relative_to(top).as_posix()
    return (
        f"\nGitHub reads workflows at the top of a repository: move {shown(here / _WORKFLOW)} to {shown(top)}/.github/"
        f"workflows/,\ngive its job `defaults: {{run: {{working-directory: {inner}}}}}`,\n"
        f"and put {inner}/ before each `runs/ci` that is uploaded.\n"
    )


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
    steps = [(shlex.join(("cd", str(folder))), "")] if folder.resolve() != Path.cwd() else []
    if program is not None:
        record = f"gauntlet golden.record --model {program.name}"
        steps.append((record, "expected outputs, by onnxruntime (pip install 'iree-gauntlet[record]')"))
    steps.append(("gauntlet run", "compile, check the numbers, measure"))
    width = max(len(command) for command, _ in steps)
    lines = [f"  {command:{width}}  {f'# {why}' if why else ''}".rstrip() for command, why in steps]
    return "\n".join(("next:", *lines, ""))
