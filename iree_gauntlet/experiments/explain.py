"""The `explain` task: from what failed in a run to a bundle that an IREE developer can run.

<run>/explain/explain.jsonl     the record (`records/explain_outcome.py` describes it)
<run>/explain/<case>/           what was compiled and traced for a case
<run>/explain/<case>/bundle/    the bundle, and bundle.tar.gz next to it
<run>/explain/explain.md, .html, .json
"""

from __future__ import annotations

import math
import shlex
import shutil
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.session import open_session
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.experiments.experiment_log import begun_by, recorded_end
from iree_gauntlet.experiments.explaining.bundle import (
    STILL_THERE,
    Bundle,
    Contents,
    file_values,
    flag_files,
    write_bundle,
)
from iree_gauntlet.experiments.explaining.bundle_run import run_bundle
from iree_gauntlet.experiments.explaining.failures import Failure, failures_of
from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT
from iree_gauntlet.experiments.explaining.locate import Located, Suspect, fails_again, locate, probe
from iree_gauntlet.experiments.explaining.onnx_workers import onnx_source
from iree_gauntlet.experiments.explaining.operator_bundle import operator_contents, thresholds
from iree_gauntlet.experiments.explaining.operators import first_wrong_operator
from iree_gauntlet.experiments.explaining.tools import Tools
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.records.earlier_runs import LATEST, asked_for, run_named
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.explain_outcome import EXPLAIN_RECORD, explained_before
from iree_gauntlet.requests import NetworkRequest, ToolchainRequest
from iree_gauntlet.settings import shown

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.engine.processes.supervisor import Supervisor
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.progress import Presenter, Progress
    from iree_gauntlet.requests import CacheRequest, ExplainRequest


# Of a program in the phase of its release.
_FROM_FLOW = "--compile-from=flow"


def explain(asked: ExplainRequest, cache: CacheRequest, presenter: Presenter) -> ExitCode:
    """Explains what failed in a run.

    Args:
        asked: which run, and which of its failures.
        cache: where the IREE of the run is installed.
        presenter: shows it.

    Raises:
        GauntletError: what keeps it from starting.
    """
    run, *patterns = shlex.split(asked.failures) or (LATEST,)
    run_dir = run_named(run, "explain").resolve()
    record = read_journal(run_dir / JOURNAL)
    failures = failures_of(record, patterns)
    folder = run_dir / "explain"
    with presenter.progress() as progress:
        machine = _as_in(run_dir, record.runs[-1]["toolchain"], cache, progress)
        folder.mkdir(exist_ok=True)
        with EventLog(folder / EXPLAIN_RECORD, lambda: datetime.now(UTC)) as log:
            before = explained_before(folder)
            cases = [{"case": item.case, "kind": item.kind, "reason": item.result.reason} for item in failures]
            toolchain = record.runs[-1]["toolchain"]
            log.write("explain", {"run": run_dir.name, **begun_by(), "cases": cases, "toolchain": toolchain})
            with (
                recorded_end(log, folder, presenter) as ending,
                open_session(folder, log, progress) as session,
                session.interruptible(),
            ):
                explainer = _Explainer(folder, machine, session.supervisor, log, progress, record)
                done = [item.case in before or explainer.explain(item) for item in failures]
                ending.code = ExitCode.OK if all(done) else ExitCode.INCONCLUSIVE
    return ending.code


def _as_in(run_dir: Path, recorded: dict[str, Any], cache: CacheRequest, progress: Progress) -> Workbench:
    """The IREE of a run.

    Raises:
        GauntletError: it is another one now.
    """
    selection = asked_for(run_dir).selection
    names = {name: selection.get(name, "") for name in ("iree", "iree_compiler", "iree_runtime")}
    request = ToolchainRequest(cache_dir=cache.cache_dir, **names)
    machine = open_workbench(request, progress, NetworkRequest(), need_toolchain=True)
    assert machine.toolchain is not None, "it was needed"
    now = machine.toolchain.as_dict()
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
    supervisor: Supervisor
    log: EventLog
    progress: Progress
    record: JournalRecord

    def explain(self, failure: Failure) -> bool:
        """Whether a bundle shows it."""
        began = time.monotonic()
        folder = self.folder / failure.folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        tools = Tools(self.machine, self.supervisor, folder)
        self.log.write("start", {"case": failure.case})
        self._say(failure, failure.kind)
        bundle = None
        if not failure.wrong:
            self._found(failure, "nothing", {"why": f"a {failure.kind} is not reduced yet"})
        else:
            bundle = self._wrong(failure, tools)
        seconds = round(time.monotonic() - began, 3)
        self.log.write("case", {"case": failure.case, "bundled": bundle is not None, "seconds": seconds})
        return bundle is not None

    def _wrong(self, failure: Failure, tools: Tools) -> Bundle | None:
        again = fails_again(failure, tools)
        self._found(failure, "again", asdict(again))
        if not again.wrong:
            self._found(failure, "nothing", {"why": "it did not fail again in two runs: it is intermittent"})
            return None
        try:
            located = locate(failure, tools, lambda text: self._say(failure, text))
        except GauntletError as error:
            located = Located(why=f"{error.what} {error.hint}".strip())
        self._found(failure, "located", _located(located))
        bundle = None
        forms = self._forms(failure, located.suspect) if located.suspect else self._operator(failure, tools)
        if forms:
            try:
                bundle = self._bundle(failure, forms, tools)
            except GauntletError as error:
                # Of this one alone; the others go on.
                self._found(failure, "bundle", {"problem": f"{error.what} {error.hint}".strip()})
        probes = probe(failure, tools, lambda text: self._say(failure, text), machine_facts().cores)
        self._found(failure, "probes", {"probes": [asdict(item) for item in probes]})
        return bundle

    def _forms(self, failure: Failure, suspect: Suspect) -> list[Contents]:
        """What the bundle of a dispatch may hold, the best first."""
        flags, named = flag_files(failure.flags)
        contents = replace(_contents(failure, suspect, self.machine), flags=(_FROM_FLOW, *flags))
        contents = replace(contents, files=(*contents.files, *named))
        # What every release reads is worth more, where the failure stays.
        functions = [replace(contents, program=suspect.function, flags=flags)] if suspect.function else []
        return [*functions, contents]

    def _operator(self, failure: Failure, tools: Tools) -> list[Contents]:
        """What the bundle of the first wrong operator holds, where the program was imported from ONNX and has one."""
        source = onnx_source(self.record, failure.case)
        if source is None:
            return []
        found = first_wrong_operator(failure, source, tools, lambda text: self._say(failure, text))
        self._found(failure, "operator", found.as_dict())
        assert self.machine.toolchain is not None, "it was needed"
        return [operator_contents(failure, found.operator, self.machine.toolchain)] if found.operator else []

    def _bundle(self, failure: Failure, forms: list[Contents], tools: Tools) -> Bundle | None:
        """The bundle of the first form of it where running it shows the failure."""
        assert self.machine.toolchain is not None, "it was needed"
        for form in forms:
            bundle = write_bundle(form, tools.folder / "bundle")
            code = run_bundle(bundle.folder, self.machine.toolchain, self.supervisor, tools.folder)
            if code == STILL_THERE:
                break
        place = str(bundle.folder.relative_to(self.folder))
        fact = {"problem": "", "folder": place, "bytes": bundle.bytes, "exit_code": code}
        self._found(failure, "bundle", {**fact, "any_release": _FROM_FLOW not in form.flags})
        return bundle if code == STILL_THERE else None

    def _found(self, failure: Failure, part: str, fields: dict[str, Any]) -> None:
        self.log.write("found", {"case": failure.case, "part": part, **fields})

    def _say(self, failure: Failure, text: str) -> None:
        self.progress.message(f"{failure.case}: {text}")


def _located(located: Located) -> dict[str, Any]:
    suspect = located.suspect
    found: dict[str, Any] = {"why": located.why, "traced": located.traced, "reference": located.reference}
    if suspect is not None:
        error = suspect.error if math.isfinite(suspect.error) else None
        found |= {"dispatch": suspect.dispatch.name, "call": suspect.call, "of": suspect.of, "error": error}
        found |= {"inputs": [kind for kind, _ in suspect.inputs], "outputs": [kind for kind, _ in suspect.expected]}
    return found


def _contents(failure: Failure, suspect: Suspect, machine: Workbench) -> Contents:
    assert machine.toolchain is not None, "it was needed"
    inputs, held = file_values(suspect.inputs, "input")
    expected, kept = file_values(suspect.expected, "expected")
    dispatch, iree = suspect.dispatch, machine.toolchain
    error = f"{suspect.error:.3g} of its largest value" if math.isfinite(suspect.error) else "infinite"
    facts = machine_facts()
    found = (
        f"Of {suspect.of} dispatches, `{dispatch.name}` (call {suspect.call}) is the first whose inputs agree with "
        f"those of {suspect.reference} and whose output does not: it is off by {error}. Cut out, and run on the inputs "
        f"that it had, it is wrong too. `program.mlir` is that dispatch, and what is expected is what "
        f"{suspect.reference} gives on these inputs."
    )
    return Contents(
        title=f"Wrong numbers in {dispatch.name} ({failure.device})",
        what=(f"{failure.case}: {failure.result.reason}", found),
        program=suspect.program,
        flags=failure.flags,
        device=failure.device,
        arguments=(
            f"--function={CUT_OUT}",
            *(f"--input={text}" for text in inputs),
            *(f"--expected_output={text}" for text in expected),
            *thresholds([kind for kind, _ in suspect.expected], suspect.largest),
        ),
        files=(*held, *kept),
        iree=iree,
        machine=f"{facts.cpu}, {facts.os}",
    )
