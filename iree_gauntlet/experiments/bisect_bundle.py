"""A bundle as what a bisect looks at: at each IREE, what does its `repro.sh` end with?

The bundle is kept in the bisect's folder, so that a resumed bisect asks the same.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.load import CaseSet
from iree_gauntlet.engine.judging import first_error
from iree_gauntlet.engine.workspace import Selection
from iree_gauntlet.errors import UsageError
from iree_gauntlet.experiments.bisect_probe import Judged, candidate_run
from iree_gauntlet.experiments.bisect_timing import TIMING_NAMES
from iree_gauntlet.experiments.explaining.bundle_run import SAID, open_bundle, run_bundle
from iree_gauntlet.experiments.explaining.repro_script import FIXED, STILL_THERE
from iree_gauntlet.experiments.performing import Chosen
from iree_gauntlet.requests import dashed, given

if TYPE_CHECKING:
    from iree_gauntlet.engine.processes.supervisor import Supervisor
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import BisectRequest, RunRequest
    from iree_gauntlet.toolchains.candidates import Candidate


_KEPT = "bundle"
# What a bundle that is a folder may have installed for itself.
_INSTALLED = "env"


def require_bundle_alone(asked: BisectRequest, request: RunRequest) -> None:
    """Make sure that nothing is asked for of a model: a bundle has its own program, inputs and question.

    Raises:
        UsageError: something is.
    """
    of_a_model = given((request.selection, request.conduct))
    of_a_model |= {name: value for name, value in given([asked]).items() if name in ("metric", *TIMING_NAMES)}
    if of_a_model:
        first = dashed(next(iter(of_a_model)))
        hint = "A bundle has its program, inputs and expected values with it: leave one of the two out."
        raise UsageError(f"{first} and --bundle exclude each other", hint)


def nothing_chosen(request: RunRequest) -> Chosen:
    """A run of no specs: how IREEs are found and installed is all that a bundle needs of one."""
    return Chosen(request, Selection("bundle", (), (), (), CaseSet((), (), ())), ())


def bundle_title(bundle: str) -> str:
    """What failure a bundle shows.

    Raises:
        GauntletError: it is no bundle.
    """
    with tempfile.TemporaryDirectory(prefix="gauntlet-bundle-") as place:
        return open_bundle(Path(bundle), Path(place)).title


def keep_bundle(bundle: str, folder: Path) -> None:
    """Keep a bundle in the bisect's folder; one that is kept there already stays.

    Raises:
        GauntletError: it is no bundle.
    """
    kept = folder / _KEPT
    if kept.exists():
        return
    with tempfile.TemporaryDirectory(prefix=f"{_KEPT}-", dir=folder) as place:
        opened = open_bundle(Path(bundle), Path(place))
        # Renamed when it is whole: what a kill leaves is no bundle.
        copy = Path(place) / "copy"
        shutil.copytree(opened.folder, copy, ignore=shutil.ignore_patterns(_INSTALLED))
        copy.rename(kept)


def run_kept_bundle(
    candidate: Candidate, folder: Path, chosen: Chosen, supervisor: Supervisor, presenter: Presenter
) -> Judged:
    """Run the bundle with a candidate: 1 where it passes, 0 where the failure is there.

    Raises:
        GauntletError: what is no candidate's fault, such as a full disk.
    """

    def work(run_dir: Path, _presenter: Presenter) -> Judged:
        machine = chosen.workbench(candidate.iree)
        assert machine.toolchain is not None, "it was needed"
        code = run_bundle(folder / _KEPT, machine.toolchain, supervisor, run_dir)
        toolchain = machine.toolchain.as_dict()
        if code == FIXED:
            return Judged(value=1.0, text="passes", toolchain=toolchain)
        if code == STILL_THERE:
            return Judged(value=0.0, text="fails", toolchain=toolchain)
        how = "did not end in time" if code is None else f"ends with {code}"
        said = (run_dir / SAID).read_text(encoding="utf-8", errors="replace").splitlines() or [""]
        return Judged(reason=f"repro.sh {how}: {first_error(said) or said[-1]}", toolchain=toolchain)

    return candidate_run(candidate, folder, presenter, work)
