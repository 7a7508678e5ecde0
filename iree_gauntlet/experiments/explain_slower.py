"""`explain --slower`: from what a comparison found slower to a bundle of the dispatch that is.

<comparison>/explain/explain.jsonl     the record (`records/explain_outcome.py` describes it), with all rounds
<comparison>/explain/<case>/a, b       what was compiled and traced for a case, by side
<comparison>/explain/<case>/bundle/    the bundle, and bundle.tar.gz next to it
"""

from __future__ import annotations

import shlex
import shutil
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.engine.rounds.taken_rounds import gpu_of
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.experiments.experiment_log import recorded_explanation
from iree_gauntlet.experiments.explain import iree_of
from iree_gauntlet.experiments.explaining.bundle_run import run_bundle
from iree_gauntlet.experiments.explaining.repro_script import STILL_THERE
from iree_gauntlet.experiments.explaining.slower import Found, SlowDispatch, Slower, find_slow_dispatch, slower_of
from iree_gauntlet.experiments.explaining.slower_bundle import slower_bundle
from iree_gauntlet.experiments.explaining.tools import Tools
from iree_gauntlet.records.compare_record import comparison_named, read_comparison
from iree_gauntlet.records.earlier_runs import LATEST
from iree_gauntlet.records.explain_outcome import explained_before

if TYPE_CHECKING:
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import CacheRequest, ExplainRequest
    from iree_gauntlet.toolchains.toolchain import Toolchain


def explain_slower(asked: ExplainRequest, cache: CacheRequest, presenter: Presenter) -> ExitCode:
    """Explains what a comparison found slower.

    Args:
        asked: which comparison, and which of its models.
        cache: where the IREEs of the comparison are installed.
        presenter: shows it.

    Raises:
        UsageError: options that exclude each other.
        GauntletError: what keeps it from starting.
    """
    if asked.no_weights:
        hint = "A slower dispatch is measured on the inputs that it had: leave one of the two out."
        raise UsageError("--slower and --no-weights exclude each other", hint)
    name, *patterns = shlex.split(asked.failures) or (LATEST,)
    compared = comparison_named(name).resolve()
    record = read_comparison(compared)
    models = slower_of(record, compared, patterns)
    folder = compared / "explain"
    with presenter.progress() as progress:
        machines = [iree_of(compared / side.name.lower(), side.toolchain, cache, progress) for side in record.sides]
        before = explained_before(folder)
        opening = {
            "run": compared.name,
            "cases": [{"case": item.case, "kind": "slower", "reason": item.reason} for item in models],
            "toolchain": record.sides[1].toolchain,
            "base": record.sides[0].toolchain,
        }
        with recorded_explanation(folder, opening, presenter, progress) as (session, ending):
            explainer = _Explainer(session, (machines[0], machines[1]))
            done = [item.case in before or explainer.explain(item) for item in models]
            ending.code = ExitCode.OK if all(done) else ExitCode.INCONCLUSIVE
    return ending.code


@dataclass(frozen=True, slots=True)
class _Explainer:
    """Explains one model after the other, and records what is found as it is."""

    session: Session[Any]
    machines: tuple[Workbench, Workbench]

    def explain(self, slower: Slower) -> bool:
        """Whether a bundle shows it."""
        began = time.monotonic()
        folder = self.session.folder / slower.sides[1].folder
        shutil.rmtree(folder, ignore_errors=True)
        tools = [
            Tools(machine, self.session.supervisor, folder / side)
            for side, machine in zip("ab", self.machines, strict=True)
        ]
        for item in tools:
            item.folder.mkdir(parents=True)
        self.session.log.write("start", {"case": slower.case})
        self._say(slower, "slower")
        bundled = False
        try:
            found = find_slow_dispatch(slower, (tools[0], tools[1]), self.session, lambda text: self._say(slower, text))
            self._found(slower, "slower", _found(found))
            bundled = found.slow is not None and self._bundle(slower, found.slow)
        except WaitCancelledError as error:
            raise KeyboardInterrupt from error
        except GauntletError as error:
            # Of this one alone; the others go on.
            self._found(slower, "nothing", {"why": error.on_one_line})
        seconds = round(time.monotonic() - began, 3)
        self.session.log.write("case", {"case": slower.case, "bundled": bundled, "seconds": seconds})
        return bundled

    def _bundle(self, slower: Slower, slow: SlowDispatch) -> bool:
        """Whether running the bundle of a dispatch shows that it is slower."""
        base, new = (_known(machine.toolchain) for machine in self.machines)
        place = slower.sides[1].folder
        folder = self.session.folder / place
        bundle = slower_bundle(slower, slow, (base, new), folder / "bundle")
        self._say(slower, "running its bundle")
        with self.session.quiet(gpu_of(slow.measured[1].step)):
            code = run_bundle(bundle.folder, new, self.session.supervisor, folder, base)
        fact = {"problem": "", "folder": str(place / "bundle"), "bytes": bundle.bytes, "exit_code": code}
        self._found(slower, "bundle", {**fact, "form": "a program for any release"})
        return code == STILL_THERE

    def _found(self, slower: Slower, part: str, fields: dict[str, Any]) -> None:
        self.session.log.write("found", {"case": slower.case, "part": part, **fields})

    def _say(self, slower: Slower, text: str) -> None:
        self.session.progress.message(f"{slower.case}: {text}")


def _known(toolchain: Toolchain | None) -> Toolchain:
    assert toolchain is not None, "it was needed"
    return toolchain


def _found(found: Found) -> dict[str, Any]:
    record: dict[str, Any] = {
        "why": found.why,
        "tried": [{**asdict(suspect), "said": said} for suspect, said in found.tried],
    }
    if found.slow is not None:
        inputs = [kind for kind, _ in found.slow.inputs]
        record |= {**asdict(found.slow.suspect), "inputs": inputs, "times": found.slow.verdict.as_dict()}
    return record
