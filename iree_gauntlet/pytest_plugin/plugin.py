"""The collection of model tests below a folder, their order, and the reports at the end of a pytest session."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.cases import Case, Verdict
from iree_gauntlet.dialects.json_text import without_comments
from iree_gauntlet.dialects.load import read_torch_specs
from iree_gauntlet.dialects.selection import MarkerExpression
from iree_gauntlet.dialects.spec_file import load_json
from iree_gauntlet.dialects.torch_models import ModuleDefinitions, TorchTest, build_test
from iree_gauntlet.dialects.torch_schema import BenchmarkTest, CompstatTest, QualityTest, read_valid_markers
from iree_gauntlet.engine.rounds.taken_rounds import make_confirm_rules
from iree_gauntlet.engine.varying import find_variants
from iree_gauntlet.errors import ExitCode, GauntletError, SpecError, UsageError
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.pytest_plugin.model_test_session import CheckFailure, ModelTestSession, SessionSettings
from iree_gauntlet.records.event_log import merge_journals
from iree_gauntlet.records.run_folder import make_run_folder, require_valid_path
from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.reports.report_files import write_report
from iree_gauntlet.reports.run_reports import JOB_SUMMARY
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.faults import make_unexpected_error
from iree_gauntlet.targets import FAMILIES, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.errors import Problem


PLUGIN_NAME = "iree_gauntlet_models"


# Markers that decide on a test's outcome.
_VERDICTS = ("skip", "xfail")


@dataclass(frozen=True, slots=True)
class SuiteEntry:
    """A test file that has been read.

    Attributes:
        test: the parsed test; None if its problems leave nothing to run.
        problems: those of the file, and of the module definitions that it names.
        markers: those that it lists, then its type; if it has problems, as many as can be read.
    """

    test: TorchTest | None
    problems: tuple[Problem, ...]
    markers: tuple[str, ...]


@dataclass(frozen=True)
class ModelTestSuite:
    """The tests below a folder.

    Attributes:
        modules: the folder of module definitions; None for the tests' folder, or the one above it.
        external: the folder of files without a URL; None for `test_suite_files` in the tests' folder.
        artifacts: a folder that has no tests, even if it is below the tests' folder.
    """

    folder: Path
    modules: Path | None
    external: Path | None
    artifacts: Path

    @cached_property
    def tests(self) -> dict[Path, SuiteEntry]:
        """The entries by file, in order."""
        specs = read_torch_specs(self.folder, self.external, self.modules, excluded_folder=self.artifacts)
        modules = ModuleDefinitions(specs)
        targets = [Target(family) for family in FAMILIES]
        entries: dict[Path, SuiteEntry] = {}
        for spec in specs:
            if spec.defines_module:
                continue
            if spec.document is None:
                document = load_json(spec.path, spec.name, without_comments)[0] or {}
                # Leave out sharktank's benchmarks; sharktank's regression tests look like module definitions.
                if document.keys().isdisjoint({"function_run", "calls"}) or "type" in document:
                    entries[spec.path] = SuiteEntry(None, spec.problems, read_valid_markers(document))
                continue
            test, problems = build_test(spec, modules, targets)
            assert isinstance(spec.document, QualityTest | BenchmarkTest | CompstatTest), "the other documents"
            markers = (*spec.document.markers, spec.document.type)
            entries[spec.path] = SuiteEntry(test, tuple(dict.fromkeys(problems)), markers)
        return entries

    @cached_property
    def folders(self) -> frozenset[Path]:
        """The folders that contain tests, directly or in subfolders."""
        return frozenset(parent for path in self.tests for parent in path.parents if self._is_inside(parent))

    def holds(self, path: Path) -> bool:
        """Return True if a path is a test, or a folder with tests."""
        return self._is_inside(path) and (path in self.tests or path in self.folders)

    def _is_inside(self, path: Path) -> bool:
        return path == self.folder or path.is_relative_to(self.folder)


class SpecFolder(pytest.Directory):
    """A folder of tests; Python files in it are not collected."""

    def __init__(self, *, suite: ModelTestSuite, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._suite = suite

    def collect(self) -> Iterator[pytest.Collector]:
        """Yield the folders and tests directly below the folder."""
        paths = {path for path in (*self._suite.folders, *self._suite.tests) if path.parent == self.path}
        for path in sorted(paths - {self.path}):
            node_type = SpecFile if path in self._suite.tests else SpecFolder
            yield node_type.from_parent(self, path=path, suite=self._suite)


class SpecFile(pytest.File):
    """A test's file."""

    def __init__(self, *, suite: ModelTestSuite, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._suite = suite

    def collect(self) -> Iterator[pytest.Item]:
        """Yield the file's only test."""
        entry = self._suite.tests[self.path]
        name = self.path.relative_to(self._suite.folder).as_posix()
        if entry.test is None or entry.problems:
            message = str(SpecError(list(entry.problems)))
            yield UnreadableTest.from_parent(self, name=name, message=message, markers=entry.markers)
        else:
            yield ModelTest.from_parent(self, name=name, test=entry.test, markers=entry.markers)


class _TestOfFile(pytest.Item):
    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the test's file and its name."""
        # Keep dots, which pytest would replace by '::'.
        return self.path, 0, self.name.removesuffix(".json")

    def add_own_marker(self, marker: str) -> None:
        """Add a marker and register it; without that, --strict-markers would reject a suite's markers as misspelt."""
        self.config.addinivalue_line("markers", f"{marker}: of model tests")
        self.add_marker(marker)


class UnreadableTest(_TestOfFile):
    """A file that cannot be used, with its problems; this is an error only if the test is selected."""

    def __init__(self, *, message: str, markers: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.message = message
        for marker in markers:
            if marker not in _VERDICTS:
                self.add_own_marker(marker)

    def setup(self) -> None:
        """Fail with the file's problems."""
        pytest.fail(self.message, pytrace=False)

    def runtest(self) -> None:
        """Do nothing, because the setup has failed."""


class ModelTest(_TestOfFile):
    """A test; its setup makes the files that the check needs, and its run is the check."""

    def __init__(self, *, test: TorchTest, markers: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.test = test
        for marker in markers:
            if marker == "skip":
                self.add_marker(pytest.mark.skip(reason=self.case.skip_reason))
            elif marker == "xfail":
                reason = self.case.expectations[0].reason
                self.add_marker(pytest.mark.xfail(reason=reason, raises=CheckFailure, strict=True))
            else:
                self.add_own_marker(marker)

    @property
    def case(self) -> Case:
        """The case that the test checks."""
        return self.test.case

    def setup(self) -> None:
        """Fetch, import, compile and make synthetic weights, unless another test has already done so.

        Raises:
            StepError: an error outside of the compiler prevented the test.
        """
        with self._plugin.record_faults():
            self._find_session().prepare(self.case)

    def runtest(self) -> None:
        """Run the check.

        Raises:
            TestFailure: the check failed, or one of its modules did not compile.
            StepError: an error prevented the check.
        """
        session = self._find_session()
        with self._plugin.record_faults():
            outcome = session.check(self.case)
        # The properties are for pytest's own JUnit file.
        figures = {"verdict": str(outcome.verdict), "time_ms_min": outcome.samples and outcome.samples.min_ms}
        figures |= {name: outcome.statistics.get(name) for name in ("dispatch_count", "binary_size_bytes")}
        self.user_properties += [(name, value) for name, value in figures.items() if value is not None]
        self.user_properties += [(f"golden_{golden.metric}", golden.value) for golden in outcome.goldens]
        if outcome.verdict is Verdict.SKIPPED and not outcome.behind:
            pytest.skip(outcome.reason)
        if outcome.verdict.counts_as_failure or session.is_failed_flake(outcome.verdict):
            raise CheckFailure(outcome, session.run_dir)

    def _find_session(self) -> ModelTestSession:
        session = self._plugin.session
        assert session is not None, "made when the collection was finished"
        return session

    @property
    def _plugin(self) -> ModelTestPlugin:
        plugin = self.config.pluginmanager.get_plugin(PLUGIN_NAME)
        assert isinstance(plugin, ModelTestPlugin), "it has collected this test"
        return plugin


class ModelTestPlugin:
    """The main plugin, registered if its options are used; under xdist, each process has one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._artifacts = _locate_folder(config, "artifact_directory")
        self.suite = ModelTestSuite(
            _locate_folder(config, "test_file_directory"),
            _find_optional_folder(config, "module_directory"),
            _find_optional_folder(config, "external_file_directory"),
            self._artifacts,
        )
        # xdist sets this in worker processes only.
        self._worker: dict[str, Any] = getattr(config, "workerinput", {})
        self._run_folder: Path | None = Path(self._worker["gauntlet_run"]) if self._worker else None
        self._command = self._worker.get("gauntlet_command") or ["pytest", *map(str, config.invocation_params.args)]
        self.session: ModelTestSession | None = None
        self._reported = False
        # Print the warnings at the end, not as Python warnings, which some projects turn into errors.
        self._warnings: list[str] = []
        self._notes: list[str] = []
        # These are faults of the toolkit, not failures of tests.
        self._faults: list[str] = []
        self._set_arguments()

    def _set_arguments(self) -> None:
        """Add the tests' folder to the arguments; without arguments, collect only that folder."""
        folder = self.suite.folder
        explicit = self._config.args_source is pytest.Config.ArgsSource.ARGS
        if not explicit:
            self._config.args = [str(folder)]
            return
        arguments, any_inside = [], False
        for argument in self._config.args:
            name, *test = argument.split("::")
            path = resolve_links(Path(self._config.invocation_params.dir, name))
            is_inside = path.is_relative_to(folder)
            # Links are resolved, because tests are identified by their real paths.
            arguments.append("::".join([str(path), *test]) if is_inside else argument)
            any_inside = any_inside or is_inside
        self._config.args = arguments if any_inside else [*arguments, str(folder)]

    # Collecting

    def pytest_report_header(self) -> list[str]:
        """Return the folders of tests and artifacts."""
        return [f"model tests: {self.suite.folder}", f"artifacts: {self._artifacts}"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Keep every test, even in folders that pytest ignores by name, such as `build`."""
        return False if self.suite.holds(collection_path) else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect only the model tests of a folder, because it may also have another suite's conftest.py."""
        if path != self.suite.folder:
            return None
        collector: pytest.Collector = SpecFolder.from_parent(parent, path=path, suite=self.suite)
        return collector

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect a test that is an argument."""
        if file_path.suffix != ".json" or not self.suite.holds(file_path):
            return None
        collector: pytest.Collector = SpecFile.from_parent(parent, path=file_path, suite=self.suite)
        return collector

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put benchmarks last, so that no check waits for them, and warn of markers that no test has."""
        self._notice_markers([item for item in items if isinstance(item, ModelTest)])
        items.sort(key=lambda item: isinstance(item, ModelTest) and item.case.kind == "benchmark")

    def _notice_markers(self, tests: Sequence[ModelTest]) -> None:
        markers = {marker for test in tests for marker in test.case.markers}
        registered_markers = {line.split(":")[0].split("(")[0].strip() for line in self._config.getini("markers")}
        try:
            names = MarkerExpression(self._config.getoption("markexpr") or "").words
        except UsageError:
            # Leave the expression to pytest, which reports errors and supports more, such as keyword arguments.
            return
        unknown_names = sorted(names - markers - registered_markers)
        if unknown_names:
            text = f"no test has the marker {', '.join(unknown_names)}; known: {', '.join(sorted(markers))}"
            self._warnings.append(text)
            for name in unknown_names:
                # Newer releases of pytest end with an error if a marker is not registered.
                self._config.addinivalue_line("markers", f"{name}: of no model test")

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Report the problems of unselected files, which would otherwise be lost."""
        self._warnings += [item.message for item in items if isinstance(item, UnreadableTest)]

    # Running

    @contextmanager
    def record_faults(self) -> Iterator[None]:
        """Record unforeseen exceptions, which decide the exit code of the session."""
        try:
            yield
        except GauntletError:
            raise
        except Exception as error:
            self._add_fault(error)
            raise

    def _add_fault(self, error: Exception) -> None:
        self._faults.append(str(make_unexpected_error(error)))

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Record an internal error that comes from the toolkit; pytest shows the error, but no summary."""
        package = Path(__file__).parent.parent
        is_internal = any(Path(entry.path).is_relative_to(package) for entry in excinfo.traceback)
        if is_internal and isinstance(excinfo.value, Exception):
            self._add_fault(excinfo.value)
            sys.stderr.write(f"error: {self._faults[-1]}\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan the selected tests.

        Raises:
            UsageError: there is no IREE, its tools lack a flag, there is no such variant, or the folder for runs cannot
                be created.
        """
        if self._config.option.collectonly:
            self.pytest_deselected(session.items)
        tests = [item for item in session.items if isinstance(item, ModelTest)]
        gives_up = session.testsfailed and not self._config.option.continue_on_collection_errors
        # Pytest also calls this hook after an error of collection, such as a wrong expression.
        if not tests or gives_up or self._config.option.collectonly or sys.exc_info()[0] is not None:
            return
        try:
            settings = SessionSettings(
                journal=f"journal-{self._worker['workerid']}.jsonl" if self._worker else JOURNAL,
                processes=int(self._worker.get("workercount", 1)),
                force_recompile=bool(self._config.getoption("force_recompile")),
                confirm=make_confirm_rules(
                    self._config.getoption("verdict"), self._config.getoption("confirm_seconds")
                ),
                all_goldens=self._config.getoption("unapplied_goldens") == "fail",
                reruns=self._config.getoption("rerun_failed"),
                flaky_passes=self._config.getoption("flaky") == "pass",
                markers=self._config.getoption("markexpr") or "",
                variants=find_variants(self._config.getoption("variant"), ()),
                command=self._command,
            )
            torch_tests = [test.test for test in tests]
            self.session = ModelTestSession(torch_tests, self.run_folder(), self._artifacts, settings)
            self._notes += filter(None, [self.session.why])
        except GauntletError as error:
            if self._worker:
                raise
            raise pytest.UsageError(str(error)) from error

    def run_folder(self) -> Path:
        """Return the session's folder (created at the first call); under xdist, all processes share one folder."""
        if self._run_folder is None:
            runs = self._artifacts / "runs"
            require_valid_path(runs, "--artifact-directory")
            self._run_folder = make_run_folder(runs, "pytest", "--artifact-directory")
        return self._run_folder

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Pass the session's folder to a worker of xdist."""
        node.workerinput |= {"gauntlet_run": str(self.run_folder()), "gauntlet_command": self._command}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Collect the messages of an xdist worker; a worker that died has no messages."""
        output = getattr(node, "workeroutput", {})
        self._warnings = list(dict.fromkeys([*self._warnings, *output.get("gauntlet_notices", [])]))
        self._notes = list(dict.fromkeys([*self._notes, *output.get("gauntlet_remarks", [])]))
        self._faults += output.get("gauntlet_faults", [])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End the running steps, and write the reports, which all processes share."""
        try:
            self._end()
        except GauntletError as error:
            self._warnings.append(str(error))
        except Exception as error:  # noqa: BLE001 - pytest would end with 1, as of a test that failed
            self._add_fault(error)
        if self._worker:
            output: dict[str, Any] = self._config.workeroutput  # type: ignore[attr-defined] # xdist's
            output |= {"gauntlet_notices": self._warnings, "gauntlet_remarks": self._notes}
            output["gauntlet_faults"] = self._faults
        if self._faults:
            session.exitstatus = ExitCode.FAULT

    def _end(self) -> None:
        if self.session is not None:
            self.session.close()
        if not (self._worker or self._run_folder is None or self._config.option.collectonly):
            self._reported = _write_session_reports(self._run_folder, _locate_folder(self._config, "job_summary_path"))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the warnings, and the location of the reports."""
        for warning in self._warnings:
            terminalreporter.write_line(f"warning: {warning}", yellow=True)
        for note in self._notes:
            terminalreporter.write_line(f"note: {note}")
        for fault in self._faults:
            terminalreporter.write_line(f"error: {fault}", red=True)
        if self._reported:
            summary = _locate_folder(self._config, "job_summary_path") / "job_summary.md"
            terminalreporter.write_line(f"job summary: {summary}; logs and reports: {self._run_folder}")


def _locate_folder(config: pytest.Config, option: str) -> Path:
    return resolve_links(Path(config.invocation_params.dir, config.getoption(option)))


def _find_optional_folder(config: pytest.Config, option: str) -> Path | None:
    return _locate_folder(config, option) if config.getoption(option) else None


def _write_session_reports(run_dir: Path, summary_folder: Path) -> bool:
    """Write the reports of a session, even if a worker died."""
    journals = sorted(run_dir.glob("journal-*.jsonl"))
    if journals:
        records = [record for path in journals if (record := read_journal(path)).runs]
        first = min(records, key=lambda record: record.runs[0].time, default=None)
        journal = merge_journals(first.runs[0], first.steps, records) if first else ""
        write_atomic(run_dir / JOURNAL, journal)
    if not (run_dir / JOURNAL).is_file():
        return False
    reports = write_reports(run_dir)
    try:
        summary_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GauntletError(f"{summary_folder}: cannot create the folder: {error.strerror}") from error
    for name, make_report in reports.files.items():
        if name.startswith(JOB_SUMMARY):
            write_report(summary_folder / name, make_report(), run_dir)
    return True
