"""The IREE wheels of a Python environment, found without importing them or starting anything."""

from __future__ import annotations

import os
import sys
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, Toolchain
from iree_gauntlet.toolchains.wheels import (
    COMPILER_WHEEL,
    RUNTIME_WHEEL,
    executable_of,
    find_wheel,
    optional_executable_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["find_installed", "site_packages_of"]

_IMPORTER = "iree.compiler.tools.import_onnx"


def find_installed(python: str | None = None) -> Toolchain:
    """The IREE wheels of a Python environment.

    The native programs inside the wheels are taken, not the wrapper scripts beside the interpreter, which
    cost a Python start each.

    Args:
        python: interpreter of a virtual environment; None for the running one.

    Raises:
        ToolchainError: where a wheel is missing or damaged; it names what, in which Python, and the command
            that installs it.
    """
    if python is None:
        return _find_on(sys.path, sys.executable)
    # The path as given: resolving the link would lead out of the virtual environment.
    path = Path(python).absolute()
    if not path.is_file():
        raise ToolchainError(f"{python} is not a Python interpreter: there is no such file")
    return _find_on([str(p) for p in site_packages_of(path)], str(path))


def site_packages_of(python: Path) -> list[Path]:
    """The package folders of a virtual environment, read from its layout.

    Raises:
        ToolchainError: where the interpreter belongs to no virtual environment.
    """
    prefix = python.parent.parent
    if not (prefix / "pyvenv.cfg").is_file():
        raise ToolchainError(
            f"{python} belongs to no virtual environment: {prefix / 'pyvenv.cfg'} does not exist",
            f"make one and install IREE there: {python} -m venv <folder>",
        )
    if os.name == "nt":
        return [prefix / "Lib" / "site-packages"]
    return sorted(prefix.glob("lib*/python3.*/site-packages"))


def _find_on(search_path: Sequence[str], python: str) -> Toolchain:
    missing: list[ToolchainError] = []
    try:
        compiler = find_wheel(COMPILER_WHEEL, search_path, python)
    except ToolchainError as problem:
        missing.append(problem)
    try:
        runtime = find_wheel(RUNTIME_WHEEL, search_path, python)
    except ToolchainError as problem:
        missing.append(problem)
    if len(missing) == 2:
        raise ToolchainError(
            "; ".join(problem.what for problem in missing),
            f"install both: {python} -m pip install 'iree-base-compiler[onnx]' iree-base-runtime",
        )
    if missing:
        raise missing[0]
    onnx = next(iter(Distribution.discover(name="onnx", path=list(search_path))), None)
    return Toolchain(
        source=f"installed: {compiler.root}",
        python=python,
        compile=executable_of(compiler, COMPILE, python),
        run_module=executable_of(runtime, RUN_MODULE, python),
        benchmark_module=executable_of(runtime, BENCHMARK_MODULE, python),
        import_onnx=(python, "-m", _IMPORTER),
        onnx_version=onnx.version if onnx is not None else "",
        compiler_version=compiler.version,
        compiler_release=compiler.release,
        compiler_commit=compiler.commit,
        runtime_version=runtime.version,
        runtime_release=runtime.release,
        runtime_commit=runtime.commit,
        identity=compiler.identity,
        runtime_identity=runtime.identity,
        ir_tool=optional_executable_of(compiler, "iree-opt"),
    )
