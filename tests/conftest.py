"""What all tests share: a folder of the session, locks of each process, a GPU, servers of each kind, and signals."""

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

# How long one test may take. In pyproject.toml it would be an unknown option to who runs model tests with pytest alone.
_SECONDS = 600
# What a user has set must not reach the tests.
_USERS_OWN = ("IREE_GAUNTLET_", "GITHUB_", "GH_", "AWS_", "AZURE_", "GOOGLE_", "HF_")


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout looks
def pytest_configure(config: pytest.Config) -> None:
    """Give the processes of this session a folder, each of them locks of its own, and Ctrl-C back.

    A shell without job control starts what runs in its background with SIGINT ignored, and so would be the programs
    that tests start.
    """
    for name in [name for name in os.environ if name.startswith(_USERS_OWN)]:
        del os.environ[name]
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    if not worker:
        os.environ[SESSION_FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="iree-gauntlet-tests-")
    # Benchmarks of one process would else keep all others from compiling.
    os.environ[LOCKS_VARIABLE] = str(Path(os.environ[SESSION_FOLDER_VARIABLE]) / f"locks{worker}")
    # Of torch, next to other tests: threads that wait in a loop would take what these need.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # No settings of the user's; those of a test's project are read.
    os.environ["XDG_CONFIG_HOME"] = str(Path(os.environ[SESSION_FOLDER_VARIABLE]) / "config")
    # No IREEs of the user's, and none for them: neither in their cache nor on their PATH. What others keep there stays.
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
    """A folder whose path a shell leaves alone, whatever that of `tmp_path` has."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A toy project whose commands end with the test."""
    made = Project(tmp_path / "project")
    yield made
    made.close()


@pytest.fixture(scope="session")
def vulkan() -> Device:
    """A Vulkan device, Mesa's in software at least; tests that ask for it are skipped where there is none."""
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
    """Every file is taken as written long before it is hashed, so that its hash is remembered."""
    monkeypatch.setattr(hashing, "_CLOCK_TICK_NS", -(10**9))
    monkeypatch.setattr(cache_cleaning, "_SETTLED_SECONDS", -1.0)


@pytest.fixture
def server() -> Iterator[Server]:
    """A web server whose answers the test decides."""
    with run_server() as server:
        yield server


@pytest.fixture
def needs_torch() -> Any:
    import torch  # noqa: PLC0415 - not for those who have none

    return torch
