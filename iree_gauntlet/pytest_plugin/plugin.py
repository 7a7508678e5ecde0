"""What pytest collects of the model tests below one folder, in which order it runs, and what is written at the end."""

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
from iree_gauntlet.dialects.torch_models import TorchModules, TorchTest, build_test
from iree_gauntlet.dialects.torch_schema import BenchmarkTest, CompstatTest, QualityTest, sound_markers
from iree_gauntlet.engine.rounds.taken_rounds import confirm_rules
from iree_gauntlet.errors import ExitCode, GauntletError, SpecError, UsageError
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.pytest_plugin.model_test_session import CheckFailure, ModelTestSession, SessionSettings
from iree_gauntlet.records.event_log import merge_journals
from iree_gauntlet.records.run_folder import make_run_folder, require_plain
from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.reports.report_files import write_report
from iree_gauntlet.reports.run_reports import JOB_SUMMARY
from iree_gauntlet.settings import resolve_links
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.faults import explain_escaped
from iree_gauntlet.targets import FAMILIES, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.errors import Problem


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
    """A file that cannot be used, with all that is wrong with it: an error where it is selected, and only there."""

    def __init__(self, *, what: str, markers: tuple[str, ...], **others: Any) -> None:
        super().__init__(**others)
        self.what = what
        for marker in markers:
            if marker not in _VERDICTS:
                self.add_own_marker(marker)

    def setup(self) -> None:
        """Fail, and say what is wrong."""
        pytest.fail(self.what, pytrace=False)

    def runtest(self) -> None:
        """Nothing: setting up has failed."""


class ModelTest(_TestOfFile):
    """A test: setting up makes what it needs, running is its check."""

    def __init__(self, *, test: TorchTest, markers: tuple[str, ...], **others: Any) -> None:
        super().__init__(**others)
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
        """What it checks."""
        return self.test.case

    def setup(self) -> None:
        """Fetch, import, compile and make synthetic weights, as far as this was not done yet.

        Raises:
            StepError: something else than the compiler kept the test from running.
        """
        with self._plugin.noting_faults():
            self._find_session().prepare(self.case)

    def runtest(self) -> None:
        """Run the check.

        Raises:
            TestFailure: it failed, or a module of it did not compile.
            StepError: an error kept it from being judged.
        """
        session = self._find_session()
        with self._plugin.noting_faults():
            outcome = session.check(self.case)
        # For pytest's own JUnit.
        figures = {"verdict": str(outcome.verdict), "time_ms_min": outcome.samples and outcome.samples.min_ms}
        figures |= {name: outcome.statistics.get(name) for name in ("dispatch_count", "binary_size_bytes")}
        self.user_properties += [(name, value) for name, value in figures.items() if value is not None]
        self.user_properties += [(f"golden_{golden.metric}", golden.value) for golden in outcome.goldens]
        if outcome.verdict is Verdict.SKIPPED and not outcome.behind:
            pytest.skip(outcome.reason)
        if outcome.verdict.counts_as_failure:
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
    """Registered where the plugin's options are used; one in each process under xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._artifacts = _locate_folder(config, "artifact_directory")
        self.suite = ModelTestSuite(
            _locate_folder(config, "test_file_directory"),
            _find_optional_folder(config, "module_directory"),
            _find_optional_folder(config, "external_file_directory"),
            self._artifacts,
        )
        # Of xdist: absent in the one process, or in the one that hands out the tests.
        self._worker: dict[str, Any] = getattr(config, "workerinput", {})
        self._run_folder: Path | None = Path(self._worker["gauntlet_run"]) if self._worker else None
        self._command = self._worker.get("gauntlet_command") or ["pytest", *map(str, config.invocation_params.args)]
        self.session: ModelTestSession | None = None
        self._reported = False
        # What is said at the end: a warning would be an error to a project that makes errors of all.
        self._notices: list[str] = []
        self._remarks: list[str] = []
        # Of the toolkit: no test's failure.
        self._faults: list[str] = []
        self._set_arguments()

    def _set_arguments(self) -> None:
        """Adds the tests' folder to what is collected; without arguments, nothing else is."""
        folder = self.suite.folder
        explicit = self._config.args_source is pytest.Config.ArgsSource.ARGS
        if not explicit:
            self._config.args = [str(folder)]
            return
        arguments, inside = [], False
        for argument in self._config.args:
            name, *test = argument.split("::")
            path = resolve_links(Path(self._config.invocation_params.dir, name))
            within = path.is_relative_to(folder)
            # Without the links by which it may be named: tests are known by where they are.
            arguments.append("::".join([str(path), *test]) if within else argument)
            inside = inside or within
        self._config.args = arguments if inside else [*arguments, str(folder)]

    # Collecting

    def pytest_report_header(self) -> list[str]:
        """Say where everything is."""
        return [f"model tests: {self.suite.folder}", f"artifacts: {self._artifacts}"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Keep every test, whatever its folder is called (pytest passes over `build`, for one)."""
        return False if self.suite.holds(collection_path) else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect the model tests of a folder, and nothing else there: it may hold another suite's conftest.py."""
        if path != self.suite.folder:
            return None
        found: pytest.Collector = SpecFolder.from_parent(parent, path=path, suite=self.suite)
        return found

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect a test that is named directly."""
        if file_path.suffix != ".json" or not self.suite.holds(file_path):
            return None
        found: pytest.Collector = SpecFile.from_parent(parent, path=file_path, suite=self.suite)
        return found

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put benchmarks last, so that they wait for nothing; notice markers that no test has."""
        self._notice_markers([item for item in items if isinstance(item, ModelTest)])
        items.sort(key=lambda item: isinstance(item, ModelTest) and item.case.kind == "benchmark")

    def _notice_markers(self, tests: Sequence[ModelTest]) -> None:
        known = {marker for test in tests for marker in test.case.markers}
        registered = {line.split(":")[0].split("(")[0].strip() for line in self._config.getini("markers")}
        try:
            words = MarkerExpression(self._config.getoption("markexpr") or "").words
        except UsageError:
            # Pytest says so itself, and it understands more (keyword arguments).
            return
        unknown = sorted(words - known - registered)
        if unknown:
            text = f"no test has the marker {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            self._notices.append(text)
            for word in unknown:
                # Newer releases of pytest end with an error where one is not registered.
                self._config.addinivalue_line("markers", f"{word}: of no model test")

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Say what is wrong with files that are not selected: nothing else will."""
        self._notices += [item.what for item in items if isinstance(item, UnreadableTest)]

    # Running

    @contextmanager
    def noting_faults(self) -> Iterator[None]:
        """What is raised inside and nothing has foreseen decides the exit code of the session."""
        try:
            yield
        except GauntletError:
            raise
        except Exception as error:
            self._note_fault(error)
            raise

    def _note_fault(self, error: Exception) -> None:
        self._faults.append(str(explain_escaped(error)))

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Take note of one that came from here; pytest shows it, and no summary."""
        inside = Path(__file__).parent.parent
        own = any(Path(entry.path).is_relative_to(inside) for entry in excinfo.traceback)
        if own and isinstance(excinfo.value, Exception):
            self._note_fault(excinfo.value)
            sys.stderr.write(f"error: {self._faults[-1]}\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Plan everything that was selected.

        Raises:
            UsageError: there is no IREE, its tools do not know a flag, or the folder for runs cannot be made.
        """
        if self._config.option.collectonly:
            self.pytest_deselected(session.items)
        tests = [item for item in session.items if isinstance(item, ModelTest)]
        stopped = session.testsfailed and not self._config.option.continue_on_collection_errors
        # Pytest calls this also where collecting ended in an error, such as a wrong expression.
        if not tests or stopped or self._config.option.collectonly or sys.exc_info()[0] is not None:
            return
        try:
            settings = SessionSettings(
                journal=f"journal-{self._worker['workerid']}.jsonl" if self._worker else JOURNAL,
                processes=int(self._worker.get("workercount", 1)),
                force_recompile=bool(self._config.getoption("force_recompile")),
                confirm=confirm_rules(self._config.getoption("verdict"), self._config.getoption("confirm_seconds")),
                all_goldens=self._config.getoption("unapplied_goldens") == "fail",
                markers=self._config.getoption("markexpr") or "",
                command=self._command,
            )
            chosen = [test.test for test in tests]
            self.session = ModelTestSession(chosen, self.run_folder(), self._artifacts, settings)
            self._remarks += filter(None, [self.session.why])
        except GauntletError as error:
            if self._worker:
                raise
            raise pytest.UsageError(str(error)) from error

    def run_folder(self) -> Path:
        """The folder of this session, made when it is first asked for; one for all processes under xdist."""
        if self._run_folder is None:
            runs = self._artifacts / "runs"
            require_plain(runs, "--artifact-directory")
            self._run_folder = make_run_folder(runs, "pytest", "--artifact-directory")
        return self._run_folder

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a process of xdist where the session's files go."""
        node.workerinput |= {"gauntlet_run": str(self.run_folder()), "gauntlet_command": self._command}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take in what a process of xdist noticed; one that died says nothing."""
        output = getattr(node, "workeroutput", {})
        self._notices = list(dict.fromkeys([*self._notices, *output.get("gauntlet_notices", [])]))
        self._remarks = list(dict.fromkeys([*self._remarks, *output.get("gauntlet_remarks", [])]))
        self._faults += output.get("gauntlet_faults", [])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End what still runs, and write the reports, once for all processes."""
        try:
            self._end()
        except GauntletError as error:
            self._notices.append(str(error))
        except Exception as error:  # noqa: BLE001 - pytest would end with 1, as of a test that failed
            self._note_fault(error)
        if self._worker:
            output: dict[str, Any] = self._config.workeroutput  # type: ignore[attr-defined] # xdist's
            output |= {"gauntlet_notices": self._notices, "gauntlet_remarks": self._remarks}
            output["gauntlet_faults"] = self._faults
        if self._faults:
            session.exitstatus = ExitCode.FAULT

    def _end(self) -> None:
        if self.session is not None:
            self.session.close()
        if not (self._worker or self._run_folder is None or self._config.option.collectonly):
            self._reported = _write_session_reports(self._run_folder, _locate_folder(self._config, "job_summary_path"))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what was noticed, and where the reports are."""
        for notice in self._notices:
            terminalreporter.write_line(f"warning: {notice}", yellow=True)
        for remark in self._remarks:
            terminalreporter.write_line(f"note: {remark}")
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
    """Writes the reports of a session, also of one in which a process died."""
    journals = sorted(run_dir.glob("journal-*.jsonl"))
    if journals:
        records = [record for path in journals if (record := read_journal(path)).runs]
        first = min(records, key=lambda record: record.runs[0].time, default=None)
        merged = merge_journals(first.runs[0], first.steps, records) if first else ""
        write_atomic(run_dir / JOURNAL, merged)
    if not (run_dir / JOURNAL).is_file():
        return False
    reports = write_reports(run_dir)
    try:
        summary_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GauntletError(f"{summary_folder}: cannot make the folder: {error.strerror}") from error
    for name, make in reports.files.items():
        if name.startswith(JOB_SUMMARY):
            write_report(summary_folder / name, make(), run_dir)
    return True
