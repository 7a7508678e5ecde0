"""Facts about recipes in compiled modules: real programs by the real compiler, and the tables inside modules."""

from __future__ import annotations

import dataclasses
import itertools
import struct
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.artifacts.program_parameters import Parameter
from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.torch_models.module_facts import (
    ModuleFacts,
    describe_facts,
    find_dispatch_types,
    find_unproven,
    find_widened_at_load,
    name_tables,
    read_module_facts,
    read_span_lengths,
)
from iree_gauntlet.torch_models.plugins import Proof
from tests.support.command_line import LIMIT_SECONDS, with_fields

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
_NO_HOISTING = "--iree-opt-const-expr-hoisting=false"
_PRODUCT = """
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<4x64xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<4x64xf32>) -> tensor<4x64xf32>
  %out = linalg.matmul ins(%x, %wide : tensor<4x32xf32>, tensor<32x64xf32>) outs(%start : tensor<4x64xf32>)
      -> tensor<4x64xf32>
  return %out : tensor<4x64xf32>
}
"""
_PLAIN = f"""
util.global private @w = #flow.parameter.named<"model"::"layer.weight"> : tensor<32x64xf32>
util.global private @other = #flow.parameter.named<"model"::"layer.other"> : tensor<8xf32>
func.func @main(%x: tensor<4x32xf32>) -> tensor<4x64xf32> {{
  %wide = util.global.load @w : tensor<32x64xf32>{_PRODUCT}"""
_SCALE = """
#all = affine_map<(d0, d1) -> (d0, d1)>
#column = affine_map<(d0, d1) -> (d1)>
"""
# int8 weights with a step for each output, as weight-only recipes have them.
_UNPACK = f"""
  %space = tensor.empty() : tensor<32x64xf32>
  %wide = linalg.generic {{indexing_maps = [#all, #column, #all], iterator_types = ["parallel", "parallel"]}}
      ins(%narrow, %step : tensor<32x64xi8>, tensor<64xf32>) outs(%space : tensor<32x64xf32>) {{
    ^bb0(%a: i8, %b: f32, %c: f32):
      %0 = arith.sitofp %a : i8 to f32
      %1 = arith.mulf %0, %b : f32
      linalg.yield %1 : f32
  }} -> tensor<32x64xf32>{_PRODUCT}"""
_INT8 = f"""{_SCALE}
util.global private @w = #flow.parameter.named<"model"::"layer.weight"> : tensor<32x64xi8>
util.global private @s = #flow.parameter.named<"model"::"layer.weight_scale"> : tensor<64xf32>
func.func @main(%x: tensor<4x32xf32>) -> tensor<4x64xf32> {{
  %narrow = util.global.load @w : tensor<32x64xi8>
  %step = util.global.load @s : tensor<64xf32>{_UNPACK}"""
_UNPACK_MORE = _UNPACK.replace("64xf32", "256xf32").replace("64xi8", "256xi8")
# Large enough to be a file of its own inside the module, from 4 KiB on.
_INLINE = f"""{_SCALE}
func.func @main(%x: tensor<4x32xf32>) -> tensor<4x256xf32> {{
  %narrow = arith.constant dense<"0x{bytes(range(256)).hex() * 32}"> : tensor<32x256xi8>
  %step = arith.constant dense<0.5> : tensor<256xf32>{_UNPACK_MORE}"""


def _parameter(name: str, element_type: str, count: int) -> Parameter:
    return Parameter("model", name, (count,), element_type)


def _facts(**changes: object) -> ModuleFacts:
    plain = ModuleFacts(
        parameters=(_parameter("w", "i8", 1000), _parameter("s", "f32", 10)),
        unread=(),
        dispatches=("main_dispatch_0_matmul_4x64x32_f32xi8xf32", "main_dispatch_1_elementwise_256_f32"),
        load_dispatches=(),
        constant_bytes=0,
        module_bytes=9000,
        digest="aa",
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


_BASELINE = _facts(parameters=(_parameter("w", "f32", 1000),), digest="bb")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("facts")
    programs: dict[str, tuple[str, tuple[str, ...]]] = {
        "plain": (_PLAIN, ()),
        "int8": (_INT8, (_NO_HOISTING,)),
        "hoisted": (_INT8, ()),
        "inline": (_INLINE, ()),
    }
    for name, (text, flags) in programs.items():
        (folder / f"{name}.mlir").write_text(text)
        argv = [find_installed().compiler.compile, f"{name}.mlir", "-o", f"{name}.vmfb", *_FLAGS, *flags]
        subprocess.run(argv, cwd=folder, check=True, timeout=LIMIT_SECONDS)
    return folder


def _read(built: Path, name: str) -> ModuleFacts:
    return read_module_facts(find_installed(), built / f"{name}.mlir", built / f"{name}.vmfb")


@pytest.mark.iree
def test_a_module_tells_its_parameters_dispatches_and_sizes(built: Path) -> None:
    facts = _read(built, "plain")
    (weight,) = facts.parameters
    assert (weight.name, weight.element_type, weight.byte_size) == ("layer.weight", "f32", 32 * 64 * 4)
    # The compiler drops what nobody uses.
    assert facts.unread == ("layer.other",)
    assert facts.dispatches == ("main_dispatch_0_matmul_4x64x32_f32",)
    assert facts.load_dispatches == ()
    assert (facts.constant_bytes, facts.parameter_bytes) == (0, 8192)
    assert facts.module_bytes == (built / "plain.vmfb").stat().st_size
    assert describe_facts(facts) == ["parameters f32: 8.2 kB", "dispatches: matmul_4x64x32_f32"]
    assert find_unproven(Proof(parameter_types=("f32",), parameter_share=1.0, dispatch="matmul"), facts, facts) == []


@pytest.mark.iree
def test_weights_that_stay_narrow_prove_their_recipe(built: Path) -> None:
    facts, baseline = _read(built, "int8"), _read(built, "plain")
    assert facts.bytes_by_type == {"i8": 32 * 64, "f32": 64 * 4}
    assert facts.load_dispatches == ()
    assert any("i8" in find_dispatch_types(name) for name in facts.dispatches)
    proof = Proof(parameter_types=("i8",), parameter_share=0.3, dispatch="i8", different=True)
    assert find_unproven(proof, facts, baseline) == []


@pytest.mark.iree
def test_weights_that_become_wide_when_the_module_is_loaded_are_seen(built: Path) -> None:
    facts, baseline = _read(built, "hoisted"), _read(built, "plain")
    # The archive has int8 still, and calls are those of the baseline.
    assert facts.bytes_by_type == {"i8": 32 * 64, "f32": 64 * 4}
    assert facts.dispatches == baseline.dispatches
    assert [find_dispatch_types(name) for name in facts.load_dispatches] == [("i8", "f32", "f32")]
    assert find_widened_at_load(facts, "si8") == facts.load_dispatches
    assert find_unproven(Proof(parameter_types=("i8",), parameter_share=0.5), facts, baseline) == [
        "its parameters of type i8 become f32 when it is loaded: elementwise_32x64_i8xf32xf32"
    ]
    assert "made of them at load: elementwise_32x64_i8xf32xf32" in describe_facts(facts)


@pytest.mark.iree
def test_weights_that_are_constants_of_the_module_count_too(built: Path) -> None:
    facts, baseline = _read(built, "inline"), _read(built, "plain")
    assert facts.parameters == ()
    assert facts.constant_bytes == 32 * 256
    assert find_unproven(Proof(parameter_types=("i8",), parameter_share=0.5), facts, baseline) == [
        "it reads no parameter of type i8: those that it reads are none",
        "its parameters and constants take 8.2 kB, and the recipe promises at most 50 % of the baseline's 8.2 kB",
    ]
    assert describe_facts(facts)[0] == "constants inside the module: 8.2 kB"


@pytest.mark.iree
def test_what_is_no_module_is_refused(built: Path, tmp_path: Path) -> None:
    toolchain, program = find_installed(), built / "plain.mlir"
    content = (built / "plain.vmfb").read_bytes()
    for name, damaged in {"empty": b"", "text": b"no module", "torn": content[: len(content) // 2]}.items():
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(GauntletError, match=f"{name}: "):
            read_module_facts(toolchain, program, tmp_path / name)
    with pytest.raises(GauntletError, match="missing"):
        read_module_facts(toolchain, program, tmp_path / "missing")
    elsewhere = with_fields(toolchain, {"run_module": str(tmp_path / "iree-run-module")})
    with pytest.raises(ToolchainError, match="iree-dump-module cannot be started"):
        read_module_facts(elsewhere, program, built / "plain.vmfb")


@pytest.mark.iree
def test_a_module_whose_parts_are_not_told_apart_is_refused(built: Path, tmp_path: Path) -> None:
    toolchain, module = find_installed(), tmp_path / "flat.vmfb"
    argv = [toolchain.compiler.compile, str(built / "plain.mlir"), "-o", str(module), *_FLAGS]
    subprocess.run([*argv, "--iree-vm-emit-polyglot-zip=false"], check=True, timeout=LIMIT_SECONDS)
    with pytest.raises(GauntletError, match="cannot be identified") as caught:
        read_module_facts(toolchain, built / "plain.mlir", module)
    assert "--iree-vm-emit-polyglot-zip=false" in caught.value.hint


def test_what_a_recipe_promises_is_asked_of_its_module() -> None:
    facts = _facts()
    assert find_unproven(Proof(), facts, _BASELINE) == []
    assert (
        find_unproven(Proof(parameter_types=("i8", "f32"), parameter_share=0.26, different=True), facts, _BASELINE)
        == []
    )
    assert find_unproven(Proof(parameter_types=("f8E4M3FN",)), _facts(unread=("a", "b")), _BASELINE) == [
        (
            "it reads no parameter of type f8E4M3FN: those that it reads are i8 (1.0 kB), f32 (40 B);"
            " the program's a, b are not read"
        )
    ]
    assert find_unproven(Proof(parameter_share=0.25), facts, _BASELINE) == [
        "its parameters and constants take 1.0 kB, and the recipe promises at most 25 % of the baseline's 4.0 kB"
    ]
    # What a recipe leaves alone, such as embeddings, is no smaller for it.
    assert find_unproven(Proof(parameter_share=0.1), facts, _BASELINE, changed_bytes=3000) == []
    assert find_unproven(Proof(parameter_share=0.25), facts, _BASELINE, changed_bytes=3990) == [
        (
            "its parameters and constants take 1.0 kB, and the recipe promises at most"
            " 25 % of the 4.0 kB that it changes of the baseline's 4.0 kB"
        )
    ]
    assert find_unproven(Proof(dispatch=r"i8xi8xi32"), facts, _BASELINE) == [
        (
            "no dispatch of its calls has a name that matches i8xi8xi32: there are matmul_4x64x32_f32xi8xf32,"
            " elementwise_256_f32"
        )
    ]
    assert find_unproven(Proof(different=True), facts, facts) == ["its module is the baseline's, byte for byte"]


def test_signs_of_types_do_not_matter_as_names_of_dispatches_have_none() -> None:
    unsigned = _facts(
        parameters=(_parameter("w", "ui8", 1000),), load_dispatches=("_initializer_0_dispatch_0_elementwise_9_i8xf32",)
    )
    assert find_widened_at_load(unsigned, "ui8") == unsigned.load_dispatches
    assert find_widened_at_load(unsigned, "i4") == ()
    assert find_unproven(Proof(parameter_types=("i8",)), _facts(parameters=unsigned.parameters), _BASELINE) == []


@pytest.mark.parametrize(
    ("name", "widens"),
    [
        ("_initializer_0_dispatch_0_elementwise_256x512_i8xf32xf32", True),
        ("_initializer_12_dispatch_0_elementwise_1x128x512_i8xbf16_pack", True),
        # The layout alone changes.
        ("_initializer_0_dispatch_0_transpose_256x512_i8", False),
        ("_initializer_0_encoding_0_encode_256x512xi8_to_256x512xi8", False),
        ("_initializer_0_dispatch_0_elementwise_256x512_f32xf32xi8", False),
        ("_initializer_0_dispatch_0_slow_memcpy", False),
    ],
)
def test_making_values_wider_is_told_from_other_work(name: str, widens: bool) -> None:
    assert bool(find_widened_at_load(_facts(load_dispatches=(name,)), "i8")) is widens


def test_few_of_many_dispatches_are_shown() -> None:
    many = tuple(f"main_dispatch_{number}_matmul_{number}x8x8_f32" for number in range(9))
    assert describe_facts(_facts(dispatches=(*many, "main_dispatch_9_elementwise_8_f32")))[-1] == (
        "dispatches: matmul_0x8x8_f32, matmul_1x8x8_f32, matmul_2x8x8_f32, matmul_3x8x8_f32 and 5 more"
    )


_ELEMENT_TYPES = st.sampled_from(["i1", "i4", "i8", "i64", "f16", "bf16", "f32", "f8E4M3FN", "f8E5M2FNUZ"])


@given(
    types=st.lists(_ELEMENT_TYPES, min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 4096), min_size=1, max_size=4),
    work=st.sampled_from(["matmul", "batch_matmul", "elementwise_broadcast", "matmul_like"]),
    after=st.sampled_from(["", "_pack", "_generic"]),
)
def test_types_are_read_from_any_name(types: list[str], sizes: list[int], work: str, after: str) -> None:
    name = f"main$async_dispatch_3_{work}_{'x'.join(map(str, sizes))}_{'x'.join(types)}{after}"
    assert find_dispatch_types(name) == tuple(types)


_NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(st.lists(_NAMES, min_size=1, max_size=12, unique=True), st.randoms())
def test_tables_of_names_are_found_among_other_data(names: list[str], chance: Random) -> None:
    encoded = [name.encode() for name in names]
    offsets = [0, *itertools.accumulate(map(len, encoded))]
    table = b"".join(struct.pack("<II", offset, len(name)) for offset, name in zip(offsets, encoded, strict=False))
    text = b"".join(encoded)
    spans = b"".join(struct.pack("<QQQ", 0, 0, 4 * len(name)) for name in encoded)
    data = [b"local*", spans, text, b"", table, b"hal.device.id"]
    chance.shuffle(data)
    found = name_tables(data, set(names))
    assert {name for one in found.values() for name in one} == set(names)
    assert read_span_lengths(spans) == tuple(4 * len(name) for name in encoded)


@given(st.binary(max_size=200))
def test_no_data_is_taken_for_a_table_of_names_that_nobody_knows(data: bytes) -> None:
    assert name_tables([data, data[:8], b"weight"], set()) == {}
    assert len(read_span_lengths(data)) in (0, len(data) // 24)
