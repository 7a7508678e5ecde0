"""Build steps of all kinds of models: running models in torch, converting their weights, exporting programs.

Compilers fuse operators and sum in different orders, so correct programs round at different places. For the expected
outputs, every operator is therefore computed in f64, and its result rounded once, to its own type. Trials of the model
find limits for the errors of correct programs. Some trials perturb every rounding by up to one unit roundoff more, or
every contraction of k products by the error of a sum of k terms in f32 (Monte Carlo arithmetic, Parker 1997:
https://web.cs.ucla.edu/~stott/mca/). Other trials enlarge the result of one contraction. They show a direction among
the outputs: along this direction, even a small error of that contraction exceeds the rounding of many values. Some
values are so close to a kink, such as a ReLU's, that rounding decides their side. If there are few such values, each is
flipped in a trial.
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
from iree_gauntlet.torch_models.agreement import TrialErrors, write_directions
from iree_gauntlet.torch_models.build_files import BUILD_FILE, Array, BuildRecord, Directions, ModelPlan, ProgramBuild
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF, DataFormat
from iree_gauntlet.torch_models.torch_side.decompositions import make_backward_decompositions
from iree_gauntlet.torch_models.torch_side.torch_tensors import cast, convert, find_type_name, write_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from torch import Tensor
    from torch.nn import Module

    from iree_gauntlet.torch_models.declarations import Declaration


_RUNS_PER_KIND = 6
# The trials' errors: of rounding every result, of summing products in f32, and of rounding the inputs of products to
# f32. If math fidelity narrows the inputs of products, the last kind of error is scaled.
_ERROR_KINDS = ("rounding", "sums", "products")
# The maximum and minimum of contractions with a trial; between them, the work of all trials together is limited.
# Work is measured in products; each value and each operator counts as a constant number of products.
_MAX_DIRECTIONS = 64
_MIN_DIRECTIONS = 8
_MAX_WORK = 2e11
_WORK_PER_VALUE = 40
_WORK_PER_OPERATOR = 1e6
# The number of values that are recorded for each trial, of all outputs together, and the minimum for each output.
_MAX_VALUES = 1 << 15
_MIN_VALUES = 64
# A value may flip if its distance from a kink is less than a factor times the rms of its errors. Each such value has a
# trial, unless more than _MAX_FLIPS may flip: then one in ten flips in any run, so flips are noise like any other.
_MAX_FLIP_DISTANCE = 4.0
_MAX_FLIPS = 64
_RELUS = {torch.ops.aten.relu, torch.ops.aten.relu_}
_COMPARISONS = {getattr(torch.ops.aten, name) for name in ("ge", "gt", "le", "lt")}
# The relative enlargement of a contraction's result: far above f32's rounding, but so small that effects are linear.
_RELATIVE_STEP = 2.0**-6
# The rms of a rounding error, in units of roundoff, for uniform errors and mantissas between 1 and 2.
_ROUNDING_RMS = 0.41
_SUMS = {torch.ops.aten.sum, torch.ops.aten.mean}
_REDUCTIONS = {*_SUMS, torch.ops.aten.var, torch.ops.aten.var_mean}
# The operators that trials decompose. All values of a row share the error of the row's sum, which a single operator
# would hide. If all else cancels, as in the gradient of the bias of attention's keys, only this error remains.
_NORMALIZATIONS = [
    getattr(torch.ops.aten, name)
    for name in ("_softmax", "_safe_softmax", "_log_softmax", "native_layer_norm", "native_group_norm")
]
_ROUNDOFFS = {getattr(torch, form.torch_type): UNIT_ROUNDOFF[form.element_type] for form in DataFormat}
# The tolerance between two runs of the same module, because torch may add in a different order each time.
REPEAT_RTOL = 1e-2
_UNTRANSLATED_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.:]+)', overload='(\w+)'\)>")
_PACKAGES = ("torch", "torchao", "transformers", "onnxscript", "onnx", "numpy")


class Spread:
    """The errors of outputs in trial runs."""

    def __init__(self, expected: Sequence[Tensor]) -> None:
        self._expected = expected
        self._runs: dict[str, list[list[tuple[float, float]]]] = {
            kind: [[] for _ in expected] for kind in (*_ERROR_KINDS, "flips")
        }

    def add(self, kind: str, outputs: Sequence[Tensor]) -> None:
        """Add the outputs of a run with one kind of error, or with a flip."""
        for index, (output, expected) in enumerate(zip(outputs, self._expected, strict=True)):
            if expected.numel():
                # For integers and bools, count 1 for each value that differs.
                is_float = expected.is_floating_point()
                difference = (output.double() - expected.double()).abs() if is_float else (output != expected).double()
                rms, peak = math.sqrt(float(difference.square().mean())), float(difference.max())
                self._runs[kind][index].append((rms, peak))

    def get_worst_errors(self, index: int) -> dict[str, tuple[float, float]]:
        """Return the largest rms and the largest peak of an output's errors in all runs, by kind, for `build.json`."""
        worst = {kind: np.max([(0.0, 0.0), *runs[index]], axis=0).tolist() for kind, runs in self._runs.items()}
        return {kind: (rms, peak) for kind, (rms, peak) in worst.items()}

    def get_typical_rms(self, index: int) -> float:
        """Return the median rms of an output's errors over the runs; without errors, the rms of one rounding in f32."""
        runs = (self._runs[kind][index] for kind in _ERROR_KINDS)
        errors = math.hypot(*(float(np.median([rms for rms, _ in errors_of_kind] or 0.0)) for errors_of_kind in runs))
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
) -> tuple[list[Tensor], list[Spread], TrialErrors]:
    """Return a module's outputs in a data format, and the errors of trials; `thorough` as for `_find_slopes`."""
    # In formats narrower than f32, the error of a sum is negligible compared to the rounding of its result.
    kinds = _ERROR_KINDS if form is DataFormat.FP32 else _ERROR_KINDS[:1]
    with _use_exported_attention():
        with _FormatMode() as exact_mode:
            outputs = run(module, inputs)
        spreads = [Spread(outputs), *([Spread(post(outputs))] if post else [])]
        positions = _choose_positions(outputs)

        def run_trial(mode: _FormatMode, kind: str) -> NDArray[np.float64]:
            with mode:
                trial_outputs = run(module, inputs)
            for spread, result in zip(spreads, [trial_outputs, *([post(trial_outputs)] if post else [])], strict=True):
                spread.add(kind, result)
            return _pick_values(trial_outputs, positions) - _pick_values(outputs, positions)

        errors: dict[str, list[NDArray[np.float64]]] = {kind: [] for kind in _ERROR_KINDS}
        powers = [torch.zeros_like(margin) for margin in exact_mode.margins]
        for seed in range(_RUNS_PER_KIND):
            for kind in kinds:
                mode = _FormatMode(kind, seed)
                errors[kind].append(run_trial(mode, kind))
                for power, trial, exact in zip(powers, mode.margins, exact_mode.margins, strict=True):
                    power.add_((trial - exact).square() / _RUNS_PER_KIND)
        kinks = [
            (number, int(position))
            for number, (margin, power) in enumerate(zip(exact_mode.margins, powers, strict=True))
            for position in (margin.square() < _MAX_FLIP_DISTANCE**2 * power).nonzero()[: _MAX_FLIPS + 1, 0]
        ]
        flips = [run_trial(_FormatMode(flip=kink), "flips") for kink in kinks] if len(kinks) <= _MAX_FLIPS else []
        slopes, names, count = _find_slopes(
            run, copy.deepcopy(module).to(torch.float32), cast(inputs, DataFormat.FP32), positions, thorough=thorough
        )
    scales = np.concatenate(
        [np.full(len(indices), spreads[0].get_typical_rms(index)) for index, indices in enumerate(positions)]
    )
    trials = TrialErrors(
        places=positions, slopes=slopes, errors=errors, flips=flips, scales=scales, names=names, contractions=count
    )
    return outputs, spreads, trials


def _find_slopes(
    run: Callable[[Module, Sequence[Tensor]], list[Tensor]],
    module: Module,
    inputs: Sequence[Tensor],
    positions: Sequence[NDArray[np.int64]],
    *,
    thorough: bool,
) -> tuple[list[NDArray[np.float64]], list[str], int]:
    """Return the outputs' derivatives by the scales of tried contractions, their names, and the number of contractions.

    `thorough`: True to try all contractions. Derivatives are computed in f32.
    """
    with _ContractionScaling() as counter:
        baseline = _pick_values(run(module, inputs), positions)
    count = len(counter.names)
    trial_count = count if thorough else min(count, limit_directions(counter.work))
    chosen_indices = sorted({round(index) for index in np.linspace(0, count - 1, trial_count)})
    slopes = []
    for index in chosen_indices:
        with _ContractionScaling(index):
            slopes.append((_pick_values(run(module, inputs), positions) - baseline) / _RELATIVE_STEP)
    return slopes, [f"contraction {index + 1} of {count} ({counter.names[index]})" for index in chosen_indices], count


def limit_directions(work: float) -> int:
    """Return the number of contractions to try; it depends on one run's work, not on time, so that it is repeatable."""
    return max(_MIN_DIRECTIONS, min(_MAX_DIRECTIONS, int(_MAX_WORK / max(1.0, work))))


class _FormatMode(TorchDispatchMode):  # type: ignore[misc]  # torch is not there to be read
    """A mode that computes each operator in f64, and rounds the results to the operator's own types."""

    def __init__(self, error: str = "", seed: int = 0, flip: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.margins: list[Tensor] = []
        self._error = error
        self._flip = flip
        # The result and input of each ReLU, by the result's address. The results are kept, so addresses stay unique.
        self._relus: dict[int, tuple[Tensor, Tensor]] = {}
        self._decompositions = make_backward_decompositions() | (get_decompositions(_NORMALIZATIONS) if error else {})
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket not in _RELUS:
            return self._run(func, args, kwargs or {})
        relu_input = args[0].clone()
        result = self._run(func, args, {})
        self._relus[result.data_ptr()] = (result, relu_input)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in self._decompositions and (func is not torch.ops.aten.native_batch_norm.default or args[5]):
            # In training, the exporter decomposes the operator in the same way.
            with self:
                result = self._decompositions[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        outputs = func(*args, **kwargs)
        floats = [leaf for leaf in tree_leaves(outputs) if _is_float(leaf)]
        has_float_inputs = any(map(_is_float, tree_leaves((args, kwargs))))
        if func.overloadpacket in _COMPARISONS and _is_float(args[0]):
            if self._flip and self._flip[0] == len(self.margins):
                decisions = outputs.flatten()
                decisions[self._flip[1]] = ~decisions[self._flip[1]]
                outputs = decisions.reshape(outputs.shape)
            _, operand = self._relus.get(args[0].data_ptr(), (None, args[0]))
            self.margins.append((operand.double() - args[1]).float().expand(outputs.shape).flatten())
            return outputs
        # Return torch's own result if the operator writes in place, returns a view, or takes or returns no floats.
        if func._schema.is_mutable or func.is_view or not floats or not has_float_inputs:  # noqa: SLF001 - there is no public interface
            return outputs
        dtype, products = floats[0].dtype, 0.0
        if self._error in ("sums", "products") and func.overloadpacket in flop_registry:
            products = flop_registry[func.overloadpacket](*args, **kwargs, out_val=outputs) / 2 / floats[0].numel()
        scale = 0.0
        if self._error == "sums" and func.overloadpacket in _REDUCTIONS:
            products = args[0].numel() / max(1, floats[0].numel())
            if func.overloadpacket in _SUMS:
                # A sum whose terms cancel still has the errors of all terms.
                scale = math.sqrt(products) * float(args[0].double().square().mean().sqrt())
                scale /= 1.0 if func.overloadpacket is torch.ops.aten.sum else max(1.0, products)
        wide_args, wide_kwargs = tree_map(lambda leaf: _widen(leaf, dtype), (args, kwargs))
        wide = func(*wide_args, **wide_kwargs)
        return tree_map(
            lambda exact, native: self._round_result(exact, native, products, scale) if _is_float(native) else native,
            wide,
            outputs,
        )

    def _round_result(self, exact: Tensor, native: Tensor, products: float, scale: float) -> Tensor:
        """Round a result to the operator's native type; an exact value gets no rounding error."""
        if products:
            # The mean square of partial sums is 1/2 of the last if they grow with the root of their number (cancelling
            # terms), 1/3 if they grow linearly (other terms). The 2 of products is because both inputs are rounded.
            units = math.sqrt(products / 2 if self._error == "sums" else 2)
            size = (2 / 3 * exact.square() + scale**2 if scale else exact.square().mean()).sqrt()
            error = _ROUNDING_RMS * UNIT_ROUNDOFF["f32"] * units * size
            exact = exact + error * torch.randn(exact.shape, generator=self._generator)
        rounded = exact.to(native.dtype)
        if self._error != "rounding" or native.dtype not in _ROUNDOFFS:
            return rounded
        error = (2 * torch.rand(exact.shape, generator=self._generator) - 1) * _ROUNDOFFS[native.dtype]
        return torch.where(rounded.double() == exact, rounded, (exact * (1 + error)).to(native.dtype))


class _ContractionScaling(TorchDispatchMode):  # type: ignore[misc]  # torch is not there to be read
    """A mode that counts contractions, and enlarges the result of one; `work` is all operators' work in products."""

    def __init__(self, scaled_index: int = -1) -> None:
        super().__init__()
        self._scaled_index = scaled_index
        self.names: list[str] = []
        self.work = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        results = [leaf for leaf in tree_leaves(returned) if _is_float(leaf)]
        self.work += _WORK_PER_OPERATOR
        if not func.is_view:
            self.work += _WORK_PER_VALUE * sum(result.numel() for result in results)
        if func.overloadpacket in flop_registry:
            self.work += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=returned) / 2
            if len(self.names) == self._scaled_index:
                for result in results:
                    result.mul_(1 + _RELATIVE_STEP)
            self.names.append(func.overloadpacket.__name__)
        return returned


@contextmanager
def _use_exported_attention() -> Iterator[None]:
    """Compute attention like the exported program: in single operators, in the model's type."""
    cuda = torch.backends.cuda
    was_allowed = cuda.fp16_bf16_reduction_math_sdp_allowed()
    cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        cuda.allow_fp16_bf16_reduction_math_sdp(was_allowed)


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _widen(leaf: Any, dtype: torch.dtype) -> Any:
    """Return an operator's argument in f64; like in the program, a number is first rounded to the result's type."""
    if _is_float(leaf):
        return leaf.double()
    if isinstance(leaf, float):
        return float(torch.tensor(leaf, dtype=torch.float64).to(dtype))
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf


def _choose_positions(outputs: Sequence[Tensor]) -> list[NDArray[np.int64]]:
    """Return positions of some values of each float output, deterministically."""
    sizes = [output.numel() if output.is_floating_point() else 0 for output in outputs]
    share = min(1.0, _MAX_VALUES / max(1, sum(sizes)))
    generator = np.random.default_rng(0)
    return [
        np.unique(generator.integers(size, size=max(_MIN_VALUES, math.ceil(size * share))))
        if share < 1 and size > _MIN_VALUES
        else np.arange(size)
        for size in sizes
    ]


def _pick_values(outputs: Sequence[Tensor], positions: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    return np.concatenate(
        [
            output.reshape(-1)[torch.from_numpy(indices)].double().numpy()
            for output, indices in zip(outputs, positions, strict=True)
        ]
    )


class BuildSteps:
    """Steps of one build, and their results for `build.json`."""

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
    def is_f32(self) -> bool:
        """True if the data format is f32: nothing is then rounded."""
        return self.form is DataFormat.FP32

    @contextmanager
    def time_part(self, part: str, progress: str) -> Iterator[None]:
        """Report progress on standard error, and add the elapsed time to a part of `seconds`."""
        sys.stderr.write(f"{progress}\n")
        sys.stderr.flush()
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - begin

    def attribute_torch_errors(self, label: str) -> AbstractContextManager[None]:
        """Attribute exceptions of the model's modules to the model."""
        return self.model.locate_errors(f"{label} failed in torch, with {self.label}")

    def run_eager(self, module: Module, inputs: Sequence[Tensor], label: str) -> list[Tensor]:
        """Return a module's output tensors in torch eager, in order."""
        with self.attribute_torch_errors(label), torch.no_grad():
            returned = module(*inputs)
        return self.check_tensors(tree_leaves(returned), f"what {label} returned")

    def check_tensors(self, tensors: Sequence[Tensor], label: str) -> list[Tensor]:
        """Return the tensors, after checking that IREE accepts their types."""
        if not tensors:
            raise self.model.make_error(f"{label}: it contains no tensor")
        for index, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                raise self.model.make_error(
                    f"{label}: item {index} is of type {type(tensor).__qualname__}, not a torch.Tensor",
                    "modules return a tensor, or a list, tuple or dictionary of tensors",
                )
            if not find_type_name(tensor) or tensor.is_sparse:
                raise self.model.make_error(
                    f"{label}: tensor {index} is of type {tensor.dtype}, which IREE does not support"
                )
        return list(tensors)

    def require_repeatable(self, first: Sequence[Tensor], second: Sequence[Tensor]) -> None:
        """Reject a module whose outputs differ at a second call, because they cannot be compared with IREE's."""
        for index, (output, repeat) in enumerate(zip(first, second, strict=True)):
            if not torch.allclose(output.double(), repeat.double(), rtol=REPEAT_RTOL, atol=1e-6, equal_nan=True):
                raise self.model.make_error(
                    f"output {index} differs at a second call with the same inputs",
                    "a compared module must not draw random numbers or change its state",
                )

    def write_reference(self, outputs: Sequence[Tensor]) -> None:
        """Write the first program's outputs in f32."""
        self.record = replace(self.record, reference=write_arrays(outputs, self.folder, "reference"))

    def convert(self, modules: Sequence[Module]) -> None:
        """Convert modules to the data format, in place."""
        if not self.is_f32:
            with self.time_part("build", f"rounding weights to {self.form.label}"):
                self.record = replace(self.record, weight_error=convert(modules, self.form))
            gc.collect()

    def compute_expected(
        self,
        name: str,
        module: Module,
        inputs: Sequence[Tensor],
        run: Callable[[Module, Sequence[Tensor]], list[Tensor]],
        post: Callable[[Sequence[Tensor]], list[Tensor]] | None = None,
    ) -> list[Tensor]:
        """Return a program's expected outputs (see `_compute_in_format`); `export` records their limits."""
        with self.time_part("eager", f"running {name} in {self.form.label}, and with different rounding"):
            outputs, self._spreads[name], trial_errors = _compute_in_format(
                run, module, inputs, self.form, post, thorough=self._thorough
            )
        self._directions[name] = write_directions(trial_errors, self.folder / f"{name}.directions.npz")
        return outputs

    def write_expected(
        self, name: str, outputs: Sequence[Tensor], stem: str, *, of_host: bool = False
    ) -> tuple[Array, ...]:
        """Write a program's expected outputs with error limits; `of_host`: of the module after the device instead."""
        arrays = write_arrays(outputs, self.folder, stem)
        if name not in self._spreads:
            return arrays
        spread = self._spreads[name][of_host]
        return tuple(replace(array, errors=spread.get_worst_errors(index)) for index, array in enumerate(arrays))

    def export(
        self, name: str, module: Module, inputs: Sequence[Tensor], outputs: Sequence[Tensor], *, optimize: bool = True
    ) -> None:
        """Export a program, with its inputs and expected outputs."""
        with self.time_part("export", f"exporting {name}"), torch.no_grad():
            path = self.folder / f"{name}.onnx"
            export_program(module, inputs, outputs, path, model=self.model.name, optimize=optimize)
        input_arrays, output_arrays = (
            write_arrays(inputs, self.folder, f"{name}.input"),
            self.write_expected(name, outputs, f"{name}.output"),
        )
        program = ProgramBuild(name, path.name, input_arrays, output_arrays, self._directions.get(name))
        self.record = replace(self.record, programs=(*self.record.programs, program))

    def write_record(self, record: BuildRecord) -> None:
        """Write `build.json`, the last of all files, with times and packages' versions."""
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
    def from_exception(cls, model: str, program: str, error: Exception) -> ExportFailedError:
        """Return the error for an exporter's exception, and print the traceback to standard error."""
        traceback.print_exception(error, file=sys.stderr)
        chain = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) and isinstance(cause, Exception):
            chain.append(cause)
        operators = [match for link in chain for match in [_UNTRANSLATED_OPERATOR.search(str(link))] if match]
        if operators:
            name = ".".join(operators[-1].groups())
            return cls(f"{model}: {program} cannot be exported: ONNX has no translation of {name}")
        message = next((line.strip() for line in str(chain[-1]).splitlines() if line.strip()), "")
        return cls(f"{model}: {program} cannot be exported: {type(chain[-1]).__name__}: {message}")


def export_program(
    module: Module,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    path: Path,
    *,
    model: str,
    optimize: bool = True,
) -> None:
    """Export a module with fixed shapes to ONNX; its weights are in a file next to the ONNX file.

    The nodes' Python stack traces are omitted, because they contain this machine's paths. `optimize`: True to let the
    exporter simplify the graph, which takes minutes for graphs of thousands of nodes.

    Raises:
        ExportFailedError: the exporter fails, or omits an input or output.
    """
    try:
        program = torch.onnx.export(module, tuple(inputs), dynamo=True, verbose=False, optimize=optimize)
    except Exception as error:  # an exporter may raise anything
        raise ExportFailedError.from_exception(model, path.stem, error) from error
    for graph in (program.model.graph, *program.model.functions.values()):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
        for value in (*graph.inputs, *getattr(graph, "initializers", {}).values()):
            value.metadata_props.clear()
    program.model.metadata_props.clear()
    _restore_output_types(program.model.graph, outputs)
    program.save(str(path), external_data=True)
    # Require the module's inputs and outputs in the file.
    graph = onnx.load(str(path), load_external_data=False).graph
    for role, tensors, values in (("inputs", inputs, graph.input), ("outputs", outputs, graph.output)):
        expected = [list(tensor.shape) for tensor in tensors]
        actual = [[size.dim_value for size in value.type.tensor_type.shape.dim] for value in values]
        if actual != expected:
            raise ExportFailedError(
                f"{model}: {path.stem} cannot be exported: its {role} are {expected}, and ONNX's are {actual}"
            )


def _restore_output_types(graph: Any, outputs: Sequence[Tensor]) -> None:
    """Give outputs the types that the module returns, because torch 2.13 exports a sum of f16 or bf16 in f32."""
    narrow_types = {torch.float16: onnx_ir.DataType.FLOAT16, torch.bfloat16: onnx_ir.DataType.BFLOAT16}
    for index, (value, tensor) in enumerate(zip(graph.outputs, outputs, strict=False)):
        if tensor.dtype in narrow_types and value.dtype is onnx_ir.DataType.FLOAT:
            narrow_type = narrow_types[tensor.dtype]
            cast = onnx_ir.Value(name=f"{value.name}_narrow", shape=value.shape, type=onnx_ir.TensorType(narrow_type))
            graph.append(onnx_ir.node("Cast", [value], {"to": int(narrow_type)}, outputs=[cast]))
            graph.outputs[index] = cast
