"""What goes into the bundle of a failure: the dispatch at fault, a program that was reduced, or all of the program."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage
from iree_gauntlet.diagnostics import without_expectation
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.bundle import LIMIT, PROGRAM, BundleFiles, Contents, render
from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT
from iree_gauntlet.experiments.explaining.operators import OPERATOR
from iree_gauntlet.experiments.explaining.tools import WRONG
from iree_gauntlet.experiments.explaining.traced_sides import TOLERANCES
from iree_gauntlet.figures import byte_size, counted, take_last_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.experiments.explaining.failures import Failure
    from iree_gauntlet.experiments.explaining.locate import WrongDispatch
    from iree_gauntlet.experiments.explaining.operators import WrongOperator
    from iree_gauntlet.experiments.explaining.reduce import Reduced
    from iree_gauntlet.experiments.explaining.tools import Symptom
    from iree_gauntlet.experiments.explaining.traced_sides import HeldTensor
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
        flags, program = self._add_flags(files), suspect.program.encode()
        contents = self._fill(title, program, ("--compile-from=flow", *flags), files, found, arguments=arguments)
        if suspect.function:
            yield replace(contents, program=suspect.function.encode(), flags=flags)
        yield contents

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
        return self._fill(
            title, operator.program.read_bytes(), self._add_flags(files), files, *what, arguments=arguments
        )

    def of_reduced(self, reduced: Reduced) -> Contents:
        """A program that was made smaller."""
        files = BundleFiles()
        before, after = (counted(size.operations, "operation") for size in (reduced.before, reduced.after))
        fails = "fails" if reduced.after.operations == 1 else "fail"
        found = f"`program.mlir` is what is left of a program of {before}: {after}, which {fails} in the same way."
        # Where a tool lies on this machine is left out.
        library = f"{Path(self.iree.compiler.compile).parent}/"
        shown = _CANDIDATE.sub("program.mlir", reduced.text).replace(library, "").strip().splitlines()
        lines = take_last_lines(tuple(shown[:_SAID_LINES]), count=_SAID_LINES, width=_SAID_WIDTH)
        title, said = f"iree-compile: {self.symptom.said}", "\n".join(("```", *lines, "```"))
        return self._fill(title, reduced.program.read_bytes(), self._add_flags(files), files, found, said, device="")

    def of_program(self, why: str) -> Contents:
        """All of the program, with what it is given and what is expected of it.

        Raises:
            GauntletError: a file of it is not there.
        """
        files = BundleFiles()
        compiles = self.failure.stage is Stage.COMPILE
        program = self._take(self.failure.program, PROGRAM, files)
        arguments = () if compiles else self._name_files(files)
        tool = "iree-compile" if compiles else "iree-run-module"
        said = (f"```\n{self.symptom.said}\n```",) if self.symptom.said else ()
        title = f"{tool}: {self.symptom.said or self.symptom.ending}"
        if self.symptom.ending == WRONG:
            title = f"Wrong numbers of {self.failure.case} ({self.failure.device})"
        what = (*said, f"`program.mlir` is the whole program: {why}.")
        device = "" if compiles else self.failure.device
        return self._fill(title, program, self._add_flags(files), files, *what, arguments=arguments, device=device)

    def _fill(
        self,
        title: str,
        program: bytes,
        flags: tuple[str, ...],
        files: BundleFiles,
        *found: str,
        arguments: tuple[str, ...] = (),
        device: str | None = None,
    ) -> Contents:
        what = (f"{self.failure.case}: {without_expectation(self.failure.result.reason)}", *found)
        device = self.failure.device if device is None else device
        return Contents(title, what, program, flags, device, arguments, files, self.iree, self.symptom)

    def _add_flags(self, files: BundleFiles) -> tuple[str, ...]:
        return files.add_flags(self.failure.flags, self.failure.compile_cwd)

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
