"""Planning of steps: a pure function of the cases and of the facts about this machine.

All facts come from `PlanContext`; planning uses no network, no process and no clock.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.onnx_data import list_data_files
from iree_gauntlet.artifacts.program_parameters import PARAMETERS_FORMAT, make_archive_name
from iree_gauntlet.cases import COUNTED, EXPECTED_OUTPUT, MAIN, Case, Module, OnnxImport, Origin, SyntheticParameters
from iree_gauntlet.dialects.locations import make_flag_problem
from iree_gauntlet.engine.commands import (
    STATISTICS_FILE,
    StepPaths,
    add_statistics_flags,
    format_import_options,
    locate_step_folder,
    make_benchmark_argv,
    make_counted_argv,
    make_counted_flags,
    make_import_argv,
    make_memory_argv,
    make_parameters_argv,
    make_parameters_role,
    make_threshold_argv,
    make_tuning_argv,
    makes_dumps,
    strip_file_path,
)
from iree_gauntlet.engine.modules.module_key import join_flags
from iree_gauntlet.measuring.numerics.tolerances import find_ineffective_tolerances, find_wrong_tolerances, is_tolerance
from iree_gauntlet.stages import CHECK_STAGES, FailureKind, Kind, Stage
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
    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.flags import Translation
    from iree_gauntlet.toolchains.target_runtimes import TargetRuntime


# Roles with this prefix are files that a flag or an ONNX file names; the flag or the file's name follows the prefix.
FILE_ROLE_PREFIX = "file "
# A new number invalidates all earlier counts.
_COUNT_FORMAT = 4
_TUNING_FORMAT = 1
_NO_TFLITE_IMPORTER = "tosa-converter-for-tflite is not installed: pip install 'iree-gauntlet[tflite]'"
_NO_ONNXRUNTIME = "onnxruntime, which makes the expected outputs, is not installed: pip install 'iree-gauntlet[record]'"


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps chain by chain, in the order of stages, and problems with flags that the tools do not support.

    Attributes:
        operator_case_problems: problems with flags of single cases; only the steps of such cases are blocked.
        devices: the devices besides the CPU that steps run on, once they are known.
        obstacles: by id of a step, why this machine does not run the modules of its target.
    """

    steps: tuple[Step, ...]
    problems: tuple[Problem, ...] = ()
    operator_case_problems: tuple[Problem, ...] = ()
    devices: tuple[Device, ...] = ()
    obstacles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Facts about the machine and the toolchain that planning needs.

    Attributes:
        run_dir: the absolute path of the run's folder.
        compile, python: paths of the tools.
        runtime_of: returns the tools that run the modules of a target.
        python_env: changes of the environment for `python`.
        calls_obstacle: the reason that `python` cannot make calls by this toolchain's runtime; empty if it can.
        own_python: the interpreter that this toolkit runs in.
        reference_script: the program that runs a model in onnxruntime, in `own_python`.
        onnxruntime: the version of onnxruntime in `own_python`; empty if it is not installed.
        ir_tool: path of iree-opt, for bytecode that only the compiler reads; empty if the toolchain has none.
        importer: identity of ONNX's importer (compiler and onnx package).
        tflite_importer: identity of TFLite's importer in `own_python`; empty if it is not installed.
        linker: path of IREE's own linker; empty if the toolchain has none.
        translate: returns a tool's flags as this toolchain spells them.
        artifact_path: returns the path of a URL's file, which may not be fetched yet.
        artifact_hash: returns the SHA-256 of a URL's file; empty if it is unknown.
        flag_ingredients: takes compile flags and the folder of their relative paths; returns the flags as the key has
            them.
        identify_host_cpu: returns the identity of this CPU if some flags name `host`; otherwise an empty string.
        counter: returns the instruction counter of this machine; raises ToolchainError if there is none.
        lookup: looks up an entry in the module cache, given a name for people and the ingredients.
        timeouts: seconds by stage; they override defaults and specs.
        env: changes of the environment for chains of torch models; they are part of the keys of programs and modules.
    """

    run_dir: Path
    compile: str
    runtime_of: Callable[[Target], TargetRuntime]
    python: str
    import_script: str
    calls_obstacle: str
    own_python: str
    reference_script: str
    onnxruntime: str
    ir_tool: str
    importer: str
    tflite_script: str
    tflite_importer: str
    compiler_identity: str
    runtime_identity: str
    linker: str
    translate: Callable[[Sequence[str], str], Translation]
    artifact_path: Callable[[str], Path]
    artifact_hash: Callable[[str], str]
    flag_ingredients: Callable[[Sequence[str], str], tuple[str, ...]]
    identify_host_cpu: Callable[[Sequence[str]], str]
    lookup: Callable[[str, Mapping[str, str]], CacheLookup]
    counter: Callable[[], Counter]
    timeouts: Mapping[Stage, float] = field(default_factory=dict)
    force_recompile: bool = False
    python_env: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()

    @property
    def env_ingredient(self) -> dict[str, str]:
        """`env` as an ingredient of the files that are made with it; empty if there are no changes."""
        return {"environment": " ".join(f"{name}={value}" for name, value in self.env)} if self.env else {}


def make_plan(cases: CaseSet, stages: Iterable[Stage], context: PlanContext) -> Plan:
    """Plan the steps of some stages, and of the stages that these need, for the selected cases."""
    return _Planner(cases, frozenset(stages), context).plan()


def make_step(
    case: Case, stage: Stage, context: PlanContext, role: str = MAIN, *, siblings: Sequence[Case] = (), **fields: Any
) -> Step:
    """Return a step with the fields that all steps of a case share, and an expected failure of any of `siblings`."""
    row = stage.row
    is_main = role in (MAIN, COUNTED)
    expectations = (entry for sibling in siblings for entry in sibling.expectations if entry.stage is stage and is_main)
    # Without a tuning spec, no failure of one can be expected.
    is_tuned = any(module.is_tuned for module in case.modules)
    expectation = next((e for e in expectations if is_tuned or e.kinds != (FailureKind.TUNES_NOTHING,)), None)
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
        expect_failure=f"{expectation.reason} ({expectation.origin.file})" if expectation else "",
        expect_kinds=expectation.possible_kinds if expectation else (),
        expect_match=expectation.match if expectation else "",
        expect_origin=expectation.origin if expectation else None,
        quarantine=next((e for one in siblings or (case,) for e in one.quarantines if e.stage in (None, stage)), None),
        **fields,
    )


def block_step(step: Step, reason: str) -> Step:
    """Return the step marked as unable to run; it waits for no other step, so that its error is reported first."""
    return replace(step, blocked=reason, needs=(), resources=Resources(cores=0))


class _Planner:
    def __init__(self, cases: CaseSet, stages: frozenset[Stage], context: PlanContext) -> None:
        self._stages = stages.union(*(stage.row.upstream for stage in stages))
        self._context = context
        kinds = frozenset(kind for stage in stages for kind in (*stage.row.kinds, *stage.row.kinds_only_compiled))
        self._selected_cases = [case for case in cases.cases if not kinds.isdisjoint(case.kinds)]
        self._active_cases = [case for case in self._selected_cases if not case.makes_no_steps]
        self._used_module_ids = {module.id for case in self._active_cases for module in case.modules}
        # A case needs its synthetic weights if its check is planned, or if parameters or only fetching is requested.
        self._only_fetches = all(stage.row.fetches for stage in stages)
        wants_parameters = Stage.PARAMETERS in stages or self._only_fetches
        # Stages that need the parameters stage call the model with weights and inputs.
        rows = [stage.row for stage in self._stages]
        self._kinds_that_call = {kind for row in rows if Stage.PARAMETERS in row.upstream for kind in row.kinds}
        self._archive_case_ids = {
            case.id for case in self._active_cases if wants_parameters or case.kind in self._kinds_that_call
        }
        self._archive_modules = {
            weights.module.id: weights.module for case in self._active_cases for _, weights in self._list_archives(case)
        }
        # A case whose kind these stages do not check may define a module that another case needs.
        providers = [case for case in cases.cases if kinds.isdisjoint(case.kinds) and case.makes_modules]
        self._needed_module_ids = self._used_module_ids | self._archive_modules.keys()
        candidates, needed_ids = (*cases.needed_cases, *providers), self._needed_module_ids
        self._needed_cases = [case for case in candidates if needed_ids & {module.id for module in case.modules}]
        self._needed_case_ids = {case.id for case in self._needed_cases}
        self._owners: dict[str, Case] = {}
        for case in (*self._active_cases, *self._needed_cases):
            for module in self._select_modules(case):
                if module.program.url and module.origin.file == case.origin.file:
                    self._owners.setdefault(module.id, case)
        self._problems: set[Problem] = set()
        self._operator_case_problems: set[Problem] = set()
        self._obstacles: dict[str, str] = {}
        self._steps: dict[str, Step] = {}
        # Results are cached, since many steps have the same flags or problems.
        self._translate_flags = cache(context.translate)
        self._problem_of_flag = cache(make_flag_problem)
        self._paths = StepPaths(context.run_dir, self._owners, lambda url: str(context.artifact_path(url)))
        self._counted_paths = replace(self._paths, for_count=True)
        planners: dict[Stage, Callable[[Case], Step | None]] = {
            Stage.REFERENCE: self._plan_reference,
            Stage.THRESHOLD: self._plan_threshold,
            Stage.COMPSTAT: self._plan_compile_statistics,
            Stage.COUNT: self._plan_count,
            Stage.MEMORY: partial(self._plan_benchmark, stage=Stage.MEMORY),
            Stage.BENCHMARK: self._plan_benchmark,
        }
        self._planners = [({*stage.row.kinds}, plan) for stage, plan in planners.items() if stage in self._stages]
        self._chains: dict[str, list[Case]] = {}
        for case in (*self._needed_cases, *self._selected_cases):
            self._chains.setdefault(case.chain, []).append(case)

    def plan(self) -> Plan:
        if Stage.FETCH in self._stages:
            for cases in self._chains.values():
                self._plan_fetch(cases)
        for case in (*self._needed_cases, *self._selected_cases):
            for module in self._list_owned_modules(case):
                self._plan_module_steps(case, module)
        for case in self._selected_cases:
            if Stage.PARAMETERS in self._stages:
                for scope, weights in self._list_archives(case):
                    self._plan_parameters(case, scope, weights)
            for kinds, plan in self._planners:
                if not kinds.isdisjoint(case.kinds) and (step := plan(case)):
                    self._add(step)
        order = {stage: index for index, stage in enumerate(Stage)}
        steps = sorted(self._steps.values(), key=lambda step: (step.chain, order[step.stage], step.id))
        problems, case_problems = (tuple(sorted(group)) for group in (self._problems, self._operator_case_problems))
        return Plan(tuple(steps), problems, case_problems, obstacles=self._obstacles)

    def _list_archives(self, case: Case) -> Iterator[tuple[str, SyntheticParameters]]:
        """Yield (scope, weights) of the archives that are generated for a case."""
        if case.id in self._archive_case_ids:
            yield from (
                (parameters.scope, parameters.generated) for parameters in case.parameters if parameters.generated
            )

    def _list_owned_modules(self, case: Case) -> list[Module]:
        """Return the modules whose steps belong to a case's chain."""
        return [module for module in self._select_modules(case) if self._owners.get(module.id) is case]

    def _select_modules(self, case: Case) -> list[Module]:
        """Return the modules to make: all modules of a selected case, but only used modules of a dependency."""
        modules = [*case.modules, *case.pipeline_modules]
        is_dependency = case.id in self._needed_case_ids
        return [module for module in modules if not is_dependency or module.id in self._needed_module_ids]

    def _list_module_needs(self, modules: Iterable[Module]) -> tuple[str, ...]:
        owners = [(self._owners.get(module.id), module) for module in modules]
        return tuple(make_step_id(owner.chain, Stage.COMPILE, module.role) for owner, module in owners if owner)

    def _locate(self, case: Case, stage: Stage) -> str:
        return locate_step_folder(self._context.run_dir, case.chain, stage)

    def _make_step(self, case: Case, stage: Stage, role: str = MAIN, **fields: Any) -> Step:
        return make_step(case, stage, self._context, role, siblings=self._chains[case.chain], **fields)

    def _add(self, step: Step) -> None:
        needs = tuple(dict.fromkeys(step.needs))
        if needs != step.needs:
            step = replace(step, needs=needs)
        if step.skip or step.blocked:
            # The step needs no other steps, so that it reports its own reason whatever their results are.
            step = replace(step, needs=(), resources=Resources(cores=0))
        self._steps[step.id] = step

    def _make_check(
        self, case: Case, stage: Stage, flag_errors: str = "", runtime: TargetRuntime | None = None, **fields: Any
    ) -> Step:
        """Return a step that checks the whole case; `flag_errors`, if any, block it; `runtime` runs its modules."""
        judged_stage = stage.row.accompanies or stage
        skip = case.skip_reason or dict(case.skips).get(judged_stage, "") or case.explain_no_call(stage)
        skip = skip or (runtime.explain_no_call(stage, case.target) if runtime else "")
        no_calls = runtime and len(case.calls) > 1 and (runtime.calls_obstacle or self._context.calls_obstacle)
        blocked = case.find_blocking_reason(judged_stage) or no_calls or flag_errors
        step = self._make_step(case, stage, blocked=blocked, skip=skip, idle_goldens=case.idle_goldens, **fields)
        if runtime and runtime.obstacle and not skip:
            self._obstacles[step.id] = runtime.obstacle
        return replace(step, timeout=step.timeout * runtime.timeout_factor) if runtime else step

    def _translate(
        self, flags: Sequence[str], tool: str, origin: Origin, problems: set[Problem] | None = None
    ) -> Translation:
        """Return flags as the tool spells them; record problems with flags that it does not support."""
        result = self._translate_flags(tuple(flags), tool)
        for error in result.unknown:
            problem = self._problem_of_flag(origin.file, error.flag, error.message, error.hint)
            # A tolerance that only other releases have is right in its spec: it blocks the case alone.
            of_all = self._operator_case_problems if is_tolerance(error.flag) else self._problems
            (of_all if problems is None else problems).add(problem)
        return result

    def _translate_run_flags(self, case: Case, tool: str) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Return (flags as the tool spells them, notes, messages about the case's own unsupported flags) of a run."""
        origin = case.flags_origin or case.origin
        common = self._translate(case.run_flags, tool, origin)
        case_flags = self._translate(case.own_flags, tool, case.origin, self._operator_case_problems)
        errors = [(origin.file, error) for error in common.unknown if is_tolerance(error.flag)]
        errors += [(case.origin.file, error) for error in case_flags.unknown]
        problems = (self._problem_of_flag(file, error.flag, error.message, error.hint) for file, error in errors)
        reasons = "; ".join(problem.in_one_line for problem in problems)
        return (*common.flags, *case_flags.flags), (*case.notes, *common.notes, *case_flags.notes), reasons

    # Steps

    def _plan_fetch(self, cases: Sequence[Case]) -> None:
        """Plan one step that fetches the files of a chain, but only those that the planned stages read."""
        inputs: dict[str, StepInput] = {}
        for case in cases:
            for role, url in self._list_files_to_fetch(case):
                if url and (url not in inputs or inputs[url].role == EXPECTED_OUTPUT):
                    inputs[url] = _make_input(role, url, self._context)
        if not inputs:
            return
        missing = sum(not file.sha256 for file in inputs.values())
        reason = f"{missing} of {len(inputs)} files not fetched yet" if missing else "all files are known by hash"
        step = self._make_step(cases[0], Stage.FETCH, inputs=tuple(inputs.values()))
        self._add(replace(step, cache=CacheLookup(reason=reason)))

    def _list_files_to_fetch(self, case: Case) -> Iterable[tuple[str, str]]:
        """Yield (role, URL) of the files that the planned stages of a case read."""
        if case.makes_no_steps:
            return
        skip_reasons = dict(case.skips)
        for module in self._list_owned_modules(case) if Stage.COMPILE not in skip_reasons else ():
            yield from list_files(module, self._context)
        is_dependency = case.id in self._needed_case_ids
        kind = Kind.BENCHMARK if is_dependency and case.kind is not Kind.COMPILE else case.kind
        if CHECK_STAGES.get(kind) in skip_reasons or not (self._only_fetches or kind in self._kinds_that_call):
            return
        for parameters in case.parameters:
            yield "parameters", parameters.url
        if not is_dependency:
            for argument in case.inputs:
                yield "input", argument.url
            # The threshold step reports missing expected outputs; without it, the fetch does (role `input`).
            role = EXPECTED_OUTPUT if any(stage.row.checks_numbers for stage in self._stages) else "input"
            for argument in case.expected_outputs:
                yield role, argument.url

    def _fetch_needs(self, chains: Iterable[str]) -> tuple[str, ...]:
        ids = [make_step_id(chain, Stage.FETCH) for chain in chains]
        return tuple(step_id for step_id in ids if step_id in self._steps)

    def _plan_module_steps(self, case: Case, module: Module) -> None:
        """Plan the import and the compile of a module, if the planned stages need them."""
        needs = self._fetch_needs([case.chain])
        imported_program = ""
        if module.program.is_imported and Stage.IMPORT in self._stages:
            step = _complete_import(self._make_step(case, Stage.IMPORT, module.role), module, self._context)
            self._add(replace(step, needs=needs))
            needs, imported_program = (step.id,), step.find_output("program")
        if Stage.COMPILE not in self._stages or (
            module.id in self._archive_modules and module.id not in self._used_module_ids
        ):
            return
        self._plan_compile(case, module, needs, imported_program)

    def _plan_compile(self, case: Case, module: Module, needs: Sequence[str], imported_program: str) -> None:
        benchmark = case.kind is Kind.BENCHMARK
        is_own_main_module = module.role in (MAIN, COUNTED) and module.origin.file == case.origin.file
        step = self._make_step(
            case,
            Stage.COMPILE,
            module.role,
            needs=tuple(needs),
            blocked=case.find_blocking_reason(Stage.COMPILE) if is_own_main_module and not benchmark else "",
            skip=dict(case.skips).get(Stage.COMPILE, case.skip_reason if benchmark else ""),
        )
        step = complete_compile(
            step,
            module,
            imported_program,
            case.working_directory or step.folder,
            self._context,
            lambda flags, tool: self._translate(flags, tool, module.flags_origin or module.origin),
        )
        self._add(step)

    def _plan_parameters(self, case: Case, scope: str, weights: SyntheticParameters) -> None:
        """Plan the step that makes an archive for a module's parameters, once for all cases that need it."""
        owner = self._owners.get(weights.module.id)
        if owner is None:
            return
        role = make_parameters_role(scope, weights)
        if make_step_id(owner.chain, Stage.PARAMETERS, role) in self._steps:
            return
        import_step = self._steps.get(make_step_id(owner.chain, Stage.IMPORT, weights.module.role))
        step = self._make_step(owner, Stage.PARAMETERS, role)
        step = _complete_parameters(step, scope, weights, import_step, self._context)
        needs = (import_step.id,) if import_step else self._fetch_needs([owner.chain])
        # The weights wait for the compile, so that the compiler alone reports a program that does not compile.
        compile_id = make_step_id(owner.chain, Stage.COMPILE, weights.module.role)
        needs = (*needs, compile_id) if compile_id in self._steps else needs
        timeout = self._make_step(case, Stage.PARAMETERS).timeout
        self._add(replace(step, needs=needs, timeout=timeout, origin=case.origin, blocked=owner.blocked_reason))

    def _list_parameter_needs(self, case: Case) -> tuple[str, ...]:
        return tuple(
            make_step_id(owner.chain, Stage.PARAMETERS, make_parameters_role(scope, weights))
            for scope, weights in self._list_archives(case)
            if (owner := self._owners.get(weights.module.id))
        )

    def _list_run_inputs(self, case: Case) -> tuple[StepInput, ...]:
        modules = [StepInput("module", self._paths.module(entry)) for entry in (*case.modules, *case.pipeline_modules)]
        files = [("input", tensor.url) for tensor in case.inputs]
        files += [(EXPECTED_OUTPUT, tensor.url) for tensor in case.expected_outputs]
        files += [("parameters", tensor.url) for tensor in case.parameters]
        archives = map(self._paths.archive, (tensor for tensor in case.parameters if not tensor.url))
        generated_inputs = [StepInput("parameters", path) for path in archives if path]
        if case.reference:
            generated_inputs.append(StepInput("reference", f"{self._locate(case, Stage.REFERENCE)}/reference.zip"))
        return (*modules, *generated_inputs, *(_make_input(role, url, self._context) for role, url in files if url))

    def _plan_reference(self, case: Case) -> Step | None:
        if not case.reference or case.makes_no_steps:
            return None
        # The reference waits for the compile, so that the compiler alone reports a program that does not compile.
        step = self._make_step(case, Stage.REFERENCE, needs=self._list_module_needs(case.modules))
        return _complete_reference(step, case.modules[-1], self._context)

    def _plan_threshold(self, case: Case) -> Step:
        flags, notes, flag_errors = self._translate_run_flags(case, "iree-run-module")
        notes = (*notes, *(tolerance.message for tolerance in find_ineffective_tolerances(case)))
        tolerance_problems: list[Problem] = []
        for tolerance in find_wrong_tolerances(case):
            # As with unsupported flags, an error in a case's own flags blocks only that case.
            problem = self._problem_of_flag(tolerance.file, tolerance.flag, tolerance.message, tolerance.hint)
            tolerance_problems.append(problem) if tolerance.flag in case.own_flags else self._problems.add(problem)
        folder = self._locate(case, Stage.THRESHOLD)
        is_single, context, runtime = len(case.calls) == 1, self._context, self._context.runtime_of(case.target)
        argv = make_threshold_argv(runtime.run_module, context.python, case, flags, self._paths, folder)
        env, runner = ((), runtime.runner) if is_single else (context.python_env, ())
        compared = case.expected_outputs if is_single else ()
        if not case.reference and all(output.value == "(ignored)" for output in case.expected_outputs):
            notes = (*notes, NOTHING_COMPARED)
        return self._make_check(
            case,
            Stage.THRESHOLD,
            flag_errors or "; ".join(problem.in_one_line for problem in tolerance_problems),
            runtime,
            needs=(
                *self._list_module_needs((*case.modules, *case.pipeline_modules)),
                *self._list_parameter_needs(case),
                *((make_step_id(case.chain, Stage.REFERENCE),) if case.reference else ()),
                *self._fetch_needs([case.chain]),
            ),
            command=Command(argv, case.working_directory or folder, env, runner),
            inputs=self._list_run_inputs(case),
            outputs=tuple((ACTUAL_OUTPUT, f"{folder}/actual_{i}.npy") for i in range(len(compared))),
            notes=notes,
            allclose=case.allclose,
        )

    def _plan_compile_statistics(self, case: Case) -> Step | None:
        main = case.modules[-1]
        others = (other for other in self._chains[case.chain] if other.checks_statistics)
        if not case.checks_statistics and any(others):
            # The other case of the chain has the goldens.
            return None
        folder = self._paths.module_folder(main)
        names = {"module": "module.vmfb", "statistics": "statistics.json", "code": "code.json"}
        files = tuple(StepInput(role, f"{folder}/{name}") for role, name in names.items())
        needs = self._list_module_needs([main])
        step = self._make_check(case, Stage.COMPSTAT, needs=needs, inputs=files, notes=case.notes)
        return _complete_tuning(step, self._steps[needs[0]], self._context) if needs and main.is_tuned else step

    def _plan_count(self, case: Case) -> Step:
        """Plan the compile of a benchmark's modules for the counter, and the count."""
        flags, notes, flag_errors = self._translate_run_flags(case, "iree-benchmark-module")
        runtime = self._context.runtime_of(case.target)
        step = self._make_check(case, Stage.COUNT, flag_errors, runtime, notes=notes)
        needs = [*self._list_parameter_needs(case), *self._fetch_needs([case.chain])]
        if not step.skip:
            needs += [step_id for module in case.modules for step_id in self._plan_counted_compile(module)]
        argv = make_benchmark_argv(runtime.benchmark_module, self._context.python, case, flags, self._counted_paths)
        archives = ((tensor, self._counted_paths.archive(tensor)) for tensor in case.parameters if not tensor.url)
        files = [StepInput("parameters", path) for _, path in archives if path]
        files += [_make_input("parameters", tensor.url, self._context) for tensor in case.parameters if tensor.url]
        files += [_make_input("input", tensor.url, self._context) for tensor in case.inputs if tensor.url]
        command = Command(argv, case.working_directory or step.folder)
        step = replace(step, needs=tuple(needs))
        return _complete_count(step, command, [*map(self._counted_paths.module, case.modules)], files, self._context)

    def _plan_counted_compile(self, module: Module) -> Iterator[str]:
        """Plan the compile of a module for the counter, once for all users; yield ids of steps that a count needs."""
        owner = self._owners.get(module.id)
        if owner is None:
            return
        role = self._counted_paths.get_role(module)
        if make_step_id(owner.chain, Stage.COMPILE, role) not in self._steps:
            flags = make_counted_flags(module.flags, self._context.counter().cpu, self._context.linker)
            import_step = self._steps.get(make_step_id(owner.chain, Stage.IMPORT, module.role))
            # This waits for the compile by the spec, so that a module that does not compile is reported only once.
            plain_step = self._steps.get(make_step_id(owner.chain, Stage.COMPILE, module.role))
            needs = [*self._fetch_needs([owner.chain]), *(step.id for step in (import_step, plain_step) if step)]
            imported_program = import_step.find_output("program") if import_step else ""
            self._plan_compile(owner, replace(module, role=role, flags=flags), needs, imported_program)
        yield make_step_id(owner.chain, Stage.COMPILE, role)

    def _plan_benchmark(self, case: Case, stage: Stage = Stage.BENCHMARK) -> Step:
        """Plan a benchmark, or one call of it whose memory is measured."""
        flags, notes, flag_errors = self._translate_run_flags(case, "iree-benchmark-module")
        is_single, context, runtime = len(case.calls) == 1, self._context, self._context.runtime_of(case.target)
        env, runner = ((), runtime.runner) if is_single else (context.python_env, ())
        argv = make_benchmark_argv(runtime.benchmark_module, context.python, case, flags, self._paths)
        if stage is Stage.MEMORY:
            argv = make_memory_argv(argv, on_cpu=case.target.kind.is_cpu)
        chains = [owner.chain for module in case.modules if (owner := self._owners.get(module.id))]
        module_needs = (*self._list_module_needs(case.modules), *self._list_parameter_needs(case))
        return self._make_check(
            case,
            stage,
            flag_errors,
            runtime,
            needs=(*module_needs, *self._fetch_needs([*chains, case.chain])),
            command=Command(argv, case.working_directory or self._locate(case, stage), env, runner),
            inputs=self._list_run_inputs(case),
            golden_keys=case.golden_keys,
            notes=notes,
        )


def _complete_import(step: Step, module: Module, context: PlanContext) -> Step:
    """Complete the step that imports a program of ONNX or TFLite."""
    source, weights = _make_source(module, context), _list_external_weights(module, context)
    output, onnx = f"{step.folder}/program.mlir", module.program.onnx
    identity = _identify_import(module, context, "options")
    ingredients = {"kind": "import", "program": source.sha256, **identity, **_collect_hashes(weights)}
    step = replace(step, inputs=(source, *weights), outputs=(("program", output),), onnx=onnx)
    if onnx is not None:
        argv = make_import_argv(context.python, context.import_script, source.path, output, onnx)
        return add_build_command(step, argv, ingredients, context, env=context.python_env)
    step = replace(step, blocked=step.blocked or ("" if context.tflite_importer else _NO_TFLITE_IMPORTER))
    argv = make_import_argv(context.own_python, context.tflite_script, source.path, output, OnnxImport())
    return add_build_command(step, argv, ingredients, context)


def _complete_parameters(
    step: Step, scope: str, weights: SyntheticParameters, import_step: Step | None, context: PlanContext
) -> Step:
    """Complete the step that makes an archive for the parameters of one scope.

    `import_step` is the step that imports the program; None if the program is MLIR.
    """
    source = _make_source(weights.module, context)
    program = import_step.find_output("program") if import_step else source.path
    output = f"{step.folder}/{make_archive_name(scope)}"
    ingredients = {
        "kind": f"parameters {PARAMETERS_FORMAT}",
        "program": source.sha256,
        "scope": scope,
        "values": weights.label,
    }
    if import_step:
        ingredients |= _identify_import(weights.module, context, "import")
    argv = make_parameters_argv(context.own_python, program, scope, weights, context.ir_tool, output)
    step = replace(step, inputs=(replace(source, path=program),), outputs=(("parameters", output),))
    return add_build_command(step, argv, ingredients, context)


def _complete_reference(step: Step, module: Module, context: PlanContext) -> Step:
    """Complete the step in which onnxruntime runs a module's ONNX program on synthetic inputs."""
    source, weights = _make_source(module, context), _list_external_weights(module, context)
    output = f"{step.folder}/reference.zip"
    ingredients = {
        "kind": "reference 2",
        "program": source.sha256,
        "inputs": "default_rng(0)",
        "onnxruntime": context.onnxruntime,
        **_collect_hashes(weights),
    }
    argv = (context.own_python, context.reference_script, source.path, "-o", output)
    block_reason = step.blocked or ("" if context.onnxruntime else _NO_ONNXRUNTIME)
    step = replace(step, inputs=(source, *weights), outputs=(("reference", output),), blocked=block_reason)
    return add_build_command(step, argv, ingredients, context)


def complete_compile(
    step: Step,
    module: Module,
    imported_program: str,
    working_directory: str,
    context: PlanContext,
    translate: Callable[[Sequence[str], str], Translation],
) -> Step:
    """Complete the step that compiles a module.

    `imported_program` is a path, or empty if the program is MLIR. Relative paths in flags resolve in
    `working_directory`, or in the step's folder for an imported program. `translate` returns flags as the compiler
    spells them, and records unsupported flags.
    """
    # Write no statistics for a single operator (its program has a name), unless its flags ask for them.
    has_statistics = not module.program.local_file or any(STATISTICS_FILE in flag for flag in module.flags)
    source = _make_source(module, context, working_directory)
    program = module.program.local_file or source.path
    if imported_program:
        # The compiler writes the program's path into the module, so use a path that is the same in every run.
        program, working_directory = os.path.relpath(imported_program, step.folder), step.folder
    # Translate the spec's flags alone, since this result is cached and many cases have the same flags.
    translation = translate(module.flags, "iree-compile")
    flags, notes = translation.flags, translation.notes
    outputs = [("module", f"{step.folder}/module.vmfb")]
    if has_statistics:
        outputs += [("statistics", f"{step.folder}/statistics.json"), ("code", f"{step.folder}/code.json")]
        flags = add_statistics_flags(flags, outputs[1][1])
    if module.splat:
        outputs.append(("splat", f"{step.folder}/splat.irpa"))
        splat = translate((f"--iree-parameter-splat={outputs[-1][1]}",), "iree-compile")
        flags, notes = (*flags, *splat.flags), (*notes, *splat.notes)
    files = [(flag, _make_input(FILE_ROLE_PREFIX + flag, url, context)) for flag, url in module.file_flags]
    weights = _list_external_weights(module, context)
    ingredients = {
        "kind": "compile",
        "program": source.sha256,
        "flags": join_flags(context.flag_ingredients(flags, working_directory)),
        "compiler": context.compiler_identity,
        "host": context.identify_host_cpu(flags),
        **_collect_hashes((*weights, *(file for _, file in files))),
    }
    if imported_program:
        ingredients |= _identify_import(module, context, "import")
    elif module.program.local_file:
        # The compiler writes the name into the module.
        ingredients |= {"name": module.program.local_file}
    argv = (context.compile, program, *flags, *(f"{flag}={file.path}" for flag, file in files), "-o", outputs[0][1])
    step = replace(
        step,
        origin=module.origin,
        inputs=(replace(source, path=imported_program or source.path), *weights, *(file for _, file in files)),
        outputs=tuple(outputs),
        notes=notes,
    )
    return add_build_command(step, argv, {**ingredients, **context.env_ingredient}, context, cwd=working_directory)


def _complete_tuning(step: Step, compile_step: Step, context: PlanContext) -> Step:
    """Complete the step that counts the dispatches that a tuning spec matches, which runs the compiler twice."""
    command = compile_step.required_command
    output = f"{step.folder}/tuning.json"
    argv = make_tuning_argv(context.own_python, command.argv, compile_step.folder, step.folder, output)
    step = replace(
        step,
        # A worker of a cluster may have the module alone, and this compiles its program again.
        needs=(*step.needs, *compile_step.needs),
        inputs=(*step.inputs, *compile_step.inputs),
        outputs=(("tuning", output),),
        timeout=compile_step.timeout,
        resources=compile_step.resources,
    )
    ingredients = {**dict(compile_step.cache.ingredients), "kind": f"tuning {_TUNING_FORMAT}"}
    return add_build_command(step, argv, ingredients, context, cwd=command.cwd)


def _complete_count(
    step: Step, benchmark: Command, modules: Sequence[str], files: Sequence[StepInput], context: PlanContext
) -> Step:
    """Complete the step that counts the instructions of one call.

    `benchmark` is the benchmark's command with the modules for the counter. `modules` has the main module last; `files`
    are the inputs and parameters of the benchmark.
    """
    counter = context.counter()
    output = f"{step.folder}/counts.json"
    *dependencies, main = modules
    inputs = [StepInput("program", main)]
    inputs += [StepInput(f"{FILE_ROLE_PREFIX}module {number}", path) for number, path in enumerate(dependencies)]
    inputs += [replace(file, role=f"{FILE_ROLE_PREFIX}{file.role} {number}") for number, file in enumerate(files)]
    counted_argv = make_counted_argv(benchmark.argv)
    words_for_key = [strip_file_path(word) for word in counted_argv[1:]]
    ingredients = {
        "kind": f"count {_COUNT_FORMAT}",
        "program": "",
        "flags": join_flags(context.flag_ingredients(words_for_key, benchmark.cwd)),
        "tool": context.runtime_identity,
        "counter": counter.identity,
        "cpu": counter.cpu,
        **_collect_hashes(inputs[1:]),
    }
    script = ("-m", "iree_gauntlet.measuring.instructions.count_call", f"--counter={counter.argument}")
    argv = (context.own_python, *script, "-o", output, "--", *counted_argv)
    lookup = CacheLookup(reason="known when its module is made", ingredients=tuple(ingredients.items()))
    command = Command(argv, benchmark.cwd)
    return replace(step, command=command, inputs=tuple(inputs), outputs=(("counts", output),), cache=lookup)


def add_build_command(
    step: Step,
    argv: tuple[str, ...],
    ingredients: Mapping[str, str],
    context: PlanContext,
    cwd: str = "",
    env: tuple[tuple[str, str], ...] = (),
) -> Step:
    """Return a step with the command that makes its outputs, and with the cache lookup of these outputs."""
    command = Command(argv, cwd or step.folder, (*env, *context.env))
    return replace(step, command=command, cache=_make_lookup(context, step.id, ingredients, argv))


def _make_source(module: Module, context: PlanContext, working_directory: str = "") -> StepInput:
    url = module.program.url
    if not module.program.local_file:
        return _make_input("program", url, context)
    path = f"{working_directory}/{module.program.local_file}"
    try:
        # The file is small and never fetched, so hashing it costs less than looking up a stored hash.
        with open(path, "rb") as file:  # noqa: PTH123 - one of thousands
            return StepInput("program", path, url, hashlib.file_digest(file, "sha256").hexdigest())
    except OSError:
        return StepInput("program", path, url)


def list_files(module: Module, context: PlanContext) -> Iterator[tuple[str, str]]:
    """Yield (role, URL) of the files that a module is made from."""
    if not module.program.local_file:
        yield "program", module.program.url
    for flag, url in module.file_flags:
        yield FILE_ROLE_PREFIX + flag, url
    yield from ((weights.role, weights.url) for weights in _list_external_weights(module, context))


def _list_external_weights(module: Module, context: PlanContext) -> tuple[StepInput, ...]:
    """Return the local files with an ONNX program's external weights, on which its results depend too."""
    url = module.program.url
    if module.program.onnx is None or not url.startswith("file:"):
        return ()
    path = context.artifact_path(url)
    return tuple(
        _make_input(FILE_ROLE_PREFIX + name, (path.parent / name).as_uri(), context) for name in list_data_files(path)
    )


def _make_input(role: str, url: str, context: PlanContext) -> StepInput:
    """Return a URL's file as an input of a step."""
    return StepInput(role, str(context.artifact_path(url)), url, context.artifact_hash(url))


def _collect_hashes(files: Sequence[StepInput]) -> dict[str, str]:
    return {file.role: file.sha256 for file in files}


def _identify_import(module: Module, context: PlanContext, key: str) -> dict[str, str]:
    """Return the ingredients that an import adds: its options, under a key, and the importer."""
    importer = context.tflite_importer if module.program.is_tflite else context.importer
    return {key: format_import_options(module.program.onnx or OnnxImport()), "importer": importer}


def _make_lookup(context: PlanContext, name: str, ingredients: Mapping[str, str], argv: Sequence[str]) -> CacheLookup:
    pairs = tuple(ingredients.items())
    if context.force_recompile and not ingredients["kind"].startswith(("parameters", "reference")):
        return CacheLookup(reason="--force-recompile", ingredients=pairs)
    if makes_dumps(argv):
        return CacheLookup(reason="dump files were requested, which the cache does not keep", ingredients=pairs)
    if not ingredients["program"]:
        return CacheLookup(reason="the program's content is not known before it is fetched", ingredients=pairs)
    missing_roles = [role for role, value in ingredients.items() if role.startswith(FILE_ROLE_PREFIX) and not value]
    if missing_roles:
        reason = f"the {missing_roles[0].removeprefix(FILE_ROLE_PREFIX)} file is not known before it is fetched"
        return CacheLookup(reason=reason, ingredients=pairs)
    return replace(context.lookup(name, ingredients), ingredients=pairs)
