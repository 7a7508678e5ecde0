"""Device kinds: each row of `DEVICE_KINDS` has IREE's names for the parts of a kind, and properties of its devices.

A *driver* is the part of the runtime that opens devices (`hip`: a `Driver`), a *backend* the part of the compiler that
generates code for them (`rocm`), and a *family* the name of the kind that both belong to (`rocm`: a `DeviceKind`). A
*device* is a string that names a device: a driver, perhaps with an ordinal or the device's own name (`hip`, `hip://1`,
`vulkan://GPU-6d65…`). A *target* is a family with a chip (a `Target`, targets.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver of IREE's runtime.

    Attributes:
        hint: advice for a driver that does not work or finds no device.
        has_ordinals: `hip://1` names a device; otherwise only the device's own name does.
        bus_order: True if ordinals follow the bus, as in vendors' tools; otherwise CUDA_DEVICE_ORDER decides.
        visibility: environment variables that hide and reorder its devices.
    """

    name: str
    hint: str = ""
    has_ordinals: bool = True
    bus_order: bool = True
    visibility: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor of another architecture, and how this machine runs programs for it.

    Attributes:
        flags: the compile flags that name it.
        runtime: the source of its runtime: `wheel:` and the platform of IREE's wheel, or a folder with IREE's tools;
            empty if there is none.
        runner: the words before the command line of a tool; `{vq}`, `{bytes}` and `{bits}` stand for the length of its
            vectors (`vq`: in units of 128 bits).
        most_vector_bits: the greatest length of vectors that the runner can give.
        packages: the packages of Debian and Ubuntu that have the runner and what it needs.
        has_times: True if the runner runs programs on such a processor, so that their times mean something; a board
            does, unless it has a runner of its own.
        is_ready_made: True if it is this toolkit's; if this machine is such a processor, it needs no runner.
    """

    flags: tuple[str, ...]
    runtime: str = ""
    runner: tuple[str, ...] = ()
    packages: str = ""
    has_times: bool = False
    is_ready_made: bool = True
    most_vector_bits: int = 2048


@dataclass(frozen=True, slots=True, eq=False)
class DeviceKind:
    """A kind of device. A plugin's driver or backend has no row: only its name is known.

    Attributes:
        family: its name; also the name of a target, if there is a backend.
        drivers: the drivers that open its devices; none if another kind's drivers do (the CPU's open VMVX's devices).
        driver_prefix: prefix of the names of further drivers of this kind.
        device: the default device.
        backend: the compiler's backend; empty if it has none.
        other_names: further names besides those of its family, its backend and its drivers.
        target_flags: the compile flags that name it.
        host_flags: further flags that select this machine's chip instead of a generic one.
        code_generator: the first word of its code generator's compile flags, which other kinds may share (`llvmgpu` in
            `--iree-llvmgpu-shared-memory-limit`). Flags for this kind alone begin with one of `names`.
        chips: a regular expression for the names of its chips; empty if chips have no names.
        chip_prefix: prefix of chips that people name without the family.
        chip_flags: the compile flags that take a chip: the current one, then older ones.
        architectures: processors of other architectures, by the chip's name.
        needs_chip: True if the compiler must be told the chip.
        unknown_chip: a regular expression for the compiler's error about an unknown chip.
        chip_hint: an addition to the advice to compile for another chip.
        is_cpu: True if the device is the processor, which every machine has and which steps share without a lock.
        state_tools: programs that report the state of its devices, in order of preference (gpus.py reads them).
        torch_device: torch's name for such a device.
        dashboard_device: its name in benchmark databases; empty for the family's name.
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
    architectures: Mapping[str, Processor] = field(default_factory=dict)
    needs_chip: bool = False
    unknown_chip: str = ""
    chip_hint: str = ""
    is_cpu: bool = False
    state_tools: tuple[str, ...] = ()
    torch_device: str = ""
    dashboard_device: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All its names, including those in compile flags."""
        drivers = (driver.name for driver in self.drivers)
        return tuple(dict.fromkeys(filter(None, (self.family, self.backend, *self.other_names, *drivers))))


# Matches any chip, for vendors whose chip names have no common form.
_ANY_CHIP = "[a-z0-9][a-z0-9._]*"
_AMD_TOOLS = ("amd-smi", "rocm-smi")

# Other processors than this machine's, as generic as a Linux distribution's. RISC-V needs its features and ABI said:
# without them, the compiler makes code for a core without multiplication or floating point.
_ARM_FLAGS = ("--iree-llvmcpu-target-triple=aarch64-linux-gnu", "--iree-llvmcpu-target-cpu=generic")
_ARM_RUNNER = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", "-cpu")
_ARM_WHEEL = "wheel:manylinux_2_28_aarch64"
_ARM_PACKAGES = "qemu-user libc6-arm64-cross libstdc++6-arm64-cross"
_ARCHITECTURES = {
    "aarch64": Processor(_ARM_FLAGS, _ARM_WHEEL, (*_ARM_RUNNER, "max"), _ARM_PACKAGES),
    "aarch64-sve": Processor(
        (*_ARM_FLAGS, "--iree-llvmcpu-target-cpu-features=+sve"),
        _ARM_WHEEL,
        (*_ARM_RUNNER, "max,sve-max-vq={vq},sve-default-vector-length={bytes}"),
        _ARM_PACKAGES,
    ),
    # For boards, which are reached from any machine; no runner is ready-made.
    "x86_64": Processor(
        ("--iree-llvmcpu-target-triple=x86_64-linux-gnu", "--iree-llvmcpu-target-cpu=generic"),
        "wheel:manylinux_2_28_x86_64",
    ),
    # There is no wheel of IREE's runtime for it.
    "riscv64": Processor(
        (
            "--iree-llvmcpu-target-triple=riscv64-linux-gnu",
            "--iree-llvmcpu-target-cpu=generic-rv64",
            "--iree-llvmcpu-target-cpu-features=+m,+a,+f,+d,+c,+v",
            "--iree-llvmcpu-target-abi=lp64d",
        ),
        runner=("qemu-riscv64", "-L", "/usr/riscv64-linux-gnu", "-cpu", "rv64,v=true,vlen={bits}"),
        packages="qemu-user libc6-riscv64-cross libstdc++6-riscv64-cross",
        most_vector_bits=1024,
    ),
}
# The first driver uses a thread for each core; the second does all work in the calling thread.
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
    chips=rf"({'|'.join(name for name in _ARCHITECTURES if '-' not in name)})(-[a-z0-9._]+)*",
    architectures=_ARCHITECTURES,
    is_cpu=True,
    torch_device="cpu",
)
ROCM = DeviceKind(
    "rocm",
    drivers=(
        Driver(
            "hip",
            hint="install AMD's ROCm runtime (which includes libamdhip64.so) on a machine with a supported AMD GPU; "
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
            hint="install NVIDIA's driver (which includes libcuda.so) on a machine with an NVIDIA GPU; nvidia-smi "
            "must list it",
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
    # The compiler prints the first message even for chips that its own help lists.
    unknown_chip=r"missing GPU target in #hal\.executable\.target|Unknown CUDA target",
    chip_hint=", such as sm_89 (a newer NVIDIA GPU runs code compiled for an older one)",
    state_tools=("nvidia-smi",),
    torch_device="cuda",
)
_VULKAN = DeviceKind(
    "vulkan",
    drivers=(
        Driver(
            "vulkan",
            hint="install the Vulkan loader and a driver (`vulkaninfo --summary` must list a device); for Mesa's: "
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
    # The GPU may be of any vendor.
    state_tools=("nvidia-smi", *_AMD_TOOLS),
    torch_device="xpu",
)
_METAL = DeviceKind(
    "metal",
    drivers=(Driver("metal", hint="only the macOS runtime has it: run on macOS"),),
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
# IREE's own kinds, in the order in which targets are listed; plugins may add others.
DEVICE_KINDS = (
    CPU,
    ROCM,
    CUDA,
    _VULKAN,
    _METAL,
    VMVX,
    # The compiler has no backend for these. WebGPU devices are in browsers, and null devices compute nothing.
    DeviceKind("webgpu", drivers=(Driver("webgpu"),)),
    DeviceKind("null", drivers=(Driver("null"),)),
)
# IREE's names of devices, by torch's names.
TORCH_DEVICES = {kind.torch_device: kind.device for kind in DEVICE_KINDS if kind.torch_device}
TORCH_NAMES = ", ".join(sorted(TORCH_DEVICES))
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
    """Return whether a device is the processor; an empty string is not."""
    return find_kind(device).is_cpu
