"""IREE built from source: tools, libraries and Python bindings of a build or install folder.

Tools are in `tools`, in old layouts in `iree/tools`, and in an install prefix in `bin`. Bindings are in
`compiler/bindings/python` and `runtime/bindings/python`, in old layouts both in `bindings/python` or
`iree/bindings/python`, and in an install prefix in `python_packages/iree_compiler` and `iree_runtime`.

Builds of one version may differ, so the content of the files that determine a build's behaviour identifies it.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import NoSuchToolchainError, ToolchainError
from iree_gauntlet.system.atomic import add_folder, discard_folder
from iree_gauntlet.system.short_process import ProcessOutput, run_tool
from iree_gauntlet.toolchains.installed import IMPORTER
from iree_gauntlet.toolchains.toolchain import (
    BENCHMARK_MODULE,
    COMPILE,
    RUN_MODULE,
    UNKNOWN_VERSION,
    Compiler,
    Runtime,
    compute_identity,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


_TOOL_FOLDERS = ("tools", "iree/tools", "bin")
_BINDING_DIRS = ("compiler/bindings/python", "bindings/python", "iree/bindings/python", "python_packages/iree_compiler")
_VERSION_FILES = (
    "runtime/bindings/python/iree/_runtime_libs/version.py",
    "runtime/bindings/python/iree/runtime/version.py",
    "bindings/python/iree/_runtime_libs/version.py",
    "bindings/python/iree/runtime/version.py",
    "python_packages/iree_runtime/iree/_runtime_libs/version.py",
)
_VERSION_OUTPUT = re.compile(r"IREE compiler version (\S+)(?: @ ([0-9a-f]{7,40}))?")
_VERSION_LINE = re.compile(r"^VERSION = [\"']([^\"']+)[\"']", re.MULTILINE)
_IREE_REVISION = re.compile(r"[\"']IREE[\"']: [\"']([0-9a-f]+)[\"']")
_PYTHON_CACHE_ENTRY = re.compile(r"^_?Python3_EXECUTABLE(?::\w+)?=(.+)$", re.MULTILINE)
_LIBRARY_PREFIXES = ("libIREE", "libiree", "libMLIR", "libLLVM", "liblld")
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class BuildTree:
    """A folder with IREE's native tools.

    Attributes:
        source: the origin, for people (`build: DIR`).
        commit: the commit that was built, if it is known without asking the tools; else empty.
        bindings: the folder of the compiler's bindings; None to search the build's folder.
    """

    root: Path
    tools: Path
    source: str
    commit: str = ""
    bindings: Path | None = None

    @classmethod
    def find(cls, root: Path, required_tools: Sequence[str]) -> BuildTree:
        """Find the build in a folder; raise a ToolchainError if the build lacks a required tool."""
        if not root.is_dir():
            raise NoSuchToolchainError(f"build:{root} is not a folder", "Name the folder in which CMake built IREE.")
        for name in _TOOL_FOLDERS:
            if all((root / name / tool).is_file() for tool in required_tools):
                return cls(root, root / name, f"build: {root}")
        folders = ", ".join(f"{name}/" for name in _TOOL_FOLDERS)
        raise ToolchainError(
            f"no {' and '.join(required_tools)} in the build folder {root}: looked in {folders}",
            _suggest_nearby(root, required_tools),
        )


def find_built_compiler(tree: BuildTree, hash_of: Callable[[Path], str], environments: Path) -> Compiler:
    """Return the compiler of a build; make an environment in `environments` whose Python imports the build's bindings.

    Raises:
        ToolchainError: the compiler does not start.
    """
    compile_tool = _require_executable(tree, COMPILE)
    result, match = _ask_version(compile_tool)
    if result.exit_code != 0 or match is None:
        message = (result.stderr.strip().splitlines() or ["no error message"])[-1]
        summary = f"{compile_tool} --version did not report its version (exit code {result.exit_code}): {message}"
        raise ToolchainError(summary, "Run it by hand; rebuild it if it does not start.")
    version, commit = match[1], match[2] or ""
    identity = _compute_build_identity(_list_compiler_files(tree), version, commit, hash_of)
    bindings = tree.bindings or find_bindings(tree.root / name for name in _BINDING_DIRS)
    python, onnx = ("", "") if bindings is None else _provide_binding_python(tree.root, bindings, environments)
    opt = tree.tools / "iree-opt"
    return Compiler(
        source=tree.source,
        python=python,
        compile=compile_tool,
        import_onnx=(python, "-m", IMPORTER) if python else (),
        onnx_version=onnx,
        version=version,
        release=version,  # a build has no release of its own
        commit=tree.commit or commit,
        identity=identity,
        ir_tool=str(opt) if os.access(opt, os.X_OK) else "",
    )


def find_bindings(folders: Iterable[Path]) -> Path | None:
    """Return the first folder from which Python imports IREE's compiler."""
    return next((folder for folder in folders if (folder / "iree/compiler").is_dir()), None)


def find_built_runtime(tree: BuildTree, hash_of: Callable[[Path], str]) -> Runtime:
    """Return the runtime of a build; its version is the bindings' or compiler's, as the runtime's tools report none."""
    run_module, benchmark_module = _require_executable(tree, RUN_MODULE), _require_executable(tree, BENCHMARK_MODULE)
    version, commit = _find_runtime_version(tree)
    files = [(RUN_MODULE, Path(run_module)), (BENCHMARK_MODULE, Path(benchmark_module))]
    files += _list_libraries(tree.root / "lib", ("libiree", "libIREERuntime"))
    return Runtime(
        source=tree.source,
        run_module=run_module,
        benchmark_module=benchmark_module,
        version=version or UNKNOWN_VERSION,
        release=version or UNKNOWN_VERSION,
        commit=tree.commit or commit,
        identity=_compute_build_identity(files, version, commit, hash_of),
    )


def list_shipped_files(root: Path) -> list[str]:
    """List the files that are needed to run a build, relative to its folder: tools, libraries, bindings, versions."""
    tree = BuildTree(root, root / "tools", "")
    tools = [tree.tools / name for name in ("iree-opt", RUN_MODULE, BENCHMARK_MODULE, "iree-profile")]
    files = {path for _, path in _list_compiler_files(tree)} | {path for path in tools if path.is_file()}
    for folder in (root / "compiler/bindings/python/iree", root / "runtime/bindings/python/iree"):
        files |= {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".o", ".d", ".dwo")}
    names = {path.relative_to(root).as_posix() for path in files}
    return sorted(names | ({"CMakeCache.txt"} if (root / "CMakeCache.txt").is_file() else set()))


def _ask_version(compile_tool: str) -> tuple[ProcessOutput, re.Match[str] | None]:
    result = run_tool([compile_tool, "--version"], timeout=_TIMEOUT_SECONDS)
    return result, _VERSION_OUTPUT.search(result.stdout)


def _require_executable(tree: BuildTree, name: str) -> str:
    path = tree.tools / name
    if not os.access(path, os.X_OK):
        raise ToolchainError(f"{path} is not executable", f"chmod +x {path}, or rebuild it.")
    return str(path)


def _list_compiler_files(tree: BuildTree) -> list[tuple[str, Path]]:
    """List name and path of each file that determines the compiler's output."""
    tools = (COMPILE, "iree-lld", "iree-link", "lld")
    files = [(name, tree.tools / name) for name in tools if (tree.tools / name).is_file()]
    # All shared libraries of a build folder count, perhaps hundreds. Other folders also have unrelated libraries.
    prefixes = ("lib",) if (tree.root / "CMakeCache.txt").is_file() else _LIBRARY_PREFIXES
    for folder in (tree.tools, tree.tools.parent / "lib", tree.root / "lib"):
        files += _list_libraries(folder, prefixes)
        base = folder / "iree_platform_libs"
        platform_files = filter(Path.is_file, sorted(base.rglob("*")))
        files += [(f"platform {path.relative_to(base).as_posix()}", path) for path in platform_files]
    return files


def _list_libraries(folder: Path, prefixes: tuple[str, ...]) -> list[tuple[str, Path]]:
    """List the name and path of each shared library of a folder, including soname links."""
    if not folder.is_dir():
        return []
    return [
        (path.name, path)
        for path in sorted(folder.iterdir())
        if path.name.startswith(prefixes) and re.search(r"\.(so|dylib)(\.[\d.]+)?$", path.name) and path.is_file()
    ]


def _compute_build_identity(
    files: Sequence[tuple[str, Path]], version: str, commit: str, hash_of: Callable[[Path], str]
) -> str:
    hashes = {target: hash_of(target) for target in sorted({path.resolve() for _, path in files})}
    key_inputs = {("platform", f"{platform.system()}-{platform.machine()}"), ("version", version), ("commit", commit)}
    return compute_identity(key_inputs | {(f"content {name}", hashes[path.resolve()]) for name, path in files})


def _find_runtime_version(tree: BuildTree) -> tuple[str, str]:
    for name in _VERSION_FILES:
        try:
            text = (tree.root / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if version := _VERSION_LINE.search(text):
            commit = _IREE_REVISION.search(text)
            return version[1], commit[1] if commit else ""
    if not os.access(tree.tools / COMPILE, os.X_OK):
        return "", ""
    _, match = _ask_version(str(tree.tools / COMPILE))
    return (match[1], match[2] or "") if match else ("", "")


def _provide_binding_python(root: Path, bindings: Path, environments: Path) -> tuple[str, str]:
    """Return an interpreter that imports a build's bindings, and the interpreter's version of the onnx package."""
    try:
        match = _PYTHON_CACHE_ENTRY.search((root / "CMakeCache.txt").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        match = None
    # CMake's cache names the Python that the bindings were built for.
    path = match[1].strip() if match else ""
    base = path if path and os.access(path, os.X_OK) else sys.executable
    name = compute_identity([("bindings", str(bindings)), ("python", base)])[:16]
    folder = environments / name
    python = folder / "bin" / "python"
    if not os.access(python, os.X_OK):
        try:
            environments.mkdir(parents=True, exist_ok=True)
            discard_folder(folder)
            with add_folder(folder) as new_folder:
                _make_binding_python(base, bindings, new_folder)
        except OSError as error:
            message = f"cannot make an environment for the bindings in {bindings} with {base}: {error}"
            raise ToolchainError(message, "The cache must be writable, and this Python must start.") from error
    program = "import importlib.metadata as m; print(m.version('onnx'))"
    result = run_tool([str(python), "-c", program], timeout=_TIMEOUT_SECONDS)
    return str(python), result.stdout.strip() if result.exit_code == 0 else ""


def _make_binding_python(base: str, bindings: Path, folder: Path) -> None:
    for argv in (
        [base, "-m", "venv", "--without-pip", str(folder)],
        [base, "-c", "import sys; print('\\n'.join(p for p in sys.path if p.endswith('-packages')))"],
    ):
        result = run_tool(argv, timeout=_TIMEOUT_SECONDS)
        if result.exit_code != 0:
            raise ToolchainError(f"{base} -m venv failed: {result.stderr.strip()}", "The build's Python must work.")
    (site,) = folder.glob("lib/python3.*/site-packages")
    (site / "iree-build.pth").write_text(f"{bindings}\n{result.stdout}", encoding="utf-8")


def _suggest_nearby(root: Path, required_tools: Sequence[str]) -> str:
    """Suggest nearby folders that may contain the build."""
    if any((root / tool).is_file() for tool in required_tools):
        return f"This is the folder of the tools: name its parent, build:{root.parent}."
    for folder in (root / "build", root.parent / f"{root.name}-build", root.parent):
        if any(all((folder / name / tool).is_file() for tool in required_tools) for name in _TOOL_FOLDERS):
            return f"There is a build in {folder}: write build:{folder}."
    return "Name the folder in which CMake built IREE (cmake --build BUILD), not the sources."
