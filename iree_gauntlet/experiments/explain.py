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
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.experiments.explaining.bundle import (
    STILL_THERE,
    Bundle,
    Contents,
    file_values,
    flag_files,
    write_bundle,
)
from iree_gauntlet.experiments.explaining.bundle_run import run_bundle
from iree_gauntlet.experiments.explaining.explanation import recorded_explanation
from iree_gauntlet.experiments.explaining.failures import Failure, failures_of
from iree_gauntlet.experiments.explaining.flow_program import CUT_OUT
from iree_gauntlet.experiments.explaining.locate import TOLERANCES, Located, Suspect, fails_again, locate, probe
from iree_gauntlet.experiments.explaining.replay import with_replay
from iree_gauntlet.experiments.explaining.tools import Tools
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.records.earlier_runs import LATEST, asked_for, run_named
from iree_gauntlet.records.explain_outcome import explained_before
from iree_gauntlet.requests import NetworkRequest, ToolchainRequest
from iree_gauntlet.settings import shown

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.engine.processes.supervisor import Supervisor
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.progress import Presenter, Progress
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.requests import CacheRequest, ExplainRequest


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
        machine = iree_of(run_dir, record.runs[-1]["toolchain"], cache, progress)
        before = explained_before(folder)
        cases = [{"case": item.case, "kind": item.kind, "reason": item.result.reason} for item in failures]
        opening = {"run": run_dir.name, "cases": cases, "toolchain": record.runs[-1]["toolchain"]}
        with recorded_explanation(folder, opening, presenter, progress) as (session, ending):
            explainer = _Explainer(folder, machine, session.supervisor, session.log, progress)
            done = [item.case in before or explainer.explain(item) for item in failures]
            ending.code = ExitCode.OK if all(done) else ExitCode.INCONCLUSIVE
    return ending.code


def iree_of(run_dir: Path, recorded: dict[str, Any], cache: CacheRequest, progress: Progress) -> Workbench:
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
        if located.suspect is not None:
            try:
                bundle = self._bundle(failure, located.suspect, tools)
            except GauntletError as error:
                # Of this one alone; the others go on.
                self._found(failure, "bundle", {"problem": f"{error.what} {error.hint}".strip()})
        probes = probe(failure, tools, lambda text: self._say(failure, text), machine_facts().cores)
        self._found(failure, "probes", {"probes": [asdict(item) for item in probes]})
        return bundle

    def _bundle(self, failure: Failure, suspect: Suspect, tools: Tools) -> Bundle | None:
        """The bundle of a suspect, where running it shows the failure."""
        assert self.machine.toolchain is not None, "it was needed"
        flags, named = flag_files(failure.flags)
        contents = replace(_contents(failure, suspect, self.machine), flags=("--compile-from=flow", *flags))
        contents = replace(contents, files=(*contents.files, *named))
        # What every release reads is worth more, where the failure stays.
        functions = [replace(contents, program=suspect.function, flags=flags)] if suspect.function else []
        for form in (*functions, contents):
            bundle = write_bundle(form, tools.folder / "bundle")
            code = run_bundle(bundle.folder, self.machine.toolchain, self.supervisor, tools.folder)
            if code == STILL_THERE:
                bundle = with_replay(form, bundle, tools, timeout=failure.compile_timeout)
                break
        place = str(bundle.folder.relative_to(self.folder))
        fact = {"problem": "", "folder": place, "bytes": bundle.bytes, "exit_code": code}
        self._found(failure, "bundle", {**fact, "any_release": form.program == suspect.function})
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
    # What the reference gives, within what another order of operations may change.
    largest: dict[str, float] = {}
    for (kind, _), most in zip(suspect.expected, suspect.largest, strict=True):
        name = kind.rpartition("x")[2]
        largest[name] = max(largest.get(name, 0.0), most)
    known = {name: TOLERANCES[name] * most for name, most in largest.items() if name in TOLERANCES}
    thresholds = [f"--expected_{name}_threshold={allowed:.3g}" for name, allowed in known.items()]
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
            *thresholds,
        ),
        files=(*held, *kept),
        iree=iree,
        machine=f"{facts.cpu}, {facts.os}",
    )
