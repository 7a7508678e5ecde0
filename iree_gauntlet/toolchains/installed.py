"""The IREE wheels of a Python environment, found without importing them or starting anything.

An unpacked wheel on a search path tells its files, versions and identity; none of it is run.
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


# Run as a module, it imports ONNX programs.
IMPORTER = "iree.compiler.tools.import_onnx"


_OF_A_BUILD = (
    "a source build is used by its folder, --iree build:DIR, or by its tools on the PATH, --iree path "
    "(IREE_GAUNTLET_IREE=path)"
)


@dataclass(frozen=True, slots=True)
class WheelKind:
    """What one of IREE's two wheels looks like.

    The content of files inside `tools` whose names start as `identifying` says makes its behaviour; Python's own
    binding libraries are left out, as they differ between Pythons for one compiler.
    """

    distribution: str
    noun: str
    version_file: str
    tools: str
    identifying: tuple[str, ...]


COMPILER_WHEEL = WheelKind(
    distribution="iree-base-compiler",
    noun="compiler",
    version_file="iree/compiler/version.py",
    tools="iree/compiler/_mlir_libs",
    # The platform libraries are the device bitcode that is linked into ROCm code.
    identifying=("iree-", "libIREECompiler", "IREECompiler", "iree_platform_libs/"),
)
RUNTIME_WHEEL = WheelKind(
    distribution="iree-base-runtime",
    noun="runtime",
    version_file="iree/_runtime_libs/version.py",
    tools="iree/_runtime_libs",
    identifying=("iree-run-module", "iree-benchmark-module"),
)


@dataclass(frozen=True, slots=True)
class Wheel:
    """One of IREE's wheels, unpacked; release, version and commit as of a `Part`."""

    kind: WheelKind
    root: Path
    release: str
    version: str
    commit: str
    identity: str


def find_wheel(kind: WheelKind, search_path: Sequence[str], python: str) -> Wheel:
    """The wheel that an import would use: the first one on the search path.

    The identity takes the content from the wheel's own RECORD, so nothing large is read. Of a change made
    after installation it sees a different size, not a different content of the same size. What has no RECORD is read.

    Raises:
        ToolchainError: it is not there, or is not an installed wheel.
    """
    root = next((f for p in search_path if ((f := Path(p).absolute()) / kind.version_file).is_file()), None)
    install = f"{python} -m pip install {kind.distribution}"
    if root is None:
        hint = f"install: {install}"
        raise ToolchainError(f"no IREE {kind.noun} in {python}: {kind.version_file} is not on its path", hint)
    distribution = next(iter(Distribution.discover(name=kind.distribution, path=[str(root)])), None)
    release = distribution.version if distribution is not None else ""
    if distribution is None or not release:
        what = f"the IREE {kind.noun} in {root} was not installed from a wheel: it has no package metadata"
        raise ToolchainError(what, f"take it off PYTHONPATH, or install the wheel: {install}; {_OF_A_BUILD}")
    version, commit = _read_version(root / kind.version_file, install)
    ingredients = [
        ("platform", f"{platform.system()}-{platform.machine()}"),
        ("version", version),
        ("release", release),
        ("commit", commit),
        *_list_content(kind, root, distribution.read_text("RECORD")),
    ]
    return Wheel(kind, root, release, version, commit, compute_identity(ingredients))


def _require_executable(wheel: Wheel, name: str, python: str) -> str:
    """Path of a native program of a wheel."""
    path = wheel.root / wheel.kind.tools / name
    reinstall = f"{python} -m pip install --force-reinstall --no-deps {wheel.kind.distribution}=={wheel.release}"
    if not path.is_file():
        what = f"{name} is missing from the IREE {wheel.kind.noun} {wheel.release}: {path} does not exist"
        raise ToolchainError(what, f"the installation is damaged; repair it: {reinstall}")
    if not os.access(path, os.X_OK):
        hint = f"chmod +x {path}, or see that its file system is not mounted noexec, or reinstall: {reinstall}"
        raise ToolchainError(f"{name} of the IREE {wheel.kind.noun} {wheel.release} may not be executed: {path}", hint)
    return str(path)


def _read_version(path: Path, install: str) -> tuple[str, str]:
    """VERSION and IREE's revision of a generated `version.py`, which is parsed, never executed."""
    values: dict[str, object] = {}
    try:
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values[node.targets[0].id] = ast.literal_eval(node.value)
    except (OSError, SyntaxError, ValueError) as problem:
        raise ToolchainError(f"{path} cannot be read: {problem}", f"reinstall: {install}") from problem
    version, revisions = values.get("VERSION"), values.get("REVISIONS")
    if not isinstance(version, str) or not version:
        raise ToolchainError(f"{path} has no VERSION", f"reinstall: {install}")
    commit = revisions.get("IREE") if isinstance(revisions, dict) else None
    return version, commit if isinstance(commit, str) else ""


def _list_content(kind: WheelKind, root: Path, record: str | None) -> list[tuple[str, str]]:
    """Name of each identifying file, with its recorded hash and actual size; without a record with its hash."""
    content: list[tuple[str, str]] = []
    if record is None:
        for path in sorted((root / kind.tools).rglob("*")):
            name = path.relative_to(root / kind.tools).as_posix()
            if name.startswith(kind.identifying) and path.is_file():
                with path.open("rb") as file:
                    content.append((f"file {name}", hashlib.file_digest(file, "sha256").hexdigest()))
        return content
    # Without a Path for each of its hundreds of rows: every command looks here first.
    inside = tuple(f"{kind.tools}/{name}" for name in kind.identifying)
    for row in csv.reader(record.splitlines()):
        if len(row) > 1 and row[0].startswith(inside):
            path, name = root / row[0], row[0].removeprefix(f"{kind.tools}/")
            size = str(path.stat().st_size) if path.exists() else "missing"
            content.append((f"file {name}", f"{row[1]} {size}"))
    return content


def find_installed() -> Toolchain:
    """The IREE wheels of the running Python; see `find_on`."""
    return find_on(sys.path, sys.executable)


def find_installed_release() -> Version | None:
    """The release that the running Python has whole: both wheels of it, and what its ONNX importer needs."""
    try:
        found = find_installed()
    except ToolchainError:
        return None
    is_whole = found.compiler.release == found.runtime.release and found.compiler.onnx_version
    return Version(found.compiler.release) if is_whole else None


def find_site_packages(python: Path) -> list[Path]:
    """The package folders of the virtual environment of an interpreter, read from its layout."""
    prefix = python.parent.parent
    if not (prefix / "pyvenv.cfg").is_file():
        what = f"{python} belongs to no virtual environment: {prefix / 'pyvenv.cfg'} does not exist"
        raise ToolchainError(what, f"make one and install IREE there: {python} -m venv <folder>")
    return sorted(prefix.glob("lib*/python3.*/site-packages"))


def find_compiler_on(search_path: Sequence[str], python: str, source: str) -> Compiler:
    """The compiler's wheel on the search path of a Python; ToolchainError where it is missing or damaged."""
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
    """The runtime's wheel, as `find_compiler_on`."""
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


def find_on(search_path: Sequence[str], python: str) -> Toolchain:
    """The IREE wheels on a search path.

    The native programs inside the wheels are taken, not the wrapper scripts next to the interpreter, which
    cost a Python start each.
    """
    try:
        compiler = find_compiler_on(search_path, python, "installed")
    except ToolchainError as problem:
        try:
            find_runtime_on(search_path, python, "installed")
        except ToolchainError as other:
            hint = f"install both: {python} -m pip install 'iree-base-compiler[onnx]' iree-base-runtime; {_OF_A_BUILD}"
            raise ToolchainError(f"{problem.what}; {other.what}", hint) from None
        raise
    # They may lie in two folders of the search path; people know the environment by the compiler's.
    return Toolchain(compiler, replace(find_runtime_on(search_path, python, "installed"), source=compiler.source))
