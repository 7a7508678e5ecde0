"""How flags are called in different releases of IREE: data, read off the tools' full help.

Compared were 3.5.0, 3.9.0, 3.12.0 and 3.13.0, so a change is known to lie between two of these.
Names are without dashes. A renamed flag means the same under both names, in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE

__all__ = ["RENAMED", "Rename"]


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
