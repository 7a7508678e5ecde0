"""The `matrix` task: the same selection with one IREE after the other, and one report of all.

<matrix>/journal.jsonl             the record (`records/matrix_outcome.py` describes it)
<matrix>/<label>/journal.jsonl     one run for each IREE, with its own reports
<matrix>/matrix.md, .html, .json, .csv, junit.xml
"""

from __future__ import annotations

import itertools
import re
import signal
import sys
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from iree_gauntlet.engine.session import interruptible
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, SpecError, ToolchainError, UsageError
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.run import choose, run
from iree_gauntlet.journal_events import KeptOptions
from iree_gauntlet.records.matrix_outcome import MATRIX, AskedIree, FoundIree, MatrixOpening, MatrixResult
from iree_gauntlet.records.run_folder import keep_if_begun
from iree_gauntlet.requests import KEPT_UNLESS_GIVEN, Defaults, RunRequest, SelectionRequest, given
from iree_gauntlet.toolchains.choice import Choice, ChoiceKind, parse_choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.run import Chosen, Machines
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.records.event_log import EventLog


# What a record keeps of each run's request; its IREE is the matrix's own.
_COUNTING = ("instructions", "counter", "count_cpu")
_KEPT = (*SelectionRequest.__dataclass_fields__, "iree_compiler", "iree_runtime", *_COUNTING, *KEPT_UNLESS_GIVEN)
_EXAMPLE = "Such as: gauntlet matrix --iree 3.9.0 --iree 3.13.0 --suite cpu"
# IREE's tools misread '@' and '%' in paths; ':' ends an entry of PATH; the rest means something to shells.
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_RANGE_BEGINS = tuple("<>=!~")


def matrix(
    irees: Sequence[str], request: RunRequest, presenter: Presenter, machines: Machines | None = None
) -> ExitCode:
    """Runs a selection with each IREE in turn and reports on all."""
    experiment = Experiment.find(MATRIX, request.folder)
    toolchain = request.toolchain
    if experiment.record:
        asked, request = _resume(experiment, irees, request)
    elif toolchain.iree_compiler and toolchain.iree_runtime:
        raise UsageError(
            "--iree-compiler and --iree-runtime: with both, every run of the matrix would be of the same IREE",
            "Give one of them, to vary the other side alone, or none.",
        )
    else:
        asked = asked_irees(irees)
    # A mistake in the selection is reported before anything is installed.
    chosen = choose(request, machines)
    request, folder = chosen.request, experiment.folder
    kept = {name: value for name, value in request.kept.items() if name in _KEPT}
    opening = MatrixOpening(
        suite=chosen.selection.name,
        irees=asked,
        kept=KeptOptions(kept, asdict(request.defaults), request.stages or None),
    )
    # Ctrl-C ends a matrix also between its runs, once: what there is is reported all the same.
    with interruptible(lambda: None):
        earlier = experiment.record.collect_results(MatrixResult) if experiment.record else {}
        with experiment.open(presenter, opening) as log:
            runs = _Runs(folder, asked, chosen, earlier, log, presenter)
            experiment.code, experiment.stopped = runs.run_each()
        return experiment.reported


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of a matrix, one after the other; `earlier` has the results of an earlier part of it."""

    folder: Path
    irees: tuple[AskedIree, ...]
    chosen: Chosen
    earlier: Mapping[str, MatrixResult]
    log: EventLog
    presenter: Presenter

    def run_each(self) -> tuple[ExitCode, str]:
        """Finds every IREE and runs with each; the exit code, and why it stopped before the last one."""
        irees, stopped = self.irees, ""
        codes: list[ExitCode] = []
        try:
            # Found all before the first run: their leases keep them there, and a typo is reported at once.
            machines = {
                iree.label: self._find_workbench(iree) for iree in irees if self._find_earlier_code(iree) is None
            }
            for place, iree in enumerate(irees, start=1):
                self.presenter.line(f"\n{iree.label} ({place} of {len(irees)})")
                code = self._find_earlier_code(iree)
                if code is not None:
                    self.presenter.line(f"finished before, exit code {int(code)}: it is not run again")
                elif (machine := machines[iree.label]) is None:
                    code = ExitCode.ERROR
                    self.presenter.line("left out: this IREE is not available")
                else:
                    code = self._run(iree, machine)
                if code is ExitCode.INTERRUPTED:
                    # The run has dealt with the signal; the matrix does the same, and ignores further ones then.
                    signal.raise_signal(signal.SIGINT)
                codes.append(code)
                if self.chosen.request.conduct.stops_early and code is not ExitCode.OK and place < len(irees):
                    stopped = f"--fail-fast, and {iree.label} came out with exit code {int(code)}"
                    break
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED, stopped
        return ExitCode.worst(codes), stopped

    def _find_earlier_code(self, iree: AskedIree) -> ExitCode | None:
        """The result of a run that an earlier part of the matrix has judged; None for one that is to be done."""
        result = self.earlier.get(iree.label)
        return result.exit_code if result and result.stands else None

    def _find_workbench(self, iree: AskedIree) -> Workbench | None:
        """What an IREE means here, installed where it has to be; None where it is not available."""
        try:
            machine = self.chosen.workbench(iree.iree)
        except ToolchainError as error:
            sys.stderr.write(f"error: {iree.label}: {error}\n")
            self.log.write("toolchain", FoundIree(error=error.what, hint=error.hint), step=iree.label)
            return None
        iree_here = machine.iree
        versions = dict.fromkeys((iree_here.compiler.version, iree_here.runtime.version))
        self.presenter.line(f"{iree.label}: IREE {', '.join(versions)}")
        described = replace(
            iree_here.facts, compiler_release=iree_here.compiler.release, runtime_release=iree_here.runtime.release
        )
        self.log.write("toolchain", FoundIree(toolchain=described), step=iree.label)
        return machine

    def _run(self, iree: AskedIree, machine: Workbench) -> ExitCode:
        folder = self.folder / iree.folder
        begun = keep_if_begun(folder)
        self.log.write("start", {}, step=iree.label)
        chosen = self.chosen.within(folder, iree.iree)
        try:
            code = run(chosen, self.presenter, machine=machine, brief=True).exit_code
        except GauntletError as error:
            # All problems of a spec, on one line in tables.
            problems = "; ".join(map(str, error.problems)) if isinstance(error, SpecError) else ""
            self._record_result(iree, error.exit_code, problems or error.what, error.hint)
            if isinstance(error, UsageError | NothingSelectedError) and not begun:
                # It lies in the command line: every other IREE would say the same.
                raise
            sys.stderr.write(f"error: {iree.label}: {error}\n")
            return error.exit_code
        if code is not ExitCode.INTERRUPTED:
            self._record_result(iree, code)
        return code

    def _record_result(self, iree: AskedIree, code: ExitCode, error: str = "", hint: str = "") -> None:
        self.log.write("result", MatrixResult(exit_code=code, error=error, hint=hint), step=iree.label)


def _resume(
    experiment: Experiment[MatrixOpening], irees: Sequence[str], request: RunRequest
) -> tuple[tuple[AskedIree, ...], RunRequest]:
    """The IREEs of a matrix that was begun, and what is run with each."""
    begun = experiment.record.opening if experiment.record else MatrixOpening(irees=())
    kept = begun.kept or KeptOptions({})
    now = given((request.selection, request.toolchain, request)) | ({"iree": irees} if irees else {})
    experiment.keep_options(now, iree=[iree.iree for iree in begun.irees], stages=kept.stages or [])
    request = replace(request, defaults=Defaults.of(kept.defaults), stages=kept.stages or ())
    return begun.irees, request.with_kept(kept.options)


def asked_irees(texts: Sequence[str]) -> tuple[AskedIree, ...]:
    """What `--iree` names, in the order given; nothing is looked for.

    Raises:
        UsageError: there is none, a value names no IREE, or two name the same.
    """
    if not texts:
        raise UsageError("matrix needs to know which IREEs: give --iree once for each", _EXAMPLE)
    choices = [_parse(text) for text in texts]
    for place, choice in enumerate(choices):
        for other in choices[:place]:
            if replace(choice, text="") == replace(other, text=""):
                both = f"{other.text} and {choice.text}" if other.text != choice.text else choice.text
                raise UsageError(f"--iree {both}: one IREE is named twice", "Name each once.")
    labels = [_make_label(choice, choices) for choice in choices]
    folders: list[str] = []
    for label in labels:
        name = folder = _UNSAFE.sub("-", label).strip("-.") or "iree"
        # Also where a file system takes upper for lower case.
        for number in itertools.count(2):
            if folder.lower() not in map(str.lower, folders):
                break
            folder = f"{name}-{number}"
        folders.append(folder)
    return tuple(
        AskedIree(label, choice.text, folder) for choice, label, folder in zip(choices, labels, folders, strict=True)
    )


def _parse(text: str) -> Choice:
    stripped = text.strip()
    if not stripped:
        raise UsageError("--iree is empty", _EXAMPLE)
    several = [word for word in re.split(r"[,\s]+", stripped) if word]
    if len(several) > 1 and ":" not in stripped and not stripped.startswith(_RANGE_BEGINS):
        each = " ".join(f"--iree {word}" for word in several)
        raise UsageError(f"--iree {stripped}: names several", f"Give each with an --iree of its own: {each}")
    return parse_choice(stripped)


def _make_label(choice: Choice, choices: Sequence[Choice]) -> str:
    if choice.place is None:
        return choice.text
    alike = [other for other in choices if other is not choice and other.kind is choice.kind]
    own, others = choice.place.parts[1:], [other.place.parts[1:] for other in alike if other.place is not None]
    sizes = (size for size in range(1, len(own) + 1) if all(own[-size:] != parts[-size:] for parts in others))
    size = next(sizes, None)
    # POSIX lets `//` be another root than `/`: then the whole paths decide.
    end = "/".join(own[-size:]) if size else str(choice.place)
    return f"{ChoiceKind(choice.kind)}:{end}"
