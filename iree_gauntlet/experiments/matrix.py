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
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from iree_gauntlet.cases import COUNTED
from iree_gauntlet.engine.session import interruptible
from iree_gauntlet.engine.varying import is_same_file
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, SpecError, ToolchainError, UsageError
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.run import Machines, RunSetup, make_setup, run
from iree_gauntlet.journal_events import ResumeOptions
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.matrix_outcome import MATRIX, IreeRequest, IreeResolution, MatrixOpening, MatrixResult
from iree_gauntlet.records.run_folder import keep_if_resumable
from iree_gauntlet.requests import OVERRIDABLE_OPTIONS, Defaults, RunRequest, SelectionRequest, collect_changed_options
from iree_gauntlet.stages import Stage
from iree_gauntlet.toolchains.choice import Choice, ChoiceKind, parse_choice
from iree_gauntlet.variants import split_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.progress import Reporter
    from iree_gauntlet.records.event_log import EventLog


# The options of a run that the record keeps; `--iree` is kept per run.
_RUN_OPTIONS = (
    *SelectionRequest.__dataclass_fields__,
    "iree_compiler",
    "iree_runtime",
    *("instructions", "memory", "counter", "count_cpu"),
    *OVERRIDABLE_OPTIONS,
)
_EXAMPLE = "Such as: gauntlet matrix --iree 3.9.0 --iree 3.13.0 --suite cpu"
# IREE's tools misread '@' and '%' in paths, ':' ends an entry of PATH, and shells interpret other characters.
_UNSAFE = re.compile(r"[^A-Za-z0-9._+-]+")
_RANGE_BEGINS = tuple("<>=!~")
_OpeningT = TypeVar("_OpeningT", bound=MatrixOpening)


def matrix(
    irees: Sequence[str], request: RunRequest, presenter: Reporter, machines: Machines | None = None
) -> ExitCode:
    """Run a selection with each IREE in turn and report on all."""
    experiment = Experiment.find(MATRIX, request.folder)
    toolchain = request.toolchain
    if experiment.record:
        named_irees, request = resume_irees(experiment, irees, request)
    elif toolchain.iree_compiler and toolchain.iree_runtime:
        raise UsageError(
            "--iree-compiler and --iree-runtime: with both, every run of the matrix would use the same IREE",
            "Give one of them to vary only the other side, or neither.",
        )
    else:
        named_irees = name_irees(_combine(irees, request.selection.variant, request.selection.target))
    # Report mistakes in the selection before anything is installed.
    variants = request.selection.variant
    setup = make_setup(replace(request, selection=replace(request.selection, variant=())), machines)
    setup = replace(setup, selection=setup.selection.knowing(variants))
    for iree in named_irees:
        setup.for_side(iree.iree)
    request, folder = replace(setup.request, selection=request.selection), experiment.folder
    opening = MatrixOpening(suite=setup.selection.name, irees=named_irees, kept=keep_run_options(request))
    # The first Ctrl-C also ends a matrix between two runs; the results so far are reported even then.
    with interruptible(lambda: None):
        previous_results = experiment.record.collect_results(MatrixResult) if experiment.record else {}
        with experiment.open(presenter, opening) as log:
            runs = IreeRuns(folder, named_irees, setup, previous_results, log, presenter)
            experiment.code, experiment.stopped = runs.run_each()
        return experiment.reported


def keep_run_options(request: RunRequest) -> ResumeOptions:
    """Return the options of runs, which `resume_irees` reads."""
    options = {name: value for name, value in request.resume_options.items() if name in _RUN_OPTIONS}
    return ResumeOptions(options, asdict(request.defaults), request.stages or None)


@dataclass(frozen=True, slots=True)
class IreeRuns:
    """The runs of a matrix, one after the other; `previous_results` are those of an earlier part of it.

    Attributes:
        hold: the runs only plan the steps of this stage, and are no part of a history.
    """

    folder: Path
    irees: tuple[IreeRequest, ...]
    setup: RunSetup
    previous_results: Mapping[str, MatrixResult]
    log: EventLog
    presenter: Reporter
    hold: Stage | None = None

    def run_each(self, workbenches: Mapping[str, Workbench | None] | None = None) -> tuple[ExitCode, str]:
        """Run with each IREE; return the exit code, and the reason for an early stop.

        `workbenches`: by label; by default, every IREE is found first.
        """
        irees, stop_reason = self.irees, ""
        codes: list[ExitCode] = []
        try:
            # Find all IREEs before the first run: typos are reported at once, and leases keep the IREEs installed.
            workbenches = workbenches or {
                iree.label: self._open_workbench(iree) for iree in irees if self._find_previous_code(iree) is None
            }
            for position, iree in enumerate(irees, start=1):
                self.presenter.line(f"\n{iree.label} ({position} of {len(irees)})")
                code = self._find_previous_code(iree)
                if code is not None:
                    self.presenter.line(f"finished earlier with exit code {int(code)}: not run again")
                elif (workbench := workbenches[iree.label]) is None:
                    code = ExitCode.ERROR
                    self.presenter.line("left out: this IREE is not available")
                else:
                    code = self._run(iree, workbench)
                if code is ExitCode.INTERRUPTED:
                    # The run has handled the signal: send it to the matrix too, which then ignores further ones.
                    signal.raise_signal(signal.SIGINT)
                codes.append(code)
                if self.setup.request.execution.stops_early and code is not ExitCode.OK and position < len(irees):
                    stop_reason = f"--fail-fast, and {iree.label} ended with exit code {int(code)}"
                    break
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED, stop_reason
        return ExitCode.worst(codes), stop_reason

    def _find_previous_code(self, iree: IreeRequest) -> ExitCode | None:
        """Return the exit code of a run that an earlier part of the matrix has finished; None if it has to run."""
        result = self.previous_results.get(iree.label)
        return result.exit_code if result and result.is_kept_on_resume else None

    def _open_workbench(self, iree: IreeRequest) -> Workbench | None:
        """Open the workbench for an IREE, installed if needed; return None if it is not available."""
        try:
            workbench = self.setup.open_workbench_for(iree.iree)
        except ToolchainError as error:
            sys.stderr.write(f"error: {iree.label}: {error}\n")
            self.log.write("toolchain", IreeResolution(error=error.message, hint=error.hint), step=iree.label)
            return None
        toolchain = workbench.iree
        versions = dict.fromkeys((toolchain.compiler.version, toolchain.runtime.version))
        self.presenter.line(f"{iree.label}: IREE {', '.join(versions)}")
        facts = replace(
            toolchain.facts, compiler_release=toolchain.compiler.release, runtime_release=toolchain.runtime.release
        )
        self.log.write("toolchain", IreeResolution(toolchain=facts), step=iree.label)
        return workbench

    def _run(self, iree: IreeRequest, workbench: Workbench) -> ExitCode:
        folder = self.folder / iree.folder
        resumes = keep_if_resumable(folder)
        self.log.write("start", {}, step=iree.label)
        try:
            setup = replace(
                self.setup.with_runtime(iree.runtime).within(folder, iree.iree),
                unmeasured_chains=self._compile_unaffected(iree, workbench),
            )
            code = run(setup, self.presenter, workbench=workbench, hold=self.hold, brief=True).exit_code
        except GauntletError as error:
            # Join all problems of a spec: tables show them on one line.
            problems = "; ".join(map(str, error.problems)) if isinstance(error, SpecError) else ""
            self._record_result(iree, error.exit_code, problems or error.message, error.hint)
            if isinstance(error, UsageError | NothingSelectedError) and not resumes:
                # The mistake is in the command line: every other IREE would fail in the same way.
                raise
            sys.stderr.write(f"error: {iree.label}: {error}\n")
            return error.exit_code
        if code is not ExitCode.INTERRUPTED:
            self._record_result(iree, code)
        return code

    def _compile_unaffected(self, iree: IreeRequest, workbench: Workbench) -> tuple[str, ...]:
        """Compile with variants before the run, which takes the modules from the cache; return the unaffected chains.

        Their benchmarks would measure the same modules again.
        """
        setup, force = self.setup, self.setup.request.execution.force_recompile
        if setup.machines or force or Stage.BENCHMARK not in setup.stages or self._find_plain_run(iree) is None:
            return ()
        with tempfile.TemporaryDirectory(prefix="compiles-", dir=self.folder, ignore_cleanup_errors=True) as folder:
            compiling = setup.within(Path(folder), iree.iree, (Stage.COMPILE,))
            code = run(compiling, self.presenter, workbench=workbench, hold=Stage.BENCHMARK, report=False).exit_code
            if code is ExitCode.INTERRUPTED:
                signal.raise_signal(signal.SIGINT)  # as after a run
            return self._find_unaffected(iree, Path(folder))

    def _record_result(self, iree: IreeRequest, code: ExitCode, error: str = "", hint: str = "") -> None:
        no_effect = self._find_unaffected(iree, self.folder / iree.folder)
        result = MatrixResult(exit_code=code, error=error, hint=hint, no_effect=no_effect)
        self.log.write("result", result, step=iree.label)

    def _find_plain_run(self, iree: IreeRequest) -> IreeRequest | None:
        """Return the run with the same IREE and no variants; None if there is none, or if a variant changes runs."""
        name, variants = split_side(iree.iree)
        if not variants or any(variant.run_flags for variant in self.setup.for_side(iree.iree).selection.variants):
            return None
        return next((run for run in self.irees if run.iree == name), None)

    def _find_unaffected(self, iree: IreeRequest, folder: Path) -> tuple[str, ...]:
        """Return the chains whose modules, in a run's folder, are the same bytes as without the variants."""
        plain = self._find_plain_run(iree)
        if plain is None:
            return ()
        modules, plain_modules = (_list_modules(path / JOURNAL) for path in (folder, self.folder / plain.folder))
        return tuple(
            chain
            for chain, paths in modules.items()
            if len(paths) == len(plain_modules.get(chain, ()))
            and all(is_same_file(*pair) for pair in zip(paths, plain_modules[chain], strict=True))
        )


def _list_modules(journal: Path) -> dict[str, list[str]]:
    """Return the files of the modules that a run planned, except those for counts, by chain; empty without a run."""
    modules: dict[str, list[str]] = {}
    for step in read_journal(journal).planned if journal.is_file() else ():
        if step.stage is Stage.COMPILE and not step.role.endswith(COUNTED):
            modules.setdefault(step.chain, []).append(step.find_output("module"))
    return modules


def resume_irees(
    experiment: Experiment[_OpeningT], irees: Sequence[str], request: RunRequest
) -> tuple[tuple[IreeRequest, ...], RunRequest]:
    """Return the IREEs of a matrix that is resumed, and the request for their runs.

    Raises:
        UsageError: an option has another value than before.
    """
    opening = experiment.record.opening if experiment.record else MatrixOpening(irees=())
    kept_options = opening.kept or ResumeOptions({})
    options = collect_changed_options((request.selection, request.toolchain, request)) | (
        {"iree": irees} if irees else {}
    )
    experiment.keep_options(options, iree=[iree.iree for iree in opening.irees], stages=kept_options.stages or [])
    request = replace(request, defaults=Defaults.of(kept_options.defaults), stages=kept_options.stages or ())
    return opening.irees, request.with_resumed_options(kept_options.options)


def _combine(irees: Sequence[str], variants: Sequence[str], targets: Sequence[str] = ()) -> Sequence[str]:
    """Return each IREE without and with each variant alone; the IREEs unchanged if one names such a variant.

    Several targets need no IREEs to be compared: the installed one runs them all.
    """
    irees = irees or (("installed",) if len(targets) > 1 else ())
    names = [text.partition("=")[0] for text in variants]
    if not variants or any(name in split_side(iree)[1] for iree in irees for name in names):
        return irees
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UsageError(f"variant {twice}: given twice", "Name each once.")
    return [side for iree in irees or ("installed",) for side in (iree, *(f"{iree}+{name}" for name in names))]


def name_irees(values: Sequence[str]) -> tuple[IreeRequest, ...]:
    """Parse the values of `--iree`, in their order, and give each a label and a folder; nothing is installed.

    Raises:
        UsageError: there are no values, a value names no IREE, or two values name the same IREE.
    """
    if not values:
        raise UsageError("matrix needs IREEs: give --iree once for each", _EXAMPLE)
    sides = [split_side(value) for value in values]
    choices = [_parse(iree) if iree or not variants else parse_choice("") for iree, variants in sides]
    suffixes = ["".join(f"+{name}" for name in variants) for _, variants in sides]
    for index, choice in enumerate(choices):
        for other in range(index):
            previous = choices[other]
            if suffixes[index] == suffixes[other] and replace(choice, text="") == replace(previous, text=""):
                names = f"{previous.text} and {choice.text}" if previous.text != choice.text else choice.text
                raise UsageError(f"--iree {names}{suffixes[index]}: one IREE is named twice", "Name each once.")
    distinct_choices = list(dict.fromkeys(choices))
    labels = [
        f"{_make_label(choice, distinct_choices)}{suffix}" for choice, suffix in zip(choices, suffixes, strict=True)
    ]
    folders: list[str] = []
    for label in labels:
        name = folder = _UNSAFE.sub("-", label).strip("-.") or "iree"
        # Labels that differ only in case count as equal, because some file systems ignore case.
        for number in itertools.count(2):
            if folder.lower() not in map(str.lower, folders):
                break
            folder = f"{name}-{number}"
        folders.append(folder)
    return tuple(
        IreeRequest(label, f"{choice.text}{suffix}", folder)
        for choice, suffix, label, folder in zip(choices, suffixes, labels, folders, strict=True)
    )


def _parse(text: str) -> Choice:
    value = text.strip()
    if not value:
        raise UsageError("--iree is empty", _EXAMPLE)
    names = [word for word in re.split(r"[,\s]+", value) if word]
    if len(names) > 1 and ":" not in value and not value.startswith(_RANGE_BEGINS):
        options = " ".join(f"--iree {word}" for word in names)
        raise UsageError(f"--iree {value}: names several", f"Give each its own --iree: {options}")
    return parse_choice(value)


def _make_label(choice: Choice, choices: Sequence[Choice]) -> str:
    if choice.identity_path is None:
        return choice.text
    peers = [peer for peer in choices if peer is not choice and peer.kind is choice.kind]
    parts, paths = (
        choice.identity_path.parts[1:],
        [peer.identity_path.parts[1:] for peer in peers if peer.identity_path is not None],
    )
    sizes = (size for size in range(1, len(parts) + 1) if all(parts[-size:] != path[-size:] for path in paths))
    size = next(sizes, None)
    # POSIX lets `//` be a different root than `/`; if only the root differs, labels are whole paths.
    suffix = "/".join(parts[-size:]) if size else str(choice.identity_path)
    return f"{ChoiceKind(choice.kind)}:{suffix}"
