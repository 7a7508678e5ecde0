"""The steps that building any kind of model is made of: running it in torch, converting its weights, exporting it."""

from __future__ import annotations

import gc
import json
import platform
import re
import sys
import time
import traceback
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir
import torch
from torch.utils._pytree import tree_leaves

from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.agreement import write_directions
from iree_gauntlet.torch_models.formats import DataFormat
from iree_gauntlet.torch_models.in_format import Spread, compute_in_format
from iree_gauntlet.torch_models.torch_tensors import convert, type_name, write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from iree_gauntlet.torch_models.build_plan import Plan
    from iree_gauntlet.torch_models.declarations import Declaration


# Two runs of torch may add in another order.
REPEATABLE = 1e-2
# As `build_folder.py` reads it, which needs more than this Python may have.
_BUILD_FILE = "build.json"
_SCHEMA = 1
_NO_TRANSLATION = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.:]+)', overload='(\w+)'\)>")
_PACKAGES = ("torch", "torchao", "transformers", "onnxscript", "onnx", "numpy")


class BuildSteps:
    """Steps of one build, and what they leave for `build.json`.

    Attributes:
        programs: that were exported, as `build.json` has them.
        reference: outputs of the first program in f32; empty where they are the same.
        weight_error: of rounding; None where there is none.

    Raises:
        UsageError: the plan names no folder.
    """

    model: Declaration

    def __init__(self, plan: Plan, label: str, form: DataFormat = DataFormat.FP32) -> None:
        if not plan.output:
            raise UsageError("the plan names no folder for its output")
        self.label = label
        self.form = form
        self.folder = Path(plan.output)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _BUILD_FILE).unlink(missing_ok=True)
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

    def running(self, what: str) -> AbstractContextManager[None]:
        """Blame the model for what its modules raise."""
        return self.model.blamed(f"{what} failed in torch, with {self.label}")

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

    def require_repeatable(self, first: Sequence[Any], second: Sequence[Any]) -> None:
        """Refuse a module that draws random numbers, or keeps something from call to call: nothing can equal that."""
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            if not torch.allclose(one.double(), other.double(), rtol=REPEATABLE, atol=1e-6, equal_nan=True):
                raise self.model.problem(
                    f"output {index} is another one at a second call with the same inputs",
                    "a module that is compared must not draw random numbers, or change itself",
                )

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
        arrays = write_arrays(outputs, self.folder, stem)
        if name not in self._spreads:
            return arrays
        spread = self._spreads[name][after]
        return [{**array, "errors": spread.of(index)} for index, array in enumerate(arrays)]

    def export(
        self, name: str, module: Any, inputs: Sequence[Any], outputs: Sequence[Any], *, optimize: bool = True
    ) -> None:
        """Export a program, with its inputs and what it should make of them.

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
                "directions": self._directions.get(name),
            }
        )

    def write_record(self, *, model: str, **fields: Any) -> None:
        """Write `build.json`, the last of all files.

        `fields`: of it, besides what the steps have left and in place of what a plain pipeline has.
        """
        record = {
            "schema": _SCHEMA,
            "kind": "pipeline",
            "model": model,
            "programs": self.programs,
            "host": {"pre": False, "post": False},
            "host_inputs": [],
            "host_outputs": [],
            "generation": None,
            "training": None,
            "reference": self.reference,
            "weight_error": self.weight_error,
            **fields,
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
            "seconds": {part: round(seconds, 3) for part, seconds in self.seconds.items()},
        }
        write_atomic(self.folder / _BUILD_FILE, json.dumps(record, indent=1) + "\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class ExportFailedError(GauntletError):
    """A program that cannot be exported."""

    exit_code = ExitCode.FAILED

    @classmethod
    def of(cls, model: str, program: str, error: Exception) -> ExportFailedError:
        """The error for what an exporter raised; what it says at length goes to standard error."""
        traceback.print_exception(error, file=sys.stderr)
        chain = [error]
        while (deeper := chain[-1].__cause__ or chain[-1].__context__) and isinstance(deeper, Exception):
            chain.append(deeper)
        operators = [found for item in chain for found in [_NO_TRANSLATION.search(str(item))] if found]
        if operators:
            name = ".".join(operators[-1].groups())
            return cls(f"{model}: {program} cannot be exported: ONNX has no translation of {name}")
        said = next((line.strip() for line in str(chain[-1]).splitlines() if line.strip()), "")
        return cls(f"{model}: {program} cannot be exported: {type(chain[-1]).__name__}: {said}")


def export_program(
    module: Any, inputs: Sequence[Any], outputs: Sequence[Any], path: Path, *, model: str, optimize: bool = True
) -> None:
    """Export a module with fixed shapes to ONNX, its weights in a file next to it.

    Traces of where a node comes from in Python are left out: they are paths of this machine.

    `outputs`: what it returns for them, flat; `path`: of the `.onnx`; the weights go to the same with `.data` behind
    it; `optimize`: whether the exporter rewrites the graph; it takes minutes for graphs of thousands of nodes.

    Raises:
        ExportFailedError: the exporter fails, or leaves out an input or output.
    """
    try:
        program = torch.onnx.export(module, tuple(inputs), dynamo=True, verbose=False, optimize=optimize)
    except Exception as error:  # an exporter may raise anything, and is named for it
        raise ExportFailedError.of(model, path.stem, error) from error
    for graph in (program.model.graph, *program.model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
        for value in (*graph.inputs, *getattr(graph, "initializers", {}).values()):
            value.metadata_props.clear()
    program.model.metadata_props.clear()
    _narrow(program.model.graph, outputs)
    program.save(str(path), external_data=True)
    _check(path, inputs, outputs, model)


def _narrow(graph: Any, outputs: Sequence[Any]) -> None:
    """Give outputs the types that the module returns: a sum of f16 or bf16 is exported in f32 (torch 2.13)."""
    narrow = {torch.float16: onnx_ir.DataType.FLOAT16, torch.bfloat16: onnx_ir.DataType.BFLOAT16}
    for index, (value, tensor) in enumerate(zip(graph.outputs, outputs, strict=False)):
        if tensor.dtype in narrow and value.dtype is onnx_ir.DataType.FLOAT:
            kind = narrow[tensor.dtype]
            cast = onnx_ir.Value(name=f"{value.name}_narrow", shape=value.shape, type=onnx_ir.TensorType(kind))
            graph.append(onnx_ir.node("Cast", [value], {"to": int(kind)}, outputs=[cast]))
            graph.outputs[index] = cast


def _check(path: Path, inputs: Sequence[Any], outputs: Sequence[Any], model: str) -> None:
    """The file takes and returns what the module does."""
    graph = onnx.load(str(path), load_external_data=False).graph
    for what, tensors, values in (("inputs", inputs, graph.input), ("outputs", outputs, graph.output)):
        wanted = [list(tensor.shape) for tensor in tensors]
        have = [[size.dim_value for size in value.type.tensor_type.shape.dim] for value in values]
        if have != wanted:
            raise ExportFailedError(
                f"{model}: {path.stem} cannot be exported: its {what} are {wanted}, and ONNX's are {have}"
            )
