"""`init`: a new project with a model, a suite, settings and a workflow, whose first run passes."""

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
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np

from iree_gauntlet import __version__, messages
from iree_gauntlet.artifacts.publishing import replace_artifact
from iree_gauntlet.artifacts.seeded import parse_seeded, write_seeded
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError, find_error_path
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.requests import NetworkRequest, RunRequest, SelectionRequest, ToolchainRequest
from iree_gauntlet.settings import find_project_folder, format_path
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.short_process import run_short
from iree_gauntlet.upkeep.edge_inputs import fit_indices, make_edge_choices, make_index_choices
from iree_gauntlet.upkeep.format_schemas import FORMATS, format_schema
from iree_gauntlet.upkeep.golden_record import make_sources, open_reference_workers, record
from iree_gauntlet.upkeep.input_choices import NPY_MAGIC, InputData, generate_input_sets, make_file_content, read_data
from iree_gauntlet.upkeep.json_edits import with_member
from iree_gauntlet.upkeep.program_kinds import read_program
from iree_gauntlet.upkeep.programs import parse_shapes
from iree_gauntlet.upkeep.recording import make_tolerance_flags
from iree_gauntlet.upkeep.references import KEEP_F64, ReferencePlan, is_weak, list_references
from iree_gauntlet.upkeep.upkeep_requests import GoldenSetRequest
from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, pack_bytes
from iree_gauntlet.workers.iree_side.value_errors import FLOAT_TYPES, choose_foreign_tolerance, measure_difference

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.upkeep.input_choices import InputChoice
    from iree_gauntlet.upkeep.programs import UserProgram
    from iree_gauntlet.upkeep.references import ModelOutput, ReferenceResult, ReferenceSources
    from iree_gauntlet.upkeep.upkeep_requests import InitRequest


REGRESSIONS, BENCHMARKS = Path("specs", "regression_tests"), Path("specs", "benchmarks")
# The name of a program's spec.
SPEC = "model_cpu"
# The open sizes of further specs: 3 is no multiple of a vector's width.
_EDGE_SIZES = (1, 3)
_TEMPLATE = Path(__file__).with_name("new_project")
# The template has other names for these files, because git would apply the real names to this repository.
_DOTFILES = {"gitignore": ".gitignore"}
_EXAMPLE = "example"
_SCHEMAS = ".schemas"
_WORKFLOW = Path(".github", "workflows", "gauntlet.yml")
# The package that the workflow's template installs.
_PACKAGE = b'"iree-gauntlet[iree]"'
_MAX_SHOWN_ATTEMPTS = 5
# The spec's `description`, by where its inputs come from.
_NOISE_NOTE = "Inputs are random: choose some that are meaningful for the model."
_DATA_NOTE = "Inputs are those that were given."
_REQUIREMENT = "iree-gauntlet[iree]"
_GIT_SECONDS = 10.0
# Room of first golden sizes, for the code of other CPUs.
_SIZE_HEADROOM = 1.25


def init(request: InitRequest) -> ExitCode:
    """Create a project, or add a model to a project; existing files stay unchanged, unless overwriting is requested."""
    # Inside a project, the default is its top folder.
    folder = Path(request.folder) if request.folder else format_path(find_project_folder())
    if file := next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None):
        raise UsageError(f"{file} is a file", "Name a folder; it need not exist.")
    is_project = (folder / "specs").is_dir() and (folder / "suites").is_dir()
    if request.program:
        return _add_program(request, folder, is_project=is_project)
    if request.shape or request.name or request.data or request.goldens or request.edges:
        message = "--shape, --name, --data, --edges and --goldens require a program"
        raise UsageError(message, "Give --program FILE too.")
    if is_project and not request.again:
        message = f"{folder.resolve()} is already a project: it has specs/ and suites/"
        hint = "`init --program FILE` adds a model, `init --again` writes these files anew; or name another folder."
        raise UsageError(message, hint)
    # The example's output is computed here, as its inputs are generated.
    spec = json.loads((_TEMPLATE / REGRESSIONS / _EXAMPLE / "dense_cpu.json").read_text(encoding="utf-8"))
    x, w = (parse_seeded(entry["source"]).generate().astype(np.float64) for entry in spec["inputs"])
    output = make_file_content(np.maximum(x @ w, 0).astype(np.float32))
    example = {REGRESSIONS / _EXAMPLE / "dense_cpu" / "output_0.npy": output}
    with open_file_transaction() as writing:
        note = _write_files(writing, folder, _list_project_files(exclude=()) | example, overwrite=request.again)
    if not messages.is_quiet():
        sys.stdout.write(f"{note}\n")
        _say_next_steps(folder, [])
    return ExitCode.OK


def _add_program(request: InitRequest, folder: Path, *, is_project: bool) -> ExitCode:
    """Add a program to a project as a model, with inputs that it runs on, and record its outputs."""
    code = ExitCode.OK
    with open_reference_workers() as workers, open_file_transaction() as writing:
        sources = make_sources(workers, request, ToolchainRequest(), NetworkRequest())
        shapes = parse_shapes(request.shape)
        path = Path(request.program)
        program = read_program(path, sources, name=request.name, function=request.function, shapes=shapes)
        targets = [folder / kind / program.name for kind in (REGRESSIONS, BENCHMARKS)]
        _require_absent(() if request.again else targets)
        data_path = Path(request.data) if request.data else program.examples
        data = read_data(data_path, program) if data_path else InputData((), (), ())
        notes = [*_list_program_notes(program, request), *data.notes]
        if data.outputs and not request.no_record:
            notes += _check_outputs(program, data.inputs, data.outputs, sources)
        sets = [data.inputs] if data_path else list(fit_indices(program, generate_input_sets(program)))
        keeps_inputs = bool(data.outputs) or bool(data_path and program.is_onnx)
        inputs = _choose_inputs(program, sets, None if request.no_record or keeps_inputs else sources)
        # A program in MLIR that IREE compiles or runs in no way is what a reproducer may be about.
        is_unchecked = not program.is_onnx and inputs.runs is False
        description = _DATA_NOTE if data.inputs else _NOISE_NOTE
        files = _list_model_files(program, inputs.choices, data.outputs, description, has_outputs=not is_unchecked)
        earlier_specs = _list_further_specs(targets[0])
        earlier_fields = _list_spec_fields(targets)
        # The recording below writes into these, and may create a cache.
        for path in (folder, folder / "cache", *targets):
            if not path.exists():
                writing.begin(path)
        writing.begin(folder / REGRESSIONS / program.name / SPEC)
        extra = ",tflite" if program.tflite else ""
        files = files if is_project else _list_project_files(exclude=(_EXAMPLE,), extra=extra) | files
        if is_project and extra:
            notes.append(f"its runs need the extra `tflite`, also in CI: TOOLKIT in {_WORKFLOW} may lack it")
        workflow_note = _write_files(writing, folder, files, overwrite=request.again)
        if not messages.is_quiet():
            sys.stdout.writelines(f"  note: {note}\n" for note in notes)
            sys.stdout.write(f"{_explain_inputs(program, inputs)}{workflow_note}\n")
        if not (request.no_record or data.outputs or is_unchecked):
            with contextlib.chdir(folder):
                selection = SelectionRequest(spec_dir=(str(REGRESSIONS),), model=(program.name,), filename=(SPEC,))
                code = record(RunRequest(selection=selection), request, inputs.result)
        if code is not ExitCode.OK:
            writing.undo()
        elif request.edges:
            _add_edges(program, inputs, sources, folder, request)
    _name_earlier_specs(earlier_specs & _list_further_specs(targets[0]), earlier_fields - _list_spec_fields(targets))
    if not messages.is_quiet():
        needs_outputs = request.no_record and not data.outputs
        _say_how_to_go_on(program, folder, needs_outputs=needs_outputs, is_kept=code is ExitCode.OK)
    return _set_goldens(folder, program.name) if request.goldens and code is ExitCode.OK else code


def _list_program_notes(program: UserProgram, request: InitRequest) -> Iterator[str]:
    if request.name and program.name != request.name:
        yield f"{request.name!r} is called {program.name} here: a name has letters, digits, '.', '_' and '-'"
    yield from program.notes
    if program.has_f64:
        yield f"it has f64: the spec has {KEEP_F64}, without which IREE computes in f32"
    if request.shape and (rest := [item.name for item in program.inputs if item.open_sizes]):
        yield f"the open sizes of {', '.join(rest)} do not follow from --shape: --shape {rest[0]}=SIZES sets them too"


def _list_further_specs(folder: Path) -> set[tuple[str, int]]:
    """List a model's specs besides the first one, each with the time when it was written, in ns."""
    return {(path.stem, path.stat().st_mtime_ns) for path in folder.glob("*.json") if path.stem != SPEC}


def _name_earlier_specs(earlier_specs: set[tuple[str, int]], lost_fields: set[tuple[Path, str]]) -> None:
    """Print a note about specs of an earlier `init` that are not written anew, and of fields that new ones lack."""
    if earlier_specs:
        names = ", ".join(sorted(f"{name}.json" for name, _ in earlier_specs))
        sys.stdout.write(f"  note: specs of before stay; remove them if they are of another program: {names}\n")
    # These fields, such as goldens, were added after the earlier `init`.
    for path, fields in itertools.groupby(sorted(lost_fields), key=itemgetter(0)):
        names = ", ".join(name for _, name in fields)
        messages.warn(f"{format_path(path)} was written anew, without its {names}; add them again if they still hold")


def _list_spec_fields(folders: Iterable[Path]) -> set[tuple[Path, str]]:
    """List the fields of the specs in some folders, by file; a file that cannot be read has none."""
    fields: set[tuple[Path, str]] = set()
    for path in (path for folder in folders for path in folder.glob("*.json")):
        with suppress(OSError, ValueError):
            document = json.loads(path.read_text(encoding="utf-8"))
            fields.update((path, name) for name in document if isinstance(document, dict))
    return fields


def _say_how_to_go_on(program: UserProgram, folder: Path, *, needs_outputs: bool, is_kept: bool) -> None:
    """Print the next commands; if nothing is kept, the ways to have expected outputs."""
    recording = f"gauntlet golden.record --model {program.name}"
    if is_kept:
        _say_next_steps(folder, [(recording, "expected outputs")] if needs_outputs else [])
    else:
        sys.stdout.write(
            "nothing is kept: there are no outputs to expect. Give sizes (--shape NAME=SIZES) or inputs (--data "
            f"FOLDER),\nor change the specs that `init … --no-record` writes as they are, and then `{recording}`.\n"
        )


def _add_edges(
    program: UserProgram, inputs: InputSet, sources: ReferenceSources, folder: Path, request: InitRequest
) -> None:
    """Add specs whose inputs touch edges, and of small sizes; print why one is missing."""
    if inputs.result is None:
        option = "--no-record" if request.no_record else "--data" if request.data else ""
        reason = f"with {option}, " if option else ""
        sys.stdout.write(f"  note: there are no specs of edges: {reason}no reference has run on inputs of `init`\n")
        return
    for name, description, sets in _list_edges(program, inputs.choices, is_shape_given=bool(request.shape)):
        chosen = _choose_inputs(program, sets, sources) if sets else InputSet((), (description,))
        reason = _find_objection(chosen, inputs.result)
        if chosen.result is None or reason:
            sys.stdout.write(f"  note: there is no spec {name}: {reason}\n")
            continue
        _write_spec(program, f"{name}_cpu", description, chosen.choices, folder)
        with contextlib.chdir(folder):
            selection = SelectionRequest(spec_dir=(str(REGRESSIONS),), model=(program.name,), filename=(f"{name}_cpu",))
            code = record(RunRequest(selection=selection), request, chosen.result)
        for path in (f"{name}_cpu.json", f"{name}_cpu") if code is not ExitCode.OK else ():
            _remove(folder / REGRESSIONS / program.name / path)


def _list_edges(
    program: UserProgram, choices: tuple[InputChoice, ...], *, is_shape_given: bool
) -> Iterator[tuple[str, str, list[tuple[InputChoice, ...]]]]:
    """Yield names of specs, their descriptions and sets of inputs; without a set, the reason in place of the former."""
    edges = make_edge_choices(program, choices)
    if edges != choices:
        yield "edges", "Inputs touch edges: equal neighbours, the extremes, zeros.", [edges]
    counts = {"indices": 0, "outside": 0}
    for is_outside, ends in make_index_choices(program, choices):
        name, text = "indices", "Indices are the first and the last, also as the operators count them from the end."
        if is_outside:
            name, text = "outside", "Some indices are outside of the range, as the operators define it."
        counts[name] += 1
        yield f"{name}_{counts[name]}" if counts[name] > 1 else name, text, [ends]
    for size in _EDGE_SIZES if any(tensor.is_open_in_file for tensor in program.inputs) else ():
        sets = list(fit_indices(program, generate_input_sets(program, size)))
        text = f"Open sizes are {size}. {_NOISE_NOTE}"
        if is_shape_given:
            sets, text = [], "the sizes are those of --shape"
        elif [choice.type for choice in sets[0]] == [choice.type for choice in choices]:
            sets, text = [], f"{SPEC} has these sizes"
        yield f"size_{size}", text, sets


def _find_objection(inputs: InputSet, first: ReferenceResult) -> str:
    """Return why inputs are not taken that a reference ran, or not; empty if they are."""
    result = inputs.result
    if result is None:
        return "; ".join(inputs.rejections[:_MAX_SHOWN_ATTEMPTS])
    if first.as_declared and not result.as_declared:
        return "an output has other sizes than the model declares"
    # Inputs that are refused by what ran the first ones, or on which one way of IREE ends, may be undefined.
    if result.reference.name != first.reference.name:
        return f"{first.reference} does not run on these inputs: {'; '.join(result.notes[:_MAX_SHOWN_ATTEMPTS])}"
    if result.reference.agrees_with:
        return "one of IREE's ways ends on these inputs" if result.failed else ""
    if any(output.nans == output.count > 0 for output in result.outputs):
        return "an output is nothing but NaN"
    is_disputed = any(output.other is not None for output in result.outputs)
    return "two references differ on these inputs" if is_disputed else ""


def _write_spec(
    program: UserProgram, name: str, description: str, choices: Sequence[InputChoice], folder: Path
) -> None:
    """Write another spec of a model, without its outputs."""
    model = folder / REGRESSIONS / program.name
    spec = json.loads((model / f"{SPEC}.json").read_text(encoding="utf-8"))
    imports = program.make_import_options(choice.type for choice in choices)
    spec |= {
        "description": description,
        **({"onnx_import": imports} if imports else {}),
        "inputs": [_describe_input(index, choice, name) for index, choice in enumerate(choices)],
        "outputs": [{"source": f"{name}/output_{index}.npy"} for index in range(len(program.outputs))],
    }
    spec.pop("threshold_args", None)
    (model / name).mkdir(exist_ok=True)
    for index, choice in enumerate(choices):
        if choice.content is not None:
            write_atomic(model / name / f"input_{index}{choice.suffix}", choice.content)
    write_atomic(model / f"{name}.json", _format_json(spec))


def _set_goldens(folder: Path, model: str) -> ExitCode:
    """Run a model, and write the figures of this run as its goldens; return the exit code of a run that failed."""
    # `init` without goldens starts faster without these imports.
    from iree_gauntlet.experiments.run import make_setup, run  # noqa: PLC0415
    from iree_gauntlet.reports.experiment_reports import ConsolePresenter  # noqa: PLC0415
    from iree_gauntlet.upkeep.spec_goldens import set_first  # noqa: PLC0415

    selection = SelectionRequest(model=(model,))
    with contextlib.chdir(folder):
        code = run(make_setup(RunRequest(selection=selection)), ConsolePresenter(sys.stdout)).exit_code
        request = GoldenSetRequest(size_headroom=_SIZE_HEADROOM, write=True)
        return set_first(selection, request) if code is ExitCode.OK else code


def _require_absent(paths: Sequence[Path]) -> None:
    """Raise UsageError if any of the paths exists."""
    if existing := [str(path) for path in paths if path.exists()]:
        hint = "--again writes it anew; --name gives the model another name."
        raise UsageError(f"there already: {' and '.join(existing)}", hint)


def _list_project_files(exclude: Collection[str], extra: str = "") -> dict[Path, bytes | Path]:
    """List the files of a new project, by relative path, without folders of some names.

    Args:
        exclude: the folders.
        extra: a comma and the extra that the workflow installs beside `iree`.
    """
    files: dict[Path, bytes | Path] = {}
    for path in sorted(_TEMPLATE.rglob("*")):
        relative_path = path.relative_to(_TEMPLATE)
        if path.is_file() and not any(name in relative_path.parts for name in exclude):
            files[relative_path.with_name(_DOTFILES.get(relative_path.name, relative_path.name))] = path.read_bytes()
    source = find_toolkit_source().replace("[iree]", f"[iree{extra}]", 1)
    files[_WORKFLOW] = (_TEMPLATE / _WORKFLOW).read_bytes().replace(_PACKAGE, f'"{source}"'.encode())
    # The schemas let editors complete and check specs.
    return files | {Path(_SCHEMAS, f"{name}.json"): format_schema(name).encode() for name in FORMATS}


def _write_files(writing: FileTransaction, folder: Path, files: Mapping[Path, bytes | Path], *, overwrite: bool) -> str:
    """Write or copy missing files, and print them; return the note about the workflow's location, empty for none."""
    written_paths: list[Path] = []
    existing: list[Path] = []
    try:
        for relative_path, content in files.items():
            path = folder / relative_path
            if path.exists() and not overwrite:
                existing.append(path)
                continue
            writing.begin(path)
            if isinstance(content, Path):
                with replace_artifact(path, str(content)) as temporary:
                    shutil.copyfile(content, temporary)
            else:
                write_atomic(path, content)
            written_paths.append(path)
    except OSError as error:
        raise UsageError(f"{find_error_path(error) or path}: {error.strerror}", "Name a writable folder.") from error
    if not messages.is_quiet():
        # The schemas share one line.
        shown_paths = dict.fromkeys(path.parent if path.parent.name == _SCHEMAS else path for path in written_paths)
        sys.stdout.write(
            "".join(f"  {format_path(path.absolute())}{'/' if path.is_dir() else ''}\n" for path in shown_paths)
        )
        sys.stdout.write(
            "".join(f"  {format_path(path.absolute())} is there already, and stays\n" for path in existing)
        )
    sys.stdout.write(f"made {pluralize(len(written_paths), 'file')}\n")
    return _explain_workflow(folder) if folder / _WORKFLOW in written_paths else ""


def _explain_inputs(program: UserProgram, inputs: InputSet) -> str:
    """Format the inputs of a program, and the reasons."""
    open_sizes = {
        tensor.name: ", ".join(
            name if name != f"?{axis}" else f"dimension {axis}" for axis, name in tensor.open_sizes.items()
        )
        for tensor in program.inputs
        if tensor.open_sizes
    }
    if not inputs.choices and inputs.runs is not False:
        return ""
    lines = ["inputs that were chosen:" if inputs.choices else "there are no inputs"]
    for choice in inputs.choices:
        content = choice.values or choice.source.partition("?")[0] or "in a file of its own"
        sizes = f"open in the file: {open_sizes[choice.name]}" if choice.name in open_sizes else ""
        lines.append(f"  {'; '.join(filter(None, (f'{choice.name}: {choice.type}, {content}', choice.reason, sizes)))}")
    if inputs.rejections:
        lines.append("  others were tried, and did not do:")
        lines += [f"    {attempt}" for attempt in inputs.rejections[:_MAX_SHOWN_ATTEMPTS]]
    if inputs.runs is False and not program.is_onnx:
        lines.append(
            "  no reference runs it: it has no expected outputs, and a run checks only that it compiles and runs"
        )
    elif inputs.runs is False:
        lines.append("  on none of those that were tried does a reference run the model: choose others in the spec.")
    hint = "  Other sizes: `init … --shape NAME=SIZES --again`, or in both specs (onnx_import.shapes and inputs)."
    return "\n".join(("", *lines, *([hint] if open_sizes else ()), ""))


def _explain_workflow(folder: Path) -> str:
    """Format the workflow's requirements: that GitHub can access the toolkit, and finds the workflow."""
    _, _, url = find_toolkit_source().partition(" @ ")
    path = format_path((folder / _WORKFLOW).absolute())
    unknown = (
        f"\nGitHub does not have what the workflow installs, {url}: name a URL of its repository,\n"
        f"or a wheel of it in yours, as TOOLKIT in {path}.\n"
    )
    return (unknown if url.startswith("file:") else "") + _explain_workflow_place(folder)


def _explain_workflow_place(folder: Path) -> str:
    project = folder.resolve()
    repository = next((path for path in project.parents if (path / ".git").exists()), None)
    if repository is None or (project / ".git").exists():
        return ""
    relative_path = project.relative_to(repository).as_posix()
    return (
        f"\nGitHub reads workflows at the top of a repository: move {format_path(project / _WORKFLOW)} to "
        f"{format_path(repository)}/.github/workflows/,\n"
        f"give its job `defaults: {{run: {{working-directory: {relative_path}}}}}`,\n"
        f"and put {relative_path}/ before each `runs/ci` that is uploaded.\n"
    )


def _say_next_steps(folder: Path, first_steps: Sequence[tuple[str, str]]) -> None:
    """Print the next commands, each with its purpose: the first steps, and a run."""
    steps = [(shlex.join(("cd", str(folder))), "")] if folder.resolve() != Path.cwd() else []
    steps += [*first_steps, ("gauntlet run", "compile, check the numbers, measure")]
    width = max(len(command) for command, _ in steps)
    lines = [f"  {command:{width}}  {f'# {purpose}' if purpose else ''}".rstrip() for command, purpose in steps]
    sys.stdout.write("\n".join(("next:", *lines, "")))


@dataclass(frozen=True, slots=True)
class InputSet:
    """The inputs of a program.

    Attributes:
        runs: True if a reference ran the program on these inputs; None: no reference was run; False: it failed.
        result: the reference's result (`run_onnx`); None if it did not run.
    """

    choices: tuple[InputChoice, ...]
    rejections: tuple[str, ...] = ()
    runs: bool | None = None
    result: ReferenceResult | None = None


def _choose_inputs(
    program: UserProgram, sets: Sequence[tuple[InputChoice, ...]], sources: ReferenceSources | None
) -> InputSet:
    """Choose the first inputs that a reference can run; if none works, or there is no reference, the likeliest."""
    if sources is None:
        return InputSet(sets[0])
    if not messages.is_quiet():
        sys.stdout.write(f"{program.file_name}: running a reference on inputs for it\n")
        sys.stdout.flush()
    rejections: list[str] = []
    fallback: InputSet | None = None
    # Why stronger references did not run it.
    notes: list[str] = []
    for reference in list_references(program, sources):
        if isinstance(reference, str):
            notes.append(reference)
            continue
        # The first set mostly suffices, so it is tried alone.
        for batch in (sets[:1], sets[1:]):
            if not batch:
                break
            plan = _plan(program, batch, sources.workers.folder, last=batch[-1] is sets[-1])
            try:
                result = reference.run(program.file_name, plan)
            except GauntletError as error:
                rejections.append(error.message.removeprefix(f"{program.file_name}: "))
                continue
            rejections += result.refused
            result = replace(result, notes=(*notes, *result.notes))
            candidate = InputSet(batch[result.taken], tuple(dict.fromkeys(rejections)), runs=True, result=result)
            # Inputs on which one way of IREE ends may be undefined: there the other way is no evidence.
            if result.tells and not (result.failed and is_weak(reference)):
                return candidate
            fallback = fallback or candidate
        if fallback:
            return fallback
        notes = list(dict.fromkeys((*notes, *rejections[:_MAX_SHOWN_ATTEMPTS])))
    return InputSet(sets[0], tuple(dict.fromkeys((*notes, *rejections))), runs=False)


def _plan(program: UserProgram, sets: Sequence[Sequence[InputChoice]], parent: Path, *, last: bool) -> ReferencePlan:
    """Make a reference's plan: to run a program on the first suitable one of several sets of inputs."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    inputs = tuple(tuple(_write_input(choice, folder) for choice in choices) for choices in sets)
    return ReferencePlan(str(program.path.absolute()), inputs, str(folder), str(folder), last=last)


def _check_outputs(
    program: UserProgram, choices: Sequence[InputChoice], outputs: Sequence[NDArray[Any]], sources: ReferenceSources
) -> list[str]:
    """Compare the user's outputs with a reference's; return a line for each that differs."""
    plan = _plan(program, [choices], sources.workers.folder, last=True)
    reference = next((item for item in list_references(program, sources) if not isinstance(item, str)), None)
    if reference is None:
        return []
    try:
        result = reference.run(program.file_name, plan)
    except GauntletError as error:
        return [f"no reference has checked the outputs: {error.message}"]
    tool = result.reference
    notes = []
    for output, array in zip(result.outputs, outputs, strict=True):
        name = f"output {output.name}"
        if array.shape != output.shape:
            message = f"--data: {name} is {list(array.shape)}, and {tool} gives {list(output.shape)} for these inputs"
            raise UsageError(message, "Give outputs of these inputs, or none to have them recorded.")
        element = ELEMENT_TYPES[array.dtype.name]
        reference_array = _read_back(output, array)
        limit = choose_foreign_tolerance(element, [array]).atol if element in FLOAT_TYPES else 0.0
        deviation = measure_difference(array, reference_array)
        if not output.differs and deviation > limit:
            suffix = f", by up to {deviation:.3g}" if math.isfinite(deviation) else ""
            notes.append(f"{name}: {tool} gives other numbers{suffix}")
    return notes


def _read_back(output: ModelOutput, other_array: NDArray[Any]) -> NDArray[Any]:
    """Read an output of a worker as an array with `other_array`'s dtype and shape."""
    content = output.file.read_bytes()
    if pack_bytes(other_array) == content:
        return other_array
    if len(content) != other_array.nbytes:
        # Several values share a byte, so only equality can be compared.
        return np.frombuffer(content, np.uint8)
    return np.frombuffer(content, other_array.dtype).reshape(other_array.shape)


def _write_input(choice: InputChoice, folder: Path) -> str:
    """Write an input's file into a folder; return the argument of iree-run-module."""
    if choice.values:
        return choice.literal
    if choice.content is not None:
        path = folder / f"{abs(hash(choice))}{choice.suffix}"
        path.write_bytes(choice.content)
    else:
        generator = parse_seeded(choice.source)
        path = folder / f"{abs(hash(choice))}{generator.suffix}"
        if not path.exists():
            write_seeded(choice.source, path)
    return f"@{path}" if path.suffix == ".npy" else f"{choice.type}=@{path}"


def _list_model_files(
    program: UserProgram,
    choices: Sequence[InputChoice],
    outputs: Sequence[NDArray[Any]],
    description: str,
    *,
    has_outputs: bool,
) -> dict[Path, bytes | Path]:
    """List the files of a model by path: the program, its weights, its inputs, known outputs, spec and benchmark."""
    regressions, benchmarks = REGRESSIONS / program.name, BENCHMARKS / program.name
    regression, benchmark = (
        json.loads((_TEMPLATE / kind / "example" / "dense_cpu.json").read_text(encoding="utf-8"))
        for kind in (REGRESSIONS, BENCHMARKS)
    )
    onnx_import = program.make_import_options(choice.type for choice in choices)
    contents = list(map(make_file_content, outputs))
    entries: list[dict[str, str]] = []
    for index, (array, content) in enumerate(zip(outputs, contents, strict=True)):
        if content.startswith(NPY_MAGIC):
            entries.append({"source": f"{SPEC}/output_{index}.npy"})
        else:
            value = program.outputs[index].format_type(array)
            entries.append({"source": f"{SPEC}/output_{index}.bin", "value": value})
    if has_outputs and not entries:
        # Missing outputs are an error until they are recorded.
        entries = [{"source": f"{SPEC}/output_{index}.npy"} for index in range(len(program.outputs))]
    # The known outputs come from another tool, so they may differ.
    by_type: dict[str, list[NDArray[Any]]] = {}
    for array in outputs:
        by_type.setdefault(ELEMENT_TYPES[array.dtype.name], []).append(array)
    floats = {name: choose_foreign_tolerance(name, arrays) for name, arrays in by_type.items() if name in FLOAT_TYPES}
    spec = {
        "description": description,
        "mlir": program.file_name,
        **({"onnx_import": onnx_import} if onnx_import else {}),
        "inputs": [_describe_input(index, choice) for index, choice in enumerate(choices)],
        "outputs": entries,
        "device": regression["device"],
        "compiler_flags": [*regression["compiler_flags"], *((KEEP_F64,) if program.has_f64 else ())],
        **({"threshold_args": list(make_tolerance_flags(floats))} if outputs else {}),
        **({} if program.is_onnx else {"run_function": program.function}),
    }
    benchmark_inputs = {"inputs": [choice.for_benchmark for choice in choices], "function_run": program.function}
    return {
        regressions / f"{SPEC}.json": _format_json(spec),
        benchmarks / f"{SPEC}.json": _format_json({**benchmark, **benchmark_inputs}),
        regressions / program.file_name: program.kept_path,
        **{regressions / path.relative_to(program.path.parent): path for path in program.data},
        **{
            regressions / SPEC / f"input_{index}{choice.suffix}": choice.content
            for index, choice in enumerate(choices)
            if choice.content is not None
        },
        **{regressions / output["source"]: content for output, content in zip(entries, contents, strict=False)},
    }


def _describe_input(index: int, choice: InputChoice, spec: str = SPEC) -> dict[str, str]:
    if choice.values:
        return {"value": choice.literal}
    if choice.content is None:
        return {"source": choice.source}
    type_field = {} if choice.suffix == ".npy" else {"value": choice.type}
    return {"source": f"{spec}/input_{index}{choice.suffix}", **type_field}


def _format_json(content: dict[str, Any]) -> bytes:
    text = "{\n}\n"
    for key, value in content.items():
        text = with_member(text, key, value)
    return text.encode()


def find_toolkit_source() -> str:
    """Return pip's requirement: a release, or `NAME @ URL`, with a `file:` URL if no other machine can access it."""
    try:
        origin = json.loads(distribution("iree-gauntlet").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    match origin:
        case {"url": url, "vcs_info": {"vcs": vcs, "commit_id": commit}}:
            return f"{_REQUIREMENT} @ {vcs}+{_without_secrets(url)}@{commit}"
        case {"url": url, "dir_info": _}:
            return f"{_REQUIREMENT} @ {_find_remote(unquote(urlsplit(url).path)) or url}"
        case {"url": url}:
            return f"{_REQUIREMENT} @ {_without_secrets(url)}"
    return f"{_REQUIREMENT}=={__version__}"


def _find_remote(checkout: str) -> str:
    """Return the origin of a checkout as pip takes it; empty if that is no URL, or the folder is no checkout."""
    try:
        result = run_short(("git", "-C", checkout, "remote", "get-url", "origin"), timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    url = result.stdout.strip() if result.exit_code == 0 else ""
    return f"git+{_without_secrets(url)}" if url.startswith(("https://", "ssh://")) else ""


def _without_secrets(url: str) -> str:
    """Remove a password or a token from a URL, which a clone in CI may contain."""
    parts = urlsplit(url)
    user = "git@" if parts.scheme == "ssh" and parts.username == "git" else ""
    return urlunsplit(parts._replace(netloc=user + parts.netloc.rpartition("@")[2]))


class FileTransaction:
    """Files that are written together: all are written, or everything is restored."""

    def __init__(self) -> None:
        self._backups: list[tuple[Path, Path | None]] = []
        # The parents that were created, in order.
        self._folders: list[Path] = []

    def begin(self, path: Path) -> None:
        """Prepare a path for writing: create its parent, and rename an existing file or folder to a backup."""
        self._folders += reversed([parent for parent in path.parents if not parent.exists()])
        path.parent.mkdir(parents=True, exist_ok=True)
        backup = _find_free_name(path) if path.exists() else None
        if backup:
            path.rename(backup)
        self._backups.append((path, backup))

    def undo(self) -> None:
        """Restore everything."""
        for path, backup in reversed(self._backups):
            _remove(path)
            if backup:
                backup.rename(path)
        for folder in reversed(self._folders):
            # Another process may have written into the folder meanwhile.
            with suppress(OSError):
                folder.rmdir()
        self._backups.clear()

    def finish(self) -> None:
        """Delete the backups."""
        for _, backup in self._backups:
            if backup:
                _remove(backup)


def _find_free_name(path: Path) -> Path:
    """Find an unused name next to a path; never overwrite an old backup: after a kill it may be the only copy."""
    names = (path.with_name(f".{path.name}.before{number or ''}") for number in itertools.count())
    return next(name for name in names if not os.path.lexists(name))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def open_file_transaction() -> Iterator[FileTransaction]:
    """Yield a transaction; its changes are kept if the block succeeds, and undone otherwise."""
    writing = FileTransaction()
    try:
        yield writing
    except BaseException:
        writing.undo()
        raise
    writing.finish()
