"""Runs a second pytest in this process, inside the pytest that runs the tests, in a directory of its own."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from tests.support.command_line import CommandResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["run_pytest_here"]

# Plugins that are useless here, or only for the outer pytest: signals, errors in garbage collection.
_DISABLED_PLUGINS = (
    "unraisableexception",
    "threadexception",
    "hypothesispytest",
    "xdist",
    "timeout",
    "randomly",
    "cov",
)


def run_pytest_here(arguments: Sequence[str], folder: Path, environ: Mapping[str, str]) -> CommandResult:
    """Run pytest as a user does in a directory. Modules imported from there are removed from `sys.modules`.

    `arguments`: the command line after `pytest`.
    """
    out, err = io.StringIO(), io.StringIO()
    # Asserts are not rewritten, as in the outer pytest (conftest.py).
    options = ["--assert=plain", *(word for name in _DISABLED_PLUGINS for word in ("-p", f"no:{name}"))]
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environ, clear=True),
        mock.patch.object(sys, "argv", ["pytest", *arguments]),
        warnings.catch_warnings(),
        _restore_imports(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        # The outer pytest turns warnings into errors.
        warnings.resetwarnings()
        exit_code = pytest.main([*options, *arguments])
    return CommandResult(int(exit_code), out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _restore_imports(folder: Path) -> Iterator[None]:
    paths, finders, modules = list(sys.path), list(sys.meta_path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = paths
        # Remove only the finders of the inner pytest; finders of imported libraries (`six.moves`) stay.
        sys.meta_path[:] = [
            finder for finder in sys.meta_path if finder in finders or not type(finder).__module__.startswith("_pytest")
        ]
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]
