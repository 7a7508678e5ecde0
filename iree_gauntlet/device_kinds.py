"""Kinds of devices, each a row of `DEVICE_KINDS`: what IREE calls their parts, and how their devices behave.

Everywhere, a *driver* is the part of the runtime that opens devices (`hip`: a `Driver`), a *backend* the part of the
compiler that makes code for them (`rocm`), a *family* the name of the kind that both are for (`rocm`: a `DeviceKind`),
a *device* the text that names one: a driver, with an ordinal or the device's own name (`hip`, `hip://1`,
`vulkan://GPU-6d65…`), and a *target* a family with a chip (a `Target`, targets.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver of IREE's runtime.

    Attributes:
        hint: what to do where it does not work, or finds no device.
        has_ordinals: `hip://1` names a device; else only its own name does.
        bus_order: ordinals follow the bus, as those of vendors' tools do; else CUDA_DEVICE_ORDER decides.
        visibility: environment variables that hide and reorder its devices.
    """

    name: str
    hint: str = ""
    has_ordinals: bool = True
    bus_order: bool = True
    visibility: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class DeviceKind:
    """A kind of devices. Of a plugin's driver or backend, which has no row, only the name is known.

    Attributes:
        family: its name; a target's where it has a backend.
        drivers: the drivers that open its devices; none where these are of another kind (VMVX's are the CPU's).
        driver_prefix: how names of further drivers of this kind begin.
        device: the device that is meant where nobody names one.
        backend: the compiler's; empty where nothing is compiled for it.
        other_names: what people call it, besides the names of its family, its backend and its drivers.
        target_flags: the compile flags that name it.
        host_flags: further ones, without which code is for a generic chip and not for that of this machine.
        code_generator: the first word of compile flags of its code generator, which other kinds may share (`llvmgpu` of
            `--iree-llvmgpu-shared-memory-limit`). One of `names` is the first word of those that concern it alone.
        chips: the names of its chips, a regular expression; empty where none can be named.
        chip_prefix: how chips begin that people name without the family.
        chip_flags: the compile flags that take a chip: the one that is written, then older ones.
        needs_chip: nothing is compiled without a chip.
        unknown_chip: the compiler's words for a chip that it does not know, a regular expression.
        chip_hint: what to add to the advice to compile for another chip.
        is_cpu: its devices are the processor, which every machine has, and which steps share without a lock.
        state_tools: programs that report the state of its devices, the first choice first (gpus.py reads them).
        torch_device: torch's name of such a device.
        dashboard_device: its name in databases of benchmarks; the family where it is empty.
    """

    family: str
    drivers: tuple[Driver, ...] = ()
    driver_prefix: str = ""
    device: str = ""
    backend: str = ""
    other_names: tuple[str, ...] = ()
    target_flags: tuple[str, ...] = ()
    host_flags: tuple[str, ...] = ()
    code_generator: str = ""
    chips: str = ""
    chip_prefix: str = ""
    chip_flags: tuple[str, ...] = ()
    needs_chip: bool = False
    unknown_chip: str = ""
    chip_hint: str = ""
    is_cpu: bool = False
    state_tools: tuple[str, ...] = ()
    torch_device: str = ""
    dashboard_device: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All that people and compile flags call it."""
        drivers = (driver.name for driver in self.drivers)
        return tuple(dict.fromkeys(filter(None, (self.family, self.backend, *self.other_names, *drivers))))


# Any chip of a vendor whose names have no common form.
_ANY_CHIP = "[a-z0-9][a-z0-9._]*"
_AMD_TOOLS = ("amd-smi", "rocm-smi")

# The driver that shares work out to a thread for each core, and the one that does it in the thread that asks for it.
LOCAL_TASK = Driver("local-task")
LOCAL_SYNC = Driver("local-sync")
CPU = DeviceKind(
    "cpu",
    drivers=(LOCAL_TASK, LOCAL_SYNC),
    driver_prefix="local-",
    device=LOCAL_TASK.name,
    backend="llvm-cpu",
    other_names=("host", "local"),
    target_flags=("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"),
    host_flags=("--iree-llvmcpu-target-cpu=host",),
    code_generator="llvmcpu",
    is_cpu=True,
    torch_device="cpu",
)
ROCM = DeviceKind(
    "rocm",
    drivers=(
        Driver(
            "hip",
            hint="install AMD's ROCm runtime (it brings libamdhip64.so) on a machine with a supported AMD GPU; "
            "/dev/kfd and /dev/dri must be accessible (groups render and video)",
            visibility=("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
        ),
        Driver("amdgpu", visibility=("ROCR_VISIBLE_DEVICES",)),
    ),
    device="hip",
    backend="rocm",
    target_flags=("--iree-hal-target-device=hip",),
    code_generator="llvmgpu",
    chips=r"gfx[^\W_]*",
    chip_prefix="gfx",
    chip_flags=("--iree-rocm-target", "--iree-hip-target"),
    needs_chip=True,
    unknown_chip="Unknown ROCM target",
    state_tools=_AMD_TOOLS,
)
CUDA = DeviceKind(
    "cuda",
    drivers=(
        Driver(
            "cuda",
            hint="install NVIDIA's driver (it brings libcuda.so) on a machine with an NVIDIA GPU, until nvidia-smi "
            "lists it",
            bus_order=False,
            visibility=("CUDA_VISIBLE_DEVICES",),
        ),
    ),
    device="cuda",
    backend="cuda",
    target_flags=("--iree-hal-target-device=cuda",),
    code_generator="llvmgpu",
    chips=_ANY_CHIP,
    chip_prefix="sm_",
    chip_flags=("--iree-cuda-target",),
    # The first one is of a chip that even the compiler's help names.
    unknown_chip=r"missing GPU target in #hal\.executable\.target|Unknown CUDA target",
    chip_hint=", as sm_89 (a newer NVIDIA GPU runs what is compiled for an older one)",
    state_tools=("nvidia-smi",),
    torch_device="cuda",
)
_VULKAN = DeviceKind(
    "vulkan",
    drivers=(
        Driver(
            "vulkan",
            hint="install the Vulkan loader and a driver, until `vulkaninfo --summary` lists a device; Mesa's are "
            "apt install mesa-vulkan-drivers (Debian, Ubuntu), dnf install mesa-vulkan-drivers vulkan-loader (Fedora), "
            "pacman -S vulkan-icd-loader vulkan-swrast (Arch), with lavapipe, which needs no GPU",
            has_ordinals=False,
        ),
    ),
    device="vulkan",
    backend="vulkan-spirv",
    target_flags=("--iree-hal-target-device=vulkan",),
    code_generator="spirv",
    chips=_ANY_CHIP,
    chip_flags=("--iree-vulkan-target",),
    unknown_chip="Unknown Vulkan target",
    # Whoever made the GPU.
    state_tools=("nvidia-smi", *_AMD_TOOLS),
    torch_device="xpu",
)
_METAL = DeviceKind(
    "metal",
    drivers=(Driver("metal", hint="only the runtime for macOS has it: run there"),),
    device="metal",
    backend="metal-spirv",
    target_flags=("--iree-hal-target-device=metal",),
    code_generator="spirv",
    # The compiler has no flag for a chip.
    chips=_ANY_CHIP,
    torch_device="mps",
    dashboard_device="mps",
)
VMVX = DeviceKind(
    "vmvx",
    device=LOCAL_TASK.name,
    backend="vmvx",
    target_flags=("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"),
)
# Those of IREE's own, in the order in which targets are listed; plugins may bring others.
DEVICE_KINDS = (
    CPU,
    ROCM,
    CUDA,
    _VULKAN,
    _METAL,
    VMVX,
    # Nothing is compiled for these: the first is of browsers, the second computes nothing.
    DeviceKind("webgpu", drivers=(Driver("webgpu"),)),
    DeviceKind("null", drivers=(Driver("null"),)),
)
# IREE's names of devices by torch's.
TORCH_DEVICES = {kind.torch_device: kind.device for kind in DEVICE_KINDS if kind.torch_device}
TORCH_NAMES = ", ".join(sorted(TORCH_DEVICES))
# By name.
DRIVERS = {driver.name: driver for kind in DEVICE_KINDS for driver in kind.drivers}
_KINDS_BY_DRIVER = {driver.name: kind for kind in DEVICE_KINDS for driver in kind.drivers}


def split_device(device: str) -> tuple[str, str]:
    """Split a device into the name of its driver and its path: `hip://1` into `hip` and `1`."""
    driver, _, path = device.partition("://")
    return driver, path


def find_driver(device: str) -> Driver:
    """Find the driver that opens a device."""
    name, _ = split_device(device)
    return DRIVERS.get(name) or Driver(name)


@functools.cache
def find_kind(device: str) -> DeviceKind:
    """Find the kind of a device."""
    name, _ = split_device(device)
    by_prefix = (kind for kind in DEVICE_KINDS if kind.driver_prefix and name.startswith(kind.driver_prefix))
    return _KINDS_BY_DRIVER.get(name) or next(by_prefix, DeviceKind(name))


def is_cpu(device: str) -> bool:
    """Return whether a device is the processor itself; none, as an empty text, is not."""
    return find_kind(device).is_cpu
