"""The pytest plugin for suites of torch models; it does nothing unless `--test-file-directory` is given.

A checkout of iree-test-suites has a conftest.py next to its tests that defines our options. Two definitions of one
option would end pytest with an error, so that file is left out. Where pytest is given nothing but a folder of model
tests, those of the project's own Python tests are, too: they may import what is not there.
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
_FOLDERS = ("module_directory", "external_file_directory")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Define the options, under the names of iree-test-suites."""
    group = parser.getgroup("iree-gauntlet", "suites of torch models (docs/how-to/run.md)")
    group.addoption(
        "--test-file-directory", metavar="DIR", help="Run the model tests (JSON files) anywhere below this folder."
    )
    group.addoption(
        "--module-directory",
        metavar="DIR",
        help="Folder that module names are relative to (default: that of the tests, or the one above it).",
    )
    group.addoption(
        "--external-file-directory",
        metavar="DIR",
        help="Folder of files without a URL; IREE's tools run there (default: test_suite_files next to the tests).",
    )
    group.addoption(
        "--artifact-directory",
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
        help="Use modules that were compiled before: always done, for command lines that ask for it.",
    )
    group.addoption(
        "--job-summary-path",
        metavar="DIR",
        default="./",
        help="Folder for job_summary.md and job_summary.json (default: the working folder).",
    )
    group.addoption(
        "--verdict",
        choices=("confirm", "strict"),
        default="confirm",
        help="What a broken golden time is: more rounds decide, or a failure at once (default: confirm).",
    )
    group.addoption(
        "--unapplied-goldens",
        choices=("warn", "fail"),
        default="warn",
        help="What a golden is that is not applied, as it is for another release (default: warn).",
    )
    group.addoption(
        "--confirm-seconds",
        type=_parse_seconds,
        default=300.0,
        metavar="SECONDS",
        help="How long one golden time may take to be confirmed (default: 300).",
    )


def _parse_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Leave the toolkit as it is written, and the conftest.py files out that are not for model tests.

    Raises:
        UsageError: a folder does not exist, options do not fit together, or that of the tests' folder is missing.
    """
    # Pytest rewrites every module of a distribution that brings a plugin, in whichever thread imports it first.
    # Commands import some in threads, and CPython 3.11 can fail to parse in two at once ("AST constructor recursion
    # depth"). There is no public way to say that a plugin's assertions are not a test's.
    marked: set[str] = getattr(early_config.pluginmanager.rewrite_hook, "_must_rewrite", set())
    marked -= {name for name in marked if name.partition(".")[0] == "iree_gauntlet"}
    # Before a conftest.py of tests that are not meant can fail.
    _require_options_that_fit(early_config.known_args_namespace)
    if early_config.known_args_namespace.test_file_directory:
        _replace_other_definitions(early_config)
        _look_at_the_model_tests_alone(early_config)


def _require_options_that_fit(options: argparse.Namespace) -> None:
    if options.cache_modules and options.force_recompile:
        raise pytest.UsageError("--cache-modules together with --force-recompile: give one of the two")
    if not options.test_file_directory:
        given = [name for name in (*_FOLDERS, "force_recompile", "cache_modules") if getattr(options, name)]
        if given:
            option = f"--{given[0].replace('_', '-')}"
            raise pytest.UsageError(f"{option} needs --test-file-directory: which tests are meant?")
    for name in ("test_file_directory", *_FOLDERS):
        folder = getattr(options, name)
        if folder and not Path(folder).is_dir():
            raise pytest.UsageError(f"--{name.replace('_', '-')}: {folder} is not a folder")


def pytest_configure(config: pytest.Config) -> None:
    """Load the plugin proper where its options are used."""
    if config.getoption("test_file_directory"):
        # Here, so that every other use of pytest is spared the imports.
        from iree_gauntlet.pytest_plugin.plugin import PLUGIN_NAME, ModelTestPlugin  # noqa: PLC0415

        try:
            plugin = ModelTestPlugin(config)
        except Exception as error:  # noqa: BLE001 - pytest would end with 1, as of a test that failed
            from iree_gauntlet.system.faults import explain_escaped  # noqa: PLC0415 - for that alone

            escaped = explain_escaped(error)
            pytest.exit(str(escaped), returncode=escaped.exit_code)
        config.pluginmanager.register(plugin, PLUGIN_NAME)


def _look_at_the_model_tests_alone(config: pytest.Config) -> None:
    """Has pytest look for conftest.py files around the model tests and the working folder alone."""
    options = config.known_args_namespace
    here = Path(config.invocation_params.dir)
    if not any(path.exists() for path in _list_named_paths(options.file_or_dir, here)):
        # A file, as of a folder pytest would also load those of its folders named `test…`; with it those above.
        own = [str(path) for folder in (here, *here.parents) if (path := folder / "conftest.py").is_file()]
        options.file_or_dir = [options.test_file_directory, *own[:1]]


def _replace_other_definitions(config: pytest.Config) -> None:
    """Keeps pytest from loading every conftest.py that defines our options."""
    options = config.known_args_namespace
    here = Path(config.invocation_params.dir)
    # Those above and below these places that pytest may come to load.
    found: set[Path] = set()
    for place in (here, *_list_named_paths([*options.file_or_dir, options.test_file_directory], here)):
        folder = place if place.is_dir() else place.parent
        found.update(parent / "conftest.py" for parent in (folder, *folder.parents))
        if folder != here:
            found.update(folder.rglob("conftest.py"))
    others = (path for path in sorted({path.absolute() for path in found}) if path.is_file())
    # Pytest looks a conftest.py up by its path, as it came upon it, before it imports it.
    own = {str(path) for other in others if _OPTION in other.read_bytes() for path in (other, other.resolve())}
    for name in own:
        config.pluginmanager.register(ModuleType("conftest"), name=name)


def _list_named_paths(arguments: Iterable[str], here: Path) -> list[Path]:
    return [Path(here, argument.split("::")[0]) for argument in arguments]
