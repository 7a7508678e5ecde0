"""Compares all models of specs/models with torch and onnxruntime: `python benchmarks/models.py [MODEL/CONFIG …]`.

Runs `gauntlet bench … --against torch-eager --against onnxruntime` for each model (two minutes, more for large models)
and prints a table of the results in perf.json. Without names, the first configuration of each model is run.
`--compiled` adds torch.compile to the comparison.
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
_LOOP_COUNT = 50


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="All models compared with torch and onnxruntime")
    parser.add_argument("--torch-python", default="", help="a Python that has torch")
    parser.add_argument("--compiled", action="store_true", help="compare with torch.compile too")
    parser.add_argument("names", nargs="*", metavar="MODEL/CONFIG")
    options = parser.parse_args()
    peers = [peer for peer in _PEERS if options.compiled or peer != "torch.compile"]
    arguments = ["--against", "torch" if options.compiled else "torch-eager", "--against", "onnxruntime"]
    arguments += ["--torch_python", options.torch_python] if options.torch_python else []
    print(f"| model | samples/s | p50 ms | {' | '.join(f'{peer} takes' for peer in peers)} | error |")
    print("| --- | ---: | ---: | " + "---: | " * len(peers) + "---: |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or _list_first_configs():
            print(_format_row(name, _measure(name, arguments, Path(folder) / "perf.json"), peers), flush=True)


def _list_first_configs() -> list[str]:
    models = discover([_ROOT / "specs" / "models"])
    return [f"{model.name}/{config}" for model in models.values() for config in (model.configs or ("",))[:1]]


def _measure(name: str, arguments: Sequence[str], output: Path) -> dict[str, Any]:
    model, _, config = name.partition("/")
    options = ["-m", model, *(["-c", config] if config else []), "-o", str(output), "--loop_count", str(_LOOP_COUNT)]
    command = [sys.executable, "-m", "iree_gauntlet.bench", *options, *arguments]
    failure_file = output.with_suffix(".failed.json")
    for path in (output, failure_file):
        path.unlink(missing_ok=True)
    subprocess.run(command, cwd=_ROOT, stdout=subprocess.DEVNULL, check=False)
    result_file = output if output.exists() else failure_file
    if not result_file.exists():
        return {"error": "`gauntlet bench` wrote no result"}
    entry: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))[-1]
    return entry


def _format_row(name: str, entry: dict[str, Any], peer_names: Sequence[str]) -> str:
    if "error" in entry:
        return f"| {name.rstrip('/')} | {entry['error']} |"
    peers = {peer["name"]: peer for peer in entry.get("against", ())}
    ratios = [_format_ratio(peers.get(peer)) for peer in peer_names]
    metrics = [f"{entry['samples_per_sec']:.2f}", f"{entry['latency_ms']['p50']:.2f}"]
    error = f"{entry['numeric_error']['rms']:.1e}"
    return f"| {name.rstrip('/')} | {' | '.join([*metrics, *ratios, error])} |"


def _format_ratio(peer: dict[str, Any] | None) -> str:
    if peer is None or peer["ratio"] is None:
        return "–" if peer is None else str(peer["reason"])
    if peer["low"] is None:
        return f"×{peer['ratio']:.2f} ({peer['reason']})"
    return f"×{peer['ratio']:.2f} ({peer['low']:.2f} to {peer['high']:.2f})"


if __name__ == "__main__":
    main()
