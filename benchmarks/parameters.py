"""Measures the cost of synthetic weights: `python benchmarks/parameters.py [GB]` with IREE and the toolkit.

A program with a few GB of parameters and a constant of 200 MB is written as text and as bytecode. Each row of the
table is one child process, whose peak memory is the kernel's (`ru_maxrss`):

1. finding the parameters, in both forms of the program; the peer is `iree-opt` reading the program;
2. an archive of random weights for each of f32, bf16, f16 and i8; the peer is NumPy's `default_rng().normal`,
   parameter by parameter, stored through `iree.runtime.ParameterIndex`;
3. an archive of one value.

All writers are limited by the disk's speed, which is measured by writing zeros with fsync.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_PARAMETER_BYTES = 64 << 20
_CONSTANT_BYTES = 200 << 20
_MAX_PEAK_BYTES = 300e6  # the promised limit
_BITS_BY_TYPE = {"f32": 32, "bf16": 16, "f16": 16, "i8": 8}

_COLLECT_PROGRAM = """
from pathlib import Path
from iree_gauntlet.artifacts.program_parameters import collect_parameters
assert len(collect_parameters(Path(sys.argv[1]), "no-tool")) == int(sys.argv[2])
"""
_WRITE_PROGRAM = """
from pathlib import Path
from iree_gauntlet.artifacts.program_parameters import collect_parameters
from iree_gauntlet.artifacts.parameters import write_archive
from iree_gauntlet.artifacts.parameters import RandomContent
content = RandomContent(1) if sys.argv[3] == "random" else 1
write_archive(Path(sys.argv[2]), collect_parameters(Path(sys.argv[1]), "no-tool"), content)
"""
_PEER_PROGRAM = """
import numpy, ml_dtypes, iree.runtime
from pathlib import Path
from iree_gauntlet.artifacts.program_parameters import collect_parameters
index, generator = iree.runtime.ParameterIndex(), numpy.random.default_rng(1)
names = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8"}
for parameter in collect_parameters(Path(sys.argv[1]), "no-tool"):
    name = names[parameter.element_type]
    if name == "int8":
        values = generator.integers(-128, 128, parameter.shape, dtype=name)
    else:
        dtype = numpy.dtype(getattr(ml_dtypes, name, name))
        values = generator.normal(0, 0.01, parameter.shape).astype(dtype)
    index.add_buffer(parameter.name, values.view(numpy.uint8).reshape(-1))
index.create_archive_file(sys.argv[2])
os.sync()
"""
_IREE_OPT = """
import subprocess
subprocess.run([sys.argv[1], sys.argv[2], "-o", os.devnull], check=True)
"""


def main() -> None:
    """Measure and print the table."""
    gigabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 2.2
    count = max(1, round(gigabytes * 1e9 / _PARAMETER_BYTES) + 1)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        folder = Path(directory)
        archive = folder / "weights.irpa"
        total = count * _PARAMETER_BYTES
        print(f"{count} parameters, {total / 1e9:.2f} GB; disk: {_measure_disk_speed(folder / 'zeros'):.0f} MB/s")
        text, bytecode = _write_programs(folder, count, "f32")
        for program in (text, bytecode):
            size = program.stat().st_size
            _print_row(f"find in {program.suffix}", size, _COLLECT_PROGRAM, program, count)
            _print_row("  peer: iree-opt", size, _IREE_OPT, _find_tool("iree.compiler._mlir_libs", "iree-opt"), program)
        for element_type in _BITS_BY_TYPE:
            program = _write_programs(folder, count, element_type)[1]
            _print_row(f"random {element_type}", total, _WRITE_PROGRAM, program, archive, "random")
            archive.unlink()
            _print_row("  peer: default_rng, ParameterIndex", total, _PEER_PROGRAM, program, archive)
            archive.unlink()
        _print_row("splat f32", total, _WRITE_PROGRAM, bytecode, archive, "splat")


def _write_programs(folder: Path, count: int, element_type: str) -> tuple[Path, Path]:
    """Write the program as text and as bytecode and return both paths."""
    rows = _PARAMETER_BYTES * 8 // _BITS_BY_TYPE[element_type] // 4096
    text, bytecode = folder / f"{element_type}.mlir", folder / f"{element_type}.mlirbc"
    with text.open("w", encoding="ascii") as file:
        for number in range(count):
            value = f'#stream.parameter.named<"model"::"blk.{number}.weight"> : tensor<{rows}x4096x{element_type}>'
            file.write(f"util.global private @w{number} = {value}\n")
        file.write(f"util.global private @c = dense_resource<blob> : tensor<{_CONSTANT_BYTES}xi8>\n")
        file.write('{-#\n  dialect_resources: { builtin: { blob: "0x01000000')
        for _ in range(_CONSTANT_BYTES >> 20):
            file.write("5a" * (1 << 20))
        file.write('" } }\n#-}\n')
    argv = [_find_tool("iree.compiler._mlir_libs", "iree-opt"), str(text), "--emit-bytecode", "-o", str(bytecode)]
    subprocess.run(argv, check=True)
    return text, bytecode


def _find_tool(package: str, name: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is not installed"  # noqa: PT018
    return str(Path(spec.submodule_search_locations[0]) / name)


def _print_row(title: str, size: int, program: str, *arguments: object) -> None:
    argv = [sys.executable, "-c", f"import os, sys\n{program}", *map(str, arguments)]
    start = time.perf_counter()
    process = subprocess.Popen(argv)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    assert process.returncode == 0, f"{title} failed"
    # Linux counts in KiB; for a process with children, the value is that of the largest child.
    peak = usage.ru_maxrss * 1024
    is_toolkit = not title.startswith(" ")
    verdict = ("ok" if peak < _MAX_PEAK_BYTES else "TOO MUCH") if is_toolkit else ""
    print(
        f"{title:<36}{seconds:8.2f} s {size / seconds / 1e6:8.0f} MB/s {peak / 1e6:8.0f} MB peak {verdict}", flush=True
    )


def _measure_disk_speed(path: Path) -> float:
    block = bytes(1 << 20)
    start = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(1024):
            file.write(block)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - start
    path.unlink()
    return 1024 * len(block) / seconds / 1e6


if __name__ == "__main__":
    main()
