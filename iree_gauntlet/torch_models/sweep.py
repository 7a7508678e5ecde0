"""A run of `micro`: point after point, each planned as it comes, everything in the journal; and how it is resumed."""

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
from iree_gauntlet.engine.run_start import model_engine, model_session, require_importer, run_event
from iree_gauntlet.engine.workbench import Workbench, plan_context
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import duration
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, explain_unreadable, read_journal, read_kind
from iree_gauntlet.measuring.machine.gpus import is_gpu, pick_gpus, read_gpus
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.run_folder import find_newest, make_folder
from iree_gauntlet.records.sweep_record import UNREADABLE_SWEEP, SweepAsked
from iree_gauntlet.requests import MicroRequest, ToolchainRequest, given, read, require_as_begun
from iree_gauntlet.settings import expand_home, find_runs_folder, format_typed_command, shown
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


# A point that came to one of these is done. After an error, or on a machine that was too busy, it is tried again.
_STANDING = (Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED)
# Options that a resumed run takes over as they are.
_KEPT = ("device", "target", "dtype", "against", "disturbed", "output", "targets")


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run to resume."""

    folder: Path
    record: JournalRecord
    asked: SweepAsked

    def continued(self, asked: MicroRequest, toolchain: ToolchainRequest) -> tuple[MicroRequest, ToolchainRequest]:
        """What this run was asked for, in place of what is not given now."""
        before = {**self.asked.as_dict(), **self.asked.iree}
        require_as_begun("run", self.folder.name, given((asked, toolchain)), before)
        asked = read(MicroRequest, {**asdict(asked), **before})
        return asked, read(ToolchainRequest, {**asdict(toolchain), **before})

    def require_same(self, config: MicroConfig) -> None:
        """Refuses a configuration that has changed since."""
        if hash_file(config.file) != self.asked.digest:
            raise UsageError(
                f"{config.file} is not what {self.folder.name} was started with",
                "Start a new run: what is done comes from the cache.",
            )

    def done(self, identity: str) -> dict[str, list[Step]]:
        """Steps of the points that are done, by the point's chain."""
        before = self.record.run.toolchain
        if before.identity != identity:
            raise UsageError(
                f"{self.folder.name} was run with another IREE ({before.compiler or 'none'})",
                "Start a new run: one run measures one IREE.",
            )
        found: dict[str, list[Step]] = {}
        for step in self.record.planned:
            result = self.record.results.get(make_step_id(step.chain, Stage.BENCHMARK))
            if result is not None and result.verdict in _STANDING:
                found.setdefault(step.chain, []).append(step)
        return found


def find_earlier_micro(run_dir: str) -> Earlier:
    """The run of `--run-dir`, or the newest one of `micro`; errors as of `read_journal`."""
    folder = Path(run_dir) if run_dir else find_newest(ExperimentKind.MICRO)
    folder = folder if folder.is_dir() else find_runs_folder() / run_dir
    if read_kind(folder / JOURNAL) is not ExperimentKind.MICRO:
        raise UsageError(f"{folder} is no run of `micro`", "Name the folder of one, or leave --run-dir out.")
    record = read_journal(folder / JOURNAL)
    with explain_unreadable(f"{record.path}: the sweep", UNREADABLE_SWEEP):
        return Earlier(folder, record, SweepAsked.from_dict(record.run.micro or {}))


@dataclass(slots=True)
class MicroRun:
    """One run over all points of a configuration."""

    asked: MicroRequest
    toolchain: ToolchainRequest
    config: MicroConfig
    registry: PluginRegistry
    torch: TorchPython
    workbench: Workbench
    progress: Progress
    earlier: Earlier | None
    _refused: dict[str, str] = field(init=False, default_factory=dict)

    def measure(self) -> Path:
        """Measures all points that have not been measured yet; everything goes into the journal, in this folder."""
        iree = self.workbench.iree
        require_importer(iree)
        points = self._list_reachable(list_points(self.config))
        for device in dict.fromkeys(translate_device(point.model.device) for point in points):
            # What is wrong with a device is said before anything is started.
            choose_target(device, self.asked.target)
            choose_devices(device, 1, iree)
        run_dir = make_folder(self.earlier.folder if self.earlier else None, f"micro-{self.config.file.stem}")
        done = {} if self.earlier is None else self.earlier.done(iree.compiler.identity)
        context = plan_context(self.workbench, run_dir)
        chains: list[PointChain] = []
        for point in points:
            device = translate_device(point.model.device)
            target = choose_target(device, self.asked.target)
            made = PointChain(
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
            chains.append(made)
        before = [step for steps in done.values() for step in steps]
        known = self.earlier.record.results if self.earlier else {}
        again = known.keys() - {step.id for step in before}
        event = replace(self._describe_event(run_dir, chains), again=tuple(sorted(again)))
        with model_session(run_dir, self.progress, event, before) as session:
            recipes = [f"{variant.label}: {variant.refusal}" for variant in self.config.variants if variant.refusal]
            for said in dict.fromkeys((*self._refused.values(), *recipes)):
                self.progress.message(f"not measured: {said}")
            self._measure_points([chain for chain in chains if chain.id not in done], len(chains), session)
        return run_dir

    def _list_reachable(self, points: Sequence[SweepPoint]) -> list[SweepPoint]:
        """The points whose devices are there; the others are refused, each with its reason, and the sweep continues."""
        if self.asked.device:
            # Without it there is no sweep, and it is checked by its name.
            return list(points)
        found = []
        for point in points:
            available = check_device(self.workbench.iree, translate_device(point.model.device))
            if available.ok:
                found.append(point)
                continue
            where = f"{shown(self.config.file)}:{point.model.line}: {point.model.name}"
            reason = f"{where}: no device {point.model.device!r} here: {available.reason}"
            self._refused[point.name] = f"{reason}; --device cpu measures it on this machine's CPU"
        if not found:
            raise UsageError(next(iter(self._refused.values())), available.hint)
        return found

    def _measure_points(self, todo: Sequence[PointChain], total: int, session: Session[Journal]) -> None:
        sessions: dict[str, PointSession] = {}
        engine = model_engine(session, self.workbench, perform_by_chain(sessions))
        with engine.recorded() as performed:
            began = time.monotonic()
            roofline = self._find_roofline(todo, session)
            for number, chain in enumerate(todo):
                left = ""
                if number:
                    # By what a point has taken so far.
                    each = (time.monotonic() - began) / number
                    left = f"; about {duration(each * (len(todo) - number))} left"
                place = f"point {total - len(todo) + number + 1} of {total}"
                self.progress.message(f"{place}: {chain.point.name}{left}")
                point = sessions[chain.id] = PointSession(
                    chain=chain,
                    session=session,
                    workbench=self.workbench,
                    results=engine.results,
                    against=self.asked.against,
                    replace_disturbed=self.asked.disturbed == "replace",
                    roofline=roofline,
                )
                performed.verdicts = {**performed.verdicts, **point.run(engine, {})}
                point.tidy()

    def _find_roofline(self, todo: Sequence[PointChain], session: Session[Journal]) -> Roofline | None:
        """The machine's peaks; None where no point asks for them, or they cannot be had, which is reported."""
        if all(explain_no_roofline(chain.device) for chain in todo):
            return None
        try:
            with session.quiet():
                folder = self.workbench.cache_dir / "machine"
                return find_roofline(folder, self.workbench.iree.compiler.python, read_machine_facts())
        except WaitCancelledError:
            raise
        except GauntletError as error:
            # Shares of it are one column; the sweep does not wait for that.
            self.progress.message(f"no shares of the machine's peak: {error.what} ({error.hint})")
            return None

    def _describe_event(self, run_dir: Path, chains: Sequence[PointChain]) -> RunOpening:
        targets = list({chain.target.name: chain.target for chain in chains}.values())
        plan = Plan((), devices=tuple(dict.fromkeys(gpu for chain in chains for gpu in chain.gpus)))
        event = run_event(plan, run_dir, self.workbench, DIALECT, targets, format_typed_command())
        asked = SweepAsked(
            config=str(self.config.file.absolute()),
            digest=hash_file(self.config.file),
            plugin=tuple(str(expand_home(name).absolute()) for name in self.asked.plugin),
            torch_python=self.torch.path,
            versions=self.torch.versions,
            points=tuple(chain.id for chain in chains),
            refused=self._refused,
            output_dir=self.config.output_dir,
            **{name: getattr(self.asked, name) for name in _KEPT},
            iree=asdict(self.toolchain),
        )
        # As far as their vendor's tool tells.
        devices_asked = dict.fromkeys(chain.device for chain in chains if is_gpu(chain.device))
        gpus = [gpu for device in devices_asked for gpu in pick_gpus(read_gpus(device).gpus, device, os.environ)]
        return replace(
            event,
            kind=ExperimentKind.MICRO,
            resumed=self.earlier is not None,
            remarks=tuple(dict.fromkeys(self._refused.values())),
            gpus=tuple(gpu.as_dict() for gpu in {gpu.index: gpu for gpu in gpus}.values()),
            micro=asked.as_dict(),
        )
