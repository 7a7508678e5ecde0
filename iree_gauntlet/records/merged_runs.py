"""One journal of several runs' journals: the shards of a suite that several machines have done.

Pure: records go in, the events of the merged journal come out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.figures import counted, listed
from iree_gauntlet.journal_events import MachineFacts, RunEvent, RunShard, ToolchainFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.journal_format import JournalRecord


_STOPPED = "the run stopped before this step started"
_MOST_NAMED = 5


def merge_runs(
    records: Sequence[JournalRecord], name: str, command: str, cwd: str, *, lenient: bool = False
) -> tuple[RunEvent, list[dict[str, Any]]]:
    """The journal of one run that did what some runs did.

    Args:
        records: of the runs.
        name: of the new run.
        command: that makes it.
        cwd: in which it does.
        lenient: runs of different IREEs may be merged; a remark says so.

    Returns:
        How it begins, with what a reader must know of it, and its lines: the first one says that, with the steps,
        and those behind it are in the order of their times.

    Raises:
        UsageError: they are no parts of one run: of other suites or IREEs, cut in another way, or with a chain in
            two of them.
    """
    _require_one_suite(records)
    runs = [record.run for record in records]
    remarks = [f"merged from {counted(len(runs), 'run')}: {listed([run.run for run in runs], _MOST_NAMED)}"]
    remarks += _list_toolchains(records, lenient=lenient)
    missing, count = _find_missing(records)
    if missing:
        words = f"shard{'s' if len(missing) > 1 else ''} {listed(list(map(str, missing)), _MOST_NAMED)} of {count}"
        remarks.append(f"{words} {'are' if len(missing) > 1 else 'is'} missing: this is not the whole run")
    steps = _collect_steps(records)
    asked = runs[0].asked
    if asked is not None:
        # The whole of it: what is asked of the merged run (`--last-failed`) is about every shard.
        asked = replace(asked, selection={**asked.selection, "shard": "", "shard_costs": ""})
    opening = replace(
        runs[0],
        time=min(record.runs[0].time for record in records),
        run=name,
        command=command,
        cwd=cwd,
        target=tuple(dict.fromkeys(target for run in runs for target in run.target)),
        toolchain=ToolchainFacts.from_dict(_find_common([run.toolchain.as_dict() for run in runs])),
        machine=MachineFacts.from_dict(_find_common([run.machine.as_dict() for run in runs])),
        lock_folder=", ".join(dict.fromkeys(run.lock_folder for run in runs if run.lock_folder)),
        resumed=False,
        asked=asked,
        shard=None,
        merged=tuple(map(_describe_part, records)),
        missing_shards=missing,
        remarks=tuple(remarks),
    )
    happened = [event for record in records for event in _list_happened(record)]
    happened.sort(key=lambda event: str(event["time"]))
    return opening, [{"event": "run", **opening.as_dict(), "steps": steps}, *happened, *_end(records)]


def _require_one_suite(records: Sequence[JournalRecord]) -> None:
    for record in records:
        folder = record.path.parent
        if not record.runs:
            raise UsageError(f"{folder}: its journal does not say what was to run", "Leave it out.")
        if not record.run.of_specs:
            raise UsageError(f"{folder} is no run of spec files", "Only these have shards that can be merged.")
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
                "One run judges one IREE; --lenient merges them all the same.",
            )
    count = len({tool.identity for tool in tools})
    named = listed(list(dict.fromkeys(versions)), _MOST_NAMED)
    return [f"the runs are of {count} different IREEs: {named}"] if count > 1 else []


def _find_missing(records: Sequence[JournalRecord]) -> tuple[tuple[int, ...], int]:
    """The shards that no run is, and how many there ought to be; none where the runs are no shards."""
    first: tuple[RunShard, JournalRecord] | None = None
    seen: dict[int, JournalRecord] = {}
    for record in records:
        other = record.run.shard
        if other is None:
            continue
        shard, one = first = first or (other, record)
        if (other.count, other.cut) != (shard.count, shard.cut):
            raise UsageError(
                f"{one.path.parent} is shard {shard.text} and {record.path.parent} shard {other.text}, but they were "
                "not cut out of the same whole",
                "Shards are of one selection, with one --shard-costs, of one state of the specs.",
            )
        twin = seen.setdefault(other.index, record)
        if twin is not record:
            raise UsageError(
                f"{twin.path.parent} and {record.path.parent} are both shard {other.text}", "Leave one of them out."
            )
    count = first[0].count if first else 0
    return tuple(index for index in range(1, count + 1) if index not in seen), count


def _collect_steps(records: Sequence[JournalRecord]) -> list[dict[str, Any]]:
    """The steps of all, by their chains."""
    seen: dict[str, JournalRecord] = {}
    for record in records:
        for chain in dict.fromkeys(step.chain for step in record.planned):
            other = seen.setdefault(chain, record)
            if other is not record:
                raise UsageError(
                    f"{chain} is in {other.path.parent} and in {record.path.parent}",
                    "Merge runs of different cases: which of the two would count?",
                )
    steps = [step for record in records for step in record.planned]
    return [step.as_dict() for step in sorted(steps, key=lambda step: step.chain)]


def _find_common(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several say: what all agree on, of texts all that are said; numbers that differ are left out."""
    common: dict[str, Any] = {}
    for name in dict.fromkeys(name for fact in facts for name in fact):
        values = list({str(fact[name]): fact[name] for fact in facts if name in fact}.values())
        if len(values) == 1:
            common[name] = values[0]
        elif all(isinstance(value, str) for value in values):
            common[name] = listed([value for value in values if value], _MOST_NAMED)
    return common


def _describe_part(record: JournalRecord) -> dict[str, Any]:
    """What is kept of a run in addition to its steps."""
    run, end = record.run, record.end
    return {
        "run": run.run,
        "folder": str(record.path.parent),
        "time": record.runs[0].time,
        "command": run.command,
        "host": run.machine.host,
        "shard": run.shard.as_dict() if run.shard else None,
        "resumed": len(record.runs) - 1,
        "seconds": end.seconds if end else None,
        "exit_code": end.exit_code if end else None,
    }


def _list_happened(record: JournalRecord) -> Iterable[dict[str, Any]]:
    """The starts and results of a run, as one run without resuming would have them."""
    end = record.end
    for step in record.planned:
        started = record.starts.get(step.id, "")
        if started:
            yield {"event": "start", "time": started, "step": step.id}
        if step.id in record.results and not record.started_again(step.id):
            yield record.result_event(step.id)
        elif end is not None and not end.interrupted and not started:
            # Said here, since another shard may have been killed.
            skipped = {"verdict": str(Verdict.SKIPPED), "reason": _STOPPED}
            yield {"event": "result", "time": end.time, "step": step.id, **skipped}


def _end(records: Sequence[JournalRecord]) -> list[dict[str, Any]]:
    """The end of the merged run; none where one of them has none. It took as long as the slowest of them."""
    ends = [record.end for record in records if record.end is not None]
    if len(ends) < len(records):
        return []
    return [
        {
            "event": "end",
            "time": max(end.time for end in ends),
            "exit_code": int(ExitCode.worst([ExitCode(end.exit_code) for end in ends])),
            "seconds": max(end.seconds or 0.0 for end in ends),
            "interrupted": any(end.interrupted for end in ends),
        }
    ]
