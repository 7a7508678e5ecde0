"""The `explain` task: from what failed in a run to a bundle that an IREE developer can run.

<run>/explain/explain.jsonl     the record (`records/explain_outcome.py` describes it)
<run>/explain/<case>/           what was compiled and traced for a case
<run>/explain/<case>/bundle/    the bundle, and bundle.tar.gz next to it
<run>/explain/explain.md, .html, .json
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.explaining.bundle import PROGRAM, REPLAY, STILL_THERE, contains, run_bundle, write_bundle
from iree_gauntlet.experiments.explaining.contents import (
    holds_constants,
    of_dispatch,
    of_operator,
    of_program,
    of_reduced,
)
from iree_gauntlet.experiments.explaining.failures import Failure, Lost, failures_of
from iree_gauntlet.experiments.explaining.locate import Located, locate, locate_in_run
from iree_gauntlet.experiments.explaining.onnx_workers import onnx_source
from iree_gauntlet.experiments.explaining.operators import first_wrong_operator
from iree_gauntlet.experiments.explaining.reduce import EARLIEST, Reduced, reduce
from iree_gauntlet.experiments.explaining.symptom import FAILURE, WRONG, Symptom, symptom_of
from iree_gauntlet.experiments.explaining.tools import GO_ON, Tools
from iree_gauntlet.experiments.explaining.traced_sides import run_with
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.records.earlier_runs import LATEST, asked_for, run_named
from iree_gauntlet.records.explain_outcome import EXPLAIN_RECORD, explained_before
from iree_gauntlet.requests import NetworkRequest, ToolchainRequest
from iree_gauntlet.settings import shown
from iree_gauntlet.toolchains.toolchain import COMPILE, RUN_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
_WHOLE = "the whole program"
_CASE_MARKS = re.compile(r"[*?@\[]")


def explain(asked: ExplainRequest, cache: CacheRequest, presenter: Presenter) -> ExitCode:
    """Explains what failed in a run.

    Raises:
        GauntletError: what keeps it from starting.
    """
    run, *patterns = asked.failures or (LATEST,)
    if _CASE_MARKS.search(run) and not Path(run).exists():
        named = shlex.join((LATEST, run, *patterns))
        raise UsageError(f"explain {run}: the first word is a run, and cases follow it", f"gauntlet explain {named}")
    run_dir = run_named(run, "explain").resolve()
    record = read_journal(run_dir / JOURNAL)
    failures = failures_of(record, patterns)
    folder = run_dir / "explain"
    with presenter.progress() as progress:
        machine = iree_of(run_dir, record.run.toolchain.as_dict(), cache, progress)
        before = explained_before(folder, private=asked.no_weights, budget=asked.budget)
        cases = [{"case": item.case, "kind": item.kind, "reason": item.result.reason} for item in failures]
        opening = {"run": run_dir.name, "cases": cases, "toolchain": record.run.toolchain.as_dict()}
        experiment = Experiment("explain", EXPLAIN_RECORD, folder)
        with experiment.record(presenter, opening, first={}) as log, experiment.open_session(log, progress) as session:
            explainer = _Explainer(folder, machine, session, record, asked)
            done = [item.case in before or explainer.explain(item) for item in failures]
            experiment.code = ExitCode.OK if all(done) else ExitCode.INCONCLUSIVE
    return experiment.code


def iree_of(run_dir: Path, recorded: dict[str, Any], cache: CacheRequest, progress: Progress) -> Workbench:
    """The IREE of a run.

    Raises:
        GauntletError: it is another one now.
    """
    selection = asked_for(run_dir).selection
    names = {name: selection.get(name, "") for name in ("iree", "iree_compiler", "iree_runtime")}
    request = ToolchainRequest(cache_dir=cache.cache_dir, **names)
    machine = open_workbench(request, progress, NetworkRequest(), need_toolchain=True)
    now = machine.iree.as_dict()
    if now["identity"] != recorded.get("identity"):
        here = f"{names['iree'] or 'what is installed'} is {now['compiler']} now"
        before = f"{shown(run_dir)} was made with IREE {recorded.get('compiler')}"
        raise GauntletError(f"{before}, and {here}", "Run again, and explain that run.")
    return machine


@dataclass(frozen=True, slots=True)
class _Explainer:
    """Explains one failure after the other, and records what is found as it is."""

    folder: Path
    machine: Workbench
    session: Session[EventLog]
    record: JournalRecord
    asked: ExplainRequest
    # What was explained of a compile: the case, and what is recorded of its bundle.
    _twins: dict[tuple[str, ...], tuple[str, dict[str, Any]]] = field(default_factory=dict)

    def explain(self, failure: Failure | Lost) -> bool:
        """Whether a bundle shows it."""
        self.session.log.write("start", {"case": failure.case})
        if isinstance(failure, Lost):
            self._note_found(failure, "nothing", {"why": failure.why})
            self.session.log.write("case", {"case": failure.case, "bundled": False, "private": False, "seconds": 0.0})
            return False
        folder = self.folder / failure.folder
        if self.asked.no_weights:
            # A bundle with the model's own values stays.
            folder = folder.with_name(f"{folder.name}.no-weights")
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            return self._was_looked_at(failure, Tools(self.machine, self.session.supervisor, folder))
        except OSError as error:
            raise GauntletError(f"{error.filename or shown(folder)}: {error.strerror}", GO_ON) from error

    def _was_looked_at(self, failure: Failure, tools: Tools) -> bool:
        began = time.monotonic()
        self._say(failure, failure.kind)
        key = self._make_key(failure)
        twin = self._twins.get(key)
        if twin is None:
            bundle = self._explain(failure, tools)
            if bundle is not None:
                self._twins[key] = (failure.case, bundle)
        else:
            bundle = twin[1]
            self._note_found(failure, "same", {"as": twin[0]})
            self._note_found(failure, "bundle", bundle)
        seconds = round(time.monotonic() - began, 3)
        done = {"bundled": bundle is not None, "private": self.asked.no_weights, "seconds": seconds}
        done["budget"] = self.asked.budget
        self.session.log.write("case", {"case": failure.case, **done})
        return bundle is not None

    def _make_key(self, failure: Failure) -> tuple[str, ...]:
        """What is the same for failures of one cause: of compiles, the program and its flags."""
        if failure.stage is not Stage.COMPILE:
            return (failure.case, failure.stage)
        return (self.machine.store.verified.sha256(failure.program), *failure.flags)

    def _explain(self, failure: Failure, tools: Tools) -> dict[str, Any] | None:
        if failure.sha256 not in ("", self.machine.store.verified.sha256(failure.program)):
            why = f"{shown(failure.program)} is not what it was in the run: run again, and explain that run"
            self._note_found(failure, "nothing", {"why": why})
            return None
        again = _check_again(failure, tools)
        self._note_found(failure, "again", again.as_dict())
        if again.symptom is None:
            self._note_found(failure, "nothing", {"why": "it did not fail again, twice: it is intermittent"})
            return None
        with ThreadPoolExecutor(read_machine_facts().cores) as pool:
            try:
                return self._pursue(failure, again.symptom, tools, pool)
            finally:
                pool.shutdown(cancel_futures=True)

    def _pursue(
        self, failure: Failure, symptom: Symptom, tools: Tools, pool: ThreadPoolExecutor
    ) -> dict[str, Any] | None:
        """What is at fault in it, what shows that to others, and which switches mend it."""
        probes: tuple[Future[Probed], ...] = ()
        early = False
        if failure.stage is Stage.COMPILE:
            reduced, why = self._reduce(failure, symptom, tools)
            forms = self._list_reduced_forms(failure, symptom, reduced, why)
            early = reduced is not None and reduced.phase == EARLIEST
        else:
            if _is_side_by_side(failure):
                probes = _begin_probes(failure, symptom, tools, pool)
            operator = cache(partial(self._search_operator, failure, tools))
            located = self._locate(failure, symptom, tools, operator)
            forms = self._list_located_forms(failure, symptom, located, operator)
        if not (early or probes):
            probes = _begin_probes(failure, symptom, tools, pool)
        probed = []
        for future in probes:
            probed.append(future.result())
            self._say(failure, f"{probed[-1].name}: {probed[-1].verdict}")
        if not early:
            self._note_found(failure, "probes", {"probes": [asdict(item) for item in probed]})
        mended = ", ".join(f"{item.name} (`{item.flag}`)" for item in probed if item.verdict == "passes")
        return self._write_bundle(failure, forms, tools, f"Mended by: {mended}." if mended else "")

    def _reduce(self, failure: Failure, symptom: Symptom, tools: Tools) -> tuple[Reduced | None, str]:
        """What is left of a program; or why nothing could be taken from it."""
        say = partial(self._say, failure)
        say("reducing the program")
        try:
            reduced = reduce(failure, symptom, tools, 60 * self.asked.budget, say)
        except GauntletError as error:
            why = error.on_one_line
            self._note_found(failure, "reduced", {"why": why})
            return None, why
        self._note_found(failure, "reduced", reduced.as_dict())
        return reduced, "what was made of it does not show the failure"

    def _locate(
        self, failure: Failure, symptom: Symptom, tools: Tools, operator: Callable[[], OperatorSearch | None]
    ) -> Located:
        """The dispatch at fault, or what is known where there is none."""
        say = partial(self._say, failure)

        def elsewhere() -> bool:
            found = operator()
            return found is not None and (found.operator is not None or found.agrees)

        try:
            if symptom.ending == WRONG:
                located = locate(failure, tools, say, elsewhere, private=self.asked.no_weights)
            else:
                located = locate_in_run(failure, symptom, tools, say, private=self.asked.no_weights)
        except GauntletError as error:
            located = Located(why=error.on_one_line)
        self._note_found(failure, "located", _locate(located))
        return located

    def _search_operator(self, failure: Failure, tools: Tools) -> OperatorSearch | None:
        """What a search for the operator came to; None where the program was not imported."""
        source = onnx_source(self.record, failure.case)
        if source is None:
            return None
        found = first_wrong_operator(failure, source, tools, partial(self._say, failure))
        self._note_found(failure, "operator", found.as_dict())
        return found

    # What a bundle may hold, the best first: with a word for the reports. GauntletError where it may not.

    def _list_reduced_forms(
        self, failure: Failure, symptom: Symptom, reduced: Reduced | None, why: str
    ) -> Iterator[tuple[str, Contents]]:
        if reduced is not None and not (self.asked.no_weights and reduced.constants):
            yield "the reduced program", of_reduced(failure, symptom, reduced, self.machine.iree)
        yield _WHOLE, self._make_whole(failure, symptom, why)

    def _list_located_forms(
        self, failure: Failure, symptom: Symptom, located: Located, operator: Callable[[], OperatorSearch | None]
    ) -> Iterator[tuple[str, Contents]]:
        iree = self.machine.iree
        why = located.why
        if located.suspect is not None:
            if located.suspect.withheld:
                raise GauntletError(located.suspect.withheld, "")
            *function, flow = of_dispatch(failure, symptom, located.suspect, iree)
            if self.asked.no_weights and holds_constants(flow.program):
                raise GauntletError("its text holds constants of the model, which --no-weights leaves out", "")
            yield from (("a program for any release", form) for form in function)
            yield "a program for this release", flow
            why = f"{located.suspect.dispatch.name}, cut out, does not show the failure"
        elif symptom.ending == WRONG and (found := operator()) is not None:
            if found.operator is not None and not self.asked.no_weights:
                yield "the operator's program", of_operator(failure, symptom, found.operator, iree)
            if found.agrees:
                return
            why = found.why or "its first wrong operator, cut out, does not show the failure"
        yield _WHOLE, self._make_whole(failure, symptom, why)

    def _make_whole(self, failure: Failure, symptom: Symptom, why: str) -> Contents:
        if self.asked.no_weights:
            raise GauntletError("it would hold the model's own values, which --no-weights leaves out", "")
        return of_program(failure, symptom, why, self.machine.iree)

    def _write_bundle(
        self, failure: Failure, forms: Iterator[tuple[str, Contents]], tools: Tools, known: str
    ) -> dict[str, Any] | None:
        """The first that shows the failure when it is run, as it is recorded; None where none does."""
        fact: dict[str, Any] = {}
        try:
            for form, contents in forms:
                shutil.rmtree(tools.folder / "bundle", ignore_errors=True)
                self._say(failure, f"writing {form}. {contains(contents)}")
                whole = replace(contents, what=(*contents.what, known)) if known else contents
                bundle = write_bundle(whole, tools.folder / "bundle")
                code = run_bundle(bundle.folder, self.machine.iree, self.session.supervisor, tools.folder)
                if code == STILL_THERE:
                    bundle = _with_replay(whole, bundle, tools, timeout=failure.compile_timeout)
                place = str(bundle.folder.relative_to(self.folder))
                fact = {"problem": "", "folder": place, "bytes": bundle.bytes, "exit_code": code, "form": form}
                if code == STILL_THERE:
                    break
        except GauntletError as error:
            # Of this one alone; the others go on.
            self._note_found(failure, "bundle", {"problem": error.on_one_line})
            return None
        if fact:
            self._note_found(failure, "bundle", fact)
        return fact if fact.get("exit_code") == STILL_THERE else None

    def _note_found(self, failure: Failure | Lost, part: str, fields: dict[str, Any]) -> None:
        self.session.log.write("found", {"case": failure.case, "part": part, **fields})

    def _say(self, failure: Failure, text: str) -> None:
        self.session.progress.message(f"{failure.case}: {text}")


def _locate(located: Located) -> dict[str, Any]:
    suspect = located.suspect
    found: dict[str, Any] = {"why": located.why, "traced": located.traced, "reference": located.reference}
    if suspect is not None:
        # It says nothing of numbers where a run fails before it gives any.
        error = suspect.error if math.isfinite(suspect.error) else None
        found["made_up"] = any(item.made for item in suspect.inputs)
        if suspect.in_f64 is not None:
            sides = asdict(suspect.in_f64)
            found["in_f64"] = {side: off if math.isfinite(off) else None for side, off in sides.items()}
        found |= {"dispatch": suspect.dispatch.name, "call": suspect.call, "of": suspect.of, "error": error}
        found["around"] = [[*which, off if math.isfinite(off) else None] for *which, off in located.around]
        found |= {"inputs": [item.kind for item in suspect.inputs], "outputs": [kind for kind, _ in suspect.expected]}
    return found


@dataclass(frozen=True, slots=True)
class Again:
    """Whether it fails again.

    Attributes:
        symptom: what it showed; None where it passed.
    """

    failed: int
    same: bool
    symptom: Symptom | None

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        return {"failed": self.failed, "same": self.same, "symptom": self.symptom and self.symptom.as_dict()}


def _check_again(failure: Failure, tools: Tools) -> Again:
    """Do it twice more, as it was."""
    compiles = failure.stage is Stage.COMPILE
    timeout = failure.compile_timeout if compiles else failure.timeout
    if failure.result.timed_out:
        timeout = min(timeout, _HANG_SECONDS)
    if compiles:
        runs = [
            tools.try_compile(
                f"again_{i}.vmfb", failure.program, failure.flags, timeout=timeout, cwd=failure.compile_cwd
            )
            for i in _TIMES
        ]
    else:
        runs = [tools.run_module(f"again_{i}", failure.argv[1:], timeout=timeout, cwd=failure.cwd) for i in _TIMES]
    symptoms = [symptom_of(ran, timeout) for ran in runs]
    shown = [symptom for symptom in symptoms if symptom is not None]
    same = symptoms[0] == symptoms[1] and runs[0].complaints == runs[1].complaints
    return Again(len(shown), same, shown[0] if shown else None)


def _with_replay(contents: Contents, bundle: Bundle, tools: Tools, *, timeout: float) -> Bundle:
    """The bundle with its run recorded; as it is where the runtime records none, or a large one, or none to its end."""
    if contents.symptom.ending not in (WRONG, FAILURE) or not contents.device or not tools.knows(RUN_MODULE, _OUTPUT):
        return bundle
    module = tools.compile("replay.vmfb", bundle.folder / PROGRAM, contents.flags, timeout=timeout, cwd=bundle.folder)
    recorded = tools.folder / REPLAY
    argv = (f"--device={contents.device}", f"--module={module}", *contents.arguments)
    # Weights that a program reads from archives go into the recording, and no more of these files.
    argv = (*argv, f"{_OUTPUT}={recorded}", "--device_replay_file_policy=capture-ranges")
    tools.run_module("replay", argv, timeout=timeout, cwd=bundle.folder)
    if not (recorded.is_file() and 0 < recorded.stat().st_size <= _LIMIT):
        return bundle
    files = (*contents.files, (REPLAY, recorded.read_bytes()))
    try:
        return write_bundle(replace(contents, files=files), bundle.folder)
    except GauntletError:
        # It would be too large; nothing was written.
        return bundle


@dataclass(frozen=True, slots=True)
class Probed:
    """What a switch does: `passes`, `fails`, or `unknown` and why."""

    name: str
    flag: str
    verdict: str
    reason: str = ""


def _begin_probes(
    failure: Failure, symptom: Symptom, tools: Tools, pool: ThreadPoolExecutor
) -> tuple[Future[Probed], ...]:
    """Begin to find out which switches mend it: each by itself, compiled, and run where that is what fails."""
    # One after the other: each holds the model's weights.
    runs = threading.Lock()

    def one(name: str, flag: str) -> Probed:
        setting = flag.partition("=")[0]
        flags = [word for word in failure.flags if word.partition("=")[0] != setting]
        file = f"probe_{setting.removeprefix('--')}.vmfb"
        ran = tools.cached_compile(
            file, failure.program, [*flags, flag], timeout=failure.compile_timeout, cwd=failure.compile_cwd
        )
        if failure.stage is Stage.COMPILE:
            return Probed(name, flag, *_decide_verdict(ran, symptom))
        if not ran.passed:
            return Probed(name, flag, "unknown", f"does not compile: {_find_first_error(ran)}")
        with runs:
            ran = run_with(failure, tools, file, tools.folder / file)
        return Probed(name, flag, *_decide_verdict(ran, symptom))

    def one_thread() -> Probed:
        with runs:
            argv = [word for word in failure.argv[1:] if not word.startswith("--device=")]
            argv = ["--device=local-sync", *argv]
            ran = tools.run_module("probe_local_sync", argv, timeout=failure.timeout, cwd=failure.cwd)
        return Probed("one thread", "--device=local-sync", *_decide_verdict(ran, symptom))

    known = [(name, flag) for name, flag in _PROBES if tools.knows(COMPILE, flag) and _applies(flag, failure)]
    probes = [pool.submit(one, name, flag) for name, flag in known]
    if failure.argv and failure.device == "local-task":
        probes.append(pool.submit(one_thread))
    return tuple(probes)


def _is_side_by_side(failure: Failure) -> bool:
    """Whether a model is small enough for its probes to run while its dispatches are traced."""
    archives = [Path(failure.cwd, text.rpartition("=")[2]) for text in failure.values("--parameters")]
    sizes = [file.stat().st_size for file in (failure.program, *archives)]
    return sum(sizes) <= _SMALL_BYTES


def _applies(flag: str, failure: Failure) -> bool:
    of_cpu = any("llvm-cpu" in word for word in failure.flags)
    return of_cpu or not flag.startswith("--iree-llvmcpu")


def _decide_verdict(ran: ToolResult, symptom: Symptom) -> tuple[str, str]:
    if ran.passed:
        return "passes", ""
    if symptom.is_in(ran):
        return "fails", ""
    return "unknown", ran.outcome.signal or _find_first_error(ran)


def _find_first_error(ran: ToolResult) -> str:
    lines = ran.errors.splitlines()
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "it does not run")[:400]
