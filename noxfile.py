"""CI's door: `nox -s suite` runs the gauntlet, `nox -s tests` tests the toolkit; both start from nothing."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "tests"]

_SUITE = ("--suite", "suites/cpu.toml")
_RELEASES = ("3.5.0", "3.9.0", "3.12.0", "3.13.0")
_MODEL_TESTS = (
    *("tests/test_bench_models.py", "tests/test_bench_build.py", "tests/test_bench_torch.py"),
    *("tests/test_bench_against.py", "tests/test_measure_pipeline.py"),
    *("tests/test_micro_build.py", "tests/test_micro_recipes.py", "tests/test_micro_torch.py"),
)
_RECIPES = "specs/recipes/quick.yml"
_PYTHON_FILES = ("iree_gauntlet", "tests", "tools", "benchmarks", "specs/models", "noxfile.py", "tasks.py")


@nox.session
def suite(session: nox.Session) -> None:
    """Install IREE and the toolkit, run suites/cpu.toml (or `-- --suite FILE …`), say where the reports are."""
    began = time.monotonic()
    session.install("-e", ".[iree]", "pip")
    session.log(f"installed in {time.monotonic() - began:.0f} s")
    session.run("gauntlet", "run", *(session.posargs or _SUITE))


@nox.session
@nox.parametrize("iree", _RELEASES)
def suite_releases(session: nox.Session, iree: str) -> None:
    """Run suites/cpu.toml (or `-- --suite FILE …`) with a release of IREE, which is installed into the cache."""
    session.install("-e", ".", "pip")
    session.run("gauntlet", "run", "--iree", iree, *(session.posargs or _SUITE))


@nox.session
def matrix(session: nox.Session) -> None:
    """Run suites/releases.toml with several IREEs and report on all at once.

    `-- 3.12.0 nightly --suite FILE …` names them and what to run; without, 3.5.0, 3.9.0, 3.12.0 and 3.13.0.
    """
    irees = list(itertools.takewhile(lambda word: not word.startswith("-"), session.posargs))
    options = session.posargs[len(irees) :]
    session.install("-e", ".", "pip")
    # A resumed matrix keeps its own.
    named = irees or ([] if "--resume" in options else _RELEASES)
    selected = () if options else ("--suite", "suites/releases.toml")
    session.run("gauntlet", "matrix", *(word for iree in named for word in ("--iree", iree)), *selected, *options)


@nox.session
def suite_source(session: nox.Session) -> None:
    """Run suites/cpu.toml (or `-- --suite FILE …`) with the source build in $IREE_BUILD_DIR."""
    build = os.environ.get("IREE_BUILD_DIR", "")
    if not build:
        session.error("IREE_BUILD_DIR is not set: name the folder that IREE was built in, IREE_BUILD_DIR=../iree-build")
    # onnx and NumPy are for the build's Python bindings, where CMake has noted no Python of their own.
    session.install("-e", ".", "onnx", "pip")
    session.run("gauntlet", "run", "--iree", f"build:{build}", *(session.posargs or _SUITE))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, with the real compiler and runtime; options after `--` go to pytest."""
    session.install("-e", ".[iree,plots,record]", "pip", *nox.project.dependency_groups(_project(), "test"))
    coverage = ["--cov", "--cov-report=term:skip-covered"] if not session.posargs else []
    session.run("pytest", *coverage, *session.posargs)


@nox.session
def models(session: nox.Session) -> None:
    """Test the models of specs/models and `bench` with torch itself; options after `--` go to pytest.

    Not among the tests: torch is large (its CPU build: `PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu`).
    """
    session.install("-e", ".[iree,models,plots,record]", "pip", *nox.project.dependency_groups(_project(), "test"))
    session.run("pytest", *(session.posargs or _MODEL_TESTS))


@nox.session
def micro(session: nox.Session) -> None:
    """Measure recipes: specs/recipes/quick.yml, or what stands after `--` (`nox -s micro -- --config my.yml`)."""
    session.install("-e", ".[iree,models,plots]", "pip")
    session.run("gauntlet", "micro", *(session.posargs or ("--config", _RECIPES)))


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
