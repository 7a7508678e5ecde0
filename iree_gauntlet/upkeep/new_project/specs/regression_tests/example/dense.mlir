// y = max(x * w, 0)
func.func @dense(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<8x4xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<8x4xf32>) -> tensor<8x4xf32>
  %product = linalg.matmul ins(%x, %w : tensor<8x16xf32>, tensor<16x4xf32>)
      outs(%zeros : tensor<8x4xf32>) -> tensor<8x4xf32>
  %y = arith.maximumf %product, %zeros : tensor<8x4xf32>
  return %y : tensor<8x4xf32>
}
