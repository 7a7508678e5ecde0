"""Rights that a test drops or needs, both for root and for ordinary users."""

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

__all__ = [
    "can_mount",
    "enforce_permissions",
    "mount_read_only",
    "mount_small_disk",
    "resize_disk",
    "with_mount_rights",
]

_CAPABILITY_VERSION = 0x20080522
# Root needs these capabilities(7) to ignore the permissions of files.
_DAC_OVERRIDE, _DAC_READ_SEARCH, _FOWNER = 1, 2, 3
_OVERRIDE_MASK = 1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH | 1 << _FOWNER
_NAMESPACE_VARIABLE = "TESTS_MAY_MOUNT"
_MOUNTS = ("unshare", "--mount", "--propagation", "private")
_AS_NAMESPACE_ROOT = (*_MOUNTS, "--user", "--map-root-user")

_Arguments = ParamSpec("_Arguments")


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def enforce_permissions() -> Iterator[None]:
    """Enforce file permissions on this thread, even if it is root's; its child processes are not affected."""
    if os.geteuid() != 0:
        yield
        return
    original_sets, reduced_sets = _read_capabilities(), _read_capabilities()
    reduced_sets[0].effective &= ~_OVERRIDE_MASK
    _set_capabilities(reduced_sets)
    try:
        yield
    finally:
        _set_capabilities(original_sets)


def _read_capabilities() -> ctypes.Array[_Sets]:
    sets = (_Sets * 2)()
    _check_errno(ctypes.CDLL(None, use_errno=True).capget(ctypes.byref(_Header(_CAPABILITY_VERSION, 0)), sets))
    return sets


def _set_capabilities(sets: ctypes.Array[_Sets]) -> None:
    _check_errno(ctypes.CDLL(None, use_errno=True).capset(ctypes.byref(_Header(_CAPABILITY_VERSION, 0)), sets))


def _check_errno(return_code: int) -> None:
    if return_code != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def with_mount_rights(test: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
    """Decorate a test that mounts; without mount rights, another pytest runs it as root of a user namespace."""

    @functools.wraps(test)
    def wrapped(*words: _Arguments.args, **options: _Arguments.kwargs) -> None:
        if can_mount():
            test(*words, **options)
            return
        denial = _find_denial(_AS_NAMESPACE_ROOT)
        if denial:
            pytest.skip(f"needs the right to mount, as root or in a user namespace: {denial}")
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        with tempfile.TemporaryDirectory() as folder:
            # Pytest's default directory contains the user's name, and inside the namespace this user is root.
            pytest_options = ("-q", "-p", "no:cacheprovider", "-n", "0", f"--basetemp={folder}/made", name)
            result = subprocess.run(
                [*_AS_NAMESPACE_ROOT, sys.executable, "-m", "pytest", *pytest_options],
                cwd=ROOT,
                # The home of root may be unreadable: the namespace's root is this user.
                env=environment | {_NAMESPACE_VARIABLE: "yes", "HOME": folder},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
        assert result.returncode == 0, result.stdout
        assert "1 passed" in result.stdout, result.stdout

    return wrapped


@contextmanager
def mount_read_only(folder: Path) -> Iterator[None]:
    """Make a directory read-only for everybody, in a test `with_mount_rights`."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def mount_small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a disk of a size, such as `64k`, on a directory, in a test `with_mount_rights`."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def resize_disk(folder: Path, size: str) -> None:
    """Give a disk of `mount_small_disk` another size."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"remount,size={size}", "none", folder], check=True)


def can_mount() -> bool:
    """Return whether this process may mount; fixtures of tests `with_mount_rights` do nothing if it may not."""
    return bool(os.environ.get(_NAMESPACE_VARIABLE)) or not _find_denial(_MOUNTS)


@functools.cache
def _find_denial(command: tuple[str, ...]) -> str:
    """Return the reason why no namespace can be made; empty if one can."""
    try:
        result = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no unshare (util-linux)"
    return (result.stderr.strip() or "unshare failed") if result.returncode else ""
