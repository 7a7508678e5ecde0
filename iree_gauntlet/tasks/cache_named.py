"""Which artifacts the specs of a project name, whatever their target and even where they are not sound.

Every string of every spec is looked at, so that nothing that is needed is taken for forgotten.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.sources import local_name
from iree_gauntlet.dialects.suite import read_suite
from iree_gauntlet.errors import ArtifactError, Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["named_artifacts"]

# Also behind a flag's name: `--parameters=model=https://…`.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")


def named_artifacts(project: Path) -> set[str]:
    """Local names of all URLs in the project's specs, and in those that its suites add.

    Raises:
        SpecError: a spec or suite cannot be read, and might name one.
    """
    folders = {project / "specs"}
    for suite in sorted((project / "suites").glob("*.toml")):
        folders.update(read_suite(suite).spec_dirs)
    names: set[str] = set()
    for folder in sorted(folders):
        for current, _, files in os.walk(folder):
            for file in sorted(files):
                if file.endswith(".json"):
                    names |= _names(Path(current, file))
    return names


def _names(path: Path) -> set[str]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        hint = "Mend or remove it: it might name an artifact, so nothing was changed."
        raise SpecError([Problem(str(path), 0, "", f"cannot be read: {error}", hint)]) from error
    names = set()
    for text in _strings(document):
        for url in _URL.findall(text):
            try:
                names.add(local_name(url))
            except ArtifactError:
                continue  # `lint` tells
    return names


def _strings(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict):
        for key, value in document.items():
            yield str(key)
            yield from _strings(value)
    elif isinstance(document, list):
        for value in document:
            yield from _strings(value)
