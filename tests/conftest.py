"""Shared parts of all tests: a folder for the session, locks for each process, a GPU, servers of each kind, signals."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.artifacts import hashing
from iree_gauntlet.engine.rounds.machine_lock import LOCKS_VARIABLE
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.toolchains.devices import find_device
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.toolchains.toolchain import COMPILE
from iree_gauntlet.upkeep import cache_cleaning
from tests.support.artifact_server import Server, run_server
from tests.support.budgets import register_budgets
from tests.support.emulators import Azurite, Bucket, azurite_server, google_server, s3_server
from tests.support.session_folder import SESSION_FOLDER_VARIABLE
from tests.support.skipped import pytest_terminal_summary  # noqa: F401  pytest finds it here
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.journal_events import Device

# The time limit of a test. It is not in pyproject.toml: without pytest-timeout, the option would be unknown there.
_SECONDS = 600
# Variables of a user with these prefixes must not reach the tests.
_USERS_OWN = ("IREE_GAUNTLET_", "GITHUB_", "GH_", "AWS_", "AZURE_", "GOOGLE_", "HF_")


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads the limit
def pytest_configure(config: pytest.Config) -> None:
    """Give the session a folder and each of its processes its own locks, and restore the handling of Ctrl-C.

    A shell without job control lets its background processes ignore SIGINT, and programs that tests start would
    inherit this.
    """
    for name in [name for name in os.environ if name.startswith(_USERS_OWN)]:
        del os.environ[name]
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    if not worker:
        os.environ[SESSION_FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="iree-gauntlet-tests-")
    # With shared locks, benchmarks of one process would keep all other processes from compiling.
    os.environ[LOCKS_VARIABLE] = str(Path(os.environ[SESSION_FOLDER_VARIABLE]) / f"locks{worker}")
    # Torch's waiting threads must sleep: threads that wait in a loop would slow other tests down.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # Tests read the settings of their projects, not those of the user.
    os.environ["XDG_CONFIG_HOME"] = str(Path(os.environ[SESSION_FOLDER_VARIABLE]) / "config")
    # Tests use no IREE of the user's, neither in the cache nor on PATH, and add none. uv and pip keep their caches.
    home = os.path.expanduser("~")  # noqa: PTH111  Path's raises for a user without one
    caches = Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache")
    if caches.is_absolute():
        os.environ.setdefault("UV_CACHE_DIR", str(caches / "uv"))
        os.environ.setdefault("PIP_CACHE_DIR", str(caches / "pip"))
    own = Path(sys.executable).parent
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    kept = [str(folder) for folder in folders if folder == own or not os.access(folder / COMPILE, os.F_OK)]
    os.environ["PATH"] = os.pathsep.join(kept)
    os.environ["XDG_CACHE_HOME"] = str(Path(os.environ[SESSION_FOLDER_VARIABLE]) / "user-cache")
    register_budgets()
    if config.getoption("timeout", None) is None:
        config.option.timeout = _SECONDS
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the session's folder."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(SESSION_FOLDER_VARIABLE), ignore_errors=True)


@pytest.fixture
def plain_folder() -> Iterator[Path]:
    """A folder whose path needs no quotes in a shell, even if the path of `tmp_path` needs them."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A toy project whose commands end with the test."""
    made = Project(tmp_path / "project")
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A toy project for all tests of a file, which reset it: each module is compiled once.

    The modules are compiled in its own folder, because a module's bytes depend on the path of its program.
    """
    project = Project(tmp_path_factory.mktemp("shared") / "project", cache="flags")
    yield project
    project.close()


@pytest.fixture(scope="session")
def vulkan() -> Device:
    """A Vulkan device, such as Mesa's in software; tests that use it are skipped if there is none."""
    try:
        return find_device(find_installed(), "vulkan")
    except ToolchainError:
        pytest.skip("needs a Vulkan device: apt install mesa-vulkan-drivers brings one in software")


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite_server(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with s3_server(tmp_path_factory.mktemp("s3")) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with google_server(tmp_path_factory.mktemp("google")) as bucket:
        yield bucket


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat every file as written long before it is hashed, so that its hash is remembered."""
    monkeypatch.setattr(hashing, "_CLOCK_TICK_NS", -(10**9))
    monkeypatch.setattr(cache_cleaning, "_SETTLED_SECONDS", -1.0)


@pytest.fixture
def server() -> Iterator[Server]:
    """A web server whose answers the test decides."""
    with run_server() as server:
        yield server


@pytest.fixture
def needs_torch() -> Any:
    import torch  # noqa: PLC0415 - torch may be missing

    return torch
