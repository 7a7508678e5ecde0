"""What `bench` finds of planted errors: `python benchmarks/planted_errors.py [--formats FORMAT …] [MODEL/CONFIG …]`.

For each data format a small network with a convolution that is right, 1 % and 0.1 % too large in the program that is
compiled, for inference and training: whether that is found, and how far the right one is from the model in its format,
next to what it may be. Then the same figures for shipped models that are named, without errors. A row takes up to a
minute, a shipped one minutes; Fp32 and Fp16_b without `--formats`, all of them with `--formats all`. It needs
`pip install -e '.[iree,models]'`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from iree_gauntlet.torch_models.formats import DataFormat

_ROOT = Path(__file__).parents[1]
_MODEL = """
from iree_gauntlet.bench import benchmark_model

@benchmark_model(configs=["right", "percent", "thousandth"])
def planted(training: bool, config: str, microbatch: int = 16):
    import torch
    from torch import nn

    share = {"right": 1.0, "percent": 1.01, "thousandth": 1.001}[config]

    class Layer(nn.Conv2d):
        def forward(self, values):
            # Only the program that is compiled is wrong.
            return super().forward(values) * (share if torch.compiler.is_exporting() else 1.0)

    torch.manual_seed(1)
    first, second = nn.Conv2d(3, 32, 3), Layer(32, 32, 3)
    layers = [first, nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 16, 3)]
    return [nn.Sequential(*layers).train(training)], [torch.randn(microbatch, 3, 16, 16)]
"""


def main() -> None:
    """Measure, and print a row as soon as it is there."""
    parser = argparse.ArgumentParser(description="What bench finds of planted errors")
    parser.add_argument("--formats", nargs="+", default=["Fp32", "Fp16_b"], metavar="FORMAT")
    parser.add_argument("names", nargs="*", metavar="MODEL/CONFIG", help="shipped models, in Fp32")
    asked = parser.parse_args()
    formats = [form.value for form in DataFormat] if asked.formats == ["all"] else asked.formats
    print("| model | format | | 1 % off | 0.1 % off | error | allowed |")
    print("| --- | --- | --- | --- | --- | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "planted.py").write_text(_MODEL, encoding="utf-8")
        for form in formats:
            for training in (False, True):
                configs = ("right", "percent", "thousandth")
                right, *wrong = (_entry(f"planted/{config}", form, folder, training=training) for config in configs)
                _row("planted", form, training, right, *("found" if "error" in entry else "not" for entry in wrong))
        for name in asked.names:
            for training in (False, True):
                _row(name, "Fp32", training, _entry(name, "Fp32", _ROOT / "specs" / "models", training=training))


def _entry(name: str, form: str, models: Path, *, training: bool) -> dict[str, Any]:
    model, _, config = name.partition("/")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "perf.json"
        words = ["-m", model, *(["-c", config] if config else []), "-df", form, *(["--training"] if training else [])]
        command = [sys.executable, "-m", "iree_gauntlet.bench", *words, "--models_dir", str(models)]
        done = subprocess.run(
            [*command, "--loop_count", "1", "-o", str(output)], cwd=_ROOT, capture_output=True, text=True, check=False
        )
        written = output.with_suffix(".failed.json") if done.returncode else output
        if not written.exists():
            sys.exit(done.stdout + done.stderr)
        entry: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))[-1]
    return entry


def _row(model: str, form: str, training: bool, right: dict[str, Any], *found: str) -> None:
    cells = [model, form, "training" if training else "inference", *(found or ("", ""))]
    if "error" in right:
        cells += [right["error"], ""]
    else:
        figures = right["numeric_error"]
        cells += [f"{figures[name]:.1e}" for name in ("rms_without_flips", "rms_tolerance")]
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
