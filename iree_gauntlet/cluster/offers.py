"""The resources of a worker, as measured: devices, cores, memory, disk and IREE."""

from __future__ import annotations

import re
import shutil
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import __version__
from iree_gauntlet.cache_folders import find_toolchains_folder
from iree_gauntlet.device_kinds import CPU, is_cpu
from iree_gauntlet.errors import ToolchainError, UsageError
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts, read_total_memory
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.toolchains.devices import find_device, read_host_cpu
from iree_gauntlet.toolchains.environments import Environment, make_environment_tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.toolchains.toolchain import Toolchain


_MACHINE_KEYS = ("host", "cpu", "cores", "memory_bytes", "os")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_DEVICE_HINT = "--device is NAME=URI, with ,sku=SKU if golden times are checked: gpu0=hip://0,sku=mi300, or cpu."
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class WorkerDevice(Recorded):
    """A device of a worker.

    Attributes:
        sku: the machine that the device's golden times belong to; empty for none.
        product, driver: the names that the runtime reports; for the CPU, those that the system reports.
    """

    name: str
    uri: str
    sku: str = ""
    product: str = ""
    driver: str = ""

    @property
    def text(self) -> str:
        """One line for people."""
        sku = f", sku {self.sku}" if self.sku else ""
        return f"{self.name} ({self.uri}{sku}{f': {self.product}' if self.product else ''})"


@dataclass(frozen=True, slots=True)
class WorkerResources(Recorded):
    """The resources of a worker.

    Attributes:
        memory_bytes, free_disk_bytes: the machine's memory, and the free space of the cache's disk; None if unknown.
        iree: the version of IREE that is already installed; empty for none.
    """

    name: str
    host: str
    jobs: int
    devices: tuple[WorkerDevice, ...] = ()
    cpu: str = ""
    memory_bytes: int | None = None
    free_disk_bytes: int | None = None
    iree: str = ""
    toolchains: tuple[str, ...] = ()
    version: str = ""
    machine: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """One line for people."""
        return f"{self.name} with {', '.join(device.text for device in self.devices) or 'no device'}"


def parse_device(text: str) -> WorkerDevice:
    """Parse `NAME=URI,sku=SKU`; a bare `cpu` is the processor."""
    device_part, *option_parts = text.split(",")
    name, equals, uri = device_part.partition("=")
    if not equals and name == CPU.family:
        uri = CPU.device
    options = dict(part.partition("=")[::2] for part in option_parts)
    sku = options.pop("sku", "")
    if not _NAME_PATTERN.fullmatch(name) or not uri or options or (option_parts and not sku):
        raise UsageError(f"--device {text}: invalid", _DEVICE_HINT)
    return WorkerDevice(name, uri, sku)


def measure_worker_resources(
    name: str, jobs: int, declared_devices: Sequence[WorkerDevice], toolchain: Toolchain | None, cache_dir: Path
) -> WorkerResources:
    """Return this machine's resources with the declared devices.

    An empty `name` means the host name; 0 `jobs` means one per core.

    Raises:
        UsageError: a device does not exist, or differs from its declaration.
    """
    names = [device.name for device in declared_devices]
    duplicate_name = next((candidate for candidate in names if names.count(candidate) > 1), "")
    if duplicate_name:
        raise UsageError(f"--device: two devices are named {duplicate_name}", "Give each one a different name.")
    if name and not _NAME_PATTERN.fullmatch(name):
        raise UsageError(f"--name {name}: not a name for a worker", "Use letters, digits, '_', '-' and '.'.")
    machine_info = read_machine_facts()
    devices = tuple(_check_device(device, toolchain) for device in declared_devices)
    uris = [device.uri for device in devices]
    duplicate = next((device for device in devices if uris.count(device.uri) > 1), None)
    if duplicate is not None:
        raise UsageError(f"--device: {duplicate.uri} is given more than once", "Give each device once.")
    cache_dir.mkdir(parents=True, exist_ok=True)
    folders = dict.fromkeys((find_toolchains_folder(), cache_dir.absolute() / "toolchains"))
    environments = [row for folder in folders for row in Environment.list_folders(folder / "envs")]
    tag = f"-{make_environment_tag()}"
    try:
        # All containers of a machine share its boot ID; if it is missing, the machine's name is used.
        host = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        host = socket.gethostname()
    return WorkerResources(
        name=name or socket.gethostname(),
        host=host,
        jobs=jobs or machine_info.cores,
        devices=devices,
        cpu=read_host_cpu().name,
        memory_bytes=read_total_memory(),
        free_disk_bytes=shutil.disk_usage(cache_dir).free,
        iree=toolchain.compiler.version if toolchain else "",
        # Only complete environments for this Python are listed.
        toolchains=tuple(
            dict.fromkeys(
                environment.label for path, environment, _ in environments if environment and path.name.endswith(tag)
            )
        ),
        version=__version__,
        machine={key: value for key, value in machine_info.as_dict().items() if key in _MACHINE_KEYS},
    )


def _check_device(device: WorkerDevice, toolchain: Toolchain | None) -> WorkerDevice:
    if toolchain is None:
        raise UsageError(
            f"--device {device.name}: this machine has no IREE to look for {device.uri}",
            "Install one (pip install 'iree-gauntlet[iree]'), or select one with --iree.",
        )
    try:
        info = find_device(toolchain, device.uri)
    except ToolchainError as error:
        raise UsageError(
            f"--device {device.name}: {device.uri} is not available: {error.message}", error.hint
        ) from error
    is_cpu_device = is_cpu(device.uri)
    product = read_host_cpu().name if is_cpu_device else info.name
    if device.sku and _normalise(device.sku) not in _normalise(product):
        mismatch = f"its name is {product}" if product else "its driver does not name the product"
        raise UsageError(
            f"--device {device.name}: {device.uri} cannot be a {device.sku}: {mismatch}",
            "Correct the SKU, or omit it: then golden times are not checked on it.",
        )
    return WorkerDevice(device.name, device.uri if is_cpu_device else info.uri, device.sku, product, info.driver)


def _normalise(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
