"""Workers' offers: they contain only devices, releases and measurements that were found on the machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.cluster import offers
from iree_gauntlet.cluster.offers import WorkerDevice, WorkerResources, measure_worker_resources, parse_device
from iree_gauntlet.errors import UsageError
from iree_gauntlet.journal_events import Device
from iree_gauntlet.toolchains import environments
from iree_gauntlet.toolchains.devices import read_host_cpu
from iree_gauntlet.toolchains.environments import seal
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.installer import Sources

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", WorkerDevice("cpu", "local-task")),
        ("gpu0=hip://0,sku=mi300", WorkerDevice("gpu0", "hip://0", "mi300")),
        ("v=vulkan", WorkerDevice("v", "vulkan")),
    ],
)
def test_a_device_is_read(text: str, device: WorkerDevice) -> None:
    assert parse_device(text) == device


@pytest.mark.parametrize(
    "text", ["", "gpu0", "=hip", "gpu0=", "a b=hip", "g=hip,sku=", "g=hip,chip=gfx942", "../x=hip"]
)
def test_what_is_no_device_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=": invalid") as error:
        parse_device(text)
    assert "gpu0=hip://0,sku=mi300" in error.value.hint


@pytest.mark.iree
def test_this_machine_is_measured(tmp_path: Path) -> None:
    found = measure_worker_resources("box", 0, [parse_device("cpu")], find_installed(), tmp_path / "cache")
    assert found.devices == (WorkerDevice("cpu", "local-task", product=read_host_cpu().name),)
    assert found.jobs > 0
    assert found.free_disk_bytes
    assert WorkerResources.from_dict(found.as_dict()) == found


def test_releases_in_the_cache_are_those_that_are_whole(tmp_path: Path) -> None:
    envs = tmp_path / "toolchains" / "envs"
    for label in ("3.11.0", "3.12.0"):
        path = envs / f"{label}-{environments.make_environment_tag()}"
        (path / "bin").mkdir(parents=True)
        (path / "bin" / "python").symlink_to(sys.executable)
        (envs / f".{path.name}.lock").touch()
    recipe = environments.Recipe("3.12.0", (), Sources(), "3.12.0", "3.12.0", "3.12")
    seal(path, environments.SEAL, {**asdict(recipe), "installer": "uv"})
    assert measure_worker_resources("box", 1, [], None, tmp_path).toolchains == ("3.12.0",)


@pytest.mark.iree
def test_a_device_that_is_not_there_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--device gpu0: hip://7 is not available: ") as error:
        measure_worker_resources("box", 1, [WorkerDevice("gpu0", "hip://7")], find_installed(), tmp_path)
    assert error.value.hint
    with pytest.raises(UsageError, match="has no driver npu"):
        measure_worker_resources("box", 1, [WorkerDevice("n", "npu")], find_installed(), tmp_path)


@pytest.mark.parametrize(
    ("product", "sku", "fits"),
    [
        ("AMD Instinct MI300X", "mi300", True),
        ("AMD Instinct MI250X", "mi300", False),
        ("NVIDIA H100 80GB HBM3", "h100", True),
        ("", "mi300", False),
    ],
)
def test_a_sku_that_is_not_the_hardwares_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, product: str, sku: str, fits: bool
) -> None:
    # There is no such card on the machines that test this.
    monkeypatch.setattr(offers, "find_device", lambda *_: Device("hip://GPU-1", product))
    declared = [WorkerDevice("gpu0", "hip://0", sku)]
    if fits:
        assert measure_worker_resources("box", 1, declared, find_installed(), tmp_path).devices[0].uri == "hip://GPU-1"
    else:
        with pytest.raises(UsageError, match=f"cannot be a {sku}"):
            measure_worker_resources("box", 1, declared, find_installed(), tmp_path)


def test_two_devices_have_two_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two devices are named cpu"):
        measure_worker_resources(
            "box", 1, [WorkerDevice("cpu", "local-task"), WorkerDevice("cpu", "local-sync")], None, tmp_path
        )


def test_devices_need_an_iree_to_be_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this machine has no IREE to look for local-task"):
        measure_worker_resources("box", 1, [WorkerDevice("cpu", "local-task")], None, tmp_path)
    assert measure_worker_resources("box", 1, [], None, tmp_path).iree == ""
