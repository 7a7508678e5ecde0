"""What a comparison found slower, and which of its dispatches is slower by itself, cut out and measured in rounds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Origin, Stage, Verdict
from iree_gauntlet.engine.rounds.taken_rounds import RoundSettings, gpu_of
from iree_gauntlet.errors import GauntletError, NothingSelectedError
from iree_gauntlet.experiments.explaining.failures import Failure, failure_of
from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT, as_function
from iree_gauntlet.experiments.explaining.traced_sides import capture_inputs, target_side, traced_program
from iree_gauntlet.experiments.session_verdicts import Comparer, ModelVerdict, Rules, judge
from iree_gauntlet.experiments.sides import pair_of
from iree_gauntlet.measuring.profiles.dispatch_profile import Match
from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict
from iree_gauntlet.results import Result
from iree_gauntlet.settings import shown
from iree_gauntlet.steps import Command, Resources

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.explaining.tools import Tools
    from iree_gauntlet.experiments.explaining.traced_sides import CapturedInputs, HeldTensor
    from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison
    from iree_gauntlet.records.compare_record import (
        ComparedDispatches,
        ComparedSide,
        ComparisonRecord,
        DispatchDifference,
    )
    from iree_gauntlet.steps import Step


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
class SlowDispatch:
    """One that is slower by itself.

    Attributes:
        arguments: of a round of each side, without the module and the inputs, which are named by paths.
        gpu: that it runs on; empty for a CPU.
    """

    suspect: SlowSuspect
    function: str
    inputs: tuple[HeldTensor, ...]
    verdict: ModelVerdict
    comparison: Comparison
    arguments: tuple[tuple[str, ...], tuple[str, ...]]
    gpu: str

    @property
    def times(self) -> dict[str, Any]:
        """For the record."""
        return self.verdict.record().as_dict()


@dataclass(frozen=True, slots=True)
class SlowerSearch:
    """What a search came to.

    Attributes:
        slow: the dispatch; None where there is none.
    """

    slow: SlowDispatch | None = None
    why: str = ""
    tried: tuple[tuple[SlowSuspect, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        tried = [{**asdict(suspect), "said": said} for suspect, said in self.tried]
        if self.slow is None:
            return {"why": self.why, "tried": tried}
        inputs = [item.type for item in self.slow.inputs]
        one = {**asdict(self.slow.suspect), "inputs": inputs, "times": self.slow.times}
        return {"why": self.why, "tried": tried, **one}


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
    compiled, result = [_find_compile(chain, side) for side in record.sides], Result(Verdict.FAILED, verdict.reason)
    a, b = (
        failure_of(step, steps[side.name].command, Stage.BENCHMARK, result, steps[side.name].timeout)
        for step, side in zip(compiled, record.sides, strict=True)
    )
    return Slower(
        case=chain,
        reason=verdict.reason,
        ratio=ratio,
        # Releases without profiles have counts.
        where=where.work or where.dispatches,
        sides=(a, b),
        compiled=compiled[1],
        resources=steps[record.sides[1].name].resources,
        rules=Rules.of(record.opening),
        rounds=RoundSettings(rounds.repetitions, rounds.min_time, verdict.cpus or ()),
    )


def _find_compile(chain: str, side: ComparedSide) -> Step:
    planned = side.run.planned if side.run else ()
    found = next((step for step in planned if step.id == f"{chain}:{Stage.COMPILE}"), None)
    if found is None:
        raise GauntletError(f"{chain}: the comparison has no compile of {side.name}", "Begin a new comparison.")
    return found


def find_suspects(where: ComparedDispatches) -> list[SlowSuspect]:
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
    suspects = find_suspects(slower.where)
    if not suspects:
        spread = _describe_most(slower.where.difference)
        return SlowerSearch(why=f"the loss is spread over {spread}; none of them alone makes up a tenth of it")
    say("compiling to dispatches")
    program = traced_program(tools[1])
    # One that is dispatched from several places is the same function each time.
    places = {dispatch.name: dispatch for dispatch in reversed(list(program.dispatches.values()))}
    functions = {item.name: as_function(program, places[item.name]) for item in suspects if item.name in places}
    wanted = [places[name] for name, function in functions.items() if function]
    captured: CapturedInputs = {}
    if wanted:
        say(f"tracing {len(program.dispatches)} dispatches")
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
        say(f"measuring {suspect.name} by itself")
        try:
            a, b = (_make_step(slower, side, f"cut_{number}", function, inputs) for side in tools)
        except GauntletError as error:
            tried.append((suspect, error.on_one_line))
            continue
        pair = pair_of(f"{slower.case} {suspect.name}", (a, b), "time", slower.rounds)
        verdict = judge(Comparer(session, slower.rules).run([pair], {}), slower.rules)[pair.chain]
        tried.append((suspect, _describe_said(verdict)))
        if verdict.comparison is not None and verdict.verdict == TimeVerdict.SLOWER:
            measured = pair.measured(slower.rounds.cpus)
            base, new = (
                _list_arguments(one.command.argv, side) for one, side in zip(measured, slower.sides, strict=True)
            )
            gpu = gpu_of(b)
            slow = SlowDispatch(suspect, function, inputs, verdict, verdict.comparison, (base, new), gpu)
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


def _list_arguments(argv: Sequence[str], side: Failure) -> tuple[str, ...]:
    # Before the tool may be taskset.
    begin = argv.index(side.argv[0]) + 1
    return tuple(word for word in argv[begin:] if not word.startswith(("--module=", "--input=")))


def _make_step(slower: Slower, tools: Tools, name: str, function: str, inputs: Sequence[HeldTensor]) -> Step:
    """A dispatch's benchmark on one side, compiled."""
    asked = tools.failure
    module = tools.compile_text(name, function, asked.flags)
    values = [f"--input={item.argument}" for item in inputs]
    kept = [word for word in asked.argv if not word.startswith(_OF_PROGRAM)]
    argv = (*kept, f"--module={module}", f"--function={CUT_OUT}", *values)
    return replace(
        slower.compiled,
        id=f"{slower.case} {name}:{Stage.BENCHMARK}",
        stage=Stage.BENCHMARK,
        folder=str(tools.folder / name),
        timeout=asked.timeout,
        origin=Origin(str(tools.folder / f"{name}.mlir")),
        command=Command(argv, str(asked.cwd)),
        resources=slower.resources,
    )
