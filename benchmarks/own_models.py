"""Runs unselected models through `init` and `run`, and compares the verdicts with a direct comparison.

    python benchmarks/own_models.py [N] [--folder DIR] [--jobs 2]

The models are the 1,884 test cases of the package `onnx` (`onnx.backend.test.case.node`), or N of them, evenly spread.
Each model is added as a user would add it: `gauntlet init --program`, without other options. One `gauntlet run`
evaluates all models. In the direct comparison, iree-run-module compares IREE's outputs for ONNX's own inputs with
ONNX's expected outputs, within ONNX's tolerance for the model. Prints the number of verdicts, the reasons for rejected
models, and every contradiction: the verdict is passed although the comparison fails, or wrong numbers although it
passes. The only reason of a contradiction may be that the inputs differ, since the toolkit's inputs are noise.

All models take an hour on 2 cores. Needs the extras `iree` and `record`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

from iree_gauntlet.workers.iree_side.onnx_reference import ELEMENT_TYPES, pack_bytes

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.command_line import run_in_process

if TYPE_CHECKING:
    from collections.abc import Sequence


_GAUNTLET = (sys.executable, "-m", "iree_gauntlet")
# The default relative tolerance of ONNX's tests, and absolute tolerances for coarser types.
_RTOL = 1e-3
_ATOL = {"f16": 1e-2, "bf16": 5e-2}


@dataclass
class Model:
    """A model and its results."""

    case: Any
    program: Path
    init_code: int = 0
    init_output: str = ""
    verdict: str = ""
    reason: str = ""
    module: Path | None = None
    direct: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def rejection(self) -> str:
        """The category of the reason why the model has no expected outputs; empty if it has them."""
        if self.init_code == 0:
            return ""
        lines = [line for line in self.init_output.splitlines() if line.startswith("error:")]
        message = lines[-1] if lines else self.init_output[-200:]
        for pattern, category in _REJECTION_PATTERNS:
            if re.search(pattern, message):
                return category
        return message[:160]


_REJECTION_PATTERNS = (
    (r"is of (sequence_type|optional_type)", "input is a sequence or optional"),
    (r"is of STRING|holds? object|is object", "strings"),
    (r"output .* is (a list|a NoneType|float4|.?int2|float8|str)", "output of a type that IREE's tools do not know"),
    (r"is of (\w+), which no spec has", "input of a type that IREE's tools do not know"),
    (r"differs? from run to run", "outputs differ from run to run"),
    (r"is NaN", "nothing but NaN"),
    (r"cannot (load|run)", "no reference runs it"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and return 1 if a verdict contradicts the comparison."""
    parser = argparse.ArgumentParser(description="Verdicts of models that nobody chose.")
    parser.add_argument("count", nargs="?", type=int, default=0, help="how many models (default: all)")
    parser.add_argument(
        "--folder", type=Path, help="where the project is, and goes on where it was (default: a new one)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="models that are brought at once")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        folder = options.folder or Path(directory)
        models = _write_models(folder / "programs", options.count)
        project = folder / "project"
        _init_model(models[0], project)
        with ProcessPoolExecutor(options.jobs) as pool:
            for model, result in zip(models, pool.map(partial(_init_model, project=project), models), strict=True):
                model.init_code, model.init_output = result
        _run_models(models, project)
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda model: _compare_directly(model, folder / "direct"), models))
        return _print_results(models)


def _write_models(folder: Path, count: int) -> list[Model]:
    folder.mkdir(parents=True, exist_ok=True)
    cases = [case for case in collect_testcases(None) if case.kind == "node"]
    if 0 < count < len(cases):
        cases = [cases[index * len(cases) // count] for index in range(count)]
    models = []
    for case in cases:
        path = folder / f"{case.name}.onnx"
        if case.model is None:
            raise ValueError(f"{case.name} has no model")
        onnx.save(case.model, path)
        models.append(Model(case, path))
    return models


def _init_model(model: Model, project: Path) -> tuple[int, str]:
    """Run `init` as a user would and return its exit code and output, cached in a file."""
    cache_file = model.program.with_suffix(".json")
    if not cache_file.exists():
        result = run_in_process(["init", str(project), "--program", str(model.program)], project.parent, os.environ)
        cache_file.write_text(json.dumps([result.code, result.text]), encoding="utf-8")
    code, output = json.loads(cache_file.read_text(encoding="utf-8"))
    return code, output


def _run_models(models: list[Model], project: Path) -> None:
    """Run all models that have expected outputs, and store their verdicts."""
    for model in models:
        if model.init_code:
            # The spec may exist although its expected outputs do not.
            (project / "specs" / "regression_tests" / model.program.stem / "model_cpu.json").unlink(missing_ok=True)
    run_dir = project / "runs" / "all"
    if not (run_dir / "summary.json").exists():
        argv = [*_GAUNTLET, "run", "--run-dir", "runs/all", "--stages", "threshold"]
        subprocess.run(argv, cwd=project, capture_output=True, check=False)
    chains = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))["chains"]
    by_name = {model.program.stem: model for model in models}
    for chain in chains:
        model = by_name[chain["model"]]
        # The deciding step comes first; later steps were skipped.
        failures = [step for step in chain["steps"] if step["verdict"] not in ("passed", "skipped")]
        model.verdict = f"{failures[0]['verdict']}: {failures[0]['stage']}" if failures else chain["verdict"]
        model.reason = failures[0]["reason"] if failures else ""
        module = run_dir / "steps" / chain["model"] / "model.cpu" / "compile" / "module.vmfb"
        model.module = module if module.exists() else None


def _compare_directly(model: Model, folder: Path) -> None:
    """Compare IREE's outputs for ONNX's inputs with ONNX's outputs."""
    if model.module is None:
        model.direct = "does not compile"
        return
    case_dir = folder / model.program.stem
    case_dir.mkdir(parents=True, exist_ok=True)
    inputs, outputs = model.case.data_sets[0]
    try:
        input_flags = [_write_tensor(case_dir / f"input_{index}.bin", tensor) for index, tensor in enumerate(inputs)]
        output_flags = [_write_tensor(case_dir / f"output_{index}.bin", tensor) for index, tensor in enumerate(outputs)]
    except (KeyError, AttributeError, TypeError, ValueError):
        model.direct = "not comparable"
        return
    argv = [str(Path(sys.executable).with_name("iree-run-module")), f"--module={model.module}", "--device=local-sync"]
    argv += [f"--input={flag}" for flag in input_flags] + [f"--expected_output={flag}" for flag in output_flags]
    rtol, atol = model.case.rtol or _RTOL, model.case.atol or 1e-7
    argv += [f"--expected_rtol={rtol}"]
    argv += [f"--expected_{kind}_threshold={max(atol, _ATOL.get(kind, 0))}" for kind in ("f16", "bf16", "f32", "f64")]
    result = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=case_dir)
    if result.returncode == 0:
        model.direct = "right"
    elif "[FAILED]" in result.stdout:
        model.direct = "wrong"
        model.notes = [line for line in result.stdout.splitlines() if "[FAILED]" in line][:1]
    else:
        model.direct = "does not run"
        model.notes = result.stderr.splitlines()[:1]


def _write_tensor(path: Path, tensor: Any) -> str:
    array = onnx.numpy_helper.to_array(tensor) if isinstance(tensor, onnx.TensorProto) else np.asarray(tensor)
    path.write_bytes(pack_bytes(array))
    shape_and_type = "x".join([*map(str, array.shape), ELEMENT_TYPES[array.dtype.name]])
    # iree-run-module rejects an empty file.
    return f"{shape_and_type}=@{path.name}" if array.size else shape_and_type


def _print_results(models: list[Model]) -> int:
    print(f"{len(models)} models")
    valid_models = [model for model in models if not model.rejection]
    verdicts = Counter(model.verdict or "none" for model in valid_models)
    print(f"  verdict given: {len(valid_models)}")
    for verdict, count in verdicts.most_common():
        print(f"    {count:5} {verdict}")
    print(f"  refused: {len(models) - len(valid_models)}")
    for category, count in Counter(model.rejection for model in models if model.rejection).most_common():
        names = [model.program.stem for model in models if model.rejection == category]
        print(f"    {count:5} {category}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}")
    runnable = [model for model in models if model.rejection not in _UNRUNNABLE]
    percent = 100 * len(valid_models) / max(1, len(runnable))
    print(f"  {percent:.1f} % of those that a reference runs on tensors of numbers")
    pairs = Counter((model.verdict, model.direct) for model in valid_models)
    print("  verdict, and the direct comparison")
    for (verdict, direct), count in pairs.most_common():
        print(f"    {count:5} {verdict:20} {direct}")
    contradictions = [
        model
        for model in valid_models
        if (model.verdict == "passed" and model.direct not in ("right", "not comparable"))
        or (model.verdict == "failed: threshold" and model.direct == "right")
        # A crash of the compiler or the runtime gives an error, which is right if the direct comparison fails too.
        or (model.verdict.startswith("error") and not model.direct.startswith("does not"))
        or not model.verdict
    ]
    print(f"  contradictions: {len(contradictions)}")
    for cause, model_names in _KNOWN_CAUSES.items():
        if matches := [model for model in contradictions if model.program.stem in model_names]:
            print(f"    {len(matches):5} {cause}: {', '.join(model.program.stem for model in matches)}")
            contradictions = [model for model in contradictions if model not in matches]
    print(f"    {len(contradictions):5} of no known cause")
    for model in contradictions:
        print(f"    {model.program.stem}: {model.verdict} ({model.reason[:150]}); direct: {model.direct} {model.notes}")
    return 1 if contradictions else 0


# Contradictions are due to faults of IREE that only one of the two inputs triggers, or to unsuitable generated inputs.
_KNOWN_CAUSES = {
    "passed; IREE fails on ONNX's values: a zero pivot, a zero norm, ties, an f8 overflow (not printed by the tool)": (
        "test_det_2d",
        "test_l2normalization_axis_0",
        "test_gridsample_nearest",
        "test_gridsample_nearest_align_corners_0_additional_1",
        "test_gridsample_nearest_align_corners_1_additional_1",
        "test_castlike_FLOAT_to_FLOAT8E5M2",
        "test_castlike_no_saturate_FLOAT_to_FLOAT8E5M2",
        "test_castlike_FLOAT_to_FLOAT8E4M3FN",
        "test_castlike_FLOAT_to_FLOAT8E4M3FNUZ",
        "test_castlike_FLOAT_to_FLOAT8E5M2FNUZ",
        "test_castlike_no_saturate_FLOAT_to_FLOAT8E4M3FN",
        "test_quantizelinear_e4m3fn",
    ),
    "passed; scales by which ONNX rounds sizes otherwise are not those that were chosen": (
        "test_resize_downsample_scales_linear_align_corners",
        "test_resize_downsample_scales_cubic_align_corners",
    ),
    "passed; IREE's tanh is off by 3e-5, and ONNX's test allows less": ("test_gelu_tanh_2",),
    "failed; IREE has no NonMaxSuppression whose threshold is above some score": (
        "test_nonmaxsuppression_suppress_by_IOU",
        "test_nonmaxsuppression_flipped_coordinates",
        "test_nonmaxsuppression_limit_output_size",
        "test_nonmaxsuppression_identical_boxes",
        "test_nonmaxsuppression_center_point_box_format",
    ),
    "failed; IREE takes no negative index of OneHot": ("test_onehot_with_axis", "test_onehot_with_negative_axis"),
    "failed; IREE's Pow gives NaN, or 0, for a negative base": (
        "test_pow_types_float32_int64",
        "test_pow_types_float32_int32",
        "test_pow_types_float32_uint64",
        "test_pow_types_float32_uint32",
        "test_pow_types_int32_int32",
    ),
    "failed; the model declares sizes of its outputs that its inputs do not have, which is noted": (
        "test_nonzero_example",
        "test_reduce_max_empty_set_bool",
        "test_stft_with_window",
    ),
}
_UNRUNNABLE = ("input is a sequence or optional", "strings", "no reference runs it")


if __name__ == "__main__":
    sys.exit(main())
