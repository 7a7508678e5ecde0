"""The IREE wheels of a Python environment, found without importing them or starting a process.

All facts come from the unpacked wheel's files on the search path; none of these files is run.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import os
import platform
import sys
from dataclasses import dataclass, replace
from importlib.metadata import Distribution
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains.toolchain import (
    BENCHMARK_MODULE,
    COMPILE,
    RUN_MODULE,
    Compiler,
    Runtime,
    Toolchain,
    compute_identity,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


# The module that imports ONNX programs when run as a program.
IMPORTER = "iree.compiler.tools.import_onnx"


_BUILD_HINT = (
    "use a source build by its folder, --iree build:DIR, or by its tools on the PATH, --iree path "
    "(IREE_GAUNTLET_IREE=path)"
)


@dataclass(frozen=True, slots=True)
class WheelKind:
    """The layout of one of IREE's two wheels.

    The files in `tools` whose names start with one of `identity_prefixes` determine the wheel's behaviour. Libraries of
    Python's bindings are left out, because they differ between Pythons for one compiler.
    """

    distribution: str
    noun: str
    version_file: str
    tools: str
    identity_prefixes: tuple[str, ...]


COMPILER_WHEEL = WheelKind(
    distribution="iree-base-compiler",
    noun="compiler",
    version_file="iree/compiler/version.py",
    tools="iree/compiler/_mlir_libs",
    # The platform libraries contain the device bitcode that is linked into ROCm code.
    identity_prefixes=("iree-", "libIREECompiler", "IREECompiler", "iree_platform_libs/"),
)
RUNTIME_WHEEL = WheelKind(
    distribution="iree-base-runtime",
    noun="runtime",
    version_file="iree/_runtime_libs/version.py",
    tools="iree/_runtime_libs",
    identity_prefixes=("iree-run-module", "iree-benchmark-module"),
)


@dataclass(frozen=True, slots=True)
class Wheel:
    """One of IREE's wheels, unpacked; `release`, `version` and `commit` are those of `Part`."""

    kind: WheelKind
    root: Path
    release: str
    version: str
    commit: str
    identity: str


def find_wheel(kind: WheelKind, search_path: Sequence[str], python: str) -> Wheel:
    """Find the wheel that an import would use: the first one on the search path.

    The identity uses the content hashes in the wheel's own RECORD, so no large file is read. A file that changed after
    the installation is detected only if its size changed. Without a RECORD, the files are read.

    Raises:
        ToolchainError: the wheel does not exist, or is not installed.
    """
    root = next((base for path in search_path if ((base := Path(path).absolute()) / kind.version_file).is_file()), None)
    install = f"{python} -m pip install {kind.distribution}"
    if root is None:
        hint = f"install: {install}"
        raise ToolchainError(f"no IREE {kind.noun} in {python}: {kind.version_file} is not on its path", hint)
    distribution = next(iter(Distribution.discover(name=kind.distribution, path=[str(root)])), None)
    release = distribution.version if distribution is not None else ""
    if distribution is None or not release:
        message = f"the IREE {kind.noun} in {root} was not installed from a wheel: it has no package metadata"
        raise ToolchainError(message, f"remove it from PYTHONPATH, or install the wheel: {install}; {_BUILD_HINT}")
    version, commit = _read_version(root / kind.version_file, install)
    key_inputs = [
        ("platform", f"{platform.system()}-{platform.machine()}"),
        ("version", version),
        ("release", release),
        ("commit", commit),
        *_list_content(kind, root, distribution.read_text("RECORD")),
    ]
    return Wheel(kind, root, release, version, commit, compute_identity(key_inputs))


def _require_executable(wheel: Wheel, name: str, python: str) -> str:
    """Return the path of a native program of a wheel."""
    path = wheel.root / wheel.kind.tools / name
    reinstall = f"{python} -m pip install --force-reinstall --no-deps {wheel.kind.distribution}=={wheel.release}"
    if not path.is_file():
        message = f"{name} is missing from the IREE {wheel.kind.noun} {wheel.release}: {path} does not exist"
        raise ToolchainError(message, f"the installation is damaged; repair it: {reinstall}")
    if not os.access(path, os.X_OK):
        hint = f"chmod +x {path}, or check that its file system is not mounted noexec, or reinstall: {reinstall}"
        raise ToolchainError(f"{name} of the IREE {wheel.kind.noun} {wheel.release} is not executable: {path}", hint)
    return str(path)


def _read_version(path: Path, install: str) -> tuple[str, str]:
    """Read VERSION and IREE's revision from a generated `version.py`, by parsing the file without executing it."""
    values: dict[str, object] = {}
    try:
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values[node.targets[0].id] = ast.literal_eval(node.value)
    except (OSError, SyntaxError, ValueError) as error:
        raise ToolchainError(f"{path} cannot be read: {error}", f"reinstall: {install}") from error
    version, revisions = values.get("VERSION"), values.get("REVISIONS")
    if not isinstance(version, str) or not version:
        raise ToolchainError(f"{path} has no VERSION", f"reinstall: {install}")
    commit = revisions.get("IREE") if isinstance(revisions, dict) else None
    return version, commit if isinstance(commit, str) else ""


def _list_content(kind: WheelKind, root: Path, record: str | None) -> list[tuple[str, str]]:
    """List the identifying files' names, with recorded hash and actual size; without a record, with computed hash."""
    content: list[tuple[str, str]] = []
    if record is None:
        for path in sorted((root / kind.tools).rglob("*")):
            name = path.relative_to(root / kind.tools).as_posix()
            if name.startswith(kind.identity_prefixes) and path.is_file():
                with path.open("rb") as file:
                    content.append((f"file {name}", hashlib.file_digest(file, "sha256").hexdigest()))
        return content
    # Every command runs this, so it must be fast: making a Path for each of the hundreds of rows would take time.
    prefixes = tuple(f"{kind.tools}/{name}" for name in kind.identity_prefixes)
    for row in csv.reader(record.splitlines()):
        if len(row) > 1 and row[0].startswith(prefixes):
            path, name = root / row[0], row[0].removeprefix(f"{kind.tools}/")
            size = str(path.stat().st_size) if path.exists() else "missing"
            content.append((f"file {name}", f"{row[1]} {size}"))
    return content


def find_installed() -> Toolchain:
    """Find the IREE wheels of the running Python; see `find_wheels_on`."""
    return find_wheels_on(sys.path, sys.executable)


def find_installed_release() -> Version | None:
    """Return the running Python's release if it is complete: both wheels, and the ONNX importer's requirements."""
    try:
        toolchain = find_installed()
    except ToolchainError:
        return None
    is_complete = toolchain.compiler.release == toolchain.runtime.release and toolchain.compiler.onnx_version
    return Version(toolchain.compiler.release) if is_complete else None


def find_site_packages(python: Path) -> list[Path]:
    """Return the package folders of an interpreter's virtual environment, from the environment's layout."""
    prefix = python.parent.parent
    if not (prefix / "pyvenv.cfg").is_file():
        message = f"{python} does not belong to a virtual environment: {prefix / 'pyvenv.cfg'} does not exist"
        raise ToolchainError(message, f"create one and install IREE in it: {python} -m venv <folder>")
    return sorted(prefix.glob("lib*/python3.*/site-packages"))


def find_compiler_on(search_path: Sequence[str], python: str, source: str) -> Compiler:
    """Find the compiler's wheel on a Python's search path; raise a ToolchainError if it is missing or damaged."""
    wheel = find_wheel(COMPILER_WHEEL, search_path, python)
    onnx = next(iter(Distribution.discover(name="onnx", path=list(search_path))), None)
    opt = wheel.root / wheel.kind.tools / "iree-opt"
    return Compiler(
        source=f"{source}: {wheel.root}",
        python=python,
        compile=_require_executable(wheel, COMPILE, python),
        import_onnx=(python, "-m", IMPORTER),
        onnx_version=onnx.version if onnx is not None else "",
        version=wheel.version,
        release=wheel.release,
        commit=wheel.commit,
        identity=wheel.identity,
        ir_tool=str(opt) if opt.is_file() and os.access(opt, os.X_OK) else "",
    )


def find_runtime_on(search_path: Sequence[str], python: str, source: str) -> Runtime:
    """Find the runtime's wheel in the same way as `find_compiler_on`."""
    wheel = find_wheel(RUNTIME_WHEEL, search_path, python)
    return Runtime(
        source=f"{source}: {wheel.root}",
        run_module=_require_executable(wheel, RUN_MODULE, python),
        benchmark_module=_require_executable(wheel, BENCHMARK_MODULE, python),
        version=wheel.version,
        release=wheel.release,
        commit=wheel.commit,
        identity=wheel.identity,
    )


def find_wheels_on(search_path: Sequence[str], python: str) -> Toolchain:
    """Find the IREE wheels on a search path.

    The native programs inside the wheels are used. The wrapper scripts next to the interpreter are not used, because
    each of them starts a Python.
    """
    try:
        compiler = find_compiler_on(search_path, python, "installed")
    except ToolchainError as error:
        try:
            find_runtime_on(search_path, python, "installed")
        except ToolchainError as other_error:
            hint = f"install both: {python} -m pip install 'iree-base-compiler[onnx]' iree-base-runtime; {_BUILD_HINT}"
            raise ToolchainError(f"{error.message}; {other_error.message}", hint) from None
        raise
    # Compiler and runtime may be in two folders of the search path; the compiler's folder is shown to people.
    return Toolchain(compiler, replace(find_runtime_on(search_path, python, "installed"), source=compiler.source))
