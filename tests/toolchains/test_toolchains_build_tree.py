from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.requests import ToolchainRequest
from iree_gauntlet.toolchains import find
from iree_gauntlet.toolchains.build_tree import BuildTree, find_built_compiler, find_built_runtime
from iree_gauntlet.toolchains.choice import parse_choice
from iree_gauntlet.toolchains.find import ToolchainLocations, find_requested_toolchain, find_toolchain
from iree_gauntlet.toolchains.installed import find_installed, find_wheels_on
from tests.support.iree_source import make_toolchain_place
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from iree_gauntlet.toolchains.toolchain import Toolchain

_VERSION = """#!/bin/sh
echo 'IREE (https://iree.dev):'
echo '  IREE compiler version 3.14.0.dev @ 0123456789abcdef0123456789abcdef01234567'
"""
_NOTED = 'VERSION = "3.14.0.dev"\nREVISIONS = {"IREE": "0123456789ab"}\n'


def sketch(root: Path, tools: str = "tools") -> Path:
    """The outline of a build: scripts for tools, text for libraries."""
    for name in ("iree-compile", "iree-lld", "iree-opt", "iree-run-module", "iree-benchmark-module"):
        path = root / tools / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_VERSION)
        path.chmod(0o755)
    (root / "lib").mkdir()
    (root / "lib" / "libIREECompiler.so.3").write_text("code")
    (root / "lib" / "libIREECompiler.so").symlink_to("libIREECompiler.so.3")
    return root


def lay_out(root: Path, *, like: Path | None = None) -> Path:
    """A build tree of the installed wheels' own files; one like another shares its library, and has a byte more."""
    found = find_installed()
    tools, libraries = root / "tools", root / "lib"
    tools.mkdir(parents=True)
    libraries.mkdir()
    compiler = Path(found.compiler.compile).parent
    # As files, not symbolic links: the tools look for each other next to themselves.
    for name in ("iree-compile", "iree-lld", "iree-link", "iree-opt"):
        _link_or_copy(compiler / name, tools / name)
    for tool in (found.runtime.run_module, found.runtime.benchmark_module):
        _link_or_copy(Path(tool), tools / Path(tool).name)
    (tools / "iree_platform_libs").symlink_to(compiler / "iree_platform_libs")
    # One, but on a machine that stands for another (tools/elsewhere.py), where it loads a second one.
    for library in compiler.glob("libIREECompile*.so"):
        if like is None:
            _link_or_copy(library, libraries / library.name)
        else:
            # By its own path it is hashed once.
            (libraries / library.name).symlink_to(like / "lib" / library.name)
        (tools / library.name).symlink_to(Path("..") / "lib" / library.name)
    if like is not None:
        (tools / "iree-compile").unlink()
        shutil.copy2(compiler / "iree-compile", tools / "iree-compile")
        with (tools / "iree-compile").open("ab") as file:
            file.write(b"\n")
    return root


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or another user's file
        shutil.copy2(source, target)


def link_bindings(root: Path) -> None:
    """The compiler's Python bindings where a build has them."""
    package = Path(find_installed().compiler.compile).parents[1]
    bindings = root / "compiler" / "bindings" / "python" / "iree"
    bindings.mkdir(parents=True)
    # Links to files in folders of their own: Python must not find its way to the wheel.
    shutil.copytree(package, bindings / "compiler", copy_function=os.symlink)


def place_of(folder: Path, search_path: str = "") -> ToolchainLocations:
    return make_toolchain_place(folder, offline=True, search_path=search_path)


@pytest.mark.parametrize("tools", ["tools", "iree/tools", "bin"])
def test_tools_are_found_in_every_layout(tmp_path: Path, tools: str) -> None:
    root = sketch(tmp_path / "build", tools)
    choice = parse_choice(f"build:{root}")
    found = find_toolchain(choice, choice, place_of(tmp_path))
    assert found.source == f"build: {root}"
    assert found.compiler.compile == str(root / tools / "iree-compile")
    assert found.runtime.run_module == str(root / tools / "iree-run-module")
    assert found.compiler.ir_tool == str(root / tools / "iree-opt")
    assert found.compiler.version == found.runtime.version == "3.14.0.dev"
    assert found.compiler.commit.startswith("0123456789abcdef")
    assert (found.compiler.python, found.compiler.import_onnx, found.compiler.onnx_version) == ("", (), "")


@pytest.mark.parametrize("noted", ["runtime/bindings/python/iree/_runtime_libs", "bindings/python/iree/runtime"])
def test_a_build_of_the_runtime_alone(tmp_path: Path, noted: str) -> None:
    root = sketch(tmp_path / "build")
    (root / "tools" / "iree-compile").unlink()
    tree = BuildTree.find(root, ("iree-run-module", "iree-benchmark-module"))
    assert find_built_runtime(tree, hash_file).version == "unknown"
    (root / noted).mkdir(parents=True)
    (root / noted / "version.py").write_text(_NOTED)
    assert find_built_runtime(tree, hash_file).version == "3.14.0.dev"
    assert find_built_runtime(tree, hash_file).commit == "0123456789ab"
    with pytest.raises(ToolchainError, match="no iree-compile in the build folder"):
        BuildTree.find(root, ("iree-compile",))


def test_the_content_makes_the_identity(tmp_path: Path) -> None:
    def identity(name: str, **changes: str) -> str:
        root = sketch(tmp_path / name)
        for file, text in changes.items():
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return find_built_compiler(BuildTree.find(root, ("iree-compile",)), hash_file, tmp_path / "bindings").identity

    same = identity("a")
    assert identity("b") == same
    assert identity("c", **{"lib/libIREECompiler.so.3": "cod3"}) != same
    assert identity("d", **{"tools/iree-lld": "another linker"}) != same
    assert identity("e", **{"lib/iree_platform_libs/rocm/ocml.bc": "bitcode"}) != same
    # Libraries of others lie in an install prefix; those of a build tree are all its own.
    assert identity("f", **{"lib/libother.so": "x"}) == same
    assert identity("g", **{"lib/libother.so": "x", "CMakeCache.txt": ""}) != same


def test_a_build_that_is_not_there_or_elsewhere(tmp_path: Path) -> None:
    def error(folder: Path) -> ToolchainError:
        with pytest.raises(ToolchainError) as raised:
            BuildTree.find(folder, ("iree-compile",))
        return raised.value

    root = sketch(tmp_path / "iree" / "build")
    assert error(tmp_path / "none").message == f"build:{tmp_path / 'none'} is not a folder"
    assert f"write build:{root}." in error(tmp_path / "iree").hint
    assert f"name its parent, build:{root}." in error(root / "tools").hint
    (tmp_path / "empty").mkdir()
    assert "not the sources" in error(tmp_path / "empty").hint
    (root / "tools" / "iree-compile").write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    with pytest.raises(ToolchainError, match=r"did not report its version \(exit code 1\): broken"):
        find_built_compiler(BuildTree.find(root, ("iree-compile",)), hash_file, tmp_path)
    (root / "tools" / "iree-compile").chmod(0o644)
    with pytest.raises(ToolchainError, match="is not executable"):
        find_built_compiler(BuildTree.find(root, ("iree-compile",)), hash_file, tmp_path)


def test_tools_on_the_path(tmp_path: Path) -> None:
    root = sketch(tmp_path / "build")
    other = sketch(tmp_path / "other")
    choice = parse_choice("path")
    found = find_toolchain(choice, choice, place_of(tmp_path, f"{tmp_path}:{root / 'tools'}:{other / 'tools'}"))
    assert found.compiler.compile == str(root / "tools" / "iree-compile")
    assert found.source == f"path: {root / 'tools'}"
    with pytest.raises(ToolchainError, match="no iree-compile on the PATH: it is empty"):
        find_toolchain(choice, choice, place_of(tmp_path))
    (root / "tools" / "iree-run-module").unlink()
    with pytest.raises(ToolchainError, match="come from several folders"):
        find_toolchain(choice, choice, place_of(tmp_path, f"{root / 'tools'}:{other / 'tools'}"))


@pytest.mark.iree
def test_the_scripts_of_a_wheel_on_the_path_mean_the_wheel(tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent
    if not (scripts / "iree-compile").exists() or not (scripts.parent / "pyvenv.cfg").exists():
        pytest.skip("IREE is not installed in a virtual environment")
    choice = parse_choice("path")
    found = find_toolchain(choice, choice, place_of(tmp_path, str(scripts)))
    assert found.compiler.identity == find_installed().compiler.identity
    assert found.compiler.compile == find_installed().compiler.compile


@pytest.mark.iree
def test_compiler_and_runtime_from_two_places(tmp_path: Path) -> None:
    root = sketch(tmp_path / "build")
    found = find_toolchain(parse_choice("installed"), parse_choice(f"build:{root}"), place_of(tmp_path))
    here = find_installed()
    assert found.compiler.compile == here.compiler.compile
    assert found.runtime.run_module == str(root / "tools" / "iree-run-module")
    assert found.source == f"compiler {here.source}; runtime build: {root}"
    assert (found.compiler.identity, found.runtime.identity != here.runtime.identity) == (here.compiler.identity, True)


@pytest.mark.iree
def test_two_builds_of_one_version_never_share_modules(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    one = lay_out(tmp_path / "one")
    other = lay_out(tmp_path / "other", like=one)

    def compiles(root: Path) -> str:
        done = project.gauntlet("compile", "--model", "toy", "--iree", f"build:{root}")
        assert done.code == 0, done.text
        return next(line for line in done.out.splitlines() if line.startswith("compiles: "))

    assert compiles(one).startswith("compiles: 0 from cache, 1 made")
    assert compiles(other).startswith("compiles: 0 from cache, 1 made")
    assert compiles(one).startswith("compiles: 1 from cache, 0 made")
    toolchain = project.journal.run.toolchain
    assert toolchain.source == f"build: {one}"
    assert toolchain.compiler == find_installed().compiler.version
    # With Python bindings in the build, they are what imports ONNX programs.
    link_bindings(one)
    choice = parse_choice(f"build:{one}")
    found = find_toolchain(choice, choice, replace(place_of(tmp_path), hash_of=lambda path: path.name))
    assert found.compiler.onnx_version
    code = "import iree.compiler as c, onnx; print(c.__file__ or list(c.__path__)[0])"
    done = subprocess.run([found.compiler.python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(one / "compiler" / "bindings" / "python"))


def test_bindings_on_the_pythonpath_belong_to_the_tools_on_the_path(tmp_path: Path) -> None:
    root = sketch(tmp_path / "build")
    (tmp_path / "bindings" / "iree" / "compiler").mkdir(parents=True)
    paths = f"{tmp_path / 'none'}{os.pathsep}{os.pathsep}{tmp_path / 'bindings'}"
    place = replace(place_of(tmp_path, str(root / "tools")), pythonpath=paths)
    found = find_requested_toolchain(ToolchainRequest(iree="path"), {}, place)
    python = Path(found.compiler.python)
    pth = next(python.parent.parent.glob("lib/python3.*/site-packages/iree-build.pth"))
    assert pth.read_text().splitlines()[0] == str(tmp_path / "bindings")
    # One that has lost its Python is made again, as a whole.
    python.unlink()
    (python.parent.parent / "left").touch()
    assert find_requested_toolchain(ToolchainRequest(iree="path"), {}, place).compiler.python == str(python)
    assert not (python.parent.parent / "left").exists()
    assert os.access(python, os.X_OK)


@pytest.mark.iree
def test_of_several_irees_it_is_said_which_was_chosen_and_why(tmp_path: Path) -> None:
    tools = sketch(tmp_path / "build") / "tools"
    place, wheels = place_of(tmp_path, str(tools)), find_installed().source

    def why(environ: dict[str, str], *, prefer_path: bool = False, **options: str) -> tuple[str, str]:
        found = find_requested_toolchain(ToolchainRequest(**options), environ, place, prefer_path=prefer_path)
        return found.source, found.selection_reason

    other = f"{tools / 'iree-compile'}, which is on the PATH, is used with --iree path or IREE_GAUNTLET_IREE=path"
    assert why({}) == (wheels, f"IREE is {wheels}; {other}")
    shell = "since its tools are on the PATH; IREE_GAUNTLET_IREE=installed uses this Python's"
    assert why({}, prefer_path=True) == (f"path: {tools}", f"IREE is path: {tools}, {shell}")
    variable = {"IREE_GAUNTLET_IREE": "installed"}
    for prefer_path in (False, True):
        said = f"IREE is {wheels}, set by $IREE_GAUNTLET_IREE: installed"
        assert why(variable, prefer_path=prefer_path) == (wheels, said)
    assert why(variable, iree="path") == (f"path: {tools}", ""), "an option says it"
    # Where a shell finds only some, it is no IREE.
    (tools / "iree-benchmark-module").unlink()
    assert why({}, prefer_path=True) == (wheels, f"IREE is {wheels}; {other}")


def test_without_wheels_the_tools_on_the_path_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Toolchain:
        raise ToolchainError("no IREE compiler here", "install both")

    monkeypatch.setattr(find, "find_installed", missing)
    tools = sketch(tmp_path / "build") / "tools"
    with pytest.raises(ToolchainError) as raised:
        find_requested_toolchain(ToolchainRequest(), {}, place_of(tmp_path, str(tools)))
    use = f"Or use {tools / 'iree-compile'}, which is on the PATH: --iree path, or export IREE_GAUNTLET_IREE=path."
    assert str(raised.value) == f"no IREE compiler here\n  install both\n  {use}"
    with pytest.raises(ToolchainError) as raised:
        find_requested_toolchain(ToolchainRequest(), {}, place_of(tmp_path))
    assert str(raised.value) == "no IREE compiler here\n  install both"


def test_bindings_of_a_build_that_are_imported_are_no_wheel_and_the_way_on_is_named(tmp_path: Path) -> None:
    (tmp_path / "iree" / "compiler").mkdir(parents=True)
    (tmp_path / "iree" / "compiler" / "version.py").write_text('VERSION = "9"\n')
    with pytest.raises(ToolchainError) as raised:
        find_wheels_on([str(tmp_path)], "python")
    assert "was not installed from a wheel" in raised.value.message
    assert raised.value.hint.endswith("or by its tools on the PATH, --iree path (IREE_GAUNTLET_IREE=path)")
