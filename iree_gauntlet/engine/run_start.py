"""How a run begins: what of its plan this machine can do, what a resumed one does again, session and engine."""

from __future__ import annotations

import os
import shlex
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet import __version__
from iree_gauntlet.artifacts.sources import PypiSource, RemoteSource, parse_source
from iree_gauntlet.cases import Case, Golden, Origin, Verdict
from iree_gauntlet.dialects.locations import file_path
from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.engine.plan import Plan, blocked
from iree_gauntlet.engine.rounds.machine_lock import lock_facts
from iree_gauntlet.engine.session import Session, open_session
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.figures import JUDGED_FIGURES, Figure, Statistic
from iree_gauntlet.journal_events import Device, RunOpening, RunTarget, ToolchainFacts
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.settings import shown
from iree_gauntlet.stages import Kind, Stage
from iree_gauntlet.steps import NOTHING_COMPARED, Resources, Step
from iree_gauntlet.toolchains.devices import find_device

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import StepInput
    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.toolchain import Toolchain


# Those whose figures may be held against an earlier run's.
_BASELINE_STAGES = frozenset(figure.golden.stage for figure in JUDGED_FIGURES if figure.golden.baseline)


def imports_possible(plan: Plan, machine: Workbench) -> Plan:
    """The plan, with imports blocked where the IREE has no importer: another one's is not taken in its place."""
    toolchain = machine.toolchain
    if toolchain is None or toolchain.compiler.python:
        return plan
    why = (
        f"{toolchain.source} has no Python bindings, so it cannot import ONNX programs: "
        "build it with -DIREE_BUILD_PYTHON_BINDINGS=ON, or give MLIR programs"
    )
    steps = (blocked(step, why) if step.stage is Stage.IMPORT else step for step in plan.steps)
    return replace(plan, steps=tuple(steps))


def on_devices_here(plan: Plan, machine: Workbench, *, optional: bool = False) -> Plan:
    """Every step with the device that it runs on by its own name, so that two names of one device are one.

    What no device here can do is blocked, as a demand that cannot be met fails at once; or skipped where it is
    `optional`.
    """
    found: dict[str, Device | ToolchainError] = {}

    def checked(step: Step) -> Step:
        device = step.resources.accelerator
        if not device or machine.toolchain is None:
            return step
        if device not in found:
            try:
                found[device] = find_device(machine.toolchain, device)
            except ToolchainError as problem:
                found[device] = problem
        here = found[device]
        if isinstance(here, ToolchainError):
            if optional:
                return replace(step, skip=step.skip or f"compiled only: {here.what}", resources=Resources(cores=0))
            return blocked(step, f"no device {device!r} here: {here.what}; {here.hint}")
        return step.place_on(here)

    steps = tuple(checked(step) for step in plan.steps)
    return replace(plan, steps=steps, devices=tuple(item for item in found.values() if isinstance(item, Device)))


def run_event(
    plan: Plan, run_dir: Path, machine: Workbench, suite: str, targets: Sequence[Target], command: Sequence[str]
) -> RunOpening:
    """The journal's `run` event, but for what was selected and by which options: those who know add that."""
    return RunOpening(
        name=run_dir.name,
        version=__version__,
        suite=suite,
        command=shlex.join(command),
        cwd=str(Path.cwd()),
        target=tuple(RunTarget(target.name, target.sku) for target in targets),
        toolchain=machine.toolchain.facts if machine.toolchain else ToolchainFacts(),
        machine=replace(read_machine_facts(), devices=plan.devices),
        lock_folder=lock_facts(os.environ).get("lock_folder", ""),
        remarks=(machine.toolchain.why,) if machine.toolchain and machine.toolchain.why else (),
    )


@contextmanager
def model_session(
    run_dir: Path, progress: Progress, event: RunOpening, steps: Sequence[Step]
) -> Iterator[Session[Journal]]:
    """A session in a run's folder, whose journal has begun with an event; Ctrl-C and SIGTERM end it.

    Steps are those that are known; of a resumed run, those that are done.
    """
    with (
        Journal(run_dir / JOURNAL, lambda: datetime.now(UTC)) as journal,
        open_session(run_dir, journal, progress) as session,
    ):
        journal.run(event, steps)
        # Of a resumed run only what is left to do counts.
        progress.run_started(event, 0 if event.resumed else len(steps))
        with session.interruptible():
            yield session


def model_engine(
    session: Session[Journal], workbench: Workbench, performers: Mapping[Stage, Callable[[Step], Result]]
) -> Engine:
    """An engine with as many jobs as cores, that continues after failures; arguments as for `Engine`."""
    jobs = read_machine_facts().cores
    options = RunOptions(jobs=jobs, fail_fast=False, made_again=None, lenient=False, all_goldens=False, confirm=None)
    return Engine(session, workbench, options, performers)


def require_importer(toolchain: Toolchain) -> None:
    """Raises ToolchainError where a toolchain cannot import what torch exports."""
    if not toolchain.compiler.python or not toolchain.compiler.onnx_version:
        raise ToolchainError(
            f"{toolchain.source} has no Python bindings, or no onnx package with them",
            "A model is imported and measured through them; choose another IREE with --iree.",
        )


def with_compile_statistics(cases: CaseSet) -> CaseSet:
    """Cases of which, for each module, one reads how many dispatches it has and how large it is.

    Operator suites are left as they are: the compiler does not count for them.
    """
    counted = {case.modules[-1].id for case in cases.cases if case.kind is Kind.COMPSTAT or case.compile_statistics}
    found = []
    for case in cases.cases:
        main = case.modules[-1]
        if main.id not in counted and not main.program.name:
            counted.add(main.id)
            case = replace(case, compile_statistics=True)  # noqa: PLW2901 - the same, with one more step
        found.append(case)
    return replace(cases, cases=tuple(found))


def held_against(plan: Plan, record: JournalRecord, name: str, release: str) -> tuple[Plan, tuple[str, ...]]:
    """A plan with the figures of an earlier run as goldens, in addition to the specs' own.

    They are held against this release of the compiler, whichever the earlier run had. Returns also the chains of which
    the earlier run has no figure.
    """
    steps, missing = [], []
    for step in plan.steps:
        judged = step.stage in _BASELINE_STAGES and NOTHING_COMPARED not in step.notes
        # Before the spec's own, which stay what reports name.
        goldens = tuple(_list_goldens(step, record, Origin(f"--baseline {name}"), release)) if judged else ()
        if judged and not goldens and not step.skip:
            missing.append(step.chain)
        steps.append(replace(step, goldens=(*goldens, *step.goldens)))
    return replace(plan, steps=tuple(steps)), tuple(dict.fromkeys(missing))


def _list_goldens(step: Step, record: JournalRecord, origin: Origin, release: str) -> Iterator[Golden]:
    """What an earlier run measured of a step's chain; no error of outputs that were not as expected."""
    for figure in JUDGED_FIGURES:
        if figure.golden.stage is not step.stage or not figure.golden.baseline:
            continue
        # A run that did not read them by themselves has them with its compiles.
        steps = (step.id,) if figure.row.stage is step.stage else (step.id, *step.needs)
        results = [record.results[name] for name in steps if name in record.results]
        if figure is Figure.ERROR:
            results = [result for result in results if result.verdict is Verdict.PASSED]
            release = ""
        value = next((value for result in results if (value := result.measure(figure)) is not None), None)
        if value is not None:
            yield Golden(figure, value, figure.golden.baseline, Statistic.MEAN, "", release, origin)


def redo_changed(
    steps: Sequence[Step], finished: Mapping[str, Verdict], record: JournalRecord, sha256: Callable[[Path], str]
) -> tuple[tuple[Step, ...], dict[str, Verdict]]:
    """The steps of a resumed run, and which are done: none that was made from what is not any more as it was.

    A file of the user's own whose content the earlier plan did not know counts as changed where it was written to, or
    put there, after the step began.
    """
    planned = {step.id: step for step in record.planned}
    # Why a step is done again: of one whose command is another now, its plan says that.
    causes: dict[str, str] = {}
    for step in steps:
        before = planned.get(step.id)
        if step.id in finished and before is not None:
            began = datetime.fromisoformat(record.starts.get(step.id, record.result_times[step.id])).timestamp()
            known = {(item.role, item.url, item.path): item.sha256 for item in before.inputs}
            for item in step.inputs:
                if is_changed(item, known.get((item.role, item.url, item.path), ""), began, sha256):
                    path = shown(Path(file_path(item.url) or item.path))
                    causes[step.id] = f"done again: {path} has changed since the run began"
        elif before is not None and step.id in record.results and before.command != step.command:
            causes[step.id] = ""
    # A fetch only looks after files: what became of them is said by those that read them.
    made_again = {step.id for step in steps if step.id in causes and not step.stage.row.fetches}
    while more := {
        step.id: next(need for need in step.needs if need in made_again)
        for step in steps
        if step.id in finished and step.id not in causes and not made_again.isdisjoint(step.needs)
    }:
        causes |= {name: f"done again, as {need} is" for name, need in more.items()}
        made_again |= more.keys()
    noted = (
        replace(step, notes=(*step.notes, causes[step.id])) if step.id in finished and step.id in causes else step
        for step in steps
    )
    return tuple(noted), {name: verdict for name, verdict in finished.items() if name not in causes}


def find_unplanned(steps: Sequence[Step], record: JournalRecord) -> tuple[Step, ...]:
    """Steps with results of a run's earlier parts that its plan no longer has: a verdict is not lost with its spec."""
    planned = {step.id for step in steps}
    return tuple(step for step in record.planned if step.id in record.results and step.id not in planned)


def is_changed(item: StepInput, before: str, began: float, sha256: Callable[[Path], str]) -> bool:
    """Whether an input is another than it was when a step began; one that is gone is left to what fetches it."""
    path = file_path(item.url)
    if before and item.sha256:
        return before != item.sha256
    try:
        # The time of change, which a file moved or copied here has too.
        return bool(path) and (sha256(Path(path)) != before if before else Path(path).stat().st_ctime > began)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file that is not available without the network.

    Attributes:
        needed_by: what needs it: a field of a spec file, or a step.
        more: how many others need it, too.
    """

    url: str
    needed_by: str
    more: int


def find_missing_files(
    steps: Iterable[Step], cases: Iterable[Case], store: ArtifactStore, finished: Container[str] = ()
) -> list[MissingFile]:
    """The files of steps that only the network has, in the order of the steps.

    A file that the user named by its path (`file:`) is not among them, nor one that is made here (`random:`). The cases
    say which field of which spec names a file; what is skipped, cannot run, or is finished needs nothing.
    """
    wanted: dict[str, list[str]] = {}
    for step in steps:
        if step.stage.row.fetches and not (step.skip or step.blocked) and step.id not in finished:
            for item in step.inputs:
                wanted.setdefault(item.url, []).append(step.id)
    from iree_gauntlet.dialects.load import list_urls  # noqa: PLC0415 - it brings pydantic

    missing = [url for url in wanted if _needs_network(store, url)]
    fields: dict[str, list[str]] = {url: [] for url in missing}
    # Most of the time nothing is missing, and no spec needs to be looked at.
    for case in cases if missing else ():
        for field, url in list_urls(case):
            place = f"{case.origin.file}: {field}"
            if url in fields and place not in fields[url]:
                fields[url].append(place)
    needed = ((url, fields[url] or wanted[url]) for url in missing)
    return [MissingFile(url, by[0], len(by) - 1) for url, by in needed]


def describe_missing(files: Sequence[MissingFile]) -> str:
    """The list for people, one line a file."""
    count = "1 file is missing" if len(files) == 1 else f"{len(files)} files are missing"
    lines = [f"offline: {count}:"]
    for file in files:
        more = f" and {file.more} more" if file.more else ""
        lines.append(f"  {file.url} ({file.needed_by}{more})")
    lines.append(
        "  Fetch once with network access, or `cache.import` an archive; `cache.where URL` shows where it would lie."
    )
    return "\n".join(lines)


def without_missing_files(steps: Iterable[Step], missing: Sequence[MissingFile]) -> tuple[Step, ...]:
    """The steps of a plan, where those that fetch say what of theirs is not available."""
    urls = {file.url for file in missing}

    def with_missing(step: Step) -> Step:
        # Path.exists raises for a name that is too long.
        gone = [
            item.url
            for item in step.inputs
            if item.url in urls or ((path := file_path(item.url)) and not os.path.exists(path))  # noqa: PTH110
        ]
        if not step.stage.row.fetches or not gone:
            return step
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        count = f"{len(gone)} of {len(step.inputs)} files {'is' if len(gone) == 1 else 'are'} missing"
        return replace(step, cache=replace(step.cache, reason=f"{count}: {gone[0]}{more}"))

    return tuple(map(with_missing, steps))


def _needs_network(store: ArtifactStore, url: str) -> bool:
    source = parse_source(url)
    if not isinstance(source, RemoteSource | PypiSource) or store.present(url):
        return False
    if isinstance(source, PypiSource):
        # Whether it is the right one shows when the file is taken out of it.
        wheels = store.root.joinpath("wheels", *source.local_name.split("/")[1:3])
        return next(wheels.glob("*.whl"), None) is None
    from iree_gauntlet.artifacts.remotes import places  # noqa: PLC0415 - the network's libraries take their time

    for place in places(url, store.configuration):
        # Such as a mirror in a folder. Path.is_file raises for a name that is too long.
        path = unquote(urlsplit(place).path if place.startswith("file:") else place)
        if path.startswith("/") and os.path.isfile(path):  # noqa: PTH113
            return False
    return True
