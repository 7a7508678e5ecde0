"""Module definitions of torch models → modules, each read once however many tests name it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from iree_gauntlet.cases import MAIN, Case, Kind, Module, Origin, Program
from iree_gauntlet.dialects.fields import OWN_TARGET, OWN_TARGET_HINT
from iree_gauntlet.dialects.locations import problem, torch_url
from iree_gauntlet.dialects.spec import base_case
from iree_gauntlet.dialects.spec_file import nearest
from iree_gauntlet.dialects.spec_flags import resolved_flags, target_of_flags
from iree_gauntlet.dialects.torch_schema import ModuleDefinition
from iree_gauntlet.dialects.trees import read_module_definition
from iree_gauntlet.errors import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iree_gauntlet.dialects.spec import Spec
    from iree_gauntlet.targets import Target


DIALECT = "torch-models"

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


@dataclass(frozen=True, slots=True)
class DefinedModule:
    """A module definition, read.

    Attributes:
        module: what tests load.
        case: compiles it; of it, only what tests need is planned.
        document: as it is written.
    """

    module: Module
    case: Case
    document: ModuleDefinition

    def on(self, target: Target) -> DefinedModule:
        """The same on one of its further targets."""
        module = replace(self.module, target=target, flags=self.document.flags_for(target, self.module.flags))
        return replace(self, module=module, case=replace(self.case, target=target, modules=(module,)))


class TorchModules:
    """The module definitions that tests name, found in the module folders of their trees.

    Args:
        specs: what was read; the definitions among it are not read again.
    """

    def __init__(self, specs: Iterable[Spec]) -> None:
        self._specs = {spec.path: spec for spec in specs if isinstance(spec.document, ModuleDefinition)}
        torch = [spec for spec in specs if spec.torch and spec.path not in self._specs]
        self._unread = {spec.path: spec.problems for spec in torch if spec.document is None}
        self._tests = {spec.path for spec in torch} - self._unread.keys()
        self._defined: dict[Path, DefinedModule | tuple[Problem, ...]] = {}
        self._known: dict[Path, tuple[str, ...]] = {}

    def define(self, spec: Spec) -> tuple[Problem, ...]:
        """Builds the module of a definition that lies among the specs; what is wrong with it."""
        found = self._define(spec.path, spec)
        return () if isinstance(found, DefinedModule) else found

    def find(self, spec: Spec, field: Sequence[str | int], name: str) -> DefinedModule | tuple[Problem, ...]:
        """The module that a test names, or what is wrong with the name or with the definition."""
        folders = _module_folders(spec)
        # iree-test-suites takes what follows a dot for a suffix: `clip.v2` is its `clip.json`.
        files = (f"{name}.json", PurePosixPath(name).with_suffix(".json"))
        places = (folder / file for file in files for folder in folders)
        path = next((path for path in places if os.path.isfile(path)), None)  # noqa: PTH113 - a name may be too long
        if path is None:
            return (self._missing(spec, field, name, folders),)
        if path in self._unread:
            return self._unread[path]
        if path in self._tests:
            what = "the test itself" if path == spec.path else "a test"
            hint = "Name the file that holds 'mlir' and 'compiler_flags'."
            return (problem(spec, field, f"{name!r} is {what}, not a module definition", hint),)
        return self._define(path, spec)

    def _define(self, path: Path, spec: Spec) -> DefinedModule | tuple[Problem, ...]:
        """The module of a file: one, with one name, whichever test asks for it first."""
        if path not in self._defined:
            folders = _module_folders(spec)
            definition = self._specs.get(path) or read_module_definition(spec.tree, folders[0], path)
            self._defined[path] = _defined(definition, folders) if definition.document else definition.problems
        return self._defined[path]

    def _missing(self, spec: Spec, field: Sequence[str | int], name: str, folders: Sequence[Path]) -> Problem:
        known = sorted({module for folder in folders for module in self._modules_in(folder)})
        near = nearest(name, known)
        message = f"there is no module definition {name}.json in {' or '.join(map(str, folders))}"
        hint = f"Did you mean {near!r}?" if near else "--module-directory names the folder of module definitions."
        return problem(spec, field, message, hint)

    def _modules_in(self, folder: Path) -> tuple[str, ...]:
        """Names of the definitions in a folder, to suggest one."""
        if folder not in self._known:
            inside = (path for path in self._specs if path.is_relative_to(folder))
            self._known[folder] = tuple(path.relative_to(folder).with_suffix("").as_posix() for path in inside)
        return self._known[folder]


def _module_folders(spec: Spec) -> tuple[Path, ...]:
    """Where the modules of a test are looked for, the first one first."""
    if spec.tree.modules is not None:
        return (spec.tree.modules,)
    return (spec.root, spec.root.parent)


def _defined(spec: Spec, folders: Sequence[Path]) -> DefinedModule | tuple[Problem, ...]:
    document = spec.document
    assert isinstance(document, ModuleDefinition), "read as one"
    folder = next((folder for folder in folders if spec.path.is_relative_to(folder)), spec.path.parent)
    name = spec.path.relative_to(folder).with_suffix("").as_posix()
    url = torch_url(spec, ["mlir"], document.mlir, folders if document.type == "git-lfs" else ())
    if isinstance(url, Problem):
        return (url,)
    flags, problems = resolved_flags(spec, "compiler_flags", document.compiler_flags)
    if problems:
        return tuple(problems)
    target = target_of_flags(flags)
    if target.family in document.targets:
        return (problem(spec, ["targets", target.family], OWN_TARGET, OWN_TARGET_HINT),)
    model, _, submodel = name.rpartition("/")
    module = Module(
        name=name,
        role=MAIN,
        target=target,
        program=Program(url, document.imported),
        flags=flags,
        origin=Origin(spec.name, "mlir"),
    )
    case = replace(
        base_case(spec, DIALECT, Kind.COMPILE, target, (module,)),
        model=model or folder.name,
        submodel=submodel,
        stem=submodel,
        blocked_reason=_lfs_pointer(document, url),
    )
    return DefinedModule(module, case, document)


def _lfs_pointer(document: ModuleDefinition, url: str) -> str:
    """Why a file of Git LFS cannot be compiled yet; empty where it can, or is missing as a whole."""
    if document.type != "git-lfs" or not url.startswith("file:"):
        return ""
    path = Path(unquote(urlsplit(url).path))
    try:
        with path.open("rb") as stream:
            pointer = stream.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        return ""
    what = f"{path} is a pointer of Git LFS, not the program: run `git lfs pull --include={path.name}`"
    return what if pointer else ""
