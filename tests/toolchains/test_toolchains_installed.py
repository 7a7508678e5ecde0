from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, COMPILE, RUN_MODULE, compute_identity
from tests.support.iree_wheels import find_wheels_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.toolchains.toolchain import Toolchain

_TOOLS = {
    "compiler": ["iree/compiler/_mlir_libs/iree-compile", "iree/compiler/_mlir_libs/libIREECompiler.so"],
    "runtime": ["iree/_runtime_libs/iree-run-module", "iree/_runtime_libs/iree-benchmark-module"],
}
_VERSION_FILE = {"compiler": "iree/compiler/version.py", "runtime": "iree/_runtime_libs/version.py"}


def unpack_wheel(
    site: Path, noun: str, *, release: str = "3.13.0", version: str = "", content: bytes = b"x", record: bool = True
) -> None:
    """What an installer leaves of a wheel of IREE."""
    rows = []
    for name in _TOOLS[noun]:
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(content)}")
    (site / _VERSION_FILE[noun]).write_text(
        f'VERSION = "{version or release}"\nREVISIONS = {{"IREE": "{"a" * 40}"}}\n', encoding="utf-8"
    )
    info = site / f"iree_base_{noun}-{release}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: iree-base-{noun}\nVersion: {release}\n", encoding="utf-8"
    )
    if record:
        (info / "RECORD").write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture
def environment(tmp_path: Path) -> tuple[Path, Path]:
    """An empty virtual environment: its interpreter, and its package folder."""
    site = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n", encoding="utf-8")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    return python, site


@pytest.fixture
def wheels(environment: tuple[Path, Path]) -> tuple[Path, Path]:
    """The same with both wheels."""
    unpack_wheel(environment[1], "compiler")
    unpack_wheel(environment[1], "runtime")
    return environment


def find(environment: tuple[Path, Path]) -> Toolchain:
    return find_wheels_of(environment[0])


def with_version_file(text: str) -> Callable[[Path], object]:
    return lambda site: (site / _VERSION_FILE["compiler"]).write_text(text, encoding="utf-8")


@pytest.mark.iree
def test_the_running_interpreters_wheels_are_found() -> None:
    toolchain = find_installed()
    assert toolchain.compiler.python == sys.executable
    for tool in (COMPILE, RUN_MODULE, BENCHMARK_MODULE):
        path = Path(toolchain.tool(tool))
        assert path.is_file()
        # The native program, not the wrapper script next to the interpreter.
        assert path.read_bytes()[:2] != b"#!"
    assert toolchain.compiler.version.startswith(toolchain.compiler.release)
    assert len(toolchain.compiler.commit) == 40
    assert len(toolchain.compiler.identity) == 64
    assert toolchain.compiler.identity != toolchain.runtime.identity
    assert toolchain.compiler.import_onnx == (sys.executable, "-m", "iree.compiler.tools.import_onnx")
    assert toolchain == find_installed()


@pytest.mark.iree
def test_versions_are_those_that_the_compiler_tells_itself() -> None:
    toolchain = find_installed()
    text = subprocess.run([toolchain.compiler.compile, "--version"], capture_output=True, text=True, check=True).stdout
    assert f"{toolchain.compiler.version} @ {toolchain.compiler.commit}" in text


@pytest.mark.iree
def test_finding_starts_no_process_and_imports_no_iree() -> None:
    script = (
        "import subprocess, os, sys\n"
        "from iree_gauntlet.toolchains.installed import find_installed\n"
        "def refuse(*a, **k): raise AssertionError('a process was started')\n"
        "subprocess.Popen = os.system = os.posix_spawn = os.fork = refuse\n"
        "find_installed()\n"
        "heavy = [m for m in sys.modules if m.split('.')[0] in ('iree', 'numpy', 'onnx', 'pydantic')]\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_journals_record(environment: tuple[Path, Path]) -> None:
    unpack_wheel(environment[1], "compiler", version="3.13.0rc20261016")
    unpack_wheel(environment[1], "runtime")
    toolchain = find(environment)
    assert toolchain.as_dict() == {
        "compiler": "3.13.0rc20261016",
        "compiler_commit": "a" * 40,
        "runtime": "3.13.0",
        "runtime_commit": "a" * 40,
        "identity": toolchain.compiler.identity,
        "source": f"installed: {environment[1]}",
        "runtime_identity": toolchain.runtime.identity,
    }
    assert toolchain.runtime.identity
    assert toolchain.compiler.release == "3.13.0"
    assert not toolchain.compiler.onnx_version


def test_the_identity_is_of_the_content_not_of_the_place(tmp_path: Path) -> None:
    found = []
    for name, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        site = tmp_path / name / "lib" / "python3.11" / "site-packages"
        site.mkdir(parents=True)
        (tmp_path / name / "pyvenv.cfg").touch()
        (tmp_path / name / "bin").mkdir()
        (tmp_path / name / "bin" / "python").touch()
        unpack_wheel(site, "compiler", content=content)
        unpack_wheel(site, "runtime")
        found.append(find_wheels_of(tmp_path / name / "bin" / "python"))
    assert found[0].compiler.identity == found[1].compiler.identity
    assert found[0].compiler.identity != found[2].compiler.identity
    assert found[0].runtime.identity == found[2].runtime.identity


@pytest.mark.parametrize("record", [True, False])
def test_a_library_replaced_by_one_of_another_size_has_another_identity(
    environment: tuple[Path, Path], *, record: bool
) -> None:
    unpack_wheel(environment[1], "compiler", record=record)
    unpack_wheel(environment[1], "runtime")
    before = find(environment).compiler.identity
    (environment[1] / "iree/compiler/_mlir_libs/libIREECompiler.so").write_bytes(b"my own build")
    assert find(environment).compiler.identity != before


@pytest.mark.parametrize("missing", ["compiler", "runtime"])
def test_a_missing_wheel_is_named_with_the_command_that_installs_it(
    environment: tuple[Path, Path], missing: str
) -> None:
    unpack_wheel(environment[1], "runtime" if missing == "compiler" else "compiler")
    with pytest.raises(ToolchainError, match=f"no IREE {missing} in {environment[0]}") as raised:
        find(environment)
    assert f"{environment[0]} -m pip install iree-base-{missing}" in raised.value.hint


def test_both_missing_is_one_error(environment: tuple[Path, Path]) -> None:
    with pytest.raises(ToolchainError, match=r"no IREE compiler .* no IREE runtime") as raised:
        find(environment)
    assert "iree-base-compiler[onnx]' iree-base-runtime" in raised.value.hint


@pytest.mark.parametrize(
    ("harm", "says", "hint"),
    [
        (lambda site: (site / _TOOLS["runtime"][0]).chmod(0o644), "iree-run-module .* is not executable", "chmod +x"),
        (
            lambda site: (site / _TOOLS["compiler"][0]).unlink(),
            *("iree-compile is missing", "--force-reinstall --no-deps iree-base-compiler==3.13.0"),
        ),
        (
            lambda site: shutil.rmtree(site / "iree_base_compiler-3.13.0.dist-info"),
            "was not installed from a wheel",
            "",
        ),
        (with_version_file("VERSION = "), "cannot be read", ""),
        (with_version_file("REVISIONS = {}\n"), "has no VERSION", ""),
        (with_version_file("VERSION = f()\n"), "cannot be read", ""),
    ],
)
def test_a_damaged_wheel(wheels: tuple[Path, Path], harm: Callable[[Path], object], says: str, hint: str) -> None:
    harm(wheels[1])
    with pytest.raises(ToolchainError, match=says) as raised:
        find(wheels)
    assert hint in raised.value.hint


def test_an_unknown_commit_is_empty(wheels: tuple[Path, Path]) -> None:
    with_version_file('VERSION = "3.13.0"\n')(wheels[1])
    assert not find(wheels).compiler.commit


def test_a_python_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    with pytest.raises(ToolchainError, match="not belong to a virtual environment"):
        find_wheels_of(tmp_path / "bin" / "python")


@given(st.dictionaries(st.text(), st.text(), min_size=1), st.data())
def test_an_identity_depends_on_every_name_and_value_and_on_no_order(
    ingredients: dict[str, str], data: st.DataObject
) -> None:
    items = list(ingredients.items())
    assert compute_identity(items) == compute_identity(data.draw(st.permutations(items)))
    name = data.draw(st.sampled_from(sorted(ingredients)))
    assert compute_identity(items) != compute_identity({**ingredients, name: ingredients[name] + "x"}.items())
