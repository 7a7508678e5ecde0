"""The steps that building any kind of model is made of: running it in torch, converting its weights, exporting it."""

from __future__ import annotations

import gc
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from iree_gauntlet.bench.directions import write_directions
from iree_gauntlet.bench.exported import export_program, type_name, write_arrays
from iree_gauntlet.bench.failures import failure_problem
from iree_gauntlet.bench.formats import DataFormat
from iree_gauntlet.bench.in_format import compute_in_format
from iree_gauntlet.bench.registry import ModelError
from iree_gauntlet.bench.weights import convert
from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.bench.in_format import Spread
    from iree_gauntlet.bench.registry import BenchmarkModel

__all__ = ["BuildSteps"]


class BuildSteps:
    """Steps of one build, and what they leave for `build.json`.

    Args:
        model: what is built.
        form: its data format.
        folder: of the build.

    Attributes:
        programs: that were exported, as `build.json` has them.
        reference: outputs of the first program in f32; empty where the data format is that.
        weight_error: of rounding; None where there is none.
        seconds: what took how long.
    """

    def __init__(self, model: BenchmarkModel, form: DataFormat, folder: Path) -> None:
        self.model = model
        self.form = form
        self.folder = folder
        self.programs: list[dict[str, Any]] = []
        self.reference: list[dict[str, Any]] = []
        self.weight_error: float | None = None
        self._spreads: dict[str, list[Spread]] = {}
        self._directions: dict[str, dict[str, Any] | None] = {}
        self.seconds = {"build": 0.0, "export": 0.0, "eager": 0.0}

    @property
    def exact(self) -> bool:
        """Whether the data format is f32, so that nothing is rounded."""
        return self.form is DataFormat.FP32

    @contextmanager
    def timed(self, part: str, progress: str) -> Iterator[None]:
        """Say on standard error what is done, and add its time to a part of `seconds`."""
        sys.stderr.write(f"{progress}\n")
        sys.stderr.flush()
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - begin

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Blame the model for what its modules raise.

        Raises:
            ModelError: in place of it.
        """
        try:
            yield
        except GauntletError:
            raise
        except Exception as error:  # a module of a user may raise anything, and is named for it
            model = self.model
            hint = f"{what} failed in torch, with {self.form.label}"
            problem = failure_problem(error, model.file.parent, model.file, model.line, model.name, hint)
            raise ModelError([problem]) from error

    def eager(self, module: Any, inputs: Sequence[Any], what: str) -> list[Any]:
        """What a module returns in torch eager: its tensors, in order.

        Raises:
            ModelError: where it fails, or returns something else than tensors.
        """
        with self.running(what), torch.no_grad():
            returned = module(*inputs)
        return self.checked(tree_leaves(returned), f"what {what} returned")

    def checked(self, tensors: Sequence[Any], what: str) -> list[Any]:
        """Tensors of types that IREE takes.

        Raises:
            ModelError: where one is none.
        """
        if not tensors:
            raise self.model.problem(f"{what}: there is no tensor in it")
        for index, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                raise self.model.problem(
                    f"{what}: item {index} is of type {type(tensor).__qualname__}, no torch.Tensor",
                    "modules return a tensor, or a list, tuple or dictionary of tensors",
                )
            if not type_name(tensor) or tensor.is_sparse:
                raise self.model.problem(f"{what}: tensor {index} is of type {tensor.dtype}, which IREE does not take")
        return list(tensors)

    def refer_to(self, outputs: Sequence[Any]) -> None:
        """Keep what the first program returns in f32."""
        self.reference = write_arrays(outputs, self.folder, "reference")

    def convert(self, modules: Sequence[Any]) -> None:
        """Bring modules to the data format, in place."""
        if not self.exact:
            with self.timed("build", f"rounding weights to {self.form.label}"):
                self.weight_error = convert(modules, self.form)
            gc.collect()

    def in_format(
        self,
        name: str,
        module: Any,
        inputs: Sequence[Any],
        run: Callable[[Any, Sequence[Any]], list[Any]],
        post: Callable[[Sequence[Any]], list[Any]] | None = None,
    ) -> list[Any]:
        """What a program should return (see `compute_in_format`); `export` keeps how near that has to be."""
        with self.timed("eager", f"running {name} in {self.form.label}, and with other rounding"):
            outputs, self._spreads[name], found = compute_in_format(run, module, inputs, self.form, post)
        self._directions[name] = write_directions(found, self.folder / f"{name}.directions.npz")
        return outputs

    def written(self, name: str, outputs: Sequence[Any], stem: str, *, after: bool = False) -> list[dict[str, Any]]:
        """Write what a program should return, or what the host makes of it after, with the errors that it may have."""
        arrays, spread = write_arrays(outputs, self.folder, stem), self._spreads[name][after]
        return [{**array, "errors": spread.of(index)} for index, array in enumerate(arrays)]

    def export(
        self, name: str, module: Any, inputs: Sequence[Any], outputs: Sequence[Any], *, optimize: bool = True
    ) -> None:
        """Export a program, with its inputs and what `in_format` made of them.

        Raises:
            ExportFailedError: where it cannot be.
        """
        with self.timed("export", f"exporting {name}"), torch.no_grad():
            path = self.folder / f"{name}.onnx"
            export_program(module, inputs, outputs, path, model=self.model.name, optimize=optimize)
        self.programs.append(
            {
                "name": name,
                "onnx": path.name,
                "inputs": write_arrays(inputs, self.folder, f"{name}.input"),
                "outputs": self.written(name, outputs, f"{name}.output"),
                "directions": self._directions[name],
            }
        )
