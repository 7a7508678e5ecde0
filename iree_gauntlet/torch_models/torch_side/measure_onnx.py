"""Measure the ONNX programs of a built model in onnxruntime, on the CPU, with onnxruntime's own defaults.

Plan and answer are those of `measure_torch.py`, for one model; one that cannot be measured ends the process.
`compile_s` is what making the sessions took. A call takes arrays and gives arrays. The state of a generative model
stays in onnxruntime's own values. Modules on the host run in torch: this Python has to have it then.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.torch_models.build_files import BuiltProgram, PeerPlan, TokenLoop, read_build
from iree_gauntlet.workers.iree_side.plan_file import read_arrays, time_calls, write_arrays

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    from numpy.typing import NDArray


# onnx.TensorProto.BFLOAT16
_BFLOAT16 = 16
_NS_PER_MS = 1e6
_NS_PER_S = 1e9


class _Program:
    """An ONNX program, loaded, with inputs to call it with."""

    def __init__(self, folder: Path, program: BuiltProgram) -> None:
        onnxruntime = _import_onnxruntime()
        self._values = onnxruntime.OrtValue
        self._session = onnxruntime.InferenceSession(str(folder / program.onnx), providers=["CPUExecutionProvider"])
        self._names = [item.name for item in self._session.get_inputs()]
        self._types = [item.type for item in program.outputs]
        self.inputs = read_arrays([item.as_dict() for item in program.inputs], folder)

    def call(self, given: Sequence[tuple[NDArray[Any], str]]) -> list[tuple[str, NDArray[Any]]]:
        """One call, from arrays to arrays, with their element types."""
        found = self.run([self.value(*item) for item in given])
        return [(name, value.numpy()) for name, value in zip(self._types, found, strict=True)]

    def run(self, values: Sequence[Any]) -> list[Any]:
        """One call, from values to values."""
        found: list[Any] = self._session.run_with_ort_values(None, dict(zip(self._names, values, strict=True)))
        return found

    def value(self, array: NDArray[Any], element_type: str) -> Any:
        """An array as onnxruntime takes it; nothing is copied."""
        if element_type == "bf16":
            return self._values.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16)
        return self._values.ortvalue_from_numpy(array)


def _import_onnxruntime() -> ModuleType:
    try:
        import onnxruntime  # noqa: PLC0415 - where it is missing, that is said
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error} in {sys.executable}: pip install onnxruntime") from error
    return onnxruntime  # type: ignore[no-any-return]


def _generate(programs: Sequence[_Program], loop: TokenLoop) -> list[list[int]]:
    """One generation, greedy; the tokens by sample."""
    prefill, decode = programs
    logits, *state = prefill.run([prefill.value(*item) for item in prefill.inputs])
    chosen = [logits.numpy().argmax(axis=-1)]
    for step in range(loop.tokens - 1):
        token = decode.value(chosen[-1].reshape(-1, 1).astype(np.int64), "i64")
        position = decode.value(np.array([loop.position + step], np.int64), "i64")
        logits, *new = decode.run([token, position, *state])
        state[: len(new)] = new
        chosen.append(logits.numpy().argmax(axis=-1))
    return [[int(token) for token in sample] for sample in np.stack(chosen, axis=1)]


def run(path: Path) -> dict[str, Any]:
    """Measure as a plan says; the answer."""
    plan = PeerPlan.read(path)
    (asked,) = plan.models
    build = read_build(asked.build)
    begin = time.perf_counter_ns()
    programs = [_Program(asked.build, program) for program in build.programs]
    loaded = time.perf_counter_ns()
    main, host = programs[0], None
    if build.has_host_modules:
        from iree_gauntlet.torch_models.torch_side import host_modules  # noqa: PLC0415 - only with torch

        given = read_arrays([item.as_dict() for item in build.host_inputs], asked.build)
        host = host_modules.build_host_modules(asked.builder, main.inputs, given)
    chosen: list[list[int]] = []

    def call() -> object:
        if build.generation is not None:
            chosen[:] = _generate(programs, build.generation)
            return chosen
        if host is not None:
            return host.after(main.call(host.before()))
        return main.call(main.inputs)

    began = time.perf_counter_ns()
    call()
    first = time.perf_counter_ns() - began
    times = time_calls(call, plan.warm_up_calls, asked.calls)
    outputs: Sequence[tuple[str, NDArray[Any] | None]]
    if host is None:
        outputs = [item for program in programs for item in program.call(program.inputs)]
    else:
        outputs = host.arrays(host.after(main.call(host.before())))
    figures = {
        "name": asked.name,
        "call_ms": times,
        "first_call_ms": first / _NS_PER_MS,
        "compile_s": (loaded - begin) / _NS_PER_S,
        "outputs": write_arrays(plan.outputs, "output", outputs),
        "chosen": chosen,
    }
    return {"version": _import_onnxruntime().__version__, "models": [figures]}
