"""Records the noise of benchmark rounds: `python benchmarks/record_noise.py RUN_FOLDER OUTPUT_FOLDER`.

A round is one process start of `iree-benchmark-module` with its own warm-up. The command lines come from the journal
of a finished run, so their modules exist. Each model is started many times under three conditions:

- `quiet`: one worker thread, pinned to a CPU, at real-time priority (on Linux, with the privilege for it). Other
  work of the machine does not get this CPU, but still shares its caches, memory and hypervisor;
- `neighbour`: as `quiet`, while a process on another CPU copies memory in bursts;
- `shared`: as many worker threads as CPUs, unpinned, ordinary priority, together with other work.

The files contain times and their timestamps, but no names of hosts and no paths. `benchmarks/verdicts.py` reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.measuring.machine.machine_state import measure_cpu_use, read_cpu_times, read_machine_facts
from iree_gauntlet.measuring.profiles.benchmark_rows import parse_benchmark_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODELS = ("dtln/temporal@cpu", "rapidocr/cls@cpu", "ppocr_v4/det@cpu", "minilm/l3@cpu")
_REPETITIONS = 5
_MIN_TIME_S = 0.05
_CPU = 1
_NEIGHBOUR_CPU = 0
_PRIORITY = 5
_SIGNIFICANT_DIGITS = 5
_CONDITIONS = {
    "quiet": "one worker thread pinned to one CPU at real-time priority; other work runs on the other CPU",
    "neighbour": "as quiet, while a process on the other CPU copies memory in bursts of 0.1 to 3 s",
    "shared": "as many worker threads as CPUs, unpinned, ordinary priority, with changing other work",
}
# The neighbour's bursts follow a fixed sequence, so that all recordings have the same kind of disturbance.
_NEIGHBOUR_PROGRAM = """
import os, random, time
os.sched_setaffinity(0, {CPU})
chance = random.Random(1)
data = bytearray(1 << 24)
while True:
    end = time.monotonic() + chance.uniform(0.1, 3)
    while time.monotonic() < end:
        bytes(data)
    time.sleep(chance.uniform(0.1, 6))
"""


def main() -> None:
    """Record every condition and write a file for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run with benchmark steps")
    parser.add_argument("output", type=Path, help="folder for the recordings")
    parser.add_argument("--rounds", type=int, default=120, help="process starts a model")
    parser.add_argument("--condition", choices=list(_CONDITIONS), action="append", help="default: all")
    options = parser.parse_args()
    commands = _read_commands(options.run)
    options.output.mkdir(parents=True, exist_ok=True)
    for condition in options.condition or list(_CONDITIONS):
        with _run_neighbour() if condition == "neighbour" else contextlib.nullcontext():
            models = {}
            for model, argv in commands.items():
                print(f"{condition} {model}", flush=True)
                models[model.partition("@")[0]] = _record_rounds(argv, condition, options.rounds)
        facts = read_machine_facts()
        document = {
            "condition": condition,
            "description": _CONDITIONS[condition],
            "machine": {"cpu": facts.cpu, "cores": facts.cores},
            "repetitions": _REPETITIONS,
            "min_time_s": _MIN_TIME_S,
            "unit": "ms of wall time an iteration, a row a round",
            "models": models,
        }
        (options.output / f"{condition}.json").write_text(_format_document(document), encoding="utf-8")


def _read_commands(run_dir: Path) -> dict[str, list[str]]:
    """Read the benchmark command of each model from a run's journal."""
    steps = {step["id"]: step for step in read_journal(run_dir / "journal.jsonl").steps}
    missing = [model for model in _MODELS if f"{model}:benchmark" not in steps]
    if missing:
        sys.exit(f"the run has no benchmark of {', '.join(missing)}: gauntlet run --suite cpu makes them")
    return {model: list(steps[f"{model}:benchmark"]["command"]["argv"]) for model in _MODELS}


def _record_rounds(argv: list[str], condition: str, rounds: int) -> dict[str, Any]:
    is_pinned = condition != "shared"
    command = [argument for argument in argv if not argument.startswith("--benchmark_")]
    command += [
        "--benchmark_format=json",
        f"--benchmark_repetitions={_REPETITIONS}",
        f"--benchmark_min_time={_MIN_TIME_S}s",
        f"--benchmark_min_warmup_time={_MIN_TIME_S}",
        *(["--task_topology_group_count=1"] if is_pinned else []),
    ]
    prefix = ["chrt", "-f", str(_PRIORITY), "taskset", "-c", str(_CPU)] if is_pinned else []
    start_times, times, busy_shares = [], [], []
    recording_start = time.monotonic()
    for _ in range(rounds):
        initial_cpu_times, start = read_cpu_times(), os.times()
        start_times.append(round(time.monotonic() - recording_start, 2))
        process = subprocess.run([*prefix, *command], capture_output=True, text=True, check=True)
        end = os.times()
        own_seconds = end.children_user - start.children_user + end.children_system - start.children_system
        use = measure_cpu_use(initial_cpu_times, read_cpu_times(), own_seconds)
        busy_shares.append(None if use is None else round(use.busy_share, 2))
        (samples,) = parse_benchmark_rows(process.stdout)
        times.append([_round(value) for value in samples.real_time_ms])
    return {"started_s": start_times, "other_work_share": busy_shares, "real_time_ms": times}


def _round(value: float) -> float:
    return round(value, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(value)))


@contextlib.contextmanager
def _run_neighbour() -> Iterator[None]:
    command = [sys.executable, "-c", _NEIGHBOUR_PROGRAM.replace("CPU", str(_NEIGHBOUR_CPU))]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _format_document(document: dict[str, Any]) -> str:
    """Format a recording as JSON with one line for each model, so that it can be read and compared."""
    models = document.pop("models")
    head = json.dumps(document, indent=1)[:-2]
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(record)}" for name, record in models.items())
    return f'{head},\n "models": {{\n{lines}\n }}\n}}\n'


if __name__ == "__main__":
    main()
