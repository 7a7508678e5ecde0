"""Run an ONNX model on synthetic inputs in onnxruntime, and save inputs and outputs for iree-run-module.

    python run_reference.py MODEL.onnx -o REFERENCE.zip

The archive has every input and output as raw values, and a flagfile `arguments.txt` that names them with their types:
`--input=1x3x224x224xf32=@input_0.bin`, `--expected_output=…`. The same onnxruntime and NumPy always make the same
archive, byte for byte.

Inputs are those of iree-test-suites' `onnx_models/utils.py`: dynamic dimensions are 1, and f32 values are uniform in
[0, 1). Upstream, all tests of a process share one `numpy.random.default_rng(0)`. Here each model has its own generator,
so its inputs do not depend on other models. Upstream calls `rng.integers(shape)` for i32 and i64, which has the model's
shape only for a single element. Here integers are uniform in [0, last dimension), which gives the same value for a
single element. Inputs of other types are not supported, as upstream.

Integers are signless (`i64`) like a module's; upstream writes `si64`.

Exit codes: 0 done; 1 onnxruntime failed; 2 the model has inputs or outputs of unsupported types. The reason is one line
on stderr, and nothing was written.
"""

from __future__ import annotations

import argparse
import os
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

if __name__ == "__main__":
    # Make `iree_gauntlet` importable without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.onnx_reference import (
    InferenceFailedError,
    OnnxRuntime,
    format_tensor_type,
    pack_bytes,
)
from iree_gauntlet.workers.iree_side.plan_file import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.workers.iree_side.onnx_reference import ReferenceInput
    from iree_gauntlet.workers.iree_side.plan_file import Array


# The integer types for which upstream makes inputs.
_INTEGERS = {"int32": np.int32, "int64": np.int64}


def make_inputs(inputs: Sequence[ReferenceInput]) -> list[Array]:
    """Generate a value for each input, in order; raise a PlanError for a type that upstream does not support."""
    generator = np.random.default_rng(0)
    arrays: list[Array] = []
    for value in inputs:
        shape = tuple(size if isinstance(size, int) else 1 for size in value.shape)
        if value.dtype == "float32":
            arrays.append(generator.random(shape, dtype=np.float32))
        elif value.dtype in _INTEGERS:
            upper_bound = max(1, shape[-1]) if shape else 1
            arrays.append(generator.integers(upper_bound, size=shape, dtype=_INTEGERS[value.dtype]))
        else:
            supported_types = ", ".join(["float32", *_INTEGERS])
            raise PlanError(f"input {value.name!r} is a {value.dtype}: inputs are generated for {supported_types} only")
    return arrays


def _make(model: Path, output: Path) -> None:
    if not model.is_file():
        raise PlanError(f"no file {model}")
    session = OnnxRuntime(model)
    inputs = make_inputs(session.inputs)
    outputs = session.run(inputs)
    entries = [("input", f"input_{index}", "", array) for index, array in enumerate(inputs)]
    entries += [("expected_output", f"output_{i}", name, array) for i, (name, array) in enumerate(outputs.items())]
    lines = [f"--{flag}={format_tensor_type(name, array)}=@{file}.bin\n" for flag, file, name, array in entries]
    archive_members = {"arguments.txt": "".join(lines).encode()}
    archive_members |= {f"{file}.bin": pack_bytes(array) for _, file, _, array in entries}
    partial_path = output.with_name(f"{output.name}.partial")
    with zipfile.ZipFile(partial_path, "w") as archive:
        for name, member_bytes in archive_members.items():
            # The entries have no time, so that the archive is always the same.
            archive.writestr(zipfile.ZipInfo(name), member_bytes)
    with partial_path.open("rb") as stream:
        os.fsync(stream.fileno())
    partial_path.replace(output)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="run_reference.py", description="Run an ONNX model in onnxruntime.")
    parser.add_argument("model", type=Path, help="the .onnx file as published")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the .zip file to write")
    arguments = parser.parse_args(argv)
    try:
        _make(arguments.model, arguments.output)
    except PlanError as error:
        print(f"error: {arguments.model.name}: {error}", file=sys.stderr)
        return 2
    except InferenceFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
