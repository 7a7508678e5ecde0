"""Whether a round was disturbed: what else the machine did while it was taken, and what is tolerated.

The rule that keeps the statistics honest: **a round may be discarded for its disturbance, never for its times.**
Every cause here is read from the machine, and none of them sees what the round has measured. A round that is only
slow counts: leaving out slow rounds would compare the luck of the two sides.

What is judged, and why:

- Other work on the CPUs, and time that a hypervisor takes, slow down whatever is measured at the same time. Where the
  round is pinned, its own CPUs are looked at closely, and the others only for the memory bandwidth and the power
  that they share. The kernel counts in ticks: of a short round, what may be counting alone is tolerated too.
- A frequency means something under the governor `performance` alone. Under the others, an idle CPU (which it is
  before and after a round) shows what it likes, and a round is not discarded for that. `doctor` says to set it.
- A GPU's clock means something where the GPU was at work in both readings. That a GPU runs at its power limit is
  how a large one works, and lies in what is measured.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.measuring.machine.gpus import ANY_GPU, GpuState, Slowdown, read_gpus
from iree_gauntlet.measuring.machine.machine_state import (
    CpuUse,
    MachineState,
    list_cpus,
    measure_cpu_use,
    read_cpu_times,
    read_machine_state,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


_ROOT = Path("/")
_MIB = 1 << 20
_ASKED_CPUS = 16
_SHARES = ("busy_share", "steal_share")

# What is tolerated: what a quiet machine keeps without effort.
# A share of all CPUs for other work, where the round is not pinned: a tenth is what daemons and an editor take; a whole
# neighbour on a machine of 8 CPUs is more. Of the CPUs that the round is pinned to every share is its loss.
_BUSY_SHARE, _PINNED_BUSY_SHARE, _BUSY_SHARE_BESIDE_PINNED = 0.10, 0.02, 0.5
_STEAL_SHARE = 0.02
# By which a frequency may fall, of the CPU or of a GPU at work.
_FREQUENCY_DROP = 0.10
_SWAP_GROWN_BYTES = 16 << 20
# Of the round, in which a GPU may be slowed down by heat or its power supply.
_HEAT_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class RoundState:
    """The machine before and after a round, and what it did meanwhile.

    Attributes:
        whole: what all CPUs did; None where the kernel does not say.
        pinned: what the round's own CPUs did; None where it was not pinned to any.
    """

    before: MachineState
    after: MachineState
    seconds: float
    whole: CpuUse | None
    pinned: CpuUse | None = None

    @property
    def watched(self) -> MachineState:
        """The machine after the round, with the shares of the CPUs' time that were seen while it was taken."""
        if self.whole is None:
            return self.after
        return replace(self.after, busy_share=self.whole.busy_share, steal_share=self.whole.steal_share)

    def as_dict(self) -> dict[str, Any]:
        """For the journal: one line; what is not known is left out."""
        before, after = self.before, self.after
        found: dict[str, Any] = {
            "seconds": round(self.seconds, 3),
            **_record_shares("", self.whole),
            **_record_shares("pinned_", self.pinned),
            "load_1m": after.load_1m,
            "governor": after.governor,
            "frequency_mhz": _round_known(after.frequency_mhz),
            "cpu_temperature_c": _round_known(after.cpu_temperature_c),
            "throttle_events": _measure_growth(before.throttle_count, after.throttle_count),
            "swap_grown_bytes": _measure_growth(before.swap_used_bytes, after.swap_used_bytes),
            "free_memory_bytes": after.free_memory_bytes,
            "on_battery": after.on_battery,
            "gpu_problem": after.gpu_problem or before.gpu_problem or None,
            "gpus": [gpu.as_dict() for gpu in after.gpus] or None,
        }
        return {name: value for name, value in found.items() if value is not None}

    def disturbances(self) -> tuple[str, ...]:
        """What disturbed the round and by how much, a line each; empty for a round that counts."""
        gpu_causes = _find_gpu_causes(self.before.gpus, self.after.gpus, self.seconds)
        return (*self._find_other_work(), *self._find_own_causes(), *gpu_causes)

    def _find_other_work(self) -> Iterator[str]:
        if self.pinned is not None and _is_over(self.pinned.busy_share, self.pinned, _PINNED_BUSY_SHARE):
            busy = _percent(self.pinned.busy_share)
            yield f"other work kept the round's own CPUs {busy} busy ({_percent(_PINNED_BUSY_SHARE)} is tolerated)"
        limit = _BUSY_SHARE if self.pinned is None else _BUSY_SHARE_BESIDE_PINNED
        if self.whole is not None and _is_over(self.whole.busy_share, self.whole, limit):
            yield f"other work kept the CPUs {_percent(self.whole.busy_share)} busy ({_percent(limit)} is tolerated)"
        use = self.pinned or self.whole
        if use is not None and _is_over(use.steal_share, use, _STEAL_SHARE):
            taken = _percent(use.steal_share)
            yield f"the hypervisor took {taken} of the CPU time ({_percent(_STEAL_SHARE)} is tolerated)"

    def _find_own_causes(self) -> Iterator[str]:
        """Of its clock, its memory and its power."""
        before, after = self.before, self.after
        if events := _measure_growth(before.throttle_count, after.throttle_count):
            hot = f", at {after.cpu_temperature_c:.0f} °C" if after.cpu_temperature_c is not None else ""
            yield f"the CPU throttled {events} times{hot} (0 is tolerated)"
        first, last = before.frequency_mhz, after.frequency_mhz
        if before.governor != after.governor:
            yield f"the frequency governor changed from {before.governor} to {after.governor}"
        elif after.governor == "performance" and first and last is not None and last < first * (1 - _FREQUENCY_DROP):
            yield (
                f"the CPU frequency was {last:.0f} MHz, {_percent(1 - last / first)} below the {first:.0f} MHz"
                f" at its begin ({_percent(_FREQUENCY_DROP)} is tolerated)"
            )
        swapped = _measure_growth(before.swap_used_bytes, after.swap_used_bytes)
        if swapped is not None and swapped > _SWAP_GROWN_BYTES:
            yield f"{swapped / _MIB:.0f} MiB went to swap ({_SWAP_GROWN_BYTES / _MIB:.0f} MiB is tolerated)"
        if before.on_battery or after.on_battery:
            yield "the machine ran on battery"


class RoundWatch:
    """Watches the machine from its making on until `ended`: make it just before a round's process is started.

    Args:
        gpu: whether the round runs on a GPU; the vendor's tool is asked before and after it then.
        cpus: numbers of the logical CPUs that the round is pinned to; empty for none.
        device: the GPU's IREE device (`hip://1`), to look at that one alone; empty for all GPUs.
    """

    def __init__(self, *, gpu: bool = False, cpus: Collection[int] = (), device: str = "", root: Path = _ROOT) -> None:
        self._device = (device or ANY_GPU) if gpu else ""
        self._cpus = tuple(cpus)
        self._root = root
        # Asking a CPU for its frequency wakes it: of a large machine, a few are asked.
        known = list_cpus(root)
        self._asked = self._cpus or tuple(known[:: max(1, len(known) // _ASKED_CPUS)])
        self._before = self._read_state()
        # Last, so that looking is no part of what is looked at.
        self._times = read_cpu_times(root)
        self._begin = time.monotonic()

    def ended(self, *, own_cpu_seconds: float) -> RoundState:
        """What was seen; call it when the round's process has ended."""
        seconds = time.monotonic() - self._begin
        times = read_cpu_times(self._root)
        return RoundState(
            before=self._before,
            after=self._read_state(),
            seconds=seconds,
            whole=measure_cpu_use(self._times, times, own_cpu_seconds),
            pinned=measure_cpu_use(self._times, times, own_cpu_seconds, self._cpus) if self._cpus else None,
        )

    def _read_state(self) -> MachineState:
        gpus = read_gpus(self._device) if self._device else None
        return read_machine_state(root=self._root, cpus=self._asked, gpus=gpus)


def _is_over(share: float, use: CpuUse, limit: float) -> bool:
    """Whether a share lies over its limit by more than the kernel's ticks can account for."""
    return share - use.unsure > limit


def _measure_growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _record_shares(prefix: str, use: CpuUse | None) -> dict[str, float]:
    """Of some CPUs, for the journal."""
    return {} if use is None else {f"{prefix}{name}": round(getattr(use, name), 4) for name in _SHARES}


def _round_known(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _find_gpu_causes(before: Sequence[GpuState], after: Sequence[GpuState], seconds: float) -> Iterator[str]:
    earlier = {gpu.index: gpu for gpu in before}
    for gpu in after:
        first = earlier.get(gpu.index)
        yield from _find_slowdowns(first, gpu, seconds)
        working = first is not None and not first.idle and not gpu.idle
        clock, now = first.clock_mhz if first and working else None, gpu.clock_mhz
        if clock and now is not None and now < clock * (1 - _FREQUENCY_DROP):
            yield (
                f"the clock of {gpu.label} fell from {clock:.0f} to {now:.0f} MHz, by {_percent(1 - now / clock)}"
                f" ({_percent(_FREQUENCY_DROP)} is tolerated)"
            )
        others = sorted({*(gpu.others or ()), *((first.others or ()) if first else ())})
        if others:
            named = ", ".join(map(str, others[:4])) + (" …" if len(others) > 4 else "")
            noun = "process" if len(others) == 1 else "processes"
            yield f"{len(others)} other {noun} on {gpu.label} (pid {named}; 0 is tolerated)"


def _find_slowdowns(first: GpuState | None, gpu: GpuState, seconds: float) -> Iterator[str]:
    shares = _measure_shares(first, gpu, seconds)
    heat = f" at {gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else ""
    counted = [cause for cause, share in shares.items() if share > _HEAT_SHARE and cause is not Slowdown.POWER_CAP]
    for cause in counted:
        yield (
            f"{gpu.label} was slowed down for {_percent(shares[cause])} of the round: {cause}{heat}"
            f" ({_percent(_HEAT_SHARE)} is tolerated)"
        )
    # What is so at the moment of a reading, of causes that are not counted.
    seen = (*(first.ill_reasons if first else ()), *gpu.ill_reasons)
    for reason in dict.fromkeys(seen):
        if reason not in counted and (reason not in shares or reason in gpu.ill_reasons):
            yield f"{gpu.label} is slowed down: {reason}{heat}"


def _measure_shares(first: GpuState | None, gpu: GpuState, seconds: float) -> dict[Slowdown, float]:
    """For each cause that is counted, the share of the round in which it has applied, 0 to 1."""
    if first is None:
        return {}
    if first.uptime is not None and gpu.uptime is not None:
        seconds = gpu.uptime - first.uptime
    if seconds <= 0:
        return {}
    earlier = dict(first.throttled)
    return {
        cause: min(1.0, max(0.0, amount - earlier[cause]) / seconds)
        for cause, amount in gpu.throttled
        if cause in earlier
    }
