"""How flags are called in different releases of IREE: data, read off the tools' full help.

Compared were 3.5.0, 3.9.0, 3.12.0 and 3.13.0, so a change is known to lie between two of these.
Names are without dashes. A renamed flag means the same under both names, in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE

__all__ = ["ADDED", "REMOVED", "RENAMED", "Added", "Removed", "Rename"]


@dataclass(frozen=True, slots=True)
class Rename:
    """One flag under two names.

    Attributes:
        old, new: the names.
        last_old: the last of the compared releases that is known to have the old name.
        first_new: the first one that is known to have the new name.
        to_new: value under the old name → value under the new one, both in lower case; empty where values
            stay as they are. The key "" is the flag without a value. What is not listed cannot be said.
        to_old: the same the other way.
        with_new: a flag and value that must stand beside the new name to mean the same.
        tools: which tools have it.
    """

    old: str
    new: str
    last_old: str = "3.9.0"
    first_new: str = "3.12.0"
    to_new: tuple[tuple[str, str], ...] = ()
    to_old: tuple[tuple[str, str], ...] = ()
    with_new: tuple[str, str] | None = None
    tools: tuple[str, ...] = (COMPILE,)

    @property
    def when(self) -> str:
        """For messages."""
        return f"renamed between {self.last_old} and {self.first_new}"


@dataclass(frozen=True, slots=True)
class Removed:
    """A flag that is gone and has no successor."""

    name: str
    last_with: str
    first_without: str
    tools: tuple[str, ...] = (COMPILE,)


@dataclass(frozen=True, slots=True)
class Added:
    """A flag that older releases have under no name."""

    name: str
    last_without: str
    first_with: str
    tools: tuple[str, ...] = (COMPILE,)


# The ROCm backend's flags were named after HIP, its driver.
_ROCM = (
    "bc-dir",
    "denormal-fp-math-f32",
    "emit-debug-info",
    "enable-register-spill-warning",
    "enable-tensor-ukernels",
    "enable-ukernels",
    "encoding-layout-resolver",
    "llvm-global-isel",
    "llvm-slp-vec",
    "specialize-dispatches",
    "target",
    "target-features",
    "waves-per-eu",
)
_TRUE = ("", "true", "1")
_FALSE = ("false", "0")

RENAMED: tuple[Rename, ...] = (
    *(Rename(f"iree-hip-{flag}", f"iree-rocm-{flag}") for flag in _ROCM),
    # A switch became a number of stages: 0 and 1 are off, 2 is what the switch turned on.
    Rename(
        "iree-llvmgpu-enable-prefetch",
        "iree-llvmgpu-prefetch-num-stages",
        to_new=(*((value, "2") for value in _TRUE), *((value, "0") for value in _FALSE)),
        to_old=(("0", "false"), ("1", "false"), ("2", "true")),
    ),
    Rename("iree-opt-import-parameters", "iree-parameter-import"),
    Rename("iree-opt-import-parameter-keys", "iree-parameter-import-keys"),
    Rename("iree-opt-import-parameter-maximum-size", "iree-parameter-import-maximum-size"),
    Rename("iree-opt-export-parameter-minimum-size", "iree-parameter-export-minimum-size"),
    # 3.13.0 still takes these two under their old names.
    Rename("iree-opt-export-parameters", "iree-parameter-export"),
    Rename("iree-opt-splat-parameters", "iree-parameter-splat"),
    Rename(
        "iree-global-opt-enable-demote-contraction-inputs-to-bf16",
        "iree-global-opt-demote-contraction-inputs-operations",
        with_new=("iree-global-opt-demote-contraction-inputs-type", "bf16"),
    ),
    # Two flags became one.
    Rename("iree-llvmcpu-general-matmul-tile-bytes", "iree-llvmcpu-matmul-tile-bytes"),
    Rename("iree-llvmcpu-narrow-matmul-tile-bytes", "iree-llvmcpu-matmul-tile-bytes"),
    # This pair is inferred from the names; the help says the same of both.
    Rename(
        "iree-dispatch-creation-experimental-data-tiling",
        "iree-dispatch-creation-data-tiling",
        last_old="3.5.0",
        first_new="3.9.0",
    ),
    Rename("device_profiling_file", "device_profiling_output", tools=(RUN_MODULE, BENCHMARK_MODULE)),
)

REMOVED: tuple[Removed, ...] = (
    Removed("iree-codegen-gpu-native-math-precision", "3.5.0", "3.9.0"),
    Removed("iree-global-opt-enable-fuse-silu-horizontal-matmul", "3.5.0", "3.9.0"),
    Removed("iree-codegen-llvmgpu-use-mma-sync", "3.9.0", "3.12.0"),
    Removed("iree-codegen-llvmgpu-use-wmma", "3.9.0", "3.12.0"),
    Removed("iree-dispatch-creation-enable-detensoring", "3.9.0", "3.12.0"),
    Removed("iree-hip-index-bits", "3.9.0", "3.12.0"),
    Removed("iree-vm-bytecode-module-optimize", "3.9.0", "3.12.0"),
    # These were compared between 3.9.0 and 3.13.0 only.
    Removed("iree-codegen-llvmgpu-use-unaligned-gemm-vector-distribution", "3.9.0", "3.13.0"),
    Removed("iree-dispatch-creation-test-set-scaled-matmul-encodings", "3.9.0", "3.13.0"),
    Removed("iree-experimental-packed-i1-storage", "3.9.0", "3.13.0"),
    Removed("iree-global-opt-experimental-disable-conv-generalization", "3.9.0", "3.13.0"),
    Removed("iree-llvmcpu-tile-dispatch-using-forall", "3.9.0", "3.13.0"),
    Removed("iree-vulkan-experimental-indirect-bindings", "3.9.0", "3.13.0"),
)

ADDED: tuple[Added, ...] = (
    Added("iree-global-opt-enable-qdq-to-integer-math", "3.12.0", "3.13.0"),
    Added("iree-llvmcpu-vscale-range", "3.12.0", "3.13.0"),
    Added("dispatch_statistics", "3.12.0", "3.13.0", (BENCHMARK_MODULE,)),
    Added("expected_rtol", "3.9.0", "3.12.0", (RUN_MODULE, BENCHMARK_MODULE)),
    Added("expected_output", "3.9.0", "3.12.0", (BENCHMARK_MODULE,)),
    # These were compared between 3.9.0 and 3.13.0 only.
    Added("expected_bf16_threshold", "3.9.0", "3.13.0", (RUN_MODULE, BENCHMARK_MODULE)),
    *(
        Added(name, "3.9.0", "3.13.0", (BENCHMARK_MODULE,))
        for name in (
            "expected_f16_threshold",
            "expected_f32_threshold",
            "expected_f64_threshold",
            "equality_mode",
        )
    ),
    Added("print_device_statistics", "3.9.0", "3.13.0", (RUN_MODULE, BENCHMARK_MODULE)),
    Added("device_replay_output", "3.9.0", "3.13.0", (RUN_MODULE, BENCHMARK_MODULE)),
    *(
        Added(name, "3.9.0", "3.13.0")
        for name in (
            "iree-dispatch-creation-block-matmul-producer-fusion",
            "iree-dispatch-creation-split-reduction-low-parallelism",
            "iree-global-opt-enable-sink-transpose-through-pad",
            "iree-global-opt-propagate-transposes-through-conv",
            "iree-global-opt-use-im2col-for-convs",
            "iree-llvmcpu-enable-inner-tiled",
            "iree-llvmcpu-enable-llvm-ukernels",
            "iree-llvmcpu-matmul-tile-undercount-whole-matrix",
            "iree-llvmcpu-mlir-opt-level",
            "iree-llvmgpu-enable-small-float-emulation",
            "iree-parameter-encoder-mode",
            "iree-parameter-encoder-output-file",
            "iree-parameter-encoder-output-scope",
            "iree-rocm-use-spirv",
            "iree-torch-enable-shape-refinement",
            "iree-torch-externalize-transients",
            "iree-vulkan-dispatch-abi",
            "iree-vulkan-target-features",
        )
    ),
)
