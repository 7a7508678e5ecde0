"""One journal of several runs' journals: the shards of a suite that several machines have done.

Pure: records go in, the events of the merged journal come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.figures import counted, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.journal_format import JournalRecord


_STOPPED = "the run stopped before this step started"
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class MergedJournal:
    """A merged journal.

    Attributes:
        events: its lines, in the order of their times behind the `run` event.
        remarks: what a reader must know of it, one line each.
    """

    events: tuple[dict[str, Any], ...]
    remarks: tuple[str, ...]


def merged(
    records: Sequence[JournalRecord], name: str, command: str, cwd: str, *, lenient: bool = False
) -> MergedJournal:
    """The journal of one run that did what some runs did.

    Args:
        records: of the runs.
        name: of the new run.
        command: that makes it.
        cwd: in which it does.
        lenient: runs of different IREEs may be merged; a remark says so.

    Raises:
        UsageError: they are no parts of one run: of other suites or IREEs, cut in another way, or with a chain in
            two of them.
    """
    runs = [_find_last_run(record) for record in records]
    _require_one_suite(records, runs)
    remarks = [f"merged from {counted(len(runs), 'run')}: {listed([str(run.get('run')) for run in runs], _MOST_NAMED)}"]
    remarks += _list_toolchains(records, runs, lenient=lenient)
    missing, count = _find_missing(records, runs)
    if missing:
        words = f"shard{'s' if len(missing) > 1 else ''} {listed(list(map(str, missing)), _MOST_NAMED)} of {count}"
        remarks.append(f"{words} {'are' if len(missing) > 1 else 'is'} missing: this is not the whole run")
    _require_no_chain_twice(records)
    steps = sorted((step for record in records for step in record.steps), key=lambda step: str(step["chain"]))
    opening = {
        **runs[0],
        "event": "run",
        "time": min(str(record.runs[0].get("time", "")) for record in records),
        "run": name,
        "command": command,
        "cwd": cwd,
        "target": list({str(item): item for run in runs for item in run.get("target") or ()}.values()),
        "toolchain": _require_common([run.get("toolchain") or {} for run in runs]),
        "machine": _require_common([run.get("machine") or {} for run in runs]),
        "lock_folder": ", ".join(dict.fromkeys(str(run["lock_folder"]) for run in runs if run.get("lock_folder"))),
        "resumed": False,
        "shard": None,
        "merged": [_describe_part(record, run) for record, run in zip(records, runs, strict=True)],
        "missing_shards": list(missing),
        "remarks": remarks,
        "steps": steps,
    }
    if isinstance(opening.get("asked"), dict):
        # The whole of it: what is asked of the merged run (`--last-failed`) is about every shard.
        selection = {**opening["asked"]["selection"], "shard": "", "shard_costs": ""}
        opening["asked"] = {**opening["asked"], "selection": selection}
    happened = sorted(
        (event for record in records for event in _list_happened(record)), key=lambda event: event["time"]
    )
    return MergedJournal((opening, *happened, *_end(records)), tuple(remarks))


def _find_last_run(record: JournalRecord) -> dict[str, Any]:
    if not record.runs:
        raise UsageError(f"{record.path.parent}: its journal does not say what was to run", "Leave it out.")
    run = record.runs[-1]
    if {"bench", "micro"} & run.keys():
        raise UsageError(f"{record.path.parent} is no run of spec files", "Only these have shards that can be merged.")
    return run


def _require_one_suite(records: Sequence[JournalRecord], runs: Sequence[Mapping[str, Any]]) -> None:
    suites = [str(run.get("suite", "")) for run in runs]
    for record, suite in zip(records, suites, strict=True):
        if suite != suites[0]:
            raise UsageError(
                f"{records[0].path.parent} is a run of the suite {suites[0]!r}, {record.path.parent} one of {suite!r}",
                "Merge runs of one suite.",
            )


def _list_toolchains(
    records: Sequence[JournalRecord], runs: Sequence[Mapping[str, Any]], *, lenient: bool
) -> list[str]:
    tools = [run.get("toolchain") or {} for run in runs]
    identities = [str(tool.get("identity", "")) for tool in tools]
    for record, tool, identity in zip(records, tools, identities, strict=True):
        if identity != identities[0] and not lenient:
            first, other = _find_version(tools[0]), _find_version(tool)
            raise UsageError(
                f"{records[0].path.parent} was run with IREE {first}, {record.path.parent} with {other}",
                "One run judges one IREE; --lenient merges them all the same.",
            )
    if len(set(identities)) == 1:
        return []
    versions = list(dict.fromkeys(map(_find_version, tools)))
    return [f"the runs are of {len(set(identities))} different IREEs: {listed(versions, _MOST_NAMED)}"]


def _find_version(tool: Mapping[str, Any]) -> str:
    return f"{tool.get('compiler', 'none')} ({str(tool.get('identity', ''))[:12]})"


def _find_missing(records: Sequence[JournalRecord], runs: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, ...], int]:
    """The shards that no run is, and how many there ought to be; none where the runs are no shards."""
    shards = [(record, run["shard"]) for record, run in zip(records, runs, strict=True) if run.get("shard")]
    if not shards:
        return (), 0
    first, shard = shards[0]
    seen: dict[int, JournalRecord] = {}
    for record, other in shards:
        if (other["count"], other["cut"]) != (shard["count"], shard["cut"]):
            raise UsageError(
                f"{first.path.parent} is shard {shard['index']}/{shard['count']} and {record.path.parent} shard "
                f"{other['index']}/{other['count']}, but they were not cut out of the same whole",
                "Shards are of one selection, with one --shard-costs, of one state of the specs.",
            )
        twin = seen.setdefault(int(other["index"]), record)
        if twin is not record:
            raise UsageError(
                f"{twin.path.parent} and {record.path.parent} are both shard {other['index']}/{other['count']}",
                "Leave one of them out.",
            )
    count = int(shard["count"])
    return tuple(index for index in range(1, count + 1) if index not in seen), count


def _require_no_chain_twice(records: Sequence[JournalRecord]) -> None:
    seen: dict[str, JournalRecord] = {}
    for record in records:
        for chain in dict.fromkeys(str(step["chain"]) for step in record.steps):
            other = seen.setdefault(chain, record)
            if other is not record:
                raise UsageError(
                    f"{chain} is in {other.path.parent} and in {record.path.parent}",
                    "Merge runs of different cases: which of the two would count?",
                )


def _require_common(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several say: what all agree on, of texts all that are said; numbers that differ are left out."""
    common: dict[str, Any] = {}
    for name in dict.fromkeys(name for fact in facts for name in fact):
        values = list({str(fact[name]): fact[name] for fact in facts if name in fact}.values())
        if len(values) == 1:
            common[name] = values[0]
        elif all(isinstance(value, str) for value in values):
            common[name] = listed([value for value in values if value], _MOST_NAMED)
    return common


def _describe_part(record: JournalRecord, run: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a run in addition to its steps."""
    end = record.end or {}
    return {
        "run": run.get("run", ""),
        "folder": str(record.path.parent),
        "time": record.runs[0].get("time", ""),
        "command": run.get("command", ""),
        "host": (run.get("machine") or {}).get("host", ""),
        "shard": run.get("shard"),
        "resumed": len(record.runs) - 1,
        "seconds": end.get("seconds"),
        "exit_code": end.get("exit_code"),
    }


def _list_happened(record: JournalRecord) -> Iterable[dict[str, Any]]:
    """The starts and results of a run, as one run without resuming would have them."""
    complete = record.end is not None and not record.end.get("interrupted")
    for step in record.steps:
        name = str(step["id"])
        started = record.starts.get(name, "")
        if started:
            yield {"event": "start", "time": started, "step": name}
        if name in record.results and not record.started_again(name):
            yield record.result_event(name)
        elif complete and not started:
            # Said here, since another shard may have been killed.
            time = str((record.end or {}).get("time", ""))
            yield {"event": "result", "time": time, "step": name, "verdict": str(Verdict.SKIPPED), "reason": _STOPPED}


def _end(records: Sequence[JournalRecord]) -> list[dict[str, Any]]:
    """The end of the merged run; none where one of them has none. It took as long as the slowest of them."""
    ends = [record.end for record in records if record.end is not None]
    if len(ends) < len(records):
        return []
    return [
        {
            "event": "end",
            "time": max(str(end.get("time", "")) for end in ends),
            "exit_code": int(ExitCode.worst([ExitCode(int(end.get("exit_code", 0))) for end in ends])),
            "seconds": max(float(end.get("seconds") or 0.0) for end in ends),
            "interrupted": any(bool(end.get("interrupted")) for end in ends),
        }
    ]
