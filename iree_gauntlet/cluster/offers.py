"""What a worker offers, devices, cores, memory, disk and IREE: as it was found, not as somebody says that it is."""

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
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts, total_memory
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.toolchains.devices import find_device, read_host_cpu
from iree_gauntlet.toolchains.environments import Environment, make_environment_tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.toolchains.toolchain import Toolchain


_STABLE = ("host", "cpu", "cores", "memory_bytes", "os")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_HOW = "--device is NAME=URI, with ,sku=SKU where golden times are checked: gpu0=hip://0,sku=mi300, or cpu."
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class DeviceOffer(Recorded):
    """A device that a worker has.

    Attributes:
        sku: the machine that golden times belong to; empty where none was named.
        product, driver: what the runtime says of it; of the CPU, what the system says.
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
class WorkerOffer(Recorded):
    """What a worker offers.

    Attributes:
        memory_bytes, free_disk_bytes: of the machine, and where the cache is; None where it is not known.
        iree: the IREE that it has without installing one; empty for none.
    """

    name: str
    host: str
    jobs: int
    devices: tuple[DeviceOffer, ...] = ()
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


def parse_device(text: str) -> DeviceOffer:
    """Reads `NAME=URI,sku=SKU`; `cpu` alone is the processor."""
    head, *more = text.split(",")
    name, equals, uri = head.partition("=")
    if not equals and name == CPU.family:
        uri = CPU.device
    options = dict(part.partition("=")[::2] for part in more)
    sku = options.pop("sku", "")
    if not _NAME.fullmatch(name) or not uri or options or (more and not sku):
        raise UsageError(f"--device {text}: not understood", _HOW)
    return DeviceOffer(name, uri, sku)


def measured(
    name: str, jobs: int, declared: Sequence[DeviceOffer], toolchain: Toolchain | None, cache_dir: Path
) -> WorkerOffer:
    """What this machine has, of what its owner says that it has: no name is the machine's, 0 jobs its cores.

    Raises:
        UsageError: a device is not there, or is not what it is said to be.
    """
    names = [device.name for device in declared]
    twice = next((item for item in names if names.count(item) > 1), "")
    if twice:
        raise UsageError(f"--device: two devices are called {twice}", "Give each a name of its own.")
    if name and not _NAME.fullmatch(name):
        raise UsageError(f"--name {name}: no name of a worker", "Letters, digits, '_', '-' and '.' make one.")
    facts = read_machine_facts()
    devices = tuple(_check_device(device, toolchain) for device in declared)
    uris = [device.uri for device in devices]
    same = next((device for device in devices if uris.count(device.uri) > 1), None)
    if same is not None:
        raise UsageError(f"--device: {same.uri} is named more than once", "Name each device once.")
    cache_dir.mkdir(parents=True, exist_ok=True)
    folders = dict.fromkeys((find_toolchains_folder(), cache_dir.absolute() / "toolchains"))
    installed = [row for folder in folders for row in Environment.list_in(folder / "envs")]
    tag = f"-{make_environment_tag()}"
    try:
        # Since when the machine runs, which all its containers have in common; elsewhere its name.
        host = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        host = socket.gethostname()
    return WorkerOffer(
        name=name or socket.gethostname(),
        host=host,
        jobs=jobs or facts.cores,
        devices=devices,
        cpu=read_host_cpu().name,
        memory_bytes=total_memory(),
        free_disk_bytes=shutil.disk_usage(cache_dir).free,
        iree=toolchain.compiler.version if toolchain else "",
        # Those that are whole, for this Python.
        toolchains=tuple(
            dict.fromkeys(found.label for path, found, _ in installed if found and path.name.endswith(tag))
        ),
        version=__version__,
        machine={key: value for key, value in facts.as_dict().items() if key in _STABLE},
    )


def _check_device(device: DeviceOffer, toolchain: Toolchain | None) -> DeviceOffer:
    if toolchain is None:
        raise UsageError(
            f"--device {device.name}: there is no IREE here to look for {device.uri}",
            "Install one (pip install 'iree-gauntlet[iree]'), or name one with --iree.",
        )
    try:
        found = find_device(toolchain, device.uri)
    except ToolchainError as error:
        raise UsageError(f"--device {device.name}: {device.uri} is not here: {error.what}", error.hint) from error
    local = is_cpu(device.uri)
    product = read_host_cpu().name if local else found.name
    if device.sku and _normalise(device.sku) not in _normalise(product):
        says = f"its name is {product}" if product else "its driver does not name the product"
        raise UsageError(
            f"--device {device.name}: {device.uri} cannot be taken for a {device.sku}: {says}",
            "Correct the SKU, or leave it out: then golden times are not checked on it.",
        )
    return DeviceOffer(device.name, device.uri if local else found.uri, device.sku, product, found.driver)


def _normalise(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
