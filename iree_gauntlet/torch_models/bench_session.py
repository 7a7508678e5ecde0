"""One benchmark: its steps, what performs them, and what each leaves for those after it.

A generative model is two programs: the steps after the export are planned once it is there.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iree_gauntlet.cases import MAIN, Origin, Verdict
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan import blocked
from iree_gauntlet.engine.rounds.taken_rounds import gpu_of
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.machine.disturbance import RoundWatch
from iree_gauntlet.measuring.machine.machine_state import list_benchmark_warnings
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.results import Result, Samples, shorten
from iree_gauntlet.settings import shown
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
from iree_gauntlet.torch_models.peers import PeerEnvironment, describe_peer, make_iree_rounds, measure
from iree_gauntlet.torch_models.torch_chain import (
    GENERATIVE_WORKER,
    MODULE_WORKER,
    PIPELINE_WORKER,
    MeasuredCalls,
    TorchChain,
    hash_of_files,
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
# Roles of benchmark steps that follow the main one.
AGAINST = "against"
TRACE = "trace"
_MS = 1000.0
# How much longer than the first call foretells a loop may take, before it counts as hanging.
_SLACK = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(TorchChain):
    """The steps of one benchmark."""

    model: BenchmarkModel
    plan: BuildPlan
    options: BenchOptions

    dialect: ClassVar[str] = DIALECT
    builder: ClassVar[str] = "building"

    @property
    def names(self) -> tuple[str, str]:
        """Of the model, and what tells this benchmark from others, in short: `tiny`, `base-training-Fp16-O3`."""
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
        """Where the model is written."""
        return Origin(str(shown(self.model.file)), self.model.name)

    def export(self) -> Step:
        """Makes the model with torch and exports it."""
        files = find_sources(self.model)
        ingredients = {"kind": "export", "program": hash_of_files(files, self.model.file.parent)}
        return self.exporting(MAIN, self.plan, ingredients, files)

    def after_export(self, build: BuildRecord, hashes: Mapping[str, str]) -> tuple[Step, ...]:
        """The steps after the export."""
        steps: list[Step] = []
        runnable: list[StepInput] = []
        for number, program in enumerate(build.programs):
            role = program.name if number else MAIN
            onnx = self.exported() / program.onnx
            content = make_key({name: found for name, found in hashes.items() if name.startswith(program.onnx)})
            imported = self.importing(role, onnx, content, MAIN)
            compiled = self.compiling(role, "_".join(self.names), self.flags, onnx, content, imported)
            steps += [imported, compiled]
            runnable += list_runnable_files(compiled, imported)
        files = [item for program in build.programs for item in (*program.inputs, *program.outputs)]
        inputs = (*runnable, *(StepInput("input", str(self.exported() / item.file)) for item in files))
        ready = self.running(Stage.THRESHOLD, inputs, tuple(step.id for step in steps if step.stage is Stage.COMPILE))
        loop = self.running(Stage.BENCHMARK, inputs, (ready.id,))
        steps += [ready, loop]
        if self.options.trace != "none":
            steps.append(self.running(Stage.BENCHMARK, inputs, (loop.id,), TRACE))
        if self.options.against:
            steps.append(self.running_in_rounds(inputs, (loop.id,), AGAINST))
        return tuple(steps)


@dataclass(frozen=True, slots=True)
class Latencies(Recorded):
    """Percentiles of times in ms, with the least and the largest."""

    min: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Latencies:
        """Of one time or more, by linear interpolation."""
        cuts = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else [times[0]] * 99
        return cls(min(times), cuts[49], cuts[89], cuts[98], max(times))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFigures(Recorded):
    """What a benchmark's result has; None is what such a model has not. A generation is a call in `latency_ms`."""

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
    """What the result of the check has; `to_f32`: rms of the differences from the model in f32, as a share of that."""

    load_ms: float
    first_call_ms: float
    to_f32: float
    error: OutputErrors


@dataclass(slots=True, kw_only=True)
class BenchSession(ModelSession):
    """Performs the steps of a benchmark; inputs of matrix products are narrowed to `contraction_type`, if any."""

    chain: Chain
    devices: tuple[str, ...]
    contraction_type: str
    _first_call_ms: float = 0.0
    _call_ms: float | None = None

    @property
    def _build(self) -> BuildRecord:
        return self.builds[MAIN]

    @property
    def _narrowed(self) -> float:
        """How much larger the roundoff of contractions' inputs is than that of the data format; at least 1."""
        own = UNIT_ROUNDOFF[self.chain.options.dataformat.element_type]
        return max(1.0, UNIT_ROUNDOFF.get(self.contraction_type, own) / own)

    def plan(self, role: str) -> BuildPlan:  # noqa: ARG002 - there is one alone
        """The builder's plan."""
        return self.chain.plan

    def phases(self) -> Sequence[Callable[[], Sequence[Step]]]:
        """Nothing where nothing was exported."""
        return (self._plan_after_export,) if self.builds else ()

    def _plan_after_export(self) -> Sequence[Step]:
        """The steps; one that is blocked where an option asks of a kind of model what it does not have."""
        build, options = self._build, self.chain.options
        steps = self.chain.after_export(build, self.hashes[MAIN])
        what = "a model that generates" if build.generation else "a model with modules on the host"
        reason = ""
        if build.generation or (build.training is None and build.has_host_modules):
            if len(self.devices) > 1:
                reason = f"--chips {options.chips}: {what} runs on one device"
            elif options.microbatch_count > 1:
                reason = f"--microbatch_count {options.microbatch_count}: {what} takes one at a time"
        # Said once, and before anything is compiled.
        return (blocked(steps[-1], reason),) if reason else steps

    def check(self, step: Step) -> Result:
        """Runs each program once, with the builder's inputs, and compares all outputs with those of the build."""
        build, exported, narrowed = self._build, self.chain.exported(), self._narrowed
        training = build.kind == "training"
        result = Result(Verdict.PASSED, notes=step.notes)
        for number, program in enumerate(build.programs):
            name = f"{program.name}." if number else ""
            answer = self.run_once(step, self._find_program(number), self.devices[0], name)
            step = answer.step
            if answer.figures is None:
                return replace(answer.failure, notes=(*result.notes, *answer.failure.notes))
            result = answer.complete(result)
            try:
                calls = MeasuredCalls.from_dict(answer.figures)
                actual = read_tensors(Path(), calls.outputs)
                expected = read_tensors(exported, program.outputs)
                found = compare_tensors(actual, expected, find_limits(program.outputs, narrowed), gradients=training)
                errors, problem = found.errors, found.problem
                if program.directions is not None and not problem:
                    gains = fit_gains(actual, expected, exported, program.directions, narrowed, gradients=training)
                    errors, problem = gains.complete(errors), gains.problem
                if number == 0:
                    against_f32 = read_tensors(exported, build.reference) if build.reference else expected
                    figures = CheckFigures(
                        load_ms=calls.load_ms,
                        first_call_ms=calls.first_call_ms,
                        to_f32=measure_relative_error(actual, against_f32),
                        error=errors,
                    )
                    self._first_call_ms = calls.first_call_ms
                    result = replace(result, statistics=figures.as_dict())
            except (GauntletError, ValueError) as error:
                reason = shorten(error.what if isinstance(error, GauntletError) else f"{program.name}: {error}")
                return replace(result, verdict=Verdict.ERROR, reason=reason, outputs=(), statistics={})
            result = replace(result, outputs=(*result.outputs, *found.comparisons))
            if found.expects_only_zeros:
                note = f"{program.name}: the expected outputs are all zero, and so agreeing with them proves nothing"
                result = replace(result, notes=(*result.notes, note))
            if problem and result.verdict is Verdict.PASSED:
                which = f"{program.name}: " if len(build.programs) > 1 else ""
                reason = shorten(f"{which}{problem}")
                result = replace(result, verdict=Verdict.FAILED, reason=reason, failure=FailureKind.WRONG_NUMBERS)
        return result

    def benchmark(self, step: Step) -> Result:
        """Measures the model, next to others, or what it is made of."""
        options = self.chain.options
        if step.role == TRACE:
            traces = []
            for number, program in enumerate(self._build.programs):
                path = Path(step.folder) / program.name
                inside = replace(step, folder=str(path))
                traces.append(self.trace(inside, self._find_program(number), path, options.trace, self._call_ms))
            return tracing.make_result(traces, {TRACE: [made.as_dict() for made in traces]})
        if step.role == AGAINST:
            command = make_worker_command(self.chain, step, *self._choose_worker(len(self.devices)))
            replaced = options.disturbed == "replace"
            place = PeerEnvironment(asdict(self.chain.plan), self.chain.torch.path, options.env, replaced)
            peers = measure(
                self.session, options.against, make_iree_rounds(step, command), self.chain.exported(), place
            )
            notes = tuple(map(describe_peer, peers))
            return Result(Verdict.PASSED, statistics={AGAINST: [asdict(peer) for peer in peers]}, notes=notes)
        return self._loop(step)

    def _loop(self, step: Step) -> Result:
        """Measures; the result's statistics have `total_s`, `total_samples`, `samples_per_sec`, latencies and more."""
        build, processes = self._build, self.session.processes
        calls = self.chain.options.loops(len(self.devices))
        script, plan = self._choose_worker(calls)
        if build.has_host_modules:
            plan = {**plan, "outputs": step.folder}
        step = replace(step, timeout=step.timeout + _SLACK * calls * self._first_call_ms / _MS)
        gpu = gpu_of(step)
        watch = RoundWatch(gpu=bool(gpu), device=gpu)
        answer = self.ask(step, script, plan)
        state = watch.ended(own_cpu_seconds=answer.outcome.cpu_seconds)
        if answer.figures is None:
            return replace(answer.failure, notes=(*step.notes, *answer.failure.notes))
        try:
            found = MeasuredCalls.from_dict(answer.figures)
            problem, figures = self._find_problem(found), make_bench_figures(build, found)
        except (GauntletError, ArithmeticError, TypeError, ValueError) as error:
            text = error.what if isinstance(error, GauntletError) else f"{type(error).__name__}: {error}"
            reason = shorten(f"the measuring program's answer cannot be read: {text}")
            return answer.complete(Result(Verdict.ERROR, reason))
        if problem:
            # No speed of what is not right.
            wrong = Result(Verdict.FAILED, shorten(problem), notes=step.notes, failure=FailureKind.WRONG_NUMBERS)
            return answer.complete(wrong)
        if build.generation is None:
            self._call_ms = figures.latency_ms.p50
        figures = replace(figures, machine=state.as_dict(), disturbed=tuple(state.disturbances()))
        remarks = [] if build.generation is None else _find_other_tokens(build.generation, found)
        if build.generation is None and found.pushed == "one by one" and self.chain.options.microbatch_count > 1:
            remarks.append("microbatches were pushed one by one: the module has no asynchronous entry")
        result = Result(
            Verdict.PASSED,
            samples=Samples("bench", found.times_ms, (), (1,) * len(found.times_ms)),
            statistics=figures.as_dict(),
            notes=(*step.notes, *remarks, *list_benchmark_warnings(state.watched)),
            log=processes.log(step, "stdout.txt"),
        )
        return answer.complete(result)

    def _find_program(self, number: int) -> CompiledProgram:
        program = self._build.programs[number]
        role = program.name if number else MAIN
        return replace(self.chain.compiled(program, role, role), exported=self.chain.exported())

    def _choose_worker(self, calls: int) -> tuple[str, dict[str, Any]]:
        """The program that measures, and its plan."""
        build, main = self._build, self._find_program(0)
        if build.generation is not None:
            made = build.generation
            return GENERATIVE_WORKER, {
                "device": self.devices[0],
                "prefill": {**main.called, "inputs": main.arrays(main.program.inputs)},
                "decode": self._find_program(1).called,
                "position": made.position,
                "tokens": made.tokens,
                "state": made.state,
                "carried": made.carried,
                "generations": calls,
                "warm_up": 1,
                "outputs": "",
            }
        plan = {**main.plan(self.devices, calls), "in_flight": self.chain.options.microbatch_count}
        if build.training is not None:
            # The loss comes back, the gradients stay, as an optimiser on the device would take them.
            plan |= {"fetch": [0]}
            count = len(build.training.gradients)
            if self.chain.options.microbatch_count > 1:
                plan |= {"carry": {"outputs": 1, "inputs": len(main.program.inputs) - count, "count": count}}
        if not build.has_host_modules:
            return MODULE_WORKER, plan
        model = {
            "torch_paths": list(self.chain.torch.paths),
            "builder": asdict(self.chain.plan),
            "host_inputs": main.arrays(build.host_inputs),
        }
        return PIPELINE_WORKER, {**plan, **model}

    def _find_problem(self, found: MeasuredCalls) -> str:
        """Why there is no speed: other tokens than torch's, or other outputs of the host's last module; or empty."""
        build, options = self._build, self.chain.options
        if build.generation is not None:
            # In a narrower type than f32 a near tie may fall otherwise.
            exact = options.dataformat.element_type == "f32" and options.math_fidelity == "HiFi4"
            return next(iter(_find_other_tokens(build.generation, found)), "") if exact else ""
        if not build.host_outputs:
            return ""
        actual = read_tensors(Path(), found.host_outputs)
        expected = read_tensors(self.chain.exported(), build.host_outputs)
        return compare_tensors(actual, expected, find_limits(build.host_outputs, self._narrowed)).problem


def make_bench_figures(build: BuildRecord, found: MeasuredCalls) -> BenchFigures:
    """What calls of a model, or generations, amount to."""
    samples = (found.calls or found.generations) * build.samples
    figures = BenchFigures(
        total_s=found.total_s,
        total_samples=samples,
        samples_per_sec=samples / found.total_s,
        load_ms=found.load_ms,
        overhead_us=found.overhead_us,
        peak_rss_bytes=found.peak_rss_bytes,
        device_memory=found.device_memory,
        latency_ms=Latencies.of(found.times_ms),
        host_ms=found.host_ms,
    )
    if build.generation is None:
        return figures
    later = [value for generation in found.decode_ms for value in generation]
    return replace(
        figures,
        tokens_per_sec=samples * build.generation.tokens / found.total_s,
        prefill_ms=Latencies.of(found.prefill_ms),
        decode_ms=Latencies.of(later) if later else None,
    )


def _find_other_tokens(made: TokenLoop, found: MeasuredCalls) -> list[str]:
    for sample, (mine, wanted) in enumerate(zip(found.chosen, made.chosen, strict=True)):
        for place, (token, right) in enumerate(zip(mine, wanted, strict=True)):
            if token != right:
                return [f"sample {sample}: token {place} of {len(wanted)} is {token}, torch eager chooses {right}"]
    return []
