"""Operator suites against pytest: `python benchmarks/operators.py SUITE [--config FILE] [--every N] [--rounds R]`.

SUITE is a folder of operator cases with its `configs` (docs/reference/operator-suites.md). The peer is what the
suites' own README runs: pytest with xdist on two processes, and for each case the wrapper scripts `iree-compile` and
`iree-run-module` one after the other, started by a shell in the case's folder. Needs pytest-xdist.

The ways alternate, round by round, each with caches of its own:

1. the peer, which keeps nothing;
2. cold, exact: `gauntlet run -j 2` with an empty cache;
3. warm: the same again;
4. one case edited: the same again, after a comment was added to one program;
5. cold, `--batch 32`, with an empty cache.

Times are wall seconds of the whole command, its start and its reports included, and CPU seconds (user and system)
of all its processes. The verdicts of every way are held against each other, case by case.
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

_PROGRAM = "from iree_gauntlet.tasks.program import main; main()"
_PEER = """
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
    """What a command took: seconds."""

    wall: float
    cpu: float


def main() -> None:
    """Measure and print the table."""
    asked = _asked()
    with tempfile.TemporaryDirectory(prefix="operators-") as name:
        folder = Path(name)
        cases = _copied(asked, folder)
        config = asked.config or next(iter(sorted((asked.suite / "configs").glob("*.json"))))
        print(f"{len(cases)} cases of {asked.suite.name}, config {config.name}, {os.cpu_count()} CPUs")
        costs: dict[str, list[_Cost]] = {}
        verdicts: dict[str, list[dict[str, str]]] = {}

        def note(way: str, found: tuple[_Cost, dict[str, str]]) -> None:
            costs.setdefault(way, []).append(found[0])
            verdicts.setdefault(way, []).append(found[1])
            print(f"  {way:<18} {found[0].wall:8.2f} s wall {found[0].cpu:8.2f} s CPU", flush=True)

        for number in range(asked.rounds):
            print(f"round {number + 1} of {asked.rounds}", flush=True)
            place = folder / f"round-{number}"
            place.mkdir()
            note("pytest, wrappers", _peer(folder, place, cases, config))
            note("cold, exact", _gauntlet(folder, place, config, "exact", "cold"))
            note("warm", _gauntlet(folder, place, config, "exact", "warm"))
            _edit(folder / "suite" / cases[len(cases) // 2], number)
            note("one case edited", _gauntlet(folder, place, config, "exact", "edited"))
            note("cold, --batch 32", _gauntlet(folder, place, config, "batch", "cold", "--batch", "32"))
            shutil.rmtree(place)
        _table(costs)
        _differences(verdicts)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=lambda text: Path(text).resolve(), help="folder of operator cases")
    parser.add_argument("--config", type=lambda text: Path(text).resolve(), help="the first of configs/ by default")
    parser.add_argument("--every", type=int, default=1, help="take every Nth case alone")
    parser.add_argument("--copies", type=int, default=1, help="of each case, under names and contents of their own")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _copied(asked: argparse.Namespace, folder: Path) -> list[str]:
    """Copies the cases, so that one can be edited; names relative to the suite's root."""
    found = sorted(path.parent for path in asked.suite.rglob("run_module_io_flags.txt"))[:: asked.every]
    cases = []
    for copy in range(asked.copies):
        for source in found:
            name = source.relative_to(asked.suite)
            name = name.with_name(f"{name.name}_{copy}") if copy else name
            target = folder / "suite" / name
            shutil.copytree(source, target)
            for path in (target, *target.iterdir()):
                path.chmod(0o755 if path.is_dir() else 0o644)
            if copy:
                _edit(target, -copy)
            cases.append(str(name))
    return cases


def _edit(case: Path, number: int) -> None:
    program = next(case.glob("*.mlir"))
    program.write_text(f"// edit {number}\n{program.read_text()}")


def _timed(argv: Sequence[str], environment: Mapping[str, str], folder: Path) -> _Cost:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with (folder / "output.txt").open("ab") as output:
        subprocess.run(argv, cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=output, check=False)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Cost(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _peer(folder: Path, place: Path, cases: Sequence[str], config: Path) -> tuple[_Cost, dict[str, str]]:
    out = place / "peer"
    out.mkdir()
    (out / "test_peer.py").write_text(_PEER)
    environment = {
        "PEER_SUITE": str(folder / "suite"),
        "PEER_OUT": str(out),
        "PEER_CONFIG": str(config),
        "PEER_CASES": json.dumps(list(cases)),
        "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
    }
    argv = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "test_peer.py"]
    cost = _timed(argv, environment, out)
    verdicts = {}
    for case in cases:
        codes = [out / f"{Path(case).name}.{stage}" for stage in ("compile", "run")]
        for stage, path in zip(("compile", "threshold"), codes, strict=True):
            if path.exists():
                verdicts[f"{case}:{stage}"] = "passed" if path.read_text() == "0" else "failed"
    return cost, verdicts


def _gauntlet(
    folder: Path, place: Path, config: Path, cache: str, run: str, *options: str
) -> tuple[_Cost, dict[str, str]]:
    run_dir = place / f"{cache}-{run}"
    argv = [sys.executable, "-c", _PROGRAM, "run", "--spec-dir", str(folder / "suite"), "--config", str(config)]
    argv += ["-j", "2", "--run-dir", str(run_dir), *options]
    cost = _timed(argv, {"IREE_GAUNTLET_CACHE": str(place / f"cache-{cache}")}, place)
    record = read_journal(run_dir / "journal.jsonl")
    good = {"passed": "passed", "xpassed": "passed", "failed": "failed", "xfailed": "failed", "error": "failed"}
    verdicts = {}
    for step in record.steps:
        result = record.results.get(step["id"])
        found = str(result.verdict) if result else "none"
        if step["model"] != "batch" and found != "skipped":
            verdicts[f"{step['model']}/{step['submodel']}:{step['stage']}"] = good.get(found, found)
    return cost, verdicts


def _table(costs: Mapping[str, Sequence[_Cost]]) -> None:
    peer = costs["pytest, wrappers"]
    print(f"\n{'median':<20}{'wall s':>9}{'CPU s':>9}{'CPU of the peer':>18}{'times as fast':>16}")
    for way, found in costs.items():
        wall, cpu = statistics.median(item.wall for item in found), statistics.median(item.cpu for item in found)
        share = statistics.median(mine.cpu / other.cpu for mine, other in zip(found, peer, strict=True))
        faster = statistics.median(other.wall / mine.wall for mine, other in zip(found, peer, strict=True))
        print(f"{way:<20}{wall:>9.2f}{cpu:>9.2f}{share:>18.3f}{faster:>16.1f}")


def _differences(verdicts: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    reference = verdicts["pytest, wrappers"][0]
    for way, rounds in verdicts.items():
        for number, found in enumerate(rounds):
            different = sorted(
                name for name in reference.keys() | found.keys() if found.get(name) != reference.get(name)
            )
            for name in different[:5]:
                print(f"{way}, round {number + 1}: {name}: {found.get(name)}, the peer: {reference.get(name)}")
            if not different:
                print(f"{way}, round {number + 1}: every verdict as the peer's ({len(found)})")


if __name__ == "__main__":
    main()
