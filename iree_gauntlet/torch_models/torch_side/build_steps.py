"""The steps that building any kind of model is made of: running it in torch, converting its weights, exporting it.

What a model should return in its data format: no two correct programs round at the same places, as compilers fuse
operators, and sum in orders of their own. So the reference is the model with every operator in f64 and rounded once, to
the type that it returns; and how far a correct program may be from it is tried on the model itself. Runs in which every
rounding goes astray by up to one unit roundoff more, or every contraction of k products by the error of a sum of k in
f32, show what becomes of that at the outputs (Monte Carlo arithmetic, Parker 1997:
https://web.cs.ucla.edu/~stott/mca/). The same model with one contraction's result larger shows what an error there
looks like: a direction among the outputs, along which small errors stand out of the rounding of many values. Where few
values lie so near a kink, such as that of a ReLU, that rounding decides on which side, each is tried on the other one.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import platform
import re
import sys
import time
import traceback
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir
import torch
from torch._decomp import get_decompositions
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.agreement import TriedErrors, write_directions
from iree_gauntlet.torch_models.build_files import BUILD_FILE, Array, BuildRecord, BuiltProgram, Directions, ModelPlan
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF, DataFormat
from iree_gauntlet.torch_models.torch_side.decompositions import make_backward_decompositions
from iree_gauntlet.torch_models.torch_side.torch_tensors import cast, convert, find_type_name, write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor
    from torch.nn import Module

    from iree_gauntlet.torch_models.declarations import Declaration


_RUNS = 6
# Of every operator's result, of sums of products in f32, and of products whose inputs are rounded to f32's digits: the
# last is so much larger where math fidelity narrows these.
_ERRORS = ("rounding", "sums", "products")
# Contractions that are tried, evenly spread where there are more: so many at most, and so many of the largest models.
# Between these the work of all runs together is limited, in products; a value and an operator are as much work as so
# many products.
_DIRECTIONS = 64
_LEAST_DIRECTIONS = 8
_WORK = 2e11
_WORK_OF_VALUE = 40
_WORK_OF_OPERATOR = 1e6
# Values of the outputs that are kept of each contraction, and of each output at least.
_VALUES = 1 << 15
_LEAST_VALUES = 64
# Values may flip that are less than so many times the rms of their errors away from a kink. Each is tried by itself;
# none where there are more: one in ten flips then in any run, so that they are like other noise.
_NEAR = 4.0
_FLIPS = 64
_RELUS = {torch.ops.aten.relu, torch.ops.aten.relu_}
_COMPARISONS = {getattr(torch.ops.aten, name) for name in ("ge", "gt", "le", "lt")}
# How much larger a contraction's result is made: far above f32's rounding, and small enough to be linear.
_STEP = 2.0**-6
# Rms of a rounding error, in units of roundoff: uniform, over mantissas between 1 and 2.
_ROUNDING = 0.41
_SUMS = {torch.ops.aten.sum, torch.ops.aten.mean}
_REDUCTIONS = {*_SUMS, torch.ops.aten.var, torch.ops.aten.var_mean}
# In one piece the errors of their sums would be those of single values, which all values of a row have alike. Where
# what is left after them cancels, as in the gradient of the bias of attention's keys, it is nothing but these.
_NORMALIZATIONS = [
    getattr(torch.ops.aten, name)
    for name in ("_softmax", "_safe_softmax", "_log_softmax", "native_layer_norm", "native_group_norm")
]
_ROUNDOFFS = {getattr(torch, form.torch_type): UNIT_ROUNDOFF[form.element_type] for form in DataFormat}
# Two runs of torch may add in another order.
REPEATABLE = 1e-2
_NO_TRANSLATION = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.:]+)', overload='(\w+)'\)>")
_PACKAGES = ("torch", "torchao", "transformers", "onnxscript", "onnx", "numpy")


class Spread:
    """How far outputs go astray."""

    def __init__(self, expected: Sequence[Tensor]) -> None:
        self._expected = expected
        self._runs: dict[str, list[list[tuple[float, float]]]] = {
            kind: [[] for _ in expected] for kind in (*_ERRORS, "flips")
        }

    def add(self, kind: str, outputs: Sequence[Tensor]) -> None:
        """Outputs of a run with errors of a kind, or a flip."""
        for index, (found, wanted) in enumerate(zip(outputs, self._expected, strict=True)):
            if wanted.numel():
                # Of what is no number, whether it is another one.
                is_float = wanted.is_floating_point()
                difference = (found.double() - wanted.double()).abs() if is_float else (found != wanted).double()
                rms, peak = math.sqrt(float(difference.square().mean())), float(difference.max())
                self._runs[kind][index].append((rms, peak))

    def of(self, index: int) -> dict[str, tuple[float, float]]:
        """For `build.json`: rms and peak of an output's errors in the worst run, by kind."""
        worst = {kind: np.max([(0.0, 0.0), *runs[index]], axis=0).tolist() for kind, runs in self._runs.items()}
        return {kind: (rms, peak) for kind, (rms, peak) in worst.items()}

    def scale(self, index: int) -> float:
        """The rms of an output's errors in most runs, without what few of them have; of one rounding where none is."""
        runs = (self._runs[kind][index] for kind in _ERRORS)
        errors = math.hypot(*(float(np.median([rms for rms, _ in found] or 0.0)) for found in runs))
        output = self._expected[index].double()
        return errors or UNIT_ROUNDOFF["f32"] * float(output.square().mean().sqrt()) or 1.0


def _compute_in_format(
    run: Callable[[Module, Sequence[Tensor]], list[Tensor]],
    module: Module,
    inputs: Sequence[Tensor],
    form: DataFormat,
    post: Callable[[Sequence[Tensor]], list[Tensor]] | None = None,
    *,
    thorough: bool = False,
) -> tuple[list[Tensor], list[Spread], TriedErrors]:
    """What a module in a data format returns, and what may become of that; `thorough` as of `_find_slopes`."""
    # In narrower formats the sums' errors are nothing next to the rounding of their results.
    kinds = _ERRORS if form is DataFormat.FP32 else _ERRORS[:1]
    with _run_attention_as_exported():
        with _InFormat() as exact:
            outputs = run(module, inputs)
        spreads = [Spread(outputs), *([Spread(post(outputs))] if post else [])]
        places = _choose_places(outputs)

        def tried(mode: _InFormat, kind: str) -> NDArray[np.float64]:
            with mode:
                found = run(module, inputs)
            for spread, result in zip(spreads, [found, *([post(found)] if post else [])], strict=True):
                spread.add(kind, result)
            return _pick_values(found, places) - _pick_values(outputs, places)

        errors: dict[str, list[NDArray[np.float64]]] = {kind: [] for kind in _ERRORS}
        moved = [torch.zeros_like(margin) for margin in exact.margins]
        for seed in range(_RUNS):
            for kind in kinds:
                mode = _InFormat(kind, seed)
                errors[kind].append(tried(mode, kind))
                for power, one, other in zip(moved, mode.margins, exact.margins, strict=True):
                    power.add_((one - other).square() / _RUNS)
        near = [
            (number, int(place))
            for number, (margin, power) in enumerate(zip(exact.margins, moved, strict=True))
            for place in (margin.square() < _NEAR**2 * power).nonzero()[: _FLIPS + 1, 0]
        ]
        flips = [tried(_InFormat(flip=at), "flips") for at in near] if len(near) <= _FLIPS else []
        slopes, names, count = _find_slopes(
            run, copy.deepcopy(module).to(torch.float32), cast(inputs, DataFormat.FP32), places, thorough=thorough
        )
    scales = np.concatenate([np.full(len(at), spreads[0].scale(index)) for index, at in enumerate(places)])
    tried_errors = TriedErrors(
        places=places, slopes=slopes, errors=errors, flips=flips, scales=scales, names=names, contractions=count
    )
    return outputs, spreads, tried_errors


def _find_slopes(
    run: Callable[[Module, Sequence[Tensor]], list[Tensor]],
    module: Module,
    inputs: Sequence[Tensor],
    places: Sequence[NDArray[np.int64]],
    *,
    thorough: bool,
) -> tuple[list[NDArray[np.float64]], list[str], int]:
    """What changes in values of the outputs as contractions' results grow, in f32; which these are, and of how many.

    `thorough`: whether all are tried.
    """
    with _Larger() as counted:
        before = _pick_values(run(module, inputs), places)
    count = len(counted.names)
    tried = count if thorough else min(count, limit_directions(counted.work))
    chosen = sorted({round(at) for at in np.linspace(0, count - 1, tried)})
    slopes = []
    for at in chosen:
        with _Larger(at):
            slopes.append((_pick_values(run(module, inputs), places) - before) / _STEP)
    return slopes, [f"contraction {at + 1} of {count} ({counted.names[at]})" for at in chosen], count


def limit_directions(work: float) -> int:
    """How many contractions are tried of a model, by the work of one run alone: a clock has no part in a verdict."""
    return max(_LEAST_DIRECTIONS, min(_DIRECTIONS, int(_WORK / max(1.0, work))))


class _InFormat(TorchDispatchMode):  # type: ignore[misc]  # torch is not there to be read
    """Each operator in f64, its results rounded to the types that it returns."""

    def __init__(self, error: str = "", seed: int = 0, flip: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.margins: list[Tensor] = []
        self._error = error
        self._flip = flip
        # Results of ReLUs and what these were given, by where the results lie: kept, so that nothing else does.
        self._relus: dict[int, tuple[Tensor, Tensor]] = {}
        self._parts = make_backward_decompositions() | (get_decompositions(_NORMALIZATIONS) if error else {})
        self._random = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket not in _RELUS:
            return self._run(func, args, kwargs or {})
        given = args[0].clone()
        result = self._run(func, args, {})
        self._relus[result.data_ptr()] = (result, given)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in self._parts and (func is not torch.ops.aten.native_batch_norm.default or args[5]):
            # As the exporter takes it apart, in training.
            with self:
                made = self._parts[func](*args, **kwargs)
            if made is not NotImplemented:
                return made
        returned = func(*args, **kwargs)
        floats = [leaf for leaf in tree_leaves(returned) if _is_float(leaf)]
        taken = any(map(_is_float, tree_leaves((args, kwargs))))
        if func.overloadpacket in _COMPARISONS and _is_float(args[0]):
            if self._flip and self._flip[0] == len(self.margins):
                decided = returned.flatten()
                decided[self._flip[1]] = ~decided[self._flip[1]]
                returned = decided.reshape(returned.shape)
            _, one = self._relus.get(args[0].data_ptr(), (None, args[0]))
            self.margins.append((one.double() - args[1]).float().expand(returned.shape).flatten())
            return returned
        # What is written in place, and views of it, are as torch has them.
        if func._schema.is_mutable or func.is_view or not floats or not taken:  # noqa: SLF001 - not to be had else
            return returned
        kind, products = floats[0].dtype, 0.0
        if self._error in ("sums", "products") and func.overloadpacket in flop_registry:
            products = flop_registry[func.overloadpacket](*args, **kwargs, out_val=returned) / 2 / floats[0].numel()
        scale = 0.0
        if self._error == "sums" and func.overloadpacket in _REDUCTIONS:
            products = args[0].numel() / max(1, floats[0].numel())
            if func.overloadpacket in _SUMS:
                # What cancels has the errors of its terms.
                scale = math.sqrt(products) * float(args[0].double().square().mean().sqrt())
                scale /= 1.0 if func.overloadpacket is torch.ops.aten.sum else max(1.0, products)
        wide_args, wide_kwargs = tree_map(lambda leaf: _widen(leaf, kind), (args, kwargs))
        wide = func(*wide_args, **wide_kwargs)
        return tree_map(
            lambda exact, own: self._rounded(exact, own, products, scale) if _is_float(own) else own, wide, returned
        )

    def _rounded(self, exact: Tensor, own: Tensor, products: float, scale: float) -> Tensor:
        """In the type of the operator's own result; what needs no rounding has no error of it."""
        if products:
            # Partial sums grow with the root of their number, and evenly towards what does not cancel: their squares
            # are a third in the mean then, not half. Both inputs of products are rounded.
            units = math.sqrt(products / 2 if self._error == "sums" else 2)
            size = (2 / 3 * exact.square() + scale**2 if scale else exact.square().mean()).sqrt()
            error = _ROUNDING * UNIT_ROUNDOFF["f32"] * units * size
            exact = exact + error * torch.randn(exact.shape, generator=self._random)
        rounded = exact.to(own.dtype)
        if self._error != "rounding" or own.dtype not in _ROUNDOFFS:
            return rounded
        error = (2 * torch.rand(exact.shape, generator=self._random) - 1) * _ROUNDOFFS[own.dtype]
        return torch.where(rounded.double() == exact, rounded, (exact * (1 + error)).to(own.dtype))


class _Larger(TorchDispatchMode):  # type: ignore[misc]  # torch is not there to be read
    """Counts contractions, and makes the result of one of them larger; `work` is that of all operators, in products."""

    def __init__(self, at: int = -1) -> None:
        super().__init__()
        self._at = at
        self.names: list[str] = []
        self.work = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        results = [leaf for leaf in tree_leaves(returned) if _is_float(leaf)]
        self.work += _WORK_OF_OPERATOR
        if not func.is_view:
            self.work += _WORK_OF_VALUE * sum(result.numel() for result in results)
        if func.overloadpacket in flop_registry:
            self.work += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=returned) / 2
            if len(self.names) == self._at:
                for result in results:
                    result.mul_(1 + _STEP)
            self.names.append(func.overloadpacket.__name__)
        return returned


@contextmanager
def _run_attention_as_exported() -> Iterator[None]:
    """Attention in single operators, in the model's own type, as the exporter writes it."""
    cuda = torch.backends.cuda
    before = cuda.fp16_bf16_reduction_math_sdp_allowed()
    cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        cuda.allow_fp16_bf16_reduction_math_sdp(before)


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _widen(leaf: Any, kind: torch.dtype) -> Any:
    """An argument of an operator in f64; a number has the type that it has in the program, that of the result."""
    if _is_float(leaf):
        return leaf.double()
    if isinstance(leaf, float):
        return float(torch.tensor(leaf, dtype=torch.float64).to(kind))
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf


def _choose_places(outputs: Sequence[Tensor]) -> list[NDArray[np.int64]]:
    """Places of some values of each float output, the same every time."""
    sizes = [output.numel() if output.is_floating_point() else 0 for output in outputs]
    share = min(1.0, _VALUES / max(1, sum(sizes)))
    random = np.random.default_rng(0)
    return [
        np.unique(random.integers(size, size=max(_LEAST_VALUES, math.ceil(size * share))))
        if share < 1 and size > _LEAST_VALUES
        else np.arange(size)
        for size in sizes
    ]


def _pick_values(outputs: Sequence[Tensor], places: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    return np.concatenate(
        [output.reshape(-1)[torch.from_numpy(at)].double().numpy() for output, at in zip(outputs, places, strict=True)]
    )


class BuildSteps:
    """Steps of one build, and what they leave for `build.json`."""

    model: Declaration

    def __init__(
        self, plan: ModelPlan, label: str, form: DataFormat = DataFormat.FP32, *, thorough: bool = False
    ) -> None:
        if not plan.output:
            raise UsageError("the plan names no folder for its output")
        self.label = label
        self.form = form
        self._thorough = thorough
        self.folder = Path(plan.output)
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / BUILD_FILE).unlink(missing_ok=True)
        self.record = BuildRecord()
        self._spreads: dict[str, list[Spread]] = {}
        self._directions: dict[str, Directions | None] = {}
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

    def eager(self, module: Module, inputs: Sequence[Tensor], what: str) -> list[Tensor]:
        """What a module returns in torch eager: its tensors, in order."""
        with self.running(what), torch.no_grad():
            returned = module(*inputs)
        return self.checked(tree_leaves(returned), f"what {what} returned")

    def checked(self, tensors: Sequence[Tensor], what: str) -> list[Tensor]:
        """Tensors of types that IREE takes."""
        if not tensors:
            raise self.model.problem(f"{what}: there is no tensor in it")
        for index, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                raise self.model.problem(
                    f"{what}: item {index} is of type {type(tensor).__qualname__}, no torch.Tensor",
                    "modules return a tensor, or a list, tuple or dictionary of tensors",
                )
            if not find_type_name(tensor) or tensor.is_sparse:
                raise self.model.problem(f"{what}: tensor {index} is of type {tensor.dtype}, which IREE does not take")
        return list(tensors)

    def require_repeatable(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
        """Refuse a module that draws random numbers, or keeps something from call to call: nothing can equal that."""
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            if not torch.allclose(one.double(), other.double(), rtol=REPEATABLE, atol=1e-6, equal_nan=True):
                raise self.model.problem(
                    f"output {index} is another one at a second call with the same inputs",
                    "a module that is compared must not draw random numbers, or change itself",
                )

    def refer_to(self, outputs: Sequence[Tensor]) -> None:
        """Keep what the first program returns in f32."""
        self.record = replace(self.record, reference=write_arrays(outputs, self.folder, "reference"))

    def convert(self, modules: Sequence[Module]) -> None:
        """Bring modules to the data format, in place."""
        if not self.exact:
            with self.timed("build", f"rounding weights to {self.form.label}"):
                self.record = replace(self.record, weight_error=convert(modules, self.form))
            gc.collect()

    def in_format(
        self,
        name: str,
        module: Module,
        inputs: Sequence[Tensor],
        run: Callable[[Module, Sequence[Tensor]], list[Tensor]],
        post: Callable[[Sequence[Tensor]], list[Tensor]] | None = None,
    ) -> list[Tensor]:
        """What a program should return (see `_compute_in_format`); `export` keeps how near that has to be."""
        with self.timed("eager", f"running {name} in {self.form.label}, and with other rounding"):
            outputs, self._spreads[name], found = _compute_in_format(
                run, module, inputs, self.form, post, thorough=self._thorough
            )
        self._directions[name] = write_directions(found, self.folder / f"{name}.directions.npz")
        return outputs

    def written(self, name: str, outputs: Sequence[Tensor], stem: str, *, after: bool = False) -> tuple[Array, ...]:
        """Write what a program should return, or what the host makes of it after, with the errors that it may have."""
        arrays = write_arrays(outputs, self.folder, stem)
        if name not in self._spreads:
            return arrays
        spread = self._spreads[name][after]
        return tuple(replace(array, errors=spread.of(index)) for index, array in enumerate(arrays))

    def export(
        self, name: str, module: Module, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *, optimize: bool = True
    ) -> None:
        """Export a program, with its inputs and what it should make of them."""
        with self.timed("export", f"exporting {name}"), torch.no_grad():
            path = self.folder / f"{name}.onnx"
            export_program(module, inputs, outputs, path, model=self.model.name, optimize=optimize)
        taken, given = write_arrays(inputs, self.folder, f"{name}.input"), self.written(name, outputs, f"{name}.output")
        program = BuiltProgram(name, path.name, taken, given, self._directions.get(name))
        self.record = replace(self.record, programs=(*self.record.programs, program))

    def write_record(self, record: BuildRecord) -> None:
        """Write `build.json`, the last of all files, with what made it."""
        seconds = {part: round(seconds, 3) for part, seconds in self.seconds.items()}
        versions = {"python": platform.python_version(), **{name: _find_version(name) for name in _PACKAGES}}
        record = replace(record, versions=versions, seconds=seconds)
        write_atomic(self.folder / BUILD_FILE, json.dumps(record.as_dict(), indent=1) + "\n")


def _find_version(package: str) -> str | None:
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
    module: Module,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    path: Path,
    *,
    model: str,
    optimize: bool = True,
) -> None:
    """Export a module with fixed shapes to ONNX, its weights in a file next to it.

    Traces of where a node comes from in Python are left out: they are paths of this machine. `optimize`: whether the
    exporter rewrites the graph, which takes minutes for graphs of thousands of nodes.

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
    # The file takes and returns what the module does.
    graph = onnx.load(str(path), load_external_data=False).graph
    for what, tensors, values in (("inputs", inputs, graph.input), ("outputs", outputs, graph.output)):
        wanted = [list(tensor.shape) for tensor in tensors]
        have = [[size.dim_value for size in value.type.tensor_type.shape.dim] for value in values]
        if have != wanted:
            raise ExportFailedError(
                f"{model}: {path.stem} cannot be exported: its {what} are {wanted}, and ONNX's are {have}"
            )


def _narrow(graph: Any, outputs: Sequence[Tensor]) -> None:
    """Give outputs the types that the module returns: a sum of f16 or bf16 is exported in f32 (torch 2.13)."""
    narrow = {torch.float16: onnx_ir.DataType.FLOAT16, torch.bfloat16: onnx_ir.DataType.BFLOAT16}
    for index, (value, tensor) in enumerate(zip(graph.outputs, outputs, strict=False)):
        if tensor.dtype in narrow and value.dtype is onnx_ir.DataType.FLOAT:
            kind = narrow[tensor.dtype]
            cast = onnx_ir.Value(name=f"{value.name}_narrow", shape=value.shape, type=onnx_ir.TensorType(kind))
            graph.append(onnx_ir.node("Cast", [value], {"to": int(kind)}, outputs=[cast]))
            graph.outputs[index] = cast
