"""Which releases have which flag: data, read off the tools' full help (`--help-list-hidden`, `--help`).

Compared were 3.5.0, 3.9.0, 3.12.0 and 3.13.0 (wheels for Linux on x86-64). Listed are the flags that one of them
has and another has not, of the compiler only its own (`iree-…`), without LLVM's. A key says which of the four
have the flags below it: `x` has them, `-` has not.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE

if TYPE_CHECKING:
    from collections.abc import Mapping


COMPARED_RELEASES = ("3.5.0", "3.9.0", "3.12.0", "3.13.0")

_COMPILE: Mapping[str, str] = MappingProxyType(
    {
        "---x": """
            iree-global-opt-enable-qdq-to-integer-math
            iree-llvmcpu-vscale-range
            iree-load-plugin
        """,
        "--xx": """
            iree-codegen-add-tuner-attributes
            iree-codegen-emit-pipeline-constraints
            iree-codegen-experimental-verify-pipeline-constraints
            iree-codegen-llvmgpu-enable-outer-reduction-tile-and-fuse
            iree-dispatch-creation-block-matmul-producer-fusion
            iree-dispatch-creation-experimental-set-data-tiling-ops
            iree-dispatch-creation-split-reduction-low-parallelism
            iree-experimental-vscale-value
            iree-global-opt-demote-contraction-inputs-operations
            iree-global-opt-demote-contraction-inputs-type
            iree-global-opt-enable-sink-transpose-through-pad
            iree-global-opt-propagate-transposes-through-conv
            iree-global-opt-use-im2col-for-convs
            iree-llvmcpu-enable-inner-tiled
            iree-llvmcpu-enable-llvm-ukernels
            iree-llvmcpu-experimental-vectorize-to-transfer-gather
            iree-llvmcpu-matmul-tile-bytes
            iree-llvmcpu-matmul-tile-undercount-whole-matrix
            iree-llvmcpu-mlir-opt-level
            iree-llvmgpu-enable-small-float-emulation
            iree-llvmgpu-prefetch-num-stages
            iree-llvmgpu-test-load-to-transpose-load
            iree-parameter-encoder-mode
            iree-parameter-encoder-output-file
            iree-parameter-encoder-output-scope
            iree-parameter-export
            iree-parameter-export-minimum-size
            iree-parameter-import
            iree-parameter-import-keys
            iree-parameter-import-maximum-size
            iree-parameter-splat
            iree-rocm-bc-dir
            iree-rocm-denormal-fp-math-f32
            iree-rocm-emit-debug-info
            iree-rocm-enable-register-spill-warning
            iree-rocm-enable-tensor-ukernels
            iree-rocm-enable-ukernels
            iree-rocm-encoding-layout-resolver
            iree-rocm-llvm-global-isel
            iree-rocm-llvm-slp-vec
            iree-rocm-specialize-dispatches
            iree-rocm-target
            iree-rocm-target-features
            iree-rocm-use-spirv
            iree-rocm-waves-per-eu
            iree-stream-experimental-unify-encoding-for-globals
            iree-torch-emit-async-entry-points
            iree-torch-enable-shape-refinement
            iree-torch-externalize-transients
            iree-vulkan-dispatch-abi
            iree-vulkan-target-features
        """,
        "-x--": """
            iree-dispatch-creation-test-set-scaled-matmul-encodings
            iree-global-opt-experimental-disable-conv-generalization
            iree-hip-denormal-fp-math-f32
            iree-hip-emit-debug-info
            iree-hip-enable-register-spill-warning
            iree-hip-enable-tensor-ukernels
            iree-hip-specialize-dispatches
        """,
        "-xxx": """
            iree-codegen-debug-patched-func-ops-file-name
            iree-codegen-llvmgpu-igemm-pad-convolution
            iree-codegen-llvmgpu-use-direct-convolution
            iree-codegen-llvmgpu-use-reduction-vector-distribution
            iree-codegen-llvmgpu-use-tile-and-fuse-matmul
            iree-dispatch-creation-data-tiling
            iree-dispatch-creation-enable-aggressive-reshape-movement
            iree-dispatch-creation-enable-early-trunc-fusion
            iree-dispatch-creation-enable-split-reduction
            iree-dispatch-creation-experimental-multi-use-encoding-fusion
            iree-flow-experimental-replicate-globals-per-affinity
            iree-global-opt-data-tiling
            iree-global-opt-experimental-enable-edge-reshape-propagation
            iree-hal-external-resources-mappable
            iree-llvmcpu-debug-patch-func-ops
            iree-llvmgpu-debug-patch-func-ops
            iree-llvmgpu-test-combine-layout-transformation
            iree-stream-experimental-transfer-to-replicate-globals
        """,
        "x---": """
            iree-codegen-gpu-native-math-precision
            iree-codegen-llvmgpu-early-tile-and-fuse-matmul
            iree-dispatch-creation-experimental-data-tiling
            iree-dispatch-creation-hoist-encodings-for-constexpr
            iree-global-opt-enable-fuse-silu-horizontal-matmul
            iree-hip-pass-plugin-path
            iree-stream-external-resources-mappable
        """,
        "xx--": """
            iree-codegen-llvmgpu-use-mma-sync
            iree-codegen-llvmgpu-use-unaligned-gemm-vector-distribution
            iree-codegen-llvmgpu-use-wmma
            iree-dispatch-creation-enable-detensoring
            iree-experimental-packed-i1-storage
            iree-global-opt-enable-demote-contraction-inputs-to-bf16
            iree-hip-bc-dir
            iree-hip-enable-ukernels
            iree-hip-encoding-layout-resolver
            iree-hip-index-bits
            iree-hip-llvm-global-isel
            iree-hip-llvm-slp-vec
            iree-hip-target
            iree-hip-target-features
            iree-hip-waves-per-eu
            iree-llvmcpu-general-matmul-tile-bytes
            iree-llvmcpu-narrow-matmul-tile-bytes
            iree-llvmcpu-tile-dispatch-using-forall
            iree-llvmgpu-enable-prefetch
            iree-opt-export-parameter-minimum-size
            iree-opt-import-parameter-keys
            iree-opt-import-parameter-maximum-size
            iree-opt-import-parameters
            iree-vm-bytecode-module-optimize
            iree-vulkan-experimental-indirect-bindings
        """,
    }
)

_RUNTIME: Mapping[str, str] = MappingProxyType(
    {
        "--xx": """
            agents_md
            device_capture_file
            device_capture_label
            device_capture_tool
            device_profiling_counter
            device_profiling_filter_command_buffer
            device_profiling_filter_command_index
            device_profiling_filter_function
            device_profiling_filter_physical_device
            device_profiling_filter_queue
            device_profiling_flush_interval_ms
            device_profiling_output
            device_replay_file_policy
            device_replay_file_validation
            device_replay_output
            expected_bf16_threshold
            expected_rtol
            print_device_statistics
            task_topology_snapshot
            vulkan_cached_bda_replay_instances
            vulkan_cached_bda_replay_publication_bytes
            vulkan_dispatch_abi
            vulkan_libvulkan_search_path
            vulkan_retained_cached_bda_replay_instances
        """,
        "-xxx": """
            task_topology_distribution
            task_topology_favor
        """,
        "xx--": """
            device_profiling_file
        """,
    }
)

_BENCHMARK: Mapping[str, str] = MappingProxyType(
    {
        "---x": """
            dispatch_statistics
        """,
        "--xx": """
            benchmark_dry_run
            enable_output_processing
            equality_mode
            expected_f16_threshold
            expected_f32_threshold
            expected_f64_threshold
            expected_output
            output
            output_max_element_count
        """,
    }
)

_TABLES: Mapping[str, tuple[Mapping[str, str], ...]] = MappingProxyType(
    {COMPILE: (_COMPILE,), RUN_MODULE: (_RUNTIME,), BENCHMARK_MODULE: (_RUNTIME, _BENCHMARK)}
)


def releases_with(tool: str, flag: str) -> tuple[str, ...]:
    """The compared releases whose tool has a flag; none for a flag that no table names.

    Args:
        tool: `iree-compile`, `iree-run-module` or `iree-benchmark-module`.
        flag: its name, without dashes.
    """
    for table in _TABLES[tool]:
        for pattern, names in table.items():
            if flag in names.split():
                return tuple(release for release, has in zip(COMPARED_RELEASES, pattern, strict=True) if has == "x")
    return ()
