"""Cases of the torch variant: synthetic arguments, outputs compared by NumPy's `allclose`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from iree_gauntlet.cases import Allclose, Argument
from iree_gauntlet.dialects.fields import tolerant
from iree_gauntlet.dialects.flagfile import outside
from iree_gauntlet.dialects.locations import is_url
from iree_gauntlet.dialects.op_schema import (
    ELEMENT_TYPES,
    ExpectedOutput,
    FormulaArgument,
    FormulaFields,
    TensorMeta,
    TorchOp,
    tensor_of,
)
from iree_gauntlet.dialects.op_trees import TORCH_FILE, OpSpec
from iree_gauntlet.dialects.spec_file import load_json, problem_at

if TYPE_CHECKING:
    from iree_gauntlet.errors import Problem


_Found = tuple[TorchOp, tuple[Argument, ...], tuple[Argument, ...], Allclose]


def read_torch_op(spec: OpSpec) -> tuple[_Found | None, list[Problem], list[Problem]]:
    """What a `run_module_io.json` says: itself, inputs, expected outputs, and how they are compared.

    Returns:
        That, or None where it cannot be understood; what is wrong with it; what is passed over.
    """
    content, text, problems = load_json(Path(spec.folder.path, TORCH_FILE), spec.name)
    if content is None:
        return None, problems, []
    document, problems, warnings = tolerant(TorchOp, content, spec.name, text)
    if document is None:
        return None, problems, warnings
    reader = _Reader(spec, text)
    reader.local(["file_name"], document.file_name)
    expected = document.expected_output or [] if document.mode != "benchmark" else []
    outputs = tuple(reader.expected(index, item) for index, item in enumerate(expected))
    allclose = Allclose(document.rtol, document.atol, document.equal_nan)
    return (document, _inputs(document), outputs, allclose), reader.problems, warnings


def _inputs(document: TorchOp) -> tuple[Argument, ...]:
    """The arguments: all formulas of a case draw from one generator, one after the other."""
    arguments = []
    drawn = 0
    for item in document.flat_args:
        if isinstance(item, FormulaArgument):
            arguments.append(Argument(url=_formula_url(item.Formula, document.seed, drawn)))
            drawn += math.prod(item.Formula.shape)
        else:
            arguments.append(Argument(_scalar(item)))
    return tuple(arguments)


def _formula_url(formula: FormulaFields, seed: int, drawn: int) -> str:
    tensor = tensor_of(formula.shape, formula.dtype)
    # A plus would be read as a blank: 1e+16.
    coeff, offset = quote(repr(formula.coeff)), quote(repr(formula.offset))
    return f"random://formula/{tensor}?seed={seed}&skip={drawn}&coeff={coeff}&offset={offset}"


def _scalar(number: float, meta: TensorMeta | None = None) -> str:
    """A plain number as the tools read it: of the type that NumPy gives it, or of the one that is named."""
    if meta is not None:
        element, tensor = ELEMENT_TYPES[meta.dtype], tensor_of(meta.shape, meta.dtype)
    else:
        element = tensor = "i1" if isinstance(number, bool) else "i64" if isinstance(number, int) else "f64"
    if element == "i1" or (not element.startswith(("f", "bf")) and float(number).is_integer()):
        return f"{tensor}={int(number)}"
    return f"{tensor}={number!r}" if not isinstance(number, bool) else f"{tensor}={int(number)}"


class _Reader:
    """Resolves the files that a case names, and collects what is wrong with them."""

    def __init__(self, spec: OpSpec, text: str) -> None:
        self._spec = spec
        self._text = text
        self.problems: list[Problem] = []

    def local(self, field: list[str | int], name: str) -> None:
        """A file of the case's folder."""
        if outside(name):
            self._refuse(field, f"{name!r} leaves the case's folder", "Put the file into the folder.")
        elif name not in self._spec.folder.files and not Path(self._spec.folder.path, name).is_file():
            self._refuse(field, f"the file {name} is missing", "Put it into the case's folder.")

    def expected(self, index: int, item: str | ExpectedOutput) -> Argument:
        if isinstance(item, str):
            self.local(["expected_output", index], item)
            if item.endswith(".bin"):
                hint = 'Write {"url": …, "meta": {"dtype": …, "shape": […]}}.'
                self._refuse(["expected_output", index], f"{item} does not say its shape and type", hint)
            return Argument(f"@{item}")
        if not item.file:
            return Argument(_scalar(item.value, item.meta))
        tensor = tensor_of(item.meta.shape, item.meta.dtype) if item.meta and item.file.endswith(".bin") else ""
        if is_url(item.file):
            return Argument(tensor, item.file)
        self.local(["expected_output", index, "url" if item.url else "value"], item.file)
        return Argument(f"{tensor}=@{item.file}" if tensor else f"@{item.file}")

    def _refuse(self, field: list[str | int], message: str, hint: str) -> None:
        self.problems.append(problem_at(self._spec.name, self._text, field, message, hint))
