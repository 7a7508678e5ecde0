"""What goes into the bundle of a failure: the dispatch at fault, a program that was reduced, or all of the program."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage
from iree_gauntlet.diagnostics import without_expectation
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.bundle import LIMIT, PROGRAM, Contents, file_values, flag_files, raw_value
from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT
from iree_gauntlet.experiments.explaining.operators import OPERATOR
from iree_gauntlet.experiments.explaining.symptom import WRONG
from iree_gauntlet.experiments.explaining.traced_sides import TOLERANCES
from iree_gauntlet.figures import byte_size, counted, last_lines
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.locate import Input, WrongDispatch
    from iree_gauntlet.experiments.explaining.operators import WrongOperator
    from iree_gauntlet.experiments.explaining.reduce import Reduced
    from iree_gauntlet.experiments.explaining.symptom import Symptom
    from iree_gauntlet.toolchains.toolchain import Toolchain


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


def of_dispatch(failure: Failure, symptom: Symptom, suspect: WrongDispatch, iree: Toolchain) -> Iterator[Contents]:
    """A dispatch: as a function that every release reads where it can be one, then as this release has it."""
    inputs, held, made = _describe_given(suspect.inputs)
    expected, kept = file_values(suspect.expected, "expected")
    flags, named = flag_files(failure.flags)
    name, given = suspect.dispatch.name, "made-up inputs" if made else "the inputs that it had"
    if suspect.expected:
        title = f"Wrong numbers in {name} ({failure.device})"
        found = (
            f"Of {suspect.of} dispatches, `{name}` (call {suspect.call}) is the first whose inputs agree with those of "
            f"{suspect.reference} and whose output does not: it is off by "
            f"{_format_share(suspect.error)}. Cut out, and run on "
            f"{given}, it is wrong too. `program.mlir` is that dispatch, and what is expected is what "
            f"{suspect.reference} gives on these inputs."
        )
        if suspect.in_f64 is not None:
            found += (
                f" The same computed in f64 says who is right: the one is off by "
                f"{_format_share(suspect.in_f64.target)}, "
                f"{suspect.reference} by {_format_share(suspect.in_f64.reference)}."
            )
    else:
        title = f"{symptom.said or symptom.ending} in {name} ({failure.device})"
        found = (
            f"Of {suspect.of} dispatches, `{name}` (call {suspect.call}) is begun and not ended. Cut out, and run on "
            f"{given}, it fails too. `program.mlir` is that dispatch."
        )
    contents = Contents(
        title=title,
        what=_describe_what(failure, found),
        machine=_format_machine(),
        program=suspect.program.encode(),
        flags=("--compile-from=flow", *flags),
        device=failure.device,
        arguments=(
            f"--function={CUT_OUT}",
            *(f"--input={text}" for text in inputs),
            *(f"--expected_output={text}" for text in expected),
            *_list_thresholds((kind, most) for (kind, _), most in zip(suspect.expected, suspect.largest, strict=True)),
        ),
        files=(*held, *kept, *named),
        made=made,
        iree=iree,
        symptom=symptom,
    )
    if suspect.function:
        yield replace(contents, program=suspect.function.encode(), flags=flags)
    yield contents


def of_operator(failure: Failure, symptom: Symptom, operator: WrongOperator, iree: Toolchain) -> Contents:
    """An operator of an ONNX model, as a model of its own, and what onnxruntime makes of it."""
    inputs, held = file_values([(value.kind, value.file) for value in operator.inputs], "input")
    expected, kept = file_values([(value.kind, value.file) for value in operator.outputs], "expected")
    flags, named = flag_files(failure.flags, failure.compile_cwd)
    model = operator.onnx.read_bytes()
    models = (("model.onnx", model),) if len(model) <= _SMALL_BYTES else ()
    found = (
        f"{operator.title} is the first operator whose inputs agree with those of onnxruntime {operator.onnxruntime} "
        f"and whose output does not. As a model of its own, on the inputs that onnxruntime has there, it is off by "
        f"{_format_share(operator.error)}. `program.mlir` is what that model is imported as"
        f"{', `model.onnx` the model' if models else ''}, and what is expected is what onnxruntime gives."
    )
    repeated = "Its large tensors hold their first values over and over, in place of the model's own."
    kinds = ", ".join(dict.fromkeys(node.op for node in operator.nodes))
    return Contents(
        title=f"Wrong numbers in {kinds} of ONNX ({failure.device})",
        what=_describe_what(failure, found, *((repeated,) if operator.repeated else ())),
        program=operator.program.read_bytes(),
        flags=flags,
        device=failure.device,
        arguments=(
            f"--function={OPERATOR}",
            *(f"--input={text}" for text in inputs),
            *(f"--expected_output={text}" for text in expected),
            *_list_thresholds((value.kind, value.largest) for value in operator.outputs),
        ),
        files=(*held, *kept, *models, *named),
        iree=iree,
        machine=_format_machine(),
        symptom=symptom,
    )


def of_reduced(failure: Failure, symptom: Symptom, reduced: Reduced, iree: Toolchain) -> Contents:
    """A program that was made smaller."""
    flags, named = flag_files(failure.flags, failure.compile_cwd)
    before, after = (counted(size["operations"], "operation") for size in (reduced.before, reduced.after))
    fails = "fails" if reduced.after["operations"] == 1 else "fail"
    found = f"`program.mlir` is what is left of a program of {before}: {after}, which {fails} in the same way."
    return Contents(
        title=f"iree-compile: {symptom.said}",
        what=_describe_what(failure, found, _format_code(reduced.said, iree)),
        machine=_format_machine(),
        program=reduced.program.read_bytes(),
        flags=flags,
        device="",
        arguments=(),
        files=named,
        iree=iree,
        symptom=symptom,
    )


def of_program(failure: Failure, symptom: Symptom, why: str, iree: Toolchain) -> Contents:
    """All of the program, with what it is given and what is expected of it.

    Raises:
        GauntletError: a file of it is not there.
    """
    flags, named = flag_files(failure.flags, failure.compile_cwd)
    compiles = failure.stage is Stage.COMPILE
    parts = _BundleParts(failure)
    program = parts.taken(failure.program, PROGRAM)
    arguments = [] if compiles else parts.arguments()
    tool = "iree-compile" if compiles else "iree-run-module"
    wrong = symptom.ending == WRONG
    said = (f"```\n{symptom.said}\n```",) if symptom.said else ()
    title = f"{tool}: {symptom.said or symptom.ending}"
    if wrong:
        title = f"Wrong numbers of {failure.case} ({failure.device})"
    return Contents(
        title=title,
        what=_describe_what(failure, *said, f"`program.mlir` is the whole program: {why}."),
        machine=_format_machine(),
        program=program,
        flags=flags,
        device="" if compiles else failure.device,
        arguments=tuple(arguments),
        files=(*parts.files, *named),
        fetched=tuple(parts.fetched),
        iree=iree,
        symptom=symptom,
    )


def holds_constants(program: bytes) -> bool:
    """Whether a program's text holds constants that are not of one value."""
    return _CONSTANTS.search(program) is not None


def _describe_what(failure: Failure, *found: str) -> tuple[str, ...]:
    return f"{failure.case}: {without_expectation(failure.result.reason)}", *found


def _format_machine() -> str:
    facts = read_machine_facts()
    return f"{facts.cpu}, {facts.os}"


def _format_code(said: str, iree: Toolchain) -> str:
    """What a tool says, without where it lies on this machine."""
    library = str(Path(iree.compiler.compile).parent)
    shown = _CANDIDATE.sub("program.mlir", said).replace(f"{library}/", "")
    lines = last_lines(tuple(shown.strip().splitlines()[:_SAID_LINES]), count=_SAID_LINES, width=_SAID_WIDTH)
    return "\n".join(("```", *lines, "```"))


def _format_share(error: float) -> str:
    return f"{error:.3g} of its largest value" if math.isfinite(error) else "infinity"


def _list_thresholds(outputs: Iterable[tuple[str, float]]) -> list[str]:
    """Of outputs, by type and largest |value|: within what another order of operations may change."""
    largest: dict[str, float] = {}
    for kind, most in outputs:
        name = kind.rpartition("x")[2]
        largest[name] = max(largest.get(name, 0.0), most)
    known = {name: TOLERANCES[name] * most for name, most in largest.items() if name in TOLERANCES}
    return [f"--expected_{name}_threshold={allowed:.3g}" for name, allowed in known.items()]


def _describe_given(
    inputs: Sequence[Input],
) -> tuple[list[str], tuple[tuple[str, bytes], ...], tuple[tuple[str, ...], ...]]:
    """Arguments for inputs; files with values of the model's own, and those that are made up."""
    texts: list[str] = []
    files: list[tuple[str, bytes]] = []
    made: list[tuple[str, ...]] = []
    for index, item in enumerate(inputs):
        name = f"input_{index}.bin"
        if item.made:
            made.append((name, *item.made))
            texts.append(f"{item.kind}=@{name}")
        else:
            text, held = raw_value(item.file.read_bytes(), item.kind, name)
            texts.append(text)
            files += held
    return texts, tuple(files), tuple(made)


class _BundleParts:
    """Files of a failure as they go into a bundle: whole, or where they come from where they are large."""

    def __init__(self, failure: Failure) -> None:
        self._failure = failure
        self.files: list[tuple[str, bytes]] = []
        self.fetched: list[tuple[str, ...]] = []

    def taken(self, path: Path, name: str) -> bytes:
        """A file's bytes; none where it is fetched."""
        try:
            size = path.stat().st_size
            if size <= LIMIT:
                return path.read_bytes()
            url = self._failure.urls.get(str(path), "")
            if not url.startswith(_FETCHABLE):
                what = f"{path.name} has {byte_size(size)}, and a bundle at most {byte_size(LIMIT)}"
                raise GauntletError(what, "Where it has an http address, the bundle names that.")
            with path.open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            what = f"{path} cannot be read: {error.strerror}"
            raise GauntletError(what, "Run the case again, and explain it.") from error
        self.fetched.append((name, url, sha256))
        return b""

    def arguments(self) -> list[str]:
        """The run's, with the files that they name by their names in the bundle."""
        words: list[str] = []
        for word in self._failure.argv[1:]:
            flag, _, value = word.partition("=")
            if flag in _LEFT_OUT:
                continue
            # `TYPE=@FILE`, `@FILE`, and of parameters `SCOPE=FILE` or FILE.
            mark = "=" if flag == _PARAMETERS else "@"
            kind, at, path = value.rpartition(mark)
            if not ((flag in _VALUES and at) or flag == _PARAMETERS):
                words.append(word)
                continue
            place = self._failure.cwd / path
            name = f"{flag.removeprefix('--')}_{len(self.files) + len(self.fetched)}{place.suffix}"
            data = self.taken(place, name)
            self.files += [(name, data)] if data else []
            words.append(f"{flag}={kind}{at}{name}")
        return words
