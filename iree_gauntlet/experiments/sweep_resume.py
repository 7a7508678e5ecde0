"""`micro --resume`: what an earlier run was asked for, and which of its points are done."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.option import read
from iree_gauntlet.requests import MicroRequest, ToolchainRequest, given, require_as_begun
from iree_gauntlet.settings import runs_folder
from iree_gauntlet.steps import step_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.torch_models.configuration import MicroConfig


# A point that came to one of these is done. After an error, or on a machine that was too busy, it is tried again.
_STANDING = (Verdict.PASSED, Verdict.FAILED, Verdict.SKIPPED)


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run to resume.

    Attributes:
        folder: of the run.
        record: its journal.
    """

    folder: Path
    record: JournalRecord

    @property
    def asked(self) -> Mapping[str, Any]:
        """What it was asked for."""
        found: dict[str, Any] = self.record.runs[-1]["micro"]
        return found

    def continued(self, asked: MicroRequest, toolchain: ToolchainRequest) -> tuple[MicroRequest, ToolchainRequest]:
        """What this run was asked for, in place of what is not given now.

        Raises:
            UsageError: something else is asked for than before.
        """
        before = {**self.asked, **self.asked["iree"]}
        require_as_begun("run", self.folder.name, given((asked, toolchain)), before)
        asked = read(MicroRequest, {**asdict(asked), **before})
        return asked, read(ToolchainRequest, {**asdict(toolchain), **before})

    def require_same(self, config: MicroConfig) -> None:
        """Refuses a configuration that has changed since.

        Raises:
            UsageError: it has.
        """
        if hash_file(config.file) != self.asked["digest"]:
            raise UsageError(
                f"{config.file} is not what {self.folder.name} was started with",
                "Start a new run: what is done comes from the cache.",
            )

    def done(self, identity: str) -> dict[str, list[dict[str, Any]]]:
        """Steps of the points that are done, by the point's chain.

        Args:
            identity: of the toolchain now.

        Raises:
            UsageError: the run was made by another IREE.
        """
        before = self.record.runs[-1].get("toolchain", {})
        if before.get("identity", "") != identity:
            raise UsageError(
                f"{self.folder.name} was run with another IREE ({before.get('compiler', 'none')})",
                "Start a new run: one run measures one IREE.",
            )
        found: dict[str, list[dict[str, Any]]] = {}
        for step in self.record.steps:
            result = self.record.results.get(step_id(step["chain"], Stage.BENCHMARK))
            if result is not None and result.verdict in _STANDING:
                found.setdefault(step["chain"], []).append(step)
        return found


def earlier_micro(run_dir: str) -> Earlier:
    """The run of `--run-dir`, or the newest one of `micro`.

    Raises:
        UsageError: there is none, or what is named is none.
        GauntletError: its journal cannot be read.
    """
    if run_dir:
        named = Path(run_dir)
        folder = named if named.is_dir() else runs_folder() / named
        found = _read(folder)
        if found is None:
            raise UsageError(f"{folder} is no run of `micro`", "Name the folder of one, or leave --run-dir out.")
        return found
    journals = runs_folder().glob(f"*/{JOURNAL}")
    for journal in sorted(journals, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        found = _read(journal.parent)
        if found is not None:
            return found
    raise UsageError(f"there is no run of `micro` in {runs_folder()}", "Start one with --config.")


def _read(folder: Path) -> Earlier | None:
    try:
        record = read_journal(folder / JOURNAL)
    except GauntletError:
        # Another run's journal is nothing to resume, whatever is wrong with it.
        return None
    return Earlier(folder, record) if record.runs and "micro" in record.runs[-1] else None
