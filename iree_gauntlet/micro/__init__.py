"""Micro-benchmarks: recipes (quantisation, sparsity, compiler options) over architectures and sweeps of shapes."""
