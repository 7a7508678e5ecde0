"""Measures the cost of planning: `python benchmarks/planning.py [SPECS]` in an environment with IREE and the toolkit.

Three trees are written to a temporary folder, each with a tenth of the specs and with all of them (10,000):

1. torch models: each module definition has separate files, and is loaded by a quality, a benchmark and a compstat test;
   the definitions do not count as specs;
2. the same, with every file pinned in the registry, so that the plan looks up every module in the cache;
3. sharktank: a regression and a benchmark for each module.

`plan --format json` and `lint` are separate processes, as a user starts them. The peer is also a process; it reads the
same JSON files one by one and keeps nothing in memory. Peak memory is the kernel's (`ru_maxrss`); it is never below the
size of this program at the child's start, 50 MB or less.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.sources import make_local_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MAX_SECONDS = 10.0  # the promised seconds for 10,000 specs
_HOST = "https://models.example.org/iree/test-suites"
_GAUNTLET_PROGRAM = "from iree_gauntlet.__main__ import main; main()"
_PEER_PROGRAM = """
import json, sys
from pathlib import Path
for path in Path(sys.argv[1]).rglob("*.json"):
    json.loads(path.read_bytes())
"""
_COMPILER_FLAGS = [
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-hal-target-device=local",
    "--iree-llvmcpu-target-cpu-features=host",
    "--iree-opt-level=O1",
    "--iree-opt-data-tiling",
    "--iree-llvmcpu-distribution-size=32",
    "--iree-scheduling-dump-statistics-format=json",
    "--iree-scheduling-dump-statistics-file=compilation_info.json",
]
_INPUT_TYPES = ("1x4x128x128xf16", "1xf16", "2x64x2048xf16", "2x1280xf16", "2x6xf16", "1xf16")
_BENCHMARK_FLAGS = ["--benchmark_repetitions=10", "--benchmark_min_warmup_time=3.0", "--device_allocator=caching"]
_SUBMODELS = 20  # a folder contains the submodels of one model


@dataclass(frozen=True, slots=True)
class _ProcessCost:
    """The cost of a process: seconds, peak bytes of memory, and bytes of output."""

    seconds: float
    peak_bytes: int
    output_bytes: int


def main() -> None:
    """Measure and print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as scratch:
        for title, make, pin in (
            ("torch models", _write_torch_tree, False),
            ("torch models, pinned", _write_torch_tree, True),
            ("sharktank", _write_sharktank_tree, False),
        ):
            small, large = (_measure(Path(scratch), title, make, size, pin=pin) for size in (count // 10, count))
            growth = (large.peak_bytes - small.peak_bytes) / (count - count // 10)
            verdict = "ok" if large.seconds * 10_000 / count < _MAX_SECONDS else "TOO SLOW"
            print(f"{title:<22} {growth / 1e3:.1f} KB of peak memory a spec, {verdict}\n", flush=True)


def _measure(
    folder: Path, title: str, write_tree: Callable[[Path, int], Iterator[str]], count: int, *, pin: bool
) -> _ProcessCost:
    """Print the rows of one tree and return the cost of its plan."""
    project = folder / f"{write_tree.__name__}-{count}-{pin}"
    specs = project / "specs"
    urls = set(write_tree(specs, count))
    if pin:
        _pin_files(project, urls)
    selection = ["--spec-dir", str(specs), "--target", "cpu"]
    # This plan fills the cache with the tools' flags.
    _run_process(project, ["-c", _GAUNTLET_PROGRAM, "plan", *selection, "--model", "model-0"])
    peer = _run_process(project, ["-c", _PEER_PROGRAM, str(specs)])
    plan = _run_process(project, ["-c", _GAUNTLET_PROGRAM, "plan", *selection, "--format", "json"])
    lint = _run_process(project, ["-c", _GAUNTLET_PROGRAM, "lint", *selection])
    for name, cost in (("json.loads", peer), ("plan", plan), ("lint", lint)):
        print(
            f"{title:<22}{count:>7} specs {name:<11}{cost.seconds:7.2f} s {cost.peak_bytes / 1e6:6.0f} MB peak"
            f"{cost.output_bytes / 1e6:7.1f} MB out   ratio {cost.seconds / peer.seconds:5.1f}",
            flush=True,
        )
    return plan


def _run_process(project: Path, arguments: Sequence[str]) -> _ProcessCost:
    output = project / "output.txt"
    start = time.perf_counter()
    with output.open("wb") as stream:
        environment = {**os.environ, "IREE_GAUNTLET_CACHE": str(project / "cache")}
        process = subprocess.Popen([sys.executable, *arguments], cwd=project, env=environment, stdout=stream)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    assert process.returncode == 0, f"{arguments} failed"
    return _ProcessCost(seconds, usage.ru_maxrss * 1024, output.stat().st_size)


def _pin_files(project: Path, urls: set[str]) -> None:
    lines = [
        f"{make_local_name(url)} sha256:{hashlib.sha256(url.encode()).hexdigest()} {url}\n" for url in sorted(urls)
    ]
    (project / "cache").mkdir()
    (project / "cache" / "registry.txt").write_text("".join(lines), encoding="utf-8")


def _write_torch_tree(folder: Path, count: int) -> Iterator[str]:
    """Write tests of torch models, three for each module, and yield the URLs of their files."""
    root = folder / "torch_models"
    for number in range(-(-count // 3)):
        model, name = f"model-{number // _SUBMODELS}", f"part{number}_cpu"
        files = f"{_HOST}/torch-models/{model}/part{number}"
        module = f"{model}/modules/{name}"
        inputs = [{"url": f"{files}/input{i}.bin", "value": shape} for i, shape in enumerate(_INPUT_TYPES)]
        outputs = [{"url": f"{files}/output_v2.bin", "value": _INPUT_TYPES[0]}]
        common: dict[str, Any] = {
            "markers": ["cpu", "local-task", model],
            "modules": [module],
            "weights": [{"type": "url", "url": f"{files}/weights.irpa", "scope": "model"}],
            "inputs": inputs,
        }
        flags = ["--function=main", "--device=local-task"]
        tests: tuple[tuple[str, dict[str, Any]], ...] = (
            ("quality", {**common, "run_args": [*flags, "--expected_f16_threshold=0.2f"], "expected_outputs": outputs}),
            ("benchmark", {**common, "run_args": [*flags, *_BENCHMARK_FLAGS], "golden_time_ms": 42.0}),
            (
                "compstat",
                {"markers": ["cpu"], "module": module, "golden_dispatch_count": 1463, "golden_binary_size": 2000000},
            ),
        )
        _write_json(root / f"{module}.json", {"mlir": f"{files}/program.mlir", "compiler_flags": _COMPILER_FLAGS})
        for test_type, fields in tests[: count - 3 * number]:
            _write_json(root / model / f"part{number}_{test_type}_cpu.json", {"type": test_type, **fields})
        yield f"{files}/program.mlir"
        yield f"{files}/weights.irpa"
        yield from (tensor["url"] for tensor in (*inputs, *outputs))


def _write_sharktank_tree(folder: Path, count: int) -> Iterator[str]:
    """Write regressions, each with a benchmark, and yield the URLs of their files."""
    for number in range(-(-count // 2)):
        model = f"model-{number // _SUBMODELS}"
        files = f"{_HOST}/sharktank/{model}/part{number}"
        inputs = [{"source": f"{files}/input{i}.bin", "value": shape} for i, shape in enumerate(_INPUT_TYPES)]
        outputs = [{"source": f"{files}/output.bin", "value": _INPUT_TYPES[0]}]
        regression = {
            "inputs": inputs,
            "outputs": outputs,
            "device": "local-task",
            "real_weights": f"{files}/weights.irpa",
            "mlir": f"{files}/program.mlir",
            "compiler_flags": _COMPILER_FLAGS,
            "threshold_args": ["--expected_f16_threshold=1.0f"],
            "run_function": "main",
        }
        benchmark = {
            "inputs": list(_INPUT_TYPES),
            "function_run": "main",
            "benchmark_flags": _BENCHMARK_FLAGS,
            "device": "local-task",
            "golden_time_tolerance_multiplier": {"mi250": 1.3, "mi300": 1.1},
            "golden_time_ms": {"mi250": 9.0, "mi300": 7.65},
            "golden_dispatch": {"mi250": 792, "mi300": 792},
            "golden_size": {"mi250": 460000, "mi300": 460000},
        }
        _write_json(folder / "quality_tests" / model / f"part{number}_cpu.json", regression)
        if 2 * number + 1 < count:
            _write_json(folder / "benchmarks" / model / f"part{number}_cpu.json", benchmark)
        yield from (f"{files}/program.mlir", f"{files}/weights.irpa")
        yield from (tensor["source"] for tensor in (*inputs, *outputs))


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
