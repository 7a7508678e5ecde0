"""Reading GPUs' states with the vendors' tools, also broken ones; fakes on PATH print output in the recorded form."""

from __future__ import annotations

import contextlib
import json
import os
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.measuring.machine.gpus import (
    ANY_GPU,
    GpuState,
    Slowdown,
    ToolAnswerError,
    is_gpu,
    parse_number,
    pick_gpus,
    read_amd_smi,
    read_nvidia,
    read_rocm_smi,
)
from iree_gauntlet.measuring.machine.gpus import read_gpus as read_gpus_in_time
from tests.support.command_line import LIMIT_SECONDS
from tests.support.processes import find_processes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# However busy the machine is, a tool that answers is waited for.
read_gpus = partial(read_gpus_in_time, timeout=LIMIT_SECONDS)


def _tool(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n" + textwrap.dedent(body), encoding="utf-8")
    path.chmod(0o755)


def _nvidia(folder: Path, gpus: str, apps: str = "", known: str = "clocks_event_reasons_counters") -> None:
    """An nvidia-smi that knows the fields up to `known`, as releases do."""
    refused = {
        "clocks_event_reasons_counters": "NO_SUCH_FIELD",
        "clocks_event_reasons": "clocks_event_reasons_counters",
        "clocks_throttle_reasons": "clocks_event_reasons",
    }[known]
    _tool(
        folder,
        "nvidia-smi",
        f"""\
        echo "$@" >> "{folder}/asked"
        case "$1" in
        *{refused}*) echo 'Field "{refused}.active" is not a valid field to query.'; exit 2;;
        --query-gpu=*) cat "{folder}/gpus";;
        --query-compute-apps=*) cat "{folder}/apps";;
        esac
        """,
    )
    (folder / "gpus").write_text(gpus, encoding="utf-8")
    (folder / "apps").write_text(apps, encoding="utf-8")


_TWO_H200 = (
    "0, GPU-aaaa, 1980, 1980, 61, 99, 688.21, 0x0000000000000004, 0, 2000000, 0, 5000000, NVIDIA H200\n"
    "1, GPU-bbbb, 345, 1980, [N/A], 0, [N/A], 0x0000000000000001, [N/A], [N/A], [N/A], [N/A], NVIDIA H200\n"
)


def test_two_gpus_of_nvidia(tmp_path: Path) -> None:
    _nvidia(tmp_path, _TWO_H200, "GPU-aaaa, 4242\nGPU-aaaa, 17\n")
    reading = read_gpus(ANY_GPU, path=str(tmp_path))
    assert reading.problem == ""
    busy, idle = reading.gpus
    assert (busy.index, busy.name, busy.uuid) == (0, "NVIDIA H200", "GPU-aaaa")
    assert (busy.clock_mhz, busy.max_clock_mhz, busy.temperature_c) == (1980, 1980, 61)
    assert (busy.utilization_percent, busy.power_w) == (99, 688.21)
    assert (busy.reasons, busy.slowdown_reasons, busy.idle) == ((Slowdown.POWER_CAP,), (), False)
    assert dict(busy.throttled) == {Slowdown.HEAT: 2.0, Slowdown.POWER_BRAKE: 0.0, Slowdown.POWER_CAP: 5.0}
    assert busy.others == (17, 4242)
    assert (idle.temperature_c, idle.power_w, idle.throttled, idle.others) == (None, None, (), ())
    assert idle.idle
    assert idle.as_dict() == {
        "index": 1,
        "name": "NVIDIA H200",
        "uuid": "GPU-bbbb",
        "clock_mhz": 345,
        "max_clock_mhz": 1980,
        "utilization_percent": 0,
        "reasons": ("idle",),
        "others": [],
    }
    json.dumps(busy.as_dict())


@pytest.mark.parametrize(
    ("known", "fields", "questions"),
    [
        ("clocks_event_reasons_counters", "0x60, 1, 2, 3, 4", 1),
        ("clocks_event_reasons", "0x60", 2),
        ("clocks_throttle_reasons", "0x60", 3),
    ],
)
def test_older_releases_know_fewer_fields(known: str, fields: str, questions: int, tmp_path: Path) -> None:
    _nvidia(tmp_path, f"0, GPU-a, 1400, 1980, 88, 100, 300.00, {fields}, NVIDIA A100, the large one\n", known=known)
    (gpu,) = read_gpus("cuda", path=str(tmp_path)).gpus
    assert (gpu.name, gpu.reasons) == ("NVIDIA A100, the large one", (Slowdown.HEAT,))
    asked = (tmp_path / "asked").read_text().splitlines()
    assert sum("--query-gpu=" in line for line in asked) == questions


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        ("0x0000000000000000", ()),
        ("0x0000000000000048", (Slowdown.HEAT,)),
        ("0x0000000000000008", (Slowdown.HARDWARE,)),
        ("0x0000000000000084", (Slowdown.POWER_CAP, Slowdown.POWER_BRAKE)),
        ("0x0000000000000112", (Slowdown.CHOSEN_CLOCKS, Slowdown.SYNC_BOOST, Slowdown.DISPLAY)),
        ("[N/A]", ()),
    ],
)
def test_reasons_of_nvidia(bits: str, reasons: tuple[Slowdown, ...], tmp_path: Path) -> None:
    _nvidia(tmp_path, f"0, GPU-a, 1, 2, 3, 4, 5, {bits}, 0, 0, 0, 0, X\n")
    assert read_gpus("cuda", path=str(tmp_path)).gpus[0].reasons == reasons


def test_processes_that_may_not_be_seen_are_not_none(tmp_path: Path) -> None:
    _nvidia(tmp_path, _TWO_H200, "[Insufficient Permissions], [Insufficient Permissions]\n")
    assert read_gpus("cuda://0", path=str(tmp_path)).gpus[0].others is None
    _nvidia(tmp_path, _TWO_H200)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(tool.read_text().replace(f'cat "{tmp_path}/apps"', "exit 3"))
    assert read_gpus("cuda://0", path=str(tmp_path)).gpus[0].others is None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("echo 'NVIDIA-SMI has failed because it could not talk to the driver.'; exit 9", "(exit code 9): NVIDIA-SMI"),
        ("exit 1", "no message"),
        ("echo 'No devices were found'", "printed something that is not a GPU: No devices were found"),
        ("printf '\\377\\376 \\000 rubbish'", "printed something that is not a GPU"),
        ("", "lists no GPU"),
    ],
)
def test_a_sick_tool_is_a_reason_and_no_exception(body: str, problem: str, tmp_path: Path) -> None:
    _tool(tmp_path, "nvidia-smi", body)
    reading = read_gpus("cuda", path=str(tmp_path))
    assert reading.gpus == ()
    assert reading.problem.startswith("nvidia-smi ")
    assert problem in reading.problem
    assert "\n" not in reading.problem


def test_a_tool_that_hangs_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    never = tmp_path / "never"
    os.mkfifo(never)
    _tool(tmp_path, "nvidia-smi", f'cat "{never}" & cat "{never}"')
    assert read_gpus("cuda", path=str(tmp_path), timeout=0.3).problem == "nvidia-smi did not answer within 0.3 s"
    wait_until(lambda: not find_processes(str(never)))


def test_a_tool_that_cannot_be_started(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    assert "nvidia-smi cannot be started" in read_gpus("cuda", path=str(tmp_path)).problem


def test_without_tools(tmp_path: Path) -> None:
    assert read_gpus("cuda", path=str(tmp_path)).problem == "there is no nvidia-smi"
    assert read_gpus("hip://0", path=str(tmp_path)).problem == "there is no amd-smi; there is no rocm-smi"
    for device in ("local-task", "local-sync://", "", "metal"):
        assert not is_gpu(device)
        assert read_gpus(device, path=str(tmp_path)).problem == ""
    assert is_gpu("vulkan://0")


def _quantity(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def _amd_gpu(index: int, **changes: Any) -> dict[str, Any]:
    """As amd-smi of ROCm 7 prints an MI300X, cut short."""
    off = dict.fromkeys(("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal"), "NOT ACTIVE")
    counts = dict.fromkeys(off, 100)
    return {
        "gpu": index,
        "usage": {"gfx_activity": _quantity(91, "%"), "umc_activity": "N/A", "vcn_activity": ["N/A"]},
        "power": {"socket_power": _quantity(740, "W"), "throttle_status": "N/A", "power_management": "ENABLED"},
        "clock": {
            "gfx_0": {"clk": _quantity(2087, "MHz"), "min_clk": "N/A", "max_clk": _quantity(2100, "MHz")},
            "gfx_1": {"clk": _quantity(2091, "MHz"), "max_clk": _quantity(2100, "MHz")},
            "gfx_2": {"clk": "N/A", "max_clk": "N/A"},
            "mem_0": {"clk": _quantity(1300, "MHz"), "max_clk": _quantity(9999, "MHz")},
        },
        "temperature": {"edge": "N/A", "hotspot": _quantity(63, "C"), "mem": _quantity(70, "C")},
        "throttle": {
            "accumulation_counter": 5000,
            **{f"{name}_accumulated": count for name, count in counts.items()},
            **{f"{name}_violation_status": text for name, text in off.items()},
        },
        **changes,
    }


def _amd(folder: Path, metric: object, process: object) -> None:
    folder.mkdir(exist_ok=True)
    for name, document in (("metric", metric), ("process", process)):
        text = document if isinstance(document, str) else json.dumps(document, indent=4)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    _tool(folder, "amd-smi", f'test "$2" = --json && cat "{folder}/$1.json"\n')


_NO_PROCESS = {"process_info": "No running processes detected"}


@pytest.mark.parametrize("wrapped", [True, False])
def test_gpus_of_amd(wrapped: bool, tmp_path: Path) -> None:
    gpus = [_amd_gpu(0), _amd_gpu(1, usage="N/A", clock="N/A", temperature={"edge": _quantity(40, "C")})]
    holders = [
        {"gpu": 0, "process_list": [{"process_info": {"name": "python3", "pid": 4242, "memory_usage": {}}}]},
        {"gpu": 1, "process_list": [_NO_PROCESS]},
    ]
    _amd(tmp_path, {"gpu_data": gpus} if wrapped else gpus, holders)
    first, second = read_gpus(ANY_GPU, path=str(tmp_path)).gpus
    assert (first.clock_mhz, first.max_clock_mhz, first.temperature_c) == (2091, 2100, 63)
    assert (first.utilization_percent, first.power_w, first.reasons) == (91, 740, ())
    assert (dict(first.throttled), first.uptime) == ({Slowdown.HEAT: 400, Slowdown.POWER_CAP: 100}, 5000)
    assert first.others == (4242,)
    assert (second.utilization_percent, second.clock_mhz, second.temperature_c, second.others) == (None, None, 40, ())


def test_violations_and_throttling_of_amd(tmp_path: Path) -> None:
    violated = _amd_gpu(0)
    violated["throttle"] |= {"ppt_violation_status": "ACTIVE", "hbm_thermal_violation_status": "ACTIVE"}
    radeon = _amd_gpu(1, throttle="N/A", power={"socket_power": "N/A", "throttle_status": "THROTTLED"})
    _amd(tmp_path, [violated, radeon], [{"gpu": 0, "process_list": "N/A"}, {"gpu": 1, "process_list": ["what?"]}])
    first, second = read_gpus("hip", path=str(tmp_path)).gpus[:1] + read_gpus("hip://1", path=str(tmp_path)).gpus
    assert first.reasons == (Slowdown.HEAT, Slowdown.POWER_CAP)
    assert second.reasons == (Slowdown.UNNAMED,)
    assert (first.others, second.others) == (None, None)


@pytest.mark.parametrize("answer", ["", "rubbish", "[" * 100_000, "{}", "3", '{"gpu_data": 7}'])
def test_rubbish_of_amd(answer: str, tmp_path: Path) -> None:
    _amd(tmp_path, answer, "")
    assert "amd-smi printed" in read_gpus("hip", path=str(tmp_path)).problem
    # What is asked second does not spoil what was said first.
    _amd(tmp_path, [_amd_gpu(0)], answer)
    assert read_gpus("hip", path=str(tmp_path)).gpus[0].others is None


_CARD = {
    "Temperature (Sensor edge) (C)": "43.0",
    "Temperature (Sensor junction) (C)": "51.0",
    "sclk clock speed:": "(2100Mhz)",
    "Average Graphics Package Power (W)": "28.123",
    "GPU use (%)": "7",
    "Card Series": "Radeon Pro W7900",
}


def _rocm(folder: Path, cards: object, pids: str) -> None:
    (folder / "cards.json").write_text(json.dumps(cards), encoding="utf-8")
    (folder / "pids.json").write_text(pids, encoding="utf-8")
    _tool(
        folder,
        "rocm-smi",
        f"""\
        echo "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status"
        echo
        case "$1" in
        --showpids) cat "{folder}/pids.json";;
        *) cat "{folder}/cards.json";;
        esac
        """,
    )


def test_rocm_smi_where_amd_smi_is_missing_or_sick(tmp_path: Path) -> None:
    _rocm(tmp_path, {"card0": _CARD, "system": {"Driver version": "6.8"}}, '{"system": {"PID4242": "python, 1, 0"}}')
    (gpu,) = read_gpus("hip", path=str(tmp_path)).gpus
    assert gpu == GpuState(
        0, "Radeon Pro W7900", clock_mhz=2100, temperature_c=51, utilization_percent=7, power_w=28.123, others=(4242,)
    )
    _tool(tmp_path, "amd-smi", "exit 1")
    assert read_gpus("hip", path=str(tmp_path)).gpus == (gpu,)


@pytest.mark.parametrize(
    ("pids", "others"),
    [
        ("WARNING: No JSON data to report", ()),
        ('{"system": {}}', ()),
        ("rubbish", None),
        ("[]", None),
        ("{}", None),
        ('{"system": null}', None),
    ],
)
def test_processes_of_rocm_smi(pids: str, others: tuple[int, ...] | None, tmp_path: Path) -> None:
    _rocm(tmp_path, {"card0": {}}, pids)
    (gpu,) = read_gpus("hip", path=str(tmp_path)).gpus
    assert (gpu.others, gpu.clock_mhz, gpu.name) == (others, None, "")
    _rocm(tmp_path, {"card0": {}, "card1": {}}, '{"system": {"PID1": "x"}}')
    assert [gpu.others for gpu in read_gpus("vulkan", path=str(tmp_path)).gpus] == [None, None]


_PAIR = (GpuState(0, "A", "GPU-aaaa-1"), GpuState(1, "A", "GPU-bbbb-2"))
_UNLIKE = (GpuState(0, "A", "GPU-aaaa-1"), GpuState(1, "B", "GPU-bbbb-2"))


@pytest.mark.parametrize(
    ("gpus", "device", "environment", "expected"),
    [
        (_PAIR, "cuda", {}, [0]),
        (_PAIR, "cuda://1", {}, [1]),
        (_PAIR, "cuda://7", {}, [0, 1]),
        (_PAIR, "cuda://GPU-BBBB-2", {}, [1]),
        (_PAIR, "cuda://GPU-unknown", {}, [0, 1]),
        (_PAIR, "cuda://0", {"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        (_PAIR, "cuda://0", {"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, [1]),
        (_PAIR, "cuda://3", {"CUDA_VISIBLE_DEVICES": "1,0"}, [0, 1]),
        (_UNLIKE, "cuda://1", {}, [0, 1]),
        (_UNLIKE, "cuda://1", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [1]),
        (_UNLIKE, "hip://1", {}, [1]),
        (_PAIR, "hip://0", {"HIP_VISIBLE_DEVICES": "1"}, [1]),
        (_PAIR, "hip://0", {"HIP_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"}, [0, 1]),
        (_PAIR, "vulkan://1", {}, [0, 1]),
        (_PAIR, "vulkan://GPU-bbbb2", {}, [1]),
        (_PAIR, ANY_GPU, {}, [0, 1]),
    ],
)
def test_which_gpu_a_device_means(
    gpus: tuple[GpuState, ...], device: str, environment: dict[str, str], expected: list[int]
) -> None:
    assert [gpu.index for gpu in pick_gpus(gpus, device, environment)] == expected


@pytest.mark.parametrize(
    ("field", "number"),
    [("54 C", 54), ("99%", 99), ("[N/A]", None), ("nan", None), ("inf", None), (7, 7), (True, None), (None, None)],
)
def test_numbers_with_and_without_units(field: object, number: float | None) -> None:
    assert parse_number(field) == number


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                ["gpu", "gpu_data", "clock", "gfx_0", "throttle", "card0", "system", "process_list", "pid"]
            ),
            inner,
        )
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("read", [read_nvidia, read_amd_smi, read_rocm_smi])
@given(answer=st.text() | _JSON.map(json.dumps) | _JSON.map(lambda part: json.dumps([{"gpu": 0, "clock": part}])))
def test_whatever_a_tool_prints_it_is_gpus_or_a_reason(
    read: Callable[[Callable[..., str]], tuple[GpuState, ...]], answer: str
) -> None:
    gpus: tuple[GpuState, ...] = ()
    with contextlib.suppress(ToolAnswerError):
        gpus = read(lambda *_words: answer)
    json.dumps([gpu.as_dict() for gpu in gpus])


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5000])
def test_numbers_that_no_gpu_has(digits: str) -> None:
    assert parse_number(int(digits[:400])) is None
    with pytest.raises(ToolAnswerError):
        read_nvidia(lambda *_words: f"{digits}, u, 1, 2, 3, 4, 5, 0x0, 0, 0, 0, 0, X")
    metric = f'[{{"gpu": 0, "usage": {{"gfx_activity": {digits}}}}}]'
    with contextlib.suppress(ToolAnswerError):
        assert read_amd_smi(lambda *_words: metric)[0].utilization_percent is None
    assert read_rocm_smi(lambda *_words: json.dumps({f"card{digits}": {}})) == ()
