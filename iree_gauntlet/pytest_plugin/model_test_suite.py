"""The tests of one folder, read once in each process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from iree_gauntlet.dialects.json5_text import without_comments
from iree_gauntlet.dialects.spec_file import load_json
from iree_gauntlet.dialects.torch_models import TorchTest, build_test
from iree_gauntlet.dialects.torch_modules import TorchModules
from iree_gauntlet.dialects.torch_schema import BenchmarkTest, CompstatTest, QualityTest, sound_markers
from iree_gauntlet.dialects.trees import read_torch_specs
from iree_gauntlet.targets import FAMILIES, Target

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.errors import Problem


@dataclass(frozen=True, slots=True)
class FoundTest:
    """A test file, read.

    Attributes:
        test: what it means; None where its problems leave nothing to run.
        problems: what is wrong with it, or with the module definitions that it names.
        markers: as it lists them, then its type; where it has problems, as far as they can be read.
    """

    test: TorchTest | None
    problems: tuple[Problem, ...]
    markers: tuple[str, ...]


class ModelTestSuite:
    """The tests below a folder.

    Args:
        folder: where they are.
        modules: where module definitions are; None for that folder, or the one above it.
        external: where files without a URL are; None for `test_suite_files` there.
        artifacts: a folder below the tests', perhaps, that holds none.
    """

    def __init__(self, folder: Path, modules: Path | None, external: Path | None, artifacts: Path) -> None:
        self.folder = folder
        self._modules = modules
        self._external = external
        self._artifacts = artifacts

    @cached_property
    def tests(self) -> dict[Path, FoundTest]:
        """The tests by file, in order."""
        specs = read_torch_specs(self.folder, self._external, self._modules, without=self._artifacts)
        modules = TorchModules(specs)
        targets = [Target(family) for family in FAMILIES]
        found: dict[Path, FoundTest] = {}
        for spec in specs:
            if spec.defines_module:
                continue
            if spec.document is None:
                content = load_json(spec.path, spec.name, without_comments)[0] or {}
                if not _is_of_sharktank(content):
                    found[spec.path] = FoundTest(None, spec.problems, sound_markers(content))
                continue
            test, problems = build_test(spec, modules, targets)
            assert isinstance(spec.document, QualityTest | BenchmarkTest | CompstatTest), "the other documents"
            markers = (*spec.document.markers, spec.document.type)
            found[spec.path] = FoundTest(test, tuple(dict.fromkeys(problems)), markers)
        return found

    @cached_property
    def folders(self) -> frozenset[Path]:
        """The folders that hold tests, themselves or further down."""
        return frozenset(parent for path in self.tests for parent in path.parents if self._is_inside(parent))

    def holds(self, path: Path) -> bool:
        """Whether a path is a test, or a folder that holds some."""
        return self._is_inside(path) and (path in self.tests or path in self.folders)

    def _is_inside(self, path: Path) -> bool:
        return path == self.folder or path.is_relative_to(self.folder)


def _is_of_sharktank(content: Mapping[str, Any]) -> bool:
    """Whether a file is a benchmark of that dialect; its regression tests look like module definitions."""
    return "function_run" in content and "type" not in content
