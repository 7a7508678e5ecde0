"""The `explain` task: from the failures of a run to a bundle that an IREE developer can run.

<run>/explain/journal.jsonl     the record (`records/explain_outcome.py` describes it)
<run>/explain/<case>/           the compiles and traces of a case
<run>/explain/<case>/bundle/    the bundle, and bundle.tar.gz next to it
<run>/explain/explain.md, .html, .json
"""

from __future__ import annotations

import re
import shlex
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import MAIN
from iree_gauntlet.device_kinds import CPU, LOCAL_SYNC, LOCAL_TASK
from iree_gauntlet.dialects.locations import get_url_path
from iree_gauntlet.engine.run_start import is_changed
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError, find_error_path
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.explaining.bundle import (
    PROGRAM,
    REPLAY,
    STILL_THERE,
    FailureForms,
    describe_contents,
    has_constants,
    run_bundle,
    write_bundle,
)
from iree_gauntlet.experiments.explaining.failures import Failure, UnrepeatableFailure, find_failures
from iree_gauntlet.experiments.explaining.flow_program import compile_traced
from iree_gauntlet.experiments.explaining.locate import DispatchSearch, SearchResult
from iree_gauntlet.experiments.explaining.operators import find_first_wrong_operator, find_onnx_source
from iree_gauntlet.experiments.explaining.reduce import FIRST_PHASE, Reduction, reduce
from iree_gauntlet.experiments.explaining.tools import (
    FAILURE,
    NO_SPACE_HINT,
    WRONG,
    IreeTools,
    Symptom,
    find_symptom,
    read_mismatches,
)
from iree_gauntlet.formatting import join_lines
from iree_gauntlet.journal_format import EXPLAIN_FOLDER, JOURNAL, read_journal
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.explain_outcome import (
    EXPLANATION,
    BundleResult,
    CaseEnd,
    CaseRequest,
    ExplainOpening,
    SwitchProbe,
    list_reproduced_cases,
)
from iree_gauntlet.records.run_folder import LATEST, find_named_run, read_run_options
from iree_gauntlet.requests import NetworkRequest, ToolchainRequest
from iree_gauntlet.settings import format_path, resolve_links
from iree_gauntlet.toolchains.toolchain import COMPILE, RUN_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.explaining.bundle import Bundle, BundleContents
    from iree_gauntlet.experiments.explaining.operators import OperatorSearchResult
    from iree_gauntlet.experiments.explaining.tools import ToolResult
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.progress import Progress, Reporter
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.requests import CacheRequest, ExplainRequest


# Compiler flags, each tried in a compile of its own, in the order of the report.
_PROBES = (
    ("data tiling off", "--iree-opt-data-tiling=false"),
    ("no optimisation (O0)", "--iree-opt-level=O0"),
    ("constant evaluation off", "--iree-opt-const-eval=false"),
    ("generic CPU", "--iree-llvmcpu-target-cpu=generic"),
    ("no microkernels", "--iree-llvmcpu-enable-ukernels=none"),
    ("reductions not reordered", "--iree-llvmcpu-reassociate-fp-reductions=false"),
)
# If a program and its parameters are at most this large, memory has room for a second copy.
_SMALL_BYTES = 1_000_000_000
_REPLAY_FLAG = "--device_replay_output"
# Larger recordings are left out of the bundle.
_MAX_REPLAY_BYTES = 1_000_000
# The time limit for repeating a step that has exceeded the spec's time limit.
_HANG_SECONDS = 60.0
_ATTEMPTS = (1, 2)
_CASE_PATTERN_CHARACTERS = re.compile(r"[*?@\[]")


def explain(request: ExplainRequest, cache: CacheRequest, presenter: Reporter) -> ExitCode:
    """Explain the failures of a run."""
    run, *patterns = request.failures or (LATEST,)
    if _CASE_PATTERN_CHARACTERS.search(run) and not Path(run).exists():
        command = shlex.join((LATEST, run, *patterns))
        raise UsageError(f"explain {run}: the first argument is a run, cases follow it", f"gauntlet explain {command}")
    run_dir = resolve_links(find_named_run(run, "explain"))
    record = read_journal(run_dir / JOURNAL)
    failures = find_failures(record, patterns)
    toolchain = record.run.toolchain.as_dict()
    cases = tuple(
        CaseRequest(failure.case, failure.kind, failure.result.full_reason, failure.changed) for failure in failures
    )
    with presenter.progress() as progress:
        workbench = open_iree(run_dir, toolchain, cache, progress)
        bundles_by_compile: dict[tuple[str, ...], tuple[str, BundleResult]] = {}

        def explain_case(notes: CaseNotes, failure: Failure | UnrepeatableFailure) -> bool:
            if isinstance(failure, UnrepeatableFailure):
                notes.add("nothing", {"why": failure.reason})
                return False
            folder = notes.session.folder / failure.folder
            if request.no_weights:
                # An existing bundle with the model's own values is not replaced.
                folder = folder.with_name(f"{folder.name}.no-weights")
            tools = make_tools(workbench, notes.session, folder, failure)
            return _FailureExplainer(notes, tools, record, request, bundles_by_compile).explain()

        explainers = [(failure.case, partial(explain_case, failure=failure)) for failure in failures]
        opening = ExplainOpening(cases=cases, toolchain=toolchain)
        return explain_each(run_dir, opening, explainers, request, presenter, progress)


def open_iree(run_dir: Path, recorded_tools: Mapping[str, Any], cache: CacheRequest, progress: Progress) -> Workbench:
    """Open the IREE of a run; GauntletError if another one is installed now."""
    options = read_run_options(run_dir).options
    names = {name: options.get(name, "") for name in ("iree", "iree_compiler", "iree_runtime")}
    request = ToolchainRequest(cache_dir=cache.cache_dir, **names)
    workbench = open_workbench(request, progress, NetworkRequest(), need_toolchain=True)
    for part, identity, name in (("compiler", "identity", "IREE"), ("runtime", "runtime_identity", "the runtime")):
        tools = getattr(workbench.iree, part)
        if recorded_tools.get(identity) != tools.identity:
            current_text = f"{names['iree'] or 'what is installed'} is now {tools.version}"
            run_text = f"{format_path(run_dir)} was made with {name} {recorded_tools.get(part)}"
            raise GauntletError(f"{run_text}, but {current_text}", "Run again, and explain that run.")
    return workbench


def explain_each(
    run_dir: Path,
    opening: ExplainOpening,
    explainers: Sequence[tuple[str, Callable[[CaseNotes], bool]]],
    request: ExplainRequest,
    presenter: Reporter,
    progress: Progress,
) -> ExitCode:
    """Explain each case that has no bundle yet; an explainer returns True if it made a bundle."""
    folder = run_dir / EXPLAIN_FOLDER
    explained_cases = list_reproduced_cases(folder, without_weights=request.no_weights, budget=request.budget)
    experiment = Experiment(EXPLANATION, folder)
    all_have_bundles = True
    with experiment.open(presenter, opening) as log, experiment.open_session(log, progress) as session:
        for case, explain_case in explainers:
            if case in explained_cases:
                continue
            began = time.monotonic()
            log.write("start", {}, step=case)
            try:
                has_bundle = explain_case(CaseNotes(session, case))
            except OSError as error:
                raise GauntletError(
                    f"{find_error_path(error) or format_path(folder)}: {error.strerror}", NO_SPACE_HINT
                ) from error
            seconds = round(time.monotonic() - began, 3)
            log.write("result", CaseEnd(has_bundle, request.no_weights, seconds, request.budget), step=case)
            all_have_bundles = all_have_bundles and has_bundle
        experiment.code = ExitCode.OK if all_have_bundles else ExitCode.INCONCLUSIVE
    return experiment.code


@dataclass(frozen=True, slots=True)
class CaseNotes:
    """The progress messages and the record of a case."""

    session: Session[EventLog]
    case: str

    def add(self, part: str, fields: Mapping[str, Any]) -> None:
        """Record a part of the explanation."""
        self.session.log.write(part, fields, step=self.case)

    def say(self, text: str) -> None:
        """Print a progress message."""
        self.session.progress.message(f"{self.case}: {text}")

    def add_bundle(self, bundle: Bundle, form: str, code: int | None) -> BundleResult:
        """Record a bundle and its exit code."""
        folder = str(bundle.folder.relative_to(self.session.folder))
        entry = BundleResult(folder=folder, bytes=bundle.bytes, exit_code=code, form=form)
        self.add("bundle", entry.as_dict())
        return entry


def make_tools(workbench: Workbench, session: Session[EventLog], folder: Path, failure: Failure) -> IreeTools:
    """Make the tools; their folder is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return IreeTools(workbench, session.supervisor, folder, failure)


@dataclass(frozen=True)
class _FailureExplainer:
    """Explains a failure; `bundles_by_compile` has the case and bundle of each compile, by program and flags."""

    notes: CaseNotes
    tools: IreeTools
    record: JournalRecord
    request: ExplainRequest
    bundles_by_compile: dict[tuple[str, ...], tuple[str, BundleResult]]

    def explain(self) -> bool:
        """Return True if a bundle shows the failure; equal compiles of one program are explained only once."""
        failure = self.tools.failure
        self.notes.say(failure.kind)
        key: tuple[str, ...] = (failure.case, failure.stage)
        if failure.stage.row.makes_modules:
            key = (self._program_sha256, *failure.flags)
        if key in self.bundles_by_compile:
            case, bundle = self.bundles_by_compile[key]
            self.notes.add("same", {"as": case})
            self.notes.add("bundle", bundle.as_dict())
            return True
        entry = self._explain_new()
        if entry is not None:
            self.bundles_by_compile[key] = (failure.case, entry)
        return entry is not None

    @property
    def _program_sha256(self) -> str:
        return self.tools.workbench.store.hash_cache.sha256(self.tools.failure.program)

    def _explain_new(self) -> BundleResult | None:
        """Return the record of a bundle that shows the failure; None if no bundle does."""
        failure = self.tools.failure
        hint = "run again, and explain that run"
        if file := self._find_changed(by_time=False):
            self.notes.add("nothing", {"why": f"{file} has changed since the run: {hint}"})
            return None
        symptom = self._repeat_failure()
        rewritten = self._find_changed(by_time=True) if symptom is None or self._is_new(symptom) else None
        if symptom is None or rewritten:
            repetition = (
                "it did not fail again in two attempts" if symptom is None else "it fails with other numbers now"
            )
            reason = f"{rewritten} was written to since the run: {hint}" if rewritten else "it is intermittent"
            self.notes.add("nothing", {"why": f"{repetition}: {reason}"})
            return None
        forms = FailureForms(failure, symptom, self.tools.workbench.iree)
        with ThreadPoolExecutor(read_machine_facts().cores) as pool:
            probes = _Probes(symptom, self.tools, pool)
            try:
                return self._diagnose(forms, probes)
            finally:
                pool.shutdown(cancel_futures=True)

    def _find_changed(self, *, by_time: bool) -> Path | None:
        """Return a local source file of the failing step that has changed since the run.

        With `by_time`, only files without a recorded hash are checked, by their change time (ctime), which copying a
        file here also sets. Otherwise only files with a recorded hash are checked, by their content.
        """
        failure, hash_cache = self.tools.failure, self.tools.workbench.store.hash_cache
        for step in self.record.planned:
            if step.chain != failure.case or step.role != MAIN or step.id not in self.record.starts:
                continue
            began = datetime.fromisoformat(self.record.starts[step.id]).timestamp()
            for source in step.inputs if step.stage.row.makes_modules or step.stage is failure.stage else ():
                without_hash = replace(source, sha256="")
                if by_time != bool(source.sha256) and is_changed(without_hash, source.sha256, began, hash_cache.sha256):
                    return format_path(Path(get_url_path(source.url)))
        return None

    def _is_new(self, symptom: Symptom) -> bool:
        """Return whether a wrong output differs from those in the log of the run; False without such a log."""
        log = self.record.path.parent / self.tools.failure.result.log
        mismatches = read_mismatches(log) if symptom.ending == WRONG and log.is_file() else ()
        return bool(mismatches) and symptom.said not in map(join_lines, mismatches)

    def _repeat_failure(self) -> Symptom | None:
        """Repeat the failing step twice; return the symptom, or None if the step passes."""
        tools, failure = self.tools, self.tools.failure
        is_compile = failure.stage.row.makes_modules
        timeout = failure.compile_timeout if is_compile else failure.timeout
        if failure.result.timed_out:
            timeout = min(timeout, _HANG_SECONDS)
        results = [
            tools.try_compile(f"again_{i}.vmfb", failure.program, failure.flags, timeout=timeout)
            if is_compile
            else tools.run_module(f"again_{i}", failure.argv[1:], timeout=timeout)
            for i in _ATTEMPTS
        ]
        symptoms = [find_symptom(result, timeout) for result in results]
        failures = [symptom for symptom in symptoms if symptom is not None]
        is_same = symptoms[0] == symptoms[1] and results[0].output_mismatches == results[1].output_mismatches
        symptom = failures[0] if failures else None
        self.notes.add("again", {"failed": len(failures), "same": is_same, "symptom": symptom and symptom.as_dict()})
        return symptom

    def _diagnose(self, forms: FailureForms, probes: _Probes) -> BundleResult | None:
        """Find the culprit, write a bundle that shows it, and find the switches that avoid it."""
        futures: tuple[Future[SwitchProbe], ...] = ()
        fails_in_first_phase = False
        if self.tools.failure.stage.row.makes_modules:
            self.notes.say("reducing the program")
            reduction: Reduction | None = None
            reason = "the program made from it does not show the failure"
            try:
                reduction = reduce(forms.symptom, self.tools, 60 * self.request.budget, self.notes.say)
                finding, fails_in_first_phase = reduction.part, reduction.phase == FIRST_PHASE
            except GauntletError as error:
                reason = error.on_one_line
                finding = {"why": reason}
            self.notes.add("reduced", finding)
            labelled_forms = self._list_reduced_forms(forms, reduction, reason)
        else:
            # For a small model, start the probes now: they run while its dispatches are traced.
            failure = self.tools.failure
            archives = [Path(failure.cwd, text.rpartition("=")[2]) for text in failure.values("--parameters")]
            if sum(file.stat().st_size for file in (failure.program, *archives)) <= _SMALL_BYTES:
                futures = probes.begin()
            labelled_forms = self._list_located_forms(forms, self._locate(forms.symptom))
        probe_results = []
        for future in () if fails_in_first_phase else futures or probes.begin():
            probe_results.append(future.result())
            self.notes.say(f"{probe_results[-1].name}: {probe_results[-1].verdict}")
        if not fails_in_first_phase:
            self.notes.add("probes", {"probes": [probe.as_dict() for probe in probe_results]})
        switches = ", ".join(f"{probe.name} (`{probe.flag}`)" for probe in probe_results if probe.verdict == "passes")
        return self._write_bundle(labelled_forms, f"Fixed by: {switches}." if switches else "")

    def _locate(self, symptom: Symptom) -> SearchResult:
        """Find the dispatch at fault, or the reason if there is none."""

        def is_in_operators() -> bool:
            search = self._operator
            return search is not None and (search.operator is not None or search.agrees)

        try:
            self.notes.say("compiling to dispatches")
            program = compile_traced(self.tools)
            search = DispatchSearch(self.tools, self.notes.say, self.request.no_weights, program)
            wrong = symptom.ending == WRONG
            result = search.find_wrong(is_in_operators) if wrong else search.find_failing(symptom)
        except GauntletError as error:
            result = SearchResult(reason=error.on_one_line)
        self.notes.add("located", result.as_dict())
        return result

    @cached_property
    def _operator(self) -> OperatorSearchResult | None:
        """The result of a search for the operator at fault; None if the program was not imported, or makes calls."""
        source = find_onnx_source(self.record, self.tools.failure.case)
        if source is None or self.tools.failure.calls:
            return None
        search = find_first_wrong_operator(source, self.tools, self.notes.say)
        self.notes.add("operator", search.as_dict())
        return search

    # These methods yield the bundle's possible forms, best first, with report labels; GauntletError if none is allowed.

    def _list_reduced_forms(
        self, forms: FailureForms, reduction: Reduction | None, reason: str
    ) -> Iterator[tuple[str, BundleContents]]:
        if reduction is not None and not (self.request.no_weights and reduction.constants):
            yield "the reduced program", forms.make_reduced_form(reduction)
        yield self._make_program_form(forms, reason)

    def _list_located_forms(self, forms: FailureForms, result: SearchResult) -> Iterator[tuple[str, BundleContents]]:
        reason, suspect = result.reason, result.suspect
        if suspect is not None:
            if suspect.withheld_reason:
                raise GauntletError(suspect.withheld_reason, "")
            *portable_forms, release_form = forms.make_dispatch_forms(suspect)
            if self.request.no_weights and has_constants(release_form.program):
                raise GauntletError("its text contains constants of the model, which --no-weights leaves out", "")
            yield from (("a program for any release", form) for form in portable_forms)
            yield "a program for this release", release_form
            reason = f"{suspect.dispatch.name}, cut out, does not show the failure"
        elif forms.symptom.ending == WRONG and (search := self._operator) is not None:
            if search.operator is not None and not self.request.no_weights:
                yield "the operator's program", forms.make_operator_form(search.operator)
            if search.agrees:
                return
            reason = search.reason or "its first wrong operator, cut out, does not show the failure"
        yield self._make_program_form(forms, reason)

    def _make_program_form(self, forms: FailureForms, reason: str) -> tuple[str, BundleContents]:
        if self.request.no_weights:
            raise GauntletError("it would contain the model's own values, which --no-weights leaves out", "")
        return "the whole program", forms.make_program_form(reason)

    def _write_bundle(self, forms: Iterator[tuple[str, BundleContents]], note: str) -> BundleResult | None:
        """Write the first form that shows the failure when run; return the bundle's record, or None if no form does."""
        tools, supervisor = self.tools, self.notes.session.supervisor
        last_written: tuple[Bundle, str, int | None] | None = None
        try:
            for label, contents in forms:
                shutil.rmtree(tools.folder / "bundle", ignore_errors=True)
                self.notes.say(f"writing {label}. {describe_contents(contents)}")
                full_contents = replace(contents, paragraphs=(*contents.paragraphs, note)) if note else contents
                bundle = write_bundle(full_contents, tools.folder / "bundle")
                code = run_bundle(bundle.folder, tools.workbench.iree, supervisor, tools.folder)
                last_written = bundle, label, code
                if code == STILL_THERE:
                    last_written = _with_replay(full_contents, bundle, tools), label, code
                    break
        except GauntletError as error:
            # This ends the explanation of this case only; other cases continue.
            self.notes.add("bundle", {"problem": error.on_one_line})
            return None
        if last_written is None:
            return None
        entry = self.notes.add_bundle(*last_written)
        return entry if entry.exit_code == STILL_THERE else None


def _with_replay(contents: BundleContents, bundle: Bundle, tools: IreeTools) -> Bundle:
    """Add a recording of the run to a bundle, if the runtime can record the whole run and the file is small."""
    if (
        contents.symptom.ending not in (WRONG, FAILURE)
        or not contents.device
        or not tools.has_flag(RUN_MODULE, _REPLAY_FLAG)
    ):
        return bundle
    module = tools.compile("replay.vmfb", bundle.folder / PROGRAM, contents.flags, cwd=bundle.folder)
    recording = tools.folder / REPLAY
    argv = (f"--device={contents.device}", f"--module={module}", *contents.arguments)
    # The recording contains only those parts of parameter archives that the program reads.
    argv = (*argv, f"{_REPLAY_FLAG}={recording}", "--device_replay_file_policy=capture-ranges")
    tools.run_module("replay", argv, timeout=tools.failure.compile_timeout, cwd=bundle.folder)
    if not (recording.is_file() and 0 < recording.stat().st_size <= _MAX_REPLAY_BYTES):
        return bundle
    files = replace(contents.files, blobs={**contents.files.blobs, REPLAY: recording.read_bytes()})
    try:
        return write_bundle(replace(contents, files=files), bundle.folder)
    except GauntletError:
        # The bundle would be too large; nothing was written.
        return bundle


@dataclass(frozen=True, slots=True)
class _Probes:
    """Finds the switches that avoid a failure: compiles with each, and runs the module for failures at run time."""

    symptom: Symptom
    tools: IreeTools
    pool: ThreadPoolExecutor
    # Only one probe runs at a time, because each run loads the model's weights.
    running: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> tuple[Future[SwitchProbe], ...]:
        """Start the probes."""
        for_cpu = any(CPU.backend in text for text in self.tools.failure.flags)
        probes = [
            self.pool.submit(self._compile_with, name, flag)
            for name, flag in _PROBES
            if self.tools.has_flag(COMPILE, flag) and (for_cpu or not flag.startswith("--iree-llvmcpu"))
        ]
        if self.tools.failure.argv and self.tools.failure.device == LOCAL_TASK.name:
            probes.append(self.pool.submit(self._run_on_one_thread))
        return tuple(probes)

    def _compile_with(self, name: str, flag: str) -> SwitchProbe:
        failure, setting = self.tools.failure, flag.partition("=")[0]
        flags = [*(text for text in failure.flags if text.partition("=")[0] != setting), flag]
        file = f"probe_{setting.removeprefix('--')}.vmfb"
        result = self.tools.cached_compile(file, flags)
        if not failure.stage.row.makes_modules:
            if not result.passed:
                return SwitchProbe(name, flag, "unknown", f"does not compile: {_find_first_error(result)}")
            with self.running:
                result = self.tools.run_with_module(file, self.tools.folder / file)
        return self._judge(name, flag, result)

    def _run_on_one_thread(self) -> SwitchProbe:
        failure, flag = self.tools.failure, f"--device={LOCAL_SYNC.name}"
        argv = [flag, *(text for text in failure.argv[1:] if not text.startswith("--device="))]
        with self.running:
            result = self.tools.run_module("probe_local_sync", argv)
        return self._judge("one thread", flag, result)

    def _judge(self, name: str, flag: str, result: ToolResult) -> SwitchProbe:
        if result.passed:
            return SwitchProbe(name, flag, "passes")
        if self.symptom.is_in(result):
            return SwitchProbe(name, flag, "fails")
        return SwitchProbe(name, flag, "unknown", result.outcome.signal or _find_first_error(result))


def _find_first_error(result: ToolResult) -> str:
    lines = result.errors.splitlines()
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "it does not run")[:400]
