"""Tuning specs that match operations by their names, as the compiler takes them."""

from __future__ import annotations

_SPEC = """module attributes {{iree_codegen.tuning_spec_with_default_entrypoint, transform.with_named_sequence}} {{
  transform.named_sequence @apply_op_config(
      %op: !transform.any_op {{transform.readonly}}, %config: !transform.any_param {{transform.readonly}}) {{
    transform.annotate %op "compilation_info" = %config : !transform.any_op, !transform.any_param
    transform.yield
  }}
  transform.named_sequence @match(%op: !transform.any_op {{transform.readonly}})
      -> (!transform.any_op, !transform.any_param) {{
    transform.match.operation_name %op ["{operation}"] : !transform.any_op
    %config = transform.param.constant #iree_codegen.compilation_info<{configuration}> -> !transform.any_param
    transform.yield %op, %config : !transform.any_op, !transform.any_param
  }}
  transform.named_sequence @__kernel_config(%variant: !transform.any_op {{transform.consumed}})
      -> !transform.any_op attributes {{iree_codegen.tuning_spec_entrypoint}} {{
    %updated = transform.foreach_match in %variant @match -> @apply_op_config : (!transform.any_op) -> !transform.any_op
    transform.yield %updated : !transform.any_op
  }}
}}
"""
_CPU = (
    "lowering_config = #iree_cpu.lowering_config<{sizes}>, translation_info = <pipeline = #iree_cpu.pipeline<{name}>>"
)
_SIZES = "distribution = [4], vector_common_parallel = [2]"
_MATMUL_SIZES = "distribution = [32, 32, 0], vector_common_parallel = [4, 8, 0], vector_reduction = [0, 0, 8]"
_GFX942 = (
    "lowering_config = #iree_gpu.lowering_config<{mma_kind = #iree_gpu.mma_layout<MFMA_F32_16x16x4_F32>, "
    "promote_operands = [0, 1], reduction = [0, 0, 32], subgroup = [1, 2, 0], workgroup = [32, 64, 0]}>, "
    "translation_info = <pipeline = #iree_gpu.pipeline<TileAndFuse> workgroup_size = [128, 1, 1] subgroup_size = 64>"
)


# Two calls of one dispatch.
MATMULS = """func.func @abs(%a: tensor<64x256xf32>, %b: tensor<256x256xf32>) -> tensor<64x256xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64x256xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<64x256xf32>) -> tensor<64x256xf32>
  %once = linalg.matmul ins(%a, %b : tensor<64x256xf32>, tensor<256x256xf32>)
      outs(%start : tensor<64x256xf32>) -> tensor<64x256xf32>
  %twice = linalg.matmul ins(%once, %b : tensor<64x256xf32>, tensor<256x256xf32>)
      outs(%start : tensor<64x256xf32>) -> tensor<64x256xf32>
  return %twice : tensor<64x256xf32>
}
"""


def write_cpu_spec(operation: str = "linalg.generic") -> str:
    """Return a tuning spec for a CPU and all operations of a name: matmuls, or others with a dimension of four."""
    sizes = _MATMUL_SIZES if operation == "linalg.matmul" else _SIZES
    return _SPEC.format(operation=operation, configuration=_CPU.format(sizes=sizes, name="DoubleTilingExpert"))


def write_gfx942_spec() -> str:
    """Return a tuning spec for matmuls with the matrix instructions of gfx942, which gfx1201 does not have."""
    return _SPEC.format(operation="linalg.generic", configuration=_GFX942)
