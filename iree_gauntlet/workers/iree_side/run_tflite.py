"""Run a TFLite model by LiteRT, in a Python that has ai-edge-litert.

    python run_tflite.py PLAN.json

`expected_outputs.py` describes plan and answer. The engines are `litert`, LiteRT's reference kernels, and `xnnpack`,
the optimised kernels that an application gets by default. `options` are `{"path": "/…/m.tflite"}`, the file that the
program in MLIR was imported from. Each run begins with new variables, so that of a model with state the first call is
run. Inputs are given, and outputs compared, as the model has them: quantised numbers stay integers.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.expected_outputs import EnginePlan, run_sets
from iree_gauntlet.workers.iree_side.onnx_reference import InferenceFailedError
from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_plan, run_worker_main

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.workers.iree_side.plan_file import Array


_DISTRIBUTION = "ai-edge-litert"
_MAX_REASON = 300
# LiteRT's names of kernels, by engine.
_KERNELS = {"litert": "BUILTIN_REF", "xnnpack": "AUTO"}


def _run(document: Mapping[str, object]) -> dict[str, object]:
    plan = read_plan(EnginePlan, document)
    try:
        from ai_edge_litert import interpreter as litert  # noqa: PLC0415 - only this program's Python has it
    except ImportError as error:
        raise PlanError(f"no {_DISTRIBUTION} in {sys.executable}: {error}") from error
    path = str((plan.options or {})["path"])
    kernels = getattr(litert.OpResolverType, _KERNELS[plan.engine])

    def run(_: list[str], arrays: list[Array]) -> list[Array]:
        try:
            program = litert.Interpreter(path, experimental_op_resolver_type=kernels, num_threads=1)
            inputs = program.get_input_details()
            if len(inputs) != len(arrays):
                raise InferenceFailedError(f"LiteRT sees {len(inputs)} inputs, and IREE {len(arrays)}")
            for item, array in zip(inputs, arrays, strict=True):
                if tuple(item["shape"]) != array.shape:
                    program.resize_tensor_input(item["index"], array.shape)
            program.allocate_tensors()
            for item, array in zip(inputs, arrays, strict=True):
                program.set_tensor(item["index"], array)
            program.invoke()
            return [np.array(program.get_tensor(item["index"])) for item in program.get_output_details()]
        except (RuntimeError, ValueError, TypeError) as error:
            raise InferenceFailedError(" ".join(str(error).split())[:_MAX_REASON]) from error

    return run_sets(plan, version(_DISTRIBUTION), run)


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, _run))
