"""A fake of IREE's Python for measurements, which returns torch's outputs and synthetic times.

A real measurement takes dozens of processes and most of a test's time, and its times vary. This program reports times
that a test sets, in the format of the programs of `iree_gauntlet.workers.iree_side`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from tests.support.places import ROOT

__all__ = ["BYTES_PER_S", "CALL_MS", "FIRST_CALL_MS", "FLOPS_PER_S", "PEAK_RSS_BYTES", "MeasuringPython", "main"]

# The call time of a program without a set time, and the time of its first call.
CALL_MS, FIRST_CALL_MS = 2.0, 5.0
LOAD_MS, OVERHEAD_US = 3.0, 0.5
PEAK_RSS_BYTES = 60_000_000
# The peak performance of the machine.
FLOPS_PER_S, BYTES_PER_S = 1e9, 1e9
# `micro` starts dozens of rounds. The shell itself answers them, which is fast. A round's plan is `LABEL.plan.json` in
# the directory of the benchmark step.
_SHELL_SCRIPT = """#!/bin/sh
[ "$1" = -c ] && echo 2.0.0 && exit
case $3 in {checked}) exec {real} "$@" ;; esac
case ${{2##*/}}:$3 in
measure_module.py:*/benchmark/*.plan.json)
  ms={call_ms} entry=${{3#*/steps/}} label=${{3##*/}}
  entry=${{entry%%/*}} label=${{label%.plan.json}}
  for name in "$entry.$label" "$label"; do
    [ -e {times}/"$name" ] && read -r ms < {times}/"$name" && break
  done
  echo "{{\\"call_ms\\": [[$ms]]}}"
  exit ;;
esac
exec {answering} "$@"
"""


class MeasuringPython:
    """A program in a directory that replaces the toolchain's Python.

    `real_plans`: a shell pattern of the paths of the plans that the real Python runs; empty: none. For other plans the
    returned outputs are torch's own.
    """

    def __init__(self, folder: Path, *, real_plans: str = "") -> None:
        self.path = str(folder / "measuring-python")
        self._times = folder / "times"
        self._times.mkdir()
        main_call = "from tests.support.fake_measuring import main; sys.exit(main(sys.argv[1:]))"
        script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {main_call}"
        script_text = _SHELL_SCRIPT.format(
            call_ms=CALL_MS,
            times=shlex.quote(str(self._times)),
            checked=real_plans or "none",
            real=shlex.quote(sys.executable),
            answering=f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(script)}",
        )
        Path(self.path).write_text(script_text)
        Path(self.path).chmod(0o755)

    def set_call_ms(self, name: str, ms: float) -> None:
        """Set the synthetic time of a call.

        `name`: the label of a variant, or `ENTRY.LABEL` for the variant of one entry only.
        """
        (self._times / name).write_text(f"{ms}\n")

    def hang(self, name: str) -> None:
        """Make the rounds of a name hang: they read from a pipe without a writer."""
        os.mkfifo(self._times / name)

    def stop_hanging(self, name: str) -> None:
        """Make later rounds of a name finish again."""
        (self._times / name).unlink()


def main(arguments: list[str]) -> int:
    """Run a plan; `arguments` are `-B`, the script, and the plan."""
    script, plan = Path(arguments[1]).name, json.loads(Path(arguments[2]).read_text())
    measure_functions = {
        "measure_module.py": _measure_module,
        "measure_generative.py": _measure_generations,
        "measure_memory.py": _measure_memory,
        "measure_roofline.py": _measure_roofline,
    }
    sys.stdout.write(json.dumps(measure_functions[script](plan)))
    return 0


def _measure_roofline(_plan: dict[str, Any]) -> dict[str, Any]:
    return {"flops_per_s": FLOPS_PER_S, "bytes_per_s": BYTES_PER_S}


def _measure_module(plan: dict[str, Any]) -> dict[str, Any]:
    in_flight, devices = plan.get("in_flight", 1), len(plan["devices"])
    batches = plan["calls"] // in_flight
    calls_per_device = [batches // devices + (index < batches % devices) for index in range(devices)]
    return {
        **_make_common_fields(),
        "first_call_ms": FIRST_CALL_MS,
        "total_s": max(calls_per_device) * in_flight * CALL_MS / 1000,
        "calls": plan["calls"],
        "call_ms": [[CALL_MS] * call_count for call_count in calls_per_device],
        "outputs": _find_torch_outputs(Path(plan["inputs"][0]["file"])) if plan["outputs"] else [],
        "pushed": "async" if in_flight > 1 else "one by one",
    }


def _find_torch_outputs(first_input: Path) -> list[dict[str, Any]]:
    """Return torch's outputs of the program that has this first input."""
    build = json.loads((first_input.parent / "build.json").read_text())
    program = next(program for program in build["programs"] if program["inputs"][0]["file"] == first_input.name)
    return [output | {"file": str(first_input.parent / output["file"])} for output in program["outputs"]]


def _measure_generations(plan: dict[str, Any]) -> dict[str, Any]:
    count, tokens = plan["generations"], plan["tokens"]
    build = json.loads((Path(plan["prefill"]["inputs"][0]["file"]).parent / "build.json").read_text())
    return {
        **_make_common_fields(),
        "first_token_ms": FIRST_CALL_MS,
        "total_s": count * tokens * CALL_MS / 1000,
        "generations": count,
        "tokens": tokens,
        "samples": build["samples"],
        "prefill_ms": [CALL_MS] * count,
        "decode_ms": [[CALL_MS] * (tokens - 1)] * count,
        "chosen": build["generation"]["chosen"],
        "logits": [],
    }


def _measure_memory(plan: dict[str, Any]) -> dict[str, Any]:
    phases = [
        {
            "name": name,
            "begin_ms": 10.0 * index,
            "end_ms": 10.0 * index + 9,
            "begin_bytes": PEAK_RSS_BYTES - 2_000_000,
            "peak_bytes": PEAK_RSS_BYTES - (name != "calls"),
            "end_bytes": PEAK_RSS_BYTES - 1_000_000,
            "device_bytes": None,
        }
        for index, name in enumerate(("load", "first call", "calls", "after"))
    ]
    samples = [[float(index), PEAK_RSS_BYTES - 1_000_000, 20_000_000, None] for index in range(40)]
    interval = plan["interval_ms"]
    return {"phases": phases, "samples": samples, "interval_ms": interval, "exact_peaks": True, "device_memory": {}}


def _make_common_fields() -> dict[str, Any]:
    return {"load_ms": LOAD_MS, "overhead_us": OVERHEAD_US, "peak_rss_bytes": PEAK_RSS_BYTES, "device_memory": {}}
