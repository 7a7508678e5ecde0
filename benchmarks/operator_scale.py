"""Measures the engine's cost for a case: `python benchmarks/operator_scale.py [CASES]`, with the toolkit installed.

There are CASES / 10 and then CASES (10,000) synthetic cases. Each has a compile and a threshold step, and every fifth
is an expected compile failure. The steps return at once, so all the time is the toolkit's: scheduling, the journal with
its syncs, locks, the console's lines, and then the reports. `engine -j 2` is the worst case: its two threads only
contend for shared state, above all for Python's lock. Each number of cases runs in a separate process. Peak memory is
the kernel's (`VmHWM`, reset before each part). `ratio` is the cost of a case divided by that cost for fewer cases: 1 if
it does not depend on the number of cases.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.leases import Leases
from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.engine.modules.module_cache import ModuleCache
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.engine.workbench import Workbench
from iree_gauntlet.journal_events import RunOpening
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.reports.live_progress import PlainProgress
from iree_gauntlet.results import CacheUse, Result
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import CacheLookup, Command, Resources, Step, StepInput
from iree_gauntlet.toolchains.find import make_toolchain_locations
from iree_gauntlet.toolchains.flags import NO_FLAGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_JOBS = (1, 2)
_CONFIG = "cpu_llvm_sync"
_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-input-demote-f64-to-f32=false",
    "--iree-opt-level=O0",
)
_DIAGNOSTIC = "failed to legalize operation 'torch.onnx.If' that was explicitly marked illegal"
_MAX_US_PER_STEP = 100.0  # the goal for the engine, and for the reports


def main() -> None:
    """Measure and print the table."""
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(_measure(int(sys.argv[2]))))
        return
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(f"{'part':<12} {'cases':>7} {'seconds':>8} {'us/step':>8} {'ratio':>6} {'peak MB':>8}")
    small, large = (_measure_in_process(size) for size in (count // 10, count))
    for part in ("plan", *(f"engine -j {jobs}" for jobs in _JOBS), "reports"):
        for measurements in (small, large):
            measurement = measurements[part]
            ratio = (measurement["seconds"] / measurements["cases"]) / (small[part]["seconds"] / small["cases"])
            us_per_step = measurement["seconds"] / measurements["cases"] / 2 * 1e6
            verdict = "" if part == "plan" or us_per_step <= _MAX_US_PER_STEP else f"  above {_MAX_US_PER_STEP:g}"
            print(
                f"{part:<12} {measurements['cases']:>7} {measurement['seconds']:8.3f} {us_per_step:8.1f} {ratio:6.2f}"
                f" {measurement['peak'] / 1e6:8.1f}{verdict}"
            )
    for measurements in (small, large):
        sizes = ", ".join(f"{name} {size / 1e6:.2f} MB" for name, size in measurements["files"].items())
        growth = measurements["engine -j 1"]["growth"] / 1e6
        print(f"{measurements['cases']} cases: {sizes}; growth of the engine's memory {growth:.1f} MB")


def _measure_in_process(count: int) -> dict[str, Any]:
    process = subprocess.run([sys.executable, __file__, "--one", str(count)], check=True, stdout=subprocess.PIPE)
    measurements: dict[str, Any] = json.loads(process.stdout)
    return measurements


def _measure(count: int) -> dict[str, Any]:
    """Measure seconds and peak memory of the parts, and the sizes of the files."""
    measurements: dict[str, Any] = {"cases": count}
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for jobs in _JOBS:
            run_dir = folder / "runs" / f"20261121-05180{jobs}-ops"
            run_dir.mkdir(parents=True)
            with _measure_part(measurements, "plan"):
                steps = [step for number in range(count) for step in make_steps(number, run_dir)]
            with _measure_part(measurements, f"engine -j {jobs}"):
                run_local(steps, folder, run_dir, jobs)
        del steps
        with _measure_part(measurements, "reports"):
            write_reports(run_dir)
        assert len(read_journal(run_dir / "journal.jsonl").results) == 2 * count
        measurements["files"] = {path.name: path.stat().st_size for path in sorted(run_dir.iterdir()) if path.is_file()}
    return measurements


@contextmanager
def _measure_part(measurements: dict[str, Any], name: str) -> Iterator[None]:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    initial_bytes = read_memory("VmRSS")
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    peak = read_memory("VmHWM")
    measurements[name] = {"seconds": seconds, "peak": peak, "growth": peak - initial_bytes}


def read_memory(field: str) -> int:
    """Return a field of this process's status in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def run_local(steps: list[Step], folder: Path, run_dir: Path, jobs: int) -> None:
    """Let a local engine perform steps that return at once."""
    performers = {Stage.COMPILE: make_compile_result, Stage.THRESHOLD: make_threshold_result}
    with open_engine(steps, folder, run_dir, jobs, performers) as engine, engine.record_end() as recording:
        recording.verdicts = engine.perform(steps, {})


@contextmanager
def open_engine(
    steps: list[Step], folder: Path, run_dir: Path, jobs: int, performers: Mapping[Stage, Callable[[Step], Result]]
) -> Iterator[Engine]:
    """Open an engine with a started journal in `run_dir`; its cache is in `folder`."""
    progress, cache = PlainProgress(io.StringIO()), folder / "cache"
    store = ArtifactStore(cache, Registry.read(folder / "registry.toml"))
    place = make_toolchain_locations(cache, cache, store.configuration, Leases, store.hash_cache.sha256, offline=True)
    workbench = Workbench(None, None, NO_FLAGS, cache, store, ModuleCache(cache), None, place)
    options = RunOptions(jobs=jobs, fail_fast=False, rebuilt_marks_dir=None, allow_xpass=False, all_goldens=False)
    # The locks are private to this process, so that it does not wait for others.
    os.environ["IREE_GAUNTLET_LOCKS"] = str(folder)
    with (
        Journal(run_dir / "journal.jsonl", lambda: datetime.now(UTC)) as journal,
        open_session(run_dir, journal, progress) as session,
    ):
        event = RunOpening(name=run_dir.name, suite="ops")
        journal.write_opening(event, steps)
        progress.run_started(event, len(steps))
        yield Engine(session, workbench, options, performers, lambda: 64 << 30)
    progress.close()


def make_compile_result(step: Step) -> Result:
    """Return the result of a compile step."""
    cache = CacheUse(True, step.cache.key, "in the cache")
    command = " ".join(step.command.argv) if step.command else ""
    if step.expect_failure:
        reason = f"iree-compile failed with exit code 1: {_DIAGNOSTIC}"
        tail = (f"model.mlir:9:10: error: {_DIAGNOSTIC}", "note: see current operation: …")
        return Result(Verdict.FAILED, reason, command=command, exit_code=1, cache=cache, tail=tail)
    metrics = {"dispatch_count": 1, "binary_size_bytes": 9_000}
    return Result(Verdict.PASSED, command=command, exit_code=0, cache=cache, statistics=metrics)


def make_threshold_result(step: Step) -> Result:
    """Return the result of a threshold step."""
    return Result(Verdict.PASSED, command=" ".join(step.command.argv) if step.command else "", exit_code=0)


def make_steps(number: int, run_dir: Path) -> tuple[Step, Step]:
    """Build the two steps of a case, as large as steps of the ONNX suite."""
    name = f"test_operator_{number}_with_attributes"
    model = "onnx/node/generated"
    chain = f"{model}/{name}@{_CONFIG}"
    case_dir = f"/home/me/iree-test-suites/onnx_ops/{model}/{name}"
    folders = {stage: f"{run_dir}/steps/{chain}/{stage}" for stage in (Stage.COMPILE, Stage.THRESHOLD)}
    module = f"{folders[Stage.COMPILE]}/module.vmfb"
    common_fields: dict[str, Any] = {
        "chain": chain,
        "dialect": "op_tests",
        "model": model,
        "submodel": name,
        "target": _CONFIG,
        "sku": "",
        "origin": Origin(f"{case_dir}/run_module_io_flags.txt"),
        "timeout": 600.0,
    }
    key_inputs = (
        ("kind", "compile"),
        ("program", f"{number:064x}"),
        ("flags", " ".join(_FLAGS)),
        ("compiler", "c" * 64),
    )
    compile_step = Step(
        id=f"{chain}:compile",
        stage=Stage.COMPILE,
        folder=folders[Stage.COMPILE],
        command=Command(("/home/me/venv/bin/iree-compile", "model.mlir", *_FLAGS, "-o", module), case_dir),
        outputs=(("module", module), ("statistics", f"{folders[Stage.COMPILE]}/statistics.json")),
        cache=CacheLookup(f"{number:064x}", hit=True, reason="in the cache", ingredients=key_inputs),
        expect_failure="" if number % 5 else "expected_compile_failures of cpu_llvm_sync",
        **common_fields,
    )
    threshold_step = Step(
        id=f"{chain}:threshold",
        stage=Stage.THRESHOLD,
        folder=folders[Stage.THRESHOLD],
        needs=(compile_step.id,),
        command=Command(
            (
                *("/home/me/venv/bin/iree-run-module", f"--module={module}", "--device=local-sync"),
                *("--input=3x4x5xf32=@input_0.bin", "--expected_output=3x4x5xf32=@output_0.bin"),
            ),
            case_dir,
        ),
        inputs=(StepInput("module", str(run_dir)), StepInput("input", str(run_dir))),
        resources=Resources(device="local-sync"),
        **common_fields,
    )
    return compile_step, threshold_step


if __name__ == "__main__":
    main()
