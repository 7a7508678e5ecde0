"""How much disturbance of a round is let pass."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What is let pass; the defaults are what a quiet machine keeps without effort.

    Attributes:
        busy_share: share of all CPUs that other work may take, where the round is not pinned. A tenth is what
            daemons and an editor take; a whole neighbour on a machine of 8 CPUs is more.
        pinned_busy_share: the same of the CPUs that the round is pinned to: there, every share is its loss.
        busy_share_beside_pinned: of all CPUs, where the round is pinned: others' memory traffic and heat.
        steal_share: share of the CPU time that a hypervisor may take.
        throttle_events: thermal throttling events of the CPU.
        frequency_drop: share by which a frequency may fall, of the CPU or of a GPU at work.
        swap_grown_bytes: memory that may go to swap: the kernel moves a few idle pages on a quiet machine too.
        gpu_others: other processes that may be on the GPU.
        heat_share: share of the round in which a GPU may be slowed down by heat or its power supply.
        power_capped_share: share of the round that a GPU may spend at its power limit; 1.0 for all of it.
    """

    busy_share: float = 0.10
    pinned_busy_share: float = 0.02
    busy_share_beside_pinned: float = 0.5
    steal_share: float = 0.02
    throttle_events: int = 0
    frequency_drop: float = 0.10
    swap_grown_bytes: int = 16 << 20
    gpu_others: int = 0
    heat_share: float = 0.02
    power_capped_share: float = 1.0
