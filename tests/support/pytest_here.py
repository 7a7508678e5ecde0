"""`pytest …` of a folder of its own, run to its end in this process: a second pytest inside the one that tests."""

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

from tests.support.command_line import Done

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["run_pytest_here"]

# Of no use here, or the business of the pytest outside: signals, what the collection of garbage finds.
_WITHOUT = ("unraisableexception", "threadexception", "hypothesispytest", "xdist", "timeout", "randomly", "cov")


def run_pytest_here(arguments: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Done:
    """Runs pytest as a user in a folder does. Modules that lie there are forgotten afterwards.

    `arguments`: behind `pytest`.
    """
    out, err = io.StringIO(), io.StringIO()
    # Not rewritten, as outside (conftest.py).
    words = ["--assert=plain", *(word for name in _WITHOUT for word in ("-p", f"no:{name}"))]
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environ, clear=True),
        mock.patch.object(sys, "argv", ["pytest", *arguments]),
        warnings.catch_warnings(),
        _imports_undone(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        # Warnings are errors outside.
        warnings.resetwarnings()
        code = pytest.main([*words, *arguments])
    return Done(int(code), out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _imports_undone(folder: Path) -> Iterator[None]:
    paths, finders, modules = list(sys.path), list(sys.meta_path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = paths
        # pytest's own; those that a library brought stay with it (`six.moves`).
        sys.meta_path[:] = [
            it for it in sys.meta_path if it in finders or not type(it).__module__.startswith("_pytest")
        ]
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]
