"""A dispatch in f64: which of two sides that differ is right, and how far is each off?

What computes in f32 is compiled once more with every f32 an f64. That works for what can be a function on tensors and
has neither constants with many values nor functions that llvm-cpu does not know in f64.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT
from iree_gauntlet.experiments.explaining.tools import CompileError
from iree_gauntlet.experiments.explaining.traced_sides import TOLERANCES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.experiments.explaining.made_up import Input
    from iree_gauntlet.experiments.explaining.tools import Tools


# Values in hexadecimal cannot be read as f64, but for one alone.
_MANY_VALUES = re.compile(r'dense<"|dense_resource<')
_HEXADECIMAL = re.compile(r"\b0x([0-9A-F]{8}) : f32\b")
_F32 = re.compile(r"(?:(?<=\dx)|\b)f32\b")
_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=generic",
    "--iree-input-demote-f64-to-f32=false",
)
_TIMEOUT_SECONDS = 120.0
# So many times what the reference is off is rounding too.
_NO_WORSE = 2


@dataclass(frozen=True, slots=True)
class InF64:
    """How far two sides are off what f64 gives, as shares of its largest value; infinite where one alone is no number.

    Attributes:
        target, reference: of each.
    """

    target: float
    reference: float

    @property
    def only_rounds(self) -> bool:
        """Whether the target is right, or hardly further off than the reference."""
        return self.target <= max(TOLERANCES["f32"], _NO_WORSE * self.reference)


def text_in_f64(function: str) -> str:
    """A function that computes in f64 what one computes in f32; empty where it cannot be written."""
    if not _F32.search(function) or _MANY_VALUES.search(function):
        return ""

    def wider(found: re.Match[str]) -> str:
        (value,) = struct.unpack(">f", bytes.fromhex(found[1]))
        return f"0x{struct.pack('>d', value).hex().upper()} : f32"

    return _F32.sub("f64", _HEXADECIMAL.sub(wider, function))


def held_against_f64(
    function: str, inputs: Sequence[Input], outputs: Sequence[str], kept: Path, tools: Tools, name: str
) -> InF64 | None:
    """How far both sides of a dispatch are off what f64 gives; None where that cannot be had.

    Args:
        function: the dispatch as a function.
        inputs: what it was given.
        outputs: types of what it gave.
        kept: folder with what both sides gave: `target_output_0.bin`, `reference_output_0.bin`.
        tools: compile and run it.
        name: of files.
    """
    import numpy as np  # noqa: PLC0415 - `run` brings this module, and seldom needs it

    text = text_in_f64(function)
    if not text or any(not kind.endswith("xf32") for kind in outputs):
        return None
    source = tools.folder / f"{name}.mlir"
    source.write_text(text, encoding="utf-8")
    try:
        module = tools.compile(f"{name}.vmfb", source, _FLAGS, timeout=_TIMEOUT_SECONDS)
    except CompileError:
        return None
    words = ["--device=local-task", f"--module={module}", f"--function={CUT_OUT}"]
    for index, item in enumerate(inputs):
        file, kind = item.file, item.kind
        if kind.endswith("f32"):
            file, kind = tools.folder / f"{name}_input_{index}.bin", f"{kind.removesuffix('f32')}f64"
            file.write_bytes(np.fromfile(item.file, "<f4").astype("<f8").tobytes())
        words.append(f"--input={kind}=@{file}")
    results = [tools.folder / f"{name}_output_{index}.npy" for index in range(len(outputs))]
    words += [f"--output=@{file}" for file in results]
    if not tools.run_module(name, words, timeout=_TIMEOUT_SECONDS).passed:
        return None
    errors = {"target": 0.0, "reference": 0.0}
    for index, file in enumerate(results):
        exact = np.load(file).ravel()
        for side, before in errors.items():
            given = np.fromfile(kept / f"{side}_output_{index}.bin", "<f4").astype("<f8")
            errors[side] = max(before, _off(given, exact))
    return InF64(**errors)


def _off(given: Any, exact: Any) -> float:
    """The largest difference, as a share of the largest value."""
    import numpy as np  # noqa: PLC0415 - as above

    finite = np.isfinite(exact)
    if (np.isfinite(given) != finite).any():
        return math.inf
    largest = float(np.abs(exact[finite]).max(initial=0.0))
    difference = float(np.abs(given[finite] - exact[finite]).max(initial=0.0))
    return difference / largest if largest else difference
