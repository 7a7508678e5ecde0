"""The tasks `bundle.check` and `bundle.run`: a bundle's `repro.sh`, in an environment of its own or with an IREE."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.engine.session import interruptible
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.experiments.explaining.bundle_run import SAID, open_bundle, run_bundle
from iree_gauntlet.experiments.explaining.repro_script import CANNOT_BE_JUDGED, FIXED, STILL_THERE

if TYPE_CHECKING:
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.toolchains.toolchain import Toolchain


def check(bundle: Path, presenter: Presenter) -> ExitCode:
    """Whether a bundle fails with the IREE that it installs for itself.

    Raises:
        GauntletError: it is no bundle.
    """
    code, name, iree = _run(bundle, None, presenter)
    with_what = f"{name}: with {iree}, in an environment of its own,"
    if code == STILL_THERE:
        presenter.line(f"{with_what} it fails: confirmed")
        return ExitCode.OK
    if code == FIXED:
        presenter.line(f"{with_what} it does not fail: not confirmed")
        return ExitCode.FAILED
    presenter.line(f"{with_what} it cannot be judged (exit code {code}); what it said stands above")
    return ExitCode.ERROR


def run_with(bundle: Path, request: ToolchainRequest, presenter: Presenter) -> ExitCode:
    """Whether a bundle fails with an IREE.

    Raises:
        GauntletError: it is no bundle, or there is no such IREE.
    """
    with presenter.progress() as progress:
        toolchain = open_workbench(request, progress, need_toolchain=True).toolchain
    assert toolchain is not None, "it was needed"
    code, name, _ = _run(bundle, toolchain, presenter)
    with_what = f"{name}: with IREE {toolchain.compiler.version}"
    if code == FIXED:
        presenter.line(f"{with_what} it is fixed")
        return ExitCode.OK
    if code == STILL_THERE:
        presenter.line(f"{with_what} the failure is still there")
        return ExitCode.FAILED
    presenter.line(f"{with_what} it cannot be judged (exit code {code}); what it said stands above")
    return ExitCode.ERROR


def _run(bundle: Path, iree: Toolchain | None, presenter: Presenter) -> tuple[int | None, str, str]:
    """What a bundle ends with; its title, and the IREE that it fails with."""
    with tempfile.TemporaryDirectory(prefix="gauntlet-bundle-") as place, Supervisor() as supervisor:
        opened = open_bundle(bundle, Path(place))
        with interruptible(supervisor.cancel_all):
            code = run_bundle(opened.folder, iree, supervisor, Path(place))
        if code in (CANNOT_BE_JUDGED, None):
            presenter.line((Path(place) / SAID).read_text(encoding="utf-8", errors="replace")[-3000:])
        return code, opened.title, ", ".join(opened.packages)
