"""Tests `bench` with planted errors: `python benchmarks/planted_errors.py [--formats FORMAT …] [MODEL/CONFIG …]`.

In each data format, a small network is compiled with a right convolution, and with convolutions that are 1 % and 0.1 %
too large, for inference and training. A row shows whether the errors are found, and the right network's deviation from
the model in its format, next to the allowed deviation. Rows of the named shipped models follow, without errors. A row
takes up to a minute, a shipped model's row several. The default formats are Fp32 and Fp16_b; `--formats all` selects
all. Needs `pip install -e '.[iree,models]'`.
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
_PLANTED_MODEL = """
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
    """Measure, and print each row as soon as it is complete."""
    parser = argparse.ArgumentParser(description="What bench finds of planted errors")
    parser.add_argument("--formats", nargs="+", default=["Fp32", "Fp16_b"], metavar="FORMAT")
    parser.add_argument("names", nargs="*", metavar="MODEL/CONFIG", help="shipped models, in Fp32")
    options = parser.parse_args()
    formats = [form.value for form in DataFormat] if options.formats == ["all"] else options.formats
    print("| model | format | | 1 % off | 0.1 % off | error | allowed |")
    print("| --- | --- | --- | --- | --- | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        (folder / "planted.py").write_text(_PLANTED_MODEL, encoding="utf-8")
        for form in formats:
            for training in (False, True):
                configs = ("right", "percent", "thousandth")
                right, *wrong = (_run_bench(f"planted/{config}", form, folder, training=training) for config in configs)
                _print("planted", form, training, right, *("found" if "error" in entry else "not" for entry in wrong))
        for name in options.names:
            for training in (False, True):
                _print(name, "Fp32", training, _run_bench(name, "Fp32", _ROOT / "specs" / "models", training=training))


def _run_bench(name: str, form: str, models: Path, *, training: bool) -> dict[str, Any]:
    model, _, config = name.partition("/")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "perf.json"
        args = ["-m", model, *(["-c", config] if config else []), "-df", form, *(["--training"] if training else [])]
        command = [sys.executable, "-m", "iree_gauntlet.bench", *args, "--models_dir", str(models)]
        result = subprocess.run(
            [*command, "--loop_count", "1", "-o", str(output)], cwd=_ROOT, capture_output=True, text=True, check=False
        )
        result_file = output.with_suffix(".failed.json") if result.returncode else output
        if not result_file.exists():
            sys.exit(result.stdout + result.stderr)
        entry: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))[-1]
    return entry


def _print(model: str, form: str, training: bool, right: dict[str, Any], *detections: str) -> None:
    cells = [model, form, "training" if training else "inference", *(detections or ("", ""))]
    if "error" in right:
        cells += [right["error"], ""]
    else:
        errors = right["numeric_error"]
        cells += [f"{errors[name]:.1e}" for name in ("rms_without_flips", "rms_tolerance")]
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
