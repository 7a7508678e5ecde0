"""`explain --slower`: extract from a slower model a dispatch that is also slower by itself, and bundle it.

<comparison>/explain/journal.jsonl     the record (`records/explain_outcome.py` describes it), with all rounds
<comparison>/explain/<case>/a, b       the compiles and traces of a case, by side
<comparison>/explain/<case>/bundle/    the bundle, and bundle.tar.gz next to it

The bundle's `repro.sh` compiles `program.mlir` with both IREEs, runs the two benchmarks in turn, and compares the ratio
of their times with half of the loss.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.engine.rounds.taken_rounds import RoundSettings, get_gpu
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.experiments.explain import CaseNotes, explain_each, make_tools, open_iree
from iree_gauntlet.experiments.explaining.bundle import (
    PROGRAM,
    STILL_THERE,
    Bundle,
    BundleFiles,
    list_packages,
    pack,
    render,
    run_bundle,
)
from iree_gauntlet.experiments.explaining.failures import Failure, describe_failure
from iree_gauntlet.experiments.explaining.flow_program import (
    DISPATCH_FUNCTION,
    capture_inputs,
    compile_traced,
    make_function,
    make_target_side,
)
from iree_gauntlet.experiments.session_verdicts import Comparer, Rules, judge
from iree_gauntlet.experiments.sides import make_pair
from iree_gauntlet.formatting import format_cpus, format_dispatch_change, format_milliseconds
from iree_gauntlet.measuring.profiles.dispatch_profile import Match
from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict
from iree_gauntlet.records.compare_record import TimeVerdictRecord, read_comparison
from iree_gauntlet.records.explain_outcome import CaseRequest, ExplainOpening
from iree_gauntlet.records.run_folder import LATEST, find_named_comparison
from iree_gauntlet.results import Result
from iree_gauntlet.settings import format_path, resolve_links
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Command, Resources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.explaining.flow_program import CapturedInputs, TensorFile
    from iree_gauntlet.experiments.explaining.tools import IreeTools
    from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison
    from iree_gauntlet.progress import Reporter
    from iree_gauntlet.records.compare_record import ComparisonRecord, DispatchComparison
    from iree_gauntlet.requests import CacheRequest, ExplainRequest
    from iree_gauntlet.steps import Step
    from iree_gauntlet.toolchains.toolchain import Toolchain


# Candidates have at least this share of the loss; at most so many dispatches are measured.
_MIN_SHARE = 0.1
_MAX_SUSPECTS = 3
# Arguments of a whole program's benchmark that the benchmark of an extracted dispatch does not need.
_PROGRAM_FLAGS = ("--module=", "--function=", "--input=", "--parameters=")


@dataclass(frozen=True, slots=True)
class _Slower:
    """A model that is slower with B; `ratio` is B's time divided by A's."""

    case: str
    reason: str
    ratio: float
    profile: DispatchComparison
    sides: tuple[Failure, Failure]
    build: Step
    resources: Resources
    rules: Rules
    rounds: RoundSettings


@dataclass(frozen=True, slots=True)
class SlowSuspect:
    """A dispatch that is slower according to a profile, or, without a profile, according to a count of instructions.

    Attributes:
        a_ns, b_ns: the cost of all dispatches of the profile's row, per invocation, in ns or instructions.
        unit: `ms` for a profile, `instructions` for a count.
    """

    name: str
    a_ns: int
    b_ns: int
    share: float
    unit: str = "ms"


@dataclass(frozen=True, slots=True)
class _SlowDispatch:
    """A dispatch that is slower by itself.

    Attributes:
        arguments: each side's benchmark arguments, without the module and inputs (their paths differ in a bundle).
        gpu: the GPU that the dispatch runs on; empty for a CPU.
    """

    suspect: SlowSuspect
    function: str
    inputs: tuple[TensorFile, ...]
    times: TimeVerdictRecord
    comparison: Comparison
    arguments: tuple[tuple[str, ...], tuple[str, ...]]
    gpu: str


def explain_slower(request: ExplainRequest, cache: CacheRequest, presenter: Reporter) -> ExitCode:
    """Explain the slower models of a comparison."""
    if request.no_weights:
        hint = "A slower dispatch is measured on its original inputs: leave one of the two out."
        raise UsageError("--slower and --no-weights exclude each other", hint)
    name, *patterns = request.failures or (LATEST,)
    folder = resolve_links(find_named_comparison(name))
    record = read_comparison(folder)
    models = [_make_slower(chain, ratio, record, folder) for chain, ratio in _choose(record, folder, patterns)]
    cases = tuple(CaseRequest(model.case, "slower", model.reason) for model in models)
    with presenter.progress() as progress:
        base, new = (open_iree(folder / side.name.lower(), side.toolchain, cache, progress) for side in record.sides)

        explainers = [(model.case, partial(_explain_slower, slower=model, workbenches=(base, new))) for model in models]
        a, b = record.sides
        opening = ExplainOpening(cases=cases, toolchain=b.toolchain, base=a.toolchain)
        return explain_each(folder, opening, explainers, request, presenter, progress)


def _choose(record: ComparisonRecord, folder: Path, patterns: Sequence[str]) -> list[tuple[str, float]]:
    """Return the slower models that match a pattern, with their ratios; without patterns, all slower models."""
    path = format_path(folder)
    if record.opening.metric != "time":
        message = f"{path} compares {record.opening.metric}, not times"
        raise NothingSelectedError(
            message, "Slower dispatches are found from times: `gauntlet compare A B` measures them."
        )
    slower = [
        (chain, verdict.figures.ratio)
        for chain, verdict in record.verdicts.items()
        if verdict.verdict == TimeVerdict.SLOWER and verdict.figures
    ]
    if not slower:
        raise NothingSelectedError(f"nothing is slower in {path}", "`explain --slower COMPARISON` names another one.")
    matches = [model for model in slower if not patterns or any(fnmatchcase(model[0], glob) for glob in patterns)]
    if not matches:
        names = ", ".join(chain for chain, _ in slower)
        raise NothingSelectedError(
            f"nothing slower in {path} matches {' '.join(patterns)}", f"These are slower: {names}."
        )
    return matches


def _make_slower(chain: str, ratio: float, record: ComparisonRecord, folder: Path) -> _Slower:
    benchmarks = record.prepared.benchmarks.get(chain)
    if benchmarks is None or chain not in record.where:
        hint = f"`compare --resume --run-dir {format_path(folder)}` adds them and keeps what was measured."
        raise GauntletError(f"{chain}: the comparison was cut short before its profiles", hint)
    verdict, changes, rounds = record.verdicts[chain], record.where[chain], record.opening.rounds
    compile_steps, failures = [], []
    for side in record.sides:
        steps = side.run.planned if side.run else ()
        step = next((step for step in steps if step.id == f"{chain}:{Stage.COMPILE}"), None)
        if step is None:
            raise GauntletError(f"{chain}: the comparison has no compile of {side.name}", "Start a new comparison.")
        benchmark, result = benchmarks[side.name], Result(Verdict.FAILED, verdict.reason)
        compile_steps.append(step)
        failures.append(describe_failure(step, benchmark.command, Stage.BENCHMARK, result, benchmark.timeout))
    return _Slower(
        case=chain,
        reason=verdict.reason,
        ratio=ratio,
        # A release without profiles has counts.
        profile=changes.work or changes.dispatches,
        sides=(failures[0], failures[1]),
        build=compile_steps[1],
        resources=benchmarks[record.sides[1].name].resources,
        rules=Rules.of(record.opening),
        rounds=RoundSettings(rounds.repetitions, rounds.min_time, verdict.cpus or ()),
    )


def _explain_slower(notes: CaseNotes, slower: _Slower, workbenches: tuple[Workbench, Workbench]) -> bool:
    """Return True if a bundle shows a dispatch that is slower with B."""
    session, folder = notes.session, notes.session.folder / slower.sides[1].folder
    shutil.rmtree(folder, ignore_errors=True)
    a, b = (
        make_tools(workbench, session, folder / name, side)
        for name, workbench, side in zip("ab", workbenches, slower.sides, strict=True)
    )
    notes.say("slower")
    base, new = (workbench.iree for workbench in workbenches)
    try:
        slow, reason, tries = _find_slow_dispatch(slower, (a, b), notes)
        entry: dict[str, Any] = {"why": reason, "tried": [{**asdict(suspect), "said": text} for suspect, text in tries]}
        if slow is not None:
            inputs = [tensor.type for tensor in slow.inputs]
            entry |= {**asdict(slow.suspect), "inputs": inputs, "times": slow.times.as_dict()}
        notes.add("slower", entry)
        if slow is None:
            return False
        bundle = _write_bundle(slower, slow, (base, new), folder / "bundle")
        notes.say("running its bundle")
        with session.hold_machine(slow.gpu):
            code = run_bundle(bundle.folder, new, session.supervisor, folder, base)
    except WaitCancelledError as error:
        raise KeyboardInterrupt from error
    except GauntletError as error:
        # The problem concerns this case only; the other cases continue.
        notes.add("nothing", {"why": error.on_one_line})
        return False
    notes.add_bundle(bundle, "a program for any release", code)
    return code == STILL_THERE


def find_suspects(profile: DispatchComparison) -> list[SlowSuspect]:
    """Return the dispatches of a profile (or count) that explain B's loss, the greatest loss first."""
    if profile.difference is None:
        return []
    total = profile.difference.b_ns - profile.difference.a_ns
    rows = [row for row in profile.difference.rows if row.match != Match.OUTSIDE]
    if profile.unit != "ms":
        # Leave out the work outside of dispatches: a gain there does not offset a dispatch's loss.
        total -= sum(row.b_ns - row.a_ns for row in profile.difference.rows if row.match == Match.OUTSIDE)
    return [
        SlowSuspect(name, row.a_ns, row.b_ns, (row.b_ns - row.a_ns) / total, profile.unit)
        for row in sorted(rows, key=lambda row: row.a_ns - row.b_ns)
        if total > 0 and row.b_ns - row.a_ns >= _MIN_SHARE * total
        for name in row.b_names
    ][:_MAX_SUSPECTS]


def _find_slow_dispatch(
    slower: _Slower, tools: tuple[IreeTools, IreeTools], notes: CaseNotes
) -> tuple[_SlowDispatch | None, str, list[tuple[SlowSuspect, str]]]:
    """Find the dispatch with the greatest loss among those slower alone; return it, or the reason, and all tries."""
    if slower.profile.difference is None:
        return None, f"no profile shows where: {slower.profile.reason}", []
    names = ", ".join(row.name for row in slower.profile.difference.rows if row.b_ns > row.a_ns)
    spread = f"the loss is spread over {names or 'many dispatches'}; none of them alone"
    suspects = find_suspects(slower.profile)
    if not suspects:
        return None, f"{spread} makes up a tenth of it", []
    notes.say("compiling to dispatches")
    program = compile_traced(tools[1])
    # A dispatch with several calls has the same function for each.
    calls = {dispatch.name: dispatch for dispatch in reversed(list(program.dispatches.values()))}
    functions = {slow.name: make_function(program, calls[slow.name]) for slow in suspects if slow.name in calls}
    traceable = [calls[name] for name, function in functions.items() if function]
    inputs_by_key: CapturedInputs = {}
    if traceable:
        notes.say(f"tracing {len(program.dispatches)} dispatches")
        inputs_by_key = capture_inputs(tools[1], make_target_side(tools[1], program), traceable)
    tries: list[tuple[SlowSuspect, str]] = []
    for number, suspect in enumerate(suspects):
        function = functions.get(suspect.name, "")
        if not function:
            tries.append((suspect, "it cannot be written as a program that both releases read"))
            continue
        tensors = inputs_by_key.get(calls[suspect.name].key)
        if tensors is None:
            tries.append((suspect, "when traced, the program does not get that far"))
            continue
        inputs = tuple(tensors[i] for i in calls[suspect.name].distinct_input_indices)
        notes.say(f"measuring {suspect.name} by itself")
        try:
            a, b = (_make_step(slower, side, f"cut_{number}", function, inputs) for side in tools)
        except GauntletError as error:
            tries.append((suspect, error.on_one_line))
            continue
        pair = make_pair(f"{slower.case} {suspect.name}", (a, b), "time", slower.rounds)
        verdict = judge(Comparer(notes.session, slower.rules).run([pair], {}), slower.rules)[pair.chain]
        comparison = verdict.comparison
        outcome = f"by itself {verdict.verdict}: {comparison.reason}" if comparison else f"by itself: {verdict.failure}"
        tries.append((suspect, outcome))
        if comparison is not None and verdict.verdict == TimeVerdict.SLOWER:
            base, new = (
                _list_arguments(measurement.command.argv, side)
                for measurement, side in zip(pair.make_measurements(slower.rounds.cpus), slower.sides, strict=True)
            )
            slow = _SlowDispatch(suspect, function, inputs, verdict.record(), comparison, (base, new), get_gpu(b))
            return slow, "", tries
    return None, f"{spread} is slower", tries


def _list_arguments(argv: Sequence[str], side: Failure) -> tuple[str, ...]:
    # The command may begin with taskset.
    begin = argv.index(side.argv[0]) + 1
    return tuple(arg for arg in argv[begin:] if not arg.startswith(("--module=", "--input=")))


def _make_step(slower: _Slower, tools: IreeTools, name: str, function: str, inputs: Sequence[TensorFile]) -> Step:
    """Compile a dispatch for one side, and make its benchmark's step."""
    failure = tools.failure
    module = tools.compile_text(name, function, failure.flags)
    rest = (arg for arg in failure.argv if not arg.startswith(_PROGRAM_FLAGS))
    values = (f"--input={tensor.argument}" for tensor in inputs)
    return replace(
        slower.build,
        id=f"{slower.case} {name}:{Stage.BENCHMARK}",
        stage=Stage.BENCHMARK,
        folder=str(tools.folder / name),
        timeout=failure.timeout,
        origin=Origin(str(tools.folder / f"{name}.mlir")),
        command=Command((*rest, f"--module={module}", f"--function={DISPATCH_FUNCTION}", *values), str(failure.cwd)),
        resources=slower.resources,
    )


def _write_bundle(slower: _Slower, slow: _SlowDispatch, irees: tuple[Toolchain, Toolchain], folder: Path) -> Bundle:
    """Write the bundle of a dispatch that is slower with B."""
    files, suspect, cpus = BundleFiles(), slow.suspect, slower.rounds.cpus
    inputs = [f"--input={arg}" for arg in files.add_tensors(slow.inputs, "input")]
    packages = list(map(list_packages, irees))
    flags = [files.add_flags(side.flags, side.compile_cwd) for side in slower.sides]
    arguments = [[*args, *inputs] for args in slow.arguments]
    base, new = irees
    change = f"{100 * (slow.comparison.ratio - 1):+.1f} %"
    versions = f"with {new.compiler.version} than with {base.compiler.version}"
    title = f"{suspect.name} is slower ({change}) {versions} ({slower.sides[1].device})"
    data = {"irees": irees, "packages": packages, "flags": flags, "arguments": arguments, "comparison": slow.comparison}
    script = render("repro_slower.sh", **data, pin=f"taskset -c {','.join(map(str, cpus))}" if cpus else "")
    readme = render(
        "readme_slower.md",
        **data,
        title=title,
        slower=slower,
        slow=slow,
        went=format_dispatch_change(suspect.a_ns, suspect.b_ns, suspect.unit),
        times=slow.times.figures and slow.times.figures.time_ms,
        milliseconds=format_milliseconds,
        where=f"CPU {format_cpus(cpus)}" if cpus else "all CPUs",
    )
    facts = {
        "title": title,
        "iree": new.as_dict(),
        "base": base.as_dict(),
        "packages": [*packages[1], *(f"{package} (base)" for package in packages[0])],
        "flags": flags[1],
        "base_flags": flags[0],
        "arguments": arguments[1],
        "base_arguments": arguments[0],
        "times": slow.times.as_dict(),
    }
    return pack(files.blobs | {PROGRAM: slow.function.encode()}, readme, script, facts, folder)
