"""The state of GPUs, as their vendor's tool reports it: `nvidia-smi`, `amd-smi`, else `rocm-smi`.

Asked only for devices that are GPUs. A tool may be missing, fail, hang (a sick driver holds it) or print something
unexpected: the reading is then empty and says why. It never raises: a measurement does not fail because its
thermometer does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from iree_gauntlet.measuring.machine.gpu_state import GpuState, ToolAnswerError
from iree_gauntlet.measuring.machine.gpu_tools import read_amd_smi, read_nvidia, read_rocm_smi
from iree_gauntlet.system.short_process import run_short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# In place of a device's name: whatever GPUs there are.
ANY_GPU = "gpu"

# amd-smi is a Python program and takes half a second on a machine with eight GPUs.
_TIMEOUT_SECONDS = 5.0

_TOOLS = {"nvidia-smi": read_nvidia, "amd-smi": read_amd_smi, "rocm-smi": read_rocm_smi}
_DRIVERS = {
    "cuda": ("nvidia-smi",),
    "hip": ("amd-smi", "rocm-smi"),
    "amdgpu": ("amd-smi", "rocm-smi"),
    "vulkan": tuple(_TOOLS),
    ANY_GPU: tuple(_TOOLS),
}
# What hides and reorders the GPUs of a driver's programs.
_VISIBLE = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "hip": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "amdgpu": ("ROCR_VISIBLE_DEVICES",),
}


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What a vendor's tool has said.

    Attributes:
        gpus: the GPUs of the machine, or those that may be meant by the device; empty where they could not be read.
        problem: why they could not be read, one line; empty where they were.
    """

    gpus: tuple[GpuState, ...] = ()
    problem: str = ""


def is_gpu(device: str) -> bool:
    """Whether an IREE device (`hip://0`) is a GPU that a tool may know."""
    return _driver(device) in _DRIVERS


def read_gpus(device: str, *, path: str | None = None, timeout: float = _TIMEOUT_SECONDS) -> GpuReading:
    """Reads the state of the GPUs that a device may mean.

    Args:
        device: an IREE device, such as `cuda`, `hip://1` or `vulkan`, or `ANY_GPU`; others than GPUs give an
            empty reading.
        path: folders in which the tools are looked for; PATH where None.
        timeout: seconds that a tool may take for one answer.
    """
    problems = []
    for tool in _DRIVERS.get(_driver(device), ()):
        program = shutil.which(tool, path=path)
        if program is None:
            problems.append(f"there is no {tool}")
            continue
        try:
            gpus = _TOOLS[tool](partial(_ask, program, timeout))
        except ToolAnswerError as error:
            problems.append(f"{tool} {error}")
            continue
        if gpus:
            return GpuReading(asked_gpus(gpus, device, os.environ))
        problems.append(f"{tool} names no GPU")
    return GpuReading((), "; ".join(problems))


def asked_gpus(gpus: Sequence[GpuState], device: str, environment: Mapping[str, str]) -> tuple[GpuState, ...]:
    """Those of a machine's GPUs that a device means; all of them where that is not known.

    The driver's numbers are the tool's only where nothing hides or reorders GPUs: CUDA puts the fastest first
    unless CUDA_DEVICE_ORDER says otherwise, and Vulkan has an order of its own.

    Args:
        gpus: of the machine.
        device: an IREE device.
        environment: the variables that the device's process gets.
    """
    driver, (_, _, rest) = _driver(device), device.partition("://")
    path = rest.partition("?")[0]
    if path and not path.isdecimal():
        return _of_uuid(gpus, path) or tuple(gpus)
    ordinal = int(path or 0)
    lists = [environment[name] for name in _VISIBLE.get(driver, ()) if environment.get(name)]
    alike = len({gpu.name for gpu in gpus}) == 1
    by_bus = driver != "cuda" or alike or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if driver in ("vulkan", ANY_GPU) or len(lists) > 1:
        return tuple(gpus)
    if lists:
        words = [word.strip() for word in lists[0].split(",")]
        word = words[ordinal] if ordinal < len(words) else ""
        if not word.isdecimal():
            return (_of_uuid(gpus, word) if word else ()) or tuple(gpus)
        ordinal = int(word)
    return tuple(gpu for gpu in gpus if by_bus and gpu.index == ordinal) or tuple(gpus)


def gpu_of(device: str) -> str:
    """What tells a GPU from others, whichever driver names it; of a device without a UUID, its name.

    CUDA writes `cuda://GPU-b08a9e40-5f0c-29dd-4c3d-9692503045f4` for what is
    `vulkan://GPU-b08a9e405f0c29dd4c3d9692503045f4` to Vulkan.
    """
    path = device.partition("://")[2].partition("?")[0]
    return _plain_uuid(path) if path.lower().startswith("gpu-") else device


def _of_uuid(gpus: Sequence[GpuState], uuid: str) -> tuple[GpuState, ...]:
    return tuple(gpu for gpu in gpus if gpu.uuid and _plain_uuid(gpu.uuid).startswith(_plain_uuid(uuid)))


def _plain_uuid(uuid: str) -> str:
    return uuid.lower().replace("-", "")


def _driver(device: str) -> str:
    return device.partition("://")[0]


def _ask(program: str, timeout: float, *words: str) -> str:
    """Standard output of a tool.

    Raises:
        ToolAnswerError: it could not be started, failed, or did not answer in time.
    """
    try:
        answer = run_short([program, *words], timeout=timeout)
    except OSError as error:
        raise ToolAnswerError(f"cannot be started: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise ToolAnswerError(f"did not answer within {timeout:g} s") from None
    if answer.exit_code != 0:
        lines = f"{answer.stderr}\n{answer.stdout}".splitlines()
        said = next((line.strip() for line in lines if line.strip()), "nothing said")
        raise ToolAnswerError(f"failed (exit code {answer.exit_code}): {said[:160]}")
    return answer.stdout
