"""Steps that are repeated, what comes of flaky ones, and quarantines."""

from __future__ import annotations

import json
import random
import re
import shlex
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from lxml import etree

from iree_gauntlet.cases import Origin, Quarantine, Verdict
from iree_gauntlet.engine.run_start import list_quarantine_warnings
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.stages import Stage
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.hanging import HANG
from tests.support.operator_suite import OperatorSuite
from tests.support.places import DATA
from tests.support.processes import wait_until
from tests.support.steps import make_step

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.support.command_line import CommandResult
    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

_STEP = "toy/abs@cpu:threshold"
_CRASH = "kill -SEGV $$"
_FAILURE = 'echo "[FAILED] result[0]: element at index 0 (1) does not match the expected (2)"; exit 1'


def write_runner(project: Project, bad: Collection[int], action: str = _CRASH) -> dict[str, str]:
    """Write an iree-run-module that does something else in some of its starts that compare outputs, from 1."""
    (project.folder / "starts").write_text("")
    starts = shlex.quote(str(project.folder / "starts"))
    cases = f"{'|'.join(map(str, bad)) or 'none'}) {action} ;;"
    script = f"""case "$*" in *--expected_output=*)
echo >> {starts}
case $(($(wc -l < {starts}))) in {cases} esac ;; esac
exec {shlex.quote(find_installed().runtime.run_module)} "$@\""""
    return {"run_module": project.write_tool(script)}


def count_starts(project: Project) -> int:
    return len((project.folder / "starts").read_text())


def run(project: Project, *words: str, **tools: str) -> CommandResult:
    return project.gauntlet("run", "--stages", "threshold", *words, **tools)


def list_attempts(project: Project) -> list[str]:
    return [str(attempt.verdict) for attempt in project.journal.results[_STEP].attempts]


def read_case(project: Project) -> Any:
    document = etree.parse(str(project.newest / "junit.xml"))
    etree.XMLSchema(etree.parse(str(DATA / "junit-10.xsd"))).assertValid(document)
    return next(case for case in document.iter("testcase") if case.get("name") == "threshold")


def test_a_program_that_crashes_the_first_time_only_is_flaky(project: Project) -> None:
    runner = write_runner(project, {1})
    done = run(project, "--rerun-failed", "2", **runner)
    assert (done.code, project.verdict(_STEP), list_attempts(project)) == (1, "flaky", ["error", "passed"]), done.text
    assert "1 case: 1 flaky · 3 steps: 1 flaky, 2 passed" in done.out
    log = "steps/toy/abs.cpu/threshold/attempt1/stderr.txt"
    assert f"  attempt 1 ended in an error: iree-run-module crashed with SIGSEGV; log {log}\n" in done.out
    assert (project.newest / log).is_file()
    # Readers of Surefire's files count it as passed, and name the attempt that failed.
    children = {child.tag: child for child in read_case(project)}
    assert children.keys() == {"system-out", "flakyError"}
    assert children["flakyError"].attrib == {"message": "iree-run-module crashed with SIGSEGV", "type": "SIGSEGV"}
    assert log in str(children["flakyError"].findtext("stackTrace"))
    summary = json.loads((project.newest / "summary.json").read_text())
    assert (summary["counts"]["flaky"], summary["exit_code"]) == (1, 1)
    (step,) = (step for step in summary["chains"][0]["steps"] if step["stage"] == "threshold")
    assert [(attempt["verdict"], attempt["signal"]) for attempt in step["attempts"]] == [
        ("error", "SIGSEGV"),
        ("passed", ""),
    ]
    assert log in (project.newest / "summary.html").read_text()
    # Later reports have the same exit code, and so has a run that lets flaky steps pass.
    assert project.gauntlet("report", "latest").code == 1
    write_runner(project, {1})
    done = run(project, "--rerun-failed", "1", "--flaky", "pass", "--fail-fast", **runner)
    assert (done.code, project.verdict(_STEP)) == (0, "flaky"), done.text
    assert done.out.endswith("exit code 0: all as expected, except toy/abs@cpu threshold (flaky)\n")
    assert project.gauntlet("report", "latest").code == 0
    # Without the option, nothing is repeated.
    write_runner(project, {1})
    assert run(project, **runner).code == 3
    assert (count_starts(project), list_attempts(project)) == (1, [])


def test_a_program_that_always_fails_has_failed_in_all_attempts(project: Project) -> None:
    done = run(project, "--rerun-failed", "2", "--flaky", "pass", **write_runner(project, range(1, 9), _FAILURE))
    assert (done.code, project.verdict(_STEP), list_attempts(project)) == (1, "failed", ["failed"] * 3), done.text
    assert count_starts(project) == 3
    assert "  failed in all 3 attempts\n" in done.out
    assert sorted(child.tag for child in read_case(project)) == [
        "failure",
        "rerunFailure",
        "rerunFailure",
        "system-out",
    ]
    # If it is repeated later on the same files, its failures count; the files of all attempts are kept.
    project.suite('[[quarantine]]\ncase = "toy/*"\nreason = "r"\nuntil = 9999-12-31\n')
    done = project.gauntlet("run", "--resume", **write_runner(project, ()))
    assert (done.code, project.verdict(_STEP), list_attempts(project)) == (
        *(0, "quarantined"),
        ["failed", "failed", "failed", "passed"],
    )
    logs = [project.newest / attempt.log for attempt in project.journal.results[_STEP].attempts]
    assert ["[FAILED]" in log.read_text() for log in logs] == [True, True, True, False]


def test_mistakes_expected_failures_and_broken_goldens_are_not_repeated(project: Project) -> None:
    tools = write_runner(project, range(1, 9), _FAILURE)
    project.suite('[[expect_failure]]\ncase = "toy/abs"\nstage = "threshold"\nreason = "known"\n')
    assert run(project, "--suite", "s", "--rerun-failed", "3", **tools).code == 0
    assert (project.verdict(_STEP), count_starts(project)) == ("xfailed", 1)
    project.regression(run_function="abz")
    tools = write_runner(project, ())
    assert run(project, "--rerun-failed", "3", **tools).code == 3
    assert (project.verdict(_STEP), count_starts(project)) == ("error", 1)


def test_a_run_that_was_killed_between_two_attempts_goes_on_with_the_next(project: Project) -> None:
    tools = write_runner(project, {1}, f"{_CRASH} ;;\n2) {HANG}")
    process = project.start("run", "--stages", "threshold", "--rerun-failed", "2", **tools)
    wait_until(lambda: (project.folder / "starts").read_text() == "\n\n")
    process.kill()
    process.wait()
    killed = (project.newest / "journal.jsonl").read_bytes()
    report = project.gauntlet("report", "latest")
    assert "attempt 1 ended in an error: iree-run-module crashed with SIGSEGV" in report.out, report.text
    assert "  1 attempt ended before that\n" in report.out
    assert {child.tag for child in read_case(project)} >= {"error", "rerunError"}
    write_runner(project, {1})
    # The compile is repeated too, and gives the same bytes.
    for module in (project.newest / "steps").rglob("module.vmfb"):
        module.unlink()
    done = project.gauntlet("run", "--resume", **tools)
    assert (done.code, list_attempts(project)) == (1, ["error", "error", "passed"]), done.text
    assert count_starts(project) == 2
    # A step that has changed begins anew.
    (project.newest / "journal.jsonl").write_bytes(killed)
    write_runner(project, ())
    project.write_expected("abs", [9.0] * 4)
    done = project.gauntlet("run", "--resume", **tools)
    assert list_attempts(project) == ["failed"] * 3, done.text
    assert f"{_STEP} begins anew: what it reads has changed since it failed" in done.text


def test_a_quarantine_is_announced_in_its_last_week() -> None:
    entry = Quarantine("r", "2026-12-31", Origin("s.toml", "quarantine[0]"), "toy/*")
    lasting = replace(entry, until="https://github.com/iree-org/iree/issues/22649")
    step = make_step(Stage.THRESHOLD)
    steps = [replace(step, quarantine=item) for item in (entry, entry, lasting)] + [step]
    warnings = {day: list_quarantine_warnings(steps, date(2026, 12, day)) for day in (23, 24, 30, 31)}
    start, end = "quarantine of toy/* (r) ", " (s.toml: quarantine[0])"
    assert warnings == {
        23: (),
        24: (f"{start}ends in 7 days, on 2026-12-31: then its failures fail the run{end}",),
        30: (f"{start}ends in 1 day, on 2026-12-31: then its failures fail the run{end}",),
        31: (f"{start}ended on 2026-12-31: its failures fail the run again{end}",),
    }


def test_an_operators_case_is_repeated_outside_of_the_servers(project: Project) -> None:
    suite = OperatorSuite(project)
    suite.add_misspelt("misspelt")
    done = suite.run("--rerun-failed", "1", **project.write_logging_tools())
    assert done.code == 1, done.text
    # The server compiled it first, and the cache knows the failure then.
    assert project.calls.count("compile") == 1
    attempts = project.journal.results["node/misspelt@cpu_sync:compile"].attempts
    assert [attempt.cache and attempt.cache.hit for attempt in attempts] == [False, False]


def test_a_quarantine_excuses_failures_until_its_day(project: Project) -> None:
    tools = write_runner(project, range(1, 99), _FAILURE)
    entry = '[[quarantine]]\ncase = "toy/*"\nreason = "races, see the issue"\nuntil = '
    project.suite(f"{entry}9999-12-31\n")
    done = run(project, "--suite", "s", "--rerun-failed", "1", **tools)
    assert (done.code, project.verdict(_STEP)) == (0, "quarantined"), done.text
    assert "1 case: 1 quarantined" in done.out
    assert "Failures in quarantine\n" in done.out
    assert "in quarantine until 9999-12-31: races, see the issue" in done.out
    assert done.out.endswith("exit code 0: all as expected, except toy/abs@cpu threshold (quarantined)\n")
    # As of other failures: the attempts, the log, the command.
    page = (project.newest / "summary.html").read_text()
    for report in (done.out, (project.newest / "summary.md").read_text(), page):
        assert "failed in all 2 attempts" in report
        assert "steps/toy/abs.cpu/threshold/stdout.txt" in report
    assert "Reproduce" in page
    case = {child.tag: child for child in read_case(project)}
    assert str(case["skipped"].get("message")).startswith("quarantined: ")
    assert "rerunFailure" in case
    # A flaky step too; what needs it runs, as it passed in the end.
    tools = write_runner(project, {1})
    done = run(project, "--suite", "s", "--rerun-failed", "1", **tools)
    assert (done.code, project.verdict(_STEP), list_attempts(project)) == (0, "quarantined", ["error", "passed"])
    end = project.journal.end
    assert end is not None
    assert end.exit_code is ExitCode.OK
    assert project.journal.results[_STEP].settled_verdict is Verdict.PASSED
    # A mistake in the spec is not excused.
    project.regression(run_function="abz")
    tools = write_runner(project, ())
    done = run(project, "--suite", "s", "--rerun-failed", "1", **tools)
    assert (done.code, project.verdict(_STEP)) == (3, "error"), done.text
    project.regression()
    tools = write_runner(project, range(1, 99), _FAILURE)
    # Without a suite, the entries of the project's suites apply too.
    done = run(project, **tools)
    assert (done.code, project.verdict(_STEP)) == (0, "quarantined"), done.text
    assert "in quarantine, according to suites/s.toml: toy/abs\n" in done.err
    # The URL of an issue has no end; an entry of another stage excuses nothing.
    project.suite(f'{entry}"https://github.com/iree-org/iree/issues/22649"\n')
    assert run(project, "--suite", "s", **tools).code == 0
    project.suite(f'{entry}"9999-12-31"\nstage = "compile"\n')
    assert run(project, "--suite", "s", **tools).code == 1
    # It ended: failures count again, loudly.
    project.suite(f"{entry}2020-01-02\n")
    done = run(project, "--suite", "s", **tools)
    assert (done.code, project.verdict(_STEP)) == (1, "failed"), done.text
    warning = "quarantine of toy/* (races, see the issue) ended on 2020-01-02: its failures fail the run again"
    assert f"warning: {warning} (suites/s.toml: quarantine[0])" in done.err
    assert "ended on 2020-01-02: its failures fail the run again" in (project.newest / "summary.md").read_text()
    # The day on which the run started decides, also in its later parts.
    journal = project.newest / "journal.jsonl"
    lines = [line for line in journal.read_text().splitlines(keepends=True) if f'"step":"{_STEP}"' not in line]
    lines[0] = re.sub(r'"time":"[^T"]*', '"time":"2020-01-01', lines[0], count=1)
    journal.write_text("".join(lines[:-1]))
    done = project.gauntlet("run", "--resume", **tools)
    assert (done.code, project.verdict(_STEP)) == (0, "quarantined"), done.text
    assert "(races, see the issue) ends in 1 day, on 2020-01-02: then its failures fail the run" in done.err


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ('case = "toy/*"\nreason = "r"\nuntil = "soon"', "expected a day such as 2026-12-31, or the URL of an issue"),
        ('case = "toy/*"\nreason = "r"', "until"),
        ('case = "toy/abz"\nreason = "r"\nuntil = 2030-01-01', "'toy/abz' matches no spec"),
    ],
)
def test_a_quarantine_without_end_or_case_is_refused(project: Project, entry: str, says: str) -> None:
    project.suite(f"[[quarantine]]\n{entry}\n")
    done = project.gauntlet("plan", "--suite", "s")
    assert done.code == 2
    assert says in done.err


def test_a_program_that_fails_by_chance_has_a_rate_in_the_history(project: Project) -> None:
    chance = random.Random(1)
    tools = write_runner(project, {number for number in range(1, 99) if chance.random() < 0.2})
    verdicts = []
    for _ in range(6):
        run(project, "--rerun-failed", "2", **tools)
        verdicts.append(project.verdict(_STEP))
        assert project.gauntlet("history.add").code == 0
    assert set(verdicts) == {"passed", "flaky"}
    done = project.gauntlet("history.check", "--format", "json")
    (rate,) = json.loads(done.out)["rates"]
    flaky_count = verdicts.count("flaky")
    assert (rate["kind"], rate["runs"], rate["failures"]) == ("flaky", 6, flaky_count)
    assert rate["low"] < 0.2 < rate["high"]
    done = project.gauntlet("history.list")
    assert f"{flaky_count} of 6" in done.out, done.text
