"""A new or resumed run of `micro`; each point is planned just before it is measured, and the journal records all."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.plan import Plan
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.engine.run_start import make_model_engine, make_run_event, open_model_session, require_importer
from iree_gauntlet.engine.workbench import Workbench, make_plan_context
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import format_duration
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, explain_unreadable, read_journal, read_kind
from iree_gauntlet.measuring.machine.gpus import is_gpu, pick_gpus, read_gpus
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.run_folder import find_newest, make_folder
from iree_gauntlet.records.sweep_record import UNREADABLE_SWEEP, SweepRequest
from iree_gauntlet.requests import (
    MicroRequest,
    ToolchainRequest,
    collect_changed_options,
    parse_request,
    require_unchanged_options,
)
from iree_gauntlet.settings import expand_home, find_runs_folder, format_path, format_typed_command
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import make_step_id
from iree_gauntlet.targets import target_flags
from iree_gauntlet.toolchains.devices import check_device
from iree_gauntlet.torch_models.configuration import MicroConfig, SweepPoint, list_points, translate_device
from iree_gauntlet.torch_models.model_session import perform_by_chain
from iree_gauntlet.torch_models.point_chain import DIALECT, PointChain
from iree_gauntlet.torch_models.point_session import PointSession
from iree_gauntlet.torch_models.roofline import Roofline, explain_no_roofline, find_roofline
from iree_gauntlet.torch_models.torch_chain import choose_devices, choose_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.journal_events import RunOpening
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.records.event_log import Journal
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.plugins import PluginRegistry
    from iree_gauntlet.torch_models.torch_chain import TorchPython


# Points with these verdicts are finished; points with an error, or measured on a too busy machine, are retried.
_FINAL_VERDICTS = (Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED)
# Options that a resumed run takes over unchanged.
_RESUMED_OPTIONS = ("device", "target", "dtype", "against", "disturbed", "output", "targets")


@dataclass(frozen=True, slots=True)
class PreviousSweep:
    """A run to resume."""

    folder: Path
    record: JournalRecord
    options: SweepRequest

    def merge(self, request: MicroRequest, toolchain: ToolchainRequest) -> tuple[MicroRequest, ToolchainRequest]:
        """Return the requests; options that are not set now are filled in from the previous run."""
        recorded_options = {**self.options.as_dict(), **self.options.iree}
        require_unchanged_options(
            "run", self.folder.name, collect_changed_options((request, toolchain)), recorded_options
        )
        request = parse_request(MicroRequest, {**asdict(request), **recorded_options})
        return request, parse_request(ToolchainRequest, {**asdict(toolchain), **recorded_options})

    def require_same_config(self, config: MicroConfig) -> None:
        """Raise an error if the configuration has changed since the previous run."""
        if hash_file(config.file) != self.options.digest:
            raise UsageError(
                f"{config.file} has changed since {self.folder.name} was started",
                "Start a new run: finished work comes from the cache.",
            )

    def find_finished_steps(self, identity: str) -> dict[str, list[Step]]:
        """Return the steps of the finished points, by the point's chain."""
        toolchain = self.record.run.toolchain
        if toolchain.identity != identity:
            raise UsageError(
                f"{self.folder.name} was run with another IREE ({toolchain.compiler or 'none'})",
                "Start a new run: a run measures a single IREE.",
            )
        steps_by_chain: dict[str, list[Step]] = {}
        for step in self.record.planned:
            result = self.record.results.get(make_step_id(step.chain, Stage.BENCHMARK))
            if result is not None and result.verdict in _FINAL_VERDICTS:
                steps_by_chain.setdefault(step.chain, []).append(step)
        return steps_by_chain


def find_previous_sweep(run_dir: str) -> PreviousSweep:
    """Return the run of `--run-dir`, or the newest run of `micro`; errors as in `read_journal`."""
    folder = Path(run_dir) if run_dir else find_newest(ExperimentKind.MICRO)
    folder = folder if folder.is_dir() else find_runs_folder() / run_dir
    if read_kind(folder / JOURNAL) is not ExperimentKind.MICRO:
        raise UsageError(f"{folder} is not a run of `micro`", "Name the folder of a micro run, or omit --run-dir.")
    record = read_journal(folder / JOURNAL)
    with explain_unreadable(f"{record.path}: the sweep", UNREADABLE_SWEEP):
        return PreviousSweep(folder, record, SweepRequest.from_dict(record.run.micro or {}))


@dataclass(slots=True)
class MicroRun:
    """One run over all points of a configuration."""

    request: MicroRequest
    toolchain: ToolchainRequest
    config: MicroConfig
    registry: PluginRegistry
    torch: TorchPython
    workbench: Workbench
    progress: Progress
    previous: PreviousSweep | None
    _missing_device_reasons: dict[str, str] = field(init=False, default_factory=dict)

    def measure(self) -> Path:
        """Measure all unfinished points, record everything in the journal, and return the run's folder."""
        iree = self.workbench.iree
        require_importer(iree)
        points = self._list_reachable(list_points(self.config))
        for device in dict.fromkeys(translate_device(point.model.device) for point in points):
            # Report errors of the device before anything starts.
            choose_target(device, self.request.target)
            choose_devices(device, 1, iree)
        run_dir = make_folder(self.previous.folder if self.previous else None, f"micro-{self.config.file.stem}")
        finished_steps = {} if self.previous is None else self.previous.find_finished_steps(iree.compiler.identity)
        context = make_plan_context(self.workbench, run_dir)
        chains: list[PointChain] = []
        for point in points:
            device = translate_device(point.model.device)
            target = choose_target(device, self.request.target)
            point_chain = PointChain(
                point=point,
                config=self.config.file,
                plugins=self.registry.files,
                target=target,
                device=device,
                flags=target_flags(target),
                context=context,
                toolchain=iree,
                torch=self.torch,
            )
            chains.append(point_chain)
        previous_steps = [step for steps in finished_steps.values() for step in steps]
        previous_results = self.previous.record.results if self.previous else {}
        retried_step_ids = previous_results.keys() - {step.id for step in previous_steps}
        event = replace(self._describe_event(run_dir, chains), again=tuple(sorted(retried_step_ids)))
        with open_model_session(run_dir, self.progress, event, previous_steps) as session:
            refusals = [f"{variant.label}: {variant.refusal}" for variant in self.config.variants if variant.refusal]
            for reason in dict.fromkeys((*self._missing_device_reasons.values(), *refusals)):
                self.progress.message(f"not measured: {reason}")
            self._measure_points([chain for chain in chains if chain.id not in finished_steps], len(chains), session)
        return run_dir

    def _list_reachable(self, points: Sequence[SweepPoint]) -> list[SweepPoint]:
        """Return the points whose devices are available; the sweep skips the others, each with its reason."""
        if self.request.device:
            # With --device nothing is skipped: `measure` raises if the device is missing.
            return list(points)
        reachable = []
        for point in points:
            available = check_device(self.workbench.iree, translate_device(point.model.device))
            if available.ok:
                reachable.append(point)
                continue
            location = f"{format_path(self.config.file)}:{point.model.line}: {point.model.name}"
            reason = f"{location}: no device {point.model.device!r} here: {available.reason}"
            self._missing_device_reasons[point.name] = f"{reason}; --device cpu measures it on this machine's CPU"
        if not reachable:
            raise UsageError(next(iter(self._missing_device_reasons.values())), available.hint)
        return reachable

    def _measure_points(self, unfinished: Sequence[PointChain], total: int, session: Session[Journal]) -> None:
        sessions: dict[str, PointSession] = {}
        engine = make_model_engine(session, self.workbench, perform_by_chain(sessions))
        with engine.record_end() as performed:
            start_time = time.monotonic()
            roofline = self._find_roofline(unfinished, session)
            for number, chain in enumerate(unfinished):
                remaining_time = ""
                if number:
                    # The estimate uses the mean time of the points so far.
                    seconds_per_point = (time.monotonic() - start_time) / number
                    remaining_time = f"; about {format_duration(seconds_per_point * (len(unfinished) - number))} left"
                position = f"point {total - len(unfinished) + number + 1} of {total}"
                self.progress.message(f"{position}: {chain.point.name}{remaining_time}")
                point = sessions[chain.id] = PointSession(
                    chain=chain,
                    session=session,
                    workbench=self.workbench,
                    results=engine.results,
                    peers=self.request.against,
                    replace_disturbed=self.request.disturbed == "replace",
                    roofline=roofline,
                )
                performed.verdicts = {**performed.verdicts, **point.run(engine, {})}
                point.tidy()

    def _find_roofline(self, chains: Sequence[PointChain], session: Session[Journal]) -> Roofline | None:
        """Return the machine's peaks; None if no point needs them, or, with a message, if they cannot be measured."""
        if all(explain_no_roofline(chain.device) for chain in chains):
            return None
        try:
            with session.hold_machine():
                folder = self.workbench.cache_dir / "machine"
                return find_roofline(folder, self.workbench.iree.compiler.python, read_machine_facts())
        except WaitCancelledError:
            raise
        except GauntletError as error:
            # The sweep goes on, because shares of the peak are only one column.
            self.progress.message(f"no shares of the machine's peak: {error.message} ({error.hint})")
            return None

    def _describe_event(self, run_dir: Path, chains: Sequence[PointChain]) -> RunOpening:
        targets = list({chain.target.name: chain.target for chain in chains}.values())
        plan = Plan((), devices=tuple(dict.fromkeys(gpu for chain in chains for gpu in chain.gpus)))
        event = make_run_event(plan, run_dir, self.workbench, DIALECT, targets, format_typed_command())
        sweep = SweepRequest(
            config=str(self.config.file.absolute()),
            digest=hash_file(self.config.file),
            plugin=tuple(str(expand_home(name).absolute()) for name in self.request.plugin),
            torch_python=self.torch.path,
            versions=self.torch.versions,
            points=tuple(chain.id for chain in chains),
            refused=self._missing_device_reasons,
            output_dir=self.config.output_dir,
            **{name: getattr(self.request, name) for name in _RESUMED_OPTIONS},
            iree=asdict(self.toolchain),
        )
        # The facts about GPUs are those that the vendor's tool reports.
        gpu_devices = dict.fromkeys(chain.device for chain in chains if is_gpu(chain.device))
        gpus = [gpu for device in gpu_devices for gpu in pick_gpus(read_gpus(device).gpus, device, os.environ)]
        return replace(
            event,
            kind=ExperimentKind.MICRO,
            resumed=self.previous is not None,
            remarks=tuple(dict.fromkeys(self._missing_device_reasons.values())),
            gpus=tuple(gpu.as_dict() for gpu in {gpu.index: gpu for gpu in gpus}.values()),
            micro=sweep.as_dict(),
        )
