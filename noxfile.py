"""CI's door: `nox -s suite` runs the gauntlet, `nox -s tests` tests the toolkit; both start from nothing."""

from __future__ import annotations

import time
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]

_PYTHON_FILES = ("iree_gauntlet", "tests", "tools", "benchmarks", "noxfile.py", "tasks.py")


@nox.session
def suite(session: nox.Session) -> None:
    """Install IREE and the toolkit, run suites/cpu.toml (or `-- --suite FILE …`), say where the reports are."""
    began = time.monotonic()
    session.install("-e", ".[iree]", "pip")
    session.log(f"installed in {time.monotonic() - began:.0f} s")
    session.run("gauntlet", "run", *(session.posargs or ["--suite", "suites/cpu.toml"]))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, with the real compiler and runtime; options after `--` go to pytest."""
    session.install("-e", ".[iree,record]", "pip", *nox.project.dependency_groups(_project(), "test"))
    coverage = ["--cov", "--cov-report=term:skip-covered"] if not session.posargs else []
    session.run("pytest", *coverage, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style (ruff) and types (mypy strict), tests included."""
    groups = nox.project.dependency_groups(_project(), "lint", "test")
    session.install("-e", ".", "nox", *groups)
    session.run("ruff", "check", *_PYTHON_FILES)
    session.run("ruff", "format", "--check", *_PYTHON_FILES)
    session.run("mypy")


def _project() -> dict[str, object]:
    return nox.project.load_toml(Path(__file__).with_name("pyproject.toml"))
