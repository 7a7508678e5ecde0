"""Measure the ONNX programs of a built model in onnxruntime, on the CPU, with onnxruntime's defaults.

Plan and result are those of `measure_torch.py`, for one model. If the model cannot be measured, the process fails.
`compile_s` is the time of creating the sessions. A call takes and returns arrays; the state of a generative model stays
in onnxruntime's values. Models with modules on the host need torch in this Python, because these modules run in torch.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.torch_models.build_files import PeerPlan, ProgramBuild, TokenLoop, read_build
from iree_gauntlet.workers.iree_side.plan_file import read_arrays, time_calls, write_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray


# The value of onnx.TensorProto.BFLOAT16.
_BFLOAT16 = 16
_NS_PER_MS = 1e6
_NS_PER_S = 1e9


class _Program:
    """A loaded ONNX program, with its inputs."""

    def __init__(self, folder: Path, program: ProgramBuild) -> None:
        onnxruntime = _import_onnxruntime()
        self._value_class = onnxruntime.OrtValue
        self._session = onnxruntime.InferenceSession(str(folder / program.onnx), providers=["CPUExecutionProvider"])
        self._names = [item.name for item in self._session.get_inputs()]
        self._types = [item.type for item in program.outputs]
        self.inputs = read_arrays([item.as_dict() for item in program.inputs], folder)

    def call(self, inputs: Sequence[tuple[NDArray[Any], str]]) -> list[tuple[str, NDArray[Any]]]:
        """Run one call with arrays, and return arrays with their element types."""
        outputs = self.run([self.value(*typed_array) for typed_array in inputs])
        return [(name, value.numpy()) for name, value in zip(self._types, outputs, strict=True)]

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Run one call with onnxruntime's values, and return such values."""
        outputs: list[Any] = self._session.run_with_ort_values(None, dict(zip(self._names, values, strict=True)))
        return outputs

    def value(self, array: NDArray[Any], element_type: str) -> Any:
        """Return an array as onnxruntime's value, without a copy."""
        if element_type == "bf16":
            return self._value_class.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
        return self._value_class.ortvalue_from_numpy(array)


def _import_onnxruntime() -> ModuleType:
    try:
        import onnxruntime  # noqa: PLC0415 - a missing package is reported
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error} in {sys.executable}: pip install onnxruntime") from error
    return onnxruntime  # type: ignore[no-any-return]


def _generate(programs: Sequence[_Program], loop: TokenLoop) -> list[list[int]]:
    """Run one generation with greedy choice, and return the tokens by sample."""
    prefill, decode = programs
    logits, *state = prefill.run([prefill.value(*typed_array) for typed_array in prefill.inputs])
    chosen_tokens = [logits.numpy().argmax(axis=-1)]
    for step in range(loop.tokens - 1):
        token = decode.value(chosen_tokens[-1].reshape(-1, 1).astype(np.int64), "i64")
        position = decode.value(np.array([loop.position + step], np.int64), "i64")
        logits, *new_state = decode.run([token, position, *state])
        state[: len(new_state)] = new_state
        chosen_tokens.append(logits.numpy().argmax(axis=-1))
    return [[int(token) for token in sample] for sample in np.stack(chosen_tokens, axis=1)]


def run(path: Path) -> dict[str, Any]:
    """Measure the model of a plan, and return the results."""
    plan = PeerPlan.read(path)
    (model,) = plan.models
    build = read_build(model.build)
    begin = time.perf_counter_ns()
    programs = [_Program(model.build, program) for program in build.programs]
    load_end = time.perf_counter_ns()
    main, host = programs[0], None
    if build.has_host_modules:
        from iree_gauntlet.torch_models.torch_side import host_modules  # noqa: PLC0415 - only with torch

        host_inputs = read_arrays([item.as_dict() for item in build.host_inputs], model.build)
        host = host_modules.build_host_modules(model.builder, main.inputs, host_inputs)
    chosen_tokens: list[list[int]] = []

    def call() -> object:
        if build.generation is not None:
            chosen_tokens[:] = _generate(programs, build.generation)
            return chosen_tokens
        if host is not None:
            return host.run_post(main.call(host.run_pre()))
        return main.call(main.inputs)

    call_begin = time.perf_counter_ns()
    call()
    first_call_ns = time.perf_counter_ns() - call_begin
    times = time_calls(call, plan.warm_up_calls, model.calls)
    outputs: Sequence[tuple[str, NDArray[Any] | None]]
    if host is None:
        outputs = [item for program in programs for item in program.call(program.inputs)]
    else:
        outputs = host.to_arrays(host.run_post(main.call(host.run_pre())))
    result = {
        "name": model.name,
        "call_ms": times,
        "first_call_ms": first_call_ns / _NS_PER_MS,
        "compile_s": (load_end - begin) / _NS_PER_S,
        "outputs": write_arrays(plan.outputs, "output", outputs),
        "chosen": chosen_tokens,
    }
    return {"version": _import_onnxruntime().__version__, "models": [result]}
