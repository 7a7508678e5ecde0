"""The two halves of an IREE, compiler and runtime, which may come from different places."""

from __future__ import annotations

from dataclasses import dataclass

from iree_gauntlet.toolchains.toolchain import Toolchain

__all__ = ["CompilerSide", "RuntimeSide", "joined"]


@dataclass(frozen=True, slots=True)
class CompilerSide:
    """A compiler; the attributes are those of `Toolchain` without `compiler_`.

    Attributes:
        python: the interpreter that imports ONNX programs; empty where there is none.
    """

    source: str
    python: str
    compile: str
    import_onnx: tuple[str, ...]
    onnx_version: str
    version: str
    release: str
    commit: str
    identity: str
    ir_tool: str


@dataclass(frozen=True, slots=True)
class RuntimeSide:
    """A runtime; the attributes are those of `Toolchain` without `runtime_`."""

    source: str
    run_module: str
    benchmark_module: str
    version: str
    release: str
    commit: str
    identity: str


def joined(compiler: CompilerSide, runtime: RuntimeSide) -> Toolchain:
    """One toolchain of both; its source names each where they differ."""
    source = compiler.source
    if runtime.source != source:
        source = f"compiler {compiler.source}; runtime {runtime.source}"
    return Toolchain(
        source=source,
        python=compiler.python,
        compile=compiler.compile,
        run_module=runtime.run_module,
        benchmark_module=runtime.benchmark_module,
        import_onnx=compiler.import_onnx,
        onnx_version=compiler.onnx_version,
        compiler_version=compiler.version,
        compiler_release=compiler.release,
        compiler_commit=compiler.commit,
        runtime_version=runtime.version,
        runtime_release=runtime.release,
        runtime_commit=runtime.commit,
        identity=compiler.identity,
        runtime_identity=runtime.identity,
        ir_tool=compiler.ir_tool,
    )
