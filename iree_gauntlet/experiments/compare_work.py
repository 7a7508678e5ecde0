"""What the instructions of two sides say: exactly, without rounds, and by which dispatches they differ."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.modules.modules import read_statistics
from iree_gauntlet.experiments.sides import Side, prepare_side, unready
from iree_gauntlet.figures import outside_text, work_change
from iree_gauntlet.measuring.instructions.counters import Work, compare_work, read_counts
from iree_gauntlet.measuring.profiles.dispatch_profile import Match, compile_changes, dispatch_changes
from iree_gauntlet.settings import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iree_gauntlet.experiments.performing import Chosen
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.records.event_log import EventLog


_WITHOUT_FMA = ",-fma"


@dataclass(frozen=True, slots=True)
class WorkVerdict:
    """What the counts of one model say.

    Attributes:
        chain: which.
        work: B's against A's.
        a, b: instructions of one call.
        counter: what has counted.
        cpu: what the modules were compiled for; empty for what the spec says.
        outside: the difference that is in no dispatch; None where the counter does not know dispatches.
        with_fma: the counts of A and B with fused multiply-adds; None where they were not taken.
    """

    chain: str
    work: Work
    a: int
    b: int
    counter: str
    cpu: str
    outside: int | None
    with_fma: tuple[int, int] | None = None

    @property
    def text(self) -> str:
        """Beside a verdict on times."""
        made = f" as compiled for {self.cpu}" if self.cpu else ""
        change = f"{self.work} ({work_change(self.a, self.b)}{outside_text(self.b - self.a, self.outside)}){made}"
        return f"the {change}: the code that was counted does no more" if self.work is Work.SAME else change

    def as_dict(self) -> dict[str, Any]:
        """For the log."""
        record: dict[str, Any] = {
            "verdict": str(self.work),
            "instructions": {"A": self.a, "B": self.b},
            "ratio": self.b / self.a,
            "counter": self.counter,
            "cpu": self.cpu,
            "outside": self.outside,
        }
        if self.with_fma is not None:
            record["with_fma"] = dict(zip("AB", self.with_fma, strict=True))
        return record


def judge_work(sides: tuple[Side, Side], chains: Iterable[str], least: float) -> dict[str, WorkVerdict]:
    """What the counts say of each model whose instructions were counted on both sides.

    Args:
        sides: A and B.
        chains: the models.
        least: the share of A's from which on a difference counts.
    """
    found = {}
    for chain in chains:
        figures = [item for side in sides if (item := _counted(side, chain))]
        # Two kinds of counters, or modules for two CPUs, have nothing to do with each other.
        kinds = {(str(item["counter"]), str(item["cpu"])) for item in figures}
        if len(figures) == len(sides) and len(kinds) == 1:
            a, b = (int(item["instructions"]) for item in figures)
            found[chain] = WorkVerdict(chain, compare_work(a, b, least), a, b, *kinds.pop(), _outside(sides, chain))
    return found


def count_with_fma(
    verdicts: Mapping[str, WorkVerdict], sides: tuple[Side, Side], chosen: Chosen, presenter: Presenter
) -> dict[str, WorkVerdict]:
    """The same verdicts, with counts of modules that have fused multiply-adds where the work has changed.

    They are other code, which takes valgrind up to twenty times as long.
    """
    changed = {chain for chain, found in verdicts.items() if found.work is not Work.SAME}
    cpus = {verdicts[chain].cpu for chain in changed}
    if not changed or chosen.request.conduct.count_cpu or not all(cpu.endswith(_WITHOUT_FMA) for cpu in cpus):
        return dict(verdicts)
    presenter.line("\nthe work has changed: counting again with fused multiply-adds, which takes valgrind long")
    cpu = cpus.pop().removesuffix(_WITHOUT_FMA)
    conduct = replace(chosen.request.conduct, count_cpu=cpu)
    with_fma = replace(chosen, request=replace(chosen.request, conduct=conduct, chains=frozenset(changed)))
    again: list[Side] = []
    for side in sides:
        folder = side.folder.with_name(f"{side.folder.name}-fma")
        again.append(prepare_side(f"{side.name} with FMA", side.machine, side.asked, with_fma, folder, presenter))
        if again[-1].interrupted:
            raise KeyboardInterrupt
    counts = judge_work((again[0], again[1]), changed, 0.0)
    return {
        chain: replace(found, with_fma=(counts[chain].a, counts[chain].b)) if chain in counts else found
        for chain, found in verdicts.items()
    }


def write_work_changes(log: EventLog, verdicts: Mapping[str, WorkVerdict], sides: tuple[Side, Side]) -> None:
    """Writes an event `where` for each model whose work has changed: its dispatches on both sides, and the compiles."""
    for chain, found in verdicts.items():
        if found.work is Work.SAME:
            continue
        where = counted_dispatches(sides, chain)
        log.write("where", {"chain": chain, "dispatches": where, "compile": _compiled(sides, chain)})


def counted_dispatches(sides: tuple[Side, Side], chain: str) -> dict[str, Any]:
    """The dispatches of a model that was counted on both sides: as of a profile, with instructions in place of ns."""
    a, b = (read_counts(Path(side.counts[chain].output("counts"))) for side in sides)
    if not (a.dispatches and b.dispatches):
        return {"reason": "the CPU's own counter does not know dispatches; --counter valgrind counts each"}
    record = {"unit": "instructions", "measured": None, **dispatch_changes(a.profile, b.profile).as_dict()}
    places = [{name: place for name, _, place in side.dispatches} for side in (a, b)]
    for row in record["rows"]:
        if row["match"] == Match.OUTSIDE:
            row["name"] = "outside of dispatches (the runtime, and what dispatches call of the C library)"
        named = ((1, row["b_names"]), (0, row["a_names"]))
        found = ((side, place) for side, names in named for name in names if (place := places[side].get(name)))
        side, place = next(found, (0, ""))
        row["place"] = _found_place(place, Path(sides[side].counts[chain].input("program").path).parent)
    return record


def _found_place(place: str, folder: Path) -> str:
    """`file:line` of a program, which stands in the module from the folder of its compile, as one would open it."""
    name, colon, line = place.rpartition(":")
    path = folder / name
    return f"{shown(path.resolve())}{colon}{line}" if name and path.is_file() else place


def _outside(sides: tuple[Side, Side], chain: str) -> int | None:
    """How many instructions more B has outside of dispatches; None where that is not known."""
    a, b = (read_counts(Path(side.counts[chain].output("counts"))) for side in sides)
    return b.outside - a.outside if a.dispatches and b.dispatches else None


def _compiled(sides: tuple[Side, Side], chain: str) -> list[dict[str, Any]]:
    """What the compiler says of the two main modules."""
    made = []
    for side in sides:
        outputs = [dict(step["outputs"]) for step in side.record.steps if step["stage"] == Stage.COMPILE]
        main = side.counts[chain].input("program").path
        found = [item for item in outputs if item["module"] == main and "statistics" in item]
        if not found:
            return []
        made.append(found[0])
    # Without their sizes: that of a module that is made for a count is no one's.
    changes = compile_changes(*(read_statistics(Path(outputs["statistics"])) for outputs in made))
    return [change.as_dict() for change in changes]


def _counted(side: Side, chain: str) -> dict[str, Any] | None:
    """The figures of a side's count; None where there is none."""
    step = side.counts.get(chain)
    if step is None or unready(side, step):
        return None
    return side.record.results[step.id].statistics
