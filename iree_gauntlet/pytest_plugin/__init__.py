"""The pytest plugin for suites of torch models; it does nothing unless `--test-file-directory` is given.

A checkout of iree-test-suites has a conftest.py next to its tests that defines the same options. Pytest ends with an
error if an option is defined twice, so that file is not loaded. If pytest's only argument is a folder of model tests,
the conftest.py files of the project's own Python tests are not loaded either: their imports may fail.
"""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

__all__ = ["pytest_addoption", "pytest_configure", "pytest_load_initial_conftests"]

_OPTION = b"--test-file-directory"
# As in `requests.py`, which is not imported unless tests of models run.
_MAX_RERUNS = 100
_FOLDERS = ("module_directory", "external_file_directory")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Define the options, under the names of iree-test-suites."""
    group = parser.getgroup("iree-gauntlet", "suites of torch models (docs/how-to/run.md)")
    group.addoption(
        "--test-file-directory",
        type=_parse_folder,
        metavar="DIR",
        help="Run the model tests (JSON files) anywhere below this folder.",
    )
    group.addoption(
        "--module-directory",
        type=_parse_folder,
        metavar="DIR",
        help="Folder that module names are relative to (default: that of the tests, or the one above it).",
    )
    group.addoption(
        "--external-file-directory",
        type=_parse_folder,
        metavar="DIR",
        help="Folder of files without a URL; IREE's tools run there (default: test_suite_files next to the tests).",
    )
    group.addoption(
        "--artifact-directory",
        type=_parse_folder,
        metavar="DIR",
        default="artifacts",
        help="Folder of downloads, compiled modules and runs (default: ./artifacts).",
    )
    group.addoption(
        "--force-recompile", action="store_true", help="Compile every module again, once, and compare with the cache."
    )
    group.addoption(
        "--cache-modules",
        action="store_true",
        help="Use modules that were compiled before: always on; accepted for existing command lines.",
    )
    group.addoption(
        "--job-summary-path",
        type=_parse_folder,
        metavar="DIR",
        default="./",
        help="Folder for job_summary.md and job_summary.json (default: the working folder).",
    )
    group.addoption(
        "--verdict",
        choices=("confirm", "strict"),
        default="confirm",
        help="What a broken golden time means: more rounds decide, or it fails at once (default: confirm).",
    )
    group.addoption(
        "--unapplied-goldens",
        choices=("warn", "fail"),
        default="warn",
        help="What it means if a golden is not applied because it is for another release (default: warn).",
    )
    group.addoption(
        "--rerun-failed",
        type=_parse_reruns,
        default=0,
        metavar="N",
        help="How often a step that failed is repeated, in fresh processes; if it passes then, it is flaky.",
    )
    group.addoption(
        "--flaky", choices=("fail", "pass"), default="fail", help="Whether a flaky step fails its test (default: fail)."
    )
    group.addoption(
        "--variant",
        action="append",
        default=[],
        metavar="NAME",
        help="Change of the specs' flags: a variant of gauntlet.toml, or NAME=FLAGS (repeatable).",
    )
    group.addoption(
        "--confirm-seconds",
        type=_parse_seconds,
        default=300.0,
        metavar="SECONDS",
        help="How long it may take to confirm one golden time (default: 300).",
    )


def _parse_folder(text: str) -> str:
    from argparse import ArgumentTypeError  # noqa: PLC0415 - only for a mistake

    if not text:
        raise ArgumentTypeError("it is empty: expected a folder; leave it out for the default")
    return text


def _parse_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


def _parse_reruns(text: str) -> int:
    from argparse import ArgumentTypeError  # noqa: PLC0415 - only for a mistake

    if not text.isdecimal() or int(text) > _MAX_RERUNS:
        raise ArgumentTypeError(f"{text}: expected a number, at most {_MAX_RERUNS}")
    return int(text)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Turn off assertion rewriting for the toolkit, and keep unrelated conftest.py files from being loaded.

    Raises:
        UsageError: a folder does not exist, options contradict each other, or --test-file-directory is missing.
    """
    # Pytest rewrites every module of a plugin's distribution, in the thread that first imports the module. Commands
    # import some modules in threads, and CPython 3.11 can fail to parse in two threads at once ("AST constructor
    # recursion depth"). There is no public way to exclude a plugin's modules from rewriting.
    modules: set[str] = getattr(early_config.pluginmanager.rewrite_hook, "_must_rewrite", set())
    modules -= {name for name in modules if name.partition(".")[0] == "iree_gauntlet"}
    # Check the options first, before a conftest.py of unrelated tests can fail.
    _require_consistent_options(early_config.known_args_namespace)
    if early_config.known_args_namespace.test_file_directory:
        _disable_conflicting_conftests(early_config)
        _restrict_conftest_search(early_config)


def _require_consistent_options(options: argparse.Namespace) -> None:
    if options.cache_modules and options.force_recompile:
        raise pytest.UsageError("--cache-modules together with --force-recompile: give one of the two")
    if not options.test_file_directory:
        names = [name for name in (*_FOLDERS, "force_recompile", "cache_modules") if getattr(options, name)]
        if names:
            option = f"--{names[0].replace('_', '-')}"
            raise pytest.UsageError(f"{option} needs --test-file-directory: which tests are meant?")
    for name in ("test_file_directory", *_FOLDERS):
        folder = getattr(options, name)
        if folder and not Path(folder).is_dir():
            raise pytest.UsageError(f"--{name.replace('_', '-')}: {folder} is not a folder")


def pytest_configure(config: pytest.Config) -> None:
    """Load the main plugin if its options are used."""
    if config.getoption("test_file_directory"):
        # The import is local, so that other uses of pytest do not pay for it.
        from iree_gauntlet.pytest_plugin.plugin import PLUGIN_NAME, ModelTestPlugin  # noqa: PLC0415

        try:
            plugin = ModelTestPlugin(config)
        except Exception as error:  # noqa: BLE001 - pytest would end with 1, as of a test that failed
            from iree_gauntlet.system.faults import make_unexpected_error  # noqa: PLC0415 - for that alone

            fault = make_unexpected_error(error)
            pytest.exit(str(fault), returncode=fault.exit_code)
        config.pluginmanager.register(plugin, PLUGIN_NAME)


def _restrict_conftest_search(config: pytest.Config) -> None:
    """Make pytest look for conftest.py files only around the model tests and the working folder."""
    options = config.known_args_namespace
    cwd = Path(config.invocation_params.dir)
    if not any(path.exists() for path in _list_named_paths(options.file_or_dir, cwd)):
        # Given a file, pytest loads the conftest.py files above it; given its folder, also those in `test…` folders.
        conftests = [str(path) for folder in (cwd, *cwd.parents) if (path := folder / "conftest.py").is_file()]
        options.file_or_dir = [options.test_file_directory, *conftests[:1]]


def _disable_conflicting_conftests(config: pytest.Config) -> None:
    """Keep pytest from loading any conftest.py that defines the plugin's options."""
    options = config.known_args_namespace
    cwd = Path(config.invocation_params.dir)
    # The conftest.py files above and below these paths that pytest may load.
    paths: set[Path] = set()
    for root in (cwd, *_list_named_paths([*options.file_or_dir, options.test_file_directory], cwd)):
        folder = root if root.is_dir() else root.parent
        paths.update(parent / "conftest.py" for parent in (folder, *folder.parents))
        if folder != cwd:
            paths.update(folder.rglob("conftest.py"))
    files = (path for path in sorted({path.absolute() for path in paths}) if path.is_file())
    # Before pytest imports a conftest.py, it looks for a plugin that has the path, as pytest found it, as its name.
    conftests = {str(path) for file in files if _OPTION in file.read_bytes() for path in (file, file.resolve())}
    for name in conftests:
        config.pluginmanager.register(ModuleType("conftest"), name=name)


def _list_named_paths(arguments: Iterable[str], cwd: Path) -> list[Path]:
    return [Path(cwd, argument.split("::")[0]) for argument in arguments]
