"""`init`: a project of one's own, with a model, a suite, settings and a workflow; it is green at once."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np

from iree_gauntlet import __version__, messages
from iree_gauntlet.artifacts.publishing import replace_artifact
from iree_gauntlet.artifacts.seeded import parse_seeded, write_seeded
from iree_gauntlet.dialects.json_text import with_member
from iree_gauntlet.engine.workbench import onnxruntime_version
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError, name_place
from iree_gauntlet.formatting import counted
from iree_gauntlet.requests import RunRequest, SelectionRequest
from iree_gauntlet.settings import find_project_folder, shown
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.short_process import run_short
from iree_gauntlet.upkeep.format_schemas import FORMATS, format_schema
from iree_gauntlet.upkeep.golden_record import record, reference_workers
from iree_gauntlet.upkeep.input_choices import NPY, GivenData, file_content, input_sets, read_data
from iree_gauntlet.upkeep.onnx_program import parse_shapes, read_onnx
from iree_gauntlet.upkeep.recording import ReferenceAnswer, ReferencePlan, tolerance_flags
from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, pack_bytes, tensor_type
from iree_gauntlet.workers.iree_side.value_errors import FLOAT_TYPES, allow_of_others, difference

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.upkeep.input_choices import InputChoice
    from iree_gauntlet.upkeep.onnx_program import OnnxProgram
    from iree_gauntlet.upkeep.recording import ModelOutput, ReferenceWorkers
    from iree_gauntlet.upkeep.upkeep_requests import InitRequest


REGRESSIONS, BENCHMARKS = Path("specs", "regression_tests"), Path("specs", "benchmarks")
# Of the spec of a program.
SPEC = "model_cpu"
_KEEP_F64 = "--iree-input-demote-f64-to-f32=false"
_TEMPLATE = Path(__file__).with_name("new_project")
# Git reads it by this name; in ours it would count as our own.
_RENAMED = {"gitignore": ".gitignore"}
_EXAMPLE = "example"
_SCHEMAS = ".schemas"
_WORKFLOW = Path(".github", "workflows", "gauntlet.yml")
# What the template of the workflow says that it installs.
_SOURCE = b'"iree-gauntlet[iree]"'
_MOST_SHOWN = 5
# What specs say of their inputs.
_NOISE = "Inputs are noise: choose some that the model can do something with."
_GIVEN = "Inputs are what was given to `init --data`."
_NAME = "iree-gauntlet[iree]"
_GIT_SECONDS = 10.0


def init(asked: InitRequest) -> ExitCode:
    """Begins a project, or adds a model to one; files that are there stay as they are, unless they are made again."""
    # In a project, wherever in it a command is typed.
    folder = Path(asked.folder) if asked.folder else shown(find_project_folder())
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", "Name a folder, which may be new.")
    is_project = (folder / "specs").is_dir() and (folder / "suites").is_dir()
    if asked.program:
        return _add_program(asked, folder, is_project=is_project)
    if asked.shape or asked.name or asked.data:
        raise UsageError("--shape, --name and --data are of a program", "Give --program FILE too.")
    if is_project and not asked.again:
        what = f"{folder.resolve()} is a project already: it has specs/ and suites/"
        hint = "`init --program FILE` adds a model, `init --again` writes these files anew; or name another folder."
        raise UsageError(what, hint)
    # What the example computes is made here, as its inputs are.
    spec = json.loads((_TEMPLATE / REGRESSIONS / _EXAMPLE / "dense_cpu.json").read_text(encoding="utf-8"))
    x, w = (parse_seeded(item["source"]).generate().astype(np.float64) for item in spec["inputs"])
    output = file_content(np.maximum(x @ w, 0).astype(np.float32))
    example = {REGRESSIONS / _EXAMPLE / "dense_cpu" / "output_0.npy": output}
    with whole_or_nothing() as writing:
        where = _write_files(writing, folder, _list_project_files(without=()) | example, again=asked.again)
    if not messages.is_quiet():
        sys.stdout.write(f"{where}\n")
        _say_next_steps(folder, [])
    return ExitCode.OK


def _add_program(asked: InitRequest, folder: Path, *, is_project: bool) -> ExitCode:
    """Makes a program a model of a project, with inputs that it runs on, and has its outputs recorded."""
    program = read_onnx(Path(asked.program), asked.name, parse_shapes(asked.shape))
    places = [folder / kind / program.name for kind in (REGRESSIONS, BENCHMARKS)]
    _refuse_what_is_there(() if asked.again else places)
    data = read_data(Path(asked.data), program) if asked.data else GivenData((), (), ())
    runs_here = not asked.no_record and bool(onnxruntime_version())
    notes = list(data.notes)
    if asked.name and program.name != asked.name:
        named = f"{asked.name!r} is called {program.name} here: a name has letters, digits, '.', '_' and '-'"
        notes.insert(0, named)
    code = ExitCode.OK
    with reference_workers() as workers, whole_or_nothing() as writing:
        if runs_here and data.outputs:
            notes += _check_outputs(program, data.inputs, data.outputs, workers)
        chosen = ChosenInputs(data.inputs) if asked.data else _choose_inputs(program, workers if runs_here else None)
        files = _list_model_files(program, chosen.choices, data.outputs, _GIVEN if data.inputs else _NOISE)
        # What is recorded below goes into these, and a cache may come to be.
        for place in (folder, folder / "cache", *places):
            if not place.exists():
                writing.begin(place)
        writing.begin(folder / REGRESSIONS / program.name / SPEC)
        files = files if is_project else _list_project_files(without=(_EXAMPLE,)) | files
        where = _write_files(writing, folder, files, again=asked.again)
        if not messages.is_quiet():
            sys.stdout.writelines(f"  note: {note}\n" for note in notes)
            sys.stdout.write(f"{_explain_inputs(program, chosen)}{where}\n")
        if runs_here and not data.outputs:
            with contextlib.chdir(folder):
                selected = SelectionRequest(spec_dir=(str(REGRESSIONS),), model=(program.name,))
                code = record(RunRequest(selection=selected), chosen.said)
        if code is not ExitCode.OK:
            writing.undo()
    if not messages.is_quiet():
        recording = f"gauntlet golden.record --model {program.name}"
        missing = "" if onnxruntime_version() else " (pip install 'iree-gauntlet[record]')"
        before = [] if runs_here or data.outputs else [(recording, f"expected outputs, by onnxruntime{missing}")]
        if code is ExitCode.OK:
            _say_next_steps(folder, before)
        else:
            sys.stdout.write(
                "nothing is kept: there are no outputs to expect. Give sizes (--shape NAME=SIZES) or inputs (--data "
                f"FOLDER),\nor change the specs that `init … --no-record` writes as they are, and then `{recording}`.\n"
            )
    return code


def _refuse_what_is_there(places: Sequence[Path]) -> None:
    if there := [str(place) for place in places if place.exists()]:
        hint = "--again writes it anew; --name gives the model another name."
        raise UsageError(f"there already: {' and '.join(there)}", hint)


def _list_project_files(without: Collection[str]) -> dict[Path, bytes | Path]:
    """What goes into a new project, by place in it, but for folders of some names."""
    files: dict[Path, bytes | Path] = {}
    for path in sorted(_TEMPLATE.rglob("*")):
        place = path.relative_to(_TEMPLATE)
        if path.is_file() and not any(name in place.parts for name in without):
            files[place.with_name(_RENAMED.get(place.name, place.name))] = path.read_bytes()
    files[_WORKFLOW] = (_TEMPLATE / _WORKFLOW).read_bytes().replace(_SOURCE, f'"{find_toolkit_source()}"'.encode())
    # For editors: completion, and what is wrong as it is typed.
    return files | {Path(_SCHEMAS, f"{name}.json"): format_schema(name).encode() for name in FORMATS}


def _write_files(writing: UnfinishedFiles, folder: Path, files: Mapping[Path, bytes | Path], *, again: bool) -> str:
    """Writes or copies what is not there, and says so; what is to be said of the workflow's place."""
    made: list[Path] = []
    kept: list[Path] = []
    try:
        for place, content in files.items():
            path = folder / place
            if path.exists() and not again:
                kept.append(path)
                continue
            writing.begin(path)
            if isinstance(content, Path):
                with replace_artifact(path, str(content)) as temporary:
                    shutil.copyfile(content, temporary)
            else:
                write_atomic(path, content)
            made.append(path)
    except OSError as error:
        raise UsageError(f"{name_place(error)}: {error.strerror}", "Name a folder that can be written to.") from error
    if not messages.is_quiet():
        # A line for what editors read.
        listed = dict.fromkeys(path.parent if path.parent.name == _SCHEMAS else path for path in made)
        sys.stdout.write("".join(f"  {shown(path.absolute())}{'/' if path.is_dir() else ''}\n" for path in listed))
        sys.stdout.write("".join(f"  {shown(path.absolute())} is there already, and stays\n" for path in kept))
    sys.stdout.write(f"made {counted(len(made), 'file')}\n")
    return _explain_workflow(folder) if folder / _WORKFLOW in made else ""


def _explain_inputs(program: OnnxProgram, chosen: ChosenInputs) -> str:
    """What a program is given, and why."""
    open_sizes = {
        item.name: ", ".join(name.lstrip("?") for name in item.open_sizes.values())
        for item in program.inputs
        if item.open_sizes
    }
    if not chosen.choices:
        return ""
    lines = ["inputs that were chosen:"]
    for choice in chosen.choices:
        what = choice.values or choice.source.partition("?")[0] or "in a file of its own"
        sizes = f"open in the file: {open_sizes[choice.name]}" if choice.name in open_sizes else ""
        lines.append(f"  {'; '.join(filter(None, (f'{choice.name}: {choice.type}, {what}', choice.why, sizes)))}")
    if chosen.tried:
        lines.append("  others were tried, and did not do:")
        lines += [f"    {why}" for why in chosen.tried[:_MOST_SHOWN]]
    if chosen.runs is False:
        lines.append("  on none of those that were tried does a reference run the model: choose others in the spec.")
    hint = "  Other sizes: `init … --shape NAME=SIZES --again`, or in both specs (onnx_import.shapes and inputs)."
    return "\n".join(("", *lines, *([hint] if open_sizes else ()), ""))


def _explain_workflow(folder: Path) -> str:
    """What it takes for granted: that GitHub can reach the toolkit, and reads workflows at the top of a repository."""
    source = find_toolkit_source()
    path = shown((folder / _WORKFLOW).absolute())
    unknown = (
        f"\nGitHub does not have what the workflow installs, {source}: name a URL of its repository,\n"
        f"or a wheel of it in yours, as TOOLKIT in {path}.\n"
    )
    return (unknown if " @ file:" in source else "") + _explain_workflow_place(folder)


def _explain_workflow_place(folder: Path) -> str:
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


def _say_next_steps(folder: Path, before: Sequence[tuple[str, str]]) -> None:
    """Says what to type: what comes before a run as well, each with why."""
    steps = [(shlex.join(("cd", str(folder))), "")] if folder.resolve() != Path.cwd() else []
    steps += [*before, ("gauntlet run", "compile, check the numbers, measure")]
    width = max(len(command) for command, _ in steps)
    lines = [f"  {command:{width}}  {f'# {why}' if why else ''}".rstrip() for command, why in steps]
    sys.stdout.write("\n".join(("next:", *lines, "")))


@dataclass(frozen=True, slots=True)
class ChosenInputs:
    """What a program is given.

    Attributes:
        runs: whether a reference ran the program on these; None where none was asked.
        said: what it said of them (`run_onnx`); None where it did not run.
    """

    choices: tuple[InputChoice, ...]
    tried: tuple[str, ...] = ()
    runs: bool | None = None
    said: ReferenceAnswer | None = None


def _choose_inputs(program: OnnxProgram, workers: ReferenceWorkers | None) -> ChosenInputs:
    """The first inputs that a reference can run the program on; the likeliest ones where none can, or none is there."""
    sets = list(input_sets(program.inputs, program.model))
    if workers is None:
        return ChosenInputs(sets[0])
    if not messages.is_quiet():
        sys.stdout.write(f"{program.path.name}: running a reference on inputs for it\n")
        sys.stdout.flush()
    tried: list[str] = []
    idle: ChosenInputs | None = None
    # Mostly the first one will do.
    for name, wanted in (("first", sets[:1]), ("others", sets[1:])):
        if not wanted:
            break
        plan = _plan(program, wanted, workers.folder / name, last=wanted[-1] is sets[-1])
        try:
            said = workers.answer("run_onnx", program.path.name, plan, ReferenceAnswer)
        except GauntletError as error:
            tried.append(error.what.removeprefix(f"{program.path.name}: "))
            continue
        tried += said.refused
        found = ChosenInputs(wanted[said.taken], tuple(dict.fromkeys(tried)), runs=True, said=said)
        if said.tells:
            return found
        idle = idle or found
    return idle or ChosenInputs(sets[0], tuple(dict.fromkeys(tried)), runs=False)


def _plan(program: OnnxProgram, sets: Sequence[Sequence[InputChoice]], folder: Path, *, last: bool) -> ReferencePlan:
    """What `run_onnx` is told: to run a program on the first of several sets of inputs that will do."""
    folder.mkdir()
    inputs = tuple(tuple(_write_input(choice, folder) for choice in choices) for choices in sets)
    return ReferencePlan(str(program.path.absolute()), inputs, str(folder), str(folder), None, last)


def _check_outputs(
    program: OnnxProgram, choices: Sequence[InputChoice], outputs: Sequence[NDArray[Any]], workers: ReferenceWorkers
) -> list[str]:
    """What a reference says of outputs that somebody gave, a line for each that it computes otherwise."""
    plan = _plan(program, [choices], workers.folder / "given", last=True)
    try:
        said = workers.answer("run_onnx", program.path.name, plan, ReferenceAnswer)
    except GauntletError as error:
        return [f"no reference has checked the outputs: {error.what}"]
    by = said.reference
    found = []
    for item, array in zip(said.outputs, outputs, strict=True):
        name = f"output {item.name}"
        if array.shape != item.shape:
            what = f"--data: {name} is {list(array.shape)}, and {by} gives {list(item.shape)} for these inputs"
            raise UsageError(what, "Give outputs of these inputs, or none to have them recorded.")
        element = ELEMENT_TYPES[array.dtype.name]
        computed = _read_back(item, array)
        limit = allow_of_others(element, [array]).atol if element in FLOAT_TYPES else 0.0
        apart = difference(array, computed)
        if not item.differs and apart > limit:
            how_far = f", by up to {apart:.3g}" if math.isfinite(apart) else ""
            found.append(f"{name}: {by} gives other numbers{how_far}")
    return found


def _read_back(item: ModelOutput, like: NDArray[Any]) -> NDArray[Any]:
    """An output of a worker, as an array of another's type."""
    content = item.file.read_bytes()
    if pack_bytes(like) == content:
        return like
    if len(content) != like.nbytes:
        # Several values share a byte: they are the same, or they are not.
        return np.frombuffer(content, np.uint8)
    return np.frombuffer(content, like.dtype).reshape(like.shape)


def _write_input(choice: InputChoice, folder: Path) -> str:
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


def _list_model_files(
    program: OnnxProgram, choices: Sequence[InputChoice], outputs: Sequence[NDArray[Any]], description: str
) -> dict[Path, bytes | Path]:
    """What a program is copied to, with its weights; its inputs, outputs that are known, spec and benchmark."""
    regressions, benchmarks = REGRESSIONS / program.name, BENCHMARKS / program.name
    regression, benchmark = (
        json.loads((_TEMPLATE / kind / "example" / "dense_cpu.json").read_text(encoding="utf-8"))
        for kind in (REGRESSIONS, BENCHMARKS)
    )
    onnx_import = program.onnx_import(choice.type for choice in choices)
    contents = list(map(file_content, outputs))
    given: list[dict[str, str]] = []
    for index, (array, content) in enumerate(zip(outputs, contents, strict=True)):
        if content.startswith(NPY):
            given.append({"source": f"{SPEC}/output_{index}.npy"})
        else:
            given.append({"source": f"{SPEC}/output_{index}.bin", "value": tensor_type(f"output_{index}", array)})
    # What outputs of another program may differ by.
    by_type: dict[str, list[NDArray[Any]]] = {}
    for array in outputs:
        by_type.setdefault(ELEMENT_TYPES[array.dtype.name], []).append(array)
    floats = {name: allow_of_others(name, arrays) for name, arrays in by_type.items() if name in FLOAT_TYPES}
    spec = {
        "description": description,
        "mlir": program.path.name,
        **({"onnx_import": onnx_import} if onnx_import else {}),
        "inputs": [_describe_input(index, choice) for index, choice in enumerate(choices)],
        # Until they are recorded, that they are missing is an error.
        "outputs": given or [{"source": f"{SPEC}/output_{index}.npy"} for index in range(program.outputs)],
        "device": regression["device"],
        "compiler_flags": [*regression["compiler_flags"], *((_KEEP_F64,) if program.has_f64 else ())],
        **({"threshold_args": list(tolerance_flags(floats))} if given else {}),
    }
    timed = {"inputs": [choice.for_benchmark for choice in choices], "function_run": program.function}
    return {
        regressions / f"{SPEC}.json": _format_json(spec),
        benchmarks / f"{SPEC}.json": _format_json({**benchmark, **timed}),
        regressions / program.path.name: program.path,
        **{regressions / item.relative_to(program.path.parent): item for item in program.data},
        **{
            regressions / SPEC / f"input_{index}{choice.suffix}": choice.content
            for index, choice in enumerate(choices)
            if choice.content is not None
        },
        **{regressions / named["source"]: content for named, content in zip(given, contents, strict=True)},
    }


def _describe_input(index: int, choice: InputChoice) -> dict[str, str]:
    if choice.values:
        return {"value": choice.literal}
    if choice.content is None:
        return {"source": choice.source}
    typed = {} if choice.suffix == ".npy" else {"value": choice.type}
    return {"source": f"{SPEC}/input_{index}{choice.suffix}", **typed}


def _format_json(content: dict[str, Any]) -> bytes:
    text = "{\n}\n"
    for key, value in content.items():
        text = with_member(text, key, value)
    return text.encode()


def find_toolkit_source() -> str:
    """What pip installs: a release, or `NAME @ URL`, of a `file:` where no other machine is known to have it."""
    try:
        kept = json.loads(distribution("iree-gauntlet").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        kept = {}
    match kept:
        case {"url": url, "vcs_info": {"vcs": vcs, "commit_id": commit}}:
            return f"{_NAME} @ {vcs}+{_without_secrets(url)}@{commit}"
        case {"url": url, "dir_info": _}:
            return f"{_NAME} @ {_find_remote(unquote(urlsplit(url).path)) or url}"
        case {"url": url}:
            return f"{_NAME} @ {_without_secrets(url)}"
    return f"{_NAME}=={__version__}"


def _find_remote(checkout: str) -> str:
    """Where a checkout comes from, as pip takes it; empty where that is no URL, or it is no checkout."""
    try:
        answer = run_short(("git", "-C", checkout, "remote", "get-url", "origin"), timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    url = answer.stdout.strip() if answer.exit_code == 0 else ""
    return f"git+{_without_secrets(url)}" if url.startswith(("https://", "ssh://")) else ""


def _without_secrets(url: str) -> str:
    """A URL without a password or a token, which a clone in CI may have in it."""
    parts = urlsplit(url)
    user = "git@" if parts.scheme == "ssh" and parts.username == "git" else ""
    return urlunsplit(parts._replace(netloc=user + parts.netloc.rpartition("@")[2]))


class UnfinishedFiles:
    """Files that are written together: all of them stay, or those that were there before."""

    def __init__(self) -> None:
        self._begun: list[tuple[Path, Path | None]] = []
        # Of what was begun, in the order of their making.
        self._folders: list[Path] = []

    def begin(self, path: Path) -> None:
        """Makes room for a file or a folder: its own folder is there, and what is there itself lies aside."""
        self._folders += reversed([parent for parent in path.parents if not parent.exists()])
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = _find_free_name(path) if path.exists() else None
        if aside:
            path.rename(aside)
        self._begun.append((path, aside))

    def undo(self) -> None:
        """Puts everything back."""
        for path, aside in reversed(self._begun):
            _remove(path)
            if aside:
                aside.rename(path)
        for folder in reversed(self._folders):
            # Somebody else may have put something there meanwhile.
            with suppress(OSError):
                folder.rmdir()
        self._begun.clear()

    def finish(self) -> None:
        """Lets go what lies aside."""
        for _, aside in self._begun:
            if aside:
                _remove(aside)


def _find_free_name(path: Path) -> Path:
    """A name beside a path that nothing has: a command that was killed has left its own, which may be all there is."""
    names = (path.with_name(f".{path.name}.before{number or ''}") for number in itertools.count())
    return next(name for name in names if not os.path.lexists(name))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def whole_or_nothing() -> Iterator[UnfinishedFiles]:
    """What is begun inside stays where that ends well."""
    writing = UnfinishedFiles()
    try:
        yield writing
    except BaseException:
        writing.undo()
        raise
    writing.finish()
