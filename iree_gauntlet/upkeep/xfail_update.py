"""The task `xfail.update`: a suite's expected failures, as a run has found them, as a diff of the suite."""

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
from iree_gauntlet.dialects.json_text import EXPECTED_LISTS, Addition, Removal, with_changes
from iree_gauntlet.dialects.load import read_specs
from iree_gauntlet.dialects.op_suites import DIALECT, OpSpec
from iree_gauntlet.dialects.spec_file import read_mark, read_toml
from iree_gauntlet.dialects.suite import read_suite
from iree_gauntlet.engine.workspace import find_suite
from iree_gauntlet.errors import ExitCode, GauntletError, SpecError, UsageError
from iree_gauntlet.formatting import counted
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.goldens.goldens import release_of
from iree_gauntlet.records.outcome import read_outcome, state_of
from iree_gauntlet.records.run_folder import find_newest_run, free_folder, read_kept_options, run_named
from iree_gauntlet.requests import Defaults, FolderRequest, RunRequest, SelectionRequest, read
from iree_gauntlet.settings import find_project_folder, find_runs_folder, resolve_links, shown
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import BATCH_MODEL
from iree_gauntlet.upkeep.spec_goldens import FileChange, hand_out

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tomlkit.items import AoT

    from iree_gauntlet.dialects.load import ExpectedFailure
    from iree_gauntlet.records.outcome import RunOutcome, StepOutcome
    from iree_gauntlet.results import Result
    from iree_gauntlet.upkeep.upkeep_requests import XfailUpdateRequest


# By stage, and whether the tool crashes there.
_LISTS = dict(zip(itertools.product(("compile", "run"), (False, True)), EXPECTED_LISTS, strict=True))
_LONGEST_DIAGNOSTIC = 120
# What runs are called that are no suite's.
_NO_SUITE = "custom"
_NAME = "expect_failure"
_HEADER = re.compile(r"\s*\[\[\s*expect_failure\s*\]\]")
_ANY_HEADER = re.compile(r"\s*\[")
_REMARK = re.compile(r"\s*(#|$)")


@dataclass(frozen=True, slots=True)
class NewFailure:
    """An entry of a suite's `expect_failure`, field by field; kind and match may be empty."""

    case: str
    stage: Stage
    reason: str
    kind: str = ""
    match: str = ""


def update(asked: XfailUpdateRequest, request: RunRequest) -> ExitCode:
    """Shows, and with `write` makes, the expected failures that a run speaks for.

    Those of operator suites are in their configs, all others in the suite.
    """
    run = _read_run(run_named(asked.run, "--run") if asked.run else find_newest_run(find_runs_folder()))
    if state_of(run.record) != "complete":
        raise UsageError(f"{shown(run.folder)} did not finish", "`run --resume` continues it.")
    changes: list[FileChange] = []
    begun = read_kept_options(run.folder)
    selected, defaults = read(SelectionRequest, begun.options), Defaults.of(begun.defaults)
    named = asked.suite or selected.suite
    if not named and not (run.is_of_operators and run.outcome.suite == _NO_SUITE):
        named = defaults.suite
    suite = find_suite(named) if named else None
    if run.is_of_operators:
        # Each by itself, as it is judged.
        kept = {**begun.options, "batch": 0, "shard": "", "shard_costs": ""}
        request = replace(request, defaults=defaults, stages=begun.stages or ()).with_kept(kept)
        changes += _change_configs(run, _read_listed_cases(selected, suite), asked.rerun, request)
    elif suite is None:
        raise UsageError(f"{shown(run.folder)} was not a suite's", "Run a suite, or name the file with --suite.")
    if suite is not None:
        changes.append(_change_suite(run, suite))
    hand_out(changes, asked.output, write=asked.write)
    return ExitCode.OK


@dataclass(frozen=True, slots=True)
class _ReadRun:
    """A run, read; its steps are in plan order, and the record's results have their reasons as a whole."""

    folder: Path
    record: JournalRecord
    steps: tuple[StepOutcome, ...]
    outcome: RunOutcome

    @property
    def release(self) -> str:
        """Of the IREE that it was run with."""
        return release_of(self.outcome.toolchain.compiler)

    @property
    def is_of_operators(self) -> bool:
        """Whether there are cases of operator suites in it."""
        return any(step.dialect == DIALECT for step in self.steps)


def _read_run(folder: Path) -> _ReadRun:
    record = read_journal(folder / JOURNAL)
    outcome = read_outcome(record)
    order = {step.id: place for place, step in enumerate(record.planned)}
    return _ReadRun(folder, record, tuple(sorted(outcome.steps, key=lambda step: order[step.id])), outcome)


def _change_suite(run: _ReadRun, path: Path) -> FileChange:
    suite = read_suite(path)
    if suite.name != run.outcome.suite:
        what = f"{shown(run.folder)} is a run of the suite {run.outcome.suite!r}, {path} is {suite.name!r}"
        raise UsageError(what, "Name the suite of the run with --suite, or another run.")
    removed = {index for index, entry in enumerate(suite.expected_failures) if _judge_entry(entry, run)}
    added = _find_new_failures(run, suite.expected_failures)
    new = {(failure.case, failure.stage) for failure in added}
    removed |= {index for index, old in enumerate(suite.expected_failures) if (old.case, old.stage) in new}
    text, _ = read_toml(path)
    mark = read_mark(path)
    return FileChange(path, mark + text, mark + with_expected_failures(text, removed=removed, added=added))


def _judge_entry(entry: ExpectedFailure, run: _ReadRun) -> bool:
    """Whether an expected failure is no longer one; why is reported."""
    results = run.record.results
    verdicts = [
        results[step.id].verdict
        for step in run.steps
        if step.stage == entry.stage
        and fnmatch.fnmatchcase(f"{step.model}/{step.submodel}", entry.case)
        and step.id in results
    ]
    where = f"{entry.origin.file}: {entry.origin.field} ({entry.case}, {entry.stage})"
    passed, failed = verdicts.count(Verdict.XPASSED), verdicts.count(Verdict.XFAILED)
    if passed and not failed:
        sys.stderr.write(f"remove   {where}: passes now; the reason was: {entry.reason}\n")
        return True
    if passed:
        sys.stderr.write(f"stays    {where}: {passed} of {passed + failed} pass now: write a narrower case\n")
    elif all(verdict is Verdict.SKIPPED for verdict in verdicts):
        sys.stderr.write(f"stays    {where}: was not run\n")
    return False


def _find_new_failures(run: _ReadRun, listed: Sequence[ExpectedFailure]) -> list[NewFailure]:
    found: dict[tuple[str, Stage], NewFailure] = {}
    for step in run.steps:
        result = run.record.results.get(step.id)
        if result is None or step.dialect == DIALECT:
            continue
        if result.verdict is not Verdict.FAILED and not result.verdict.is_error:
            continue
        case, stage = f"{step.model}/{step.submodel}", step.stage
        reason = _shorten_reason(result.reason)
        error = result.verdict.is_error and not result.crashed
        # The result of a broken golden belongs into the golden, not into a list of failures.
        if error or FailureKind.MISSES_A_GOLDEN in stage.row.failures:
            why = "an error is no failure of the product" if error else "golden.update is for figures"
            sys.stderr.write(f"not added {case}, {stage}: {reason} ({why})\n")
            continue
        old = next((item for item in listed if item.stage is stage and fnmatch.fnmatchcase(case, item.case)), None)
        kind = str(result.failure or "")
        if old is not None and old.case != case:
            where = f"{old.origin.file}: {old.origin.field} ({old.case}, {stage})"
            sys.stderr.write(f"stays    {where}: {case} fails otherwise ({kind}): write a narrower case\n")
        elif (case, stage) not in found:
            match = "" if result.failure in (None, FailureKind.WRONG_NUMBERS) else strip_unstable(result.reason)
            why = f"{reason} (IREE {run.release})" if run.release else reason
            found[case, stage] = NewFailure(case, stage, why, kind, match)
            verb, how = "change" if old else "add", f"{kind}: " if kind else ""
            sys.stderr.write(f"{verb:<8} {case}, {stage}: {how}{reason}\n")
    return list(found.values())


def with_expected_failures(text: str, *, removed: Collection[int], added: Sequence[NewFailure]) -> str:
    """The text of a suite with other expected failures.

    An entry goes with the comment that stands directly above it.
    """
    # From the last one on, so that the indices hold.
    for index in sorted(removed, reverse=True):
        text = _without(text, index)
    for failure in added:
        table = tomlkit.table()
        table.update({name: str(value) for name, value in asdict(failure).items() if value})
        tables = tomlkit.aot()
        tables.append(table)
        addition = tomlkit.document()
        addition[_NAME] = tables
        text = f"{text.rstrip()}\n\n{tomlkit.dumps(addition)}"
    return text


def _without(text: str, index: int) -> str:
    """Line by line, which keeps every comment; by tomlkit where lines do not tell what is a table."""
    expected = tomllib.loads(text)
    del expected[_NAME][index]
    if not expected[_NAME]:
        del expected[_NAME]
    lines = text.splitlines(keepends=True)
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    if index < len(headers):
        first = last = headers[index]
        for number in range(first + 1, len(lines)):
            if _ANY_HEADER.match(lines[number]):
                break
            last = last if _REMARK.match(lines[number]) else number
        while first and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        # One of the two blank lines that then meet.
        blank = first > 0 and not lines[first - 1].strip() and not "".join(lines[last + 1 : last + 2]).strip()
        shorter = "".join(lines[: first - 1 if blank else first] + lines[last + 1 :])
        with suppress(tomllib.TOMLDecodeError):
            if tomllib.loads(shorter) == expected:
                return shorter
    document = tomlkit.parse(text)
    tables = cast("AoT", document[_NAME])
    del tables[index]
    if not len(tables):
        del document[_NAME]
    return tomlkit.dumps(document)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A case whose lists may change."""

    listed: Listed
    found: CaseResult
    changes: Sequence[Removal | Addition]
    words: str

    @property
    def compiles(self) -> bool:
        """Whether the outcome of its compile is in question."""
        return any("_compile_" in change.list for change in self.changes)


def _change_configs(run: _ReadRun, listed: Mapping[str, Listed], count: int, request: RunRequest) -> list[FileChange]:
    """What the configs of a run's operator suites are to become, by the run and by running again what differs."""
    candidates = _choose_candidates(_collect_found(run), listed, run.release)
    if count < 0:
        raise UsageError(f"--rerun {count}: expected how often to run again", "0 trusts the run.")
    if candidates and count:
        candidates = _keep_steady(run, candidates, count, request)
    by_config: dict[Path, list[Removal | Addition]] = {}
    for candidate in candidates.values():
        sys.stderr.write(f"{candidate.words}  [{shown(candidate.listed.config).name}]\n")
        by_config.setdefault(candidate.listed.config, []).extend(candidate.changes)
    changed = []
    for path, changes in by_config.items():
        try:
            text = path.read_bytes().decode()
            changed.append(FileChange(path, text, with_changes(text, changes)))
        except (OSError, UnicodeDecodeError) as error:
            raise GauntletError(f"{path}: cannot be read: {error}", "`lint` shows what is wrong with it.") from error
        except GauntletError as error:
            raise GauntletError(f"{path}: {error.what}", error.hint) from error
    return changed


def _choose_candidates(
    found: Mapping[str, CaseResult], listed: Mapping[str, Listed], release: str
) -> dict[str, _Candidate]:
    candidates = {}
    for chain, outcome in found.items():
        if not outcome.unexpected:
            continue
        case = listed.get(chain)
        if case is None:
            sys.stderr.write(f"left out  {chain}: its case or config is not there any more\n")
        elif outcome.unjudged:
            sys.stderr.write(f"not added {case.entry}: {outcome.unjudged}\n")
        else:
            changes, words = _decide_changes(case, outcome, release)
            if changes:
                candidates[chain] = _Candidate(case, outcome, changes, words)
    return candidates


def _keep_steady(
    run: _ReadRun, candidates: Mapping[str, _Candidate], count: int, request: RunRequest
) -> dict[str, _Candidate]:
    """Those that come out the same every time; the others are reported."""
    words = f"{counted(len(candidates), 'case')}, {counted(count, 'time')}"
    sys.stderr.write(f"running again what came out otherwise than expected: {words} (--rerun 0 trusts the run)\n")
    outcomes = {chain: [candidate.found] for chain, candidate in candidates.items()}
    # A module from the cache says nothing about a compile, and one that was in question is not needed for the others.
    for compiles in (True, False) * count:
        chains = {chain for chain, candidate in candidates.items() if candidate.compiles is compiles}
        again = _run_again(run, chains, request, forced=compiles) if chains else {}
        for chain in chains & again.keys():
            outcomes[chain].append(again[chain])
    steady = {}
    for chain, seen in outcomes.items():
        if len(seen) <= count:
            # Of another machine's part of a merged run, or for a target that is not there.
            where = candidates[chain].listed.config.name
            sys.stderr.write(f"left out {chain}: it cannot be run again here; --rerun 0 trusts the run  [{where}]\n")
        elif len({found.words for found in seen}) == 1:
            steady[chain] = candidates[chain]
        else:
            verdicts = ", ".join(found.words for found in seen)
            listed = candidates[chain].listed
            sys.stderr.write(f"flaky    {listed.entry}: {verdicts}: left as it is  [{listed.config.name}]\n")
    return steady


def _run_again(run: _ReadRun, chains: Collection[str], request: RunRequest, *, forced: bool) -> dict[str, CaseResult]:
    """The result of some chains of a run in another one, which is kept in the run's folder `again`."""
    # What runs brings the engine; a diff without reruns need not wait for it.
    from iree_gauntlet.experiments import run as execute  # noqa: PLC0415
    from iree_gauntlet.reports.experiment_reports import ConsolePresenter  # noqa: PLC0415

    # Inside of the run, so that it stays the newest one.
    folder = free_folder(resolve_links(run.folder) / "again" / "1")
    request = replace(
        request,
        folder=FolderRequest(run_dir=str(folder)),
        conduct=replace(request.conduct, force_recompile=forced),
        chains=frozenset(chains),
    )
    # The diff alone goes to standard output.
    code = execute.run(execute.choose(request), ConsolePresenter(sys.stderr), brief=True).exit_code
    again = _read_run(folder)
    if code is ExitCode.INTERRUPTED or state_of(again.record) != "complete":
        raise KeyboardInterrupt
    if run.outcome.toolchain.identity != again.outcome.toolchain.identity:
        raise UsageError(
            f"{shown(run.folder)} was run with another IREE than the one that is here now",
            "Give that IREE with --iree, or --rerun 0 to trust the run.",
        )
    return _collect_found(again)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case under one config.

    Attributes:
        stage: at which it failed, `compile` or `run`; empty where it did not.
        unjudged: what kept it from being judged; empty where nothing did.
    """

    stage: str = ""
    crash: bool = False
    passed: frozenset[str] = frozenset()
    reason: str = ""
    unjudged: str = ""
    unexpected: bool = False

    @property
    def words(self) -> str:
        """`passed`, `failed at compile`, `crashed at run`, `error`."""
        if self.unjudged:
            return "error"
        if not self.stage:
            return "passed"
        return f"{'crashed' if self.crash else 'failed'} at {self.stage}"


@dataclass(frozen=True, slots=True)
class Listed:
    """A case as a config has it."""

    config: Path
    entry: str
    lists: Mapping[str, str]


def _collect_found(run: _ReadRun) -> dict[str, CaseResult]:
    """The result of each case of operator suites, by chain."""
    chains: dict[str, list[StepOutcome]] = {}
    for step in run.steps:
        if step.dialect == DIALECT and step.model != BATCH_MODEL:
            chains.setdefault(step.chain, []).append(step)
    expected = {step.id for step in run.record.planned if step.expect_failure}
    return {chain: _judge_case(steps, run.record.results, expected) for chain, steps in chains.items()}


def _judge_case(steps: Sequence[StepOutcome], results: Mapping[str, Result], expected: Collection[str]) -> CaseResult:
    passed: set[str] = set()
    unexpected = False
    for step in steps:
        name = "compile" if step.stage is Stage.COMPILE else "run" if step.stage.row.runs_modules else ""
        result = results.get(step.id)
        if result is None:
            return CaseResult(unjudged="it was not finished", unexpected=True)
        verdict, reason = result.verdict, result.reason
        if verdict is Verdict.SKIPPED:
            continue
        if verdict.counts_as_pass or verdict.is_doubtful:
            # With `--lenient`, a pass that is none to be expected is a pass.
            lenient = verdict is Verdict.PASSED and step.id in expected
            unexpected = unexpected or lenient or verdict is Verdict.XPASSED
            passed.add(name)
            continue
        crash = result.crashed
        if verdict.is_error and not crash:
            return CaseResult(unjudged=f"{reason} (an error is no failure of the product)", unexpected=True)
        if not name:
            return CaseResult(unjudged=reason, unexpected=True)
        if any(check.passed is False for check in result.checks):
            return CaseResult(unjudged=f"{reason} (golden.update is for figures)", unexpected=True)
        return CaseResult(
            name, crash, frozenset(passed), reason, unexpected=unexpected or verdict is not Verdict.XFAILED
        )
    return CaseResult(passed=frozenset(passed), unexpected=unexpected)


def _read_listed_cases(asked: SelectionRequest, suite: Path | None) -> dict[str, Listed]:
    """The cases that a run was asked for as their configs have them now, by chain."""
    named = read_suite(suite) if suite else None
    default = list(named.spec_dirs) if named else [shown(find_project_folder() / "specs")]
    folders = list(map(Path, asked.spec_dir)) or default
    configs = list(map(Path, asked.config)) or list(named.configs if named else ())
    specs = [spec for spec in read_specs(folders, configs=configs) if isinstance(spec, OpSpec)]
    used = {config.path: config for spec in specs for config in spec.suite.configs}
    unread = [problem for config in used.values() if config.document is None for problem in config.problems]
    if unread:
        raise SpecError(unread, "configs")
    # Whether a config writes the torch variant's folder before its entries.
    prefixed = {
        path: any(
            entry.startswith("generated/") for name in _LISTS.values() for entry in getattr(config.document, name)
        )
        for path, config in used.items()
    }
    cases: dict[str, Listed] = {}
    for spec in specs:
        for config in spec.suite.configs:
            entry, lists = spec.keys[0 if prefixed[config.path] else -1], {}
            for key, name in itertools.product(spec.keys, _LISTS.values()):
                if key in getattr(config.document, name):
                    entry = key
                    own = (item for item in config.expected.get(key, ()) if item.origin.field.startswith(name))
                    lists[name] = next((item.reason for item in own if item.reason != f"in {name}"), "")
            cases[f"{spec.model}/{spec.stem}@{config.target.name}"] = Listed(config.path, entry, lists)
    return cases


def _decide_changes(listed: Listed, found: CaseResult, release: str) -> tuple[list[Removal | Addition], str]:
    """What a case's lists are to become, and what is done in a few words; nothing where they are right."""
    if found.unjudged:
        return [], ""
    wanted = _LISTS[found.stage, found.crash] if found.stage else ""
    keep = {wanted}
    if found.crash:
        # Where it stands in both lists of a stage, that of crashes counts.
        keep.add(_LISTS[found.stage, False])
    known = found.passed | ({"compile", "run"} if found.stage == "compile" else {found.stage})
    gone = [name for (stage, _), name in _LISTS.items() if name in listed.lists and stage in known and name not in keep]
    changes: list[Removal | Addition] = [Removal(name, listed.entry) for name in gone]
    said = "; ".join(
        f"no longer in {name}" + (f" ({listed.lists[name]})" if listed.lists[name] else "") for name in gone
    )
    if not wanted or wanted in listed.lists:
        return changes, f"remove   {listed.entry}: {found.words}, {said}" if gone else ""
    diagnostic = _shorten_reason(found.reason)
    reason = f"{found.stage}: {diagnostic}" + (f" (IREE {release})" if release else "")
    changes.append(Addition(wanted, listed.entry, reason))
    verb = "move    " if gone else "add     "
    return changes, f"{verb} {listed.entry}: {wanted}: {diagnostic}" + (f"; {said}" if gone else "")


def _shorten_reason(reason: str) -> str:
    """What a list of expected failures says of a failure: what the tool said, and of which operator."""
    text = find_diagnostic(reason) or "no reason was given"
    return text if len(text) <= _LONGEST_DIAGNOSTIC else text[: _LONGEST_DIAGNOSTIC - 1] + "…"
