"""The `explain` task: from what failed in a run to a bundle that an IREE developer can run.

<run>/explain/journal.jsonl     the record (`records/explain_outcome.py` describes it)
<run>/explain/<case>/           what was compiled and traced for a case
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
from iree_gauntlet.dialects.locations import file_path
from iree_gauntlet.engine.run_start import is_changed
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError, name_place
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.explaining.bundle import (
    PROGRAM,
    REPLAY,
    STILL_THERE,
    FailureForms,
    contains,
    holds_constants,
    run_bundle,
    write_bundle,
)
from iree_gauntlet.experiments.explaining.failures import Failure, Lost, find_failures
from iree_gauntlet.experiments.explaining.flow_program import traced_program
from iree_gauntlet.experiments.explaining.locate import DispatchSearch, Located
from iree_gauntlet.experiments.explaining.operators import find_first_wrong_operator, onnx_source
from iree_gauntlet.experiments.explaining.reduce import EARLIEST, Reduced, reduce
from iree_gauntlet.experiments.explaining.tools import FAILURE, GO_ON, WRONG, Symptom, Tools, find_symptom
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.explain_outcome import (
    EXPLAIN_FOLDER,
    EXPLANATION,
    AskedCase,
    CaseEnd,
    ExplainOpening,
    FoundBundle,
    ProbedSwitch,
    list_explained,
)
from iree_gauntlet.records.run_folder import LATEST, read_kept_options, run_named
from iree_gauntlet.requests import NetworkRequest, ToolchainRequest
from iree_gauntlet.settings import resolve_links, shown
from iree_gauntlet.toolchains.toolchain import COMPILE, RUN_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.explaining.bundle import Bundle, Contents
    from iree_gauntlet.experiments.explaining.operators import OperatorSearch
    from iree_gauntlet.experiments.explaining.tools import ToolResult
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.progress import Presenter, Progress
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.requests import CacheRequest, ExplainRequest


# One compile each: flags of the compiler, in the order in which they are reported.
_PROBES = (
    ("data tiling off", "--iree-opt-data-tiling=false"),
    ("no optimisation (O0)", "--iree-opt-level=O0"),
    ("constant evaluation off", "--iree-opt-const-eval=false"),
    ("generic CPU", "--iree-llvmcpu-target-cpu=generic"),
    ("no microkernels", "--iree-llvmcpu-enable-ukernels=none"),
    ("reductions not reordered", "--iree-llvmcpu-reassociate-fp-reductions=false"),
)
# Of a program and its parameters: up to it, memory has room for one more of them.
_SMALL_BYTES = 1_000_000_000
_OUTPUT = "--device_replay_output"
# A larger one is worth less than what it costs to send.
_LIMIT = 1_000_000
# What did not end in the time of the spec is given no more than this.
_HANG_SECONDS = 60.0
_TIMES = (1, 2)
_CASE_MARKS = re.compile(r"[*?@\[]")


def explain(asked: ExplainRequest, cache: CacheRequest, presenter: Presenter) -> ExitCode:
    """Explains what failed in a run."""
    run, *patterns = asked.failures or (LATEST,)
    if _CASE_MARKS.search(run) and not Path(run).exists():
        named = shlex.join((LATEST, run, *patterns))
        raise UsageError(f"explain {run}: the first word is a run, and cases follow it", f"gauntlet explain {named}")
    run_dir = resolve_links(run_named(run, "explain"))
    record = read_journal(run_dir / JOURNAL)
    failures = find_failures(record, patterns)
    toolchain = record.run.toolchain.as_dict()
    cases = tuple(AskedCase(item.case, item.kind, item.result.full_reason) for item in failures)
    with presenter.progress() as progress:
        machine = open_iree(run_dir, toolchain, cache, progress)
        twins: dict[tuple[str, ...], tuple[str, FoundBundle]] = {}

        def look(notes: CaseNotes, failure: Failure | Lost) -> bool:
            if isinstance(failure, Lost):
                notes.add("nothing", {"why": failure.why})
                return False
            folder = notes.session.folder / failure.folder
            if asked.no_weights:
                # A bundle with the model's own values stays.
                folder = folder.with_name(f"{folder.name}.no-weights")
            tools = make_tools(machine, notes.session, folder, failure)
            return _FailureExplainer(notes, tools, record, asked, twins).explain()

        looks = [(item.case, partial(look, failure=item)) for item in failures]
        opening = ExplainOpening(cases=cases, toolchain=toolchain)
        return explain_each(run_dir, opening, looks, asked, presenter, progress)


def open_iree(run_dir: Path, recorded: Mapping[str, Any], cache: CacheRequest, progress: Progress) -> Workbench:
    """The IREE of a run; GauntletError where it is another one now."""
    options = read_kept_options(run_dir).options
    names = {name: options.get(name, "") for name in ("iree", "iree_compiler", "iree_runtime")}
    request = ToolchainRequest(cache_dir=cache.cache_dir, **names)
    machine = open_workbench(request, progress, NetworkRequest(), need_toolchain=True)
    for part, identity, name in (("compiler", "identity", "IREE"), ("runtime", "runtime_identity", "the runtime")):
        tools = getattr(machine.iree, part)
        if recorded.get(identity) != tools.identity:
            here = f"{names['iree'] or 'what is installed'} is {tools.version} now"
            before = f"{shown(run_dir)} was made with {name} {recorded.get(part)}"
            raise GauntletError(f"{before}, and {here}", "Run again, and explain that run.")
    return machine


def explain_each(
    run_dir: Path,
    opening: ExplainOpening,
    looks: Sequence[tuple[str, Callable[[CaseNotes], bool]]],
    asked: ExplainRequest,
    presenter: Presenter,
    progress: Progress,
) -> ExitCode:
    """Explain one case after the other, each by what says whether a bundle shows it, but for those that one shows."""
    folder = run_dir / EXPLAIN_FOLDER
    before = list_explained(folder, private=asked.no_weights, budget=asked.budget)
    experiment = Experiment(EXPLANATION, folder)
    all_bundled = True
    with experiment.open(presenter, opening) as log, experiment.open_session(log, progress) as session:
        for case, look in looks:
            if case in before:
                continue
            began = time.monotonic()
            log.write("start", {}, step=case)
            try:
                bundled = look(CaseNotes(session, case))
            except OSError as error:
                raise GauntletError(f"{name_place(error) or shown(folder)}: {error.strerror}", GO_ON) from error
            seconds = round(time.monotonic() - began, 3)
            log.write("result", CaseEnd(bundled, asked.no_weights, seconds, asked.budget), step=case)
            all_bundled = all_bundled and bundled
        experiment.code = ExitCode.OK if all_bundled else ExitCode.INCONCLUSIVE
    return experiment.code


@dataclass(frozen=True, slots=True)
class CaseNotes:
    """What is said and recorded of a case, as it is found."""

    session: Session[EventLog]
    case: str

    def add(self, part: str, found: Mapping[str, Any]) -> None:
        """Record a part."""
        self.session.log.write(part, found, step=self.case)

    def say(self, text: str) -> None:
        """Tell how it goes."""
        self.session.progress.message(f"{self.case}: {text}")

    def add_bundle(self, bundle: Bundle, form: str, code: int | None) -> FoundBundle:
        """Record a bundle, and what it ended with."""
        place = str(bundle.folder.relative_to(self.session.folder))
        found = FoundBundle(folder=place, bytes=bundle.bytes, exit_code=code, form=form)
        self.add("bundle", found.as_dict())
        return found


def make_tools(machine: Workbench, session: Session[EventLog], folder: Path, failure: Failure) -> Tools:
    """In a folder that is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return Tools(machine, session.supervisor, folder, failure)


@dataclass(frozen=True)
class _FailureExplainer:
    """Explains a failure; `twins` has what was explained of a compile: the case, and what its bundle is recorded as."""

    notes: CaseNotes
    tools: Tools
    record: JournalRecord
    asked: ExplainRequest
    twins: dict[tuple[str, ...], tuple[str, FoundBundle]]

    def explain(self) -> bool:
        """Whether a bundle shows it; of compiles of one program with the same flags, one is explained for all."""
        failure = self.tools.failure
        self.notes.say(failure.kind)
        key: tuple[str, ...] = (failure.case, failure.stage)
        if failure.stage.row.makes_modules:
            key = (self._program_sha256, *failure.flags)
        if key in self.twins:
            case, bundle = self.twins[key]
            self.notes.add("same", {"as": case})
            self.notes.add("bundle", bundle.as_dict())
            return True
        found = self._explain_alone()
        if found is not None:
            self.twins[key] = (failure.case, found)
        return found is not None

    @property
    def _program_sha256(self) -> str:
        return self.tools.workbench.store.verified.sha256(self.tools.failure.program)

    def _explain_alone(self) -> FoundBundle | None:
        """What is recorded of a bundle that shows it; None where none does."""
        failure = self.tools.failure
        again = "run again, and explain that run"
        if changed := self._find_changed(by_time=False):
            self.notes.add("nothing", {"why": f"{changed} is not what it was in the run: {again}"})
            return None
        symptom = self._fail_again()
        if symptom is None:
            written = self._find_changed(by_time=True)
            why = f"{written} was written to since the run: {again}" if written else "it is intermittent"
            self.notes.add("nothing", {"why": f"it did not fail again, twice: {why}"})
            return None
        forms = FailureForms(failure, symptom, self.tools.workbench.iree)
        with ThreadPoolExecutor(read_machine_facts().cores) as pool:
            probes = _Probes(symptom, self.tools, pool)
            try:
                return self._pursue(forms, probes)
            finally:
                pool.shutdown(cancel_futures=True)

    def _find_changed(self, *, by_time: bool) -> Path | None:
        """A file of the user's own that the failing step was made from, and that is another now.

        Either by its content, where the run knew that, or else by the time of its last change: that of a file that was
        copied here is later too.
        """
        failure, verified = self.tools.failure, self.tools.workbench.store.verified
        for step in self.record.planned:
            if step.chain != failure.case or step.role != MAIN or step.id not in self.record.starts:
                continue
            began = datetime.fromisoformat(self.record.starts[step.id]).timestamp()
            for item in step.inputs if step.stage.row.makes_modules or step.stage is failure.stage else ():
                now = replace(item, sha256="")
                if by_time != bool(item.sha256) and is_changed(now, item.sha256, began, verified.sha256):
                    return shown(Path(file_path(item.url)))
        return None

    def _fail_again(self) -> Symptom | None:
        """What it shows when it is done twice more, as it was; None where it passes."""
        tools, failure = self.tools, self.tools.failure
        compiles = failure.stage.row.makes_modules
        timeout = failure.compile_timeout if compiles else failure.timeout
        if failure.result.timed_out:
            timeout = min(timeout, _HANG_SECONDS)
        runs = [
            tools.try_compile(f"again_{i}.vmfb", failure.program, failure.flags, timeout=timeout)
            if compiles
            else tools.run_module(f"again_{i}", failure.argv[1:], timeout=timeout)
            for i in _TIMES
        ]
        symptoms = [find_symptom(ran, timeout) for ran in runs]
        seen = [symptom for symptom in symptoms if symptom is not None]
        same = symptoms[0] == symptoms[1] and runs[0].complaints == runs[1].complaints
        symptom = seen[0] if seen else None
        self.notes.add("again", {"failed": len(seen), "same": same, "symptom": symptom and symptom.as_dict()})
        return symptom

    def _pursue(self, forms: FailureForms, probes: _Probes) -> FoundBundle | None:
        """What is at fault in it, what shows that to others, and which switches mend it."""
        begun: tuple[Future[ProbedSwitch], ...] = ()
        early = False
        if self.tools.failure.stage.row.makes_modules:
            self.notes.say("reducing the program")
            reduced: Reduced | None = None
            why = "what was made of it does not show the failure"
            try:
                reduced = reduce(forms.symptom, self.tools, 60 * self.asked.budget, self.notes.say)
                part, early = reduced.part, reduced.phase == EARLIEST
            except GauntletError as error:
                why = error.on_one_line
                part = {"why": why}
            self.notes.add("reduced", part)
            listed = self._list_reduced_forms(forms, reduced, why)
        else:
            # Of a small model they run while its dispatches are traced.
            failure = self.tools.failure
            archives = [Path(failure.cwd, text.rpartition("=")[2]) for text in failure.values("--parameters")]
            if sum(file.stat().st_size for file in (failure.program, *archives)) <= _SMALL_BYTES:
                begun = probes.begin()
            listed = self._list_located_forms(forms, self._locate(forms.symptom))
        probed = []
        for future in () if early else begun or probes.begin():
            probed.append(future.result())
            self.notes.say(f"{probed[-1].name}: {probed[-1].verdict}")
        if not early:
            self.notes.add("probes", {"probes": [item.as_dict() for item in probed]})
        mended = ", ".join(f"{item.name} (`{item.flag}`)" for item in probed if item.verdict == "passes")
        return self._write_bundle(listed, f"Mended by: {mended}." if mended else "")

    def _locate(self, symptom: Symptom) -> Located:
        """The dispatch at fault, or what is known where there is none."""

        def is_in_operators() -> bool:
            found = self._operator
            return found is not None and (found.operator is not None or found.agrees)

        try:
            self.notes.say("compiling to dispatches")
            program = traced_program(self.tools)
            search = DispatchSearch(self.tools, self.notes.say, self.asked.no_weights, program)
            wrong = symptom.ending == WRONG
            located = search.find_wrong(is_in_operators) if wrong else search.find_failing(symptom)
        except GauntletError as error:
            located = Located(why=error.on_one_line)
        self.notes.add("located", located.as_dict())
        return located

    @cached_property
    def _operator(self) -> OperatorSearch | None:
        """What a search for the operator comes to; None where the program was not imported."""
        source = onnx_source(self.record, self.tools.failure.case)
        if source is None:
            return None
        found = find_first_wrong_operator(source, self.tools, self.notes.say)
        self.notes.add("operator", found.as_dict())
        return found

    # What a bundle may hold, the best first: with a word for the reports. GauntletError where it may not.

    def _list_reduced_forms(
        self, forms: FailureForms, reduced: Reduced | None, why: str
    ) -> Iterator[tuple[str, Contents]]:
        if reduced is not None and not (self.asked.no_weights and reduced.constants):
            yield "the reduced program", forms.of_reduced(reduced)
        yield self._make_whole(forms, why)

    def _list_located_forms(self, forms: FailureForms, located: Located) -> Iterator[tuple[str, Contents]]:
        why, suspect = located.why, located.suspect
        if suspect is not None:
            if suspect.withheld:
                raise GauntletError(suspect.withheld, "")
            *function, flow = forms.of_dispatch(suspect)
            if self.asked.no_weights and holds_constants(flow.program):
                raise GauntletError("its text holds constants of the model, which --no-weights leaves out", "")
            yield from (("a program for any release", form) for form in function)
            yield "a program for this release", flow
            why = f"{suspect.dispatch.name}, cut out, does not show the failure"
        elif forms.symptom.ending == WRONG and (found := self._operator) is not None:
            if found.operator is not None and not self.asked.no_weights:
                yield "the operator's program", forms.of_operator(found.operator)
            if found.agrees:
                return
            why = found.why or "its first wrong operator, cut out, does not show the failure"
        yield self._make_whole(forms, why)

    def _make_whole(self, forms: FailureForms, why: str) -> tuple[str, Contents]:
        if self.asked.no_weights:
            raise GauntletError("it would hold the model's own values, which --no-weights leaves out", "")
        return "the whole program", forms.of_program(why)

    def _write_bundle(self, forms: Iterator[tuple[str, Contents]], known: str) -> FoundBundle | None:
        """The first that shows the failure when it is run, as it is recorded; None where none does."""
        tools, supervisor = self.tools, self.notes.session.supervisor
        last: tuple[Bundle, str, int | None] | None = None
        try:
            for form, contents in forms:
                shutil.rmtree(tools.folder / "bundle", ignore_errors=True)
                self.notes.say(f"writing {form}. {contains(contents)}")
                whole = replace(contents, what=(*contents.what, known)) if known else contents
                bundle = write_bundle(whole, tools.folder / "bundle")
                code = run_bundle(bundle.folder, tools.workbench.iree, supervisor, tools.folder)
                last = bundle, form, code
                if code == STILL_THERE:
                    last = _with_replay(whole, bundle, tools), form, code
                    break
        except GauntletError as error:
            # Of this one alone; the others go on.
            self.notes.add("bundle", {"problem": error.on_one_line})
            return None
        if last is None:
            return None
        found = self.notes.add_bundle(*last)
        return found if found.exit_code == STILL_THERE else None


def _with_replay(contents: Contents, bundle: Bundle, tools: Tools) -> Bundle:
    """The bundle with its run recorded; as it is where the runtime records none, or a large one, or none to its end."""
    if contents.symptom.ending not in (WRONG, FAILURE) or not contents.device or not tools.knows(RUN_MODULE, _OUTPUT):
        return bundle
    module = tools.compile("replay.vmfb", bundle.folder / PROGRAM, contents.flags, cwd=bundle.folder)
    recorded = tools.folder / REPLAY
    argv = (f"--device={contents.device}", f"--module={module}", *contents.arguments)
    # Weights that a program reads from archives go into the recording, and no more of these files.
    argv = (*argv, f"{_OUTPUT}={recorded}", "--device_replay_file_policy=capture-ranges")
    tools.run_module("replay", argv, timeout=tools.failure.compile_timeout, cwd=bundle.folder)
    if not (recorded.is_file() and 0 < recorded.stat().st_size <= _LIMIT):
        return bundle
    files = replace(contents.files, held={**contents.files.held, REPLAY: recorded.read_bytes()})
    try:
        return write_bundle(replace(contents, files=files), bundle.folder)
    except GauntletError:
        # It would be too large; nothing was written.
        return bundle


@dataclass(frozen=True, slots=True)
class _Probes:
    """Which switches mend a failure: each by itself, compiled, and run where that is what fails."""

    symptom: Symptom
    tools: Tools
    pool: ThreadPoolExecutor
    # One run after the other: each holds the model's weights.
    running: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> tuple[Future[ProbedSwitch], ...]:
        """Begin to find out."""
        of_cpu = any(CPU.backend in word for word in self.tools.failure.flags)
        probes = [
            self.pool.submit(self._compile_with, name, flag)
            for name, flag in _PROBES
            if self.tools.knows(COMPILE, flag) and (of_cpu or not flag.startswith("--iree-llvmcpu"))
        ]
        if self.tools.failure.argv and self.tools.failure.device == LOCAL_TASK.name:
            probes.append(self.pool.submit(self._run_on_one_thread))
        return tuple(probes)

    def _compile_with(self, name: str, flag: str) -> ProbedSwitch:
        failure, setting = self.tools.failure, flag.partition("=")[0]
        flags = [*(word for word in failure.flags if word.partition("=")[0] != setting), flag]
        file = f"probe_{setting.removeprefix('--')}.vmfb"
        ran = self.tools.cached_compile(file, flags)
        if not failure.stage.row.makes_modules:
            if not ran.passed:
                return ProbedSwitch(name, flag, "unknown", f"does not compile: {_find_first_error(ran)}")
            with self.running:
                ran = self.tools.run_with(file, self.tools.folder / file)
        return self._judge(name, flag, ran)

    def _run_on_one_thread(self) -> ProbedSwitch:
        failure, flag = self.tools.failure, f"--device={LOCAL_SYNC.name}"
        argv = [flag, *(word for word in failure.argv[1:] if not word.startswith("--device="))]
        with self.running:
            ran = self.tools.run_module("probe_local_sync", argv)
        return self._judge("one thread", flag, ran)

    def _judge(self, name: str, flag: str, ran: ToolResult) -> ProbedSwitch:
        if ran.passed:
            return ProbedSwitch(name, flag, "passes")
        if self.symptom.is_in(ran):
            return ProbedSwitch(name, flag, "fails")
        return ProbedSwitch(name, flag, "unknown", ran.outcome.signal or _find_first_error(ran))


def _find_first_error(ran: ToolResult) -> str:
    lines = ran.errors.splitlines()
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "it does not run")[:400]
