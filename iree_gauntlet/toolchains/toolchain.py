"""One IREE: the programs to start, the versions to report, and the identities for cache keys."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.journal_events import ToolchainInfo


# The tools' names, as in IREE's documentation and in this toolkit's messages.
COMPILE = "iree-compile"
RUN_MODULE = "iree-run-module"
BENCHMARK_MODULE = "iree-benchmark-module"
# The version of a runtime that was built without version files.
UNKNOWN_VERSION = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The common fields of compilers and runtimes.

    Attributes:
        source: the origin, for people (`installed: <site-packages>`).
        version: the version that the tools report (`3.13.0rc20261016`).
        release: the release that was installed (`3.13.0`); goldens are written for releases.
        commit: the commit of IREE that was built; empty if unknown.
        identity: a hex digest that changes whenever output or behaviour may change.
    """

    source: str
    version: str
    release: str
    commit: str
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler(Part):
    """A compiler with its Python and its other tools.

    Attributes:
        python: the interpreter that imports ONNX programs; empty for a build without bindings.
        compile: path of the native `iree-compile`.
        import_onnx: argument vector that starts the ONNX importer; it works only if `onnx_version` is set.
        onnx_version: version of the onnx package in `python`; empty if it is not installed.
        ir_tool: path of the native `iree-opt`; empty if it does not exist.
    """

    python: str
    compile: str
    import_onnx: tuple[str, ...]
    onnx_version: str
    ir_tool: str

    @property
    def site_packages(self) -> str:
        """The folder in which the compiler's wheel is installed; empty if the compiler is not a wheel."""
        folder = Path(self.compile).parent
        return str(folder.parents[2]) if folder.parts[-3:] == ("iree", "compiler", "_mlir_libs") else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime(Part):
    """A runtime: the paths of the native `iree-run-module` and `iree-benchmark-module`."""

    run_module: str
    benchmark_module: str


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The complete description of one IREE; using it starts no process.

    Compiler and runtime may come from different places.

    Attributes:
        selection_reason: a sentence; empty unless several toolchains are available and no option decides.
    """

    compiler: Compiler
    runtime: Runtime
    selection_reason: str = ""

    @property
    def source(self) -> str:
        """The origin, for people; if compiler and runtime have different origins, both."""
        compiler, runtime = self.compiler.source, self.runtime.source
        return compiler if runtime == compiler else f"compiler {compiler}; runtime {runtime}"

    def tool(self, name: str) -> str:
        """Return the path of a tool by its name (`iree-compile`); raise a KeyError for an unknown name."""
        return {
            COMPILE: self.compiler.compile,
            RUN_MODULE: self.runtime.run_module,
            BENCHMARK_MODULE: self.runtime.benchmark_module,
        }[name]

    @property
    def facts(self) -> ToolchainInfo:
        """The journal's `toolchain` record."""
        from iree_gauntlet.journal_events import ToolchainInfo  # noqa: PLC0415 - a third of this module's import time

        return ToolchainInfo(
            compiler=self.compiler.version,
            compiler_commit=self.compiler.commit,
            runtime=self.runtime.version,
            runtime_commit=self.runtime.commit,
            identity=self.compiler.identity,
            runtime_identity=self.runtime.identity,
            source=self.source,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return `facts` as a dict, for other records."""
        return self.facts.as_dict()


def compute_identity(key_inputs: Iterable[tuple[str, str]]) -> str:
    """Return the hex SHA-256 of named inputs; names matter, but the order does not."""
    digest = hashlib.sha256()
    for name, value in sorted(key_inputs):
        digest.update(f"{len(name)}:{name}={len(value)}:{value};".encode())
    return digest.hexdigest()
