"""Folders of runs and other experiments (new, named, newest or resumed), and the contents of earlier ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.errors import UsageError
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import list_first, pluralize
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.journal_format import JOURNAL, explain_earlier, read_journal, read_kind
from iree_gauntlet.settings import find_project_folder, find_runs_folder, format_path, resolve_links
from iree_gauntlet.steps import ACTUAL_OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.journal_events import ResumeOptions, ToolchainInfo
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.requests import FolderRequest
    from iree_gauntlet.steps import Step


# The word that stands for the newest run.
LATEST = "latest"
_MAX_HINTED_RUNS = 5
# Development versions of 0.1.0 had these journals for experiments other than runs.
_EARLIER_RECORDS = ("comparison.jsonl", "matrix.jsonl", "bisect.jsonl", "explain.jsonl")
_BENCH_HINT = "A `bench` is not resumed: start it again; finished work comes from the cache."


def require_valid_path(folder: Path, option: str) -> None:
    """Raise UsageError for a path that IREE's tools misread.

    iree-run-module reads '@' in `--module=path@entry`, and iree-compile replaces '%' in the name of an archive.
    """
    if set(str(folder)) & set("@%"):
        raise UsageError(
            f"{folder}: IREE's tools misread a path with '@' or '%'", f"Name one without them with {option}."
        )


def find_requested_folder(kind: ExperimentKind, request: FolderRequest) -> tuple[Path | None, bool]:
    """Find the requested folder (None: a new one must be made), and whether the experiment in it is resumed.

    Raises:
        UsageError: there is nothing to resume, or the folder has other content.
    """
    path = resolve_links(Path(request.run_dir)) if request.run_dir else None
    require_valid_path(path or find_runs_folder(), "--run-dir")
    if request.resume:
        folder = path or find_newest(kind)
        require_current_record(folder)
        if not (folder / JOURNAL).is_file():
            raise UsageError(
                f"{format_path(folder)} holds nothing that `{kind}` could resume", "Name another --run-dir."
            )
        existing_kind = read_kind(folder / JOURNAL)
        if existing_kind not in (kind, None):
            raise UsageError(
                f"{format_path(folder)} is {existing_kind.description}, which `{kind}` cannot resume",
                _describe_resuming(existing_kind, folder),
            )
        return folder, True
    if path is not None and path.is_file():
        raise UsageError(f"{path} is a file", "Give a folder as --run-dir.")
    project = find_project_folder()
    if path is not None and (path == project or {project / "specs", project / "suites"} & {path, *path.parents}):
        raise UsageError(f"{path} belongs to the project itself", "Give another --run-dir, such as runs/mine.")
    if path is not None and any((path / name).exists() for name in (JOURNAL, *_EARLIER_RECORDS)):
        raise UsageError(f"{path} already holds a run", "Give another --run-dir, or --resume to continue it.")
    return path, False


def _describe_resuming(kind: ExperimentKind, folder: Path) -> str:
    """Describe the command that continues an experiment, as a hint."""
    if kind is ExperimentKind.BENCH:
        return _BENCH_HINT
    command = f"explain {folder.parent}" if kind is ExperimentKind.EXPLAIN else f"{kind} --resume --run-dir {folder}"
    return f"`gauntlet {command}` continues it."


def require_current_record(folder: Path) -> None:
    """Raise GauntletError if a folder has a record of an earlier version in place of a journal."""
    for name in () if (folder / JOURNAL).is_file() else _EARLIER_RECORDS:
        if (folder / name).is_file():
            raise explain_earlier(folder / name)


def make_folder(run_dir: Path | None, name: str) -> Path:
    """Make the requested folder; if none is requested, make `runs/<time>-<name>`."""
    if run_dir is None:
        return make_run_folder(find_runs_folder(), name, "--run-dir")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain_cannot_be_made(run_dir, error, "--run-dir") from error
    return run_dir


def make_run_folder(parent: Path, name: str, option: str) -> Path:
    """Make `<parent>/<time>-<name>`, with a number appended if that exists; `option` could set another `parent`."""
    folder = base_folder = parent / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}"
    number = 2
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            folder, number = base_folder.with_name(f"{base_folder.name}-{number}"), number + 1
        except OSError as error:
            raise _explain_cannot_be_made(folder, error, option) from error
        else:
            return folder


def _explain_cannot_be_made(folder: Path, error: OSError, option: str) -> UsageError:
    return UsageError(f"{folder}: cannot be made: {error.strerror}", f"Name another folder with {option}.")


def find_free_folder(base_folder: Path) -> Path:
    """Find a folder name that does not exist yet, because the folder of an interrupted attempt is kept."""
    folder, count = base_folder, 2
    while folder.exists():
        folder, count = base_folder.with_name(f"{base_folder.name}.{count}"), count + 1
    return folder


def list_folders(folder: Path, *kinds: ExperimentKind | None) -> Iterator[Path]:
    """List the experiments in a folder, last written first; of `kinds` (None: an unknown kind), or of all kinds."""
    journals = sorted(folder.glob(f"*/{JOURNAL}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    return (path.parent for path in journals if not kinds or read_kind(path) in kinds)


def find_newest(kind: ExperimentKind) -> Path:
    """Find the last written experiment of a kind; UsageError if there is none."""
    newest = next(list_folders(find_runs_folder(), kind), None)
    if newest is None:
        raise UsageError(f"no earlier `{kind}` in {find_runs_folder()}", "Start one, or name its --run-dir.")
    return newest


def keep_if_resumable(folder: Path) -> bool:
    """Return True if a folder has a run's journal with an opening, so that the run can be resumed.

    A journal without an opening (the writer was killed before it) is removed, because there is nothing to resume.
    """
    journal = folder / JOURNAL
    if not journal.is_file():
        return False
    if read_journal(journal).runs:
        return True
    journal.unlink()
    return False


def find_newest_run(folder: Path) -> Path:
    """Find the last written run of spec files; UsageError if there is none."""
    newest = next(list_runs_of_specs(folder), None)
    if newest is None:
        other = next(list_folders(folder), None)
        if other is not None:
            runs = [str(format_path(other / name)) for name in list_inner_runs(other)]
            hint = f"{other.name} has runs, which can be named: {list_first(runs, _MAX_HINTED_RUNS)}."
            raise UsageError(f"no run of spec files in {folder}", hint if runs else _BENCH_HINT)
        raise UsageError(f"no run in {folder}", "Start one with `run`, or name the folder of one.")
    return newest


def find_named_run(text: str, option: str) -> Path:
    """Find a run's folder by path, name in runs/, or `latest`; UsageError about `option` if there is none."""
    if text == LATEST:
        return find_newest_run(find_runs_folder())
    for folder in (Path(text), find_runs_folder() / text):
        if (folder / JOURNAL).is_file() and ((kind := read_kind(folder / JOURNAL)) is None or kind.is_run):
            return folder
    for folder in (Path(text), find_runs_folder() / text):
        if folder.is_dir():
            require_current_record(folder)
            raise _explain_no_run(option, text, folder)
    raise UsageError(
        f"{option} {text}: no such run",
        f"Runs are folders with a journal, such as those below {format_path(find_runs_folder())}/.",
    )


def _explain_no_run(option: str, text: str, folder: Path) -> UsageError:
    """Make the error for a folder that is not a run; it lists the runs inside a matrix, comparison or bisection."""
    kind, runs = read_kind(folder / JOURNAL), list_inner_runs(folder)
    reason = f"it is {kind.description}, not a run" if kind else f"the folder has no {JOURNAL}, so it is not a run"
    message = f"{option} {text}: {reason}"
    if not runs:
        return UsageError(message, f"Name the folder of a run, such as those below {format_path(find_runs_folder())}/.")
    hint = f"Name one of them: {list_first([str(Path(text, name)) for name in runs], _MAX_HINTED_RUNS)}."
    if option == "explain" and kind is ExperimentKind.COMPARE:
        hint = f"`gauntlet explain --slower {text}` explains what is slower there."
    return UsageError(f"{message}; it has {pluralize(len(runs), 'run')}", hint)


def find_named_comparison(text: str) -> Path:
    """Find a comparison's folder by path, name in runs/, or `latest`; UsageError if there is none."""
    if text == LATEST:
        return find_newest(ExperimentKind.COMPARE)
    message, hint = ("no such comparison", f"`gauntlet compare` makes them, below {format_path(find_runs_folder())}/.")
    for folder in (Path(text), find_runs_folder() / text):
        kind = read_kind(folder / JOURNAL)
        if kind is ExperimentKind.COMPARE:
            return folder
        if kind is not None:
            message, hint = (
                f"it is {kind.description}, not a comparison",
                f"`gauntlet explain {text}` explains failures.",
            )
            break
        require_current_record(folder)
    raise UsageError(f"explain --slower {text}: {message}", hint)


def list_inner_runs(folder: Path) -> list[str]:
    """List the names of the runs inside the folder of a matrix, a comparison or a bisection."""
    return sorted(path.name for path in list_folders(folder, ExperimentKind.RUN, None))


def list_newer_folders(run_dir: Path) -> list[Path]:
    """List the folders of the project's experiments that are newer than a run, the newest first."""
    time_ns = (run_dir / JOURNAL).stat().st_mtime_ns
    return [folder for folder in list_folders(find_runs_folder()) if (folder / JOURNAL).stat().st_mtime_ns > time_ns]


def list_runs_of_specs(folder: Path) -> Iterator[Path]:
    """List the runs of spec files, last written first; journals of unknown kind are included, as they may be runs."""
    return list_folders(folder, ExperimentKind.RUN, None)


def read_run_options(run_dir: Path) -> ResumeOptions:
    """Read a run's options; UsageError if there is no run, or if the journal lacks options."""
    kind = read_kind(run_dir / JOURNAL)
    if kind not in (ExperimentKind.RUN, None):
        raise UsageError(f"{run_dir} is {kind.description}, not a run of spec files", _describe_resuming(kind, run_dir))
    require_current_record(run_dir)
    if not (run_dir / JOURNAL).is_file():
        raise UsageError(f"no run in {run_dir}", "Name the folder of a run, such as those in runs/.")
    options = read_journal(run_dir / JOURNAL).run.kept
    if options is None:
        raise UsageError(f"{run_dir} does not record its selection", "Start a new run.")
    return options


def find_failed_chains(run_dir: Path) -> set[str]:
    """Return the chains of a run in which a step failed, ended in an error, or never finished."""
    record = read_journal(run_dir / JOURNAL)
    return {
        step.chain for step in record.planned if step.id not in record.results or record.results[step.id].verdict.is_bad
    }


def find_finished_verdicts(record: JournalRecord, steps: Sequence[Step], iree: ToolchainInfo) -> dict[str, Verdict]:
    """Return the verdicts of finished steps of a run to be continued, without steps that must be repeated.

    A step is repeated if its plan has changed, or if a file that it made is missing.

    Raises:
        UsageError: the run was made with another IREE.
    """
    if not record.runs:
        return {}
    previous_toolchain = record.run.toolchain
    mismatch = f"IREE ({previous_toolchain.compiler or 'none'})" if previous_toolchain.identity != iree.identity else ""
    if previous_toolchain.runtime_identity != iree.runtime_identity:
        mismatch = mismatch or f"runtime ({previous_toolchain.runtime})"
    if mismatch:
        raise UsageError(
            f"{record.path.parent} was run with another {mismatch}", "Start a new run: a run judges a single IREE."
        )
    previous_steps = {step.id: step for step in record.planned}
    verdicts: dict[str, Verdict] = {}
    for step in steps:
        result = record.results.get(step.id)
        if result is None or step.id not in previous_steps or not result.verdict.is_kept_on_resume:
            continue
        # Without the packages of the extra `code`, a compile has no figures of the code, and no file with them.
        has_code = Figure.CODE_SIZE.row.statistic in result.statistics
        files = [path for role, path in step.outputs if role != ACTUAL_OUTPUT and (has_code or role != "code")]
        if step.stage.row.fetches:
            files += [source.path for source in step.inputs]
        has_files = not result.settled_verdict.counts_as_pass or all(Path(path).is_file() for path in files)
        if has_files and _pick_essence(previous_steps[step.id]) == _pick_essence(step):
            verdicts[step.id] = result.settled_verdict
    return verdicts


def _pick_essence(step: Step) -> tuple[object, ...]:
    """Return a planned step's command, goldens, expectations and cache: if these are equal, the step is unchanged."""
    return (
        step.command.words if step.command else (),
        tuple(replace(golden, origin=Origin("")) for golden in step.goldens),
        *(step.expect_failure, step.expect_kinds, step.expect_match, step.allclose),
        step.quarantine and step.quarantine.until,
        {name: value for name, value in step.cache.ingredients if name != "program"},
    )
