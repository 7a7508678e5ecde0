"""Benchmarks of models that are Python functions: the names that a file of a models folder imports."""

from __future__ import annotations

from iree_gauntlet.torch_models.model_registry import Generative, benchmark_model, on_device, on_host

__all__ = ["Generative", "benchmark_model", "on_device", "on_host"]
