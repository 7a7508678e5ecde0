"""NVIDIA GPUs: what `nvidia-smi` says of them.

Fields as `nvidia-smi --help-query-gpu` describes them. What is `clocks_event_reasons` since release 535 was
`clocks_throttle_reasons` before; the counters with them, in µs, came later still. A tool refuses a question as a
whole for one field that it does not know, so the richest one is asked first.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from iree_gauntlet.measuring.machine.gpu_state import GpuState, Slowdown, ToolAnswerError, number_of

if TYPE_CHECKING:
    from collections.abc import Callable


_FIELDS = "index,uuid,clocks.sm,clocks.max.sm,temperature.gpu,utilization.gpu,power.draw"
_COUNTERS = {
    "hw_thermal_slowdown": Slowdown.HEAT,
    "sw_thermal_slowdown": Slowdown.HEAT,
    "hw_power_brake_slowdown": Slowdown.POWER_BRAKE,
    "sw_power_cap": Slowdown.POWER_CAP,
}
_QUESTIONS = (
    ("clocks_event_reasons.active", tuple(f"clocks_event_reasons_counters.{name}" for name in _COUNTERS)),
    ("clocks_event_reasons.active", ()),
    ("clocks_throttle_reasons.active", ()),
)
_NUMBER = re.compile(r"[0-9]{1,9}")
# nvml.h: nvmlClocksEventReasonGpuIdle and those after it.
_BITS = (
    (0x01, Slowdown.IDLE),
    (0x02, Slowdown.CHOSEN_CLOCKS),
    (0x04, Slowdown.POWER_CAP),
    (0x08, Slowdown.HARDWARE),
    (0x10, Slowdown.SYNC_BOOST),
    (0x20, Slowdown.HEAT),
    (0x40, Slowdown.HEAT),
    (0x80, Slowdown.POWER_BRAKE),
    (0x100, Slowdown.DISPLAY),
)


def read_nvidia(ask: Callable[..., str]) -> tuple[GpuState, ...]:
    """The GPUs that nvidia-smi knows, with the processes that compute on them.

    Args:
        ask: asks the tool with these arguments.

    Raises:
        ToolAnswerError: it gave no answer that can be read.
    """
    gpus = _states(ask)
    try:
        answer = ask("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
    except ToolAnswerError:
        return gpus
    holders: dict[str, set[int]] = {gpu.uuid: set() for gpu in gpus}
    for line in answer.splitlines():
        uuid, _, pid = (word.strip() for word in line.partition(","))
        if not _NUMBER.fullmatch(pid) or uuid not in holders:
            return gpus  # `[Insufficient Permissions]`: others may be there, unseen
        holders[uuid].add(int(pid))
    return tuple(replace(gpu, others=tuple(sorted(holders[gpu.uuid]))) for gpu in gpus)


def _states(ask: Callable[..., str]) -> tuple[GpuState, ...]:
    for reasons, counters in _QUESTIONS[:-1]:
        try:
            return _asked(ask, reasons, counters)
        except ToolAnswerError as error:
            if "not a valid field" not in str(error):
                raise
    return _asked(ask, *_QUESTIONS[-1])


def _asked(ask: Callable[..., str], reasons: str, counters: tuple[str, ...]) -> tuple[GpuState, ...]:
    # The name comes last, whatever is in it.
    fields = ",".join((_FIELDS, reasons, *counters, "name"))
    answer = ask(f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    return tuple(_state(line, len(counters)) for line in answer.splitlines() if line.strip())


def _state(line: str, counters: int) -> GpuState:
    words = [word.strip() for word in line.split(",", 8 + counters)]
    if len(words) != 9 + counters or not _NUMBER.fullmatch(words[0]):
        raise ToolAnswerError(f"printed what is no GPU: {line.strip()[:80]}")
    index, uuid, clock, most, temperature, utilization, power, reasons = words[:8]
    return GpuState(
        index=int(index),
        name=words[-1],
        uuid=uuid,
        clock_mhz=number_of(clock),
        max_clock_mhz=number_of(most),
        temperature_c=number_of(temperature),
        utilization_percent=number_of(utilization),
        power_w=number_of(power),
        reasons=_reasons(reasons),
        throttled=_throttled(words[8:-1]),
    )


def _reasons(text: str) -> tuple[Slowdown, ...]:
    try:
        bits = int(text, 16)
    except ValueError:
        return ()
    found = [reason for bit, reason in _BITS if bits & bit]
    # Hardware slowdown is the sum of its causes where these are named.
    cause_named = Slowdown.HEAT in found or Slowdown.POWER_BRAKE in found
    return tuple(dict.fromkeys(reason for reason in found if not (cause_named and reason is Slowdown.HARDWARE)))


def _throttled(words: list[str]) -> tuple[tuple[Slowdown, float], ...]:
    """Seconds by reason: of heat, those that the hardware and those that the driver has ordered."""
    found: dict[Slowdown, float] = {}
    for reason, word in zip(_COUNTERS.values(), words, strict=False):
        microseconds = number_of(word)
        if microseconds is not None:
            found[reason] = found.get(reason, 0.0) + microseconds / 1e6
    return tuple(found.items())
