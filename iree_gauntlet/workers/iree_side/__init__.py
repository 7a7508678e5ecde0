"""Scripts that run in the Python of the measured toolchain; they import only stdlib, numpy, onnx and IREE."""
