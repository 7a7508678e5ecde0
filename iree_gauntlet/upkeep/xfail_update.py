"""The task `xfail.update`: adapts a suite's expected failures to a run's results, as a diff of the suite."""

from __future__ import annotations

import fnmatch
import itertools
import re
import sys
import tomllib
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import tomlkit

from iree_gauntlet.cases import Verdict
from iree_gauntlet.diagnostics import find_diagnostic, strip_unstable
from iree_gauntlet.dialects.load import read_specs
from iree_gauntlet.dialects.op_suites import OpSpec
from iree_gauntlet.dialects.spec import OP_TESTS
from iree_gauntlet.dialects.spec_file import read_byte_order_mark, read_toml
from iree_gauntlet.dialects.suite import read_suite
from iree_gauntlet.engine.workspace import find_suite
from iree_gauntlet.errors import ExitCode, GauntletError, SpecError, UsageError
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.goldens.goldens import parse_release
from iree_gauntlet.records.outcome import get_state, read_outcome
from iree_gauntlet.records.run_folder import find_free_folder, find_named_run, find_newest_run, read_run_options
from iree_gauntlet.requests import Defaults, FolderRequest, RunRequest, SelectionRequest, parse_request
from iree_gauntlet.settings import find_project_folder, find_runs_folder, format_path, resolve_links
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import BATCH_MODEL
from iree_gauntlet.upkeep.json_edits import EXPECTED_LISTS, Addition, Removal, with_changes
from iree_gauntlet.upkeep.spec_goldens import FileChange, emit_changes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tomlkit.items import AoT

    from iree_gauntlet.cases import Expectation
    from iree_gauntlet.records.outcome import RunOutcome, StepOutcome
    from iree_gauntlet.results import Result
    from iree_gauntlet.upkeep.upkeep_requests import XfailUpdateRequest


# The lists by stage, and True for crashes of the tool.
_LIST_NAMES = dict(zip(itertools.product(("compile", "run"), (False, True)), EXPECTED_LISTS, strict=True))
_MAX_DIAGNOSTIC_CHARS = 120
# The suite name of runs without a suite.
_NO_SUITE = "custom"
_TABLE_NAME = "expect_failure"
_ENTRY_HEADER = re.compile(r"\s*\[\[\s*expect_failure\s*\]\]")
_ANY_HEADER = re.compile(r"\s*\[")
_COMMENT_LINE = re.compile(r"\s*(#|$)")


@dataclass(frozen=True, slots=True)
class NewFailure:
    """An entry of a suite's `expect_failure`, field by field; kind and match may be empty."""

    case: str
    stage: Stage
    reason: str
    kind: str = ""
    match: str = ""


def update(options: XfailUpdateRequest, request: RunRequest) -> ExitCode:
    """Print, and with `write` apply, the expected failures that a run supports.

    Expected failures of operator suites are in their configs; all others are in the suite.
    """
    run = _read_run(find_named_run(options.run, "--run") if options.run else find_newest_run(find_runs_folder()))
    if get_state(run.record) != "complete":
        raise UsageError(f"{format_path(run.folder)} did not finish", "`run --resume` continues it.")
    changes: list[FileChange] = []
    run_options = read_run_options(run.folder)
    selection, defaults = parse_request(SelectionRequest, run_options.options), Defaults.of(run_options.defaults)
    suite_name = options.suite or selection.suite
    if not suite_name and not (run.is_of_operators and run.outcome.suite == _NO_SUITE):
        suite_name = defaults.suite
    suite = find_suite(suite_name) if suite_name else None
    if run.is_of_operators:
        # Cases are judged one by one, so each case runs separately, without batches and shards.
        rerun_options = {**run_options.options, "batch": 0, "shard": "", "shard_costs": ""}
        request = replace(request, defaults=defaults, stages=run_options.stages or ()).with_resumed_options(
            rerun_options
        )
        changes += _change_configs(run, _read_listed_cases(selection, suite), options.rerun, request)
    elif suite is None:
        raise UsageError(
            f"{format_path(run.folder)} did not run a suite", "Run a suite, or name the file with --suite."
        )
    if suite is not None:
        changes.append(_change_suite(run, suite))
    emit_changes(changes, options.output, write=options.write)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _Run:
    """A run; its steps are in plan order, and the record's results have complete reasons."""

    folder: Path
    record: JournalRecord
    steps: tuple[StepOutcome, ...]
    outcome: RunOutcome

    @property
    def release(self) -> str:
        """The release of the run's IREE."""
        return parse_release(self.outcome.toolchain.compiler)

    @property
    def is_of_operators(self) -> bool:
        """True if it has cases of operator suites."""
        return any(step.dialect == OP_TESTS for step in self.steps)


def _read_run(folder: Path) -> _Run:
    record = read_journal(folder / JOURNAL)
    outcome = read_outcome(record)
    order = {step.id: index for index, step in enumerate(record.planned)}
    return _Run(folder, record, tuple(sorted(outcome.steps, key=lambda step: order[step.id])), outcome)


def _change_suite(run: _Run, path: Path) -> FileChange:
    suite = read_suite(path)
    if suite.name != run.outcome.suite:
        message = f"{format_path(run.folder)} is a run of the suite {run.outcome.suite!r}, {path} is {suite.name!r}"
        raise UsageError(message, "Name the suite of the run with --suite, or another run.")
    removals = {index for index, entry in enumerate(suite.expected_failures) if _judge_entry(entry, run)}
    additions = _find_new_failures(run, suite.expected_failures)
    new_keys = {(failure.case, failure.stage) for failure in additions}
    removals |= {index for index, entry in enumerate(suite.expected_failures) if (entry.cases, entry.stage) in new_keys}
    text, _ = read_toml(path)
    mark = read_byte_order_mark(path)
    return FileChange(path, mark + text, mark + replace_expected_failures(text, removals=removals, additions=additions))


def _judge_entry(entry: Expectation, run: _Run) -> bool:
    """Return True if an expected failure is to be removed, and print the decision."""
    results = run.record.results
    verdicts = [
        results[step.id].verdict
        for step in run.steps
        if step.stage == entry.stage
        and fnmatch.fnmatchcase(f"{step.model}/{step.submodel}", entry.cases)
        and step.id in results
    ]
    location = f"{entry.origin.file}: {entry.origin.field} ({entry.cases}, {entry.stage})"
    passes, failures = verdicts.count(Verdict.XPASSED), verdicts.count(Verdict.XFAILED)
    if passes and not failures:
        sys.stderr.write(f"remove   {location}: passes now; the reason was: {entry.reason}\n")
        return True
    if passes:
        sys.stderr.write(f"stays    {location}: {passes} of {passes + failures} pass now: write a narrower case\n")
    elif all(verdict is Verdict.SKIPPED for verdict in verdicts):
        sys.stderr.write(f"stays    {location}: was not run\n")
    return False


def _find_new_failures(run: _Run, entries: Sequence[Expectation]) -> list[NewFailure]:
    """Find the failures for which an expectation must be added or changed, and print the decisions."""
    new_failures: dict[tuple[str, Stage], NewFailure] = {}
    for step in run.steps:
        result = run.record.results.get(step.id)
        if result is None or step.dialect == OP_TESTS:
            continue
        if result.verdict is not Verdict.FAILED and not result.verdict.is_error:
            continue
        case, stage = f"{step.model}/{step.submodel}", step.stage
        reason = _shorten_reason(result.reason)
        is_error = result.verdict.is_error and not result.crashed
        # A missed golden is corrected in the golden, not in a list of failures.
        if is_error or FailureKind.MISSES_A_GOLDEN in stage.row.failures:
            note = "an error is not a failure of the product" if is_error else "golden.update is for figures"
            sys.stderr.write(f"not added {case}, {stage}: {reason} ({note})\n")
            continue
        old = next(
            (entry for entry in entries if entry.stage is stage and fnmatch.fnmatchcase(case, entry.cases)), None
        )
        kind = str(result.failure or "")
        if old is not None and old.cases != case:
            location = f"{old.origin.file}: {old.origin.field} ({old.cases}, {stage})"
            sys.stderr.write(f"stays    {location}: {case} fails otherwise ({kind}): write a narrower case\n")
        elif (case, stage) not in new_failures:
            match = "" if result.failure in (None, FailureKind.WRONG_NUMBERS) else strip_unstable(result.reason)
            full_reason = f"{reason} (IREE {run.release})" if run.release else reason
            new_failures[case, stage] = NewFailure(case, stage, full_reason, kind, match)
            verb, prefix = "change" if old else "add", f"{kind}: " if kind else ""
            sys.stderr.write(f"{verb:<8} {case}, {stage}: {prefix}{reason}\n")
    return list(new_failures.values())


def replace_expected_failures(text: str, *, removals: Collection[int], additions: Sequence[NewFailure]) -> str:
    """Return the text of a suite with other expected failures.

    An entry is removed together with the comment directly above it.
    """
    # The last entry is removed first, so that the other indices stay valid.
    for index in sorted(removals, reverse=True):
        text = _remove_entry(text, index)
    for failure in additions:
        table = tomlkit.table()
        table.update({name: str(value) for name, value in asdict(failure).items() if value})
        tables = tomlkit.aot()
        tables.append(table)
        addition = tomlkit.document()
        addition[_TABLE_NAME] = tables
        text = f"{text.rstrip()}\n\n{tomlkit.dumps(addition)}"
    return text


def _remove_entry(text: str, index: int) -> str:
    """Remove an entry by lines, which keeps every comment; by tomlkit if lines do not show the tables."""
    expected_content = tomllib.loads(text)
    del expected_content[_TABLE_NAME][index]
    if not expected_content[_TABLE_NAME]:
        del expected_content[_TABLE_NAME]
    lines = text.splitlines(keepends=True)
    header_lines = [number for number, line in enumerate(lines) if _ENTRY_HEADER.match(line)]
    if index < len(header_lines):
        first = last = header_lines[index]
        for number in range(first + 1, len(lines)):
            if _ANY_HEADER.match(lines[number]):
                break
            last = last if _COMMENT_LINE.match(lines[number]) else number
        while first and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        # The removal also drops one of two blank lines that would meet.
        is_blank = first > 0 and not lines[first - 1].strip() and not "".join(lines[last + 1 : last + 2]).strip()
        new_text = "".join(lines[: first - 1 if is_blank else first] + lines[last + 1 :])
        with suppress(tomllib.TOMLDecodeError):
            if tomllib.loads(new_text) == expected_content:
                return new_text
    document = tomlkit.parse(text)
    tables = cast("AoT", document[_TABLE_NAME])
    del tables[index]
    if not len(tables):
        del document[_TABLE_NAME]
    return tomlkit.dumps(document)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A case whose lists may change."""

    config_entry: ConfigEntry
    result: CaseResult
    changes: Sequence[Removal | Addition]
    message: str

    @property
    def compiles(self) -> bool:
        """True if the result of its compile is in question."""
        return any("_compile_" in change.list for change in self.changes)


def _change_configs(run: _Run, entries: Mapping[str, ConfigEntry], count: int, request: RunRequest) -> list[FileChange]:
    """Compute the changes of the configs of a run's operator suites, and rerun unexpected results."""
    candidates = _choose_candidates(_collect_results(run), entries, run.release)
    if count < 0:
        raise UsageError(f"--rerun {count}: expected how often to run again", "0 trusts the run.")
    if candidates and count:
        candidates = _rerun_candidates(run, candidates, count, request)
    by_config: dict[Path, list[Removal | Addition]] = {}
    for candidate in candidates.values():
        sys.stderr.write(f"{candidate.message}  [{format_path(candidate.config_entry.config).name}]\n")
        by_config.setdefault(candidate.config_entry.config, []).extend(candidate.changes)
    file_changes = []
    for path, changes in by_config.items():
        try:
            text = path.read_bytes().decode()
            file_changes.append(FileChange(path, text, with_changes(text, changes)))
        except (OSError, UnicodeDecodeError) as error:
            raise GauntletError(f"{path}: cannot be read: {error}", "`lint` reports its problems.") from error
        except GauntletError as error:
            raise GauntletError(f"{path}: {error.message}", error.hint) from error
    return file_changes


def _choose_candidates(
    results: Mapping[str, CaseResult], entries: Mapping[str, ConfigEntry], release: str
) -> dict[str, _Candidate]:
    candidates = {}
    for chain, result in results.items():
        if not result.has_surprise:
            continue
        entry = entries.get(chain)
        if entry is None:
            sys.stderr.write(f"left out  {chain}: its case or config no longer exists\n")
        elif result.obstacle:
            sys.stderr.write(f"not added {entry.entry}: {result.obstacle}\n")
        else:
            changes, message = _decide_changes(entry, result, release)
            if changes:
                candidates[chain] = _Candidate(entry, result, changes, message)
    return candidates


def _rerun_candidates(
    run: _Run, candidates: Mapping[str, _Candidate], count: int, request: RunRequest
) -> dict[str, _Candidate]:
    """Rerun the candidates, and return those with the same result every time; print the others."""
    count_text = f"{pluralize(len(candidates), 'case')}, {pluralize(count, 'time')}"
    sys.stderr.write(f"running unexpected results again: {count_text} (--rerun 0 trusts the run)\n")
    results_by_chain = {chain: [candidate.result] for chain, candidate in candidates.items()}
    # Only candidates whose compile is in question are compiled anew; the others take modules from the cache.
    for compiles in (True, False) * count:
        chains = {chain for chain, candidate in candidates.items() if candidate.compiles is compiles}
        rerun_results = _run_again(run, chains, request, force=compiles) if chains else {}
        for chain in chains & rerun_results.keys():
            results_by_chain[chain].append(rerun_results[chain])
    stable_candidates = {}
    for chain, results in results_by_chain.items():
        if len(results) <= count:
            # The case ran on another machine of a merged run, or its target does not exist on this machine.
            name = candidates[chain].config_entry.config.name
            sys.stderr.write(
                f"left out {chain}: it cannot be run again on this machine; --rerun 0 trusts the run  [{name}]\n"
            )
        elif len({result.text for result in results}) == 1:
            stable_candidates[chain] = candidates[chain]
        else:
            verdicts = ", ".join(result.text for result in results)
            entry = candidates[chain].config_entry
            sys.stderr.write(f"flaky    {entry.entry}: {verdicts}: not changed  [{entry.config.name}]\n")
    return stable_candidates


def _run_again(run: _Run, chains: Collection[str], request: RunRequest, *, force: bool) -> dict[str, CaseResult]:
    """Run some chains of a run again, in the run's folder `again`, and return their results."""
    # These imports load the engine, which a diff without reruns does not need.
    from iree_gauntlet.experiments import run as execute  # noqa: PLC0415
    from iree_gauntlet.reports.experiment_reports import ConsolePresenter  # noqa: PLC0415

    # The folder is inside the run's folder, so that the rerun does not become the newest run.
    folder = find_free_folder(resolve_links(run.folder) / "again" / "1")
    request = replace(
        request,
        folder=FolderRequest(run_dir=str(folder)),
        execution=replace(request.execution, force_recompile=force),
        chains=frozenset(chains),
    )
    # Standard output is for the diff alone.
    exit_code = execute.run(execute.make_setup(request), ConsolePresenter(sys.stderr), brief=True).exit_code
    rerun = _read_run(folder)
    if exit_code is ExitCode.INTERRUPTED or get_state(rerun.record) != "complete":
        raise KeyboardInterrupt
    if run.outcome.toolchain.identity != rerun.outcome.toolchain.identity:
        raise UsageError(
            f"{format_path(run.folder)} was run with another IREE than the current one",
            "Give that IREE with --iree, or --rerun 0 to trust the run.",
        )
    return _collect_results(rerun)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case under one config.

    Attributes:
        stage: the stage that failed, `compile` or `run`; empty for none.
        obstacle: the reason why the case cannot be judged; empty for none.
    """

    stage: str = ""
    is_crash: bool = False
    passed_stages: frozenset[str] = frozenset()
    reason: str = ""
    obstacle: str = ""
    has_surprise: bool = False

    @property
    def text(self) -> str:
        """The result as text: `passed`, `failed at compile`, `crashed at run`, `error`."""
        if self.obstacle:
            return "error"
        if not self.stage:
            return "passed"
        return f"{'crashed' if self.is_crash else 'failed'} at {self.stage}"


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A case as listed in a config."""

    config: Path
    entry: str
    lists: Mapping[str, str]


def _collect_results(run: _Run) -> dict[str, CaseResult]:
    """Collect the result of each case of operator suites, by chain."""
    chains: dict[str, list[StepOutcome]] = {}
    for step in run.steps:
        if step.dialect == OP_TESTS and step.model != BATCH_MODEL:
            chains.setdefault(step.chain, []).append(step)
    expected_failures = {step.id for step in run.record.planned if step.expect_failure}
    return {chain: _judge_case(steps, run.record.results, expected_failures) for chain, steps in chains.items()}


def _judge_case(steps: Sequence[StepOutcome], results: Mapping[str, Result], xfail_ids: Collection[str]) -> CaseResult:
    passed_stages: set[str] = set()
    has_surprise = False
    for step in steps:
        name = "compile" if step.stage is Stage.COMPILE else "run" if step.stage.row.runs_modules else ""
        result = results.get(step.id)
        if result is None:
            return CaseResult(obstacle="it was not finished", has_surprise=True)
        verdict, reason = result.verdict, result.reason
        if verdict is Verdict.SKIPPED:
            continue
        if verdict.counts_as_pass or verdict.is_doubtful:
            # With `--lenient`, an unexpected pass has the verdict of a pass.
            is_lenient_pass = verdict is Verdict.PASSED and step.id in xfail_ids
            has_surprise = has_surprise or is_lenient_pass or verdict is Verdict.XPASSED
            passed_stages.add(name)
            continue
        is_crash = result.crashed
        if verdict is Verdict.QUARANTINED or (verdict.is_error and not is_crash):
            note = "an error is not a failure of the product" if verdict.is_error else "no entry is needed"
            return CaseResult(obstacle=f"{reason} ({note})", has_surprise=verdict.is_error)
        if not name:
            return CaseResult(obstacle=reason, has_surprise=True)
        if any(check.passed is False for check in result.checks):
            return CaseResult(obstacle=f"{reason} (golden.update is for figures)", has_surprise=True)
        return CaseResult(
            name,
            is_crash,
            frozenset(passed_stages),
            reason,
            has_surprise=has_surprise or verdict is not Verdict.XFAILED,
        )
    return CaseResult(passed_stages=frozenset(passed_stages), has_surprise=has_surprise)


def _read_listed_cases(selection: SelectionRequest, suite: Path | None) -> dict[str, ConfigEntry]:
    """Read the cases of a run's selection from the current configs, by chain."""
    suite_content = read_suite(suite) if suite else None
    default_folders = list(suite_content.spec_dirs) if suite_content else [format_path(find_project_folder() / "specs")]
    folders = list(map(Path, selection.spec_dir)) or default_folders
    configs = list(map(Path, selection.config)) or list(suite_content.configs if suite_content else ())
    specs = [spec for spec in read_specs(folders, configs=configs) if isinstance(spec, OpSpec)]
    used_configs = {config.path: config for spec in specs for config in spec.suite.configs}
    problems = [problem for config in used_configs.values() if config.document is None for problem in config.problems]
    if problems:
        raise SpecError(problems, "configs")
    # Some configs have the torch variant's folder before their entries.
    has_variant_prefix = {
        path: any(
            entry.startswith("generated/") for name in _LIST_NAMES.values() for entry in getattr(config.document, name)
        )
        for path, config in used_configs.items()
    }
    cases: dict[str, ConfigEntry] = {}
    for spec in specs:
        for config in spec.suite.configs:
            entry, lists = spec.keys[0 if has_variant_prefix[config.path] else -1], {}
            for key, name in itertools.product(spec.keys, _LIST_NAMES.values()):
                if key in getattr(config.document, name):
                    entry = key
                    xfails = (
                        xfail for xfail in config.expectations.get(key, ()) if xfail.origin.field.startswith(name)
                    )
                    lists[name] = next((xfail.reason for xfail in xfails if xfail.reason != f"in {name}"), "")
            cases[f"{spec.model}/{spec.stem}@{config.target.name}"] = ConfigEntry(config.path, entry, lists)
    return cases


def _decide_changes(entry: ConfigEntry, result: CaseResult, release: str) -> tuple[list[Removal | Addition], str]:
    """Return the changes of a case's lists, and a message about them; none if the lists are right."""
    if result.obstacle:
        return [], ""
    target = _LIST_NAMES[result.stage, result.is_crash] if result.stage else ""
    kept_lists = {target}
    if result.is_crash:
        # The list of crashes has precedence over the stage's other list.
        kept_lists.add(_LIST_NAMES[result.stage, False])
    stages = result.passed_stages | ({"compile", "run"} if result.stage == "compile" else {result.stage})
    old_lists = [
        name
        for (stage, _), name in _LIST_NAMES.items()
        if name in entry.lists and stage in stages and name not in kept_lists
    ]
    changes: list[Removal | Addition] = [Removal(name, entry.entry) for name in old_lists]
    removal = "; ".join(
        f"no longer in {name}" + (f" ({entry.lists[name]})" if entry.lists[name] else "") for name in old_lists
    )
    if not target or target in entry.lists:
        return changes, f"remove   {entry.entry}: {result.text}, {removal}" if old_lists else ""
    diagnostic = _shorten_reason(result.reason)
    reason = f"{result.stage}: {diagnostic}" + (f" (IREE {release})" if release else "")
    changes.append(Addition(target, entry.entry, reason))
    verb = "move    " if old_lists else "add     "
    return changes, f"{verb} {entry.entry}: {target}: {diagnostic}" + (f"; {removal}" if old_lists else "")


def _shorten_reason(reason: str) -> str:
    """Shorten a failure's reason to the tool's message about the operator, for a list of expected failures."""
    text = find_diagnostic(reason) or "no reason was given"
    return text if len(text) <= _MAX_DIAGNOSTIC_CHARS else text[: _MAX_DIAGNOSTIC_CHARS - 1] + "…"
