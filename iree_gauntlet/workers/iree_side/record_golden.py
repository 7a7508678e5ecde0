"""Record the outputs that a model should give, with onnxruntime as the judge.

    python record_golden.py --model MODEL.onnx --input x.npy... --output-folder DIR

Runs the model as its authors published it: no opset conversion, no simplification, one thread. Writes
`output_<i>.npy` (`.bin` for integers that the model computes) in the order of the graph's outputs, and
`provenance.json`: what they were made from. Outputs against which every result, or nearly every result, would pass
are refused.

Exit codes: 0 recorded, 1 onnxruntime failed, 2 the command cannot be carried out or an output is refused;
the reason is one line on stderr, and nothing was written.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]


_LARGEST_BYTES = 1_000_000
_CHUNK_BYTES = 1 << 20


class GoldenError(Exception):
    """There is no golden; the text is one line.

    Attributes:
        exit_code: that the command ends with.
    """

    exit_code: ClassVar[int]


class RefusedError(GoldenError):
    """The command cannot be carried out, or an output is worth nothing as a golden."""

    exit_code = 2


class InferenceFailedError(GoldenError):
    """onnxruntime could not load or run the model."""

    exit_code = 1


def check_output(name: str, array: Array, tolerance: float) -> None:
    """Refuse an output that cannot tell a right result from a wrong one.

    Args:
        name: the output's name, for the message.
        array: its value.
        tolerance: absolute tolerance that it will be compared with.

    Raises:
        RefusedError: it is empty, not finite, constant, or nowhere larger than the tolerance.
    """
    shape = "x".join(map(str, array.shape)) or "scalar"
    if array.size == 0:
        raise RefusedError(f"output {name!r} is empty ({shape}): fix the shapes of the inputs")
    if array.dtype.kind not in "biuf":
        raise RefusedError(f"output {name!r} holds {array.dtype}, which no threshold is defined for")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        count = int(array.size - np.isfinite(array).sum())
        raise RefusedError(f"output {name!r} has {count} of {array.size} values that are NaN or infinite")
    least, most = array.min(), array.max()
    if array.size > 1 and least == most:
        raise RefusedError(f"output {name!r} ({shape}) is {least} everywhere: try another input")
    largest, spread = max(abs(float(least)), abs(float(most))), float(most) - float(least)
    if array.dtype.kind == "f" and largest <= tolerance:
        raise RefusedError(
            f"output {name!r} ({shape}) never exceeds {largest:.3g}, within the tolerance of {tolerance:g}: "
            "zeros would pass; try another input or a smaller tolerance"
        )
    if array.dtype.kind == "f" and array.size > 1 and spread <= tolerance:
        raise RefusedError(
            f"output {name!r} ({shape}) varies by {spread:.3g}, within the tolerance of "
            f"{tolerance:g}: a constant would pass; try another input or a smaller tolerance"
        )


def check_outputs(outputs: dict[str, Array], tolerance: float) -> None:
    """Check all outputs, by name, and their total size.

    Raises:
        RefusedError: one is worth nothing (`check_output`), there are none, or they exceed 1 MB together.
    """
    if not outputs:
        raise RefusedError("the model has no outputs")
    for name, array in outputs.items():
        check_output(name, array, tolerance)
    total = sum(array.nbytes for array in outputs.values())
    if total > _LARGEST_BYTES:
        sizes = ", ".join(f"{name} {array.nbytes}" for name, array in outputs.items())
        raise RefusedError(
            f"outputs are {total} bytes together ({sizes}), {_LARGEST_BYTES} are allowed in a checkout: "
            "use smaller inputs"
        )


def run_model(
    model: Path | bytes, arrays: Sequence[Array] | Callable[[Sequence[Any]], Sequence[Array]]
) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """Run a model once, from its file or its content; descriptions of its inputs, and its outputs in graph order.

    Args:
        model: its file or content.
        arrays: one for each input; or what makes them of onnxruntime's descriptions (`name`, `type`, `shape`).

    Raises:
        RefusedError: there is no onnxruntime, or the number of inputs is wrong.
        InferenceFailedError: onnxruntime cannot load or run it.
    """
    name = model.name if isinstance(model, Path) else "the model"
    loaded = str(model) if isinstance(model, Path) else model
    try:
        import onnxruntime  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise RefusedError(f"no onnxruntime in {sys.executable}; pip install 'iree-gauntlet[record]'") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # What onnxruntime raises derives from Exception alone, one class per status code.
    statuses = vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
    failures: tuple[type[Exception], ...] = (
        ValueError,
        *(value for value in statuses if isinstance(value, type) and issubclass(value, Exception)),
    )
    try:
        session = onnxruntime.InferenceSession(loaded, options, providers=["CPUExecutionProvider"])
    except failures as error:
        raise InferenceFailedError(f"onnxruntime cannot load {name}: {_first_line(error)}") from error
    inputs = session.get_inputs()
    arrays = arrays(inputs) if callable(arrays) else arrays
    described = [{"name": value.name, "type": value.type, "declared_shape": list(value.shape)} for value in inputs]
    if len(inputs) != len(arrays):
        known = ", ".join(f"{value.name} {value.type} {value.shape}" for value in inputs)
        raise RefusedError(f"{len(arrays)} inputs were given, the model takes {len(inputs)}: {known}")
    names = [value.name for value in session.get_outputs()]
    try:
        values = session.run(names, {value.name: array for value, array in zip(inputs, arrays, strict=True)})
    except failures as error:
        raise InferenceFailedError(f"onnxruntime cannot run {name}: {_first_line(error)}") from error
    return described, dict(zip(names, values, strict=True))


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _relative(path: Path, folder: Path) -> str:
    """A file as the provenance in a folder names it."""
    return Path(os.path.relpath(path, folder)).as_posix()


def _content_sha256(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def load_array(path: Path) -> Array:
    """The array of a .npy file.

    Raises:
        RefusedError: it cannot be read.
    """
    try:
        array: Array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RefusedError(f"cannot read input {path}: {_first_line(error)}") from error
    return array


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _npy(array: Array) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ascontiguousarray(array).reshape(array.shape), version=(1, 0))
    return stream.getvalue()


def _file(folder: Path, index: int, array: Array, npy_inputs: Sequence[Array]) -> tuple[Path, bytes]:
    """Path and content of an output: .npy, but raw bytes for integers.

    iree-run-module reads an integer .npy as signed (`si64`), which equals no output that a module computes (`i64`).
    An input that a module hands through keeps the type that it came with, the .npy file's.
    """
    handed_through = any(array.dtype == given.dtype and np.array_equal(array, given) for given in npy_inputs)
    if array.dtype.kind in "iu" and not handed_through:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return folder / f"output_{index}.bin", np.ascontiguousarray(little).tobytes()
    return folder / f"output_{index}.npy", _npy(array)


def _value(array: Array) -> str:
    """The tensor type in IREE's notation, for a raw file: `1x64xi64`."""
    return "x".join([*map(str, array.shape), f"i{array.dtype.itemsize * 8}"])


def _described(name: str, path: str, array: Array, content_sha256: str) -> dict[str, Any]:
    return {
        "name": name,
        "source": path,
        "sha256": content_sha256,
        "shape": list(array.shape),
        "type": str(array.dtype),
    }


def _record(arguments: argparse.Namespace) -> list[Path]:
    for flag, given in (("--input-url", arguments.input_url), ("--input-value", arguments.input_value)):
        if given and len(given) != len(arguments.input):
            raise RefusedError(f"{flag} is given {len(given)} times, --input {len(arguments.input)} times")
    if not arguments.model.is_file():
        raise RefusedError(f"no file {arguments.model}")
    arrays = [load_array(path) for path in arguments.input]
    inputs, outputs = run_model(arguments.model, arrays)
    check_outputs(outputs, arguments.tolerance)

    import onnxruntime  # noqa: PLC0415

    folder: Path = arguments.output_folder
    folder.mkdir(parents=True, exist_ok=True)
    urls = arguments.input_url or [path.name for path in arguments.input]
    values = arguments.input_value or [""] * len(arguments.input)
    data: list[Path] = arguments.model_data
    signed = [array for array, value in zip(arrays, values, strict=True) if not value]
    contents = dict(_file(folder, index, array, signed) for index, array in enumerate(outputs.values()))
    provenance: dict[str, Any] = {
        "made_by": "onnxruntime",
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
        "threads": 1,
        "model": {
            "source": arguments.model_url or arguments.model.name,
            "sha256": _sha256(arguments.model),
            "bytes": arguments.model.stat().st_size,
            **(
                {"data": [{"source": _relative(path, folder), "sha256": _sha256(path)} for path in data]}
                if data
                else {}
            ),
        },
        "inputs": [
            {
                # Of a raw file, the bytes of the array are the file's.
                **_described(known["name"], url, array, _content_sha256(array) if value else _sha256(path)),
                "declared_shape": known["declared_shape"],
                **({"value": value} if value else {}),
            }
            for known, url, value, path, array in zip(inputs, urls, values, arguments.input, arrays, strict=True)
        ],
        "outputs": [
            {
                **_described(name, path.name, array, hashlib.sha256(content).hexdigest()),
                "min": array.min().item(),
                "max": array.max().item(),
                **({"value": _value(array)} if path.suffix == ".bin" else {}),
            }
            for (name, array), (path, content) in zip(outputs.items(), contents.items(), strict=True)
        ],
        "tolerance": arguments.tolerance,
    }
    if arguments.date:
        provenance["date"] = arguments.date
    text = json.dumps(provenance, indent=2, ensure_ascii=False) + "\n"
    # The provenance last: where it is there and fits, the outputs are all there.
    for path, content in [*contents.items(), (folder / "provenance.json", text.encode())]:
        _write(path, content)
    for stale in sorted({*folder.glob("output_*.npy"), *folder.glob("output_*.bin")} - set(contents)):
        stale.unlink()
    return [*contents, folder / "provenance.json"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="record_golden.py", description="Record the outputs that a model should give."
    )
    parser.add_argument("--model", type=Path, required=True, help="the .onnx file as published")
    parser.add_argument("--model-url", default="", help="where the model comes from, for the provenance")
    parser.add_argument("--model-data", type=Path, action="append", default=[], help="a file that it keeps weights in")
    parser.add_argument(
        "--input", type=Path, action="append", default=[], help=".npy file, in the order of the graph's inputs"
    )
    parser.add_argument("--input-url", action="append", default=[], help="source of each --input, in order")
    parser.add_argument(
        "--input-value",
        action="append",
        default=[],
        help="tensor type by which iree-run-module gets each --input, in order; empty for a .npy file",
    )
    parser.add_argument("--output-folder", type=Path, required=True, help="folder to write to; made if missing")
    parser.add_argument(
        "--tolerance", type=float, default=1e-4, help="absolute tolerance of the later comparison (1e-4)"
    )
    parser.add_argument("--date", default="", help="date to write into the provenance; left out if not given")
    return parser


def run_command(name: str, work: Callable[[], str]) -> int:
    """Carry a command out and print what it returns, or, on stderr, its name and why it failed; the exit code."""
    try:
        text = work()
    except GoldenError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    print(text)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    return run_command("record_golden", lambda: "\n".join(map(str, _record(arguments))))


if __name__ == "__main__":
    sys.exit(main())
