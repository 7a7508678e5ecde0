"""One benchmark: its steps, what performs them, and what each leaves for those after it.

What the export makes decides on the steps after it (a generative model is two programs), so that they are planned once
it is there.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from iree_gauntlet.cases import MAIN, FailureKind, Origin, Stage, Verdict
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.plan import blocked
from iree_gauntlet.engine.rounds.taken_rounds import gpu_of
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.machine.disturbance import RoundWatch
from iree_gauntlet.measuring.machine.machine_state import list_benchmark_warnings
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.results import OutputComparison, Result, Samples, shorten
from iree_gauntlet.settings import shown
from iree_gauntlet.steps import Step, StepInput
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE
from iree_gauntlet.torch_models import tracing
from iree_gauntlet.torch_models.agreement import (
    compare_tensors,
    find_gains,
    find_limits,
    make_recordable,
    measure_relative_error,
)
from iree_gauntlet.torch_models.build_folder import read_outputs, read_tensors
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF
from iree_gauntlet.torch_models.model_registry import find_sources
from iree_gauntlet.torch_models.peers import AgainstPlace, describe_peer, make_iree_rounds, measure
from iree_gauntlet.torch_models.torch_chain import (
    GENERATIVE_WORKER,
    MODULE_WORKER,
    PIPELINE_WORKER,
    Exporter,
    MeasuredCalls,
    TorchChain,
    ask_worker,
    hash_of_files,
    list_runnable_files,
    make_worker_command,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.bench_options import BenchOptions
    from iree_gauntlet.torch_models.build_folder import BuildRecord, TokenLoop
    from iree_gauntlet.torch_models.build_plan import BuildPlan
    from iree_gauntlet.torch_models.model_registry import BenchmarkModel
    from iree_gauntlet.torch_models.torch_chain import CompiledProgram


DIALECT = "bench"
# Roles of benchmark steps that follow the main one.
AGAINST = "against"
TRACE = "trace"
_MS = 1000.0
# How much longer than the first call foretells a loop may take, before it counts as hanging.
_SLACK = 20.0


def _name_variant(options: BenchOptions) -> str:
    """What tells two benchmarks of a model apart, in short: `tiny`, `base-training-Fp16-O3`."""
    words = [options.config or "model"]
    words += ["training"] if options.training else []
    words += [options.dataformat.value] if options.dataformat.value != "Fp32" else []
    words += [options.math_fidelity] if options.math_fidelity != "HiFi4" else []
    words += [] if options.backend_opt_level is None else [f"O{options.backend_opt_level}"]
    words += [] if options.layers is None else [f"{options.layers}layers"]
    words += [] if options.microbatch is None else [f"mb{options.microbatch}"]
    words += [] if options.microbatch_count == 1 else [f"{options.microbatch_count}mbs"]
    words += [] if options.chips == 1 else [f"{options.chips or 'all'}chips"]
    return "-".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(TorchChain):
    """The steps of one benchmark."""

    model: BenchmarkModel
    plan: BuildPlan
    options: BenchOptions

    dialect: ClassVar[str] = DIALECT
    builder: ClassVar[str] = "iree_gauntlet.torch_models.building"

    @property
    def names(self) -> tuple[str, str]:
        """Of the model, and what tells this benchmark from others."""
        return self.model.name, _name_variant(self.options)

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
        compiles: list[str] = []
        for number, program in enumerate(build.programs):
            role = program.name if number else MAIN
            onnx = self.exported() / program.onnx
            content = make_key({name: found for name, found in hashes.items() if name.startswith(program.onnx)})
            imported = self.importing(role, onnx, content, MAIN)
            compiled = self.compiling(role, "_".join(self.names), self.flags, onnx, content, imported)
            steps += [imported, compiled]
            compiles.append(compiled.id)
            runnable += list_runnable_files(compiled, imported)
        files = [item for program in build.programs for item in (*program.inputs, *program.outputs)]
        inputs = (*runnable, *(StepInput("input", str(self.exported() / item.file)) for item in files))
        ready = self.ran(self.step(Stage.THRESHOLD), inputs, tuple(compiles))
        loop = self.ran(self.step(Stage.BENCHMARK), inputs, (ready.id,), exclusive=True)
        steps += [ready, loop]
        if self.options.trace != "none":
            steps.append(self.ran(self.step(Stage.BENCHMARK, TRACE), inputs, (loop.id,), exclusive=True))
        if self.options.against:
            # It takes the machine for each block of its rounds by itself.
            steps.append(self.ran(self.step(Stage.BENCHMARK, AGAINST), inputs, (loop.id,), cores=0))
        return tuple(steps)


@dataclass(frozen=True, slots=True)
class Workers:
    """The measuring programs of one benchmark.

    Attributes:
        contraction_type: type that the compiler narrows the inputs of matrix products to; empty for none.
    """

    chain: Chain
    build: BuildRecord
    devices: tuple[str, ...]
    contraction_type: str

    @property
    def narrowed(self) -> float:
        """How much larger the roundoff of contractions' inputs is than that of the data format; at least 1."""
        own = UNIT_ROUNDOFF[self.chain.options.dataformat.element_type]
        return max(1.0, UNIT_ROUNDOFF.get(self.contraction_type, own) / own)

    @property
    def exported(self) -> Path:
        """The folder of what the builder made."""
        return self.chain.exported()

    def compiled(self, number: int) -> CompiledProgram:
        """A program of the build."""
        program = self.build.programs[number]
        role = program.name if number else MAIN
        return replace(self.chain.compiled(program, role, role), exported=self.exported)

    def loop(self, calls: int) -> tuple[str, dict[str, Any]]:
        """The program that measures, and its plan."""
        if self.build.generation is not None:
            return GENERATIVE_WORKER, self._generative_plan(self.build.generation, calls)
        plan = {**self.compiled(0).plan(self.devices, calls), "in_flight": self.chain.options.microbatch_count}
        if self.build.kind == "training":
            # The loss comes back, the gradients stay, as an optimiser on the device would take them.
            plan["fetch"] = [0]
            count = len(self.build.gradients)
            if self.chain.options.microbatch_count > 1:
                plan["carry"] = {"outputs": 1, "inputs": len(plan["inputs"]) - count, "count": count}
        if not self.build.has_host_modules:
            return MODULE_WORKER, plan
        model = {
            "torch_paths": list(self.chain.torch.paths),
            "builder": asdict(self.chain.plan),
            "host_inputs": self.compiled(0).arrays(self.build.host_inputs),
        }
        return PIPELINE_WORKER, {**plan, **model}

    def _generative_plan(self, made: TokenLoop, generations: int) -> dict[str, Any]:
        prefill = self.compiled(0)
        return {
            "device": self.devices[0],
            "prefill": {**prefill.called, "inputs": prefill.arrays(prefill.program.inputs)},
            "decode": self.compiled(1).called,
            "position": made.position,
            "tokens": made.tokens,
            "state": made.state,
            "carried": made.carried,
            "generations": generations,
            "warm_up": 1,
            "outputs": "",
        }


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
    """What a benchmark's result has as its statistics; None is what such a model has not.

    Attributes:
        latency_ms: of calls, or of generations.
        prefill_ms, decode_ms: of the first token and of each later one.
    """

    total_s: float
    total_samples: int
    samples_per_sec: float
    load_ms: float
    overhead_us: float
    peak_rss_bytes: int
    device_memory: dict[str, Any]
    latency_ms: Latencies
    tokens_per_sec: float | None = None
    prefill_ms: Latencies | None = None
    decode_ms: Latencies | None = None
    host_ms: dict[str, list[float]] | None = None
    machine: dict[str, Any] | None = None
    disturbed: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Without what there is not."""
        return {name: value for name, value in Recorded.as_dict(self).items() if value is not None}


class BenchSession:
    """Performs the steps of a benchmark.

    Args:
        chain: what is benchmarked.
        devices: that it runs on.
        contraction_type: type that the compiler narrows the inputs of matrix products to; empty for none.
        notes: what the user is to know of the options.
    """

    _session: Session[Any]
    _workbench: Workbench

    def __init__(self, chain: Chain, devices: tuple[str, ...], contraction_type: str, notes: tuple[str, ...]) -> None:
        self.chain = chain
        self.notes = notes
        self._devices = devices
        self._contraction_type = contraction_type
        self._exporter: Exporter | None = None
        self._first_call_ms = 0.0
        self._call_ms: float | None = None

    @property
    def build(self) -> BuildRecord | None:
        """The model as it was exported; None before."""
        return self._exporter.builds.get(MAIN) if self._exporter else None

    def performers(self, session: Session[Any], workbench: Workbench) -> Mapping[Stage, Callable[[Step], Result]]:
        """What executes each stage; import and compile are the engine's own."""
        self._session, self._workbench = session, workbench
        self._exporter = exporter = Exporter(session, workbench)
        benchmarks = {MAIN: self._loop, AGAINST: self._against, TRACE: self._trace}
        return {
            Stage.EXPORT: lambda step: exporter.perform(step, self.chain.plan),
            Stage.THRESHOLD: self._check,
            Stage.BENCHMARK: lambda step: benchmarks[step.role](step),
        }

    def steps_after_export(self) -> tuple[Step, ...]:
        """What there is to do with what was exported; nothing where it was not."""
        if self.build is None or self._exporter is None:
            return ()
        steps = self.chain.after_export(self.build, self._exporter.hashes[MAIN])
        self._exporter.unshare(steps)
        reason = self._impossible(self.build)
        # Said once, and before anything is compiled.
        return (blocked(steps[-1], reason),) if reason else steps

    def _impossible(self, build: BuildRecord) -> str:
        """What an option asks of a kind of model that it does not have; empty where all is well."""
        options = self.chain.options
        kinds = {"generative": "a model that generates", "pipeline": "a model with modules on the host"}
        what = "" if build.kind == "pipeline" and not build.has_host_modules else kinds.get(build.kind, "")
        if what and len(self._devices) > 1:
            return f"--chips {options.chips}: {what} runs on one device"
        if what and options.microbatch_count > 1:
            return f"--microbatch_count {options.microbatch_count}: {what} takes one at a time"
        return ""

    @property
    def _workers(self) -> Workers:
        assert self.build is not None, "exported before"
        return Workers(self.chain, self.build, self._devices, self._contraction_type)

    def _check(self, step: Step) -> Result:
        """Runs each program once, with the builder's inputs, and compares all outputs with those of the build."""
        workers = self._workers
        build = workers.build
        narrowed, training = workers.narrowed, build.kind == "training"
        result = Result(Verdict.PASSED, notes=step.notes)
        statistics: dict[str, Any] = {}
        outputs: list[OutputComparison] = []
        for number, program in enumerate(build.programs):
            name = f"{program.name}." if number else ""
            folder = Path(step.folder) / f"{name}outputs"
            folder.mkdir(parents=True, exist_ok=True)
            plan = workers.compiled(number).plan(workers.devices[:1], 1, warm_up_calls=0, outputs=str(folder))
            answer = ask_worker(workers.chain, step, self._session.processes, MODULE_WORKER, plan, name)
            step = answer.step
            if answer.figures is None:
                return replace(answer.failure, notes=(*result.notes, *answer.failure.notes))
            result = answer.complete(result)
            try:
                actual = read_outputs(answer.figures["outputs"])
                expected = read_tensors(workers.exported, program.outputs)
                found = compare_tensors(actual, expected, find_limits(program.outputs, narrowed), gradients=training)
                gains = None
                if program.directions is not None and not found.problem:
                    where = workers.exported, program.directions
                    gains = find_gains(actual, expected, *where, narrowed, gradients=training)
                if number == 0:
                    against_f32 = read_tensors(workers.exported, build.reference) if build.reference else expected
                    statistics = {name: answer.figures[name] for name in ("load_ms", "first_call_ms")}
                    self._first_call_ms = float(statistics["first_call_ms"])
                    statistics["to_f32"] = make_recordable(measure_relative_error(actual, against_f32))
            except GauntletError as error:
                return replace(result, verdict=Verdict.ERROR, reason=shorten(error.what))
            except ValueError as error:
                return replace(result, verdict=Verdict.ERROR, reason=shorten(f"{program.name}: {error}"))
            outputs += found.comparisons
            if number == 0:
                statistics["error"] = found.as_dict() | (gains.as_dict() if gains else {})
            if found.tells_nothing:
                note = f"{program.name}: the expected outputs are all zero, and so agreeing with them proves nothing"
                result = replace(result, notes=(*result.notes, note))
            problem = found.problem or (gains.problem if gains else "")
            if problem and result.verdict is Verdict.PASSED:
                which = f"{program.name}: " if len(build.programs) > 1 else ""
                reason = shorten(f"{which}{problem}")
                result = replace(result, verdict=Verdict.FAILED, reason=reason, failure=FailureKind.WRONG_NUMBERS)
        return replace(result, outputs=tuple(outputs), statistics=statistics)

    def _loop(self, step: Step) -> Result:
        """Measures; the result's statistics have `total_s`, `total_samples`, `samples_per_sec`, latencies and more."""
        workers, processes = self._workers, self._session.processes
        build = workers.build
        calls = self.chain.options.loops(len(workers.devices))
        script, plan = workers.loop(calls)
        if build.has_host_modules:
            plan = {**plan, "outputs": step.folder}
        step = replace(step, timeout=step.timeout + _SLACK * calls * self._first_call_ms / _MS)
        gpu = gpu_of(step)
        watch = RoundWatch(gpu=bool(gpu), device=gpu)
        answer = ask_worker(workers.chain, step, processes, script, plan)
        state = watch.ended(own_cpu_seconds=answer.outcome.cpu_seconds)
        if answer.figures is None:
            return replace(answer.failure, notes=(*step.notes, *answer.failure.notes))
        try:
            found = MeasuredCalls.from_dict(answer.figures)
            problem, figures = _find_problem(workers, found), _make_figures(workers, found)
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
        result = Result(
            Verdict.PASSED,
            samples=Samples("bench", found.times_ms, (), (1,) * len(found.times_ms)),
            statistics=figures.as_dict(),
            notes=(*step.notes, *_find_remarks(workers, found), *list_benchmark_warnings(state.watched)),
            log=processes.log(step, "stdout.txt"),
        )
        return answer.complete(result)

    def _against(self, step: Step) -> Result:
        workers = self._workers
        command = make_worker_command(self.chain, step, *workers.loop(len(self._devices)))
        options = self.chain.options
        replaced = options.disturbed == "replace"
        place = AgainstPlace(asdict(self.chain.plan), self.chain.torch.path, options.env, replaced)
        peers = measure(self._session, options.against, make_iree_rounds(step, command), workers.exported, place)
        return Result(
            Verdict.PASSED,
            statistics={AGAINST: [asdict(peer) for peer in peers]},
            notes=tuple(describe_peer(peer) for peer in peers),
        )

    def _trace(self, step: Step) -> Result:
        traces = []
        for number, program in enumerate(self._workers.build.programs):
            path = Path(step.folder) / program.name
            traced = tracing.make_traced_step(
                replace(step, folder=str(path)), self.chain, self._workers.compiled(number)
            )
            flags, processes = self._workbench.flags_of(BENCHMARK_MODULE), self._session.processes
            level, toolchain = self.chain.options.trace, self.chain.toolchain
            traces.append(tracing.trace(traced, level, path, toolchain, processes, flags, call_ms=self._call_ms))
        return tracing.make_result(traces, {TRACE: [made.as_dict() for made in traces]})


def _make_figures(workers: Workers, found: MeasuredCalls) -> BenchFigures:
    samples = (found.calls or found.generations) * workers.build.samples
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
    made = workers.build.generation
    if made is None:
        return figures
    later = [value for generation in found.decode_ms for value in generation]
    return replace(
        figures,
        tokens_per_sec=samples * made.tokens / found.total_s,
        prefill_ms=Latencies.of(found.prefill_ms),
        decode_ms=Latencies.of(later) if later else None,
    )


def _find_remarks(workers: Workers, found: MeasuredCalls) -> list[str]:
    if workers.build.generation is not None:
        return _find_other_tokens(workers.build.generation, found)
    if found.pushed == "one by one" and workers.chain.options.microbatch_count > 1:
        return ["microbatches were pushed one by one: the module has no asynchronous entry"]
    return []


def _find_problem(workers: Workers, found: MeasuredCalls) -> str:
    """Why there is no speed: other tokens than torch's, or other outputs of the host's last module; empty for none."""
    options, made = workers.chain.options, workers.build.generation
    if made is not None:
        # In a narrower type than f32 a near tie may fall otherwise.
        exact = options.dataformat.element_type == "f32" and options.math_fidelity == "HiFi4"
        return next(iter(_find_other_tokens(made, found)), "") if exact else ""
    if not workers.build.host.get("post"):
        return ""
    actual = read_outputs(found.host_outputs)
    expected = read_tensors(workers.exported, workers.build.host_outputs)
    return compare_tensors(actual, expected, find_limits(workers.build.host_outputs, workers.narrowed)).problem


def _find_other_tokens(made: TokenLoop, found: MeasuredCalls) -> list[str]:
    for sample, (mine, wanted) in enumerate(zip(found.chosen, made.chosen, strict=True)):
        for place, (token, right) in enumerate(zip(mine, wanted, strict=True)):
            if token != right:
                return [f"sample {sample}: token {place} of {len(wanted)} is {token}, torch eager chooses {right}"]
    return []
