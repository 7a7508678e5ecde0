"""A product of matrices whose tile, as IREE chooses it, is too large for the registers of a gfx1100."""

__all__ = ["SPILLING_PRODUCT"]

SPILLING_PRODUCT = """
!a = tensor<256x1024xf16>
!b = tensor<1024x512xf16>
!c = tensor<256x512xf32>
func.func @product(%a: !a, %b: !b) -> !c {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : !c
  %fill = linalg.fill ins(%zero : f32) outs(%empty : !c) -> !c
  %c = linalg.matmul ins(%a, %b : !a, !b) outs(%fill : !c) -> !c
  return %c : !c
}
"""
