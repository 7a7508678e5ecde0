"""One IREE: the programs to start, the versions to report, and the identities to cache by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BENCHMARK_MODULE", "COMPILE", "RUN_MODULE", "UNKNOWN_VERSION", "Toolchain", "identity_of"]

# Names of the tools, as IREE's documentation and our messages spell them.
COMPILE = "iree-compile"
RUN_MODULE = "iree-run-module"
BENCHMARK_MODULE = "iree-benchmark-module"
# Of a runtime that was built without anything that tells its version.
UNKNOWN_VERSION = "unknown"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """One IREE, fully known: making one starts no process, and neither does reading it.

    Attributes:
        source: where it comes from, for people (`installed: <site-packages>`).
        python: the interpreter that imports ONNX programs; empty where there is none (a build without bindings).
        compile: path of the native `iree-compile`.
        run_module: path of the native `iree-run-module`.
        benchmark_module: path of the native `iree-benchmark-module`.
        import_onnx: argument vector that starts the ONNX importer; it works only where `onnx_version` is set.
        onnx_version: version of the onnx package in that Python; empty where it is not installed.
        compiler_version: what the compiler calls itself (`3.13.0rc20261016`).
        compiler_release: the release that was installed (`3.13.0`); goldens are written for releases.
        compiler_commit: IREE's commit that the compiler was built from; empty where unknown.
        runtime_version: what the runtime calls itself.
        runtime_release: the release of the runtime that was installed.
        runtime_commit: IREE's commit that the runtime was built from; empty where unknown.
        identity: hex digest that changes where the compiler's output may change.
        runtime_identity: hex digest that changes where the runtime's behaviour may change.
        ir_tool: path of the native `iree-opt`; empty where there is none.
    """

    source: str
    python: str
    compile: str
    run_module: str
    benchmark_module: str
    import_onnx: tuple[str, ...]
    onnx_version: str
    compiler_version: str
    compiler_release: str
    compiler_commit: str
    runtime_version: str
    runtime_release: str
    runtime_commit: str
    identity: str
    runtime_identity: str
    ir_tool: str = ""

    @property
    def has_onnx_importer(self) -> bool:
        """Whether ONNX programs can be imported: the importer itself needs the onnx package."""
        return bool(self.onnx_version)

    def tool(self, name: str) -> str:
        """Path of a tool by its name (`iree-compile`); KeyError for another name."""
        return {
            COMPILE: self.compile,
            RUN_MODULE: self.run_module,
            BENCHMARK_MODULE: self.benchmark_module,
        }[name]

    def as_dict(self) -> dict[str, str]:
        """The journal's `toolchain` record."""
        return {
            "compiler": self.compiler_version,
            "compiler_commit": self.compiler_commit,
            "runtime": self.runtime_version,
            "runtime_commit": self.runtime_commit,
            "identity": self.identity,
            "source": self.source,
        }


def identity_of(ingredients: Iterable[tuple[str, str]]) -> str:
    """Hex SHA-256 of named ingredients; their order does not matter, their names do."""
    digest = hashlib.sha256()
    for name, value in sorted(ingredients):
        digest.update(f"{len(name)}:{name}={len(value)}:{value};".encode())
    return digest.hexdigest()
