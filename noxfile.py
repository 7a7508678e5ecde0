"""Sessions for CI: `nox -s suite` runs the gauntlet, `nox -s tests` tests the toolkit; both start from nothing."""

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

_DEFAULT_SUITE = ("--suite", "suites/cpu.toml")
_RELEASES = ("3.5.0", "3.9.0", "3.12.0", "3.13.0")
# The number of cores that this process may use; a container often has fewer than its machine.
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# One process more than cores, since some tests wait.
_ON_ALL_CORES = ("-n", str(_CORES + 1), "--dist", "worksteal")
_RECIPES = "specs/recipes/quick.yml"
_PYTHON_FILES = ("iree_gauntlet", "tests", "tools", "benchmarks", "specs/models", "noxfile.py", "tasks.py")


@nox.session
def suite(session: nox.Session) -> None:
    """Install IREE and the toolkit, run suites/cpu.toml (or `-- --suite FILE …`), say where the reports are."""
    start = time.monotonic()
    session.install("-e", ".[iree]", "pip")
    session.log(f"installed in {time.monotonic() - start:.0f} s")
    session.run("gauntlet", "run", *(session.posargs or _DEFAULT_SUITE))


@nox.session
@nox.parametrize("iree", _RELEASES)
def suite_releases(session: nox.Session, iree: str) -> None:
    """Run suites/cpu.toml (or `-- --suite FILE …`) with a release of IREE, which is installed into the cache."""
    session.install("-e", ".", "pip")
    session.run("gauntlet", "run", "--iree", iree, *(session.posargs or _DEFAULT_SUITE))


@nox.session
def matrix(session: nox.Session) -> None:
    """Run suites/releases.toml with several IREEs and report on all at once.

    `-- 3.12.0 nightly --suite FILE …` names them and what to run; without, 3.5.0, 3.9.0, 3.12.0 and 3.13.0.
    """
    irees = list(itertools.takewhile(lambda word: not word.startswith("-"), session.posargs))
    options = session.posargs[len(irees) :]
    session.install("-e", ".", "pip")
    # A resumed matrix keeps its IREEs, so none are passed.
    releases = irees or ([] if "--resume" in options else _RELEASES)
    selection = () if options else ("--suite", "suites/releases.toml")
    session.run("gauntlet", "matrix", *(word for iree in releases for word in ("--iree", iree)), *selection, *options)


@nox.session
def suite_source(session: nox.Session) -> None:
    """Run suites/cpu.toml (or `-- --suite FILE …`) with IREE from source.

    $IREE_BUILD_DIR names a folder that it was built in, or $IREE_SOURCE_DIR a checkout, which is built: its work tree,
    or with `-- --commit REF …` a commit.
    """
    build, source, words = os.environ.get("IREE_BUILD_DIR"), os.environ.get("IREE_SOURCE_DIR"), [*session.posargs]
    if bool(build) == bool(source):
        session.error(
            "set one of IREE_BUILD_DIR=../iree-build (built already) and IREE_SOURCE_DIR=../iree (a checkout)"
        )
    iree = f"build:{build}" if build else f"source:{source}"
    if words[:1] == ["--commit"] and len(words) > 1:
        if build:
            session.error("--commit is of a checkout: set IREE_SOURCE_DIR in place of IREE_BUILD_DIR")
        iree, words = f"{iree}@{words[1]}", words[2:]
    # A build's Python bindings need onnx and NumPy, unless CMake has recorded a Python for the bindings.
    session.install("-e", ".[source]", "onnx", "pip")
    session.run("gauntlet", "run", "--iree", iree, *(words or _DEFAULT_SUITE))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, with the real compiler and runtime, on all cores; options after `--` go to pytest."""
    _install_test_tools(session)
    session.run("pytest", *_ON_ALL_CORES, *session.posargs)


@nox.session
def tests_vulkan(session: nox.Session) -> None:
    """Run the tests that need a Vulkan device, alone; Mesa's lavapipe is one in software."""
    _install_test_tools(session)
    session.run("pytest", "-m", "vulkan", *session.posargs)


@nox.session
def stress(session: nox.Session) -> None:
    """Run the stress tests: a thousand kills, a thousand examples of properties, gigabytes, 10,000 cases."""
    _install_test_tools(session)
    marks = "stress or (hypothesis and not measure and not models)"
    session.run("pytest", *_ON_ALL_CORES, "-m", marks, "--hypothesis-profile=many", *session.posargs)


@nox.session
def measure(session: nox.Session) -> None:
    """Run the tests of real times: planted slowdowns in real rounds, full sweeps; one by one, on an idle machine."""
    _install_test_tools(session)
    session.run("pytest", "-m", "measure", *session.posargs)


@nox.session
def models(session: nox.Session) -> None:
    """Run all pretrained models, and test the models of specs/models, `bench` and `micro` with torch itself.

    The session `tests` omits them, as torch is large. Its CPU build is a tenth of it: `UV_TORCH_BACKEND=cpu`, or
    without uv `PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu`.
    """
    _install_test_tools(session, "jax", "models", "tflite")
    # The tests of a file stay together, since they share compiled modules.
    session.run("pytest", "-m", "models", "-n", str(_CORES), "--dist", "loadfile", "--timeout=3600", *session.posargs)


@nox.session
def flaky(session: nox.Session) -> None:
    """Run the tests N times (`-- 5`) in random order next to busy loops and a disk load; report varying outcomes.

    Options after N go to pytest: `-- 5 tests/engine`.
    """
    _install_test_tools(session)
    session.install("pytest-randomly")
    session.run("python", "tools/flaky.py", *(session.posargs or ("5",)))


@nox.session
def elsewhere(session: nox.Session) -> None:
    """Run the tests as on machines with other CPUs, as another user (`-- v3 zen -- tests/records`). It needs root."""
    session.install("uv")
    session.run("python", "tools/elsewhere.py", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    """Report the branch coverage of the tests and the stress tests, in all processes that they start."""
    _install_test_tools(session)
    session.install("coverage>=7.10")
    session.run("coverage", "erase")
    marks = "not measure and not models"
    session.run("coverage", "run", "-m", "pytest", *_ON_ALL_CORES, "-m", marks, *session.posargs)
    session.run("coverage", "combine", "-q")
    session.run("coverage", "report", "--skip-covered")


@nox.session
def site(session: nox.Session) -> None:
    """Build the docs as a site into site/ (or `-- FOLDER`), and check its links."""
    session.install("zensical>=0.0.73")
    session.run("python", "tools/site_pages.py", *session.posargs)


@nox.session
def release(session: nox.Session) -> None:
    """Build the wheel and the source archive into dist/, check them, and run a suite from the wheel alone."""
    session.install("twine>=6.1", "uv")
    session.run("python", "tools/release.py", *session.posargs)


@nox.session
def docs_commands(session: nox.Session) -> None:
    """Run the command lines of README and docs (`-- docs/how-to/run.md`) in fresh environments, but for models."""
    session.install("markdown-it-py>=3.0", "uv")
    session.run("python", "tools/docs_commands.py", *session.posargs)


@nox.session
def micro(session: nox.Session) -> None:
    """Measure recipes: specs/recipes/quick.yml, or the options after `--` (`nox -s micro -- --config my.yml`)."""
    session.install("-e", ".[iree,models]", "pip")
    session.run("gauntlet", "micro", *(session.posargs or ("--config", _RECIPES)))


@nox.session
def lint(session: nox.Session) -> None:
    """Check style (ruff) and types (mypy strict), tests included."""
    groups = nox.project.dependency_groups(_load_project(), "lint", "test")
    session.install("-e", ".", "nox", *groups)
    session.run("ruff", "check", *_PYTHON_FILES)
    session.run("ruff", "format", "--check", *_PYTHON_FILES)
    session.run("mypy")


def _install_test_tools(session: nox.Session, *extras: str) -> None:
    # The tests start hundreds of programs: without cached bytecode, each program would compile all modules again.
    session.env["PYTHONDONTWRITEBYTECODE"] = ""
    extra_list = ",".join(("cluster", "code", "iree", "record", *extras))
    session.install("-e", f".[{extra_list}]", "pip", *nox.project.dependency_groups(_load_project(), "test"))


def _load_project() -> dict[str, object]:
    return nox.project.load_toml(Path(__file__).with_name("pyproject.toml"))
