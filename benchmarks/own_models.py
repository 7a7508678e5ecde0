"""Take models that nobody chose through `init` and `run`, and hold the verdicts against a direct comparison.

    python benchmarks/own_models.py [N] [--folder DIR] [--jobs 2]

The models are the 1,884 that the package `onnx` describes itself (`onnx.backend.test.case.node`), or N of them, evenly
spread. Each is brought as somebody would: `gauntlet init --program`, with nothing else said. One `gauntlet run` judges
all. Beside that, IREE's outputs on ONNX's own inputs are compared with ONNX's own expected outputs by iree-run-module,
with the tolerance that ONNX states for each. Prints how many got a verdict, why others were refused, and every verdict
that contradicts the comparison: passed where that is wrong, or wrong numbers where that is right. It may be only the
inputs that differ: noise in place of ONNX's.

All of them take an hour on 2 cores. Needs the extras `iree` and `record`.
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

from tests.support.command_line import run_here

if TYPE_CHECKING:
    from collections.abc import Sequence


_GAUNTLET = (sys.executable, "-m", "iree_gauntlet")
# Of ONNX's tests, where one states nothing; absolute ones of types that are coarser than that.
_RTOL = 1e-3
_ATOL = {"f16": 1e-2, "bf16": 5e-2}


@dataclass
class Model:
    """A model, and what became of it."""

    case: Any
    program: Path
    code: int = 0
    said: str = ""
    verdict: str = ""
    reason: str = ""
    module: Path | None = None
    direct: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def refused(self) -> str:
        """Why it has no expected outputs, in general words; empty where it has."""
        if self.code == 0:
            return ""
        lines = [line for line in self.said.splitlines() if line.startswith("error:")]
        text = lines[-1] if lines else self.said[-200:]
        for pattern, kind in _KINDS:
            if re.search(pattern, text):
                return kind
        return text[:160]


_KINDS = (
    (r"is of (sequence_type|optional_type)", "input is a sequence or optional"),
    (r"is of STRING|holds? object|is object", "strings"),
    (r"output .* is (a list|a NoneType|float4|.?int2|float8|str)", "output of a type that IREE's tools do not know"),
    (r"is of (\w+), which no spec has", "input of a type that IREE's tools do not know"),
    (r"differs? from run to run", "outputs differ from run to run"),
    (r"is NaN", "nothing but NaN"),
    (r"cannot (load|run)", "no reference runs it"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; 1 where a verdict contradicts the comparison."""
    parser = argparse.ArgumentParser(description="Verdicts of models that nobody chose.")
    parser.add_argument("count", nargs="?", type=int, default=0, help="how many models (default: all)")
    parser.add_argument(
        "--folder", type=Path, help="where the project is, and goes on where it was (default: a new one)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="models that are brought at once")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        models = _models(folder / "programs", asked.count)
        project = folder / "project"
        _bring(models[0], project)
        with ProcessPoolExecutor(asked.jobs) as pool:
            for model, found in zip(models, pool.map(partial(_bring, project=project), models), strict=True):
                model.code, model.said = found
        _run(models, project)
        with ThreadPoolExecutor(asked.jobs) as pool:
            list(pool.map(lambda model: _compare(model, folder / "direct"), models))
        return _print(models)


def _models(folder: Path, count: int) -> list[Model]:
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


def _bring(model: Model, project: Path) -> tuple[int, str]:
    """Exit code and words of `init`, as a user types it."""
    kept = model.program.with_suffix(".json")
    if not kept.exists():
        done = run_here(["init", str(project), "--program", str(model.program)], project.parent, os.environ)
        kept.write_text(json.dumps([done.code, done.text]), encoding="utf-8")
    code, said = json.loads(kept.read_text(encoding="utf-8"))
    return code, said


def _run(models: list[Model], project: Path) -> None:
    """One run of all that have expected outputs: the others are not judged."""
    for model in models:
        if model.code:
            # Its spec may be there without outputs.
            (project / "specs" / "regression_tests" / model.program.stem / "model_cpu.json").unlink(missing_ok=True)
    run = project / "runs" / "all"
    if not (run / "summary.json").exists():
        argv = [*_GAUNTLET, "run", "--run-dir", "runs/all", "--stages", "threshold"]
        subprocess.run(argv, cwd=project, capture_output=True, check=False)
    chains = json.loads((run / "summary.json").read_text(encoding="utf-8"))["chains"]
    by_name = {model.program.stem: model for model in models}
    for chain in chains:
        model = by_name[chain["model"]]
        # What decided comes first; what is behind it was skipped.
        bad = [step for step in chain["steps"] if step["verdict"] not in ("passed", "skipped")]
        model.verdict = f"{bad[0]['verdict']}: {bad[0]['stage']}" if bad else chain["verdict"]
        model.reason = bad[0]["reason"] if bad else ""
        module = run / "steps" / chain["model"] / "model.cpu" / "compile" / "module.vmfb"
        model.module = module if module.exists() else None


def _compare(model: Model, folder: Path) -> None:
    """IREE's outputs on ONNX's inputs, against ONNX's outputs."""
    if model.module is None:
        model.direct = "does not compile"
        return
    place = folder / model.program.stem
    place.mkdir(parents=True, exist_ok=True)
    inputs, outputs = model.case.data_sets[0]
    try:
        given = [_text(place / f"input_{index}.bin", value) for index, value in enumerate(inputs)]
        wanted = [_text(place / f"output_{index}.bin", value) for index, value in enumerate(outputs)]
    except (KeyError, AttributeError, TypeError, ValueError):
        model.direct = "not comparable"
        return
    argv = [str(Path(sys.executable).with_name("iree-run-module")), f"--module={model.module}", "--device=local-sync"]
    argv += [f"--input={text}" for text in given] + [f"--expected_output={text}" for text in wanted]
    rtol, atol = model.case.rtol or _RTOL, model.case.atol or 1e-7
    argv += [f"--expected_rtol={rtol}"]
    argv += [f"--expected_{kind}_threshold={max(atol, _ATOL.get(kind, 0))}" for kind in ("f16", "bf16", "f32", "f64")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=place)
    if done.returncode == 0:
        model.direct = "right"
    elif "[FAILED]" in done.stdout:
        model.direct = "wrong"
        model.notes = [line for line in done.stdout.splitlines() if "[FAILED]" in line][:1]
    else:
        model.direct = "does not run"
        model.notes = done.stderr.splitlines()[:1]


def _text(path: Path, value: Any) -> str:
    array = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    path.write_bytes(pack_bytes(array))
    kind = "x".join([*map(str, array.shape), ELEMENT_TYPES[array.dtype.name]])
    # The tool takes no file without a byte in it.
    return f"{kind}=@{path.name}" if array.size else kind


def _print(models: list[Model]) -> int:
    print(f"{len(models)} models")
    judged = [model for model in models if not model.refused]
    verdicts = Counter(model.verdict or "none" for model in judged)
    print(f"  verdict given: {len(judged)}")
    for verdict, count in verdicts.most_common():
        print(f"    {count:5} {verdict}")
    print(f"  refused: {len(models) - len(judged)}")
    for kind, count in Counter(model.refused for model in models if model.refused).most_common():
        names = [model.program.stem for model in models if model.refused == kind]
        print(f"    {count:5} {kind}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}")
    runnable = [model for model in models if model.refused not in _NOT_RUN]
    share = 100 * len(judged) / max(1, len(runnable))
    print(f"  {share:.1f} % of those that a reference runs on tensors of numbers")
    pairs = Counter((model.verdict, model.direct) for model in judged)
    print("  verdict, and the direct comparison")
    for (verdict, direct), count in pairs.most_common():
        print(f"    {count:5} {verdict:20} {direct}")
    bad = [
        model
        for model in judged
        if (model.verdict == "passed" and model.direct not in ("right", "not comparable"))
        or (model.verdict == "failed: threshold" and model.direct == "right")
        # A crash of the compiler or the runtime is an error, and right where the comparison does not come about.
        or (model.verdict.startswith("error") and not model.direct.startswith("does not"))
        or not model.verdict
    ]
    print(f"  contradictions: {len(bad)}")
    for cause, known in _CAUSES.items():
        if of_it := [model for model in bad if model.program.stem in known]:
            print(f"    {len(of_it):5} {cause}: {', '.join(model.program.stem for model in of_it)}")
            bad = [model for model in bad if model not in of_it]
    print(f"    {len(bad):5} of no known cause")
    for model in bad:
        print(f"    {model.program.stem}: {model.verdict} ({model.reason[:150]}); direct: {model.direct} {model.notes}")
    return 1 if bad else 0


# Of contradictions: IREE's faults that only one of the two inputs meets, and what the inputs that were chosen are not.
_CAUSES = {
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
_NOT_RUN = ("input is a sequence or optional", "strings", "no reference runs it")


if __name__ == "__main__":
    sys.exit(main())
