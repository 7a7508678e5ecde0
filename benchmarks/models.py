"""All models of specs/models compared with torch and onnxruntime: `python benchmarks/models.py [MODEL/CONFIG …]`.

Runs `gauntlet bench … --against torch-eager --against onnxruntime` for each (two minutes a model, more for large ones)
and prints a table of what perf.json then has. Without names, one configuration of each model: the first of its list.
With `--compiled`, compared with torch.compile too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.torch_models.model_registry import discover

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROOT = Path(__file__).parents[1]
_PEERS = ("torch eager", "torch.compile", "onnxruntime")
_CALLS = 50


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="All models compared with torch and onnxruntime")
    parser.add_argument("--torch-python", default="", help="a Python that has torch")
    parser.add_argument("--compiled", action="store_true", help="compare with torch.compile too")
    parser.add_argument("names", nargs="*", metavar="MODEL/CONFIG")
    asked = parser.parse_args()
    peers = [peer for peer in _PEERS if asked.compiled or peer != "torch.compile"]
    words = ["--against", "torch" if asked.compiled else "torch-eager", "--against", "onnxruntime"]
    words += ["--torch_python", asked.torch_python] if asked.torch_python else []
    print(f"| model | samples/s | p50 ms | {' | '.join(f'{peer} takes' for peer in peers)} | error |")
    print("| --- | ---: | ---: | " + "---: | " * len(peers) + "---: |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.names or _first_of_each():
            print(_row(name, _measured(name, words, Path(folder) / "perf.json"), peers), flush=True)


def _first_of_each() -> list[str]:
    models = discover([_ROOT / "specs" / "models"])
    return [f"{model.name}/{config}" for model in models.values() for config in (model.configs or ("",))[:1]]


def _measured(name: str, words: Sequence[str], output: Path) -> dict[str, Any]:
    model, _, config = name.partition("/")
    named = ["-m", model, *(["-c", config] if config else []), "-o", str(output), "--loop_count", str(_CALLS)]
    command = [sys.executable, "-m", "iree_gauntlet.bench", *named, *words]
    failed = output.with_suffix(".failed.json")
    for path in (output, failed):
        path.unlink(missing_ok=True)
    subprocess.run(command, cwd=_ROOT, stdout=subprocess.DEVNULL, check=False)
    written = output if output.exists() else failed
    if not written.exists():
        return {"error": "`gauntlet bench` wrote no result"}
    entry: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))[-1]
    return entry


def _row(name: str, entry: dict[str, Any], names: Sequence[str]) -> str:
    if "error" in entry:
        return f"| {name.rstrip('/')} | {entry['error']} |"
    peers = {peer["name"]: peer for peer in entry.get("against", ())}
    cells = [_ratio(peers.get(peer)) for peer in names]
    figures = [f"{entry['samples_per_sec']:.2f}", f"{entry['latency_ms']['p50']:.2f}"]
    error = f"{entry['numeric_error']['rms']:.1e}"
    return f"| {name.rstrip('/')} | {' | '.join([*figures, *cells, error])} |"


def _ratio(peer: dict[str, Any] | None) -> str:
    if peer is None or peer["ratio"] is None:
        return "–" if peer is None else str(peer["reason"])
    if peer["low"] is None:
        return f"×{peer['ratio']:.2f} ({peer['reason']})"
    return f"×{peer['ratio']:.2f} ({peer['low']:.2f} to {peer['high']:.2f})"


if __name__ == "__main__":
    main()
