"""Measures the cost of a download: `python benchmarks/downloads.py [--megabytes 2000] [--rounds 3] [--folder DIR]`.

Three clients fetch one large blob from Azurite (the Azure storage emulator, a separate process on this machine):

- ours: `ArtifactStore.fetch`, which checks a pinned hash, and makes the file durable (fsync) before publishing it;
- azure: azure-storage-blob's `download_blob(max_concurrency=4).readinto(file)`, which checks and syncs nothing;
- pooch: `pooch.retrieve(url, known_hash=…)`, which checks the hash and syncs nothing.

They take turns (A B C, C B A, …), each in a fresh process. Wall time is the call's. CPU time (user and system) and peak
memory (VmHWM) are the entire process's, with Python's start and the imports. The last row is a second use: the time of
`fetch` alone in a fresh process if the file is present and verified. Needs the tests' dependencies, and Node.js.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(_ROOT))

from azure.storage.blob import BlobClient  # noqa: E402 - after the path

from tests.support.emulators import ACCOUNT, Azurite, azurite_server  # noqa: E402 - needs the path

_SECOND_USES = 9
_BLOCK_BYTES = 1 << 20

# Each program gets a URL, a hash and a folder, and sets `began` and `ended`.
_TOOLKIT_PROGRAM = """
from pathlib import Path
from iree_gauntlet.artifacts.registry_file import RegistryEntry, Registry
from iree_gauntlet.artifacts.sources import make_local_name
from iree_gauntlet.artifacts.store import ArtifactStore
root = Path(folder)
registry = Registry(root / "registry.txt").with_entries([RegistryEntry(make_local_name(url), sha256, url)])
began = time.perf_counter()
assert ArtifactStore(root, registry).fetch(url).sha256 == sha256
ended = time.perf_counter()
"""
_AZURE_PROGRAM = """
from azure.storage.blob import BlobClient
began = time.perf_counter()
with BlobClient.from_blob_url(url, api_version="2025-11-05") as client, open(folder + "/file", "wb") as file:
    client.download_blob(max_concurrency=4).readinto(file)
ended = time.perf_counter()
"""
_POOCH_PROGRAM = """
import pooch
pooch.get_logger().setLevel("WARNING")
began = time.perf_counter()
pooch.retrieve(url, known_hash=sha256, fname="file", path=folder)
ended = time.perf_counter()
"""
_PROGRAM_FRAME = """
import json, re, sys, time
url, sha256, folder = sys.argv[1:]
{work}
with open("/proc/self/status") as status:
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) * 1024
print(json.dumps([ended - began, time.process_time(), peak]))
"""


@dataclass(frozen=True, slots=True)
class _Cost:
    """The result of one download: seconds, CPU seconds, peak bytes of memory."""

    seconds: float
    cpu: float
    peak: float


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description="Downloads: ours, azure-storage-blob's, Pooch's.")
    parser.add_argument("--megabytes", type=int, default=2000, help="size of the blob, in MB (10^6 bytes)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; by default the one of temporary files")
    options = parser.parse_args()
    size = options.megabytes * 10**6
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as directory,
        azurite_server(Path(directory) / "azurite", on_disk=True) as azurite,
    ):
        folder = Path(directory)
        url, sha256 = _upload_blob(azurite, folder, size)
        programs = {"ours": _TOOLKIT_PROGRAM, "azure": _AZURE_PROGRAM, "pooch": _POOCH_PROGRAM}
        costs: dict[str, list[_Cost]] = {client: [] for client in programs}
        for number in range(options.rounds):
            for client in list(programs)[:: -1 if number % 2 else 1]:
                cost = _measure(programs[client], url, sha256, folder / "place")
                costs[client].append(cost)
                cells = f"{cost.seconds:8.2f} s {cost.cpu:7.2f} s CPU {cost.peak / 1e6:6.0f} MB"
                print(f"round {number + 1}  {client:<6}{cells}", flush=True)
        _print_medians(costs, size)
        _print_second_use(url, sha256, folder / "place", size)


def _upload_blob(azurite: Azurite, folder: Path, size: int) -> tuple[str, str]:
    """Upload random content and return its URL and hash."""
    source, digest = folder / "source", hashlib.sha256()
    with source.open("wb") as file:
        for position in range(0, size, _BLOCK_BYTES):
            block = os.urandom(min(_BLOCK_BYTES, size - position))
            digest.update(block)
            file.write(block)
    container = azurite.container(public=True)
    with (
        BlobClient.from_connection_string(
            azurite.connection_string(), container, "weights.irpa", api_version="2025-11-05"
        ) as client,
        source.open("rb") as file,
    ):
        client.upload_blob(file, max_concurrency=4)
    source.unlink()
    os.sync()
    print(f"{size / 1e6:.0f} MB at {azurite.endpoint.replace(ACCOUNT, '…')}", flush=True)
    return f"{azurite.endpoint}/{container}/weights.irpa", digest.hexdigest()


def _measure(program: str, url: str, sha256: str, folder: Path) -> _Cost:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    # Pending writes of the previous download must not count.
    os.sync()
    return _Cost(*_run(program, url, sha256, folder))


def _run(program: str, url: str, sha256: str, folder: Path) -> list[float]:
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM_FRAME.format(work=program), url, sha256, str(folder)],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        check=True,
    )
    costs: list[float] = json.loads(process.stdout)
    return costs


def _print_medians(costs: dict[str, list[_Cost]], size: int) -> None:
    medians = {
        client: [statistics.median(getattr(cost, name) for cost in client_costs) for name in ("seconds", "cpu", "peak")]
        for client, client_costs in costs.items()
    }
    seconds, cpu, peak = medians["ours"]
    print("\nmedians    throughput      wall     CPU    peak   to ours:  wall    CPU   memory")
    for client, (client_seconds, client_cpu, client_peak) in medians.items():
        cells = f"{client_seconds:7.2f} s {client_cpu:5.2f} s {client_peak / 1e6:4.0f} MB"
        ratios = f"{client_seconds / seconds:16.2f} {client_cpu / cpu:6.2f} {client_peak / peak:7.2f}"
        print(f"{client:<10}{size / client_seconds / 1e6:7.0f} MB/s {cells}{ratios}")


def _print_second_use(url: str, sha256: str, folder: Path, size: int) -> None:
    _measure(_TOOLKIT_PROGRAM, url, sha256, folder)
    times = sorted(_run(_TOOLKIT_PROGRAM, url, sha256, folder)[0] * 1e3 for _ in range(_SECOND_USES))
    print(
        f"\nsecond use of the verified {size / 1e9:.1f} GB: {statistics.median(times):.2f} ms "
        f"({times[0]:.2f} to {times[-1]:.2f}, {_SECOND_USES} processes)"
    )


if __name__ == "__main__":
    main()
