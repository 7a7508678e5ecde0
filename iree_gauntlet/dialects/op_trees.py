"""Trees of operator suites: the folders of cases, the roots from which configs name them, and the configs.

A case is a folder with `run_module_io_flags.txt` (ONNX operators) or `run_module_io.json` (torch operators). Its root
is the nearest folder at or above it that holds configs: JSON files in a folder `configs`.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.configured_suites import ConfiguredSpec, ConfiguredSuite, same_names, with_own_names
from iree_gauntlet.dialects.op_configs import EXAMPLE, SuiteConfig, read_op_config, unmatched_entries
from iree_gauntlet.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


FLAGFILE = "run_module_io_flags.txt"
TORCH_FILE = "run_module_io.json"
CONFIGS = "configs"
# The last is what the suites of torch operators had before it.
_CASE_FILES = (FLAGFILE, TORCH_FILE, "run_module_io_flags.json")
_CONFIG_WORDS = (b"config_name", b"iree_compile_flags", b"iree_run_module_flags")

# The torch variant's cases lie in this folder of the root, and its configs leave it out.
_GENERATED = "generated/"


@dataclass(frozen=True, slots=True)
class CaseFolder:
    """A folder of a case.

    Attributes:
        path: absolute.
        files: names of the files in it.
        found_from: the spec folder in which it was found, absolute.
    """

    path: str
    files: tuple[str, ...]
    found_from: str


@dataclass(frozen=True, slots=True, eq=False)
class OpSpec(ConfiguredSpec):
    """The folder of a case, which is read when it is selected.

    What is wrong with a case keeps no other from running, and is found when its cases are made: it is no problem of
    the spec. Its model is the path of the folder above it, from the suite's root, and its stem its own name.

    Attributes:
        folder: where it is.
        keys: the names that configs have for it.
    """

    suite: ConfiguredSuite[SuiteConfig]
    folder: CaseFolder
    keys: tuple[str, ...]

    @property
    def submodel(self) -> str:
        """What `--submodel` selects."""
        return self.stem

    @property
    def document(self) -> None:
        """Nothing, until it is selected."""


def is_case_folder(files: Iterable[str]) -> bool:
    """Whether a folder with these files is one of a case."""
    return any(name in _CASE_FILES for name in files)


def read_op_specs(
    folders: Sequence[CaseFolder], with_configs: Iterable[str], asked: Sequence[Path], working_folder: str
) -> list[OpSpec]:
    """The cases of operator suites, in a stable order.

    Args:
        folders: of the cases.
        with_configs: absolute paths of folders, below the spec folders, that have a folder `configs`.
        asked: configs that are to be used; by default, all in the `configs` of each root.
        working_folder: from which the user names files.

    Raises:
        UsageError: a config that was asked for does not exist.
    """
    candidates = {path for path in with_configs if _configs_in(path)}
    above: dict[str, str] = {}
    roots: dict[str, list[CaseFolder]] = {}
    for folder in folders:
        parent = folder.path.rpartition("/")[0]
        if parent not in above:
            above[parent] = _root_of(folder, candidates)
        roots.setdefault(above[parent], []).append(folder)
    prefix = f"{working_folder.rstrip('/')}/"
    if asked:
        roots = _by_entries(roots, candidates, _entries_of(asked, prefix))
    keys = {folder.path: _keys(folder, root) for root, inside in roots.items() for folder in inside}
    used = {root: _asked_of(root, asked, roots) or _configs_in(root) for root in roots}
    configs = _read_configs(used, {root: [keys[item.path] for item in roots[root]] for root in roots}, prefix)
    specs = []
    for root, inside in roots.items():
        files = [next(name for name in _CASE_FILES if name in folder.files) for folder in inside]
        names = [f"{folder.path}/{file}".removeprefix(prefix) for folder, file in zip(inside, files, strict=True)]
        problems = () if used[root] else (_without_config(root.removeprefix(prefix), names[0]),)
        suite = ConfiguredSuite(tuple(configs[path] for path in used[root]), problems)
        for folder, name in zip(inside, names, strict=True):
            model, _, stem = keys[folder.path][0].rpartition("/")
            specs.append(OpSpec(suite, name, model or Path(root).name, stem, folder, keys[folder.path]))
    return specs


def _asked_of(root: str, asked: Sequence[Path], roots: Iterable[str]) -> tuple[Path, ...]:
    """The configs that are asked for and may be meant for a root: not those of another root's own folder."""
    others = {Path(other, CONFIGS).resolve() for other in roots if other != root}
    return tuple(path for path in asked if path.resolve().parent not in others)


def _configs_in(root: str) -> tuple[Path, ...]:
    """The configs of a folder; a JSON file of another kind next to them is none."""
    folder = Path(root, CONFIGS)
    if not folder.is_dir():
        return ()
    return tuple(path for path in sorted(folder.glob("*.json")) if _is_config(path))


def _is_config(path: Path) -> bool:
    """By any of the required fields: one that is misspelt is reported when the file is read."""
    try:
        content = path.read_bytes()
    except OSError:
        # What is wrong with it is reported then, too.
        return True
    return any(word in content for word in _CONFIG_WORDS)


def _root_of(folder: CaseFolder, candidates: set[str]) -> str:
    """The nearest folder above a case that holds configs; the spec folder where none does."""
    inside = folder.path.startswith(f"{folder.found_from}/")
    # Above the case: what lies in its own folder is of no suite.
    path = folder.path.rpartition("/")[0]
    while path:
        if path in candidates:
            return path
        if path == folder.found_from:
            inside = False
        if not inside and _configs_in(path):
            return path
        path = path.rpartition("/")[0]
    return folder.found_from if folder.path != folder.found_from else folder.path.rpartition("/")[0]


def _entries_of(asked: Sequence[Path], prefix: str) -> set[str]:
    """The cases that configs name."""
    entries: set[str] = set()
    for path in asked:
        # One that is not there, or cannot be read, is reported when it is used.
        config = read_op_config(path, str(path).removeprefix(prefix)) if path.is_file() else None
        if config is not None and config.document is not None:
            entries |= {*config.skips, *config.expected, *config.document.golden_times_ms}
    return entries


def _by_entries(
    roots: Mapping[str, Sequence[CaseFolder]], candidates: Collection[str], entries: Collection[str]
) -> dict[str, list[CaseFolder]]:
    """The same roots; where one is only the spec folder, the folder instead from which most entries name its cases."""
    found: dict[str, list[CaseFolder]] = {}
    for root, inside in roots.items():
        votes: Counter[str] = Counter()
        if root not in candidates and not _configs_in(root):
            for folder in inside:
                parts = folder.path.split("/")
                votes.update(
                    "/".join(parts[:place]) for place in range(1, len(parts)) if "/".join(parts[place:]) in entries
                )
        best = votes.most_common(1)[0][0] if votes else root
        # The torch variant's entries leave it out.
        best = best.removesuffix(f"/{_GENERATED[:-1]}")
        # Cases that do not lie below it keep what they had.
        for folder in inside:
            below = folder.path.startswith(f"{best}/")
            found.setdefault(best if below else root, []).append(folder)
    return found


def _keys(folder: CaseFolder, root: str) -> tuple[str, ...]:
    """Names of a case: its path from the root; of the torch variant also without `generated`, and its last two folders.

    The last are what torch_ops/common.py calls a case by, wherever it lies.
    """
    path = folder.path[len(root) :].lstrip("/")
    if TORCH_FILE not in folder.files:
        return (path,)
    return tuple(dict.fromkeys((path, path.removeprefix(_GENERATED), "/".join(folder.path.split("/")[-2:]))))


def _without_config(root: str, case: str) -> Problem:
    hint = f"Write {root}/{CONFIGS}/NAME.json, or give one as --config:\n{EXAMPLE}"
    return Problem(case, 0, "", f"its operator suite {root} has no config", hint)


def _read_configs(
    used: Mapping[str, tuple[Path, ...]], keys: Mapping[str, Sequence[tuple[str, ...]]], prefix: str
) -> dict[Path, SuiteConfig]:
    """The configs that the roots use, each read once and held against the cases of all of them."""
    roots_of: dict[Path, list[str]] = {}
    called: dict[Path, SuiteConfig] = {}
    for root, paths in used.items():
        for path in paths:
            roots_of.setdefault(path, []).append(root)
    for path in roots_of:
        if not path.is_file():
            raise UsageError(f"config {path} does not exist", f"A config is a JSON file, for example:\n{EXAMPLE}")
    read = {path: read_op_config(path, str(path).removeprefix(prefix)) for path in roots_of}
    for paths in used.values():
        # A config of several roots is called by its file where one of them has another of its name.
        named = with_own_names([read[path] for path in paths])
        called |= {path: config for path, config in zip(paths, named, strict=True) if config is not read[path]}
    read |= called
    first: dict[tuple[str, str], SuiteConfig] = {}
    configs: dict[Path, SuiteConfig] = {}
    for path, roots in roots_of.items():
        config = read[path]
        known = {key for root in roots for names in keys[root] for key in names}
        name = config.target.config
        others = [first.setdefault((root, name), config) for root in roots] if config.document else []
        problems = (*config.problems, *same_names(config, others))
        unmatched = tuple(unmatched_entries(config, known, partial(_is_case, roots)))
        configs[path] = replace(config, problems=problems, unmatched=unmatched)
    return configs


def _is_case(roots: Sequence[str], entry: str) -> bool:
    """Whether an entry is the folder of a case, also one outside of the spec folder."""
    if entry.startswith("/") or ".." in entry.split("/"):
        return False
    paths = [f"{root}/{folder}{entry}" for root in roots for folder in ("", _GENERATED)]
    return any(os.path.isfile(f"{path}/{file}") for path in paths for file in _CASE_FILES)  # noqa: PTH113
