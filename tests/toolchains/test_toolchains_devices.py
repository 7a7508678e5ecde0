from __future__ import annotations

import os
import shutil
from collections import namedtuple
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.short_process import ask
from iree_gauntlet.tasks import doctor
from iree_gauntlet.tasks.doctor import DoctorFinding, diagnose
from iree_gauntlet.toolchains import devices as devices_module
from iree_gauntlet.toolchains.devices import check_device, compile_backends, devices, find_device, list_drivers
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.toolchain import Toolchain
from tests.support.command_line import LIMIT_SECONDS, with_fields
from tests.support.hanging import HANG, growing_times, marked_hang
from tests.support.processes import running, wait_until

if TYPE_CHECKING:
    from pathlib import Path


_DiskUsage = namedtuple("_DiskUsage", "total used free")  # noqa: PYI024 - what shutil returns
# Answers as a machine with two AMD GPUs gives them.
_TWO_GPUS = """#!/bin/sh
case "$1" in
--list_drivers) echo "  hip: HIP HAL driver"; echo "  vulkan: Vulkan" ;;
--list_devices=hip) echo "hip://GPU-aa"; echo "hip://GPU-bb" ;;
--list_devices=vulkan) ;;
*) echo "file.c:1: UNKNOWN; no" >&2; exit 1 ;;
esac
"""


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_installed()


def with_runtime(toolchain: Toolchain, folder: Path, script: str) -> Toolchain:
    path = folder / "iree-run-module"
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return with_fields(toolchain, {"run_module": str(path)})


def findings(toolchain: Toolchain | ToolchainError, cache: Path, area: str) -> list[DoctorFinding]:
    return [finding for finding in diagnose(toolchain, cache) if finding.area == area]


@pytest.mark.iree
def test_what_the_installed_tools_have(toolchain: Toolchain) -> None:
    assert {"llvm-cpu", "rocm", "cuda", "vulkan-spirv", "metal-spirv", "vmvx"} <= set(compile_backends(toolchain))
    assert {"local-sync", "local-task", "hip"} <= set(list_drivers(toolchain))
    assert {"local-sync://", "local-task://"} <= set(devices(toolchain))
    assert devices(toolchain, "local-task") == ("local-task://",)


@pytest.mark.iree
@pytest.mark.parametrize("device", ["local-task", "local-sync://", "local-task://0", "local-task://?x=1"])
def test_the_cpu_is_always_there(toolchain: Toolchain, device: str) -> None:
    available = check_device(toolchain, device)
    assert available.ok
    assert available.reason.startswith("local-")
    assert not available.hint


@pytest.mark.iree
def test_a_driver_whose_library_is_missing(toolchain: Toolchain) -> None:
    available = check_device(toolchain, "hip")
    if available.ok:
        pytest.skip("this machine has an AMD GPU")
    assert "hip" in available.reason.lower()
    assert "ROCm" in available.hint


@pytest.mark.iree
def test_a_driver_that_the_runtime_lacks(toolchain: Toolchain) -> None:
    available = check_device(toolchain, "metla")
    assert not available.ok
    assert "no driver metla: it has" in available.reason
    assert "spelling" in available.hint


@pytest.mark.iree
@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("hip", "hip://GPU-aa"),
        ("hip://1", "hip://GPU-bb"),
        ("hip://GPU-bb", "hip://GPU-bb"),
        ("hip://2", ""),
        ("hip://GPU-cc", ""),
    ],
)
def test_devices_by_ordinal_and_name(toolchain: Toolchain, tmp_path: Path, device: str, reason: str) -> None:
    available = check_device(with_runtime(toolchain, tmp_path, _TWO_GPUS), device)
    assert available.ok is bool(reason)
    assert available.reason == (reason or "hip has only hip://GPU-aa, hip://GPU-bb")


# As IREE 3.13 and nvidia-smi 580 answered on an H100.
_ONE_H100 = """#!/bin/sh
case "$1" in
--list_drivers) echo "  cuda: NVIDIA CUDA HAL driver (via dylib)" ;;
--list_devices=cuda) echo "cuda://GPU-e840f4f5-1d61-dba2-60ae-a9dfcd531922" ;;
--dump_devices=cuda)
  echo "# --device=cuda://GPU-e840f4f5-1d61-dba2-60ae-a9dfcd531922"
  echo "#   NVIDIA H100 80GB HBM3"
  echo "# ===----"
esac
"""


@pytest.mark.iree
@pytest.mark.parametrize(
    ("answer", "driver"),
    [
        ("GPU-e840f4f5-1d61-dba2-60ae-a9dfcd531922, 580.159.04", "NVIDIA 580.159.04"),
        ("GPU-00000000-1d61-dba2-60ae-a9dfcd531922, 580.159.04", ""),
        ("NVIDIA-SMI has failed", ""),
        (None, ""),
    ],
)
def test_the_driver_of_an_nvidia_gpu_is_what_its_tool_says(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str | None, driver: str
) -> None:
    if answer is not None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{answer}'\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = find_device(with_runtime(toolchain, tmp_path, _ONE_H100), "cuda")
    assert (found.name, found.driver) == ("NVIDIA H100 80GB HBM3", driver)


@pytest.mark.iree
def test_a_driver_that_works_and_finds_nothing(toolchain: Toolchain, tmp_path: Path) -> None:
    available = check_device(with_runtime(toolchain, tmp_path, _TWO_GPUS), "vulkan")
    assert available.reason == "the driver vulkan works and finds no device"
    assert available.hint


@pytest.mark.iree
def test_a_driver_that_hangs_is_a_finding(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick = with_runtime(toolchain, tmp_path, _TWO_GPUS.replace('echo "hip://GPU-aa"', HANG))
    # Which are remembered, and do not hang.
    assert len(list_drivers(sick)) == 2
    monkeypatch.setattr(devices_module, "_TIMEOUT_SECONDS", 0.1)
    available = check_device(sick, "hip")
    assert not available.ok
    assert "did not answer within 0.1 s" in available.reason


@pytest.mark.iree
def test_a_runtime_without_drivers(toolchain: Toolchain) -> None:
    with pytest.raises(ToolchainError, match="listed none"):
        list_drivers(with_fields(toolchain, {"run_module": "/bin/true"}))


def test_a_probe_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    ready, child = tmp_path / "ready", marked_hang()
    for seconds in growing_times():
        with pytest.raises(ToolchainError, match=f"did not answer within {seconds:g} s and was killed"):
            ask(["/bin/sh", "-c", f"{child} & touch {ready}; wait"], timeout=seconds)
        if ready.exists():
            break
    wait_until(lambda: not running(child))


def test_a_probe_says_what_a_tool_says() -> None:
    answer = ask(["/bin/sh", "-c", "cat; printf '\\377' >&2; exit 3"], timeout=LIMIT_SECONDS, stdin="hello")
    assert (answer.exit_code, answer.stdout, answer.stderr) == (3, "hello", "\ufffd")
    with pytest.raises(ToolchainError, match="cannot be started"):
        ask(["/nowhere/tool"], timeout=1)


@pytest.mark.iree
def test_a_healthy_installation(toolchain: Toolchain, tmp_path: Path) -> None:
    found = diagnose(toolchain, tmp_path)
    by_area = {finding.area: finding for finding in found}
    assert by_area["target cpu"].status == "ok"
    assert by_area["target rocm"].text.startswith("compiles (rocm)")
    assert "to the compiler" in by_area["host"].text
    assert any(toolchain.compiler.commit[:8] in finding.text for finding in found)
    assert not [finding for finding in found if finding.status in {"missing", "warn"} and finding.area == "iree"]
    for finding in found:
        assert "\n" not in finding.text + finding.hint
        assert finding.hint or finding.status in {"ok", "info"}


def test_no_iree_at_all(tmp_path: Path) -> None:
    (finding,) = findings(ToolchainError("no IREE compiler", "install it"), tmp_path, "iree")
    assert finding == DoctorFinding("iree", "missing", "no IREE compiler", "install it")


@pytest.mark.iree
def test_what_is_amiss_with_an_installation(toolchain: Toolchain, tmp_path: Path) -> None:
    odd = Toolchain(
        replace(toolchain.compiler, onnx_version=""), replace(toolchain.runtime, release="3.9.0", commit="")
    )
    found = findings(odd, tmp_path, "iree")
    assert [finding.status for finding in found] == ["ok", "ok", "info", "warn", "missing"]
    assert "commit unknown" in found[1].text
    assert f"iree-base-runtime=={toolchain.compiler.release}" in found[3].hint
    assert "iree-base-compiler[onnx]==" in found[4].hint


@pytest.mark.iree
def test_tools_that_fail_are_findings(toolchain: Toolchain, tmp_path: Path) -> None:
    broken = with_fields(toolchain, {"compile": "/bin/false", "run_module": "/nowhere/iree-run-module"})
    by_area = {finding.area: finding for finding in diagnose(broken, tmp_path)}
    assert by_area["host"].status == "missing"
    assert "cannot be started" in by_area["drivers"].text
    assert by_area["target cpu"].status == "missing"
    assert "no backend llvm-cpu; does not run either" in by_area["target cpu"].text


def test_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ToolchainError("none")
    writable, disk = findings(error, tmp_path / "not" / "yet", "cache")
    assert writable.status == "ok"
    assert str(tmp_path / "not" / "yet") in writable.text
    assert not (tmp_path / "not").exists()
    assert "B free" in disk.text
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _DiskUsage(10, 9, 2**30))
    assert findings(error, tmp_path, "cache")[1].text.startswith("only 1.1 GB free")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert findings(error, tmp_path, "cache")[0].status == "warn"
    (tmp_path / "file").touch()
    (finding,) = findings(error, tmp_path / "file" / "cache", "cache")
    assert "is not a folder" in finding.text


def test_packages_that_are_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = (("no-such-package-a", "x"), ("no-such-package-b", "y"))
    monkeypatch.setattr(doctor, "_PACKAGES", packages)
    monkeypatch.setattr(doctor, "_OPTIONAL", frozenset({"no-such-package-b"}))
    found = findings(ToolchainError("none"), tmp_path, "packages")
    assert [finding.status for finding in found] == ["missing", "info"]
    assert all("pip install no-such-package" in finding.hint for finding in found)
