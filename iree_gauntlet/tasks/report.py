"""Make the reports of an experiment again, from its records only, or from a journal merged from several journals."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import messages
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.formatting import list_first, pluralize
from iree_gauntlet.journal_events import ExperimentKind, MachineInfo, ToolchainInfo
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.records.event_log import merge_journals
from iree_gauntlet.records.run_folder import LATEST, list_folders, require_current_record
from iree_gauntlet.reports.experiment_reports import make_reports, write_reports
from iree_gauntlet.reports.runs_index import write_index
from iree_gauntlet.settings import find_runs_folder, format_path, format_typed_command, resolve_links
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.reports.sweep_reports import write_micro_reports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.journal_events import RunOpening, RunShard


_MAX_LISTED = 5


def write_runs_page(folder_names: Sequence[str]) -> ExitCode:
    """Make the page of a folder of runs, by default of the project's runs."""
    if len(folder_names) > 1:
        raise UsageError(
            f"report --index takes one folder, not {shlex.join(folder_names)}", "Name the folder that has the runs."
        )
    folder = Path(folder_names[0]).absolute() if any(folder_names) else find_runs_folder()
    if not any(folder.glob(f"*/{JOURNAL}")):
        noun = "run in" if folder.is_dir() else "folder"
        raise UsageError(
            f"report --index: there is no {noun} {format_path(folder)}", "Name the folder that has the runs."
        )
    page, count = write_index(folder, make_reports, all_of_them=True)
    sys.stdout.write(f"{pluralize(count, 'run')} in {format_path(page)}\n")
    return ExitCode.OK


def report(runs: Sequence[str], merge: str = "", *, lenient: bool = False) -> ExitCode:
    """Make the reports of a run, a comparison, a matrix or a bisection again; return its exit code.

    `runs` are folders or names, by default the working folder. Several runs are merged into the folder `merge`;
    `lenient` also allows runs with different IREEs.

    Raises:
        UsageError: there is no such run, or the runs cannot be merged.
        GauntletError: a run's record cannot be read.
    """
    if merge:
        folder = Path(merge)
        _merge_runs(list(map(_locate_folder, runs)), folder, lenient=lenient)
    elif len(runs) > 1:
        raise UsageError(f"report makes the reports of one run, not of {len(runs)}", "--merge DIR makes them one run.")
    else:
        folder = _locate_folder("".join(runs))
    reports = write_reports(folder)
    reports.print(format_path(folder), sys.stdout, environ=os.environ)
    if merge:
        # Append only a merged result: in CI, each part's result is in the summary of the part's own job.
        reports.append_to_step_summary(os.environ)
    if reports.sweep:
        write_micro_reports(reports.sweep, folder, sys.stdout)
    return reports.exit_code


def _locate_folder(folder_name: str) -> Path:
    if folder_name == LATEST:
        newest = next(list_folders(find_runs_folder()), None)
        if newest is None:
            raise UsageError(f"no run in {find_runs_folder()}", "Start one with `run`, or name its folder.")
        return newest
    folder = Path(folder_name)
    if not folder.is_dir() and (find_runs_folder() / folder_name).is_dir():
        folder = find_runs_folder() / folder_name
    if not folder.is_dir():
        runs = [path for path in find_runs_folder().glob("*") if path.is_dir()]
        runs.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        names = ", ".join(path.name for path in runs[:5]) or "none"
        raise UsageError(f"there is no run {folder}", f"Newest runs: {names}.")
    require_current_record(folder)
    if not (folder / JOURNAL).is_file():
        hint = "--index makes the page of a folder of runs." if any(folder.glob(f"*/{JOURNAL}")) else "Name a run."
        raise UsageError(f"{folder} is not a run: it has no {JOURNAL}", hint)
    return folder


def _merge_runs(folders: Sequence[Path], into: Path, *, lenient: bool) -> None:
    """Make a run's folder from the journals of several runs, with the logs that these journals name."""
    real_paths = [resolve_links(folder) for folder in folders]
    for index, folder in enumerate(folders):
        if real_paths[index] in real_paths[:index]:
            raise UsageError(f"{folder} is given twice", "Name each run once.")
    if (into / JOURNAL).exists():
        raise UsageError(f"--merge {into} already contains a run", "Give another folder.")
    records = [read_journal(folder / JOURNAL) for folder in folders]
    opening = _merge_openings(records, resolve_links(into).name, lenient=lenient)
    journal = merge_journals(opening, _collect_steps(records), records)
    try:
        into.mkdir(parents=True, exist_ok=True)
        for record in records:
            _link_logs(record, into)
        # Write the journal last: a folder with a journal is then complete.
        write_atomic(into / JOURNAL, journal)
    except OSError as error:
        raise GauntletError(
            f"--merge {into}: cannot be written: {error.strerror}", "Make room there, or give another folder."
        ) from error
    for remark in opening.remarks:
        messages.note(remark)
    messages.report_progress(f"merged into {format_path(resolve_links(into))}")


def _link_logs(record: JournalRecord, into: Path) -> None:
    """Link the logs that a journal names into the new folder, under the same names."""
    source = resolve_links(record.path.parent)
    attempts = (attempt for result in record.results.values() for attempt in (result, *result.attempts))
    for log in dict.fromkeys(attempt.log for attempt in attempts):
        path = resolve_links(source / log)
        if not log or not path.is_relative_to(source) or not path.is_file():
            continue
        target = into / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except FileExistsError:
            continue
        except OSError:  # another file system, or a file system without links
            shutil.copyfile(path, target)


def _merge_openings(records: Sequence[JournalRecord], name: str, *, lenient: bool) -> RunOpening:
    """Return the opening of one run that covers several runs, with remarks for the reader.

    Raises:
        UsageError: the runs are not parts of one run, because their suites, IREEs or shards do not fit together.
    """
    _require_one_suite(records)
    runs = [record.run for record in records]
    remarks = [f"merged from {pluralize(len(runs), 'run')}: {list_first([run.name for run in runs], _MAX_LISTED)}"]
    remarks += _list_toolchains(records, lenient=lenient)
    missing, count = _find_missing_shards(records)
    if missing:
        words = f"shard{'s' if len(missing) > 1 else ''} {list_first(list(map(str, missing)), _MAX_LISTED)} of {count}"
        remarks.append(f"{words} {'are' if len(missing) > 1 else 'is'} missing: this run is incomplete")
    kept = runs[0].kept
    if kept is not None:
        # Drop the shard's options, because the merged run has all shards (for `--last-failed`).
        kept = replace(kept, options={**kept.options, "shard": "", "shard_costs": ""})
    return replace(
        runs[0],
        time=min(record.runs[0].time for record in records),
        name=name,
        command=shlex.join(format_typed_command()),
        cwd=str(Path.cwd()),
        target=tuple(dict.fromkeys(target for run in runs for target in run.target)),
        toolchain=ToolchainInfo.from_dict(_merge_info([run.toolchain.as_dict() for run in runs])),
        machine=MachineInfo.from_dict(_merge_info([run.machine.as_dict() for run in runs])),
        lock_folder=", ".join(dict.fromkeys(run.lock_folder for run in runs if run.lock_folder)),
        resumed=False,
        again=(),
        kept=kept,
        shard=None,
        merged=tuple(map(_describe_part, records)),
        missing_shards=missing,
        flaky_passes=all(run.flaky_passes for run in runs),
        golden_skus=tuple(sorted({sku for run in runs for sku in run.golden_skus})),
        remarks=tuple(remarks),
    )


def _require_one_suite(records: Sequence[JournalRecord]) -> None:
    for record in records:
        folder = record.path.parent
        if not record.runs:
            raise UsageError(f"{folder}: its journal does not list what was to run", "Leave it out.")
        if record.run.kind is not ExperimentKind.RUN:
            raise UsageError(f"{folder} is not a run of spec files", "Only such runs have shards that can be merged.")
    first, suite = records[0].path.parent, records[0].run.suite
    for record in records:
        if record.run.suite != suite:
            raise UsageError(
                f"{first} is a run of the suite {suite!r}, {record.path.parent} one of {record.run.suite!r}",
                "Merge runs of one suite.",
            )


def _list_toolchains(records: Sequence[JournalRecord], *, lenient: bool) -> list[str]:
    tools = [record.run.toolchain for record in records]
    versions = [f"{tool.compiler or 'none'} ({tool.identity[:12]})" for tool in tools]
    for record, tool, version in zip(records, tools, versions, strict=True):
        if tool.identity != tools[0].identity and not lenient:
            raise UsageError(
                f"{records[0].path.parent} was run with IREE {versions[0]}, {record.path.parent} with {version}",
                "One run judges one IREE; --lenient merges them anyway.",
            )
    count = len({tool.identity for tool in tools})
    version_list = list_first(list(dict.fromkeys(versions)), _MAX_LISTED)
    return [f"the runs are of {count} different IREEs: {version_list}"] if count > 1 else []


def _find_missing_shards(records: Sequence[JournalRecord]) -> tuple[tuple[int, ...], int]:
    """Return the shards without a run, and the number of all shards; (), 0 if the runs are not shards."""
    first: tuple[RunShard, JournalRecord] | None = None
    record_by_index: dict[int, JournalRecord] = {}
    for record in records:
        part = record.run.shard
        if part is None:
            continue
        shard, one = first = first or (part, record)
        if (part.count, part.cut) != (shard.count, shard.cut):
            raise UsageError(
                f"{one.path.parent} is shard {shard.text} and {record.path.parent} shard {part.text}, but they were "
                "not parts of the same run",
                "Shards have the same selection, --shard-costs and specs.",
            )
        twin = record_by_index.setdefault(part.index, record)
        if twin is not record:
            raise UsageError(
                f"{twin.path.parent} and {record.path.parent} are both shard {part.text}", "Leave one of them out."
            )
    count = first[0].count if first else 0
    return tuple(index for index in range(1, count + 1) if index not in record_by_index), count


def _collect_steps(records: Sequence[JournalRecord]) -> list[dict[str, Any]]:
    """Return the steps of all runs, sorted by chain."""
    record_by_chain: dict[str, JournalRecord] = {}
    for record in records:
        for chain in dict.fromkeys(step.chain for step in record.planned):
            duplicate = record_by_chain.setdefault(chain, record)
            if duplicate is not record:
                raise UsageError(
                    f"{chain} is in {duplicate.path.parent} and in {record.path.parent}",
                    "Merge runs of different cases: it is unclear which of the two counts.",
                )
    steps = [step for record in records for step in record.planned]
    return [step.as_dict() for step in sorted(steps, key=lambda step: step.chain)]


def _merge_info(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge facts about runs: a common value stays, different texts are joined, different numbers are left out."""
    merged_info: dict[str, Any] = {}
    for name in dict.fromkeys(name for info in infos for name in info):
        values = list({str(info[name]): info[name] for info in infos if name in info}.values())
        if len(values) == 1:
            merged_info[name] = values[0]
        elif all(isinstance(value, str) for value in values):
            merged_info[name] = list_first([value for value in values if value], _MAX_LISTED)
    return merged_info


def _describe_part(record: JournalRecord) -> dict[str, Any]:
    """Return the facts about a part that the merged run keeps in addition to the part's steps."""
    run, end = record.run, record.end
    return {
        "run": run.name,
        "folder": str(record.path.parent),
        "time": record.runs[0].time,
        "command": run.command,
        "host": run.machine.host,
        "shard": run.shard.as_dict() if run.shard else None,
        "resumed": len(record.runs) - 1,
        "seconds": end.seconds if end else None,
        "exit_code": end.exit_code if end else None,
    }
