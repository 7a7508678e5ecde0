"""Code of dispatches, read from modules, against the assembly that the compiler writes of the same code."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.measuring.code import module_code
from iree_gauntlet.measuring.code.code_changes import compare_code
from iree_gauntlet.measuring.code.code_text import CodeLevel, DispatchText, make_dump_flags, read_dispatch_text
from iree_gauntlet.measuring.code.gpu_code import AmdKernel, compute_occupancy
from iree_gauntlet.measuring.code.module_code import load_module_code, read_module_code
from iree_gauntlet.results import CODE_FIGURES, DispatchCode
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.spilling_product import SPILLING_PRODUCT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.measuring.code.module_code import ModuleCode

pytestmark = pytest.mark.iree

_PROGRAM = """
!a = tensor<64x128xf32>
!b = tensor<128x64xf32>
!c = tensor<64x64xf32>
func.func @main(%a: !a, %b: !b) -> (!c, tensor<64xf32>) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : !c
  %fill = linalg.fill ins(%zero : f32) outs(%empty : !c) -> !c
  %c = linalg.matmul ins(%a, %b : !a, !b) outs(%fill : !c) -> !c
  %row = tensor.empty() : tensor<64xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%row : tensor<64xf32>) -> tensor<64xf32>
  %sum = linalg.reduce ins(%c : !c) outs(%zeros : tensor<64xf32>) dimensions = [1]
    (%x: f32, %y: f32) { %s = arith.addf %x, %y : f32  linalg.yield %s : f32 }
  return %c, %sum : !c, tensor<64xf32>
}
"""
_CPU = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
_TARGETS = {
    "x86_64": (
        *_CPU,
        "--iree-llvmcpu-target-triple=x86_64-unknown-linux-eabi-elf",
        "--iree-llvmcpu-target-cpu=x86-64-v3",
    ),
    "aarch64": (*_CPU, "--iree-llvmcpu-target-triple=aarch64-linux-gnu"),
    "riscv64": (
        *_CPU,
        "--iree-llvmcpu-target-triple=riscv64-linux-gnu",
        "--iree-llvmcpu-target-abi=lp64d",
        "--iree-llvmcpu-target-cpu-features=+m,+a,+f,+d,+c,+v",
    ),
    "gfx942": ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx942"),
    "gfx1100": ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx1100"),
    "sm_89": ("--iree-hal-target-device=cuda", "--iree-cuda-target=sm_89"),
    "spirv": ("--iree-hal-target-device=vulkan", "--iree-vulkan-target=ampere"),
    "vmvx": ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"),
}
_INSTRUCTIONS = ("vector_instructions", "scalar_instructions")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Compile the program for each target, with the files that the compiler makes of its code beside the module."""
    folder = tmp_path_factory.mktemp("code")
    processes = {}
    for target, flags in _TARGETS.items():
        program = SPILLING_PRODUCT if target == "gfx1100" else _PROGRAM
        (folder / target).mkdir()
        (folder / target / "main.mlir").write_text(program)
        dumps = {flag for level in CodeLevel for flag in make_dump_flags(level, folder / target)}
        command = [find_installed().compiler.compile, "main.mlir", *flags, *dumps, "-o", "m.vmfb"]
        processes[target] = subprocess.Popen(command, cwd=folder / target)
    assert [process.wait() for process in processes.values()] == [0] * len(processes)
    return {target: folder / target / "m.vmfb" for target in processes}


def _read(module: Path) -> ModuleCode:
    code = read_module_code(module)
    assert code.code_problems == ()
    assert all(set(dispatch.figures) <= set(CODE_FIGURES) for dispatch in code.code)
    return code


def _read_assembly(module: Path, suffix: str) -> str:
    (file,) = module.parent.glob(f"*{suffix}")
    return file.read_text()


@pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
def test_registers_spills_and_memory_of_kernels_are_those_of_the_assembly(
    modules: Mapping[str, Path], target: str
) -> None:
    text = _read_assembly(modules[target], ".rocmasm")
    kernels = text[text.index("amdhsa.kernels:") : text.index("amdhsa.target:")].split("\n  - ")[1:]
    names = {
        "vgpr_count": "vgprs",
        "agpr_count": "agprs",
        "sgpr_count": "sgprs",
        "vgpr_spill_count": "vgpr_spills",
        "sgpr_spill_count": "sgpr_spills",
        "group_segment_fixed_size": "shared_bytes",
        "private_segment_fixed_size": "scratch_bytes",
    }
    expected = {}
    for kernel in kernels:
        values = dict(re.findall(r"\.(\w+): +(\S+)", kernel))
        expected[values["name"]] = {key: int(values.get(name, 0)) for name, key in names.items()}
    measured = {code.name: {key: code.figures[key] for key in names.values()} for code in _read(modules[target]).code}
    assert measured == expected
    sizes = dict(re.findall(r"\.size\s+(\S+), \.Lfunc_end\d+-(\S+)", text))
    assert sizes.keys() == measured.keys()


@pytest.mark.parametrize("level", CodeLevel)
@pytest.mark.parametrize("target", [target for target in _TARGETS if target != "vmvx"])
def test_each_dispatch_has_its_text_at_each_level(modules: Mapping[str, Path], target: str, level: CodeLevel) -> None:
    folder = modules[target].parent
    names = [code.name for code in _read(modules[target]).code]
    texts = {name: read_dispatch_text(folder, level, name) for name in names}
    if (target, level) == ("spirv", CodeLevel.LLVM):
        assert {*texts.values()} == {None}
        return
    assert all(text and len(text.lines) > 5 for text in texts.values())
    lines = [line for text in texts.values() if text for line in text.lines]
    # Each text is of one dispatch, and has nothing that says where in a file or in a program the dispatch was.
    assert not [line for line in lines if re.search(r"\.LBB\d|LCPI\d+_|\.loc\b|\.cfi_|!dbg|_dispatch_\d", line)]
    if level is CodeLevel.LLVM:
        assert sum(line.startswith("define ") for line in lines) == len(names)
    if level is CodeLevel.CONFIG:
        assert any("translation_info" in line or "lowering_config" in line for line in lines)
    assert read_dispatch_text(folder, level, names[0][:-1]) is None
    assert read_dispatch_text(folder, level, "no.such[dispatch") is None


def test_texts_are_compared_without_the_numbers_of_names() -> None:
    def text(*lines: str) -> DispatchText:
        return DispatchText(lines, tuple(re.sub(r"%\d+", "%", line) for line in lines))

    a, b = text("%1 = load", "%2 = add %1", "ret"), text("%1 = load", "%2 = mul %1", "%3 = add %2", "ret")
    assert list(a.compare(b)) == [
        ("%1 = load", "%1 = load", 0),
        (None, "%2 = mul %1", 0),
        ("%2 = add %1", "%3 = add %2", 0),
        ("ret", "ret", 0),
    ]
    assert list(a.compare(a)) == []
    long = text(*(f"line {number}" for number in range(20)))
    changed = text(*("new" if number == 10 else f"line {number}" for number in range(20)))
    assert [row[2] for row in long.compare(changed) if row[2]] == [7, 6]


def test_a_tile_that_is_too_large_spills_and_lowers_the_occupancy(modules: Mapping[str, Path]) -> None:
    code = _read(modules["gfx1100"])
    (dispatch,) = code.code
    assert dispatch.figures["vgpr_spills"] > 0
    assert dispatch.figures["scratch_bytes"] > 0
    # Local memory holds two groups of four waves, on four SIMDs.
    assert dispatch.figures["occupancy"] == 2
    assert code.statistics["spill_count"] == dispatch.figures["vgpr_spills"] + dispatch.figures["sgpr_spills"]
    assert code.statistics["register_count"] == dispatch.figures["vgprs"]
    assert _read(modules["gfx942"]).statistics["spill_count"] == 0


@pytest.mark.parametrize(
    ("target", "fma", "load", "store"),
    [
        ("x86_64", r"vfn?m(add|sub)\w+", None, None),
        ("aarch64", r"(fm[la][las]\w*|fmadd|fmsub)", r"ld\w+", r"st\w+"),
        (
            "riscv64",
            r"(vfn?m(acc|sac|add|sub)\.\w+|fn?m(add|sub)\.\w+)",
            r"(v?l[bhwde]\S*|fl[wd]|vl\w+e?\d+\S*)",
            r"(s[bhwd]|fs[wd]|vs\w*e?\d+\S*)",
        ),
    ],
)
def test_instructions_of_cpus_are_those_of_the_assembly(
    modules: Mapping[str, Path], target: str, fma: str, load: str | None, store: str | None
) -> None:
    text = _read_assembly(modules[target], ".s")
    for code in _read(modules[target]).code:
        body = text[text.index(f"\n{code.name}:") :]
        body = body[: body.index(".Lfunc_end")]
        names = [match[1] for match in re.finditer(r"^\t([a-z][\w.]*)", body, re.MULTILINE)]
        for key, pattern in (("fma_instructions", fma), ("loads", load), ("stores", store)):
            if pattern is not None:
                expected = [name for name in names if re.fullmatch(pattern, name)]
                assert code.figures[key] == len(expected), (code.name, key)
        if target != "riscv64":
            # The assembler relaxes pseudo-instructions of RISC-V to one or two real ones.
            counted = sum(code.figures[key] for key in _INSTRUCTIONS)
            # The assembler aligns loops with instructions that do nothing.
            assert len(names) <= counted <= len(names) + text.count("p2align")
        assert 0 < code.figures["stack_accesses"] <= code.figures["loads"] + code.figures["stores"]


def test_ptx_and_spirv_tell_sizes_and_shared_memory(modules: Mapping[str, Path]) -> None:
    text = _read_assembly(modules["sm_89"], ".ptx")
    ptx, spirv = _read(modules["sm_89"]), _read(modules["spirv"])
    assert [code.name for code in ptx.code] == re.findall(r"\.entry (\S+)\(", text)
    assert {code.target for code in ptx.code} == {"sm_89"}
    assert {code.figures["code_bytes"] for code in spirv.code} == {
        file.stat().st_size for file in modules["spirv"].parent.glob("*.spv")
    }
    assert {code.name for code in spirv.code} == {code.name for code in ptx.code}
    # Registers of PTX and SPIR-V are virtual.
    for code in (ptx, spirv):
        assert code.statistics["code_bytes"] == sum(item.figures["code_bytes"] for item in code.code)
        assert code.statistics["spill_count"] is None


def test_a_module_without_machine_code_has_no_figures_but_a_reason(modules: Mapping[str, Path]) -> None:
    code = read_module_code(modules["vmvx"])
    assert code.code_problems == ("the module has no machine code of a known format",)
    assert code.statistics["code_bytes"] is None


@pytest.mark.parametrize("target", ["x86_64", "aarch64", "gfx942", "sm_89", "spirv"])
def test_damaged_modules_have_reasons_in_place_of_figures(
    modules: Mapping[str, Path], target: str, tmp_path: Path
) -> None:
    module, path = modules[target].read_bytes(), tmp_path / "damaged.vmfb"
    whole = read_module_code(modules[target]).statistics["code_bytes"]
    # The same damage each time.
    chance = random.Random(7)
    for index in range(30):
        data = bytearray(module)
        if index % 3:
            for _ in range(chance.choice((1, 16, 200))):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(data)
        code = read_module_code(path)
        assert all(value >= 0 for dispatch in code.code for value in dispatch.figures.values())
        assert code.code or code.code_problems
        if code.code_problems:
            assert code.statistics["code_bytes"] is None
    path.write_bytes(b"")
    assert read_module_code(path).code_problems == ("the module is empty",)
    path.write_bytes(module)
    assert read_module_code(path).statistics["code_bytes"] == whole


def test_a_module_is_read_once(modules: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = tmp_path / "code.json"
    code = load_module_code(modules["gfx942"], document)
    monkeypatch.setattr(module_code, "read_module_code", lambda _: pytest.fail("it was read again"))
    assert load_module_code(modules["gfx942"], document) == code
    # Another version's document, and a damaged one, are not used.
    monkeypatch.undo()
    for text in (document.read_text().replace('"version": 1', '"version": 0'), "[", "{}", '{"code": []}'):
        document.write_text(text)
        assert load_module_code(modules["gfx942"], document) == code
    monkeypatch.setitem(sys.modules, "capstone", None)
    assert load_module_code(modules["gfx942"], document) == code
    document.unlink()
    assert load_module_code(modules["gfx942"], document).statistics == {}
    assert not document.exists()


def _kernel(**fields: Any) -> AmdKernel:
    kernel = AmdKernel(
        name="k",
        symbol="k.kd",
        wavefront_size=64,
        max_flat_workgroup_size=256,
        vgpr_count=32,
        sgpr_count=32,
        vgpr_spill_count=0,
        sgpr_spill_count=0,
        group_segment_fixed_size=0,
        private_segment_fixed_size=0,
    )
    return replace(kernel, **fields)


@pytest.mark.parametrize(
    ("target", "blocks", "kernel", "waves"),
    [
        # 64 registers: 512 / 64. 72 registers: 512 / 72. All 512 of them.
        ("gfx942", 7, _kernel(), 8),
        ("gfx942", 8, _kernel(), 7),
        ("gfx90a", 63, _kernel(), 1),
        # Two groups of four waves fit into the local memory of four SIMDs; three quarters of it hold one group.
        ("gfx942", 0, _kernel(group_segment_fixed_size=32 * 1024), 2),
        ("gfx942", 0, _kernel(group_segment_fixed_size=48 * 1024), 1),
        ("gfx950", 0, _kernel(group_segment_fixed_size=48 * 1024), 3),
        ("gfx906", 5, _kernel(sgpr_count=96), 8),
        ("gfx906", 5, _kernel(sgpr_count=102), 7),
        # Waves of 32 have twice the registers: 1,536 / 264 and 1,536 / 96.
        ("gfx1100", 31, _kernel(wavefront_size=32), 5),
        ("gfx1201", 11, _kernel(wavefront_size=32), 16),
        ("gfx1030", 15, _kernel(wavefront_size=32), 8),
        ("gfx1010", 0, _kernel(wavefront_size=32), 20),
        ("gfx1100", 0, _kernel(wavefront_size=32, group_segment_fixed_size=64 * 1024, workgroup_processor_mode=1), 4),
        ("gfx9999", 0, _kernel(), None),
    ],
)
def test_occupancy_follows_from_registers_and_local_memory(
    target: str, blocks: int, kernel: AmdKernel, waves: int | None
) -> None:
    assert compute_occupancy(target, kernel, blocks) == waves


def test_code_is_matched_by_content_then_by_name() -> None:
    def make(name: str, code_hash: str, **figures: int) -> DispatchCode:
        return DispatchCode(f"main$async_dispatch_{name}", "gfx942", figures, code_hash)

    a = [
        make("0_matmul_4x4_f32", "same"),
        make("1_matmul_8x8_f32", "x", vgpr_spills=0, vgprs=96, code_bytes=1000),
        make("2_reduction_8_f32", "y", code_bytes=100),
        make("3_conv_1x1_f32", "gone", occupancy=8, code_bytes=5000),
    ]
    b = [
        make("0_reduction_8_f32", "z", code_bytes=90),
        make("1_matmul_4x4_f32", "same"),
        make("2_matmul_8x8_f32", "w", vgpr_spills=12, vgprs=256, code_bytes=900),
        make("3_softmax_8_f32", "new", code_bytes=4096),
    ]
    assert [(change.name.rpartition("dispatch_")[2], change.description) for change in compare_code(a, b)] == [
        ("2_matmul_8x8_f32", "VGPR spills 0 → 12, VGPRs 96 → 256, code bytes 1,000 → 900"),
        ("3_softmax_8_f32", "only in B: 4,096 code bytes"),
        ("0_reduction_8_f32", "code bytes 100 → 90"),
        ("3_conv_1x1_f32", "only in A: 8 occupancy, 5,000 code bytes"),
    ]
    assert compare_code(a, list(reversed(a))) == []
    assert compare_code([a[1]], [make("1_matmul_8x8_f32", "v", **a[1].figures)])[0].description == "other instructions"
