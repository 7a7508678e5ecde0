"""The folders in a folder of specs: roots of spec files, cases of operator suites, and suites of ONNX models."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.spec import ROOT_NAMES
from iree_gauntlet.errors import UsageError
from iree_gauntlet.settings import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable


FLAGFILE = "run_module_io_flags.txt"
TORCH_FILE = "run_module_io.json"
CONFIGS = "configs"
# The last file is of an earlier format of the suites of torch operators.
CASE_FILES = (FLAGFILE, TORCH_FILE, "run_module_io_flags.json")
OUTCOMES = "tests_and_expected_outcomes"
# The function that compares a model, in the tests of suites of ONNX models.
COMPARISON = "compare_between_iree_and_onnxruntime"
MODELS_FOLDER = "onnx_models"
# The folders with files that specs name.
EXTERNAL_NAMES = ("external_test_files", "test_suite_files")


@dataclass(frozen=True, slots=True)
class CaseFolder:
    """A folder of a case, and the spec folder that contains it; both paths are absolute."""

    path: str
    files: tuple[str, ...]
    spec_folder: str


@dataclass(frozen=True, slots=True)
class SuiteFolders:
    """The suites in spec folders: operators' case folders by path, folders with configs, and suites of ONNX models."""

    cases: dict[str, CaseFolder]
    with_configs: list[str]
    models: list[Path]

    def add_case(self, path: str, files: Iterable[str], spec_folder: Path) -> None:
        """Add the folder of a case."""
        try:
            path.encode()
        except UnicodeEncodeError:
            name = os.fsencode(path).decode("utf-8", "replace")
            raise UsageError(f"{name}: its name is not UTF-8", "Rename the folder of this case.") from None
        self.cases.setdefault(path, CaseFolder(path, tuple(files), str(spec_folder)))


def find_roots(folder: Path, suites: SuiteFolders) -> Iterable[Path]:
    """Find the roots of other specs in a folder; the folder itself where it has neither them nor operator cases."""
    if folder.name in ROOT_NAMES and not _has_cases(folder):
        return [folder]
    roots: list[Path] = []
    has_cases = False
    for current, subfolders, files in os.walk(folder):
        if _is_case_folder(files):
            suites.add_case(current, files, folder)
            subfolders.clear()
            has_cases = True
            continue
        path = Path(current)
        is_models_folder = path.name == MODELS_FOLDER
        # IREE's folder of configs for the suite has another name, and no tests.
        has_configs = (is_models_folder or path == folder) and bool(find_model_configs(path))
        if has_configs or (is_models_folder and find_model_tests(path)):
            suites.models.append(path)
            subfolders.clear()
            continue
        for name in subfolders:
            # The walk does not follow links to folders, but such a link may itself be a case.
            link = f"{current}/{name}"
            if os.path.islink(link) and _is_case_folder(link_files := os.listdir(link)):  # noqa: PTH114, PTH208 - of thousands
                suites.add_case(link, link_files, folder)
                has_cases = True
        if CONFIGS in subfolders:
            suites.with_configs.append(current)
        # Leave out folders that hold cases: operator suites may have a folder with such a name too.
        names = [name for name in sorted(subfolders) if name in ROOT_NAMES and not _has_cases(Path(current, name))]
        roots += [Path(current, name) for name in names]
        subfolders[:] = sorted(
            name for name in subfolders if name not in (*names, *EXTERNAL_NAMES) and not name.startswith(".")
        )
    return roots or ([] if has_cases or suites.models else [folder])


def _has_cases(folder: Path) -> bool:
    """Return whether there are cases of operator suites anywhere below a folder."""
    return any(_is_case_folder(files) for _, _, files in os.walk(folder))


def _is_case_folder(files: Iterable[str]) -> bool:
    """Return whether a folder with these files is a case's folder."""
    return any(name in CASE_FILES for name in files)


def find_model_configs(root: Path) -> list[Path]:
    """Find the configs in a suite, or in IREE's folder of configs."""
    return [
        path for folder in (root / CONFIGS, root) for path in sorted(folder.glob("*.json")) if has_word(path, OUTCOMES)
    ]


def find_model_tests(root: Path) -> list[Path]:
    """Find the files of tests that compare models."""
    test_files: list[Path] = []
    for current, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [Path(current, name) for name in sorted(files) if name.endswith("_test.py")]
        test_files += [path for path in paths if has_word(path, COMPARISON)]
    return test_files


def has_word(path: Path, *words: str) -> bool:
    """Return whether a file contains a word that marks a suite's files; return True for unreadable files."""
    try:
        content = read_file(path)
    except FileNotFoundError:
        return False
    except OSError:
        # The problem is reported when the file is read.
        return True
    return any(word.encode() in content for word in words)
