"""`run --explain`: what failed in a run is explained in the same command."""

from __future__ import annotations

import glob
import shlex
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.errors import GauntletError, NothingSelectedError
from iree_gauntlet.experiments.explain import explain
from iree_gauntlet.records.earlier_runs import failed_chains
from iree_gauntlet.requests import ExplainRequest

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.errors import ExitCode
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import CacheRequest


def explain_run(run_dir: Path, code: ExitCode, cache: CacheRequest, presenter: Presenter) -> None:
    """Explain what failed in a run that is over, but for what is expected to; the run's own result stays as it is.

    Args:
        run_dir: the run's folder.
        code: the run's own, which the command ends with.
        cache: where its IREE is installed.
        presenter: shows it.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    failed = sorted(failed_chains(run_dir))
    if not failed:
        return
    try:
        explain(ExplainRequest(shlex.join((str(run_dir), *map(glob.escape, failed)))), cache, presenter)
    except NothingSelectedError:
        # A download, an import or a benchmark: nothing that `explain` is about.
        return
    except GauntletError as error:
        messages.warn(f"what failed was not explained: {error}")
    presenter.line(f"the run itself: exit code {int(code)}: {code.meaning}")
