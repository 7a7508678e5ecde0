"""A bundle: a folder, and an archive of it, with which anyone can see a failure, or that it is mended.

README.md      an issue for IREE, filled in
repro.sh       compiles, runs and compares: exit code 0 fixed, 1 still there, 125 cannot be judged
program.mlir   what fails, and nothing else
input_0.bin…   what it is given, as raw values, and what is expected of it (`expected_0.bin`)
run.ireereplay the run as the device saw it, where the runtime can record one (`explain.py`)
bundle.json    versions, flags, sizes and hashes
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
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
from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT, TOLERANCES
from iree_gauntlet.experiments.explaining.operators import OPERATOR
from iree_gauntlet.experiments.explaining.tools import CRASH, FAILURE, HANG, WRONG, Symptom
from iree_gauntlet.formatting import byte_size, counted, listed, take_last_lines
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.steps import Command
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.plain_tar import unpack_plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.flow_program import HeldTensor
    from iree_gauntlet.experiments.explaining.locate import WrongDispatch
    from iree_gauntlet.experiments.explaining.operators import WrongOperator
    from iree_gauntlet.experiments.explaining.reduce import Reduced
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.toolchains.toolchain import Toolchain


_BUNDLE_FACTS = "bundle.json"
_README = "README.md"
_REPRODUCE = "repro.sh"
REPLAY = "run.ireereplay"
LIMIT = 10_000_000
_INLINE_BYTES = 4_000
PROGRAM = "program.mlir"
# What the script ends with.
FIXED, STILL_THERE, CANNOT_BE_JUDGED = 0, 1, 125
# What is said where it is fixed; and what there is to see where it is not, as a condition and in words.
_ENDINGS = {
    WRONG: ("the outputs are as expected", "true", "the outputs are not as expected"),
    FAILURE: ("it does not fail", "[ $code -lt 124 ]", "it fails as it did"),
    CRASH: ("it does not crash", "[ $code -ge 128 ]", "it crashes as it did"),
    HANG: ("it ends", "[ $code -eq 124 ] || [ $code -eq 137 ]", "it does not end"),
}
# Of the two tasks, what a script's exit code means.
_CHECKED = {
    STILL_THERE: ("it fails: confirmed", ExitCode.OK),
    FIXED: ("it does not fail: not confirmed", ExitCode.FAILED),
}
_RAN = {FIXED: ("it is fixed", ExitCode.OK), STILL_THERE: ("the failure is still there", ExitCode.FAILED)}
# What it says, in the folder of logs.
SAID = "repro.txt"
# A larger .onnx is left out: the program has the same weights.
_SMALL_BYTES = 1_000_000
# Lines of what a tool says that a README has.
_SAID_LINES, _SAID_WIDTH = 30, 200
# What is compiled while a program is reduced.
_CANDIDATE = re.compile(r"\S*/candidate\.(?:mlir|vmfb)")
# As MLIR writes values: in hexadecimal, as a list, or at the end of the text.
_CONSTANTS = re.compile(rb'dense<(?:"|\[)|dense_resource<')
# Arguments of iree-run-module that name files.
_VALUES = ("--input", "--expected_output")
_PARAMETERS = "--parameters"
_FETCHABLE = ("http://", "https://")
# Of a run that need not be repeated.
_LEFT_OUT = ("--module", "--device", "--output")
# Installing IREE, a compile and a run.
_TIMEOUT_SECONDS = 900.0


@dataclass(slots=True)
class BundleFiles:
    """What goes into a bundle beside its program, gathered as its command lines are made.

    Attributes:
        held: contents by their names.
        made: files that are made where it is run: a name, and the arguments of `make_values.py` behind it.
        fetched: files that are fetched where it is run: a name, and the arguments of `fetch_file.py` behind it.
    """

    held: dict[str, bytes] = field(default_factory=dict)
    made: list[tuple[str, ...]] = field(default_factory=list)
    fetched: list[tuple[str, ...]] = field(default_factory=list)

    def add_tensors(self, tensors: Sequence[HeldTensor], name: str) -> list[str]:
        """Arguments of iree-run-module for tensors, as `<name>_0.bin` and so on; zeros need no file."""
        texts: list[str] = []
        for index, tensor in enumerate(tensors):
            file = f"{name}_{index}.bin"
            if tensor.made:
                self.made.append((file, *tensor.made))
            elif any(data := tensor.file.read_bytes()):
                self.held[file] = data
            else:
                file = ""
            texts.append(f"{tensor.type}=@{file}" if file else tensor.type)
        return texts

    def add_flags(self, flags: Sequence[str], folder: Path) -> tuple[str, ...]:
        """Flags that name files, relative to a folder, by their names in the bundle."""
        texts: list[str] = []
        for flag in flags:
            head, equals, value = flag.rpartition("=")
            path = folder / value
            text = flag
            # A word such as `host` is no file, whatever lies in the folder.
            if equals and ("/" in value or path.suffix) and path.is_file():
                data, known = path.read_bytes(), [name for name in self.held if name.startswith("flag_")]
                same = (name for name in known if self.held[name] == data and name.endswith(path.suffix))
                name = next(same, f"flag_{len(known)}{path.suffix}")
                self.held[name] = data
                text = f"{head}={name}"
            texts.append(text)
        return tuple(texts)

    @property
    def tools(self) -> dict[Path, list[tuple[str, ...]]]:
        """Programs that make files where a bundle is run, and what they are given, each time."""
        here = Path(__file__)
        programs = {here.with_name("make_values.py"): self.made, here.with_name("fetch_file.py"): self.fetched}
        return {tool: rows for tool, rows in programs.items() if rows}


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into a bundle.

    Attributes:
        program: as text or bytecode; empty where it is fetched.
        device: empty where it is the compile that fails.
        arguments: of iree-run-module, with files by their names in the bundle.
    """

    title: str
    what: tuple[str, ...]
    program: bytes
    flags: tuple[str, ...]
    device: str
    arguments: tuple[str, ...]
    files: BundleFiles
    iree: Toolchain
    symptom: Symptom

    @property
    def before(self) -> list[str]:
        """Commands that make files."""
        return [shlex.join(("python3", tool.name, *row)) for tool, rows in self.files.tools.items() for row in rows]


@dataclass(frozen=True, slots=True)
class FailureForms:
    """A failure in the forms that a bundle may have it in."""

    failure: Failure
    symptom: Symptom
    iree: Toolchain

    def of_dispatch(self, suspect: WrongDispatch) -> Iterator[Contents]:
        """A dispatch: as a function that every release reads where it can be one, then as this release has it."""
        files = BundleFiles()
        arguments = _list_arguments(CUT_OUT, suspect.inputs, suspect.expected, files)
        what = "Wrong numbers" if suspect.expected else self.symptom.said or self.symptom.ending
        title = f"{what} in {suspect.dispatch.name} ({self.failure.device})"
        given = "made-up inputs" if files.made else "the inputs that it had"
        found = _describe_found("dispatch", suspect=suspect, given=given)
        contents = self._fill(title, suspect.program.encode(), files, found, arguments=arguments)
        if suspect.function:
            yield replace(contents, program=suspect.function.encode())
        yield replace(contents, flags=("--compile-from=flow", *contents.flags))

    def of_operator(self, operator: WrongOperator) -> Contents:
        """An operator of an ONNX model, as a model of its own, and what onnxruntime makes of it."""
        files = BundleFiles()
        arguments = _list_arguments(OPERATOR, operator.held.inputs, operator.held.outputs, files)
        model = operator.onnx.read_bytes()
        if len(model) <= _SMALL_BYTES:
            files.held["model.onnx"] = model
        found = _describe_found("operator", operator=operator, has_model="model.onnx" in files.held)
        repeated = "Its large tensors hold their first values over and over, in place of the model's own."
        kinds = ", ".join(dict.fromkeys(node.op for node in operator.nodes))
        title = f"Wrong numbers in {kinds} of ONNX ({self.failure.device})"
        what = (found, *((repeated,) if operator.repeated else ()))
        return self._fill(title, operator.program.read_bytes(), files, *what, arguments=arguments)

    def of_reduced(self, reduced: Reduced) -> Contents:
        """A program that was made smaller."""
        before, after = (counted(size.operations, "operation") for size in (reduced.before, reduced.after))
        fails = "fails" if reduced.after.operations == 1 else "fail"
        found = f"`program.mlir` is what is left of a program of {before}: {after}, which {fails} in the same way."
        # Where a tool lies on this machine is left out.
        library = f"{Path(self.iree.compiler.compile).parent}/"
        shown = _CANDIDATE.sub("program.mlir", reduced.text).replace(library, "").strip().splitlines()
        lines = take_last_lines(tuple(shown[:_SAID_LINES]), count=_SAID_LINES, width=_SAID_WIDTH)
        title, said = f"iree-compile: {self.symptom.said}", "\n".join(("```", *lines, "```"))
        return self._fill(title, reduced.program.read_bytes(), BundleFiles(), found, said)

    def of_program(self, why: str) -> Contents:
        """All of the program, with what it is given and expected to give; GauntletError where a file is not there."""
        files = BundleFiles()
        compiles = self.failure.stage.row.makes_modules
        program = self._take(self.failure.program, PROGRAM, files)
        arguments = () if compiles else self._name_files(files)
        tool = "iree-compile" if compiles else "iree-run-module"
        said = (f"```\n{self.symptom.said}\n```",) if self.symptom.said else ()
        title = f"{tool}: {self.symptom.said or self.symptom.ending}"
        if self.symptom.ending == WRONG:
            title = f"Wrong numbers of {self.failure.case} ({self.failure.device})"
        what = (*said, f"`program.mlir` is the whole program: {why}.")
        return self._fill(title, program, files, *what, arguments=arguments)

    def _fill(
        self, title: str, program: bytes, files: BundleFiles, *found: str, arguments: tuple[str, ...] = ()
    ) -> Contents:
        failure = self.failure
        what = (f"{failure.case}: {without_expectation(failure.result.full_reason)}", *found)
        flags = files.add_flags(failure.flags, failure.compile_cwd)
        device = "" if failure.stage.row.makes_modules else failure.device
        return Contents(title, what, program, flags, device, arguments, files, self.iree, self.symptom)

    def _take(self, path: Path, name: str, files: BundleFiles) -> bytes:
        """A file's bytes; none where it is large, and fetched from where it comes from."""
        try:
            size = path.stat().st_size
            if size <= LIMIT:
                return path.read_bytes()
            url = self.failure.urls.get(str(path), "")
            if not url.startswith(_FETCHABLE):
                what = f"{path.name} has {byte_size(size)}, and a bundle at most {byte_size(LIMIT)}"
                raise GauntletError(what, "Where it has an http address, the bundle names that.")
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            what = f"{path} cannot be read: {error.strerror}"
            raise GauntletError(what, "Run the case again, and explain it.") from error
        files.fetched.append((name, url, sha256))
        return b""

    def _name_files(self, files: BundleFiles) -> tuple[str, ...]:
        """The run's arguments, with the files that they name by their names in the bundle."""
        words: list[str] = []
        for word in self.failure.argv[1:]:
            flag, _, value = word.partition("=")
            if flag in _LEFT_OUT:
                continue
            # `TYPE=@FILE`, `@FILE`, and of parameters `SCOPE=FILE` or FILE.
            mark = "=" if flag == _PARAMETERS else "@"
            kind, at, path = value.rpartition(mark)
            if not ((flag in _VALUES and at) or flag == _PARAMETERS):
                words.append(word)
                continue
            place = self.failure.cwd / path
            name = f"{flag.removeprefix('--')}_{len(files.held) + len(files.fetched)}{place.suffix}"
            if data := self._take(place, name, files):
                files.held[name] = data
            words.append(f"{flag}={kind}{at}{name}")
        return tuple(words)


def holds_constants(program: bytes) -> bool:
    """Whether a program's text holds constants that are not of one value."""
    return _CONSTANTS.search(program) is not None


def _describe_found(form: str, **values: object) -> str:
    """A paragraph, on one line."""
    return " ".join(render("found.md", form=form, share=_format_share, **values).split())


def _format_share(error: float) -> str:
    return f"{error:.3g} of its largest value" if math.isfinite(error) else "infinity"


def _list_arguments(
    function: str, inputs: Sequence[HeldTensor], expected: Sequence[HeldTensor], files: BundleFiles
) -> tuple[str, ...]:
    """Of a run that is right within what another order of operations may change, by type and largest |value|."""
    largest: dict[str, float] = {}
    for item in expected:
        name = item.type.rpartition("x")[2]
        largest[name] = max(largest.get(name, 0.0), item.largest)
    allowed = {name: TOLERANCES[name] * value for name, value in largest.items() if name in TOLERANCES}
    return (
        f"--function={function}",
        *(f"--input={text}" for text in files.add_tensors(inputs, "input")),
        *(f"--expected_output={text}" for text in files.add_tensors(expected, "expected")),
        *(f"--expected_{name}_threshold={value:.3g}" for name, value in allowed.items()),
    )


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that is there."""

    folder: Path
    archive: Path
    bytes: int


def write_bundle(contents: Contents, folder: Path) -> Bundle:
    """Write a bundle, and its archive next to it.

    Raises:
        GauntletError: it would be too large.
    """
    iree, packages, program = contents.iree, list_packages(contents.iree), contents.program
    facts = {
        "title": contents.title,
        # Where it is installed here is nobody else's business.
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
        # A small program, for those who read the issue alone.
        inline="" if len(program) > _INLINE_BYTES or b"\0" in program else program.decode(errors="replace").strip(),
        has_replay=REPLAY in contents.files.held,
        contains=contains(contents),
    )
    files = contents.files.held | {tool.name: tool.read_bytes() for tool in contents.files.tools}
    files |= {PROGRAM: program} if program else {}
    return pack(files, readme, write_script(contents), facts, folder)


def write_script(contents: Contents) -> str:
    """What compiles, runs and judges it."""
    symptom = contents.symptom
    fixed, condition, still = _ENDINGS[symptom.ending]
    if symptom.ending == WRONG:
        condition += """ && grep -q '^\\[FAILED\\]' "$work/said.txt\""""
    elif symptom.pattern:
        # Releases break a diagnostic's lines at different places.
        condition += f""" && tr '\\n' ' ' < "$work/said.txt" | grep -qE {shlex.quote(symptom.pattern)}"""
    return render(
        "repro.sh",
        contents=contents,
        packages=list_packages(contents.iree),
        named="IREE_COMPILE and IREE_RUN_MODULE name" if contents.device else "IREE_COMPILE names",
        limit=f"timeout -k 10 {symptom.seconds:.0f} " if symptom.ending == HANG else "",
        fixed=fixed,
        condition=condition,
        still=still,
    )


def render(template: str, **values: object) -> str:
    """A file of a bundle from its template; `machine` is this one."""
    import jinja2  # noqa: PLC0415 - `run` brings this module, and seldom needs it

    environment = jinja2.Environment(  # noqa: S701 - no page
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["words"] = shlex.join
    # Further words of a command to paste, a line each.
    environment.filters["folded"] = lambda words: "".join(f" \\\n    {shlex.quote(word)}" for word in words)
    text = Path(__file__).with_name(f"{template}.jinja").read_text(encoding="utf-8")
    return environment.from_string(text).render(machine=_describe_machine(), **values)


def _describe_machine() -> str:
    """This machine, for those who have a bundle of it."""
    facts = read_machine_facts()
    return f"{facts.cpu}, {facts.os}"


def pack(files: Mapping[str, bytes], readme: str, script: str, facts: Mapping[str, object], folder: Path) -> Bundle:
    """Write the files of a bundle with what is known of it, and its archive next to it.

    Raises:
        GauntletError: it would be too large.
    """
    whole = {**files, _README: readme.encode(), _REPRODUCE: script.encode()}
    hashes = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in sorted(whole.items())
    }
    known = {**facts, "machine": _describe_machine(), "files": hashes}
    whole[_BUNDLE_FACTS] = (json.dumps(known, indent=2) + "\n").encode()
    # An archive that is the same, byte for byte, for the same files.
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(whole.items()):
            entry = tarfile.TarInfo(f"{folder.name}/{name}")
            entry.size, entry.mode = len(data), 0o755 if name == _REPRODUCE else 0o644
            tar.addfile(entry, io.BytesIO(data))
    packed = gzip.compress(plain.getvalue(), mtime=0)
    if len(packed) > LIMIT:
        largest = sorted(whole, key=lambda name: -len(whole[name]))[:3]
        raise GauntletError(
            f"the bundle would have {byte_size(len(packed))}, and {byte_size(LIMIT)} is the limit",
            f"The largest in it: {listed([f'{name} {byte_size(len(whole[name]))}' for name in largest], 3)}.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in whole.items():
        write_atomic(folder / name, data)
    (folder / _REPRODUCE).chmod(0o755)
    archive = folder.with_name(f"{folder.name}.tar.gz")
    write_atomic(archive, packed)
    return Bundle(folder, archive, len(packed))


def list_packages(iree: Toolchain) -> tuple[str, ...]:
    """What installs it, as pip takes it."""
    return f"iree-base-compiler=={iree.compiler.release}", f"iree-base-runtime=={iree.runtime.release}"


def contains(contents: Contents) -> str:
    """What a bundle holds of a model, in a sentence or two."""
    held, fetched = contents.files.held, contents.files.fetched
    parts = [f"the program ({byte_size(len(contents.program))})"] if contents.program else []
    own = byte_size(sum(map(len, held.values())))
    parts += [f"{counted(len(held), 'file')} of values and flags ({own})"] if held else []
    said = f"It contains {' and '.join(parts)}." if parts else "It contains no file of the model."
    said += " Inputs are made up." if contents.files.made else ""
    return said + (f" It fetches {', '.join(row[1] for row in fetched)}." if fetched else "")


@dataclass(frozen=True, slots=True)
class OpenedBundle:
    """A bundle that can be run; `packages` are the IREE that it fails with: `iree-base-compiler==3.6.0`."""

    folder: Path
    title: str
    packages: tuple[str, ...]


def open_bundle(bundle: Path, place: Path) -> OpenedBundle:
    """Open a bundle: a folder, or an archive that is unpacked into another one."""
    hint = "Name a bundle that `explain` wrote."
    if not bundle.exists():
        raise UsageError(f"there is no bundle {bundle}", "`explain` writes runs/<run>/explain/<case>/bundle.tar.gz.")
    folder = bundle
    if not bundle.is_dir():
        try:
            with tarfile.open(bundle) as tar:
                unpack_plain(tar, place)
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise GauntletError(f"{bundle} cannot be unpacked: it is no archive, or damaged", hint) from error
        folder = min((path.parent for path in place.glob(f"*/{_BUNDLE_FACTS}")), default=place)
    for name in (_BUNDLE_FACTS, _REPRODUCE):
        if not (folder / name).is_file():
            raise GauntletError(f"{bundle} is no bundle: it has no {name}", "Name one that `explain` wrote.")
    try:
        facts = json.loads((folder / _BUNDLE_FACTS).read_text(encoding="utf-8"))
        return OpenedBundle(folder, str(facts["title"]), tuple(map(str, facts["packages"])))
    except (ValueError, KeyError, TypeError) as error:
        what = f"{bundle}: {_BUNDLE_FACTS} is not as `explain` writes it: {type(error).__name__}: {error}"
        raise GauntletError(what, hint) from error


def run_bundle(
    bundle: Path, iree: Toolchain | None, supervisor: Supervisor, logs: Path, base: Toolchain | None = None
) -> int | None:
    """Run the bundle of a folder: its exit code, None where it was ended; what it says stands in `repro.txt` of `logs`.

    It installs the IREE, and the `base` that this is held against where it is about times, that are not given.
    """
    tools: list[tuple[str, str]] = []
    for prefix, side in (("", iree), ("BASE_", base)):
        if side is not None:
            tools.append((f"{prefix}IREE_COMPILE", side.compiler.compile))
            tools.append((f"{prefix}IREE_RUN_MODULE", side.runtime.run_module))
            tools.append((f"{prefix}IREE_BENCHMARK_MODULE", side.runtime.benchmark_module))
            tools += find_linker(side.compiler.compile)
    command = Command(("sh", f"./{_REPRODUCE}"), str(bundle), env=tuple(tools))
    log = logs / SAID
    outcome = supervisor.run(command, stdout=log, stderr=log, timeout=_TIMEOUT_SECONDS)
    if outcome.cancelled:
        raise KeyboardInterrupt
    return outcome.exit_code


def check(bundle: Path, presenter: Presenter) -> ExitCode:
    """Whether a bundle fails with the IREE that it installs for itself."""
    return _judge(bundle, None, presenter, _CHECKED)


def run_with(bundle: Path, request: ToolchainRequest, presenter: Presenter) -> ExitCode:
    """Whether a bundle fails with an IREE."""
    with presenter.progress() as progress:
        toolchain = open_workbench(request, progress, need_toolchain=True).iree
    return _judge(bundle, toolchain, presenter, _RAN)


def _judge(
    bundle: Path, iree: Toolchain | None, presenter: Presenter, meanings: Mapping[int, tuple[str, ExitCode]]
) -> ExitCode:
    """Run a bundle, and say what its exit code means."""
    with tempfile.TemporaryDirectory(prefix="gauntlet-bundle-") as place, Supervisor() as supervisor:
        opened = open_bundle(bundle, Path(place))
        with interruptible(supervisor.cancel_all):
            code = run_bundle(opened.folder, iree, supervisor, Path(place))
        if code in (CANNOT_BE_JUDGED, None):
            presenter.line((Path(place) / SAID).read_text(encoding="utf-8", errors="replace")[-3000:])
    how = f"IREE {iree.compiler.version}" if iree else f"{', '.join(opened.packages)}, in an environment of its own,"
    unknown = (f"it cannot be judged (exit code {code}); what it said stands above", ExitCode.ERROR)
    meaning, ending = unknown if code is None else meanings.get(code, unknown)
    presenter.line(f"{opened.title}: with {how} {meaning}")
    return ending
