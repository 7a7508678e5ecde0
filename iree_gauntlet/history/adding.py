"""Every run adds itself to the history, where the settings say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.history.extract import extract
from iree_gauntlet.history.stores import history_of, open_history
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.history_run import history_file
from iree_gauntlet.records.outcome import outcome_of

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.settings import Configuration


def add_itself(run_dir: Path, configuration: Configuration, cache: Path) -> None:
    """Add a run that is over to the history of the settings; that this fails is a warning, and no matter of the run.

    Args:
        run_dir: the run's folder.
        configuration: the settings.
        cache: where clones of remote histories are.
    """
    if not configuration.history.add:
        return
    try:
        runs = extract(outcome_of(read_journal(run_dir / JOURNAL)))
        open_history(history_of(configuration), configuration, cache).add(dict(map(history_file, runs)))
    except GauntletError as error:
        messages.warn(f"the run was not added to the history (`gauntlet history.add {run_dir}` does it): {error}")
