"""The reports that tests compare with, of a run with every verdict; `python -m` writes them again."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from iree_gauntlet.reports.experiment_reports import write_reports
from tests.support.journal_builder import RUN, every_verdict
from tests.support.places import DATA

FOLDER = DATA / "report"


def reference_reports() -> dict[str, str]:
    """What is written now, by the names of the files."""
    with TemporaryDirectory() as folder:
        run = every_verdict().write(Path(folder) / RUN)
        write_reports(run)
        return {name: (run / name).read_text(encoding="utf-8") for name in ("junit.xml", "summary.md")}


if __name__ == "__main__":
    for name, text in reference_reports().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
