"""The design's rules about who may know whom, checked on the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = ROOT / "iree_gauntlet"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in MODULES]

# What everything may import.
COMMON = {"cases", "configuration", "errors", "targets", "atomic", "journal_format", "process_group", "__version__"}
ALLOWED: dict[str, set[str]] = {
    "atomic": set(),
    "cases": {"targets"},
    "configuration": set(),
    "errors": set(),
    "journal_format": {"errors"},
    "process_group": set(),
    "targets": set(),
    "worker": set(),
    "artifacts": COMMON,
    "dialects": COMMON,
    "measuring": COMMON,
    "toolchains": COMMON,
    "reporting": COMMON,
    "running": COMMON | {"artifacts", "dialects", "measuring", "toolchains"},
    # `bench/measure_pipeline.py` runs beside the worker, in the same Python.
    "bench": COMMON | {"artifacts", "dialects", "measuring", "toolchains", "running", "reporting", "worker"},
    "micro": COMMON | {"bench", "artifacts", "measuring", "toolchains", "running", "reporting", "worker"},
    # A door like the tasks, and beside them: it sets up what they set up.
    "pytest_plugin": COMMON | {"dialects", "measuring", "running", "reporting", "tasks"},
    "tasks": COMMON
    | {"bench", "micro", "artifacts", "dialects", "measuring", "toolchains", "running", "reporting", "worker"},
}
HEAVY = ("numpy", "pydantic", "rich", "pooch", "requests", "psutil", "junit_xml", "ml_dtypes", "matplotlib")


def imports_of(path: Path) -> list[str]:
    """Every module that a file imports, also inside functions and for types alone."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_imports_follow_the_arrows(path: Path) -> None:
    part = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if part == "__init__":
        assert not imports_of(path) or all(not name.startswith("iree_gauntlet") for name in imports_of(path))
        return
    own = [name.split(".") for name in imports_of(path) if name.split(".")[0] == "iree_gauntlet"]
    used = {words[1] for words in own} - {part}
    if path.name == "__main__.py":
        # A door: what it opens may be a task.
        used -= {"tasks"}
    assert used <= ALLOWED[part], f"{part} may not import {sorted(used - ALLOWED[part])}"


def test_every_part_has_its_rule() -> None:
    parts = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in MODULES} - {"__init__"}
    assert parts == set(ALLOWED)


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("worker/*.py")), ids=lambda path: path.stem)
def test_the_worker_needs_nothing_but_its_own_python(path: Path) -> None:
    # Run as a script, a worker finds its siblings in its own package, wherever that lies (see measure_module.py).
    used = {name for name in imports_of(path) if not name.startswith("iree_gauntlet.worker.")}
    outside = {name.split(".")[0] for name in used} - set(sys.stdlib_module_names)
    # onnx brings google.protobuf.
    assert outside <= {"numpy", "onnx", "google", "onnxruntime", "iree"}


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_modules_say_what_they_are_for_and_what_they_offer(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "no docstring"
    public = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    listed: set[str] | None = None
    for node in tree.body:
        if isinstance(node, ast.Assign) and [target.id for target in node.targets if isinstance(target, ast.Name)] == [
            "__all__"
        ]:
            listed = set(ast.literal_eval(node.value))
    if path.name == "__init__.py":
        return
    assert listed is not None, "no __all__"
    defined = public | {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    assert listed <= defined, f"__all__ lists {sorted(listed - defined)}, which is not defined here"


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_modules_have_one_job_and_are_not_large(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 450


def imported_by(statement: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_the_command_line_starts_without_heavy_imports() -> None:
    loaded = imported_by("import iree_gauntlet.tasks.program")
    assert "iree_gauntlet.tasks.workspace" in loaded
    assert not loaded & set(HEAVY)


def test_listing_brings_pydantic_alone() -> None:
    statement = "import iree_gauntlet.tasks.inspect, iree_gauntlet.dialects.load, iree_gauntlet.dialects.suite"
    assert imported_by(statement) & set(HEAVY) == {"pydantic"}


def test_reading_specs_and_planning_touch_neither_network_nor_processes() -> None:
    for path in (*PACKAGE.glob("dialects/*.py"), PACKAGE / "running/plan.py", PACKAGE / "running/commands.py"):
        used = {name.split(".")[0] for name in imports_of(path)}
        assert not used & {"subprocess", "socket", "requests", "urllib3", "time", "datetime", "random"}, path
