"""`history.collect`: a year of a made-up CI, hostile answers of its server, folders and buckets of artifacts."""

from __future__ import annotations

import io
import json
import os
import subprocess
import threading
import zipfile
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import obstore
import pytest

from iree_gauntlet.artifacts.object_stores import open_store
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.history import artifact_runs, ci_sources
from iree_gauntlet.history.ci_sources import find_job
from iree_gauntlet.requests import NetworkRequest
from iree_gauntlet.settings import Configuration
from iree_gauntlet.system.github_api import CiArtifact
from iree_gauntlet.tasks.task_options import run_to_exit_code
from iree_gauntlet.upkeep.history_collect import collect, wait_visibly
from iree_gauntlet.upkeep.upkeep_requests import ArtifactsRequest
from tests.support.artifact_server import Request, make_responder, run_server
from tests.support.checkout import needs_git
from tests.support.emulators import ACCOUNT
from tests.support.fake_github import TOKEN, FakeGitHub, make_zip
from tests.support.journal_builder import JournalBuilder, make_samples
from tests.support.matrix_builder import make_compile_result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.emulators import Azurite, Bucket
    from tests.support.toy_project import Project

_SLOWER_FROM = 80
_JUNIT = b'<testsuites><testsuite name="s"><testcase classname="m" name="t" time="1.5"/></testsuite></testsuites>'


def summarize(ms: float, name: str = "llama/decode") -> dict[str, Any]:
    """A `job_summary.json` of iree-test-suites with one time."""
    return {"benchmark": {"headers": ["Name", "Current Time (ms)", "Status"], "rows": [[name, ms, "PASSED"]]}}


@dataclass
class Ci:
    """The fake, and the history that collects from it.

    Attributes:
        waits: the seconds of each wait; none of them takes any time.
        on_wait: called at each wait.
    """

    github: FakeGitHub
    folder: Path
    capsys: pytest.CaptureFixture[str]
    waits: list[float] = field(default_factory=list)
    on_wait: Callable[[], None] = lambda: None

    def collect(self, **options: Any) -> tuple[ExitCode, str]:
        """Collect; return the exit code and all that was printed."""
        source = options.pop("source", "github:acme/models")
        if source.startswith("github:"):
            options.setdefault("workflow", "bench.yml")
        options.setdefault("store", str(self.folder / "history"))
        request = ArtifactsRequest(source=source, **options)
        code = run_to_exit_code(lambda: collect(request, NetworkRequest(), self._wait))
        printed = self.capsys.readouterr()
        text = printed.out + printed.err
        assert "Traceback" not in text
        assert TOKEN not in text
        return code, text

    def _wait(self, _event: threading.Event, seconds: float) -> None:
        self.waits.append(seconds)
        self.on_wait()

    @property
    def files(self) -> list[dict[str, Any]]:
        """The files of the history."""
        return [json.loads(path.read_bytes()) for path in sorted((self.folder / "history").rglob("*.json"))]

    @property
    def figures(self) -> dict[str, float]:
        """The figures of all runs, by run, case and name."""
        return {
            f"{run['run']} {case['model']}/{case['submodel']} {figure['name']}": figure["value"]
            for run in self.files
            for case in run["cases"]
            for figure in case["figures"]
        }


@pytest.fixture
def ci(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Ci]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(artifact_runs, "MAX_FILE_BYTES", 1_000_000)
    (tmp_path / "tmp").mkdir()
    with run_server() as server:
        monkeypatch.setenv("GITHUB_API_URL", server.base)
        monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
        monkeypatch.delenv("GH_TOKEN", raising=False)
        yield Ci(FakeGitHub(server), tmp_path, capsys)
    assert list((tmp_path / "tmp").iterdir()) == []
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]


def _make_bomb() -> bytes:
    return make_zip({"job_summary.json": bytes(2_000_000)})


def _add_year(github: FakeGitHub) -> dict[str, int]:
    """120 runs, one every three days; artifacts of the first ten have expired. The 80th is slower, for good."""
    special = {}
    for number in range(1, 121):
        day = str(date(2026, 1, 1) + timedelta(days=3 * (number - 1)))
        run = github.add_run(day)
        ms = 10.0 * (1.08 if number >= _SLOWER_FROM else 1.0) * (1 + 0.004 * (number * 7 % 5 - 2))
        content = make_zip({"job_summary.json": summarize(round(ms, 4)), "logs/compile_commands.json": [1]})
        if number == 30:
            special["torn"] = github.add_artifact(run, content[: len(content) // 2])
        elif number == 40:
            special["bomb"] = github.add_artifact(run, _make_bomb())
        elif number == 50:
            special["lost"] = github.add_artifact(run, content, digest="sha256:" + "0" * 64)
        else:
            github.add_artifact(run, content, expired=number <= 10)
        github.add_artifact(run, b"", "packages")
    # Another page of artifacts: GitHub lists a hundred.
    github.artifacts[60][:0] = [{"id": 7 * 10**6 + n, "name": f"log-{n}"} for n in range(100)]
    return special


def test_a_year_of_ci_is_collected_in_two_goes_and_its_slowdown_is_found(ci: Ci, project: Project) -> None:
    special = _add_year(ci.github)
    ci.github.allowance = 150
    # GitHub asks for half an hour; the first go may wait ten minutes.
    code, said = ci.collect(artifact="results*", branch="main", max_wait=10.0)
    assert code == ExitCode.ERROR
    assert "stopped: HTTP 403" in said
    assert "the server asks to wait 1801 s" in said
    assert "Run the command again" in said
    assert ci.waits == []
    first = len(ci.files)
    assert 40 < first < 60
    ci.github.allowance, ci.on_wait = 100, lambda: setattr(ci.github, "allowance", 1000)
    code, said = ci.collect(artifact="results*", branch="main")
    assert (code, set(ci.waits)) == (ExitCode.ERROR, {1801.0})
    assert "HTTP 403" in said, "the wait is said"
    assert "runs of CI already settled" in said
    assert set(ci.github.downloads.values()) <= {1, 2}
    twice = {number for number, count in ci.github.downloads.items() if count > 1}
    assert twice <= {special["lost"]}, "nothing is fetched twice, but for what arrives damaged"
    assert ci.github.tokens == {""}, "the host of the archives gets no token"
    runs = [run for run in ci.files if run["state"] != "collection"]
    assert len(runs) == 120 - 10 - 3
    # What has expired or is damaged at its source is settled; what arrived damaged is tried again.
    code, said = ci.collect(artifact="results*", branch="main")
    assert (code, "119 runs of CI already settled" in said) == (ExitCode.ERROR, True), said
    assert "results of run 50" in said
    ci.github.artifacts[50][0]["digest"] = ""
    code, said = ci.collect(artifact="results*", branch="main")
    assert (code, "1 run added" in said) == (ExitCode.OK, True), said
    requests = sum(ci.github.hits.values())
    assert ci.collect(artifact="results*", branch="main")[0] == ExitCode.OK
    assert sum(ci.github.hits.values()) == requests + 2, "two pages of runs, and nothing else"
    _check_year(ci, project)


def _check_year(ci: Ci, project: Project) -> None:
    store = ("--store", str(ci.folder / "history"))
    (run,) = (run for run in ci.files if run["run"].startswith("bench-90/"))
    assert (run["time"], run["iree"]["compiler_commit"]) == ("2026-09-25T02:00:00+00:00", f"{90:040x}")
    origin = run["more"]["collected"]
    assert origin["url"] == "https://github.com/acme/models/actions/runs/90"
    assert (origin["branch"], origin["runner"]) == ("main", "runner-7, linux-mi325")
    assert run["machine"]["cpu"] == "linux-mi325"
    listed = json.loads(project.gauntlet("history.list", "--format", "json", *store).out)["runs"]
    assert (len(listed), {entry["state"] for entry in listed}) == (108, {"imported"})
    done = project.gauntlet("history.check", "--format", "json", *store)
    (finding,) = json.loads(done.out)["findings"]
    assert (done.code, finding["kind"], finding["after"]["commit"]) == (1, "regression", f"{_SLOWER_FROM:040x}")
    assert finding["change"] == pytest.approx(0.08, abs=0.005)


def test_what_is_wrong_with_an_artifact_is_named_and_the_others_are_added(ci: Ci) -> None:
    for number in range(1, 6):
        ci.github.add_run(f"2026-03-0{number}")
    good = make_zip({"job_summary.json": summarize(1.0)})
    ci.github.add_artifact(1, good, "a", expired=True)
    ci.github.add_artifact(2, good[:100], "b")
    ci.github.add_artifact(3, _make_bomb(), "c")
    ci.github.add_artifact(4, make_zip({"job_summary.json": b'{"quality": '}), "d")
    ci.github.add_artifact(5, good, "e")
    benchmarks = [{"name": "BM_a", "real_time": 1.0}]
    ci.github.add_artifact(5, make_zip({"b.json": {"context": {"num_cpus": 1e30}, "benchmarks": benchmarks}}), "g")
    ci.github.add_artifact(5, make_zip({"notes.txt": b"x", "other.json": {"a": 1}}), "f")
    code, said = ci.collect()
    assert code == ExitCode.ERROR
    assert "warning: 1 artifact expired: a of run 1 (2026-03-01)" in said
    assert "warning: b of run 2 (2026-03-02): it is damaged: File is not a zip file" in said
    assert "c of run 3 (2026-03-03): job_summary.json: has 2.0 MB unpacked; at most 1.0 MB are read" in said
    assert "d of run 4 (2026-03-04): job_summary.json cannot be imported" in said
    assert "g of run 5 (2026-03-05): b.json has values that no history can keep: " in said
    assert "5 runs of CI, 5 artifacts, 1 run added" in said
    assert "1 without figures, 1 expired, 4 not read" in said
    assert list(ci.figures) == ["bench-5/e/job_summary.json llama/decode time_ms"]
    (state,) = (run["more"]["collected"] for run in ci.files if run["state"] == "collection")
    assert state["settled"] == ["1.1", "2.1", "3.1", "4.1", "5.1"]
    assert len(state["problems"]) == 5
    assert ci.collect()[0] == ExitCode.OK


def test_an_artifact_is_read_up_to_a_limit_and_no_file_twice(ci: Ci, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO(make_zip({"a/job_summary.json": summarize(1.0)}))
    with zipfile.ZipFile(stream, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a/job_summary.json", json.dumps(summarize(2.0)))
    ci.github.add_artifact(ci.github.add_run("2026-03-01"), stream.getvalue(), "twice")
    files = {f"{number}/job_summary.json": summarize(1.0) for number in range(5)}
    ci.github.add_artifact(ci.github.add_run("2026-03-02"), make_zip(files), "many")
    monkeypatch.setattr(artifact_runs, "_MAX_BYTES", 3 * len(json.dumps(summarize(1.0))))
    code, said = ci.collect()
    assert code == ExitCode.ERROR
    assert "twice of run 1 (2026-03-01): a/job_summary.json is there twice" in said
    assert "many of run 2 (2026-03-02): 3/job_summary.json and others: of an artifact, " in said
    assert len(ci.figures) == 3


def test_names_are_names_and_no_paths(ci: Ci) -> None:
    ci.github.add_run("2026-03-01")
    evil = {"../../../job_summary.json": summarize(1.0), "/etc/x\x1b[31m.xml": _JUNIT, "a/../../b.json": {"a": 1}}
    ci.github.add_artifact(1, make_zip(evil), "../../\x1b[31mevil")
    before = sorted(path for path in ci.folder.parent.rglob("*") if ci.folder not in path.parents)
    code, said = ci.collect()
    assert code == ExitCode.OK, said
    assert "\x1b" not in said
    assert sorted(path for path in ci.folder.parent.rglob("*") if ci.folder not in path.parents) == before
    assert sorted(ci.figures.values()) == [1.0, 1.5]
    assert not any("\x1b" in name for name in ci.figures)


def test_our_own_runs_are_read_from_their_records(ci: Ci, tmp_path: Path) -> None:
    builder = JournalBuilder()
    compiled, timed = (builder.step("m", "a", stage) for stage in ("compile", "benchmark"))
    builder.begin()
    builder.result(compiled, **make_compile_result(seconds=2.0))
    builder.result(timed, samples=make_samples(1.0, 1.1))
    builder.end()
    journal = (builder.write(tmp_path / "run") / "journal.jsonl").read_bytes()
    summary = {
        "schema": 1, "run": "other", "started": "2026-03-02T10:00:00+00:00", "state": "complete", "exit_code": 0,
        "version": "0.1.0", "toolchain": {"compiler": "3.8.0"}, "machine": {"cpu": "EPYC", "cores": 4},
        "chains": [{"id": "m/b@cpu", "model": "m", "submodel": "b", "target": "cpu", "sku": "", "verdict": "failed",
                    "time_ms": {"mean": 2.0, "golden": 1.9, "limit": 2.1}, "dispatch_count": {"measured": 7},
                    "steps": [{"id": "s", "seconds": 1, "stage": stage, "verdict": verdict, "real_time_ms": [2.0]}]}
                   for stage, verdict in (("benchmark", "passed"),)],
    }  # fmt: skip
    reports = {"junit.xml": _JUNIT, "job_summary.json": summarize(3.0)}
    ci.github.add_run("2026-03-01")
    ci.github.add_artifact(1, make_zip({"journal.jsonl": journal, "summary.json": summary, **reports}), "one")
    ci.github.add_artifact(1, make_zip({"runs/ci/summary.json": summary, "runs/ci/log/junit.xml": _JUNIT}), "two")
    ci.github.add_artifact(1, make_zip({"journal.jsonl": b"torn", **reports}), "three")
    wrong = json.loads(json.dumps(summary).replace('"benchmark"', '"threshold"').replace('"passed"', '"failed"'))
    ci.github.add_artifact(1, make_zip({"summary.json": wrong | {"run": "wrong"}}), "four")
    code, said = ci.collect()
    assert (code, "three of run 1 (2026-03-01): run bench-1/three never started" in said) == (ExitCode.ERROR, True), (
        said
    )
    names = {name.partition(" ")[2] for name in ci.figures}
    assert "other m/a time_ms" in ci.figures, "named by the summary beside the record"
    assert {"m/a time_ms", "m/a compile_s", "m/b time_ms", "m/b dispatches"} <= names
    assert not any("llama" in name or "test_s" in name for name in names), "reports of the same run"
    assert "wrong m/b time_ms" not in ci.figures, "what gives wrong numbers has no time"
    irees = {(run["machine"].get("cpu"), run["iree"]["compiler"]) for run in ci.files if run["run"] == "other"}
    assert ("EPYC", "3.8.0") in irees
    assert all(run["more"]["collected"]["commit"] == f"{1:040x}" for run in ci.files if run["cases"])


def _stream(request: Request) -> None:
    """An answer without a length and without an end, until nobody listens."""
    request.send_response(200)
    request.end_headers()
    for _ in range(10_000):
        request.wfile.write(b"[" * (1 << 16))


@pytest.mark.parametrize(
    ("answer", "what", "hint"),
    [
        (make_responder(b"<html>"), "does not answer with JSON", "GITHUB_API_URL"),
        (make_responder(b"[]"), "does not answer like GitHub", "GITHUB_API_URL"),
        (make_responder(b'{"workflow_runs": {}}'), "workflow_runs is no list", "GITHUB_API_URL"),
        (make_responder(b'{"workflow_runs": [7]}'), "expected an object, found 7", "GITHUB_API_URL"),
        (make_responder(b'{"workflow_runs": [{"id": "x"}]}'), "id: expected a whole number", "GITHUB_API_URL"),
        (make_responder(b'{"workflow_runs": [{"id": 1, "created_at": "../x"}]}'), "created_at is", "GITHUB_API_URL"),
        (make_responder(b"[" * 100_000), "does not answer with JSON", "GITHUB_API_URL"),
        (_stream, "received more than 1.0 MB", "--max-download"),
        (make_responder(b"{}", 404), "HTTP 404", "names of repository and workflow"),
        (make_responder(b"{}", 401), "HTTP 401", "GITHUB_TOKEN"),
        (make_responder(b"{}", 403), "HTTP 403", "GITHUB_TOKEN"),
        (make_responder(b"{}", 429, Retry_After="7200"), "asks to wait 7200 s", "after that time"),
        (make_responder(b"{}", 500), "HTTP 500", "Run again later"),
        (make_responder(b"", 302, Location="ftp://h/x"), "cannot be fetched", "Check the URL"),
    ],
)
def test_a_server_that_does_not_answer_like_github_is_an_error(
    ci: Ci, answer: Callable[[Request], None], what: str, hint: str
) -> None:
    ci.github.overrides["actions/workflows/bench.yml/runs"] = answer
    code, said = ci.collect(max_download="1MB")
    assert code == ExitCode.ERROR
    assert what in said
    assert hint in said
    assert ci.files == []


def test_a_limit_whose_end_is_not_said_is_waited_for_a_minute(ci: Ci) -> None:
    headers = {"x_ratelimit_remaining": "0", "x_ratelimit_reset": "soon"}
    ci.github.overrides["actions/workflows/bench.yml/runs"] = make_responder(b"{}", 403, **headers)
    ci.on_wait = ci.github.overrides.clear
    assert ci.collect()[0] == ExitCode.OK
    assert ci.waits == [60.0]


def test_a_run_whose_artifacts_cannot_be_listed_is_tried_again(ci: Ci) -> None:
    for number in range(1, 4):
        ci.github.add_artifact(
            ci.github.add_run(f"2026-03-0{number}"), make_zip({"x/job_summary.json": summarize(1.0)})
        )
    ci.github.overrides["actions/runs/2/artifacts"] = make_responder(b'{"artifacts": "none"}')
    code, said = ci.collect()
    assert (code, "run 2 of 2026-03-02: " in said) == (ExitCode.ERROR, True), said
    assert len(ci.figures) == 2
    ci.github.overrides.clear()
    assert ci.collect()[0] == ExitCode.OK
    assert len(ci.figures) == 3
    assert set(ci.github.downloads.values()) == {1}


def test_three_failures_in_a_row_are_the_networks(ci: Ci) -> None:
    for number in range(1, 6):
        run = ci.github.add_run(f"2026-03-0{number}")
        ci.github.overrides[f"actions/runs/{run}/artifacts"] = make_responder(b"{}", 418)
    code, said = ci.collect()
    assert (code, "github:acme/models at 127.0.0.1:" in said, "stopped: HTTP 418" in said) == (3, True, True), said
    assert "run 4" not in said


def test_artifacts_that_are_too_large_do_not_keep_others_from_being_collected(ci: Ci) -> None:
    for number in range(1, 6):
        content = make_zip({"job_summary.json": summarize(1.0), "noise": os.urandom(30_000 if number < 5 else 10)})
        ci.github.add_artifact(ci.github.add_run(f"2026-03-0{number}"), content)
    code, said = ci.collect(max_download="20kB")
    assert (code, said.count("but --max-download allows 20.0 kB"), len(ci.figures)) == (ExitCode.ERROR, 4, 1), said
    assert ci.collect()[0] == ExitCode.OK
    assert len(ci.figures) == 5


def test_a_token_that_may_not_read_archives_is_an_error_and_not_one_for_each(ci: Ci) -> None:
    for number in range(1, 6):
        artifact = ci.github.add_artifact(ci.github.add_run(f"2026-03-0{number}"), b"")
        ci.github.overrides[f"actions/artifacts/{artifact}/zip"] = make_responder(b"{}", 403)
    code, said = ci.collect()
    assert (code, said.count("warning:"), "Set $GITHUB_TOKEN" in said) == (ExitCode.ERROR, 3, True), said


def test_what_was_collected_is_kept_if_it_is_interrupted(ci: Ci) -> None:
    for number in range(1, 6):
        ci.github.add_artifact(ci.github.add_run(f"2026-03-0{number}"), make_zip({"job_summary.json": summarize(1.0)}))

    def interrupt() -> None:
        raise KeyboardInterrupt

    ci.on_wait, ci.github.allowance = interrupt, 8
    assert ci.collect()[0] == ExitCode.INTERRUPTED
    assert len(ci.figures) == 2
    ci.github.allowance = None
    assert ci.collect()[0] == ExitCode.OK
    assert len(ci.figures) == 5
    assert set(ci.github.downloads.values()) == {1}


@needs_git
def test_another_machine_goes_on_where_the_first_has_stopped(ci: Ci, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_API_URL", f"{ci.github.server.base}/api/v3/")
    subprocess.run(["git", "init", "-q", "--bare", ci.folder / "bare"], check=True)
    store = f"git:{ci.folder / 'bare'}#history"
    for number in range(1, 4):
        ci.github.add_artifact(ci.github.add_run(f"2026-03-0{number}"), make_zip({"job_summary.json": summarize(1.0)}))
        code, said = ci.collect(store=store, cache_dir=str(ci.folder / f"machine {number}"))
        assert (code, "1 run of CI, 1 artifact, 1 run added" in said) == (ExitCode.OK, True), said
    assert set(ci.github.downloads.values()) == {1}


def test_more_runs_than_github_lists_are_listed_by_their_time(ci: Ci, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(230):
        ci.github.add_run(str(date(2026, 1, 1) + timedelta(days=number)))
    monkeypatch.setattr(ci_sources, "_MAX_LISTED_RUNS", 100)
    ci.github.most_listed = 100
    code, said = ci.collect(since="2026-01-11")
    assert (code, "220 runs of CI, 0 artifacts, 0 runs added" in said) == (ExitCode.OK, True), said


def test_what_forks_have_run_is_left_out_and_what_was_run_again_is_not(ci: Ci) -> None:
    ci.github.add_run("2026-03-01", head_repository={"id": 6})
    ci.github.add_run("2026-03-02")
    ci.github.add_run("2026-03-03", head_repository=None)
    for run in (1, 2, 3):
        ci.github.add_artifact(run, make_zip({"job_summary.json": summarize(float(run))}))
    assert ci.collect(branch="main")[0] == ExitCode.OK
    assert list(ci.figures.values()) == [2.0]
    ci.github.runs[1] |= {"run_attempt": 2, "run_started_at": "2026-03-05T10:00:00Z"}
    ci.github.add_artifact(2, make_zip({"job_summary.json": summarize(3.0)}), "again")
    assert ci.collect(branch="main")[0] == ExitCode.OK
    assert sorted(ci.figures.values()) == [2.0, 3.0]
    assert ci.collect(artifact="results", workflow="bench.yml")[1].count("already settled") == 0, "another selection"
    assert set(ci.github.downloads.values()) == {1}


def test_each_machine_of_a_matrix_has_its_series(ci: Ci) -> None:
    run = ci.github.add_run("2026-03-01")
    job = ci.github.jobs[run][0]
    ci.github.jobs[run] = [
        job | {"name": f"bench ({name})", "labels": [f"linux-{name}"]} for name in ("mi300", "mi325")
    ]
    for name in ("job-mi300", "job-mi325", "job-other"):
        ci.github.add_artifact(run, make_zip({"job_summary.json": summarize(1.0)}), name)
    assert ci.collect()[0] == ExitCode.OK
    machines = {run["run"].split("/")[1]: run["machine"]["cpu"] for run in ci.files if run["cases"]}
    assert machines == {"job-mi300": "linux-mi300", "job-mi325": "linux-mi325", "job-other": "artifact job-other"}
    assert find_job(CiArtifact(1, "x"), ()) is None


@pytest.mark.parametrize(
    ("options", "environ", "what"),
    [
        ({"source": ""}, {}, "history.collect: from where?"),
        ({"workflow": ""}, {}, "which workflow?"),
        ({"source": "github:acme", "workflow": ""}, {}, "names no repository"),
        ({"source": "github:acme/.."}, {}, "names no repository"),
        ({"source": "https://host/artifacts"}, {}, "a web server has no list of its files"),
        ({"source": "nowhere"}, {}, "no such folder"),
        ({"source": ".", "branch": "main"}, {}, "are for github:"),
        ({"since": "soon"}, {}, "expected a day"),
        ({}, {"GITHUB_API_URL": "https://me:password@host"}, "GITHUB_API_URL is not an address"),
        ({}, {"GITHUB_API_URL": "http://[::1"}, "GITHUB_API_URL is not an address"),
        ({}, {"GITHUB_TOKEN": ""}, "gives artifacts only to users with a token"),
        ({}, {"GITHUB_TOKEN": "a token\nof two lines"}, "$GITHUB_TOKEN is not a token"),
    ],
)
def test_what_cannot_be_collected_is_a_clear_word(
    ci: Ci, options: dict[str, Any], environ: dict[str, str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    code, said = ci.collect(**options)
    assert (code, what in said) == (ExitCode.USAGE, True), said
    assert "password" not in said
    assert "two lines" not in said


@pytest.mark.parametrize("source", ["github:acme/models", "artifacts"])
def test_a_glob_that_never_matched_is_an_error_with_the_nearest_names(ci: Ci, source: str) -> None:
    content = make_zip({"job_summary.json": summarize(1.0)})
    for day in range(1, 52):
        ci.github.add_artifact(ci.github.add_run(str(date(2026, 3, 1) + timedelta(days=day))), content)
    archive = ci.folder / "artifacts" / "2026-03-02" / "results.zip"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(content)
    for _ in range(2):
        code, said = ci.collect(source=source, artifact="resluts*")
        assert (code, "no artifact matches resluts*" in said) == (ExitCode.NOTHING_SELECTED, True), said
        assert "There are results" in said
    assert not ci.files
    code, said = ci.collect(source=source, artifact="res*")
    assert (code, len(ci.figures)) == (ExitCode.OK, 51 if "github" in source else 1), said
    # A run of CI may have none of them.
    ci.github.add_artifact(ci.github.add_run("2026-06-01"), content, "other")
    archive.rename(archive.with_name("other.zip"))
    code, said = ci.collect(source=source, artifact="res*")
    assert code == ExitCode.OK, said


def _fill(folder: Path, name: str) -> None:
    commit = "c" * 40
    archive = folder / "2026-03-01" / commit / "results.zip"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(make_zip({"job_summary.json": summarize(1.0), "junit.xml": _JUNIT}))
    loose = folder / "2026-03-02" / "results"
    loose.mkdir(parents=True)
    (loose / "job_summary.json").write_text(json.dumps(summarize(2.0)))
    (loose / "log.txt").write_text("x")
    record = folder / name / "runs" / "ci"
    (record / "steps").mkdir(parents=True)
    (record / "journal.jsonl").write_text("")
    (record / "steps" / "job_summary.json").write_text(json.dumps(summarize(4.0)))
    (folder / "results.zip").write_bytes(make_zip({"job_summary.json": summarize(3.0)}))


def test_a_folder_of_artifacts_is_collected_once(ci: Ci) -> None:
    folder = ci.folder / "artifacts"
    _fill(folder, "results of a run é#%")
    code, said = ci.collect(source="artifacts", artifact="results*", sku="mi325")
    assert (code, "results.zip: job_summary.json has no date" in said) == (ExitCode.ERROR, True), said
    assert "results of a run é#%/runs/ci: run results of a run é#%/runs/ci never started" in said
    assert sorted(ci.figures.values()) == [1.0, 1.5, 2.0]
    first = next(run for run in ci.files if run["run"].endswith(f"{'c' * 40}/results.zip/job_summary.json"))
    assert (first["time"][:10], first["iree"]["compiler_commit"]) == ("2026-03-01", "c" * 40)
    assert first["cases"][0]["sku"] == "mi325"
    assert "2026-03-02/results/job_summary.json" in [run["run"] for run in ci.files], "its folder is named once"
    code, said = ci.collect(source="artifacts", artifact="results*", sku="mi325")
    assert (code, "4 runs of CI already settled" in said) == (ExitCode.OK, True), said


@pytest.fixture(params=["az", "s3"])
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty folder of a bucket, for which the environment has the credentials."""
    if request.param == "az":
        azurite: Azurite = request.getfixturevalue("azurite")
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string())
        return f"az://{ACCOUNT}/{azurite.container(public=False)}/ci"
    emulator: Bucket = request.getfixturevalue("s3")
    monkeypatch.setenv("AWS_ENDPOINT_URL", emulator.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return f"s3://{emulator.name}/collected/ci"


def test_a_bucket_of_artifacts_is_collected_once(ci: Ci, bucket: str, tmp_path: Path) -> None:
    source = bucket
    location = open_store(source, Configuration(environ=os.environ))
    _fill(tmp_path / "local", "results of a run é#%")
    for path in (path for path in (tmp_path / "local").rglob("*") if path.is_file()):
        obstore.put(location.store, f"{location.path}/{path.relative_to(tmp_path / 'local')}", path.read_bytes())
    code, said = ci.collect(source=source)
    assert (code, "results.zip: job_summary.json has no date" in said) == (ExitCode.ERROR, True), said
    assert sorted(ci.figures.values()) == [1.0, 1.5, 2.0]
    assert "runs/ci never started: its journal is empty" in said
    assert ci.collect(source=source)[0] == ExitCode.OK


def test_a_wait_is_said_each_minute(capsys: pytest.CaptureFixture[str]) -> None:
    event = threading.Event()
    waits: list[float | None] = []

    def note_wait(timeout: float | None = None) -> bool:
        waits.append(timeout)
        return False

    event.wait = note_wait  # type: ignore[method-assign]
    wait_visibly(event, 130.0)
    assert waits == [60.0, 60.0, 10.0]
    assert capsys.readouterr().err.count("waiting for") == 2
