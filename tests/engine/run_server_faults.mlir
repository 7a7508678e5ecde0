// Functions that wait as long, read where, and take as much memory as their arguments say.
func.func private @loop(%n: i64) -> i64 {
  %c0 = arith.constant 0 : i64
  %c1 = arith.constant 1 : i64
  %r = scf.while (%i = %c0) : (i64) -> i64 {
    %go = arith.cmpi slt, %i, %n : i64
    scf.condition(%go) %i : i64
  } do {
  ^bb0(%i: i64):
    %x = util.optimization_barrier %i : i64
    %next = arith.addi %x, %c1 : i64
    scf.yield %next : i64
  }
  return %r : i64
}
func.func @wait(%n: tensor<i64>) -> tensor<i64> {
  %v = tensor.extract %n[] : tensor<i64>
  %r = func.call @loop(%v) : (i64) -> i64
  %t = tensor.from_elements %r : tensor<i64>
  return %t : tensor<i64>
}
func.func @gather(%table: tensor<4xf32>, %at: tensor<2xi64>) -> tensor<2xf32> {
  %e = tensor.empty() : tensor<2xf32>
  %r = linalg.generic {
      indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]
    } ins(%at : tensor<2xi64>) outs(%e : tensor<2xf32>) {
  ^bb0(%i: i64, %o: f32):
    %x = arith.index_cast %i : i64 to index
    %v = tensor.extract %table[%x] : tensor<4xf32>
    linalg.yield %v : f32
  } -> tensor<2xf32>
  return %r : tensor<2xf32>
}
func.func @fill(%n: tensor<i64>) -> tensor<?xf32> {
  %v = tensor.extract %n[] : tensor<i64>
  %x = arith.index_cast %v : i64 to index
  %one = arith.constant 1.0 : f32
  %e = tensor.empty(%x) : tensor<?xf32>
  %r = linalg.fill ins(%one : f32) outs(%e : tensor<?xf32>) -> tensor<?xf32>
  return %r : tensor<?xf32>
}
