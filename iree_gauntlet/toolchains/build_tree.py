"""IREE as it was built from source: tools, libraries and Python bindings of a build or install folder.

Tools are in `tools`; in old layouts in `iree/tools`; in an install prefix in `bin`. Bindings are in
`compiler/bindings/python` and `runtime/bindings/python`; in old layouts both in `bindings/python` or
`iree/bindings/python`; in an install prefix in `python_packages/iree_compiler` and `iree_runtime`.

A build changes while its version stays: it is identified by the content of what makes its behaviour.
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
from iree_gauntlet.system.short_process import Answer, ask
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


_TOOLS = ("tools", "iree/tools", "bin")
_BINDINGS = ("compiler/bindings/python", "bindings/python", "iree/bindings/python", "python_packages/iree_compiler")
_VERSION_FILES = (
    "runtime/bindings/python/iree/_runtime_libs/version.py",
    "runtime/bindings/python/iree/runtime/version.py",
    "bindings/python/iree/_runtime_libs/version.py",
    "bindings/python/iree/runtime/version.py",
    "python_packages/iree_runtime/iree/_runtime_libs/version.py",
)
_VERSION = re.compile(r"IREE compiler version (\S+)(?: @ ([0-9a-f]{7,40}))?")
_VERSION_LINE = re.compile(r"^VERSION = [\"']([^\"']+)[\"']", re.MULTILINE)
_COMMIT = re.compile(r"[\"']IREE[\"']: [\"']([0-9a-f]+)[\"']")
_PYTHON = re.compile(r"^_?Python3_EXECUTABLE(?::\w+)?=(.+)$", re.MULTILINE)
_LIBRARIES = ("libIREE", "libiree", "libMLIR", "libLLVM", "liblld")
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class BuildTree:
    """A folder with IREE's native tools.

    Attributes:
        commit: where that is known by more than what the tools say.
        bindings: those of the compiler, where they are not looked for in the folder.
    """

    root: Path
    tools: Path
    source: str
    commit: str = ""
    bindings: Path | None = None

    @classmethod
    def of(cls, root: Path, needed: Sequence[str]) -> BuildTree:
        """The build in a folder; ToolchainError where it has not all of the needed tools."""
        if not root.is_dir():
            raise NoSuchToolchainError(f"build:{root} is not a folder", "Name the folder that CMake has built IREE in.")
        for name in _TOOLS:
            if all((root / name / tool).is_file() for tool in needed):
                return cls(root, root / name, f"build: {root}")
        looked = ", ".join(f"{name}/" for name in _TOOLS)
        raise ToolchainError(
            f"no {' and '.join(needed)} in the build folder {root}: looked in {looked}", _suggest_nearby(root, needed)
        )


def find_compiler_of(tree: BuildTree, hash_of: Callable[[Path], str], environments: Path) -> Compiler:
    """The compiler of a build; in the folder `environments` one is made whose Python sees the build's bindings.

    Raises:
        ToolchainError: it does not start.
    """
    compile_tool = _require_executable(tree, COMPILE)
    answer, found = _ask_version(compile_tool)
    if answer.exit_code != 0 or found is None:
        last = (answer.stderr.strip().splitlines() or ["no error message"])[-1]
        what = f"{compile_tool} --version does not say its version (exit code {answer.exit_code}): {last}"
        raise ToolchainError(what, "Run it by hand; build it again where it does not start.")
    version, commit = found[1], found[2] or ""
    identity = _compute_identity(_list_compiler_files(tree), version, commit, hash_of)
    bindings = tree.bindings or find_bindings(tree.root / name for name in _BINDINGS)
    python, onnx = ("", "") if bindings is None else _provide_binding_python(tree.root, bindings, environments)
    opt = tree.tools / "iree-opt"
    return Compiler(
        source=tree.source,
        python=python,
        compile=compile_tool,
        import_onnx=(python, "-m", IMPORTER) if python else (),
        onnx_version=onnx,
        version=version,
        release=version,
        commit=tree.commit or commit,
        identity=identity,
        ir_tool=str(opt) if os.access(opt, os.X_OK) else "",
    )


def find_bindings(folders: Iterable[Path]) -> Path | None:
    """The first folder from which Python imports IREE's compiler."""
    return next((folder for folder in folders if (folder / "iree/compiler").is_dir()), None)


def find_runtime_of(tree: BuildTree, hash_of: Callable[[Path], str]) -> Runtime:
    """The runtime of a build; its tools do not tell their version, so it is that of the bindings or the compiler."""
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
        identity=_compute_identity(files, version, commit, hash_of),
    )


def list_shipped_files(root: Path) -> list[str]:
    """Paths, relative to a build's folder, of what is run of it: tools, libraries, bindings, what tells its version."""
    tree = BuildTree(root, root / "tools", "")
    tools = [tree.tools / name for name in ("iree-opt", RUN_MODULE, BENCHMARK_MODULE, "iree-profile")]
    files = {path for _, path in _list_compiler_files(tree)} | {path for path in tools if path.is_file()}
    for folder in (root / "compiler/bindings/python/iree", root / "runtime/bindings/python/iree"):
        files |= {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".o", ".d", ".dwo")}
    names = {path.relative_to(root).as_posix() for path in files}
    return sorted(names | ({"CMakeCache.txt"} if (root / "CMakeCache.txt").is_file() else set()))


def _ask_version(compile_tool: str) -> tuple[Answer, re.Match[str] | None]:
    answer = ask([compile_tool, "--version"], timeout=_TIMEOUT_SECONDS)
    return answer, _VERSION.search(answer.stdout)


def _require_executable(tree: BuildTree, name: str) -> str:
    path = tree.tools / name
    if not os.access(path, os.X_OK):
        raise ToolchainError(f"{path} may not be executed", f"chmod +x {path}, or build it again.")
    return str(path)


def _list_compiler_files(tree: BuildTree) -> list[tuple[str, Path]]:
    """Name and path of everything that makes what the compiler writes."""
    tools = (COMPILE, "iree-lld", "iree-link", "lld")
    files = [(name, tree.tools / name) for name in tools if (tree.tools / name).is_file()]
    # A build with shared libraries has hundreds of them, of MLIR and LLVM too; other folders hold others' as well.
    prefixes = ("lib",) if (tree.root / "CMakeCache.txt").is_file() else _LIBRARIES
    for folder in (tree.tools, tree.tools.parent / "lib", tree.root / "lib"):
        files += _list_libraries(folder, prefixes)
        base = folder / "iree_platform_libs"
        inside = filter(Path.is_file, sorted(base.rglob("*")))
        files += [(f"platform {path.relative_to(base).as_posix()}", path) for path in inside]
    return files


def _list_libraries(folder: Path, prefixes: tuple[str, ...]) -> list[tuple[str, Path]]:
    """The shared libraries of a folder, each by its soname links and its content."""
    if not folder.is_dir():
        return []
    return [
        (path.name, path)
        for path in sorted(folder.iterdir())
        if path.name.startswith(prefixes) and re.search(r"\.(so|dylib)(\.[\d.]+)?$", path.name) and path.is_file()
    ]


def _compute_identity(
    files: Sequence[tuple[str, Path]], version: str, commit: str, hash_of: Callable[[Path], str]
) -> str:
    hashes = {real: hash_of(real) for real in sorted({path.resolve() for _, path in files})}
    facts = {("platform", f"{platform.system()}-{platform.machine()}"), ("version", version), ("commit", commit)}
    return compute_identity(facts | {(f"content {name}", hashes[path.resolve()]) for name, path in files})


def _find_runtime_version(tree: BuildTree) -> tuple[str, str]:
    for name in _VERSION_FILES:
        try:
            text = (tree.root / name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if version := _VERSION_LINE.search(text):
            commit = _COMMIT.search(text)
            return version[1], commit[1] if commit else ""
    if not os.access(tree.tools / COMPILE, os.X_OK):
        return "", ""
    _, found = _ask_version(str(tree.tools / COMPILE))
    return (found[1], found[2] or "") if found else ("", "")


def _provide_binding_python(root: Path, bindings: Path, environments: Path) -> tuple[str, str]:
    """An interpreter that sees a build's bindings, and the version of the onnx package that it sees."""
    try:
        noted = _PYTHON.search((root / "CMakeCache.txt").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        noted = None
    # The one that they were made for, as CMake noted it.
    path = noted[1].strip() if noted else ""
    base = path if path and os.access(path, os.X_OK) else sys.executable
    name = compute_identity([("bindings", str(bindings)), ("python", base)])[:16]
    folder = environments / name
    python = folder / "bin" / "python"
    if not os.access(python, os.X_OK):
        try:
            environments.mkdir(parents=True, exist_ok=True)
            discard_folder(folder)
            with add_folder(folder) as new:
                _make_binding_python(base, bindings, new)
        except OSError as error:
            what = f"cannot make an environment for the bindings in {bindings} with {base}: {error}"
            raise ToolchainError(what, "The cache must be writable, and that Python must start.") from error
    program = "import importlib.metadata as m; print(m.version('onnx'))"
    answer = ask([str(python), "-c", program], timeout=_TIMEOUT_SECONDS)
    return str(python), answer.stdout.strip() if answer.exit_code == 0 else ""


def _make_binding_python(base: str, bindings: Path, new: Path) -> None:
    for argv in (
        [base, "-m", "venv", "--without-pip", str(new)],
        [base, "-c", "import sys; print('\\n'.join(p for p in sys.path if p.endswith('-packages')))"],
    ):
        answer = ask(argv, timeout=_TIMEOUT_SECONDS)
        if answer.exit_code != 0:
            raise ToolchainError(f"{base} -m venv failed: {answer.stderr.strip()}", "The build's Python must be whole.")
    (site,) = new.glob("lib/python3.*/site-packages")
    (site / "iree-build.pth").write_text(f"{bindings}\n{answer.stdout}", encoding="utf-8")


def _suggest_nearby(root: Path, needed: Sequence[str]) -> str:
    """Where the build perhaps is."""
    if any((root / tool).is_file() for tool in needed):
        return f"This is the folder of the tools: name the one above, build:{root.parent}."
    for folder in (root / "build", root.parent / f"{root.name}-build", root.parent):
        if any(all((folder / name / tool).is_file() for tool in needed) for name in _TOOLS):
            return f"There is one in {folder}: write build:{folder}."
    return "Name the folder that CMake has built IREE in (cmake --build BUILD), not the sources."
