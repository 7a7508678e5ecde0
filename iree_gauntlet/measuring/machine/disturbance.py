"""Detect if a round was disturbed, which means that other activity of the machine exceeded its limit.

The statistics need this rule: **a round may be discarded for its disturbance, never for its times.**
Every disturbance is read from the machine, and none depends on the round's measurements. A round that is only slow
counts, because discarding slow rounds would bias the comparison.

The criteria, with their reasons:

- Other work on the CPUs, and time that a hypervisor takes, slow down a round. The CPUs that a round is pinned to have a
  strict limit; all CPUs together then have a loose one, since the others only share memory bandwidth and power. The
  kernel counts in ticks, so the possible error of counting is tolerated in addition.
- A CPU's frequency is judged only under the governor `performance`, which `doctor` advises to set. CPUs are idle before
  and after a round, and under other governors the frequency of an idle CPU is arbitrary.
- A GPU's clock is judged only if the GPU was busy in both readings. The power limit is not a disturbance: a large GPU
  normally runs at it.
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
_MAX_SAMPLED_CPUS = 16
_SHARE_FIELDS = ("busy_share", "steal_share")

# A quiet machine keeps these limits easily. The first limits other work on all CPUs if the round is not pinned: daemons
# and an editor take less than 10 %, but one busy CPU of 8 takes more. The second limits other work on the CPUs that a
# round is pinned to; the third limits it on all CPUs if the round is pinned.
_MAX_BUSY, _MAX_PINNED_BUSY, _MAX_UNPINNED_BUSY = 0.10, 0.02, 0.5
_MAX_STEAL = 0.02
# The fraction by which a frequency may fall, of the CPU or of a GPU at work.
_MAX_MHZ_DROP = 0.10
_MAX_SWAP_BYTES = 16 << 20
# The fraction of the round in which a GPU may be slowed down by heat or its power supply.
_MAX_HEAT = 0.02


@dataclass(frozen=True, slots=True)
class RoundState:
    """The machine before and after a round, and its CPU use during the round.

    Attributes:
        all_cpus: the use of all CPUs; None if the kernel does not report it.
        own_cpus: the use of the CPUs that the round was pinned to; None if it was not pinned.
        board: the board that was read; empty for this machine.
    """

    before: MachineState
    after: MachineState
    seconds: float
    all_cpus: CpuUse | None
    own_cpus: CpuUse | None = None
    board: str = ""

    @property
    def state_with_cpu_use(self) -> MachineState:
        """The machine after the round, with the CPU shares during the round; 0 if other work did not disturb it."""
        if self.all_cpus is None:
            return self.after
        if not any(self._find_other_work()):
            return replace(self.after, busy_share=0.0, steal_share=0.0)
        return replace(self.after, busy_share=self.all_cpus.busy_share, steal_share=self.all_cpus.steal_share)

    def as_dict(self) -> dict[str, Any]:
        """Return the state for the journal: one line; unknown values are left out."""
        start, end = self.before, self.after
        fields: dict[str, Any] = {
            "seconds": round(self.seconds, 3),
            **_record_shares("", self.all_cpus),
            **_record_shares("pinned_", self.own_cpus),
            "load_1m": end.load_1m,
            "governor": end.governor,
            "frequency_mhz": _round_optional(end.frequency_mhz),
            "cpu_temperature_c": _round_optional(end.cpu_temperature_c),
            "throttle_events": _measure_growth(start.throttle_count, end.throttle_count),
            "swap_grown_bytes": _measure_growth(start.swap_used_bytes, end.swap_used_bytes),
            "free_memory_bytes": end.free_memory_bytes,
            "on_battery": end.on_battery,
            "gpu_problem": end.gpu_problem or start.gpu_problem or None,
            "gpus": [gpu.as_dict() for gpu in end.gpus] or None,
            "board": self.board or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def list_disturbances(self) -> tuple[str, ...]:
        """Return the round's disturbances with their amounts, a line each; empty for a round that counts."""
        gpu_causes = _find_gpu_causes(self.before.gpus, self.after.gpus, self.seconds)
        return (*self._find_other_work(), *self._find_own_causes(), *gpu_causes)

    def _find_other_work(self) -> Iterator[str]:
        if self.own_cpus is not None and _is_over(self.own_cpus.busy_share, self.own_cpus, _MAX_PINNED_BUSY):
            percentage = _percent(self.own_cpus.busy_share)
            yield f"other work kept the round's own CPUs {percentage} busy ({_percent(_MAX_PINNED_BUSY)} is tolerated)"
        limit = _MAX_BUSY if self.own_cpus is None else _MAX_UNPINNED_BUSY
        if self.all_cpus is not None and _is_over(self.all_cpus.busy_share, self.all_cpus, limit):
            yield f"other work kept the CPUs {_percent(self.all_cpus.busy_share)} busy ({_percent(limit)} is tolerated)"
        use = self.own_cpus or self.all_cpus
        if use is not None and _is_over(use.steal_share, use, _MAX_STEAL):
            stolen_percentage = _percent(use.steal_share)
            yield f"the hypervisor took {stolen_percentage} of the CPU time ({_percent(_MAX_STEAL)} is tolerated)"

    def _find_own_causes(self) -> Iterator[str]:
        """Yield disturbances of the machine's clock, memory and power."""
        start, end = self.before, self.after
        if events := _measure_growth(start.throttle_count, end.throttle_count):
            temperature = f", at {end.cpu_temperature_c:.0f} °C" if end.cpu_temperature_c is not None else ""
            yield f"the CPU throttled {events} times{temperature} (0 is tolerated)"
        first, last = start.frequency_mhz, end.frequency_mhz
        if start.governor != end.governor:
            yield f"the frequency governor changed from {start.governor} to {end.governor}"
        elif end.governor == "performance" and first and last is not None and last < first * (1 - _MAX_MHZ_DROP):
            yield (
                f"the CPU frequency was {last:.0f} MHz, {_percent(1 - last / first)} below the {first:.0f} MHz"
                f" at its start ({_percent(_MAX_MHZ_DROP)} is tolerated)"
            )
        growth = _measure_growth(start.swap_used_bytes, end.swap_used_bytes)
        if growth is not None and growth > _MAX_SWAP_BYTES:
            yield f"{growth / _MIB:.0f} MiB went to swap ({_MAX_SWAP_BYTES / _MIB:.0f} MiB is tolerated)"
        if start.on_battery or end.on_battery:
            yield "the machine ran on battery"


class RoundWatch:
    """A watch over the machine, from construction (just before a round's process starts) until `ended` is called.

    Args:
        gpu: True if the round runs on a GPU; the vendor's tool is then run before and after it.
        cpus: numbers of the logical CPUs that the round is pinned to; empty for none.
        device: the IREE device of the only GPU to read (`hip://1`); empty for all GPUs.
    """

    def __init__(self, *, gpu: bool = False, cpus: Collection[int] = (), device: str = "", root: Path = _ROOT) -> None:
        self._device = (device or ANY_GPU) if gpu else ""
        self._cpus = tuple(cpus)
        self._root = root
        # Reading a CPU's frequency wakes the CPU, so only a sample of CPUs is read on a large machine.
        all_cpus = list_cpus(root)
        self._sampled_cpus = self._cpus or tuple(all_cpus[:: max(1, len(all_cpus) // _MAX_SAMPLED_CPUS)])
        self._start_state = self._read_state()
        # Read the times last, so that reading the state does not count as use of CPUs.
        self._start_times = read_cpu_times(root)
        self._started_at = time.monotonic()

    def ended(self, *, own_cpu_seconds: float) -> RoundState:
        """Return the state and use of the machine; call this when the round's process has ended."""
        seconds = time.monotonic() - self._started_at
        times = read_cpu_times(self._root)
        return RoundState(
            before=self._start_state,
            after=self._read_state(),
            seconds=seconds,
            all_cpus=measure_cpu_use(self._start_times, times, own_cpu_seconds),
            own_cpus=measure_cpu_use(self._start_times, times, own_cpu_seconds, self._cpus) if self._cpus else None,
        )

    def _read_state(self) -> MachineState:
        gpus = read_gpus(self._device) if self._device else None
        return read_machine_state(root=self._root, cpus=self._sampled_cpus, gpus=gpus)


def _is_over(share: float, use: CpuUse, limit: float) -> bool:
    """Return whether a share exceeds its limit by more than the kernel's ticks can account for."""
    return share - use.share_error > limit


def _measure_growth(previous: int | None, current: int | None) -> int | None:
    return None if previous is None or current is None else max(0, current - previous)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _record_shares(prefix: str, use: CpuUse | None) -> dict[str, float]:
    """Return the shares of some CPUs, for the journal."""
    return {} if use is None else {f"{prefix}{name}": round(getattr(use, name), 4) for name in _SHARE_FIELDS}


def _round_optional(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _find_gpu_causes(start_states: Sequence[GpuState], end_states: Sequence[GpuState], seconds: float) -> Iterator[str]:
    previous_states = {gpu.index: gpu for gpu in start_states}
    for gpu in end_states:
        previous = previous_states.get(gpu.index)
        yield from _find_slowdowns(previous, gpu, seconds)
        is_working = previous is not None and not previous.idle and not gpu.idle
        first, last = previous.clock_mhz if previous and is_working else None, gpu.clock_mhz
        if first and last is not None and last < first * (1 - _MAX_MHZ_DROP):
            yield (
                f"the clock of {gpu.label} fell from {first:.0f} to {last:.0f} MHz, by {_percent(1 - last / first)}"
                f" ({_percent(_MAX_MHZ_DROP)} is tolerated)"
            )
        other_pids = sorted({*(gpu.others or ()), *((previous.others or ()) if previous else ())})
        if other_pids:
            pid_list = ", ".join(map(str, other_pids[:4])) + (" …" if len(other_pids) > 4 else "")
            noun = "process" if len(other_pids) == 1 else "processes"
            yield f"{len(other_pids)} other {noun} on {gpu.label} (pid {pid_list}; 0 is tolerated)"


def _find_slowdowns(previous: GpuState | None, gpu: GpuState, seconds: float) -> Iterator[str]:
    shares = _measure_shares(previous, gpu, seconds)
    temperature = f" at {gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else ""
    counted_causes = [cause for cause, share in shares.items() if share > _MAX_HEAT and cause is not Slowdown.POWER_CAP]
    for cause in counted_causes:
        yield (
            f"{gpu.label} was slowed down for {_percent(shares[cause])} of the round: {cause}{temperature}"
            f" ({_percent(_MAX_HEAT)} is tolerated)"
        )
    # Other causes have no counter, so they are known only for the moments of the two readings.
    reported_causes = (*(previous.slowdown_reasons if previous else ()), *gpu.slowdown_reasons)
    for reason in dict.fromkeys(reported_causes):
        if reason not in counted_causes and (reason not in shares or reason in gpu.slowdown_reasons):
            yield f"{gpu.label} is slowed down: {reason}{temperature}"


def _measure_shares(previous: GpuState | None, gpu: GpuState, seconds: float) -> dict[Slowdown, float]:
    """Return for each cause with a counter the fraction of the round in which it applied, 0 to 1."""
    if previous is None:
        return {}
    if previous.uptime is not None and gpu.uptime is not None:
        seconds = gpu.uptime - previous.uptime
    if seconds <= 0:
        return {}
    previous_amounts = dict(previous.throttled)
    return {
        cause: min(1.0, max(0.0, amount - previous_amounts[cause]) / seconds)
        for cause, amount in gpu.throttled
        if cause in previous_amounts
    }
