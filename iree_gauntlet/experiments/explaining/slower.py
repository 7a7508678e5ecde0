"""What a comparison found slower, and which of its dispatches is slower by itself, cut out and measured in rounds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Origin, Stage, Verdict
from iree_gauntlet.engine.rounds.taken_rounds import RoundSettings
from iree_gauntlet.errors import GauntletError, NothingSelectedError
from iree_gauntlet.experiments.explaining.failures import Failure, chain_folder, compile_of, expanded
from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT, as_function
from iree_gauntlet.experiments.explaining.traced_sides import target_side, traced_program
from iree_gauntlet.experiments.session_verdicts import Comparer, ModelVerdict, Rules, judge
from iree_gauntlet.experiments.sides import pair_of
from iree_gauntlet.measuring.profiles.dispatch_profile import Match
from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict
from iree_gauntlet.results import Result
from iree_gauntlet.settings import shown
from iree_gauntlet.steps import Command, Resources, Step
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iree_gauntlet.engine.rounds.taken_rounds import Measurement
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.explaining.flow_program import Dispatch
    from iree_gauntlet.experiments.explaining.tools import Tools
    from iree_gauntlet.records.compare_record import (
        ComparedDispatches,
        ComparisonRecord,
        DispatchDifference,
        SideBenchmark,
    )


# A dispatch that makes up less of the loss does not explain it; and so many are measured by themselves.
_LEAST_SHARE = 0.1
_MOST_SUSPECTS = 3
# What a benchmark is given that a dispatch of it is not.
_OF_PROGRAM = ("--module=", "--function=", "--input=", "--parameters=")


@dataclass(frozen=True, slots=True)
class Slower:
    """A model that B is slower with.

    Attributes:
        reason: what the comparison said of it.
        ratio: of B's time to A's.
    """

    case: str
    reason: str
    ratio: float
    where: ComparedDispatches
    sides: tuple[Failure, Failure]
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
class SlowDispatch:
    """One that is slower by itself."""

    suspect: SlowSuspect
    function: str
    inputs: tuple[tuple[str, Path], ...]
    verdict: ModelVerdict
    measured: tuple[Measurement, Measurement]


@dataclass(frozen=True, slots=True)
class SlowerSearch:
    """What a search came to.

    Attributes:
        slow: the dispatch; None where there is none.
    """

    slow: SlowDispatch | None = None
    why: str = ""
    tried: tuple[tuple[SlowSuspect, str], ...] = ()


def slower_of(record: ComparisonRecord, folder: Path, patterns: Sequence[str]) -> list[Slower]:
    """What B is slower with.

    Args:
        record: of a comparison.
        folder: its.
        patterns: globs of chains; all where there are none.

    Raises:
        NothingSelectedError: nothing is slower, or nothing of it matches.
        GauntletError: the comparison does not have what is needed.
    """
    where = shown(folder)
    if record.opening.metric != "time":
        what = f"{where} compares {record.opening.metric}, not times"
        raise NothingSelectedError(
            what, "Only what runs slower has slower dispatches: `gauntlet compare A B` times it."
        )
    found = {
        chain: item.figures.ratio
        for chain, item in record.verdicts.items()
        if item.verdict == TimeVerdict.SLOWER and item.figures
    }
    if not found:
        raise NothingSelectedError(f"nothing is slower in {where}", "`explain --slower COMPARISON` takes another one.")
    chosen = [chain for chain in found if not patterns or any(fnmatchcase(chain, pattern) for pattern in patterns)]
    if not chosen:
        raise NothingSelectedError(
            f"nothing that is slower in {where} matches {' '.join(patterns)}", f"Slower there: {', '.join(found)}."
        )
    return [_make_slower(chain, found[chain], record, folder) for chain in chosen]


def _make_slower(chain: str, ratio: float, record: ComparisonRecord, folder: Path) -> Slower:
    steps = record.prepared.benchmarks.get(chain)
    if steps is None or chain not in record.where:
        what = "does not say how it was benchmarked" if steps is None else "was cut short before its profiles"
        again = f"`compare --resume --run-dir {shown(folder)}` adds it; what was measured stays."
        raise GauntletError(f"{chain}: the comparison {what}", again)
    verdict, where, rounds = record.verdicts[chain], record.where[chain], record.opening.rounds
    a, b = (_make_side(chain, steps[side.name], side.run, verdict.reason) for side in record.sides)
    return Slower(
        case=chain,
        reason=verdict.reason,
        ratio=ratio,
        # Releases without profiles have counts.
        where=where.work or where.dispatches,
        sides=(a, b),
        resources=steps[record.sides[1].name].resources,
        rules=Rules.of(record.opening),
        rounds=RoundSettings(rounds.repetitions, rounds.min_time, verdict.cpus or ()),
    )


def _make_side(chain: str, benchmark: SideBenchmark, run: Any, reason: str) -> Failure:
    compiled = next(step for step in run.steps if step["id"] == f"{chain}:{Stage.COMPILE}")
    cwd, program, flags = compile_of(compiled)
    command = benchmark.command
    return Failure(
        case=chain,
        stage=Stage.BENCHMARK,
        result=Result(Verdict.FAILED, reason),
        program=program,
        flags=flags,
        compile_cwd=cwd,
        compile_timeout=float(compiled["timeout"]),
        argv=expanded(command.argv, Path(command.cwd)),
        cwd=Path(command.cwd),
        timeout=benchmark.timeout,
        folder=chain_folder(compiled),
        urls={},
    )


def suspects_of(where: ComparedDispatches) -> list[SlowSuspect]:
    """The dispatches of a record of profiles, or counts, that explain B's loss, the greatest loss first."""
    if where.difference is None:
        return []
    whole = where.difference.b_ns - where.difference.a_ns
    rows = [row for row in where.difference.rows if row.match != Match.OUTSIDE]
    return [
        SlowSuspect(name, row.a_ns, row.b_ns, (row.b_ns - row.a_ns) / whole, where.unit)
        for row in sorted(rows, key=lambda row: row.a_ns - row.b_ns)
        if whole > 0 and row.b_ns - row.a_ns >= _LEAST_SHARE * whole
        for name in row.b_names
    ][:_MOST_SUSPECTS]


def find_slow_dispatch(
    slower: Slower, tools: tuple[Tools, Tools], session: Session[Any], say: Callable[[str], None]
) -> SlowerSearch:
    """The dispatch with the greatest loss that is slower by itself too, on the inputs that it had.

    Raises:
        GauntletError: the program cannot be traced.
    """
    if slower.where.difference is None:
        return SlowerSearch(why=f"there is no profile that would say where: {slower.where.reason}")
    suspects = suspects_of(slower.where)
    if not suspects:
        spread = _describe_most(slower.where.difference)
        return SlowerSearch(why=f"the loss is spread over {spread}; none of them alone makes up a tenth of it")
    say("compiling to dispatches")
    target = slower.sides[1]
    program = traced_program(target, tools[1])
    # One that is dispatched from several places is the same function each time.
    places = {dispatch.name: dispatch for dispatch in reversed(list(program.dispatches.values()))}
    functions = {item.name: as_function(program, places[item.name]) for item in suspects if item.name in places}
    wanted = [places[name] for name, function in functions.items() if function]
    captured: dict[str, Any] = {}
    if wanted:
        say(f"tracing {len(program.dispatches)} dispatches")
        captured = _capture(tools[1], target_side(target, tools[1], program), wanted, target.timeout)
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
        inputs = tuple((tensors[i]["type"], Path(tensors[i]["file"])) for i in places[suspect.name].places)
        say(f"measuring {suspect.name} by itself")
        try:
            steps = [_make_step(slower, side, tools[side], f"cut_{number}", (function, inputs)) for side in (0, 1)]
        except GauntletError as error:
            tried.append((suspect, error.on_one_line))
            continue
        pair = pair_of(f"{slower.case} {suspect.name}", (steps[0], steps[1]), "time", slower.rounds)
        verdict = judge(Comparer(session, slower.rules).run([pair], {}), slower.rules)[pair.chain]
        tried.append((suspect, _describe_said(verdict)))
        if verdict.verdict == TimeVerdict.SLOWER:
            slow = SlowDispatch(suspect, function, inputs, verdict, pair.measured(slower.rounds.cpus))
            return SlowerSearch(slow, tried=tuple(tried))
    return SlowerSearch(
        why=f"the loss is spread over {_describe_most(slower.where.difference)}; none of them alone is slower",
        tried=tuple(tried),
    )


def _describe_most(where: DispatchDifference) -> str:
    names = [row.name for row in where.rows if row.b_ns > row.a_ns]
    return ", ".join(names) or "many dispatches"


def _describe_said(verdict: ModelVerdict) -> str:
    """What came of a dispatch by itself."""
    if verdict.comparison is None:
        return f"by itself: {verdict.failure}"
    return f"by itself {verdict.verdict}: {verdict.comparison.reason}"


def _capture(tools: Tools, target: dict[str, Any], wanted: Sequence[Dispatch], timeout: float) -> dict[str, Any]:
    """The inputs of some dispatches: by their keys, types and files."""
    plan = {"target": target, "capture": [dispatch.key for dispatch in wanted], "folder": str(tools.folder)}
    file = tools.folder / "capture.json"
    file.write_text(json.dumps(plan), encoding="utf-8")
    script = str(Path(iree_side.__file__).with_name("trace_dispatches.py"))
    ran = tools.python("capture", (script, str(file)), timeout=timeout)
    if not ran.passed:
        raise GauntletError(f"the inputs could not be captured: {ran.errors.strip()[-300:]}", f"See {tools.folder}.")
    found: dict[str, Any] = json.loads((tools.folder / "captured.json").read_text(encoding="utf-8"))
    return found


def _make_step(
    slower: Slower, side: int, tools: Tools, name: str, cut_out: tuple[str, Sequence[tuple[str, Path]]]
) -> Step:
    """A dispatch's benchmark on one side, compiled."""
    function, inputs = cut_out
    asked = slower.sides[side]
    source = tools.folder / f"{name}.mlir"
    source.write_text(function, encoding="utf-8")
    module = tools.compile(f"{name}.vmfb", source, asked.flags, timeout=asked.compile_timeout, cwd=asked.compile_cwd)
    values = [f"--input={kind}=@{path}" for kind, path in inputs]
    kept = [word for word in asked.argv if not word.startswith(_OF_PROGRAM)]
    argv = (*kept, f"--module={module}", f"--function={CUT_OUT}", *values)
    return Step(
        id=f"{slower.case} {name}:{Stage.BENCHMARK}",
        chain=slower.case,
        dialect="",
        model="",
        submodel="",
        target="",
        sku="",
        stage=Stage.BENCHMARK,
        folder=str(tools.folder / name),
        timeout=asked.timeout,
        origin=Origin(str(source)),
        command=Command(argv, str(asked.cwd)),
        resources=slower.resources,
    )
