"""Shards of a run for several machines: balanced by what chains cost before, and steady when cases are added.

Chains whose cost is known are dealt out by it, the dearest first, each to the shard that has least so far; the fullest
shard has at most 4/3 of what it would have in the best of all splits (R. L. Graham, "Bounds on Multiprocessing Timing
Anomalies", SIAM J. Appl. Math. 17, 1969). A chain without a recorded cost goes where the hash of its name says, so that
it moves no other one.
"""

from __future__ import annotations

import hashlib
import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["chain_groups", "cut_of", "shard_of", "shards_of_groups"]


def shard_of(names: Iterable[str], costs: Mapping[str, float], count: int) -> dict[str, int]:
    """The shard, from 1 to `count`, of each name.

    Args:
        names: of what is dealt out; their order does not matter.
        costs: seconds by name; not all have one, and others may have.
        count: how many shards there are.
    """
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


def chain_groups(chains: Iterable[str], needs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """For each chain the name of its group: chains that need each other's modules are done on one machine.

    A group has the name of a chain that needs none; one that joins it later does not change that.

    Args:
        chains: their ids.
        needs: pairs of a chain and one that it needs.
    """
    above = {chain: chain for chain in chains}
    needy: set[str] = set()

    def top(chain: str) -> str:
        while above[chain] != chain:
            above[chain] = above[above[chain]]
            chain = above[chain]
        return chain

    for chain, other in needs:
        if other != chain and other in above:
            needy.add(chain)
            above[top(chain)] = top(other)
    members: dict[str, list[str]] = {}
    for chain in above:
        members.setdefault(top(chain), []).append(chain)
    names = {}
    for group in members.values():
        name = min(group, key=lambda chain: (chain in needy, chain))
        names.update(dict.fromkeys(group, name))
    return names


def shards_of_groups(groups: Mapping[str, str], costs: Mapping[str, float], count: int) -> dict[str, int]:
    """The shard, from 1 to `count`, of each chain.

    Args:
        groups: name of its group by chain, as `chain_groups` gives them.
        costs: seconds by chain; not all have one, and others may have.
        count: how many shards there are.
    """
    grouped: dict[str, float] = {}
    for chain, group in groups.items():
        if chain in costs:
            grouped[group] = grouped.get(group, 0.0) + costs[chain]
    shards = shard_of(groups.values(), grouped, count)
    return {chain: shards[group] for chain, group in groups.items()}


def cut_of(shards: Mapping[str, int]) -> str:
    """A short text that two runs have in common where they were cut in the same way."""
    lines = "".join(f"{chain}\t{shard}\n" for chain, shard in sorted(shards.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]
