"""Makes the files of specs/torch_models/llama_block from its architecture.json.

    python tools/llama_block.py export    torch module → ONNX → modules/block.mlir, its parameters outside
    python tools/llama_block.py golden    prompt, expected output and provenance, with a NumPy reference

`export` needs torch, onnxscript and IREE's compiler with its `onnx` extra. It writes the same bytes again only with the
versions that the provenance names. `golden` needs only IREE's runtime. Both need the toolkit itself, which generates
the program's weights from a seed; no weights are checked in.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import io
import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from llama_reference import compute_logits, list_parameter_shapes, read_architecture

from iree_gauntlet.artifacts.parameters import DEVIATION, RandomContent, write_archive
from iree_gauntlet.artifacts.program_parameters import collect_parameters, select_scope
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from llama_reference import Architecture
    from numpy.typing import NDArray

    from iree_gauntlet.artifacts.program_parameters import Parameter

__all__ = ["build_prompt", "check_output", "main"]

FOLDER = Path(__file__).parents[1] / "specs" / "torch_models" / "llama_block"
SCOPE = "model"
FUNCTION = "prefill"
WEIGHT_SEED = 42
PROMPT_SEED = 7
TOLERANCE = 1e-5  # absolute, like --expected_f32_threshold; about twenty times the largest measured error
_PACKAGES = ("torch", "onnxscript", "onnx-ir", "onnx", "iree-base-compiler")
_UNUSED_TOOL = "iree-opt"  # never started, since the program is text


class BlockError(GauntletError):
    """The files cannot be made."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; print errors that a user can fix to standard error.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where architecture.json is (default: the spec's)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("export", help="write modules/block.mlir")
    golden = commands.add_parser("golden", help="write block_quality_cpu/: prompt, expected output, provenance")
    golden.add_argument("--weights", type=Path, help="archive to read (default: one made with the spec's seed)")
    args = parser.parse_args(arguments)
    try:
        paths = _export(args.folder) if args.command == "export" else _write_golden(args.folder, args.weights)
    except GauntletError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    for path in paths:
        sys.stdout.write(f"{path} ({path.stat().st_size} bytes)\n")
    return 0


def build_prompt(architecture: Architecture, seed: int = PROMPT_SEED) -> NDArray[np.int64]:
    """Return seeded token ids, (1, sequence); PCG64 gives the same words in every version of NumPy."""
    words = np.random.PCG64(seed).random_raw(architecture.sequence)
    return (np.asarray(words, dtype=np.uint64) % architecture.vocabulary).astype(np.int64)[np.newaxis]


def check_output(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Check that an output is suited to a comparison, and return it unchanged.

    Raises BlockError: a value is not finite, or the values vary so little that any output would pass the tolerance.
    """
    if not np.isfinite(values).all():
        raise BlockError("the expected output holds NaN or infinity", "Check the architecture and the weights.")
    spread = float(values.std())
    if spread < 1000 * TOLERANCE:
        raise BlockError(
            f"the expected output varies by {spread:.3g} alone, with a tolerance of {TOLERANCE:g}",
            "Change the architecture so that the signal stays alive.",
        )
    return values


def _export(folder: Path) -> list[Path]:
    torch = _import_package("torch")
    _import_package("onnxscript")
    architecture = read_architecture(folder / "architecture.json")
    module = _build_torch_module(torch, architecture).eval()
    tokens = torch.from_numpy(build_prompt(architecture))
    # The optimiser is off: it would fold `1 + weight` of a norm into a new constant and lose the weight.
    program = torch.onnx.export(
        module, (tokens,), dynamo=True, optimize=False, verbose=False, input_names=["tokens"], output_names=["logits"]
    )
    model = _make_parameters_inputs(program.model_proto, architecture)
    with tempfile.TemporaryDirectory() as directory:
        text = _import_onnx(model, Path(directory))
        candidate = Path(directory) / "candidate.mlir"
        candidate.write_text(text, encoding="utf-8")
        _check_program(candidate, architecture)
    path = folder / "modules" / "block.mlir"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
    versions = {"made_by": "tools/llama_block.py export", **{package: version(package) for package in _PACKAGES}}
    document = {"provenance": {**versions, "program": _describe_file(path)}}
    return [path, _write_json(path.with_name("provenance.json"), document)]


def _import_package(package: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise BlockError(
            f"{package} cannot be imported: {error}",
            'Only the export needs it: pip install torch onnxscript "iree-base-compiler[onnx]".',
        ) from error


def _build_torch_module(torch: Any, architecture: Architecture) -> Any:
    """Build the torch module; its parameters have the names of `list_parameter_shapes`."""
    functional = torch.nn.functional

    class Decoder(torch.nn.Module):  # type: ignore[misc]  # torch is optional, so mypy has no types for it
        """The decoder for one prompt."""

        def forward(self, tokens: Any) -> Any:
            stream = functional.embedding(tokens, self.token_embedding)
            for layer in self.layers.children():
                stream = stream + attention(layer.attention, norm(stream, layer.attention_norm))
                values = norm(stream, layer.mlp_norm)
                stream = stream + (functional.silu(values @ layer.mlp.gate) * (values @ layer.mlp.up)) @ layer.mlp.down
            return norm(stream, self.norm) @ self.head

    def norm(values: Any, weight: Any) -> Any:
        mean_square = values.pow(2).mean(-1, keepdim=True)
        return values * torch.rsqrt(mean_square + architecture.norm_epsilon) * (1 + weight)

    def rotate(heads: Any) -> Any:
        half = architecture.head_width // 2
        frequencies = architecture.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.outer(torch.arange(architecture.sequence, dtype=torch.float32), frequencies)
        cosines, sines = angles.cos(), angles.sin()
        first, second = heads[..., :half], heads[..., half:]
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)

    def attention(layer: Any, values: Any) -> Any:
        size, groups = architecture.sequence, (architecture.key_value_heads, architecture.group)

        def heads(matrix: Any, *counts: int) -> Any:  # (1, key and value heads, group, positions, width)
            return (values @ matrix).reshape(1, size, *counts, architecture.head_width).permute(0, 2, 3, 1, 4)

        query = rotate(norm(heads(layer.query, *groups), layer.query_norm))
        key = rotate(norm(heads(layer.key, groups[0], 1), layer.key_norm))
        value = heads(layer.value, groups[0], 1)
        future = torch.ones(size, size, dtype=torch.bool).triu(1)
        scores = (query @ key.transpose(-1, -2) / architecture.head_width**0.5).masked_fill(future, float("-inf"))
        output = functional.softmax(scores, dim=-1) @ value
        return output.permute(0, 3, 1, 2, 4).reshape(1, size, architecture.hidden) @ layer.output

    decoder = Decoder()
    _register_parameters(torch, decoder, architecture)
    return decoder


def _register_parameters(torch: Any, module: Any, architecture: Architecture) -> None:
    generator = torch.Generator().manual_seed(0)  # random values, since equal parameters might be merged
    for name, shape in list_parameter_shapes(architecture).items():
        *parents, leaf = name.split(".")
        owner = module
        for parent in parents:
            if not hasattr(owner, parent):
                owner.add_module(parent, torch.nn.Module())
            owner = owner.get_submodule(parent)
        owner.register_parameter(leaf, torch.nn.Parameter(torch.randn(shape, generator=generator) * DEVIATION))


def _make_parameters_inputs(model: Any, architecture: Architecture) -> Any:
    """Give an ONNX model the function's name, and turn its parameters into inputs after `tokens`."""
    helper = importlib.import_module("onnx.helper")
    graph = model.graph
    graph.name = FUNCTION
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    for name in list_parameter_shapes(architecture):
        if name not in initializers:
            raise BlockError(f"the exporter lost the parameter {name}", "Is every parameter used in the forward pass?")
        tensor = initializers[name]
        graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        graph.initializer.remove(tensor)
    return model


def _import_onnx(model: Any, folder: Path) -> str:
    """Import a model and return the program's text, free of parameters and of the machine's paths."""
    importlib.import_module("onnx").save(model, folder / "block.onnx")
    argv = [
        sys.executable,
        "-m",
        "iree.compiler.tools.import_onnx",
        "block.onnx",
        "--externalize-params",
        "--no-save-params",
        "--externalize-inputs-threshold=1",
        f"--num-elements-threshold={sys.maxsize}",
        f"--params-scope={SCOPE}",
        "-o",
        "block.mlir",
    ]
    result = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise BlockError(f"iree-import-onnx exits with {result.returncode}: {result.stderr.strip()[-2000:]}")
    return (folder / "block.mlir").read_text(encoding="utf-8")


def _check_program(program: Path, architecture: Architecture) -> None:
    actual = {parameter.name: parameter.shape for parameter in _read_parameters(program)}
    expected = list_parameter_shapes(architecture)
    if actual != expected:
        differing = sorted(name for name in actual | expected if actual.get(name) != expected.get(name))
        raise BlockError(f"the program's parameters are not the architecture's: {', '.join(differing)}")
    text = program.read_text(encoding="utf-8")
    if f"func.func @{FUNCTION}(" not in text:
        raise BlockError(f"the program has no function {FUNCTION}")
    if "loc(" in text or any(str(path) in text for path in (program.parent, FOLDER, sys.prefix)):
        raise BlockError("the program names places of this machine")


def _read_parameters(program: Path) -> tuple[Parameter, ...]:
    return select_scope(collect_parameters(program, _UNUSED_TOOL), SCOPE)


def _write_golden(folder: Path, archive: Path | None) -> list[Path]:
    architecture = read_architecture(folder / "architecture.json")
    program = folder / "modules" / "block.mlir"
    if archive is None:
        with tempfile.TemporaryDirectory() as directory:
            archive = Path(directory) / f"{SCOPE}.irpa"
            write_archive(archive, _read_parameters(program), RandomContent(WEIGHT_SEED))
            return _record_golden(folder, architecture, program, archive)
    return _record_golden(folder, architecture, program, archive)


def _record_golden(folder: Path, architecture: Architecture, program: Path, archive: Path) -> list[Path]:
    tokens = build_prompt(architecture)
    output = check_output(compute_logits(architecture, _load_weights(archive, architecture), tokens).astype(np.float32))
    target = folder / "block_quality_cpu"
    target.mkdir(parents=True, exist_ok=True)
    prompt_file, output_file = target / "input_0.npy", target / "output_0.npy"
    # An integer .npy works as an input, but not as an expected output: the comparison distinguishes si64 and i64.
    write_atomic(prompt_file, _encode_npy(tokens))
    write_atomic(output_file, _encode_npy(output))
    provenance = {
        "made_by": "tools/llama_block.py golden (NumPy, float64)",
        "numpy": np.__version__,
        "model": _describe_file(program),
        "weights": {"source": f"random, seed {WEIGHT_SEED}, scope {SCOPE}", **_describe_content(archive)},
        "inputs": [{"name": "tokens", "seed": PROMPT_SEED, **_describe_file(prompt_file), **_describe_tensor(tokens)}],
        "outputs": [
            {
                "name": "logits",
                **_describe_file(output_file),
                **_describe_tensor(output),
                "least_magnitude": float(np.abs(output).min()),
                "deviation": float(output.std()),
            }
        ],
        "tolerance": TOLERANCE,
    }
    # The field `provenance` encloses all others: with a test's fields at its top, the file would be read as a test.
    return [prompt_file, output_file, _write_json(target / "provenance.json", {"provenance": provenance})]


def _load_weights(archive: Path, architecture: Architecture) -> Mapping[str, NDArray[np.float32]]:
    """Load an archive's weights with IREE's own reader, which shares no code with the writer."""
    runtime = _import_runtime()
    index = runtime.ParameterIndex()
    try:
        index.load(str(archive))
    except (RuntimeError, ValueError) as error:
        raise BlockError(f"{archive}: cannot be read: {error}", "Give an .irpa archive.") from error
    entries = dict(index.items())
    weights = {}
    for name, shape in list_parameter_shapes(architecture).items():
        entry = entries.get(name)
        if entry is None or not entry.is_file or entry.length != 4 * int(np.prod(shape)):
            raise BlockError(f"{archive}: {name} is missing, or is not {shape} of f32", "Make it for this program.")
        weights[name] = np.frombuffer(entry.file_view, dtype="<f4").reshape(shape).copy()
    return weights


def _import_runtime() -> ModuleType:
    try:
        return importlib.import_module("iree.runtime")
    except ImportError as error:
        raise BlockError(f"IREE's runtime cannot be imported: {error}", "pip install iree-base-runtime") from error


def _encode_npy(values: NDArray[Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def _write_json(path: Path, document: Mapping[str, Any]) -> Path:
    write_atomic(path, json.dumps(document, indent=2) + "\n")
    return path


def _describe_file(path: Path) -> dict[str, Any]:
    return {"source": path.name, **_describe_content(path)}


def _describe_content(path: Path) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}


def _describe_tensor(values: NDArray[Any]) -> dict[str, Any]:
    minimum, maximum = values.min().item(), values.max().item()
    return {"shape": list(values.shape), "type": str(values.dtype), "min": minimum, "max": maximum}


if __name__ == "__main__":
    sys.exit(main())
