"""What pytest collects: the tests of one folder, read once in each process, as folders, files and one test a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.cases import Case, Verdict
from iree_gauntlet.dialects.json_text import without_comments
from iree_gauntlet.dialects.load import read_torch_specs
from iree_gauntlet.dialects.spec_file import load_json
from iree_gauntlet.dialects.torch_models import TorchModules, TorchTest, build_test
from iree_gauntlet.dialects.torch_schema import BenchmarkTest, CompstatTest, QualityTest, sound_markers
from iree_gauntlet.errors import SpecError
from iree_gauntlet.pytest_plugin.model_test_session import CheckFailure, ModelTestSession
from iree_gauntlet.targets import FAMILIES, Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.errors import Problem
    from iree_gauntlet.records.outcome import StepOutcome


PLUGIN_NAME = "iree_gauntlet_models"


# Markers by which pytest judges.
_VERDICTS = ("skip", "xfail")


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


@dataclass(frozen=True)
class ModelTestSuite:
    """The tests below a folder.

    Attributes:
        modules: where module definitions are; None for that folder, or the one above it.
        external: where files without a URL are; None for `test_suite_files` there.
        artifacts: a folder below the tests', perhaps, that holds none.
    """

    folder: Path
    modules: Path | None
    external: Path | None
    artifacts: Path

    @cached_property
    def tests(self) -> dict[Path, FoundTest]:
        """The tests by file, in order."""
        specs = read_torch_specs(self.folder, self.external, self.modules, without=self.artifacts)
        modules = TorchModules(specs)
        targets = [Target(family) for family in FAMILIES]
        found: dict[Path, FoundTest] = {}
        for spec in specs:
            if spec.defines_module:
                continue
            if spec.document is None:
                content = load_json(spec.path, spec.name, without_comments)[0] or {}
                # A benchmark of sharktank's dialect is none; its regression tests look like module definitions.
                if "function_run" not in content or "type" in content:
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


class SpecFolder(pytest.Directory):
    """A folder of tests; Python files in it are left alone."""

    def __init__(self, *, suite: ModelTestSuite, **others: Any) -> None:
        super().__init__(**others)
        self._suite = suite

    def collect(self) -> Iterator[pytest.Collector]:
        """The folders and tests directly below it."""
        inside = {path for path in (*self._suite.folders, *self._suite.tests) if path.parent == self.path}
        for path in sorted(inside - {self.path}):
            kind = SpecFile if path in self._suite.tests else SpecFolder
            yield kind.from_parent(self, path=path, suite=self._suite)


class SpecFile(pytest.File):
    """A test's file."""

    def __init__(self, *, suite: ModelTestSuite, **others: Any) -> None:
        super().__init__(**others)
        self._suite = suite

    def collect(self) -> Iterator[pytest.Item]:
        """Its one test."""
        found = self._suite.tests[self.path]
        name = self.path.relative_to(self._suite.folder).as_posix()
        if found.test is None or found.problems:
            what = str(SpecError(list(found.problems)))
            yield UnreadableTest.from_parent(self, name=name, what=what, markers=found.markers)
        else:
            yield ModelTest.from_parent(self, name=name, test=found.test, markers=found.markers)


class _TestOfFile(pytest.Item):
    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the test is written, and its name."""
        # Pytest would write a dot as '::'.
        return self.path, 0, self.name.removesuffix(".json")

    def add_own_marker(self, marker: str) -> None:
        """Add a marker that is registered first: with --strict-markers, a suite's markers are no spelling mistakes."""
        self.config.addinivalue_line("markers", f"{marker}: of model tests")
        self.add_marker(marker)


class UnreadableTest(_TestOfFile):
    """A file that cannot be used: an error where it is selected, and only there.

    Attributes:
        what: everything that is wrong with it.
    """

    def __init__(self, *, what: str, markers: tuple[str, ...], **others: Any) -> None:
        super().__init__(**others)
        self.what = what
        for marker in markers:
            if marker not in _VERDICTS:
                self.add_own_marker(marker)

    def setup(self) -> None:
        """Say what is wrong.

        Raises:
            Failed: always.
        """
        pytest.fail(self.what, pytrace=False)

    def runtest(self) -> None:
        """Nothing: setting up has failed."""


class ModelTest(_TestOfFile):
    """A test: setting up makes what it needs, running is its check."""

    def __init__(self, *, test: TorchTest, markers: tuple[str, ...], **others: Any) -> None:
        super().__init__(**others)
        self.test = test
        for marker in markers:
            self._mark(marker)

    @property
    def case(self) -> Case:
        """What it checks."""
        return self.test.case

    def _mark(self, marker: str) -> None:
        if marker == "skip":
            self.add_marker(pytest.mark.skip(reason=self.case.skip_reason))
        elif marker == "xfail":
            reason = self.case.expectations[0].reason
            self.add_marker(pytest.mark.xfail(reason=reason, raises=CheckFailure, strict=True))
        else:
            self.add_own_marker(marker)

    def setup(self) -> None:
        """Fetch, import, compile and make synthetic weights, as far as this was not done yet.

        Raises:
            StepError: something else than the compiler kept the test from running.
        """
        self._make_session().prepare(self.case)

    def runtest(self) -> None:
        """Run the check.

        Raises:
            TestFailure: it failed, or a module of it did not compile.
            StepError: an error kept it from being judged.
        """
        outcome = self._make_session().check(self.case)
        self._record(outcome)
        if outcome.verdict is Verdict.SKIPPED and not outcome.behind:
            pytest.skip(outcome.reason)
        if outcome.verdict.counts_as_failure:
            raise CheckFailure(outcome, self._make_session().run_dir)

    def _record(self, outcome: StepOutcome) -> None:
        """Figures for pytest's own JUnit."""
        self.user_properties.append(("verdict", str(outcome.verdict)))
        if outcome.samples is not None and outcome.samples.min_ms is not None:
            self.user_properties.append(("time_ms_min", outcome.samples.min_ms))
        for metric in ("dispatch_count", "binary_size_bytes"):
            if metric in outcome.statistics:
                self.user_properties.append((metric, outcome.statistics[metric]))
        self.user_properties += [(f"golden_{golden.metric}", golden.value) for golden in outcome.goldens]

    def _make_session(self) -> ModelTestSession:
        plugin = self.config.pluginmanager.get_plugin(PLUGIN_NAME)
        session = plugin.session if plugin else None
        assert isinstance(session, ModelTestSession), "made when the collection was finished"
        return session
