"""Running a bundle's `repro.sh`: with an IREE that is here, or with one that it installs for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.experiments.explaining.bundle import REPRODUCE
from iree_gauntlet.steps import Command

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.engine.processes.supervisor import Supervisor
    from iree_gauntlet.toolchains.toolchain import Toolchain


# Installing IREE, a compile and a run.
_TIMEOUT_SECONDS = 900.0


def run_bundle(
    bundle: Path, iree: Toolchain | None, supervisor: Supervisor, logs: Path, base: Toolchain | None = None
) -> int | None:
    """Run it; what it says stands in `repro.txt`.

    Args:
        bundle: its folder.
        iree: whose tools are used; None for those that it installs.
        supervisor: owns the process.
        logs: where `repro.txt` goes.
        base: what it is held against, where it is about times; None for what it installs.

    Returns:
        Its exit code; None where it was ended.
    """
    tools = [variable for prefix, side in (("", iree), ("BASE_", base)) if side for variable in _tools(prefix, side)]
    command = Command(("sh", f"./{REPRODUCE}"), str(bundle), env=tuple(tools))
    log = logs / "repro.txt"
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
