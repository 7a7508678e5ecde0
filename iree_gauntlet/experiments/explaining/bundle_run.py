"""Opening a bundle, and running its `repro.sh`: with an IREE that is here, or with one that it installs for itself."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.engine.session import interruptible
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.experiments.explaining.bundle import BUNDLE_FACTS, REPRODUCE, unpack
from iree_gauntlet.experiments.explaining.repro_script import CANNOT_BE_JUDGED, FIXED, STILL_THERE
from iree_gauntlet.steps import Command

if TYPE_CHECKING:
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import ToolchainRequest
    from iree_gauntlet.toolchains.toolchain import Toolchain


# What it says, in the folder of logs.
SAID = "repro.txt"
# Installing IREE, a compile and a run.
_TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class OpenedBundle:
    """A bundle that can be run.

    Attributes:
        packages: the IREE that it fails with: `iree-base-compiler==3.6.0`.
    """

    folder: Path
    title: str
    packages: tuple[str, ...]


def open_bundle(bundle: Path, place: Path) -> OpenedBundle:
    """Open a bundle.

    Raises:
        GauntletError: it is no bundle.
    """
    if not bundle.exists():
        raise UsageError(f"there is no bundle {bundle}", "`explain` writes runs/<run>/explain/<case>/bundle.tar.gz.")
    folder = unpack(bundle, place)
    try:
        facts = json.loads((folder / BUNDLE_FACTS).read_text(encoding="utf-8"))
        return OpenedBundle(folder, str(facts["title"]), tuple(map(str, facts["packages"])))
    except (ValueError, KeyError, TypeError) as error:
        what = f"{bundle}: {BUNDLE_FACTS} is not as `explain` writes it: {type(error).__name__}: {error}"
        raise GauntletError(what, "Name a bundle that `explain` wrote.") from error


def run_bundle(
    bundle: Path, iree: Toolchain | None, supervisor: Supervisor, logs: Path, base: Toolchain | None = None
) -> int | None:
    """Run it; what it says stands in `repro.txt`.

    `iree`: whose tools are used; None for those that it installs.
    `logs`: where `repro.txt` goes.
    `base`: what it is held against, where it is about times; None for what it installs.

    Returns:
        Its exit code; None where it was ended.
    """
    tools = [variable for prefix, side in (("", iree), ("BASE_", base)) if side for variable in _tools(prefix, side)]
    command = Command(("sh", f"./{REPRODUCE}"), str(bundle), env=tuple(tools))
    log = logs / SAID
    outcome = supervisor.run(command, stdout=log, stderr=log, timeout=_TIMEOUT_SECONDS)
    if outcome.cancelled:
        raise KeyboardInterrupt
    return outcome.exit_code


def _tools(prefix: str, iree: Toolchain) -> tuple[tuple[str, str], ...]:
    """The environment that names its tools."""
    return (
        (f"{prefix}IREE_COMPILE", iree.compiler.compile),
        (f"{prefix}IREE_RUN_MODULE", iree.runtime.run_module),
        (f"{prefix}IREE_BENCHMARK_MODULE", iree.runtime.benchmark_module),
    )


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
