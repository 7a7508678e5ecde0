"""Cases → steps: a pure function of the cases and of what is known about this machine.

Everything that it needs to know comes in through `Surroundings`: no network, no process, no clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Case, Kind, Metric, Module, Origin, Stage
from iree_gauntlet.errors import Problem
from iree_gauntlet.running.commands import (
    Paths,
    benchmark_argv,
    compile_flags,
    import_argv,
    makes_dumps,
    shape_text,
    threshold_argv,
)
from iree_gauntlet.running.module_key import join_flags
from iree_gauntlet.running.steps import CacheLookup, Command, Resources, Step, StepInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.toolchains.translate import Translation

__all__ = ["DEFAULT_TIMEOUTS", "Plan", "Surroundings", "blocked", "make_plan"]

# Seconds. A fetch is bounded by its stall timeout, not by its size.
DEFAULT_TIMEOUTS: dict[Stage, float] = {
    Stage.FETCH: 24 * 3600.0,
    Stage.IMPORT: 600.0,
    Stage.COMPILE: 1800.0,
    Stage.THRESHOLD: 600.0,
    Stage.COMPSTAT: 60.0,
    Stage.BENCHMARK: 900.0,
}

_UPSTREAM: dict[Stage, tuple[Stage, ...]] = {
    Stage.IMPORT: (Stage.FETCH,),
    Stage.COMPILE: (Stage.FETCH, Stage.IMPORT),
    Stage.THRESHOLD: (Stage.FETCH, Stage.IMPORT, Stage.COMPILE),
    Stage.COMPSTAT: (Stage.FETCH, Stage.IMPORT, Stage.COMPILE),
    Stage.BENCHMARK: (Stage.FETCH, Stage.IMPORT, Stage.COMPILE),
}

# The stages for which a case of a kind is planned. A compile-only case belongs to the threshold tests, as in
# the programs that run it today.
_WORK: dict[Kind, frozenset[Stage]] = {
    Kind.COMPILE: frozenset({Stage.FETCH, Stage.IMPORT, Stage.COMPILE, Stage.THRESHOLD}),
    Kind.QUALITY: frozenset({Stage.FETCH, Stage.IMPORT, Stage.COMPILE, Stage.THRESHOLD}),
    Kind.COMPSTAT: frozenset({Stage.FETCH, Stage.IMPORT, Stage.COMPILE, Stage.COMPSTAT}),
    Kind.BENCHMARK: frozenset({Stage.FETCH, Stage.IMPORT, Stage.COMPILE, Stage.COMPSTAT, Stage.BENCHMARK}),
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What planning has to know of the world.

    Attributes:
        run_dir: the run's folder, absolute.
        compile, run_module, benchmark_module, python: paths of the tools.
        import_script: the program that imports ONNX.
        importer: identity of the importer (compiler and onnx package).
        compiler: identity of the compiler.
        translate: a tool's flags as this toolchain spells them.
        artifact_path: where the file of a URL lies or will lie.
        artifact_hash: its SHA-256 where known, else an empty string.
        flag_ingredients: compile flags as they enter the key, given the folder of relative paths.
        host_of: what `host` in some flags means here; empty where they do not say host.
        lookup: whether the module cache holds something (name for people, ingredients).
        timeouts: seconds by stage; they override defaults and specs.
        force_recompile: whether lookups are bypassed.
    """

    run_dir: Path
    compile: str
    run_module: str
    benchmark_module: str
    python: str
    import_script: str
    importer: str
    compiler: str
    translate: Callable[[Sequence[str], str], Translation]
    artifact_path: Callable[[str], Path]
    artifact_hash: Callable[[str], str]
    flag_ingredients: Callable[[Sequence[str], str], tuple[str, ...]]
    host_of: Callable[[Sequence[str]], str]
    lookup: Callable[[str, Mapping[str, str]], CacheLookup]
    timeouts: Mapping[Stage, float] = field(default_factory=dict)
    force_recompile: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps chain by chain, each chain in the order of its stages, and flags that the tools do not know."""

    steps: tuple[Step, ...]
    problems: tuple[Problem, ...] = ()


def make_plan(cases: CaseSet, stages: Iterable[Stage], surroundings: Surroundings) -> Plan:
    """Plans the steps of some stages, and of the stages before them, for the selected cases."""
    return _Planner(cases, frozenset(stages), surroundings).plan()


def blocked(step: Step, reason: str) -> Step:
    """A step that cannot run: it waits for nothing, so that its error is the first thing that is seen."""
    return replace(step, blocked=reason, needs=(), resources=Resources(cores=0))


class _Planner:
    def __init__(self, cases: CaseSet, stages: frozenset[Stage], surroundings: Surroundings) -> None:
        self._stages = stages | {before for stage in stages for before in _UPSTREAM.get(stage, ())}
        self._world = surroundings
        self._selected = [case for case in cases.cases if stages & _WORK[case.kind]]
        self._used = {module.id for case in self._selected for module in case.modules}
        # A selected case that these stages leave out (a quality case while benchmarking) still makes the module.
        others = [case for case in cases.cases if not stages & _WORK[case.kind] and case.kind is not Kind.BENCHMARK]
        self._required = [
            case for case in (*cases.required, *others) if any(module.id in self._used for module in case.modules)
        ]
        self._required_ids = {case.id for case in self._required}
        self._owners: dict[str, Case] = {}
        for case in (*self._selected, *self._required):
            for module in self._planned(case):
                if module.program.url and (module.origin.file == case.origin.file or case.kind is not Kind.BENCHMARK):
                    self._owners.setdefault(module.id, case)
        self._problems: set[Problem] = set()
        self._steps: dict[str, Step] = {}
        self._paths = Paths(self._module_path, self._splat_path, lambda url: str(surroundings.artifact_path(url)))

    def plan(self) -> Plan:
        everything = (*self._required, *self._selected)
        chains: dict[str, list[Case]] = {}
        for case in everything:
            chains.setdefault(case.chain, []).append(case)
        if Stage.FETCH in self._stages:
            for cases in chains.values():
                self._fetch(cases)
        if Stage.COMPILE in self._stages:
            for case in everything:
                for module in self._owned(case):
                    self._module_steps(case, module)
        for case in self._selected:
            self._check(case)
        order = {stage: index for index, stage in enumerate(Stage)}
        steps = sorted(self._steps.values(), key=lambda step: (step.chain, order[step.stage], step.id))
        return Plan(tuple(steps), tuple(sorted(self._problems)))

    def _owned(self, case: Case) -> list[Module]:
        """The modules whose steps belong to a case's chain."""
        return [module for module in self._planned(case) if self._owners.get(module.id) is case]

    def _planned(self, case: Case) -> list[Module]:
        """The modules of a case that are made: all of a selected one, of a required one those that are used."""
        modules = [*case.modules, *case.extra_modules]
        return [module for module in modules if case.id not in self._required_ids or module.id in self._used]

    def _check(self, case: Case) -> None:
        if case.kind is Kind.QUALITY and Stage.THRESHOLD in self._stages:
            self._threshold(case)
        if case.kind is Kind.BENCHMARK and Stage.COMPSTAT in self._stages:
            self._compstat(case)
        if case.kind is Kind.BENCHMARK and Stage.BENCHMARK in self._stages:
            self._benchmark(case)

    # Names and places

    def _step_id(self, chain: str, stage: Stage, role: str = "main") -> str:
        return f"{chain}:{stage}" if role == "main" else f"{chain}:{stage}.{role}"

    def _folder(self, chain: str, stage: Stage, role: str = "main") -> str:
        model, _, rest = chain.partition("/")
        name = stage.value if role == "main" else f"{stage}.{role}"
        # Not '@': iree-run-module reads `--module=path@entry`.
        return str(self._world.run_dir / "steps" / model / rest.replace("@", ".") / name)

    def _module_path(self, module: Module) -> str:
        return str(Path(self._module_folder(module)) / "module.vmfb")

    def _module_folder(self, module: Module) -> str:
        owner = self._owners.get(module.id)
        if owner is None:
            return str(self._world.run_dir / "steps" / f"{module.name}.{module.target.name}" / "compile")
        return self._folder(owner.chain, Stage.COMPILE, module.role)

    def _splat_path(self, module_id: str) -> str:
        owner = self._owners.get(module_id)
        if owner is None:
            return str(self._world.run_dir / "steps" / module_id.replace("@", ".") / "splat.irpa")
        module = next(item for item in owner.modules if item.id == module_id)
        return str(Path(self._module_folder(module)) / "splat.irpa")

    def _module_needs(self, modules: Iterable[Module]) -> tuple[str, ...]:
        owners = [(self._owners.get(module.id), module) for module in modules]
        return tuple(self._step_id(owner.chain, Stage.COMPILE, module.role) for owner, module in owners if owner)

    def _timeout(self, case: Case, stage: Stage) -> float:
        return self._world.timeouts.get(stage, dict(case.timeouts).get(stage, DEFAULT_TIMEOUTS[stage]))

    def _step(self, case: Case, stage: Stage, role: str = "main") -> Step:
        """What all steps of a case have in common."""
        siblings = [other for other in (*self._selected, *self._required) if other.chain == case.chain]
        expected = [item for other in siblings for item in other.expectations if item.stage is stage and role == "main"]
        return Step(
            id=self._step_id(case.chain, stage, role),
            chain=case.chain,
            dialect=case.dialect,
            model=case.model,
            submodel=case.submodel,
            target=case.target.name,
            sku=case.target.sku,
            stage=stage,
            folder=self._folder(case.chain, stage, role),
            timeout=self._timeout(case, stage),
            origin=case.origin,
            expect_failure=f"{expected[0].reason} ({expected[0].origin.file})" if expected else "",
        )

    def _add(self, step: Step) -> None:
        step = replace(step, needs=tuple(dict.fromkeys(step.needs)))
        self._steps[step.id] = blocked(step, step.blocked) if step.blocked else step

    def _translated(self, flags: Sequence[str], tool: str, origin: Origin) -> tuple[tuple[str, ...], tuple[str, ...]]:
        result = self._world.translate(flags, tool)
        for unknown in result.unknown:
            self._problems.add(Problem(origin.file, 0, "", unknown.message, unknown.hint))
        return tuple(result.flags), tuple(result.notes)

    # Steps

    def _fetch(self, cases: Sequence[Case]) -> None:
        """One step for the files of a chain: what its planned stages read, and nothing else."""
        inputs: dict[str, StepInput] = {}
        for case in cases:
            for role, url in self._wanted(case):
                if url and url not in inputs:
                    path = str(self._world.artifact_path(url))
                    inputs[url] = StepInput(role, path, url, self._world.artifact_hash(url))
        if not inputs:
            return
        missing = sum(not item.sha256 for item in inputs.values())
        reason = f"{missing} of {len(inputs)} files not fetched before" if missing else "all files are known by hash"
        step = self._step(cases[0], Stage.FETCH)
        files = tuple(inputs.values())
        self._add(replace(step, inputs=files, resources=Resources(cores=0), cache=CacheLookup(reason=reason)))

    def _wanted(self, case: Case) -> Iterable[tuple[str, str]]:
        """(role, URL) of the files that the planned stages of a case read."""
        for module in self._owned(case):
            yield "program", module.program.url
        everything = self._stages == {Stage.FETCH}
        required = case in self._required
        stage = Stage.BENCHMARK if case.kind is Kind.BENCHMARK or required else Stage.THRESHOLD
        if not everything and (case.kind is Kind.COMPILE or stage not in self._stages):
            return
        for item in case.parameters:
            yield "parameters", item.url
        if not required:
            for argument in case.inputs:
                yield "input", argument.url
            for argument in case.expected_outputs:
                yield "expected_output", argument.url

    def _fetch_needs(self, chains: Iterable[str]) -> tuple[str, ...]:
        ids = [self._step_id(chain, Stage.FETCH) for chain in chains]
        return tuple(step_id for step_id in ids if step_id in self._steps)

    def _module_steps(self, case: Case, module: Module) -> None:
        world = self._world
        needs = self._fetch_needs([case.chain])
        program = str(world.artifact_path(module.program.url))
        digest = world.artifact_hash(module.program.url)
        source = StepInput("program", program, module.program.url, digest)
        options = module.program.onnx
        imported = ""
        if options is not None:
            step = self._step(case, Stage.IMPORT, module.role)
            output = str(Path(step.folder) / "program.mlir")
            imported = json.dumps([options.opset, [[name, shape_text(shape)] for name, shape in options.shapes]])
            ingredients = {
                "kind": "import",
                "program": digest,
                "options": imported,
                "importer": world.importer,
            }
            argv = import_argv(world.python, world.import_script, program, output, options)
            self._add(
                replace(
                    step,
                    needs=needs,
                    command=Command(argv, step.folder),
                    inputs=(source,),
                    outputs=(("program", output),),
                    cache=self._lookup(step.id, ingredients, argv),
                    onnx=options,
                )
            )
            needs = (step.id,)
            program = output
        step = self._step(case, Stage.COMPILE, module.role)
        folder = Path(step.folder)
        splat = str(folder / "splat.irpa") if module.splat else ""
        flags = compile_flags(module, str(folder / "statistics.json"), splat)
        flags, notes = self._translated(flags, "iree-compile", module.origin)
        outputs = [("module", str(folder / "module.vmfb")), ("statistics", str(folder / "statistics.json"))]
        ingredients = {
            "kind": "compile",
            "program": digest,
            "flags": join_flags(world.flag_ingredients(flags, case.working_directory or step.folder)),
            "compiler": world.compiler,
            "host": world.host_of(flags),
        }
        if options is not None:
            ingredients |= {"import": imported, "importer": world.importer}
        argv = (world.compile, program, *flags, "-o", outputs[0][1])
        own = module.origin.file == case.origin.file
        self._add(
            replace(
                step,
                origin=module.origin,
                needs=needs,
                command=Command(argv, case.working_directory or step.folder),
                inputs=(replace(source, path=program) if options else source,),
                outputs=tuple([*outputs, ("splat", splat)] if splat else outputs),
                cache=self._lookup(step.id, ingredients, argv),
                blocked=case.blocked_reason
                if own and module.role == "main" and case.kind is not Kind.BENCHMARK
                else "",
                skip=case.skip_reason if case.kind is Kind.BENCHMARK else "",
                notes=notes,
            )
        )

    def _lookup(self, name: str, ingredients: Mapping[str, str], argv: Sequence[str]) -> CacheLookup:
        pairs = tuple(ingredients.items())
        if self._world.force_recompile:
            return CacheLookup(reason="--force-recompile", ingredients=pairs)
        if makes_dumps(argv):
            return CacheLookup(reason="asked for dump files, which the cache does not keep", ingredients=pairs)
        if not ingredients["program"]:
            return CacheLookup(reason="the program's content is not known before it is fetched", ingredients=pairs)
        return replace(self._world.lookup(name, ingredients), ingredients=pairs)

    def _run_inputs(self, case: Case) -> tuple[StepInput, ...]:
        world = self._world
        modules = [StepInput("module", self._module_path(module)) for module in (*case.modules, *case.extra_modules)]
        files = [("input", item.url) for item in case.inputs]
        files += [("expected_output", item.url) for item in case.expected_outputs]
        files += [("parameters", item.url) for item in case.parameters]
        made = [StepInput("parameters", self._splat_path(p.splat_of)) for p in case.parameters if p.splat_of]
        fetched = [
            StepInput(role, str(world.artifact_path(url)), url, world.artifact_hash(url)) for role, url in files if url
        ]
        return (*modules, *made, *fetched)

    def _threshold(self, case: Case) -> None:
        flags, notes = self._translated(case.run_flags, "iree-run-module", case.origin)
        argv = threshold_argv(self._world.run_module, case, flags, self._paths)
        step = self._step(case, Stage.THRESHOLD)
        if not case.expected_outputs:
            notes = (*notes, "the spec has no expected outputs: only that it runs is checked")
        folder = Path(step.folder)
        actual = [("actual_output", str(folder / f"actual_{i}.npy")) for i in range(len(case.expected_outputs))]
        self._add(
            replace(
                step,
                needs=(
                    *self._module_needs((*case.modules, *case.extra_modules)),
                    *self._fetch_needs([case.chain]),
                ),
                command=Command(argv, case.working_directory or step.folder),
                inputs=self._run_inputs(case),
                outputs=tuple(actual),
                cache=CacheLookup(reason="runs every time"),
                resources=Resources(cores=1, device=case.device),
                blocked=case.blocked_reason,
                notes=notes,
            )
        )

    def _benchmark_needs(self, case: Case) -> tuple[str, ...]:
        chains = [owner.chain for module in case.modules if (owner := self._owners.get(module.id))]
        return (*self._module_needs(case.modules), *self._fetch_needs([*chains, case.chain]))

    def _compstat(self, case: Case) -> None:
        step = self._step(case, Stage.COMPSTAT)
        main = case.modules[-1]
        folder = Path(self._module_folder(main))
        files = (
            StepInput("module", str(folder / "module.vmfb")),
            StepInput("statistics", str(folder / "statistics.json")),
        )
        self._add(
            replace(
                step,
                needs=self._module_needs([main]),
                inputs=files,
                cache=CacheLookup(reason="read from the module"),
                resources=Resources(cores=0),
                goldens=tuple(golden for golden in case.goldens if golden.metric is not Metric.TIME_MS),
                blocked=case.blocked_reason,
                skip=case.skip_reason,
            )
        )

    def _benchmark(self, case: Case) -> None:
        flags, notes = self._translated(case.run_flags, "iree-benchmark-module", case.origin)
        argv = benchmark_argv(self._world.benchmark_module, case, flags, self._paths)
        step = self._step(case, Stage.BENCHMARK)
        self._add(
            replace(
                step,
                needs=self._benchmark_needs(case),
                command=Command(argv, case.working_directory or step.folder),
                inputs=self._run_inputs(case),
                cache=CacheLookup(reason="runs every time"),
                resources=Resources(cores=1, exclusive=True, device=case.device),
                goldens=tuple(golden for golden in case.goldens if golden.metric is Metric.TIME_MS),
                golden_keys=case.golden_keys,
                blocked=case.blocked_reason,
                skip=case.skip_reason,
                notes=notes,
            )
        )
