"""What synthetic weights cost: `python benchmarks/parameters.py [GB]` in an environment with IREE and the toolkit.

A program of a few GB of parameters is written as text and as bytecode, with a constant of 200 MB inside. Each
row is one child process, whose peak memory is the kernel's (`ru_maxrss`):

1. finding the parameters, in both forms, against `iree-opt` reading the program;
2. an archive of random weights for each of f32, bf16, f16 and i8, against NumPy's `default_rng().normal`,
   parameter by parameter, stored through `iree.runtime.ParameterIndex`;
3. an archive of one value.

The speed of the disk, measured by writing zeros with fsync, bounds all that write.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_LAYER = 64 << 20  # bytes of a parameter
_CONSTANT = 200 << 20
_LIMIT = 300e6  # bytes of peak memory that are promised
_BITS = {"f32": 32, "bf16": 16, "f16": 16, "i8": 8}

_COLLECT = """
from pathlib import Path
from iree_gauntlet.artifacts.program_parameters import collect_parameters
assert len(collect_parameters(Path(sys.argv[1]), "no-tool")) == int(sys.argv[2])
"""
_WRITE = """
from pathlib import Path
from iree_gauntlet.artifacts.program_parameters import collect_parameters
from iree_gauntlet.artifacts.parameters import write_archive
from iree_gauntlet.artifacts.parameters import RandomContent
content = RandomContent(1) if sys.argv[3] == "random" else 1
write_archive(Path(sys.argv[2]), collect_parameters(Path(sys.argv[1]), "no-tool"), content)
"""
_PEER = """
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
    count = max(1, round(gigabytes * 1e9 / _LAYER) + 1)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        archive = folder / "weights.irpa"
        total = count * _LAYER
        print(f"{count} parameters, {total / 1e9:.2f} GB; disk: {_disk_speed(folder / 'zeros'):.0f} MB/s")
        text, bytecode = _programs(folder, count, "f32")
        for program in (text, bytecode):
            size = program.stat().st_size
            _row(f"find in {program.suffix}", size, _COLLECT, program, count)
            _row("  peer: iree-opt", size, _IREE_OPT, _native("iree.compiler._mlir_libs", "iree-opt"), program)
        for element in _BITS:
            program = _programs(folder, count, element)[1]
            _row(f"random {element}", total, _WRITE, program, archive, "random")
            archive.unlink()
            _row("  peer: default_rng, ParameterIndex", total, _PEER, program, archive)
            archive.unlink()
        _row("splat f32", total, _WRITE, bytecode, archive, "splat")


def _programs(folder: Path, count: int, element: str) -> tuple[Path, Path]:
    """The program as text and as bytecode."""
    rows = _LAYER * 8 // _BITS[element] // 4096
    text, bytecode = folder / f"{element}.mlir", folder / f"{element}.mlirbc"
    with text.open("w", encoding="ascii") as file:
        for number in range(count):
            value = f'#stream.parameter.named<"model"::"blk.{number}.weight"> : tensor<{rows}x4096x{element}>'
            file.write(f"util.global private @w{number} = {value}\n")
        file.write(f"util.global private @c = dense_resource<blob> : tensor<{_CONSTANT}xi8>\n")
        file.write('{-#\n  dialect_resources: { builtin: { blob: "0x01000000')
        for _ in range(_CONSTANT >> 20):
            file.write("5a" * (1 << 20))
        file.write('" } }\n#-}\n')
    argv = [_native("iree.compiler._mlir_libs", "iree-opt"), str(text), "--emit-bytecode", "-o", str(bytecode)]
    subprocess.run(argv, check=True)
    return text, bytecode


def _native(package: str, name: str) -> str:
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is not installed"  # noqa: PT018
    return str(Path(spec.submodule_search_locations[0]) / name)


def _row(what: str, size: int, program: str, *arguments: object) -> None:
    argv = [sys.executable, "-c", f"import os, sys\n{program}", *map(str, arguments)]
    began = time.perf_counter()
    process = subprocess.Popen(argv)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    assert process.returncode == 0, f"{what} failed"
    # Linux counts in KiB, and takes the largest of the child's own children for a process that has some.
    peak = usage.ru_maxrss * 1024
    ours = not what.startswith(" ")
    verdict = ("ok" if peak < _LIMIT else "TOO MUCH") if ours else ""
    print(
        f"{what:<36}{seconds:8.2f} s {size / seconds / 1e6:8.0f} MB/s {peak / 1e6:8.0f} MB peak {verdict}", flush=True
    )


def _disk_speed(path: Path) -> float:
    block = bytes(1 << 20)
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(1024):
            file.write(block)
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return 1024 * len(block) / seconds / 1e6


if __name__ == "__main__":
    main()
