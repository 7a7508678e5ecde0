"""`explain --slower`: which dispatch of what a comparison found slower is so by itself, cut out, in a bundle.

<comparison>/explain/journal.jsonl     the record (`records/explain_outcome.py` describes it), with all rounds
<comparison>/explain/<case>/a, b       what was compiled and traced for a case, by side
<comparison>/explain/<case>/bundle/    the bundle, and bundle.tar.gz next to it

Its `repro.sh` compiles `program.mlir` with both, runs their benchmarks in turn, and holds the ratio of their times
against half of what was lost.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.engine.rounds.taken_rounds import RoundSettings, gpu_of
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
from iree_gauntlet.experiments.explaining.failures import Failure, failure_of
from iree_gauntlet.experiments.explaining.flow_program import (
    CUT_OUT,
    as_function,
    capture_inputs,
    target_side,
    traced_program,
)
from iree_gauntlet.experiments.session_verdicts import Comparer, Rules, judge
from iree_gauntlet.experiments.sides import pair_of
from iree_gauntlet.formatting import format_cpus, format_dispatch_change, milliseconds
from iree_gauntlet.measuring.profiles.dispatch_profile import Match
from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict
from iree_gauntlet.records.compare_record import RecordedVerdict, read_comparison
from iree_gauntlet.records.explain_outcome import AskedCase, ExplainOpening
from iree_gauntlet.records.run_folder import LATEST, comparison_named
from iree_gauntlet.results import Result
from iree_gauntlet.settings import resolve_links, shown
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import Command, Resources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.explaining.flow_program import CapturedInputs, HeldTensor
    from iree_gauntlet.experiments.explaining.tools import Tools
    from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.records.compare_record import ComparedDispatches, ComparisonRecord
    from iree_gauntlet.requests import CacheRequest, ExplainRequest
    from iree_gauntlet.steps import Step
    from iree_gauntlet.toolchains.toolchain import Toolchain


# A dispatch that makes up less of the loss does not explain it; and so many are measured by themselves.
_LEAST_SHARE = 0.1
_MOST_SUSPECTS = 3
# What a benchmark is given that a dispatch of it is not.
_OF_PROGRAM = ("--module=", "--function=", "--input=", "--parameters=")


@dataclass(frozen=True, slots=True)
class _Slower:
    """A model that B is slower with; `ratio` is of B's time to A's."""

    case: str
    reason: str
    ratio: float
    where: ComparedDispatches
    sides: tuple[Failure, Failure]
    compiled: Step
    resources: Resources
    rules: Rules
    rounds: RoundSettings


@dataclass(frozen=True, slots=True)
class SlowSuspect:
    """A dispatch that a profile shows slower, or a count of instructions where there is no profile.

    Attributes:
        a_ns, b_ns: what it takes in an invocation, with all others of its row, in ns or instructions.
        unit: `ms` of a profile, `instructions` of a count.
    """

    name: str
    a_ns: int
    b_ns: int
    share: float
    unit: str = "ms"


@dataclass(frozen=True, slots=True)
class _SlowDispatch:
    """One that is slower by itself.

    Attributes:
        arguments: of a round of each side, without the module and the inputs, which are named by paths.
        gpu: that it runs on; empty for a CPU.
    """

    suspect: SlowSuspect
    function: str
    inputs: tuple[HeldTensor, ...]
    times: RecordedVerdict
    comparison: Comparison
    arguments: tuple[tuple[str, ...], tuple[str, ...]]
    gpu: str


def explain_slower(asked: ExplainRequest, cache: CacheRequest, presenter: Presenter) -> ExitCode:
    """Explains what a comparison found slower."""
    if asked.no_weights:
        hint = "A slower dispatch is measured on the inputs that it had: leave one of the two out."
        raise UsageError("--slower and --no-weights exclude each other", hint)
    name, *patterns = asked.failures or (LATEST,)
    compared = resolve_links(comparison_named(name))
    record = read_comparison(compared)
    models = [_make_slower(chain, ratio, record, compared) for chain, ratio in _choose(record, compared, patterns)]
    cases = tuple(AskedCase(item.case, "slower", item.reason) for item in models)
    with presenter.progress() as progress:
        base, new = (open_iree(compared / side.name.lower(), side.toolchain, cache, progress) for side in record.sides)

        looks = [(item.case, partial(_explain_slower, slower=item, machines=(base, new))) for item in models]
        a, b = record.sides
        opening = ExplainOpening(cases=cases, toolchain=b.toolchain, base=a.toolchain)
        return explain_each(compared, opening, looks, asked, presenter, progress)


def _choose(record: ComparisonRecord, folder: Path, patterns: Sequence[str]) -> list[tuple[str, float]]:
    """Models that B is slower with, and their ratios: those that a glob matches, all where there are none."""
    where = shown(folder)
    if record.opening.metric != "time":
        what = f"{where} compares {record.opening.metric}, not times"
        raise NothingSelectedError(
            what, "Only what runs slower has slower dispatches: `gauntlet compare A B` times it."
        )
    found = [
        (chain, item.figures.ratio)
        for chain, item in record.verdicts.items()
        if item.verdict == TimeVerdict.SLOWER and item.figures
    ]
    if not found:
        raise NothingSelectedError(f"nothing is slower in {where}", "`explain --slower COMPARISON` takes another one.")
    chosen = [one for one in found if not patterns or any(fnmatchcase(one[0], pattern) for pattern in patterns)]
    if not chosen:
        names = ", ".join(chain for chain, _ in found)
        raise NothingSelectedError(
            f"nothing that is slower in {where} matches {' '.join(patterns)}", f"Slower there: {names}."
        )
    return chosen


def _make_slower(chain: str, ratio: float, record: ComparisonRecord, folder: Path) -> _Slower:
    benchmarks = record.prepared.benchmarks.get(chain)
    if benchmarks is None or chain not in record.where:
        again = f"`compare --resume --run-dir {shown(folder)}` adds them; what was measured stays."
        raise GauntletError(f"{chain}: the comparison was cut short before its profiles", again)
    verdict, where, rounds = record.verdicts[chain], record.where[chain], record.opening.rounds
    compiled, failures = [], []
    for side in record.sides:
        planned = side.run.planned if side.run else ()
        step = next((step for step in planned if step.id == f"{chain}:{Stage.COMPILE}"), None)
        if step is None:
            raise GauntletError(f"{chain}: the comparison has no compile of {side.name}", "Begin a new comparison.")
        benchmark, result = benchmarks[side.name], Result(Verdict.FAILED, verdict.reason)
        compiled.append(step)
        failures.append(failure_of(step, benchmark.command, Stage.BENCHMARK, result, benchmark.timeout))
    return _Slower(
        case=chain,
        reason=verdict.reason,
        ratio=ratio,
        # Releases without profiles have counts.
        where=where.work or where.dispatches,
        sides=(failures[0], failures[1]),
        compiled=compiled[1],
        resources=benchmarks[record.sides[1].name].resources,
        rules=Rules.of(record.opening),
        rounds=RoundSettings(rounds.repetitions, rounds.min_time, verdict.cpus or ()),
    )


def _explain_slower(notes: CaseNotes, slower: _Slower, machines: tuple[Workbench, Workbench]) -> bool:
    """Whether a bundle shows a dispatch that B is slower with."""
    session, folder = notes.session, notes.session.folder / slower.sides[1].folder
    shutil.rmtree(folder, ignore_errors=True)
    a, b = (
        make_tools(machine, session, folder / name, side)
        for name, machine, side in zip("ab", machines, slower.sides, strict=True)
    )
    notes.say("slower")
    base, new = (machine.iree for machine in machines)
    try:
        slow, why, tried = _find_slow_dispatch(slower, (a, b), notes)
        found: dict[str, Any] = {"why": why, "tried": [{**asdict(suspect), "said": said} for suspect, said in tried]}
        if slow is not None:
            inputs = [item.type for item in slow.inputs]
            found |= {**asdict(slow.suspect), "inputs": inputs, "times": slow.times.as_dict()}
        notes.add("slower", found)
        if slow is None:
            return False
        bundle = _write_bundle(slower, slow, (base, new), folder / "bundle")
        notes.say("running its bundle")
        with session.quiet(slow.gpu):
            code = run_bundle(bundle.folder, new, session.supervisor, folder, base)
    except WaitCancelledError as error:
        raise KeyboardInterrupt from error
    except GauntletError as error:
        # Of this one alone; the others go on.
        notes.add("nothing", {"why": error.on_one_line})
        return False
    notes.add_bundle(bundle, "a program for any release", code)
    return code == STILL_THERE


def find_suspects(where: ComparedDispatches) -> list[SlowSuspect]:
    """The dispatches of a record of profiles, or counts, that explain B's loss, the greatest loss first."""
    if where.difference is None:
        return []
    whole = where.difference.b_ns - where.difference.a_ns
    rows = [row for row in where.difference.rows if row.match != Match.OUTSIDE]
    if where.unit != "ms":
        # What lies outside of dispatches is the runtime's, and makes up for none of them.
        whole -= sum(row.b_ns - row.a_ns for row in where.difference.rows if row.match == Match.OUTSIDE)
    return [
        SlowSuspect(name, row.a_ns, row.b_ns, (row.b_ns - row.a_ns) / whole, where.unit)
        for row in sorted(rows, key=lambda row: row.a_ns - row.b_ns)
        if whole > 0 and row.b_ns - row.a_ns >= _LEAST_SHARE * whole
        for name in row.b_names
    ][:_MOST_SUSPECTS]


def _find_slow_dispatch(
    slower: _Slower, tools: tuple[Tools, Tools], notes: CaseNotes
) -> tuple[_SlowDispatch | None, str, list[tuple[SlowSuspect, str]]]:
    """The dispatch with the greatest loss that is slower by itself too, or why there is none; and what was tried."""
    if slower.where.difference is None:
        return None, f"there is no profile that would say where: {slower.where.reason}", []
    names = ", ".join(row.name for row in slower.where.difference.rows if row.b_ns > row.a_ns)
    spread = f"the loss is spread over {names or 'many dispatches'}; none of them alone"
    suspects = find_suspects(slower.where)
    if not suspects:
        return None, f"{spread} makes up a tenth of it", []
    notes.say("compiling to dispatches")
    program = traced_program(tools[1])
    # One that is dispatched from several places is the same function each time.
    places = {dispatch.name: dispatch for dispatch in reversed(list(program.dispatches.values()))}
    functions = {item.name: as_function(program, places[item.name]) for item in suspects if item.name in places}
    wanted = [places[name] for name, function in functions.items() if function]
    captured: CapturedInputs = {}
    if wanted:
        notes.say(f"tracing {len(program.dispatches)} dispatches")
        captured = capture_inputs(tools[1], target_side(tools[1], program), wanted)
    tried: list[tuple[SlowSuspect, str]] = []
    for number, suspect in enumerate(suspects):
        function = functions.get(suspect.name, "")
        if not function:
            tried.append((suspect, "it cannot be a program that both releases read"))
            continue
        tensors = captured.get(places[suspect.name].key)
        if tensors is None:
            tried.append((suspect, "traced, the program does not run that far"))
            continue
        inputs = tuple(tensors[i] for i in places[suspect.name].places)
        notes.say(f"measuring {suspect.name} by itself")
        try:
            a, b = (_make_step(slower, side, f"cut_{number}", function, inputs) for side in tools)
        except GauntletError as error:
            tried.append((suspect, error.on_one_line))
            continue
        pair = pair_of(f"{slower.case} {suspect.name}", (a, b), "time", slower.rounds)
        verdict = judge(Comparer(notes.session, slower.rules).run([pair], {}), slower.rules)[pair.chain]
        found = verdict.comparison
        said = f"by itself {verdict.verdict}: {found.reason}" if found else f"by itself: {verdict.failure}"
        tried.append((suspect, said))
        if found is not None and verdict.verdict == TimeVerdict.SLOWER:
            base, new = (
                _list_arguments(one.command.argv, side)
                for one, side in zip(pair.measured(slower.rounds.cpus), slower.sides, strict=True)
            )
            slow = _SlowDispatch(suspect, function, inputs, verdict.record(), found, (base, new), gpu_of(b))
            return slow, "", tried
    return None, f"{spread} is slower", tried


def _list_arguments(argv: Sequence[str], side: Failure) -> tuple[str, ...]:
    # Before the tool may be taskset.
    begin = argv.index(side.argv[0]) + 1
    return tuple(word for word in argv[begin:] if not word.startswith(("--module=", "--input=")))


def _make_step(slower: _Slower, tools: Tools, name: str, function: str, inputs: Sequence[HeldTensor]) -> Step:
    """A dispatch's benchmark on one side, compiled."""
    asked = tools.failure
    module = tools.compile_text(name, function, asked.flags)
    kept = (word for word in asked.argv if not word.startswith(_OF_PROGRAM))
    values = (f"--input={item.argument}" for item in inputs)
    return replace(
        slower.compiled,
        id=f"{slower.case} {name}:{Stage.BENCHMARK}",
        stage=Stage.BENCHMARK,
        folder=str(tools.folder / name),
        timeout=asked.timeout,
        origin=Origin(str(tools.folder / f"{name}.mlir")),
        command=Command((*kept, f"--module={module}", f"--function={CUT_OUT}", *values), str(asked.cwd)),
        resources=slower.resources,
    )


def _write_bundle(slower: _Slower, slow: _SlowDispatch, irees: tuple[Toolchain, Toolchain], folder: Path) -> Bundle:
    """Write the bundle of a dispatch that B is slower with."""
    files, suspect, cpus = BundleFiles(), slow.suspect, slower.rounds.cpus
    inputs = [f"--input={text}" for text in files.add_tensors(slow.inputs, "input")]
    packages = list(map(list_packages, irees))
    flags = [files.add_flags(side.flags, side.compile_cwd) for side in slower.sides]
    arguments = [[*words, *inputs] for words in slow.arguments]
    base, new = irees
    change = f"{100 * (slow.comparison.ratio - 1):+.1f} %"
    versions = f"with {new.compiler.version} than with {base.compiler.version}"
    title = f"{suspect.name} is slower ({change}) {versions} ({slower.sides[1].device})"
    said = {"irees": irees, "packages": packages, "flags": flags, "arguments": arguments, "comparison": slow.comparison}
    script = render("repro_slower.sh", **said, pin=f"taskset -c {','.join(map(str, cpus))}" if cpus else "")
    readme = render(
        "readme_slower.md",
        **said,
        title=title,
        slower=slower,
        slow=slow,
        went=format_dispatch_change(suspect.a_ns, suspect.b_ns, suspect.unit),
        times=slow.times.figures and slow.times.figures.time_ms,
        milliseconds=milliseconds,
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
    return pack(files.held | {PROGRAM: slow.function.encode()}, readme, script, facts, folder)
