"""What earlier runs say: which is the newest, what failed in it, and what a resumed run need not do again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Origin, Stage, Verdict
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.settings import find_runs_folder, shown
from iree_gauntlet.steps import ACTUAL_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.journal_events import Asked, ToolchainFacts
    from iree_gauntlet.steps import Step


# In place of a run's name.
LATEST = "latest"
_BENCH_AGAIN = "A `bench` is not resumed: start it again, and what is done comes from the cache."


def find_newest_run(folder: Path) -> Path:
    """The run of spec files that was written to last; benchmarks of Python models are not resumed.

    Raises:
        UsageError: there is none.
    """
    newest = next(runs_of_specs(folder), None)
    if newest is None:
        if any(folder.glob(f"*/{JOURNAL}")):
            raise UsageError(f"there is no run of spec files in {folder}", _BENCH_AGAIN)
        raise UsageError(f"there is no run in {folder}", "Start one with `run`, or name the folder of one.")
    return newest


def run_named(text: str, where: str) -> Path:
    """The folder of a run: a path, its name in runs/, or `latest`; `where` says for the message what named it.

    Raises:
        UsageError: there is none.
    """
    if text == LATEST:
        return find_newest_run(find_runs_folder())
    for folder in (Path(text), find_runs_folder() / text):
        if (folder / JOURNAL).is_file():
            return folder
    raise UsageError(
        f"{where} {text}: there is no such run",
        f"Runs are folders with a journal, such as those below {shown(find_runs_folder())}/.",
    )


def runs_of_specs(folder: Path) -> Iterator[Path]:
    """The runs of spec files, that which was written to last first."""
    journals = sorted(folder.glob(f"*/{JOURNAL}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return (path.parent for path in journals if _is_of_specs(path))


def _is_of_specs(journal: Path) -> bool:
    try:
        return read_journal(journal).run.of_specs
    except GauntletError:
        # Whoever wants the newest run is to hear that it cannot be read.
        return True


def asked_for(run_dir: Path) -> Asked:
    """What a run was asked for.

    Raises:
        UsageError: its journal does not say.
        GauntletError: it has no journal that can be read.
    """
    if not (run_dir / JOURNAL).is_file():
        raise UsageError(f"there is no run in {run_dir}", "Name the folder of a run, such as those in runs/.")
    run = read_journal(run_dir / JOURNAL).run
    if run.bench is not None:
        raise UsageError(f"{run_dir} is a benchmark of a Python model", _BENCH_AGAIN)
    if run.micro is not None:
        raise UsageError(f"{run_dir} is a run of `micro`", "Continue it with `micro --resume`.")
    if run.asked is None:
        raise UsageError(f"{run_dir} does not say what was selected", "Start a new run.")
    return run.asked


def find_failed_chains(run_dir: Path) -> set[str]:
    """Chains of a run in which something failed, ended in an error, or never finished."""
    record = read_journal(run_dir / JOURNAL)
    return {
        step.chain for step in record.planned if step.id not in record.results or record.results[step.id].verdict.is_bad
    }


def begun_with(run_dir: Path) -> frozenset[str] | None:
    """Ids of the steps that a run was restricted to when it began (`--last-failed`); None for all of its selection."""
    record = read_journal(run_dir / JOURNAL)
    return frozenset(step.id for step in record.planned) if record.run.last_failed else None


def read_finished_verdicts(run_dir: Path, steps: Sequence[Step], iree: ToolchainFacts) -> dict[str, Verdict]:
    """Verdicts of the steps that a run to be continued has done, as they are planned now.

    A step is done again where its plan has changed, or a file that it made is gone.

    Raises:
        UsageError: the run was made by another IREE.
    """
    record = read_journal(run_dir / JOURNAL)
    if not record.runs:
        return {}
    before = record.run.toolchain
    other = f"IREE ({before.compiler or 'none'})" if before.identity != iree.identity else ""
    # Journals of earlier versions do not say which runtime it was.
    if before.runtime_identity and before.runtime_identity != iree.runtime_identity:
        other = other or f"runtime ({before.runtime})"
    if other:
        raise UsageError(f"{run_dir} was run with another {other}", "Start a new run: one run judges one IREE.")
    planned = {step.id: step for step in record.planned}
    finished: dict[str, Verdict] = {}
    for step in steps:
        result = record.results.get(step.id)
        if result is None or step.id not in planned or not result.verdict.stands:
            continue
        files = [path for role, path in step.outputs if role != ACTUAL_OUTPUT]
        if step.stage is Stage.FETCH:
            files += [item.path for item in step.inputs]
        made = result.verdict is not Verdict.PASSED or all(Path(path).is_file() for path in files)
        if made and _pick_essence(planned[step.id]) == _pick_essence(step):
            finished[step.id] = result.verdict
    return finished


def _pick_essence(step: Step) -> tuple[object, ...]:
    """What makes a planned step the same one: command, goldens, what is expected and how, and what is made of what."""
    return (
        step.command.argv if step.command else (),
        tuple(replace(golden, origin=Origin("")) for golden in step.goldens),
        *(step.expect_failure, step.expect_kinds, step.expect_match, step.allclose),
        {name: value for name, value in step.cache.ingredients if name != "program"},
    )
