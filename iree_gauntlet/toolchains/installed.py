"""The IREE wheels of a Python environment, found without importing them or starting anything."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, Compiler, Runtime, Toolchain
from iree_gauntlet.toolchains.wheels import (
    COMPILER_WHEEL,
    RUNTIME_WHEEL,
    executable_of,
    find_wheel,
    optional_executable_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


# Run as a module, it imports ONNX programs.
IMPORTER = "iree.compiler.tools.import_onnx"


def find_installed(python: str | None = None) -> Toolchain:
    """The IREE wheels of a Python environment.

    The native programs inside the wheels are taken, not the wrapper scripts next to the interpreter, which
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


def compiler_on(search_path: Sequence[str], python: str, source: str) -> Compiler:
    """The compiler's wheel on a search path.

    Args:
        search_path: folders as in `sys.path`.
        python: the interpreter that they belong to.
        source: where it comes from, for people; its folder is added.

    Raises:
        ToolchainError: it is missing or damaged.
    """
    wheel = find_wheel(COMPILER_WHEEL, search_path, python)
    onnx = next(iter(Distribution.discover(name="onnx", path=list(search_path))), None)
    return Compiler(
        source=f"{source}: {wheel.root}",
        python=python,
        compile=executable_of(wheel, COMPILE, python),
        import_onnx=(python, "-m", IMPORTER),
        onnx_version=onnx.version if onnx is not None else "",
        version=wheel.version,
        release=wheel.release,
        commit=wheel.commit,
        identity=wheel.identity,
        ir_tool=optional_executable_of(wheel, "iree-opt"),
    )


def runtime_on(search_path: Sequence[str], python: str, source: str) -> Runtime:
    """The runtime's wheel on a search path; arguments and errors as for `compiler_on`."""
    wheel = find_wheel(RUNTIME_WHEEL, search_path, python)
    return Runtime(
        source=f"{source}: {wheel.root}",
        run_module=executable_of(wheel, RUN_MODULE, python),
        benchmark_module=executable_of(wheel, BENCHMARK_MODULE, python),
        version=wheel.version,
        release=wheel.release,
        commit=wheel.commit,
        identity=wheel.identity,
    )


def _find_on(search_path: Sequence[str], python: str) -> Toolchain:
    try:
        compiler = compiler_on(search_path, python, "installed")
    except ToolchainError as problem:
        try:
            runtime_on(search_path, python, "installed")
        except ToolchainError as other:
            raise ToolchainError(
                f"{problem.what}; {other.what}",
                f"install both: {python} -m pip install 'iree-base-compiler[onnx]' iree-base-runtime",
            ) from None
        raise
    # They may lie in two folders of the search path; people know the environment by the compiler's.
    return Toolchain(compiler, replace(runtime_on(search_path, python, "installed"), source=compiler.source))
