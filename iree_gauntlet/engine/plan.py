"""Cases → steps: a pure function of the cases and of what is known about this machine.

Everything that it needs to know comes in through `PlanContext`: no network, no process, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import COUNTED, EXPECTED_OUTPUT, MAIN, Case, MadeValues, Module, Origin
from iree_gauntlet.dialects.locations import problem_of_flag
from iree_gauntlet.engine.commands import (
    Places,
    make_benchmark_argv,
    make_counted_flags,
    make_threshold_argv,
    parameters_role,
)
from iree_gauntlet.engine.plan_modules import (
    PlanContext,
    compile_step,
    count_step,
    import_step,
    list_files,
    parameters_step,
    reference_step,
)
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
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.errors import Problem
    from iree_gauntlet.journal_events import Device
    from iree_gauntlet.toolchains.flags import Translation


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


def make_plan(cases: CaseSet, stages: Iterable[Stage], context: PlanContext) -> Plan:
    """Plans the steps of some stages, and of the stages before them, for the selected cases."""
    return _Planner(cases, frozenset(stages), context).plan()


def blocked(step: Step, reason: str) -> Step:
    """A step that cannot run: it waits for nothing, so that its error is the first thing that is seen."""
    return replace(step, blocked=reason, needs=(), resources=Resources(cores=0))


def _is_idle(case: Case) -> bool:
    """Whether a case is skipped and makes nothing that others need: then nothing is done for it."""
    return bool(case.skip_reason) and (case.reference or not _makes_modules(case))


def _makes_modules(case: Case) -> bool:
    """Whether a case defines a module, which others may use."""
    return any(module.origin.file == case.origin.file for module in (*case.modules, *case.extra_modules))


def _format_uncounted(case: Case) -> str:
    """Why the instructions of a case are not counted; empty where they are."""
    if not case.target.kind.is_cpu:
        return f"instructions are counted on CPUs, and {case.target.name} is none"
    runs_badly = {FailureKind.CRASHES, FailureKind.DOES_NOT_RUN}
    expected = [item for item in case.expectations if item.stage is Stage.BENCHMARK and runs_badly & {*item.kinds}]
    return f"its benchmark is expected to fail: {expected[0].reason}" if expected else ""


class _Planner:
    def __init__(self, cases: CaseSet, stages: frozenset[Stage], context: PlanContext) -> None:
        self._stages = stages.union(*(stage.row.upstream for stage in stages))
        self._context = context
        kinds = frozenset(kind for stage in stages for kind in (*stage.row.kinds, *stage.row.compiles_for))
        self._selected = [case for case in cases.cases if not kinds.isdisjoint(case.kinds)]
        self._active = [case for case in self._selected if not _is_idle(case)]
        self._used = {module.id for case in self._active for module in case.modules}
        # Synthetic weights of a case are of use where its check is planned, or where they are asked for themselves.
        asked = Stage.PARAMETERS in stages or self._stages == {Stage.FETCH}
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
        # Asked once however many steps have the same file, flags or problem.
        self._find_artifact = cache(lambda url: (str(context.artifact_path(url)), context.artifact_hash(url)))
        self._translate_flags = cache(context.translate)
        self._problem_of_flag = cache(problem_of_flag)
        self._places = Places(context.run_dir, self._owners, lambda url: self._find_artifact(url)[0])
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
                if not kinds.isdisjoint(case.kinds):
                    plan(case)
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

    def _compute_timeout(self, case: Case, stage: Stage) -> float:
        return self._context.timeouts.get(stage, dict(case.timeouts).get(stage, stage.row.timeout))

    def _make_input(self, role: str, url: str) -> StepInput:
        """A URL's file as an input of a step."""
        path, sha256 = self._find_artifact(url)
        return StepInput(role, path, url, sha256)

    def _make_step(self, case: Case, stage: Stage, role: str = MAIN, **more: Any) -> Step:
        """A step with what all steps of a case have in common, and more fields."""
        siblings = self._chains[case.chain]
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
            folder=self._places.folder(case.chain, stage, role),
            timeout=self._compute_timeout(case, stage),
            origin=case.origin,
            resources=Resources(stage.row.cores, stage.row.is_alone, case.device if stage.row.runs_modules else ""),
            expect_failure=f"{expected.reason} ({expected.origin.file})" if expected else "",
            expect_kinds=expected.possible_kinds if expected else (),
            expect_match=expected.match if expected else "",
            expect_origin=expected.origin if expected else None,
            **more,
        )

    def _add(self, step: Step) -> None:
        needs = tuple(dict.fromkeys(step.needs))
        if needs != step.needs:
            step = replace(step, needs=needs)
        if step.skip:
            # Its reason is its own, whatever the results of the steps before it.
            step = replace(step, needs=(), resources=Resources(cores=0))
        self._steps[step.id] = blocked(step, step.blocked) if step.blocked else step

    def _add_check(self, case: Case, stage: Stage, wrong: str = "", **more: Any) -> None:
        """Adds a step of a stage that is about the whole case; `wrong` with its flags keeps it from running."""
        skip = case.skip_reason or dict(case.skips).get(stage, "")
        self._add(self._make_step(case, stage, blocked=case.blocked(stage) or wrong, skip=skip, **more))

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
                    inputs[url] = self._make_input(role, url)
        if not inputs:
            return
        missing = sum(not item.sha256 for item in inputs.values())
        reason = f"{missing} of {len(inputs)} files not fetched before" if missing else "all files are known by hash"
        step = self._make_step(cases[0], Stage.FETCH)
        files = tuple(inputs.values())
        self._add(replace(step, inputs=files, cache=CacheLookup(reason=reason)))

    def _list_wanted(self, case: Case) -> Iterable[tuple[str, str]]:
        """(role, URL) of the files that the planned stages of a case read."""
        if _is_idle(case):
            return
        skipped = dict(case.skips)
        for module in self._list_owned(case) if Stage.COMPILE not in skipped else ():
            yield from list_files(module, self._context)
        required = case.id in self._required_ids
        kind = Kind.BENCHMARK if required and case.kind is not Kind.COMPILE else case.kind
        if CHECKS.get(kind) in skipped or not (self._stages == {Stage.FETCH} or kind in self._called):
            return
        for item in case.parameters:
            yield "parameters", item.url
        if not required:
            for argument in case.inputs:
                yield "input", argument.url
            # Without a threshold step, the fetch says what is not to be had of these too.
            role = EXPECTED_OUTPUT if Stage.THRESHOLD in self._stages else "input"
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
            step = import_step(self._make_step(case, Stage.IMPORT, module.role), module, onnx, self._context)
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
        step = compile_step(
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
        step = parameters_step(self._make_step(owner, Stage.PARAMETERS, role), scope, made, imported, self._context)
        needs = (imported.id,) if imported else self._fetch_needs([owner.chain])
        # A program that does not compile needs no weights: its failure is said once, by the compiler.
        compiled = make_step_id(owner.chain, Stage.COMPILE, made.module.role)
        needs = (*needs, compiled) if compiled in self._steps else needs
        timeout = self._compute_timeout(case, Stage.PARAMETERS)
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
            made.append(StepInput("reference", f"{self._places.folder(case.chain, Stage.REFERENCE)}/reference.zip"))
        return (*modules, *made, *(self._make_input(role, url) for role, url in files if url))

    def _plan_reference(self, case: Case) -> None:
        if case.reference and not _is_idle(case):
            # Of a program that compiles: the compiler reports one that does not, once.
            step = self._make_step(case, Stage.REFERENCE, needs=self._list_module_needs(case.modules))
            self._add(reference_step(step, case.modules[-1], self._context))

    def _plan_threshold(self, case: Case) -> None:
        flags, notes, unknown = self._run_flags(case, "iree-run-module")
        notes = (*notes, *(item.message for item in find_void_tolerances(case)))
        wrong: list[Problem] = []
        for item in find_wrong_tolerances(case):
            # As of unknown flags: what one case of a suite says itself keeps no other from running.
            problem = self._problem_of_flag(item.file, item.flag, item.message, item.hint)
            wrong.append(problem) if item.flag in case.own_flags else self._problems.add(problem)
        folder = self._places.folder(case.chain, Stage.THRESHOLD)
        argv = make_threshold_argv(self._context.run_module, case, flags, self._places, folder)
        if not case.reference and all(item.value == "(ignored)" for item in case.expected_outputs):
            notes = (*notes, NOTHING_COMPARED)
        self._add_check(
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
            cache=CacheLookup(reason="runs every time"),
            goldens=case.list_goldens(Stage.THRESHOLD),
            notes=notes,
            allclose=case.allclose,
        )

    def _plan_compile_statistics(self, case: Case) -> None:
        main = case.modules[-1]
        folder = self._places.module_folder(main)
        files = (StepInput("module", f"{folder}/module.vmfb"), StepInput("statistics", f"{folder}/statistics.json"))
        self._add_check(
            case,
            Stage.COMPSTAT,
            needs=self._list_module_needs([main]),
            inputs=files,
            cache=CacheLookup(reason="read from the module"),
            goldens=case.list_goldens(Stage.COMPSTAT),
            idle_goldens=case.idle_goldens,
            notes=case.notes,
        )

    def _plan_count(self, case: Case) -> None:
        """Compiles a benchmark's modules for the counter, and has it count."""
        flags, notes, unknown = self._run_flags(case, "iree-benchmark-module")
        skip = case.skip_reason or dict(case.skips).get(Stage.BENCHMARK, "") or _format_uncounted(case)
        needs = [*self._list_made_needs(case), *self._fetch_needs([case.chain])]
        if not skip:
            needs += [needed for module in case.modules for needed in self._plan_counted_compile(module)]
        argv = make_benchmark_argv(self._context.benchmark_module, case, flags, self._counted)
        archives = ((item, self._counted.archive(item)) for item in case.parameters if not item.url)
        files = [StepInput("parameters", path) for _, path in archives if path]
        files += [self._make_input("parameters", item.url) for item in case.parameters if item.url]
        files += [self._make_input("input", item.url) for item in case.inputs if item.url]
        step = self._make_step(
            case,
            Stage.COUNT,
            needs=needs,
            goldens=case.list_goldens(Stage.COUNT),
            idle_goldens=case.idle_goldens,
            blocked=case.blocked(Stage.BENCHMARK) or unknown,
            skip=skip,
            notes=notes,
        )
        command = Command(argv, case.working_directory or step.folder)
        self._add(count_step(step, command, [*map(self._counted.module, case.modules)], files, self._context))

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

    def _plan_benchmark(self, case: Case) -> None:
        flags, notes, unknown = self._run_flags(case, "iree-benchmark-module")
        argv = make_benchmark_argv(self._context.benchmark_module, case, flags, self._places)
        chains = [owner.chain for module in case.modules if (owner := self._owners.get(module.id))]
        made = (*self._list_module_needs(case.modules), *self._list_made_needs(case))
        self._add_check(
            case,
            Stage.BENCHMARK,
            unknown,
            needs=(*made, *self._fetch_needs([*chains, case.chain])),
            command=Command(argv, case.working_directory or self._places.folder(case.chain, Stage.BENCHMARK)),
            inputs=self._run_inputs(case),
            cache=CacheLookup(reason="runs every time"),
            goldens=case.list_goldens(Stage.BENCHMARK),
            golden_keys=case.golden_keys,
            notes=notes,
        )
