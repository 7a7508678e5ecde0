"""Shards of a run: `--shard 3/8`, and the costs that they are balanced by."""

from __future__ import annotations

import hashlib
import heapq
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.cases import Case, Verdict
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.formatting import counted
from iree_gauntlet.journal_events import RunShard
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.recorded import read_json
from iree_gauntlet.records.run_folder import run_named
from iree_gauntlet.steps import BATCH_MODEL
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.requests import ShardRequest


_SHARD = re.compile(r"(\d+)/(\d+)")
_MOST_SHARDS = 10_000
_COSTS_HINT = "`shard.costs RUN --output FILE` makes one: an object with seconds by chain."


def parse_shard(request: ShardRequest) -> tuple[int, int] | None:
    """Which shard of how many, both from 1; None for everything."""
    text = request.shard
    if not text:
        if request.shard_costs:
            raise UsageError("--shard-costs without --shard", "Say which shard this is, such as --shard 1/4.")
        return None
    match = _SHARD.fullmatch(text)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count <= _MOST_SHARDS:
        raise UsageError(
            f"--shard {text}: expected a shard and how many there are, such as 3/8 (the third of eight)",
            f"Shards are counted from 1; there are at most {_MOST_SHARDS}.",
        )
    return index, count


def choose_shard(plan: Plan, request: ShardRequest) -> tuple[Plan, RunShard | None]:
    """The steps of a plan that are asked for, and what the run's journal says of the shard (`shard`).

    Chains that need each other's modules are one unit: no step is in two shards.

    Raises:
        UsageError: `--shard` or `--shard-costs` cannot be understood.
    """
    asked = parse_shard(request)
    if asked is None or not plan.steps:
        return plan, None
    chain_of = {step.id: step.chain for step in plan.steps}
    needs = ((step.chain, chain_of[need]) for step in plan.steps for need in step.needs if need in chain_of)
    chains, entry = _choose_chains_of_shard(chain_of.values(), needs, asked, request)
    return replace(plan, steps=tuple(step for step in plan.steps if step.chain in chains)), entry


def choose_shard_of_cases(cases: CaseSet, request: ShardRequest) -> tuple[Case, ...]:
    """The selected cases that `--shard` asks for, as `choose_shard` deals out their chains."""
    asked = parse_shard(request)
    if asked is None or not cases.cases:
        return cases.cases
    every = (*cases.cases, *cases.required)
    modules = [(case, module) for case in every for module in (*case.modules, *case.extra_modules)]
    owners: dict[str, str] = {}
    for case, module in modules:
        if module.program.url and module.origin.file == case.origin.file:
            owners.setdefault(module.id, case.chain)
    needs = ((case.chain, owners[module.id]) for case, module in modules if module.id in owners)
    chains, _ = _choose_chains_of_shard((case.chain for case in every), needs, asked, request)
    return tuple(case for case in cases.cases if case.chain in chains)


def _choose_chains_of_shard(
    chains: Iterable[str], needs: Iterable[tuple[str, str]], asked: tuple[int, int], request: ShardRequest
) -> tuple[frozenset[str], RunShard]:
    """The chains of a shard, and what a journal says of it."""
    index, count = asked
    shards = assign_groups(group_chains(chains, needs), _read_costs(request.shard_costs), count)
    mine = frozenset(chain for chain, shard in shards.items() if shard == index)
    if not mine:
        # A job of several, all of which have to be green.
        those = counted(len(shards), "chain")
        messages.warn(f"--shard {index}/{count}: none of the {those} belongs to it: use fewer, or --shard-costs")
    return mine, RunShard(index, count, cut_of(shards), len(shards))


def choose_chains(plan: Plan, chains: Collection[str]) -> Plan:
    """The steps of some chains, with what they need."""
    by_id = {step.id: step for step in plan.steps}
    keep: set[str] = set()
    waiting = [step.id for step in plan.steps if step.chain in chains]
    while waiting:
        step_id = waiting.pop()
        if step_id not in keep:
            keep.add(step_id)
            waiting.extend(need for need in by_id[step_id].needs if need in by_id)
    return replace(plan, steps=tuple(step for step in plan.steps if step.id in keep))


def _read_costs(named: str) -> dict[str, float]:
    """Of a file, or of a run; none where nothing is named."""
    path = Path(named)
    if not path.is_file():
        return estimate_costs([read_journal(run_named(named, "--shard-costs") / JOURNAL)]) if named else {}
    try:
        content = read_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"--shard-costs {path}: cannot be read: {error}", _COSTS_HINT) from error
    if not isinstance(content, dict):
        raise UsageError(f"--shard-costs {path}: expected an object", _COSTS_HINT)
    for chain, cost in content.items():
        number = isinstance(cost, int | float) and not isinstance(cost, bool)
        if not number or not 0 <= cost < math.inf:
            raise UsageError(f"--shard-costs {path}: {chain}: expected seconds, found {json.dumps(cost)}", _COSTS_HINT)
    return {str(chain): float(cost) for chain, cost in content.items()}


def estimate_costs(records: Sequence[JournalRecord]) -> dict[str, float]:
    """Seconds of each chain: the median over the runs that did all of its work, else over those that did any.

    Downloads do not count, nor what was not judged. What came from a cache counts where no run did it itself. The
    compile of a batch is its cases', in equal parts.
    """
    whole: dict[str, list[float]] = defaultdict(list)
    cached: dict[str, list[float]] = defaultdict(list)
    for record in records:
        planned = record.planned
        batches = {step.id for step in planned if step.model == BATCH_MODEL}
        members: dict[str, list[str]] = defaultdict(list)
        for step in planned:
            for need in batches.intersection(step.needs):
                members[need].append(step.chain)
        seconds: dict[str, float] = defaultdict(float)
        served: set[str] = set()
        for step in planned:
            result = record.results.get(step.id)
            if result is None or step.stage.row.fetches or result.verdict is Verdict.SKIPPED:
                continue
            chains = members[step.id] if step.id in batches else [step.chain]
            for chain in chains:
                seconds[chain] += result.seconds / len(chains)
            if result.cache and result.cache.hit:
                served.update(chains)
        for chain, cost in seconds.items():
            (cached if chain in served else whole)[chain].append(cost)
    return {
        chain: round(statistics.median(whole.get(chain) or cached[chain]), 3) for chain in sorted({*whole, *cached})
    }


def record_costs(named: Sequence[str], output: str) -> ExitCode:
    """Writes what the chains of some runs, folders or names, have cost: to a file, or to standard output.

    Raises:
        GauntletError: there is no such run, nothing ran in it, its journal cannot be read, or there is no place.
    """
    runs = [run_named(name, "shard.costs") for name in named]
    costs = estimate_costs([read_journal(run / JOURNAL) for run in runs])
    if not costs:
        raise UsageError(f"nothing ran in {', '.join(map(str, runs))}", "Name runs that finished.")
    text = json.dumps(costs, indent=1, ensure_ascii=False) + "\n"
    if not output:
        sys.stdout.write(text)
        return ExitCode.OK
    path = Path(output)
    if not path.parent.is_dir():
        raise UsageError(f"--output {path}: there is no folder {path.parent}", "Make it first.")
    write_atomic(path, text)
    total = sum(costs.values())
    sys.stderr.write(
        f"wrote {path}: {len(costs)} chains, {total:.1f} s in all, the longest {max(costs.values()):.1f} s\n"
    )
    return ExitCode.OK


def shard_of(names: Iterable[str], costs: Mapping[str, float], count: int) -> dict[str, int]:
    """The shard, from 1 to `count`, of each name, whatever their order; `costs` has the seconds of some, and others."""
    shards: dict[str, int] = {}
    known = []
    for name in set(names):
        if name in costs:
            known.append((-costs[name], name))
        else:
            shards[name] = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % count + 1
    # Of equal loads, the one with fewer: what came from a cache has cost nothing.
    loads = [(0.0, 0, shard) for shard in range(1, count + 1)]
    for negative, name in sorted(known):
        load, number, shard = loads[0]
        shards[name] = shard
        heapq.heapreplace(loads, (load - negative, number + 1, shard))
    return shards


def group_chains(chains: Iterable[str], needs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """For each chain the name of its group: chains that need each other's modules are done on one machine.

    A group has the name of a chain that needs none; one that joins it later does not change that.
    """
    groups = {chain: {chain} for chain in chains}
    needy: set[str] = set()
    for chain, other in needs:
        if other != chain and other in groups:
            needy.add(chain)
            few, many = sorted((groups[chain], groups[other]), key=len)
            if few is not many:
                many |= few
                groups.update(dict.fromkeys(few, many))
    names: dict[str, str] = {}
    for chain, group in groups.items():
        if chain not in names:
            names |= dict.fromkeys(group, min(group, key=lambda chain: (chain in needy, chain)))
    return names


def assign_groups(groups: Mapping[str, str], costs: Mapping[str, float], count: int) -> dict[str, int]:
    """The shard of each chain, as `shard_of`, by the groups that `group_chains` gives."""
    grouped: dict[str, float] = defaultdict(float)
    for chain, group in groups.items():
        if chain in costs:
            grouped[group] += costs[chain]
    shards = shard_of(groups.values(), grouped, count)
    return {chain: shards[group] for chain, group in groups.items()}


def cut_of(shards: Mapping[str, int]) -> str:
    """A short text that two runs have in common where they were cut in the same way."""
    lines = "".join(f"{chain}\t{shard}\n" for chain, shard in sorted(shards.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]
