"""The task `xfail.update`: a suite's expected failures, as a run has found them, as a diff of the suite."""

from __future__ import annotations

import fnmatch
import re
import sys
import tomllib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

import tomlkit

from iree_gauntlet.cases import FailureKind, Stage, Verdict
from iree_gauntlet.diagnostics import stable_text
from iree_gauntlet.dialects.op_tests import DIALECT
from iree_gauntlet.dialects.suite import read_suite
from iree_gauntlet.dialects.toml_file import read_toml
from iree_gauntlet.engine.workspace import suite_path
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.goldens.goldens import release_of
from iree_gauntlet.records.earlier_runs import asked_for, newest_run, run_named
from iree_gauntlet.settings import runs_folder, shown
from iree_gauntlet.upkeep.op_xfail_update import config_changes, is_operator_run, short_reason
from iree_gauntlet.upkeep.proposed_changes import FileChange, hand_out

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from tomlkit.items import AoT

    from iree_gauntlet.dialects.load import ExpectedFailure
    from iree_gauntlet.requests import RunRequest
    from iree_gauntlet.upkeep.upkeep_requests import XfailUpdateRequest


# The result of a broken golden belongs into the golden, not into a list of failures.
_STAGES = (Stage.IMPORT, Stage.COMPILE, Stage.THRESHOLD)
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

    Args:
        asked: which run, and what becomes of the diff.
        request: how it is run again.

    Raises:
        UsageError: there is no such run, it did not finish, or it was not a suite's.
        SpecError: the suite cannot be read.
        GauntletError: the journal cannot be read.
    """
    run = run_named(asked.run, "--run") if asked.run else newest_run(runs_folder())
    record = read_journal(run / JOURNAL)
    if record.end is None or record.end.get("interrupted"):
        raise UsageError(f"{shown(run)} did not finish", "`run --resume` continues it.")
    changes: list[FileChange] = []
    suite = _suite_of(run, record, asked.suite)
    if is_operator_run(record):
        changes += config_changes(run, record, suite, asked.rerun, request)
    elif suite is None:
        raise UsageError(f"{shown(run)} was not a suite's", "Run a suite, or name the file with --suite.")
    if suite is not None:
        changes.append(_suite_change(run, record, suite))
    hand_out(changes, asked.output, write=asked.write)
    return ExitCode.OK


def _suite_change(run: Path, record: JournalRecord, path: Path) -> FileChange:
    suite = read_suite(path)
    if suite.name != record.runs[-1]["suite"]:
        what = f"{shown(run)} is a run of the suite {record.runs[-1]['suite']!r}, {path} is {suite.name!r}"
        raise UsageError(what, "Name the suite of the run with --suite, or another run.")
    removed = {index for index, entry in enumerate(suite.expected_failures) if _is_over(entry, record)}
    release = release_of(str(record.runs[-1].get("toolchain", {}).get("compiler", "")))
    added = _new_failures(record, release, suite.expected_failures)
    new = {(failure.case, failure.stage) for failure in added}
    removed |= {index for index, old in enumerate(suite.expected_failures) if (old.case, old.stage) in new}
    text, _ = read_toml(path)
    return FileChange(path, text, with_expected_failures(text, removed=removed, added=added))


def _suite_of(run: Path, record: JournalRecord, suite: str) -> Path | None:
    asked = asked_for(run)
    named = suite or asked.selection.get("suite")
    if not named and not (is_operator_run(record) and record.runs[-1]["suite"] == _NO_SUITE):
        named = asked.defaults.get("suite")
    return suite_path(str(named)) if named else None


def _is_over(entry: ExpectedFailure, record: JournalRecord) -> bool:
    """Whether an expected failure is no longer one; why is reported."""
    verdicts = [
        record.results[step["id"]].verdict
        for step in record.steps
        if step["stage"] == entry.stage
        and fnmatch.fnmatchcase(f"{step['model']}/{step['submodel']}", entry.case)
        and step["id"] in record.results
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


def _new_failures(record: JournalRecord, release: str, listed: Sequence[ExpectedFailure]) -> list[NewFailure]:
    found: dict[tuple[str, Stage], NewFailure] = {}
    for step in record.steps:
        result = record.results.get(step["id"])
        if result is None or result.verdict not in (Verdict.FAILED, Verdict.ERROR) or step["dialect"] == DIALECT:
            continue
        case, stage = f"{step['model']}/{step['submodel']}", Stage(step["stage"])
        reason = short_reason(result.reason)
        error = result.verdict is Verdict.ERROR and not result.crashed
        if error or stage not in _STAGES:
            why = "an error is no failure of the product" if error else "golden.update is for figures"
            sys.stderr.write(f"not added {case}, {stage}: {reason} ({why})\n")
            continue
        old = next((item for item in listed if item.stage is stage and fnmatch.fnmatchcase(case, item.case)), None)
        kind = str(result.failure or "")
        if old is not None and old.case != case:
            where = f"{old.origin.file}: {old.origin.field} ({old.case}, {stage})"
            sys.stderr.write(f"stays    {where}: {case} fails otherwise ({kind}): write a narrower case\n")
        elif (case, stage) not in found:
            match = "" if result.failure in (None, FailureKind.WRONG_NUMBERS) else stable_text(result.reason)
            why = f"{reason} (IREE {release})" if release else reason
            found[case, stage] = NewFailure(case, stage, why, kind, match)
            verb, how = "change" if old else "add", f"{kind}: " if kind else ""
            sys.stderr.write(f"{verb:<8} {case}, {stage}: {how}{reason}\n")
    return list(found.values())


def with_expected_failures(text: str, *, removed: Collection[int], added: Sequence[NewFailure]) -> str:
    """The text of a suite with other expected failures.

    An entry goes with the comment that stands directly above it.

    Args:
        text: of a suite that reads without problems.
        removed: indices of entries of `expect_failure` that go.
        added: new ones; they come last.
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
        if _reads_as(shorter, expected):
            return shorter
    document = tomlkit.parse(text)
    tables = cast("AoT", document[_NAME])
    del tables[index]
    if not len(tables):
        del document[_NAME]
    return tomlkit.dumps(document)


def _reads_as(text: str, expected: dict[str, object]) -> bool:
    try:
        return tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        return False
