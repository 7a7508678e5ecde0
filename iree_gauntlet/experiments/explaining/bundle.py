"""A bundle: a folder and its archive, with which anyone can reproduce a failure, or check that it is fixed.

README.md      an issue for IREE, filled in
repro.sh       compiles, runs and compares: exit code 0 fixed, 1 still there, 125 cannot be judged
program.mlir   the failing part of the program, and nothing else
input_0.bin…   its inputs, as raw values, and the expected outputs (`expected_0.bin`)
run.ireereplay the run as the device saw it, if the runtime can record one (`explain.py`)
bundle.json    versions, flags, sizes and hashes
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shlex
import tarfile
import tempfile
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.diagnostics import without_expectation
from iree_gauntlet.engine.processes.supervisor import Supervisor, find_linker
from iree_gauntlet.engine.session import interruptible
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.experiments.explaining.flow_program import DISPATCH_FUNCTION, TOLERANCES
from iree_gauntlet.experiments.explaining.operators import OPERATOR_FUNCTION
from iree_gauntlet.experiments.explaining.tools import CRASH, FAILURE, HANG, WRONG, Symptom
from iree_gauntlet.formatting import format_bytes, format_share, list_first, pluralize, take_last_lines
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.steps import Command
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.plain_tar import unpack_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.flow_program import TensorFile
    from iree_gauntlet.experiments.explaining.locate import WrongDispatch
    from iree_gauntlet.experiments.explaining.operators import WrongOperator
    from iree_gauntlet.experiments.explaining.reduce import Reduction
    from iree_gauntlet.progress import Reporter
    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.toolchains.toolchain import Toolchain


_BUNDLE_FACTS = "bundle.json"
_README = "README.md"
_SCRIPT = "repro.sh"
REPLAY = "run.ireereplay"
MAX_BYTES = 10_000_000
_INLINE_BYTES = 4_000
PROGRAM = "program.mlir"
# The exit codes of the script.
FIXED, STILL_THERE, CANNOT_BE_JUDGED = 0, 1, 125
# For each ending: the text if the failure is fixed, the shell condition for the failure, and the text if it holds.
_ENDINGS = {
    WRONG: ("the outputs are as expected", "true", "the outputs are not as expected"),
    FAILURE: ("it does not fail", "[ $code -lt 124 ]", "it fails as before"),
    CRASH: ("it does not crash", "[ $code -ge 128 ]", "it crashes as before"),
    HANG: ("it ends", "[ $code -eq 124 ] || [ $code -eq 137 ]", "it does not end"),
}
# The meaning of the script's exit code, for each of the two tasks.
_CHECK_MEANINGS = {
    STILL_THERE: ("it fails: confirmed", ExitCode.OK),
    FIXED: ("it does not fail: not confirmed", ExitCode.FAILED),
}
_RUN_MEANINGS = {FIXED: ("it is fixed", ExitCode.OK), STILL_THERE: ("the failure is still there", ExitCode.FAILED)}
# The script's output, in the folder of logs.
REPRO_LOG = "repro.txt"
# Larger .onnx files are left out, because the program has the same weights.
_SMALL_BYTES = 1_000_000
# The maximum number and length of the lines of a tool's output in a README.
_MAX_LOG_LINES, _MAX_LINE_CHARS = 30, 200
# The names of the files that a reduction compiles.
_CANDIDATE = re.compile(r"\S*/candidate\.(?:mlir|vmfb)")
# The beginnings of MLIR constants with several values: in hexadecimal, as a list, or stored at the end of the file.
_CONSTANT_MARKS = re.compile(rb'dense<(?:"|\[)|dense_resource<')
# Arguments of iree-run-module that name files.
_VALUE_FLAGS = ("--input", "--expected_output")
_PARAMETERS_FLAG = "--parameters"
_URL_PREFIXES = ("http://", "https://")
# Flags of the original run that the script does not repeat.
_IGNORED_FLAGS = ("--module", "--device", "--output")
# The time limit for installing IREE, one compile and one run together.
_TIMEOUT_SECONDS = 900.0


@dataclass(slots=True)
class BundleFiles:
    """The files of a bundle besides the program; they are collected while the bundle's command lines are made.

    Attributes:
        blobs: file contents by name.
        recipes: the files that the script generates, by name, with the arguments of `make_values.py`.
        downloads: the files that the script downloads, by name, with the arguments of `fetch_file.py`.
    """

    blobs: dict[str, bytes] = field(default_factory=dict)
    recipes: list[tuple[str, ...]] = field(default_factory=list)
    downloads: list[tuple[str, ...]] = field(default_factory=list)

    def add_tensors(self, tensors: Sequence[TensorFile], name: str) -> list[str]:
        """Return iree-run-module's arguments for tensors; files are `<name>_0.bin` and so on, zeros need no file."""
        args: list[str] = []
        for index, tensor in enumerate(tensors):
            file = f"{name}_{index}.bin"
            if tensor.made:
                self.recipes.append((file, *tensor.made))
            elif any(data := tensor.file.read_bytes()):
                self.blobs[file] = data
            else:
                file = ""
            args.append(f"{tensor.type}=@{file}" if file else tensor.type)
        return args

    def add_flags(self, flags: Sequence[str], folder: Path) -> tuple[str, ...]:
        """Add the files that flags name, relative to a folder; return the flags with the files' names in the bundle."""
        args: list[str] = []
        for flag in flags:
            head, equals, value = flag.rpartition("=")
            path = folder / value
            arg = flag
            # A word such as `host` does not name a file, even if the folder has a file `host`.
            if equals and ("/" in value or path.suffix) and path.is_file():
                data, names = path.read_bytes(), [name for name in self.blobs if name.startswith("flag_")]
                matches = (name for name in names if self.blobs[name] == data and name.endswith(path.suffix))
                name = next(matches, f"flag_{len(names)}{path.suffix}")
                self.blobs[name] = data
                arg = f"{head}={name}"
            args.append(arg)
        return tuple(args)

    @property
    def tools(self) -> dict[Path, list[tuple[str, ...]]]:
        """The programs that the script runs to make files, each with its argument lists."""
        path = Path(__file__)
        programs = {path.with_name("make_values.py"): self.recipes, path.with_name("fetch_file.py"): self.downloads}
        return {tool: rows for tool, rows in programs.items() if rows}


@dataclass(frozen=True, slots=True)
class BundleContents:
    """The contents of a bundle.

    Attributes:
        program: text or bytecode; empty if the script downloads the program.
        device: the device to run on; empty if the compile fails.
        arguments: iree-run-module's arguments, with the bundle's file names.
    """

    title: str
    paragraphs: tuple[str, ...]
    program: bytes
    flags: tuple[str, ...]
    device: str
    arguments: tuple[str, ...]
    files: BundleFiles
    iree: Toolchain
    symptom: Symptom

    @property
    def commands(self) -> list[str]:
        """The commands that make files, before the compile."""
        return [shlex.join(("python3", tool.name, *row)) for tool, rows in self.files.tools.items() for row in rows]


@dataclass(frozen=True, slots=True)
class FailureForms:
    """The forms in which a bundle can show a failure."""

    failure: Failure
    symptom: Symptom
    iree: Toolchain

    def make_dispatch_forms(self, suspect: WrongDispatch) -> Iterator[BundleContents]:
        """Yield a dispatch first as a function that every release reads, if possible, then in this release's format."""
        files = BundleFiles()
        arguments = _list_arguments(DISPATCH_FUNCTION, suspect.inputs, suspect.expected, files)
        problem = "Wrong numbers" if suspect.expected else self.symptom.said or self.symptom.ending
        title = f"{problem} in {suspect.dispatch.name} ({self.failure.device})"
        inputs_text = "made-up inputs" if files.recipes else "its original inputs"
        paragraph = _render_finding("dispatch", suspect=suspect, given=inputs_text)
        contents = self._fill(title, suspect.program.encode(), files, paragraph, arguments=arguments)
        if suspect.function:
            yield replace(contents, program=suspect.function.encode())
        yield replace(contents, flags=("--compile-from=flow", *contents.flags))

    def make_operator_form(self, operator: WrongOperator) -> BundleContents:
        """Return an ONNX model of only the wrong operator, with onnxruntime's outputs."""
        files = BundleFiles()
        arguments = _list_arguments(OPERATOR_FUNCTION, operator.values.inputs, operator.values.outputs, files)
        model = operator.onnx.read_bytes()
        if len(model) <= _SMALL_BYTES:
            files.blobs["model.onnx"] = model
        finding = _render_finding("operator", operator=operator, has_model="model.onnx" in files.blobs)
        repeated = "Its large tensors repeat their first values in place of the model's own."
        operators = ", ".join(dict.fromkeys(node.op for node in operator.nodes))
        title = f"Wrong numbers in ONNX {operators} ({self.failure.device})"
        paragraphs = (finding, *((repeated,) if operator.repeated else ()))
        return self._fill(title, operator.program.read_bytes(), files, *paragraphs, arguments=arguments)

    def make_reduced_form(self, reduction: Reduction) -> BundleContents:
        """Return a reduced program."""
        count = reduction.after.operations
        old, new = pluralize(reduction.before.operations, "operation"), pluralize(count, "operation")
        new, verb = new if count else "a function without operations", "fails" if count < 2 else "fail"
        text = f"`program.mlir` is reduced from a program of {old} to {new}, which {verb} in the same way."
        # Leave out the tool's location on this machine.
        library = f"{Path(self.iree.compiler.compile).parent}/"
        log = _CANDIDATE.sub("program.mlir", reduction.text).replace(library, "").strip().splitlines()
        lines = take_last_lines(tuple(log[:_MAX_LOG_LINES]), count=_MAX_LOG_LINES, width=_MAX_LINE_CHARS)
        title, excerpt = f"iree-compile: {self.symptom.said}", "\n".join(("```", *lines, "```"))
        return self._fill(title, reduction.program.read_bytes(), BundleFiles(), text, excerpt)

    def make_program_form(self, reason: str) -> BundleContents:
        """Return the whole program, with its inputs and expected outputs; GauntletError if a file is missing."""
        if self.failure.calls:
            raise GauntletError(
                f"{reason}, and a bundle of the whole program makes one call, but this case makes several",
                "The report of the run has the command that makes them.",
            )
        files = BundleFiles()
        is_compile = self.failure.stage.row.makes_modules
        program = self._read_or_download(self.failure.program, PROGRAM, files)
        arguments = () if is_compile else self._name_files(files)
        tool = "iree-compile" if is_compile else "iree-run-module"
        excerpt = (f"```\n{self.symptom.said}\n```",) if self.symptom.said else ()
        title = f"{tool}: {self.symptom.said or self.symptom.ending}"
        if self.symptom.ending == WRONG:
            title = f"Wrong numbers of {self.failure.case} ({self.failure.device})"
        paragraphs = (*excerpt, f"`program.mlir` is the whole program: {reason}.")
        return self._fill(title, program, files, *paragraphs, arguments=arguments)

    def _fill(
        self, title: str, program: bytes, files: BundleFiles, *paragraphs: str, arguments: tuple[str, ...] = ()
    ) -> BundleContents:
        failure = self.failure
        all_paragraphs = (f"{failure.case}: {without_expectation(failure.result.full_reason)}", *paragraphs)
        flags = files.add_flags(failure.flags, failure.compile_cwd)
        device = "" if failure.stage.row.makes_modules else failure.device
        return BundleContents(title, all_paragraphs, program, flags, device, arguments, files, self.iree, self.symptom)

    def _read_or_download(self, path: Path, name: str, files: BundleFiles) -> bytes:
        """Return a file's bytes; if the file is too large, add a download of it and return no bytes."""
        try:
            size = path.stat().st_size
            if size <= MAX_BYTES:
                return path.read_bytes()
            url = self.failure.urls.get(str(path), "")
            if not url.startswith(_URL_PREFIXES):
                message = f"{path.name} is {format_bytes(size)}, but a bundle is at most {format_bytes(MAX_BYTES)}"
                raise GauntletError(message, "If it has an http address, the bundle names that instead.")
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}"
            raise GauntletError(message, "Run the case again, and explain it.") from error
        files.downloads.append((name, url, sha256))
        return b""

    def _name_files(self, files: BundleFiles) -> tuple[str, ...]:
        """Return the run's arguments, in which files have their names in the bundle."""
        args: list[str] = []
        for arg in self.failure.argv[1:]:
            flag, _, value = arg.partition("=")
            if flag in _IGNORED_FLAGS:
                continue
            # The forms are `TYPE=@FILE`, `@FILE`, and for parameters `SCOPE=FILE` or FILE.
            separator = "=" if flag == _PARAMETERS_FLAG else "@"
            prefix, mark, path = value.rpartition(separator)
            if not ((flag in _VALUE_FLAGS and mark) or flag == _PARAMETERS_FLAG):
                args.append(arg)
                continue
            file_path = self.failure.cwd / path
            name = f"{flag.removeprefix('--')}_{len(files.blobs) + len(files.downloads)}{file_path.suffix}"
            if data := self._read_or_download(file_path, name, files):
                files.blobs[name] = data
            args.append(f"{flag}={prefix}{mark}{name}")
        return tuple(args)


def has_constants(program: bytes) -> bool:
    """Return True if a program's text has constants with more than one value."""
    return _CONSTANT_MARKS.search(program) is not None


def _render_finding(form: str, **values: object) -> str:
    """Render a paragraph, on one line."""
    return " ".join(render("found.md", form=form, share=format_share, **values).split())


def _list_arguments(
    function: str, inputs: Sequence[TensorFile], expected: Sequence[TensorFile], files: BundleFiles
) -> tuple[str, ...]:
    """Return a run's arguments; thresholds by type allow for rounding in another order of operations."""
    largest: dict[str, float] = {}
    for tensor in expected:
        name = tensor.type.rpartition("x")[2]
        largest[name] = max(largest.get(name, 0.0), tensor.largest)
    tolerances = {name: TOLERANCES[name] * value for name, value in largest.items() if name in TOLERANCES}
    return (
        f"--function={function}",
        *(f"--input={text}" for text in files.add_tensors(inputs, "input")),
        *(f"--expected_output={text}" for text in files.add_tensors(expected, "expected")),
        *(f"--expected_{name}_threshold={value:.3g}" for name, value in tolerances.items()),
    )


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that has been written."""

    folder: Path
    archive: Path
    bytes: int


def write_bundle(contents: BundleContents, folder: Path) -> Bundle:
    """Write a bundle, and its archive next to it.

    Raises:
        GauntletError: the bundle would be too large.
    """
    iree, packages, program = contents.iree, list_packages(contents.iree), contents.program
    facts = {
        "title": contents.title,
        # Leave out the installation's path, which is private.
        "iree": {name: value for name, value in iree.as_dict().items() if name != "source"},
        "packages": packages,
        "flags": contents.flags,
        "device": contents.device,
        "arguments": contents.arguments,
    }
    readme = render(
        "readme.md",
        contents=contents,
        iree=iree,
        packages=packages,
        # A small program is also shown in the issue.
        inline="" if len(program) > _INLINE_BYTES or b"\0" in program else program.decode(errors="replace").strip(),
        has_replay=REPLAY in contents.files.blobs,
        contains=describe_contents(contents),
    )
    files = contents.files.blobs | {tool.name: tool.read_bytes() for tool in contents.files.tools}
    files |= {PROGRAM: program} if program else {}
    return pack(files, readme, write_script(contents), facts, folder)


def write_script(contents: BundleContents) -> str:
    """Write the script that compiles, runs and judges."""
    symptom = contents.symptom
    fixed_text, condition, failing_text = _ENDINGS[symptom.ending]
    if symptom.ending == WRONG:
        condition += """ && grep -q '^\\[FAILED\\]' "$work/said.txt\""""
    elif symptom.pattern:
        # Join the lines, because releases break diagnostics differently.
        condition += f""" && tr '\\n' ' ' < "$work/said.txt" | grep -qE {shlex.quote(symptom.pattern)}"""
    return render(
        "repro.sh",
        contents=contents,
        packages=list_packages(contents.iree),
        named="IREE_COMPILE and IREE_RUN_MODULE name" if contents.device else "IREE_COMPILE names",
        limit=f"timeout -k 10 {symptom.seconds:.0f} " if symptom.ending == HANG else "",
        fixed=fixed_text,
        condition=condition,
        still=failing_text,
    )


def render(template: str, **values: object) -> str:
    """Render a file of a bundle from its template; `machine` describes this machine."""
    import jinja2  # noqa: PLC0415 - `run` imports this module and seldom needs jinja2

    environment = jinja2.Environment(  # noqa: S701 - no page
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["words"] = shlex.join
    # The filter puts each word of a command on a line of its own.
    environment.filters["folded"] = lambda words: "".join(f" \\\n    {shlex.quote(word)}" for word in words)
    text = Path(__file__).with_name(f"{template}.jinja").read_text(encoding="utf-8")
    return environment.from_string(text).render(machine=_describe_machine(), **values)


def _describe_machine() -> str:
    """Describe this machine for the readers of a bundle."""
    facts = read_machine_facts()
    return f"{facts.cpu}, {facts.os}"


def pack(files: Mapping[str, bytes], readme: str, script: str, facts: Mapping[str, object], folder: Path) -> Bundle:
    """Write the files of a bundle with its facts, and its archive next to it.

    Raises:
        GauntletError: it would be too large.
    """
    parts = {**files, _README: readme.encode(), _SCRIPT: script.encode()}
    hashes = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in sorted(parts.items())
    }
    all_facts = {**facts, "machine": _describe_machine(), "files": hashes}
    parts[_BUNDLE_FACTS] = (json.dumps(all_facts, indent=2) + "\n").encode()
    # The archive is reproducible: the same files give the same bytes.
    tar_bytes = io.BytesIO()
    with tarfile.open(fileobj=tar_bytes, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(parts.items()):
            entry = tarfile.TarInfo(f"{folder.name}/{name}")
            entry.size, entry.mode = len(data), 0o755 if name == _SCRIPT else 0o644
            tar.addfile(entry, io.BytesIO(data))
    archive_bytes = gzip.compress(tar_bytes.getvalue(), mtime=0)
    if len(archive_bytes) > MAX_BYTES:
        largest = sorted(parts, key=lambda name: -len(parts[name]))[:3]
        raise GauntletError(
            f"the bundle would be {format_bytes(len(archive_bytes))}, but the limit is {format_bytes(MAX_BYTES)}",
            f"Its largest files: {list_first([f'{name} {format_bytes(len(parts[name]))}' for name in largest], 3)}.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in parts.items():
        write_atomic(folder / name, data)
    (folder / _SCRIPT).chmod(0o755)
    archive = folder.with_name(f"{folder.name}.tar.gz")
    write_atomic(archive, archive_bytes)
    return Bundle(folder, archive, len(archive_bytes))


def list_packages(iree: Toolchain) -> tuple[str, ...]:
    """Return the packages of an IREE, as pip requirements."""
    return f"iree-base-compiler=={iree.compiler.release}", f"iree-base-runtime=={iree.runtime.release}"


def describe_contents(contents: BundleContents) -> str:
    """Describe, in a sentence or two, the parts of a model that a bundle contains."""
    data_files, downloads = contents.files.blobs, contents.files.downloads
    parts = [f"the program ({format_bytes(len(contents.program))})"] if contents.program else []
    size = format_bytes(sum(map(len, data_files.values())))
    parts += [f"{pluralize(len(data_files), 'file')} of values and flags ({size})"] if data_files else []
    summary = f"It contains {' and '.join(parts)}." if parts else "It contains no file of the model."
    summary += " Inputs are made up." if contents.files.recipes else ""
    return summary + (f" It fetches {', '.join(row[1] for row in downloads)}." if downloads else "")


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """A bundle that can be run; it fails with the IREE of `packages`, such as `iree-base-compiler==3.6.0`."""

    folder: Path
    title: str
    packages: tuple[str, ...]


def open_bundle(bundle: Path, target_dir: Path) -> BundleInfo:
    """Open a bundle, which is a folder or an archive; an archive is unpacked into `target_dir`."""
    hint = "Name a bundle that `explain` wrote."
    if not bundle.exists():
        raise UsageError(f"there is no bundle {bundle}", "`explain` writes runs/<run>/explain/<case>/bundle.tar.gz.")
    folder = bundle
    if not bundle.is_dir():
        try:
            with tarfile.open(bundle) as tar:
                unpack_plain(tar, target_dir)
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise GauntletError(f"{bundle} cannot be unpacked: it is not an archive, or is damaged", hint) from error
        folder = min((path.parent for path in target_dir.glob(f"*/{_BUNDLE_FACTS}")), default=target_dir)
    for name in (_BUNDLE_FACTS, _SCRIPT):
        if not (folder / name).is_file():
            raise GauntletError(f"{bundle} is not a bundle: it has no {name}", "Name one that `explain` wrote.")
    try:
        facts = json.loads((folder / _BUNDLE_FACTS).read_text(encoding="utf-8"))
        return BundleInfo(folder, str(facts["title"]), tuple(map(str, facts["packages"])))
    except (ValueError, KeyError, TypeError) as error:
        message = f"{bundle}: {_BUNDLE_FACTS} is not as `explain` writes it: {type(error).__name__}: {error}"
        raise GauntletError(message, hint) from error


def run_bundle(
    bundle: Path, iree: Toolchain | None, supervisor: Supervisor, logs: Path, base: Toolchain | None = None
) -> int | None:
    """Run a bundle's script, with the output in `repro.txt` of `logs`; return its exit code, None if killed.

    The script installs the IREE, and for a comparison of times the `base`, unless they are given.
    """
    tools: list[tuple[str, str]] = []
    for prefix, side in (("", iree), ("BASE_", base)):
        if side is not None:
            tools.append((f"{prefix}IREE_COMPILE", side.compiler.compile))
            tools.append((f"{prefix}IREE_RUN_MODULE", side.runtime.run_module))
            tools.append((f"{prefix}IREE_BENCHMARK_MODULE", side.runtime.benchmark_module))
            tools += find_linker(side.compiler.compile)
    command = Command(("sh", f"./{_SCRIPT}"), str(bundle), env=tuple(tools))
    log = logs / REPRO_LOG
    outcome = supervisor.run(command, stdout=log, stderr=log, timeout=_TIMEOUT_SECONDS)
    if outcome.cancelled:
        raise KeyboardInterrupt
    return outcome.exit_code


def check_bundle(bundle: Path, presenter: Reporter) -> ExitCode:
    """Report whether a bundle fails with the IREE that its script installs."""
    return _judge(bundle, None, presenter, _CHECK_MEANINGS)


def run_bundle_with_iree(bundle: Path, request: ToolchainRequest, presenter: Reporter) -> ExitCode:
    """Report whether a bundle fails with another IREE."""
    with presenter.progress() as progress:
        toolchain = open_workbench(request, progress, need_toolchain=True).iree
    return _judge(bundle, toolchain, presenter, _RUN_MEANINGS)


def _judge(
    bundle: Path, iree: Toolchain | None, presenter: Reporter, meanings: Mapping[int, tuple[str, ExitCode]]
) -> ExitCode:
    """Run a bundle, and report the meaning of the script's exit code."""
    with tempfile.TemporaryDirectory(prefix="gauntlet-bundle-") as temp_dir, Supervisor() as supervisor:
        info = open_bundle(bundle, Path(temp_dir))
        with interruptible(supervisor.cancel_all):
            code = run_bundle(info.folder, iree, supervisor, Path(temp_dir))
        if code in (CANNOT_BE_JUDGED, None):
            text = (Path(temp_dir) / REPRO_LOG).read_text(encoding="utf-8", errors="replace")
            presenter.line(text[-3000:], is_result=True)
    tools = f"IREE {iree.compiler.version}" if iree else f"{', '.join(info.packages)}, in its own environment,"
    default = (f"it cannot be judged (exit code {code}); its output is above", ExitCode.ERROR)
    verdict, ending = default if code is None else meanings.get(code, default)
    presenter.line(f"{info.title}: with {tools} {verdict}", is_result=True)
    return ending
