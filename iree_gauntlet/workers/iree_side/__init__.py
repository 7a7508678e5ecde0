"""Scripts that run in the Python of the toolchain that is measured: stdlib, numpy, onnx and IREE only."""
