"""The expected reports of a run with every verdict; `python -m` writes them anew."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from iree_gauntlet.reports.experiment_reports import write_reports
from tests.support.journal_builder import RUN_NAME, make_every_verdict
from tests.support.places import DATA

FOLDER = DATA / "report"


def make_reference_reports() -> dict[str, str]:
    """Return the reports as the code writes them now, by file name."""
    with TemporaryDirectory() as folder:
        run_folder = make_every_verdict().write(Path(folder) / RUN_NAME)
        write_reports(run_folder)
        return {name: (run_folder / name).read_text(encoding="utf-8") for name in ("junit.xml", "summary.md")}


if __name__ == "__main__":
    for name, text in make_reference_reports().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
