"""What the vendors' tools say of GPUs: `nvidia-smi`, `amd-smi`, and `rocm-smi` where only that is there.

`nvidia-smi`: fields as `nvidia-smi --help-query-gpu` describes them. What is `clocks_event_reasons` since release 535
was `clocks_throttle_reasons` before; the counters with them, in µs, came later still. A tool refuses a question as a
whole for one field that it does not know, so the richest one is asked first.

`amd-smi metric --json` gives a list of GPUs, since ROCm 7 as the field `gpu_data` of an object. Its figures are
`{"value": 54, "unit": "C"}`, and the text `N/A` where there is none. `rocm-smi --json` gives an object of cards,
each one flat, with all figures as text.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.measuring.machine.gpu_state import GpuState, Slowdown, ToolAnswerError, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_NVIDIA_FIELDS = "index,uuid,clocks.sm,clocks.max.sm,temperature.gpu,utilization.gpu,power.draw"
_NVIDIA_COUNTERS = {
    "hw_thermal_slowdown": Slowdown.HEAT,
    "sw_thermal_slowdown": Slowdown.HEAT,
    "hw_power_brake_slowdown": Slowdown.POWER_BRAKE,
    "sw_power_cap": Slowdown.POWER_CAP,
}
_NVIDIA_QUESTIONS = (
    ("clocks_event_reasons.active", tuple(f"clocks_event_reasons_counters.{name}" for name in _NVIDIA_COUNTERS)),
    ("clocks_event_reasons.active", ()),
    ("clocks_throttle_reasons.active", ()),
)
_NUMBER = re.compile(r"[0-9]{1,9}")
# nvml.h: nvmlClocksEventReasonGpuIdle and those after it.
_NVIDIA_REASONS = (
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
# Of each: the name in `<name>_violation_status` and `<name>_accumulated`.
_AMD_VIOLATIONS = {
    "prochot": Slowdown.HEAT,
    "socket_thermal": Slowdown.HEAT,
    "vr_thermal": Slowdown.HEAT,
    "hbm_thermal": Slowdown.HEAT,
    "ppt": Slowdown.POWER_CAP,
}
_GFX = re.compile(r"gfx(_[0-9]+)?")
_CARD = re.compile(r"card([0-9]{1,4})")
_PID = re.compile(r"PID\s*([0-9]{1,9})")


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
    for reasons, counters in _NVIDIA_QUESTIONS[:-1]:
        try:
            return _asked(ask, reasons, counters)
        except ToolAnswerError as error:
            if "not a valid field" not in str(error):
                raise
    return _asked(ask, *_NVIDIA_QUESTIONS[-1])


def _asked(ask: Callable[..., str], reasons: str, counters: tuple[str, ...]) -> tuple[GpuState, ...]:
    # The name comes last, whatever is in it.
    fields = ",".join((_NVIDIA_FIELDS, reasons, *counters, "name"))
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
        throttled=_summed(zip(_NVIDIA_COUNTERS.values(), map(_seconds, words[8:-1]), strict=False)),
    )


def _reasons(text: str) -> tuple[Slowdown, ...]:
    try:
        bits = int(text, 16)
    except ValueError:
        return ()
    found = [reason for bit, reason in _NVIDIA_REASONS if bits & bit]
    # Hardware slowdown is the sum of its causes where these are named.
    cause_named = Slowdown.HEAT in found or Slowdown.POWER_BRAKE in found
    return tuple(dict.fromkeys(reason for reason in found if not (cause_named and reason is Slowdown.HARDWARE)))


def _seconds(microseconds: str) -> float | None:
    amount = number_of(microseconds)
    return None if amount is None else amount / 1e6


def _summed(amounts: Iterable[tuple[Slowdown, float | None]]) -> tuple[tuple[Slowdown, float], ...]:
    """How much of each reason there was, over all counters of it that are known."""
    found: dict[Slowdown, float] = {}
    for reason, amount in amounts:
        if amount is not None:
            found[reason] = found.get(reason, 0.0) + amount
    return tuple(found.items())


def read_amd_smi(ask: Callable[..., str]) -> tuple[GpuState, ...]:
    """The GPUs that amd-smi knows, with the processes on them.

    Args:
        ask: asks the tool with these arguments.

    Raises:
        ToolAnswerError: it gave no answer that can be read.
    """
    gpus = tuple(_metric(entry) for entry in _gpu_entries(_document(ask("metric", "--json"))))
    try:
        holders = dict(_holders(_document(ask("process", "--json"))))
    except ToolAnswerError:
        return gpus
    return tuple(replace(gpu, others=holders.get(gpu.index)) for gpu in gpus)


def read_rocm_smi(ask: Callable[..., str]) -> tuple[GpuState, ...]:
    """The GPUs that rocm-smi knows.

    It lists the processes of all GPUs together: with more than one GPU, it is not known whose they are.

    Args:
        ask: asks the tool with these arguments.

    Raises:
        ToolAnswerError: it gave no answer that can be read.
    """
    shown = ("--showproductname", "--showuse", "--showclocks", "--showpower", "--showtemp")
    document = _document(ask(*shown, "--json"))
    cards = document.items() if isinstance(document, dict) else ()
    gpus = tuple(
        _card(int(found[1]), fields)
        for key, fields in cards
        if (found := _CARD.fullmatch(key)) and isinstance(fields, dict)
    )
    if len(gpus) != 1:
        return gpus
    try:
        answer = ask("--showpids", "--json")
        listed = {"system": {}} if "No JSON data" in answer else _document(answer)
    except ToolAnswerError:
        return gpus
    system = listed.get("system") if isinstance(listed, dict) else None
    if not isinstance(system, dict):
        return gpus
    pids = tuple(sorted(int(found[1]) for key in system if (found := _PID.fullmatch(key))))
    return (replace(gpus[0], others=pids),)


def _document(answer: str) -> Any:
    # Both tools warn on standard output, before what was asked for.
    begin = re.search(r"^[ \t]*[\[{]", answer, re.MULTILINE)
    try:
        return json.loads(answer[begin.start() :] if begin else answer)
    except (ValueError, RecursionError):
        raise ToolAnswerError(f"printed what is no JSON: {answer.strip()[:80]}") from None


def _gpu_entries(document: Any) -> Iterator[dict[str, Any]]:
    entries = document.get("gpu_data") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise ToolAnswerError("printed JSON that is no list of GPUs")
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("gpu"), int):
            yield entry


def _metric(entry: dict[str, Any]) -> GpuState:
    clocks = [
        part for name, part in _section(entry, "clock").items() if _GFX.fullmatch(name) and isinstance(part, dict)
    ]
    temperature, power, throttle = (_section(entry, name) for name in ("temperature", "power", "throttle"))
    return GpuState(
        index=entry["gpu"],
        clock_mhz=_largest(_first(part, "clk", "cur_clk") for part in clocks),
        max_clock_mhz=_largest(_first(part, "max_clk") for part in clocks),
        temperature_c=_first(temperature, "hotspot", "edge"),
        utilization_percent=_first(_section(entry, "usage"), "gfx_activity"),
        power_w=_first(power, "socket_power", "current_socket_power", "average_socket_power"),
        reasons=_violations(throttle, power),
        throttled=_summed(_accumulated(throttle)),
        uptime=_value(throttle.get("accumulation_counter")),
    )


def _violations(throttle: dict[str, Any], power: dict[str, Any]) -> tuple[Slowdown, ...]:
    """Of cards without violations, only that they are throttled is known."""
    found = [cause for name, cause in _AMD_VIOLATIONS.items() if throttle.get(f"{name}_violation_status") == "ACTIVE"]
    unnamed = [Slowdown.UNNAMED] if power.get("throttle_status") == "THROTTLED" else []
    return tuple(dict.fromkeys(found or unnamed))


def _accumulated(throttle: dict[str, Any]) -> Iterator[tuple[Slowdown, float | None]]:
    for name, cause in _AMD_VIOLATIONS.items():
        yield cause, _first(throttle, f"{name}_accumulated", f"{name}_violation_accumulated")


def _holders(document: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Processes by GPU; a GPU with an entry that cannot be understood is left out."""
    for entry in _gpu_entries(document):
        listed = entry.get("process_list")
        if not isinstance(listed, list):
            continue
        pids: list[int] | None = []
        for item in listed:
            info = item.get("process_info", item) if isinstance(item, dict) else None
            if isinstance(info, dict) and isinstance(info.get("pid"), int):
                pids = None if pids is None else [*pids, info["pid"]]
            elif not (isinstance(info, str) and info.startswith("No running process")):
                pids = None
        if pids is not None:
            yield entry["gpu"], tuple(sorted(pids))


def _card(index: int, fields: dict[str, Any]) -> GpuState:
    clock = re.search(r"([0-9]{1,6})\s*[Mm][Hh]z", str(fields.get("sclk clock speed:", "")))
    return GpuState(
        index=index,
        name=str(fields.get("Card Series") or fields.get("Card series") or ""),
        clock_mhz=float(clock[1]) if clock else None,
        temperature_c=_first(fields, "Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)"),
        utilization_percent=_first(fields, "GPU use (%)"),
        power_w=_first(fields, "Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)"),
    )


def _section(entry: dict[str, Any], name: str) -> dict[str, Any]:
    found = entry.get(name)
    return found if isinstance(found, dict) else {}


def _first(fields: dict[str, Any], *names: str) -> float | None:
    return next((value for name in names if (value := _value(fields.get(name))) is not None), None)


def _value(field: Any) -> float | None:
    return number_of(field.get("value") if isinstance(field, dict) else field)


def _largest(values: Iterator[float | None]) -> float | None:
    """A card without a figure for its highest clock gives 0."""
    return max((value for value in values if value), default=None)
