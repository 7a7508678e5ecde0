"""What pytest collects: folders of tests, files, and the one test of each file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.cases import Case, Verdict
from iree_gauntlet.errors import SpecError
from iree_gauntlet.pytest_plugin.model_test_session import CheckFailure, ModelTestSession

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.dialects.torch_models import TorchTest
    from iree_gauntlet.pytest_plugin.model_test_suite import ModelTestSuite
    from iree_gauntlet.records.step_outcome import StepOutcome


PLUGIN_NAME = "iree_gauntlet_models"


# Markers by which pytest judges.
_VERDICTS = ("skip", "xfail")


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


class UnreadableTest(pytest.Item):
    """A file that cannot be used: an error where it is selected, and of nobody else.

    Attributes:
        what: everything that is wrong with it.
    """

    def __init__(self, *, what: str, markers: tuple[str, ...], **others: Any) -> None:
        super().__init__(**others)
        self.what = what
        for marker in markers:
            if marker not in _VERDICTS:
                _add_marker(self, marker)

    def setup(self) -> None:
        """Say what is wrong.

        Raises:
            Failed: always.
        """
        pytest.fail(self.what, pytrace=False)

    def runtest(self) -> None:
        """Nothing: setting up has failed."""

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the test is written, and its name."""
        return self.path, 0, self.name.removesuffix(".json")


class ModelTest(pytest.Item):
    """A test: setting up makes what it needs, running is its check.

    Attributes:
        test: what it means.
    """

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
            _add_marker(self, marker)

    def setup(self) -> None:
        """Fetch, import, compile and make up weights, as far as nobody has yet.

        Raises:
            StepError: something else than the compiler kept the test from running.
        """
        self._session().prepare(self.case)

    def runtest(self) -> None:
        """Run the check.

        Raises:
            TestFailure: it failed, or a module of it did not compile.
            StepError: an error kept it from being judged.
        """
        outcome = self._session().check(self.case)
        self._record(outcome)
        if outcome.verdict is Verdict.SKIPPED and not outcome.behind:
            pytest.skip(outcome.reason)
        if outcome.verdict in (Verdict.FAILED, Verdict.XFAILED):
            raise CheckFailure(outcome, self._session().run_dir)

    def _record(self, outcome: StepOutcome) -> None:
        """Figures for pytest's own JUnit."""
        self.user_properties.append(("verdict", str(outcome.verdict)))
        if outcome.samples is not None and outcome.samples.min_ms is not None:
            self.user_properties.append(("time_ms_min", outcome.samples.min_ms))
        for metric in ("dispatch_count", "binary_size_bytes"):
            if metric in outcome.statistics:
                self.user_properties.append((metric, outcome.statistics[metric]))
        self.user_properties += [(f"golden_{golden.metric}", golden.value) for golden in outcome.goldens]

    def _session(self) -> ModelTestSession:
        plugin = self.config.pluginmanager.get_plugin(PLUGIN_NAME)
        session = plugin.session if plugin else None
        assert isinstance(session, ModelTestSession), "made when the collection was finished"
        return session

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the test is written, and its name."""
        # Pytest would write a dot as '::'.
        return self.path, 0, self.name.removesuffix(".json")


def _add_marker(item: pytest.Item, marker: str) -> None:
    # Registered first: a suite's markers are nobody's misspelt ones, also with --strict-markers.
    item.config.addinivalue_line("markers", f"{marker}: of model tests")
    item.add_marker(marker)
