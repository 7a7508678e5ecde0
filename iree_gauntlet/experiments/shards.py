"""Shards of a run (`--shard 3/8`), and the costs that balance them."""

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
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.journal_events import RunShard
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.recorded import read_json
from iree_gauntlet.records.run_folder import find_named_run
from iree_gauntlet.steps import BATCH_MODEL
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.requests import ShardRequest


_SHARD = re.compile(r"(\d+)/(\d+)")
_MAX_SHARDS = 10_000
_COSTS_HINT = "`shard.costs RUN --output FILE` writes one: an object with seconds by chain."


def parse_shard(request: ShardRequest) -> tuple[int, int] | None:
    """Parse `--shard`: the shard's number (from 1) and the number of shards; None for the whole run."""
    text = request.shard
    if not text:
        if request.shard_costs:
            raise UsageError("--shard-costs without --shard", "Say which shard this is, such as --shard 1/4.")
        return None
    match = _SHARD.fullmatch(text)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= index <= count <= _MAX_SHARDS:
        raise UsageError(
            f"--shard {text}: expected a shard and the number of shards, such as 3/8 (the third of eight)",
            f"Shards are counted from 1; there are at most {_MAX_SHARDS}.",
        )
    return index, count


def choose_shard(plan: Plan, request: ShardRequest) -> tuple[Plan, RunShard | None]:
    """Return a plan's steps of the requested shard, and the shard's entry for the run's journal (`shard`).

    Chains that need each other's modules stay together, so no step is in two shards.

    Raises:
        UsageError: `--shard` or `--shard-costs` is malformed.
    """
    shard = parse_shard(request)
    if shard is None or not plan.steps:
        return plan, None
    chain_of = {step.id: step.chain for step in plan.steps}
    needs = ((step.chain, chain_of[need]) for step in plan.steps for need in step.needs if need in chain_of)
    chains, entry = _choose_chains_of_shard(chain_of.values(), needs, shard, request)
    return replace(plan, steps=tuple(step for step in plan.steps if step.chain in chains)), entry


def choose_shard_of_cases(cases: CaseSet, request: ShardRequest) -> tuple[Case, ...]:
    """Return the selected cases of the requested shard, with the same distribution of chains as `choose_shard`."""
    shard = parse_shard(request)
    if shard is None or not cases.cases:
        return cases.cases
    all_cases = (*cases.cases, *cases.needed_cases)
    modules = [(case, module) for case in all_cases for module in (*case.modules, *case.pipeline_modules)]
    owners: dict[str, str] = {}
    for case, module in modules:
        if module.program.url and module.origin.file == case.origin.file:
            owners.setdefault(module.id, case.chain)
    needs = ((case.chain, owners[module.id]) for case, module in modules if module.id in owners)
    chains, _ = _choose_chains_of_shard((case.chain for case in all_cases), needs, shard, request)
    return tuple(case for case in cases.cases if case.chain in chains)


def _choose_chains_of_shard(
    chains: Iterable[str], needs: Iterable[tuple[str, str]], shard: tuple[int, int], request: ShardRequest
) -> tuple[frozenset[str], RunShard]:
    """Return the chains of a shard, and its entry for the journal."""
    index, count = shard
    shards = assign_groups(group_chains(chains, needs), _read_costs(request.shard_costs), count)
    shard_chains = frozenset(chain for chain, number in shards.items() if number == index)
    if not shard_chains:
        # An empty shard is only a warning: it may be one of several CI jobs, which must all pass.
        chain_count = pluralize(len(shards), "chain")
        messages.warn(f"--shard {index}/{count}: none of the {chain_count} belongs to it: use fewer, or --shard-costs")
    return shard_chains, RunShard(index, count, hash_shards(shards), len(shards))


def choose_chains(plan: Plan, chains: Collection[str]) -> Plan:
    """Restrict a plan to some chains and the steps that they need."""
    by_id = {step.id: step for step in plan.steps}
    keep: set[str] = set()
    pending = [step.id for step in plan.steps if step.chain in chains]
    while pending:
        step_id = pending.pop()
        if step_id not in keep:
            keep.add(step_id)
            pending.extend(need for need in by_id[step_id].needs if need in by_id)
    return replace(plan, steps=tuple(step for step in plan.steps if step.id in keep))


def _read_costs(source: str) -> dict[str, float]:
    """Read the costs of chains from a file or a run; without a source, return an empty dictionary."""
    path = Path(source)
    if not path.is_file():
        return estimate_costs([read_journal(find_named_run(source, "--shard-costs") / JOURNAL)]) if source else {}
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
    """Estimate the seconds of each chain: the median over runs without cached parts, or, if none, over all runs.

    Downloads and skipped steps do not count. Cached results count only if no run has done the work itself. The cost of
    a batch's compile is divided equally among the batch's cases.
    """
    uncached_costs: dict[str, list[float]] = defaultdict(list)
    cached_costs: dict[str, list[float]] = defaultdict(list)
    for record in records:
        planned = record.planned
        batches = {step.id for step in planned if step.model == BATCH_MODEL}
        members: dict[str, list[str]] = defaultdict(list)
        for step in planned:
            for need in batches.intersection(step.needs):
                members[need].append(step.chain)
        seconds: dict[str, float] = defaultdict(float)
        cached_chains: set[str] = set()
        for step in planned:
            result = record.results.get(step.id)
            if result is None or step.stage.row.fetches or result.verdict is Verdict.SKIPPED:
                continue
            chains = members[step.id] if step.id in batches else [step.chain]
            for chain in chains:
                seconds[chain] += result.seconds / len(chains)
            if result.cache and result.cache.hit:
                cached_chains.update(chains)
        for chain, cost in seconds.items():
            (cached_costs if chain in cached_chains else uncached_costs)[chain].append(cost)
    return {
        chain: round(statistics.median(uncached_costs.get(chain) or cached_costs[chain]), 3)
        for chain in sorted({*uncached_costs, *cached_costs})
    }


def record_costs(names: Sequence[str], output: str) -> ExitCode:
    """Write the costs of the chains of some runs, given by folder or name, to a file or to standard output.

    Raises:
        GauntletError: no such run, nothing ran in it, its journal cannot be read, or the file has no folder.
    """
    runs = [find_named_run(name, "shard.costs") for name in names]
    costs = estimate_costs([read_journal(run / JOURNAL) for run in runs])
    if not costs:
        raise UsageError(f"nothing ran in {', '.join(map(str, runs))}", "Name runs that finished.")
    text = json.dumps(costs, indent=1, ensure_ascii=False) + "\n"
    if not output:
        sys.stdout.write(text)
        return ExitCode.OK
    path = Path(output)
    if not path.parent.is_dir():
        raise UsageError(f"--output {path}: there is no folder {path.parent}", "Create it first.")
    write_atomic(path, text)
    total = sum(costs.values())
    sys.stderr.write(
        f"wrote {path}: {len(costs)} chains, {total:.1f} s in total, the longest {max(costs.values()):.1f} s\n"
    )
    return ExitCode.OK


def assign_shards(names: Iterable[str], costs: Mapping[str, float], count: int) -> dict[str, int]:
    """Assign each name a shard from 1 to `count`, independent of their order; `costs` has the seconds of some names."""
    shards: dict[str, int] = {}
    known_costs = []
    for name in set(names):
        if name in costs:
            known_costs.append((-costs[name], name))
        else:
            shards[name] = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % count + 1
    # The next shard has the smallest load; ties (cached chains cost 0) go to the shard with fewer chains.
    loads = [(0.0, 0, shard) for shard in range(1, count + 1)]
    for negative, name in sorted(known_costs):
        load, number, shard = loads[0]
        shards[name] = shard
        heapq.heapreplace(loads, (load - negative, number + 1, shard))
    return shards


def group_chains(chains: Iterable[str], needs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the name of each chain's group: chains that need each other's modules run on one machine.

    A group is named after a chain that needs no other, so that chains that join it later do not change the name.
    """
    groups = {chain: {chain} for chain in chains}
    dependent_chains: set[str] = set()
    for chain, provider in needs:
        if provider != chain and provider in groups:
            dependent_chains.add(chain)
            small, large = sorted((groups[chain], groups[provider]), key=len)
            if small is not large:
                large |= small
                groups.update(dict.fromkeys(small, large))
    names: dict[str, str] = {}
    for chain, group in groups.items():
        if chain not in names:
            names |= dict.fromkeys(group, min(group, key=lambda chain: (chain in dependent_chains, chain)))
    return names


def assign_groups(groups: Mapping[str, str], costs: Mapping[str, float], count: int) -> dict[str, int]:
    """Assign each chain a shard, as `assign_shards`, but keep the groups of `group_chains` together."""
    group_costs: dict[str, float] = defaultdict(float)
    for chain, group in groups.items():
        if chain in costs:
            group_costs[group] += costs[chain]
    shards = assign_shards(groups.values(), group_costs, count)
    return {chain: shards[group] for chain, group in groups.items()}


def hash_shards(shards: Mapping[str, int]) -> str:
    """Return a short hash that is equal for runs with the same distribution of chains."""
    lines = "".join(f"{chain}\t{shard}\n" for chain, shard in sorted(shards.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]
