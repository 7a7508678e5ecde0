"""An ONNX model in onnxruntime, as its authors published it: no opset conversion, one thread, on the CPU."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[Any]

__all__ = ["InferenceFailedError", "OnnxSession", "RefusedError", "first_line"]


class RefusedError(Exception):
    """The command cannot be carried out, or an output is worth nothing as a golden; one line."""


class InferenceFailedError(Exception):
    """onnxruntime could not load or run the model; one line."""


class OnnxSession:
    """A loaded model.

    Attributes:
        inputs: onnxruntime's descriptions of them, with `name`, `type` and `shape`.

    Args:
        model: the file.

    Raises:
        RefusedError: there is no onnxruntime.
        InferenceFailedError: it cannot load the model.
    """

    def __init__(self, model: Path) -> None:
        try:
            import onnxruntime  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise RefusedError(f"no onnxruntime in {sys.executable}; pip install onnxruntime") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # What onnxruntime raises derives from Exception alone, one class per status code.
        statuses = vars(onnxruntime.capi.onnxruntime_pybind11_state).values()
        self._failures: tuple[type[Exception], ...] = (
            ValueError,
            *(value for value in statuses if isinstance(value, type) and issubclass(value, Exception)),
        )
        self._name = model.name
        try:
            self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except self._failures as error:
            raise InferenceFailedError(f"onnxruntime cannot load {model.name}: {first_line(error)}") from error
        self.inputs: list[Any] = self._session.get_inputs()

    def run(self, arrays: Sequence[Array]) -> dict[str, Array]:
        """Runs the model once.

        Args:
            arrays: one for each input, in order.

        Returns:
            Outputs by name, in the graph's order.

        Raises:
            RefusedError: there are not as many arrays as inputs.
            InferenceFailedError: onnxruntime cannot run the model on them.
        """
        if len(self.inputs) != len(arrays):
            known = ", ".join(f"{value.name} {value.type} {value.shape}" for value in self.inputs)
            raise RefusedError(f"{len(arrays)} inputs were given, the model takes {len(self.inputs)}: {known}")
        names = [value.name for value in self._session.get_outputs()]
        given = {value.name: array for value, array in zip(self.inputs, arrays, strict=True)}
        try:
            values = self._session.run(names, given)
        except self._failures as error:
            raise InferenceFailedError(f"onnxruntime cannot run {self._name}: {first_line(error)}") from error
        return dict(zip(names, values, strict=True))


def first_line(error: Exception) -> str:
    """What an exception says, in one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
