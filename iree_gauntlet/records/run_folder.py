"""Folders of runs and sessions: new, named, the newest or resumed; and what those say that were run before."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.errors import UsageError
from iree_gauntlet.formatting import counted, listed
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.journal_format import JOURNAL, explain_earlier, read_journal, read_kind
from iree_gauntlet.settings import find_project_folder, find_runs_folder, resolve_links, shown
from iree_gauntlet.steps import ACTUAL_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.journal_events import KeptOptions, ToolchainFacts
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.requests import FolderRequest
    from iree_gauntlet.steps import Step


# In place of a run's name.
LATEST = "latest"
# Names of runs in a hint.
_MOST = 5
# What version 0.1.0 recorded of others than runs before all had one journal.
_EARLIER_RECORDS = ("comparison.jsonl", "matrix.jsonl", "bisect.jsonl", "explain.jsonl")
_BENCH_AGAIN = "A `bench` is not resumed: start it again, and what is done comes from the cache."


def require_plain(folder: Path, option: str) -> None:
    """Refuses (UsageError) a path that IREE's tools misread.

    iree-run-module reads `--module=path@entry`, and iree-compile fills in a '%' of an archive that it writes.
    """
    if set(str(folder)) & set("@%"):
        raise UsageError(
            f"{folder}: IREE's tools misread a path with '@' or '%'", f"Name one without them with {option}."
        )


def find_asked_folder(kind: ExperimentKind, request: FolderRequest) -> tuple[Path | None, bool]:
    """The folder that is asked for, and whether what is in it is resumed; None for a new one, which is not made yet.

    Raises:
        UsageError: there is none to resume, or the folder holds something else.
    """
    named = resolve_links(Path(request.run_dir)) if request.run_dir else None
    require_plain(named or find_runs_folder(), "--run-dir")
    if request.resume:
        folder = named or find_newest(kind)
        require_none_earlier(folder)
        if not (folder / JOURNAL).is_file():
            raise UsageError(f"{shown(folder)} holds nothing that `{kind}` could resume", "Name another --run-dir.")
        other = read_kind(folder / JOURNAL)
        if other not in (kind, None):
            raise UsageError(
                f"{shown(folder)} is {other.description}, which `{kind}` cannot resume",
                _describe_resuming(other, folder),
            )
        return folder, True
    if named is not None and named.is_file():
        raise UsageError(f"{named} is a file", "Give a folder as --run-dir.")
    project = find_project_folder()
    if named is not None and (named == project or {project / "specs", project / "suites"} & {named, *named.parents}):
        raise UsageError(f"{named} belongs to the project itself", "Give another --run-dir, such as runs/mine.")
    if named is not None and any((named / name).exists() for name in (JOURNAL, *_EARLIER_RECORDS)):
        raise UsageError(f"{named} already holds a run", "Give another --run-dir, or --resume to continue it.")
    return named, False


def _describe_resuming(kind: ExperimentKind, folder: Path) -> str:
    """How an experiment is continued, as a hint."""
    if kind is ExperimentKind.BENCH:
        return _BENCH_AGAIN
    command = f"explain {folder.parent}" if kind is ExperimentKind.EXPLAIN else f"{kind} --resume --run-dir {folder}"
    return f"`gauntlet {command}` continues it."


def require_none_earlier(folder: Path) -> None:
    """Make sure that a folder holds no record of an earlier version in place of a journal."""
    for name in () if (folder / JOURNAL).is_file() else _EARLIER_RECORDS:
        if (folder / name).is_file():
            raise explain_earlier(folder / name)


def make_folder(named: Path | None, name: str) -> Path:
    """Makes the folder that was named, else `runs/<time>-<name>`."""
    if named is None:
        return make_run_folder(find_runs_folder(), name, "--run-dir")
    try:
        named.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain_cannot_be_made(named, error, "--run-dir") from error
    return named


def make_run_folder(parent: Path, name: str, option: str) -> Path:
    """Makes `<parent>/<time>-<name>`, with a number behind it where there is one; `option` names another `parent`."""
    folder = wanted = parent / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}"
    number = 2
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            folder, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
        except OSError as error:
            raise _explain_cannot_be_made(folder, error, option) from error
        else:
            return folder


def _explain_cannot_be_made(folder: Path, error: OSError, option: str) -> UsageError:
    return UsageError(f"{folder}: cannot be made: {error.strerror}", f"Give another place with {option}.")


def free_folder(wanted: Path) -> Path:
    """A folder that is not there: that of an attempt that was cut short is kept."""
    folder, count = wanted, 2
    while folder.exists():
        folder, count = wanted.with_name(f"{wanted.name}.{count}"), count + 1
    return folder


def list_folders(folder: Path, *kinds: ExperimentKind | None) -> Iterator[Path]:
    """The experiments in a folder, the last written to first; of some kinds, None for what does not say, or of all."""
    journals = sorted(folder.glob(f"*/{JOURNAL}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return (path.parent for path in journals if not kinds or read_kind(path) in kinds)


def find_newest(kind: ExperimentKind) -> Path:
    """The experiment of a kind that was written to last; UsageError where there is none."""
    newest = next(list_folders(find_runs_folder(), kind), None)
    if newest is None:
        raise UsageError(f"there is no earlier `{kind}` in {find_runs_folder()}", "Start one, or name its --run-dir.")
    return newest


def keep_if_begun(folder: Path) -> bool:
    """Keeps the journal of a run that was begun; whether there is one, so that it can be resumed.

    One whose writer was killed before it had said what it is about is removed: there is nothing to resume.
    """
    journal = folder / JOURNAL
    if not journal.is_file():
        return False
    if read_journal(journal).runs:
        return True
    journal.unlink()
    return False


def find_newest_run(folder: Path) -> Path:
    """The run of spec files that was written to last; UsageError where there is none."""
    newest = next(list_runs_of_specs(folder), None)
    if newest is None:
        if any(folder.glob(f"*/{JOURNAL}")):
            raise UsageError(f"there is no run of spec files in {folder}", _BENCH_AGAIN)
        raise UsageError(f"there is no run in {folder}", "Start one with `run`, or name the folder of one.")
    return newest


def run_named(text: str, where: str) -> Path:
    """The folder of a run: a path, its name in runs/, or `latest`; UsageError, about `where`, if there is none."""
    if text == LATEST:
        return find_newest_run(find_runs_folder())
    for folder in (Path(text), find_runs_folder() / text):
        if (folder / JOURNAL).is_file() and ((kind := read_kind(folder / JOURNAL)) is None or kind.is_run):
            return folder
    for folder in (Path(text), find_runs_folder() / text):
        if folder.is_dir():
            require_none_earlier(folder)
            raise _explain_no_run(where, text, folder)
    raise UsageError(
        f"{where} {text}: there is no such run",
        f"Runs are folders with a journal, such as those below {shown(find_runs_folder())}/.",
    )


def _explain_no_run(where: str, text: str, folder: Path) -> UsageError:
    """Why a folder that is there is no run, with the runs in it: of a matrix, a comparison or a bisection."""
    kind, runs = read_kind(folder / JOURNAL), list_runs_within(folder)
    why = f"it is {kind.description}, and no run" if kind else f"the folder has no {JOURNAL}, so it is no run"
    what = f"{where} {text}: {why}"
    if not runs:
        return UsageError(what, f"Name the folder of a run, such as those below {shown(find_runs_folder())}/.")
    hint = f"Name one of them: {listed([str(Path(text, name)) for name in runs], _MOST)}."
    if where == "explain" and kind is ExperimentKind.COMPARE:
        hint = f"`gauntlet explain --slower {text}` explains what is slower there."
    return UsageError(f"{what}; it has {counted(len(runs), 'run')}", hint)


def comparison_named(text: str) -> Path:
    """The folder of a comparison: a path, its name in runs/, or `latest`; UsageError where there is none."""
    if text == LATEST:
        return find_newest(ExperimentKind.COMPARE)
    what, hint = "there is no such comparison", f"`gauntlet compare` makes them, below {shown(find_runs_folder())}/."
    for folder in (Path(text), find_runs_folder() / text):
        kind = read_kind(folder / JOURNAL)
        if kind is ExperimentKind.COMPARE:
            return folder
        if kind is not None:
            what, hint = f"it is {kind.description}, and no comparison", f"`gauntlet explain {text}` explains failures."
            break
        require_none_earlier(folder)
    raise UsageError(f"explain --slower {text}: {what}", hint)


def list_runs_within(folder: Path) -> list[str]:
    """Names of the runs that are parts of what a folder has: of a matrix, a comparison or a bisection."""
    return sorted(path.name for path in list_folders(folder, ExperimentKind.RUN, None))


def list_newer(run_dir: Path) -> list[Path]:
    """Folders of the project's experiments that were written to after a run, the newest first."""
    since = (run_dir / JOURNAL).stat().st_mtime_ns
    return [folder for folder in list_folders(find_runs_folder()) if (folder / JOURNAL).stat().st_mtime_ns > since]


def list_runs_of_specs(folder: Path) -> Iterator[Path]:
    """The runs of spec files, that which was written to last first; what does not say what it is may be one."""
    return list_folders(folder, ExperimentKind.RUN, None)


def read_kept_options(run_dir: Path) -> KeptOptions:
    """What a run was asked for; UsageError where there is none, or its journal does not say."""
    kind = read_kind(run_dir / JOURNAL)
    if kind not in (ExperimentKind.RUN, None):
        raise UsageError(
            f"{run_dir} is {kind.description}, and no run of spec files", _describe_resuming(kind, run_dir)
        )
    require_none_earlier(run_dir)
    if not (run_dir / JOURNAL).is_file():
        raise UsageError(f"there is no run in {run_dir}", "Name the folder of a run, such as those in runs/.")
    kept = read_journal(run_dir / JOURNAL).run.kept
    if kept is None:
        raise UsageError(f"{run_dir} does not say what was selected", "Start a new run.")
    return kept


def find_failed_chains(run_dir: Path) -> set[str]:
    """Chains of a run in which something failed, ended in an error, or never finished."""
    record = read_journal(run_dir / JOURNAL)
    return {
        step.chain for step in record.planned if step.id not in record.results or record.results[step.id].verdict.is_bad
    }


def find_finished_verdicts(record: JournalRecord, steps: Sequence[Step], iree: ToolchainFacts) -> dict[str, Verdict]:
    """Verdicts of the steps that a run to be continued has done, as they are planned now.

    A step is done again where its plan has changed, or a file that it made is gone.

    Raises:
        UsageError: the run was made by another IREE.
    """
    if not record.runs:
        return {}
    before = record.run.toolchain
    other = f"IREE ({before.compiler or 'none'})" if before.identity != iree.identity else ""
    if before.runtime_identity != iree.runtime_identity:
        other = other or f"runtime ({before.runtime})"
    if other:
        raise UsageError(
            f"{record.path.parent} was run with another {other}", "Start a new run: one run judges one IREE."
        )
    planned = {step.id: step for step in record.planned}
    finished: dict[str, Verdict] = {}
    for step in steps:
        result = record.results.get(step.id)
        if result is None or step.id not in planned or not result.verdict.stands:
            continue
        files = [path for role, path in step.outputs if role != ACTUAL_OUTPUT]
        if step.stage.row.fetches:
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
