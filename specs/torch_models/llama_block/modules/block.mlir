module {
  util.global private @token_embedding = #stream.parameter.named<"model"::"token_embedding"> : tensor<512x256xf32>
  util.global private @layers.0.attention_norm = #stream.parameter.named<"model"::"layers.0.attention_norm"> : tensor<256xf32>
  util.global private @layers.0.attention.query = #stream.parameter.named<"model"::"layers.0.attention.query"> : tensor<256x256xf32>
  util.global private @layers.0.attention.key = #stream.parameter.named<"model"::"layers.0.attention.key"> : tensor<256x128xf32>
  util.global private @layers.0.attention.value = #stream.parameter.named<"model"::"layers.0.attention.value"> : tensor<256x128xf32>
  util.global private @layers.0.attention.query_norm = #stream.parameter.named<"model"::"layers.0.attention.query_norm"> : tensor<32xf32>
  util.global private @layers.0.attention.key_norm = #stream.parameter.named<"model"::"layers.0.attention.key_norm"> : tensor<32xf32>
  util.global private @layers.0.attention.output = #stream.parameter.named<"model"::"layers.0.attention.output"> : tensor<256x256xf32>
  util.global private @layers.0.mlp_norm = #stream.parameter.named<"model"::"layers.0.mlp_norm"> : tensor<256xf32>
  util.global private @layers.0.mlp.gate = #stream.parameter.named<"model"::"layers.0.mlp.gate"> : tensor<256x704xf32>
  util.global private @layers.0.mlp.up = #stream.parameter.named<"model"::"layers.0.mlp.up"> : tensor<256x704xf32>
  util.global private @layers.0.mlp.down = #stream.parameter.named<"model"::"layers.0.mlp.down"> : tensor<704x256xf32>
  util.global private @layers.1.attention_norm = #stream.parameter.named<"model"::"layers.1.attention_norm"> : tensor<256xf32>
  util.global private @layers.1.attention.query = #stream.parameter.named<"model"::"layers.1.attention.query"> : tensor<256x256xf32>
  util.global private @layers.1.attention.key = #stream.parameter.named<"model"::"layers.1.attention.key"> : tensor<256x128xf32>
  util.global private @layers.1.attention.value = #stream.parameter.named<"model"::"layers.1.attention.value"> : tensor<256x128xf32>
  util.global private @layers.1.attention.query_norm = #stream.parameter.named<"model"::"layers.1.attention.query_norm"> : tensor<32xf32>
  util.global private @layers.1.attention.key_norm = #stream.parameter.named<"model"::"layers.1.attention.key_norm"> : tensor<32xf32>
  util.global private @layers.1.attention.output = #stream.parameter.named<"model"::"layers.1.attention.output"> : tensor<256x256xf32>
  util.global private @layers.1.mlp_norm = #stream.parameter.named<"model"::"layers.1.mlp_norm"> : tensor<256xf32>
  util.global private @layers.1.mlp.gate = #stream.parameter.named<"model"::"layers.1.mlp.gate"> : tensor<256x704xf32>
  util.global private @layers.1.mlp.up = #stream.parameter.named<"model"::"layers.1.mlp.up"> : tensor<256x704xf32>
  util.global private @layers.1.mlp.down = #stream.parameter.named<"model"::"layers.1.mlp.down"> : tensor<704x256xf32>
  util.global private @norm = #stream.parameter.named<"model"::"norm"> : tensor<256xf32>
  util.global private @head = #stream.parameter.named<"model"::"head"> : tensor<256x512xf32>
  func.func @prefill(%arg0: !torch.vtensor<[1,16],si64>) -> !torch.vtensor<[1,16,512],f32> attributes {torch.onnx_meta.ir_version = 10 : si64, torch.onnx_meta.opset_version = 20 : si64, torch.onnx_meta.producer_name = "pytorch", torch.onnx_meta.producer_version = "2.13.0+cpu"} {
    %token_embedding = util.global.load @token_embedding : tensor<512x256xf32>
    %0 = torch_c.from_builtin_tensor %token_embedding : tensor<512x256xf32> -> !torch.vtensor<[512,256],f32>
    %layers.0.attention_norm = util.global.load @layers.0.attention_norm : tensor<256xf32>
    %1 = torch_c.from_builtin_tensor %layers.0.attention_norm : tensor<256xf32> -> !torch.vtensor<[256],f32>
    %layers.0.attention.query = util.global.load @layers.0.attention.query : tensor<256x256xf32>
    %2 = torch_c.from_builtin_tensor %layers.0.attention.query : tensor<256x256xf32> -> !torch.vtensor<[256,256],f32>
    %layers.0.attention.key = util.global.load @layers.0.attention.key : tensor<256x128xf32>
    %3 = torch_c.from_builtin_tensor %layers.0.attention.key : tensor<256x128xf32> -> !torch.vtensor<[256,128],f32>
    %layers.0.attention.value = util.global.load @layers.0.attention.value : tensor<256x128xf32>
    %4 = torch_c.from_builtin_tensor %layers.0.attention.value : tensor<256x128xf32> -> !torch.vtensor<[256,128],f32>
    %layers.0.attention.query_norm = util.global.load @layers.0.attention.query_norm : tensor<32xf32>
    %5 = torch_c.from_builtin_tensor %layers.0.attention.query_norm : tensor<32xf32> -> !torch.vtensor<[32],f32>
    %layers.0.attention.key_norm = util.global.load @layers.0.attention.key_norm : tensor<32xf32>
    %6 = torch_c.from_builtin_tensor %layers.0.attention.key_norm : tensor<32xf32> -> !torch.vtensor<[32],f32>
    %layers.0.attention.output = util.global.load @layers.0.attention.output : tensor<256x256xf32>
    %7 = torch_c.from_builtin_tensor %layers.0.attention.output : tensor<256x256xf32> -> !torch.vtensor<[256,256],f32>
    %layers.0.mlp_norm = util.global.load @layers.0.mlp_norm : tensor<256xf32>
    %8 = torch_c.from_builtin_tensor %layers.0.mlp_norm : tensor<256xf32> -> !torch.vtensor<[256],f32>
    %layers.0.mlp.gate = util.global.load @layers.0.mlp.gate : tensor<256x704xf32>
    %9 = torch_c.from_builtin_tensor %layers.0.mlp.gate : tensor<256x704xf32> -> !torch.vtensor<[256,704],f32>
    %layers.0.mlp.up = util.global.load @layers.0.mlp.up : tensor<256x704xf32>
    %10 = torch_c.from_builtin_tensor %layers.0.mlp.up : tensor<256x704xf32> -> !torch.vtensor<[256,704],f32>
    %layers.0.mlp.down = util.global.load @layers.0.mlp.down : tensor<704x256xf32>
    %11 = torch_c.from_builtin_tensor %layers.0.mlp.down : tensor<704x256xf32> -> !torch.vtensor<[704,256],f32>
    %layers.1.attention_norm = util.global.load @layers.1.attention_norm : tensor<256xf32>
    %12 = torch_c.from_builtin_tensor %layers.1.attention_norm : tensor<256xf32> -> !torch.vtensor<[256],f32>
    %layers.1.attention.query = util.global.load @layers.1.attention.query : tensor<256x256xf32>
    %13 = torch_c.from_builtin_tensor %layers.1.attention.query : tensor<256x256xf32> -> !torch.vtensor<[256,256],f32>
    %layers.1.attention.key = util.global.load @layers.1.attention.key : tensor<256x128xf32>
    %14 = torch_c.from_builtin_tensor %layers.1.attention.key : tensor<256x128xf32> -> !torch.vtensor<[256,128],f32>
    %layers.1.attention.value = util.global.load @layers.1.attention.value : tensor<256x128xf32>
    %15 = torch_c.from_builtin_tensor %layers.1.attention.value : tensor<256x128xf32> -> !torch.vtensor<[256,128],f32>
    %layers.1.attention.query_norm = util.global.load @layers.1.attention.query_norm : tensor<32xf32>
    %16 = torch_c.from_builtin_tensor %layers.1.attention.query_norm : tensor<32xf32> -> !torch.vtensor<[32],f32>
    %layers.1.attention.key_norm = util.global.load @layers.1.attention.key_norm : tensor<32xf32>
    %17 = torch_c.from_builtin_tensor %layers.1.attention.key_norm : tensor<32xf32> -> !torch.vtensor<[32],f32>
    %layers.1.attention.output = util.global.load @layers.1.attention.output : tensor<256x256xf32>
    %18 = torch_c.from_builtin_tensor %layers.1.attention.output : tensor<256x256xf32> -> !torch.vtensor<[256,256],f32>
    %layers.1.mlp_norm = util.global.load @layers.1.mlp_norm : tensor<256xf32>
    %19 = torch_c.from_builtin_tensor %layers.1.mlp_norm : tensor<256xf32> -> !torch.vtensor<[256],f32>
    %layers.1.mlp.gate = util.global.load @layers.1.mlp.gate : tensor<256x704xf32>
    %20 = torch_c.from_builtin_tensor %layers.1.mlp.gate : tensor<256x704xf32> -> !torch.vtensor<[256,704],f32>
    %layers.1.mlp.up = util.global.load @layers.1.mlp.up : tensor<256x704xf32>
    %21 = torch_c.from_builtin_tensor %layers.1.mlp.up : tensor<256x704xf32> -> !torch.vtensor<[256,704],f32>
    %layers.1.mlp.down = util.global.load @layers.1.mlp.down : tensor<704x256xf32>
    %22 = torch_c.from_builtin_tensor %layers.1.mlp.down : tensor<704x256xf32> -> !torch.vtensor<[704,256],f32>
    %norm = util.global.load @norm : tensor<256xf32>
    %23 = torch_c.from_builtin_tensor %norm : tensor<256xf32> -> !torch.vtensor<[256],f32>
    %head = util.global.load @head : tensor<256x512xf32>
    %24 = torch_c.from_builtin_tensor %head : tensor<256x512xf32> -> !torch.vtensor<[256,512],f32>
    %none = torch.constant.none
    %25 = torch.operator "onnx.Gather"(%0, %arg0) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[512,256],f32>, !torch.vtensor<[1,16],si64>) -> !torch.vtensor<[1,16,256],f32> 
    %26 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<_> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %27 = torch.operator "onnx.Pow"(%25, %26) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %28 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %29 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__1> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64> 
    %30 = torch.operator "onnx.Reshape"(%29, %28) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %31 = torch.operator "onnx.ReduceMean"(%27, %30) {torch.onnx.keepdims = 1 : si64, torch.onnx.noop_with_empty_axes = 0 : si64} : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,16,1],f32> 
    %32 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__2> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %33 = torch.operator "onnx.Add"(%31, %32) : (!torch.vtensor<[1,16,1],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %34 = torch.operator "onnx.Sqrt"(%33) : (!torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %35 = torch.operator "onnx.Reciprocal"(%34) : (!torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %36 = torch.operator "onnx.Mul"(%25, %35) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %37 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__3> : tensor<si64>} : () -> !torch.vtensor<[],si64> 
    %38 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %39 = torch.operator "onnx.Add"(%1, %38) : (!torch.vtensor<[256],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[256],f32> 
    %40 = torch.operator "onnx.Mul"(%36, %39) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %41 = torch.operator "onnx.MatMul"(%40, %2) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %42 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %43 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %44 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [4 : si64]} : () -> !torch.vtensor<[1],si64> 
    %45 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [2 : si64]} : () -> !torch.vtensor<[1],si64> 
    %46 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [32 : si64]} : () -> !torch.vtensor<[1],si64> 
    %47 = torch.operator "onnx.Concat"(%42, %43, %44, %45, %46) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[5],si64> 
    %48 = torch.operator "onnx.Reshape"(%41, %47) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[5],si64>) -> !torch.vtensor<[1,16,4,2,32],f32> 
    %49 = torch.operator "onnx.Transpose"(%48) {torch.onnx.perm = [0 : si64, 2 : si64, 3 : si64, 1 : si64, 4 : si64]} : (!torch.vtensor<[1,16,4,2,32],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %50 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__4> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %51 = torch.operator "onnx.Pow"(%49, %50) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %52 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %53 = torch.operator "onnx.Reshape"(%29, %52) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %54 = torch.operator "onnx.ReduceMean"(%51, %53) {torch.onnx.keepdims = 1 : si64, torch.onnx.noop_with_empty_axes = 0 : si64} : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,2,16,1],f32> 
    %55 = torch.operator "onnx.Add"(%54, %32) : (!torch.vtensor<[1,4,2,16,1],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,2,16,1],f32> 
    %56 = torch.operator "onnx.Sqrt"(%55) : (!torch.vtensor<[1,4,2,16,1],f32>) -> !torch.vtensor<[1,4,2,16,1],f32> 
    %57 = torch.operator "onnx.Reciprocal"(%56) : (!torch.vtensor<[1,4,2,16,1],f32>) -> !torch.vtensor<[1,4,2,16,1],f32> 
    %58 = torch.operator "onnx.Mul"(%49, %57) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[1,4,2,16,1],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %59 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %60 = torch.operator "onnx.Add"(%5, %59) : (!torch.vtensor<[32],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[32],f32> 
    %61 = torch.operator "onnx.Mul"(%58, %60) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[32],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %62 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__5> : tensor<si64>} : () -> !torch.vtensor<[],si64> 
    %63 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %64 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__6> : tensor<si64>} : () -> !torch.vtensor<[],si64> 
    %65 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %66 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %67 = torch.operator "onnx.Range"(%65, %63, %66) : (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %68 = torch.operator "onnx.Neg"(%67) : (!torch.vtensor<[16],f32>) -> !torch.vtensor<[16],f32> 
    %69 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %70 = torch.operator "onnx.Div"(%68, %69) : (!torch.vtensor<[16],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %71 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__7> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %72 = torch.operator "onnx.Cast"(%71) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],f32>) -> !torch.vtensor<[],f32> 
    %73 = torch.operator "onnx.Pow"(%72, %70) : (!torch.vtensor<[],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[16],f32> 
    %74 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %75 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %76 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %77 = torch.operator "onnx.Range"(%75, %74, %76) : (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %78 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %79 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %80 = torch.operator "onnx.Concat"(%78, %79) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[2],si64> 
    %81 = torch.operator "onnx.Reshape"(%77, %80) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[16],f32>, !torch.vtensor<[2],si64>) -> !torch.vtensor<[16,1],f32> 
    %82 = torch.operator "onnx.Mul"(%81, %73) : (!torch.vtensor<[16,1],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[16,16],f32> 
    %83 = torch.operator "onnx.Cos"(%82) : (!torch.vtensor<[16,16],f32>) -> !torch.vtensor<[16,16],f32> 
    %84 = torch.operator "onnx.Sin"(%82) : (!torch.vtensor<[16,16],f32>) -> !torch.vtensor<[16,16],f32> 
    %85 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %86 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %87 = torch.operator "onnx.Reshape"(%85, %86) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %88 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %89 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %90 = torch.operator "onnx.Reshape"(%88, %89) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %91 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__8> : tensor<si64>} : () -> !torch.vtensor<[],si64> 
    %92 = torch.operator "onnx.Cast"(%91) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %93 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %94 = torch.operator "onnx.Reshape"(%92, %93) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %95 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %96 = torch.operator "onnx.Slice"(%61, %87, %90, %94, %95) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %97 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %98 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %99 = torch.operator "onnx.Reshape"(%97, %98) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %100 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__9> : tensor<si64>} : () -> !torch.vtensor<[],si64> 
    %101 = torch.operator "onnx.Cast"(%100) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %102 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %103 = torch.operator "onnx.Reshape"(%101, %102) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %104 = torch.operator "onnx.Cast"(%91) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %105 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %106 = torch.operator "onnx.Reshape"(%104, %105) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %107 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %108 = torch.operator "onnx.Slice"(%61, %99, %103, %106, %107) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %109 = torch.operator "onnx.Mul"(%96, %83) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %110 = torch.operator "onnx.Mul"(%108, %84) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %111 = torch.operator "onnx.Sub"(%109, %110) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %112 = torch.operator "onnx.Mul"(%108, %83) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %113 = torch.operator "onnx.Mul"(%96, %84) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %114 = torch.operator "onnx.Add"(%112, %113) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %115 = torch.operator "onnx.Concat"(%111, %114) {torch.onnx.axis = -1 : si64} : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %116 = torch.operator "onnx.MatMul"(%40, %3) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,128],f32>) -> !torch.vtensor<[1,16,128],f32> 
    %117 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %118 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %119 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [4 : si64]} : () -> !torch.vtensor<[1],si64> 
    %120 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %121 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [32 : si64]} : () -> !torch.vtensor<[1],si64> 
    %122 = torch.operator "onnx.Concat"(%117, %118, %119, %120, %121) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[5],si64> 
    %123 = torch.operator "onnx.Reshape"(%116, %122) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[1,16,128],f32>, !torch.vtensor<[5],si64>) -> !torch.vtensor<[1,16,4,1,32],f32> 
    %124 = torch.operator "onnx.Transpose"(%123) {torch.onnx.perm = [0 : si64, 2 : si64, 3 : si64, 1 : si64, 4 : si64]} : (!torch.vtensor<[1,16,4,1,32],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %125 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__10> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %126 = torch.operator "onnx.Pow"(%124, %125) : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %127 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %128 = torch.operator "onnx.Reshape"(%29, %127) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %129 = torch.operator "onnx.ReduceMean"(%126, %128) {torch.onnx.keepdims = 1 : si64, torch.onnx.noop_with_empty_axes = 0 : si64} : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,1,16,1],f32> 
    %130 = torch.operator "onnx.Add"(%129, %32) : (!torch.vtensor<[1,4,1,16,1],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,1,16,1],f32> 
    %131 = torch.operator "onnx.Sqrt"(%130) : (!torch.vtensor<[1,4,1,16,1],f32>) -> !torch.vtensor<[1,4,1,16,1],f32> 
    %132 = torch.operator "onnx.Reciprocal"(%131) : (!torch.vtensor<[1,4,1,16,1],f32>) -> !torch.vtensor<[1,4,1,16,1],f32> 
    %133 = torch.operator "onnx.Mul"(%124, %132) : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[1,4,1,16,1],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %134 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %135 = torch.operator "onnx.Add"(%6, %134) : (!torch.vtensor<[32],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[32],f32> 
    %136 = torch.operator "onnx.Mul"(%133, %135) : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[32],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %137 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %138 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %139 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %140 = torch.operator "onnx.Range"(%138, %137, %139) : (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %141 = torch.operator "onnx.Neg"(%140) : (!torch.vtensor<[16],f32>) -> !torch.vtensor<[16],f32> 
    %142 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %143 = torch.operator "onnx.Div"(%141, %142) : (!torch.vtensor<[16],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %144 = torch.operator "onnx.Cast"(%71) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],f32>) -> !torch.vtensor<[],f32> 
    %145 = torch.operator "onnx.Pow"(%144, %143) : (!torch.vtensor<[],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[16],f32> 
    %146 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %147 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %148 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %149 = torch.operator "onnx.Range"(%147, %146, %148) : (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %150 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %151 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %152 = torch.operator "onnx.Concat"(%150, %151) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[2],si64> 
    %153 = torch.operator "onnx.Reshape"(%149, %152) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[16],f32>, !torch.vtensor<[2],si64>) -> !torch.vtensor<[16,1],f32> 
    %154 = torch.operator "onnx.Mul"(%153, %145) : (!torch.vtensor<[16,1],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[16,16],f32> 
    %155 = torch.operator "onnx.Cos"(%154) : (!torch.vtensor<[16,16],f32>) -> !torch.vtensor<[16,16],f32> 
    %156 = torch.operator "onnx.Sin"(%154) : (!torch.vtensor<[16,16],f32>) -> !torch.vtensor<[16,16],f32> 
    %157 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %158 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %159 = torch.operator "onnx.Reshape"(%157, %158) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %160 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %161 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %162 = torch.operator "onnx.Reshape"(%160, %161) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %163 = torch.operator "onnx.Cast"(%91) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %164 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %165 = torch.operator "onnx.Reshape"(%163, %164) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %166 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %167 = torch.operator "onnx.Slice"(%136, %159, %162, %165, %166) : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %168 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %169 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %170 = torch.operator "onnx.Reshape"(%168, %169) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %171 = torch.operator "onnx.Cast"(%100) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %172 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %173 = torch.operator "onnx.Reshape"(%171, %172) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %174 = torch.operator "onnx.Cast"(%91) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %175 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %176 = torch.operator "onnx.Reshape"(%174, %175) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %177 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %178 = torch.operator "onnx.Slice"(%136, %170, %173, %176, %177) : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %179 = torch.operator "onnx.Mul"(%167, %155) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %180 = torch.operator "onnx.Mul"(%178, %156) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %181 = torch.operator "onnx.Sub"(%179, %180) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[1,4,1,16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %182 = torch.operator "onnx.Mul"(%178, %155) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %183 = torch.operator "onnx.Mul"(%167, %156) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %184 = torch.operator "onnx.Add"(%182, %183) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[1,4,1,16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %185 = torch.operator "onnx.Concat"(%181, %184) {torch.onnx.axis = -1 : si64} : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[1,4,1,16,16],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %186 = torch.operator "onnx.MatMul"(%40, %4) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,128],f32>) -> !torch.vtensor<[1,16,128],f32> 
    %187 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %188 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %189 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [4 : si64]} : () -> !torch.vtensor<[1],si64> 
    %190 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %191 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [32 : si64]} : () -> !torch.vtensor<[1],si64> 
    %192 = torch.operator "onnx.Concat"(%187, %188, %189, %190, %191) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[5],si64> 
    %193 = torch.operator "onnx.Reshape"(%186, %192) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[1,16,128],f32>, !torch.vtensor<[5],si64>) -> !torch.vtensor<[1,16,4,1,32],f32> 
    %194 = torch.operator "onnx.Transpose"(%193) {torch.onnx.perm = [0 : si64, 2 : si64, 3 : si64, 1 : si64, 4 : si64]} : (!torch.vtensor<[1,16,4,1,32],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %195 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__11> : tensor<2xsi64>} : () -> !torch.vtensor<[2],si64> 
    %196 = torch.operator "onnx.Cast"(%195) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[2],si64>) -> !torch.vtensor<[2],si64> 
    %197 = torch.operator "onnx.Constant"() {torch.onnx.value_float = 1.000000e+00 : f32} : () -> !torch.vtensor<[],f32> 
    %198 = torch.operator "onnx.Cast"(%197) {torch.onnx.to = 9 : si64} : (!torch.vtensor<[],f32>) -> !torch.vtensor<[],i1> 
    %199 = torch.operator "onnx.Expand"(%198, %196) : (!torch.vtensor<[],i1>, !torch.vtensor<[2],si64>) -> !torch.vtensor<[16,16],i1> 
    %200 = torch.operator "onnx.Trilu"(%199, %37) {torch.onnx.upper = 1 : si64} : (!torch.vtensor<[16,16],i1>, !torch.vtensor<[],si64>) -> !torch.vtensor<[16,16],i1> 
    %201 = torch.operator "onnx.Transpose"(%185) {torch.onnx.perm = [0 : si64, 1 : si64, 2 : si64, 4 : si64, 3 : si64]} : (!torch.vtensor<[1,4,1,16,32],f32>) -> !torch.vtensor<[1,4,1,32,16],f32> 
    %202 = torch.operator "onnx.MatMul"(%115, %201) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[1,4,1,32,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %203 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__12> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %204 = torch.operator "onnx.Div"(%202, %203) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %205 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__13> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %206 = torch.operator "onnx.CastLike"(%205, %204) : (!torch.vtensor<[],f32>, !torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[],f32> 
    %207 = torch.operator "onnx.Where"(%200, %206, %204) : (!torch.vtensor<[16,16],i1>, !torch.vtensor<[],f32>, !torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %208 = torch.operator "onnx.Softmax"(%207) {torch.onnx.axis = -1 : si64} : (!torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %209 = torch.operator "onnx.MatMul"(%208, %194) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[1,4,1,16,32],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %210 = torch.operator "onnx.Transpose"(%209) {torch.onnx.perm = [0 : si64, 3 : si64, 1 : si64, 2 : si64, 4 : si64]} : (!torch.vtensor<[1,4,2,16,32],f32>) -> !torch.vtensor<[1,16,4,2,32],f32> 
    %211 = torch.operator "onnx.Identity"(%210) : (!torch.vtensor<[1,16,4,2,32],f32>) -> !torch.vtensor<[1,16,4,2,32],f32> 
    %212 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %213 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %214 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [256 : si64]} : () -> !torch.vtensor<[1],si64> 
    %215 = torch.operator "onnx.Concat"(%212, %213, %214) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[3],si64> 
    %216 = torch.operator "onnx.Reshape"(%211, %215) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[1,16,4,2,32],f32>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[1,16,256],f32> 
    %217 = torch.operator "onnx.MatMul"(%216, %7) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %218 = torch.operator "onnx.Add"(%25, %217) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1,16,256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %219 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__14> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %220 = torch.operator "onnx.Pow"(%218, %219) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %221 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %222 = torch.operator "onnx.Reshape"(%29, %221) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %223 = torch.operator "onnx.ReduceMean"(%220, %222) {torch.onnx.keepdims = 1 : si64, torch.onnx.noop_with_empty_axes = 0 : si64} : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,16,1],f32> 
    %224 = torch.operator "onnx.Add"(%223, %32) : (!torch.vtensor<[1,16,1],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %225 = torch.operator "onnx.Sqrt"(%224) : (!torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %226 = torch.operator "onnx.Reciprocal"(%225) : (!torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %227 = torch.operator "onnx.Mul"(%218, %226) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %228 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %229 = torch.operator "onnx.Add"(%8, %228) : (!torch.vtensor<[256],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[256],f32> 
    %230 = torch.operator "onnx.Mul"(%227, %229) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %231 = torch.operator "onnx.MatMul"(%230, %9) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,704],f32>) -> !torch.vtensor<[1,16,704],f32> 
    %232 = torch.operator "onnx.Sigmoid"(%231) : (!torch.vtensor<[1,16,704],f32>) -> !torch.vtensor<[1,16,704],f32> 
    %233 = torch.operator "onnx.Mul"(%231, %232) : (!torch.vtensor<[1,16,704],f32>, !torch.vtensor<[1,16,704],f32>) -> !torch.vtensor<[1,16,704],f32> 
    %234 = torch.operator "onnx.MatMul"(%230, %10) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,704],f32>) -> !torch.vtensor<[1,16,704],f32> 
    %235 = torch.operator "onnx.Mul"(%233, %234) : (!torch.vtensor<[1,16,704],f32>, !torch.vtensor<[1,16,704],f32>) -> !torch.vtensor<[1,16,704],f32> 
    %236 = torch.operator "onnx.MatMul"(%235, %11) : (!torch.vtensor<[1,16,704],f32>, !torch.vtensor<[704,256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %237 = torch.operator "onnx.Add"(%218, %236) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1,16,256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %238 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__15> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %239 = torch.operator "onnx.Pow"(%237, %238) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %240 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %241 = torch.operator "onnx.Reshape"(%29, %240) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %242 = torch.operator "onnx.ReduceMean"(%239, %241) {torch.onnx.keepdims = 1 : si64, torch.onnx.noop_with_empty_axes = 0 : si64} : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,16,1],f32> 
    %243 = torch.operator "onnx.Add"(%242, %32) : (!torch.vtensor<[1,16,1],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %244 = torch.operator "onnx.Sqrt"(%243) : (!torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %245 = torch.operator "onnx.Reciprocal"(%244) : (!torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %246 = torch.operator "onnx.Mul"(%237, %245) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %247 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %248 = torch.operator "onnx.Add"(%12, %247) : (!torch.vtensor<[256],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[256],f32> 
    %249 = torch.operator "onnx.Mul"(%246, %248) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %250 = torch.operator "onnx.MatMul"(%249, %13) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %251 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %252 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %253 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [4 : si64]} : () -> !torch.vtensor<[1],si64> 
    %254 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [2 : si64]} : () -> !torch.vtensor<[1],si64> 
    %255 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [32 : si64]} : () -> !torch.vtensor<[1],si64> 
    %256 = torch.operator "onnx.Concat"(%251, %252, %253, %254, %255) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[5],si64> 
    %257 = torch.operator "onnx.Reshape"(%250, %256) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[5],si64>) -> !torch.vtensor<[1,16,4,2,32],f32> 
    %258 = torch.operator "onnx.Transpose"(%257) {torch.onnx.perm = [0 : si64, 2 : si64, 3 : si64, 1 : si64, 4 : si64]} : (!torch.vtensor<[1,16,4,2,32],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %259 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__16> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %260 = torch.operator "onnx.Pow"(%258, %259) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %261 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %262 = torch.operator "onnx.Reshape"(%29, %261) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %263 = torch.operator "onnx.ReduceMean"(%260, %262) {torch.onnx.keepdims = 1 : si64, torch.onnx.noop_with_empty_axes = 0 : si64} : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,2,16,1],f32> 
    %264 = torch.operator "onnx.Add"(%263, %32) : (!torch.vtensor<[1,4,2,16,1],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,2,16,1],f32> 
    %265 = torch.operator "onnx.Sqrt"(%264) : (!torch.vtensor<[1,4,2,16,1],f32>) -> !torch.vtensor<[1,4,2,16,1],f32> 
    %266 = torch.operator "onnx.Reciprocal"(%265) : (!torch.vtensor<[1,4,2,16,1],f32>) -> !torch.vtensor<[1,4,2,16,1],f32> 
    %267 = torch.operator "onnx.Mul"(%258, %266) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[1,4,2,16,1],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %268 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %269 = torch.operator "onnx.Add"(%16, %268) : (!torch.vtensor<[32],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[32],f32> 
    %270 = torch.operator "onnx.Mul"(%267, %269) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[32],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %271 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %272 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %273 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %274 = torch.operator "onnx.Range"(%272, %271, %273) : (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %275 = torch.operator "onnx.Neg"(%274) : (!torch.vtensor<[16],f32>) -> !torch.vtensor<[16],f32> 
    %276 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %277 = torch.operator "onnx.Div"(%275, %276) : (!torch.vtensor<[16],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %278 = torch.operator "onnx.Cast"(%71) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],f32>) -> !torch.vtensor<[],f32> 
    %279 = torch.operator "onnx.Pow"(%278, %277) : (!torch.vtensor<[],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[16],f32> 
    %280 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %281 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %282 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %283 = torch.operator "onnx.Range"(%281, %280, %282) : (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %284 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %285 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %286 = torch.operator "onnx.Concat"(%284, %285) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[2],si64> 
    %287 = torch.operator "onnx.Reshape"(%283, %286) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[16],f32>, !torch.vtensor<[2],si64>) -> !torch.vtensor<[16,1],f32> 
    %288 = torch.operator "onnx.Mul"(%287, %279) : (!torch.vtensor<[16,1],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[16,16],f32> 
    %289 = torch.operator "onnx.Cos"(%288) : (!torch.vtensor<[16,16],f32>) -> !torch.vtensor<[16,16],f32> 
    %290 = torch.operator "onnx.Sin"(%288) : (!torch.vtensor<[16,16],f32>) -> !torch.vtensor<[16,16],f32> 
    %291 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %292 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %293 = torch.operator "onnx.Reshape"(%291, %292) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %294 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %295 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %296 = torch.operator "onnx.Reshape"(%294, %295) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %297 = torch.operator "onnx.Cast"(%91) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %298 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %299 = torch.operator "onnx.Reshape"(%297, %298) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %300 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %301 = torch.operator "onnx.Slice"(%270, %293, %296, %299, %300) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %302 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %303 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %304 = torch.operator "onnx.Reshape"(%302, %303) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %305 = torch.operator "onnx.Cast"(%100) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %306 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %307 = torch.operator "onnx.Reshape"(%305, %306) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %308 = torch.operator "onnx.Cast"(%91) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %309 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %310 = torch.operator "onnx.Reshape"(%308, %309) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %311 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %312 = torch.operator "onnx.Slice"(%270, %304, %307, %310, %311) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %313 = torch.operator "onnx.Mul"(%301, %289) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %314 = torch.operator "onnx.Mul"(%312, %290) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %315 = torch.operator "onnx.Sub"(%313, %314) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %316 = torch.operator "onnx.Mul"(%312, %289) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %317 = torch.operator "onnx.Mul"(%301, %290) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %318 = torch.operator "onnx.Add"(%316, %317) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %319 = torch.operator "onnx.Concat"(%315, %318) {torch.onnx.axis = -1 : si64} : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %320 = torch.operator "onnx.MatMul"(%249, %14) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,128],f32>) -> !torch.vtensor<[1,16,128],f32> 
    %321 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %322 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %323 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [4 : si64]} : () -> !torch.vtensor<[1],si64> 
    %324 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %325 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [32 : si64]} : () -> !torch.vtensor<[1],si64> 
    %326 = torch.operator "onnx.Concat"(%321, %322, %323, %324, %325) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[5],si64> 
    %327 = torch.operator "onnx.Reshape"(%320, %326) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[1,16,128],f32>, !torch.vtensor<[5],si64>) -> !torch.vtensor<[1,16,4,1,32],f32> 
    %328 = torch.operator "onnx.Transpose"(%327) {torch.onnx.perm = [0 : si64, 2 : si64, 3 : si64, 1 : si64, 4 : si64]} : (!torch.vtensor<[1,16,4,1,32],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %329 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__17> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %330 = torch.operator "onnx.Pow"(%328, %329) : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %331 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %332 = torch.operator "onnx.Reshape"(%29, %331) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %333 = torch.operator "onnx.ReduceMean"(%330, %332) {torch.onnx.keepdims = 1 : si64, torch.onnx.noop_with_empty_axes = 0 : si64} : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,1,16,1],f32> 
    %334 = torch.operator "onnx.Add"(%333, %32) : (!torch.vtensor<[1,4,1,16,1],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,1,16,1],f32> 
    %335 = torch.operator "onnx.Sqrt"(%334) : (!torch.vtensor<[1,4,1,16,1],f32>) -> !torch.vtensor<[1,4,1,16,1],f32> 
    %336 = torch.operator "onnx.Reciprocal"(%335) : (!torch.vtensor<[1,4,1,16,1],f32>) -> !torch.vtensor<[1,4,1,16,1],f32> 
    %337 = torch.operator "onnx.Mul"(%328, %336) : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[1,4,1,16,1],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %338 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %339 = torch.operator "onnx.Add"(%17, %338) : (!torch.vtensor<[32],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[32],f32> 
    %340 = torch.operator "onnx.Mul"(%337, %339) : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[32],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %341 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %342 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %343 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %344 = torch.operator "onnx.Range"(%342, %341, %343) : (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %345 = torch.operator "onnx.Neg"(%344) : (!torch.vtensor<[16],f32>) -> !torch.vtensor<[16],f32> 
    %346 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %347 = torch.operator "onnx.Div"(%345, %346) : (!torch.vtensor<[16],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %348 = torch.operator "onnx.Cast"(%71) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],f32>) -> !torch.vtensor<[],f32> 
    %349 = torch.operator "onnx.Pow"(%348, %347) : (!torch.vtensor<[],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[16],f32> 
    %350 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %351 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %352 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %353 = torch.operator "onnx.Range"(%351, %350, %352) : (!torch.vtensor<[],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[16],f32> 
    %354 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %355 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %356 = torch.operator "onnx.Concat"(%354, %355) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[2],si64> 
    %357 = torch.operator "onnx.Reshape"(%353, %356) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[16],f32>, !torch.vtensor<[2],si64>) -> !torch.vtensor<[16,1],f32> 
    %358 = torch.operator "onnx.Mul"(%357, %349) : (!torch.vtensor<[16,1],f32>, !torch.vtensor<[16],f32>) -> !torch.vtensor<[16,16],f32> 
    %359 = torch.operator "onnx.Cos"(%358) : (!torch.vtensor<[16,16],f32>) -> !torch.vtensor<[16,16],f32> 
    %360 = torch.operator "onnx.Sin"(%358) : (!torch.vtensor<[16,16],f32>) -> !torch.vtensor<[16,16],f32> 
    %361 = torch.operator "onnx.Cast"(%64) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %362 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %363 = torch.operator "onnx.Reshape"(%361, %362) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %364 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %365 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %366 = torch.operator "onnx.Reshape"(%364, %365) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %367 = torch.operator "onnx.Cast"(%91) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %368 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %369 = torch.operator "onnx.Reshape"(%367, %368) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %370 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %371 = torch.operator "onnx.Slice"(%340, %363, %366, %369, %370) : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %372 = torch.operator "onnx.Cast"(%62) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %373 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %374 = torch.operator "onnx.Reshape"(%372, %373) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %375 = torch.operator "onnx.Cast"(%100) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %376 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %377 = torch.operator "onnx.Reshape"(%375, %376) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %378 = torch.operator "onnx.Cast"(%91) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],si64> 
    %379 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %380 = torch.operator "onnx.Reshape"(%378, %379) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %381 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %382 = torch.operator "onnx.Slice"(%340, %374, %377, %380, %381) : (!torch.vtensor<[1,4,1,16,32],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %383 = torch.operator "onnx.Mul"(%371, %359) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %384 = torch.operator "onnx.Mul"(%382, %360) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %385 = torch.operator "onnx.Sub"(%383, %384) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[1,4,1,16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %386 = torch.operator "onnx.Mul"(%382, %359) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %387 = torch.operator "onnx.Mul"(%371, %360) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %388 = torch.operator "onnx.Add"(%386, %387) : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[1,4,1,16,16],f32>) -> !torch.vtensor<[1,4,1,16,16],f32> 
    %389 = torch.operator "onnx.Concat"(%385, %388) {torch.onnx.axis = -1 : si64} : (!torch.vtensor<[1,4,1,16,16],f32>, !torch.vtensor<[1,4,1,16,16],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %390 = torch.operator "onnx.MatMul"(%249, %15) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,128],f32>) -> !torch.vtensor<[1,16,128],f32> 
    %391 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %392 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %393 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [4 : si64]} : () -> !torch.vtensor<[1],si64> 
    %394 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %395 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [32 : si64]} : () -> !torch.vtensor<[1],si64> 
    %396 = torch.operator "onnx.Concat"(%391, %392, %393, %394, %395) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[5],si64> 
    %397 = torch.operator "onnx.Reshape"(%390, %396) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[1,16,128],f32>, !torch.vtensor<[5],si64>) -> !torch.vtensor<[1,16,4,1,32],f32> 
    %398 = torch.operator "onnx.Transpose"(%397) {torch.onnx.perm = [0 : si64, 2 : si64, 3 : si64, 1 : si64, 4 : si64]} : (!torch.vtensor<[1,16,4,1,32],f32>) -> !torch.vtensor<[1,4,1,16,32],f32> 
    %399 = torch.operator "onnx.Cast"(%195) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[2],si64>) -> !torch.vtensor<[2],si64> 
    %400 = torch.operator "onnx.Constant"() {torch.onnx.value_float = 1.000000e+00 : f32} : () -> !torch.vtensor<[],f32> 
    %401 = torch.operator "onnx.Cast"(%400) {torch.onnx.to = 9 : si64} : (!torch.vtensor<[],f32>) -> !torch.vtensor<[],i1> 
    %402 = torch.operator "onnx.Expand"(%401, %399) : (!torch.vtensor<[],i1>, !torch.vtensor<[2],si64>) -> !torch.vtensor<[16,16],i1> 
    %403 = torch.operator "onnx.Trilu"(%402, %37) {torch.onnx.upper = 1 : si64} : (!torch.vtensor<[16,16],i1>, !torch.vtensor<[],si64>) -> !torch.vtensor<[16,16],i1> 
    %404 = torch.operator "onnx.Transpose"(%389) {torch.onnx.perm = [0 : si64, 1 : si64, 2 : si64, 4 : si64, 3 : si64]} : (!torch.vtensor<[1,4,1,16,32],f32>) -> !torch.vtensor<[1,4,1,32,16],f32> 
    %405 = torch.operator "onnx.MatMul"(%319, %404) : (!torch.vtensor<[1,4,2,16,32],f32>, !torch.vtensor<[1,4,1,32,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %406 = torch.operator "onnx.Div"(%405, %203) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %407 = torch.operator "onnx.CastLike"(%205, %406) : (!torch.vtensor<[],f32>, !torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[],f32> 
    %408 = torch.operator "onnx.Where"(%403, %407, %406) : (!torch.vtensor<[16,16],i1>, !torch.vtensor<[],f32>, !torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %409 = torch.operator "onnx.Softmax"(%408) {torch.onnx.axis = -1 : si64} : (!torch.vtensor<[1,4,2,16,16],f32>) -> !torch.vtensor<[1,4,2,16,16],f32> 
    %410 = torch.operator "onnx.MatMul"(%409, %398) : (!torch.vtensor<[1,4,2,16,16],f32>, !torch.vtensor<[1,4,1,16,32],f32>) -> !torch.vtensor<[1,4,2,16,32],f32> 
    %411 = torch.operator "onnx.Transpose"(%410) {torch.onnx.perm = [0 : si64, 3 : si64, 1 : si64, 2 : si64, 4 : si64]} : (!torch.vtensor<[1,4,2,16,32],f32>) -> !torch.vtensor<[1,16,4,2,32],f32> 
    %412 = torch.operator "onnx.Identity"(%411) : (!torch.vtensor<[1,16,4,2,32],f32>) -> !torch.vtensor<[1,16,4,2,32],f32> 
    %413 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %414 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [16 : si64]} : () -> !torch.vtensor<[1],si64> 
    %415 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [256 : si64]} : () -> !torch.vtensor<[1],si64> 
    %416 = torch.operator "onnx.Concat"(%413, %414, %415) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[3],si64> 
    %417 = torch.operator "onnx.Reshape"(%412, %416) {torch.onnx.allowzero = 1 : si64} : (!torch.vtensor<[1,16,4,2,32],f32>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[1,16,256],f32> 
    %418 = torch.operator "onnx.MatMul"(%417, %18) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %419 = torch.operator "onnx.Add"(%237, %418) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1,16,256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %420 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__18> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %421 = torch.operator "onnx.Pow"(%419, %420) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %422 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %423 = torch.operator "onnx.Reshape"(%29, %422) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %424 = torch.operator "onnx.ReduceMean"(%421, %423) {torch.onnx.keepdims = 1 : si64, torch.onnx.noop_with_empty_axes = 0 : si64} : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,16,1],f32> 
    %425 = torch.operator "onnx.Add"(%424, %32) : (!torch.vtensor<[1,16,1],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %426 = torch.operator "onnx.Sqrt"(%425) : (!torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %427 = torch.operator "onnx.Reciprocal"(%426) : (!torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %428 = torch.operator "onnx.Mul"(%419, %427) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %429 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %430 = torch.operator "onnx.Add"(%19, %429) : (!torch.vtensor<[256],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[256],f32> 
    %431 = torch.operator "onnx.Mul"(%428, %430) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %432 = torch.operator "onnx.MatMul"(%431, %20) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,704],f32>) -> !torch.vtensor<[1,16,704],f32> 
    %433 = torch.operator "onnx.Sigmoid"(%432) : (!torch.vtensor<[1,16,704],f32>) -> !torch.vtensor<[1,16,704],f32> 
    %434 = torch.operator "onnx.Mul"(%432, %433) : (!torch.vtensor<[1,16,704],f32>, !torch.vtensor<[1,16,704],f32>) -> !torch.vtensor<[1,16,704],f32> 
    %435 = torch.operator "onnx.MatMul"(%431, %21) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,704],f32>) -> !torch.vtensor<[1,16,704],f32> 
    %436 = torch.operator "onnx.Mul"(%434, %435) : (!torch.vtensor<[1,16,704],f32>, !torch.vtensor<[1,16,704],f32>) -> !torch.vtensor<[1,16,704],f32> 
    %437 = torch.operator "onnx.MatMul"(%436, %22) : (!torch.vtensor<[1,16,704],f32>, !torch.vtensor<[704,256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %438 = torch.operator "onnx.Add"(%419, %437) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1,16,256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %439 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<__19> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %440 = torch.operator "onnx.Pow"(%438, %439) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %441 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [-1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %442 = torch.operator "onnx.Reshape"(%29, %441) {torch.onnx.allowzero = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1],si64> 
    %443 = torch.operator "onnx.ReduceMean"(%440, %442) {torch.onnx.keepdims = 1 : si64, torch.onnx.noop_with_empty_axes = 0 : si64} : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,16,1],f32> 
    %444 = torch.operator "onnx.Add"(%443, %32) : (!torch.vtensor<[1,16,1],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %445 = torch.operator "onnx.Sqrt"(%444) : (!torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %446 = torch.operator "onnx.Reciprocal"(%445) : (!torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,1],f32> 
    %447 = torch.operator "onnx.Mul"(%438, %446) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[1,16,1],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %448 = torch.operator "onnx.Cast"(%37) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[],si64>) -> !torch.vtensor<[],f32> 
    %449 = torch.operator "onnx.Add"(%23, %448) : (!torch.vtensor<[256],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[256],f32> 
    %450 = torch.operator "onnx.Mul"(%447, %449) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256],f32>) -> !torch.vtensor<[1,16,256],f32> 
    %451 = torch.operator "onnx.MatMul"(%450, %24) : (!torch.vtensor<[1,16,256],f32>, !torch.vtensor<[256,512],f32>) -> !torch.vtensor<[1,16,512],f32> 
    return %451 : !torch.vtensor<[1,16,512],f32>
  }
}

{-#
  dialect_resources: {
    builtin: {
      _: "0x0800000000000040",
      __1: "0x08000000FFFFFFFFFFFFFFFF",
      __2: "0x08000000BD378635",
      __3: "0x080000000100000000000000",
      __4: "0x0800000000000040",
      __5: "0x080000001000000000000000",
      __6: "0x080000000000000000000000",
      __7: "0x0800000000401C46",
      __8: "0x080000000400000000000000",
      __9: "0x08000000FFFFFFFFFFFFFF7F",
      __10: "0x0800000000000040",
      __11: "0x0800000010000000000000001000000000000000",
      __12: "0x08000000F304B540",
      __13: "0x08000000000080FF",
      __14: "0x0800000000000040",
      __15: "0x0800000000000040",
      __16: "0x0800000000000040",
      __17: "0x0800000000000040",
      __18: "0x0800000000000040",
      __19: "0x0800000000000040"
    }
  }
#-}

