"""The state of GPUs, as their vendor's tool reports it: `nvidia-smi`, `amd-smi`, or else `rocm-smi`.

The tools run only for devices that are GPUs. A tool may be missing, fail, hang (on a defective driver) or print
something unexpected; the reading is then empty and has the reason. Reading never raises an error, since a failure to
read the temperature must not fail a measurement.

`nvidia-smi`: fields as `nvidia-smi --help-query-gpu` describes them. `clocks_event_reasons` (since release 535) was
named `clocks_throttle_reasons` before; its counters, in µs, came later still. A tool rejects a whole query for one
field that it does not support, so the richest query is tried first.

`amd-smi metric --json` gives a list of GPUs, since ROCm 7 as the field `gpu_data` of an object. Its values are
`{"value": 54, "unit": "C"}`, and the text `N/A` if there is none. `rocm-smi --json` gives an object of cards,
each one flat, with all values as text.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from iree_gauntlet.device_kinds import find_driver, find_kind, split_device
from iree_gauntlet.system.short_process import run_short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    # An object of a tool's JSON.
    Fields = dict[str, Any]


_IDLE_PERCENT = 5.0
_NVIDIA_FIELDS = "index,uuid,clocks.sm,clocks.max.sm,temperature.gpu,utilization.gpu,power.draw"
_NUMBER_PATTERN = re.compile(r"[0-9]{1,9}")
_GFX_CLOCK_PATTERN = re.compile(r"gfx(_[0-9]+)?")
_CARD_PATTERN = re.compile(r"card([0-9]{1,4})")
_PID_PATTERN = re.compile(r"PID\s*([0-9]{1,9})")
# This stands for a device's name: all GPUs of the machine.
ANY_GPU = "gpu"
# amd-smi is a Python program and takes half a second on a machine with eight GPUs.
_TIMEOUT_SECONDS = 5.0


class ToolAnswerError(Exception):
    """A vendor's tool failed or printed something unreadable; the text continues after the tool's name."""


class Slowdown(StrEnum):
    """The reason why a GPU's clock is not as high as it could be.

    NVIDIA's are the bits of NVML's NvmlClocksEventReasons, AMD's the violations of amdsmi_violation_status_t.
    """

    IDLE = "idle"
    CHOSEN_CLOCKS = "clocks chosen by a user"
    DISPLAY = "display clocks"
    SYNC_BOOST = "kept with the slowest of its group"
    POWER_CAP = "at its power limit"
    HEAT = "heat"
    POWER_BRAKE = "power brake"
    HARDWARE = "slowed down by the hardware"
    UNNAMED = "throttled, cause unknown"


# No benchmark should run under these. The power limit is not one of them, since a busy large GPU normally runs at it.
_FAULT_REASONS = (Slowdown.HEAT, Slowdown.POWER_BRAKE, Slowdown.HARDWARE)


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU at one moment. None, or empty, if the tool does not report a value.

    Attributes:
        temperature_c: the temperature of the hottest spot, if that is reported.
        utilization_percent: the fraction of the last moments (up to a second) in which the GPU was busy, 0 to 100.
        throttled: for each reason, how long it has applied since the driver was loaded, in the unit of `uptime`.
        uptime: the present reading of the clock that measures `throttled`; None if `throttled` is in seconds.
        others: the processes on the GPU; None if they are unknown.
    """

    index: int
    name: str = ""
    uuid: str = ""
    clock_mhz: float | None = None
    max_clock_mhz: float | None = None
    temperature_c: float | None = None
    utilization_percent: float | None = None
    power_w: float | None = None
    reasons: tuple[Slowdown, ...] = ()
    throttled: tuple[tuple[Slowdown, float], ...] = ()
    uptime: float | None = None
    others: tuple[int, ...] | None = None

    def as_dict(self) -> Fields:
        """Return the known values for the journal."""
        fields = {name: value for name, value in asdict(self).items() if value not in (None, "", ())}
        if "throttled" in fields:
            fields["throttled"] = {str(cause): amount for cause, amount in self.throttled}
        return fields | ({"others": list(self.others)} if self.others is not None else {})

    @property
    def label(self) -> str:
        """A name for people."""
        return f"GPU {self.index} ({self.name})" if self.name else f"GPU {self.index}"

    @property
    def slowdown_reasons(self) -> tuple[Slowdown, ...]:
        """The reasons that mean heat or a failing power supply."""
        return tuple(reason for reason in self.reasons if reason in _FAULT_REASONS)

    @property
    def idle(self) -> bool:
        """True if nothing runs on the GPU, so that its clock is lower than under load."""
        has_low_use = self.utilization_percent is not None and self.utilization_percent < _IDLE_PERCENT
        return Slowdown.IDLE in self.reasons or has_low_use


def parse_number(value: object) -> float | None:
    """Return the number of a tool's field, with or without its unit; None for `[N/A]` and the like."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = value.strip().partition(" ")[0].rstrip("%")
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


_NVIDIA_COUNTERS = {
    "hw_thermal_slowdown": Slowdown.HEAT,
    "sw_thermal_slowdown": Slowdown.HEAT,
    "hw_power_brake_slowdown": Slowdown.POWER_BRAKE,
    "sw_power_cap": Slowdown.POWER_CAP,
}
_NVIDIA_QUERIES = (
    ("clocks_event_reasons.active", tuple(f"clocks_event_reasons_counters.{name}" for name in _NVIDIA_COUNTERS)),
    ("clocks_event_reasons.active", ()),
    ("clocks_throttle_reasons.active", ()),
)
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
# Each is the name in `<name>_violation_status` and `<name>_accumulated`.
_AMD_VIOLATIONS = {
    "prochot": Slowdown.HEAT,
    "socket_thermal": Slowdown.HEAT,
    "vr_thermal": Slowdown.HEAT,
    "hbm_thermal": Slowdown.HEAT,
    "ppt": Slowdown.POWER_CAP,
}


def read_nvidia(ask: Callable[..., str]) -> tuple[GpuState, ...]:
    """Read the GPUs that nvidia-smi reports, with the processes that compute on them."""
    for reasons, counters in _NVIDIA_QUERIES:
        # The name comes last, as it may contain any characters.
        fields = ",".join((_NVIDIA_FIELDS, reasons, *counters, "name"))
        try:
            answer = ask(f"--query-gpu={fields}", "--format=csv,noheader,nounits")
            break
        except ToolAnswerError as error:
            if "not a valid field" not in str(error) or (reasons, counters) == _NVIDIA_QUERIES[-1]:
                raise
    gpus = tuple(_parse_nvidia_state(line, len(counters)) for line in answer.splitlines() if line.strip())
    try:
        answer = ask("--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
    except ToolAnswerError:
        return gpus
    holders: dict[str, set[int]] = {gpu.uuid: set() for gpu in gpus}
    for line in answer.splitlines():
        uuid, _, pid = (word.strip() for word in line.partition(","))
        if not _NUMBER_PATTERN.fullmatch(pid) or uuid not in holders:
            return gpus  # `[Insufficient Permissions]`: other processes may exist, unseen
        holders[uuid].add(int(pid))
    return tuple(replace(gpu, others=tuple(sorted(holders[gpu.uuid]))) for gpu in gpus)


def _parse_nvidia_state(line: str, counters: int) -> GpuState:
    words = [word.strip() for word in line.split(",", 8 + counters)]
    if len(words) != 9 + counters or not _NUMBER_PATTERN.fullmatch(words[0]):
        raise ToolAnswerError(f"printed something that is not a GPU: {line.strip()[:80]}")
    index, uuid, clock, max_clock, temperature, utilization, power, reasons = words[:8]
    microseconds = [parse_number(word) for word in words[8:-1]]
    seconds = [None if amount is None else amount / 1e6 for amount in microseconds]
    return GpuState(
        index=int(index),
        name=words[-1],
        uuid=uuid,
        clock_mhz=parse_number(clock),
        max_clock_mhz=parse_number(max_clock),
        temperature_c=parse_number(temperature),
        utilization_percent=parse_number(utilization),
        power_w=parse_number(power),
        reasons=_parse_reasons(reasons),
        throttled=_sum_reasons(zip(_NVIDIA_COUNTERS.values(), seconds, strict=False)),
    )


def _parse_reasons(text: str) -> tuple[Slowdown, ...]:
    try:
        bits = int(text, 16)
    except ValueError:
        return ()
    reasons = [reason for bit, reason in _NVIDIA_REASONS if bits & bit]
    # Drop `HARDWARE` if its causes (heat, power brake) are reported, because it only combines them.
    has_cause = Slowdown.HEAT in reasons or Slowdown.POWER_BRAKE in reasons
    return tuple(dict.fromkeys(reason for reason in reasons if not (has_cause and reason is Slowdown.HARDWARE)))


def _sum_reasons(amounts: Iterable[tuple[Slowdown, float | None]]) -> tuple[tuple[Slowdown, float], ...]:
    """Sum the amounts of each reason over all of its counters that are known."""
    totals: dict[Slowdown, float] = {}
    for reason, amount in amounts:
        if amount is not None:
            totals[reason] = totals.get(reason, 0.0) + amount
    return tuple(totals.items())


def read_amd_smi(ask: Callable[..., str]) -> tuple[GpuState, ...]:
    """Read the GPUs that amd-smi reports, with the processes on them."""
    gpus = tuple(_read_metric(entry) for entry in _list_gpu_entries(_parse_document(ask("metric", "--json"))))
    try:
        holders = dict(_read_holders(_parse_document(ask("process", "--json"))))
    except ToolAnswerError:
        return gpus
    return tuple(replace(gpu, others=holders.get(gpu.index)) for gpu in gpus)


def read_rocm_smi(ask: Callable[..., str]) -> tuple[GpuState, ...]:
    """Read the GPUs that rocm-smi reports.

    The tool lists the processes of all GPUs together, so with several GPUs the processes of each are unknown.
    """
    options = ("--showproductname", "--showuse", "--showclocks", "--showpower", "--showtemp")
    document = _parse_document(ask(*options, "--json"))
    cards = document.items() if isinstance(document, dict) else ()
    gpus = tuple(
        _read_card(int(match[1]), fields)
        for key, fields in cards
        if (match := _CARD_PATTERN.fullmatch(key)) and isinstance(fields, dict)
    )
    if len(gpus) != 1:
        return gpus
    try:
        answer = ask("--showpids", "--json")
        process_document = {"system": {}} if "No JSON data" in answer else _parse_document(answer)
    except ToolAnswerError:
        return gpus
    system = process_document.get("system") if isinstance(process_document, dict) else None
    if not isinstance(system, dict):
        return gpus
    pids = tuple(sorted(int(match[1]) for key in system if (match := _PID_PATTERN.fullmatch(key))))
    return (replace(gpus[0], others=pids),)


def _parse_document(answer: str) -> Any:
    # Both tools print warnings on standard output, before the document.
    begin = re.search(r"^[ \t]*[\[{]", answer, re.MULTILINE)
    try:
        return json.loads(answer[begin.start() :] if begin else answer)
    except (ValueError, RecursionError):
        raise ToolAnswerError(f"printed something that is not JSON: {answer.strip()[:80]}") from None


def _list_gpu_entries(document: Any) -> Iterator[Fields]:
    entries = document.get("gpu_data") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise ToolAnswerError("printed JSON that is not a list of GPUs")
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("gpu"), int):
            yield entry


def _read_metric(entry: Fields) -> GpuState:
    clocks = [
        part
        for name, part in _get_section(entry, "clock").items()
        if _GFX_CLOCK_PATTERN.fullmatch(name) and isinstance(part, dict)
    ]
    temperature, power, throttle = (_get_section(entry, name) for name in ("temperature", "power", "throttle"))
    active = [cause for name, cause in _AMD_VIOLATIONS.items() if throttle.get(f"{name}_violation_status") == "ACTIVE"]
    # Cards without violations report only that they are throttled.
    unknown_causes = [Slowdown.UNNAMED] if power.get("throttle_status") == "THROTTLED" else []
    return GpuState(
        index=entry["gpu"],
        clock_mhz=_find_largest(_find_first(part, "clk", "cur_clk") for part in clocks),
        max_clock_mhz=_find_largest(_find_first(part, "max_clk") for part in clocks),
        temperature_c=_find_first(temperature, "hotspot", "edge"),
        utilization_percent=_find_first(_get_section(entry, "usage"), "gfx_activity"),
        power_w=_find_first(power, "socket_power", "current_socket_power", "average_socket_power"),
        reasons=tuple(dict.fromkeys(active or unknown_causes)),
        throttled=_sum_reasons(
            (cause, _find_first(throttle, f"{name}_accumulated", f"{name}_violation_accumulated"))
            for name, cause in _AMD_VIOLATIONS.items()
        ),
        uptime=_read_value(throttle.get("accumulation_counter")),
    )


def _read_holders(document: Any) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the processes of each GPU; a GPU with an entry that cannot be understood is left out."""
    for entry in _list_gpu_entries(document):
        process_list = entry.get("process_list")
        if not isinstance(process_list, list):
            continue
        infos = [
            process_entry.get("process_info", process_entry) if isinstance(process_entry, dict) else None
            for process_entry in process_list
        ]
        running = [info for info in infos if not (isinstance(info, str) and info.startswith("No running process"))]
        pids = [info["pid"] for info in running if isinstance(info, dict) and isinstance(info.get("pid"), int)]
        if len(pids) == len(running):
            yield entry["gpu"], tuple(sorted(pids))


def _read_card(index: int, fields: Fields) -> GpuState:
    clock = re.search(r"([0-9]{1,6})\s*[Mm][Hh]z", str(fields.get("sclk clock speed:", "")))
    return GpuState(
        index=index,
        name=str(fields.get("Card Series") or fields.get("Card series") or ""),
        clock_mhz=float(clock[1]) if clock else None,
        temperature_c=_find_first(fields, "Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)"),
        utilization_percent=_find_first(fields, "GPU use (%)"),
        power_w=_find_first(fields, "Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)"),
    )


def _get_section(entry: Fields, name: str) -> Fields:
    section = entry.get(name)
    return section if isinstance(section, dict) else {}


def _find_first(fields: Fields, *names: str) -> float | None:
    return next((value for name in names if (value := _read_value(fields.get(name))) is not None), None)


def _read_value(field: Any) -> float | None:
    return parse_number(field.get("value") if isinstance(field, dict) else field)


def _find_largest(values: Iterator[float | None]) -> float | None:
    """Return the largest value; None if there is none. A card without a known maximum clock gives 0."""
    return max((value for value in values if value), default=None)


_TOOLS = {"nvidia-smi": read_nvidia, "amd-smi": read_amd_smi, "rocm-smi": read_rocm_smi}


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The reading of a vendor's tool: the GPUs that a device may mean, or one line why they could not be read."""

    gpus: tuple[GpuState, ...] = ()
    problem: str = ""


def is_gpu(device: str) -> bool:
    """Return whether an IREE device (`hip://0`) is a GPU that a tool may support."""
    return bool(_list_tools(device))


def read_gpus(device: str, *, path: str | None = None, timeout: float = _TIMEOUT_SECONDS) -> GpuReading:
    """Read the state of the GPUs that a device (`cuda`, `hip://1`, `vulkan`, `ANY_GPU`) may mean; nothing for others.

    `path` has the folders in which the tools are searched, PATH if None; each may take `timeout` seconds.
    """
    problems = []
    for tool in _list_tools(device):
        program = shutil.which(tool, path=path)
        if program is None:
            problems.append(f"there is no {tool}")
            continue
        try:
            gpus = _TOOLS[tool](partial(_run_tool, program, timeout))
        except ToolAnswerError as error:
            problems.append(f"{tool} {error}")
            continue
        if gpus:
            return GpuReading(pick_gpus(gpus, device, os.environ))
        problems.append(f"{tool} lists no GPU")
    return GpuReading((), "; ".join(problems))


def pick_gpus(gpus: Sequence[GpuState], device: str, environment: Mapping[str, str]) -> tuple[GpuState, ...]:
    """Return a machine's GPUs that a device means; all of them if that is unknown.

    The driver's numbers are the tool's only if nothing hides or reorders GPUs: CUDA puts the fastest first
    unless CUDA_DEVICE_ORDER changes it, and Vulkan has its own order.
    """
    driver, path = find_driver(device), split_device(device)[1].partition("?")[0]
    if path and not path.isdecimal():
        return _match_uuid(gpus, path) or tuple(gpus)
    ordinal = int(path or 0)
    lists = [environment[name] for name in driver.visibility if environment.get(name)]
    are_identical = len({gpu.name for gpu in gpus}) == 1
    has_bus_order = driver.bus_order or are_identical or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not driver.has_ordinals or driver.name == ANY_GPU or len(lists) > 1:
        return tuple(gpus)
    if lists:
        words = [word.strip() for word in lists[0].split(",")]
        word = words[ordinal] if ordinal < len(words) else ""
        if not word.isdecimal():
            return (_match_uuid(gpus, word) if word else ()) or tuple(gpus)
        ordinal = int(word)
    return tuple(gpu for gpu in gpus if has_bus_order and gpu.index == ordinal) or tuple(gpus)


def name_gpu(device: str) -> str:
    """Return a name that identifies a GPU across drivers; for a device without a UUID, its own name.

    CUDA's `cuda://GPU-b08a9e40-5f0c-29dd-4c3d-9692503045f4` is the same GPU as Vulkan's
    `vulkan://GPU-b08a9e405f0c29dd4c3d9692503045f4`.
    """
    path = device.partition("://")[2].partition("?")[0]
    return _normalise_uuid(path) if path.lower().startswith("gpu-") else device


def _match_uuid(gpus: Sequence[GpuState], uuid: str) -> tuple[GpuState, ...]:
    return tuple(gpu for gpu in gpus if gpu.uuid and _normalise_uuid(gpu.uuid).startswith(_normalise_uuid(uuid)))


def _normalise_uuid(uuid: str) -> str:
    return uuid.lower().replace("-", "")


def _list_tools(device: str) -> tuple[str, ...]:
    """List the tools that may support a device, the first choice first."""
    return tuple(_TOOLS) if device == ANY_GPU else find_kind(device).state_tools


def _run_tool(program: str, timeout: float, *arguments: str) -> str:
    """Return the standard output of a tool."""
    try:
        answer = run_short([program, *arguments], timeout=timeout)
    except OSError as error:
        raise ToolAnswerError(f"cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise ToolAnswerError(f"did not answer within {timeout:g} s") from None
    if answer.exit_code != 0:
        lines = f"{answer.stderr}\n{answer.stdout}".splitlines()
        message = next((line.strip() for line in lines if line.strip()), "no message")
        raise ToolAnswerError(f"failed (exit code {answer.exit_code}): {message[:160]}")
    return answer.stdout
