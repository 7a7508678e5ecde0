"""All models of specs/models beside torch and onnxruntime: `python benchmarks/models.py [MODEL/CONFIG …]`.

Runs `gauntlet bench … --against torch --against onnxruntime` for each (minutes a model, hours for the large ones) and
prints a table of what perf.json then has. Without names, one configuration of each model: the first of its list.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from iree_gauntlet.bench.discovery import discover

_ROOT = Path(__file__).parents[1]
_PEERS = ("torch eager", "torch.compile", "onnxruntime")


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="All models beside torch and onnxruntime")
    parser.add_argument("--torch-python", default="", help="a Python that has torch")
    parser.add_argument("names", nargs="*", metavar="MODEL/CONFIG")
    asked = parser.parse_args()
    names = asked.names or _first_of_each()
    print("| model | samples/s | p50 ms | " + " | ".join(f"against {peer}" for peer in _PEERS) + " | error |")
    print("| --- | ---: | ---: | " + "---: | " * len(_PEERS) + "---: |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(_row(name, _measured(name, asked.torch_python, Path(folder) / "perf.json")), flush=True)


def _first_of_each() -> list[str]:
    models = discover([_ROOT / "specs" / "models"])
    return [f"{model.name}/{config}" for model in models.values() for config in (model.configs or ("",))[:1]]


def _measured(name: str, python: str, output: Path) -> dict[str, Any]:
    model, _, config = name.partition("/")
    words = ["-m", model, *(["-c", config] if config else []), "-o", str(output)]
    words += ["--loop_count", "20", "--against", "torch", "--against", "onnxruntime"]
    words += ["--torch_python", python] if python else []
    subprocess.run(
        [sys.executable, "-m", "iree_gauntlet.bench", *words], cwd=_ROOT, stdout=subprocess.DEVNULL, check=False
    )
    entry: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))[-1]
    return entry


def _row(name: str, entry: dict[str, Any]) -> str:
    if "error" in entry:
        return f"| {name.rstrip('/')} | {entry['error']} |"
    peers = {peer["name"]: peer for peer in entry.get("against", ())}
    cells = [_ratio(peers.get(peer)) for peer in _PEERS]
    figures = [f"{entry['samples_per_sec']:.2f}", f"{entry['latency_ms']['p50']:.2f}"]
    error = f"{entry['numeric_error']['rms']:.1e}"
    return f"| {name.rstrip('/')} | {' | '.join([*figures, *cells, error])} |"


def _ratio(peer: dict[str, Any] | None) -> str:
    if peer is None or peer["ratio"] is None:
        return "–" if peer is None else str(peer["reason"])
    return f"×{peer['ratio']:.2f} ({peer['low']:.2f} to {peer['high']:.2f})"


if __name__ == "__main__":
    main()
