from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections import namedtuple
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.short_process import run_tool
from iree_gauntlet.tasks import doctor
from iree_gauntlet.tasks.doctor import DoctorFinding, diagnose
from iree_gauntlet.toolchains import devices as devices_module
from iree_gauntlet.toolchains.devices import (
    ask_host_cpu,
    check_device,
    find_device,
    list_compile_backends,
    list_device_uris,
    list_drivers,
    parse_cpuinfo,
    targets_host_cpu,
)
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.toolchain import Toolchain
from tests.support.command_line import LIMIT_SECONDS, with_fields
from tests.support.hanging import HANG, iterate_timeouts, make_hang_command
from tests.support.processes import find_processes, wait_until

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
_X86 = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9654
stepping\t: 1
microcode\t: 0xa10113e
cpu MHz\t\t: 2400.000
flags\t\t: fpu avx avx2
bogomips\t: 4800.00
"""
_ARM = """processor\t: {n}
Features\t: fp asimd {extra}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: {part}
"""
_PROGRAM = """func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = math.exp %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
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
    assert {"llvm-cpu", "rocm", "cuda", "vulkan-spirv", "metal-spirv", "vmvx"} <= set(list_compile_backends(toolchain))
    assert {"local-sync", "local-task", "hip"} <= set(list_drivers(toolchain))
    assert {"local-sync://", "local-task://"} <= set(list_device_uris(toolchain))
    assert list_device_uris(toolchain, "local-task") == ("local-task://",)


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
    assert available.reason == "the driver vulkan works but finds no device"
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
    with pytest.raises(ToolchainError, match="listed no driver"):
        list_drivers(with_fields(toolchain, {"run_module": "/bin/true"}))


def test_a_probe_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    ready, child = tmp_path / "ready", make_hang_command()
    for seconds in iterate_timeouts():
        with pytest.raises(ToolchainError, match=f"did not answer within {seconds:g} s and was killed"):
            run_tool(["/bin/sh", "-c", f"{child} & touch '{ready}'; wait"], timeout=seconds)
        if ready.exists():
            break
    wait_until(lambda: not find_processes(child))


def test_a_probe_says_what_a_tool_says() -> None:
    answer = run_tool(["/bin/sh", "-c", "cat; printf '\\377' >&2; exit 3"], timeout=LIMIT_SECONDS, stdin="hello")
    assert (answer.exit_code, answer.stdout, answer.stderr) == (3, "hello", "\ufffd")
    with pytest.raises(ToolchainError, match="cannot be started"):
        run_tool(["/nowhere/tool"], timeout=1)


@pytest.mark.iree
def test_a_healthy_installation(toolchain: Toolchain, tmp_path: Path) -> None:
    found = diagnose(toolchain, tmp_path)
    by_area = {finding.area: finding for finding in found}
    assert by_area["target cpu"].status == "ok"
    assert by_area["target rocm"].text.startswith("compiles (rocm)")
    targets = [area.removeprefix("target ") for area in by_area if area.startswith("target ")]
    assert targets == ["cpu", "rocm", "cuda", "vulkan", "metal", "aarch64", "aarch64-sve", "riscv64"]
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
    monkeypatch.setattr(doctor, "_PACKAGE_PURPOSES", packages)
    monkeypatch.setattr(doctor, "_OPTIONAL_PACKAGES", frozenset({"no-such-package-b"}))
    found = findings(ToolchainError("none"), tmp_path, "packages")
    assert [finding.status for finding in found] == ["missing", "info"]
    assert all("pip install no-such-package" in finding.hint for finding in found)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--iree-llvmcpu-target-cpu=host"], True),
        (["-iree-llvmcpu-target-cpu-features=host"], True),
        (["--iree-llvmcpu-target-cpu", "host"], True),
        (["--iree-llvmcpu-target-cpu=generic", "--iree-llvmcpu-target-cpu-features=+avx2"], False),
        (["--iree-llvmcpu-target-cpu=znver4"], False),
        (["--iree-hal-target-device=local", "host"], False),
        (["--iree-llvmcpu-target-cpu"], False),
        ([], False),
    ],
)
def test_flags_that_mean_host(flags: list[str], expected: bool) -> None:
    assert targets_host_cpu(flags) is expected


def test_equal_machines_have_one_identity() -> None:
    other = _X86.replace("2400.000", "3700.001").replace("0xa10113e", "0x1").replace("4800.00", "4801.12")
    twice = _X86 + "\n" + other.replace("processor\t: 0", "processor\t: 1")
    assert parse_cpuinfo(other).identity == parse_cpuinfo(_X86).identity == parse_cpuinfo(twice).identity
    assert parse_cpuinfo(_X86).identity.startswith(f"AMD EPYC 9654 ({platform.machine()}, 3 features, ")


@pytest.mark.parametrize(("old", "new"), [("avx2", "avx512f"), (" avx2", ""), (": 17", ": 18"), ("AuthenticAMD", "x")])
def test_other_machines_have_another_identity(old: str, new: str) -> None:
    assert parse_cpuinfo(_X86.replace(old, new)).identity != parse_cpuinfo(_X86).identity


def test_a_machine_with_two_kinds_of_cores() -> None:
    cpu = parse_cpuinfo(_ARM.format(n=0, extra="sve", part="0xd40") + "\n" + _ARM.format(n=1, extra="", part="0xd41"))
    assert cpu.features == {"fp", "asimd"}
    assert {"CPU part=0xd40", "CPU part=0xd41"} <= set(cpu.kind)


def test_riscv_features_come_from_the_isa_string() -> None:
    cpu = parse_cpuinfo("processor : 0\nisa : rv64imafdc_zicsr_zba\nuarch : sifive,u74-mc\n")
    assert cpu.features == {"rv64imafdc", "zicsr", "zba"}
    assert cpu.name == "sifive,u74-mc"


def test_a_system_that_says_nothing() -> None:
    cpu = parse_cpuinfo("")
    assert cpu.identity
    assert any(platform.node() in fact for fact in cpu.kind)


def test_macos() -> None:
    text = (
        "machdep.cpu.brand_string: Apple M2\nhw.cputype: 16777228\nhw.cpufamily: -634136515\n"
        "hw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_SME: 0\nhw.memsize: 1\n"
    )
    cpu = devices_module._parse_sysctl(text)
    assert cpu.name == "Apple M2"
    assert cpu.features == {"hw.optional.arm.FEAT_BF16"}
    assert cpu.identity == devices_module._parse_sysctl(text.replace("memsize: 1", "memsize: 2")).identity
    assert devices_module._parse_sysctl("").kind


@given(st.text())
def test_any_text_gives_an_identity(text: str) -> None:
    assert parse_cpuinfo(text).identity
    assert devices_module._parse_sysctl(text).identity


@pytest.mark.iree
def test_the_compilers_host_and_its_default(tmp_path: Path) -> None:
    toolchain = find_installed()
    cpu = ask_host_cpu(toolchain)
    (tmp_path / "program.mlir").write_text(_PROGRAM, encoding="utf-8")

    def compiled(*flags: str) -> tuple[str, str]:
        argv = [toolchain.compiler.compile, "program.mlir", "--iree-hal-target-backends=llvm-cpu", *flags]
        result = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
        return result.stdout, result.stderr

    stop = "--compile-to=executable-targets"
    assert f'cpu = "{cpu}"' in compiled("--iree-llvmcpu-target-cpu=host", stop)[0]
    assert f'cpu = "{cpu}"' in compiled("--iree-llvmcpu-target-cpu-features=host", stop)[0]
    # No flag is a generic CPU, with a warning where code is made.
    assert 'cpu = ""' in compiled(stop)[0]
    _, warning = compiled("-o", "program.vmfb")
    assert "Defaulting to targeting a generic CPU" in warning


@pytest.mark.iree
def test_a_compiler_that_does_not_say() -> None:
    with pytest.raises(ToolchainError, match="does not report which CPU `host` is"):
        ask_host_cpu(with_fields(find_installed(), {"compile": "/bin/true"}))
