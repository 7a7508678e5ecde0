"""Rights that a test gives up, or needs: of root and of ordinary users, who both run the tests."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec

import pytest

from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["enlarge_disk", "full_disk", "may_mount", "mounting", "permissions_respected", "read_only"]

_CAPABILITY_VERSION = 0x20080522
# capabilities(7): those by which root passes over the permissions of files.
_DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER = 1, 2, 3
_OVERRIDING = 1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH | 1 << _FOWNER
_INSIDE = "TESTS_MAY_MOUNT"
_MOUNTS = ("unshare", "--mount", "--propagation", "private")
_AS_OWN_ROOT = (*_MOUNTS, "--user", "--map-root-user")

_Arguments = ParamSpec("_Arguments")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def permissions_respected() -> Iterator[None]:
    """Have the permissions of files hold for this thread, also where it is root's. Not for what it starts meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    before, now = _capabilities(), _capabilities()
    now[0].effective &= ~_OVERRIDING
    _set_capabilities(now)
    try:
        yield
    finally:
        _set_capabilities(before)


def _capabilities() -> ctypes.Array[_Sets]:
    sets = (_Sets * 2)()
    _check(ctypes.CDLL(None, use_errno=True).capget(ctypes.byref(_Header(_CAPABILITY_VERSION, 0)), sets))
    return sets


def _set_capabilities(sets: ctypes.Array[_Sets]) -> None:
    _check(ctypes.CDLL(None, use_errno=True).capset(ctypes.byref(_Header(_CAPABILITY_VERSION, 0)), sets))


def _check(answer: int) -> None:
    if answer != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mounting(test: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """A test that mounts. Who may not is root in a namespace of their own: another pytest runs the test there."""

    @functools.wraps(test)
    def wrapped(*words: _Arguments.args, **options: _Arguments.kwargs) -> None:
        if may_mount():
            test(*words, **options)
            return
        denied = _denied(_AS_OWN_ROOT)
        if denied:
            pytest.skip(f"needs the right to mount, as root or in a user namespace: {denied}")
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        with tempfile.TemporaryDirectory() as folder:
            # Pytest's own folder is named after the user, who is root there, and another here.
            wanted = ("-q", "-p", "no:cacheprovider", "-n", "0", f"--basetemp={folder}/made", name)
            done = subprocess.run(
                [*_AS_OWN_ROOT, sys.executable, "-m", "pytest", *wanted],
                cwd=ROOT,
                env=environment | {_INSIDE: "yes"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        assert done.returncode == 0, done.stdout
        assert "1 passed" in done.stdout, done.stdout

    return wrapped


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder that nobody may write to, of a test that is `mounting`."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def full_disk(folder: Path, size: str) -> Iterator[None]:
    """A disk of that size, such as `64k`, in a folder, of a test that is `mounting`."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def enlarge_disk(folder: Path, size: str) -> None:
    """Gives a `full_disk` another size."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"remount,size={size}", "none", folder], check=True)


def may_mount() -> bool:
    """Whether this process may mount; a fixture of a test that is `mounting` has nothing to do where it may not."""
    return bool(os.environ.get(_INSIDE)) or not _denied(_MOUNTS)


@functools.cache
def _denied(words: tuple[str, ...]) -> str:
    """Why a namespace cannot be made; empty where it can."""
    try:
        done = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no unshare (util-linux)"
    return (done.stderr.strip() or "unshare failed") if done.returncode else ""
