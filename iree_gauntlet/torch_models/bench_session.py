"""A benchmark: its steps, their execution, and the results that steps pass to later steps.

The steps after the export are planned when the export is complete, because a generative model gives two programs.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iree_gauntlet.cases import MAIN, Origin, Verdict
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan import block_step
from iree_gauntlet.engine.rounds.taken_rounds import get_gpu
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.machine.disturbance import RoundWatch
from iree_gauntlet.measuring.machine.machine_state import list_benchmark_warnings
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.results import Result, Samples, shorten
from iree_gauntlet.settings import format_path
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import Step, StepInput
from iree_gauntlet.torch_models import tracing
from iree_gauntlet.torch_models.agreement import (
    OutputErrors,
    compare_tensors,
    find_limits,
    fit_gains,
    measure_relative_error,
)
from iree_gauntlet.torch_models.build_files import read_tensors
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF
from iree_gauntlet.torch_models.model_registry import find_sources
from iree_gauntlet.torch_models.model_session import ModelSession
from iree_gauntlet.torch_models.peers import PeerEnvironment, describe_peer, make_iree_rounds, measure_peers
from iree_gauntlet.torch_models.torch_chain import (
    GENERATIVE_WORKER,
    MODULE_WORKER,
    PIPELINE_WORKER,
    CallMeasurement,
    TorchChain,
    hash_files,
    list_runnable_files,
    make_worker_command,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.torch_models.bench_options import BenchOptions
    from iree_gauntlet.torch_models.build_files import BuildPlan, BuildRecord, TokenLoop
    from iree_gauntlet.torch_models.model_registry import BenchmarkModel
    from iree_gauntlet.torch_models.torch_chain import CompiledProgram


DIALECT = "bench"
# The roles of the benchmark steps after the main benchmark step.
PEERS = "against"
TRACE = "trace"
_MS_PER_S = 1000.0
# The time limit of a loop is this factor times the first call's time times the number of calls.
_TIMEOUT_FACTOR = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchChain(TorchChain):
    """The steps of one benchmark."""

    model: BenchmarkModel
    plan: BuildPlan
    options: BenchOptions

    dialect: ClassVar[str] = DIALECT
    builder: ClassVar[str] = "building"

    @property
    def names(self) -> tuple[str, str]:
        """The model's name, and a short name for this benchmark's options: `tiny`, `base-training-Fp16-O3`."""
        options = self.options
        words = [options.config or "model"]
        words += ["training"] if options.training else []
        words += [options.dataformat.value] if options.dataformat.value != "Fp32" else []
        words += [options.math_fidelity] if options.math_fidelity != "HiFi4" else []
        words += [] if options.backend_opt_level is None else [f"O{options.backend_opt_level}"]
        words += [] if options.layers is None else [f"{options.layers}layers"]
        words += [] if options.microbatch is None else [f"mb{options.microbatch}"]
        words += [] if options.microbatch_count == 1 else [f"{options.microbatch_count}mbs"]
        words += [] if options.chips == 1 else [f"{options.chips or 'all'}chips"]
        return self.model.name, "-".join(words)

    @property
    def origin(self) -> Origin:
        """The source location of the model."""
        return Origin(str(format_path(self.model.file)), self.model.name)

    def export(self) -> Step:
        """Plan the step that builds the model with torch and exports it."""
        files = find_sources(self.model)
        ingredients = {"kind": "export", "program": hash_files(files, self.model.file.parent)}
        return self.plan_export(MAIN, self.plan, ingredients, files)

    def plan_after_export(self, build: BuildRecord, hashes: Mapping[str, str]) -> tuple[Step, ...]:
        """Plan the steps after the export."""
        steps: list[Step] = []
        runnable: list[StepInput] = []
        for number, program in enumerate(build.programs):
            role = program.name if number else MAIN
            onnx = self.get_export_folder() / program.onnx
            content = make_key({name: sha for name, sha in hashes.items() if name.startswith(program.onnx)})
            import_step = self.plan_import(role, onnx, content, MAIN)
            compile_step = self.plan_compile(role, "_".join(self.names), self.flags, onnx, content, import_step)
            steps += [import_step, compile_step]
            runnable += list_runnable_files(compile_step, import_step)
        files = [array for program in build.programs for array in (*program.inputs, *program.outputs)]
        inputs = (*runnable, *(StepInput("input", str(self.get_export_folder() / array.file)) for array in files))
        check = self.plan_run(Stage.THRESHOLD, inputs, tuple(step.id for step in steps if step.stage is Stage.COMPILE))
        loop_step = self.plan_run(Stage.BENCHMARK, inputs, (check.id,))
        steps += [check, loop_step]
        if self.options.trace != "none":
            steps.append(self.plan_run(Stage.BENCHMARK, inputs, (loop_step.id,), TRACE))
        if self.options.against:
            steps.append(self.plan_rounds(inputs, (loop_step.id,), PEERS))
        return tuple(steps)


@dataclass(frozen=True, slots=True)
class Latencies(Recorded):
    """Percentiles of times in ms, with minimum and maximum."""

    min: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def from_times(cls, times: Sequence[float]) -> Latencies:
        """Return the percentiles of one or more times, by linear interpolation."""
        cuts = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else [times[0]] * 99
        return cls(min(times), cuts[49], cuts[89], cuts[98], max(times))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFigures(Recorded):
    """The figures of a benchmark; None if the model has no such figure. `latency_ms` counts a generation as a call."""

    total_s: float
    total_samples: int
    samples_per_sec: float
    load_ms: float
    overhead_us: float
    peak_rss_bytes: int
    device_memory: dict[str, Any]
    latency_ms: Latencies
    tokens_per_sec: float | None = field(default=None, metadata=UNLESS_DEFAULT)
    prefill_ms: Latencies | None = field(default=None, metadata=UNLESS_DEFAULT)
    decode_ms: Latencies | None = field(default=None, metadata=UNLESS_DEFAULT)
    host_ms: dict[str, list[float]] | None = field(default=None, metadata=UNLESS_DEFAULT)
    machine: dict[str, Any] | None = field(default=None, metadata=UNLESS_DEFAULT)
    disturbed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFigures(Recorded):
    """The figures of the check; `to_f32`: rms of the differences from the f32 outputs, as a share of their rms."""

    load_ms: float
    first_call_ms: float
    to_f32: float
    error: OutputErrors


@dataclass(slots=True, kw_only=True)
class BenchSession(ModelSession):
    """The execution of a benchmark's steps; `contraction_type`, if any, is the narrow type of contractions' inputs."""

    chain: BenchChain
    devices: tuple[str, ...]
    contraction_type: str
    _first_call_ms: float = 0.0
    _call_ms: float | None = None

    @property
    def _build(self) -> BuildRecord:
        return self.builds[MAIN]

    @property
    def _narrowing(self) -> float:
        """The ratio, at least 1, of the roundoff of contractions' inputs to the roundoff of the data format."""
        format_roundoff = UNIT_ROUNDOFF[self.chain.options.dataformat.element_type]
        return max(1.0, UNIT_ROUNDOFF.get(self.contraction_type, format_roundoff) / format_roundoff)

    def plan(self, role: str) -> BuildPlan:  # noqa: ARG002 - there is only one
        """Return the builder's plan."""
        return self.chain.plan

    def phases(self) -> Sequence[Callable[[], Sequence[Step]]]:
        """Return the phases after the export; none if the export failed."""
        return (self._plan_after_export,) if self.builds else ()

    def _plan_after_export(self) -> Sequence[Step]:
        """Return the steps, or one blocked step if this kind of model does not support an option."""
        build, options = self._build, self.chain.options
        steps = self.chain.plan_after_export(build, self.hashes[MAIN])
        subject = "a model that generates" if build.generation else "a model with modules on the host"
        reason = ""
        if build.generation or (build.training is None and build.has_host_modules):
            if len(self.devices) > 1:
                reason = f"--chips {options.chips}: {subject} runs on one device"
            elif options.microbatch_count > 1:
                reason = f"--microbatch_count {options.microbatch_count}: {subject} takes one microbatch at a time"
        # With only one blocked step, the reason is reported once, before anything is compiled.
        return (block_step(steps[-1], reason),) if reason else steps

    def check(self, step: Step) -> Result:
        """Run each program once with the builder's inputs, and compare all outputs with the build's outputs."""
        build, export_folder, factor = self._build, self.chain.get_export_folder(), self._narrowing
        training = build.kind == "training"
        result = Result(Verdict.PASSED, notes=step.notes)
        for number, program in enumerate(build.programs):
            name = f"{program.name}." if number else ""
            response = self.run_once(step, self._find_program(number), self.devices[0], name)
            step = response.step
            if response.figures is None:
                return replace(response.failure, notes=(*result.notes, *response.failure.notes))
            result = response.complete(result)
            try:
                calls = CallMeasurement.from_dict(response.figures)
                actual = read_tensors(Path(), calls.outputs)
                expected = read_tensors(export_folder, program.outputs)
                agreement = compare_tensors(actual, expected, find_limits(program.outputs, factor), gradients=training)
                errors, problem = agreement.errors, agreement.problem
                if program.directions is not None and not problem:
                    gains = fit_gains(actual, expected, export_folder, program.directions, factor, gradients=training)
                    errors, problem = gains.add_to(errors), gains.problem
                if number == 0:
                    f32_outputs = read_tensors(export_folder, build.reference) if build.reference else expected
                    figures = CheckFigures(
                        load_ms=calls.load_ms,
                        first_call_ms=calls.first_call_ms,
                        to_f32=measure_relative_error(actual, f32_outputs),
                        error=errors,
                    )
                    self._first_call_ms = calls.first_call_ms
                    result = replace(result, statistics=figures.as_dict())
            except (GauntletError, ValueError) as error:
                reason = shorten(error.message if isinstance(error, GauntletError) else f"{program.name}: {error}")
                return replace(result, verdict=Verdict.ERROR, reason=reason, outputs=(), statistics={})
            result = replace(result, outputs=(*result.outputs, *agreement.comparisons))
            if agreement.expects_only_zeros:
                note = f"{program.name}: the expected outputs are all zero, so agreement with them proves nothing"
                result = replace(result, notes=(*result.notes, note))
            if problem and result.verdict is Verdict.PASSED:
                prefix = f"{program.name}: " if len(build.programs) > 1 else ""
                reason = shorten(f"{prefix}{problem}")
                result = replace(result, verdict=Verdict.FAILED, reason=reason, failure=FailureKind.WRONG_NUMBERS)
        return result

    def benchmark(self, step: Step) -> Result:
        """Measure the model, compare it with peers, or trace its dispatches."""
        options = self.chain.options
        if step.role == TRACE:
            traces = []
            for number, program in enumerate(self._build.programs):
                path = Path(step.folder) / program.name
                program_step = replace(step, folder=str(path))
                traces.append(self.trace(program_step, self._find_program(number), path, options.trace, self._call_ms))
            return tracing.make_result(traces, {TRACE: [trace.as_dict() for trace in traces]})
        if step.role == PEERS:
            command = make_worker_command(self.chain, step, *self._choose_worker(len(self.devices)))
            replaces = options.disturbed == "replace"
            environment = PeerEnvironment(asdict(self.chain.plan), self.chain.torch.path, options.env, replaces)
            peers = measure_peers(
                self.session,
                options.against,
                make_iree_rounds(step, command),
                self.chain.get_export_folder(),
                environment,
            )
            notes = tuple(map(describe_peer, peers))
            return Result(Verdict.PASSED, statistics={PEERS: [asdict(peer) for peer in peers]}, notes=notes)
        return self._loop(step)

    def _loop(self, step: Step) -> Result:
        """Measure the model; the statistics have `total_s`, `total_samples`, `samples_per_sec`, latencies and more."""
        build, processes = self._build, self.session.processes
        loops = self.chain.options.loops(len(self.devices))
        script, plan = self._choose_worker(loops)
        if build.has_host_modules:
            plan = {**plan, "outputs": step.folder}
        step = replace(step, timeout=step.timeout + _TIMEOUT_FACTOR * loops * self._first_call_ms / _MS_PER_S)
        gpu = get_gpu(step)
        watch = RoundWatch(gpu=bool(gpu), device=gpu)
        response = self.ask(step, script, plan)
        state = watch.ended(own_cpu_seconds=response.outcome.cpu_seconds)
        if response.figures is None:
            return replace(response.failure, notes=(*step.notes, *response.failure.notes))
        try:
            calls = CallMeasurement.from_dict(response.figures)
            problem, figures = self._find_problem(calls), make_bench_figures(build, calls)
        except (GauntletError, ArithmeticError, TypeError, ValueError) as error:
            text = error.message if isinstance(error, GauntletError) else f"{type(error).__name__}: {error}"
            reason = shorten(f"the measuring program's response cannot be read: {text}")
            return response.complete(Result(Verdict.ERROR, reason))
        if problem:
            # Report no speed for a model with wrong numbers.
            failure = Result(Verdict.FAILED, shorten(problem), notes=step.notes, failure=FailureKind.WRONG_NUMBERS)
            return response.complete(failure)
        if build.generation is None:
            self._call_ms = figures.latency_ms.p50
        figures = replace(figures, machine=state.as_dict(), disturbed=tuple(state.list_disturbances()))
        remarks = [] if build.generation is None else _find_token_difference(build.generation, calls)
        if build.generation is None and calls.pushed == "one by one" and self.chain.options.microbatch_count > 1:
            remarks.append("microbatches were pushed one by one: the module has no asynchronous entry")
        result = Result(
            Verdict.PASSED,
            samples=Samples("bench", calls.times_ms, (), (1,) * len(calls.times_ms)),
            statistics=figures.as_dict(),
            notes=(*step.notes, *remarks, *list_benchmark_warnings(state.state_with_cpu_use)),
            log=processes.log(step, "stdout.txt"),
        )
        return response.complete(result)

    def _find_program(self, number: int) -> CompiledProgram:
        program = self._build.programs[number]
        role = program.name if number else MAIN
        return replace(self.chain.make_program(program, role, role), export_folder=self.chain.get_export_folder())

    def _choose_worker(self, calls: int) -> tuple[str, dict[str, Any]]:
        """Return the measuring program, and its plan."""
        build, main = self._build, self._find_program(0)
        if build.generation is not None:
            loop = build.generation
            return GENERATIVE_WORKER, {
                "device": self.devices[0],
                "prefill": {**main.call_plan, "inputs": main.describe_arrays(main.program.inputs)},
                "decode": self._find_program(1).call_plan,
                "position": loop.position,
                "tokens": loop.tokens,
                "state": loop.state,
                "carried": loop.carried,
                "generations": calls,
                "warm_up": 1,
                "outputs": "",
            }
        plan = {**main.plan(self.devices, calls), "in_flight": self.chain.options.microbatch_count}
        if build.training is not None:
            # Fetch only the loss; the gradients stay on the device, as if an optimiser used them there.
            plan |= {"fetch": [0]}
            count = len(build.training.gradients)
            if self.chain.options.microbatch_count > 1:
                plan |= {"carry": {"outputs": 1, "inputs": len(main.program.inputs) - count, "count": count}}
        if not build.has_host_modules:
            return MODULE_WORKER, plan
        model = {
            "torch_paths": list(self.chain.torch.paths),
            "builder": asdict(self.chain.plan),
            "host_inputs": main.describe_arrays(build.host_inputs),
        }
        return PIPELINE_WORKER, {**plan, **model}

    def _find_problem(self, calls: CallMeasurement) -> str:
        """Return the reason to report no speed (tokens or host outputs differ from torch's), or ""."""
        build, options = self._build, self.chain.options
        if build.generation is not None:
            # Require equal tokens only in f32: in narrower types, a near tie may be decided differently.
            exact = options.dataformat.element_type == "f32" and options.math_fidelity == "HiFi4"
            return next(iter(_find_token_difference(build.generation, calls)), "") if exact else ""
        if not build.host_outputs:
            return ""
        actual = read_tensors(Path(), calls.host_outputs)
        expected = read_tensors(self.chain.get_export_folder(), build.host_outputs)
        return compare_tensors(actual, expected, find_limits(build.host_outputs, self._narrowing)).problem


def make_bench_figures(build: BuildRecord, calls: CallMeasurement) -> BenchFigures:
    """Compute the figures of a model's calls, or generations."""
    samples = (calls.calls or calls.generations) * build.samples
    figures = BenchFigures(
        total_s=calls.total_s,
        total_samples=samples,
        samples_per_sec=samples / calls.total_s,
        load_ms=calls.load_ms,
        overhead_us=calls.overhead_us,
        peak_rss_bytes=calls.peak_rss_bytes,
        device_memory=calls.device_memory,
        latency_ms=Latencies.from_times(calls.times_ms),
        host_ms=calls.host_ms,
    )
    if build.generation is None:
        return figures
    decode_times = [time_ms for generation in calls.decode_ms for time_ms in generation]
    return replace(
        figures,
        tokens_per_sec=samples * build.generation.tokens / calls.total_s,
        prefill_ms=Latencies.from_times(calls.prefill_ms),
        decode_ms=Latencies.from_times(decode_times) if decode_times else None,
    )


def _find_token_difference(loop: TokenLoop, calls: CallMeasurement) -> list[str]:
    for sample, (tokens, choices) in enumerate(zip(calls.chosen, loop.chosen, strict=True)):
        for position, (token, choice) in enumerate(zip(tokens, choices, strict=True)):
            if token != choice:
                return [f"sample {sample}: token {position} of {len(choices)} is {token}, torch eager chooses {choice}"]
    return []
