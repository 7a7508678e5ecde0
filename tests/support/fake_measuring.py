"""Stands in for the Python of an IREE where it measures: what torch computed, in synthetic times.

A run that measures starts dozens of processes, which take most of its time, and what they say of time is never the
same twice. This one says what a test tells it to. It answers as the programs of `iree_gauntlet.workers.iree_side` do.
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

# Of a program that was given no time, and of one that was never called before.
CALL_MS, FIRST_CALL_MS = 2.0, 5.0
LOAD_MS, OVERHEAD_US = 3.0, 0.5
PEAK_RSS_BYTES = 60_000_000
# The machine at its best.
FLOPS_PER_S, BYTES_PER_S = 1e9, 1e9
# A round of `micro` is started dozens of times, so that the shell itself answers: its plan is `LABEL.plan.json` in the
# folder of the benchmark step.
_FRONT = """#!/bin/sh
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
    """A program in a folder that is called as the toolchain's Python is.

    `real`: what the real Python answers, as a shell's pattern of the plan's path; nothing for an empty one. Where
    outputs are held against torch's, those that are not real are torch's own.
    """

    def __init__(self, folder: Path, *, real: str = "") -> None:
        self.path = str(folder / "measuring-python")
        self._times = folder / "times"
        self._times.mkdir()
        call = "from tests.support.fake_measuring import main; sys.exit(main(sys.argv[1:]))"
        script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {call}"
        text = _FRONT.format(
            call_ms=CALL_MS,
            times=shlex.quote(str(self._times)),
            checked=real or "none",
            real=shlex.quote(sys.executable),
            answering=f"{shlex.quote(sys.executable)} -I -S -c {shlex.quote(script)}",
        )
        Path(self.path).write_text(text)
        Path(self.path).chmod(0o755)

    def takes(self, name: str, ms: float) -> None:
        """The synthetic time of a call.

        `name`: the label of a variant, or that of an entry's alone as `ENTRY.LABEL`.
        """
        (self._times / name).write_text(f"{ms}\n")

    def hangs(self, name: str) -> None:
        """Rounds of that name answer nothing: they read from a pipe that nobody writes to."""
        os.mkfifo(self._times / name)

    def goes_on(self, name: str) -> None:
        """Rounds that are started from now on answer again."""
        (self._times / name).unlink()


def main(words: list[str]) -> int:
    """Answers a plan; `words` are those after the program's name: `-B`, the script, and the plan."""
    script, plan = Path(words[1]).name, json.loads(Path(words[2]).read_text())
    answers = {
        "measure_module.py": _module,
        "measure_generative.py": _generations,
        "measure_memory.py": _memory,
        "measure_roofline.py": _roofline,
    }
    sys.stdout.write(json.dumps(answers[script](plan)))
    return 0


def _roofline(_plan: dict[str, Any]) -> dict[str, Any]:
    return {"flops_per_s": FLOPS_PER_S, "bytes_per_s": BYTES_PER_S}


def _module(plan: dict[str, Any]) -> dict[str, Any]:
    in_flight, devices = plan.get("in_flight", 1), len(plan["devices"])
    groups = plan["calls"] // in_flight
    shares = [groups // devices + (index < groups % devices) for index in range(devices)]
    return {
        **_common(),
        "first_call_ms": FIRST_CALL_MS,
        "total_s": max(shares) * in_flight * CALL_MS / 1000,
        "calls": plan["calls"],
        "call_ms": [[CALL_MS] * share for share in shares],
        "outputs": _torchs_outputs(Path(plan["inputs"][0]["file"])) if plan["outputs"] else [],
        "pushed": "async" if in_flight > 1 else "one by one",
    }


def _torchs_outputs(given: Path) -> list[dict[str, Any]]:
    """Those of the program whose first input this is."""
    build = json.loads((given.parent / "build.json").read_text())
    program = next(item for item in build["programs"] if item["inputs"][0]["file"] == given.name)
    return [item | {"file": str(given.parent / item["file"])} for item in program["outputs"]]


def _generations(plan: dict[str, Any]) -> dict[str, Any]:
    count, tokens = plan["generations"], plan["tokens"]
    build = json.loads((Path(plan["prefill"]["inputs"][0]["file"]).parent / "build.json").read_text())
    return {
        **_common(),
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


def _memory(plan: dict[str, Any]) -> dict[str, Any]:
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
    samples = [[float(at), PEAK_RSS_BYTES - 1_000_000, 20_000_000, None] for at in range(40)]
    interval = plan["interval_ms"]
    return {"phases": phases, "samples": samples, "interval_ms": interval, "exact_peaks": True, "device_memory": {}}


def _common() -> dict[str, Any]:
    return {"load_ms": LOAD_MS, "overhead_us": OVERHEAD_US, "peak_rss_bytes": PEAK_RSS_BYTES, "device_memory": {}}
