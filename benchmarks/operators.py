"""Compares runs of operator suites: `python benchmarks/operators.py SUITE [--config FILE] [--every N] [--rounds R]`.

SUITE is a folder of operator cases with `configs` (docs/reference/operator-suites.md). The peer is the runner in the
suites' README: pytest with xdist on two processes. For each case, a shell in the case's folder starts the wrapper
scripts `iree-compile` and `iree-run-module` one after the other. Needs pytest-xdist.

Five ways to run the suite alternate, round by round, each with its own caches:

1. the peer, which caches nothing;
2. cold, exact: `gauntlet run -j 2` with an empty cache;
3. warm: the same command again;
4. one case edited: the same command again, after a comment was added to one program;
5. cold, `--batch 32`, with an empty cache.

Times are wall seconds of the whole command, with its start and its reports, and CPU seconds (user and system) of
all its processes. The verdicts of every way are compared, case by case.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.journal_format import read_journal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROGRAM = "from iree_gauntlet.__main__ import main; main()"
_PEER_TEST = """
import json, os, subprocess
from pathlib import Path
import pytest

SUITE, OUT = Path(os.environ["PEER_SUITE"]), Path(os.environ["PEER_OUT"])
CONFIG = json.loads(Path(os.environ["PEER_CONFIG"]).read_text())
CASES = json.loads(os.environ["PEER_CASES"])

class CompileError(Exception): pass
class RunError(Exception): pass

def _params():
    for case in CASES:
        if case in CONFIG.get("skip_compile_tests", []):
            continue
        marks = []
        if case in CONFIG.get("expected_compile_failures", []):
            marks = [pytest.mark.xfail(raises=CompileError, strict=True)]
        elif case in CONFIG.get("expected_run_failures", []):
            marks = [pytest.mark.xfail(raises=RunError, strict=True)]
        yield pytest.param(case, marks=marks)

@pytest.mark.parametrize("case", _params())
def test_case(case):
    folder = SUITE / case
    program = next(folder.glob("*.mlir*")).name
    module = OUT / f"{folder.name}.vmfb"
    line = subprocess.list2cmdline(["iree-compile", program, *CONFIG["iree_compile_flags"], "-o", str(module)])
    done = subprocess.run(line, shell=True, capture_output=True, cwd=folder)
    (OUT / f"{folder.name}.compile").write_text(str(done.returncode))
    if done.returncode:
        raise CompileError(done.stderr.decode(errors="replace"))
    if case in CONFIG.get("skip_run_tests", []):
        return
    words = ["iree-run-module", f"--module={module}", *CONFIG["iree_run_module_flags"]]
    line = subprocess.list2cmdline([*words, "--flagfile=run_module_io_flags.txt"])
    done = subprocess.run(line, shell=True, capture_output=True, cwd=folder)
    (OUT / f"{folder.name}.run").write_text(str(done.returncode))
    if done.returncode:
        raise RunError(done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace"))
"""


@dataclass(frozen=True, slots=True)
class _Cost:
    """The seconds of a command."""

    wall: float
    cpu: float


def main() -> None:
    """Measure and print the table."""
    options = _parse_options()
    with tempfile.TemporaryDirectory(prefix="operators-") as directory:
        folder = Path(directory)
        cases = _copy_cases(options, folder)
        config = options.config or next(iter(sorted((options.suite / "configs").glob("*.json"))))
        print(f"{len(cases)} cases of {options.suite.name}, config {config.name}, {os.cpu_count()} CPUs")
        costs: dict[str, list[_Cost]] = {}
        verdicts: dict[str, list[dict[str, str]]] = {}

        def record(way: str, result: tuple[_Cost, dict[str, str]]) -> None:
            costs.setdefault(way, []).append(result[0])
            verdicts.setdefault(way, []).append(result[1])
            print(f"  {way:<18} {result[0].wall:8.2f} s wall {result[0].cpu:8.2f} s CPU", flush=True)

        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", flush=True)
            round_dir = folder / f"round-{number}"
            round_dir.mkdir()
            record("pytest, wrappers", _run_peer(folder, round_dir, cases, config))
            record("cold, exact", _run_gauntlet(folder, round_dir, config, "exact", "cold"))
            record("warm", _run_gauntlet(folder, round_dir, config, "exact", "warm"))
            _edit_program(folder / "suite" / cases[len(cases) // 2], number)
            record("one case edited", _run_gauntlet(folder, round_dir, config, "exact", "edited"))
            record("cold, --batch 32", _run_gauntlet(folder, round_dir, config, "batch", "cold", "--batch", "32"))
            shutil.rmtree(round_dir)
        _print_medians(costs)
        _print_differences(verdicts)


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=lambda text: Path(text).resolve(), help="folder of operator cases")
    parser.add_argument("--config", type=lambda text: Path(text).resolve(), help="the first of configs/ by default")
    parser.add_argument("--every", type=int, default=1, help="take every Nth case alone")
    parser.add_argument("--copies", type=int, default=1, help="of each case, under names and contents of their own")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _copy_cases(options: argparse.Namespace, folder: Path) -> list[str]:
    """Copy the cases, so that one can be edited, and return their names relative to the suite's root."""
    sources = sorted(path.parent for path in options.suite.rglob("run_module_io_flags.txt"))[:: options.every]
    cases = []
    for copy in range(options.copies):
        for source in sources:
            name = source.relative_to(options.suite)
            name = name.with_name(f"{name.name}_{copy}") if copy else name
            target = folder / "suite" / name
            shutil.copytree(source, target)
            for path in (target, *target.iterdir()):
                path.chmod(0o755 if path.is_dir() else 0o644)
            if copy:
                _edit_program(target, -copy)
            cases.append(str(name))
    return cases


def _edit_program(case: Path, number: int) -> None:
    program = next(case.glob("*.mlir"))
    program.write_text(f"// edit {number}\n{program.read_text()}")


def _time_command(argv: Sequence[str], environment: Mapping[str, str], folder: Path) -> _Cost:
    initial_usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    with (folder / "output.txt").open("ab") as output:
        subprocess.run(argv, cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=output, check=False)
    wall = time.perf_counter() - start
    final_usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Cost(wall, final_usage.ru_utime + final_usage.ru_stime - initial_usage.ru_utime - initial_usage.ru_stime)


def _run_peer(folder: Path, round_dir: Path, cases: Sequence[str], config: Path) -> tuple[_Cost, dict[str, str]]:
    peer_dir = round_dir / "peer"
    peer_dir.mkdir()
    (peer_dir / "test_peer.py").write_text(_PEER_TEST)
    environment = {
        "PEER_SUITE": str(folder / "suite"),
        "PEER_OUT": str(peer_dir),
        "PEER_CONFIG": str(config),
        "PEER_CASES": json.dumps(list(cases)),
        "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
    }
    argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "test_peer.py"]
    cost = _time_command(argv, environment, peer_dir)
    verdicts = {}
    for case in cases:
        code_files = [peer_dir / f"{Path(case).name}.{stage}" for stage in ("compile", "run")]
        for stage, path in zip(("compile", "threshold"), code_files, strict=True):
            if path.exists():
                verdicts[f"{case}:{stage}"] = "passed" if path.read_text() == "0" else "failed"
    return cost, verdicts


def _run_gauntlet(
    folder: Path, round_dir: Path, config: Path, cache: str, run: str, *options: str
) -> tuple[_Cost, dict[str, str]]:
    run_dir = round_dir / f"{cache}-{run}"
    argv = [sys.executable, "-c", _PROGRAM, "run", "--spec-dir", str(folder / "suite"), "--config", str(config)]
    argv += ["-j", "2", "--run-dir", str(run_dir), *options]
    cost = _time_command(argv, {"IREE_GAUNTLET_CACHE": str(round_dir / f"cache-{cache}")}, round_dir)
    record = read_journal(run_dir / "journal.jsonl")
    categories = {"passed": "passed", "xpassed": "passed", "failed": "failed", "xfailed": "failed", "error": "failed"}
    verdicts = {}
    for step in record.steps:
        result = record.results.get(step["id"])
        verdict = str(result.verdict) if result else "none"
        if step["model"] != "batch" and verdict != "skipped":
            verdicts[f"{step['model']}/{step['submodel']}:{step['stage']}"] = categories.get(verdict, verdict)
    return cost, verdicts


def _print_medians(costs: Mapping[str, Sequence[_Cost]]) -> None:
    peer = costs["pytest, wrappers"]
    print(f"\n{'median':<20}{'wall s':>9}{'CPU s':>9}{'CPU of the peer':>18}{'times as fast':>16}")
    for way, rounds in costs.items():
        wall, cpu = statistics.median(cost.wall for cost in rounds), statistics.median(cost.cpu for cost in rounds)
        cpu_ratio = statistics.median(cost.cpu / base.cpu for cost, base in zip(rounds, peer, strict=True))
        speedup = statistics.median(base.wall / cost.wall for cost, base in zip(rounds, peer, strict=True))
        print(f"{way:<20}{wall:>9.2f}{cpu:>9.2f}{cpu_ratio:>18.3f}{speedup:>16.1f}")


def _print_differences(verdicts: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    reference = verdicts["pytest, wrappers"][0]
    for way, rounds in verdicts.items():
        for number, actual in enumerate(rounds):
            differences = sorted(
                name for name in reference.keys() | actual.keys() if actual.get(name) != reference.get(name)
            )
            for name in differences[:5]:
                print(f"{way}, round {number + 1}: {name}: {actual.get(name)}, the peer: {reference.get(name)}")
            if not differences:
                print(f"{way}, round {number + 1}: every verdict as the peer's ({len(actual)})")


if __name__ == "__main__":
    main()
