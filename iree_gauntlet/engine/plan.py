"""Cases → steps: a pure function of the cases and of what is known about this machine.

Everything that it needs to know comes in through `PlanContext`: no network, no process, no clock.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.onnx_data import list_data_files
from iree_gauntlet.artifacts.program_parameters import PARAMETERS_FORMAT, archive_name
from iree_gauntlet.cases import COUNTED, EXPECTED_OUTPUT, MAIN, Case, MadeValues, Module, OnnxImport, Origin
from iree_gauntlet.dialects.locations import problem_of_flag
from iree_gauntlet.engine.commands import (
    STATISTICS_FILE,
    Places,
    format_shape,
    import_argv,
    locate_step_folder,
    make_benchmark_argv,
    make_counted_argv,
    make_counted_flags,
    make_parameters_argv,
    make_threshold_argv,
    makes_dumps,
    parameters_role,
    with_statistics,
)
from iree_gauntlet.engine.modules.module_key import join_flags
from iree_gauntlet.measuring.numerics.tolerances import find_void_tolerances, find_wrong_tolerances
from iree_gauntlet.stages import CHECKS, FailureKind, Kind, Stage
from iree_gauntlet.steps import (
    ACTUAL_OUTPUT,
    NOTHING_COMPARED,
    CacheLookup,
    Command,
    Resources,
    Step,
    StepInput,
    make_step_id,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.errors import Problem
    from iree_gauntlet.journal_events import Device
    from iree_gauntlet.measuring.instructions.counters import Counter
    from iree_gauntlet.toolchains.flags import Translation


# Ingredients and inputs of this prefix are files that a flag or an ONNX file names; the flag's or their name follows.
FILE_ROLE = "file "
# A new number disowns all counts that were made before.
_COUNT_FORMAT = 4
_NO_ONNXRUNTIME = "onnxruntime, which makes the expected outputs, is not installed: pip install 'iree-gauntlet[record]'"


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps chain by chain, each chain in the order of its stages, and flags that the tools do not know.

    Attributes:
        broken: flags of single cases of operator suites, whose steps are blocked: all others can run.
        devices: what it runs on besides the CPU, once that is known.
    """

    steps: tuple[Step, ...]
    problems: tuple[Problem, ...] = ()
    broken: tuple[Problem, ...] = ()
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What planning has to know of the machine.

    Attributes:
        run_dir: absolute.
        compile, run_module, benchmark_module, python: paths of the tools.
        python_env: changes of the environment for that Python.
        own_python: the interpreter that this toolkit runs in.
        reference_script: the program that runs a model in onnxruntime, in that interpreter.
        onnxruntime: its version there; empty where there is none.
        ir_tool: path of iree-opt, for bytecode that only the compiler reads; empty where the toolchain has none.
        importer: identity of the importer (compiler and onnx package).
        linker: path of IREE's own linker; empty where the toolchain has none.
        translate: a tool's flags as this toolchain spells them.
        artifact_path: where the file of a URL lies or will lie.
        artifact_hash: its SHA-256 where known, else an empty string.
        flag_ingredients: compile flags as they enter the key, given the folder of relative paths.
        host_of: what `host` in some flags means here; empty where they do not say host.
        counter: finds what counts instructions here; raises ToolchainError where nothing does.
        lookup: whether the module cache holds something (name for people, ingredients).
        timeouts: seconds by stage; they override defaults and specs.
        env: changes of the environment in which chains of torch are made; programs and modules are kept apart by them.
    """

    run_dir: Path
    compile: str
    run_module: str
    benchmark_module: str
    python: str
    import_script: str
    own_python: str
    reference_script: str
    onnxruntime: str
    ir_tool: str
    importer: str
    compiler: str
    runtime: str
    linker: str
    translate: Callable[[Sequence[str], str], Translation]
    artifact_path: Callable[[str], Path]
    artifact_hash: Callable[[str], str]
    flag_ingredients: Callable[[Sequence[str], str], tuple[str, ...]]
    host_of: Callable[[Sequence[str]], str]
    lookup: Callable[[str, Mapping[str, str]], CacheLookup]
    counter: Callable[[], Counter]
    timeouts: Mapping[Stage, float] = field(default_factory=dict)
    force_recompile: bool = False
    python_env: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        """`env` as an ingredient of what is made in it; none where it changes nothing."""
        return {"environment": " ".join(f"{name}={value}" for name, value in self.env)} if self.env else {}


def make_plan(cases: CaseSet, stages: Iterable[Stage], context: PlanContext) -> Plan:
    """Plans the steps of some stages, and of the stages before them, for the selected cases."""
    return _Planner(cases, frozenset(stages), context).plan()


def make_step(
    case: Case, stage: Stage, context: PlanContext, role: str = MAIN, *, siblings: Sequence[Case] = (), **more: Any
) -> Step:
    """A step with what all steps of a case have in common; what a sibling in its chain expects of it is expected."""
    row = stage.row
    own = role in (MAIN, COUNTED)
    known = (item for other in siblings for item in other.expectations if item.stage is stage and own)
    expected = next(known, None)
    return Step(
        id=make_step_id(case.chain, stage, role),
        chain=case.chain,
        dialect=case.dialect,
        model=case.model,
        submodel=case.submodel,
        target=case.target.name,
        sku=case.target.sku,
        stage=stage,
        role=role,
        folder=locate_step_folder(context.run_dir, case.chain, stage, role),
        timeout=context.timeouts.get(stage, dict(case.timeouts).get(stage, row.timeout)),
        origin=case.origin,
        resources=Resources(row.cores, row.is_alone, case.device if row.runs_modules else ""),
        cache=CacheLookup(reason=row.uncached),
        goldens=case.list_goldens(stage),
        expect_failure=f"{expected.reason} ({expected.origin.file})" if expected else "",
        expect_kinds=expected.possible_kinds if expected else (),
        expect_match=expected.match if expected else "",
        expect_origin=expected.origin if expected else None,
        **more,
    )


def blocked(step: Step, reason: str) -> Step:
    """A step that cannot run: it waits for nothing, so that its error is the first thing that is seen."""
    return replace(step, blocked=reason, needs=(), resources=Resources(cores=0))


def _is_idle(case: Case) -> bool:
    """Whether a case is skipped and makes nothing that others need: then nothing is done for it."""
    return bool(case.skip_reason) and (case.reference or not _makes_modules(case))


def _makes_modules(case: Case) -> bool:
    """Whether a case defines a module, which others may use."""
    return any(module.origin.file == case.origin.file for module in (*case.modules, *case.extra_modules))


def _explain_uncounted(case: Case) -> str:
    """Why the instructions of a case are not counted; empty where they are."""
    if not case.target.kind.is_cpu:
        return f"instructions are counted on CPUs, and {case.target.name} is none"
    runs_badly = {FailureKind.CRASHES, FailureKind.DOES_NOT_RUN}
    beside = (item for item in case.expectations if item.stage is Stage.COUNT.row.beside)
    expected = next((item for item in beside if runs_badly.intersection(item.kinds)), None)
    return f"its {expected.stage} is expected to fail: {expected.reason}" if expected else ""


class _Planner:
    def __init__(self, cases: CaseSet, stages: frozenset[Stage], context: PlanContext) -> None:
        self._stages = stages.union(*(stage.row.upstream for stage in stages))
        self._context = context
        kinds = frozenset(kind for stage in stages for kind in (*stage.row.kinds, *stage.row.compiles_for))
        self._selected = [case for case in cases.cases if not kinds.isdisjoint(case.kinds)]
        self._active = [case for case in self._selected if not _is_idle(case)]
        self._used = {module.id for case in self._active for module in case.modules}
        # Synthetic weights of a case are of use where its check is planned, or where they are asked for themselves.
        self._fetches_alone = all(stage.row.fetches for stage in stages)
        asked = Stage.PARAMETERS in stages or self._fetches_alone
        # What comes after the weights calls the model, with them and with its inputs.
        rows = [stage.row for stage in self._stages]
        self._called = {kind for row in rows if Stage.PARAMETERS in row.upstream for kind in row.kinds}
        self._with_made = {case.id for case in self._active if asked or case.kind in self._called}
        self._made = {made.module.id: made.module for case in self._active for _, made in self._list_made_values(case)}
        # A selected case that these stages leave out (a quality case while benchmarking) still makes its own module.
        others = [case for case in cases.cases if kinds.isdisjoint(case.kinds) and _makes_modules(case)]
        self._needed = self._used | self._made.keys()
        needed = (case for case in (*cases.required, *others) if self._needed & {module.id for module in case.modules})
        self._required = list(needed)
        self._required_ids = {case.id for case in self._required}
        self._owners: dict[str, Case] = {}
        for case in (*self._active, *self._required):
            for module in self._choose_modules(case):
                if module.program.url and module.origin.file == case.origin.file:
                    self._owners.setdefault(module.id, case)
        self._problems: set[Problem] = set()
        self._broken: set[Problem] = set()
        self._steps: dict[str, Step] = {}
        # Asked once however many steps have the same flags or problem.
        self._translate_flags = cache(context.translate)
        self._problem_of_flag = cache(problem_of_flag)
        self._places = Places(context.run_dir, self._owners, lambda url: str(context.artifact_path(url)))
        self._counted = replace(self._places, counted=True)
        planners = {
            Stage.REFERENCE: self._plan_reference,
            Stage.THRESHOLD: self._plan_threshold,
            Stage.COMPSTAT: self._plan_compile_statistics,
            Stage.COUNT: self._plan_count,
            Stage.BENCHMARK: self._plan_benchmark,
        }
        self._planners = [({*stage.row.kinds}, plan) for stage, plan in planners.items() if stage in self._stages]
        self._chains: dict[str, list[Case]] = {}
        for case in (*self._required, *self._selected):
            self._chains.setdefault(case.chain, []).append(case)

    def plan(self) -> Plan:
        if Stage.FETCH in self._stages:
            for cases in self._chains.values():
                self._plan_fetch(cases)
        for case in (*self._required, *self._selected):
            for module in self._list_owned(case):
                self._plan_module_steps(case, module)
        for case in self._selected:
            if Stage.PARAMETERS in self._stages:
                for scope, made in self._list_made_values(case):
                    self._plan_parameters(case, scope, made)
            for kinds, plan in self._planners:
                if not kinds.isdisjoint(case.kinds) and (step := plan(case)):
                    self._add(step)
        order = {stage: index for index, stage in enumerate(Stage)}
        steps = sorted(self._steps.values(), key=lambda step: (step.chain, order[step.stage], step.id))
        return Plan(tuple(steps), tuple(sorted(self._problems)), tuple(sorted(self._broken)))

    def _list_made_values(self, case: Case) -> Iterator[tuple[str, MadeValues]]:
        """(scope, values) of the archives that are generated for a case."""
        if case.id in self._with_made:
            yield from ((item.scope, item.made) for item in case.parameters if item.made)

    def _list_owned(self, case: Case) -> list[Module]:
        """The modules whose steps belong to a case's chain."""
        return [module for module in self._choose_modules(case) if self._owners.get(module.id) is case]

    def _choose_modules(self, case: Case) -> list[Module]:
        """The modules of a case that are made: all of a selected one, of a required one those that are used."""
        modules = [*case.modules, *case.extra_modules]
        required = case.id in self._required_ids
        return [module for module in modules if not required or module.id in self._needed]

    def _list_module_needs(self, modules: Iterable[Module]) -> tuple[str, ...]:
        owners = [(self._owners.get(module.id), module) for module in modules]
        return tuple(make_step_id(owner.chain, Stage.COMPILE, module.role) for owner, module in owners if owner)

    def _locate(self, case: Case, stage: Stage) -> str:
        return locate_step_folder(self._context.run_dir, case.chain, stage)

    def _make_step(self, case: Case, stage: Stage, role: str = MAIN, **more: Any) -> Step:
        return make_step(case, stage, self._context, role, siblings=self._chains[case.chain], **more)

    def _add(self, step: Step) -> None:
        needs = tuple(dict.fromkeys(step.needs))
        if needs != step.needs:
            step = replace(step, needs=needs)
        if step.skip or step.blocked:
            # Its reason is its own, whatever the results of the steps before it.
            step = replace(step, needs=(), resources=Resources(cores=0))
        self._steps[step.id] = step

    def _make_check(self, case: Case, stage: Stage, wrong: str = "", **more: Any) -> Step:
        """A step of a stage that is about the whole case; `wrong` with its flags keeps it from running."""
        judged = stage.row.beside or stage
        skip = case.skip_reason or dict(case.skips).get(judged, "")
        return self._make_step(case, stage, blocked=case.blocked(judged) or wrong, skip=skip, **more)

    def _translate(
        self, flags: Sequence[str], tool: str, origin: Origin, problems: set[Problem] | None = None
    ) -> Translation:
        """Flags as the tool spells them."""
        result = self._translate_flags(tuple(flags), tool)
        for unknown in result.unknown:
            problem = self._problem_of_flag(origin.file, unknown.flag, unknown.message, unknown.hint)
            (self._problems if problems is None else problems).add(problem)
        return result

    def _run_flags(self, case: Case, tool: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """The flags of a run as the tool spells them, notes, and which of its own the tool does not know."""
        shared = self._translate(case.run_flags, tool, case.flags_origin or case.origin)
        if not case.own_flags:
            return shared.flags, (*case.notes, *shared.notes), ""
        own = self._translate(case.own_flags, tool, case.origin, self._broken)
        unknown = (self._problem_of_flag(case.origin.file, item.flag, item.message, item.hint) for item in own.unknown)
        reasons = "; ".join(problem.in_one_line for problem in unknown)
        return (*shared.flags, *own.flags), (*case.notes, *shared.notes, *own.notes), reasons

    # Steps

    def _plan_fetch(self, cases: Sequence[Case]) -> None:
        """One step for the files of a chain: what its planned stages read, and nothing else."""
        inputs: dict[str, StepInput] = {}
        for case in cases:
            for role, url in self._list_wanted(case):
                if url and (url not in inputs or inputs[url].role == EXPECTED_OUTPUT):
                    inputs[url] = _make_input(role, url, self._context)
        if not inputs:
            return
        missing = sum(not item.sha256 for item in inputs.values())
        reason = f"{missing} of {len(inputs)} files not fetched before" if missing else "all files are known by hash"
        step = self._make_step(cases[0], Stage.FETCH, inputs=tuple(inputs.values()))
        self._add(replace(step, cache=CacheLookup(reason=reason)))

    def _list_wanted(self, case: Case) -> Iterable[tuple[str, str]]:
        """(role, URL) of the files that the planned stages of a case read."""
        if _is_idle(case):
            return
        skipped = dict(case.skips)
        for module in self._list_owned(case) if Stage.COMPILE not in skipped else ():
            yield from list_files(module, self._context)
        required = case.id in self._required_ids
        kind = Kind.BENCHMARK if required and case.kind is not Kind.COMPILE else case.kind
        if CHECKS.get(kind) in skipped or not (self._fetches_alone or kind in self._called):
            return
        for item in case.parameters:
            yield "parameters", item.url
        if not required:
            for argument in case.inputs:
                yield "input", argument.url
            # Without a threshold step, the fetch says what is not to be had of these too.
            role = EXPECTED_OUTPUT if any(stage.row.checks_numbers for stage in self._stages) else "input"
            for argument in case.expected_outputs:
                yield role, argument.url

    def _fetch_needs(self, chains: Iterable[str]) -> tuple[str, ...]:
        ids = [make_step_id(chain, Stage.FETCH) for chain in chains]
        return tuple(name for name in ids if name in self._steps)

    def _plan_module_steps(self, case: Case, module: Module) -> None:
        """Imports and compiles a module, as far as these stages need it."""
        needs = self._fetch_needs([case.chain])
        imported = ""
        onnx = module.program.onnx
        if onnx is not None and Stage.IMPORT in self._stages:
            step = _complete_import(self._make_step(case, Stage.IMPORT, module.role), module, onnx, self._context)
            self._add(replace(step, needs=needs))
            needs, imported = (step.id,), step.output("program")
        if Stage.COMPILE not in self._stages or (module.id in self._made and module.id not in self._used):
            return
        self._plan_compile(case, module, needs, imported)

    def _plan_compile(self, case: Case, module: Module, needs: Sequence[str], imported: str) -> None:
        benchmark = case.kind is Kind.BENCHMARK
        blocks = module.role in (MAIN, COUNTED) and module.origin.file == case.origin.file and not benchmark
        step = self._make_step(
            case,
            Stage.COMPILE,
            module.role,
            needs=tuple(needs),
            blocked=case.blocked(Stage.COMPILE) if blocks else "",
            skip=dict(case.skips).get(Stage.COMPILE, case.skip_reason if benchmark else ""),
        )
        step = complete_compile(
            step,
            module,
            imported,
            case.working_directory or step.folder,
            self._context,
            lambda flags, tool: self._translate(flags, tool, module.flags_origin or module.origin),
        )
        self._add(step)

    def _plan_parameters(self, case: Case, scope: str, made: MadeValues) -> None:
        """Makes an archive for the parameters that a module's program names, once for all tests that want it."""
        owner = self._owners.get(made.module.id)
        if owner is None:
            return
        role = parameters_role(scope, made)
        if make_step_id(owner.chain, Stage.PARAMETERS, role) in self._steps:
            return
        imported = self._steps.get(make_step_id(owner.chain, Stage.IMPORT, made.module.role))
        step = self._make_step(owner, Stage.PARAMETERS, role)
        step = _complete_parameters(step, scope, made, imported, self._context)
        needs = (imported.id,) if imported else self._fetch_needs([owner.chain])
        # A program that does not compile needs no weights: its failure is said once, by the compiler.
        compiled = make_step_id(owner.chain, Stage.COMPILE, made.module.role)
        needs = (*needs, compiled) if compiled in self._steps else needs
        timeout = self._make_step(case, Stage.PARAMETERS).timeout
        self._add(replace(step, needs=needs, timeout=timeout, origin=case.origin, blocked=owner.blocked_reason))

    def _list_made_needs(self, case: Case) -> tuple[str, ...]:
        values = [(self._owners.get(made.module.id), scope, made) for scope, made in self._list_made_values(case)]
        return tuple(
            make_step_id(owner.chain, Stage.PARAMETERS, parameters_role(scope, made))
            for owner, scope, made in values
            if owner
        )

    def _run_inputs(self, case: Case) -> tuple[StepInput, ...]:
        modules = [StepInput("module", self._places.module(module)) for module in (*case.modules, *case.extra_modules)]
        files = [("input", item.url) for item in case.inputs]
        files += [(EXPECTED_OUTPUT, item.url) for item in case.expected_outputs]
        files += [("parameters", item.url) for item in case.parameters]
        archives = map(self._places.archive, (item for item in case.parameters if not item.url))
        made = [StepInput("parameters", path) for path in archives if path]
        if case.reference:
            made.append(StepInput("reference", f"{self._locate(case, Stage.REFERENCE)}/reference.zip"))
        return (*modules, *made, *(_make_input(role, url, self._context) for role, url in files if url))

    def _plan_reference(self, case: Case) -> Step | None:
        if not case.reference or _is_idle(case):
            return None
        # Of a program that compiles: the compiler reports one that does not, once.
        step = self._make_step(case, Stage.REFERENCE, needs=self._list_module_needs(case.modules))
        return _complete_reference(step, case.modules[-1], self._context)

    def _plan_threshold(self, case: Case) -> Step:
        flags, notes, unknown = self._run_flags(case, "iree-run-module")
        notes = (*notes, *(item.message for item in find_void_tolerances(case)))
        wrong: list[Problem] = []
        for item in find_wrong_tolerances(case):
            # As of unknown flags: what one case of a suite says itself keeps no other from running.
            problem = self._problem_of_flag(item.file, item.flag, item.message, item.hint)
            wrong.append(problem) if item.flag in case.own_flags else self._problems.add(problem)
        folder = self._locate(case, Stage.THRESHOLD)
        argv = make_threshold_argv(self._context.run_module, case, flags, self._places, folder)
        if not case.reference and all(item.value == "(ignored)" for item in case.expected_outputs):
            notes = (*notes, NOTHING_COMPARED)
        return self._make_check(
            case,
            Stage.THRESHOLD,
            unknown or "; ".join(problem.in_one_line for problem in wrong),
            needs=(
                *self._list_module_needs((*case.modules, *case.extra_modules)),
                *self._list_made_needs(case),
                *((make_step_id(case.chain, Stage.REFERENCE),) if case.reference else ()),
                *self._fetch_needs([case.chain]),
            ),
            command=Command(argv, case.working_directory or folder),
            inputs=self._run_inputs(case),
            outputs=tuple((ACTUAL_OUTPUT, f"{folder}/actual_{i}.npy") for i in range(len(case.expected_outputs))),
            notes=notes,
            allclose=case.allclose,
        )

    def _plan_compile_statistics(self, case: Case) -> Step:
        main = case.modules[-1]
        folder = self._places.module_folder(main)
        files = (StepInput("module", f"{folder}/module.vmfb"), StepInput("statistics", f"{folder}/statistics.json"))
        return self._make_check(
            case,
            Stage.COMPSTAT,
            needs=self._list_module_needs([main]),
            inputs=files,
            idle_goldens=case.idle_goldens,
            notes=case.notes,
        )

    def _plan_count(self, case: Case) -> Step:
        """Compiles a benchmark's modules for the counter, and has it count."""
        flags, notes, unknown = self._run_flags(case, "iree-benchmark-module")
        step = self._make_check(case, Stage.COUNT, unknown, idle_goldens=case.idle_goldens, notes=notes)
        skip = step.skip or _explain_uncounted(case)
        needs = [*self._list_made_needs(case), *self._fetch_needs([case.chain])]
        if not skip:
            needs += [needed for module in case.modules for needed in self._plan_counted_compile(module)]
        argv = make_benchmark_argv(self._context.benchmark_module, case, flags, self._counted)
        archives = ((item, self._counted.archive(item)) for item in case.parameters if not item.url)
        files = [StepInput("parameters", path) for _, path in archives if path]
        files += [_make_input("parameters", item.url, self._context) for item in case.parameters if item.url]
        files += [_make_input("input", item.url, self._context) for item in case.inputs if item.url]
        command = Command(argv, case.working_directory or step.folder)
        step = replace(step, needs=tuple(needs), skip=skip)
        return _complete_count(step, command, [*map(self._counted.module, case.modules)], files, self._context)

    def _plan_counted_compile(self, module: Module) -> Iterator[str]:
        """Compiles a module for the counter, once for all that use it; ids of what has to come before a count."""
        owner = self._owners.get(module.id)
        if owner is None:
            return
        role = self._counted.get_role(module)
        if make_step_id(owner.chain, Stage.COMPILE, role) not in self._steps:
            flags = make_counted_flags(module.flags, self._context.counter().cpu, self._context.linker)
            imported = self._steps.get(make_step_id(owner.chain, Stage.IMPORT, module.role))
            # What does not compile is said once, of the module as its spec has it.
            plain = self._steps.get(make_step_id(owner.chain, Stage.COMPILE, module.role))
            needs = [*self._fetch_needs([owner.chain]), *(step.id for step in (imported, plain) if step)]
            made = imported.output("program") if imported else ""
            self._plan_compile(owner, replace(module, role=role, flags=flags), needs, made)
        yield make_step_id(owner.chain, Stage.COMPILE, role)

    def _plan_benchmark(self, case: Case) -> Step:
        flags, notes, unknown = self._run_flags(case, "iree-benchmark-module")
        argv = make_benchmark_argv(self._context.benchmark_module, case, flags, self._places)
        chains = [owner.chain for module in case.modules if (owner := self._owners.get(module.id))]
        made = (*self._list_module_needs(case.modules), *self._list_made_needs(case))
        return self._make_check(
            case,
            Stage.BENCHMARK,
            unknown,
            needs=(*made, *self._fetch_needs([*chains, case.chain])),
            command=Command(argv, case.working_directory or self._locate(case, Stage.BENCHMARK)),
            inputs=self._run_inputs(case),
            golden_keys=case.golden_keys,
            notes=notes,
        )


def _complete_import(step: Step, module: Module, options: OnnxImport, context: PlanContext) -> Step:
    """Completes the step that prepares and imports an ONNX program."""
    source, data = _make_source(module, context), _list_weights_beside(module, context)
    output = f"{step.folder}/program.mlir"
    ingredients = {
        "kind": "import",
        "program": source.sha256,
        "options": _format_options(module),
        "importer": context.importer,
        **_collect_hashes(data),
    }
    argv = import_argv(context.python, context.import_script, source.path, output, options)
    step = replace(step, inputs=(source, *data), outputs=(("program", output),), onnx=options)
    return plan_making(step, argv, ingredients, context, env=context.python_env)


def _complete_parameters(step: Step, scope: str, made: MadeValues, imported: Step | None, context: PlanContext) -> Step:
    """Completes the step that makes an archive for the parameters of one scope.

    `imported` is the step that imports the program; None where that is MLIR.
    """
    source = _make_source(made.module, context)
    program = imported.output("program") if imported else source.path
    output = f"{step.folder}/{archive_name(scope)}"
    ingredients = {
        "kind": f"parameters {PARAMETERS_FORMAT}",
        "program": source.sha256,
        "scope": scope,
        "values": made.label,
    }
    if imported:
        ingredients |= {"import": _format_options(made.module), "importer": context.importer}
    argv = make_parameters_argv(context.own_python, program, scope, made, context.ir_tool, output)
    step = replace(step, inputs=(replace(source, path=program),), outputs=(("parameters", output),))
    return plan_making(step, argv, ingredients, context)


def _complete_reference(step: Step, module: Module, context: PlanContext) -> Step:
    """Completes the step in which onnxruntime runs a module's ONNX program on synthetic inputs."""
    source, data = _make_source(module, context), _list_weights_beside(module, context)
    output = f"{step.folder}/reference.zip"
    ingredients = {
        "kind": "reference 2",
        "program": source.sha256,
        "inputs": "default_rng(0)",
        "onnxruntime": context.onnxruntime,
        **_collect_hashes(data),
    }
    argv = (context.own_python, context.reference_script, source.path, "-o", output)
    why_not = step.blocked or ("" if context.onnxruntime else _NO_ONNXRUNTIME)
    step = replace(step, inputs=(source, *data), outputs=(("reference", output),), blocked=why_not)
    return plan_making(step, argv, ingredients, context)


def complete_compile(
    step: Step,
    module: Module,
    imported: str,
    working_directory: str,
    context: PlanContext,
    translate: Callable[[Sequence[str], str], Translation],
) -> Step:
    """Completes the step that compiles a module.

    `imported` is the path of the imported program, empty where it is MLIR; relative paths in flags resolve in
    `working_directory`, but an imported program is compiled in the step's folder. `translate` spells flags as the
    compiler does, and notes those that it does not know.
    """
    # Of an operator by itself nobody asks how many dispatches it has, unless the flags do.
    counted = not module.program.name or any(STATISTICS_FILE in flag for flag in module.flags)
    source = _make_source(module, context, working_directory)
    program = module.program.name or source.path
    if imported:
        # The compiler keeps the program's path in the module: one that is the same in every run and checkout.
        program, working_directory = os.path.relpath(imported, step.folder), step.folder
    # As the spec has them: many cases have the same flags.
    translation = translate(module.flags, "iree-compile")
    flags, notes = translation.flags, translation.notes
    outputs = [("module", f"{step.folder}/module.vmfb")]
    if counted:
        outputs.append(("statistics", f"{step.folder}/statistics.json"))
        flags = with_statistics(flags, outputs[-1][1])
    if module.splat:
        outputs.append(("splat", f"{step.folder}/splat.irpa"))
        splat = translate((f"--iree-parameter-splat={outputs[-1][1]}",), "iree-compile")
        flags, notes = (*flags, *splat.flags), (*notes, *splat.notes)
    files = [(flag, _make_input(FILE_ROLE + flag, url, context)) for flag, url in module.file_flags]
    data = _list_weights_beside(module, context)
    ingredients = {
        "kind": "compile",
        "program": source.sha256,
        "flags": join_flags(context.flag_ingredients(flags, working_directory)),
        "compiler": context.compiler,
        "host": context.host_of(flags),
        **_collect_hashes((*data, *(item for _, item in files))),
    }
    if imported:
        ingredients |= {"import": _format_options(module), "importer": context.importer}
    elif module.program.name:
        # It is part of what the compiler writes into the module.
        ingredients["name"] = module.program.name
    named = (f"{flag}={item.path}" for flag, item in files)
    argv = (context.compile, program, *flags, *named, "-o", outputs[0][1])
    step = replace(
        step,
        origin=module.origin,
        inputs=(replace(source, path=imported or source.path), *data, *(item for _, item in files)),
        outputs=tuple(outputs),
        notes=notes,
    )
    return plan_making(step, argv, {**ingredients, **context.environment}, context, cwd=working_directory)


def _complete_count(
    step: Step, benchmark: Command, modules: Sequence[str], files: Sequence[StepInput], context: PlanContext
) -> Step:
    """Completes the step that counts the instructions of one call.

    `benchmark` is the benchmark's command with the modules that are counted, the main one of `modules` last; `files`
    are its inputs and parameters.
    """
    counter = context.counter()
    output = f"{step.folder}/counts.json"
    *others, main = modules
    inputs = [StepInput("program", main)]
    inputs += [StepInput(f"{FILE_ROLE}module {number}", path) for number, path in enumerate(others)]
    inputs += [replace(item, role=f"{FILE_ROLE}{item.role} {number}") for number, item in enumerate(files)]
    counted = make_counted_argv(benchmark.argv)
    plain = [_without_file(word) for word in counted[1:]]
    ingredients = {
        "kind": f"count {_COUNT_FORMAT}",
        "program": "",
        "flags": join_flags(context.flag_ingredients(plain, benchmark.cwd)),
        "tool": context.runtime,
        "counter": counter.identity,
        "cpu": counter.cpu,
        **_collect_hashes(inputs[1:]),
    }
    script = ("-m", "iree_gauntlet.measuring.instructions.count_call", f"--counter={counter.argument}")
    argv = (context.own_python, *script, "-o", output, "--", *counted)
    lookup = CacheLookup(reason="known when its module is made", ingredients=tuple(ingredients.items()))
    command = Command(argv, benchmark.cwd)
    return replace(step, command=command, inputs=tuple(inputs), outputs=(("counts", output),), cache=lookup)


def _without_file(word: str) -> str:
    """A word of a benchmark's command without the path of a file whose content is an ingredient of its own."""
    flag, _, value = word.partition("=")
    match flag:
        case "--module":
            return flag
        case "--input":
            return word.partition("@")[0]
        case "--parameters":
            scope, scoped, _ = value.partition("=")
            return f"{flag}={scope}=" if scoped else flag
        case _:
            return word


def plan_making(
    step: Step,
    argv: tuple[str, ...],
    ingredients: Mapping[str, str],
    context: PlanContext,
    cwd: str = "",
    env: tuple[tuple[str, str], ...] = (),
) -> Step:
    """A step with the command that makes its outputs, in its folder or elsewhere, and what the cache has of them."""
    command = Command(argv, cwd or step.folder, (*env, *context.env))
    return replace(step, command=command, cache=_make_lookup(context, step.id, ingredients, argv))


def _make_source(module: Module, context: PlanContext, working_directory: str = "") -> StepInput:
    url = module.program.url
    if not module.program.name:
        return _make_input("program", url, context)
    path = f"{working_directory}/{module.program.name}"
    try:
        # Small and never fetched: to hash it costs less than to look up what was remembered of it.
        with open(path, "rb") as file:  # noqa: PTH123 - one of thousands
            return StepInput("program", path, url, hashlib.file_digest(file, "sha256").hexdigest())
    except OSError:
        return StepInput("program", path, url)


def list_files(module: Module, context: PlanContext) -> Iterator[tuple[str, str]]:
    """(role, URL) of the files that a module is made from."""
    if not module.program.name:
        yield "program", module.program.url
    for flag, url in module.file_flags:
        yield FILE_ROLE + flag, url
    for weights in _list_weights_beside(module, context):
        yield weights.role, weights.url


def _list_weights_beside(module: Module, context: PlanContext) -> tuple[StepInput, ...]:
    """The files that an ONNX program on this machine keeps weights in: what is made of it depends on them too."""
    url = module.program.url
    if module.program.onnx is None or not url.startswith("file:"):
        return ()
    path = context.artifact_path(url)
    return tuple(
        _make_input(FILE_ROLE + name, (path.parent / name).as_uri(), context) for name in list_data_files(path)
    )


def _make_input(role: str, url: str, context: PlanContext) -> StepInput:
    """A URL's file as an input of a step."""
    return StepInput(role, str(context.artifact_path(url)), url, context.artifact_hash(url))


def _collect_hashes(files: Sequence[StepInput]) -> dict[str, str]:
    return {item.role: item.sha256 for item in files}


def _format_options(module: Module) -> str:
    options = module.program.onnx or OnnxImport()
    texts = [options.opset, [[name, format_shape(shape)] for name, shape in options.shapes]]
    return json.dumps(texts if options.least_opset is None else [*texts, options.least_opset])


def _make_lookup(context: PlanContext, name: str, ingredients: Mapping[str, str], argv: Sequence[str]) -> CacheLookup:
    pairs = tuple(ingredients.items())
    if context.force_recompile and not ingredients["kind"].startswith(("parameters", "reference")):
        return CacheLookup(reason="--force-recompile", ingredients=pairs)
    if makes_dumps(argv):
        return CacheLookup(reason="asked for dump files, which the cache does not keep", ingredients=pairs)
    if not ingredients["program"]:
        return CacheLookup(reason="the program's content is not known before it is fetched", ingredients=pairs)
    unknown = [role for role, value in ingredients.items() if role.startswith(FILE_ROLE) and not value]
    if unknown:
        reason = f"the {unknown[0].removeprefix(FILE_ROLE)} file is not known before it is fetched"
        return CacheLookup(reason=reason, ingredients=pairs)
    return replace(context.lookup(name, ingredients), ingredients=pairs)
