"""What runs inside the Python of the toolchain that is measured: stdlib, numpy, onnx and IREE only."""
