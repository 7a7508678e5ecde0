"""Which conftest.py files are loaded where model tests run: those of the tests, and nobody else's options.

A checkout of iree-test-suites has one next to its tests that defines our options. Two definitions of one option would
end pytest with an error, so that file is left out. Where pytest is given nothing but a folder of model tests, those of
the project's own Python tests are, too: they may import what is not there.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest


_OPTION = b"--test-file-directory"


def look_at_the_model_tests_alone(config: pytest.Config) -> None:
    """Has pytest look for conftest.py files around the model tests and the working folder, not where its own tests are.

    Args:
        config: before the first conftest.py is loaded; nothing is changed where it names files or folders that exist.
    """
    options = config.known_args_namespace
    here = Path(config.invocation_params.dir)
    if not any(path.exists() for path in _named(options.file_or_dir, here)):
        # A file, as of a folder pytest would also load those of its folders named `test…`; with it those above.
        own = [str(path) for folder in (here, *here.parents) if (path := folder / "conftest.py").is_file()]
        options.file_or_dir = [options.test_file_directory, *own[:1]]


def stand_in_for_other_definitions(config: pytest.Config) -> None:
    """Keeps pytest from loading every conftest.py that defines our options.

    Args:
        config: before the first conftest.py is loaded.
    """
    options = config.known_args_namespace
    here = Path(config.invocation_params.dir)
    named = _named([*options.file_or_dir, options.test_file_directory], here)
    found = _conftests(here, [here, *named])
    others = [path for path in found if _OPTION in path.read_bytes()]
    # Pytest looks a conftest.py up by its path, as it came upon it, before it imports it.
    for name in {str(path) for other in others for path in (other, other.resolve())}:
        config.pluginmanager.register(ModuleType("conftest"), name=name)


def _named(arguments: Iterable[str], here: Path) -> list[Path]:
    return [Path(here, argument.split("::")[0]) for argument in arguments]


def _conftests(here: Path, places: Iterable[Path]) -> Iterator[Path]:
    """Those above and below some places that pytest may come to load."""
    found: set[Path] = set()
    for place in places:
        folder = place if place.is_dir() else place.parent
        found.update(parent / "conftest.py" for parent in (folder, *folder.parents))
        if folder != here:
            found.update(folder.rglob("conftest.py"))
    yield from (path for path in sorted({path.absolute() for path in found}) if path.is_file())
