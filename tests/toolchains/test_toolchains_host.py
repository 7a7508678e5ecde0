from __future__ import annotations

import platform
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains import host
from iree_gauntlet.toolchains.host import ask_host_cpu, means_host, parse_cpuinfo
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import with_fields

if TYPE_CHECKING:
    from pathlib import Path

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
    assert means_host(flags) is expected


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
    cpu = host._parse_sysctl(text)
    assert cpu.name == "Apple M2"
    assert cpu.features == {"hw.optional.arm.FEAT_BF16"}
    assert cpu.identity == host._parse_sysctl(text.replace("memsize: 1", "memsize: 2")).identity
    assert host._parse_sysctl("").kind


@given(st.text())
def test_any_text_gives_an_identity(text: str) -> None:
    assert parse_cpuinfo(text).identity
    assert host._parse_sysctl(text).identity


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
    with pytest.raises(ToolchainError, match="does not say what CPU `host` is"):
        ask_host_cpu(with_fields(find_installed(), {"compile": "/bin/true"}))
