"""The beginning of a run: block impossible steps, choose the steps to repeat, open the session."""

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
from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.dialects.locations import get_url_path
from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.engine.plan import Plan, block_step
from iree_gauntlet.engine.rounds.machine_lock import make_lock_facts
from iree_gauntlet.engine.session import Session, open_session
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.figures import GOLDEN_FIGURES, Figure, Statistic
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.journal_events import Device, RunOpening, RunTarget, ToolchainInfo
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.settings import format_path
from iree_gauntlet.stages import Kind, Stage
from iree_gauntlet.steps import NOTHING_COMPARED, Resources, Step
from iree_gauntlet.toolchains.devices import find_device

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
    from datetime import date

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import StepInput
    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.toolchain import Toolchain


# A quarantine that ends within so many days is announced.
_WARNED_DAYS = 7
# The metrics of these stages can be compared with the same metrics of an earlier run.
_BASELINE_STAGES = frozenset(figure.golden.stage for figure in GOLDEN_FIGURES if figure.golden.baseline)


def block_impossible_imports(plan: Plan, workbench: Workbench) -> Plan:
    """Return the plan, with imports blocked if the IREE has no importer; never import with a different IREE."""
    toolchain = workbench.toolchain
    if toolchain is None or toolchain.compiler.python:
        return plan
    reason = (
        f"{toolchain.source} has no Python bindings, so it cannot import ONNX programs: "
        "build it with -DIREE_BUILD_PYTHON_BINDINGS=ON, or give MLIR programs"
    )
    steps = (block_step(step, reason) if step.onnx is not None else step for step in plan.steps)
    return replace(plan, steps=tuple(steps))


def assign_local_devices(plan: Plan, workbench: Workbench, *, optional: bool = False) -> Plan:
    """Return the plan with the aliases of each device replaced by its one canonical name.

    Steps that no local device can run are blocked, which makes an impossible request fail at once. With `optional` they
    are skipped instead.
    """
    devices: dict[str, Device | ToolchainError] = {}

    def assign_device(step: Step) -> Step:
        device = step.resources.device
        if not device or workbench.toolchain is None:
            return step
        if is_cpu(device):
            reason = plan.obstacles.get(step.id)
            return block_step(step, reason) if reason else step
        if device not in devices:
            try:
                devices[device] = find_device(workbench.toolchain, device)
            except ToolchainError as error:
                devices[device] = error
        result = devices[device]
        if isinstance(result, ToolchainError):
            if optional:
                return replace(step, skip=step.skip or f"compiled only: {result.message}", resources=Resources(cores=0))
            return block_step(step, f"no device {device!r} on this machine: {result.message}; {result.hint}")
        return step.place_on(result)

    steps = tuple(assign_device(step) for step in plan.steps)
    return replace(
        plan, steps=steps, devices=tuple(device for device in devices.values() if isinstance(device, Device))
    )


def make_run_event(
    plan: Plan, run_dir: Path, workbench: Workbench, suite: str, targets: Sequence[Target], command: Sequence[str]
) -> RunOpening:
    """Return the journal's `run` event; callers add the selection and the options."""
    return RunOpening(
        name=run_dir.name,
        version=__version__,
        suite=suite,
        command=shlex.join(command),
        cwd=str(Path.cwd()),
        target=tuple(RunTarget(target.name, target.sku) for target in targets),
        toolchain=workbench.toolchain.facts if workbench.toolchain else ToolchainInfo(),
        machine=replace(read_machine_facts(), devices=plan.devices),
        lock_folder=make_lock_facts(os.environ).get("lock_folder", ""),
        remarks=(workbench.toolchain.selection_reason,)
        if workbench.toolchain and workbench.toolchain.selection_reason
        else (),
    )


@contextmanager
def open_model_session(
    run_dir: Path, progress: Progress, event: RunOpening, steps: Sequence[Step]
) -> Iterator[Session[Journal]]:
    """Open a session in a run's folder and write `event` to its journal; Ctrl-C and SIGTERM end the session.

    `steps` are the planned steps; for a resumed run, only the finished steps.
    """
    with (
        Journal(run_dir / JOURNAL, lambda: datetime.now(UTC)) as journal,
        open_session(run_dir, journal, progress) as session,
    ):
        journal.write_opening(event, steps)
        # A resumed run counts only its remaining steps, when they are announced.
        progress.run_started(event, 0 if event.resumed else len(steps))
        with session.interruptible():
            yield session


def make_model_engine(
    session: Session[Journal], workbench: Workbench, performers: Mapping[Stage, Callable[[Step], Result]]
) -> Engine:
    """Return an engine that has as many jobs as cores and continues after failures; arguments as for `Engine`."""
    jobs = read_machine_facts().cores
    options = RunOptions(jobs=jobs, fail_fast=False, rebuilt_marks_dir=None, allow_xpass=False, all_goldens=False)
    return Engine(session, workbench, options, performers)


def require_importer(toolchain: Toolchain) -> None:
    """Raise ToolchainError if a toolchain cannot import programs that torch exports."""
    if not toolchain.compiler.python or not toolchain.compiler.onnx_version:
        raise ToolchainError(
            f"{toolchain.source} has no Python bindings, or no onnx package with them",
            "Models are imported and measured with them; choose another IREE with --iree.",
        )


def add_compile_statistics(cases: CaseSet) -> CaseSet:
    """Return cases that include, for each module, one that reads its dispatch count and size.

    Cases of operator suites are left unchanged, since the compiler reports no dispatch count for them.
    """
    module_ids = {case.modules[-1].id for case in cases.cases if case.kind is Kind.COMPSTAT or case.compile_statistics}
    new_cases = []
    for case in cases.cases:
        main = case.modules[-1]
        if main.id not in module_ids and not main.program.local_file:
            module_ids.add(main.id)
            case = replace(case, compile_statistics=True)  # noqa: PLW2901 - the case with one more step
        new_cases.append(case)
    return replace(cases, cases=tuple(new_cases))


def add_baseline_goldens(plan: Plan, record: JournalRecord, name: str, release: str) -> tuple[Plan, tuple[str, ...]]:
    """Return a plan with the metrics of an earlier run as additional goldens, and the chains without such a metric.

    These goldens apply to `release`, the release of the compiler in this run, even if the earlier run had another
    release.
    """
    steps, chains = [], []
    for step in plan.steps:
        can_compare = step.stage in _BASELINE_STAGES and NOTHING_COMPARED not in step.notes
        # The baseline comes first and so takes precedence; reports still list the spec's own goldens.
        goldens = tuple(_list_goldens(step, record, Origin(f"--baseline {name}"), release)) if can_compare else ()
        if can_compare and not goldens and not step.skip:
            chains.append(step.chain)
        steps.append(replace(step, goldens=(*goldens, *step.goldens)))
    return replace(plan, steps=tuple(steps)), tuple(dict.fromkeys(chains))


def _list_goldens(step: Step, record: JournalRecord, origin: Origin, release: str) -> Iterator[Golden]:
    """Yield an earlier run's metrics of a step's chain; omit the numeric error if the earlier threshold step failed."""
    for figure in GOLDEN_FIGURES:
        if figure.golden.stage is not step.stage or not figure.golden.baseline:
            continue
        # Without a separate step for these metrics, the results of the earlier run's compiles have them.
        steps = (step.id,) if figure.row.stage is step.stage else (step.id, *step.needs)
        results = [record.results[step_id] for step_id in steps if step_id in record.results]
        if figure is Figure.ERROR:
            results = [result for result in results if result.verdict is Verdict.PASSED]
            release = ""
        value = next((value for result in results if (value := result.measure(figure)) is not None), None)
        if value is not None:
            yield Golden(figure, value, figure.golden.baseline, Statistic.MEAN, "", release, origin)


def repeat_changed_steps(
    steps: Sequence[Step], finished: Mapping[str, Verdict], record: JournalRecord, sha256: Callable[[Path], str]
) -> tuple[tuple[Step, ...], dict[str, Verdict]]:
    """Return the steps of a resumed run, and the finished verdicts except those of steps whose inputs have changed.

    If the earlier plan has no hash of a user's file, the file counts as changed if it was written or moved there after
    the step began.
    """
    old_steps = {step.id: step for step in record.planned}
    # The reason why each step is repeated; empty if its command changed, since the plan shows that already.
    causes: dict[str, str] = {}
    for step in steps:
        old_step = old_steps.get(step.id)
        if step.id in finished and old_step is not None:
            start_time = record.starts.get(step.id) or record.result_times[step.id]
            start = datetime.fromisoformat(start_time).timestamp()
            old_hashes = {
                (old_input.role, old_input.url, old_input.path): old_input.sha256 for old_input in old_step.inputs
            }
            for step_input in step.inputs:
                if is_changed(
                    step_input, old_hashes.get((step_input.role, step_input.url, step_input.path), ""), start, sha256
                ):
                    path = format_path(Path(get_url_path(step_input.url) or step_input.path))
                    causes[step.id] = f"repeated: {path} has changed since the run started"
        elif old_step is not None and step.id in record.results and old_step.command != step.command:
            causes[step.id] = ""
    # A repeated fetch only checks its files, so the steps that read a changed file are the ones that report it.
    repeated_ids = {step.id for step in steps if step.id in causes and not step.stage.row.fetches}
    while repeats := {
        step.id: next(need for need in step.needs if need in repeated_ids)
        for step in steps
        if step.id in finished and step.id not in causes and not repeated_ids.isdisjoint(step.needs)
    }:
        causes |= {step_id: f"repeated, because {need} is" for step_id, need in repeats.items()}
        repeated_ids |= repeats.keys()
    new_steps = (
        replace(step, notes=(*step.notes, causes[step.id])) if step.id in finished and step.id in causes else step
        for step in steps
    )
    return tuple(new_steps), {step_id: verdict for step_id, verdict in finished.items() if step_id not in causes}


def find_unplanned(steps: Sequence[Step], record: JournalRecord) -> tuple[Step, ...]:
    """Return the steps that have results but are no longer planned, such as the steps of a deleted spec."""
    planned_ids = {step.id for step in steps}
    return tuple(step for step in record.planned if step.id in record.results and step.id not in planned_ids)


def list_quarantine_warnings(steps: Iterable[Step], day: date) -> tuple[str, ...]:
    """Return a warning for each quarantine of some steps that has ended on a day, or ends soon after it."""
    warnings = []
    for entry in dict.fromkeys(step.quarantine for step in steps if step.quarantine):
        if entry.end_day is None or (entry.end_day - day).days > _WARNED_DAYS:
            continue
        if entry.applies_on(day):
            left = pluralize((entry.end_day - day).days, "day")
            end = f"ends in {left}, on {entry.until}: then its failures fail the run"
        else:
            end = f"ended on {entry.until}: its failures fail the run again"
        warnings.append(f"quarantine of {entry.cases or entry.origin} ({entry.reason}) {end} ({entry.origin})")
    return tuple(warnings)


def is_changed(step_input: StepInput, old_sha256: str, start: float, sha256: Callable[[Path], str]) -> bool:
    """Return True if an input has changed since a step began; False if it is missing, which its fetch reports."""
    path = get_url_path(step_input.url)
    if old_sha256 and step_input.sha256:
        return old_sha256 != step_input.sha256
    try:
        # Moving or copying a file here also sets its change time (ctime).
        return bool(path) and (sha256(Path(path)) != old_sha256 if old_sha256 else Path(path).stat().st_ctime > start)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file that is not available without the network.

    Attributes:
        needed_by: the first user of the file, which is a field of a spec file or a step.
        more: the number of other users of the file.
    """

    url: str
    needed_by: str
    more: int


def find_missing_files(
    steps: Iterable[Step], cases: Iterable[Case], store: ArtifactStore, finished: Container[str] = ()
) -> list[MissingFile]:
    """Return the steps' files that must come from the network, in the order of the steps.

    Local files (`file:`) and generated files (`random:`) do not count. `cases` tell which field of which spec names a
    file. Steps that are skipped, blocked or finished need no files.
    """
    steps_by_url: dict[str, list[str]] = {}
    for step in steps:
        if step.stage.row.fetches and not (step.skip or step.blocked) and step.id not in finished:
            for step_input in step.inputs:
                steps_by_url.setdefault(step_input.url, []).append(step.id)
    from iree_gauntlet.dialects.load import list_urls  # noqa: PLC0415 - it imports pydantic

    missing = [url for url in steps_by_url if _needs_network(store, url)]
    fields: dict[str, list[str]] = {url: [] for url in missing}
    # Usually nothing is missing, so no spec needs to be read.
    for case in cases if missing else ():
        for field, url in list_urls(case):
            location = f"{case.origin.file}: {field}"
            if url in fields and location not in fields[url]:
                fields[url].append(location)
    missing_files = ((url, fields[url] or steps_by_url[url]) for url in missing)
    return [MissingFile(url, users[0], len(users) - 1) for url, users in missing_files]


def describe_missing(files: Sequence[MissingFile]) -> str:
    """Return a message that lists missing files, one line per file."""
    count = "1 file is missing" if len(files) == 1 else f"{len(files)} files are missing"
    lines = [f"offline: {count}:"]
    for file in files:
        suffix = f" and {file.more} more" if file.more else ""
        lines.append(f"  {file.url} ({file.needed_by}{suffix})")
    lines.append(
        "  Fetch once with network access, or `cache.import` an archive; `cache.where URL` shows its place there."
    )
    return "\n".join(lines)


def note_missing_files(steps: Iterable[Step], missing_files: Sequence[MissingFile]) -> tuple[Step, ...]:
    """Return the steps of a plan; those that fetch missing files say so in their cache reason."""
    urls = {file.url for file in missing_files}

    def add_missing(step: Step) -> Step:
        # Path.exists raises for a name that is too long.
        missing_urls = [
            step_input.url
            for step_input in step.inputs
            if step_input.url in urls or ((path := get_url_path(step_input.url)) and not os.path.exists(path))  # noqa: PTH110
        ]
        if not step.stage.row.fetches or not missing_urls:
            return step
        suffix = f" and {len(missing_urls) - 1} more" if len(missing_urls) > 1 else ""
        count = f"{len(missing_urls)} of {len(step.inputs)} files {'is' if len(missing_urls) == 1 else 'are'} missing"
        return replace(step, cache=replace(step.cache, reason=f"{count}: {missing_urls[0]}{suffix}"))

    return tuple(map(add_missing, steps))


def _needs_network(store: ArtifactStore, url: str) -> bool:
    source = parse_source(url)
    if not isinstance(source, RemoteSource | PypiSource) or store.is_present(url):
        return False
    if isinstance(source, PypiSource):
        # Any wheel will do here: extracting the file from a wrong wheel reports the error.
        wheels = store.root.joinpath("wheels", *source.local_name.split("/")[1:3])
        return next(wheels.glob("*.whl"), None) is None
    from iree_gauntlet.artifacts.remotes import list_locations  # noqa: PLC0415 - the network's libraries take their time

    for location in list_locations(url, store.configuration):
        # A location may be a local path, such as a mirror. Path.is_file raises for a name that is too long.
        path = unquote(urlsplit(location).path if location.startswith("file:") else location)
        if path.startswith("/") and os.path.isfile(path):  # noqa: PTH113
            return False
    return True
