"""How commands show runs: progress while they run, reports when they are over."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.reports.output import Output, open_progress
from iree_gauntlet.settings import shown

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.errors import ExitCode
    from iree_gauntlet.reports.live.painter import Painter


class ConsolePresenter:
    """Shows runs on a stream; see `progress.Presenter`.

    Args:
        stream: where to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._output = Output(stream)

    def progress(self) -> Painter:
        """Live on a terminal, lines elsewhere."""
        return open_progress(self._output.stream)

    def line(self, text: str) -> None:
        """A line between runs."""
        self._output.write(f"{text}\n")

    def ran(self, folder: Path, *, brief: bool) -> ExitCode:
        """Writes the reports of what was recorded there, and shows its result."""
        reports = write_reports(folder)
        if brief:
            self.line(f"{reports.headline}; reports in {shown(folder)}")
        else:
            reports.print(shown(folder), self._output.stream, environ=os.environ)
        if self._output.lost:
            lost = f"standard output: {self._output.lost}; the run went on, see {shown(folder)}"
            sys.stderr.write(f"warning: {lost}\n")
        # Last, so that a summary file that cannot be written hides no verdict.
        if not brief:
            reports.append_to_step_summary(os.environ)
        return reports.exit_code

    def to(self, stream: TextIO) -> ConsolePresenter:
        """The same on another stream."""
        return ConsolePresenter(stream)
